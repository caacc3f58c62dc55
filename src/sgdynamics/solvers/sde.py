"""`solve_sde`: the diffusive limit, with the noise of one sample's increment (`sde.scheme`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.devices import choose_devices
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.results.build import build_result
from sgdynamics.results.clock import (
    integration_points,
    plan_steps,
    time_at_alpha,
    time_of_scheme_steps,
)
from sgdynamics.simulation.devices import over_devices
from sgdynamics.simulation.running import RunSetting, run
from sgdynamics.solvers.call import validate_call
from sgdynamics.solvers.workers import accepts_workers


@accepts_workers
@float64
def solve_sde(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD,
    start: Start | SpikedStart | Mapping[str, Any],
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
    devices: int | None = None,
) -> xr.Dataset:
    """Draw paths of the SDE at dimension d.

    The drift is that of the ODE. The noise is sqrt(lr/d) times a root of the covariance of one
    sample's increment. Give exactly one of ``times``, ``alpha``, ``steps``.

    Parameters
    ----------
    problem : Problem, SpikedTensor or Dynamics
        The learning problem; a Dynamics needs the methods ``rate`` and ``noise``.
    algorithm : OnePassSGD
        The training algorithm, without an update.
    start : Start, SpikedStart or dict
        Initial condition; one run serves any number of runs.
    times : array_like, optional
        Save points in t = lr steps/d, increasing.
    alpha : array_like, optional
        Save points in samples/d.
    steps : array_like, optional
        Save points in steps.
    dimension : int, optional
        Dimension d; defaults to that of the covariance if it is a ``sgd.Spectrum``.
    runs : int, optional
        Number of paths; defaults to the number of runs of the start.
    seed : int, default 0
        Seed of the random number generator.
    higher_order : bool, default True
        Whether to include the drift of relative order 1/d that the noise makes: the mean increment
        of a real step, and on the sphere the Ito terms of the normalisation. False selects the
        drift of the ODE at d -> infinity.
    step : float, optional
        Longest step of the scheme in t (with a schedule in alpha). By default it is chosen such
        that its error on the noiseless path is below 2e-3 (attribute ``error_integrator``).
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``. Their risks are the variable
        ``evaluated_risk``.
    devices : int, optional
        Number of local devices among which the paths are divided; defaults to all of them. The
        numbers do not depend on it, to rounding.

    Returns
    -------
    xarray.Dataset
        The variables of ``solve_ode``. A path that diverges is NaN from then on, with its last
        finite time in ``diverged_at``.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the algorithm is not supported.

    Notes
    -----
    Mean and covariance of a spiked tensor are exactly those at n, or for n -> infinity with
    higher_order=False; r2 stays positive by construction.
    Source: Escaping mediocrity, (27), (60)-(62), there for width 1.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> arguments = {"times": [0.5], "dimension": 1000, "runs": 4, "progress": False}
    >>> paths = sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.1), start, **arguments)
    >>> paths["M"].shape
    (4, 1, 2, 1)
    """
    used_devices = choose_devices(devices)
    call = validate_call(
        "solve_sde",
        problem,
        algorithm,
        start,
        times=times,
        alpha=alpha,
        steps=steps,
        dimension=dimension,
        runs=runs,
        seed=seed,
        progress=progress,
        record=record,
        evaluate=evaluate,
        needs_dimension=True,
        allow_small_blocks=True,
    )
    dynamics, (d, block_sizes) = call.dynamics, call.finite_dimension
    higher_order = checks.flag("higher_order", higher_order)
    if algorithm.flow:
        raise checks.reject("lr", algorithm.lr, "gradient flow has no noise: use solve_ode")
    save_points = integration_points(dynamics.algorithm, call.clock)
    setting = RunSetting(call.initial_state, d, block_sizes)
    longest, error = 1.0, None
    if step is not None:
        longest = checks.number("step", step, above=0.0)
    elif save_points[-1] > 0:
        end = float(save_points[-1])
        longest, error = dynamics.sde_step_length(setting, end, higher_order)
    # Steps end at the save points and at the edges of piecewise schedules.
    points = dynamics.sde_points(call.clock)
    edges, lengths = plan_steps(points, longest)  # raises ValueError if there are too many steps
    saved = edges[-len(points) :][np.searchsorted(points, save_points)]
    simulator = dynamics.sde_paths(setting, higher_order)
    simulator.set_steps(edges, lengths)
    paths = over_devices(simulator, used_devices)
    label = f"SDE, {dynamics.dimension_symbol} = {d}"
    states, last = run(paths, call.initial_state.runs, saved, call.seed, label, call.progress)
    ends = time_of_scheme_steps(edges, lengths, np.maximum(last, 0))
    if algorithm.scheduled:
        # from alpha to t, whose conversion needs increasing values
        order = np.argsort(ends)
        ends[order] = time_at_alpha(dynamics.algorithm, ends[order])
    attributes = {
        "seed": call.seed,
        "dimension": d,
        "higher_order": int(higher_order),
        "assumptions": f"{dynamics.assumptions}, Gaussian fluctuations",
        "error_integrator": error,
    }
    diverged_at = np.where(last >= 0, ends, np.nan)
    return build_result(
        call, "solve_sde", states, attributes, {"diverged_at": diverged_at}, sampled="paths"
    )
