"""The gain of a protocol in simulations: SGD at finite d with the protocol and the best constants.

Both are simulated with the same random numbers, so that the error of their ratio is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics.analysis.protocols.controls import piecewise_control
from sgdynamics.analysis.protocols.request import InitialCondition, ProtocolRequest
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.solvers.simulate import simulate

# Weights of Simpson's rule over a piece: its two ends and its middle.
SIMPSON = np.array([1.0, 4.0, 1.0]) / 6


@dataclass(frozen=True)
class Confirmation:
    """Mean objectives of simulations with a protocol and with the best constants.

    Attributes
    ----------
    gain, gain_error : float
        Ratio of the mean objectives, constants over protocol, and its standard error.
    value, value_error : float
        Mean objective with the protocol, and its standard error.
    constant, constant_error : float
        Mean objective with the best constants, and its standard error.
    dimension : int
        Dimension d.
    runs : int
        Number of runs with each.
    """

    gain: float
    gain_error: float
    value: float
    value_error: float
    constant: float
    constant_error: float
    dimension: int
    runs: int


@float64
def measure_gain(
    request: ProtocolRequest,
    edges: np.ndarray,
    protocol: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    dimension: int | None,
    runs: int,
    seed: int,
    progress: bool | None,
) -> Confirmation:
    """Simulate a protocol and constants with the same seed, and compare their objectives.

    The simulation is the exact chain. Coordinatewise updates have none; they are simulated in d
    dimensions. `protocol` and `constants` are values on the pieces between `edges`.
    """
    runs = checks.integer("runs", runs, 2)
    start, n_starts = _repeat_start(request.start, runs)
    is_coordinatewise = "coordinatewise update" in request.algorithm.kinds
    arguments = {
        "dimension": dimension,
        "runs": runs,
        "seed": seed,
        "progress": progress,
        "method": "direct" if is_coordinatewise else "exact",
    }
    value, d = _run_objectives(request, start, edges, protocol, arguments)
    constant, _ = _run_objectives(request, start, edges, constants, arguments)
    gain = constant.mean() / value.mean()

    def standard_error(values: np.ndarray) -> float:
        # The starts are given, so that only the runs from one start differ by chance.
        groups = values.reshape(n_starts, -1)
        deviations = groups - groups.mean(axis=1, keepdims=True)
        return float(np.sqrt((deviations**2).sum() / (runs - n_starts) / runs))

    # Delta method for a ratio of means. Runs with the same random numbers are paired, and most of
    # their fluctuations cancel.
    gain_error = standard_error(constant - gain * value) / abs(float(value.mean()))
    return Confirmation(
        gain=float(gain),
        gain_error=gain_error,
        value=float(value.mean()),
        value_error=standard_error(value),
        constant=float(constant.mean()),
        constant_error=standard_error(constant),
        dimension=d,
        runs=runs,
    )


def _repeat_start(start: InitialCondition, runs: int) -> tuple[InitialCondition, int]:
    """Repeat a start with several runs, equal ones next to each other; also their number."""
    if not isinstance(start, Start) or start.runs == 1:
        return start, 1
    if runs % start.runs or runs == start.runs:
        raise checks.reject(
            "runs",
            runs,
            f"the start has {start.runs} runs. Give a multiple of that, at least twice as many.",
        )
    repeats = runs // start.runs
    M, Q, a = (
        np.repeat(array, repeats, axis=0) for array in (start.M_blocks, start.Q_blocks, start.a)
    )
    return Start(M, Q, a), start.runs


def _run_objectives(
    request: ProtocolRequest,
    start: object,
    edges: np.ndarray,
    values: dict[str, np.ndarray],
    arguments: dict[str, Any],
) -> tuple[np.ndarray, int]:
    """The objective of each run with these controls, and the dimension."""
    schedules = {name: piecewise_control(edges, value) for name, value in values.items()}
    problem, algorithm = request.controls.insert(request.problem, request.algorithm, schedules)
    save_points = edges[-1:]
    if request.has_integral:
        save_points = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    record = {"objective_of_state": request.objective} if callable(request.objective) else None
    evaluate = None if request.evaluate is None else {"other": request.evaluate}
    result = simulate(
        problem, algorithm, start, alpha=save_points, record=record, evaluate=evaluate, **arguments
    )
    if callable(request.objective):
        risk = np.asarray(result["objective_of_state"])
    elif request.evaluate is not None:
        risk, other = np.asarray(result["evaluated_risk"])[..., 0], request.evaluate
        if "fields" in other.kinds:
            risk = risk - np.array([other.at(alpha).noise_floor for alpha in save_points])
    else:
        risk = np.asarray(result["excess_risk" if "excess_risk" in result else "risk"])
    if request.objective == "integral":
        total = _integrate(_split_pieces(risk, 1), edges)
    else:
        total = risk[:, -1]
    if request.cost is not None:
        total = total + _integrate(_costs(request, result, save_points, values), edges)
    return total, int(result.attrs["dimension"])


def _split_pieces(values: np.ndarray, axis: int) -> np.ndarray:
    """Split an axis of edges and middles in alternation to two axes (piece, 3).

    The second axis has the start, the middle and the end of a piece.
    """
    values = np.moveaxis(values, axis, 0)
    pieces = np.stack([values[:-2:2], values[1:-1:2], values[2::2]], axis=1)
    return np.moveaxis(pieces, (0, 1), (axis, axis + 1))


def _integrate(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Integrate values (run, piece, 3) over alpha by Simpson's rule."""
    return np.einsum("rpk,k,p->r", values, SIMPSON, np.diff(edges))


def _costs(
    request: ProtocolRequest,
    result: xr.Dataset,
    save_points: np.ndarray,
    values: dict[str, np.ndarray],
) -> np.ndarray:
    """The running cost (run, piece, 3), with the controls of the piece also at its two ends."""
    has_overlaps = "fields" in request.problem.kinds
    names = ("M", "Q", "a") if has_overlaps else tuple(cast(Dynamics, request.problem).variables)
    states = {name: jnp.asarray(_split_pieces(np.asarray(result[name]), 1)) for name in names}
    alphas = jnp.asarray(_split_pieces(save_points, 0))
    controls = {name: jnp.asarray(value) for name, value in values.items()}
    assert request.cost is not None
    point_costs = jax.vmap(request.cost, (0, None, 0))
    piece_costs = jax.vmap(point_costs, (0, 0, 0))
    return np.asarray(jax.vmap(lambda state: piece_costs(alphas, controls, state))(states))
