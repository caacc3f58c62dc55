"""A fixed data set seen by conditioning: the weights stay abstract, a growing list of coefficients, exactly in law at any d.

Of the data matrix X (n x d, rows N(0, I)) an algorithm only ever uses X e for directions e in weight space and X^T g for vectors g in
sample space. Given orthonormal e_0, e_1, ... with A_k = X e_k known, and orthonormal P_0, P_1, ... in R^n whose X^T P_j lie in their
span, what is left of X is a Gaussian matrix between the two complements. So a gradient X^T g is, with r = g - sum_j P_j <P_j, g>,

    X^T g = sum_k <A_k, g> e_k + |r| chi e_new,     chi^2 ~ chi^2(d - number of e's),
    A_new = X e_new = chi r/|r| + (1 - P P^T) Z,    Z ~ N(0, I_n),

and white noise on the weights (Langevin) opens directions with A_new = (1 - P P^T) Z. The rows of W are coefficients on the e's: the
first K lie along the signals, the next p along the start, and every step adds p, or 2p with white noise.
Nothing else is needed: no response function, no iteration, no d-dimensional vector (Bolthausen's conditioning).
With n the number of paths of the effective process, this is also the limit d -> infinity (DMFT), which goes on in `fixed_data.paths`.
Covariance blocks have an A each and share P. Residuals |r| below `ROUNDING` |g| open no direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.fixed_data import (
    first_selection,
    kick_size,
    next_selection,
    numbers_of_step,
)
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.base.arrays import (
    DType,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
)
from sgdynamics.base.random import draw_chi, normals_and_uniforms
from sgdynamics.problems.problem import Structure
from sgdynamics.samples.input_covariance import spread as input_spread
from sgdynamics.samples.input_covariance import trace as input_trace
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.compressed import sample_gradients

LARGEST = (
    1e50  # coefficients beyond this have diverged; the fourth powers of their fields still fit
)
ROUNDING = 1e-10  # residuals below this share of a gradient are rounding, not new directions
CACHE_BYTES = 1 << 20
SMALLEST = 64  # directions that memory is made for at first


@dataclass(frozen=True)
class Setup:
    """What compiled code depends on."""

    structure: Structure
    selects: bool
    hot: bool
    probed: bool = False  # rows have a change of first order beside them; at d -> infinity only, as what follows
    visited: bool = False  # a step is a cell of an epoch (`algorithms.epochs`): in place of uniforms, how often it visits each sample
    again: bool = False  # and that may be more than once

    @property
    def first(self) -> int:
        """Directions known before the first step: signals and rows."""
        return self.structure.signals + self.structure.width

    @property
    def normals(self) -> int:
        """Vectors of n normals in a step, for each block: for gradients, and for white noise."""
        return self.spanned + self.white

    @property
    def white(self) -> int:
        """Directions that white noise opens in a step."""
        return self.structure.width if self.hot else 0

    @property
    def spanned(self) -> int:
        """Gradients of a step, each a vector in sample space: those of the rows, and of their change."""
        return self.structure.width * (2 if self.probed else 1)

    @property
    def opened(self) -> int:
        """Directions that a step may open."""
        return self.spanned + self.white


class Known(NamedTuple):
    """One run: what is known of the data, and the weights in it."""

    P: Float[Array, "capacity inputs"]  # orthonormal rows, zero beyond `spanned`
    A: Float[Array, "blocks capacity inputs"]  # zero beyond `opened`
    rows: Float[Numeric, "p blocks capacity"]
    head: Float[Numeric, " p"]
    spanned: IntScalar  # how many P
    opened: IntScalar  # how many directions e
    selected: Bool[Numeric, " n"]
    signals: Float[Numeric, "inputs K"]
    given: PyTree  # what the loss takes beside them: noise draws (n,), labels of a mixture, or a dictionary of draws


class StepDraws(NamedTuple):
    """The random numbers of one step: normals (normals, blocks, inputs), uniforms (n) for the selection, and small ones."""

    normals: Float[Numeric, "normals blocks inputs"]
    uniform: Float[Numeric, " n"]
    lengths: Float[Numeric, "opened blocks"]  # proposals for chi
    uniforms: Float[Numeric, "opened blocks"]  # their acceptance
    along: Any  # (capacity, p, blocks): white noise along known directions
    lower: Float[Numeric, "p p blocks"]  # white noise of the rows along each other's new directions
    head: Float[Numeric, " p"]


def initial(
    setup: Setup,
    parameters: Parameters,
    algorithm: Parameters,
    T: Float[Numeric, "blocks p K"],
    L: Float[Numeric, "blocks p p"],
    head: Float[Numeric, " p"],
    normals: Float[Numeric, "blocks fields inputs"],
    noise: Float[Numeric, "n draws"],
    uniform: Float[Numeric, " n"],
    room: int,
) -> Known:
    """A run at step 0, from rows [T | L] (blocks, p, K + p), normals (blocks, K + p, inputs), those of the draws (n, ...), uniforms (n)."""
    structure, sample = setup.structure, setup.structure.sample
    k = structure.signals
    n = noise.shape[0]
    draws = sample.drawn(parameters, noise)
    each = jnp.moveaxis(normals, -1, 0).reshape(n, *sample.token_shape, *normals.shape[:-1])
    x = sample.inputs(parameters, each, draws)
    A = jnp.moveaxis(x.reshape(-1, *x.shape[-2:]), 0, -1).astype(normals.dtype)
    signals = jnp.einsum(
        "brk,bkn->nr", parameters["frame"].astype(A.dtype), A[:, :k], precision="highest"
    )
    rows = jnp.moveaxis(jnp.concatenate([T, L], axis=-1), 0, 1).astype(A.dtype)
    spare = room - setup.first
    selected = first_selection(algorithm, uniform) if setup.selects else jnp.ones(n, bool)
    return Known(
        jnp.zeros((room, A.shape[-1]), A.dtype),
        jnp.pad(A, ((0, 0), (0, spare), (0, 0))),
        jnp.pad(rows, ((0, 0), (0, 0), (0, spare))),
        head.astype(A.dtype),
        jnp.zeros((), jnp.int32),
        jnp.asarray(setup.first, jnp.int32),
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
    )


def next_room(room: int, most: int) -> int:
    """The next size of memory: doubled while small (each size compiles), then by half."""
    return min(2 * room if room < 512 else room + room // 2, most)


def fields_of(
    rows: Float[Numeric, "p blocks capacity"], A: Float[Numeric, "blocks capacity inputs"]
) -> Float[Numeric, "inputs p"]:
    """lambda (inputs, p)."""
    return jnp.einsum("pbk,bkn->np", rows, A, precision="highest")


def observe(setup: Setup, parameters: Parameters, state: Known) -> dict[str, Any]:
    """M, Q (block by block), a and the mean loss over the data set."""
    return observe_fields(
        setup,
        parameters,
        state.rows,
        state.head,
        fields_of(state.rows, state.A),
        state.signals,
        state.given,
    )


def observe_fields(
    setup: Setup,
    parameters: Parameters,
    rows: Float[Numeric, "p blocks capacity"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "inputs p"],
    signals: Float[Numeric, "inputs K"],
    given: PyTree,
) -> dict[str, Any]:
    """The same from the fields."""
    structure = setup.structure
    fields, signals = (structure.sample.by_sample(part) for part in (fields, signals))
    losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
        fields, signals, head, given, parameters
    )
    rows = jnp.moveaxis(rows, 1, 0)
    return {
        "M": jnp.einsum(
            "bpk,brk->bpr",
            rows[..., : structure.signals],
            parameters["frame"].astype(rows.dtype),
            precision="highest",
        ),
        "Q": jnp.einsum("bpk,bqk->bpq", rows, rows, precision="highest"),
        "a": head,
        "train_risk": jnp.mean(losses, axis=0),
    }


def observed(
    observe_all: Any, setup: Setup, losses: Mapping[str, Any], parameters: Any, states: Any
) -> dict[str, Any]:
    """What `observe` gives of many states (by a compiled function of setup, parameters, states), and means of other losses by name."""
    found = observe_all(setup, parameters, states)
    for name, loss in losses.items():
        found[name] = observe_all(
            replace(setup, structure=setup.structure.with_loss(loss)), parameters, states
        )["train_risk"]
    return found


def outside(
    P: Float[Numeric, "capacity inputs"], vectors: Float[Numeric, "m inputs"], passes: int
) -> Float[Numeric, "m inputs"]:
    """vectors (m, n) less their part in the span of P. One pass leaves rounding that grows from step to step: residuals need two."""
    for _ in range(passes):
        inner = jnp.einsum("kn,mn->mk", P, vectors, precision="highest")
        vectors = vectors - jnp.einsum("mk,kn->mn", inner, P, precision="highest")
    return vectors


def draw(setup: Setup, key: RandomKey, n: int, room: int, dtype: DType) -> StepDraws:
    """The random numbers of one step of one run on n inputs."""
    p, blocks = setup.structure.width, setup.structure.blocks
    small_key, along_key = jax.random.split(key)
    count = setup.normals * blocks * n
    normals, uniform = normals_and_uniforms(
        key, count, n // setup.structure.sample.inputs_a_sample if setup.selects else 0
    )
    few, uniforms = normals_and_uniforms(
        small_key, setup.opened * blocks + p * p * blocks + p, setup.opened * blocks
    )
    lengths, lower, head = jnp.split(
        few, [setup.opened * blocks, setup.opened * blocks + p * p * blocks]
    )
    return StepDraws(
        normals.reshape(setup.normals, blocks, n).astype(dtype),
        uniform,
        lengths.reshape(setup.opened, blocks),
        uniforms.reshape(setup.opened, blocks),
        # drawn by jax.random, whose first numbers do not depend on how many are asked for: memory must not change the run
        jax.random.normal(along_key, (room, p, blocks), dtype) if setup.hot else None,
        lower.reshape(p, p, blocks),
        head,
    )


class _Now(NamedTuple):
    """What the parts of one step share: the numbers at its time, its random numbers and the key of its chi variables."""

    setup: Setup
    parameters: Any
    algorithm: Any
    sizes: Any  # (blocks,)
    tolerance: Any
    draws: StepDraws
    key: Any

    def length(self, index: int, opened: IntScalar, dtype: DType) -> Float[Numeric, " blocks"]:
        """How far a new direction reaches outside of the known ones: (blocks,)."""
        proposal = (self.draws.lengths[index], self.draws.uniforms[index])
        return draw_chi(jax.random.fold_in(self.key, index), self.sizes - opened, *proposal).astype(
            dtype
        )

    def seen(
        self, there: Float[Numeric, " blocks"], vectors: Float[Numeric, "blocks inputs"]
    ) -> Float[Numeric, "blocks inputs"]:
        """The data along new directions (blocks, inputs), from (blocks,) and vectors in sample space without correlation."""
        return (input_spread(self.parameters, vectors.dtype) * there)[
            :, None
        ] * self.setup.structure.sample.mixed_inputs(self.parameters, vectors)


def step(
    setup: Setup,
    given: tuple[Any, ...],
    state: Known,
    draws: StepDraws,
    key: RandomKey,
    number: IntScalar,
) -> Known:
    """One step, given (parameters, algorithm, sizes of the blocks, tolerance)."""
    parameters, algorithm, sizes, tolerance = given
    parameters, algorithm = numbers_of_step(parameters, algorithm, number)
    now = _Now(setup, parameters, algorithm, sizes, tolerance, draws, key)
    p, samples = setup.structure.width, state.selected.shape[0]
    given = (state.signals, state.head, state.given)
    pulls, head_pull = look(
        setup,
        parameters,
        algorithm,
        state.selected,
        samples,
        fields_of(state.rows, state.A),
        *given,
    )
    known, gradient = _gradient(now, state, pulls, draws.normals[:p])
    known, kick, head_kick = _kick(now, known) if setup.hot else (known, None, None)

    numbers = jax.tree.map(lambda value: jnp.asarray(value, state.A.dtype), algorithm)
    stride = Stride(
        numbers["lr"],
        numbers["head_rate"],
        parameters["weight_decay"].astype(state.A.dtype),
        setup.structure,
    )
    flat = state.rows.reshape(p, -1)
    rows, head = stride.move(
        flat, state.head, (gradient[:p].reshape(p, -1), head_pull), kick, head_kick
    )
    return known._replace(
        rows=rows.reshape(state.rows.shape),
        head=head,
        selected=next_selection(algorithm, state.selected, draws.uniform)
        if setup.selects
        else state.selected,
    )


def look(
    setup: Setup,
    parameters: Parameters,
    algorithm: Parameters,
    used: Numeric,
    samples: int,
    fields: Float[Numeric, "inputs fields"],
    signals: Float[Numeric, "inputs K"],
    head: Float[Numeric, " p"],
    given: PyTree,
) -> tuple[Float[Numeric, "spanned inputs"], Float[Numeric, " p"]]:
    """Gradients of the mean over so many `samples` as vectors in sample space, and the head's, of samples that a step uses so often.

    `fields` are those of the rows, and where they are asked for those of their change beside them.
    """
    structure, sample, p = setup.structure, setup.structure.sample, setup.structure.width

    def gradients(
        fields: Float[Numeric, "inputs p"],
    ) -> tuple[Float[Numeric, "inputs p"], Float[Numeric, "n p"]]:
        return sample_gradients(structure, parameters, fields, signals, head, given)

    def slopes(
        fields: Float[Numeric, "inputs p"],
    ) -> tuple[Float[Numeric, "inputs p"], Float[Numeric, "n p"]]:
        found = gradients(fields)
        return (
            _visited_again(setup, parameters, algorithm, used, gradients, fields, found)
            if setup.again
            else found
        )

    h, head_gradient = slopes(fields[:, :p])
    weight = (used > 0).astype(fields.dtype) / (algorithm["divisor"] * samples).astype(fields.dtype)
    g = h.T * sample.each_input(weight)
    if setup.probed:
        # the change is driven by its own gradient: one more vector for the data to be seen through. By symmetry the head does not change
        _, bent = jax.jvp(lambda fields: slopes(fields)[0], (fields[:, :p],), (fields[:, p:],))
        g = jnp.concatenate([g, bent.T * sample.each_input(weight)])
    return g, jnp.sum(head_gradient * weight[:, None], axis=0)


def _visited_again(
    setup: Setup,
    parameters: Parameters,
    algorithm: Parameters,
    used: Float[Numeric, " n"],
    gradients: Callable[..., Any],
    fields: Float[Numeric, "inputs p"],
    first: tuple[Any, Any],
) -> tuple[Float[Numeric, "inputs p"], Float[Numeric, "n p"]]:
    """Sums of gradients over all visits of a sample in one cell: each sees its fields moved by those before it, -gamma h |x|^2/d."""
    sample = setup.structure.sample
    each = (algorithm["lr"] * algorithm["own"] * input_trace(parameters)).astype(fields.dtype)

    def again(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, h, head_h = carry
        own = sample.mixed_inputs(parameters, sample.mixed_inputs(parameters, h.T)).T
        more, more_head = (part.astype(fields.dtype) for part in gradients(fields - each * own))
        still = (used > count).astype(fields.dtype)
        return (
            count + 1,
            h + sample.each_input(still)[:, None] * more,
            head_h + still[:, None] * more_head,
        )

    return jax.lax.while_loop(
        lambda carry: carry[0] < jnp.max(used), again, (jnp.ones(()), *first)
    )[1:]


def _gradient(
    now: _Now,
    state: Known,
    g: Float[Numeric, "spanned inputs"],
    normals: Float[Numeric, "spanned blocks inputs"],
) -> tuple[Known, Float[Numeric, "spanned blocks capacity"]]:
    """What is known after the data have been seen through every g, and the gradients of the weights (spanned, blocks, capacity)."""
    setup = now.setup
    P, A, opened, spanned = state.P, state.A, state.opened, state.spanned
    gradient = jnp.einsum("bkn,pn->pbk", A, g, precision="highest")
    # the data are C^1/2 Z, Z without correlation: what is conditioned on is Z, whose gradients are C^1/2 g
    inner = setup.structure.sample.mixed_inputs(now.parameters, g)
    for unit in range(setup.spanned):
        both = outside(P, jnp.concatenate([inner[unit][None], normals[unit]]), 2)
        square = jnp.sum(both[0] ** 2)
        left = now.sizes - opened > 0  # which blocks have directions left
        grows = (square > now.tolerance**2 * jnp.sum(inner[unit] ** 2)) & jnp.any(left)
        size = jnp.sqrt(jnp.where(grows, square, 1.0))
        new = jnp.where(grows, both[0] / size, 0.0)
        rest = both[1:] - jnp.einsum("bn,n->b", both[1:], new, precision="highest")[:, None] * new
        found = now.seen(
            (grows & left).astype(A.dtype), now.length(unit, opened, A.dtype)[:, None] * new + rest
        )
        P = P.at[spanned].set(new)
        A = A.at[:, opened].set(found)
        gradient = gradient.at[:, :, opened].set(
            jnp.einsum("bn,pn->pb", found, g, precision="highest")
        )
        opened, spanned = opened + grows, spanned + grows
    return state._replace(P=P, A=A, opened=opened, spanned=spanned), gradient


def _kick(
    now: _Now, state: Known
) -> tuple[Known, Float[Numeric, "p columns"], Float[Numeric, " p"]]:
    """White noise on the rows (p, blocks * capacity) and on the head, what is known once every row has a direction of its own for it."""
    setup, draws, sizes = now.setup, now.draws, now.sizes
    p, blocks = setup.structure.width, setup.structure.blocks
    A, opened, dtype = state.A, state.opened, state.A.dtype
    amount = kick_size(now.algorithm, jnp.sum(sizes)).astype(dtype)
    turned = outside(state.P, draws.normals[p:].reshape(p * blocks, -1), 1).reshape(p, blocks, -1)
    slot = jnp.arange(state.rows.shape[-1])
    # a small block may be known altogether while others still open
    kick = jnp.transpose(draws.along, (1, 2, 0)) * (slot < jnp.minimum(opened, sizes[:, None]))
    lower = jnp.tril(jnp.ones((p, p), dtype), -1)[:, :, None] * draws.lower.astype(dtype)
    for unit in range(p):
        left = (sizes - opened > 0).astype(dtype)
        A = A.at[:, opened].set(now.seen(left, turned[unit]))
        others = lower[:, unit] * left
        kick = kick.at[:, :, opened].set(
            others.at[unit].set(now.length(setup.spanned + unit, opened, dtype) * left)
        )
        opened = opened + jnp.any(left > 0)
    head_kick = jnp.sqrt(now.algorithm["head_rate"]).astype(dtype) * (
        amount * draws.head.astype(dtype)
    )
    return state._replace(A=A, opened=opened), (amount * kick).reshape(p, -1), head_kick


def advance(
    setup: Setup,
    numbers: tuple[Any, ...],
    most: int,
    state: Known,
    keys: RandomKeys,
    since: int,
    end: int,
) -> tuple[Known, np.ndarray]:
    """All runs (leading axis) from step `since` to `end`, with memory made on the way for up to `most` directions; the last good steps.

    `numbers`: parameters, algorithm, sizes of the blocks, tolerance. Runs that need more than `most` stop where they are.
    """
    now, good = np.full(len(keys), since, dtype=np.int64), np.full(len(keys), since, dtype=np.int64)
    while True:
        state, now, good = _advance_known(
            setup, _together(state), numbers, state, keys, now, good, np.int64(end)
        )
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


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _advance_known(
    setup: Setup,
    together: int,
    numbers: tuple[Any, ...],
    state: Known,
    keys: RandomKeys,
    now: Int[Numeric, " runs"],
    good: Int[Numeric, " runs"],
    end: IntScalar,
) -> tuple[Known, Int[Numeric, " runs"], Int[Numeric, " runs"]]:
    room, n = state.P.shape[1:]

    def one(number: IntScalar, state: Known, key: RandomKey) -> Known:
        key = jax.random.fold_in(key, number)
        return step(setup, numbers, state, draw(setup, key, n, room, state.A.dtype), key, number)

    def fits(carry: tuple[Any, Known, Any]) -> Bool[Numeric, ""]:
        number, state, _ = carry
        enough = (jnp.max(state.opened) + setup.opened <= room) & (
            jnp.max(state.spanned) + setup.spanned <= room
        )
        return (jnp.min(number) < end) & enough

    def loop(
        advanced: Callable[..., Any], carry: tuple[Any, Known, Any]
    ) -> tuple[Int[Numeric, " runs"], Known, Int[Numeric, " runs"]]:
        def go(
            carry: tuple[Any, Known, Any],
        ) -> tuple[Int[Numeric, " runs"], Known, Int[Numeric, " runs"]]:
            number, state, good = carry
            state = advanced(number, state)
            fine = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(-1, -2, -3)) & jnp.all(
                jnp.abs(state.head) < LARGEST, axis=-1
            )
            return number + 1, state, jnp.where(fine, number + 1, good)

        return jax.lax.while_loop(fits, go, carry)

    def group(
        runs: tuple[Any, Known, Any, Any],
    ) -> tuple[Int[Numeric, " runs"], Known, Int[Numeric, " runs"]]:
        now, state, good, keys = runs
        return loop(lambda number, state: jax.vmap(one)(number, state, keys), (now, state, good))

    runs = keys.shape[0]
    everything = (now, state, good, keys)
    groups = jax.tree.map(
        lambda leaf: leaf.reshape(runs // together, together, *leaf.shape[1:]), everything
    )
    if together == runs:
        now, state, good = group(everything)
    else:
        now, state, good = jax.tree.map(
            lambda leaf: leaf.reshape(runs, *leaf.shape[2:]), jax.lax.map(group, groups)
        )
    return state, now, good
