"""Sweeps: any solver over any parameters, in parallel, stopped and resumed at will; and the power laws that they show."""

from sgdynamics.sweeps.power_law_fit import PowerLawFit, fit_exponent
from sgdynamics.sweeps.sweeping import sweep

__all__ = ["PowerLawFit", "fit_exponent", "sweep"]
