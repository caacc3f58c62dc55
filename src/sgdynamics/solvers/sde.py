"""The diffusive limit: paths of the SDE, whose noise has the covariance of one sample's increment (`sde.scheme`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start
from sgdynamics.results.build import build_result
from sgdynamics.results.clock import elapsed, integration_points, plan_steps, reached
from sgdynamics.simulation.running import run
from sgdynamics.solvers.call import validate_call


@float64
def solve_sde(
    problem: Problem | SpikedTensor,
    algorithm: OnePassSGD,
    start: Start | SpikedStart,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: float | None = None,
    runs: int | None = None,
    seed: int = 0,
    higher_order: bool = True,
    step: float | None = None,
    progress: bool | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Paths of the SDE at dimension d: the drift of the ODE, and noise sqrt(lr/d) times a root of the covariance of one sample's increment.

    Give exactly one of ``times``, ``alpha``, ``steps``.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        What is learned.
    algorithm : OnePassSGD
        Plain one-pass SGD.
    start : Start or SpikedStart
        Where; a start of one run serves any number of runs.
    times : array_like, optional
        Save points in t = lr steps/d, increasing.
    alpha : array_like, optional
        Save points in samples/d.
    steps : array_like, optional
        Save points in steps.
    dimension : int, optional
        The dimension d; a problem whose covariance is a ``sgd.Spectrum`` knows it.
    runs : int, optional
        How many paths; unless given as many as the start has.
    seed : int, default 0
        Of the random numbers.
    higher_order : bool, default True
        Keep the drift of relative order 1/d that the noise makes (the mean increment of a real step; on the sphere the Ito terms of
        normalising); False leaves the drift of the d -> infinity ODE.
    step : float, optional
        The longest step of the scheme in t (with a schedule in alpha); unless given one whose error on the noiseless path is below 2e-3
        (attribute ``error_integrator``).
    progress : bool, optional
        A progress bar; unless given on a terminal only.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``: their risks are the variable ``evaluated_risk``.

    Returns
    -------
    xarray.Dataset
        As that of ``solve_ode``; a path that diverges is NaN from then on, with its last finite time in ``diverged_at``.

    Raises
    ------
    ValueError
        If an argument is refused, or this is not answered for the problem or the algorithm.

    Notes
    -----
    Of a spiked tensor mean and covariance are exactly those at n, or with higher_order=False those of n -> infinity; r2 stays positive by
    construction. Source: Escaping mediocrity, (27), (60)-(62), there for width 1.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> paths = sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5], dimension=1000, runs=4, progress=False)
    >>> paths["M"].shape
    (4, 1, 2, 1)
    """
    where = {
        "times": times,
        "alpha": alpha,
        "steps": steps,
        "dimension": dimension,
        "runs": runs,
        "seed": seed,
        "progress": progress,
    }
    call = validate_call(
        "solve_sde",
        problem,
        algorithm,
        start,
        **where,
        needs_dimension=True,
        allow_small_blocks=True,
        record=record,
        evaluate=evaluate,
    )
    dynamics, (d, block_sizes) = call.dynamics, call.finite_dimension
    higher_order = checks.flag("higher_order", higher_order)
    if algorithm.flow:
        raise checks.reject("lr", algorithm.lr, "gradient flow has no noise: use solve_ode")
    variable, longest, error = integration_points(dynamics.algorithm, call.clock), 1.0, None
    if step is not None:
        longest = checks.number("step", step, above=0.0)
    elif variable[-1] > 0:
        longest, error = dynamics.sde_step_length(
            call.initial_state, d, block_sizes, float(variable[-1]), higher_order
        )
    places = dynamics.sde_points(call.clock)
    edges, lengths = plan_steps(places, longest)  # refuses more steps than anybody can wait for
    saved = edges[-len(places) :][np.searchsorted(places, variable)]
    simulator = dynamics.sde_paths(call.initial_state, d, block_sizes, higher_order)
    simulator.set_steps(edges, lengths)
    states, last = run(
        simulator,
        call.initial_state.runs,
        saved,
        call.seed,
        f"SDE, {dynamics.dimension_symbol} = {d}",
        call.progress,
    )
    ends = reached(edges, lengths, np.maximum(last, 0))
    if algorithm.scheduled:
        order = np.argsort(ends)
        ends[order] = elapsed(dynamics.algorithm, ends[order])
    attributes = {
        "seed": call.seed,
        "dimension": d,
        "higher_order": int(higher_order),
        "assumptions": f"{dynamics.assumptions}, Gaussian fluctuations",
        "error_integrator": error,
    }
    return build_result(
        call,
        "solve_sde",
        states,
        attributes,
        {"diverged_at": np.where(last >= 0, ends, np.nan)},
        sampled="paths",
    )
