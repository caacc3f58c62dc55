"""Points of the fields of a batch.

Where steps of an update that is not linear in the gradient are taken, to be averaged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, sobol_normals
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import laws
from sgdynamics.samples.sample import all_normal

CHUNK = 4096  # points that go together
MOST_LATTICE = 4  # dimensions in which a lattice is better than Sobol points
LATTICE = {
    1: (0.2, 8.0),
    2: (0.4, 7.0),
    3: (0.6, 6.5),
    4: (0.8, 6.0),
}  # its step and radius, a replicate
LOG2_POINTS, REPLICATES = 13, 4  # of Sobol points
LAW_NODES = 32  # of the incomplete moments of a law of label noise
EDGE_SHARE = 1e-4  # distance of the first node from its edge, as a share of that of the mean


def field_points(
    structure: Structure, batch: int, reads: int, *, quiet: bool, fine: float = 1.0
) -> dict[str, np.ndarray]:
    """Points of the fields of a batch and of its draws, (replicates, chunks, points, ...), and their weights.

    `reads`: how many sets of rows gradients are taken at. `quiet`: the label noise is 0, or summed
    by hand. Few dimensions have a lattice, whose second replicate is shifted by half a step, more
    have Sobol points; `fine` > 1 makes both finer.
    """
    sample = structure.sample
    of_fields = (
        batch * sample.tokens.inputs_per_sample * (structure.signals + reads * structure.width)
    )
    of_draws = 0 if quiet else batch * sample.normals_per_sample
    if of_fields + of_draws <= MOST_LATTICE and not structure.kinks and all_normal(sample):
        points, weights = _lattice(of_fields + of_draws, fine)
    else:
        log2 = LOG2_POINTS + round(np.log2(fine))
        points = sobol_normals(of_fields + of_draws, log2, REPLICATES, whiten=True, seed=613)
        weights = np.full(points.shape[:2], 1 / points.shape[1])
    fields, noise = points[..., :of_fields], points[..., of_fields:]
    if quiet:
        noise = np.zeros((*fields.shape[:2], batch * sample.normals_per_sample))
    size = min(CHUNK, fields.shape[1])
    fill = -fields.shape[1] % size
    padded = [
        np.pad(one, ((0, 0), (0, fill)) + ((0, 0),) * (one.ndim - 2))
        for one in (fields, noise, weights)
    ]
    parts = [one.reshape(len(one), -1, size, *one.shape[2:]) for one in padded]
    return dict(zip(("fields", "noise", "weights"), parts, strict=True))


@lru_cache(maxsize=8)
def _lattice(dimensions: int, fine: float) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoidal rule for standard normals, twice.

    From 0, and shifted by half a step. Both (2, n, dimensions), (2, n).
    """
    step, radius = LATTICE[dimensions]
    step /= fine
    every = []
    for shift in (0.0, 0.5):
        axis = (np.arange(-int(radius / step) - 1, int(radius / step) + 2) + shift) * step
        grid = np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(
            -1, dimensions
        )
        every.append(grid[np.sum(grid**2, axis=1) < radius**2])
    n = max(len(one) for one in every)
    weights = [np.exp(-0.5 * np.sum(one**2, axis=1)) for one in every]
    points = np.stack([np.pad(one, ((0, n - len(one)), (0, 0))) for one in every])
    return points, np.stack([np.pad(one / one.sum(), (0, n - len(one))) for one in weights])


def two_points(low: Scalar | Numeric, high: Scalar | Numeric) -> list[tuple[Any, Any]]:
    """Nodes and weights for a standard normal between two edges, exact for polynomials of degree 3 and less."""

    def density(z: Numeric, power: int) -> Any:
        finite = jnp.abs(z) < 40.0
        z = jnp.where(finite, z, 0.0)
        return jnp.where(finite, z**power * jnp.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), 0.0)

    low, high = jnp.asarray(low), jnp.asarray(high)
    # from the side where it is small, so that a tail is a small number and not 1 less another
    mass = jnp.where(low > 0, jax.scipy.special.ndtr(-low) - jax.scipy.special.ndtr(-high), 0.0)
    mass = jnp.where(low > 0, mass, jax.scipy.special.ndtr(high) - jax.scipy.special.ndtr(low))
    some = mass > 1e-280
    first, second, third = (density(low, power) - density(high, power) for power in range(3))
    over = 1 / jnp.where(some, mass, 1.0)
    mean = first * over
    spread = jnp.maximum(1 + second * over - mean**2, 0.0)
    cubed = (third + 2 * first) * over - 3 * mean * (1 + second * over) + 2 * mean**3
    some = some & (spread > 0)
    tilt = jnp.where(some, cubed / jnp.where(some, spread, 1.0), 0.0)
    root = jnp.sqrt(tilt**2 + 4 * spread)
    up, down = (tilt + root) / 2, (tilt - root) / 2
    share = jnp.where(root > 0, up / jnp.where(root > 0, root, 1.0), 0.5)
    return [(mean + down, mass * share), (mean + up, mass * (1 - share))]


def two_points_of_law(
    law: str, parameters: Parameters, low: Scalar | Numeric, high: Scalar | Numeric
) -> list[tuple[Any, Any]]:
    """Nodes and weights for label noise of a law between two edges, exact for polynomials of degree 2.

    One node lies next to the lower edge (to the upper one where the lower is infinite), as in a
    Gauss-Radau rule, so that both lie between the edges. In a tail without variance only the mass
    is right, which suffices for a step that is constant there.
    """
    unit = parameters["unit"]
    mirrored = jnp.isinf(low)
    start, stop = (
        jnp.where(mirrored, -high, low) / unit,
        jnp.where(mirrored, jnp.inf, high) / unit,
    )
    lower, upper = (_incomplete_moments(law, parameters, edge) for edge in (start, stop))
    mass = jnp.maximum(upper[0] - lower[0], 0.0)
    over = 1 / jnp.where(mass > 0, mass, 1.0)
    mean, square = ((upper[power] - lower[power]) * over for power in (1, 2))
    # a mass near rounding has no mean
    determined = (mass > 1e-9) & jnp.isfinite(square) & (mean > start) & (mean < stop)
    mean = jnp.where(determined, mean, start + 1.0)
    spread = jnp.where(determined, jnp.maximum(square - mean**2, 0.0), 0.0)
    distance = (1 - EDGE_SHARE) * (mean - start)
    first, further = mean - distance, spread + distance**2
    share = distance**2 / further
    sign = jnp.where(mirrored, -unit, unit)
    return [(sign * first, mass * (1 - share)), (sign * (first + further / distance), mass * share)]


def _incomplete_moments(law: str, parameters: Parameters, edge: Numeric) -> tuple[Any, Any, Any]:
    """The integrals of 1, x and x^2 from 0 to an edge, by Gauss-Legendre nodes in asinh(x)."""
    finite = jnp.isfinite(edge)
    size = jnp.abs(jnp.where(finite, edge, 0.0))
    node, weight = gauss_legendre(LAW_NODES)
    length = jnp.arcsinh(size)[..., None]
    x = jnp.sinh(length * node)
    shares = length * weight * jnp.cosh(length * node) * laws.density(law, parameters, x)
    mass, first, second = (jnp.sum(shares * x**power, axis=-1) for power in range(3))
    all_first, all_second = laws.half_moments(law, parameters)
    sign = jnp.sign(edge)
    masses = sign * jnp.where(finite, mass, 0.5)
    return masses, jnp.where(finite, first, all_first), sign * jnp.where(finite, second, all_second)
