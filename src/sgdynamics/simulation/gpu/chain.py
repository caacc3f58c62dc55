"""The exact chain on a GPU: the simulator, and the choice between the kernel and XLA."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import PyTree, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation import compressed
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu.chain_kernel import SPAN, ChainOptions, advance
from sgdynamics.simulation.gpu.chain_step import (
    RunState,
    UniformInputs,
    pack_states,
    prepare_step,
    step_draws,
)
from sgdynamics.simulation.gpu.draws import LANES
from sgdynamics.simulation.gpu.pallas import device_memory, has_kernels
from sgdynamics.simulation.gpu.program import NotUnrollable, shape_struct
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Resources,
    RunSetting,
    Simulator,
)

# Numbers of steps whose random numbers are drawn ahead: at most, and at least (else none are).
MAX_STEPS_AHEAD, MIN_STEPS_AHEAD = 4096, 256
# Memory for random numbers drawn ahead: at most these bytes, and this share of the device.
MAX_BYTES_AHEAD, MEMORY_SHARE_AHEAD = 1 << 31, 1 / 16
# Largest number of runs for which drawing ahead pays, measured on an H200 at widths 1, 2 and 4.
# With four times as many runs both ways take the same time at width 1.
MAX_RUNS_AHEAD = 1 << 15
# Largest number of random numbers of a step: more do not fit into registers while they are loaded.
MAX_DRAWS_AHEAD = 16
# Largest number of operations of a step. Its compilation takes a minute, and the time grows with
# the square of the number.
MAX_OPERATIONS = 12_000
# Share of the device's memory that the runs of one group may use.
GROUP_MEMORY_SHARE = 1 / 4


class KernelChain(ExactChain):
    """The exact chain in one GPU kernel.

    Parameters
    ----------
    problem : Problem
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    setting : RunSetting
        Start, dimension and covariance blocks of the runs.
    interpret : bool, default False
        Whether to interpret the kernel, which works on any device and is slow.
    """

    engine = "gpu_kernel"
    # A program whose runs have left ends at once: a smaller batch would gain nothing.
    drops_finished_runs = False

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        setting: RunSetting[Start],
        interpret: bool = False,
    ) -> None:
        self.arguments = (problem, algorithm, setting)
        super().__init__(*self.arguments)
        # A fold ends every step: columns of several steps would not fit into registers.
        self.layout = replace(self.layout, single_step=True).for_block_sizes(setting.block_sizes)
        self.interpret = interpret

    @float64
    def initial(self, chosen: np.ndarray) -> Rows:
        state = super().initial(chosen)
        # The kernel starts from folded rows, whose triangles it packs.
        return state._replace(rows=jax.vmap(partial(compressed.fold, self.layout))(state.rows))

    def uniform_inputs(self, shared: PyTree) -> UniformInputs:
        """The values that all runs share; `shared` are those of the observation."""
        model = (self.parameters, self.algorithm, self.dimension)
        return UniformInputs(model, self.block_sizes, shared)

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        ahead = self.steps_ahead(len(keys))
        return advance(
            ChainOptions(self.layout, observation.observe, self.interpret, ahead),
            self.uniform_inputs(observation.shared),
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
        )

    def steps_ahead(self, runs: int) -> int:
        """Number of steps whose random numbers are drawn ahead of the kernel; 0 for none.

        The kernel draws its own numbers if there are enough runs to keep the device busy, if a step
        takes too many of them, or if memory is short.
        """
        # Programs draw for all of their lanes, padded ones included.
        count = step_draws(self.layout).count
        n_padded = -(-runs // LANES) * LANES
        room = min(MAX_BYTES_AHEAD, MEMORY_SHARE_AHEAD * device_memory())
        steps = int(min(MAX_STEPS_AHEAD, room / (8 * count * n_padded))) // SPAN * SPAN
        pays = runs <= MAX_RUNS_AHEAD and count <= MAX_DRAWS_AHEAD and steps >= MIN_STEPS_AHEAD
        return steps if pays else 0

    @property
    def grain(self) -> int:
        return SPAN

    def resources(self, steps: float = 0.0) -> Resources:
        layout, width = self.layout, self.layout.structure.width
        n_strip, n_blocks = len(layout.explicit_blocks), len(layout.compressed_blocks)
        values = width * (n_strip + n_blocks * (layout.inside + 1))
        # An update with memory has several sets of rows.
        sets = max(1, len(self.L[0][0]) // width)
        # Float64 rows with their new columns, packed rows, and both again as outputs.
        bytes_per_run = 8.0 * 6 * (values * sets + 8)
        largest = max(LANES, int(GROUP_MEMORY_SHARE * device_memory() / bytes_per_run))
        return Resources(bytes_per_run, largest)

    def with_observation(self, observation: Observation) -> Simulator:
        # An observable is a user's function: it may contain what cannot be unrolled (a sort, say).
        records, observe, shared = observation
        if self.find_obstacle(observe, records, shared) is None:
            return self
        return ExactChain(*self.arguments)

    @float64
    def find_obstacle(
        self, observe: Observe | None = None, records: PyTree = None, shared: PyTree = None
    ) -> str | None:
        """The reason why a step cannot be unrolled; None if it can.

        Parameters
        ----------
        observe : callable, optional
            Function that updates the records of a run after each step.
        records : pytree, optional
            Records of the runs.
        shared : pytree, optional
            Values of the observation that all runs share.
        """
        # Shapes alone decide: neither the initial condition nor a kernel is computed.
        states = jax.eval_shape(
            lambda: pack_states(self.layout, self.initial(np.zeros(1, int)), records)
        )
        state_shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states
        )
        uniform = jax.tree.map(shape_struct, self.uniform_inputs(shared))
        leaves, tree = jax.tree.flatten((uniform, state_shapes))
        return _find_step_obstacle(self.layout, observe, tuple(leaves), tree)


@cache
def _find_step_obstacle(
    layout: Layout,
    observe: Observe | None,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    tree: Hashable,
) -> str | None:
    """The reason why a step cannot be unrolled; cached, because unrolling takes seconds."""
    uniform: UniformInputs
    state_shapes: RunState
    uniform, state_shapes = jax.tree.unflatten(tree, leaves)
    try:
        count = prepare_step(layout, observe, uniform, state_shapes).count_operations()
    except NotUnrollable as error:
        return str(error)
    return None if count <= MAX_OPERATIONS else f"a step of {count} operations"


def exact_chain(problem: Problem, algorithm: OnePassSGD, setting: RunSetting[Start]) -> ExactChain:
    """The exact chain by the fastest engine of this machine.

    That is one kernel on an NVIDIA GPU if the step can be unrolled, and XLA otherwise. The
    attribute `engine` names it, with the reason if there is no kernel.

    Parameters
    ----------
    problem : Problem
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    setting : RunSetting
        Start, dimension and covariance blocks of the runs.
    """
    arguments = (problem, algorithm, setting)
    if not has_kernels():
        return ExactChain(*arguments)
    kernel_chain = KernelChain(*arguments)
    obstacle = kernel_chain.find_obstacle()
    if obstacle is None:
        return kernel_chain
    chain = ExactChain(*arguments)
    chain.engine = f"xla (no kernel: {obstacle})"
    return chain
