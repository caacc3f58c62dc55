"""Results: dims, coordinates, records of problem and algorithm, files, comparison, plots."""

from __future__ import annotations

import json

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.analysis import comparison
from sgdynamics.cli import summaries
from sgdynamics.results.clock import make_clock
from sgdynamics.results.datasets import encode, requested_clock, time_coordinates

mpl.use("Agg")


@pytest.fixture(scope="module")
def pair():
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.1, head="trained")
    algorithm = sgd.OnePassSGD(lr=0.1, batch=2)
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    times = np.linspace(0, 0.5, 6)
    theory = sgd.solve_ode(problem, algorithm, start, times=times)
    simulation = sgd.simulate(problem, algorithm, start, times=times, dimension=200, runs=50)
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


def test_netcdf_round_trip_and_repeated_run(pair, tmp_path):
    _, _, theory, simulation = pair
    simulation.to_netcdf(
        tmp_path / "plain.nc", engine="h5netcdf"
    )  # plain xarray can write a result
    path = sgd.save(simulation, tmp_path / "one.nc")
    loaded = sgd.load(path)
    xr.testing.assert_identical(loaded, simulation)
    problem, algorithm = sgd.problem_of(loaded), sgd.algorithm_of(loaded)
    repeated = sgd.simulate(
        problem,
        algorithm,
        sgd.start_from(loaded, time=0),
        steps=loaded.step.values,
        dimension=200,
        seed=0,
    )
    np.testing.assert_allclose(repeated.Q, loaded.Q, rtol=1e-12, atol=1e-14)
    sgd.save({"theory": theory, "exact": simulation}, tmp_path / "two.nc")
    xr.testing.assert_identical(sgd.load(tmp_path / "two.nc", group="exact"), simulation)
    # No temporary file is left.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.nc", "plain.nc", "two.nc"]


def test_failed_save_leaves_the_old_file(pair, tmp_path):
    _, _, theory, _ = pair
    path = sgd.save(theory, tmp_path / "result.nc")
    broken = theory.assign_attrs(bad={"a": 1})  # netCDF has no dictionaries
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
    decoded = sgd.problem_of(xr.Dataset(attrs={"problem": record}))
    assert encode(decoded.describe()) == record
    assert decoded.structure == problem.structure
    assert json.loads(encode({"snr": float("inf")}))["snr"] == "inf"
    own = sgd.MultiIndex(lambda z: z[0], directions=1, width=2)
    with pytest.raises(ValueError, match="only the name of a user-defined function"):
        sgd.problem_of(xr.Dataset(attrs={"problem": encode(own.describe())}))


def test_compare(pair):
    _, _, theory, simulation = pair
    table = sgd.compare(theory, simulation)
    assert np.all(table.risk_z[0] == 0)  # the same start
    expected = (simulation.risk.mean("run") - theory.risk[0]) / (
        simulation.risk.std("run", ddof=1) / np.sqrt(50)
    )
    np.testing.assert_allclose(table.risk_z[1:], expected[1:], rtol=1e-6)
    assert table.M_z.dims == ("time", "unit", "signal")
    assert table.attrs["runs"] == 50
    # A theory with additional save points.
    problem, algorithm, _, _ = pair
    fine = sgd.solve_ode(
        problem, algorithm, sgd.start_from(theory, time=0), times=np.linspace(0, 0.5, 41)
    )
    np.testing.assert_allclose(
        sgd.compare(fine, simulation).risk_theory, table.risk_theory, rtol=1e-5
    )
    short = theory.isel(time=slice(0, 3))
    with pytest.raises(ValueError, match="Solve for the same times"):
        sgd.compare(short, simulation)
    # A theory that diverges is not extrapolated.
    broken = theory.assign(risk=theory.risk.where(theory.t < 0.35), t=theory.t * (1 + 1e-9))
    assert np.isnan(sgd.compare(broken, simulation).risk_theory[-2:]).all()
    shifted = theory.assign(risk=theory.risk * 1.05)
    assert np.abs(sgd.compare(shifted, simulation).risk_z[1:]).min() > 5  # a 5% error is detected
    other = theory.assign_attrs(problem=theory.attrs["problem"].replace('"noise": ', '"noise": 1'))
    with pytest.warns(UserWarning, match="theory and simulation record different problems"):
        sgd.compare(other, simulation)
    with pytest.raises(ValueError, match=r"theory has M of shape \(1, 1\) and simulation"):
        sgd.compare(
            theory.isel(unit=slice(0, 1), unit_other=slice(0, 1), signal=slice(0, 1)), simulation
        )
    for wrong in (5, {"a": 1}):
        with pytest.raises(ValueError, match=r"result = .*give a result"):
            sgd.save(wrong, "nowhere.nc")
    with pytest.raises(ValueError, match=r"result = 5: give what solve_ode"):
        sgd.plot.risk(5)


def test_compare_solves_an_ode_again_between_its_save_points(pair):
    problem, algorithm, theory, simulation = pair
    ends = theory.isel(time=[0, -1])
    table = sgd.compare(ends, simulation)
    assert table.attrs["alignment"] == "solved again"
    np.testing.assert_allclose(table.risk_theory, theory.risk[0], rtol=1e-7)
    np.testing.assert_allclose(table.M_theory, theory.M[0], rtol=1e-7, atol=1e-9)
    assert sgd.compare(theory, simulation).attrs["alignment"] == "common save points"
    # Three results are interpolated instead: one that was changed, one without its start, and one
    # of another solver.
    changed = ends.assign(risk=1.05 * ends.risk)
    without_start = theory.isel(time=[1, -1])
    other = ends.assign_attrs(method="solve_dmft")
    runs = {
        "changed": simulation,
        "without start": simulation.isel(time=slice(1, None)),
        "other": simulation,
    }
    for name, result in {
        "changed": changed,
        "without start": without_start,
        "other": other,
    }.items():
        with pytest.warns(
            UserWarning, match="the theory is interpolated with an estimated error of up to"
        ):
            table = sgd.compare(result, runs[name])
        assert table.attrs["alignment"] == "interpolated"
        exact = theory.risk[0] if name != "without start" else theory.risk[0, 1:]
        gap = np.abs(table.risk_theory.values - exact.values)
        sampling = runs[name].risk.std("run", ddof=1).values / np.sqrt(50)
        # The standard error contains the error of the interpolation, which is 0 at both ends.
        estimate = np.sqrt((table.risk_standard_error.values**2 - sampling**2)[1:-1])
        assert np.all(estimate > (gap - 0.05 * exact.values)[1:-1])
        assert np.all(estimate > sampling[1:-1])
        np.testing.assert_allclose(table.risk_standard_error[-1], sampling[-1])
    # With many save points the error of the spline is below a tenth of a standard error, and there
    # is no warning.
    dense = sgd.solve_ode(
        problem, algorithm, sgd.start_from(theory, time=0), times=np.linspace(0, 0.5, 44)
    )
    table = sgd.compare(dense.assign_attrs(method="solve_dmft"), simulation)
    assert table.attrs["alignment"] == "interpolated"
    np.testing.assert_allclose(table.risk_theory, theory.risk[0], rtol=1e-4)


def test_save_points_of_a_new_solution_may_differ_by_rounding(pair, monkeypatch):
    """With a schedule t is an integral, and save points agree only up to rounding."""
    _, _, theory, simulation = pair
    rounding = 1e-13 * (-1.0) ** np.arange(theory.sizes["time"])
    monkeypatch.setattr(
        comparison, "_solve_again", lambda *_: theory.assign_coords(t=theory.t * (1 + rounding))
    )
    table = sgd.compare(theory.isel(time=[0, -1]), simulation)
    assert table.attrs["alignment"] == "solved again"
    np.testing.assert_array_equal(table.risk_theory, theory.risk[0])
    np.testing.assert_array_equal(table.M_theory, theory.M[0])


def test_compare_has_no_z_without_a_standard_error(pair):
    """At a shared start z is 0 within the recorded numerical errors, and NaN otherwise."""
    _, _, theory, simulation = pair
    risk = theory.risk.copy()
    risk[0, 0] *= 1 + 1e-6
    shifted = theory.assign(risk=risk)
    for recorded, z in ((1e-7, np.nan), (1e-5, 0.0)):
        table = sgd.compare(shifted.assign_attrs(error_quadrature=recorded), simulation)
        np.testing.assert_array_equal(table.risk_z[0], z)
        assert float(table.M_z[0].max()) == 0.0
        assert np.isfinite(table.risk_z[1:]).all()
        summary = summaries.compare_variables(
            shifted.assign_attrs(error_quadrature=recorded), simulation
        )["variables"][0]
        assert summary["variable"] == "risk"
        assert summary["largest_z"] == float(np.abs(table.risk_z[1:]).max())
    single = sgd.compare(theory, simulation.isel(run=[0]))
    assert np.isnan(single.risk_z[1:]).all()
    assert float(single.risk_z[0]) == 0.0


def test_results_record_the_clock_in_which_save_points_were_requested(pair):
    problem, algorithm, theory, simulation = pair
    assert (
        theory.attrs["clock"],
        simulation.attrs["clock"],
        sgd.compare(theory, simulation).attrs["clock"],
    ) == ("t",) * 3
    start = sgd.start_from(theory, time=0)
    by_alpha = sgd.solve_ode(problem, algorithm, start, alpha=theory.alpha.values)
    by_steps = sgd.simulate(
        problem, algorithm, start, steps=simulation.step.values, dimension=200, runs=50
    )
    assert (by_alpha.attrs["clock"], by_steps.attrs["clock"]) == ("alpha", "step")
    assert (
        requested_clock(by_alpha.drop_attrs()) == requested_clock(by_steps.drop_vars("step")) == "t"
    )
    phases = [
        (problem, algorithm, by_alpha.alpha.values),
        (problem, algorithm, {"times": theory.t.values}),
    ]
    joined = sgd.phases(sgd.solve_ode, phases, start)
    assert joined.attrs["clock"] == "t"
    arguments = {
        "problem": problem,
        "algorithm": algorithm,
        "start": start,
        "alpha": theory.alpha.values,
    }
    swept = sgd.sweep(sgd.solve_ode, **arguments, over={"lr": [0.1]}, workers=1, progress=False)
    assert swept.attrs["clock"] == "alpha"


@pytest.mark.parametrize(
    ("per", "name"), [("dimension", "lr steps/d"), ("trace", "lr steps/D"), ("step", "lr steps")]
)
def test_the_long_name_of_t_has_the_divisor_of_the_algorithm(per, name):
    spectrum = sgd.Spectrum([4.0, 1.0], [2, 3], target=[0.5, 0.5])
    problem = sgd.TeacherStudent(width=1, activation="linear", covariance=spectrum)
    algorithm = sgd.OnePassSGD(lr=0.02, per=per)
    clock = make_clock(algorithm.on(problem), steps=[0, 10], dimension=5, whole_steps=False)
    assert time_coordinates(clock, np.full(1, np.nan))["t"][2]["long_name"] == f"time t = {name}"
    linear = sgd.solve_linear(problem, algorithm, sgd.random_start(problem), steps=[0, 10])
    assert linear.t.attrs["long_name"] == f"time t = {name}"
    assert linear.attrs["clock"] == "step"


def test_figures_show_the_requested_clock(pair):
    import matplotlib.pyplot as plt

    _, _, theory, simulation = pair
    by_alpha = theory.assign_attrs(clock="alpha")
    for draw in (sgd.plot.risk, sgd.plot.overlaps):
        assert draw(theory)[1].get_xlabel() == "$t$ = lr steps / $d$"
        _, ax = draw(by_alpha)
        assert ax.get_xlabel() == r"$\alpha$ = samples / $d$"
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), theory.alpha)
        draw(simulation, ax)  # requested in t, drawn in the clock of the axis
        assert ax.get_xlabel() == r"$\alpha$ = samples / $d$"
        np.testing.assert_allclose(ax.containers[0].lines[0].get_xdata(), simulation.alpha)
    with pytest.raises(
        ValueError,
        match=r"x = .alpha.: this is the clock of the curves on ax, "
        r"but this result has only t, step",
    ):
        sgd.plot.risk(simulation.drop_vars("alpha"), sgd.plot.risk(by_alpha)[1])
    epochs = simulation.assign_coords(epoch=simulation.alpha / 0.5)
    assert sgd.plot.risk(epochs, x="epoch")[1].get_xlabel() == "epochs"
    plt.close("all")


def test_a_theory_of_few_save_points_is_drawn_as_markers(pair):
    """A line between two save points would hide, for example, a jump of the risk."""
    import matplotlib.pyplot as plt

    theory = pair[2]
    (line,) = sgd.plot.risk(theory)[1].lines
    assert (line.get_linestyle(), line.get_marker()) == ("None", "D")
    dense = theory.isel(time=np.arange(24) // 4)
    dense = dense.assign_coords(t=("time", np.linspace(0, 0.5, 24), theory.t.attrs))
    (line,) = sgd.plot.risk(dense)[1].lines
    assert (line.get_linestyle(), line.get_marker()) == ("-", "None")
    plt.close("all")


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


def test_a_theory_with_a_standard_error_has_a_band(pair):
    import matplotlib.pyplot as plt

    theory = pair[2]
    assert not sgd.plot.risk(theory)[1].collections
    sampled = theory.assign(
        risk_standard_error=0.1 * theory.risk, M_standard_error=0.02 + 0 * theory.M
    ).assign_attrs(method="solve_dmft")
    for name, (_, ax) in {
        "excess_risk": sgd.plot.risk(sampled),
        "M": sgd.plot.overlaps(sampled),
    }.items():
        error_name = "M_standard_error" if name == "M" else "risk_standard_error"
        line, error = (
            sampled[variable].values.reshape(6, -1)[:, 0] for variable in (name, error_name)
        )
        edges = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx((line + error).max())
        assert edges.min() == pytest.approx((line - error).min())
    plt.close("all")
