"""The support table is correct: a question answers, or raises ValueError with the reason."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base import registry
from sgdynamics.base.support import KINDS, supported, why_not
from tests.contracts.before_work import Work, stop_before_work
from tests.contracts.kinds import ALGORITHM_KINDS, PROBLEMS, algorithm_of, start_of
from tests.contracts.questions import call

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", registry.questions())
def test_every_cell_is_correct(name, monkeypatch):
    question = registry.find(name)
    for kind in KINDS:
        if not question.takes_algorithm and kind in ALGORITHM_KINDS[1:]:
            continue
        problem = PROBLEMS[kind]()
        arguments = problem, algorithm_of(kind, name), start_of(kind, problem, name)
        reason = why_not(name, kind)
        with monkeypatch.context() as patch:
            stop_before_work(patch)
            if reason is None:
                with contextlib.suppress(Work):
                    call(question, *arguments)
            else:
                with pytest.raises(ValueError, match=re.escape(reason)):
                    call(question, *arguments)


def test_the_documentation_prints_the_table():
    text = supported()
    page = (DOCS / "supported.md").read_text(encoding="utf-8")
    assert text in page
    assert all(f"| {kind} | {meaning} |" in page for kind, meaning in KINDS.items())
    assert text.count("\n| `") == len(registry.questions())
    reasons = {
        reason
        for question in registry.questions().values()
        for reason in question.unsupported.values()
        if reason
    }
    assert all(reason in text for reason in reasons)


def test_reasons_are_sentences_with_a_remedy():
    for question in registry.questions().values():
        for kind, reason in question.unsupported.items():
            assert kind in KINDS, (question.name, kind)
            assert reason is None or re.search(r"\. [A-Z].*\.$", reason), (question.name, reason)


@pytest.mark.parametrize("kind", ["spiked tensor", "own dynamics"])
def test_updates_are_not_ignored_silently(kind):
    problem = PROBLEMS[kind]()
    algorithm = sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.5))
    with pytest.raises(ValueError, match=r"update = momentum.*only plain SGD"):
        sgd.simulate(problem, algorithm, start_of(kind, problem), steps=[1], dimension=50)


def test_an_object_that_is_not_a_problem_raises():
    for value in (None, 3, np.zeros(2), sgd.TeacherStudent):
        with pytest.raises(ValueError, match=r"problem = .*this is not a problem"):
            sgd.solve_ode(value, sgd.OnePassSGD(), None, times=[1.0])
