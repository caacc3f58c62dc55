"""`start` and `random_start`: initial conditions of any problem, given or drawn.

Random rows are drawn through their overlaps, with the exact law at dimension d and at a cost that
does not depend on d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, IntScalar, PyTree
from sgdynamics.base.resources import check_memory
from sgdynamics.problems.frames import check_dimension, signal_frames
from sgdynamics.problems.overlap_starts import Start as Start
from sgdynamics.problems.overlap_starts import start_from_overlaps, validate_head_or_top
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import (
    SpikedTensor,
    check_scale,
    spiked_random_start,
    spiked_start,
)
from sgdynamics.problems.tops import Top
from sgdynamics.problems.wide_starts import (
    SAMPLINGS,
    check_wide_problem,
    draw_particles,
    mean_field_start,
)
from sgdynamics.samples.input_covariance import trace
from sgdynamics.samples.spectra import UNITS


def start(
    problem: Problem | SpikedTensor,
    *,
    M: ArrayArgument | None = None,
    Q: ArrayArgument | None = None,
    a: ArrayArgument | None = None,
    q: ArrayArgument | None = None,
    m: ArrayArgument | None = None,
    r2: ArrayArgument | None = None,
    top: PyTree | None = None,
) -> Any:
    """Make an initial condition from overlaps.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        The learning problem, which determines the overlaps that a start has.
    M : array_like, optional
        Overlaps W W*^T of the rows with the signals, units x signals. Required, except for problems
        without signals and for spiked tensors.
    Q : array_like, optional
        The full Gram matrix W W^T of the rows, units x units. Required, except for wide networks
        and spiked tensors.
    a : array_like, optional
        The head, one number per unit (or runs x units). Defaults to ones. If every context has its
        own head, contexts x units.
    q : array_like, optional
        Replaces Q for wide networks (``solve_mean_field``): the diagonal of Q - M P^-1 M^T, one
        number per unit.
    m : float or array_like, optional
        Overlap <x, v> of a spiked tensor.
    r2 : float or array_like, optional
        Squared length of x orthogonal to v of a spiked tensor, 0 or more.
    top : pytree of array_like, optional
        Numbers on top of the rows, for a problem with ``top``: arrays of its shapes, each with or
        without an axis of runs. Required for such a problem, in place of ``a``.

    Returns
    -------
    Start, MeanFieldStart or SpikedStart
        Initial condition for the solvers of this problem.

    Raises
    ------
    ValueError
        If overlaps are missing, or no rows have them: Omega = [[Q, M], [M^T, P]] has to be positive
        semi-definite to 1e-9 in every block, and on the sphere Q_ii has to be 1.

    Notes
    -----
    A leading axis of any length stands for runs. With several covariance blocks, M and Q may have a
    block axis before the unit axis; without it the rows are spread over the blocks by their
    fractions, as random directions are.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2)).a.tolist()
    [[1.0, 1.0]]
    >>> sgd.start(sgd.SpikedTensor(), m=[0.1, 0.2], r2=1.0).runs
    2
    """
    if isinstance(problem, SpikedTensor):
        unused = {"M": M, "Q": Q, "q": q, "a": a, "top": top}
        _check_names(problem.kind, {"m": m, "r2": r2}, unused)
        return spiked_start(problem, m=m, r2=r2)
    if not isinstance(problem, Problem):
        raise checks.reject(
            "problem",
            problem,
            "give sgd.TeacherStudent(...), sgd.GaussianMixture(...), or another problem",
        )
    if M is None and problem.signals == 0:
        M = np.zeros((problem.width, 0))
    if q is not None:
        unused = {"m": m, "r2": r2, "Q": Q, "top": top}
        _check_names(problem.kind, {"M": M, "q": q}, unused, " and perhaps a")
        return mean_field_start(problem, M=M, q=q, a=a)
    _check_names(problem.kind, {"M": M, "Q": Q}, {"m": m, "r2": r2}, " and perhaps a")
    return start_from_overlaps(problem, M=M, Q=Q, a=a, top=top)  # type: ignore[arg-type]


def _check_names(
    kind: str, required: dict[str, object], unused: dict[str, object], optional: str = ""
) -> None:
    """Raise ValueError if a required argument is None, or an unused one is not None."""
    missing = [name for name, value in required.items() if value is None]
    extra = [name for name, value in unused.items() if value is not None]
    if missing or extra:
        reason = f"missing {', '.join(missing)}" if missing else f"received {', '.join(extra)}"
        raise ValueError(f"a start of {kind} takes {', '.join(required)}{optional}: {reason}")


def random_start(
    problem: Problem | SpikedTensor,
    *,
    dimension: float | None = None,
    seed: int = 0,
    runs: int = 1,
    scale: float = 1.0,
    orthogonal: bool = False,
    a: ArrayArgument | None = None,
    per: str = "dimension",
    wide: bool = False,
    sampling: str = "independent",
    top: PyTree | None = None,
    top_scale: float | Mapping[str, float] = 1.0,
) -> Any:
    """Draw overlaps of random rows, with their exact law at dimension d.

    The cost does not depend on d.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        The learning problem.
    dimension : int, optional
        The dimension d, at least signals + width (signals + 1 with ``wide=True``). A problem whose
        covariance is a ``sgd.Spectrum`` fixes it.
    seed : int, default 0
        Seed of the random number generator.
    runs : int, default 1
        Number of starts. Run i does not depend on the number of runs.
    scale : float, default 1.0
        Rows are N(0, scale^2 I/d), so that their norms are about ``scale``. On the sphere they are
        uniform, and ``scale`` has to be 1.
    orthogonal : bool, default False
        If True, rows are ``scale`` times orthonormal, uniform on the Stiefel manifold.
    a : array_like, optional
        The head, p numbers for all runs or runs x p. Defaults to ones, for mixtures to N(0, 1).
    per : str, default "dimension"
        D in coordinates N(0, scale^2/D): "dimension" is d, "trace" the trace of the inputs'
        covariance (fields then have the variance scale^2), "step" is 1, as in ``OnePassSGD``.
    wide : bool, default False
        If True, draw the particles (M, q, a) of ``solve_mean_field``, without the p x p matrix Q
        and for any width: t ~ N(0, scale^2 I_k/d) along the signals and q ~ scale^2 chi2_{d-k}/d.
    sampling : str, default "independent"
        Sampling of the particles with ``wide=True``: "independent" draws represent the law to
        1/sqrt(p), "sobol" takes scrambled Sobol points, which represent it to about 1/p.
    top : pytree of array_like, optional
        Numbers on top of the rows, for a problem with ``top``. Drawn by default.
    top_scale : float or dict, default 1.0
        Standard deviation of the drawn numbers on top, or one per leaf by name (1 for those that
        are left out): entries are N(0, top_scale^2).

    Returns
    -------
    Start, MeanFieldStart or SpikedStart
        Initial condition with ``runs`` runs.

    Raises
    ------
    ValueError
        If the dimension is too small for the rows and signals, or another argument is invalid.

    Notes
    -----
    Along the signals a row has independent N(0, scale^2/d) coordinates. The orthogonal part enters
    through its Gram matrix scale^2/d Wishart_p(d - K), which is drawn by its Bartlett factor.

    Examples
    --------
    >>> start = sgd.random_start(sgd.TeacherStudent(width=2), dimension=1000, runs=3)
    >>> start.Q.shape, bool(abs(start.M).max() < 0.2)
    ((3, 2, 2), True)
    >>> network = sgd.TeacherStudent(width=64, activation="erf")
    >>> sgd.random_start(network, dimension=200, wide=True).q.shape
    (1, 64)
    """
    orthogonal = checks.flag("orthogonal", orthogonal)
    wide = checks.flag("wide", wide)
    sampling = checks.choice("sampling", sampling, SAMPLINGS)
    if sampling != "independent" and not wide:
        raise checks.reject("sampling", sampling, "only used together with wide=True")
    if isinstance(problem, SpikedTensor):
        unused = {"orthogonal": orthogonal or None, "a": a, "wide": wide or None}
        for name, value in unused.items():
            if value is not None:
                raise checks.reject(
                    name,
                    value,
                    f"a spiked tensor has one vector, no rows and no head. Omit {name}.",
                )
        checks.choice("per", per, ("dimension",))
        dimension = checks.integer("dimension", dimension, 1)
        return spiked_random_start(problem, dimension=dimension, seed=seed, runs=runs, scale=scale)
    if wide:
        check_wide_problem(problem)
    else:
        d, sizes = check_dimension(problem, dimension, small=True)
    runs = checks.integer("runs", runs, 1)
    seed = checks.integer("seed", seed, 0)
    scale = checks.number("scale", scale, above=0.0)
    if problem.structure.constraint.fixes_norms and scale != 1.0:
        raise checks.reject(
            "scale", scale, "constraint='sphere' fixes the norm of the rows: leave scale at 1"
        )
    if wide:
        if orthogonal:
            raise checks.reject("orthogonal", orthogonal, "particles are independent. Omit it.")
        checks.choice("per", per, ("dimension",))
        return draw_particles(
            problem, dimension=dimension, seed=seed, runs=runs, scale=scale, a=a, sampling=sampling
        )
    p, k = problem.width, problem.signals
    large, fix = ("runs", runs), "give fewer runs"
    if runs == 1:
        large = ("width", p)
        fix = "take a smaller width, or wide=True for solve_mean_field, which has no p x p matrix"
    check_memory(*large, 8.0 * 4 * runs * len(sizes) * p * (p + k), "the overlaps", fix)
    if problem.structure.top is not None and top is None and a is None:
        head = _draw_tops(problem.structure.top, top_scale, runs, seed)
    else:
        head = validate_head_or_top(problem, a, top, runs)
    T, L = np.empty((runs, len(sizes), p, k)), np.empty((runs, len(sizes), p, p))
    for run in range(runs):
        # every run has its own stream, so that it does not depend on the number of runs
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        for block, size in enumerate(sizes.tolist()):
            T[run, block], L[run, block] = _draw_compressed_rows(generator, p, k, size)
        if problem.clusters and a is None:
            head[run] = generator.standard_normal(p)
    D = _coordinate_unit(problem, per, d)
    T *= scale / math.sqrt(D)
    L *= scale / math.sqrt(D)
    with np.errstate(over="ignore", invalid="ignore"):  # check_scale rejects what overflows
        Q = L @ np.swapaxes(L, -1, -2) + T @ np.swapaxes(T, -1, -2)
    check_scale(scale, T, Q, np.einsum("rbii->ri", Q))
    mixing = _mixing_matrices(problem, Q.sum(axis=1), scale, orthogonal)[:, None]
    T = mixing @ T
    Q = mixing @ Q @ np.swapaxes(mixing, -1, -2)
    Q = (Q + np.swapaxes(Q, -1, -2)) / 2
    M = T @ np.swapaxes(signal_frames(problem, sizes), -1, -2)
    return Start(M, Q, head)


def _draw_tops(top: Top, scale: float | Mapping[str, float], runs: int, seed: int) -> np.ndarray:
    """Draw numbers on top (runs, entries), from streams of their own."""
    scales = dict.fromkeys(top.names, scale) if not isinstance(scale, Mapping) else dict(scale)
    checked = {
        name: checks.number(f"top_scale[{name!r}]", value, 0.0) for name, value in scales.items()
    }
    deviations = top.expand("top_scale", checked, 1.0)
    generators = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run, 1)))
        for run in range(runs)
    ]
    normals = [generator.standard_normal(top.size) for generator in generators]
    return deviations * np.stack(normals)


def _draw_compressed_rows(
    generator: np.random.Generator, p: int, k: int, size: IntScalar
) -> tuple[np.ndarray, np.ndarray]:
    """Draw [T | L] of p standard normal rows in a block of `size` coordinates.

    T are the coordinates along the signals. L is the Bartlett factor of Wishart_p(size - k): a
    lower-triangular matrix with standard normals below and chi variables on the diagonal.
    """
    if size < p + k:  # a small block: the columns are the coordinates themselves
        rows = np.pad(generator.standard_normal((p, size)), ((0, 0), (0, p + k - int(size))))
        return rows[:, :k], rows[:, k:]
    T, L = generator.standard_normal((p, k)), np.zeros((p, p))
    below = np.tril_indices(p, -1)
    L[below] = generator.standard_normal(len(below[0]))
    L[np.diag_indices(p)] = np.sqrt(generator.chisquare(size - k - np.arange(p)))
    return T, L


def _mixing_matrices(
    problem: Problem, gram: np.ndarray, scale: float, orthogonal: bool
) -> np.ndarray:
    """Return A (runs, p, p) such that the rows A W, with W W^T = `gram`, have the required norms.

    A = scale (W W^T)^(-1/2) makes rows orthonormal, and uniform on the Stiefel manifold.
    """
    runs, p = gram.shape[:2]
    if orthogonal:
        values, vectors = np.linalg.eigh(gram)
        return scale * (vectors / np.sqrt(values)[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    if problem.structure.constraint.fixes_norms:
        return np.eye(p) / np.sqrt(np.einsum("rii->ri", gram))[:, :, None]
    return np.broadcast_to(np.eye(p), (runs, p, p))


def _coordinate_unit(problem: Problem, per: str, d: int) -> float:
    """Return D in the variance scale^2/D of a random coordinate."""
    checks.choice("per", per, UNITS)
    if per == "dimension" and problem.spectrum is not None and problem.spectrum.infinite:
        raise checks.reject("per", per, 'the dimension is infinite. Use per="trace" or per="step".')
    return {"dimension": float(d), "trace": d * float(trace(problem.parameters)), "step": 1.0}[per]
