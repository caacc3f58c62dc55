"""Figures about training in stages and by several workers: generations, weak to strong, delays."""

from sgdynamics_reproductions.stages.generations_figure import figure_1
from sgdynamics_reproductions.stages.workers_figure import figure_2

__all__ = ["figure_1", "figure_2"]
