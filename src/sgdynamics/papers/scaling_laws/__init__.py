"""Scaling laws: compute-optimal random features, networks on power-law data, real samples, and skills that emerge one after the other.

Each figure puts the library's theory beside closed exponents and runs: exact chain, direct, or SGD on real samples. Time is
t = lr steps/D, D the trace of the inputs' covariance where ``per="trace"``, else d.
"""

from sgdynamics.papers.scaling_laws.activation_figure import figure_6
from sgdynamics.papers.scaling_laws.curves_figure import figure_2
from sgdynamics.papers.scaling_laws.digits_figure import figure_4
from sgdynamics.papers.scaling_laws.emergence_figure import figure_5
from sgdynamics.papers.scaling_laws.formulas import (
    emergence_exponent,
    emergence_loss,
    emergence_time,
    learning_exponent,
)
from sgdynamics.papers.scaling_laws.phases_figure import figure_1
from sgdynamics.papers.scaling_laws.relu_figure import figure_3

__all__ = [
    "emergence_exponent",
    "emergence_loss",
    "emergence_time",
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "learning_exponent",
]
