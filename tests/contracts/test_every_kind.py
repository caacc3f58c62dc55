"""All kinds of problems by all solvers and questions that support them.

`tests/base/test_support.py` tests the unsupported combinations. A small problem of each kind
(`kinds.py`) is solved once by each solver. Theory and runs are compared at a false-alarm rate of
1e-6. Files, continued runs and sweeps are tested with the same results.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import nullcontext

import jax
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import sgdynamics as sgd
from sgdynamics.base.support import KINDS, why_not
from sgdynamics.solvers import functional
from tests.conftest import FALSE_ALARM, Z, full_optimisation, same_law, slow
from tests.contracts.kinds import LR, PROBLEMS, algorithm_of, start_of

D = 400
STEPS = [0, 600, 1200]  # t = 0, 0.15, 0.3
TIMES = [step * LR / D for step in STEPS]
DATA_STEPS = [0, 1, 3]  # steps on a fixed data set: each is a whole pass
SLACK = 3 / D  # relative correction of a mean at finite d
# These kinds have sampled expectations or sums over cases. They have tests of their own,
# tests/simulation/test_tokens.py and test_regularised.py.
COMPILES_LONG = ("several inputs", "dropout", "contexts", "other inputs", "temperature")
SLOW_SDES = ("mixture", "rule", "workers", "students", *COMPILES_LONG)

CALLS = {
    "solve_ode": lambda *objects: sgd.solve_ode(*objects, times=TIMES),
    "solve_sde": lambda *objects: sgd.solve_sde(
        *objects, times=TIMES, dimension=D, runs=100, seed=3, step=0.03
    ),
    "simulate": lambda *objects: sgd.simulate(*objects, steps=STEPS, dimension=D, runs=200, seed=1),
    "direct": lambda *objects: sgd.simulate(
        *objects, steps=STEPS, dimension=D, runs=40, seed=2, method="direct"
    ),
    "solve_dmft": lambda *objects: sgd.solve_dmft(
        *objects, steps=DATA_STEPS, paths=4096, replicates=4, seed=4
    ),
}
DIRECT_ONLY = {"simulate": CALLS["direct"]}  # without an exact chain
# Runs of a deep linear network take steps of square matrices.
MATRICES = {
    "simulate": lambda *objects: sgd.simulate(
        *objects, steps=[0, 30, 60], dimension=20, runs=20, seed=1
    )
}
# Networks whose results have observables of the weights, from which runs cannot continue.
WITHOUT_CONTINUATION = ("deep linear", "diagonal")
ON_DATA = {
    "simulate": lambda *objects: sgd.simulate(
        *objects, steps=DATA_STEPS, dimension=D, runs=40, seed=1
    ),
    "direct": lambda *objects: sgd.simulate(
        *objects, steps=DATA_STEPS, dimension=D, runs=40, seed=2, method="direct"
    ),
}


def supported_kinds(question, *excluded):
    """The kinds that a question supports, without the excluded ones.

    Batch sizes that are not integers (kind "other batch") have no runs to compare with;
    tests/ode/test_batches.py tests them.
    """
    return [kind for kind in KINDS if why_not(question, kind) is None and kind not in excluded]


@functools.cache
def solution(kind, method):
    """The result of a method, computed once for all tests."""
    problem = PROBLEMS[kind]()
    question = "simulate" if method == "direct" else method
    calls = CALLS | {
        "fixed data": ON_DATA,
        "update on data": ON_DATA,
        "message passing": ON_DATA,
        "coordinatewise update on data": {"simulate": ON_DATA["direct"]},
        "coordinatewise update": DIRECT_ONLY,
        "epochs": DIRECT_ONLY,
        "deep linear": MATRICES,
    }.get(kind, {})
    with full_optimisation() if question == "simulate" else nullcontext():
        return calls[method](
            problem, algorithm_of(kind, question), start_of(kind, problem, question)
        )


def variable_names(result):
    """Names of the overlaps in a result, and of its risk."""
    return [name for name in ("M", "Q", "a", "m", "r2", "risk") if name in result]


def assert_agreement(theory, result, slack):
    """Assert that means over runs assert_agreement with the theory within the errors of both."""
    assert np.allclose(result.t, theory.t, atol=1e-12)
    for name in variable_names(theory):
        assert result[name].dims == theory[name].dims
        values, expected = result[name].values, theory[name].values.mean(axis=0)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        theory_error = theory[f"{name}_error"].values[0] if f"{name}_error" in theory else 0.0
        allowed = Z * np.hypot(error, theory_error) + slack * np.abs(expected).max() + 1e-9
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap <= allowed), (result.attrs["method"], name, float((gap / allowed).max()))


def relative_change(theory):
    """Largest relative change of a variable over time.

    A comparison can fail only if the change is much larger than the tolerance.
    """
    return max(
        float(np.abs(theory[name][:, -1] - theory[name][:, 0]).max() / np.abs(theory[name]).max())
        for name in variable_names(theory)
    )


# For updates see tests/ode/test_update_step.py. A static head is a limit of head rates, and
# tests/ode/test_static_tops.py compares it with these.
@pytest.mark.parametrize(
    "kind",
    slow(
        supported_kinds("solve_ode", "other batch", "static head"),
        (
            "rule",
            "other update",
            "delayed update",
            "students",
            "coordinatewise update",
            "snr = inf",
            "diagonal",
            "mixture",
            "workers",
            *COMPILES_LONG,
        ),
    ),
)
def test_the_ode_is_the_mean_of_runs(kind):
    theory = solution(kind, "solve_ode")
    assert relative_change(theory) > 5 * SLACK
    # Updates are averaged over sampled points that jump, which limits the accuracy of a step.
    assert theory.attrs["error_integrator"] < (1e-5 if "update" in kind else 1e-6)
    for method in ("simulate", "direct") if kind != "own dynamics" else ("simulate",):
        assert_agreement(theory, solution(kind, method), SLACK)


@pytest.mark.parametrize("kind", slow(supported_kinds("solve_sde", "other batch"), SLOW_SDES))
def test_the_sde_has_the_mean_of_the_ode_and_the_standard_deviation_of_runs(kind):
    paths, chain = solution(kind, "solve_sde"), solution(kind, "simulate")
    assert_agreement(solution(kind, "solve_ode"), paths, SLACK + 3e-3)  # for the long steps
    name = "m" if kind in ("spiked tensor", "own dynamics") else "M"
    log_scales = [
        np.log(result[name].values[:, -1].std(axis=0, ddof=1)) for result in (paths, chain)
    ]
    # The log of the standard deviation of n normal values has the standard error sqrt(1/2n).
    error = np.sqrt(0.5 / len(paths.run) + 0.5 / len(chain.run))
    assert np.all(np.abs(log_scales[0] - log_scales[1]) <= Z * error + 0.05)


@pytest.mark.parametrize("kind", ["other update", "fixed data"])
def test_exact_and_direct_runs_have_the_same_law(kind):
    exact, direct = solution(kind, "simulate"), solution(kind, "direct")
    for name in ("M", "Q", "risk"):
        same_law(
            exact[name].values[:, -1].ravel(), direct[name].values[:, -1].ravel(), f"{kind}, {name}"
        )
    assert relative_change(exact) > 5 * SLACK


# The kind "fields" on a data set is "fixed data"; for epochs see tests/algorithms/test_epochs.py.
# A mixture has a DMFT of its own, at any snr. Deep linear and infinitely wide networks have no
# paths: tests/fixed_data/test_deep_linear.py and test_wide_network.py compare them with runs.
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    slow(
        supported_kinds("solve_dmft", "fields", "epochs", "deep linear", "wide network"),
        (
            "mixture",
            "snr = inf",
            "update on data",
            "top",
            "message passing",
            "diagonal",
            *COMPILES_LONG,
        ),
    ),
)
def test_dmft_is_the_mean_of_runs_on_a_data_set(kind):
    theory = solution(kind, "solve_dmft")
    problem = PROBLEMS[kind]()
    objects = problem, algorithm_of(kind, "solve_dmft"), start_of(kind, problem)
    runs = solution(kind, "simulate") if kind == "fixed data" else ON_DATA["direct"](*objects)
    assert relative_change(theory) > 5 * SLACK
    assert_agreement(theory, runs, 2 * SLACK)


@pytest.mark.parametrize("kind", supported_kinds("solve_mean_field"))
def test_the_mean_field_is_the_ode_of_small_steps(kind):
    """Rows in the span of the signals, q = 0, follow the mean-field limit at any width.

    See docs/theory.md.
    """
    problem, small = PROBLEMS[kind](), sgd.OnePassSGD(lr=1e-7)
    M = np.array([[0.4]])
    wide = sgd.solve_mean_field(problem, small, sgd.start(problem, M=M, q=[0.0]), times=TIMES)
    # At width p = 1 both solvers have the same time t/p.
    narrow = sgd.solve_ode(problem, small, sgd.start(problem, M=M, Q=M @ M.T), times=TIMES)
    for name in ("M", "risk"):
        np.testing.assert_allclose(wide[name], narrow[name], atol=1e-6)
    assert relative_change(wide) > 5 * SLACK


# The exit times of these kinds run in the slow tests: each compiles a program of its own.
SLOW_EXITS = (
    "mixture",
    "fields",
    "workers",
    "top",
    "rule",
    "spiked tensor",
    "other update",
    "coordinatewise update",
    *COMPILES_LONG,
)


# A static head has no runs: `test_static_tops` compares it with fast heads.
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", slow(supported_kinds("exit_time by the ODE", "static head"), SLOW_EXITS)
)
def test_runs_and_ode_have_the_same_exit_time(kind):
    problem, chain = PROBLEMS[kind](), solution(kind, "simulate")
    risk = (chain.excess_risk if "excess_risk" in chain else chain.risk).values.mean(axis=0)
    objects = (problem, algorithm_of(kind, "exit_time"), start_of(kind, problem))
    # The threshold is half-way between the risks of the last two times.
    options = {"threshold": float(1 - risk[1:].mean() / risk[0]), "max_time": 1.0}
    ode = sgd.exit_time(*objects, **options)
    # The exit criterion evaluates a sampled risk after each step, which is expensive.
    count = 16 if kind in COMPILES_LONG else 40 if kind == "coordinatewise update" else 100
    method = "direct" if kind == "coordinatewise update" else "exact"
    runs = sgd.exit_time(*objects, **options, method=method, dimension=D, runs=count, seed=5)
    assert ode.left == 1
    assert runs.left == count
    assert TIMES[1] < ode.mean < TIMES[2]
    # A fluctuating risk first passes the threshold early, by a fraction of the standard deviation.
    sampling_error = stats.t.isf(FALSE_ALARM / 2, count - 1) * runs.standard_error
    allowed = sampling_error + 0.5 * np.std(runs.times) + 2 * SLACK
    assert abs(runs.mean - ode.mean) <= allowed


@pytest.mark.parametrize("kind", slow(["fields", "mixture", "spiked tensor"], ("mixture",)))
def test_fixed_points_are_roots(kind):
    problem = PROBLEMS[kind]()
    algorithm = algorithm_of(kind, "fixed_points")
    options = {} if kind == "spiked tensor" else {"tries": 8}
    points = sgd.fixed_points(problem, algorithm, **options)
    assert points
    assert {point.verdict for point in points} <= {"stable", "saddle", "marginal"}
    if kind == "spiked tensor":
        return
    for point in points:
        start = sgd.start(problem, M=point.M, Q=point.Q, a=point.a)
        with jax.enable_x64(True):
            rate = functional.drift(
                problem.structure,
                problem.parameters,
                functional.state(start),
                lr=LR,
                quadrature=functional.quadrature(problem, start),
            )
        assert (
            max(float(np.abs(entries).max()) for entries in rate.values()) < 1e-6 + 10 * point.error
        )


def test_the_multiplicities_of_the_hessian_count_all_directions():
    problem = PROBLEMS["fields"]()
    spectrum = sgd.hessian_spectrum(problem, start_of("fields", problem), dimension=D)
    assert sum(spectrum.multiplicities) == problem.width * D
    # The loss (l^2 - s^2)^2/2 has the second derivative 6 l^2 - 2 s^2 in l. Its mean is 4 at
    # |w| = |w*| = 1.
    bulk = float(np.asarray(spectrum.eigenvalues)[np.argmax(spectrum.multiplicities)])
    assert bulk == pytest.approx(4.0, rel=1e-9)


# Runs that take long to compile or to solve.
SLOW_RUNS = (
    "coordinatewise update",
    "update on data",
    "coordinatewise update on data",
    "message passing",
    "deep linear",
    "diagonal",
    *COMPILES_LONG,
)


@pytest.mark.parametrize("kind", slow(supported_kinds("simulate"), SLOW_RUNS))
def test_results_are_saved_and_continued(kind, tmp_path):
    result = solution(kind, "simulate")
    xr.testing.assert_identical(sgd.load(sgd.save(result, tmp_path / "result.nc")), result)
    if kind in WITHOUT_CONTINUATION:
        with pytest.raises(ValueError, match=r"^result = .*recorded"):
            sgd.start_from(result)
        return
    start = sgd.start_from(result)
    final_values = {
        name: np.asarray(start[name] if isinstance(start, dict) else getattr(start, name))
        for name in variable_names(result)
        if name != "risk"
    }
    for name, value in final_values.items():
        np.testing.assert_allclose(value, result[name].values[:, -1], rtol=1e-12)


@pytest.mark.parametrize(
    "kind",
    slow([kind for kind in supported_kinds("simulate") if not why_not("sweep", kind)], SLOW_RUNS),
)
def test_a_sweep_agrees_with_single_calls(kind):
    problem = PROBLEMS[kind]()
    options = {"steps": STEPS, "dimension": D, "runs": 200, "seed": 1}
    if kind in ("fixed data", "update on data", "message passing", "coordinatewise update on data"):
        options |= {"steps": DATA_STEPS, "runs": 40}
    if kind in ("coordinatewise update", "coordinatewise update on data", "epochs"):
        options |= {"method": "direct", "runs": 40, "seed": 2}
    if kind == "deep linear":
        options |= {"steps": [0, 30, 60], "dimension": 20, "runs": 20}
    # message passing has no learning rate
    parameter, other, value = ("lr", LR / 2, LR)
    if kind == "message passing":
        parameter, other, value = ("samples_per_dimension", 1.5, 2.0)
    swept = sgd.sweep(
        "simulate",
        problem=problem,
        algorithm=algorithm_of(kind, "sweep"),
        start=start_of(kind, problem),
        over={parameter: [other, value]},
        **options,
    )
    single = solution(kind, "simulate")
    for name in variable_names(single):
        same, changed = (swept[name].sel({parameter: at}) for at in (value, other))
        np.testing.assert_allclose(same, single[name], rtol=1e-9, atol=1e-12)
        assert name in ("a", "Q") or not np.allclose(changed, single[name], rtol=1e-4)


@pytest.mark.parametrize("kind", ["fields", "mixture", "snr = inf", "own dynamics"])
def test_compare_finds_only_true_gaps(kind):
    theory, runs = solution(kind, "solve_ode"), solution(kind, "simulate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = sgd.compare(theory, runs)
    gap = np.abs(table.risk_simulation - table.risk_theory)
    assert np.all(
        gap <= Z * table.risk_standard_error + SLACK * np.abs(table.risk_theory).max() + 1e-9
    )
    shifted = sgd.compare(theory.assign(risk=theory.risk + 10 * runs.risk.std("run") + 1.0), runs)
    assert float(np.abs(shifted.risk_z).min()) > Z
