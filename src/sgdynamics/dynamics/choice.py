"""Which dynamics a problem and an algorithm have: the one place where the kind of problem is asked for."""

from __future__ import annotations

from typing import Any

from sgdynamics.algorithms.fixed_data import FixedData, checked_fixed_data
from sgdynamics.algorithms.one_pass import checked_algorithm
from sgdynamics.base.support import require
from sgdynamics.dynamics.epochs import EpochDynamics
from sgdynamics.dynamics.fields import FieldDynamics, FixedDataDynamics
from sgdynamics.dynamics.interface import Dynamics
from sgdynamics.dynamics.sliding import SlidingDynamics
from sgdynamics.dynamics.spiked_tensor import SpikedDynamics
from sgdynamics.dynamics.updates import UpdateDynamics


def dynamics_of(question: str, problem: Any, algorithm: Any) -> Dynamics:
    """Problem x algorithm as a solver sees it; refuse what this question is not answered for."""
    require(question, problem, algorithm)
    fixed = isinstance(algorithm, FixedData) and "fields" in problem.kinds
    if fixed:
        return (EpochDynamics if "epochs" in algorithm.kinds else FixedDataDynamics)(
            problem, checked_fixed_data(algorithm)
        )
    algorithm = checked_algorithm(algorithm, problem=problem)
    if isinstance(problem, Dynamics):
        return problem.bound(algorithm)
    if "fields" not in problem.kinds:
        return SpikedDynamics(problem, algorithm)
    if algorithm.stepping is not None:
        return UpdateDynamics(problem, algorithm)
    return (SlidingDynamics if "snr = inf" in problem.kinds else FieldDynamics)(problem, algorithm)
