"""`optimal_schedule`: `optimal_protocol` with the learning rate as its only control."""

from __future__ import annotations

from typing import Any

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols.controls import validate_bounds
from sgdynamics.analysis.protocols.optimise import OptimalProtocol, optimal_protocol
from sgdynamics.base import checks
from sgdynamics.base.support import require
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem

# Default bounds of the learning rate, in units of the width.
LOWEST_RATE, HIGHEST_RATE = 1e-3, 30.0


def optimal_schedule(
    problem: Problem | Dynamics,
    algorithm: OnePassSGD,
    start: Start | Any,
    *,
    alpha: float,
    lr: tuple[float, float] | None = None,
    pieces: int = 50,
    restarts: int = 0,
    dimension: int | None = None,
    iterations: int = 300,
    seed: int = 0,
    progress: bool | None = None,
) -> OptimalProtocol:
    """The learning-rate schedule that minimises the (excess) risk after alpha = samples/d.

    The schedule is piecewise constant in alpha. This is ``sgd.optimal_protocol`` with the learning
    rate as its only control.

    Parameters
    ----------
    problem : Problem or Dynamics
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm; its learning rate is replaced by the schedule.
    start : Start or dict
        Initial condition. With several runs one schedule minimises their mean risk.
    alpha : float
        End of the schedule in samples/d.
    lr : (float, float), optional
        Lowest and highest learning rate. Defaults to (0.001, 30) times the width.
    pieces : int, default 50
        Number of learning rates, each for an equal share of alpha.
    restarts : int, default 0
        Number of additional searches, which start from the best constant rate times random curves.
        Each search ends in a local minimum; the best one is returned.
    dimension : int, optional
        Dimension d whose exact mean increment is used. Defaults to d -> infinity.
    iterations : int, default 300
        Largest number of iterations of each search.
    seed : int, default 0
        Seed of the random curves.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    OptimalProtocol
        ``.protocol["lr"]`` has the rates and ``.edges`` their intervals; ``.value`` is the final
        risk, ``.constant`` the best constant rate ("lr") and its risk ("risk"), ``.gain`` the ratio
        of both risks, and ``.algorithm`` the algorithm with the schedule.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the algorithm is not supported.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    >>> arguments = {"alpha": 5.0, "pieces": 4, "iterations": 20, "progress": False}
    >>> best = sgd.optimal_schedule(problem, sgd.OnePassSGD(), start, **arguments)
    >>> best.protocol["lr"].shape, best.value < best.constant["risk"]
    ((4,), True)
    """
    checks.require_outside_jit("optimal_schedule")
    require("optimal_schedule", problem, algorithm)
    width = getattr(problem, "width", 1)
    bounds = (LOWEST_RATE * width, HIGHEST_RATE * width)
    return optimal_protocol(
        problem,
        algorithm,
        start,
        alpha=alpha,
        controls={"lr": bounds if lr is None else validate_bounds("lr", lr)},
        pieces=pieces,
        restarts=restarts,
        dimension=dimension,
        iterations=iterations,
        seed=seed,
        progress=progress,
    )
