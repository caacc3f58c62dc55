"""The learning-rate schedule that makes the risk smallest after so many samples: gradient descent through the ODE.

With a piecewise-constant rate lr(alpha) the overlaps y = (M, Q, a) follow, in alpha = samples/d,

    dy/dalpha = (lr/B) drift(y; lr),    lr = rates[i] on [edges[i], edges[i + 1]),

and risk(y(alpha)) is a smooth function of the rates, whose gradient is taken in reverse mode through every step of the integrator.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import optimize
from scipy.optimize import OptimizeResult

from sgdynamics import checks, functional
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.arrays import Numbers, Numeric, Scalar, State
from sgdynamics.controls import Schedule, piecewise_rate
from sgdynamics.gaussian.expectation import Rule
from sgdynamics.precision import float64
from sgdynamics.problems.losses import label_noise
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, check_dimension, checked_start
from sgdynamics.progress import Meter, meter
from sgdynamics.support import require

RANGE = (1e-3, 30.0)  # where learning rates are searched unless the caller says, in units of the width
GRID = 33  # constant rates that are tried at once, then again between the neighbours of the best
ZOOMS = 5
MOST_PIECES = 10**5  # the gradient keeps a state for each
STEPS = 400  # Runge-Kutta steps in all (at least four a piece), doubled until the risk is known to ACCURACY
MOST_STEPS = 64  # times that
ACCURACY = 1e-6  # relative, of the risk, by twice as many steps
DIVERGED = 1e3  # stands for the logarithm of a risk that is not finite: the line search then takes shorter steps
# classical Runge-Kutta by stages, each from the one before
STAGES = (np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 2.0, 1.0]) / 6)


@dataclass(frozen=True)
class OptimalSchedule:
    """A schedule found by ``sgd.optimal_schedule``: ``rates[i]`` holds for alpha in [edges[i], edges[i + 1]).

    Attributes
    ----------
    schedule : Schedule
        To be given as ``lr``.
    rates : ndarray
        The rates, one a piece.
    edges : ndarray
        Where pieces begin and end, in alpha, from 0 on.
    risk : float
        What it reaches at alpha = edges[-1] (the excess risk where the loss is squared).
    best_constant_lr : float
        The best constant rate.
    best_constant_risk : float
        What that reaches.
    risks : ndarray
        The risk at every edge.
    constant_risks : ndarray
        The same with the best constant rate.
    history : ndarray
        The risk after each iteration, from the constant rate on.
    error_integrator : float
        Relative error of the risks.
    converged : bool
        Whether the search came to its end.
    batch : int
        Samples in a step.
    head_rate : float
        The rate of a trained head relative to ``lr``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    >>> found = sgd.optimal_schedule(problem, begin, alpha=5.0, pieces=4, iterations=20, progress=False)
    >>> found.rates.shape, found.gain > 1, found.algorithm.batch
    ((4,), True, 1)
    """

    schedule: Schedule
    rates: np.ndarray
    edges: np.ndarray
    risk: float
    best_constant_lr: float
    best_constant_risk: float
    risks: np.ndarray
    constant_risks: np.ndarray
    history: np.ndarray
    error_integrator: float
    converged: bool
    batch: int = 1
    head_rate: float = 1.0

    @property
    def gain(self) -> float:
        """How many times smaller the risk is than with the best constant rate."""
        return self.best_constant_risk / self.risk

    @property
    def alpha(self) -> float:
        """The end, samples over d."""
        return float(self.edges[-1])

    @property
    def algorithm(self) -> OnePassSGD:
        """One-pass SGD with this schedule, for ``solve_ode`` and ``simulate``."""
        return OnePassSGD(lr=self.schedule, batch=self.batch, head_rate=self.head_rate)

    def __repr__(self) -> str:
        return (
            f"OptimalSchedule(risk {self.risk:.5g} at alpha = {self.alpha:g}, {self.gain:.4g} times below the best constant rate "
            f"{self.best_constant_lr:.4g}; {len(self.rates)} rates from {self.rates[0]:.4g} to {self.rates[-1]:.4g})"
        )


@dataclass(frozen=True)
class _Static:
    """All that is static, so that one program serves any numbers."""

    structure: Structure
    rule: Rule
    batch: int
    steps: int


def _states(setting: _Static, numbers: Numbers, log_rates: Float[Numeric, " pieces"]) -> Any:
    """The states of all starts at the end of each piece, axes (run, piece)."""
    structure, parameters = setting.structure, numbers["parameters"]
    length = numbers["alpha"] / (log_rates.shape[0] * setting.steps)
    here = {"head_rate": numbers["head_rate"], "batch": setting.batch, "finite": numbers["finite"], "rule": setting.rule}
    places, weights = (jnp.asarray(values) for values in STAGES)

    def step(state: State, lr: Scalar) -> Any:
        span = length * lr / setting.batch

        def stage(carry: tuple[Any, Any], coefficients: tuple[Any, Any]) -> tuple[tuple[Any, Any], None]:
            slope, total = carry
            place, weight = coefficients
            moved = jax.tree.map(lambda value, rate: value + place * span * rate, state, slope)
            slope = functional.drift(structure, parameters, moved, lr=lr, **here)
            return (slope, jax.tree.map(lambda so_far, rate: so_far + weight * rate, total, slope)), None

        # the stages in a loop: the drift is compiled once, which is most of what there is to compile
        zero = jax.tree.map(jnp.zeros_like, state)
        (_, total), _ = jax.lax.scan(stage, (zero, zero), (places, weights))
        return jax.tree.map(lambda value, rate: value + span * rate, state, total)

    def piece(state: State, lr: Scalar) -> tuple[Any, Any]:
        state, _ = jax.lax.scan(lambda now, _: (step(now, lr), None), state, length=setting.steps)
        return state, state

    return jax.vmap(lambda state: jax.lax.scan(piece, state, jnp.exp(log_rates))[1])(numbers["states"])


def _level(setting: _Static, numbers: Numbers, states: State) -> Any:
    """The logarithm of the mean excess risk over starts; the risk itself where the loss has no excess risk."""
    structure, parameters = setting.structure, numbers["parameters"]
    risk = jnp.mean(jax.vmap(lambda state: functional.risk(structure, parameters, state, rule=setting.rule))(states))
    return jnp.log(risk - label_noise(parameters) / 2) if structure.has_excess else risk


def _final(setting: _Static, numbers: Numbers, log_rates: Float[Numeric, " pieces"]) -> Any:
    states = _states(setting, numbers, log_rates)
    return _level(setting, numbers, jax.tree.map(lambda value: value[:, -1], states))


@partial(jax.jit, static_argnums=0)
def _path(setting: _Static, numbers: Numbers, log_rates: Float[Numeric, " pieces"]) -> Any:
    """Levels at the end of each piece, for several schedules."""

    def one(log_rates: Float[Numeric, " pieces"]) -> Any:
        states = jax.tree.map(lambda value: jnp.moveaxis(value, 1, 0), _states(setting, numbers, log_rates))
        return jax.lax.map(partial(_level, setting, numbers), states)

    return jax.vmap(one)(log_rates)


@partial(jax.jit, static_argnums=0)
def _start_level(setting: _Static, numbers: Numbers) -> Any:
    return _level(setting, numbers, numbers["states"])


@partial(jax.jit, static_argnums=0)
def _many(setting: _Static, numbers: Numbers, log_rates: Float[Numeric, " pieces"]) -> Any:
    return jax.vmap(partial(_final, setting, numbers))(log_rates)


@partial(jax.jit, static_argnums=0)
def _with_gradient(setting: _Static, numbers: Numbers, log_rates: Float[Numeric, " pieces"]) -> Any:
    return jax.value_and_grad(partial(_final, setting, numbers))(log_rates)


@float64
def optimal_schedule(
    problem: Problem,
    start: Start,
    *,
    alpha: float,
    pieces: int = 50,
    dimension: int | None = None,
    batch: int = 1,
    head_rate: float = 1.0,
    lr: tuple[float, float] | None = None,
    iterations: int = 300,
    restarts: int = 0,
    seed: int = 0,
    progress: bool | None = None,
) -> OptimalSchedule:
    """The piecewise-constant learning rate that minimises the (excess) risk after alpha = samples/d, from this start.

    Parameters
    ----------
    problem : Problem
        What is learned.
    start : Start
        Where; of a start with several runs the mean risk is minimised, one schedule for all of them.
    alpha : float
        The end, samples over d.
    pieces : int, default 50
        How many rates, each for an equal share of alpha.
    dimension : int, optional
        The mean increment at that d; d -> infinity unless given.
    batch : int, default 1
        Samples in a step.
    head_rate : float, default 1.0
        The rate of a trained head relative to ``lr``.
    lr : (float, float), optional
        Rates stay within (lowest, highest); (.001, 30) times the width unless given.
    iterations : int, default 300
        Of the search, at most.
    restarts : int, default 0
        What is found is a local minimum: this tries as many more, from the best constant rate times random curves, and keeps the best.
    seed : int, default 0
        Of the random curves.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    OptimalSchedule
        ``.schedule``, ``.rates``, ``.edges``, ``.risk``, ``.gain``, and ``.algorithm`` for the solvers.

    Raises
    ------
    ValueError
        If an argument is refused, or the question is not answered for this problem.

    Notes
    -----
    The ODE of ``solve_ode`` in equal pieces of alpha, each of a few Runge-Kutta steps, doubled until the risk is known to 1e-6; L-BFGS on
    the logarithms of the rates, with the gradient in reverse mode, from the best constant rate, which is found first, on grids.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    >>> found = sgd.optimal_schedule(problem, begin, alpha=5.0, pieces=4, iterations=20, progress=False)
    >>> round(found.risk, 3) < round(found.best_constant_risk, 3)
    True
    """
    alpha = checks.number("alpha", alpha, above=0.0)
    checks.outside_jit("optimal_schedule")
    progress = checks.flag("progress", progress, unsaid=True)
    pieces = checks.whole("pieces", pieces, 1, MOST_PIECES)
    batch = checks.whole("batch", batch, 1)
    head_rate = checks.number("head_rate", head_rate, 0.0)
    iterations = checks.whole("iterations", iterations, 1, 10**6)
    restarts, seed = checks.whole("restarts", restarts, 0, 10**6), checks.whole("seed", seed, 0)
    require("optimal_schedule", problem)
    begin = checked_start(problem, start)
    low, high = _checked_range(problem, lr)
    if dimension is not None:
        dimension = check_dimension(problem, dimension)[0]
    numbers = {
        "parameters": problem.parameters,
        "alpha": np.float64(alpha),
        "head_rate": np.float64(head_rate),
        "finite": None if dimension is None else functional.finite(problem, dimension, batch),
        "states": {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a},
    }
    first = max(4, STEPS // pieces)
    setting = _Static(problem.structure, functional.rule(problem, begin), batch, first)
    search = _Search(numbers, pieces, (math.log(low), math.log(high)), problem.structure.has_excess)
    with meter("optimal schedule", iterations * (1 + restarts), progress) as bar:
        log_rates, path = None, []
        while True:
            constant, level = search.best_constant(setting)
            flat = np.full(pieces, constant)
            found = search.descend(setting, flat if log_rates is None else log_rates, iterations, bar)
            if log_rates is None:
                generator = np.random.default_rng(seed)
                for _ in range(restarts):
                    # a random walk in log lr: of order one over all pieces
                    bent = flat + np.cumsum(generator.normal(size=pieces)) / math.sqrt(pieces)
                    other = search.descend(setting, np.clip(bent, *search.bounds), iterations, bar)
                    found = other if other[1] < found[1] else found
            log_rates, reached, levels, converged = found
            path += levels
            finer = replace(setting, steps=2 * setting.steps)
            exact = search.risks(np.asarray(_path(finer, numbers, np.stack([log_rates, flat]))))
            error = float(np.abs(search.risks(np.array([reached, level])) / exact[:, -1] - 1).max())
            if error <= ACCURACY or finer.steps > MOST_STEPS * first:
                break
            setting = finer
    if error > 100 * ACCURACY:
        warnings.warn(
            f"the risk along the schedule is known only to {error:.1e} with {finer.steps} steps a piece: take more pieces, or a smaller "
            "largest rate, lr=(lowest, highest)",
            stacklevel=3,
        )
    if not converged:
        warnings.warn(f"the schedule still improves after {iterations} iterations: give more, iterations=...", stacklevel=3)
    edges, rates = np.linspace(0, alpha, pieces + 1), np.exp(log_rates)
    begin_risk = search.risks(np.asarray(_start_level(setting, numbers)))
    along, flat_along = (np.append(begin_risk, values) for values in exact)
    return OptimalSchedule(
        piecewise_rate(edges[1:-1], rates),
        rates,
        edges,
        float(along[-1]),
        math.exp(constant),
        float(flat_along[-1]),
        along,
        flat_along,
        search.risks(np.array([level, *path])),
        error,
        converged,
        batch,
        head_rate,
    )


def _checked_range(problem: Problem, lr: tuple[float, float] | None) -> tuple[float, float]:
    if lr is None:
        return RANGE[0] * problem.width, RANGE[1] * problem.width
    try:
        low, high = (float(value) for value in lr)
    except (TypeError, ValueError):
        raise checks.reject("lr", lr, "give the lowest and the highest learning rate, lr=(lowest, highest)") from None
    if not 0 < low < high < math.inf:
        raise checks.reject("lr", lr, "give lr=(lowest, highest) with 0 < lowest < highest")
    return low, high


@dataclass(frozen=True)
class _Search:
    """The search for rates, on levels: logarithms of the risk (or risks, where there is no excess risk)."""

    numbers: Any
    pieces: int
    bounds: tuple[float, float]
    excess: bool

    def levels(self, setting: _Static, log_rates: np.ndarray) -> np.ndarray:
        """The level of each row; infinite where the solution has diverged."""
        found = np.asarray(_many(setting, self.numbers, log_rates))
        return np.where(np.isfinite(found), found, np.inf)

    def risks(self, levels: np.ndarray) -> np.ndarray:
        return np.exp(levels) if self.excess else levels

    def best_constant(self, setting: _Static) -> tuple[float, float]:
        """The best constant log-rate and its level, by grids that close in on it."""
        low, high = self.bounds
        best, level = low, math.inf
        for zoom in range(ZOOMS):
            grid = np.linspace(low, high, GRID)
            levels = self.levels(setting, np.repeat(grid[:, None], self.pieces, axis=1))
            at = int(np.argmin(levels))
            if zoom == 0 and (not np.isfinite(levels[at]) or at in (0, GRID - 1)):
                shown = tuple(math.exp(value) for value in self.bounds)
                finite = np.isfinite(levels[at])
                where = "the best constant rate is at an end of this range" if finite else "no constant rate in this range stays finite"
                raise checks.reject("lr", shown, f"{where}: give another, lr=(lowest, highest)")
            best, level = float(grid[at]), float(levels[at])
            low, high = grid[max(at - 1, 0)], grid[min(at + 1, GRID - 1)]
        return best, level

    def descend(self, setting: _Static, log_rates: np.ndarray, iterations: int, bar: Meter) -> tuple[np.ndarray, float, list[float], bool]:
        """Log-rates at a local minimum, their level, the levels on the way, and whether it is a minimum."""

        def value(log_rates: np.ndarray) -> tuple[float, np.ndarray]:
            level, slope = _with_gradient(setting, self.numbers, log_rates)
            level, slope = float(level), np.array(slope)
            if math.isfinite(level) and np.all(np.isfinite(slope)):
                return level, slope
            return DIVERGED, np.zeros(len(log_rates))

        path: list[float] = []

        def note(intermediate_result: OptimizeResult) -> None:
            path.append(float(intermediate_result.fun))
            bar.advance(1)

        found: Any = optimize.minimize(
            value,
            log_rates,
            jac=True,
            method="L-BFGS-B",
            bounds=[self.bounds] * len(log_rates),
            callback=note,
            options={"maxiter": iterations, "maxfun": 4 * iterations, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 30},
        )
        return np.asarray(found.x), float(found.fun), path, bool(found.status != 1)
