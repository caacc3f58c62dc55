"""The functional layer: gradients of the final risk and finite differences, jit and vmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.solvers import functional
from tests.conftest import s0


@pytest.mark.slow
def test_gradient_of_the_final_risk():
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-2)
    start = s0(problem)
    quadrature = functional.quadrature(problem, start)

    algorithm = sgd.OnePassSGD(lr=0.3)

    def final_risk(algorithm, problem, state):
        end = functional.solve(
            problem.structure,
            problem.parameters,
            state,
            [0.5, 3.0],
            **algorithm.parameters,
            quadrature=quadrature,
            last=True,
        )
        return functional.risk(problem.structure, problem.parameters, end, quadrature=quadrature)

    with jax.enable_x64(True):
        state = functional.state(start)
        risk_and_gradients = jax.jit(jax.value_and_grad(final_risk, argnums=(0, 1, 2)))

        def value(*arguments):
            return risk_and_gradients(*arguments)[0]

        by_algorithm, by_problem, by_state = risk_and_gradients(algorithm, problem, state)[1]
        step = 1e-4
        plus, minus = (
            value(algorithm.replace(lr=0.3 + sign * step), problem, state) for sign in (1, -1)
        )
        assert float(by_algorithm.lr) == pytest.approx(float(plus - minus) / (2 * step), rel=1e-6)
        plus, minus = (
            value(algorithm, problem.replace(noise=1e-2 + sign * step), state) for sign in (1, -1)
        )
        assert float(by_problem.noise) == pytest.approx(float(plus - minus) / (2 * step), rel=1e-6)
        direction = {
            name: np.random.default_rng(0).normal(size=np.shape(value))
            for name, value in state.items()
        }
        direction["Q"] = direction["Q"] + np.swapaxes(direction["Q"], -1, -2)
        plus, minus = (
            jax.tree.map(lambda x, v, s=sign: x + s * step * v, state, direction)
            for sign in (1, -1)
        )
        slope = float(value(algorithm, problem, plus) - value(algorithm, problem, minus)) / (
            2 * step
        )
        total = sum(float(jnp.sum(by_state[name] * direction[name])) for name in state)
        assert total == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
def test_solve_agrees_with_solve_ode_and_maps_over_lr():
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-2)
    start = s0(problem)
    with jax.enable_x64(True):
        solve_batch = jax.vmap(
            lambda lr: functional.solve(
                problem.structure, problem.parameters, functional.state(start), [1.0, 4.0], lr=lr
            )
        )
        states = solve_batch(jnp.array([0.2, 0.9]))
    for index, lr in enumerate((0.2, 0.9)):
        expected = sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), start, times=[1.0, 4.0])
        np.testing.assert_allclose(np.asarray(states["Q"])[index, :, 0], expected.Q[0], rtol=1e-8)
