"""Forecasts of real training runs by the theory of linear modes.

`rates.py` reads schedules, `loss_curves.py` measured curves, `models.py` has the models and
`fitting.py` their fit; `bands.py` has the uncertainty of a prediction, `optimal.py` the best
schedule, and `forecasting.py` the public function and its result. `monitoring.py` repeats the
fit in a training loop.
"""

from sgdynamics.scaling.forecast.forecasting import BestSchedule, Forecast, forecast
from sgdynamics.scaling.forecast.monitoring import Monitor, Outlook, monitor

__all__ = ["BestSchedule", "Forecast", "Monitor", "Outlook", "forecast", "monitor"]
