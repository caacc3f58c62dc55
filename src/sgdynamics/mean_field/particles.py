"""Wide networks, p -> infinity with lr/p -> 0: units are particles (m, q, a) that move in the field of their own density.

    lambda = m P^-1 lambda* + sqrt(q) xi,   F = int mu a E_xi[s(lambda)],   E = y - F
    dm = a E[s'(lambda) lambda* E] - wd m,   dq = 2 a q E[s''(lambda) E] - 2 wd q,   da = head_rate (E[s(lambda) E] - wd a)
    sphere: dm -= m g, dq -= 2 q g with g = (m P^-1 dm + dq/2)

in the clock t/p = lr steps/(p d) that survives p -> infinity (Arnaboldi, Stephan, Krzakala, Loureiro 2023; slides "Dimension-free limits of
SGD", mean-field + high-d, whose PDE is d_t mu = - div(mu velocity)). There wd = width * weight_decay, the decay of one unit of this clock.
At a finite dimension d (still p = infinity) the perpendicular parts have uniform directions and F depends on |x_perp| too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import (
    Schedule,
    is_scheduled,
    rescale_schedule,
    values_at,
)
from sgdynamics.base.padding import pad_with_last
from sgdynamics.base.progress import Meter, meter, warn_from_evaluation, warn_if_long
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.mean_field import series as series
from sgdynamics.mean_field.series import Basis
from sgdynamics.ode.stiff import StiffResult, integrate_lsoda
from sgdynamics.problems.constraints import Constraint
from sgdynamics.problems.problem import Problem
from sgdynamics.results.clock import Clock, time_at_alpha
from sgdynamics.results.datasets import largest_share
from sgdynamics.samples.input_covariance import eigenvalues

RTOL = 1e-6
ATOL = 1e-8
MARGIN = 1e-2  # local tolerance over the one asked for: errors add up, and the risk is a small difference
FEW_STEPS, MOST_STEPS = (
    1000,
    20000,
)  # explicit ones: before LSODA takes over, and where the state is too large for that
LARGEST_IMPLICIT = 1500  # numbers of a state
FIRST_TERMS = {
    1: 32,
    2: 24,
    3: 16,
}  # of the series; doubled while the error asks for it and the basis allows
LARGEST_BASIS = 12000
SPAN = 8.0  # the table of coefficients begins with row lengths up to this factor beyond those of the start (squared), either way
TABLE_NODES = 40
WIDENINGS = 3  # the factor is squared each time: 8, 64, 4096, 1.7e7
PAIR_COST = 8.0  # a closed pair over a term of the series
CLOCK_NODES = 1025  # of a table of alpha along t
HEAVY = 3e6  # terms of a velocity above which solutions may take minutes, and one velocity is timed


@dataclass(frozen=True)
class ExpectationChoice:
    """What compiled code depends on: the series, or (with a loss) closed pairs; flags."""

    basis: Basis | None
    loss: Any
    trained: bool
    constraint: Constraint


def _velocity(
    way: ExpectationChoice, numbers: dict[str, Any], state: State, t: Scalar = 0.0
) -> dict[str, Any]:
    """d(T, q, a)/d(t/p)."""
    if "clock" in numbers:
        numbers = values_at(
            numbers, jnp.interp(t, numbers["clock"]["t"], numbers["clock"]["alpha"])
        )
    T, q, a, decay = state["T"], state["q"], state["a"], numbers["decay"]
    if way.basis is None:
        push, stretch, value, _ = series.pair_forces(way.loss, numbers["problem"], numbers, state)
    else:
        push, stretch, value = series.forces(way.basis, numbers, state, trained=way.trained)
    dT, dq = a[:, None] * push - decay * T, a * stretch - 2 * decay * q
    dT, dq = way.constraint.project_particle_rates(T, q, dT, dq)
    return {
        "T": dT,
        "q": dq,
        "a": numbers["head_rate"] * (value - decay * a) if way.trained else jnp.zeros_like(a),
    }


def _on_table(numbers: dict[str, Any], state: State) -> Bool[Numeric, ""]:
    v = series.variance(numbers, state)
    return (
        (jnp.min(v) >= numbers["lowest"])
        & (jnp.max(v) <= numbers["highest"])
        & jnp.all(jnp.isfinite(state["a"]))
    )


@partial(jax.jit, static_argnums=(0, 1))
def _integrate(
    way: ExpectationChoice,
    most: int,
    numbers: dict[str, Any],
    states: State,
    times: Float[Array, " times"],
    tolerance: Mapping[str, float],
) -> tuple[Any, ...]:
    """Every start, one after the other: states at `times`, whether it left the table, whether it needed too many steps, and its end."""
    rate = jax.jit(partial(_velocity, way))

    def left(t: Scalar, y: State, args: PyTree, **_: object) -> Bool[Numeric, ""]:
        return ~_on_table(numbers, y)

    def one(state: State) -> tuple[Any, ...]:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: rate(numbers, y, t)),
            diffrax.Dopri8(),
            t0=0.0,
            t1=times[-1],
            dt0=None,
            y0=state,
            saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]),
            stepsize_controller=diffrax.PIDController(
                rtol=tolerance["rtol"], atol=tolerance["atol"]
            ),
            event=diffrax.Event(left),
            max_steps=most,
            throw=False,
        )
        out = found.result == diffrax.RESULTS.event_occurred
        states: Any = found.ys
        when: Any = found.ts
        last = jax.tree.map(lambda leaf: leaf[0], states[1])
        return states[0], out, found.result == diffrax.RESULTS.max_steps_reached, last, when[1][0]

    return jax.lax.map(one, states)


@partial(jax.jit, static_argnums=0)
def _flat_velocity(
    way: ExpectationChoice, numbers: dict[str, Any], like: State, t: Scalar, y: Float[Array, " n"]
) -> Any:
    return ravel_pytree(_velocity(way, numbers, ravel_pytree(like)[1](y), t))[0]


@jax.jit
def _flat_on_table(numbers: dict[str, Any], like: State, y: Float[Array, " n"]) -> Any:
    return _on_table(numbers, ravel_pytree(like)[1](y))


def _later(
    way: ExpectationChoice,
    numbers: dict[str, Any],
    state: State,
    t0: float,
    times: np.ndarray,
    tolerance: Mapping[str, float],
) -> StiffResult:
    """One start from where the explicit method stopped, by LSODA."""
    like = jax.tree.map(jnp.asarray, state)
    numbers = jax.tree.map(jnp.asarray, numbers)
    inside = partial(_flat_on_table, numbers, like)
    setting = {"loosest": 1 / MARGIN, "inside": lambda _, y: bool(inside(y))}
    y = np.asarray(ravel_pytree(like)[0])
    limits = float(tolerance["rtol"]), float(tolerance["atol"])
    return integrate_lsoda(
        lambda t, y: np.asarray(_flat_velocity(way, numbers, like, t, y)),
        y,
        t0,
        times,
        *limits,
        **setting,
    )


@partial(jax.jit, static_argnums=0)
def _risks(
    way: ExpectationChoice, numbers: dict[str, Any], states: State
) -> tuple[Float[Numeric, " states"], Float[Numeric, " states"]]:
    """The excess risk of each state, and the error that the end of the series may cause in it.

        excess = (1/2) (E[y^2] - |y|^2 + |y - F|^2) on the basis;   error <= |y_tail| |F_tail| + |F_tail|^2/2

    |F_tail|^2: the last four degrees continued as a geometric series, with the ratio they have to the four before.
    """

    def one(state: State) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        if way.basis is None:
            return series.pair_forces(way.loss, numbers["problem"], numbers, state)[3], jnp.asarray(
                0.0
            )
        F = series.output(way.basis, numbers, state)
        y = numbers["labels"]
        excess = 0.5 * (numbers["rest"] + jnp.sum((y - F) ** 2))
        if way.loss is not None:  # a polynomial: the series ends
            return excess, jnp.asarray(0.0)
        degree = series.indices(way.basis).degree
        last, before = (
            jnp.sum(
                jnp.where(
                    (degree >= way.basis.terms - n) & (degree < way.basis.terms - n + 4), F**2, 0.0
                )
            )
            for n in (4, 8)
        )
        ratio = jnp.minimum(last / jnp.maximum(before, 1e-300), 0.999)
        tail = last * ratio / (1 - ratio)
        return excess, jnp.sqrt(numbers["rest"] * tail) + tail / 2

    return jax.lax.map(one, states)


@dataclass(frozen=True, eq=False)
class ParticleSolution:
    """Trajectories of the particles.

    Attributes
    ----------
    states : dict
        T, q and a at the save points, (run, time, ...); NaN after a run has ended.
    excess_risk : ndarray
        Excess risk of the infinitely wide network, (run, time).
    left_table : ndarray of bool
        Whether the rows of each run grow or shrink without bound.
    ran_out : ndarray of bool
        Whether the steps of the integrator ran out, for each run.
    expectations : str
        Description of the expectations.
    error_quadrature, error_integrator, error_particles : float
        Relative errors of the risk; ``error_particles`` is None for a single particle.
    span, nodes : float, int
        Range (as a factor) and number of nodes of the table of coefficients.
    perpendicular : int or None
        Dimension orthogonal to the signals; None for d -> infinity.
    """

    states: dict[str, np.ndarray]
    excess_risk: np.ndarray
    left_table: np.ndarray
    ran_out: np.ndarray
    expectations: str
    error_quadrature: float
    error_integrator: float
    error_particles: float | None
    span: float
    nodes: int
    perpendicular: int | None


def solve_particles(
    problem: Problem,
    algorithm: OnePassSGD,
    states: State,
    clock: Clock,
    way: ExpectationChoice,
    perpendicular: int | None,
    rtol: float,
    atol: float,
    progress: bool | None,
) -> ParticleSolution:
    """Integrate the particles, and estimate the errors of the solution.

    The table of coefficients becomes wider while rows leave it, and the series longer while its
    end matters. Two further solutions, with a looser tolerance and with every other particle, give
    the errors.
    """
    p, t = problem.width, clock.t
    table_of_alpha = alpha_table(problem, algorithm, clock)
    tolerance = {"rtol": np.float64(MARGIN * rtol), "atol": np.float64(MARGIN * atol)}
    loose = {name: 10 * value for name, value in tolerance.items()}
    span, nodes, widenings = SPAN, TABLE_NODES, 0
    with meter(f"mean field, {p} particles", 3.0, progress) as bar:
        while True:
            began = perf_counter()
            numbers, label_error = _numbers(
                problem, algorithm, way, states, span, nodes, perpendicular
            )
            numbers |= table_of_alpha
            _announce(bar, way, numbers, states, t)
            solution, left_table, ran_out = _solve(way, numbers, states, t, tolerance)
            if left_table.any() and widenings < WIDENINGS:
                span, nodes, widenings = span**2, 2 * nodes, widenings + 1
                continue
            excess, ends = _risk_of(way, numbers, solution)
            longer = _longer(way, perpendicular)
            if largest_share(ends, excess) <= rtol or longer is None:
                break
            way = longer
        bar.advance(1.0)
        seconds = perf_counter() - began
        how = f"{seconds:.2g} s for the first of {bar.total:g} solutions"
        warn_if_long(bar, (bar.total - 1) * seconds, how)
        looser = _solve(way, numbers, states, t, loose)[0]
        error_integrator = largest_share(_risk_of(way, numbers, looser)[0] - excess, excess)
        bar.advance(1.0)
        error_particles = None
        if p > 1:
            weights = np.where(np.arange(p) % 2 == 0, 1.0 / ((p + 1) // 2), 0.0)
            half = {**numbers, "weights": weights}
            fewer = _solve(way, half, states, t, loose)[0]
            largest = np.max(np.where(np.isfinite(excess), excess, 0.0), axis=1, keepdims=True)
            change = _risk_of(way, half, fewer)[0] - excess
            error_particles = largest_share(change, np.broadcast_to(largest, change.shape))
    return ParticleSolution(
        solution,
        excess,
        left_table,
        ran_out,
        "pairs" if way.basis is None else f"series, {way.basis.terms} terms",
        largest_share(ends + label_error * np.sqrt(2 * excess), excess),
        error_integrator,
        error_particles,
        span,
        nodes,
        perpendicular,
    )


def evaluate_risk(
    problem: Problem, algorithm: OnePassSGD, solution: ParticleSolution, expectations: str
) -> tuple[np.ndarray, float]:
    """The risk of another problem along a solution, and its largest relative error."""
    states, perpendicular = solution.states, solution.perpendicular
    way = choose_expectations(problem, expectations, perpendicular)
    first = {name: value[:, 0] for name, value in states.items()}
    table = (solution.span, solution.nodes, perpendicular)
    while True:
        numbers, label_error = _numbers(problem, algorithm, way, first, *table)
        excess, ends = _risk_of(way, numbers, states)
        longer = _longer(way, perpendicular)
        error = largest_share(ends + label_error * np.sqrt(2 * excess), excess)
        if error <= RTOL or longer is None:
            return excess + problem.noise_floor, error
        way = longer


def alpha_table(problem: Problem, algorithm: OnePassSGD, clock: Clock) -> dict[str, Any]:
    """A table of alpha along t/p if parameters depend on alpha; else empty.

    `algorithm` has the batch size of all units, so that its t is t/p.
    """
    if clock.alpha is None or not (problem.scheduled or is_scheduled(algorithm.head_rate)):
        return {}
    end = float(clock.alpha[-1])
    alpha = np.linspace(0.0, end, CLOCK_NODES)[1:] if end > 0 else np.ones(1)
    if isinstance(algorithm.lr, Schedule) and algorithm.lr.name == "piecewise":
        # The table is linear between its nodes, as t is between the edges.
        edges = algorithm.lr.parameters["edges"]
        alpha = np.unique(np.concatenate([alpha, edges[edges < alpha[-1]]]))
    t = time_at_alpha(algorithm, alpha)
    return {"clock": {"t": np.append(0.0, t), "alpha": np.append(0.0, alpha)}}


def choose_expectations(
    problem: Problem, expectations: str, perpendicular: int | None
) -> ExpectationChoice:
    """Series or pairs, by cost."""
    loss: Any = problem.structure.loss
    k = problem.signals
    flags = (problem.structure.trained, problem.structure.constraint)
    degree = loss.student.degree
    terms = FIRST_TERMS.get(k, 12) if degree is None else degree + 1
    expectation = expectation_of(problem.structure)
    possible = expectation.has_closed_pairs and perpendicular is None
    series_fits = series.size(k, terms) <= LARGEST_BASIS and expectation.has_label_series
    if expectations == "pairs" and not possible:
        raise checks.reject(
            "expectations",
            expectations,
            "closed pairs need d = infinity and polynomial, erf or ReLU committees (teacher too): take 'series'",
        )
    if expectations != "pairs" and not series_fits and (expectations == "series" or not possible):
        raise checks.reject(
            "signals",
            k,
            f"a series in {k} signals is too long: take fewer, or a committee with closed pairs",
        )
    cheaper = PAIR_COST * problem.width < series.size(k, terms) or not series_fits
    if expectations == "pairs" or (expectations == "auto" and possible and cheaper):
        return ExpectationChoice(None, loss, *flags)
    # a polynomial's loss marks a series that ends; any other series is compiled for all activations alike
    return ExpectationChoice(
        Basis(k, terms, series.radial_terms(terms, perpendicular)),
        None if degree is None else "polynomial",
        *flags,
    )


def _longer(way: ExpectationChoice, perpendicular: int | None) -> ExpectationChoice | None:
    """Twice the terms, where there is something to cut and room for them."""
    if way.basis is None or way.loss is not None:
        return None
    k, terms = way.basis.signals, 2 * way.basis.terms
    basis = Basis(k, terms, series.radial_terms(terms, perpendicular))
    if series.size(k, terms) * max(1, basis.radial // 2) > LARGEST_BASIS or terms > 512:
        return None
    return ExpectationChoice(basis, way.loss, way.trained, way.constraint)


def _numbers(
    problem: Problem,
    algorithm: OnePassSGD,
    way: ExpectationChoice,
    states: State,
    span: float,
    nodes: int,
    perpendicular: int | None,
) -> tuple[dict[str, Any], float]:
    """All that is traced: rates, the table of c_n(v), the label's coefficients; and the error of the latter."""
    p, eigenvalue = problem.width, float(eigenvalues(problem.parameters)[0])
    v = eigenvalue * (np.sum(states["T"] ** 2, axis=-1) + states["q"])
    lowest, highest = v.min() / span, v.max() * span
    numbers: dict[str, Any] = {
        "eigenvalue": np.float64(eigenvalue),
        "decay": rescale_schedule(problem.weight_decay, p, 1.0)
        if is_scheduled(problem.weight_decay)
        else np.float64(p * problem.weight_decay),
        "head_rate": pytrees.to_float64(algorithm.head_rate),
        "weights": np.full(p, 1.0 / p),
        "lowest": np.float64(lowest),
        "highest": np.float64(highest),
    }
    if way.basis is None:
        return numbers | {"problem": problem.parameters}, 0.0
    coefficients, square, error = series.labels(problem, way.basis)
    loss: Any = problem.structure.loss
    numbers |= series.table(loss.student, way.basis.terms, lowest, highest, nodes)
    rest = max(square - float(np.sum(coefficients**2)), 0.0)  # below 0 by rounding only
    numbers |= {
        "labels": coefficients,
        "rest": np.float64(rest),
        "perpendicular": np.float64(perpendicular or np.inf),
    }
    return numbers, error


def _announce(
    bar: Meter, way: ExpectationChoice, parameters: Parameters, states: State, t: np.ndarray
) -> None:
    """Warn where even the fewest steps will take long, from the time of one velocity."""
    runs, p = states["q"].shape
    terms = PAIR_COST * p if way.basis is None else series.size(way.basis.signals, way.basis.terms)
    if t[-1] == 0.0 or bar.has_warned or runs * p * terms < HEAVY:
        return
    state = jax.tree.map(lambda value: jnp.asarray(value[0]), states)
    rate = jax.jit(partial(_velocity, way))

    def evaluate() -> None:
        jax.block_until_ready(rate(parameters, state, 0.0))

    warn_from_evaluation(bar, evaluate, "velocity", runs)


def _solve(
    way: ExpectationChoice,
    numbers: Parameters,
    states: State,
    t: np.ndarray,
    tolerance: Mapping[str, float],
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """States (run, time, ...), which runs left the table, and whose steps ran out."""
    runs = len(states["q"])
    if t[-1] == 0.0:
        return (
            {name: np.asarray(value)[:, None] for name, value in states.items()},
            np.zeros(runs, bool),
            np.zeros(runs, bool),
        )
    # LSODA's implicit steps take matrices of the size of the state
    small = sum(value[0].size for value in states.values()) <= LARGEST_IMPLICIT
    found, out, full, last, when = _integrate(
        way, FEW_STEPS if small else MOST_STEPS, numbers, states, pad_with_last(t), tolerance
    )
    result = {}
    for name, value in found.items():
        values = np.array(value[:, : len(t)])
        values[~np.isfinite(values)] = np.nan
        result[name] = values
    out, full = np.array(out), np.array(full)
    if not small:
        return result, out, full
    for run in np.flatnonzero(full):
        state = {name: np.asarray(value[run]) for name, value in last.items()}
        rest = t > float(when[run])
        end = _later(way, numbers, state, float(when[run]), t[rest], tolerance)
        back = jax.vmap(ravel_pytree(jax.tree.map(jnp.asarray, state))[1])(
            jnp.asarray(end.values.T)
        )
        for name, value in back.items():
            result[name][run, rest] = np.asarray(value)
        out[run], full[run] = end.ended == "diverged", end.ended == "exhausted"
    return result, out, full


def _risk_of(
    way: ExpectationChoice, numbers: Parameters, found: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Excess risk and its error, (run, time)."""
    shape = found["q"].shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in found.items()}
    excess, error = _risks(way, numbers, flat)
    return np.asarray(excess).reshape(shape), np.asarray(error).reshape(shape)
