"""Forecasts of training runs: held-out schedules of real runs, exact recursions, and bad data."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sgdynamics as sgd
from sgdynamics.scaling.forecast.fitting import FittedModel, fit_model
from sgdynamics.scaling.forecast.loss_curves import read_curves
from sgdynamics.scaling.forecast.models import MODELS
from sgdynamics.scaling.forecast.optimal import _final_loss
from sgdynamics.scaling.forecast.rates import read_schedule

CURVES = Path(__file__).parents[2] / "examples/loss_curves"
LLAMA = (
    "cosine_24000",
    "constant_24000",
    "wsdcon_9",
    "wsd_20000_24000",
    "wsdld_20000_24000",
    "wsdcon_3",
    "wsdcon_18",
)


def held_out_errors(fit, curves):
    """Mean absolute error, and share of points in the band, of each curve after its start."""
    errors, inside = [], []
    for curve in curves:
        steps, losses = curve.after(0.06)
        prediction = fit.predict(curve.rates, steps)
        errors.append(np.abs(prediction["loss"].values - losses).mean())
        covered = (prediction["lower"].values <= losses) & (losses <= prediction["upper"].values)
        inside.append(covered.mean())
    return np.array(errors), np.array(inside)


def llama(size, names):
    return [str(CURVES / f"{size}_{name}.csv") for name in names]


def runs_124m():
    """The runs of the 124M model as tables; resumed runs start with the constant one."""
    table = pd.read_csv(CURVES / "124M_lr0.001.csv")
    runs = {str(name): rows.drop(columns="run") for name, rows in table.groupby("run", sort=False)}
    constant = runs["const_T50000"]
    for name, rows in runs.items():
        if rows.step.iloc[0] > 0:
            before = constant[constant.step < rows.step.iloc[0]]
            runs[name] = pd.concat([before, rows])
    return runs


# Fitted curves, and the largest mean absolute error on the others: 1.15 times that of the
# prototype whose errors the documentation reports, on all curves of the sources.
@pytest.mark.parametrize(
    ("size", "fitted", "largest"),
    [
        ("25M", LLAMA[:3], 0.0039),
        ("100M", LLAMA[:3], 0.0030),
        ("25M", LLAMA[:2], 0.0076),
        ("100M", LLAMA[:1], 0.0067),
    ],
)
def test_held_out_schedules_of_language_models(size, fitted, largest):
    fit = sgd.forecast(llama(size, fitted), warn=False)
    others = read_curves(llama(size, [name for name in LLAMA if name not in fitted]), None, 0.06)
    errors, inside = held_out_errors(fit, others)
    assert errors.mean() < largest
    assert inside.mean() > 0.85


def test_other_runs_of_a_124m_model():
    """Constant to step 25000 and one cosine predict cosines and decays of other lengths."""
    runs = runs_124m()
    constant = runs["const_T50000"]
    short = constant[constant.step <= 25000]
    fit = sgd.forecast([short, runs["cos0_T25000"]], warn=False)
    names = [name for name in runs if name not in ("const_T50000", "cos0_T25000")]
    errors, inside = held_out_errors(fit, read_curves([runs[name] for name in names], None, 0.06))
    assert errors.mean() < 0.0056
    assert inside.mean() > 0.85


def test_synthetic_curves_of_the_exact_recursion():
    """l_j = j^-2: the loss of another schedule to 1e-3, alpha to .1 and beta to .17."""
    names = ("cosine", "constant", "step")
    fit = sgd.forecast(
        [str(CURVES / f"synthetic_a2.0_{name}.csv") for name in names], skip=0.02, warn=False
    )
    (wsd,) = read_curves(str(CURVES / "synthetic_a2.0_wsd.csv"), None, 0.02)
    steps, losses = wsd.after(0.02)
    predicted = fit.predict(wsd.rates, steps)["loss"].values
    assert np.max(np.abs(predicted / losses - 1)) < 1e-3
    assert fit.parameters["floor"] == pytest.approx(2.0, abs=0.01)
    assert fit.parameters["alpha"] == pytest.approx(0.75, abs=0.1)
    assert fit.parameters["beta"] == pytest.approx(0.5, abs=0.17)


def test_parameters_of_the_model_are_recovered_from_its_own_data():
    rng = np.random.default_rng(0)
    truth = {"alpha": 0.5, "tau": 0.05, "beta": 0.6, "q": 0.85}
    schedules = [
        sgd.schedules.cosine(1e-3, 20000, warmup=500),
        sgd.schedules.constant(1e-3, 20000, warmup=500),
        sgd.schedules.wsd(1e-3, 12000, warmup=500, decay=0.1),
    ]
    curves = []
    for schedule in schedules:
        rates = read_schedule("schedule", schedule, None).coarsen(1000)
        steps = np.arange(100.0, rates.length, 100.0)
        signal, noise = MODELS["theory"].columns(rates, steps, truth, 1e-3)
        losses = 2.5 + 0.6 * signal + 200 * noise
        curves.append((steps, losses * np.exp(1e-4 * rng.standard_normal(len(steps)))))
    fit = sgd.forecast(curves, schedule=schedules)
    for name, value in {"floor": 2.5, "A": 0.6, **truth}.items():
        tolerance = 5 * fit.errors[name] + 0.05 * value
        assert fit.parameters[name] == pytest.approx(value, abs=tolerance), name
    assert fit.residual < 5e-4


def test_columns_of_the_theory_are_sums_over_single_steps():
    schedule = sgd.schedules.wsd(2e-3, 3000, decay=0.3, warmup=200)
    shape, reference = {"alpha": 0.4, "tau": 0.03, "beta": 0.55, "q": 0.8}, 2e-3
    steps = np.array([500.0, 1500.0, 2500.0, 3000.0])
    rates = read_schedule("schedule", schedule, None).coarsen()
    signal, noise = MODELS["theory"].columns(rates, steps, shape, reference)
    level = np.array([float(schedule(step)) for step in np.arange(3000) + 0.5]) ** 0.8
    level *= reference**0.2
    sums = np.cumsum(level)
    changes = np.diff(level, prepend=0.0)
    for index, step in enumerate(steps.astype(int)):
        elapsed = sums[step - 1] - np.concatenate([[0.0], sums[: step - 1]])
        forgotten = 1 - (1 + elapsed / shape["tau"]) ** -shape["beta"]
        assert noise[index] == pytest.approx(np.sum(changes[:step] * forgotten), rel=5e-3)
        assert signal[index] == pytest.approx(sums[step - 1] ** -0.4, rel=2e-3)


@pytest.fixture(scope="module")
def fit() -> sgd.Forecast:
    return sgd.forecast(llama("25M", LLAMA[:3]), warn=False)


def test_the_best_schedule(fit):
    best = fit.optimal_schedule(24000, warmup=2160)
    alternatives = [
        sgd.schedules.cosine(3e-4, 24000, warmup=2160),
        *(sgd.schedules.wsd(3e-4, 24000, warmup=2160, decay=share) for share in (0.1, 0.2, 0.4)),
    ]
    ends = [float(fit.predict(schedule)["loss"][-1]) for schedule in alternatives]
    assert best.loss <= min(ends) + 1e-4
    assert best.gain == pytest.approx(ends[0] - best.loss, abs=1e-4)
    assert best.gain_lower < best.gain < best.gain_upper
    assert best.lower < best.loss < best.upper
    # The published optimum of this model: constant, then a decay over the last sixth.
    assert 0.75 < best.decay_start < 0.92
    assert best.loss == pytest.approx(3.2638, abs=0.005)


def test_the_gradient_of_the_final_loss(fit):
    rng = np.random.default_rng(1)
    levels, parameters = rng.uniform(1e-4, 3e-4, 50), fit.parameters
    loss, gradient = _final_loss(levels, parameters, 300.0, 0.2)
    for index in (0, 17, 49):
        shift = np.zeros(50)
        shift[index] = 1e-9
        after, _ = _final_loss(levels + shift, parameters, 300.0, 0.2)
        before, _ = _final_loss(levels - shift, parameters, 300.0, 0.2)
        assert gradient[index] == pytest.approx((after - before) / 2e-9, rel=1e-4)
    assert np.isfinite(loss)


@pytest.mark.slow
def test_models_are_compared_on_curves_that_are_left_out(fit):
    table = fit.compare()
    assert table["model"].values.tolist() == ["theory", "theory6", "multi_power", "annealing"]
    assert np.all(table["fitted"] < 0.005)
    assert np.all(table["left_out"] > table["fitted"])


def test_predictions_and_their_limits(fit):
    prediction = fit.predict(sgd.schedules.cosine(3e-4, 50000, warmup=2160))
    assert prediction.sizes["step"] == 200
    assert np.all(prediction["lower"] < prediction["loss"])
    steps = np.array([5000.0, 24000.0])
    as_arrays = fit.predict((np.array([0.0, 2160.0, 24000.0]), np.array([0.0, 3e-4, 3e-4])), steps)
    as_function = fit.predict(lambda step: 3e-4 * min(step / 2160, 1), steps=24000)
    np.testing.assert_allclose(as_function.interp(step=steps)["loss"], as_arrays["loss"], rtol=2e-4)
    with pytest.warns(UserWarning, match="outside of the measured range"):
        other = fit.predict(sgd.schedules.constant(6e-4, 20000))
    assert np.all(np.isnan(other["lower"]))
    with pytest.raises(ValueError, match=r"steps = 100000.0: the longest measured run has 2\d+"):
        fit.predict(sgd.schedules.constant(3e-4, 100_000))
    with pytest.raises(ValueError, match=r"peak = 0.001: measured peaks are from 0.0003 to"):
        fit.optimal_schedule(20000, 1e-3)
    with pytest.raises(ValueError, match="this schedule counts samples/d"):
        fit.predict(sgd.schedules.cosine(3e-4, alpha=20.0))
    assert "floor" in fit.summary()
    assert "<img" in fit._repr_html_()
    fig, ax = fit.plot(prediction)
    assert len(ax.lines) == 7
    assert fig is ax.figure


def test_no_band_of_a_gain_if_no_measured_rate_falls():
    fit = sgd.forecast(llama("25M", ["constant_24000"]), warn=False)
    best = fit.optimal_schedule(24000, warmup=2160)
    assert np.isfinite(best.gain)
    assert np.all(np.isnan([best.gain_lower, best.gain_upper]))


def test_the_schedule_of_a_curve_may_be_a_function():
    by_number = sgd.forecast((STEPS, RATES, LOSSES), warn=False)
    by_function = sgd.forecast((STEPS, LOSSES), schedule=lambda step: 1e-3, warn=False)
    assert by_function.parameters["floor"] == pytest.approx(by_number.parameters["floor"], rel=1e-3)


def test_the_fit_is_fast():
    """Three curves below 5 s (asked of an idle machine), a prediction below .1 s."""
    curves = read_curves(llama("25M", LLAMA[:3]), None, 0.06)
    points = tuple(curve.fit_points(0.06) for curve in curves)
    start = time.process_time()
    models = [fit_model(model, points, 0.01)[0] for model in MODELS.values()]
    assert time.process_time() - start < 5
    rates = curves[0].rates.coarsen()
    start = time.process_time()
    assert isinstance(models[0], FittedModel)
    models[0].loss(rates, np.linspace(1000, 24000, 200))
    assert time.process_time() - start < 0.1


@pytest.mark.slow
def test_a_million_rows_are_read_in_seconds(tmp_path):
    steps = np.arange(1_000_000)
    losses = 2 + (1 + steps) ** -0.3 + 0.05 * np.random.default_rng(0).standard_normal(1_000_000)
    path = tmp_path / "long.csv"
    pd.DataFrame({"step": steps, "lr": 1e-3, "loss": losses}).to_csv(path, index=False)
    start = time.process_time()
    (curve,) = read_curves(str(path), None, 0.06)
    points = curve.fit_points(0.06)
    assert time.process_time() - start < 5
    assert len(points.steps) == 70
    # Points are means of many rows, so that noise of single batches is averaged.
    expected = 2 + (1 + points.steps) ** -0.3
    assert np.max(np.abs(points.losses - expected)) < 5 * 0.05 / np.sqrt(13000)


STEPS = np.arange(100.0, 5000.0, 50.0)
LOSSES = 2 + 3 * STEPS**-0.5
RATES = np.full(len(STEPS), 1e-3)


def with_value(values, index, value):
    values = values.copy()
    values[index] = value
    return values


@pytest.mark.parametrize(
    ("curves", "arguments", "message"),
    [
        ((STEPS, RATES, with_value(LOSSES, 60, np.nan)), {}, "its loss at step 3100 is nan"),
        ((STEPS, RATES, with_value(LOSSES, 60, -1.0)), {}, "its loss at step 3100 is -1"),
        ((STEPS, RATES, np.where(STEPS > 4000, 9.0, LOSSES)), {}, "seems to diverge"),
        ((STEPS[:15], RATES[:15], LOSSES[:15]), {}, "At least 20 are needed"),
        ((STEPS[::-1], RATES, LOSSES), {}, "its steps decrease at row 2"),
        ((STEPS, with_value(RATES, 3, -1e-3), LOSSES), {}, "its lr at step 250 is -0.001"),
        ((STEPS, 0 * RATES, LOSSES), {}, "its lr is 0 in all rows"),
        ((STEPS, LOSSES), {}, "it has no column lr. Set schedule="),
        ((STEPS + 20000, RATES, LOSSES), {}, "its learning rate before is unknown"),
        ({"tokens": STEPS, "loss": LOSSES, "lr": RATES}, {}, "it has no column step"),
        ("missing.csv", {}, "no such file"),
        ([], {}, "give at least one loss curve"),
        ([(STEPS, RATES, LOSSES), (STEPS, RATES, 1.4427 * LOSSES)], {}, "in nats or in bits"),
        ([(STEPS, RATES, LOSSES), (1e6 * STEPS, RATES, LOSSES)], {}, "not in tokens"),
        ((STEPS, RATES, LOSSES), {"model": "linear"}, "model = 'linear'"),
        ((STEPS, RATES, LOSSES), {"level": 1.5}, "level = 1.5"),
        ((STEPS, RATES, LOSSES), {"skip": 2}, "skip = 2"),
        (
            [(STEPS, LOSSES), (STEPS, LOSSES)],
            {"schedule": [lambda step: 1e-3]},
            "there are 2 curves",
        ),
    ],
)
def test_bad_curves(curves, arguments, message):
    with pytest.raises(ValueError, match=message):
        sgd.forecast(curves, **arguments)


def test_repeated_steps_and_a_missing_decay_are_reported():
    steps = np.sort(np.concatenate([STEPS, STEPS[40:45]]))
    curve = (steps, np.full(len(steps), 1e-3), 2 + 3 * steps**-0.5)
    with pytest.warns(UserWarning, match="repeat|fast decay") as record:
        fit = sgd.forecast(curve)
    texts = " ".join(str(warning.message) for warning in record)
    assert "5 rows repeat the step before them" in texts
    assert "no curve has a fast decay" in texts
    assert len(fit.warnings) == 2


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    from sgdynamics.cli.main import app

    arguments = ["forecast", *llama("25M", LLAMA[:3]), "--json", "--out", str(tmp_path)]
    arguments += ["--schedule", "wsd:steps=24000,peak=3e-4,decay=0.2", "--optimal", "24000"]
    with pytest.raises(SystemExit) as exit_info:
        app(arguments)
    assert exit_info.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["predictions"][0]["loss"] == pytest.approx(3.27, abs=0.01)
    assert answer["optimal"]["gain"] > 0
    assert (tmp_path / "forecast.png").stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "forecast.csv")
    assert set(table["schedule"]) == {"wsd:steps=24000,peak=3e-4,decay=0.2", "best schedule"}
    for text, message in (
        ("wsd:steps=24000", "peak must be given"),
        ("wsd:steps=2,peak=1,decy=3", "no 'decy': did you mean 'decay'"),
        ("sawtooth:steps=2", "write one of constant, cosine"),
        ("wsd:steps=a,peak=1", "'a' is not a number"),
        ("wsd:steps", "'steps' is not key=value"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            app(["forecast", *llama("25M", LLAMA[:1]), "--schedule", text])
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err
