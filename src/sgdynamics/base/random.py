"""Random numbers: a fast generator of normals and uniforms, chi variables and Wishart factors.

Each run has its own key, so that its numbers do not depend on the number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num

from sgdynamics.base.arrays import IntScalar, Numeric, RandomKey, RandomKeys
from sgdynamics.base.code_generator import older_generator
from sgdynamics.base.precision import float64


@float64
def run_keys(seed: int, run_indices: np.ndarray) -> RandomKeys:
    """One key per run, which depends on the seed and the index of the run only."""
    return _compiled_keys()(np.int64(seed), run_indices)


@cache
def _compiled_keys() -> Callable[..., RandomKeys]:
    # A few integers per run, computed once: the time of the compiler dominates.
    return jax.jit(_run_keys, compiler_options=older_generator())


def _run_keys(seed: IntScalar, run_indices: Int[Numeric, " runs"]) -> RandomKeys:
    root = jax.random.key(seed)
    return jax.vmap(lambda run: jax.random.fold_in(root, run))(run_indices)


def step_key(key: RandomKey, step: IntScalar) -> RandomKey:
    """The key of a step, by two folds: step counters have 64 bits, and fold_in takes 32."""
    return jax.random.fold_in(jax.random.fold_in(key, step >> 32), step & 0xFFFFFFFF)


def bartlett_factor(
    lower: Float[Numeric, "... lower"],
    chi: Float[Numeric, "... columns"],
    degrees: Float[Numeric, "blocks columns"],
    columns: int,
) -> Float[Numeric, "... columns columns"]:
    """The lower-triangular factor A of a Wishart matrix A A^T, by Bartlett's decomposition.

    The diagonal of A holds chi variables with falling degrees of freedom `degrees`, its lower
    triangle standard normals. Columns without degrees of freedom, beyond the dimension of the
    space, are zero.
    """
    rows, cols = np.tril_indices(columns, -1)
    inside = jnp.where(degrees[:, cols] > 0, lower, 0.0)
    # Each entry of A is one of the values (0, chi, lower): gather them by a static index.
    index = np.zeros((columns, columns), dtype=np.int32)
    index[np.arange(columns), np.arange(columns)] = 1 + np.arange(columns)
    index[rows, cols] = 1 + columns + np.arange(len(rows))
    return jnp.concatenate([jnp.zeros_like(chi[..., :1]), chi, inside], axis=-1)[..., index]


# Constants of SplitMix64 (Steele, Lea and Flood 2014): the increment and the two multipliers.
GOLDEN, MULTIPLIERS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def normals_and_uniforms(key: RandomKey, normals: int, uniforms: int) -> tuple[Any, Any]:
    """Standard normals (by Box and Muller) and uniforms in (0, 1] from one key.

    The bits are those of SplitMix64: a counter with a random offset, mixed. Threefry, which makes
    the keys, would take seven times as long, and together with erf_inv half the time of a step.
    """
    pairs = -(-normals // 2)
    count = 2 * pairs + uniforms
    u = uniforms_at(
        jax.random.bits(key, (), dtype=jnp.uint64), jnp.arange(1, count + 1, dtype=jnp.uint64)
    )
    radius = jnp.sqrt(-2.0 * jnp.log(u[:pairs]))
    cosine, sine = cosine_and_sine(u[pairs : 2 * pairs])
    both = jnp.concatenate([radius * cosine, radius * sine])
    # Without the barrier XLA fuses the generator into its consumers, and computes the numbers again
    # on one core.
    return jax.lax.optimization_barrier((both[:normals], u[2 * pairs :]))


def uniforms_at(offset: Numeric, count: Numeric) -> Float[Numeric, "*s"]:
    """Uniforms in (0, 1] at counts (uint64) from a random offset (uint64).

    Each number depends only on its own count. They are never 0; 1 occurs with probability 2^-53,
    where the sum below is rounded.
    """
    z = offset + count * np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return (((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53


def normals_at(offset: Numeric, count: Numeric) -> Float[Numeric, "*s 2"]:
    """Two standard normals, in a last axis, for each even count.

    They follow by the method of Box and Muller from the uniforms at this count and the next.
    """
    radius = jnp.sqrt(-2.0 * jnp.log(uniforms_at(offset, count)))
    cosine, sine = cosine_and_sine(uniforms_at(offset, count + np.uint64(1)))
    return jnp.stack([radius * cosine, radius * sine], axis=-1)


# Taylor coefficients of sin(pi v)/v and cos(pi v) in v^2.
SINE = tuple((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11))
COSINE = tuple((-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(12))


def cosine_and_sine(u: Float[Numeric, "*s"]) -> tuple[Any, Any]:
    """cos(2 pi u) and sin(2 pi u) for u in (0, 1), to 1e-15.

    Series of half the angle are twice as fast as XLA's two functions.
    """
    v = u - 0.5
    w = v * v
    s, c = jnp.full_like(w, SINE[-1]), jnp.full_like(w, COSINE[-1])
    for term in SINE[-2::-1]:
        s = s * w + term
    for term in COSINE[-2::-1]:
        c = c * w + term
    s = s * v
    return 2 * s * s - 1, -2 * s * c


def propose_gamma(
    degrees: Num[Numeric, "..."], x: Float[Numeric, "*s"], u: Float[Numeric, "*s"]
) -> tuple[Any, Any]:
    """Propose a gamma variable chi^2/2 from a normal x, and accept it by a uniform u.

    Marsaglia and Tsang (2000): d v with v = (1 + c x)^3, d = degrees/2 - 1/3, c = 1/sqrt(9 d).
    """
    d = jnp.maximum(degrees, 2.0) / 2 - 1 / 3
    c = 1 / jnp.sqrt(9 * d)
    v = (1 + c * x) ** 3
    positive = v > 0
    bound = 0.5 * x**2 + d - d * v + d * jnp.log(jnp.where(positive, v, 1.0))
    return d * v, positive & (jnp.log(u) < bound)


def chi_length(
    degrees: Num[Numeric, "..."], value: Float[Numeric, "*s"], proposal: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """The chi variable of an accepted value: |normal| with one degree of freedom, 0 with none."""
    return jnp.where(
        degrees > 1, jnp.sqrt(2 * value), jnp.where(degrees == 1, jnp.abs(proposal), 0.0)
    )


def draw_chi(
    key: RandomKey,
    degrees: Num[Numeric, "..."],
    proposal: Float[Numeric, "*s"],
    uniform: Float[Numeric, "*s"],
) -> Float[Numeric, "*s"]:
    """Draw chi variables with integer degrees of freedom `degrees`, by rejection.

    The method is that of Marsaglia and Tsang. With one degree of freedom the variable is |normal|,
    with none it is 0.

    jax.random.chisquare has the same law, but runs element by element on a CPU and would cost more
    than all else in a step. The first proposals are drawn together with the other normals of a
    step. Rejected ones (one in 10^4 at large d) are drawn again in a loop.
    """

    def redraw(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, value, good = carry
        # Draw flat arrays: with the shape of `good`, XLA takes six seconds to compile this loop.
        normal, u = normals_and_uniforms(jax.random.fold_in(key, count), good.size, good.size)
        new, accepted = propose_gamma(degrees, normal.reshape(good.shape), u.reshape(good.shape))
        return count + 1, jnp.where(good, value, new), good | accepted

    value, good = propose_gamma(degrees, proposal, uniform)
    _, value, _ = jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), redraw, (1, value, good))
    return chi_length(degrees, value, proposal)
