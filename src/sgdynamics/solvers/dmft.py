"""Dynamical mean-field theory: paths of the effective process of a fixed data set (`limits.dmft`), their means and standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import checks, conditioning
from sgdynamics.algorithms.fixed_data import FixedData, checked_fixed_data
from sgdynamics.arrays import Given
from sgdynamics.limits.dmft import FEWER, FEWEST_PATHS, Sweep, within_reach
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import Start
from sgdynamics.progress import meter, warn
from sgdynamics.results import largest_share
from sgdynamics.solvers.doors import Door, closed, opened
from sgdynamics.support import require
from sgdynamics.variables import STANDARD_ERROR, VARIABLES

FEW_COORDINATES = 100  # of a block, whose limit they are far from


@float64
def solve_dmft(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    *,
    times: Given | None = None,
    alpha: Given | None = None,
    steps: Given | None = None,
    paths: int = 20000,
    seed: int = 0,
    replicates: int = 4,
    tolerance: float = 1e-5,
    rank: int | None = None,
    two_time: bool = False,
    dtype: str = "float64",
    memory: float | None = None,
    progress: bool | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Overlaps, training risk and population risk of a fixed-data algorithm at d -> infinity, at its own finite learning rate.

    Give exactly one of ``times``, ``alpha``, ``steps``.

    Parameters
    ----------
    problem : Problem
        What is learned, with Gaussian inputs.
    algorithm : GradientDescent, MultiPassSGD, PersistentSGD or Langevin
        How, on a fixed data set.
    start : Start
        Where, of one run or several. With M = 0 a run stays there only up to the sampling error of the paths, from which an unstable M = 0
        will leave.
    times : array_like, optional
        Save points in t = lr steps, rounded to whole steps.
    alpha : array_like, optional
        Save points in samples used/d.
    steps : array_like, optional
        Save points in steps.
    paths : int, default 20000
        Of the effective process, in all.
    seed : int, default 0
        Of the random numbers.
    replicates : int, default 4
        Independent sets of paths (each rounded to a power of two, for quasi-random points), whose spread gives every quantity X its
        ``X_standard_error``.
    tolerance : float, default 1e-05
        A gradient whose part outside of what is known is smaller than this share of it opens no new direction, so that smooth algorithms
        stay of low rank (the attribute ``rank`` tells how low).
    rank : int, optional
        How many directions memory is set aside for; as many as the steps may open unless given.
    two_time : bool, default False
        Add C(t, t') = W(t) W(t')^T and the response R(t, t') = tr dW_i(t)/dW_j(t') / d at all pairs of save points; R costs one more sweep
        of twice the cost a save point.
    dtype : str, default "float64"
        "float32" halves the memory.
    memory : float, optional
        Gigabytes beyond which the solution is refused before it starts; 80% of what is free unless given.
    progress : bool, optional
        A progress bar; unless given on a terminal only.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``, or ``sgd.on_train(...)`` of a sample.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``: their risks are the variable ``evaluated_risk``.

    Returns
    -------
    xarray.Dataset
        ``M``, ``Q``, ``a``, ``risk`` and ``train_risk``, each with its ``_standard_error``, and with ``two_time`` ``C`` and ``R``.

    Raises
    ------
    ValueError
        If an argument is refused, or memory or work (more than ten days) is beyond reach.

    Notes
    -----
    What is left of a bias of order 1/paths, and of the tolerance, is measured by solving again with a quarter of each set and four times
    the tolerance: a third of the change is part of the standard errors, in squares (not of R's; ``error_paths`` is its largest share of the
    training risk, ``error_sampling`` that of the whole standard error).
    Memory is 8 (dtype="float32": 4) bytes a path and direction, four times; it is known before the start, for the number of steps, or for
    ``rank`` directions where that is given.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> begin = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> result = sgd.solve_dmft(problem, algorithm, begin, steps=[0, 4], paths=1024, progress=False)
    >>> result["train_risk"].shape, "M_standard_error" in result
    ((1, 2), True)
    """
    require("solve_dmft", problem, algorithm)
    checked_fixed_data(algorithm)
    where = {"times": times, "alpha": alpha, "steps": steps, "seed": seed, "progress": progress}
    door = opened("solve_dmft", problem, algorithm, start, **where, whole_steps=True, record=record, evaluate=evaluate)
    if problem.spectrum is not None and problem.spectrum.multiplicities.min() < FEW_COORDINATES:
        warn("every block of the covariance is taken as infinite here, and some have few coordinates: sgd.simulate is exact for them")
    begin, when = door.begin, door.when
    replicates = checks.whole("replicates", replicates, 2)
    checks.choice("dtype", dtype, ("float64", "float32"))
    checks.choice("two_time", two_time, (False, True))
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    each = 1 << round(np.log2(max(checks.whole("paths", paths, 1) / replicates, 1)))
    if each < FEWEST_PATHS:
        raise checks.reject(
            "paths", paths, f"{replicates} replicates of {FEWEST_PATHS} paths at least: take {replicates * FEWEST_PATHS} or more"
        )
    rank = None if rank is None else checks.whole("rank", rank, 1)
    setting = (door.seed, replicates)
    floor = conditioning.ROUNDING[dtype]
    sweeps = [
        Sweep(problem, door.dynamics.algorithm, each, fewer, *setting, max(fewer * tolerance, floor), np.dtype(dtype))
        for fewer in (1, FEWER)
    ]
    within_reach(sweeps[0], when.step, rank, begin.runs, two_time)
    for sweep in sweeps:
        sweep.on_train = door.observables.losses()
        sweep.make_room(int(when.step[-1]), rank, memory)
    states = []
    with meter(f"DMFT, {each * replicates} paths", float(when.step[-1]) * begin.runs * (1 + 1 / FEWER), door.progress) as bar:
        for sweep in sweeps:
            found = []
            for run in range(begin.runs):
                one = Start(*(part[run : run + 1] for part in (begin.M_blocks, begin.Q_blocks, begin.a)))
                found.append(sweep.solve(one, when.step, two_time, bar))
            states.append({name: np.stack([part[name] for part in found]) for name in found[0]})  # (run, replicate, time, ...)
    return _dataset(door, states[0], states[1], sweeps[0], tolerance)


def _dataset(door: Door, states: dict[str, np.ndarray], fewer: dict[str, np.ndarray], sweep: Sweep, tolerance: float) -> xr.Dataset:
    """Means over replicates, and their standard errors, from these paths and from a quarter of them."""
    error, observed, of_others = 0.0, {}, 0.0
    for part in (states, fewer):
        part["risk"], error = door.dynamics.risk_of(part, door.when, None)
        observed, of_others = door.observed(part, 3)
        part |= observed
    means = {name: value.mean(axis=1) for name, value in states.items()}
    whole = {name: value.sum(axis=3) if name in ("M", "Q") else value for name, value in states.items()}  # all blocks together
    change = {name: (value.sum(axis=3) if name in ("M", "Q") else value) - whole[name] for name, value in fewer.items()}
    biases = {name: np.abs(value.mean(axis=1)) / (FEWER - 1) for name, value in change.items()}
    spreads = {name: value.std(axis=1, ddof=1) / np.sqrt(sweep.replicates) for name, value in whole.items()}
    errors = {name: np.hypot(value, biases.get(name, 0.0)) for name, value in spreads.items()}
    good = np.isfinite(means["Q"]).all(axis=(2, 3, 4))
    diverged_at = np.where(good.all(axis=1), np.nan, door.when.t[np.maximum(good.argmin(axis=1) - 1, 0)])
    texts = ()
    if not good.all():
        metastable = "at fixed lr the d -> infinity limit is only metastable; a smaller lr may help"
        texts = (f"the paths diverged after t = {np.nanmin(diverged_at):.4g}: {metastable}",)
    attributes = {
        "seed": door.seed,
        "paths": sweep.each * sweep.replicates,
        "replicates": sweep.replicates,
        "rank": sweep.rank,
        "tolerance": tolerance,
        "dtype": str(sweep.dtype),
        "assumptions": f"{door.dynamics.assumptions}, d -> infinity at fixed samples_per_dimension and lr",
        "error_quadrature": error,
        "error_sampling": largest_share(errors["train_risk"], means["train_risk"]),
        "error_paths": largest_share(biases["train_risk"], means["train_risk"]),
        "error_evaluated": of_others if "evaluated_risk" in observed else None,
    }
    more = {name: means[name] for name in observed}
    result = closed(door, "solve_dmft", means, attributes, {"diverged_at": diverged_at}, risk=means["risk"], warnings=texts, observed=more)
    for name in ("C", "R"):
        if name in means:
            result[name] = (("run", "time", *VARIABLES[name].axes), means[name], {"long_name": VARIABLES[name].meaning})
    for name in (*(name for name in VARIABLES if name in result and name in errors), *observed):
        label = result[name].attrs["long_name"]
        result[name + STANDARD_ERROR] = (result[name].dims, errors[name], {"long_name": f"{label}, standard error"})
    return result
