"""Theory and simulation side by side: differences in standard errors."""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr

from sgdynamics import checks
from sgdynamics.variables import STANDARD_ERROR, TIMES, VARIABLES, compared

RESOLUTION = {"float64": 1e-12, "float32": 1e-6}  # differences below this share of the values are rounding, not a deviation


def compare(theory: xr.Dataset, simulation: xr.Dataset) -> xr.Dataset:
    """Align two results and give their differences in standard errors.

    Parameters
    ----------
    theory : xarray.Dataset
        What a theory (or anything else without runs of its own) says: one run stands against all of the simulation, of several each
        against its own. It is interpolated (cubic spline) to the simulation's times, which are rounded to whole steps.
    simulation : xarray.Dataset
        Runs of the same problem. Those that diverged are left out.

    Returns
    -------
    xarray.Dataset
        For each of the risks, M, Q, a, accuracy, and whatever else was recorded, that both have: ``NAME_theory``, ``NAME_simulation`` (mean
        over runs), ``NAME_standard_error`` (of both together, where the theory has sampling errors of its own, as DMFT has) and ``NAME_z``
        = (simulation - theory)/standard error. The attribute ``runs_left_out`` counts runs that diverged.

    Raises
    ------
    ValueError
        If the two have no variable in common, other shapes, or no run that did not diverge.

    Warns
    -----
    UserWarning
        Where the two record different problems.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin, algorithm = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)), sgd.OnePassSGD(lr=0.1)
    >>> theory = sgd.solve_ode(problem, algorithm, begin, times=[0.5, 1.0])
    >>> runs = sgd.simulate(problem, algorithm, begin, times=[0.5, 1.0], dimension=1000, runs=16)
    >>> bool(abs(sgd.compare(theory, runs)["risk_z"]).max() < 5)
    True
    """
    for argument, value in (("theory", theory), ("simulation", simulation)):
        needed = ("t", "diverged_at") if argument == "simulation" else ("t",)
        checks.result(argument, value, "run", "time", *needed, fix="give a result of solve_ode or simulate")
        for name in needed:
            checks.numbers(f"{argument}.{name}", value[name].values, "give numbers")
        axes = {"t": ("time",), "diverged_at": ("run",)}
        if not value.sizes["time"] or not value.sizes["run"] or any(value[name].dims != axes[name] for name in needed):
            raise checks.reject(argument, dict(value.sizes), "give a result with one time and one run at least")
    good = np.isnan(np.asarray(simulation["diverged_at"]))
    if not good.any():
        raise ValueError("simulation: all runs have diverged, nothing is left to compare")
    runs = int(good.sum())
    several = theory.sizes["run"] > 1
    if several and theory.sizes["run"] != simulation.sizes["run"]:
        raise ValueError(
            f"theory has {theory.sizes['run']} runs and simulation {simulation.sizes['run']}: give one theory run, or one for each"
        )
    if theory.attrs.get("problem") != simulation.attrs.get("problem"):
        warnings.warn("theory and simulation record different problems: see their attribute 'problem'", stacklevel=2)
    times = np.asarray(simulation["t"])
    known = np.asarray(theory["t"])
    step = _step_length(simulation)
    if times[0] < known[0] - step or times[-1] > known[-1] + step:
        raise ValueError(
            f"simulation has times {times[0]:g}..{times[-1]:g}, theory only {known[0]:g}..{known[-1]:g}: solve for the same times"
        )
    variables = {}
    resolution = RESOLUTION[checks.choice("simulation.dtype", simulation.attrs.get("dtype", "float64"), RESOLUTION)]
    for name in compared(theory, simulation):
        if any(one[name].dims[:2] != ("run", "time") for one in (theory, simulation)):
            continue
        dims = tuple(dim for dim in simulation[name].dims if dim != "run")
        shapes = [tuple(one[name].sizes[dim] for dim in one[name].dims if dim not in ("run", "time")) for one in (theory, simulation)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"theory has {name} of shape {shapes[0]} and simulation {shapes[1]}: give results of one problem")
        predicted = _at(times, known, np.asarray(theory[name]), step)
        measured = np.asarray(simulation[name])[good]
        difference = measured - (predicted[good] if several else predicted)
        mean = difference.mean(axis=0)
        error = difference.std(axis=0, ddof=1) / np.sqrt(runs) if runs > 1 else np.full_like(mean, np.nan)
        of_theory = (VARIABLES[name].error if name in VARIABLES else "") or name
        of_theory += STANDARD_ERROR
        if of_theory in theory:
            own = _at(times, known, np.asarray(theory[of_theory]), step)
            error = np.sqrt(error**2 + (own[good] ** 2).mean(axis=0) / runs if several else error**2 + own[0] ** 2)
        scale = np.abs(measured).mean(axis=0)
        # a start that both share has no spread and no difference beyond rounding: 0 standard errors apart, not 0/0
        same = np.abs(mean) <= resolution * (1 + scale)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.where(same & ~(error > resolution * (1 + scale)), 0.0, mean / error)
        expected = (predicted[good] if several else predicted).mean(axis=0)
        label = theory[name].attrs.get("long_name", name)
        variables[f"{name}_theory"] = (dims, expected, {"long_name": f"{label}, theory"})
        variables[f"{name}_simulation"] = (dims, measured.mean(axis=0), {"long_name": f"{label}, mean over runs"})
        variables[f"{name}_standard_error"] = (dims, error, {"long_name": f"{label}, standard error of the mean"})
        variables[f"{name}_z"] = (dims, z, {"long_name": f"{label}, (simulation - theory)/standard error"})
    coordinates = {name: simulation[name] for name in (*TIMES, "evaluation") if name in simulation.coords}
    if "evaluation" in coordinates and "evaluated_risk" in theory and not simulation["evaluation"].equals(theory["evaluation"]):
        raise checks.reject("simulation.evaluation", simulation["evaluation"].values.tolist(), "evaluate the same problems in both")
    attributes = {
        "theory": theory.attrs.get("method", ""),
        "simulation": simulation.attrs.get("method", ""),
        "runs": runs,
        "runs_left_out": int((~good).sum()),
        "problem": simulation.attrs.get("problem", ""),
        "algorithm": simulation.attrs.get("algorithm", ""),
    }
    return xr.Dataset(variables, coordinates, attributes)


def _step_length(simulation: xr.Dataset) -> float:
    """One step in t: how far rounding to whole steps may have moved a save point."""
    if "step" not in simulation.coords or float(simulation["step"][-1]) == 0:
        return 0.0
    return float(simulation["t"][-1]) / float(simulation["step"][-1])


def _at(times: np.ndarray, known: np.ndarray, values: np.ndarray, step: float) -> np.ndarray:
    """Values (run, time, ...) at other times; NaN more than one step beyond the last that is finite."""
    if len(known) == len(times) and np.allclose(known, times, rtol=1e-12, atol=0):
        return values
    if len(known) == 1:
        return values
    finite = np.isfinite(values).all(axis=tuple(axis for axis in range(values.ndim) if axis != 1))
    if finite.sum() < 2:
        return np.full((values.shape[0], len(times), *values.shape[2:]), np.nan)
    from scipy.interpolate import CubicSpline  # here: two results at the same times do without

    result = CubicSpline(known[finite], values[:, finite], axis=1, extrapolate=True)(times)
    result[:, times > known[finite][-1] + step] = np.nan
    return result
