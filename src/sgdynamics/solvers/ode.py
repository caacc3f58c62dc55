"""The ballistic limit: overlaps and head follow an ODE, whose right-hand side is the mean increment of one step (`ode.drift`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import shared_meter
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.dynamics.requests import Solution, SolveRequest
from sgdynamics.ode.integrate import or_raise
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start
from sgdynamics.results.build import build_result
from sgdynamics.results.datasets import largest_share
from sgdynamics.solvers.batch import risk_of_request, solve
from sgdynamics.solvers.call import SolverCall, validate_call


@float64
def solve_ode(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD,
    start: Start | SpikedStart | Any,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """The overlaps and the risk as d -> infinity, or with the exact mean increment of one step at finite d.

    Give exactly one of ``times``, ``alpha``, ``steps``; any number of starts is solved at once, to times as late as 1e8.

    Parameters
    ----------
    problem : Problem, SpikedTensor or Dynamics
        What is learned.
    algorithm : OnePassSGD
        Plain one-pass SGD; lr = 0 is gradient flow.
    start : Start, SpikedStart or dict
        Where, of one run or several.
    times : array_like, optional
        Save points in t = lr steps/D (D = d unless the algorithm says otherwise; with a schedule the integral of it), increasing.
    alpha : array_like, optional
        Save points in samples/d.
    steps : array_like, optional
        Save points in steps, with a ``dimension`` or a ``sgd.Spectrum``.
    dimension : int, optional
        The exact mean increment of one step at this d; d -> infinity unless given. That of a ``sgd.Spectrum`` is known; given again it asks
        for this.
    rtol : float, optional
        The relative accuracy wanted of the overlaps; the local tolerance is a thousandth of it, as errors add up. Unless given 1e-8, or
        where the expectations are sampled, and not known better than that, their own relative error at the start.
    atol : float, optional
        The absolute accuracy; rtol/100 unless given.
    record : dict, optional
        Functions of the state by name, such as ``{"cosine": lambda state: ...}``: each is a variable of the result. A state is a dictionary
        of the variables "M", "Q" and "a" of one run at one time.
    evaluate : dict, optional
        Other problems by name, with the same rows and signals: their risks along the way are the variable ``evaluated_risk``.

    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        ``M``, ``Q``, ``a``, ``risk`` and, where it is defined, ``excess_risk`` over (run, time,
        ...), with the coordinates ``t``, ``alpha`` and ``step``. Attributes: ``error_integrator``,
        the largest relative change of the risk when the tolerance is ten times looser;
        ``error_quadrature``, the estimated error of the expectations: of pairs and grids relative
        to their own scale, of sampling on the overlaps and the risk relative to their largest
        values in the run (for ``M`` at least sqrt(Q P)); ``error_quadrature_risk``, where anything
        is sampled, relative to the risk of the same time, which is large where the risk is near 0;
        ``error_accuracy``, the largest absolute error of the ``accuracy`` of a mixture.
        With a ``sgd.Spectrum``: ``g_l1`` (a step times the largest eigenvalue),
        ``effective_dimension``, ``trace``, and with bins ``error_binning``, their relative error on
        the risk.

    Raises
    ------
    ValueError
        If an argument is refused, or this is not answered for the problem or the algorithm; the message says what to do instead.

    Warns
    -----
    UserWarning
        A solution that leaves every bound is NaN from there on, its last finite time in ``diverged_at``. Where the integrator runs out of
        steps instead, what it reached is kept, and the coordinate ``ran_out_at`` says how far that is. Expectations that are known to less
        than 1e-4 are named; a risk that quadrature does not determine, because it may be infinite, is NaN.

    Notes
    -----
    An explicit method of order 8 with adaptive steps; where it needs too many (late times), LSODA goes on from where it stopped.
    Spiked tensors follow m and r2 (Proposition 3.1 of High-dimensional limit theorems for SGD, with a ridge and a batch); a ReLU mixture at
    snr = infinity slides along the surfaces where its drift jumps.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> result["risk"].values.round(3).tolist()
    [[0.982, 0.498]]
    >>> result["alpha"].values.round(6).tolist()
    [5.0, 10.0]
    """
    call, prepared = prepare_ode(
        problem,
        algorithm,
        start,
        times=times,
        alpha=alpha,
        steps=steps,
        dimension=dimension,
        rtol=rtol,
        atol=atol,
        record=record,
        evaluate=evaluate,
        progress=progress,
    )
    coarser = call.dynamics.merge_bins(call.initial_state)
    solutions = 2 if coarser is None else 3  # one for the result, the others for its errors
    with shared_meter("solve_ode", solutions, call.progress):
        path = or_raise(solve([prepared])[0])
        if coarser is not None:
            merged = coarser[0].ode_request(coarser[1], call.clock, call.dimension, rtol, atol)
            path = path.with_estimate("error_binning", lambda: binning_error(merged, path.risk))
    return finish_ode(call, path)


def binning_error(merged: SolveRequest, risk: np.ndarray) -> float:
    """The relative error of the risk due to bins, from the solution with bins merged in pairs.

    Bins twice as wide have four times the error. Narrower bins would need a start that this one does not determine.
    """
    merged_risk = risk_of_request(merged)
    is_complete = np.isfinite(risk).all(
        axis=1
    )  # a run that diverges may do so earlier with wider bins
    if not np.isfinite(merged_risk[is_complete]).all():
        return float("nan")
    return largest_share((merged_risk - risk) / 3, risk)


def prepare_ode(
    problem: Any,
    algorithm: Any,
    start: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    **where: Any,
) -> tuple[SolverCall, SolveRequest]:
    """The checks of solve_ode, and what it will run."""
    rtol = None if rtol is None else checks.number("rtol", rtol, above=0.0)
    atol = None if atol is None else checks.number("atol", atol, above=0.0)
    # the mean step is exact at any size of the blocks; on the sphere it is taken from the chain, which is not
    small = getattr(problem, "constraint", None) is None
    call = validate_call("solve_ode", problem, algorithm, start, **where, allow_small_blocks=small)
    return call, call.dynamics.ode_request(
        call.initial_state, call.clock, call.dimension, rtol, atol
    )


def finish_ode(call: SolverCall, path: Solution, made: Any = xr.Dataset) -> Any:
    """The result of a path."""
    return build_result(
        call,
        "solve_ode",
        path.states,
        path.attributes,
        path.ends,
        risk=path.risk,
        warnings=path.warnings,
        container=made,
    )
