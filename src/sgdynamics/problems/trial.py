"""A problem's own functions tried on a few Gaussian samples, when it is made and where a run starts: NaN there is NaN everywhere later.

The solvers would find out too, but late: an integrator that sees NaN shortens its steps until it gives up, and cannot say why.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.problems.gram import eigen_root
from sgdynamics.samples import input_covariance

if TYPE_CHECKING:  # problems try themselves
    from sgdynamics.problems.problem import Problem, Structure

SAMPLES = 64
MOST_NUMBERS = 1 << 20  # of all samples together: a very wide network is tried on fewer


@lru_cache(maxsize=64)
def _normals(fields: int, inputs: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard normals of the fields of each input (sample, input, fields) and of the draws (sample, draws), the same in every process."""
    each = inputs * fields + draws
    count = max(2, min(SAMPLES, MOST_NUMBERS // each))
    normals = np.random.default_rng(0).standard_normal((count, each))
    return normals[:, :-draws].reshape(count, inputs, fields), normals[:, -draws:]


def _drawn(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The normals of a problem's samples, those of the fields correlated over tokens and one input a row."""
    sample = problem.structure.sample
    z, normals = _normals(
        problem.structure.fields, sample.tokens.inputs_per_sample, sample.normals_per_sample
    )
    if sample.tokens.correlated:
        z = np.einsum("lm,nmf->nlf", problem.parameters["token_root"], z)
    return z.reshape(-1, problem.structure.fields), normals


def try_problem(problem: Problem) -> tuple[np.ndarray, np.ndarray] | None:
    """Evaluate the user's functions on a few samples, and raise ValueError where none of the trials is finite.

    The rows have norm 1 and the head is ones. A loss or rule that reads overlaps may be singular at some of
    them (the optimal perceptron at M = 0), so it passes if it is finite at one of a few generic overlaps.

    Returns
    -------
    tuple of ndarray or None
        The overlaps Q and M by block at which a function of overlaps is finite; None for all other problems.
    """
    loss = problem.structure.loss
    if not loss.user_functions():
        return None
    p = problem.width
    if not loss.reads_overlaps:
        z, normals = _drawn(problem)
        fields = np.sqrt(input_covariance.trace(problem.parameters)) * z[:, :p]
        signals = (
            z[:, p:]
            @ eigen_root(input_covariance.field_covariance(problem.parameters, problem.gram)).T
        )
        _try(problem, fields, signals, np.ones(p), normals, None, (np.zeros(0), np.zeros(0)), False)
        return None
    first_error = None
    for Q, M in generic_overlaps(problem):
        try:
            _try_overlaps(problem, M, Q, np.ones(p), at_start=False)
        except ValueError as error:
            first_error = first_error or error
        else:
            return Q, M
    assert first_error is not None
    raise first_error


def generic_overlaps(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """Overlaps (Q, M), by block, of rows of norm 1: all cosines with the signals positive, of mixed signs, or zero.

    In each block the rows are T E + L with an orthonormal basis E of the signals S = P^(1/2) E and L orthogonal
    to them, so that Q = T T^T + L L^T and M = T P^(1/2) always belong to rows that exist.
    """
    blocks, p, k = problem.structure.blocks, problem.width, problem.signals
    roots = eigen_root(np.asarray(problem.gram))
    roots = roots @ np.swapaxes(
        np.linalg.eigh(np.asarray(problem.gram))[1], -1, -2
    )  # the symmetric root
    generator = np.random.default_rng(13)
    sizes = generator.uniform(0.2, 0.6, (p, k)) / np.sqrt(max(k, 1))
    tilt = 0.3 * generator.standard_normal((p, p)) / np.sqrt(p)
    signs = generator.choice([-1.0, 1.0], (p, k))
    cases = []
    for T in (sizes, sizes * signs, np.zeros((p, k))):
        L = np.eye(p) + (tilt if T.any() else 0.0)
        L = L * np.sqrt((1 - np.sum(T**2, axis=1)) / np.sum(L**2, axis=1))[:, None]
        Q = (T @ T.T + L @ L.T) / blocks
        cases.append((np.broadcast_to(Q, (blocks, p, p)), T @ roots / np.sqrt(blocks)))
    return cases


def try_start(problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> None:
    """The same with the overlaps (block by block) and the head of the first run, and of that with the longest rows."""
    if not problem.structure.loss.user_functions():
        return
    variances = np.einsum("rii->r", input_covariance.field_covariance(problem.parameters, Q))
    for run in {0, int(np.argmax(variances))}:
        _try_overlaps(problem, M[run], Q[run], a[run], at_start=True)


def _try_overlaps(
    problem: Problem, M: np.ndarray, Q: np.ndarray, head: np.ndarray, at_start: bool
) -> None:
    """Try the problem on samples whose fields and signals have the covariance of these overlaps, given by block."""
    p = problem.width
    z, normals = _drawn(problem)
    gram = problem.gram
    omega = np.concatenate([Q, M], axis=-1), np.concatenate([np.swapaxes(M, -1, -2), gram], axis=-1)
    covariance = input_covariance.field_covariance(
        problem.parameters, np.concatenate(omega, axis=-2)
    )
    both = z @ eigen_root(covariance).T
    _try(problem, both[:, :p], both[:, p:], head, normals, M.sum(axis=0), (Q, M), at_start)


def _try(
    problem: Problem,
    fields: np.ndarray,
    signals: np.ndarray,
    head: np.ndarray,
    normals: np.ndarray,
    M: np.ndarray | None,
    overlaps: Any,
    at_start: bool,
) -> None:
    sample = problem.structure.sample
    coefficients, given = _beside(problem, normals)
    if coefficients is not None:
        rows = np.broadcast_to(
            coefficients,
            (len(normals), *coefficients.shape[-(1 if sample.tokens.count is None else 2) :]),
        ).reshape(len(fields), -1)
        signals = signals + rows @ problem.gram.sum(axis=0)
        fields = fields if M is None else fields + rows @ M.T
    fields, signals = (np.asarray(sample.tokens.by_sample(part)) for part in (fields, signals))
    try:
        found = _values(problem, fields, signals, head, given, overlaps)
    except Exception as error:
        name, function = _culprit(problem, None)
        raise checks.reject(
            name, function, f"differentiating it failed with: {checks.reason(error)}"
        ) from error
    value, *slopes, head_slope = found
    value = value if problem.structure.loss.has_risk else np.zeros(len(value))
    flat = np.concatenate([np.isfinite(slope).reshape(len(value), -1) for slope in slopes], axis=1)
    bad = [
        ~np.isfinite(value),
        ~flat.all(axis=1),
        ~np.isfinite(head_slope).all(axis=1) & problem.structure.trained,
    ]
    for wrong, what in zip(bad, ("value", "gradient", "gradient"), strict=True):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            draws = jax.tree.map(lambda part, first=first: part[first], given)
            count = f"{int(wrong.sum())} of {len(wrong)} Gaussian samples"
            _refuse(
                problem, fields[first], signals[first], head, draws, overlaps, what, count, at_start
            )


@float64
def _beside(problem: Problem, normals: np.ndarray) -> tuple[np.ndarray | None, Any]:
    """The coefficients of the inputs' means on the signals, if any, and what the loss takes beside fields and signals."""
    sample = problem.structure.sample
    with (
        jax.ensure_compile_time_eval()
    ):  # a problem may be made while a function of the user's is traced
        draws = sample.draw(problem.parameters, jnp.asarray(normals))
        return jax.tree.map(
            np.asarray,
            (sample.mean_coefficients(problem.parameters, draws), sample.loss_argument(draws)),
        )


@float64
def _values(
    problem: Problem,
    fields: Float[Numeric, "samples p ..."],
    signals: Float[Numeric, "samples K ..."],
    head: Float[Numeric, " p"],
    given: PyTree,
    overlaps: Any,
) -> tuple[np.ndarray, ...]:
    with jax.ensure_compile_time_eval():
        return moves_of(
            problem.structure, problem.at(0.0).parameters, overlaps, fields, signals, head, given
        )


def moves_of(
    structure: Structure,
    numbers: Parameters,
    overlaps: Any,
    fields: Float[Numeric, "samples p ..."],
    signals: Float[Numeric, "samples K ..."],
    head: Float[Numeric, " p"],
    given: PyTree,
) -> tuple[np.ndarray, ...]:
    """The value of each sample and how it moves rows and head: value, inputs, [rows, signals,] head. `overlaps` are Q and M by blocks."""
    numbers = with_overlaps(structure, numbers, overlaps)
    every = jax.tree.map(np.asarray, (fields, signals, given))
    each = sum(one.size for one in jax.tree.leaves(every)) // len(fields)
    least = (
        SAMPLES if SAMPLES * each <= MOST_NUMBERS else 0
    )  # very wide networks have room for no more samples than there are
    found = []
    for first in range(
        0, len(fields), SAMPLES
    ):  # as many at a time as a trial has, so that one program does
        some = jax.tree.map(
            lambda one, first=first: _filled(one[first : first + SAMPLES], least), every
        )
        found.append(
            _compiled(replace(structure, dependence=None), numbers, *some[:2], head, some[2])
        )
    return tuple(np.concatenate(parts)[: len(fields)] for parts in zip(*found, strict=True))


def with_overlaps(structure: Structure, numbers: Parameters, overlaps: Any) -> Parameters:
    """The numbers with the overlaps Q and M (by blocks) and unit lengths among them, where the loss reads them."""
    loss = structure.loss
    lengths = np.eye(structure.sample.tokens.inputs_per_sample) if loss.reads_lengths else None
    return loss.parameters_with_overlaps(numbers, *map(jnp.asarray, overlaps), lengths)


def _filled(values: np.ndarray, least: int) -> np.ndarray:
    """Values of at least so many samples, the last one again and again."""
    missing = least - len(values)
    return (
        values
        if missing <= 0
        else np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
    )


def moves(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "samples p ..."],
    signals: Float[Numeric, "samples K ..."],
    head: Float[Numeric, " p"],
    given: PyTree,
) -> tuple[Any, ...]:
    """The value of each sample and how it moves rows and head, as a JAX function; `parameters` contain the overlaps that it reads."""
    value, found = jax.vmap(structure.loss.move, (0, 0, None, 0, None))(
        fields, signals, head, given, parameters
    )
    return (
        value,
        found.inputs,
        *([found.rows, found.signals] if structure.loss.reads_overlaps else []),
        found.head,
    )


_compiled = jax.jit(moves, static_argnums=0)


def _culprit(problem: Problem, point: tuple[Any, ...] | None) -> tuple[str, Any]:
    """Which of the problem's functions is not finite at this point, or which is the only one of the user's: argument and function."""
    parts = problem.structure.loss.user_functions()
    if point is not None:
        for name, (function, call) in parts.items():
            if call is not None and not np.all(np.isfinite(_eager(call, *point))):
                return name, function
        # values are fine, so a gradient is not: that of the loss, whose arguments are finite, or of the student
        name = next(name for name in ("loss", "activation", *parts) if name in parts)
    else:
        name = next(reversed(parts))
    return name, parts[name][0]


@float64
def _eager(call: Function, fields: np.ndarray, signals: np.ndarray) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(call(fields, signals))


def _refuse(
    problem: Problem,
    fields: np.ndarray,
    signals: np.ndarray,
    head: np.ndarray,
    given: PyTree,
    overlaps: Any,
    what: str,
    count: str,
    at_start: bool,
) -> None:
    """Raise ValueError with the function that is not finite, and the sample and overlaps at which it is not."""
    loss = problem.structure.loss
    name, function = _culprit(problem, (fields, signals))
    if name == "update":  # a rule: its value is the risk, and it has no gradient
        name, function, what = (
            ("risk", loss.risk, "value") if what == "value" else (name, function, "Move")
        )
    if name in ("activation", "teacher_activation"):
        seen = fields if name == "activation" else signals
        values = _eager(lambda one, _: jax.vmap(function)(one), seen, seen)
        wrong = np.flatnonzero(~np.isfinite(values))
        place = f"x = {seen[wrong[0] if len(wrong) else 0]:.4g}"
    elif name == "target":
        place = f"signals = {_short(signals)}"
    elif (compared := _compared(problem, fields, signals, head, given)) is not None:
        place = "output {:.4g} and label {:.4g}".format(*compared)
    else:
        arguments = {"fields": fields, "signals": signals, "head": head}
        arguments |= given if isinstance(given, dict) else {"noise_draw": given}
        if loss.reads_overlaps:
            Q, M = (np.asarray(part).sum(axis=0) for part in overlaps)
            arguments |= {"overlaps.Q": Q, "overlaps.M": M}
        place = ", ".join(f"{argument} = {_short(value)}" for argument, value in arguments.items())
    hint = " (JAX differentiates both branches of jnp.where: the one that is not taken must be finite too)"
    hint = hint if what == "gradient" else ""
    fix = "give one that is finite there"
    if at_start:
        where = "at this start"
        fix = (
            "give another start or a function that is finite there" if loss.reads_overlaps else fix
        )
    else:
        where = "with rows of norm 1" + (
            ", and at all other overlaps tried" if loss.reads_overlaps else ""
        )
    problem_text = f"its {what} is not finite at {place}{hint}; so it is on {count} {where}"
    raise checks.reject(name, function, f"{problem_text}: {fix}")


@float64
def _compared(
    problem: Problem, fields: np.ndarray, signals: np.ndarray, head: np.ndarray, given: PyTree
) -> list[float] | None:
    """Output and label, where these are what the loss sees."""
    with jax.ensure_compile_time_eval():
        found = problem.structure.loss.output_and_label(
            fields, signals, head, given, problem.at(0.0).parameters
        )
        return None if found is None else [float(one) for one in found]


def _short(values: np.ndarray) -> str:
    return np.array2string(
        np.asarray(values), precision=3, separator=", ", threshold=8, edgeitems=3
    ).replace("\n", "")
