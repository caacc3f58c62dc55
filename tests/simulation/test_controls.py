"""Numbers of a problem that change with alpha, or on fixed data with t: label noise, weight decay, numbers of an own loss."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, same_law

D = 20


def falling(alpha):
    return 2.0 * jnp.exp(-alpha)


def network(**changes):
    return sgd.TeacherStudent(
        **(
            {
                "width": 2,
                "activation": "erf",
                "noise": falling,
                "weight_decay": lambda alpha: 0.2 * alpha,
            }
            | changes
        )
    )


def simulated(problem, method, seed, runs=4000, algorithm=None, **when):
    algorithm = sgd.OnePassSGD(lr=3.0, batch=2) if algorithm is None else algorithm
    begin = sgd.random_start(network(), dimension=D, seed=1)
    return sgd.simulate(
        problem,
        algorithm,
        begin,
        dimension=D,
        runs=runs,
        seed=seed,
        method=method,
        **(when or {"steps": [0, 10, 20]}),
    )


@pytest.mark.parametrize("method", ["exact", pytest.param("direct", marks=pytest.mark.slow)])
def test_a_switch_at_the_alpha_of_a_step_is_made_at_that_step(method):
    """Steps 0, 1, 2 of batch 3 are taken in d = 10 before alpha = .9, which 3 * (3/10) rounds below."""
    problem = sgd.TeacherStudent(width=1, activation="square")
    begin = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.9], [0.5, 0.0]), batch=3)
    result = sgd.simulate(
        problem, algorithm, begin, steps=[2, 3, 6], dimension=10, runs=2, method=method
    )
    assert np.all(result.Q[:, 1] != result.Q[:, 0])
    np.testing.assert_array_equal(result.Q[:, 2], result.Q[:, 1])
    np.testing.assert_allclose(result.t, [0.1, 0.15, 0.15])


@pytest.mark.slow  # the schedules of test_schedules, and the numbers of an own loss below, go the same way
def test_chain_against_direct():
    """Label noise that falls from 2 to .27, and decay that grows: the law of SGD in d dimensions, not that of constant numbers."""
    exact, direct = (
        simulated(network(), method, seed) for seed, method in enumerate(("exact", "direct"))
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
    constant = simulated(network(noise=2.0, weight_decay=0.0), "exact", 0)
    difference = exact.Q[:, -1, 0, 0].values - constant.Q[:, -1, 0, 0].values
    assert abs(difference.mean()) > 5 * Z * difference.std() / np.sqrt(len(difference))


def test_numbers_of_an_own_loss():
    """The same problem as a loss of the user's, with the same random numbers; a schedule of pieces is recorded and made again."""
    pieces = sgd.piecewise_rate([0.5], [1.0, 0.1])

    def loss(fields, signals, head, noise, numbers):
        from jax.scipy.special import erf

        label = erf(signals[0] / jnp.sqrt(2)) + jnp.sqrt(numbers["noise"]) * noise
        return 0.5 * (jnp.mean(head * erf(fields / jnp.sqrt(2))) - label) ** 2

    own = sgd.Problem(loss, 2, 1, parameters={"noise": pieces})
    known = network(noise=pieces, weight_decay=0.0)
    one, other = (simulated(problem, "exact", 0, runs=3) for problem in (own, known))
    np.testing.assert_allclose(one.Q, other.Q, rtol=1e-10)
    assert sgd.problem_of(other) == known
    assert own.scheduled
    assert not own.at(0.7).scheduled
    assert own.at(0.7).parameters["user"]["noise"] == 0.1
    assert known.describe()["noise"] == {"edges": [0.5], "rates": [1.0, 0.1]}
    assert network().describe()["rerunnable"] is False


@pytest.mark.slow
def test_fixed_data():
    """Functions of t: exact law and direct runs agree, the training risk at the noise of its own time included."""
    algorithm = sgd.GradientDescent(lr=0.2, samples_per_dimension=1.0)
    exact, direct = (
        simulated(network(), method, seed, runs=2000, algorithm=algorithm, steps=[0, 8])
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
    """The SDE reads the same numbers: its mean is the chain's, to what d = 300 leaves."""
    problem = network()
    algorithm, begin = sgd.OnePassSGD(lr=1.0), sgd.random_start(problem, dimension=300, seed=1)
    chain = sgd.simulate(problem, algorithm, begin, alpha=[0.0, 1.0], dimension=300, runs=500)
    paths = sgd.solve_sde(
        problem, algorithm, begin, alpha=[0.0, 1.0], dimension=300, runs=500, step=0.02
    )
    difference = chain.Q[:, -1].mean("run") - paths.Q[:, -1].mean("run")
    error = np.hypot(chain.Q[:, -1].std("run"), paths.Q[:, -1].std("run")) / np.sqrt(500)
    assert np.all(np.abs(difference) < Z * error + 1e-3)


def test_refused():
    for changes, says in (
        ({"noise": lambda alpha: -1.0 + 0 * alpha}, "noise = .*at alpha = 0 the schedule gives -1"),
        ({"weight_decay": lambda alpha: jnp.ones(2)}, "weight_decay = .*must give one number"),
        ({"noise": -1.0}, "noise = -1"),
    ):
        with pytest.raises(ValueError, match=says):
            network(**changes)
    with pytest.raises(ValueError, match=r"at alpha = 0\.507812 the schedule gives"):
        simulated(network(noise=lambda alpha: 0.5 - alpha), "exact", 0, runs=1)


def slower(t):
    return 0.3 / (1 + t)


ON_DATA = {
    "descent": sgd.GradientDescent(lr=slower, samples_per_dimension=2.0, head_rate=slower),
    "persistent": sgd.PersistentSGD(
        lr=sgd.piecewise_rate([1.0], [0.2, 0.1]), samples_per_dimension=2.0, persistence_time=1.0
    ),
    "Langevin": sgd.Langevin(
        lr=slower, samples_per_dimension=2.0, temperature=lambda t: jnp.exp(-t)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_DATA)
def test_learning_rates_on_fixed_data(name):
    """Steps whose length depends on t: the clock adds them up, exact and direct runs agree in law, and DMFT has their mean."""
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.2, head="trained" if name == "descent" else "fixed"
    )
    begin = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    algorithm, runs, steps = ON_DATA[name], 600, [3, 12]
    exact, direct = (
        sgd.simulate(
            problem,
            algorithm,
            begin,
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
    np.testing.assert_allclose(
        exact.t, [t[3], t[12]], rtol=1e-6
    )  # a user's function is float32 here
    same = sgd.simulate(problem, algorithm, begin, times=exact.t.values, dimension=40, runs=1)
    assert same.step.values.tolist() == steps
    for kept in ("M", "Q", "train_risk"):
        same_law(exact[kept].values[:, -1].ravel(), direct[kept].values[:, -1].ravel(), kept)
    theory = sgd.solve_dmft(problem, algorithm, begin, steps=steps, paths=4096, progress=False)
    error = exact.risk.std("run").values / np.sqrt(runs)
    # runs at d = 40 are off their limit by O(1/d)
    assert np.all(
        np.abs(exact.risk.mean("run").values - theory.risk.values[0]) <= Z * error + 2 / 40
    )
    if name == "persistent":
        assert sgd.algorithm_of(theory) == algorithm
        with pytest.raises(ValueError, match="a sample would switch with a probability above 1"):
            sgd.simulate(
                problem, algorithm.replace(persistence_time=0.15), begin, steps=[1], dimension=40
            )
    with pytest.raises(ValueError, match="at t = 0 the schedule gives -1"):
        sgd.GradientDescent(lr=lambda t: t - 1.0)
