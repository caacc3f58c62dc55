"""Gradients of the mean loss as vectors in sample space.

With the fields lambda = X W^T (n x p) of n samples, the gradient in the weights is X^T g, where

    g_i = s dloss/dlambda_i / (b n),

s is the selection (0 or 1 per sample) and b the divisor of the algorithm (the batch fraction or
1). An algorithm that touches the data only through X e and X^T g is a general first-order method,
and its law follows from conditioning on these products (`fixed_data.conditioning`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from sgdynamics.algorithms.updates.law import Law
from sgdynamics.algorithms.updates.sample_memory import Outcome, Sample, apply_rule
from sgdynamics.base.arrays import DType, IntScalar, Numeric, Parameters, PyTree, Scalar
from sgdynamics.fixed_data.setup import Setup, StepParameters
from sgdynamics.problems.structure import Structure
from sgdynamics.samples.input_covariance import trace as input_trace
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.sample_moves import sample_gradients, sample_moves

# dloss/dfields (inputs, p) and dloss/dhead (n, p)
Gradients = tuple[Float[Numeric, "inputs p"], Float[Numeric, "n p"]]


class SampleData(NamedTuple):
    """Arguments of the loss in addition to the fields of the rows."""

    used: Bool[Numeric, " n"] | Float[Numeric, " n"]  # visits of each sample by the step
    samples: int  # number n of samples over which the loss is averaged
    signals: Float[Numeric, "inputs K"]
    draws: PyTree  # noise (n,), labels of a mixture, or a dictionary of draws


def sample_space_gradients(
    setup: Setup,
    step: StepParameters,
    data: SampleData,
    fields: Float[Numeric, "inputs fields"],
    head: Float[Numeric, " p"],
) -> tuple[Float[Numeric, "gradients inputs"], Float[Numeric, " p"]]:
    """Gradients g of the rows (one per unit) in sample space, and the gradient of the head.

    `fields` are those of the rows, followed by those of their perturbation if `setup.perturbed`.
    """
    structure, sample, p = setup.structure, setup.structure.sample, setup.structure.width

    def gradients(
        fields: Float[Numeric, "inputs p"],
    ) -> Gradients:
        return sample_gradients(structure, step.parameters, fields, data.signals, head, data.draws)

    def summed_gradients(
        fields: Float[Numeric, "inputs p"],
    ) -> Gradients:
        first_visit = gradients(fields)
        if not setup.repeats:
            return first_visit
        return add_repeated_visits(setup, step, data.used, gradients, fields, first_visit)

    h, head_h = summed_gradients(fields[:, :p])
    # Weight s/(b n) of a sample; repeated visits are already summed in h.
    divisor = (step.hyperparameters["divisor"] * data.samples).astype(fields.dtype)
    weight = (data.used > 0).astype(fields.dtype) / divisor
    g = h.T * sample.tokens.repeat(weight)
    if setup.perturbed:
        # A perturbation delta W moves by its own gradient, X^T (d^2 loss/dlambda^2) delta lambda:
        # one more vector g per unit. The head does not respond to first order, by the symmetry of
        # the perturbed direction.
        _, tangent = jax.jvp(
            lambda fields: summed_gradients(fields)[0], (fields[:, :p],), (fields[:, p:],)
        )
        g = jnp.concatenate([g, tangent.T * sample.tokens.repeat(weight)])
    return g, jnp.sum(head_h * weight[:, None], axis=0)


# Stored values of an update for single samples, (inputs, p) by name
SampleMemory = dict[str, Any]


def first_sample_memory(
    law: Law | None, inputs: int, width: int, dtype: DType
) -> SampleMemory | None:
    """The stored values before the first step; None for an update without a rule for samples."""
    if law is None or law.on_sample is None:
        return None
    return {name: jnp.zeros((inputs, width), dtype) for name in law.samples}


class SampleStep(NamedTuple):
    """Arguments of the rule of an update for single samples, the same for all samples."""

    law: Law
    hyperparameters: Parameters  # of the update
    divisor: Scalar
    scalars: tuple[Scalar, ...]
    number: IntScalar

    @classmethod
    def of(
        cls, law: Law, rates: Parameters, scalars: tuple[Scalar, ...], number: IntScalar
    ) -> SampleStep:
        """The arguments at a step, from the hyperparameters of the algorithm."""
        return cls(law, rates["update"], rates["divisor"], scalars, number)

    def outcome(
        self,
        structure: Structure,
        parameters: Parameters,
        data: SampleData,
        fields: Float[Numeric, "inputs p"],
        head: Float[Numeric, " p"],
        memory: SampleMemory,
    ) -> Outcome:
        """Vectors g (p, inputs) of a gradient X^T g, the new stored values, and sums of means.

        All of them are divided by the number of samples.
        """
        tokens, dtype, law = structure.sample.tokens, fields.dtype, self.law
        names = law.scalars
        scalars = {name: jnp.asarray(x, dtype) for name, x in zip(names, self.scalars, strict=True)}
        hyperparameters = as_dtype(self.hyperparameters, dtype)

        def apply(
            fields: Numeric,
            signals: Numeric,
            draws: PyTree,
            used: Numeric,
            memory: dict[str, Numeric],
        ) -> Outcome:
            def slope(point: Numeric) -> Numeric:
                return jax.grad(structure.loss)(point, signals, head, draws, parameters)

            weight = jnp.where(used > 0, jnp.asarray(1 / self.divisor, dtype), 0)
            sample = Sample(fields, slope, used > 0, weight, memory, scalars, self.number)
            return apply_rule(law, sample, hyperparameters)

        group, flatten = tokens.group_by_sample, tokens.flatten_inputs
        outcome = jax.vmap(apply)(
            group(fields),
            group(data.signals),
            data.draws,
            data.used,
            {name: group(memory[name]) for name in law.samples},
        )
        return Outcome(
            flatten(outcome.g).T / data.samples,
            {name: flatten(value) for name, value in outcome.memory.items()},
            {name: jnp.sum(value) / data.samples for name, value in outcome.means.items()},
        )


def with_overlaps(
    setup: Setup, step: StepParameters, rows: Float[Numeric, "p blocks capacity"]
) -> StepParameters:
    """The values of a step with the overlaps of the rows, if the loss reads them."""
    if not setup.structure.loss.reads_overlaps:
        return step
    M, Q = overlaps_from_rows(setup, step.parameters, rows)
    loss = setup.structure.loss
    return step._replace(parameters=loss.parameters_with_overlaps(step.parameters, Q, M))


def overlap_coefficients(
    setup: Setup,
    step: StepParameters,
    data: SampleData,
    fields: Float[Numeric, "inputs p"],
    head: Float[Numeric, " p"],
) -> Float[Numeric, "p columns"]:
    """Mean coefficients [A | B] of the gradient A W + B W* of a loss that reads the overlaps.

    Its gradient in the weights is X^T g + (dl/dQ + dl/dQ^T) W + dl/dM W*.
    """
    arguments = (fields, data.signals, head, data.draws)
    moves = sample_moves(setup.structure, step.parameters, *arguments)
    assert moves.coefficients is not None
    divisor = step.hyperparameters["divisor"] * data.samples
    weight = (data.used > 0).astype(fields.dtype) / divisor
    return jnp.einsum("n,npk->pk", weight, moves.coefficients)


def combine_rows(
    setup: Setup,
    parameters: Parameters,
    coefficients: Float[Numeric, "p columns"],
    rows: Float[Numeric, "p blocks capacity"],
) -> Float[Numeric, "p blocks capacity"]:
    """A W + B W* in the orthonormal basis, whose first K directions span the signals."""
    p, K = rows.shape[0], setup.structure.signals
    combined = jnp.einsum("pq,qbk->pbk", coefficients[:, :p], rows)
    on_signals = jnp.einsum(
        "pr,brk->pbk", coefficients[:, p:], parameters["frame"].astype(rows.dtype)
    )
    return combined.at[:, :, :K].add(on_signals)


def add_repeated_visits(
    setup: Setup,
    step: StepParameters,
    visits: Float[Numeric, " n"],
    gradients: Callable[[Numeric], Gradients],
    fields: Float[Numeric, "inputs p"],
    first_visit: Gradients,
) -> Gradients:
    """Sums of gradients over all visits of a sample in one cell.

    A visit sees the fields moved by the earlier visits of the same sample, -gamma h |x|^2/d,
    where |x|^2/d is the trace of the covariance; other samples of the cell do not move them to
    leading order.
    """
    sample = setup.structure.sample
    own_rate = step.hyperparameters["lr"] * step.hyperparameters["own"]
    shift = (own_rate * input_trace(step.parameters)).astype(fields.dtype)

    def visit(carry: tuple[Numeric, Numeric, Numeric]) -> tuple[Numeric, Numeric, Numeric]:
        count, h, head_h = carry
        # The inputs of a sample are correlated by C: the product C h is C^1/2 applied twice.
        own = sample.tokens.correlate_inputs(
            step.parameters, sample.tokens.correlate_inputs(step.parameters, h.T)
        ).T
        new_h, new_head_h = (leaf.astype(fields.dtype) for leaf in gradients(fields - shift * own))
        continues = (visits > count).astype(fields.dtype)
        return (
            count + 1,
            h + sample.tokens.repeat(continues)[:, None] * new_h,
            head_h + continues[:, None] * new_head_h,
        )

    return jax.lax.while_loop(
        lambda carry: carry[0] < jnp.max(visits), visit, (jnp.ones(()), *first_visit)
    )[1:]


def observe_fields(
    setup: Setup,
    parameters: Parameters,
    rows: Float[Numeric, "p blocks capacity"],
    head: Float[Numeric, " p"],
    fields: Float[Numeric, "inputs p"],
    signals: Float[Numeric, "inputs K"],
    draws: PyTree,
) -> dict[str, Numeric]:
    """M and Q per covariance block, a, and the mean loss, from rows and fields."""
    structure = setup.structure
    M, Q = overlaps_from_rows(setup, parameters, rows)
    values = structure.loss.parameters_with_overlaps(parameters, Q, M)
    fields, signals = (structure.sample.tokens.group_by_sample(leaf) for leaf in (fields, signals))
    losses = jax.vmap(structure.loss, in_axes=(0, 0, None, 0, None))(
        fields, signals, head, draws, values
    )
    return {"M": M, "Q": Q, "a": head, "train_risk": jnp.mean(losses, axis=0)}


def overlaps_from_rows(
    setup: Setup, parameters: Parameters, rows: Float[Numeric, "p blocks capacity"]
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    """M and Q per covariance block, from coefficients in the orthonormal basis."""
    rows = jnp.moveaxis(rows, 1, 0)
    frame = parameters["frame"].astype(rows.dtype)
    # The first K directions span the signals, s_r = sum_k frame_rk e_k.
    on_signals = rows[..., : setup.structure.signals]
    M = jnp.einsum("bpk,brk->bpr", on_signals, frame, precision="highest")
    return M, jnp.einsum("bpk,bqk->bpq", rows, rows, precision="highest")
