"""Sweeps of any solver over any parameters, parallel and resumable, and fits of power laws."""

from sgdynamics.sweeps.power_law_fit import PowerLawFit, fit_exponent
from sgdynamics.sweeps.sweeping import sweep

__all__ = ["PowerLawFit", "fit_exponent", "sweep"]
