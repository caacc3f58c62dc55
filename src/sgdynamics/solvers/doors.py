"""What the front doors share: how arguments come in, and how a result goes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import checks
from sgdynamics.clock import clock
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.progress import warn
from sgdynamics.results import largest_share, trajectory


@dataclass(frozen=True, eq=False)
class Door:
    """Checked arguments: the dynamics, where and when, at which dimension."""

    dynamics: Any
    begin: Any
    when: Any  # a Clock
    dimension: Any
    sizes: Any  # of the covariance blocks at that dimension
    seed: int
    progress: bool | None


def opened(
    question: str,
    problem: Any,
    algorithm: Any,
    start: Any,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: Any = None,
    needs_dimension: bool = False,
    small: bool = False,
    runs: Any = None,
    seed: Any = 0,
    progress: Any = None,
    whole_steps: bool = False,
) -> Door:
    """The arguments of every solver, checked in one order, before anything compiles."""
    checks.outside_jit(question)
    dynamics = dynamics_of(question, problem, algorithm)
    progress = checks.flag("progress", progress, unsaid=True)
    d, sizes = (None, None) if dimension is None and not needs_dimension else dynamics.at_dimension(dimension, small)
    seed = checks.whole("seed", seed, 0)
    when = clock(algorithm, times=times, alpha=alpha, steps=steps, dimension=d, whole_steps=whole_steps)
    dynamics.check_controls(when)
    return Door(dynamics, dynamics.start(start, runs), when, d, sizes, seed, progress)


def closed(
    door: Door,
    method: str,
    states: dict[str, np.ndarray],
    attributes: dict[str, Any],
    ends: dict[str, np.ndarray],
    *,
    risk: Any = None,
    warnings: tuple[str, ...] = (),
    sampled: str | None = None,
    made: Any = xr.Dataset,
) -> Any:
    """The result: risks where they are not known yet, errors over runs (`sampled` says what a run is called), warnings, labels."""
    dynamics, attributes = door.dynamics, dict(attributes)
    if risk is None:
        risk, attributes["error_quadrature"] = dynamics.risk_of(states, door.when, door.dimension)
    if sampled is not None:
        lost = int(np.isfinite(ends["diverged_at"]).sum())
        if lost:
            shown = f"{lost} of {len(risk)} {sampled} diverged, the first after t = {np.nanmin(ends['diverged_at']):.4g}"
            warnings = (*warnings, f"{shown} (coordinate diverged_at); a smaller lr{' or step' if sampled == 'paths' else ''} may help")
        elif len(risk) > 1:
            attributes["error_sampling"] = largest_share(risk.std(axis=0, ddof=1) / np.sqrt(len(risk)), risk.mean(axis=0))
    for text in warnings:
        warn(text)
    values = dynamics.observed(states, risk, door.when)
    return trajectory(dynamics, door.when, values, method=method, attributes=attributes, made=made, **ends)
