"""Late times: solutions over many decades, steps that run out, divergence, and late exits."""

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
    """A linear student on three covariance blocks, with its risk under gradient flow.

    The slowest block takes t = 1e6.
    """
    problem = sgd.TeacherStudent(width=1, activation="linear", covariance=SLOW)
    start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    eigenvalues, fractions = np.array(SLOW).T

    def risk(t):
        # |w - w*|^2 in block b is f_b (1 - 2 * 0.2 + 1) at t = 0 and decays as exp(-2 l_b t).
        decays = np.exp(-2 * eigenvalues * np.asarray(t)[..., None])
        return 0.5 * np.sum(eigenvalues * fractions * 1.6 * decays, axis=-1)

    return problem, start, risk


@pytest.mark.slow
def test_gradient_flow_over_nine_decades(linear):
    problem, start, risk = linear
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=DECADES)
    assert result.attrs["integrator"] == "Dopri8, then LSODA"
    assert "ran_out_at" not in result.coords
    expected = risk(DECADES)
    is_resolved = expected > 1e-13
    risks = result.risk.values[0][is_resolved]
    np.testing.assert_allclose(risks, expected[is_resolved], rtol=1e-6, atol=1e-14)
    # The estimate is relative to the risk, or to 1e-12 of the largest risk where that is larger.
    assert result.attrs["error_integrator"] < 1e-2


@pytest.mark.slow
def test_a_stable_fixed_point_is_stable_to_late_times():
    """The end is a root of the drift, which SciPy also computes, and its risk is constant."""
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=1e-4)
    start = sgd.random_start(problem, dimension=1000, seed=0, runs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.2), start, times=[1e3, 1e4, 2e5, 1e8])
    assert np.isnan(result.diverged_at).all()
    late = result.risk.values
    np.testing.assert_allclose(late[:, 1:], late[0, 1], rtol=1e-7)
    np.testing.assert_allclose(late[:, 0], late[:, 1], rtol=1e-3)

    drift = jax.jit(partial(functional.drift, problem.structure, problem.parameters, lr=0.2))

    def flatten(M, Q):
        return np.concatenate([M.reshape(-1), [Q[0, 0], Q[0, 1], Q[1, 1]]])

    def rate(flat):
        M, q = flat[:4].reshape(1, 2, 2), flat[4:]
        Q = np.array([[[q[0], q[1]], [q[1], q[2]]]])
        with jax.enable_x64(True):
            rates = drift({"M": M, "Q": Q, "a": np.ones(2)})
        return flatten(np.asarray(rates["M"]), np.asarray(rates["Q"])[0])

    first_guess = flatten(result.M.values[0, 1], result.Q.values[0, 1])
    root = optimize.root(rate, first_guess, tol=1e-13)
    assert np.abs(rate(root.x)).max() < 1e-13
    for index in (1, 2, 3):
        np.testing.assert_allclose(result.M.values[0, index].reshape(-1), root.x[:4], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["fixed", "trained"])
def test_random_starts_of_more_units_than_the_teacher(head):
    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="erf", noise=1e-4, head=head)
    start = sgd.random_start(problem, dimension=1000, seed=1, runs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sgd.solve_ode(
            problem, sgd.OnePassSGD(lr=0.2), start, times=np.geomspace(1, 1e8, 17)
        )
    assert np.isfinite(result.risk).all()
    assert result.attrs["error_integrator"] < 1e-6
    np.testing.assert_allclose(result.risk[:, -1], result.risk[:, -2], rtol=2e-3)


@pytest.mark.slow
def test_running_out_of_steps_is_not_divergence(linear, monkeypatch):
    problem, start, risk = linear
    monkeypatch.setattr(stiff, "STEPS_PER_DECADE", 40)
    monkeypatch.setattr(stiff, "MOST_STEPS", 60)
    with pytest.warns(
        UserWarning, match=r"ran out of steps after t = .*the solution did not diverge"
    ):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=DECADES)
    reached = np.isfinite(result.risk.values[0])
    assert 0.2 < reached.mean() < 1
    assert np.isnan(result.diverged_at).all()
    assert float(result.ran_out_at[0]) == DECADES[reached][-1]
    np.testing.assert_allclose(result.risk.values[0][reached], risk(DECADES[reached]), rtol=1e-6)


@pytest.mark.slow
def test_growth_as_a_power_is_not_divergence():
    """Hebb's rule: Q grows as alpha^2, beyond 1e6 at alpha = 1.3e3, as its closed form states."""
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


def test_divergence_is_reported():
    problem = sgd.TeacherStudent(width=1, activation="square")
    start = sgd.start(problem, M=[[0.5]], Q=[[3.0]])
    with pytest.warns(UserWarning, match="runs diverged"):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.14), start, times=[1e-3, 1e6])
    assert float(result.diverged_at[0]) == 1e-3
    assert "ran_out_at" not in result.coords


@pytest.mark.slow  # exits at usual times: tests/analysis/test_exit_times.py
def test_late_exit(linear):
    """An exit at t of order 1e5, far beyond explicit steps.

    Only the slowest block, with 0.001 of the initial risk, still learns then.
    """
    problem, start, risk = linear
    threshold = 1 - 0.5 * float(risk(1e4)) / float(risk(0.0))
    exits = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.0), start, threshold=threshold, max_time=1e7)
    expected = optimize.brentq(
        lambda t: float(risk(t)) - (1 - threshold) * float(risk(0.0)), 1e3, 1e7
    )
    assert expected > 3e4
    assert exits.times[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_late_exit_in_a_sweep(linear):
    problem, start, risk = linear
    threshold = 1 - 0.5 * float(risk(1e4)) / float(risk(0.0))
    expected = sgd.exit_time(
        problem, sgd.OnePassSGD(lr=0.0), start, threshold=threshold, max_time=1e7
    ).times[0]
    swept = sgd.sweep(
        "exit_time",
        problem=problem,
        algorithm=sgd.OnePassSGD(lr=0.0),
        start=start,
        over={"threshold": [0.3, threshold]},
        max_time=1e7,
        progress=False,
    )
    np.testing.assert_allclose(np.asarray(swept["times"]).reshape(-1)[-1], expected, rtol=1e-6)


# Problems with other integrators. Each has a stable fixed point, which it reaches long before the
# end and where the fastest rate is of order one.
OTHERS = {
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


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(OTHERS, ["sliding"]))
def test_every_solver_reaches_late_times_or_reports_how_far_it_came(name, monkeypatch):
    problem, overlaps = OTHERS[name]
    solver = sgd.solve_mean_field if name == "mean field" else sgd.solve_ode
    start, algorithm = sgd.start(problem, **overlaps), sgd.OnePassSGD(lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late = solver(problem, algorithm, start, times=[0.1, 3e5, 1e7])
    assert np.isnan(late.diverged_at).all()
    assert "ran_out_at" not in late.coords
    np.testing.assert_allclose(late.risk[0, 1:], late.risk[0, 1], rtol=1e-5)
    assert float(abs(late.risk[0, 0] / late.risk[0, 1] - 1)) > 1e-3  # the first point is elsewhere
    monkeypatch.setattr(stiff, "STEPS_PER_DECADE", 4)
    monkeypatch.setattr(stiff, "MOST_STEPS", 4)
    with pytest.warns(UserWarning, match=r"ran out of steps after t = 0.1 .*did not diverge"):
        short = solver(problem, algorithm, start, times=[0.1, 3e5, 1e7])
    assert np.isnan(short.diverged_at).all()
    assert float(short.ran_out_at[0]) == 0.1
    assert float(short.risk[0, 0]) == pytest.approx(float(late.risk[0, 0]), rel=1e-9)
    assert np.isnan(short.risk[0, 1:]).all()


def final_risk(problem, start, lr, mode):
    end = functional.solve(
        problem.structure,
        problem.parameters,
        functional.state(start),
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
    problem, start = narrow
    with jax.enable_x64(True):
        value, slope = jax.jit(
            lambda lr: jax.jvp(lambda lr: final_risk(problem, start, lr, "forward"), (lr,), (1.0,))
        )(0.05)
        solve = jax.jit(
            lambda lr: functional.solve(
                problem.structure, problem.parameters, functional.state(start, None), [0.5], lr=lr
            )
        )
        step = 1e-4
        ends = [solve(lr) for lr in (0.05, 0.05 + step, 0.05 - step)]
        risk = jax.jit(
            lambda end: functional.risk(
                problem.structure, problem.parameters, jax.tree.map(lambda leaf: leaf[0, 0], end)
            )
        )
        risks = [risk(end) for end in ends]
    assert float(value) == pytest.approx(float(risks[0]), rel=1e-9)
    assert float(slope) == pytest.approx(float(risks[1] - risks[2]) / (2 * step), rel=1e-6)
    expected = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.05), start, times=[0.5])
    np.testing.assert_allclose(np.asarray(ends[0]["Q"])[:, 0, 0], expected.Q[:, 0], rtol=1e-8)
    with pytest.raises(ValueError, match="mode = 'backward'"):
        functional.solve(
            problem.structure, problem.parameters, functional.state(start), [0.5], mode="backward"
        )


@pytest.mark.slow
def test_second_derivatives(narrow):
    problem, start = narrow
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda lr: final_risk(problem, start, lr, "reverse")))
        step = 1e-4
        bend = float(slope(0.05 + step) - slope(0.05 - step)) / (2 * step)
        nested = jax.jit(
            jax.jacfwd(jax.jacfwd(lambda lr: final_risk(problem, start, lr, "forward")))
        )(0.05)
        assert float(nested) == pytest.approx(bend, rel=1e-5)
        assert float(
            jax.jit(jax.hessian(lambda lr: final_risk(problem, start, lr, "both")))(0.05)
        ) == pytest.approx(bend, rel=1e-5)
