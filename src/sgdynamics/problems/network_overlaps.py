"""`overlaps_of`: initial conditions from the weights of a real network."""

from __future__ import annotations

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import RESULT_TOLERANCE, Start, validate_start
from sgdynamics.problems.problem import Problem

# Single precision resolves a Gram matrix of rows of norm 1 to about 1e-7.
GRAM_TOLERANCE = RESULT_TOLERANCE


def overlaps_of(
    weights: ArrayArgument,
    teacher: ArrayArgument,
    head: ArrayArgument | None = None,
    problem: Problem | None = None,
    *,
    input_scale: float = 1.0,
    output_scale: float | None = None,
    teacher_scale: float | None = None,
) -> Start:
    """Make the initial condition from which the theory continues a real two-layer network.

    It consists of the overlaps M = W W*^T and Q = W W^T of the weights, and of the head a.

    Parameters
    ----------
    weights : array_like
        The trained rows, (p, d), or with a leading axis of runs. NumPy, JAX or PyTorch arrays, on
        any device, with or without gradients. With several covariance blocks the coordinates of the
        inputs are ordered by block, in the problem's order.
    teacher : array_like
        The signal directions, (k, d) (for a mixture its means), for all runs or with a leading axis
        of runs.
    head : array_like, optional
        The second layer, (p,), or (1, p) as the weight of ``torch.nn.Linear(p, 1)``. Defaults to
        ones.
    problem : Problem, optional
        Problem against which shapes and the teacher's Gram matrix are checked.
    input_scale : float, default 1.0
        Factor of w.x in the network.
    output_scale : float, optional
        Factor of the sum over the units. Defaults to that of the library, 1/p (mixtures: 1).
    teacher_scale : float, optional
        Factor of w*.x in the teacher. Defaults to ``input_scale``.

    Returns
    -------
    Start
        Initial condition for any solver.

    Raises
    ------
    ValueError
        If shapes do not fit, entries are not finite, or the teacher's Gram matrix differs from the
        problem's.

    Notes
    -----
    The library's network is f = (1/p) sum_i a_i s(w_i.x) (mixtures: without 1/p) on inputs
    x ~ N(0, I_d), with rows of norm O(1) and without biases. It is trained by
    W <- W - (lr/d) dloss/dW on the loss (f - y)^2/2. A network in other units, ::

        f = output_scale sum_i a'_i s(input_scale w'_i.x)
        w' <- w' - eta dloss/dw',      a' <- a' - eta' dloss/da'

    is the same network with w = input_scale w' and a = c a', where c = p output_scale (mixtures:
    output_scale), and the same training with ::

        lr = eta d input_scale^2,      head_rate = (eta' c^2)/(eta input_scale^2)

    For the loss (f - y)^2 of ``torch.nn.MSELoss`` that lr is doubled. A network s(w'.x/sqrt(d))
    with rows of norm sqrt(d) thus takes ``input_scale=d**-0.5``, and one with sum_i a_i s/sqrt(p)
    takes ``output_scale=p**-0.5``.
    The theory assumes that all later inputs are independent of the weights: one pass over fresh
    samples.
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
            f"weights have {d} inputs and teacher has {signals.shape[-1]}: give both with the "
            "shape (rows, inputs)"
        )
    if signals.shape[0] not in (1, runs):
        raise ValueError(
            f"teacher has {signals.shape[0]} runs and weights have {runs}: give one teacher, or "
            "one per run"
        )
    if problem is not None:
        _check_shapes(problem, p, signals.shape[1], d)
    a = _heads(head, runs, p, problem)
    if output_scale is not None:
        # The library divides the sum over the units by `normalisation`.
        normalisation = p if problem is None or problem.mean_output else 1
        a = a * checks.number("output_scale", output_scale, above=0.0) * normalisation
    sizes = np.array([d]) if problem is None else problem.block_dimensions(d)
    edges = np.cumsum(sizes)[:-1]
    students, teachers = np.split(W, edges, axis=-1), np.split(signals, edges, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is reported below
        M = _products(students, teachers)
        Q = _products(students, students)
        gram = _products(teachers, teachers)
    for argument, value in (("weights", Q), ("teacher", gram)):
        if not np.all(np.isfinite(value)):
            scale = f"{'input' if argument == 'weights' else 'teacher'}_scale"
            raise ValueError(
                f"{argument} has rows whose squared length is beyond float64: give rows of norm "
                f"O(1), or another {scale}"
            )
    _check_gram(gram, problem, s_teacher)
    start = Start(M, (Q + np.swapaxes(Q, -1, -2)) / 2, a)
    return start if problem is None else validate_start(problem, start)


def _products(first: list[np.ndarray], second: list[np.ndarray]) -> np.ndarray:
    """Return the inner products of rows in each covariance block: (runs, blocks, rows, rows)."""
    products = [
        rows @ np.swapaxes(other_rows, -1, -2)
        for rows, other_rows in zip(first, second, strict=True)
    ]
    return np.stack(products, axis=1)


def as_array(argument: str, value: object) -> np.ndarray:
    """Return a float64 array from NumPy, JAX, PyTorch or nested lists.

    A PyTorch tensor is detached from its graph and copied from its device.
    """
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
        infinite = int(np.size(result) - np.isfinite(result).sum())
        raise ValueError(
            f"{argument} has {infinite} entries that are not finite: the network has diverged. Use "
            "an earlier state of it."
        )
    return result


def _rows(argument: str, value: object, meaning: str) -> np.ndarray:
    """Return rows with a leading axis of runs."""
    rows = as_array(argument, value)
    if rows.ndim not in (2, 3) or 0 in rows.shape:
        raise ValueError(
            f"{argument} has shape {rows.shape}: give {meaning}, optionally with a leading axis of "
            "runs"
        )
    return rows if rows.ndim == 3 else rows[None]


def _heads(value: object, runs: int, p: int, problem: Problem | None) -> np.ndarray:
    """Return the head of every run, (runs, p)."""
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


def _check_shapes(problem: Problem, p: int, k: int, d: int) -> None:
    """Raise ValueError if the shapes of the network differ from those of the problem."""
    check_dimension(problem, d, small=True)
    for argument, rows, name, expected in (
        ("weights", p, "width", problem.width),
        ("teacher", k, "signals", problem.signals),
    ):
        if rows != expected:
            raise ValueError(
                f"{argument} has {rows} rows, the problem has {name} = {expected}: give "
                f"({expected}, {d}), or change the problem"
            )


def _check_gram(gram: np.ndarray, problem: Problem | None, scale: float) -> None:
    """Raise ValueError unless the teacher's rows have the Gram matrix of the problem in all runs.

    `gram` has axes (runs, blocks, K, K), and `scale` is the teacher's scale.
    """
    expected = gram[:1] if problem is None else problem.gram[None]
    distance = float(np.abs(gram - expected).max())
    if distance <= GRAM_TOLERANCE * max(1.0, float(np.abs(expected).max())):
        return
    if problem is None:
        raise ValueError(
            f"teacher has Gram matrices that differ by {distance:.3g} between runs: call "
            "overlaps_of for each run"
        )
    single_block = gram.shape[1] == 1
    actual = gram[0, 0] if single_block else gram[0]
    text = np.array2string(actual, precision=4, separator=", ", threshold=16).replace("\n", "")
    if problem.gram_argument is None:
        fix = "give the orthonormal means of the mixture"
    else:
        rows = "teacher" if scale == 1.0 else f"({scale:g} * teacher)"
        fix = f"make the problem with {problem.gram_argument} = {rows} @ {rows}.T"
        fix += "" if single_block else ", block by block"
    raise ValueError(
        f"teacher has the Gram matrix {text}, {distance:.3g} away from the problem's: {fix}, or "
        "check teacher_scale"
    )
