"""Scaling of the effective dynamics of the spiked matrix: exponents and critical step size."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.analysis.effective.scaling import effective_scaling
from sgdynamics.analysis.effective.trends import fit_trend
from tests.analysis.effective.test_dynamics import (
    AL,
    LAM,
    POINT,
    check_estimate,
    normals,
    small_loss,
    small_sample,
    small_statistics,
    spiked_closed_form,
    spiked_point,
)
from tests.conftest import Z


def matrix_loss(x, y):
    """The spiked matrix, with fewer normals for gradient noise of the same law at the point.

    The noise of the gradient is 2 sqrt(2) R Z + 2 sqrt(2) xi x.
    """
    point = jax.lax.stop_gradient(x)
    noise = np.sqrt(8) * (jnp.sqrt(point @ point) * y[2:] + y[0] * point)
    return (x @ x) ** 2 - 2 * LAM * x[0] ** 2 + AL / 2 * (x @ x) + noise @ x


def matrix_statistics(x):
    return jnp.stack([x[0], jnp.sqrt(x.size) * x[0], jnp.sum(x[1:] ** 2), jnp.sum(x[1:4]) ** 3 / 6])


@pytest.mark.slow
def test_scaling_of_the_spiked_matrix():
    dimensions, lr, r2 = (32, 128, 512), 0.5, 0.8
    scaling = effective_scaling(
        matrix_loss,
        normals,
        matrix_statistics,
        point=lambda n: spiked_point(n, 0.3 / np.sqrt(n), r2),
        lr=lr,
        dimensions=dimensions,
        samples=4000,
        antithetic=jnp.negative,
        names=("m", "sqrt(n) m", "r2", "cube"),
    )
    for n, result in zip(dimensions, scaling.at, strict=True):
        f, g, sigma = spiked_closed_form(2, n, 0.3 / np.sqrt(n), r2, lr / n)
        np.testing.assert_allclose(result.drift[[0, 2]], f, rtol=1e-9)
        value, error = result.corrector[[0, 2]], result.corrector_error[[0, 2]]
        check_estimate(value, error, g, g, f"corrector, n = {n}")
        chosen = np.ix_([0, 2], [0, 2])
        deviation = np.abs(result.diffusion[chosen] - sigma)
        assert np.all(deviation <= Z * result.diffusion_error[chosen])
    for trends, exponents in (
        (scaling.corrector, (None, None, 0.0)),
        (scaling.diffusion, (-1.0, 0.0, -1.0)),
    ):
        for trend, exponent in zip(trends, exponents, strict=False):
            if exponent is None:
                assert trend.verdict == "zero"
                continue
            # R^2 and (n - 1)/n change by 3% from 32 to 512.
            assert abs(trend.exponent - exponent) <= Z * trend.exponent_error + 0.02
            assert trend.exponent_error < 0.03
            if exponent == 0:
                assert trend.verdict == "bounded"
            else:
                assert trend.verdict.startswith("vanishes like d^-")
    np.testing.assert_allclose(scaling.critical[:3], [0.0, 1.0, 1.0], atol=0.1)
    assert scaling.critical_exponent == pytest.approx(1.0, abs=0.1)
    assert scaling.critical_exponent_error < 0.03
    assert "delta = lr/d is the critical scaling" in scaling.words
    hessian, third, gradient, fourth, square, printed = scaling.conditions
    scale = np.array(dimensions)
    np.testing.assert_allclose(hessian.values[:, 2], 2 * np.sqrt(lr / scale), rtol=1e-9)
    cube = [np.sum(spiked_point(n, 0.0, r2)[1:4]) for n in dimensions]
    np.testing.assert_allclose(
        hessian.values[:, 3], 3 * np.array(cube) * np.sqrt(lr / scale), rtol=1e-9
    )
    np.testing.assert_allclose(third.values, np.tile([0, 0, 0, 3**1.5], (3, 1)), atol=1e-8)
    # E<grad H, grad u>^4 = 3 Var^2 for a Gaussian. E<hess u, HH - V>^2 = 512 R^4 n for r2, to
    # leading order.
    variance = np.array(
        [spiked_closed_form(2, n, 0.3 / np.sqrt(n), r2, 1.0)[2][0, 0] for n in dimensions]
    )
    np.testing.assert_allclose(fourth.values[:, 1], 3 * (lr * variance) ** 2, rtol=0.2)
    np.testing.assert_allclose(printed.values[:, 2], lr * 512 * r2**2, rtol=0.15)
    assert abs(square.trend.exponent + 2) < 0.1
    # The last condition holds as derived, and would not hold as printed.
    assert printed.trend.verdict == "bounded"
    assert [condition.holds for condition in scaling.conditions] == [True] * 5 + [None]
    assert scaling.localizable
    assert gradient.trend.verdict == "bounded"
    text = str(scaling)
    assert "Sigma(sqrt(n) m)" in text
    assert "localizable at these points: yes" in text
    assert "too large" in dataclasses.replace(scaling, critical=scaling.critical + 1).words
    assert "sub-critical" in dataclasses.replace(scaling, critical=scaling.critical - 0.5).words


def test_exponents_of_fits():
    d, rng = np.array([10.0, 30.0, 100.0, 300.0]), np.random.default_rng(0)
    z, verdicts = [], set()
    for _ in range(200):
        error = 0.05 * d**-0.5
        trend = fit_trend(d, -2.0 * d**-0.5 + error * rng.normal(size=4), error)
        z.append((trend.exponent + 0.5) / trend.exponent_error)
        verdicts.add(trend.verdict.split("^")[0])
    assert verdicts == {"vanishes like d"}
    assert abs(np.mean(z)) < Z / np.sqrt(200)
    # The error is at least the misfit, so that the mean is below one.
    assert 0.5 < np.mean(np.square(z)) < 1.5
    # Values below their error are fitted, not dropped.
    error = np.full(4, 0.01)
    assert fit_trend(d, d**-2.0 + [0.0, 0.003, -0.004, 0.002], error).exponent < -1
    assert fit_trend(d, 0 * d, 0 * d).verdict == "zero"
    assert fit_trend(d, 0.01 * error, error).verdict == "zero within its error"
    assert fit_trend(d, d**0.7, 0 * d).verdict == "grows like d^0.70"
    assert fit_trend(d, 1 + 1 / d, 0 * d).verdict == "bounded"
    assert fit_trend(d, np.array([1.0, 5.0, 0.5, 4.0]), 0 * d).verdict == "undecided"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"point": POINT}, "point = .*give a function dimension -> parameters"),
        ({"dimensions": [3, 4]}, "dimensions = .*at least three increasing"),
        ({"dimensions": [3, 5, 4]}, "dimensions = .*at least three increasing"),
        ({"dimensions": 3}, "dimensions = 3"),
        ({"statistics": lambda x: x}, r"statistics has \[3, 4, 5\] entries"),
        ({"samples": 3}, "samples = 3"),
    ],
)
def test_bad_input_of_scaling(change, message):
    settings = {
        "loss": small_loss,
        "sample": small_sample,
        "statistics": small_statistics,
        "point": np.ones,
        "lr": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        effective_scaling(**{**settings, "dimensions": [3, 4, 5], **change})
