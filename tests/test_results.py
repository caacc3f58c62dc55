"""Results: dims, coordinates, provenance that round-trips, files, comparison, plots."""

from __future__ import annotations

import itertools
import json

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.results import encode

mpl.use("Agg")


@pytest.fixture(scope="module")
def pair():
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.1, head="trained")
    algorithm = sgd.OnePassSGD(lr=0.1, batch=2)
    begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    times = np.linspace(0, 0.5, 6)
    theory = sgd.solve_ode(problem, algorithm, begin, times=times)
    simulation = sgd.simulate(problem, algorithm, begin, times=times, dimension=200, runs=50)
    return problem, algorithm, theory, simulation


def test_dims_coordinates_and_attributes(pair):
    problem, _, theory, simulation = pair
    assert theory.M.dims == ("run", "time", "unit", "signal")
    assert simulation.Q.dims == ("run", "time", "unit", "unit_other")
    assert simulation.a.dims == ("run", "time", "unit")
    assert set(simulation.coords) == {"t", "alpha", "step", "diverged_at"}
    np.testing.assert_allclose(simulation.alpha, simulation.step * 2 / 200)
    np.testing.assert_allclose(simulation.t, simulation.step * 0.1 / 200)
    np.testing.assert_allclose(theory.risk - theory.excess_risk, 0.05)
    assert theory.sizes["run"] == 1
    for name in ("error_quadrature", "error_integrator", "assumptions", "version"):
        assert name in theory.attrs
    assert simulation.attrs["seed"] == 0
    assert problem.noise_floor == 0.05


def test_netcdf_round_trip_and_run_again(pair, tmp_path):
    _, _, theory, simulation = pair
    simulation.to_netcdf(tmp_path / "plain.nc", engine="h5netcdf")  # works on it as it is
    path = sgd.save(simulation, tmp_path / "one.nc")
    again = sgd.load(path)
    xr.testing.assert_identical(again, simulation)
    problem, algorithm = sgd.problem_of(again), sgd.algorithm_of(again)
    repeated = sgd.simulate(problem, algorithm, sgd.start_from(again, time=0), steps=again.step.values, dimension=200, seed=0)
    np.testing.assert_allclose(repeated.Q, again.Q, rtol=1e-12, atol=1e-14)
    sgd.save({"theory": theory, "exact": simulation}, tmp_path / "two.nc")
    xr.testing.assert_identical(sgd.load(tmp_path / "two.nc", group="exact"), simulation)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.nc", "plain.nc", "two.nc"]  # no temporary file is left


def test_failed_save_leaves_the_old_file(pair, tmp_path):
    _, _, theory, _ = pair
    path = sgd.save(theory, tmp_path / "result.nc")
    broken = theory.assign_attrs(bad={"a": 1})  # netCDF takes no dictionaries
    with pytest.raises(TypeError):
        sgd.save(broken, path)
    xr.testing.assert_identical(sgd.load(path), theory)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="no such file"):
        sgd.load(tmp_path / "nothing.nc")


def test_records_round_trip():
    problem = sgd.TeacherStudent(
        width=3,
        teacher_width=2,
        activation=sgd.polynomial([0, 1, 0.5]),
        teacher_activation="tanh",
        teacher_gram=[[1.0, 0.2], [0.2, 1.0]],
        teacher_head=[1.0, -1.0],
        noise=0.3,
        weight_decay=0.01,
        loss="correlation",
        covariance=[(0.5, 0.5), (2.0, 0.5)],
        head="trained",
    )
    record = encode(problem.describe())
    made = sgd.problem_of(xr.Dataset(attrs={"problem": record}))
    assert encode(made.describe()) == record
    assert made.structure == problem.structure
    assert json.loads(encode({"snr": float("inf")}))["snr"] == "inf"
    own = sgd.MultiIndex(lambda z: z[0], directions=1, width=2)
    with pytest.raises(ValueError, match="holds a user's function"):
        sgd.problem_of(xr.Dataset(attrs={"problem": encode(own.describe())}))


def test_compare(pair):
    _, _, theory, simulation = pair
    table = sgd.compare(theory, simulation)
    assert np.all(table.risk_z[0] == 0)  # the same start
    expected = (simulation.risk.mean("run") - theory.risk[0]) / (simulation.risk.std("run", ddof=1) / np.sqrt(50))
    np.testing.assert_allclose(table.risk_z[1:], expected[1:], rtol=1e-6)
    assert table.M_z.dims == ("time", "unit", "signal")
    assert table.attrs["runs"] == 50
    # a theory on another grid is interpolated
    problem, algorithm, _, _ = pair
    fine = sgd.solve_ode(problem, algorithm, sgd.start_from(theory, time=0), times=np.linspace(0, 0.5, 41))
    np.testing.assert_allclose(sgd.compare(fine, simulation).risk_theory, table.risk_theory, rtol=1e-5)
    short = theory.isel(time=slice(0, 3))
    with pytest.raises(ValueError, match="solve for the same times"):
        sgd.compare(short, simulation)
    # a theory that diverged on the way is not extrapolated
    broken = theory.assign(risk=theory.risk.where(theory.t < 0.35), t=theory.t * (1 + 1e-9))
    assert np.isnan(sgd.compare(broken, simulation).risk_theory[-2:]).all()
    shifted = theory.assign(risk=theory.risk * 1.05)
    assert np.abs(sgd.compare(shifted, simulation).risk_z[1:]).min() > 5  # a 5% error is seen
    other = theory.assign_attrs(problem=theory.attrs["problem"].replace('"noise": ', '"noise": 1'))
    with pytest.warns(UserWarning, match="theory and simulation record different problems"):
        sgd.compare(other, simulation)
    with pytest.raises(ValueError, match=r"theory has M of shape \(1, 1\) and simulation"):
        sgd.compare(theory.isel(unit=slice(0, 1), unit_other=slice(0, 1), signal=slice(0, 1)), simulation)
    for wrong in (5, {"a": 1}):
        with pytest.raises(ValueError, match=r"result = .*give a result"):
            sgd.save(wrong, "nowhere.nc")
    with pytest.raises(ValueError, match=r"result = 5: give what solve_ode"):
        sgd.plot.risk(5)


def test_plots(pair):
    import matplotlib.pyplot as plt

    _, _, theory, simulation = pair
    fig, ax = sgd.plot.risk(theory)
    same_fig, same_ax = sgd.plot.risk(simulation, ax=ax)
    assert same_fig is fig
    assert same_ax is ax
    assert ax.get_ylabel() == "excess risk"
    assert len(ax.get_legend().get_texts()) == 2
    np.testing.assert_allclose(ax.lines[0].get_ydata(), theory.excess_risk[0])
    fig, ax = sgd.plot.overlaps(theory, x="alpha")
    sgd.plot.overlaps(simulation, ax=ax, x="alpha")
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["$M_{11}$", "$M_{21}$"]
    assert len(sgd.plot.overlaps(theory, name="Q")[1].lines) == 3
    with pytest.raises(ValueError, match="this result has only t, alpha"):
        sgd.plot.risk(theory, x="step")
    plt.close("all")


def test_a_theory_with_an_error_of_its_own_has_a_band(pair):
    import matplotlib.pyplot as plt

    theory = pair[2]
    assert not sgd.plot.risk(theory)[1].collections
    sampled = theory.assign(risk_standard_error=0.1 * theory.risk, M_standard_error=0.02 + 0 * theory.M).assign_attrs(method="solve_dmft")
    for name, (_, ax) in {"excess_risk": sgd.plot.risk(sampled), "M": sgd.plot.overlaps(sampled)}.items():
        line, error = (
            sampled[one].values.reshape(6, -1)[:, 0] for one in (name, "risk_standard_error" if name != "M" else "M_standard_error")
        )
        edges = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx((line + error).max())
        assert edges.min() == pytest.approx((line - error).min())
    plt.close("all")


def test_logarithmic_ticks_can_be_read_and_legends_hide_nothing():
    from sgdynamics.papers.drawing import legend_below, readable, subplots

    fig, axes = subplots(1, 3, (12, 4))
    for ax, (low, high) in zip(axes, ((0.02, 0.09), (0.001, 0.05), (1e-5, 1.0)), strict=True):
        ax.plot([1, 2], [low, high], label="a curve")
        ax.set_yscale("log")
        legend_below(ax)
    readable(axes)
    fig.canvas.draw()
    for ax in axes:
        drawn = [(one.get_text(), one.get_window_extent()) for one in ax.get_yticklabels(which="both")]
        heights = sorted((box.ymin, box.ymax) for text, box in drawn if text and ax.bbox.ymin <= box.ymin <= ax.bbox.ymax)
        assert len(heights) >= 3
        assert all(lower[1] <= upper[0] for lower, upper in itertools.pairwise(heights))
        assert ax.get_legend().get_window_extent().ymax < ax.xaxis.get_tightbbox().ymin
