"""Protocols of contexts, dropout and linear students on a spectrum against reference optima.

The references come from other programs: values to 1e-5, extrapolated ones to 1e-4, best constants
to 1e-5, switches to 1e-2 in alpha. Simulations confirm the gains.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, full_optimisation

SGD = sgd.OnePassSGD(lr=1.0)


def check_gain(best, runs=100, slack=0.01, dimension=1000):
    """Compare with the gain of simulations: 4.9 standard errors (1e-6), and slack for finite d."""
    measured = best.confirm(dimension=dimension, runs=runs)
    assert abs(measured.gain - best.gain) < Z * measured.gain_error + slack
    assert measured.gain_error < 0.1 * (best.gain - 1) or runs < 100


@pytest.mark.slow
def test_replay():
    """Two tasks with separate heads, after learning the first; the share of the second is free."""
    first = sgd.TeacherStudent(
        width=2,
        teacher_width=2,
        activation="erf",
        teacher_gram=[[1, 0.3], [0.3, 1]],
        teacher_head=[2.0, 0.0],
        head="trained",
    )
    tasks = sgd.contexts(
        {"one": first, "two": first.replace(teacher_head=[0.0, 2.0])},
        probabilities=[1.0, 0.0],
        heads="own",
    )
    start = sgd.start(
        tasks,
        M=[[0.1, 0.02], [-0.05, 0.08]],
        Q=[[0.5, 0.05], [0.05, 0.4]],
        a=[[1.0, 0.4], [0.6, 1.0]],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, head_rate=4.0)
    learned = sgd.start_from(sgd.solve_ode(tasks, algorithm, start, alpha=[30.0], rtol=1e-9))
    both = tasks.replace(probabilities=[0.5, 0.5])
    best = sgd.optimal_protocol(
        tasks,
        algorithm,
        learned,
        alpha=10.0,
        controls={"two": (0, 1)},
        evaluate=both,
        pieces=40,
        progress=False,
    )
    assert best.value == pytest.approx(0.0122981087, rel=1e-5)
    assert best.extrapolated == pytest.approx(0.0122981084, rel=1e-4)
    assert best.constant["risk"] == pytest.approx(0.0140192769, rel=1e-5)
    assert best.constant["two"] == pytest.approx(0.76169, abs=1e-5)
    np.testing.assert_allclose(best.switches["two"], [5.004, 9.741], atol=1e-2)
    check_gain(best)
    ode = sgd.solve_ode(best.problem, best.algorithm, learned, alpha=[10.0])
    assert ode.context_risk.mean().item() == pytest.approx(best.value, rel=1e-5)
    assert sgd.problem_of(ode) == best.problem


@pytest.mark.slow
def test_dropout():
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.3, keep=0.5, gain=0.6)
    start = sgd.start(problem, M=[[0.1], [0.05]], Q=np.diag([1.0, 0.8]), a=[2.0, 2.0])
    best = sgd.optimal_protocol(
        problem, SGD, start, alpha=30.0, controls={"keep": (0.01, 1)}, pieces=20, progress=False
    )
    assert best.value == pytest.approx(0.0356424354, rel=1e-5)
    assert best.extrapolated == pytest.approx(0.0356392674, rel=1e-4)
    assert best.constant["risk"] == pytest.approx(0.0372338421, rel=1e-5)
    assert best.constant["keep"] == pytest.approx(0.29182, abs=1e-5)
    check_gain(best, runs=40)


@pytest.mark.slow
def test_curriculum():
    """Half of the samples are easy, and the risk is that of the hard ones: easy, hard, easy."""

    def group(size):
        blocks = [(1.0, 0.5), (size, 0.5)]
        return sgd.TeacherStudent(
            width=1, activation="erf", noise=0.3, covariance=blocks, teacher_gram=[[[1.0]], [[0.0]]]
        )

    both = sgd.contexts({"easy": group(0.0), "hard": group(1.0)})
    start = sgd.start(both, M=[[[0.1]], [[0.0]]], Q=[[[0.5]], [[0.5]]])
    arguments = {
        "controls": {"hard": (0, 1)},
        "budget": {"hard": 0.5},
        "evaluate": both.problems["hard"],
    }
    best = sgd.optimal_protocol(both, SGD, start, alpha=8.0, **arguments, pieces=40, progress=False)
    assert best.value == pytest.approx(0.0456275867, rel=1e-5)
    assert best.extrapolated == pytest.approx(0.0456272433, rel=1e-4)
    assert best.constant["risk"] == pytest.approx(0.0478011553, rel=1e-5)
    np.testing.assert_allclose(best.switches["hard"], [2.46277, 6.46277], atol=1e-2)
    check_gain(best, runs=40)


def power_law(a, b, N, noise):
    k = np.arange(1.0, N + 1)
    spectrum = sgd.Spectrum(k**-b, np.ones(N, dtype=int), target=(k ** ((b - a) / 2))[None])
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise, covariance=spectrum)
    return problem, sgd.start(problem, M=np.zeros((N, 1, 1)), Q=np.zeros((N, 1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "constant", "expected", "extrapolated"),
    [
        (2.5, 1.2, 0.0033384841, 0.0024450917, 0.0024445770),
        (1.5, 2.0, 0.2271739635, 0.1650717361, 0.1650512127),
    ],
)
def test_power_laws(a, b, constant, expected, extrapolated):
    """The exact mean of SGD replaces the ODE: steps along the first directions are not small."""
    problem, start = power_law(a, b, 200, 0.01)
    arguments = {"alpha": 2.0, "controls": {"lr": (1e-4, 1.9)}, "pieces": 100, "progress": False}
    best = sgd.optimal_protocol(problem, sgd.OnePassSGD(per="step"), start, **arguments)
    assert best.value == pytest.approx(expected, rel=1e-7)
    assert best.extrapolated == pytest.approx(extrapolated, rel=1e-4)
    assert best.constant["risk"] == pytest.approx(constant, rel=1e-7)
    assert best.residual < 1e-5
    if b < 2:
        exact = sgd.solve_linear(best.problem, best.algorithm, start, steps=[400])
        assert exact.excess_risk.item() == pytest.approx(best.value, rel=1e-9)
    with full_optimisation():
        measured = best.confirm(runs=40)
    assert abs(measured.value - best.value) < Z * measured.value_error


def test_bad_controls_are_named():
    problem, start = power_law(2.5, 1.2, 20, 0.01)
    with pytest.raises(ValueError, match=r"alpha = 2 corresponds to 40 steps\. Give at most"):
        sgd.optimal_protocol(
            problem,
            sgd.OnePassSGD(per="step"),
            start,
            alpha=2.0,
            controls={"lr": (1e-4, 1.9)},
            pieces=100,
        )
    both = sgd.contexts(
        {"one": sgd.TeacherStudent(width=1), "two": sgd.TeacherStudent(width=1, noise=0.3)}
    )
    start = sgd.start(both, M=[[0.1]], Q=[[1.0]])
    with pytest.raises(ValueError, match="'lt': did you mean 'lr'"):
        sgd.optimal_protocol(both, SGD, start, alpha=1.0, controls={"lt": (0, 1)})
    with pytest.raises(ValueError, match="it would be an impulse"):
        sgd.optimal_protocol(both, SGD, start, alpha=1.0, controls={"two": None})
    with pytest.raises(ValueError, match="not a valid value"):
        sgd.optimal_protocol(both, SGD, start, alpha=1.0, controls={"two": (0, 2)})
    with pytest.raises(ValueError, match="the contexts are one, two"):
        both.replace(probabilities={"three": 0.2})
