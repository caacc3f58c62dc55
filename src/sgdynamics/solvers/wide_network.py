"""The limit of infinitely wide networks, for `solve_dmft`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule, evaluate_schedule
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Meter, meter
from sgdynamics.base.resources import check_memory
from sgdynamics.fixed_data.dmft import REDUCTION
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.fixed_data.wide_network import WideParameters, WideSetup
from sgdynamics.fixed_data.wide_network_runs import (
    NEURONS_PER_DIRECTION,
    BasisLimit,
    WideSweep,
    kernel_root,
)
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.results.build import build_result, divergence_warning, evaluate_observables
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import STANDARD_ERROR
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.dmft_arguments import DMFTArguments

DEFAULT_OPTIONS = DMFT()
TOLERANCE = 3e-3  # default of `sgd.DMFT(tolerance=)` for wide networks
BATCH_KEY = 1 << 21  # of the random batches, apart from those of runs
States = dict[str, np.ndarray]


def solve_wide_network(arguments: DMFTArguments) -> xr.Dataset:
    """The limit of `solve_dmft` for a `WideNetwork`, with sampled neurons."""
    problem, method, seed = arguments.problem, arguments.method, arguments.seed
    assert isinstance(problem, WideNetwork)
    arguments.require_defaults("wide networks have no response functions here", "two_time")
    arguments.require_defaults("only used with epochs and one pass", "cells")
    tolerance = _tolerance(method)
    call = arguments.validate()
    paths, replicates = arguments.paths, arguments.replicates
    replicates = checks.integer("replicates", replicates, 2)
    limit = BasisLimit(checks.integer("paths", paths, 1), replicates, method.rank)
    _require_neurons(problem, limit)
    neurons = limit.neurons
    _require_memory(problem, neurons, limit.directions, paths)
    work = float(call.save_steps[-1]) * replicates * (1 + 1 / REDUCTION)
    label = f"wide network, {replicates} times {neurons} neurons"
    full: list[States] = []
    reduced: list[States] = []
    rank = 0
    with meter(label, work, call.progress) as progress_meter:
        for replicate in range(replicates):
            for reduction, solutions in ((1, full), (REDUCTION, reduced)):
                sweep = _sweep(
                    call, neurons // reduction, limit, reduction * tolerance, (seed, replicate)
                )
                advance = partial(_count_steps, progress_meter, reduction)
                solutions.append(sweep.solve(call.save_steps, advance))
                rank = max(rank, sweep.directions)
    attributes = {
        "paths": replicates * neurons,
        "replicates": replicates,
        "tolerance": tolerance,
        "rank": rank,
        "seed": seed,
    }
    return _result(call, _stack(full), _stack(reduced), attributes)


def _count_steps(progress_meter: Meter, reduction: int, steps: int) -> None:
    """Count steps of a solution with fewer neurons, which are cheaper."""
    progress_meter.advance(steps / reduction)


def _tolerance(method: DMFT) -> float:
    """The tolerance of the bases; ValueError for options that wide networks do not have."""
    for name in ("dtype", "memory_directions", "keep", "form"):
        value = getattr(method, name)
        if value != getattr(DEFAULT_OPTIONS, name):
            fix = f"wide networks only use tolerance, rank and memory. Omit {name}."
            raise checks.reject(name, value, fix)
    return TOLERANCE if method.tolerance == DEFAULT_OPTIONS.tolerance else method.tolerance


def _require_neurons(problem: WideNetwork, limit: BasisLimit) -> None:
    """Raise ValueError if the neurons are so few that a finite network is as good."""
    neurons, replicates = limit.neurons, limit.replicates
    needed = 1 << math.ceil(math.log2(2 * NEURONS_PER_DIRECTION * problem.samples))
    if neurons < needed:
        fix = (
            f"each of the {replicates} replicates would have {neurons} neurons per layer, and "
            f"{problem.samples} inputs span at least as many directions. With so few neurons a "
            f"finite network is as good. Use paths = {replicates * needed} or more."
        )
        raise checks.reject("paths", limit.paths, fix)


def _require_memory(problem: WideNetwork, neurons: int, limit: int, paths: int) -> None:
    """Raise ValueError if the bases, the draws and the fields exceed the free memory."""
    links = problem.hidden_layers - 1
    rows = 8 * links * limit + 2 * problem.hidden_layers * limit
    rows += 6 * (problem.samples + problem.test_samples) * problem.hidden_layers
    fix = "use fewer paths, or method=sgd.DMFT(rank=...)."
    check_memory("paths", paths, 8.0 * rows * neurons, "the bases of the layers", fix)


def _sweep(
    call: SolverCall, neurons: int, limit: BasisLimit, tolerance: float, key: tuple[int, int]
) -> WideSweep:
    """One replicate, with this many neurons."""
    problem: WideNetwork = call.dynamics.problem
    algorithm = call.dynamics.algorithm
    update = getattr(algorithm, "update", None)
    setup = WideSetup(
        layers=problem.hidden_layers,
        activation=problem.activation,
        samples=problem.samples,
        test_samples=problem.test_samples,
        selects=algorithm.selects,
        velocity="" if update is None else update.law.name,
    )
    kernel, root = kernel_root(*problem.all_inputs())
    values = algorithm.parameters
    parameters = WideParameters(
        kernel=kernel,
        labels=problem.parameters["labels"],
        gamma0=problem.parameters["gamma0"],
        times=values["lr"].parameters["times"] if algorithm.scheduled else values["lr"],
        fraction=values["fraction"],
        divisor=values["divisor"],
        beta=_momentum_factors(algorithm, int(call.save_steps[-1])),
        tolerance=np.float64(tolerance),
        # All replicates see the same batches.
        key=jax.random.fold_in(jax.random.key(call.seed), BATCH_KEY),
    )
    return WideSweep(setup, parameters, root, neurons, limit, key)


@float64
def _momentum_factors(algorithm: FixedData, steps: int) -> np.ndarray:
    """The factor beta of momentum; for a function of t, its values in these steps."""
    if algorithm.update is None:
        return np.zeros(())
    beta = algorithm.update.numbers["beta"]
    if not isinstance(beta, Schedule):
        return np.asarray(beta, np.float64)
    times = elapsed_at(algorithm.lr, np.arange(max(steps, 1)))
    return evaluate_schedule(beta, np.asarray(times))


def _stack(solutions: list[States]) -> States:
    """Solutions (run, replicate, time, ...) of one run."""
    return {name: np.stack([states[name] for states in solutions])[None] for name in solutions[0]}


def _result(
    call: SolverCall, full: States, reduced: States, attributes: dict[str, Any]
) -> xr.Dataset:
    """Means over the replicates with their standard errors."""
    problem: WideNetwork = call.dynamics.problem
    observed: States = {}
    for states in (full, reduced):
        if problem.test_labels is not None:
            differences = states["test_outputs"] - np.asarray(problem.test_labels)
            states["test_risk"] = 0.5 * np.mean(differences**2, axis=-1)
        observed = evaluate_observables(call, states, 3)[0]
        states |= observed
    replicates = attributes["replicates"]
    means = {name: values.mean(axis=1) for name, values in full.items()}
    # The bias is of first order in 1/neurons.
    biases = {name: (means[name] - reduced[name].mean(axis=1)) / (REDUCTION - 1) for name in means}
    errors = {
        name: np.hypot(values.std(axis=1, ddof=1) / math.sqrt(replicates), biases[name])
        for name, values in full.items()
    }
    is_finite = np.isfinite(means["train_risk"])
    last_finite = np.maximum(is_finite.argmin(axis=1) - 1, 0)
    diverged_at = np.where(is_finite.all(axis=1), np.nan, call.clock.t[last_finite])
    risk = means["train_risk"]
    attributes = attributes | {
        "assumptions": call.dynamics.assumptions,
        "error_paths": largest_share(biases["train_risk"], risk),
        "error_sampling": largest_share(errors["train_risk"], risk),
    }
    standard_errors = {
        name + STANDARD_ERROR: error for name, error in errors.items() if name not in observed
    }
    result = build_result(
        call,
        "solve_dmft",
        means | standard_errors,
        attributes,
        {"diverged_at": diverged_at},
        risk=risk,
        warnings=divergence_warning(diverged_at),
        recorded={name: means[name] for name in observed},
    )
    for name in observed:
        label = f"{name}, standard error"
        result[name + STANDARD_ERROR] = (result[name].dims, errors[name], {"long_name": label})
    return result
