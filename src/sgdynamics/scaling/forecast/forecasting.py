"""Forecast of a training run from measured loss curves: the public function and its result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from sgdynamics.algorithms import schedules
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import Schedule
from sgdynamics.base.progress import warn as issue_warning
from sgdynamics.scaling.forecast.bands import gain_variance, log_variance, quantile
from sgdynamics.scaling.forecast.fitting import (
    STRENGTH,
    WEAK_STRENGTH,
    FitPoints,
    FittedModel,
    fit_model,
)
from sgdynamics.scaling.forecast.loss_curves import CurveArgument, LossCurve, read_curves
from sgdynamics.scaling.forecast.models import MODELS
from sgdynamics.scaling.forecast.optimal import optimal_rates
from sgdynamics.scaling.forecast.rates import RateCurve, ScheduleArgument, read_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREDICTED_POINTS = 200  # of a prediction whose steps are not given
LONGEST_HORIZON = 3.0  # length of a predicted run in lengths of the longest measured one
SMALL_FALL = 0.1  # relative fall of a rate up to which no decay needs to be measured
PEAK_MARGIN = 1.1  # ratio to the measured peaks up to which a prediction has a band
OPTIMISM = (
    "Predicted gains are optimistic: for language models of 25M to 400M parameters, WSD was "
    "predicted to gain 0.036 to 0.041 nats over a cosine, and gained 0.017 to 0.028."
)


@dataclass(frozen=True)
class BestSchedule:
    """The schedule with the lowest predicted final loss.

    Attributes
    ----------
    schedule : Schedule
        The learning rate as a function of the step.
    loss : float
        Predicted final loss.
    lower : float
        Lower end of the band of the final loss.
    upper : float
        Upper end of the band of the final loss.
    gain : float
        Predicted final loss of a cosine to 0 with the same peak and warm-up, minus ``loss``.
    gain_lower : float
        Lower end of the band of the gain.
    gain_upper : float
        Upper end of the band of the gain.
    decay_start : float
        Share of the run at which the rate falls below 95% of its peak.

    Examples
    --------
    >>> step, rates = np.arange(100.0, 8000.0, 50), sgd.schedules.wsd(0.1, 8000)
    >>> loss = [2 + 3 * s**-0.5 + float(rates(s)) for s in step]
    >>> best = sgd.forecast((step, loss), schedule=rates, warn=False).optimal_schedule(8000)
    >>> best.lower < best.loss < best.upper
    True
    """

    schedule: Schedule
    loss: float
    lower: float
    upper: float
    gain: float
    gain_lower: float
    gain_upper: float
    decay_start: float


@dataclass(frozen=True)
class Forecast:
    """A model of the loss of a training run, fitted to measured loss curves.

    Attributes
    ----------
    model : str
        Name of the model.
    curves : tuple of LossCurve
        The measured curves.
    skip : float
        Share of each run that is left out at its start.
    level : float
        Level of the bands.
    warnings : tuple of str
        Limitations of the fit and assumptions about the data.
    fits : mapping of str to FittedModel
        The fits of all models, by name.

    Examples
    --------
    >>> step = np.arange(100.0, 8000.0, 50)
    >>> fit = sgd.forecast((step, np.full(len(step), 0.1), 2 + 3 * step**-0.5), warn=False)
    >>> sorted(fit.parameters)
    ['A', 'B', 'alpha', 'beta', 'floor', 'q', 'tau']
    """

    model: str
    curves: tuple[LossCurve, ...]
    skip: float
    level: float
    warnings: tuple[str, ...]
    fits: Mapping[str, FittedModel] = field(repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        """Fitted parameters: floor, A, B, and the shape parameters of the model."""
        return self.fits[self.model].parameters

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors of the parameters, given the model."""
        return self.fits[self.model].standard_errors

    @property
    def residual(self) -> float:
        """Mean absolute difference of fit and fitted points, in units of the loss."""
        return _mean_error(self.fits[self.model], self.fits[self.model].points)

    @property
    def peaks(self) -> tuple[float, float]:
        """Smallest and largest peak of the measured learning rates."""
        peaks = [curve.rates.peak for curve in self.curves]
        return min(peaks), max(peaks)

    def predict(
        self, schedule: ScheduleArgument, steps: float | ArrayArgument | None = None
    ) -> xr.Dataset:
        """Predict the loss under another schedule.

        Parameters
        ----------
        schedule : Schedule, callable or (steps, rates)
            Learning rate: an object of ``sgd.schedules``, a function of the step, or two arrays.
        steps : float or array_like, optional
            Length of the run, or the steps at which the loss is predicted. Defaults to 200 points
            over the length of the schedule.

        Returns
        -------
        xarray.Dataset
            ``loss``, ``lower``, ``upper`` and ``lr`` over ``step``. The band contains the loss of a
            run with probability ``level``; it is NaN if the peak is outside of the measured range,
            or if the rate falls and no measured rate does.

        Raises
        ------
        ValueError
            If the schedule is invalid, or longer than three times the longest measured run.

        Warns
        -----
        UserWarning
            If the peak or the lowest rate is outside of the measured range, or no measured rate
            falls.

        Examples
        --------
        >>> step = np.arange(100.0, 8000.0, 50)
        >>> loss = 2 + 3 * step**-0.5
        >>> fit = sgd.forecast((step, np.full(len(step), 0.1), loss), warn=False)
        >>> prediction = fit.predict(sgd.schedules.constant(0.1, 16000))
        >>> abs(float(prediction["loss"][-1]) - (2 + 3 * 16000**-0.5)) < 0.002
        True
        """
        points = None if steps is None or np.ndim(steps) == 0 else np.asarray(steps)
        length = None
        if steps is not None and points is None:
            length = checks.number("steps", steps, above=0.0)
        rates = read_schedule("schedule", schedule, length)
        points = self._save_points(points, rates)
        self._check_length(rates)
        messages = self._limitations(rates)
        for message in messages:
            issue_warning(message)
        loss, lower, upper = loss_band(self, rates, points)
        variables = {
            "loss": ("step", loss, {"long_name": "predicted loss"}),
            "lower": ("step", lower, {"long_name": "lower end of the band"}),
            "upper": ("step", upper, {"long_name": "upper end of the band"}),
            "lr": ("step", rates.at(points), {"long_name": "learning rate"}),
        }
        attributes = {"model": self.model, "level": self.level, "warnings": "\n".join(messages)}
        return xr.Dataset(variables, {"step": points}, attributes)

    def optimal_schedule(
        self, steps: float, peak: float | None = None, *, warmup: float = 0.0
    ) -> BestSchedule:
        """Find the schedule with the lowest predicted final loss.

        Parameters
        ----------
        steps : float
            Length of the run, above 0.
        peak : float, optional
            Largest learning rate, within the measured range; defaults to the largest measured peak.
            The best peak cannot be found from loss curves: at large rates training becomes
            unstable, which is not in the model.
        warmup : float, default 0.0
            Steps of a linear warm-up.

        Returns
        -------
        BestSchedule
            The schedule, its final loss, and its gain over a cosine, with bands; a band is NaN if
            it depends on a decay and no measured rate falls.

        Raises
        ------
        ValueError
            If the model is not a theory, the peak is outside of the measured range, or the run is
            longer than three times the longest measured one.

        Notes
        -----
        Predicted gains are optimistic: for language models of 25M to 400M parameters, WSD was
        predicted to gain 0.036 to 0.041 nats over a cosine, and gained 0.017 to 0.028.

        Examples
        --------
        >>> step = np.arange(100.0, 8000.0, 50)
        >>> rates = sgd.schedules.cosine(0.1, 8000)
        >>> loss = [2 + 3 * s**-0.5 + float(rates(s)) for s in step]
        >>> fit = sgd.forecast((step, loss), schedule=rates, warn=False)
        >>> best = fit.optimal_schedule(8000)
        >>> best.gain >= 0
        True
        """
        if not self.model.startswith("theory"):
            fix = 'only the theory has an optimal schedule. Fit with model="theory" or "theory6".'
            raise checks.reject("model", self.model, fix)
        steps = checks.number("steps", steps, above=0.0)
        warmup = checks.number("warmup", warmup, 0.0)
        if warmup >= steps:
            raise checks.reject("warmup", warmup, f"warm-up must end before the run, at {steps:g}")
        peak = self.peaks[1] if peak is None else checks.number("peak", peak, above=0.0)
        if not self._is_measured_peak(peak):
            low, high = self.peaks
            fix = f"measured peaks are from {low:g} to {high:g}. Use a peak in this range."
            raise checks.reject("peak", peak, fix)
        main, others = self.fits[self.model], self._others()
        best = optimal_rates(main, steps, peak, warmup)
        self._check_length(best)
        cosine = read_schedule(
            "schedule", schedules.cosine(peak, steps, warmup=warmup), steps
        ).coarsen()
        end = np.array([steps])
        loss, lower, upper = (float(values[0]) for values in loss_band(self, best, end))
        reference = float(main.loss(cosine, end)[0])
        gain_width = math.nan
        if self._is_measured_fall(best) and self._is_measured_fall(cosine):
            variance = gain_variance(main, others, cosine, best.coarsen())
            gain_width = quantile(self.level) * math.sqrt(variance)
        is_low = (best.rates < 0.95 * peak) & (best.steps > warmup)
        return BestSchedule(
            schedules.linear_between(best.steps, best.rates),
            loss,
            lower,
            upper,
            reference - loss,
            reference - loss * math.exp(gain_width),
            reference - loss * math.exp(-gain_width),
            float(best.steps[np.argmax(is_low)] / steps) if is_low.any() else 1.0,
        )

    def compare(self) -> xr.Dataset:
        """Compare the models on the fitted curves, and on each curve left out of the fit.

        Returns
        -------
        xarray.Dataset
            ``parameters`` (their number), ``fitted`` and ``left_out``, the mean absolute errors in
            units of the loss, over ``model``. ``left_out`` is NaN for a single curve.

        Examples
        --------
        >>> step = np.arange(100.0, 8000.0, 50)
        >>> fit = sgd.forecast((step, np.full(len(step), 0.1), 2 + 3 * step**-0.5), warn=False)
        >>> fit.compare()["parameters"].values.tolist()
        [7, 6, 7, 4]
        """
        points = self.fits[self.model].points
        strength = self.fits[self.model].strength
        left_out = {name: [] for name in MODELS}
        for index, curve in enumerate(points) if len(points) > 1 else ():
            others = (*points[:index], *points[index + 1 :])
            for name, model in MODELS.items():
                fit, _ = fit_model(model, others, strength)
                left_out[name].append(_mean_error(fit, (curve,)))
        names = list(MODELS)
        fitted = [_mean_error(self.fits[name], points) for name in names]
        means = [np.mean(left_out[name]) if left_out[name] else np.nan for name in names]
        counts = [3 + len(MODELS[name].shape) for name in names]
        return xr.Dataset(
            {
                "parameters": ("model", counts, {"long_name": "number of parameters"}),
                "fitted": ("model", fitted, {"long_name": "mean absolute error of the fit"}),
                "left_out": ("model", means, {"long_name": "error on a curve left out"}),
            },
            {"model": names},
        )

    def summary(self) -> str:
        """Describe the fit in a few lines: curves, parameters with errors, and warnings.

        Returns
        -------
        str
            The text.

        Examples
        --------
        >>> step = np.arange(100.0, 8000.0, 50)
        >>> fit = sgd.forecast((step, np.full(len(step), 0.1), 2 + 3 * step**-0.5), warn=False)
        >>> print(fit.summary().partition(",")[0])
        Forecast by the model 'theory' from 1 curve
        """
        lines = [
            f"Forecast by the model {self.model!r} from {len(self.curves)} "
            f"curve{'s' if len(self.curves) > 1 else ''}, mean error of the fit "
            f"{self.residual:.2g}"
        ]
        errors = self.errors
        lines += [
            f"  {name:6} {value:10.4g} +- {errors[name]:.2g}"
            for name, value in self.parameters.items()
        ]
        return "\n".join([*lines, *(f"warning: {message}" for message in self.warnings)])

    def plot(self, *predictions: xr.Dataset, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the measured curves, the fit, and predictions with their bands.

        Parameters
        ----------
        *predictions : xarray.Dataset
            Results of ``predict``.
        ax : matplotlib.axes.Axes, optional
            Axes to draw in; a new figure by default.

        Returns
        -------
        fig : matplotlib.figure.Figure
            The figure.
        ax : matplotlib.axes.Axes
            Its axes.

        Examples
        --------
        >>> step = np.arange(100.0, 8000.0, 50)
        >>> fit = sgd.forecast((step, np.full(len(step), 0.1), 2 + 3 * step**-0.5), warn=False)
        >>> fig, ax = fit.plot(fit.predict(sgd.schedules.wsd(0.1, 8000)))
        """
        from sgdynamics.scaling.forecast.picture import draw_forecast

        return draw_forecast(self, predictions, ax)

    def _repr_html_(self) -> str:
        from sgdynamics.scaling.forecast.picture import forecast_html

        return forecast_html(self)

    def _save_points(self, steps: np.ndarray | None, rates: RateCurve) -> np.ndarray:
        """The steps at which a loss is predicted."""
        if steps is None:
            first = max(self.skip * rates.length, rates.warmup_end(), 1.0)
            return np.linspace(first, rates.length, PREDICTED_POINTS)
        points = np.sort(checks.real_array("steps", steps, "give steps above 0"))
        if points[0] <= 0 or points[-1] > rates.length * (1 + 1e-9):
            fix = f"give steps above 0 up to the end of the schedule, {rates.length:g}"
            raise checks.reject("steps", [points[0], points[-1]], fix)
        return points

    def _others(self) -> dict[str, FittedModel]:
        return {name: fit for name, fit in self.fits.items() if name != self.model}

    def _is_measured_peak(self, peak: float) -> bool:
        low, high = self.peaks
        return low / PEAK_MARGIN <= peak <= high * PEAK_MARGIN

    def _is_measured_fall(self, rates: RateCurve) -> bool:
        """Whether the fall of a rate is small, or a measured rate has fallen.

        At constant rates the level B of the noise and the floor are not told apart by the data.
        """
        measured = max(curve.rates.fall() for curve in self.curves)
        return measured >= SMALL_FALL or rates.fall() <= SMALL_FALL

    def _check_length(self, rates: RateCurve) -> None:
        longest = max(curve.rates.length for curve in self.curves)
        if rates.length > LONGEST_HORIZON * longest:
            fix = (
                f"the longest measured run has {longest:g} steps, and predictions reach three "
                "times as far. Use fewer steps or a longer measured run."
            )
            raise checks.reject("steps", rates.length, fix)

    def _limitations(self, rates: RateCurve) -> list[str]:
        """Warnings about a predicted schedule."""
        messages = []
        if not self._is_measured_peak(rates.peak):
            low, high = self.peaks
            messages.append(
                f"the peak {rates.peak:g} is outside of the measured range, {low:g} to {high:g}: "
                "the prediction has no band."
            )
        if not self._is_measured_fall(rates):
            messages.append(
                "no measured rate falls by a tenth, so that the effect of a decay is unknown: the "
                "predicted loss after it is too high and has no band."
            )
        # The end of a decay to 0 is below every rate that is measured.
        late = [curve.rates.at(np.array([0.98 * curve.rates.length]))[0] for curve in self.curves]
        lowest = min(min(late), *(curve.rates.rates[-1] for curve in self.curves))
        if rates.at(np.array([0.9 * rates.length]))[0] < 0.1 * lowest:
            messages.append(f"the rate falls below a tenth of the lowest measured one, {lowest:g}.")
        return messages


def forecast(
    curves: CurveArgument | Iterable[CurveArgument],
    *,
    schedule: ScheduleArgument | Sequence[ScheduleArgument] | None = None,
    model: str = "theory",
    skip: float = 0.06,
    level: float = 0.9,
    warn: bool = True,
) -> Forecast:
    """Fit the theory of SGD on power-law spectra to measured loss curves, to forecast other runs.

    Parameters
    ----------
    curves : path, table, arrays, or a list of these
        Loss curves with the columns ``step``, ``lr`` and ``loss`` (and ``run``, if there are
        several): CSV files, DataFrames, Datasets, dictionaries, or arrays (steps, rates, losses).
    schedule : Schedule, callable, (steps, rates) or list of these, optional
        Learning rate of the curves from step 0 on, if the column ``lr`` is missing or the curves
        start late; a list has one entry for each curve.
    model : {"theory", "theory6", "multi_power", "annealing"}, default "theory"
        The model: the theory of linear modes with an exponent q for adaptive optimisers (seven
        parameters), the same with q = 1 (six), the multi-power law of Luo et al. (seven), or the
        annealing law of Tissue et al. (four). All are fitted, because their spread is part of the
        bands.
    skip : float, default 0.06
        Share of each run that is left out at its start, in addition to warm-up.
    level : float, default 0.9
        Probability that a band contains the loss.
    warn : bool, default True
        Whether to issue the warnings that are listed in ``.warnings``.

    Returns
    -------
    Forecast
        The fit, with ``parameters``, ``errors``, ``predict``, ``optimal_schedule``, ``compare``,
        ``summary`` and ``plot``.

    Raises
    ------
    ValueError
        If a curve is too short, not sorted by steps, not positive and finite, without learning
        rates, diverging, or in other units than the others.

    Warns
    -----
    UserWarning
        If no curve has a fast decay of the rate, or a warm-up is assumed.

    Notes
    -----
    The model is the mean risk of one-pass SGD on a linear student with a power-law spectrum
    (``solve_linear``), late in training. With eta the learning rate, h = eta^q ref^(1-q) and
    S = sum of h over the steps,

        loss = floor + A S^-alpha + B sum_k (h_k - h_(k-1)) [1 - (1 + (S - S_k)/tau)^-beta].

    Parameters are fitted to the log loss by Huber's function. The first 6% of training, other
    peaks, instabilities and repeated data are not in the model.

    References
    ----------
    K. Luo et al., "A multi-power law for loss curve prediction across learning rate schedules",
    ICLR 2025. H. Tissue, V. Wang, L. Wang, "Scaling law with learning rate annealing",
    arXiv:2408.11029.

    Examples
    --------
    >>> step = np.arange(100.0, 8000.0, 50)
    >>> loss = 2 + 3 * step**-0.5
    >>> fit = sgd.forecast((step, np.full(len(step), 0.1), loss), warn=False)
    >>> prediction = fit.predict(sgd.schedules.constant(0.1, 16000))
    >>> print(f"{float(prediction['loss'][-1]):.2f}")
    2.02
    """
    name = checks.choice("model", model, tuple(MODELS))
    skip = checks.number("skip", skip, 0.0)
    if skip >= 0.9:
        raise checks.reject("skip", skip, "give a share of the run below 0.9")
    level = validate_level(level)
    warn = checks.flag("warn", warn)
    measured = tuple(read_curves(curves, schedule, skip))
    fit = fit_curves(measured, name, skip, level)
    for message in fit.warnings if warn else ():
        issue_warning(message)
    return fit


def validate_level(level: float) -> float:
    """Validate the level of the bands, a probability between 0 and 1."""
    level = checks.number("level", level, above=0.0)
    if level >= 1:
        raise checks.reject("level", level, "give a probability below 1")
    return level


def fit_curves(curves: tuple[LossCurve, ...], model: str, skip: float, level: float) -> Forecast:
    """Fit all models to validated loss curves."""
    has_decay = any(curve.rates.has_fast_decay() for curve in curves)
    messages = list(dict.fromkeys(note for curve in curves for note in curve.notes))
    if not has_decay:
        messages.append(
            "no curve has a fast decay of the learning rate, so that beta and tau follow mainly "
            "from typical values. Add a run with a decay in less than 15% of its steps."
        )
    points = tuple(curve.fit_points(skip) for curve in curves)
    strength = WEAK_STRENGTH if has_decay else STRENGTH
    fits = {key: fit_model(entry, points, strength)[0] for key, entry in MODELS.items()}
    return Forecast(model, curves, skip, level, tuple(messages), fits)


def loss_band(
    fit: Forecast, rates: RateCurve, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted losses at these steps, and the lower and upper ends of their band."""
    coarse = rates.coarsen()
    main = fit.fits[fit.model]
    loss = main.loss(coarse, steps)
    if fit._is_measured_peak(rates.peak) and fit._is_measured_fall(rates):
        deviation = np.sqrt(log_variance(main, fit._others(), coarse, steps))
    else:
        deviation = np.full(len(steps), np.nan)
    factor = np.exp(quantile(fit.level) * deviation)
    return loss, loss / factor, loss * factor


def _mean_error(fit: FittedModel, points: tuple[FitPoints, ...]) -> float:
    """Mean over curves of the mean absolute error, in units of the loss."""
    errors = [np.abs(fit.loss(curve.rates, curve.steps) - curve.losses).mean() for curve in points]
    return float(np.mean(errors))
