"""Arrays of a set of paths of the effective process, and the positions of the basis in memory."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, UInt64

from sgdynamics.base.arrays import (
    BoolScalar,
    DType,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
)
from sgdynamics.fixed_data.conditioning import ConditionedState
from sgdynamics.fixed_data.sample_space import SampleMemory, observe_fields
from sgdynamics.fixed_data.setup import Setup
from sgdynamics.fixed_data.update_memory import UpdateMemory


class Sums(NamedTuple):
    """Sums over all paths for the next step (equations in `fixed_data.paths`)."""

    P: Float[Numeric, "columns capacity"]  # <P, .> of gradients g, of the last new P, of normals Z
    A: Float[Numeric, "gradients blocks capacity"]  # U = <A, g>
    g: Float[Numeric, "gradients gradients"]  # g g^T
    gZ: Float[Numeric, "gradients normals blocks"]  # g Z^T
    Z: Float[Numeric, "normals blocks"]  # |Z|^2
    new: Float[Numeric, "gradients gradients"]  # Gram matrix of the last new P
    head: Float[Numeric, " p"]  # gradient of the head
    # Mean coefficients of rows and signals, if the loss reads overlaps
    coefficients: Float[Numeric, "p columns"] | None = None
    means: dict[str, Numeric] | None = None  # of an update with a rule for samples


class Paths(NamedTuple):
    """One set of paths: the bases of its data, the weights, and the sums for the next step.

    The paths are divided into chunks. P, A and normals have the storage precision, all else
    float64.
    """

    # Orthonormal rows, zero if unused, (chunks, capacity, inputs), and the data X e_k, (chunks,
    # blocks, capacity, inputs). Inside of `advance_paths` both may be `ChunkArrays`.
    P: Any
    A: Any
    rows: Float[Numeric, "p blocks capacity"]  # coefficients of W on the e_k
    head: Float[Numeric, " p"]
    sample_rank: IntScalar  # directions in P
    weight_rank: IntScalar  # directions in A
    gradient_directions: (
        IntScalar  # directions that gradients have added so far, discarded ones included
    )
    selected: Bool[Numeric, "chunks n"]
    signals: Float[Numeric, "chunks inputs K"]
    draws: PyTree  # label noise, mixture labels, ..., (chunks, n, ...)
    quasi_normals: Float[Numeric, "chunks directions blocks inputs"]  # of the first directions
    counters: UInt64[Numeric, "3"]  # first counters of normals, of white noise, of uniforms
    fields: Float[Numeric, "chunks inputs p"]
    g: Float[Numeric, "chunks gradients inputs"]
    Z: Float[Numeric, "chunks normals blocks inputs"]
    sums: Sums
    last_lengths: Float[Numeric, "gradients blocks"]  # f of the last new directions
    # Change of the rows by an infinitesimal perturbation, where R is computed
    perturbation: Float[Numeric, "p blocks capacity"] | None = None
    # Past gradients in P (row 0) and in the e_k of each block, where memory is bounded
    past_gradients: Float[Numeric, "bins p 1+blocks capacity"] | None = None
    memory: UpdateMemory | None = None  # of an update, in the basis of the weights
    point: Float[Numeric, "p blocks capacity"] | None = None  # rows of the gradient, if needed
    answers: Answers | None = None  # first gradients of a step that evaluates several
    # Change of further sets of rows, where R is computed
    memory_perturbation: Float[Numeric, "rows blocks capacity"] | None = None
    samples: SampleMemory | None = None  # of an update, (chunks, inputs, p)


class Answers(NamedTuple):
    """First gradients of the present step, one per pass, where a step takes several passes."""

    rows: Float[Numeric, "answers gradients blocks capacity"]
    head: Float[Numeric, "answers p"]
    means: dict[str, Numeric]  # (answers,) by name, of an update with a rule for samples


class ChunkArrays(NamedTuple):
    """P or A of one set of paths as separate arrays (rows, inputs), one per chunk.

    The blocks of A follow each other. On a CPU, XLA copies a slice of a larger array, or an array
    with an axis of length one, in every step before it multiplies.
    """

    chunks: tuple[Float[Array, "rows inputs"], ...]


def split_chunks(paths: Paths) -> Paths:
    """One set of paths, in a leading axis, with P and A as `ChunkArrays`."""
    inputs = paths.P.shape[-1]
    P, A = (
        ChunkArrays(tuple(chunk.reshape(-1, inputs) for chunk in array[0]))
        for array in (paths.P, paths.A)
    )
    return paths._replace(P=P, A=A)


def join_chunks(paths: Paths, blocks: int) -> Paths:
    """The inverse of `split_chunks`."""
    P, A = (jnp.stack(array.chunks)[None] for array in (paths.P, paths.A))
    return paths._replace(P=P, A=A.reshape(*A.shape[:2], blocks, -1, A.shape[-1]))


class Slots(NamedTuple):
    """Positions in memory, equal for all sets of paths that advance together."""

    sample: IntScalar  # first free row of P
    weight: IntScalar  # first free row of A
    last_sample: IntScalar  # first row of P that the last step added
    last_weight: IntScalar  # first row of A that the last step added
    history: IntScalar  # steps in `past_gradients`
    has_sums: BoolScalar  # whether `Paths.sums` belong to the present weights


def paths_from_state(
    setup: Setup,
    state: ConditionedState,
    quasi_normals: Numeric,
    counters: Numeric,
    storage: DType,
    history: int,
) -> Paths:
    """One set of paths in one chunk, without sums, from `conditioning.initial_state`."""
    s, z = setup.gradients_per_step, setup.normals_per_step
    p, blocks = setup.structure.width, setup.structure.blocks
    capacity, n = state.P.shape
    reads_overlaps = setup.structure.loss.reads_overlaps
    sums = Sums(
        P=jnp.zeros((2 * s + z * blocks, capacity)),
        A=jnp.zeros((s, blocks, capacity)),
        g=jnp.zeros((s, s)),
        gZ=jnp.zeros((s, z, blocks)),
        Z=jnp.zeros((z, blocks)),
        new=jnp.zeros((s, s)),
        head=jnp.zeros(setup.structure.head_size),
        coefficients=jnp.zeros((p, p + setup.structure.signals)) if reads_overlaps else None,
        means=None if state.samples is None else _zero_means(setup, ()),
    )
    return Paths(
        P=jnp.zeros((1, capacity, n), storage),
        A=state.A.astype(storage)[None],
        rows=state.rows,
        head=state.head,
        sample_rank=jnp.asarray(state.sample_rank, jnp.int64),
        weight_rank=jnp.asarray(state.weight_rank, jnp.int64),
        gradient_directions=jnp.zeros((), jnp.int64),
        selected=state.selected[None],
        signals=state.signals[None],
        draws=jax.tree.map(lambda leaf: leaf[None], state.draws),
        quasi_normals=quasi_normals[None].astype(storage),
        counters=counters,
        fields=jnp.zeros((1, n, p)),
        g=jnp.zeros((1, s, n)),
        Z=jnp.zeros((1, z, blocks, n), storage),
        sums=sums,
        last_lengths=jnp.zeros((s, blocks)),
        past_gradients=jnp.zeros((history, p, 1 + blocks, capacity)) if history else None,
        memory=state.memory,
        point=state.rows if reads_overlaps else None,
        answers=_first_answers(setup, capacity),
        samples=jax.tree.map(lambda leaf: leaf[None], state.samples),
    )


def _first_answers(setup: Setup, capacity: int) -> Answers | None:
    if setup.law is None:
        return None
    count = setup.passes - 1
    shape = (count, setup.gradients_per_step, setup.structure.blocks, capacity)
    means = _zero_means(setup, (count,))
    return Answers(jnp.zeros(shape), jnp.zeros((count, setup.structure.head_size)), means)


def _zero_means(setup: Setup, shape: tuple[int, ...]) -> dict[str, Numeric]:
    names = () if setup.law is None else setup.law.means
    return {name: jnp.zeros(shape) for name in names}


def initial_slots(setup: Setup) -> Slots:
    """Positions before the first step: A contains the signals and the rows, P is empty."""
    count, zero = np.int64(setup.initial_directions), np.int64(0)
    return Slots(zero, count, zero, count, zero, np.bool_(False))


_CHUNKED = ("P", "A", "selected", "signals", "draws", "quasi_normals", "fields", "g", "Z")
_CHUNKED += ("samples",)
_PATHS_LAST = ("P", "A", "quasi_normals", "g", "Z")  # arrays whose last axis are the paths


def rechunk(paths: Paths, chunks: int, lead: int) -> Paths:
    """The same paths in another number of chunks; the axis of chunks follows `lead` others."""

    def split_last(leaf: Numeric) -> Numeric:
        moved = jnp.moveaxis(leaf, lead, -2)
        size = moved.shape[-2] * moved.shape[-1] // chunks
        return jnp.moveaxis(moved.reshape(*moved.shape[:-2], chunks, size), -2, lead)

    def split_first(leaf: Numeric) -> Numeric:
        return leaf.reshape(*leaf.shape[:lead], chunks, -1, *leaf.shape[lead + 2 :])

    if paths.P.shape[lead] == chunks:
        return paths
    changes = {
        name: jax.tree.map(split_last if name in _PATHS_LAST else split_first, getattr(paths, name))
        for name in _CHUNKED
    }
    return paths._replace(**changes)


def pad_axes(leaf: Numeric, added: int, *axes: int) -> Array:
    """An array with zeros added at the end of some axes, which are counted from the last."""
    widths = [(0, added if axis - leaf.ndim in axes else 0) for axis in range(leaf.ndim)]
    return jnp.pad(leaf, widths)


@partial(jax.jit, static_argnums=(1, 2))
def with_capacity(paths: Paths, capacity: int, lead: int) -> Paths:
    """The same paths with memory for more directions."""
    added = capacity - paths.P.shape[lead + 1]
    sums = paths.sums._replace(
        P=pad_axes(paths.sums.P, added, -1), A=pad_axes(paths.sums.A, added, -1)
    )
    changes: dict[str, Any] = {
        name: None if (leaf := getattr(paths, name)) is None else pad_axes(leaf, added, -1)
        for name in ("rows", "perturbation", "past_gradients", "memory_perturbation", "point")
    }
    if paths.memory is not None:
        assert paths.answers is not None
        changes["memory"] = paths.memory._replace(rows=pad_axes(paths.memory.rows, added, -1))
        changes["answers"] = paths.answers._replace(rows=pad_axes(paths.answers.rows, added, -1))
    P, A = pad_axes(paths.P, added, -2), pad_axes(paths.A, added, -2)
    return paths._replace(P=P, A=A, sums=sums, **changes)


def observe(setup: Setup, parameters: Parameters, paths: Paths) -> dict[str, Numeric]:
    """M and Q per covariance block, a, and the mean loss over the paths, of one set."""
    if setup.elsewhere:
        # The gradient is evaluated at another point, whose fields the pass has computed.
        A = paths.A.astype(paths.rows.dtype)
        fields = jnp.einsum("pbk,cbkn->cnp", paths.rows, A, precision="highest")
        paths = paths._replace(fields=fields)
    fields, signals, draws = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
        (paths.fields, paths.signals, paths.draws),
    )
    return observe_fields(setup, parameters, paths.rows, paths.head, fields, signals, draws)
