"""The proportional limit of deep linear networks: deterministic, for `solve_dmft` and batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule
from sgdynamics.base.progress import warn
from sgdynamics.fixed_data.deep_linear import DeepSizes
from sgdynamics.fixed_data.deep_linear_runs import DeepRuns
from sgdynamics.fixed_data.network_runs import velocity_of
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.results.build import build_result, divergence_warning
from sgdynamics.results.clock import time_at_alpha
from sgdynamics.results.datasets import largest_share
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.running import run_until
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.dmft_arguments import DMFTArguments
from sgdynamics.solvers.dmft_cells import States, extrapolate_levels

FEW_COORDINATES = 100  # a block of fewer coordinates has no deterministic limit
SMALLEST_CELLS = 32  # cells per unit of samples/d
LARGEST_CELL = 0.05  # default largest lr depth gamma0^2 of a cell, at eigenvalue 1


def solve_limit(arguments: DMFTArguments) -> xr.Dataset:
    """The limit of `solve_dmft`: on a fixed data set, or one pass by cells."""
    problem, cells = arguments.problem, arguments.cells
    assert isinstance(problem, DeepLinear)
    reason = "the limit of a deep linear network is deterministic"
    arguments.require_defaults(reason, "paths", "replicates", "two_time", "method")
    on_data = isinstance(arguments.algorithm, FixedData)
    if on_data:
        arguments.require_defaults("only used with sgd.OnePassSGD", "cells")
    call = arguments.validate(whole_steps=on_data)
    require_many_coordinates(problem)
    if not on_data:
        return _solve_by_cells(call, cells)
    tabulated: FixedData = call.dynamics.algorithm
    sizes = limit_sizes(problem, tabulated.samples_per_dimension)
    simulator = DeepRuns(
        problem, tabulated, sizes, is_exact=False, last_step=int(call.save_steps[-1])
    )
    is_plain = not velocity_of(tabulated) and not simulator.setup.selects
    return solve_steps(call, "solve_dmft", simulator, call.save_steps, warns_of_rise=is_plain)


def limit_sizes(problem: DeepLinear, samples_per_dimension: float) -> DeepSizes:
    """Sizes of the spaces in units of d."""
    width = problem.parameters["width_per_dimension"]
    return DeepSizes(samples_per_dimension, problem.fractions, width)


def require_many_coordinates(problem: DeepLinear) -> None:
    """Raise ValueError for a spectrum with blocks that have no deterministic limit.

    The initial predictor has a random component along a single coordinate, and the dynamics is not
    linear in it, so that the risk stays random for d -> infinity.
    """
    spectrum = problem.spectrum
    if spectrum is not None and spectrum.multiplicities.min() < FEW_COORDINATES:
        fix = (
            f"a block has {spectrum.multiplicities.min()} coordinates. Leading eigenvalues of few "
            "coordinates make the risk random even for d -> infinity, so that there is no "
            f"deterministic limit (at least {FEW_COORDINATES} coordinates per block). Use "
            "sgd.simulate, which is exact for them (method='direct' is faster with many blocks)."
        )
        raise checks.reject("covariance", spectrum, fix)


def solve_steps(
    call: SolverCall,
    method: str,
    simulator: DeepRuns,
    save_steps: np.ndarray,
    *,
    warns_of_rise: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """The result of the deterministic recursion at these steps."""
    states, last, _ = run_until(simulator, 1, save_steps, 0, method, call.progress, None)
    t = call.clock.t
    diverged_at = np.full(1, np.nan)
    if last[0] >= 0:
        diverged_at[0] = t[np.searchsorted(save_steps, last[0], side="right") - 1]
    warnings = divergence_warning(diverged_at)
    # After a divergence the states are NaN, and the warning is that of the divergence.
    rose_at = -1 if warnings or "rose_at" not in states else int(states["rose_at"][0, -1])
    if warns_of_rise and rose_at >= 0:
        warnings = (
            f"The training risk rises at step {rose_at}: the learning rate is beyond the edge of "
            "stability, where finite networks differ much from the limit. Use a smaller lr, or "
            "sgd.simulate.",
        )
    described = {"assumptions": f"{call.dynamics.assumptions}, width and d -> infinity"}
    return build_result(
        call,
        method,
        states,
        described | dict(attributes or {}),
        {"diverged_at": diverged_at},
        warnings=warnings,
    )


def _solve_by_cells(call: SolverCall, cells: int | None) -> xr.Dataset:
    """One-pass SGD: m fresh batches of d/m samples per unit of samples/d, extrapolated in 1/m."""
    problem, algorithm = call.dynamics.problem, call.dynamics.algorithm
    rate = _plain_rate(algorithm)
    plain = algorithm if algorithm.update is None else algorithm.replace(update=None)
    assert call.clock.alpha is not None
    end = float(call.clock.alpha[-1])
    largest_rate = rate * float(np.max(algorithm.rates(np.linspace(0.0, end, 129))))
    count = _number_of_cells(problem, largest_rate, cells)
    # All levels have a whole number of cells up to each save point.
    coarse_steps = np.round(call.clock.alpha * count / 4).astype(np.int64)
    if len(np.unique(coarse_steps)) < len(coarse_steps):
        warn(
            f"Save points are rounded to multiples of 4/cells = {4 / count:.3g} of samples/d, so "
            f"that some of the {len(coarse_steps)} save points coincide. Use more cells."
        )
    alpha = coarse_steps * 4 / count
    clock = replace(call.clock, alpha=alpha, t=time_at_alpha(algorithm, alpha))
    call = replace(call, clock=clock)
    levels: list[States] = []
    diverged = False
    for refinement in (1, 2, 4):
        per_unit = refinement * count // 4
        save_steps = refinement * coarse_steps
        simulator = DeepRuns(
            problem,
            plain,
            limit_sizes(problem, 1 / per_unit),
            is_exact=False,
            unit=rate / per_unit,
            alpha_per_step=1 / per_unit,
            last_step=int(save_steps[-1]),
        )
        label = f"solve_dmft, {per_unit} cells"
        states, last, _ = run_until(simulator, 1, save_steps, 0, label, call.progress, None)
        diverged = diverged or bool(last[0] >= 0)
        levels.append(states)
    states, errors = extrapolate_levels(levels)
    has_failed = ~np.isfinite(states["excess_risk"]) | (states["excess_risk"] < 0)
    has_failed = np.logical_or.accumulate(has_failed, axis=1)
    diverged_at, warnings = np.full(1, np.nan), ()
    if has_failed.any():
        first = int(np.argmax(has_failed[0]))
        diverged_at[0] = clock.t[max(first - 1, 0)]
        warnings = (
            f"cells = {count}: the solutions with a quarter, a half and all of the cells do not "
            f"converge at t = {clock.t[first]:.4g}, and values from there on are NaN. Use more "
            "cells or a smaller lr.",
        )
        for name, values in states.items():
            shape = (*has_failed.shape, *[1] * (values.ndim - 2))
            states[name] = np.where(has_failed.reshape(shape), np.nan, values)
    error = largest_share(errors["excess_risk"], states["excess_risk"] + 0.5 * problem.noise)
    attributes = {
        "assumptions": f"{call.dynamics.assumptions}, width and d -> infinity",
        "cells": count,
        "error_cells": error,
    }
    return build_result(
        call, "solve_dmft", states, attributes, {"diverged_at": diverged_at}, warnings=warnings
    )


def _plain_rate(algorithm: OnePassSGD) -> float:
    """Rate per sample over lr: 1/batch, and 1/(1 - beta) with momentum.

    The memory of momentum is short compared with the d steps of a unit of time.
    """
    if algorithm.update is None:
        return 1 / algorithm.batch
    beta = algorithm.update.numbers["beta"]
    if isinstance(beta, Schedule):
        raise checks.reject("beta", beta, "one pass supports a constant beta here. Use a number.")
    return 1 / (algorithm.batch * (1 - float(beta)))


def _number_of_cells(problem: DeepLinear, rate: float, cells: int | None) -> int:
    """Cells per unit of samples/d, a multiple of 4; `rate` is the largest one per sample."""
    if cells is not None:
        return 4 * math.ceil(checks.integer("cells", cells, 4) / 4)
    eigenvalue = float(input_covariance.eigenvalues(problem.parameters).max())
    curvature = problem.depth * max(1.0, problem.gamma0**2) * max(1.0, eigenvalue)
    needed = max(SMALLEST_CELLS, rate * curvature / LARGEST_CELL)
    return 4 * math.ceil(needed / 4)


def solve_fresh_batches(call: SolverCall, samples_per_dimension: float) -> xr.Dataset:
    """The limit of `solve_large_batch`: each step sees samples_per_dimension d fresh samples."""
    problem = call.dynamics.problem
    require_many_coordinates(problem)
    steps = call.save_steps
    alpha_step = samples_per_dimension if math.isfinite(samples_per_dimension) else 1.0
    simulator = DeepRuns(
        problem,
        call.dynamics.algorithm,
        limit_sizes(problem, samples_per_dimension),
        is_exact=False,
        alpha_per_step=alpha_step,
        last_step=int(steps[-1]),
    )
    attributes = {"samples_per_dimension": samples_per_dimension}
    return solve_steps(call, "solve_large_batch", simulator, steps, attributes=attributes)
