"""The ODE of every update, from the lines that simulate it: against closed formulas on the same points, reference values, and plain SGD.

Closed formulas: an update that commutes with rotations and keeps no memory acts on h = dloss/dfields alone, as the inputs of a batch are
orthogonal. With H (p x B) its image of h/B, Lam (p + K) x B the fields, Om their covariance sum_b l_b Om_b, + T the transpose:

    A = E[H Lam^T] Om^-1,   dM_b = -lr l_b (A Om_b)_signals,   dQ_b = -lr l_b (A Om_b)_students + T + lr^2 l_b f_b E[H H^T]

On the same points both are finite sums, which agree to rounding (1e-10). Reference values: to what the points are good for, said at each.
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
    """The start S of the reference values, or one in two blocks of eigenvalues."""
    more = {"covariance": list(zip(EIGENVALUES, FRACTIONS, strict=True))} if blocks else {}
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, **{"activation": "erf", **options}, noise=noise, **more
    )
    if not blocks:
        return problem, sgd.start(problem, M=M0, Q=Q0)
    off = np.array([[0.0, 0.05], [0.05, 0.0]])
    return problem, sgd.start(
        problem, M=np.stack([M0 / 2, M0 / 2]), Q=np.stack([0.4 * Q0, 0.6 * Q0 + off])
    )


def state_of(update, begin):
    """What the ODE of an update moves, at its start."""
    first, p = update_start(update, begin), begin.M.shape[-2]
    rows = p * (1 + len(slow_rows(update.law)))
    n = min(rows, first.M.shape[2])
    blocks = first.M.shape[1]
    M, Q, a = (
        np.zeros((blocks, rows, first.M.shape[3])),
        np.zeros((blocks, rows, rows)),
        np.zeros(rows),
    )
    M[:, :n], Q[:, :n, :n], a[:n] = first.M[0, :, :n], first.Q[0, :, :n, :n], first.a[0, :n]
    return {
        "rows_M": M,
        "rows_Q": Q,
        "rows_a": a,
        "update_scalars": first.scalars[0],
        "update_squares": first.squares[0],
    }


def points_of(problem, batch=1, reads=1, quiet=False, fine=1.0):
    return jax.tree.map(
        lambda part: part[0], field_points(problem.structure, batch, reads, quiet=quiet, fine=fine)
    )


def rates(
    update,
    lr,
    problem,
    begin,
    batch=1,
    points=None,
    by_noise=False,
    state=None,
    tau=0.0,
    D=1e14,
    **options,
):
    """d(state)/dtau by the library, on the given points; a linear update has none."""
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, update=update, **options).on(problem)
    quadrature = choose_quadrature(problem, begin.Q_blocks, 2.0)
    field = UpdateStep(problem.structure, quadrature, batch, update.law, by_noise)
    if points is None:
        points = {
            "nodes": jax.tree.map(
                lambda part: part[0], expectation_of(problem.structure).nodes(quadrature, False)
            )
        }
    state = state_of(update, begin) if state is None else state
    with jax.enable_x64(True):
        ask = jax.jit(
            lambda state, points: update_rates(
                field, points, problem.parameters, algorithm.parameters, D, tau, state
            )
        )
        return {name: np.asarray(value) for name, value in ask(state, points).items()}


# ------------------------------------------------------------------------------------------------------- closed formulas


def activation(x):
    return special.erf(x / np.sqrt(2))


def slope(x):
    return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)


def covariance(M, Q):
    """Of (signal, students), P = the identity times fractions over blocks; sums over blocks too."""
    blocks = len(M)
    fractions, eigenvalues = (FRACTIONS, EIGENVALUES) if blocks == 2 else (np.ones(1), np.ones(1))
    every = [
        np.block([[np.array([[f]]), m.T], [m, q]]) for f, m, q in zip(fractions, M, Q, strict=True)
    ]
    return np.array(every), np.einsum("b,bij->ij", eigenvalues, every), eigenvalues, fractions


def h_of(fields, signal, noise):
    """dloss/dfields (..., p) of erf networks with heads 1."""
    error = activation(fields).mean(axis=-1) - activation(signal) - np.sqrt(NOISE) * noise
    return error[..., None] * slope(fields) / fields.shape[-1]


def closed(image, lr, points, problem, begin, batch=1, update=None):
    """The formula above; `image(h, again)` is H (points, p, B) of h, where again(shift) is h at fields moved by a shift."""
    every, Om, eigenvalues, fractions = covariance(begin.M_blocks[0], begin.Q_blocks[0])
    zeta, noise, weights = (
        points[name].reshape(-1, *points[name].shape[2:]) for name in ("fields", "noise", "weights")
    )
    zeta = zeta.reshape(len(zeta), batch, -1)
    Lam = zeta @ np.linalg.cholesky(Om).T
    signal, fields = Lam[..., 0], Lam[..., 1:]

    def again(shift):
        return np.swapaxes(
            h_of(fields + np.swapaxes(shift, 1, 2), signal, noise.reshape(len(zeta), batch)), 1, 2
        )

    h = again(np.zeros((len(zeta), fields.shape[-1], batch)))
    H = image(h / batch, again, eigenvalues @ fractions, batch)
    A = np.einsum("n,npb,nbf->pf", weights, H, Lam) @ np.linalg.inv(Om)
    both = np.einsum("n,npb,nqb->pq", weights, H, H)
    drift = -lr * eigenvalues[:, None, None] * (A @ every)
    dQ = (
        drift[..., 1:]
        + np.swapaxes(drift[..., 1:], 1, 2)
        + lr**2 * (eigenvalues * fractions)[:, None, None] * both
    )
    return drift[..., :1], dQ


def sizes(h, axis):
    """Norms; where there is no gradient there is no step."""
    return np.maximum(np.sqrt(np.sum(h**2, axis=axis, keepdims=True)), 1e-300)


def of_values(h, function):
    left, s, right = np.linalg.svd(h, full_matrices=False)
    return np.einsum("nij,nj,njk->nik", left, function(s), right)


def quintic(s):
    s = s / sizes(s, -1)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


# H of h/B; l1 = sum_b f_b l_b is the squared length of an input over d
CLOSED = {
    "clipped": (
        U.clipped(0.2),
        lambda h, again, l1, B: h * np.minimum(1, 0.2 / (np.sqrt(l1) * sizes(h, (1, 2)))),
    ),
    "clipped, row": (
        U.clipped(0.1, over="row"),
        lambda h, again, l1, B: h * np.minimum(1, 0.1 / (np.sqrt(l1) * sizes(h, 2))),
    ),
    "clipped, sample": (
        U.clipped(0.2, over="sample"),
        lambda h, again, l1, B: h * np.minimum(1, 0.2 / (np.sqrt(l1) * B * sizes(h, 1))),
    ),
    "normalised": (U.normalised(), lambda h, again, l1, B: h / (np.sqrt(l1) * sizes(h, (1, 2)))),
    "sam": (
        U.sam(reach=0.5),
        lambda h, again, l1, B: again(0.5 * np.sqrt(l1) * h / sizes(h, (1, 2))) / B,
    ),
    "reuse": (U.reuse(3), None),
    "muon": (
        U.muon(),
        lambda h, again, l1, B: of_values(h, lambda s: 1.0 * (s > 1e-9 * s[:, :1])) / np.sqrt(l1),
    ),
    "muon, newton_schulz": (
        U.muon(newton_schulz=True),
        lambda h, again, l1, B: of_values(h, quintic) / np.sqrt(l1),
    ),
}


def reused(lr):
    def image(h, again, l1, B):
        total = h
        for _ in range(2):
            total = total + again(-lr * l1 * total) / B
        return total

    return image


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow(CLOSED, [name for name in CLOSED if name != "clipped, row"]))
def test_mean_steps_are_the_closed_formula_on_the_same_points(name, batch, blocks):
    (update, image), (problem, begin), lr = CLOSED[name], setting(blocks), 0.7
    points = points_of(problem, batch, fine=0.6 if batch == 1 else 1.0)
    found = rates(update, lr, problem, begin, batch, points)
    dM, dQ = closed(image or reused(lr), lr, points, problem, begin, batch)
    assert np.abs(dM).max() > 0.01
    # a polar factor divides by the smaller singular value, down to 1e-6 of the larger one
    tolerance = 1e-8 if name == "muon" and batch == 2 else 1e-10
    np.testing.assert_allclose(found["rows_M"], dM, atol=tolerance)
    np.testing.assert_allclose(found["rows_Q"], dQ, atol=tolerance)


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "batch", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_signs_are_the_closed_formula_on_the_same_points(batch, blocks):
    """Given h, a gradient's coordinates are Gaussian: g = h/|h| row by row; sqrt(2 l_b/pi) for l_b, (2/pi) asin(g g^T) for products."""
    (problem, begin), lr = setting(blocks), 0.7
    points = points_of(problem, batch, fine=0.6 if batch == 1 else 1.0)
    found = rates(U.sign(), lr, problem, begin, batch, points)
    every, Om, eigenvalues, fractions = covariance(begin.M_blocks[0], begin.Q_blocks[0])
    zeta, noise, weights = (
        points[name].reshape(-1, *points[name].shape[2:]) for name in ("fields", "noise", "weights")
    )
    Lam = zeta.reshape(len(zeta), batch, 3) @ np.linalg.cholesky(Om).T
    h = np.swapaxes(h_of(Lam[..., 1:], Lam[..., 0], noise.reshape(len(zeta), batch)), 1, 2)
    g = h / sizes(h, 2)
    A = np.einsum("n,npb,nbf->pf", weights, g, Lam) @ np.linalg.inv(Om)
    drift = -lr * np.sqrt(2 * eigenvalues / np.pi)[:, None, None] * (A @ every)
    arcs = np.einsum(
        "n,npq->pq", weights, 2 / np.pi * np.arcsin(np.clip(np.einsum("npb,nqb->npq", g, g), -1, 1))
    )
    dQ = (
        drift[..., 1:] + np.swapaxes(drift[..., 1:], 1, 2) + lr**2 * fractions[:, None, None] * arcs
    )
    np.testing.assert_allclose(found["rows_M"], drift[..., :1], atol=1e-10)
    # arcsin near 1 has the root of rounding
    np.testing.assert_allclose(found["rows_Q"], dQ, atol=3e-8)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "normalised" else pytest.mark.slow)
        for name in CLOSED
        if name not in ("reuse", "clipped, sample")
    ],
)
def test_label_noise_summed_by_hand(name):
    """Of one sample: between where h vanishes or is bent, piece by piece, against a fine rule in the noise on the same field points."""
    (update, image), (problem, begin), lr = CLOSED[name], setting(), 0.7
    generator, n = np.random.default_rng(2), 60
    fields, weights = generator.standard_normal((n, 3)), np.full(n, 1 / n)  # any points will do
    points = {"fields": fields[None], "noise": np.zeros((1, n, 1)), "weights": weights[None]}
    found = rates(update, lr, problem, begin, 1, points, by_noise=True)
    noise = np.linspace(-8, 8, 6401)
    density = np.exp(-0.5 * noise**2)
    part = {
        "fields": np.repeat(fields, len(noise), axis=0)[None],
        "noise": np.tile(noise, n)[None, :, None],
    }
    part["weights"] = np.outer(weights, density / density.sum()).reshape(1, -1)
    dM, dQ = closed(image, lr, part, problem, begin)
    # its step is 1/400: a bend costs its square, a jump a share of it at every field, with either sign
    tolerance = 1e-5 if name.startswith("clipped") else 2e-4
    np.testing.assert_allclose(found["rows_M"], dM, atol=tolerance)
    np.testing.assert_allclose(found["rows_Q"], dQ, atol=tolerance)


def lattice(step=0.25, reach=8.0):
    axis = np.arange(-reach, reach + step / 2, step)
    zeta = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = np.exp(-0.5 * np.sum(zeta**2, axis=1))
    return zeta, weights / weights.sum()


def gradient_of(M, Q, noise=NOISE):
    """Coefficients A of the mean gradient on (signal, rows), and N = E[h h^T], for rows with overlaps M, Q, by the trapezoidal rule."""
    Om = covariance(M, Q)[1]
    zeta, weights = lattice()
    Lam = zeta @ np.linalg.cholesky(Om).T
    error = activation(Lam[:, 1:]).mean(axis=1) - activation(Lam[:, 0])
    s = slope(Lam[:, 1:]) / 2
    A = np.einsum("n,np,nf->pf", weights * error, s, Lam) @ np.linalg.inv(Om)
    return A, np.einsum("n,np,nq->pq", weights * (error**2 + noise), s, s)


# Z' = Z + (A Z + b G(e.Z))/d: A, b, e of each, at lr and what it keeps (a time tau = 0.7 for scalars that are ages)
TAU, RATE = 0.7, 1.3
LINEAR = {
    "momentum": (U.momentum(memory=1.5), [[0, -RATE], [0, -1.5]], [0, 1.5], [1, 0]),
    "nesterov": (U.nesterov(memory=1.5), [[0, -RATE], [0, -1.5]], [0, 1.5], [1, 0]),
    "average": (U.average(2.0), [[-2, 2], [0, 0]], [0, -RATE], [0, 1]),
    "polyak": (U.polyak(), [[-1 / TAU, 1 / TAU], [0, 0]], [0, -RATE], [0, 1]),
    "schedule_free": (U.schedule_free(0.9), [[-1 / TAU, 1 / TAU], [0, 0]], [0, -RATE], [0.9, 0.1]),
    "dana": (U.dana(1.1, delta=4.0, offset=0.5), [[0, -1.1], [0, -4 / (0.5 + TAU)]], [-RATE, 1], [1, 0]),
    "decay": (U.weight_decay(0.4), [[-0.4 * RATE]], [-RATE], [1]),
    "decay, average": (U.weight_decay(0.4, of=U.average(2.0)), [[-2, 2], [0, -0.4 * RATE]], [0, -RATE], [0, 1]),
    "decay inside, momentum": (
        U.weight_decay(0.4, of=U.momentum(memory=1.5), decoupled=False), [[0, -RATE], [1.5 * 0.4, -1.5]], [0, 1.5], [1, 0]
    ),
    "momentum, beta": (U.momentum(0.75), [[0]], [-4 * RATE], [1]),
    "nesterov, beta": (U.nesterov(0.75), [[0]], [-4 * RATE], [1]),
    "decay inside, momentum beta": (U.weight_decay(0.4, of=U.momentum(0.75), decoupled=False), [[-1.6 * RATE]], [-4 * RATE], [1]),
    "decay, momentum beta": (U.weight_decay(0.4, of=U.momentum(0.75)), [[-0.4 * RATE]], [-4 * RATE], [1]),
}  # fmt: skip


@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow(LINEAR, [name for name in LINEAR if name != "schedule_free"]))
def test_linear_updates_are_their_matrix_form(name, blocks):
    """d(Z W*^T) = A Z W*^T + b E[h lam*^T], d(Z Z^T) = A Z Z^T + b E[h lam_Z^T] + T + b b^T N/B, moments at e.Z by a rule of our own."""
    update, A, b, e = LINEAR[name]
    A, b, e = (np.asarray(part, dtype=float) for part in (A, b, e))
    sets, batch = len(b), 3
    problem, begin = setting(blocks)
    generator = np.random.default_rng(4)
    count = 2 if blocks else 1
    fractions, eigenvalues = (FRACTIONS, EIGENVALUES) if blocks else (np.ones(1), np.ones(1))
    # rows of all sets in d = 9 coordinates of every block, the signal along the first
    Z = 0.4 * generator.standard_normal((count, sets, 2, 9))
    wstar = np.sqrt(fractions)[:, None] * np.eye(9)[0]
    flat = Z.reshape(count, -1, 9)
    first = state_of(update, begin)
    state = first | {
        "rows_M": flat @ wstar[..., None],
        "rows_Q": flat @ np.swapaxes(flat, 1, 2),
        "update_scalars": first["update_scalars"] * 0 + TAU,
    }
    found = rates(update, RATE, problem, begin, batch, state=state, tau=TAU)
    R = np.einsum("s,bspd->bpd", e, Z)
    G, N = gradient_of(R @ wstar[..., None], R @ np.swapaxes(R, 1, 2))
    mean = eigenvalues[:, None, None] * (
        G[:, :1] * wstar[:, None] + np.einsum("pq,bqd->bpd", G[:, 1:], R)
    )
    dZ = (np.einsum("st,btpd->bspd", A, Z) + b[:, None, None] * mean[:, None]).reshape(flat.shape)
    noise = np.kron(np.outer(b, b), N / batch) * (eigenvalues * fractions)[:, None, None]
    dQ = flat @ np.swapaxes(dZ, 1, 2)
    # the lattice is good for 1e-10
    np.testing.assert_allclose(found["rows_M"], dZ @ wstar[..., None], atol=1e-9)
    np.testing.assert_allclose(found["rows_Q"], dQ + np.swapaxes(dQ, 1, 2) + noise, atol=1e-9)
    if update.law.scalars:
        np.testing.assert_allclose(found["update_scalars"], 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["schedule_free", pytest.param("momentum, beta", marks=pytest.mark.slow)]
)
def test_oblique_columns_are_orthonormal_ones(name):
    """Updates that form no lengths are stepped on coefficients of the rows: the same mean step as in orthonormal columns."""
    update = LINEAR[name][0]
    problem, begin = setting(True)
    state = state_of(update, begin) | {"update_scalars": np.full(len(update.law.scalars), TAU)}
    assert update.law.linear_in_rows
    other = replace(update, law=replace(update.law, linear_in_rows=False))
    quick, generic = (
        rates(one, RATE, problem, begin, 3, state=state, tau=TAU) for one in (update, other)
    )
    for kept in quick:
        # a root of a matrix near 0 keeps half of the digits of its smallest entries
        np.testing.assert_allclose(quick[kept], generic[kept], atol=1e-9)


# ------------------------------------------------------------------------------------------------ against plain SGD, and runs


def heavy_ball(state, gradient, lr, D, number):
    V = 0.6 * state["velocity"] + gradient(state["weights"])
    return {"weights": -lr / D * V, "velocity": V - state["velocity"]}


@pytest.mark.slow
def test_heavy_balls_are_plain_sgd_at_a_larger_rate():
    """Of fixed beta, the library's and a user's: lr/(1 - beta), noise included; with batches, decay, a trained head, on the sphere."""
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
        begin = sgd.start(problem, M=M0, Q=np.array([[1.0, 0.2], [0.2, 1.0]]))
        ask = dict(rtol=1e-10, atol=1e-12)
        plain = sgd.solve_ode(
            problem,
            sgd.OnePassSGD(lr=1.0, batch=2, head_rate=0.7),
            begin,
            times=[0, 0.5, 1.0],
            **ask,
        )
        for update in (own, U.momentum(0.6), U.nesterov(0.6)):
            if update is own and "weight_decay" in options:
                continue  # a user's has its decay beside the step: lr, not lr/(1 - beta)
            algorithm = sgd.OnePassSGD(lr=0.4, batch=2, head_rate=0.7, update=update)
            found = sgd.solve_ode(problem, algorithm, begin, times=[0, 0.2, 0.4], **ask)
            for name in ("M", "Q", "a", "risk"):
                np.testing.assert_allclose(found[name], plain[name], atol=1e-8)
            assert "rows_Q" not in found


def lengths(state, gradient, lr, D, number):
    """A scalar that is no mean of squares."""
    G = gradient(state["weights"])
    return {"weights": -lr / D * G / (0.2 + state["sum"]), "sum": jnp.sqrt(jnp.sum(G**2)) / D**1.5}


def squares(state, gradient, lr, D, number):
    G = gradient(state["weights"])
    more = jnp.sum(G**2) / D**2
    return {"weights": -lr / D * G / jnp.sqrt(0.1 + state["sum"]), "sum": more}


def along_rows(state, gradient, lr, D, number):
    """A scalar that is quadratic in the gradient along the rows, whose mean is not the square of a mean."""
    G = gradient(state["weights"])
    return {
        "weights": -lr / D * G / (1 + state["sum"]),
        "sum": jnp.sum(G * state["weights"]) ** 2 / D,
    }


def bounded(state, gradient, lr, D, number, most):
    G = gradient(state["weights"])
    return {"weights": -lr / D * G * jnp.minimum(1, most / jnp.sqrt(jnp.sum(G**2) / D))}


def test_which_own_updates_are_linear():
    """Those whose mean gradient and noise are enough; scalars count, and bounds are found wherever they are."""
    made = {
        step: U.own(step, scalars=("sum",), memory="slow")
        for step in (lengths, squares, along_rows)
    }
    assert {step.__name__: update.law.linear for step, update in made.items()} == {
        "lengths": False,
        "squares": True,
        "along_rows": False,
    }
    assert not any(
        U.own(bounded, numbers={"most": most}).law.linear for most in (0.01, 1.0, 10.0, 30.0)
    )
    assert U.own(heavy_ball, rows=("velocity",), memory="fast").law.linear


OWN = {
    step.__name__: U.own(step, scalars=("sum",), memory="slow")
    for step in (lengths, squares, along_rows)
}

# update, problem, algorithm: what else an ODE has to know of
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


def means_agree(theory, runs, slack):
    """Means of runs are the ODE: to 4.9 standard errors, its own errors, and what finite d adds."""
    for name in ("M", "Q", "a", "risk", "rows_M", "rows_Q", "update_scalars"):
        if name not in theory:
            continue
        values, expected = runs[name].values, theory[name].values[0]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        own = max(
            theory.attrs.get("error_quadrature") or 0.0, theory.attrs.get("error_integrator") or 0.0
        )
        gap = np.abs(values.mean(axis=0) - expected)
        allowed = SIGMAS * error + own + slack * np.abs(expected).max() + 1e-9
        assert np.all(gap <= allowed), (name, float((gap / allowed).max()), float(gap.max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_ode_is_the_mean_of_runs(name):
    """60 exact runs at d = 2000."""
    update, options, algorithm = RUNS[name]
    problem = sgd.TeacherStudent(width=2, teacher_width=1, activation="erf", noise=NOISE, **options)
    begin = sgd.start(problem, M=M0, Q=np.array([[1.0, 0.2], [0.2, 1.0]]))
    algorithm = sgd.OnePassSGD(**{"lr": 1.5, **algorithm}, update=update)
    asked = {"times": [0, 0.7, 1.4]} if not algorithm.scheduled else {"alpha": [0, 0.5, 1.0]}
    theory = sgd.solve_ode(problem, algorithm, begin, **asked)
    means_agree(
        theory,
        sgd.simulate(problem, algorithm, begin, dimension=2000, runs=60, seed=1, **asked),
        4 / 2000,
    )
    assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "update", [U.momentum(memory=1.5), U.clipped(0.2), U.polyak()], ids=lambda update: update.kind
)
def test_mixtures_are_the_mean_of_runs(update):
    problem = sgd.GaussianMixture("xor", width=2, snr=4.0)
    begin = sgd.random_start(problem, dimension=30, seed=4)
    algorithm = sgd.OnePassSGD(lr=1.0, update=update)
    theory = sgd.solve_ode(problem, algorithm, begin, times=[0, 0.5, 1.0])
    means_agree(
        theory,
        sgd.simulate(
            problem, algorithm, begin, times=[0, 0.5, 1.0], dimension=2000, runs=60, seed=1
        ),
        4 / 2000,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [U.momentum(memory=1.5), U.clipped(0.2), U.adam(4.0, eps=0.02), U.sign()],
    ids=lambda update: update.kind,
)
def test_units_of_the_trace(update):
    """per="trace": D = the trace of the covariance in lr/D, memory/D and sqrt(D) alike; of two blocks, and of a spectrum."""
    for covariance in ([(2.0, 0.5), (0.5, 0.5)], sgd.Spectrum([2.0, 0.5], [1000, 1000])):
        problem = sgd.TeacherStudent(
            width=2, teacher_width=1, activation="erf", noise=NOISE, covariance=covariance
        )
        begin = sgd.start(problem, M=M0, Q=Q0)
        algorithm = sgd.OnePassSGD(lr=0.5, update=update, per="trace")
        theory = sgd.solve_ode(problem, algorithm, begin, times=[0, 0.3, 0.6])
        method = "direct" if update.law.coordinatewise else "exact"
        runs = sgd.simulate(
            problem,
            algorithm,
            begin,
            times=[0, 0.3, 0.6],
            dimension=2000,
            runs=40,
            seed=1,
            method=method,
        )
        means_agree(theory, runs, 4 / 2000)
        assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.02


@pytest.mark.slow
def test_wide_fields():
    """Where fields have become wide their gradients are as small as numbers can be: still no NaN, and the means of runs to 3%."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    begin = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(
        lr=2.0, update=sgd.updates.gradient_noise(0.8, of=sgd.updates.clipped(0.2, over="sample"))
    )
    theory = sgd.solve_ode(problem, algorithm, begin, alpha=[10.0])
    runs = sgd.simulate(problem, algorithm, begin, alpha=[10.0], dimension=1000, runs=100)
    np.testing.assert_allclose(runs.Q.mean("run"), theory.Q[0], rtol=0.03)
    np.testing.assert_allclose(runs.risk.mean("run"), theory.risk[0], rtol=0.03)


def test_decay_inside_a_step_of_one_length_has_no_limit():
    problem = sgd.TeacherStudent(width=2, activation="erf")
    begin = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    for inner in (sgd.updates.sign(), sgd.updates.normalised(), sgd.updates.muon()):
        update = sgd.updates.weight_decay(1.0, of=inner, decoupled=False)
        with pytest.raises(ValueError, match="no limit. Use decoupled=True"):
            sgd.solve_ode(problem, sgd.OnePassSGD(update=update), begin, times=[1.0])
