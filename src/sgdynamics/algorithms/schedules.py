"""Learning-rate schedules by name, for solvers (in alpha = samples/d) and forecasts (in steps).

A schedule starts with a linear warm-up from 0 to its peak. Its length is given in the clock of the
caller: ``alpha=`` for `OnePassSGD(lr=...)`, `steps=` for `sgd.forecast`.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, PyTree, Scalar
from sgdynamics.base.controls import Schedule
from sgdynamics.base.controls import piecewise as piecewise_schedule

__all__ = ["constant", "cosine", "from_file", "multistep", "piecewise", "wsd"]

DECAYS = ("linear", "sqrt", "cosine", "exponential")
EXPONENTIAL_END = 0.01  # share of the peak at which an exponential decay to 0 ends


def constant(
    peak: float,
    steps: float | None = None,
    *,
    alpha: float | None = None,
    warmup: float = 0.0,
) -> Schedule:
    """A constant learning rate after warm-up.

    Parameters
    ----------
    peak : float
        Learning rate after warm-up, above 0.
    steps : float, optional
        Length of the run in steps, for forecasts.
    alpha : float, optional
        Length of the run in samples per dimension, for solvers.
    warmup : float, default 0.0
        Length of the linear warm-up, in the same clock.

    Returns
    -------
    Schedule
        The learning rate as a function of steps or alpha.

    Raises
    ------
    ValueError
        If an argument is invalid, or not exactly one of steps and alpha is given.

    Examples
    --------
    >>> [float(sgd.schedules.constant(0.1, 100, warmup=10)(step)) for step in (0, 5, 50)]
    [0.0, 0.05, 0.1]
    """
    return _make("constant", _constant, peak, steps, alpha, warmup)


def cosine(
    peak: float,
    steps: float | None = None,
    *,
    alpha: float | None = None,
    warmup: float = 0.0,
    final: float = 0.0,
) -> Schedule:
    """Half a cosine from the peak to the final rate.

    Parameters
    ----------
    peak : float
        Learning rate after warm-up, above 0.
    steps : float, optional
        Length of the run in steps, for forecasts.
    alpha : float, optional
        Length of the run in samples per dimension, for solvers.
    warmup : float, default 0.0
        Length of the linear warm-up, in the same clock.
    final : float, default 0.0
        Rate at the end, as a share of the peak.

    Returns
    -------
    Schedule
        The learning rate as a function of steps or alpha.

    Raises
    ------
    ValueError
        If an argument is invalid, or not exactly one of steps and alpha is given.

    Examples
    --------
    >>> schedule = sgd.schedules.cosine(0.4, alpha=10.0, final=0.1)
    >>> [round(float(schedule(alpha)), 3) for alpha in (0, 5, 10)]
    [0.4, 0.22, 0.04]
    """
    return _make("cosine", _cosine, peak, steps, alpha, warmup, final=_share("final", final))


def wsd(
    peak: float,
    steps: float | None = None,
    *,
    alpha: float | None = None,
    decay: float = 0.2,
    warmup: float = 0.0,
    final: float = 0.0,
    shape: str = "linear",
) -> Schedule:
    """Warm-up, stable phase and decay: constant, then a fall over the last share of the run.

    Parameters
    ----------
    peak : float
        Learning rate of the stable phase, above 0.
    steps : float, optional
        Length of the run in steps, for forecasts.
    alpha : float, optional
        Length of the run in samples per dimension, for solvers.
    decay : float, default 0.2
        Share of the run in which the rate falls, from 0 to 1.
    warmup : float, default 0.0
        Length of the linear warm-up, in the same clock.
    final : float, default 0.0
        Rate at the end, as a share of the peak.
    shape : {"linear", "sqrt", "cosine", "exponential"}, default "linear"
        Form of the fall: linear in time, 1 - sqrt(x), half a cosine, or exponential (to 1% of the
        peak if ``final`` is lower).

    Returns
    -------
    Schedule
        The learning rate as a function of steps or alpha.

    Raises
    ------
    ValueError
        If an argument is invalid, or not exactly one of steps and alpha is given.

    Examples
    --------
    >>> schedule = sgd.schedules.wsd(1e-3, 50000, decay=0.2)
    >>> [round(float(schedule(step)), 6) for step in (30000, 45000, 50000)]
    [0.001, 0.0005, 0.0]
    """
    shares = {"final": _share("final", final), "decay": _share("decay", decay)}
    form = _DECAY_FORMS[checks.choice("shape", shape, DECAYS)]
    return _make(f"wsd {shape}", form, peak, steps, alpha, warmup, **shares)


def multistep(
    peak: float,
    milestones: Sequence[float] | ArrayArgument,
    steps: float | None = None,
    *,
    alpha: float | None = None,
    factor: float = 0.1,
) -> Schedule:
    """A rate that is multiplied by a factor at each milestone.

    Parameters
    ----------
    peak : float
        Learning rate before the first milestone, above 0.
    milestones : array_like of float
        Times of the changes, increasing, as shares of the run.
    steps : float, optional
        Length of the run in steps, for forecasts.
    alpha : float, optional
        Length of the run in samples per dimension, for solvers.
    factor : float, default 0.1
        Factor of each change, from 0 to 1.

    Returns
    -------
    Schedule
        The learning rate as a function of steps or alpha.

    Raises
    ------
    ValueError
        If an argument is invalid, or not exactly one of steps and alpha is given.

    Examples
    --------
    >>> schedule = sgd.schedules.multistep(0.1, [0.5, 0.8], 1000)
    >>> [round(float(schedule(step)), 4) for step in (0, 600, 900)]
    [0.1, 0.01, 0.001]
    """
    shares = np.atleast_1d(checks.real_array("milestones", milestones, "give shares of the run"))
    if np.any(shares <= 0) or np.any(shares >= 1) or np.any(np.diff(shares) <= 0):
        fix = "must increase between 0 and 1, such as [0.5, 0.8]."
        raise checks.reject("milestones", shares.tolist(), fix)
    peak = checks.number("peak", peak, above=0.0)
    factor = _share("factor", factor)
    clock, length = _length(steps, alpha)
    rates = peak * factor ** np.arange(len(shares) + 1)
    return _pieces(shares * length, rates, length, clock)


def piecewise(
    edges: ArrayArgument,
    rates: ArrayArgument,
    steps: float | None = None,
    *,
    alpha: float | None = None,
) -> Schedule:
    """A rate that is constant between edges.

    Parameters
    ----------
    edges : array_like of float
        Times at which the rate changes, increasing and above 0.
    rates : array_like of float
        The rates, 0 or more, one more than edges.
    steps : float, optional
        Length of the run in steps, for forecasts.
    alpha : float, optional
        Length of the run in samples per dimension, for solvers.

    Returns
    -------
    Schedule
        The learning rate as a function of steps or alpha.

    Raises
    ------
    ValueError
        If an argument is invalid, or not exactly one of steps and alpha is given.

    Examples
    --------
    >>> schedule = sgd.schedules.piecewise([600, 800], [3e-4, 1e-4, 3e-5], 1000)
    >>> round(float(schedule(700)), 6)
    0.0001
    """
    edges = np.atleast_1d(checks.real_array("edges", edges, "give increasing times above 0"))
    if edges.ndim != 1 or np.any(edges <= 0) or np.any(np.diff(edges) <= 0):
        raise checks.reject("edges", edges, "give increasing times above 0")
    rates = checks.real_array("rates", rates, "give numbers, one more than edges")
    rates = checks.array("rates", rates, (len(edges) + 1,), "one more than edges")
    if np.any(rates < 0) or not np.any(rates > 0):
        raise checks.reject("rates", rates, "give rates of 0 or more that are not all 0")
    clock, length = _length(steps, alpha)
    return _pieces(edges, rates, length, clock)


def from_file(path: str | Path) -> Schedule:
    """The learning rate in the columns ``step`` and ``lr`` of a CSV file, linear between rows.

    Parameters
    ----------
    path : str or Path
        CSV file with a header. Other columns are ignored.

    Returns
    -------
    Schedule
        The learning rate as a function of steps, as long as the file.

    Raises
    ------
    ValueError
        If the file does not exist, or its columns are missing or invalid.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("rates.csv").write_text("step,lr\\n0,0\\n10,0.1\\n100,0.1\\n")
    >>> round(float(sgd.schedules.from_file("rates.csv")(5)), 6)
    0.05
    """
    file = checks.path("path", path)
    if not file.is_file():
        raise checks.reject("path", str(path), "no such file.")
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"step", "lr"} <= set(rows[0]):
        raise checks.reject("path", str(path), "the file needs the columns step and lr.")
    try:
        table = np.array([[float(row["step"]), float(row["lr"])] for row in rows])
    except (TypeError, ValueError):
        raise checks.reject("path", str(path), "step and lr must be numbers.") from None
    increasing = len(table) > 1 and np.all(np.diff(table[:, 0]) > 0)
    if not np.all(np.isfinite(table)) or np.any(table < 0) or not increasing:
        fix = "steps must increase, and rates must be finite and 0 or more."
        raise checks.reject("path", str(path), fix)
    return linear_between(table[:, 0], table[:, 1])


def linear_between(steps: np.ndarray, rates: np.ndarray) -> Schedule:
    """A rate that is linear between steps, without checks."""
    parameters = {"knots": steps, "values": rates, "length": steps[-1]}
    return Schedule(_interpolation, parameters, "linear_between", clock="step")


def from_record(argument: str, record: Mapping[str, Any]) -> Schedule:
    """The schedule that a problem file or a record states: {"schedule": "cosine", "peak": ...}."""
    values = dict(record)
    named = {"constant": constant, "cosine": cosine, "wsd": wsd, "multistep": multistep}
    kind = checks.choice(f"{argument} schedule", values.pop("schedule"), tuple(named))
    checks.reject_unknown(f"{argument} schedule", values, inspect.signature(named[kind]).parameters)
    return named[kind](**values)


def _make(
    name: str,
    function: Callable[[Any, Any], Any],
    peak: float,
    steps: float | None,
    alpha: float | None,
    warmup: float,
    **shares: float,
) -> Schedule:
    clock, length = _length(steps, alpha)
    warmup = checks.number("warmup", warmup, 0.0)
    if warmup >= length:
        raise checks.reject("warmup", warmup, f"warm-up must end before the run, at {length:g}")
    parameters = {
        "peak": checks.number("peak", peak, above=0.0),
        "length": length,
        "warmup": warmup,
        **shares,
    }
    traced = {key: np.float64(value) for key, value in parameters.items()}
    return Schedule(function, traced, name, clock=clock)


def _length(steps: float | None, alpha: float | None) -> tuple[str, float]:
    """The clock of a schedule and its length."""
    if (steps is None) == (alpha is None):
        fix = "give exactly one of steps= (for forecasts) and alpha= (for solvers)"
        raise checks.reject("steps, alpha", (steps, alpha), fix)
    if steps is not None:
        return "step", checks.number("steps", steps, above=0.0)
    return "alpha", checks.number("alpha", alpha, above=0.0)


def _share(argument: str, value: float) -> float:
    share = checks.number(argument, value, 0.0)
    if share > 1:
        raise checks.reject(argument, value, "give a share from 0 to 1")
    return share


def _pieces(edges: np.ndarray, rates: np.ndarray, length: float, clock: str) -> Schedule:
    """A piecewise schedule, which records and sweeps know, with its length and clock."""
    schedule = piecewise_schedule(edges, np.asarray(rates, dtype=float))
    if clock == "alpha":  # the same schedule as sgd.piecewise_rate, whose record has no length
        return schedule
    parameters = schedule.parameters | {"length": np.float64(length)}
    return Schedule(schedule.function, parameters, "piecewise_steps", clock=clock)


# The forms: functions of their parameters and of the time, in the clock of the schedule.


def _warm(parameters: PyTree, time: Scalar, after: Any) -> Any:
    """A linear rise to the peak, then `after`, which is a share of the peak."""
    warmup = parameters["warmup"]
    rising = jnp.asarray(time) / jnp.where(warmup > 0, warmup, 1.0)
    return parameters["peak"] * jnp.where(time < warmup, rising, after)


def _constant(parameters: PyTree, time: Scalar) -> Any:
    return _warm(parameters, time, 1.0)


def _cosine(parameters: PyTree, time: Scalar) -> Any:
    warmup = parameters["warmup"]
    progress = jnp.clip((time - warmup) / (parameters["length"] - warmup), 0.0, 1.0)
    final = parameters["final"]
    return _warm(parameters, time, final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * progress)))


def _decay(form: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The schedule whose rate falls by `form(progress, final)` at its end."""

    def rate(parameters: PyTree, time: Scalar) -> Any:
        duration = parameters["decay"] * parameters["length"]
        since = time - (parameters["length"] - duration)
        progress = jnp.clip(since / jnp.where(duration > 0, duration, 1.0), 0.0, 1.0)
        return _warm(parameters, time, form(progress, parameters["final"]))

    return rate


def _exponential(progress: Any, final: Any) -> Any:
    return jnp.maximum(final, EXPONENTIAL_END) ** progress


_DECAY_FORMS = {
    "linear": _decay(lambda progress, final: 1 - (1 - final) * progress),
    "sqrt": _decay(lambda progress, final: 1 - (1 - final) * jnp.sqrt(progress)),
    "cosine": _decay(
        lambda progress, final: final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    ),
    "exponential": _decay(_exponential),
}


def _interpolation(parameters: PyTree, time: Scalar) -> Any:
    return jnp.interp(
        jnp.asarray(time, dtype=jnp.result_type(float)),
        jnp.asarray(parameters["knots"]),
        jnp.asarray(parameters["values"]),
    )
