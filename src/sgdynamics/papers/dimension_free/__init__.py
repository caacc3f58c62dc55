"""Dimension-free limits of SGD for two-layer networks (Loureiro 2023, slides).

The formulas use the symbols and units of the slides: step gamma/d, time t = steps gamma/(d p),
label noise Delta. See ``formulas`` for the conversion.
"""

from sgdynamics.papers.dimension_free.formulas import (
    Setting,
    mean_field_scale,
    plateau,
    setting,
    theorem_scale,
)

__all__ = ["Setting", "mean_field_scale", "plateau", "setting", "theorem_scale"]
