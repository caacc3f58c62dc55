"""Stein matrix, noise and risk of each kind of problem against Monte Carlo."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.closed_forms.relu import relu_conditional_means
from sgdynamics.expectations.conditional import generic_conditional_means
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.problems.activations import NAMED
from tests.conftest import S0_M, S0_Q, Z, slow

HEAD = np.array([1.0, -0.5, 0.8, 1.3])
SAMPLED = (
    1e-3  # what the sampled path must know, as a share of the largest entry: 1% wrong is then seen
)


def moments_at_start(problem, quadrature=None, finite=False):
    """Moments at S0, averaged over replicates, with their spread."""
    # more circles than the default: the tails of a product target are what a few of them miss
    quadrature = quadrature or Quadrature(terms=128, log2_circles=12)
    expectation = expectation_of(problem.structure)
    nodes = expectation.nodes(quadrature, False)

    @jax.jit  # one program: operation by operation there would be a hundred
    def moments(nodes, parameters, M, Q, head):
        overlaps = overlaps_at(problem.structure, parameters, {"M": M[None], "Q": Q[None]})
        return jax.vmap(
            lambda node: expectation.moments(
                quadrature, node, parameters, overlaps, head, finite=finite
            )
        )(nodes), overlaps.covariance

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, moments(nodes, problem.parameters, S0_M, S0_Q, HEAD))


PROBLEMS = {
    "erf": lambda: sgd.TeacherStudent(4, 2, "erf", noise=0.1, teacher_head=[1.0, 0.5]),
    "erf, sign": lambda: sgd.TeacherStudent(4, 2, "erf", "sign", noise=0.1),
    "square": lambda: sgd.TeacherStudent(4, 2, "square", noise=0.1),
    "relu": lambda: sgd.TeacherStudent(4, 2, "relu", noise=0.1),
    "he3, he2": lambda: sgd.TeacherStudent(4, 2, "he3", "he2", noise=0.1),
    "tanh, gelu": lambda: sgd.TeacherStudent(4, 2, "tanh", "gelu", noise=0.1),
    "abs": lambda: sgd.TeacherStudent(4, 2, "abs", noise=0.1),
    "linear, tanh": lambda: sgd.TeacherStudent(4, 2, "linear", "tanh", noise=0.1),
    "correlation": lambda: sgd.TeacherStudent(4, 2, "erf", noise=0.1, loss="correlation"),
    "target": lambda: sgd.MultiIndex(
        lambda z: z[0] * z[1] + jnp.tanh(z[0]), 2, 4, "relu", noise=0.1
    ),
    "target, correlation": lambda: sgd.MultiIndex(
        lambda z: z[0] * z[1], 2, 4, "tanh", noise=0.1, loss="correlation"
    ),
    "logistic": lambda: sgd.MultiIndex(
        lambda z: jnp.sign(z[0] * z[1]), 2, 4, "tanh", loss="logistic"
    ),
    "own": lambda: sgd.Problem(
        lambda f, s, a, z: jnp.log(jnp.cosh(jnp.mean(a * f) - jnp.mean(s**2) + 0.1 * z)), 4, 2
    ),
}


@pytest.mark.parametrize(
    "name", slow(PROBLEMS, ("abs", "relu", "he3, he2", "linear, tanh", "target", "tanh, gelu"))
)
def test_every_kind_against_monte_carlo(name):
    problem = PROBLEMS[name]()
    moments, omega = moments_at_start(problem, finite=True)
    count = 400_000
    generator = np.random.default_rng(3)
    z = generator.standard_normal((count, 7))
    lam = z[:, :6] @ np.linalg.cholesky(omega).T
    with jax.enable_x64(True):
        run = jax.jit(
            jax.vmap(
                lambda x, n: jax.value_and_grad(problem.structure.loss, (0, 2))(
                    x[:4], x[4:], jnp.asarray(HEAD), n, problem.parameters
                )
            )
        )
        loss, (h, head) = (jax.tree.map(np.asarray, values) for values in run(lam, z[:, 6]))
    norm = (z[:, :6] ** 2).sum(axis=1) - 6

    def check(samples, values, moment):
        mean, error = samples.mean(axis=0), samples.std(axis=0) / np.sqrt(count)
        theirs = values.mean(axis=0)
        spread = values.std(axis=0) / np.sqrt(len(values))
        assert np.all(np.abs(mean - theirs) <= Z * np.hypot(error, spread) + 1e-12), (
            name,
            moment,
            mean,
            theirs,
        )

    check(np.einsum("ni,nc->nic", h, lam), moments.stein @ omega, "drift")
    check(np.einsum("ni,nj->nij", h, h), moments.noise, "noise")
    check(np.einsum("n,ni,nj->nij", norm, h, h), moments.norms[:, 0], "finite-d noise")
    check(head, moments.head_gradient, "head")
    check(loss, moments.risk, "risk")


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(["erf", "tanh, gelu", "relu"], ("relu",)))
def test_pairs_against_the_sampled_path(name):
    # the same problem stated as a user's own: nothing of the closed forms is used
    problem = PROBLEMS[name]()
    own = sgd.Problem(
        lambda f, s, a, z: problem.structure.loss(f, s, a, z, {**problem.parameters}),
        4,
        2,
        kinks=problem.structure.kinks,
    )
    fast, _ = moments_at_start(problem, Quadrature(terms=128, log2_circles=12, replicates=16))
    # the curvature of a kink is sampled on circles, and needs more of them
    slow, _ = moments_at_start(
        own, Quadrature(log2_points=11, log2_circles=13 if name == "relu" else 9, replicates=16)
    )
    for field in ("stein", "noise", "head_gradient", "risk"):
        mean, many = getattr(fast, field).mean(axis=0), getattr(slow, field)
        spread = many.std(axis=0, ddof=1) / np.sqrt(len(many))
        if len(getattr(fast, field)) > 1:  # sampled too, where there is no closed form
            spread = np.hypot(spread, getattr(fast, field).std(axis=0, ddof=1) / np.sqrt(len(many)))
        scale = np.abs(mean).max()
        # Student's t with 15 degrees of freedom is beyond 7.8 once in 1e6; and the replicates
        # agree to a few parts in a thousand
        assert np.all(np.abs(many.mean(axis=0) - mean) <= 7.8 * spread + 1e-12), field
        assert spread.max() < SAMPLED * scale, field


def test_relu_conditional_means_against_quadrature():
    with jax.enable_x64(True):
        mean = jnp.linspace(-2, 2, 7)
        spread = jnp.full(7, 0.7)
        formulas = jax.jit(relu_conditional_means)(mean, spread)
        generic = jax.jit(partial(generic_conditional_means, NAMED["relu"]))(mean, spread)
        for value, expected in zip(formulas, generic, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-13)
        for value in jax.jit(relu_conditional_means)(mean, jnp.zeros(7)):
            assert np.all(np.isfinite(value))


def test_target_equals_teacher_when_the_target_is_a_teacher():
    committee = sgd.TeacherStudent(4, 2, "tanh", noise=0.1)
    target = sgd.MultiIndex(lambda z: jnp.mean(jnp.tanh(z)), 2, 4, "tanh", noise=0.1)
    pairs, grid = moments_at_start(committee)[0], moments_at_start(target)[0]
    for field in ("stein", "head_gradient", "risk"):
        np.testing.assert_allclose(
            getattr(pairs, field)[0], getattr(grid, field)[0], rtol=1e-5, atol=1e-7, err_msg=field
        )
    np.testing.assert_allclose(pairs.noise.mean(axis=0), grid.noise.mean(axis=0), rtol=1e-9)


def test_closed_risk_of_squared_networks_is_the_generic_one():
    problem = sgd.TeacherStudent(
        width=3, teacher_width=2, activation="square", noise=0.3, teacher_head=[1.0, -0.5]
    )
    generator = np.random.default_rng(3)
    rows = generator.standard_normal((5, 7))
    omega, head = rows @ rows.T, np.array([0.7, -1.1, 1.3])
    with jax.enable_x64(True):
        expectation, state = (
            expectation_of(problem.structure),
            (Overlaps(omega[None], jnp.asarray(omega)), head),
        )
        formula = jax.jit(
            lambda *state_arguments: expectation.risk(
                Quadrature(), {}, problem.parameters, *state_arguments
            )
        )(*state)
        generic = jax.jit(
            lambda *state_arguments: (
                expectation.moments(
                    Quadrature(), {}, problem.parameters, *state_arguments, flow=True
                ).risk
            )
        )(*state)
    assert float(formula) == pytest.approx(float(generic), rel=1e-12)
