"""Two passes over random draws: gradients of the loss, then derivatives of the statistics.

The first pass gives the mean gradient. The second one differentiates the statistics u along each
gradient minus that mean, h: one nested directional derivative gives J h and h^T (hess u_i) h for
all statistics. The covariance of the gradient, a matrix of all parameters, is never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from sgdynamics.analysis.effective.task import (
    GENERATOR,
    GROUPS,
    Functions,
    Setup,
    count_entries,
)
from sgdynamics.base.arrays import Numeric, PyTree, RandomKey, RandomKeys
from sgdynamics.base.progress import Meter

# Entries of a draw below which draws are vectorised.
SMALL_DRAW = 64


class Gradients(NamedTuple):
    """The result of the first pass over the units, which are draws or antithetic pairs.

    Attributes
    ----------
    group_sums : ndarray
        Sums of the gradients of consecutive groups of units, (GROUPS, parameters).
    controls : ndarray
        Controls of the units, (samples, q).
    chunks : list
        The gradients of each chunk, or None where they do not fit in memory.
    """

    group_sums: np.ndarray
    controls: np.ndarray
    chunks: list[Array | None]


class Derivatives(NamedTuple):
    """The result of the second pass.

    Attributes
    ----------
    first, second : ndarray
        J h and h^T (hess u) h of the draws of each unit, (samples, draws, statistics).
    unit_first, unit_second : ndarray
        The same along the mean gradient of each unit, (samples, statistics).
    statistics : ndarray
        Values u of the statistics, (statistics,).
    mean : ndarray
        J applied to the mean gradient, (statistics,).
    """

    first: np.ndarray
    second: np.ndarray
    unit_first: np.ndarray
    unit_second: np.ndarray
    statistics: np.ndarray
    mean: np.ndarray


def random_keys(entropy: Sequence[int], first: int, count: int) -> np.ndarray:
    """Keys of the units first, first + 1, ...

    Distinct keys of a counter-based generator are independent streams. `jax.random.fold_in` would
    be compiled again with each sampler, which takes half of its compile time.
    """
    offset = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        keys = offset + np.arange(first, first + count, dtype=np.uint64)
    return keys.view(np.uint32).reshape(count, 2)


@partial(jax.jit, static_argnums=(0, 1))
def draw_samples(functions: Functions, dimension: int, keys: RandomKeys) -> PyTree:
    """A chunk of draws.

    It is a separate program: random numbers take longest to compile, and several losses of the
    same data share it.
    """
    (sample,) = functions

    def draw(key: RandomKey) -> PyTree:
        return sample(jax.random.wrap_key_data(key, impl=GENERATOR), dimension)

    # Random arrays under vmap take twice as long to compile. They are faster only if draws are so
    # small that the overhead of the loop dominates.
    is_small = count_entries(jax.eval_shape(draw, keys[0])) < SMALL_DRAW
    return jax.vmap(draw)(keys) if is_small else jax.lax.map(draw, keys)


@partial(jax.jit, static_argnums=0)
def unit_gradients(functions: Functions, point: PyTree, data: PyTree) -> tuple[Array, Array]:
    """Gradients of a chunk of units, (units, draws, parameters), and their controls.

    The mean of an antithetic pair follows its two draws.
    """
    loss, antithetic, controls = functions

    def gradient(y: PyTree) -> Float[Array, " parameters"]:
        return ravel_pytree(jax.grad(lambda x: jnp.asarray(loss(x, y), dtype=float))(point))[0]

    def evaluate_unit(y: PyTree) -> tuple[Array, Array]:
        draws = jax.tree.map(lambda leaf: leaf[None], y)
        if antithetic is not None:
            draws = jax.tree.map(lambda *leaves: jnp.stack(leaves), y, antithetic(y))
        gradients = jax.vmap(gradient)(draws)
        if antithetic is not None:
            gradients = jnp.concatenate([gradients, gradients.mean(axis=0, keepdims=True)])
        if controls is None:
            return gradients, jnp.zeros(0)
        return gradients, jax.vmap(controls)(draws).astype(float).mean(axis=0)

    return jax.vmap(evaluate_unit)(data)


@partial(jax.jit, static_argnums=0)
def directional_derivatives(
    functions: Functions,
    point: PyTree,
    centre: Float[Numeric, " parameters"],
    gradients: Float[Numeric, "..."],
) -> tuple[Array, Array, Array, Array]:
    """J h and h^T (hess u) h for all gradients of a chunk, with h = gradient - centre.

    Also returns u and J applied to the centre.
    """
    (statistics,) = functions
    flat, unravel = ravel_pytree(point)

    def u(z: Float[Array, " parameters"]) -> Float[Array, " statistics"]:
        return jnp.asarray(statistics(unravel(z)), dtype=float)

    def slope(
        z: Float[Array, " parameters"], direction: Float[Numeric, " parameters"]
    ) -> Float[Array, " statistics"]:
        return jax.jvp(u, (z,), (direction,))[1]

    def first_and_second(direction: Float[Numeric, " parameters"]) -> tuple[Array, Array]:
        return jax.jvp(lambda z: slope(z, direction), (flat,), (direction,))

    directions = (gradients - centre).reshape(-1, flat.size)
    first, second = jax.vmap(first_and_second)(directions)
    shape = (*gradients.shape[:2], -1)
    return first.reshape(shape), second.reshape(shape), u(flat), slope(flat, centre)


def _chunk_gradients(setup: Setup, first: int) -> tuple[Array, Array]:
    """Gradients and controls of the chunk that starts at unit `first`."""
    keys = random_keys(setup.entropy, first, setup.chunk)
    data = draw_samples(setup.task.sample, setup.dimension, keys)
    return unit_gradients(setup.task.data, setup.point, data)


def compute_gradients(setup: Setup, meter: Meter) -> Gradients:
    """The first pass over the draws."""
    group_sums = np.zeros((GROUPS, setup.parameters))
    all_controls, chunks = [], []
    for first in range(0, setup.samples, setup.chunk):
        gradients, controls = _chunk_gradients(setup, first)
        # The last chunk has units beyond the last sample, which do not count.
        units = np.asarray(gradients)[: setup.samples - first, -1]
        n_broken = np.sum(~np.isfinite(units).all(axis=1))
        if n_broken:
            raise ValueError(
                f"point: the gradient of loss is not finite for {n_broken} of the draws {first} to "
                f"{first + len(units) - 1}. Give a point and a loss with finite gradients (sqrt "
                "and log have none at 0)."
            )
        group = (first + np.arange(len(units))) * GROUPS // setup.samples
        group_sums += (group == np.arange(GROUPS)[:, None]).astype(float) @ units
        all_controls.append(np.asarray(controls)[: len(units)])
        chunks.append(gradients if setup.stores_gradients else None)
        meter.advance(setup.chunk)
    return Gradients(group_sums, np.concatenate(all_controls), chunks)


def compute_derivatives(
    setup: Setup, centre: np.ndarray, chunks: list[Array | None], meter: Meter
) -> Derivatives:
    """The second pass over the draws, with gradients relative to `centre`."""
    all_first, all_second = [], []
    statistics = mean = np.zeros(0)
    for first_unit, gradients in zip(range(0, setup.samples, setup.chunk), chunks, strict=True):
        if gradients is None:
            gradients, _ = _chunk_gradients(setup, first_unit)
        arrays = directional_derivatives(setup.task.statistics, setup.point, centre, gradients)
        first, second, statistics, mean = map(np.asarray, arrays)
        all_first.append(first[: setup.samples - first_unit])
        all_second.append(second[: setup.samples - first_unit])
        meter.advance(setup.chunk)
    first, second = np.concatenate(all_first), np.concatenate(all_second)
    is_finite = (
        np.isfinite(statistics)
        & np.isfinite(first).all(axis=(0, 1))
        & np.isfinite(second).all(axis=(0, 1))
    )
    if not np.all(is_finite):
        names = ", ".join(np.array(setup.names)[~is_finite])
        raise ValueError(
            f"statistics: {names} or its first two derivatives are not finite at point. Give "
            "statistics that are smooth there."
        )
    draws = setup.task.draws_per_unit
    return Derivatives(
        first=first[:, :draws],
        second=second[:, :draws],
        unit_first=first[:, -1],
        unit_second=second[:, -1],
        statistics=statistics,
        mean=mean,
    )
