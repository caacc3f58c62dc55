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
from typing import NamedTuple

import numpy as np

# Steps of LSODA before its tolerance is loosened; a smooth decade needs a few hundred.
STEPS_PER_DECADE = 1500
# Total number of steps before an exhausted solution is given up.
MOST_STEPS = 30000
# Steps between two progress reports.
REPORT_INTERVAL = 20
# Smallest relative tolerance that LSODA accepts.
LEAST_RTOL = 1e-13
# Tolerance of the time of an event, relative to max(1, t).
EVENT_TOLERANCE = 1e-12


class StiffResult(NamedTuple):
    """Result of LSODA for one trajectory.

    Attributes
    ----------
    values : ndarray, (size, time)
        States at the save points, NaN beyond the last time.
    time : float
        Time of the last state.
    state : ndarray, (size,)
        The last state.
    ended : str
        "finished", "event" (`watch` fell below zero), "diverged" (out of bounds or not finite) or
        "exhausted" (no steps left).
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

    y, now = np.asarray(state, dtype=np.float64), float(t0)
    # Factor by which the tolerances are loosened, and number of steps so far.
    slack, steps_taken = 1.0, 0
    values = np.full((len(y), len(times)), np.nan)
    values[:, times == now] = y[:, None]
    end = float(times[-1]) if len(times) else now
    while now < end:
        # Each decade has its own solver, because the tolerance of a solver is fixed.
        solver = integrate.LSODA(
            field, now, y, end, rtol=max(slack * rtol, LEAST_RTOL), atol=slack * atol
        )
        decade_end = 10.0 * now if now > 0 else end
        for _ in range(STEPS_PER_DECADE):
            with warnings.catch_warnings():
                # LSODA warns about lack of convergence; its status "failed" is handled below.
                warnings.simplefilter("ignore")
                solver.step()
            steps_taken += 1
            if report is not None and steps_taken % REPORT_INTERVAL == 0:
                report(float(solver.t))
            y_new = solver.y
            # The last state within bounds is returned, not the one outside of them.
            if not np.all(np.isfinite(y_new)) or not inside(float(solver.t), y_new):
                return StiffResult(values, now, y, "diverged")
            if solver.status == "failed":
                break
            in_step = (times > now) & (times <= solver.t)
            crossed = watch is not None and watch(y_new) < 0
            # The interpolant is only built for steps that need it.
            dense = solver.dense_output() if crossed or in_step.any() else None
            if crossed:
                assert watch is not None
                assert dense is not None
                event_time = _crossing(watch, dense, now, solver.t)
                before_event = in_step & (times <= event_time)
                if before_event.any():
                    values[:, before_event] = dense(times[before_event])
                return StiffResult(values, event_time, dense(event_time), "event")
            if in_step.any():
                assert dense is not None
                values[:, in_step] = dense(times[in_step])
            now, y = float(solver.t), np.array(y_new)
            if solver.status == "finished" or now >= decade_end:
                break
        else:
            # The decade used up its steps: its tolerance is below the rounding of the drift.
            if steps_taken >= MOST_STEPS and 10 * slack > loosest:
                return StiffResult(values, now, y, "exhausted")
            slack = min(10 * slack, loosest)
            continue
        # LSODA gave up at this tolerance; the next one starts from the last good state.
        if solver.status == "failed":
            if slack >= loosest:
                return StiffResult(values, now, y, "exhausted")
            slack = min(10 * slack, loosest)
    return StiffResult(values, now, y, "finished")


def _crossing(
    watch: Callable[[np.ndarray], float],
    dense: Callable[[float], np.ndarray],
    low: float,
    high: float,
) -> float:
    """Return the time at which `watch` crosses zero within a step with the dense output `dense`.

    It is the end of the step if the dense output does not show the crossing.
    """
    if watch(dense(low)) <= 0:
        return low
    if watch(dense(high)) >= 0:
        return high
    from scipy import optimize

    tolerance = EVENT_TOLERANCE * max(1.0, high)
    crossing = optimize.brentq(lambda t: watch(dense(t)), low, high, xtol=tolerance)
    return float(np.asarray(crossing))
