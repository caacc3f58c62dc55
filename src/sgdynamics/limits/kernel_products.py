"""Products of a few rows with a large array on an NVIDIA GPU, as fast as memory gives it: of the rows in use alone, with sums in float64.

A product of matrices with three rows or so is no matter of arithmetic, and libraries of them read at a third of the memory's speed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Float

from sgdynamics.arrays import Numeric, Whole

WARPS = 4
TILE = 256  # inputs of a program that combines rows: two for each thread
READS = 8  # rows on their way at once
ROWS, SOME = 64, 4  # rows of a program that sums over inputs, and how many of them at a time


def _combine(one_ref: Any, used_ref: Any, known_ref: Any, made_ref: Any) -> None:
    """Combinations of rows, for a tile of inputs."""
    count, tile = made_ref.shape[0], min(TILE, known_ref.shape[1])
    here, used = pl.ds(pl.program_id(0) * tile, tile), used_ref[0]

    def several(reads: int, at: Whole, found: tuple[Any, ...]) -> tuple[Any, ...]:
        values = [known_ref[at * reads + k, here].astype(jnp.float64) for k in range(reads)]
        for k, value in enumerate(values):
            found = tuple(one + one_ref[row, at * reads + k] * value for row, one in enumerate(found))
        return found

    found = tuple(jnp.zeros((tile,), jnp.float64) for _ in range(count))
    whole = jax.lax.div(used, np.int32(READS))
    found = jax.lax.fori_loop(np.int32(0), whole, partial(several, READS), found)
    found = jax.lax.fori_loop(whole * np.int32(READS), used, partial(several, 1), found)
    for row, one in enumerate(found):
        made_ref[row, here] = one


def _sum(one_ref: Any, used_ref: Any, known_ref: Any, made_ref: Any) -> None:
    """Sums over inputs, for some rows; those that are not in use are 0."""
    count, inputs = one_ref.shape
    rows, used, first = known_ref.shape[0], used_ref[0], pl.program_id(0) * ROWS
    every = jnp.arange(inputs, dtype=jnp.int32)
    weights = [one_ref[row, pl.ds(0, inputs)] for row in range(count)]

    def several(at: Whole, nothing: Whole) -> Any:
        row = first + at * SOME + jnp.arange(SOME, dtype=jnp.int32)
        safe, there = jnp.minimum(row, np.int32(rows - 1)), jnp.broadcast_to((row < used)[:, None], (SOME, inputs))
        values = triton.load(known_ref.at[safe[:, None], every[None, :]], mask=there, other=0).astype(jnp.float64)
        for number, weight in enumerate(weights):
            made_ref[number, pl.ds(first + at * SOME, SOME)] = jnp.sum(values * weight[None, :], axis=1)
        return nothing

    jax.lax.fori_loop(np.int32(0), np.int32(ROWS // SOME), several, np.int32(0))


def _called(kernel: Any, shape: tuple[int, int], programs: int, interpret: bool, name: str) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float64),
        grid=(programs,),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=WARPS, num_stages=2),
        name=name,
    )


def combined(
    one: Float[Numeric, "m rows"], known: Float[Numeric, "rows inputs"], used: Whole, interpret: bool = False
) -> Float[Numeric, "m inputs"]:
    """one @ known, over the first rows that are in use; inputs: a power of two."""
    shape = one.shape[0], known.shape[1]
    call = _called(_combine, shape, -(-shape[1] // TILE), interpret, "combined")
    return call(one.astype(jnp.float64), jnp.asarray(used, jnp.int32).reshape(1), known)


def summed(
    one: Float[Numeric, "m inputs"], known: Float[Numeric, "rows inputs"], used: Whole, interpret: bool = False
) -> Float[Numeric, "m rows"]:
    """one @ known^T, 0 past the rows that are in use; inputs: a power of two."""
    programs = -(-known.shape[0] // ROWS)
    call = _called(_sum, (one.shape[0], programs * ROWS), programs, interpret, "summed")
    return call(one.astype(jnp.float64), jnp.asarray(used, jnp.int32).reshape(1), known)[:, : known.shape[0]]
