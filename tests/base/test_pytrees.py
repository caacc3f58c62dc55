"""Problems and algorithms are pytrees of their parameters.

They can be mapped, traced and differentiated, and stay problems and algorithms.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.solvers import functional


def scaled_loss(fields, signals, head, noise_draw, parameters):
    return 0.5 * (parameters["scale"] * fields[0] - signals[0]) ** 2


def maximum_target(z):
    return jnp.maximum(z[0], z[1])


def masked_loss(fields, signals, head, draws, parameters):
    return (
        0.5 * parameters["scale"] * jnp.sum(draws["mask"] * (fields[0] - signals[0]) ** 2)
        + draws["group"] * draws["noise"]
    )


DRAWS = {"noise": "normal", "group": [0.3, 0.7], "mask": ("bernoulli", 0.25, 2)}
TOKENS = {
    "tokens": 2,
    "token_correlation": [[1.0, 0.5], [0.5, 1.0]],
    "means": [[0.1], [0.2]],
    "draws": DRAWS,
}
PROBLEMS = {
    "tokens": sgd.Problem(
        masked_loss, 1, 1, parameters={"scale": lambda alpha: 1 / (1 + alpha)}, **TOKENS
    ),
    "faster": sgd.TeacherStudent(1, noise=sgd.piecewise_rate([1.0], [0.1, 0.2])),
    "teacher": sgd.TeacherStudent(
        2, 2, "erf", noise=0.1, weight_decay=0.01, teacher_gram=[[1.0, 0.2], [0.2, 1.0]]
    ),
    "blocks": sgd.TeacherStudent(2, noise=0.1, covariance=[(1.0, 0.5), (4.0, 0.5)]),
    "target": sgd.MultiIndex(maximum_target, 2, 2, noise=0.2),
    "mixture": sgd.GaussianMixture("xor", snr=49.0),
    "clusters": sgd.Problem(
        scaled_loss,
        1,
        1,
        clusters=[(0.5, [1.0], 1.0), (0.5, [-1.0], 0.0)],
        parameters={"scale": 1.5},
    ),
    "tensor": sgd.SpikedTensor(3, snr=2.0, ridge=0.1),
}
ALGORITHMS = {
    "one pass": sgd.OnePassSGD(lr=0.2, batch=4, head_rate=0.5, update=sgd.updates.momentum(0.25)),
    "scheduled": sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [0.1, 0.2])),
    "persistent": sgd.PersistentSGD(lr=0.1, persistence_time=2.0),
    "hot": sgd.Langevin(lr=0.1, temperature=2.0),
}
OBJECTS = PROBLEMS | ALGORITHMS


@pytest.mark.parametrize("name", OBJECTS)
def test_round_trip(name):
    original = OBJECTS[name]
    leaves, structure = jax.tree.flatten(original)
    assert leaves
    copy = jax.tree.unflatten(structure, leaves)
    assert copy == original
    assert hash(copy) == hash(original)
    assert copy.describe() == original.describe()
    assert copy.replace() == original
    jax.tree.unflatten(structure, [object()] * len(leaves))  # unflattening checks nothing
    # Compiled code returns the same values as JAX arrays.
    with jax.enable_x64(True):
        arrays = jax.jit(lambda x: x)(original)
    assert arrays == original
    assert arrays.describe() == original.describe()
    assert arrays.replace() == original
    assert hash(arrays) == hash(original)
    for key, value in jax.tree.flatten_with_path(original.parameters)[0]:
        array = dict(jax.tree.flatten_with_path(arrays.parameters)[0])[key]
        np.testing.assert_array_equal(np.asarray(array), value, err_msg=str(key))


CHANGES = {
    "teacher": {
        "noise": 0.2,
        "weight_decay": 0.02,
        "teacher_head": [2.0, 2.0],
        "teacher_gram": [[2.0, 0.4], [0.4, 2.0]],
    },
    "target": {"noise": 0.4, "gram": 2 * np.eye(2)},
    "faster": {
        "noise": sgd.piecewise_rate([2.0], [0.2, 0.4]),
        "teacher_gram": [[2.0]],
        "teacher_head": [2.0],
    },
    "mixture": {"snr": 98.0, "weight_decay": 0.2},
    "tensor": {"snr": 4.0, "ridge": 0.2},
    "one pass": {"lr": 0.4, "head_rate": 1.0, "update": sgd.updates.momentum(0.5)},
    "scheduled": {"lr": sgd.piecewise_rate([2.0], [0.2, 0.4]), "head_rate": 2.0},
    "persistent": {
        "lr": 0.2,
        "samples_per_dimension": 6.0,
        "head_rate": 2.0,
        "batch_fraction": 1.0,
        "persistence_time": 4.0,
    },
    "hot": {"lr": 0.2, "samples_per_dimension": 6.0, "head_rate": 2.0, "temperature": 4.0},
}


def double_leaf(path, leaf):
    """Double all parameters except the eigenvalues and fractions of the inputs.

    The fractions must add up to one.
    """
    return leaf if path[0].name in ("eigenvalues", "fractions") else 2 * leaf


@pytest.mark.parametrize("name", CHANGES)
def test_mapping_agrees_with_replace(name):
    """Attributes, records, derived parameters and later copies have the mapped parameters."""
    original = OBJECTS[name]
    double, expected = (
        jax.tree_util.tree_map_with_path(double_leaf, original),
        original.replace(**CHANGES[name]),
    )
    assert double == expected
    assert double != original
    assert double.describe() == expected.describe()
    assert repr(double) == repr(expected)
    parameters, expected_parameters = double.parameters, expected.parameters
    assert set(parameters) == set(expected_parameters)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-15), parameters, expected_parameters
    )
    for attribute in CHANGES[name]:
        attribute = "gram" if attribute == "teacher_gram" else attribute
        assert np.all(np.asarray(getattr(double, attribute) == getattr(expected, attribute)))
    # A further change starts from the mapped parameters.
    assert double.replace(**dict(list(CHANGES[name].items())[:1])) == expected


def test_later_changes_keep_mapped_parameters():
    original = PROBLEMS["blocks"]
    double = jax.tree_util.tree_map_with_path(double_leaf, original)
    assert double.replace(width=3) == sgd.TeacherStudent(
        3,
        noise=0.2,
        teacher_gram=2 * np.array([[[0.5]], [[0.5]]]),
        teacher_head=[2.0],
        covariance=[(1.0, 0.5), (4.0, 0.5)],
    )
    with pytest.raises(ValueError, match="the fractions of d must add up to 1, these add up to 2"):
        jax.tree.map(lambda x: 2 * x, original).replace(width=3)
    same = jax.tree.map(lambda x: x, sgd.TeacherStudent(2, noise=0.1))
    # A head that was never set still follows the width of the teacher.
    assert same.replace(teacher_width=2).teacher_head.tolist() == [1.0, 1.0]
    assert PROBLEMS["mixture"].replace(mixture="binary").width == 2
    with pytest.raises(AttributeError, match="problems are immutable"):
        double.noise = 0.3
    tokens = jax.tree_util.tree_map_with_path(
        lambda path, x: x[::-1] if path[0].name == "draws" else double_leaf(path, x),
        PROBLEMS["tokens"],
    )
    arguments = {
        **TOKENS,
        "token_correlation": [[2.0, 1.0], [1.0, 2.0]],
        "means": [[0.2], [0.4]],
        "gram": [[2.0]],
    }
    arguments["draws"] = {**DRAWS, "group": [0.7, 0.3], "mask": ("bernoulli", 0.75, 2)}
    expected = PROBLEMS["tokens"].replace(**arguments)
    assert tokens == expected
    assert tokens.replace() == expected
    assert tokens.describe() == expected.describe()
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-15),
        tokens.parameters,
        expected.parameters,
    )
    user = jax.tree.map(lambda x: 3 * x, PROBLEMS["clusters"])
    assert user.describe()["parameters"] == {"scale": 4.5}
    assert user.clusters == ((1.5, (3.0,), 3.0), (1.5, (-3.0,), 0.0))


@pytest.mark.slow
def test_vmap_over_the_noise_of_a_problem():
    problem = sgd.TeacherStudent(2, noise=0.1)
    state = functional.state(sgd.start(problem, M=[[0.3], [-0.2]], Q=np.eye(2)))
    noises = [0.0, 0.1, 0.3]
    batch = jax.tree.map(
        lambda *leaves: np.stack(leaves), *(problem.replace(noise=noise) for noise in noises)
    )
    assert batch.noise.tolist() == noises

    def risk(member):
        return functional.risk(member.structure, member.parameters, state)

    with jax.enable_x64(True):
        batch_risks = jax.jit(jax.vmap(risk))(batch)
        risks = [float(jax.jit(risk)(problem.replace(noise=noise))) for noise in noises]
        np.testing.assert_allclose(batch_risks, risks, rtol=1e-13)
        gradient = jax.grad(risk)(problem)
    assert isinstance(gradient, sgd.TeacherStudent)
    assert gradient.noise == pytest.approx(0.5)  # the risk has noise/2
    assert gradient.weight_decay == 0.0


def test_derived_parameters_follow_their_sources():
    """The frame under jit and its derivative.

    The identity and a singular matrix are the hard cases: their eigenvectors have no derivative.
    """
    problem = sgd.TeacherStudent(2, 2, "erf")
    direction = np.array([[0.3, 0.1], [0.1, -0.2]])

    def frame(gram):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: gram if path[0].name == "gram" else leaf, problem
        ).parameters["frame"]

    with jax.enable_x64(True):
        value, tangent = jax.jvp(frame, (problem.gram,), (direction[None],))
        step = 1e-6
        shifted_frames = [
            np.linalg.cholesky(np.eye(2) + sign * step * direction) for sign in (1, -1)
        ]
        np.testing.assert_allclose(
            tangent[0], (shifted_frames[0] - shifted_frames[1]) / (2 * step), atol=1e-9
        )
        np.testing.assert_array_equal(value[0], np.eye(2))
        singular = np.array([[[1.0, 1.0], [1.0, 1.0]]])
        np.testing.assert_allclose(
            jax.jit(frame)(singular)[0], [[1.0, 0.0], [1.0, 0.0]], atol=1e-15
        )
        snr = jax.jit(lambda problem: problem.parameters["eigenvalues"])(PROBLEMS["mixture"])
        assert float(snr[0]) == 1 / 49
        edges = jax.jit(lambda problem: problem.parameters["cluster_edges"])(PROBLEMS["clusters"])
        np.testing.assert_allclose(edges, [0.0], atol=1e-15)
