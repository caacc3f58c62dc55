"""Power laws in sweeps: y = prefactor x^exponent, fitted in logarithms."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats

from sgdynamics.base import checks

LEVEL = 0.95


@dataclass(frozen=True)
class PowerLawFit:
    """A fitted power law y = prefactor x^exponent with its errors.

    Attributes
    ----------
    exponent : float
        Slope of log y against log x.
    prefactor : float
        Value of y at x = 1.
    exponent_standard_error : float
        Standard error of the exponent.
    prefactor_standard_error : float
        Standard error of the prefactor.
    interval : (float, float)
        Confidence interval (95%) of the exponent.
    residuals : ndarray
        Residuals of log y.
    x : ndarray
        Fitted points.
    y : ndarray
        Values at these points.
    weighted : bool
        Whether the points were weighted by their standard errors.
    chi2 : float
        Weighted sum of squared residuals, about the number of points less 2 if the law holds. If it
        is larger, the standard errors are widened by the square root of the ratio. NaN for an
        unweighted fit.
    left_out : int
        Number of points without a value.

    Examples
    --------
    >>> def law(d):
    ...     return {"y": 2.0 * d**1.5}
    >>> grid = sgd.sweep(law, over={"d": [10.0, 20.0, 40.0]}, workers=1, progress=False)
    >>> fit = sgd.fit_exponent(grid, "y", "d")
    >>> round(fit.exponent, 4), round(fit.prefactor, 4)
    (1.5, 2.0)
    """

    exponent: float
    prefactor: float
    exponent_standard_error: float
    prefactor_standard_error: float
    interval: tuple[float, float]
    residuals: np.ndarray
    x: np.ndarray
    y: np.ndarray
    weighted: bool
    chi2: float
    left_out: int = 0

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Evaluate the law at x."""
        return self.prefactor * np.asarray(x, dtype=np.float64) ** self.exponent

    def __repr__(self) -> str:
        exponent = f"{self.exponent:.4g} +- {self.exponent_standard_error:.2g}"
        return f"PowerLawFit({self.prefactor:.4g} x^({exponent}), {len(self.x)} points)"


def fit_exponent(result: xr.Dataset, y: str, x: str, **selection: Any) -> PowerLawFit:
    """Fit a power law to the points of a sweep.

    The fit is by least squares of log y = log prefactor + exponent log x.

    Parameters
    ----------
    result : xarray.Dataset
        Result of ``sgd.sweep``.
    y : str
        Variable or coordinate to fit. If it has the dimension ``run``, its mean is fitted, weighted
        by its standard error. Otherwise the variable ``y_standard_error`` (for "mean" the variable
        ``standard_error``) is the standard error if it exists.
    x : str
        Variable or coordinate on which y depends.
    **selection
        Values of the other dimensions: ``dimension=1000``, or an index such as ``time=-1`` for a
        dimension without coordinates.

    Returns
    -------
    PowerLawFit
        The fit. The standard errors of a weighted fit follow from the weights (normal quantiles, or
        Student's if the residuals are larger than the weights allow), those of an unweighted fit
        from the residuals (Student's quantiles, n - 2 degrees of freedom).

    Raises
    ------
    ValueError
        If a name is unknown, values are not positive, or fewer points are left than a fit needs.

    Warns
    -----
    UserWarning
        If points without a value (failed, or never left) are left out.

    Examples
    --------
    >>> def law(d):
    ...     return {"y": 2.0 * d**1.5}
    >>> grid = sgd.sweep(law, over={"d": [10.0, 20.0, 40.0]}, workers=1, progress=False)
    >>> round(sgd.fit_exponent(grid, "y", "d").exponent, 4)
    1.5
    """
    checks.result("result", result, fix="use the result of sgd.sweep.")
    _require_number(result, "y", y)
    _require_number(result, "x", x)
    selected = _select(result, selection)
    abscissa, ordinate, errors = selected[x], selected[y], _standard_errors(selected, y)
    if "run" in ordinate.dims and "run" not in abscissa.dims:
        runs = ordinate.notnull().sum("run")
        several = ordinate.sizes["run"] > 1
        errors = ordinate.std("run", ddof=1) / np.sqrt(runs) if several else None
        ordinate = ordinate.mean("run")
    free_dims = [str(dim) for dim in ordinate.dims if dim not in abscissa.dims]
    if free_dims or abscissa.ndim == 0:
        fix = f"{x} does not vary: use a swept parameter."
        if free_dims:
            fix = f"set {', '.join(f'{dim}=...' for dim in free_dims)}"
        dims = ", ".join(map(str, ordinate.dims)) or "none"
        raise checks.reject("y", y, f"it has dimensions {dims}: {fix}")
    abscissa, ordinate = xr.broadcast(abscissa, ordinate)
    x_values, y_values = _flat(abscissa), _flat(ordinate)
    sigma = None
    if errors is not None:
        sigma = _flat(errors.broadcast_like(ordinate).transpose(*ordinate.dims))
    is_finite = np.isfinite(x_values) & np.isfinite(y_values)
    left_out = int((~is_finite).sum())
    if left_out:
        warnings.warn(
            f"fit_exponent: {left_out} of {len(is_finite)} points have no value of {y} and are "
            "left out",
            stacklevel=2,
        )
    x_values, y_values = x_values[is_finite], y_values[is_finite]
    if sigma is not None:
        sigma = sigma[is_finite]
        # A point without a standard error (one run, or equal runs) cannot be weighted.
        if not np.all(np.isfinite(sigma) & (sigma > 0)):
            sigma = None
    if np.any(x_values <= 0) or np.any(y_values <= 0):
        raise ValueError(
            f"{y} against {x}: a power law needs positive numbers; the smallest are "
            f"{y_values.min():.4g}, {x_values.min():.4g}"
        )
    count = len(np.unique(x_values))
    if count < 2:
        raise checks.reject(
            "x", x, f"{count} of its values have a value of {y}. A power law needs at least 2."
        )
    return _fit(x_values, y_values, sigma, left_out)


def _flat(array: xr.DataArray) -> np.ndarray:
    return np.asarray(array, dtype=float).reshape(-1)


def _require_number(result: xr.Dataset, argument: str, name: object) -> None:
    numeric = [
        str(key) for key, variable in result.variables.items() if variable.dtype.kind in "iuf"
    ]
    if not isinstance(name, str) or name not in result.variables:
        raise checks.reject(
            argument,
            name,
            f"no such variable: {checks.did_you_mean(name, numeric)}choose from "
            f"{', '.join(numeric)}",
        )
    if name not in numeric:
        raise checks.reject(argument, name, "this variable is not numeric. Choose another one.")


def _select(result: xr.Dataset, selection: dict[str, Any]) -> xr.Dataset:
    """The points of a sweep at given values of some dimensions."""
    for name, value in selection.items():
        if name in result.coords and result[name].ndim == 1:
            labels = np.asarray(result[name])
            if labels.dtype.kind == "f":
                matches = np.isclose(labels, checks.number(name, value), rtol=1e-9, atol=0.0)
            else:
                matches = np.asarray([label == value for label in labels.tolist()], dtype=bool)
            if not matches.any():
                raise checks.reject(
                    name, value, f"the sweep has {', '.join(str(label) for label in labels[:12])}"
                )
            indices = np.flatnonzero(matches)
            dim = result[name].dims[0]
            result = result.isel({dim: int(indices[0]) if name in result.dims else indices})
        elif name in result.dims:
            count = result.sizes[name]
            is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not is_integer or not -count <= value < count:
                raise checks.reject(
                    name, value, f"use an index from 0 to {count - 1}, or -1 for the last one."
                )
            result = result.isel({name: value})
        else:
            names = [str(key) for key in (*result.dims, *result.coords)]
            raise checks.reject(
                name,
                value,
                f"no such dimension: {checks.did_you_mean(name, names)}choose from "
                f"{', '.join(names)}",
            )
    return result


def _standard_errors(selected: xr.Dataset, y: str) -> xr.DataArray | None:
    """The variable that has the standard errors of y."""
    name = f"{y}_standard_error"
    if name not in selected and y == "mean":
        name = "standard_error"
    return selected.get(name)


def weighted_line(
    x: ArrayLike, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit a line by weighted least squares.

    Returns (intercept, slope), the inverse of the normal matrix, which is their covariance if the
    weights are 1/variance, and the weighted sum of squared residuals.
    """
    design = np.stack([np.ones(len(y)), np.asarray(x, dtype=np.float64)], axis=1)
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    coefficients = inverse @ design.T @ (weights * y)
    return coefficients, inverse, float(np.sum(weights * (y - design @ coefficients) ** 2))


def _fit(x: np.ndarray, y: np.ndarray, sigma: np.ndarray | None, left_out: int) -> PowerLawFit:
    u, v = np.log(x), np.log(y)
    # The standard error of log y is sigma/y.
    weights = np.ones(len(x)) if sigma is None else (y / sigma) ** 2
    (intercept, exponent), inverse, chi2 = weighted_line(u, v, weights)
    degrees = len(x) - 2
    scatter = chi2 / degrees if degrees else np.nan
    if sigma is None or (degrees and scatter > 1):
        # The residuals set the scale: it is unknown, or larger than the standard errors allow.
        variance = scatter
        quantile = stats.t.ppf(0.5 + LEVEL / 2, degrees) if degrees else np.nan
    else:
        variance, quantile = 1.0, stats.norm.ppf(0.5 + LEVEL / 2)
    intercept_error, exponent_error = np.sqrt(variance * np.diag(inverse)).tolist()
    prefactor = float(np.exp(intercept))
    half_width = quantile * exponent_error
    return PowerLawFit(
        exponent=float(exponent),
        prefactor=prefactor,
        exponent_standard_error=exponent_error,
        prefactor_standard_error=prefactor * intercept_error,
        interval=(float(exponent - half_width), float(exponent + half_width)),
        residuals=v - intercept - exponent * u,
        x=x,
        y=y,
        weighted=sigma is not None,
        chi2=float("nan") if sigma is None else chi2,
        left_out=left_out,
    )
