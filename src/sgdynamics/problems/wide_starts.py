"""Initial conditions of wide networks: particles (M, q, a), stated or drawn like random rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.resources import check_memory
from sgdynamics.problems.overlap_starts import (
    RESULT_TOLERANCE,
    TOLERANCE,
    Start,
    validate_heads,
    validate_start,
)
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import check_scale
from sgdynamics.samples.spectra import MAX_DIMENSION

SAMPLINGS = ("independent", "sobol")


@dataclass(frozen=True)
class MeanFieldStart:
    """Particles of one or more runs: M (run, unit, signal), q (run, unit) and head a (run, unit).

    q = |w|^2 - m P^-1 m is the squared length of a row orthogonal to the signals.
    """

    M: np.ndarray
    q: np.ndarray
    a: np.ndarray

    def __post_init__(self) -> None:
        M, q, a = (
            checks.real_array(name, getattr(self, name), "give an array of numbers")
            for name in ("M", "q", "a")
        )
        fits = M.ndim == 3 and q.ndim == 2 and M.shape[:2] == q.shape == a.shape
        if not fits or 0 in M.shape:
            raise ValueError(
                f"M has shape {M.shape}, q {q.shape} and a {a.shape}: give (runs, units, signals), "
                "(runs, units) and (runs, units) with at least one run; sgd.start makes them from "
                "M, q and a"
            )
        for name, value in (("M", M), ("q", q), ("a", a)):
            object.__setattr__(self, name, value)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.a.shape[0]


def mean_field_start(
    problem: Problem,
    *,
    M: ArrayArgument | None,
    q: ArrayArgument | None,
    a: ArrayArgument | None = None,
) -> MeanFieldStart:
    """Return particles from M (units x signals), q (units) and the head a, which defaults to ones.

    The rows have Q = M P^-1 M^T + diag(q). A leading axis stands for runs. On the sphere
    m P^-1 m + q has to be 1.
    """
    check_wide_problem(problem)
    p, k = problem.width, problem.signals
    arguments = {
        "M": (M, (p, k), "units x signals"),
        "q": (q, (p,), "units"),
        "a": (np.ones(p) if a is None else a, (p,), "units"),
    }
    arrays = {}
    for name, (value, shape, meaning) in arguments.items():
        array = checks.real_array(name, value, f"give numbers of shape {shape} ({meaning})")
        array = array if array.ndim > len(shape) else array[None]
        expected = (array.shape[0], *shape)
        arrays[name] = checks.array(name, array, expected, f"runs x {meaning}, or {meaning}")
    runs = max(array.shape[0] for array in arrays.values())
    if any(array.shape[0] not in (1, runs) for array in arrays.values()):
        counts = ", ".join(f"{name} has {array.shape[0]}" for name, array in arrays.items())
        raise ValueError(f"{counts} runs: give the same number, or one run")
    start = MeanFieldStart(
        **{
            name: np.broadcast_to(array, (runs, *array.shape[1:])).copy()
            for name, array in arrays.items()
        }
    )
    _coordinates_along_signals(problem, start, TOLERANCE)
    return start


def draw_particles(
    problem: Problem,
    *,
    dimension: int | float | None,
    seed: int,
    runs: int,
    scale: float,
    a: ArrayArgument | None,
    sampling: str,
) -> MeanFieldStart:
    """Draw particles with the law of the rows w ~ N(0, scale^2 I/d), t = M P^(-1/2):

        t ~ N(0, scale^2 I_k/d),   q ~ scale^2 chi2_{d-k}/d

    On the sphere the rows are divided by their norm, which makes them uniform.
    """
    p, k = problem.width, problem.signals
    d = checks.integer("dimension", dimension, k + 1, MAX_DIMENSION)
    constraint = problem.structure.constraint
    argument, count = ("runs", runs) if runs > 1 else ("width", p)
    check_memory(argument, count, 64.0 * runs * p * (k + 2), "the particles", f"reduce {argument}")
    T, q = np.empty((runs, p, k)), np.empty((runs, p))
    for run in range(runs):
        # every run has its own stream, so that it does not depend on the number of runs
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        draw = _draw_independent if sampling == "independent" else _draw_sobol
        T[run], q[run] = draw(generator, p, k, d - k)
    with np.errstate(over="ignore"):
        T, q = T * (scale / math.sqrt(d)), q * scale * scale / d
        squared_norms = np.sum(T**2, axis=-1) + q
    check_scale(scale, T, q, squared_norms)
    if constraint.fixes_norms:
        T, q = T / np.sqrt(squared_norms)[..., None], q / squared_norms
    return MeanFieldStart(T @ problem.parameters["frame"][0].T, q, validate_heads(a, runs, p))


def _draw_independent(
    generator: np.random.Generator, p: int, k: int, degrees: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw p independent particles: k standard normals and one chi-squared variable each."""
    return generator.standard_normal((p, k)), generator.chisquare(degrees, p)


def _draw_sobol(
    generator: np.random.Generator, p: int, k: int, degrees: int
) -> tuple[np.ndarray, np.ndarray]:
    """Map scrambled Sobol points to the law of the particles, so that they cover it evenly."""
    from scipy import stats  # imported here: it takes as long as a small solution

    sobol = stats.qmc.Sobol(k + 1, scramble=True, rng=generator)
    points = sobol.random_base2(math.ceil(math.log2(max(p, 2))))[:p]
    # Even particles are the first half of the sequence, which covers the law evenly too:
    # solve_mean_field estimates its error from every other particle.
    points = points[np.argsort(np.argsort(np.arange(p) % 2, kind="stable"), kind="stable")]
    return special.ndtri(points[:, :k]), stats.chi2.ppf(points[:, k], degrees)


def check_wide_problem(problem: object) -> None:
    """Raise ValueError for problems without a mean-field limit in (M, q, a)."""
    if not isinstance(problem, Problem) or not problem.structure.has_excess:
        raise checks.reject(
            "problem",
            problem,
            "wide networks are solved for TeacherStudent and MultiIndex with loss='squared'",
        )
    if problem.structure.blocks > 1:
        raise checks.reject(
            "covariance",
            problem.covariance,
            "particles (M, q, a) describe inputs of one variance. Omit covariance.",
        )


def _coordinates_along_signals(
    problem: Problem, start: MeanFieldStart, tolerance: float
) -> np.ndarray:
    """Return T of each particle, M = T C^T with C C^T = P, if rows with these overlaps exist."""
    for name in ("M", "q", "a"):
        if not np.all(np.isfinite(getattr(start, name))):
            raise ValueError(
                f"start has entries of {name} that are not finite: give finite numbers"
            )
    frame = problem.parameters["frame"][0]
    T = start.M @ np.linalg.pinv(frame, rcond=1e-12).T
    if np.abs(T @ frame.T - start.M).max() > tolerance * max(1.0, np.abs(start.M).max()):
        raise ValueError(
            "M has overlaps that no row can have: the signals are linearly dependent, and M does "
            "not satisfy the same dependence. Give rows of M in the row space of P."
        )
    smallest = float(start.q.min())
    if smallest < 0:
        raise checks.reject(
            "q", smallest, "q is the squared length orthogonal to the signals. Give 0 or more."
        )
    squared_norms = np.sum(T**2, axis=-1) + start.q
    if squared_norms.min() <= 0:
        raise checks.reject(
            "q", smallest, "a row of length 0 has no direction. Give nonzero entries of M or q."
        )
    error = problem.structure.constraint.norm_error(squared_norms)
    if error > tolerance:
        raise ValueError(
            f"rows have squared norms {error:.3g} away from 1, but constraint='sphere': divide M "
            "by their norm and q by its square"
        )
    return T


def particles(
    problem: Problem, start: Start | MeanFieldStart
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return T, q and a of a start; with a full Q, q is the diagonal of Q - M P^-1 M^T."""
    if isinstance(start, Start):
        start = validate_start(problem, start)
        T = start.M @ np.linalg.pinv(problem.parameters["frame"][0], rcond=1e-12).T
        q = np.einsum("rii->ri", start.Q) - np.sum(T**2, axis=-1)
        # negative values within the tolerance are rounding
        q = np.where(np.abs(q) < TOLERANCE, np.maximum(q, 0.0), q)
        start = MeanFieldStart(start.M, q, start.a)
    if not isinstance(start, MeanFieldStart):
        raise checks.reject(
            "start",
            start,
            "give a start with M and q (or what sgd.start or sgd.random_start returns)",
        )
    expected = (problem.width, problem.signals)
    if start.M.shape[1:] != expected:
        raise ValueError(
            f"start was made for (width, signals) = {start.M.shape[1:]}, the problem has "
            f"{expected}: make it from the same problem"
        )
    return _coordinates_along_signals(problem, start, RESULT_TOLERANCE), start.q, start.a
