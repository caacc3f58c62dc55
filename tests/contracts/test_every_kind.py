"""Every kind of problem through every solver and question that answers for it, for real: `tests/base/test_support.py` has the refusals.

One small problem of each kind (`kinds.py`), each solved once by each solver: theory against runs at a false-alarm rate of 1e-6, and what
is asked of a result (files, going on from it, sweeps) on the same results.
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
FEW = [0, 1, 3]  # steps of a fixed data set, each a whole pass
SLACK = 3 / D  # what finite d adds to a mean, relative
# sampled expectations, or sums over cases; their own tests are test_tokens.py and test_regularised.py of tests/simulation
COMPILES_LONG = ("several inputs", "dropout", "contexts", "other inputs", "temperature")

CALLS = {
    "solve_ode": lambda *asked: sgd.solve_ode(*asked, times=TIMES),
    "solve_sde": lambda *asked: sgd.solve_sde(
        *asked, times=TIMES, dimension=D, runs=100, seed=3, step=0.03
    ),
    "simulate": lambda *asked: sgd.simulate(*asked, steps=STEPS, dimension=D, runs=200, seed=1),
    "direct": lambda *asked: sgd.simulate(
        *asked, steps=STEPS, dimension=D, runs=40, seed=2, method="direct"
    ),
    "solve_dmft": lambda *asked: sgd.solve_dmft(
        *asked, steps=FEW, paths=4096, replicates=4, seed=4
    ),
}
DIRECTLY = {"simulate": CALLS["direct"]}  # no exact chain
ON_DATA = {
    "simulate": lambda *asked: sgd.simulate(*asked, steps=FEW, dimension=D, runs=40, seed=1),
    "direct": lambda *asked: sgd.simulate(
        *asked, steps=FEW, dimension=D, runs=40, seed=2, method="direct"
    ),
}


def answered(question, *but):
    """The kinds for which a question is answered; batches that are no whole numbers have runs of no kind: tests/ode/test_batches.py."""
    return [kind for kind in KINDS if why_not(question, kind) is None and kind not in but]


@functools.cache
def solved(kind, method):
    """A result, computed once for all that is asked of it."""
    problem = PROBLEMS[kind]()
    question = "simulate" if method == "direct" else method
    calls = CALLS | {
        "fixed data": ON_DATA,
        "coordinatewise update": DIRECTLY,
        "epochs": DIRECTLY,
    }.get(kind, {})
    with full_optimisation() if question == "simulate" else nullcontext():
        return calls[method](
            problem, algorithm_of(kind, question), start_of(kind, problem, question)
        )


def numbers(result):
    """The overlaps that a result of this kind has, and its risk."""
    return [name for name in ("M", "Q", "a", "m", "r2", "risk") if name in result]


def agree(theory, result, slack):
    """Means over runs are those of the theory, within the errors of both."""
    assert np.allclose(result.t, theory.t, atol=1e-12)
    for name in numbers(theory):
        assert result[name].dims == theory[name].dims
        values, expected = result[name].values, theory[name].values.mean(axis=0)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        own = theory[f"{name}_error"].values[0] if f"{name}_error" in theory else 0.0
        allowed = Z * np.hypot(error, own) + slack * np.abs(expected).max() + 1e-9
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap <= allowed), (result.attrs["method"], name, float((gap / allowed).max()))


def moves(theory):
    """The comparison can fail: what is compared has moved by many times what is forgiven."""
    return max(
        float(np.abs(theory[name][:, -1] - theory[name][:, 0]).max() / np.abs(theory[name]).max())
        for name in numbers(theory)
    )


# of updates: tests/ode/test_update_step.py
@pytest.mark.parametrize(
    "kind",
    slow(
        answered("solve_ode", "other batch"),
        ("other update", "coordinatewise update", "snr = inf", *COMPILES_LONG),
    ),
)
def test_the_ode_is_the_mean_of_runs(kind):
    theory = solved(kind, "solve_ode")
    assert moves(theory) > 5 * SLACK
    # where a step is averaged over points that jump, steps are as long as these allow
    assert theory.attrs["error_integrator"] < (1e-5 if "update" in kind else 1e-6)
    for method in ("simulate", "direct") if kind != "own dynamics" else ("simulate",):
        agree(theory, solved(kind, method), SLACK)


@pytest.mark.parametrize("kind", slow(answered("solve_sde", "other batch"), COMPILES_LONG))
def test_the_sde_has_the_mean_of_the_ode_and_the_spread_of_runs(kind):
    paths, chain = solved(kind, "solve_sde"), solved(kind, "simulate")
    agree(solved(kind, "solve_ode"), paths, SLACK + 3e-3)  # its steps are long here
    name = "m" if kind in ("spiked tensor", "own dynamics") else "M"
    one, other = (
        np.log(result[name].values[:, -1].std(axis=0, ddof=1)) for result in (paths, chain)
    )
    # log of a standard deviation of n normal values: error sqrt(1/2n)
    assert np.all(
        np.abs(one - other) <= Z * np.sqrt(0.5 / len(paths.run) + 0.5 / len(chain.run)) + 0.05
    )


@pytest.mark.parametrize("kind", ["other update", "fixed data"])
def test_exact_and_direct_runs_have_one_law(kind):
    exact, direct = solved(kind, "simulate"), solved(kind, "direct")
    for name in ("M", "Q", "risk"):
        same_law(
            exact[name].values[:, -1].ravel(), direct[name].values[:, -1].ravel(), f"{kind}, {name}"
        )
    assert moves(exact) > 5 * SLACK


# fields on a data set are the kind "fixed data" (epochs: tests/algorithms/test_epochs.py); a mixture has a DMFT of its own, at any snr
@pytest.mark.parametrize(
    "kind",
    slow(answered("solve_dmft", "fields", "epochs"), ("mixture", "snr = inf", *COMPILES_LONG)),
)
def test_dmft_is_the_mean_of_runs_on_a_data_set(kind):
    theory = solved(kind, "solve_dmft")
    problem = PROBLEMS[kind]()
    asked = problem, algorithm_of(kind, "solve_dmft"), start_of(kind, problem)
    runs = solved(kind, "simulate") if kind == "fixed data" else ON_DATA["direct"](*asked)
    assert moves(theory) > 5 * SLACK
    agree(theory, runs, 2 * SLACK)


@pytest.mark.parametrize("kind", answered("solve_mean_field"))
def test_the_mean_field_is_the_ode_of_small_steps(kind):
    """Rows in the span of the signals, q = 0, are the system of infinite width at any width; theory.md."""
    problem, small = PROBLEMS[kind](), sgd.OnePassSGD(lr=1e-7)
    M = np.array([[0.4]])
    wide = sgd.solve_mean_field(problem, small, sgd.start(problem, M=M, q=[0.0]), times=TIMES)
    narrow = sgd.solve_ode(
        problem, small, sgd.start(problem, M=M, Q=M @ M.T), times=TIMES
    )  # p = 1: t/p is t
    for name in ("M", "risk"):
        np.testing.assert_allclose(wide[name], narrow[name], atol=1e-6)
    assert moves(wide) > 5 * SLACK


# a program of its own each, and for these the slow tests compile it
LEAVE_LATER = (
    "mixture",
    "rule",
    "spiked tensor",
    "other update",
    "coordinatewise update",
    *COMPILES_LONG,
)


@pytest.mark.parametrize("kind", slow(answered("exit_time by the ODE"), LEAVE_LATER))
def test_runs_leave_when_the_ode_does(kind):
    problem, chain = PROBLEMS[kind](), solved(kind, "simulate")
    risk = (chain.excess_risk if "excess_risk" in chain else chain.risk).values.mean(axis=0)
    # half-way between the risks of the last two times
    asked = (problem, algorithm_of(kind, "exit_time"), start_of(kind, problem))
    setting = {"threshold": float(1 - risk[1:].mean() / risk[0]), "max_time": 1.0}
    ode = sgd.exit_time(*asked, **setting)
    count = (
        16 if kind in COMPILES_LONG else 40 if kind == "coordinatewise update" else 100
    )  # a sampled risk is asked for after every step
    method = "direct" if kind == "coordinatewise update" else "exact"
    runs = sgd.exit_time(*asked, **setting, method=method, dimension=D, runs=count, seed=5)
    assert ode.left == 1
    assert runs.left == count
    assert TIMES[1] < ode.mean < TIMES[2]
    # the first passage of a risk that fluctuates is early, by a share of the spread of times
    assert (
        abs(runs.mean - ode.mean)
        <= stats.t.isf(FALSE_ALARM / 2, count - 1) * runs.standard_error
        + 0.5 * np.std(runs.times)
        + 2 * SLACK
    )


@pytest.mark.parametrize("kind", slow(["fields", "mixture", "spiked tensor"], ("mixture",)))
def test_fixed_points_are_roots(kind):
    problem = PROBLEMS[kind]()
    algorithm = algorithm_of(kind, "fixed_points")
    found = sgd.fixed_points(
        problem, algorithm, **({} if kind == "spiked tensor" else {"tries": 8})
    )
    assert found
    assert {point.verdict for point in found} <= {"stable", "saddle", "marginal"}
    if kind == "spiked tensor":
        return
    for point in found:
        begin = sgd.start(problem, M=point.M, Q=point.Q, a=point.a)
        with jax.enable_x64(True):
            rate = functional.drift(
                problem.structure,
                problem.parameters,
                functional.state(begin),
                lr=LR,
                quadrature=functional.quadrature(problem, begin),
            )
        assert max(float(np.abs(part).max()) for part in rate.values()) < 1e-6 + 10 * point.error


def test_the_hessian_counts_every_direction():
    problem = PROBLEMS["fields"]()
    found = sgd.hessian_spectrum(problem, start_of("fields", problem), dimension=D)
    assert sum(found.multiplicities) == problem.width * D
    # loss (l^2 - s^2)^2/2: its second derivative in l is 6 l^2 - 2 s^2, whose mean is 4 where |w| = |w*| = 1
    bulk = float(np.asarray(found.eigenvalues)[np.argmax(found.multiplicities)])
    assert bulk == pytest.approx(4.0, rel=1e-9)


@pytest.mark.parametrize(
    "kind", slow(answered("simulate"), ("coordinatewise update", *COMPILES_LONG))
)
def test_files_and_going_on(kind, tmp_path):
    result = solved(kind, "simulate")
    xr.testing.assert_identical(sgd.load(sgd.save(result, tmp_path / "result.nc")), result)
    onward = sgd.start_from(result)
    ends = {
        name: np.asarray(onward[name] if isinstance(onward, dict) else getattr(onward, name))
        for name in numbers(result)
        if name != "risk"
    }
    for name, value in ends.items():
        np.testing.assert_allclose(value, result[name].values[:, -1], rtol=1e-12)


@pytest.mark.parametrize(
    "kind", slow(answered("simulate"), ("coordinatewise update", *COMPILES_LONG))
)
def test_a_sweep_is_its_calls(kind):
    problem = PROBLEMS[kind]()
    rest = dict(problem=problem, start=start_of(kind, problem), runs=200, seed=1, dimension=D)
    rest |= {"steps": FEW, "runs": 40} if kind == "fixed data" else {"steps": STEPS}
    rest |= (
        {"method": "direct", "runs": 40, "seed": 2}
        if kind in ("coordinatewise update", "epochs")
        else {}
    )
    swept = sgd.sweep(
        "simulate", algorithm=algorithm_of(kind, "sweep"), over={"lr": [LR / 2, LR]}, **rest
    )
    alone = solved(kind, "simulate")
    for name in numbers(alone):
        np.testing.assert_allclose(swept[name].sel(lr=LR), alone[name], rtol=1e-9, atol=1e-12)
        assert name in ("a", "Q") or not np.allclose(
            swept[name].sel(lr=LR / 2), alone[name], rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["fields", "mixture", "snr = inf", "own dynamics"])
def test_compare_shows_no_gap_and_every_gap(kind):
    theory, runs = solved(kind, "solve_ode"), solved(kind, "simulate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = sgd.compare(theory, runs)
    gap = np.abs(table.risk_simulation - table.risk_theory)
    assert np.all(
        gap <= Z * table.risk_standard_error + SLACK * np.abs(table.risk_theory).max() + 1e-9
    )
    shifted = sgd.compare(theory.assign(risk=theory.risk + 10 * runs.risk.std("run") + 1.0), runs)
    assert float(np.abs(shifted.risk_z).min()) > Z
