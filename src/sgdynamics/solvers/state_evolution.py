"""State evolution: approximate message passing in the limit d -> infinity, step by step.

For the posterior mean, M = Q in each block b at all steps (Nishimori), and one number qh follows:

    q = sum_b l_b Q_b,  qh = alpha J(q),  Q_b <- P_b - P_b/(1 + l_b P_b qh/phi_b).

For the prox the steps are those of `statics.erm_equations`. Sources: Bayati and Montanari (2011),
Javanmard and Montanari (2013), Barbier et al. (2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.dynamics.fixed_data import AMPDynamics
from sgdynamics.results.build import build_result
from sgdynamics.solvers.dmft_arguments import DMFTArguments
from sgdynamics.statics.channel import channel_of
from sgdynamics.statics.erm_equations import ErmEquations, ErmState, LinearData
from sgdynamics.statics.setup import Setup, setup_of

# Squared norm of the first output, relative to the variance of the signal, from zero weights.
FIRST_NORM = 1e-10
# Largest difference of M and Q at the start of the posterior mean.
NISHIMORI = 1e-6

BlockOverlaps = tuple[Float[np.ndarray, "steps blocks"], Float[np.ndarray, "steps blocks"]]


def state_evolution(arguments: DMFTArguments) -> xr.Dataset:
    """Return M, Q and the risk of message passing at the save points."""
    if not getattr(arguments.algorithm, "has_own_start", False):
        arguments.required_start  # noqa: B018
    call = arguments.validate()
    dynamics, start = call.dynamics, call.initial_state
    assert isinstance(dynamics, AMPDynamics)
    problem, algorithm = dynamics.definition, dynamics.algorithm
    setup, last = setup_of(problem), int(call.save_steps[-1])
    alpha = float(algorithm.samples_per_dimension)
    overlaps = []
    for run in range(start.runs):
        M, Q = start.M_blocks[run, :, 0, 0], start.Q_blocks[run, :, 0, 0]
        if algorithm.estimator == "bayes":
            overlaps.append(_posterior_mean(setup, alpha, M, Q, last))
        else:
            first = dynamics.passing.first_variance
            m, q = (np.atleast_1d(setup.eigenvalues @ overlap) for overlap in (M, Q))
            V = first(problem, m, q, alpha)
            data = LinearData(setup.likelihood, setup.eigenvalues, setup.fractions, setup.gram)
            loss = dynamics.passing.loss
            assert loss is not None
            equations = ErmEquations(data, loss, alpha, alpha * float(problem.weight_decay))
            overlaps.append(_prox(equations, M, Q, float(V[0]), last))
    steps = call.save_steps
    M, Q = (np.stack([run[index][steps] for run in overlaps]) for index in (0, 1))
    states = {
        "M": M[..., None, None],
        "Q": Q[..., None, None],
        "a": np.repeat(np.asarray(start.a)[:, None], len(steps), axis=1),
    }
    attributes: dict[str, Any] = {"assumptions": f"{dynamics.assumptions}, d -> infinity"}
    ends = {"diverged_at": np.full(start.runs, np.nan)}
    return build_result(call, "solve_dmft", states, attributes, ends)


def _posterior_mean(
    setup: Setup,
    alpha: float,
    M: Float[np.ndarray, " blocks"],
    Q: Float[np.ndarray, " blocks"],
    last: int,
) -> BlockOverlaps:
    """Return M = Q of each block after each step."""
    eigenvalues, phi, P = setup.eigenvalues, setup.fractions, setup.gram[:, 0, 0]
    if np.max(np.abs(M - Q)) > NISHIMORI * np.max(P):
        fix = (
            "the limit of the posterior mean is known for starts with M = Q. Use M = Q, or "
            "sgd.simulate"
        )
        raise checks.reject("start", [float(M.sum()), float(Q.sum())], fix)
    channel = channel_of(setup.likelihood, float(setup.rho[0, 0]))
    path = [M]
    for _ in range(last):
        q = float(eigenvalues @ path[-1])
        qh = alpha * channel.information(q).J
        path.append(P - P / (1.0 + eigenvalues * P * qh / phi))
    return np.array(path), np.array(path)


def _prox(
    equations: ErmEquations,
    M: Float[np.ndarray, " blocks"],
    Q: Float[np.ndarray, " blocks"],
    V: float,
    last: int,
) -> BlockOverlaps:
    """Return M and Q of each block after each step."""
    data = equations.data
    m, q = float(data.eigenvalues @ M), float(data.eigenvalues @ Q)
    # the equations divide by q
    state = ErmState(np.array([m]), max(q, FIRST_NORM * float(data.rho[0, 0])), V)
    path = [(M, Q)]
    for _ in range(last):
        conjugates = equations.conjugates(state)
        rows, squares = equations.block_rows(conjugates)
        path.append((rows[:, 0], squares))
        state = equations.state_from(conjugates)
    return np.array([M for M, _ in path]), np.array([Q for _, Q in path])
