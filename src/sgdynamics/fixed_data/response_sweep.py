"""DMFT in the response form (`fixed_data.response_form`): conditions and sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters
from sgdynamics.fixed_data import response_form, response_order
from sgdynamics.fixed_data.bounded_memory import Memory
from sgdynamics.fixed_data.dmft import Sweep
from sgdynamics.fixed_data.host_draws import HostDraws, counters_of
from sgdynamics.fixed_data.path_groups import ObservePaths, ReplicateGroup, next_capacity
from sgdynamics.fixed_data.paths import chunk_count
from sgdynamics.fixed_data.response_form import ResponsePaths
from sgdynamics.fixed_data.response_order import InitialFields
from sgdynamics.fixed_data.setup import InitialDraws, Setup, StepParameters
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.input_covariance import eigenvalues

ORDERS = ("reshuffle", "replacement")  # orders of epochs in which each step adds noise of its own
# Smallest number of paths per vector (a signal, or a row at some time): with half as many the
# overlaps need not be positive definite.
PATHS_PER_VECTOR = 10
# Smallest number of effective dimensions per vector (`paths_per_row`): 2.2 were enough, 1.1 were
# not.
DIMENSIONS_PER_VECTOR = 2.0
MIN_BLOCKS = 4  # number of blocks from which this form is the default: below, it saves little
# Largest batch fraction: beyond, gradients are too similar to those of earlier steps (measured:
# 0.9 failed with 13 paths per vector, and a fixed order of epochs with 20 paths in the third
# epoch).
MAX_FRACTION = 0.5
CHUNK = 256  # paths of a chunk on a CPU, which fit into its cache


class DependentFields(ValueError):
    """Fields are linear combinations of earlier ones: Stein's formula has no derivative in them."""


def response_form_obstacle(problem: Problem, algorithm: FixedData) -> str:
    """Why the response form is not available for a problem and an algorithm; empty if it is."""
    sample = problem.structure.sample
    if algorithm.law is not None or problem.structure.loss.reads_overlaps:
        return "this form only supports plain steps. Omit update"
    # Not a subclass: persistent selections repeat the noise of earlier steps.
    is_fresh = type(algorithm) is MultiPassSGD and algorithm.batch_fraction <= MAX_FRACTION
    if not is_fresh and algorithm.order not in ORDERS:
        return (
            "each step must add noise of its own. Use sgd.MultiPassSGD with batch_fraction at most "
            f"{MAX_FRACTION}, or sgd.EpochSGD with order 'reshuffle' or 'replacement'"
        )
    if (
        sample.tokens.count is not None
        or not sample.centred
        or sample.noisy_inputs
        or sample.contexts
    ):
        return (
            "this form supports samples of one centred input, without input noise. "
            "Use such a problem"
        )
    return ""


def paths_per_row(problem: Problem, algorithm: FixedData) -> float:
    """Paths of a set per vector, such that sampling adds less noise than there is in every block.

    For rows that move by noise N_b is proportional to l_b^2 d_b, and the sum of all N_b is the
    number of vectors. So d_b exceeds N_b in all blocks if the effective dimension sum_b l_b^2
    d_b/max l^2 exceeds the number of vectors.
    """
    values, shares = (np.asarray(problem.parameters[name]) for name in ("eigenvalues", "fractions"))
    # Effective dimension of the spectrum as a share of d
    effective = np.sum(shares * values**2) / np.max(values) ** 2
    dimensions_per_path = effective / algorithm.samples_per_dimension
    return max(PATHS_PER_VECTOR, DIMENSIONS_PER_VECTOR / dimensions_per_path)


def paths_needed(problem: Problem, algorithm: FixedData, steps: float) -> float:
    """Paths of a set for all vectors after some steps."""
    # The kind of selection does not change the number of vectors.
    vectors = response_order.slot_count(Setup(problem.structure, True, False), steps)
    return paths_per_row(problem, algorithm) * vectors


def _initial_fields(problem: Problem, T: np.ndarray, L: np.ndarray) -> InitialFields:
    frame = np.asarray(problem.parameters["frame"])
    return response_order.initial_fields(frame, T, L, np.asarray(eigenvalues(problem.parameters)))


def has_dependent_fields(problem: Problem, start: Start) -> bool:
    """Whether the initial fields of a run are linearly dependent."""
    runs = zip(*compressed_rows(problem, start), strict=True)
    return any(_initial_fields(problem, *rows).is_singular for rows in runs)


class ResponseSweep(Sweep):
    """Replicates of the effective process in the response form."""

    form: ClassVar[str] = "response"
    quasi_random: ClassVar[bool] = False
    memory_advice: ClassVar[str] = (
        "Use fewer paths or steps, sgd.simulate, or sgd.DMFT(dtype='float32')."
    )
    sweeps_per_pair: ClassVar[int] = 0

    @property
    def data_blocks(self) -> int:
        return 1

    def work_per_step(self, directions: float) -> float:
        p, blocks = self.setup.structure.width, self.setup.structure.blocks
        # Products with z and g of all paths, and with overlaps and responses of all blocks
        columns = self.inputs + blocks * directions
        return 4.0 * p * self.sampling.replicates * columns * directions

    def directions_after(self, steps: float) -> float:
        return response_order.slot_count(self.setup, steps)

    def bytes_per_replicate(self, directions: int) -> int:
        """Memory of z and g, of overlaps and responses of all blocks, and of Lc^-1."""
        paths, blocks = 2 * self.dtype.itemsize * self.inputs, self.setup.structure.blocks
        return paths * directions + 8 * (2 * blocks + 1) * directions**2

    def check_paths(self, steps: int, rank: int | None) -> None:
        """No condition: `paths_needed` is stronger."""

    def initial_groups(self, start: Start, draws: HostDraws) -> Sequence[ReplicateGroup]:
        setup, sets = self.setup, self.sets
        T, L = compressed_rows(self.problem, start)
        # Overlaps and fields of the start are the same for all replicates.
        fields = _initial_fields(self.problem, T[0], L[0])
        initial = draws.initial()
        initial = initial._replace(normals=initial.normals[:, 0])  # of the one block
        random_arrays = (initial, counters_of(self.sampling))
        chunks = chunk_count(setup, self.inputs, CHUNK)
        static = (setup, self.initial_capacity(), chunks, str(self.dtype))
        groups = []
        for first in range(0, self.sampling.replicates, sets):
            chosen = jax.tree.map(
                lambda leaf, first=first: leaf[first : first + sets], random_arrays
            )
            chosen = self.move_to_device(chosen, len(groups))
            paths = _initial_paths(*static, self.step_parameters, fields, start.a[0], *chosen)
            groups.append(_ResponseGroup(paths, sets))
        return groups

    def advance(
        self,
        groups: Sequence[ReplicateGroup],
        visits: list[Visits] | None,
        end: int,
        largest_capacity: int,
    ) -> None:
        # A step that fails is found after the call, and its values are not used.
        super().advance(groups, visits, end, largest_capacity)
        failed = np.concatenate([np.asarray(group.paths.failed_step) for group in groups])
        if np.any(failed >= 0):
            raise DependentFields(
                f"After step {int(failed[failed >= 0].min())} the fields of the {self.paths} paths "
                "of a replicate are linear combinations of earlier fields, or their overlaps are "
                "not positive definite. Use more paths, fewer steps or form='projections'."
            )

    def observer(self, group: ReplicateGroup) -> ObservePaths:
        return partial(_observe, number=np.int64(group.number))

    def two_time_pairs(self, count: int) -> _ResponsePairs:
        return _ResponsePairs(self)

    def finish(self, groups: Sequence[ReplicateGroup]) -> None:
        # In this form the rank counts the rows of all steps.
        steps = max(group.number for group in groups)
        self.rank = max(self.rank, self.setup.structure.width * steps)


@dataclass
class _ResponseGroup:
    """Replicates in a leading axis that advance together, and the last finite steps."""

    paths: ResponsePaths
    sets: int
    number: int = 0
    has_sums: bool = False
    last_good: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reached: IntScalar = 0  # the step at which the last dispatch ends

    @property
    def capacity(self) -> int:
        return self.paths.z.shape[2]

    def adapt_setup(self, setup: Setup) -> Setup:
        return setup

    def dispatch(self, setup: Setup, step: StepParameters, visits: Visits | None, end: int) -> None:
        """Start to advance to step `end`, or until the memory is full."""
        self.paths, self.reached, self.last_good = response_form.advance_paths(
            setup,
            step,
            self.paths,
            np.bool_(self.has_sums),
            visits,
            np.int64(self.number),
            self.last_good,
            np.int64(end),
        )
        self.has_sums = True

    def collect(self, setup: Setup, end: int, largest_capacity: int, memory: Memory | None) -> bool:
        """Wait for the steps; whether there is memory for further ones before `end`."""
        self.number, self.last_good = int(self.reached), np.asarray(self.last_good)
        if self.number >= end or self.capacity >= largest_capacity:
            return False
        capacity = next_capacity(self.capacity, largest_capacity)
        self.paths = response_form.with_capacity(self.paths, capacity)
        return True


class _ResponsePairs:
    """C and R at pairs of save points, which this form computes in any case."""

    def __init__(self, sweep: ResponseSweep) -> None:
        self.sweep = sweep
        self.save_steps: list[int] = []

    def advance(self, visits: list[Visits] | None, end: int) -> None:
        """No additional paths."""

    def record(self, groups: Sequence[ReplicateGroup], draws: HostDraws, number: int) -> None:
        self.save_steps.append(number)

    def results(self, groups: Sequence[ReplicateGroup]) -> dict[str, np.ndarray]:
        structure = self.sweep.setup.structure
        p, steps = structure.width, np.array(self.save_steps)[:, None]
        # Rows at time t are at the slots K + p t, ..., K + p t + p - 1.
        slots = structure.signals + p * steps + np.arange(p)
        # C is the sum over blocks, R the mean over dimensions.
        fractions = self.sweep.step_parameters.parameters["fractions"]
        weights = {
            "C": ("overlaps", np.ones(structure.blocks)),
            "R": ("responses", fractions),
        }
        results = {}
        for name, (quantity, block_weights) in weights.items():
            arrays = [np.asarray(getattr(group.paths.order, quantity)) for group in groups]
            total = np.concatenate(
                [np.einsum("rjbs,b->rjs", array, block_weights) for array in arrays]
            )
            results[name] = total[:, slots[:, None, :, None], slots[None, :, None, :]]
        return results


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _initial_paths(
    setup: Setup,
    capacity: int,
    chunks: int,
    storage: str,
    step: StepParameters,
    fields: InitialFields,
    head: Float[Numeric, " p"],
    draws: InitialDraws,
    counters: Numeric,
) -> ResponsePaths:
    def initial_set(draws: InitialDraws, counters: Numeric) -> ResponsePaths:
        paths = response_form.initial_set(
            setup, capacity, np.dtype(storage), step, fields, head, draws, counters
        )
        return response_form.split_paths(paths, chunks)

    return jax.vmap(initial_set)(draws, counters)


@partial(jax.jit, static_argnums=0)
def _observe(
    setup: Setup, parameters: Parameters, paths: ResponsePaths, number: IntScalar
) -> dict[str, Numeric]:
    return jax.vmap(lambda paths: response_form.observe(setup, parameters, paths, number))(paths)
