"""Deferred correction: a vector field whose expensive part is evaluated at few times.

The gradient noise of a wide network costs most of its drift and changes little during a run. With
an approximation g of the vector field f, the solution of dy/dt = f(t, y) is that of

    dy/dt = g(t, y) + c(t),    c(t) = f(t, y(t)) - g(t, y(t)).

On a window of time, c is the polynomial through its values at Chebyshev-Lobatto times. A sweep
integrates with the present polynomial and evaluates c anew along the result. Sweeps converge like
powers of the window times the slope of f - g, a power of lr/width^2 if g leaves out the noise. The
last change of c is the error of the sweeps, and the last Chebyshev coefficients are that of the
polynomial; they determine the length of the next window, like the error of a step determines the
next step.

The loop over windows and sweeps runs on the host, for all trajectories of a case at once. Each has
windows of its own. Source: Dutt, Greengard and Rokhlin, BIT 40, 241 (2000), for deferred
corrections at such nodes, there with a low order method in place of an approximate field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import Function, IntScalar, Parameters, PyTree, Scalar, State
from sgdynamics.base.padding import pad_with_last
from sgdynamics.base.progress import current_meter, warn_if_long
from sgdynamics.ode.case import Case, Field, is_bounded, symmetrise
from sgdynamics.ode.explicit import (
    FIRST_STEP,
    Form,
    Loop,
    advance,
    first_loop,
    flatten,
    form_of,
    start_loop,
    unflatten,
)
from sgdynamics.ode.late_times import ExplicitResult, fraction_done

NODES = 8  # times of a window at which the correction is evaluated
# Length of the first window: overlaps change by their own size in a time of order one.
FIRST_WINDOW = 8.0
# Degree of the polynomial that is continued into the next window as a first approximation.
CONTINUED_DEGREE = 3
# Windows of a trajectory before LSODA continues, and sweeps of a window before it is shortened.
MOST_WINDOWS, MOST_SWEEPS = 300, 8
# Shortenings of windows beyond one per accepted window, after which the method is given up.
MOST_REJECTIONS = 8
# Explicit steps of a window.
MOST_STEPS = 600
# Ratio of the next window to this one.
SAFETY, SHORTEST, LONGEST = 0.8, 0.15, 5.0
# Expected change, in units of the tolerance, below which the next sweep is the last one.
NEGLIGIBLE = 0.3
# Largest ratio of the tolerance of early sweeps to the requested one, and the ratio of the errors
# of a sweep to its expected change.
LOOSEST, SWEEP_ACCURACY = 1e4, 1e-2

_ENABLED: ContextVar[bool] = ContextVar("deferred", default=True)


@contextmanager
def direct() -> Iterator[None]:
    """Integrate all fields directly inside of this context, for comparisons."""
    token = _ENABLED.set(False)
    try:
        yield
    finally:
        _ENABLED.reset(token)


def is_enabled() -> bool:
    """Whether approximations of fields are used."""
    return _ENABLED.get()


def lobatto_nodes(count: int) -> np.ndarray:
    """Chebyshev-Lobatto nodes in [-1, 1], increasing."""
    return -np.cos(np.pi * np.arange(count) / (count - 1))


def _coefficient_matrix(count: int) -> np.ndarray:
    """The matrix from values at Chebyshev-Lobatto nodes to Chebyshev coefficients."""
    degrees = np.arange(count)
    return np.linalg.inv(np.cos(degrees * np.arccos(lobatto_nodes(count))[:, None]))


_COEFFICIENTS = _coefficient_matrix(NODES)


def evaluate_series(
    coefficients: Float[Any, "*lead degrees n"], x: Float[Any, "*lead times"]
) -> Float[Any, "*lead times n"]:
    """Values of Chebyshev series at points x, also outside of [-1, 1]; NumPy."""
    powers = [np.ones_like(x), x]
    while len(powers) < coefficients.shape[-2]:
        powers.append(2 * x * powers[-1] - powers[-2])
    basis = np.stack(powers[: coefficients.shape[-2]], axis=-1)
    return basis @ coefficients


class _Window(NamedTuple):
    """Inputs of one integration, for each trajectory: windows, initial states and corrections."""

    start: np.ndarray
    end: np.ndarray
    first_step: np.ndarray
    y: np.ndarray
    error: np.ndarray
    coefficients: np.ndarray  # Chebyshev coefficients of the correction, (..., NODES, n)
    times: np.ndarray  # save points and nodes, increasing
    looseness: np.ndarray  # ratio of the tolerance to the requested one


@partial(jax.jit, static_argnums=(0, 1))
def _integrate_windows(
    approximation: Field,
    form: Form,
    replicates: PyTree,
    shared: PyTree,
    tolerance: Parameters,
    windows: _Window,
) -> Loop:
    """Integrate the approximate field and its correction over one window of each trajectory."""

    def integrate(replicate: PyTree, window: _Window) -> Loop:
        length = window.end - window.start

        def rate(t: Scalar, state: State) -> State:
            # c(t) = sum_k a_k T_k(x), T_k(cos phi) = cos(k phi)
            x = (2 * t - window.start - window.end) / jnp.where(length > 0, length, 1.0)
            angles = np.arange(NODES) * jnp.arccos(jnp.clip(x, -1.0, 1.0))
            correction = jnp.cos(angles) @ jnp.asarray(window.coefficients)
            rates = approximation(replicate, shared, t, symmetrise(approximation, state))
            return unflatten(form, flatten(rates) + correction)

        y, start = jnp.asarray(window.y), jnp.asarray(window.start)
        loop = start_loop(y, start, len(window.times))._replace(error=window.error)
        looseness = window.looseness
        return advance(
            rate,
            form,
            loop,
            jnp.asarray(window.times),
            tolerance["rtol"] * looseness,
            tolerance["atol"] * looseness,
            is_bounded,
            MOST_STEPS,
            first_step=window.first_step,
        )

    return _map_trajectories(integrate, replicates, windows)


def _map_trajectories(function: Function, replicates: PyTree, inputs: PyTree) -> PyTree:
    """Apply a function of a replicate and of one trajectory to arrays (replicate, run, ...)."""

    def over_runs(replicate: PyTree, of_runs: PyTree) -> PyTree:
        return _map_axis(partial(function, replicate), of_runs)

    return _map_axis(over_runs, replicates, inputs)


def _map_axis(function: Function, *trees: PyTree) -> PyTree:
    # A vectorised loop is a larger program, so that a single element has no axis.
    if any(len(leaf) != 1 for leaf in jax.tree.leaves(trees)):
        return jax.vmap(function)(*trees)
    single = function(*jax.tree.map(lambda leaf: leaf[0], trees))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], single)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _corrections(
    exact: Field,
    approximation: Field,
    form: Form,
    replicates: tuple[PyTree, PyTree],
    shared: PyTree,
    times: Float[Array, "replicates runs nodes"],
    states: Float[Array, "replicates runs nodes n"],
    first: IntScalar,
    last: IntScalar,
) -> Float[Array, "replicates runs nodes n"]:
    """The difference of the two fields at the nodes first, ..., last - 1, and 0 at the others."""

    def difference(inputs: tuple[PyTree, PyTree], t: Scalar, y: Float[Array, " n"]) -> Array:
        exact_inputs, other_inputs = inputs
        state = symmetrise(exact, unflatten(form, y))
        rate = flatten(exact(exact_inputs, shared, t, state))
        return rate - flatten(approximation(other_inputs, shared, t, state))

    def at_node(node: IntScalar, values: Array) -> Array:
        def differences_of(inputs: tuple[PyTree, PyTree], t: Array, y: Array) -> Array:
            return _map_axis(partial(difference, inputs), t, y)

        # One replicate after the other on a CPU: their samples together need much memory.
        batch_size = None if jax.default_backend() == "cpu" else len(times)
        rates = jax.lax.map(
            lambda inputs: differences_of(*inputs),
            (replicates, times[:, :, node], states[:, :, node]),
            batch_size=batch_size,
        )
        return values.at[:, :, node].set(rates)

    return jax.lax.fori_loop(first, last, at_node, jnp.zeros_like(states))


@dataclass
class _Trajectories:
    """The present windows of all trajectories of a case, (replicate, run)."""

    case: Case
    form: Form
    t: np.ndarray
    y: np.ndarray
    error: np.ndarray
    end: np.ndarray  # of the present window
    first_step: np.ndarray
    coefficients: np.ndarray
    sweeps: np.ndarray  # sweeps of this window that have been judged
    change: np.ndarray  # last change, in units of the tolerance
    looseness: np.ndarray
    is_last_sweep: np.ndarray
    is_active: np.ndarray
    windows: np.ndarray
    rejections: np.ndarray
    saved: np.ndarray
    saved_error: np.ndarray
    window_error: np.ndarray = field(init=False)
    tail: np.ndarray = field(init=False)  # error of the polynomial in units of the tolerance
    steps: int = 0  # explicit steps of accepted sweeps, of the slowest trajectory

    def __post_init__(self) -> None:
        self.window_error = np.zeros_like(self.y)
        self.tail = np.zeros_like(self.t)

    @property
    def last_time(self) -> float:
        return float(self.case.times[-1])

    def norm(self, index: tuple[int, ...], values: np.ndarray) -> float:
        """Root mean square of a vector in units of the tolerance of each entry of the state."""
        tolerance = self.case.tolerance
        scale = float(tolerance["atol"]) + float(tolerance["rtol"]) * np.abs(self.y[index])
        return float(np.sqrt(np.mean((values / scale) ** 2)))

    def open_window(self, index: tuple[int, ...], length: float, guess: np.ndarray) -> None:
        """Start a window of this length with first values of the correction at its nodes."""
        self.end[index] = self.window_end(float(self.t[index]), length)
        self.coefficients[index] = _COEFFICIENTS @ guess
        self.sweeps[index], self.change[index] = 0, np.inf
        self.looseness[index], self.is_last_sweep[index] = LOOSEST, False

    def window_end(self, t: float, length: float) -> float:
        """The end of a window; a short rest is part of the last one."""
        last = self.last_time
        return last if t + 1.2 * length >= last else t + length

    def nodes(self, index: tuple[int, ...], length: float) -> np.ndarray:
        """The times of a window that starts at the present time."""
        t = float(self.t[index])
        end = self.window_end(t, length)
        return t + (end - t) * (1 + lobatto_nodes(NODES)) / 2


def integrate_deferred(case: Case) -> ExplicitResult | None:
    """Integrate a case with the approximation of its field; None if that does not converge."""
    assert case.approximation is not None
    approximation, other_replicates = case.approximation
    form = form_of(case.states, 1)
    replicates = jax.tree.map(jnp.asarray, (case.replicates, other_replicates))
    shared = jax.tree.map(jnp.asarray, case.shared)
    correct = partial(_corrections, case.field, approximation, form, replicates, shared)
    integrate = partial(
        _integrate_windows, approximation, form, replicates[1], shared, case.tolerance
    )
    run = _initial_trajectories(case, form)
    _open_first_windows(run, correct)
    meter, progress = current_meter(), []
    while run.is_active.any():
        windows, order = _window_inputs(run)
        loops: Loop = integrate(windows)
        node_states, user_values, user_errors = _split_saved(run, loops, order)
        failed = run.is_active & (
            np.asarray(loops.has_diverged) | (np.asarray(loops.t) < run.end * (1 - 1e-14))
        )
        values = np.zeros_like(node_states)
        if (run.is_active & ~run.is_last_sweep & ~failed).any():
            node_times = run.t[..., None] + (run.end - run.t)[..., None] * (
                (1 + lobatto_nodes(NODES)) / 2
            )
            safe = np.where(np.isfinite(node_states), node_states, run.y[..., None, :])
            values = np.asarray(correct(node_times, safe, 1, NODES))
        outcome = _Outcome(loops, values, user_values, user_errors)
        for index in zip(*np.nonzero(run.is_active), strict=True):
            if not _judge(run, index, outcome, bool(failed[index])):
                return None
        if meter is not None:
            meter.reach(fraction_done(run.t, run.last_time))
            progress.append((perf_counter(), float(run.t.min())))
            _announce(progress, run.last_time)
    return _result(run)


def _announce(progress: list[tuple[float, float]], last_time: float) -> None:
    """Warn if the remaining windows are expected to take long, at the pace of the last ones."""
    meter = current_meter()
    # The first sweeps contain the compilation.
    if meter is None or len(progress) < 4 or progress[-1][1] <= progress[2][1]:
        return
    seconds = progress[-1][0] - progress[2][0]
    pace = seconds / (progress[-1][1] - progress[2][1])
    how = f"{pace:.2g} s per unit of time, {last_time:g} units"
    warn_if_long(meter, pace * (last_time - progress[-1][1]), how)


def _initial_trajectories(case: Case, form: Form) -> _Trajectories:
    replicates = len(jax.tree.leaves(case.replicates)[0])
    loop = first_loop(case.states, case.times, replicates)
    lead, n = loop.t.shape, loop.y.shape[-1]
    y = np.array(loop.y)
    saved = np.array(loop.saved)
    at_start = case.times <= 0.0
    saved[:, :, at_start] = y[:, :, None]
    return _Trajectories(
        case=case,
        form=form,
        t=np.zeros(lead),
        y=y,
        error=np.zeros_like(y),
        end=np.zeros(lead),
        first_step=np.full(lead, FIRST_STEP),
        coefficients=np.zeros((*lead, NODES, n)),
        sweeps=np.zeros(lead, int),
        change=np.full(lead, np.inf),
        looseness=np.full(lead, LOOSEST),
        is_last_sweep=np.zeros(lead, bool),
        is_active=np.ones(lead, bool),
        windows=np.zeros(lead, int),
        rejections=np.zeros(lead, int),
        saved=saved,
        saved_error=np.zeros_like(saved),
    )


def _open_first_windows(run: _Trajectories, correct: Function) -> None:
    """Start with a constant correction."""
    repeated = np.repeat(run.y[:, :, None], NODES, axis=2)
    values = np.asarray(correct(np.zeros(repeated.shape[:3]), repeated, 0, 1))[:, :, 0]
    for index in np.ndindex(*run.t.shape):
        length = min(run.last_time, FIRST_WINDOW)
        run.open_window(index, length, np.repeat(values[index][None], NODES, axis=0))


class _Outcome(NamedTuple):
    """Results of one integration of all windows."""

    loops: Loop
    values: np.ndarray  # corrections at the nodes, except for the first one
    user_values: np.ndarray
    user_errors: np.ndarray


def _window_inputs(run: _Trajectories) -> tuple[_Window, np.ndarray]:
    """Inputs of the next integration, and the positions of save points among sorted times."""
    user = pad_with_last(run.case.times)
    start, end = run.t[..., None], run.end[..., None]
    is_inside = (user > start) & (user <= end)
    # Save points outside of the window count as its end, where nobody reads them.
    save_points = np.where(is_inside, user, end)
    nodes = start + (end - start) * (1 + lobatto_nodes(NODES)) / 2
    nodes[..., -1] = run.end
    times = np.concatenate([save_points, nodes], axis=-1)
    order = np.argsort(times, axis=-1, kind="stable")
    position = np.argsort(order, axis=-1, kind="stable")
    windows = _Window(
        run.t,
        np.where(run.is_active, run.end, run.t),
        run.first_step,
        run.y,
        run.error,
        run.coefficients,
        np.where(run.is_active[..., None], np.take_along_axis(times, order, axis=-1), start),
        run.looseness,
    )
    return windows, position


def _split_saved(
    run: _Trajectories, loops: Loop, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States at the nodes, and states and errors at the save points."""
    count = len(run.case.times)
    saved = np.take_along_axis(np.asarray(loops.saved), position[..., None], axis=2)
    errors = np.take_along_axis(np.asarray(loops.saved_error), position[..., None], axis=2)
    return saved[:, :, -NODES:], saved[:, :, :count], errors[:, :, :count]


def _judge(run: _Trajectories, index: tuple[int, ...], outcome: _Outcome, has_failed: bool) -> bool:
    """Accept, sweep again or shorten the window of one trajectory; False to give up."""
    length = float(run.end[index] - run.t[index])
    coefficients = run.coefficients[index]
    if has_failed:
        return _shorten(run, index, SHORTEST, coefficients)
    if run.is_last_sweep[index]:
        _accept(run, index, outcome)
        return True
    # The value at the start is that of the present polynomial.
    start_value = evaluate_series(coefficients, np.array([-1.0]))
    values = np.concatenate([start_value, outcome.values[index][1:]])
    if not np.isfinite(values).all():
        return _shorten(run, index, SHORTEST, coefficients)
    latest = _COEFFICIENTS @ values
    previous = evaluate_series(coefficients, lobatto_nodes(NODES))
    change_vector = length * np.abs(values - previous).max(axis=0)
    tail_vector = length / NODES * _tail(latest)
    change, tail = run.norm(index, change_vector), run.norm(index, tail_vector)
    if tail > 1:
        factor = max(SHORTEST, SAFETY * tail ** (-1 / NODES))
        return _shorten(run, index, factor, latest)
    ratio = min(change / float(run.change[index]), 1.0)
    has_full_accuracy = run.looseness[index] == 1.0
    run.tail[index] = tail
    if change <= 1 and has_full_accuracy:
        run.window_error[index] = change_vector + tail_vector
        _accept(run, index, outcome)
        return True
    run.coefficients[index], run.change[index] = latest, change
    run.sweeps[index] += 1
    if run.sweeps[index] > MOST_SWEEPS:
        return _shorten(run, index, 0.5, latest)
    expected = change * ratio if run.sweeps[index] > 1 else change
    run.is_last_sweep[index] = expected <= NEGLIGIBLE
    run.window_error[index] = ratio * change_vector + tail_vector
    run.looseness[index] = np.clip(SWEEP_ACCURACY * min(expected, change), 1.0, LOOSEST)
    if run.is_last_sweep[index]:
        run.looseness[index] = 1.0
    return True


def _tail(coefficients: np.ndarray) -> np.ndarray:
    """The error of a polynomial of these Chebyshev coefficients (NODES, n).

    It is the last coefficient, or for even and odd functions the one before, continued by the
    decay over two degrees.
    """
    sizes = np.linalg.norm(coefficients, axis=1)
    decay = min(1.0, np.sqrt(sizes[-2] / sizes[-4])) if sizes[-4] > 0 else 1.0
    return np.maximum(np.abs(coefficients[-1]), decay * np.abs(coefficients[-2]))


def _shorten(
    run: _Trajectories, index: tuple[int, ...], factor: float, coefficients: np.ndarray
) -> bool:
    """Repeat a window with a shorter one; the latest polynomial is the first approximation."""
    run.rejections[index] += 1
    if run.rejections[index] > MOST_REJECTIONS + run.windows[index]:
        return False
    start, end = float(run.t[index]), float(run.end[index])
    length = factor * (end - start)
    x = 2 * (run.nodes(index, length) - start) / (end - start) - 1
    run.open_window(index, length, evaluate_series(coefficients, x))
    run.first_step[index] = min(float(run.first_step[index]), length)
    return True


def _accept(run: _Trajectories, index: tuple[int, ...], outcome: _Outcome) -> None:
    """Store the window of one trajectory and start the next one."""
    start, end = float(run.t[index]), float(run.end[index])
    loops, times = outcome.loops, run.case.times
    is_inside = (times > start) & (times <= end)
    run.saved[index][is_inside] = outcome.user_values[index][is_inside]
    share = ((times[is_inside] - start) / (end - start))[:, None]
    window_error = run.window_error[index]
    run.saved_error[index][is_inside] = outcome.user_errors[index][is_inside] + share * window_error
    run.y[index] = np.asarray(loops.y)[index]
    run.error[index] = np.asarray(loops.error)[index] + window_error
    run.t[index] = end
    run.windows[index] += 1
    steps = int(np.asarray(loops.steps)[index])
    run.steps = max(run.steps, steps)
    run.first_step[index] = (end - start) / max(steps, 1)
    if end >= run.last_time or run.windows[index] >= MOST_WINDOWS:
        run.is_active[index] = False
        return
    tail = max(float(run.tail[index]), 1e-12)
    factor = float(np.clip(SAFETY * tail ** (-1 / NODES), 0.3, LONGEST))
    if run.sweeps[index] > MOST_SWEEPS // 2:
        factor = min(factor, 0.7)
    length = factor * (end - start)
    coefficients = run.coefficients[index]
    x = 2 * (run.nodes(index, length) - start) / (end - start) - 1
    low = coefficients[: CONTINUED_DEGREE + 1]
    ends = np.array([1.0])
    offset = evaluate_series(coefficients, ends) - evaluate_series(low, ends)
    run.open_window(index, length, evaluate_series(low, x) + offset)


def _result(run: _Trajectories) -> ExplicitResult:
    saved = symmetrise(run.case.field, unflatten(run.form, run.saved))
    errors = symmetrise(run.case.field, unflatten(run.form, run.saved_error))
    last = unflatten(run.form, run.y)
    is_exhausted = run.t < run.last_time
    return ExplicitResult(saved, last, run.t, np.zeros(run.t.shape, bool), is_exhausted, errors)
