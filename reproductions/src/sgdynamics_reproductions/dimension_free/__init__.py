"""Figures of *Dimension-free limits of SGD for two-layer networks* (Loureiro 2023, slides).

Regimes, mean-field limit, single-index models and escape from the plateau, in the units of the
slides.
"""

from sgdynamics_reproductions.dimension_free.escape_figures import noise_matters, width_matters
from sgdynamics_reproductions.dimension_free.figures import classical, high_dimensional
from sgdynamics_reproductions.dimension_free.regime_figure import regimes
from sgdynamics_reproductions.dimension_free.schedules import optimal_schedules
from sgdynamics_reproductions.dimension_free.single_index import single_index
from sgdynamics_reproductions.dimension_free.wide_figures import (
    mean_field,
    mean_field_high_dimension,
)

__all__ = [
    "classical",
    "high_dimensional",
    "mean_field",
    "mean_field_high_dimension",
    "noise_matters",
    "optimal_schedules",
    "regimes",
    "single_index",
    "width_matters",
]
