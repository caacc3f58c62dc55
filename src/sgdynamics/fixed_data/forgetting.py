"""Bounded memory of paths: at times all but a part of what is known of the data is forgotten, and drawn afresh when it is met again.

What stays are gradients, summed over bins of steps (new ones single, old ones merged), as directions P' in sample space; and in weight
space the signals, the rows as they are, and X^T P'. With G the sums in P, and their weight gradients U in the directions e,

    P' = orthonormal combinations of G P,     e' = orthonormal basis of (signals, rows, U),     A' = X e'.

X^T P' lies in the span of e', so that conditioning goes on as before. Rows and fields do not change at that moment; what is lost are the
correlations of later gradients with what is forgotten, so the error is seen from two sizes of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.fixed_data.conditioning import Setup
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.fixed_data.path_state import Paths, Places

LEAST_BINS = 4  # of steps
SINGULAR = (
    1e-10  # eigenvalues of sums of gradients, scaled to length 1, below this share are rounding
)


@dataclass(frozen=True)
class Memory:
    """How many directions are kept at most, and how many gradients in sample space once they are reached."""

    directions: int
    keep: int

    @staticmethod
    def from_options(setup: Setup, options: DMFT) -> Memory | None:
        """The memory that the options describe; None if no direction is ever discarded."""
        directions, keep = options.memory_directions, options.keep
        if directions is None:
            return None
        per_step = setup.first + 2 * setup.opened
        fewest = LEAST_BINS * setup.structure.width
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

    def over(self, setup: Setup, ratio: int) -> Memory:
        """A memory that is so many times smaller, as far as steps have room in it."""
        fewest, least = LEAST_BINS * setup.structure.width, setup.first + 2 * setup.opened
        keep = max(fewest, self.keep // ratio)
        return Memory(max(self.directions // ratio, keep + least), keep)

    def bins(self, setup: Setup) -> int:
        """Of steps, each with a gradient for every row."""
        return max(1, self.keep // setup.structure.width)

    def slots(self, setup: Setup) -> int:
        """Bins and single steps between two times of forgetting."""
        return self.bins(setup) + max(1, (self.directions - self.keep) // setup.structure.width)


def merged(widths: list[int], count: int) -> list[list[int]]:
    """Which of the bins (oldest first, with so many steps each) make up each of at most `count`: the newest half stay as they are.

    Of the older ones those neighbours are merged whose steps are fewest beside their age: bins grow with age, as memory fades.
    """
    groups = [[place] for place in range(len(widths))]
    steps, newest = list(widths), count // 2
    while len(groups) > count:
        ages = np.cumsum(steps[::-1])[::-1]  # of the older end of each
        older = len(groups) - newest
        shares = [(steps[place] + steps[place + 1]) / ages[place] for place in range(older - 1)]
        first = int(np.argmin(shares))
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
        steps[first : first + 2] = [steps[first] + steps[first + 1]]
    return groups


def forgotten(
    setup: Setup, memory: Memory, paths: Paths, places: Places, widths: list[int]
) -> tuple[Paths, Places, list[int]]:
    """Sets of paths (leading axis) that have forgotten, where they stand, and the steps of each bin."""
    bins = memory.bins(setup)
    widths = widths + [1] * (int(places.noted) - len(widths))
    groups = merged(widths, bins)
    sums = np.zeros((bins, paths.past.shape[1]))
    for place, group in enumerate(groups):
        sums[place, group] = 1.0
    paths = _forgotten(setup, paths, sums)
    p, signals = setup.structure.width, setup.structure.signals
    spanned, opened = np.int64(bins * p), np.int64(signals + p + bins * p)
    places = Places(spanned, opened, spanned, opened, np.int64(len(groups)), np.bool_(False))
    return paths, places, [sum(widths[place] for place in group) for group in groups]


@partial(jax.jit, static_argnums=0)
def _forgotten(setup: Setup, paths: Paths, sums: Float[Numeric, "bins slots"]) -> Paths:
    def one(paths: Paths) -> Paths:
        k, p, blocks = setup.structure.signals, setup.structure.width, setup.structure.blocks
        room, bins, dtype = paths.rows.shape[-1], sums.shape[0], paths.P.dtype
        past = jnp.einsum("os,spbk->opbk", sums, paths.past)
        G, U = past[:, :, 0].reshape(bins * p, room), past[:, :, 1:].reshape(bins * p, blocks, room)

        def scaled(vectors: Float[Numeric, "m room"]) -> Float[Numeric, "m room"]:
            square = jnp.sum(vectors**2, axis=-1, keepdims=True)
            return vectors / jnp.sqrt(jnp.where(square > 0, square, 1.0))

        unit = scaled(G)
        values, vectors = jnp.linalg.eigh(unit @ unit.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        there = values > SINGULAR * values[0]
        on_P = (
            vectors * jnp.where(there, jnp.where(there, values, 1.0) ** -0.5, 0.0)
        ).T @ unit  # (bins p, room)

        def basis(
            rows: Float[Numeric, "p room"], U: Float[Numeric, "m room"]
        ) -> Float[Numeric, "count room"]:
            """Orthonormal: the signals' directions as they are, then those of the rows and of the gradients outside of them."""
            others = scaled(jnp.concatenate([rows, U])[:, k:])
            found = jnp.linalg.qr(others.T)[0].T
            return jnp.concatenate([jnp.eye(k, room), jnp.pad(found, ((0, 0), (k, 0)))])

        turns = jax.vmap(basis, in_axes=(1, 1))(paths.rows, U)  # (blocks, k + p + bins p, room)

        def filled(values: Numeric, axis: int) -> Any:
            return jnp.pad(
                values,
                [
                    (0, room - size if place == axis % values.ndim else 0)
                    for place, size in enumerate(values.shape)
                ],
            )

        P = jnp.einsum("ok,jkn->jon", on_P.astype(dtype), paths.P, precision="highest")
        A = jnp.einsum("bok,jbkn->jbon", turns.astype(dtype), paths.A, precision="highest")
        past = jnp.concatenate(
            [
                (G @ on_P.T).reshape(bins, p, 1, -1),
                jnp.zeros((bins, p, 1, turns.shape[1] - bins * p)),
            ],
            axis=-1,
        )
        past = jnp.concatenate(
            [past, jnp.einsum("mbk,bok->mbo", U, turns).reshape(bins, p, blocks, -1)], axis=2
        )
        found = jnp.sum(there)
        return paths._replace(
            P=filled(P, -2),
            A=filled(A, -2),
            rows=filled(jnp.einsum("pbk,bok->pbo", paths.rows, turns), -1),
            past=jnp.zeros_like(paths.past).at[:bins].set(filled(past, -1)),
            spanned=found.astype(jnp.int64),
            opened=(found + k + p).astype(jnp.int64),
            sums=jax.tree.map(jnp.zeros_like, paths.sums),
            reach=jnp.zeros_like(paths.reach),
        )

    return jax.vmap(one)(paths)
