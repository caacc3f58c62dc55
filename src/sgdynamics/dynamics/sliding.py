"""A mixture at snr = infinity as a solver sees it: the drift jumps where a unit is orthogonal to a cluster, and solutions slide there."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.algorithms.one_pass import constant_head_rate
from sgdynamics.base import checks
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.interface import Solution, SolveRequest, told_apart
from sgdynamics.ode.integrate import ATOL, MARGIN, RTOL
from sgdynamics.ode.sliding import infinite_snr_risk, solve_infinite_snr
from sgdynamics.problems.starts import Start
from sgdynamics.results.clock import Clock


class SlidingDynamics(FieldDynamics):
    """A `GaussianMixture` of snr = infinity with ReLU units: simulated as any problem of fields, its ODE after Filippov."""

    def prepare(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Any = None,
    ) -> SolveRequest:
        if dimension is not None:
            raise checks.reject(
                "dimension",
                dimension,
                "at snr = inf only d -> infinity has an ODE (its drift jumps): leave dimension out",
            )
        return SolveRequest(
            self,
            initial_state,
            clock,
            None,
            RTOL if rtol is None else rtol,
            ATOL if atol is None else atol,
        )

    def paths(self, group: list[SolveRequest], size: int) -> list[Any]:
        found = []
        for one in group:
            problem, initial_state = one.dynamics.definition, one.initial_state
            numbers = {
                "weight_decay": problem.weight_decay,
                "head_rate": constant_head_rate(one.dynamics.algorithm, "sliding motions"),
            }
            tolerance = {"rtol": MARGIN * one.rtol, "atol": MARGIN * one.atol}
            path = solve_infinite_snr(
                problem.mixture,
                initial_state.M,
                initial_state.Q,
                initial_state.a,
                times=one.clock.t,
                error=True,
                **numbers,
                **tolerance,
            )
            finite = np.isfinite(path["a"]).all(axis=-1)
            # checked by the risk's own function, which refuses NaN
            safe = [
                np.where(
                    finite.reshape(*finite.shape, *[1] * (path[name].ndim - 2)), path[name], 0.0
                )
                for name in ("M", "a")
            ]
            states = {"M": path["M"][:, :, None], "Q": path["Q"][:, :, None], "a": path["a"]}
            attributes = {
                "assumptions": "one pass, d -> infinity, then snr -> infinity; sliding motion after Filippov",
                "integrator": "Dopri8 between surfaces",
                "error_quadrature": 0.0,
                "error_integrator": float(path["error"].max()),
            }
            ends, texts = told_apart(states, path["ran_out"], one.clock.t)
            risk = np.where(finite, infinite_snr_risk(problem.mixture, *safe), np.nan)
            found.append(Solution(states, risk, attributes, ends, tuple(texts)))
        return found
