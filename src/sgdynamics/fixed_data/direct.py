"""Algorithms on a fixed data set in d dimensions, with the data set itself.

A step reads the n x d inputs twice, for the fields X W^T and for the gradient h^T X; all else is
cheap in comparison. On a CPU the runs follow each other for a few steps each, because a data set
then stays in the cache (measured: up to twice as fast as one batched product). On an accelerator,
and if all runs share one data set, they advance together. On an NVIDIA GPU one kernel reads the
inputs once for both products (`simulation.gpu.data_gradients`) if it supports the loss; the rest
of a step is the same.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at, step_parameters
from sgdynamics.algorithms.updates.law import count_row_sets
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.base.resources import available_bytes
from sgdynamics.fixed_data.direct_steps import (
    NORMALS_PER_CHUNK,
    Data,
    Observer,
    Options,
    StepContext,
    Weights,
    advance_on_data,
    draw_data_sets,
    draw_first_selections,
    mean_losses,
)
from sgdynamics.fixed_data.message_passing import MessagePassing, Messages, first_messages
from sgdynamics.fixed_data.sample_space import SampleMemory, first_sample_memory
from sgdynamics.fixed_data.setup import InitialWeights
from sgdynamics.fixed_data.spectral_start import (
    SpectralStart,
    linear_passing,
    power_keys,
    random_direction,
    rescale,
)
from sgdynamics.fixed_data.update_memory import UpdateMemory, first_memory
from sgdynamics.problems.frames import compressed_rows, place_signals, signal_frames
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.sample import as_dtype, example_argument
from sgdynamics.simulation.direct import direct_overlaps, embed_rows, place_in_random_frames
from sgdynamics.simulation.gpu import data_gradients
from sgdynamics.simulation.gpu.pallas import has_kernels
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Resources,
    RunSetting,
    Simulator,
)

SHARED = 0xFFFFFFFF  # number of the run that owns a shared data set; no other run has it
CPU_GROUP_BYTES = 1 << 26  # data sets in memory at a time on a CPU, where more are not faster
MEMORY_SHARE = 0.5  # for the data sets of a group: finished runs are removed by copying the others
COMPUTATION = {"float16": "float32"}  # precision of all but the inputs, where it differs
# Standard deviations of inputs that float16 represents well: it has 11 bits from 6e-5 to 65504, and
# fewer below.
HALF_RANGE = (0.01, 1000.0)


class DirectFixedData(Simulator):
    """Runs in d dimensions, with the signals along the first K axes of each covariance block.

    Each run has a data set of its own, drawn from its key, and the part of its initial rows
    outside the signals lies along the next p axes; any other choice is a rotation of this one.
    With `shared_data` all runs read one data set, and start in random directions with the
    required overlaps. The simulator holds the data sets of the group that `initial` started, so
    that they are not copied from step to step.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        setting: RunSetting[Start],
        passing: MessagePassing | None = None,
        spectral: SpectralStart | None = None,
    ) -> None:
        start, dimension, block_sizes = setting.start, setting.dimension, setting.block_sizes
        dtype, shared_data = setting.dtype, setting.shared_data
        if spectral is not None:
            start = random_direction(problem, start)
        self.problem, self.spectral = problem, spectral
        self.structure, self.seed = problem.structure, setting.seed
        self.stored = np.dtype(dtype)  # of the inputs
        self.dtype = np.dtype(COMPUTATION.get(dtype, dtype))  # of all else
        together = shared_data or jax.default_backend() != "cpu"
        edges = (0, *np.cumsum(block_sizes).tolist())
        self.options = Options(
            algorithm.selects,
            algorithm.has_thermal_noise,
            shared_data,
            together,
            passing=passing,
            edges=() if passing is None and algorithm.law is None else edges,
            law=algorithm.law,
        )
        self.first_messages: Messages | None = None
        if passing is not None:
            self.first_messages = first_messages(
                problem,
                passing,
                start,
                algorithm.samples(dimension),
                algorithm.samples_per_dimension,
            )
        # Signals of finite blocks have the exact Gram matrix at this dimension.
        frames = signal_frames(problem, block_sizes)
        cast = partial(np.asarray, dtype=self.dtype)
        # The hyperparameters stay in float64: a schedule depends on the number of steps.
        self.context = StepContext(
            jax.tree.map(cast, problem.parameters | {"frame": frames}),
            algorithm.parameters,
            np.float64(dimension),
        )
        # Memory is checked before anything is drawn.
        self.dimension, self.samples = dimension, algorithm.samples(dimension)
        check_memory(self)
        self.weights = InitialWeights(*compressed_rows(problem, start, block_sizes), start.a)
        self.edges = edges  # of the covariance blocks
        self.placement = place_signals(problem, block_sizes)
        check_range(self)
        # A product with the rows of all runs reads a shared data set once for all of them.
        if has_kernels() and not shared_data and passing is None and algorithm.law is None:
            self.use_kernel("triton")
        self.data: Data | None = None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem."""
        return self.context.parameters

    @property
    def first_parameters(self) -> Parameters:
        """The parameters of the problem at the first step."""
        context = self.context
        return step_parameters(context.parameters, context.hyperparameters, np.int64(0))[0]

    @float64
    def use_kernel(self, mode: str) -> None:
        """Use the kernel that reads the inputs once, if it supports the problem (see `engine`)."""
        example = as_dtype(example_argument(self.structure.sample, self.parameters), self.dtype)
        parameters = as_dtype(self.first_parameters, self.dtype)
        obstacle = data_gradients.find_obstacle(
            self.structure, self.dimension, parameters, example, self.dtype
        )
        if obstacle is None and mode == "triton":
            # Interpreted kernels are not compiled.
            obstacle = self._compiler_error(parameters, example)
        if obstacle is None:
            self.options = self.options._replace(kernel=mode, together=True)
            self.engine = "gpu_kernel (one read per step)"
        else:
            self.engine = f"xla (no kernel: {obstacle})"

    def _compiler_error(self, parameters: Parameters, example: PyTree) -> str | None:
        """The error of the kernel compiler for one run and one chunk; None if it succeeds."""

        def shape(
            value: Numeric | np.generic, *, lead: tuple[int, ...] = (1, data_gradients.CHUNK)
        ) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*lead, *np.shape(value)), jnp.result_type(value))

        empty = partial(np.empty, dtype=self.dtype)
        width, signals = self.structure.width, self.structure.signals
        # Shapes are enough to compile; no data set is allocated.
        one_input = np.empty(self.dimension, self.stored)
        data = jax.tree.map(shape, Data(one_input, empty(signals), example))
        rows = shape(empty((width, self.dimension)), lead=(1,))
        head = shape(empty(width), lead=(1,))
        selected = shape(np.bool_(True)) if self.options.selects else None
        sums = jax.jit(partial(data_gradients.sums, self.structure, "triton"))
        try:
            sums.lower(parameters, data, rows, head, selected).compile()
        except Exception as error:  # of any kind: XLA computes the same, and the result reports it
            return " ".join(str(error).split())[:200]
        return None

    def initial(self, chosen: np.ndarray) -> Weights:
        self.data = None  # the memory of the last group is free before this group needs it
        self.now = 0.0
        keys = run_keys(self.seed, chosen)
        # A shared data set belongs to no run, so that it does not depend on their number.
        owners = run_keys(self.seed, np.array([SHARED])) if self.options.shared else keys
        dtypes = (self.stored, self.dtype)
        rows, signal_rows = self._initial_rows(chosen), None
        if self.has_random_frames:
            rows, signal_rows = self._rows_in_random_frames(chosen)
        self.data = draw_data_sets(
            self.structure,
            self.samples,
            dtypes,
            self.parameters,
            self.placement,
            owners,
            signal_rows,
        )
        if self.options.shared:
            self.data = jax.tree.map(lambda leaf: leaf[0], self.data)
        rows = jnp.asarray(rows)
        head = jnp.asarray(self.weights.head[chosen], dtype=self.dtype)
        selected = None
        if self.options.selects:
            selected = draw_first_selections(self.samples, self.context.hyperparameters, keys)
        # The risk at step 0 is the reference for divergence on the sphere.
        state = Weights(rows, head, selected, jnp.zeros(len(chosen)), signal_rows=signal_rows)
        if self.options.law is not None:
            state = state._replace(
                memory=self._first_memories(rows, head), samples=self._first_samples(len(chosen))
            )
        if self.first_messages is not None:
            messages = (jnp.asarray(leaf[chosen], self.dtype) for leaf in self.first_messages)
            state = state._replace(messages=Messages(*messages))
        if self.spectral is not None:
            state = self._iterate_power(state, keys, self.spectral)
        return state._replace(first_risk=jnp.asarray(self.train_risk(state)))

    def _iterate_power(self, state: Weights, keys: RandomKeys, spectral: SpectralStart) -> Weights:
        """The spectral start from random directions."""
        passing = self.options.passing
        assert passing is not None
        state, _, _ = advance_on_data(
            self.structure,
            self.options._replace(passing=linear_passing(passing, spectral)),
            Observer(None, self.edges),
            self.context,
            self.data,
            state,
            power_keys(keys),
            np.int64(0),
            np.int64(spectral.steps(self.dimension)),
        )
        frame = np.asarray(self.parameters["frame"], np.float64)
        rows = np.asarray(state.rows, np.float64)
        overlaps = direct_overlaps(np, self.structure.signals, self.edges, frame, rows)
        M, Q = (np.asarray(values) for values in overlaps)
        moved, messages = rescale(self.problem, spectral, state.rows, state.messages, M, Q)
        return state._replace(rows=moved, messages=messages)

    def restore(self, chosen: np.ndarray, leaves: list[np.ndarray], now: int) -> Weights:
        state = super().restore(chosen, leaves, now)
        self.now = self._time_at(now)
        return state

    def _time_at(self, number: int) -> float:
        return float(elapsed_at(self.context.hyperparameters["lr"], number))

    def _initial_rows(self, chosen: np.ndarray) -> np.ndarray:
        """Rows [T | L] along the axes; with shared data L is turned to random directions."""
        p, k = self.structure.width, self.structure.signals
        rows = np.concatenate([self.weights.T, self.weights.L], axis=-1)[chosen]
        rows = embed_rows(rows, self.edges).astype(self.dtype)
        if not self.options.shared:
            return rows
        for block, (low, high) in enumerate(pairwise(self.edges)):
            for index, run in enumerate(chosen):
                sequence = np.random.SeedSequence(self.seed, spawn_key=(int(run), block))
                normals = np.random.default_rng(sequence).standard_normal(
                    (max(high - low - k, 0), p)
                )
                # A uniform random frame; a small block has fewer directions than rows.
                frame = np.linalg.qr(normals)[0]
                L = self.weights.L[run, block][:, : frame.shape[1]]
                rows[index, :, low + k : high] = L @ frame.T
        return rows

    @property
    def has_random_frames(self) -> bool:
        """Whether every run has a frame of its own, for an update of each coordinate."""
        law = self.options.law
        return law is not None and law.coordinatewise

    def _rows_in_random_frames(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and signals along random directions in each block."""
        rows = np.concatenate([self.weights.T, self.weights.L], axis=-1)[chosen]
        frame = np.asarray(self.parameters["frame"])
        law = self.options.law
        arguments = (rows, chosen, frame, self.edges, self.seed, law is not None and law.axes)
        weights, signals = place_in_random_frames(*arguments)
        return weights.astype(self.dtype), signals.astype(self.dtype)

    @float64
    def _first_memories(self, rows: Numeric, head: Numeric) -> UpdateMemory:
        """The memory of the update in all runs."""
        law, rates = self.options.law, self.context.hyperparameters
        assert law is not None
        parameters = step_parameters(self.context.parameters, rates, np.int64(0))[1]["update"]
        variances, trained = np.asarray(self.placement.scale) ** 2, self.structure.trained

        def first(rows: Numeric, head: Numeric) -> UpdateMemory:
            return first_memory(law, parameters, rows, head, variances, trained)

        return jax.vmap(first)(rows, head)

    def _first_samples(self, runs: int) -> SampleMemory | None:
        """The values that the update stores for every sample, in all runs."""
        inputs = self.samples * self.structure.sample.tokens.inputs_per_sample
        arguments = (self.options.law, inputs, self.structure.width, self.dtype)
        return jax.tree.map(
            lambda leaf: jnp.zeros((runs, *leaf.shape), leaf.dtype), first_sample_memory(*arguments)
        )

    def advance(
        self,
        state: Weights,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        self.now = self._time_at(end)
        return advance_on_data(
            self.structure,
            self.options,
            Observer(observation.observe, self.edges),
            self.context,
            self.data,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Weights) -> dict[str, Numeric]:
        rows, head = (np.asarray(leaf, dtype=np.float64) for leaf in (state.rows, state.head))
        frame = np.asarray(self.parameters["frame"], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # of runs that have diverged
            signals = state.signal_rows
            signals = None if signals is None else np.asarray(signals, dtype=np.float64)
            M, Q = direct_overlaps(np, self.structure.signals, self.edges, frame, rows, signals)
        means = {name: self.train_mean(loss, state) for name, loss in self.on_train.items()}
        return {"M": M, "Q": Q, "a": head, "train_risk": self.train_risk(state), **means}

    def train_risk(self, state: Weights) -> np.ndarray:
        return self.train_mean(self.structure.loss, state)

    def train_mean(self, loss: Loss, state: Weights) -> np.ndarray:
        """The mean of a loss over the data set of each run."""
        structure = self.structure.with_loss(loss)
        return np.asarray(
            mean_losses(structure, self.options, self.parameters, self.now, self.data, state)
        )

    def select_runs(self, state: Weights, index: np.ndarray) -> Weights:
        if not self.options.shared:
            # Data sets of runs that have finished are released.
            self.data = jax.tree.map(lambda leaf: leaf[index], self.data)
        return super().select_runs(state, index)

    @property
    def grain(self) -> int:
        return 1

    def bytes_of(self, runs: int) -> int:
        """Approximate memory of some runs: data sets and working space."""
        p, k, n = self.structure.width, self.structure.signals, self.samples
        sample = self.structure.sample
        inputs = n * sample.tokens.inputs_per_sample
        labels = (inputs * k + n * sample.normals_per_sample) * self.dtype.itemsize
        # One data set more than runs, while a data set is drawn or copied
        data_set = inputs * self.dimension * self.stored.itemsize + labels
        per_run = (6 * p * (inputs + self.dimension) + 4 * n) * self.dtype.itemsize
        if self.options.law is not None:
            law = self.options.law
            vectors = 2 * p * (count_row_sets(law) + len(law.squares) + law.noise)
            per_run += vectors * self.dimension * self.dtype.itemsize
            per_run += 2 * len(law.samples) * p * inputs * self.dtype.itemsize
        data_sets = 1 if self.options.shared else runs
        drawing = 4 * 8 * max(NORMALS_PER_CHUNK, self.dimension)
        return (data_sets + 1) * data_set + runs * per_run + drawing

    def resources(self, steps: float = 0.0) -> Resources:
        limit = MEMORY_SHARE * available_bytes()
        if jax.default_backend() == "cpu" and not self.options.shared:
            limit = min(limit, CPU_GROUP_BYTES)
        # Memory is affine in the number of runs.
        per_run = self.bytes_of(2) - self.bytes_of(1)
        largest = max(1, min(1 << 14, int((limit - self.bytes_of(1)) // per_run) + 1))
        return Resources(largest_group=largest)


def check_memory(simulator: DirectFixedData) -> None:
    """Raise ValueError if the memory is insufficient for one run at a time."""
    required, available = simulator.bytes_of(1), available_bytes()
    if required > available:
        raise checks.reject(
            "dimension",
            simulator.dimension,
            f"a data set of {simulator.samples} x {simulator.dimension} numbers in "
            f"{simulator.stored.name} needs {required / 2**30:.3g} GiB with its working space, and "
            f"{available / 2**30:.3g} GiB are free. Use a smaller dimension, fewer samples, "
            'dtype="float32" or method="exact".',
        )


def check_range(simulator: DirectFixedData) -> None:
    """Raise ValueError for inputs that float16 does not represent well."""
    scales, (low, high) = np.asarray(simulator.placement.scale), HALF_RANGE
    smallest, largest = scales.min(), scales.max()
    if simulator.stored == np.float16 and not (smallest >= low and largest <= high):
        raise checks.reject(
            "dtype",
            simulator.stored.name,
            f"the standard deviations of the inputs are {smallest:.3g} to {largest:.3g}, and this "
            f'type represents {low:g} to {high:g} well. Use "float32".',
        )
