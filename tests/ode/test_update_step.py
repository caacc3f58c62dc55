"""The ODE of every update against closed formulas on the same points, plain SGD, and runs.

An update that commutes with rotations and has no memory acts on h = dloss/dfields alone, because
the inputs of a batch are orthogonal in the limit. Let H (p x B) be its image of h/B, Lambda
((p + K) x B) the fields, and Omega = sum_b l_b Omega_b their covariance. Then, per step times d,

    A = E[H Lambda^T] Omega^-1,     dM_b = -lr l_b (A Omega_b)_signals,
    dQ_b = -lr l_b (A Omega_b)_students + transpose + lr^2 l_b f_b E[H H^T].

On the same points the library and these formulas are finite sums, which agree to rounding (1e-10).
Values of other programs are compared in `test_update_reference_values`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.update_points import field_points
from sgdynamics.ode.update_step import UpdateStep, slow_rows, update_rates
from tests.conftest import Z as SIGMAS
from tests.conftest import slow

U = sgd.updates
NOISE = 0.25
M0, Q0 = np.array([[0.4], [0.1]]), np.array([[1.0, 0.2], [0.2, 0.8]])
EIGENVALUES, FRACTIONS = np.array([2.0, 0.5]), np.array([0.4, 0.6])


@cache
def setting(blocks=False, noise=NOISE, **options):
    """The problem and start of the reference values, with one or two covariance blocks."""
    if blocks:
        options = {**options, "covariance": list(zip(EIGENVALUES, FRACTIONS, strict=True))}
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, **{"activation": "erf", **options}, noise=noise
    )
    if not blocks:
        return problem, sgd.start(problem, M=M0, Q=Q0)
    # The rows of the second block have another overlap, so that the blocks are not proportional.
    off_diagonal = np.array([[0.0, 0.05], [0.05, 0.0]])
    Q = np.stack([0.4 * Q0, 0.6 * Q0 + off_diagonal])
    return problem, sgd.start(problem, M=np.stack([M0 / 2, M0 / 2]), Q=Q)


def state_of(update, start):
    """The initial state of the ODE of an update: its slow rows, head, scalars and squares."""
    initial, p = update_start(update, start), start.M.shape[-2]
    rows = p * (1 + len(slow_rows(update.law)))
    n = min(rows, initial.M.shape[2])
    blocks, signals = initial.M.shape[1], initial.M.shape[3]
    M, Q = np.zeros((blocks, rows, signals)), np.zeros((blocks, rows, rows))
    a = np.zeros(rows)
    M[:, :n], Q[:, :n, :n] = initial.M[0, :, :n], initial.Q[0, :, :n, :n]
    a[:n] = initial.a[0, :n]
    return {
        "rows_M": M,
        "rows_Q": Q,
        "rows_a": a,
        "update_scalars": initial.scalars[0],
        "update_squares": initial.squares[0],
        "update_vectors": np.zeros((0, n)),  # the head is not trained
    }


def first_replicate(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def points_of(problem, batch=1, reads=1, quiet=False, fine=1.0):
    """One replicate of the points over which the library averages."""
    return first_replicate(field_points(problem.structure, batch, reads, quiet=quiet, fine=fine))


def rates(
    update,
    lr,
    problem,
    start,
    batch=1,
    points=None,
    sums_noise=False,
    state=None,
    tau=0.0,
    D=1e14,
    **options,
):
    """d(state)/dtau by the library, on these points; a linear update needs none."""
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, update=update, **options).on(problem)
    quadrature = choose_quadrature(problem, start.Q_blocks, 2.0)
    field = UpdateStep(problem.structure, quadrature, batch, update.law, sums_noise)
    if points is None:
        nodes = expectation_of(problem.structure).nodes(quadrature, False)
        points = {"nodes": first_replicate(nodes)}
    state = state_of(update, start) if state is None else state

    def evaluate(state, points):
        parameters = problem.parameters
        return update_rates(field, points, parameters, algorithm.parameters, D, tau, state)

    with jax.enable_x64(True):
        values = jax.jit(evaluate)(state, points)
        return {name: np.asarray(value) for name, value in values.items()}


# -- closed formulas


def activation(x):
    return special.erf(x / np.sqrt(2))


def slope(x):
    return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)


def covariance(M, Q):
    """Overlaps of (signal, students) in each block, their covariance Omega, and the blocks.

    The signal has the length sqrt(f_b) in block b. Returns the overlaps, Omega, the eigenvalues and
    the fractions.
    """
    blocks = len(M)
    fractions, eigenvalues = (FRACTIONS, EIGENVALUES) if blocks == 2 else (np.ones(1), np.ones(1))
    overlaps = np.array(
        [
            np.block([[np.array([[fraction]]), m.T], [m, q]])
            for fraction, m, q in zip(fractions, M, Q, strict=True)
        ]
    )
    return overlaps, np.einsum("b,bij->ij", eigenvalues, overlaps), eigenvalues, fractions


def gradient_of_fields(fields, signal, noise):
    """h = dloss/dfields (..., p) of erf networks with heads 1."""
    error = activation(fields).mean(axis=-1) - activation(signal) - np.sqrt(NOISE) * noise
    return error[..., None] * slope(fields) / fields.shape[-1]


def flatten_points(points):
    """Fields, noise and weights of all chunks of points."""
    return (
        points[key].reshape(-1, *points[key].shape[2:]) for key in ("fields", "noise", "weights")
    )


def transpose(blocks):
    return np.swapaxes(blocks, 1, 2)


def formula_rates(image, lr, points, problem, start, batch=1):
    """dM and dQ by the formula at the top of this file.

    `image(h, reread, l1, B)` is H (points, p, B) of h/B. Here `reread(shift)` is h at fields that
    are moved by a shift, and l1 the mean eigenvalue.
    """
    overlaps, Omega, eigenvalues, fractions = covariance(start.M_blocks[0], start.Q_blocks[0])
    zeta, noise, weights = flatten_points(points)
    zeta = zeta.reshape(len(zeta), batch, -1)
    noise = noise.reshape(len(zeta), batch)
    Lambda = zeta @ np.linalg.cholesky(Omega).T
    signal, fields = Lambda[..., 0], Lambda[..., 1:]

    def reread(shift):
        return transpose(gradient_of_fields(fields + transpose(shift), signal, noise))

    h = reread(np.zeros((len(zeta), fields.shape[-1], batch)))
    H = image(h / batch, reread, eigenvalues @ fractions, batch)
    A = np.einsum("n,npb,nbf->pf", weights, H, Lambda) @ np.linalg.inv(Omega)
    products = np.einsum("n,npb,nqb->pq", weights, H, H)
    return assemble_rates(lr, eigenvalues, A @ overlaps, eigenvalues * fractions, products)


def assemble_rates(lr, scales, pull, lengths, products):
    """dM and dQ from the coefficients A Omega_b and E[H H^T], with their factors per block."""
    drift = -lr * scales[:, None, None] * pull
    noise = lr**2 * lengths[:, None, None] * products
    return drift[..., :1], drift[..., 1:] + transpose(drift[..., 1:]) + noise


def norms(h, axis):
    """Norms of gradients, at least the smallest number: a zero gradient gives a zero step."""
    return np.maximum(np.sqrt(np.sum(h**2, axis=axis, keepdims=True)), 1e-300)


def map_singular_values(h, function):
    left, s, right = np.linalg.svd(h, full_matrices=False)
    return np.einsum("nij,nj,njk->nik", left, function(s), right)


def quintic(s):
    """Five Newton-Schulz steps of Muon on singular values."""
    s = s / norms(s, -1)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def is_nonzero(s):
    """The singular values of a polar factor: 1, and 0 in the null space."""
    return 1.0 * (s > 1e-9 * s[:, :1])


# Images H of h/B. The mean eigenvalue l1 = sum_b f_b l_b is the squared length of an input over d.
IMAGES = {
    "clipped": (
        U.clipped(0.2),
        lambda h, reread, l1, B: h * np.minimum(1, 0.2 / (np.sqrt(l1) * norms(h, (1, 2)))),
    ),
    "clipped, row": (
        U.clipped(0.1, over="row"),
        lambda h, reread, l1, B: h * np.minimum(1, 0.1 / (np.sqrt(l1) * norms(h, 2))),
    ),
    "clipped, sample": (
        U.clipped(0.2, over="sample"),
        lambda h, reread, l1, B: h * np.minimum(1, 0.2 / (np.sqrt(l1) * B * norms(h, 1))),
    ),
    "normalised": (U.normalised(), lambda h, reread, l1, B: h / (np.sqrt(l1) * norms(h, (1, 2)))),
    "sam": (
        U.sam(reach=0.5),
        lambda h, reread, l1, B: reread(0.5 * np.sqrt(l1) * h / norms(h, (1, 2))) / B,
    ),
    "reuse": (U.reuse(3), None),
    "muon": (
        U.muon(),
        lambda h, reread, l1, B: map_singular_values(h, is_nonzero) / np.sqrt(l1),
    ),
    "muon, newton_schulz": (
        U.muon(newton_schulz=True),
        lambda h, reread, l1, B: map_singular_values(h, quintic) / np.sqrt(l1),
    ),
}


def reuse_image(lr):
    """The image of three steps on the same batch; it depends on the learning rate."""

    def image(h, reread, l1, B):
        total = h
        for _ in range(2):
            total = total + reread(-lr * l1 * total) / B
        return total

    return image


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow(IMAGES, [name for name in IMAGES if name != "clipped, row"]))
def test_mean_steps_are_the_closed_formula_on_the_same_points(name, batch, blocks):
    (update, image), (problem, start), lr = IMAGES[name], setting(blocks), 0.7
    points = points_of(problem, batch, fine=0.6 if batch == 1 else 1.0)
    step = rates(update, lr, problem, start, batch, points)
    dM, dQ = formula_rates(image or reuse_image(lr), lr, points, problem, start, batch)
    assert np.abs(dM).max() > 0.01
    # A polar factor divides by the smaller singular value, down to 1e-6 of the larger one.
    tolerance = 1e-8 if name == "muon" and batch == 2 else 1e-10
    np.testing.assert_allclose(step["rows_M"], dM, atol=tolerance)
    np.testing.assert_allclose(step["rows_Q"], dQ, atol=tolerance)


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "batch", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_signs_are_the_closed_formula_on_the_same_points(batch, blocks):
    """Given h, the coordinates of a gradient are Gaussian.

    With g = h/|h| row by row, sqrt(2 l_b/pi) g replaces l_b h in the drift, and (2/pi) asin(g g^T)
    replaces h h^T in the products.
    """
    (problem, start), lr = setting(blocks), 0.7
    points = points_of(problem, batch, fine=0.6 if batch == 1 else 1.0)
    step = rates(U.sign(), lr, problem, start, batch, points)
    overlaps, Omega, eigenvalues, fractions = covariance(start.M_blocks[0], start.Q_blocks[0])
    zeta, noise, weights = flatten_points(points)
    Lambda = zeta.reshape(len(zeta), batch, 3) @ np.linalg.cholesky(Omega).T
    noise = noise.reshape(len(zeta), batch)
    h = transpose(gradient_of_fields(Lambda[..., 1:], Lambda[..., 0], noise))
    g = h / norms(h, 2)
    A = np.einsum("n,npb,nbf->pf", weights, g, Lambda) @ np.linalg.inv(Omega)
    correlations = np.clip(np.einsum("npb,nqb->npq", g, g), -1, 1)
    products = np.einsum("n,npq->pq", weights, 2 / np.pi * np.arcsin(correlations))
    scales = np.sqrt(2 * eigenvalues / np.pi)
    dM, dQ = assemble_rates(lr, scales, A @ overlaps, fractions, products)
    np.testing.assert_allclose(step["rows_M"], dM, atol=1e-10)
    # Near 1 the error of arcsin is the square root of rounding.
    np.testing.assert_allclose(step["rows_Q"], dQ, atol=3e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "normalised" else pytest.mark.slow)
        for name in IMAGES
        if name not in ("reuse", "clipped, sample")
    ],
)
def test_label_noise_is_integrated_piece_by_piece(name):
    """Two nodes between the edges of a step, compared with a fine rule for the noise.

    Both use the same points of the fields, which may be any points.
    """
    (update, image), (problem, start), lr = IMAGES[name], setting(), 0.7
    generator, n = np.random.default_rng(2), 60
    fields, weights = generator.standard_normal((n, 3)), np.full(n, 1 / n)
    points = {"fields": fields[None], "noise": np.zeros((1, n, 1)), "weights": weights[None]}
    step = rates(update, lr, problem, start, 1, points, sums_noise=True)
    noise = np.linspace(-8, 8, 6401)
    density = np.exp(-0.5 * noise**2)
    fine_points = {
        "fields": np.repeat(fields, len(noise), axis=0)[None],
        "noise": np.tile(noise, n)[None, :, None],
        "weights": np.outer(weights, density / density.sum()).reshape(1, -1),
    }
    dM, dQ = formula_rates(image, lr, fine_points, problem, start)
    # The step of the fine rule is 1/400. A kink costs its square; a jump costs a part of the step
    # at every point of the fields, with either sign.
    tolerance = 1e-5 if name.startswith("clipped") else 2e-4
    np.testing.assert_allclose(step["rows_M"], dM, atol=tolerance)
    np.testing.assert_allclose(step["rows_Q"], dQ, atol=tolerance)


def lattice(step=0.25, reach=8.0):
    """Points and weights of the trapezoidal rule for three standard normals."""
    axis = np.arange(-reach, reach + step / 2, step)
    zeta = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = np.exp(-0.5 * np.sum(zeta**2, axis=1))
    return zeta, weights / weights.sum()


def mean_gradient(M, Q, noise=NOISE):
    """Coefficients A of the mean gradient on (signal, rows), and N = E[h h^T], at overlaps M, Q."""
    Omega = covariance(M, Q)[1]
    zeta, weights = lattice()
    Lambda = zeta @ np.linalg.cholesky(Omega).T
    error = activation(Lambda[:, 1:]).mean(axis=1) - activation(Lambda[:, 0])
    s = slope(Lambda[:, 1:]) / 2
    A = np.einsum("n,np,nf->pf", weights * error, s, Lambda) @ np.linalg.inv(Omega)
    return A, np.einsum("n,np,nq->pq", weights * (error**2 + noise), s, s)


# Linear updates Z' = Z + (A Z + b G(e.Z))/d, with the matrix A and the vectors b and e of each at
# this learning rate, and at the time tau = TAU for scalars that count it.
TAU, RATE = 0.7, 1.3
LINEAR = {
    "momentum": (U.momentum(memory=1.5), [[0, -RATE], [0, -1.5]], [0, 1.5], [1, 0]),
    "nesterov": (U.nesterov(memory=1.5), [[0, -RATE], [0, -1.5]], [0, 1.5], [1, 0]),
    "average": (U.average(2.0), [[-2, 2], [0, 0]], [0, -RATE], [0, 1]),
    "polyak": (U.polyak(), [[-1 / TAU, 1 / TAU], [0, 0]], [0, -RATE], [0, 1]),
    "schedule_free": (U.schedule_free(0.9), [[-1 / TAU, 1 / TAU], [0, 0]], [0, -RATE], [0.9, 0.1]),
    "dana": (
        U.dana(1.1, delta=4.0, offset=0.5),
        [[0, -1.1], [0, -4 / (0.5 + TAU)]],
        [-RATE, 1],
        [1, 0],
    ),
    "decay": (U.weight_decay(0.4), [[-0.4 * RATE]], [-RATE], [1]),
    "decay, average": (
        U.weight_decay(0.4, of=U.average(2.0)),
        [[-2, 2], [0, -0.4 * RATE]],
        [0, -RATE],
        [0, 1],
    ),
    "decay inside, momentum": (
        U.weight_decay(0.4, of=U.momentum(memory=1.5), decoupled=False),
        [[0, -RATE], [1.5 * 0.4, -1.5]],
        [0, 1.5],
        [1, 0],
    ),
    "momentum, beta": (U.momentum(0.75), [[0]], [-4 * RATE], [1]),
    "nesterov, beta": (U.nesterov(0.75), [[0]], [-4 * RATE], [1]),
    "decay inside, momentum beta": (
        U.weight_decay(0.4, of=U.momentum(0.75), decoupled=False),
        [[-1.6 * RATE]],
        [-4 * RATE],
        [1],
    ),
    "decay, momentum beta": (
        U.weight_decay(0.4, of=U.momentum(0.75)),
        [[-0.4 * RATE]],
        [-4 * RATE],
        [1],
    ),
}


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow(LINEAR, [name for name in LINEAR if name != "schedule_free"]))
def test_linear_updates_are_their_matrix_form(name, blocks):
    """The mean step of a linear update, with moments at e.Z by an independent rule.

    d(Z W*^T) = A Z W*^T + b E[h lambda*^T] and
    d(Z Z^T) = A Z Z^T + b E[h lambda_Z^T] + transpose + b b^T N/B.
    """
    update, A, b, e = LINEAR[name]
    A, b, e = (np.asarray(coefficients, dtype=float) for coefficients in (A, b, e))
    sets, batch = len(b), 3
    problem, start = setting(blocks)
    generator = np.random.default_rng(4)
    count = 2 if blocks else 1
    fractions, eigenvalues = (FRACTIONS, EIGENVALUES) if blocks else (np.ones(1), np.ones(1))
    # Rows of all sets in nine coordinates of every block, with the signal along the first.
    Z = 0.4 * generator.standard_normal((count, sets, 2, 9))
    signal = np.sqrt(fractions)[:, None] * np.eye(9)[0]
    rows = Z.reshape(count, -1, 9)
    initial = state_of(update, start)
    state = initial | {
        "rows_M": rows @ signal[..., None],
        "rows_Q": rows @ transpose(rows),
        "update_scalars": initial["update_scalars"] * 0 + TAU,
    }
    step = rates(update, RATE, problem, start, batch, state=state, tau=TAU)
    R = np.einsum("s,bspd->bpd", e, Z)
    G, N = mean_gradient(R @ signal[..., None], R @ transpose(R))
    mean = eigenvalues[:, None, None] * (
        G[:, :1] * signal[:, None] + np.einsum("pq,bqd->bpd", G[:, 1:], R)
    )
    dZ = np.einsum("st,btpd->bspd", A, Z) + b[:, None, None] * mean[:, None]
    dZ = dZ.reshape(rows.shape)
    noise = np.kron(np.outer(b, b), N / batch) * (eigenvalues * fractions)[:, None, None]
    dQ = rows @ transpose(dZ)
    # The lattice has an error of 1e-10.
    np.testing.assert_allclose(step["rows_M"], dZ @ signal[..., None], atol=1e-9)
    np.testing.assert_allclose(step["rows_Q"], dQ + transpose(dQ) + noise, atol=1e-9)
    if update.law.scalars:
        np.testing.assert_allclose(step["update_scalars"], 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["schedule_free", pytest.param("momentum, beta", marks=pytest.mark.slow)]
)
def test_oblique_columns_give_the_step_of_orthonormal_ones(name):
    """Updates that form no lengths take their step in coefficients of the rows."""
    update = LINEAR[name][0]
    problem, start = setting(True)
    state = state_of(update, start) | {"update_scalars": np.full(len(update.law.scalars), TAU)}
    assert update.law.linear_in_rows
    orthonormal = replace(update, law=replace(update.law, linear_in_rows=False))
    oblique_rates, orthonormal_rates = (
        rates(case, RATE, problem, start, 3, state=state, tau=TAU) for case in (update, orthonormal)
    )
    for name, rate in oblique_rates.items():
        # The root of a matrix near 0 has half of the digits of its smallest entries.
        np.testing.assert_allclose(rate, orthonormal_rates[name], atol=1e-9)


# -- plain SGD and runs


def heavy_ball(state, gradient, lr, D, number):
    V = 0.6 * state["velocity"] + gradient(state["weights"])
    return {"weights": -lr / D * V, "velocity": V - state["velocity"]}


@pytest.mark.slow
def test_heavy_balls_are_plain_sgd_at_a_larger_rate():
    """A fixed beta is plain SGD with lr/(1 - beta), noise included.

    The updates are those of the library and a user's own. Problems have batches, weight decay, a
    trained head, the sphere, or two covariance blocks.
    """
    own = U.own(heavy_ball, rows=("velocity",), memory="fast", rereads=False)
    assert own.law.linear
    for options in (
        {"head": "trained", "weight_decay": 0.2},
        {"constraint": "sphere"},
        {"covariance": [(2.0, 0.4), (0.5, 0.6)]},
    ):
        problem = sgd.TeacherStudent(
            width=2, teacher_width=1, activation="erf", noise=NOISE, **options
        )
        start = sgd.start(problem, M=M0, Q=np.array([[1.0, 0.2], [0.2, 1.0]]))
        tolerances = {"rtol": 1e-10, "atol": 1e-12}
        sgd_algorithm = sgd.OnePassSGD(lr=1.0, batch=2, head_rate=0.7)
        plain = sgd.solve_ode(problem, sgd_algorithm, start, times=[0, 0.5, 1.0], **tolerances)
        for update in (own, U.momentum(0.6), U.nesterov(0.6)):
            if update is own and "weight_decay" in options:
                continue  # A user's update adds its decay with lr, not with lr/(1 - beta).
            algorithm = sgd.OnePassSGD(lr=0.4, batch=2, head_rate=0.7, update=update)
            solution = sgd.solve_ode(problem, algorithm, start, times=[0, 0.2, 0.4], **tolerances)
            for name in ("M", "Q", "a", "risk"):
                np.testing.assert_allclose(solution[name], plain[name], atol=1e-8)
            assert "rows_Q" not in solution


def lengths(state, gradient, lr, D, number):
    """A scalar that is not a mean of squares."""
    G = gradient(state["weights"])
    return {"weights": -lr / D * G / (0.2 + state["sum"]), "sum": jnp.sqrt(jnp.sum(G**2)) / D**1.5}


def squares(state, gradient, lr, D, number):
    G = gradient(state["weights"])
    return {
        "weights": -lr / D * G / jnp.sqrt(0.1 + state["sum"]),
        "sum": jnp.sum(G**2) / D**2,
    }


def along_rows(state, gradient, lr, D, number):
    """A scalar that is quadratic in the gradient along the rows.

    Its mean is not the square of a mean.
    """
    G = gradient(state["weights"])
    return {
        "weights": -lr / D * G / (1 + state["sum"]),
        "sum": jnp.sum(G * state["weights"]) ** 2 / D,
    }


def clip_gradient(state, gradient, lr, D, number, most):
    G = gradient(state["weights"])
    return {"weights": -lr / D * G * jnp.minimum(1, most / jnp.sqrt(jnp.sum(G**2) / D))}


def test_which_own_updates_are_linear():
    """Updates that need the mean gradient and its noise only.

    Scalars count, and a bound is detected whatever its size.
    """
    is_linear = {
        step.__name__: U.own(step, scalars=("sum",), memory="slow").law.linear
        for step in (lengths, squares, along_rows)
    }
    assert is_linear == {"lengths": False, "squares": True, "along_rows": False}
    for most in (0.01, 1.0, 10.0, 30.0):
        assert not U.own(clip_gradient, numbers={"most": most}).law.linear
    assert U.own(heavy_ball, rows=("velocity",), memory="fast").law.linear


OWN = {
    step.__name__: U.own(step, scalars=("sum",), memory="slow")
    for step in (lengths, squares, along_rows)
}

# Update, options of the problem, and options of the algorithm, of each comparison with runs.
RUNS = {
    "momentum, head": (
        U.momentum(memory=1.5),
        {"head": "trained", "weight_decay": 0.3},
        {"head_rate": 0.7},
    ),
    "momentum, sphere": (U.momentum(memory=1.5), {"constraint": "sphere"}, {"batch": 3}),
    "schedule_free, head": (
        U.schedule_free(0.8),
        {"head": "trained", "weight_decay": 0.3},
        {"head_rate": 0.7, "batch": 3},
    ),
    "polyak, blocks": (U.polyak(), {"covariance": [(2.0, 0.4), (0.5, 0.6)]}, {}),
    "dana, schedule": (
        U.dana(1.0, delta=4.0, offset=0.5),
        {},
        {"lr": lambda alpha: 2.0 / (1 + alpha)},
    ),
    "adagrad_norm, head": (U.adagrad_norm(0.1), {"head": "trained"}, {"lr": 0.7, "batch": 2}),
    "muon, slow": (U.muon(memory=3.0), {"weight_decay": 0.3}, {"lr": 0.5, "batch": 2}),
    "muon, slow newton_schulz": (U.muon(memory=3.0, newton_schulz=True), {}, {"lr": 0.5}),
    "muon, sphere": (U.muon(), {"constraint": "sphere"}, {"lr": 0.5, "batch": 2}),
    "muon, newton_schulz": (U.muon(newton_schulz=True), {}, {"lr": 0.5, "batch": 3}),
    "clipped, head": (U.clipped(0.2), {"head": "trained", "weight_decay": 0.3}, {}),
    "clipped, row": (U.clipped(0.1, over="row"), {"covariance": [(2.0, 0.4), (0.5, 0.6)]}, {}),
    "clipped, sample": (U.clipped(0.2, over="sample"), {}, {"batch": 3}),
    "normalised, sphere": (U.normalised(), {"constraint": "sphere"}, {"lr": 0.5}),
    "sam, head": (U.sam(reach=0.5), {"head": "trained"}, {}),
    "reuse, sphere": (U.reuse(2), {"constraint": "sphere", "weight_decay": 0.3}, {"lr": 1.0}),
    "reuse, head": (
        U.reuse(3),
        {"head": "trained", "weight_decay": 0.3},
        {"lr": 0.7, "head_rate": 0.5},
    ),
    "decay inside, momentum": (
        U.weight_decay(0.5, of=U.momentum(0.6), decoupled=False),
        {},
        {"lr": 0.7},
    ),
    "decay, momentum": (U.weight_decay(0.5, of=U.momentum(0.6)), {}, {"lr": 0.7}),
    "decay, polyak": (U.weight_decay(0.5, of=U.polyak()), {}, {}),
    "noise": (
        U.gradient_noise(0.5),
        {"head": "trained", "covariance": [(2.0, 0.4), (0.5, 0.6)]},
        {},
    ),
    "noise, clipped sample": (
        U.gradient_noise(0.3, of=U.clipped(0.2, over="sample")),
        {},
        {"batch": 2},
    ),
    "own lengths": (OWN["lengths"], {}, {}),
    "own squares": (OWN["squares"], {}, {"lr": 0.7}),
    "own along rows": (OWN["along_rows"], {}, {}),
}


def assert_means_agree(theory, runs, slack):
    """Check that the means of runs are the ODE.

    Up to 4.9 standard errors, the error estimates of the ODE, and `slack` for finite d.
    """
    for name in ("M", "Q", "a", "risk", "rows_M", "rows_Q", "update_scalars"):
        if name not in theory:
            continue
        values, expected = runs[name].values, theory[name].values[0]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        errors = (theory.attrs.get(f"error_{kind}") for kind in ("quadrature", "integrator"))
        own_error = max(estimate or 0.0 for estimate in errors)
        gap = np.abs(values.mean(axis=0) - expected)
        allowed = SIGMAS * error + own_error + slack * np.abs(expected).max() + 1e-9
        assert np.all(gap <= allowed), (name, float((gap / allowed).max()), float(gap.max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_ode_is_the_mean_of_runs(name):
    """60 exact runs at d = 2000."""
    update, options, algorithm = RUNS[name]
    problem = sgd.TeacherStudent(width=2, teacher_width=1, activation="erf", noise=NOISE, **options)
    start = sgd.start(problem, M=M0, Q=np.array([[1.0, 0.2], [0.2, 1.0]]))
    algorithm = sgd.OnePassSGD(**{"lr": 1.5, **algorithm}, update=update)
    clock = {"alpha": [0, 0.5, 1.0]} if algorithm.scheduled else {"times": [0, 0.7, 1.4]}
    theory = sgd.solve_ode(problem, algorithm, start, **clock)
    runs = sgd.simulate(problem, algorithm, start, dimension=2000, runs=60, seed=1, **clock)
    assert_means_agree(theory, runs, 4 / 2000)
    assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "update", [U.momentum(memory=1.5), U.clipped(0.2), U.polyak()], ids=lambda update: update.kind
)
def test_mixtures_are_the_mean_of_runs(update):
    problem = sgd.GaussianMixture("xor", width=2, snr=4.0)
    start = sgd.random_start(problem, dimension=30, seed=4)
    algorithm, times = sgd.OnePassSGD(lr=1.0, update=update), [0, 0.5, 1.0]
    theory = sgd.solve_ode(problem, algorithm, start, times=times)
    runs = sgd.simulate(problem, algorithm, start, times=times, dimension=2000, runs=60, seed=1)
    assert_means_agree(theory, runs, 4 / 2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [U.momentum(memory=1.5), U.clipped(0.2), U.adam(4.0, eps=0.02), U.sign()],
    ids=lambda update: update.kind,
)
def test_units_of_the_trace(update):
    """With per="trace", D is the trace of the covariance in lr/D, memory/D and sqrt(D) alike.

    The covariance has two blocks, or is a spectrum.
    """
    for covariance in ([(2.0, 0.5), (0.5, 0.5)], sgd.Spectrum([2.0, 0.5], [1000, 1000])):
        problem = sgd.TeacherStudent(
            width=2, teacher_width=1, activation="erf", noise=NOISE, covariance=covariance
        )
        start = sgd.start(problem, M=M0, Q=Q0)
        algorithm = sgd.OnePassSGD(lr=0.5, update=update, per="trace")
        times = [0, 0.3, 0.6]
        theory = sgd.solve_ode(problem, algorithm, start, times=times)
        method = "direct" if update.law.coordinatewise else "exact"
        runs = sgd.simulate(
            problem,
            algorithm,
            start,
            times=times,
            dimension=2000,
            runs=40,
            seed=1,
            method=method,
        )
        assert_means_agree(theory, runs, 4 / 2000)
        assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.02


@pytest.mark.slow
def test_wide_fields():
    """Gradients of wide fields are as small as numbers can be, without NaN.

    The means of runs agree to 3%.
    """
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    start = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    update = U.gradient_noise(0.8, of=U.clipped(0.2, over="sample"))
    algorithm = sgd.OnePassSGD(lr=2.0, update=update)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[10.0])
    runs = sgd.simulate(problem, algorithm, start, alpha=[10.0], dimension=1000, runs=100)
    np.testing.assert_allclose(runs.Q.mean("run"), theory.Q[0], rtol=0.03)
    np.testing.assert_allclose(runs.risk.mean("run"), theory.risk[0], rtol=0.03)


def test_decay_inside_a_step_of_constant_length_has_no_limit():
    problem = sgd.TeacherStudent(width=2, activation="erf")
    start = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    for inner in (U.sign(), U.normalised(), U.muon()):
        update = U.weight_decay(1.0, of=inner, decoupled=False)
        with pytest.raises(ValueError, match="no limit"):
            sgd.solve_ode(problem, sgd.OnePassSGD(update=update), start, times=[1.0])
