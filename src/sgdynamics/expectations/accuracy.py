"""The share of a Gaussian mixture that a network classifies correctly, with its error.

ReLU networks of up to four units are integrated exactly (`expectations.indicators`). All others,
and very many states, are averages over lines along the largest principal axis of the
preactivations: on a line the output changes sign at its roots, between which the normal
distribution function gives the probability. The lines pass through scrambled Sobol points, and
independent scramblings give the standard error.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, State
from sgdynamics.base.precision import float64
from sgdynamics.expectations import indicators
from sgdynamics.expectations.closed_forms import has_logistic_moments
from sgdynamics.expectations.nodes import columns_of_product, single_on_gpu, sobol_normals
from sgdynamics.expectations.risk import (
    distinct_states,
    map_first_states,
    map_in_chunks,
    overlaps_at,
    stack_lanes,
    states_per_batch,
)
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance

# Largest number of states times clusters that are integrated exactly for four units.
MOST_STATES = 500
LOG2_LINES, LOG2_LINES_OF_MANY, REPLICATES = 9, 6, 8  # few states have more lines each
REACH = indicators.REACH
INTERVALS = 32  # of a line, for activations that are not piecewise linear
CORRECTIONS = 2  # steps of the secant method per root, for the same
MOST_EXCHANGED = 12  # cuts that are sorted by exchanges of neighbours
TIE = 1e-13  # relative output that is 0 up to rounding


@float64
def population_accuracy(
    problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, float]:
    """The share classified correctly at states with any leading axes, and its absolute error.

    A tie f = 0 counts as 1/2. The error is the largest over all states.
    """
    lead = a.shape[:-1]
    states, positions = distinct_states({"M": M, "Q": Q, "a": a})
    structure, parameters = problem.structure, problem.parameters
    count = len(states["a"]) * len(parameters["cluster_weights"])
    is_cheap = structure.width < indicators.MOST_UNITS or count <= MOST_STATES
    has_exact_signs = has_logistic_moments(structure.loss.student)
    if has_exact_signs and structure.width <= indicators.MOST_UNITS and is_cheap:
        shares, errors = _exact_shares(parameters, states)
    else:
        nodes = np.zeros((2, 1, 0))  # a single unit has one line
        if structure.width > 1:
            log2_lines = LOG2_LINES if count <= MOST_STATES else LOG2_LINES_OF_MANY
            nodes = sobol_normals(structure.width - 1, log2_lines, REPLICATES, whiten=False)
        ((estimates,),) = map_in_chunks(
            [partial(_line_shares, structure, nodes, stack_lanes([parameters], 1))], [states], 1
        )
        shares, errors = estimates[:, 0], estimates[:, 1]
    shares = shares[positions].reshape(lead)
    return shares, float(np.max(errors[np.isfinite(errors)], initial=0.0))


def _exact_shares(parameters: Parameters, states: State) -> tuple[np.ndarray, np.ndarray]:
    """The share classified correctly by ReLU networks of up to four units, and its errors."""
    weights, labels, coefficients = (
        np.asarray(parameters[f"cluster_{name}"]) for name in ("weights", "labels", "coefficients")
    )
    shares, errors = np.full((2, len(states["a"])), np.nan)
    # states that diverged have no accuracy
    are_finite = [
        np.isfinite(value).all(axis=tuple(range(1, value.ndim))) for value in states.values()
    ]
    finite = np.flatnonzero(np.all(are_finite, axis=0))
    M, Q, head = (states[name][finite] for name in ("M", "Q", "a"))
    # mean of unit i in cluster c: sum_r coefficient_cr M_ir
    means = np.einsum("cr,nir->nci", coefficients, M.sum(axis=1))
    count, clusters, units = means.shape
    covariance = np.repeat(input_covariance.field_covariance(parameters, Q), clusters, axis=0)
    positive, error = indicators.positive_share_and_error(
        means.reshape(-1, units), covariance, np.repeat(head, clusters, axis=0)
    )
    positive, error = positive.reshape(count, clusters), error.reshape(count, clusters)
    shares[finite] = np.where(labels > 0.5, positive, 1 - positive) @ weights
    errors[finite] = error @ weights
    return shares, errors


@partial(jax.jit, static_argnums=0)
def _line_shares(
    structure: Structure,
    nodes: Float[Numeric, "replicates n m"],
    parameters: Parameters,
    states: State,
    count: Numeric,
) -> Float[Numeric, "1 n 2"]:
    """The share classified correctly and its standard error, at the first `count` states."""
    width = structure.width

    def state_share(parameters: Parameters, state: State) -> Float[Numeric, "2"]:
        overlaps = overlaps_at(structure, parameters, state)
        means = overlaps.means(parameters["cluster_coefficients"])[:, :width]
        covariance = overlaps.covariance[:width, :width]
        mean_sign = partial(sign_on_lines, structure.loss.student)

        def replicate_signs(mean: Float[Numeric, " p"]) -> Float[Numeric, " replicates"]:
            return jax.vmap(lambda node: mean_sign(node, mean, covariance, state["a"]))(nodes)

        # P(correct) = (1 + y E[sign f])/2 with y = +-1
        signs = 2 * parameters["cluster_labels"] - 1
        shares = 0.5 + 0.5 * signs[:, None] * jax.vmap(replicate_signs)(means)
        correct = parameters["cluster_weights"] @ shares
        standard_error = jnp.std(correct, ddof=1) / np.sqrt(len(correct))
        return jnp.stack([jnp.mean(correct), standard_error])

    clusters = parameters["cluster_weights"].shape[-1]
    batch_size = states_per_batch(states, clusters * nodes.shape[0] * nodes.shape[1] * width)
    return jax.lax.map(
        lambda lane: map_first_states(partial(state_share, lane[0]), lane[1], count, batch_size),
        (parameters, states),
    )


class _LineEnds(NamedTuple):
    """One end of intervals of each line: coordinate and output."""

    t: Float[Numeric, "n ..."]
    value: Float[Numeric, "n ..."]


def sign_on_lines(
    activation: Activation,
    nodes: Float[Numeric, "n m"],
    mean: Float[Numeric, " p"],
    covariance: Float[Numeric, "p p"],
    head: Float[Numeric, " p"],
) -> Float[Numeric, ""]:
    """E[sign f] for f = sum_i head_i activation(h_i), h ~ N(mean, covariance).

    The average is over lines along the largest principal axis, through `nodes` of the other axes.
    """
    # the largest axis is integrated exactly, which removes most of the variance over lines
    variances, axes = jnp.linalg.eigh(covariance)
    slopes = axes * jnp.sqrt(jnp.maximum(variances, 0.0))
    base, slope = mean + nodes @ slopes[:, :-1].T, slopes[:, -1]

    def output(t: Float[Numeric, "n e"]) -> Float[Numeric, "n e"]:
        return activation(base[:, None] + t[..., None] * slope) @ head

    degree = activation.piecewise_degree
    is_piecewise_linear = degree is not None and degree <= 1
    size = jnp.sum(jnp.abs(head) * (jnp.abs(mean) + jnp.abs(slopes).sum(axis=1)))
    if is_piecewise_linear and 0 < len(activation.kinks) * len(mean) <= MOST_EXCHANGED:
        bases = columns_of_product(nodes, slopes[:, :-1].T)
        bases = [base + mean[i] for i, base in enumerate(bases)]
        return _sign_on_few_pieces(activation, bases, slope, head, TIE * size)
    lines = len(nodes)
    ends = jnp.linspace(-REACH, REACH, 2 if is_piecewise_linear else INTERVALS + 1)
    t = jnp.broadcast_to(ends, (lines, len(ends)))
    if activation.kinks:
        # a line is cut where a unit meets a kink; units that do not move along it are cut at its
        # end
        moving = slope != 0
        steps = jnp.where(moving, slope, 1.0)
        crossings = jnp.stack([(kink - base) / steps for kink in activation.kinks], axis=1)
        cuts = jnp.where(moving, jnp.clip(crossings, -REACH, REACH), REACH).reshape(lines, -1)
        t = jnp.sort(jnp.concatenate([t, cuts], axis=1), axis=1)
    values = output(t)
    values = jnp.where(jnp.abs(values) <= TIE * size, 0.0, values)
    left, right = _LineEnds(t[:, :-1], values[:, :-1]), _LineEnds(t[:, 1:], values[:, 1:])
    # the chord is exact on a linear piece; otherwise its root is corrected
    root = _chord_root(left, right)
    for _ in range(0 if is_piecewise_linear else CORRECTIONS):
        value = output(root)
        # keep the bracket: replace the end of the same sign
        same_side = value * left.value > 0
        left = _LineEnds(
            jnp.where(same_side, root, left.t), jnp.where(same_side, value, left.value)
        )
        right = _LineEnds(
            jnp.where(same_side, right.t, root), jnp.where(same_side, right.value, value)
        )
        root = _chord_root(left, right)
    # E[sign f] along a line: between neighbouring roots the sign is constant, and Phi telescopes
    signs = jnp.sign(values)
    jumps = signs[:, :-1] - signs[:, 1:]
    masses = jnp.sum(jumps * ndtr(root), axis=1)
    at_ends = ndtr(ends[np.array([0, -1])])
    return jnp.mean(masses + signs[:, -1] * at_ends[1] - signs[:, 0] * at_ends[0])


def _sign_on_few_pieces(
    activation: Activation,
    bases: list[Float[Numeric, " n"]],
    slope: Float[Numeric, " p"],
    head: Float[Numeric, " p"],
    tie: Float[Numeric, ""],
) -> Float[Numeric, ""]:
    """As `sign_on_lines` for a piecewise linear activation; `bases` are its arguments at t = 0.

    One array of all lines per cut: XLA fuses them into a single loop over lines, which writes
    nothing to memory.
    """
    moving = slope != 0
    rates = 1 / jnp.where(moving, slope, 1.0)
    cuts = [
        jnp.where(moving[i], jnp.clip((kink - base) * rates[i], -REACH, REACH), REACH)
        for kink in activation.kinks
        for i, base in enumerate(bases)
    ]
    for last in range(len(cuts) - 1, 0, -1):  # exchanges of neighbours
        for i in range(last):
            low, high = cuts[i], cuts[i + 1]
            cuts[i], cuts[i + 1] = jnp.minimum(low, high), jnp.maximum(low, high)
    ends = [jnp.full_like(bases[0], -REACH), *cuts, jnp.full_like(bases[0], REACH)]

    def output(t: Float[Numeric, " n"]) -> Float[Numeric, " n"]:
        value = sum(head[i] * activation(base + t * slope[i]) for i, base in enumerate(bases))
        return jnp.where(jnp.abs(value) <= tie, 0.0, value)

    values = [output(t) for t in ends]
    total = jnp.sign(values[-1]) * ndtr(REACH)
    total = total - jnp.sign(values[0]) * ndtr(-REACH)
    # a single line has no error of sampling, and is integrated in double precision
    several_lines = len(bases[0]) > 1
    normal_cdf = partial(single_on_gpu, ndtr) if several_lines else ndtr
    points = [_LineEnds(t, value) for t, value in zip(ends, values, strict=True)]
    for left, right in itertools.pairwise(points):
        jump = jnp.sign(left.value) - jnp.sign(right.value)
        total = total + jump * normal_cdf(_chord_root(left, right))
    return jnp.mean(total)


def _chord_root(left: _LineEnds, right: _LineEnds) -> Float[Numeric, "n ..."]:
    """The zero of the chord between ends of opposite signs, otherwise one of the two ends."""
    crosses = left.value * right.value < 0
    # the sign of the left end holds up to a right end at which the output vanishes
    ends_at_zero = (left.value != 0) & (right.value == 0)
    share = left.value / jnp.where(crosses, left.value - right.value, 1.0)
    chord = left.t + (right.t - left.t) * share
    return jnp.where(crosses, chord, jnp.where(ends_at_zero, right.t, left.t))
