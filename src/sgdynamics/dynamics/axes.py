"""Sign SGD and Adam where the teacher has few coordinates, as the solvers see them.

A linear student f = w.x with the teacher w* on K axes has K coordinates of its own and a bulk,
whose teacher is 0. With u = w - w* on the axes, B the squared norm of the bulk, the variance R =
|u|^2 + B + noise of the residual and per unit of tau = steps/d (derived in `docs/theory.md`)::

    sign:  du_j = -lr (2/pi) arcsin(u_j/sqrt(R)),     dB = -(4 lr/pi) B/sqrt(R) + lr^2
    Adam:  du_j = -lr (u_j/(sqrt(v_j^) + eps) + wd w_j),     dv_j = c (R + 2 u_j^2 - v_j)
           dB = -2 lr (1/(sqrt(v^) + eps) + wd) B + lr^2 R/(sqrt(v^) + eps)^2,   dv = c (R - v)

v^ = v/(1 - exp(-c tau)) are the averages of squares corrected for their start at 0. The sign of a
Gaussian product e x_j has the mean (2/pi) arcsin of the correlation of its factors, and
E[(e x_j)^2] = R + 2 u_j^2 (Isserlis).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.dynamics.adapter import closed_form_request
from sgdynamics.dynamics.requests import Arrays, SolveRequest
from sgdynamics.dynamics.updates import UpdateDynamics
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.case import Field
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.results.clock import Clock

# Arguments of a TeacherStudent that the closed equations assume
REQUIRED: dict[str, tuple[Any, ...]] = {
    "width": (1,),
    "activation": ("linear",),
    "teacher_activation": (None, "linear"),
    "loss": ("squared",),
    "head": ("fixed",),
    "constraint": (None,),
    "covariance": (None,),
    "weight_decay": (0, 0.0),
    "keep": (1, 1.0),
    "gain": (1, 1.0),
    "input_noise": (0, 0.0),
    "labels": (None,),
}


@dataclass(frozen=True)
class AxesField(Field):
    """The right-hand side of the equations, in t or, with a schedule, in tau.

    Attributes
    ----------
    update : str
        "sign" or "adam".
    in_time : bool
        Whether the variable is t = lr tau.
    """

    update: str
    in_time: bool

    def __call__(self, replicate: PyTree, shared: Parameters, t: Scalar, state: State) -> State:
        tau = t / shared["algorithm"]["lr"] if self.in_time else t
        problem, algorithm = values_at((shared["problem"], shared["algorithm"]), tau)
        lr, speed = algorithm["lr"], 1.0 if self.in_time else algorithm["lr"]
        w = jnp.asarray(state["rows_M"])[0, 0]
        u = w - shared["teacher"]
        bulk = jnp.asarray(state["rows_Q"])[0, 0, 0] - jnp.sum(w**2)
        R = jnp.sum(u**2) + bulk + problem["noise"]
        rates = {name: jnp.zeros_like(value) for name, value in state.items()}
        if self.update == "sign":
            root = jnp.sqrt(jnp.where(R > 0, R, 1.0))
            dw = -(2 / jnp.pi) * jnp.arcsin(jnp.clip(u / root, -1.0, 1.0))
            dbulk = -(4 / jnp.pi) * bulk / root + lr
        else:
            hyperparameters = algorithm["update"]
            c, decay = hyperparameters["memory"], hyperparameters["weight_decay"]
            averages = jnp.concatenate([state["update_squares"][0], state["axis_squares"]])
            squares = R + 2 * jnp.concatenate([jnp.zeros(1), u]) ** 2
            age = jnp.asarray(state["update_scalars"])[0]
            complete = -jnp.expm1(-c * age)
            corrected = jnp.where(age > 0, averages / jnp.where(age > 0, complete, 1.0), squares)
            slopes = 1 / (jnp.sqrt(jnp.maximum(corrected, 0.0)) + hyperparameters["eps"])
            dw = -slopes[1:] * u - decay * w
            dbulk = -2 * (slopes[0] + decay) * bulk + lr * R * slopes[0] ** 2
            daverages = c / lr * (squares - averages)
            rates["update_squares"] = speed * daverages[None, :1]
            rates["axis_squares"] = speed * daverages[1:]
            rates["update_scalars"] = speed / lr * jnp.ones_like(state["update_scalars"])
        dQ = dbulk + 2 * jnp.sum(w * dw)
        rates["rows_M"] = speed * dw[None, None]
        rates["rows_Q"] = speed * jnp.reshape(dQ, (1, 1, 1))
        return rates


class AxesDynamics(UpdateDynamics):
    """A linear teacher-student problem under sign SGD or Adam along the axes of its signals."""

    def ode_request(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        self._require_ode(dimension)
        problem, algorithm = self.definition, self.algorithm
        self._require_linear(initial_state)
        teacher = problem.parameters["teacher_head"] / self.structure.signals
        shared = {"problem": self.parameters, "algorithm": algorithm.parameters, "teacher": teacher}
        field = AxesField(algorithm.law.name, not algorithm.scheduled)
        request = closed_form_request(
            self, field, shared, initial_state, clock, dimension, rtol, atol
        )
        states = self._slow_state(initial_state)
        if algorithm.law.squares:
            shape = (initial_state.runs, self.structure.signals)
            states["axis_squares"] = np.zeros(shape)
        if quadrature is None:  # of the risk
            quadrature = choose_quadrature(problem, initial_state.Q_blocks, QUADRATURE_MARGIN)
        case = replace(request.shared_case, states=states)
        return replace(request, case=case, quadrature=quadrature)

    def unpack(self, states: Arrays) -> Arrays:
        return super().unpack({n: value for n, value in states.items() if n != "axis_squares"})

    def _require_linear(self, initial_state: Start) -> None:
        """Raise ValueError where the closed equations do not hold."""
        arguments, algorithm = self.definition.arguments, self.algorithm
        fix = (
            "with axes=True the ODE is known for a linear student of isotropic inputs, "
            'sgd.TeacherStudent(width=1, activation="linear", ...), with plain label noise. Use '
            "one, or sgd.simulate(method='direct')."
        )
        for name, allowed in REQUIRED.items():
            value = arguments.get(name, "absent")
            if is_scheduled(value) or not any(value is a or value == a for a in allowed):
                raise checks.reject("axes", True, f"{name} = {value!r}: {fix}")
        if self.structure.sample.noise_law is not None:
            raise checks.reject("axes", True, f"noise = {arguments['noise']!r}: {fix}")
        gram = np.asarray(self.definition.parameters["gram"])
        if not np.allclose(gram, np.eye(gram.shape[-1]), atol=1e-12):
            raise checks.reject("axes", True, f"the signals are not orthonormal: {fix}")
        if algorithm.batch != 1:
            fix = "with axes=True the ODE is known for one sample per step. Use batch=1."
            raise checks.reject("batch", algorithm.batch, fix)
        if not np.allclose(initial_state.a, 1.0):
            raise checks.reject("a", initial_state.a, "with axes=True the head is 1. Omit a.")
        if initial_state.beside is not None and algorithm.law.squares:
            fix = "the averages of single coordinates are not recorded. Start anew."
            raise checks.reject("start", "the end of a result", fix)
