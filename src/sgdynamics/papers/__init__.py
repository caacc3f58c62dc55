"""The documents, and what goes beyond them: closed formulas in their own symbols and units, and every figure."""

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
