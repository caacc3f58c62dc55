"""Theory and simulation side by side: differences in standard errors."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.results.datasets import algorithm_of, problem_of, requested_clock
from sgdynamics.results.states import start_from
from sgdynamics.results.variables import STANDARD_ERROR, TIMES, VARIABLES, shared_variables
from sgdynamics.solvers.ode import solve_ode

RESOLUTION = {
    "float64": 1e-12,
    "float32": 1e-6,
}  # differences below this share of the values are rounding, not a deviation
SAME_TIME = 1e-9  # largest distance of equal save points, relative to the last one
REPRODUCED = 1e-5  # relative accuracy to which a new solution must reproduce the theory
# relative errors that results record
NUMERICAL_ERRORS = ("error_quadrature", "error_integrator", "error_binning")
GROSS = 0.01  # relative difference that no numerical error explains, where runs have no spread
TOLERATED = 0.1  # interpolation error, in standard errors, up to which no warning is given


def compare(theory: xr.Dataset, simulation: xr.Dataset) -> xr.Dataset:
    """Align two results and give their differences in standard errors.

    Parameters
    ----------
    theory : xarray.Dataset
        Result of a theory: one run, which is compared with all runs of the simulation, or one per
        run of the simulation.
    simulation : xarray.Dataset
        Runs of the same problem. Runs that diverged are left out.

    Returns
    -------
    xarray.Dataset
        For each variable that both results have (risks, M, Q, a, accuracy, recorded ones):
        ``NAME_theory``, ``NAME_simulation`` (mean over runs), ``NAME_standard_error`` and
        ``NAME_z`` = (simulation - theory)/standard error, at the save points of the simulation. The
        attribute ``runs_left_out`` counts the runs that diverged; ``alignment`` says how the theory
        was evaluated (see Notes).

    Raises
    ------
    ValueError
        If the results have no variable in common or variables of different shapes, if the
        simulation has save points outside the theory's time range, or if all runs diverged.

    Warns
    -----
    UserWarning
        Where the two record different problems, and where the theory is interpolated with an error
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
    >>> begin, algorithm = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)), sgd.OnePassSGD(lr=0.1)
    >>> theory = sgd.solve_ode(problem, algorithm, begin, times=[0.5, 1.0])
    >>> runs = sgd.simulate(problem, algorithm, begin, times=[0.5, 1.0], dimension=1000, runs=16)
    >>> table = sgd.compare(theory, runs)
    >>> table["risk_theory"].values.round(3).tolist(), table.attrs["alignment"]
    ([0.982, 0.498], 'common save points')
    """
    _check_results(theory, simulation)
    good = np.isnan(np.asarray(simulation["diverged_at"]))
    if not good.any():
        raise ValueError("simulation: all runs diverged, none is left to compare.")
    runs = int(good.sum())
    several = theory.sizes["run"] > 1
    if several and theory.sizes["run"] != simulation.sizes["run"]:
        raise ValueError(
            f"theory has {theory.sizes['run']} runs and simulation {simulation.sizes['run']}: give one theory run, or one for each"
        )
    if theory.attrs.get("problem") != simulation.attrs.get("problem"):
        warn("theory and simulation record different problems: see their attribute 'problem'")
    aligned = _Alignment(theory, simulation)
    resolution = RESOLUTION[
        checks.choice("simulation.dtype", simulation.attrs.get("dtype", "float64"), RESOLUTION)
    ]
    numerical = sum(
        float(result.attrs.get(name, 0.0))
        for result in (theory, simulation)
        for name in NUMERICAL_ERRORS
    )
    variables = {}
    for name in shared_variables(theory, simulation):
        if any(result[name].dims[:2] != ("run", "time") for result in (theory, simulation)):
            continue
        dims = tuple(dim for dim in simulation[name].dims if dim != "run")
        shapes = [result[name].shape[2:] for result in (theory, simulation)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"theory has {name} of shape {shapes[0]} and simulation {shapes[1]}: give results of one problem"
            )
        values, interpolation = aligned.values(name)
        predicted = values[good] if several else values
        measured = np.asarray(simulation[name])[good]
        difference = measured - predicted
        mean = difference.mean(axis=0)
        error = (
            difference.std(axis=0, ddof=1) / np.sqrt(runs)
            if runs > 1
            else np.full_like(mean, np.nan)
        )
        own_name = ((VARIABLES[name].error if name in VARIABLES else "") or name) + STANDARD_ERROR
        if own_name in theory:
            own = aligned.values(own_name)[0]
            error = np.sqrt(
                error**2 + ((own[good] ** 2).mean(axis=0) / runs if several else own[0] ** 2)
            )
        aligned.note_error(interpolation.max(axis=0), error)
        error = np.sqrt(error**2 + interpolation.max(axis=0) ** 2)
        rounding = resolution * (1 + np.abs(measured).mean(axis=0))
        spread = error > rounding  # none at a start that all runs share, and NaN for a single run
        largest = np.nanmax(np.abs(predicted), initial=0.0)
        same = np.abs(mean) <= np.maximum(rounding, numerical * largest)
        differs = np.abs(mean) > (GROSS * largest if runs > 1 else np.inf)
        without_error = np.where(same, 0.0, np.where(differs, np.copysign(np.inf, mean), np.nan))
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.where(spread, mean / error, without_error)
        label = theory[name].attrs.get("long_name", name)
        variables[f"{name}_theory"] = (
            dims,
            predicted.mean(axis=0),
            {"long_name": f"{label}, theory"},
        )
        variables[f"{name}_simulation"] = (
            dims,
            measured.mean(axis=0),
            {"long_name": f"{label}, mean over runs"},
        )
        variables[f"{name}_standard_error"] = (
            dims,
            error,
            {"long_name": f"{label}, standard error of the mean"},
        )
        variables[f"{name}_z"] = (
            dims,
            z,
            {"long_name": f"{label}, (simulation - theory)/standard error"},
        )
    aligned.warn_of_errors()
    coordinates = {
        name: simulation[name]
        for name in (*TIMES, "epoch", "evaluation")
        if name in simulation.coords
    }
    if (
        "evaluation" in coordinates
        and "evaluated_risk" in theory
        and not simulation["evaluation"].equals(theory["evaluation"])
    ):
        raise checks.reject(
            "simulation.evaluation",
            simulation["evaluation"].values.tolist(),
            "evaluate the same problems in both",
        )
    attributes = {
        "theory": theory.attrs.get("method", ""),
        "simulation": simulation.attrs.get("method", ""),
        "runs": runs,
        "runs_left_out": int((~good).sum()),
        "problem": simulation.attrs.get("problem", ""),
        "algorithm": simulation.attrs.get("algorithm", ""),
        "clock": requested_clock(simulation),
        "alignment": aligned.kind,
    }
    return xr.Dataset(variables, coordinates, attributes)


def _check_results(theory: xr.Dataset, simulation: xr.Dataset) -> None:
    """Raise ValueError for what is not a pair of results with times and runs."""
    for argument, value in (("theory", theory), ("simulation", simulation)):
        needed = ("t", "diverged_at") if argument == "simulation" else ("t",)
        checks.result(
            argument, value, "run", "time", *needed, fix="give a result of solve_ode or simulate"
        )
        for name in needed:
            checks.real_array(f"{argument}.{name}", value[name].values, "give numbers")
        axes = {"t": ("time",), "diverged_at": ("run",)}
        if (
            not value.sizes["time"]
            or not value.sizes["run"]
            or any(value[name].dims != axes[name] for name in needed)
        ):
            raise checks.reject(
                argument, dict(value.sizes), "give a result with one time and one run at least"
            )


class Interpolated(NamedTuple):
    """Values (run, time, ...) of a theory at the simulation's save points, and their interpolation error."""

    values: np.ndarray
    error: np.ndarray


class _Alignment:
    """A theory at the save points of a simulation: taken as it is, solved again, or interpolated."""

    def __init__(self, theory: xr.Dataset, simulation: xr.Dataset) -> None:
        self.theory = theory
        self.times, self.saved = (
            np.asarray(result["t"], dtype=float) for result in (simulation, theory)
        )
        # rounding to whole steps moves a save point of the simulation by up to one step
        self.step = _step_length(simulation)
        if self.times[0] < self.saved[0] - self.step or self.times[-1] > self.saved[-1] + self.step:
            raise ValueError(
                f"simulation has times {self.times[0]:g}..{self.times[-1]:g}, theory only {self.saved[0]:g}..{self.saved[-1]:g}: "
                "solve for the same times"
            )
        self.nearest = np.abs(self.times[:, None] - self.saved).argmin(axis=1)
        distance = np.abs(self.times - self.saved[self.nearest])
        self.common = distance <= SAME_TIME * max(abs(self.saved[-1]), abs(self.times[-1]))
        self.solution = None if self.common.all() else _solve_again(theory, self.saved, self.times)
        self.kind = "common save points" if self.common.all() else "solved again"
        self.worst = 0.0  # interpolation error in standard errors

    def values(self, name: str) -> Interpolated:
        """A variable at the simulation's save points."""
        stored = np.asarray(self.theory[name])
        values = stored[:, self.nearest]
        error = np.zeros(values.shape)
        if self.common.all():
            return Interpolated(values, error)
        if self.solution is not None and name in self.solution:
            # with a schedule t is an integral, so that save points agree to rounding only
            solved_at = np.asarray(self.solution["t"])
            of_saved, of_times = (
                np.abs(points[:, None] - solved_at).argmin(axis=1)
                for points in (self.saved, self.times)
            )
            again = np.asarray(self.solution[name])
            if _reproduces(again[:, of_saved], stored):
                new = again[:, of_times]
                return Interpolated(
                    np.where(_along_time(self.common, stored.ndim), values, new), error
                )
        self.kind = "interpolated"
        found = _interpolate(self.times, self.saved, stored, self.step)
        common = _along_time(self.common, stored.ndim)
        return Interpolated(
            np.where(common, values, found.values), np.where(common, 0.0, found.error)
        )

    def note_error(self, interpolation: np.ndarray, error: np.ndarray) -> None:
        """Remember the largest interpolation error in units of the standard error."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = interpolation / error
        self.worst = max(self.worst, float(np.nanmax(ratio[interpolation > 0], initial=0.0)))

    def warn_of_errors(self) -> None:
        """Warn where interpolation errors are comparable to standard errors."""
        if self.worst > TOLERATED:
            warn(
                f"theory = {self.theory.attrs.get('method', 'result')}: the simulation has other save points, and the theory "
                f"is interpolated with an estimated error of up to {self.worst:.2g} standard errors of the runs, which is "
                "included in the standard error. Solve the theory at the save points of the simulation."
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
    """Solve the ODE of a theory at its own save points and at others; None if its record is incomplete."""
    if theory.attrs.get("method") != "solve_ode" or saved[0] != 0.0:
        return None
    try:
        problem, algorithm, start = problem_of(theory), algorithm_of(theory), start_from(theory, 0)
        spectrum = getattr(problem, "spectrum", None)
        # an infinite spectrum records its dimension too, which solve_ode does not take
        dimension = (
            None if spectrum is not None and spectrum.infinite else theory.attrs.get("dimension")
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the theory itself has given them
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
) -> Interpolated:
    """Cubic splines through values (run, time, ...), NaN beyond the last finite value, with their error.

    The error is estimated by the distance of the spline from straight lines. Where there are fewer
    than four points, the spline has no curvature of its own to tell: there it is the change over
    the interval, times 4 s (1 - s) at the share s of it.
    """
    finite = np.isfinite(values).all(axis=tuple(axis for axis in range(values.ndim) if axis != 1))
    shape = (values.shape[0], len(times), *values.shape[2:])
    if finite.sum() < 2:
        filled = np.broadcast_to(values, shape) if values.shape[1] == 1 else np.full(shape, np.nan)
        return Interpolated(filled, np.zeros(shape))
    from scipy.interpolate import CubicSpline, make_interp_spline  # most results do not need it

    points, known = saved[finite], values[:, finite]
    result = CubicSpline(points, known, axis=1, extrapolate=True)(times)
    if len(points) < 4:
        left = np.clip(np.searchsorted(points, times, side="right") - 1, 0, len(points) - 2)
        share = np.clip((times - points[left]) / (points[left + 1] - points[left]), 0.0, 1.0)
        error = np.abs(known[:, left + 1] - known[:, left]) * _along_time(
            4 * share * (1 - share), values.ndim
        )
    else:
        error = np.abs(result - make_interp_spline(points, known, k=1, axis=1)(times))
    result[:, times > points[-1] + step] = np.nan
    return Interpolated(result, error)
