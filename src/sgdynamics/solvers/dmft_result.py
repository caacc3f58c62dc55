"""The result of `solve_dmft`: means over replicates, their standard errors, and warnings.

The standard error of a mean over r replicates combines, in quadrature, the scatter of the
replicates, the bias from the finite number of paths, and where they apply the errors from cells,
from bounded memory and from single precision. Each of the last four is measured by another
solution of the same equations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.dynamics.fields import FieldDynamics, head_variables
from sgdynamics.fixed_data.bounded_memory import Memory
from sgdynamics.fixed_data.dmft import REDUCTION, Sweep
from sgdynamics.results.build import build_result, divergence_warning, evaluate_observables
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import STANDARD_ERROR, TOP_PREFIX, VARIABLES
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.dmft_cells import (
    TWO_TIME_NAMES,
    States,
    extrapolate_levels,
    failed_save_points,
    failure_warning,
)

LARGE_LANGEVIN_ERROR = (
    0.05  # relative standard error of Langevin dynamics above which a warning is given
)


@dataclass(frozen=True)
class Solutions:
    """Solutions (run, replicate, time, ...) of one call, each with one entry per level of cells.

    `half_memory` and `double` are solved with the reduced number of paths: with half of a bounded
    memory, and in double precision.
    """

    full: list[States]
    reduced: list[States]
    half_memory: list[States] | None = None
    double: list[States] | None = None

    def all_states(self) -> list[States]:
        groups = (self.full, self.reduced, self.half_memory, self.double)
        return [states for levels in groups if levels is not None for states in levels]


@dataclass(frozen=True)
class _Errors:
    """Standard errors by name, and the contributions that become attributes."""

    total: States
    paths: States
    cells: States
    memory: States | None
    storage: States | None


def dmft_result(
    call: SolverCall,
    solutions: Solutions,
    sweep: Sweep,
    tolerance: float,
    memory: Memory | None,
) -> xr.Dataset:
    """The dataset of a call; `sweep` is the one with all paths and the most cells."""
    risk_error, observed, evaluated_error = 0.0, {}, 0.0
    for states in solutions.all_states():
        # The population risk is a function of the overlaps of each replicate.
        states["risk"], risk_error = call.dynamics.risk_along(states, call.clock, None)
        observed, evaluated_error = evaluate_observables(call, states, 3)
        states |= observed
    values, cell_corrections = extrapolate_levels(solutions.full)
    # Axis 1 are the replicates.
    means = {name: value.mean(axis=1) for name, value in values.items()}
    errors = _standard_errors(solutions, values, cell_corrections, sweep.sampling.replicates)
    warnings = ()
    if errors.cells:
        initial_risk = np.array(sweep.initial_risk)
        has_failed = failed_save_points(solutions.full, means, errors.cells, initial_risk)
        if has_failed.any():
            warnings = (failure_warning(sweep.cells, call.clock.t, has_failed),)
        for states in (means, errors.total):
            # C and R have one more time axis, and stay.
            for name in states.keys() - set(TWO_TIME_NAMES):
                states[name][has_failed] = np.nan
    is_finite = np.isfinite(means["Q"]).all(axis=(2, 3, 4))
    # Index of the last finite save point, or the first one
    last_finite = np.maximum(is_finite.argmin(axis=1) - 1, 0)
    diverged_at = np.where(is_finite.all(axis=1), np.nan, call.clock.t[last_finite])
    if not warnings:
        warnings = divergence_warning(
            diverged_at,
            remedy="At fixed lr the limit d -> infinity may be only metastable. Use a smaller lr.",
        )
    warnings += large_error_warnings(means, errors.total, errors.cells, sweep.setup.thermal)
    attributes = _attributes(call, sweep, tolerance, memory, means, errors)
    attributes["error_quadrature"] = risk_error
    # Attributes that are None are left out of the result.
    attributes["error_evaluated"] = evaluated_error if "evaluated_risk" in observed else None
    if errors.cells:
        call = replace(call, clock=replace(call.clock, step=None))  # cells are no steps
    result = build_result(
        call,
        "solve_dmft",
        means,
        attributes,
        {"diverged_at": diverged_at},
        risk=means["risk"],
        warnings=warnings,
        recorded={name: means[name] for name in observed},
    )
    for name in TWO_TIME_NAMES:
        if name in means:
            dims = ("run", "time", *VARIABLES[name].axes)
            result[name] = (dims, means[name], {"long_name": VARIABLES[name].meaning})
    # Standard errors in the order of the documented variables
    assert isinstance(call.dynamics, FieldDynamics)
    total = errors.total | head_variables(call.dynamics.structure, errors.total["a"])
    leaves = [name for name in total if name.startswith(TOP_PREFIX)]
    standard = [name for name in VARIABLES if name in result and name in total]
    for name in (*standard, *leaves, *observed):
        label = f"{result[name].attrs['long_name']}, standard error"
        result[name + STANDARD_ERROR] = (
            result[name].dims,
            total[name],
            {"long_name": label},
        )
    return result


def _standard_errors(
    solutions: Solutions, values: States, cell_corrections: States, replicates: int
) -> _Errors:
    full, corrections = _sum_blocks(values), _sum_blocks(cell_corrections)
    # The reference of all error estimates by a reduced number of paths
    reduced = _sum_blocks(extrapolate_levels(solutions.reduced)[0])

    def changes(levels: list[States] | None) -> States | None:
        """Mean change from the reduced solution to one that differs in one respect."""
        if levels is None:
            return None
        states = _sum_blocks(extrapolate_levels(levels)[0])
        return {
            name: np.abs((value - reduced[name]).mean(axis=1)) for name, value in states.items()
        }

    # A bias c/n of n paths is a third of the change from n to n/4 paths, c (4/n - 1/n)/3.
    paths = {
        name: np.abs((value - full[name]).mean(axis=1)) / (REDUCTION - 1)
        for name, value in reduced.items()
    }
    cells = {
        name: np.abs(value.mean(axis=1))
        for name, value in corrections.items()
        if name not in TWO_TIME_NAMES
    }
    memory, storage = changes(solutions.half_memory), changes(solutions.double)
    systematic = [errors for errors in (paths, cells, memory, storage) if errors is not None]
    total = {}
    for name, value in full.items():
        # Standard error of a mean over independent replicates
        scatter = value.std(axis=1, ddof=1) / np.sqrt(replicates)
        squares = sum(errors.get(name, 0.0) ** 2 for errors in systematic)
        total[name] = np.sqrt(scatter**2 + squares)
    return _Errors(total, paths, cells, memory, storage)


def _attributes(
    call: SolverCall,
    sweep: Sweep,
    tolerance: float,
    memory: Memory | None,
    means: States,
    errors: _Errors,
) -> dict[str, Any]:
    def relative(contribution: States) -> float:
        return largest_share(contribution["train_risk"], means["train_risk"])

    limit = "d -> infinity at fixed samples_per_dimension and lr"
    attributes = {
        "seed": call.seed,
        "paths": sweep.total_paths,
        "replicates": sweep.sampling.replicates,
        "rank": sweep.rank,
        "form": sweep.form,
        "tolerance": tolerance,
        "dtype": str(sweep.dtype),
        "assumptions": f"{call.dynamics.assumptions}, {limit}",
        "error_sampling": relative(errors.total),
        "error_paths": relative(errors.paths),
    }
    if errors.cells:
        attributes |= {"cells": sweep.cells, "error_cells": relative(errors.cells)}
    if memory is not None and errors.memory is not None:
        attributes |= {"memory_directions": memory.directions, "keep": memory.keep}
        attributes["error_memory"] = relative(errors.memory)
    if errors.storage is not None:
        attributes["error_storage"] = relative(errors.storage)
    return attributes


def large_error_warnings(
    means: States, errors: States, cell_errors: States, is_thermal: bool
) -> tuple[str, ...]:
    """Warnings about standard errors that exceed the value, or 5% in Langevin dynamics."""
    warnings = []
    for name in ("risk", "train_risk"):
        is_large = errors[name] > np.abs(means[name])
        if is_large.any():
            # The advice depends on which contribution is the largest.
            from_cells = bool(cell_errors) and np.any(
                cell_errors[name][is_large] > errors[name][is_large] / 2
            )
            warnings.append(
                f"The standard error of {name} exceeds its value at {int(is_large.sum())} of "
                f"{is_large.size} save points. Use more {'cells' if from_cells else 'paths'}, or "
                "sgd.simulate."
            )
    relative = largest_share(errors["train_risk"], means["train_risk"])
    if is_thermal and not warnings and relative > LARGE_LANGEVIN_ERROR:
        warnings.append(
            f"The standard error of train_risk is up to {100 * relative:.2g}%: that of Langevin "
            "dynamics grows with the number of steps, because each step adds new directions. Use "
            "more paths, or sgd.simulate, which is cheaper here."
        )
    return tuple(warnings)


def _sum_blocks(states: States) -> States:
    """States with M and Q summed over covariance blocks, as results have them."""
    return {
        name: value.sum(axis=3) if name in ("M", "Q") else value for name, value in states.items()
    }
