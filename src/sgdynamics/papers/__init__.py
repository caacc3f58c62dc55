"""Closed formulas of the documents behind the library, in their own symbols and units.

The figures of the documents are the distribution ``sgdynamics-reproductions``.
"""

from sgdynamics.papers import (
    dimension_free,
    effective_dynamics,
    epochs,
    escaping_mediocrity,
    optimisers,
    protocols,
    quadratic_networks,
    rough_landscapes,
    scaling_laws,
    several_inputs,
)

__all__ = [
    "dimension_free",
    "effective_dynamics",
    "epochs",
    "escaping_mediocrity",
    "optimisers",
    "protocols",
    "quadratic_networks",
    "rough_landscapes",
    "scaling_laws",
    "several_inputs",
]
