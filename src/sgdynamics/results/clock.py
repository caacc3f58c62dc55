"""Time: the caller gives exactly one of `times`, `alpha`, `steps`; the others follow.

t = lr steps/d (on a fixed data set lr steps, over its epochs lr steps/d) is gradient-flow time, alpha = samples used/d = steps batch/d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import Schedule, alpha_of_steps, piece_edges
from sgdynamics.base.resources import check_steps
from sgdynamics.expectations.nodes import gauss_legendre

PANELS, NODES = 32, 8  # of the integral of a schedule between two save points
MOST_SUMMED = 4_000_000  # steps whose learning rates are added up one by one
FARTHEST = 1e12
CHECKED_TIMES = 257  # at which a temperature is looked at before a run, beside its save points


# argument in which a caller gives save points: coordinate of the result with the same unit
COORDINATES = {"times": "t", "alpha": "alpha", "steps": "step"}
DIVISORS = {"dimension": "d", "trace": "D", "step": ""}  # of t = lr steps/D, by OnePassSGD(per=)


@dataclass(frozen=True)
class Clock:
    """Save points in every unit that is defined: t always; alpha where lr > 0; step where a dimension is given too."""

    t: np.ndarray
    alpha: np.ndarray | None
    step: np.ndarray | None
    samples: bool = True  # whether samples/d means something: not where d is infinite
    epoch: np.ndarray | None = None  # where there are epochs
    requested: str = "t"  # coordinate in which the caller gave the save points
    divisor: str = "d"  # symbol of D in t = lr steps/D; empty where t = lr steps
    schedule_unit: str = "alpha"  # argument of schedules: "alpha", or "t" on a fixed data set

    @property
    def schedule_points(self) -> np.ndarray:
        """The save points in the unit of schedules; alpha is 0 for gradient flow."""
        if self.schedule_unit == "t":
            return self.t
        return np.zeros(len(self.t)) if self.alpha is None else self.alpha


def integration_points(algorithm: OnePassSGD | FixedData, clock: Clock) -> np.ndarray:
    """The save points in the variable of the integration: t, or alpha if lr is a schedule."""
    if isinstance(algorithm.lr, Schedule) and clock.alpha is not None:
        return clock.alpha
    return clock.t


def make_clock(
    algorithm: OnePassSGD | FixedData,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: int | None,
    whole_steps: bool,
) -> Clock:
    """Convert what the caller gave; with `whole_steps` save points are rounded to the nearest step of the run."""
    given = {
        name: value
        for name, value in (("times", times), ("alpha", alpha), ("steps", steps))
        if value is not None
    }
    if len(given) != 1:
        shown = ", ".join(given) or "none of them"
        raise ValueError(f"give exactly one of times=, alpha=, steps= (received {shown})")
    name, value = next(iter(given.items()))
    points = _increasing(name, value)
    if name == "steps" and np.any(points != np.round(points)):
        raise checks.reject("steps", value, "give whole numbers")
    requested = COORDINATES[name]
    if isinstance(algorithm, FixedData):
        divisor = "d" if algorithm.order else ""
        fixed = _fixed_data(algorithm, name, points)
        return replace(fixed, requested=requested, divisor=divisor, schedule_unit="t")
    with np.errstate(over="ignore"):  # what overflows is refused, not warned of
        found = _one_pass(algorithm, name, points, dimension, whole_steps)
    for unit, values in (("t", found.t), ("alpha", found.alpha), ("step", found.step)):
        if values is not None and not np.all(np.isfinite(values)):
            raise checks.reject(
                name, float(points[-1]), f"in units of {unit} this is beyond float64: give less"
            )
    return replace(found, requested=requested, divisor=time_divisor(algorithm))


def time_divisor(algorithm: OnePassSGD) -> str:
    """The symbol of D in t = lr steps/D: d by default, D for the trace, empty where a step is lr itself."""
    stated = algorithm.stated or algorithm  # solvers convert the learning rate to units of d
    return DIVISORS[stated.per]


def _one_pass(
    algorithm: OnePassSGD, name: str, points: np.ndarray, dimension: int | None, whole_steps: bool
) -> Clock:
    """The clock of one-pass SGD, from points of one unit."""
    batch = algorithm.batch
    if algorithm.flow and (name != "times" or whole_steps):
        raise checks.reject(
            "lr",
            algorithm.lr,
            "gradient flow makes no steps: use solve_ode with times=, or give a learning rate above 0",
        )
    if name == "steps" and dimension is None:
        raise ValueError("steps= needs a dimension: give dimension=d, or use times= or alpha=")
    if algorithm.flow:
        return Clock(points, None, None)
    if algorithm.scheduled:
        return _scheduled(algorithm, name, points, dimension, whole_steps)
    lr = float(algorithm.lr)
    if name == "times":
        t = points
    elif name == "alpha":
        t = points * lr / batch
    else:
        assert dimension is not None
        t = points * lr / dimension
    step = None
    if dimension is not None:
        step = points if name == "steps" else t * dimension / lr
        if whole_steps:
            check_steps(
                name,
                float(points[-1]),
                float(step[-1]),
                "give less, a smaller dimension or a larger lr",
            )
            step = np.round(step).astype(np.int64)
            t = step * (lr / dimension)
    return Clock(t, t * batch / lr, step)


def _fixed_data(algorithm: FixedData, name: str, points: np.ndarray) -> Clock:
    """On a fixed data set t = lr steps, without the dimension; alpha counts every use of a sample."""
    if algorithm.scheduled:
        return _fixed_data_scheduled(algorithm, name, points)
    per_step = {
        "steps": 1.0,
        "times": algorithm.lr,
        "alpha": algorithm.fraction * algorithm.samples_per_dimension,
    }
    with np.errstate(over="ignore"):
        step = points / per_step[name]
    check_steps(name, float(points[-1]), float(step[-1]), "give less, or a larger lr")
    step = np.round(step).astype(np.int64)
    end = float(step[-1]) * algorithm.lr
    algorithm.check_times(
        np.unique(np.concatenate([step * algorithm.lr, np.linspace(0, end, CHECKED_TIMES)]))
    )
    epoch = step * algorithm.fraction if algorithm.order else None
    return Clock(step * per_step["times"], step * per_step["alpha"], step, epoch=epoch)


def _fixed_data_scheduled(algorithm: FixedData, name: str, points: np.ndarray) -> Clock:
    """The same where lr depends on t: step n + 1 moves t by lr(t) from where n steps have brought it."""
    each = algorithm.fraction * algorithm.samples_per_dimension
    if name == "times":
        table = algorithm.step_times(math.inf, points[-1])
        after = np.searchsorted(table, points)
        before = np.maximum(after - 1, 0)
        step = np.where(points - table[before] < table[after] - points, before, after)
    else:
        step = np.round(points / (1.0 if name == "steps" else each)).astype(np.int64)
        table = algorithm.step_times(float(step[-1]))
    algorithm.check_times(
        np.unique(np.concatenate([table[step], np.linspace(0, table[step[-1]], CHECKED_TIMES)]))
    )
    epoch = step * algorithm.fraction if algorithm.order else None
    return Clock(table[step], step * each, step.astype(np.int64), epoch=epoch)


def _scheduled(
    algorithm: OnePassSGD, name: str, points: np.ndarray, dimension: int | None, whole_steps: bool
) -> Clock:
    """The same where lr or batch depends on alpha: t is the integral of lr/batch, or with whole steps the sum of lr/d."""
    if name == "times":
        alpha = _alpha_at(algorithm, points)
    elif name == "alpha":
        alpha = points
    else:
        assert dimension is not None
        alpha = _alpha_after(algorithm, points / dimension)
    step = None if dimension is None else dimension * steps_by(algorithm, alpha)
    if whole_steps:
        assert step is not None
        assert dimension is not None
        check_steps(name, float(points[-1]), float(step[-1]), "give less, or a smaller dimension")
        step = np.round(step).astype(np.int64)
        return Clock(
            time_of_steps(algorithm, step, dimension),
            alpha_of_steps(step, algorithm.batch, dimension),
            step,
        )
    return Clock(elapsed(algorithm, alpha), alpha, step)


def elapsed(algorithm: OnePassSGD, alpha: np.ndarray) -> np.ndarray:
    """t at increasing alpha: the integral of lr/batch from 0."""
    if not isinstance(algorithm.lr, Schedule):
        return alpha * float(algorithm.lr) / algorithm.batch
    return _integrated(
        algorithm, lambda places: algorithm.rates(places) / algorithm.batches(places), alpha
    )


def steps_by(algorithm: OnePassSGD, alpha: np.ndarray) -> np.ndarray:
    """Steps over d at increasing alpha: the integral of 1/batch from 0."""
    if not isinstance(algorithm.batch, Schedule):
        return alpha / algorithm.batch
    return _integrated(algorithm, lambda places: 1 / algorithm.batches(places), alpha)


def _integrated(
    algorithm: OnePassSGD, integrand: Callable[[np.ndarray], np.ndarray], alpha: np.ndarray
) -> np.ndarray:
    """The integral from 0 to increasing alpha of what lr and batch make up, pieces of schedules one by one."""
    breaks = piece_edges((algorithm.lr, algorithm.batch))
    node, weight = gauss_legendre(NODES)
    total, result = 0.0, []
    for low, high in pairwise(np.concatenate([[0.0], alpha])):
        inner = np.unique(
            np.concatenate(
                [np.linspace(low, high, PANELS + 1), breaks[(breaks > low) & (breaks < high)]]
            )
        )
        lengths = np.diff(inner)[:, None]
        if high > low:
            total += float(
                np.sum(
                    integrand((inner[:-1, None] + lengths * node).reshape(-1)).reshape(-1, NODES)
                    * weight
                    * lengths
                )
            )
        result.append(total)
    return np.array(result)


def time_of_steps(
    algorithm: OnePassSGD | FixedData, step: np.ndarray, dimension: int
) -> np.ndarray:
    """t after so many whole steps: the sum of lr/d over them (beyond a few million, the integral)."""
    if isinstance(algorithm, FixedData):
        return (
            np.asarray(algorithm.lr.parameters["times"])[step]
            if algorithm.scheduled
            else step * algorithm.lr
        )
    if not isinstance(algorithm.lr, Schedule):
        return step * (float(algorithm.lr) / dimension)
    if np.max(step, initial=0) > MOST_SUMMED:
        order = np.argsort(step)
        found = np.empty(len(step))
        found[order] = elapsed(algorithm, alpha_of_steps(step[order], algorithm.batch, dimension))
        return found
    alpha = alpha_of_steps(np.arange(int(np.max(step, initial=0))), algorithm.batch, dimension)
    sums = np.concatenate([[0.0], np.cumsum(algorithm.rates(alpha))])
    return sums[np.maximum(step, 0)] / dimension


def _alpha_after(algorithm: OnePassSGD, steps: np.ndarray) -> np.ndarray:
    """alpha after so many steps over d."""
    if not isinstance(algorithm.batch, Schedule):
        return steps * algorithm.batch
    return _place_at(partial(steps_by, algorithm), "steps", steps)


def _alpha_at(algorithm: OnePassSGD, times: np.ndarray) -> np.ndarray:
    """alpha at which t has these values."""
    return _place_at(partial(elapsed, algorithm), "times", times)


def _place_at(
    reach: Callable[[np.ndarray], np.ndarray], name: str, wanted: np.ndarray
) -> np.ndarray:
    """alpha at which an integral has these increasing values, by bisection."""
    from scipy import optimize  # here: a constant rate does without

    def gap(value: float, alpha: float) -> float:
        return float(reach(np.array([alpha]))[0]) - value

    far = 1.0
    while gap(wanted[-1], far) < 0:
        far *= 2
        if far > FARTHEST:
            fix = "the schedule never gets there (its integral over alpha stays below): give alpha= instead"
            raise checks.reject(name, wanted.tolist(), fix)
    found = []
    low = 0.0
    for value in wanted:
        inside = partial(gap, float(value))
        low = (
            low
            if inside(low) >= 0
            else float(np.asarray(optimize.brentq(inside, low, far, xtol=1e-13)))
        )
        found.append(low)
    return np.array(found)


def _increasing(name: str, value: ArrayArgument | None) -> np.ndarray:
    points = np.atleast_1d(checks.real_array(name, value, "give increasing numbers, 0 or more"))
    if points.ndim != 1 or points.size == 0 or not np.all(np.isfinite(points)):
        raise checks.reject(name, value, "give a list of finite numbers")
    if points[0] < 0 or np.any(np.diff(points) <= 0):
        raise checks.reject(name, value, "give increasing numbers, 0 or more, each once")
    return points


def plan_steps(times: np.ndarray, longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Step numbers at 0 and the save points, and the step length of each interval: equal steps not longer than `longest`."""
    edges = np.concatenate([[0.0], times]) if times[0] > 0 else times
    spans = np.diff(edges)
    with np.errstate(over="ignore"):
        counts = np.maximum(1, np.ceil(spans / longest - 1e-9))
        check_steps("step", longest, float(counts.sum()), "give a longer step, or shorter times")
    counts = counts.astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), spans / np.maximum(counts, 1)


def reached(edges: np.ndarray, lengths: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The time after so many steps of a plan of `plan_steps`."""
    return (
        np.interp(steps, edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * lengths)]))
        if len(edges) > 1
        else np.zeros(len(steps))
    )
