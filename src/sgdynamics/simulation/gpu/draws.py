"""Random numbers of runs inside a GPU kernel, from a counter: where they are used, or a block of steps ahead.

Number j of step s of a run is a hash of (its two random 64-bit keys, s, j). One step after the other, a run waits for its numbers most
of the time, and a device with few runs waits with it; made ahead, by as many threads as there are steps, they are there.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.base.random import GOLDEN, MULTIPLIERS, chi_length, cosine_and_sine, propose_gamma
from sgdynamics.simulation.gpu.pallas import pl, triton

LANES = 32  # runs of one program: one warp, so that no thread waits for another
TO_UNIT = 2.0**-53
TILE = 16  # steps of one program that makes numbers ahead


class Draws(NamedTuple):
    """What a step takes of random numbers."""

    normals: int
    proposals: int  # the first of the normals that chi variables are proposed from
    chi: tuple[int, int]

    @property
    def lengths(self) -> int:
        """How many chi variables."""
        return int(np.prod(self.chi))

    @property
    def count(self) -> int:
        """How many numbers."""
        return self.normals + self.lengths


def _signed(number: int) -> np.int64:
    """The compiler of kernels takes no unsigned constants of 64 bits."""
    return np.uint64(number).astype(np.int64)


def _right(z: Numeric, count: int) -> Any:
    return jax.lax.shift_right_logical(z, jnp.full_like(z, count))


def bits(keys: tuple[Any, Any], counter: Numeric | IntScalar) -> Any:
    """64 random bits: SplitMix64's mix of a counter, twice, with a key of the run before each."""
    z = keys[0] + counter * _signed(GOLDEN)
    for key in (keys[1], None):
        for shift, factor in zip((30, 27), MULTIPLIERS, strict=True):
            z = (z ^ _right(z, shift)) * _signed(factor)
        z = z ^ _right(z, 31)
        z = z if key is None else z ^ key
    return z


def uniform(keys: tuple[Any, Any], counter: Numeric | IntScalar) -> Any:
    """In (0, 1), never 0 or 1."""
    return (_right(bits(keys, counter), 11).astype(jnp.float64) + 0.5) * TO_UNIT


def two_normals(keys: tuple[Any, Any], counter: Numeric | IntScalar) -> tuple[Any, Any]:
    """By Box and Muller."""
    radius = jnp.sqrt(-2.0 * jnp.log(uniform(keys, counter)))
    along, across = cosine_and_sine(uniform(keys, counter + 1))
    return radius * along, radius * across


def random_numbers(
    draws: Draws, keys: tuple[Any, Any], index: IntScalar, free: list[Any]
) -> list[Any]:
    """The normals of a step, then its chi variables by Marsaglia and Tsang's rejection, with as many attempts as the slowest lane needs."""
    pairs, chis = -(-draws.normals // 2), len(free)
    counter = index * np.int64(2 * pairs + chis)
    normals = [
        one for pair in range(pairs) for one in two_normals(keys, counter + np.int64(2 * pair))
    ][: draws.normals]
    proposals = normals[draws.proposals : draws.proposals + chis]
    tried = [
        propose_gamma(one, x, uniform(keys, counter + np.int64(2 * pairs + k)))
        for k, (one, x) in enumerate(zip(free, proposals, strict=True))
    ]

    def again(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        count, values, good = carry
        other = (keys[0], bits(keys, ~count))  # what is drawn again has keys of its own
        places = [counter + np.int64(3 * k) for k in range(chis)]
        made = [
            propose_gamma(one, two_normals(other, at)[0], uniform(other, at + np.int64(2)))
            for one, at in zip(free, places, strict=True)
        ]
        values = tuple(
            jnp.where(fine > 0, old, new[0])
            for old, fine, new in zip(values, good, made, strict=True)
        )
        return (
            count + 1,
            values,
            tuple(jnp.where(new[1], 1, fine) for fine, new in zip(good, made, strict=True)),
        )

    def open_ones(carry: tuple[Any, ...]) -> Any:
        return sum(jnp.sum(1 - one) for one in carry[2]) > 0

    if not chis:
        return normals
    begin = (
        np.int64(0),
        tuple(one for one, _ in tried),
        tuple(jnp.where(fine, 1, 0) for _, fine in tried),
    )
    _, values, _ = jax.lax.while_loop(open_ones, again, begin)
    return normals + [
        chi_length(one, value, x) for one, value, x in zip(free, values, proposals, strict=True)
    ]


def as_whole(bits: Numeric) -> Any:
    """The 64 bits of numbers as integers."""
    return jax.lax.bitcast_convert_type(bits, jnp.int64)


def rounded(number: Numeric, nothing: IntScalar) -> Any:
    """A number as memory would give it back; nothing: a 0 that the compiler does not know.

    Else it takes the product that a number ends with and a sum behind it as one operation, and other bits come out than where the
    number was made ahead.
    """
    return jax.lax.bitcast_convert_type(as_whole(number) ^ nothing, jnp.float64)


def _ahead(draws: Draws, steps: int, *refs: Any) -> None:
    """Numbers of a tile of steps of the runs of one program, where any of these still goes on."""
    free_ref, when_ref, lively_ref, keys_ref, made_ref = refs
    group, first = pl.program_id(0), pl.program_id(1) * TILE
    here = pl.ds(group * LANES, LANES)
    keys = keys_ref[0, here], keys_ref[1, here]
    last = jnp.minimum(first + TILE, (when_ref[1] - when_ref[0]).astype(jnp.int32))

    def step(at: IntScalar, nothing: IntScalar) -> Any:
        free = [free_ref[k] for k in range(draws.lengths)]
        for k, one in enumerate(random_numbers(draws, keys, when_ref[0] + at, free)):
            made_ref[(group * steps + at) * draws.count + k, pl.ds(0, LANES)] = jnp.broadcast_to(
                one, (LANES,)
            )
        return nothing

    jax.lax.fori_loop(first, jnp.where(lively_ref[group] > 0, last, first), step, np.int32(0))


def read_ahead(draws: Draws, steps: int, ref: Any, group: IntScalar, at: IntScalar) -> list[Any]:
    """The numbers of step `at` of those that were made ahead, of the runs of one program."""
    return [
        ref[(group * steps + at) * draws.count + k, pl.ds(0, LANES)] for k in range(draws.count)
    ]


def made_ahead(
    draws: Draws,
    steps: int,
    interpret: bool,
    free: Numeric,
    when: Numeric,
    lively: Numeric,
    keys: Numeric,
) -> Any:
    """The numbers of up to so many steps (a multiple of a tile) of all runs: 32 runs a row, and (their group, step, number) in order.

    when: the first step, and the one that ends it. lively: of each 32 runs, how many go on.
    """
    groups = len(lively)
    return pl.pallas_call(
        partial(_ahead, draws, steps),
        out_shape=jax.ShapeDtypeStruct((groups * steps * draws.count, LANES), jnp.float64),
        grid=(groups, steps // TILE),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=1, num_stages=1),
        name="draws",
    )(free, when, lively, keys)
