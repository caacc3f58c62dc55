"""A distribution of samples that is implemented outside of the library works in all solvers."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.samples.draws import Draw
from sgdynamics.samples.sample import Sample

DIMENSION, SHIFT = 30, 0.4


def exponential(normals):
    """Map a normal z to the exponential variable of the same quantile, -log(1 - Phi(z))."""
    return -jax.scipy.special.log_ndtr(-normals)


@dataclass(frozen=True)
class ExponentialSample(Sample):
    """Samples with one exponential draw, along which the mean of the input moves."""

    means: bool = True

    @property
    def all_draws(self):
        return (Draw("amplitude"),)

    @property
    def sampled_draws(self):
        return self.all_draws

    def draw(self, parameters, normals, case=None):
        return {"amplitude": exponential(normals[..., 0])}

    def cases(self, parameters):
        return np.ones(1), {}

    def loss_argument(self, draws):
        return draws["amplitude"]

    def mean_coefficients(self, parameters, draws):
        return SHIFT * draws["amplitude"][..., None]


def loss(fields, signals, head, amplitude):
    return 0.5 * (jnp.sum(jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.1 * amplitude) ** 2


def transformed_loss(fields, signals, head, draws):
    return loss(fields, signals, head, exponential(draws["z"]))


transformed_loss.smooth = True  # not visible from its operations; selects the same quadrature


def with_structure(problem, **changes):
    """Return the problem with another structure, without a known dependence on the draws."""
    changed = copy(problem)
    changed.__dict__["structure"] = replace(problem.structure, dependence=None, **changes)
    return changed


@pytest.fixture(scope="module")
def problems():
    """Problems with a user's sample, and with a normal draw that loss and means transform."""
    inside = with_structure(
        sgd.Problem(
            transformed_loss,
            width=2,
            signals=1,
            draws={"z": "normal"},
            means=lambda draws: SHIFT * exponential(draws["z"])[None],
        )
    )
    plain = sgd.Problem(loss, width=2, signals=1)
    return with_structure(plain, sample=ExponentialSample(1)), inside


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "direct"])
def test_runs_agree_to_rounding(problems, method):
    """Both problems read the same normals, so that seeded runs agree, not only their laws."""
    results = []
    for problem in problems:
        start = sgd.random_start(problem, dimension=DIMENSION, seed=1)
        algorithm = sgd.OnePassSGD(lr=0.5)
        results.append(
            sgd.simulate(
                problem, algorithm, start, dimension=DIMENSION, steps=[0, 30], seed=2, method=method
            )
        )
    outside, inside = results
    assert float(np.abs(outside["M"][:, -1] - outside["M"][:, 0]).max()) > 0.01
    for name in ("M", "Q"):
        np.testing.assert_allclose(outside[name].values, inside[name].values, rtol=1e-12)


@pytest.mark.slow
def test_expectations_agree_to_rounding(problems):
    """The drift of the ODE is an expectation over the draws of the interface."""
    drifts = []
    for problem in problems:
        start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
        with jax.enable_x64(True):
            state = sgd.functional.state(start)
            rates = sgd.functional.drift(problem.structure, problem.parameters, state, lr=0.5)
            drifts.append(jax.tree.map(np.asarray, rates))
    outside, inside = drifts
    assert np.abs(outside["M"]).max() > 0.01
    for name in ("M", "Q"):
        np.testing.assert_allclose(outside[name], inside[name], rtol=1e-10)
