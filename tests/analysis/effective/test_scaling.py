"""Scaling of the effective dynamics: exponents, the conditions of Definition 2.1, the critical step size, for the spiked matrix."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sgdynamics.analysis.effective.scaling import _fit, effective_scaling
from tests.analysis.effective.test_dynamics import (
    AL,
    LAM,
    POINT,
    agrees,
    normals,
    small_loss,
    small_sample,
    small_statistics,
    spiked_closed,
    spiked_point,
)
from tests.conftest import Z


def matrix_loss(x, y):
    """The spiked matrix with its gradient noise in a few normals, of the same law at the point: 2 sqrt(2) R Z + 2 sqrt(2) xi x."""
    here = jax.lax.stop_gradient(x)
    noise = np.sqrt(8) * (jnp.sqrt(here @ here) * y[2:] + y[0] * here)
    return (x @ x) ** 2 - 2 * LAM * x[0] ** 2 + AL / 2 * (x @ x) + noise @ x


def matrix_statistics(x):
    return jnp.stack([x[0], jnp.sqrt(x.size) * x[0], jnp.sum(x[1:] ** 2), jnp.sum(x[1:4]) ** 3 / 6])


def test_scaling_of_the_spiked_matrix():
    dimensions, lr, r2 = (32, 128, 512), 0.5, 0.8
    found = effective_scaling(
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
    for n, one in zip(dimensions, found.at, strict=True):
        f, g, sigma = spiked_closed(2, n, 0.3 / np.sqrt(n), r2, lr / n)
        np.testing.assert_allclose(one.drift[[0, 2]], f, rtol=1e-9)
        agrees(one.corrector[[0, 2]], one.corrector_error[[0, 2]], g, g, f"corrector, n = {n}")
        chosen = np.ix_([0, 2], [0, 2])
        assert np.all(np.abs(one.diffusion[chosen] - sigma) <= Z * one.diffusion_error[chosen])
    for trends, exponents in (
        (found.corrector, (None, None, 0.0)),
        (found.diffusion, (-1.0, 0.0, -1.0)),
    ):
        for trend, exponent in zip(trends, exponents, strict=False):
            if exponent is None:
                assert trend.verdict == "zero"
                continue
            assert (
                abs(trend.exponent - exponent) <= Z * trend.exponent_error + 0.02
            )  # R^2 and (n - 1)/n move by 3% from 32 to 512
            assert trend.exponent_error < 0.03
            assert (
                trend.verdict == "bounded"
                if exponent == 0
                else trend.verdict.startswith("vanishes like d^-")
            )
    np.testing.assert_allclose(found.critical[:3], [0.0, 1.0, 1.0], atol=0.1)
    assert found.critical_exponent == pytest.approx(1.0, abs=0.1)
    assert found.critical_exponent_error < 0.03
    assert "delta = lr/d is the critical scaling" in found.words
    hessian, third, gradient, fourth, square, printed = found.conditions
    scale = np.array(dimensions)
    np.testing.assert_allclose(hessian.each[:, 2], 2 * np.sqrt(lr / scale), rtol=1e-9)
    cube = [np.sum(spiked_point(n, 0.0, r2)[1:4]) for n in dimensions]
    np.testing.assert_allclose(
        hessian.each[:, 3], 3 * np.array(cube) * np.sqrt(lr / scale), rtol=1e-9
    )
    np.testing.assert_allclose(third.each, np.tile([0, 0, 0, 3**1.5], (3, 1)), atol=1e-8)
    # E<grad H, grad u>^4 = 3 Var^2 for a Gaussian; E<hess u, HH - V>^2 = 512 R^4 n for r2, to leading order
    variance = np.array(
        [spiked_closed(2, n, 0.3 / np.sqrt(n), r2, 1.0)[2][0, 0] for n in dimensions]
    )
    np.testing.assert_allclose(fourth.each[:, 1], 3 * (lr * variance) ** 2, rtol=0.2)
    np.testing.assert_allclose(printed.each[:, 2], lr * 512 * r2**2, rtol=0.15)
    assert abs(square.trend.exponent + 2) < 0.1
    # so the last condition holds as derived, and would not as printed
    assert printed.trend.verdict == "bounded"
    assert [condition.holds for condition in found.conditions] == [True] * 5 + [None]
    assert found.localizable
    assert gradient.trend.verdict == "bounded"
    shown = str(found)
    assert "Sigma(sqrt(n) m)" in shown
    assert "localizable at these points: yes" in shown
    assert "too large" in dataclasses.replace(found, critical=found.critical + 1).words
    assert "sub-critical" in dataclasses.replace(found, critical=found.critical - 0.5).words


def test_fitted_exponents():
    d, rng = np.array([10.0, 30.0, 100.0, 300.0]), np.random.default_rng(0)
    z, verdicts = [], set()
    for _ in range(200):
        error = 0.05 * d**-0.5
        trend = _fit(d, -2.0 * d**-0.5 + error * rng.normal(size=4), error)
        z.append((trend.exponent + 0.5) / trend.exponent_error)
        verdicts.add(trend.verdict.split("^")[0])
    assert verdicts == {"vanishes like d"}
    assert abs(np.mean(z)) < Z / np.sqrt(200)
    assert (
        0.5 < np.mean(np.square(z)) < 1.5
    )  # errors are not taken below the misfit, so the mean is below one
    # values that sink into their error are fitted, not dropped
    error = np.full(4, 0.01)
    assert _fit(d, d**-2.0 + [0.0, 0.003, -0.004, 0.002], error).exponent < -1
    assert _fit(d, 0 * d, 0 * d).verdict == "zero"
    assert _fit(d, 0.01 * error, error).verdict == "zero within its error"
    assert _fit(d, d**0.7, 0 * d).verdict == "grows like d^0.70"
    assert _fit(d, 1 + 1 / d, 0 * d).verdict == "bounded"
    assert _fit(d, np.array([1.0, 5.0, 0.5, 4.0]), 0 * d).verdict == "undecided"


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
