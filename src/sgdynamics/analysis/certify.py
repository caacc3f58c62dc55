"""`certify`: tests of the simulation and of the theory on a user's own problem.

A certificate tests two claims for one problem, algorithm and initial condition.

1. The simulation of overlaps alone (`method="exact"`) has the law of SGD on d-dimensional weights:
   at a small d, every overlap at every save point is compared by the two-sample Kolmogorov-Smirnov
   test and by its mean.
2. The theory (the ODE; DMFT on a fixed data set) is the limit of the runs: for growing d and fixed
   t, with X an overlap of the runs and x its value in the theory,

       spread of X = c d^s (1 + b/d),  s = -1/2,        mean of X - x = g_0 + g_1/d,  g_0 = 0.

   s and every g_0 are fitted with their errors. Source: Veiga, Stephan, Loureiro, Krzakala,
   Zdeborova (2022), where one-pass SGD stays within a constant times d^-1/2 of the ODE; the
   fluctuations change the mean at the next order, 1/d.

`certificate_runs` makes the runs and the theory, `certificate_statistics` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.analysis.certificate import Certificate, Check
from sgdynamics.analysis.certificate_runs import CertifiedRuns, dmft_theory, ode_theory
from sgdynamics.analysis.certificate_statistics import compare_laws, compare_with_theory
from sgdynamics.analysis.real_data import checked_samples, gap_on_data
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.progress import meter
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.simulation.exact import check_room

# Default dimension of the test in law, if the rows and signals fit.
SMALL = 50
# Default dimensions of the comparison with the theory.
GROWING = (100, 400, 1600)
# The same for direct runs and for fixed data sets, where the cost of a run grows with d.
GROWING_DIRECT = (100, 200, 400, 800)
GROWING_FIXED = (50, 100, 200)
# Default save points: samples/d, and steps on a fixed data set.
ALPHA = (1.0, 2.0, 4.0)
STEPS = (4, 8, 16)
# Default number of runs, and the same on a fixed data set.
RUNS, RUNS_FIXED = 1000, 400
# Number of tests that may fail by chance, and therefore share the level.
TESTS = 4


def certify(
    problem: Problem,
    algorithm: OnePassSGD | FixedData,
    start: Start,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: int | None = None,
    dimensions: Sequence[int] | None = None,
    runs: int | None = None,
    level: float = 1e-3,
    paths: int = 1 << 14,
    seed: int = 0,
    progress: bool | None = None,
    data: ArrayArgument | None = None,
) -> Certificate:
    """Test theory and simulation on a user's own problem.

    Exact and direct runs are compared in law at one dimension, and runs with the theory as d
    grows::

        X_exact = X_direct in law;      spread of X ~ d^-1/2  and  mean of X = theory + O(1/d),

    for every entry X of M, Q, a trained head and, on a fixed data set, the training risk, at
    every save point.

    Parameters
    ----------
    problem : Problem
        The learning problem, with Gaussian inputs.
    algorithm : OnePassSGD or an algorithm on fixed data
        The training algorithm. The theory is ``solve_ode`` (with schedules, batches and updates)
        or, on a fixed data set, ``solve_dmft``. An update without an ODE is tested in law only. A
        coordinatewise update has no exact chain, so its direct runs are compared with the ODE.
    start : Start
        Initial condition of one run.
    times : array_like, optional
        Save points in t; at most one of times, alpha, steps.
    alpha : array_like, optional
        Save points in samples/d. Defaults to 1, 2, 4 if none of the three is passed.
    steps : array_like, optional
        Save points in steps. Defaults to 4, 8, 16 on a fixed data set.
    dimension : int, optional
        Dimension at which exact and direct runs are compared. Defaults to 50, or to the smallest
        dimension that rows and signals allow.
    dimensions : sequence of int, optional
        Three or more increasing dimensions at which runs are compared with the theory. They must
        be so large that terms beyond 1/d are smaller than the errors. The default depends on the
        algorithm.
    runs : int, optional
        Number of runs at each dimension. Defaults to 1000, and to 400 on a fixed data set.
    level : float, default 0.001
        Upper bound on the probability that a correct problem fails (by Bonferroni's correction
        over all entries, save points and tests).
    paths : int, default 16384
        Number of Monte Carlo paths of ``solve_dmft``, on a fixed data set.
    seed : int, default 0
        Seed of the random number generators.
    progress : bool, optional
        Whether to show a progress bar. By default it is shown on a terminal only.
    data : array_like (samples, inputs), optional
        The samples from which the problem's covariance, ``sgd.spectrum_of(data, ...)``, was
        computed. The certificate then reports the relative error of the Gaussian theory for SGD
        that draws these samples themselves.

    Returns
    -------
    Certificate
        ``.passed``, ``.checks``, ``.paragraph`` for an appendix; ``print`` shows a table.

    Raises
    ------
    ValueError
        If an argument is invalid, or the problem or algorithm is not supported.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> certificate = sgd.certify(
    ...     problem,
    ...     sgd.OnePassSGD(lr=0.1),
    ...     start,
    ...     steps=[10],
    ...     dimension=10,
    ...     dimensions=[10, 20, 40],
    ...     runs=200,
    ...     progress=False,
    ... )
    >>> certificate.passed
    True
    """
    dynamics = dynamics_of("certify", problem, algorithm)
    has_fixed_data = dynamics.has_data
    progress = checks.flag("progress", progress, optional=True)
    initial_state = dynamics.initial_state(start)
    if initial_state.runs != 1:
        fix = "all runs of a certificate have the same initial condition. Use a start of one run."
        raise checks.reject("start", f"{initial_state.runs} runs", fix)
    default_runs = RUNS_FIXED if has_fixed_data else RUNS
    runs = default_runs if runs is None else checks.integer("runs", runs, 50)
    level = checks.number("level", level, above=0.0)
    if level >= 1:
        fix = "give the probability of a false alarm, above 0 and below 1"
        raise checks.reject("level", level, fix)
    seed = checks.integer("seed", seed, 0)
    small, growing = _choose_dimensions(dynamics, dimension, dimensions)
    samples = None if data is None else checked_samples(problem, data)
    if samples is not None and has_fixed_data:
        fix = "only SGD on fresh draws from these samples can be tested. Use sgd.OnePassSGD(...)."
        raise checks.reject("data", samples.shape, fix)
    save_points = _choose_save_points(dynamics, small, times=times, alpha=alpha, steps=steps)
    setting = CertifiedRuns(dynamics, initial_state, runs, seed, save_points)
    setting.steps(small)  # raises ValueError for bad save points before anything is computed

    no_ode_reason = None if has_fixed_data else dynamics.no_ode_reason
    has_theory = no_ode_reason is None and problem.spectrum is None
    has_chain = "coordinatewise update" not in algorithm.kinds
    update = getattr(algorithm, "update", None)
    if not has_theory and not has_chain:
        fix = (
            "there is neither an exact simulation nor a theory at growing dimension with which "
            "direct runs could be compared. Use another update or a covariance without spectrum."
        )
        raise checks.reject("update", update, fix)

    all_checks: list[Check] = []
    remarks: list[str] = []
    comparisons = 0
    statistics: dict[str, Any] = {}
    with meter("certificate", 2.0 * has_chain + (1 + len(growing)) * has_theory, progress) as bar:
        if has_chain:
            exact = setting.simulate(small, "exact", seed_shift=0)
            bar.advance(1)
            direct = setting.simulate(small, "direct", seed_shift=1)
            bar.advance(1)
            all_checks, comparisons = compare_laws(exact, direct, level / TESTS)
        else:
            remarks.append(f"{update} has no exact chain: direct runs are compared with the ODE")
        if has_theory:
            method = "exact" if has_chain else "direct"
            simulated = []
            for index, d in enumerate(growing):
                simulated.append(setting.simulate(d, method, seed_shift=2 + index))
                bar.advance(1)
            theory = dmft_theory(setting, paths) if has_fixed_data else ode_theory(setting, growing)
            bar.advance(1)
            limit_checks, statistics = compare_with_theory(
                growing, simulated, theory, initial_state, level / TESTS, seed
            )
            all_checks += limit_checks
        else:
            growing = ()
            reason = f"update = {update} has no ODE ({no_ode_reason})"
            if problem.spectrum is not None:
                reason = "a spectrum fixes the dimension, so that d cannot grow"
            remarks.append(f"{reason}: only the law at finite dimension is tested")
        data_gap = None
        if samples is not None:
            data_steps = np.asarray(setting.steps(small))
            data_seed = 64 * seed + 63
            data_gap = gap_on_data(dynamics, initial_state, samples, data_steps, runs, data_seed)
    return Certificate(
        problem=problem,
        algorithm=algorithm,
        checks=tuple(all_checks),
        times=setting.clock(small).t,
        dimension=small,
        dimensions=growing,
        runs=runs,
        level=level,
        comparisons=comparisons,
        theory="" if not has_theory else ("DMFT" if has_fixed_data else "ODE"),
        seed=seed,
        remarks=tuple(remarks),
        data=data_gap,
        **statistics,
    )


def _choose_save_points(
    dynamics: SolverDynamics[Any], dimension: int, **arguments: ArrayArgument | None
) -> Mapping[str, ArrayArgument]:
    """The save points by the name of their unit, with the defaults of `certify`.

    For one-pass SGD, steps at `dimension` are converted to alpha = batch steps/d: the theory has
    no steps, and runs at other dimensions need the same times.
    """
    save_points = {name: points for name, points in arguments.items() if points is not None}
    if not save_points:
        return {"steps": STEPS} if dynamics.has_data else {"alpha": ALPHA}
    # If several units are passed, the clock raises ValueError.
    if list(save_points) == ["steps"] and not dynamics.has_data:
        fix = "give increasing whole numbers, 0 or more"
        steps = checks.real_array("steps", save_points["steps"], fix)
        return {"alpha": np.atleast_1d(steps) * (dynamics.algorithm.batch / dimension)}
    return save_points


def _choose_dimensions(
    dynamics: SolverDynamics[Any], dimension: int | None, dimensions: Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    """The dimension of the test in law and the growing dimensions of the test of the limit.

    Defaults are enlarged if the rows and signals need more dimensions. With a spectrum, which
    fixes the dimension, there are no growing dimensions.
    """
    problem, algorithm, has_fixed_data = dynamics.problem, dynamics.algorithm, dynamics.has_data
    if problem.spectrum is not None:
        if dimensions is not None or problem.spectrum.infinite:
            fix = "a spectrum fixes the dimension. Omit dimensions, and use a finite spectrum."
            raise checks.reject("dimensions", dimensions, fix)
        return int(check_dimension(problem, dimension, small=True)[0]), ()
    # The columns of the compressed frame must fit into every covariance block.
    row_sets = count_row_sets(None if has_fixed_data else algorithm.law)
    columns = problem.signals + row_sets * problem.width
    smallest = max(math.ceil(columns / f) + 1 for f in problem.parameters["fractions"])
    small = max(SMALL, smallest) if dimension is None else checks.integer("dimension", dimension, 1)
    if dimensions is None:
        default = GROWING
        if has_fixed_data:
            default = GROWING_FIXED
        elif "coordinatewise update" in algorithm.kinds:
            default = GROWING_DIRECT
        factor = math.ceil(smallest / default[0])
        requested = [factor * d for d in default]
    else:
        fix = "give three or more increasing whole numbers"
        requested = np.atleast_1d(checks.real_array("dimensions", dimensions, fix)).tolist()
    growing = tuple(checks.integer("dimensions", d, 1) for d in requested)
    if len(growing) < 3 or any(first >= second for first, second in pairwise(growing)):
        fix = "the fits contain a term 1/d each. Use three increasing dimensions or more."
        raise checks.reject("dimensions", dimensions, fix)
    for d in (small, *growing):
        _, sizes = check_dimension(problem, d)
        if not has_fixed_data:
            check_room(problem, algorithm, sizes)
    return small, growing
