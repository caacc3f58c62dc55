"""Means over runs, accumulated group by group, so that the runs are never in memory together."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

# Bytes of the save points of the runs that are in memory together.
SAVED_BYTES = 1 << 28


class RunMoments:
    """Mean and variance over runs of the variables of results that are added one by one.

    Pairwise updates of the mean and of the sum of squares about it (Chan, Golub and LeVeque): no
    difference of large sums. Runs that diverged are counted and left out.

    Attributes
    ----------
    runs, diverged : int
        Number of runs added, and of those that diverged.
    """

    def __init__(self) -> None:
        self.runs, self.diverged = 0, 0
        self.first_divergence = np.nan
        self._template: xr.Dataset | None = None
        self._means: dict[str, np.ndarray] = {}
        self._squares: dict[str, np.ndarray] = {}
        self._errors: dict[str, float] = {}

    def add(self, result: xr.Dataset) -> None:
        """Add the runs of a result."""
        diverged_at = np.asarray(result["diverged_at"])
        has_finished = np.isnan(diverged_at)
        if not has_finished.all():
            self.first_divergence = np.nanmin([self.first_divergence, np.nanmin(diverged_at)])
        earlier, count = self.runs - self.diverged, int(has_finished.sum())
        self.runs += len(has_finished)
        self.diverged += len(has_finished) - count
        if self._template is None or (earlier == 0 and count):
            self._template = result.isel(run=[int(np.argmax(has_finished))])
        for name, error in result.attrs.items():
            if name.startswith("error_") and np.isscalar(error):
                self._errors[name] = max(float(np.asarray(error)), self._errors.get(name, 0.0))
        if not count:
            return
        for name, variable in result.data_vars.items():
            if "run" not in variable.dims:
                continue
            self._update(str(name), np.asarray(variable, dtype=float)[has_finished], earlier)

    def _update(self, name: str, values: np.ndarray, earlier: int) -> None:
        """Add values with a leading axis of runs to those of `earlier` runs."""
        count = len(values)
        # The moments of infinite values are not numbers.
        with np.errstate(invalid="ignore", over="ignore"):
            mean = values.mean(axis=0)
            squares = ((values - mean) ** 2).sum(axis=0)
            if earlier:
                difference, total = mean - self._means[name], earlier + count
                squares += self._squares[name] + difference**2 * (earlier * count / total)
                mean = self._means[name] + difference * (count / total)
        self._means[name], self._squares[name] = mean, squares

    def result(self) -> xr.Dataset:
        """The means as a result with a single run, and NAME_standard_error of each variable."""
        assert self._template is not None
        finished = self.runs - self.diverged
        reduced = self._template.copy()
        for name, mean in self._means.items():
            variable = reduced[name]
            reduced[name] = variable.copy(data=mean[None])
            error = np.full(mean.shape, np.nan)
            if finished > 1:
                error = np.sqrt(self._squares[name] / (finished - 1) / finished)
            label = f"{variable.attrs.get('long_name', name)}, standard error of the mean"
            reduced[f"{name}{STANDARD_ERROR}"] = variable.copy(data=error[None]).assign_attrs(
                long_name=label
            )
        if not finished:
            reduced["diverged_at"] = reduced["diverged_at"].copy(data=[self.first_divergence])
        return reduced.assign_attrs(
            self._errors, reduced="mean", runs=self.runs, runs_left_out=self.diverged
        )

    def report(self) -> xr.Dataset:
        """The result, with a warning about runs that diverged and the sampling error."""
        result = self.result()
        if self.diverged:
            warn(
                f"{self.diverged} of {self.runs} runs diverged, the first after t = "
                f"{self.first_divergence:.4g}, and are left out of the mean. A smaller lr may help."
            )
        elif self.runs > 1:
            error, mean = (np.asarray(result[name])[0] for name in ("risk_standard_error", "risk"))
            result.attrs["error_sampling"] = largest_share(error, mean)
        return result


def is_mean(result: xr.Dataset) -> bool:
    """Whether a result contains the mean over runs in place of the runs."""
    return result.attrs.get("reduced") == "mean"


def require_runs(result: xr.Dataset) -> None:
    """Raise ValueError for a mean over runs, which is not the state of a run."""
    if is_mean(result):
        raise checks.reject(
            "result",
            'simulate(reduce="mean")',
            "it contains means over runs, and a mean of overlaps is not the state of a run. "
            "Simulate without reduce.",
        )


def count_runs(result: xr.Dataset) -> int:
    """Number of runs of a result that have not been left out, also of a mean over runs."""
    if is_mean(result):
        return int(result.attrs["runs"]) - int(result.attrs["runs_left_out"])
    return result.sizes["run"]


def mean_error(result: xr.Dataset, name: str) -> np.ndarray | None:
    """The standard errors of a variable that is a mean over runs; None for other results."""
    if not is_mean(result):
        return None
    source = name + STANDARD_ERROR
    if source not in result:
        source = ((VARIABLES[name].error if name in VARIABLES else "") or name) + STANDARD_ERROR
    return np.asarray(result[source]) if source in result else None
