"""PyTorch's optimisers in the library's units: their published steps, in NumPy and with their own numbers, against direct runs."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.problems.frames import place_signals
from sgdynamics.simulation.direct import direct_step

D, STEPS = 12, 6
ADAM = {"betas": (0.9, 0.98), "eps": 1e-3, "amsgrad": False, "maximize": False}
GROUPS = {
    "SGD": {
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "maximize": False,
    },
    "SGD, decay": {"momentum": 0.0, "weight_decay": 0.3},
    "SGD, momentum": {"momentum": 0.8, "dampening": 0.0, "weight_decay": 0.3, "nesterov": False},
    "SGD, Nesterov": {"momentum": 0.8, "dampening": 0.0, "weight_decay": 0.0, "nesterov": True},
    "Adam": {**ADAM, "weight_decay": 0.0},
    "Adam, decay": {**ADAM, "weight_decay": 0.3},
    "AdamW": {**ADAM, "weight_decay": 0.3},
    "RMSprop": {"alpha": 0.9, "eps": 0.01, "momentum": 0, "centered": False, "weight_decay": 0.0},
    "Adagrad": {"lr_decay": 0, "eps": 1e-3, "weight_decay": 0.0, "initial_accumulator_value": 2.0},
    "Muon": {"momentum": 0.8, "nesterov": False, "weight_decay": 0.1},
}


def optimiser(name, lr=0.02, **changes):
    """Something with the name and the numbers of PyTorch's."""
    kind = type(name.split(",")[0], (SimpleNamespace,), {})
    return kind(param_groups=[{"params": [], "lr": lr, **GROUPS[name], **changes}])


def steps_of(name, group, W, gradients):
    """W after steps as PyTorch documents them, from gradient functions of W."""
    lr, decay = group["lr"], group.get("weight_decay", 0.0)
    kind = name.split(",")[0]
    buffer, squares = np.zeros_like(W), np.full_like(W, group.get("initial_accumulator_value", 0.0))
    for number, gradient in enumerate(gradients, 1):
        G = gradient(W)
        if kind in ("AdamW", "Muon"):
            W = W * (1 - lr * decay)
        else:
            G = G + decay * W
        if kind == "SGD":
            mu = group["momentum"]
            buffer = mu * buffer + G
            W = W - lr * (G + mu * buffer if group.get("nesterov") else buffer)
        elif kind in ("Adam", "AdamW"):
            (one, two), eps = group["betas"], group["eps"]
            buffer, squares = one * buffer + (1 - one) * G, two * squares + (1 - two) * G**2
            W = W - lr * buffer / (1 - one**number) / (np.sqrt(squares / (1 - two**number)) + eps)
        elif kind == "RMSprop":
            squares = group["alpha"] * squares + (1 - group["alpha"]) * G**2
            W = W - lr * G / (np.sqrt(squares) + group["eps"])
        elif kind == "Adagrad":
            squares = squares + G**2
            W = W - lr * G / (np.sqrt(squares) + group["eps"])
        elif kind == "Muon":
            buffer = group["momentum"] * buffer + (1 - group["momentum"]) * G
            X = buffer / np.linalg.norm(buffer)
            for _ in range(5):
                A = X @ X.T
                X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
            W = W - lr * X
    return W


@pytest.mark.parametrize("name", GROUPS)
def test_the_same_steps(name):
    """Whole paths to 1e-11: decay beside Muon's and AdamW's step acts on W before it, which is of second order in lr."""
    problem = sgd.TeacherStudent(width=2, activation="square")
    generator = np.random.default_rng(2)
    x, W = generator.standard_normal((STEPS, 3, D)), generator.standard_normal((2, D)) / np.sqrt(D)
    made = optimiser(name)
    algorithm = sgd.from_torch(made, dimension=D, batch=3)

    def gradient(x, W):
        fields = x @ W.T
        error = np.mean(fields**2, axis=1) - x[:, 0] ** 2
        return (error[:, None] * fields).T @ x / len(x)

    begin = update_start(algorithm.update, sgd.start(problem, M=W[:, :1], Q=W @ W.T))
    sets = count_row_sets(algorithm.law)
    squares = tuple(
        np.broadcast_to(one[0][:, None], (2, D)) for one in begin.squares.swapaxes(0, 1)
    )
    state = Rows(
        np.pad(W, ((0, (sets - 1) * 2), (0, 0))),
        np.ones(2 * sets),
        tuple(begin.scalars[0]),
        squares,
    )
    place = place_signals(problem, np.array([D]))

    @jax.jit
    def run(state):
        for number in range(STEPS):
            numbers = (problem.parameters, algorithm.parameters)
            state = direct_step(
                problem.structure,
                numbers,
                algorithm.lr / D,
                state,
                x[number],
                jnp.zeros(3),
                place,
                algorithm.law,
                number,
            )
        return state.rows[:2]

    with jax.enable_x64(True):
        found = np.asarray(run(jax.tree.map(jnp.asarray, state)))
    meant = steps_of(name, made.param_groups[0], W, [partial(gradient, one) for one in x])
    moved = np.abs(meant - W).max()
    second_order = name in ("AdamW", "Muon")
    np.testing.assert_allclose(
        found, meant, atol=1e-11 if not second_order else 1e-12 + 0.02 * moved * 0.02 * 0.3 * STEPS
    )


def test_a_head_of_its_own():
    two = SimpleNamespace(
        param_groups=[{"lr": 0.01, "momentum": 0.0}, {"lr": 0.03, "momentum": 0.0}]
    )
    made = type("SGD", (SimpleNamespace,), {})(**vars(two))
    assert sgd.from_torch(made, dimension=100) == sgd.OnePassSGD(lr=1.0, head_rate=3.0)


def test_what_is_not_known_is_refused():
    for made, says in (
        (optimiser("Adam", amsgrad=True), "amsgrad"),
        (optimiser("SGD", maximize=True), "maximize"),
        (optimiser("RMSprop", momentum=0.9), "momentum"),
        (optimiser("Muon", nesterov=True), "nesterov"),
        (optimiser("Adagrad", initial_accumulator_value=0.0), "initial_accumulator_value"),
        (type("LBFGS", (SimpleNamespace,), {})(param_groups=[{"lr": 1.0}]), "torch.optim.SGD"),
        (3, "not a PyTorch optimiser"),
        (SimpleNamespace, "not a PyTorch optimiser"),
    ):
        with pytest.raises(ValueError, match=says):
            sgd.from_torch(made, dimension=100)
    fake = type("Adam", (), {"__module__": "torch.optim.adam"})()
    with pytest.raises(ValueError, match=r"update = .*from_torch"):
        sgd.OnePassSGD(update=fake)
