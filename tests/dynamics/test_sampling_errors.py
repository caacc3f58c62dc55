"""Relative errors of results: their scale does not vanish, they contain every source of error, and they are NaN where nothing is known."""

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


def states(size, spread):
    """M (replicate, run, time, block, unit, signal) of a given size, and replicates with a given standard error of their mean."""
    offsets = spread * np.array([1.0, -1.0, 1.0, -1.0]) * np.sqrt(3.0)
    return size + offsets[:, None, None, None, None, None] * np.ones(
        (REPLICATES, RUNS, TIMES, 1, 1, 1)
    )


def test_an_overlap_that_is_zero_has_the_scale_of_the_lengths():
    """A signal that no row aligns with: M is noise about 0, and sqrt(Q P) = 2 is the scale of its error."""
    problem = sgd.TeacherStudent(width=1)
    M, Q = states(0.0, 0.01), np.full((REPLICATES, RUNS, TIMES, 1, 1, 1), 4.0)
    risks = np.ones((REPLICATES, RUNS, TIMES))
    scales = FieldDynamics(problem, OnePassSGD(lr=0.1)).variable_scales(
        {"M": M.mean(axis=0), "Q": Q.mean(axis=0)}
    )
    error, _ = sampling_errors({"M": M, "Q": Q}, risks, 0.0, 0.0, scales)
    assert error == pytest.approx(0.01 / 2)


def test_the_error_of_the_risk_contains_that_of_pairs():
    risks = np.ones((REPLICATES, RUNS, TIMES))
    assert sampling_errors({"M": states(1.0, 0.001)}, risks, worst=0.3, within=0.01) == (0.3, 0.3)


def test_a_run_that_diverges_at_once_has_no_known_error():
    """Only the start is finite, where replicates agree: an error of 0 would claim an exact result."""
    M = states(1.0, 0.0)
    M[:, :, 1:] = np.nan
    error = sampling_errors({"M": M}, M[..., 0, 0, 0], worst=0.0, within=0.0)
    assert np.all(np.isnan(error))


@pytest.mark.slow
def test_a_risk_that_is_infinite_is_not_a_number():
    """E[exp(z^2)] is infinite, and a grid would give a number that depends on its reach."""

    def loss(fields, signals, head, noise_draw):
        return jnp.exp(noise_draw**2) * (1 + 0.1 * jnp.tanh(fields[0] - signals[0]) ** 2)

    problem = sgd.Problem(loss, width=1, signals=1)
    start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    with pytest.warns(UserWarning, match="risk: E\\[loss\\] is not determined"):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=[0.0, 1e-9])
    assert np.all(np.isnan(result.risk))


def test_a_sampled_risk_that_a_few_samples_carry_is_not_a_number():
    """Cauchy noise: its square has no mean, and one of the replicates carries nearly all of the average."""
    states = {"M": np.zeros((2, 1, 1, 1)), "Q": np.full((2, 1, 1, 1), 0.5), "a": np.ones((2, 1))}

    def loss(fields, signals, head, noise_draw):
        return (
            fields[0] - signals[0] - jnp.tan(jnp.pi / 2 * jax.lax.erf(noise_draw / jnp.sqrt(2.0)))
        ) ** 2 / 2

    risk, error = population_risk(sgd.Problem(loss, width=1, signals=1), states)
    assert np.all(np.isnan(risk))
    assert error > 0.3
