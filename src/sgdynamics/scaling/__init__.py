"""Linear students on any spectrum: exact risks, random features, compute-optimal frontiers."""

from sgdynamics.scaling.compute import ComputeOptimal, Phase, compute_optimal, phase
from sgdynamics.scaling.modes import LinearModes
from sgdynamics.scaling.random_features import Equivalent, RandomFeatures

__all__ = [
    "ComputeOptimal",
    "Equivalent",
    "LinearModes",
    "Phase",
    "RandomFeatures",
    "compute_optimal",
    "phase",
]
