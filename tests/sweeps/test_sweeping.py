"""Sweeps: names and points, results, batches against single solves, power laws, phase diagrams."""

from __future__ import annotations

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.plotting import plot
from sgdynamics.sweeps import fit_exponent, sweep
from tests.conftest import Z

mpl.use("Agg")

PROBLEM = sgd.TeacherStudent(width=2, activation="square", noise=0.1)
START = {"M": [[0.3], [-0.2]], "Q": [[1.0, 0.0], [0.0, 1.0]]}
BASE = {"problem": PROBLEM, "algorithm": sgd.OnePassSGD(lr=0.1), "start": START, "workers": 1}
TIMES = np.linspace(0, 2, 8)


def area(x, y):
    return x * y


def same(first, other):
    """Every variable and coordinate equal, bit for bit."""
    assert set(first.variables) == set(other.variables)
    for name in first.variables:
        assert first[name].dims == other[name].dims, name
        np.testing.assert_array_equal(first[name].values, other[name].values, err_msg=str(name))


def test_grid_of_a_function():
    result = sweep(area, over={"x": [1, 2, 3], "y": [0.5, 1.5]})
    assert result["value"].dims == ("x", "y")
    np.testing.assert_array_equal(result["value"], np.outer([1, 2, 3], [0.5, 1.5]))
    assert result.x.dtype == int
    assert not np.any(result.failed != "")
    # fixed arguments are the function's too
    np.testing.assert_array_equal(sweep(area, over={"x": [1, 2]}, y=10.0)["value"], [10.0, 20.0])


def test_list_of_points_and_file(tmp_path):
    result = sweep(area, over=[{"x": 1.0, "y": 2.0}, {"x": 4.0, "y": 5.0}, {"x": 1.0, "y": 7.0}])
    assert result["value"].dims == ("point",)
    np.testing.assert_array_equal(result["value"], [2.0, 20.0, 7.0])
    np.testing.assert_array_equal(result.coords["y"], [2.0, 5.0, 7.0])
    same(sgd.load(sgd.save(result, tmp_path / "list.nc")), result)


def test_parameters_that_depend_on_others():
    calls = []

    def answer(dimension, lr, twice, offset):
        calls.append((dimension, lr, twice, offset))
        return dimension * lr

    over = {
        "dimension": [10, 100],
        "twice": lambda lr: 2 * lr,
        "lr": lambda dimension, offset: offset / dimension,
    }
    result = sweep(answer, over=over, offset=0.5)
    assert calls == [(10, 0.05, 0.1, 0.5), (100, 0.005, 0.01, 0.5)]
    assert result.lr.dims == ("dimension",)
    np.testing.assert_allclose(result.twice, [0.1, 0.01])
    with pytest.raises(ValueError, match="circle"):
        sweep(
            answer,
            over={"dimension": [1], "lr": lambda twice: twice, "twice": lambda lr: lr},
            offset=0.0,
        )
    with pytest.raises(ValueError, match="did you mean 'dimension'"):
        sweep(
            answer,
            over={"dimension": [1], "twice": [0.1], "lr": lambda dimensions: 1.0},
            offset=0.0,
        )


@dataclasses.dataclass(frozen=True)
class Answer:
    size: float
    list: np.ndarray
    name: str = "a word"


def test_what_a_function_may_return():
    result = sweep(lambda n: Answer(2.0 * n, np.arange(n)), over={"n": [1, 3]})
    assert "name" not in result
    np.testing.assert_array_equal(
        result["list"], [[0, np.nan, np.nan], [0, 1, 2]]
    )  # shorter ones are filled up
    grid = sweep(
        lambda n: xr.Dataset({"y": ("z", [n, 2 * n])}, {"z": [0.1, 0.2]}), over={"n": [1, 3]}
    )
    assert grid.y.dims == ("n", "z")
    assert float(grid.y.sel(n=3, z=0.2)) == 6.0
    apart = sweep(
        lambda n: xr.Dataset({"y": ("z", [n, 2 * n])}, {"z": [0.1, 0.2 * n]}), over={"n": [1, 3]}
    )
    np.testing.assert_allclose(apart["z_values"].sel(n=3), [0.1, 0.6])
    for wrong in (lambda n: "text", lambda n: {"n": 1.0}, lambda n: {"c": 1j}):
        with pytest.warns(UserWarning, match="1 of 1 points failed"):
            assert str(sweep(wrong, over={"n": [1]}).failed.values[0])


def test_names_are_checked_before_anything_runs(monkeypatch):
    monkeypatch.setattr("sgdynamics.base.resources.host_bytes", lambda: 2.0**30)
    wrong = {
        "nois": "did you mean 'noise'",
        "problem.noize": "did you mean 'noise'",
        "algorithm.noise": "the algorithm has no parameter",
        "start.seed": "the start has no parameter",
        "aim.noise": "begins with one of",
        "loss.x": "begins with one of",
    }
    for name, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            sweep("solve_ode", over={name: [0.1]}, times=TIMES, **BASE)
    fixed = {**BASE, "start": sgd.start(PROBLEM, **START)}
    with pytest.raises(ValueError, match="the start is fixed"):
        sweep("solve_ode", over={"start.seed": [1]}, times=TIMES, **fixed)
    cases = {
        "Remove one": {"over": {"lr": [0.1, 0.1]}},
        "name the same parameter": {"over": {"lr": [0.1], "algorithm.lr": [0.2]}},
        "must be a list of values": {"over": {"lr": 0.1}},
        "at least one value": {"over": {"lr": []}},
        "all combinations": {"over": {}},
        "the same parameters": {"over": [{"lr": 0.1}, {"noise": 0.1}]},
        "exactly one of": {"over": {"lr": [0.1]}, "alpha": [1.0]},
        "did you mean 'rtol'": {"over": {"lr": [0.1]}, "rtoll": 1e-3},
        "shards need a common store": {"over": {"lr": [0.1]}, "shard": (0, 2)},
        "workers = 0": {"over": {"lr": [0.1]}, "workers": 0},
    }
    for message, change in cases.items():
        with pytest.raises(ValueError, match=message):
            sweep("solve_ode", **{"times": TIMES, **BASE, **change})
    with pytest.raises(
        ValueError,
        match=r"over = \{'x': 1000, 'y': 1000\}: 1e\+06 points need 2.79 GiB, and 1 GiB are free: "
        "give fewer",
    ):
        sweep(area, over={"x": list(range(1000)), "y": list(range(1000))})
    with pytest.raises(ValueError, match="did you mean 'solve_ode'"):
        sweep("solve_od", over={"lr": [0.1]}, times=TIMES, **BASE)
    with pytest.raises(ValueError, match="needs y"):
        sweep(area, over={"x": [1]})


@pytest.fixture(scope="module")
def batch():
    """Two learning rates that run, one that diverges and one that no algorithm has."""
    over = {"lr": [0.05, 0.1, 40.0, -1.0], "noise": [0.0, 0.2]}
    with pytest.warns(UserWarning, match="2 of 8 points failed|2 of 8 points warned"):
        return sweep("solve_ode", over=over, times=TIMES, **BASE)


def test_batch_gives_the_numbers_of_single_solves(batch):
    for lr, noise in ((0.05, 0.2), (0.1, 0.0)):
        problem = sgd.TeacherStudent(width=2, activation="square", noise=noise)
        alone = sgd.solve_ode(
            problem, sgd.OnePassSGD(lr=lr), sgd.start(problem, **START), times=TIMES
        )
        expected = batch.sel(lr=lr, noise=noise)
        for name in ("M", "Q", "a", "risk", "excess_risk", "t", "diverged_at"):
            np.testing.assert_allclose(
                expected[name], alone[name], rtol=1e-9, atol=1e-12, err_msg=name
            )
        np.testing.assert_allclose(expected.alpha, alone.alpha)
        assert 0 < float(expected.error_integrator) < 1e-7
    # measured once for the group: they were one program, not solved one by one
    assert len(np.unique(batch.error_integrator.sel(lr=[0.05, 0.1]))) == 1
    assert batch.risk.dims == ("lr", "noise", "run", "time")
    assert batch.t.dims == ("time",)
    assert batch.attrs["method"] == "solve_ode"


def test_what_diverges_or_fails_does_not_hold_up_the_others(batch):
    assert np.all(np.isfinite(batch.risk.sel(lr=[0.05, 0.1])))
    assert "diverged, the first after" in str(batch.warning.sel(lr=40.0, noise=0.0).values)
    assert np.isfinite(float(batch.diverged_at.sel(lr=40.0, noise=0.0).squeeze()))
    assert "lr = -1" in str(batch.failed.sel(lr=-1.0, noise=0.0).values)
    assert np.all(np.isnan(batch.risk.sel(lr=-1.0)))


@pytest.mark.slow
def test_same_numbers_in_this_process_and_in_two():
    """Two groups of one program, to the bit: what differs by a list is not taken for one group."""
    shared = {
        **BASE,
        "over": {"lr": [0.05, 0.1], "problem.teacher_head": [[1.0], [1.2]]},
        "times": TIMES,
    }
    alone = sweep("solve_ode", **shared)
    same(sweep("solve_ode", **{**shared, "workers": 2}), alone)
    assert alone.teacher_head.values.tolist() == ["[1]", "[1.2]"]
    assert not np.allclose(alone.risk[:, 0], alone.risk[:, 1])


@pytest.mark.slow
def test_exit_times_as_a_batch(monkeypatch):
    monkeypatch.setattr("sgdynamics.sweeps.job.Job.run", None)  # one by one would fail
    problem = {"kind": "TeacherStudent", "width": 1, "constraint": "sphere"}
    over = {"lr": [0.05, 0.1], "noise": [0.0, 0.05, 0.1]}
    start = {"M": [[0.05]], "Q": [[1.0]]}
    result = sweep(
        "exit_time",
        problem=problem,
        algorithm={"kind": "OnePassSGD"},
        start=start,
        over=over,
        workers=1,
        threshold=0.3,
    )
    for lr, noise in ((0.05, 0.05), (0.1, 0.1)):
        expected = sgd.TeacherStudent(width=1, constraint="sphere", noise=noise)
        alone = sgd.exit_time(
            expected, sgd.OnePassSGD(lr=lr), sgd.start(expected, **start), threshold=0.3
        )
        assert float(result["mean"].sel(lr=lr, noise=noise)) == pytest.approx(alone.mean, rel=1e-9)
    assert result.times.dims == ("lr", "noise", "run")
    assert np.all(np.diff(result["mean"], axis=1) > 0)  # label noise slows it down


def test_starts_of_records_and_functions_and_other_solvers():
    problem = sgd.TeacherStudent(width=1, activation="square")
    record = {"kind": "random", "seed": 3}
    shared = {
        "problem": problem,
        "algorithm": sgd.OnePassSGD(lr=0.2),
        "workers": 1,
        "times": [0.0, 0.1],
        "runs": 4,
    }
    drawn = sweep("simulate", start=record, over={"dimension": [50, 200], "seed": [0, 1]}, **shared)
    alone = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=0.2),
        sgd.random_start(problem, dimension=200, seed=3),
        times=[0.0, 0.1],
        dimension=200,
        runs=4,
        seed=1,
    )
    np.testing.assert_array_equal(drawn.M.sel(dimension=200, seed=1), alone.M)
    assert float(drawn.step.sel(dimension=200, seed=0)[-1]) == 100.0

    def start_from_parameters(problem, parameters):
        return sgd.random_start(
            problem, dimension=parameters["dimension"], seed=parameters["start_seed"]
        )

    result = sweep(
        "simulate",
        start=start_from_parameters,
        over={"start.start_seed": [3, 4]},
        dimension=200,
        seed=1,
        **shared,
    )
    np.testing.assert_array_equal(result.M.sel(start_seed=3), alone.M)
    assert not np.array_equal(result.M.sel(start_seed=4), alone.M)


def own_loss(fields, signals, head, noise_draw, parameters):
    return 0.5 * (parameters["scale"] * fields[0] - signals[0]) ** 2


def test_users_problems_vary_too():
    """A user's loss is rebuilt with its function, even if only one of its parameters is swept."""
    problem = sgd.Problem(own_loss, width=1, signals=1, parameters={"scale": 1.0})

    def answer(problem):
        return float(problem.parameters["user"]["scale"]) + 10 * problem.weight_decay

    result = sweep(
        answer,
        problem=problem,
        over={"problem.parameters.scale": [1.0, 2.0], "weight_decay": [0.0, 0.5]},
    )
    np.testing.assert_allclose(result["value"], [[1.0, 6.0], [2.0, 7.0]])
    with pytest.raises(ValueError, match="there is no 'scal'"):
        sweep(answer, problem=problem, over={"problem.parameters.scal": [1.0]})


def describe_point(problem, algorithm=None):
    """Everything a point is made of, as numbers."""
    return {
        "same": float(problem.activation == problem.teacher_activation),
        "units": float(len(problem.teacher_head)),
    }


def test_what_was_left_out_follows():
    """A point is the result of `replace`: defaults follow the swept parameters, set values stay."""
    over = {"activation": ["square", "erf"], "teacher_width": [1, 2]}
    free = sweep(describe_point, problem=sgd.TeacherStudent(2), over=over)
    np.testing.assert_array_equal(free.same, 1.0)
    np.testing.assert_array_equal(free.units, [[1, 2], [1, 2]])
    assert "teacher_activation" not in free.attrs["problem"]
    same(sweep(describe_point, problem={"kind": "TeacherStudent", "width": 2}, over=over), free)
    bound = sweep(
        describe_point,
        problem=sgd.TeacherStudent(2, teacher_activation="square", teacher_head=[1.0]),
        over=over,
    )
    np.testing.assert_array_equal(bound.same, [[1, 1], [0, 0]])
    np.testing.assert_array_equal(bound.units, free.units)  # ones are ones, however many
    with pytest.warns(UserWarning, match="2 of 4 points failed"):
        heads = sweep(describe_point, problem=sgd.TeacherStudent(2, teacher_head=[2.0]), over=over)
    assert "teacher_head has shape" in str(heads.failed[0, 1].values)
    widths = sweep(
        lambda problem: problem.width,
        problem=sgd.GaussianMixture(),
        over={"mixture": ["binary", "xor"]},
    )
    np.testing.assert_array_equal(widths["value"], [2, 4])


def test_numbers_inside_objects_vary():
    """Updates, piecewise rates and polynomials as objects or records; several numbers at once."""
    rates = {"edges": [1.0], "rates": [0.1, 0.2]}
    values = {"lr": sgd.piecewise_rate(**rates), "update": sgd.updates.momentum(0.5)}
    record = {"kind": "OnePassSGD", "lr": rates, "update": {"kind": "momentum", "beta": 0.5}}

    def answer(problem, algorithm):
        hyperparameters = algorithm.parameters
        shown = [
            *hyperparameters["lr"].parameters["edges"],
            *hyperparameters["lr"].parameters["rates"],
            hyperparameters["update"]["beta"],
        ]
        return {"shown": [*shown, *problem.activation.coefficients]}

    over = {
        "algorithm.update.beta": [0.0, 0.9],
        "algorithm.lr.rates": [[0.3, 0.4]],
        "algorithm.lr.edges": [[2.0]],
    }
    over |= {"problem.activation.polynomial": [[0.0, 2.0], [0.0, 3.0]]}
    problem = sgd.TeacherStudent(2, activation=sgd.polynomial([0.0, 1.0]))
    for algorithm in (sgd.OnePassSGD(**values), record):
        result = sweep(answer, problem=problem, algorithm=algorithm, over=over)
        np.testing.assert_array_equal(result.shown[1, 0, 0, 1], [2.0, 0.3, 0.4, 0.9, 0.0, 3.0])
    with pytest.raises(ValueError, match="there is no 'bet': did you mean 'beta'"):
        sweep(answer, problem=problem, algorithm=record, over={"algorithm.update.bet": [0.1]})
    with pytest.raises(ValueError, match="there is no 'beta'"):
        sweep(
            answer,
            problem=problem,
            algorithm=sgd.OnePassSGD(),
            over={"algorithm.update.beta": [0.1]},
        )
    with pytest.warns(UserWarning, match="beta = 2.0: give a number, 0 or more and below 1"):
        sweep(answer, problem=problem, algorithm=record, over={"algorithm.update.beta": [2.0]})


@pytest.mark.slow
def test_power_law_is_recovered_within_its_interval():
    generator = np.random.default_rng(5)
    x = np.geomspace(1, 1000, 12)
    truth = 3.0 * x**-1.7
    exact = fit_exponent(xr.Dataset({"y": ("x", truth)}, {"x": x}), "y", "x")
    assert exact.exponent == pytest.approx(-1.7, abs=1e-12)
    assert exact.prefactor == pytest.approx(3.0)
    np.testing.assert_allclose(exact(x), truth)
    # Runs with errors that grow along x: weights from their scatter, and a 95% interval that
    # contains the exponent as often as it should.
    sizes, expected, shifts = np.linspace(0.02, 0.3, 12), 0, []
    for _ in range(300):
        runs = truth * (1 + sizes * generator.standard_normal((40, 12)))
        law = fit_exponent(xr.Dataset({"y": (("run", "x"), runs)}, {"x": x}), "y", "x")
        expected += law.interval[0] <= -1.7 <= law.interval[1]
        shifts.append((law.exponent + 1.7) / law.exponent_standard_error)
    assert law.weighted
    assert (
        abs(expected / 300 - 0.95) < Z * np.sqrt(0.95 * 0.05 / 300) + 0.01
    )  # a percent for errors known from 40 runs only
    assert abs(np.mean(shifts)) < Z / np.sqrt(300) + 0.1
    # noise without known errors: Student's interval
    expected = 0
    for _ in range(300):
        law = fit_exponent(
            xr.Dataset({"y": ("x", truth * np.exp(0.1 * generator.standard_normal(12)))}, {"x": x}),
            "y",
            "x",
        )
        expected += law.interval[0] <= -1.7 <= law.interval[1]
    assert not law.weighted
    assert abs(expected / 300 - 0.95) < Z * np.sqrt(0.95 * 0.05 / 300)


def test_power_law_of_a_sweep():
    result = sweep(
        lambda n, c: {"mean": c * n**2.0, "standard_error": 0.01 * n},
        over={"n": [1, 2, 4, 8], "c": [1.0, 5.0]},
    )
    law = fit_exponent(result, "mean", "n", c=5.0)
    assert (law.exponent, law.prefactor) == (pytest.approx(2.0), pytest.approx(5.0))
    assert law.weighted
    with pytest.raises(ValueError, match=r"set c=\.\.\."):
        fit_exponent(result, "mean", "n")
    with pytest.raises(ValueError, match=r"the sweep has 1\.0, 5\.0"):
        fit_exponent(result, "mean", "n", c=4.0)
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        fit_exponent(result, "meen", "n", c=5.0)
    holes = result.copy(deep=True)
    holes["mean"][1, 1] = np.nan
    with pytest.warns(UserWarning, match="1 of 4 points"):
        assert fit_exponent(holes, "mean", "n", c=5.0).left_out == 1


def test_phase_diagram():
    def answer(lr, noise):
        if lr > 5 and noise > 0.3:
            raise ValueError("too far")
        return {"time": np.nan if noise == 0.0 else 10 * noise / lr}

    with pytest.warns(UserWarning, match="failed"):
        result = sweep(
            answer, over={"lr": np.geomspace(0.01, 10, 7), "noise": np.linspace(0, 0.5, 6)}
        )
    fig, ax = plot.phase_diagram(result, "lr", "noise", value="time")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert ax.get_xlim()[0] == pytest.approx(
        0.01 / np.sqrt(1000 ** (1 / 6))
    )  # cells are centred on their points
    assert len(fig.axes) == 2  # the colour bar
    hatched = [patch for patch in ax.patches if patch.get_hatch()]
    assert len(hatched) == int(np.sum(result.failed != ""))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["failed", "no value"]
    assert plot.phase_diagram(result, "lr", "noise")[1].get_xlabel() == "learning rate"
    with pytest.raises(ValueError, match="did you mean 'noise'"):
        plot.phase_diagram(result, "lr", "noises")
