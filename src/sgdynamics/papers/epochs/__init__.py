"""Epochs over a fixed data set: closed equations for linear networks.

The data set has n = samples_per_dimension d samples.
"""

from sgdynamics.papers.epochs.formulas import fresh_samples, linear_epochs

__all__ = ["fresh_samples", "linear_epochs"]
