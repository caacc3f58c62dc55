"""Regimes of one-pass SGD: sizes of the neglected terms compared with steps in d dimensions."""

from __future__ import annotations

import inspect
from functools import cache

import jax
import matplotlib as mpl
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from sgdynamics.analysis.regimes import HORIZON, LARGE, SMALL, regime, region
from sgdynamics.plotting import plot
from tests.conftest import Z, s0

mpl.use("Agg")


def committee(p, k=2, activation="erf", noise=1e-3, **options):
    return sgd.TeacherStudent(
        width=p, teacher_width=k, activation=activation, noise=noise, **options
    )


def one_pass(lr, batch=1):
    return sgd.OnePassSGD(lr=lr, batch=batch)


def assert_callable(solver):
    """The recommended call matches the signature of the solver."""
    names = ("solve_ode", "solve_sde", "solve_mean_field", "simulate")
    calls = {name: inspect.signature(getattr(sgd, name)).bind for name in names}
    eval(solver, {**calls, "OnePassSGD": sgd.OnePassSGD, "problem": 0, "algorithm": 0, "start": 0})


@cache
def wide_regime():
    return regime(committee(200), one_pass(1.0), 500)


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
    diagnosis = regime(committee(4), one_pass(lr), dimension)
    assert (diagnosis.name, diagnosis.solver) == (name, solver)
    assert diagnosis.noise.scale == lr / 4
    assert diagnosis.fluctuation.scale == pytest.approx(np.sqrt(lr / (4 * dimension)))
    assert diagnosis.why.endswith(".")
    assert_callable(solver)
    text = str(diagnosis)
    assert text.startswith(name)
    assert f"{diagnosis.noise.size:.2g}" in text
    assert f"use {solver}" in text


@pytest.mark.slow
def test_wide_networks_are_in_the_mean_field_regime():
    assert wide_regime().name == "mean-field"
    assert wide_regime().solver == "solve_mean_field(problem, algorithm, start, times=...)"
    assert_callable(wide_regime().solver)
    assert (
        regime(committee(200), one_pass(1.0), 10).solver
        == "solve_mean_field(problem, algorithm, start, times=..., dimension=10)"
    )


def test_thresholds_separate_the_regions():
    assert region(2 * SMALL, SMALL / 2, 1.0) == "high-dimensional"
    assert region(SMALL / 2, SMALL / 2, 1.0) == "classical"
    assert region(SMALL / 2, SMALL / 2, SMALL / 2) == "mean-field"
    assert region(SMALL / 2, (SMALL + LARGE) / 2, SMALL / 2) == "fluctuating"
    assert region(2 * SMALL, 2 * LARGE, SMALL / 2) == "finite-dimensional"


def test_schedules_count_by_their_largest_rate():
    problem = committee(4)
    constant = regime(problem, one_pass(2.0), 100)
    assert (
        regime(problem, sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [0.5, 2.0])), 100) == constant
    )
    assert regime(problem, sgd.OnePassSGD(lr=lambda alpha: 2.0 / (1.0 + alpha)), 100) == constant
    # A batch divides the noise and the variance of runs.
    batch = regime(problem, one_pass(4.0, 2), 100)
    assert (batch.noise, batch.fluctuation) == (constant.noise, constant.fluctuation)


@pytest.mark.parametrize("sphere", [False, True])
def test_sizes_agree_with_steps_of_dense_sgd(sphere):
    """Mean, noise and variance of the increments of the overlaps in one step of dense SGD.

    They are estimated from 10^5 samples, at 4 x 24 weights with the overlaps of S0.
    """
    p, k, d, lr, delta, count = 4, 2, 24, 0.5, 0.1, 100_000
    problem = committee(
        p, noise=delta, constraint="sphere" if sphere else None, covariance=[(1.5, 1.0)]
    )
    start = s0(problem)
    diagnosis = regime(problem, one_pass(lr), d, start=start)
    generator = np.random.default_rng(5)
    basis = np.linalg.qr(generator.standard_normal((d, p + k)))[0].T
    teacher = basis[:k]
    M, Q = start.M[0], start.Q[0]
    W = M @ teacher + np.linalg.cholesky(Q - M @ M.T) @ basis[k:]
    x = np.sqrt(1.5) * generator.standard_normal((count, d))
    students, signals = x @ W.T, x @ teacher.T
    output, label = (
        special.erf(fields / np.sqrt(2)).mean(axis=1) for fields in (students, signals)
    )
    residual = output - label - np.sqrt(delta) * generator.standard_normal(count)
    h = residual[:, None] * np.sqrt(2 / np.pi) * np.exp(-(students**2) / 2) / p
    pull = h[:, :, None] * students[:, None]
    noise_Q = h[:, :, None] * h[:, None]
    flow_M, flow_Q = -h[:, :, None] * signals[:, None], -pull - np.swapaxes(pull, 1, 2)
    norm = np.sum(x**2, axis=1)[:, None, None]

    def increments(dM, dQ):
        """All increments, projected on the sphere if the rows are constrained, along one axis."""
        if sphere:
            growth = np.einsum("...ii->...i", dQ) / 2
            dM = dM - M * growth[..., None]
            dQ = dQ - Q * (growth[..., None] + growth[..., None, :])
        flat = [values.reshape(*values.shape[:-2], -1) for values in (dM, dQ)]
        return np.concatenate(flat, axis=-1)

    flow = np.abs(increments(flow_M, flow_Q).mean(axis=0)).max()
    zero_M = np.zeros_like(flow_M)
    noise = np.abs(increments(zero_M, lr * 1.5 * noise_Q).mean(axis=0)).max() / flow
    assert diagnosis.noise.size == pytest.approx(noise, rel=0.06)
    finite = increments(zero_M, lr * (norm / d - 1.5) * noise_Q)
    error = Z * finite.std(axis=0).max() / np.sqrt(count) / flow
    correction = np.abs(finite.mean(axis=0)).max() / flow
    assert diagnosis.finite_dimension.size == pytest.approx(correction, rel=0.15, abs=error)
    assert diagnosis.finite_dimension.size > 2 * error
    # HORIZON p d/lr steps of lr/d; |x|^2 is replaced by its mean, as in the estimate.
    deviation = increments(flow_M, flow_Q + lr * 1.5 * noise_Q).std(axis=0).max()
    scatter = deviation * (lr / d) * np.sqrt(HORIZON * p * d / lr)
    assert diagnosis.fluctuation.size == pytest.approx(scatter, rel=0.04)


def test_finite_width_is_the_share_of_single_units_in_the_risk():
    """Half learned, erf: rows of norm 1 with squared overlap 1/2.

    Pairs of units contribute (2/pi) asin(overlap/(1 + norm)).
    """

    def pair(overlap):
        return 2 / np.pi * np.arcsin(overlap / 2)

    p = 4
    self_term = (pair(1.0) - pair(0.5)) / p
    students = self_term + pair(0.5) / 2  # half of the other units have the same signal
    risk = (students - pair(np.sqrt(0.5)) + pair(1.0) / 2) / 2
    diagnosis = regime(committee(p), one_pass(0.1), 1000)
    assert diagnosis.finite_width.size == pytest.approx(self_term / 2 / risk, rel=0.05)


def test_problems_without_a_regime():
    for problem in (sgd.SpikedTensor(), sgd.GaussianMixture()):
        with pytest.raises(ValueError, match=r"problem = .*effective_scaling"):
            regime(problem, one_pass(0.1), 100)
    with pytest.raises(ValueError, match="dimension = 2"):
        regime(committee(4), one_pass(0.1), 2)
    still = sgd.TeacherStudent(
        width=1, activation="he2", teacher_activation="he3", constraint="sphere"
    )
    with pytest.raises(ValueError, match="Use start="):
        regime(still, one_pass(0.1), 100)


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
        diagnosis = regime(problem, one_pass(0.1), 100)
        assert 0 < diagnosis.noise.size < np.inf
        assert 0 < diagnosis.fluctuation.size < np.inf
        assert diagnosis.finite_width.size >= 1 / problem.width


def test_the_map_shows_each_setting_in_its_region():
    import matplotlib.pyplot as plt

    settings = [
        regime(committee(4), one_pass(lr), d)
        for lr, d in ((1.0, 1000), (0.05, 1000), (2.0, 10), (16.0, 8), (0.0, 100))
    ]
    settings.append(wide_regime())
    for setting in settings:
        fig, ax = plot.regime_map(setting)
        (line,) = [line for line in ax.lines if line.get_marker() in ("o", "v")]
        # A setting with lr = 0 lies on the lower edge.
        height = line.get_ydata()[0] * (1.01 if setting.lr == 0 else 1.0)
        point = np.array([line.get_xdata()[0], height])
        colours = [
            area.get_facecolor()[0]
            for area in ax.collections
            if any(path.contains_point(point) for path in area.get_paths())
        ]
        assert len(colours) == 1
        expected = mpl.colors.to_rgba(plot.REGION_COLOURS[setting.name])
        np.testing.assert_allclose(colours[0], expected)
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
