"""Spiked tensors as a solver sees them: the two order parameters m and r2.

Their mean step and their noise are closed formulas (`dynamics.spiked_equations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.one_pass import constant_rate
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters, PyTree, Scalar, State
from sgdynamics.dynamics.interface import Dynamics, Solution, SolveRequest, told_apart
from sgdynamics.dynamics.spiked_equations import (
    SpikedPaths,
    drift,
    equation_numbers,
    integrate_spiked,
    spiked_step_length,
)
from sgdynamics.ode.integrate import MARGIN, Field, Watch
from sgdynamics.problems.spiked_tensor import (
    SpikedStart,
    SpikedTensor,
    check_spiked_dimension,
    spiked_risk,
    validate_spiked_start,
)
from sgdynamics.problems.starts import broadcast_runs
from sgdynamics.results.clock import Clock
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.variables import VARIABLES
from sgdynamics.simulation.running import Simulator
from sgdynamics.simulation.spiked_tensor import MOST_ENTRIES, SpikedChain, SpikedVectors


class SpikedDynamics(Dynamics):
    """A `SpikedTensor` under one-pass SGD."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "direct", "tensor")
    letter: str = "n"
    assumptions: ClassVar[str] = "fresh Gaussian tensors"
    variables: ClassVar = {name: VARIABLES[name] for name in ("m", "r2")}

    def __init__(self, problem: SpikedTensor, algorithm: Any) -> None:
        constant_rate(algorithm, "spiked tensors")
        self.definition, self.algorithm = problem, algorithm

    @property
    def parameters(self) -> dict[str, Any]:
        return self.definition.parameters

    def start(self, start: Any, runs: int | None = None) -> SpikedStart:
        return broadcast_runs(validate_spiked_start(self.definition, start), runs)

    def at_dimension(self, dimension: Any, small: bool = False) -> tuple[int, np.ndarray]:
        n = check_spiked_dimension(dimension)
        return n, np.array([n])

    def states(self, initial_state: SpikedStart) -> dict[str, np.ndarray]:
        return {"m": initial_state.m, "r2": initial_state.r2}

    def numbers(self, dimension: int | None) -> dict[str, Any]:
        return equation_numbers(self.definition, self.algorithm, dimension)

    def field(self) -> Field:
        return SpikedField()

    def paths(self, group: list[SolveRequest], size: int) -> list[Any]:
        """By SciPy: two numbers a start and a closed right-hand side need no compilation, which would take a hundred times the solve."""
        found = []
        for one in group:
            problem, numbers = one.dynamics.definition, one.dynamics.numbers(one.dimension)
            path, loose = (
                integrate_spiked(
                    numbers,
                    one.initial_state,
                    one.clock.t,
                    slack * MARGIN * one.rtol,
                    slack * MARGIN * one.atol,
                )
                for slack in (1, 10)
            )
            states = {"m": path.values[0], "r2": path.values[1]}
            risk = problem.risk(*path.values)
            attributes = {
                **self.described(one.dimension),
                "integrator": "DOP853, then LSODA" if path.long.any() else "DOP853",
                "error_integrator": largest_share(problem.risk(*loose.values) - risk, risk),
            }
            ends, texts = told_apart(states, path.tired, one.clock.t)
            found.append(Solution(states, risk, attributes, ends, tuple(texts)))
        return found

    def risk_of(
        self, states: dict[str, np.ndarray], clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return self.definition.risk(states["m"], states["r2"]), 0.0

    def simulator(
        self,
        method: str,
        initial_state: SpikedStart,
        dimension: int,
        sizes: np.ndarray,
        *,
        dtype: str = "float64",
        **more: Any,
    ) -> Simulator:
        if method == "exact":
            return SpikedChain(self.definition, self.algorithm, initial_state, dimension)
        entries = self.algorithm.batch * dimension**self.definition.order
        if method == "tensor" and entries > MOST_ENTRIES:
            shown = f"{entries:.4g}" if entries < 10**300 else "1e300 and more"
            needs = f"n^order{' * batch' if self.algorithm.batch > 1 else ''} = {shown} numbers a step, more than {MOST_ENTRIES:.0e}"
            fix = f"method='tensor' would draw {needs}: use method='exact' or 'direct', or a smaller dimension"
            raise checks.reject("dimension", dimension, fix)
        return SpikedVectors(
            self.definition, self.algorithm, initial_state, dimension, dtype, method == "tensor"
        )

    def paths_of_sde(
        self, initial_state: SpikedStart, dimension: int, sizes: np.ndarray, higher_order: bool
    ) -> SpikedPaths:
        return SpikedPaths(
            self.definition,
            self.numbers(dimension if higher_order else None),
            initial_state,
            dimension,
        )

    def longest_sde_step(
        self,
        initial_state: SpikedStart,
        dimension: int,
        sizes: np.ndarray,
        end: float,
        higher_order: bool,
    ) -> tuple[float, float]:
        return spiked_step_length(
            self.definition, self.numbers(dimension if higher_order else None), initial_state, end
        )

    def beside(self, other: Any) -> Dynamics:
        if set(self.definition.kinds) != set(getattr(other, "kinds", ())):
            raise checks.reject("evaluate", other, "give a spiked tensor: only those have m and r2")
        return SpikedDynamics(other, self.algorithm)

    def watched(
        self, criterion: Any, initial_state: SpikedStart, dimension: int | None
    ) -> tuple[Watch, Any]:
        return SpikedWatch(self.definition.order, criterion), self.numbers(dimension)

    def meanings(self) -> Mapping[str, tuple[Any, ...]]:
        return {
            **self.variables,
            "risk": ("population loss without ridge and noise, |snr v^(k) - x^(k)|^2", ()),
        }


@dataclass(frozen=True)
class SpikedField(Field):
    """The mean step as a field of the solve core."""

    def __call__(self, each: PyTree, shared: Parameters, t: Scalar, state: State) -> Any:
        dm, dr2 = drift(shared, state["m"], state["r2"])
        return {"m": dm, "r2": dr2}


@dataclass(frozen=True)
class SpikedWatch(Watch):
    """The risk, minus |m|, or a user's function of the state."""

    order: int
    criterion: Any

    def value(self, shared: Parameters, state: State) -> Any:
        if self.criterion == "overlap":
            return -jnp.abs(state["m"])
        if callable(self.criterion):
            return jnp.asarray(self.criterion(state), dtype=state["m"].dtype)
        return spiked_risk(self.order, shared["snr"], state["m"], state["r2"])
