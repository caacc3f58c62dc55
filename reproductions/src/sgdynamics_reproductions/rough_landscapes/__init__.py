"""Figures of *Stochasticity helps to navigate rough landscapes* (Mignacco, Urbani, Zdeborova 2021).

Phase retrieval on a fixed data set, in the symbols and units of the paper.
"""

from sgdynamics_reproductions.rough_landscapes.appendix_figures import (
    figure_b1,
    figure_b2,
    figure_b3,
    figure_b4,
)
from sgdynamics_reproductions.rough_landscapes.main_figures import figure_1, figure_2, figure_3
from sgdynamics_reproductions.rough_landscapes.noise_figures import figure_4, figure_5, figure_6
from sgdynamics_reproductions.rough_landscapes.random_start_figure import figure_7

__all__ = [
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "figure_7",
    "figure_b1",
    "figure_b2",
    "figure_b3",
    "figure_b4",
]
