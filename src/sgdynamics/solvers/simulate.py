"""`simulate`: finite dimension, by the exact chain in the compressed space or by SGD itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.devices import choose_devices
from sgdynamics.base.padding import power_of_two
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.fixed_data import FixedDataDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.fixed_data.sample_stability import warn_unstable
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.results.build import build_result
from sgdynamics.results.clock import time_of_steps
from sgdynamics.results.reduced import SAVED_BYTES, RunMoments
from sgdynamics.simulation.devices import over_devices
from sgdynamics.simulation.running import CHECK_STEPS, RunSetting, run_until
from sgdynamics.solvers.call import SolverCall, validate_call
from sgdynamics.solvers.simulation_checkpoints import checkpoint_of
from sgdynamics.solvers.workers import accepts_workers


@accepts_workers
def simulate(
    problem: Problem | SpikedTensor | DeepLinear | DiagonalNetwork | Dynamics,
    algorithm: OnePassSGD | FixedData,
    start: Start | SpikedStart | Any = None,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: float | None = None,
    runs: int | None = None,
    seed: int = 0,
    method: str = "exact",
    dtype: str = "float64",
    progress: bool | None = None,
    shared_data: bool = False,
    stop_at: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seconds: float | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    reduce: str | None = None,
    devices: int | None = None,
) -> xr.Dataset:
    """Simulate SGD at dimension d: one pass over fresh samples, or an algorithm on a data set.

    Give exactly one of ``times``, ``alpha``, ``steps``; save points are rounded to whole steps.

    Parameters
    ----------
    problem : Problem, SpikedTensor, DeepLinear, DiagonalNetwork or Dynamics
        The learning problem.
    algorithm : OnePassSGD, GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
        The training algorithm.
    start : Start, SpikedStart or dict, optional
        Initial condition. One run serves any number of runs; n runs serve n. A ``DeepLinear`` has
        none: each run draws its initial weights.
    times : array_like, optional
        Save points in t = lr steps/d (on a fixed data set lr steps, with ``EpochSGD`` lr steps/d),
        increasing.
    alpha : array_like, optional
        Save points in samples used/d.
    steps : array_like, optional
        Save points in steps.
    dimension : int, optional
        Dimension d; defaults to that of a ``sgd.Spectrum``. The exact chain needs at least
        signals + width (signals + 2 width with momentum).
    runs : int, optional
        Number of runs; defaults to the number of runs of the start.
    seed : int, default 0
        Seed of the random number generator. The same seed gives the same numbers to rounding,
        whatever the save points and the number of runs: run i does not depend on how many runs
        there are. The same call on the same machine gives the same bits.
    method : str, default "exact"
        "exact": the compressed chain, equal in law to SGD at a cost independent of d; on a fixed
        data set the exact law by Gaussian conditioning, without a data set, at a cost that grows
        with the square of the number of steps. "direct": SGD on d-dimensional weights, from a
        start with the same overlaps; on a fixed data set it stores the n x d data sets. Runs of
        ``EpochSGD`` are always direct, because their exact law costs as much. "tensor", for spiked
        tensors at small n: the tensors themselves, O(n^k) per step.
    dtype : str, default "float64"
        Precision of direct runs. "float32" halves their memory, with the same data. "float16", for
        a fixed data set, is the storage precision of its inputs and computes in float32: the
        rounded inputs, each within 5e-4 of the original, are then the data set, and its labels are
        computed from them.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.
    shared_data : bool, default False
        Whether all runs use one fixed data set, from random directions with the overlaps of the
        start (direct runs only).
    stop_at : float, optional
        Train risk below which a run on a fixed data set ends, checked every 100 steps. Its time is
        ``stopped_at``, and it costs nothing from then on.
    checkpoint : path, optional
        Folder in which the state of the runs is stored every minute. The same call continues from
        there, bit for bit as if it had not stopped; a call with additional later save points
        continues from the last one. Not available for the exact law of a fixed data set
        (method="exact"), for spiked tensors and for user-defined dynamics.
    seconds : float, optional
        Time limit of the call in seconds; requires ``checkpoint``. A call that reaches it stores
        its state and raises TimeoutError; the same call continues from there.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``, or, on a fixed data set,
        ``sgd.on_train(...)`` of a sample.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``. Their risks are the variable
        ``evaluated_risk``.
    reduce : str, optional
        "mean": the result contains the mean over runs and ``NAME_standard_error`` of each variable
        in place of the runs. Runs are then simulated in groups that fit into memory and forgotten
        one after the other, so that a million runs with many save points need no more memory than
        a few. ``sgd.compare`` and ``sgd.plot`` read such results.
    devices : int, optional
        Number of local devices among which one-pass runs are divided; defaults to all of them. The
        numbers do not depend on it, to rounding.

    Returns
    -------
    xarray.Dataset
        The variables of ``solve_ode``; on a fixed data set also ``train_risk``, the mean loss over
        it, and with ``EpochSGD`` the coordinate ``epoch``. The attribute ``error_sampling`` is the
        largest relative standard error of the mean risk over runs; ``engine`` is "gpu_kernel" if
        all steps were one GPU kernel, "gpu_kernel (one read per step)" if a kernel computed the
        gradients over a fixed data set, else "xla".
        A run that diverges is NaN from then on, with its last finite time in ``diverged_at``; the
        others continue. With ``reduce="mean"`` there is a single ``run``, the attribute ``runs`` is
        their number, and ``runs_left_out`` that of the diverged ones, which are left out.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the runs need too much memory or work.
    TimeoutError
        If the ``seconds`` are over before the runs have ended.

    Notes
    -----
    On the sphere a run on a fixed data set counts as diverged when a step is longer than the
    diameter of the sphere at a train risk above the initial one. For phase retrieval a warning
    precedes the runs if samples are beyond the stability limit of the learning rate.
    A ``SpikedTensor`` has its own exact chain in (m, r2) and its vector form ("direct", O(n) per
    step); method="tensor" is the reference for both.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> arguments = {"times": [0.5, 1.0], "dimension": 1000, "runs": 16}
    >>> runs = sgd.simulate(problem, sgd.OnePassSGD(lr=0.1), start, **arguments)
    >>> runs["M"].shape
    (16, 2, 2, 1)
    """
    shared_data = checks.flag("shared_data", shared_data)
    if reduce is not None:
        checks.choice("reduce", reduce, ("mean",))
        if stop_at is not None:
            fix = "runs that stop have times of their own, which a mean would lose. Omit"
            raise checks.reject("reduce", reduce, f"{fix} reduce or stop_at.")
    used_devices = choose_devices(devices)
    call = validate_call(
        "simulate",
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
        whole_steps=True,
    )
    dynamics, (d, block_sizes) = call.dynamics, call.finite_dimension
    checks.choice("method", method, dynamics.methods)
    method = "direct" if dynamics.always_direct else method
    _check_dtype(dynamics, method, dtype)
    if not dynamics.has_data:
        fix = "this is for algorithms on a fixed data set (sgd.GradientDescent, ...): leave it out"
        if shared_data:
            raise checks.reject("shared_data", shared_data, fix)
        if stop_at is not None:
            raise checks.reject("stop_at", stop_at, fix)
    stop_at = None if stop_at is None else checks.number("stop_at", stop_at, above=0.0)
    options: dict[str, Any] = {"dtype": dtype, "seed": call.seed, "shared_data": shared_data}
    recorded = sorted(call.observables.losses())
    identity = {**options, "method": method, "stop_at": stop_at, "recorded": recorded}
    stored = checkpoint_of(call, method, identity, checkpoint, seconds)
    setting = RunSetting(call.initial_state, d, block_sizes, method, **options)
    simulator = dynamics.simulator(setting)
    simulator = over_devices(simulator, used_devices)
    simulator.on_train = call.observables.losses()
    if isinstance(dynamics, FixedDataDynamics) and dynamics.algorithm.law is None:
        # The stability limit of a sample is that of plain steps.
        samples = dynamics.algorithm.samples(d)
        warn_unstable(dynamics.definition, dynamics.algorithm, call.initial_state, samples)
    label = f"{method} simulation, {dynamics.dimension_symbol} = {d}"
    is_exact = method in dynamics.exact_methods
    attributes = {
        "seed": call.seed,
        "dimension": d,
        "dtype": dtype,
        "engine": simulator.engine,
        "assumptions": dynamics.assumptions + (", exact in law" if is_exact else ""),
    }
    if dynamics.has_data:
        attributes |= {
            "samples": dynamics.algorithm.samples(d),
            "shared_data": int(shared_data),
            "stop_at": stop_at,
        }

    def time_or_nan(step: np.ndarray) -> np.ndarray:
        """t after this many steps; NaN for runs to which it did not happen (step < 0)."""
        return np.where(step >= 0, time_of_steps(dynamics.algorithm, step, d), np.nan)

    def build(
        states: dict[str, np.ndarray], last: np.ndarray, sampled: str | None = None
    ) -> xr.Dataset:
        ends = {"diverged_at": time_or_nan(last)}
        return build_result(call, f"simulate-{method}", states, attributes, ends, sampled=sampled)

    arguments = (simulator, call.initial_state.runs, call.save_steps, call.seed, label)
    if reduce is not None:
        moments = RunMoments()
        run_until(
            *arguments,
            call.progress,
            None,
            stored,
            consume=lambda states, last, _: moments.add(build(states, last)),
            largest=_runs_in_memory(call),
        )
        return moments.report()
    states, last, stopped = run_until(*arguments, call.progress, stop_at, stored)
    result = build(states, last, "runs")
    if stop_at is None:
        return result
    meaning = f"time at which the train risk was below stop_at, checked every {CHECK_STEPS} steps"
    return result.assign_coords(stopped_at=("run", time_or_nan(stopped), {"long_name": meaning}))


def _runs_in_memory(call: SolverCall) -> int:
    """Number of runs whose values at all save points fit into `SAVED_BYTES`."""
    state = call.dynamics.state_arrays(call.initial_state)
    size = sum(value[0].size for value in state.values())
    # Overlaps, risks, and copies of both while they are reduced.
    bytes_per_run = 4 * 8 * (size + 4) * len(call.save_steps)
    return max(1, power_of_two(int(SAVED_BYTES / bytes_per_run) + 1) // 2)


def _check_dtype(dynamics: SolverDynamics[Any], method: str, dtype: str) -> None:
    """Raise ValueError for a precision that the method does not have."""
    checks.choice("dtype", dtype, ("float64", "float32", "float16"))
    if dtype == "float16" and not (dynamics.has_data and method == "direct"):
        fix = (
            "only the data of direct runs on a fixed data set can be stored in this precision. "
            'Use "float32" or "float64"'
        )
        raise checks.reject("dtype", dtype, fix)
    if method == "exact" and dtype != "float64":
        fix = (
            f"the exact chain is biased at large {dynamics.dimension_symbol} in float32. "
            "Use float64, or method='direct'"
        )
        raise checks.reject("dtype", dtype, fix)
