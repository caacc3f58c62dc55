"""Forecasts in a training loop: replayed runs, loggers, callbacks, bad input, a torch training."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import sgdynamics as sgd
from sgdynamics.scaling.forecast.monitoring import _GrowingCurve

CURVES = Path(__file__).parents[2] / "examples/loss_curves"
EARLIER = [str(CURVES / f"25M_{name}.csv") for name in ("cosine_24000", "wsdcon_9")]
RUN = pd.read_csv(CURVES / "25M_wsd_20000_24000.csv")
LENGTH = float(RUN.step.iloc[-1])
SCHEDULE = sgd.schedules.wsd(
    3e-4, LENGTH, warmup=2160, decay=1 - 20000 / LENGTH, final=0.1, shape="exponential"
)
CONSTANT = sgd.schedules.constant(0.1, 3000, warmup=100)


def replay(monitor, rows=RUN):
    """Pass a stored run to a monitor, step by step; the predictions."""
    outlooks = [monitor.update(row.step, row.loss) for row in rows.itertuples()]
    return [outlook for outlook in outlooks if outlook is not None]


def train_quickly(monitor, last=2000):
    """Pass 2 + 3/sqrt(step) to a monitor."""
    for step in range(1, last + 1):
        monitor.update(step, 2 + 3 * step**-0.5)


@pytest.fixture(scope="module")
def language_model():
    monitor = sgd.monitor(SCHEDULE, LENGTH, interval=2000, curves=EARLIER)
    with pytest.warns(UserWarning, match="linear warm-up"):
        outlooks = replay(monitor)
    return monitor, outlooks


@pytest.mark.slow
def test_the_final_loss_of_a_language_model_is_known_at_half_of_its_run(language_model):
    monitor, outlooks = language_model
    assert monitor.outlooks == outlooks
    measured = float(RUN.loss.iloc[-1])
    half = next(outlook for outlook in outlooks if outlook.step >= LENGTH / 2)
    assert half.step < 0.6 * LENGTH
    assert abs(half.loss - measured) < 0.02
    assert half.lower < measured < half.upper
    assert half.upper - half.lower < 0.05
    # The decay starts only at step 20000: the losses before do not contain its effect.
    assert RUN.loss[RUN.step < 20000].min() > measured + 0.08


def test_predictions_are_the_requested_number_of_steps_apart(language_model):
    _, outlooks = language_model
    steps = [outlook.step for outlook in outlooks]
    # 20 points after the end of warm-up at step 2160, in intervals of 128 steps
    assert steps[0] == RUN.step[RUN.step >= 2160].iloc[19]
    assert np.all(np.diff(steps) >= 2000)
    assert np.all(np.diff(steps) < 2200)


def test_the_forecast_is_that_of_the_same_curves(language_model):
    """The fit of `sgd.forecast` to the points of the run and the earlier runs."""
    monitor, outlooks = language_model
    rows = RUN[RUN.step <= outlooks[-1].step]
    running = (rows.step.to_numpy(), rows.lr.to_numpy(), rows.loss.to_numpy())
    fit = sgd.forecast([*EARLIER, running], warn=False)
    for name, value in fit.parameters.items():
        assert monitor.forecast.parameters[name] == pytest.approx(value, rel=0.02), name
    end = fit.predict(SCHEDULE).isel(step=-1)
    assert outlooks[-1].loss == pytest.approx(float(end.loss), abs=1e-3)
    assert outlooks[-1].upper == pytest.approx(float(end.upper), abs=2e-3)


@pytest.mark.slow
def test_the_rest_of_the_run_and_its_picture(language_model):
    monitor, outlooks = language_model
    prediction = monitor.predict()
    assert float(prediction.step[-1]) == LENGTH
    halfway = sgd.monitor(SCHEDULE, interval=2000, curves=EARLIER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        replay(halfway, RUN[RUN.step <= 12000])
    prediction = halfway.predict()
    assert float(prediction.step[0]) == RUN.step[RUN.step <= 12000].iloc[-1]
    later = RUN[RUN.step > 12100]
    predicted = prediction.interp(step=later.step.to_numpy())
    assert np.abs(predicted["loss"] - later.loss.to_numpy()).mean() < 0.01
    fig, ax = halfway.plot()
    assert "this run" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert fig is ax.figure
    assert f"predicted final loss {outlooks[-1].loss:.4g}" in repr(monitor)


@pytest.mark.slow
def test_without_earlier_runs_the_forecast_starts_at_a_third_and_has_a_band_after_a_decay():
    monitor = sgd.monitor(SCHEDULE, interval=1000)
    with pytest.warns(UserWarning, match="fast decay|no band") as record:
        outlooks = replay(monitor)
    texts = [str(warning.message) for warning in record]
    assert sum("no curve has a fast decay" in text for text in texts) == 1
    assert sum("the effect of a decay is unknown" in text for text in texts) == 1
    assert LENGTH / 3 <= outlooks[0].step < LENGTH / 3 + 128
    measured = float(RUN.loss.iloc[-1])
    for outlook in outlooks:
        if outlook.step < 20000:
            assert np.isnan(outlook.lower)
            assert np.isnan(outlook.upper)
        elif outlook.step > 20200:
            assert outlook.lower < measured < outlook.upper


@pytest.mark.slow
def test_the_band_contains_the_loss_of_a_run_with_noisy_batches():
    """A cosine of the model itself, with 20% noise in each loss."""
    from sgdynamics.scaling.forecast.models import MODELS
    from sgdynamics.scaling.forecast.rates import read_schedule

    schedule = sgd.schedules.cosine(1e-3, 20000, warmup=500)
    steps = np.arange(1, 20001)
    rates = read_schedule("schedule", schedule, None).coarsen(1000)
    shape = {"alpha": 0.5, "tau": 0.05, "beta": 0.6, "q": 0.85}
    signal, noise = MODELS["theory"].columns(rates, steps.astype(float), shape, 1e-3)
    losses = 2.5 + 0.6 * signal + 200 * noise
    # The mean of the factor is 1.
    measured = losses * np.exp(0.2 * np.random.default_rng(0).standard_normal(20000) - 0.02)
    monitor = sgd.monitor(schedule, interval=2500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step, loss in zip(steps, measured, strict=True):
            monitor.update(step, loss)
    inside = [outlook.lower < losses[-1] < outlook.upper for outlook in monitor.outlooks]
    assert len(inside) == 6
    assert sum(inside) >= 5
    late = monitor.outlooks[-1]
    assert late.upper - late.lower < 0.2
    assert late.loss == pytest.approx(losses[-1], abs=0.05)


def test_arrays_grow_and_updates_are_cheap():
    curve = _GrowingCurve()
    assert curve.newest_step == 0.0
    for step in range(5000):
        curve.append(step, 2.0 * step)
    steps, losses = curve.after(100)
    np.testing.assert_array_equal(steps, np.arange(100, 5000))
    np.testing.assert_array_equal(losses, 2 * steps)
    monitor = sgd.monitor(sgd.schedules.constant(0.1, 100_000))
    start = time.process_time()
    train_quickly(monitor, 10_000)
    assert time.process_time() - start < 1.0
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        monitor = sgd.monitor(CONSTANT, interval=3000, curves=EARLIER[0])
        train_quickly(monitor)
    assert len(monitor.outlooks) == 1
    assert time.process_time() - start < 5.0  # one forecast, not one per step


class Writer:
    """The method of TensorBoard's SummaryWriter."""

    def __init__(self):
        self.records = []

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.records.append((tag, scalar_value, global_step))


class Run:
    """The method of a run of Weights & Biases."""

    def __init__(self):
        self.records = []

    def log(self, data, step=None, commit=None):
        self.records += [(name, value, step) for name, value in data.items()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "writer", "run"])
def test_predictions_are_logged(kind):
    records = []
    logger = {
        "function": lambda name, value, step: records.append((name, value, step)),
        "writer": Writer(),
        "run": Run(),
    }[kind]
    monitor = sgd.monitor(CONSTANT, interval=400, log=logger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        train_quickly(monitor)
    records = records if kind == "function" else logger.records
    expected = [
        record
        for outlook in monitor.outlooks
        for record in (
            ("forecast/final_loss", outlook.loss, outlook.step),
            ("forecast/lower", outlook.lower, outlook.step),
            ("forecast/upper", outlook.upper, outlook.step),
        )
    ]
    assert [outlook.step for outlook in monitor.outlooks] == [1000, 1400, 1800]
    assert records == expected


@pytest.fixture
def keras(monkeypatch):
    """A module with the base class of callbacks."""
    module = ModuleType("keras")
    module.callbacks = SimpleNamespace(Callback=type("Callback", (), {}))
    monkeypatch.setitem(sys.modules, "keras", module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_keras(keras, steps_per_execution):
    """Keras passes the mean over the epoch; the curve contains the losses of batches."""
    monitor = sgd.monitor(CONSTANT, interval=400)
    callback = monitor.keras_callback()
    assert isinstance(callback, keras.callbacks.Callback)
    losses = 2 + 3 * np.arange(1.0, 2001) ** -0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for epoch, batches in enumerate(losses.reshape(5, 400)):
            callback.on_epoch_begin(epoch)
            means = np.cumsum(batches) / np.arange(1, 401)
            for batch in range(steps_per_execution - 1, 400, steps_per_execution):
                callback.on_train_batch_end(batch, {"loss": np.float32(means[batch])})
    steps, recorded = monitor._points.after(0)
    np.testing.assert_array_equal(steps, np.arange(steps_per_execution, 2001, steps_per_execution))
    expected = losses.reshape(-1, steps_per_execution).mean(axis=1)
    np.testing.assert_allclose(recorded, expected, rtol=1e-4)
    assert monitor.outlooks[-1].loss == pytest.approx(2 + 3 * 3000**-0.5, abs=0.01)


@pytest.fixture
def transformers(monkeypatch):
    """A module with the base class of callbacks."""
    module = ModuleType("transformers")
    module.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


@pytest.mark.slow
def test_the_trainer_of_hugging_face(transformers):
    """The Trainer logs means over intervals, which are recorded in their middle."""
    monitor = sgd.monitor(CONSTANT, interval=400)
    callback = monitor.trainer_callback()
    assert isinstance(callback, transformers.TrainerCallback)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    callback.on_train_begin(None, state, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step in range(10, 2001, 10):
            state.global_step = step
            losses = 2 + 3 * np.arange(step - 9.0, step + 1) ** -0.5
            callback.on_log(None, state, None, logs={"loss": losses.mean(), "learning_rate": 0.1})
            callback.on_log(None, state, None, logs={"eval_loss": 5.0})
    callback.on_log(None, state, None, logs={"train_loss": 5.0})
    steps, recorded = monitor._points.after(0)
    np.testing.assert_array_equal(steps, np.arange(5.5, 2000, 10))
    np.testing.assert_allclose(recorded[10:], 2 + 3 * steps[10:] ** -0.5, rtol=1e-4)
    assert [outlook.step for outlook in monitor.outlooks] == [1010, 1410, 1810]
    assert monitor.outlooks[-1].loss == pytest.approx(2 + 3 * 3000**-0.5, abs=0.01)


def test_other_processes_and_resumed_trainings(transformers):
    monitor = sgd.monitor(CONSTANT)
    callback = monitor.trainer_callback()
    state = SimpleNamespace(global_step=500, is_world_process_zero=False)
    callback.on_train_begin(None, state, None)
    state.global_step = 510
    callback.on_log(None, state, None, logs={"loss": 2.0})
    assert monitor._points.count == 0
    state.is_world_process_zero = True
    callback.on_log(None, state, None, logs={"loss": 2.0})
    assert monitor._points.newest_step == 505.5


@pytest.mark.parametrize(
    ("method", "package"), [("keras_callback", "keras"), ("trainer_callback", "transformers")]
)
def test_a_missing_package_is_named(monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"not installed: pip install {package}"):
        getattr(sgd.monitor(CONSTANT), method)()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps = 0: give a number above 0"),
        ({"steps": 1e6, "schedule": ([0.0, 10.0], [0.1, 0.1])}, "the schedule ends at step 10"),
        ({"schedule": sgd.schedules.cosine(0.1, alpha=10.0)}, "this schedule counts samples/d"),
        ({"schedule": lambda step: 0.1}, "a function of the step has no length. Set steps"),
        ({"schedule": lambda step: 1 / 0, "steps": 100}, "the function of the step raises ZeroDiv"),
        ({"interval": 0}, "interval = 0: give a whole number, 1 or more"),
        ({"model": "teory"}, "did you mean 'theory6'|did you mean 'theory'"),
        ({"level": 1.0}, "level = 1.0: give a probability below 1"),
        ({"log": 3}, "log = 3: give a function log"),
        ({"curves": "missing.csv"}, "no such file"),
        ({"curves": None}, "give a CSV file, a table"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        sgd.monitor(**{"schedule": CONSTANT, **arguments})


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), np.float32("nan")])
def test_a_divergence_is_named_with_its_step(loss):
    monitor = sgd.monitor(CONSTANT)
    monitor.update(11, 3.0)
    with pytest.raises(ValueError, match="training has diverged at step 12"):
        monitor.update(12, loss)
    assert monitor._points.count == 1


def test_bad_points():
    monitor = sgd.monitor(CONSTANT)
    monitor.update(11, np.array(3.0))
    for step in (5, 11):
        with pytest.raises(ValueError, match="the newest point is at step 11"):
            monitor.update(step, 3.0)
    for step in (-1, 12.5, "a", None):
        with pytest.raises(ValueError, match="step = "):
            monitor.update(step, 3.0)
    for loss in (-1.0, 0.0, "3", None, [3.0], True):
        with pytest.raises(ValueError, match="loss = "):
            monitor.update(12, loss)
    assert monitor._points.count == 1
    for method in (monitor.predict, monitor.plot):
        with pytest.raises(ValueError, match="there is no forecast yet: the curve has 0 points"):
            method()
    assert "no forecast yet" in repr(monitor)


def test_a_rising_loss_and_a_longer_run_give_one_warning_each():
    monitor = sgd.monitor(CONSTANT, interval=200)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        outlooks = [monitor.update(step, 2 + step / 1000) for step in range(1, 3101)]
    assert set(outlooks) == {None}
    texts = [str(warning.message) for warning in record]
    assert len(texts) == 2
    assert "there is no forecast at step 1000" in texts[0]
    assert "the schedule ends at step 3000" in texts[1]
    # Warnings point to the line of the training loop.
    assert {warning.filename for warning in record} == {__file__}


def test_noise_of_single_batches_is_no_divergence():
    """The last of 30 losses with 40% noise may be far above the lowest one."""
    rng = np.random.default_rng(3)
    steps = np.arange(100.0, 3100.0, 100.0)
    noisy = (2 + 3 * steps**-0.5) * np.exp(0.4 * rng.standard_normal(30))
    noisy[-1] = 1.5 * noisy[8:].mean()
    fit = sgd.forecast((steps, np.full(30, 0.1), noisy), warn=False)
    assert np.isfinite(fit.parameters["floor"])
    with pytest.raises(ValueError, match="seems to diverge"):
        sgd.forecast((steps, np.full(30, 0.1), np.where(steps > 2500, 9.0, 2.0)), warn=False)


def test_a_decay_has_no_band_if_no_measured_rate_falls():
    steps = np.arange(100.0, 8000.0, 50.0)
    measured = (steps, np.full(len(steps), 0.1), 2 + 3 * steps**-0.5)
    fit = sgd.forecast(measured, warn=False)
    with pytest.warns(UserWarning, match="the effect of a decay is unknown"):
        decay = fit.predict(sgd.schedules.wsd(0.1, 8000, final=0.5))
    assert np.all(np.isnan(decay["lower"]))
    nearly_constant = fit.predict(sgd.schedules.wsd(0.1, 8000, final=0.95))
    assert np.all(np.isfinite(nearly_constant["lower"]))


def test_a_training_in_torch():
    """A network with one hidden layer and a cosine: the loss at the end from half of the run."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    steps = 3000
    teacher = torch.randn(20, 1) / 20**0.5
    network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    writer = Writer()
    monitor = sgd.monitor(sgd.schedules.cosine(0.05, steps), interval=250, log=writer)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step in range(1, steps + 1):
            x = torch.randn(64, 20)
            y = torch.tanh(2 * x @ teacher) + 0.5 * torch.randn(64, 1)
            loss = torch.nn.functional.mse_loss(network(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            monitor.update(step, loss)
            losses.append(loss.item())
    final = float(np.mean(losses[-200:]))
    half = next(outlook for outlook in monitor.outlooks if outlook.step >= steps / 2)
    assert half.loss == pytest.approx(final, rel=0.15)
    assert len(writer.records) == 3 * len(monitor.outlooks)
    with pytest.raises(ValueError, match="training has diverged at step 3001"):
        monitor.update(steps + 1, torch.tensor(float("nan")))
