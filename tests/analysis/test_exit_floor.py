"""Exit times with few evaluations of the risk: the same steps, and bounds that hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis import exit_simulation
from sgdynamics.analysis.exit_requests import prepare_exits
from sgdynamics.base.precision import float64


def bump(x):
    return jnp.tanh(x) + 0.3 * x**2 * jnp.exp(-(x**2) / 4)


def ramp(x):
    return jnp.maximum(x - 0.3, 0.0) ** 1.0 + 0.2 * jnp.tanh(x)


def product(s):
    return jnp.tanh(s[0] * s[1]) + s[0]


OWN = sgd.TeacherStudent(width=2, activation=bump, noise=0.05, head="trained")
NOISY = sgd.TeacherStudent(width=1, activation="square", noise=0.3, head="trained")
SETTINGS = {
    "a closed form": (NOISY, sgd.OnePassSGD(lr=0.2, head_rate=1.0), "exact"),
    "a series": (
        sgd.TeacherStudent(width=2, activation="tanh", noise=0.3, head="trained"),
        sgd.OnePassSGD(lr=2.0, head_rate=1.0),
        "exact",
    ),
    "kinks": (
        sgd.TeacherStudent(
            width=2, activation=sgd.Activation(ramp, kinks=[0.3]), noise=0.3, head="trained"
        ),
        sgd.OnePassSGD(lr=1.0, head_rate=0.5),
        "exact",
    ),
    "target": (
        sgd.MultiIndex(width=2, target=product, directions=2, activation="tanh", noise=0.1),
        sgd.OnePassSGD(lr=1.0, batch=2),
        "exact",
    ),
    "blocks": (
        sgd.TeacherStudent(width=2, activation="tanh", covariance=[(2.0, 0.5), (0.5, 0.5)]),
        sgd.OnePassSGD(lr=0.5),
        "exact",
    ),
    "momentum": (
        sgd.TeacherStudent(width=2, activation="tanh"),
        sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5)),
        "exact",
    ),
    "direct": (OWN, sgd.OnePassSGD(lr=1.0), "direct"),
}


def exits_both_ways(monkeypatch, problem, algorithm, method, threshold=0.3, steps=150):
    """Exit times with the bounds, and with an evaluation after each step."""
    d = 40
    start = sgd.random_start(problem, dimension=d, runs=12, seed=1)
    answers = []
    for is_expensive in (True, False):
        monkeypatch.setattr(exit_simulation, "_is_expensive", lambda _, is_so=is_expensive: is_so)
        exits = sgd.exit_time(
            problem,
            algorithm,
            start,
            threshold=threshold,
            method=method,
            dimension=d,
            seed=3,
            max_time=steps * algorithm.lr / d,
        )
        answers.append(exits.times)
    return answers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_exit_is_the_step_of_an_evaluation_after_each_step(monkeypatch):
    """At d = 40 and a large rate, risks fall below the level and rise again within a few steps."""
    bounded, reference = exits_both_ways(monkeypatch, *SETTINGS["a closed form"], threshold=0.05)
    assert np.isfinite(reference).sum() > 3
    np.testing.assert_array_equal(bounded, reference)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(SETTINGS)[1:])
def test_the_same_for_each_kind_of_network(monkeypatch, name):
    bounded, reference = exits_both_ways(monkeypatch, *SETTINGS[name])
    assert np.isfinite(reference).any()
    np.testing.assert_array_equal(bounded, reference)


@pytest.mark.slow
def test_risks_fall_below_the_level_and_rise_again():
    """The curves of the first test cross their level many times."""
    problem, algorithm, method = SETTINGS["a closed form"]
    start = sgd.random_start(problem, dimension=40, runs=12, seed=1)
    setting = {"method": method, "dimension": 40, "seed": 3}
    runs = sgd.simulate(problem, algorithm, start, steps=np.arange(151), **setting)
    risk = np.asarray(runs.excess_risk)
    below = risk < 0.95 * risk[:, :1]
    returns = below[:, :-1] & ~below[:, 1:]
    assert (returns.sum(axis=1) > 1).sum() > 3


def expectation_by_quadrature(activation, covariance, head, nodes=160):
    """E[(f - y)^2]/2 of width 1 and one teacher of the same activation, on a product grid."""
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    root = np.linalg.cholesky(covariance)
    first, second = np.meshgrid(x, x, indexing="ij")
    student = root[0, 0] * first
    teacher = root[1, 0] * first + root[1, 1] * second
    difference = head * activation(student) - activation(teacher)
    return 0.5 * np.einsum("i,j,ij->", weights, weights, np.asarray(difference) ** 2)


@float64
def check_bounds(delta_share):
    """Bounds at 300 random states near an anchor, with the risk on an independent grid."""
    problem = sgd.TeacherStudent(width=1, activation=bump, head="trained")
    start = sgd.start(problem, M=[[0.4]], Q=[[1.1]], a=[0.7])
    request = prepare_exits(
        problem, sgd.OnePassSGD(lr=0.5), start, method="exact", dimension=100, threshold=0.5
    )
    floor = request.dynamics.exit_floor(request.watch)
    state = {"M": np.array([[[0.4]]]), "Q": np.array([[[1.1]]]), "a": np.array([0.7])}
    value, anchor = jax.jit(floor.evaluate)(
        request.watch_parameters, state, request.passage["level"][0]
    )
    covariance = np.array([[1.1, 0.4], [0.4, 1.0]])
    assert float(value) == pytest.approx(expectation_by_quadrature(bump, covariance, 0.7), rel=1e-7)
    assert 0 < float(anchor.delta) < 0.1
    rng = np.random.default_rng(0)
    bound = jax.jit(floor.lower_bound)
    slack = []
    for _ in range(300):
        shift = rng.normal(size=3) * float(anchor.delta) * delta_share
        M, Q, a = 0.4 + shift[0], 1.1 + shift[1], 0.7 + shift[2]
        state = {"M": np.array([[[M]]]), "Q": np.array([[[Q]]]), "a": np.array([a])}
        lower = float(bound(anchor, request.watch_parameters, state))
        if lower == -np.inf:
            continue
        risk = expectation_by_quadrature(bump, np.array([[Q, M], [M, 1.0]]), a)
        assert lower <= risk
        slack.append((risk - lower) / risk)
    assert len(slack) > 30
    return np.array(slack)


@pytest.mark.slow
def test_the_bounds_hold_and_are_close_near_the_anchor():
    slack = check_bounds(0.5)
    assert slack.min() < 0.3  # a bound of 0 would hold too
    assert slack.max() < 0.9


def test_a_loss_without_a_floor_is_evaluated_after_each_step():
    """The bounds need a squared loss: an own one has none."""
    own = sgd.Problem(lambda f, s, a, z: jnp.log(jnp.cosh(f[0] - s[0])), width=1, signals=1)
    start = sgd.start(own, M=[[0.1]], Q=[[1.0]])
    setting = {"method": "exact", "dimension": 50}
    request = prepare_exits(own, sgd.OnePassSGD(lr=0.5), start, **setting)
    assert request.dynamics.exit_floor(request.watch) is None
    start = sgd.random_start(OWN, dimension=50, seed=0)
    overlap = prepare_exits(
        OWN, sgd.OnePassSGD(lr=0.5), start, criterion="overlap", threshold=0.9, **setting
    )
    assert overlap.dynamics.exit_floor(overlap.watch) is None
