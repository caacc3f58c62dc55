"""Figures about scaling laws: random features, power-law data, real samples, and emerging skills.

Each figure compares the theory with closed exponents and runs (exact chain, direct, or SGD on real
samples). Time is t = lr steps/D, where D is the trace of the input covariance if ``per="trace"``
and d otherwise.
"""

from sgdynamics_reproductions.scaling_laws.activation_figure import figure_6
from sgdynamics_reproductions.scaling_laws.curves_figure import figure_2
from sgdynamics_reproductions.scaling_laws.digits_figure import figure_4
from sgdynamics_reproductions.scaling_laws.emergence_figure import figure_5
from sgdynamics_reproductions.scaling_laws.phases_figure import figure_1
from sgdynamics_reproductions.scaling_laws.relu_figure import figure_3

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6"]
