"""Learning rates that depend on alpha: one schedule drives the ODE, the SDE, the exact chain, direct simulation and wide networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.dynamics.mean_field import MeanFieldDynamics
from sgdynamics.results.clock import make_clock
from sgdynamics.solvers import functional
from tests.conftest import Z, full_optimisation
from tests.simulation.test_behaviour import count_compilations

D, ALPHA = 300, [0.0, 1.0, 3.0]


def decaying(alpha):
    return 1.0 / (1.0 + alpha)


@pytest.fixture(scope="module")
def problem():
    return sgd.TeacherStudent(width=2, activation="erf", noise=0.1)


def begin(problem):
    return sgd.start(problem, M=[[0.3], [-0.2]], Q=[[1.0, 0.1], [0.1, 0.8]])


@pytest.mark.slow
def test_one_schedule_drives_every_method(problem):
    algorithm = sgd.OnePassSGD(lr=decaying)
    start = begin(problem)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=ALPHA, dimension=D)
    # t = log(1 + alpha) is the integral of the schedule
    assert np.allclose(theory.t, np.log1p(ALPHA), atol=1e-12)
    assert theory.attrs["error_integrator"] < 1e-6
    with full_optimisation():
        chain = sgd.simulate(problem, algorithm, start, alpha=ALPHA, dimension=D, runs=400, seed=1)
        direct = sgd.simulate(
            problem, algorithm, start, alpha=ALPHA, dimension=D, runs=60, seed=2, method="direct"
        )
    paths = sgd.solve_sde(
        problem, algorithm, start, alpha=ALPHA, dimension=D, runs=200, seed=3, step=0.1
    )
    assert np.allclose(
        chain.t,
        [0, sum(decaying(np.arange(D) / D)) / D, sum(decaying(np.arange(3 * D) / D)) / D],
        rtol=1e-12,
    )
    for result in (chain, direct, paths):
        for name in ("M", "Q", "risk"):
            values = result[name].values[:, 1:]
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            gap = np.abs(values.mean(axis=0) - theory[name].values[0, 1:])
            assert np.all(gap <= Z * error + 3e-3), (result.attrs["method"], name, gap.max())
    # the spread of SDE and chain agree: the noise follows the schedule too
    assert np.allclose(
        paths.M.values[:, -1].std(axis=0),
        chain.M.values[:, -1].std(axis=0),
        rtol=Z * np.sqrt(0.5 / 200 + 0.5 / 400),
    )
    # and the schedule matters
    assert (
        np.abs(
            sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, alpha=ALPHA).M - theory.M
        ).max()
        > 0.1
    )


@pytest.mark.slow
def test_wide_networks_follow_the_schedule(problem):
    """Rows in the span of the signals (q = 0) are the p = infinity system at any width: the ODE at small lr is it, at equal alpha."""
    M, small = np.array([[0.3], [-0.2]]), 1e-6
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([1 / small], [small, small / 4]))
    alpha = np.array([0.0, 0.5, 3.0]) / small
    limit = sgd.solve_mean_field(
        problem, algorithm, sgd.start(problem, M=M, q=np.zeros(2)), alpha=alpha
    )
    theory = sgd.solve_ode(problem, algorithm, sgd.start(problem, M=M, Q=M @ M.T), alpha=alpha)
    # t/p: the integral is 1/2, then 1 + 2/4; p = 2
    assert np.allclose(limit.t, [0.0, 0.25, 0.75], atol=1e-12)
    assert np.allclose(limit.alpha, alpha)
    assert np.allclose(limit.t_sgd, theory.t, atol=1e-12)
    for name in ("M", "risk"):
        assert np.allclose(limit[name], theory[name], atol=1e-5), name
        assert np.abs(limit[name][:, -1] - limit[name][:, 0]).max() > 0.03
    # a schedule at its own times, and in steps of a batch: the same points
    batches = sgd.OnePassSGD(lr=algorithm.lr, batch=3)
    for given in ({"times": limit.t.values / 3}, {"steps": alpha * 10}):
        dynamics = MeanFieldDynamics(problem, batches)
        divisor = dynamics.clock_dimension(30)
        when = make_clock(dynamics.algorithm, **given, dimension=divisor, whole_steps=False)
        assert np.allclose(when.t, limit.t / 3)
        assert np.allclose(when.alpha, alpha)
        assert np.allclose(when.step, alpha * 10)


@pytest.mark.slow
def test_a_constant_schedule_is_a_constant_rate(problem):
    start = begin(problem)
    same = [
        sgd.OnePassSGD(lr=0.5),
        sgd.OnePassSGD(lr=lambda alpha: 0.5 + 0 * alpha),
        sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [0.5, 0.5])),
    ]
    chains = [
        sgd.simulate(problem, each, start, alpha=ALPHA, dimension=D, runs=3, seed=1)
        for each in same
    ]
    for other in chains[1:]:
        assert np.allclose(other.M, chains[0].M, rtol=1e-12)
        assert np.allclose(other.t, chains[0].t, rtol=1e-12)
        assert np.array_equal(other.step, chains[0].step)
    # the times of one are those of the other
    assert np.allclose(
        make_clock(same[2], times=[0.3, 0.7], dimension=None, whole_steps=False).alpha,
        [0.6, 1.4],
        rtol=1e-12,
    )


def test_piecewise_rates_do_not_recompile_and_are_recorded(problem):
    start = begin(problem)

    def solve(rates):
        algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], rates))
        return sgd.simulate(problem, algorithm, start, alpha=ALPHA, dimension=D, runs=3, seed=1)

    first = solve([0.5, 0.25])
    assert count_compilations(lambda: solve([0.7, 0.1])) == 0
    again = sgd.algorithm_of(first)
    assert np.allclose(again.rates(np.array([0.5, 1.5])), [0.5, 0.25])
    assert np.allclose(first.t, [0.0, 0.5, 1.0])
    own = sgd.simulate(problem, sgd.OnePassSGD(lr=decaying), start, steps=[2], dimension=D)
    with pytest.raises(ValueError, match="user's function"):
        sgd.algorithm_of(own)


@pytest.mark.slow
def test_gradient_through_a_schedule(problem):
    """d risk / d rates by reverse mode against finite differences."""
    state = functional.state(begin(problem))

    def final(rates):
        schedule = sgd.piecewise_rate([1.0], [1.0, 1.0])
        schedule = type(schedule)(schedule.function, {"edges": jnp.asarray([1.0]), "rates": rates})
        last = functional.solve(
            problem.structure, problem.parameters, state, jnp.array([2.0]), lr=schedule, last=True
        )
        return functional.risk(problem.structure, problem.parameters, last)

    with jax.enable_x64(True):
        rates = jnp.array([0.8, 0.4])
        value = jax.jit(jax.value_and_grad(final))
        slope = np.asarray(value(rates)[1])
        for index in range(2):
            step = 1e-4 * (jnp.arange(2) == index)
            difference = (value(rates + step)[0] - value(rates - step)[0]) / 2e-4
            assert slope[index] == pytest.approx(float(difference), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda problem: sgd.OnePassSGD(lr=lambda alpha: -1.0 + 0 * alpha), "0 or more"),
        (lambda problem: sgd.OnePassSGD(lr=lambda alpha: jnp.ones(2)), "shape"),
        (lambda problem: sgd.OnePassSGD(lr=lambda: 1.0), "it must take .alpha."),
        (lambda problem: sgd.piecewise_rate([1.0, 0.5], [1.0, 1.0, 1.0]), "edges"),
        (lambda problem: sgd.piecewise_rate([1.0], [1.0]), "rates"),
        (lambda problem: sgd.piecewise_rate([1.0], [1.0, -1.0]), "rates"),
        (lambda problem: sgd.fixed_points(problem, sgd.OnePassSGD(lr=decaying)), "constant"),
        (
            lambda problem: sgd.exit_time(
                problem, sgd.OnePassSGD(lr=decaying), begin(problem), threshold=0.1
            ),
            "constant",
        ),
        (
            lambda problem: sgd.increment_covariance(
                problem, sgd.OnePassSGD(lr=decaying), begin(problem)
            ),
            "constant",
        ),
        (
            lambda problem: sgd.solve_ode(
                problem,
                sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [1.0, 0.0])),
                begin(problem),
                times=[2.0],
            ),
            "never reaches this value",
        ),
        (
            lambda problem: sgd.solve_mean_field(
                problem,
                sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [1.0, 0.0])),
                sgd.start(problem, M=[[0.3], [0.1]], q=[1, 1]),
                times=[2.0],
            ),
            r"times = \[2.0\].* never reaches this value",
        ),
        (
            lambda problem: sgd.solve_mean_field(
                problem,
                sgd.OnePassSGD(lr=decaying),
                sgd.start(problem, M=[[0.3], [0.1]], q=[1, 1]),
                times=[2.0],
                alpha=[1.0],
            ),
            "received times, alpha",
        ),
        (
            lambda problem: sgd.solve_mean_field(
                problem,
                sgd.OnePassSGD(lr=decaying),
                sgd.start(problem, M=[[0.3], [0.1]], q=[1, 1]),
                steps=[2],
            ),
            "steps= needs a dimension",
        ),
    ],
)
def test_bad_schedules_are_named(problem, make, message):
    with pytest.raises(ValueError, match=message):
        make(problem)
