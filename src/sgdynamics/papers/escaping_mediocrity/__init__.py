"""Escaping mediocrity (Arnaboldi, Krzakala, Loureiro, Stephan).

*How two-layer networks learn hard generalized linear models with SGD*: closed formulas in the
symbols of the paper and its time t = steps gamma/(p d), with its misprints corrected.
"""

from sgdynamics.papers.escaping_mediocrity.corrected import drift, exit_time_corrected
from sgdynamics.papers.escaping_mediocrity.formulas import (
    exit_time_annealed,
    exit_time_diffusive,
    exit_time_p1,
    exit_time_quenched,
    growth_rates,
    largest_stable_lr,
    minimal_steps,
    optimal_lr,
    overparametrization_gain,
    stochastic_shift,
)
from sgdynamics.papers.escaping_mediocrity.landscape import (
    CriticalPoint,
    covariance_p1,
    critical_points,
    risk,
)

__all__ = [
    "CriticalPoint",
    "covariance_p1",
    "critical_points",
    "drift",
    "exit_time_annealed",
    "exit_time_corrected",
    "exit_time_diffusive",
    "exit_time_p1",
    "exit_time_quenched",
    "growth_rates",
    "largest_stable_lr",
    "minimal_steps",
    "optimal_lr",
    "overparametrization_gain",
    "risk",
    "stochastic_shift",
]
