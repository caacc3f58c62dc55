"""Where wide networks start: particles (m, q, a), given or drawn with the law of random rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.resources import check_memory
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import check_scale
from sgdynamics.problems.starts import (
    MOST_DIMENSION,
    RESULT_TOLERANCE,
    TOLERANCE,
    Start,
    checked_kind,
    validate_start,
)


@dataclass(frozen=True)
class MeanFieldStart:
    """Particles of one or more runs: M (run, unit, signal), q = |w_perp|^2 (run, unit), head a (run, unit)."""

    M: np.ndarray
    q: np.ndarray
    a: np.ndarray

    def __post_init__(self) -> None:
        M, q, a = (
            checks.real_array(name, getattr(self, name), "give an array of numbers")
            for name in ("M", "q", "a")
        )
        if (
            M.ndim != 3
            or q.ndim != 2
            or M.shape[:2] != q.shape
            or a.shape != q.shape
            or 0 in M.shape
        ):
            raise ValueError(
                f"M has shape {M.shape}, q {q.shape} and a {a.shape}: give (runs, units, signals), (runs, units) and (runs, units), one "
                "run at least; sgd.start makes them from M, q and a"
            )
        for name, value in (("M", M), ("q", q), ("a", a)):
            object.__setattr__(self, name, value)

    @property
    def runs(self) -> int:
        return self.a.shape[0]


def mean_field_start(
    problem: Problem,
    *,
    M: ArrayArgument | None,
    q: ArrayArgument | None,
    a: ArrayArgument | None = None,
) -> MeanFieldStart:
    """Particles from M (units x signals), q (units: the squared length orthogonal to the signals) and the head a (ones unless given).

    The rows have Q = M P^-1 M^T + diag(q); a leading axis stands for runs. On the sphere m P^-1 m + q must be 1.
    """
    check_wide_problem(problem)
    p, k = problem.width, problem.signals
    parts = {
        "M": (M, (p, k), "units x signals"),
        "q": (q, (p,), "units"),
        "a": (np.ones(p) if a is None else a, (p,), "units"),
    }
    found = {}
    for name, (value, shape, meaning) in parts.items():
        given = checks.real_array(name, value, f"give numbers of shape {shape} ({meaning})")
        full = given if given.ndim > len(shape) else given[None]
        found[name] = checks.array(
            name, full, (full.shape[0], *shape), f"runs x {meaning}, or {meaning}"
        )
    runs = max(value.shape[0] for value in found.values())
    if any(value.shape[0] not in (1, runs) for value in found.values()):
        counts = ", ".join(f"{name} has {value.shape[0]}" for name, value in found.items())
        raise ValueError(f"{counts} runs: give the same number, or one")
    result = MeanFieldStart(
        *(
            np.broadcast_to(found[name], (runs, *found[name].shape[1:])).copy()
            for name in ("M", "q", "a")
        )
    )
    _frame_rows(problem, result, TOLERANCE)
    return result


def mean_field_random_start(
    problem: Problem,
    *,
    dimension: int,
    seed: int = 0,
    runs: int = 1,
    scale: float = 1.0,
    sampling: str = "independent",
) -> MeanFieldStart:
    """Particles with the law of random rows, for ``solve_mean_field``.

    ::

        t ~ N(0, scale^2 I_k/d),   q ~ scale^2 chi2_{d-k}/d

    Parameters
    ----------
    problem : Problem
        A wide network: its width is the number of particles.
    dimension : int
        The dimension d of the rows, more than the signals; there is no condition on d and p.
    seed : int, default 0
        Of the random numbers.
    runs : int, default 1
        How many sets of particles. Run i does not depend on how many there are.
    scale : float, default 1.0
        Rows are N(0, scale^2 I/d); on the sphere they are uniform: leave it at 1.
    sampling : str, default "independent"
        "independent" draws them, so p particles stand for the law to 1/sqrt(p); "sobol" spreads them evenly (scrambled Sobol points), to
        about 1/p.

    Returns
    -------
    MeanFieldStart
        M, q and heads of ones.

    Raises
    ------
    ValueError
        If an argument is refused.

    Examples
    --------
    >>> begin = sgd.mean_field_random_start(sgd.TeacherStudent(width=64, activation="erf"), dimension=200)
    >>> begin.M.shape, begin.q.shape
    ((1, 64, 1), (1, 64))
    """
    check_wide_problem(problem)
    p, k = problem.width, problem.signals
    d = checks.integer("dimension", dimension, k + 1, MOST_DIMENSION)
    runs = checks.integer("runs", runs, 1)
    seed = checks.integer("seed", seed, 0)
    scale = checks.number("scale", scale, above=0.0)
    checks.choice("sampling", sampling, ("independent", "sobol"))
    if problem.structure.constraint.fixes_norms and scale != 1.0:
        raise checks.reject(
            "scale", scale, "constraint='sphere' fixes the norm of the rows: leave scale at 1"
        )
    check_memory(
        "runs" if runs > 1 else "width",
        runs if runs > 1 else p,
        64.0 * runs * p * (k + 2),
        "the particles",
        "take fewer",
    )
    T, q = np.empty((runs, p, k)), np.empty((runs, p))
    for run in range(runs):
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        if sampling == "independent":
            T[run], q[run] = generator.standard_normal((p, k)), generator.chisquare(d - k, p)
            continue
        from scipy import stats  # here: its import takes as long as a small solution

        points = stats.qmc.Sobol(k + 1, scramble=True, rng=generator).random_base2(
            math.ceil(math.log2(max(p, 2)))
        )[:p]
        # every other particle is then the first half of the sequence, an even spread too: what error_particles leaves out
        points = points[np.argsort(np.argsort(np.arange(p) % 2, kind="stable"), kind="stable")]
        T[run], q[run] = special.ndtri(points[:, :k]), stats.chi2.ppf(points[:, k], d - k)
    with np.errstate(over="ignore"):
        T, q = T * (scale / math.sqrt(d)), q * scale * scale / d
        lengths = np.sum(T**2, axis=-1) + q
    check_scale(scale, T, q, lengths)
    if problem.structure.constraint.fixes_norms:
        norm2 = np.sum(T**2, axis=-1) + q
        T, q = T / np.sqrt(norm2)[..., None], q / norm2
    return MeanFieldStart(T @ problem.parameters["frame"][0].T, q, np.ones((runs, p)))


def check_wide_problem(problem: Any) -> None:
    """Refuse what has no mean-field limit here."""
    checked_kind(problem)
    if not getattr(getattr(problem, "structure", None), "has_excess", False):
        raise checks.reject(
            "problem",
            problem,
            "wide networks are solved for TeacherStudent and MultiIndex with loss='squared'",
        )
    if problem.structure.blocks > 1:
        raise checks.reject(
            "covariance",
            problem.covariance,
            "particles are (m, q, a) for inputs of one variance: leave covariance out",
        )


def _frame_rows(problem: Problem, begin: MeanFieldStart, tolerance: float) -> np.ndarray:
    """t of each particle, M = t C^T; refuse overlaps that no rows have."""
    for name in ("M", "q", "a"):
        if not np.all(np.isfinite(getattr(begin, name))):
            raise ValueError(
                f"start has entries of {name} that are not finite: give finite numbers"
            )
    frame = problem.parameters["frame"][0]
    T = begin.M @ np.linalg.pinv(frame, rcond=1e-12).T
    if np.abs(T @ frame.T - begin.M).max() > tolerance * max(1.0, np.abs(begin.M).max()):
        raise ValueError(
            "M has overlaps that no row can have: the signals are dependent, and M does not respect that"
        )
    if begin.q.min() < 0:
        raise checks.reject(
            "q",
            float(begin.q.min()),
            "it is the squared length orthogonal to the signals: give 0 or more",
        )
    norm2 = np.sum(T**2, axis=-1) + begin.q
    if norm2.min() <= 0:
        raise checks.reject(
            "q",
            float(begin.q.min()),
            "a row of length 0 does not move as a particle does: give M or q other than 0",
        )
    worst = problem.structure.constraint.norm_error(norm2)
    if worst > tolerance:
        raise ValueError(
            f"rows have squared norms {worst:.3g} away from 1, but constraint='sphere': divide M by their norm and q by its square"
        )
    return T


def particles(
    problem: Problem, start: Start | MeanFieldStart
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """T, q, a of a start; of one with a full Q, q is the diagonal of Q - M P^-1 M^T."""
    if isinstance(start, Start):
        begin = validate_start(problem, start)
        T = begin.M @ np.linalg.pinv(problem.parameters["frame"][0], rcond=1e-12).T
        rest = np.einsum("rii->ri", begin.Q) - np.sum(T**2, axis=-1)
        start = MeanFieldStart(
            begin.M, np.where(np.abs(rest) < TOLERANCE, np.maximum(rest, 0.0), rest), begin.a
        )
    if not isinstance(start, MeanFieldStart):
        raise checks.reject(
            "start",
            start,
            "give a start with M and q (or what sgd.start or sgd.random_start returns)",
        )
    if start.M.shape[1:] != (problem.width, problem.signals):
        raise ValueError(
            f"start was made for (width, signals) = {start.M.shape[1:]}, the problem has {(problem.width, problem.signals)}: "
            "make it from the same problem"
        )
    return _frame_rows(problem, start, RESULT_TOLERANCE), start.q, start.a
