"""The search for the best protocol: first the best constants, then all pieces.

Gradients come from `program`. Local minima are found by L-BFGS-B, and with budgets by SLSQP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from scipy import optimize
from scipy.optimize import OptimizeResult
from scipy.stats import qmc

from sgdynamics.analysis.protocols import program
from sgdynamics.analysis.protocols.box import Box, points_outward
from sgdynamics.analysis.protocols.program import Program
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.progress import Meter

# Relative accuracy of the objective, estimated by doubling the number of Runge-Kutta steps.
ACCURACY = 1e-6
# Largest number of Runge-Kutta steps, as a multiple of the initial one.
MOST_REFINEMENT = 64
# Stands for the logarithm of an objective that is not finite; the line search then shortens its
# step.
DIVERGED = 1e3
# Largest slope of the minimised function; only unstable trajectories are steeper.
STEEPEST = 1e8
# Number of constants that are tried at once, by the number of controls without a budget.
GRID_POINTS = {1: 33, 2: 81}
# The same for more than two controls.
SOBOL_POINTS = 128
# Number of grid points from which local searches for the best constants start, if there are several
# controls.
REFINED_POINTS = 3
# Step in search coordinates of the finite difference that checks the gradient, its largest relative
# deviation, and the relative rounding error of the objective.
PROBE, LARGEST_DEVIATION = 1e-4, 0.05
ROUNDING = 1e-9
# Objectives closer to zero than this are zero.
TINY = 1e-300


@dataclass(frozen=True)
class LocalMinimum:
    """The outcome of one search.

    Attributes
    ----------
    z : ndarray
        Search coordinates, (pieces, controls).
    value : float
        Objective.
    history : list of float
        Objective after each iteration.
    converged : bool
        Whether the search ended before its limit of iterations.
    """

    z: np.ndarray
    value: float
    history: list[float]
    converged: bool


class _NotPositive(Exception):
    """The objective is not positive, so that its logarithm cannot be minimised."""


@dataclass
class Search:
    """An objective with its parameters, the box of its controls, and the settings of the search.

    Attributes
    ----------
    program, parameters : Program, dict
        Static part and parameters of the objective.
    box : Box
        Bounds and budgets of the controls.
    pieces : int
        Number of values of each control.
    iterations : int
        Largest number of iterations of one local search.
    bar : Meter
        Progress bar, which advances with each iteration on the pieces.
    log : bool
        Whether the logarithm of the objective is minimised.
    scale : float
        Factor of the objective where it is minimised itself.
    """

    program: Program
    parameters: Parameters
    box: Box
    pieces: int
    iterations: int
    bar: Meter = field(default_factory=Meter)
    log: bool = True
    scale: float = 1.0

    # ------------------------------------------------------------------ the objective

    def gradient(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective at search coordinates z, and its gradient with respect to them."""
        values = self.box.values(z)
        value, gradient = program.value_and_gradient(self.program, self.parameters, values)
        return float(value), self.box.coordinate_gradient(np.asarray(gradient), values)

    def _level(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The function that is minimised, with its gradient: log J, or J in units of its size."""
        value, gradient = self.gradient(z)
        if not (math.isfinite(value) and np.all(np.isfinite(gradient))):
            return DIVERGED, np.zeros_like(gradient)
        if not self.log:
            level, slope = self.scale * value, self.scale * gradient
        elif value <= 0:
            raise _NotPositive
        else:
            level, slope = math.log(value), gradient / value
        if np.max(np.abs(slope), initial=0.0) > STEEPEST:
            # An unstable trajectory that ends at a finite value: a line search that interpolates
            # with its slope takes a step of 0, which looks like convergence.
            return DIVERGED, np.zeros_like(gradient)
        return level, slope

    def _objective_at(self, level: float) -> float:
        """The objective J that corresponds to a value of the minimised function."""
        if level >= DIVERGED:
            return math.inf
        return math.exp(level) if self.log else level / self.scale

    def evaluate_finely(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective with twice as many Runge-Kutta steps, and the risks at the edges."""
        value, risks, _ = self._trajectory(z)
        return float(value), np.asarray(risks)

    def final_states(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """The final states of all runs, in the units of the integration."""
        _, _, states = self._trajectory(z)
        return {name: np.asarray(value) for name, value in states.items()}

    def _trajectory(self, z: np.ndarray) -> tuple[Any, Any, Any]:
        finer = replace(self.program, steps=2 * self.program.steps)
        return program.trajectory(finer, self.parameters, self.box.values(z))

    # ------------------------------------------------------------------ constants

    def best_constants(self, guess: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """The coordinates of the best constants, and the objective there.

        The search starts from `guess`, or else from the best points of a grid. A control with a
        budget is constant at its mean.
        """
        if guess is not None:
            starts = [guess]
        else:
            starts = self._best_grid_points()
            self._check_gradient(np.tile(starts[0], (self.pieces, 1)))
        groups = np.where(self.box.has_budget, 0, 1)
        minima = [
            self.descend(np.tile(start, (self.pieces, 1)), groups, counted=False)
            for start in starts
        ]
        best = min(minima, key=lambda minimum: minimum.value)
        return best.z[0], best.value

    def _best_grid_points(self) -> list[np.ndarray]:
        """The best points of a grid of constants; sets the function that is minimised."""
        free = ~self.box.has_budget
        count = int(free.sum())
        fixed = self.box.coordinates(np.where(free, 1.0, self.box.budget))
        low, high = self.box.coordinate_bounds
        if count == 0:
            points = fixed[None]
        else:
            points = np.tile(fixed, (GRID_POINTS.get(count, SOBOL_POINTS), 1))
            points[:, free] = low[free] + (high - low)[free] * _unit_grid(count)
        values = np.repeat(self.box.values(points)[:, None], self.pieces, axis=1)
        levels = np.asarray(program.objectives(self.program, self.parameters, values))
        levels = np.where(np.isfinite(levels), levels, np.inf)
        order = np.argsort(levels)
        if not np.isfinite(levels[order[0]]):
            self._raise_diverged()
        finite = levels[np.isfinite(levels)]
        self.log = bool(finite.min() > 0)
        self.scale = 1 / max(float(np.abs(finite[0])), float(np.abs(finite).min()), TINY)
        best = order[: 1 if count < 2 else REFINED_POINTS]
        return [points[index] for index in best if np.isfinite(levels[index])]

    def _raise_diverged(self) -> NoReturn:
        """Raise the ValueError for bounds within which all constants diverge."""
        bounds = [
            (float(low), float(high)) for low, high in zip(self.box.low, self.box.high, strict=True)
        ]
        if self.program.names == ("lr",):
            raise checks.reject(
                "lr",
                bounds[0],
                "no constant learning rate in this range stays finite. Lower the bounds, "
                "lr=(lowest, highest).",
            )
        raise checks.reject(
            "controls",
            dict(zip(self.program.names, bounds, strict=True)),
            "no combination of constants within these bounds stays finite. Give other bounds "
            "(lowest, highest).",
        )

    # ------------------------------------------------------------------ pieces

    def descend(self, z: np.ndarray, groups: np.ndarray, counted: bool = True) -> LocalMinimum:
        """Find a local minimum, starting from z.

        Parameters
        ----------
        z : ndarray
            Initial search coordinates, (pieces, controls).
        groups : ndarray
            Number of different values of each control, each over an equal number of pieces. A
            control with 0 values keeps those of z.
        counted : bool, default True
            Whether iterations advance the progress bar.

        Returns
        -------
        LocalMinimum
            The minimum.
        """
        while True:
            try:
                return self._descend(z, groups, counted)
            except _NotPositive:
                self.log = False

    def _descend(self, z: np.ndarray, groups: np.ndarray, counted: bool) -> LocalMinimum:
        history: list[float] = []
        sizes = [int(count) for count in groups]
        # (column of z, number of its values) of the controls that vary
        columns = [(column, count) for column, count in enumerate(sizes) if count]
        if not columns:
            return LocalMinimum(z, self._objective_at(self._level(z)[0]), [], True)
        low, high = self.box.coordinate_bounds

        def expand(x: np.ndarray) -> np.ndarray:
            """The coordinates of all pieces from the vector x of free values."""
            full, offset = z.copy(), 0
            for column, count in columns:
                full[:, column] = np.repeat(x[offset : offset + count], self.pieces // count)
                offset += count
            return full

        def level(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._level(expand(x))
            sums = [gradient[:, column].reshape(count, -1).sum(axis=1) for column, count in columns]
            return value, np.concatenate(sums)

        def record(intermediate_result: OptimizeResult) -> None:
            history.append(self._objective_at(float(intermediate_result.fun)))
            if counted:
                self.bar.advance(1)

        means = [z[:, column].reshape(count, -1).mean(axis=1) for column, count in columns]
        bounds = [(low[column], high[column]) for column, count in columns for _ in range(count)]
        constraints = self._budget_constraints(sizes)
        method: dict[str, Any]
        if constraints:
            options = {"maxiter": self.iterations, "ftol": 1e-13}
            method = {"method": "SLSQP", "constraints": constraints, "options": options}
        else:
            options = {
                "maxiter": self.iterations,
                "maxfun": 4 * self.iterations,
                "ftol": 1e-13,
                "gtol": 1e-9,
                "maxcor": 30,
            }
            method = {"method": "L-BFGS-B", "options": options}
        minimum: Any = optimize.minimize(
            level, np.concatenate(means), jac=True, bounds=bounds, callback=record, **method
        )
        converged = bool(minimum.success if constraints else minimum.status != 1)
        lowest, highest = np.array(bounds).T
        z = expand(np.clip(minimum.x, lowest, highest))
        return LocalMinimum(z, self._objective_at(float(minimum.fun)), history, converged)

    def _budget_constraints(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Budgets as linear constraints of SLSQP; the coordinate of such a control is linear."""
        constraints: list[dict[str, Any]] = []
        means = self.box.coordinates(self.box.budget)
        for column, count in enumerate(sizes):
            if not count or not self.box.has_budget[column]:
                continue
            row = np.zeros(sum(sizes))
            row[sum(sizes[:column]) : sum(sizes[: column + 1])] = 1 / count
            constraints.append(
                {
                    "type": "eq",
                    "fun": lambda x, row=row, mean=means[column]: row @ x - mean,
                    "jac": lambda x, row=row: row,
                }
            )
        return constraints

    def best_minimum(self, constant: np.ndarray, restarts: int, seed: int) -> LocalMinimum:
        """The best local minimum from the constants and from random curves around them."""
        generator = np.random.default_rng(seed)
        groups = np.full(constant.shape[1], self.pieces)
        best = self.descend(constant, groups)
        low, high = self.box.coordinate_bounds
        for _ in range(restarts):
            # Random walks of order one over all pieces: a factor e, or the whole range.
            steps = generator.normal(size=constant.shape)
            curve = constant + np.cumsum(steps, axis=0) / math.sqrt(self.pieces)
            minimum = self.descend(np.clip(curve, low, high), groups)
            if minimum.value < best.value:
                best = minimum
        return best

    # ------------------------------------------------------------------ diagnostics

    def residual(self, z: np.ndarray) -> float:
        """The deviation from Pontryagin's condition, max |pieces dlog J/dz|.

        Components that point out of the bounds do not count; see `OptimalProtocol.residual`.
        """
        value, gradient = self.gradient(z)
        gradient = self.pieces * gradient / max(abs(value), TINY)
        sides = self.box.at_bounds(z)
        for column in np.flatnonzero(self.box.has_budget):
            # A budget has a Lagrange multiplier, the same for all pieces between the bounds.
            slopes = gradient[:, column]
            inside = sides[:, column] == 0
            slopes -= slopes[inside].mean() if inside.any() else np.median(slopes)
        return float(np.abs(np.where(points_outward(sides, gradient), 0.0, gradient)).max())

    def _check_gradient(self, z: np.ndarray) -> None:
        """Raise ValueError if the gradient is not that of the objective.

        A finite difference along the gradient must have the length of the gradient as its slope.
        """
        value, gradient = self.gradient(z)
        inside = np.where(self.box.at_bounds(z) == 0, gradient, 0.0)
        length = float(np.linalg.norm(inside))
        if length == 0:
            return
        slope = length
        if math.isfinite(length):
            step = PROBE * inside / length
            slope = (self.gradient(z + step)[0] - self.gradient(z - step)[0]) / (2 * PROBE)
        tolerance = LARGEST_DEVIATION * length + ROUNDING * abs(value) / PROBE
        if not abs(slope - length) <= tolerance:
            raise checks.reject(
                "objective",
                value,
                "its gradient with respect to the controls differs from finite differences. "
                "Updates that are discontinuous in the gradient of a sample (sign, clipped, "
                "normalised, muon) have no such gradient: use plain SGD, momentum or Adam. Your "
                "own functions must be differentiable by JAX.",
            )


def _unit_grid(controls: int) -> np.ndarray:
    """Points of the unit cube: a line or a square with its boundary, or a Sobol sequence."""
    if controls == 1:
        return np.linspace(0, 1, GRID_POINTS[1])[:, None]
    if controls == 2:
        line = np.linspace(0, 1, math.isqrt(GRID_POINTS[2]))
        first, second = np.meshgrid(line, line, indexing="ij")
        return np.stack([first.reshape(-1), second.reshape(-1)], axis=1)
    return qmc.Sobol(controls, scramble=False).random(SOBOL_POINTS)


@dataclass(frozen=True)
class SearchResult:
    """The best protocol and the best constants, evaluated with the finer Runge-Kutta steps.

    Attributes
    ----------
    search : Search
        The search with the number of steps that was sufficient.
    z, constant_z : ndarray
        Search coordinates of the protocol and of the constants, (pieces, controls).
    value, constant_value : float
        Objectives.
    risks, constant_risks : ndarray
        Risks at the edges.
    history : ndarray
        Objective after each iteration.
    error : float
        Relative error of the objectives, estimated by halving the number of steps.
    converged : bool
        Whether the search ended before its limit of iterations.
    """

    search: Search
    z: np.ndarray
    constant_z: np.ndarray
    value: float
    constant_value: float
    risks: np.ndarray
    constant_risks: np.ndarray
    history: np.ndarray
    error: float
    converged: bool


def find_optimum(search: Search, restarts: int, seed: int) -> SearchResult:
    """Find the best protocol, with more Runge-Kutta steps until the objective is accurate."""
    first_steps, history = search.program.steps, []
    constants: np.ndarray | None = None
    minimum: LocalMinimum | None = None
    while True:
        constants, constant_level = search.best_constants(constants)
        constant_z = np.tile(constants, (search.pieces, 1))
        if minimum is None:
            history.append(constant_level)
            minimum = search.best_minimum(constant_z, restarts, seed)
        else:
            minimum = search.descend(minimum.z, np.full(len(constants), search.pieces))
        history += minimum.history
        value, risks = search.evaluate_finely(minimum.z)
        constant_value, constant_risks = search.evaluate_finely(constant_z)
        error = max(
            abs(minimum.value - value) / max(abs(value), TINY),
            abs(constant_level - constant_value) / max(abs(constant_value), TINY),
        )
        finer_steps = 2 * search.program.steps
        if error <= ACCURACY or finer_steps > MOST_REFINEMENT * first_steps:
            break
        search = replace(search, program=replace(search.program, steps=finer_steps))
    return SearchResult(
        search=search,
        z=minimum.z,
        constant_z=constant_z,
        value=value,
        constant_value=constant_value,
        risks=risks,
        constant_risks=constant_risks,
        history=np.array(history),
        error=error,
        converged=minimum.converged,
    )
