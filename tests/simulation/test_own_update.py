"""Updates from outside the package: sets of rows and scalars, in the exact chain as in d dimensions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from tests.simulation.test_tokens import compare


def heavy_ball(state, gradient, lr, D, number):
    velocity = 0.7 * state["velocity"] + gradient(state["weights"])
    return {"weights": -lr / D * velocity, "velocity": velocity - state["velocity"]}


def scaled_ball(state, gradient, lr, D, number):
    """Steps of a velocity and an average of the weights, over the root of the sum of all squared gradients, and a look ahead."""
    G = gradient(state["weights"], -lr / D * state["velocity"])
    norm = state["norm"] + jnp.sum(G**2) / D
    velocity = 0.5 * state["velocity"] + G
    step = -lr / D * velocity / jnp.sqrt(1 + norm)
    keep = 1.0 / (number + 2)
    return {
        "weights": step,
        "velocity": velocity - state["velocity"],
        "average": keep * (state["weights"] + step - state["average"]),
        "norm": norm - state["norm"],
    }


OWN = {"rows": ("velocity", "average"), "scalars": ("norm",)}


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_two_sets_and_a_scalar(batch):
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, head="trained", weight_decay=0.1
    )
    update = sgd.updates.own(scaled_ball, **OWN, memory="fast", rereads=False)
    compare(
        problem,
        sgd.OnePassSGD(lr=4.0, batch=batch, head_rate=0.5, update=update),
        (ExactChain, DirectSGD),
        steps=10,
    )


@pytest.mark.parametrize(
    ("options", "method"),
    [
        pytest.param({"head": "trained"}, "exact", marks=pytest.mark.slow),
        ({"constraint": "sphere"}, "direct"),
    ],
)
def test_momentum_written_anew(options, method):
    """The same numbers as the library's own."""
    problem = sgd.TeacherStudent(width=2, activation="square", **options)
    begin = sgd.random_start(problem, dimension=20, runs=2)
    found = [
        sgd.simulate(
            problem,
            sgd.OnePassSGD(lr=0.3, batch=3, update=update),
            begin,
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
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-9, atol=1e-12)


def test_refused():
    def plain(state, gradient, lr, D, number):
        return {"weights": -lr / D * gradient(state["weights"])}

    def sign(state, gradient, lr, D, number):
        return {"weights": -lr / D * jnp.sign(gradient(state["weights"]))}

    def fails(state, gradient, lr, D, number):
        return {"weights": state["nothing"]}

    for step, options, says in (
        (sign, {}, "increment of weights does not commute with rotations"),
        (fails, {}, "calling it failed with: KeyError"),
        (plain, {"rows": ("velocity",)}, "names and shapes of the state"),
        (plain, {"rows": ("weights",)}, "different names"),
        (plain, {"memory": "long"}, "memory = 'long'"),
        (3, {}, "step = 3"),
    ):
        with pytest.raises(ValueError, match=says):
            sgd.updates.own(step, **options)
    algorithm = sgd.OnePassSGD(update=sgd.updates.own(plain))
    assert algorithm.describe()["update"]["function"] == "plain"
    assert algorithm.describe()["rerunnable"] is False
