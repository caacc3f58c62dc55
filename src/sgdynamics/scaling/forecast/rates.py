"""Learning rates against the step, as a loss curve records them or a schedule states them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule, evaluate_schedule

# What states a schedule: an object of `sgd.schedules`, a function of the step, or two arrays.
ScheduleArgument: TypeAlias = (
    "Schedule | Callable[[float], float] | tuple[np.ndarray, np.ndarray] | RateCurve"
)

SEGMENTS = 120  # of a schedule in sums over its changes; more do not change a forecast
DENSE = 4000  # points at which a function of the step is evaluated


@dataclass(frozen=True)
class RateCurve:
    """A learning rate that is linear between knots.

    Attributes
    ----------
    steps : array (n,)
        Knots in steps, increasing, from 0.
    rates : array (n,)
        Learning rates at the knots.
    """

    steps: np.ndarray
    rates: np.ndarray

    @property
    def length(self) -> float:
        """Number of steps of the run."""
        return float(self.steps[-1])

    @property
    def peak(self) -> float:
        """Largest learning rate."""
        return float(self.rates.max())

    @property
    def total(self) -> float:
        """Sum of the learning rates over all steps."""
        return float(np.trapezoid(self.rates, self.steps))

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Learning rates at these steps."""
        return np.interp(steps, self.steps, self.rates)

    def until(self, step: float) -> RateCurve:
        """The part before a step."""
        steps = np.append(self.steps[self.steps < step], step)
        return RateCurve(steps, self.at(steps))

    def coarsen(self, segments: int = SEGMENTS) -> RateCurve:
        """The same curve on fewer knots, which are dense in time and where the rate changes.

        Knots are equidistant in time/length + |change of the rate|/total variation.
        """
        variation = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(self.rates)))])
        measure = self.steps / self.length
        if variation[-1] > 0:
            measure = measure + variation / variation[-1]
        knots = np.interp(np.linspace(0, measure[-1], segments + 1), measure, self.steps)
        knots = np.unique(knots)
        return RateCurve(knots, self.at(knots))

    def warmup_end(self) -> float:
        """The first step at which the rate has 99% of its peak."""
        return float(self.steps[np.argmax(self.rates >= 0.99 * self.peak)])

    def fall(self) -> float:
        """The largest fall of the rate after warm-up, as a share of the peak."""
        after_warmup = self.rates[self.steps >= self.warmup_end()]
        return float(1 - after_warmup.min() / self.peak)

    def has_fast_decay(self) -> bool:
        """Whether the rate falls by half of its peak within 15% of the run.

        Only such a fall determines how fast the noise of SGD is forgotten (beta and tau).
        """
        grid = np.linspace(0, self.length, 401)
        rates = self.at(grid)
        window = int(0.15 * 400)
        falls = [rates[index] - rates[index : index + window + 1].min() for index in range(401)]
        return max(falls) >= 0.5 * self.peak


def read_schedule(argument: str, schedule: ScheduleArgument, steps: float | None) -> RateCurve:
    """The learning rate of a run of `steps` steps.

    Parameters
    ----------
    argument : str
        Name of the argument, for messages.
    schedule : Schedule, callable or (steps, rates)
        An object of ``sgd.schedules``, a function of the step, or two arrays.
    steps : float or None
        Length of the run; defaults to that of the schedule.
    """
    if isinstance(schedule, RateCurve):
        return schedule if steps is None else _cut(argument, schedule, steps)
    if isinstance(schedule, Schedule):
        length = _length(argument, schedule, steps)
        rates = evaluate_schedule(schedule, grid := _grid(schedule, length))
    elif callable(schedule):
        if steps is None:
            raise checks.reject("steps", None, "a function of the step has no length. Set steps.")
        grid = np.linspace(0, steps, DENSE + 1)
        try:
            rates = np.array([float(schedule(step)) for step in grid])
        except Exception as error:
            fix = f"the function of the step raises {checks.reason(error)}."
            raise checks.reject(argument, schedule, fix) from None
    else:
        return _from_arrays(argument, schedule, steps)
    return _validate(argument, grid, rates)


def _length(argument: str, schedule: Schedule, steps: float | None) -> float:
    if schedule.clock == "alpha":
        fix = "this schedule counts samples/d. Use one in steps, as sgd.schedules.wsd(1e-3, 50000)."
        raise checks.reject(argument, schedule, fix)
    stated = schedule.parameters.get("length") if isinstance(schedule.parameters, dict) else None
    length = stated if steps is None else steps
    if length is None or not np.isfinite(float(length)):
        raise checks.reject("steps", None, "this schedule has no length. Set steps.")
    return float(length)


def _grid(schedule: Schedule, length: float) -> np.ndarray:
    """Points of a schedule: dense ones, and both sides of each jump."""
    dense = np.linspace(0, length, DENSE + 1)
    if "edges" not in schedule.parameters:
        return dense
    edges = np.asarray(schedule.parameters["edges"])
    edges = edges[(edges > 0) & (edges < length)]
    return np.unique(np.concatenate([dense, edges, edges - min(1.0, 1e-3 * length)]))


def _from_arrays(argument: str, schedule: object, steps: float | None) -> RateCurve:
    fix = (
        "give an object of sgd.schedules, a function of the step, or two arrays (steps, rates) of "
        "the same length"
    )
    try:
        knots, rates = schedule  # type: ignore[misc]  # anything that has two entries
    except (TypeError, ValueError):
        raise checks.reject(argument, schedule, fix) from None
    knots = checks.real_array(f"{argument}[0]", knots, fix)
    rates = checks.real_array(f"{argument}[1]", rates, fix)
    if knots.ndim != 1 or knots.shape != rates.shape or len(knots) < 2:
        raise checks.reject(argument, (knots.shape, rates.shape), fix)
    curve = _validate(argument, knots, rates)
    return curve if steps is None else _cut(argument, curve, steps)


def _cut(argument: str, curve: RateCurve, steps: float) -> RateCurve:
    if steps > curve.length * (1 + 1e-9):
        fix = f"the schedule ends at step {curve.length:g}. Use fewer steps or a longer schedule."
        raise checks.reject("steps", steps, fix)
    return curve.until(steps)


def _validate(argument: str, steps: np.ndarray, rates: np.ndarray) -> RateCurve:
    if not np.all(np.isfinite(rates)) or np.any(rates < 0):
        index = int(np.argmax(~np.isfinite(rates) | (rates < 0)))
        where = f"at step {steps[index]:g} the rate is {rates[index]:g}"
        raise checks.reject(argument, argument, f"{where}. Rates must be finite and 0 or more.")
    if not np.any(rates > 0):
        raise checks.reject(argument, argument, "all learning rates are 0. Nothing is learned.")
    if not np.all(np.isfinite(steps)) or np.any(np.diff(steps) <= 0) or steps[0] < 0:
        raise checks.reject(argument, argument, "steps must be finite, 0 or more, and increasing.")
    if steps[0] > 0:  # the first rate applies from step 0 on
        steps, rates = np.concatenate([[0.0], steps]), np.concatenate([rates[:1], rates])
    return RateCurve(np.asarray(steps, dtype=float), np.asarray(rates, dtype=float))
