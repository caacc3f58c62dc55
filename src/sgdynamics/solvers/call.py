"""`validate_call`: the arguments that all solvers share, validated in one order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.results.build import ResultCall
from sgdynamics.results.clock import make_clock
from sgdynamics.results.observables import checked_evaluate, checked_record


@dataclass(frozen=True, eq=False)
class SolverCall(ResultCall):
    """The validated arguments of a solver.

    Attributes
    ----------
    dynamics : SolverDynamics
        The problem and the algorithm as solvers see them.
    initial_state : Start, SpikedStart or InitialArrays
        The initial condition of all runs.
    block_sizes : array or None
        The sizes of the covariance blocks at the dimension of the call.
    seed : int
        Seed of the random number generator.
    progress : bool or None
        Whether to show a progress bar; None shows it on a terminal only.
    """

    dynamics: SolverDynamics[Any]
    initial_state: Any
    block_sizes: np.ndarray | None
    seed: int
    progress: bool | None

    @property
    def finite_dimension(self) -> tuple[int, np.ndarray]:
        """The dimension and the sizes of its covariance blocks, of a solver that needs them."""
        assert self.dimension is not None
        assert self.block_sizes is not None
        return self.dimension, self.block_sizes

    @property
    def save_steps(self) -> np.ndarray:
        """The save points in steps, of a solver that counts steps."""
        assert self.clock.step is not None
        return self.clock.step


def validate_call(
    solver: str,
    problem: Any,
    algorithm: OnePassSGD | FixedData,
    start: Any,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: float | None = None,
    needs_dimension: bool = False,
    allow_small_blocks: bool = False,
    runs: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    whole_steps: bool = False,
    cells: int | None = None,
    dynamics: SolverDynamics[Any] | None = None,
) -> SolverCall:
    """Validate the arguments shared by all solvers, in a fixed order, before anything is compiled.

    Parameters
    ----------
    solver : str
        Name of the solver in the support table.
    problem, algorithm, start
        The arguments of the solver.
    times, alpha, steps : array_like, optional
        Save points; exactly one of them is given.
    dimension : int, optional
        The dimension d.
    needs_dimension : bool
        Whether the solver works at finite d only.
    allow_small_blocks : bool
        Whether covariance blocks may be smaller than the number of rows and signals.
    runs, seed, progress, record, evaluate
        Optional arguments of the solver.
    whole_steps : bool
        Whether save points are rounded to whole steps, as in simulations.
    cells : int, optional
        Number of cells per epoch in the limit d -> infinity.
    dynamics : SolverDynamics, optional
        The dynamics of the solver. Chosen from the problem and the algorithm by default.
    """
    checks.require_outside_jit(solver)
    if dynamics is None:
        dynamics = dynamics_of(solver, problem, algorithm)
    progress = checks.flag("progress", progress, optional=True)
    if dimension is None and not needs_dimension:
        d, block_sizes = None, None
    else:
        d, block_sizes = dynamics.resolve_dimension(dimension, allow_small_blocks)
    seed = checks.integer("seed", seed, 0)
    dynamics = dynamics.resolve_steps(d, cells)
    spectrum = getattr(problem, "spectrum", None)
    is_infinite = spectrum is not None and spectrum.infinite
    if is_infinite and alpha is not None:
        fix = "samples/d is undefined for an infinite-dimensional spectrum. Use steps= or times="
        raise checks.reject("alpha", alpha, fix)
    # A spectrum has a dimension of its own. Steps are counted in it, also in the limit.
    step_dimension = d
    if d is None and spectrum is not None:
        step_dimension = int(spectrum.multiplicities.sum())
    clock = make_clock(
        dynamics.algorithm,
        times=times,
        alpha=alpha,
        steps=steps,
        dimension=dynamics.clock_dimension(step_dimension),
        whole_steps=whole_steps,
    )
    if is_infinite:
        clock = replace(clock, samples=False)
    dynamics = dynamics.validate_clock(clock)
    dynamics.check_memory(step_dimension, clock.schedule_points[-1])
    initial_state = dynamics.initial_state(start, runs)
    example = dynamics.first_public_state(initial_state)
    observables = checked_record(record, example, problem, dynamics.has_data)
    for name, other in checked_evaluate(evaluate).items():
        observables.evaluated[name] = dynamics.evaluator(other)
    return SolverCall(
        dynamics=dynamics,
        clock=clock,
        dimension=d,
        observables=observables,
        initial_state=initial_state,
        block_sizes=block_sizes,
        seed=seed,
        progress=progress,
    )
