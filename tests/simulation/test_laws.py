"""Dependence of simulations on d.

The spread around the ODE decreases as 1/sqrt(d), the mean follows the ODE at that d, and there is
no bias at large d.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, s0


@pytest.mark.slow  # test_certify has a fast test of the same law
def test_spread_shrinks_like_one_over_root_d():
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=0.01)
    algorithm = sgd.OnePassSGD(lr=1.0)
    dimensions = np.array([100, 1000, 10_000])
    spreads, runs = [], 400
    for d in dimensions:
        result = sgd.simulate(
            problem, algorithm, s0(problem), alpha=[0.4], dimension=int(d), runs=runs, seed=3
        )
        spreads.append(result.M.values[:, 0, 0, 0].std(ddof=1))
    # The logarithm of a standard deviation estimated from n runs has variance 1/(2 (n - 1)).
    weights = np.full(len(dimensions), 2 * (runs - 1))
    x, y = np.log(dimensions), np.log(spreads)
    centre = np.average(x, weights=weights)
    variance = 1 / np.sum(weights * (x - centre) ** 2)
    slope = variance * np.sum(weights * (x - centre) * y)
    assert abs(slope + 0.5) < Z * np.sqrt(variance)
    assert Z * np.sqrt(variance) < 0.06  # the test distinguishes -1/2 from -0.44 and -0.56


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"constraint": "sphere"}, marks=pytest.mark.slow)],
    ids=["free", "sphere"],
)
def test_mean_follows_the_ode_at_that_d(options):
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=0.05, **options)
    algorithm = sgd.OnePassSGD(lr=1.0)
    start = s0(problem)
    for d in (100, 600, 3000):
        theory = sgd.solve_ode(problem, algorithm, start, times=[0.5, 1.0], dimension=d)
        runs = sgd.simulate(
            problem, algorithm, start, times=[0.5, 1.0], dimension=d, runs=600, seed=8
        )
        table = sgd.compare(theory, runs)
        # The ODE omits the curvature of the drift times the variance of the overlaps, of order 1/d.
        for name in ("M", "Q", "risk"):
            expected, simulated = table[f"{name}_theory"], table[f"{name}_simulation"]
            slack = 0.6 / d * np.abs(expected).max()
            assert np.all(
                np.abs(simulated - expected) <= Z * table[f"{name}_standard_error"] + slack
            ), (d, name)


@pytest.mark.slow
def test_three_blocks_theory_and_chain():
    problem = sgd.TeacherStudent(
        width=2,
        teacher_width=1,
        activation="erf",
        noise=0.05,
        covariance=[(0.3, 0.5), (1.0, 0.3), (3.0, 0.2)],
    )
    algorithm = sgd.OnePassSGD(lr=1.0, batch=2)
    start = sgd.start(problem, M=[[0.3], [-0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
    theory = sgd.solve_ode(problem, algorithm, start, times=[1.0, 2.0], dimension=3000)
    runs = sgd.simulate(problem, algorithm, start, times=[1.0, 2.0], dimension=3000, runs=300)
    assert dict(theory.M_block.sizes) == {"run": 1, "time": 2, "block": 3, "unit": 2, "signal": 1}
    for name in ("M_block", "Q_block", "risk"):
        mean, error = runs[name].mean("run"), runs[name].std("run", ddof=1) / np.sqrt(300)
        assert np.all(np.abs(mean - theory[name][0]) <= Z * error + 0.6 / 3000), name
    np.testing.assert_allclose(theory.M, theory.M_block.sum("block"))


def float32_chain(d, lr, steps, runs, seed):
    """Final overlaps (m, q) of a chain in float32 for phase retrieval with one unit.

    The chain adds increments of order lr/d to overlaps of order 1, which float32 rounds.
    """

    def step(carry, key):
        m, q = carry
        z = jax.random.normal(key, (3, runs), jnp.float32)
        root = jnp.sqrt(jnp.maximum(q - m * m, 0))
        lam = m * z[0] + root * z[1]
        h = -2 * lam * (z[0] ** 2 - lam**2) * jnp.float32(lr / d)
        norm = jnp.float32(d) + jnp.sqrt(jnp.float32(2 * d)) * z[2]
        return (m - h * z[0], q - 2 * h * lam + h * h * norm), None

    keys = jax.random.split(jax.random.key(seed), steps)
    initial = (jnp.full(runs, 0.5, jnp.float32), jnp.full(runs, 1.0, jnp.float32))
    return jax.jit(lambda keys: jax.lax.scan(step, initial, keys)[0])(keys)


@pytest.mark.slow
def test_no_bias_at_a_million_dimensions():
    d, lr, t = 1_000_000, 0.1, 0.05
    problem = sgd.TeacherStudent(width=1, activation="square")
    start = sgd.start(problem, M=[[0.5]], Q=[[1.0]])
    theory = sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), start, times=[t])
    runs = sgd.simulate(
        problem, sgd.OnePassSGD(lr=lr), start, times=[t], dimension=d, runs=64, seed=1
    )
    table = sgd.compare(theory, runs)
    assert np.abs(table.Q_z).max() < Z
    assert np.abs(table.M_z).max() < Z
    spread = float(runs.Q.std())
    _, q = float32_chain(d, lr, round(t * d / lr), 64, 0)
    bias = abs(float(np.asarray(q, np.float64).mean()) - float(theory.Q[0, 0, 0, 0]))
    # Chains are float64 because the rounding of q plus tiny increments adds up to a drift. This
    # many runs resolve the drift of the float32 chain.
    assert bias > 1.5 * Z * spread / np.sqrt(64)
