"""Trial evaluations of a problem, when it is made and at a start.

A loss, activation or target whose values or gradients are not finite on ordinary samples is
rejected with its name, the sample and the fix. It could not be rejected later: an integrator that
meets NaN shortens its steps until it gives up, and cannot tell the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.problems.gram import eigen_root
from sgdynamics.problems.structure import Structure
from sgdynamics.samples import input_covariance

SAMPLES = 64
# Largest number of normal variables in all samples together: very wide networks have fewer samples.
MOST_NORMALS = 1 << 20

BlockOverlapPair = tuple[np.ndarray, np.ndarray]  # Q and M by covariance block
NO_OVERLAPS: BlockOverlapPair = (np.zeros(0), np.zeros(0))


@lru_cache(maxsize=64)
def _normals(fields: int, inputs: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standard normals of fields (sample, input, field) and draws (sample, draw).

    They are the same in every process.
    """
    per_sample = inputs * fields + draws
    count = max(2, min(SAMPLES, MOST_NORMALS // per_sample))
    normals = np.random.default_rng(0).standard_normal((count, per_sample))
    return normals[:, :-draws].reshape(count, inputs, fields), normals[:, -draws:]


def _draw_normals(structure: Structure, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Return the normals of the fields, correlated over tokens and one input per row, and draws."""
    sample = structure.sample
    z, normals = _normals(
        structure.fields, sample.tokens.inputs_per_sample, sample.normals_per_sample
    )
    if sample.tokens.correlated:
        z = np.einsum("lm,nmf->nlf", parameters["token_root"], z)
    return z.reshape(-1, structure.fields), normals


def try_problem(structure: Structure, parameters: Parameters) -> BlockOverlapPair | None:
    """Evaluate the user's functions on a few samples; raise ValueError if they are not finite.

    The rows have norm 1 and the head is ones. A loss or rule that reads overlaps may be singular at
    some of them (the optimal perceptron at M = 0), so it passes if it is finite at one of a few
    generic overlaps.

    Parameters
    ----------
    structure : Structure
        The structure of the problem.
    parameters : dict
        Its parameters at alpha = 0.

    Returns
    -------
    tuple of ndarray or None
        The overlaps Q and M by block at which a function of overlaps is finite; None for all other
        problems.
    """
    loss = structure.loss
    if not loss.user_functions():
        return None
    if not loss.reads_overlaps:
        p, head = structure.width, trial_head(structure)
        z, normals = _draw_normals(structure, parameters)
        fields = np.sqrt(input_covariance.trace(parameters)) * z[:, :p]
        covariance = input_covariance.field_covariance(parameters, np.asarray(parameters["gram"]))
        signals = z[:, p:] @ eigen_root(covariance).T
        samples = _make_samples(structure, parameters, fields, signals, normals, None)
        _check_finite(structure, parameters, samples, head, NO_OVERLAPS, at_start=False)
        return None
    first_error = None
    for Q, M in generic_overlaps(structure, parameters):
        try:
            _try_overlaps(structure, parameters, M, Q, trial_head(structure), at_start=False)
        except ValueError as error:
            first_error = first_error or error
        else:
            return Q, M
    assert first_error is not None
    raise first_error


def trial_head(structure: Structure) -> np.ndarray:
    """Return the head of a trial: ones, or generic numbers on top."""
    if structure.top is None:
        return np.ones(structure.head_size)
    return np.random.default_rng(13).uniform(0.5, 1.5, structure.head_size)


def generic_overlaps(structure: Structure, parameters: Parameters) -> list[BlockOverlapPair]:
    """Return overlaps (Q, M) by block of rows of norm 1 with positive, mixed or zero cosines.

    In each block the rows are T E + L with an orthonormal basis E of the signals S = P^(1/2) E and
    L orthogonal to them, so that rows with Q = T T^T + L L^T and M = T P^(1/2) always exist.
    """
    blocks, p, k = structure.blocks, structure.width, structure.signals
    gram = np.asarray(parameters["gram"])
    # the symmetric root P^(1/2): the factor by eigenvectors, rotated back
    roots = eigen_root(gram) @ np.swapaxes(np.linalg.eigh(gram)[1], -1, -2)
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


def try_start(
    structure: Structure, parameters: Parameters, M: np.ndarray, Q: np.ndarray, a: np.ndarray
) -> None:
    """Evaluate the user's functions at the overlaps (by block) and heads of a start.

    Tried are the first run and the run with the longest rows.
    """
    if not structure.loss.user_functions():
        return
    variances = np.einsum("rii->r", input_covariance.field_covariance(parameters, Q))
    for run in {0, int(np.argmax(variances))}:
        _try_overlaps(structure, parameters, M[run], Q[run], a[run], at_start=True)


def _try_overlaps(
    structure: Structure,
    parameters: Parameters,
    M: np.ndarray,
    Q: np.ndarray,
    head: np.ndarray,
    at_start: bool,
) -> None:
    """Try samples whose fields and signals have the covariance of these overlaps, by block."""
    p = structure.width
    z, normals = _draw_normals(structure, parameters)
    upper = np.concatenate([Q, M], axis=-1)
    lower = np.concatenate([np.swapaxes(M, -1, -2), parameters["gram"]], axis=-1)
    omega = np.concatenate([upper, lower], axis=-2)
    all_fields = z @ eigen_root(input_covariance.field_covariance(parameters, omega)).T
    fields, signals = all_fields[:, :p], all_fields[:, p:]
    samples = _make_samples(structure, parameters, fields, signals, normals, M.sum(axis=0))
    _check_finite(structure, parameters, samples, head, (Q, M), at_start)


@dataclass(frozen=True)
class _Samples:
    """Arguments of the loss for a batch of samples, along the first axis."""

    fields: np.ndarray
    signals: np.ndarray
    draws: PyTree

    def __getitem__(self, index: int) -> _Samples:
        draws = jax.tree.map(lambda leaf: leaf[index], self.draws)
        return _Samples(self.fields[index], self.signals[index], draws)


def _make_samples(
    structure: Structure,
    parameters: Parameters,
    fields: np.ndarray,
    signals: np.ndarray,
    normals: np.ndarray,
    M: np.ndarray | None,
) -> _Samples:
    """Add the means of the inputs to centred fields and signals, one input per row.

    `M` are the overlaps of the full rows; without them the means are only added to the signals.
    """
    sample = structure.sample
    coefficients, draws = _evaluate_draws(structure, parameters, normals)
    if coefficients is not None:
        axes = 1 if sample.tokens.count is None else 2
        per_sample = (len(normals), *coefficients.shape[-axes:])
        rows = np.broadcast_to(coefficients, per_sample).reshape(len(fields), -1)
        signals = signals + rows @ np.asarray(parameters["gram"]).sum(axis=0)
        fields = fields if M is None else fields + rows @ M.T
    fields, signals = (
        np.asarray(sample.tokens.group_by_sample(values)) for values in (fields, signals)
    )
    return _Samples(fields, signals, draws)


@float64
def _evaluate_draws(
    structure: Structure, parameters: Parameters, normals: np.ndarray
) -> tuple[np.ndarray | None, PyTree]:
    """Return coefficients of the inputs' means on the signals, and the loss's fourth argument."""
    sample = structure.sample
    # eager: a problem may be made while a function of the user's is traced
    with jax.ensure_compile_time_eval():
        draws = sample.draw(parameters, jnp.asarray(normals))
        coefficients = sample.mean_coefficients(parameters, draws)
        return jax.tree.map(np.asarray, (coefficients, sample.loss_argument(draws)))


def _check_finite(
    structure: Structure,
    parameters: Parameters,
    samples: _Samples,
    head: np.ndarray,
    overlaps: BlockOverlapPair,
    at_start: bool,
) -> None:
    """Raise ValueError if values or gradients of the loss are not finite on some sample."""
    try:
        loss_values, *gradients, head_gradient = _evaluate(
            structure, parameters, samples, head, overlaps
        )
    except Exception as error:
        name, function = _find_culprit(structure, None)
        raise checks.reject(
            name, function, f"differentiating it failed with: {checks.reason(error)}"
        ) from error
    count = len(loss_values)
    if not structure.loss.has_risk:
        loss_values = np.zeros(count)
    finite = [np.isfinite(gradient).reshape(count, -1) for gradient in gradients]
    failures = {
        "value": ~np.isfinite(loss_values),
        "gradient": ~np.concatenate(finite, axis=1).all(axis=1),
        "gradient in the head": ~np.isfinite(head_gradient).all(axis=1) & structure.trained,
    }
    for quantity, failed in failures.items():
        if failed.any():
            first = int(np.flatnonzero(failed)[0])
            frequency = f"{int(failed.sum())} of {count} Gaussian samples"
            raise _rejection(
                structure,
                parameters,
                samples[first],
                head,
                overlaps,
                quantity.split()[0],
                frequency,
                at_start,
            )


@float64
def _evaluate(
    structure: Structure,
    parameters: Parameters,
    samples: _Samples,
    head: np.ndarray,
    overlaps: BlockOverlapPair,
) -> tuple[np.ndarray, ...]:
    with jax.ensure_compile_time_eval():
        return evaluate_moves(
            structure, parameters, overlaps, samples.fields, samples.signals, head, samples.draws
        )


def evaluate_moves(
    structure: Structure,
    parameters: Parameters,
    overlaps: BlockOverlapPair,
    fields: Float[Numeric, "samples p ..."],
    signals: Float[Numeric, "samples K ..."],
    head: Float[Numeric, " p"],
    draws: PyTree,
) -> tuple[np.ndarray, ...]:
    """Return value, inputs, [rows, signals,] head of `sample_moves` as NumPy arrays.

    `overlaps` are Q and M by block. Samples are evaluated SAMPLES at a time, so that trials of any
    number of samples share one compiled program.
    """
    parameters = with_overlaps(structure, parameters, overlaps)
    arguments = jax.tree.map(np.asarray, (fields, signals, draws))
    per_sample = sum(leaf.size for leaf in jax.tree.leaves(arguments)) // len(fields)
    # for very wide networks padding would cost more than another compilation
    least = SAMPLES if SAMPLES * per_sample <= MOST_NORMALS else 0
    static = replace(structure, dependence=None)
    batches = []
    for first in range(0, len(fields), SAMPLES):
        batch_fields, batch_signals, batch_draws = jax.tree.map(
            lambda leaf, first=first: _pad_samples(leaf[first : first + SAMPLES], least), arguments
        )
        batches.append(
            _compiled(static, parameters, batch_fields, batch_signals, head, batch_draws)
        )
    return tuple(np.concatenate(arrays)[: len(fields)] for arrays in zip(*batches, strict=True))


def with_overlaps(
    structure: Structure, parameters: Parameters, overlaps: BlockOverlapPair
) -> Parameters:
    """Return the parameters with Q and M (by block) and unit input lengths.

    A loss that reads no overlaps gets the parameters as they are.
    """
    loss = structure.loss
    lengths = np.eye(structure.sample.tokens.inputs_per_sample) if loss.reads_lengths else None
    Q, M = map(jnp.asarray, overlaps)
    return loss.parameters_with_overlaps(parameters, Q, M, lengths)


def _pad_samples(values: np.ndarray, least: int) -> np.ndarray:
    """Return values of at least this many samples, with the last one repeated."""
    missing = least - len(values)
    if missing <= 0:
        return values
    return np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])


def sample_moves(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "samples p ..."],
    signals: Float[Numeric, "samples K ..."],
    head: Float[Numeric, " p"],
    draws: PyTree,
) -> tuple[Any, ...]:
    """Return the value of each sample and the parts of its `Move`: inputs, [rows, signals,] head.

    A JAX function; `parameters` contain the overlaps that the loss reads.
    """
    value, move = jax.vmap(structure.loss.move, (0, 0, None, 0, None))(
        fields, signals, head, draws, parameters
    )
    along_rows = [move.rows, move.signals] if structure.loss.reads_overlaps else []
    return (value, move.inputs, *along_rows, move.head)


_compiled = jax.jit(sample_moves, static_argnums=0)


def _find_culprit(structure: Structure, sample: _Samples | None) -> tuple[str, Any]:
    """Return the argument and the user's function that is not finite at this sample.

    Without a sample, the outermost of the user's functions.
    """
    functions = structure.loss.user_functions()
    if sample is None:
        name = next(reversed(functions))
        return name, functions[name][0]
    for name, (function, call) in functions.items():
        if call is not None:
            values = _call_eagerly(call, sample.fields, sample.signals)
            if not np.all(np.isfinite(values)):
                return name, function
    # All values are finite, so a gradient is not: that of the loss, or of the student in it.
    name = next(name for name in ("loss", "activation", *functions) if name in functions)
    return name, functions[name][0]


@float64
def _call_eagerly(call: Function, fields: np.ndarray, signals: np.ndarray) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(call(fields, signals))


def _rejection(
    structure: Structure,
    parameters: Parameters,
    sample: _Samples,
    head: np.ndarray,
    overlaps: BlockOverlapPair,
    quantity: str,
    frequency: str,
    at_start: bool,
) -> ValueError:
    """Return the error that names the function, and the sample and overlaps where it fails."""
    loss = structure.loss
    name, function = _find_culprit(structure, sample)
    if name == "update":  # a rule: its value is the risk, and it has no gradient
        if quantity == "value":
            name, function = "risk", loss.risk  # type: ignore[attr-defined]
        else:
            quantity = "Move"
    where = _describe_sample(structure, parameters, sample, head, overlaps, name, function)
    hint = ""
    if quantity == "gradient":
        hint = (
            " (JAX differentiates both branches of jnp.where: the one that is not taken must be "
            "finite too)"
        )
    fix = "give one that is finite there"
    if at_start:
        condition = "at this start"
        if loss.reads_overlaps:
            fix = "give another start or a function that is finite there"
    else:
        condition = "with rows of norm 1"
        if loss.reads_overlaps:
            condition += ", and at all other overlaps tried"
    reason = f"its {quantity} is not finite at {where}{hint}, on {frequency} {condition}"
    return checks.reject(name, function, f"{reason}: {fix}")


def _describe_sample(
    structure: Structure,
    parameters: Parameters,
    sample: _Samples,
    head: np.ndarray,
    overlaps: BlockOverlapPair,
    name: str,
    function: Function,
) -> str:
    """Return the arguments of the function `name` at a sample, as text."""
    fields, signals, draws = sample.fields, sample.signals, sample.draws
    if name in ("activation", "teacher_activation"):
        inputs = fields if name == "activation" else signals
        values = _call_eagerly(lambda x, _: jax.vmap(function)(x), inputs, inputs)
        failed = np.flatnonzero(~np.isfinite(values))
        return f"x = {inputs[failed[0] if len(failed) else 0]:.4g}"
    if name == "target":
        return f"signals = {_short(signals)}"
    compared = _output_and_label(structure, parameters, sample, head)
    if compared is not None:
        return "output {:.4g} and label {:.4g}".format(*compared)
    arguments = {"fields": fields, "signals": signals}
    arguments |= {"head": head} if structure.top is None else structure.top.leaves_by_name(head)
    arguments |= draws if isinstance(draws, dict) else {"noise_draw": draws}
    if structure.loss.reads_overlaps:
        Q, M = (np.asarray(blocks).sum(axis=0) for blocks in overlaps)
        arguments |= {"overlaps.Q": Q, "overlaps.M": M}
    return ", ".join(f"{argument} = {_short(value)}" for argument, value in arguments.items())


@float64
def _output_and_label(
    structure: Structure, parameters: Parameters, sample: _Samples, head: np.ndarray
) -> list[float] | None:
    """Return output and label, if the loss is a function of these two."""
    with jax.ensure_compile_time_eval():
        pair = structure.loss.output_and_label(
            sample.fields, sample.signals, head, sample.draws, parameters
        )
        return None if pair is None else [float(value) for value in pair]


def _short(values: np.ndarray) -> str:
    text = np.array2string(
        np.asarray(values), precision=3, separator=", ", threshold=8, edgeitems=3
    )
    return text.replace("\n", "")
