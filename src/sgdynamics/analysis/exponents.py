"""Information and generative exponent of a link: how hard a single-index target is for SGD.

One unit on the sphere with the link s = f as its activation and squared loss follows, in m = w.w*
and the library's t,

    dm/dt = (1 - m^2) sum_n n c_n^2 m^(n-1) - (lr/2) m E[s'(u)^2 ((s(v) - s(u))^2 + noise)],

with c_n the Hermite coefficients of f and E[u v] = m. Near m = 0 this is
signal m^(kappa - 1) - lr friction m, where kappa is the first k >= 1 with c_k != 0 and
signal = kappa c_kappa^2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgdynamics.analysis.hermite_series import (
    ERROR_MARGIN,
    MAX_UNCERTAINTY,
    HermiteSeries,
    relative_sizes,
    resolve_nonconstant,
    resolve_series,
)
from sgdynamics.analysis.links import Link, LinkFunction, make_link
from sgdynamics.base import checks
from sgdynamics.base.precision import float64

# A coefficient below this share of |f - E f| counts as zero.
TOLERANCE = 1e-7
# Orders that are searched for a first non-zero coefficient.
MAX_EXPONENT = 40
# Harmonics cos(j theta), sin(j theta) of the label that `generative_exponent` tries.
HARMONICS = 12


def first_order(link: Link, series: list[HermiteSeries], name: str, tolerance: float) -> int:
    """The smallest k >= 1 at which some series has a non-zero coefficient.

    ValueError, with the `name` of the exponent, if the errors do not allow a decision.
    """
    sizes, limits = relative_sizes(series)
    k = 0
    for k in range(1, sizes.shape[1]):
        if np.any(sizes[:, k] > np.maximum(tolerance, limits[:, k])):
            return k
        worst = int(np.argmax(limits[:, k]))
        if limits[worst, k] > MAX_UNCERTAINTY:
            fix = (
                f"its {name} cannot be determined: |c_{k}| = {sizes[worst, k]:.2g} with an error "
                f"of {limits[worst, k] / ERROR_MARGIN:.2g}, in units of the standard deviation of "
                "f. Declare in kinks= the points at which f or f' jumps."
            )
            raise checks.reject("f", link.label, fix)
    fix = (
        f"its {name} cannot be determined: |c_1|, ..., |c_{k}| are all below {tolerance:g} of the "
        f"standard deviation (the largest is {sizes[:, 1:].max():.2g}). The exponent is above {k}, "
        "or f oscillates too fast for the quadrature."
    )
    raise checks.reject("f", link.label, fix)


@float64
def information_exponent(
    f: LinkFunction, *, kinks: Sequence[float] = (), tolerance: float = TOLERANCE
) -> int:
    """The information exponent of a link: the order of its first non-zero Hermite coefficient.

    ::

        kappa = min {k >= 1 : c_k != 0},     c_k = E[f(x) h_k(x)]

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``.
    kinks : sequence of float, default ()
        Points at which f or a derivative of it jumps.
    tolerance : float, default 1e-07
        Relative threshold: a coefficient counts as zero if it is below this share of the norm of
        f - E f, or below 20 times its error.

    Returns
    -------
    int
        The exponent; orders up to 40 are searched.

    Raises
    ------
    ValueError
        If the error is too large for a decision, or if f is constant or not square-integrable.

    Notes
    -----
    Ben Arous, Gheissari and Jagannath, JMLR 22 (2021), Definition 1.2 (for Gaussian inputs and
    squared or correlation loss).

    Examples
    --------
    >>> sgd.information_exponent("square"), sgd.information_exponent("he3")
    (2, 3)
    """
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    link = make_link(f, kinks)
    series, _ = resolve_nonconstant(link, MAX_EXPONENT, tolerance)
    return first_order(link, [series], "information exponent", tolerance)


@float64
def generative_exponent(
    f: LinkFunction, *, kinks: Sequence[float] = (), tolerance: float = TOLERANCE
) -> int:
    """The generative exponent of a link: the least information exponent of transformed labels.

    ::

        k* = min {k >= 1 : E[h_k(x) | f(x)] != 0} = min over T of kappa(T o f)

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``; labels are without noise.
    kinks : sequence of float, default ()
        Points at which f or a derivative of it jumps.
    tolerance : float, default 1e-07
        Relative threshold below which a coefficient counts as zero.

    Returns
    -------
    int
        An upper bound, too large only if ``E[h_k | f]`` is invisible (below ``tolerance``) to every
        transformation that is tried.

    Raises
    ------
    ValueError
        If f is constant or not square-integrable, or if the error is too large for a decision.

    Notes
    -----
    The transformations T are f itself and cos(j theta), sin(j theta) for
    theta = 2 atan((f - E f)/norm) and j = 1..12. The circle is covered once, so that these are
    dense in all T as j grows, and complete for f of up to 25 values.

    Source: Damian, Pillaud-Vivien, Lee and Bruna, "Computational-statistical gaps in Gaussian
    single-index models" (2024), section 2.

    Examples
    --------
    >>> sgd.generative_exponent("he3")
    1
    """
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    link = make_link(f, kinks)
    series, _ = resolve_nonconstant(link, 1, tolerance)

    def transform_labels(values: np.ndarray) -> np.ndarray:
        label = (values - series.coefficients[0]) / series.deviation
        theta = 2 * np.arctan(label) * np.arange(1, HARMONICS + 1)[:, None, None]
        return np.concatenate([label[None], np.cos(theta), np.sin(theta)])

    all_series, _ = resolve_series(link, MAX_EXPONENT, tolerance, transform_labels)
    return first_order(link, all_series, "generative exponent", tolerance)
