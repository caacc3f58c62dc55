"""Figures about depth and width: deep linear networks, and wide networks that learn features.

Units are those of ``DeepLinear`` and ``WideNetwork``: rates are those of the parametrisation, and
t = lr steps.
"""

from sgdynamics_reproductions.depth.features_figures import figure_4, figure_5
from sgdynamics_reproductions.depth.rates_figures import figure_1, figure_2
from sgdynamics_reproductions.depth.spread_figure import figure_3

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5"]
