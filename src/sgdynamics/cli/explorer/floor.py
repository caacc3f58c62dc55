"""The floor of the risk in the explorer: the least risk that any learner reaches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sgdynamics.cli import problem_files
from sgdynamics.cli.explorer.states import State, record
from sgdynamics.statics.bayes import bayes_optimal

POINTS = 12
# Beyond this many samples per dimension the floor lies below every curve of the page.
MOST_SAMPLES = 100.0


def floor(state: State) -> dict[str, Any]:
    """Return the Bayes-optimal excess risk as a function of the samples that the page shows."""
    alpha_end = state.time * state.batch / state.lr
    alpha = np.geomspace(0.02, 1.0, POINTS) * min(alpha_end, MOST_SAMPLES)
    risk = _excess_risks(state.activation, state.noise, state.covariance, tuple(alpha))
    return {"alpha": [float(f"{value:.5g}") for value in alpha], "risk": list(risk)}


@lru_cache(maxsize=64)
def _excess_risks(
    activation: str, noise: float, covariance: str, alpha: tuple[float, ...]
) -> tuple[float, ...]:
    state = State(activation=activation, noise=noise, covariance=covariance)
    problem: Any = problem_files.plan(record(state)).problem
    risks = bayes_optimal(problem, np.array(alpha))["risk"].values - problem.noise_floor
    return tuple(float(f"{value:.5g}") for value in risks)
