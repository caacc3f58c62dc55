"""Order parameters of the response form: overlaps, responses and the covariance of the fields.

The equations are those of `fixed_data.response_form`. One step takes the sums <g z> and <g g(s)>
over the paths. It advances the overlaps G_b and the responses R_b of each covariance block b, the
inverse of the factor Lc of the covariance of all fields, and the memory of the fields. No operation
here depends on the number of paths.

Vectors are numbered by slots: the K signals, then the p rows at each time.
"""

from __future__ import annotations

from typing import NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.fixed_data.path_pass import multiply
from sgdynamics.fixed_data.setup import LARGEST, Setup, StepParameters
from sgdynamics.problems.tops import head_decay
from sgdynamics.samples.input_covariance import eigenvalues

# Smaller conditional variances, relative to the variance of the field, are rounding errors.
SINGULAR = 1e-10
# A run diverges if the variance of a field grows by more than this factor in one step.
DIVERGENCE_FACTOR = 16.0


class ResponseSums(NamedTuple):
    """Sums over all paths, which one pass over the paths computes for the next step."""

    z: Float[Numeric, "p capacity"]  # <g, z>
    g: Float[Numeric, "p capacity"]  # <g, g(s)>
    head: Float[Numeric, " p"]


class OrderParameters(NamedTuple):
    """Overlaps, responses and Lc of all slots, and the head."""

    overlaps: Float[Numeric, "capacity blocks capacity"]  # G_b
    responses: Float[Numeric, "capacity blocks capacity"]  # R_b(t, s)
    inverse: Float[Numeric, "capacity capacity"]  # Lc^-1
    rates: Float[Numeric, " capacity"]  # lr of each step, divided by the norm on the sphere
    noise: Float[Numeric, "blocks capacity"]  # e_b (d_b - N_b(s))
    sampled: Float[Numeric, " blocks"]  # N_b, the share of block b in the number of vectors
    head: Float[Numeric, " p"]
    field_from_z: Float[Numeric, "p capacity"]  # rows of Lc at the current time
    field_from_g: Float[Numeric, "p capacity"]  # memory of earlier gradients


class InitialFields(NamedTuple):
    """Overlaps (blocks, directions, directions) of signals and rows at time 0, and their fields."""

    overlaps: np.ndarray
    factor: np.ndarray  # Lc
    # Lc^-1 on the fields that are not linear combinations of earlier ones; the others need no
    # derivative, because no response goes back to time 0.
    inverse: np.ndarray
    is_singular: bool  # whether some fields are such linear combinations


def initial_fields(
    frame: np.ndarray, T: np.ndarray, L: np.ndarray, values: np.ndarray
) -> InitialFields:
    """Return the initial fields of signals and rows.

    The signals `frame` are (blocks, K, k), the rows [T | L] are (blocks, p, k + p), and `values`
    contains the eigenvalues of the blocks.
    """
    signals = np.concatenate([frame, np.zeros((*frame.shape[:2], L.shape[-1]))], axis=-1)
    vectors = np.concatenate([signals, np.concatenate([T, L], axis=-1)], axis=1)
    overlaps = vectors @ np.swapaxes(vectors, -1, -2)
    covariance = np.einsum("b,bij->ij", values, overlaps)
    count, variance = len(covariance), np.diagonal(covariance)
    factor, inverse = np.zeros((2, count, count))
    is_singular = False
    # Cholesky's decomposition row by row, with rows of zero conditional variance left out of the
    # inverse
    for i in range(count):
        on_earlier = inverse[:i, :i] @ covariance[i, :i]
        conditional = variance[i] - on_earlier @ on_earlier
        factor[i, :i] = on_earlier
        if conditional > SINGULAR * variance[i]:
            factor[i, i] = np.sqrt(conditional)
            inverse[i, :i] = -(on_earlier @ inverse[:i, :i]) / factor[i, i]
            inverse[i, i] = 1 / factor[i, i]
        else:
            is_singular = True
    return InitialFields(overlaps, factor, inverse, is_singular)


def initial_order(
    setup: Setup,
    capacity: int,
    step: StepParameters,
    start: InitialFields,
    head: Float[Numeric, " p"],
) -> OrderParameters:
    """The order parameters at step 0, with memory for `capacity` slots."""
    structure = setup.structure
    k, p, blocks = structure.signals, structure.width, structure.blocks
    first, values = setup.initial_directions, eigenvalues(step.parameters)

    def pad(block: Numeric, *shape: int) -> Array:
        zeros = jnp.zeros(shape)
        block = jnp.asarray(block, zeros.dtype)
        return jax.lax.dynamic_update_slice(zeros, block, (0,) * len(shape))

    overlaps = jnp.moveaxis(jnp.asarray(start.overlaps), 0, 1)
    # N_b = e_b tr Lc^-1 G_b Lc^-T
    sampled = values * jnp.einsum("zi,ibj,zj->b", start.inverse, overlaps, start.inverse)
    noise = (values * (step.block_sizes - sampled))[:, None]
    # R_b(0, 0) = 1
    responses = jnp.zeros((capacity, blocks, capacity))
    responses = responses.at[k:first, :, k:first].set(jnp.eye(p)[:, None, :])
    return OrderParameters(
        overlaps=pad(overlaps, capacity, blocks, capacity),
        responses=responses,
        inverse=pad(start.inverse, capacity, capacity),
        rates=jnp.zeros(capacity),
        noise=jnp.zeros((blocks, capacity)).at[:, k:first].set(noise),
        sampled=sampled,
        head=jnp.asarray(head, jnp.float64),
        field_from_z=pad(start.factor[k:], p, capacity),
        field_from_g=jnp.zeros((p, capacity)),
    )


def multiply_float64(
    left: Float[Numeric, "m k"], right: Float[Numeric, "k n"]
) -> Float[Numeric, "m n"]:
    """Multiply in the precision of `right` and return float64."""
    return multiply(left, right).astype(jnp.float64)


def rows_at_slot(matrix: Numeric, slot: IntScalar, p: int) -> Array:
    """The p rows of a matrix at a slot."""
    return jax.lax.dynamic_slice_in_dim(matrix, slot, p, 0)


def insert(matrix: Numeric, block: Numeric, *position: IntScalar) -> Array:
    """A matrix with a block written at a position."""
    return jax.lax.dynamic_update_slice(matrix, block.astype(matrix.dtype), position)


class _NextRows(NamedTuple):
    """The rows W(t + 1): overlaps with all vectors before, with themselves, responses and rates."""

    overlaps: Float[Numeric, "p blocks capacity"]
    own_overlaps: Float[Numeric, "p blocks p"]
    responses: Float[Numeric, "p blocks capacity"]
    rates: Float[Numeric, " capacity"]


def _next_rows(
    setup: Setup, step: StepParameters, order: OrderParameters, sums: ResponseSums, now: IntScalar
) -> _NextRows:
    """Rows of G_b and R_b at time t + 1, from the equations of the module's docstring."""
    structure, lr = setup.structure, step.hyperparameters["lr"]
    p, blocks, capacity = structure.width, structure.blocks, order.rates.shape[0]
    values = eigenvalues(step.parameters)[:, None]
    shrink = 1 - lr * step.parameters["weight_decay"]
    after = now + p
    unit_response = jnp.broadcast_to(jnp.eye(p)[:, None], (p, blocks, p))

    def combine(
        left: Float[Numeric, "m capacity"], right: Float[Numeric, "capacity blocks capacity"]
    ) -> Float[Numeric, "m blocks capacity"]:
        return multiply_float64(left, right.reshape(capacity, -1)).reshape(-1, blocks, capacity)

    # K = <g z> Lc^-1, and the covariance of the noise xi with its response: the noise of step s
    # acts on W(s + 1), so that it is moved by one time.
    K = multiply_float64(sums.z, order.inverse)
    rates = insert(order.rates, jnp.full(p, lr), now)
    noise = jnp.roll(sums.g[:, None] * rates * order.noise, p, axis=-1)  # (p, blocks, capacity)
    # Doubled for one row, as in `multiply`
    rows = jnp.concatenate([noise, noise]) if p == 1 else noise
    from_noise = jnp.einsum("pbs,jbs->pbj", rows, order.responses, precision="highest")[:p]

    # G_b(t + 1, .) = shrink G_b(t, .) - lr (e_b K G_b - <xi xi> R_b^T), and R_b likewise without
    # noise
    overlaps = shrink * rows_at_slot(order.overlaps, now, p)
    overlaps = overlaps - lr * (values * combine(K, order.overlaps) - from_noise)
    responses = shrink * rows_at_slot(order.responses, now, p)
    responses = responses - lr * values * combine(K, order.responses)
    own_responses = insert(responses, unit_response, 0, 0, after)
    own = shrink * jnp.swapaxes(jax.lax.dynamic_slice_in_dim(overlaps, now, p, 2), 0, 2)
    own = own - lr * (
        values * jnp.einsum("pj,qbj->pbq", K, overlaps)
        - jnp.einsum("pbs,qbs->pbq", noise, own_responses)
    )

    # On the sphere the rows are divided by their norms, and so is lr in all later equations.
    scale = jnp.ones(p)
    if structure.constraint.fixes_norms:
        scale = 1 / jnp.sqrt(jnp.diagonal(jnp.sum(own, axis=1)))
        rates = insert(order.rates, lr * scale, now)
    own = own * scale[:, None, None] * scale
    overlaps = insert(overlaps * scale[:, None, None], own, 0, 0, after)
    responses = insert(responses * scale[:, None, None], unit_response, 0, 0, after)
    return _NextRows(overlaps, own, responses, rates)


def advance_order_parameters(
    setup: Setup,
    step: StepParameters,
    order: OrderParameters,
    sums: ResponseSums,
    number: IntScalar,
) -> tuple[OrderParameters, Bool[Numeric, ""], Bool[Numeric, ""]]:
    """Advance the order parameters by one step.

    Returns the new order parameters, whether the run may continue (finite, with a regular
    covariance), and whether the step is valid. A step is invalid if its fields are linear
    combinations of earlier ones although nothing diverges.
    """
    step = step.at_step(number)
    structure, sizes = setup.structure, step.block_sizes
    k, p, blocks = structure.signals, structure.width, structure.blocks
    capacity, values = order.rates.shape[0], eigenvalues(step.parameters)
    now = k + p * number
    after = now + p
    rows = _next_rows(setup, step, order, sums, now)
    overlaps = insert(order.overlaps, jnp.swapaxes(rows.overlaps, 0, 2), 0, 0, after)
    overlaps = insert(overlaps, rows.overlaps, after, 0, 0)

    # The next rows of Lc and Lc^-1: covariance of the new fields with the earlier ones, and what
    # is left
    covariance = jnp.einsum("b,pbj->pj", values, rows.overlaps)
    with_earlier = jnp.where(jnp.arange(capacity) < after, covariance, 0.0)
    on_earlier = multiply_float64(with_earlier, order.inverse.T)
    variance = jax.lax.dynamic_slice_in_dim(covariance, after, p, 1)
    conditional = variance - on_earlier @ on_earlier.T
    scale = jnp.sqrt(jnp.diagonal(variance))
    # Cholesky's decomposition of fields of variance 1, symmetrised against rounding
    own = jnp.linalg.cholesky((conditional + conditional.T) / 2 / (scale[:, None] * scale))
    is_regular = jnp.all(jnp.diagonal(own) > SINGULAR**0.5)
    own = scale[:, None] * own
    own_inverse = jax.scipy.linalg.solve_triangular(own, jnp.eye(p), lower=True)
    inverse_rows = insert(
        -own_inverse @ multiply_float64(on_earlier, order.inverse), own_inverse, 0, after
    )

    # N_b grows by e_b |Lc^-1 v_b|^2 of the new rows
    transformed = multiply_float64(inverse_rows, overlaps.reshape(capacity, -1))
    transformed = transformed.reshape(-1, blocks, capacity)
    sampled = order.sampled + values * jnp.einsum("pbj,pj->b", transformed, inverse_rows)
    noise = jnp.broadcast_to((values * (sizes - sampled))[:, None], (blocks, p))
    # Memory of the fields: lr d sum_b e_b f_b R_b(t, s + 1) g(s), moved back by one time
    memory = jnp.einsum("b,pbj->pj", values * sizes, rows.responses)
    head = order.head
    if structure.trained:
        head_rate = step.hyperparameters["head_rate"] * step.hyperparameters["lr"]
        head = head - head_rate * (sums.head + head_decay(step.parameters) * head)

    own_overlaps = jnp.sum(rows.own_overlaps, axis=1)
    is_finite = jnp.all(jnp.abs(own_overlaps) < LARGEST**2) & jnp.all(jnp.abs(head) < LARGEST)
    former = jax.lax.dynamic_slice_in_dim(rows_at_slot(order.overlaps, now, p), now, p, 2)
    former_variance = jnp.einsum("b,pbp->p", values, former)
    diverges = jnp.any(jnp.diagonal(variance) > DIVERGENCE_FACTOR * jnp.max(former_variance))
    following = OrderParameters(
        overlaps=overlaps,
        responses=insert(order.responses, rows.responses, after, 0, 0),
        inverse=insert(order.inverse, inverse_rows, after, 0),
        rates=rows.rates,
        noise=insert(order.noise, noise, 0, after),
        sampled=sampled,
        head=head,
        field_from_z=insert(on_earlier, own, 0, after),
        field_from_g=jnp.roll(memory, -p, axis=1) * rows.rates,
    )
    return following, is_finite & is_regular, ~is_finite | is_regular | diverges


@overload
def slot_count(setup: Setup, steps: float) -> float: ...
@overload
def slot_count(setup: Setup, steps: Array) -> Array: ...
def slot_count(setup: Setup, steps: float | Array) -> float | Array:
    """Number of slots after some steps: the signals, and the rows at all times."""
    return setup.structure.signals + setup.structure.width * (steps + 1)
