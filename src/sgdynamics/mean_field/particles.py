"""Wide networks, p -> infinity with lr/p -> 0: units are particles (m, q, a) that move in the field of their own density.

    lambda = m P^-1 lambda* + sqrt(q) xi,   F = int mu a E_xi[s(lambda)],   E = y - F
    dm = a E[s'(lambda) lambda* E] - wd m,   dq = 2 a q E[s''(lambda) E] - 2 wd q,   da = head_rate (E[s(lambda) E] - wd a)
    sphere: dm -= m g, dq -= 2 q g with g = (m P^-1 dm + dq/2)

in the clock t/p = lr steps/(p d) that survives p -> infinity (Arnaboldi, Stephan, Krzakala, Loureiro 2023; slides "Dimension-free limits of
SGD", mean-field + high-d, whose PDE is d_t mu = - div(mu velocity)). There wd = width * weight_decay, the decay of one unit of this clock.
At a finite dimension d (still p = infinity) the perpendicular parts have uniform directions and F depends on |x_perp| too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import (
    Schedule,
    check_schedules,
    is_scheduled,
    rescale_schedule,
    values_at,
)
from sgdynamics.base.padding import pad_with_last
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Meter, meter, warn_from_evaluation, warn_if_long
from sgdynamics.base.support import require
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.mean_field import series as series
from sgdynamics.mean_field.series import Basis
from sgdynamics.ode.stiff import StiffResult, follow, ran_out
from sgdynamics.problems.constraints import Constraint
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.wide_starts import (
    MeanFieldStart,
    check_wide_problem,
    particles,
)
from sgdynamics.results.clock import Clock, make_clock, time_at_alpha
from sgdynamics.results.datasets import largest_share, time_coordinates
from sgdynamics.results.datasets import record as recorded
from sgdynamics.results.observables import (
    checked_evaluate,
    checked_record,
    evaluate_functions,
    label_recorded,
)
from sgdynamics.results.variables import VARIABLES
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.spectra import MAX_DIMENSION

__all__ = ["solve_mean_field"]

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
WARN_ABOVE = 1e-4
CLOCK_NODES = 1025  # of a table of alpha along t
HEAVY = 3e6  # terms of a velocity above which solutions may take minutes, and one velocity is timed


@dataclass(frozen=True)
class _Way:
    """What compiled code depends on: the series, or (with a loss) closed pairs; flags."""

    basis: Basis | None
    loss: Any
    trained: bool
    constraint: Constraint


def _velocity(way: _Way, numbers: dict[str, Any], state: State, t: Scalar = 0.0) -> dict[str, Any]:
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
    way: _Way,
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
    way: _Way, numbers: dict[str, Any], like: State, t: Scalar, y: Float[Array, " n"]
) -> Any:
    return ravel_pytree(_velocity(way, numbers, ravel_pytree(like)[1](y), t))[0]


@jax.jit
def _flat_on_table(numbers: dict[str, Any], like: State, y: Float[Array, " n"]) -> Any:
    return _on_table(numbers, ravel_pytree(like)[1](y))


def _later(
    way: _Way,
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
    return follow(
        lambda t, y: np.asarray(_flat_velocity(way, numbers, like, t, y)),
        y,
        t0,
        times,
        *limits,
        **setting,
    )


@partial(jax.jit, static_argnums=0)
def _risks(
    way: _Way, numbers: dict[str, Any], states: State
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


@float64
def solve_mean_field(
    problem: Problem,
    algorithm: OnePassSGD,
    start: MeanFieldStart | Start,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: int | None = None,
    expectations: str = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    record: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """The network of infinite width, with the p units of the start as particles, in the clock t/p = lr steps/(p d).

    d -> infinity with p, or p = infinity at finite d. Give exactly one of ``times``, ``alpha``, ``steps``.

    Parameters
    ----------
    problem : Problem
        TeacherStudent or MultiIndex with squared loss. Label noise enters only the risk. Weight decay: in this clock its rate is
        wd = width * weight_decay, held fixed.
    algorithm : OnePassSGD
        lr and batch do not enter (lr/p -> 0), but for ``alpha`` and ``steps``.
    start : MeanFieldStart or Start
        Initial condition: ``sgd.start(problem, M=..., q=...)``,
        ``sgd.random_start(problem, ..., wide=True)`` or any other start.
    times : array_like, optional
        Save points in t/p.
    alpha : array_like, optional
        Save points in samples/d of a network of the start's width: t/p = (1/p) integral of lr/batch over alpha, so that with a schedule too
        the result stands beside SGD of that width at equal alpha.
    steps : array_like, optional
        The same in steps, with a ``dimension``.
    dimension : int, optional
        p = infinity at this d; d -> infinity unless given.
    expectations : str, default "auto"
        "series": a Hermite series, O(p n^k/k!), any activation; "pairs": closed pair expectations, O(p^2), for d = infinity and
        committees of polynomials, erf or ReLU; "auto" takes the cheaper one.
    rtol : float, default 1e-06
        The relative accuracy wanted.
    atol : float, default 1e-08
        The absolute accuracy wanted.
    record : dict, optional
        Functions of the state by name, as in ``solve_ode``; a state has "M", "q" and "a".
    evaluate : dict, optional
        Other problems by name, as in ``solve_ode``: their risks are the variable ``evaluated_risk``.
    progress : bool, optional
        Whether to show a progress bar, over the solution and its two error estimates. By default only
        on a terminal.

    Returns
    -------
    xarray.Dataset
        ``M``, ``q``, ``a``, and the risk of the p = infinity system. Attributes:
        ``error_particles``, the largest change of the risk when every other particle is left out,
        relative to the largest risk of the run: the uncertainty due to p particles that represent a
        law; ``error_quadrature``, the series' end; ``error_integrator``, a tolerance ten times
        looser. Against the finite network expect gaps of order 1/p.

    Raises
    ------
    ValueError
        If an argument is refused, or this is not answered for the problem or the algorithm.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=64, activation="erf")
    >>> start = sgd.random_start(problem, dimension=200, wide=True)
    >>> result = sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> result["M"].shape, result["q"].shape
    ((1, 2, 64, 1), (1, 2, 64))
    """
    checks.require_outside_jit("solve_mean_field")
    algorithm = checked_algorithm(algorithm, "solve_mean_field", problem)
    check_wide_problem(problem)
    rtol = checks.number("rtol", rtol, above=0.0)
    atol = checks.number("atol", atol, above=0.0)
    perpendicular = (
        None
        if dimension is None
        else checks.integer("dimension", dimension, problem.signals + 1, MAX_DIMENSION)
        - problem.signals
    )
    when = _clock(problem, algorithm, times, alpha, steps, dimension)
    t, changing = when.t, _alpha_at(problem, algorithm, when)
    way = _way(
        problem,
        checks.choice("expectations", expectations, ("auto", "series", "pairs")),
        perpendicular,
    )
    T, q, a = particles(problem, start)
    states = {"T": T, "q": q, "a": a}
    first = {"M": T[0] @ problem.parameters["frame"][0].T, "q": q[0], "a": a[0]}
    asked = checked_record(record, first, problem, False)
    others = {name: _beside(problem, other) for name, other in checked_evaluate(evaluate).items()}
    p = problem.width
    tolerance = {"rtol": np.float64(MARGIN * rtol), "atol": np.float64(MARGIN * atol)}
    span, nodes, widenings = SPAN, TABLE_NODES, 0
    # one solution, one at a looser tolerance, and one of half the particles
    with meter(f"mean field, {p} particles", 3.0, progress) as bar:
        while True:
            began = perf_counter()
            numbers, label_error = _numbers(
                problem, algorithm, way, states, span, nodes, perpendicular
            )
            numbers |= changing
            _announce(bar, way, numbers, states, t)
            found, out, full = _solve(way, numbers, states, t, tolerance)
            if out.any() and widenings < WIDENINGS:
                span, nodes, widenings = span**2, 2 * nodes, widenings + 1
                continue
            excess, ends = _risk_of(way, numbers, found)
            longer = _longer(way, perpendicular)
            if largest_share(ends, excess) <= rtol or longer is None:
                break
            way = longer
        bar.advance(1.0)
        seconds = perf_counter() - began
        how = f"{seconds:.2g} s for the first of {bar.total:g} solutions"
        warn_if_long(bar, (bar.total - 1) * seconds, how)
        quadrature = largest_share(ends + label_error * np.sqrt(2 * excess), excess)
        loose = _solve(
            way, numbers, states, t, {name: 10 * value for name, value in tolerance.items()}
        )[0]
        error_integrator = largest_share(_risk_of(way, numbers, loose)[0] - excess, excess)
        bar.advance(1.0)
        error_particles = None
        if p > 1:
            half = {
                **numbers,
                "weights": np.where(np.arange(p) % 2 == 0, 1.0 / ((p + 1) // 2), 0.0),
            }
            fewer = _solve(
                way, half, states, t, {name: 10 * value for name, value in tolerance.items()}
            )[0]
            largest = np.max(np.where(np.isfinite(excess), excess, 0.0), axis=1, keepdims=True)
            change = _risk_of(way, half, fewer)[0] - excess
            error_particles = largest_share(change, np.broadcast_to(largest, change.shape))
    if quadrature > WARN_ABOVE:
        warnings.warn(
            f"expectations are known only to {quadrature:.1e} (relative to the risk): units are almost parallel to the signals, or a kink "
            "is not declared, sgd.Activation(f, kinks=...)",
            stacklevel=3,
        )
    good = np.all(np.isfinite(found["q"]), axis=2)
    last = np.array([np.nan if row.all() else t[row][-1] if row.any() else 0.0 for row in good])
    diverged_at, ran_out_at = np.where(full, np.nan, last), np.where(full, last, np.nan)
    if out.any():
        what = "has rows that grow or shrink without bound"
        warnings.warn(
            f"the solution {what} after t = {np.nanmin(diverged_at):.4g} (coordinate diverged_at)",
            stacklevel=3,
        )
    if full.any():
        warnings.warn(ran_out(ran_out_at), stacklevel=3)
    observed, of_others = evaluate_functions(asked.of_state, _public(problem, found), 2), None
    if others:
        risks = [
            _evaluated(other, algorithm, expectations, found, span, nodes, perpendicular)
            for other in others.values()
        ]
        observed["evaluated_risk"], of_others = (
            np.stack([one[0] for one in risks], axis=-1),
            max(one[1] for one in risks),
        )
    attributes = {
        "dimension": dimension,
        "assumptions": "Gaussian inputs, one pass, p -> infinity, lr/p -> 0, "
        + ("d -> infinity" if dimension is None else "this d"),
        "integrator": "Dopri8",
        "expectations": "pairs" if way.basis is None else f"series, {way.basis.terms} terms",
        "error_quadrature": quadrature,
        "error_integrator": error_integrator,
        "error_particles": error_particles,
        "error_evaluated": of_others,
        "recorded": " ".join(asked.of_state) or None,
    }
    ends = {"diverged_at": diverged_at, "ran_out_at": ran_out_at}
    return _dataset(
        problem, algorithm, when, found, excess, ends, attributes, label_recorded(observed, others)
    )


def _public(problem: Problem, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a user's function of a state sees: M, q and the head."""
    return {"M": found["T"] @ problem.parameters["frame"][0].T, "q": found["q"], "a": found["a"]}


def _beside(problem: Problem, other: Any) -> Problem:
    """Another problem with the same particles, for its risk along the way."""
    require("solve_mean_field", other)
    check_wide_problem(other)
    if (other.width, other.signals) != (problem.width, problem.signals) or not np.allclose(
        other.gram, problem.gram, rtol=0, atol=1e-9
    ):
        raise checks.reject(
            "evaluate",
            other,
            "give a problem of the same width, signals and Gram matrix of the signals",
        )
    return other


def _evaluated(
    other: Problem,
    algorithm: OnePassSGD,
    expectations: str,
    found: dict[str, np.ndarray],
    span: float,
    nodes: int,
    perpendicular: int | None,
) -> tuple[np.ndarray, float]:
    """The risk of another problem along the way, and its largest relative error."""
    way = _way(other, expectations, perpendicular)
    first = {name: value[:, 0] for name, value in found.items()}
    while True:
        numbers, label_error = _numbers(other, algorithm, way, first, span, nodes, perpendicular)
        excess, ends = _risk_of(way, numbers, found)
        longer = _longer(way, perpendicular)
        error = largest_share(ends + label_error * np.sqrt(2 * excess), excess)
        if error <= RTOL or longer is None:
            return excess + other.noise_floor, error
        way = longer


def _clock(
    problem: Problem,
    algorithm: OnePassSGD,
    times: ArrayArgument | None,
    alpha: ArrayArgument | None,
    steps: ArrayArgument | None,
    dimension: int | None,
) -> Clock:
    """Save points in t/p, with alpha and steps of a network of this width where lr > 0."""
    given: dict[str, Any] = {"times": times, "alpha": alpha, "steps": steps}
    if steps is not None:
        given = {
            "alpha": make_clock(algorithm, **given, dimension=dimension, whole_steps=False).alpha
        }
    # a batch p times as large has t/p for its t at equal alpha, whatever the schedule
    wide = replace(algorithm, batch=algorithm.batch * problem.width)
    found = make_clock(wide, **given, dimension=None, whole_steps=False)
    if dimension is None or found.alpha is None:
        return found
    requested = found.requested if steps is None else "step"
    return replace(found, step=found.alpha * (dimension / algorithm.batch), requested=requested)


def _alpha_at(problem: Problem, algorithm: OnePassSGD, when: Clock) -> dict[str, Any]:
    """A table of alpha along t/p, where numbers depend on it."""
    if not problem.scheduled and not is_scheduled(algorithm.head_rate):
        return {}
    if when.alpha is None:
        raise checks.reject(
            "lr",
            algorithm.lr,
            "gradient flow uses no samples, and there are numbers that depend on alpha: give lr",
        )
    end = float(when.alpha[-1])
    problem.check_schedule_values(end)
    check_schedules(algorithm.parameters["head_rate"], end, "alpha")
    alpha = np.linspace(0.0, end, CLOCK_NODES)[1:] if end > 0 else np.ones(1)
    if (
        isinstance(algorithm.lr, Schedule) and algorithm.lr.name == "piecewise"
    ):  # a table is linear between its nodes, as t is there
        edges = algorithm.lr.parameters["edges"]
        alpha = np.unique(np.concatenate([alpha, edges[edges < alpha[-1]]]))
    wide = replace(algorithm, batch=algorithm.batch * problem.width)
    found = {"t": np.append(0.0, time_at_alpha(wide, alpha)), "alpha": np.append(0.0, alpha)}
    return {"clock": found}


def _way(problem: Problem, expectations: str, perpendicular: int | None) -> _Way:
    """Series or pairs, by cost."""
    loss, k = problem.structure.loss, problem.signals
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
        return _Way(None, loss, *flags)
    # a polynomial's loss marks a series that ends; any other series is compiled for all activations alike
    return _Way(
        Basis(k, terms, series.radial_terms(terms, perpendicular)),
        None if degree is None else "polynomial",
        *flags,
    )


def _longer(way: _Way, perpendicular: int | None) -> _Way | None:
    """Twice the terms, where there is something to cut and room for them."""
    if way.basis is None or way.loss is not None:
        return None
    k, terms = way.basis.signals, 2 * way.basis.terms
    basis = Basis(k, terms, series.radial_terms(terms, perpendicular))
    if series.size(k, terms) * max(1, basis.radial // 2) > LARGEST_BASIS or terms > 512:
        return None
    return _Way(basis, way.loss, way.trained, way.constraint)


def _numbers(
    problem: Problem,
    algorithm: OnePassSGD,
    way: _Way,
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
    numbers |= series.table(problem.structure.loss.student, way.basis.terms, lowest, highest, nodes)
    rest = max(square - float(np.sum(coefficients**2)), 0.0)  # below 0 by rounding only
    numbers |= {
        "labels": coefficients,
        "rest": np.float64(rest),
        "perpendicular": np.float64(perpendicular or np.inf),
    }
    return numbers, error


def _announce(bar: Meter, way: _Way, parameters: Parameters, states: State, t: np.ndarray) -> None:
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
    way: _Way, numbers: Parameters, states: State, t: np.ndarray, tolerance: Mapping[str, float]
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
    way: _Way, numbers: Parameters, found: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Excess risk and its error, (run, time)."""
    shape = found["q"].shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in found.items()}
    excess, error = _risks(way, numbers, flat)
    return np.asarray(excess).reshape(shape), np.asarray(error).reshape(shape)


def _dataset(
    problem: Problem,
    algorithm: OnePassSGD,
    when: Clock,
    found: Any,
    excess: np.ndarray,
    ends: dict[str, np.ndarray],
    attributes: dict[str, Any],
    more: dict[str, Any],
) -> xr.Dataset:
    floor: Any = problem.noise_floor if not problem.scheduled else 0.0
    if problem.scheduled and when.alpha is not None:
        floor = np.array([problem.at(place).noise_floor for place in when.alpha])
    values = {**_public(problem, found), "risk": excess + floor, "excess_risk": excess}
    variables = {
        name: (
            ("run", "time", *VARIABLES[name].axes),
            value,
            {"long_name": VARIABLES[name].meaning},
        )
        for name, value in values.items()
    } | more
    coordinates = time_coordinates(when, ends["diverged_at"], ran_out_at=ends["ran_out_at"])
    coordinates["t"] = ("time", when.t, {"long_name": "mean-field time t/p = lr steps/(p d)"})
    coordinates["t_sgd"] = (
        "time",
        problem.width * when.t,
        {"long_name": "time lr steps/d of a network of this width: width times t"},
    )
    return xr.Dataset(
        variables,
        coordinates,
        recorded(problem, algorithm, "solve_mean_field", attributes | {"clock": when.requested}),
    )
