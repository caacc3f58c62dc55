"""Figures about optimisers: the ODEs of eight updates compared with runs on small problems.

Memory times, norms and batch sizes are in units that survive d -> infinity (``sgd.updates``). Time
is t = lr steps/d.
"""

from sgdynamics_reproductions.optimisers.adam_figure import figure_6
from sgdynamics_reproductions.optimisers.clipping_figure import figure_5
from sgdynamics_reproductions.optimisers.eight_figure import figure_1
from sgdynamics_reproductions.optimisers.fixed_data_figure import figure_8
from sgdynamics_reproductions.optimisers.momentum_figure import figure_3
from sgdynamics_reproductions.optimisers.muon_figure import figure_4
from sgdynamics_reproductions.optimisers.private_figure import figure_7
from sgdynamics_reproductions.optimisers.reuse_figure import figure_2

__all__ = [
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "figure_7",
    "figure_8",
]
