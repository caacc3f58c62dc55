"""Counter-based random numbers inside of GPU kernels.

Number j of step s of a run is a hash of (two random 64-bit keys of the run, s, j). It therefore
depends neither on the number of runs nor on save points, and it can be computed anywhere: inside of
the step that uses it, or ahead by another kernel. With few runs, most of the time of a step is the
latency of its random numbers, one after the other. Computed ahead, by one thread per run and step,
they keep the whole device busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.base.random import GOLDEN, MULTIPLIERS, chi_length, cosine_and_sine, propose_gamma
from sgdynamics.simulation.gpu.pallas import Reference, call_kernel, pl

# Runs of one program: one warp, so that no thread waits for another one at a barrier.
LANES = 32
# Steps of one program of the kernel that draws ahead.
TILE = 16
# A uniform number has the 53 bits of a float64's mantissa.
UNIT = 2.0**-53

# The two 64-bit keys of each run, as int64.
Keys = tuple[Any, Any]


class StepDraws(NamedTuple):
    """Random numbers of one step.

    Attributes
    ----------
    normals : int
        Number of standard normals.
    proposals : int
        Offset among the normals of those from which chi variables are proposed.
    chi_shape : tuple of int
        Shape of the array of chi variables.
    """

    normals: int
    proposals: int
    chi_shape: tuple[int, int]

    @property
    def n_chi(self) -> int:
        """Number of chi variables."""
        return int(np.prod(self.chi_shape))

    @property
    def count(self) -> int:
        """Number of normals and chi variables."""
        return self.normals + self.n_chi


# ---- bits, uniforms and normals


def _as_int64(constant: int) -> np.int64:
    """A 64-bit constant with the same bits; Triton's lowering has no unsigned 64-bit constants."""
    return np.uint64(constant).astype(np.int64)


def _shift_right(z: Numeric, count: int) -> Array:
    # Logical, not arithmetic: the integers are signed, and their sign bit must not be copied.
    return jax.lax.shift_right_logical(z, jnp.full_like(z, count))


def random_bits(keys: Keys, counter: Numeric | IntScalar) -> Array:
    """64 random bits: two rounds of SplitMix64 on a counter, with a key of the run before each.

    With the first key alone, the streams of two runs whose keys differ by a small multiple of the
    increment would be shifted copies of each other.
    """
    z = keys[0] + counter * _as_int64(GOLDEN)
    for key in (keys[1], None):
        for shift, factor in zip((30, 27), MULTIPLIERS, strict=True):
            z = (z ^ _shift_right(z, shift)) * _as_int64(factor)
        z = z ^ _shift_right(z, 31)
        z = z if key is None else z ^ key
    return z


def draw_uniform(keys: Keys, counter: Numeric | IntScalar) -> Array:
    """A uniform number in (0, 1), never 0 or 1, so that its logarithm is finite."""
    return (_shift_right(random_bits(keys, counter), 11).astype(jnp.float64) + 0.5) * UNIT


def draw_normal_pair(keys: Keys, counter: Numeric | IntScalar) -> tuple[Array, Array]:
    """Two standard normals by the method of Box and Muller, from two counters."""
    radius = jnp.sqrt(-2.0 * jnp.log(draw_uniform(keys, counter)))
    cosine, sine = cosine_and_sine(draw_uniform(keys, counter + 1))
    return radius * cosine, radius * sine


def draw_step(
    draws: StepDraws, keys: Keys, step: IntScalar, degrees: Sequence[Numeric]
) -> list[Numeric]:
    """The normals of one step, then its chi variables.

    Chi variables follow by the rejection method of Marsaglia and Tsang (2000). A warp repeats it
    until its slowest lane has accepted.

    Parameters
    ----------
    draws : StepDraws
        Numbers of normals and chi variables.
    keys : tuple
        The two keys of each run.
    step : int
        Index of the step.
    degrees : list
        Degrees of freedom of each chi variable.
    """
    # Counters of a step: two for each pair of normals, one for each first acceptance test.
    pairs, n_chi = -(-draws.normals // 2), len(degrees)
    counter = step * np.int64(2 * pairs + n_chi)
    normals: list[Any] = []
    for pair in range(pairs):
        normals += draw_normal_pair(keys, counter + np.int64(2 * pair))
    normals = normals[: draws.normals]
    if not n_chi:
        return normals
    proposals = normals[draws.proposals : draws.proposals + n_chi]
    first_tries = [
        propose_gamma(degree, normal, draw_uniform(keys, counter + np.int64(2 * pairs + k)))
        for k, (degree, normal) in enumerate(zip(degrees, proposals, strict=True))
    ]

    def retry(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Propose all chi variables again, and keep those that were accepted before."""
        attempt, values, accepted = carry
        # Retries have keys of their own (~attempt is negative, as no counter of a step is), so that
        # they use no counter twice.
        retry_keys = (keys[0], random_bits(keys, ~attempt))
        counters = [counter + np.int64(3 * k) for k in range(n_chi)]
        tries = [
            propose_gamma(
                degree,
                draw_normal_pair(retry_keys, first)[0],
                draw_uniform(retry_keys, first + np.int64(2)),
            )
            for degree, first in zip(degrees, counters, strict=True)
        ]
        values = tuple(
            jnp.where(done > 0, old, value)
            for old, done, (value, _) in zip(values, accepted, tries, strict=True)
        )
        accepted = tuple(
            jnp.where(accept, 1, done) for done, (_, accept) in zip(accepted, tries, strict=True)
        )
        return attempt + 1, values, accepted

    def is_open(carry: tuple[Any, ...]) -> Array:
        # The flags are 1 where a value is accepted, so that the sum counts the open ones.
        return jnp.asarray(sum(jnp.sum(1 - done) for done in carry[2]) > 0)

    initial = (
        np.int64(0),
        tuple(value for value, _ in first_tries),
        tuple(jnp.where(accept, 1, 0) for _, accept in first_tries),
    )
    _, values, _ = jax.lax.while_loop(is_open, retry, initial)
    return normals + [
        chi_length(degree, value, normal)
        for degree, value, normal in zip(degrees, values, proposals, strict=True)
    ]


# ---- rounding


def as_integers(values: Numeric) -> Array:
    """The 64 bits of floats as integers."""
    return jax.lax.bitcast_convert_type(values, jnp.int64)


def prevent_fusion(value: Numeric, zero: IntScalar) -> Array:
    """The value itself, rounded as if it had been stored in memory and read again.

    A compiler contracts a product and a sum behind it to one fused operation, which rounds once.
    Then numbers drawn inside of the step and numbers drawn ahead would differ in their last bits.
    The exclusive or with `zero`, a 0 that the compiler does not know, stands between the two.
    """
    return jax.lax.bitcast_convert_type(as_integers(value) ^ zero, jnp.float64)


# ---- drawing ahead


def _draws_kernel(draws: StepDraws, steps: int, *refs: Reference) -> None:
    """Draw a tile of steps of one group of runs, if any of its runs is still active."""
    degrees_ref, interval_ref, active_ref, keys_ref, drawn_ref = refs
    group, first = pl.program_id(0), pl.program_id(1) * TILE
    lanes = pl.ds(group * LANES, LANES)
    keys = keys_ref[0, lanes], keys_ref[1, lanes]
    start, end = interval_ref[0], interval_ref[1]
    last = jnp.minimum(first + TILE, (end - start).astype(jnp.int32))

    def draw(offset: IntScalar, carry: IntScalar) -> IntScalar:
        degrees = [degrees_ref[k] for k in range(draws.n_chi)]
        for k, value in enumerate(draw_step(draws, keys, start + offset, degrees)):
            row = (group * steps + offset) * draws.count + k
            drawn_ref[row, pl.ds(0, LANES)] = jnp.broadcast_to(value, (LANES,))
        return carry

    # An inactive group has an empty range of steps: its program ends at once.
    jax.lax.fori_loop(first, jnp.where(active_ref[group] > 0, last, first), draw, np.int32(0))


def read_draws(
    draws: StepDraws, steps: int, ref: Reference, group: IntScalar, offset: IntScalar
) -> list[Array]:
    """Numbers that were drawn ahead, of the runs of one group at one step.

    Parameters
    ----------
    draws : StepDraws
        Numbers of normals and chi variables of a step.
    steps : int
        Number of steps for which `draw_ahead` has room.
    ref : reference
        The array of `draw_ahead`.
    group : int
        Index of the group of runs.
    offset : int
        Index of the step after the first one drawn.
    """
    first_row = (group * steps + offset) * draws.count
    return [ref[first_row + k, pl.ds(0, LANES)] for k in range(draws.count)]


def draw_ahead(
    draws: StepDraws,
    steps: int,
    interpret: bool,
    degrees: Numeric,
    interval: Numeric,
    active: Numeric,
    keys: Numeric,
) -> Float[Array, "values lanes"]:
    """Draw the numbers of a stretch of steps of all runs.

    Parameters
    ----------
    draws : StepDraws
        Numbers of normals and chi variables of a step.
    steps : int
        Largest number of steps, a multiple of `TILE`.
    interpret : bool
        Whether to interpret the kernel instead of compiling it.
    degrees : array
        Degrees of freedom of the chi variables.
    interval : array of int
        The first step, and the step behind the last one.
    active : array of int
        Number of active runs of each group.
    keys : array of int, (2, runs)
        The keys of the runs.

    Returns
    -------
    array
        Rows in the order (group, step, number), with one column per run of the group. A warp then
        reads 32 adjacent values, one memory transaction.
    """
    groups = len(active)
    return call_kernel(
        partial(_draws_kernel, draws, steps),
        jax.ShapeDtypeStruct((groups * steps * draws.count, LANES), jnp.float64),
        (groups, steps // TILE),
        name="draws",
        interpret=interpret,
        warps=1,
        stages=1,
    )(degrees, interval, active, keys)
