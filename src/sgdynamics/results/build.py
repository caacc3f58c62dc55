"""`build_result`: the Dataset of a solution, shared by all solvers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.progress import warn
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share, record, time_coordinates
from sgdynamics.results.observables import Observables, evaluate_functions, label_recorded

Arrays = dict[str, np.ndarray]
# A Dataset or the ResultParts that it is made of.
Container = TypeVar("Container")


class Labels(NamedTuple):
    """Meaning and axes (after run and time) of variables, and the coordinates of those axes."""

    variables: Mapping[str, tuple[Any, ...]]
    coordinates: dict[str, Any]


class ResultSource(ABC):
    """The dynamics that produced a result, as the result needs to know it."""

    problem: Any  # each dynamics has its own class of problems
    algorithm: OnePassSGD | FixedData
    dimension_symbol: ClassVar[str] = "d"

    @abstractmethod
    def risk_along(
        self, states: Arrays, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        """Risks of states (..., time, ...) at the save points, and their largest relative error."""

    @abstractmethod
    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        """Labels of the variables of a result."""

    @property
    def has_risk(self) -> bool:
        """Whether the dynamics has a population risk."""
        return True

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        """The variables of a result. Scalars named error_* become attributes of the result."""
        return {**states, "risk": risk}

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        """The states as functions of the user see them, with this many leading axes."""
        return states

    def input_attributes(self, clock: Clock) -> dict[str, Any]:
        """Attributes of all results that describe the inputs."""
        return {}


@dataclass(frozen=True, eq=False)
class ResultCall:
    """The part of a validated call that a result is built from.

    Attributes
    ----------
    dynamics : ResultSource
        The dynamics that was solved.
    clock : Clock
        The save points in all units of time.
    dimension : int or None
        The dimension d; None for the limit d -> infinity.
    observables : Observables
        The arguments ``record`` and ``evaluate``.
    """

    dynamics: ResultSource
    clock: Clock
    dimension: int | None
    observables: Observables


def evaluate_observables(
    call: ResultCall, states: dict[str, np.ndarray], leading_axes: int = 2
) -> tuple[dict[str, np.ndarray], float]:
    """Evaluate the arguments `record` and `evaluate` of a call along its states.

    The states have `leading_axes` leading axes, the last of which is time. Returns the values by
    name and the largest relative error of the evaluated risks.
    """
    observables = call.observables
    values: dict[str, np.ndarray] = {}
    if observables.of_state:
        public_states = call.dynamics.public_states(states, leading_axes)
        values |= evaluate_functions(observables.of_state, public_states, leading_axes)
    values |= {name: states[name] for name in observables.of_sample}
    risks = [
        other.risk_along(states, call.clock, call.dimension)
        for other in observables.evaluated.values()
    ]
    if not risks:
        return values, 0.0
    values["evaluated_risk"] = np.stack([risk for risk, _ in risks], axis=-1)
    return values, max(error for _, error in risks)


def divergence_warning(
    diverged_at: np.ndarray, run_name: str = "runs", remedy: str = "A smaller lr may help."
) -> tuple[str, ...]:
    """The warning about diverged runs, the same for all solvers; empty if no run diverged.

    `diverged_at` has the last finite time of each run that diverged and NaN for the others.
    """
    is_diverged = np.isfinite(diverged_at)
    if not is_diverged.any():
        return ()
    count, first = int(is_diverged.sum()), np.nanmin(diverged_at)
    return (
        f"{count} of {len(diverged_at)} {run_name} diverged, the first after t = {first:.4g} "
        f"(coordinate diverged_at). {remedy}",
    )


def exhaustion_warning(ran_out_at: np.ndarray) -> tuple[str, ...]:
    """The warning about runs whose integrator ran out of steps; empty if there are none.

    `ran_out_at` has the last time that each of these runs reached and NaN for the others.
    """
    if not np.isfinite(ran_out_at).any():
        return ()
    return (
        f"The integrator ran out of steps after t = {np.nanmin(ran_out_at):.4g} (coordinate "
        "ran_out_at; the solution did not diverge). Later values are NaN. Use a larger rtol or "
        "shorter times.",
    )


def build_result(
    call: ResultCall,
    method: str,
    states: dict[str, np.ndarray],
    attributes: dict[str, Any],
    ends: dict[str, np.ndarray],
    *,
    risk: np.ndarray | None = None,
    warnings: tuple[str, ...] = (),
    sampled: str | None = None,
    container: Callable[..., Container] = xr.Dataset,
    recorded: dict[str, np.ndarray] | None = None,
) -> Container:
    """Build the result of a solver from its states (run, time, ...).

    Parameters
    ----------
    call : SolverCall
        The validated arguments of the solver.
    method : str
        Name of the solver in the attribute ``method``.
    states : dict
        The states at the save points.
    attributes : dict
        Attributes of the result; those that are None are left out.
    ends : dict
        ``diverged_at`` and optionally ``ran_out_at``, one value per run.
    risk : array, optional
        The population risk (run, time). Computed from the states by default.
    warnings : tuple of str
        Warnings to issue before the result is returned.
    sampled : str, optional
        Name of the runs in messages ("runs", "paths"), where runs are independent random samples.
        The result then has the attribute ``error_sampling``, and diverged runs are reported.
    container : callable
        ``xr.Dataset``, or ``ResultParts`` for a result that is not labelled yet.
    recorded : dict, optional
        Values of the arguments ``record`` and ``evaluate``. Computed from the states by default.
    """
    dynamics = call.dynamics
    attributes = {**attributes, **dynamics.input_attributes(call.clock)}
    if risk is None:
        risk, attributes["error_quadrature"] = dynamics.risk_along(
            states, call.clock, call.dimension
        )
    if sampled is not None:
        step_size = "lr or step" if sampled == "paths" else "lr"
        remedy = f"A smaller {step_size} may help."
        divergence = divergence_warning(ends["diverged_at"], sampled, remedy)
        warnings = (*warnings, *divergence)
        if not divergence and len(risk) > 1:
            standard_error = risk.std(axis=0, ddof=1) / np.sqrt(len(risk))
            attributes["error_sampling"] = largest_share(standard_error, risk.mean(axis=0))
    for text in warnings:
        warn(text)
    if recorded is None:
        recorded, error = evaluate_observables(call, states)
        attributes["error_evaluated"] = error if "evaluated_risk" in recorded else None
    attributes["recorded"] = " ".join(name for name in recorded if name != "evaluated_risk") or None
    values = dynamics.observables(states, risk, call.clock)
    # Single numbers named error_* are attributes, everything else is a variable.
    errors = [name for name in values if name.startswith("error_") and np.ndim(values[name]) == 0]
    attributes |= {name: float(values.pop(name)) for name in errors}
    return label_values(
        dynamics,
        call.clock,
        values,
        method=method,
        attributes=attributes,
        container=container,
        recorded=label_recorded(recorded, call.observables.evaluated),
        **ends,
    )


def label_values(
    dynamics: ResultSource,
    clock: Clock,
    values: Mapping[str, np.ndarray],
    *,
    method: str,
    attributes: dict[str, Any],
    diverged_at: np.ndarray,
    ran_out_at: np.ndarray | None = None,
    container: Callable[..., Container] = xr.Dataset,
    recorded: Mapping[str, Any] | None = None,
) -> Container:
    """Label variables with axes (run, time, ...), as a Dataset or as its `ResultParts`.

    `recorded` has further variables and coordinates with their axes, as a Dataset takes them.
    """
    labels = dynamics.labels(values)
    variables = {}
    for name, value in values.items():
        meaning, axes = labels.variables[name][:2]
        variables[name] = (("run", "time", *axes), value, {"long_name": meaning})
    coordinates = time_coordinates(clock, diverged_at, dynamics.dimension_symbol, ran_out_at)
    for name, entry in (recorded or {}).items():
        is_variable = entry[0][:1] == ("run",)
        (variables if is_variable else coordinates)[name] = entry
    attributes = attributes | {"clock": clock.requested}
    if container is xr.Dataset:
        attributes = record(dynamics.problem, dynamics.algorithm, method, attributes)
    else:
        # Many results of one problem need not each repeat its record.
        attributes = attributes | {"method": method}
    return container(variables, coordinates | labels.coordinates, attributes)
