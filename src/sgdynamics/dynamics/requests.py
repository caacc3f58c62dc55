"""Input and output of the ODE driver: `SolveRequest` and `Solution`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.case import Case
from sgdynamics.results.build import divergence_warning, exhaustion_warning
from sgdynamics.results.clock import Clock

if TYPE_CHECKING:
    from sgdynamics.dynamics.adapter import SolverDynamics

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class SolveRequest:
    """One mean trajectory, validated and prepared before anything runs.

    Attributes
    ----------
    dynamics : SolverDynamics
        The dynamics; all requests of a batch have the same class.
    initial_state : Start, SpikedStart or InitialArrays
        The initial condition of all runs.
    clock : Clock
        The save points.
    dimension : int or None
        The dimension whose mean increment is integrated; None for d -> infinity.
    rtol, atol : float or None
        The accuracy requested by the caller.
    case : Case or None
        Input of the shared integrator; None where the dynamics only has an integrator of its own.
    quadrature : Quadrature or None
        Quadrature of the expectations, where there are any.
    integrate : callable or None
        The integrator of this dynamics, where it has one of its own.
    """

    dynamics: SolverDynamics[Any]
    initial_state: Any
    clock: Clock
    dimension: int | None
    rtol: float | None
    atol: float | None
    case: Case | None = None
    quadrature: Quadrature | None = None
    integrate: Callable[[SolveRequest], Solution] | None = None

    @property
    def key(self) -> Hashable:
        """Requests with the same key share one compiled program."""
        return id(self) if self.integrate is not None else self.shared_case.key

    @property
    def shared_case(self) -> Case:
        """The case, of a request that the shared integrator runs."""
        assert self.case is not None
        return self.case


@dataclass(frozen=True)
class Solution:
    """A solved request.

    Attributes
    ----------
    states : dict of ndarray
        The states (run, time, ...) at the save points.
    risk : ndarray
        The population risk (run, time).
    attributes : dict
        Attributes of the result.
    ends : dict of ndarray
        ``diverged_at`` and ``ran_out_at``, one value per run.
    warnings : tuple of str
        Warnings for the user.
    """

    states: Arrays
    risk: np.ndarray
    attributes: dict[str, Any]
    ends: Arrays
    warnings: tuple[str, ...] = ()

    def with_estimate(self, name: str, estimate: Callable[[], float]) -> Solution:
        """Add an error estimate to the attributes: NaN and a warning if the estimate fails."""
        value, warnings = try_estimate(name, estimate)
        attributes = {**self.attributes, name: value}
        return replace(self, attributes=attributes, warnings=(*self.warnings, *warnings))


def try_estimate(name: str, estimate: Callable[[], float]) -> tuple[float, tuple[str, ...]]:
    """Compute an error estimate; return NaN and a warning if that fails.

    The solution is complete before its error is estimated, so that a failure must not discard it.
    """
    try:
        value = estimate()
    except (ValueError, FloatingPointError) as error:
        reason = checks.reason(error)
    else:
        if np.isfinite(value):
            return value, ()
        reason = "the solution for comparison is not finite"
    text = (
        f"{name} = nan: this error could not be estimated ({reason}). "
        "The solution itself is not affected."
    )
    return float("nan"), (text,)


def find_ends(states: Arrays, ran_out_of_steps: np.ndarray, t: np.ndarray) -> Arrays:
    """Last good times of runs that diverged and of runs whose integrator ran out of steps.

    Both arrays have one value per run, NaN for runs that reached the last save point.
    """
    finite = [np.isfinite(value).all(axis=tuple(range(2, value.ndim))) for value in states.values()]
    is_good = np.all(finite, axis=0)
    last_good = [t[row][-1] if row.any() else 0.0 for row in is_good]
    last = np.where(is_good.all(axis=1), np.nan, last_good)
    return {
        "diverged_at": np.where(ran_out_of_steps, np.nan, last),
        "ran_out_at": np.where(ran_out_of_steps, last, np.nan),
    }


def end_warnings(ends: Arrays) -> tuple[str, ...]:
    """Warnings about the runs of `find_ends`."""
    return (
        *divergence_warning(ends["diverged_at"]),
        *exhaustion_warning(ends["ran_out_at"]),
    )
