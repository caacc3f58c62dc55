"""Optimisers other than plain SGD: closed formulas.

Time is t = lr steps/d. ``sgd.updates`` documents the units of the hyperparameters.
"""

from sgdynamics.papers.optimisers.formulas import reuse_drift

__all__ = ["reuse_drift"]
