"""Hessian spectra against dense expectations in N dimensions, published formulas, and each other."""

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
# (f, f', f'') by hand
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
    "learnt": np.array([SIGNAL, SIGNAL]),
    "a dead unit": np.array([[0.0, 0.0, 0.0, 0.0], [-0.2, 0.4, 0.0, 0.0]]),
}


def dense(name, teacher, W, signal, head, nodes, scale=None):
    """E[h_ij x x^T] and E[h_i x] by a product rule in all N dimensions; x_m has standard deviation scale_m."""
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


def full(spectrum):
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
    begin = sgd.start(problem, M=W @ SIGNAL[:, None], Q=W @ W.T, a=HEAD)
    found = hessian_spectrum(problem, begin, dimension=4)
    H, gradient = dense(name, teacher, W, SIGNAL, HEAD, nodes)
    np.testing.assert_allclose(full(found), np.linalg.eigvalsh(H.reshape(8, 8)), atol=1e-10)
    assert found.gradient_norm == pytest.approx(np.linalg.norm(gradient), abs=1e-10)
    assert found.error < (1e-7 if name == "tanh" else 1e-10)  # closed but for tanh


def safran_shamir(W, V, head, teacher_head):
    """The Hessian of ReLU networks in closed form (Safran and Shamir 2018), in the dimension of the rows."""
    p, N = W.shape
    alpha, beta = head / p, teacher_head / len(V)

    def angle_and_normal(w, v):
        w, v = w / np.linalg.norm(w), v / np.linalg.norm(v)
        theta = 2 * np.arctan2(np.linalg.norm(w - v), np.linalg.norm(w + v))
        normal = v - (v @ w) * w
        return theta, normal / np.linalg.norm(
            normal
        ) if theta > 1e-9 and np.pi - theta > 1e-9 else 0 * normal

    def same(w, v):
        theta, normal = angle_and_normal(w, v)
        unit = w / np.linalg.norm(w)
        shape = np.eye(N) - np.outer(unit, unit) + np.outer(normal, normal)
        return np.linalg.norm(v) * np.sin(theta) / (2 * np.pi * np.linalg.norm(w)) * shape

    def mixed(w, v):
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
                H[i, :, i] += alpha[i] * alpha[j] * same(W[i], W[j])
                H[i, :, j] = alpha[i] * alpha[j] * mixed(W[i], W[j])
        for r in range(len(V)):
            H[i, :, i] -= alpha[i] * beta[r] * same(W[i], V[r])
    return H


GENERIC = np.array([[0.6, -0.2, 0.5, 0.0, 0.0], [0.3, 0.8, 0.1, 0.4, 0.0]])


@pytest.mark.parametrize(
    "W",
    [
        GENERIC,
        np.eye(2, 5),  # learnt: rows on the teacher's
        np.array([[1.0, 0.5, 0.3, 0, 0], [2.0, 1.0, 0.6, 0, 0]]),  # parallel units
        np.array([[1.0, 0.0, 0.0, 0, 0], [-0.5, 0.0, 0.0, 0, 0]]),  # opposite ones, on a signal
        np.array([[1.0, 0.5, 0.0, 0, 0], [1.0, 0.5, 1e-5, 0, 0]]),  # nearly parallel
    ],
    ids=["generic", "learnt", "parallel", "opposite", "nearly parallel"],
)
def test_relu_against_the_published_hessian(W):
    V, head, teacher_head = np.eye(2, 5), np.array([1.3, 0.7]), np.array([1.0, -0.6])
    problem = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="relu", teacher_head=teacher_head
    )
    found = hessian_spectrum(problem, sgd.start(problem, M=W @ V.T, Q=W @ W.T, a=head), dimension=5)
    expected = np.linalg.eigvalsh(safran_shamir(W, V, head, teacher_head).reshape(10, 10))
    # what Omega says of an angle of 1e-5 is 1e-16/1e-5 off
    np.testing.assert_allclose(full(found), expected, atol=1e-10)


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
        np.array([[[one[b] @ other[b]]] for b in blocks])[None]
        for one, other in ((W[0], signal), (W[0], W[0]))
    )
    begin = sgd.start(problem, M=M, Q=Q, a=[0.8])
    H, gradient = dense("he3", "square", W, signal, np.array([0.8]), 8, scale)
    H = H.reshape(5, 5)
    free = hessian_spectrum(problem, begin, dimension=5)
    np.testing.assert_allclose(full(free), np.linalg.eigvalsh(H), rtol=1e-11)
    larger = hessian_spectrum(
        problem, begin, dimension=50
    )  # blocks of 20 and 30, with covariance eigenvalues 1/2 and 2
    often = np.argsort(larger.multiplicities)[-2:]
    assert [larger.multiplicities[index] for index in often] == [19, 29]
    assert sum(larger.multiplicities) == 50
    assert larger.eigenvalues[often[1]] / larger.eigenvalues[often[0]] == pytest.approx(4.0)
    # on the sphere: the second derivative along great circles, by differences of the gradient along them
    found = hessian_spectrum(problem, begin, dimension=5, constraint="sphere")
    tangent = np.linalg.svd(W)[2][1:]
    turned, step = np.zeros((4, 4)), 1e-4
    for row, v in enumerate(tangent):
        ends = []
        for t in (step, -step):
            w = np.cos(t) * W + np.sin(t) * v
            slope = dense("he3", "square", w, signal, np.array([0.8]), 8, scale)[1][0]
            # tangent vectors carried along the circle: v turns with it, the others stay
            carried = np.array(
                [
                    np.cos(t) * v - np.sin(t) * W[0] if other == row else tangent[other]
                    for other in range(4)
                ]
            )
            ends.append(carried @ slope)
        turned[row] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(full(found), np.linalg.eigvalsh((turned + turned.T) / 2), atol=1e-6)
    radial = gradient[0] @ W[0]
    assert found.gradient_norm == pytest.approx(
        np.linalg.norm(gradient[0] - radial * W[0]), rel=1e-11
    )


def test_phase_retrieval_in_closed_form_and_in_any_dimension():
    # on the sphere R = 2 sin^2(angle): R'' = 4 cos(2 angle) towards the signal, R' cot(angle) = 4 cos^2(angle) across
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    begin = sgd.start(problem, M=[[np.cos(0.4)]], Q=[[1.0]])
    found = hessian_spectrum(problem, begin, dimension=20)
    np.testing.assert_allclose(
        found.eigenvalues, [4 * np.cos(0.8), 4 * np.cos(0.4) ** 2], rtol=1e-12
    )
    assert found.multiplicities == (1, 18)
    assert found.constraint == "sphere"
    assert found.gradient_norm == pytest.approx(2 * np.sin(0.8), rel=1e-12)
    largest = []
    assert (
        count_compilations(
            lambda: largest.append(hessian_spectrum(problem, begin, dimension=10**18 - 1))
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
    # a unit that repeats the teacher beside a dead one: minimum along the first, and the second feels no residual
    half = sgd.start(free, M=[[np.sqrt(2)], [0.0]], Q=np.diag([2.0, 0.0]))
    learnt = hessian_spectrum(free, half, dimension=100)
    assert learnt.negative == 0
    assert learnt.null == 100
    assert learnt.gradient_norm == pytest.approx(0.0, abs=1e-12)


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
def test_targets_are_teachers_by_another_name(name, teacher, target, rows):
    """The same label as a committee and as a target: pair expectations against a grid over the signals; `rows` lie in their span."""
    committee = sgd.TeacherStudent(width=2, activation=name, teacher_activation=teacher)
    index = sgd.MultiIndex(target, directions=1, width=2, activation=name)
    for W in (GENERIC, GENERIC if rows is None else rows):
        starts = [
            sgd.start(problem, M=W[:, :1], Q=W @ W.T, a=HEAD) for problem in (committee, index)
        ]
        one, other = (
            hessian_spectrum(problem, begin, dimension=6)
            for problem, begin in zip((committee, index), starts, strict=True)
        )
        np.testing.assert_allclose(full(one), full(other), atol=1e-10)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, abs=1e-10)


def own_loss(fields, signals, head, noise_draw):
    return 0.5 * (jnp.mean(head * hard(fields)) - hard(signals[0]) - 0.3 * noise_draw) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_own_loss_with_kinks_is_sampled_within_its_error(parallel):
    """Kinks away from 0: the plane quadrature of the pairs against the point masses of the sampled loss."""
    network = sgd.TeacherStudent(width=2, activation=HARD, noise=0.09)
    own = sgd.Problem(own_loss, width=2, signals=1, kinks=(-1.0, 1.0))
    rows = np.array([[0.9, 0.8], [0.9, 0.8]]) if parallel else GENERIC
    expected, found = (
        hessian_spectrum(
            problem,
            sgd.start(problem, M=rows[:, :1], Q=rows @ rows.T, a=HEAD),
            dimension=6,
            tolerance=0.0,
        )
        for problem in (network, own)
    )
    assert expected.error < 1e-4 * np.abs(expected.eigenvalues).max()
    assert 1e-6 < found.error < 1e-2
    # one standard error of a norm that bounds every eigenvalue: three of them are far out
    np.testing.assert_allclose(full(found), full(expected), atol=3 * found.error)


def test_bad_input_says_what_would_be_right():
    problem = sgd.TeacherStudent(width=2, activation="relu")
    begin = sgd.start(problem, M=GENERIC[:, :1], Q=GENERIC @ GENERIC.T)
    with pytest.raises(ValueError, match=r"constraint = 'spher'.*did you mean 'sphere'"):
        hessian_spectrum(problem, begin, constraint="spher")
    with pytest.raises(ValueError, match=r"run = 1: .*Use 0\.\.0"):
        hessian_spectrum(problem, begin, run=1)
    with pytest.raises(ValueError, match=r"dimension = 2: .*Use 3 or more"):
        hessian_spectrum(problem, begin, dimension=2)
    with pytest.raises(
        ValueError, match=r"dimension = 10000000000000000000: give a whole number from 1 to"
    ):
        hessian_spectrum(problem, begin, dimension=10**19)
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
