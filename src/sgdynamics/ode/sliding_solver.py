"""Integration of Gaussian mixtures at snr = infinity (`ode.sliding`), one smooth segment at a time.

A segment ends where a coordinate m_i^q meets its surface. There it is set to exactly 0 and its side
is chosen again.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.padding import pad_with_last, power_of_two
from sgdynamics.base.precision import float64
from sgdynamics.ode.sliding import LABELS, choose_sides, cluster_parameters, smooth_field
from sgdynamics.ode.stiff import integrate_lsoda

# Tolerances of one step; the dense output in between is less accurate than the steps.
RTOL = 1e-11
ATOL = 1e-13
# Tolerance of the time at which a surface is met.
EVENT_TOLERANCE = 1e-13
# Surfaces that are met within this many event tolerances are met together.
SAME_TIME = 64.0
# Explicit steps of a segment before LSODA takes over.
MOST_STEPS = 2000
# One program serves both kinds, all widths up to a multiple of UNITS and any number of runs.
# Directions are padded with weight 0 and units with 0 (they stay 0); runs are integrated LANES at a
# time.
DIRECTIONS = max(len(labels) for labels in LABELS.values())
UNITS = 4
LANES = 128
FEWEST_TIMES = 8
# Factor by which LSODA may loosen the tolerances at late times.
LOOSEST = 1e3
# Values beyond this bound count as diverged.
LARGEST = 1e6


def _integrate_segment(
    parameters: Parameters,
    times: Float[Array, " times"],
    state: State,
    side: Float[Numeric, "K q"],
    t0: float | Float[Array, ""],
) -> dict[str, Any]:
    """Integrate one run from `t0` until it meets its next surface or reaches times[-1].

    A side that is NaN is chosen at the start of the segment. Returns the states at the times in
    between ("saved"), the end of the segment ("last"), whether it met a surface ("met") and whether
    its steps ran out ("failed").
    """
    # Imported here, because it takes as long as a small solution.
    import diffrax
    import optimistix

    clusters, decay = parameters["clusters"], parameters["decay"]
    head_rate = parameters["head_rate"]
    chosen = choose_sides(clusters, decay, head_rate, state["M"], state["a"])
    side = jnp.where(jnp.isnan(side), chosen, side)

    def rate(t: Scalar, y: State, args: PyTree) -> dict[str, Any]:
        dM, da = smooth_field(clusters, decay, head_rate, y["M"], y["a"], side)
        return {"M": dM, "a": da}

    def distance(t: Scalar, y: State, args: PyTree, **_: object) -> Float[Numeric, ""]:
        # A coordinate of exactly 0 with a side is a start that is just leaving its surface.
        return jnp.min(jnp.where((side == 0) | (y["M"] == 0), 1.0, side * y["M"]))

    root_finder = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
    end = times[-1]
    at_times = diffrax.SubSaveAt(ts=jnp.clip(times, t0, end))
    # The largest error counts, so that padding with zeros does not change the steps.
    controller = diffrax.PIDController(
        rtol=parameters["rtol"], atol=parameters["atol"], norm=optimistix.max_norm
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(rate),
        diffrax.Dopri8(),
        t0=t0,
        t1=end,
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(subs=[at_times, diffrax.SubSaveAt(t1=True)]),
        stepsize_controller=controller,
        event=diffrax.Event(distance, root_finder=root_finder, direction=False),
        max_steps=MOST_STEPS,
        throw=False,
    )
    end_times: Any = solution.ts
    states: Any = solution.ys
    until, last = end_times[1][0], jax.tree.map(lambda leaf: leaf[0], states[1])
    met: Any = solution.event_mask
    failed = ~(met | (solution.result == diffrax.RESULTS.successful))
    return {
        "saved": states[0],
        "last": _land_on_surface(parameters, last, side, until, met),
        "met": met,
        "failed": failed,
    }


def _land_on_surface(
    parameters: Parameters,
    last: dict[str, Any],
    side: Float[Numeric, "K q"],
    until: Scalar,
    met: Bool[Numeric, ""],
) -> dict[str, Any]:
    """The end of a segment: coordinates that met their surface are exactly 0, with side NaN."""
    clusters, decay = parameters["clusters"], parameters["decay"]
    dM, _ = smooth_field(clusters, decay, parameters["head_rate"], last["M"], last["a"], side)
    distance = jnp.where(side == 0, jnp.inf, side * last["M"])
    inward_speed = jnp.maximum(-side * dM, 0.0)
    # The nearest coordinate has met its surface by definition, and so have those whose meeting
    # times do not differ from its own within the tolerance (runs with a symmetry).
    reach = SAME_TIME * EVENT_TOLERANCE * (1.0 + until) * inward_speed
    hit = met & ((distance == distance.min()) | (distance <= reach))
    return {
        "M": jnp.where(hit, 0.0, last["M"]),
        "a": last["a"],
        "side": jnp.where(hit, jnp.nan, side),
        "time": until,
    }


_integrate_segments = jax.jit(jax.vmap(_integrate_segment, in_axes=(None, None, 0, 0, 0)))
_land_on_surface_compiled = jax.jit(_land_on_surface)


@jax.jit
def _flat_rate(
    parameters: Parameters, side: Float[Numeric, "K q"], y: Float[Array, " n"]
) -> Float[Numeric, " n"]:
    M, a = y[: side.size].reshape(side.shape), y[side.size :]
    clusters, decay = parameters["clusters"], parameters["decay"]
    dM, da = smooth_field(clusters, decay, parameters["head_rate"], M, a, side)
    return jnp.concatenate([dM.reshape(-1), da])


def _continue_segment(
    parameters: Parameters, times: np.ndarray, last: dict[str, np.ndarray]
) -> tuple[dict[str, Any], str]:
    """Continue a segment that the explicit method did not finish by LSODA.

    Returns the dictionary of `_integrate_segment`, and how the segment ended.
    """
    side, t0 = last["side"], float(last["time"])
    size = side.size

    def distance(y: np.ndarray) -> float:
        M = y[:size].reshape(side.shape)
        return float(np.min(np.where((side == 0) | (M == 0), 1.0, side * M)))

    is_late = times > t0
    solution = integrate_lsoda(
        lambda _, y: np.asarray(_flat_rate(parameters, side, y)),
        np.concatenate([last["M"].reshape(-1), last["a"]]),
        t0,
        times[is_late],
        parameters["rtol"],
        parameters["atol"],
        loosest=LOOSEST,
        inside=lambda _, y: bool(np.all(np.abs(y) < LARGEST)),
        watch=distance,
    )
    end = {"M": solution.state[:size].reshape(side.shape), "a": solution.state[size:]}
    met = solution.ended == "event"
    saved = {
        "M": np.full((len(times), *side.shape), np.nan),
        "a": np.full((len(times), len(end["a"])), np.nan),
    }
    saved["M"][is_late] = solution.values[:size].T.reshape(-1, *side.shape)
    saved["a"][is_late] = solution.values[size:].T
    landed = _land_on_surface_compiled(parameters, end, side, solution.time, met)
    return {"saved": saved, "last": jax.tree.map(np.asarray, landed), "met": met}, solution.ended


def _validate(
    kind: str,
    M: Float[Numeric, "..."],
    Q: ArrayArgument,
    a: Float[Numeric, "..."],
    times: ArrayArgument,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    shape, directions = np.shape(M), len(LABELS[kind])
    if len(shape) != 3 or 0 in shape or shape[-1] != directions:
        raise ValueError(
            f"M has shape {shape}: a {kind} mixture has {directions} directions. Give shape "
            f"(run, K, {directions}), runs x units x directions."
        )
    M = checks.array("M", M, shape, "run x units x directions")
    gram_shape = (shape[0], shape[1], shape[1])
    Q = checks.array("Q", Q, gram_shape, "run x units x units, the Gram matrix of the rows")
    a = checks.array("a", a, shape[:2], "run x units")
    checks.gram_matrix("Q", Q)
    checks.gram_matrix("Q - M M^T", Q - M @ np.swapaxes(M, 1, 2))
    times = checks.array("times", times, np.shape(times), "increasing, 0 or more")
    if times.ndim != 1 or len(times) == 0 or times[0] < 0 or np.any(np.diff(times) <= 0):
        raise checks.reject("times", times, "give increasing times, 0 or more")
    return M, Q, a, times


@float64
def solve_infinite_snr(
    kind: str,
    M: Float[Numeric, "..."],
    Q: ArrayArgument,
    a: Float[Numeric, "..."],
    *,
    times: ArrayArgument,
    weight_decay: float = 0.0,
    head_rate: float = 1.0,
    rtol: float = RTOL,
    atol: float = ATOL,
    error: bool = False,
) -> dict[str, np.ndarray]:
    """Solve the equations of a Gaussian mixture at snr = infinity in the sense of Filippov.

    The equations and the three cases on the surfaces m_i^q = 0 are those of `ode.sliding`. Each
    smooth segment is integrated by Dormand-Prince 8(7). Where a coordinate meets its surface (the
    time is found by bisection) it is set to exactly 0, and the next segment begins. LSODA continues
    a segment that needs too many steps.

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    M, Q, a : array_like
        Initial overlaps (run, K, q), Gram matrices (run, K, K) and heads (run, K).
    times : array_like
        Increasing save points, 0 or more.
    weight_decay : float, default 0.0
        Weight decay al.
    head_rate : float, default 1.0
        Learning rate of the head relative to that of the rows.
    rtol, atol : float
        Local tolerances of the integrator.
    error : bool, default False
        Whether to estimate the error by a second solution with ten times looser tolerances.

    Returns
    -------
    dict
        M (run, time, K, q), Q (run, time, K, K) and a (run, time, K); "met" (run), the number of
        surfaces met; "ran_out" (run), whether LSODA did not suffice, with NaN from there on; with
        `error`, "error" (run), the largest change of M and a.

    Notes
    -----
    Assumes snr -> infinity after d -> infinity, so that lr does not enter. Ben Arous, Gheissari,
    Jagannath, Props. 4.2 and F.3.
    """
    checks.choice("kind", kind, LABELS)
    M, Q, a, times = _validate(kind, M, Q, a, times)
    parameters = {
        "decay": checks.number("weight_decay", weight_decay, 0.0),
        "head_rate": checks.number("head_rate", head_rate, 0.0),
        "rtol": checks.number("rtol", rtol, above=0.0),
        "atol": checks.number("atol", atol, above=0.0),
    }
    result = _solve(kind, M, a, times, parameters)
    # The part R of Q outside of the means only decays.
    R = Q - M @ np.swapaxes(M, 1, 2)
    decayed = np.exp(-2 * parameters["decay"] * times)[:, None, None] * R[:, None]
    result["Q"] = decayed + np.einsum("rtiq,rtjq->rtij", result["M"], result["M"])
    if error:
        looser = {"rtol": 10 * parameters["rtol"], "atol": 10 * parameters["atol"]}
        loose = _solve(kind, M, a, times, {**parameters, **looser})
        changes = [np.abs(loose[name] - result[name]).reshape(len(M), -1) for name in ("M", "a")]
        # Save points that were not reached have no error.
        changes = [np.where(np.isfinite(change), change, 0.0) for change in changes]
        result["error"] = np.maximum(*(change.max(axis=1) for change in changes))
    return result


def _solve(
    kind: str, M: np.ndarray, a: np.ndarray, times: np.ndarray, parameters: dict[str, float]
) -> dict[str, np.ndarray]:
    """Integrate all segments of all runs.

    Each run has its own time, and returns to the end of the queue until it reaches the last save
    point.
    """
    runs, width, directions = M.shape
    missing_units, missing_directions = -width % UNITS, DIRECTIONS - directions
    clusters = {
        name: np.pad(values, [(0, missing_directions)] + [(0, 0)] * (values.ndim - 1))
        for name, values in cluster_parameters(kind).items()
    }
    inputs = {**parameters, "clusters": clusters}
    M = np.pad(M, [(0, 0), (0, missing_units), (0, missing_directions)])
    a = np.pad(a, [(0, 0), (0, missing_units)])
    now = {"M": M.copy(), "a": a.copy(), "side": np.full_like(M, np.nan), "time": np.zeros(runs)}
    # Save points at t = 0 keep the start.
    saved = {
        "M": np.repeat(M[:, None], len(times), axis=1),
        "a": np.repeat(a[:, None], len(times), axis=1),
    }
    met, ran_out = np.zeros(runs, dtype=int), np.zeros(runs, dtype=bool)
    padded = pad_with_last(times, max(FEWEST_TIMES, power_of_two(len(times))))
    queue = np.arange(runs) if times[-1] > 0 else np.arange(0)
    while len(queue):
        batch, queue = queue[:LANES], queue[LANES:]
        # A batch that is not full is filled with copies of its runs.
        rows = np.resize(batch, LANES)
        state = {"M": now["M"][rows], "a": now["a"][rows]}
        lanes = _integrate_segments(inputs, padded, state, now["side"][rows], now["time"][rows])
        count = len(batch)
        segments = jax.tree.map(lambda leaf, count=count: np.array(leaf)[:count], lanes)
        for lane in np.flatnonzero(segments["failed"]):
            last = {name: value[lane] for name, value in segments["last"].items()}
            later, ended = _continue_segment(inputs, padded, last)
            is_late = padded > last["time"]
            for name in saved:
                segments["saved"][name][lane, is_late] = later["saved"][name][is_late]
            for name in now:
                segments["last"][name][lane] = later["last"][name]
            segments["met"][lane] = later["met"]
            if ended in ("exhausted", "diverged"):
                run = batch[lane]
                ran_out[run] = True
                for name in saved:
                    saved[name][run, times > later["last"]["time"]] = np.nan
        # Only the save points within the segment of each run are new.
        starts, ends = now["time"][batch][:, None], segments["last"]["time"][:, None]
        lane, index = np.nonzero((times > starts) & (times <= ends))
        for name in saved:
            saved[name][batch[lane], index] = segments["saved"][name][lane, index]
        for name in now:
            now[name][batch] = segments["last"][name]
        met[batch] += segments["met"]
        # Runs that met a surface before the last save point need another segment.
        continues = segments["met"] & (now["time"][batch] < times[-1])
        queue = np.concatenate([queue, batch[continues]])
    return {
        "M": saved["M"][:, :, :width, :directions],
        "a": saved["a"][:, :, :width],
        "met": met,
        "ran_out": ran_out,
    }
