"""Moments of a network with an update of low rank: those of its units, and Sobol points."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.low_rank import LowRankMoments
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.solver_interface import Evaluation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "finite"),
    [
        ("erf", False),
        pytest.param("erf", True, marks=pytest.mark.slow),
        pytest.param("tanh", False, marks=pytest.mark.slow),
    ],
)
def test_moments_agree_with_those_of_the_loss(activation, finite):
    """Rank 2 and two units, with the norms at finite d."""
    gram = [[1, 0.3, 0.2], [0.3, 1, 0], [0.2, 0, 1]]
    problem = sgd.models.lora(rank=2, activation=activation, gram=gram, noise=0.1)
    structure, parameters = problem.structure, problem.parameters
    of_units = expectation_of(structure)
    assert isinstance(of_units, LowRankMoments)
    M, Q = np.array([[0.2, -0.1, 0.3], [0.1, 0.4, -0.2]]), np.array([[1.0, 0.2], [0.2, 0.8]])
    head = np.array([0.5, -0.3, 0.2, 0.4])
    with jax.enable_x64(True):
        overlaps = overlaps_at(structure, parameters, {"M": M[None], "Q": Q[None]})
        results = []
        for expectation in (of_units, SobolAverages(structure)):
            quadrature = Quadrature(log2_points=11, terms=48)
            nodes = {name: value[0] for name, value in expectation.nodes(quadrature, False).items()}
            at = Evaluation(quadrature, nodes, parameters, overlaps, head)
            results.append(expectation.evaluate_moments(at, finite=finite))
    first, second = results
    assert np.abs(first.head_gradient).min() > 1e-3
    for name in ("stein", "noise", "head_gradient", "risk", *(("norms",) if finite else ())):
        expected = np.asarray(getattr(second, name))
        tolerance = (0.1 if name == "norms" else 1e-2) * np.abs(expected).max()
        np.testing.assert_allclose(getattr(first, name), expected, atol=tolerance)
