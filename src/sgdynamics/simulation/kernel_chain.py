"""The exact chain as one GPU kernel: rows stay in registers, and the steps are a loop inside.

Each lane of the kernel is one run. A step of one run is traced once from the chain's own definition (`compressed.lone_step`) with the
user's loss in it, and unrolled (`unrolled.py`); random numbers are made where they are used, from a counter: number j of step s of a run
is a hash of (its two random 64-bit keys, s, j), so that neither the number of runs nor pieces nor save points change it. A fold ends
every step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from sgdynamics import compressed
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.ground import Rows
from sgdynamics.arrays import Keys, Numeric, Scalar, Tree, Whole
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import Start
from sgdynamics.random import GOLDEN, MIXED, attempt, chi_length, turn
from sgdynamics.simulation import unrolled
from sgdynamics.simulation.exact import LARGEST, ExactChain
from sgdynamics.simulation.running import UNSEEN, Advanced, See, Simulator, Watched

LANES = 32  # runs of one program: one warp, so that no thread waits for another
SPAN = 64  # steps between two looks at whether a run has left or diverged
TO_UNIT = 2.0**-53
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
def _triangle(grouping: compressed.Grouping) -> tuple[np.ndarray, np.ndarray]:
    """Of rows without their new columns, flat: the places of numbers that a fold does not leave 0; and the way back, with 0 put last."""
    signals, rows = grouping.structure.signals, grouping.rows
    block = np.arange(grouping.inside) - signals <= np.arange(rows)[:, None]
    there = np.concatenate([np.ones((rows, len(grouping.strip)), bool), np.tile(block, (1, len(grouping.wide)))], axis=1).reshape(-1)
    kept = np.flatnonzero(there)
    back = np.full(there.shape, len(kept))
    back[kept] = np.arange(len(kept))
    return kept, back


def packed(grouping: compressed.Grouping, rows: Numeric) -> Any:
    """Folded rows, flat, without the new columns and what is above their triangles."""
    strip, blocks = grouping.split(rows)
    flat = blocks[..., : grouping.inside].reshape(*rows.shape[:-1], -1)
    every = jnp.concatenate([strip, flat], axis=-1) if grouping.raw else flat
    return every.reshape(*rows.shape[:-2], -1)[..., _triangle(grouping)[0]]


def unpacked(grouping: compressed.Grouping, numbers: Numeric) -> Any:
    """The same with all that is 0."""
    ended = jnp.concatenate([numbers, jnp.zeros((*numbers.shape[:-1], 1), numbers.dtype)], axis=-1)
    cut, lead = len(grouping.strip), numbers.shape[:-1]
    rows = ended[..., _triangle(grouping)[1]].reshape(*lead, grouping.rows, -1)
    blocks = rows[..., cut:].reshape(*rows.shape[:-1], len(grouping.wide), grouping.inside)
    empty = jnp.zeros((*blocks.shape[:-1], grouping.columns), rows.dtype)
    return grouping.joined(rows[..., :cut], jnp.concatenate([blocks, empty], axis=-1))


def one_step(grouping: compressed.Grouping, see: See | None, shared: tuple[Any, ...], lane: Lane, turn: Turn) -> Lane:
    """A step of one run, as it is traced; shared: numbers, sizes and what `see` is given."""
    numbers, sizes, given = shared
    parts = compressed.in_shapes(turn.normals, compressed.span_shapes(grouping, 1))
    draws = compressed.span_draws(grouping, parts, turn.lengths[None], compressed.free_directions(grouping, sizes))
    part = jax.tree.map(lambda leaf: leaf[0], draws)
    state = Rows(unpacked(grouping, lane.rows), lane.head, lane.scalars, lane.squares)
    watch = None if see is None else partial(see, given)
    state, seen = compressed.lone_step(grouping, numbers, state, part, turn.index, lane.seen, watch)
    return Lane(packed(grouping, state.rows), state.head, state.scalars, state.squares, seen)


class Plan(NamedTuple):
    """A step in two parts: what all runs share, and what is unrolled."""

    program: unrolled.Program
    parts: unrolled.Split
    shared: int  # how many inputs all runs share
    normals: int
    proposals: int  # the first of the normals that chi variables are proposed from
    chi: tuple[int, int]


def planned(grouping: compressed.Grouping, see: See | None, shared: tuple[Any, ...], lane: Lane) -> Plan:
    """Trace a step; lane: shapes of one run."""
    counts = [int(np.prod(shape)) for shape in compressed.span_shapes(grouping, 1)]
    normals = sum(counts)
    chi = (len(grouping.wide), grouping.columns)
    turn = Turn(jax.ShapeDtypeStruct((normals,), np.float64), jax.ShapeDtypeStruct(chi, np.float64), jax.ShapeDtypeStruct((), np.int64))
    program = unrolled.traced(partial(one_step, grouping, see), shared, lane, turn)
    count = len(jax.tree.leaves(shared))
    return Plan(program, unrolled.split(program, set(program.inputs[:count])), count, normals, sum(counts[:3]), chi)


def _signed(number: int) -> np.int64:
    """The compiler of kernels takes no unsigned constants of 64 bits."""
    return np.uint64(number).astype(np.int64)


def _right(z: Numeric, count: int) -> Any:
    return jax.lax.shift_right_logical(z, jnp.full_like(z, count))


def bits(keys: tuple[Any, Any], counter: Numeric | Whole) -> Any:
    """64 random bits: SplitMix64's mix of a counter, twice, with a key of the run before each."""
    z = keys[0] + counter * _signed(GOLDEN)
    for key in (keys[1], None):
        for shift, factor in zip((30, 27), MIXED, strict=True):
            z = (z ^ _right(z, shift)) * _signed(factor)
        z = z ^ _right(z, 31)
        z = z if key is None else z ^ key
    return z


def uniform(keys: tuple[Any, Any], counter: Numeric | Whole) -> Any:
    """In (0, 1), never 0 or 1."""
    return (_right(bits(keys, counter), 11).astype(jnp.float64) + 0.5) * TO_UNIT


def two_normals(keys: tuple[Any, Any], counter: Numeric | Whole) -> tuple[Any, Any]:
    """By Box and Muller."""
    radius = jnp.sqrt(-2.0 * jnp.log(uniform(keys, counter)))
    along, across = turn(uniform(keys, counter + 1))
    return radius * along, radius * across


def random_numbers(plan: Plan, keys: tuple[Any, Any], index: Whole, free: list[Any]) -> Turn:
    """The normals of a step, and its chi variables by Marsaglia and Tsang's rejection, with as many attempts as the slowest lane needs."""
    pairs, chis = -(-plan.normals // 2), len(free)
    counter = index * np.int64(2 * pairs + chis)
    normals = [one for pair in range(pairs) for one in two_normals(keys, counter + np.int64(2 * pair))][: plan.normals]
    proposals = normals[plan.proposals : plan.proposals + chis]
    tried = [
        attempt(one, x, uniform(keys, counter + np.int64(2 * pairs + k))) for k, (one, x) in enumerate(zip(free, proposals, strict=True))
    ]

    def again(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        count, values, good = carry
        other = (keys[0], bits(keys, ~count))  # what is drawn again has keys of its own
        places = [counter + np.int64(3 * k) for k in range(chis)]
        made = [attempt(one, two_normals(other, at)[0], uniform(other, at + np.int64(2))) for one, at in zip(free, places, strict=True)]
        values = tuple(jnp.where(fine > 0, old, new[0]) for old, fine, new in zip(values, good, made, strict=True))
        return count + 1, values, tuple(jnp.where(new[1], 1, fine) for fine, new in zip(good, made, strict=True))

    def open_ones(carry: tuple[Any, ...]) -> Any:
        return sum(jnp.sum(1 - one) for one in carry[2]) > 0

    if not chis:
        return Turn(normals, [], index)
    begin = (np.int64(0), tuple(one for one, _ in tried), tuple(jnp.where(fine, 1, 0) for _, fine in tried))
    _, values, _ = jax.lax.while_loop(open_ones, again, begin)
    return Turn(normals, [chi_length(one, value, x) for one, value, x in zip(free, values, proposals, strict=True)], index)


def _kernel(plan: Plan, lane: Lane, *refs: Any) -> None:
    """All steps of the runs of one program; values: one row a number of the lane, one column a run."""
    shared_ref, free_ref, when_ref, values_ref, made_ref = refs
    here = pl.ds(pl.program_id(0) * LANES, LANES)
    since, end = when_ref[0], when_ref[1]
    kinds = jax.tree.leaves(lane)
    sizes = [int(np.prod(one.shape)) for one in kinds]
    state_size = sum(int(np.prod(one.shape)) for one in jax.tree.leaves(lane._replace(seen=None)))
    left = _place_of_left(lane)

    *first, one, other = _loaded(values_ref, here, sum(sizes) + 2)
    begin, keys = tuple(first), (_as_whole(one), _as_whole(other))

    def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        index, values = carry
        turn = random_numbers(plan, keys, index, [free_ref[k] for k in range(int(np.prod(plan.chi)))])
        edges = np.cumsum([0, *sizes])
        own = [unrolled.arranged(list(values[low:high]), one.shape) for low, high, one in zip(edges, edges[1:], kinds, strict=False)]
        own += [unrolled.arranged(turn.normals, (plan.normals,)), unrolled.arranged(turn.lengths, plan.chi), unrolled.arranged([index], ())]
        common = unrolled.read_before(plan.program, plan.parts, lambda k: shared_ref[k])
        given = common | dict(zip(plan.program.inputs[plan.shared :], own, strict=True))
        found = unrolled.run(plan.program, plan.parts.after, given)
        return index + 1, tuple(jnp.broadcast_to(one, (LANES,)).astype(jnp.float64) for array in found for one in array.reshape(-1))

    def fine(values: tuple[Any, ...]) -> Any:
        # comparisons, not a maximum, which may lose a NaN
        found = jnp.full((LANES,), 1, jnp.int32)
        for one in values[:state_size]:
            found = jnp.where(jnp.abs(one) < LARGEST, found, 0)
        return found

    def lively(values: tuple[Any, ...], good: Numeric, index: Whole) -> Any:
        """How many runs of the program have neither left nor diverged."""
        there = good == index
        return jnp.sum(jnp.where(there if left is None else there & (values[left] < 0), 1, 0))

    def span(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        index, good, values, _ = carry
        stop = jnp.minimum((index // SPAN + 1) * SPAN, end)
        index, values = jax.lax.while_loop(lambda carry: carry[0] < stop, step, (index, values))
        good = jnp.where(fine(values) > 0, index, good)
        return index, good, values, lively(values, good, index)

    good = jnp.where(fine(begin) > 0, since, since - 1)
    carry = jax.lax.while_loop(lambda carry: (carry[0] < end) & (carry[3] > 0), span, (since, good, begin, lively(begin, good, since)))
    # where a run has gone on to the end of its program's steps, it has to the end of all of them
    good = jnp.where(carry[1] == carry[0], end, carry[1])
    _stored(made_ref, here, (*carry[2], good.astype(jnp.float64)))


def _as_whole(bits: Numeric) -> Any:
    return jax.lax.bitcast_convert_type(bits, jnp.int64)


def _loaded(ref: Any, here: Any, count: int) -> tuple[Any, ...]:
    """The first rows of an array, by one read in a loop: for every read that it meets, the compiler looks at the whole program."""

    def one(row: Whole, found: tuple[Any, ...]) -> tuple[Any, ...]:
        value = ref[row, here]
        return tuple(jnp.where(row == k, value, old) for k, old in enumerate(found))

    return jax.lax.fori_loop(0, count, one, tuple(jnp.zeros((LANES,), ref.dtype) for _ in range(count)))


def _stored(ref: Any, here: Any, values: tuple[Any, ...]) -> None:
    """Values into the first rows of an array, likewise."""

    def one(row: Whole, nothing: Whole) -> Any:
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


def of_runs(grouping: compressed.Grouping, state: Rows, seen: Tree) -> Lane:
    """What the runs have, with a leading axis."""
    return Lane(packed(grouping, state.rows), state.head, state.scalars, state.squares, seen)


@partial(jax.jit, static_argnums=(0, 1, 2))
def advance(
    grouping: compressed.Grouping,
    see: See | None,
    interpret: bool,
    numbers: tuple[Any, Any, Scalar],
    sizes: Numeric,
    state: Rows,
    keys: Keys,
    since: Whole,
    end: Whole,
    seen: Tree,
    given: Tree,
) -> Advanced:
    """All runs from step `since` to step `end`, for each the last step at which it was seen to be finite, and what was seen."""
    every = of_runs(grouping, state, seen)
    shared = (numbers, sizes, given)
    lane = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), every)
    plan = planned(grouping, see, shared, lane)
    flat = unrolled.numbers_before(plan.program, plan.parts, jax.tree.leaves(shared))
    runs = keys.shape[0]
    filled = -(-runs // LANES) * LANES
    # all that a run has is read at one place and written at one: keys beside the numbers, and the last good step
    places = jax.lax.bitcast_convert_type(jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint64))(keys), jnp.float64)
    columns = [jnp.reshape(leaf, (runs, -1)).astype(jnp.float64) for leaf in jax.tree.leaves(every)]
    values = jnp.pad(jnp.concatenate([*columns, places], axis=1).T, ((0, 0), (0, filled - runs)), mode="edge")
    made = pl.pallas_call(
        partial(_kernel, plan, lane),
        out_shape=jax.ShapeDtypeStruct((len(values) - 1, filled), jnp.float64),
        grid=(filled // LANES,),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=1, num_stages=1),
        name="chain",
    )(
        flat,
        jnp.ravel(compressed.free_directions(grouping, jnp.asarray(sizes))).astype(jnp.float64),
        jnp.stack([jnp.asarray(since, jnp.int64), jnp.asarray(end, jnp.int64)]),
        values,
    )
    leaves, first = [], 0
    for leaf in jax.tree.leaves(every):
        size = int(np.prod(leaf.shape[1:]))
        leaves.append(made[first : first + size, :runs].T.reshape(leaf.shape).astype(leaf.dtype))
        first += size
    found = jax.tree.unflatten(jax.tree.structure(every), leaves)
    state = Rows(unpacked(grouping, found.rows), found.head, found.scalars, found.squares, state.signals)
    return state, made[-1, :runs].astype(jnp.int64), found.seen


class KernelChain(ExactChain):
    """Runs in the compressed space, in one kernel."""

    engine = "kernel"
    drops_runs = False

    def __init__(
        self, problem: Problem, algorithm: OnePassSGD, begin: Start, dimension: int, sizes: np.ndarray, interpret: bool = False
    ) -> None:
        super().__init__(problem, algorithm, begin, dimension, sizes)
        self.grouping = replace(self.grouping, single=True).at(sizes)
        self.setting, self.interpret = (problem, algorithm, begin, dimension, sizes), interpret

    @float64
    def initial(self, chosen: np.ndarray) -> Rows:
        state = super().initial(chosen)
        return state._replace(rows=jax.vmap(partial(compressed.fold, self.grouping))(state.rows))

    @property
    def numbers(self) -> tuple[Any, Any, Any]:
        return self.parameters, self.algorithm, self.dimension

    def advance(self, state: Rows, keys: Keys, since: int, end: int, watch: Watched = UNSEEN) -> Advanced:
        when = np.int64(since), np.int64(end)
        return advance(self.grouping, watch.see, self.interpret, self.numbers, self.sizes, state, keys, *when, watch.seen, watch.given)

    @property
    def grain(self) -> int:
        return SPAN

    def largest_group(self) -> int:
        stats = jax.local_devices()[0].memory_stats() or {}
        return max(LANES, int(stats.get("bytes_limit", LEAST_MEMORY) / 4 / self.bytes_a_run()))

    def bytes_a_run(self, steps: float = 0.0) -> float:
        # rows with their new columns, the same in the kernel's order, and both once more when they are made
        rows = self.grouping.structure.width * (len(self.grouping.strip) + len(self.grouping.wide) * (self.grouping.inside + 1))
        return 8.0 * 6 * (rows * max(1, len(self.L[0][0]) // self.grouping.structure.width) + 8)

    def watching(self, see: See, seen: Tree, given: Tree) -> Simulator:
        return self if self.against(see, seen, given) is None else ExactChain(*self.setting)

    @float64
    def against(self, see: See | None = None, seen: Tree = None, given: Tree = None) -> str | None:
        """Why a step cannot be unrolled; None where it can."""
        every = jax.eval_shape(lambda: of_runs(self.grouping, self.initial(np.zeros(1, int)), seen))
        lane = jax.tree.map(lambda leaf: (leaf.shape[1:], np.dtype(leaf.dtype).name), every)
        shared = jax.tree.map(unrolled.kind_of, (self.numbers, self.sizes, given))
        trees = [jax.tree.flatten(one, is_leaf=unrolled.is_kind) for one in (shared, lane)]
        return _against(self.grouping, see, *((tuple(leaves), tree) for leaves, tree in trees))


LEAST_MEMORY = 1 << 30  # where a device does not say how much it has


@cache
def _against(grouping: compressed.Grouping, see: See | None, *kinds: tuple[Any, Any]) -> str | None:
    shared, lane = (
        jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(shape, np.dtype(name)) for shape, name in leaves]) for leaves, tree in kinds
    )
    try:
        plan = planned(grouping, see, shared, lane)
        count = _operations(plan, lane)
    except unrolled.NotUnrolled as error:
        return str(error)
    return None if count <= MOST_OPERATIONS else f"a step of {count} operations"


def _operations(plan: Plan, lane: Lane) -> int:
    """How many operations a step has once it is unrolled."""
    own = [jax.ShapeDtypeStruct((int(np.prod(one.shape)), LANES), np.float64) for one in jax.tree.leaves(lane)]
    own += [jax.ShapeDtypeStruct((size, LANES), np.float64) for size in (plan.normals, int(np.prod(plan.chi)))]
    kinds = [*jax.tree.leaves(lane), *(plan.program.kinds[one] for one in plan.program.inputs[-3:-1])]
    common = [plan.program.kinds[one] for one in plan.parts.shared]

    def step(own: list[Any], common: list[Any], index: Whole) -> list[Any]:
        arrays = [unrolled.arranged(list(one), kind.shape) for one, kind in zip(own, kinds, strict=True)]
        values = dict(zip(plan.program.inputs[plan.shared :], [*arrays, unrolled.arranged([index], ())], strict=True))
        values |= {name: unrolled.arranged(list(jnp.ravel(one)), one.shape) for name, one in zip(plan.parts.shared, common, strict=True)}
        return [one for array in unrolled.run(plan.program, plan.parts.after, values) for one in array.reshape(-1)]

    return len(jax.make_jaxpr(step)(own, common, jax.ShapeDtypeStruct((), np.int64)).jaxpr.eqns)


def exact_chain(problem: Problem, algorithm: OnePassSGD, begin: Start, dimension: int, sizes: np.ndarray) -> ExactChain:
    """The exact chain as this machine runs it best: in one kernel on an NVIDIA GPU where a step can be unrolled, else step by step."""
    if not unrolled.has_kernels():
        return ExactChain(problem, algorithm, begin, dimension, sizes)
    chain = KernelChain(problem, algorithm, begin, dimension, sizes)
    why = chain.against()
    if why is None:
        return chain
    plain = ExactChain(problem, algorithm, begin, dimension, sizes)
    plain.engine = f"xla (no kernel: {why})"
    return plain
