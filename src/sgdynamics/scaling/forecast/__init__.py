"""Forecasts of real training runs by the theory of linear modes.

`rates.py` reads schedules, `loss_curves.py` measured curves, `models.py` has the models and
`fitting.py` their fit; `bands.py` has the uncertainty of a prediction, `optimal.py` the best
schedule, and `forecasting.py` the public function and its result.
"""

from sgdynamics.scaling.forecast.forecasting import BestSchedule, Forecast, forecast

__all__ = ["BestSchedule", "Forecast", "forecast"]
