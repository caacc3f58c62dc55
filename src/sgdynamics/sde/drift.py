"""The drift of a path of the SDE in factor form, from Gaussian expectations.

The state of a path is W = [T | L], the rows in the compressed frame of the signals (`sde.scheme`).
By Stein's lemma the mean gradient is E[h x^T] = l_b H [W; W*] in a block of eigenvalue l_b.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import lower_root
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.problems.problem import Structure
from sgdynamics.problems.tops import head_decay
from sgdynamics.samples import input_covariance


class SdeState(NamedTuple):
    """The state of a path: rows (blocks, p, K + p) and head (p)."""

    rows: Float[Numeric, "... blocks p fields"]
    head: Float[Numeric, "... p"]


class Drift(NamedTuple):
    """The drift at a state, in factor form.

    Attributes
    ----------
    pull : array, (blocks, p, K + p)
        E[h x^T] in the compressed frame.
    rows : array, (blocks, p, K + p)
        Time derivative of the rows.
    columns : array, (blocks, p, p)
        Matrix A of the additional columns N, dN/dt = - A N.
    root : array, (blocks or 1, p, p)
        Square root of E[h h^T]; per block if the input norms vary between samples.
    sources : array, (blocks, p, columns)
        Columns whose Gram matrix is the growth rate of the Gram matrix of N.
    head : array, (p,)
        Time derivative of the head.
    """

    pull: Float[Numeric, "blocks p fields"]
    rows: Float[Numeric, "blocks p fields"]
    columns: Float[Numeric, "blocks p p"]
    root: Float[Numeric, "#blocks p p"]
    sources: Float[Numeric, "blocks p columns"]
    head: Float[Numeric, " p"]


def signal_rows(structure: Structure, parameters: Parameters) -> Float[Numeric, "blocks K fields"]:
    """Return the signals in the compressed frame, (blocks, K, K + p)."""
    frame, blocks, k = parameters["frame"], structure.blocks, structure.signals
    # [F | 0]: the signals have no component along the columns L.
    empty = jnp.zeros((blocks, k, structure.width), frame.dtype)
    return jnp.concatenate([jnp.broadcast_to(frame, (blocks, k, k)), empty], axis=-1)


def state_overlaps(
    structure: Structure, parameters: Parameters, rows: Float[Numeric, "blocks p fields"]
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    """Return M = T F^T, with F the frame of the signals, and Q = W W^T, per block."""
    M = jnp.einsum("bps,brs->bpr", rows[..., : structure.signals], parameters["frame"])
    return M, jnp.einsum("bpm,bqm->bpq", rows, rows)


def drift_at_state(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    rates: Parameters,
    path: SdeState,
    extra: Float[Numeric, "blocks p p"],
) -> Drift:
    """Return the drift of a path whose additional columns have the Gram matrix `extra`.

    With the Stein matrix H, E[h x^T] = l_b H [W; W*] in a block of eigenvalue l_b. The additional
    columns N are orthogonal to the signals and to all other columns, so that only the student part
    of l_b H acts on them.
    """
    p = structure.width
    # The additional columns contribute to Q but not to M: they are orthogonal to the signals.
    M, Q = state_overlaps(structure, parameters, path.rows)
    Q = Q + extra
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q})
    moments = expectation_of(structure).moments(quadrature, nodes, parameters, overlaps, path.head)
    rows_and_signals = jnp.concatenate([path.rows, signal_rows(structure, parameters)], axis=1)
    pull = jnp.einsum("bic,bcm->bim", moments.coefficients(parameters), rows_and_signals)
    # One number per row.
    decay = jnp.broadcast_to(jnp.ravel(jnp.asarray(parameters["weight_decay"])), (p,))
    # dN/dt = -(l_b H_students + decay) N
    columns = input_covariance.times_eigenvalues(parameters, moments.stein[..., :p]) + jnp.diag(
        decay
    )
    # A loss or rule that reads overlaps also moves rows along rows.
    if moments.pull is not None:
        columns = columns + moments.pull[..., :p]
    # Gram matrix of the step outside of the frame: (lr/B) E[h h^T] |x_b|^2/d, and 2 T f_b.
    growth = rates["noise_rate"] * input_covariance.block_traces(parameters, rates["outside"])
    # A triangular root, because E[h h^T] may be singular.
    root = jax.vmap(lower_root)(moments.noise.reshape(-1, p, p))
    sources = jnp.sqrt(growth)[:, None, None] * root
    if "temperature" in rates:
        thermal = jnp.sqrt(2 * rates["temperature"] * rates["outside"])
        sources = jnp.concatenate([sources, thermal[:, None, None] * jnp.eye(p)], axis=-1)
    if structure.constraint.fixes_norms:
        # Half of d|w_i|^2/dt, which the normalisation removes from every row: the moves of the rows
        # and of N along themselves, and the weight decay of a row of length 1.
        norms = (
            -jnp.einsum("bim,bim->i", pull, path.rows)
            - jnp.einsum("bij,bij->i", columns, extra)
            - decay
        )
        # The decay of N is contained in `columns` and must not count twice. The sources add length.
        norms = (
            norms
            + decay * jnp.einsum("bii->i", extra)
            + 0.5 * jnp.einsum("bij,bij->i", sources, sources)
        )
    else:
        norms = jnp.zeros(p)
    # dW/dt = -E[h x^T] - weight decay - the change of norm on the sphere
    row_drift = -pull - (decay + norms)[:, None] * path.rows
    head = (
        -algorithm["head_rate"] * (moments.head_gradient + head_decay(parameters) * path.head)
        if structure.trained
        else jnp.zeros_like(path.head)
    )
    return Drift(pull, row_drift, columns + jnp.diag(norms), root, sources, head)
