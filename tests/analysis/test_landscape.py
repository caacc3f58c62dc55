"""Hessian spectra compared with dense expectations in N dimensions and published formulas."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from sgdynamics.analysis.landscape import hessian_spectrum
from sgdynamics.expectations.nodes import gauss_hermite
from tests.simulation.test_behaviour import count_compilations

HEAD = np.array([1.3, -0.7])
# f, f' and f''.
FUNCTIONS = {
    "square": (lambda u: u**2, lambda u: 2 * u, lambda u: 2 + 0 * u),
    "he3": (lambda u: u**3 - 3 * u, lambda u: 3 * u**2 - 3, lambda u: 6 * u),
    "erf": (
        lambda u: special.erf(u / np.sqrt(2)),
        lambda u: np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2),
        lambda u: -np.sqrt(2 / np.pi) * u * np.exp(-(u**2) / 2),
    ),
    "tanh": (np.tanh, lambda u: 1 / np.cosh(u) ** 2, lambda u: -2 * np.tanh(u) / np.cosh(u) ** 2),
}
SIGNAL = np.array([0.4, 0.0, 0.0, 0.0])
STATES = {
    "generic": np.array([[0.3, 0.35, 0.0, 0.0], [-0.2, 0.1, 0.3, 0.0]]),
    "learned": np.array([SIGNAL, SIGNAL]),
    "a dead unit": np.array([[0.0, 0.0, 0.0, 0.0], [-0.2, 0.4, 0.0, 0.0]]),
}


def dense_hessian(name, teacher, W, signal, head, nodes, scale=None):
    """E[h_ij x x^T] and E[h_i x] by a product rule in all N dimensions.

    Coordinate x_m has standard deviation scale_m.
    """
    p, N = W.shape
    x, weight = gauss_hermite(nodes)
    grid = np.stack(np.meshgrid(*[x] * N, indexing="ij"), axis=-1).reshape(-1, N)
    weights = np.prod(
        np.stack(np.meshgrid(*[weight] * N, indexing="ij"), axis=-1).reshape(-1, N), axis=1
    )
    grid = grid * (np.ones(N) if scale is None else scale)
    f, f1, f2 = FUNCTIONS[name]
    fields = grid @ W.T
    residual = FUNCTIONS[teacher][0](grid @ signal) - f(fields) @ head / p
    h = -(head / p) * f1(fields) * residual[:, None]
    H = np.zeros((p, N, p, N))
    for i in range(p):
        for j in range(p):
            hij = (
                head[i] * head[j] / p**2 * f1(fields[:, i]) * f1(fields[:, j])
                - (i == j) * head[i] / p * f2(fields[:, i]) * residual
            )
            H[i, :, j] = grid.T @ ((weights * hij)[:, None] * grid)
    return H, (weights[:, None] * h).T @ grid


def all_eigenvalues(spectrum):
    return np.repeat(spectrum.eigenvalues, spectrum.multiplicities)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("name", "teacher", "nodes"),
    [("square", "square", 8), ("he3", "square", 8), ("erf", "erf", 28), ("tanh", "tanh", 28)],
)
def test_smooth_networks_against_a_dense_hessian(name, teacher, nodes, state):
    W = STATES[state]
    problem = sgd.TeacherStudent(
        width=2, activation=name, teacher_activation=teacher, teacher_gram=[[0.16]], noise=0.3
    )
    start = sgd.start(problem, M=W @ SIGNAL[:, None], Q=W @ W.T, a=HEAD)
    spectrum = hessian_spectrum(problem, start, dimension=4)
    H, gradient = dense_hessian(name, teacher, W, SIGNAL, HEAD, nodes)
    np.testing.assert_allclose(
        all_eigenvalues(spectrum), np.linalg.eigvalsh(H.reshape(8, 8)), atol=1e-10
    )
    assert spectrum.gradient_norm == pytest.approx(np.linalg.norm(gradient), abs=1e-10)
    assert spectrum.error < (1e-7 if name == "tanh" else 1e-10)  # closed forms except for tanh


def safran_shamir(W, V, head, teacher_head):
    """The Hessian of ReLU networks in closed form (Safran and Shamir 2018).

    It is computed in the dimension of the rows.
    """
    p, N = W.shape
    alpha, beta = head / p, teacher_head / len(V)

    def angle_and_normal(w, v):
        w, v = w / np.linalg.norm(w), v / np.linalg.norm(v)
        theta = 2 * np.arctan2(np.linalg.norm(w - v), np.linalg.norm(w + v))
        normal = v - (v @ w) * w
        return theta, normal / np.linalg.norm(
            normal
        ) if theta > 1e-9 and np.pi - theta > 1e-9 else 0 * normal

    def own_block(w, v):
        theta, normal = angle_and_normal(w, v)
        unit = w / np.linalg.norm(w)
        shape = np.eye(N) - np.outer(unit, unit) + np.outer(normal, normal)
        return np.linalg.norm(v) * np.sin(theta) / (2 * np.pi * np.linalg.norm(w)) * shape

    def cross_block(w, v):
        theta, towards_v = angle_and_normal(w, v)
        _, towards_w = angle_and_normal(v, w)
        unit_w, unit_v = w / np.linalg.norm(w), v / np.linalg.norm(v)
        return (
            (np.pi - theta) * np.eye(N) + np.outer(towards_w, unit_v) + np.outer(towards_v, unit_w)
        ) / (2 * np.pi)

    H = np.zeros((p, N, p, N))
    for i in range(p):
        H[i, :, i] = alpha[i] ** 2 * np.eye(N) / 2
        for j in range(p):
            if j != i:
                H[i, :, i] += alpha[i] * alpha[j] * own_block(W[i], W[j])
                H[i, :, j] = alpha[i] * alpha[j] * cross_block(W[i], W[j])
        for r in range(len(V)):
            H[i, :, i] -= alpha[i] * beta[r] * own_block(W[i], V[r])
    return H


GENERIC = np.array([[0.6, -0.2, 0.5, 0.0, 0.0], [0.3, 0.8, 0.1, 0.4, 0.0]])


@pytest.mark.parametrize(
    "W",
    [
        GENERIC,
        np.eye(2, 5),  # learned: equal to the rows of the teacher
        np.array([[1.0, 0.5, 0.3, 0, 0], [2.0, 1.0, 0.6, 0, 0]]),  # parallel units
        np.array([[1.0, 0.0, 0.0, 0, 0], [-0.5, 0.0, 0.0, 0, 0]]),  # opposite units, on a signal
        np.array([[1.0, 0.5, 0.0, 0, 0], [1.0, 0.5, 1e-5, 0, 0]]),  # nearly parallel
    ],
    ids=["generic", "learned", "parallel", "opposite", "nearly parallel"],
)
def test_relu_against_the_published_hessian(W):
    V, head, teacher_head = np.eye(2, 5), np.array([1.3, 0.7]), np.array([1.0, -0.6])
    problem = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="relu", teacher_head=teacher_head
    )
    spectrum = hessian_spectrum(
        problem, sgd.start(problem, M=W @ V.T, Q=W @ W.T, a=head), dimension=5
    )
    expected = np.linalg.eigvalsh(safran_shamir(W, V, head, teacher_head).reshape(10, 10))
    # Overlaps determine an angle of 1e-5 up to 1e-16/1e-5.
    np.testing.assert_allclose(all_eigenvalues(spectrum), expected, atol=1e-10)


def test_covariance_blocks_and_the_sphere():
    covariance, scale = [(0.5, 0.4), (2.0, 0.6)], np.sqrt([0.5, 0.5, 2.0, 2.0, 2.0])
    signal = np.array([0.6, 0.0, 0.8, 0.0, 0.0])
    W = np.array([[0.3, -0.5, 0.4, 0.7, 0.0]])
    W = W / np.linalg.norm(W)
    blocks = [slice(0, 2), slice(2, 5)]
    gram = np.array([[[signal[b] @ signal[b]]] for b in blocks])
    problem = sgd.TeacherStudent(
        width=1,
        activation="he3",
        teacher_activation="square",
        teacher_gram=gram,
        covariance=covariance,
    )
    M, Q = (
        np.array([[[first[b] @ second[b]]] for b in blocks])[None]
        for first, second in ((W[0], signal), (W[0], W[0]))
    )
    start = sgd.start(problem, M=M, Q=Q, a=[0.8])
    H, gradient = dense_hessian("he3", "square", W, signal, np.array([0.8]), 8, scale)
    H = H.reshape(5, 5)
    free = hessian_spectrum(problem, start, dimension=5)
    np.testing.assert_allclose(all_eigenvalues(free), np.linalg.eigvalsh(H), rtol=1e-11)
    # Blocks of 20 and 30 directions, with covariance eigenvalues 1/2 and 2.
    larger = hessian_spectrum(problem, start, dimension=50)
    most_frequent = np.argsort(larger.multiplicities)[-2:]
    assert [larger.multiplicities[index] for index in most_frequent] == [19, 29]
    assert sum(larger.multiplicities) == 50
    small, large = larger.eigenvalues[most_frequent]
    assert large / small == pytest.approx(4.0)
    # On the sphere: the derivative of the gradient along great circles, by differences.
    spectrum = hessian_spectrum(problem, start, dimension=5, constraint="sphere")
    tangent = np.linalg.svd(W)[2][1:]
    derivatives, step = np.zeros((4, 4)), 1e-4
    for row, v in enumerate(tangent):
        ends = []
        for t in (step, -step):
            w = np.cos(t) * W + np.sin(t) * v
            slope = dense_hessian("he3", "square", w, signal, np.array([0.8]), 8, scale)[1][0]
            # Tangent vectors are transported along the circle: v turns, the others stay.
            transported = np.array(
                [
                    np.cos(t) * v - np.sin(t) * W[0] if other == row else tangent[other]
                    for other in range(4)
                ]
            )
            ends.append(transported @ slope)
        derivatives[row] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(
        all_eigenvalues(spectrum), np.linalg.eigvalsh((derivatives + derivatives.T) / 2), atol=1e-6
    )
    radial = gradient[0] @ W[0]
    assert spectrum.gradient_norm == pytest.approx(
        np.linalg.norm(gradient[0] - radial * W[0]), rel=1e-11
    )


def test_phase_retrieval_in_closed_form_and_in_any_dimension():
    # On the sphere R = 2 sin^2(angle): R'' = 4 cos(2 angle) towards the signal, and
    # R' cot(angle) = 4 cos^2(angle) across.
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    start = sgd.start(problem, M=[[np.cos(0.4)]], Q=[[1.0]])
    spectrum = hessian_spectrum(problem, start, dimension=20)
    np.testing.assert_allclose(
        spectrum.eigenvalues, [4 * np.cos(0.8), 4 * np.cos(0.4) ** 2], rtol=1e-12
    )
    assert spectrum.multiplicities == (1, 18)
    assert spectrum.constraint == "sphere"
    assert spectrum.gradient_norm == pytest.approx(2 * np.sin(0.8), rel=1e-12)
    largest = []
    assert (
        count_compilations(
            lambda: largest.append(hessian_spectrum(problem, start, dimension=10**18 - 1))
        )
        == 0
    )
    assert largest[0].multiplicities == (1, 10**18 - 3)
    free = sgd.TeacherStudent(width=2, activation="square")
    top = hessian_spectrum(
        free, sgd.start(free, M=[[0.0], [0.0]], Q=np.zeros((2, 2))), dimension=10**9
    )
    np.testing.assert_allclose(top.eigenvalues, [-3.0, -1.0], rtol=1e-12)
    assert (top.negative, top.null, top.positive) == (2 * 10**9, 0, 0)
    assert top.multiplicities == (2, 2 * 10**9 - 2)
    assert top.gradient_norm == 0.0
    # A unit equal to the teacher and a dead unit: a minimum in the first, and no residual for the
    # second.
    half = sgd.start(free, M=[[np.sqrt(2)], [0.0]], Q=np.diag([2.0, 0.0]))
    learned = hessian_spectrum(free, half, dimension=100)
    assert learned.negative == 0
    assert learned.null == 100
    assert learned.gradient_norm == pytest.approx(0.0, abs=1e-12)


def hard(x):
    return jnp.clip(x, -1, 1)


HARD = sgd.Activation(hard, kinks=(-1, 1))


@pytest.mark.parametrize(
    ("name", "teacher", "target", "rows"),
    [
        ("erf", "square", lambda z: z[0] ** 2, np.array([[0.5, 0.0], [1.0, 0.0]])),
        pytest.param("relu", "tanh", lambda z: jnp.tanh(z[0]), None, marks=pytest.mark.slow),
    ],
    ids=["erf", "relu"],
)
def test_a_target_that_is_a_teacher_has_the_same_spectrum(name, teacher, target, rows):
    """The same label stated as a committee and as a target.

    Pair expectations are compared with a grid over the signals, in whose span `rows` lie.
    """
    committee = sgd.TeacherStudent(width=2, activation=name, teacher_activation=teacher)
    index = sgd.MultiIndex(target, directions=1, width=2, activation=name)
    for W in (GENERIC, GENERIC if rows is None else rows):
        starts = [
            sgd.start(problem, M=W[:, :1], Q=W @ W.T, a=HEAD) for problem in (committee, index)
        ]
        first, second = (
            hessian_spectrum(problem, start, dimension=6)
            for problem, start in zip((committee, index), starts, strict=True)
        )
        np.testing.assert_allclose(all_eigenvalues(first), all_eigenvalues(second), atol=1e-10)
        assert first.gradient_norm == pytest.approx(second.gradient_norm, abs=1e-10)


def own_loss(fields, signals, head, noise_draw):
    return 0.5 * (jnp.mean(head * hard(fields)) - hard(signals[0]) - 0.3 * noise_draw) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_own_loss_with_kinks_is_sampled_within_its_error(parallel):
    """Kinks away from 0.

    The quadrature in the plane of each pair is compared with the point masses of a sampled loss.
    """
    network = sgd.TeacherStudent(width=2, activation=HARD, noise=0.09)
    own = sgd.Problem(own_loss, width=2, signals=1, kinks=(-1.0, 1.0))
    rows = np.array([[0.9, 0.8], [0.9, 0.8]]) if parallel else GENERIC
    expected, sampled = (
        hessian_spectrum(
            problem,
            sgd.start(problem, M=rows[:, :1], Q=rows @ rows.T, a=HEAD),
            dimension=6,
            tolerance=0.0,
        )
        for problem in (network, own)
    )
    assert expected.error < 1e-4 * np.abs(expected.eigenvalues).max()
    assert 1e-6 < sampled.error < 1e-2
    # The error is one standard error of a norm that bounds all eigenvalues.
    np.testing.assert_allclose(
        all_eigenvalues(sampled), all_eigenvalues(expected), atol=3 * sampled.error
    )


def test_bad_input():
    problem = sgd.TeacherStudent(width=2, activation="relu")
    start = sgd.start(problem, M=GENERIC[:, :1], Q=GENERIC @ GENERIC.T)
    with pytest.raises(ValueError, match=r"constraint = 'spher'.*did you mean 'sphere'"):
        hessian_spectrum(problem, start, constraint="spher")
    with pytest.raises(ValueError, match=r"run = 1: .*Use 0\.\.0"):
        hessian_spectrum(problem, start, run=1)
    with pytest.raises(ValueError, match=r"dimension = 2: .*Use 3 or more"):
        hessian_spectrum(problem, start, dimension=2)
    with pytest.raises(
        ValueError, match=r"dimension = 10000000000000000000: give a whole number from 1 to"
    ):
        hessian_spectrum(problem, start, dimension=10**19)
    dead = sgd.start(problem, M=[[0.0], [1.0]], Q=np.diag([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"rows \[0\] are zero, on the kink"):
        hessian_spectrum(problem, dead)
    smooth = sgd.TeacherStudent(width=2, activation="erf")
    with pytest.raises(ValueError, match=r"rows \[0\] are zero: constraint='sphere'"):
        hessian_spectrum(
            smooth, sgd.start(smooth, M=[[0.0], [1.0]], Q=np.diag([0.0, 1.0])), constraint="sphere"
        )
    target = sgd.MultiIndex(lambda z: z[0], directions=1, width=2, activation="relu")
    with pytest.raises(ValueError, match=r"rows \[1\] lie in the span of the signals"):
        hessian_spectrum(target, sgd.start(target, M=[[0.5], [1.0]], Q=[[1.0, 0.5], [0.5, 1.0]]))
