"""`phases`: one run in several phases, with a problem or algorithm that changes in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr

from sgdynamics.base import checks
from sgdynamics.solvers.sequence import CLOCK_ARGUMENTS, solver_arguments
from sgdynamics.solvers.stage_plan import Stage, read_plan
from sgdynamics.solvers.stages import run_stages


def phases(
    solver: Callable[..., xr.Dataset],
    parts: Sequence[tuple[Any, Any, Any]],
    start: object,
    **arguments: object,
) -> xr.Dataset:
    """Solve or simulate several phases, each from the final state of the phase before.

    Parameters
    ----------
    solver : callable
        Any solver: ``sgd.solve_ode``, ``sgd.simulate``, ``sgd.solve_sde``, ...
    parts : sequence of (problem, algorithm, alpha)
        The phases. alpha (samples over d) is the length of the phase, or a list of save points
        counted from the beginning of the phase, as are functions of alpha in the problem and the
        algorithm. In other units give {"times": ...} or {"steps": ...}.
    start : Start
        Initial condition of the first phase.
    **arguments
        Further arguments of the solver, such as dimension, runs and seed.

    Returns
    -------
    xarray.Dataset
        The result of the solver, with a coordinate ``phase`` along time; t, alpha and step
        continue from phase to phase. The point at which one phase ends and the next begins occurs
        twice if both have saved it: first with the risk of one problem, then of the other.

    Raises
    ------
    ValueError
        If the arguments of a phase are invalid or a phase has diverged; the message names it.

    Notes
    -----
    Phase i > 0 draws its random numbers from a seed made of ``seed`` and i. The internal state of
    an update carries over to the next phase if that has the same update.

    Examples
    --------
    Doubled learning rate and four times the batch after alpha = 2:

    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    >>> first = (problem, sgd.OnePassSGD(lr=1.0), [1.0, 2.0])
    >>> second = (problem, sgd.OnePassSGD(lr=2.0, batch=4), [1.0, 2.0])
    >>> result = sgd.phases(sgd.solve_ode, [first, second], start)
    >>> result.alpha.values.tolist(), result.phase.values.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    """
    names = solver_arguments(solver)
    _validate_parts(parts)
    for name in (*CLOCK_ARGUMENTS, "start"):
        if name in arguments:
            fix = "each phase has its own, the third element of its tuple: leave it out"
            raise checks.reject(name, arguments[name], fix)
    # Phases are stages of one student with the labels of its own problem.
    plan = read_plan([Stage(problem, algorithm, alpha) for problem, algorithm, alpha in parts])
    return run_stages(
        solver, names, plan, start, arguments, coordinate="phase", argument="parts[{}][2]"
    )


def _validate_parts(entries: object) -> None:
    fix = (
        "give phases (problem, algorithm, alpha), such as "
        "[(problem, algorithm, 5.0), (other, algorithm, 5.0)]"
    )
    is_text = isinstance(entries, (str, bytes, Mapping))
    if is_text or not isinstance(entries, Sequence) or not entries:
        raise checks.reject("parts", entries, fix)
    if any(not isinstance(phase, (tuple, list)) or len(phase) != 3 for phase in entries):
        raise checks.reject("parts", entries, fix)
