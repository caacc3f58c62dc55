"""Label laws p(y | z): their kinds, their densities against their draws, and errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.problems.likelihoods import OutcomeLaw, likelihood_of
from sgdynamics.statics.setup import setup_of
from tests.conftest import Z


def _loss(fields, signals, head, noise_draw):
    return (fields[0] - signals[0]) ** 2


OWN = sgd.Problem(
    _loss,
    1,
    2,
    parameters={"slope": 2.0},
    likelihood=sgd.labels.outcomes(
        [0.0, 1.0, 3.0],
        lambda z, parameters: jax.nn.softmax(parameters["slope"] * jnp.append(z, 0.0)),
    ),
)
PROBLEMS = {
    "erf": sgd.TeacherStudent(width=1, activation="erf", teacher_width=2, noise=0.3),
    "laplace": sgd.TeacherStudent(width=1, activation="linear", noise=sgd.labels.laplace(0.4)),
    "own": OWN,
    "mixture": sgd.GaussianMixture("binary", snr=0.7),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_draws_follow_the_stated_law(name):
    """Draws at fixed signals have the probabilities, or the distribution function, of log_p."""
    likelihood = likelihood_of(PROBLEMS[name])
    signals = np.array([0.7, -0.3])[: likelihood.directions]
    normals = np.random.default_rng(3).standard_normal(40000)
    with jax.enable_x64(True):
        labels = np.asarray(
            jax.vmap(lambda x: likelihood.law.draw(signals, x, likelihood.parameters))(normals)
        )
        if likelihood.kind == "additive":
            grid = np.linspace(-30, 30, 60001)
            density = np.exp(jax.vmap(lambda y: likelihood.log_p(y, signals))(grid))
            below = np.cumsum(density) * (grid[1] - grid[0])
            assert below[-1] == pytest.approx(1.0, abs=1e-4)
            result = stats.kstest(labels, lambda y: np.interp(y, grid, below))
            assert result.pvalue > 1e-6
            return
        for value in set(labels.tolist()):
            chance = float(np.exp(likelihood.log_p(value, signals)))
            share = np.mean(labels == value)
            assert abs(share - chance) < Z * np.sqrt(chance * (1 - chance) / len(labels))


def test_functions_of_few_values_without_noise_are_outcomes():
    committee = sgd.TeacherStudent(
        width=1, activation="erf", teacher_activation="sign", teacher_width=2
    )
    law = likelihood_of(committee).law
    assert isinstance(law, OutcomeLaw)
    assert law.values == (-1.0, 0.0, 1.0)
    points = np.random.default_rng(0).standard_normal((50, 2))
    expected = np.mean(np.sign(points), axis=1)
    assert np.array_equal(likelihood_of(committee).means(points), expected)
    assert likelihood_of(committee.replace(noise=0.1)).kind == "additive"
    # half of the values of a ReLU are 0, but it is not a function of few values
    assert likelihood_of(sgd.TeacherStudent(width=1, activation="relu")).kind == "additive"


def test_setup_has_the_covariance_of_the_signals():
    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=[(0.5, 0.5), (1.0, 0.3), (2.0, 0.2)], noise=0.1
    )
    assert setup_of(problem).rho == pytest.approx(np.array([[0.95]]))
    spectrum = sgd.power_law(1.5, 100, 0.5)
    setup = setup_of(sgd.TeacherStudent(width=1, activation="linear", covariance=spectrum))
    assert setup.fractions.sum() == pytest.approx(1.0)
    assert np.round(100 * setup.fractions) == pytest.approx(spectrum.multiplicities)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (sgd.Problem(_loss, 1, 1), "is not known"),
        (sgd.GaussianMixture("xor"), "is not known"),
        (sgd.TeacherStudent(width=1, input_noise=0.1), "is not known"),
        (sgd.TeacherStudent(width=1, noise=lambda alpha: 0.1 * alpha), "depends on alpha"),
        (
            sgd.TeacherStudent(
                width=1, activation="linear", covariance=sgd.power_law(1.5, np.inf, 0.5)
            ),
            "infinite-dimensional",
        ),
    ],
)
def test_problems_without_a_law_of_labels_are_refused(problem, reason):
    with pytest.raises(ValueError, match=reason):
        setup_of(problem)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"likelihood": "gaussian"}, "sgd.labels.outcomes"),
        ({"likelihood": sgd.labels.additive(lambda z: z, 0.1)}, "one number"),
        ({"likelihood": sgd.labels.outcomes([0, 1], lambda z: jnp.ones(2))}, "add up to 1"),
        ({"likelihood": sgd.labels.additive(lambda z: z[3], 0.1)}, "failed"),
    ],
)
def test_invalid_likelihoods_are_rejected(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        sgd.Problem(_loss, 1, 1, **arguments)
