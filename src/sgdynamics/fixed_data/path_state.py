"""What is kept of sets of paths of the effective process, and where it stands in memory."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import DType, IntScalar, Numeric, Parameters, PyTree
from sgdynamics.fixed_data.conditioning import Known, Setup, observe_fields


class Sums(NamedTuple):
    """What a pass over the paths sums up."""

    P: Float[Numeric, "columns room"]  # <P, .> of gradients, of the last new P, of normals
    A: Float[Numeric, "spanned blocks room"]  # <A, g>
    g: Float[Numeric, "spanned spanned"]
    gZ: Float[Numeric, "spanned normals blocks"]
    Z: Float[Numeric, "normals blocks"]
    new: Float[Numeric, "spanned spanned"]  # of the last new P, with each other
    head: Float[Numeric, " p"]


class Paths(NamedTuple):
    """One set of paths: what is known of their data, the weights in it, and what the last pass has left for the next step.

    Paths are cut into chunks; P, A and normals are kept in the dtype of storage, all else in float64.
    """

    P: Any  # (chunks, room, inputs), or `Apart`: orthonormal rows over all chunks; zero where there is none
    A: Any  # (chunks, blocks, room, inputs), or `Apart`
    rows: Float[Numeric, "p blocks room"]
    head: Float[Numeric, " p"]
    spanned: IntScalar  # directions in P
    opened: IntScalar  # directions in A
    drawn: IntScalar  # directions that were ever opened by gradients
    selected: Bool[Numeric, "chunks n"]
    signals: Float[Numeric, "chunks inputs K"]
    given: PyTree  # what the loss takes beside them, (chunks, n, ...)
    quasi: Float[Numeric, "chunks directions blocks inputs"]  # normals of the first directions
    origins: Any  # (3,) uint64: where the counters of normals, of those of white noise, and of uniforms begin
    fields: Float[Numeric, "chunks inputs p"]
    g: Float[Numeric, "chunks spanned inputs"]
    Z: Float[Numeric, "chunks normals blocks inputs"]
    sums: Sums
    reach: Float[
        Numeric, "spanned blocks"
    ]  # how far the last new directions reach along the last new P
    change: Any = (
        None  # (p, blocks, room): how rows change with a small kick, where that is asked for
    )
    past: Any = None  # (slots, p, 1 + blocks, room): gradients of steps in P, and in the directions; where memory is bounded


class Apart(NamedTuple):
    """P or A of one set of paths as an array a chunk, (room, inputs), blocks of A one after the other, without leading axes.

    What is a part of a larger array, or has an axis of one, XLA copies in every step on a CPU before it multiplies.
    """

    chunks: tuple[Float[Array, "room inputs"], ...]


def apart(paths: Paths) -> Paths:
    """One set of paths, in a leading axis, with P and A chunk by chunk."""
    inputs = paths.P.shape[-1]
    P, A = (
        Apart(tuple(chunk.reshape(-1, inputs) for chunk in known[0]))
        for known in (paths.P, paths.A)
    )
    return paths._replace(P=P, A=A)


def joined(paths: Paths, blocks: int) -> Paths:
    """What `apart` has taken apart."""
    P, A = (jnp.stack(known.chunks)[None] for known in (paths.P, paths.A))
    return paths._replace(P=P, A=A.reshape(*A.shape[:2], blocks, -1, A.shape[-1]))


class Places(NamedTuple):
    """Where things stand in memory, the same for all sets of paths that go together."""

    spanned: IntScalar  # the first free row of P
    opened: IntScalar  # and of A
    last_spanned: IntScalar  # where the last new ones begin
    last_opened: IntScalar
    noted: IntScalar  # steps in `past`
    settled: Any  # whether the sums are those of the weights


def blank(
    setup: Setup, known: Known, quasi: Numeric, origins: Numeric, storage: DType, slots: int
) -> Paths:
    """One set of paths from `conditioning.initial`, with nothing summed yet; in one chunk."""
    s, z, blocks, room = setup.spanned, setup.normals, setup.structure.blocks, known.P.shape[0]
    n, p = known.P.shape[1], setup.structure.width
    columns = 2 * s + z * blocks
    sums = Sums(
        jnp.zeros((columns, room)),
        jnp.zeros((s, blocks, room)),
        jnp.zeros((s, s)),
        jnp.zeros((s, z, blocks)),
        jnp.zeros((z, blocks)),
        jnp.zeros((s, s)),
        jnp.zeros(p),
    )
    return Paths(
        P=jnp.zeros((1, room, n), storage),
        A=known.A.astype(storage)[None],
        rows=known.rows,
        head=known.head,
        spanned=jnp.asarray(known.spanned, jnp.int64),
        opened=jnp.asarray(known.opened, jnp.int64),
        drawn=jnp.zeros((), jnp.int64),
        selected=known.selected[None],
        signals=known.signals[None],
        given=jax.tree.map(lambda leaf: leaf[None], known.given),
        quasi=quasi[None].astype(storage),
        origins=origins,
        fields=jnp.zeros((1, n, p)),
        g=jnp.zeros((1, s, n)),
        Z=jnp.zeros((1, z, blocks, n), storage),
        sums=sums,
        reach=jnp.zeros((s, blocks)),
        past=jnp.zeros((slots, p, 1 + blocks, room)) if slots else None,
    )


def first_places(setup: Setup) -> Places:
    count, none = np.int64(setup.first), np.int64(0)
    return Places(none, count, none, count, none, np.bool_(False))


_BY_CHUNK = ("P", "A", "selected", "signals", "given", "quasi", "fields", "g", "Z")
_LAST = ("P", "A", "quasi", "g", "Z")  # whose paths are in the last axis


def cut(paths: Paths, chunks: int, lead: int) -> Paths:
    """The same paths in another number of chunks, which stand after `lead` axes."""

    def last(leaf: Numeric) -> Numeric:
        moved = jnp.moveaxis(leaf, lead, -2)
        moved = moved.reshape(
            *moved.shape[:-2], chunks, moved.shape[-2] * moved.shape[-1] // chunks
        )
        return jnp.moveaxis(moved, -2, lead)

    def first(leaf: Numeric) -> Numeric:
        return leaf.reshape(*leaf.shape[:lead], chunks, -1, *leaf.shape[lead + 2 :])

    if paths.P.shape[lead] == chunks:
        return paths
    return paths._replace(
        **{
            name: jax.tree.map(last if name in _LAST else first, getattr(paths, name))
            for name in _BY_CHUNK
        }
    )


@partial(jax.jit, static_argnums=(1, 2))
def widened(paths: Paths, room: int, lead: int) -> Paths:
    """The same with memory for more directions."""
    more = room - paths.P.shape[lead + 1]

    def padded(leaf: Numeric, axis: int) -> Numeric:
        return jnp.pad(
            leaf, [(0, more if place == axis % leaf.ndim else 0) for place in range(leaf.ndim)]
        )

    sums = paths.sums._replace(P=padded(paths.sums.P, -1), A=padded(paths.sums.A, -1))
    changed = {
        name: None if (leaf := getattr(paths, name)) is None else padded(leaf, -1)
        for name in ("rows", "change", "past")
    }
    return paths._replace(P=padded(paths.P, -2), A=padded(paths.A, -2), sums=sums, **changed)


def observe(setup: Setup, parameters: Parameters, paths: Paths) -> dict[str, Any]:
    """M, Q (block by block), a and the mean loss over the paths, of one set."""
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
        (paths.fields, paths.signals, paths.given),
    )
    return observe_fields(setup, parameters, paths.rows, paths.head, *flat)
