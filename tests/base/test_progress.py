"""Progress bars, and warnings of computations that take long."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from rich.progress import Progress

import sgdynamics as sgd
from sgdynamics.base import progress
from sgdynamics.base.progress import Cost, Meter, meter
from sgdynamics.mean_field import particles
from sgdynamics.ode import integrate
from sgdynamics.simulation import running
from sgdynamics.solvers import large_batch, linear


def test_the_bar_starts_before_the_first_piece_is_finished(monkeypatch):
    calls = []
    add, update = Progress.add_task, Progress.update
    monkeypatch.setattr(
        Progress,
        "add_task",
        lambda bar, *a, **k: calls.append(("add", k["total"])) or add(bar, *a, **k),
    )
    monkeypatch.setattr(
        Progress,
        "update",
        lambda bar, task, **k: calls.append(("update", k)) or update(bar, task, **k),
    )
    with meter("work", 8.0, True) as bar_meter:
        assert calls == [("add", None)]  # a pulsing bar, without a total
        bar_meter.advance(2.0)
        bar_meter.advance(3.0)
        (task,) = bar_meter._bar.tasks
        assert (task.total, task.completed) == (8.0, 5.0)
    assert calls[1:] == [("update", {"total": 8.0}), ("update", {"total": 8.0, "completed": 8.0})]
    with meter("work", 8.0, False) as bar_meter:
        bar_meter.advance(2.0)


@pytest.fixture
def slow_steps(monkeypatch):
    """A small ODE. `slow_down(0.0)` reports the progress after each step, as if steps took long."""
    problem = sgd.TeacherStudent(width=2)
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))

    def solve(**options):
        return sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0], **options)

    def slow_down(interval):
        monkeypatch.setattr(integrate, "_PACE", {})
        monkeypatch.setattr(integrate, "PROGRESS_INTERVAL", interval)

    return solve, slow_down


def test_the_result_does_not_depend_on_the_stretches(slow_steps):
    """Reports of progress change neither the result nor the compiled programs."""
    solve, slow_down = slow_steps
    slow_down(0.5)
    whole = solve()
    program = integrate._compile(integrate._advance_case, True)
    compiled = program._cache_size()
    slow_down(0.0)
    in_stretches = solve(progress=False)
    assert program._cache_size() == compiled
    for name in ("M", "Q", "risk"):
        np.testing.assert_array_equal(in_stretches[name], whole[name])


def test_the_ode_shows_progress(slow_steps, monkeypatch, capsys):
    solve, slow_down = slow_steps
    shares = []
    monkeypatch.setattr(Meter, "reach", lambda self, share: shares.append(self.finished + share))
    slow_down(0.0)
    solve(progress=True)
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert "solve_ode" in capsys.readouterr().err


def test_a_solution_that_takes_long_is_announced(slow_steps, monkeypatch):
    solve, slow_down = slow_steps
    slow_down(0.0)
    monkeypatch.setattr(progress, "LONG", 1e-4)
    with pytest.warns(
        UserWarning,
        match=r"solve_ode: about .* expected "
        r"\(.* s per evaluation of the drift, \d+ evaluations or more per",
    ):
        solve()


def test_late_times_that_take_long_are_announced(slow_steps, monkeypatch):
    """LSODA continues after a few explicit steps: its Jacobians are counted before the start."""
    solve, slow_down = slow_steps
    slow_down(0.5)
    monkeypatch.setattr(integrate, "MOST_STEPS", 2)
    monkeypatch.setattr(progress, "LONG", 1e-6)
    monkeypatch.setattr(integrate, "warn_if_long", lambda *_: None)
    with pytest.warns(UserWarning, match="solve_ode: at least .* Jacobians of 7 overlaps"):
        solve()


def announcements(monkeypatch, pieces, **options):
    """Warnings of a meter whose pieces (seconds, amount, skipped) take the stated time."""
    clock = iter(np.cumsum([0.0] + [seconds for seconds, *_ in pieces]))
    monkeypatch.setattr(progress, "perf_counter", lambda: float(next(clock)))
    with (
        warnings.catch_warnings(record=True) as raised,
        meter("work", 10_000.0, False, Cost("step", **options)) as work_meter,
    ):
        warnings.simplefilter("always")
        for _, *work in pieces:
            work_meter.advance(*work)
    return [str(warning.message) for warning in raised]


def test_long_work_is_announced_from_the_time_of_its_first_pieces(monkeypatch):
    """Ten steps take 2 s; the estimate leaves out the first pieces, which compile."""
    slow = [(30.0, 10.0), (7.0, 10.0), (2.0, 10.0), (2.0, 10.0)]
    message = (
        "work: about 33 minutes expected (0.2 s per step, 10000 steps). "
        "Set progress=True to watch it."
    )
    assert announcements(monkeypatch, slow) == [message]
    (message,) = announcements(monkeypatch, slow, of=" of 5 runs", bound="at most")
    assert message.startswith(
        "work: at most 33 minutes expected (0.2 s per step, 10000 steps of 5 runs)"
    )
    # No warning for short work, before the pace is measured, and after all runs have left.
    assert (
        announcements(monkeypatch, [(30.0, 10.0), (0.5, 100.0), (0.5, 100.0), (0.5, 100.0)]) == []
    )
    assert announcements(monkeypatch, slow[:2]) == []
    assert announcements(monkeypatch, [(30.0, 10.0), (0.1, 10.0), (0.1, 10.0)]) == []
    assert announcements(monkeypatch, [(30.0, 10.0), (7.0, 10.0), (2.0, 10.0, 9900.0)]) == []
    # Steps that are read from a checkpoint do not count as fast steps.
    (message,) = announcements(monkeypatch, [(0.1, 0.0, 5000.0), *slow])
    assert (
        "16 minutes expected (0.2 s per step" in message
        or "17 minutes expected (0.2 s per step" in message
    )


LABELS = {
    "solve_sde": r"SDE, d = 60: about .* s per step, \d+ steps\)",
    "simulate": r"exact simulation, d = 60: about .* s per step, 1000 steps\)",
    "exit_time": r"exit times, exact, d = 60: at most .* s per step, .* steps of 3 runs\)",
    "solve_large_batch": r"solve_large_batch: about .* s per step, 60 steps\)",
}


@pytest.mark.parametrize("solver", LABELS)
def test_every_solver_announces_long_work(solver, monkeypatch):
    """The estimate, and the division of the work into pieces, change no result."""
    problem = sgd.TeacherStudent(width=2)
    start, algorithm = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)), sgd.OnePassSGD(lr=0.1)
    calls = {
        "solve_sde": lambda: (
            sgd.solve_sde(problem, algorithm, start, steps=[60], step=0.002, dimension=60, runs=3).Q
        ),
        "simulate": lambda: (
            sgd.simulate(problem, algorithm, start, steps=[1000], dimension=60, runs=3).Q
        ),
        "exit_time": lambda: (
            sgd.exit_time(
                problem,
                algorithm,
                start,
                threshold=0.9,
                method="exact",
                dimension=60,
                runs=3,
                max_time=2.0,
            ).times
        ),
        "solve_large_batch": lambda: (
            sgd.solve_large_batch(
                problem, algorithm, start, steps=[60], samples_per_dimension=2.0
            ).Q
        ),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* expected")
        warnings.filterwarnings("ignore", message="exit_time: of 3 runs")
        expected = calls[solver]()
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr(progress, "MEASURED", 0.0)
    monkeypatch.setattr(running, "PIECE_SECONDS", 1e-9)
    monkeypatch.setattr(large_batch, "next_piece", lambda piece, seconds: 7)
    with pytest.warns(UserWarning, match=LABELS[solver]):
        result = calls[solver]()
    np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
def test_the_mean_field_reports_its_three_solutions(monkeypatch):
    shares = []
    monkeypatch.setattr(Meter, "advance", lambda bar, share: shares.append(share / bar.total))
    problem = sgd.TeacherStudent(width=4, activation="erf")
    start = sgd.random_start(problem, dimension=100, seed=0, wide=True)
    sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.0, 0.5], progress=False)
    assert shares == [1 / 3, 1 / 3]  # the bar fills up when the third one is finished


@pytest.mark.slow
def test_the_mean_field_announces_long_work(monkeypatch):
    """The estimate uses the time of a velocity, or of the first solution if that is short."""
    problem = sgd.TeacherStudent(width=4, activation="erf")
    start = sgd.random_start(problem, dimension=100, seed=0, wide=True)

    def solve():
        algorithm = sgd.OnePassSGD(lr=0.1)
        return sgd.solve_mean_field(problem, algorithm, start, times=[0.0, 0.5], progress=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* expected")
        expected = solve()
    monkeypatch.setattr(progress, "LONG", 0.0)
    after = r"mean field, 4 particles: about .* expected \(.* s for the first of 3 solutions\)"
    with pytest.warns(UserWarning, match=after):
        assert solve().equals(expected)
    monkeypatch.setattr(particles, "HEAVY", 0.0)
    before = (
        r"mean field, 4 particles: at least .* s per evaluation of the velocity, 104 evaluations or"
    )
    with pytest.warns(UserWarning, match=before):
        assert solve().equals(expected)


@pytest.mark.slow
def test_exits_by_the_ode_announce_long_work(monkeypatch):
    problem = sgd.TeacherStudent(width=2)
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))

    def exits():
        return sgd.exit_time(problem, sgd.OnePassSGD(lr=0.1), start, threshold=0.2, progress=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* expected")
        expected = exits()
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr(integrate, "MANY_NODES", 0.0)
    message = r"exit times, ode: at least .* s per evaluation of the drift, 104 evaluations or more"
    with pytest.warns(UserWarning, match=message):
        np.testing.assert_array_equal(exits().times, expected.times)


@pytest.mark.parametrize("rate", ["constant", "smooth"])
def test_linear_students_announce_long_work(rate, monkeypatch):
    """From the time of a small eigenproblem before the start, or from that of the first runs."""
    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=sgd.power_law(1.2, 1e9, target=0.3)
    )
    zeros = np.zeros((4, problem.structure.blocks, 1, 1))
    start = sgd.start(problem, M=zeros, Q=zeros)
    lr = 0.5 if rate == "constant" else lambda alpha: 0.5 / (1 + alpha)
    algorithm = sgd.OnePassSGD(lr=lr, per="trace")

    def solve():
        return sgd.solve_linear(problem, algorithm, start, steps=[10, 20], progress=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* expected")
        warnings.filterwarnings("ignore", message=".*fourth moments")
        expected = solve()
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr(progress, "MEASURED", 0.0)
    monkeypatch.setattr(linear, "TRIED_MODES", 32)
    message = r"solve_linear.*: about .* expected \(.* s per run, 4 runs\)"
    if rate == "constant":
        message = r"eigenvalues: at most .* expected \(.* s per eigenproblem, at most 4 eig"
    with pytest.warns(UserWarning, match=message):
        assert solve().equals(expected)
