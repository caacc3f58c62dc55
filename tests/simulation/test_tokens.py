"""Samples of several inputs (tokens) with means and draws.

The exact chain and exact fixed data have the law of direct runs in d dimensions.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.exact import ExactFixedData
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import broadcast_runs, validate_start
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run
from tests.conftest import same_law

CORRELATION = [[1.0, 0.4], [0.4, 0.8]]
MEANS = np.array([[0.6, 0.0], [-0.3, 0.5]])


def attention(fields, signals, head, draws):
    """Squared loss of attention over two tokens, with rows q and v.

    Tokens are masked at random. The label has noise and a shift that depends on the group.
    """

    def read(q, v):
        weights = jnp.exp(q) * (0.2 + draws["mask"])
        return jnp.sum(weights * v) / jnp.sum(weights)

    label = read(signals[0], signals[1]) + 0.5 * draws["noise"] + 0.4 * draws["group"]
    return 0.5 * (read(fields[0], fields[1]) - label) ** 2


def means_of(draws):
    return jnp.asarray(MEANS) * jnp.where(draws["group"] == 1, 1.0, -0.5)


def problem_of(**changes):
    draws = {"noise": "normal", "group": [0.3, 0.7], "mask": ("bernoulli", 0.6, 2)}
    arguments = {
        "tokens": 2,
        "token_correlation": CORRELATION,
        "means": means_of,
        "draws": draws,
        "gram": [[1.0, 0.2], [0.2, 0.8]],
    }
    return sgd.Problem(attention, 2, 2, **(arguments | changes))


def overlaps_of(simulator, runs, steps, seed):
    """Overlaps of all runs after the steps, by name."""
    results, diverged = run(simulator, runs, np.array([steps]), seed, "", False)
    assert np.all(diverged < 0)
    return {name: values[:, 0] for name, values in results.items()}


def assert_same_law(problem, algorithm, simulator_classes, *, d=12, runs=6000, steps=6, scale=1.3):
    """Assert that all overlaps of the two simulators have the same law."""
    start = broadcast_runs(
        validate_start(problem, sgd.random_start(problem, dimension=d, seed=1, scale=scale)), runs
    )
    dimension, sizes = check_dimension(problem, d, small=True)
    first_result, second_result = (
        overlaps_of(
            simulator_class(problem, algorithm, RunSetting(start, dimension, sizes)),
            runs,
            steps,
            seed,
        )
        for seed, simulator_class in enumerate(simulator_classes, start=3)
    )
    for name in first_result:
        first, second = (result[name].reshape(runs, -1) for result in (first_result, second_result))
        for entry in range(first.shape[1]):
            same_law(first[:, entry], second[:, entry], f"{name}[{entry}]")


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        pytest.param(1, {}, marks=pytest.mark.slow),
        pytest.param(3, {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, marks=pytest.mark.slow),
    ],
    ids=["few", "wide"],
)
def test_chain_against_direct(batch, options):
    """Two correlated tokens with means, masks, groups and noise.

    A batch of 3 has more inputs than the network has units, so the chain combines inputs.
    """
    d = 12 if not options else 16
    assert_same_law(
        problem_of(**options), sgd.OnePassSGD(lr=2.0, batch=batch), (ExactChain, DirectSGD), d=d
    )


@pytest.mark.slow
def test_comparison_detects_other_problems():
    """Without the correlation of the tokens, or without their means, the laws differ."""
    for changes in ({"token_correlation": None}, {"means": None}):
        changed_problem = problem_of(**changes)

        def direct_simulator(problem, *arguments, changed_problem=changed_problem):
            return DirectSGD(changed_problem, *arguments)

        with pytest.raises(AssertionError):
            assert_same_law(problem_of(), sgd.OnePassSGD(lr=2.0), (ExactChain, direct_simulator))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "descent",
        pytest.param("persistent", marks=pytest.mark.slow),
        pytest.param("langevin", marks=pytest.mark.slow),
    ],
)
def test_fixed_data(kind):
    algorithm = {
        "descent": sgd.GradientDescent(lr=0.3, samples_per_dimension=0.75),
        "persistent": sgd.PersistentSGD(lr=0.3, samples_per_dimension=0.75, batch_fraction=0.5),
        "langevin": sgd.Langevin(lr=0.3, samples_per_dimension=0.75, temperature=0.3),
    }[kind]
    runs = 3000

    def exact(problem, algorithm, setting):
        return ExactFixedData(problem, algorithm, replace(setting, seed=3))

    def direct(problem, algorithm, setting):
        return DirectFixedData(problem, algorithm, replace(setting, seed=4))

    assert_same_law(problem_of(), algorithm, (exact, direct), d=8, runs=runs, steps=5)


@pytest.mark.slow
def test_one_token_is_one_input():
    """Runs with tokens=1 and no correlation equal those with tokens=None."""

    def loss(fields, signals, head, noise):
        return 0.5 * (jnp.sum(jnp.tanh(fields)) - jnp.sum(signals) - 0.1 * noise) ** 2

    results = []
    for tokens in (None, 1):
        problem = sgd.Problem(loss, 2, 1, tokens=tokens)
        start = broadcast_runs(validate_start(problem, sgd.random_start(problem, dimension=20)), 2)
        for simulator_class in (ExactChain, DirectSGD):
            results.append(
                overlaps_of(
                    simulator_class(
                        problem,
                        sgd.OnePassSGD(lr=0.5, batch=3),
                        RunSetting(start, *check_dimension(problem, 20)),
                    ),
                    2,
                    20,
                    0,
                )
            )
    for without_tokens, one_token in zip(results[:2], results[2:], strict=True):
        np.testing.assert_allclose(without_tokens["Q"], one_token["Q"], rtol=1e-10)


@pytest.mark.slow
def test_label_noise_of_a_mixture():
    """With clusters and draws, the loss receives the draws, the cluster and its label."""

    def loss(fields, signals, head, draws):
        output = jnp.sum(head * jax.nn.relu(fields))
        return (
            jax.nn.softplus(output)
            - draws["label"] * output
            + 0.3 * draws["noise"] * jnp.sum(fields)
        )

    clusters = [(0.3, [1.0], 1.0), (0.7, [-1.0], 0.0)]
    problem = sgd.Problem(
        loss,
        2,
        1,
        clusters=clusters,
        draws={"noise": "normal"},
        head="trained",
        covariance=[(0.5, 1.0)],
        kinks=[0.0],
    )
    assert_same_law(problem, sgd.OnePassSGD(lr=2.0, batch=1), (ExactChain, DirectSGD))
    sample = problem.structure.sample
    weights, cases = sample.cases(problem.parameters)
    assert sample.sampled_normals == 1
    np.testing.assert_allclose(weights, [0.3, 0.7])
    np.testing.assert_array_equal(cases["label"], [1.0, 0.0])
    with jax.enable_x64(True):
        draws = sample.draw(problem.parameters, jnp.zeros((2, 1)), cases)
        np.testing.assert_array_equal(
            sample.mean_coefficients(problem.parameters, draws), [[1.0], [-1.0]]
        )


@pytest.mark.slow
def test_cases():
    """Cases are all combinations of the discrete draws; if they are too many, they are sampled."""
    sample, parameters = problem_of().structure.sample, problem_of().parameters
    weights, cases = sample.cases(parameters)
    assert weights.shape == (8,)
    assert sample.sampled_normals == 1
    np.testing.assert_allclose(weights.sum(), 1.0)
    for weight, group, mask in zip(weights, cases["group"], cases["mask"], strict=True):
        np.testing.assert_allclose(
            weight, [0.3, 0.7][group] * np.prod(np.where(mask == 1, 0.6, 0.4))
        )
    assert (
        len(
            {(int(group), *mask) for group, mask in zip(cases["group"], cases["mask"], strict=True)}
        )
        == 8
    )
    problem = problem_of(
        draws={
            "noise": "normal",
            "group": [0.3, 0.7],
            "mask": ("bernoulli", 0.6, 2),
            "shift": ("categorical", [0.2, 0.3, 0.5], 3),
        }
    )
    weights, cases = problem.structure.sample.cases(problem.parameters)
    assert (
        problem.structure.sample.sampled_normals == problem.structure.sample.normals_per_sample == 7
    )
    assert weights.tolist() == [1.0]
    assert cases == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens = 0"),
        ({"tokens": None}, "token_correlation"),
        ({"token_correlation": [[1.0]]}, "token_correlation has shape"),
        ({"token_correlation": [[1.0, 2.0], [2.0, 1.0]]}, "token_correlation is not a Gram matrix"),
        ({"means": [1.0]}, "means has shape"),
        ({"means": lambda draws: jnp.ones(3)}, "means = .*must give shape"),
        ({"means": lambda draws: draws["nothing"]}, "means = .*failed with: KeyError"),
        ({"draws": {"noise": "normal", "group": [0.3, 0.3]}}, r"draws\['group'\].*add up to 1"),
        ({"draws": {"noise": "norml"}}, r"draws\['noise'\] = 'norml': did you mean 'normal'"),
        ({"draws": ["noise"]}, "give a dictionary"),
        ({"draws": {"label": "normal"}, "clusters": [(1.0, [1.0, 0.0], 1.0)]}, "already defines"),
        ({"draws": None, "means": None}, "loss = .*calling it on one sample failed"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        problem_of(**changes)


def test_record():
    problem = problem_of()
    record = problem.describe()
    assert record["tokens"] == 2
    assert record["draws"] == {
        "noise": "normal",
        "group": [0.3, 0.7],
        "mask": ("bernoulli", 0.6, 2),
    }
    assert record["means"]["function"] == "means_of"
    assert "tokens=2" in repr(problem)
    assert problem.replace(tokens=2) == problem
    assert problem.replace(token_correlation=None) != problem
