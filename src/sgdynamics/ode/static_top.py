"""A top, or a trained head, that is much faster than the rows: at its optimum for the overlaps.

With g(M, Q, a) = E[dloss/da] + al a, the head follows g = 0. Along the motion of the overlaps

    da/dt = -H^+ (dg/dM dM/dt + dg/dQ dQ/dt + RETURN g),     H = dg/da,

whose last term keeps the errors of the integration from adding up. H^+ is the pseudo-inverse:
directions in which the risk is flat, such as the column sums of a softmax, do not move. The same
curvature H says when a top is too fast for the ODE of finite rates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Nodes, Numeric, Parameters, State
from sgdynamics.base.precision import float64
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.problems.structure import Structure
from sgdynamics.problems.tops import head_decay

RETURN = 10.0  # rate at which an error of the optimum decays, in 1/t
FLAT = 1e-9  # curvatures below this share of the largest one count as flat directions
ITERATIONS, HALVINGS, ACCURACY = 100, 30, 1e-9
# Largest r lr H/d of a top that the ODE follows: beyond, a step overshoots its optimum noticeably.
MOST_RELAXATION = 0.1
# Rates up to this value are never of order d; larger ones are compared with d or with 1/RELAXED.
SLOW_RATE = 10.0
LEAST_DIMENSION = 1000.0  # d for which rates are checked where no dimension is given


def head_slope(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    M: Numeric,
    Q: Numeric,
    head: Numeric,
) -> Numeric:
    """Return E[dloss/da] + al a."""
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q, "a": head})
    expectation = expectation_of(structure)
    moments = expectation.moments(quadrature, nodes, parameters, overlaps, head)
    return moments.head_gradient + head_decay(parameters) * head


def static_rate(
    slope: Callable[[Numeric, Numeric, Numeric], Numeric],
    state: State,
    dM: Numeric,
    dQ: Numeric,
) -> Numeric:
    """Return da/dt of a head at its optimum, for `slope` as a function of (M, Q, a)."""
    M, Q, head = state["M"], state["Q"], state["a"]
    value, change = jax.jvp(lambda M, Q: slope(M, Q, head), (M, Q), (dM, dQ))
    H = jax.jacfwd(lambda a: slope(M, Q, a))(head)
    return -invert_symmetric(H) @ (change + RETURN * value)


def invert_symmetric(H: Numeric, positive: bool = False) -> Numeric:
    """Return the pseudo-inverse of a symmetric matrix, with `positive` of its absolute value."""
    values, vectors = jnp.linalg.eigh((H + H.T) / 2)
    size = jnp.abs(values)
    is_flat = size <= FLAT * jnp.max(size)
    inverse = jnp.where(is_flat, 0.0, 1 / jnp.where(is_flat, 1.0, size if positive else values))
    return (vectors * inverse) @ vectors.T


@float64
@partial(jax.jit, static_argnums=(0, 1))
def _slope_and_curvature(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    M: Numeric,
    Q: Numeric,
    head: Numeric,
) -> tuple[Numeric, Numeric]:
    """Return the slope and the curvature of the head, averaged over replicates of the nodes."""

    def slope(nodes: Nodes, head: Numeric) -> Numeric:
        return head_slope(structure, quadrature, nodes, parameters, M, Q, head)

    def mean_slope(head: Numeric) -> Numeric:
        return jnp.mean(jax.vmap(slope, in_axes=(0, None))(nodes, head), axis=0)

    return mean_slope(head), jax.jacfwd(mean_slope)(head)


def find_optimum(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    M: np.ndarray,
    Q: np.ndarray,
    head: np.ndarray,
) -> np.ndarray:
    """Return the head at the nearest optimum of the risk for the overlaps of one run.

    Damped Newton steps along the absolute value of the curvature, so that they descend. Raises
    ValueError if they do not converge.
    """

    def evaluate(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, H = _slope_and_curvature(structure, quadrature, nodes, parameters, M, Q, point)
        return np.asarray(slope), np.asarray(H)

    slope, H = evaluate(head)
    scale = max(1.0, float(np.abs(H).max()))
    for _ in range(ITERATIONS):
        if np.abs(slope).max() <= ACCURACY * scale:
            return head
        step, length = -np.asarray(invert_symmetric(jnp.asarray(H), positive=True)) @ slope, 1.0
        for _ in range(HALVINGS):
            candidate = head + length * step
            new_slope, new_H = evaluate(candidate)
            if np.linalg.norm(new_slope) < np.linalg.norm(slope):
                break
            length /= 2
        else:
            break
        head, slope, H = candidate, new_slope, new_H
    fix = (
        "the risk has no optimum near the head of the start, at fixed overlaps. Add weight decay, "
        "or give a finite head_rate"
    )
    raise checks.reject("head_rate", "static", fix)


def check_rates(
    rates: np.ndarray,
    lr: float,
    dimension: int | None,
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    M: np.ndarray,
    Q: np.ndarray,
    head: np.ndarray,
) -> None:
    """Raise ValueError for rates of order d, for which the ODE is not the limit.

    A step of the chain multiplies an error of the top by 1 - r lr H/d. If r lr H/d is of order 1,
    the top has a stationary law at given overlaps, and the drift of the rows is an average over it.
    """
    rates = np.broadcast_to(rates, head.shape)
    if float(rates.max(initial=0.0)) <= SLOW_RATE:
        return
    _, H = _slope_and_curvature(structure, quadrature, nodes, parameters, M, Q, head)
    root = np.sqrt(rates)
    largest = float(np.abs(np.linalg.eigvalsh(root[:, None] * np.asarray(H) * root)).max())
    d = LEAST_DIMENSION if dimension is None else float(dimension)
    if lr * largest / d <= MOST_RELAXATION:
        return
    dimensions = (
        f"d = {dimension}" if dimension is not None else f"any d up to {10 * lr * largest:.0f}"
    )
    fix = (
        f"it is of order d for {dimensions}: the top relaxes within a few steps, has its own law "
        "at given overlaps, and the ODE of finite rates is not the limit. Use sgd.simulate, which "
        'is exact, or head_rate="static" for a top at its optimum'
    )
    raise checks.reject("head_rate", float(rates.max()), fix)
