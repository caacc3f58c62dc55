"""Figures about epochs: the worth of repeated samples, the order of the samples, and unlearning.

Each figure compares two-time equations and DMFT with runs of linear and erf networks on a fixed
data set of n = samples_per_dimension d samples.
"""

from sgdynamics_reproductions.epochs.orders_figure import figure_2
from sgdynamics_reproductions.epochs.unlearning_figure import figure_3
from sgdynamics_reproductions.epochs.worth_figure import figure_1

__all__ = ["figure_1", "figure_2", "figure_3"]
