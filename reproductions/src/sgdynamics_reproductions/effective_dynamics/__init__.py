"""Figures of *High-dimensional limit theorems for SGD* (Ben Arous, Gheissari, Jagannath 2022).

Effective dynamics of spiked tensors and Gaussian mixtures, in the units of the paper.
"""

from sgdynamics_reproductions.effective_dynamics.mixture_figures import (
    figure_2,
    figure_3,
    order_of_limits,
)
from sgdynamics_reproductions.effective_dynamics.spiked_figures import figure_1

__all__ = ["figure_1", "figure_2", "figure_3", "order_of_limits"]
