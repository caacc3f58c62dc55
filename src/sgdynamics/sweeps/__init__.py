"""Sweeps: any solver over any parameters, in parallel, stopped and resumed at will; and the power laws that they show."""

from sgdynamics.sweeps.front import sweep
from sgdynamics.sweeps.power_law import PowerLaw, fit_exponent

__all__ = ["PowerLaw", "fit_exponent", "sweep"]
