"""Epochs over a fixed data set: direct runs step by step, DMFT against the two-time equations of a linear network and against runs."""

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
from sgdynamics.solvers.dmft_cells import failed_save_points, number_of_cells
from sgdynamics.solvers.dmft_result import large_error_warnings
from tests.conftest import FALSE_ALARM, Z
from tests.contracts.before_work import Work, stop_before_work

ORDERS = ("reshuffle", "fixed", "replacement")
GAMMA, ALPHA, NOISE = 0.8, 2.0, 0.25
REPLICATES = 16
T_LIMIT = float(stats.t.isf(FALSE_ALARM / 2, REPLICATES - 1))
# |w - w*|^2 after epochs 1, 2, 3, 5 at these numbers, noise 0 and .25, from w = 0
TABLE = {
    (0.0, "reshuffle"): [0.1466, 0.0503, 0.0224, 0.0060],
    (0.0, "fixed"): [0.1466, 0.0466, 0.0196, 0.0047],
    (0.0, "replacement"): [0.2507, 0.1016, 0.0501, 0.0160],
    (NOISE, "reshuffle"): [0.2889, 0.2370, 0.2397, 0.2582],
    (NOISE, "fixed"): [0.2889, 0.2478, 0.2570, 0.2812],
    (NOISE, "replacement"): [0.3977, 0.3019, 0.2830, 0.2886],
}


def linear(noise=NOISE):
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    return problem, sgd.start(problem, M=[[0.0]], Q=[[1e-12]])


def distance(result):
    """|w - w*|^2."""
    return result["Q"].values[..., 0, 0] - 2 * result["M"].values[..., 0, 0] + 1


@functools.cache
def limit(order, noise=NOISE, alpha=ALPHA, epochs=3, gamma=GAMMA):
    """|w - w*|^2 and the mean squared residual of the linear network, by its equations in two times, without the error of cells."""
    return np.stack(linear_epochs(gamma, alpha, noise, epochs, order)[:2])


@pytest.mark.parametrize(("noise", "order"), TABLE)
def test_the_two_time_equations_give_the_table(noise, order):
    found = limit(order, noise, epochs=5)[0][[1, 2, 3, 5]]
    np.testing.assert_allclose(found, TABLE[noise, order], atol=5e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_visits_of_cells(order):
    """Every number of cells cuts one sequence; an epoch has as many visits as samples, each sample once unless drawn with replacement."""
    generator = np.random.default_rng(0)
    drawn = np.stack([sequences(order, 256, generator) for _ in range(2)])[None]

    def visits(cells, cell):
        with jax.enable_x64(True):
            return np.asarray(
                Visits(drawn, np.int64(3), np.int64(cells)).at(
                    np.int64(4 * cells + cell), order == "replacement"
                )[0]
            )

    fine = np.stack([visits(40, cell) for cell in range(40)])
    chosen = (
        np.flatnonzero((drawn[0, 1] >= 6) & (drawn[0, 1] < 12))
        if order != "replacement"
        else np.unique(drawn[0, 1, 6:12])
    )
    np.testing.assert_array_equal(np.flatnonzero(fine[1]), chosen)
    assert np.all(fine.sum(axis=0) == 1) == (order != "replacement")
    assert fine.sum() == 256
    assert np.ptp(fine.sum(axis=1)) <= 1
    np.testing.assert_array_equal(
        np.stack([visits(20, cell) for cell in range(20)]), fine[::2] + fine[1::2]
    )


@pytest.mark.parametrize("order", ["reshuffle", "fixed"])
def test_direct_runs_step_by_step(order):
    """The weights are those of a plain loop over the data set in this order, also where batches run over the end of an epoch."""
    problem = sgd.TeacherStudent(
        width=2, activation="tanh", head="trained", noise=0.1, weight_decay=0.05
    )
    begin = sgd.start(problem, M=[[0.3], [-0.2]], Q=np.eye(2))
    d, batch, lr, rate = 10, 3, 1.5, 0.4
    algorithm = sgd.EpochSGD(lr, 2.0, batch, order, head_rate=rate)
    dynamics = algorithm.in_steps(batch / (2.0 * d))
    simulator = DirectEpochs(problem, dynamics, begin, d, problem.block_dimensions(d), seed=5)
    n, key = 20, run_keys(5, np.array([0]))
    with jax.enable_x64(True):
        state = simulator.initial(np.array([0]))
    W, a = (np.asarray(part[0], dtype=float) for part in (state.rows, state.head))
    X, signals, noise = (np.asarray(part[0], dtype=float) for part in simulator.data)
    orders = [np.arange(n)] * 3
    if order == "reshuffle":
        with jax.enable_x64(True):
            later, _, _ = simulator.advance(
                state, key, 0, 8
            )  # of 3 samples each: step 7 begins in the second epoch
        orders = [*np.asarray(state.selected[0]), np.asarray(later.selected[0, 1])]
        np.testing.assert_array_equal(orders[1], later.selected[0, 0])
        assert all(sorted(one) == list(range(n)) for one in orders)
        assert np.mean(orders[1] == orders[2]) < 0.5
    y = np.tanh(signals[:, 0]) + np.sqrt(0.1) * noise
    for step in range(18):
        drawn = [orders[place // n][place % n] for place in range(batch * step, batch * (step + 1))]
        x, f = X[drawn], np.tanh(X[drawn] @ W.T)
        gap = (f @ a / 2 - y[drawn])[:, None] / (2 * batch)
        pull, pull_head = (gap * a * (1 - f**2)).T @ x + 0.05 * W, (gap * f).sum(axis=0) + 0.05 * a
        W, a = W - lr / d * pull, a - rate * lr / d * pull_head
    with jax.enable_x64(True):
        state, good, _ = simulator.advance(state, key, 0, 18)
    np.testing.assert_allclose(state.rows[0], W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.head[0], a, rtol=1e-10)
    assert int(good[0]) == 18


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.runs_long
def test_direct_runs_have_the_means_of_the_two_time_equations(order):
    problem, begin = linear()
    d, runs = 150, 48
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order)
    result = sgd.simulate(
        problem, algorithm, begin, alpha=ALPHA * np.arange(4), dimension=d, runs=runs, seed=3
    )
    U, train = limit(order)
    np.testing.assert_allclose(result.epoch, [0, 1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(result.t, result.step * GAMMA / d, rtol=1e-12)
    close(distance(result), U, 1.5 / d)
    if order != "fixed":
        close(2 * result["train_risk"].values, train, 1.5 / d)
    assert result.attrs["method"] == "simulate-direct"
    assert sgd.algorithm_of(result) == algorithm


def close(values, expected, slack):
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) <= Z * error + slack), (
        values.mean(axis=0),
        expected,
        error,
    )


@float64
def paths(order, cells, seed=0, replicates=REPLICATES, each=512):
    """|w - w*|^2 and twice the train risk (replicate, epoch) of sets of paths, with one number of cells."""
    problem, begin = linear()
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order).in_steps(1 / cells)
    sweep = Sweep(problem, algorithm, Sampling(each, replicates, seed), 1e-5, np.dtype("float64"))
    sweep.reserve_memory(48, None, None)
    found = sweep.solve(
        begin, cells * np.arange(4), False, SimpleNamespace(advance=lambda made: None)
    )
    return 1 - 2 * found["M"][..., 0, 0, 0] + found["Q"][..., 0, 0, 0], 2 * found["train_risk"]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reshuffle", "replacement"])
@pytest.mark.runs_long
def test_paths_agree_with_the_two_time_equations(order):
    """With 16 cells an epoch, in both; with replacement they differ by samples that are visited twice in one cell, at most 1/cells^2
    of them."""
    for values, expected in zip(
        paths(order, 16, replicates=64), two_time(GAMMA, ALPHA, NOISE, order, 3, 16), strict=True
    ):
        error = values.std(axis=0, ddof=1)[1:] / 8
        gap = np.abs(values.mean(axis=0) - expected)[1:]
        assert np.all(
            gap <= float(stats.t.isf(FALSE_ALARM / 2, 63)) * error + expected[1:] / 256
        ), (gap, error)
        assert np.all(error < 0.02 * expected[1:])


@functools.cache
def solved(order):
    algorithm = sgd.EpochSGD(2 * GAMMA, ALPHA, 2, order)  # only lr/batch matters
    numbers = {"paths": REPLICATES * 512, "replicates": REPLICATES, "cells": 16, "progress": False}
    return sgd.solve_dmft(
        *linear()[:1], algorithm, linear()[1], alpha=ALPHA * np.arange(4), **numbers
    )


@pytest.mark.slow
@pytest.mark.runs_long
def test_dmft_is_extrapolated_from_three_numbers_of_cells():
    result = solved("reshuffle")
    (few, _), (some, _), (many, train) = (paths("reshuffle", cells) for cells in (4, 8, 16))
    np.testing.assert_allclose(distance(result)[0], (2 * many - some).mean(axis=0), rtol=1e-6)
    # standard errors have what the next order would change, and the spread over sets
    least = np.hypot(
        (2 * many - some).std(axis=0, ddof=1) / 4,
        np.abs((2 * many - 3 * some + few).mean(axis=0)) / 3,
    )
    assert np.all(2 * result["risk_standard_error"].values[0] >= least * (1 - 1e-6))
    assert np.all(
        np.abs(distance(result)[0] - limit("reshuffle")[0])
        <= T_LIMIT * 2 * result["risk_standard_error"].values[0] + 1e-9
    )
    np.testing.assert_allclose(result.epoch, [0, 1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(result.t, GAMMA * result.alpha, rtol=1e-12)
    assert "step" not in result.coords
    assert 0 < result.attrs["error_cells"] < 0.1
    assert (result.attrs["cells"], result.attrs["rank"]) == (16, 48)
    assert train.mean(axis=0)[-1] < distance(result)[0, -1] + NOISE


@pytest.mark.runs_long
def test_the_first_epoch_is_one_pass():
    """The same paths in the same order for "reshuffle" and "fixed", and the risk of the one-pass ODE: dU/dalpha = -.96 U + .16."""
    one, other = solved("reshuffle"), solved("fixed")
    np.testing.assert_allclose(one["Q"][:, 1], other["Q"][:, 1], rtol=1e-10)
    assert not np.allclose(one["Q"][:, 2], other["Q"][:, 2], rtol=1e-3)
    rest = GAMMA**2 * NOISE / (2 * GAMMA - GAMMA**2)
    exact = rest + (1 - rest) * np.exp(-(2 * GAMMA - GAMMA**2) * ALPHA)
    assert abs(distance(one)[0, 1] - exact) <= 2 * T_LIMIT * float(one["risk_standard_error"][0, 1])
    assert limit("reshuffle")[0][1] == pytest.approx(exact, abs=5e-4)


@pytest.mark.runs_long
def test_a_result_says_how_to_make_it_again(tmp_path):
    """Its problem, algorithm, save points and cells, also through a file."""
    result = solved("reshuffle")
    (made,) = problem_files.plans(sgd.save(result, tmp_path / "epochs.nc"))
    assert made.algorithm == sgd.EpochSGD(2 * GAMMA, ALPHA, 2) == sgd.algorithm_of(result)
    assert made.problem == linear()[0]
    assert {name: made.calls["dmft"][name] for name in ("cells", "paths", "replicates")} == {
        "cells": 16,
        "paths": 8192,
        "replicates": 16,
    }
    np.testing.assert_allclose(made.save_points["times"], result.t)


def test_a_second_visit_sees_the_first():
    """Gradients of a linear network over 0, 1, 2, 3 visits: h (1 - (1 - gamma)^visits)/gamma."""
    problem = linear()[0]
    used = np.array([0.0, 1.0, 2.0, 3.0])
    algorithm = {"lr": 0.5, "own": np.float64(0.6)}
    setup = Setup(problem.structure, selects=True, thermal=False)
    step = StepParameters(problem.parameters, algorithm, np.ones(1), 0.0)
    with jax.enable_x64(True):
        fields = np.array([[1.0], [2.0], [-3.0], [4.0]])
        h, _ = add_repeated_visits(
            setup, step, used, lambda lam: (lam, lam), fields, (fields, fields)
        )
    expected = (
        fields * ((1 - 0.7 ** np.maximum(used, 1)) / 0.3)[:, None]
    )  # where there is none the weight is 0
    np.testing.assert_allclose(h, expected, rtol=1e-12)


def test_worth_of_repeats():
    """Against the two-time equations and the ODE's own solution, alpha(U) = log((1 - rest)/(U - rest))/(2 gamma - gamma^2)."""
    problem, begin = linear()
    algorithm = sgd.EpochSGD(2 * GAMMA, ALPHA, 2)
    numbers = {"paths": REPLICATES * 512, "replicates": REPLICATES, "cells": 16, "progress": False}
    found = sgd.worth_of_repeats(problem, algorithm, begin, epochs=3, **numbers)
    rate = 2 * GAMMA - GAMMA**2
    rest = GAMMA**2 * NOISE / rate
    expected = np.diff(np.log((1 - rest) / (limit("reshuffle")[0] - rest)) / rate) / ALPHA
    np.testing.assert_allclose(expected, [1.0, 0.29, -0.02], atol=0.01)
    error = found["worth_standard_error"].values[0]
    assert np.all(np.abs(found["worth"].values[0] - expected) <= T_LIMIT * error)
    assert np.all(error < 0.2)
    np.testing.assert_array_equal(found.epoch, [1, 2, 3])
    np.testing.assert_allclose(found["risk"][0], solved("reshuffle")["risk"][0, 1:], rtol=1e-9)


def test_fresh_samples_are_found_on_the_curve():
    alpha = np.linspace(0, 5, 301)
    curve = np.exp(-alpha)
    fresh, slope = alpha_at_risk(alpha, curve, np.array([1.0, 0.5, 0.1, 1e-4, 2.0]))
    np.testing.assert_allclose(fresh[:3], [0, np.log(2), np.log(10)], atol=1e-6)
    np.testing.assert_allclose(slope[1], 2.0, rtol=1e-3)  # of alpha in minus the risk
    assert np.isnan(fresh[3:]).all()


def test_cells():
    assert sgd.EpochSGD(0.03, 3.0).cells() == 16
    assert sgd.EpochSGD(1.5, 3.0).cells() == 116
    assert sgd.EpochSGD(3.0, 3.0, 2).cells() == 116
    assert [sgd.EpochSGD(1.5, 3.0).cells(given) for given in (4, 18, 20)] == [4, 20, 20]


PROBLEM, BEGIN = linear()
EPOCHS = sgd.EpochSGD(0.8, 2.0)
REFUSED = {
    "order = 'random'.*reshuffle": lambda: sgd.EpochSGD(order="random"),
    "batch = 0": lambda: sgd.EpochSGD(batch=0),
    "lr = .*Use a number": lambda: sgd.worth_of_repeats(
        PROBLEM, EPOCHS.replace(lr=lambda alpha: 0.1), BEGIN
    ),
    "method = 'exact'.*direct": lambda: sgd.exit_time(
        PROBLEM, EPOCHS, BEGIN, method="exact", dimension=50
    ),
    "algorithm = .*Use sgd.GradientDescent": lambda: sgd.exit_time(
        PROBLEM, sgd.OnePassSGD(0.1), BEGIN, method="dmft"
    ),
    "dimension = 50.*Omit dimension": lambda: sgd.exit_time(
        PROBLEM, EPOCHS, BEGIN, method="dmft", dimension=50
    ),
    "cells = 0: give a whole number, 1 or more": lambda: sgd.solve_dmft(
        PROBLEM, EPOCHS, BEGIN, alpha=[2.0], cells=0
    ),
    "cells = 16.*only used with sgd.EpochSGD": lambda: sgd.solve_dmft(
        PROBLEM, sgd.GradientDescent(), BEGIN, times=[1.0], cells=16
    ),
    "steps = .*infinitely many": lambda: sgd.solve_dmft(PROBLEM, EPOCHS, BEGIN, steps=[1]),
    "batch = 50.*there are only 40 samples": lambda: sgd.simulate(
        PROBLEM, EPOCHS.replace(batch=50), BEGIN, alpha=[2.0], dimension=20
    ),
    "lr = .*smaller lr": lambda: sgd.solve_dmft(
        PROBLEM, sgd.EpochSGD(1e300, 1e10), BEGIN, alpha=[2.0]
    ),
    "head_rate = .*Use a number": lambda: sgd.worth_of_repeats(
        PROBLEM, EPOCHS.replace(head_rate=lambda t: 1.0), BEGIN
    ),
    "problem = .*Use constant parameters": lambda: sgd.worth_of_repeats(
        PROBLEM.replace(noise=lambda t: 0.1), EPOCHS, BEGIN
    ),
    "algorithm = .*sgd.EpochSGD": lambda: sgd.worth_of_repeats(
        PROBLEM, sgd.GradientDescent(), BEGIN
    ),
    "algorithm = .*sgd.compare": lambda: sgd.certify(PROBLEM, EPOCHS, BEGIN),
    "algorithm = .*sgd.solve_dmft": lambda: sgd.solve_ode(PROBLEM, EPOCHS, BEGIN, times=[1.0]),
}


@pytest.mark.parametrize("said", REFUSED)
def test_bad_input(said, monkeypatch):
    stop_before_work(monkeypatch)
    with pytest.raises(ValueError, match=said):
        REFUSED[said]()


def test_what_is_right_goes_on_to_work(monkeypatch):
    stop_before_work(monkeypatch)
    for call in (
        lambda: sgd.simulate(PROBLEM, EPOCHS, BEGIN, alpha=[2.0], dimension=20),
        lambda: sgd.simulate(
            PROBLEM,
            EPOCHS,
            BEGIN,
            steps=[3],
            dimension=20,
            method="direct",
            dtype="float32",
            shared_data=True,
        ),
        lambda: sgd.worth_of_repeats(PROBLEM, EPOCHS, BEGIN, epochs=2, cells=20),
    ):
        with pytest.raises(Work):
            call()


# the reference values of formulas for networks: epochs, M, Q and train risk with the errors of their last digit, cells up to .003
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


def holds(result, expected, limit):
    for name, (values, errors) in expected.items():
        found, error = (
            result[name].values.reshape(-1),
            result[name + "_standard_error"].values.reshape(-1),
        )
        allowed = limit * np.hypot(error, errors) + CELLS * np.abs(values)
        assert np.all(np.abs(found - values) <= allowed), (name, found, values, allowed)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_table_by_dmft(order):
    problem, begin = linear()
    algorithm = sgd.EpochSGD(GAMMA, ALPHA, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        begin,
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
    begin = sgd.start(problem, M=[[0.3]], Q=[[0.8]])
    algorithm = sgd.EpochSGD(1.5, 3.0, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        begin,
        alpha=3.0 * np.array([1, 2, 4, 6]),
        cells=48,
        paths=16 * 2048,
        replicates=16,
    )
    holds(result, ERF[order], T_LIMIT)
    assert float(result["M_standard_error"].max()) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("order", RETRIEVAL)
def test_reference_values_of_phase_retrieval(order):
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    begin = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    algorithm = sgd.EpochSGD(0.03, 3.0, order=order)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        begin,
        alpha=3.0 * np.array([1, 2, 5, 10]),
        paths=16 * 2048,
        replicates=16,
    )
    holds(result, RETRIEVAL[order], T_LIMIT)
    assert float(result["M_standard_error"].max()) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_two_units_with_a_head_directly_and_by_dmft(order):
    """Overlaps, head and train risk of both, over three epochs with batches of four; and the one-pass ODE in the first."""
    problem = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="erf", noise=0.05, head="trained"
    )
    begin = sgd.start(problem, M=[[0.3, 0.1], [-0.1, 0.2]], Q=np.eye(2), a=[1.0, 0.8])
    algorithm = sgd.EpochSGD(4.0, 2.0, 4, order, head_rate=0.5)
    alpha, d = 2.0 * np.arange(4), 400
    theory = sgd.solve_dmft(
        problem, algorithm, begin, alpha=alpha, paths=16 * 1024, replicates=16, cells=40
    )
    runs = sgd.simulate(problem, algorithm, begin, alpha=alpha, dimension=d, runs=64, seed=4)
    for name in ("M", "Q", "a", "train_risk", "risk"):
        values = runs[name].values
        error = np.hypot(
            values.std(axis=0, ddof=1) / np.sqrt(len(values)),
            theory[name + "_standard_error"].values[0],
        )
        gap = np.abs(values.mean(axis=0) - theory[name].values[0])
        assert np.all(gap <= T_LIMIT * error + 1.5 / d), (name, gap, error)
    if order != "replacement":
        one_pass = sgd.solve_ode(problem, sgd.OnePassSGD(4.0, 4, 0.5), begin, alpha=alpha[:2])
        for name in ("M", "Q", "a"):
            gap = np.abs(one_pass[name].values[0, 1] - theory[name].values[0, 1])
            assert np.all(gap <= T_LIMIT * theory[name + "_standard_error"].values[0, 1] + 1e-3), (
                name,
                gap,
            )


def two_inputs(fields, signals, head, draws):
    return 0.5 * (jnp.sum(jnp.tanh(fields)) - jnp.sum(signals) - 0.3 * draws["noise"]) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reshuffle", "replacement"])
def test_correlated_tokens_and_eigenvalues(order):
    """Samples of two inputs with correlation .5, of covariance 1.6 and .8: the same directly and by DMFT, both in float32."""
    data = {
        "tokens": 2,
        "draws": {"noise": "normal"},
        "token_correlation": [[1.0, 0.5], [0.5, 1.0]],
    }
    problem = sgd.Problem(
        two_inputs, width=1, signals=1, covariance=[(1.6, 0.5), (0.8, 0.5)], **data
    )
    begin = sgd.start(problem, M=[[[0.1]], [[0.1]]], Q=[[[0.3]], [[0.2]]])
    algorithm, alpha, d = sgd.EpochSGD(0.3, 2.0, order=order), [2.0, 4.0], 200
    theory = sgd.solve_dmft(
        problem,
        algorithm,
        begin,
        alpha=alpha,
        cells=16,
        paths=16 * 1024,
        replicates=16,
        method=sgd.DMFT(dtype="float32"),
    )
    runs = sgd.simulate(
        problem, algorithm, begin, alpha=alpha, dimension=d, runs=64, seed=1, dtype="float32"
    )
    for name in ("M", "Q", "train_risk", "risk"):
        values, expected = runs[name].values, theory[name].values[0]
        error = np.hypot(values.std(axis=0, ddof=1) / 8, theory[name + "_standard_error"].values[0])
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap <= T_LIMIT * error + 2 / d * np.abs(expected)), (name, gap, error)
        assert np.all(error < 0.03 * np.abs(expected).max()), (name, error, expected)


@pytest.mark.slow
def test_responses_over_epochs():
    """R of the linear network at the ends of epochs, with replacement: .3233 after one and .1682 after two, by the two-time equations."""
    problem, begin = linear()
    numbers = {"paths": REPLICATES * 512, "replicates": REPLICATES, "cells": 16, "two_time": True}
    result = sgd.solve_dmft(
        problem,
        sgd.EpochSGD(GAMMA, ALPHA, order="replacement"),
        begin,
        alpha=ALPHA * np.arange(3),
        **numbers,
    )
    R, error = result["R"].values[0, ..., 0, 0], result["R_standard_error"].values[0, ..., 0, 0]
    expected = np.array([[1.0, 0.0, 0.0], [0.3233, 1.0, 0.0], [0.1682, 0.3233, 1.0]])
    assert np.all(np.abs(R - expected) <= T_LIMIT * error + 0.01), (
        R,
        error,
    )  # what two levels leave of the cells


def halved(alpha):
    return jnp.where(alpha < ALPHA, GAMMA, GAMMA / 2)


def test_a_learning_rate_may_depend_on_alpha():
    """The first epoch at one rate, the next at another: direct runs go step by step as with numbers, and t adds up."""
    problem, begin = linear()
    algorithm = sgd.EpochSGD(halved, ALPHA, order="fixed")
    setting = {"dimension": 20, "runs": 3, "seed": 1, "alpha": [0.0, ALPHA, 2 * ALPHA]}
    found = sgd.simulate(problem, algorithm, begin, **setting)
    np.testing.assert_allclose(found.t, [0.0, GAMMA * ALPHA, 1.5 * GAMMA * ALPHA], rtol=1e-12)
    np.testing.assert_allclose(found.epoch, [0, 1, 2], rtol=1e-12)
    first = sgd.simulate(problem, sgd.EpochSGD(GAMMA, ALPHA, order="fixed"), begin, **setting)
    np.testing.assert_allclose(found["Q"][:, 1], first["Q"][:, 1], rtol=1e-10)
    assert not np.allclose(found["Q"][:, 2], first["Q"][:, 2], rtol=1e-3)


@pytest.mark.slow
def test_a_schedule_by_dmft_and_by_runs():
    problem, begin = linear()
    algorithm = sgd.EpochSGD(halved, ALPHA)
    when = {"alpha": ALPHA * np.arange(4)}
    theory = sgd.solve_dmft(
        problem, algorithm, begin, **when, paths=REPLICATES * 512, replicates=REPLICATES, cells=32
    )
    runs = sgd.simulate(problem, algorithm, begin, **when, dimension=400, runs=40, seed=2)
    gap = np.abs(distance(theory)[0] - distance(runs).mean(axis=0))[1:]
    error = np.hypot(
        2 * theory["risk_standard_error"].values[0],
        distance(runs).std(axis=0, ddof=1) / np.sqrt(40),
    )[1:]
    assert np.all(gap <= T_LIMIT * error + 2e-3), (gap, error)
    # the second half of the way is slower than at the full rate, and noise does less
    assert abs(distance(theory)[0, 2] - distance(solved("reshuffle"))[0, 2]) > 0.01


@pytest.mark.parametrize("kind", ["epochs", pytest.param("GD", marks=pytest.mark.slow)])
def test_exit_times_on_a_data_set(kind):
    """First passages of direct runs are those of their trajectories saved at every step; by DMFT within errors of these."""
    problem, begin = linear()
    if kind == "epochs":
        algorithm = sgd.EpochSGD(GAMMA, ALPHA)
        steps = np.arange(0, 41)
        setting = {"dimension": 20, "runs": 6, "seed": 3, "method": "direct"}
    else:
        algorithm, steps = (
            sgd.GradientDescent(lr=0.05, samples_per_dimension=ALPHA),
            np.arange(0, 41),
        )
        setting = {"dimension": 400, "runs": 20, "seed": 3, "method": "direct"}
    found = sgd.exit_time(problem, algorithm, begin, threshold=0.5, max_time=2.0, **setting)
    saved = sgd.simulate(problem, algorithm, begin, steps=steps, **setting)
    risk = saved["excess_risk"].values
    first = np.argmax(risk < 0.5 * risk[:, :1], axis=1)
    np.testing.assert_allclose(found.times, saved.t.values[first], rtol=1e-9)
    np.testing.assert_allclose(found.alpha, saved.alpha.values[first], rtol=1e-9)
    if kind == "GD":
        theory = sgd.exit_time(
            problem, algorithm, begin, threshold=0.5, max_time=2.0, method="dmft"
        )
        assert (
            abs(theory.mean - found.mean)
            < 5 * np.hypot(theory.standard_error, found.standard_error) + 0.05
        )  # a step
        assert 0 < theory.standard_error < 0.02


@pytest.mark.slow
def test_early_stopping_of_gradient_flow():
    """Linear regression at alpha = 2, noise .25: gradient flow has its least |w - w*|^2, .1822, at t = 4.0."""
    problem, begin = linear()
    algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=ALPHA)
    path = sgd.solve_dmft(
        problem, algorithm, begin, times=np.arange(1.0, 8.5, 0.5), paths=8192, progress=False
    )
    found = sgd.early_stopping(path)
    assert abs(2 * (found.risk[0] - NOISE / 2) - 0.1822) < 0.004
    assert abs(found.t[0] - 4.0) < 0.4
    assert found.earliest[0] <= found.t[0] <= found.latest[0]
    assert not found.at_end[0]
    with pytest.warns(UserWarning, match="least at the last save point, t = 3"):
        assert sgd.early_stopping(path.isel(time=slice(0, 5))).at_end[0]


def test_save_points_that_coincide_are_reported_once():
    with pytest.warns(UserWarning, match="cells") as warned:
        path = sgd.solve_dmft(
            PROBLEM, EPOCHS, BEGIN, alpha=[0.1, 0.2, 2.0], paths=512, replicates=8, cells=16
        )
    assert path.alpha.values.tolist() == [0.0, 0.0, 2.0]
    assert [
        "multiples of 0.25 epochs (four cells), so that some of the 3 save points coincide"
        in str(one.message)
        for one in warned
    ] == [True]
    assert {one.filename for one in warned} == {__file__}


STEEP = [(8.0, 0.1), (0.2, 0.9)]


def steep(activation="linear"):
    """Inputs with a large eigenvalue, which the number of cells has to take into account."""
    problem = sgd.TeacherStudent(width=1, activation=activation, noise=0.1, covariance=STEEP)
    return problem, sgd.EpochSGD(0.8, 4.0), sgd.start(problem, M=[[0.0]], Q=[[0.0]])


@pytest.mark.parametrize("solver", [sgd.solve_dmft, sgd.worth_of_repeats])
def test_unstable_cells_and_too_few_paths_raise_before_work(solver, monkeypatch):
    """Risks of 9e18 or -2e20, or standard errors 1e8 times the value, were returned for these without a warning."""
    stop_before_work(monkeypatch)
    problem, algorithm, begin = steep()
    more = {"epochs": 3} if solver is sgd.worth_of_repeats else {"alpha": [0.0, 4.0, 8.0, 12.0]}
    for cells in (4, 16, 64, 80):
        match = f"cells = {cells}: .*{cells // 4} per epoch.* unstable .*Use cells = 84 or more, a smaller lr, or sgd.simulate"
        with pytest.raises(ValueError, match=match):
            solver(problem, algorithm, begin, paths=65536, cells=cells, **more)
    match = "paths = 4096: .*at most 230 directions, and 696 cells need 698. Use paths = 16384 or more, .*sgd.simulate"
    with pytest.raises(ValueError, match=match):
        solver(problem, algorithm, begin, paths=4096, **more)
    with pytest.raises(Work):
        solver(problem, algorithm, begin, paths=16384, **more)


def test_unstable_cells_of_a_power_law_raise_before_work(monkeypatch):
    stop_before_work(monkeypatch)
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.01, covariance=sgd.power_law(1.2, 400, target=0.5)
    )
    begin = sgd.random_start(problem, dimension=400, seed=0)
    trace = float(problem.parameters["eigenvalues"] @ problem.parameters["fractions"])
    algorithm = sgd.EpochSGD(0.5 / trace, 4.0)
    with pytest.raises(ValueError, match=r"cells = 16: .*unstable"):
        sgd.worth_of_repeats(problem, algorithm, begin, paths=2048, cells=16)


def test_the_number_of_cells_takes_the_spectrum_and_the_head_into_account():
    problem, algorithm, begin = steep()
    assert number_of_cells(problem, algorithm, begin) == 232
    assert number_of_cells(*linear()[:1], EPOCHS, linear()[1]) == 40 == EPOCHS.cells()
    # the step of the output has the factor |a|^2/p^2: four units with heads of 1 are four times slower
    wide = sgd.TeacherStudent(width=4, activation="linear", noise=0.1, covariance=STEEP)
    begin = sgd.random_start(wide, dimension=100, seed=0)
    assert (
        number_of_cells(wide, sgd.EpochSGD(3.2, 4.0), begin) == 320
    )  # t of a cell is then what counts
    erf, algorithm, begin = steep("erf")
    assert (
        number_of_cells(erf, algorithm, begin) == 144
    )  # a quarter of them: 0.089 t per cell times 11.1, the largest eigenvalue
    assert number_of_cells(erf, algorithm, begin, 16) == 16


@pytest.mark.slow
def test_levels_of_cells_that_do_not_converge_are_a_divergence():
    """A ReLU unit, whose stability is not known before the start, with cells that are far too coarse."""
    problem, algorithm, begin = steep("relu")
    begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    with pytest.warns(
        UserWarning, match="cells = 8: .* do not converge at t = 3.2, .*NaN.* Use more cells"
    ):
        result = sgd.solve_dmft(
            problem, algorithm, begin, alpha=[0.0, 4.0, 8.0], cells=8, paths=512, replicates=2
        )
    assert result.diverged_at.values.tolist() == [0.0]
    for name in ("risk", "train_risk", "M", "Q", "risk_standard_error"):
        assert np.isfinite(result[name][0, 0]).all()
        assert np.isnan(result[name][0, 1:]).all()


def test_failed_extrapolations_and_large_errors_are_recognised():
    """Save points: fine; tiny and uncertain; negative; explosion; the coarsest level has diverged."""
    fine, half = np.array([0.5, 1e-6, 1.0, 2.0, 0.1]), np.array([0.5, 1e-6, 3.0, 2.0, 0.1])
    coarse = np.array([0.5, 5e-6, 5.0, 9.0, np.inf])
    levels = [
        {name: level[None, None] for name in ("risk", "train_risk")}
        for level in (coarse, half, fine)
    ]
    means = {name: (2 * fine - half)[None] for name in ("risk", "train_risk")}
    errors = {name: np.abs(2 * fine - 3 * half + coarse)[None] / 3 for name in means}

    def failed(*points):
        chosen = list(points)
        some = [{name: level[name][:, :, chosen] for name in level} for level in levels]
        values = [{name: part[name][:, chosen] for name in part} for part in (means, errors)]
        return failed_save_points(some, *values, np.array([0.5]))[0].tolist()

    assert failed(0, 1) == [False, False]
    assert failed(2) == failed(3) == failed(4) == [True]
    assert failed(0, 2, 0) == [False, True, True]  # and all later ones
    small, large = {"risk": np.array([[1.0, 0.1]])}, {"risk": np.array([[0.1, 0.2]])}
    small["train_risk"], large["train_risk"] = np.ones((1, 2)), np.array([[0.01, 0.07]])
    texts = large_error_warnings(small, large, large, is_thermal=False)
    assert texts == (
        "The standard error of risk exceeds its value at 1 of 2 save points. Use more cells, or sgd.simulate.",
    )
    assert "Use more paths" in large_error_warnings(small, large, {}, is_thermal=True)[0]
    large["risk"] = large["risk"] / 10
    assert large_error_warnings(small, large, {}, is_thermal=False) == ()
    assert (
        "up to 7%: that of Langevin dynamics grows"
        in large_error_warnings(small, large, {}, is_thermal=True)[0]
    )


@pytest.mark.slow
def test_a_large_eigenvalue_against_runs():
    """The default number of cells, with as many paths as the error asks for: both within 10% and within combined errors."""
    problem, algorithm, begin = steep()
    alpha = [4.0, 8.0]
    theory = sgd.solve_dmft(problem, algorithm, begin, alpha=alpha, paths=16384, progress=False)
    runs = sgd.simulate(
        problem, algorithm, begin, alpha=alpha, dimension=400, runs=64, seed=0, progress=False
    )
    risk, error = theory.risk.values[0], theory.risk_standard_error.values[0]
    spread = runs.risk.std("run").values / 8
    assert np.all(error < 0.1 * risk)
    assert np.all(
        np.abs(runs.risk.mean("run").values - risk) <= Z * np.hypot(error, spread) + 0.01 * risk
    )
