"""Late times: log-time solutions against closed forms and roots, steps that run out told apart from divergence, exits on the way."""

from __future__ import annotations

import warnings
from functools import partial

import jax
import numpy as np
import pytest
from scipy import optimize

import sgdynamics as sgd
from sgdynamics.ode import stiff
from sgdynamics.solvers import functional
from tests.conftest import slow

DECADES = np.geomspace(0.1, 1e8, 28)
SLOW = ((1.0, 0.5), (1e-3, 0.3), (1e-6, 0.2))


@pytest.fixture(scope="module")
def linear():
    """A linear student on three covariance blocks, whose slowest takes t = 1e6, and its gradient flow in closed form."""
    problem = sgd.TeacherStudent(width=1, activation="linear", covariance=SLOW)
    begin = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    eigenvalues, fractions = np.array(SLOW).T

    def risk(t):
        # |w - w*|^2 in block b is fraction_b (1 - 2 * .2 + 1) and decays like exp(-2 eigenvalue_b t)
        return 0.5 * np.sum(
            eigenvalues * fractions * 1.6 * np.exp(-2 * eigenvalues * np.asarray(t)[..., None]),
            axis=-1,
        )

    return problem, begin, risk


def test_gradient_flow_over_nine_decades(linear):
    problem, begin, risk = linear
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), begin, times=DECADES)
    assert result.attrs["integrator"] == "Dopri8, then LSODA"
    assert "ran_out_at" not in result.coords
    expected = risk(DECADES)
    seen = expected > 1e-13
    np.testing.assert_allclose(result.risk.values[0][seen], expected[seen], rtol=1e-6, atol=1e-14)
    assert result.attrs["error_integrator"] < 1e-2  # relative to 1e-12 of the largest risk at least


def test_a_stable_fixed_point_is_kept_to_late_times():
    """erf with label noise: NaN "from t = 0 on" before; the end is a root of the drift, found by SciPy, and its risk stays."""
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=1e-4)
    begin = sgd.random_start(problem, dimension=1000, seed=0, runs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.2), begin, times=[1e3, 1e4, 2e5, 1e8])
    assert np.isnan(result.diverged_at).all()
    late = result.risk.values
    np.testing.assert_allclose(late[:, 1:], late[0, 1], rtol=1e-7)
    np.testing.assert_allclose(late[:, 0], late[:, 1], rtol=1e-3)

    drift = jax.jit(partial(functional.drift, problem.structure, problem.parameters, lr=0.2))

    def rate(flat):
        M, q = flat[:4].reshape(1, 2, 2), flat[4:]
        Q = np.array([[[q[0], q[1]], [q[1], q[2]]]])
        with jax.enable_x64(True):
            moved = drift({"M": M, "Q": Q, "a": np.ones(2)})
        Q = np.asarray(moved["Q"])[0]
        return np.concatenate([np.asarray(moved["M"]).reshape(-1), [Q[0, 0], Q[0, 1], Q[1, 1]]])

    Q = result.Q.values[0, 1]
    found = optimize.root(
        rate,
        np.concatenate([result.M.values[0, 1].reshape(-1), [Q[0, 0], Q[0, 1], Q[1, 1]]]),
        tol=1e-13,
    )
    assert np.abs(rate(found.x)).max() < 1e-13
    for index in (1, 2, 3):
        np.testing.assert_allclose(result.M.values[0, index].reshape(-1), found.x[:4], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["fixed", "trained"])
def test_random_starts_of_more_units_than_the_teacher(head):
    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="erf", noise=1e-4, head=head)
    begin = sgd.random_start(problem, dimension=1000, seed=1, runs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sgd.solve_ode(
            problem, sgd.OnePassSGD(lr=0.2), begin, times=np.geomspace(1, 1e8, 17)
        )
    assert np.isfinite(result.risk).all()
    assert result.attrs["error_integrator"] < 1e-6
    np.testing.assert_allclose(result.risk[:, -1], result.risk[:, -2], rtol=2e-3)


def test_running_out_of_steps_is_not_divergence(linear, monkeypatch):
    problem, begin, risk = linear
    monkeypatch.setattr(stiff, "STEPS_PER_DECADE", 40)
    monkeypatch.setattr(stiff, "MOST_STEPS", 60)
    with pytest.warns(
        UserWarning, match=r"ran out of steps after t = .*the solution did not diverge"
    ):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), begin, times=DECADES)
    reached = np.isfinite(result.risk.values[0])
    assert 0.2 < reached.mean() < 1
    assert np.isnan(result.diverged_at).all()
    assert float(result.ran_out_at[0]) == DECADES[reached][-1]
    np.testing.assert_allclose(result.risk.values[0][reached], risk(DECADES[reached]), rtol=1e-6)


@pytest.mark.slow
def test_growth_as_a_power_is_no_divergence():
    """Hebb's rule: Q grows as alpha^2, beyond 1e6 at alpha = 1.3e3; m and Q have closed paths."""
    problem, alpha = sgd.models.perceptron("hebb"), np.array([10.0, 1e3, 1e4, 1e5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sgd.solve_ode(
            problem, sgd.OnePassSGD(lr=1.0), sgd.start(problem, M=[[0.2]], Q=[[1.0]]), alpha=alpha
        )
    assert np.isnan(result.diverged_at).all()
    c = np.sqrt(2 / np.pi)
    np.testing.assert_allclose(result.M.values[0, :, 0, 0], 0.2 + c * alpha, rtol=1e-8)
    np.testing.assert_allclose(
        result.Q.values[0, :, 0, 0], 1 + alpha + 0.4 * c * alpha + c**2 * alpha**2, rtol=1e-8
    )


def test_divergence_is_still_divergence():
    problem = sgd.TeacherStudent(width=1, activation="square")
    begin = sgd.start(problem, M=[[0.5]], Q=[[3.0]])
    with pytest.warns(UserWarning, match="runs diverged"):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.14), begin, times=[1e-3, 1e6])
    assert float(result.diverged_at[0]) == 1e-3
    assert "ran_out_at" not in result.coords


@pytest.mark.slow  # exits at usual times: tests/analysis/test_exit_times.py
def test_exit_on_the_way(linear):
    """The risk is 1 - .999 of its start on the slowest block only: an exit at t of order 1e5, far beyond explicit steps."""
    problem, begin, risk = linear
    threshold = 1 - 0.5 * float(risk(1e4)) / float(risk(0.0))
    found = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.0), begin, threshold=threshold, max_time=1e7)
    expected = optimize.brentq(
        lambda t: float(risk(t)) - (1 - threshold) * float(risk(0.0)), 1e3, 1e7
    )
    assert expected > 3e4
    assert found.times[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_exit_on_the_way_in_a_sweep(linear):
    problem, begin, risk = linear
    threshold = 1 - 0.5 * float(risk(1e4)) / float(risk(0.0))
    expected = sgd.exit_time(
        problem, sgd.OnePassSGD(lr=0.0), begin, threshold=threshold, max_time=1e7
    ).times[0]
    swept = sgd.sweep(
        "exit_time",
        problem=problem,
        algorithm=sgd.OnePassSGD(lr=0.0),
        start=begin,
        over={"threshold": [0.3, threshold]},
        max_time=1e7,
        progress=False,
    )
    np.testing.assert_allclose(np.asarray(swept["times"]).reshape(-1)[-1], expected, rtol=1e-6)


OTHERS = {
    # a stable fixed point each, reached long before the end; the fastest rate there is of order one
    "spiked": (sgd.SpikedTensor(order=2, snr=4.0, ridge=0.1), {"m": 0.3, "r2": 0.8}),
    "sliding": (
        sgd.GaussianMixture("xor", width=2, snr=np.inf, weight_decay=0.1),
        {"M": [[0.3, 0.2], [0.1, 0.4]], "Q": np.eye(2)},
    ),
    "mean field": (
        sgd.TeacherStudent(width=3, activation="erf", noise=0.1, weight_decay=0.01),
        {"M": [[0.3], [0.1], [-0.2]], "q": np.ones(3)},
    ),
}


@pytest.mark.parametrize("name", slow(OTHERS, ["sliding"]))
def test_every_solver_reaches_late_times_or_says_how_far_it_came(name, monkeypatch):
    problem, overlaps = OTHERS[name]
    solver = sgd.solve_mean_field if name == "mean field" else sgd.solve_ode
    begin, algorithm = sgd.start(problem, **overlaps), sgd.OnePassSGD(lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late = solver(problem, algorithm, begin, times=[0.1, 3e5, 1e7])
    assert np.isnan(late.diverged_at).all()
    assert "ran_out_at" not in late.coords
    np.testing.assert_allclose(late.risk[0, 1:], late.risk[0, 1], rtol=1e-5)
    assert float(abs(late.risk[0, 0] / late.risk[0, 1] - 1)) > 1e-3  # it had somewhere to go
    monkeypatch.setattr(stiff, "STEPS_PER_DECADE", 4)
    monkeypatch.setattr(stiff, "MOST_STEPS", 4)
    with pytest.warns(UserWarning, match=r"ran out of steps after t = 0.1 .*did not diverge"):
        short = solver(problem, algorithm, begin, times=[0.1, 3e5, 1e7])
    assert np.isnan(short.diverged_at).all()
    assert float(short.ran_out_at[0]) == 0.1
    assert float(short.risk[0, 0]) == pytest.approx(float(late.risk[0, 0]), rel=1e-9)
    assert np.isnan(short.risk[0, 1:]).all()


def final_risk(problem, begin, lr, mode):
    end = functional.solve(
        problem.structure,
        problem.parameters,
        functional.state(begin),
        [0.5],
        lr=lr,
        last=True,
        mode=mode,
    )
    return functional.risk(problem.structure, problem.parameters, end)


@pytest.fixture(scope="module")
def narrow():
    problem = sgd.TeacherStudent(width=1, activation="square")
    return problem, sgd.start(problem, M=[[[0.5]], [[0.1]]], Q=[[[1.0]], [[0.5]]])


@pytest.mark.slow  # the reverse mode: tests/solvers/test_functional.py
def test_forward_mode_and_runs(narrow):
    problem, begin = narrow
    with jax.enable_x64(True):
        value, slope = jax.jit(
            lambda lr: jax.jvp(lambda lr: final_risk(problem, begin, lr, "forward"), (lr,), (1.0,))
        )(0.05)
        every = jax.jit(
            lambda lr: functional.solve(
                problem.structure, problem.parameters, functional.state(begin, None), [0.5], lr=lr
            )
        )
        step = 1e-4
        ends = [every(lr) for lr in (0.05, 0.05 + step, 0.05 - step)]
        risk = jax.jit(
            lambda end: functional.risk(
                problem.structure, problem.parameters, jax.tree.map(lambda leaf: leaf[0, 0], end)
            )
        )
        risks = [risk(end) for end in ends]
    assert float(value) == pytest.approx(float(risks[0]), rel=1e-9)
    assert float(slope) == pytest.approx(float(risks[1] - risks[2]) / (2 * step), rel=1e-6)
    expected = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.05), begin, times=[0.5])
    np.testing.assert_allclose(np.asarray(ends[0]["Q"])[:, 0, 0], expected.Q[:, 0], rtol=1e-8)
    with pytest.raises(ValueError, match="mode = 'backward'"):
        functional.solve(
            problem.structure, problem.parameters, functional.state(begin), [0.5], mode="backward"
        )


@pytest.mark.slow
def test_second_derivatives(narrow):
    problem, begin = narrow
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda lr: final_risk(problem, begin, lr, "reverse")))
        step = 1e-4
        bend = float(slope(0.05 + step) - slope(0.05 - step)) / (2 * step)
        nested = jax.jit(
            jax.jacfwd(jax.jacfwd(lambda lr: final_risk(problem, begin, lr, "forward")))
        )(0.05)
        assert float(nested) == pytest.approx(bend, rel=1e-5)
        assert float(
            jax.jit(jax.hessian(lambda lr: final_risk(problem, begin, lr, "both")))(0.05)
        ) == pytest.approx(bend, rel=1e-5)
