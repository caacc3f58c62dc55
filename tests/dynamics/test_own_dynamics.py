"""The drill of the open engine: a dynamics from outside the package, in every solver that the table promises, touching nothing of it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z

NOISE, LR, D = 0.2, 0.4, 60


@dataclasses.dataclass(frozen=True)
class LinearStudent(sgd.Dynamics):
    """A linear student of a linear teacher, width 1: m = w.w*, q = |w|^2, in closed form. The library knows it as a TeacherStudent."""

    noise: float = NOISE
    variables: ClassVar = {"m": ("overlap", ()), "q": ("squared length", ())}

    @property
    def parameters(self):
        return {"noise": np.float64(self.noise)}

    def rate(self, numbers, state):
        m, q = state["m"], state["q"]
        lr, batch, d = numbers["algorithm"]["lr"], numbers["batch"], numbers["dimension"]
        error, noise = q - 2 * m + 1, numbers["problem"]["noise"]
        # E[e^2 |x|^2]/d, and what a mean over the batch leaves of its square
        second = ((1 + 2 / d) * error + noise) / batch + (1 - 1 / batch) * error / d
        return {"m": 1 - m, "q": -2 * (q - m) + lr * second}

    def step(self, numbers, state, key):
        m, q = state["m"], state["q"]
        step = numbers["algorithm"]["lr"] / numbers["dimension"]
        x, z = jax.random.normal(key, (2,)), jax.random.normal(jax.random.fold_in(key, 1))
        rest = jax.random.chisquare(jax.random.fold_in(key, 2), numbers["dimension"] - 2)
        field = m * x[0] + jnp.sqrt(jnp.maximum(q - m * m, 0.0)) * x[1]
        error = field - x[0] - jnp.sqrt(numbers["problem"]["noise"]) * z
        return {
            "m": m - step * error * x[0],
            "q": q - 2 * step * error * field + step**2 * error**2 * (jnp.sum(x * x) + rest),
        }

    def risk(self, numbers, state):
        return 0.5 * (state["q"] - 2 * state["m"] + 1 + numbers["problem"]["noise"])


KNOWN = sgd.TeacherStudent(width=1, activation="linear", noise=NOISE)
ALGORITHM = sgd.OnePassSGD(lr=LR)
START = {"m": 0.1, "q": 0.9}
SAME = sgd.start(KNOWN, M=[[0.1]], Q=[[0.9]])


@pytest.mark.parametrize("dimension", [D, pytest.param(None, marks=pytest.mark.slow)])
def test_the_ode_is_that_of_the_same_problem(dimension):
    own = sgd.solve_ode(
        LinearStudent(), ALGORITHM, START, times=[0.0, 1.0, 3.0], dimension=dimension
    )
    known = sgd.solve_ode(KNOWN, ALGORITHM, SAME, times=[0.0, 1.0, 3.0], dimension=dimension)
    np.testing.assert_allclose(own.m, known.M[:, :, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(own.q, known.Q[:, :, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(own.risk, known.risk, rtol=1e-9)
    assert own.m.dims == ("run", "time")
    assert own.m.attrs["long_name"] == "overlap"
    assert own.attrs["error_integrator"] < 1e-8


def test_runs_have_its_law():
    runs = 4000
    own = sgd.simulate(
        LinearStudent(), ALGORITHM, START, steps=[0, 40], dimension=D, runs=runs, seed=1
    )
    known = sgd.simulate(KNOWN, ALGORITHM, SAME, steps=[0, 40], dimension=D, runs=runs, seed=2)
    for one, other in (
        (own.m, known.M[..., 0, 0]),
        (own.q, known.Q[..., 0, 0]),
        (own.risk, known.risk),
    ):
        a, b = np.asarray(one)[:, 1], np.asarray(other)[:, 1]
        assert abs(a.mean() - b.mean()) < Z * np.sqrt((a.var() + b.var()) / runs)
        # the variance of a variance is at most some fourth moment: measured, not assumed normal
        spread = np.sqrt(((a - a.mean()) ** 2).var() / runs + ((b - b.mean()) ** 2).var() / runs)
        assert abs(a.var() - b.var()) < Z * spread
    assert own.attrs["error_sampling"] > 0


def test_it_leaves_when_its_closed_solution_does():
    # error' = -(2 - lr) error + lr noise, from q - 2m + 1 = 1.7 to half of that
    own = sgd.exit_time(
        LinearStudent(),
        ALGORITHM,
        START,
        threshold=0.5,
        criterion=lambda s: s["q"] - 2 * s["m"] + 1,
    )
    rest = LR * NOISE / (2 - LR)
    assert own.mean == pytest.approx(np.log((1.7 - rest) / (0.85 - rest)) / (2 - LR), rel=1e-9)
    runs = sgd.exit_time(
        LinearStudent(),
        ALGORITHM,
        START,
        threshold=0.3,
        method="exact",
        dimension=D,
        runs=20,
        max_time=10.0,
    )
    assert runs.left == 20


@pytest.mark.slow
def test_a_control_of_it_changes_with_alpha():
    """Label noise that falls: the mean step reads it at alpha, and the risk has it at the time it is asked for."""

    class Falling(LinearStudent):
        @property
        def parameters(self):
            return {"noise": sgd.piecewise_rate([2.0], [0.5, 0.1])}

    found = sgd.solve_ode(Falling(), ALGORITHM, START, alpha=[0.0, 1.0, 4.0])
    known = sgd.solve_ode(
        KNOWN.replace(noise=sgd.piecewise_rate([2.0], [0.5, 0.1])),
        ALGORITHM,
        SAME,
        alpha=[0.0, 1.0, 4.0],
    )
    np.testing.assert_allclose(found.risk, known.risk, rtol=1e-7)
    np.testing.assert_allclose(found.q, known.Q[..., 0, 0], rtol=1e-7)


def test_sweeps_take_it():
    given = {"times": [0.0, 1.0, 3.0], "dimension": D}  # as above: no other program
    over = {"lr": [0.1, 0.4], "noise": [0.0, NOISE]}
    found = sgd.sweep(
        "solve_ode", problem=LinearStudent(), algorithm=ALGORITHM, start=START, over=over, **given
    )
    one = sgd.solve_ode(LinearStudent(), ALGORITHM, START, **given)
    np.testing.assert_allclose(found.risk.sel(lr=0.4, noise=NOISE), one.risk, rtol=1e-6)


def test_what_it_does_not_have_is_refused():
    with pytest.raises(ValueError, match="does not know the noise of a Dynamics"):
        sgd.solve_sde(LinearStudent(), ALGORITHM, START, times=[1.0], dimension=D)
    with pytest.raises(ValueError, match=r"start = .*m, q"):
        sgd.solve_ode(LinearStudent(), ALGORITHM, {"m": 0.1}, times=[1.0])
    with pytest.raises(ValueError, match=r"m = .*give 0 axes"):
        sgd.solve_ode(LinearStudent(), ALGORITHM, {"m": [[0.1]], "q": 1.0}, times=[1.0])
    with pytest.raises(ValueError, match=r"runs = 3.*2 runs"):
        sgd.simulate(
            LinearStudent(), ALGORITHM, {"m": [0.1, 0.2], "q": 1.0}, steps=[1], dimension=D, runs=3
        )
    with pytest.raises(ValueError, match="criterion = 'overlap'"):
        sgd.exit_time(LinearStudent(), ALGORITHM, START, threshold=0.2, criterion="overlap")
    with pytest.raises(ValueError, match="method = 'direct'"):
        sgd.simulate(LinearStudent(), ALGORITHM, START, steps=[1], dimension=D, method="direct")

    class Silent(sgd.Dynamics):
        variables: ClassVar = {"m": ("overlap", ())}

    for call in (
        lambda: sgd.solve_ode(Silent(), ALGORITHM, {"m": 0.1}, times=[1.0]),
        lambda: sgd.simulate(Silent(), ALGORITHM, {"m": 0.1}, steps=[1], dimension=D),
        lambda: sgd.exit_time(Silent(), ALGORITHM, {"m": 0.1}),
    ):
        with pytest.raises(ValueError, match=r"Silent has no (rate|step|risk)"):
            call()
