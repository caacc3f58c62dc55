"""Optimal protocols against closed forms, Pontryagin's equations by shooting, and references.

The reference optima come from two other methods; their letters are (a), (b) and (h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import integrate, optimize, special

import sgdynamics as sgd
from sgdynamics.analysis.protocols import search
from sgdynamics.analysis.protocols.result import find_switches
from tests.conftest import Z
from tests.simulation.test_behaviour import count_compilations

SGD = sgd.OnePassSGD(lr=1.0)
RATE = {"lr": (0, 5)}


def linear(noise=0.1):
    return sgd.TeacherStudent(width=1, activation="linear", noise=noise)


def erf(noise=0.1, **arguments):
    return sgd.TeacherStudent(width=1, activation="erf", noise=noise, **arguments)


def start_at(problem, m=0.0, q=0.0):
    return sgd.start(problem, M=[[m]], Q=[[q]])


def solve(problem, start, alpha, controls=RATE, algorithm=SGD, **arguments):
    return sgd.optimal_protocol(
        problem, algorithm, start, alpha=alpha, controls=controls, progress=False, **arguments
    )


def best_linear_risk(eps, noise, alpha):
    """The best risk eps/2 of a linear student: eps = noise/W(r e^(r + alpha)), r = noise/eps0."""
    r = noise / eps
    return noise / float(special.lambertw(r * np.exp(r + alpha)).real) / 2


@pytest.fixture(scope="module")
def rate():
    """Reference (a) with 50 pieces."""
    return solve(linear(), start_at(linear()), 20.0, pieces=50)


@pytest.fixture(scope="module")
def erf_rate():
    """Reference (b) with 40 pieces."""
    return solve(erf(), start_at(erf(), 0.1, 1.0), 20.0, pieces=40)


@pytest.fixture(scope="module")
def decay():
    """Reference (h) with 40 pieces."""
    return solve(erf(0.5), start_at(erf(0.5), 0.1, 2.0), 5.0, {"weight_decay": (0, 1)}, pieces=40)


@pytest.mark.slow
def test_rate_of_a_linear_student(rate):
    assert rate.value == pytest.approx(0.0033160124, rel=1e-5)
    assert best_linear_risk(1.0, 0.1, 20.0) == pytest.approx(0.0033148159, rel=1e-7)
    assert rate.extrapolated == pytest.approx(best_linear_risk(1.0, 0.1, 20.0), rel=1e-5)
    assert rate.constant["risk"] == pytest.approx(0.0056246228, rel=1e-6)
    assert rate.constant["lr"] == pytest.approx(0.172566, rel=1e-5)
    assert rate.gain == rate.gains["lr"] == pytest.approx(0.0056246228 / 0.0033160124, rel=1e-5)
    # lr = eps/(eps + noise), with eps in the middle of a piece.
    middle = rate.risks[:-1] + rate.risks[1:]
    np.testing.assert_allclose(rate.protocol["lr"], middle / (middle + 0.1), rtol=2e-2)


def test_fields_of_the_result(rate):
    assert rate.converged
    assert rate.residual < 1e-5
    assert rate.error_integrator < 1e-6
    assert np.all(np.diff(rate.history) <= 1e-12)
    assert rate.history[0] == pytest.approx(rate.constant["risk"], rel=1e-6)
    assert rate.risks[0] == rate.constant_risks[0] == pytest.approx(0.5)
    assert rate.risks[-1] == pytest.approx(rate.value, rel=1e-12)
    assert rate.constant_risks[-1] == pytest.approx(rate.constant["risk"], rel=1e-12)
    assert rate.edges[-1] == rate.alpha == 20.0
    assert len(rate.edges) == len(rate.risks) == 51
    assert rate.at_bounds["lr"].size == 0
    assert rate.bounds == {"lr": (0.005, 5.0)}
    np.testing.assert_allclose(
        rate.algorithm.rates((rate.edges[:-1] + rate.edges[1:]) / 2),
        rate.protocol["lr"],
        rtol=1e-15,
    )
    assert "times below the best constants" in repr(rate)


def test_other_parameters_compile_nothing(rate):
    problem, results = linear(0.2), []
    compiled = count_compilations(
        lambda: results.append(
            solve(problem, start_at(problem, 0.1, 1.0), 7.0, {"lr": (0.01, 1.9)}, pieces=50)
        )
    )
    assert compiled == 0
    assert results[0].extrapolated == pytest.approx(best_linear_risk(1.8, 0.2, 7.0), rel=1e-5)


@pytest.mark.slow
def test_budget_against_pontryagin_by_shooting(rate):
    """Shooting for p(0) and the multiplier l, from p(T) = 1 and the mean of u.

    H = p (-2 u e + u^2 (e + D)) + l u is stationary at u = (2 p e - l)/(2 p (e + D)).
    """
    D, T, mean = 0.1, 20.0, 0.1

    def shoot(unknown, returns_risk=False):
        def equations(_, y):
            e, p, _ = y
            u = (2 * p * e - unknown[1]) / (2 * p * (e + D))
            return [-2 * u * e + u**2 * (e + D), -p * (-2 * u + u**2), u]

        first = [1.0, unknown[0], 0.0]
        solution = integrate.solve_ivp(equations, (0, T), first, rtol=1e-10, atol=1e-12)
        end = solution.y[:, -1]
        return end[0] / 2 if returns_risk else [end[1] - 1, end[2] / T - mean]

    unknown = optimize.fsolve(shoot, [0.02, 0.01], xtol=1e-11)
    assert np.abs(shoot(unknown)).max() < 1e-8
    priced = solve(linear(), start_at(linear()), T, pieces=50, budget={"lr": mean})
    assert priced.protocol["lr"].mean() == pytest.approx(mean, rel=1e-9)
    assert priced.extrapolated == pytest.approx(shoot(unknown, returns_risk=True), rel=1e-5)
    assert priced.constant["lr"] == pytest.approx(mean)
    assert priced.residual < 1e-4
    # The optimum without a budget has a larger mean.
    assert rate.protocol["lr"].mean() > 1.3 * mean


@pytest.mark.slow
def test_rate_of_an_erf_student(erf_rate):
    assert erf_rate.value == pytest.approx(0.0038102376, rel=1e-6)
    assert erf_rate.value_of_half == pytest.approx(0.0038133492, rel=1e-6)
    assert erf_rate.extrapolated == pytest.approx(0.0038091993, rel=1e-5)
    assert erf_rate.constant["risk"] == pytest.approx(0.0059212185, rel=1e-7)
    assert erf_rate.constant["lr"] == pytest.approx(0.45113, rel=1e-5)
    pieces = np.searchsorted(erf_rate.edges, [0, 1, 4, 8, 12, 19], side="right") - 1
    np.testing.assert_allclose(
        erf_rate.protocol["lr"][pieces], [1.11, 1.12, 0.98, 0.57, 0.35, 0.20], rtol=0.05
    )


@pytest.mark.slow
def test_decay_switches_between_its_bounds(decay):
    assert decay.value == pytest.approx(0.0647725580, rel=1e-6)
    assert decay.extrapolated == pytest.approx(0.0647419253, rel=1e-4)
    assert decay.constant["risk"] == pytest.approx(0.0758004197, rel=1e-7)
    assert decay.constant["weight_decay"] == pytest.approx(0.21089, rel=1e-4)
    np.testing.assert_allclose(decay.switches["weight_decay"], [0.94853, 4.65467], atol=5e-3)
    assert decay.at_bounds["weight_decay"].size == 38
    assert decay.residual < 1e-5
    # The problem of the result contains the protocol.
    ode = sgd.solve_ode(decay.problem, decay.algorithm, start_at(erf(0.5), 0.1, 2.0), alpha=[5.0])
    assert float(ode.excess_risk[0, -1]) == pytest.approx(decay.value, rel=1e-5)


@pytest.mark.slow
def test_runs_confirm_the_gain(decay):
    measured = decay.confirm(dimension=1000, runs=200, seed=1)
    # The mean of the chain deviates from the ODE by O(1/d).
    assert abs(measured.gain - decay.gain) < Z * measured.gain_error + 0.003
    assert abs(measured.value - decay.value) < Z * measured.value_error + 0.003 * decay.value
    assert measured.gain - 1 > Z * measured.gain_error
    assert (measured.dimension, measured.runs) == (1000, 200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": -1.0}, "alpha"),
        ({"pieces": 0}, "pieces"),
        ({"restarts": -1}, "restarts"),
        ({"objective": "finl"}, "did you mean 'final'"),
        ({"objective": lambda state, other: 0.0}, "objective"),
        ({"cost": lambda state: 0.0}, "alpha, controls, state"),
        ({"controls": {}}, "bounds by name"),
        ({"controls": {"lr": None}}, "impulse"),
        ({"controls": {"noise": (0, float("inf"))}}, "impulse"),
        ({"controls": {"noise": (0, None)}}, "impulse"),
        ({"controls": {"lr": (2, 1)}}, "lowest < highest"),
        ({"controls": {"lr": 1.0}}, "lowest, highest"),
        ({"controls": {"noise": (-1, 1)}}, "not a valid value"),
        ({"controls": {"nois": (0, 1)}}, "did you mean 'noise'"),
        ({"controls": {"algorithm.head": (0, 1)}}, "did you mean 'head_rate'"),
        ({"controls": {"algorithm.batch": (0.5, 8)}}, "not a valid value"),
        ({"controls": {"width": (1, 2)}}, "functions of alpha"),
        ({"controls": {"activation": (0, 1)}}, "not a single number"),
        ({"controls": {"lr": (0, 1), "algorithm.lr": (0, 1)}}, "same parameter"),
        ({"budget": {"noise": 0.1}}, "one of the controls"),
        ({"budget": {"lr": 9.0}}, "between its bounds"),
        ({"algorithm": sgd.OnePassSGD(lr=0.0)}, "gradient flow"),
        ({"algorithm": sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)}, "fresh samples"),
        ({"algorithm": sgd.OnePassSGD(update=sgd.updates.clipped(0.5))}, "jumps"),
        ({"problem": sgd.SpikedTensor(order=2, snr=1.2)}, "constant learning rate"),
        ({"evaluate": sgd.TeacherStudent(width=2)}, "evaluate"),
        ({"dimension": 1}, "dimension"),
    ],
)
def test_bad_input_is_named_before_anything_compiles(arguments, message):
    all_arguments = {
        "problem": linear(),
        "algorithm": SGD,
        "start": start_at(linear()),
        "alpha": 1.0,
        "pieces": 7,
        **arguments,
    }

    def call():
        with pytest.raises(ValueError, match=message):
            sgd.optimal_protocol(**all_arguments)

    # Small functions may compile, such as the values of a schedule, but not the integration.
    assert count_compilations(call) < 10


def test_wrong_gradients_are_detected(monkeypatch, rate):
    """A gradient that is twice that of the objective."""
    correct = search.program.value_and_gradient

    def twice_the_gradient(*arguments):
        value, gradient = correct(*arguments)
        return value, 2 * gradient

    monkeypatch.setattr(search.program, "value_and_gradient", twice_the_gradient)
    with pytest.raises(ValueError, match="differs from finite differences"):
        solve(linear(), start_at(linear()), 20.0, pieces=50)


def test_no_constant_stays_finite(rate):
    with pytest.raises(ValueError, match="stays finite"):
        solve(linear(), start_at(linear()), 20.0, {"lr": (300.0, 500.0)}, pieces=50)


def test_switches_of_step_functions():
    edges = np.linspace(0, 1, 6)
    np.testing.assert_allclose(
        find_switches(np.array([1, 1, 0.25, 0, 0.0]), (0.0, 1.0), edges), [0.45]
    )
    np.testing.assert_allclose(
        find_switches(np.array([0, 0.25, 1, 1, 1.0]), (0.0, 1.0), edges), [0.35]
    )
    np.testing.assert_allclose(
        find_switches(np.array([1, 0, 0, 1, 1.0]), (0.0, 1.0), edges), [0.2, 0.6]
    )
    # A singular arc ends at an edge, and so does a piece between two pieces at the same bound.
    np.testing.assert_allclose(
        find_switches(np.array([1, 0.6, 0.5, 0, 0.0]), (0.0, 1.0), edges), [0.2, 0.6]
    )
    np.testing.assert_allclose(
        find_switches(np.array([0, 0.6, 0, 0, 0.0]), (0.0, 1.0), edges), [0.2, 0.4]
    )
    assert find_switches(np.full(5, 0.3), (0.0, 1.0), edges).size == 0


@pytest.mark.slow
def test_plot(decay, tmp_path):
    fig, axes = sgd.plot.protocol(decay)
    assert [ax.get_ylabel() for ax in axes] == ["weight decay", "excess risk"]
    fig.savefig(tmp_path / "protocol.png")
    with pytest.raises(ValueError, match="optimal_protocol"):
        sgd.plot.protocol(3)


@pytest.mark.slow
def test_rates_on_the_sphere():
    """The state is one overlap m, so that greedy is optimal: lr = s/(12 s + noise), s = 1 - m^2."""
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    noiseless = solve(problem, start_at(problem, 0.1, 1.0), 20.0, {"lr": (0, 1)}, pieces=40)
    np.testing.assert_allclose(noiseless.protocol["lr"], 1 / 12, rtol=1e-6)
    assert noiseless.value == pytest.approx(0.2237864685, rel=1e-7)
    noisy = solve(
        problem.replace(noise=1.0), start_at(problem, 0.1, 1.0), 40.0, {"lr": (0, 1)}, pieces=40
    )
    assert noisy.extrapolated == pytest.approx(0.0395742300, rel=1e-5)
    assert noisy.constant["risk"] == pytest.approx(0.0666786276, rel=1e-6)
    assert noisy.constant["lr"] == pytest.approx(0.041265, rel=1e-5)


@pytest.mark.slow
def test_integral_and_cost():
    integral = solve(linear(), start_at(linear()), 20.0, pieces=40, objective="integral")
    assert integral.extrapolated == pytest.approx(0.7474954848, rel=1e-5)
    problem = linear(0.25)
    priced = solve(
        problem,
        start_at(problem, 0.0, 1.0),
        10.0,
        cost=lambda alpha, controls, state: 0.02 * controls["lr"] ** 2,
    )
    assert priced.extrapolated == pytest.approx(0.0400940858, rel=1e-6)
    assert priced.constant["risk"] == pytest.approx(0.0427171693, rel=1e-7)
    measured = priced.confirm(dimension=1000, runs=200)
    assert abs(measured.value - priced.value) < Z * measured.value_error + 0.005 * priced.value
    assert abs(measured.gain - priced.gain) < Z * measured.gain_error + 0.002


@pytest.mark.slow
def test_gains_of_two_controls():
    problem = erf(0.5)
    both = solve(
        problem,
        start_at(problem, 0.1, 2.0),
        5.0,
        {"weight_decay": (0, 1), "lr": (0, 5)},
        restarts=1,
    )
    assert both.value == pytest.approx(0.0530267, rel=1e-5)
    # There is no decay at the end.
    np.testing.assert_allclose(both.protocol["weight_decay"][-5:], 0, atol=1e-9)
    assert set(both.gains) == {"weight_decay", "lr"}
    assert all(1 < gain < both.gain for gain in both.gains.values())
    _, axes = sgd.plot.protocol(both)
    assert len(axes) == 3


@pytest.mark.slow
def test_momentum_with_a_protocol_of_its_memory():
    """The value is that of solve_ode, and changes of single pieces increase it."""
    algorithm = sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(memory=2.0))
    problem = linear()
    best = solve(
        problem,
        start_at(problem),
        10.0,
        {"algorithm.update.memory": (0.2, 20)},
        algorithm,
        pieces=10,
    )
    ode = sgd.solve_ode(best.problem, best.algorithm, start_at(problem), alpha=[10.0])
    assert float(ode.excess_risk[0, -1]) == pytest.approx(best.value, rel=1e-5)
    assert best.gain > 1.01
    for index, factor in ((2, 1.3), (5, 0.8), (8, 1.2)):
        values = best.protocol["algorithm.update.memory"].copy()
        values[index] *= factor
        moved = best.algorithm.update.replace(memory=sgd.piecewise_rate(best.edges[1:-1], values))
        other = sgd.solve_ode(
            problem, best.algorithm.replace(update=moved), start_at(problem), alpha=[10.0]
        )
        assert float(other.excess_risk[0, -1]) > best.value * (1 - 1e-7)
    measured = best.confirm(dimension=1000, runs=100)
    assert abs(measured.gain - best.gain) < Z * measured.gain_error + 0.01


@pytest.mark.slow
def test_rate_of_a_head():
    problem = erf(0.3, head="trained")
    best = solve(problem, start_at(problem, 0.3, 1.0), 10.0, {"head_rate": (0, 4)}, pieces=10)
    ode = sgd.solve_ode(best.problem, best.algorithm, start_at(problem, 0.3, 1.0), alpha=[10.0])
    assert float(ode.excess_risk[0, -1]) == pytest.approx(best.value, rel=1e-5)
    assert best.gain > 1


@pytest.mark.slow
def test_objectives_of_other_problems_and_of_the_state():
    """The risk of another problem, by evaluate= and by its formula; noise stays at its minimum."""
    problem, other = linear(0.3), linear(0.0)
    start = start_at(problem, 0.2, 1.0)
    by_evaluate = solve(problem, start, 8.0, pieces=10, evaluate=other)
    by_formula = solve(
        problem,
        start,
        8.0,
        pieces=10,
        objective=lambda y: (y["Q"][0, 0] - 2 * y["M"][0, 0] + 1) / 2,
    )
    assert by_formula.value == pytest.approx(by_evaluate.value, rel=1e-8)
    assert by_formula.value == pytest.approx(solve(problem, start, 8.0, pieces=10).value, rel=1e-8)
    assert by_evaluate.confirm(dimension=200, runs=20).value == pytest.approx(
        by_formula.confirm(dimension=200, runs=20).value, rel=1e-6
    )
    quiet = solve(problem, start, 8.0, {"noise": (0.1, 0.5)}, sgd.OnePassSGD(lr=0.3), pieces=10)
    np.testing.assert_allclose(quiet.protocol["noise"], 0.1)
    assert quiet.at_bounds["noise"].size == 10


@pytest.mark.slow
def test_finite_dimension_and_several_starts():
    """At dimension d the best rate is eps/(c eps + noise), c = 1 + 2/d.

    Then c log(1/eps) + noise (1/eps - 1) = alpha, from eps = 1.
    """
    start = start_at(linear())
    best = solve(linear(), start, 20.0, pieces=50, dimension=1000)
    eps = optimize.brentq(
        lambda eps: -(1 + 2 / 1000) * np.log(eps) + 0.1 * (1 / eps - 1) - 20.0, 1e-4, 1.0
    )
    assert best.extrapolated == pytest.approx(eps / 2, rel=1e-5)
    # The exact mean of SGD with its best rates, step by step, deviates by O(1/d).
    assert best.extrapolated == pytest.approx(0.0033160907, rel=1e-3)
    several = sgd.start(linear(), M=[[[0.0]], [[0.0]]], Q=[[[0.0]], [[0.0]]])
    assert solve(linear(), several, 20.0, pieces=50).value == pytest.approx(0.0033160124, rel=1e-5)
    odd = solve(linear(), start, 20.0, pieces=25)
    assert odd.extrapolated == pytest.approx(0.0033148159, rel=1e-4)


@dataclass(frozen=True)
class Relaxing(sgd.Dynamics):
    """dm/dt = -gain m + lr gain^2 in t = lr steps/d, or dm/dalpha = -u m + u^2 with u = lr gain."""

    gain: float = 1.0
    variables: ClassVar = {"m": ("overlap", ())}

    @property
    def parameters(self):
        return {"gain": self.gain}

    def rate(self, parameters, state):
        gain = parameters["problem"]["gain"]
        return {"m": -gain * state["m"] + parameters["algorithm"]["lr"] * gain**2}

    def risk(self, parameters, state):
        return state["m"]


@pytest.mark.slow
def test_own_dynamics():
    """u = m/2, dm/dalpha = -m^2/4."""
    best = solve(Relaxing(), {"m": 1.0}, 8.0, {"problem.gain": (0.01, 2)}, pieces=40)
    assert best.extrapolated == pytest.approx(1 / (1 + 8 / 4), rel=1e-5)
    middle = (best.risks[1:] + best.risks[:-1]) / 2
    np.testing.assert_allclose(best.protocol["problem.gain"], middle / 2, rtol=1e-2)
