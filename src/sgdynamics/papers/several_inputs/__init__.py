"""Samples of several inputs, losses of overlaps and own rules: attention, sequences, autoencoders, perceptrons, rewards, GANs.

No one document: each figure puts a ready model of ``sgd.models``, or a rule of its own, beside a closed formula and exact chain runs. In
the library's units, alpha = samples/d and t = lr alpha.
"""

from sgdynamics.papers.several_inputs.attention_figure import figure_1
from sgdynamics.papers.several_inputs.autoencoder_figure import figure_4
from sgdynamics.papers.several_inputs.formulas import (
    component_path,
    exit_law,
    late_error,
    positional_crossings,
    positional_growth,
    reward_drift,
    reward_path,
)
from sgdynamics.papers.several_inputs.gan_figure import figure_7
from sgdynamics.papers.several_inputs.perceptron_figure import figure_5
from sgdynamics.papers.several_inputs.positional_figure import figure_2
from sgdynamics.papers.several_inputs.reward_figure import figure_6
from sgdynamics.papers.several_inputs.sequence_figure import figure_3

__all__ = [
    "component_path",
    "exit_law",
    "figure_1",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_5",
    "figure_6",
    "figure_7",
    "late_error",
    "positional_crossings",
    "positional_growth",
    "reward_drift",
    "reward_path",
]
