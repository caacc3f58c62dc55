"""Long times: where an explicit method needs too many steps, LSODA goes on from where it stopped.

Late in learning the overlaps hardly move while the fastest rate of the drift is still of order one:
an explicit method is held to steps of that order by stability, LSODA (Petzold 1983; variable order,
implicit where that pays) is not. What holds it back at t = 1e6 is rounding: a drift that is known
to 1e-16 moves neutral directions by 1e-16 h in a step h, which a tolerance of 1e-13 forbids. So
times are taken decade by decade, and a decade that uses up its steps goes on at a ten times looser
tolerance, down to the one that the user asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

STEPS_A_DECADE = (
    1500  # of LSODA before its tolerance is loosened; a smooth decade takes some hundred
)
MOST_STEPS = 30000  # in all
REPORTED = 20  # steps between two reports
LEAST_RTOL = 1e-13  # LSODA takes no less
EVENT_TOLERANCE = 1e-12  # on the time of an event


class StiffResult(NamedTuple):
    """One solution: values (size, time) at the save points, NaN beyond `time`, where it ended, and why.

    `ended`: "finished", "event" (`watch` fell below zero), "diverged" (out of bounds or not finite)
    or "tired" (no steps left).
    """

    values: np.ndarray
    time: float
    state: np.ndarray
    ended: str


def follow(
    field: Callable[[float, np.ndarray], np.ndarray],
    state: np.ndarray,
    t0: float,
    times: np.ndarray,
    rtol: float,
    atol: float,
    *,
    loosest: float,
    inside: Callable[[float, np.ndarray], bool],
    watch: Callable[[np.ndarray], float] | None = None,
    report: Callable[[float], None] | None = None,
) -> StiffResult:
    """y' = field(t, y) from `t0` to times[-1] by LSODA, saved at `times` by its dense output.

    `loosest`: by what factor the tolerances may be loosened where rounding holds it back. `inside`:
    whether a state is within bounds at its time. It ends early where `watch` falls below zero, the
    time found by Brent's method. `report` is called with the time reached, every REPORTED steps.
    """
    from scipy import integrate  # here: few solutions are so long

    y, now, slack, spent = np.asarray(state, dtype=np.float64), float(t0), 1.0, 0
    values = np.full((len(y), len(times)), np.nan)
    values[:, times == now] = y[:, None]
    end = float(times[-1]) if len(times) else now
    while now < end:
        solver = integrate.LSODA(
            field, now, y, end, rtol=max(slack * rtol, LEAST_RTOL), atol=slack * atol
        )
        decade = 10.0 * now if now > 0 else end
        for _ in range(STEPS_A_DECADE):
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # of LSODA's own, on lack of convergence: it ends as "failed", which is told
                solver.step()
            spent += 1
            if report is not None and spent % REPORTED == 0:
                report(float(solver.t))
            y_new = solver.y
            if not np.all(np.isfinite(y_new)) or not inside(float(solver.t), y_new):
                return StiffResult(values, now, y, "diverged")
            if solver.status == "failed":
                break
            between = (times > now) & (times <= solver.t)
            crossed = watch is not None and watch(y_new) < 0
            dense = solver.dense_output() if crossed or between.any() else None
            if crossed:
                assert watch is not None
                assert dense is not None
                when = _crossing(watch, dense, now, solver.t)
                before = between & (times <= when)
                if before.any():
                    values[:, before] = dense(times[before])
                return StiffResult(values, when, dense(when), "event")
            if between.any():
                assert dense is not None
                values[:, between] = dense(times[between])
            now, y = float(solver.t), np.array(y_new)
            if solver.status == "finished" or now >= decade:
                break
        else:
            if spent >= MOST_STEPS and 10 * slack > loosest:
                return StiffResult(values, now, y, "tired")
            slack = min(10 * slack, loosest)
            continue
        if solver.status == "failed":
            if slack >= loosest:
                return StiffResult(values, now, y, "tired")
            slack = min(10 * slack, loosest)
    return StiffResult(values, now, y, "finished")


def ran_out(at: np.ndarray) -> str:
    """The warning of every solver whose steps ran out, at these times (NaN for all other runs)."""
    return (
        f"the integrator ran out of steps after t = {np.nanmin(at):.4g} (coordinate ran_out_at; the solution did not diverge): "
        "what it did not reach is NaN; raise rtol, or ask for shorter times"
    )


def _crossing(watch: Callable[[np.ndarray], float], dense: Any, low: float, high: float) -> float:
    """Where `watch` passes zero within a step.

    The step's end where its own interpolation does not show it.
    """
    if watch(dense(low)) <= 0:
        return low
    if watch(dense(high)) >= 0:
        return high
    from scipy import optimize

    return float(
        np.asarray(
            optimize.brentq(
                lambda t: watch(dense(t)), low, high, xtol=EVENT_TOLERANCE * max(1.0, high)
            )
        )
    )
