"""Power laws of estimated quantities over a list of dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import curve_fit

# Growth slower than d^0.1 cannot be distinguished from none at dimensions that can be run.
SMALL_EXPONENT = 0.1
# Standard error of an exponent above which there is no verdict.
UNDECIDED = 0.2
# Standard errors above which a value counts as nonzero.
SIGNIFICANT = 4.0
# Relative error that the fit assumes of exact values.
FIT_ERROR = 1e-6


@dataclass(frozen=True)
class Trend:
    """A quantity over the dimensions, and its fit A d^x.

    Attributes
    ----------
    values, errors : ndarray
        Values at the dimensions, and their standard errors.
    exponent, exponent_error : float
        Exponent x of the fit, and its standard error; x is -inf if all values are zero.
    verdict : str
        The trend in words: "zero", "zero within its error", "bounded", "undecided", "grows like
        d^..." or "vanishes like d^...".
    """

    values: np.ndarray
    errors: np.ndarray
    exponent: float
    exponent_error: float
    verdict: str


def fit_trend(dimensions: np.ndarray, values: np.ndarray, errors: np.ndarray) -> Trend:
    """Fit A d^x by weighted least squares.

    The standard error of x includes the errors of the values and, if it is larger, the misfit of a
    power law.
    """
    is_significant = np.abs(values) > SIGNIFICANT * errors
    if not np.any(is_significant):
        verdict = "zero" if np.all(values == 0) else "zero within its error"
        return Trend(values, errors, -math.inf, 0.0, verdict)
    log_d = np.log(dimensions / dimensions[is_significant][0])
    unit = values[is_significant][0]
    scaled = values / unit
    scaled_errors = np.hypot(errors, FIT_ERROR * np.abs(values) + 1e-300) / abs(unit)
    usable = is_significant & (scaled > 0)
    # The first guess is a line through the logarithms; one point has none.
    guess = np.polyfit(log_d[usable], np.log(scaled[usable]), 1)[0] if usable.sum() > 1 else 0.0
    try:
        (amplitude, exponent), covariance = curve_fit(
            lambda t, a, x: a * np.exp(x * t),
            log_d,
            scaled,
            (1.0, guess),
            scaled_errors,
            absolute_sigma=True,
        )
        residuals = (scaled - amplitude * np.exp(exponent * log_d)) / scaled_errors
        misfit = np.sum(residuals**2) / (len(values) - 2)
        error = math.sqrt(covariance[1, 1] * max(1.0, misfit))
    except RuntimeError:
        # The fit did not converge.
        exponent, error = guess, math.inf
    verdict = _verdict(float(exponent), error)
    return Trend(values, errors, float(exponent), float(error), verdict)


def _verdict(exponent: float, error: float) -> str:
    if not error < UNDECIDED:
        return "undecided"
    if abs(exponent) <= max(SMALL_EXPONENT, 3 * error):
        return "bounded"
    return f"{'grows' if exponent > 0 else 'vanishes'} like d^{exponent:.2f}"
