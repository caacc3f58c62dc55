"""Deferred corrections: the expensive part of a field at a few Chebyshev times of each window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.closed_forms.relu import ReluForms
from sgdynamics.ode import deferred
from sgdynamics.ode.case import Case, Field
from sgdynamics.ode.integrate import run_cases
from sgdynamics.solvers.ode import prepare_ode

TIMES = np.linspace(0.0, 4.0, 5)


@dataclass(frozen=True)
class Oscillator(Field):
    """An oscillator with a force that drives it, or without it as an approximation."""

    is_complete: bool

    def __call__(self, replicate, shared, t, state):
        x, v = state["y"]
        force = shared["strength"] * jnp.cos(3 * x) * jnp.sin(t) if self.is_complete else 0.0
        return {"y": jnp.stack([v, -x + force])}


def oscillator(strength, end, runs=2):
    nodes = {"none": np.zeros((1, 1))}
    starts = np.array([[1.0, 0.0], [0.3, -2.0]])[:runs]
    return Case(
        Oscillator(True),
        nodes,
        {"strength": np.float64(strength)},
        {"y": starts},
        np.linspace(0.0, end, 23),
        {"rtol": np.float64(1e-10), "atol": np.float64(1e-12)},
        approximation=(Oscillator(False), nodes),
    )


@float64
def integrate(case):
    return run_cases([case])[0]


@pytest.mark.parametrize(("strength", "end"), [(0.1, 3.0), (0.1, 30.0), (2.0, 10.0)])
def test_windows_and_sweeps_give_the_direct_solution(strength, end):
    """Also over many windows, and for a correction as large as the field."""
    case = oscillator(strength, end)
    tight = {"rtol": np.float64(1e-13), "atol": np.float64(1e-14)}
    exact = integrate(replace(case, approximation=None, tolerance=tight)).states["y"]
    result = integrate(case)
    np.testing.assert_array_equal(result.states["y"][0, :, 0], case.states["y"])
    true = np.abs(result.states["y"] - exact).max()
    stated = np.abs(result.displaced["y"] - result.states["y"]).max()
    assert true < 1e-7
    assert true < 2.5 * stated


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_others():
    together, alone = integrate(oscillator(0.1, 20.0)), integrate(oscillator(0.1, 20.0, runs=1))
    np.testing.assert_allclose(together.states["y"][:, :1], alone.states["y"], atol=1e-9)


def test_a_correction_that_jumps_is_integrated_directly():
    """Windows would shrink for ever: the result is that of the direct method."""

    @dataclass(frozen=True)
    class Jumping(Field):
        def __call__(self, replicate, shared, t, state):
            return {"y": jnp.sign(jnp.sin(9 * t)) * jnp.ones_like(state["y"])}

    @dataclass(frozen=True)
    class Nothing(Field):
        def __call__(self, replicate, shared, t, state):
            return {"y": jnp.zeros_like(state["y"])}

    case = oscillator(0.1, 4.0, runs=1)
    case = replace(case, field=Jumping(), approximation=(Nothing(), case.replicates))
    with deferred.direct():
        direct = integrate(case)
    np.testing.assert_array_equal(integrate(case).states["y"], direct.states["y"])


def wide(activation="erf", width=8, lr=0.5, times=TIMES, **options):
    problem = sgd.TeacherStudent(width=width, teacher_width=2, activation=activation, noise=0.1)
    start = sgd.random_start(problem, dimension=1000, seed=1)
    return lambda: sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), start, times=times, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("erf", {}),
        ("erf", {"dimension": 1000}),
        pytest.param("relu", {}, marks=pytest.mark.slow),
        pytest.param("erf", {"times": np.linspace(0, 100, 5)}, marks=pytest.mark.slow),
    ],
)
def test_wide_networks_agree_with_the_direct_route(activation, options, monkeypatch):
    evaluations = []
    correction = deferred._corrections
    monkeypatch.setattr(
        deferred,
        "_corrections",
        lambda *inputs: evaluations.append(inputs[-1] - inputs[-2]) or correction(*inputs),
    )
    solve = wide(activation, **options)
    result = solve()
    assert evaluations  # the route is used
    if "times" not in options:
        # a step of the direct method takes 14 evaluations, and it takes five steps or more
        assert sum(evaluations) < 45
    with deferred.direct():
        direct = solve()
    for name in ("M", "Q", "risk"):
        np.testing.assert_allclose(result[name], direct[name], rtol=1e-9, atol=1e-10)
    gap = np.abs(result.risk / direct.risk - 1).max()
    assert gap < 2.5 * (result.attrs["error_integrator"] + direct.attrs["error_integrator"])


def test_narrow_networks_and_gradient_flow_are_integrated_directly():
    for width, lr in ((4, 0.5), (8, 0.0)):
        problem = sgd.TeacherStudent(width=width, activation="erf")
        start = sgd.random_start(problem, dimension=1000)
        _, request = prepare_ode(problem, sgd.OnePassSGD(lr=lr), start, times=[1.0])
        assert request.case.approximation is None


@pytest.mark.slow
def test_sampled_noise_of_a_wide_network():
    """The same points of the noise, at fewer times."""
    problem = sgd.MultiIndex(lambda s: s[0] * s[1], directions=2, width=8, activation="relu")
    start = sgd.random_start(problem, dimension=1000, seed=1)
    solve = partial(sgd.solve_ode, problem, sgd.OnePassSGD(lr=0.5), start, times=TIMES)
    result = solve()
    with deferred.direct():
        direct = solve()
    error = direct.attrs["error_quadrature"]
    np.testing.assert_allclose(result.Q, direct.Q, atol=0.1 * error * float(direct.Q.max()))
    np.testing.assert_allclose(result.risk, direct.risk, rtol=0.1 * error)


@pytest.mark.slow
def test_wide_relu_networks_state_the_error_of_their_sampled_noise(monkeypatch):
    """Above a width the noise is sampled: here at width 8, compared with the closed one."""
    exact = wide("relu")()
    monkeypatch.setattr(ReluForms, "widest_noise", 4)
    expectation_of.cache_clear()
    sampled = wide("relu", width=8)()
    expectation_of.cache_clear()
    error = sampled.attrs["error_quadrature"]
    assert 1e-9 < error < 1e-3
    for name in ("M", "Q", "risk"):
        gap = np.abs(sampled[name] - exact[name]).max() / np.abs(exact[name]).max()
        assert gap < 5 * error
