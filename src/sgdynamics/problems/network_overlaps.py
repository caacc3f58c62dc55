"""Starts of the theory from the weights of a real network, in the middle of its training."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import RESULT_TOLERANCE, Start, validate_start
from sgdynamics.problems.problem import Problem

GRAM_TOLERANCE = (
    RESULT_TOLERANCE  # single precision resolves a Gram matrix of rows of norm 1 to about 1e-7
)


def overlaps_of(
    weights: ArrayArgument,
    teacher: ArrayArgument,
    head: Any = None,
    problem: Problem | None = None,
    *,
    input_scale: float = 1.0,
    output_scale: float | None = None,
    teacher_scale: float | None = None,
) -> Start:
    """The start from which the theory continues a real two-layer network: M = W W*^T, Q = W W^T and the head a.

    Parameters
    ----------
    weights : array_like
        The trained rows, (p, d), or with a leading axis of runs. NumPy, JAX or PyTorch arrays, on any device, with or without gradients.
        With several covariance blocks the coordinates of the inputs come block by block, in the problem's order.
    teacher : array_like
        The signal directions, (k, d) (for a mixture its means), one for all runs or one a run.
    head : array_like, optional
        The second layer, (p,), or (1, p) as the weight of ``torch.nn.Linear(p, 1)``; ones by default.
    problem : Problem, optional
        Problem against which shapes and the teacher's Gram matrix are checked.
    input_scale : float, default 1.0
        Factor of w.x in the network.
    output_scale : float, optional
        Factor of the sum over the units. Defaults to the library's own, 1/p (mixtures: 1).
    teacher_scale : float, optional
        Factor of the teacher's rows. Defaults to ``input_scale``.

    Returns
    -------
    Start
        Initial condition for any solver.

    Raises
    ------
    ValueError
        If shapes do not fit, entries are not finite, or the teacher's Gram matrix is not the problem's.

    Notes
    -----
    The library's network is f = (1/p) sum_i a_i s(w_i.x) on inputs x ~ N(0, I_d), rows of norm O(1), without biases (mixtures: without
    1/p), trained by W <- W - (lr/d) dloss/dW on the loss (f - y)^2/2. A network in other units, ::

        f = output_scale sum_i a'_i s(input_scale w'_i.x),      w' <- w' - eta dloss/dw',      a' <- a' - eta' dloss/da',

    is the same network with w = input_scale w', a = c a', c = p output_scale (mixtures: output_scale), and the same training with ::

        lr = eta d input_scale^2,      head_rate = (eta' c^2)/(eta input_scale^2),

    twice that lr where the loss is (f - y)^2, as torch.nn.MSELoss has it. So a network s(w'.x/sqrt(d)) with rows of norm sqrt(d) takes
    ``input_scale=d**-0.5``, and one with sum_i a_i s/sqrt(p) takes ``output_scale=p**-0.5``.
    Assumes inputs that are independent of the weights from here on: fresh samples, one pass.
    Source: Saad and Solla (1995), the order parameters R, Q.

    Examples
    --------
    >>> weights, teacher = np.eye(2, 100) + 0.1, np.eye(1, 100)
    >>> start = sgd.overlaps_of(weights, teacher)
    >>> start.M[0].round(2).tolist()
    [[1.1], [0.1]]
    """
    s = checks.number("input_scale", input_scale, above=0.0)
    s_teacher = (
        s if teacher_scale is None else checks.number("teacher_scale", teacher_scale, above=0.0)
    )
    W = s * _rows("weights", weights, "units x inputs")
    signals = s_teacher * _rows("teacher", teacher, "signals x inputs")
    runs, p, d = W.shape
    if signals.shape[-1] != d:
        raise ValueError(
            f"weights have {d} inputs and teacher has {signals.shape[-1]}: give both as (rows, inputs), transposed where they are not"
        )
    if signals.shape[0] not in (1, runs):
        raise ValueError(
            f"teacher has {signals.shape[0]} runs and weights have {runs}: give one teacher, or one a run"
        )
    if problem is not None:
        _fits(problem, p, signals.shape[1], d)
    a = _head(head, runs, p, problem)
    if output_scale is not None:
        summed = problem is not None and not problem.mean_output
        a = a * checks.number("output_scale", output_scale, above=0.0) * (1 if summed else p)
    sizes = np.array([d]) if problem is None else problem.block_dimensions(d)
    edges = np.cumsum(sizes)[:-1]
    students, teachers = np.split(W, edges, axis=-1), np.split(signals, edges, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):  # judged right below
        M = np.stack(
            [
                rows @ np.swapaxes(signal_rows, -1, -2)
                for rows, signal_rows in zip(students, teachers, strict=True)
            ],
            axis=1,
        )
        Q = np.stack([rows @ np.swapaxes(rows, -1, -2) for rows in students], axis=1)
        gram = np.stack([rows @ np.swapaxes(rows, -1, -2) for rows in teachers], axis=1)
    for argument, value in (("weights", Q), ("teacher", gram)):
        if not np.all(np.isfinite(value)):
            scale = f"{'input' if argument == 'weights' else 'teacher'}_scale"
            raise ValueError(
                f"{argument} has rows whose squared length is beyond float64: give rows of norm O(1), or another {scale}"
            )
    _one_gram(gram, problem, s_teacher)
    start = Start(M, (Q + np.swapaxes(Q, -1, -2)) / 2, a)
    return start if problem is None else validate_start(problem, start)


def as_array(argument: str, value: object) -> np.ndarray:
    """A float64 array from NumPy, JAX, PyTorch or nested lists; what comes from PyTorch leaves its graph and its device first."""
    array = value
    if callable(getattr(value, "detach", None)):
        for step in ("detach", "cpu", "double", "numpy"):  # double: NumPy has no bfloat16
            method = getattr(array, step, None)
            array = method() if callable(method) else array
    try:
        result = np.asarray(array)
        if not np.iscomplexobj(result):
            result = np.array(result, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise checks.reject(
            argument, type(value).__name__, "give an array of numbers (NumPy, JAX or PyTorch)"
        ) from None
    if np.iscomplexobj(result):
        raise checks.reject(
            argument, f"{type(value).__name__} of complex numbers", "give real numbers"
        )
    if not np.all(np.isfinite(result)):
        bad = int(np.size(result) - np.isfinite(result).sum())
        raise ValueError(
            f"{argument} has {bad} entries that are not finite: the network has diverged; take an earlier state of it"
        )
    return result


def _rows(argument: str, value: object, meaning: str) -> np.ndarray:
    """Rows with their run axis."""
    rows = as_array(argument, value)
    if rows.ndim not in (2, 3) or 0 in rows.shape:
        raise ValueError(
            f"{argument} has shape {rows.shape}: give {meaning}, with a leading run axis if you like"
        )
    return rows if rows.ndim == 3 else rows[None]


def _head(value: object, runs: int, p: int, problem: Problem | None) -> np.ndarray:
    """The head of every run."""
    if value is None:
        if problem is not None and problem.head == "trained":
            raise checks.reject(
                "head",
                None,
                f"the problem's head is trained: give the {p} weights of the second layer",
            )
        return np.ones((runs, p))
    head = as_array("head", value)
    if head.shape in ((runs, 1, p), (1, p), (runs, p)):
        head = head.reshape(-1, p)
    elif head.shape != (p,):
        raise ValueError(
            f"head has shape {head.shape}: give ({p},), one number per unit"
            + (f", or ({runs}, {p})" if runs > 1 else "")
        )
    return np.broadcast_to(head, (runs, p)).copy()


def _fits(problem: Problem, p: int, k: int, d: int) -> None:
    """Raise ValueError if the network has another shape than the problem."""
    check_dimension(problem, d, small=True)
    for argument, rows, name, wanted in (
        ("weights", p, "width", problem.width),
        ("teacher", k, "signals", problem.signals),
    ):
        if rows != wanted:
            raise ValueError(
                f"{argument} has {rows} rows, the problem has {name} = {wanted}: give ({wanted}, {d}), or change the problem"
            )


def _one_gram(gram: np.ndarray, problem: Problem | None, scale: float) -> None:
    """Raise ValueError if the teacher's rows do not have the Gram matrix of the problem."""
    expected = gram[:1] if problem is None else problem.gram[None]
    apart = float(np.abs(gram - expected).max())
    if apart <= GRAM_TOLERANCE * max(1.0, float(np.abs(expected).max())):
        return
    if problem is None:
        raise ValueError(
            f"teacher has Gram matrices that differ by {apart:.3g} between runs: give each run to overlaps_of on its own"
        )
    name = problem.gram_argument
    rows = "teacher" if scale == 1.0 else f"({scale:g} * teacher)"
    actual = gram[0, 0] if gram.shape[1] == 1 else gram[0]
    shown = np.array2string(actual, precision=4, separator=", ", threshold=16).replace("\n", "")
    fix = f"make the problem with {name} = {rows} @ {rows}.T" + (
        ", block by block" if gram.shape[1] > 1 else ""
    )
    if name is None:
        fix = "give the orthonormal means of the mixture"
    raise ValueError(
        f"teacher has the Gram matrix {shown}, {apart:.3g} away from the problem's: {fix}, or check teacher_scale"
    )
