"""Time: the caller gives exactly one of `times`, `alpha`, `steps`; the others follow.

t = lr steps/d is gradient-flow time, alpha = samples used/d = steps batch/d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics import checks
from sgdynamics.algorithms import OnePassSGD


@dataclass(frozen=True)
class Clock:
    """Save points in every unit that is defined: t always; alpha where lr > 0; step where a dimension is given too."""

    t: np.ndarray
    alpha: np.ndarray | None
    step: np.ndarray | None


def clock(
    algorithm: OnePassSGD, *, times: Any = None, alpha: Any = None, steps: Any = None, dimension: int | None, whole_steps: bool
) -> Clock:
    """Convert what the caller gave; with `whole_steps` save points are rounded to the nearest step of the run."""
    given = {name: value for name, value in (("times", times), ("alpha", alpha), ("steps", steps)) if value is not None}
    if len(given) != 1:
        shown = ", ".join(given) or "none of them"
        raise ValueError(f"give exactly one of times=, alpha=, steps= (received {shown})")
    name, value = next(iter(given.items()))
    points = _increasing(name, value)
    lr, batch = algorithm.lr, algorithm.batch
    if lr == 0.0 and (name != "times" or whole_steps):
        raise checks.reject("lr", lr, "gradient flow makes no steps: use solve_ode with times=, or give a learning rate above 0")
    if name == "steps" and dimension is None:
        raise ValueError("steps= needs a dimension: give dimension=d, or use times= or alpha=")
    if name == "times":
        t = points
    elif name == "alpha":
        t = points * lr / batch
    else:
        assert dimension is not None
        if np.any(points != np.round(points)):
            raise checks.reject("steps", value, "give whole numbers")
        t = points * lr / dimension
    if lr == 0.0:
        return Clock(t, None, None)
    step = None
    if dimension is not None:
        step = points if name == "steps" else t * dimension / lr
        if whole_steps:
            step = np.round(step).astype(np.int64)
            t = step * (lr / dimension)
    return Clock(t, t * batch / lr, step)


def _increasing(name: str, value: Any) -> np.ndarray:
    try:
        points = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise checks.reject(name, value, "give increasing numbers, 0 or more") from None
    if points.ndim != 1 or points.size == 0 or not np.all(np.isfinite(points)):
        raise checks.reject(name, value, "give a list of finite numbers")
    if points[0] < 0 or np.any(np.diff(points) <= 0):
        raise checks.reject(name, value, "give increasing numbers, 0 or more, each once")
    return points
