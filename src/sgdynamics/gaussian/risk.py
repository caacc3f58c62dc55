"""The population risk of overlaps, for whole trajectories at once."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.controls import numbers_at
from sgdynamics.gaussian.moments import Rule, accuracy, pair_error, risk, risk_nodes, sampled, series_rule
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure

CHUNK = 256
SMALL_CHUNK = 32
SHORT = 8  # lanes of a program for a few
MARGIN = 2.0  # a rule chosen from a start serves rows of up to twice its squared length
TOLERANCE = 1e-9  # relative error at which a Mehler series is long enough


def effective_overlaps(structure: Structure, parameters: Any, M: Any, Q: Any) -> tuple[Any, Any, Any]:
    """Omega_b of each block, the covariance of the fields, Omega = sum_b eigenvalue_b Omega_b, and their mean on each cluster (or None)."""
    gram = jnp.broadcast_to(parameters["gram"], (structure.blocks, structure.signals, structure.signals))
    upper = jnp.concatenate([Q, M], axis=-1)
    lower = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
    blocks = jnp.concatenate([upper, lower], axis=-2)
    omega = jnp.einsum("b,bij->ij", parameters["eigenvalues"], blocks)
    if not structure.clusters:
        return blocks, omega, None
    return blocks, omega, parameters["cluster_coefficients"] @ jnp.sum(blocks, axis=0)[structure.width :]


def _at(structure: Structure, parameters: Any, state: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The numbers of a problem at a state (at its alpha, where they depend on it), Omega, and the means of clusters."""
    now = numbers_at(parameters, state["alpha"]) if "alpha" in state else parameters
    _, omega, means = effective_overlaps(structure, now, state["M"], state["Q"])
    return now, omega, means


@partial(jax.jit, static_argnums=(0, 1))
def _risks(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    """The risk of every lane (outer) and state, by every replicate of the nodes."""

    def one(parameters: Any, state: Any) -> Any:
        now, omega, means = _at(structure, parameters, state)
        return jax.vmap(lambda node: risk(structure, rule, node, now, omega, state["a"], means))(nodes)

    return jax.lax.map(lambda lane: jax.lax.map(partial(one, lane[0]), lane[1], batch_size=16), (parameters, states))


@partial(jax.jit, static_argnums=(0, 1))
def _pair_errors(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    first = jax.tree.map(lambda node: node[0], nodes)

    def one(parameters: Any, state: Any) -> Any:
        now, omega, means = _at(structure, parameters, state)
        return pair_error(structure, rule, first, now, omega, state["a"], means)

    return jax.lax.map(lambda lane: jax.lax.map(partial(one, lane[0]), lane[1]), (parameters, states))


@float64
def population_risk(problem: Problem, states: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """E[loss] for states M (..., block, unit, signal), Q, a with any leading axes, and an estimate of its largest relative error.

    Where numbers of the problem depend on alpha, the states have an `alpha` too.
    """
    (found,) = risks_by(problem.structure, rule_for(problem, states["Q"], MARGIN), [problem.parameters], [states], quick=True)
    return found.risk, max(found.sampling, found.worst)


@float64
def rule_for(problem: Problem, Q: np.ndarray, margin: float) -> Rule:
    """A rule that is fine enough for rows as long as these, `margin` times over."""
    eigenvalues = problem.parameters["eigenvalues"]
    fields = np.einsum("...bii,b->...i", Q, eigenvalues)
    signals = np.einsum("bii,b->i", problem.gram, eigenvalues)
    return series_rule(problem.structure, max(margin * _largest(fields), float(signals.max())))


class Risks(NamedTuple):
    """Risks with the leading axes of their states, the largest relative standard error of their sampling, and that of pairs and grids."""

    risk: np.ndarray
    sampling: float
    worst: float


@float64
def risks_by(
    structure: Structure, rule: Rule, parameters: list[Any], states: list[dict[str, np.ndarray]], *, quick: bool = False, size: int = 1
) -> list[Risks]:
    """The risks of one or more problems of one structure, each at its own states, by one rule; `size` lanes to a program."""
    nodes = risk_nodes(structure, rule, quick=quick)
    numbers = filled(parameters, size)
    leads = [one["a"].shape[:-1] for one in states]
    flat = [
        {name: value.reshape(-1, *value.shape[len(lead) :]) for name, value in one.items()} for one, lead in zip(states, leads, strict=True)
    ]
    every = _in_chunks(partial(_risks, structure, rule, nodes, numbers), flat, size)
    worst = [0.0] * len(states)
    if "plain" not in nodes:
        # an error estimate costs more than the risk itself: take it at a few states, those with the longest rows among them
        some = filled([{name: value[_telling(one)] for name, value in one.items()} for one in flat], size)
        worst = [_largest(one) for one in np.asarray(_pair_errors(structure, rule, nodes, numbers, some))]
    noisy = "plain" in nodes or sampled(structure, flow=True)
    found = []
    for one, lead, bad in zip(every, leads, worst, strict=False):
        risk = one.mean(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = _largest(one.std(axis=1, ddof=1) / np.sqrt(one.shape[1]) / np.abs(risk)) if noisy else 0.0
        found.append(Risks(risk.reshape(lead), share, bad))
    return found


def _telling(states: dict[str, np.ndarray]) -> np.ndarray:
    """At which of many states errors are estimated: at the longest rows, and evenly over all."""
    count = len(states["a"])
    longest = np.argsort(-np.nan_to_num(states["Q"].trace(axis1=-2, axis2=-1).sum(axis=-1)))[: SMALL_CHUNK // 4]
    return np.concatenate([longest, np.linspace(0, count - 1, SMALL_CHUNK - len(longest)).astype(int)])


@partial(jax.jit, static_argnums=(0, 1))
def _accuracies(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    def one(parameters: Any, state: Any) -> Any:
        now, omega, means = _at(structure, parameters, state)
        return accuracy(structure, rule, nodes, now, omega, state["a"], means)

    return jax.lax.map(lambda lane: jax.lax.map(partial(one, lane[0]), lane[1], batch_size=16), (parameters, states))


@float64
def population_accuracy(problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The share of a mixture's data that a network classifies right, a tie f = 0 counted as 1/2 (beyond two units known to about 1e-3)."""
    rule = rule_for(problem, Q, MARGIN)
    nodes = {name: value[0] for name, value in risk_nodes(problem.structure, rule).items()}
    flat = {"M": M.reshape(-1, *M.shape[-3:]), "Q": Q.reshape(-1, *Q.shape[-3:]), "a": a.reshape(-1, a.shape[-1])}
    (found,) = _in_chunks(partial(_accuracies, problem.structure, rule, nodes, filled([problem.parameters], 1)), [flat], 1)
    return found.reshape(a.shape[:-1])


def filled(items: list[Any], size: int) -> Any:
    """Trees of numbers, stacked along a first axis of one of two lengths (one for a single item): few programs are compiled."""
    length = min(size, SHORT) if len(items) <= SHORT else size
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(items + [items[-1]] * (length - len(items))))


def _in_chunks(function: Any, states: list[dict[str, np.ndarray]], size: int) -> list[np.ndarray]:
    """A function of the states of every lane, in chunks of one size, the last filled up, so that any number of them compiles once."""
    counts = [len(one["a"]) for one in states]
    most = max(counts)
    chunk = min(CHUNK, 1 << (most - 1).bit_length()) if size > 1 else (CHUNK if most > SMALL_CHUNK else SMALL_CHUNK)
    values = []
    for first in range(0, most, chunk):
        places = [np.minimum(np.arange(first, first + chunk), count - 1) for count in counts]
        part = [{name: value[place] for name, value in one.items()} for one, place in zip(states, places, strict=True)]
        values.append(np.asarray(function(filled(part, size))))
    every = np.concatenate(values, axis=1)
    return [every[row, :count] for row, count in enumerate(counts)]


def _largest(values: np.ndarray) -> float:
    """The largest value that is a number (runs that diverged are NaN)."""
    return float(np.max(values[np.isfinite(values)], initial=0.0))
