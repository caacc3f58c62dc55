"""Samples of several inputs and learning rules of one's own: closed formulas.

Attention, sequences, autoencoders, perceptrons and rewards, in the library's units: alpha =
samples/d and t = lr alpha. Each function names its source.
"""

from sgdynamics.papers.several_inputs.formulas import (
    component_path,
    exit_law,
    late_error,
    positional_crossings,
    positional_growth,
    reward_drift,
    reward_path,
)

__all__ = [
    "component_path",
    "exit_law",
    "late_error",
    "positional_crossings",
    "positional_growth",
    "reward_drift",
    "reward_path",
]
