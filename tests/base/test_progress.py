"""What a user is told on the way: a bar that moves before anything is finished, and ends full."""

from __future__ import annotations

import numpy as np
import pytest
from rich.progress import Progress

import sgdynamics as sgd
from sgdynamics.base import progress
from sgdynamics.base.progress import Meter, meter
from sgdynamics.ode import integrate


def test_the_bar_moves_before_the_first_piece_is_finished(monkeypatch):
    seen = []
    add, update = Progress.add_task, Progress.update
    monkeypatch.setattr(
        Progress,
        "add_task",
        lambda bar, *a, **k: seen.append(("add", k["total"])) or add(bar, *a, **k),
    )
    monkeypatch.setattr(
        Progress,
        "update",
        lambda bar, task, **k: seen.append(("update", k)) or update(bar, task, **k),
    )
    with meter("work", 8.0, True) as shown:
        assert seen == [("add", None)]  # to and fro
        shown.advance(2.0)
        shown.advance(3.0)
        (task,) = shown._bar.tasks
        assert (task.total, task.completed) == (8.0, 5.0)
    assert seen[1:] == [("update", {"total": 8.0}), ("update", {"total": 8.0, "completed": 8.0})]
    with meter("work", 8.0, False) as shown:
        shown.advance(2.0)


@pytest.fixture
def slow_steps(monkeypatch):
    """A small ODE, in stretches of one step as if each took long."""
    problem = sgd.TeacherStudent(width=2)
    begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))

    def solve(**options):
        return sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0], **options)

    def slow_down(stretch):
        monkeypatch.setattr(integrate, "_PACE", {})
        monkeypatch.setattr(integrate, "STRETCH", stretch)

    return solve, slow_down


def test_stretches_of_steps_are_the_same_steps(slow_steps):
    """The result does not depend on how often progress is looked at, and nothing compiles again."""
    solve, slow_down = slow_steps
    slow_down(0.5)
    whole = solve()
    program = integrate._compiled(integrate._reach, True)
    compiled = program._cache_size()
    slow_down(0.0)
    again = solve(progress=False)
    assert program._cache_size() == compiled
    for name in ("M", "Q", "risk"):
        np.testing.assert_array_equal(again[name], whole[name])


def test_the_ode_shows_progress(slow_steps, monkeypatch, capsys):
    solve, slow_down = slow_steps
    shares = []
    monkeypatch.setattr(Meter, "reach", lambda self, share: shares.append(self.finished + share))
    slow_down(0.0)
    solve(progress=True)
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert shares[-1] == 2.0  # the solution, and another for its error
    assert "solve_ode" in capsys.readouterr().err


def test_a_solution_that_takes_long_is_announced(slow_steps, monkeypatch):
    solve, slow_down = slow_steps
    slow_down(0.0)
    monkeypatch.setattr(progress, "LONG", 1e-4)
    with pytest.warns(
        UserWarning,
        match=r"solve_ode: about .* expected \(.* s per evaluation of the drift, \d+ evaluations or more per",
    ):
        solve()


def test_the_mean_field_reports_its_three_solutions(monkeypatch):
    shares = []
    monkeypatch.setattr(Meter, "advance", lambda bar, share: shares.append(share / bar.total))
    problem = sgd.TeacherStudent(width=4, activation="erf")
    start = sgd.mean_field_random_start(problem, dimension=100, seed=0)
    sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.0, 0.5], progress=False)
    assert shares == [1 / 3, 1 / 3]  # the bar fills up when the third one is finished
