"""`compare`: differences of theory and simulation in standard errors."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.results.datasets import algorithm_of, problem_of, requested_clock
from sgdynamics.results.reduced import count_runs, is_mean, mean_error
from sgdynamics.results.states import start_from
from sgdynamics.results.variables import STANDARD_ERROR, TIMES, VARIABLES, shared_variables
from sgdynamics.solvers.ode import solve_ode

# Differences below this share of the values are rounding errors.
RESOLUTION = {"float64": 1e-12, "float32": 1e-6}
# Largest distance of equal save points, relative to the last one.
SAME_TIME = 1e-9
# Relative accuracy to which a new solution must reproduce the theory.
REPRODUCED = 1e-5
# Attributes of results with their relative numerical errors.
NUMERICAL_ERRORS = ("error_quadrature", "error_integrator", "error_binning")
# Coordinates of results that were joined from several stages of training.
STAGE_NAMES = ("stage", "phase")
# Relative difference that no numerical error explains, where all runs agree with each other.
GROSS = 0.01
# Interpolation error, in standard errors, up to which no warning is given.
TOLERATED = 0.1


def compare(theory: xr.Dataset, simulation: xr.Dataset) -> xr.Dataset:
    """Align two results and give their differences in standard errors.

    Parameters
    ----------
    theory : xarray.Dataset
        Result of a theory: one run, which is compared with all runs of the simulation, or one per
        run of the simulation.
    simulation : xarray.Dataset
        Runs of the same problem, or their mean (``simulate(reduce="mean")``). Runs that diverged
        are left out.

    Returns
    -------
    xarray.Dataset
        Four variables for each one that both results have (risks, M, Q, a, accuracy, recorded
        ones): ``NAME_theory``, ``NAME_simulation`` (mean over runs), ``NAME_standard_error`` and
        ``NAME_z`` = (simulation - theory)/standard error, at the save points of the simulation. The
        attribute ``runs_left_out`` counts the runs that diverged; ``alignment`` is the way in which
        the theory was evaluated (see Notes).

    Raises
    ------
    ValueError
        If the results have no variable in common or variables of different shapes, if the
        simulation has save points outside the theory's time range, or if all runs diverged.

    Warns
    -----
    UserWarning
        If the results record different problems, or if the theory is interpolated with an error
        that matters.

    Notes
    -----
    The theory is taken as it is at save points that both results have (``alignment`` = "common save
    points"). Elsewhere an ODE is solved again at the simulation's save points, from its recorded
    problem, algorithm and state at t = 0 ("solved again"). A theory that cannot be solved again
    (DMFT, user functions, no save point at t = 0) is interpolated by a cubic spline
    ("interpolated").

    The standard error is that of the mean over runs, combined with the theory's own sampling error
    (DMFT) and the estimated interpolation error. Where there is none (all runs agree, as at a
    common start, or there is a single run), z is 0 if theory and simulation agree to within the
    numerical errors that they record, infinite if several runs agree with each other and differ
    from the theory by more than 1%, and NaN otherwise.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> algorithm = sgd.OnePassSGD(lr=0.1)
    >>> theory = sgd.solve_ode(problem, algorithm, start, times=[0.5, 1.0])
    >>> runs = sgd.simulate(problem, algorithm, start, times=[0.5, 1.0], dimension=1000, runs=16)
    >>> table = sgd.compare(theory, runs)
    >>> table["risk_theory"].values.round(3).tolist(), table.attrs["alignment"]
    ([0.982, 0.498], 'common save points')
    """
    _check_results(theory, simulation)
    pairs = _split_into_stages(theory, simulation)
    if len(pairs) > 1:
        # The state jumps from one stage to the next, at one time: each stage is compared by itself.
        return xr.concat([compare(*pair) for pair in pairs], "time", combine_attrs="override")
    has_finished = np.isnan(np.asarray(simulation["diverged_at"]))
    if not has_finished.any():
        raise ValueError("simulation: all runs diverged, so that none can be compared.")
    if theory.sizes["run"] not in (1, simulation.sizes["run"]):
        raise ValueError(
            f"theory has {theory.sizes['run']} runs and simulation {simulation.sizes['run']}. "
            "Use one run of the theory, or one for each run of the simulation."
        )
    if theory.attrs.get("problem") != simulation.attrs.get("problem"):
        warn("theory and simulation record different problems: see their attribute 'problem'")
    comparison = _Comparison(theory, simulation, has_finished)
    variables = {}
    for name in shared_variables(theory, simulation):
        if all(result[name].dims[:2] == ("run", "time") for result in (theory, simulation)):
            variables |= comparison.variables(name)
    if not variables:
        raise ValueError(
            "theory and simulation have no variable in common. Use two results of one problem."
        )
    comparison.alignment.warn_of_errors()
    runs = comparison.runs
    left_out = len(has_finished) - int(has_finished.sum())
    if is_mean(simulation):
        left_out = int(simulation.attrs["runs_left_out"])
    attributes = {
        "theory": theory.attrs.get("method", ""),
        "simulation": simulation.attrs.get("method", ""),
        "runs": runs,
        "runs_left_out": left_out,
        "problem": simulation.attrs.get("problem", ""),
        "algorithm": simulation.attrs.get("algorithm", ""),
        "clock": requested_clock(simulation),
        "alignment": comparison.alignment.kind,
    }
    return xr.Dataset(variables, _coordinates(theory, simulation), attributes)


def _split_into_stages(
    theory: xr.Dataset, simulation: xr.Dataset
) -> list[tuple[xr.Dataset, xr.Dataset]]:
    """Both results in each stage of training, or phase, that both contain."""
    shared = [name for name in STAGE_NAMES if name in theory.coords and name in simulation.coords]
    if not shared:
        return [(theory, simulation)]
    name = shared[0]
    labels = list(dict.fromkeys(simulation[name].values.tolist()))
    is_missing = [label for label in labels if label not in theory[name].values]
    if is_missing:
        fix = f"theory has no {name} of this name. Solve both for the same {name}s."
        raise checks.reject(f"simulation.{name}", is_missing[0], fix)
    return [
        (
            theory.isel(time=np.asarray(theory[name]) == label),
            simulation.isel(time=np.asarray(simulation[name]) == label),
        )
        for label in labels
    ]


def _check_results(theory: xr.Dataset, simulation: xr.Dataset) -> None:
    """Raise ValueError unless both are results with times and runs."""
    axes = {"t": ("time",), "diverged_at": ("run",)}
    for argument, value in (("theory", theory), ("simulation", simulation)):
        needed = ("t", "diverged_at") if argument == "simulation" else ("t",)
        fix = "give a result of solve_ode or simulate"
        checks.result(argument, value, "run", "time", *needed, fix=fix)
        for name in needed:
            checks.real_array(f"{argument}.{name}", value[name].values, "give numbers")
        has_axes = all(value[name].dims == axes[name] for name in needed)
        if not value.sizes["time"] or not value.sizes["run"] or not has_axes:
            fix = "give a result with at least one time and one run"
            raise checks.reject(argument, dict(value.sizes), fix)


def _coordinates(theory: xr.Dataset, simulation: xr.Dataset) -> dict[str, xr.DataArray]:
    """Coordinates of the comparison; ValueError if different problems were evaluated."""
    names = (*TIMES, "epoch", "evaluation", *STAGE_NAMES)
    coordinates = {name: simulation[name] for name in names if name in simulation.coords}
    if "evaluation" in coordinates and "evaluated_risk" in theory:
        evaluation = simulation["evaluation"]
        if not evaluation.equals(theory["evaluation"]):
            fix = "evaluate the same problems in both"
            raise checks.reject("simulation.evaluation", evaluation.values.tolist(), fix)
    return coordinates


class _Comparison:
    """Differences of the variables of two results, over the runs that have not diverged."""

    def __init__(
        self, theory: xr.Dataset, simulation: xr.Dataset, has_finished: np.ndarray
    ) -> None:
        self.theory = theory
        self.simulation = simulation
        self.has_finished = has_finished
        self.runs = count_runs(simulation.isel(run=has_finished))
        self.is_paired = theory.sizes["run"] > 1  # one theory run for each run of the simulation
        self.alignment = _Alignment(theory, simulation)
        dtype = simulation.attrs.get("dtype", "float64")
        self.resolution = RESOLUTION[checks.choice("simulation.dtype", dtype, RESOLUTION)]
        self.numerical_error = sum(
            float(result.attrs.get(name, 0.0))
            for result in (theory, simulation)
            for name in NUMERICAL_ERRORS
        )

    def variables(self, name: str) -> dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]:
        """Theory, mean over runs, standard error and z of one variable, labelled."""
        self._check_shapes(name)
        values, interpolation = self.alignment.values(name)
        predicted = values[self.has_finished] if self.is_paired else values
        measured = np.asarray(self.simulation[name])[self.has_finished]
        # An infinite value has no standard error and no z: both are NaN.
        with np.errstate(invalid="ignore", over="ignore"):
            difference = measured - predicted
            mean = difference.mean(axis=0)
            error = self._standard_error(name, difference, interpolation.max(axis=0))
            z = self._z(mean, error, measured, predicted)
        dims = tuple(str(dim) for dim in self.simulation[name].dims if dim != "run")
        label = self.theory[name].attrs.get("long_name", name)
        columns = {
            "theory": (predicted.mean(axis=0), "theory"),
            "simulation": (measured.mean(axis=0), "mean over runs"),
            "standard_error": (error, "standard error of the mean"),
            "z": (z, "(simulation - theory)/standard error"),
        }
        return {
            f"{name}_{column}": (dims, array, {"long_name": f"{label}, {meaning}"})
            for column, (array, meaning) in columns.items()
        }

    def _check_shapes(self, name: str) -> None:
        """Raise ValueError if a variable has different shapes in the two results."""
        of_theory, of_runs = (result[name].shape[2:] for result in (self.theory, self.simulation))
        if of_theory != of_runs:
            raise ValueError(
                f"theory has {name} of shape {of_theory} and simulation {of_runs}. "
                "Use two results of one problem."
            )

    def _standard_error(
        self, name: str, difference: np.ndarray, interpolation: np.ndarray
    ) -> np.ndarray:
        """Standard error of the mean difference; NaN for a single run.

        The errors of the runs, of a sampled theory and of the interpolation are independent.
        """
        error = np.full(difference.shape[1:], np.nan)
        own_error = mean_error(self.simulation, name)
        if own_error is not None:
            error = own_error[0]
        elif self.runs > 1:
            error = difference.std(axis=0, ddof=1) / np.sqrt(self.runs)
        variable = (VARIABLES[name].error if name in VARIABLES else "") or name
        if variable + STANDARD_ERROR in self.theory:
            theory_error = self.alignment.values(variable + STANDARD_ERROR).values
            variance = theory_error[0] ** 2
            if self.is_paired:
                variance = (theory_error[self.has_finished] ** 2).mean(axis=0) / self.runs
            error = np.sqrt(error**2 + variance)
        self.alignment.record_error(interpolation, error)
        return np.sqrt(error**2 + interpolation**2)

    def _z(
        self, mean: np.ndarray, error: np.ndarray, measured: np.ndarray, predicted: np.ndarray
    ) -> np.ndarray:
        """The mean difference in standard errors, with the exceptions of the Notes of `compare`."""
        rounding = self.resolution * (1 + np.abs(measured).mean(axis=0))
        # All runs agree at a common start, and the error of a single run is NaN.
        has_error = error > rounding
        largest = np.nanmax(np.abs(predicted), initial=0.0)
        agrees = np.abs(mean) <= np.maximum(rounding, self.numerical_error * largest)
        differs = np.abs(mean) > (GROSS * largest if self.runs > 1 else np.inf)
        infinite = np.where(differs, np.copysign(np.inf, mean), np.nan)
        without_error = np.where(agrees, 0.0, infinite)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(has_error, mean / error, without_error)


class Interpolation(NamedTuple):
    """Values (run, time, ...) of a theory at save points of the simulation, and their errors."""

    values: np.ndarray
    error: np.ndarray


class _Alignment:
    """A theory at the save points of a simulation: as it is, solved again, or interpolated."""

    def __init__(self, theory: xr.Dataset, simulation: xr.Dataset) -> None:
        self.theory = theory
        self.times = np.asarray(simulation["t"], dtype=float)
        self.saved = np.asarray(theory["t"], dtype=float)
        # Rounding to whole steps moves a save point of the simulation by up to one step.
        self.step = _step_length(simulation)
        if self.times[0] < self.saved[0] - self.step or self.times[-1] > self.saved[-1] + self.step:
            raise ValueError(
                f"simulation has times {self.times[0]:g}..{self.times[-1]:g}, but theory only "
                f"{self.saved[0]:g}..{self.saved[-1]:g}. Solve for the same times."
            )
        self.nearest = np.abs(self.times[:, None] - self.saved).argmin(axis=1)
        distance = np.abs(self.times - self.saved[self.nearest])
        self.common = distance <= SAME_TIME * max(abs(self.saved[-1]), abs(self.times[-1]))
        self.solution = None if self.common.all() else _solve_again(theory, self.saved, self.times)
        self.kind = "common save points" if self.common.all() else "solved again"
        self.largest_error = 0.0  # of the interpolation, in standard errors

    def values(self, name: str) -> Interpolation:
        """A variable at the save points of the simulation."""
        stored = np.asarray(self.theory[name])
        values = stored[:, self.nearest]
        if self.common.all():
            return Interpolation(values, np.zeros(values.shape))
        is_common = _along_time(self.common, stored.ndim)
        solved = self._solved_values(name, stored)
        if solved is not None:
            return Interpolation(np.where(is_common, values, solved), np.zeros(values.shape))
        self.kind = "interpolated"
        between = _interpolate(self.times, self.saved, stored, self.step)
        return Interpolation(
            np.where(is_common, values, between.values), np.where(is_common, 0.0, between.error)
        )

    def _solved_values(self, name: str, stored: np.ndarray) -> np.ndarray | None:
        """Values of the new solution; None if it does not reproduce the stored values."""
        if self.solution is None or name not in self.solution:
            return None
        # With a schedule t is an integral, so that save points agree only up to rounding.
        solved_at = np.asarray(self.solution["t"])
        at_saved, at_times = (
            np.abs(points[:, None] - solved_at).argmin(axis=1)
            for points in (self.saved, self.times)
        )
        solution = np.asarray(self.solution[name])
        return solution[:, at_times] if _reproduces(solution[:, at_saved], stored) else None

    def record_error(self, interpolation: np.ndarray, error: np.ndarray) -> None:
        """Record the largest interpolation error in units of the standard error."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = interpolation / error
        largest = float(np.nanmax(ratio[interpolation > 0], initial=0.0))
        self.largest_error = max(self.largest_error, largest)

    def warn_of_errors(self) -> None:
        """Warn if interpolation errors are comparable to standard errors."""
        if self.largest_error > TOLERATED:
            warn(
                f"theory = {self.theory.attrs.get('method', 'result')}: the simulation has other "
                "save points, and the theory is interpolated with an estimated error of up to "
                f"{self.largest_error:.2g} standard errors of the runs, which is included in the "
                "standard error. Solve the theory at the save points of the simulation."
            )


def _step_length(simulation: xr.Dataset) -> float:
    """One step of the simulation in t."""
    if "step" not in simulation.coords or float(simulation["step"][-1]) == 0:
        return 0.0
    return float(simulation["t"][-1]) / float(simulation["step"][-1])


def _along_time(mask: np.ndarray, ndim: int) -> np.ndarray:
    """A mask over save points, shaped to broadcast over (run, time, ...)."""
    return mask.reshape(1, -1, *[1] * (ndim - 2))


def _solve_again(theory: xr.Dataset, saved: np.ndarray, times: np.ndarray) -> xr.Dataset | None:
    """Solve the ODE of a theory at its own save points and at others.

    Returns None if the result is not an ODE from t = 0, or does not record its problem.
    """
    if theory.attrs.get("method") != "solve_ode" or saved[0] != 0.0:
        return None
    try:
        problem, algorithm, start = problem_of(theory), algorithm_of(theory), start_from(theory, 0)
        spectrum = getattr(problem, "spectrum", None)
        # An infinite spectrum records its dimension too, which solve_ode does not accept.
        is_infinite = spectrum is not None and spectrum.infinite
        dimension = None if is_infinite else theory.attrs.get("dimension")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were issued with the theory
            return solve_ode(
                problem,
                algorithm,  # type: ignore[arg-type]
                start,
                times=np.union1d(saved, times),
                dimension=dimension,
            )
    except ValueError:
        return None


def _reproduces(solution: np.ndarray, stored: np.ndarray) -> bool:
    """Whether a new solution has the stored values, which a user may have changed."""
    scale = np.nanmax(np.abs(stored), initial=0.0)
    return solution.shape == stored.shape and np.allclose(
        solution, stored, rtol=0, atol=REPRODUCED * scale, equal_nan=True
    )


def _interpolate(
    times: np.ndarray, saved: np.ndarray, values: np.ndarray, step: float
) -> Interpolation:
    """Cubic splines through values (run, time, ...), NaN beyond the last finite value.

    Their error is estimated by the distance of the spline from straight lines. With fewer than four
    points a spline has no curvature of its own. The estimate is then the change over the interval,
    times 4 s (1 - s) at the share s of it.
    """
    other_axes = tuple(axis for axis in range(values.ndim) if axis != 1)
    is_finite = np.isfinite(values).all(axis=other_axes)
    shape = (values.shape[0], len(times), *values.shape[2:])
    if is_finite.sum() < 2:
        constant = values.shape[1] == 1
        filled = np.broadcast_to(values, shape) if constant else np.full(shape, np.nan)
        return Interpolation(filled, np.zeros(shape))
    # Imported here, because most comparisons do not need it.
    from scipy.interpolate import CubicSpline, make_interp_spline

    points, point_values = saved[is_finite], values[:, is_finite]
    spline = CubicSpline(points, point_values, axis=1, extrapolate=True)(times)
    if len(points) < 4:
        left = np.clip(np.searchsorted(points, times, side="right") - 1, 0, len(points) - 2)
        share = np.clip((times - points[left]) / (points[left + 1] - points[left]), 0.0, 1.0)
        change = np.abs(point_values[:, left + 1] - point_values[:, left])
        error = change * _along_time(4 * share * (1 - share), values.ndim)
    else:
        error = np.abs(spline - make_interp_spline(points, point_values, k=1, axis=1)(times))
    spline[:, times > points[-1] + step] = np.nan
    return Interpolation(spline, error)
