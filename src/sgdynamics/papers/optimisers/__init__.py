"""Optimisers other than plain SGD: closed formulas.

Time is t = lr steps/d. ``sgd.updates`` documents the units of the hyperparameters.
"""

from sgdynamics.papers.optimisers.formulas import reuse_drift
from sgdynamics.papers.optimisers.least_squares import LeastSquares, least_squares

__all__ = ["LeastSquares", "least_squares", "reuse_drift"]
