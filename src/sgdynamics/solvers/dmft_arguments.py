"""The arguments of `solve_dmft` as one object, which every kind of limit reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Device
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.solvers.call import SolverCall, validate_call

DEFAULT_OPTIONS = DMFT()
PATHS, REPLICATES = 20000, 4
DEFAULTS: dict[str, Any] = {
    "paths": PATHS,
    "replicates": REPLICATES,
    "two_time": False,
    "cells": None,
    "method": DEFAULT_OPTIONS,
}


@dataclasses.dataclass(frozen=True, eq=False)
class DMFTArguments:
    """The arguments of `solve_dmft`, as the user gave them."""

    problem: Problem | DeepLinear | DiagonalNetwork | WideNetwork
    algorithm: FixedData | OnePassSGD
    start: object
    times: ArrayArgument | None
    alpha: ArrayArgument | None
    steps: ArrayArgument | None
    paths: int
    seed: int
    replicates: int
    two_time: bool
    cells: int | None
    method: DMFT
    progress: bool | None
    record: Mapping[str, Any] | None
    evaluate: Mapping[str, Any] | None
    devices: Sequence[Device]

    def __post_init__(self) -> None:
        if not isinstance(self.method, DMFT):
            raise checks.reject("method", self.method, "expected sgd.DMFT(...).")

    def validate(self, *, whole_steps: bool = True, cells: int | None = None) -> SolverCall:
        """Validate the arguments that all solvers share; save points are rounded to the cells."""
        return validate_call(
            "solve_dmft",
            self.problem,
            self.algorithm,
            self.start,
            times=self.times,
            alpha=self.alpha,
            steps=self.steps,
            seed=self.seed,
            progress=self.progress,
            record=self.record,
            evaluate=self.evaluate,
            whole_steps=whole_steps,
            cells=cells,
        )

    @property
    def required_start(self) -> Any:
        """The initial condition; ValueError if there is none."""
        if self.start is None:
            fix = "pass sgd.start(...) or sgd.random_start(...)."
            raise checks.reject("start", self.start, fix)
        return self.start

    def require_defaults(self, reason: str, *names: str) -> None:
        """Raise ValueError for arguments of these names that a limit does not use."""
        for name in names:
            value = getattr(self, name)
            if value != DEFAULTS[name]:
                raise checks.reject(name, value, f"{reason}. Omit {name}.")
