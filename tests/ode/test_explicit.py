"""The explicit method: coefficients and steps of diffrax, and its behaviour at boundaries."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.base.precision import float64
from sgdynamics.ode import dormand_prince
from sgdynamics.ode.explicit import explicit


def test_coefficients_are_those_of_diffrax():
    tableau = diffrax.Dopri8.tableau
    for row, values in enumerate(tableau.a_lower, 1):
        np.testing.assert_array_equal(dormand_prince.A[row, :row], values)
    assert not np.triu(dormand_prince.A).any()
    np.testing.assert_array_equal(dormand_prince.C[1:], tableau.c)
    np.testing.assert_array_equal(dormand_prince.ERROR, tableau.b_error)
    np.testing.assert_array_equal(
        dormand_prince.DENSE, diffrax.Dopri8.interpolation_cls.eval_coeffs
    )


def pendulum(t, y):
    """Driven pendulums: two variables of different shapes, without a closed solution."""
    return {
        "angle": y["speed"][:, None] * jnp.ones((2, 1)),
        "speed": -jnp.sin(y["angle"][:, 0]) - 0.1 * y["speed"] + 0.3 * jnp.cos(t),
    }


@float64
def solve(field, state, times, rtol=1e-9, atol=1e-11, inside=lambda t, y: t >= 0, max_steps=500):
    return jax.jit(partial(explicit, field, inside=inside, max_steps=max_steps))(
        state, jnp.asarray(times), rtol, atol
    )


@pytest.mark.slow
def test_steps_are_those_of_diffrax():
    """Save points by dense output agree to rounding, and the number of steps is the same.

    The tolerance is so large that the first steps grow by the largest factor: with a small one,
    their errors are rounding, and the lengths of all later steps depend on the processor.
    """
    rtol, atol = 1e-5, 1e-7
    state = {"angle": np.array([[1.0], [2.5]]), "speed": np.array([0.0, -1.0])}
    times = np.array([0.0, 0.003, 1.0, 1.5, 7.0, 20.0])

    @float64
    def solve_reference():
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: pendulum(t, y)),
            diffrax.Dopri8(),
            t0=0.0,
            t1=20.0,
            dt0=0.01,
            y0=jax.tree.map(jnp.asarray, state),
            saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        )

    solution, reference = solve(pendulum, state, times, rtol, atol), solve_reference()
    for name, values in reference.ys.items():
        np.testing.assert_allclose(solution.saved[name], values, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(solution.last[name], values[-1], rtol=1e-12, atol=1e-12)
    assert float(solution.time) == 20.0
    assert not bool(solution.has_diverged | solution.exhausted)
    # one step fewer than diffrax does not reach the end
    steps = int(reference.stats["num_steps"])
    assert not bool(solve(pendulum, state, times, rtol, atol, max_steps=steps).exhausted)
    assert bool(solve(pendulum, state, times, rtol, atol, max_steps=steps - 1).exhausted)


def test_solution_ends_where_it_leaves_its_bounds():
    """y' = y^2 from y = 1 is 1/(1 - t)."""
    start = {"y": np.ones(1)}
    solution = solve(
        lambda t, y: {"y": y["y"] ** 2},
        start,
        [0.0, 0.5, 2.0],
        inside=lambda t, y: jnp.sum(jnp.abs(y["y"])) < 1e6,
    )
    assert bool(solution.has_diverged)
    assert not bool(solution.exhausted)
    assert float(solution.time) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(solution.saved["y"][:2, 0], [1.0, 2.0], rtol=1e-8)
    assert np.isinf(solution.saved["y"][2, 0])
    # a start outside of the bounds
    solution = solve(
        lambda t, y: {"y": y["y"]}, start, [0.0, 1.0], inside=lambda t, y: y["y"][0] < 0.5
    )
    assert bool(solution.has_diverged)
    assert float(solution.time) == 0.0


@pytest.mark.parametrize(
    "undefined", [lambda t, y: y["y"] * jnp.nan, lambda t, y: jnp.where(t == 0, jnp.nan, y["y"])]
)
def test_a_field_that_is_undefined_at_the_start_goes_nowhere(undefined):
    solution = solve(
        lambda t, y: {"y": undefined(t, y)}, {"y": np.ones(1)}, [0.0, 1.0], max_steps=30
    )
    assert bool(solution.exhausted)
    assert float(solution.time) == 0.0
    assert float(solution.last["y"][0]) == 1.0


@pytest.mark.slow
def test_a_first_result_imports_no_external_solver():
    """Importing them takes as long as the first block of the README once it is compiled."""
    code = """
import sys
import sgdynamics as sgd
sgd.TeacherStudent, sgd.OnePassSGD, sgd.random_start, sgd.solve_ode, sgd.simulate, sgd.compare
slow = ("diffrax", "equinox", "optimistix", "scipy.stats", "scipy.optimize", "matplotlib")
print([name for name in slow if name in sys.modules])
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.strip() == "[]"
