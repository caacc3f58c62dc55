"""Finite dimension: the exact chain in the compressed space, and SGD itself in d dimensions; fresh samples or a fixed data set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.dynamics.fixed_data import FixedDataDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.fixed_data.sample_stability import warn_unstable
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start
from sgdynamics.results.build import build_result
from sgdynamics.results.clock import time_of_steps
from sgdynamics.results.datasets import encode
from sgdynamics.simulation.checkpoints import Checkpoint
from sgdynamics.simulation.running import CHECK_STEPS, run_until
from sgdynamics.solvers.call import SolverCall, validate_call


def simulate(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD | FixedData,
    start: Start | SpikedStart | Any,
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
) -> xr.Dataset:
    """SGD at dimension d: one pass over fresh samples, or an algorithm on a fixed data set.

    Give exactly one of ``times``, ``alpha``, ``steps``; save points are rounded to whole steps.

    Parameters
    ----------
    problem : Problem, SpikedTensor or Dynamics
        What is learned.
    algorithm : OnePassSGD, GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
        How.
    start : Start, SpikedStart or dict
        Where; a start of one run serves any number of runs, one of n runs serves n.
    times : array_like, optional
        Save points in t = lr steps/d (on a fixed data set lr steps, with ``EpochSGD`` lr steps/d), increasing.
    alpha : array_like, optional
        Save points in samples used/d.
    steps : array_like, optional
        Save points in steps.
    dimension : int, optional
        The dimension d, which a ``sgd.Spectrum`` knows; the exact chain needs signals + width or more (with momentum 2 width).
    runs : int, optional
        How many runs; unless given as many as the start has.
    seed : int, default 0
        Seed of the random number generator. The same seed gives the same numbers to rounding, whatever
        the save points and the number of runs: run i does not depend on how many runs there are. The
        same call on the same machine gives the same bits.
    method : str, default "exact"
        "exact": the compressed chain, equal in law to SGD, at a cost without d; on a fixed data set the exact law by Gaussian conditioning,
        without a data set, at a cost that grows with the steps squared. "direct": SGD on d-dimensional weights, from a start with the same
        overlaps; on a fixed data set it keeps the n x d data sets (``EpochSGD``, whose exact law costs as much, goes
        this way with both). "tensor", for spiked tensors at small n: the tensors themselves, O(n^k) a step.
    dtype : str, default "float64"
        "float32" halves the memory of direct runs (and sees the same data). "float16", for a fixed data set, stores its inputs so and
        computes in float32: the rounded inputs, each within 5e-4 of itself, are then the data set, whose labels are made from them.
    progress : bool, optional
        A progress bar; unless given on a terminal only.
    shared_data : bool, default False
        On a fixed data set: all runs read one data set, from random directions with the start's overlaps (direct only).
    stop_at : float, optional
        On a fixed data set: ends a run whose train risk is below it, seen every 100 steps, with the time in ``stopped_at``; it then costs
        nothing.
    checkpoint : path, optional
        Folder in which the state of the runs is stored every minute. The same call continues from
        there, bit for bit as if it had not stopped; a call with additional later save points continues
        from the last one. Not available for the exact law of a fixed data set (method="exact"), for
        spiked tensors and for user-defined dynamics.
    seconds : float, optional
        Time limit of the call in seconds; requires ``checkpoint``. A call that reaches it stores its
        state and raises TimeoutError; the same call continues from there.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``, or, on a fixed data set, ``sgd.on_train(...)`` of a sample.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``: their risks are the variable ``evaluated_risk``.

    Returns
    -------
    xarray.Dataset
        As that of ``solve_ode``, on a fixed data set also ``train_risk``, the mean loss over it, and with ``EpochSGD`` the coordinate
        ``epoch``. The attribute ``error_sampling`` is the largest relative standard error of the mean risk over runs; ``engine`` is
        "kernel" where all steps were one GPU kernel, "kernel (one read a step)" where one made the gradients over a fixed data set, else
        "xla". A run that diverges is NaN from then on, with its last finite time in ``diverged_at``; the others go on.

    Raises
    ------
    ValueError
        If an argument is refused, or memory or work is beyond reach.
    TimeoutError
        If the ``seconds`` are over before the runs have ended.

    Notes
    -----
    On the sphere a run on a fixed data set counts as diverged when it steps further than the sphere's diameter at a train risk above its
    first; for phase retrieval a warning says beforehand when samples are beyond the stability limit of the learning rate.
    A ``SpikedTensor`` has its own exact chain in (m, r2) and its vector form ("direct", O(n) a step); method="tensor" is what these two are
    checked against.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> runs = sgd.simulate(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0], dimension=1000, runs=16)
    >>> runs["M"].shape
    (16, 2, 2, 1)
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
    shared_data = checks.flag("shared_data", shared_data)
    where |= {"record": record, "evaluate": evaluate}
    call = validate_call(
        "simulate",
        problem,
        algorithm,
        start,
        **where,
        needs_dimension=True,
        allow_small_blocks=True,
        whole_steps=True,
    )
    dynamics, (d, block_sizes) = call.dynamics, call.finite_dimension
    checks.choice("method", method, dynamics.methods)
    method = "direct" if dynamics.always_direct else method
    checks.choice("dtype", dtype, ("float64", "float32", "float16"))
    if dtype == "float16" and not (dynamics.has_data and method == "direct"):
        raise checks.reject(
            "dtype",
            dtype,
            'this is for the data of direct runs on a fixed data set: take "float32" or "float64"',
        )
    if method == "exact" and dtype != "float64":
        raise checks.reject(
            "dtype",
            dtype,
            f"the exact chain is biased at large {dynamics.dimension_symbol} in float32: leave it at float64, or take method='direct'",
        )
    if not dynamics.has_data:
        for name, value, default in (
            ("shared_data", shared_data, False),
            ("stop_at", stop_at, None),
        ):
            if value is not default:
                raise checks.reject(
                    name,
                    value,
                    "this is for algorithms on a fixed data set (sgd.GradientDescent, ...): leave it out",
                )
    stop_at = None if stop_at is None else checks.number("stop_at", stop_at, above=0.0)
    if checkpoint is not None and not isinstance(call.initial_state, Start):
        raise checks.reject(
            "checkpoint",
            checkpoint,
            "checkpoints store runs of networks only, not of spiked tensors or user-defined dynamics. Omit checkpoint",
        )
    if checkpoint is not None and dynamics.has_data and method == "exact":
        raise checks.reject(
            "checkpoint",
            checkpoint,
            'the exact law of a fixed data set cannot be continued from a file. Use method="direct", or omit checkpoint',
        )
    if seconds is not None:
        seconds = checks.number("seconds", seconds, above=0.0)
        if checkpoint is None:
            raise checks.reject(
                "seconds",
                seconds,
                "a time limit without a checkpoint would lose the runs. Set checkpoint to a folder",
            )
    more = {"dtype": dtype, "seed": call.seed, "shared_data": shared_data}
    kept = None
    if checkpoint is not None:
        folder = checks.path("checkpoint", checkpoint)
        kept = Checkpoint(
            folder,
            _call(
                call,
                more
                | {
                    "method": method,
                    "stop_at": stop_at,
                    "recorded": sorted(call.observables.losses()),
                },
            ),
            seconds,
        )
    simulator = dynamics.simulator(method, call.initial_state, d, block_sizes, **more)
    simulator.on_train = call.observables.losses()
    if isinstance(dynamics, FixedDataDynamics):
        warn_unstable(
            dynamics.definition,
            dynamics.algorithm,
            call.initial_state,
            dynamics.algorithm.samples(d),
        )
    label = f"{method} simulation, {dynamics.dimension_symbol} = {d}"
    states, last, stopped = run_until(
        simulator,
        call.initial_state.runs,
        call.save_steps,
        call.seed,
        label,
        call.progress,
        stop_at,
        kept,
    )
    attributes = {
        "seed": call.seed,
        "dimension": d,
        "dtype": dtype,
        "engine": simulator.engine,
        "assumptions": dynamics.assumptions
        + (", exact in law" if method == "exact" or dynamics.dimension_symbol == "n" else ""),
    }
    if dynamics.has_data:
        attributes |= {
            "samples": dynamics.algorithm.samples(d),
            "shared_data": int(shared_data),
            "stop_at": stop_at,
        }
    ends = {"diverged_at": np.where(last >= 0, time_of_steps(dynamics.algorithm, last, d), np.nan)}
    result = build_result(call, f"simulate-{method}", states, attributes, ends, sampled="runs")
    if stop_at is None:
        return result
    stopped_at = np.where(stopped >= 0, time_of_steps(dynamics.algorithm, stopped, d), np.nan)
    meaning = {
        "long_name": f"time at which the train risk was below stop_at, seen every {CHECK_STEPS} steps"
    }
    return result.assign_coords(stopped_at=("run", stopped_at, meaning))


def _call(call: SolverCall, more: dict[str, Any]) -> dict[str, Any]:
    """What makes a simulation the one that it is, but for its save points."""
    dynamics, begin = call.dynamics, call.initial_state
    arrays = [
        np.ascontiguousarray(one, dtype=np.float64).tobytes()
        for one in (begin.M_blocks, begin.Q_blocks, begin.a)
    ]
    start = hashlib.sha256(b"".join(arrays)).hexdigest()
    of = {
        "problem": encode(dynamics.problem.describe()),
        "algorithm": encode(dynamics.algorithm.describe()),
    }
    return of | {"start": start, "runs": int(begin.runs), "dimension": call.dimension} | more
