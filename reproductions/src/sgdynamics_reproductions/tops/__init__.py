"""Figures about trained networks on top of the first layer: theory and runs of small models."""

from sgdynamics_reproductions.tops.bias_figure import figure_2
from sgdynamics_reproductions.tops.deep_figure import figure_4
from sgdynamics_reproductions.tops.lora_figure import figure_3
from sgdynamics_reproductions.tops.softmax_figure import figure_1

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4"]
