"""Forecast of a training run that is under way, from its losses so far and from earlier runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar
from sgdynamics.base.progress import warn as issue_warning
from sgdynamics.scaling.forecast.forecasting import (
    LONGEST_HORIZON,
    PREDICTED_POINTS,
    Forecast,
    fit_curves,
    loss_band,
    validate_level,
)
from sgdynamics.scaling.forecast.loss_curves import (
    LEAST_POINTS,
    CurveArgument,
    LossCurve,
    check_divergence,
    check_units,
    read_curves,
)
from sgdynamics.scaling.forecast.models import MODELS
from sgdynamics.scaling.forecast.rates import RateCurve, ScheduleArgument, read_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SKIP = 0.06  # share of a run at its start that the models do not describe
RUNNING = "this run"  # name of the curve of the training that is under way
FIRST_CAPACITY = 1024  # points that fit into the arrays of a new monitor


@runtime_checkable
class _Writer(Protocol):
    """A logger with the method of TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


@runtime_checkable
class _Run(Protocol):
    """A logger with the method of a run of Weights & Biases."""

    def log(self, data: dict[str, float], step: int) -> object: ...


Report: TypeAlias = Callable[[str, float, int], object]
LogArgument: TypeAlias = "Report | _Writer | _Run"


@dataclass(frozen=True)
class Outlook:
    """The predicted final loss of a training run, at one moment of the training.

    Attributes
    ----------
    step : int
        Step at which the prediction was made.
    loss : float
        Predicted loss at the end of the run.
    lower : float
        Lower end of its band.
    upper : float
        Upper end of its band.

    Examples
    --------
    >>> monitor = sgd.monitor(sgd.schedules.constant(0.1, 3000), interval=100)
    >>> for step in range(1, 2001):
    ...     outlook = monitor.update(step, 2 + 3 * step**-0.5)
    >>> outlook.step, outlook.lower < outlook.loss < outlook.upper
    (2000, True)
    """

    step: int
    loss: float
    lower: float
    upper: float


class Monitor:
    """The forecast of a training run that is under way; made by ``sgd.monitor``.

    Parameters
    ----------
    rates : RateCurve
        Learning rate of the run.
    earlier : sequence of LossCurve
        Validated curves of earlier runs.
    interval : int
        Number of steps between two predictions.
    model : str
        Name of the model.
    level : float
        Level of the bands.
    report : callable or None
        Function (name, value, step) that logs a prediction.

    Attributes
    ----------
    forecast : Forecast or None
        The newest fit to the running curve and the earlier curves; None before the first one.
    outlooks : list of Outlook
        All predictions of the final loss so far; the last one is the newest.

    Examples
    --------
    >>> monitor = sgd.monitor(sgd.schedules.constant(0.1, 3000), interval=100)
    >>> for step in range(1, 2001):
    ...     outlook = monitor.update(step, 2 + 3 * step**-0.5)
    >>> print(f"final loss {monitor.outlooks[-1].loss:.2f}")
    final loss 2.05
    """

    def __init__(
        self,
        rates: RateCurve,
        earlier: Sequence[LossCurve],
        *,
        interval: int,
        model: str,
        level: float,
        report: Report | None,
    ) -> None:
        self.forecast: Forecast | None = None
        self.outlooks: list[Outlook] = []
        self._rates, self._earlier = rates, tuple(earlier)
        self._interval, self._model, self._level = interval, model, level
        self._report = report
        self._points = _GrowingCurve()
        # The models describe late training, so that points before this step are not fitted.
        self._first_step = max(SKIP * rates.length, rates.warmup_end())
        self._late_points = 0
        self._next_fit = 0.0
        self._warned: set[str] = set()

    def update(self, step: int, loss: Scalar) -> Outlook | None:
        """Record the loss of a step, and predict the final loss every ``interval`` steps.

        Parameters
        ----------
        step : int
            Number of optimiser steps so far, above that of the previous call. Steps may be left
            out.
        loss : float
            Training loss of this step, or a validation loss: a number, or an array or tensor with
            one.

        Returns
        -------
        Outlook or None
            A new prediction of the final loss; None between the predictions and before the first
            one.

        Raises
        ------
        ValueError
            If the loss is not finite, because training has diverged, or not above 0, or if the
            steps do not increase.

        Warns
        -----
        UserWarning
            Once for each limitation of the fit, if the loss rises, or if the run is longer than
            its schedule.

        Examples
        --------
        >>> monitor = sgd.monitor(sgd.schedules.constant(0.1, 3000), interval=100)
        >>> monitor.update(1, 5.0) is None
        True
        """
        step = checks.integer("step", step, 0)
        self._record(step, step, loss)
        return self._predict_end(step)

    def predict(self) -> xr.Dataset:
        """Predict the loss from the newest step to the end of the run.

        Returns
        -------
        xarray.Dataset
            ``loss``, ``lower``, ``upper`` and ``lr`` over ``step``, as ``Forecast.predict``.

        Raises
        ------
        ValueError
            If there is no forecast yet.

        Examples
        --------
        >>> monitor = sgd.monitor(sgd.schedules.constant(0.1, 3000), interval=100)
        >>> for step in range(1, 2001):
        ...     outlook = monitor.update(step, 2 + 3 * step**-0.5)
        >>> prediction = monitor.predict()
        >>> [float(step) for step in prediction.step[[0, -1]]]
        [2000.0, 3000.0]
        """
        forecast = self._newest_forecast()
        newest = min(self._points.newest_step, self._rates.length)
        steps = np.unique(np.linspace(newest, self._rates.length, PREDICTED_POINTS))
        return forecast.predict(self._rates, steps)

    def plot(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the losses so far, the earlier curves, and the rest of the run with its band.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw in; a new figure by default.

        Returns
        -------
        fig : matplotlib.figure.Figure
            The figure.
        ax : matplotlib.axes.Axes
            Its axes.

        Raises
        ------
        ValueError
            If there is no forecast yet.

        Examples
        --------
        >>> monitor = sgd.monitor(sgd.schedules.constant(0.1, 3000), interval=100)
        >>> for step in range(1, 2001):
        ...     outlook = monitor.update(step, 2 + 3 * step**-0.5)
        >>> fig, ax = monitor.plot()
        """
        return self._newest_forecast().plot(self.predict(), ax=ax)

    def keras_callback(self) -> Any:
        """A callback for ``model.fit`` of Keras that calls ``update`` after each batch.

        Returns
        -------
        keras.callbacks.Callback
            The callback. It counts the batches from 1.

        Raises
        ------
        ValueError
            If Keras is not installed.

        Notes
        -----
        Keras passes the mean loss of the epoch up to a batch. The loss of the batch itself is
        recovered from successive means, for batches of equal size.

        Examples
        --------
        >>> monitor = sgd.monitor(sgd.schedules.cosine(1e-3, 20000))
        >>> model.fit(x, y, callbacks=[monitor.keras_callback()])  # doctest: +SKIP
        """
        keras = _import_optional("keras_callback", "keras")
        monitor = self

        class ForecastCallback(keras.callbacks.Callback):
            """Recovers batch losses from the running means of an epoch."""

            def __init__(self) -> None:
                super().__init__()
                self.step, self.count, self.total = 0, 0, 0.0

            def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
                self.count, self.total = 0, 0.0

            def on_train_batch_end(
                self, batch: int, logs: Mapping[str, float] | None = None
            ) -> None:
                # With steps_per_execution > 1 one call stands for several batches.
                count = batch + 1
                batches = count - self.count
                total = count * float((logs or {})["loss"])
                loss = (total - self.total) / batches
                self.step, self.count, self.total = self.step + batches, count, total
                monitor.update(self.step, loss)

        return ForecastCallback()

    def trainer_callback(self) -> Any:
        """A callback for the Trainer of Hugging Face that records the losses that it logs.

        Returns
        -------
        transformers.TrainerCallback
            The callback.

        Raises
        ------
        ValueError
            If transformers is not installed.

        Notes
        -----
        The Trainer logs the mean loss since its previous log, every ``logging_steps`` steps. It is
        recorded at the middle of that interval. With ``logging_steps=10`` or less the first
        forecast comes early.

        Examples
        --------
        >>> monitor = sgd.monitor(sgd.schedules.cosine(1e-3, 20000))
        >>> trainer.add_callback(monitor.trainer_callback())  # doctest: +SKIP
        """
        transformers = _import_optional("trainer_callback", "transformers")
        monitor = self

        class ForecastCallback(transformers.TrainerCallback):
            """Records the mean loss of each logging interval at the middle of the interval."""

            def __init__(self) -> None:
                super().__init__()
                self.last_log = 0

            def on_train_begin(
                self, args: object, state: Any, control: object, **_: object
            ) -> None:
                self.last_log = state.global_step

            def on_log(
                self,
                args: object,
                state: Any,
                control: object,
                logs: Mapping[str, float] | None = None,
                **_: object,
            ) -> None:
                # Evaluations and the summary at the end are logged without a loss.
                if "loss" not in (logs or {}) or not state.is_world_process_zero:
                    return
                step = state.global_step
                monitor._record(step, (self.last_log + step + 1) / 2, (logs or {})["loss"])
                self.last_log = step
                monitor._predict_end(step)

        return ForecastCallback()

    def __repr__(self) -> str:
        progress = f"step {self._points.newest_step:g} of {self._rates.length:g}"
        if not self.outlooks:
            return f"Monitor({progress}, no forecast yet)"
        newest = self.outlooks[-1]
        band = f"{newest.lower:.4g} to {newest.upper:.4g}"
        return f"Monitor({progress}, predicted final loss {newest.loss:.4g}, band {band})"

    def _record(self, step: int, position: float, loss: Scalar) -> None:
        """Store a loss of the run at a position, which is the step or the middle of an interval."""
        newest = self._points.newest_step
        if self._points.count and position <= newest:
            fix = f"the newest point is at step {newest:g}. Steps must increase from call to call."
            raise checks.reject("step", step, fix)
        measured = _validate_loss(step, loss)
        if position > self._rates.length:
            self._warn_once(
                "length",
                f"the schedule ends at step {self._rates.length:g}, and later losses are left out "
                "of the forecast. Set steps= to the length of the run.",
            )
            return
        self._points.append(position, measured)
        self._late_points += position >= self._first_step

    def _predict_end(self, step: int) -> Outlook | None:
        """Fit all curves and predict the final loss, if a prediction is due."""
        if step < self._next_fit or step > self._rates.length or not self._has_enough_points():
            return None
        self._next_fit = step + self._interval
        running = self._running_curve()
        curves = (*self._earlier, running)
        try:
            check_divergence(RUNNING, running.steps, running.losses)
            check_units(list(curves))
            forecast = fit_curves(curves, self._model, SKIP, self._level)
        except (ValueError, RuntimeError) as error:
            # A forecast that fails is no reason to end the training.
            self._warn_once("failure", f"there is no forecast at step {step:g}: {error}")
            return None
        self.forecast = forecast
        for message in forecast.warnings:
            self._warn_once(message, message)
        if not self.outlooks:
            forecast.predict(self._rates)  # issues the warnings about the schedule
        ends = loss_band(forecast, self._rates, np.array([self._rates.length]))
        outlook = Outlook(step, *(float(end[0]) for end in ends))
        self.outlooks.append(outlook)
        if self._report is not None:
            self._report("forecast/final_loss", outlook.loss, step)
            self._report("forecast/lower", outlook.lower, step)
            self._report("forecast/upper", outlook.upper, step)
        return outlook

    def _has_enough_points(self) -> bool:
        """Whether the curve has enough late points, and a prediction does not reach too far."""
        lengths = [curve.rates.length for curve in self._earlier]
        longest = max([self._points.newest_step, *lengths])
        is_near = self._rates.length <= LONGEST_HORIZON * longest
        return self._late_points >= LEAST_POINTS and is_near

    def _running_curve(self) -> LossCurve:
        steps, losses = self._points.after(self._first_step)
        return LossCurve(RUNNING, steps, losses, self._rates.until(float(steps[-1])))

    def _newest_forecast(self) -> Forecast:
        if self.forecast is None:
            late = f"{self._late_points} points after warm-up and the first 6% of the run"
            raise ValueError(
                f"there is no forecast yet: the curve has {late}. A forecast needs "
                f"{LEAST_POINTS}, and a measured run of at least a third of the steps."
            )
        return self.forecast

    def _warn_once(self, cause: str, message: str) -> None:
        """Issue only the first warning of a cause; later ones differ in their numbers."""
        if cause not in self._warned:
            self._warned.add(cause)
            issue_warning(message)


class _GrowingCurve:
    """Steps and losses in arrays whose capacity doubles when they are full."""

    def __init__(self) -> None:
        self._rows = np.empty((2, FIRST_CAPACITY))
        self.count = 0

    @property
    def newest_step(self) -> float:
        """The step of the newest point; 0 without points."""
        return float(self._rows[0, self.count - 1]) if self.count else 0.0

    def append(self, step: float, loss: float) -> None:
        if self.count == self._rows.shape[1]:
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)], axis=1)
        self._rows[:, self.count] = step, loss
        self.count += 1

    def after(self, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the steps and losses from this step on."""
        first = int(np.searchsorted(self._rows[0, : self.count], step))
        steps, losses = self._rows[:, first : self.count].copy()
        return steps, losses


def monitor(
    schedule: ScheduleArgument,
    steps: float | None = None,
    *,
    interval: int = 500,
    curves: CurveArgument | Iterable[CurveArgument] = (),
    model: str = "theory",
    level: float = 0.9,
    log: LogArgument | None = None,
) -> Monitor:
    """Forecast the rest of a training run while it is under way.

    Call ``update(step, loss)`` in the training loop, or pass ``keras_callback()`` or
    ``trainer_callback()`` to Keras or to the Trainer of Hugging Face.

    Parameters
    ----------
    schedule : Schedule, callable or (steps, rates)
        Learning rate of the run from step 0 on: an object of ``sgd.schedules``, a function of the
        step, or two arrays.
    steps : float, optional
        Length of the run in optimiser steps; defaults to that of the schedule.
    interval : int, default 500
        Number of steps between two predictions. A prediction takes a fraction of a second.
    curves : path, table, arrays, or a list of these, default ()
        Loss curves of earlier runs that are fitted together with the running one, as in
        ``sgd.forecast``. Their losses must be of the same kind.
    model : {"theory", "theory6", "multi_power", "annealing"}, default "theory"
        The model, as in ``sgd.forecast``.
    level : float, default 0.9
        Probability that a band contains the loss.
    log : callable or object, optional
        Logger of the predictions: a function ``log(name, value, step)``, a SummaryWriter of
        TensorBoard, or a run of Weights & Biases. The names are "forecast/final_loss",
        "forecast/lower" and "forecast/upper".

    Returns
    -------
    Monitor
        The monitor, with ``update``, ``outlooks``, ``forecast``, ``predict``, ``plot``,
        ``keras_callback`` and ``trainer_callback``.

    Raises
    ------
    ValueError
        If the schedule, an earlier curve or another argument is invalid.

    Notes
    -----
    The first prediction needs 20 points after warm-up and the first 6% of the run, and a measured
    run of at least a third of ``steps``: the running one, or an earlier one. Losses of single
    batches are averaged, and the band is that of their mean. Until some curve contains a fast decay
    of the learning rate, the effect of the decay follows mainly from typical values; a warning
    states this.

    Examples
    --------
    >>> schedule = sgd.schedules.wsd(0.1, 3000, warmup=100)
    >>> monitor = sgd.monitor(schedule, interval=500, log=lambda name, value, step: None)
    >>> for step in range(1, 2001):
    ...     outlook = monitor.update(step, 2 + 3 * step**-0.5)
    >>> [outlook.step for outlook in monitor.outlooks]
    [1000, 1500, 2000]
    """
    length = None if steps is None else checks.number("steps", steps, above=0.0)
    rates = read_schedule("schedule", schedule, length)
    interval = checks.integer("interval", interval, 1)
    name = checks.choice("model", model, tuple(MODELS))
    level = validate_level(level)
    report = None if log is None else _report_function(log)
    is_empty = isinstance(curves, (tuple, list)) and not curves
    earlier = [] if is_empty else read_curves(curves, None, SKIP)
    return Monitor(rates, earlier, interval=interval, model=name, level=level, report=report)


def _report_function(log: LogArgument) -> Report:
    """The function (name, value, step) that passes a value to a logger of one of three kinds."""
    if isinstance(log, _Writer):
        return log.add_scalar
    if isinstance(log, _Run):
        return lambda name, value, step: log.log({name: value}, step=step)
    if callable(log):
        return log
    fix = (
        "give a function log(name, value, step), a SummaryWriter of TensorBoard, or a run of "
        "Weights & Biases"
    )
    raise checks.reject("log", log, fix)


def _validate_loss(step: int, loss: Scalar) -> float:
    try:
        return checks.number("loss", loss, above=0.0)
    except ValueError:
        if _is_infinite_or_nan(loss):
            fix = f"training has diverged at step {step}. Reduce the learning rate."
            raise checks.reject("loss", float(loss), fix) from None
        raise


def _is_infinite_or_nan(loss: object) -> bool:
    try:
        return not math.isfinite(loss)  # type: ignore[arg-type]  # other types raise TypeError
    except (TypeError, ValueError, OverflowError):
        return False


def _import_optional(method: str, package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError:
        raise ValueError(
            f"{method} needs {package}, which is not installed: pip install {package}"
        ) from None
