"""`record`, `on_train` and `evaluate` in all solvers.

They work with all kinds of states, in files, in comparisons and in sweeps.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z
from tests.dynamics.test_own_dynamics import START as LINEAR_START
from tests.dynamics.test_own_dynamics import LinearStudent

PROBLEM = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
START = sgd.start(PROBLEM, M=[[0.4, 0.1], [0.0, 0.3]], Q=[[1.0, 0.2], [0.2, 0.8]])
ONE_PASS = sgd.OnePassSGD(lr=0.5)
GD = sgd.GradientDescent(lr=0.2, samples_per_dimension=2.0)
CLEAN = PROBLEM.replace(noise=0.0)


def cosine(state):
    return state["M"] / jnp.sqrt(jnp.diagonal(state["Q"]))[:, None]


def squares(fields, signals, head, z):
    return fields**2


OBSERVABLES = {"record": {"cosine": cosine}, "evaluate": {"clean": CLEAN, "same": PROBLEM}}
SOLVERS = {
    "ode": lambda **options: sgd.solve_ode(PROBLEM, ONE_PASS, START, times=[0, 1.0], **options),
    "sde": lambda **options: sgd.solve_sde(
        PROBLEM, ONE_PASS, START, times=[0, 0.1], dimension=100, runs=3, **options
    ),
    "chain": lambda **options: sgd.simulate(
        PROBLEM, ONE_PASS, START, times=[0, 1.0], dimension=100, runs=3, **options
    ),
    "direct": lambda **options: sgd.simulate(
        PROBLEM, ONE_PASS, START, times=[0, 1.0], dimension=20, runs=3, method="direct", **options
    ),
    "data, exact": lambda **options: sgd.simulate(
        PROBLEM, GD, START, steps=[0, 4], dimension=20, runs=2, **options
    ),
    "data, direct": lambda **options: sgd.simulate(
        PROBLEM, GD, START, steps=[0, 4], dimension=20, runs=2, method="direct", **options
    ),
    "dmft": lambda **options: sgd.solve_dmft(
        PROBLEM, GD, START, steps=[0, 4], paths=1024, **options
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_records_and_evaluates(solver, tmp_path):
    on_data = solver not in ("ode", "sde", "chain", "direct")
    record = dict(OBSERVABLES["record"])
    if on_data:
        record["squares"] = sgd.on_train(squares)
    result = SOLVERS[solver](record=record, evaluate=OBSERVABLES["evaluate"])
    M, Q = result.M.values, result.Q.values
    expected = M / np.sqrt(np.einsum("rtii->rti", Q))[..., None]
    # DMFT records the mean over replicates, which differs slightly from the cosine of the means.
    close = {"rtol": 1e-12} if solver != "dmft" else {"rtol": 0, "atol": 1e-3}
    np.testing.assert_allclose(result["cosine"].values, expected, **close)
    assert result["cosine"].dims == ("run", "time", "cosine_0", "cosine_1")
    assert result["evaluated_risk"].dims == ("run", "time", "evaluation")
    evaluated = result["evaluated_risk"]
    np.testing.assert_allclose(
        evaluated.sel(evaluation="clean").values, result.excess_risk.values, rtol=1e-9
    )
    np.testing.assert_allclose(
        evaluated.sel(evaluation="same").values, result.risk.values, rtol=1e-9
    )
    assert result.attrs["error_evaluated"] < 1e-8
    if on_data:
        assert result["squares"].dims == ("run", "time", "squares_0")
    sgd.save(result, tmp_path / "result.nc")
    assert sgd.load(tmp_path / "result.nc").identical(result)
    # Observables do not change the other variables.
    plain = SOLVERS[solver]()
    for name in plain.data_vars:
        np.testing.assert_array_equal(plain[name].values, result[name].values)


@pytest.mark.slow
def test_means_over_the_data_set():
    """The mean loss on the data is the train risk.

    The mean squares of the fields agree between the exact law, direct runs and DMFT.
    """

    def loss(fields, signals, head, z):
        return 0.5 * (fields[0] - signals[0]) ** 2

    problem = sgd.TeacherStudent(width=1, activation="linear")
    start = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
    record = {"loss": sgd.on_train(loss), "first": sgd.on_train(lambda f, s, a, z: f[0] ** 2)}
    shared = {"steps": [0, 2, 8], "record": record}
    runs = {
        method: sgd.simulate(
            problem, GD, start, dimension=50, runs=100, seed=2, method=method, **shared
        )
        for method in ("exact", "direct")
    }
    theory = sgd.solve_dmft(problem, GD, start, paths=2048, **shared)
    for result in (*runs.values(), theory):
        np.testing.assert_allclose(result["loss"].values, result.train_risk.values, rtol=1e-12)
    exact, direct = (result["first"] for result in runs.values())
    error = np.sqrt((exact.var("run", ddof=1) + direct.var("run", ddof=1)) / 100).values
    assert np.all(np.abs(exact.mean("run") - direct.mean("run")).values <= Z * error)
    compared = sgd.compare(theory, runs["exact"])
    # The gap is of order 1/d, in addition to the standard errors.
    gap = np.abs(compared["first_theory"] - compared["first_simulation"])
    assert np.all(gap.values <= Z * compared["first_standard_error"].values + 3 / 50)
    assert float(np.abs(compared["first_theory"][-1] - compared["first_theory"][0])) > 0.1


@pytest.mark.slow  # an application of `evaluate`; the test above covers all solvers
def test_forgetting():
    """A network forgets a first task while it learns a second one: ODE and direct runs."""
    first = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", teacher_head=[2.0, 0.0])
    second = first.replace(teacher_head=[0.0, 2.0])
    start = sgd.start(first, M=[[0.2, 0.0], [0.1, 0.1]], Q=[[1.0, 0.1], [0.1, 1.0]])
    algorithm, evaluate = sgd.OnePassSGD(lr=1.0), {"first": first, "second": second}
    times = np.linspace(0, 12, 5)
    first_phase = sgd.solve_ode(first, algorithm, start, times=times, evaluate=evaluate)
    second_phase = sgd.solve_ode(
        second, algorithm, sgd.start_from(first_phase), times=times, evaluate=evaluate
    )
    first_risk = second_phase.evaluated_risk.sel(evaluation="first").values[0]
    assert first_risk[-1] > 3 * first_risk[0]
    assert second_phase.evaluated_risk.sel(evaluation="second").values[0, -1] < 0.5 * first_risk[-1]
    runs = sgd.simulate(
        second,
        algorithm,
        sgd.start_from(first_phase),
        times=times,
        dimension=300,
        runs=30,
        seed=4,
        method="direct",
        evaluate=evaluate,
    )
    compared = sgd.compare(second_phase, runs)
    gap = np.abs(compared.evaluated_risk_simulation - compared.evaluated_risk_theory).values
    # The error of the ODE is of order 1/d, less than 4% at d = 300.
    sampling_error = Z * compared.evaluated_risk_standard_error.values
    assert np.all(gap <= sampling_error + 0.04 * compared.evaluated_risk_theory.values)


@pytest.mark.slow
def test_wide_networks():
    problem = sgd.TeacherStudent(width=8, activation="erf", noise=0.1)
    start = sgd.random_start(problem, dimension=100, seed=1, wide=True)
    record = {"alignment": lambda state: jnp.mean(state["M"] ** 2)}
    result = sgd.solve_mean_field(
        problem,
        ONE_PASS,
        start,
        times=[0, 1.0],
        record=record,
        evaluate={"clean": problem.replace(noise=0.0)},
    )
    np.testing.assert_allclose(
        result["alignment"].values, (result.M**2).mean(("unit", "signal")).values, rtol=1e-12
    )
    np.testing.assert_allclose(
        result.evaluated_risk.values[..., 0], result.excess_risk.values, rtol=1e-6
    )


def test_tensors_and_user_dynamics():
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
        LINEAR_START,
        times=[0, 1.0],
        record={"twice": lambda s: 2 * s["m"]},
        evaluate={"quiet": quiet},
    )
    np.testing.assert_allclose(own["twice"].values, 2 * own.m.values)
    np.testing.assert_allclose(
        own.evaluated_risk.values[..., 0], own.risk.values - 0.5 * LinearStudent().noise, rtol=1e-12
    )
    # A start from this result contains only the state.
    assert set(sgd.start_from(own)) == {"m", "q"}


@pytest.mark.slow
def test_sweeps_and_plots():
    swept = sgd.sweep(
        "solve_ode",
        problem=PROBLEM,
        algorithm=ONE_PASS,
        start=START,
        times=[0, 1.0],
        over={"lr": [0.1, 0.5]},
        workers=1,
        **OBSERVABLES,
    )
    single = SOLVERS["ode"](**OBSERVABLES)
    np.testing.assert_allclose(
        swept["cosine"].isel(lr=1).values, single["cosine"].values, rtol=1e-7
    )
    np.testing.assert_allclose(
        swept["evaluated_risk"].isel(lr=1).values, single["evaluated_risk"].values, rtol=1e-7
    )
    _, ax = sgd.plot.variable(single, "evaluated_risk")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["clean", "same"]
    assert len(sgd.plot.variable(single, "cosine")[1].lines) == 4


def test_invalid_arguments_raise():
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
