"""`fixed_points`: fixed points of the ODE for any problem, each once, with linear stability.

    drift(M, Q, a) = 0,     eigenvalues of d drift / d(M, Q, a) on the independent coordinates

The independent coordinates are M (within the span of the signals), the upper triangle of Q (on the
sphere without the diagonal, which is 1) and a if it is trained (`fixed_point_system`).
`fixed_point_search` finds roots from many initial conditions, and `fixed_point_stability`
classifies them.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.analysis.fixed_point_result import FixedPoint
from sgdynamics.analysis.fixed_point_search import draw_rows, find_roots
from sgdynamics.analysis.fixed_point_stability import classify_roots
from sgdynamics.analysis.spiked_fixed_points import spiked_fixed_points
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.fields import KINKED_TOLERANCE
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedTensor

__all__ = ["FixedPoint", "fixed_points"]

# Largest norm of the drift at a root.
TOLERANCE = 1e-12
# All tries are stored in memory at once.
MOST_TRIES = 10**6


@float64
def fixed_points(
    problem: Problem | SpikedTensor,
    algorithm: OnePassSGD,
    *,
    starts: Start | None = None,
    tries: int = 64,
    seed: int = 0,
    tolerance: float | None = None,
    unphysical: bool = False,
) -> list[Any]:
    """Fixed points of the ODE for d -> infinity, by increasing risk, each once up to symmetry.

    They solve::

        drift(M, Q, a) = 0

    with equations (1) to (4) of the theory page (Saad and Solla 1995 for erf). With lr = 0 they are
    those of gradient flow.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        The learning problem. All fixed points of a ``SpikedTensor`` are found from closed
        equations; the arguments after ``algorithm`` are then ignored.
    algorithm : OnePassSGD
        Plain one-pass SGD with a constant learning rate.
    starts : Start, optional
        Additional states from which to search. A fixed head is that of ``starts``, or ones.
    tries : int, default 64
        Number of random starts: generic rows, rows in the span of the signals or orthogonal to
        it, equal rows and small rows.
    seed : int, default 0
        Seed of the random starts.
    tolerance : float, optional
        Largest norm of the drift at a root. Defaults to 1e-12, and to 1e-6 for a user's own loss
        with kinks, whose expectations are sampled.
    unphysical : bool, default False
        Whether to include roots whose Omega is not positive semi-definite to 1e-9, for which no
        rows exist.

    Returns
    -------
    list of FixedPoint
        The points that the search found. Others may exist: increase ``tries`` to find more. For a
        ``SpikedTensor``, all points, with their own class.

    Raises
    ------
    ValueError
        If an argument is invalid, or the problem or algorithm is not supported.

    Notes
    -----
    The points are searched as roots of the drift, which finds saddles too; for a quarter of the
    random starts and for all of ``starts`` the dynamics is followed in addition.

    Roots with the same risk and the same eigenvalues of the Jacobian are counted as one point,
    because every symmetry of the problem (permutations of units, signs to which the loss is
    insensitive, equivalent signals) preserves both. The points of a continuous family, which share
    a risk and a dimension, are counted as one point too. With kinks and lr > 0 the gradient noise
    has a cusp where units are parallel: no linear part exists there, and the verdict is "marginal".

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> points = sgd.fixed_points(problem, sgd.OnePassSGD(lr=0.1), tries=8)
    >>> [point.verdict for point in points]
    ['stable']
    """
    algorithm = validate_algorithm(algorithm, "fixed_points", problem)
    if "spiked tensor" in problem.kinds:
        return spiked_fixed_points(cast(SpikedTensor, problem), algorithm)
    problem = cast(Problem, problem)
    constant_rate(algorithm, "fixed points")
    if problem.signals == 0:
        fix = (
            "the search needs signals, which set the scale of its random starts. Use solve_ode up "
            "to long times."
        )
        raise checks.reject("signals", 0, fix)
    tries = checks.integer("tries", tries, 0, MOST_TRIES)
    unphysical = checks.flag("unphysical", unphysical)
    seed = checks.integer("seed", seed, 0)
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, above=0.0)
    start = None if starts is None else validate_start(problem, starts)
    if start is None and tries == 0:
        raise checks.reject("tries", tries, "give starts, or a number of tries above 0")
    is_sampled = bool(problem.structure.kinks) and expectation_of(problem.structure).drift_sampled
    limit = tolerance or (KINKED_TOLERANCE if is_sampled else TOLERANCE)
    rows, heads = draw_rows(problem, start, tries, seed)
    descents = tries // 4 + (0 if start is None else start.runs)
    # The search tries rows that overflow. Their drift is not finite, so that they are rejected.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        system, roots = find_roots(problem, algorithm, rows, heads, descents, limit)
        if len(roots.coordinates):
            return classify_roots(system, roots, limit, unphysical)
    warnings.warn(
        f"none of {len(heads)} starts led to a fixed point with a drift below {limit:.0e}. "
        "Increase tries.",
        stacklevel=3,
    )
    return []
