"""Parameters of a problem that change with alpha, or on fixed data with t.

Label noise, weight decay and the parameters of a user's loss may be schedules.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, same_law

D = 20


def decreasing(alpha):
    return 2.0 * jnp.exp(-alpha)


def network(**changes):
    return sgd.TeacherStudent(
        **(
            {
                "width": 2,
                "activation": "erf",
                "noise": decreasing,
                "weight_decay": lambda alpha: 0.2 * alpha,
            }
            | changes
        )
    )


def simulate_network(problem, method, seed, runs=4000, algorithm=None, **save_points):
    algorithm = sgd.OnePassSGD(lr=3.0, batch=2) if algorithm is None else algorithm
    start = sgd.random_start(network(), dimension=D, seed=1)
    return sgd.simulate(
        problem,
        algorithm,
        start,
        dimension=D,
        runs=runs,
        seed=seed,
        method=method,
        **(save_points or {"steps": [0, 10, 20]}),
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", pytest.param("direct", marks=pytest.mark.slow)])
def test_piecewise_rate_switches_at_the_step_of_its_edge(method):
    """Steps 0, 1, 2 of batch 3 in d = 10 are before the edge 0.9, step 3 is not.

    The trap is rounding: 3 * (3/10) is below 0.9 in floating point.
    """
    problem = sgd.TeacherStudent(width=1, activation="square")
    start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.9], [0.5, 0.0]), batch=3)
    result = sgd.simulate(
        problem, algorithm, start, steps=[2, 3, 6], dimension=10, runs=2, method=method
    )
    assert np.all(result.Q[:, 1] != result.Q[:, 0])
    np.testing.assert_array_equal(result.Q[:, 2], result.Q[:, 1])
    np.testing.assert_allclose(result.t, [0.1, 0.15, 0.15])


@pytest.mark.slow  # fast tests of the same path: test_schedules, and the user's loss below
def test_chain_against_direct():
    """The exact chain and direct runs have one law, which differs from that without schedules.

    The label noise decreases from 2 to 0.27, and the weight decay grows.
    """
    exact, direct = (
        simulate_network(network(), method, seed) for seed, method in enumerate(("exact", "direct"))
    )
    np.testing.assert_allclose(
        exact.risk - exact.excess_risk,
        np.broadcast_to(np.exp(-exact.alpha.values), exact.risk.shape),
        rtol=1e-12,
    )
    for name in ("M", "Q"):
        for unit in range(2):
            same_law(
                exact[name][:, -1, unit, 0].values,
                direct[name][:, -1, unit, 0].values,
                f"{name} of unit {unit}",
            )
    same_law(exact.risk[:, -1].values, direct.risk[:, -1].values, "risk")
    constant = simulate_network(network(noise=2.0, weight_decay=0.0), "exact", 0)
    difference = exact.Q[:, -1, 0, 0].values - constant.Q[:, -1, 0, 0].values
    assert abs(difference.mean()) > 5 * Z * difference.std() / np.sqrt(len(difference))


@pytest.mark.slow
def test_schedule_in_the_parameters_of_a_user_loss():
    """The loss of a built-in problem, stated by the user, gives the same runs.

    A piecewise schedule is recorded with the result and restored from it.
    """
    noise_schedule = sgd.piecewise_rate([0.5], [1.0, 0.1])

    def loss(fields, signals, head, noise, parameters):
        from jax.scipy.special import erf

        label = erf(signals[0] / jnp.sqrt(2)) + jnp.sqrt(parameters["noise"]) * noise
        return 0.5 * (jnp.mean(head * erf(fields / jnp.sqrt(2))) - label) ** 2

    own = sgd.Problem(loss, 2, 1, parameters={"noise": noise_schedule})
    built_in = network(noise=noise_schedule, weight_decay=0.0)
    own_result, built_in_result = (
        simulate_network(problem, "exact", 0, runs=3) for problem in (own, built_in)
    )
    np.testing.assert_allclose(own_result.Q, built_in_result.Q, rtol=1e-10)
    assert sgd.problem_of(built_in_result) == built_in
    assert own.scheduled
    assert not own.at(0.7).scheduled
    assert own.at(0.7).parameters["user"]["noise"] == 0.1
    assert built_in.describe()["noise"] == {"edges": [0.5], "rates": [1.0, 0.1]}
    assert network().describe()["rerunnable"] is False


@pytest.mark.slow
def test_fixed_data():
    """On fixed data schedules are functions of t; the training risk uses the noise at time t."""
    algorithm = sgd.GradientDescent(lr=0.2, samples_per_dimension=1.0)
    exact, direct = (
        simulate_network(network(), method, seed, runs=2000, algorithm=algorithm, steps=[0, 8])
        for seed, method in enumerate(("exact", "direct"))
    )
    for index in range(2):
        same_law(
            exact.train_risk[:, index].values,
            direct.train_risk[:, index].values,
            f"train risk {index}",
        )
    same_law(exact.Q[:, -1, 0, 0].values, direct.Q[:, -1, 0, 0].values, "Q")


@pytest.mark.slow
def test_sde():
    """The SDE evaluates the schedules too: its mean is that of the chain up to O(1/d)."""
    problem = network()
    algorithm, start = sgd.OnePassSGD(lr=1.0), sgd.random_start(problem, dimension=300, seed=1)
    chain = sgd.simulate(problem, algorithm, start, alpha=[0.0, 1.0], dimension=300, runs=500)
    paths = sgd.solve_sde(
        problem, algorithm, start, alpha=[0.0, 1.0], dimension=300, runs=500, step=0.02
    )
    difference = chain.Q[:, -1].mean("run") - paths.Q[:, -1].mean("run")
    error = np.hypot(chain.Q[:, -1].std("run"), paths.Q[:, -1].std("run")) / np.sqrt(500)
    assert np.all(np.abs(difference) < Z * error + 1e-3)


def test_schedules_with_invalid_values_raise():
    for changes, message in (
        ({"noise": lambda alpha: -1.0 + 0 * alpha}, "noise = .*at alpha = 0 the schedule gives -1"),
        ({"weight_decay": lambda alpha: jnp.ones(2)}, "weight_decay = .*must return a scalar"),
        ({"noise": -1.0}, "noise = -1"),
    ):
        with pytest.raises(ValueError, match=message):
            network(**changes)
    with pytest.raises(ValueError, match=r"at alpha = 0\.507812 the schedule gives"):
        simulate_network(network(noise=lambda alpha: 0.5 - alpha), "exact", 0, runs=1)


def decreasing_rate(t):
    return 0.3 / (1 + t)


FIXED_DATA = {
    "descent": sgd.GradientDescent(
        lr=decreasing_rate, samples_per_dimension=2.0, head_rate=decreasing_rate
    ),
    "persistent": sgd.PersistentSGD(
        lr=sgd.piecewise_rate([1.0], [0.2, 0.1]), samples_per_dimension=2.0, persistence_time=1.0
    ),
    "Langevin": sgd.Langevin(
        lr=decreasing_rate, samples_per_dimension=2.0, temperature=lambda t: jnp.exp(-t)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED_DATA)
def test_learning_rates_on_fixed_data(name):
    """With a scheduled lr the clock adds up the steps, and runs agree with each other and DMFT."""
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.2, head="trained" if name == "descent" else "fixed"
    )
    start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    algorithm, runs, steps = FIXED_DATA[name], 600, [3, 12]
    exact, direct = (
        sgd.simulate(
            problem,
            algorithm,
            start,
            steps=steps,
            dimension=40,
            runs=runs,
            method=method,
            seed=seed,
        )
        for seed, method in enumerate(("exact", "direct"))
    )
    t = [0.0]
    for _ in range(12):
        t.append(t[-1] + float(algorithm.lr(t[-1])))
    # Here the schedule is evaluated in float32, outside of the library.
    np.testing.assert_allclose(exact.t, [t[3], t[12]], rtol=1e-6)
    by_times = sgd.simulate(problem, algorithm, start, times=exact.t.values, dimension=40, runs=1)
    assert by_times.step.values.tolist() == steps
    for variable in ("M", "Q", "train_risk"):
        same_law(
            exact[variable].values[:, -1].ravel(), direct[variable].values[:, -1].ravel(), variable
        )
    theory = sgd.solve_dmft(problem, algorithm, start, steps=steps, paths=4096, progress=False)
    error = exact.risk.std("run").values / np.sqrt(runs)
    # Means of runs at d = 40 differ from the limit by O(1/d).
    assert np.all(
        np.abs(exact.risk.mean("run").values - theory.risk.values[0]) <= Z * error + 2 / 40
    )
    if name == "persistent":
        assert sgd.algorithm_of(theory) == algorithm
        with pytest.raises(ValueError, match="a sample would switch with a probability above 1"):
            sgd.simulate(
                problem, algorithm.replace(persistence_time=0.15), start, steps=[1], dimension=40
            )
    with pytest.raises(ValueError, match="at t = 0 the schedule gives -1"):
        sgd.GradientDescent(lr=lambda t: t - 1.0)
