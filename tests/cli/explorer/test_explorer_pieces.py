"""Parts of the explorer: formulas as MathML, warnings of threads, the Bayes-optimal risk."""

from __future__ import annotations

import re
import threading
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from sgdynamics.cli import problem_files
from sgdynamics.cli.explorer import states
from sgdynamics.cli.explorer.floor import floor
from sgdynamics.cli.explorer.mathml import IDENTIFIERS, mathml, sections
from sgdynamics.cli.explorer.states import State, record
from sgdynamics.cli.explorer.warning_records import record_warnings


def plain(formula: str) -> str:
    """The characters of a formula, without markup."""
    return "".join(ElementTree.fromstring(mathml(formula)).itertext())


def test_formulas_become_mathml():
    fraction = ElementTree.fromstring(mathml(r"\frac{dM}{dt} = -\mathbb{E}\left[h^2\right]"))
    (ratio,) = fraction.iter("mfrac")
    assert ["".join(element.itertext()) for element in ratio] == ["dM", "dt"]
    (power,) = fraction.iter("msup")
    assert ["".join(element.itertext()) for element in power] == ["h", "2"]
    brackets = [mark.text for mark in fraction.iter("mo") if mark.get("stretchy") == "true"]
    assert brackets == ["[", "]"]
    total = ElementTree.fromstring(mathml(r"\sum_{i=1}^{p} a^*_i \sigma'"))
    (limits,) = total.iter("munderover")
    assert ["".join(element.itertext()) for element in limits] == ["∑", "i=1", "p"]
    (both,) = total.iter("msubsup")
    assert ["".join(element.itertext()) for element in both] == ["a", "i", "*"]
    matrix = ElementTree.fromstring(mathml(r"\begin{pmatrix} Q & M \\ M^\top & P \end{pmatrix}"))
    rows = [["".join(cell.itertext()) for cell in row] for row in matrix.iter("mtr")]
    assert rows == [["Q", "M"], ["M⊤", "P"]]
    assert plain(r"\mathrm{head\_rate} \cdot x < 1") == "head_rate·x<1"
    assert plain(r"\text{on a fresh batch}") == "on\xa0a\xa0fresh\xa0batch"


def test_every_formula_of_the_explorer_is_understood():
    """No state of the page has a command that is shown by its name."""
    understood = set(IDENTIFIERS.values()) | {
        "lr",
        "steps",
        "velocity",
        "diag",
        "erf",
        "sgn",
        "sign",
    }
    words = set()
    for name, values in states.CHOICES.items():
        for value in values:
            state = replace(State(dimension=200, batch=4), **{name: value})
            plan = problem_files.plan(record(state))
            for section in sections(plan.problem.equations(plan.algorithm)):
                assert section["formulas"]
                for formula in section["formulas"]:
                    tree = ElementTree.fromstring(formula)
                    words |= {mark.text for mark in tree.iter("mi") if len(mark.text) > 1}
    unknown = {word for word in words - understood if not re.fullmatch(r"head_rate|\w", word)}
    assert unknown == set()


def test_warnings_of_threads_are_kept_apart():
    both_begun, first_done = threading.Barrier(2), threading.Event()
    caught = {}

    def compute(name, wait):
        with record_warnings() as messages:
            both_begun.wait(10)
            if wait:
                assert first_done.wait(10)
            for _ in range(2):  # the same line twice
                warnings.warn(f"warning of {name}", UserWarning, stacklevel=1)
        caught[name] = [str(message.message) for message in messages]
        first_done.set()

    threads = [
        threading.Thread(target=compute, args=arguments)
        for arguments in (("first", False), ("second", True))
    ]
    before = warnings.showwarning
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caught == {name: [f"warning of {name}"] * 2 for name in ("first", "second")}
    assert warnings.showwarning is before


@pytest.mark.slow  # compiles the denoisers of two signals
def test_the_floor_is_the_bayes_optimal_risk():
    """A linear teacher of two units: the closed posterior of Bayesian linear regression."""
    state = State(activation="linear", noise=0.2, lr=2.0, time=10.0, dimension=100)
    answer = floor(state)
    alpha, risk = np.array(answer["alpha"]), np.array(answer["risk"])
    assert alpha[-1] == pytest.approx(10.0 / 2.0)
    # Labels depend on one direction, of squared length 1/2.
    expected = [regression_error(value, 0.2, 0.5) / 2 for value in alpha]
    np.testing.assert_allclose(risk, expected, rtol=0.02)


def regression_error(alpha: float, noise: float, prior: float) -> float:
    """The error e of Bayesian linear regression: 1/e = 1/prior + alpha/(noise + e)."""
    # e (noise + e) + alpha e prior = prior (noise + e)
    linear = noise + alpha * prior - prior
    return (-linear + np.sqrt(linear**2 + 4 * prior * noise)) / 2
