"""The ballistic limit: overlaps and head follow an ODE, whose right-hand side is the mean increment of one step.

With Omega_b the overlaps of covariance block b (eigenvalue l_b, fraction f_b of d), H, C, E[dloss/da] as in `gaussian.moments`,
batch B and weight decay al, in the time t = lr steps/d:

    dM_b/dt = - l_b (H Omega_b)_signals - al M_b
    dQ_b/dt = - l_b [(H Omega_b)_students + transpose] - 2 al Q_b + (lr/B) l_b f_b C
    da/dt   = - head_rate (E[dloss/da] + al a)
    sphere: dM -= M dQ_ii/2,  dQ_ij -= Q_ij (dQ_ii + dQ_jj)/2

At finite d the mean increment of one step is exact with

    (lr/d) { (l_b/B) 2 D_b C + (1 - 1/B) l_b^2 H Omega_b H^T + al^2 Q_b + al l_b [(H Omega_b)_students + transpose] }

added to dQ_b, and on the sphere with the mean of what normalising the rows does beyond first order.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import xarray as xr
from scipy import special, stats

from sgdynamics import checks, compressed
from sgdynamics.algorithms import OnePassSGD, Schedule, checked_algorithm, rate_at
from sgdynamics.clock import Clock, clock
from sgdynamics.gaussian.moments import Rule, by_clusters, finer, moments, nodes_for, sampled
from sgdynamics.gaussian.nodes import lower_root, sobol_normals, solve_forward
from sgdynamics.gaussian.risk import MARGIN as RULE_MARGIN
from sgdynamics.gaussian.risk import TOLERANCE, effective_overlaps, risk_by, rule_for
from sgdynamics.limits.sliding import infinite_snr_risk, solve_infinite_snr
from sgdynamics.limits.spiked import solve_spiked_ode
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start, check_dimension, checked_start
from sgdynamics.results import largest_share, trajectory

RTOL = 1e-8
ATOL = 1e-10
MARGIN = 1e-3  # local tolerance over the one asked for: errors add up, and the risk is a small difference of overlaps
MOST_STEPS = 2000  # explicit steps before the implicit method takes over: well beyond any smooth trajectory, cheap to waste
MOST_IMPLICIT_STEPS = 20000
KINKED_TOLERANCE = 1e-6  # where sampled expectations have kinks in the overlaps, an integrator cannot use, nor need, more
WARN_ABOVE = 1e-4  # relative error of an expectation that a user should hear of
EVENT_TOLERANCE = 1e-12  # on the time of an event
LARGEST = 1e6  # overlaps beyond this have diverged
SPHERE_LOG2_POINTS = 11  # a replicate; the remainder on the sphere is O(1/d), a percent of it is plenty


def drift(
    structure: Structure,
    rule: Rule,
    nodes: dict[str, Any],
    parameters: Any,
    algorithm: Any,
    state: dict[str, Any],
    *,
    batch: int = 1,
    flow: bool = False,
    finite: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """d(M, Q, a)/dt; `finite` holds 1/d and the block sizes over d for the exact mean increment at that d."""
    p = structure.width
    M, Q, head = state["M"], state["Q"], state["a"]
    decay, lr = parameters["weight_decay"], algorithm["lr"]
    eigenvalues = parameters["eigenvalues"][:, None, None]
    blocks, omega, means = effective_overlaps(structure, parameters, M, Q)
    directions = None if finite is None or flow else eigenvalues * blocks
    found = moments(structure, rule, nodes, parameters, omega, head, directions, flow=flow, means=means)
    coefficients = found.coefficients(parameters)
    pull = jnp.einsum("bic,bcd->bid", coefficients, blocks)
    inward = pull[..., :p] + jnp.swapaxes(pull[..., :p], -1, -2)
    dM = -pull[..., p:] - decay * M
    dQ = -inward - 2 * decay * Q
    if not flow:
        fractions = parameters["fractions"] if finite is None else finite["sizes"] * finite["inverse_dimension"]
        dQ = dQ + (lr / batch) * eigenvalues * fractions[:, None, None] * found.noise
        if finite is not None:
            tilt = jnp.einsum("bid,bjd->bij", pull, coefficients)
            more = found.norms / batch + (1 - 1 / batch) * tilt
            dQ = dQ + lr * finite["inverse_dimension"] * (more + decay**2 * Q + decay * inward)
    if structure.sphere:
        norms = jnp.einsum("bii->i", dQ)
        dM = dM - M * norms[:, None] / 2
        dQ = dQ - Q * (norms[:, None] + norms[None, :]) / 2
        if finite is not None and not flow:
            rest = _sphere_remainder(structure, parameters, algorithm, state, batch, finite)
            dM, dQ = dM + rest["M"], dQ + rest["Q"]
    da = -algorithm["head_rate"] * (found.head_gradient + decay * head) if structure.trained else jnp.zeros_like(head)
    return {"M": dM, "Q": dQ, "a": da}


def _sphere_remainder(
    structure: Structure, parameters: Any, algorithm: Any, state: dict[str, Any], batch: int, finite: dict[str, Any]
) -> dict[str, Any]:
    """Mean over one step of (normalised overlaps - their expansion to first order in the step), per unit of t.

    It runs the chain's own step on Sobol points for the input, so it is the increment of the chain by construction.
    """
    free = replace(structure, sphere=False)
    layout = compressed.Layout(free, batch, single=True)
    frame = parameters["frame"]
    T = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(state["M"], -1, -2)), -1, -2)
    L = jax.vmap(lower_root)(state["Q"] - T @ jnp.swapaxes(T, -1, -2))
    rows = compressed.initial_rows(layout, T, L, state["a"])
    rate = algorithm["lr"] * finite["inverse_dimension"]

    def one(inside: Any, noise: Any, outside: Any) -> dict[str, Any]:
        beyond = jnp.zeros((batch, structure.blocks, layout.columns), inside.dtype)
        if not layout.wide_batch:
            beyond = jnp.moveaxis(outside, 0, 1)
        x, labels = compressed.with_means(structure, parameters, jnp.concatenate([inside, beyond], axis=-1), noise)
        moved = compressed.one_step(layout, parameters, algorithm, rate, rows, x, labels, outside)
        after = compressed.overlaps(free, parameters, moved)
        change = {name: after[name] - state[name] for name in ("M", "Q")}
        g = jnp.einsum("bii->i", change["Q"])
        s = jnp.sqrt(1 + g)
        # 1/s - 1 + g/2 without cancellation: g is of order 1/d
        k = g**2 * (s + 2) / (2 * s * (1 + s) ** 2)
        u = k - g / 2
        both = (g[:, None] + g[None, :]) / 2
        rest_M = after["M"] * k[:, None] - change["M"] * g[:, None] / 2
        rest_Q = after["Q"] * (k[:, None] + k[None, :] + u[:, None] * u[None, :]) - change["Q"] * both
        return {"M": rest_M / rate, "Q": rest_Q / rate}

    points = finite["points"]
    every = jax.vmap(one)(points["inside"], points["noise"], points["outside"])
    return jax.tree.map(lambda value: jnp.mean(value, axis=0), every)


@lru_cache(maxsize=16)
def _sphere_points(structure: Structure, batch: int, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Sobol points for one step's random numbers: inside normals, label noise, Bartlett factors at these block sizes.

    A leading axis of replicates, as for every expectation that is sampled.
    """
    layout = compressed.Layout(structure, batch, single=True)
    blocks, columns = structure.blocks, layout.columns
    lower = columns * (columns - 1) // 2
    counts = [batch * blocks * layout.inside, batch, blocks * lower, blocks * columns]
    replicates = Rule().replicates
    points = sobol_normals(sum(counts), SPHERE_LOG2_POINTS, replicates, whiten=False, seed=97)
    points = points.reshape(-1, sum(counts))
    inside, noise, below, diagonal = np.split(points, np.cumsum(counts)[:-1], axis=1)
    n = len(points)
    free = np.array(sizes)[:, None] - layout.inside - np.arange(columns)
    chi2 = stats.chi2.ppf(special.ndtr(diagonal).reshape(n, blocks, columns), np.maximum(free, 1))
    chi = np.where(free > 0, np.sqrt(chi2), 0.0)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        outside = np.asarray(compressed.bartlett(below.reshape(n, blocks, lower), chi, free, columns))
    found = {"inside": inside.reshape(n, batch, blocks, layout.inside), "noise": noise, "outside": outside}
    return {name: value.reshape(replicates, n // replicates, *value.shape[1:]) for name, value in found.items()}


def finite_numbers(problem: Problem, dimension: int, batch: int) -> dict[str, Any]:
    """What `drift` needs to know of a finite dimension; on the sphere also `points`, with a leading axis of replicates."""
    d, sizes = check_dimension(problem, dimension)
    numbers: dict[str, Any] = {"inverse_dimension": np.float64(1.0 / d), "sizes": sizes.astype(np.float64)}
    if problem.structure.sphere:
        numbers["points"] = _sphere_points(problem.structure, batch, tuple(sizes.tolist()))
    return numbers


def integrate(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    stiff: bool,
    nodes: dict[str, Any],
    parameters: Any,
    algorithm: Any,
    finite: dict[str, Any] | None,
    state: dict[str, Any],
    times: Any,
    rtol: Any = RTOL,
    atol: Any = ATOL,
    guard: bool = True,
    watch: Any = None,
) -> diffrax.Solution:
    """One trajectory from t = 0, saved at `times` by dense output: Dormand-Prince 8(7), or Kvaerno 5(4) where `stiff`.

    Where lr is a schedule, `times` are values of alpha.

    With `guard` it stops where the overlaps leave every bound (an event, which reverse mode need not carry). With `watch`, a
    function of the state, it stops where that falls below zero, the time found by bisection, and only the end is saved.
    """

    # jitted on its own: the integrator names the field in several places, and this way it is traced once
    rate = jax.jit(partial(drift, structure, rule, batch=batch, flow=flow))

    scheduled = isinstance(algorithm["lr"], Schedule)

    def field(t: Any, y: Any, args: Any) -> Any:
        if not scheduled:
            return rate(nodes, parameters, algorithm, y, finite=finite)
        # with a schedule the variable is alpha: t = integral of lr/batch
        lr = rate_at(algorithm["lr"], t)
        moved = rate(nodes, parameters, {**algorithm, "lr": lr}, y, finite=finite)
        return jax.tree.map(lambda value: value * (lr / batch), moved)

    def blown_up(t: Any, y: Any, args: Any, **_: Any) -> Any:
        size = sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(y))
        return ~(size < LARGEST)

    event = diffrax.Event(blown_up) if guard else None
    if watch is not None:
        # flip: told, not detected, for runs without an event get a function that is 0 at the end, which detection refuses
        found = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
        # one condition for both, as bisection takes one: overlaps beyond every bound count as below zero
        event = diffrax.Event(lambda t, y, args, **_: jnp.where(blown_up(t, y, args), -1.0, watch(y)), root_finder=found)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5() if stiff else diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(ts=times) if watch is None else diffrax.SaveAt(t1=True),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=event,
        max_steps=MOST_IMPLICIT_STEPS if stiff else MOST_STEPS,
        throw=False,
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _integrate_all(
    structure: Structure,
    rule: Rule,
    batch: int,
    flow: bool,
    stiff: bool,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    finite: Any,
    states: Any,
    times: Any,
    tolerance: Any,
) -> tuple[Any, Any]:
    """Every replicate of the nodes (outer) and every start (inner): overlaps, and why the solver stopped."""

    def one(node: Any, points: Any, state: Any) -> tuple[Any, Any]:
        here = finite if points is None else {**finite, "points": points}
        found = integrate(
            structure, rule, batch, flow, stiff, node, parameters, algorithm, here, state, times, tolerance["rtol"], tolerance["atol"]
        )
        full = found.result == diffrax.RESULTS.max_steps_reached
        return found.ys, full

    points = None if finite is None else finite.get("points")
    return jax.vmap(lambda node, point: jax.vmap(partial(one, node, point))(states))(nodes, points)


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
    rtol: float = RTOL,
    atol: float = ATOL,
) -> xr.Dataset:
    """The overlaps and the risk as d -> infinity, or with the exact mean increment of one step at `dimension`.

    lr = 0 is gradient flow. Give exactly one of `times`, `alpha`, `steps`; any number of starts is solved at once.
    An explicit method of order 8 with adaptive steps; where it needs too many (stiff late times), an implicit one takes over.
    Attributes: `error_integrator`, the largest relative change of the risk when the tolerance is ten times looser;
    `error_quadrature`, the estimated relative error of the expectations, on the risk of the trajectory where they are sampled.
    A solution that leaves every bound is NaN from there on, its last finite time in `diverged_at`.
    """
    if isinstance(problem, SpikedTensor):
        when = {"times": times, "alpha": alpha, "steps": steps}
        return solve_spiked_ode(problem, algorithm, start, **when, dimension=dimension, rtol=rtol, atol=atol)
    checks.outside_jit("solve_ode")
    checked_algorithm(algorithm)
    rtol = checks.number("rtol", rtol, above=0.0)
    atol = checks.number("atol", atol, above=0.0)
    if dimension is not None:
        dimension = check_dimension(problem, dimension)[0]
    when = clock(algorithm, times=times, alpha=alpha, steps=steps, dimension=dimension, whole_steps=False)
    begin = checked_start(problem, start)
    if by_clusters(problem.structure) and not np.any(problem.parameters["eigenvalues"]):
        return _infinite_snr(problem, algorithm, begin, when, dimension, MARGIN * rtol, MARGIN * atol)
    flow = algorithm.flow
    finite = None if dimension is None or flow else finite_numbers(problem, dimension, algorithm.batch)
    floor = KINKED_TOLERANCE if problem.structure.kinks and sampled(problem.structure, flow) else 0.0
    tolerance = {"rtol": np.float64(max(MARGIN * rtol, floor)), "atol": np.float64(max(MARGIN * atol, floor))}
    rule = rule_for(problem, begin.Q_blocks, RULE_MARGIN)
    variable = when.alpha if algorithm.scheduled and when.alpha is not None else when.t
    while True:
        overlaps, stiff = _solve(problem, algorithm, begin, variable, rule, flow, finite, tolerance)
        mean = {name: value.mean(axis=0) for name, value in overlaps.items()}
        risk, _, worst = risk_by(problem, rule, mean["M"], mean["Q"], mean["a"])
        if worst <= TOLERANCE:
            break
        longer = finer(problem.structure, rule) or rule_for(problem, mean["Q"], 1.0)
        if longer.mixture == rule.mixture and longer.terms <= rule.terms:
            break
        rule = longer  # the rows have grown more than expected, or become more parallel
    quadrature = worst
    if len(overlaps["a"]) > 1:
        each, within, _ = risk_by(problem, rule, overlaps["M"], overlaps["Q"], overlaps["a"])
        quadrature = max(worst, within, largest_share(each.std(axis=0, ddof=1) / np.sqrt(len(each)), risk))
    if worst > WARN_ABOVE:
        warnings.warn(
            f"expectations are known only to {worst:.1e} (relative): an activation with kinks should declare them, "
            "sgd.Activation(f, kinks=...)",
            stacklevel=3,
        )
    looser = {name: 10 * value for name, value in tolerance.items()}
    loose = _solve(problem, algorithm, begin, variable, rule, flow, finite, looser, stiff)[0]
    loose_risk = risk_by(problem, rule, *(loose[name].mean(axis=0) for name in ("M", "Q", "a")))[0]
    attributes = {
        "dimension": dimension,
        "assumptions": "Gaussian inputs, one pass, " + ("d -> infinity" if dimension is None else "mean increment at d"),
        "integrator": "Kvaerno5" if stiff else "Dopri8",
        "error_quadrature": quadrature,
        "error_integrator": largest_share(loose_risk - risk, risk),
    }
    diverged_at = _last_finite(mean["Q"], when.t)
    if np.any(np.isfinite(diverged_at)):
        warnings.warn(
            f"the solution diverges after t = {np.nanmin(diverged_at):.4g} (coordinate diverged_at); a smaller lr may help",
            stacklevel=3,
        )
    return trajectory(problem, algorithm, when, mean, risk, diverged_at=diverged_at, method="solve_ode", attributes=attributes)


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
    risk = infinite_snr_risk(kind, found["M"], found["a"])
    attributes = {
        "assumptions": "one pass, d -> infinity, then snr -> infinity; sliding motion after Filippov",
        "integrator": "Dopri8 between surfaces",
        "error_quadrature": 0.0,
        "error_integrator": float(found["error"].max()),
    }
    return trajectory(
        problem,
        algorithm,
        when,
        overlaps,
        risk,
        diverged_at=np.full(begin.runs, np.nan),
        method="solve_ode",
        attributes=attributes,
    )


def _solve(
    problem: Problem,
    algorithm: OnePassSGD,
    begin: Start,
    t: np.ndarray,
    rule: Rule,
    flow: bool,
    finite: Any,
    tolerance: dict[str, Any],
    stiff: bool = False,
) -> tuple[dict[str, np.ndarray], bool]:
    """Overlaps (replicate, run, time, ...), by the explicit method first and by the implicit one where that gives up."""
    states = {"M": begin.M_blocks, "Q": begin.Q_blocks, "a": begin.a}
    if t[-1] == 0.0:
        return {name: value[None, :, None] for name, value in states.items()}, False
    # the number of save points is a shape: filled up to a power of two, nearby numbers share one compilation
    padded = np.concatenate([t, np.full(2 ** int(np.ceil(np.log2(len(t)))) - len(t), t[-1])])
    nodes = nodes_for(problem.structure, rule, flow) or {"none": np.zeros((1, 1))}
    if finite is not None and "points" in finite:
        # what is not sampled goes once with each replicate of what is
        nodes = {name: np.broadcast_to(value, (rule.replicates, *value.shape[1:])) for name, value in nodes.items()}
    while True:
        found, full = _integrate_all(
            problem.structure,
            rule,
            algorithm.batch,
            flow,
            stiff,
            nodes,
            problem.parameters,
            algorithm.parameters,
            finite,
            states,
            padded,
            tolerance,
        )
        if stiff or not np.any(np.asarray(full)):
            break
        stiff = True
    if np.any(np.asarray(full)):
        warnings.warn(
            f"the integrator did not reach t = {t[-1]:g} in {MOST_IMPLICIT_STEPS} implicit steps: what it did not reach is NaN; "
            "raise rtol, or ask for shorter times",
            stacklevel=4,
        )
    result = {}
    for name, value in found.items():
        values = np.array(value[:, :, : len(t)])
        values[~np.isfinite(values)] = np.nan
        result[name] = values
    return result, stiff


def _last_finite(Q: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The last save point before a solution stopped being finite, NaN where it did not (0 where none was)."""
    good = np.all(np.isfinite(Q), axis=(2, 3, 4))
    last = [t[row][-1] if row.any() else 0.0 for row in np.atleast_2d(good)]
    return np.where(np.all(good, axis=1), np.nan, last)
