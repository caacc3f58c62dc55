"""`expect`: expectations of any function of a sample, at the states of a result or a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.support import require
from sgdynamics.expectations.risk import estimate_expectation
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.user_losses import UserLoss, extra_arguments
from sgdynamics.results.datasets import largest_share, problem_of
from sgdynamics.results.observables import check_of_sample
from sgdynamics.results.states import field_states


def expect(
    result: xr.Dataset | Start, function: Callable[..., Any], problem: Problem | None = None
) -> xr.DataArray:
    """The expectation of any function of a fresh sample, at the states of a result or a start.

    Parameters
    ----------
    result : xarray.Dataset or Start
        The result of a solver, theory or simulation, for a problem with fields; or a start, which
        requires ``problem``.
    function : callable
        A JAX function of one sample, ``function(fields, signals, head, draws)``, that returns a
        number or an array. Its arguments are those of a loss: the student's fields (p,), the
        signals (K,), with tokens (p, L) and (K, L), the head (p,), and the draws: one standard
        normal, the label of a mixture's cluster, or the dictionary of a problem's own draws. An
        additional argument ``overlaps`` is a dictionary of Q, M and P; any other one is the
        problem's dictionary ``parameters``. The function may jump, and need not be differentiable.
    problem : Problem, optional
        The problem that draws the samples. Defaults to the one that the result records. Required
        for a start, and for a result whose problem contains a user's functions. Another problem of
        the same width and number of signals gives expectations over its samples.

    Returns
    -------
    xarray.DataArray
        The expectation, with the axes ``run`` and ``time`` of the result and its times, followed by
        the axes of an array. The coordinate ``standard_error`` is the standard error of each value,
        and the attribute ``error_quadrature`` is the largest of them relative to the size of the
        values. States that have diverged give NaN.

    Raises
    ------
    ValueError
        If ``result`` has no states of fields, if ``problem`` is missing or has a different shape,
        or if ``function`` fails on one sample.

    Notes
    -----
    Averages are taken over 16 scrambled sets of 4096 Sobol points (1024 for each case of discrete
    draws, which are summed over if there are at most 64 cases). The standard error is computed from
    the differences between these sets. Jumps of the function are not located, so that a probability
    has an error of about 1e-4, and a probability below 1e-3 is known only roughly. Prefer ``risk``
    and ``accuracy`` of the result to the expectations of the loss and of the correct sign: they use
    closed forms and quadrature where the library has them, and state their errors
    (``error_quadrature``, ``error_accuracy``).

    Examples
    --------
    The probability that the outputs of a unit and of the teacher differ by more than one:

    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> def differs(fields, signals, head, draws):
    ...     return abs(fields[0] ** 2 - signals[0] ** 2) > 1.0
    >>> sgd.expect(path, differs).dims
    ('run', 'time')
    """
    if problem is None:
        if isinstance(result, Start):
            fix = "a start does not record its problem. Use problem="
            raise checks.reject("problem", problem, fix)
        problem = _recorded_problem(result)
    require("expect", problem)
    available = ("user", "overlaps") if "user" in problem.parameters else ("overlaps",)
    arguments = extra_arguments(function, "user", available)
    check_of_sample("function", function, problem, arguments)
    states, dims, coordinates = _states(result, problem)
    values, errors = estimate_expectation(
        problem, UserLoss(function, arguments, top=problem.structure.top), states
    )
    has_diverged = ~np.all(
        [
            np.isfinite(value).all(axis=tuple(range(len(dims), value.ndim)))
            for value in states.values()
        ],
        axis=0,
    )
    values[has_diverged] = errors[has_diverged] = np.nan
    dims = (*dims, *(f"component_{axis}" for axis in range(values.ndim - len(dims))))
    name = getattr(function, "__name__", "expectation")
    is_named = name.isidentifier()  # a lambda is not
    attributes = {
        "long_name": f"E[{name}]" if is_named else "expectation",
        "error_quadrature": largest_share(errors, values),
    }
    coordinates["standard_error"] = (
        dims,
        errors,
        {"long_name": "standard error of the expectation"},
    )
    return xr.DataArray(values, coordinates, dims, name if is_named else None, attributes)


def _states(
    result: xr.Dataset | Start, problem: Problem
) -> tuple[dict[str, np.ndarray], tuple[str, ...], dict[Any, Any]]:
    """States of a result or a start, their leading axes, and the coordinates of these axes."""
    dims, coordinates = ("run", "time"), {}
    if isinstance(result, Start):
        start = validate_start(problem, result)
        alpha = np.zeros(start.runs)
        states = {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a, "alpha": alpha}
        dims = ("run",)
    else:
        states = field_states(result, problem.gram)
        for name, coordinate in result.coords.items():
            if set(coordinate.dims) <= {"run", "time"}:
                coordinates[name] = coordinate
    shape = states["M"].shape[len(dims) :]
    expected = (problem.structure.blocks, problem.width, problem.signals)
    if shape != expected:
        fix = (
            f"it has (blocks, width, signals) = {expected}, but the states of the result have "
            f"{shape}. Use the problem of the result."
        )
        raise checks.reject("problem", problem, fix)
    if states["a"].shape[-1] != problem.structure.head_size:
        fix = "its head or top has another size than that of the result. Use its problem."
        raise checks.reject("problem", problem, fix)
    if not problem.scheduled:
        del states["alpha"]
    return states, dims, coordinates


def _recorded_problem(result: xr.Dataset) -> Problem:
    """The problem that a result records; ValueError if it cannot be built from the record."""
    try:
        return problem_of(result)  # type: ignore[return-value]
    except ValueError as error:
        raise ValueError(
            f"problem = None: the problem cannot be built from the result: {error}. Use problem="
        ) from None
