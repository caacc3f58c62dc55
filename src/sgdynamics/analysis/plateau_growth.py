"""Growth rates of the overlaps on the plateau M = 0, and a warning if none is positive."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import optimize

from sgdynamics.analysis.exit_requests import ExitRequest
from sgdynamics.base.arrays import Nodes, Numeric, Parameters, Scalar
from sgdynamics.base.progress import warn
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature
from sgdynamics.ode.drift import drift
from sgdynamics.problems.problem import Problem, Structure

FLAT = 1e-6  # growth below this share of the effect of the noise counts as none
AT_START = "at this start"
ALIGNED = "where all units agree, as they do once they learn"


def warn_if_no_growth(request: ExitRequest) -> None:
    """Warn if lr is too large for any overlap to grow on the plateau.

    On the sphere the noise of SGD shrinks the overlaps. Where M = 0 is a fixed point of the drift
    (even activations), the growth rates are the eigenvalues of d(dM/dt)/dM = A + lr B at M = 0.
    They are needed at the Q of the start, and at Q = 1 1^T, where the units of a network that
    learns end up.
    """
    problem, algorithm = request.dynamics.problem, request.dynamics.algorithm
    if "fields" not in problem.kinds or request.dynamics.has_data:
        return
    structure = problem.structure
    if not structure.constraint.fixes_norms or structure.blocks > 1 or structure.trained:
        return
    if algorithm.flow or algorithm.law is not None:
        return
    start, p, k = request.call.initial_state, problem.width, problem.signals
    overlaps = {AT_START: start.Q_blocks[0]}
    if p > 1:
        overlaps[ALIGNED] = np.ones_like(start.Q_blocks[0])
    for location, Q in overlaps.items():
        is_stationary, A, B = _linearise(problem, algorithm.batch, Q, start.a[0])
        if not is_stationary:
            return
        if location == ALIGNED:
            # Equal rows have equal overlaps, so that only those can grow.
            A, B = (matrix.reshape(p, k, p, k).sum(axis=2).mean(axis=0) for matrix in (A, B))
        rate = _growth_rate(algorithm.lr, A, B)
        if rate > 0:
            continue
        flow_rate = _growth_rate(0.0, A, B)
        if abs(flow_rate) <= FLAT * np.abs(B).max():
            return  # Nothing grows to first order; terms of higher order may.
        advice = "at any learning rate."
        if flow_rate > 0:
            bound = optimize.brentq(_growth_rate, 0.0, algorithm.lr, args=(A, B))
            advice = f"Use lr below {float(np.asarray(bound)):.4g}."
        learns = "so that SGD does not learn" + (". " if flow_rate > 0 else ", ")
        warn(
            f"lr = {algorithm.lr:g}: no overlap with the signals grows {location} "
            f"(largest rate {rate:.3g} per unit of t), {learns}{advice}"
        )
        return


def _growth_rate(lr: float, A: np.ndarray, B: np.ndarray) -> float:
    """The largest growth rate at this learning rate."""
    return float(np.linalg.eigvals(A + lr * B).real.max())


def _linearise(
    problem: Problem, batch: int, Q: np.ndarray, head: np.ndarray
) -> tuple[bool, np.ndarray, np.ndarray]:
    """Whether dM/dt = 0 at M = 0, and the matrices A, B of d(dM/dt)/dM = A + lr B there."""
    quadrature = choose_quadrature(problem, Q[None], MARGIN)
    replicates = expectation_of(problem.structure).nodes(quadrature, flow=False)
    nodes = {name: value[0] for name, value in replicates.items()}
    rates, slopes = _rates_and_slopes(
        problem.structure, quadrature, batch, nodes, problem.parameters, Q, head
    )
    size = problem.width * problem.signals
    slopes = np.asarray(slopes).reshape(2, size, size)  # at lr = 0 and lr = 1
    scale = np.abs(slopes).max()
    is_stationary = bool(np.abs(np.asarray(rates)).max() <= 1e-6 * scale)
    return is_stationary, slopes[0], slopes[1] - slopes[0]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _rates_and_slopes(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    nodes: Nodes,
    parameters: Parameters,
    Q: Float[Numeric, "blocks p p"],
    head: Float[Numeric, " p"],
) -> tuple[Any, Any]:
    """dM/dt and its derivative in M, at M = 0 and lr = 0, 1 (both are affine in lr)."""

    def rate(M: Float[Numeric, "blocks p K"], lr: Scalar) -> Float[Numeric, "blocks p K"]:
        algorithm, state = {"lr": lr, "head_rate": 1.0}, {"M": M, "Q": Q, "a": head}
        return drift(structure, quadrature, nodes, parameters, algorithm, state, batch=batch)["M"]

    zero = jnp.zeros((structure.blocks, structure.width, structure.signals))
    learning_rates = jnp.array([0.0, 1.0])
    rates = jax.vmap(partial(rate, zero))(learning_rates)
    return rates, jax.vmap(lambda lr: jax.jacfwd(rate)(zero, lr))(learning_rates)
