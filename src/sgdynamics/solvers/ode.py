"""`solve_ode`: overlaps and head follow the mean increment of one step (`ode.drift`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from sgdynamics.ode.case import raise_if_error
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.results.build import Container, build_result
from sgdynamics.results.datasets import largest_share
from sgdynamics.solvers.batch import risk_of_request, solve
from sgdynamics.solvers.call import SolverCall, validate_call
from sgdynamics.solvers.workers import accepts_workers


@accepts_workers
@float64
def solve_ode(
    problem: Problem | SpikedTensor | DiagonalNetwork | Dynamics,
    algorithm: OnePassSGD,
    start: Start | SpikedStart | Any = None,
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
    """Solve the ODE of the overlaps: d -> infinity, or the exact mean increment at finite d.

    Give exactly one of ``times``, ``alpha``, ``steps``. All runs of the start are solved at once,
    to times as late as 1e8.

    Parameters
    ----------
    problem : Problem, SpikedTensor, DiagonalNetwork or Dynamics
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm; lr = 0 is gradient flow.
    start : Start, SpikedStart or dict, optional
        Initial condition of one or several runs; none for a ``DiagonalNetwork``.
    times : array_like, optional
        Save points in t = lr steps/D, increasing. D = d unless ``algorithm.per`` differs; with a
        schedule t is the integral of (lr/batch) d alpha.
    alpha : array_like, optional
        Save points in samples/d.
    steps : array_like, optional
        Save points in steps, with a ``dimension`` or a ``sgd.Spectrum``.
    dimension : int, optional
        Dimension d whose exact mean increment is integrated. Defaults to d -> infinity. A
        ``sgd.Spectrum`` has a dimension; giving it again selects the finite-d equations.
    rtol : float, optional
        Relative accuracy of the overlaps. The local tolerance is a thousandth of it, because
        errors add up. Defaults to 1e-8, or to the relative error of the expectations at the start
        where these are sampled and less accurate (``DiagonalNetwork``: 1e-7).
    atol : float, optional
        Absolute accuracy of the overlaps, in units of max(1, the largest entry of Q at the start).
        Defaults to rtol/100.
    record : dict, optional
        Functions of the state by name, such as ``{"cosine": lambda state: ...}``. Each becomes a
        variable of the result. A state is a dictionary of the variables "M", "Q" and "a" of one
        run at one time.
    evaluate : dict, optional
        Other problems by name, with the same rows and signals. Their risks along the trajectory
        are the variable ``evaluated_risk``.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        ``M``, ``Q``, ``a``, ``risk`` and, where it is defined, ``excess_risk`` over (run, time,
        ...), with the coordinates ``t``, ``alpha`` and ``step``. Attributes: ``error_integrator``,
        the largest relative change of the risk due to the estimated errors of the integrator, or at
        late times when the tolerance is ten times looser (for a mixture at snr = infinity, the
        largest absolute change of M and a); ``error_quadrature``,
        the estimated error of the expectations: of pairs and grids relative to their own scale, of
        sampling on the overlaps and the risk relative to their largest values in the run (for ``M``
        at least sqrt(Q P)); ``error_quadrature_risk``, where anything is sampled, relative to the
        risk of the same time, which is large where the risk is near 0; ``error_accuracy``, the
        largest absolute error of the ``accuracy`` of a mixture.
        With a ``sgd.Spectrum``: ``g_l1`` (a step times the largest eigenvalue),
        ``effective_dimension``, ``trace``, and with bins ``error_binning``, their relative error on
        the risk.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the algorithm is not supported. The message
        names a remedy.

    Warns
    -----
    UserWarning
        If a run diverges: its values are NaN from there on, and ``diverged_at`` is its last finite
        time. If the integrator runs out of steps: later values are NaN, and ``ran_out_at`` is the
        last time it reached. If ``error_integrator`` exceeds 0.1, so that the solution is not
        reliable. If expectations have a relative error above 1e-4. If quadrature does not determine
        the risk, because it may be infinite: the risk is NaN. If sampling does not determine the
        overlaps: ``error_quadrature`` exceeds 0.3. If few directions of a ``sgd.Spectrum`` carry
        the noise, so that runs scatter around the solution. If an error estimate fails: it is NaN.

    Notes
    -----
    The integrator is an explicit method of order 8 with adaptive steps. Where it needs too many
    steps, at late times, LSODA continues from its last state.
    Spiked tensors follow m and r2 (Proposition 3.1 of High-dimensional limit theorems for SGD,
    with a ridge and a batch). A ReLU mixture at snr = infinity slides along the surfaces where its
    drift jumps. A ``DiagonalNetwork`` is solved by the law of its weights, on a transport map; its
    result has ``excess_risk``, ``risk``, ``overlap``, ``squared_norm``, ``l1_norm``, ``imbalance``
    and, by teacher weight, ``weight_mean`` and ``weight_square``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> result["risk"].values.round(3).tolist()
    [[0.982, 0.498]]
    >>> result["alpha"].values.round(6).tolist()
    [5.0, 10.0]
    """
    call, request = prepare_ode(
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
    merged = call.dynamics.merge_bins(call.initial_state)
    # one solution for the result, and one for the error of bins
    with shared_meter("solve_ode", 1 if merged is None else 2, call.progress):
        solution = raise_if_error(solve([request])[0])
        if merged is not None:
            dynamics, merged_start = merged
            coarse = dynamics.ode_request(merged_start, call.clock, call.dimension, rtol, atol)
            solution = solution.with_estimate(
                "error_binning", lambda: binning_error(coarse, solution.risk)
            )
    return finish_ode(call, solution)


def binning_error(coarse: SolveRequest, risk: np.ndarray) -> float:
    """The relative error of the risk due to bins, from the solution with bins merged in pairs.

    Bins twice as wide have four times the error. Narrower bins would need a start that this one
    does not determine.
    """
    coarse_risk = risk_of_request(coarse)
    # A run that diverges may do so earlier with wider bins.
    is_complete = np.isfinite(risk).all(axis=1)
    if not np.isfinite(coarse_risk[is_complete]).all():
        return float("nan")
    return largest_share((coarse_risk - risk) / 3, risk)


def prepare_ode(
    problem: Problem | SpikedTensor | DiagonalNetwork | Dynamics,
    algorithm: OnePassSGD,
    start: Start | SpikedStart | Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    **arguments: Any,
) -> tuple[SolverCall, SolveRequest]:
    """Validate the arguments of `solve_ode` and prepare its request."""
    rtol = None if rtol is None else checks.number("rtol", rtol, above=0.0)
    atol = None if atol is None else checks.number("atol", atol, above=0.0)
    # The mean step is exact at any size of the blocks. On the sphere it is computed from the exact
    # chain, which requires blocks of at least the number of rows and signals.
    is_free = getattr(problem, "constraint", None) is None
    call = validate_call(
        "solve_ode", problem, algorithm, start, **arguments, allow_small_blocks=is_free
    )
    request = call.dynamics.ode_request(call.initial_state, call.clock, call.dimension, rtol, atol)
    return call, request


def finish_ode(
    call: SolverCall, solution: Solution, container: Callable[..., Container] = xr.Dataset
) -> Container:
    """Build the result of a solution."""
    return build_result(
        call,
        "solve_ode",
        solution.states,
        solution.attributes,
        solution.ends,
        risk=solution.risk,
        warnings=solution.warnings,
        container=container,
    )
