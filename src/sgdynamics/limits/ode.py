"""The ballistic limit: overlaps and head follow an ODE, whose right-hand side is the mean increment of one step (`limits.drift`)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr

from sgdynamics import checks
from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm
from sgdynamics.clock import Clock, clock
from sgdynamics.gaussian.choice import expectation_of
from sgdynamics.gaussian.expectation import Rule
from sgdynamics.gaussian.risk import MARGIN as RULE_MARGIN
from sgdynamics.gaussian.risk import TOLERANCE, finer_rule, risk_by, rule_for
from sgdynamics.limits.drift import finite_numbers
from sgdynamics.limits.integration import ATOL, MARGIN, RTOL, flat, rate, replicated_nodes, solve_states
from sgdynamics.limits.long_times import ran_out
from sgdynamics.limits.sliding import infinite_snr_risk, solve_infinite_snr
from sgdynamics.limits.spiked import solve_spiked_ode
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start, check_dimension, checked_start
from sgdynamics.results import largest_share, trajectory

KINKED_TOLERANCE = 1e-6  # where sampled expectations have kinks in the overlaps, an integrator cannot use, nor need, more
WARN_ABOVE = 1e-4  # relative error of an expectation that a user should hear of


@float64
def solve_ode(
    problem: Problem | SpikedTensor,
    algorithm: OnePassSGD,
    start: Start | SpikedStart,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> xr.Dataset:
    """The overlaps and the risk as d -> infinity, or with the exact mean increment of one step at `dimension`.

    lr = 0 is gradient flow. Give exactly one of `times`, `alpha`, `steps`; any number of starts is solved at once, to times as late as 1e8.
    An explicit method of order 8 with adaptive steps; where it needs too many (late times), LSODA goes on from where it stopped.
    `rtol`, `atol`: the accuracy wanted of the overlaps; the local tolerance is a thousandth of it, as errors add up. Unless given rtol is
    1e-8, or where the expectations are sampled, and not known better than that, their own relative error at the start; atol is rtol/100.
    Attributes: `error_integrator`, the largest relative change of the risk when the tolerance is ten times looser;
    `error_quadrature`, the estimated error of the expectations: of pairs and grids relative to their own scale, of sampling on the overlaps
    and the risk relative to their largest values in the run; `error_quadrature_risk`, that of sampling relative to the risk of the same
    time, which is large where the risk is near 0.
    A solution that leaves every bound is NaN from there on, its last finite time in `diverged_at`. Where the integrator runs out of steps
    instead, what it reached is kept, and the coordinate `ran_out_at` says how far that is.
    """
    if isinstance(problem, SpikedTensor):
        given = {"times": times, "alpha": alpha, "steps": steps}
        accuracy = {"rtol": RTOL if rtol is None else rtol, "atol": ATOL if atol is None else atol}
        return solve_spiked_ode(problem, algorithm, start, **given, dimension=dimension, **accuracy)
    checks.outside_jit("solve_ode")
    checked_algorithm(algorithm)
    rtol = None if rtol is None else checks.number("rtol", rtol, above=0.0)
    atol = None if atol is None else checks.number("atol", atol, above=0.0)
    if dimension is not None:
        dimension = check_dimension(problem, dimension)[0]
    when = clock(algorithm, times=times, alpha=alpha, steps=steps, dimension=dimension, whole_steps=False)
    begin = checked_start(problem, start)
    if expectation_of(problem.structure).jumps(problem.parameters):
        tolerance = (MARGIN * (RTOL if rtol is None else rtol), MARGIN * (ATOL if atol is None else atol))
        return _infinite_snr(problem, algorithm, begin, when, dimension, *tolerance)
    finite = None if dimension is None or algorithm.flow else finite_numbers(problem, dimension, algorithm.batch)
    rule = rule_for(problem, begin.Q_blocks, RULE_MARGIN)
    tolerance = tolerances(problem, algorithm, begin, rule, finite, rtol, atol)
    variable = when.alpha if algorithm.scheduled and when.alpha is not None else when.t
    while True:
        found = solve_states(problem, algorithm, begin, variable, rule, finite, tolerance)
        mean = {name: value.mean(axis=0) for name, value in found.overlaps.items()}
        risk, _, worst = risk_by(problem, rule, mean["M"], mean["Q"], mean["a"])
        if worst <= TOLERANCE:
            break
        longer = finer_rule(problem, rule, mean["Q"])
        if longer is None:
            break
        rule = longer
    quadrature, of_risk = worst, 0.0
    if len(found.overlaps["a"]) > 1:
        each, within, _ = risk_by(problem, rule, *(found.overlaps[name] for name in ("M", "Q", "a")))
        quadrature, of_risk = sampling_errors(found.overlaps, each, worst, within)
    if worst > WARN_ABOVE:
        warnings.warn(inaccurate(problem, worst), stacklevel=3)
    looser = {name: 10 * value for name, value in tolerance.items()}
    loose = solve_states(problem, algorithm, begin, variable, rule, finite, looser).overlaps
    loose_risk = risk_by(problem, rule, *(loose[name].mean(axis=0) for name in ("M", "Q", "a")))[0]
    attributes = {
        **described(dimension, found.long),
        "error_quadrature": quadrature,
        "error_quadrature_risk": of_risk if of_risk > 0 else None,
        "error_integrator": largest_share(loose_risk - risk, risk),
    }
    ends, texts = told_apart(mean, found.tired, when.t)
    for text in texts:
        warnings.warn(text, stacklevel=3)
    return trajectory(problem, algorithm, when, mean, risk, **ends, method="solve_ode", attributes=attributes)


def described(dimension: int | None, long: bool) -> dict[str, Any]:
    """What a result says of the limit and the integrator."""
    return {
        "dimension": dimension,
        "assumptions": "Gaussian inputs, one pass, " + ("d -> infinity" if dimension is None else "mean increment at d"),
        "integrator": "Dopri8, then LSODA" if long else "Dopri8",
    }


def inaccurate(problem: Problem, worst: float) -> str:
    """The warning about expectations that are not known well, with what may help."""
    return f"expectations are known only to {worst:.1e} (relative): {expectation_of(problem.structure).advice}"


def tolerances(
    problem: Problem, algorithm: OnePassSGD, begin: Start, rule: Rule, finite: Any, rtol: float | None, atol: float | None
) -> dict[str, Any]:
    """Local tolerances: a thousandth of what is asked for, or of what the expectations are known to; atol counts in the largest overlap."""
    floor = 0.0
    if rtol is None:
        rtol = RTOL
        if expectation_of(problem.structure).sampled(algorithm.flow):
            rtol = max(RTOL, _error_at_start(problem, algorithm, begin, rule, finite))
            floor = KINKED_TOLERANCE if problem.structure.kinks else 0.0
    atol = rtol * (ATOL / RTOL) if atol is None else atol
    scale = max(1.0, float(np.abs(begin.Q_blocks).max()))
    return {"rtol": np.float64(max(MARGIN * rtol, floor)), "atol": np.float64(max(MARGIN * atol, floor) * scale)}


def _error_at_start(problem: Problem, algorithm: OnePassSGD, begin: Start, rule: Rule, finite: Any) -> float:
    """The relative standard error of a sampled drift at the start, from the spread of the replicates."""
    nodes = replicated_nodes(problem.structure, rule, algorithm.flow, finite)
    states = {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a}
    numbers = (nodes, problem.parameters, algorithm.parameters, finite, states)
    every = np.asarray(_rates_at(problem.structure, rule, algorithm.batch, algorithm.flow, *numbers))
    if not np.all(np.isfinite(every)):
        raise ValueError(
            "problem: its drift is not finite at the start: the loss, an activation or the target gives NaN or infinity; "
            "make it finite for every real field"
        )
    error = np.linalg.norm(every.std(axis=0, ddof=1), axis=-1) / np.sqrt(len(every))
    return float(np.max(error / np.maximum(np.linalg.norm(every.mean(axis=0), axis=-1), 1e-300)))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _rates_at(
    structure: Structure, rule: Rule, batch: int, flow: bool, nodes: Any, parameters: Any, algorithm: Any, finite: Any, states: Any
) -> Any:
    """The drift of every replicate (outer) and start (inner) at t = 0, flat."""

    def one(node: Any, points: Any, state: Any) -> Any:
        here = finite if points is None else {**finite, "points": points}
        return flat(structure, rate(structure, rule, batch, flow, node, parameters, algorithm, here, 0.0, state))

    points = None if finite is None else finite.get("points")
    return jax.vmap(lambda node, point: jax.vmap(partial(one, node, point))(states))(nodes, points)


def sampling_errors(overlaps: dict[str, np.ndarray], risks: np.ndarray, worst: float, within: float) -> tuple[float, float]:
    """`error_quadrature` and `error_quadrature_risk` from replicates (first axis) of runs: the spread of their overlaps and risks.

    `worst`: the error of pairs and grids, `within`: that of the risk's own sampling at given overlaps, relative to the risk.
    """
    root = np.sqrt(len(risks))
    share = worst
    for value in (*overlaps.values(), risks):
        error, size = value.std(axis=0, ddof=1) / root, np.abs(value.mean(axis=0))
        axes = tuple(range(1, size.ndim))
        # a run that diverged has no largest value
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            largest = np.nanmax(size, axis=axes, keepdims=True)
        share = max(share, largest_share(error, np.broadcast_to(largest, error.shape)))
    mean = risks.mean(axis=0)
    return share, max(within, largest_share(risks.std(axis=0, ddof=1) / root, mean))


def _infinite_snr(
    problem: Problem, algorithm: OnePassSGD, begin: Start, when: Clock, dimension: int | None, rtol: float, atol: float
) -> xr.Dataset:
    """A ReLU mixture without noise: its drift jumps where a unit is orthogonal to a cluster, and the solution may stay there."""
    if dimension is not None:
        raise checks.reject("dimension", dimension, "at snr = inf only d -> infinity has an ODE (its drift jumps): leave dimension out")
    kind = getattr(problem, "mixture", None)
    if kind is None:
        raise ValueError("clusters without noise: sgd.GaussianMixture(snr=inf) has an ODE; give an own problem some noise")
    numbers = {"weight_decay": problem.weight_decay, "head_rate": algorithm.head_rate, "rtol": rtol, "atol": atol}
    found = solve_infinite_snr(kind, begin.M, begin.Q, begin.a, times=when.t, error=True, **numbers)
    overlaps = {"M": found["M"][:, :, None], "Q": found["Q"][:, :, None], "a": found["a"]}
    finite = np.isfinite(found["a"]).all(axis=-1)
    # checked by the risk's own function, which refuses NaN
    safe = {name: np.where(finite.reshape(*finite.shape, *[1] * (found[name].ndim - 2)), found[name], 0.0) for name in ("M", "a")}
    risk = np.where(finite, infinite_snr_risk(kind, safe["M"], safe["a"]), np.nan)
    attributes = {
        "assumptions": "one pass, d -> infinity, then snr -> infinity; sliding motion after Filippov",
        "integrator": "Dopri8 between surfaces",
        "error_quadrature": 0.0,
        "error_integrator": float(found["error"].max()),
    }
    ends, texts = told_apart(overlaps, found["ran_out"], when.t)
    for text in texts:
        warnings.warn(text, stacklevel=4)
    return trajectory(problem, algorithm, when, overlaps, risk, **ends, method="solve_ode", attributes=attributes)


def told_apart(mean: dict[str, np.ndarray], tired: np.ndarray, t: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """The last good times of runs that diverged and of runs whose steps ran out (NaN for all others), and the warnings of both."""
    last = _last_finite(mean["Q"], t)
    diverged_at, ran_out_at = np.where(tired, np.nan, last), np.where(tired, last, np.nan)
    texts = []
    if np.any(np.isfinite(diverged_at)):
        texts.append(f"the solution diverges after t = {np.nanmin(diverged_at):.4g} (coordinate diverged_at); a smaller lr may help")
    if np.any(np.isfinite(ran_out_at)):
        texts.append(ran_out(ran_out_at))
    return {"diverged_at": diverged_at, "ran_out_at": ran_out_at}, texts


def _last_finite(Q: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The last save point before a solution stopped being finite, NaN where it did not (0 where none was)."""
    good = np.all(np.isfinite(Q), axis=(2, 3, 4))
    last = [t[row][-1] if row.any() else 0.0 for row in np.atleast_2d(good)]
    return np.where(np.all(good, axis=1), np.nan, last)
