"""Batch sizes that are real numbers or functions of alpha, in the ODE, the SDE and protocols."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.results.clock import make_clock

PROBLEM = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
START = sgd.start(PROBLEM, M=[[0.1]], Q=[[1.0]])
ALPHA = [1.0, 3.0, 5.0]


@pytest.mark.slow
def test_only_lr_over_batch_counts_as_d_grows():
    batch = sgd.piecewise_rate([2.0, 4.0], [1.0, 2.0, 4.5])
    ramp = sgd.solve_ode(PROBLEM, sgd.OnePassSGD(lr=1.0, batch=batch), START, alpha=ALPHA)
    decay = sgd.solve_ode(
        PROBLEM,
        sgd.OnePassSGD(lr=sgd.piecewise_rate([2.0, 4.0], [1.0, 0.5, 1 / 4.5])),
        START,
        alpha=ALPHA,
    )
    np.testing.assert_allclose(ramp.risk, decay.risk, rtol=1e-7)
    np.testing.assert_allclose(ramp.t, decay.t, rtol=1e-12)
    half = sgd.solve_ode(PROBLEM, sgd.OnePassSGD(lr=1.0, batch=2.5), START, alpha=ALPHA)
    np.testing.assert_allclose(
        half.risk,
        sgd.solve_ode(PROBLEM, sgd.OnePassSGD(lr=0.4), START, alpha=ALPHA).risk,
        rtol=1e-9,
    )
    assert sgd.algorithm_of(ramp) == sgd.OnePassSGD(lr=1.0, batch=batch)
    assert sgd.algorithm_of(half).batch == 2.5


@pytest.mark.slow
def test_at_finite_d_a_ramp_is_its_phases():
    """A schedule of the batch size is a sequence of phases with constant batch sizes.

    At finite d the samples of one batch see the same weights, and the mean does not depend on
    lr/batch alone: doubling both changes it.
    """
    batches, rate = (10, 40), 20.0
    ramp = sgd.OnePassSGD(lr=rate, batch=sgd.piecewise_rate([2.0], list(batches)))
    solution = sgd.solve_ode(PROBLEM, ramp, START, alpha=[2.0, 4.0], dimension=500)
    segments = [(PROBLEM, sgd.OnePassSGD(lr=rate, batch=batch), [2.0]) for batch in batches]
    phases = sgd.phases(sgd.solve_ode, segments, START, dimension=500)
    np.testing.assert_allclose(solution.risk, phases.risk, rtol=1e-7)
    np.testing.assert_allclose(solution.step, [100, 125], rtol=1e-12)
    np.testing.assert_allclose(phases.step, [100, 125], rtol=1e-12)
    doubled = ramp.replace(lr=2 * rate, batch=sgd.piecewise_rate([2.0], [20, 80]))
    end = sgd.solve_ode(PROBLEM, doubled, START, alpha=[4.0], dimension=500)
    assert abs(end.risk.item() / solution.risk.values[0, -1] - 1) > 1e-3


def test_steps_and_times():
    algorithm = sgd.OnePassSGD(lr=1.0, batch=sgd.piecewise_rate([2.0, 4.0], [1.0, 2.0, 4.5])).on(
        PROBLEM
    )
    by_steps = make_clock(algorithm, steps=[100, 500], dimension=100, whole_steps=False)
    np.testing.assert_allclose(by_steps.alpha, [1.0, 13.0], rtol=1e-10)
    np.testing.assert_allclose(by_steps.t, [1.0, 5.0], rtol=1e-10)  # lr steps/d, whatever the batch
    by_times = make_clock(algorithm, times=[2.5, 3.0], dimension=None, whole_steps=False)
    np.testing.assert_allclose(by_times.alpha, [3.0, 4.0], rtol=1e-10)


@pytest.mark.slow
def test_the_sde_depends_on_lr_over_batch_only():
    """A growing batch and a decaying learning rate give the same paths for one seed."""
    ramp = sgd.OnePassSGD(lr=1.0, batch=lambda alpha: 1 + alpha)
    decay = sgd.OnePassSGD(lr=lambda alpha: 1 / (1 + alpha))
    options = {"dimension": 300, "runs": 20, "seed": 1, "step": 0.02, "higher_order": False}
    growing, decaying = (
        sgd.solve_sde(PROBLEM, algorithm, START, alpha=[2.0], **options)
        for algorithm in (ramp, decay)
    )
    np.testing.assert_allclose(growing.M, decaying.M, rtol=1e-9)


@pytest.mark.slow
def test_the_best_ramp_is_the_best_decay():
    """In the limit the optimal batches at lr = 2 follow from the optimal rates, a known value."""
    protocol = sgd.optimal_protocol(
        PROBLEM,
        sgd.OnePassSGD(lr=2.0),
        START,
        alpha=20.0,
        controls={"batch": (1, 40)},
        pieces=20,
        progress=False,
    )
    assert protocol.value == pytest.approx(0.0038133492, rel=1e-5)
    assert protocol.constant["risk"] == pytest.approx(0.0059212185, rel=1e-5)
    assert protocol.constant["batch"] == pytest.approx(2 / 0.45113, rel=1e-3)
    with pytest.raises(
        ValueError, match=r"batch = piecewise: the batch size must be an integer here"
    ):
        protocol.confirm(dimension=100, runs=4)


def test_bad_batch_sizes_are_named():
    ramp = sgd.OnePassSGD(lr=1.0, batch=lambda alpha: 1 + alpha)
    sphere = sgd.TeacherStudent(width=1, constraint="sphere")
    tensor = sgd.SpikedTensor(order=3, snr=2.0)
    messages = {
        r"batch = 0\.5: give a number, 1 or more": lambda: sgd.OnePassSGD(batch=0.5),
        r"batch = 0: give a whole number": lambda: sgd.OnePassSGD(batch=0),
        r"batch = nan": lambda: sgd.OnePassSGD(batch=float("nan")),
        r"it must be 1 or more": lambda: sgd.solve_ode(
            PROBLEM, ramp.replace(batch=lambda alpha: 1 - alpha), START, alpha=[1.0]
        ),
        r"Use batch=4, for example, and sgd\.phases": lambda: sgd.simulate(
            PROBLEM, ramp, START, alpha=[1.0], dimension=50
        ),
        r"batch = 1\.5: the batch size must be an integer": lambda: sgd.fixed_points(
            PROBLEM, ramp.replace(batch=1.5)
        ),
        r"leave dimension out": lambda: sgd.solve_ode(
            sphere, ramp, sgd.start(sphere, M=[[0.1]], Q=[[1.0]]), alpha=[1.0], dimension=50
        ),
        r"only supported for plain SGD": lambda: sgd.solve_ode(
            tensor, ramp, sgd.start(tensor, m=0.1, r2=1.0), alpha=[1.0]
        ),
        r"batch sizes are only supported for plain SGD": lambda: sgd.solve_ode(
            PROBLEM, ramp.replace(update=sgd.updates.momentum(0.5)), START, alpha=[1.0]
        ),
    }
    for message, call in messages.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert sgd.OnePassSGD(batch=2.0).batch == 2
    assert sgd.OnePassSGD(batch=sgd.piecewise_rate([1.0], [1.0, 2.0])) == sgd.OnePassSGD(
        batch=sgd.piecewise_rate([1.0], [1.0, 2.0])
    )
    assert sgd.OnePassSGD(batch=2) != sgd.OnePassSGD(batch=3)
