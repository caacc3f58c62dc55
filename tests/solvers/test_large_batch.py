"""Batches proportional to d.

Compared with reference values, with the exact chain as d grows, and with gradient descent on the
population risk.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd

PROBLEM = sgd.TeacherStudent(width=2, activation="erf", noise=0.25)
START = sgd.start(PROBLEM, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
MUON = sgd.OnePassSGD(lr=0.2, update=sgd.updates.muon(beta=0.5))


def test_muon():
    """Values of an independent computation; continuing from the third step changes nothing."""
    result = sgd.solve_large_batch(PROBLEM, MUON, START, steps=[0, 3, 5], samples_per_dimension=2.0)
    assert result.M[0, -1, 0, 0].item() == pytest.approx(0.75570855944, abs=1e-10)
    assert result.Q[0, -1, 0, 0].item() == pytest.approx(1.26085471182, abs=1e-10)
    assert result.excess_risk[0, -1].item() == pytest.approx(0.05207588013, abs=1e-10)
    np.testing.assert_allclose(result.alpha, [0, 6, 10])
    np.testing.assert_allclose(result.t, [0, 0.6, 1.0])
    continued = sgd.solve_large_batch(
        PROBLEM, MUON, sgd.start_from(result, 1), steps=[2], samples_per_dimension=2.0
    )
    np.testing.assert_allclose(continued.rows_Q[0, -1], result.rows_Q[0, -1], atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["plain", "momentum", "muon", "blocks", "clipped", "sphere", "trained"]
)
def test_the_chain_converges_to_the_large_batch_limit(kind):
    """Means of runs at d and 4 d.

    The tolerance is 4.9 standard errors (1e-6) and a bias of order 1/d, which decreases by four.
    """
    options = {
        "blocks": {"covariance": [(2.0, 0.4), (0.5, 0.6)]},
        "sphere": {"constraint": "sphere"},
        "trained": {"head": "trained", "weight_decay": 0.1},
    }.get(kind, {})
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.25, **options)
    start = sgd.start(problem, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 1.0]])
    update, lr, power = {
        "muon": (sgd.updates.muon(beta=0.5, newton_schulz=True), 0.2, 0.5),
        "momentum": (sgd.updates.momentum(0.5), 0.5, 1.0),
        "clipped": (sgd.updates.clipped(0.2), 0.5, 1.0),
    }.get(kind, (None, 0.5, 1.0))
    theory = sgd.solve_large_batch(
        problem, sgd.OnePassSGD(lr=lr, update=update), start, steps=[4], samples_per_dimension=2.0
    )
    for d in (200, 800):
        finite_update = update
        if kind == "clipped":  # the threshold is in units of sqrt(D), with D = 1 in the limit
            finite_update = sgd.updates.clipped(0.2 / np.sqrt(d))
        algorithm = sgd.OnePassSGD(lr=lr * d**power, batch=2 * d, update=finite_update)
        runs = sgd.simulate(problem, algorithm, start, steps=[4], dimension=d, runs=200)
        for name in ("M", "Q", "a"):
            gap = np.abs(runs[name].mean("run") - theory[name].isel(run=0)).values
            error = runs[name].std("run", ddof=1).values / np.sqrt(200)
            assert np.all(gap < 4.9 * error + 2.0 / d), (d, name)


def test_infinitely_many_samples_are_gradient_descent():
    """A step follows the gradient of the population risk: gradient flow to first order in lr."""
    flow = sgd.solve_ode(PROBLEM, sgd.OnePassSGD(lr=0.0), START, times=[1e-4])
    step = sgd.solve_large_batch(
        PROBLEM, sgd.OnePassSGD(lr=1e-4), START, steps=[1], samples_per_dimension=np.inf
    )
    for name in ("M", "Q"):
        np.testing.assert_allclose(step[name][0, 0], flow[name][0, 0], atol=1e-8)
    assert "alpha" not in step.coords


def test_invalid_arguments_raise():
    def solve(algorithm=MUON, **options):
        return sgd.solve_large_batch(
            PROBLEM, algorithm, START, **{"steps": [1], "samples_per_dimension": 2.0, **options}
        )

    for call, message in (
        (lambda: solve(samples_per_dimension=0.0), "samples_per_dimension = 0"),
        (lambda: solve(steps=[2, 1]), "increasing whole numbers"),
        (lambda: solve(steps=[0.5]), "increasing whole numbers"),
        (lambda: solve(sgd.OnePassSGD(batch=2)), "batch and per"),
        (lambda: solve(sgd.OnePassSGD(update=sgd.updates.reuse(2))), "reads a batch once"),
        (lambda: solve(sgd.OnePassSGD(update=sgd.updates.gradient_noise(0.1))), "noise of its own"),
        (lambda: solve(sgd.OnePassSGD(update=sgd.updates.sign())), "commute with rotations"),
        (lambda: solve(sgd.GradientDescent()), "algorithm = "),
    ):
        with pytest.raises(ValueError, match=message):
            call()
