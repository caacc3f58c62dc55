"""Updates as arguments: memories that cannot be, what people type first, and what their docstrings say of a result."""

from __future__ import annotations

import re

import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from tests.before_work import Work, stop_before_work

ISOTROPIC = sgd.TeacherStudent(width=1, activation="erf")
SPECTRUM = sgd.Spectrum([1.0, 0.5, 0.05], [1, 2, 11])  # trace 2.55


def simulated(problem, algorithm, **when):
    return sgd.simulate(problem, algorithm, sgd.random_start(problem, dimension=100), dimension=100, method="direct", **when)


def left(problem, algorithm, **_):
    return sgd.exit_time(problem, algorithm, sgd.random_start(problem, dimension=100), dimension=100, method="direct")


@pytest.mark.parametrize("solver", [simulated, left])
@pytest.mark.parametrize(
    ("update", "argument", "most"),
    [
        (lambda c: U.adam(memory=c), "memory", 100),
        (lambda c: U.rmsprop(c, eps=0.1), "memory", 100),
        (lambda c: U.momentum(memory=c), "memory", 100),
        (lambda c: U.nesterov(memory=c), "memory", 100),
        (lambda c: U.average(c), "memory", 100),
        (lambda c: U.muon(memory=c), "memory", 100),
        (lambda c: U.dana(1.0, delta=c, offset=0.5), "delta", 50),
        (lambda c: U.weight_decay(0.1, of=U.adam(memory=c)), "memory", 100),
    ],
)
def test_a_memory_of_less_than_a_step_is_refused(update, argument, most, solver, monkeypatch):
    """beta2 = 1 - memory/D is a share of what is remembered: it cannot be negative."""
    stop_before_work(monkeypatch)
    with pytest.raises(Work):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=update(float(most))), steps=[0, 10])
    text = rf"{argument} = {2.0 * most}: \w+ would remember 0\.5 steps, less than one\. .* at most D.*; D = 100 here \(the dimension\)"
    with pytest.raises(ValueError, match=text):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=update(2.0 * most)), steps=[0, 10])


def test_a_memory_that_grows_beyond_a_step_is_refused(monkeypatch):
    stop_before_work(monkeypatch)
    growing = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=lambda alpha: 50.0 + 60.0 * alpha))
    with pytest.raises(Work):
        simulated(ISOTROPIC, growing, alpha=[0.0, 0.5])
    with pytest.raises(ValueError, match="memory = 110"):
        simulated(ISOTROPIC, growing, alpha=[0.0, 1.0])


@pytest.mark.parametrize(("per", "D"), [("dimension", 14.0), ("trace", 2.55), ("step", 1.0)])
def test_a_memory_counts_in_the_unit_of_the_step(per, D, monkeypatch):
    """A spectrum fixes its dimension and its trace, so that the ODE knows D too."""
    stop_before_work(monkeypatch)
    problem = sgd.TeacherStudent(width=1, activation="erf", covariance=SPECTRUM)
    begin = sgd.random_start(problem)
    for solver in (lambda *given: sgd.solve_ode(*given, steps=[0, 10]), sgd.exit_time):
        algorithm = sgd.OnePassSGD(lr=0.3, update=U.adam(memory=D), per=per)
        with pytest.raises(Work):
            solver(problem, algorithm, begin)
        with pytest.raises(ValueError, match=re.escape(f"D = {D:g} here")):
            solver(problem, algorithm.replace(update=U.adam(memory=1.01 * D)), begin)


def test_a_memory_in_large_batches_counts_in_steps():
    algorithm = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=2.0))
    with pytest.raises(ValueError, match=r"memory = 2\.0.*D = 1 here"):
        sgd.solve_large_batch(ISOTROPIC, algorithm, sgd.random_start(ISOTROPIC, dimension=100), steps=[0, 1], samples_per_dimension=1.0)


def test_a_limit_without_a_dimension_takes_any_memory(monkeypatch):
    stop_before_work(monkeypatch)
    with pytest.raises(Work):
        sgd.solve_ode(
            ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=U.adam(memory=1e4)), sgd.random_start(ISOTROPIC, dimension=100), alpha=[0.0, 1.0]
        )
