"""Hermite coefficients of a link, with error estimates.

With x standard normal and h_k = He_k/sqrt(k!) the orthonormal Hermite polynomials, a link f has the
coefficients c_k = E[f(x) h_k(x)].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sgdynamics.analysis.links import (
    NODE_COUNTS,
    Link,
    LinkFunction,
    LinkSample,
    make_link,
    sample_link,
)
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.expectations.mehler import hermite_functions

# Two resolutions agree if they differ by less than this share of the deviation of f ...
AGREEMENT = 1e-12
# ... and panels are halved at most this often until they do.
MAX_HALVINGS = 4
# Hermite functions of higher order extend beyond the range of the quadrature.
MAX_ORDER = 300
# A coefficient below this many times its error counts as zero.
ERROR_MARGIN = 20.0
# A coefficient whose error, times the margin, is larger than this share cannot be called zero.
MAX_UNCERTAINTY = 1e-5
# A coefficient above this share of the deviation is no artefact of any quadrature.
CLEARLY_NONZERO = 0.1
# Relative difference of the deviation at two resolutions, above which E[f^2] does not converge.
MAX_DEVIATION_CHANGE = 0.02


@dataclass(frozen=True)
class HermiteSeries:
    """Coefficients in the orthonormal Hermite basis, with their estimated errors.

    Attributes
    ----------
    coefficients : ndarray
        Coefficients c_0 ... c_n.
    errors : ndarray
        Estimated error of each coefficient.
    norm : float
        Norm sqrt(E[f^2]).
    deviation : float
        Standard deviation sqrt(E[(f - E f)^2]).
    """

    coefficients: np.ndarray
    errors: np.ndarray
    norm: float
    deviation: float


def project(
    sample: LinkSample, functions: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hermite coefficients (functions, order + 1), norms, and deviations of functions on the nodes.

    The mean is subtracted before the projection, which would otherwise lose digits of f - E f.
    """
    x, dx, root = sample.x.ravel(), sample.dx.ravel(), sample.root.ravel()
    amplitude = functions.reshape(len(functions), -1) * root
    mean = amplitude @ (root * dx)
    centred = amplitude - mean[:, None] * root
    coefficients = (centred * dx) @ hermite_functions(x, root, order).T
    coefficients[:, 0] = mean
    deviation = np.sqrt(centred**2 @ dx)
    return coefficients, np.hypot(mean, deviation), deviation


def _as_single_row(values: np.ndarray) -> np.ndarray:
    return values[None]


def resolve_series(
    link: Link,
    order: int,
    tolerance: float | None = None,
    transform: Callable[[np.ndarray], np.ndarray] = _as_single_row,
) -> tuple[list[HermiteSeries], int]:
    """The series of each row of `transform(values)`, and the number of halvings of the panels.

    Panels are halved until two resolutions agree; with a tolerance, at most until the first
    non-zero coefficient is certain.
    """
    previous = None
    for halvings in range(MAX_HALVINGS + 1):
        coarse_sample, sample = (sample_link(link, count, halvings) for count in NODE_COUNTS)
        coarse, _, coarse_deviations = project(
            coarse_sample, transform(coarse_sample.values), order
        )
        fine, norms, deviations = project(sample, transform(sample.values), order)
        gap, rounding = np.abs(fine - coarse), sample.rounding
        if previous is not None and halvings == MAX_HALVINGS:
            # Unresolved: two grids may agree by accident, so a third one is compared too.
            gap = np.maximum(gap, np.abs(fine - previous))
        previous = fine
        errors = gap + (math.sqrt(sample.tail) + rounding) * norms[:, None]
        rows = zip(fine, errors, norms.tolist(), deviations.tolist(), strict=True)
        series = [HermiteSeries(*row) for row in rows]
        agreement = np.maximum(AGREEMENT * deviations, 8 * rounding * norms)
        if np.all(gap <= agreement[:, None]):
            break
        if tolerance and first_order_is_certain(series, tolerance):
            break
    change = abs(coarse_deviations[0] - deviations[0])
    if change > MAX_DEVIATION_CHANGE * deviations[0] + 8 * rounding * norms[0]:
        fix = (
            f"E[f^2] does not converge (deviation {coarse_deviations[0]:.4g}, then "
            f"{deviations[0]:.4g} on a finer grid). Use a square-integrable link."
        )
        raise checks.reject("f", link.label, fix)
    return series, halvings


def resolve_nonconstant(
    link: Link, order: int, tolerance: float | None = None
) -> tuple[HermiteSeries, int]:
    """The series of a link and the number of halvings; ValueError if the link is constant."""
    (series,), halvings = resolve_series(link, order, tolerance)
    if not series.deviation > ERROR_MARGIN * float(series.errors[0]):
        fix = (
            f"it is constant (E f = {series.coefficients[0]:.6g}, deviation "
            f"{series.deviation:.2g}), so there is nothing to learn"
        )
        raise checks.reject("f", link.label, fix)
    return series, halvings


def relative_sizes(series: list[HermiteSeries]) -> tuple[np.ndarray, np.ndarray]:
    """Sizes |c_k| and ERROR_MARGIN times their errors, (series, orders), in units of deviations.

    The first series is that of the link. Others belong to transformed labels, which are bounded by
    1: relative to its own deviation, a transformation that is constant on the values of the link
    would consist of rounding errors only.
    """
    scales = np.array([[row.deviation if row is series[0] else 1.0] for row in series])
    sizes = np.abs([row.coefficients for row in series]) / scales
    limits = ERROR_MARGIN * np.array([row.errors for row in series]) / scales
    return sizes, limits


def first_order_is_certain(series: list[HermiteSeries], tolerance: float) -> bool:
    """Whether the first non-zero order is certain.

    All orders before it are zero to within the tolerance, and its own coefficient is known to the
    same accuracy or too large for a quadrature error.
    """
    sizes, limits = relative_sizes(series)
    is_nonzero = sizes > np.maximum(tolerance, limits)
    is_reliable = (limits <= tolerance) | (sizes > CLEARLY_NONZERO)
    orders = np.any(is_nonzero & is_reliable, axis=0)[1:]
    first = int(np.argmax(orders)) if orders.any() else len(orders)
    return bool(np.all(limits[:, 1 : 1 + first] <= tolerance))


@float64
def hermite_series(f: LinkFunction, n: int, *, kinks: Sequence[float] = ()) -> HermiteSeries:
    """Hermite coefficients of a function with estimated errors, and the norms of f and f - E f.

    Parameters
    ----------
    f : str, Activation or callable
        A function of one number, as in ``hermite_coefficients``.
    n : int
        The highest order.
    kinks : sequence of float, default ()
        Points at which f or a derivative of it jumps.

    Returns
    -------
    HermiteSeries
        ``.coefficients``, ``.errors``, ``.norm``, ``.deviation``.

    Raises
    ------
    ValueError
        If f is not such a function, or not square-integrable.

    Examples
    --------
    >>> series = sgd.hermite_series("square", 2)
    >>> round(series.norm, 4), round(series.deviation, 4)
    (1.7321, 1.4142)
    """
    order = checks.integer("n", n, 0)
    if order > MAX_ORDER:
        fix = (
            f"Hermite functions of order above {MAX_ORDER} leave the range of the quadrature. "
            f"Use at most {MAX_ORDER}."
        )
        raise checks.reject("n", n, fix)
    return resolve_series(make_link(f, kinks), order)[0][0]


def hermite_coefficients(f: LinkFunction, n: int, *, kinks: Sequence[float] = ()) -> np.ndarray:
    """Coefficients of a function in the orthonormal (probabilists') Hermite basis.

    ::

        c_k = E[f(x) He_k(x)] / sqrt(k!),   x ~ N(0, 1),   k = 0..n
        f = sum_k c_k h_k,   E[f^2] = sum_k c_k^2

    Parameters
    ----------
    f : str, Activation or callable
        The name of an activation, an ``Activation``, or a function of a number or an array (Python,
        NumPy or JAX), square-integrable under the standard normal distribution.
    n : int
        The highest order.
    kinks : sequence of float, default ()
        Points at which f or a derivative of it jumps, in addition to those that an ``Activation``
        declares.

    Returns
    -------
    ndarray
        Coefficients c_0 ... c_n; ``hermite_series`` has their errors.

    Raises
    ------
    ValueError
        If f is not such a function, or not square-integrable.

    Warns
    -----
    UserWarning
        If a coefficient is inaccurate, most often because a kink was not declared.

    Examples
    --------
    >>> (sgd.hermite_coefficients("square", 2).round(4) + 0.0).tolist()
    [1.0, 0.0, 1.4142]
    """
    series = hermite_series(f, n, kinks=kinks)
    largest_error = float(series.errors.max())
    if largest_error > MAX_UNCERTAINTY * series.norm:
        message = (
            f"hermite_coefficients: estimated errors are up to {largest_error:.2g} (norm of f: "
            f"{series.norm:.4g}). Declare in kinks= the points at which f or f' jumps."
        )
        warnings.warn(message, UserWarning, stacklevel=2)
    return series.coefficients
