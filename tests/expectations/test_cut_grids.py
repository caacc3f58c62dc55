"""Grids cut along planes: orthant probabilities, targets that jump, and honest errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.expectations.cut_grids import turned_grid
from sgdynamics.expectations.risk import population_risk
from sgdynamics.solvers import functional

NORMALS = {1: [[1.0]], 2: [[1.0, 0.0], [0.6, 0.8]], 3: [[0.6, 0.48, 0.64], [0.0, 0.8, 0.6]]}


@pytest.mark.parametrize(
    ("dimensions", "cut", "tolerance"),
    [(1, 1, 1e-13), (2, 1, 1e-13), (2, 2, 1e-12), (3, 1, 1e-12), (3, 2, 1e-6)],
)
def test_orthants(dimensions, cut, tolerance):
    """P(n_1.z > c_1, n_2.z > c_2) is a bivariate normal probability, whatever the dimension."""
    normals, levels = np.array(NORMALS[dimensions][:cut]), np.array([0.3, -0.4])[:cut]
    with jax.enable_x64(True):
        points, weights = (
            np.asarray(array)
            for array in jax.jit(turned_grid, static_argnums=2)(normals, levels, cut)
        )
    assert weights.sum() == pytest.approx(1, abs=tolerance)
    inside = np.all(points @ normals.T > levels, axis=1)
    expected = stats.multivariate_normal.cdf(
        -levels, np.zeros(cut), normals @ normals.T, abseps=1e-14, releps=1e-14
    )
    assert weights @ inside == pytest.approx(expected, abs=tolerance)
    np.testing.assert_allclose(
        points.T @ (weights[:, None] * points), np.eye(dimensions), atol=100 * tolerance
    )


def state(problem, seed=0):
    rng = np.random.default_rng(seed)
    T, L = (
        0.4 * rng.normal(size=(problem.width, problem.signals)),
        0.7 * np.tril(rng.normal(size=(problem.width,) * 2)),
    )
    M = T @ problem.parameters["frame"][0].T
    return sgd.start(problem, M=M, Q=T @ T.T + L @ L.T)


@pytest.mark.slow
@pytest.mark.parametrize("gram", [np.eye(2), [[1.0, 0.5], [0.5, 2.0]]])
def test_a_jumping_target_is_the_committee_of_sign_units(gram):
    """Drift and risk of `teacher_activation="sign"`, which is closed, for correlated signals."""
    target = sgd.MultiIndex(
        lambda z: 0.5 * (jnp.sign(z[0]) + jnp.sign(z[1])),
        directions=2,
        width=2,
        activation="erf",
        gram=gram,
        kinks=[0.0],
    )
    teacher = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="erf", teacher_activation="sign", teacher_gram=gram
    )
    start = state(teacher)
    with jax.enable_x64(True):
        drifts, expected = (
            jax.jit(
                lambda problem=problem: functional.drift(
                    problem.structure, problem.parameters, functional.state(start), flow=True
                )
            )()
            for problem in (target, teacher)
        )
    for name in ("M", "Q"):
        np.testing.assert_allclose(drifts[name], expected[name], atol=1e-11)
    overlaps = {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
    (risk, error), (exact, _) = (
        population_risk(problem, overlaps) for problem in (target, teacher)
    )
    assert risk == pytest.approx(exact, abs=1e-11)
    assert error < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kinks", "activation"),
    [
        (lambda z: jnp.sign(z[0]), [0.0], "erf"),
        pytest.param(lambda z: jnp.sign(z[0]), [0.0], "tanh", marks=pytest.mark.slow),
        pytest.param(lambda z: jnp.abs(z[0] - 0.3), [0.3], "tanh", marks=pytest.mark.slow),
    ],
)
def test_the_error_is_honest_where_nothing_is_declared(target, kinks, activation):
    declared = sgd.MultiIndex(target, directions=1, width=2, activation=activation, kinks=kinks)
    silent = sgd.MultiIndex(target, directions=1, width=2, activation=activation)
    for seed in range(3):
        start = state(declared, seed)
        overlaps = {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
        (exact, small), (risk, stated) = (
            population_risk(problem, overlaps) for problem in (declared, silent)
        )
        assert small < 1e-6
        off = float(np.abs(risk - exact).max() / exact.max())
        assert off < stated
        assert off > 100 * small  # there is something to state


def test_kinks_are_planes():
    def target(z):
        return jnp.sign(z[0] - z[1])

    problem = sgd.MultiIndex(
        target,
        directions=2,
        width=1,
        activation="erf",
        kinks=[((2.0, -2.0), 0.0), ((1.0, -1.0), 0.0), 1.0],
    )
    assert len(problem.kinks) == 3  # the first two are one plane
    assert problem.describe()["kinks"][0][0] == pytest.approx([0.5**0.5, -(0.5**0.5)])
    for kinks, message in [
        ("0", "kinks = '0': give numbers"),
        ([(1.0, 0.0)], "give numbers .* or pairs"),
        ([((0.0, 0.0), 1.0)], "length 0"),
        ([((1.0, 0.0, 1.0), 1.0)], "give numbers"),
        ([np.nan], "kinks = nan"),
        ([0.0, 1.0, 2.0, 3.0], "8 planes"),
    ]:
        with pytest.raises(ValueError, match=message):
            sgd.MultiIndex(target, directions=2, width=1, activation="erf", kinks=kinks)
    with pytest.raises(ValueError, match="span 3 of 3"):
        sgd.MultiIndex(
            lambda z: jnp.sign(z[0] * z[1] * z[2]),
            directions=3,
            width=1,
            activation="erf",
            kinks=[0.0],
        )
