"""Problems with a trained top: shapes, starts, results and bad input."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.tops import validate_top
from tests.problems.trained_tops import bias_problem, bias_start, deep, tasks


def test_top_vector_round_trip():
    top = validate_top({"layers": [{"w": (2, 3)}, {"w": 3}], "scale": ()})
    assert top.names == ("layers.0.w", "layers.1.w", "scale")
    assert top.size == 10
    vector = np.arange(20.0).reshape(2, 10)
    tree = top.unravel(vector)
    assert tree["layers"][0]["w"].shape == (2, 2, 3)
    np.testing.assert_array_equal(top.ravel(tree, leading_axes=1), vector)
    # the order is that of JAX
    leaves = jax.tree.leaves(top.unravel(vector[0]))
    np.testing.assert_array_equal(np.concatenate([leaf.ravel() for leaf in leaves]), vector[0])
    assert validate_top({"w": np.zeros((4, 2))}).shapes == ((4, 2),)
    assert top.entry_names()[5:8] == ["layers.0.w[1, 2]", "layers.1.w[0]", "layers.1.w[1]"]


@pytest.mark.parametrize(
    "top", [{}, {"a": "two"}, {"a": (2, -1)}, {"a": (0,)}, {"a": 1.5}, {"a b": 2}, {"a": True}]
)
def test_bad_shapes_are_named(top):
    with pytest.raises(ValueError, match=r"^top = "):
        sgd.Problem(lambda f, s, t, n: f[0], width=1, signals=1, top=top)


def test_start_takes_arrays_by_leaf():
    problem = bias_problem()
    start = bias_start(problem)
    np.testing.assert_array_equal(start.a, [[1, 0.5, 0, 0.1]])
    runs = sgd.start(
        problem, M=[[0.3], [0.1]], Q=np.eye(2), top={"a": np.ones((3, 2)), "b": [0.5, 0.7]}
    )
    assert runs.runs == 3
    np.testing.assert_array_equal(runs.a, np.tile([1, 1, 0.5, 0.7], (3, 1)))
    overlaps = {"M": [[0.3], [0.1]], "Q": np.eye(2)}
    for arguments, message in (
        ({}, "top = None"),
        ({"top": {"a": [1, 1]}}, "top = "),
        ({"top": {"a": [1, 1], "b": [1, 1, 1]}}, "top.b has shape"),
        ({"top": {"a": [1, np.nan], "b": [1, 1]}}, "finite"),
        ({"a": [1, 1]}, "a = "),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.start(problem, **overlaps, **arguments)
    with pytest.raises(ValueError, match="has a head and no top"):
        sgd.start(sgd.TeacherStudent(width=2), **overlaps, top={"a": [1, 1]})


def test_random_start_draws_the_top_from_streams_of_its_own():
    problem = bias_problem()
    start = sgd.random_start(problem, dimension=50, runs=2000, top_scale={"a": 2.0, "b": 0.5})
    deviations = start.a.std(axis=0)
    np.testing.assert_allclose(deviations, [2, 2, 0.5, 0.5], rtol=5 / np.sqrt(2 * 2000))
    stated = {"a": [1.0, 1.0], "b": [0.0, 0.0]}
    same = sgd.random_start(problem, dimension=50, runs=2000, top=stated)
    np.testing.assert_array_equal(same.Q, start.Q)
    few = sgd.random_start(problem, dimension=50, runs=3)
    np.testing.assert_array_equal(few.a, sgd.random_start(problem, dimension=50, runs=9).a[:3])
    with pytest.raises(ValueError, match="top_scale"):
        sgd.random_start(problem, dimension=50, top_scale={"c": 1.0})


def test_rates_and_decay_by_leaf_are_checked():
    problem = bias_problem()
    start = bias_start(problem)
    for rate, message in (
        ({"c": 1.0}, "head_rate = 'c'"),
        ({"a": -1.0}, "head_rate"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1, head_rate=rate), start, times=[0.1])
    network = sgd.TeacherStudent(width=2)
    overlaps = sgd.start(network, M=[[0.3], [0.1]], Q=np.eye(2))
    with pytest.raises(ValueError, match="rates by leaf"):
        sgd.solve_ode(network, sgd.OnePassSGD(lr=0.1, head_rate={"a": 1.0}), overlaps, times=[0.1])
    with pytest.raises(ValueError, match="weight_decay = 'c'"):
        bias_problem(weight_decay={"c": 0.1})
    assert bias_problem(weight_decay={"a": 0.1}).parameters["head_decay"].tolist() == [
        0.1,
        0.1,
        0,
        0,
    ]


@pytest.mark.slow
def test_results_have_one_variable_per_leaf(tmp_path):
    problem, start = deep()
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate={"V": 0.5, "u": lambda alpha: 1 + 0 * alpha})
    runs = sgd.simulate(
        problem,
        algorithm,
        start,
        steps=[0, 5],
        dimension=20,
        record={"size": lambda state: jnp.sum(state["top.V"] ** 2)},
    )
    assert runs["top.V"].dims == ("run", "time", "V_0", "V_1")
    np.testing.assert_allclose(
        runs["size"].values, np.sum(runs["top.V"].values ** 2, axis=(-1, -2))
    )
    assert json.loads(runs.attrs["problem"])["top"] == {"V": [2, 3], "c": [2], "u": [2]}
    assert json.loads(runs.attrs["algorithm"])["head_rate"]["V"] == 0.5
    sgd.save(runs, tmp_path / "runs.nc")
    loaded = sgd.load(tmp_path / "runs.nc")
    restart = sgd.start_from(loaded, 1)
    np.testing.assert_array_equal(restart.a[:, :6], runs["top.V"].values[:, 1].reshape(1, 6))
    np.testing.assert_array_equal(restart.a[:, 8:], runs["top.u"].values[:, 1])
    np.testing.assert_array_equal(sgd.start_from(loaded, 0).a, start.a)


def test_contexts_with_own_leaves():
    problem, start = tasks()
    assert problem.structure.top.shapes == ((2,), (2,), ())
    both = sgd.contexts(problem.problems, heads="own")
    assert both.structure.top.shapes == ((2,), (2,), (2,))
    shared = sgd.contexts(problem.problems)
    assert shared.structure.top.shapes == ((), (), ())
    with pytest.raises(ValueError, match="heads"):
        sgd.contexts(problem.problems, heads=("x",))
    assert start.a.shape == (1, 5)


def test_problem_replaces_its_top():
    problem = bias_problem()
    wide = problem.replace(weight_decay={"rows": 0.1, "b": 0.2})
    assert wide.structure.top == problem.structure.top
    assert wide.weight_decay == 0.1
    assert wide.describe()["weight_decay"] == {"rows": 0.1, "b": 0.2}
    assert hash(wide.structure) == hash(problem.structure)
