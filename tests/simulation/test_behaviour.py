"""Seeds, groups of runs, divergence, progress, precision and compilation of simulations."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.simulation import running


@pytest.fixture
def setting(phase_retrieval):
    start = sgd.start(phase_retrieval, M=[[0.3], [0.1]], Q=np.eye(2))
    return phase_retrieval, sgd.OnePassSGD(lr=0.1), start


@pytest.mark.slow
def test_results_depend_on_the_seed_alone(setting, monkeypatch):
    """The number of runs, save points, groups and pieces of a call do not change a run."""
    problem, algorithm, start = setting
    result = sgd.simulate(
        problem, algorithm, start, steps=[0, 37, 200, 1000], dimension=50, runs=40, seed=9
    )
    small = sgd.simulate(problem, algorithm, start, steps=[1000], dimension=50, runs=3, seed=9)
    np.testing.assert_allclose(result.Q[:3, -1], small.Q[:, 0], rtol=1e-12)
    monkeypatch.setattr(running, "PIECE_SECONDS", 1e-9)  # pieces as short as possible
    resources = running.Resources(largest_group=7)  # six groups
    monkeypatch.setattr(running.Simulator, "resources", lambda *_: resources)
    in_pieces = sgd.simulate(problem, algorithm, start, steps=[1000], dimension=50, runs=40, seed=9)
    np.testing.assert_allclose(result.Q[:, -1], in_pieces.Q[:, 0], rtol=1e-12)
    other_seed = sgd.simulate(
        problem, algorithm, start, steps=[1000], dimension=50, runs=3, seed=10
    )
    assert np.abs(other_seed.Q - small.Q).max() > 1e-3


ERF = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
DATA = {"lr": 0.2, "samples_per_dimension": 2.0}
# Name of a case: problem, algorithm, name of the clock, last save point, method.
CASES = {
    "sphere": (ERF.replace(constraint="sphere"), sgd.OnePassSGD(lr=0.5), "steps", 60, "exact"),
    "erf": (ERF, sgd.OnePassSGD(lr=0.5), "steps", 60, "exact"),
    "momentum": (
        ERF,
        sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5)),
        "steps",
        60,
        "exact",
    ),
    "direct": (ERF, sgd.OnePassSGD(lr=0.5), "steps", 60, "direct"),
    "multi-pass": (ERF, sgd.MultiPassSGD(batch_fraction=0.5, **DATA), "steps", 10, "exact"),
    "multi-pass, direct": (
        ERF,
        sgd.MultiPassSGD(batch_fraction=0.5, **DATA),
        "steps",
        10,
        "direct",
    ),
    "gradient descent": (ERF, sgd.GradientDescent(**DATA), "steps", 10, "exact"),
    "epochs": (ERF, sgd.EpochSGD(**DATA), "alpha", 4.0, "exact"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "sphere")) for kind in CASES]
)
def test_runs_depend_on_the_seed_alone_for_each_algorithm(kind):
    """Runs agree to 1e-12 for one or forty runs and other save points; equal calls, bit for bit."""
    problem, algorithm, clock, last, method = CASES[kind]
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))

    def final(runs, save_points):
        arguments = {clock: save_points, "dimension": 30, "runs": runs, "seed": 3, "method": method}
        result = sgd.simulate(problem, algorithm, start, **arguments)
        return np.concatenate(
            [np.asarray(result[name])[:, -1].reshape(runs, -1) for name in ("M", "Q", "risk")],
            axis=1,
        )

    many, single = final(40, [last]), final(1, [last])
    np.testing.assert_allclose(single[0], many[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(final(40, [0, last / 5, last]), many, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(final(1, [last]), single)


@pytest.mark.slow
def test_single_precision_of_direct_runs(setting):
    problem, algorithm, start = setting
    single = sgd.simulate(
        problem,
        algorithm,
        start,
        steps=[60],
        dimension=30,
        runs=2,
        seed=9,
        method="direct",
        dtype="float32",
    )
    assert single.Q.dtype == np.float64
    assert single.attrs["dtype"] == "float32"


@pytest.mark.slow
def test_a_diverging_run_does_not_spoil_the_others():
    problem = sgd.TeacherStudent(width=1, activation="square")
    start = sgd.start(problem, M=[[[0.1]], [[2.0]]], Q=[[[0.2]], [[40.0]]])
    for method in ("exact", "direct"):
        with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
            result = sgd.simulate(
                problem,
                sgd.OnePassSGD(lr=0.1),
                start,
                times=[0.0, 0.5, 1.0],
                dimension=20,
                method=method,
            )
        assert 0 <= float(result.diverged_at[1]) < 1.0
        assert np.isnan(result.diverged_at[0])
        assert np.isfinite(result.risk[0]).all()
        assert np.isnan(result.risk[1, -1])
        with pytest.raises(ValueError, match=r"runs \[1\] have diverged"):
            sgd.start_from(result)
        sgd.start_from(result.isel(run=[0]))


@pytest.mark.slow
def test_number_of_runs_follows_from_the_start(setting):
    """A start of one run may be used for many; a start of four runs is for four runs."""
    problem, algorithm, start = setting
    assert (
        sgd.simulate(problem, algorithm, start, steps=[1], dimension=20, runs=7).sizes["run"] == 7
    )
    four_runs = sgd.random_start(problem, dimension=20, runs=4)
    assert sgd.simulate(problem, algorithm, four_runs, steps=[1], dimension=20).sizes["run"] == 4
    with pytest.raises(ValueError, match="the start has 4 runs"):
        sgd.simulate(problem, algorithm, four_runs, steps=[1], dimension=20, runs=5)


def test_progress_bar_shows(setting, capsys):
    problem, algorithm, start = setting
    sgd.simulate(problem, algorithm, start, steps=[100], dimension=20, runs=2, progress=True)
    assert "exact simulation, d = 20" in capsys.readouterr().err


@pytest.mark.slow
def test_jax_settings_of_the_user_do_not_change(setting):
    problem, algorithm, start = setting
    before = jax.random.normal(jax.random.key(0), (3,))
    sgd.simulate(problem, algorithm, start, steps=[10], dimension=20)
    sgd.solve_ode(problem, algorithm, start, times=[0.1])
    assert not jax.config.jax_enable_x64
    assert before.dtype == np.float32
    np.testing.assert_array_equal(before, jax.random.normal(jax.random.key(0), (3,)))


def count_compilations(function):
    """Call the function and return the number of programs that XLA compiled meanwhile."""
    durations = []

    def listen(name, duration, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            durations.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(durations)


@pytest.mark.slow
def test_changing_parameters_does_not_recompile():
    def solve(index):
        problem = sgd.TeacherStudent(
            width=2, activation="square", noise=0.1 + 0.01 * index, weight_decay=0.001 * index
        )
        start = sgd.start(problem, M=[[0.3 - 0.01 * index], [0.1]], Q=np.eye(2))
        algorithm = sgd.OnePassSGD(lr=0.1 + 0.01 * index, head_rate=1.0 + index)
        times = np.linspace(0, 0.1 + 0.001 * index, 9)
        sgd.solve_ode(problem, algorithm, start, times=times)
        sgd.solve_ode(problem, algorithm, start, times=times, dimension=100 + 10 * index)
        sgd.simulate(
            problem, algorithm, start, times=times, dimension=100 + 10 * index, runs=4, seed=index
        )

    assert count_compilations(lambda: solve(0)) > 0
    assert count_compilations(lambda: [solve(index) for index in range(1, 21)]) == 0


def test_a_billion_dimensions(setting):
    problem, algorithm, _ = setting
    start = sgd.random_start(problem, dimension=10**9, seed=1)
    assert np.abs(start.M).max() < 1e-3
    assert np.abs(np.diagonal(start.Q[0]) - 1).max() < 1e-3
    result = sgd.simulate(problem, algorithm, start, steps=[200], dimension=10**9)
    assert result.step.dtype == np.int64
    assert np.abs(result.Q.values[0, 0] - start.Q[0]).max() < 1e-5
