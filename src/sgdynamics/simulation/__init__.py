"""Finite dimension: the exact chain in the compressed space, and SGD itself in d dimensions; fresh samples or a fixed data set."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import xarray as xr

from sgdynamics import checks
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm
from sgdynamics.clock import clock, time_of_steps
from sgdynamics.gaussian.risk import risk_in_time
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, checked_kind, checked_start
from sgdynamics.results import largest_share, trajectory
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain, check_room
from sgdynamics.simulation.fixed_data import simulate_fixed_data
from sgdynamics.simulation.running import run
from sgdynamics.simulation.spiked import simulate_spiked


def simulate(
    problem: Problem | SpikedTensor,
    algorithm: OnePassSGD | FixedData,
    start: Start | SpikedStart,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: int,
    runs: int | None = None,
    seed: int = 0,
    method: str = "exact",
    dtype: str = "float64",
    progress: bool | None = None,
    shared_data: bool = False,
    stop_at: float | None = None,
) -> xr.Dataset:
    """SGD at dimension d: one pass over fresh samples, or an algorithm on a fixed data set.

    method="exact": the compressed chain, equal in law to SGD at any d >= signals + width (with momentum 2 width), at a cost without d.
    method="direct": SGD on d-dimensional weights, from a start with the same overlaps (dtype="float32" halves its memory).
    Give exactly one of `times`, `alpha`, `steps`; save points are rounded to whole steps. A start of one run serves any number
    of runs, one of n runs serves n. The same seed gives the same numbers, whatever the save points and the number of runs.
    The attribute `error_sampling` is the largest relative standard error of the mean risk over runs.
    A run that diverges is NaN from then on, with its last finite time in `diverged_at`; the others go on.
    `progress`: True or False, or None for a bar on a terminal only.
    With `GradientDescent`, `MultiPassSGD`, `PersistentSGD` or `Langevin` the result also has `train_risk`, the mean loss over the data set;
    method="exact" then is the exact law by Gaussian conditioning, without a data set, at a cost that grows with the steps squared, and
    method="direct" keeps the n x d data sets (float32 halves them, and sees the same data). There, and only there:
    `shared_data=True` lets all runs read one data set, from random directions with the start's overlaps (direct only);
    `stop_at` ends a run whose train risk is below it, seen every 100 steps, with the time in `stopped_at`; it then costs nothing.
    On the sphere such a run counts as diverged when it steps further than the sphere's diameter at a train risk above its first;
    for phase retrieval a warning says beforehand when samples are beyond the stability limit of the learning rate.
    A `SpikedTensor` has its own exact chain, its vector form ("direct") and, at small n, the tensors themselves (method="tensor").
    """
    checks.outside_jit("simulate")
    checked_kind(problem)
    progress = checks.flag("progress", progress, unsaid=True)
    shared_data = checks.flag("shared_data", shared_data)
    when = {"times": times, "alpha": alpha, "steps": steps}
    rest = {"dimension": dimension, "runs": runs, "seed": seed, "method": method, "dtype": dtype, "progress": progress}
    if isinstance(algorithm, FixedData) and not isinstance(problem, SpikedTensor):
        more = {"shared_data": shared_data, "stop_at": stop_at}
        return simulate_fixed_data(problem, algorithm, cast(Start, start), **when, **rest, **more)
    for name, value, default in (("shared_data", shared_data, False), ("stop_at", stop_at, None)):
        if value is not default:
            raise checks.reject(name, value, "this is for algorithms on a fixed data set (sgd.GradientDescent, ...): leave it out")
    if isinstance(problem, SpikedTensor):
        return simulate_spiked(problem, cast(OnePassSGD, algorithm), cast(SpikedStart, start), **when, **rest)
    checked_algorithm(algorithm, any_update=True)
    checks.choice("method", method, ("exact", "direct"))
    checks.choice("dtype", dtype, ("float64", "float32"))
    if method == "exact" and dtype != "float64":
        raise checks.reject("dtype", dtype, "the exact chain is biased at large d in float32: leave it at float64")
    d, sizes = check_dimension(problem, dimension, small=True)
    if method == "exact":
        check_room(problem, algorithm, sizes)
    seed = checks.whole("seed", seed, 0)
    when = clock(cast(OnePassSGD, algorithm), **when, dimension=d, whole_steps=True)
    problem.check_numbers(when.alpha[-1])
    begin = broadcast_runs(checked_start(problem, start), runs)
    if method == "exact":
        simulator: ExactChain | DirectSGD = ExactChain(problem, algorithm, begin, d, sizes)
    else:
        simulator = DirectSGD(problem, algorithm, begin, d, sizes, dtype)
    assert when.step is not None
    overlaps, last = run(simulator, begin.runs, when.step, seed, f"{method} simulation, d = {d}", progress)
    risk, error = risk_in_time(problem, overlaps, when.alpha)
    diverged_at = np.where(last >= 0, time_of_steps(algorithm, last, d), np.nan)
    if np.any(last >= 0):
        warnings.warn(
            f"{int((last >= 0).sum())} of {begin.runs} runs diverged, the first after t = {np.nanmin(diverged_at):.4g} "
            "(coordinate diverged_at); a smaller lr may help",
            stacklevel=2,
        )
    spread = risk.std(axis=0, ddof=1) / np.sqrt(begin.runs) if begin.runs > 1 and not np.any(last >= 0) else None
    attributes = {
        "seed": seed,
        "dimension": d,
        "dtype": dtype,
        "assumptions": "Gaussian inputs, one pass" + (", exact in law" if method == "exact" else ""),
        "error_quadrature": error,
        "error_sampling": None if spread is None else largest_share(spread, risk.mean(axis=0)),
    }
    return trajectory(problem, algorithm, when, overlaps, risk, diverged_at=diverged_at, method=f"simulate-{method}", attributes=attributes)
