"""Optimisers: the ODE of updates other than plain SGD on runs of them, and what each is good for on one small problem.

Memories, lengths and batches are in units that survive d -> infinity (``sgd.updates``). Time is t = lr steps/d.
"""

from sgdynamics.papers.optimisers.adam_figure import figure_6
from sgdynamics.papers.optimisers.clipping_figure import figure_5
from sgdynamics.papers.optimisers.eight_figure import figure_1
from sgdynamics.papers.optimisers.formulas import reuse_drift
from sgdynamics.papers.optimisers.momentum_figure import figure_3
from sgdynamics.papers.optimisers.muon_figure import figure_4
from sgdynamics.papers.optimisers.private_figure import figure_7
from sgdynamics.papers.optimisers.reuse_figure import figure_2

__all__ = [
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "figure_7",
    "reuse_drift",
]
