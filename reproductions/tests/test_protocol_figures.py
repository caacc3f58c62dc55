"""Figures of optimal protocols: their reference values, the chain of batches, and the ramps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import Z

import sgdynamics as sgd
from sgdynamics_reproductions.protocols import batch_figure, reference


def test_gains_of_the_reference():
    assert reference.REFERENCE["linear"].gain == pytest.approx(1.69681, rel=1e-5)
    assert reference.REFERENCE["erf"].gain == pytest.approx(1.554, abs=5e-4)


@pytest.mark.parametrize("batch", [1, 7])
def test_chain_of_batches_is_that_of_simulate(batch):
    """Means after 300 steps, of two programs that share nothing."""
    steps, runs = 300, 400
    own = batch_figure.chain(np.full(steps, 0.8), np.full(steps, batch), 4000, seed=3)
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=reference.NOISE)
    initial_state = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    algorithm = sgd.OnePassSGD(lr=0.8, batch=batch)
    ran = sgd.simulate(
        problem,
        algorithm,
        initial_state,
        steps=[steps],
        dimension=batch_figure.DIMENSION,
        runs=runs,
        seed=1,
        progress=False,
    )
    other = ran.excess_risk.values[:, -1]
    error = np.hypot(own.std() / np.sqrt(len(own)), other.std() / np.sqrt(runs))
    assert abs(own.mean() - other.mean()) < Z * error
    assert error < 0.01 * own.mean()
    assert own.std() == pytest.approx(other.std(), rel=0.25)


@pytest.mark.parametrize(
    ("lr", "steps"), [(lr, steps) for lr, (steps, _) in reference.RAMPS.items()]
)
def test_ramps_use_all_samples(lr, steps):
    rates, batches = batch_figure.ramp(lr)
    assert len(rates) == steps
    assert batches.sum() == pytest.approx(batch_figure.SAMPLES)
    np.testing.assert_allclose(rates[:-1], lr)
    assert np.all(np.diff(batches[:-1]) > 0)
