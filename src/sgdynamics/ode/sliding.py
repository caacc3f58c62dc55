"""Gaussian mixtures at snr = infinity: the ballistic limit has a field that jumps, and its solutions slide (Filippov).

Clusters sit at their means: binary +mu (y = 1) and -mu (y = 0), weight w = 1/2; XOR +-mu (y = 1)
and +-nu (y = 0), w = 1/4. With m_i^q = W_i.q, a head a, h_i = s m_i^q on the cluster c = (q, s),
f_c = sum_i a_i relu(h_i), e_c = sigmoid(f_c) - y_c:

    dm_i^q/dt = - al m_i^q - a_i w sum_s s 1{s m_i^q > 0} e_(q,s)
    da_i/dt   = - head_rate (al a_i + w sum_c relu(h_i) e_c)
    dR/dt     = - 2 al R,   Q = R + sum_q m^q m^qT

Why Filippov. At finite snr a field is h_i ~ N(s m_i, Q_ii/snr), so 1{s m_i > 0} is the probability
Phi(s z), z = m_i sqrt(snr/Q_ii), and all else is continuous in h. As snr -> infinity the layer |z|
= O(1) shrinks to the surface m_i^q = 0, on which

    dm_i^q/dt = p right + (1 - p) left,   p = Phi(z),   right = - a_i w e_(q,+),   left = a_i w e_(q,-)

Only m_i^q itself jumps there, and its rate depends on no other coordinate's p: any number of
surfaces at once are that many independent cases.

- right and left of one sign (y differs across the surface: binary): the solution crosses.
- right < 0 < left (XOR: m^nu where a_i > 0, m^mu where a_i < 0): z settles where the mean vanishes
  and m_i^q stays at exactly 0.
- right > 0 > left: the surface repels, and only a start lies on it. There z = 0, p = 1/2: the mean
  (right + left)/2 decides the side, and
  the solution leaves at once (it takes a time of order snr^(-1/2)). Where f_(q,+) = f_(q,-) the
  mean vanishes too, and its rate of change decides. Where that vanishes as well (mirror symmetry,
  or m^q = 0 for all units), the solution stays. W_i = 0 is read as the limit R_ii -> 0.

That is all the bookkeeping. Past a surface the field of the near side, continued linearly, pushes
on (XOR: a_i > 0 and m^nu past 0 stay so; binary likewise): a sign change between the ends of a step
is never missed, the smallest |m_i^q| falls through 0 once, and that is where the first surface is
met. A sliding coordinate slides for ever: with m_i^mu = 0 and a_i < 0, what is left of da_i/dt
keeps a_i < 0. After its crossing a binary unit has a_i m_i > 0, and keeps it. So a unit meets at
most one surface after its start.

Source: Ben Arous, Gheissari, Jagannath, High-dimensional limit theorems for SGD, Props. 4.2 and
F.3, completed by the above.
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
from sgdynamics.ode.stiff import integrate_lsoda
from sgdynamics.problems.mixture import CLUSTERS

# of the clusters (+q, -q), for each direction q
LABELS = {
    kind: tuple(zip(*[iter(label for _, _, label in clusters)] * 2, strict=True))
    for kind, clusters in CLUSTERS.items()
}
RTOL = 1e-11  # of one step; the dense output in between is less accurate than the steps
ATOL = 1e-13
EVENT_TOLERANCE = 1e-13  # on the time a surface is met
SAME_TIME = 64.0  # surfaces met within this many event tolerances are met together
TIE = 1e-13  # a difference this small, relative to its terms, is rounding
MOST_STEPS = 2000  # explicit steps of a piece before LSODA takes over
# One program serves both kinds, all widths up to a multiple of UNITS and any number of runs: what
# is missing is filled up with directions of weight 0 and units that are 0 (which stay 0), and runs
# go through it LANES at a time.
DIRECTIONS = max(len(labels) for labels in LABELS.values())
UNITS = 4
LANES = 128
FEWEST_TIMES = 8
LOOSEST = 1e3  # by what factor LSODA may loosen the tolerances at late times
LARGEST = 1e6


def _clusters(kind: str) -> dict[str, np.ndarray]:
    """Labels (q, 2) of the clusters +q and -q, and the weight of each (q)."""
    labels = np.array(LABELS[checks.choice("kind", kind, LABELS)])
    return {"labels": labels, "weights": np.full(len(labels), 1.0 / labels.size)}


def _errors(
    clusters: Parameters,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."],
) -> tuple[Any, Any]:
    """relu(h) (K, q, 2) with the active set taken from `side` (K, q), and w e (q, 2).

    The last axis is the cluster's sign, + then -.
    """
    sign = jnp.array([1.0, -1.0])
    relu = jnp.where(side[..., None] == sign, sign * M[..., None], 0.0)
    flip = 1.0 - 2.0 * clusters["labels"]  # sigmoid(f) - y without cancellation
    return relu, clusters["weights"][:, None] * flip * jax.nn.sigmoid(
        flip * jnp.einsum("i,iqs->qs", a, relu)
    )


def _field(
    clusters: Parameters,
    decay: Scalar,
    head_rate: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."],
) -> tuple[Any, Any]:
    """The smooth field of one side of every surface.

    `side` (K, q) is +1, -1, or 0 where m_i^q stays 0.
    """
    relu, e = _errors(clusters, M, a, side)
    jump = jnp.where(side > 0, e[:, 0], -e[:, 1])
    dM = jnp.where(side == 0, 0.0, -decay * M - a[:, None] * jump)
    return dM, -head_rate * (decay * a + jnp.einsum("iqs,qs->i", relu, e))


def _sides(
    clusters: Parameters,
    decay: Scalar,
    head_rate: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
) -> Any:
    """On which side of each surface the solution goes on.

    The sign of m_i^q, and on the surface the module's three cases.
    """
    at = jnp.sign(M)
    _, e = _errors(clusters, M, a, at)
    right, left = -a[:, None] * e[:, 0], a[:, None] * e[:, 1]

    def parts(M: Float[Numeric, "..."], a: Float[Numeric, "..."]) -> Any:
        return a[:, None, None] * _errors(clusters, M, a, at)[0]

    # f_(q,+) - f_(q,-) and its rate: e grows with f, so where the labels agree they have the signs
    # of e_+ - e_- and of its rate
    values, rates = jax.jvp(parts, (M, a), _field(clusters, decay, head_rate, M, a, at))
    first, then = (
        _sign(x[..., 0].sum(axis=0) - x[..., 1].sum(axis=0), jnp.abs(x).sum(axis=(0, 2)))
        for x in (values, rates)
    )
    leaves = -jnp.sign(a)[:, None] * jnp.where(first == 0, then, first)
    same = jnp.sign(right) == jnp.sign(left)
    on = jnp.where(same, jnp.sign(right), jnp.where(right > left, leaves, 0.0))
    return jnp.where(M == 0, on, at)


def _sign(difference: Float[Numeric, "..."], scale: Float[Numeric, "..."]) -> Float[Numeric, "..."]:
    """The sign of a difference, 0 where it is rounding."""
    return jnp.where(jnp.abs(difference) <= TIE * scale, 0.0, jnp.sign(difference))


def infinite_snr_sides(
    kind: str,
    weight_decay: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    head_rate: Scalar = 1.0,
) -> Any:
    """The side (K, q) of each surface m_i^q = 0 on which the solution goes on: +1, -1, or 0 where it slides or stays.

    The sign of m_i^q; where m_i^q = 0 exactly, by the rates right and left of the surface (see the
    module). Pure JAX, one state.
    """
    return _sides(_clusters(kind), weight_decay, head_rate, jnp.asarray(M), jnp.asarray(a))


def infinite_snr_drift(
    kind: str,
    weight_decay: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."] | None = None,
    head_rate: Scalar = 1.0,
) -> tuple[Any, Any]:
    """(dM/dt, da/dt) at snr = infinity in the state M (K, q), a (K), as in the module's first equation.

    `side` (K, q) freezes the active sets (+1, -1; 0: m_i^q stays 0), which makes the field smooth;
    by default they are those of the Filippov solution in this state. Pure JAX, one state: jit, vmap
    and grad go through it (the sides are locally constant).
    """
    clusters, M, a = _clusters(kind), jnp.asarray(M), jnp.asarray(a)
    chosen = _sides(clusters, weight_decay, head_rate, M, a) if side is None else jnp.asarray(side)
    return _field(clusters, weight_decay, head_rate, M, a, jax.lax.stop_gradient(chosen))


def _outputs(
    kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]
) -> tuple[np.ndarray, np.ndarray]:
    """f (..., q, 2) on the clusters, and 2 y - 1."""
    labels = _clusters(kind)["labels"]
    shape = np.shape(M)
    if len(shape) < 2 or shape[-1] != len(labels):
        raise ValueError(
            f"M has shape {shape}: give (..., K, {len(labels)}), units x directions of a {kind} mixture"
        )
    M = checks.array("M", M, shape, "units x directions")
    a = checks.array("a", a, shape[:-1], "one head weight a unit, with the leading axes of M")
    h = np.stack([M, -M], axis=-1)
    return np.einsum("...i,...iqs->...qs", a, np.maximum(h, 0.0)), 2 * labels - 1


def _plain(value: np.ndarray) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def infinite_snr_risk(kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]) -> Any:
    """The cross-entropy at snr = infinity, without weight decay.

    Sum_c w [log(1 + exp f_c) - y_c f_c]. M (..., K, q), a (..., K).
    """
    f, sign = _outputs(kind, M, a)
    return _plain(np.logaddexp(0.0, -sign * f).mean(axis=(-2, -1)))


def infinite_snr_accuracy(kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]) -> Any:
    """The share of the data classified right at snr = infinity: sum_c w [1{f_c has the label's sign} + 1{f_c = 0}/2].

    M (..., K, q), a (..., K). A cluster on which no unit is active has f_c = 0 and counts 1/2: the
    accuracy is a function of the state there, not the limit of finite snr, which depends on the
    units that slide along the cluster's surface (with p = P(h_i > 0) in (0, 1)).
    """
    f, sign = _outputs(kind, M, a)
    return _plain((0.5 + 0.5 * np.sign(sign * f)).mean(axis=(-2, -1)))


def _segment(
    numbers: dict[str, Any],
    times: Float[Array, " times"],
    state: State,
    side: Float[Numeric, "..."],
    t0: float | Float[Array, ""],
) -> dict[str, Any]:
    """One run from `t0` until it meets its next surface or times[-1], saved at the times in between. A side given as NaN is chosen."""
    import diffrax  # here: its import takes as long as a small solution
    import optimistix

    clusters, decay, head_rate = numbers["clusters"], numbers["decay"], numbers["head_rate"]
    side = jnp.where(
        jnp.isnan(side), _sides(clusters, decay, head_rate, state["M"], state["a"]), side
    )

    def field(t: Scalar, y: State, args: PyTree) -> Any:
        dM, da = _field(clusters, decay, head_rate, y["M"], y["a"], side)
        return {"M": dM, "a": da}

    def distance(t: Scalar, y: State, args: PyTree, **_: object) -> Any:
        # exactly 0 on a side: a start that is just leaving its surface
        return jnp.min(jnp.where((side == 0) | (y["M"] == 0), 1.0, side * y["M"]))

    finder = optimistix.Bisection(rtol=EVENT_TOLERANCE, atol=EVENT_TOLERANCE, flip=True)
    end = times[-1]
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri8(),
        t0=t0,
        t1=end,
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(
            subs=[diffrax.SubSaveAt(ts=jnp.clip(times, t0, end)), diffrax.SubSaveAt(t1=True)]
        ),
        # the largest error counts, so that what is filled up with zeros changes nothing
        stepsize_controller=diffrax.PIDController(
            rtol=numbers["rtol"], atol=numbers["atol"], norm=optimistix.max_norm
        ),
        event=diffrax.Event(distance, root_finder=finder, direction=False),
        max_steps=MOST_STEPS,
        throw=False,
    )
    times_found: Any = found.ts
    states_found: Any = found.ys
    until, last = times_found[1][0], jax.tree.map(lambda leaf: leaf[0], states_found[1])
    met: Any = found.event_mask
    failed = ~(met | (found.result == diffrax.RESULTS.successful))
    return {
        "saved": states_found[0],
        "last": _landed(numbers, last, side, until, met),
        "met": met,
        "failed": failed,
    }


def _landed(
    numbers: dict[str, Any],
    last: dict[str, Any],
    side: Float[Numeric, "..."],
    until: Scalar,
    met: Bool[Numeric, "..."],
) -> dict[str, Any]:
    """The end of a piece: where a surface was met, what met it is exactly 0 and has to choose its side anew."""
    dM, _ = _field(
        numbers["clusters"], numbers["decay"], numbers["head_rate"], last["M"], last["a"], side
    )
    # the nearest met it by definition, and so did those that the clock cannot tell from it (runs
    # with a symmetry)
    away = jnp.where(side == 0, jnp.inf, side * last["M"])
    inward = jnp.maximum(-side * dM, 0.0)
    hit = met & (
        (away == away.min()) | (away <= SAME_TIME * EVENT_TOLERANCE * (1.0 + until) * inward)
    )
    return {
        "M": jnp.where(hit, 0.0, last["M"]),
        "a": last["a"],
        "side": jnp.where(hit, jnp.nan, side),
        "time": until,
    }


_segments = jax.jit(jax.vmap(_segment, in_axes=(None, None, 0, 0, 0)))
_landing = jax.jit(_landed)


@jax.jit
def _flat_field(numbers: dict[str, Any], side: Float[Numeric, "p K"], y: Float[Array, " n"]) -> Any:
    M, a = y[: side.size].reshape(side.shape), y[side.size :]
    dM, da = _field(numbers["clusters"], numbers["decay"], numbers["head_rate"], M, a, side)
    return jnp.concatenate([dM.reshape(-1), da])


def _long_segment(
    numbers: dict[str, Any], times: np.ndarray, last: dict[str, np.ndarray]
) -> tuple[dict[str, Any], str]:
    """The rest of a piece that the explicit method did not finish, by LSODA.

    As `_segment`, and how it ended.
    """
    side, t0 = last["side"], float(last["time"])
    size = side.size

    def distance(y: np.ndarray) -> float:
        M = y[:size].reshape(side.shape)
        return float(np.min(np.where((side == 0) | (M == 0), 1.0, side * M)))

    y = np.concatenate([last["M"].reshape(-1), last["a"]])
    rest = times > t0
    setting = {
        "loosest": LOOSEST,
        "inside": lambda _, y: bool(np.all(np.abs(y) < LARGEST)),
        "watch": distance,
    }
    tolerance = (numbers["rtol"], numbers["atol"])
    found = integrate_lsoda(
        lambda _, y: np.asarray(_flat_field(numbers, side, y)),
        y,
        t0,
        times[rest],
        *tolerance,
        **setting,
    )
    end = {"M": found.state[:size].reshape(side.shape), "a": found.state[size:]}
    met = found.ended == "event"
    saved = {
        "M": np.full((len(times), *side.shape), np.nan),
        "a": np.full((len(times), len(end["a"])), np.nan),
    }
    saved["M"][rest], saved["a"][rest] = (
        found.values[:size].T.reshape(-1, *side.shape),
        found.values[size:].T,
    )
    landed = jax.tree.map(np.asarray, _landing(numbers, end, side, found.time, met))
    return {"saved": saved, "last": landed, "met": met}, found.ended


def _checked(
    kind: str,
    M: Float[Numeric, "..."],
    Q: ArrayArgument,
    a: Float[Numeric, "..."],
    times: ArrayArgument,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    shape, directions = np.shape(M), len(LABELS[kind])
    if len(shape) != 3 or 0 in shape or shape[-1] != directions:
        raise ValueError(
            f"M has shape {shape}: give (run, K, {directions}), units x directions of a {kind} mixture"
        )
    M = checks.array("M", M, shape, "run x units x directions")
    Q = checks.array(
        "Q", Q, (shape[0], shape[1], shape[1]), "run x units x units, the Gram matrix of the rows"
    )
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
    """The Filippov solutions of a mixture at snr = infinity: M (run, time, K, q), Q (run, time, K, K), a (run, time, K).

    From M (run, K, q), Q (run, K, K), a (run, K) at t = 0; the equations, and what happens on the
    surfaces m_i^q = 0, are the module's. Dormand-Prince 8(7) on each smooth piece, with local
    tolerances rtol and atol. Where a coordinate meets its surface (the time is found by bisection)
    it is set to exactly 0 and the next piece begins; `met` (run) counts these meetings. LSODA goes
    on where a piece needs too many steps; a run for which that is not enough is NaN from there on
    and True in `ran_out`. With `error=True` also `error` (run), the largest change of M and a at
    the given times when the tolerances are ten times looser. Assumes snr -> infinity after d ->
    infinity, so lr plays no part. Props. 4.2 and F.3.
    """
    checks.choice("kind", kind, LABELS)
    M, Q, a, times = _checked(kind, M, Q, a, times)
    numbers = {
        "decay": checks.number("weight_decay", weight_decay, 0.0),
        "head_rate": checks.number("head_rate", head_rate, 0.0),
        "rtol": checks.number("rtol", rtol, above=0.0),
        "atol": checks.number("atol", atol, above=0.0),
    }
    result = _solve(kind, M, a, times, numbers)
    R = Q - M @ np.swapaxes(M, 1, 2)
    fading = np.exp(-2 * numbers["decay"] * times)[:, None, None] * R[:, None]
    result["Q"] = fading + np.einsum("rtiq,rtjq->rtij", result["M"], result["M"])
    if error:
        loose = _solve(
            kind,
            M,
            a,
            times,
            {**numbers, "rtol": 10 * numbers["rtol"], "atol": 10 * numbers["atol"]},
        )
        changes = [np.abs(loose[name] - result[name]).reshape(len(M), -1) for name in ("M", "a")]
        # what was not reached has no error
        result["error"] = np.maximum(
            *(np.where(np.isfinite(change), change, 0.0).max(axis=1) for change in changes)
        )
    return result


def _first(count: int, tree: PyTree) -> Any:
    return jax.tree.map(lambda leaf: leaf[:count], tree)


def _solve(
    kind: str, M: np.ndarray, a: np.ndarray, times: np.ndarray, tolerances: dict[str, float]
) -> dict[str, np.ndarray]:
    """All pieces of all runs.

    Each run has its own clock, and goes back to the end of the queue until it reaches the last
    time.
    """
    clusters = _clusters(kind)
    runs, width, directions = M.shape
    units = -width % UNITS
    clusters = {
        name: np.pad(x, [(0, DIRECTIONS - directions)] + [(0, 0)] * (x.ndim - 1))
        for name, x in clusters.items()
    }
    numbers = {**tolerances, "clusters": clusters}
    M, a = (
        np.pad(M, [(0, 0), (0, units), (0, DIRECTIONS - directions)]),
        np.pad(a, [(0, 0), (0, units)]),
    )
    now = {"M": M.copy(), "a": a.copy(), "side": np.full_like(M, np.nan), "time": np.zeros(runs)}
    saved = {
        "M": np.repeat(M[:, None], len(times), axis=1),
        "a": np.repeat(a[:, None], len(times), axis=1),
    }
    met, ran_out = np.zeros(runs, dtype=int), np.zeros(runs, dtype=bool)
    padded = pad_with_last(times, max(FEWEST_TIMES, power_of_two(len(times))))
    queue = np.arange(runs) if times[-1] > 0 else np.arange(0)
    while len(queue):
        some, queue = queue[:LANES], queue[LANES:]
        rows = np.resize(some, LANES)  # a hand that is not full repeats itself
        hand = _segments(
            numbers,
            padded,
            {"M": now["M"][rows], "a": now["a"][rows]},
            now["side"][rows],
            now["time"][rows],
        )
        found = _first(len(some), jax.tree.map(np.asarray, hand))
        found = jax.tree.map(np.array, found)
        for place in np.flatnonzero(found["failed"]):
            half = {name: value[place] for name, value in found["last"].items()}
            later, ended = _long_segment(numbers, padded, half)
            beyond = padded > half["time"]
            for name in saved:
                found["saved"][name][place, beyond] = later["saved"][name][beyond]
            for name in now:
                found["last"][name][place] = later["last"][name]
            found["met"][place] = later["met"]
            if ended in ("exhausted", "diverged"):
                ran_out[some[place]] = True
                for name in saved:
                    saved[name][some[place], times > later["last"]["time"]] = np.nan
        lane, inside = np.nonzero(
            (times > now["time"][some][:, None]) & (times <= found["last"]["time"][:, None])
        )
        for name in saved:
            saved[name][some[lane], inside] = found["saved"][name][lane, inside]
        for name in now:
            now[name][some] = found["last"][name]
        met[some] += found["met"]
        queue = np.concatenate([queue, some[found["met"] & (now["time"][some] < times[-1])]])
    return {
        "M": saved["M"][:, :, :width, :directions],
        "a": saved["a"][:, :, :width],
        "met": met,
        "ran_out": ran_out,
    }
