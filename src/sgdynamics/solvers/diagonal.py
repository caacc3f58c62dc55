"""Diagonal networks on a fixed data set for d -> infinity: coordinates are paths."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import validate_fixed_data
from sgdynamics.base import checks
from sgdynamics.fixed_data.diagonal_runs import DiagonalRuns
from sgdynamics.results.build import build_result, divergence_warning
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES
from sgdynamics.simulation.running import run_until
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.dmft_arguments import DMFTArguments

SMALLEST_SET = 64  # paths of a replicate
REDUCTION = 4  # paths of a replicate over those of the solution that measures their bias

States = dict[str, np.ndarray]


def solve_paths(arguments: DMFTArguments) -> xr.Dataset:
    """The limit of `solve_dmft`: means over replicates, with standard errors.

    The error of a mean combines the scatter of the replicates and the bias of a finite number of
    paths. That is of order 1/paths, so that a third of the change from a quarter of the paths is
    the bias.
    """
    validate_fixed_data(arguments.algorithm)
    reason = "diagonal networks are solved by paths of their weights"
    arguments.require_defaults(reason, "two_time", "method", "cells")
    call = arguments.validate()
    paths, replicates = arguments.paths, arguments.replicates
    replicates = checks.integer("replicates", replicates, 2)
    size = checks.integer("paths", paths, 1) // replicates
    if size < REDUCTION * SMALLEST_SET:
        fix = (
            f"each of the {replicates} replicates needs at least {REDUCTION * SMALLEST_SET} paths. "
            f"Use paths = {replicates * REDUCTION * SMALLEST_SET} or more."
        )
        raise checks.reject("paths", paths, fix)
    full, last = _solve_replicates(call, size, replicates)
    reduced, _ = _solve_replicates(call, size // REDUCTION, replicates)
    means = {name: values.mean(axis=0)[None] for name, values in full.items()}
    errors = {name: _standard_error(full[name], reduced[name]) for name in full}
    diverged_at = np.full(1, np.nan)
    if np.any(last >= 0):
        first = int(last[last >= 0].min())
        index = max(int(np.searchsorted(call.save_steps, first, side="right")) - 1, 0)
        diverged_at[0] = call.clock.t[index]
    reference = np.abs(means["train_risk"])
    bias = np.abs(reduced["train_risk"].mean(axis=0) - full["train_risk"].mean(axis=0))
    attributes = {
        "seed": call.seed,
        "paths": size * replicates,
        "replicates": replicates,
        "assumptions": f"{call.dynamics.assumptions}, d -> infinity",
        "error_sampling": largest_share(errors["train_risk"][None], reference),
        "error_paths": largest_share(bias[None] / (REDUCTION - 1), reference),
    }
    result = build_result(
        call,
        "solve_dmft",
        means,
        attributes,
        {"diverged_at": diverged_at},
        warnings=divergence_warning(diverged_at),
    )
    errors["risk"] = errors["excess_risk"]
    for name in VARIABLES:
        if name in result and name in errors:
            label = {"long_name": f"{result[name].attrs['long_name']}, standard error"}
            result[name + STANDARD_ERROR] = (result[name].dims, errors[name][None], label)
    return result


def _solve_replicates(call: SolverCall, size: int, replicates: int) -> tuple[States, np.ndarray]:
    """States (replicate, time, ...) of sets of this many paths, and their last finite steps."""
    problem, algorithm = call.dynamics.problem, call.dynamics.algorithm
    steps = call.save_steps
    simulator = DiagonalRuns(
        problem,
        algorithm,
        method="limit",
        block_sizes=problem.block_dimensions(size),
        samples=algorithm.samples_per_dimension * size,
        last_step=int(steps[-1]),
        seed=call.seed,
    )
    label = f"solve_dmft, {size} paths"
    states, last, _ = run_until(simulator, replicates, steps, call.seed, label, call.progress, None)
    return states, last


def _standard_error(full: np.ndarray, reduced: np.ndarray) -> np.ndarray:
    """Standard error of the mean over replicates (first axis), with the bias of the paths."""
    scatter = full.std(axis=0, ddof=1) / np.sqrt(len(full))
    bias = (reduced.mean(axis=0) - full.mean(axis=0)) / (REDUCTION - 1)
    return np.hypot(scatter, bias)
