"""Stochasticity helps to navigate rough landscapes (Mignacco, Urbani, Zdeborova 2021).

Phase retrieval on a fixed data set, in the symbols and units of the paper: alpha = M/N, learning
rate eta, time t = eta steps, batch fraction l, persistence time tau, temperature T, ridge lambda,
overlap (magnetization) m, mean loss of v = (h^2 - h0^2)^2/4.
"""

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
from sgdynamics.papers.rough_landscapes.paper_dmft import KernelDMFT, kernel_dmft

__all__ = [
    "ClosedValues",
    "KernelDMFT",
    "Setting",
    "closed_values",
    "first_step",
    "fraction_recovered",
    "generalization_error",
    "kernel_dmft",
    "setting",
    "stability_limit",
    "unstable_share",
]
