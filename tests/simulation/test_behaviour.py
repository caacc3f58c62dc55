"""Seeds, chunks, divergence, progress, precision: what a user relies on without looking."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.simulation import running


@pytest.fixture
def setting(phase_retrieval):
    begin = sgd.start(phase_retrieval, M=[[0.3], [0.1]], Q=np.eye(2))
    return phase_retrieval, sgd.OnePassSGD(lr=0.1), begin


def test_same_seed_same_numbers_whatever_else(setting, monkeypatch):
    problem, algorithm, begin = setting
    one = sgd.simulate(
        problem, algorithm, begin, steps=[0, 37, 200, 1000], dimension=50, runs=40, seed=9
    )
    few = sgd.simulate(problem, algorithm, begin, steps=[1000], dimension=50, runs=3, seed=9)
    np.testing.assert_allclose(one.Q[:3, -1], few.Q[:, 0], rtol=1e-12)
    monkeypatch.setattr(running, "PIECE_SECONDS", 1e-9)  # the smallest pieces
    monkeypatch.setattr(running.Simulator, "largest_group", lambda self: 7)  # six groups
    pieces = sgd.simulate(problem, algorithm, begin, steps=[1000], dimension=50, runs=40, seed=9)
    np.testing.assert_allclose(one.Q[:, -1], pieces.Q[:, 0], rtol=1e-12)
    other = sgd.simulate(problem, algorithm, begin, steps=[1000], dimension=50, runs=3, seed=10)
    assert np.abs(other.Q - few.Q).max() > 1e-3


ERF = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
DATA = {"lr": 0.2, "samples_per_dimension": 2.0}
# problem, algorithm, name of the clock, its last value, method
KINDS = {
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


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "sphere")) for kind in KINDS]
)
def test_same_seed_same_numbers_to_rounding_for_each_kind_of_run(kind):
    """One run or forty, other save points: 1e-12; the same call again: the same bits."""
    problem, algorithm, clock, last, method = KINDS[kind]
    begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))

    def final(runs, save_points):
        arguments = {clock: save_points, "dimension": 30, "runs": runs, "seed": 3, "method": method}
        result = sgd.simulate(problem, algorithm, begin, **arguments)
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
    problem, algorithm, begin = setting
    single = sgd.simulate(
        problem,
        algorithm,
        begin,
        steps=[60],
        dimension=30,
        runs=2,
        seed=9,
        method="direct",
        dtype="float32",
    )
    assert single.Q.dtype == np.float64
    assert single.attrs["dtype"] == "float32"


def test_a_diverging_run_does_not_spoil_the_others():
    problem = sgd.TeacherStudent(width=1, activation="square")
    begin = sgd.start(problem, M=[[[0.1]], [[2.0]]], Q=[[[0.2]], [[40.0]]])
    for method in ("exact", "direct"):
        with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
            result = sgd.simulate(
                problem,
                sgd.OnePassSGD(lr=0.1),
                begin,
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


def test_one_start_serves_many_runs_and_n_serve_n(setting):
    problem, algorithm, begin = setting
    assert (
        sgd.simulate(problem, algorithm, begin, steps=[1], dimension=20, runs=7).sizes["run"] == 7
    )
    several = sgd.random_start(problem, dimension=20, runs=4)
    assert sgd.simulate(problem, algorithm, several, steps=[1], dimension=20).sizes["run"] == 4
    with pytest.raises(ValueError, match="the start has 4 runs"):
        sgd.simulate(problem, algorithm, several, steps=[1], dimension=20, runs=5)


def test_progress_bar_shows(setting, capsys):
    problem, algorithm, begin = setting
    sgd.simulate(problem, algorithm, begin, steps=[100], dimension=20, runs=2, progress=True)
    assert "exact simulation, d = 20" in capsys.readouterr().err


def test_settings_of_the_user_are_untouched(setting):
    problem, algorithm, begin = setting
    before = jax.random.normal(jax.random.key(0), (3,))
    sgd.simulate(problem, algorithm, begin, steps=[10], dimension=20)
    sgd.solve_ode(problem, algorithm, begin, times=[0.1])
    assert not jax.config.jax_enable_x64
    assert before.dtype == np.float32
    np.testing.assert_array_equal(before, jax.random.normal(jax.random.key(0), (3,)))


def count_compilations(work):
    """How many programs XLA compiled meanwhile."""
    seen = []

    def listen(name, duration, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        work()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(seen)


def test_changing_numbers_never_compiles_again():
    def solve(index):
        problem = sgd.TeacherStudent(
            width=2, activation="square", noise=0.1 + 0.01 * index, weight_decay=0.001 * index
        )
        begin = sgd.start(problem, M=[[0.3 - 0.01 * index], [0.1]], Q=np.eye(2))
        algorithm = sgd.OnePassSGD(lr=0.1 + 0.01 * index, head_rate=1.0 + index)
        times = np.linspace(0, 0.1 + 0.001 * index, 9)
        sgd.solve_ode(problem, algorithm, begin, times=times)
        sgd.solve_ode(problem, algorithm, begin, times=times, dimension=100 + 10 * index)
        sgd.simulate(
            problem, algorithm, begin, times=times, dimension=100 + 10 * index, runs=4, seed=index
        )

    assert count_compilations(lambda: solve(0)) > 0
    assert count_compilations(lambda: [solve(index) for index in range(1, 21)]) == 0


def test_a_billion_dimensions(setting):
    problem, algorithm, _ = setting
    begin = sgd.random_start(problem, dimension=10**9, seed=1)
    assert np.abs(begin.M).max() < 1e-3
    assert np.abs(np.diagonal(begin.Q[0]) - 1).max() < 1e-3
    result = sgd.simulate(problem, algorithm, begin, steps=[200], dimension=10**9)
    assert result.step.dtype == np.int64
    assert np.abs(result.Q.values[0, 0] - begin.Q[0]).max() < 1e-5
