"""Epochs: what a sample is worth when it is seen again, in which order, and what is unlearned; two-time equations and DMFT on runs.

Linear and erf networks on a fixed data set of n = samples_per_dimension d samples.
"""

from sgdynamics.papers.epochs.formulas import fresh_samples, linear_epochs
from sgdynamics.papers.epochs.orders_figure import figure_2
from sgdynamics.papers.epochs.unlearning_figure import figure_3
from sgdynamics.papers.epochs.worth_figure import figure_1

__all__ = ["figure_1", "figure_2", "figure_3", "fresh_samples", "linear_epochs"]
