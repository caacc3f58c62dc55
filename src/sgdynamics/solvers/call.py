"""What the front doors share: how arguments come in, and how a result goes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import Given
from sgdynamics.base.progress import warn
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.results.clock import clock
from sgdynamics.results.datasets import largest_share, trajectory
from sgdynamics.results.observables import (
    Observables,
    checked_evaluate,
    checked_record,
    labelled,
    of_states,
)


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
    observables: Observables

    def observed(
        self, states: dict[str, np.ndarray], lead: int = 2
    ) -> tuple[dict[str, np.ndarray], float]:
        """What was asked for beside the overlaps, of states with so many leading axes, the last of them time; and the risks' error."""
        asked, error = self.observables, 0.0
        found = of_states(asked.of_state, self.dynamics.public_states(states, lead), lead)
        found |= {name: states[name] for name in asked.of_sample}
        risks = [
            other.risk_of(states, self.when, self.dimension) for other in asked.evaluated.values()
        ]
        if risks:
            found["evaluated_risk"], error = (
                np.stack([risk for risk, _ in risks], axis=-1),
                max(error for _, error in risks),
            )
        return found, error


def opened(
    question: str,
    problem: Any,
    algorithm: Any,
    start: Any,
    *,
    times: Given | None = None,
    alpha: Given | None = None,
    steps: Given | None = None,
    dimension: Any = None,
    needs_dimension: bool = False,
    small: bool = False,
    runs: Any = None,
    seed: Any = 0,
    progress: Any = None,
    record: Any = None,
    evaluate: Any = None,
    whole_steps: bool = False,
    cells: int | None = None,
) -> Door:
    """The arguments of every solver, checked in one order, before anything compiles."""
    checks.outside_jit(question)
    dynamics = dynamics_of(question, problem, algorithm)
    progress = checks.flag("progress", progress, unsaid=True)
    d, sizes = (
        (None, None)
        if dimension is None and not needs_dimension
        else dynamics.at_dimension(dimension, small)
    )
    spectrum = getattr(problem, "spectrum", None)
    seed = checks.whole("seed", seed, 0)
    dynamics = dynamics.in_steps(d, cells)
    if spectrum is not None and spectrum.infinite and alpha is not None:
        raise checks.reject(
            "alpha",
            alpha,
            "the dimension is infinite, and samples/d is nothing: give steps= or times=",
        )
    if spectrum is not None and spectrum.infinite and problem.scheduled:
        dynamics = dynamics.counted_in_steps()
    counted = int(spectrum.multiplicities.sum()) if d is None and spectrum is not None else d
    when = clock(
        dynamics.algorithm,
        times=times,
        alpha=alpha,
        steps=steps,
        dimension=counted,
        whole_steps=whole_steps,
    )
    if spectrum is not None and spectrum.infinite:
        when = replace(when, samples=False)
    dynamics = dynamics.counted(when)
    dynamics.check_controls(when)
    dynamics.check_memory(counted, dynamics.place(when)[-1])
    begin = dynamics.start(start, runs)
    first = {
        name: np.asarray(value[0])
        for name, value in dynamics.public_states(dynamics.states(begin)).items()
    }
    observables = checked_record(record, first, problem, dynamics.has_data)
    observables.evaluated.update(
        {name: dynamics.beside(other) for name, other in checked_evaluate(evaluate).items()}
    )
    return Door(dynamics, begin, when, d, sizes, seed, progress, observables)


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
    observed: dict[str, np.ndarray] | None = None,
) -> Any:
    """The result: risks where they are not known yet, errors over runs (`sampled` says what a run is called), warnings, labels."""
    dynamics = door.dynamics
    attributes = {**attributes, **dynamics.facts(door.when)}
    if risk is None:
        risk, attributes["error_quadrature"] = dynamics.risk_of(states, door.when, door.dimension)
    if sampled is not None:
        lost = int(np.isfinite(ends["diverged_at"]).sum())
        if lost:
            shown = f"{lost} of {len(risk)} {sampled} diverged, the first after t = {np.nanmin(ends['diverged_at']):.4g}"
            warnings = (
                *warnings,
                f"{shown} (coordinate diverged_at); a smaller lr{' or step' if sampled == 'paths' else ''} may help",
            )
        elif len(risk) > 1:
            attributes["error_sampling"] = largest_share(
                risk.std(axis=0, ddof=1) / np.sqrt(len(risk)), risk.mean(axis=0)
            )
    for text in warnings:
        warn(text)
    if observed is None:
        observed, error = door.observed(states)
        attributes["error_evaluated"] = error if "evaluated_risk" in observed else None
    attributes["recorded"] = " ".join(name for name in observed if name != "evaluated_risk") or None
    values = dynamics.observed(states, risk, door.when)
    attributes |= {
        name: float(values.pop(name)) for name in list(values) if name.startswith("error_")
    }
    more = labelled(observed, door.observables.evaluated)
    return trajectory(
        dynamics,
        door.when,
        values,
        method=method,
        attributes=attributes,
        made=made,
        more=more,
        **ends,
    )
