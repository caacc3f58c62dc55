"""Scaling laws: exponents of learning curves on power-law data, and skills that emerge in turn.

Time is t = lr steps/D, where D is the trace of the input covariance if ``per="trace"`` and d
otherwise.
"""

from sgdynamics.papers.scaling_laws.formulas import (
    emergence_exponent,
    emergence_loss,
    emergence_time,
    learning_exponent,
)

__all__ = ["emergence_exponent", "emergence_loss", "emergence_time", "learning_exponent"]
