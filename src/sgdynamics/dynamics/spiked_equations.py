"""Spiked tensors as n grows: the ODE and the SDE of (m, r2), from the mean and covariance of one step.

With delta = lr/n, batch B, R^2 = m^2 + r2 and, per unit of delta,

    pull = 2k R^(2k-2) + al,   push = 2k snr m^(k-1),   along = 4k(k-1) R^(2k-4)/B,   across = 4k R^(2k-2)/B

one step multiplies x by A of mean a = 1 - delta pull and variance delta^2 along, and adds normals of variance delta^2 across. So its mean
increment over delta is, exactly,

    dm/dt  = push - pull m
    dr2/dt = - 2 pull r2 + lr across + (lr/n) [(pull^2 + along) r2 - across]

(the bracket is what n -> infinity leaves out) and its covariance over delta^2, with tau = along r2 + across,

    Var m = along m^2 + across,      Cov(m, r2) = 2 a along m r2,
    Var r2 = 4 a^2 r2 tau + 2 delta^2 [tau^2 + (n - 2) across^2].

(3.1) of "High-dimensional limit theorems for SGD" (Ben Arous, Gheissari, Jagannath) is n -> infinity with al = 0, B = 1.
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

from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm, constant_rate
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
from sgdynamics.ode.stiff import follow
from sgdynamics.problems.spiked_tensor import (
    SpikedStart,
    SpikedTensor,
    check_spiked_dimension,
    validate_spiked_start,
)
from sgdynamics.sde.scheme import VariableStepSimulator
from sgdynamics.simulation.running import UNSEEN, Advanced, See, Watched
from sgdynamics.simulation.spiked_tensor import SpikedState, largest, power, power_bits

if TYPE_CHECKING:
    from scipy.integrate import OdeSolver

RTOL = 1e-8
ATOL = 1e-10
LEAST_RTOL = 1e-13  # what double precision allows
MARGIN = 1e-3  # local tolerance over the one asked for: errors add up, and the risk is a small difference of overlaps
MOST_STEPS = (
    500  # explicit steps before LSODA takes over: smooth trajectories take fewer than a hundred
)
RUNAWAY = 1e2  # |x|^2 beyond this, in units of where it may come to rest or began, has diverged: as n -> infinity it never is
STEP_TOLERANCE = 2e-3  # relative error of the SDE's step length, on the noiseless path and on the stationary variance
FIRST_SDE_STEPS, MOST_SDE_STEPS = 64, 1 << 14


Power = Callable[[Any, Any], Any]


class Rates(NamedTuple):
    """What one step does per unit of delta: see above."""

    pull: Any
    push: Any
    along: Any
    across: Any


def equation_numbers(
    problem: SpikedTensor, algorithm: OnePassSGD, dimension: int | None
) -> dict[str, Any]:
    """What the rates depend on, all of it traced, the order too: one program for every spiked tensor."""
    return {
        **problem.parameters,
        "order": np.int64(problem.order),
        "lr": np.float64(algorithm.lr),
        "batch": np.float64(algorithm.batch),
        "inverse_dimension": np.float64(0.0 if dimension is None else 1.0 / dimension),
    }


def rates(numbers: dict[str, Any], m: RealArray, r2: RealArray, raised: Power = pow) -> Rates:
    """The rates at (m, r2), of NumPy or JAX values of any shape; raised(x, n) = x^n."""
    k, share = numbers["order"], 1 / numbers["batch"]
    total = m * m + r2
    least = raised(total, k - 2)
    force = 2 * k * least * total
    push = 2 * k * numbers["snr"] * raised(m, k - 1)
    return Rates(force + numbers["ridge"], push, 4 * k * (k - 1) * share * least, 2 * share * force)


def drift(numbers: dict[str, Any], m: RealArray, r2: RealArray) -> tuple[RealArray, RealArray]:
    """(dm/dt, dr2/dt): the mean increment of one step over delta."""
    at = rates(numbers, m, r2)
    rest = (at.pull**2 + at.along) * r2 - at.across
    return at.push - at.pull * m, -2 * at.pull * r2 + numbers["lr"] * (
        at.across + numbers["inverse_dimension"] * rest
    )


def noise(
    numbers: dict[str, Any], m: RealArray, r2: RealArray, raised: Power = pow
) -> tuple[RealArray, RealArray, RealArray, RealArray]:
    """Standard deviations over delta of one step: of m and r2 together (one normal for both), of m alone, of r2 alone."""
    at = rates(numbers, m, r2, raised)
    small = numbers["lr"] * numbers["inverse_dimension"]
    a = 1 - small * at.pull
    tau = at.along * r2 + at.across
    # (n - 2) delta^2 without n
    outside = (
        numbers["lr"] ** 2 * numbers["inverse_dimension"] * (1 - 2 * numbers["inverse_dimension"])
    )
    alone = 4 * a**2 * r2 * at.across + 2 * small**2 * tau**2 + 2 * outside * at.across**2
    root = at.along**0.5
    return root * m, 2 * a * root * r2, at.across**0.5, alone**0.5


def spiked_increment(
    problem: SpikedTensor, algorithm: OnePassSGD, start: SpikedStart, *, dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (run, 2) and covariance (run, 2, 2) of the increment of (m, r2) in one step at dimension n, exact.

    The equations at the head of this module; over delta = lr/n and delta^2 they are the drift and the squared noise of the SDE.
    """
    checked_algorithm(algorithm)
    constant_rate(algorithm, "spiked tensors")
    begin = validate_spiked_start(problem, start)
    n = check_spiked_dimension(dimension)
    numbers = equation_numbers(problem, algorithm, n)
    delta = algorithm.lr / n
    mean = np.stack(drift(numbers, begin.m, begin.r2), axis=-1)
    both_m, both_r2, alone_m, alone_r2 = noise(numbers, begin.m, begin.r2)
    together = np.stack([both_m, both_r2], axis=-1)
    covariance = together[:, :, None] * together[:, None, :]
    covariance[:, 0, 0] += alone_m**2
    covariance[:, 1, 1] += alone_r2**2
    return delta * mean, delta**2 * covariance


def _within(limit: np.ndarray, y: np.ndarray) -> bool:
    runs = len(limit)
    return bool(np.all(y[:runs] ** 2 + np.abs(y[runs:]) < limit))


def _explicit(solver: OdeSolver, t: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, str]:
    """(2 runs, time) at the save points, NaN where it did not come, and how it ended: "finished", "diverged" or "exhausted"."""
    found = np.full((2 * len(limit), len(t)), np.nan)
    found[:, t == 0.0] = solver.y[:, None]
    for _ in range(MOST_STEPS):
        solver.step()
        if solver.status == "failed" or not _within(limit, solver.y):
            return found, "diverged"
        between = (t > solver.t_old) & (t <= solver.t)
        if between.any():
            found[:, between] = solver.dense_output()(t[between])
        if solver.status == "finished":
            return found, "finished"
    return found, "exhausted"


class SpikedPath(NamedTuple):
    """m and r2 (2, run, time), NaN from where a solution leaves every bound or its steps run out; which runs needed LSODA, and ran out."""

    values: np.ndarray
    long: np.ndarray
    tired: np.ndarray


def integrate_spiked(
    numbers: dict[str, Any], begin: SpikedStart, t: np.ndarray, rtol: float, atol: float
) -> SpikedPath:
    """Two numbers a start and a right-hand side in closed form: SciPy's integrators need no compilation, which would take a hundred times
    as long as the solve. All starts go side by side; if one diverges or is stiff, each goes on its own, by LSODA where that is needed.
    """
    runs = begin.runs
    limit = RUNAWAY * (
        1 + numbers["snr"] ** (2 / numbers["order"]) + numbers["lr"] + begin.m**2 + begin.r2
    )
    y = np.concatenate([begin.m, begin.r2])
    none = np.zeros(runs, dtype=bool)

    def field(_: float, y: np.ndarray) -> np.ndarray:
        return np.concatenate(drift(numbers, y[:runs], y[runs:]))

    if t[-1] == 0.0:
        return SpikedPath(y.reshape(2, runs, 1), none, none)
    with np.errstate(over="ignore", invalid="ignore"):
        from scipy import integrate  # here: its import takes as long as a small solution

        solver = integrate.DOP853(field, 0.0, y, t[-1], rtol=max(rtol, LEAST_RTOL), atol=atol)
        found, ended = _explicit(solver, t, limit)
        if ended == "finished":
            return SpikedPath(found.reshape(2, runs, -1), none, none)
        if runs > 1:
            each = [
                integrate_spiked(numbers, SpikedStart(begin.m[[i]], begin.r2[[i]]), t, rtol, atol)
                for i in range(runs)
            ]
            return SpikedPath(
                *(
                    np.concatenate(parts, axis=axis)
                    for parts, axis in zip(zip(*each, strict=True), (1, 0, 0), strict=True)
                )
            )
        if ended == "diverged":
            return SpikedPath(found.reshape(2, 1, -1), none, none)
        rest = t > solver.t
        setting = {"loosest": 1 / MARGIN, "inside": lambda _, y: _within(limit, y)}
        late = follow(
            field, solver.y, float(solver.t), t[rest], max(rtol, LEAST_RTOL), atol, **setting
        )
    found[:, rest] = late.values
    return SpikedPath(found.reshape(2, 1, -1), ~none, np.array([late.ended == "exhausted"]))


def _flow(
    numpy: ModuleType,
    raised: Power,
    numbers: dict[str, Any],
    m: RealArray,
    r2: RealArray,
    length: Scalar,
) -> tuple[RealArray, RealArray]:
    """A step of the ODE, of second order: r2' = - decay r2 + growth and m' = - pull m + push are solved as linear equations, with
    coefficients of the beginning first, then with their mean over the step. As growth >= 0, r2 stays positive at any length."""

    def coefficients(
        m: RealArray, r2: RealArray
    ) -> tuple[RealArray, RealArray, RealArray, RealArray]:
        at = rates(numbers, m, r2, raised)
        small = numbers["lr"] * numbers["inverse_dimension"]
        decay = 2 * at.pull - small * (at.pull**2 + at.along)
        return at.pull, at.push, decay, (numbers["lr"] - small) * at.across

    def linear(value: RealArray, decay: RealArray, growth: RealArray) -> RealArray:
        x = length * decay
        # (1 - e^-x)/x, finite at x = 0
        safe = numpy.where(x == 0, 1.0, x)
        mean = numpy.where(x == 0, 1.0, -numpy.expm1(-safe) / safe)
        return value * numpy.exp(-x) + length * growth * mean

    here = coefficients(m, r2)
    ahead = coefficients(linear(m, here[0], here[1]), linear(r2, here[2], here[3]))
    pull, push, decay, growth = ((one + other) / 2 for one, other in zip(here, ahead, strict=True))
    return linear(m, pull, push), linear(r2, decay, growth)


def spiked_sde_step(
    bits: int,
    numbers: dict[str, Any],
    state: SpikedState,
    length: Scalar,
    normals: Float[Numeric, "2 runs"],
) -> SpikedState:
    """One step of the SDE of the given length in t, from three normals: half of the drift, all of the noise, half of the drift.

    The noise of r2 acts as a factor, r2 -> r2 (X + sqrt(1 + X^2)) with X = eta - E[eta^2]/2 and eta the noise over r2: the noise to first
    order, the mean to second, and positive for every X.
    """
    raised = partial(power, bits)
    flow = partial(_flow, jnp, raised, numbers)
    m, r2 = flow(*state, length / 2)
    both_m, both_r2, alone_m, alone_r2 = noise(numbers, m, r2, raised)
    scale = jnp.sqrt(numbers["noise_rate"] * length)
    # at r2 = 0 exactly (x = 0, or a ridge that has killed it) there is no noise either
    share = jnp.where(r2 > 0, 1 / jnp.where(r2 > 0, r2, 1.0), 0.0)
    eta = scale * share * (both_r2 * normals[0] + alone_r2 * normals[2])
    X = eta - (scale * share) ** 2 * (both_r2**2 + alone_r2**2) / 2
    m = m + scale * (both_m * normals[0] + alone_m * normals[1])
    return SpikedState(*flow(m, r2 * jnp.exp(jnp.arcsinh(X)), length / 2))


class SpikedPaths(VariableStepSimulator):
    """Paths of the SDE; a step of the simulator is one step of the scheme."""

    def __init__(
        self, problem: SpikedTensor, numbers: dict[str, Any], begin: SpikedStart, dimension: int
    ) -> None:
        self.numbers = {
            **numbers,
            "noise_rate": numbers["lr"] / dimension,
            "limit": largest(problem.order),
        }
        self.begin, self.bits = begin, power_bits(problem.order)

    def initial(self, chosen: np.ndarray) -> SpikedState:
        return SpikedState(jnp.asarray(self.begin.m[chosen]), jnp.asarray(self.begin.r2[chosen]))

    def advance(
        self, state: SpikedState, keys: RandomKeys, since: int, end: int, watch: Watched = UNSEEN
    ) -> Advanced:
        plan = (self.numbers, self.edges, self.lengths)
        return _advance_spiked(
            self.bits,
            watch.see,
            *plan,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            watch.seen,
            watch.given,
        )

    def overlaps(self, state: SpikedState) -> dict[str, Any]:
        return state._asdict()


@partial(jax.jit, static_argnums=(0, 1))
def _advance_spiked(
    bits: int,
    see: See | None,
    numbers: Parameters,
    edges: Int[Numeric, " spans"],
    lengths: Float[Numeric, " spans"],
    state: SpikedState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
    def step(
        number: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
        state, good, seen = carry
        length = lengths[jnp.searchsorted(edges, number, side="right") - 1]
        normals = jax.vmap(
            lambda key: normals_and_uniforms(jax.random.fold_in(key, number), 3, 0)[0], out_axes=1
        )(keys)
        state = spiked_sde_step(bits, numbers, state, length, normals)
        fine = state.m**2 + state.r2 < numbers["limit"]
        if see is not None:
            seen = jax.vmap(partial(see, given), (0, None, 0))(seen, number + 1, state._asdict())
        return state, jnp.where(fine, number + 1, good), seen

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), seen))


def spiked_step_length(
    problem: SpikedTensor, numbers: dict[str, Any], begin: SpikedStart, end: float
) -> tuple[float, float]:
    """A step length for the SDE and its error, on the noiseless path from the first start and on stationary variances.

    Half of the drift, the noise and half of the drift give a mode that decays at rate kappa the variance (kappa h)/sinh(kappa h) times
    the right one: off by (kappa h)^2/6.
    """
    before, count, error = None, FIRST_SDE_STEPS, np.inf
    while True:
        m, r2 = begin.m[0], begin.r2[0]
        path = [(m, r2)]
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(count):
                m, r2 = _flow(np, pow, numbers, m, r2, end / count)
                path.append((m, r2))
            every = np.array(path)
            risk = problem.risk(*every[:: count // 16].T)
            bounded = every[np.isfinite(every).all(axis=1)]
            slopes = (
                np.linalg.eigvals(jacobian(numbers, *bounded.T)) if len(bounded) else np.zeros(1)
            )
        fastest = float(np.abs(slopes[np.isfinite(slopes)]).max(initial=0.0))
        if before is not None:
            fine = np.isfinite(risk) & np.isfinite(before)
            # of second order: this path is off by a third of what the halving changed
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


def jacobian(numbers: dict[str, Any], m: RealArray, r2: RealArray) -> np.ndarray:
    """d(dm/dt, dr2/dt)/d(m, r2) of the ODE as n -> infinity, (..., 2, 2)."""
    k, c = numbers["order"], numbers["lr"] / numbers["batch"]
    m, r2 = np.asarray(m, dtype=np.float64), np.asarray(r2, dtype=np.float64)
    total = m * m + r2
    pull = 2 * k * total ** (k - 1) + numbers["ridge"]
    slope = 2 * k * (k - 1) * total ** (k - 2)  # of pull in r2; 2 m times that in m
    rows = [
        [2 * k * (k - 1) * numbers["snr"] * m ** (k - 2) - pull - 2 * slope * m * m, -slope * m],
        [4 * slope * (c - r2) * m, -2 * pull + 2 * slope * (c - r2)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
