"""Leap complexity of a target of several directions, by quadrature on a tensor grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import linalg

from sgdynamics.analysis.exponents import TOLERANCE
from sgdynamics.analysis.hermite_series import ERROR_MARGIN, MAX_UNCERTAINTY
from sgdynamics.analysis.links import (
    CORE_RADIUS,
    NODE_COUNTS,
    evaluate_at,
    panel_nodes,
    validate_breaks,
)
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.expectations.mehler import hermite_functions
from sgdynamics.expectations.nodes import gauss_hermite

MAX_GRID_POINTS = 2**21
MAX_NODES_PER_AXIS = 64
# Least numbers of nodes per axis, and per piece between two kinks.
MIN_NODES_PER_AXIS, MIN_NODES_PER_PIECE = 8, 4
# Highest degree in each new variable.
MAX_DEGREE = 12


def piecewise_gauss(kinks: tuple[float, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a Gauss rule with `count` nodes between any two kinks.

    The rule is exact for polynomials of degree 2 count - 1 on each piece. The nodes are the
    eigenvalues of the Jacobi matrix of the truncated normal distribution (Golub and Welsch), which
    the Lanczos recurrence makes from a fine discretisation.
    """
    if not kinks:
        return gauss_hermite(count)
    x, dx, _ = (array.ravel() for array in panel_nodes(kinks, NODE_COUNTS[1], 0))
    mass = dx * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    nodes, weights = [], []
    for low, high in itertools.pairwise((-math.inf, *kinks, math.inf)):
        inside = (x > low) & (x < high) & (mass > 0)
        basis = np.zeros((count, int(inside.sum())))
        basis[0] = np.sqrt(mass[inside] / mass[inside].sum())
        for k in range(1, count):
            image = x[inside] * basis[k - 1]
            for _ in range(2):  # orthogonalising twice removes rounding errors
                image = image - (basis[:k] @ image) @ basis[:k]
            basis[k] = image / np.linalg.norm(image)
        eigenvalues, vectors = linalg.eigh((basis * x[inside]) @ basis.T)
        nodes.append(eigenvalues)
        weights.append(vectors[0] ** 2 * mass[inside].sum())
    return np.concatenate(nodes), np.concatenate(weights)


class TargetGrid:
    """A target of several variables on a tensor grid, centred.

    Attributes
    ----------
    x, weights : ndarray
        Nodes and weights of each axis.
    values : ndarray
        The target minus its mean, one axis per variable.
    deviation, norm : float
        Norms of the target with and without its mean subtracted.
    rounding : float
        Relative rounding error of the values.
    """

    def __init__(
        self, g: Callable[[Any], Any], variables: int, kinks: tuple[float, ...], count: int
    ) -> None:
        self.x, self.weights = piecewise_gauss(kinks, count)
        grid = np.stack(np.meshgrid(*[self.x] * variables, indexing="ij")).reshape(variables, -1)
        values, self.rounding = evaluate_at("g", g, grid)
        if not np.all(np.isfinite(values)):
            point = grid[:, int(np.argmin(np.isfinite(values)))]
            fix = (
                f"it is not finite at z = {np.round(point, 4).tolist()}. Use a function that is "
                "finite everywhere."
            )
            raise checks.reject("g", g, fix)
        values = values.reshape((len(self.x),) * variables)
        mean = self._contract(values, [self.weights[None]] * variables).item()
        self.values = values - mean
        self._roots = np.diag(np.sqrt(self.weights))
        weighted = self._contract(self.values, [self._roots] * variables)
        self.deviation = float(np.linalg.norm(weighted))
        self.norm = math.hypot(mean, self.deviation)

    @staticmethod
    def _contract(values: np.ndarray, matrices: Sequence[np.ndarray]) -> np.ndarray:
        """Apply a matrix to each axis."""
        # Each product takes the first axis and appends its result as the last one, so that the
        # axes are in their original order at the end.
        for matrix in matrices:
            values = np.tensordot(values, matrix, axes=(0, 1))
        return values

    def conditional_norms(self, learned: set[int], degree: int) -> tuple[np.ndarray, float]:
        """Norms of E[g h_beta(new variables) | learned variables], and of g - E[g | learned].

        The array has one axis per variable: the degree beta_i of a new variable, up to `degree`,
        and length 1 for a learned one. Both are in units of the deviation of g.
        """
        basis = hermite_functions(self.x, 1.0, degree) * self.weights
        axes = range(self.values.ndim)
        coefficients = self._contract(
            self.values, [self._roots if axis in learned else basis for axis in axes]
        )
        norms = np.sqrt(np.sum(coefficients**2, axis=tuple(learned), keepdims=True))
        identity, mean = np.eye(len(self.x)), self.weights[None]
        explained = self._contract(
            self.values, [identity if axis in learned else mean for axis in axes]
        )
        residual = self._contract(self.values - explained, [self._roots for _ in axes])
        return norms / self.deviation, float(np.linalg.norm(residual)) / self.deviation


@float64
def leap_complexity(
    g: Callable[[Any], Any],
    variables: int,
    *,
    kinks: Sequence[float] = (),
    tolerance: float = TOLERANCE,
) -> int:
    """The leap of a target of several directions: the most new degrees to be learned at once.

    ::

        g(z) = sum_alpha c_alpha prod_i h_{alpha_i}(z_i)
        leap = min over orders of the alpha with c_alpha != 0 of
               max over alpha of the sum of alpha_i over those i that no earlier alpha contains

    Parameters
    ----------
    g : callable
        A function of the vector z ~ N(0, I) of ``variables`` coordinates, square-integrable.
    variables : int
        Number of coordinates.
    kinks : sequence of float, default ()
        Points at which g or a derivative of it jumps along any axis.
    tolerance : float, default 1e-07
        Relative threshold below which a coefficient counts as zero.

    Returns
    -------
    int
        The leap; for one variable this is the information exponent.

    Raises
    ------
    ValueError
        If g is not such a function, constant, or not square-integrable.

    Notes
    -----
    The greedy order is optimal. Once the variables V are learned, a step of new degrees beta exists
    if and only if ``E[g h_beta | z_V] != 0``. This expectation is computed as a function of z_V, so
    that degrees in learned variables are not limited.

    The leap depends on the basis: z1 + z2 + z1 z2 has leap 1, but leap 2 in the basis
    (z1 +- z2)/sqrt(2). SGD with isotropic inputs does not depend on the basis; it is bounded by the
    largest leap over all rotations.

    Source: Abbe, Boix-Adsera and Misiakiewicz, "SGD learning on neural networks: leap complexity
    and saddle-to-saddle dynamics" (2023), Definition 1.

    Examples
    --------
    >>> sgd.leap_complexity(lambda z: z[0] + z[0] * z[1], 2)
    1
    >>> sgd.leap_complexity(lambda z: z[0] * z[1], 2)
    2
    """
    count = checks.integer("variables", variables, 1)
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    # Beyond the core radius lies 1e-15 of the mass.
    breaks = tuple(kink for kink in validate_breaks(kinks) if abs(kink) < CORE_RADIUS)
    if not callable(g):
        fix = "give a function from a vector of coordinates to a number"
        raise checks.reject("g", g, fix)
    nodes = _nodes_per_piece(count, len(breaks) + 1)
    with np.errstate(all="ignore"):
        coarse, fine = (TargetGrid(g, count, breaks, size) for size in (nodes - 1, nodes))
    rounding = 4 * fine.rounding * fine.norm
    if not fine.deviation > ERROR_MARGIN * rounding:
        fix = f"it is constant (deviation {fine.deviation:.2g}), so there is nothing to learn"
        raise checks.reject("g", g, fix)
    degree = min(len(coarse.x) - 1, MAX_DEGREE)
    learned: set[int] = set()
    leap = 0
    while len(learned) < count:
        coarse_norms, _ = coarse.conditional_norms(learned, degree)
        norms, residual = fine.conditional_norms(learned, degree)
        if residual <= tolerance:
            break
        limits = ERROR_MARGIN * (np.abs(norms - coarse_norms) + rounding / fine.deviation)
        total_degree = np.sum(np.indices(norms.shape), axis=0)
        is_new = total_degree > 0
        is_nonzero = (norms > np.maximum(tolerance, limits)) & is_new
        # Of total degrees above `degree` + 1 the table has only some, so that none counts.
        least = int(total_degree[is_nonzero].min(initial=degree + 2))
        is_uncertain = ~is_nonzero & (limits > MAX_UNCERTAINTY) & is_new & (total_degree < least)
        if least > leap and is_uncertain.any():
            worst = np.argmax(np.where(is_uncertain, limits, 0.0))
            raise _uncertain_leap(g, norms, limits / ERROR_MARGIN, int(worst))
        if least > degree + 1:
            names = ", ".join(f"z{axis + 1}" for axis in range(count) if axis not in learned)
            fix = (
                f"its leap cannot be determined: it depends on {names} (by {residual:.2g} of its "
                f"standard deviation), but only in new degrees above {degree + 1}. Increase "
                "tolerance to neglect this dependence, or use a function of lower degree."
            )
            raise checks.reject("g", g, fix)
        leap = max(leap, least)
        for beta in np.argwhere(is_nonzero & (total_degree == least)):
            learned |= {axis for axis in range(count) if beta[axis]}
    return leap


def _nodes_per_piece(variables: int, pieces: int) -> int:
    """Nodes of each axis between two kinks; ValueError if a grid of that many axes is too large."""
    per_axis = min(MAX_NODES_PER_AXIS, int(MAX_GRID_POINTS ** (1 / variables) + 1e-9))
    nodes = per_axis // pieces
    if nodes * pieces >= MIN_NODES_PER_AXIS and nodes >= MIN_NODES_PER_PIECE:
        return nodes
    least = max(MIN_NODES_PER_AXIS, MIN_NODES_PER_PIECE * pieces)
    limit = int(math.log(MAX_GRID_POINTS) / math.log(least) + 1e-9)
    between_kinks, fewer_kinks = "", ""
    if pieces > 1:
        between_kinks, fewer_kinks = " between two kinks", ", or fewer kinks"
    fix = (
        f"this is beyond the reach of the quadrature: {MAX_GRID_POINTS} grid points leave {nodes} "
        f"nodes per axis{between_kinks}. Use at most {limit} variables{fewer_kinks}."
    )
    raise checks.reject("variables", variables, fix)


def _uncertain_leap(
    g: Callable[[Any], Any], norms: np.ndarray, errors: np.ndarray, worst: int
) -> ValueError:
    """The error for a coefficient, at a flat index, that may be zero or not."""
    degrees = np.unravel_index(worst, norms.shape)
    fix = (
        f"its leap cannot be determined: the component of degrees {tuple(map(int, degrees))} is "
        f"{norms[degrees]:.2g} with an error of {errors[degrees]:.2g}, in units of the standard "
        "deviation of g. Declare in kinks= the points at which g jumps along an axis."
    )
    return checks.reject("g", g, fix)
