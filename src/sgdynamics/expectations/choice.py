"""Which expectation a problem has: the only place that asks for the kind of its loss."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from sgdynamics.expectations.closed_pairs import ClosedPairs
from sgdynamics.expectations.clusters import Clusters
from sgdynamics.expectations.contexts import ContextSums
from sgdynamics.expectations.field_grids import FewFields, few_fields
from sgdynamics.expectations.interface import Expectation
from sgdynamics.expectations.perturbed import DropoutSums, NoisyInputs
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.signal_grids import SignalGrids
from sgdynamics.problems.activations import NAMED
from sgdynamics.problems.losses import (
    ClusterLoss,
    CommitteeLoss,
    ContextLoss,
    GatedLoss,
    TargetLoss,
    correlation,
    squared,
)
from sgdynamics.problems.problem import Structure
from sgdynamics.samples.sample import Sample


@lru_cache(maxsize=512)
def expectation_of(structure: Structure) -> Expectation:
    """A user's own, where the problem has one; else by the kind of loss, and points for what is of no known kind."""
    loss = structure.loss
    if structure.expectation is not None:
        return structure.expectation
    if isinstance(loss, ContextLoss):
        return ContextSums(structure, tuple(expectation_of(one) for one in loss.structures))
    if structure.sample.noisy_inputs:
        clean = replace(structure.sample, noisy_inputs=False)
        return NoisyInputs(structure, expectation_of(replace(structure, sample=clean)))
    if isinstance(loss, GatedLoss):
        return DropoutSums(
            structure,
            expectation_of(replace(structure, loss=loss.inner, sample=Sample(structure.signals))),
        )
    if isinstance(loss, ClusterLoss) and loss.student == NAMED["relu"]:
        return Clusters(structure)
    if isinstance(loss, CommitteeLoss) and loss.outer in (squared, correlation):
        return ClosedPairs(structure)
    if isinstance(loss, TargetLoss) and loss.outer in (squared, correlation):
        return SignalGrids(structure)
    if few_fields(structure):
        return FewFields(structure)
    return SobolAverages(structure)
