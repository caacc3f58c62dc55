"""Epochs over a fixed data set (`sgd.EpochSGD`).

Direct runs are compared with plain loops over the data. DMFT is compared with the two-time
equations of a linear unit (`papers.epochs.formulas`), with reference values, and with direct runs.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.algorithms.epochs import Visits, sequences
from sgdynamics.analysis.repeats import alpha_at_risk
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.cli import problem_files
from sgdynamics.fixed_data.direct_epochs import DirectEpochs
from sgdynamics.fixed_data.dmft import Sweep
from sgdynamics.fixed_data.host_draws import Sampling
from sgdynamics.fixed_data.sample_space import add_repeated_visits
from sgdynamics.fixed_data.setup import Setup, StepParameters
from sgdynamics.papers.epochs.formulas import linear_epochs, two_time
from sgdynamics.simulation.running import RunSetting
from sgdynamics.solvers.dmft_cells import failed_save_points, number_of_cells
from sgdynamics.solvers.dmft_result import large_error_warnings
from tests.conftest import FALSE_ALARM, Z
from tests.contracts.before_work import Work, stop_before_work

ORDERS = ("reshuffle", "fixed", "replacement")
GAMMA, ALPHA, NOISE = 0.8, 2.0, 0.25
REPLICATES = 16
SAMPLING = {"paths": REPLICATES * 512, "replicates": REPLICATES, "cells": 16}
# A mean over the replicates exceeds this many standard errors with the probability FALSE_ALARM.
T_LIMIT = float(stats.t.isf(FALSE_ALARM / 2, REPLICATES - 1))
# |w - w*|^2 after epochs 1, 2, 3, 5 at these GAMMA and ALPHA, from w = 0, by noise and order
TABLE = {
    (0.0, "reshuffle"): [0.1466, 0.0503, 0.0224, 0.0060],
    (0.0, "fixed"): [0.1466, 0.0466, 0.0196, 0.0047],
    (0.0, "replacement"): [0.2507, 0.1016, 0.0501, 0.0160],
    (NOISE, "reshuffle"): [0.2889, 0.2370, 0.2397, 0.2582],
    (NOISE, "fixed"): [0.2889, 0.2478, 0.2570, 0.2812],
    (NOISE, "replacement"): [0.3977, 0.3019, 0.2830, 0.2886],
}


def linear_unit(noise=NOISE):
    """A linear unit with label noise, and its start at w = 0."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    return problem, sgd.start(problem, M=[[0.0]], Q=[[1e-12]])


def distance(result):
    """|w - w*|^2."""
    return result["Q"].values[..., 0, 0] - 2 * result["M"].values[..., 0, 0] + 1


@functools.cache
def solve_two_time(order, noise=NOISE, alpha=ALPHA, epochs=3, gamma=GAMMA):
    """|w - w*|^2 and the mean squared residual of the linear unit after 0, 1, ... epochs.

    They solve the two-time equations of SGD, extrapolated to infinitely many cells.
    """
    return np.stack(linear_epochs(gamma, alpha, noise, epochs, order)[:2])


@pytest.mark.parametrize(("noise", "order"), TABLE)
def test_the_two_time_equations_give_the_table(noise, order):
    distances = solve_two_time(order, noise, epochs=5)[0][[1, 2, 3, 5]]
    np.testing.assert_allclose(distances, TABLE[noise, order], atol=5e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_visits_of_cells(order):
    """Cells divide the sequence of an epoch, whatever their number.

    An epoch has as many visits as samples: one of each sample, except for draws with replacement.
    """
    generator = np.random.default_rng(0)
    # One data set of 256 samples, and its sequences in epochs 3 and 4
    epoch_sequences = np.stack([sequences(order, 256, generator) for _ in range(2)])[None]

    def visits(cells, cell):
        """Visits of each sample by a cell of epoch 4."""
        with jax.enable_x64(True):
            table = Visits(epoch_sequences, np.int64(3), np.int64(cells))
            return np.asarray(table.at(np.int64(4 * cells + cell), order == "replacement")[0])

    fine = np.stack([visits(40, cell) for cell in range(40)])
    # Cell 1 of 40 contains the positions 6, ..., 11 of the sequence: 256/40 = 6.4.
    if order == "replacement":
        samples = np.unique(epoch_sequences[0, 1, 6:12])
    else:
        positions = epoch_sequences[0, 1]
        samples = np.flatnonzero((positions >= 6) & (positions < 12))
    np.testing.assert_array_equal(np.flatnonzero(fine[1]), samples)
    assert np.all(fine.sum(axis=0) == 1) == (order != "replacement")
    assert fine.sum() == 256
    assert np.ptp(fine.sum(axis=1)) <= 1
    coarse = np.stack([visits(20, cell) for cell in range(20)])
    np.testing.assert_array_equal(coarse, fine[::2] + fine[1::2])


@pytest.mark.parametrize("order", ["reshuffle", "fixed"])
def test_direct_runs_step_by_step(order):
    """The weights are those of a plain loop over the data set in the order of the run.

    With the mean L of (f - y)^2/2 over a batch and the weight decay r, a step is

        W <- W - (lr/d) (dL/dW + r W),     a <- a - (head_rate lr/d) (dL/da + r a).

    Batches of 3 out of 20 samples extend over the end of an epoch.
    """
    problem = sgd.TeacherStudent(
        width=2, activation="tanh", head="trained", noise=0.1, weight_decay=0.05
    )
    start = sgd.start(problem, M=[[0.3], [-0.2]], Q=np.eye(2))
    d, batch, lr, head_rate = 10, 3, 1.5, 0.4
    algorithm = sgd.EpochSGD(lr, 2.0, batch, order, head_rate=head_rate)
    dynamics = algorithm.in_steps(batch / (2.0 * d))
    simulator = DirectEpochs(
        problem, dynamics, RunSetting(start, d, problem.block_dimensions(d), seed=5)
    )
    n, key = 20, run_keys(5, np.array([0]))
    with jax.enable_x64(True):
        state = simulator.initial(np.array([0]))
    W, a = (np.asarray(weights[0], dtype=float) for weights in (state.rows, state.head))
    X, signals, noise = (np.asarray(array[0], dtype=float) for array in simulator.data)
    orders = [np.arange(n)] * 3
    if order == "reshuffle":
        # A state contains the orders of this epoch and of the next. Of the steps 0, ..., 7 with 3
        # samples each, step 7 is the first that starts in the second epoch.
        with jax.enable_x64(True):
            later, _, _ = simulator.advance(state, key, 0, 8)
        orders = [*np.asarray(state.selected[0]), np.asarray(later.selected[0, 1])]
        np.testing.assert_array_equal(orders[1], later.selected[0, 0])
        assert all(sorted(permutation) == list(range(n)) for permutation in orders)
        assert np.mean(orders[1] == orders[2]) < 0.5
    y = np.tanh(signals[:, 0]) + np.sqrt(0.1) * noise
    for step in range(18):
        positions = range(batch * step, batch * (step + 1))
        samples = [orders[position // n][position % n] for position in positions]
        x, units = X[samples], np.tanh(X[samples] @ W.T)
        # (f - y)/(batch p), the factor that both gradients have in common
        residuals = (units @ a / 2 - y[samples])[:, None] / (2 * batch)
        gradient = (residuals * a * (1 - units**2)).T @ x + 0.05 * W
        head_gradient = (residuals * units).sum(axis=0) + 0.05 * a
        W, a = W - lr / d * gradient, a - head_rate * lr / d * head_gradient
    with jax.enable_x64(True):
        state, last_good, _ = simulator.advance(state, key, 0, 18)
    np.testing.assert_allclose(state.rows[0], W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.head[0], a, rtol=1e-10)
    assert int(last_good[0]) == 18


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.runs_long
def test_direct_runs_have_the_means_of_the_two_time_equations(order):
    problem, start = linear_unit()
    d, runs = 150, 48
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order)
    result = sgd.simulate(
        problem, algorithm, start, alpha=ALPHA * np.arange(4), dimension=d, runs=runs, seed=3
    )
    distances, residuals = solve_two_time(order)
    np.testing.assert_allclose(result.epoch, [0, 1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(result.t, result.step * GAMMA / d, rtol=1e-12)
    # Means of runs differ from the limit by O(1/d).
    assert_mean(distance(result), distances, 1.5 / d)
    if order != "fixed":
        assert_mean(2 * result["train_risk"].values, residuals, 1.5 / d)
    assert result.attrs["method"] == "simulate-direct"
    assert sgd.algorithm_of(result) == algorithm


def assert_mean(values, expected, bias):
    """Assert that the mean over runs is the expected one up to `Z` standard errors and a bias."""
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(mean - expected) <= Z * error + bias), (mean, expected, error)


@float64
def solve_replicates(order, cells, seed=0, replicates=REPLICATES, paths_per_replicate=512):
    """|w - w*|^2 and twice the training risk (replicate, epoch) with one number of cells."""
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order).in_steps(1 / cells)
    sampling = Sampling(paths_per_replicate, replicates, seed)
    sweep = Sweep(problem, algorithm, sampling, 1e-5, np.dtype("float64"))
    sweep.reserve_memory(48, None, None)
    no_progress = SimpleNamespace(advance=lambda steps: None)
    states = sweep.solve(start, cells * np.arange(4), False, no_progress)
    M, Q = (states[name][..., 0, 0, 0] for name in ("M", "Q"))
    return 1 - 2 * M + Q, 2 * states["train_risk"]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reshuffle", "replacement"])
@pytest.mark.runs_long
def test_paths_agree_with_the_two_time_equations(order):
    """Both have 16 cells per epoch.

    With replacement they also differ by samples that are visited twice in one cell, a fraction of
    at most 1/cells^2.
    """
    computed = solve_replicates(order, 16, replicates=64)
    references = two_time(GAMMA, ALPHA, NOISE, order, 3, 16)
    t_limit = float(stats.t.isf(FALSE_ALARM / 2, 63))
    for values, expected in zip(computed, references, strict=True):
        error = values.std(axis=0, ddof=1)[1:] / 8
        gap = np.abs(values.mean(axis=0) - expected)[1:]
        assert np.all(gap <= t_limit * error + expected[1:] / 256), (gap, error)
        assert np.all(error < 0.02 * expected[1:])


@functools.cache
def dmft_result(order):
    """DMFT of the linear unit over three epochs, in batches of two: only lr/batch matters."""
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(2 * GAMMA, ALPHA, 2, order)
    return sgd.solve_dmft(
        problem, algorithm, start, alpha=ALPHA * np.arange(4), progress=False, **SAMPLING
    )


@pytest.mark.slow
@pytest.mark.runs_long
def test_dmft_is_extrapolated_from_three_numbers_of_cells():
    """The result is 2 x(m) - x(m/2), and Richardson's next order estimates its error."""
    result = dmft_result("reshuffle")
    (coarse, _), (half, _), (fine, residual) = (
        solve_replicates("reshuffle", cells) for cells in (4, 8, 16)
    )
    np.testing.assert_allclose(distance(result)[0], (2 * fine - half).mean(axis=0), rtol=1e-6)
    # Standard errors contain the change by the next order, and the scatter of the replicates.
    lower_bound = np.hypot(
        (2 * fine - half).std(axis=0, ddof=1) / 4,
        np.abs((2 * fine - 3 * half + coarse).mean(axis=0)) / 3,
    )
    error = 2 * result["risk_standard_error"].values[0]
    assert np.all(error >= lower_bound * (1 - 1e-6))
    gap = np.abs(distance(result)[0] - solve_two_time("reshuffle")[0])
    assert np.all(gap <= T_LIMIT * error + 1e-9)
    np.testing.assert_allclose(result.epoch, [0, 1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(result.t, GAMMA * result.alpha, rtol=1e-12)
    assert "step" not in result.coords
    assert 0 < result.attrs["error_cells"] < 0.1
    assert (result.attrs["cells"], result.attrs["rank"]) == (16, 48)
    # The data set is fitted better than new samples.
    assert residual.mean(axis=0)[-1] < distance(result)[0, -1] + NOISE


@pytest.mark.slow
@pytest.mark.runs_long
def test_the_first_epoch_is_one_pass():
    """In the first epoch "reshuffle" and "fixed" use the same samples in the same order.

    The distance U = |w - w*|^2 then solves the one-pass ODE,

        dU/dalpha = -(2 gamma - gamma^2) U + gamma^2 noise = -0.96 U + 0.16.
    """
    reshuffle, fixed = dmft_result("reshuffle"), dmft_result("fixed")
    np.testing.assert_allclose(reshuffle["Q"][:, 1], fixed["Q"][:, 1], rtol=1e-10)
    assert not np.allclose(reshuffle["Q"][:, 2], fixed["Q"][:, 2], rtol=1e-3)
    stationary = GAMMA**2 * NOISE / (2 * GAMMA - GAMMA**2)
    exact = stationary + (1 - stationary) * np.exp(-(2 * GAMMA - GAMMA**2) * ALPHA)
    error = 2 * float(reshuffle["risk_standard_error"][0, 1])
    assert abs(distance(reshuffle)[0, 1] - exact) <= T_LIMIT * error
    assert solve_two_time("reshuffle")[0][1] == pytest.approx(exact, abs=5e-4)


@pytest.mark.slow
@pytest.mark.runs_long
def test_a_saved_result_restores_the_call(tmp_path):
    """A file contains the problem, the algorithm, the save points and the number of cells."""
    result = dmft_result("reshuffle")
    (plan,) = problem_files.plans(sgd.save(result, tmp_path / "epochs.nc"))
    assert plan.algorithm == sgd.EpochSGD(2 * GAMMA, ALPHA, 2) == sgd.algorithm_of(result)
    assert plan.problem == linear_unit()[0]
    assert {name: plan.calls["dmft"][name] for name in ("cells", "paths", "replicates")} == {
        "cells": 16,
        "paths": 8192,
        "replicates": 16,
    }
    np.testing.assert_allclose(plan.save_points["times"], result.t)


def test_a_second_visit_sees_the_first():
    """Gradients of a linear unit over k visits of a sample sum to h (1 - (1 - gamma)^k)/gamma.

    Each visit multiplies the field of its sample by 1 - gamma. Here gamma = lr own = 0.3.
    """
    problem, _ = linear_unit()
    visits = np.array([0.0, 1.0, 2.0, 3.0])
    hyperparameters = {"lr": 0.5, "own": np.float64(0.6)}
    setup = Setup(problem.structure, selects=True, thermal=False)
    step = StepParameters(problem.parameters, hyperparameters, np.ones(1), 0.0)
    with jax.enable_x64(True):
        fields = np.array([[1.0], [2.0], [-3.0], [4.0]])
        h, _ = add_repeated_visits(
            setup, step, visits, lambda fields: (fields, fields), fields, (fields, fields)
        )
    # A sample without visits has the value of one visit, because its weight is 0.
    expected = fields * ((1 - 0.7 ** np.maximum(visits, 1)) / 0.3)[:, None]
    np.testing.assert_allclose(h, expected, rtol=1e-12)


@pytest.mark.slow
def test_worth_of_repeats():
    """The worth agrees with that from the two-time equations and the one-pass ODE.

    The ODE reaches the distance U = |w - w*|^2, with its stationary value U_s, at

        alpha(U) = log((1 - U_s)/(U - U_s))/(2 gamma - gamma^2).
    """
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(2 * GAMMA, ALPHA, 2)
    result = sgd.worth_of_repeats(problem, algorithm, start, epochs=3, progress=False, **SAMPLING)
    rate = 2 * GAMMA - GAMMA**2
    stationary = GAMMA**2 * NOISE / rate
    distances = solve_two_time("reshuffle")[0]
    expected = np.diff(np.log((1 - stationary) / (distances - stationary)) / rate) / ALPHA
    np.testing.assert_allclose(expected, [1.0, 0.29, -0.02], atol=0.01)
    error = result["worth_standard_error"].values[0]
    assert np.all(np.abs(result["worth"].values[0] - expected) <= T_LIMIT * error)
    assert np.all(error < 0.2)
    np.testing.assert_array_equal(result.epoch, [1, 2, 3])
    np.testing.assert_allclose(
        result["risk"][0], dmft_result("reshuffle")["risk"][0, 1:], rtol=1e-9
    )


def test_alpha_at_risk_inverts_the_curve():
    """The inverse of exp(-alpha) on a grid, and NaN for risks that the curve does not reach."""
    alpha = np.linspace(0, 5, 301)
    curve = np.exp(-alpha)
    fresh, slope = alpha_at_risk(alpha, curve, np.array([1.0, 0.5, 0.1, 1e-4, 2.0]))
    np.testing.assert_allclose(fresh[:3], [0, np.log(2), np.log(10)], atol=1e-6)
    # The slope is -dalpha/drisk = 1/risk.
    np.testing.assert_allclose(slope[1], 2.0, rtol=1e-3)
    assert np.isnan(fresh[3:]).all()


def test_number_of_cells_of_an_epoch():
    """A cell is at most 0.04 long in t; there are at least 16, and always a multiple of 4."""
    assert sgd.EpochSGD(0.03, 3.0).cells() == 16
    assert sgd.EpochSGD(1.5, 3.0).cells() == 116
    assert sgd.EpochSGD(3.0, 3.0, 2).cells() == 116
    assert [sgd.EpochSGD(1.5, 3.0).cells(least) for least in (4, 18, 20)] == [4, 20, 20]


PROBLEM, START = linear_unit()
EPOCHS = sgd.EpochSGD(0.8, 2.0)
INVALID_CALLS = {
    "order = 'random'.*reshuffle": lambda: sgd.EpochSGD(order="random"),
    "batch = 0": lambda: sgd.EpochSGD(batch=0),
    "lr = .*Use a number": lambda: sgd.worth_of_repeats(
        PROBLEM, EPOCHS.replace(lr=lambda alpha: 0.1), START
    ),
    "method = 'exact'.*direct": lambda: sgd.exit_time(
        PROBLEM, EPOCHS, START, method="exact", dimension=50
    ),
    "algorithm = .*Use sgd.GradientDescent": lambda: sgd.exit_time(
        PROBLEM, sgd.OnePassSGD(0.1), START, method="dmft"
    ),
    "dimension = 50.*Omit dimension": lambda: sgd.exit_time(
        PROBLEM, EPOCHS, START, method="dmft", dimension=50
    ),
    "cells = 0: give a whole number, 1 or more": lambda: sgd.solve_dmft(
        PROBLEM, EPOCHS, START, alpha=[2.0], cells=0
    ),
    "cells = 16.*only used with sgd.EpochSGD": lambda: sgd.solve_dmft(
        PROBLEM, sgd.GradientDescent(), START, times=[1.0], cells=16
    ),
    "steps = .*infinitely many": lambda: sgd.solve_dmft(PROBLEM, EPOCHS, START, steps=[1]),
    "batch = 50.*there are only 40 samples": lambda: sgd.simulate(
        PROBLEM, EPOCHS.replace(batch=50), START, alpha=[2.0], dimension=20
    ),
    "lr = .*smaller lr": lambda: sgd.solve_dmft(
        PROBLEM, sgd.EpochSGD(1e300, 1e10), START, alpha=[2.0]
    ),
    "head_rate = .*Use a number": lambda: sgd.worth_of_repeats(
        PROBLEM, EPOCHS.replace(head_rate=lambda t: 1.0), START
    ),
    "problem = .*Use constant parameters": lambda: sgd.worth_of_repeats(
        PROBLEM.replace(noise=lambda t: 0.1), EPOCHS, START
    ),
    "algorithm = .*sgd.EpochSGD": lambda: sgd.worth_of_repeats(
        PROBLEM, sgd.GradientDescent(), START
    ),
    "algorithm = .*sgd.compare": lambda: sgd.certify(PROBLEM, EPOCHS, START),
    "algorithm = .*sgd.solve_dmft": lambda: sgd.solve_ode(PROBLEM, EPOCHS, START, times=[1.0]),
}


@pytest.mark.parametrize("message", INVALID_CALLS)
def test_bad_input(message, monkeypatch):
    stop_before_work(monkeypatch)
    with pytest.raises(ValueError, match=message):
        INVALID_CALLS[message]()


def test_valid_calls_reach_the_first_computation(monkeypatch):
    stop_before_work(monkeypatch)
    for call in (
        lambda: sgd.simulate(PROBLEM, EPOCHS, START, alpha=[2.0], dimension=20),
        lambda: sgd.simulate(
            PROBLEM,
            EPOCHS,
            START,
            steps=[3],
            dimension=20,
            method="direct",
            dtype="float32",
            shared_data=True,
        ),
        lambda: sgd.worth_of_repeats(PROBLEM, EPOCHS, START, epochs=2, cells=20),
    ):
        with pytest.raises(Work):
            call()


# Reference values of nonlinear units after 1, 2, 4 and 6 epochs (erf) and 1, 2, 5 and 10 epochs
# (phase retrieval), by order and variable: the values and the errors of their last digits. Cells
# add a relative error of at most CELLS.
ERF = {
    "reshuffle": {
        "M": ([0.883, 0.960, 1.024, 1.055], [0.002] * 4),
        "Q": ([0.972, 1.034, 1.146, 1.214], [0.003, 0.004, 0.005, 0.005]),
        "train_risk": ([0.0360, 0.0240, 0.0209, 0.0204], [2e-4, 2e-4, 1e-4, 1e-4]),
    },
    "replacement": {"M": ([0.807, 0.919, 0.998, 1.032], [0.002] * 4)},
}
RETRIEVAL = {
    "reshuffle": {
        "M": ([0.612, 0.682, 0.799, 0.890], [0.001, 0.002, 0.003, 0.002]),
        "train_risk": ([0.731, 0.492, 0.226, 0.095], [0.005, 0.005, 0.004, 0.002]),
    },
    "replacement": {"M": ([0.595, 0.662, 0.782, 0.878], [0.002] * 4)},
}
CELLS = 0.003


def assert_reference_values(result, references):
    """Assert that a result of one run agrees with reference values within both errors."""
    for name, (expected, expected_errors) in references.items():
        values = result[name].values.reshape(-1)
        error = result[name + "_standard_error"].values.reshape(-1)
        tolerance = T_LIMIT * np.hypot(error, expected_errors) + CELLS * np.abs(expected)
        assert np.all(np.abs(values - expected) <= tolerance), (name, values, expected, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_table_by_dmft(order):
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        alpha=ALPHA * np.array([1, 2, 3, 5]),
        cells=32,
        paths=16 * 2048,
        replicates=16,
    )
    error = 2 * result["risk_standard_error"].values[0]
    assert np.all(np.abs(distance(result)[0] - TABLE[NOISE, order]) <= T_LIMIT * error), error
    assert np.all(error < 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("order", ERF)
def test_reference_values_of_an_erf_unit(order):
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
    start = sgd.start(problem, M=[[0.3]], Q=[[0.8]])
    algorithm = sgd.EpochSGD(1.5, 3.0, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        alpha=3.0 * np.array([1, 2, 4, 6]),
        cells=48,
        paths=16 * 2048,
        replicates=16,
    )
    assert_reference_values(result, ERF[order])
    assert float(result["M_standard_error"].max()) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("order", RETRIEVAL)
def test_reference_values_of_phase_retrieval(order):
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    algorithm = sgd.EpochSGD(0.03, 3.0, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        alpha=3.0 * np.array([1, 2, 5, 10]),
        paths=16 * 2048,
        replicates=16,
    )
    assert_reference_values(result, RETRIEVAL[order])
    assert float(result["M_standard_error"].max()) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_two_units_with_a_head_in_runs_and_dmft(order):
    """Overlaps, head and risks of runs and of DMFT agree, over three epochs in batches of four.

    The first epoch is also compared with the one-pass ODE.
    """
    problem = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="erf", noise=0.05, head="trained"
    )
    start = sgd.start(problem, M=[[0.3, 0.1], [-0.1, 0.2]], Q=np.eye(2), a=[1.0, 0.8])
    algorithm = sgd.EpochSGD(4.0, 2.0, 4, order, head_rate=0.5)
    alpha, d = 2.0 * np.arange(4), 400
    theory = sgd.solve_dmft(
        problem, algorithm, start, alpha=alpha, paths=16 * 1024, replicates=16, cells=40
    )
    runs = sgd.simulate(problem, algorithm, start, alpha=alpha, dimension=d, runs=64, seed=4)
    for name in ("M", "Q", "a", "train_risk", "risk"):
        values = runs[name].values
        error = np.hypot(
            values.std(axis=0, ddof=1) / np.sqrt(len(values)),
            theory[name + "_standard_error"].values[0],
        )
        gap = np.abs(values.mean(axis=0) - theory[name].values[0])
        assert np.all(gap <= T_LIMIT * error + 1.5 / d), (name, gap, error)
    if order != "replacement":
        one_pass = sgd.solve_ode(problem, sgd.OnePassSGD(4.0, 4, 0.5), start, alpha=alpha[:2])
        for name in ("M", "Q", "a"):
            gap = np.abs(one_pass[name].values[0, 1] - theory[name].values[0, 1])
            error = theory[name + "_standard_error"].values[0, 1]
            assert np.all(gap <= T_LIMIT * error + 1e-3), (name, gap)


def loss_of_two_inputs(fields, signals, head, draws):
    """(sum_i tanh(lambda_i) - sum_i s_i - 0.3 noise)^2/2 over the two inputs of a sample."""
    return 0.5 * (jnp.sum(jnp.tanh(fields)) - jnp.sum(signals) - 0.3 * draws["noise"]) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reshuffle", "replacement"])
def test_correlated_tokens_and_eigenvalues(order):
    """Runs and DMFT agree for samples of two correlated inputs with two eigenvalues.

    The correlation is 0.5, the eigenvalues are 1.6 and 0.8, and both methods use float32.
    """
    problem = sgd.Problem(
        loss_of_two_inputs,
        width=1,
        signals=1,
        covariance=[(1.6, 0.5), (0.8, 0.5)],
        tokens=2,
        draws={"noise": "normal"},
        token_correlation=[[1.0, 0.5], [0.5, 1.0]],
    )
    start = sgd.start(problem, M=[[[0.1]], [[0.1]]], Q=[[[0.3]], [[0.2]]])
    algorithm, alpha, d = sgd.EpochSGD(0.3, 2.0, order=order), [2.0, 4.0], 200
    theory = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        alpha=alpha,
        cells=16,
        paths=16 * 1024,
        replicates=16,
        method=sgd.DMFT(dtype="float32"),
    )
    runs = sgd.simulate(
        problem, algorithm, start, alpha=alpha, dimension=d, runs=64, seed=1, dtype="float32"
    )
    for name in ("M", "Q", "train_risk", "risk"):
        values, expected = runs[name].values, theory[name].values[0]
        error = np.hypot(values.std(axis=0, ddof=1) / 8, theory[name + "_standard_error"].values[0])
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap <= T_LIMIT * error + 2 / d * np.abs(expected)), (name, gap, error)
        assert np.all(error < 0.03 * np.abs(expected).max()), (name, error, expected)


@pytest.mark.slow
def test_responses_over_epochs():
    """The response R of the linear unit between the ends of epochs, with replacement.

    By the two-time equations it is 0.3233 after one epoch and 0.1682 after two.
    """
    problem, start = linear_unit()
    result = sgd.solve_dmft(
        problem,
        sgd.EpochSGD(GAMMA, ALPHA, order="replacement"),
        start,
        alpha=ALPHA * np.arange(3),
        two_time=True,
        **SAMPLING,
    )
    R, error = result["R"].values[0, ..., 0, 0], result["R_standard_error"].values[0, ..., 0, 0]
    expected = np.array([[1.0, 0.0, 0.0], [0.3233, 1.0, 0.0], [0.1682, 0.3233, 1.0]])
    # 0.01 allows for the error that the extrapolation from two numbers of cells leaves.
    assert np.all(np.abs(R - expected) <= T_LIMIT * error + 0.01), (R, error)


def halving_schedule(alpha):
    """The learning rate GAMMA in the first epoch, and GAMMA/2 later."""
    return jnp.where(alpha < ALPHA, GAMMA, GAMMA / 2)


def test_a_learning_rate_may_depend_on_alpha():
    """Direct runs use the rate of each epoch, and t is the integral of the rate over alpha."""
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(halving_schedule, ALPHA, order="fixed")
    constant = sgd.EpochSGD(GAMMA, ALPHA, order="fixed")
    options = {"dimension": 20, "runs": 3, "seed": 1, "alpha": [0.0, ALPHA, 2 * ALPHA]}
    result = sgd.simulate(problem, algorithm, start, **options)
    np.testing.assert_allclose(result.t, [0.0, GAMMA * ALPHA, 1.5 * GAMMA * ALPHA], rtol=1e-12)
    np.testing.assert_allclose(result.epoch, [0, 1, 2], rtol=1e-12)
    constant_result = sgd.simulate(problem, constant, start, **options)
    np.testing.assert_allclose(result["Q"][:, 1], constant_result["Q"][:, 1], rtol=1e-10)
    assert not np.allclose(result["Q"][:, 2], constant_result["Q"][:, 2], rtol=1e-3)


@pytest.mark.slow
def test_a_schedule_in_dmft_and_runs():
    problem, start = linear_unit()
    algorithm = sgd.EpochSGD(halving_schedule, ALPHA)
    alpha = ALPHA * np.arange(4)
    theory = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        alpha=alpha,
        paths=REPLICATES * 512,
        replicates=REPLICATES,
        cells=32,
    )
    runs = sgd.simulate(problem, algorithm, start, alpha=alpha, dimension=400, runs=40, seed=2)
    gap = np.abs(distance(theory)[0] - distance(runs).mean(axis=0))[1:]
    error = np.hypot(
        2 * theory["risk_standard_error"].values[0],
        distance(runs).std(axis=0, ddof=1) / np.sqrt(40),
    )[1:]
    assert np.all(gap <= T_LIMIT * error + 2e-3), (gap, error)
    # At half the rate, the second epoch is slower and its noise is smaller.
    constant_rate = dmft_result("reshuffle")
    assert abs(distance(theory)[0, 2] - distance(constant_rate)[0, 2]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["epochs", pytest.param("GD", marks=pytest.mark.slow)])
def test_exit_times_on_a_data_set(kind):
    """First passages of direct runs are those of their trajectories, saved at every step.

    The mean exit time of DMFT agrees with that of the runs.
    """
    problem, start = linear_unit()
    if kind == "epochs":
        algorithm = sgd.EpochSGD(GAMMA, ALPHA)
        options = {"dimension": 20, "runs": 6, "seed": 3, "method": "direct"}
    else:
        algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=ALPHA)
        options = {"dimension": 400, "runs": 20, "seed": 3, "method": "direct"}
    exits = sgd.exit_time(problem, algorithm, start, threshold=0.5, max_time=2.0, **options)
    trajectories = sgd.simulate(problem, algorithm, start, steps=np.arange(0, 41), **options)
    risk = trajectories["excess_risk"].values
    first = np.argmax(risk < 0.5 * risk[:, :1], axis=1)
    np.testing.assert_allclose(exits.times, trajectories.t.values[first], rtol=1e-9)
    np.testing.assert_allclose(exits.alpha, trajectories.alpha.values[first], rtol=1e-9)
    if kind == "GD":
        theory = sgd.exit_time(
            problem, algorithm, start, threshold=0.5, max_time=2.0, method="dmft"
        )
        # Exit times of runs are multiples of a step, 0.05 in t.
        tolerance = 5 * np.hypot(theory.standard_error, exits.standard_error) + 0.05
        assert abs(theory.mean - exits.mean) < tolerance
        assert 0 < theory.standard_error < 0.02


@pytest.mark.slow
def test_early_stopping_of_gradient_flow():
    """Gradient flow of linear regression has its least |w - w*|^2 = 0.1822 at t = 4.0.

    There are two samples per dimension, and the label noise has the variance 0.25.
    """
    problem, start = linear_unit()
    algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=ALPHA)
    path = sgd.solve_dmft(
        problem, algorithm, start, times=np.arange(1.0, 8.5, 0.5), paths=8192, progress=False
    )
    minimum = sgd.early_stopping(path)
    assert abs(2 * (minimum.risk[0] - NOISE / 2) - 0.1822) < 0.004
    assert abs(minimum.t[0] - 4.0) < 0.4
    assert minimum.earliest[0] <= minimum.t[0] <= minimum.latest[0]
    assert not minimum.at_end[0]
    with pytest.warns(UserWarning, match="least at the last save point, t = 3"):
        assert sgd.early_stopping(path.isel(time=slice(0, 5))).at_end[0]


@pytest.mark.slow
def test_save_points_that_coincide_are_reported_once():
    with pytest.warns(UserWarning, match="cells") as warnings:
        path = sgd.solve_dmft(
            PROBLEM, EPOCHS, START, alpha=[0.1, 0.2, 2.0], paths=512, replicates=8, cells=16
        )
    assert path.alpha.values.tolist() == [0.0, 0.0, 2.0]
    (warning,) = warnings
    text = "multiples of 0.25 epochs (four cells), so that some of the 3 save points coincide"
    assert text in str(warning.message)
    assert warning.filename == __file__


STEEP_COVARIANCE = [(8.0, 0.1), (0.2, 0.9)]


def steep_case(activation="linear"):
    """Problem, algorithm and start; the inputs have a large eigenvalue, which needs many cells."""
    problem = sgd.TeacherStudent(
        width=1, activation=activation, noise=0.1, covariance=STEEP_COVARIANCE
    )
    return problem, sgd.EpochSGD(0.8, 4.0), sgd.start(problem, M=[[0.0]], Q=[[0.0]])


@pytest.mark.parametrize("solver", [sgd.solve_dmft, sgd.worth_of_repeats])
def test_unstable_cells_and_too_few_paths_raise_before_work(solver, monkeypatch):
    """Without this check the solvers would return wrong values without a warning.

    Risks would be 9e18 or -2e20, or their standard errors 1e8 times as large as their values.
    """
    stop_before_work(monkeypatch)
    problem, algorithm, start = steep_case()
    if solver is sgd.worth_of_repeats:
        save_points = {"epochs": 3}
    else:
        save_points = {"alpha": [0.0, 4.0, 8.0, 12.0]}
    for cells in (4, 16, 64, 80):
        message = (
            f"cells = {cells}: .*{cells // 4} per epoch.* unstable .*"
            "Use cells = 84 or more, a smaller lr, or sgd.simulate"
        )
        with pytest.raises(ValueError, match=message):
            solver(problem, algorithm, start, paths=65536, cells=cells, **save_points)
    message = (
        "paths = 4096: .*at most 230 directions, and 696 cells need 698. "
        "Use paths = 16384 or more, .*sgd.simulate"
    )
    with pytest.raises(ValueError, match=message):
        solver(problem, algorithm, start, paths=4096, **save_points)
    with pytest.raises(Work):
        solver(problem, algorithm, start, paths=16384, **save_points)


def test_unstable_cells_of_a_power_law_raise_before_work(monkeypatch):
    stop_before_work(monkeypatch)
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.01, covariance=sgd.power_law(1.2, 400, target=0.5)
    )
    start = sgd.random_start(problem, dimension=400, seed=0)
    trace = float(problem.parameters["eigenvalues"] @ problem.parameters["fractions"])
    algorithm = sgd.EpochSGD(0.5 / trace, 4.0)
    with pytest.raises(ValueError, match=r"cells = 16: .*unstable"):
        sgd.worth_of_repeats(problem, algorithm, start, paths=2048, cells=16)


def test_the_number_of_cells_depends_on_the_spectrum_and_the_head():
    problem, algorithm, start = steep_case()
    assert number_of_cells(problem, algorithm, start) == 232
    assert number_of_cells(PROBLEM, EPOCHS, START) == 40 == EPOCHS.cells()
    # A step changes the output with the factor |a|^2/p^2: four units with heads of 1 are four times
    # slower. The number of cells then follows from t of a cell.
    four_units = sgd.TeacherStudent(
        width=4, activation="linear", noise=0.1, covariance=STEEP_COVARIANCE
    )
    start = sgd.random_start(four_units, dimension=100, seed=0)
    assert number_of_cells(four_units, sgd.EpochSGD(3.2, 4.0), start) == 320
    # With a quarter of 144 cells a cell has t = 0.089. The product with the largest eigenvalue of
    # the sample covariance, at most 11.04, must not exceed 1.
    erf, algorithm, start = steep_case("erf")
    assert number_of_cells(erf, algorithm, start) == 144
    assert number_of_cells(erf, algorithm, start, 16) == 16


@pytest.mark.slow
def test_levels_of_cells_that_do_not_converge_are_a_divergence():
    """A ReLU unit with far too few cells, for which no criterion of stability is known."""
    problem, algorithm, _ = steep_case("relu")
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    with pytest.warns(
        UserWarning, match="cells = 8: .* do not converge at t = 3.2, .*NaN.* Use more cells"
    ):
        result = sgd.solve_dmft(
            problem, algorithm, start, alpha=[0.0, 4.0, 8.0], cells=8, paths=512, replicates=2
        )
    assert result.diverged_at.values.tolist() == [0.0]
    for name in ("risk", "train_risk", "M", "Q", "risk_standard_error"):
        assert np.isfinite(result[name][0, 0]).all()
        assert np.isnan(result[name][0, 1:]).all()


def test_failed_extrapolations_are_recognised():
    """Five save points: two good ones, and three failures.

    The second risk is tiny with a relatively large error. The failures are a negative risk, an
    error that exceeds the risk, and a divergence of the coarsest level.
    """
    fine = np.array([0.5, 1e-6, 1.0, 2.0, 0.1])
    half = np.array([0.5, 1e-6, 3.0, 2.0, 0.1])
    coarse = np.array([0.5, 5e-6, 5.0, 9.0, np.inf])
    levels = [
        {name: level[None, None] for name in ("risk", "train_risk")}
        for level in (coarse, half, fine)
    ]
    means = {name: (2 * fine - half)[None] for name in ("risk", "train_risk")}
    errors = {name: np.abs(2 * fine - 3 * half + coarse)[None] / 3 for name in means}

    def has_failed(*indices):
        """Failures of a trajectory that consists of these save points."""
        chosen = list(indices)
        chosen_levels = [{name: level[name][:, :, chosen] for name in level} for level in levels]
        chosen_means, chosen_errors = (
            {name: states[name][:, chosen] for name in states} for states in (means, errors)
        )
        initial_risk = np.array([0.5])
        failures = failed_save_points(chosen_levels, chosen_means, chosen_errors, initial_risk)
        return failures[0].tolist()

    assert has_failed(0, 1) == [False, False]
    assert has_failed(2) == has_failed(3) == has_failed(4) == [True]
    # All save points after a failure have failed too.
    assert has_failed(0, 2, 0) == [False, True, True]


def test_large_standard_errors_have_a_warning():
    means = {"risk": np.array([[1.0, 0.1]]), "train_risk": np.ones((1, 2))}
    errors = {"risk": np.array([[0.1, 0.2]]), "train_risk": np.array([[0.01, 0.07]])}
    warnings = large_error_warnings(means, errors, errors, is_thermal=False)
    assert warnings == (
        "The standard error of risk exceeds its value at 1 of 2 save points. "
        "Use more cells, or sgd.simulate.",
    )
    assert "Use more paths" in large_error_warnings(means, errors, {}, is_thermal=True)[0]
    errors["risk"] = errors["risk"] / 10
    assert large_error_warnings(means, errors, {}, is_thermal=False) == ()
    warning = large_error_warnings(means, errors, {}, is_thermal=True)[0]
    assert "up to 7%: that of Langevin dynamics grows" in warning


@pytest.mark.slow
def test_a_large_eigenvalue_against_runs():
    """DMFT with the default number of cells agrees with runs, and its error is below 10%."""
    problem, algorithm, start = steep_case()
    alpha = [4.0, 8.0]
    theory = sgd.solve_dmft(problem, algorithm, start, alpha=alpha, paths=16384, progress=False)
    runs = sgd.simulate(
        problem, algorithm, start, alpha=alpha, dimension=400, runs=64, seed=0, progress=False
    )
    risk, error = theory.risk.values[0], theory.risk_standard_error.values[0]
    run_error = runs.risk.std("run").values / 8
    assert np.all(error < 0.1 * risk)
    gap = np.abs(runs.risk.mean("run").values - risk)
    assert np.all(gap <= Z * np.hypot(error, run_error) + 0.01 * risk)
