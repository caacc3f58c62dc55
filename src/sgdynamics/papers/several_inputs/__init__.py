"""Samples of several inputs, losses of overlaps and own rules: attention, sequences, autoencoders, perceptrons, rewards, GANs.

No one document: each figure puts a ready model of ``sgd.models``, or a rule of its own, beside a closed formula and exact chain runs. In
the library's units, alpha = samples/d and t = lr alpha.
"""

from sgdynamics.papers.several_inputs.formulas import late_error, positional_crossings, positional_growth, reward_drift, reward_path
from sgdynamics.papers.several_inputs.perceptron_figure import figure_5

__all__ = [
    "figure_5",
    "late_error",
    "positional_crossings",
    "positional_growth",
    "reward_drift",
    "reward_path",
]
