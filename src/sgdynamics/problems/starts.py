"""Where a run starts: overlaps M = W W*^T, Q = W W^T and the head a, given or drawn with their exact law at dimension d."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.resources import check_memory
from sgdynamics.base.support import require
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import (
    SpikedTensor,
    check_scale,
    spiked_random_start,
    spiked_start,
)
from sgdynamics.problems.trial import try_start
from sgdynamics.samples.input_covariance import coordinate_spreads, trace
from sgdynamics.samples.sample import Place
from sgdynamics.samples.spectra import MOST_DIMENSION, UNITS

TOLERANCE = (
    1e-9  # how far from positive semi-definite, or from norm 1 on the sphere, a start may be
)
RESULT_TOLERANCE = (
    1e-6  # the same for a start that this library made: an integrator's error is not the user's
)


@dataclass(frozen=True, eq=False)
class AuxiliaryState:
    """What an update kept beside the weights of a run: overlaps of all its sets of rows (weights first), scalars and squares."""

    names: tuple[tuple[str, ...], ...]  # of the sets, the scalars and the squares
    M: np.ndarray  # (run, block, row, signal)
    Q: np.ndarray
    a: np.ndarray
    scalars: np.ndarray  # (run, scalar)
    squares: np.ndarray  # (run, set, unit)

    def repeated(self, runs: int) -> AuxiliaryState:
        return AuxiliaryState(
            self.names,
            *(
                np.repeat(part, runs, axis=0)
                for part in (self.M, self.Q, self.a, self.scalars, self.squares)
            ),
        )


@dataclass(frozen=True)
class Start:
    """Where one or more runs start: overlaps and head.

    Made by ``sgd.start``, ``sgd.random_start``, ``sgd.start_from`` or ``sgd.overlaps_of``.

    Parameters
    ----------
    M_blocks : ndarray
        Overlaps of the rows with the signals in each covariance block, (run, block, unit, signal).
    Q_blocks : ndarray
        Gram matrices of the rows in each block, (run, block, unit, unit).
    a : ndarray
        The heads, (run, unit); where contexts have heads of their own, side by side.
    beside : Beside, optional
        What an update kept beside the weights (velocities, averages, scalars), where ``sgd.start_from`` found it in a result.

    Raises
    ------
    ValueError
        If the shapes do not fit each other.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> begin.runs, begin.M.shape, begin.Q.shape
    (1, (1, 2, 1), (1, 2, 2))
    """

    M_blocks: np.ndarray
    Q_blocks: np.ndarray
    a: np.ndarray
    beside: AuxiliaryState | None = None

    def __post_init__(self) -> None:
        fix = "give an array of numbers; sgd.start makes a start from overlaps and checks them"
        M, Q, a = (
            checks.real_array(name, getattr(self, name), fix)
            for name in ("M_blocks", "Q_blocks", "a")
        )
        runs, p = (len(a), Q.shape[-1]) if a.ndim == 2 and Q.ndim == 4 else (-1, -1)
        fits = (
            M.ndim == 4
            and Q.ndim == 4
            and M.shape[:3] == (runs, Q.shape[1], p)
            and Q.shape == (runs, Q.shape[1], p, p)
        )
        fits = fits and a.shape[1] > 0 and a.shape[1] % p == 0
        if not fits or 0 in M.shape[:3]:
            raise ValueError(
                f"M_blocks has shape {M.shape}, Q_blocks {Q.shape} and a {a.shape}: give (runs, blocks, units, signals), "
                "(runs, blocks, units, units) and (runs, units), one run at least; sgd.start makes them from M, Q and a"
            )
        for name, value in (("M_blocks", M), ("Q_blocks", Q), ("a", a)):
            object.__setattr__(self, name, value)

    @property
    def runs(self) -> int:
        """How many runs."""
        return self.a.shape[0]

    @property
    def M(self) -> np.ndarray:
        """Overlaps of the full rows with the signals, (run, unit, signal)."""
        return self.M_blocks.sum(axis=1)

    @property
    def Q(self) -> np.ndarray:
        """Gram matrix of the full rows, (run, unit, unit)."""
        return self.Q_blocks.sum(axis=1)


def start(
    problem: Problem | SpikedTensor,
    *,
    M: ArrayArgument | None = None,
    Q: ArrayArgument | None = None,
    a: ArrayArgument | None = None,
    q: ArrayArgument | None = None,
    m: ArrayArgument | None = None,
    r2: ArrayArgument | None = None,
) -> Any:
    """A start from overlaps that are given.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        What is learned: it says which overlaps a start has.
    M : array_like, optional
        Overlaps W W*^T of the rows with the signals, units x signals. Needed, except for problems without
        signals and for spiked tensors.
    Q : array_like, optional
        The full Gram matrix W W^T of the rows, units x units. Needed, except for wide networks and spiked tensors.
    a : array_like, optional
        The head, one number a unit (or runs x units); ones unless given. Contexts with heads of their own: contexts x units.
    q : array_like, optional
        Wide networks (``solve_mean_field``) take this in place of Q: the diagonal of Q - M P^-1 M^T, one number a unit.
    m : float or array_like, optional
        Spiked tensors: the overlap <x, v>.
    r2 : float or array_like, optional
        Spiked tensors: the squared length of x orthogonal to v, 0 or more.

    Returns
    -------
    Start, MeanFieldStart or SpikedStart
        For every solver of that problem.

    Raises
    ------
    ValueError
        If overlaps are missing, or are none: Omega = [[Q, M], [M^T, P]] has to be positive semi-definite to 1e-9 in every block, and on the
        sphere Q_ii has to be 1.

    Notes
    -----
    A leading axis of any length stands for runs. With several covariance blocks, M and Q may have a block axis before the
    unit axis; without it the rows are spread over the blocks by their fractions, as random directions are.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> begin.a.tolist()
    [[1.0, 1.0]]
    >>> sgd.start(sgd.SpikedTensor(), m=[0.1, 0.2], r2=1.0).runs
    2
    """
    checked_kind(problem)
    spiked = isinstance(problem, SpikedTensor)
    wide = q is not None
    if not spiked and M is None and problem.signals == 0:
        M = np.zeros((problem.width, 0))
    wanted = {"m": m, "r2": r2} if spiked else {"M": M, "q" if wide else "Q": q if wide else Q}
    others = (
        {"M": M, "Q": Q, "q": q, "a": a}
        if spiked
        else {"m": m, "r2": r2, **({"Q": Q} if wide else {})}
    )
    missing = [name for name, value in wanted.items() if value is None]
    extra = [name for name, value in others.items() if value is not None]
    if missing or extra:
        shown = f"missing {', '.join(missing)}" if missing else f"received {', '.join(extra)}"
        raise ValueError(
            f"a start of {problem.kind} takes {', '.join(wanted)}{'' if spiked else ' and perhaps a'}: {shown}"
        )
    if isinstance(problem, SpikedTensor):
        return spiked_start(problem, m=m, r2=r2)
    if wide:
        # here, because wide starts are checked by this module
        from sgdynamics.problems.wide_starts import mean_field_start

        return mean_field_start(problem, M=M, q=q, a=a)
    p, k, blocks = problem.width, problem.signals, problem.structure.blocks
    full_M = _with_blocks("M", M, problem, (p, k), "units x signals")
    full_Q = _with_blocks("Q", Q, problem, (p, p), "units x units")
    if full_M.shape[0] != full_Q.shape[0] and 1 not in (full_M.shape[0], full_Q.shape[0]):
        raise ValueError(
            f"M has {full_M.shape[0]} runs and Q has {full_Q.shape[0]}: give the same number, or one"
        )
    runs = max(full_M.shape[0], full_Q.shape[0])
    full_M = np.broadcast_to(full_M, (runs, blocks, p, k)).copy()
    full_Q = np.broadcast_to(full_Q, (runs, blocks, p, p)).copy()
    heads = problem.structure.heads
    head = np.ones((runs, heads, p) if heads > 1 else (runs, p)) if a is None else a
    result = Start(full_M, full_Q, _head(head, runs, p, heads))
    _accept(problem, result, TOLERANCE)
    return result


def _head(value: ArrayArgument, runs: int, p: int, heads: int = 1) -> np.ndarray:
    """The head of every run, from one for all or one a run; several heads side by side."""
    if heads > 1:
        given = checks.real_array(
            "a", value, f"give {heads} x {p} numbers, a head for each context"
        )
        lead = (runs,) if given.ndim > 2 else ()
        given = checks.array("a", given, (*lead, heads, p), "contexts x units")
        return np.broadcast_to(given.reshape(*lead, -1), (runs, heads * p)).copy()
    given = checks.real_array("a", value, f"give {p} numbers, one a unit, or {runs} x {p}")
    if given.ndim <= 1:
        return np.broadcast_to(
            checks.array("a", given, (p,), "one number a unit"), (runs, p)
        ).copy()
    return checks.array("a", given, (runs, p), "runs x units")


def checked_kind(problem: object) -> str:
    """The kind of a problem; refuse what is none."""
    if not isinstance(problem, (Problem, SpikedTensor)):
        raise checks.reject(
            "problem",
            problem,
            "give sgd.TeacherStudent(...), sgd.GaussianMixture(...), or another problem",
        )
    return problem.kind


def _accept(problem: Problem, begin: Start, tolerance: float) -> None:
    """Refuse what is not a Gram matrix, or not on the sphere where it must be, and functions that are not finite there."""
    for name in ("M", "Q", "a"):
        if not np.all(np.isfinite(getattr(begin, name))):
            raise ValueError(
                f"start has entries of {name} that are not finite: give finite overlaps and head"
            )
    try:
        checks.gram_matrix(
            "Omega = [[Q, M], [M^T, P]]",
            overlap_matrix(begin.M_blocks, begin.Q_blocks, problem.gram),
            tolerance,
        )
    except ValueError:
        checks.gram_matrix("Q", begin.Q_blocks, tolerance)
        raise
    worst = problem.structure.constraint.norm_error(np.einsum("rii->ri", begin.Q))
    if worst > tolerance:
        raise ValueError(
            f"Q has diagonal entries {worst:.3g} away from 1, but constraint='sphere' keeps rows of norm 1: "
            "divide M by sqrt(Q_ii) and Q by sqrt(Q_ii Q_jj)"
        )
    try_start(problem, begin.M_blocks, begin.Q_blocks, begin.a)


def validate_start(problem: Problem, begin: Start) -> Start:
    """A start as an argument: refuse what is none, or belongs to a problem of another shape, teacher or constraint."""
    require("functional", problem)
    if not isinstance(begin, Start):
        raise checks.reject(
            "start", begin, "give what sgd.start, sgd.random_start or sgd.start_from returns"
        )
    expected = (problem.structure.blocks, problem.width, problem.signals)
    if begin.M_blocks.shape[1:] != expected:
        raise ValueError(
            f"start was made for (blocks, width, signals) = {begin.M_blocks.shape[1:]}, the problem has {expected}: "
            "make it from the same problem"
        )
    if begin.a.shape[1] != problem.structure.head_size:
        fix = f"the problem has {problem.structure.heads} heads of {problem.width}: make the start from the same problem"
        raise checks.reject("start", begin.a.shape, fix)
    _accept(problem, begin, RESULT_TOLERANCE)
    return begin


def broadcast_runs(begin: Any, runs: int | None) -> Any:
    """A start (of any kind) of one run serves any number of runs, one of n runs serves n."""
    if runs is None:
        return begin
    runs = checks.integer("runs", runs, 1)
    if begin.runs == runs:
        return begin
    if begin.runs != 1:
        raise checks.reject(
            "runs",
            runs,
            f"the start has {begin.runs} runs: leave runs out, or give {begin.runs} or a start of one",
        )
    parts = {part.name: getattr(begin, part.name) for part in fields(begin)}
    beside = parts.pop("beside", None)
    check_memory(
        "runs",
        runs,
        4.0 * runs * sum(part.nbytes for part in parts.values()),
        "the overlaps",
        "give fewer runs",
    )
    found = type(begin)(**{name: np.repeat(part, runs, axis=0) for name, part in parts.items()})
    return found if beside is None else replace(found, beside=beside.repeated(runs))


def overlap_matrix(M: np.ndarray, Q: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Omega = [[Q, M], [M^T, P]], block by block."""
    P = np.broadcast_to(gram, (*M.shape[:-2], *gram.shape[-2:]))
    upper = np.concatenate([Q, M], axis=-1)
    lower = np.concatenate([np.swapaxes(M, -1, -2), P], axis=-1)
    return np.concatenate([upper, lower], axis=-2)


def _with_blocks(
    name: str, value: object, problem: Problem, shape: tuple[int, int], meaning: str
) -> np.ndarray:
    """Give overlaps their run and block axes."""
    blocks = problem.structure.blocks
    result = checks.real_array(name, value, f"give numbers of shape {shape} ({meaning})")
    fractions = problem.parameters["fractions"][:, None, None]
    if result.shape[-2:] != shape or result.ndim > 4 or 0 in result.shape[:-2]:
        raise ValueError(
            f"{name} has shape {result.shape}: give {shape} ({meaning}), with a leading run axis if you like"
            + (f", and a block axis of {blocks} before the units" if blocks > 1 else "")
        )
    if result.ndim == 2:
        result = (fractions * result)[None]
    elif result.ndim == 3 and blocks > 1 and result.shape[0] == blocks:
        result = result[None]
    elif result.ndim == 3:
        result = fractions * result[:, None]
    return checks.array(
        name, result, (result.shape[0], blocks, *shape), f"runs x blocks x {meaning}"
    )


def check_dimension(
    problem: Problem, dimension: int | float | None, small: bool = False
) -> tuple[int, np.ndarray]:
    """The dimension and its split over the blocks; d >= signals + width in each, or one at least where a question takes `small` blocks.

    A spectrum fixes it, and it may be left out. That of infinitely many directions counts those that stand for them.
    """
    require("functional", problem)
    spectrum = problem.spectrum
    if spectrum is not None and dimension is not None and dimension != spectrum.dimension:
        raise checks.reject(
            "dimension",
            dimension,
            f"the spectrum of the inputs has {spectrum.dimension:g}: leave dimension out",
        )
    if spectrum is not None:
        d = int(spectrum.multiplicities.sum())
    elif dimension is None:
        raise checks.reject(
            "dimension", dimension, "give the dimension d of the inputs, a whole number"
        )
    else:
        d = checks.integer("dimension", dimension, 1, MOST_DIMENSION)
    sizes = problem.block_dimensions(d)
    rows = problem.signals + problem.width
    least = 1 if small and len(sizes) > 1 else rows
    if sizes.min() < least:
        where = (
            ""
            if len(sizes) == 1
            else f" in each covariance block (the smallest of {sizes.tolist()} is too small)"
        )
        if spectrum is not None:
            fix = f"rows and signals need signals + width = {rows} coordinates in every block here, and one has {sizes.min()}"
            raise checks.reject(
                "covariance",
                spectrum,
                f"{fix}: put eigenvalues together, or take solve_ode or simulate",
            )
        needed = max(math.ceil(least / fraction) for fraction in problem.parameters["fractions"])
        what = (
            f"the rows and signals need signals + width = {rows} coordinates"
            if least == rows
            else "there must be a coordinate"
        )
        raise checks.reject("dimension", d, f"{what}{where}: take {needed} or more")
    return d, sizes


def _small(
    problem: Problem, sizes: np.ndarray | None, rows: int | None = None
) -> list[tuple[int, int]]:
    """The blocks with fewer coordinates than signals and rows, and how many: there these are written in the coordinates themselves."""
    every = () if sizes is None else enumerate(sizes.tolist())
    return [
        (block, size) for block, size in every if size < problem.signals + (rows or problem.width)
    ]


def frames(problem: Problem, sizes: np.ndarray | None) -> np.ndarray:
    """Coordinates C of the signals in each block, C C^T = P: (blocks, K, K). In a small block the columns that it lacks are 0."""
    result = problem.parameters["frame"].copy()
    for block, size in _small(problem, sizes):
        values, vectors = np.linalg.eigh(problem.gram[block])
        kept = values[::-1] > TOLERANCE * max(1.0, *values[-1:])
        if kept.sum() > size:
            raise checks.reject(
                "gram",
                problem.gram[block],
                f"block {block} has {size} coordinates, and the signals have rank {kept.sum()} there: give "
                "one Gram matrix a block, of no larger rank than it has coordinates, or a larger dimension",
            )
        result[block] = vectors[:, ::-1] * np.sqrt(np.where(kept, values[::-1], 0.0))
    return result


def factor(
    problem: Problem, begin: Any, sizes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The compressed rows [T | L] of a start, or of overlaps of more rows: M = T C^T with C C^T = P, and L L^T = Q - T T^T, by block.

    In a small block of n coordinates only the first n of these columns are in use, whatever their number along the signals.
    """
    M, Q = (begin.M_blocks, begin.Q_blocks) if isinstance(begin, Start) else (begin.M, begin.Q)
    frame, k, rows = frames(problem, sizes), problem.signals, M.shape[2]
    T = M @ np.swapaxes(np.linalg.pinv(frame, rcond=1e-12), -1, -2)
    rest = Q - T @ np.swapaxes(T, -1, -2)
    values, vectors = np.linalg.eigh((rest + np.swapaxes(rest, -1, -2)) / 2)
    # the start was accepted as positive semi-definite to 1e-9: what is below zero here is that rounding
    L = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    for block, size in _small(problem, sizes, rows):
        along = int(np.count_nonzero(frame[block].any(axis=0)))
        free = min(size - along, rows)
        lost = values[:, block, : rows - free]
        if lost.max(initial=0.0) > RESULT_TOLERANCE * max(1.0, float(values[:, block].max())):
            raise ValueError(
                f"start has overlaps of rank {along + free + 1} or more in block {block}, which has {size} coordinates: give M and Q "
                "block by block with no larger rank, as sgd.random_start(..., dimension=) does; solve_ode knows no coordinates there"
            )
        there = np.concatenate([T[:, block, :, :along], L[:, block, :, ::-1][..., :free]], axis=-1)
        there = np.pad(there, ((0, 0), (0, 0), (0, k + rows - there.shape[-1])))
        T[:, block], L[:, block] = there[..., :k], there[..., k:]
    return T, L


def placed(problem: Problem, sizes: np.ndarray) -> Place:
    """The signals along the first axes of each covariance block of d coordinates: any other place is a rotation of this one."""
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    there = np.arange(problem.signals) < sizes[:, None]  # a small block has fewer
    axes = (first[:, None] + np.arange(problem.signals))[there]
    signals = np.moveaxis(frames(problem, sizes), 0, 1)[:, there]
    return Place(coordinate_spreads(problem.parameters, sizes), axes, signals)


def _unit(problem: Problem, per: str, d: int) -> float:
    """D in the variance of a random coordinate."""
    checks.choice("per", per, UNITS)
    if per == "dimension" and problem.spectrum is not None and problem.spectrum.infinite:
        raise checks.reject("per", per, 'the dimension is infinite: take per="trace" or per="step"')
    return {"dimension": float(d), "trace": d * float(trace(problem.parameters)), "step": 1.0}[per]


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
) -> Any:
    """Overlaps of random rows, with their exact law at dimension d and at a cost that does not depend on d.

    Parameters
    ----------
    problem : Problem or SpikedTensor
        What is learned.
    dimension : int, optional
        The dimension d, signals + width or more; a problem whose covariance is a ``sgd.Spectrum`` knows it.
    seed : int, default 0
        Of the random numbers.
    runs : int, default 1
        How many starts are drawn. Run i does not depend on how many there are.
    scale : float, default 1.0
        Rows are N(0, scale^2 I/d), so that their norms are about this; on the sphere they are uniform: leave it at 1.
    orthogonal : bool, default False
        Rows that are ``scale`` times orthonormal, uniform on the Stiefel manifold.
    a : array_like, optional
        The head, p numbers for all runs or runs x p; unless given ones, for mixtures N(0, 1).
    per : str, default "dimension"
        D in coordinates N(0, scale^2/D): "dimension" d, "trace" that of the inputs' covariance (fields then have the variance scale^2),
        "step" 1, as in ``OnePassSGD``.

    Returns
    -------
    Start or SpikedStart
        With ``runs`` runs.

    Raises
    ------
    ValueError
        If the dimension is too small for the rows and signals, or another argument is refused.

    Notes
    -----
    Along the signals a row has independent N(0, scale^2/d) coordinates; the rest enters through its Gram matrix,
    which is scale^2/d Wishart_p(d - K) and is drawn by its Bartlett factor.

    Examples
    --------
    >>> begin = sgd.random_start(sgd.TeacherStudent(width=2), dimension=1000, runs=3)
    >>> begin.Q.shape, bool(abs(begin.M).max() < 0.2)
    ((3, 2, 2), True)
    """
    orthogonal = checks.flag("orthogonal", orthogonal)
    if isinstance(problem, SpikedTensor):
        for name, value in (("orthogonal", orthogonal or None), ("a", a)):
            if value is not None:
                raise checks.reject(
                    name, value, "a spiked tensor has one vector, no rows and no head: leave it out"
                )
        checks.choice("per", per, ("dimension",))
        return spiked_random_start(
            problem,
            dimension=checks.integer("dimension", dimension, 1),
            seed=seed,
            runs=runs,
            scale=scale,
        )
    d, sizes = check_dimension(problem, dimension, small=True)
    runs = checks.integer("runs", runs, 1)
    seed = checks.integer("seed", seed, 0)
    scale = checks.number("scale", scale, above=0.0)
    p, k = problem.width, problem.signals
    if problem.structure.constraint.fixes_norms and scale != 1.0:
        raise checks.reject(
            "scale", scale, "constraint='sphere' fixes the norm of the rows: leave scale at 1"
        )
    narrower = "take a smaller width; solve_mean_field keeps no p x p matrix, for starts of mean_field_random_start"
    large, fix = (("runs", runs), "give fewer runs") if runs > 1 else (("width", p), narrower)
    check_memory(*large, 8.0 * 4 * runs * len(sizes) * p * (p + k), "the overlaps", fix)
    head = (
        np.ones((runs, problem.structure.head_size))
        if a is None
        else _head(a, runs, p, problem.structure.heads)
    )
    T = np.empty((runs, len(sizes), p, k))
    L = np.zeros((runs, len(sizes), p, p))
    lower = np.tril_indices(p, -1)
    for run in range(runs):
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        for block, size in enumerate(sizes):
            if size < p + k:
                rows = np.pad(generator.standard_normal((p, size)), ((0, 0), (0, p + k - size)))
                T[run, block], L[run, block] = rows[:, :k], rows[:, k:]
                continue
            T[run, block] = generator.standard_normal((p, k))
            L[run, block][lower] = generator.standard_normal(len(lower[0]))
            L[run, block][np.diag_indices(p)] = np.sqrt(
                generator.chisquare(size - k - np.arange(p))
            )
        if problem.clusters and a is None:
            head[run] = generator.standard_normal(p)
    unit = _unit(problem, per, d)
    T *= scale / math.sqrt(unit)
    L *= scale / math.sqrt(unit)
    with np.errstate(over="ignore", invalid="ignore"):  # the scale is judged below
        Q = L @ np.swapaxes(L, -1, -2) + T @ np.swapaxes(T, -1, -2)
    check_scale(scale, T, Q, np.einsum("rbii->ri", Q))
    total = Q.sum(axis=1)
    if orthogonal:
        values, vectors = np.linalg.eigh(total)
        mix = scale * (vectors / np.sqrt(values)[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    elif problem.structure.constraint.fixes_norms:
        mix = np.eye(p) / np.sqrt(np.einsum("rii->ri", total))[:, :, None]
    else:
        mix = np.broadcast_to(np.eye(p), (runs, p, p))
    mix = mix[:, None]
    T = mix @ T
    Q = mix @ Q @ np.swapaxes(mix, -1, -2)
    Q = (Q + np.swapaxes(Q, -1, -2)) / 2
    M = T @ np.swapaxes(frames(problem, sizes), -1, -2)
    return Start(M, Q, head)
