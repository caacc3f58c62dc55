"""Uncertainty of a forecast.

The variance of a predicted log loss has three parts:

    Laplace's approximation of the fit, with the effective number of points;
    the spread of models: the mean over the other models m of w_m log(L_m/L)^2, where the weight
    w_m = min(1, s^2/s_m^2) is the ratio of the residual variances on the fitted curves;
    FLOOR^2, the variance between runs of one schedule.

The first part alone covers half of the points at a nominal level of 90%, because the error is in
the model. With all three, 90% bands contain 95% of the points (91% of the final losses) of held-out
curves of 25M, 100M and 124M language models, from 18 sets of fitted curves; the tests hold the
stored curves to 85% (`tests/scaling/test_forecast.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from sgdynamics.scaling.forecast.fitting import FittedModel
from sgdynamics.scaling.forecast.rates import RateCurve

FLOOR = 0.002  # standard deviation of log loss between runs of one schedule
SMALLEST_LOSS = 1e-9  # of a prediction whose logarithm is taken


def quantile(level: float) -> float:
    """Half-width of a band with this level, in standard deviations."""
    return float(stats.norm.ppf(0.5 + level / 2))


def log_variance(
    main: FittedModel, others: Mapping[str, FittedModel], rates: RateCurve, steps: np.ndarray
) -> np.ndarray:
    """Variance of the predicted log loss at these steps of a run."""
    gradient = main.log_gradient(rates, steps)
    reference = np.log(np.maximum(main.loss(rates, steps), SMALLEST_LOSS))
    # Another model may predict a negative loss far from the data, and the band is then wide.
    deviations = {
        name: np.log(np.maximum(fit.loss(rates, steps), SMALLEST_LOSS)) - reference
        for name, fit in others.items()
    }
    return _variance(main, others, gradient, deviations)


def gain_variance(
    main: FittedModel, others: Mapping[str, FittedModel], first: RateCurve, second: RateCurve
) -> float:
    """Variance of the log ratio of the final losses of two runs."""
    ends = np.array([first.length]), np.array([second.length])
    gradient = main.log_gradient(second, ends[1]) - main.log_gradient(first, ends[0])

    def log_ratio(fit: FittedModel) -> np.ndarray:
        after, before = fit.loss(second, ends[1]), fit.loss(first, ends[0])
        return np.log(np.maximum(after, SMALLEST_LOSS) / np.maximum(before, SMALLEST_LOSS))

    reference = log_ratio(main)
    deviations = {name: log_ratio(fit) - reference for name, fit in others.items()}
    return float(_variance(main, others, gradient, deviations)[0])


def _variance(
    main: FittedModel,
    others: Mapping[str, FittedModel],
    gradient: np.ndarray,
    deviations: Mapping[str, np.ndarray],
) -> np.ndarray:
    laplace = np.einsum("ni,ij,nj->n", gradient, main.covariance, gradient)
    weights = {name: min(1.0, main.variance / fit.variance) for name, fit in others.items()}
    spread = np.zeros(len(gradient))
    for name, deviation in deviations.items():
        spread += weights[name] * deviation**2 / len(others)
    return laplace + spread + FLOOR**2
