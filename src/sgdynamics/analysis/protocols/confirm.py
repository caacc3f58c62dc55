"""A protocol's gain measured: SGD at finite d with the protocol and with the best constants, run by run on the same random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols.controls import Controls, pieces_of
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.solvers.simulate import simulate

SIMPSON = np.array([1.0, 4.0, 1.0]) / 6  # over a piece, from its ends and its middle


@dataclass(frozen=True, eq=False)
class Asked:
    """What ``optimal_protocol`` was asked."""

    problem: Any
    algorithm: Any
    start: Any
    controls: Controls
    objective: Any
    evaluate: Any
    cost: Any

    @property
    def integrated(self) -> bool:
        return self.objective == "integral" or self.cost is not None


@dataclass(frozen=True)
class Confirmation:
    """Means over runs of the objective with the protocol (value) and with the best constants, their ratio, and all standard errors."""

    gain: float
    gain_error: float
    value: float
    value_error: float
    constant: float
    constant_error: float
    dimension: int
    runs: int


@float64
def measured(
    asked: Asked,
    edges: np.ndarray,
    protocol: dict[str, np.ndarray],
    flat: dict[str, np.ndarray],
    dimension: int | None,
    runs: int,
    seed: int,
    progress: bool | None,
) -> Confirmation:
    """Both by the exact chain (coordinatewise updates have none: in d dimensions), with one seed."""
    runs = checks.integer("runs", runs, 2)
    begin, starts = _repeated(asked.start, runs)
    direct = "coordinatewise update" in asked.algorithm.kinds
    where = {
        "dimension": dimension,
        "runs": runs,
        "seed": seed,
        "progress": progress,
        "method": "direct" if direct else "exact",
    }
    both: list[np.ndarray] = []
    d = 0
    for values in (protocol, flat):
        problem, algorithm = asked.controls.put(
            asked.problem,
            asked.algorithm,
            {name: pieces_of(edges, value) for name, value in values.items()},
        )
        found, d = _objectives(asked, problem, algorithm, begin, edges, values, where)
        both.append(found)
    value, constant = both
    gain = constant.mean() / value.mean()

    def error(numbers: np.ndarray) -> float:
        # the starts are given: only what runs from one start differ by is chance
        groups = numbers.reshape(starts, -1)
        spread = groups - groups.mean(axis=1, keepdims=True)
        return float(np.sqrt((spread**2).sum() / (runs - starts) / runs))

    return Confirmation(
        float(gain),
        # of a ratio of means, run by run: an unlucky one is so with both
        error(constant - gain * value) / abs(float(value.mean())),
        float(value.mean()),
        error(value),
        float(constant.mean()),
        error(constant),
        d,
        runs,
    )


def _repeated(start: Any, runs: int) -> tuple[Any, int]:
    """The start for so many runs, those of one start together, and how many starts there are."""
    if not isinstance(start, Start) or start.runs == 1:
        return start, 1
    if runs % start.runs or runs == start.runs:
        raise checks.reject(
            "runs",
            runs,
            f"the start has {start.runs}: give a multiple of that, twice as many or more",
        )
    M, Q, a = (
        np.repeat(part, runs // start.runs, axis=0)
        for part in (start.M_blocks, start.Q_blocks, start.a)
    )
    return Start(M, Q, a), start.runs


def _objectives(
    asked: Asked,
    problem: Any,
    algorithm: OnePassSGD,
    begin: object,
    edges: np.ndarray,
    values: dict[str, np.ndarray],
    where: dict[str, Any],
) -> tuple[np.ndarray, int]:
    """The objective of each run, and the dimension."""
    places = (
        np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        if asked.integrated
        else edges[-1:]
    )
    record = {"objective_of_state": asked.objective} if callable(asked.objective) else None
    evaluate = None if asked.evaluate is None else {"other": asked.evaluate}
    found = simulate(
        problem, algorithm, begin, alpha=places, record=record, evaluate=evaluate, **where
    )
    if callable(asked.objective):
        risk = np.asarray(found["objective_of_state"])
    elif asked.evaluate is not None:
        risk, other = np.asarray(found["evaluated_risk"])[..., 0], asked.evaluate
        if "fields" in other.kinds:
            risk = risk - np.array([other.at(place).noise_floor for place in places])
    else:
        risk = np.asarray(found["excess_risk" if "excess_risk" in found else "risk"])
    total = _integral(risk, edges) if asked.objective == "integral" else risk[:, -1]
    if asked.cost is not None:
        total = total + _integral(_costs(asked, found, places, values), edges)
    return total, int(found.attrs["dimension"])


def _integral(numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Over alpha, of numbers (run, time) at the edges and middles of pieces, or (run, piece, 3) of each."""
    every = (
        numbers
        if numbers.ndim == 3
        else np.stack([numbers[:, :-2:2], numbers[:, 1:-1:2], numbers[:, 2::2]], axis=2)
    )
    return np.einsum("rpk,k,p->r", every, SIMPSON, np.diff(edges))


def _costs(
    asked: Asked, found: xr.Dataset, places: np.ndarray, values: dict[str, np.ndarray]
) -> np.ndarray:
    """The cost of each run at the ends and the middle of each piece, with the piece's own controls."""
    names = ("M", "Q", "a") if "fields" in asked.problem.kinds else tuple(asked.problem.variables)

    def pieces(numbers: np.ndarray, axis: int) -> np.ndarray:
        parts = np.moveaxis(numbers, axis, 0)
        return np.moveaxis(
            np.stack([parts[:-2:2], parts[1:-1:2], parts[2::2]], axis=1), (0, 1), (axis, axis + 1)
        )

    states = {name: jnp.asarray(pieces(np.asarray(found[name]), 1)) for name in names}
    at, controls = (
        jnp.asarray(pieces(places, 0)),
        {name: jnp.asarray(value) for name, value in values.items()},
    )
    of_point = jax.vmap(asked.cost, (0, None, 0))
    of_piece = jax.vmap(of_point, (0, 0, 0))
    return np.asarray(jax.vmap(lambda state: of_piece(at, controls, state))(states))
