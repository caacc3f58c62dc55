"""Figures about diagonal networks: which predictor the scale of the start and label noise choose.

A network f(x) = sum_j u_j v_j x_j/sqrt(d) learns a teacher of which few weights differ from 0
(``sgdynamics.DiagonalNetwork``).
"""

from sgdynamics_reproductions.sparsity.bias_figure import figure_1
from sgdynamics_reproductions.sparsity.noise_figure import figure_2

__all__ = ["figure_1", "figure_2"]
