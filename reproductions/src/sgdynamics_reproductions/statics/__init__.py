"""Figures about statics: optimal learning, its thresholds, and what learners in use reach.

Each figure compares limits for n, d -> infinity with learners on data sets of finite dimension.
"""

from sgdynamics_reproductions.statics.classification_figures import figure_1, figure_4
from sgdynamics_reproductions.statics.recovery_figures import figure_2, figure_3, figure_7
from sgdynamics_reproductions.statics.regression_figures import figure_5, figure_6

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "figure_7"]
