"""The table of what is supported is true: every cell answers, or refuses with the reason that the table gives."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.support import KINDS, REFUSED, WITHOUT_ALGORITHM, supported, why_not
from tests.contracts.before_work import Work, stop_before_work
from tests.contracts.kinds import PROBLEMS, STEPS, algorithm_of, start_of

CALLS = {
    "solve_ode": lambda p, a, s: sgd.solve_ode(p, a, s, times=[1.0]),
    "solve_large_batch": lambda p, a, s: sgd.solve_large_batch(
        p, a, s, steps=[1], samples_per_dimension=1.0
    ),
    "solve_sde": lambda p, a, s: sgd.solve_sde(p, a, s, times=[1.0], dimension=50),
    "solve_mean_field": lambda p, a, s: sgd.solve_mean_field(p, a, s, times=[1.0]),
    "solve_dmft": lambda p, a, s: sgd.solve_dmft(p, a, s, alpha=[6.0]),
    "worth_of_repeats": lambda p, a, s: sgd.worth_of_repeats(p, a, s),
    "solve_linear": lambda p, a, s: sgd.solve_linear(linear(p), a, s, steps=[1], dimension=50),
    "simulate": lambda p, a, s: sgd.simulate(p, a, s, steps=[1], dimension=50, method=method(a)),
    "exit_time by the ODE": lambda p, a, s: sgd.exit_time(p, a, s),
    "exit_time by runs": lambda p, a, s: sgd.exit_time(p, a, s, method=passing(a), dimension=50),
    "exit_time by DMFT": lambda p, a, s: sgd.exit_time(p, a, s, method="dmft"),
    "fixed_points": lambda p, a, s: sgd.fixed_points(p, a, tries=4),
    "hessian_spectrum": lambda p, a, s: sgd.hessian_spectrum(p, s, dimension=50),
    "increment_covariance": lambda p, a, s: sgd.increment_covariance(p, a, s),
    "regime": lambda p, a, s: sgd.regime(p, a, dimension=50),
    "optimal_schedule": lambda p, a, s: sgd.optimal_schedule(p, s, alpha=1.0),
    "optimal_protocol": lambda p, a, s: sgd.optimal_protocol(p, smooth(a), s, alpha=1.0),
    "expect": lambda p, a, s: sgd.expect(s, lambda f, s, a, d: f[0], p),
    "certify": lambda p, a, s: sgd.certify(p, a, s, progress=False),
    "functional": lambda p, a, s: sgd.functional.quadrature(p, s),
    "sweep": lambda p, a, s: sgd.sweep(
        problem=p, algorithm=a, start=s, steps=[1], dimension=50, **swept(a), over={"lr": [0.1]}
    ),
}


def method(algorithm):
    """How it is simulated: a coordinatewise update has no chain."""
    return "direct" if "coordinatewise update" in algorithm.kinds else "exact"


def passing(algorithm):
    """How first passages are watched: on a data set in direct runs."""
    return "direct" if {"fixed data", "epochs"} & set(algorithm.kinds) else method(algorithm)


def swept(algorithm):
    """What is swept: runs, which need batches of whole samples, or the ODE."""
    return (
        {"solver": "simulate", "method": method(algorithm)}
        if algorithm.kinds != ("other batch",)
        else {"solver": "solve_ode"}
    )


def smooth(algorithm):
    """Of updates one that does not jump, as those alone have a gradient."""
    if "coordinatewise update" in algorithm.kinds:
        return algorithm.replace(update=sgd.updates.adam(memory=1.0))
    return (
        algorithm.replace(update=sgd.updates.momentum(0.5))
        if "other update" in algorithm.kinds
        else algorithm
    )


def linear(problem):
    """Of networks the linear one, as those alone have an answer."""
    return (
        problem.replace(activation="linear") if isinstance(problem, sgd.TeacherStudent) else problem
    )


@pytest.mark.parametrize("question", REFUSED)
def test_every_cell_is_true(question, monkeypatch):
    for kind in KINDS:
        problem = PROBLEMS[kind]()
        algorithm = algorithm_of(kind, question)
        if question in WITHOUT_ALGORITHM and kind in STEPS[1:]:
            continue
        start = start_of(kind, problem, question)
        with monkeypatch.context() as patch:
            stop_before_work(patch)
            reason = why_not(question, kind)
            if reason is None:
                with contextlib.suppress(Work):
                    CALLS[question](problem, algorithm, start)
                continue
            with pytest.raises(ValueError, match=re.escape(reason)):
                CALLS[question](problem, algorithm, start)


def test_the_documentation_prints_it():
    text = supported()
    assert text in (Path(__file__).parents[2] / "docs/supported.md").read_text(encoding="utf-8")
    assert text.count("\n| `") == len(REFUSED)
    assert all(kind in text.splitlines()[0] for kind in KINDS)
    assert all(
        reason in text for refused in REFUSED.values() for reason in refused.values() if reason
    )


@pytest.mark.parametrize("kind", ["spiked tensor", "own dynamics"])
def test_updates_are_not_left_out_silently(kind):
    problem = PROBLEMS[kind]()
    algorithm = sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.5))
    with pytest.raises(ValueError, match=r"update = momentum.*made for plain SGD"):
        sgd.simulate(problem, algorithm, start_of(kind, problem), steps=[1], dimension=50)


def test_what_is_no_problem_is_refused():
    for nothing in (None, 3, np.zeros(2), sgd.TeacherStudent):
        with pytest.raises(ValueError, match=r"problem = .*give sgd.TeacherStudent"):
            sgd.solve_ode(nothing, sgd.OnePassSGD(), None, times=[1.0])
