"""A simulator from outside of the library: four methods, and the loop drives it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.base.precision import float64
from sgdynamics.simulation.running import NO_OBSERVATION, Resources, Simulator, run

RATE, NOISE = 0.1, 0.5


@float64
@jax.jit
def relax(overlap, keys, first, end):
    """Steps m <- (1 - RATE) m + NOISE z of all runs, with a key per run and step."""

    def step(number, overlap):
        step_keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        return (1 - RATE) * overlap + NOISE * jax.vmap(jax.random.normal)(step_keys)

    return jax.lax.fori_loop(first, end, step, overlap)


class RelaxingOverlap(Simulator):
    """An overlap that relaxes to zero under noise, with at most three runs at a time."""

    grain = 1

    def initial(self, chosen):
        return jnp.asarray(1.0 + np.asarray(chosen, dtype=np.float64))

    def advance(self, state, keys, since, end, observation=NO_OBSERVATION):
        state = relax(state, keys, np.int64(since), np.int64(end))
        # A run with an overlap above 6 counts as diverged.
        last_finite = np.where(np.abs(np.asarray(state)) < 6, end, since)
        return state, last_finite, observation.records

    def overlaps(self, state):
        return {"M": np.asarray(state)}

    def resources(self, steps=0.0):
        return Resources(largest_group=3)


STEPS = np.array([0, 4, 10])


def simulate_runs(runs):
    return run(RelaxingOverlap(), runs, STEPS, seed=0, label="", show=False)


def test_the_loop_returns_save_points_of_all_runs():
    saved, diverged = simulate_runs(5)
    assert saved["M"].shape == (5, 3)
    np.testing.assert_array_equal(saved["M"][:, 0], [1, 2, 3, 4, 5])
    assert np.all(diverged == -1)
    # m(t) - (1 - RATE)^t m(0) is a sum of independent normals.
    explained = saved["M"][:, :1] * (1 - RATE) ** STEPS
    variance = NOISE**2 * (1 - (1 - RATE) ** (2 * STEPS)) / (1 - (1 - RATE) ** 2)
    scores = (saved["M"] - explained)[:, 1:] / np.sqrt(variance[1:])
    assert np.all(np.abs(scores) < 4.9)
    assert np.std(scores) > 0.3


def test_a_run_does_not_depend_on_the_others():
    np.testing.assert_array_equal(simulate_runs(5)[0]["M"][:2], simulate_runs(2)[0]["M"])


def test_a_diverged_run_is_nan_from_there_on():
    saved, diverged = simulate_runs(9)
    has_diverged = diverged >= 0
    assert has_diverged.any()
    assert not has_diverged[:2].any()
    assert np.all(np.isnan(saved["M"][has_diverged, -1]))
    assert np.all(np.isfinite(saved["M"][~has_diverged]))


def test_a_simulator_that_misses_a_method_is_not_constructed():
    class WithoutOverlaps(Simulator):
        grain = 1
        initial = RelaxingOverlap.initial
        advance = RelaxingOverlap.advance

    with pytest.raises(TypeError, match="overlaps"):
        WithoutOverlaps()
