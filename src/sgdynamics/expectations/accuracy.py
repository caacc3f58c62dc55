"""The share of a mixture that a network classifies correctly, with its error.

ReLU networks of up to four units have an exact rule (`expectations.indicators`). All others, and very
many states, are averaged over lines along the largest principal axis of the preactivations: on a
line the output changes sign at its roots, between which the normal distribution function gives the
probability. The lines go through scrambled Sobol points. Independent scramblings give the standard
error.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, State
from sgdynamics.base.precision import float64
from sgdynamics.expectations import indicators
from sgdynamics.expectations.closed_forms import has_logistic_moments
from sgdynamics.expectations.nodes import sobol_normals
from sgdynamics.expectations.risk import map_first_states, map_in_chunks, overlaps_at, stack_lanes
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance

MOST_STATES = 500  # states times clusters of four units for which the exact rule is quick enough
LOG2_LINES, LOG2_LINES_OF_MANY, REPLICATES = 9, 6, 8  # few states have more lines each
REACH = indicators.REACH
INTERVALS = 32  # of a line, for activations that are not piecewise linear
CORRECTIONS = 2  # of a root, for the same
MOST_EXCHANGED = 12  # kinks that are sorted by exchanges
PIECEWISE_LINEAR = ("relu", "abs", "linear")


@float64
def population_accuracy(
    problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, float]:
    """Compute the share classified correctly at states with any leading axes, and its absolute error.

    A tie f = 0 counts as 1/2. The error is the largest of all states.
    """
    lead = a.shape[:-1]
    states = {
        "M": M.reshape(-1, *M.shape[-3:]),
        "Q": Q.reshape(-1, *Q.shape[-3:]),
        "a": a.reshape(-1, a.shape[-1]),
    }
    structure, parameters = problem.structure, problem.parameters
    clusters = len(parameters["cluster_weights"])
    few = structure.width < indicators.MOST_UNITS or len(states["a"]) * clusters <= MOST_STATES
    is_exact = has_logistic_moments(structure.loss.student)
    if is_exact and structure.width <= indicators.MOST_UNITS and few:
        shares, errors = _exact(parameters, states)
    else:
        nodes = np.zeros((2, 1, 0))  # a single unit has one line
        if structure.width > 1:
            log2_lines = (
                LOG2_LINES if len(states["a"]) * clusters <= MOST_STATES else LOG2_LINES_OF_MANY
            )
            nodes = sobol_normals(structure.width - 1, log2_lines, REPLICATES, whiten=False)
        (both,) = map_in_chunks(
            partial(_on_lines, structure, nodes, stack_lanes([parameters], 1)), [states], 1
        )
        shares, errors = both[:, 0], both[:, 1]
    return shares.reshape(lead), float(np.max(errors[np.isfinite(errors)], initial=0.0))


def _exact(parameters: Parameters, states: State) -> tuple[np.ndarray, np.ndarray]:
    """The share classified correctly by ReLU networks of up to four units, and its errors."""
    weights, labels, coefficients = (
        np.asarray(parameters[f"cluster_{name}"]) for name in ("weights", "labels", "coefficients")
    )
    shares, errors = np.full((2, len(states["a"])), np.nan)
    finite = np.nonzero(
        np.all(
            [np.isfinite(value).all(axis=tuple(range(1, value.ndim))) for value in states.values()],
            axis=0,
        )
    )[0]
    M, Q, head = (states[name][finite] for name in ("M", "Q", "a"))
    means = np.einsum("cr,nir->nci", coefficients, M.sum(axis=1))
    count, clusters, units = means.shape
    covariance = np.repeat(input_covariance.variance(parameters, Q), clusters, axis=0)
    positive, error = indicators.positive_share_and_error(
        means.reshape(-1, units), covariance, np.repeat(head, clusters, axis=0)
    )
    positive, error = positive.reshape(count, clusters), error.reshape(count, clusters)
    shares[finite] = np.where(labels > 0.5, positive, 1 - positive) @ weights
    errors[finite] = error @ weights
    return shares, errors


@partial(jax.jit, static_argnums=0)
def _on_lines(
    structure: Structure,
    nodes: Float[Numeric, "replicates n m"],
    parameters: Parameters,
    states: State,
    count: Numeric,
) -> Float[Numeric, "1 n 2"]:
    """The share classified correctly and its standard error at the first `count` states."""
    width = structure.width

    def at_state(numbers: Parameters, state: State) -> Float[Numeric, "2"]:
        overlaps = overlaps_at(structure, numbers, state)
        means = overlaps.means(numbers["cluster_coefficients"])[:, :width]
        covariance = overlaps.covariance[:width, :width]

        def signs_of(mean: Float[Numeric, " p"]) -> Float[Numeric, " replicates"]:
            along = partial(sign_on_lines, structure.loss.student)
            return jax.vmap(lambda node: along(node, mean, covariance, state["a"]))(nodes)

        labels = 2 * numbers["cluster_labels"] - 1
        shares = 0.5 + 0.5 * labels[:, None] * jax.vmap(signs_of)(means)
        right = numbers["cluster_weights"] @ shares
        return jnp.stack([jnp.mean(right), jnp.std(right, ddof=1) / np.sqrt(len(right))])

    return jax.lax.map(
        lambda lane: map_first_states(partial(at_state, lane[0]), lane[1], count),
        (parameters, states),
    )


def sign_on_lines(
    activation: Activation,
    nodes: Float[Numeric, "n m"],
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
) -> Float[Numeric, ""]:
    """Estimate E[sign f] for f = sum_i head_i activation(h_i), h ~ N(mean, covariance).

    The average is over lines along the largest principal axis, through `nodes` of the other axes.
    """
    variances, axes = jnp.linalg.eigh(covariance)
    slopes = axes * jnp.sqrt(jnp.maximum(variances, 0.0))
    base, slope = mean + nodes @ slopes[:, :-1].T, slopes[:, -1]

    def output(t: Float[Numeric, "n e"]) -> Float[Numeric, "n e"]:
        return activation(base[:, None] + t[..., None] * slope) @ head

    lines = len(nodes)
    ends = jnp.linspace(-REACH, REACH, 2 if activation.name in PIECEWISE_LINEAR else INTERVALS + 1)
    t = jnp.broadcast_to(ends, (lines, len(ends)))
    if activation.kinks:
        moving = slope != 0
        steps = jnp.where(moving, slope, 1.0)
        kinks = jnp.stack([(kink - base) / steps for kink in activation.kinks], axis=1)
        places = jnp.where(moving, jnp.clip(kinks, -REACH, REACH), REACH).reshape(lines, -1)
        t = _merged(t, places)
    values = output(t)
    # an output that is 0 up to rounding is a tie
    size = jnp.sum(jnp.abs(head) * (jnp.abs(mean) + jnp.abs(slopes).sum(axis=1)))
    values = jnp.where(jnp.abs(values) <= 1e-13 * size, 0.0, values)
    left, right = (t[:, :-1], values[:, :-1]), (t[:, 1:], values[:, 1:])
    root = _chord_root(left, right)
    for _ in range(0 if activation.name in PIECEWISE_LINEAR else CORRECTIONS):
        value = output(root)
        above = value * left[1] > 0
        left = (jnp.where(above, root, left[0]), jnp.where(above, value, left[1]))
        right = (jnp.where(above, right[0], root), jnp.where(above, right[1], value))
        root = _chord_root(left, right)
    below, middle, signs = jax.scipy.special.ndtr(t), jax.scipy.special.ndtr(root), jnp.sign(values)
    parts = signs[:, :-1] * (middle - below[:, :-1]) + signs[:, 1:] * (below[:, 1:] - middle)
    return jnp.mean(jnp.sum(parts, axis=1))


def _merged(ends: Float[Numeric, "n e"], places: Float[Numeric, "n k"]) -> Float[Numeric, "n both"]:
    """Sort two fixed ends and what lies between them.

    Few columns are sorted by exchanges of neighbours, because XLA sorts short rows slowly.
    """
    columns = list(jnp.moveaxis(places, 1, 0))
    if ends.shape[1] > 2 or len(columns) > MOST_EXCHANGED:
        return jnp.sort(jnp.concatenate([ends, places], axis=1), axis=1)
    for last in range(len(columns) - 1, 0, -1):
        for i in range(last):
            low, high = columns[i], columns[i + 1]
            columns[i], columns[i + 1] = jnp.minimum(low, high), jnp.maximum(low, high)
    return jnp.concatenate([ends[:, :1], jnp.stack(columns, axis=1), ends[:, 1:]], axis=1)


def _chord_root(
    left: tuple[Float[Numeric, "n e"], Float[Numeric, "n e"]],
    right: tuple[Float[Numeric, "n e"], Float[Numeric, "n e"]],
) -> Float[Numeric, "n e"]:
    """The zero of the chord between two points of opposite signs; the left point for others."""
    crosses = left[1] * right[1] < 0
    below = (left[1] != 0) & (right[1] == 0)  # the sign of the left point holds up to the right one
    share = left[1] / jnp.where(crosses, left[1] - right[1], 1.0)
    return jnp.where(
        crosses, left[0] + (right[0] - left[0]) * share, jnp.where(below, right[0], left[0])
    )
