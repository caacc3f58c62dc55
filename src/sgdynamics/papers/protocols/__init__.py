"""Protocols: numbers of a problem or an algorithm as the best functions of alpha, against closed forms, other programs and runs.

Learning rate, replay of a task, dropout, weight decay, the order of easy and hard samples, schedules on power laws, batches.
"""

from sgdynamics.papers.protocols.batch_figure import figure_6
from sgdynamics.papers.protocols.curriculum_figure import figure_4
from sgdynamics.papers.protocols.dropout_figure import figure_3
from sgdynamics.papers.protocols.formulas import (
    best_error,
    best_rate,
    constant_error,
    horizon_exponents,
)
from sgdynamics.papers.protocols.horizon_figure import figure_5
from sgdynamics.papers.protocols.rate_figure import figure_1
from sgdynamics.papers.protocols.replay_figure import figure_2

__all__ = [
    "best_error",
    "best_rate",
    "constant_error",
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "horizon_exponents",
]
