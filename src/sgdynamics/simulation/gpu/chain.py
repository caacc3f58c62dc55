"""The exact chain as a GPU kernel: rows stay in registers, and the steps are a loop inside.

Each lane of the kernel is one run. A step of one run is traced once from the chain's own definition (`compressed.lone_step`) with the
user's loss in it, and unrolled (`unrolled.py`). Random numbers are a hash of a counter (`kernel_draws.py`), so that neither the number of
runs nor pieces nor save points change them: many runs make them where they are used, few runs have them made ahead. A fold ends every
step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree, RandomKeys, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation import compressed
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu import pallas, unroll
from sgdynamics.simulation.gpu.draws import (
    LANES,
    Draws,
    as_whole,
    made_ahead,
    random_numbers,
    read_ahead,
    rounded,
)
from sgdynamics.simulation.gpu.pallas import pl, triton
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
)

SPAN = 64  # steps between two looks at whether a run has left or diverged
MOST_AHEAD, LEAST_AHEAD = (
    4096,
    256,
)  # steps whose random numbers are made ahead; where there is room for fewer, none are
ROOM_AHEAD, SHARE_AHEAD = (
    1 << 31,
    1 / 16,
)  # bytes for them at most, and their share of the device's memory
MOST_RUNS_AHEAD = (
    1 << 15
)  # where they gain on an H200 at widths 1, 2, 4; four times as many take as long either way at width 1
MOST_NUMBERS = 16  # of a step: more have no place in registers while they are on their way
MOST_TOGETHER, OPERATIONS_TOGETHER = (
    8,
    1500,
)  # steps whose numbers, made ahead, are read at once: memory takes longer than a short step
MOST_OPERATIONS = 12_000  # of a step: compilation takes a minute there, and grows with their square


class Lane(NamedTuple):
    """What one run has: the triangles of its rows, which is all that they have between steps, head, an update's numbers, and what was
    seen."""

    rows: Any
    head: Any
    scalars: Any
    squares: Any
    seen: Any


class Turn(NamedTuple):
    """What a step takes beside: standard normals, the chi variables of the outside, and its number."""

    normals: Any
    lengths: Any
    index: Any


@cache
def _triangle(layout: compressed.Layout) -> tuple[np.ndarray, np.ndarray]:
    """Of rows without their new columns, flat: the places of numbers that a fold does not leave 0; and the way back, with 0 put last."""
    signals, rows = layout.structure.signals, layout.rows
    block = np.arange(layout.inside) - signals <= np.arange(rows)[:, None]
    there = np.concatenate(
        [
            np.ones((rows, len(layout.explicit_blocks)), bool),
            np.tile(block, (1, len(layout.compressed_blocks))),
        ],
        axis=1,
    ).reshape(-1)
    kept = np.flatnonzero(there)
    back = np.full(there.shape, len(kept))
    back[kept] = np.arange(len(kept))
    return kept, back


def packed(layout: compressed.Layout, rows: Numeric) -> Any:
    """Folded rows, flat, without the new columns and what is above their triangles."""
    strip, blocks = layout.split(rows)
    flat = blocks[..., : layout.inside].reshape(*rows.shape[:-1], -1)
    every = jnp.concatenate([strip, flat], axis=-1) if layout.explicit_sizes else flat
    return every.reshape(*rows.shape[:-2], -1)[..., _triangle(layout)[0]]


def unpacked(layout: compressed.Layout, numbers: Numeric) -> Any:
    """The same with all that is 0."""
    ended = jnp.concatenate([numbers, jnp.zeros((*numbers.shape[:-1], 1), numbers.dtype)], axis=-1)
    cut, lead = len(layout.explicit_blocks), numbers.shape[:-1]
    rows = ended[..., _triangle(layout)[1]].reshape(*lead, layout.rows, -1)
    blocks = rows[..., cut:].reshape(*rows.shape[:-1], len(layout.compressed_blocks), layout.inside)
    empty = jnp.zeros((*blocks.shape[:-1], layout.columns), rows.dtype)
    return layout.join(rows[..., :cut], jnp.concatenate([blocks, empty], axis=-1))


def one_step(
    layout: compressed.Layout, see: Observe | None, shared: tuple[Any, ...], lane: Lane, turn: Turn
) -> Lane:
    """A step of one run, as it is traced; shared: numbers, sizes and what `see` is given."""
    numbers, sizes, given = shared
    parts = compressed.split_into_shapes(turn.normals, compressed.normal_shapes(layout, 1))
    draws = compressed.assemble_draws(
        layout, parts, turn.lengths[None], compressed.degrees_of_freedom(layout, sizes)
    )
    part = jax.tree.map(lambda leaf: leaf[0], draws)
    state = Rows(unpacked(layout, lane.rows), lane.head, lane.scalars, lane.squares)
    watch = None if see is None else partial(see, given)
    state, seen = compressed.step_and_fold(
        layout, numbers, state, part, turn.index, lane.seen, watch
    )
    return Lane(packed(layout, state.rows), state.head, state.scalars, state.squares, seen)


class Plan(NamedTuple):
    """A step in two parts: what all runs share, and what is unrolled."""

    program: unroll.Program
    parts: unroll.Split
    shared: int  # how many inputs all runs share
    draws: Draws


def draws_of(layout: compressed.Layout) -> Draws:
    """The random numbers of a step."""
    counts = [int(np.prod(shape)) for shape in compressed.normal_shapes(layout, 1)]
    return Draws(sum(counts), sum(counts[:3]), (len(layout.compressed_blocks), layout.columns))


def planned(
    layout: compressed.Layout, see: Observe | None, shared: tuple[Any, ...], lane: Lane
) -> Plan:
    """Trace a step; lane: shapes of one run."""
    draws = draws_of(layout)
    normals, lengths = (
        jax.ShapeDtypeStruct(shape, np.float64) for shape in ((draws.normals,), draws.chi)
    )
    turn = Turn(normals, lengths, jax.ShapeDtypeStruct((), np.int64))
    program = unroll.traced(partial(one_step, layout, see), shared, lane, turn)
    count = len(jax.tree.leaves(shared))
    return Plan(program, unroll.split(program, set(program.inputs[:count])), count, draws)


def _kernel(plan: Plan, lane: Lane, ahead: int, together: int, *refs: Any) -> None:
    """All steps of the runs of one program; values: one row a number of the lane, one column a run. ahead: steps with numbers made, and
    together: how many of these are in the loop."""
    shared_ref, free_ref, when_ref, values_ref, *numbers_ref, made_ref = refs
    group = pl.program_id(0)
    here = pl.ds(group * LANES, LANES)
    since, end = when_ref[0], when_ref[1]
    kinds = jax.tree.leaves(lane)
    sizes = [int(np.prod(one.shape)) for one in kinds]
    state_size = sum(int(np.prod(one.shape)) for one in jax.tree.leaves(lane._replace(seen=None)))
    left = _place_of_left(lane)

    *first, one, other = _loaded(values_ref, here, sum(sizes) + 2)
    begin, keys = tuple(first), (as_whole(one), as_whole(other))

    def step(index: IntScalar, values: tuple[Any, ...], drawn: list[Any]) -> tuple[Any, ...]:
        normals, lengths = drawn[: plan.draws.normals], drawn[plan.draws.normals :]
        edges = np.cumsum([0, *sizes])
        own = [
            unroll.arranged(list(values[low:high]), one.shape)
            for low, high, one in zip(edges, edges[1:], kinds, strict=False)
        ]
        shapes = ((plan.draws.normals,), plan.draws.chi, ())
        own += [
            unroll.arranged(some, shape)
            for some, shape in zip((normals, lengths, [index]), shapes, strict=True)
        ]
        common = unroll.read_before(plan.program, plan.parts, lambda k: shared_ref[k])
        given = common | dict(zip(plan.program.inputs[plan.shared :], own, strict=True))
        found = unroll.run(plan.program, plan.parts.after, given)
        return tuple(
            jnp.broadcast_to(one, (LANES,)).astype(jnp.float64)
            for array in found
            for one in array.reshape(-1)
        )

    def steps(count: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        """So many steps; numbers that were made ahead are read before the first."""
        index, values = carry
        if ahead:
            read = [
                read_ahead(
                    plan.draws, ahead, numbers_ref[0], group, (index - since).astype(jnp.int32) + k
                )
                for k in range(count)
            ]
        for k in range(count):
            free = [free_ref[j] for j in range(plan.draws.lengths)]
            drawn = (
                read[k]
                if ahead
                else [
                    rounded(one, when_ref[2])
                    for one in random_numbers(plan.draws, keys, index, free)
                ]
            )
            # else a product that ends a step and a sum that begins the next are one operation where they stand side by side
            values = step(
                index,
                values if k == 0 else tuple(rounded(one, when_ref[2]) for one in values),
                drawn,
            )
            index = index + 1
        return index, values

    def fine(values: tuple[Any, ...]) -> Any:
        # comparisons, not a maximum, which may lose a NaN
        found = jnp.full((LANES,), 1, jnp.int32)
        for one in values[:state_size]:
            found = jnp.where(jnp.abs(one) < LARGEST, found, 0)
        return found

    def lively(values: tuple[Any, ...], good: Numeric, index: IntScalar) -> Any:
        """How many runs of the program have neither left nor diverged."""
        there = good == index
        return jnp.sum(jnp.where(there if left is None else there & (values[left] < 0), 1, 0))

    def span(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        index, good, values, _ = carry
        stop = jnp.minimum((index // SPAN + 1) * SPAN, end)
        for count in (together, 1) if together > 1 else (1,):
            index, values = jax.lax.while_loop(
                lambda carry, last=stop - count: carry[0] <= last,
                partial(steps, count),
                (index, values),
            )
        good = jnp.where(fine(values) > 0, index, good)
        return index, good, values, lively(values, good, index)

    good = jnp.where(fine(begin) > 0, since, since - 1)
    carry = jax.lax.while_loop(
        lambda carry: (carry[0] < end) & (carry[3] > 0),
        span,
        (since, good, begin, lively(begin, good, since)),
    )
    # where a run has gone on to the end of its program's steps, it has to the end of all of them
    good = jnp.where(carry[1] == carry[0], end, carry[1])
    _stored(made_ref, here, (*carry[2], good.astype(jnp.float64)))


def _loaded(ref: Any, here: Any, count: int) -> tuple[Any, ...]:
    """The first rows of an array, by one read in a loop: for every read that it meets, the compiler looks at the whole program."""

    def one(row: IntScalar, found: tuple[Any, ...]) -> tuple[Any, ...]:
        value = ref[row, here]
        return tuple(jnp.where(row == k, value, old) for k, old in enumerate(found))

    return jax.lax.fori_loop(
        0, count, one, tuple(jnp.zeros((LANES,), ref.dtype) for _ in range(count))
    )


def _stored(ref: Any, here: Any, values: tuple[Any, ...]) -> None:
    """Values into the first rows of an array, likewise."""

    def one(row: IntScalar, nothing: IntScalar) -> Any:
        value = values[0]
        for k, other in enumerate(values[1:], start=1):
            value = jnp.where(row == k, other, value)
        ref[row, here] = value
        return nothing

    jax.lax.fori_loop(0, len(values), one, 0)


def _place_of_left(lane: Lane) -> int | None:
    """Which number of a lane says when it left: a run that has is not followed."""
    paths, _ = jax.tree_util.tree_flatten_with_path(lane)
    first = 0
    for path, kind in paths:
        if getattr(path[0], "name", None) == "seen" and getattr(path[-1], "key", None) == "left":
            return first
        first += int(np.prod(kind.shape))
    return None


def of_runs(layout: compressed.Layout, state: Rows, seen: PyTree) -> Lane:
    """What the runs have, with a leading axis."""
    return Lane(packed(layout, state.rows), state.head, state.scalars, state.squares, seen)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def advance(
    layout: compressed.Layout,
    see: Observe | None,
    interpret: bool,
    ahead: int,
    numbers: tuple[Any, Any, Scalar],
    sizes: Numeric,
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> AdvanceResult:
    """All runs from step `since` to step `end`, for each the last step at which it was seen to be finite, and what was seen."""
    every = of_runs(layout, state, seen)
    shared = (numbers, sizes, given)
    lane = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), every)
    plan = planned(layout, see, shared, lane)
    flat = unroll.numbers_before(plan.program, plan.parts, jax.tree.leaves(shared))
    runs = keys.shape[0]
    filled = -(-runs // LANES) * LANES
    # all that a run has is read at one place and written at one: keys beside the numbers, and the last good step
    places = jax.lax.bitcast_convert_type(
        jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint64))(keys), jnp.float64
    )
    columns = [jnp.reshape(leaf, (runs, -1)).astype(jnp.float64) for leaf in jax.tree.leaves(every)]
    values = jnp.pad(
        jnp.concatenate([*columns, places], axis=1).T, ((0, 0), (0, filled - runs)), mode="edge"
    )
    # one more, as a kernel takes no array without numbers
    free = jnp.append(
        jnp.ravel(compressed.degrees_of_freedom(layout, jnp.asarray(sizes))).astype(jnp.float64),
        0.0,
    )
    left, together = _place_of_left(lane), _together(plan, lane) if ahead else 1

    def chain(since: IntScalar, end: IntScalar, values: Numeric, *more: Numeric) -> Any:
        return pl.pallas_call(
            partial(_kernel, plan, lane, ahead, together),
            out_shape=jax.ShapeDtypeStruct((len(values) - 1, filled), jnp.float64),
            grid=(filled // LANES,),
            interpret=interpret,
            compiler_params=None if interpret else triton.CompilerParams(num_warps=1, num_stages=1),
            name="chain",
        )(flat, free, _when(since, end), values, *more)

    def going(index: IntScalar, values: Numeric, good: Numeric) -> Any:
        """Of each program, how many of its runs go on."""
        there = good == index if left is None else (good == index) & (values[left] < 0)
        return jnp.sum(there.reshape(-1, LANES), axis=1, dtype=jnp.int32)

    def block(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        index, values, good, lively = carry
        stop = jnp.minimum(
            index // SPAN * SPAN + ahead, end
        )  # looks at runs are at multiples of a span, whatever is made ahead
        numbers = made_ahead(
            plan.draws, ahead, interpret, free, _when(index, stop), lively, as_whole(values[-2:])
        )
        made = chain(index, stop, values, numbers)
        # what was not fine when a block began keeps its last good step
        last, values = made[-1].astype(jnp.int64), values.at[:-2].set(made[:-1])
        good = jnp.where((good == index) | (last >= index), last, good)
        return stop, values, good, going(stop, values, good)

    since, end = jnp.asarray(since, jnp.int64), jnp.asarray(end, jnp.int64)
    if ahead:
        good = jnp.full(filled, since)
        carry = (since, values, good, going(since, values, good))
        index, values, good, _ = jax.lax.while_loop(
            lambda carry: (carry[0] < end) & (jnp.sum(carry[3]) > 0), block, carry
        )
        made, good = (
            values[:-2],
            jnp.where(good == index, end, good),
        )  # what has left is at the end where it is now
    else:
        made = chain(since, end, values)
        made, good = made[:-1], made[-1].astype(jnp.int64)
    leaves, first = [], 0
    for leaf in jax.tree.leaves(every):
        size = int(np.prod(leaf.shape[1:]))
        leaves.append(made[first : first + size, :runs].T.reshape(leaf.shape).astype(leaf.dtype))
        first += size
    found = jax.tree.unflatten(jax.tree.structure(every), leaves)
    state = Rows(
        unpacked(layout, found.rows), found.head, found.scalars, found.squares, state.signals
    )
    return state, good[:runs], found.seen


def _when(since: IntScalar, end: IntScalar) -> Any:
    """Steps for a kernel: where it begins and ends; and a 0 that its compiler does not know."""
    return jnp.stack(
        [jnp.asarray(since, jnp.int64), jnp.asarray(end, jnp.int64), jnp.zeros((), jnp.int64)]
    )


class KernelChain(ExactChain):
    """Runs in the compressed space, in one kernel."""

    engine = "gpu_kernel"
    drops_finished_runs = False

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        interpret: bool = False,
    ) -> None:
        super().__init__(problem, algorithm, begin, dimension, sizes)
        self.layout = replace(self.layout, single_step=True).for_block_sizes(sizes)
        self.setting, self.interpret = (problem, algorithm, begin, dimension, sizes), interpret

    @float64
    def initial(self, chosen: np.ndarray) -> Rows:
        state = super().initial(chosen)
        return state._replace(rows=jax.vmap(partial(compressed.fold, self.layout))(state.rows))

    @property
    def numbers(self) -> tuple[Any, Any, Any]:
        return self.parameters, self.algorithm, self.dimension

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        fixed = self.layout, observation.observe, self.interpret, self.steps_ahead(len(keys))
        return advance(
            *fixed,
            self.numbers,
            self.block_sizes,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def steps_ahead(self, runs: int) -> int:
        """Steps whose random numbers are made ahead. 0, and runs make their own, where they are so many that the device is busy, where a
        step takes many numbers, and where memory has no room for them."""
        count = draws_of(self.layout).count
        room = min(ROOM_AHEAD, SHARE_AHEAD * pallas.device_memory())
        steps = int(min(MOST_AHEAD, room / (8 * count * -(-runs // LANES) * LANES))) // SPAN * SPAN
        return (
            steps
            if runs <= MOST_RUNS_AHEAD and count <= MOST_NUMBERS and steps >= LEAST_AHEAD
            else 0
        )

    @property
    def grain(self) -> int:
        return SPAN

    def largest_group(self) -> int:
        return max(LANES, int(pallas.device_memory() / 4 / self.bytes_per_run()))

    def bytes_per_run(self, steps: float = 0.0) -> float:
        # rows with their new columns, the same in the kernel's order, and both once more when they are made
        rows = self.layout.structure.width * (
            len(self.layout.explicit_blocks)
            + len(self.layout.compressed_blocks) * (self.layout.inside + 1)
        )
        return 8.0 * 6 * (rows * max(1, len(self.L[0][0]) // self.layout.structure.width) + 8)

    def with_observation(self, observation: Observation) -> Simulator:
        records, observe, shared = observation
        return (
            self
            if self.find_obstacle(observe, records, shared) is None
            else ExactChain(*self.setting)
        )

    @float64
    def find_obstacle(
        self, see: Observe | None = None, seen: PyTree = None, given: PyTree = None
    ) -> str | None:
        """Why a step cannot be unrolled; None where it can."""
        every = jax.eval_shape(lambda: of_runs(self.layout, self.initial(np.zeros(1, int)), seen))
        lane = jax.tree.map(lambda leaf: (leaf.shape[1:], np.dtype(leaf.dtype).name), every)
        shared = jax.tree.map(unroll.kind_of, (self.numbers, self.block_sizes, given))
        trees = [jax.tree.flatten(one, is_leaf=unroll.is_kind) for one in (shared, lane)]
        return _find_obstacle(self.layout, see, *((tuple(leaves), tree) for leaves, tree in trees))


@cache
def _find_obstacle(
    layout: compressed.Layout, see: Observe | None, *kinds: tuple[Any, Any]
) -> str | None:
    shared, lane = (
        jax.tree.unflatten(
            tree, [jax.ShapeDtypeStruct(shape, np.dtype(name)) for shape, name in leaves]
        )
        for leaves, tree in kinds
    )
    try:
        plan = planned(layout, see, shared, lane)
        count = _operations(plan, lane)
    except unroll.NotUnrolled as error:
        return str(error)
    return None if count <= MOST_OPERATIONS else f"a step of {count} operations"


def _operations(plan: Plan, lane: Lane) -> int:
    """How many operations a step has once it is unrolled."""
    own = [
        jax.ShapeDtypeStruct((int(np.prod(one.shape)), LANES), np.float64)
        for one in jax.tree.leaves(lane)
    ]
    own += [
        jax.ShapeDtypeStruct((size, LANES), np.float64)
        for size in (plan.draws.normals, plan.draws.lengths)
    ]
    kinds = [
        *jax.tree.leaves(lane),
        *(plan.program.kinds[one] for one in plan.program.inputs[-3:-1]),
    ]
    common = [plan.program.kinds[one] for one in plan.parts.shared]

    def step(own: list[Any], common: list[Any], index: IntScalar) -> list[Any]:
        arrays = [
            unroll.arranged(list(one), kind.shape) for one, kind in zip(own, kinds, strict=True)
        ]
        values = dict(
            zip(
                plan.program.inputs[plan.shared :],
                [*arrays, unroll.arranged([index], ())],
                strict=True,
            )
        )
        values |= {
            name: unroll.arranged(list(jnp.ravel(one)), one.shape)
            for name, one in zip(plan.parts.shared, common, strict=True)
        }
        return [
            one
            for array in unroll.run(plan.program, plan.parts.after, values)
            for one in array.reshape(-1)
        ]

    return len(jax.make_jaxpr(step)(own, common, jax.ShapeDtypeStruct((), np.int64)).jaxpr.eqns)


def _together(plan: Plan, lane: Lane) -> int:
    """How many steps with numbers made ahead the kernel's loop has: as many as compile fast."""
    return max(
        2 ** int(np.log2(min(MOST_TOGETHER, OPERATIONS_TOGETHER / _operations(plan, lane)))), 1
    )


def exact_chain(
    problem: Problem, algorithm: OnePassSGD, begin: Start, dimension: int, sizes: np.ndarray
) -> ExactChain:
    """The exact chain as this machine runs it best: in one kernel on an NVIDIA GPU where a step can be unrolled, else step by step."""
    if not pallas.has_kernels():
        return ExactChain(problem, algorithm, begin, dimension, sizes)
    chain = KernelChain(problem, algorithm, begin, dimension, sizes)
    why = chain.find_obstacle()
    if why is None:
        return chain
    plain = ExactChain(problem, algorithm, begin, dimension, sizes)
    plain.engine = f"xla (no kernel: {why})"
    return plain
