"""The population risk of overlaps, for whole trajectories at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.gaussian.choice import expectation_of
from sgdynamics.gaussian.expectation import Overlaps, Rule
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import spectrum

CHUNK = 256
SMALL_CHUNK = 32
MARGIN = 2.0  # a rule chosen from a start serves rows of up to twice its squared length
TOLERANCE = 1e-9  # relative error at which a Mehler series is long enough


def overlaps_at(structure: Structure, parameters: Any, state: Any) -> Overlaps:
    """The overlaps of students and signals from a state's M and Q: Omega_b of each block, and Omega = sum_b eigenvalue_b Omega_b."""
    M, Q = state["M"], state["Q"]
    gram = jnp.broadcast_to(parameters["gram"], (structure.blocks, structure.signals, structure.signals))
    upper = jnp.concatenate([Q, M], axis=-1)
    lower = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
    blocks = jnp.concatenate([upper, lower], axis=-2)
    return Overlaps(blocks, spectrum.variance(parameters, blocks))


def risk_at(structure: Structure, rule: Rule, nodes: Any, parameters: Any, state: Any) -> Any:
    """E[loss] at one state {"M", "Q", "a"}, with one replicate of the expectation's `risk_nodes`."""
    return expectation_of(structure).risk(rule, nodes, parameters, overlaps_at(structure, parameters, state), state["a"])


@partial(jax.jit, static_argnums=(0, 1))
def _risks(structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    def one(state: Any) -> Any:
        return jax.vmap(lambda node: risk_at(structure, rule, node, parameters, state))(nodes)

    return jax.lax.map(one, states, batch_size=16)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _one_by_one(name: str, structure: Structure, rule: Rule, nodes: Any, parameters: Any, states: Any) -> Any:
    """`error` or `accuracy` of the expectation at many states."""

    def one(state: Any) -> Any:
        return getattr(expectation_of(structure), name)(rule, nodes, parameters, overlaps_at(structure, parameters, state), state["a"])

    return jax.lax.map(one, states, batch_size=16 if name == "accuracy" else None)


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
    return expectation_of(problem.structure).rule(_largest_field(problem, Q, margin))


def _largest_field(problem: Problem, Q: np.ndarray, margin: float) -> float:
    students, signals = (np.einsum("...ii->...i", spectrum.variance(problem.parameters, part)) for part in (Q, problem.gram))
    return max(margin * _largest(students), float(signals.max()))


@float64
def finer_rule(problem: Problem, rule: Rule, Q: np.ndarray) -> Rule | None:
    """A rule for the rows of a run at which this one was not accurate, where there is a finer one: they grew, or became more parallel."""
    return expectation_of(problem.structure).finer(rule, _largest_field(problem, Q, 1.0))


@float64
def risk_by(
    problem: Problem, rule: Rule, M: np.ndarray, Q: np.ndarray, a: np.ndarray, *, quick: bool = False
) -> tuple[np.ndarray, float, float]:
    """The risk by one rule, the largest relative standard error of its sampling, and that of its pair expectations."""
    lead = a.shape[:-1]
    states = {"M": M.reshape(-1, *M.shape[-3:]), "Q": Q.reshape(-1, *Q.shape[-3:]), "a": a.reshape(-1, a.shape[-1])}
    count = states["a"].shape[0]
    nodes = expectation_of(problem.structure).risk_nodes(rule, quick=quick)
    replicates = _in_chunks(partial(_risks, problem.structure, rule, nodes, problem.parameters), M, Q, a)
    risk, sampling = replicates.mean(axis=1), 0.0
    if replicates.shape[1] > 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            sampling = _largest(replicates.std(axis=1, ddof=1) / np.sqrt(replicates.shape[1]) / np.abs(risk))
    if "plain" in nodes:
        return risk.reshape(lead), sampling, 0.0
    # an error estimate costs more than the risk itself: take it at a few states, those with the longest rows among them
    longest = np.argsort(-np.nan_to_num(states["Q"].trace(axis1=-2, axis2=-1).sum(axis=-1)))[: SMALL_CHUNK // 4]
    evenly = np.linspace(0, count - 1, SMALL_CHUNK - len(longest)).astype(int)
    some = {name: value[np.concatenate([longest, evenly])] for name, value in states.items()}
    first = {name: value[0] for name, value in nodes.items()}
    worst = _largest(np.asarray(_one_by_one("error", problem.structure, rule, first, problem.parameters, some)))
    return risk.reshape(lead), sampling, worst


@float64
def population_accuracy(problem: Problem, M: np.ndarray, Q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The share of a mixture's data that a network classifies right, a tie f = 0 counted as 1/2 (beyond two units known to about 1e-3)."""
    rule = rule_for(problem, Q, MARGIN)
    nodes = {name: value[0] for name, value in expectation_of(problem.structure).risk_nodes(rule).items()}
    return _in_chunks(partial(_one_by_one, "accuracy", problem.structure, rule, nodes, problem.parameters), M, Q, a).reshape(a.shape[:-1])


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
