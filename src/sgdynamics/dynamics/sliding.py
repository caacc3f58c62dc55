"""Mixtures at snr = infinity, as the solvers see them.

The drift jumps where a unit is orthogonal to a cluster, and solutions slide along that surface.
"""

from __future__ import annotations

import numpy as np

from sgdynamics.algorithms.one_pass import constant_head_rate
from sgdynamics.base import checks
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.requests import Solution, SolveRequest, end_warnings, find_ends
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.case import ATOL, MARGIN, RTOL
from sgdynamics.ode.sliding import infinite_snr_risk
from sgdynamics.ode.sliding_solver import solve_infinite_snr
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.results.clock import Clock


class SlidingDynamics(FieldDynamics):
    """A `GaussianMixture` of snr = infinity with ReLU units.

    It is simulated as any problem of fields; its ODE has an integrator of its own, with sliding
    motion in the sense of Filippov.
    """

    def ode_request(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        if dimension is not None:
            fix = (
                "at snr = inf the ODE exists only for d -> infinity, because its drift is "
                "discontinuous. Omit dimension."
            )
            raise checks.reject("dimension", dimension, fix)
        rtol, atol = RTOL if rtol is None else rtol, ATOL if atol is None else atol
        return SolveRequest(self, initial_state, clock, None, rtol, atol, integrate=self._integrate)

    def _integrate(self, request: SolveRequest) -> Solution:
        assert request.rtol is not None
        assert request.atol is not None
        problem, start, t = self.definition, request.initial_state, request.clock.t
        mixture = problem.mixture  # type: ignore[attr-defined]
        path = solve_infinite_snr(
            mixture,
            start.M,
            start.Q,
            start.a,
            times=t,
            error=True,
            weight_decay=problem.weight_decay,
            head_rate=constant_head_rate(self.algorithm, "sliding motions"),
            rtol=MARGIN * request.rtol,
            atol=MARGIN * request.atol,
        )
        M, Q, a = path["M"], path["Q"], path["a"]
        states = {"M": M[:, :, None], "Q": Q[:, :, None], "a": a}
        # `infinite_snr_risk` rejects NaN, so diverged states are replaced.
        is_finite = np.asarray(np.isfinite(a).all(axis=-1))
        finite_M = np.where(is_finite[..., None, None], M, 0.0)
        finite_a = np.where(is_finite[..., None], a, 0.0)
        risk = infinite_snr_risk(mixture, finite_M, finite_a)
        attributes = {
            "assumptions": "one pass, d -> infinity, then snr -> infinity; "
            "sliding motion after Filippov",
            "integrator": "Dopri8 between surfaces",
            "error_quadrature": 0.0,
            "error_integrator": float(path["error"].max()),
        }
        ends = find_ends(states, path["ran_out"], t)
        risk = np.where(is_finite, risk, np.nan)
        return Solution(states, risk, attributes, ends, end_warnings(ends))
