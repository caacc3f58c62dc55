"""Robust fits of models of loss curves, by variable projection.

The residual of a point is r = log(measured/predicted). A fit minimises

    (1/n) sum_i rho(r_i)/delta^2 + (strength/2) sum_j ((u_j - mean_j)/width_j)^2,

where rho is Huber's function, r^2/2 up to |r| = delta and linear beyond, and u_j are the shape
parameters that have a prior. The three coefficients are eliminated: at given shape parameters they
solve a linear least-squares problem with coefficients of 0 or more, reweighted for Huber's function
(variable projection; Golub and Pereyra, 1973).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize

from sgdynamics.scaling.forecast.models import LossModel
from sgdynamics.scaling.forecast.rates import RateCurve

DELTA = 1e-3  # residuals of log loss above which a point counts less
STRENGTH = 0.1  # of the penalty where no curve has a fast decay
WEAK_STRENGTH = 0.01  # of the penalty where one has
REWEIGHTINGS = 4
LARGEST_CORRELATION = 0.95  # of neighbouring residuals


@dataclass(frozen=True)
class FitPoints:
    """The points of one loss curve that are fitted, and its learning rates."""

    rates: RateCurve
    steps: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class FittedModel:
    """A model with fitted parameters.

    Attributes
    ----------
    model : LossModel
        The model.
    points : tuple of FitPoints
        The fitted curves.
    coordinates : array
        Shape parameters on the scale of the fit.
    coefficients : array (3,)
        The floor, A and B.
    strength : float
        Strength of the penalty.
    reference : float
        Largest learning rate of all curves.
    total : float
        Largest sum of learning rates of all curves.
    """

    model: LossModel
    points: tuple[FitPoints, ...]
    coordinates: np.ndarray
    coefficients: np.ndarray
    strength: float
    reference: float
    total: float

    def shape(self, coordinates: np.ndarray) -> dict[str, float]:
        """Shape parameters in their own units."""
        pairs = zip(self.model.shape, coordinates, strict=True)
        return {entry.name: entry.value(value, self.total) for entry, value in pairs}

    @property
    def parameters(self) -> dict[str, float]:
        """All fitted parameters."""
        return dict(zip(("floor", "A", "B"), self.coefficients.tolist(), strict=True)) | self.shape(
            self.coordinates
        )

    def loss(self, rates: RateCurve, steps: np.ndarray) -> np.ndarray:
        """Predicted loss at these steps of a run."""
        return self._loss(self._vector, rates, steps)

    @property
    def _vector(self) -> np.ndarray:
        return np.concatenate([self.coefficients, self.coordinates])

    def _loss(self, vector: np.ndarray, rates: RateCurve, steps: np.ndarray) -> np.ndarray:
        shape = self.shape(vector[3:])
        signal, noise = self.model.columns(rates, steps, shape, self.reference)
        return vector[0] + vector[1] * signal + vector[2] * noise

    def log_gradient(self, rates: RateCurve, steps: np.ndarray) -> np.ndarray:
        """Derivatives of the log loss by the floor, A, B and the coordinates, (point, parameter).

        The columns of the coefficients are exact, those of the shape are central differences.
        """
        vector = self._vector
        loss = self._loss(vector, rates, steps)
        signal, noise = self.model.columns(
            rates, steps, self.shape(self.coordinates), self.reference
        )
        columns = [np.ones(len(loss)), signal, noise]
        for index in range(3, len(vector)):
            shift = np.zeros(len(vector))
            shift[index] = 1e-4
            change = self._loss(vector + shift, rates, steps) - self._loss(
                vector - shift, rates, steps
            )
            columns.append(change / 2e-4)
        return np.stack(columns, axis=1) / loss[:, None]

    @cached_property
    def residuals(self) -> list[np.ndarray]:
        """Residuals log(measured/predicted) of each curve."""
        return [
            np.log(curve.losses / np.maximum(self.loss(curve.rates, curve.steps), 1e-9))
            for curve in self.points
        ]

    @cached_property
    def variance(self) -> float:
        """Variance of the residuals, whose outliers are limited as in the fit."""
        residuals = np.concatenate(self.residuals)
        limited = huber_residuals(residuals)
        return float(np.sum(limited**2) / max(len(residuals) - len(self._vector), 1))

    @cached_property
    def correlation_time(self) -> float:
        """Number of points that count as one independent point, from neighbouring residuals."""
        products = sum(float(np.sum(r[1:] * r[:-1])) for r in self.residuals)
        squares = sum(float(np.sum(r**2)) for r in self.residuals)
        correlation = np.clip(products / max(squares, 1e-300), 0.0, LARGEST_CORRELATION)
        return float((1 + correlation) / (1 - correlation))

    @cached_property
    def covariance(self) -> np.ndarray:
        """Laplace's approximation of the covariance of coefficients and coordinates.

        The data count with their effective number of points, n divided by the correlation time.
        """
        gradients = np.concatenate(
            [self.log_gradient(curve.rates, curve.steps) for curve in self.points]
        )
        residuals = np.abs(np.concatenate(self.residuals))
        weights = np.minimum(1.0, DELTA / np.maximum(residuals, 1e-12))
        precision = (gradients * weights[:, None]).T @ gradients
        for index, entry in enumerate(self.model.shape):
            if entry.prior is not None:
                strength = self.strength * len(residuals) * DELTA**2
                precision[3 + index, 3 + index] += strength / entry.prior[1] ** 2
        # A coefficient of 0 is at its bound and does not vary.
        free = np.concatenate([self.coefficients > 0, np.ones(len(self.coordinates), dtype=bool)])
        covariance = np.zeros_like(precision)
        inverse = np.linalg.pinv(precision[np.ix_(free, free)], rcond=1e-12, hermitian=True)
        covariance[np.ix_(free, free)] = inverse * self.variance * self.correlation_time
        return covariance

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors of the parameters in their own units."""
        deviations = np.sqrt(np.diag(self.covariance))
        values = self.parameters
        errors: dict[str, float] = dict(
            zip(("floor", "A", "B"), deviations[:3].tolist(), strict=True)
        )
        for entry, deviation in zip(self.model.shape, deviations[3:], strict=True):
            factor = values[entry.name] if entry.is_log else 1.0
            errors[entry.name] = float(deviation * factor)
        return errors


def huber_residuals(residuals: np.ndarray) -> np.ndarray:
    """Residuals whose squares are 2 rho(r): r up to DELTA, and like sqrt(r) beyond."""
    size = np.abs(residuals)
    beyond = np.sqrt(np.maximum(2 * DELTA * size - DELTA**2, 0.0))
    return np.sign(residuals) * np.where(size <= DELTA, size, beyond)


def fit_model(
    model: LossModel, points: tuple[FitPoints, ...], strength: float
) -> tuple[FittedModel, float]:
    """Fit a model from each of its starts; the best fit and its cost."""
    problem = _Projection(model, points, strength)
    bounds = (
        [entry.low for entry in model.shape],
        [entry.high for entry in model.shape],
    )
    best: optimize.OptimizeResult | None = None
    for starts in zip(*(entry.starts for entry in model.shape), strict=True):
        solution = optimize.least_squares(
            problem.residuals, starts, bounds=bounds, diff_step=1e-5, max_nfev=60
        )
        if best is None or solution.cost < best.cost:
            best = solution
    assert best is not None
    coefficients, _ = problem.coefficients(best.x)
    fitted = FittedModel(
        model, points, best.x, coefficients, strength, problem.reference, problem.total
    )
    return fitted, float(best.cost)


class _Projection:
    """The cost of a fit as a function of the shape parameters alone."""

    def __init__(self, model: LossModel, points: tuple[FitPoints, ...], strength: float) -> None:
        self.model, self.points, self.strength = model, points, strength
        self.losses = np.concatenate([curve.losses for curve in points])
        self.reference = max(curve.rates.peak for curve in points)
        self.total = max(curve.rates.total for curve in points)

    def _columns(self, coordinates: np.ndarray) -> np.ndarray:
        pairs = zip(self.model.shape, coordinates, strict=True)
        shape = {entry.name: entry.value(value, self.total) for entry, value in pairs}
        columns = [
            self.model.columns(curve.rates, curve.steps, shape, self.reference)
            for curve in self.points
        ]
        signal, noise = (np.concatenate(arrays) for arrays in zip(*columns, strict=True))
        return np.stack([np.ones(len(signal)), signal, noise], axis=1)

    def coefficients(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best coefficients of 0 or more, and the residuals of log loss.

        Weights 1/loss make linear residuals relative, which are those of log loss to first order;
        further weights make their squares Huber's function.
        """
        columns = self._columns(coordinates)
        scales = np.maximum(np.abs(columns).max(axis=0), 1e-300)
        columns = columns / scales
        weights = 1 / self.losses
        for _ in range(REWEIGHTINGS):
            values, _ = optimize.nnls(columns * weights[:, None], self.losses * weights)
            residuals = np.log(self.losses / np.maximum(columns @ values, 1e-9))
            huber = np.sqrt(np.minimum(1.0, DELTA / np.maximum(np.abs(residuals), 1e-12)))
            weights = huber / self.losses
        return values / scales, residuals

    def residuals(self, coordinates: np.ndarray) -> np.ndarray:
        """Residuals of the curves and of the penalty, whose squares add up to twice the cost."""
        _, residuals = self.coefficients(coordinates)
        penalty = [
            (value - entry.prior[0]) / entry.prior[1]
            for entry, value in zip(self.model.shape, coordinates, strict=True)
            if entry.prior is not None
        ]
        scaled = huber_residuals(residuals) / (DELTA * np.sqrt(len(residuals)))
        return np.concatenate([scaled, np.sqrt(self.strength) * np.array(penalty)])
