"""The five documents: closed formulas in their own symbols and units, and every figure."""

from sgdynamics.papers import effective_dynamics, escaping_mediocrity, quadratic_networks

__all__ = ["effective_dynamics", "escaping_mediocrity", "quadratic_networks"]
