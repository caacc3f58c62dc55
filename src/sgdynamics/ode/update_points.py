"""Points of the fields of a batch, over which a step not linear in the gradient is averaged.

The fields of a batch are Gaussian. In few dimensions, and where the loss has no kinks, their mean
is taken by the trapezoidal rule on a lattice, which converges faster than any power of its step
for analytic functions. In more dimensions it is taken over scrambled Sobol points. An update that
jumps has its label noise integrated piece by piece instead, by two nodes between two edges.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.expectations.nodes import gauss_legendre, sobol_normals
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import laws
from sgdynamics.samples.sample import all_normal

# Points that are evaluated together, which bounds the memory.
CHUNK = 4096
# Largest number of dimensions in which a lattice is better than Sobol points.
MOST_LATTICE = 4
# Step and radius of the lattice, by its number of dimensions.
LATTICE = {1: (0.2, 8.0), 2: (0.4, 7.0), 3: (0.6, 6.5), 4: (0.8, 6.0)}
# Sobol points: log2 of their number per replicate, and the number of replicates.
LOG2_POINTS, REPLICATES = 13, 4
# Gauss-Legendre nodes of the incomplete moments of a law of label noise.
LAW_NODES = 32
# Distance of the first node from its edge, relative to the distance of the mean from the edge.
EDGE_SHARE = 1e-4
# Normal densities beyond this argument are 0 in double precision.
FARTHEST_NORMAL = 40.0
# A smaller probability between two edges counts as 0: the ratios of its moments would overflow.
SMALLEST_MASS = 1e-280

# Nodes and weights of a one-dimensional rule; each may be an array of its own.
WeightedNodes = list[tuple[Array, Array]]


def field_points(
    structure: Structure,
    batch: int,
    reads: int,
    *,
    quiet: bool,
    fine: float = 1.0,
    jumps: bool = False,
) -> dict[str, np.ndarray]:
    """Return points of the fields of a batch and of its draws, with their weights.

    Parameters
    ----------
    structure : Structure
        Structure of the problem.
    batch : int
        Number of samples per step.
    reads : int
        Number of sets of rows at which a step takes gradients.
    quiet : bool
        Whether the draws are 0: without label noise, or if it is integrated separately.
    fine : float, default 1.0
        Refinement of the points, above 1 for finer ones.
    jumps : bool, default False
        Whether the step jumps where a function of the fields vanishes.

    Returns
    -------
    dict
        Standard normals "fields" and "noise", and "weights", all with the leading axes
        (replicates, chunks, points). The second replicate of a lattice is shifted by half a step.
    """
    sample = structure.sample
    # Each input has fields on the signals and on every set of rows that is read.
    field_count = (
        batch * sample.tokens.inputs_per_sample * (structure.signals + reads * structure.width)
    )
    draw_count = 0 if quiet else batch * sample.normals_per_sample
    dimensions = field_count + draw_count
    # The trapezoidal rule needs a smooth integrand.
    is_smooth = not (structure.kinks or jumps) and all_normal(sample)
    if dimensions <= MOST_LATTICE and is_smooth:
        points, weights = _lattice(dimensions, fine)
    else:
        log2_points = LOG2_POINTS + round(np.log2(fine))
        points = sobol_normals(dimensions, log2_points, REPLICATES, whiten=True, seed=613)
        weights = np.full(points.shape[:2], 1 / points.shape[1])
    fields, noise = points[..., :field_count], points[..., field_count:]
    if quiet:
        noise = np.zeros((*fields.shape[:2], batch * sample.normals_per_sample))
    # Padding points have weight 0.
    chunk = min(CHUNK, fields.shape[1])
    padding = -fields.shape[1] % chunk
    arrays = {"fields": fields, "noise": noise, "weights": weights}
    chunks = {}
    for name, array in arrays.items():
        padded = np.pad(array, ((0, 0), (0, padding)) + ((0, 0),) * (array.ndim - 2))
        chunks[name] = padded.reshape(len(padded), -1, chunk, *padded.shape[2:])
    return chunks


@lru_cache(maxsize=8)
def _lattice(dimensions: int, fine: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points (2, n, dimensions) and weights (2, n) of two trapezoidal rules.

    They integrate over standard normals. The first lattice contains 0, the second is shifted by
    half a step in every dimension; their difference estimates the error.
    """
    step, radius = LATTICE[dimensions]
    step /= fine
    lattices = []
    for shift in (0.0, 0.5):
        axis = (np.arange(-int(radius / step) - 1, int(radius / step) + 2) + shift) * step
        grid = np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1)
        grid = grid.reshape(-1, dimensions)
        # A ball instead of a cube: its corners have negligible weight.
        lattices.append(grid[np.sum(grid**2, axis=1) < radius**2])
    # The two lattices differ in size; missing points are 0 with weight 0.
    size = max(len(lattice) for lattice in lattices)
    points, weights = np.zeros((2, size, dimensions)), np.zeros((2, size))
    for row, lattice in enumerate(lattices):
        densities = np.exp(-0.5 * np.sum(lattice**2, axis=1))
        points[row, : len(lattice)] = lattice
        weights[row, : len(lattice)] = densities / densities.sum()
    return points, weights


def two_points(low: Scalar | Numeric, high: Scalar | Numeric) -> WeightedNodes:
    """Return two nodes and weights for a standard normal between two edges.

    This is the Gauss rule of the truncated normal, exact for polynomials of degree 3. With its
    probability m, mean mu, variance v and third central moment c, the nodes are mu + x with

        x^2 - (c/v) x - v = 0,

    (the orthogonal polynomial of degree 2), and the weights, of sum m, give x the mean 0.
    """

    def density_moment(z: Numeric, power: int) -> Array:
        """Return z^power times the normal density, which is 0 at an infinite edge."""
        is_near = jnp.abs(z) < FARTHEST_NORMAL
        z = jnp.where(is_near, z, 0.0)
        return jnp.where(is_near, z**power * jnp.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), 0.0)

    low, high = jnp.asarray(low), jnp.asarray(high)
    # The probability of an upper tail is a difference of two small numbers, not of two numbers
    # near 1, if it is computed from the mirrored edges.
    mass = jnp.where(low > 0, jax.scipy.special.ndtr(-low) - jax.scipy.special.ndtr(-high), 0.0)
    mass = jnp.where(low > 0, mass, jax.scipy.special.ndtr(high) - jax.scipy.special.ndtr(low))
    has_mass = mass > SMALLEST_MASS
    inverse = 1 / jnp.where(has_mass, mass, 1.0)
    # Moments by partial integration: the differences of z^k phi(z) at the edges.
    first, second, third = (
        density_moment(low, power) - density_moment(high, power) for power in range(3)
    )
    mean = first * inverse
    variance = jnp.maximum(1 + second * inverse - mean**2, 0.0)
    raw_third = (third + 2 * first) * inverse
    central_third = raw_third - 3 * mean * (1 + second * inverse) + 2 * mean**3
    has_mass = has_mass & (variance > 0)
    # Roots of the quadratic equation above.
    skew = jnp.where(has_mass, central_third / jnp.where(has_mass, variance, 1.0), 0.0)
    distance = jnp.sqrt(skew**2 + 4 * variance)
    upper, lower = (skew + distance) / 2, (skew - distance) / 2
    # An interval without variance has both nodes at its mean.
    share = jnp.where(distance > 0, upper / jnp.where(distance > 0, distance, 1.0), 0.5)
    return [(mean + lower, mass * share), (mean + upper, mass * (1 - share))]


def two_points_of_law(
    law: str, parameters: Parameters, low: Scalar | Numeric, high: Scalar | Numeric
) -> WeightedNodes:
    """Return two nodes and weights for label noise of a law between two edges.

    The rule is exact for polynomials of degree 2. One node lies next to the lower edge (to the
    upper one if the lower is infinite), as in a Gauss-Radau rule, so that both lie between the
    edges: with the mean mu and the variance v, a node at mu - r implies the other at mu + v/r. In a
    tail without variance only the probability is right, which suffices for a step that is constant
    there.
    """
    unit = parameters["unit"]
    # The law is symmetric: an interval that extends to -infinity is mirrored.
    is_mirrored = jnp.isinf(low)
    start = jnp.where(is_mirrored, -high, low) / unit
    stop = jnp.where(is_mirrored, jnp.inf, high) / unit
    lower, upper = (_incomplete_moments(law, parameters, edge) for edge in (start, stop))
    mass = jnp.maximum(upper[0] - lower[0], 0.0)
    inverse = 1 / jnp.where(mass > 0, mass, 1.0)
    mean, square = ((upper[power] - lower[power]) * inverse for power in (1, 2))
    # The moments of a probability near rounding are not determined.
    is_determined = (mass > 1e-9) & jnp.isfinite(square) & (mean > start) & (mean < stop)
    mean = jnp.where(is_determined, mean, start + 1.0)
    variance = jnp.where(is_determined, jnp.maximum(square - mean**2, 0.0), 0.0)
    radius = (1 - EDGE_SHARE) * (mean - start)
    node, second_moment = mean - radius, variance + radius**2
    # Weights that give the mean 0 and the variance v: v/(v + r^2) at -r, r^2/(v + r^2) at v/r.
    share = radius**2 / second_moment
    sign = jnp.where(is_mirrored, -unit, unit)
    return [
        (sign * node, mass * (1 - share)),
        (sign * (node + second_moment / radius), mass * share),
    ]


def _incomplete_moments(
    law: str, parameters: Parameters, edge: Numeric
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """Return the integrals of 1, x and x^2 times the density of a law from 0 to an edge.

    They are taken at Gauss-Legendre nodes in asinh(x), in which heavy tails are smooth.
    """
    is_finite = jnp.isfinite(edge)
    size = jnp.abs(jnp.where(is_finite, edge, 0.0))
    node, weight = gauss_legendre(LAW_NODES)
    # x = sinh(L u) with u in (0, 1) and dx = L cosh(L u) du
    length = jnp.arcsinh(size)[..., None]
    x = jnp.sinh(length * node)
    masses = length * weight * jnp.cosh(length * node) * laws.density(law, parameters, x)
    mass, first, second = (jnp.sum(masses * x**power, axis=-1) for power in range(3))
    half_first, half_second = laws.half_moments(law, parameters)
    # The density is even: the integrals of 1 and x^2 change sign with the edge.
    sign = jnp.sign(edge)
    return (
        sign * jnp.where(is_finite, mass, 0.5),
        jnp.where(is_finite, first, half_first),
        sign * jnp.where(is_finite, second, half_second),
    )
