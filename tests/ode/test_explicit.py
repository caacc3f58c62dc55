"""The explicit method: diffrax's numbers and steps, and what it does at edges."""

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


def test_numbers_are_those_of_diffrax():
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
    """Of two variables of other shapes, with a force that depends on time: nothing of it is known in closed form."""
    return {
        "angle": y["speed"][:, None] * jnp.ones((2, 1)),
        "speed": -jnp.sin(y["angle"][:, 0]) - 0.1 * y["speed"] + 0.3 * jnp.cos(t),
    }


@float64
def solved(field, state, times, rtol=1e-9, atol=1e-11, inside=lambda t, y: t >= 0, most=500):
    return jax.jit(partial(explicit, field, inside=inside, most=most))(
        state, jnp.asarray(times), rtol, atol
    )


def test_steps_are_those_of_diffrax():
    """At times by dense output: the same to rounding, though its program is another."""
    state = {"angle": np.array([[1.0], [2.5]]), "speed": np.array([0.0, -1.0])}
    times = np.array([0.0, 0.003, 1.0, 1.5, 7.0, 20.0])

    @float64
    def reference():
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: pendulum(t, y)),
            diffrax.Dopri8(),
            t0=0.0,
            t1=20.0,
            dt0=0.01,
            y0=jax.tree.map(jnp.asarray, state),
            saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
            stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-11),
        )

    found, known = solved(pendulum, state, times), reference()
    for name, values in known.ys.items():
        np.testing.assert_allclose(found.saved[name], values, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.last[name], values[-1], rtol=1e-12, atol=1e-12)
    assert float(found.time) == 20.0
    assert not bool(found.left | found.full)
    # the same number of steps: one fewer, and it is not at the end
    taken = int(known.stats["num_steps"])
    assert not bool(solved(pendulum, state, times, most=taken).full)
    assert bool(solved(pendulum, state, times, most=taken - 1).full)


def test_ends_where_it_leaves_and_where_steps_run_out():
    grows = {"y": np.ones(1)}
    found = solved(
        lambda t, y: {"y": y["y"] ** 2},
        grows,
        [0.0, 0.5, 2.0],
        inside=lambda t, y: jnp.sum(jnp.abs(y["y"])) < 1e6,
    )
    assert bool(found.left)
    assert not bool(found.full)
    assert float(found.time) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(found.saved["y"][:2, 0], [1.0, 2.0], rtol=1e-8)
    assert np.isinf(found.saved["y"][2, 0])
    # outside from the beginning
    found = solved(
        lambda t, y: {"y": y["y"]}, grows, [0.0, 1.0], inside=lambda t, y: y["y"][0] < 0.5
    )
    assert bool(found.left)
    assert float(found.time) == 0.0


@pytest.mark.parametrize(
    "undefined", [lambda t, y: y["y"] * jnp.nan, lambda t, y: jnp.where(t == 0, jnp.nan, y["y"])]
)
def test_a_field_that_is_not_defined_at_the_start_goes_nowhere(undefined):
    found = solved(lambda t, y: {"y": undefined(t, y)}, {"y": np.ones(1)}, [0.0, 1.0], most=30)
    assert bool(found.full)
    assert float(found.time) == 0.0
    assert float(found.last["y"][0]) == 1.0


def test_a_first_result_imports_no_solver_of_others():
    """Their import takes as long as the README's first block runs once it is compiled."""
    code = """
import sys
import sgdynamics as sgd
sgd.TeacherStudent, sgd.OnePassSGD, sgd.random_start, sgd.solve_ode, sgd.simulate, sgd.compare
print([name for name in ("diffrax", "equinox", "optimistix", "scipy.stats", "scipy.optimize", "matplotlib") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
