"""The population risk of overlaps, for whole trajectories at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Parameters, State
from sgdynamics.base.controls import values_at
from sgdynamics.base.padding import power_of_two
from sgdynamics.base.precision import float64
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.pairs import UNKNOWN
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance

CHUNK = 256
LARGE_CHUNK = 1 << 14  # of many states: the host gathers and sends few chunks
TOGETHER = 16  # states of a chunk that are evaluated at once
TOGETHER_BYTES = (
    1 << 28
)  # the same on a GPU, which waits for the launch of each batch: as many as this memory holds
SOME = 32  # states at which errors are estimated
SHORT = 8  # lanes of a program for a few
MARGIN = 2.0  # a rule chosen from a start serves rows of up to twice its squared length
VAGUE = 0.3  # relative standard error of a positive risk at every state above which it counts as unknown
TOLERANCE = 1e-9  # relative error at which a Mehler series is long enough
REFINED_ABOVE = 1e-4  # relative error of risks on a quick grid above which a finer one is taken
MOST_EVALUATIONS = 5e7  # of a loss, on a finer grid at all states: about ten seconds


def overlaps_at(structure: Structure, parameters: Parameters, state: State) -> Overlaps:
    """The overlaps of students and signals from a state's M and Q: Omega_b of each block, and Omega = sum_b eigenvalue_b Omega_b."""
    M, Q = state["M"], state["Q"]
    gram = jnp.broadcast_to(
        parameters["gram"], (structure.blocks, structure.signals, structure.signals)
    )
    upper = jnp.concatenate([Q, M], axis=-1)
    lower = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
    blocks = jnp.concatenate([upper, lower], axis=-2)
    return Overlaps(blocks, input_covariance.variance(parameters, blocks))


def risk_at(
    structure: Structure, quadrature: Quadrature, nodes: Nodes, parameters: Parameters, state: State
) -> Float[Numeric, ""]:
    """E[loss] at one state {"M", "Q", "a"}, with one replicate of the expectation's `risk_nodes`."""
    return expectation_of(structure).risk(
        quadrature, nodes, parameters, overlaps_at(structure, parameters, state), state["a"]
    )


def _at(parameters: Parameters, state: State) -> Any:
    """The numbers of a problem at a state: at its alpha, where they depend on it."""
    return values_at(parameters, state["alpha"]) if "alpha" in state else parameters


@partial(jax.jit, static_argnums=(0, 1))
def _risks(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    states: State,
    count: IntScalar,
) -> Float[Numeric, "lanes states replicates"]:
    """The risk of every lane (outer) and of its first `count` states, by every replicate of the nodes."""

    def one(parameters: Parameters, state: State) -> Float[Numeric, " replicates"]:
        return jax.vmap(
            lambda node: risk_at(structure, quadrature, node, _at(parameters, state), state)
        )(nodes)

    together = _together(states, nodes)
    return jax.lax.map(
        lambda lane: map_first_states(partial(one, lane[0]), lane[1], count, together),
        (parameters, states),
    )


def _together(states: State, nodes: Nodes) -> int:
    """How many states are evaluated at once: few on a processor, as many as memory allows on a GPU."""
    if jax.default_backend() != "gpu":
        return TOGETHER
    points = max((leaf.size for leaf in jax.tree.leaves(nodes)), default=1)
    overlaps = sum(leaf[0, 0].size for leaf in jax.tree.leaves(states))
    largest = TOGETHER_BYTES // (64 * (points + overlaps))
    return max(TOGETHER, 1 << (largest.bit_length() - 1))


def map_first_states(
    one: Callable[[State], Any], states: State, count: IntScalar, together_size: int = TOGETHER
) -> Any:
    """A function of the first `count` states, a few at a time, and 0 for the others: one program for few and for many."""

    def part(index: IntScalar) -> State:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, size * index, size), states
        )

    def few(index: IntScalar, found: Numeric) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(found, together(part(index)), size * index, 0)

    length = len(states["a"])
    size = min(together_size, length)  # both are powers of two
    together = jax.jit(jax.vmap(one))  # named in two places, traced once
    shape = jax.eval_shape(together, jax.eval_shape(part, 0))
    return jax.lax.fori_loop(
        0, (count + size - 1) // size, few, jnp.zeros((length, *shape.shape[1:]), shape.dtype)
    )


@partial(jax.jit, static_argnums=(0, 1))
def _errors(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    states: State,
) -> Float[Numeric, "1 n 2"]:
    """The `errors` (2,) of the expectation at all states, one after the other."""

    def at_state(parameters: Parameters, state: State) -> Float[Numeric, "2"]:
        now = _at(parameters, state)
        return jnp.stack(
            expectation_of(structure).errors(
                quadrature, nodes, now, overlaps_at(structure, now, state), state["a"]
            )
        )

    return jax.lax.map(
        lambda lane: jax.lax.map(partial(at_state, lane[0]), lane[1]), (parameters, states)
    )


@float64
def population_risk(problem: Problem, states: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """E[loss] for states M (..., block, unit, signal), Q, a with any leading axes, and an estimate of its largest relative error.

    Where numbers of the problem depend on alpha, the states have an `alpha` too. Grids are quick at
    first, and finer where their error matters and there are not too many states.
    """
    quadrature = choose_quadrature(problem, states["Q"], MARGIN)
    (found,) = compute_risks(
        problem.structure, quadrature, [problem.parameters], [states], quick=True
    )
    if found.of_risk > REFINED_ABOVE:
        found = _refine(problem, quadrature, states, found)
    return found.risk, max(found.sampling, found.worst)


def _refine(
    problem: Problem, quadrature: Quadrature, states: dict[str, np.ndarray], risks: Risks
) -> Risks:
    """The risks on finer grids, until their error is small or the work is too much."""
    expectation = expectation_of(problem.structure)
    count = math.prod(states["a"].shape[:-1])
    size = _evaluations(expectation.risk_nodes(quadrature))
    finer: Quadrature | None = quadrature
    while size and finer is not None and risks.of_risk > REFINED_ABOVE:
        evaluations = _evaluations(expectation.risk_nodes(finer, quick=False))
        # the error estimate takes two grids at SOME states
        if (count + 2 * SOME) * evaluations > MOST_EVALUATIONS:
            break
        if evaluations > size:
            (risks,) = compute_risks(problem.structure, finer, [problem.parameters], [states])
            size = evaluations
        finer = refine_quadrature(problem, finer, states["Q"])
    return risks


def _evaluations(nodes: Nodes) -> int:
    """Evaluations of the loss per state on a grid; 0 for nodes that are no grid."""
    if "between_points" not in nodes:
        return 0
    return nodes["points"].shape[1] * (nodes["few"].shape[1] if "few" in nodes else 1)


@float64
def choose_quadrature(problem: Problem, Q: np.ndarray, margin: float) -> Quadrature:
    """A rule that is fine enough for rows as long as these, `margin` times over."""
    return expectation_of(problem.structure).quadrature(_largest_field(problem, Q, margin))


def _largest_field(problem: Problem, Q: np.ndarray, margin: float) -> float:
    students, signals = (
        np.einsum("...ii->...i", input_covariance.variance(problem.parameters, part))
        for part in (Q, problem.gram)
    )
    return max(margin * _largest(students), float(signals.max(initial=0.0)))


@float64
def refine_quadrature(problem: Problem, quadrature: Quadrature, Q: np.ndarray) -> Quadrature | None:
    """A rule for the rows of a run at which this one was not accurate, where there is a finer one: they grew, or became more parallel."""
    return expectation_of(problem.structure).finer(quadrature, _largest_field(problem, Q, 1.0))


class Risks(NamedTuple):
    """Risks with the leading axes of their states, the largest relative standard error of their sampling, and that of pairs and grids.

    A risk that quadrature does not determine (`undetermined`), such as an infinite one, is NaN.
    """

    risk: np.ndarray
    sampling: float
    worst: float
    undetermined: bool = False
    of_risk: float = 0.0  # largest relative error of the risk itself, by pairs and grids


@float64
def compute_risks(
    structure: Structure,
    quadrature: Quadrature,
    parameters: list[Any],
    states: list[dict[str, np.ndarray]],
    *,
    quick: bool = False,
    size: int = 1,
) -> list[Risks]:
    """The risks of one or more problems of one structure, each at its own states, by one rule; `size` lanes to a program."""
    nodes = expectation_of(structure).risk_nodes(quadrature, quick=quick)
    numbers = stack_lanes(parameters, size)
    leads = [one["a"].shape[:-1] for one in states]
    flat = [
        {
            name: value.reshape(math.prod(lead), *value.shape[len(lead) :])
            for name, value in one.items()
        }
        for one, lead in zip(states, leads, strict=True)
    ]
    every = map_in_chunks(partial(_risks, structure, quadrature, nodes, numbers), flat, size)
    errors = np.zeros((len(states), 1, 2))
    if "plain" not in nodes:
        # an error estimate costs more than the risk itself: take it at a few states, those with the longest rows among them
        some = stack_lanes([_telling(one) for one in flat], size)
        first = {name: value[0] for name, value in nodes.items()}
        errors = np.asarray(_errors(structure, quadrature, first, numbers, some))
    found = []
    for one, lead, error in zip(every, leads, errors, strict=False):
        risk = one.mean(axis=1)
        shares = np.zeros(1)
        if one.shape[1] > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                shares = one.std(axis=1, ddof=1) / np.sqrt(one.shape[1]) / np.abs(risk)
        least = (
            float(np.min(shares[np.isfinite(shares)], initial=np.inf))
            if np.any(np.isfinite(shares))
            else 0.0
        )
        # a change as large as the risk itself at every state: it grows with the reach of the grid, or lies between its points; of points,
        # a few carry most of it
        of_risk = error[np.isfinite(error[:, 1]), 1]
        undetermined = bool(len(of_risk) and of_risk.min() >= UNKNOWN / 2) or (
            least > VAGUE and bool(np.all(one[np.isfinite(one)] > 0))
        )
        risk = np.full_like(risk, np.nan) if undetermined else risk
        worst = _largest(error[:, 0]) if np.any(np.isfinite(error[:, 0])) else np.nan
        found.append(
            Risks(risk.reshape(lead), _largest(shares), worst, undetermined, _largest(of_risk))
        )
    return found


def _telling(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of many states at which errors are estimated: with the longest rows, and evenly over all."""
    longest = np.argsort(-np.nan_to_num(np.einsum("sbii->s", states["Q"])))[: SOME // 4]
    places = [*longest, *np.linspace(0, len(states["a"]) - 1, SOME - len(longest)).astype(int)]
    return {name: value[places] for name, value in states.items()}


# of any function: 2^12 points in each replicate, and 2^10 for each case of discrete draws
EXPECTED, EXPECTED_BY_CASE = (
    Quadrature(log2_points=10, replicates=16),
    Quadrature(log2_points=12, replicates=16),
)


@float64
def estimate_expectation(
    problem: Problem, function: Loss, states: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """E[function] of a sample, a number or an array, at states as of `population_risk`, and its standard errors.

    Averages over scrambled Sobol points, discrete draws case by case: nothing is assumed of the function, which may jump.
    """
    structure = problem.structure.with_loss(function)
    by_case = structure.sample.free < structure.sample.draw_normals
    quadrature = EXPECTED_BY_CASE if by_case else EXPECTED
    nodes = expectation_of(structure).risk_nodes(quadrature)
    lead = states["a"].shape[:-1]
    flat = {
        name: value.reshape(math.prod(lead), *value.shape[len(lead) :])
        for name, value in states.items()
    }
    (every,) = map_in_chunks(
        partial(_risks, structure, quadrature, nodes, stack_lanes([problem.parameters], 1)),
        [flat],
        1,
    )
    error = every.std(axis=1, ddof=1) / np.sqrt(every.shape[1])
    return every.mean(axis=1).reshape(*lead, *every.shape[2:]), error.reshape(
        *lead, *every.shape[2:]
    )


def stack_lanes(items: list[Any], size: int) -> Any:
    """Trees of numbers, stacked along a first axis of one of two lengths (one for a single item): few programs are compiled."""
    length = min(size, SHORT) if len(items) <= SHORT else size
    return jax.tree.map(
        lambda *leaves: np.stack(leaves), *(items + [items[-1]] * (length - len(items)))
    )


def map_in_chunks(
    function: Callable[..., Any], states: list[dict[str, np.ndarray]], size: int
) -> list[np.ndarray]:
    """A function of the states of every lane, in chunks of one size, the last filled up, so that any number of them compiles once."""
    counts = [len(one["a"]) for one in states]
    most = max(counts)
    chunk = LARGE_CHUNK if size == 1 and most > LARGE_CHUNK else CHUNK
    chunk = min(chunk, power_of_two(most)) if size > 1 else chunk
    values = []
    for first in range(0, most, chunk):
        places = [np.minimum(np.arange(first, first + chunk), count - 1) for count in counts]
        part = [
            {name: value[place] for name, value in one.items()}
            for one, place in zip(states, places, strict=True)
        ]
        values.append(
            np.asarray(function(stack_lanes(part, size), np.int64(min(chunk, most - first))))
        )
    every = np.concatenate(values, axis=1)
    return [every[row, :count] for row, count in enumerate(counts)]


def _largest(values: np.ndarray) -> float:
    """The largest value that is a number (runs that diverged are NaN)."""
    return float(np.max(values[np.isfinite(values)], initial=0.0))
