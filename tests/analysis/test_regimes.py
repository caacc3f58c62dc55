"""Regimes: sizes against a dense d-dimensional step. Plateaus: against closed forms, quadrature and long runs of the ODE."""

from __future__ import annotations

import inspect
from functools import cache

import jax
import matplotlib as mpl
import numpy as np
import pytest
from scipy import optimize, special

import sgdynamics as sgd
from sgdynamics.analysis.regimes import HORIZON, LARGE, SMALL, place, plateau, regime
from sgdynamics.papers.dimension_free import plateau as slides_plateau
from sgdynamics.plotting import plot
from sgdynamics.solvers import functional
from tests.conftest import Z, s0

mpl.use("Agg")


def committee(p, k=2, activation="erf", noise=1e-3, **rest):
    return sgd.TeacherStudent(width=p, teacher_width=k, activation=activation, noise=noise, **rest)


def matched(p, activation="erf", **rest):
    return committee(p, p, activation, 0.1, **rest)


def step(lr, batch=1):
    return sgd.OnePassSGD(lr=lr, batch=batch)


def can_be_called(solver):
    """What `regime` says to use is a call that the solver's signature takes."""
    names = ("solve_ode", "solve_sde", "solve_mean_field", "simulate")
    calls = {name: inspect.signature(getattr(sgd, name)).bind for name in names}
    eval(solver, {**calls, "OnePassSGD": sgd.OnePassSGD, "problem": 0, "algorithm": 0, "start": 0})


@cache
def wide():
    return regime(committee(200), step(1.0), 500)


# ---- the map


@pytest.mark.parametrize(
    ("lr", "dimension", "name", "solver"),
    [
        (1.0, 1000, "high-dimensional", "solve_ode(problem, algorithm, start, times=...)"),
        (0.05, 1000, "classical", "solve_ode(problem, OnePassSGD(lr=0), start, times=...)"),
        (0.0, 8, "classical", "solve_ode(problem, OnePassSGD(lr=0), start, times=...)"),
        (
            2.0,
            10,
            "fluctuating",
            "solve_sde(problem, algorithm, start, times=..., dimension=10, runs=100)",
        ),
        (
            16.0,
            8,
            "finite-dimensional",
            'simulate(problem, algorithm, start, times=..., dimension=8, runs=100, method="exact")',
        ),
        (
            16.0,
            5,
            "finite-dimensional",
            "solve_ode(problem, algorithm, start, times=...)",
        ),  # d < width + signals
    ],
)
def test_regions_of_a_narrow_network(lr, dimension, name, solver):
    found = regime(committee(4), step(lr), dimension)
    assert (found.name, found.solver) == (name, solver)
    assert found.noise.scale == lr / 4
    assert found.fluctuation.scale == pytest.approx(np.sqrt(lr / (4 * dimension)))
    assert found.why.endswith(".")
    can_be_called(solver)
    shown = str(found)
    assert shown.startswith(name)
    assert f"{found.noise.size:.2g}" in shown
    assert f"use {solver}" in shown


def test_wide_networks_are_in_the_mean_field_regime():
    assert wide().name == "mean-field"
    assert wide().solver == "solve_mean_field(problem, algorithm, start, times=...)"
    can_be_called(wide().solver)
    assert (
        regime(committee(200), step(1.0), 10).solver
        == "solve_mean_field(problem, algorithm, start, times=..., dimension=10)"
    )


def test_places_are_told_by_the_thresholds():
    assert place(2 * SMALL, SMALL / 2, 1.0) == "high-dimensional"
    assert place(SMALL / 2, SMALL / 2, 1.0) == "classical"
    assert place(SMALL / 2, SMALL / 2, SMALL / 2) == "mean-field"
    assert place(SMALL / 2, (SMALL + LARGE) / 2, SMALL / 2) == "fluctuating"
    assert place(2 * SMALL, 2 * LARGE, SMALL / 2) == "finite-dimensional"


def test_schedules_count_by_their_largest_rate():
    problem = committee(4)
    constant = regime(problem, step(2.0), 100)
    assert (
        regime(problem, sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [0.5, 2.0])), 100) == constant
    )
    assert regime(problem, sgd.OnePassSGD(lr=lambda alpha: 2.0 / (1.0 + alpha)), 100) == constant
    # a batch divides the noise, and the variance of runs
    batch = regime(problem, step(4.0, 2), 100)
    assert (batch.noise, batch.fluctuation) == (constant.noise, constant.fluctuation)


@pytest.mark.parametrize("sphere", [False, True])
def test_sizes_agree_with_steps_of_dense_sgd(sphere):
    """10^5 samples of one step on 4 x 24 weights with the overlaps of S0: mean, noise and variance of what overlaps move by."""
    p, k, d, lr, delta, count = 4, 2, 24, 0.5, 0.1, 100_000
    problem = committee(
        p, noise=delta, constraint="sphere" if sphere else None, covariance=[(1.5, 1.0)]
    )
    begin = s0(problem)
    found = regime(problem, step(lr), d, start=begin)
    generator = np.random.default_rng(5)
    basis = np.linalg.qr(generator.standard_normal((d, p + k)))[0].T
    teacher = basis[:k]
    M, Q = begin.M[0], begin.Q[0]
    W = M @ teacher + np.linalg.cholesky(Q - M @ M.T) @ basis[k:]
    x = np.sqrt(1.5) * generator.standard_normal((count, d))
    students, signals = x @ W.T, x @ teacher.T
    gap = special.erf(students / np.sqrt(2)).mean(axis=1) - special.erf(signals / np.sqrt(2)).mean(
        axis=1
    )
    gap = gap - np.sqrt(delta) * generator.standard_normal(count)
    h = gap[:, None] * np.sqrt(2 / np.pi) * np.exp(-(students**2) / 2) / p
    pull = h[:, :, None] * students[:, None]
    kick = h[:, :, None] * h[:, None]
    along, across = -h[:, :, None] * signals[:, None], -pull - np.swapaxes(pull, 1, 2)
    norm = np.sum(x**2, axis=1)[:, None, None]

    def moved(dM, dQ):
        grow = np.einsum("...ii->...i", dQ) / 2
        parts = (
            (dM - M * grow[..., None], dQ - Q * (grow[..., None] + grow[..., None, :]))
            if sphere
            else (dM, dQ)
        )
        return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)

    flow = np.abs(moved(along, across).mean(axis=0)).max()
    still = np.zeros_like(along)
    noise = np.abs(moved(still, lr * 1.5 * kick).mean(axis=0)).max() / flow
    assert found.noise.size == pytest.approx(noise, rel=0.06)
    finite = moved(still, lr * (norm / d - 1.5) * kick)
    error = Z * finite.std(axis=0).max() / np.sqrt(count) / flow
    assert found.finite_dimension.size == pytest.approx(
        np.abs(finite.mean(axis=0)).max() / flow, rel=0.15, abs=error
    )
    assert found.finite_dimension.size > 2 * error
    # steps of lr/d, HORIZON p d/lr of them; |x|^2 at its mean, as the estimate has it
    spread = (
        moved(along, across + lr * 1.5 * kick).std(axis=0).max()
        * (lr / d)
        * np.sqrt(HORIZON * p * d / lr)
    )
    assert found.fluctuation.size == pytest.approx(spread, rel=0.04)


def test_finite_width_is_the_units_own_share_of_the_risk():
    """Half learnt, erf: rows of norm 1 with squared overlap 1/2, (2/pi) asin of the overlaps over 1 + norm."""

    def pair(overlap):
        return 2 / np.pi * np.arcsin(overlap / 2)

    p = 4
    self_term = (pair(1.0) - pair(0.5)) / p
    students = self_term + pair(0.5) / 2  # half of the other units share the signal
    risk = (students - pair(np.sqrt(0.5)) + pair(1.0) / 2) / 2
    found = regime(committee(p), step(0.1), 1000)
    assert found.finite_width.size == pytest.approx(self_term / 2 / risk, rel=0.05)


def test_what_has_no_place_on_the_map_is_refused():
    for problem in (sgd.SpikedTensor(), sgd.GaussianMixture()):
        with pytest.raises(ValueError, match=r"problem = .*effective_scaling"):
            regime(problem, step(0.1), 100)
    with pytest.raises(ValueError, match="dimension = 2"):
        regime(committee(4), step(0.1), 2)
    still = sgd.TeacherStudent(
        width=1, activation="he2", teacher_activation="he3", constraint="sphere"
    )
    with pytest.raises(ValueError, match="give start="):
        regime(still, step(0.1), 100)


def test_any_problem_with_fields_has_a_regime():
    own = sgd.Problem(
        lambda fields, signals, head, z: jax.nn.softplus(-signals[0] * fields.mean()),
        width=3,
        signals=1,
    )
    blocks = committee(
        2, activation="he2", covariance=[(1.0, 0.5), (4.0, 0.5)], constraint="sphere"
    )
    for problem in (own, blocks, sgd.MultiIndex(lambda z: z[0] * z[1], directions=2, width=3)):
        found = regime(problem, step(0.1), 100)
        assert 0 < found.noise.size < np.inf
        assert 0 < found.fluctuation.size < np.inf
        assert found.finite_width.size >= 1 / problem.width


def test_the_map_shows_each_setting_in_its_region():
    import matplotlib.pyplot as plt

    settings = [
        regime(committee(4), step(lr), d)
        for lr, d in ((1.0, 1000), (0.05, 1000), (2.0, 10), (16.0, 8), (0.0, 100))
    ]
    settings.append(wide())
    for one in settings:
        fig, ax = plot.regime_map(one)
        (line,) = [line for line in ax.lines if line.get_marker() in ("o", "v")]
        point = np.array(
            [line.get_xdata()[0], line.get_ydata()[0] * (1.01 if one.lr == 0 else 1.0)]
        )
        colours = [
            area.get_facecolor()[0]
            for area in ax.collections
            if any(path.contains_point(point) for path in area.get_paths())
        ]
        assert len(colours) == 1
        np.testing.assert_allclose(colours[0], mpl.colors.to_rgba(plot.REGION_COLOURS[one.name]))
        plt.close(fig)
    fig, ax = plt.subplots()
    assert plot.regime_map({"one": settings[0], "other": settings[2]}, ax)[1] is ax
    assert [text.get_text().split("\n")[0] for text in ax.get_legend().get_texts()] == [
        "one",
        "other",
    ]
    plt.close(fig)
    for wrong in ([], "high-dimensional", [1.0]):
        with pytest.raises(ValueError, match="regimes = "):
            plot.regime_map(wrong)


# ---- plateaus


def by_quadrature(m, q):
    """For erf, u and u* of variances q, 1 and covariance m, E0 = s(u*) - s(u): E of s' u* E0, s' u E0, s'^2 E0^2, s'^2, E0^2/2."""
    node, weight = special.roots_hermitenorm(160)
    weight = np.outer(weight, weight) / weight.sum() ** 2
    u = np.sqrt(q) * node[:, None] + 0 * node
    v = m / np.sqrt(q) * node[:, None] + np.sqrt(1 - m * m / q) * node
    slope = np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2)
    gap = special.erf(v / np.sqrt(2)) - special.erf(u / np.sqrt(2))
    return [
        float(np.sum(weight * part))
        for part in (slope * v * gap, slope * u * gap, slope**2 * gap**2, slope**2, gap**2 / 2)
    ]


@pytest.mark.parametrize("lr", [0.1, 2.0])
def test_one_erf_unit_free_and_on_the_sphere(lr):
    """The exact roots by quadrature: (m, q) of the free ODE, where m^2 = 1 + q - sqrt((1 + q)/2), and m on the sphere."""
    delta = 0.1

    def rates(y):
        along, own, N, J, _ = by_quadrature(*y)
        return [along, 2 * own + lr * (N + delta * J)]

    m, q = optimize.root(rates, [1.0, 1.0 + lr * delta / 2], tol=1e-14).x
    found = plateau(matched(1), step(lr))
    assert found.excess_risk == pytest.approx(by_quadrature(m, q)[4], rel=1e-9)
    assert (found.M[0, 0], found.Q[0, 0]) == pytest.approx((m, q), rel=1e-10)
    assert m**2 == pytest.approx(1 + q - np.sqrt((1 + q) / 2), rel=1e-10)

    def sphere_rate(m):
        along, grow = rates([m, 1.0])
        return along - m * grow / 2

    m = optimize.brentq(sphere_rate, 0.5, 1 - 1e-6, xtol=1e-15)
    found = plateau(matched(1, constraint="sphere"), step(lr))
    assert found.excess_risk == pytest.approx(by_quadrature(m, 1.0)[4], rel=1e-8)
    assert found.M[0, 0] == pytest.approx(m, rel=1e-11)


def test_closed_plateaus():
    """Linear: c/(1 - c) for any heads, batch and covariance; square: free and on the sphere alike, up to where it ends."""
    linear = matched(2, "linear", teacher_head=[1.0, 2.0], covariance=[(1.0, 0.5), (3.0, 0.5)])
    found = plateau(linear, step(0.8, 2))
    c = 0.4 / 2 * 2.0 * (1 + 4) / 4
    assert found.closed == pytest.approx(0.05 * c / (1 - c))
    assert found.excess_risk == pytest.approx(found.closed, rel=1e-9)
    assert found.leading == pytest.approx(0.05 * c)
    square = matched(2, "square", constraint="sphere")
    for lr in (0.1, 0.4):
        found = plateau(square, step(lr))
        assert found.closed == pytest.approx(0.1 * lr / 2 / (1 - 2 * lr), rel=1e-12)
        assert found.excess_risk == pytest.approx(found.closed, rel=1e-8)
    with pytest.raises(ValueError, match=r"lr = 0\.6: .*smaller"):
        plateau(square, step(0.6))


def test_corrections_shrink_linearly():
    """Relative to lr noise E[s'^2]/(4 p), and for any teacher and heads to (lr noise/4) sum_i (a_i/p)^2 E[s'_i^2]."""
    rates = np.array([0.05, 0.1, 0.2])
    for more in ({}, {"teacher_gram": [[1.0, 0.4], [0.4, 2.0]], "teacher_head": [1.0, -0.5]}):
        problem = matched(2, **more)
        found = [plateau(problem, step(lr)) for lr in rates]
        norm, head = np.diag(problem.gram[0]), problem.teacher_head
        slopes = 2 / np.pi / np.sqrt(1 + 2 * norm)
        for lr, one in zip(rates, found, strict=True):
            assert one.leading == pytest.approx(
                lr * 0.1 / 4 * np.sum((head / 2) ** 2 * slopes), rel=1e-12
            )
        shares = np.array([one.correction for one in found]) / rates
        assert np.all(np.abs(shares) < 0.1)
        np.testing.assert_allclose(shares, shares[0], rtol=0.02)
        # the rows stand off their teachers by lr noise/2, each on its own
        np.testing.assert_allclose(
            found[0].Q - found[0].M @ np.linalg.solve(problem.gram[0], found[0].M.T),
            0.0025 * np.eye(2),
            atol=1e-4,
        )
    assert float(plateau(problem, step(0.0))) == 0.0
    assert plateau(committee(2, 2, noise=0.0), step(0.1)).correction == 0.0


def ends(problem, rates, spans):
    """Excess risk of the ODE, from a start near the teacher, at several multiples of the plateau's slowest time: (rate, time)."""
    p = problem.width
    begin = sgd.start(
        problem,
        M=0.99 * np.eye(p) + 0.003,
        Q=(0.99 * np.eye(p) + 0.003) @ (0.99 * np.eye(p) + 0.003) + 0.004 * np.eye(p),
    )
    quadrature = functional.quadrature(problem, begin)
    with jax.enable_x64(True):

        def solve(lr, times):
            states = functional.solve(
                problem.structure,
                problem.parameters,
                functional.state(begin),
                times,
                lr=lr,
                quadrature=quadrature,
            )
            return jax.vmap(
                lambda state: functional.risk(
                    problem.structure, problem.parameters, state, quadrature=quadrature
                )
            )(states)

        compiled = jax.jit(solve)
        slowest = [plateau(problem, step(lr)).rate for lr in rates]
        return (
            np.array(
                [
                    np.asarray(compiled(lr, spans / rate))
                    for lr, rate in zip(rates, slowest, strict=True)
                ]
            )
            - problem.noise_floor
        )


def long_runs_end_on_the_plateau(problem, rates, rtol=1e-6):
    spans = np.array([8.0, 10.0, 22.0])
    for lr, (early, later, end) in zip(rates, ends(problem, rates, spans), strict=True):
        found = plateau(problem, step(lr))
        # the run has the first of four samplings, which is within 3 standard errors of their mean, as one of any four numbers is
        assert abs(end - found.excess_risk) < rtol * end + 3 * found.error
        assert found.error < 1e-3 * end
        # the slides' formula is its leading term
        assert slides_plateau(
            lr, problem.width, problem.noise, problem.activation.name
        ) == pytest.approx(found.leading, rel=1e-9)
        # and they come back at the rate that was said, two of its times e^-2 (from this start others do not see the slowest mode)
        if problem.activation.name == "erf":
            assert (later - end) / (early - end) == pytest.approx(np.exp(-2), rel=0.05)


def test_long_runs_of_two_units_end_on_the_plateau():
    long_runs_end_on_the_plateau(matched(2), (0.1, 0.4))


@pytest.mark.slow
@pytest.mark.parametrize(("p", "activation"), [(1, "erf"), (4, "erf"), (2, "relu"), (1, "gelu")])
def test_long_runs_end_on_the_plateau(p, activation):
    problem = matched(p, activation)
    long_runs_end_on_the_plateau(problem, (0.1, 0.4), 1e-5)
    shares = np.array([plateau(problem, step(lr)).correction / lr for lr in (0.05, 0.1)])
    if activation == "relu":  # a kink: the correction begins as sqrt(lr)
        small = [plateau(problem, step(lr)).correction for lr in (1e-5, 4e-5)]
        assert small[1] / small[0] == pytest.approx(2, rel=0.1)
    else:
        np.testing.assert_allclose(shares, shares[0], rtol=0.1)


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (committee(4), "width = 4: .*take 2"),
        (matched(1, teacher_activation="tanh"), "teacher_activation = 'tanh'"),
        (matched(1, loss="correlation"), "loss = "),
        (matched(1, head="trained"), "head = 'trained'"),
        (matched(1, weight_decay=0.1), "weight_decay = 0.1"),
        (matched(1, constraint="sphere", teacher_gram=[[2.0]]), "teacher_gram = "),
        (sgd.MultiIndex(lambda z: z[0], directions=1, width=1), "problem = "),
    ],
)
def test_plateaus_need_a_matched_teacher(problem, match):
    with pytest.raises(ValueError, match=match):
        plateau(problem, step(0.1))


def test_plateaus_need_a_constant_rate():
    with pytest.raises(ValueError, match="constant learning rate"):
        plateau(matched(1), sgd.OnePassSGD(lr=lambda alpha: 0.1 / (1 + alpha)))
