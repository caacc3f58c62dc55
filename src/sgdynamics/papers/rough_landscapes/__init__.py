"""Stochasticity helps to navigate rough landscapes (Mignacco, Urbani, Zdeborova 2021): phase retrieval on a fixed data set.

In the paper's symbols and units: alpha = M/N, learning rate eta, time t = eta steps, batch fraction l, persistence time tau, temperature T,
ridge lambda, overlap (magnetization) m, mean loss of v = (h^2 - h0^2)^2/4.
"""

from sgdynamics.papers.rough_landscapes.appendix_figures import (
    figure_b1,
    figure_b2,
    figure_b3,
    figure_b4,
)
from sgdynamics.papers.rough_landscapes.formulas import (
    ClosedValues,
    Setting,
    closed_values,
    first_step,
    fraction_recovered,
    generalization_error,
    setting,
    stability_limit,
    unstable_share,
)
from sgdynamics.papers.rough_landscapes.kernels import KernelDMFT, kernel_dmft
from sgdynamics.papers.rough_landscapes.main_figures import figure_1, figure_2, figure_3
from sgdynamics.papers.rough_landscapes.noise_figures import figure_4, figure_5, figure_6
from sgdynamics.papers.rough_landscapes.random_start_figure import figure_7

__all__ = [
    "ClosedValues",
    "KernelDMFT",
    "Setting",
    "closed_values",
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
    "first_step",
    "fraction_recovered",
    "generalization_error",
    "kernel_dmft",
    "setting",
    "stability_limit",
    "unstable_share",
]
