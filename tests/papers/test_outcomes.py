"""The rule that decides which clusters a network has learned, and the growth of a small unit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import sgdynamics as sgd
from sgdynamics.papers.effective_dynamics import (
    escape_rate,
    mixture_components,
    outcome,
    ring_radius,
)
from sgdynamics.papers.effective_dynamics.mixtures import TYPES
from sgdynamics.papers.effective_dynamics.outcomes import active_types
from sgdynamics.results.datasets import encode

AL = 0.1


@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_rule_finds_the_active_types_of_every_fixed_point(kind):
    components = mixture_components(kind)
    points = [component.representative(AL) for component in components]
    M, a = (np.stack([point[name] for point in points]) for name in ("M", "a"))
    names = np.array(list(TYPES[kind]))
    for size in (0.8, 1.2):  # points near the fixed point have the same active types
        active = active_types(kind, size * M, a, AL)
        assert [tuple(names[row]) for row in active] == [
            component.active for component in components
        ]
        assert not active_types(kind, size * M, -a, AL).any()


@pytest.mark.slow
def test_outcome_of_a_result():
    problem = sgd.GaussianMixture("xor", snr=np.inf, weight_decay=AL)
    C = ring_radius("xor", AL)
    v = 0.9 * math.sqrt(C) * np.array([[1, 1, -1, -1], [1, 1, -1, -1]])
    M = np.zeros((2, 4, 2))
    # In the second run, two units have type mu+ and none has type mu-.
    M[:, [0, 1], 0] = 0.9 * math.sqrt(C) * np.array([[1, -1], [0.7, 0.7]])
    M[:, [2, 3], 1] = 0.9 * math.sqrt(C) * np.array([1, -1])
    start = sgd.start(problem, M=M, Q=M @ np.swapaxes(M, 1, 2), a=v)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=np.linspace(0, 30, 25))
    outcomes = outcome(result)
    assert outcomes.active.dims == ("run", "time", "type")
    assert outcomes.type.values.tolist() == ["mu+", "mu-", "nu+", "nu-"]
    np.testing.assert_array_equal(outcomes.active[:, -1], [[True] * 4, [True, False, True, True]])
    np.testing.assert_array_equal(outcomes.optimal[:, -1], [True, False])


def test_growth_of_a_small_unit():
    # The drift of v at v = m = s -> 0, by quadrature over the projection of x on the unit.
    s = 1e-5
    for alpha, snr in ((0.1, 20.0), (0.05, 3.0)):
        drift = -alpha * s
        for mean, label in ((1, 1), (-1, 1), (0, 0), (0, 0)):
            x, weight = np.polynomial.legendre.leggauss(200)  # on x > 0, where the unit is active
            width = 1 + 10 / math.sqrt(snr)
            x, weight = width * (x + 1) / 2, width * weight / 2
            drift -= 0.25 * np.sum(
                weight
                * stats.norm.pdf(x, mean, snr**-0.5)
                * (special.expit(s * s * x) - label)
                * s
                * x
            )
        assert drift / s == pytest.approx(escape_rate(alpha, snr), abs=1e-8)
    assert escape_rate(0.1, math.inf) == pytest.approx(0.025)
    assert escape_rate(0.1, 20) == pytest.approx(0.0027, abs=5e-5)
    assert escape_rate(0.1, 15) < 0 < escape_rate(0.05, 15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: active_types("three", np.zeros((2, 1)), np.zeros(2), AL), "kind = 'three'"),
        (
            lambda: active_types("xor", np.zeros((4, 2)), np.zeros(4), 0.125),
            "alpha = 0.125.*only fixed point",
        ),
        (lambda: escape_rate(0.1, 0.0), "snr = 0.0"),
        (lambda: escape_rate(-0.1, 10.0), "alpha = -0.1"),
        (lambda: outcome(xr.Dataset()), "no attribute 'problem'"),
        (
            lambda: outcome(xr.Dataset(attrs={"problem": encode(sgd.TeacherStudent().describe())})),
            "not about a Gaussian mixture",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
