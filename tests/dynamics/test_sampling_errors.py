"""Relative errors of results.

Their scale does not vanish, they contain all sources of error, and they are NaN if unknown.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.expectations.risk import population_risk
from sgdynamics.solvers.batch import sampling_errors

REPLICATES, RUNS, TIMES = 4, 2, 3


def replicated_overlaps(size, standard_error):
    """Overlaps M of this size, whose mean over replicates has this standard error.

    The axes are (replicate, run, time, block, unit, signal).
    """
    offsets = standard_error * np.array([1.0, -1.0, 1.0, -1.0]) * np.sqrt(3.0)
    shape = (REPLICATES, RUNS, TIMES, 1, 1, 1)
    return size + offsets[:, None, None, None, None, None] * np.ones(shape)


def test_an_overlap_that_is_zero_has_the_scale_of_the_lengths():
    """Without alignment M is noise around 0, and the scale of its error is sqrt(Q P) = 2."""
    problem = sgd.TeacherStudent(width=1)
    M, Q = replicated_overlaps(0.0, 0.01), np.full((REPLICATES, RUNS, TIMES, 1, 1, 1), 4.0)
    risks = np.ones((REPLICATES, RUNS, TIMES))
    scales = FieldDynamics(problem, OnePassSGD(lr=0.1)).variable_scales(
        {"M": M.mean(axis=0), "Q": Q.mean(axis=0)}
    )
    error, _ = sampling_errors({"M": M, "Q": Q}, risks, 0.0, 0.0, scales)
    assert error == pytest.approx(0.01 / 2)


def test_the_error_of_the_risk_contains_that_of_pairs():
    risks = np.ones((REPLICATES, RUNS, TIMES))
    assert sampling_errors(
        {"M": replicated_overlaps(1.0, 0.001)}, risks, worst=0.3, within=0.01
    ) == (0.3, 0.3)


def test_a_run_that_diverges_at_once_has_no_known_error():
    """Only the start is finite, where replicates agree; an error of 0 would be wrong."""
    M = replicated_overlaps(1.0, 0.0)
    M[:, :, 1:] = np.nan
    error = sampling_errors({"M": M}, M[..., 0, 0, 0], worst=0.0, within=0.0)
    assert np.all(np.isnan(error))


@pytest.mark.slow
def test_an_infinite_risk_is_nan():
    """E[exp(z^2)] is infinite; the value of a grid would depend on its cutoff."""

    def loss(fields, signals, head, noise_draw):
        return jnp.exp(noise_draw**2) * (1 + 0.1 * jnp.tanh(fields[0] - signals[0]) ** 2)

    problem = sgd.Problem(loss, width=1, signals=1)
    start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    with pytest.warns(UserWarning, match="risk: E\\[loss\\] is not determined"):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=[0.0, 1e-9])
    assert np.all(np.isnan(result.risk))


def test_a_sampled_risk_dominated_by_few_samples_is_nan():
    """The square of Cauchy noise has no mean, and one replicate dominates the average."""
    states = {"M": np.zeros((2, 1, 1, 1)), "Q": np.full((2, 1, 1, 1), 0.5), "a": np.ones((2, 1))}

    def loss(fields, signals, head, noise_draw):
        cauchy = jnp.tan(jnp.pi / 2 * jax.lax.erf(noise_draw / jnp.sqrt(2.0)))
        return (fields[0] - signals[0] - cauchy) ** 2 / 2

    risk, error = population_risk(sgd.Problem(loss, width=1, signals=1), states)
    assert np.all(np.isnan(risk))
    assert error > 0.3
