"""Constraints on the rows: formulas of the sphere, and a constraint of the user.

Every formula of the sphere is compared with derivatives of w -> w/|w|.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics import functional
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.problems.constraints import NONE, SPHERE, Constraint

P, K, COLUMNS = 3, 2, 7
GENERATOR = np.random.default_rng(5)
ROWS = GENERATOR.standard_normal((P, COLUMNS))
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
SIGNALS = GENERATOR.standard_normal((K, COLUMNS))
VELOCITY = GENERATOR.standard_normal((P, COLUMNS))


def overlaps(rows):
    """Return M and Q of rows that are split into two blocks of coordinates."""
    rows, signals = (
        jnp.stack([x[:, :4], jnp.pad(x[:, 4:], ((0, 0), (0, 1)))]) for x in (rows, SIGNALS)
    )
    return rows @ jnp.swapaxes(signals, -1, -2), rows @ jnp.swapaxes(rows, -1, -2)


@pytest.mark.parametrize("constraint", [NONE, SPHERE])
def test_rates_of_overlaps_are_derivatives_along_projected_rows(constraint):
    with jax.enable_x64(True):
        (M, Q), (dM, dQ) = jax.jvp(overlaps, (ROWS,), (VELOCITY,))
        expected = jax.jvp(
            lambda rows: overlaps(constraint.project_rows(rows)), (ROWS,), (VELOCITY,)
        )[1]
        rates = constraint.project_overlap_rates(M, Q, dM, dQ)
        many = constraint.project_overlap_rates(*map(np.asarray, (M, Q, dM[None], dQ[None])))
    for rate, stacked, derivative in zip(rates, many, expected, strict=True):
        np.testing.assert_allclose(rate, derivative, atol=1e-14)
        np.testing.assert_array_equal(stacked[0], rate)


@pytest.mark.parametrize("constraint", [NONE, SPHERE])
def test_increments_lead_to_projected_rows(constraint):
    with jax.enable_x64(True):
        step = 1e-3 * VELOCITY
        landed = ROWS + constraint.project_increment(jnp.asarray(ROWS), jnp.asarray(step))
        np.testing.assert_allclose(landed, constraint.project_rows(ROWS + step), atol=1e-15)
        # A quantity that is linear in the rows is scaled as they are.
        twice = constraint.divide_by_norms(2 * (ROWS + step), ROWS + step)
        np.testing.assert_allclose(twice, 2 * landed, atol=1e-15)


@pytest.mark.parametrize("constraint", [NONE, SPHERE])
def test_rates_of_particles_are_derivatives_along_projected_rows(constraint):
    def particle(rows):
        rows = constraint.project_rows(rows)
        return rows[:, :K], jnp.sum(rows[:, K:] ** 2, axis=1)

    with jax.enable_x64(True):
        T, q = ROWS[:, :K], np.sum(ROWS[:, K:] ** 2, axis=1)
        dT, dq = VELOCITY[:, :K], 2 * np.sum(ROWS[:, K:] * VELOCITY[:, K:], axis=1)
        rates = constraint.project_particle_rates(T, q, dT, dq)
        expected = jax.jvp(particle, (jnp.asarray(ROWS),), (jnp.asarray(VELOCITY),))[1]
    for rate, derivative in zip(rates, expected, strict=True):
        np.testing.assert_allclose(rate, derivative, atol=1e-14)


def test_errors_of_norms():
    assert NONE.norm_error(np.array([0.3, 2.0])) == 0.0
    assert SPHERE.norm_error(np.array([1.0, 1.25])) == 0.25


@dataclass(frozen=True)
class FixedRows(Constraint):
    """Rows that do not move."""

    fixes_norms = False

    def divide_by_norms(self, values, rows, axes=-1):
        return 0.0 * values

    def project_increment(self, rows, increment):
        return 0.0 * increment

    def project_overlap_rates(self, M, Q, dM, dQ):
        return 0.0 * dM, 0.0 * dQ

    def project_particle_rates(self, T, q, dT, dq):
        return 0.0 * dT, 0.0 * dq

    def norm_error(self, squared_norms):
        return 0.0


@pytest.mark.slow
def test_a_constraint_of_the_user_determines_drift_and_steps():
    """The ODE and a step of SGD use a constraint that is defined outside of the library."""
    problem = sgd.TeacherStudent(width=2, activation="square", head="trained")
    structure = replace(problem.structure, constraint=FixedRows())
    state = functional.state(sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)))
    rates = functional.drift(structure, problem.parameters, state, lr=0.5)
    free = functional.drift(problem.structure, problem.parameters, state, lr=0.5)
    stride = Stride(0.1, 1.0, 0.0, structure)
    rows, _ = stride.move(jnp.asarray(ROWS), jnp.ones(P), (VELOCITY, jnp.ones(P)))
    assert np.any(free["M"])
    assert not np.any(rates["M"])
    assert not np.any(rates["Q"])
    np.testing.assert_array_equal(rates["a"], free["a"])
    assert not np.any(rows)
