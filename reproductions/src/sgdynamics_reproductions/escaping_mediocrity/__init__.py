"""Figures of *Escaping mediocrity* (Arnaboldi, Krzakala, Loureiro, Stephan).

Times are t = steps gamma/(p d), as in the paper.
"""

from sgdynamics_reproductions.escaping_mediocrity.figures import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
)
from sgdynamics_reproductions.escaping_mediocrity.landscape_figure import figure_6

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6"]
