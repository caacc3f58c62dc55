"""Expectations of any function of a sample, at the states of a result or a start."""

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
    """The expectation over a fresh sample of any function of it, at every saved state of a result, or at a start.

    Parameters
    ----------
    result : xarray.Dataset or Start
        What a solver returned, theory or simulation, of a problem of fields; or a start, with ``problem`` given.
    function : callable
        A JAX function of one sample, ``function(fields, signals, head, draws)``, giving a number or an array. It sees what a loss sees:
        the student's fields (p,), the signals (K,), with tokens (p, L) and (K, L), the head (p,), and the draws: one standard normal, the
        label of a mixture's cluster, or the dictionary of a problem's own draws. Where it has an argument ``overlaps``, that has Q, M and
        P; any other is the problem's dictionary ``parameters``. It may jump, and need not be differentiable.
    problem : Problem, optional
        The problem whose samples are meant; the one that the result records unless given. Needed for a start, and for a result whose
        problem holds a user's functions. Another problem of the same width and signals gives expectations over its samples.

    Returns
    -------
    xarray.DataArray
        The expectation, with the result's axes ``run`` and ``time`` and its times; axes of an array come after them. The coordinate
        ``standard_error`` is the standard error of each value, the attribute ``error_quadrature`` its largest share of the values'
        size. States that have diverged give NaN.

    Raises
    ------
    ValueError
        If ``result`` has no states of fields, ``problem`` is missing or has another shape, or ``function`` fails on one sample.

    Notes
    -----
    Averages over 16 scrambled sets of 4096 Sobol points (1024 for each case of discrete draws, which
    are summed over where there are at most 64 cases). Their spread is the standard error. No use is
    made of where the function jumps, so that a probability is known to about 1e-4, and a probability
    below 1e-3 only roughly. Prefer ``risk`` and ``accuracy`` of the result to the expectations of the
    loss and of the right sign: they use closed forms and quadrature where the library has them, and
    state their errors (``error_quadrature``, ``error_accuracy``).

    Examples
    --------
    How often a unit's output and the teacher's differ by more than one:

    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> far = sgd.expect(path, lambda fields, signals, head, draws: abs(fields[0] ** 2 - signals[0] ** 2) > 1.0)
    >>> far.dims
    ('run', 'time')
    """
    at_start = isinstance(result, Start)
    if problem is None:
        if at_start:
            raise checks.reject(
                "problem", problem, "a start does not say of which problem it is: give problem="
            )
        problem = _recorded_problem(result)
    require("expect", problem)
    more = extra_arguments(
        function, "user", ("user", "overlaps") if "user" in problem.parameters else ("overlaps",)
    )
    check_of_sample("function", function, problem, more)
    if at_start:
        begin = validate_start(problem, result)
        states = {
            "M": begin.M_blocks,
            "Q": begin.Q_blocks,
            "a": begin.a,
            "alpha": np.zeros(begin.runs),
        }
        dims, coordinates = ("run",), {}
    else:
        states = field_states(result, problem.gram)
        dims = ("run", "time")
        coordinates = {
            name: part for name, part in result.coords.items() if set(part.dims) <= {"run", "time"}
        }
    shape, wanted = (
        states["M"].shape[len(dims) :],
        (problem.structure.blocks, problem.width, problem.signals),
    )
    if shape != wanted:
        raise checks.reject(
            "problem",
            problem,
            f"it has (blocks, width, signals) = {wanted}, the result's states {shape}: give its own",
        )
    if not problem.scheduled:
        del states["alpha"]
    lost = ~np.all(
        [
            np.isfinite(value).all(axis=tuple(range(len(dims), value.ndim)))
            for value in states.values()
        ],
        axis=0,
    )
    values, errors = estimate_expectation(problem, UserLoss(function, more), states)
    values[lost] = errors[lost] = np.nan
    name = getattr(function, "__name__", "expectation")
    dims = (*dims, *(f"component_{axis}" for axis in range(values.ndim - len(dims))))
    said = {
        "long_name": f"E[{name}]" if name.isidentifier() else "expectation",
        "error_quadrature": largest_share(errors, values),
    }
    with_errors = {
        **coordinates,
        "standard_error": (dims, errors, {"long_name": "standard error of the expectation"}),
    }
    return xr.DataArray(values, with_errors, dims, name if name.isidentifier() else None, said)


def _recorded_problem(result: xr.Dataset) -> Problem:
    try:
        return problem_of(result)  # type: ignore[return-value]
    except ValueError as error:
        raise ValueError(
            f"problem is not given, and cannot be made again from the result: {error}; give problem="
        ) from None
