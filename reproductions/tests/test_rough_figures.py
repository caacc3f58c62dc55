"""Figures of phase retrieval on a fixed data set: drawing, files and measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.conftest import Z

import sgdynamics as sgd
from sgdynamics.papers import rough_landscapes as paper
from sgdynamics_reproductions import rough_landscapes as document
from sgdynamics_reproductions.gallery import stored_data
from sgdynamics_reproductions.rough_landscapes import (
    appendix_figures,
    main_figures,
    noise_figures,
    pictures,
    random_start_figure,
    style,
)


def draw_and_reload(name, tmp_path):
    """Draw a quick figure, save its data, and check that the file contains the same data."""
    fig, data = getattr(document, name)(quick=True)
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    xr.testing.assert_identical(sgd.load(sgd.save(data, tmp_path / "data.nc")), data)
    assert data.attrs["claim"]
    assert data.attrs["verdict"]
    return data


# measurements of the figures


def test_log_times_are_on_the_grid_of_every_learning_rate():
    t = style.log_times(40.0, 30)
    assert t[0] == 0
    assert t[-1] == pytest.approx(40.0)
    assert np.all(np.diff(t) > 0)
    for eta in (0.01, 0.005, 0.0025, 0.001):
        np.testing.assert_allclose(t / eta, np.round(t / eta), atol=1e-6)


def test_average_leaves_exploded_runs_out():
    mean, error = style.average(
        xr.DataArray([[1.0, 2.0], [3.0, math.nan], [5.0, 4.0]], dims=("run", "time"))
    )
    np.testing.assert_allclose(mean, [3.0, 3.0])
    np.testing.assert_allclose(error, [2 / math.sqrt(3), math.sqrt(2) / math.sqrt(2)])


def test_measured_error_is_the_formula_within_its_error():
    m, q = np.array([[0.2, -0.9], [0.7, 0.0]]), np.array([[1.0, 1.3], [0.6, 0.4]])
    measured = appendix_figures.measured_error(m, q, seed=1, samples=40_000)
    np.testing.assert_allclose(
        measured, paper.generalization_error(q, 1.0, m), atol=Z * 1.5 / math.sqrt(40_000)
    )


def test_plateau_share_counts_quiet_times_of_runs_that_have_not_recovered():
    t = np.linspace(0, 10, 101)
    stuck, moving, done = np.full_like(t, 0.5), 0.05 * t, np.ones_like(t)
    assert style.plateau_share(t, np.stack([stuck, done])) == 1.0
    assert style.plateau_share(t, moving[None]) == 0.0
    assert style.plateau_share(t, np.stack([stuck, moving])) == 0.5
    assert style.plateau_share(t, done[None]) == 0.0


def test_crossing_is_the_first_time_above():
    assert style.crossing(np.arange(4.0), np.array([0.0, 0.6, 0.4, 0.9]), 0.5) == 1.0
    assert math.isnan(style.crossing(np.arange(2.0), np.zeros(2), 0.5))


@pytest.mark.parametrize("number", ["1", "2", "3", "4", "5", "6", "7", "b1", "b2", "b3", "b4"])
def test_figures_refuse_a_seed_that_is_none(number):
    with pytest.raises(ValueError, match="seed"):
        getattr(document, f"figure_{number}")(quick=True, seed=-1)


def artificial_runs(setting, t, dimension, seed, runs=None, shared_data=False):
    """Artificial runs, for tests of what a figure does with runs at full size."""
    random, count = np.random.default_rng(seed), min(runs or setting.start.runs, 20)
    m = np.linspace(0.2, 1, len(t)) * random.uniform(0.5, 1, (count, 1))
    variables = {"m": m, "q": 1 + 0.3 * m, "loss": np.exp(-20 * m)}
    return xr.Dataset(
        {name: (("run", "time"), value) for name, value in variables.items()}, {"t": ("time", t)}
    )


def lines_of(fig):
    return [np.asarray(line.get_xydata()) for ax in fig.axes for line in ax.lines]


def words_of(fig):
    legends = [
        *fig.legends,
        *(legend_or_none for ax in fig.axes if (legend_or_none := ax.get_legend())),
    ]
    labels = [
        label for ax in fig.axes for label in (ax.get_title(), ax.get_xlabel(), ax.get_ylabel())
    ]
    return (
        fig.get_suptitle(),
        labels,
        [text.get_text() for legend in legends for text in legend.get_texts()],
    )


def artificial_theory(setting, t, paths, seed):
    m = np.linspace(0.2, 0.9, len(t))
    return xr.Dataset(
        {name: ("time", m) for name in ("m", "m_error", "loss", "loss_error")}, {"t": ("time", t)}
    )


# statements of the captions: N, last times, runs, number of curves of runs, learning rates
FULL_SIZE = {
    "1": ({1000}, {10.0}, {100, 40}, 6, {0.01}),
    "2": ({1000}, {1000.0}, {500}, 3, {0.01}),
    "3": ({1000}, {1000.0}, {50}, 3, {0.01}),
    "4": ({1000}, {1000.0, 10.0}, {250, 100}, 34, {0.01, 0.005, 0.0025, 0.001}),
    "5": ({1000}, {10.0}, {1000}, 1, {0.01}),
    "6": ({1000}, {10.0}, {1000}, 1, {0.01}),
    "7": ({100, 250, 500, 1000, 2500}, {10_000.0, 1000.0}, {200, 20}, 15, {0.01, 0.005}),
    "b1": ({1000}, {1000.0}, {250}, 24, {0.01}),  # batches of 250: two of GD and SGD, four of p-SGD
    "b2": ({1000}, {1000.0}, {250}, 6, {0.01}),
    "b3": ({1000}, {30.0}, {250}, 12, {0.01, 0.001, 0.0005, 0.0001}),
    "b4": ({1000}, {1000.0}, {50}, 4, {0.01}),
}
STORED = stored_data.FOLDER


@pytest.mark.parametrize("number", FULL_SIZE)
def test_full_size_asks_for_what_the_caption_states(number, monkeypatch, tmp_path):
    """Figures at full size request the parameters of the paper, and store and draw all results.

    Artificial runs replace the hours of simulation.
    """
    requests, results = [], []

    def record_request(setting, t, dimension, seed, runs=None, shared_data=False):
        requests.append(
            (
                dimension,
                float(t[-1]),
                runs or setting.start.runs,
                setting.algorithm.lr * 2 / setting.algorithm.samples_per_dimension,
            )
        )
        results.append(
            artificial_runs(setting, t, dimension, seed + len(results), runs, shared_data)
        )
        return results[-1]

    for module in (main_figures, noise_figures, appendix_figures, random_start_figure):
        monkeypatch.setattr(module, "runs_of", record_request)
        monkeypatch.setattr(module, "theory_of", artificial_theory, raising=False)
    monkeypatch.setattr(appendix_figures, "TEST_SAMPLES", 10)
    fig, data = getattr(document, f"figure_{number}")()
    sizes, ends, runs, curves, rates = FULL_SIZE[number]
    assert {request[0] for request in requests} == sizes
    assert {request[1] for request in requests} == ends
    assert {request[2] for request in requests} == runs
    assert len(requests) == curves
    assert {round(request[3], 9) for request in requests} == rates
    # The data contain each set of runs by its mean, its median or its single runs. Exceptions: of
    # runs that may diverge they contain only the share, and of batches the error of each run.
    stored_numbers = np.unique(
        np.concatenate(
            [np.ravel(np.asarray(value, dtype=float)) for value in data.data_vars.values()]
        )
    )
    drawn_results = [result for result in results if number != "4" or float(result.t[-1]) == 1000.0]
    for result in drawn_results:
        ends = result.m.values[:, -1]
        shown = (
            (ends.mean(), np.median(ends), ends[0])
            if number != "b1"
            else paper.generalization_error(result.q.values, 1.0, result.m.values)[:, -1]
        )
        is_stored = [np.isclose(stored_numbers, end, rtol=1e-12, atol=1e-15).any() for end in shown]
        assert all(is_stored) if number == "b1" else any(is_stored)
    assert sum(len(ax.lines) for ax in fig.axes) >= len(drawn_results)
    loaded = sgd.load(sgd.save(data, tmp_path / "data.nc"))
    xr.testing.assert_identical(loaded, data)
    # The file alone gives the same picture, because data from a GPU are stored.
    redrawn = stored_data.drawing_of(f"rough_landscapes-{number}")(loaded)
    assert words_of(redrawn) == words_of(fig)
    for redrawn_line, line in zip(lines_of(redrawn), lines_of(fig), strict=True):
        np.testing.assert_array_equal(redrawn_line, line)
    # The stored data at full size, where they exist, have these parameters.
    path = STORED / f"rough_landscapes-{number}.nc"
    if path.exists() and number != "2":  # figure 2 is stored run by run, in groups
        stored = sgd.load(path)
        same = {"alpha", "eta", "m0", "l", "tau", "T", "N", "runs", "paths"} & set(data.attrs)
        assert {name: stored.attrs[name] for name in same} == {
            name: data.attrs[name] for name in same
        }
        assert "runs" in same
        assert "eta" in same or number in (
            "4",
            "b3",
        )  # these have several, whose curves the data name
        assert set(stored.data_vars) <= set(data.data_vars)
        np.testing.assert_allclose(stored.t, data.t)


def ridge_of(monkeypatch, batches, rescale=True):
    """Errors with a ridge from artificial runs, and the requested settings.

    One run in the second batch of p-SGD diverges.
    """
    requests = {}

    def record_request(setting, t, dimension, seed):
        name = type(setting.algorithm).__name__
        requests.setdefault(name, []).append((seed, setting.start.M_blocks.ravel()))
        result = artificial_runs(setting, t, dimension, [seed, len(name)])
        if name == "PersistentSGD" and len(requests[name]) == 2:
            result["m"][1, 3:] = result["q"][1, 3:] = math.nan
        return result.astype(np.float32)

    monkeypatch.setattr(appendix_figures, "runs_of", record_request)
    monkeypatch.setattr(appendix_figures, "TEST_SAMPLES", 20)
    return appendix_figures._ridge(
        50, 4, style.log_times(10.0, 5), 0.1, rescale, 7, batches
    ), requests


def test_batches_of_runs_come_after_the_first_which_stays_what_it_is(monkeypatch):
    single, first = ridge_of(monkeypatch, appendix_figures.SINGLE_BATCH)
    data, requests = ridge_of(monkeypatch, {"GD": 2, "SGD": 2, "p-SGD": 4})
    xr.testing.assert_identical(
        data[["mse_run", "mse_own"]].isel(run=slice(0, 4)), single[["mse_run", "mse_own"]]
    )
    assert [len(batches) for batches in requests.values()] == [2, 2, 4]
    for name, batches in requests.items():
        seeds, starts = zip(*batches, strict=True)
        assert seeds[0] == first[name][0][0]
        np.testing.assert_array_equal(starts[0], first[name][0][1])
        # Batches are paired with those of p-SGD, and no start occurs twice.
        for (seed, start), (paired_seed, paired_start) in zip(
            batches, requests["PersistentSGD"], strict=False
        ):
            assert seed == paired_seed
            np.testing.assert_array_equal(start, paired_start)
        assert len(np.unique(np.concatenate(starts))) == 4 * len(batches)
    # No seed is used twice. The seed of a start is one below that of its runs, and the seeds of
    # fresh samples are at least 100 above that of the figure.
    used = [7 + 100 + 3 + number for number in range(3)] + [
        seed - less for seed, _ in requests["PersistentSGD"] for less in (0, 1)
    ]
    assert len(set(used)) == len(used)


def test_means_are_over_the_runs_that_an_algorithm_has(monkeypatch):
    data, _ = ridge_of(monkeypatch, {"GD": 2, "SGD": 2, "p-SGD": 4})
    is_finite = np.isfinite(data["mse_own"])
    np.testing.assert_array_equal(is_finite.isel(time=0).sum("run"), [8, 8, 16])
    np.testing.assert_array_equal(
        is_finite.isel(time=-1).sum("run"), [8, 8, 15]
    )  # one has exploded
    np.testing.assert_array_equal(is_finite, np.isfinite(data["mse_run"]))
    for name, single_runs in (("mse", "mse_run"), ("mse_formula_runs", "mse_own")):
        for number, count in enumerate((8, 8, 16)):
            np.testing.assert_allclose(
                data[name][number], np.nanmean(data[single_runs].values[number, :count], axis=0)
            )
    runs = is_finite.sum("run").values
    np.testing.assert_allclose(
        data["mse_error"], np.nanstd(data["mse_run"], axis=1, ddof=1) / np.sqrt(runs)
    )


def hidden_points(fig):
    """Count the points of curves and error bars of each panel that its inset and labels hide."""
    FigureCanvasAgg(fig).draw()
    for ax in fig.axes:
        [inset] = ax.child_axes
        box = inset.get_tightbbox()
        curves = [line.get_xydata() for line in ax.lines] + [
            curve for bars in ax.collections for curve in bars.get_segments()
        ]
        points = [ax.transData.transform(np.asarray(curve)) for curve in curves]
        between = np.linspace(0, 1, 20)[:, None, None]
        all_points = np.concatenate(
            [
                (line[:-1] + between * (line[1:] - line[:-1])).reshape(-1, 2)
                for line in points
                if len(line) > 1
            ]
        )
        assert len(all_points) > 1000
        yield int(np.sum([box.contains(*point) for point in all_points]))


# errors of figure B.1 at N = 1000 at t = .01, .1, 1, 10, 30, 100, 1000: one block per ridge, one
# row per algorithm
B1 = [
    [
        [0.72, 0.59, 0.51, 0.54, 0.54, 0.53, 0.53],
        [0.72, 0.59, 0.51, 0.52, 0.52, 0.5, 0.49],
        [0.72, 0.62, 0.63, 0.66, 0.57, 0.36, 0.07],
    ],
    [
        [0.72, 0.59, 0.49, 0.48, 0.47, 0.45, 0.45],
        [0.72, 0.59, 0.49, 0.46, 0.44, 0.41, 0.4],
        [0.72, 0.62, 0.61, 0.58, 0.41, 0.17, 0.02],
    ],
    [
        [0.72, 0.58, 0.39, 0.21, 0.18, 0.17, 0.17],
        [0.72, 0.58, 0.38, 0.19, 0.15, 0.14, 0.13],
        [0.72, 0.6, 0.52, 0.26, 0.14, 0.12, 0.12],
    ],
]


def ridge_curves():
    """Data of figure B.1 with these errors."""
    t, logs, dims = (
        style.log_times(1000.0, 40),
        np.log([0.01, 0.1, 1, 10, 30, 100, 1000]),
        ("ridge", "algorithm", "time"),
    )
    mse = np.array([[np.interp(np.log(t + 0.01), logs, row) for row in block] for block in B1])
    variables = {name: (dims, mse) for name in ("mse", "mse_formula", "mse_formula_runs")}
    variables |= {
        "mse_error": (dims, 0.015 + 0 * mse),
        "loss": (dims, mse**2),
        "loss_error": (dims, 0.01 * mse),
    }
    attrs = {"eta": 0.01, "N": 1000, "runs": 500, "runs_persistent": 1000}
    return xr.Dataset(
        variables,
        {"t": ("time", t), "ridge": [0.0, 0.1, 1.0], "algorithm": list(style.ALGORITHMS)},
        attrs,
    )


def test_double_descent_at_a_small_ridge_is_of_average_overlaps():
    """Double descent of (B.8) at N = 1000.

    At lambda = 0 it occurs at the overlaps of single runs and at their averages, at lambda = 0.1
    only at the averages.
    """
    stored = sgd.load(STORED / "rough_landscapes-b1.nc")

    def rise(name, ridge):
        curves = stored[name].sel(ridge=ridge).transpose("algorithm", "time").values
        return float(np.max(curves - np.minimum.accumulate(curves, axis=1)))

    assert rise("mse_formula", 0.0) > rise("mse_formula_runs", 0.0) > 0.03
    assert rise("mse_formula", 0.1) > 0.01 > 0.002 > rise("mse_formula_runs", 0.1)
    assert float(np.abs(stored["mse"] - stored["mse_formula_runs"]).max()) < 0.004
    assert float((stored["mse_formula"] - stored["mse"]).max()) > 0.07


def test_time_to_recover_grows_like_a_power_of_N():
    """The powers of the errata at full size, with bootstrap errors.

    A growth like log N has the power 0.17 between these N.
    """
    stored = sgd.load(STORED / "rough_landscapes-7.nc")
    N, runs, rng = stored.N.values, stored.runs_size.values, np.random.default_rng(0)
    assert N.tolist() == [100, 250, 500, 1000, 2500]
    log_like = np.polyfit(np.log(N), np.log(np.log(N)), 1, w=np.sqrt(runs))[0]
    assert log_like == pytest.approx(0.17, abs=0.01)
    for number, (power, error, errors_off) in enumerate([(0.88, 0.09, 5.0), (0.67, 0.13, 3.5)]):
        times = [
            np.nan_to_num(run_times[:k], nan=1e9)
            for run_times, k in zip(stored.time_rate.values[number], runs, strict=True)
        ]
        draw_and_reload = [
            [np.median(rng.choice(run_times, len(run_times))) for run_times in times]
            for _ in range(1000)
        ]
        powers = np.polyfit(np.log(N), np.log(draw_and_reload).T, 1, w=np.sqrt(runs))[0]
        assert powers.mean() == pytest.approx(power, abs=0.02)
        assert powers.std() == pytest.approx(error, abs=0.015)
        assert powers.mean() - log_like > errors_off * powers.std()
    # The growth is not exponential in the limit: from m0 = .1 the rate falls by more than three
    # errors from the first span to the last.
    rate, its_error = stored.growth.values[-1], stored.growth_error.values[-1]
    np.testing.assert_allclose(rate, [0.0140, 0.0061, 0.0027], atol=1e-4)
    np.testing.assert_allclose(its_error, [0.0037, 0.0019, 0.0005], atol=1e-4)
    assert rate[0] > rate[1] > rate[2]
    assert rate[0] - rate[2] > 3 * np.hypot(its_error[0], its_error[2])


def test_insets_hide_nothing():
    stored = sgd.load(STORED / "rough_landscapes-b2.nc")
    data = ridge_curves()
    assert [*hidden_points(pictures.draw_b2(stored)), *hidden_points(pictures.draw_b1(data))] == [
        0
    ] * 5
    assert "500 runs (1000 of persistent SGD)" in pictures.draw_b1(data).get_suptitle()
    assert "250 runs" in pictures.draw_b2(stored).get_suptitle()


# the figures


@pytest.mark.slow
def test_figure_b2(tmp_path):
    data = draw_and_reload("figure_b2", tmp_path)
    # (B.8) run by run is the measured error, up to the sampling of the test set: 2000 samples
    # in each of 16 runs
    gap = np.abs(data["mse"] - data["mse_formula_runs"])
    assert float(gap.max()) < Z * 1.5 / math.sqrt(2000 * data.attrs["runs"])
    # gradient descent has no batches to rescale
    np.testing.assert_array_equal(
        *(
            data["mse_formula"].sel(algorithm="GD", gradient=kind)
            for kind in ("rescaled", "not rescaled")
        )
    )
    # at t = 0 (C.2): q = 1 + m^2
    np.testing.assert_allclose(
        data["q"].isel(time=0), 1 + 0.2**2, atol=Z * 1.5 / math.sqrt(100 * 16) + 0.05
    )


@pytest.mark.slow
def test_figure_1(tmp_path):
    data = draw_and_reload("figure_1", tmp_path)
    for name in ("m", "loss"):
        assert (
            float(np.abs(data[f"{name}_z"]).max()) < 5.5
        )  # the standard error of DMFT is from four replicates
        assert float(np.abs(data[f"{name}_gap"]).max()) < 0.06
    ends = data["m_seed"].isel(time_seed=-1)
    reached = (ends > 0.99).mean("run")
    assert float(reached[2]) > 0.9 > float(reached[0])
    # one data set: the runs of a panel start apart, on the sphere
    assert float(data["m_seed"].isel(time_seed=0).std("run").min()) > 0.01


@pytest.mark.slow
def test_figures_2_and_3(tmp_path):
    data = draw_and_reload("figure_2", tmp_path)
    assert float(data["recovered"].sel(algorithm="p-SGD")) > float(
        data["recovered"].sel(algorithm="GD")
    )
    # all three from the same starts, on the same data sets
    np.testing.assert_allclose(data["loss"].isel(time=0).std("algorithm"), 0.0, atol=1e-5)
    data = draw_and_reload("figure_3", tmp_path)
    share = data["plateau"]
    assert float(share.sel(algorithm="GD")) > 0.1 > float(share.sel(algorithm="p-SGD"))


@pytest.mark.slow
def test_figure_4(tmp_path):
    data = draw_and_reload("figure_4", tmp_path)
    assert data["exploded"].values[0] > 0.2  # l = .01 with the printed eta
    assert data["exploded"].values[1] == 0.0  # and with a smaller one
    assert np.all(data["exploded"].values[data["unstable_samples"].values < 0.01] == 0)
    for panel in ("batch", "persistence", "temperature"):
        np.testing.assert_allclose(data[f"m_{panel}"].isel(time=0), 0.2, atol=0.1)
    # noise of Langevin does not go away by itself: at the time of the switch the loss is higher the
    # hotter, and then it falls
    before = data["loss_temperature"].values[:, np.searchsorted(data["t"].values, 20.0) - 1]
    assert np.all(np.diff(before) > 0)
    assert np.all(data["loss_temperature"].values[1:, -1] < before[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure_5", "figure_6"])
def test_figures_5_and_6(name, tmp_path):
    data = draw_and_reload(name, tmp_path)
    for key in ("m", "loss"):
        assert (
            float(np.abs(data[f"{key}_z"]).max()) < 6
        )  # four replicates, and a drift of order 1/N of the loss
    assert float(np.abs(data["loss_gap"]).max()) < 0.06


@pytest.mark.slow
def test_figure_7(tmp_path):
    data = draw_and_reload("figure_7", tmp_path)
    last = data["m"].isel(time=-1)
    assert np.all(last.sel(algorithm="p-SGD") > last.sel(algorithm="GD"))
    assert float(last.sel(algorithm="p-SGD").max()) > 0.9


@pytest.mark.slow
def test_figure_b1(tmp_path):
    data = draw_and_reload("figure_b1", tmp_path)
    assert float(np.abs(data["mse"] - data["mse_formula_runs"]).max()) < Z * 1.5 / math.sqrt(
        2000 * data.attrs["runs"]
    )
    # a ridge of 1 keeps weights short
    assert float(data["q"].sel(ridge=1.0, algorithm="GD")[-1]) < float(
        data["q"].sel(ridge=0.0, algorithm="GD")[-1]
    )


@pytest.mark.slow
def test_figure_b3(tmp_path):
    gap = draw_and_reload("figure_b3", tmp_path)["gap"]
    vanilla, persistent = gap.sel(algorithm="SGD").values, gap.sel(algorithm="p-SGD").values
    assert np.all(np.diff(vanilla) < 0)
    assert vanilla[-1] < 0.2 * vanilla[0]
    assert persistent[-1] > 0.7 * persistent[0]


@pytest.mark.slow
def test_figure_b4(tmp_path):
    data = draw_and_reload("figure_b4", tmp_path)
    assert np.all(np.diff(data["early"].values) < 0.03)  # the longer the persistence, the later
    assert np.all(data["recovered"].values >= 0)
