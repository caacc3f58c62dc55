"""`Start`: initial conditions as overlaps M = W W*^T, Q = W W^T and the head a.

Overlaps are accepted if rows with these inner products exist: Omega = [[Q, M], [M^T, P]] has to be
positive semi-definite in every covariance block.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, PyTree
from sgdynamics.base.resources import check_memory
from sgdynamics.base.support import require
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.tops import leading_runs, validate_values
from sgdynamics.problems.trial import try_start

# Tolerance of a user's start: distance of Omega from positive semi-definite matrices, and of the
# norms from 1 on the sphere.
TOLERANCE = 1e-9
# The same for starts that the library computed, which contain an integrator's error.
RESULT_TOLERANCE = 1e-6

AnyStart = TypeVar("AnyStart")


@dataclass(frozen=True, eq=False)
class AuxiliaryState:
    """The state of an update next to the weights: overlaps of all its sets of rows and scalars.

    Attributes
    ----------
    names : tuple of tuple of str
        Names of the sets of rows, of the scalars and of the squares.
    M : ndarray
        Overlaps of the rows of all sets, the weights first, with the signals:
        (run, block, row, signal).
    Q : ndarray
        Gram matrices of these rows, (run, block, row, row).
    a : ndarray
        Heads of these rows, (run, row).
    scalars : ndarray
        Scalars of the update, (run, scalar).
    squares : ndarray
        Averages of squares, (run, square, unit).
    vectors : ndarray, optional
        Vectors over the entries of a trained head, (run, vector, entry).
    vector_names : tuple of str
        Names of these vectors.
    """

    names: tuple[tuple[str, ...], ...]
    M: np.ndarray
    Q: np.ndarray
    a: np.ndarray
    scalars: np.ndarray
    squares: np.ndarray
    vectors: np.ndarray | None = None
    vector_names: tuple[str, ...] = ()

    def repeat(self, runs: int) -> AuxiliaryState:
        """Return the state of one run for several runs."""
        names = ("M", "Q", "a", "scalars", "squares", "vectors")
        arrays = {name: getattr(self, name) for name in names}
        repeated = {
            name: np.repeat(array, runs, axis=0)
            for name, array in arrays.items()
            if array is not None
        }
        return replace(self, **repeated)


@dataclass(frozen=True)
class Start:
    """Initial condition of one or more runs: overlaps and head.

    Made by ``sgd.start``, ``sgd.random_start``, ``sgd.start_from`` or ``sgd.overlaps_of``.

    Parameters
    ----------
    M_blocks : ndarray
        Overlaps of the rows with the signals in each covariance block, (run, block, unit, signal).
    Q_blocks : ndarray
        Gram matrices of the rows in each block, (run, block, unit, unit).
    a : ndarray
        The heads, (run, unit). If every context has its own head, the heads of a run are
        concatenated. For a problem with a top, the entries of all leaves.
    beside : AuxiliaryState, optional
        State of an update next to the weights (velocities, averages, scalars), if
        ``sgd.start_from`` read it from a result.

    Raises
    ------
    ValueError
        If the shapes do not fit each other.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> start.runs, start.M.shape, start.Q.shape
    (1, (1, 2, 1), (1, 2, 2))
    """  # style: ok, `beside` is the name of a public field

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
        if not _shapes_fit(M, Q, a):
            raise ValueError(
                f"M_blocks has shape {M.shape}, Q_blocks {Q.shape} and a {a.shape}: give (runs, "
                "blocks, units, signals), (runs, blocks, units, units) and (runs, units) with at "
                "least one run; sgd.start makes them from M, Q and a"
            )
        for name, value in (("M_blocks", M), ("Q_blocks", Q), ("a", a)):
            object.__setattr__(self, name, value)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.a.shape[0]

    @property
    def M(self) -> np.ndarray:
        """Overlaps of the full rows with the signals, (run, unit, signal)."""
        return self.M_blocks.sum(axis=1)

    @property
    def Q(self) -> np.ndarray:
        """Gram matrix of the full rows, (run, unit, unit)."""
        return self.Q_blocks.sum(axis=1)


def _shapes_fit(M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> bool:
    if M.ndim != 4 or Q.ndim != 4 or a.ndim != 2 or 0 in M.shape[:3]:
        return False
    runs, blocks, p = M.shape[:3]
    heads_fit = a.shape[0] == runs and a.shape[1] > 0
    return heads_fit and Q.shape == (runs, blocks, p, p)


def start_from_overlaps(
    problem: Problem,
    *,
    M: ArrayArgument,
    Q: ArrayArgument,
    a: ArrayArgument | None,
    top: PyTree | None = None,
) -> Start:
    """Return the start with overlaps M and Q (with optional run and block axes) and head or top."""
    p, k, blocks = problem.width, problem.signals, problem.structure.blocks
    full_M = _with_runs_and_blocks("M", M, problem, (p, k), "units x signals")
    full_Q = _with_runs_and_blocks("Q", Q, problem, (p, p), "units x units")
    if full_M.shape[0] != full_Q.shape[0] and 1 not in (full_M.shape[0], full_Q.shape[0]):
        raise ValueError(
            f"M has {full_M.shape[0]} runs and Q has {full_Q.shape[0]} runs: give the same number, "
            "or one run"
        )
    runs = max(full_M.shape[0], full_Q.shape[0])
    if top is not None and problem.structure.top is not None and runs == 1:
        runs = leading_runs(problem.structure.top, top)
    start = Start(
        np.broadcast_to(full_M, (runs, blocks, p, k)).copy(),
        np.broadcast_to(full_Q, (runs, blocks, p, p)).copy(),
        validate_head_or_top(problem, a, top, runs),
    )
    _check_overlaps(problem, start, TOLERANCE)
    return start


def validate_head_or_top(
    problem: Problem, a: ArrayArgument | None, top: PyTree | None, runs: int
) -> np.ndarray:
    """Return the heads or tops (runs, entries), from the one of `a` and `top` that applies."""
    shapes = problem.structure.top
    if shapes is None:
        if top is not None:
            raise checks.reject("top", top, "the problem has a head and no top. Give a=...")
        return validate_heads(a, runs, problem.width, problem.structure.heads)
    if a is not None:
        raise checks.reject("a", a, "the problem has a top in place of the head. Give top=...")
    if top is None:
        raise checks.reject(
            "top", None, f"give arrays of the shapes {shapes.describe()} of the problem's top"
        )
    vectors = validate_values("top", shapes, top, runs)
    if not np.all(np.isfinite(vectors)):
        raise checks.reject("top", top, "give finite numbers")
    return vectors


def validate_heads(a: ArrayArgument | None, runs: int, width: int, heads: int = 1) -> np.ndarray:
    """Return the heads (runs, heads x width), from one for all runs or one per run.

    None stands for ones.
    """
    if a is None:
        return np.ones((runs, heads * width))
    if heads > 1:
        fix = f"give {heads} x {width} numbers, a head for each context"
        values = checks.real_array("a", a, fix)
        leading = (runs,) if values.ndim > 2 else ()
        values = checks.array("a", values, (*leading, heads, width), "contexts x units")
        return np.broadcast_to(values.reshape(*leading, -1), (runs, heads * width)).copy()
    fix = f"give {width} numbers, one per unit, or {runs} x {width} numbers"
    values = checks.real_array("a", a, fix)
    if values.ndim <= 1:
        values = checks.array("a", values, (width,), "one number per unit")
        return np.broadcast_to(values, (runs, width)).copy()
    return checks.array("a", values, (runs, width), "runs x units")


def _with_runs_and_blocks(
    name: str, value: object, problem: Problem, shape: tuple[int, int], meaning: str
) -> np.ndarray:
    """Return overlaps with axes (runs, blocks, units, ...); rows without a block axis are spread.

    Rows that are spread over the blocks have the fraction n_b/d of every product in block b, as
    random directions have.
    """
    blocks = problem.structure.blocks
    overlaps = checks.real_array(name, value, f"give numbers of shape {shape} ({meaning})")
    fractions = problem.parameters["fractions"][:, None, None]
    if overlaps.shape[-2:] != shape or overlaps.ndim > 4 or 0 in overlaps.shape[:-2]:
        block_axis = f", and an axis of {blocks} blocks before the units" if blocks > 1 else ""
        raise ValueError(
            f"{name} has shape {overlaps.shape}: give {shape} ({meaning}), optionally with a "
            f"leading axis of runs{block_axis}"
        )
    if overlaps.ndim == 2:
        overlaps = (fractions * overlaps)[None]
    elif overlaps.ndim == 3 and blocks > 1 and overlaps.shape[0] == blocks:
        overlaps = overlaps[None]
    elif overlaps.ndim == 3:
        overlaps = fractions * overlaps[:, None]
    return checks.array(
        name, overlaps, (overlaps.shape[0], blocks, *shape), f"runs x blocks x {meaning}"
    )


def _check_overlaps(problem: Problem, start: Start, tolerance: float) -> None:
    """Raise ValueError unless rows with these overlaps exist, and the loss is finite there."""
    for name in ("M", "Q", "a"):
        if not np.all(np.isfinite(getattr(start, name))):
            raise ValueError(
                f"start has entries of {name} that are not finite: give finite overlaps and head"
            )
    omega = overlap_matrix(start.M_blocks, start.Q_blocks, problem.gram)
    try:
        checks.gram_matrix("Omega = [[Q, M], [M^T, P]]", omega, tolerance)
    except ValueError:
        checks.gram_matrix("Q", start.Q_blocks, tolerance)  # the more specific message
        raise
    error = problem.structure.constraint.norm_error(np.einsum("rii->ri", start.Q))
    if error > tolerance:
        raise ValueError(
            f"Q has diagonal entries {error:.3g} away from 1, but constraint='sphere' keeps rows "
            "of norm 1: divide M by sqrt(Q_ii) and Q by sqrt(Q_ii Q_jj)"
        )
    parameters = problem.at(0.0).parameters
    try_start(problem.structure, parameters, start.M_blocks, start.Q_blocks, start.a)


def validate_start(problem: Problem, start: Start) -> Start:
    """Return the start after checking that it is one, and fits the problem."""
    require("functional", problem)
    if not isinstance(start, Start):
        raise checks.reject(
            "start", start, "give what sgd.start, sgd.random_start or sgd.start_from returns"
        )
    expected = (problem.structure.blocks, problem.width, problem.signals)
    if start.M_blocks.shape[1:] != expected:
        raise ValueError(
            f"start was made for (blocks, width, signals) = {start.M_blocks.shape[1:]}, the "
            f"problem has {expected}: make it from the same problem"
        )
    if start.a.shape[1] != problem.structure.head_size:
        top = problem.structure.top
        size = f"{problem.structure.heads} heads of {problem.width} units"
        if top is not None:
            size = f"a top of {top.size} numbers"
        raise checks.reject(
            "start", start.a.shape, f"the problem has {size}: make it from the same problem"
        )
    _check_overlaps(problem, start, RESULT_TOLERANCE)
    return start


def broadcast_runs(start: AnyStart, runs: int | None) -> AnyStart:
    """Return a start (of any kind) with this many runs: a start of one run is repeated."""
    if runs is None:
        return start
    runs = checks.integer("runs", runs, 1)
    available: int = start.runs  # type: ignore[attr-defined]
    if available == runs:
        return start
    if available != 1:
        raise checks.reject(
            "runs",
            runs,
            f"the start has {available} runs. Omit runs, give {available}, or give a start of one "
            "run.",
        )
    names = [field.name for field in fields(start)]  # type: ignore[arg-type]
    arrays = {name: getattr(start, name) for name in names}
    auxiliary = arrays.pop("beside", None)
    required_bytes = 4.0 * runs * sum(array.nbytes for array in arrays.values())
    check_memory("runs", runs, required_bytes, "the overlaps", "give fewer runs")
    repeated = type(start)(
        **{name: np.repeat(array, runs, axis=0) for name, array in arrays.items()}
    )
    if auxiliary is None:
        return repeated
    return replace(repeated, beside=auxiliary.repeat(runs))  # type: ignore[type-var]


def overlap_matrix(M: np.ndarray, Q: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return Omega = [[Q, M], [M^T, P]], block by block."""
    P = np.broadcast_to(gram, (*M.shape[:-2], *gram.shape[-2:]))
    upper = np.concatenate([Q, M], axis=-1)
    lower = np.concatenate([np.swapaxes(M, -1, -2), P], axis=-1)
    return np.concatenate([upper, lower], axis=-2)
