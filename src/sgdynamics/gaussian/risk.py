"""The population risk of overlaps, for whole trajectories at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.gaussian.moments import Rule, accuracy, pair_error, risk, risk_nodes, sampled, series_rule
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure

CHUNK = 256
SMALL_CHUNK = 32
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


@partial(jax.jit, static_argnums=(0, 1))
def _risks(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    def one(state: Any) -> Any:
        _, omega, means = effective_overlaps(structure, parameters, state["M"], state["Q"])
        return jax.vmap(lambda node: risk(structure, rule, node, parameters, omega, state["a"], means))(nodes)

    return jax.lax.map(one, states, batch_size=16)


@partial(jax.jit, static_argnums=(0, 1))
def _pair_errors(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    first = jax.tree.map(lambda node: node[0], nodes)

    def one(state: Any) -> Any:
        _, omega, means = effective_overlaps(structure, parameters, state["M"], state["Q"])
        return pair_error(structure, rule, first, parameters, omega, state["a"], means)

    return jax.lax.map(one, states)


@float64
def population_risk(problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, float]:
    """E[loss] for overlaps with any leading axes (M: ..., block, unit, signal), and an estimate of its largest relative error."""
    risk, sampling, worst = risk_by(problem, rule_for(problem, Q, MARGIN), M, Q, a, quick=True)
    return risk, max(sampling, worst)


def risk_in_time(problem: Problem, overlaps: dict[str, np.ndarray], places: Any) -> tuple[np.ndarray, float]:
    """The same for overlaps (..., time, block, unit, ...) with the problem's numbers at each place in alpha (on fixed data in t)."""
    parts = [overlaps[name] for name in ("M", "Q", "a")]
    if not problem.scheduled:
        return population_risk(problem, *parts)
    time = parts[2].ndim - 2
    found = [population_risk(problem.at(place), *(part.take(index, time) for part in parts)) for index, place in enumerate(places)]
    return np.stack([risk for risk, _ in found], axis=-1), max(error for _, error in found)


@float64
def rule_for(problem: Problem, Q: np.ndarray, margin: float) -> Rule:
    """A rule that is fine enough for rows as long as these, `margin` times over."""
    eigenvalues = problem.parameters["eigenvalues"]
    fields = np.einsum("...bii,b->...i", Q, eigenvalues)
    signals = np.einsum("bii,b->i", problem.gram, eigenvalues)
    return series_rule(problem.structure, max(margin * _largest(fields), float(signals.max())))


@float64
def risk_by(
    problem: Problem, rule: Rule, M: np.ndarray, Q: np.ndarray, a: np.ndarray, *, quick: bool = False
) -> tuple[np.ndarray, float, float]:
    """The risk by one rule, the largest relative standard error of its sampling, and that of its pair expectations."""
    lead = a.shape[:-1]
    states = {"M": M.reshape(-1, *M.shape[-3:]), "Q": Q.reshape(-1, *Q.shape[-3:]), "a": a.reshape(-1, a.shape[-1])}
    count = states["a"].shape[0]
    nodes = risk_nodes(problem.structure, rule, quick=quick)
    replicates = _in_chunks(partial(_risks, problem.structure, rule, nodes, problem.parameters), M, Q, a)
    risk = replicates.mean(axis=1)
    if "plain" in nodes:
        with np.errstate(invalid="ignore", divide="ignore"):
            share = _largest(replicates.std(axis=1, ddof=1) / np.sqrt(replicates.shape[1]) / np.abs(risk))
        return risk.reshape(lead), share, 0.0
    # an error estimate costs more than the risk itself: take it at a few states, those with the longest rows among them
    longest = np.argsort(-np.nan_to_num(states["Q"].trace(axis1=-2, axis2=-1).sum(axis=-1)))[: SMALL_CHUNK // 4]
    evenly = np.linspace(0, count - 1, SMALL_CHUNK - len(longest)).astype(int)
    some = {name: value[np.concatenate([longest, evenly])] for name, value in states.items()}
    worst = _largest(np.asarray(_pair_errors(problem.structure, rule, nodes, problem.parameters, some)))
    sampling = 0.0
    if sampled(problem.structure, flow=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            sampling = _largest(replicates.std(axis=1, ddof=1) / np.sqrt(replicates.shape[1]) / np.abs(risk))
    return risk.reshape(lead), sampling, worst


@partial(jax.jit, static_argnums=(0, 1))
def _accuracies(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    def one(state: Any) -> Any:
        _, omega, means = effective_overlaps(structure, parameters, state["M"], state["Q"])
        return accuracy(structure, rule, nodes, parameters, omega, state["a"], means)

    return jax.lax.map(one, states, batch_size=16)


@float64
def population_accuracy(problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The share of a mixture's data that a network classifies right, a tie f = 0 counted as 1/2 (beyond two units known to about 1e-3)."""
    rule = rule_for(problem, Q, MARGIN)
    nodes = {name: value[0] for name, value in risk_nodes(problem.structure, rule).items()}
    return _in_chunks(partial(_accuracies, problem.structure, rule, nodes, problem.parameters), M, Q, a).reshape(a.shape[:-1])


def _in_chunks(function: Any, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """A function of states, in chunks of one size, the last filled up, so that any number of them compiles once."""
    states = {"M": M.reshape(-1, *M.shape[-3:]), "Q": Q.reshape(-1, *Q.shape[-3:]), "a": a.reshape(-1, a.shape[-1])}
    count = states["a"].shape[0]
    size = CHUNK if count > SMALL_CHUNK else SMALL_CHUNK
    values = []
    for first in range(0, count, size):
        index = np.minimum(np.arange(first, first + size), count - 1)
        values.append(np.asarray(function({name: value[index] for name, value in states.items()})))
    return np.concatenate(values)[:count]


def _largest(values: np.ndarray) -> float:
    """The largest value that is a number (runs that diverged are NaN)."""
    return float(np.max(values[np.isfinite(values)], initial=0.0))
