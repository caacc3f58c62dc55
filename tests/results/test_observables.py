"""`record`, `on_train` and `evaluate`: in every solver, with every kind of state, in files, comparisons and sweeps."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z
from tests.dynamics.test_own_dynamics import START, LinearStudent

PROBLEM = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
BEGIN = sgd.start(PROBLEM, M=[[0.4, 0.1], [0.0, 0.3]], Q=[[1.0, 0.2], [0.2, 0.8]])
ONE_PASS = sgd.OnePassSGD(lr=0.5)
GD = sgd.GradientDescent(lr=0.2, samples_per_dimension=2.0)
CLEAN = PROBLEM.replace(noise=0.0)


def cosine(state):
    return state["M"] / jnp.sqrt(jnp.diagonal(state["Q"]))[:, None]


def squares(fields, signals, head, z):
    return fields**2


ASKED = {"record": {"cosine": cosine}, "evaluate": {"clean": CLEAN, "same": PROBLEM}}
SOLVERS = {
    "ode": lambda **more: sgd.solve_ode(PROBLEM, ONE_PASS, BEGIN, times=[0, 1.0], **more),
    "sde": lambda **more: sgd.solve_sde(
        PROBLEM, ONE_PASS, BEGIN, times=[0, 0.1], dimension=100, runs=3, **more
    ),
    "chain": lambda **more: sgd.simulate(
        PROBLEM, ONE_PASS, BEGIN, times=[0, 1.0], dimension=100, runs=3, **more
    ),
    "direct": lambda **more: sgd.simulate(
        PROBLEM, ONE_PASS, BEGIN, times=[0, 1.0], dimension=20, runs=3, method="direct", **more
    ),
    "data, exact": lambda **more: sgd.simulate(
        PROBLEM, GD, BEGIN, steps=[0, 4], dimension=20, runs=2, **more
    ),
    "data, direct": lambda **more: sgd.simulate(
        PROBLEM, GD, BEGIN, steps=[0, 4], dimension=20, runs=2, method="direct", **more
    ),
    "dmft": lambda **more: sgd.solve_dmft(PROBLEM, GD, BEGIN, steps=[0, 4], paths=1024, **more),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver(solver, tmp_path):
    on_data = solver not in ("ode", "sde", "chain", "direct")
    asked = {
        **ASKED,
        "record": {**ASKED["record"], **({"squares": sgd.on_train(squares)} if on_data else {})},
    }
    result = SOLVERS[solver](**asked)
    M, Q = result.M.values, result.Q.values
    expected = M / np.sqrt(np.einsum("rtii->rti", Q))[..., None]
    # of DMFT a mean over replicates, which is that of the means only up to their spread
    close = {"rtol": 1e-12} if solver != "dmft" else {"rtol": 0, "atol": 1e-3}
    np.testing.assert_allclose(result["cosine"].values, expected, **close)
    assert result["cosine"].dims == ("run", "time", "cosine_0", "cosine_1")
    assert result["evaluated_risk"].dims == ("run", "time", "evaluation")
    both = result["evaluated_risk"]
    np.testing.assert_allclose(
        both.sel(evaluation="clean").values, result.excess_risk.values, rtol=1e-9
    )
    np.testing.assert_allclose(both.sel(evaluation="same").values, result.risk.values, rtol=1e-9)
    assert result.attrs["error_evaluated"] < 1e-8
    if on_data:
        assert result["squares"].dims == ("run", "time", "squares_0")
    sgd.save(result, tmp_path / "result.nc")
    assert sgd.load(tmp_path / "result.nc").identical(result)
    # what is asked for beside them changes no other number
    plain = SOLVERS[solver]()
    for name in plain.data_vars:
        np.testing.assert_array_equal(plain[name].values, result[name].values)


@pytest.mark.slow
def test_means_over_the_data_set():
    """The loss on the data is the train risk; squares of the fields agree between exact law, direct runs and DMFT."""

    def loss(fields, signals, head, z):
        return 0.5 * (fields[0] - signals[0]) ** 2

    problem = sgd.TeacherStudent(width=1, activation="linear")
    begin = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    record = {"loss": sgd.on_train(loss), "first": sgd.on_train(lambda f, s, a, z: f[0] ** 2)}
    shared = {"steps": [0, 2, 8], "record": record}
    runs = {
        method: sgd.simulate(
            problem, GD, begin, dimension=50, runs=100, seed=2, method=method, **shared
        )
        for method in ("exact", "direct")
    }
    theory = sgd.solve_dmft(problem, GD, begin, paths=2048, **shared)
    for result in (*runs.values(), theory):
        np.testing.assert_allclose(result["loss"].values, result.train_risk.values, rtol=1e-12)
    exact, direct = (one["first"] for one in runs.values())
    error = np.sqrt((exact.var("run", ddof=1) + direct.var("run", ddof=1)) / 100).values
    assert np.all(np.abs(exact.mean("run") - direct.mean("run")).values <= Z * error)
    compared = sgd.compare(theory, runs["exact"])
    # a gap of order 1/d on top of the standard errors
    gap = np.abs(compared["first_theory"] - compared["first_simulation"])
    assert np.all(gap.values <= Z * compared["first_standard_error"].values + 3 / 50)
    assert float(np.abs(compared["first_theory"][-1] - compared["first_theory"][0])) > 0.1


@pytest.mark.slow  # an application of `evaluate`, which every solver is asked for above
def test_forgetting():
    """A first task is forgotten while a second one is learned: ODE against direct runs, from `evaluate`."""
    first = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", teacher_head=[2.0, 0.0])
    second = first.replace(teacher_head=[0.0, 2.0])
    begin = sgd.start(first, M=[[0.2, 0.0], [0.1, 0.1]], Q=[[1.0, 0.1], [0.1, 1.0]])
    algorithm, evaluate = sgd.OnePassSGD(lr=1.0), {"first": first, "second": second}
    times = np.linspace(0, 12, 5)
    learned = sgd.solve_ode(first, algorithm, begin, times=times, evaluate=evaluate)
    forgot = sgd.solve_ode(
        second, algorithm, sgd.start_from(learned), times=times, evaluate=evaluate
    )
    rose = forgot.evaluated_risk.sel(evaluation="first").values[0]
    assert rose[-1] > 3 * rose[0]
    assert forgot.evaluated_risk.sel(evaluation="second").values[0, -1] < 0.5 * rose[-1]
    runs = sgd.simulate(
        second,
        algorithm,
        sgd.start_from(learned),
        times=times,
        dimension=300,
        runs=30,
        seed=4,
        method="direct",
        evaluate=evaluate,
    )
    found = sgd.compare(forgot, runs)
    gap = np.abs(found.evaluated_risk_simulation - found.evaluated_risk_theory).values
    # the ODE is off by order 1/d: 4% of the size covers it at d = 300
    assert np.all(
        gap
        <= Z * found.evaluated_risk_standard_error.values
        + 0.04 * found.evaluated_risk_theory.values
    )


@pytest.mark.slow
def test_wide_networks():
    problem = sgd.TeacherStudent(width=8, activation="erf", noise=0.1)
    wide = sgd.random_start(problem, dimension=100, seed=1, wide=True)
    record = {"alignment": lambda state: jnp.mean(state["M"] ** 2)}
    found = sgd.solve_mean_field(
        problem,
        ONE_PASS,
        wide,
        times=[0, 1.0],
        record=record,
        evaluate={"clean": problem.replace(noise=0.0)},
    )
    np.testing.assert_allclose(
        found["alignment"].values, (found.M**2).mean(("unit", "signal")).values, rtol=1e-12
    )
    np.testing.assert_allclose(
        found.evaluated_risk.values[..., 0], found.excess_risk.values, rtol=1e-6
    )


def test_tensors_and_dynamics_of_ones_own():
    tensor, other = sgd.SpikedTensor(order=2, snr=2.0), sgd.SpikedTensor(order=2, snr=1.0)
    path = sgd.solve_ode(
        tensor,
        sgd.OnePassSGD(lr=0.1),
        sgd.start(tensor, m=0.2, r2=1.0),
        times=[0, 1.0],
        record={"angle": lambda state: state["m"] / jnp.sqrt(state["m"] ** 2 + state["r2"])},
        evaluate={"weak": other},
    )
    np.testing.assert_allclose(
        path["angle"].values, (path.m / np.sqrt(path.m**2 + path.r2)).values, rtol=1e-12
    )
    np.testing.assert_allclose(
        path.evaluated_risk.values[..., 0], other.risk(path.m.values, path.r2.values), rtol=1e-12
    )
    quiet = LinearStudent(noise=0.0)
    own = sgd.solve_ode(
        LinearStudent(),
        ONE_PASS,
        START,
        times=[0, 1.0],
        record={"twice": lambda s: 2 * s["m"]},
        evaluate={"quiet": quiet},
    )
    np.testing.assert_allclose(own["twice"].values, 2 * own.m.values)
    np.testing.assert_allclose(
        own.evaluated_risk.values[..., 0], own.risk.values - 0.5 * LinearStudent().noise, rtol=1e-12
    )
    # a start made of it has the states alone
    assert set(sgd.start_from(own)) == {"m", "q"}


@pytest.mark.slow
def test_sweeps_and_pictures():
    found = sgd.sweep(
        "solve_ode",
        problem=PROBLEM,
        algorithm=ONE_PASS,
        start=BEGIN,
        times=[0, 1.0],
        over={"lr": [0.1, 0.5]},
        workers=1,
        **ASKED,
    )
    alone = SOLVERS["ode"](**ASKED)
    np.testing.assert_allclose(found["cosine"].isel(lr=1).values, alone["cosine"].values, rtol=1e-7)
    np.testing.assert_allclose(
        found["evaluated_risk"].isel(lr=1).values, alone["evaluated_risk"].values, rtol=1e-7
    )
    _, ax = sgd.plot.variable(alone, "evaluated_risk")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["clean", "same"]
    assert len(sgd.plot.variable(alone, "cosine")[1].lines) == 4


def test_bad_input():
    with pytest.raises(ValueError, match=r"record = 'M'.*has this name already"):
        SOLVERS["ode"](record={"M": cosine})
    with pytest.raises(ValueError, match=r"record\['cosine'\] = .*calling it on one state"):
        SOLVERS["ode"](record={"cosine": lambda state: state["N"]})
    with pytest.raises(
        ValueError, match=r"record\['x'\] = .*no data set|fresh samples make no data set"
    ):
        SOLVERS["chain"](record={"x": sgd.on_train(squares)})
    with pytest.raises(ValueError, match=r"record\['x'\] = .*fields, signals, head, draws"):
        SOLVERS["dmft"](record={"x": sgd.on_train(lambda fields: fields)})
    with pytest.raises(ValueError, match=r"record = .*functions by name"):
        SOLVERS["ode"](record=cosine)
    with pytest.raises(ValueError, match=r"evaluate = .*problems by name"):
        SOLVERS["ode"](evaluate=CLEAN)
    with pytest.raises(ValueError, match=r"evaluate = .*same \(width, signals, blocks"):
        SOLVERS["ode"](evaluate={"wide": sgd.TeacherStudent(width=3)})
    with pytest.raises(ValueError, match=r"evaluate = .*Gram matrix of its signals differs"):
        SOLVERS["ode"](evaluate={"tilted": PROBLEM.replace(teacher_gram=[[1.0, 0.5], [0.5, 1.0]])})
    with pytest.raises(ValueError, match=r"function = 3"):
        sgd.on_train(3)
