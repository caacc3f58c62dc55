"""The pure layer: gradients of the final risk against finite differences, under jit and vmap."""

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
    begin = s0(problem)
    quadrature = functional.quadrature(problem, begin)

    algorithm = sgd.OnePassSGD(lr=0.3)

    def final(algorithm, problem, state):
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
        state = functional.state(begin)
        both = jax.jit(jax.value_and_grad(final, argnums=(0, 1, 2)))

        def value(*given):
            return both(*given)[0]

        by_algorithm, by_problem, by_state = both(algorithm, problem, state)[1]
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
        total = sum(float(jnp.sum(by_state[part] * direction[part])) for part in state)
        assert total == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
def test_solve_agrees_with_solve_ode_and_maps_over_lr():
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=1e-2)
    begin = s0(problem)
    with jax.enable_x64(True):
        many = jax.vmap(
            lambda lr: functional.solve(
                problem.structure, problem.parameters, functional.state(begin), [1.0, 4.0], lr=lr
            )
        )
        found = many(jnp.array([0.2, 0.9]))
    for index, lr in enumerate((0.2, 0.9)):
        expected = sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), begin, times=[1.0, 4.0])
        np.testing.assert_allclose(np.asarray(found["Q"])[index, :, 0], expected.Q[0], rtol=1e-8)
