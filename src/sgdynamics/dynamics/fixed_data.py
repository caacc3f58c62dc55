"""Problems of fields on a fixed data set, as the solvers see them: batches, and epochs."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import jax
import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import check_top, check_update
from sgdynamics.algorithms.updates.additions import PLAIN
from sgdynamics.base import checks
from sgdynamics.base.controls import is_scheduled
from sgdynamics.base.support import COORDINATES_ON_DATA
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.direct_epochs import DirectEpochs
from sgdynamics.fixed_data.exact import ExactFixedData
from sgdynamics.fixed_data.gradient_calls import gradient_calls
from sgdynamics.fixed_data.message_passing import MessagePassing
from sgdynamics.fixed_data.spectral_start import SpectralStart, spectral_start
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.results.clock import Clock
from sgdynamics.simulation.running import RunSetting, Simulator


class FixedDataDynamics(FieldDynamics):
    """A `Problem` whose samples are used more than once.

    The algorithms are gradient descent, multi-pass and persistent SGD, and Langevin dynamics.
    """

    has_data: ClassVar[bool] = True
    reads_full_batches: ClassVar[bool] = True
    dimension: int | None = None  # of runs of epochs
    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set"

    def resolve_steps(self, dimension: int | None, cells: int | None) -> FixedDataDynamics:
        return self

    def validate_clock(self, clock: Clock) -> FixedDataDynamics:
        self.definition.check_schedule_values(clock.t[-1], "t")
        draws = jax.tree.leaves(self.parameters.get("draws"), is_leaf=is_scheduled)
        if any(is_scheduled(leaf) for leaf in draws):
            fix = "a data set is drawn once: its probabilities do not depend on t; give numbers"
            raise checks.reject("draws", self.definition, fix)
        self.check_update(clock)
        if not self.algorithm.scheduled or clock.step is None:
            return self
        # A schedule of t becomes a table of step sizes that ends with the run.
        validated = copy(self)
        validated.algorithm = self.algorithm.with_tabulated_rate(float(clock.step[-1]))
        return validated

    def check_update(self, clock: Clock) -> None:
        """Raise ValueError for an update that does not suit the problem or the algorithm."""
        algorithm, update, law = self.algorithm, self.algorithm.update, self.algorithm.law
        if update is None or law is None:
            return
        check_update(update, law, self.structure)
        if self.structure.top is not None:
            check_top(update)
        if law.on_sample is not None and self.structure.loss.reads_overlaps:
            fix = "a rule for single samples needs a loss of the fields alone. Omit update"
            raise checks.reject("update", update, fix)
        if not self.reads_full_batches and self.dimension is not None:
            update.check_memory(float(self.dimension), clock.t)
        if self.reads_full_batches:
            update.check_memory(1.0, clock.t, "a step reads the whole data set")
            if gradient_calls(update, self.structure).by_sample:
                fix = (
                    "the gradient of one sample has a norm of order sqrt(d), in units in which "
                    "that of a full batch is of order 1. Use over='all' or over='row', or "
                    "sgd.EpochSGD"
                )
                raise checks.reject("update", update, fix)
        if algorithm.has_thermal_noise and (law.noise or law.iterate != "weights"):
            fix = (
                "thermal noise is only supported for updates of the weights that have no noise. "
                "Use sgd.GradientDescent, or another update"
            )
            raise checks.reject("update", update, fix)

    def check_method(self, method: str, shared_data: bool) -> None:
        """Raise ValueError for a method that the update does not support."""
        law = self.algorithm.law
        if law is None or not law.coordinatewise:
            return
        if method == "exact":
            raise checks.reject("method", method, COORDINATES_ON_DATA)
        if shared_data:
            fix = "an update of each coordinate needs a random frame per run. Omit shared_data"
            raise checks.reject("shared_data", shared_data, fix)

    def _evaluator_of(self, other: Problem) -> FixedDataDynamics:
        return FixedDataDynamics(other, self.algorithm)

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        self.check_method(setting.method, setting.shared_data)
        return fixed_data_runs(self.definition, self.algorithm, setting)


def fixed_data_runs(
    problem: Problem,
    algorithm: FixedData,
    setting: RunSetting[Start],
    passing: MessagePassing | None = None,
    spectral: SpectralStart | None = None,
) -> Simulator:
    """Direct runs or the exact law, with the static part and the start of message passing."""
    if setting.method == "direct":
        return DirectFixedData(problem, algorithm, setting, passing, spectral)
    if setting.shared_data:
        fix = "the exact law keeps no data set to share: take method='direct'"
        raise checks.reject("shared_data", setting.shared_data, fix)
    return ExactFixedData(problem, algorithm, setting, passing, spectral)


def with_step_of_overlaps(algorithm: FixedData, structure: Structure) -> FixedData:
    """The algorithm, with plain steps as an update if the loss reads the overlaps.

    The gradient of such a loss has terms along rows and signals, which steps of updates include.
    """
    if not structure.loss.reads_overlaps or algorithm.update is not None:
        return algorithm
    with_update = copy(algorithm)
    object.__setattr__(with_update, "update", PLAIN)
    object.__setattr__(with_update, "_stated", getattr(algorithm, "_stated", algorithm))
    return with_update


class AMPDynamics(FixedDataDynamics):
    """A `Problem` of one signal under message passing."""

    assumptions: ClassVar[str] = "Gaussian inputs, a fixed data set, message passing"

    def initial_state(self, start: object, runs: int | None = None) -> Start:
        self.passing  # noqa: B018, raises ValueError for problems without message passing
        if self.algorithm.has_own_start:
            if start is not None:
                where = "zero weights" if self.algorithm.start == "zero" else "an eigenvector"
                fix = (
                    f"this algorithm starts at {where}. Use start=None, or "
                    "sgd.AMP(start='overlaps')"
                )
                raise checks.reject("start", type(start).__name__, fix)
            start = zero_start(self.definition)
            if self.spectral is not None:
                gram = np.asarray(self.definition.gram)[None]
                overlaps = self.spectral.cosine2 * gram
                start = replace(start, M_blocks=overlaps, Q_blocks=overlaps)
        return super().initial_state(start, runs)

    @cached_property
    def spectral(self) -> SpectralStart | None:
        """The spectral start, if the algorithm has one."""
        if self.algorithm.start != "spectral":
            return None
        alpha = float(self.algorithm.samples_per_dimension)
        return spectral_start(self.definition, self.passing, alpha)

    @cached_property
    def passing(self) -> MessagePassing:
        """The static part of the algorithm."""
        return MessagePassing.from_problem(self.definition, self.algorithm.estimator)

    def _evaluator_of(self, other: Problem) -> FixedDataDynamics:
        return FixedDataDynamics(other, self.algorithm)

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        return fixed_data_runs(
            self.definition, self.algorithm, setting, self.passing, self.spectral
        )


def zero_start(problem: Problem) -> Start:
    """Return one run with zero weights."""
    shape = (1, problem.structure.blocks, problem.width)
    M, Q = np.zeros((*shape, problem.signals)), np.zeros((*shape, problem.width))
    return Start(M, Q, np.ones((1, problem.structure.head_size)))


class EpochDynamics(FixedDataDynamics):
    """A `Problem` under `EpochSGD`.

    A step is a batch at finite d and a cell of an epoch for d -> infinity. The exact law of runs
    would cost as much as direct runs, so that all runs are direct.
    """

    always_direct: ClassVar[bool] = True
    reads_full_batches: ClassVar[bool] = False
    dimension: int | None = None
    assumptions: ClassVar[str] = "Gaussian inputs, epochs over a fixed data set"

    def resolve_steps(self, dimension: int | None, cells: int | None) -> EpochDynamics:
        algorithm, resolved = self.algorithm, copy(self)
        resolved.dimension = dimension
        if cells is not None:
            resolved.algorithm = algorithm.in_steps(1 / cells)
            return resolved
        assert dimension is not None
        algorithm.samples(dimension)  # raises ValueError for a data set that is too small
        batch_share = algorithm.batch / (algorithm.samples_per_dimension * dimension)
        resolved.algorithm = algorithm.in_steps(batch_share)
        return resolved

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        self.check_method("direct", setting.shared_data)
        return DirectEpochs(self.definition, self.algorithm, setting)
