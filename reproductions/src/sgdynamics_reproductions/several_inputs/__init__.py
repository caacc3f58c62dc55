"""Figures about samples of several inputs and learning rules of one's own.

Attention, sequences, autoencoders, perceptrons, rewards and GANs: each figure compares a model of
``sgd.models`` or a learning rule with a closed formula and exact chain runs. Units are the
library's, alpha = samples/d and t = lr alpha.
"""

from sgdynamics_reproductions.several_inputs.attention_figure import figure_1
from sgdynamics_reproductions.several_inputs.autoencoder_figure import figure_4
from sgdynamics_reproductions.several_inputs.gan_figure import figure_7
from sgdynamics_reproductions.several_inputs.perceptron_figure import figure_5
from sgdynamics_reproductions.several_inputs.positional_figure import figure_2
from sgdynamics_reproductions.several_inputs.reward_figure import figure_6
from sgdynamics_reproductions.several_inputs.sequence_figure import figure_3

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "figure_7"]
