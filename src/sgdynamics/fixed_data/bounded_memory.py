"""Bounded memory of paths: when the basis is full, all directions but a few are discarded.

The basis that remains contains gradients summed over bins of steps (single steps for recent ones,
long bins for old ones) as directions P' in sample space; and in weight space the signals, the
rows, and X^T P'. With G the sums as rows on P and U their weight gradients as rows on the e_k,

    P' = orthonormal combinations of G P,  e' = orthonormal basis of (signals, rows, U),  A' = X e'.

X^T P' lies in the span of e', so that the conditioning continues unchanged. Rows and fields do
not change when directions are discarded. What is lost are the correlations of later gradients
with the discarded directions, whose data are drawn anew when a gradient meets them again; the
error is therefore estimated from two sizes of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.fixed_data.path_state import Paths, Slots, pad_axes
from sgdynamics.fixed_data.setup import Setup

MIN_BINS = 4  # smallest number of bins of steps
SINGULAR = 1e-10  # smaller eigenvalues of normalised sums, relative to the largest, are rounding


@dataclass(frozen=True)
class Memory:
    """Largest number of directions, and number of gradients that remain once it is reached."""

    directions: int
    keep: int

    @staticmethod
    def from_options(setup: Setup, options: DMFT) -> Memory | None:
        """The memory that the options describe; None if no direction is ever discarded."""
        directions, keep = options.memory_directions, options.keep
        if directions is None:
            return None
        fewest, per_step = _smallest_sizes(setup)
        if directions < fewest + per_step:
            fix = f"too few for this width. Use {fewest + per_step} or more."
            raise checks.reject("memory_directions", directions, fix)
        if keep is None:
            return Memory(directions, max(fewest, min(directions // 2, directions - per_step)))
        if not fewest <= keep <= directions - per_step:
            raise checks.reject(
                "keep",
                keep,
                f"must be between {fewest} and {directions - per_step} for this width and "
                f"memory_directions = {directions}.",
            )
        return Memory(directions, keep)

    def divide(self, setup: Setup, ratio: int) -> Memory:
        """A memory smaller by this ratio, as far as a step still fits into it."""
        fewest, per_step = _smallest_sizes(setup)
        keep = max(fewest, self.keep // ratio)
        return Memory(max(self.directions // ratio, keep + per_step), keep)

    def bins(self, setup: Setup) -> int:
        """Number of bins of steps, each with one gradient per row."""
        return max(1, self.keep // setup.structure.width)

    def history_length(self, setup: Setup) -> int:
        """Number of bins, and of single steps between two reductions of the basis."""
        single_steps = max(1, (self.directions - self.keep) // setup.structure.width)
        return self.bins(setup) + single_steps


def _smallest_sizes(setup: Setup) -> tuple[int, int]:
    """Smallest number of gradients to keep, and directions needed for the weights and two steps."""
    # Signals and all stored rows, among them those of the update
    stored = setup.structure.signals + setup.stored_rows
    per_step = stored + 2 * setup.directions_per_step
    return MIN_BINS * setup.structure.width, per_step


def merge_bins(widths: list[int], count: int) -> list[list[int]]:
    """Indices of the bins (oldest first, of `widths` steps) that form each of at most `count` bins.

    The newest half of the bins stays. Of the older ones, those neighbours are merged whose steps
    are fewest relative to their age: the width of a bin grows in proportion to its age, as
    correlations decay.
    """
    groups = [[index] for index in range(len(widths))]
    steps, newest = list(widths), count // 2
    while len(groups) > count:
        ages = np.cumsum(steps[::-1])[::-1]  # age of the older end of each bin
        older = len(groups) - newest
        relative = [(steps[i] + steps[i + 1]) / ages[i] for i in range(older - 1)]
        first = int(np.argmin(relative))
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
        steps[first : first + 2] = [steps[first] + steps[first + 1]]
    return groups


def discard_directions(
    setup: Setup, memory: Memory, paths: Paths, slots: Slots, widths: list[int]
) -> tuple[Paths, Slots, list[int]]:
    """Sets of paths (leading axis) with a reduced basis, its slots, and the steps of each bin."""
    assert paths.past_gradients is not None
    bins = memory.bins(setup)
    # Steps since the last reduction are bins of one step.
    widths = widths + [1] * (int(slots.history) - len(widths))
    groups = merge_bins(widths, bins)
    bin_sums = np.zeros((bins, paths.past_gradients.shape[1]))
    for row, group in enumerate(groups):
        # The gradients of a bin are represented by their sum.
        bin_sums[row, group] = 1.0
    paths = _reduce_basis(setup, paths, bin_sums)
    p, signals = setup.structure.width, setup.structure.signals
    sample = np.int64(bins * p)
    weight = np.int64(signals + setup.stored_rows + bins * p)
    # The reduced basis starts without sums; the next pass computes them.
    slots = Slots(sample, weight, sample, weight, np.int64(len(groups)), np.bool_(False))
    return paths, slots, [sum(widths[index] for index in group) for group in groups]


def _normalise(vectors: Float[Numeric, "m k"]) -> Float[Numeric, "m k"]:
    """Divide rows by their norm; a zero row stays zero."""
    square = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors / jnp.sqrt(jnp.where(square > 0, square, 1.0))


@partial(jax.jit, static_argnums=0)
def _reduce_basis(setup: Setup, paths: Paths, bin_sums: Float[Numeric, "bins history"]) -> Paths:
    k, p, blocks = setup.structure.signals, setup.structure.width, setup.structure.blocks
    bins = bin_sums.shape[0]

    def weight_basis(
        rows: Float[Numeric, "p capacity"], U: Float[Numeric, "m capacity"]
    ) -> Float[Numeric, "count capacity"]:
        """e' of one block: the signals' directions unchanged, then rows and U outside of them."""
        capacity = rows.shape[-1]
        # Rows and U without their components along the signals, which are e_0, ..., e_{k-1}
        others = _normalise(jnp.concatenate([rows, U])[:, k:])
        orthonormal = jnp.linalg.qr(others.T)[0].T
        return jnp.concatenate([jnp.eye(k, capacity), jnp.pad(orthonormal, ((0, 0), (k, 0)))])

    def reduce_set(paths: Paths) -> Paths:
        assert paths.past_gradients is not None
        capacity, dtype = paths.rows.shape[-1], paths.P.dtype
        # Row 0 of the second axis is g on P, the others are X^T g on the e_k of each block.
        past = jnp.einsum("os,spbk->opbk", bin_sums, paths.past_gradients)
        G = past[:, :, 0].reshape(bins * p, capacity)
        U = past[:, :, 1:].reshape(bins * p, blocks, capacity)

        # P' = Lambda^-1/2 V^T G P from the eigenvectors of the Gram matrix of normalised sums
        unit = _normalise(G)
        values, vectors = jnp.linalg.eigh(unit @ unit.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        exists = values > SINGULAR * values[0]
        inverse_root = jnp.where(exists, jnp.where(exists, values, 1.0) ** -0.5, 0.0)
        on_P = (vectors * inverse_root).T @ unit  # (bins p, capacity)

        # (blocks, k + rows + bins p, capacity)
        stored = [paths.rows]
        if paths.memory is not None and paths.answers is not None:
            answers = paths.answers.rows.reshape(-1, *paths.rows.shape[1:])
            stored += [paths.memory.rows, answers]
        stored_rows = jnp.concatenate(stored)
        on_e = jax.vmap(weight_basis, in_axes=(1, 1))(stored_rows, U)

        def to_capacity(values: Numeric, axis: int) -> Numeric:
            return pad_axes(values, capacity - values.shape[axis], axis)

        P = jnp.einsum("ok,jkn->jon", on_P.astype(dtype), paths.P, precision="highest")
        A = jnp.einsum("bok,jbkn->jbon", on_e.astype(dtype), paths.A, precision="highest")
        # The stored gradients in the new bases: G on P', U on e'
        past_G = (G @ on_P.T).reshape(bins, p, 1, -1)
        unused = jnp.zeros((bins, p, 1, on_e.shape[1] - bins * p))
        past_U = jnp.einsum("mbk,bok->mbo", U, on_e).reshape(bins, p, blocks, -1)
        past = jnp.concatenate([jnp.concatenate([past_G, unused], axis=-1), past_U], axis=2)
        reduced = to_capacity(jnp.einsum("pbk,bok->pbo", stored_rows, on_e), -1)
        memory, answers = paths.memory, paths.answers
        if memory is not None and answers is not None:
            last = p + len(memory.rows)
            memory = memory._replace(rows=reduced[p:last])
            answers = answers._replace(rows=reduced[last:].reshape(answers.rows.shape))
        # Singular sums leave zero rows in P', which later products ignore.
        rank = jnp.sum(exists)
        return paths._replace(
            P=to_capacity(P, -2),
            A=to_capacity(A, -2),
            rows=reduced[:p],
            memory=memory,
            answers=answers,
            past_gradients=jnp.zeros_like(paths.past_gradients)
            .at[:bins]
            .set(to_capacity(past, -1)),
            sample_rank=rank.astype(jnp.int64),
            weight_rank=(rank + k + len(stored_rows)).astype(jnp.int64),
            sums=jax.tree.map(jnp.zeros_like, paths.sums),
            last_lengths=jnp.zeros_like(paths.last_lengths),
        )

    return jax.vmap(reduce_set)(paths)
