"""The wide limit p -> infinity with lr/p -> 0: units are particles in the field of their density.

A unit (particle) has the state (m, q, a), with fields and output ::

    lambda = m P^-1 lambda* + sqrt(q) xi,     F = int mu a E_xi[s(lambda)],     E = y - F

and moves by ::

    dm = a E[s'(lambda) lambda* E] - wd m,     dq = 2 a q E[s''(lambda) E] - 2 wd q,
    da = head_rate (E[s(lambda) E] - wd a),
    sphere: dm -= m g,     dq -= 2 q g,     g = m P^-1 dm + dq/2

in the time t/p = lr steps/(p d), which has a limit for p -> infinity. There wd = width *
weight_decay is the decay of one unit per unit of this time. At a finite dimension d (still
p = infinity) the perpendicular parts of the weights have uniform directions, and F depends on
|x_perp| too.

Sources: Arnaboldi, Stephan, Krzakala, Loureiro 2023; slides "Dimension-free limits of SGD",
mean-field + high-d, whose partial differential equation is d_t mu = - div(mu velocity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple, cast

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
from sgdynamics.problems.losses import CommitteeLoss
from sgdynamics.problems.problem import Problem
from sgdynamics.results.clock import Clock, time_at_alpha
from sgdynamics.results.datasets import largest_share
from sgdynamics.samples.input_covariance import eigenvalues

RTOL = 1e-6
ATOL = 1e-8
# Local tolerance relative to the requested one: errors add up, and the risk is a small difference.
MARGIN = 1e-2
# Numbers of explicit steps: before LSODA continues, and for states that are too large for LSODA.
FEW_STEPS, MOST_STEPS = 1000, 20000
# Largest state for which LSODA's implicit steps are affordable.
LARGEST_IMPLICIT = 1500
# Initial number of terms of the series by number of signals. It is doubled while the error requires
# it and the basis permits it.
FIRST_TERMS = {1: 32, 2: 24, 3: 16}
LARGEST_BASIS = 12000
# The first table of coefficients includes row lengths (squared) that are smaller or larger than
# those of the start by up to this factor.
SPAN = 8.0
TABLE_NODES = 40
# Number of times that the factor may be squared: 8, 64, 4096, 1.7e7.
WIDENINGS = 3
# Cost of a closed pair of units relative to a term of the series.
PAIR_COST = 8.0
# Number of nodes of a table of alpha as a function of t.
CLOCK_NODES = 1025
# Terms per velocity above which solutions may take minutes; one velocity is then timed.
HEAVY = 3e6


@dataclass(frozen=True)
class ExpectationChoice:
    """The method of the expectations, on which compiled code depends.

    Attributes
    ----------
    basis : Basis or None
        Basis of the series; None for closed expectations of pairs of units.
    loss : Loss, "polynomial" or None
        The loss, for closed pairs. For a series, "polynomial" if it ends, because the activation is
        a polynomial; else None, so that all activations share a compiled program.
    trained : bool
        Whether the head is trained.
    constraint : Constraint
        Constraint of the rows.
    """

    basis: Basis | None
    loss: CommitteeLoss | Literal["polynomial"] | None
    trained: bool
    constraint: Constraint


def _velocity(
    choice: ExpectationChoice, parameters: Parameters, state: State, t: Scalar = 0.0
) -> dict[str, Numeric]:
    """Return d(T, q, a)/d(t/p)."""
    if "clock" in parameters:
        clock = parameters["clock"]
        parameters = values_at(parameters, jnp.interp(t, clock["t"], clock["alpha"]))
    T, q, a, decay = state["T"], state["q"], state["a"], parameters["decay"]
    if choice.basis is None:
        push, stretch, U, _ = series.pair_forces(
            cast(CommitteeLoss, choice.loss), parameters["problem"], parameters, state
        )
    else:
        push, stretch, U = series.forces(choice.basis, parameters, state, trained=choice.trained)
    dT, dq = a[:, None] * push - decay * T, a * stretch - 2 * decay * q
    dT, dq = choice.constraint.project_particle_rates(T, q, dT, dq)
    da = parameters["head_rate"] * (U - decay * a) if choice.trained else jnp.zeros_like(a)
    return {"T": dT, "q": dq, "a": da}


def _is_on_table(parameters: Parameters, state: State) -> Bool[Numeric, ""]:
    """Whether the table of coefficients covers the variances of all fields."""
    v = series.variance(parameters, state)
    return (
        (jnp.min(v) >= parameters["lowest"])
        & (jnp.max(v) <= parameters["highest"])
        & jnp.all(jnp.isfinite(state["a"]))
    )


class Trajectories(NamedTuple):
    """Explicit solutions from several initial conditions.

    Attributes
    ----------
    states : dict
        States at the save points, (run, time, ...); not finite after a run has ended.
    left_table : array of bool, (run,)
        Whether each run left the table of coefficients.
    ran_out : array of bool, (run,)
        Whether each run needed too many steps.
    end : dict
        State at the end of each run.
    end_time : array, (run,)
        Time of the end of each run.
    """

    states: State
    left_table: Bool[Numeric, " runs"]
    ran_out: Bool[Numeric, " runs"]
    end: State
    end_time: Float[Numeric, " runs"]


@partial(jax.jit, static_argnums=(0, 1))
def _integrate(
    choice: ExpectationChoice,
    most_steps: int,
    parameters: Parameters,
    states: State,
    times: Float[Array, " times"],
    tolerance: Mapping[str, float],
) -> Trajectories:
    """Integrate one initial condition after the other with explicit steps."""
    rate = jax.jit(partial(_velocity, choice))

    def has_left_table(t: Scalar, y: State, args: PyTree, **_: object) -> Bool[Numeric, ""]:
        return ~_is_on_table(parameters, y)

    def integrate_run(state: State) -> Trajectories:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: rate(parameters, y, t)),
            diffrax.Dopri8(),
            t0=0.0,
            t1=times[-1],
            dt0=None,
            y0=state,
            saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]),
            stepsize_controller=diffrax.PIDController(
                rtol=tolerance["rtol"], atol=tolerance["atol"]
            ),
            event=diffrax.Event(has_left_table),
            max_steps=most_steps,
            throw=False,
        )
        left_table = solution.result == diffrax.RESULTS.event_occurred
        ran_out = solution.result == diffrax.RESULTS.max_steps_reached
        # Values of the two SubSaveAt, the save points and the end.
        saved: Any = solution.ys
        saved_times: Any = solution.ts
        end = jax.tree.map(lambda leaf: leaf[0], saved[1])
        return Trajectories(saved[0], left_table, ran_out, end, saved_times[1][0])

    return jax.lax.map(integrate_run, states)


@partial(jax.jit, static_argnums=0)
def _flat_velocity(
    choice: ExpectationChoice,
    parameters: Parameters,
    like: State,
    t: Scalar,
    y: Float[Array, " n"],
) -> Float[Array, " n"]:
    """Return the velocity of a state that is flattened to a vector; `like` has its shapes."""
    return ravel_pytree(_velocity(choice, parameters, ravel_pytree(like)[1](y), t))[0]


@jax.jit
def _flat_is_on_table(
    parameters: Parameters, like: State, y: Float[Array, " n"]
) -> Bool[Numeric, ""]:
    return _is_on_table(parameters, ravel_pytree(like)[1](y))


def _continue_run(
    choice: ExpectationChoice,
    parameters: Parameters,
    state: State,
    t0: float,
    times: np.ndarray,
    tolerance: Mapping[str, float],
) -> StiffResult:
    """Continue a run by LSODA from the time at which the explicit steps ran out."""
    like = jax.tree.map(jnp.asarray, state)
    parameters = jax.tree.map(jnp.asarray, parameters)
    return integrate_lsoda(
        lambda t, y: np.asarray(_flat_velocity(choice, parameters, like, t, y)),
        np.asarray(ravel_pytree(like)[0]),
        t0,
        times,
        float(tolerance["rtol"]),
        float(tolerance["atol"]),
        loosest=1 / MARGIN,
        inside=lambda t, y: bool(_flat_is_on_table(parameters, like, y)),
    )


@partial(jax.jit, static_argnums=0)
def _risks(
    choice: ExpectationChoice, parameters: Parameters, states: State
) -> tuple[Float[Numeric, " states"], Float[Numeric, " states"]]:
    """Return the excess risk of each state, and a bound on its error from the end of the series.

    With the coefficients y of the label and F of the output on the basis ::

        excess = (1/2) (E[y^2] - |y|^2 + |y - F|^2),
        error <= |y_tail| |F_tail| + |F_tail|^2/2,

    where |y_tail|^2 = E[y^2] - |y|^2. |F_tail|^2 is estimated as a geometric series of blocks of
    four degrees, whose ratio is that of the last block of the basis to the block before.
    """

    def excess_and_error(state: State) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        if choice.basis is None:
            loss = cast(CommitteeLoss, choice.loss)
            forces = series.pair_forces(loss, parameters["problem"], parameters, state)
            return forces[3], jnp.asarray(0.0)
        F = series.output(choice.basis, parameters, state)
        y = parameters["labels"]
        excess = 0.5 * (parameters["label_tail"] + jnp.sum((y - F) ** 2))
        if choice.loss is not None:  # the series of a polynomial ends
            return excess, jnp.asarray(0.0)
        degree, terms = series.indices(choice.basis).degree, choice.basis.terms
        last, previous = (
            jnp.sum(jnp.where((degree >= terms - n) & (degree < terms - n + 4), F**2, 0.0))
            for n in (4, 8)
        )
        ratio = jnp.minimum(last / jnp.maximum(previous, 1e-300), 0.999)
        tail = last * ratio / (1 - ratio)
        return excess, jnp.sqrt(parameters["label_tail"] * tail) + tail / 2

    return jax.lax.map(excess_and_error, states)


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
    choice: ExpectationChoice,
    perpendicular: int | None,
    rtol: float,
    atol: float,
    progress: bool | None,
) -> ParticleSolution:
    """Integrate the particles, and estimate the errors of the solution.

    The table of coefficients becomes wider while rows leave it, and the series longer while its
    truncation affects the risk. Two further solutions, with a looser tolerance and with every other
    particle, estimate the errors of the integrator and of the finite number of particles.
    """
    p, t = problem.width, clock.t
    clock_table = alpha_table(problem, algorithm, clock)
    tolerance = {"rtol": np.float64(MARGIN * rtol), "atol": np.float64(MARGIN * atol)}
    loose = {name: 10 * bound for name, bound in tolerance.items()}
    span, nodes, widenings = SPAN, TABLE_NODES, 0
    with meter(f"mean field, {p} particles", 3.0, progress) as bar:
        while True:
            start_time = perf_counter()
            parameters, label_error = _parameters(
                problem, algorithm, choice, states, span, nodes, perpendicular
            )
            parameters |= clock_table
            _warn_if_slow(bar, choice, parameters, states, t)
            solution, left_table, ran_out = _solve(choice, parameters, states, t, tolerance)
            if left_table.any() and widenings < WIDENINGS:
                span, nodes, widenings = span**2, 2 * nodes, widenings + 1
                continue
            excess, truncation_error = _risk_of(choice, parameters, solution)
            longer = _longer_series(choice, perpendicular)
            if largest_share(truncation_error, excess) <= rtol or longer is None:
                break
            choice = longer
        bar.advance(1.0)
        seconds = perf_counter() - start_time
        timing = f"{seconds:.2g} s for the first of {bar.total:g} solutions"
        warn_if_long(bar, (bar.total - 1) * seconds, timing)
        loose_solution = _solve(choice, parameters, states, t, loose)[0]
        change = _risk_of(choice, parameters, loose_solution)[0] - excess
        error_integrator = largest_share(change, excess)
        bar.advance(1.0)
        error_particles = None
        if p > 1:
            weights = np.where(np.arange(p) % 2 == 0, 1.0 / ((p + 1) // 2), 0.0)
            half = {**parameters, "weights": weights}
            half_solution = _solve(choice, half, states, t, loose)[0]
            change = _risk_of(choice, half, half_solution)[0] - excess
            largest = np.max(np.where(np.isfinite(excess), excess, 0.0), axis=1, keepdims=True)
            error_particles = largest_share(change, np.broadcast_to(largest, change.shape))
    return ParticleSolution(
        solution,
        excess,
        left_table,
        ran_out,
        "pairs" if choice.basis is None else f"series, {choice.basis.terms} terms",
        largest_share(truncation_error + label_error * np.sqrt(2 * excess), excess),
        error_integrator,
        error_particles,
        span,
        nodes,
        perpendicular,
    )


def evaluate_risk(
    problem: Problem, algorithm: OnePassSGD, solution: ParticleSolution, expectations: str
) -> tuple[np.ndarray, float]:
    """Return the risk of another problem along a solution, and its largest relative error."""
    states, perpendicular = solution.states, solution.perpendicular
    choice = choose_expectations(problem, expectations, perpendicular)
    first = {name: array[:, 0] for name, array in states.items()}
    table = (solution.span, solution.nodes, perpendicular)
    while True:
        parameters, label_error = _parameters(problem, algorithm, choice, first, *table)
        excess, truncation_error = _risk_of(choice, parameters, states)
        longer = _longer_series(choice, perpendicular)
        error = largest_share(truncation_error + label_error * np.sqrt(2 * excess), excess)
        if error <= RTOL or longer is None:
            return excess + problem.noise_floor, error
        choice = longer


def alpha_table(problem: Problem, algorithm: OnePassSGD, clock: Clock) -> dict[str, Any]:
    """Return a table of alpha as a function of t/p if parameters depend on alpha; else nothing.

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
    """Choose between the series and closed pairs: by argument, by support, and by cost."""
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
            "closed pairs need d = infinity and a polynomial, erf or ReLU committee, also as "
            "teacher. Use 'series'.",
        )
    if expectations != "pairs" and not series_fits and (expectations == "series" or not possible):
        raise checks.reject(
            "signals",
            k,
            f"a series in {k} signals is too long. Use fewer signals, or a committee with closed "
            "pairs.",
        )
    cheaper = PAIR_COST * problem.width < series.size(k, terms) or not series_fits
    if expectations == "pairs" or (expectations == "auto" and possible and cheaper):
        return ExpectationChoice(None, loss, *flags)
    # The series of a polynomial ends. All other activations share a compiled program.
    basis = Basis(k, terms, series.radial_terms(terms, perpendicular))
    return ExpectationChoice(basis, None if degree is None else "polynomial", *flags)


def _longer_series(
    choice: ExpectationChoice, perpendicular: int | None
) -> ExpectationChoice | None:
    """Return a series with twice the terms; None if it would be too long or has no truncation."""
    if choice.basis is None or choice.loss is not None:
        return None
    k, terms = choice.basis.signals, 2 * choice.basis.terms
    basis = Basis(k, terms, series.radial_terms(terms, perpendicular))
    if series.size(k, terms) * max(1, basis.radial // 2) > LARGEST_BASIS or terms > 512:
        return None
    return ExpectationChoice(basis, choice.loss, choice.trained, choice.constraint)


def _parameters(
    problem: Problem,
    algorithm: OnePassSGD,
    choice: ExpectationChoice,
    states: State,
    span: float,
    nodes: int,
    perpendicular: int | None,
) -> tuple[Parameters, float]:
    """Return the traced values of a solution, and the error of the coefficients of the label.

    The values are rates, the table of c_n(v), and the coefficients of the label.
    """
    p, eigenvalue = problem.width, float(eigenvalues(problem.parameters)[0])
    v = eigenvalue * (np.sum(states["T"] ** 2, axis=-1) + states["q"])
    lowest, highest = v.min() / span, v.max() * span
    if is_scheduled(problem.weight_decay):
        decay = rescale_schedule(problem.weight_decay, p, 1.0)
    else:
        decay = np.float64(p * problem.weight_decay)
    parameters: Parameters = {
        "eigenvalue": np.float64(eigenvalue),
        "decay": decay,
        "head_rate": pytrees.to_float64(algorithm.head_rate),
        "weights": np.full(p, 1.0 / p),
        "lowest": np.float64(lowest),
        "highest": np.float64(highest),
    }
    if choice.basis is None:
        return parameters | {"problem": problem.parameters}, 0.0
    coefficients, square, error = series.labels(problem, choice.basis)
    loss: Any = problem.structure.loss
    parameters |= series.table(loss.student, choice.basis.terms, lowest, highest, nodes)
    # E[y^2] - |y|^2, which rounding may make negative
    label_tail = max(square - float(np.sum(coefficients**2)), 0.0)
    parameters |= {
        "labels": coefficients,
        "label_tail": np.float64(label_tail),
        "perpendicular": np.float64(perpendicular or np.inf),
    }
    return parameters, error


def _warn_if_slow(
    bar: Meter, choice: ExpectationChoice, parameters: Parameters, states: State, t: np.ndarray
) -> None:
    """Warn if even the fewest steps will take long, which the time of one velocity shows."""
    runs, p = states["q"].shape
    if choice.basis is None:
        terms = PAIR_COST * p
    else:
        terms = series.size(choice.basis.signals, choice.basis.terms)
    if t[-1] == 0.0 or bar.has_warned or runs * p * terms < HEAVY:
        return
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), states)
    rate = jax.jit(partial(_velocity, choice))

    def evaluate() -> None:
        jax.block_until_ready(rate(parameters, state, 0.0))

    warn_from_evaluation(bar, evaluate, "velocity", runs)


def _solve(
    choice: ExpectationChoice,
    parameters: Parameters,
    states: State,
    t: np.ndarray,
    tolerance: Mapping[str, float],
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return states (run, time, ...), which runs left the table, and which ran out of steps."""
    runs = len(states["q"])
    if t[-1] == 0.0:
        only_start = {name: np.asarray(array)[:, None] for name, array in states.items()}
        return only_start, np.zeros(runs, bool), np.zeros(runs, bool)
    # LSODA's implicit steps need matrices of the size of the state.
    is_small = sum(array[0].size for array in states.values()) <= LARGEST_IMPLICIT
    most_steps = FEW_STEPS if is_small else MOST_STEPS
    trajectories = _integrate(choice, most_steps, parameters, states, pad_with_last(t), tolerance)
    solution = {}
    for name, padded in trajectories.states.items():
        array = np.array(padded[:, : len(t)])
        array[~np.isfinite(array)] = np.nan
        solution[name] = array
    left_table, ran_out = np.array(trajectories.left_table), np.array(trajectories.ran_out)
    if not is_small:
        return solution, left_table, ran_out
    for run in np.flatnonzero(ran_out):
        state = {name: np.asarray(array[run]) for name, array in trajectories.end.items()}
        end_time = float(trajectories.end_time[run])
        is_later = t > end_time
        stiff = _continue_run(choice, parameters, state, end_time, t[is_later], tolerance)
        unravel = ravel_pytree(jax.tree.map(jnp.asarray, state))[1]
        for name, array in jax.vmap(unravel)(jnp.asarray(stiff.values.T)).items():
            solution[name][run, is_later] = np.asarray(array)
        left_table[run], ran_out[run] = stiff.ended == "diverged", stiff.ended == "exhausted"
    return solution, left_table, ran_out


def _risk_of(
    choice: ExpectationChoice, parameters: Parameters, states: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the excess risk and its error, (run, time)."""
    shape = states["q"].shape[:2]
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in states.items()}
    excess, error = _risks(choice, parameters, flat)
    return np.asarray(excess).reshape(shape), np.asarray(error).reshape(shape)
