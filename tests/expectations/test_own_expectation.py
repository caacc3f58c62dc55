"""A user's own expectation: closed moments for a loss that the library would sample."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.solvers import functional

NOISE = 0.09


@dataclass(frozen=True)
class Linear(sgd.Expectation):
    """Linear networks under squared loss, isotropic inputs.

    f = (1/p) sum_i a_i lambda_i and y = (1/k) sum_r lambda*_r + sqrt(noise) z. With
    v = (a/p, -1/k): e = v.F + noise and h_i = a_i e/p, so that H = a v^T/p and
    C = a a^T/p^2 (v^T Omega v + noise).
    """

    width: int
    signals: int

    def pieces(self, parameters, overlaps, head):
        v = jnp.concatenate([head / self.width, jnp.full(self.signals, -1.0 / self.signals)])
        return v, v @ overlaps.covariance @ v, parameters["user"]["noise"]

    def moments(self, quadrature, nodes, parameters, overlaps, head, *, finite=False, flow=False):
        v, square, noise = self.pieces(parameters, overlaps, head)
        lead = head / self.width
        outer = lead[:, None] * lead
        norms = (2 * outer * square)[None] if finite else None
        gradient = (overlaps.covariance @ v)[: self.width] / self.width
        return sgd.Moments(
            lead[:, None] * v, outer * (square + noise), norms, gradient, (square + noise) / 2
        )

    def risk(self, quadrature, nodes, parameters, overlaps, head):
        _, square, noise = self.pieces(parameters, overlaps, head)
        return (square + noise) / 2


def loss(fields, signals, head, draw, parameters):
    return (
        jnp.mean(head * fields) - jnp.mean(signals) - jnp.sqrt(parameters["noise"]) * draw
    ) ** 2 / 2


def problems():
    own = sgd.Problem(
        loss, 2, 1, head="trained", parameters={"noise": NOISE}, expectation=Linear(2, 1)
    )
    return own, sgd.TeacherStudent(2, 1, "linear", noise=NOISE, head="trained")


def start_of(problem):
    return sgd.start(problem, M=[[0.2], [-0.1]], Q=[[1.0, 0.2], [0.2, 0.7]], a=[1.0, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [30, pytest.param(None, marks=pytest.mark.slow)])
def test_own_moments_drive_the_ode(dimension):
    own, library = problems()
    options = {"times": [0.0, 1.0, 4.0], "dimension": dimension}
    own_path, library_path = (
        sgd.solve_ode(problem, sgd.OnePassSGD(0.5), start_of(problem), **options)
        for problem in (own, library)
    )
    for name in ("M", "Q", "a", "risk"):
        np.testing.assert_allclose(
            own_path[name], library_path[name], rtol=1e-8, atol=1e-10, err_msg=name
        )
    assert own_path.attrs["error_quadrature"] == 0.0


@pytest.mark.slow
def test_own_moments_in_functional_and_exit_time():
    own, library = problems()
    with jax.enable_x64(True):
        risks = []
        for problem in (own, library):
            state = functional.state(start_of(problem))

            def final(lr, problem=problem, state=state):
                last = functional.solve(
                    problem.structure, problem.parameters, state, [1.0], lr=lr, last=True
                )
                return functional.risk(problem.structure, problem.parameters, last)

            risks.append(jax.value_and_grad(final)(0.5))
    np.testing.assert_allclose(risks[0], risks[1], rtol=1e-8)
    # a relative fall of the risk itself: the library cannot know the noise of a user's loss
    start, target = (
        float(problem_risk)
        for problem_risk in sgd.solve_ode(
            own, sgd.OnePassSGD(0.5), start_of(own), times=[0.0, 2.0]
        ).risk[0]
    )
    exit_times = sgd.exit_time(
        own, sgd.OnePassSGD(0.5), start_of(own), threshold=1 - target / start
    )
    assert float(exit_times.times[0]) == pytest.approx(2.0, rel=1e-6)


def test_own_expectation_is_part_of_the_problem():
    own, _ = problems()
    assert own == own.replace(expectation=Linear(2, 1))
    assert own != own.replace(expectation=None)
    with pytest.raises(ValueError, match="expectation"):
        own.replace(expectation="closed")
