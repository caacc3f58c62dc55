"""Escape dynamics and implicit bias of one-pass SGD in quadratic networks (arXiv:2604.03068).

Closed formulas in the symbols and units of the paper: loss (y - yhat)^2 without 1/2, alpha =
steps/N, t = eta alpha. In the library's units lr = 2 eta, t = 2 eta alpha, M = rho, and the risk is
half of the paper's.
"""

from sgdynamics.papers.quadratic_networks.escape import noise_share, optimal_rate, plateau_growth
from sgdynamics.papers.quadratic_networks.formulas import (
    Plateau,
    closest_solution,
    conserved_S,
    drift,
    gradient_flow,
    growth_rates,
    largest_stable_rate,
    loss_reduction,
    plateau,
    risk,
    solution_overlaps,
    tail,
    tail_rate,
)
from sgdynamics.papers.quadratic_networks.landscape import (
    CriticalPoint,
    Spectrum,
    critical_point,
    critical_points,
    degrees_of_freedom,
    manifold_dimension,
)

__all__ = [
    "CriticalPoint",
    "Plateau",
    "Spectrum",
    "closest_solution",
    "conserved_S",
    "critical_point",
    "critical_points",
    "degrees_of_freedom",
    "drift",
    "gradient_flow",
    "growth_rates",
    "largest_stable_rate",
    "loss_reduction",
    "manifold_dimension",
    "noise_share",
    "optimal_rate",
    "plateau",
    "plateau_growth",
    "risk",
    "solution_overlaps",
    "tail",
    "tail_rate",
]
