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
    """y = prefactor x^exponent, with standard errors, the 95% interval of the exponent and the residuals of log y.

    Attributes
    ----------
    exponent : float
        The slope of log y against log x.
    prefactor : float
        y at x = 1.
    exponent_standard_error : float
        Its standard error.
    prefactor_standard_error : float
        Its standard error.
    interval : (float, float)
        The 95% interval of the exponent.
    residuals : ndarray
        Of log y.
    x : ndarray
        The points.
    y : ndarray
        Their values.
    weighted : bool
        Whether the points had standard errors.
    chi2 : float
        The weighted sum of squared residuals, about the number of points less 2 where the law holds; where it is larger the standard errors
        have been widened by the root of the ratio. NaN where there are no errors.
    left_out : int
        How many points had no value.

    Examples
    --------
    >>> grid = sgd.sweep(lambda d: {"y": 2.0 * d**1.5}, over={"d": [10.0, 20.0, 40.0]}, workers=1, progress=False)
    >>> law = sgd.fit_exponent(grid, "y", "d")
    >>> round(law.exponent, 4), round(law.prefactor, 4)
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

    def __call__(self, x: ArrayLike) -> Any:
        """The law at x."""
        return self.prefactor * np.asarray(x, dtype=np.float64) ** self.exponent

    def __repr__(self) -> str:
        return f"PowerLawFit({self.prefactor:.4g} x^({self.exponent:.4g} +- {self.exponent_standard_error:.2g}), {len(self.x)} points)"


def fit_exponent(result: xr.Dataset, y: str, x: str, **selection: Any) -> PowerLawFit:
    """Least squares of log y = log prefactor + exponent log x over the points of a sweep.

    Parameters
    ----------
    result : xarray.Dataset
        What ``sgd.sweep`` returned.
    y : str
        A variable or coordinate. Over ``run`` the mean is taken, with its standard error as the weight; elsewhere ``y_standard_error``, or
        for "mean" the variable ``standard_error``, is the weight where it exists.
    x : str
        Another one.
    **selection
        Fixes the other dimensions: ``dimension=1000`` (a value), ``time=-1`` (a place, where there are no values).

    Returns
    -------
    PowerLawFit
        With weights the standard errors follow from them (normal quantiles, and Student's where residuals are larger than the weights
        allow), without from the residuals (Student's, n - 2 degrees of freedom).

    Raises
    ------
    ValueError
        If a name is not known, values are not positive, or fewer points are left than a fit needs.

    Warns
    -----
    UserWarning
        Where points without a value (failed, or never left) are left out.

    Examples
    --------
    >>> grid = sgd.sweep(lambda d: {"y": 2.0 * d**1.5}, over={"d": [10.0, 20.0, 40.0]}, workers=1, progress=False)
    >>> round(sgd.fit_exponent(grid, "y", "d").exponent, 4)
    1.5
    """
    checks.result("result", result, fix="give what sgd.sweep returned")
    for name, argument in ((y, "y"), (x, "x")):
        if not isinstance(name, str) or name not in result.variables:
            numbers = [str(key) for key, one in result.variables.items() if one.dtype.kind in "iuf"]
            raise checks.reject(
                argument,
                name,
                f"no such variable: {checks.did_you_mean(name, numbers)}there are {', '.join(numbers)}",
            )
    for name, argument in ((y, "y"), (x, "x")):
        if result[name].dtype.kind not in "iuf":
            raise checks.reject(
                argument, name, "a power law needs numbers, and this variable has none"
            )
    part = _selected(result, selection)
    across, up, errors = part[x], part[y], _errors(part, y)
    if "run" in up.dims and "run" not in across.dims:
        runs = up.notnull().sum("run")
        errors = up.std("run", ddof=1) / np.sqrt(runs) if up.sizes["run"] > 1 else None
        up = up.mean("run")
    extra = [dim for dim in up.dims if dim not in across.dims]
    if extra or across.ndim == 0:
        fix = (
            f"fix {', '.join(f'{dim}=...' for dim in extra)}"
            if extra
            else f"{x} does not vary: it must be a swept parameter"
        )
        raise checks.reject(
            "y", y, f"it has dimensions {', '.join(map(str, up.dims)) or 'none'}: {fix}"
        )
    across, up = xr.broadcast(across, up)
    horizontal, vertical = (
        np.asarray(across, dtype=float).reshape(-1),
        np.asarray(up, dtype=float).reshape(-1),
    )
    sigma = (
        None
        if errors is None
        else np.asarray(errors.broadcast_like(up).transpose(*up.dims), dtype=float).reshape(-1)
    )
    good = np.isfinite(horizontal) & np.isfinite(vertical)
    left_out = int((~good).sum())
    if left_out:
        warnings.warn(
            f"fit_exponent: {left_out} of {len(good)} points have no value of {y} and are left out",
            stacklevel=2,
        )
    if sigma is not None and not np.all(np.isfinite(sigma[good]) & (sigma[good] > 0)):
        sigma = None  # a point without a standard error (one run, no spread) cannot be weighed against the others
    horizontal, vertical = horizontal[good], vertical[good]
    if np.any(horizontal <= 0) or np.any(vertical <= 0):
        raise ValueError(
            f"{y} against {x}: a power law needs positive numbers, here the smallest are {vertical.min():.4g}, {horizontal.min():.4g}"
        )
    if len(np.unique(horizontal)) < 2:
        raise checks.reject(
            "x",
            x,
            f"{len(np.unique(horizontal))} different values with a value of {y}: a power law needs 2 at least",
        )
    return _fitted(horizontal, vertical, None if sigma is None else sigma[good], left_out)


def _selected(result: xr.Dataset, selection: dict[str, Any]) -> xr.Dataset:
    part = result
    for name, value in selection.items():
        if name in part.coords and part[name].ndim == 1:
            have = np.asarray(part[name])
            if have.dtype.kind == "f":
                match = np.isclose(have, checks.number(name, value), rtol=1e-9, atol=0.0)
            else:
                match = np.asarray([one == value for one in have.tolist()], dtype=bool)
            if not match.any():
                raise checks.reject(
                    name, value, f"the sweep has {', '.join(str(one) for one in have[:12])}"
                )
            found = np.flatnonzero(match)
            part = part.isel({part[name].dims[0]: int(found[0]) if name in part.dims else found})
        elif name in part.dims:
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, np.integer))
                or not -part.sizes[name] <= value < part.sizes[name]
            ):
                raise checks.reject(
                    name,
                    value,
                    f"give a place from 0 to {part.sizes[name] - 1}, or from the end with -1",
                )
            part = part.isel({name: value})
        else:
            known = [str(one) for one in (*part.dims, *part.coords)]
            raise checks.reject(
                name,
                value,
                f"no such dimension: {checks.did_you_mean(name, known)}there are {', '.join(known)}",
            )
    return part


def _errors(part: xr.Dataset, y: str) -> Any:
    name = (
        f"{y}_standard_error"
        if f"{y}_standard_error" in part
        else "standard_error"
        if y == "mean"
        else None
    )
    return part[name] if name is not None and name in part else None


def weighted_line(
    x: ArrayLike, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Least squares: (intercept, slope), their covariance where weights are 1/variance, and the weighted sum of squared residuals."""
    design = np.stack([np.ones(len(y)), np.asarray(x, dtype=np.float64)], axis=1)
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    found = inverse @ design.T @ (weights * y)
    return found, inverse, float(np.sum(weights * (y - design @ found) ** 2))


def _fitted(x: np.ndarray, y: np.ndarray, sigma: np.ndarray | None, left_out: int) -> PowerLawFit:
    u, v = np.log(x), np.log(y)
    weights = (
        np.ones(len(x)) if sigma is None else (y / sigma) ** 2
    )  # the error of log y is sigma/y
    (level, exponent), inverse, chi2 = weighted_line(u, v, weights)
    free = len(x) - 2
    scatter = chi2 / free if free else np.nan
    if sigma is None:
        variance, quantile = scatter, stats.t.ppf(0.5 + LEVEL / 2, free) if free else np.nan
    elif free and scatter > 1:
        variance, quantile = scatter, stats.t.ppf(0.5 + LEVEL / 2, free)
    else:
        variance, quantile = 1.0, stats.norm.ppf(0.5 + LEVEL / 2)
    errors = np.sqrt(variance * np.diag(inverse))
    half, prefactor = quantile * errors[1], float(np.exp(level))
    interval = (float(exponent - half), float(exponent + half))
    residuals = v - level - exponent * u
    spreads = (float(errors[1]), prefactor * float(errors[0]))
    weighted = sigma is not None
    return PowerLawFit(
        float(exponent),
        prefactor,
        *spreads,
        interval,
        residuals,
        x,
        y,
        weighted,
        chi2 if weighted else float("nan"),
        left_out,
    )
