"""Optimal protocols: closed forms for the best learning rates of linear networks.

Protocols are functions of alpha = samples/d.
"""

from sgdynamics.papers.protocols.formulas import (
    best_error,
    best_rate,
    constant_error,
    horizon_exponents,
)

__all__ = ["best_error", "best_rate", "constant_error", "horizon_exponents"]
