"""Late times: where an explicit method needs too many steps, LSODA continues.

Late in learning the overlaps hardly move while the fastest rate of the drift is still of order one.
Stability limits an explicit method to steps of that order, but not LSODA (Petzold 1983; variable
order, implicit where it pays). At t = 1e6 LSODA is limited by rounding: a drift known to 1e-16
moves neutral directions by 1e-16 h in a step h, more than a tolerance of 1e-13 allows. Times are
therefore integrated decade by decade, and a decade that uses up its steps continues at a ten times
looser tolerance, down to the one requested by the user.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Steps of LSODA before its tolerance is loosened; a smooth decade needs a few hundred.
STEPS_PER_DECADE = 1500
# total number of steps
MOST_STEPS = 30000
# steps between two progress reports
REPORT_INTERVAL = 20
# smallest tolerance that LSODA accepts
LEAST_RTOL = 1e-13
# tolerance of the time of an event
EVENT_TOLERANCE = 1e-12


class StiffResult(NamedTuple):
    """One solution: values (size, time) at the save points, NaN beyond its last time.

    `ended`: "finished", "event" (`watch` fell below zero), "diverged" (out of bounds or not finite)
    or "exhausted" (no steps left).
    """

    values: np.ndarray
    time: float
    state: np.ndarray
    ended: str


def integrate_lsoda(
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
    """Integrate y' = field(t, y) from `t0` to times[-1] by LSODA, saved at `times`.

    `loosest` is the largest factor by which the tolerances may be loosened. `inside` checks whether
    a state is within bounds. The solution ends early where `watch` falls below zero, at a time
    found by Brent's method. `report` is called with the current time every REPORT_INTERVAL steps.
    """
    from scipy import integrate  # imported here, because few solutions need it

    y, now, slack, spent = np.asarray(state, dtype=np.float64), float(t0), 1.0, 0
    values = np.full((len(y), len(times)), np.nan)
    values[:, times == now] = y[:, None]
    end = float(times[-1]) if len(times) else now
    while now < end:
        solver = integrate.LSODA(
            field, now, y, end, rtol=max(slack * rtol, LEAST_RTOL), atol=slack * atol
        )
        decade = 10.0 * now if now > 0 else end
        for _ in range(STEPS_PER_DECADE):
            with warnings.catch_warnings():
                # LSODA warns about lack of convergence; its status "failed" is handled below
                warnings.simplefilter("ignore")
                solver.step()
            spent += 1
            if report is not None and spent % REPORT_INTERVAL == 0:
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
                return StiffResult(values, now, y, "exhausted")
            slack = min(10 * slack, loosest)
            continue
        if solver.status == "failed":
            if slack >= loosest:
                return StiffResult(values, now, y, "exhausted")
            slack = min(10 * slack, loosest)
    return StiffResult(values, now, y, "finished")


def _crossing(watch: Callable[[np.ndarray], float], dense: Any, low: float, high: float) -> float:
    """Return the time at which `watch` crosses zero within a step.

    It is the end of the step if the dense output does not show the crossing.
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
