"""Questions about problems with a trained top."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.problems.linear_top import linear_top, linear_top_start
from tests.problems.trained_tops import bias_problem, bias_start, biased_loss, polynomial


def rows_of_start(dimension):
    """Rows with the overlaps of `bias_start`, with the signal along the first axis."""
    M, Q = np.array([0.3, -0.2]), np.array([[1, 0.2], [0.2, 0.8]])
    rows = np.zeros((2, dimension))
    rows[:, 0] = M
    rows[:, 1:3] = np.linalg.cholesky(Q - np.outer(M, M))
    return rows


def hermite_risk(vector, nodes, weights, dimension):
    """The risk of rows and top as a function of all their entries.

    The inputs are integrated by Gauss-Hermite nodes in the first four axes, and one more axis
    stands for all others, as the risk depends on rows that the fields see.
    """
    rows, top = vector[: 2 * dimension].reshape(2, dimension), vector[2 * dimension :]

    def loss(x):
        return biased_loss(rows @ x, x[:1], {"a": top[:2], "b": top[2:]}, 0.0)

    return weights @ jax.vmap(loss)(nodes)


def test_hessian_has_the_block_of_the_top_and_the_cross_block():
    """Against second derivatives in d = 4 dimensions, where the risk is a quadrature."""
    dimension = 4
    axis, weight = np.polynomial.hermite_e.hermegauss(14)
    weight = weight / weight.sum()
    nodes = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), -1).reshape(-1, dimension)
    weights = np.prod(np.meshgrid(*[weight] * dimension, indexing="ij"), axis=0).reshape(-1)
    vector = np.concatenate([rows_of_start(dimension).reshape(-1), [1, 0.5, 0, 0.1]])
    with jax.enable_x64(True):
        brute_force = jax.jit(jax.hessian(hermite_risk), static_argnums=3)(
            jnp.asarray(vector), jnp.asarray(nodes), jnp.asarray(weights), dimension
        )
    problem = bias_problem()
    spectrum = sgd.hessian_spectrum(problem, bias_start(problem), dimension=dimension)
    eigenvalues = np.repeat(spectrum.eigenvalues, spectrum.multiplicities)
    assert len(eigenvalues) == 2 * dimension + 4
    np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(brute_force), atol=1e-3)
    rows_only = sgd.hessian_spectrum(problem, bias_start(problem), dimension=dimension, top=False)
    block = np.linalg.eigvalsh(brute_force[: 2 * dimension, : 2 * dimension])
    np.testing.assert_allclose(
        np.repeat(rows_only.eigenvalues, rows_only.multiplicities), block, atol=1e-3
    )


@pytest.mark.slow
def test_fixed_points_include_the_top():
    problem, start = polynomial()
    points = sgd.fixed_points(problem, sgd.OnePassSGD(lr=0.3), starts=start, tries=4)
    for point in points:
        assert point.residual < 1e-12
        assert set(point.top) == {"a", "b"}
        np.testing.assert_array_equal(point.start.a[0], np.concatenate(list(point.top.values())))


def test_expectations_receive_the_pytree():
    problem, start = polynomial()

    def gain(fields, signals, top, draws):
        return top["a"][0] * fields[0] * signals[0] + top["b"][1]

    value = sgd.expect(start, gain, problem)
    np.testing.assert_allclose(value.values, [0.6 * 0.3 + 0.2], atol=1e-4)


@pytest.mark.slow
def test_exit_times():
    problem, start = polynomial()
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate={"b": 0.5})
    theory = sgd.exit_time(problem, algorithm, start, threshold=0.3)
    runs = sgd.exit_time(
        problem, algorithm, start, threshold=0.3, method="exact", dimension=100, runs=40
    )
    error = runs.times.std() / np.sqrt(40)
    assert abs(runs.times.mean() - float(theory.times[0])) < 5 * error + 0.02


@pytest.mark.slow
def test_a_certificate_tests_theory_and_simulation():
    problem, start = polynomial()
    certificate = sgd.certify(
        problem,
        sgd.OnePassSGD(lr=0.3, head_rate={"b": 0.5}),
        start,
        alpha=[1.0, 3.0],
        dimension=30,
        dimensions=(60, 240, 960),
        runs=400,
        progress=False,
    )
    assert certificate.passed
    assert certificate.spread_slope == pytest.approx(-0.5, abs=0.1)


@pytest.mark.slow
def test_the_value_of_a_protocol_is_the_risk_of_its_ode():
    problem, start = linear_top(), linear_top_start(linear_top())
    algorithm = sgd.OnePassSGD(lr=0.5, head_rate={"V": 0.7})
    best = sgd.optimal_protocol(
        problem, algorithm, start, alpha=30.0, controls={"lr": (0, 5)}, pieces=2, progress=False
    )
    schedule = sgd.piecewise_rate([15.0], list(best.protocol["lr"]))
    path = sgd.solve_ode(problem, algorithm.replace(lr=schedule), start, alpha=[30.0])
    assert best.value == pytest.approx(float(path.risk[0, 0]), rel=1e-7)
    assert best.value < best.constant["risk"]


@pytest.mark.slow
def test_sweeps_reach_the_leaves():
    """Points over the rate of a leaf and over its start, compared with single calls."""
    problem, _ = polynomial()
    overlaps = {"M": [[0.3], [-0.2]], "Q": [[1, 0.2], [0.2, 0.8]]}
    record = {"kind": "overlaps", **overlaps, "top": {"a": [0.6, 0.3], "b": [0.1, 0.2]}}
    biases = [[0.1, 0.2], [0.4, 0.0]]
    table = sgd.sweep(
        "solve_ode",
        problem=problem,
        algorithm=sgd.OnePassSGD(lr=0.3, head_rate={"b": 0.5}),
        start=record,
        over={"algorithm.head_rate.b": [0.5, 2.0], "start.top.b": biases},
        times=[0.5],
    )
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate={"b": 2.0})
    start = sgd.start(problem, **overlaps, top={"a": [0.6, 0.3], "b": biases[1]})
    alone = sgd.solve_ode(problem, algorithm, start, times=[0.5])
    np.testing.assert_allclose(
        table["top.b"].values[1, 1].reshape(-1), alone["top.b"].values.reshape(-1), rtol=1e-9
    )


def test_problems_without_an_answer_say_why():
    problem, start = polynomial()
    for update, message in (
        (sgd.updates.row_adam(2, 4.0, eps=0.1), "does not train a head"),
        (sgd.updates.separate(head={"c": sgd.updates.adam(1.0)}), "head = 'c'"),
        (sgd.updates.clipped(1.0, over="row"), "a top belongs to no row"),
    ):
        algorithm = sgd.OnePassSGD(lr=0.3, update=update)
        with pytest.raises(ValueError, match=message):
            sgd.solve_ode(problem, algorithm, start, times=[1.0])
    with pytest.raises(ValueError, match="regimes are known"):
        sgd.regime(problem, sgd.OnePassSGD(lr=0.3), dimension=50)
