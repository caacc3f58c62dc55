"""`build_result`: the Dataset of a solution, shared by all solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.progress import warn
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share, trajectory
from sgdynamics.results.observables import Observables, labelled, of_states

States = Mapping[str, np.ndarray]


class ResultSource(Protocol):
    """What a result needs to know about the dynamics that produced it."""

    @property
    def problem(self) -> Any: ...

    @property
    def algorithm(self) -> OnePassSGD | FixedData: ...

    @property
    def letter(self) -> str: ...

    def public_states(self, states: Any, lead: int = 1) -> dict[str, np.ndarray]: ...

    def risk_of(
        self, states: Any, clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]: ...

    def observed(self, states: Any, risk: np.ndarray, clock: Clock) -> dict[str, np.ndarray]: ...

    def facts(self, clock: Clock) -> dict[str, Any]: ...


class ResultCall(Protocol):
    """The part of a validated solver call that a result is built from."""

    @property
    def dynamics(self) -> ResultSource: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def dimension(self) -> int | None: ...

    @property
    def observables(self) -> Observables: ...


def evaluate_observables(
    call: ResultCall, states: dict[str, np.ndarray], leading_axes: int = 2
) -> tuple[dict[str, np.ndarray], float]:
    """Evaluate the arguments `record` and `evaluate` of a call along its states.

    The states have `leading_axes` leading axes, the last of which is time. Returns the values by
    name and the largest relative error of the evaluated risks.
    """
    observables = call.observables
    public_states = call.dynamics.public_states(states, leading_axes)
    values = of_states(observables.of_state, public_states, leading_axes)
    values |= {name: states[name] for name in observables.of_sample}
    risks = [
        other.risk_of(states, call.clock, call.dimension)
        for other in observables.evaluated.values()
    ]
    if not risks:
        return values, 0.0
    values["evaluated_risk"] = np.stack([risk for risk, _ in risks], axis=-1)
    return values, max(error for _, error in risks)


def divergence_warning(
    diverged_at: np.ndarray, runs_are: str = "runs", remedy: str = "a smaller lr"
) -> tuple[str, ...]:
    """The warning about diverged runs, the same for all solvers; empty if no run diverged.

    `diverged_at` has the last finite time of each run that diverged and NaN for the others.
    """
    is_diverged = np.isfinite(diverged_at)
    if not is_diverged.any():
        return ()
    count, first = int(is_diverged.sum()), np.nanmin(diverged_at)
    return (
        f"{count} of {len(diverged_at)} {runs_are} diverged, the first after t = {first:.4g} "
        f"(coordinate diverged_at); {remedy} may help",
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
    container: Callable[..., Any] = xr.Dataset,
    recorded: dict[str, np.ndarray] | None = None,
) -> Any:
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
        What a run is called ("runs", "paths") where runs are independent random samples: the
        result then has the attribute ``error_sampling``, and diverged runs are reported.
    container : callable
        ``xr.Dataset``, or ``Parts`` for a result that is not labelled yet.
    recorded : dict, optional
        Values of the arguments ``record`` and ``evaluate``. Computed from the states by default.
    """
    dynamics = call.dynamics
    attributes = {**attributes, **dynamics.facts(call.clock)}
    if risk is None:
        risk, attributes["error_quadrature"] = dynamics.risk_of(states, call.clock, call.dimension)
    if sampled is not None:
        remedy = "a smaller lr or step" if sampled == "paths" else "a smaller lr"
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
    values = dynamics.observed(states, risk, call.clock)
    # numbers named error_* are attributes, everything else is a variable
    attributes |= {
        name: float(values.pop(name)) for name in list(values) if name.startswith("error_")
    }
    return trajectory(
        dynamics,
        call.clock,
        values,
        method=method,
        attributes=attributes,
        made=container,
        more=labelled(recorded, call.observables.evaluated),
        **ends,
    )
