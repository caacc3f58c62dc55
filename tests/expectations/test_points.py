"""Averages over points in batches, slopes along single directions, and halves of mirrored grids."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations import nodes as expectation_nodes
from sgdynamics.expectations import sampled
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.field_grids import FewFields, half_grid, trapezoids
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import compute_risks, overlaps_at
from sgdynamics.expectations.solver_interface import Evaluation


def own_loss(fields, signals, head, z):
    return jnp.log1p((jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.1 * z) ** 2)


def moments(problem, quadrature, *, nodes=None, finite=False):
    """Moments of a problem at a random state, on one replicate of the nodes of a drift."""
    start = sgd.random_start(problem, dimension=50, seed=1)
    state = {"M": start.M[:1], "Q": start.Q[:1], "a": start.a[0]}  # of one block
    expectation = expectation_of(problem.structure)
    if nodes is None:
        nodes = {name: x[0] for name, x in expectation.nodes(quadrature, False).items()}
    overlaps = overlaps_at(problem.structure, problem.parameters, state)
    at = Evaluation(quadrature, nodes, problem.parameters, overlaps, state["a"])
    evaluate = jax.jit(lambda: expectation.evaluate_moments(at, finite=finite))
    return {name: value for name, value in evaluate()._asdict().items() if value is not None}


def assert_equal_to_rounding(values, others):
    assert values.keys() == others.keys()
    for name, value in values.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.slow
def test_batches_of_points_and_single_directions_change_only_the_rounding(monkeypatch):
    problem = sgd.Problem(own_loss, width=3, signals=1)
    quadrature = Quadrature(log2_points=8, replicates=1)
    with jax.enable_x64(True):
        monkeypatch.setattr(sampled, "POINTS_IN_CACHE", 1 << 20)
        at_once = moments(problem, quadrature, finite=True)
        # 1024 points in batches of 342, of which the last is filled up
        monkeypatch.setattr(sampled, "POINTS_IN_CACHE", 500)
        assert_equal_to_rounding(moments(problem, quadrature, finite=True), at_once)
        monkeypatch.setattr(sampled, "MOST_UNROLLED", 0)
        assert_equal_to_rounding(moments(problem, quadrature, finite=True), at_once)


@pytest.mark.slow
def test_slopes_of_correlated_tokens_along_single_directions(monkeypatch):
    problem = sgd.models.attention(tokens=3, token_correlation=0.3)
    quadrature = Quadrature(log2_points=6, replicates=1)
    with jax.enable_x64(True):
        together = moments(problem, quadrature)
        monkeypatch.setattr(sampled, "MOST_UNROLLED", 4 * 3)
        assert_equal_to_rounding(moments(problem, quadrature), together)


@pytest.mark.slow
def test_halves_of_mirrored_grids_have_the_moments_of_the_whole():
    problem = sgd.models.attention(noise=0.3)
    structure = problem.structure
    assert structure.dependence is not None
    assert structure.dependence.is_mirrored
    whole = FewFields(
        replace(structure, dependence=replace(structure.dependence, is_mirrored=False))
    )
    quadrature = Quadrature(per_deviation=1)
    half_nodes = expectation_of(structure).nodes(quadrature, False)
    nodes = {name: value[0] for name, value in whole.nodes(quadrature, False).items()}
    assert half_nodes["points"].shape[1] == (len(nodes["points"]) + 1) / 2
    with jax.enable_x64(True):
        for finite in (False, True):
            halves = moments(problem, quadrature, finite=finite)
            assert_equal_to_rounding(
                halves, moments(problem, quadrature, nodes=nodes, finite=finite)
            )


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_half_grids_have_one_of_two_opposite_points(shift):
    grid, weights = trapezoids(2, 2, 1.15, shift)
    half, half_weights = half_grid(grid, weights)
    np.testing.assert_allclose(half_weights.sum(), 1.0, rtol=1e-14)
    mirrored = np.concatenate([half, -half])
    assert len(np.unique(mirrored, axis=0)) == len(grid)
    # an even function has the same mean, an odd one has 0 on the whole grid
    even = np.cos(grid @ [0.7, -1.1]), np.cos(half @ [0.7, -1.1])
    np.testing.assert_allclose(half_weights @ even[1], weights @ even[0], rtol=1e-14)


def test_tokens_of_different_variance_have_no_mirrored_grid():
    problem = sgd.models.attention(token_correlation=[[1.0, 0.2], [0.2, 0.5]])
    assert problem.structure.dependence is not None
    assert not problem.structure.dependence.is_mirrored


def test_risk_nodes_of_attention_are_exact():
    """The loss is quadratic in what has Gauss-Hermite nodes: two of them are enough."""
    problem = sgd.models.attention(noise=0.3)
    structure = problem.structure
    assert structure.dependence is not None
    of_moments = replace(structure, dependence=replace(structure.dependence, risk_node_counts=()))
    start = sgd.random_start(problem, dimension=50, runs=3, seed=2)
    states = {"M": start.M[:, None], "Q": start.Q[:, None], "a": start.a}
    risks = [
        compute_risks(of, Quadrature(), [problem.parameters], [states], with_errors=False)[0].risk
        for of in (structure, of_moments)
    ]
    np.testing.assert_allclose(*risks, rtol=1e-13)


def test_small_products_are_the_same_as_sums(monkeypatch):
    rows, matrix = np.random.default_rng(3).normal(size=(2, 7, 7))
    product = expectation_nodes.times_small(rows, matrix[:, :4])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(
        expectation_nodes.times_small(rows, matrix[:, :4]), product, rtol=1e-13
    )
