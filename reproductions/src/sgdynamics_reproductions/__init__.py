"""Figures of the documents behind sgdynamics, with stored data and verdicts on their claims.

Each document is a module whose functions ``name(quick=False, seed=0) -> (fig, data)`` make one
figure each, for example ``sgdynamics_reproductions.escaping_mediocrity.figure_2(quick=True)``. The
module ``sgdynamics_reproductions.gallery`` makes all of them and judges their claims.

The package uses the public names of ``sgdynamics``. ``README.md`` of this distribution lists the
few private ones, and a test compares the list with the imports.
"""

from sgdynamics_reproductions import (
    depth,
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
    sparsity,
    stages,
    statics,
    tops,
)

__all__ = [
    "depth",
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
    "sparsity",
    "stages",
    "statics",
    "tops",
]
