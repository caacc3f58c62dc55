"""Figures of *Escape dynamics and implicit bias of quadratic networks* (arXiv:2604.03068).

Units are those of the paper: loss (y - yhat)^2 without 1/2, alpha = steps/N, t = eta alpha.
"""

from sgdynamics_reproductions.quadratic_networks.escape_figures import escape_times, figure_2
from sgdynamics_reproductions.quadratic_networks.figures import (
    figure_1,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
)

__all__ = ["escape_times", "figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6"]
