"""A fixed data set seen by conditioning: the weights stay abstract, a growing list of coefficients, exactly in law at any d.

Of the data matrix X (n x d, rows N(0, I)) an algorithm only ever uses X e for directions e in weight space and X^T g for vectors g in
sample space. Given orthonormal e_0, e_1, ... with A_k = X e_k known, and orthonormal P_0, P_1, ... in R^n whose X^T P_j lie in their
span, what is left of X is a Gaussian matrix between the two complements. So a gradient X^T g is, with r = g - sum_j P_j <P_j, g>,

    X^T g = sum_k <A_k, g> e_k + |r| chi e_new,     chi^2 ~ chi^2(d - number of e's),
    A_new = X e_new = chi r/|r| + (1 - P P^T) Z,    Z ~ N(0, I_n),

and white noise on the weights (Langevin) opens directions with A_new = (1 - P P^T) Z. The rows of W are coefficients on the e's: the
first K lie along the signals, the next p along the start, and every step adds p, or 2p with white noise.
Nothing else is needed: no response function, no iteration, no d-dimensional vector (Bolthausen's conditioning).
With Z from quasi-random points, n is the number of paths of the effective process at d -> infinity (DMFT). There the directions known are
few beside d and n, however many they are beside the paths: chi^2 = d with none taken off, (1 - P P^T) Z brought back to its length
sqrt(n), no white noise along known directions. Gradient descent on a linear problem then has the limit's own three-term recursion.
Covariance blocks have an A each and share P. Residuals |r| below `tolerance` |g| open no direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.fixed_data import first_selection, kick_size, next_selection
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.compressed import sample_gradients
from sgdynamics.controls import numbers_at
from sgdynamics.problems.problem import Structure
from sgdynamics.random import chi, normals_and_uniforms
from sgdynamics.samples.sample import as_dtype
from sgdynamics.samples.spectrum import spread as input_spread

LARGEST = {"float64": 1e50, "float32": 1e8}  # coefficients beyond this have diverged; the fourth powers of their fields still fit
ROUNDING = {"float64": 1e-10, "float32": 1e-5}  # residuals below this share of a gradient are rounding, not new directions
CACHE_BYTES = 1 << 20
LEAST_FREE = 2  # in the limit, paths span at most their number over this: beyond, what they span is not few beside them
SMALLEST = 64  # directions that memory is made for at first


@dataclass(frozen=True)
class Layout:
    """What compiled code depends on."""

    structure: Structure
    selects: bool
    hot: bool
    limit: bool  # d -> infinity: lengths at their limits, white noise on new directions only
    probed: bool = False  # rows have a change of first order beside them; at d -> infinity only

    @property
    def first(self) -> int:
        """Directions known before the first step: signals and rows."""
        return self.structure.signals + self.structure.width

    @property
    def normals(self) -> int:
        """Vectors of n normals in a step, for each block: for gradients, and for white noise."""
        return self.structure.width * (2 if self.hot else 1)

    @property
    def spanned(self) -> int:
        """Gradients of a step, each a vector in sample space: those of the rows, and of their change."""
        return self.structure.width * (2 if self.probed else 1)

    @property
    def opened(self) -> int:
        """Directions that a step may open."""
        return self.spanned + (self.structure.width if self.hot else 0)


class Known(NamedTuple):
    """One run: what is known of the data, and the weights in it."""

    P: Any  # (capacity, inputs), orthonormal rows, zero beyond `spanned`
    A: Any  # (blocks, capacity, inputs), zero beyond `opened`
    rows: Any  # (p, blocks, capacity)
    head: Any  # (p,)
    spanned: Any  # how many P
    opened: Any  # how many directions e
    selected: Any  # (n,)
    signals: Any  # (inputs, K)
    given: Any  # what the loss takes beside them: noise draws (n,), labels of a mixture, or a dictionary of draws
    change: Any = None  # (p, blocks, capacity): how rows change with a small kick, where that is asked for


class Draws(NamedTuple):
    """The random numbers of one step: normals (normals, blocks, inputs), uniforms (n) for the selection, and small ones."""

    normals: Any
    uniform: Any
    lengths: Any  # (opened, blocks): proposals for chi
    uniforms: Any  # (opened, blocks): their acceptance
    along: Any  # (capacity, p, blocks): white noise along known directions
    lower: Any  # (p, p, blocks): white noise of the rows along each other's new directions
    head: Any  # (p,)
    change: Any  # (p, blocks, n): normals for the directions that a change opens


def begin(
    layout: Layout, parameters: Any, algorithm: Any, T: Any, L: Any, head: Any, normals: Any, noise: Any, uniform: Any, room: int
) -> Known:
    """A run at step 0, from rows [T | L] (blocks, p, K + p), normals (blocks, K + p, inputs), those of the draws (n, ...), uniforms (n)."""
    structure, sample = layout.structure, layout.structure.sample
    k = structure.signals
    n = noise.shape[0]
    draws = sample.drawn(parameters, noise)
    each = jnp.moveaxis(normals, -1, 0).reshape(n, *sample.token_shape, *normals.shape[:-1])
    x = sample.inputs(parameters, each, draws)
    A = jnp.moveaxis(x.reshape(-1, *x.shape[-2:]), 0, -1).astype(normals.dtype)
    signals = jnp.einsum("brk,bkn->nr", parameters["frame"].astype(A.dtype), A[:, :k], precision="highest")
    rows = jnp.moveaxis(jnp.concatenate([T, L], axis=-1), 0, 1).astype(A.dtype)
    spare = room - layout.first
    selected = first_selection(algorithm, uniform) if layout.selects else jnp.ones(n, bool)
    return Known(
        jnp.zeros((room, A.shape[-1]), A.dtype),
        jnp.pad(A, ((0, 0), (0, spare), (0, 0))),
        jnp.pad(rows, ((0, 0), (0, 0), (0, spare))),
        head.astype(A.dtype),
        jnp.zeros((), jnp.int32),
        jnp.asarray(layout.first, jnp.int32),
        selected,
        signals,
        as_dtype(sample.given(draws), A.dtype),
    )


@partial(jax.jit, static_argnums=1)
def _widened(state: Known, room: int) -> Known:
    """The same runs (leading axis) with memory for more directions."""
    more = room - state.P.shape[1]
    return state._replace(
        P=jnp.pad(state.P, ((0, 0), (0, more), (0, 0))),
        A=jnp.pad(state.A, ((0, 0), (0, 0), (0, more), (0, 0))),
        rows=jnp.pad(state.rows, ((0, 0), (0, 0), (0, 0), (0, more))),
        change=None if state.change is None else jnp.pad(state.change, ((0, 0), (0, 0), (0, 0), (0, more))),
    )


def next_room(room: int, most: int) -> int:
    """The next size of memory: doubled while small (each size compiles), then by half."""
    return min(2 * room if room < 512 else room + room // 2, most)


def fields_of(rows: Any, A: Any) -> Any:
    """lambda (inputs, p)."""
    return jnp.einsum("pbk,bkn->np", rows, A, precision="highest")


def observe(layout: Layout, parameters: Any, state: Known) -> dict[str, Any]:
    """M, Q (block by block), a and the mean loss over the data set."""
    structure = layout.structure
    fields, signals = (structure.sample.by_sample(part) for part in (fields_of(state.rows, state.A), state.signals))
    losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(fields, signals, state.head, state.given, parameters)
    rows = jnp.moveaxis(state.rows, 1, 0)
    return {
        "M": jnp.einsum("bpk,brk->bpr", rows[..., : structure.signals], parameters["frame"].astype(rows.dtype), precision="highest"),
        "Q": jnp.einsum("bpk,bqk->bpq", rows, rows, precision="highest"),
        "a": state.head,
        "train_risk": jnp.mean(losses, axis=0),
    }


def observed(observe_all: Any, layout: Layout, losses: Mapping[str, Any], parameters: Any, states: Any) -> dict[str, Any]:
    """What `observe` gives of many states (by a compiled function of layout, parameters, states), and means of other losses by name."""
    found = observe_all(layout, parameters, states)
    for name, loss in losses.items():
        found[name] = observe_all(replace(layout, structure=replace(layout.structure, loss=loss)), parameters, states)["train_risk"]
    return found


def outside(P: Any, vectors: Any, passes: int) -> Any:
    """vectors (m, n) less their part in the span of P. One pass leaves rounding that grows from step to step: residuals need two."""
    for _ in range(passes):
        inner = jnp.einsum("kn,mn->mk", P, vectors, precision="highest")
        vectors = vectors - jnp.einsum("mk,kn->mn", inner, P, precision="highest")
    return vectors


def at_length(vectors: Any, n: int) -> Any:
    """vectors (..., n) brought to the length sqrt(n) that normals have in the limit; a projection has taken some of it."""
    square = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jnp.sqrt(n / jnp.where(square > 0, square, 1.0))


def draw(layout: Layout, key: Any, n: int, room: int, dtype: Any) -> Draws:
    """The random numbers of one step of one run on n inputs."""
    p, blocks = layout.structure.width, layout.structure.blocks
    small_key, along_key = jax.random.split(key)
    count = layout.normals * blocks * n
    normals, uniform = normals_and_uniforms(key, count, n // layout.structure.sample.inputs_a_sample if layout.selects else 0)
    few, uniforms = normals_and_uniforms(small_key, layout.opened * blocks + p * p * blocks + p, layout.opened * blocks)
    lengths, lower, head = jnp.split(few, [layout.opened * blocks, layout.opened * blocks + p * p * blocks])
    return Draws(
        normals.reshape(layout.normals, blocks, n).astype(dtype),
        uniform,
        lengths.reshape(layout.opened, blocks),
        uniforms.reshape(layout.opened, blocks),
        # drawn by jax.random, whose first numbers do not depend on how many are asked for: memory must not change the run
        jax.random.normal(along_key, (room, p, blocks), dtype) if layout.hot and not layout.limit else None,
        lower.reshape(p, p, blocks),
        head,
        # a key of its own: runs with and without a change have the same numbers otherwise
        jax.random.normal(jax.random.fold_in(along_key, 1), (p, blocks, n), dtype) if layout.probed else None,
    )


def step(layout: Layout, given: tuple[Any, ...], state: Known, draws: Draws, key: Any, number: Any) -> Known:
    """One step, given (parameters, algorithm, sizes of the blocks, tolerance)."""
    parameters, algorithm, sizes, tolerance = given
    structure, sample = layout.structure, layout.structure.sample
    p, blocks = structure.width, structure.blocks
    dtype = state.A.dtype
    parameters, algorithm = numbers_at((parameters, algorithm), number * algorithm["lr"])
    samples = jnp.asarray(state.selected.shape[0], dtype)
    fields = fields_of(state.rows, state.A)
    h, head_gradient = sample_gradients(structure, parameters, fields, state.signals, state.head, state.given)
    weight = state.selected.astype(dtype) / (algorithm["divisor"] * samples).astype(dtype)
    g = h.T * sample.each_input(weight)
    normals = draws.normals[:p]
    if layout.probed:
        # the change is driven by its own gradient: one more vector for the data to be seen through. By symmetry the head does not change
        def slopes(fields: Any) -> Any:
            return sample_gradients(structure, parameters, fields, state.signals, state.head, state.given)[0]

        _, bent = jax.jvp(slopes, (fields,), (fields_of(state.change, state.A),))
        g, normals = jnp.concatenate([g, bent.T * sample.each_input(weight)]), jnp.concatenate([normals, draws.change])
    gradient = jnp.einsum("bkn,pn->pbk", state.A, g, precision="highest")
    # the data are C^1/2 Z, Z without correlation: what is conditioned on is Z, whose gradients are C^1/2 g
    inner = sample.mixed_inputs(parameters, g)
    spread = input_spread(parameters, dtype)
    P, A, opened, spanned = state.P, state.A, state.opened, state.spanned
    n = P.shape[-1]

    def there(opened: Any, spanned: Any) -> Any:
        """Which blocks have directions left: (blocks,). In the limit all, as long as the paths are many more than what they span."""
        return jnp.full(blocks, spanned < n // LEAST_FREE) if layout.limit else sizes - opened > 0

    def length(index: int, opened: Any) -> Any:
        """How far a new direction reaches outside of the known ones: (blocks,)."""
        if layout.limit:
            return jnp.sqrt(sizes).astype(dtype)
        free = sizes - opened
        return chi(jax.random.fold_in(key, index), free, draws.lengths[index], draws.uniforms[index]).astype(dtype)

    for unit in range(layout.spanned):
        both = outside(P, jnp.concatenate([inner[unit][None], normals[unit]]), 2)
        square = jnp.sum(both[0] ** 2)
        left = there(opened, spanned)
        grows = (square > tolerance**2 * jnp.sum(inner[unit] ** 2)) & jnp.any(left)
        size = jnp.sqrt(jnp.where(grows, square, 1.0))
        new = jnp.where(grows, both[0] / size, 0.0)
        rest = both[1:] - jnp.einsum("bn,n->b", both[1:], new, precision="highest")[:, None] * new
        if layout.limit:
            rest = at_length(rest, n)
        open_block = (grows & left).astype(dtype)
        found = (spread * open_block)[:, None] * sample.mixed_inputs(parameters, length(unit, opened)[:, None] * new + rest)
        P = P.at[spanned].set(new)
        A = A.at[:, opened].set(found)
        gradient = gradient.at[:, :, opened].set(jnp.einsum("bn,pn->pb", found, g, precision="highest"))
        opened, spanned = opened + grows, spanned + grows

    kick = head_kick = None
    if layout.hot:
        amount = kick_size(algorithm, jnp.sum(sizes)).astype(dtype)
        turned = outside(P, draws.normals[p:].reshape(p * blocks, -1), 1).reshape(p, blocks, -1)
        if layout.limit:
            # along a known direction it is of order d^-1/2: kept here, it would be noise of the number of paths
            kick, turned = jnp.zeros_like(state.rows), at_length(turned, n)
        else:
            slot = jnp.arange(state.rows.shape[-1])
            # a small block may be known altogether while others still open
            kick = jnp.transpose(draws.along, (1, 2, 0)) * (slot < jnp.minimum(opened, sizes[:, None]))
        lower = jnp.tril(jnp.ones((p, p), dtype), -1)[:, :, None] * draws.lower.astype(dtype)
        for unit in range(p):
            left = jnp.ones(blocks, dtype) if layout.limit else (sizes - opened > 0).astype(dtype)
            A = A.at[:, opened].set((spread * left)[:, None] * sample.mixed_inputs(parameters, turned[unit]))
            others = jnp.zeros((p, blocks), dtype) if layout.limit else lower[:, unit] * left
            kick = kick.at[:, :, opened].set(others.at[unit].set(length(layout.spanned + unit, opened) * left))
            opened = opened + jnp.any(left > 0)
        kick = (amount * kick).reshape(p, -1)
        head_kick = None if layout.limit else jnp.sqrt(algorithm["head_rate"]).astype(dtype) * (amount * draws.head.astype(dtype))

    numbers = jax.tree.map(lambda value: jnp.asarray(value, dtype), algorithm)
    decay = parameters["weight_decay"].astype(dtype)
    pulls = gradient[:p].reshape(p, -1), jnp.sum(head_gradient * weight[:, None], axis=0)
    stride = Stride(numbers["lr"], numbers["head_rate"], decay, structure)
    rows, head = stride.move(state.rows.reshape(p, -1), state.head, pulls, kick, head_kick)
    selected = next_selection(algorithm, state.selected, draws.uniform) if layout.selects else state.selected
    rows = rows.reshape(state.rows.shape)
    change = state.change
    if layout.probed:
        change = change * (1 - numbers["lr"] * decay) - numbers["lr"] * gradient[p:]
        if structure.sphere:
            # the kick is across the rows: returning to the sphere shortens it as it shortens them
            free = state.rows * (1 - numbers["lr"] * decay) - numbers["lr"] * gradient[:p]
            free = free if kick is None else free + kick.reshape(free.shape)
            change = change / jnp.sqrt(jnp.sum(free**2, axis=(1, 2), keepdims=True))
    return Known(P, A, rows, head, spanned, opened, selected, state.signals, state.given, change)


def advance(
    layout: Layout, numbers: tuple[Any, ...], most: int, state: Known, keys: Any, given: Any, begin: int, end: int
) -> tuple[Known, np.ndarray]:
    """All runs (leading axis) from step `begin` to `end`, with memory made on the way for up to `most` directions; the last good steps.

    `numbers`: parameters, algorithm, sizes of the blocks, tolerance. `given`: (normals (run, step, normals, blocks, inputs), uniforms (run,
    step, n) or None, first step) in place of drawn ones, or None. Runs that need more than `most` stop where they are: `short` tells.
    """
    now, good = np.full(len(keys), begin, dtype=np.int64), np.full(len(keys), begin, dtype=np.int64)
    while True:
        state, now, good = _advance(layout, _together(state), numbers, state, keys, given, now, good, np.int64(end))
        room = state.P.shape[1]
        if np.all(np.asarray(now) >= end) or room >= most:
            return state, np.asarray(good)
        state = _widened(state, next_room(room, most))


def _together(state: Known) -> int:
    """How many runs to take at once. On a CPU so few that what is known of their data stays in its cache; a number that divides them."""
    runs = state.P.shape[0]
    if jax.default_backend() != "cpu":
        return runs
    most = max(1, CACHE_BYTES // ((state.P.size + state.A.size) // runs * state.P.dtype.itemsize))
    return max(count for count in range(1, min(runs, most) + 1) if runs % count == 0)


def short(layout: Layout, state: Known) -> bool:
    """Whether memory ended before the steps did."""
    room = state.P.shape[1]
    return int(np.max(state.opened)) + layout.opened > room or int(np.max(state.spanned)) + layout.spanned > room


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _advance(
    layout: Layout, together: int, numbers: tuple[Any, ...], state: Known, keys: Any, given: Any, now: Any, good: Any, end: Any
) -> tuple[Known, Any, Any]:
    room, n = state.P.shape[1:]
    limit = LARGEST[str(state.A.dtype)]

    def one(number: Any, state: Known, key: Any, part: Any) -> Known:
        key = jax.random.fold_in(key, number)
        draws = draw(layout, key, n, room, state.A.dtype)
        if part is not None:
            draws = draws._replace(normals=part[0][number - given[2]])
            if layout.selects:
                draws = draws._replace(uniform=part[1][number - given[2]])
        return step(layout, numbers, state, draws, key, number)

    def fits(carry: tuple[Any, Known, Any]) -> Any:
        number, state, _ = carry
        enough = (jnp.max(state.opened) + layout.opened <= room) & (jnp.max(state.spanned) + layout.spanned <= room)
        return (jnp.min(number) < end) & enough

    def loop(advanced: Any, carry: tuple[Any, Known, Any]) -> tuple[Any, Known, Any]:
        def go(carry: tuple[Any, Known, Any]) -> tuple[Any, Known, Any]:
            number, state, good = carry
            state = advanced(number, state)
            fine = jnp.all(jnp.abs(state.rows) < limit, axis=(-1, -2, -3)) & jnp.all(jnp.abs(state.head) < limit, axis=-1)
            return number + 1, state, jnp.where(fine, number + 1, good)

        return jax.lax.while_loop(fits, go, carry)

    def group(runs: tuple[Any, Known, Any, Any, Any]) -> tuple[Any, Known, Any]:
        now, state, good, keys, parts = runs
        return loop(lambda number, state: jax.vmap(one)(number, state, keys, parts), (now, state, good))

    runs = keys.shape[0]
    everything = (now, state, good, keys, None if given is None else given[:2])
    groups = jax.tree.map(lambda leaf: leaf.reshape(runs // together, together, *leaf.shape[1:]), everything)
    if together == runs:
        now, state, good = group(everything)
    else:
        now, state, good = jax.tree.map(lambda leaf: leaf.reshape(runs, *leaf.shape[2:]), jax.lax.map(group, groups))
    return state, now, good
