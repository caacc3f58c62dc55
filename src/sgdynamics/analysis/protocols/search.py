"""The search for the best protocol: bounds and scales, the best constants, L-BFGS-B (with budgets SLSQP) on pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize
from scipy.optimize import OptimizeResult
from scipy.stats import qmc

from sgdynamics.analysis.protocols import program
from sgdynamics.analysis.protocols.program import Program
from sgdynamics.base import checks
from sgdynamics.base.progress import Meter

ACCURACY = 1e-6  # relative, of the objective, by twice as many Runge-Kutta steps
MOST_STEPS = 64  # times the first number of them
DIVERGED = (
    1e3  # stands for the logarithm of what is not finite: the line search then takes shorter steps
)
GRID = {1: 33, 2: 81}  # constants that are tried at once; of more controls than two MORE
MORE = 128
REFINED = 3  # of them, those from which the best constants are searched for where there are several controls
CLOSE = 1e-6  # of a control's range: nearer to a bound is at it
PROBE, WRONG = (
    1e-4,
    0.05,
)  # a step along the gradient, and how far it may be off what the step gives
ROUNDING = 1e-9  # relative, of the objective, in such a difference


@dataclass(frozen=True)
class Box:
    """Bounds of the controls, and the scale in which each is searched: its logarithm, or its place between the bounds, from 0 to 1."""

    low: np.ndarray
    high: np.ndarray
    log: np.ndarray
    budget: np.ndarray  # means over alpha that are given, else NaN

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds in these scales."""
        return np.where(self.log, np.log(np.where(self.log, self.low, 1.0)), 0.0), np.where(
            self.log, np.log(np.maximum(self.high, 1e-300)), 1.0
        )

    def values(self, z: np.ndarray) -> np.ndarray:
        return np.where(
            self.log,
            np.exp(np.where(self.log, z, 0.0)),
            self.low + (self.high - self.low) * np.where(self.log, 0.0, z),
        )

    def places(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                self.log,
                np.log(np.where(self.log, values, 1.0)),
                (values - self.low) / (self.high - self.low),
            )

    def slopes(self, slope: np.ndarray, values: np.ndarray) -> np.ndarray:
        """A gradient in the controls as one in these scales."""
        return slope * np.where(self.log, values, self.high - self.low)

    def at_ends(self, z: np.ndarray) -> np.ndarray:
        """-1 where a piece is at its lowest, 1 at its highest, 0 between."""
        low, high = self.ends
        near = CLOSE * (high - low)
        return np.where(z <= low + near, -1, np.where(z >= high - near, 1, 0))


@dataclass(frozen=True)
class Found:
    """A local minimum: controls in their scales (pieces x controls), the objective, that of every iteration, whether it came to its end."""

    z: np.ndarray
    value: float
    history: list[float]
    converged: bool


class _Crossed(Exception):
    """The objective is not positive: its logarithm was the wrong thing to minimise."""


@dataclass
class Search:
    """A program with its numbers: what is minimised, and over what."""

    program: Program
    numbers: Any
    box: Box
    pieces: int
    iterations: int
    bar: Meter = field(default_factory=Meter)
    log: bool = True  # whether the logarithm of the objective is minimised
    scale: float = 1.0  # otherwise this many times it

    # ------------------------------------------------------------------------------------------------------------- the objective

    def slope(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective at controls in their scales, and its gradient in them."""
        values = self.box.values(z)
        value, slope = program.with_slope(self.program, self.numbers, values)
        return float(value), self.box.slopes(np.asarray(slope), values)

    def _level(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = self.slope(z)
        if not (math.isfinite(value) and np.all(np.isfinite(slope))):
            return DIVERGED, np.zeros_like(slope)
        if not self.log:
            return self.scale * value, self.scale * slope
        if value <= 0:
            raise _Crossed
        return math.log(value), slope / value

    def _value(self, level: float) -> float:
        return (
            math.inf if level >= DIVERGED else math.exp(level) if self.log else level / self.scale
        )

    def exact(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective by twice as many steps, and the risks at the edges."""
        value, risks, _ = self._path(z)
        return float(value), np.asarray(risks)

    def last_states(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """The states of all runs at the end, in the units of the integration."""
        return {name: np.asarray(value) for name, value in self._path(z)[2].items()}

    def _path(self, z: np.ndarray) -> tuple[Any, Any, Any]:
        finer = replace(self.program, steps=2 * self.program.steps)
        return program.path(finer, self.numbers, self.box.values(z))

    # ------------------------------------------------------------------------------------------------------------- constants

    def constants(self, near: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """The best constants in their scales and the objective there.

        The search starts from `near` if they are roughly known, else from a grid.
        """
        budgeted = np.isfinite(self.box.budget)
        fixed = self.box.places(np.where(budgeted, self.box.budget, 1.0))
        starts = [near] if near is not None else self._grid(budgeted, fixed)
        groups = np.where(budgeted, 0, 1)
        if near is None:
            self._check_gradient(np.tile(starts[0], (self.pieces, 1)))
        found = [
            self.descend(np.tile(start, (self.pieces, 1)), groups, counted=False)
            for start in starts
        ]
        best = min(found, key=lambda one: one.value)
        return best.z[0], best.value

    def _grid(self, budgeted: np.ndarray, fixed: np.ndarray) -> list[np.ndarray]:
        free = int((~budgeted).sum())
        low, high = self.box.ends
        if free == 0:
            points = fixed[None]
        else:
            points = np.tile(fixed, (GRID.get(free, MORE), 1))
            points[:, ~budgeted] = low[~budgeted] + (high - low)[~budgeted] * _unit_grid(free)
        values = np.repeat(self.box.values(points)[:, None], self.pieces, axis=1)
        levels = np.asarray(program.many(self.program, self.numbers, values))
        levels = np.where(np.isfinite(levels), levels, np.inf)
        order = np.argsort(levels)
        if not np.isfinite(levels[order[0]]):
            self._refuse("no constant {what} in this range stays finite")
        finite = levels[np.isfinite(levels)]
        self.log = bool(finite.min() > 0)
        self.scale = 1 / max(float(np.abs(finite[0])), float(np.abs(finite).min()), 1e-300)
        return [
            points[index]
            for index in order[: 1 if free < 2 else REFINED]
            if np.isfinite(levels[index])
        ]

    def _refuse(self, what: str) -> None:
        shown = tuple(
            (float(low), float(high)) for low, high in zip(self.box.low, self.box.high, strict=True)
        )
        if self.program.names == ("lr",):
            raise checks.reject(
                "lr", shown[0], f"{what.format(what='rate')}: give another, lr=(lowest, highest)"
            )
        shown = dict(zip(self.program.names, shown, strict=True))
        raise checks.reject(
            "controls",
            shown,
            f"{what.format(what='of all controls')}: give other bounds (lowest, highest)",
        )

    # ------------------------------------------------------------------------------------------------------------- pieces

    def descend(self, z: np.ndarray, groups: np.ndarray, counted: bool = True) -> Found:
        """A local minimum from here. Of `groups` a control has so many values, each over as many pieces; with 0 it stays as it is."""
        while True:
            try:
                return self._descend(z, groups, counted)
            except _Crossed:
                self.log = False

    def _descend(self, z: np.ndarray, groups: np.ndarray, counted: bool) -> Found:
        history: list[float] = []
        sizes = [int(count) for count in groups]
        low, high = self.box.ends

        def spread(x: np.ndarray) -> np.ndarray:
            full, first = z.copy(), 0
            for column, count in enumerate(sizes):
                if count:
                    full[:, column] = np.repeat(x[first : first + count], self.pieces // count)
                first += count
            return full

        def level(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self._level(spread(x))
            parts = [
                slope[:, column].reshape(count, -1).sum(axis=1)
                for column, count in enumerate(sizes)
                if count
            ]
            return value, np.concatenate(parts)

        def note(intermediate_result: OptimizeResult) -> None:
            history.append(self._value(float(intermediate_result.fun)))
            if counted:
                self.bar.advance(1)

        if not any(sizes):
            return Found(z, self._value(self._level(z)[0]), [], True)
        first = np.concatenate(
            [
                z[:, column].reshape(count, -1).mean(axis=1)
                for column, count in enumerate(sizes)
                if count
            ]
        )
        bounds = [
            (low[column], high[column]) for column, count in enumerate(sizes) for _ in range(count)
        ]
        constraints = self._budgets(sizes)
        if constraints:
            given = {
                "method": "SLSQP",
                "constraints": constraints,
                "options": {"maxiter": self.iterations, "ftol": 1e-13},
            }
        else:
            options = {
                "maxiter": self.iterations,
                "maxfun": 4 * self.iterations,
                "ftol": 1e-13,
                "gtol": 1e-9,
                "maxcor": 30,
            }
            given = {"method": "L-BFGS-B", "options": options}
        found: Any = optimize.minimize(
            level, first, jac=True, bounds=bounds, callback=note, **given
        )
        converged = bool(found.success if constraints else found.status != 1)
        clipped = np.clip(found.x, [one[0] for one in bounds], [one[1] for one in bounds])
        return Found(spread(clipped), self._value(float(found.fun)), history, converged)

    def _budgets(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Means over alpha that are given, as linear constraints of SLSQP."""
        found, total, target = [], sum(sizes), self.box.places(self.box.budget)
        for column, count in enumerate(sizes):
            if count and np.isfinite(self.box.budget[column]):
                row = np.zeros(total)
                row[sum(sizes[:column]) : sum(sizes[: column + 1])] = 1 / count
                found.append(
                    {
                        "type": "eq",
                        "fun": lambda x, row=row, at=target[column]: row @ x - at,
                        "jac": lambda x, row=row: row,
                    }
                )
        return found

    def best(self, flat: np.ndarray, restarts: int, seed: int) -> Found:
        """The best of local minima from the constants and from random curves around them."""
        generator, every = np.random.default_rng(seed), np.full(flat.shape[1], self.pieces)
        found = self.descend(flat, every)
        low, high = self.box.ends
        for _ in range(restarts):
            # random walks of order one over all pieces: a factor e, or the whole range
            bent = flat + np.cumsum(generator.normal(size=flat.shape), axis=0) / math.sqrt(
                self.pieces
            )
            other = self.descend(np.clip(bent, low, high), every)
            found = other if other.value < found.value else found
        return found

    # ------------------------------------------------------------------------------------------------------------- what is said of it

    def residual(self, z: np.ndarray) -> float:
        """How far a protocol is from Pontryagin's condition: the largest |n dlog J/dz| that its bounds leave (see `OptimalProtocol`)."""
        value, slope = self.slope(z)
        slope, ends = self.pieces * slope / max(abs(value), 1e-300), self.box.at_ends(z)
        for column in np.flatnonzero(np.isfinite(self.box.budget)):
            inside = ends[:, column] == 0
            # a budget has a multiplier, the same for all pieces
            slope[:, column] -= (
                slope[inside, column].mean() if inside.any() else np.median(slope[:, column])
            )
        outward = ((ends < 0) & (slope > 0)) | ((ends > 0) & (slope < 0))
        return float(np.abs(np.where(outward, 0.0, slope)).max())

    def _check_gradient(self, z: np.ndarray) -> None:
        """Refuse an objective without a gradient: a step along it has to change the objective as it says."""
        here, slope = self.slope(z)
        inside = np.where(self.box.at_ends(z) == 0, slope, 0.0)
        size = float(np.linalg.norm(inside))
        if size == 0:
            return
        change = size
        if math.isfinite(size):
            step = PROBE * inside / size
            change = (self.slope(z + step)[0] - self.slope(z - step)[0]) / (2 * PROBE)
        if not abs(change - size) <= WRONG * size + ROUNDING * abs(here) / PROBE:
            fix = (
                "it has no gradient in the controls that is right: steps that jump with the sample's gradient (sign, clipped, normalised, "
                "muon) have none; plain SGD, momentum and Adam do, and so must a function of one's own"
            )
            raise checks.reject("objective", here, fix)


def _unit_grid(controls: int) -> np.ndarray:
    """Points of the unit cube for the best constants: lines and squares with their edges, beyond that a Sobol sequence."""
    if controls == 1:
        return np.linspace(0, 1, GRID[1])[:, None]
    if controls == 2:
        line = np.linspace(0, 1, math.isqrt(GRID[2]))
        return np.stack(
            [part.reshape(-1) for part in np.meshgrid(line, line, indexing="ij")], axis=1
        )
    return qmc.Sobol(controls, scramble=False).random(MORE)


@dataclass(frozen=True)
class Outcome:
    """The best protocol and the best constants, in their scales, with what they reach by the finer steps."""

    search: Search
    z: np.ndarray
    flat: np.ndarray
    value: float
    constant_value: float
    risks: np.ndarray
    constant_risks: np.ndarray
    history: np.ndarray
    error: float
    converged: bool


def solve(search: Search, restarts: int, seed: int) -> Outcome:
    """Search with more and more Runge-Kutta steps, until they are enough."""
    first, constant, found, history = search.program.steps, None, None, []
    while True:
        constant, level = search.constants(constant)
        flat = np.tile(constant, (search.pieces, 1))
        if found is None:
            history.append(level)
            found = search.best(flat, restarts, seed)
        else:
            found = search.descend(found.z, np.full(len(constant), search.pieces))
        history += found.history
        (value, risks), (constant_value, constant_risks) = search.exact(found.z), search.exact(flat)
        pairs = ((found.value, value), (level, constant_value))
        error = max(abs(one - other) / max(abs(other), 1e-300) for one, other in pairs)
        if error <= ACCURACY or 2 * search.program.steps > MOST_STEPS * first:
            break
        search = replace(search, program=replace(search.program, steps=2 * search.program.steps))
    return Outcome(
        search,
        found.z,
        flat,
        value,
        constant_value,
        risks,
        constant_risks,
        np.array(history),
        error,
        found.converged,
    )
