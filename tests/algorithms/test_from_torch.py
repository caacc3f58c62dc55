"""`sgd.from_torch`: the library's direct steps against the published steps of PyTorch's optimisers.

The published steps are written in NumPy, with PyTorch's own hyperparameters.
"""

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
from tests.algorithms import torch_stand_ins as nn

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
    """A stand-in with the class name and the hyperparameters of PyTorch's optimiser."""
    group = {"params": [], "lr": lr, **GROUPS[name], **changes}
    return instance_of_class(name.split(",")[0], param_groups=[group])


def instance_of_class(class_name, **attributes):
    """An object whose class has this name, from which the library recognises an optimiser."""
    return type(class_name, (SimpleNamespace,), {})(**attributes)


def weights_after_torch_steps(name, group, W, gradients):
    """W after the steps that PyTorch documents, one for each of the functions W -> gradient.

    SGD and Adam (Kingma and Ba 2015, Algorithm 1) keep a velocity, the adaptive optimisers the sums
    or averages of G^2 in each coordinate, and Muon orthogonalises its velocity by five
    Newton-Schulz iterations. AdamW and Muon decay W separately from the gradient; the others add
    decay W to it.
    """
    lr, decay = group["lr"], group.get("weight_decay", 0.0)
    kind = name.split(",")[0]
    velocity = np.zeros_like(W)
    squares = np.full_like(W, group.get("initial_accumulator_value", 0.0))
    for number, gradient in enumerate(gradients, 1):
        G = gradient(W)
        if kind in ("AdamW", "Muon"):
            W = W * (1 - lr * decay)
        else:
            G = G + decay * W
        if kind == "SGD":
            mu = group["momentum"]
            velocity = mu * velocity + G
            W = W - lr * (G + mu * velocity if group.get("nesterov") else velocity)
        elif kind in ("Adam", "AdamW"):
            (beta1, beta2), eps = group["betas"], group["eps"]
            velocity = beta1 * velocity + (1 - beta1) * G
            squares = beta2 * squares + (1 - beta2) * G**2
            # Both averages start at 0, which the factors 1/(1 - beta^number) correct.
            root = np.sqrt(squares / (1 - beta2**number))
            W = W - lr * velocity / (1 - beta1**number) / (root + eps)
        elif kind == "RMSprop":
            squares = group["alpha"] * squares + (1 - group["alpha"]) * G**2
            W = W - lr * G / (np.sqrt(squares) + group["eps"])
        elif kind == "Adagrad":
            squares = squares + G**2
            W = W - lr * G / (np.sqrt(squares) + group["eps"])
        elif kind == "Muon":
            velocity = group["momentum"] * velocity + (1 - group["momentum"]) * G
            # A quintic polynomial moves all singular values of the velocity close to 1.
            X = velocity / np.linalg.norm(velocity)
            for _ in range(5):
                A = X @ X.T
                X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
            W = W - lr * X
    return W


@pytest.mark.parametrize("name", GROUPS)
def test_the_library_takes_the_steps_of_pytorch(name):
    """Rows after several direct steps on the same data agree to 1e-11.

    For AdamW and Muon, whose decay is separate from the step, the tolerance allows for a difference
    of second order in lr: a small share of the displacement times lr decay STEPS.
    """
    problem = sgd.TeacherStudent(width=2, activation="square")
    generator = np.random.default_rng(2)
    x, W = generator.standard_normal((STEPS, 3, D)), generator.standard_normal((2, D)) / np.sqrt(D)
    torch_optimiser = optimiser(name)
    algorithm = sgd.from_torch(torch_optimiser, dimension=D, batch=3)

    def gradient(x, W):
        # The loss is (f - y)^2/2 with f = mean_i (w_i.x)^2 over two units, and y = x_1^2.
        fields = x @ W.T
        error = np.mean(fields**2, axis=1) - x[:, 0] ** 2
        return (error[:, None] * fields).T @ x / len(x)

    initial = update_start(algorithm.update, sgd.start(problem, M=W[:, :1], Q=W @ W.T))
    sets = count_row_sets(algorithm.law)
    # The averages of squares start equal in all coordinates of a row.
    squares = tuple(
        np.broadcast_to(average[0][:, None], (2, D)) for average in initial.squares.swapaxes(0, 1)
    )
    # The weights are the first set of rows; the other sets (velocities) start at 0.
    state = Rows(
        np.pad(W, ((0, (sets - 1) * 2), (0, 0))),
        np.ones(2 * sets),
        tuple(initial.scalars[0]),
        squares,
    )
    embedding = place_signals(problem, np.array([D]))

    @jax.jit
    def run(state):
        for number in range(STEPS):
            state = direct_step(
                problem.structure,
                (problem.parameters, algorithm.parameters),
                algorithm.lr / D,
                state,
                x[number],
                jnp.zeros(3),
                embedding,
                algorithm.law,
                number,
            )
        return state.rows[:2]

    with jax.enable_x64(True):
        rows = np.asarray(run(jax.tree.map(jnp.asarray, state)))
    expected = weights_after_torch_steps(
        name, torch_optimiser.param_groups[0], W, [partial(gradient, inputs) for inputs in x]
    )
    displacement = np.abs(expected - W).max()
    is_decoupled = name in ("AdamW", "Muon")
    tolerance = 1e-12 + 0.02 * displacement * 0.02 * 0.3 * STEPS if is_decoupled else 1e-11
    np.testing.assert_allclose(rows, expected, atol=tolerance)


def test_a_second_parameter_group_is_the_head():
    groups = [{"lr": 0.01, "momentum": 0.0}, {"lr": 0.03, "momentum": 0.0}]
    torch_optimiser = instance_of_class("SGD", param_groups=groups)
    expected = sgd.OnePassSGD(lr=1.0, head_rate=3.0)
    assert sgd.from_torch(torch_optimiser, dimension=100) == expected


def test_rates_of_the_leaves_of_a_top():
    """One lr_T on inputs s x: the rows W = s W_T move by s lr_T, the top by lr_T."""
    s, d = 0.5, 100
    network = nn.Sequential(nn.Linear(np.ones((2, d)), np.zeros(2)), nn.Linear(np.ones((1, 2))))
    first, bias, last = network.parameters()
    groups = [
        {"params": [first, bias], "lr": 0.01, "momentum": 0.0, "weight_decay": 0.2},
        {"params": [last], "lr": 0.03, "momentum": 0.0, "weight_decay": 0.2},
    ]
    for names, kind, lr, rate in (
        (("params", "lr", "momentum", "weight_decay"), "SGD", 0.01 * d * s**2, 1 / s**2),
        (("params", "lr"), "Adam", 0.01 * d * s, 1 / s),
    ):
        options = {"betas": (0.9, 0.99), "eps": 1e-3} if kind == "Adam" else {}
        chosen = [{name: group[name] for name in names} | options for group in groups]
        torch_optimiser = instance_of_class(kind, param_groups=chosen)
        algorithm = sgd.from_torch(torch_optimiser, dimension=d, input_scale=s, network=network)
        assert algorithm.lr == pytest.approx(lr)
        assert algorithm.head_rate == pytest.approx({"0.bias": rate, "1.weight": 3 * rate})
        if kind == "SGD":
            assert algorithm.update.numbers == pytest.approx({"rate": 0.2 / s**2, "head": 0.2})
        else:
            updates = algorithm.update.numbers
            eps = {name: update.numbers["eps"] for name, update in updates.items()}
            assert eps == pytest.approx({"rows": 1e-3 / s, "head": 1e-3})
    first.requires_grad = False
    with pytest.raises(ValueError, match="does not train a first layer with 100 inputs"):
        sgd.from_torch(torch_optimiser, dimension=d, network=network)


def test_unsupported_options_and_optimisers_raise():
    for torch_optimiser, message in (
        (optimiser("Adam", amsgrad=True), "amsgrad"),
        (optimiser("SGD", maximize=True), "maximize"),
        (optimiser("RMSprop", momentum=0.9), "momentum"),
        (optimiser("Muon", nesterov=True), "nesterov"),
        (optimiser("Adagrad", initial_accumulator_value=0.0), "initial_accumulator_value"),
        (instance_of_class("LBFGS", param_groups=[{"lr": 1.0}]), "torch.optim.SGD"),
        (3, "not a PyTorch optimiser"),
        (SimpleNamespace, "not a PyTorch optimiser"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.from_torch(torch_optimiser, dimension=100)
    class_of_torch = type("Adam", (), {"__module__": "torch.optim.adam"})
    with pytest.raises(ValueError, match=r"update = .*from_torch"):
        sgd.OnePassSGD(update=class_of_torch())
