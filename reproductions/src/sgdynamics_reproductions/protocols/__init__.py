"""Figures about optimal protocols: hyperparameters as the best functions of alpha = samples/d.

Learning rate, replay of a task, dropout, weight decay, curricula, schedules on power laws and batch
sizes, compared with closed forms, other programs and runs.
"""

from sgdynamics_reproductions.protocols.batch_figure import figure_6
from sgdynamics_reproductions.protocols.curriculum_figure import figure_4
from sgdynamics_reproductions.protocols.dropout_figure import figure_3
from sgdynamics_reproductions.protocols.horizon_figure import figure_5
from sgdynamics_reproductions.protocols.rate_figure import figure_1
from sgdynamics_reproductions.protocols.replay_figure import figure_2

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6"]
