"""`dynamics_of` chooses the dynamics from the kinds of the problem and the algorithm."""

from __future__ import annotations

from typing import Any

from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.head_rates import with_leaf_rates
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base.support import require
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.deep_linear import DeepDataDynamics, DeepLinearDynamics
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.fixed_data import AMPDynamics, EpochDynamics, FixedDataDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.dynamics.sliding import SlidingDynamics
from sgdynamics.dynamics.spiked_tensor import SpikedDynamics
from sgdynamics.dynamics.updates import UpdateDynamics
from sgdynamics.dynamics.user import UserDynamics
from sgdynamics.problems.deep_linear import DeepLinear


def dynamics_of(
    solver: str, problem: Any, algorithm: OnePassSGD | FixedData
) -> SolverDynamics[Any]:
    """The dynamics of a problem under an algorithm.

    Raises ValueError if the solver does not support this combination.
    """
    require(solver, problem, algorithm)
    if isinstance(problem, DeepLinear):
        on_data = isinstance(algorithm, FixedData)
        return (DeepDataDynamics if on_data else DeepLinearDynamics)(problem, algorithm)
    if isinstance(algorithm, FixedData) and "fields" in problem.kinds:
        kind: type[FixedDataDynamics] = FixedDataDynamics
        if "epochs" in algorithm.kinds:
            kind = EpochDynamics
        elif "message passing" in algorithm.kinds:
            kind = AMPDynamics
        return kind(problem, with_leaf_rates(validate_fixed_data(algorithm), problem))
    one_pass = validate_algorithm(algorithm, problem=problem)
    if isinstance(problem, Dynamics):
        return UserDynamics(problem, one_pass)
    if "fields" not in problem.kinds:
        return SpikedDynamics(problem, one_pass)
    if one_pass.stepping is not None:
        return UpdateDynamics(problem, one_pass)
    one_pass_kind = SlidingDynamics if "snr = inf" in problem.kinds else FieldDynamics
    return one_pass_kind(problem, one_pass)
