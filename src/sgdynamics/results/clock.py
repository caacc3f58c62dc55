"""Save points in all units of time, from the one of `times`, `alpha`, `steps` that is given.

t = lr steps/d is the time of gradient flow (on a fixed data set lr steps, over its epochs
lr steps/d), alpha = samples used/d = steps batch/d.
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
CHECKED_TIMES = 257  # times at which a temperature is validated, in addition to save points


# argument in which a caller gives save points: coordinate of the result with the same unit
COORDINATES = {"times": "t", "alpha": "alpha", "steps": "step"}
DIVISORS = {"dimension": "d", "trace": "D", "step": ""}  # of t = lr steps/D, by OnePassSGD(per=)


@dataclass(frozen=True)
class Clock:
    """Save points in all units that are defined.

    t always is, alpha for lr > 0, and step with a dimension in addition.
    """

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
    """Convert the save points of a caller to all units.

    With `whole_steps` they are rounded to the nearest step of the run.
    """
    candidates = {"times": times, "alpha": alpha, "steps": steps}
    arguments = {name: value for name, value in candidates.items() if value is not None}
    if len(arguments) != 1:
        received = ", ".join(arguments) or "none of them"
        raise ValueError(f"give exactly one of times=, alpha=, steps= (received {received})")
    name, value = next(iter(arguments.items()))
    points = _increasing(name, value)
    if name == "steps" and np.any(points != np.round(points)):
        raise checks.reject("steps", value, "give whole numbers")
    requested = COORDINATES[name]
    if isinstance(algorithm, FixedData):
        divisor = "d" if algorithm.order else ""
        fixed = _fixed_data(algorithm, name, points)
        return replace(fixed, requested=requested, divisor=divisor, schedule_unit="t")
    with np.errstate(over="ignore"):  # an overflow raises ValueError below
        clock = _one_pass(algorithm, name, points, dimension, whole_steps)
    for unit, values in (("t", clock.t), ("alpha", clock.alpha), ("step", clock.step)):
        if values is not None and not np.all(np.isfinite(values)):
            fix = f"in units of {unit} this is beyond float64: give less"
            raise checks.reject(name, float(points[-1]), fix)
    return replace(clock, requested=requested, divisor=time_divisor(algorithm))


def time_divisor(algorithm: OnePassSGD) -> str:
    """The symbol of D in t = lr steps/D: d by default, D for the trace, empty if a step is lr."""
    stated = algorithm.stated or algorithm  # solvers convert the learning rate to units of d
    return DIVISORS[stated.per]


def _one_pass(
    algorithm: OnePassSGD, name: str, points: np.ndarray, dimension: int | None, whole_steps: bool
) -> Clock:
    """The clock of one-pass SGD, from points of one unit."""
    batch = algorithm.batch
    if algorithm.flow and (name != "times" or whole_steps):
        fix = (
            "gradient flow makes no steps: use solve_ode with times=, or give a learning rate "
            "above 0"
        )
        raise checks.reject("lr", algorithm.lr, fix)
    if name == "steps" and dimension is None:
        raise ValueError("steps= needs a dimension: give dimension=d, or use times= or alpha=")
    if algorithm.flow:
        return Clock(points, None, None)
    if algorithm.scheduled:
        return _one_pass_scheduled(algorithm, name, points, dimension, whole_steps)
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
    """The clock on a fixed data set: t = lr steps, and alpha counts all uses of a sample."""
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
    """The same if lr depends on t: step n + 1 adds lr(t), with t after n steps."""
    alpha_per_step = algorithm.fraction * algorithm.samples_per_dimension
    if name == "times":
        table = algorithm.step_times(math.inf, points[-1])
        after = np.searchsorted(table, points)
        before = np.maximum(after - 1, 0)
        step = np.where(points - table[before] < table[after] - points, before, after)
    else:
        step = np.round(points / (1.0 if name == "steps" else alpha_per_step)).astype(np.int64)
        table = algorithm.step_times(float(step[-1]))
    algorithm.check_times(
        np.unique(np.concatenate([table[step], np.linspace(0, table[step[-1]], CHECKED_TIMES)]))
    )
    epoch = step * algorithm.fraction if algorithm.order else None
    return Clock(table[step], step * alpha_per_step, step.astype(np.int64), epoch=epoch)


def _one_pass_scheduled(
    algorithm: OnePassSGD, name: str, points: np.ndarray, dimension: int | None, whole_steps: bool
) -> Clock:
    """The same if lr or batch depends on alpha.

    t is the integral of lr/batch over alpha, or with whole steps the sum of lr/d over the steps.
    """
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
    return Clock(time_at_alpha(algorithm, alpha), alpha, step)


def time_at_alpha(algorithm: OnePassSGD, alpha: np.ndarray) -> np.ndarray:
    """t at increasing alpha: the integral of lr/batch from 0."""
    if not isinstance(algorithm.lr, Schedule):
        return alpha * float(algorithm.lr) / algorithm.batch
    return _integrate(
        algorithm, lambda points: algorithm.rates(points) / algorithm.batches(points), alpha
    )


def steps_by(algorithm: OnePassSGD, alpha: np.ndarray) -> np.ndarray:
    """Steps over d at increasing alpha: the integral of 1/batch from 0."""
    if not isinstance(algorithm.batch, Schedule):
        return alpha / algorithm.batch
    return _integrate(algorithm, lambda points: 1 / algorithm.batches(points), alpha)


def _integrate(
    algorithm: OnePassSGD, integrand: Callable[[np.ndarray], np.ndarray], alpha: np.ndarray
) -> np.ndarray:
    """The integral of a function of lr and batch from 0 to increasing alpha.

    Intervals end at the edges of piecewise schedules, so that Gauss-Legendre nodes see a smooth
    integrand.
    """
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
    """t after whole steps: the sum of lr/d over them (beyond a few million, the integral)."""
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
        t = np.empty(len(step))
        t[order] = time_at_alpha(algorithm, alpha_of_steps(step[order], algorithm.batch, dimension))
        return t
    alpha = alpha_of_steps(np.arange(int(np.max(step, initial=0))), algorithm.batch, dimension)
    sums = np.concatenate([[0.0], np.cumsum(algorithm.rates(alpha))])
    return sums[np.maximum(step, 0)] / dimension


def _alpha_after(algorithm: OnePassSGD, steps: np.ndarray) -> np.ndarray:
    """alpha after steps, which are counted in units of d."""
    if not isinstance(algorithm.batch, Schedule):
        return steps * algorithm.batch
    return _find_alpha(partial(steps_by, algorithm), "steps", steps)


def _alpha_at(algorithm: OnePassSGD, times: np.ndarray) -> np.ndarray:
    """alpha at which t has these values."""
    return _find_alpha(partial(time_at_alpha, algorithm), "times", times)


def _find_alpha(
    integral: Callable[[np.ndarray], np.ndarray], name: str, wanted: np.ndarray
) -> np.ndarray:
    """alpha at which an integral has these increasing values, by bisection."""
    from scipy import optimize  # here: a constant rate does without

    def gap(value: float, alpha: float) -> float:
        return float(integral(np.array([alpha]))[0]) - value

    far = 1.0
    while gap(wanted[-1], far) < 0:
        far *= 2
        if far > FARTHEST:
            fix = (
                "the schedule never reaches this value, because its integral over alpha stays "
                "below: give alpha= instead"
            )
            raise checks.reject(name, wanted.tolist(), fix)
    alphas = []
    low = 0.0
    for value in wanted:
        gap_at = partial(gap, float(value))
        if gap_at(low) < 0:
            low = float(np.asarray(optimize.brentq(gap_at, low, far, xtol=1e-13)))
        alphas.append(low)
    return np.array(alphas)


def _increasing(name: str, value: ArrayArgument | None) -> np.ndarray:
    points = np.atleast_1d(checks.real_array(name, value, "give increasing numbers, 0 or more"))
    if points.ndim != 1 or points.size == 0 or not np.all(np.isfinite(points)):
        raise checks.reject(name, value, "give a list of finite numbers")
    if points[0] < 0 or np.any(np.diff(points) <= 0):
        raise checks.reject(name, value, "give increasing numbers, 0 or more, each once")
    return points


def plan_steps(times: np.ndarray, longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Step numbers at 0 and the save points, and the step length of each interval.

    The steps of an interval are equal and not longer than `longest`.
    """
    edges = np.concatenate([[0.0], times]) if times[0] > 0 else times
    spans = np.diff(edges)
    with np.errstate(over="ignore"):
        counts = np.maximum(1, np.ceil(spans / longest - 1e-9))
        check_steps("step", longest, float(counts.sum()), "give a longer step, or shorter times")
    counts = counts.astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), spans / np.maximum(counts, 1)


def time_of_scheme_steps(edges: np.ndarray, lengths: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The time after steps of a plan of `plan_steps`."""
    return (
        np.interp(steps, edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * lengths)]))
        if len(edges) > 1
        else np.zeros(len(steps))
    )
