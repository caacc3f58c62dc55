"""Updates defined by the user, with rows and scalars as state, in chains and direct runs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from tests.simulation.test_tokens import assert_same_law


def heavy_ball(state, gradient, lr, D, number):
    velocity = 0.7 * state["velocity"] + gradient(state["weights"])
    return {"weights": -lr / D * velocity, "velocity": velocity - state["velocity"]}


def scaled_ball(state, gradient, lr, D, number):
    """Momentum normalised by the accumulated gradient norm, with an average of the weights.

    The gradient is taken at weights shifted along the velocity, as in Nesterov's momentum.
    """
    G = gradient(state["weights"], -lr / D * state["velocity"])
    norm = state["norm"] + jnp.sum(G**2) / D
    velocity = 0.5 * state["velocity"] + G
    step = -lr / D * velocity / jnp.sqrt(1 + norm)
    weight = 1.0 / (number + 2)
    return {
        "weights": step,
        "velocity": velocity - state["velocity"],
        "average": weight * (state["weights"] + step - state["average"]),
        "norm": norm - state["norm"],
    }


STATE = {"rows": ("velocity", "average"), "scalars": ("norm",)}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_two_sets_and_a_scalar(batch):
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, head="trained", weight_decay=0.1
    )
    update = sgd.updates.own(scaled_ball, **STATE, memory="fast", rereads=False)
    assert_same_law(
        problem,
        sgd.OnePassSGD(lr=4.0, batch=batch, head_rate=0.5, update=update),
        (ExactChain, DirectSGD),
        steps=10,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "method"),
    [
        pytest.param({"head": "trained"}, "exact", marks=pytest.mark.slow),
        ({"constraint": "sphere"}, "direct"),
    ],
)
def test_momentum_defined_by_the_user(options, method):
    """Runs equal those with the library's momentum to rounding."""
    problem = sgd.TeacherStudent(width=2, activation="square", **options)
    start = sgd.random_start(problem, dimension=20, runs=2)
    results = [
        sgd.simulate(
            problem,
            sgd.OnePassSGD(lr=0.3, batch=3, update=update),
            start,
            steps=[0, 30],
            dimension=20,
            method=method,
        )
        for update in (
            sgd.updates.own(heavy_ball, rows=("velocity",), rereads=False),
            sgd.updates.momentum(0.7),
        )
    ]
    for name in ("M", "Q", "a"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-9, atol=1e-12)


def test_invalid_updates_raise():
    def plain(state, gradient, lr, D, number):
        return {"weights": -lr / D * gradient(state["weights"])}

    def sign(state, gradient, lr, D, number):
        return {"weights": -lr / D * jnp.sign(gradient(state["weights"]))}

    def fails(state, gradient, lr, D, number):
        return {"weights": state["nothing"]}

    for step, options, message in (
        (sign, {}, "increment of weights does not commute with rotations"),
        (fails, {}, "calling it failed with: KeyError"),
        (plain, {"rows": ("velocity",)}, "names and shapes of the state"),
        (plain, {"rows": ("weights",)}, "names must be strings and differ"),
        (plain, {"memory": "long"}, "memory = 'long'"),
        (3, {}, "step = 3"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.updates.own(step, **options)
    algorithm = sgd.OnePassSGD(update=sgd.updates.own(plain))
    assert algorithm.describe()["update"]["function"] == "plain"
    assert algorithm.describe()["rerunnable"] is False
