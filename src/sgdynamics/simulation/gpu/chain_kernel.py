"""The exact chain as one GPU kernel: runs stay in registers, and the steps are a loop inside.

A program of the kernel is one warp, and each of its 32 lanes is one run. Launching a kernel per
step, as XLA does, costs more than the arithmetic of a step; here one launch makes thousands of
steps, and memory is touched at their start and end only. All values of the runs are one array with
one row per value and one column per run, so that the lanes of a warp read adjacent addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree, RandomKeys
from sgdynamics.simulation.gpu.chain_step import (
    RunState,
    StepFunction,
    UniformInputs,
    pack_states,
    prepare_step,
    unpack_rows,
)
from sgdynamics.simulation.gpu.draws import (
    LANES,
    as_integers,
    draw_ahead,
    draw_step,
    prevent_fusion,
    read_draws,
)
from sgdynamics.simulation.gpu.pallas import Lanes, Reference, call_kernel, pl
from sgdynamics.simulation.gpu.scalars import object_array
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.running import LARGEST, AdvanceResult, Observe
from sgdynamics.simulation.span_draws import degrees_of_freedom

# Steps between two checks whether a run has left or diverged.
SPAN = 64
# Steps of one loop iteration where random numbers are drawn ahead: their loads are issued together,
# because memory takes longer than a short step. The product with the operations of a step is
# limited too, as compilation is.
MAX_STEPS_PER_ITERATION, MAX_OPERATIONS_PER_ITERATION = 8, 1500

# Values of one run, one vector over the lanes each.
Values = tuple[Any, ...]


class ChainOptions(NamedTuple):
    """Static arguments of `advance`.

    Attributes
    ----------
    layout : Layout
        Layout of the compressed space, with single steps.
    observe : callable or None
        Function that updates the records of a run after each step.
    interpret : bool
        Whether to interpret the kernel instead of compiling it.
    steps_ahead : int
        Number of steps whose random numbers are drawn ahead; 0 to draw them inside of the kernel.
    """

    layout: Layout
    observe: Observe | None
    interpret: bool
    steps_ahead: int


# JAX keeps traces of kernels by their hash: this one is compared by identity, as a function is.
@dataclass(frozen=True, eq=False)
class ChainKernel:
    """Body of the kernel: all steps of the runs of one program.

    Attributes
    ----------
    step : StepFunction
        The traced step of one run.
    steps_ahead : int
        Number of steps whose random numbers were drawn ahead; 0 if there are none.
    steps_per_iteration : int
        Number of steps of one iteration of the inner loop.
    """

    step: StepFunction
    steps_ahead: int
    steps_per_iteration: int

    @property
    def n_values(self) -> int:
        """Number of values of a run."""
        return _count_values(self.step.state_shapes)

    def __call__(self, *refs: Reference) -> None:
        """Advance the runs of one program.

        The references are uniform values, degrees of freedom, the interval of steps, values and
        keys of the runs, the numbers that were drawn ahead (if any), and the output: values and the
        last step at which a run was finite.
        """
        uniform_ref, degrees_ref, interval_ref, values_ref, *drawn_refs, output_ref = refs
        group = pl.program_id(0)
        lanes = pl.ds(group * LANES, LANES)
        start, end = interval_ref[0], interval_ref[1]
        *values, first_key, second_key = _load_rows(values_ref, lanes, self.n_values + 2)
        initial, keys = tuple(values), (as_integers(first_key), as_integers(second_key))

        def draw(index: IntScalar) -> list[Any]:
            """Random numbers of a step, rounded as those that were drawn ahead."""
            degrees = [degrees_ref[k] for k in range(self.step.draws.n_chi)]
            drawn = draw_step(self.step.draws, keys, index, degrees)
            return [prevent_fusion(value, interval_ref[2]) for value in drawn]

        def read(index: IntScalar) -> list[Any]:
            """Random numbers of a step that were drawn ahead."""
            offset = (index - start).astype(jnp.int32)
            return read_draws(self.step.draws, self.steps_ahead, drawn_refs[0], group, offset)

        def iterate(count: int, carry: tuple[Any, Values]) -> tuple[Any, Values]:
            """Make `count` steps; loads of all their random numbers come before the first one."""
            index, values = carry
            drawn = [read(index + k) for k in range(count)] if self.steps_ahead else None
            for k in range(count):
                step_numbers = draw(index) if drawn is None else drawn[k]
                if k:
                    # A product that ends a step and a sum that starts the next one would be
                    # contracted where both are in one iteration, and rounded otherwise.
                    values = tuple(prevent_fusion(value, interval_ref[2]) for value in values)
                values = self._step(uniform_ref, index, values, step_numbers)
                index = index + 1
            return index, values

        def make_span(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            """Make steps up to the next multiple of the span, then check all runs."""
            index, last_finite, values, _ = carry
            stop = jnp.minimum((index // SPAN + 1) * SPAN, end)
            # Whole iterations first, then the steps that are left one by one.
            counts = (self.steps_per_iteration, 1) if self.steps_per_iteration > 1 else (1,)
            for count in counts:
                index, values = jax.lax.while_loop(
                    lambda carry, last=stop - count: carry[0] <= last,
                    partial(iterate, count),
                    (index, values),
                )
            last_finite = jnp.where(self._are_finite(values) > 0, index, last_finite)
            return index, last_finite, values, self._count_active(values, last_finite, index)

        last_finite = jnp.where(self._are_finite(initial) > 0, start, start - 1)
        index, last_finite, values, _ = jax.lax.while_loop(
            lambda carry: (carry[0] < end) & (carry[3] > 0),
            make_span,
            (start, last_finite, initial, self._count_active(initial, last_finite, start)),
        )
        # A program may stop early because all its runs have left. A run that is finite then counts
        # as finite up to the end.
        last_finite = jnp.where(last_finite == index, end, last_finite)
        _store_rows(output_ref, lanes, (*values, last_finite.astype(jnp.float64)))

    def _step(
        self, uniform_ref: Reference, index: IntScalar, values: Values, drawn: list[Array]
    ) -> Values:
        """One unrolled step of all lanes."""
        n_normals = self.step.draws.normals
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.step.state_shapes)]
        lane_arrays, first = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            lane_arrays.append(object_array(values[first : first + size], shape))
            first += size
        # The order of the leaves of `StepInputs`.
        inputs = (drawn[:n_normals], drawn[n_normals:], [index])
        for entries, shape in zip(inputs, self.step.input_shapes, strict=True):
            lane_arrays.append(object_array(entries, shape))
        # Uniform values are read again in each step instead of occupying registers between steps.
        uniform = self.step.function.read_uniform(lambda k: uniform_ref[k])
        outputs = self.step.function.run(uniform, lane_arrays)
        # An entry may be a constant or a scalar; the carry of a loop needs vectors of one dtype.
        return tuple(
            jnp.broadcast_to(entry, (LANES,)).astype(jnp.float64)
            for output in outputs
            for entry in output.reshape(-1)
        )

    def _are_finite(self, values: Values) -> Array:
        """1 for each run whose state (without records) is finite, 0 for the others."""
        n_state = _count_values(self.step.state_shapes._replace(records=None))
        finite = jnp.full((LANES,), 1, jnp.int32)
        # Comparisons, not a maximum, which may lose a NaN.
        for value in values[:n_state]:
            finite = jnp.where(jnp.abs(value) < LARGEST, finite, 0)
        return finite

    def _count_active(self, values: Values, last_finite: Numeric, index: IntScalar) -> Array:
        """Number of runs of the program that have neither left nor diverged."""
        is_active = last_finite == index
        # The recorded step is negative until a run leaves.
        left = left_position(self.step.state_shapes)
        if left is not None:
            is_active = is_active & (values[left] < 0)
        return jnp.sum(jnp.where(is_active, 1, 0))


def _count_values(state_shapes: RunState) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state_shapes))


def left_position(state_shapes: RunState) -> int | None:
    """Position among the values of a run of the step at which it left (-1 before), if recorded.

    A run that has left need not be simulated further.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(state_shapes)
    position = 0
    for path, leaf in paths:
        if getattr(path[0], "name", None) == "records" and getattr(path[-1], "key", None) == "left":
            return position
        position += int(np.prod(leaf.shape))
    return None


# ---- memory


def _load_rows(ref: Reference, lanes: Lanes, count: int) -> Values:
    """The first rows of an array, one vector each.

    The loop has a single load and selects its target: for every load in a program, Triton's
    compiler analyses the whole program, and hundreds of loads would take minutes.
    """

    def load(row: IntScalar, values: Values) -> Values:
        vector = ref[row, lanes]
        return tuple(jnp.where(row == k, vector, value) for k, value in enumerate(values))

    zeros = tuple(jnp.zeros((LANES,), ref.dtype) for _ in range(count))
    return jax.lax.fori_loop(0, count, load, zeros)


def _store_rows(ref: Reference, lanes: Lanes, values: Values) -> None:
    """Store vectors in the first rows of an array, by a single store in a loop."""

    def store(row: IntScalar, carry: IntScalar) -> IntScalar:
        vector = values[0]
        for k, value in enumerate(values[1:], start=1):
            vector = jnp.where(row == k, value, vector)
        ref[row, lanes] = vector
        return carry

    jax.lax.fori_loop(0, len(values), store, 0)


def _interval(start: IntScalar, end: IntScalar) -> Array:
    """First step and end for a kernel, and a 0 that its compiler does not know."""
    return jnp.stack(
        [jnp.asarray(start, jnp.int64), jnp.asarray(end, jnp.int64), jnp.zeros((), jnp.int64)]
    )


def _pack_values(states: RunState, keys: RandomKeys) -> Float[Array, "values runs"]:
    """All values and the two keys of the runs, one column each.

    The runs are padded to a multiple of the lanes by copies of the last one. Keys travel as the
    bits of floats, so that a program has one array to load.
    """
    runs = keys.shape[0]
    bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint64))(keys)
    key_columns = jax.lax.bitcast_convert_type(bits, jnp.float64)
    columns = [
        jnp.reshape(leaf, (runs, -1)).astype(jnp.float64) for leaf in jax.tree.leaves(states)
    ]
    return jnp.pad(
        jnp.concatenate([*columns, key_columns], axis=1).T,
        ((0, 0), (0, -runs % LANES)),
        mode="edge",
    )


def _unpack_values(values: Numeric, states: RunState, runs: int) -> RunState:
    """The states of the runs with the shapes and dtypes of `states`, from their values."""
    leaves, first = [], 0
    for leaf in jax.tree.leaves(states):
        size = int(np.prod(leaf.shape[1:]))
        leaves.append(values[first : first + size, :runs].T.reshape(leaf.shape).astype(leaf.dtype))
        first += size
    return jax.tree.unflatten(jax.tree.structure(states), leaves)


# ---- all steps of all runs


@partial(jax.jit, static_argnums=0)
def advance(
    options: ChainOptions,
    uniform: UniformInputs,
    state: Rows,
    keys: RandomKeys,
    start: IntScalar,
    end: IntScalar,
    records: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `start` to step `end`.

    Parameters
    ----------
    options : ChainOptions
        Static arguments.
    uniform : UniformInputs
        Values that all runs share.
    state : Rows
        Folded rows and other variables of the runs.
    keys : array of keys
        Random keys of the runs.
    start, end : int
        First step, and the step behind the last one.
    records : pytree
        Records of the observation.

    Returns
    -------
    state : Rows
        The states at step `end`.
    last_finite : array of int
        The last step at which each run was seen to be finite.
    records : pytree
        The updated records.
    """
    layout, ahead = options.layout, options.steps_ahead
    # Everything of a run that changes, in the form in which the kernel keeps it.
    states = pack_states(layout, state, records)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states)
    step = prepare_step(layout, options.observe, uniform, shapes)
    uniform_values = step.function.pack_uniform(jax.tree.leaves(uniform))
    runs = keys.shape[0]
    values = _pack_values(states, keys)
    n_padded = values.shape[1]
    # The 0 at the end: a kernel takes no array of size 0, and there may be no chi variables.
    degrees = degrees_of_freedom(layout, jnp.asarray(uniform.block_sizes))
    degrees = jnp.append(jnp.ravel(degrees).astype(jnp.float64), 0.0)
    left = left_position(shapes)
    kernel = ChainKernel(step, ahead, steps_per_iteration(step) if ahead else 1)

    def call(start: IntScalar, end: IntScalar, values: Numeric, *drawn: Numeric) -> Array:
        """Run the kernel; the output has no keys, but the last finite step of each run."""
        return call_kernel(
            kernel,
            jax.ShapeDtypeStruct((len(values) - 1, n_padded), jnp.float64),
            (n_padded // LANES,),
            name="chain",
            interpret=options.interpret,
            warps=1,
            stages=1,
        )(uniform_values, degrees, _interval(start, end), values, *drawn)

    def count_active(index: IntScalar, values: Numeric, last_finite: Numeric) -> Array:
        """Number of active runs of each program."""
        is_active = last_finite == index
        if left is not None:
            is_active = is_active & (values[left] < 0)
        return jnp.sum(is_active.reshape(-1, LANES), axis=1, dtype=jnp.int32)

    def make_stretch(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Draw the numbers of a stretch of steps, then make these steps."""
        index, values, last_finite, active = carry
        # Runs are checked at multiples of a span, whatever the length of a stretch.
        stop = jnp.minimum(index // SPAN * SPAN + ahead, end)
        interval, key_bits = _interval(index, stop), as_integers(values[-2:])
        drawn = draw_ahead(
            step.draws, ahead, options.interpret, degrees, interval, active, key_bits
        )
        output = call(index, stop, values, drawn)
        new_finite, values = output[-1].astype(jnp.int64), values.at[:-2].set(output[:-1])
        # A run that was not finite at the start of the stretch keeps its last finite step.
        is_new = (last_finite == index) | (new_finite >= index)
        last_finite = jnp.where(is_new, new_finite, last_finite)
        return stop, values, last_finite, count_active(stop, values, last_finite)

    start, end = jnp.asarray(start, jnp.int64), jnp.asarray(end, jnp.int64)
    if ahead:
        last_finite = jnp.full(n_padded, start)
        index, values, last_finite, _ = jax.lax.while_loop(
            lambda carry: (carry[0] < end) & (jnp.sum(carry[3]) > 0),
            make_stretch,
            (start, values, last_finite, count_active(start, values, last_finite)),
        )
        values = values[:-2]
        # The loop stops early if all runs have left: what they are now, they are at the end.
        last_finite = jnp.where(last_finite == index, end, last_finite)
    else:
        output = call(start, end, values)
        values, last_finite = output[:-1], output[-1].astype(jnp.int64)
    final = _unpack_values(values, states, runs)
    rows = unpack_rows(layout, final.rows)
    memory = {"squares": final.squares, "vectors": final.vectors}
    state = Rows(rows, final.head, final.scalars, signals=state.signals, **memory)
    return state, last_finite[:runs], final.records


def steps_per_iteration(step: StepFunction) -> int:
    """Number of steps per iteration of the kernel's loop: a power of two that compiles fast."""
    # A power of two divides the span, so that few steps are left for single iterations.
    fitting = MAX_OPERATIONS_PER_ITERATION / step.count_operations()
    return max(2 ** int(np.log2(min(MAX_STEPS_PER_ITERATION, fitting))), 1)
