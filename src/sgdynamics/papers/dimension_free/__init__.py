"""Dimension-free limits of SGD for two-layer networks (Loureiro 2023, slides): regimes, mean field, single index, escape.

In the slides' symbols and units: step gamma/d, time t = steps gamma/(d p), label noise Delta; see ``formulas``.
"""

from sgdynamics.papers.dimension_free.escape_figures import noise_matters, width_matters
from sgdynamics.papers.dimension_free.figures import classical, high_dimensional
from sgdynamics.papers.dimension_free.formulas import (
    Setting,
    mean_field_scale,
    plateau,
    setting,
    theorem_scale,
)
from sgdynamics.papers.dimension_free.regime_figure import regimes
from sgdynamics.papers.dimension_free.schedules import optimal_schedules
from sgdynamics.papers.dimension_free.single_index import single_index
from sgdynamics.papers.dimension_free.wide_figures import mean_field, mean_field_high_dimension

__all__ = [
    "Setting",
    "classical",
    "high_dimensional",
    "mean_field",
    "mean_field_high_dimension",
    "mean_field_scale",
    "noise_matters",
    "optimal_schedules",
    "plateau",
    "regimes",
    "setting",
    "single_index",
    "theorem_scale",
    "width_matters",
]
