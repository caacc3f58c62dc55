"""Dynamical mean-field theory of algorithms on a fixed data set, in one causal sweep.

The limit is d -> infinity at n = samples_per_dimension d. The effective process of one sample
(its fields, given the history) is sampled along Monte Carlo paths. The usual form of DMFT has a
correlated Gaussian drive and a memory integral over the response function, both found by
iteration. Here the paths are conditioned on the products of the data that the algorithm has used
(`fixed_data.conditioning`): the overlaps of step t + 1 follow from those up to t, at the finite
learning rate of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import numpy as np

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.base import checks
from sgdynamics.base.arrays import (
    Device,
    PyTree,
)
from sgdynamics.base.controls import values_at
from sgdynamics.base.progress import Meter
from sgdynamics.base.resources import available_bytes
from sgdynamics.fixed_data import conditioning
from sgdynamics.fixed_data.bounded_memory import Memory
from sgdynamics.fixed_data.host_draws import DrawLayout, HostDraws, Sampling, counters_of
from sgdynamics.fixed_data.path_groups import (
    ObservePaths,
    PathGroup,
    ReplicateGroup,
    initial_paths,
    observe_paths,
)
from sgdynamics.fixed_data.path_state import initial_slots
from sgdynamics.fixed_data.path_step import PATHS_PER_DIRECTION
from sgdynamics.fixed_data.paths import chunk_count, largest_chunk
from sgdynamics.fixed_data.setup import SMALLEST_CAPACITY, InitialWeights, Setup, StepParameters
from sgdynamics.fixed_data.two_time import TwoTimePairs, TwoTimeStorage
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem

# Capacity at the start with cells: solutions with different numbers of cells share compiled
# programs.
SMALLEST_CELL_CAPACITY = 128
MIN_PATHS = 64  # per replicate
# Every replicate is solved again with this many times fewer paths and a tolerance larger by the
# same factor; the change is included in the standard errors.
REDUCTION = 4
MEMORY_SHARE = 0.8  # of the free memory
MAX_DAYS = 10.0  # estimated computing time above which a solution is rejected
# Multiplications per second in large products
CPU_SPEED, ACCELERATOR_SPEED = 2e9, 1e12
CALL_SECONDS = 5.0  # estimated time of one compiled call, between which progress is reported
# Bytes per second of an accelerator's memory, and the time of all steps with a full basis up to
# which the basis is full from the start: each smaller size would be compiled, which takes longer.
ACCELERATOR_BANDWIDTH, SHORT_SECONDS = 3e12, 0.5
# Residuals below this share of a gradient are rounding: their square is a difference of two sums.
ROUNDING = {"float64": 1e-6, "float32": 1e-3}


def _multiplications_per_second() -> float:
    return CPU_SPEED if jax.default_backend() == "cpu" else ACCELERATOR_SPEED


def check_work(
    sweep: Sweep, save_steps: np.ndarray, rank: int | None, runs: int, two_time: bool
) -> None:
    """Raise ValueError if a solution is estimated to take more than MAX_DAYS."""
    steps = float(save_steps[-1])
    directions = min(sweep.directions_after(steps), np.inf if rank is None else rank)
    # Directions are added step by step until the basis is complete: on average half of them.
    filling_steps = min(steps, directions / sweep.setup.directions_per_step)
    work = sweep.work_per_step(directions) * (steps - filling_steps / 2)
    pairs = sweep.sweeps_per_pair * len(save_steps) if two_time else 0
    sweeps = (1 + 1 / REDUCTION) * runs * (1 + pairs)
    days = work * sweeps / _multiplications_per_second() / 86400
    if days > MAX_DAYS:
        raise checks.reject(
            "steps",
            int(save_steps[-1]),
            f"with {sweep.total_paths} paths and up to {directions:.3g} directions they need "
            f"{work:.2g} multiplications, about {days:.2g} days. Use fewer steps or paths, "
            "sgd.DMFT(rank=...) if the algorithm is smooth, or sgd.simulate.",
        )


class Sweep:
    """Replicates of the effective process for one problem and one algorithm."""

    form: ClassVar[str] = "projections"
    quasi_random: ClassVar[bool] = True  # whether the first directions have quasi-random normals
    memory_advice: ClassVar[str] = (
        "Use fewer paths or steps, sgd.simulate, or an option of sgd.DMFT: dtype='float32', "
        "memory_directions, or rank (gradient descent needs far fewer directions than steps)."
    )
    sweeps_per_pair: ClassVar[int] = 1  # additional sweeps per save point for two times

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        sampling: Sampling,
        tolerance: float,
        dtype: np.dtype,
    ) -> None:
        self.problem, self.sampling, self.dtype = problem, sampling, dtype
        self.setup = Setup.from_algorithm(problem.structure, algorithm)
        self.order = algorithm.order
        self.cells = round(1 / algorithm.fraction)  # per epoch, where there are epochs
        self.paths = sampling.used_paths
        self.inputs = self.paths * problem.structure.sample.tokens.inputs_per_sample
        # Block sizes at the dimension d at which n samples are the paths; they need not be
        # integers.
        dimension = self.paths / algorithm.samples_per_dimension
        self.step_parameters = StepParameters(
            problem.parameters,
            algorithm.parameters,
            problem.parameters["fractions"] * dimension,
            np.float64(tolerance),
        )
        self.rank = 0  # largest number of directions that gradients have added
        # Whether the gradients span too many of the paths (with cells: of the dimensions)
        self.basis_is_full = False
        self.largest_capacity = 0
        self.required_bytes = 0
        self.steps = 0
        self.memory: Memory | None = None
        self.train_losses: Mapping[str, Loss] = {}  # further losses whose training mean is computed
        self.devices: Sequence[Device] = ()  # among which groups of replicates are divided
        self.initial_risk: list[float] = []  # training risk at the start of each run, with epochs

    @property
    def total_paths(self) -> int:
        return self.paths * self.sampling.replicates

    @property
    def sets(self) -> int:
        """Replicates that advance together: one on a CPU, elsewhere all those of a device."""
        if jax.default_backend() == "cpu":
            return 1
        return -(-self.sampling.replicates // max(1, len(self.devices)))

    def move_to_device(self, arrays: PyTree, group: int) -> PyTree:
        """Arrays of a group of replicates, on the device of this group if there are several."""
        if len(self.devices) < 2:
            return arrays
        return jax.device_put(arrays, self.devices[group % len(self.devices)])

    @property
    def data_blocks(self) -> int:
        """Blocks in which a path has data along the signals and the initial rows."""
        return self.setup.structure.blocks

    def host_draws(self) -> HostDraws:
        layout = DrawLayout(self.data_blocks, self.quasi_random, self.order, self.cells, self.sets)
        return HostDraws(self.setup, self.sampling, layout)

    # Resources

    def work_per_step(self, directions: float) -> float:
        """Multiplications of a step: products with P of g, P_new, Z, and with A of g and W."""
        setup, blocks = self.setup, self.setup.structure.blocks
        with_P = 2 * setup.gradients_per_step + setup.normals_per_step * blocks
        with_A = setup.gradients_per_step * blocks
        work = 2.0 * self.inputs * self.sampling.replicates * (with_P + with_A) * directions
        return setup.passes * work

    def directions_after(self, steps: float) -> float:
        """Upper bound on the number of directions after some steps.

        The gradients of a replicate span at most half of its paths. Replicates that advance
        together share slots of memory: a step uses as many slots as the replicate that adds the
        most directions.
        """
        setup = self.setup
        steps = setup.passes * (steps + 1)  # each pass adds directions
        by_paths = self.sets * (self.inputs // PATHS_PER_DIRECTION) + setup.gradients_per_step
        gradients = min(setup.gradients_per_step * steps, by_paths)
        noise = setup.noise_directions * steps
        directions = setup.initial_directions + gradients + noise
        return directions if self.memory is None else min(directions, self.memory.directions)

    def bytes_per_replicate(self, directions: int) -> int:
        """Memory of P, and of A of each block."""
        arrays = 1 + self.setup.structure.blocks
        return self.dtype.itemsize * self.inputs * directions * arrays

    def reserve_memory(self, steps: int, rank: int | None, memory: float | None) -> None:
        """Set the largest number of directions; raise ValueError if memory is insufficient."""
        setup = self.setup
        self.steps = steps
        smallest = setup.initial_directions + setup.directions_per_step
        self.largest_capacity = max(int(self.directions_after(steps)), smallest)
        if rank is not None:
            self.largest_capacity = min(self.largest_capacity, rank + smallest)
        # Two copies while memory grows. The compiler of a GPU tries products on a copy of their
        # operands, in addition to what the former size has left.
        is_cpu = jax.default_backend() == "cpu"
        copies = 2 if is_cpu else 3
        # Each device has its own memory, except for those of a processor.
        replicates = self.sampling.replicates if is_cpu else self.sets
        required = copies * replicates * self.bytes_per_replicate(self.largest_capacity)
        self.required_bytes = required
        available = available_bytes() * MEMORY_SHARE if memory is None else memory * 1e9
        if required > available:
            unit = "cells" if setup.in_cells else "steps"
            raise ValueError(
                f"paths = {self.total_paths}: up to {self.largest_capacity} directions ({steps} "
                f"{unit}) need {required / 1e9:.3g} GB, and {available / 1e9:.3g} GB are "
                f"available. {self.memory_advice}"
            )

    @property
    def supported_directions(self) -> float:
        """Directions that the paths of a replicate support: half of them, or their dimensions."""
        half = self.inputs // PATHS_PER_DIRECTION
        if not self.setup.counts_directions:
            return half
        return min(half, float(np.max(self.step_parameters.block_sizes)))

    def check_paths(self, steps: int, rank: int | None) -> None:
        """Raise ValueError if the paths support fewer directions than all cells add."""
        setup = self.setup
        if not setup.in_cells:
            return
        needed = setup.initial_directions + setup.gradients_per_step * steps
        if rank is not None:
            needed = min(needed, rank + setup.initial_directions + setup.directions_per_step)
        if self.memory is not None:
            needed = min(needed, self.memory.directions)
        if needed > self.supported_directions:
            factor = math.ceil(math.log2(needed / self.supported_directions))
            raise checks.reject(
                "paths",
                self.total_paths,
                f"each of the {self.sampling.replicates} replicates carries at most "
                f"{int(self.supported_directions)} directions, and {steps} cells need {needed}. "
                f"Use paths = {self.total_paths << factor} or more, fewer epochs, or sgd.simulate.",
            )

    def steps_per_call(self, capacity: int) -> int:
        """Steps of one compiled call, so that progress is reported and an interrupt is possible."""
        work = CALL_SECONDS * _multiplications_per_second()
        return max(1, int(work / self.work_per_step(capacity)))

    # The solution

    def solve(
        self, start: Start, save_steps: np.ndarray, two_time: bool, progress: Meter
    ) -> dict[str, np.ndarray]:
        """Overlaps and mean losses (replicate, time, ...) of one start."""
        draws = self.host_draws()
        groups = self.initial_groups(start, draws)
        saved: dict[str, list[np.ndarray]] = {}
        pairs = self.two_time_pairs(len(save_steps)) if two_time else None
        has_diverged = np.zeros(self.sampling.replicates, dtype=bool)
        number = 0
        if self.setup.in_cells:
            self.advance(groups, draws.visits(0, 0)[0], 0, self.largest_capacity)
            initial_risk = self.observe_groups(groups, 0)["train_risk"]
            self.initial_risk.append(float(np.mean(initial_risk)))
        for target in save_steps.tolist():
            while True:
                end = min(target, number + self.steps_per_call(groups[0].capacity))
                visits, end = draws.visits(number, end)
                self.advance(groups, visits, end, self.largest_capacity)
                # A replicate whose weights were not finite at `end` stays NaN from here on.
                has_diverged |= np.concatenate([group.last_good for group in groups]) < end
                if pairs is not None:
                    pairs.advance(visits, end)
                progress.advance((end - number) / self.sampling.reduction)
                number = end
                if number >= target:
                    break
            for name, values in self.observe_groups(groups, number).items():
                values[has_diverged] = np.nan
                saved.setdefault(name, []).append(values)
            if pairs is not None:
                pairs.record(groups, draws, number)
        self.finish(groups)
        results = {name: np.stack(values, axis=1) for name, values in saved.items()}
        return results if pairs is None else results | pairs.results(groups)

    def initial_capacity(self) -> int:
        """Number of directions for which memory is allocated at the start."""
        setup = self.setup
        smallest = SMALLEST_CELL_CAPACITY if setup.in_cells else SMALLEST_CAPACITY
        one_step = setup.initial_directions + setup.directions_per_step
        if self.is_short:
            return max(self.largest_capacity, one_step)
        return min(
            max(smallest, one_step + setup.directions_per_step),
            max(self.largest_capacity, one_step),
        )

    @property
    def is_short(self) -> bool:
        """Whether all steps with a full basis take less time than the compilation of one size."""
        if jax.default_backend() == "cpu" or self.memory is not None:
            return False
        size = self.sampling.replicates * self.bytes_per_replicate(self.largest_capacity)
        return self.setup.passes * self.steps * size < SHORT_SECONDS * ACCELERATOR_BANDWIDTH

    def initial_groups(self, start: Start, draws: HostDraws) -> Sequence[ReplicateGroup]:
        """All replicates at step 0, in groups that advance together."""
        setup, sets = self.setup, self.sets
        T, L = compressed_rows(self.problem, start)
        weights = InitialWeights(T[0], L[0], start.a[0])
        capacity = self.initial_capacity()
        history = 0 if self.memory is None else self.memory.history_length(setup)
        chunks = chunk_count(setup, self.inputs, largest_chunk(setup))
        random_arrays = (
            draws.initial(),
            draws.direction_uniforms(),
            counters_of(self.sampling),
        )
        groups = []
        for first in range(0, self.sampling.replicates, sets):
            chosen = jax.tree.map(
                lambda leaf, first=first: leaf[first : first + sets], random_arrays
            )
            paths = initial_paths(
                setup,
                capacity,
                history,
                chunks,
                str(self.dtype),
                self.step_parameters,
                weights,
                *self.move_to_device(chosen, len(groups)),
            )
            groups.append(PathGroup(paths, initial_slots(setup), sets))
        return groups

    def advance(
        self,
        groups: Sequence[ReplicateGroup],
        visits: list[Visits] | None,
        end: int,
        largest_capacity: int,
    ) -> None:
        """Advance all replicates to step `end`."""
        setup = groups[0].adapt_setup(self.setup)
        group_visits = [None] * len(groups) if visits is None else visits
        waiting = list(zip(groups, group_visits, strict=True))
        for group in groups:
            group.last_good = np.full(group.sets, group.number, dtype=np.int64)
        # One after the other on a CPU: two XLA programs at once on its one thread pool can wait
        # for each other forever. Other devices compute at the same time.
        count = 1 if jax.default_backend() == "cpu" else len(waiting)
        while waiting:
            running, waiting = waiting[:count], waiting[count:]
            for group, visited in running:
                group.dispatch(setup, self.step_parameters, visited, end)
            unfinished = [
                (group, visited)
                for group, visited in running
                if group.collect(setup, end, largest_capacity, self.memory)
            ]
            waiting = unfinished + waiting
        incomplete = [group.number for group in groups if group.number < end]
        if incomplete:
            smallest = self.setup.initial_directions + self.setup.directions_per_step
            # The rank as the user set it, without the initial directions and one step
            rank = self.largest_capacity - smallest
            raise ValueError(
                f"rank = {rank}: the basis was full at step {min(incomplete)} of {end}. Increase "
                "rank or tolerance."
            )

    def observe_groups(
        self, groups: Sequence[ReplicateGroup], number: int
    ) -> dict[str, np.ndarray]:
        """Overlaps and mean losses of all replicates at a step."""
        lr = self.step_parameters.hyperparameters["lr"]
        parameters = values_at(self.step_parameters.parameters, elapsed_at(lr, number))
        observed = [
            conditioning.observe_losses(
                self.observer(group), self.setup, self.train_losses, parameters, group.paths
            )
            for group in groups
        ]
        return {
            name: np.concatenate([np.asarray(group[name], dtype=np.float64) for group in observed])
            for name in observed[0]
        }

    def observer(self, group: ReplicateGroup) -> ObservePaths:
        """The function that observes the paths of a group."""
        return observe_paths

    def two_time_pairs(self, count: int) -> TwoTimeStorage:
        """The storage of C and R at this number of save points."""
        return TwoTimePairs(self, count)

    def finish(self, groups: Sequence[ReplicateGroup]) -> None:
        """Store the rank of the solution, and whether its basis became too large for the paths."""
        # The largest basis of all replicates
        weight_rank = max(int(np.max(group.paths.weight_rank)) for group in groups)
        sample_rank = max(int(np.max(group.paths.sample_rank)) for group in groups)
        self.rank = max(self.rank, weight_rank - self.setup.initial_directions)
        dimensions = float(np.max(self.step_parameters.block_sizes))
        exceeds_paths = sample_rank >= self.inputs // PATHS_PER_DIRECTION
        exceeds_dimensions = self.setup.counts_directions and weight_rank >= dimensions
        self.basis_is_full |= exceeds_paths or exceeds_dimensions
