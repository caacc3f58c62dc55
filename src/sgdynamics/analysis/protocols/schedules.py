"""The learning-rate schedule that makes the risk smallest after so many samples: a protocol whose one control is the rate.

With a piecewise-constant rate lr(alpha) the overlaps y = (M, Q, a) follow, in alpha = samples/d,

    dy/dalpha = (lr/B) drift(y; lr),    lr = rates[i] on [edges[i], edges[i + 1]),

and risk(y(alpha)) is a smooth function of the rates, whose gradient is taken in reverse mode through every step of the integrator.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols import program
from sgdynamics.analysis.protocols.program import Program, held
from sgdynamics.analysis.protocols.search import ACCURACY, Box, Search, solve
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.base.controls import Schedule, piecewise_rate
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter
from sgdynamics.base.support import require
from sgdynamics.dynamics.fields import FieldWatch
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.drift import MeanStep
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.solvers import functional

RANGE = (
    1e-3,
    30.0,
)  # where learning rates are searched unless the caller says, in units of the width
MOST_PIECES = 10**5  # the gradient keeps a state for each
STEPS = (
    400  # Runge-Kutta steps in all (at least four a piece), doubled until the risk is known to 1e-6
)


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
    quadrature: Quadrature
    batch: int
    steps: int

    @property
    def program(self) -> Program:
        field = MeanStep(self.structure, self.quadrature, self.batch, False)
        return Program(
            field, FieldWatch(self.structure, self.quadrature, "risk"), ("lr",), self.steps
        )

    def numbers(self, given: Parameters) -> dict[str, Any]:
        """The numbers of the program, with the rate as its one control."""
        expectation = expectation_of(self.structure)
        nodes, of_risk = (
            {name: value[0] for name, value in part.items()}
            for part in (
                expectation.nodes(self.quadrature, False),
                expectation.risk_nodes(self.quadrature),
            )
        )
        algorithm = {"lr": held(0, 1.0), "head_rate": given["head_rate"]}
        return {
            "each": {"nodes": nodes},
            "shared": {
                "problem": given["parameters"],
                "algorithm": algorithm,
                "finite": given["finite"],
            },
            "states": given["states"],
            "alpha": given["alpha"],
            "watch": {"watch": of_risk},
        }


def _many(
    setting: _Static, numbers: Parameters, log_rates: Float[Numeric, "schedules pieces"]
) -> Any:
    """Levels (logarithms of the excess risk, or risks) of several schedules."""
    risks = program.many(setting.program, setting.numbers(numbers), np.exp(log_rates)[..., None])
    return jnp.log(risks) if setting.structure.has_excess else risks


def _with_gradient(
    setting: _Static, numbers: Parameters, log_rates: Float[Numeric, " pieces"]
) -> Any:
    """The level of one schedule, and its gradient in the logarithms of the rates."""
    rates = np.exp(log_rates)
    risk, slope = program.with_slope(setting.program, setting.numbers(numbers), rates[:, None])
    slope = slope[:, 0] * rates
    return (jnp.log(risk), slope / risk) if setting.structure.has_excess else (risk, slope)


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
    ``sgd.optimal_protocol`` with the learning rate as the one control, of plain SGD: the ODE of ``solve_ode`` in equal pieces of alpha,
    each of a few Runge-Kutta steps, doubled until the risk is known to 1e-6; L-BFGS on the logarithms of the rates, with the gradient in
    reverse mode, from the best constant rate, which is found first.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    >>> found = sgd.optimal_schedule(problem, begin, alpha=5.0, pieces=4, iterations=20, progress=False)
    >>> round(found.risk, 3) < round(found.best_constant_risk, 3)
    True
    """
    alpha = checks.number("alpha", alpha, above=0.0)
    checks.require_outside_jit("optimal_schedule")
    progress = checks.flag("progress", progress, optional=True)
    pieces = checks.integer("pieces", pieces, 1, MOST_PIECES)
    batch = checks.integer("batch", batch, 1)
    head_rate = checks.number("head_rate", head_rate, 0.0)
    iterations = checks.integer("iterations", iterations, 1, 10**6)
    restarts, seed = checks.integer("restarts", restarts, 0, 10**6), checks.integer("seed", seed, 0)
    require("optimal_schedule", problem)
    begin = validate_start(problem, start)
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
    setting = _Static(
        problem.structure, functional.quadrature(problem, begin), batch, max(4, STEPS // pieces)
    )
    box = Box(np.array([low]), np.array([high]), np.array([True]), np.array([math.nan]))
    with meter("optimal schedule", iterations * (1 + restarts), progress) as bar:
        search = Search(setting.program, setting.numbers(numbers), box, pieces, iterations, bar)
        found = solve(search, restarts, seed, interior=True)
    if found.error > 100 * ACCURACY:
        warnings.warn(
            f"the risk along the schedule is known only to {found.error:.1e} with {2 * found.search.program.steps} steps a piece: "
            "take more pieces, or a smaller largest rate, lr=(lowest, highest)",
            stacklevel=3,
        )
    if not found.converged:
        warnings.warn(
            f"the schedule still improves after {iterations} iterations: give more, iterations=...",
            stacklevel=3,
        )
    edges, rates = np.linspace(0, alpha, pieces + 1), np.exp(found.z[:, 0])
    return OptimalSchedule(
        piecewise_rate(edges[1:-1], rates),
        rates,
        edges,
        found.value,
        math.exp(found.flat[0, 0]),
        found.constant_value,
        found.risks,
        found.constant_risks,
        found.history,
        found.error,
        found.converged,
        batch,
        head_rate,
    )


def _checked_range(problem: Problem, lr: tuple[float, float] | None) -> tuple[float, float]:
    if lr is None:
        return RANGE[0] * problem.width, RANGE[1] * problem.width
    try:
        low, high = (float(value) for value in lr)
    except (TypeError, ValueError):
        raise checks.reject(
            "lr", lr, "give the lowest and the highest learning rate, lr=(lowest, highest)"
        ) from None
    if not 0 < low < high < math.inf:
        raise checks.reject("lr", lr, "give lr=(lowest, highest) with 0 < lowest < highest")
    return low, high
