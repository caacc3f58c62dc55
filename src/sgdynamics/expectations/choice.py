"""The choice of the expectation of a problem: the only place that asks for the kind of its loss.

The docstring of the package lists the classes in the order of this choice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import cast

from sgdynamics.expectations import closed_forms
from sgdynamics.expectations.class_grids import ClassGrids, has_class_grid
from sgdynamics.expectations.closed_pairs import ClosedPairs
from sgdynamics.expectations.clusters import Clusters
from sgdynamics.expectations.contexts import ContextSums
from sgdynamics.expectations.field_grids import FewFields, few_fields
from sgdynamics.expectations.label_sums import LabelSums
from sgdynamics.expectations.low_rank import LowRankMoments, is_low_rank
from sgdynamics.expectations.perturbed import DropoutSums, NoisyInputs
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.signal_grids import SignalGrids
from sgdynamics.expectations.signal_panels import SignalPanels, has_signal_panels
from sgdynamics.expectations.solver_interface import SolverExpectation, UserExpectation
from sgdynamics.expectations.students import StudentSums
from sgdynamics.problems.losses import (
    ClusterLoss,
    CommitteeLoss,
    ContextLoss,
    GatedLoss,
    KnownLabelLoss,
    NetworkLoss,
    TargetLoss,
    correlation,
    squared,
)
from sgdynamics.problems.problem import Structure
from sgdynamics.problems.student_losses import MixedLoss, StudentsLoss
from sgdynamics.samples.sample import GaussianSample

# Losses whose gradient is linear in the label, so that its mean given the signals is enough.
LINEAR = (squared, correlation)


@lru_cache(maxsize=512)
def expectation_of(structure: Structure) -> SolverExpectation:
    """The expectation of a problem: the user's own, or the most precise one for its loss."""
    loss = structure.loss
    if structure.expectation is not None:
        return UserExpectation(structure.expectation)
    # Expectations that wrap others come first: each removes what it handles from the structure.
    if isinstance(loss, ContextLoss):
        contexts = tuple(expectation_of(context) for context in loss.structures)
        return ContextSums(structure, contexts)
    if structure.sample.noisy_inputs:
        clean_sample = replace(structure.sample, noisy_inputs=False)
        return NoisyInputs(structure, expectation_of(replace(structure, sample=clean_sample)))
    if isinstance(loss, GatedLoss):
        ungated = replace(structure, loss=loss.inner, sample=GaussianSample(structure.signals))
        return DropoutSums(structure, expectation_of(ungated))
    if isinstance(loss, StudentsLoss) and loss.independent:
        tasks = [task for lesson in loss.lessons for task in lesson.tasks]
        return StudentSums(structure, tuple(expectation_of(task.structure) for task in tasks))
    # Networks: deterministic expectations over one, two or four fields at a time.
    if isinstance(loss, ClusterLoss) and closed_forms.has_logistic_moments(loss.student):
        return Clusters(structure)
    has_label_law = getattr(loss, "labels", None) is not None
    if isinstance(loss, CommitteeLoss) and loss.outer in LINEAR and not has_label_law:
        return ClosedPairs(structure)
    if isinstance(loss, (CommitteeLoss, TargetLoss, MixedLoss)) and loss.outer in LINEAR:
        return SignalGrids(structure)
    if has_label_law:
        return LabelSums(structure.with_loss(KnownLabelLoss(cast(NetworkLoss, loss))))
    # Any other loss or rule: a grid over what it reads if that is possible, otherwise Sobol points.
    if is_low_rank(structure):
        return LowRankMoments(structure)
    if has_class_grid(structure):
        return ClassGrids(structure)
    if has_signal_panels(structure):
        return SignalPanels(structure)
    if few_fields(structure):
        return FewFields(structure)
    return SobolAverages(structure)
