"""`dynamics_of` chooses the dynamics from the kinds of the problem and the algorithm."""

from __future__ import annotations

from typing import Any

from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.head_rates import with_leaf_rates
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base.support import require
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.axes import AxesDynamics
from sgdynamics.dynamics.deep_linear import DeepDataDynamics, DeepLinearDynamics
from sgdynamics.dynamics.delays import DelayedDynamics
from sgdynamics.dynamics.diagonal import DiagonalDataDynamics, DiagonalDynamics
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.fixed_data import (
    AMPDynamics,
    EpochDynamics,
    FixedDataDynamics,
    with_step_of_overlaps,
)
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.dynamics.sliding import SlidingDynamics
from sgdynamics.dynamics.spiked_tensor import SpikedDynamics
from sgdynamics.dynamics.updates import UpdateDynamics
from sgdynamics.dynamics.user import UserDynamics
from sgdynamics.dynamics.wide_network import WideNetworkDynamics
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.wide_network import WideNetwork


def dynamics_of(
    solver: str, problem: Any, algorithm: OnePassSGD | FixedData
) -> SolverDynamics[Any]:
    """The dynamics of a problem under an algorithm.

    Raises ValueError if the solver does not support this combination.
    """
    require(solver, problem, algorithm)
    on_data = isinstance(algorithm, FixedData)
    if isinstance(problem, DeepLinear):
        return (DeepDataDynamics if on_data else DeepLinearDynamics)(problem, algorithm)
    if isinstance(problem, DiagonalNetwork):
        return (DiagonalDataDynamics if on_data else DiagonalDynamics)(problem, algorithm)
    if isinstance(problem, WideNetwork):
        return WideNetworkDynamics(problem, validate_fixed_data(algorithm))
    if on_data and "fields" in problem.kinds:
        kind: type[FixedDataDynamics] = FixedDataDynamics
        if "epochs" in algorithm.kinds:
            kind = EpochDynamics
        elif "message passing" in algorithm.kinds:
            kind = AMPDynamics
        on_data = with_step_of_overlaps(validate_fixed_data(algorithm), problem.structure)
        return kind(problem, with_leaf_rates(on_data, problem))
    one_pass = validate_algorithm(algorithm, problem=problem)
    if isinstance(problem, Dynamics):
        return UserDynamics(problem, one_pass)
    if "fields" not in problem.kinds:
        return SpikedDynamics(problem, one_pass)
    if one_pass.stepping is not None:
        if one_pass.law is not None and one_pass.law.delays:
            return DelayedDynamics(problem, one_pass)
        has_axes = one_pass.law is not None and one_pass.law.axes
        return (AxesDynamics if has_axes else UpdateDynamics)(problem, one_pass)
    one_pass_kind = SlidingDynamics if "snr = inf" in problem.kinds else FieldDynamics
    return one_pass_kind(problem, one_pass)
