"""`solve_dmft`: dynamical mean-field theory of algorithms on a fixed data set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import (
    ArrayArgument,
    Device,
)
from sgdynamics.base.devices import choose_devices
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Cost, Meter, meter, warn
from sgdynamics.base.support import require
from sgdynamics.fixed_data.bounded_memory import Memory
from sgdynamics.fixed_data.dmft import MIN_PATHS, REDUCTION, ROUNDING, Sweep, check_work
from sgdynamics.fixed_data.host_draws import Sampling
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.fixed_data.response_sweep import (
    MIN_BLOCKS,
    DependentFields,
    ResponseSweep,
    has_dependent_fields,
    paths_needed,
    paths_per_row,
    response_form_obstacle,
)
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.solvers.call import SolverCall
from sgdynamics.solvers.deep_linear import solve_limit
from sgdynamics.solvers.diagonal import solve_paths
from sgdynamics.solvers.dmft_arguments import DEFAULT_OPTIONS, PATHS, REPLICATES, DMFTArguments
from sgdynamics.solvers.dmft_cells import States, algorithms_in_cells, cell_levels, limit_of_epochs
from sgdynamics.solvers.dmft_result import Solutions, dmft_result
from sgdynamics.solvers.state_evolution import state_evolution
from sgdynamics.solvers.wide_network import solve_wide_network

# Where callers find arguments that are options
HINTS = {
    field.name: f"Write method=sgd.DMFT({field.name}=...)." for field in dataclasses.fields(DMFT)
}
# Start of the warning about save points that coincide after rounding to cells
COINCIDENT_SAVE_POINTS = "Save points are rounded to multiples of"
FEW_COORDINATES = 100  # blocks with fewer coordinates are far from the limit


@checks.argument_hints(HINTS)
@float64
def solve_dmft(
    problem: Problem | DeepLinear | DiagonalNetwork | WideNetwork,
    algorithm: FixedData | OnePassSGD,
    start: Start | None = None,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    paths: int = PATHS,
    seed: int = 0,
    replicates: int = REPLICATES,
    two_time: bool = False,
    cells: int | None = None,
    method: DMFT = DEFAULT_OPTIONS,
    progress: bool | None = None,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    devices: int | None = None,
) -> xr.Dataset:
    """Overlaps, training and population risk of a fixed-data algorithm at d -> infinity.

    The learning rate is the finite one of the algorithm. Set exactly one of ``times``, ``alpha``
    and ``steps``.

    Parameters
    ----------
    problem : Problem, DeepLinear, DiagonalNetwork or WideNetwork
        The learning problem, with Gaussian inputs, or with the given inputs of a wide network.
    algorithm : GradientDescent, MultiPassSGD, PersistentSGD, Langevin, EpochSGD or AMP
        The training algorithm on a fixed data set. With ``AMP`` the limit is its state evolution,
        without paths and without ``train_risk``. For a ``DeepLinear`` also ``OnePassSGD``.
    start : Start, optional
        Initial condition of one or several runs; none for the other problems than a ``Problem``. A
        run that starts at M = 0 stays there up to the sampling error of the paths; if M = 0 is
        unstable, this error makes the run leave it.
    times : array_like, optional
        Save points in t = lr steps, rounded to whole steps. With ``EpochSGD`` in t = lr steps/d,
        rounded to 4/m of an epoch of m cells.
    alpha : array_like, optional
        Save points in samples used/d.
    steps : array_like, optional
        Save points in steps. Not available with ``EpochSGD``, whose epochs have infinitely many.
    paths : int, default 20000
        Total number of Monte Carlo paths of the effective process; for a ``WideNetwork`` of
        sampled neurons per layer.
    seed : int, default 0
        Seed of the random number generator.
    replicates : int, default 4
        Number of independent sets of paths, whose scatter yields the ``X_standard_error`` of each
        quantity X. The size of a set is rounded to a power of two, for quasi-random points.
    two_time : bool, default False
        Whether to add C(t, t') = W(t) W(t')^T and the response R(t, t') = tr dW_i(t)/dW_j(t') / d
        at all pairs of save points. R costs one additional sweep of twice the cost per save
        point.
    cells : int, optional
        Number m of cells of an epoch of ``EpochSGD``, rounded up to a multiple of 4. By default t
        of a cell, lr samples_per_dimension/(batch m), is at most 0.04, m is at least 16, and a
        quarter of the cells is stable with a margin (see Notes). For a ``DeepLinear`` under
        ``OnePassSGD``, the number of cells per unit of samples/d.
    method : DMFT, default DMFT()
        Numerical options: basis, storage precision, memory and form of the equations.
    progress : bool, optional
        Whether to display a progress bar. By default only on a terminal.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``, or ``sgd.on_train(...)`` of a sample.
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``. Their risks are the variable
        ``evaluated_risk``.
    devices : int, optional
        Number of local devices among which the replicates are divided; defaults to all of them. The
        numbers do not depend on it, to rounding.

    Returns
    -------
    xarray.Dataset
        ``M``, ``Q``, ``a``, ``risk`` and ``train_risk``, each with its ``_standard_error``, and
        with ``two_time`` ``C`` and ``R``. With ``EpochSGD`` the coordinate ``epoch`` and the
        attributes ``cells`` and ``error_cells``; with ``memory_directions`` the attribute
        ``error_memory``.

    Raises
    ------
    ValueError
        If an argument is out of range, if a quarter of ``cells`` is unstable, if the paths are
        too few for the directions that the cells of all epochs add, or if the solution needs more
        memory than available or more than ten days.

    Warns
    -----
    UserWarning
        If the solution diverges, if the three levels of cells do not converge, if a standard error
        exceeds the value, or if the standard error of ``Langevin`` exceeds 5%.

    Notes
    -----
    **Sampling error.** The bias of order 1/paths, and the effect of ``tolerance``, are measured
    by a second solution with a quarter of each set and four times the tolerance: a third of the
    change is included in the standard errors in quadrature (not in that of R). ``error_paths`` is
    its largest value relative to the training risk, ``error_sampling`` that of the whole standard
    error.

    **Cells.** With ``EpochSGD`` all visits of a cell use the weights at its start, with an error
    of first order in t of a cell. The result is therefore 2 x(m) - x(m/2), extrapolated from
    solutions with m, m/2 and m/4 cells. The change by a third level, (2 x(m) - 3 x(m/2) +
    x(m/4))/3, is included in the standard errors (not in those of C and R); ``error_cells`` is
    its largest value relative to the training risk. The levels converge if the coarsest one is
    stable. For a linear student the condition is exact (``load(m/4) < 1`` in
    ``sgdynamics.algorithms.cell_stability``) and is checked before the start. For other students
    the default takes the largest eigenvalue of the covariance into account. Where the
    extrapolated risk is negative, or the change by a third level exceeds both the value and the
    initial risk, the solution has failed: later values are NaN and ``diverged_at`` is the last
    save point before.

    **Bounded memory.** With ``memory_directions`` a quarter of the paths is also solved with half
    of that memory: the change is included in the standard errors (not in those of C and R), and
    ``error_memory`` is its largest value relative to the training risk. Discarding directions
    changes neither rows nor fields; the correlations of later gradients with the discarded
    directions are lost, which matters least where steps are noisy. With ``EpochSGD`` coarser
    cells have a proportionally smaller memory, the same in epochs.

    **Memory.** The projections need 8 bytes (dtype="float32": 4) per path and direction, 2 (1 +
    blocks) times. The response form needs four times 8 bytes whatever the number of blocks, and
    16 (2 blocks + 1) bytes per pair of rows at two times. It computes C and R without additional
    cost, and needs 40 paths of a replicate for each row of each step, or 8 times
    samples_per_dimension times the largest squared eigenvalue over their mean if that is more:
    with fewer paths, the overlaps of a quarter of them need not be positive definite.

    **Deep linear networks.** The limit of a ``DeepLinear`` is a deterministic recursion, without
    paths: ``paths``, ``replicates``, ``two_time`` and ``method`` do not apply, and the variables
    are ``overlap``, ``squared_norm``, ``excess_risk``, ``risk``, ``train_risk`` and
    ``layer_change``, without standard errors. One pass is solved by cells as above.

    **Diagonal networks.** The paths of a ``DiagonalNetwork`` are coordinates of the network, whose
    bias a quarter of them measures. The variables are those of ``solve_ode`` and ``train_risk``,
    with standard errors; ``two_time``, ``cells`` and ``method`` do not apply.

    **Wide networks.** For a ``WideNetwork`` the paths are quasi-random neurons of each layer, and
    the basis is that of the features and gradients of all steps so far. ``tolerance`` defaults to
    3e-3 there. More than a tenth as many directions as neurons raise ValueError, because a finite
    network is then as good. The variables are ``outputs`` (f at the training inputs),
    ``train_risk``, ``feature_kernel`` (mean s(h_l) s(h_l') over the neurons of a layer),
    ``gradient_kernel`` (mean g_l g_l' with g_l = gamma0 N df/dh_l), ``tangent_kernel``, and with
    test inputs ``test_outputs``, ``test_kernel`` (feature kernel between test and training inputs)
    and ``test_risk``, each with its ``_standard_error``. ``two_time`` and ``cells`` do not apply.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> result = sgd.solve_dmft(problem, algorithm, start, steps=[0, 4], paths=1024, progress=False)
    >>> result["train_risk"].shape, "M_standard_error" in result
    ((1, 2), True)
    """
    require("solve_dmft", problem, algorithm)
    arguments = DMFTArguments(
        problem,
        algorithm,
        start,
        times,
        alpha,
        steps,
        paths,
        seed,
        replicates,
        two_time,
        cells,
        method,
        progress,
        record,
        evaluate,
        choose_devices(devices),
    )
    kinds = (*problem.kinds, *getattr(algorithm, "kinds", ()))
    solve = next((LIMITS[kind] for kind in kinds if kind in LIMITS), _solve_effective_process)
    return solve(arguments)


# Limits that are not averages over an effective process of the fields, by the kind of the problem
# or the algorithm.
LIMITS: dict[str, Callable[[DMFTArguments], xr.Dataset]] = {
    "deep linear": solve_limit,
    "wide network": solve_wide_network,
    "diagonal": solve_paths,
    "message passing": state_evolution,
}


def _solve_effective_process(arguments: DMFTArguments) -> xr.Dataset:
    """The limit by Monte Carlo paths of the effective process."""
    problem, method = arguments.problem, arguments.method
    algorithm, two_time = validate_fixed_data(arguments.algorithm), arguments.two_time
    assert isinstance(problem, Problem)
    start = arguments.required_start
    # Cells are known before the clock: save points are rounded to them.
    limit = limit_of_epochs(problem, algorithm)
    cell_counts = cell_levels(problem, limit, start, arguments.cells, arguments.steps)
    call = arguments.validate(cells=cell_counts[0] if cell_counts else None)
    _warn_about_limits(
        problem, call, arguments.alpha if arguments.times is None else arguments.times, cell_counts
    )
    replicates = checks.integer("replicates", arguments.replicates, 2)
    checks.choice("two_time", two_time, (False, True))
    if method.memory_directions is not None and two_time:
        raise checks.reject(
            "memory_directions",
            method.memory_directions,
            "C and R depend on the discarded directions. Omit memory_directions or two_time.",
        )
    # The coarsest level of cells comes first: save points are at its cells.
    refinements = [count // cell_counts[0] for count in cell_counts] or [1]
    last_steps = [ratio * float(call.save_steps[-1]) for ratio in refinements]
    algorithms = algorithms_in_cells(problem, limit, cell_counts, last_steps) or [
        call.dynamics.algorithm
    ]
    sampling = Sampling(_paths_per_replicate(arguments.paths, replicates), replicates, call.seed)
    request = _Request(
        problem, call, sampling, two_time, method, algorithms, refinements, arguments.devices
    )
    if two_time and problem.structure.loss.reads_overlaps:
        fix = "the response is not computed for a loss that reads overlaps. Omit two_time"
        raise checks.reject("two_time", two_time, fix)
    if two_time and algorithm.law is not None and algorithm.law.iterate != "weights":
        fix = "the response of an average to its own perturbation is not computed. Omit two_time"
        raise checks.reject("two_time", two_time, fix)
    if algorithm.law is not None and algorithm.law.on_sample is not None:
        _check_sample_memory(algorithm, method, two_time)
    if _uses_response_form(request, algorithm, arguments.paths):
        try:
            return _solve_form(request, ResponseSweep)
        except DependentFields as error:
            if method.form == "response":
                raise
            warn(f"{error} The projections are used here.")
    return _solve_form(request, Sweep)


def _check_sample_memory(algorithm: FixedData, method: DMFT, two_time: bool) -> None:
    """Raise ValueError for options that evaluate a gradient again, which would be stored twice."""
    fix = f"{algorithm.update} stores values of single samples, which this option would change."
    if two_time:
        raise checks.reject("two_time", two_time, f"{fix} Omit two_time")
    if method.memory_directions is not None:
        options = f"{fix} Omit memory_directions"
        raise checks.reject("memory_directions", method.memory_directions, options)


@dataclasses.dataclass(frozen=True)
class _Request:
    """A validated call of `solve_dmft`."""

    problem: Problem
    call: SolverCall
    sampling: Sampling
    two_time: bool
    method: DMFT
    algorithms: Sequence[FixedData]  # one per level of cells
    refinements: list[int]  # steps of each level per step of the first
    devices: Sequence[Device]

    @property
    def steps(self) -> int:
        """Number of steps of the finest level."""
        return self.refinements[-1] * int(self.call.save_steps[-1])


def _paths_per_replicate(paths: int, replicates: int) -> int:
    """The nearest power of two, as quasi-random points need it."""
    per_replicate = 1 << round(np.log2(max(checks.integer("paths", paths, 1) / replicates, 1)))
    if per_replicate < MIN_PATHS:
        raise checks.reject(
            "paths",
            paths,
            f"each of the {replicates} replicates needs at least {MIN_PATHS} paths. Use paths = "
            f"{replicates * MIN_PATHS} or more.",
        )
    return per_replicate


def _warn_about_limits(
    problem: Problem,
    call: SolverCall,
    save_points: ArrayArgument | None,
    cell_counts: list[int],
) -> None:
    """Warn about save points that coincide after rounding, and about blocks of few coordinates."""
    requested = 0 if save_points is None else len(np.unique(np.asarray(save_points)))
    if cell_counts and len(np.unique(call.save_steps)) < requested:
        warn(
            f"{COINCIDENT_SAVE_POINTS} {4 / cell_counts[-1]:.3g} epochs (four cells), so that some "
            f"of the {requested} save points coincide. Use more cells."
        )
    if problem.spectrum is not None and problem.spectrum.multiplicities.min() < FEW_COORDINATES:
        warn(
            "The limit assumes infinitely many coordinates in each covariance block, and some "
            "blocks have few. Use sgd.simulate, which is exact for them."
        )


def _uses_response_form(request: _Request, algorithm: FixedData, paths: int) -> bool:
    """Whether the response form is used; raises ValueError if it is required and not available."""
    method, problem, sampling = request.method, request.problem, request.sampling
    # An explicit form raises an error where "auto" would select the other one.
    is_automatic = method.form == "auto"
    has_few_blocks = problem.structure.blocks < MIN_BLOCKS
    if method.form == "projections" or (is_automatic and has_few_blocks):
        return False
    obstacle = response_form_obstacle(problem, algorithm)
    start = request.call.initial_state
    if not obstacle and request.two_time and has_dependent_fields(problem, start):
        obstacle = (
            "R at time 0 does not exist in this form if the initial fields are linearly dependent. "
            "Omit two_time"
        )
    smallest = REDUCTION * paths_needed(problem, algorithm, request.steps)
    if is_automatic:
        # The options of the basis apply to the projections only.
        has_basis_options = method.rank is not None or method.memory_directions is not None
        return not obstacle and not has_basis_options and sampling.paths >= smallest
    if obstacle:
        raise checks.reject("form", method.form, f"{obstacle}, or use form='projections'.")
    if sampling.paths < smallest:
        enough = sampling.replicates << math.ceil(math.log2(smallest))
        per_row = REDUCTION * paths_per_row(problem, algorithm)
        raise checks.reject(
            "paths",
            paths,
            f"form='response' needs {per_row:.4g} paths of a replicate for each row of "
            f"{request.steps} steps. Use paths = {enough} or more, or fewer steps.",
        )
    return True


def _make_sweeps(request: _Request, form: type[Sweep], reduction: int) -> list[Sweep]:
    """One sweep per level of cells, with a reduced number of paths and a larger tolerance."""
    sampling = dataclasses.replace(request.sampling, reduction=reduction)
    # With fewer paths the effect of the tolerance is measured too.
    tolerance = max(reduction * request.method.tolerance, ROUNDING[request.method.dtype])
    sweeps = [
        form(request.problem, algorithm, sampling, tolerance, np.dtype(request.method.dtype))
        for algorithm in request.algorithms
    ]
    for sweep in sweeps:
        sweep.train_losses = request.call.observables.losses()
        sweep.devices = request.devices
    return sweeps


def _solve_form(request: _Request, form: type[Sweep]) -> xr.Dataset:
    """The solution in one form of the equations, and the solutions for its error estimates."""
    call, method, refinements = request.call, request.method, request.refinements
    # All paths, and a quarter of them for the bias
    full, reduced = _make_sweeps(request, form, 1), _make_sweeps(request, form, REDUCTION)
    sweeps = {"full": full, "reduced": reduced}
    finest = full[-1]
    memory = Memory.from_options(finest.setup, method)
    if memory is not None:
        # Each further solution differs from the reduced one in one respect.
        sweeps["half_memory"] = [copy(sweep) for sweep in reduced]
    if method.dtype == "float32":
        sweeps["double"] = [copy(sweep) for sweep in reduced]
        for sweep in sweeps["double"]:
            sweep.dtype = np.dtype("float64")
    if memory is not None:
        for name, levels in sweeps.items():
            fraction = 2 if name == "half_memory" else 1
            for sweep, ratio in zip(levels, refinements, strict=True):
                # Epochs of fewer cells add fewer directions: the same memory in epochs
                divisor = fraction * refinements[-1] // ratio
                sweep.memory = memory.divide(sweep.setup, divisor)

    runs = call.initial_state.runs
    # Work, paths and memory are checked before anything is computed.
    check_work(finest, refinements[-1] * call.save_steps, method.rank, runs, request.two_time)
    finest.check_paths(request.steps, method.rank)
    for levels in sweeps.values():
        for sweep in levels:
            sweep.reserve_memory(request.steps, method.rank, method.memory)
    # Progress counts steps of the full number of paths.
    relative_work = sum(1 / levels[0].sampling.reduction for levels in sweeps.values())
    work = float(call.save_steps[-1]) * runs * sum(refinements) * relative_work
    # Steps slow down as the basis grows.
    cost = Cost("step", " of the solution and its error estimates", "at least")
    solutions: dict[str, list[States]] = {}
    with meter(f"DMFT, {finest.total_paths} paths", work, call.progress, cost) as progress:
        for name, levels in sweeps.items():
            # C and R have no error estimates from memory or storage.
            two_time = request.two_time and name in ("full", "reduced")
            solutions[name] = [
                _solve_runs(call, sweep, ratio, two_time, progress)
                for sweep, ratio in zip(levels, refinements, strict=True)
            ]
    if any(sweep.basis_is_full for sweep in full):
        dimensions = float(np.sum(finest.step_parameters.block_sizes))
        warn(
            f"The gradients span half of the {finest.paths} paths of a replicate, or all of the "
            f"{dimensions:.0f} dimensions that the paths represent, so that later gradients add no "
            "directions. Use more paths, fewer steps or fewer replicates."
        )
    return dmft_result(call, Solutions(**solutions), finest, method.tolerance, memory)


def _solve_runs(
    call: SolverCall, sweep: Sweep, ratio: int, two_time: bool, progress: Meter
) -> States:
    """All runs of a start, (run, replicate, time, ...); `ratio` is the refinement of the level."""
    start = call.initial_state
    solutions = []
    for run in range(start.runs):
        arrays = (start.M_blocks, start.Q_blocks, start.a)
        # One run at a time: the basis of a run depends on its start.
        single = Start(*(array[run : run + 1] for array in arrays))
        solutions.append(sweep.solve(single, ratio * call.save_steps, two_time, progress))
    return {name: np.stack([states[name] for states in solutions]) for name in solutions[0]}
