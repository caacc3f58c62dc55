"""Spiked tensors as n grows: the ODE and the SDE of (m, r2), from one step's mean and covariance.

With delta = lr/n, batch B, R^2 = m^2 + r2 and, per unit of delta,

    pull = 2k R^(2k-2) + al,              push = 2k snr m^(k-1),
    radial = 4k(k-1) R^(2k-4)/B,          across = 4k R^(2k-2)/B

one step multiplies x by A of mean a = 1 - delta pull and variance delta^2 radial, and adds normals
of variance delta^2 across. So its mean increment over delta is, exactly,

    dm/dt  = push - pull m
    dr2/dt = - 2 pull r2 + lr across + (lr/n) [(pull^2 + radial) r2 - across]

(the bracket vanishes for n -> infinity) and its covariance over delta^2 is, with
tau = radial r2 + across,

    Var m = radial m^2 + across,      Cov(m, r2) = 2 a radial m r2,
    Var r2 = 4 a^2 r2 tau + 2 delta^2 [tau^2 + (n - 2) across^2].

(3.1) of "High-dimensional limit theorems for SGD" (Ben Arous, Gheissari, Jagannath) is
n -> infinity with al = 0, B = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.base.arrays import (
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKeys,
    RealArray,
    Scalar,
)
from sgdynamics.base.random import normals_and_uniforms
from sgdynamics.ode.stiff import integrate_lsoda
from sgdynamics.problems.spiked_tensor import (
    SpikedStart,
    SpikedTensor,
    check_spiked_dimension,
    validate_spiked_start,
)
from sgdynamics.sde.paths import VariableStepSimulator
from sgdynamics.simulation.running import NO_OBSERVATION, AdvanceResult, Observation, Observe
from sgdynamics.simulation.spiked_tensor import SpikedState, divergence_limit, power, power_bits

if TYPE_CHECKING:
    from scipy.integrate import OdeSolver

RTOL = 1e-8
ATOL = 1e-10
LEAST_RTOL = 1e-13  # what double precision allows
# Local tolerance over the requested one: errors add up, and the risk is a small difference of
# overlaps.
MARGIN = 1e-3
# Explicit steps before LSODA takes over; smooth trajectories take fewer than a hundred.
MOST_STEPS = 500
# |x|^2 beyond this, in units of its initial and stationary values, has diverged; solutions for
# n -> infinity never reach it.
RUNAWAY = 1e2
# Relative error of the step length of the SDE, on the noiseless path and the stationary variance.
STEP_TOLERANCE = 2e-3
FIRST_SDE_STEPS, MOST_SDE_STEPS = 64, 1 << 14


Power = Callable[[Any, Any], Any]


class Rates(NamedTuple):
    """The moments of one step per unit of delta, as defined at the head of this module."""

    pull: RealArray
    push: RealArray
    radial: RealArray
    across: RealArray


def equation_parameters(
    problem: SpikedTensor, algorithm: OnePassSGD, dimension: int | None
) -> dict[str, Any]:
    """Parameters of the rates. The order is traced too: one program serves all spiked tensors."""
    return {
        **problem.parameters,
        "order": np.int64(problem.order),
        "lr": np.float64(algorithm.lr),
        "batch": np.float64(algorithm.batch),
        "inverse_dimension": np.float64(0.0 if dimension is None else 1.0 / dimension),
    }


def rates(parameters: dict[str, Any], m: RealArray, r2: RealArray, raised: Power = pow) -> Rates:
    """The rates at (m, r2), of NumPy or JAX values of any shape; raised(x, n) = x^n."""
    k, share = parameters["order"], 1 / parameters["batch"]
    total = m * m + r2
    least = raised(total, k - 2)
    force = 2 * k * least * total
    push = 2 * k * parameters["snr"] * raised(m, k - 1)
    return Rates(
        force + parameters["ridge"], push, 4 * k * (k - 1) * share * least, 2 * share * force
    )


def drift(parameters: dict[str, Any], m: RealArray, r2: RealArray) -> tuple[RealArray, RealArray]:
    """(dm/dt, dr2/dt): the mean increment of one step over delta."""
    at = rates(parameters, m, r2)
    bracket = (at.pull**2 + at.radial) * r2 - at.across
    return at.push - at.pull * m, -2 * at.pull * r2 + parameters["lr"] * (
        at.across + parameters["inverse_dimension"] * bracket
    )


def noise(
    parameters: dict[str, Any], m: RealArray, r2: RealArray, raised: Power = pow
) -> tuple[RealArray, RealArray, RealArray, RealArray]:
    """Standard deviations of one step over delta.

    Of m and r2 by the normal that both share, of m alone, of r2 alone.
    """
    at = rates(parameters, m, r2, raised)
    small = parameters["lr"] * parameters["inverse_dimension"]
    a = 1 - small * at.pull
    tau = at.radial * r2 + at.across
    # (n - 2) delta^2 without n
    outside = (
        parameters["lr"] ** 2
        * parameters["inverse_dimension"]
        * (1 - 2 * parameters["inverse_dimension"])
    )
    alone = 4 * a**2 * r2 * at.across + 2 * small**2 * tau**2 + 2 * outside * at.across**2
    root = at.radial**0.5
    return root * m, 2 * a * root * r2, at.across**0.5, alone**0.5


def spiked_increment(
    problem: SpikedTensor, algorithm: OnePassSGD, start: SpikedStart, *, dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean (run, 2) and covariance (run, 2, 2) of the increment of (m, r2) in one step.

    The equations are at the head of this module. Over delta = lr/n and delta^2 they are the drift
    and the squared noise of the SDE.
    """
    validate_algorithm(algorithm)
    constant_rate(algorithm, "spiked tensors")
    start = validate_spiked_start(problem, start)
    n = check_spiked_dimension(dimension)
    parameters = equation_parameters(problem, algorithm, n)
    delta = algorithm.lr / n
    mean = np.stack(drift(parameters, start.m, start.r2), axis=-1)
    both_m, both_r2, alone_m, alone_r2 = noise(parameters, start.m, start.r2)
    together = np.stack([both_m, both_r2], axis=-1)
    covariance = together[:, :, None] * together[:, None, :]
    covariance[:, 0, 0] += alone_m**2
    covariance[:, 1, 1] += alone_r2**2
    return delta * mean, delta**2 * covariance


def _within(limit: np.ndarray, y: np.ndarray) -> bool:
    runs = len(limit)
    return bool(np.all(y[:runs] ** 2 + np.abs(y[runs:]) < limit))


def _explicit(solver: OdeSolver, t: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, str]:
    """Follow an explicit method to the save points.

    Returns values (2 runs, time), NaN where it did not arrive, and how it ended: "finished",
    "diverged" or "exhausted" (too many steps).
    """
    values = np.full((2 * len(limit), len(t)), np.nan)
    values[:, t == 0.0] = solver.y[:, None]
    for _ in range(MOST_STEPS):
        solver.step()
        if solver.status == "failed" or not _within(limit, solver.y):
            return values, "diverged"
        between = (t > solver.t_old) & (t <= solver.t)
        if between.any():
            values[:, between] = solver.dense_output()(t[between])
        if solver.status == "finished":
            return values, "finished"
    return values, "exhausted"


class SpikedPath(NamedTuple):
    """Solutions of the ODE.

    Attributes
    ----------
    values : ndarray
        m and r2 (2, run, time), NaN after a run diverged or its integrator ran out of steps.
    used_lsoda : ndarray of bool
        Runs that needed LSODA.
    ran_out : ndarray of bool
        Runs whose integrator ran out of steps.
    """

    values: np.ndarray
    used_lsoda: np.ndarray
    ran_out: np.ndarray


def integrate_spiked(
    parameters: dict[str, Any], start: SpikedStart, t: np.ndarray, rtol: float, atol: float
) -> SpikedPath:
    """Integrate the ODE with SciPy, which needs no compilation.

    Compiling would take a hundred times as long as a solution with two variables per run. All runs
    are integrated together; if one of them diverges or is stiff, paths is integrated alone, and by
    LSODA if necessary.
    """
    runs = start.runs
    limit = RUNAWAY * (
        1
        + parameters["snr"] ** (2 / parameters["order"])
        + parameters["lr"]
        + start.m**2
        + start.r2
    )
    y = np.concatenate([start.m, start.r2])
    none = np.zeros(runs, dtype=bool)

    def field(_: float, y: np.ndarray) -> np.ndarray:
        return np.concatenate(drift(parameters, y[:runs], y[runs:]))

    if t[-1] == 0.0:
        return SpikedPath(y.reshape(2, runs, 1), none, none)
    with np.errstate(over="ignore", invalid="ignore"):
        from scipy import integrate  # here: its import takes as long as a small solution

        solver = integrate.DOP853(field, 0.0, y, t[-1], rtol=max(rtol, LEAST_RTOL), atol=atol)
        values, ended = _explicit(solver, t, limit)
        if ended == "finished":
            return SpikedPath(values.reshape(2, runs, -1), none, none)
        if runs > 1:
            paths = [
                integrate_spiked(
                    parameters, SpikedStart(start.m[[i]], start.r2[[i]]), t, rtol, atol
                )
                for i in range(runs)
            ]
            return SpikedPath(
                *(
                    np.concatenate(arrays, axis=axis)
                    for arrays, axis in zip(zip(*paths, strict=True), (1, 0, 0), strict=True)
                )
            )
        if ended == "diverged":
            return SpikedPath(values.reshape(2, 1, -1), none, none)
        is_late = t > solver.t
        setting = {"loosest": 1 / MARGIN, "inside": lambda _, y: _within(limit, y)}
        late = integrate_lsoda(
            field, solver.y, float(solver.t), t[is_late], max(rtol, LEAST_RTOL), atol, **setting
        )
    values[:, is_late] = late.values
    return SpikedPath(values.reshape(2, 1, -1), ~none, np.array([late.ended == "exhausted"]))


def _flow(
    numpy: ModuleType,
    raised: Power,
    parameters: dict[str, Any],
    m: RealArray,
    r2: RealArray,
    length: Scalar,
) -> tuple[RealArray, RealArray]:
    """One step of the ODE, of second order.

    r2' = - decay r2 + growth and m' = - pull m + push are solved as linear equations, first with
    the coefficients at the start of the step, then with their mean over the step. As growth >= 0,
    r2 stays positive at any length.
    """

    def coefficients(
        m: RealArray, r2: RealArray
    ) -> tuple[RealArray, RealArray, RealArray, RealArray]:
        at = rates(parameters, m, r2, raised)
        small = parameters["lr"] * parameters["inverse_dimension"]
        decay = 2 * at.pull - small * (at.pull**2 + at.radial)
        return at.pull, at.push, decay, (parameters["lr"] - small) * at.across

    def linear(value: RealArray, decay: RealArray, growth: RealArray) -> RealArray:
        x = length * decay
        # (1 - e^-x)/x, finite at x = 0
        safe = numpy.where(x == 0, 1.0, x)
        mean = numpy.where(x == 0, 1.0, -numpy.expm1(-safe) / safe)
        return value * numpy.exp(-x) + length * growth * mean

    first = coefficients(m, r2)
    second = coefficients(linear(m, first[0], first[1]), linear(r2, first[2], first[3]))
    pull, push, decay, growth = (
        (start + end) / 2 for start, end in zip(first, second, strict=True)
    )
    return linear(m, pull, push), linear(r2, decay, growth)


def spiked_sde_step(
    bits: int,
    parameters: dict[str, Any],
    state: SpikedState,
    length: Scalar,
    normals: Float[Numeric, "2 runs"],
) -> SpikedState:
    """One step of the SDE of the given length in t, from three normals.

    Half of the drift, all of the noise, half of the drift. The noise of r2 acts as a factor,
    r2 -> r2 (X + sqrt(1 + X^2)) with X = eta - E[eta^2]/2 and eta the noise over r2: correct to
    first order in the noise and to second order in the mean, and positive for all X.
    """
    raised = partial(power, bits)
    flow = partial(_flow, jnp, raised, parameters)
    m, r2 = flow(*state, length / 2)
    both_m, both_r2, alone_m, alone_r2 = noise(parameters, m, r2, raised)
    scale = jnp.sqrt(parameters["noise_rate"] * length)
    # At r2 = 0 exactly (x = 0, or underflow by a ridge) there is no noise either.
    share = jnp.where(r2 > 0, 1 / jnp.where(r2 > 0, r2, 1.0), 0.0)
    eta = scale * share * (both_r2 * normals[0] + alone_r2 * normals[2])
    X = eta - (scale * share) ** 2 * (both_r2**2 + alone_r2**2) / 2
    m = m + scale * (both_m * normals[0] + alone_m * normals[1])
    return SpikedState(*flow(m, r2 * jnp.exp(jnp.arcsinh(X)), length / 2))


class SpikedPaths(VariableStepSimulator):
    """Paths of the SDE. One step of the simulator is one step of the scheme."""

    def __init__(
        self, problem: SpikedTensor, parameters: dict[str, Any], start: SpikedStart, dimension: int
    ) -> None:
        self.parameters = {
            **parameters,
            "noise_rate": parameters["lr"] / dimension,
            "limit": divergence_limit(problem.order),
        }
        self.start, self.bits = start, power_bits(problem.order)

    def initial(self, chosen: np.ndarray) -> SpikedState:
        return SpikedState(jnp.asarray(self.start.m[chosen]), jnp.asarray(self.start.r2[chosen]))

    def advance(
        self,
        state: SpikedState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        plan = (self.parameters, self.edges, self.lengths)
        return _advance_spiked(
            self.bits,
            observation.observe,
            *plan,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: SpikedState) -> dict[str, Any]:
        return state._asdict()


@partial(jax.jit, static_argnums=(0, 1))
def _advance_spiked(
    bits: int,
    observe: Observe | None,
    parameters: Parameters,
    edges: Int[Numeric, " spans"],
    lengths: Float[Numeric, " spans"],
    state: SpikedState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    record: PyTree,
    watch_parameters: PyTree,
) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
    def step(
        number: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
        state, good, record = carry
        length = lengths[jnp.searchsorted(edges, number, side="right") - 1]
        normals = jax.vmap(
            lambda key: normals_and_uniforms(jax.random.fold_in(key, number), 3, 0)[0], out_axes=1
        )(keys)
        state = spiked_sde_step(bits, parameters, state, length, normals)
        fine = state.m**2 + state.r2 < parameters["limit"]
        if observe is not None:
            record = jax.vmap(partial(observe, watch_parameters), (0, None, 0))(
                record, number + 1, state._asdict()
            )
        return state, jnp.where(fine, number + 1, good), record

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), record))


def spiked_step_length(
    problem: SpikedTensor, parameters: dict[str, Any], start: SpikedStart, end: float
) -> tuple[float, float]:
    """A step length for the SDE, and its error on the noiseless path and on stationary variances.

    Half of the drift, the noise and half of the drift give a mode that decays at rate kappa
    (kappa h)/sinh(kappa h) times its stationary variance, which is off by (kappa h)^2/6.
    """
    before, count, error = None, FIRST_SDE_STEPS, np.inf
    while True:
        m, r2 = start.m[0], start.r2[0]
        path = [(m, r2)]
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(count):
                m, r2 = _flow(np, pow, parameters, m, r2, end / count)
                path.append((m, r2))
            points = np.array(path)
            risk = problem.risk(*points[:: count // 16].T)
            bounded = points[np.isfinite(points).all(axis=1)]
            slopes = (
                np.linalg.eigvals(jacobian(parameters, *bounded.T)) if len(bounded) else np.zeros(1)
            )
        fastest = float(np.abs(slopes[np.isfinite(slopes)]).max(initial=0.0))
        if before is not None:
            fine = np.isfinite(risk) & np.isfinite(before)
            # Of second order: this path is off by a third of the change by halving.
            error = (
                float(
                    np.max(np.abs(risk - before)[fine], initial=0.0)
                    / np.max(np.abs(before)[fine], initial=1e-300)
                )
                / 3
            )
            error = max(error, (fastest * end / count) ** 2 / 6)
            if error <= STEP_TOLERANCE or count >= MOST_SDE_STEPS:
                return end / count, error
        before, count = risk, 2 * count


def jacobian(parameters: dict[str, Any], m: RealArray, r2: RealArray) -> np.ndarray:
    """d(dm/dt, dr2/dt)/d(m, r2) of the ODE as n -> infinity, (..., 2, 2)."""
    k, c = parameters["order"], parameters["lr"] / parameters["batch"]
    m, r2 = np.asarray(m, dtype=np.float64), np.asarray(r2, dtype=np.float64)
    total = m * m + r2
    pull = 2 * k * total ** (k - 1) + parameters["ridge"]
    slope = 2 * k * (k - 1) * total ** (k - 2)  # of pull in r2; 2 m times that in m
    rows = [
        [2 * k * (k - 1) * parameters["snr"] * m ** (k - 2) - pull - 2 * slope * m * m, -slope * m],
        [4 * slope * (c - r2) * m, -2 * pull + 2 * slope * (c - r2)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
