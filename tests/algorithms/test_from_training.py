"""`sgd.from_training`: the library's steps against the steps of a PyTorch training.

The training is a two-layer network f(x) = s_out sum_i a_i tanh(s_in w_i.x) with the squared error.
Its steps are written in NumPy, and PyTorch takes them too where it is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from tests.algorithms.test_from_torch import ADAM
from tests.conftest import Z, same_law

D, P, BATCH, STEPS = 12, 3, 4, 5
GENERATOR = np.random.default_rng(3)
WEIGHTS, HEAD = GENERATOR.standard_normal((P, D)) / D**0.5, GENERATOR.standard_normal(P)
# The teacher's rows are the first axes, as `place_signals` has them.
TEACHER, TEACHER_HEAD = np.eye(2, D), np.array([0.7, -0.4])
INPUTS = GENERATOR.standard_normal((STEPS, BATCH, D))
LABELS = np.tanh(INPUTS @ TEACHER.T) @ TEACHER_HEAD


@dataclass(frozen=True)
class Case:
    """A training in PyTorch's units.

    Attributes
    ----------
    options : dict
        Options of the optimiser.
    name : str
        Class name of the optimiser.
    head_options : dict, optional
        Options of the head that differ; the head is then a parameter group of its own.
    frozen : bool
        Whether the head is fixed.
    loss : str
        "mean" or "sum" of (f - y)^2 over the batch, or "half" for the mean of (f - y)^2/2.
    input_scale, output_scale : float
        Factors s_in of the preactivations and s_out of the output.
    buffers : dict
        Momentum buffers "rows" and "head" at the start; zero by default.
    """

    options: dict
    name: str = "SGD"
    head_options: dict | None = None
    frozen: bool = False
    loss: str = "mean"
    input_scale: float = 1.0
    output_scale: float = 1.0
    buffers: dict = field(default_factory=dict)

    @property
    def is_scaled(self):
        return (self.input_scale, self.output_scale) != (1.0, 1.0)


CASES = {
    "SGD": Case({"lr": 0.02}),
    "sum of squares": Case({"lr": 0.005}, loss="sum"),
    "half a square": Case({"lr": 0.02}, loss="half"),
    "decay": Case({"lr": 0.02, "weight_decay": 0.3}),
    "groups": Case(
        {"lr": 0.02, "weight_decay": 0.0}, head_options={"lr": 0.05, "weight_decay": 0.4}
    ),
    "frozen head": Case({"lr": 0.02, "weight_decay": 0.3}, frozen=True),
    "scales": Case({"lr": 0.3, "weight_decay": 0.3}, input_scale=0.4, output_scale=P**-0.5),
    "momentum": Case(
        {"lr": 0.02, "momentum": 0.8, "dampening": 0.0, "weight_decay": 0.3, "nesterov": False}
    ),
    "Nesterov": Case({"lr": 0.02, "momentum": 0.8, "dampening": 0.0, "nesterov": True}, loss="sum"),
    "Adam": Case({"lr": 0.02, **ADAM, "weight_decay": 0.3}, "Adam", frozen=True, input_scale=0.4),
    "AdamW": Case({"lr": 0.02, **ADAM, "weight_decay": 0.3}, "AdamW", frozen=True, input_scale=0.4),
    "RMSprop": Case({"lr": 0.02, "alpha": 0.9, "eps": 0.01}, "RMSprop", frozen=True, loss="sum"),
    "Adam, head": Case(
        {"lr": 0.02, **ADAM, "weight_decay": 0.3},
        "Adam",
        input_scale=0.4,
        output_scale=P**-0.5,
        head_options={"lr": 0.05},
    ),
    "AdamW, head": Case({"lr": 0.02, **ADAM, "weight_decay": 0.3}, "AdamW", input_scale=0.4),
    "RMSprop, head": Case({"lr": 0.02, "alpha": 0.9, "eps": 0.01}, "RMSprop", loss="sum"),
    "Adagrad": Case(
        {"lr": 0.02, "eps": 1e-3, "initial_accumulator_value": 2.0}, "Adagrad", frozen=True
    ),
}


def stand_ins(case):
    """Network, loss and optimiser as stand-ins in NumPy."""
    first, second = nn.Linear(WEIGHTS), nn.Linear(HEAD[None])
    second.weight.requires_grad = not case.frozen
    if case.is_scaled:
        network = nn.ScaledNetwork(first, second, case.input_scale, case.output_scale)
    else:
        network = nn.Sequential(first, nn.Tanh(), second)
    loss = "half_mse" if case.loss == "half" else nn.MSELoss(case.loss)
    if case.head_options is None:
        groups = [{"params": [first.weight, second.weight], **case.options}]
    else:
        groups = [
            {"params": [first.weight], **case.options},
            {"params": [second.weight], **case.options, **case.head_options},
        ]
    return network, loss, nn.optimiser(case.name, *groups)


def convert(case, network, loss, optimiser):
    """The training of a case in the library's units."""
    return sgd.from_training(
        network,
        loss,
        optimiser,
        teacher=TEACHER / case.input_scale,
        teacher_head=TEACHER_HEAD,
        batch=BATCH,
        activation="tanh" if case.is_scaled else None,
        input_scale=case.input_scale,
    )


def library_steps(training, weights=WEIGHTS, velocity=None):
    """Rows and head after the library's direct steps on INPUTS.

    A start contains the overlaps of the rows only. The rows in d dimensions are therefore an
    argument, in the library's units, and their overlaps must be those of the start.
    """
    problem, algorithm, start = training
    np.testing.assert_allclose(start.Q[0], weights @ weights.T, rtol=1e-12)
    np.testing.assert_allclose(start.M[0], weights @ TEACHER.T, rtol=1e-12)
    law, sets = algorithm.law, count_row_sets(algorithm.law)
    initial = update_start(algorithm.update, start, problem.structure.trained)
    # The averages of squares start equal in all coordinates of a row.
    squares = tuple(
        np.broadcast_to(average[0][:, None], (P, D)) for average in initial.squares.swapaxes(0, 1)
    )
    # The weights are the first set of rows, and a velocity is the second.
    rows = np.zeros((sets * P, D))
    rows[:P] = weights
    if velocity is not None:
        rows[P : 2 * P] = velocity
    heads = np.zeros(sets * P)
    heads[: initial.a.shape[1]] = initial.a[0]
    vectors = tuple(initial.vectors[0])
    state = Rows(rows, heads, tuple(initial.scalars[0]), squares, vectors=vectors)
    embedding = place_signals(problem, np.array([D]))

    @jax.jit
    def step(state, x, number):
        return direct_step(
            problem.structure,
            (problem.parameters, algorithm.parameters),
            algorithm.lr / D,
            state,
            x,
            jnp.zeros(BATCH),
            embedding,
            law,
            number,
        )

    with jax.enable_x64(True):
        state = jax.tree.map(jnp.asarray, state)
        for number in range(STEPS):
            state = step(state, INPUTS[number], number)
        return np.asarray(state.rows[:P]), np.asarray(state.head[:P])


def numpy_steps(case):
    """Rows and head of the network after the steps that PyTorch documents, on the same data.

    With the factor c of the loss (2/batch, 2, or 1/batch), the gradients of a batch are

        e = c (f - y),   dL/dw_i = s_in s_out a_i sum e (1 - u_i^2) x,   dL/da_i = s_out sum e u_i,

    where u_i = tanh(s_in w_i.x) and the sums are over the batch.
    """
    weights = {"rows": WEIGHTS.copy(), "head": HEAD.copy()}
    options = {"rows": case.options, "head": {**case.options, **(case.head_options or {})}}
    initial_square = case.options.get("initial_accumulator_value", 0.0)
    buffers = {name: np.zeros_like(array) for name, array in weights.items()} | case.buffers
    squares = {name: np.full_like(array, initial_square) for name, array in weights.items()}
    factor = {"mean": 2 / BATCH, "sum": 2.0, "half": 1 / BATCH}[case.loss]
    for number, (x, y) in enumerate(zip(INPUTS, LABELS, strict=True), 1):
        units = np.tanh(case.input_scale * x @ weights["rows"].T)
        error = factor * (case.output_scale * units @ weights["head"] - y)
        slopes = case.output_scale * case.input_scale * (1 - units**2) * weights["head"]
        gradients = {
            "rows": (error[:, None] * slopes).T @ x,
            "head": case.output_scale * error @ units,
        }
        for name in ("rows",) if case.frozen else ("rows", "head"):
            group, G, W = options[name], gradients[name], weights[name]
            lr, decay = group["lr"], group.get("weight_decay", 0.0)
            if case.name == "AdamW":
                W = W * (1 - lr * decay)
            else:
                G = G + decay * W
            if case.name == "SGD":
                mu = group.get("momentum", 0.0)
                buffers[name] = mu * buffers[name] + G
                step = G + mu * buffers[name] if group.get("nesterov") else buffers[name]
            elif case.name in ("Adam", "AdamW"):
                (beta1, beta2), eps = group["betas"], group["eps"]
                buffers[name] = beta1 * buffers[name] + (1 - beta1) * G
                squares[name] = beta2 * squares[name] + (1 - beta2) * G**2
                # Both averages start at 0, which the factors 1/(1 - beta^number) correct.
                root = np.sqrt(squares[name] / (1 - beta2**number))
                step = buffers[name] / (1 - beta1**number) / (root + eps)
            elif case.name == "RMSprop":
                alpha = group["alpha"]
                squares[name] = alpha * squares[name] + (1 - alpha) * G**2
                step = G / (np.sqrt(squares[name]) + group["eps"])
            else:  # Adagrad
                squares[name] = squares[name] + G**2
                step = G / (np.sqrt(squares[name]) + group["eps"])
            weights[name] = W - lr * step
    return weights["rows"], weights["head"]


def torch_training(case, torch):
    """Network, loss and optimiser of PyTorch, and a function that trains the network on INPUTS.

    The function returns the rows and the head after the training.
    """
    first = torch.nn.Linear(D, P, bias=False, dtype=torch.float64)
    second = torch.nn.Linear(P, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        first.weight.copy_(torch.tensor(WEIGHTS))
        second.weight.copy_(torch.tensor(HEAD[None]))
    second.weight.requires_grad_(not case.frozen)

    class ScaledNetwork(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return case.output_scale * self.second(torch.tanh(case.input_scale * self.first(x)))

    if case.is_scaled:
        network = ScaledNetwork()
    else:
        network = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    losses = {"mean": torch.nn.MSELoss(), "sum": torch.nn.MSELoss(reduction="sum")}
    loss = losses.get(case.loss, lambda output, target: ((output - target) ** 2).mean() / 2)
    options = dict(case.options)
    if not options.get("nesterov"):
        options.pop("nesterov", None)
    make_optimiser = getattr(torch.optim, case.name)
    if case.head_options is None:
        optimiser = make_optimiser(network.parameters(), **options)
    else:
        optimiser = make_optimiser(
            [{"params": [first.weight]}, {"params": [second.weight], **case.head_options}],
            **options,
        )

    def train():
        for x, y in zip(INPUTS, LABELS, strict=True):
            optimiser.zero_grad()
            loss(network(torch.tensor(x)), torch.tensor(y)[:, None]).backward()
            optimiser.step()
        return first.weight.detach().numpy().copy(), second.weight.detach().numpy()[0].copy()

    return network, loss, optimiser, train


@pytest.mark.parametrize("name", CASES)
def test_the_library_takes_the_steps_of_the_training(name):
    """Rows and head after five steps on the same data agree to 1e-10.

    The reference is NumPy, and also PyTorch where it is installed.
    """
    case = CASES[name]
    training = convert(case, *stand_ins(case))
    # The library's rows contain s_in. Its output is a mean over units, so its head is P s_out a.
    rows_scale, head_scale = case.input_scale, P * case.output_scale
    rows, head = library_steps(training, case.input_scale * WEIGHTS)
    expected_rows, expected_head = numpy_steps(case)
    np.testing.assert_allclose(rows / rows_scale, expected_rows, atol=1e-10)
    np.testing.assert_allclose(head / head_scale, expected_head, atol=1e-10)
    assert np.abs(expected_rows - WEIGHTS).max() > 1e-3
    try:
        import torch
    except ImportError:
        return
    network, loss, optimiser, train = torch_training(case, torch)
    assert convert(case, network, loss, optimiser).algorithm == training.algorithm
    torch_rows, torch_head = train()
    np.testing.assert_allclose(rows / rows_scale, torch_rows, atol=1e-10)
    np.testing.assert_allclose(head / head_scale, torch_head, atol=1e-10)


def test_velocities_are_part_of_the_start():
    """A training with momentum is converted after its velocities have grown.

    The start contains the overlaps of the velocity, and the steps agree. Averages of Adam are not
    part of the start, which a warning reports.
    """
    buffers = {"rows": GENERATOR.standard_normal((P, D)), "head": GENERATOR.standard_normal(P)}
    options = {
        "lr": 0.02,
        "momentum": 0.8,
        "dampening": 0.0,
        "nesterov": False,
        "weight_decay": 0.3,
    }
    case = Case(options, buffers=buffers)
    network, loss, optimiser = stand_ins(case)
    for parameter, buffer in zip(network.parameters(), buffers.values(), strict=True):
        optimiser.state[parameter] = {"momentum_buffer": buffer}
    training = convert(case, network, loss, optimiser)
    # PyTorch's velocity is a sum of gradients and the library's is an average: a factor 1 - 0.8.
    # Gradients of the library's loss (f - y)^2/2 are half as large.
    velocity = buffers["rows"] * 0.2 / 2
    auxiliary = training.start.beside
    np.testing.assert_allclose(auxiliary.Q[0, 0, P:, P:], velocity @ velocity.T)
    np.testing.assert_allclose(auxiliary.M[0, 0, P:], velocity @ TEACHER.T)
    rows, head = library_steps(training, velocity=velocity)
    expected_rows, expected_head = numpy_steps(case)
    np.testing.assert_allclose(rows, expected_rows, atol=1e-10)
    np.testing.assert_allclose(head / P, expected_head, atol=1e-10)
    adam_case = Case(CASES["Adam"].options, "Adam", frozen=True)
    network, loss, optimiser = stand_ins(adam_case)
    optimiser.state[network.parameters()[0]] = {"exp_avg": buffers["rows"]}
    with pytest.warns(UserWarning, match="Adam: its averages"):
        convert(adam_case, network, loss, optimiser)


def mlp(d=200, p=4, bias=None):
    """The ReLU network of the documentation: d inputs, p units, and a head without bias."""
    generator = np.random.default_rng(0)
    first = nn.Linear(generator.standard_normal((p, d)) / d**0.5, bias)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(generator.standard_normal((1, p))))


def test_an_ordinary_network():
    """MSELoss and an output that is a sum over units add factors to the library's parameters.

    With eta, a' and a* the learning rate and the heads of PyTorch's student and teacher (p and k
    units): lr = 2 eta d, head_rate = p^2, a = p a', teacher_head = k a*.
    """
    network, teacher = mlp(), mlp(p=2)
    optimiser = nn.optimiser("SGD", {"params": network.parameters(), "lr": 0.02})
    training = sgd.from_training(
        network, nn.MSELoss(), optimiser, teacher=teacher, noise=0.1, batch=8
    )
    problem, algorithm, start = training
    assert (problem.width, problem.teacher_width, problem.activation.name, problem.head) == (
        4,
        2,
        "relu",
        "trained",
    )
    assert algorithm == sgd.OnePassSGD(lr=8.0, head_rate=16.0, batch=8)
    first, _, second = teacher.children()
    np.testing.assert_allclose(problem.teacher_head, 2 * second.weight.value[0])
    np.testing.assert_allclose(problem.gram[0], first.weight.value @ first.weight.value.T)
    np.testing.assert_allclose(start.a[0], 4 * network.parameters()[1].value[0])
    assert training.alpha([0, 100]).tolist() == [0.0, 4.0]
    assert training.loss(0.25) == 0.5


def test_covariance_blocks_and_one_unit():
    blocks = [(0.5, 0.25), (2.0, 0.75)]
    network = nn.Sequential(nn.Linear(WEIGHTS[:1]), nn.Tanh())
    optimiser = nn.optimiser("SGD", {"params": network.parameters(), "lr": 0.02})
    problem, algorithm, start = sgd.from_training(
        network, "mse", optimiser, teacher=TEACHER[:1] + 0.1, covariance=blocks
    )
    assert problem.head == "fixed"
    assert algorithm == sgd.OnePassSGD(lr=0.02 * 2 * D)
    teacher = TEACHER[0] + 0.1
    np.testing.assert_allclose(
        problem.gram[:, 0, 0], [teacher[:3] @ teacher[:3], teacher[3:] @ teacher[3:]]
    )
    np.testing.assert_allclose(
        start.M_blocks[0, :, 0, 0], [WEIGHTS[0, :3] @ teacher[:3], WEIGHTS[0, 3:] @ teacher[3:]]
    )


def test_equal_frozen_biases_become_part_of_the_activation():
    network = mlp(bias=np.full(4, 0.3))
    network.parameters()[1].requires_grad = False
    optimiser = nn.optimiser("SGD", {"params": network.parameters(), "lr": 0.02})
    problem, *_ = sgd.from_training(
        network, "mse", optimiser, teacher=np.eye(1, 200), teacher_activation="relu"
    )
    assert problem.activation.kinks == (-0.3,)
    assert float(problem.activation(0.5)) == pytest.approx(0.8)


def conversion_with(change=None, groups=None, name="SGD", options=None, **arguments):
    """A function that converts the ordinary network after one change.

    The change is in the network (`change`), in the parameter groups, class or options of the
    optimiser, or in the arguments of `sgd.from_training`.
    """
    network = mlp(bias=np.full(4, 0.3) if change == "trained bias" else None)
    first, activation, second = network.children()
    if change == "frozen biases":
        first.bias = nn.Parameter([0.0, 0.0, 0.0, 1.0], requires_grad=False)
    if change == "dropout":
        network = nn.Sequential(first, activation, nn.Dropout(), second)
    if change == "three layers":
        network = nn.Sequential(first, activation, nn.Linear(np.eye(4)), activation, second)
    if change == "parameter":
        network.scale = nn.Parameter([1.0])
    if change == "frozen first layer":
        first.weight.requires_grad = False
    group = {"params": network.parameters(), "lr": 0.02, **(options or {})}
    optimiser = nn.optimiser(name, *(groups(network) if groups else [group]))
    defaults = {
        "network": network,
        "loss": nn.MSELoss(),
        "optimiser": optimiser,
        "teacher": np.eye(1, 200),
    }
    return lambda: sgd.from_training(**(defaults | arguments))


def different_momenta(network):
    first, second = network.parameters()
    return [
        {"params": [first], "lr": 0.1, "momentum": 0.0},
        {"params": [second], "lr": 0.1, "momentum": 0.5},
    ]


@pytest.mark.parametrize(
    ("convert_network", "message"),
    [
        (
            conversion_with("trained bias"),
            r"network\.0\.bias = .*trained biases.*bias=False.*requires_grad=False",
        ),
        (conversion_with("frozen biases"), r"network\.0\.bias = .*equal in all units"),
        (conversion_with("dropout"), r"ReLU, Dropout.*not a known activation"),
        (conversion_with("dropout", activation="tanh"), r"not proportional to second\(tanh"),
        (
            conversion_with("three layers"),
            r"Linear\(200, 4\) and Linear\(4, 4\) and Linear\(4, 1\)",
        ),
        (conversion_with("parameter"), r"parameter '\.scale'|parameter 'scale'"),
        (conversion_with("frozen first layer"), r"does not train the first layer"),
        (conversion_with(network=3), r"network = 3: not a PyTorch module"),
        (conversion_with(loss="mae"), r"loss = 'mae'.*'half_mse'"),
        (conversion_with(loss=nn.MSELoss), r"not a loss function"),
        (
            conversion_with(loss=lambda f, y: np.abs(f - y).mean()),
            r"not proportional to the squared error",
        ),
        (conversion_with(optimiser=3), r"not a PyTorch optimiser"),
        (conversion_with(options={"maximize": True}), r"maximize=True"),
        (
            conversion_with(
                name="Adagrad", options={"eps": 1e-3, "initial_accumulator_value": 2.0}
            ),
            r"optimiser = 'Adagrad'.*accumulators of rows and head.*Freeze the head",
        ),
        (conversion_with(teacher=np.eye(2, 200)), r"teacher_head = None.*needs a head"),
        (conversion_with(teacher=np.eye(1, 20)), r"it has 20 inputs, the network has 200"),
        (conversion_with(teacher=np.eye(2, 200), teacher_head=[1.0]), r"Pass 2 numbers"),
        (conversion_with(teacher=mlp(p=2), teacher_head=[1.0, 1.0]), r"teacher is a network"),
        (conversion_with(input_scale=0.0), r"input_scale = 0"),
        (conversion_with(batch=0), r"batch = 0"),
        (conversion_with(groups=different_momenta), r"may differ only in lr and weight_decay"),
    ],
)
def test_trainings_without_a_counterpart_raise(convert_network, message):
    with pytest.raises(ValueError, match=message):
        convert_network()


def test_from_torch_reads_the_rate_of_a_head_under_adam():
    adam = nn.optimiser("Adam", *({"params": [], "lr": lr, **ADAM} for lr in (0.1, 0.2)))
    algorithm = sgd.from_torch(adam, dimension=100)
    assert (algorithm.lr, algorithm.head_rate) == pytest.approx((10.0, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [None, 20.0])
def test_a_separate_weight_decay_of_the_head_in_ode_and_chain(momentum):
    """Runs in 4000 dimensions follow the ODE, which differs from that of a common decay.

    The record of the result restores the update.
    """
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1, head="trained")
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2), a=[1.5, 0.8])
    inner = None if momentum is None else sgd.updates.momentum(memory=momentum)
    update = sgd.updates.weight_decay(0.2, of=inner, decoupled=momentum is None, head=1.5)
    algorithm = sgd.OnePassSGD(lr=0.5, update=update)
    theory = sgd.solve_ode(problem, algorithm, start, times=[1.0])
    assert sgd.algorithm_of(theory) == algorithm
    runs = sgd.simulate(problem, algorithm, start, times=[1.0], dimension=4000, runs=50, seed=4)
    for name in ("M", "Q", "a"):
        values = np.asarray(runs[name])[:, 0]
        # The mean of runs differs from the ODE by O(1/d), for which 2e-3 is added.
        error = values.std(axis=0, ddof=1) / 50**0.5 + 2e-3
        gap = np.abs(values.mean(axis=0) - np.asarray(theory[name])[0, 0])
        assert np.all(gap < Z * error), name
    common_decay = sgd.solve_ode(
        problem,
        algorithm.replace(update=sgd.updates.weight_decay(0.2, of=inner)),
        start,
        times=[1.0],
    )
    assert np.abs(np.asarray(common_decay.a) - np.asarray(theory.a)).min() > 0.2


def train_networks(torch, options, *, d, p, batch, steps, runs, noise):
    """Train several networks with PyTorch from the same start, each on its own samples.

    Returns the conversion of that start, and one row (M, upper triangle of Q, a) per network.
    """
    torch.manual_seed(5)
    first = torch.nn.Linear(d, p, bias=False, dtype=torch.float64)
    network = torch.nn.Sequential(
        first, torch.nn.Tanh(), torch.nn.Linear(p, 1, bias=False, dtype=torch.float64)
    )
    loss, teacher = torch.nn.MSELoss(), torch.eye(1, d, dtype=torch.float64)
    groups = [
        {"params": [network[0].weight]},
        {"params": [network[2].weight], "lr": 2 * options["lr"]},
    ]

    def make_optimiser():
        return torch.optim.SGD(groups, **options)

    training = sgd.from_training(
        network, loss, make_optimiser(), teacher=teacher, noise=noise, batch=batch
    )
    initial_weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    outcomes = []
    for _ in range(runs):
        network.load_state_dict(initial_weights)
        optimiser = make_optimiser()
        for _ in range(steps):
            x = torch.randn(batch, d, dtype=torch.float64)
            y = torch.tanh(x @ teacher.T) + noise**0.5 * torch.randn(batch, 1, dtype=torch.float64)
            optimiser.zero_grad()
            loss(network(x), y).backward()
            optimiser.step()
        W, a = network[0].weight.detach().numpy(), network[2].weight.detach().numpy()[0]
        outcomes.append([*(W[:, 0]), *(W @ W.T)[np.triu_indices(p)], *(p * a)])
    return training, np.array(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_networks_trained_by_pytorch_have_the_law_of_the_chain(momentum):
    """M, Q and a of 600 trained networks have the same law as those of 4000 exact runs.

    The training has weight decay, and the head has its own learning rate.
    """
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    d, p, batch, steps = 20, 2, 3, 40
    options = {"lr": 0.03 * (1 - momentum), "momentum": momentum, "weight_decay": 0.5}
    training, outcomes = train_networks(
        torch, options, d=d, p=p, batch=batch, steps=steps, runs=600, noise=0.1
    )
    runs = sgd.simulate(*training, steps=[steps], dimension=d, runs=4000, seed=2)
    M, Q, a = (np.asarray(runs[name])[:, 0] for name in ("M", "Q", "a"))
    chain = np.concatenate([M[..., 0], Q[:, *np.triu_indices(p)], a], axis=1)
    for column in range(chain.shape[1]):
        same_law(outcomes[:, column], chain[:, column], f"column {column}")


@pytest.mark.slow
def test_an_ordinary_pytorch_network_follows_its_ode():
    """The mean squared error of the network of the documentation, at four steps of its training.

    The curve depends on the factors of loss and output: without them it is 0.84 at step 100.
    """
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    d, p, k, batch, noise, saves = 200, 4, 2, 8, 0.01, [0, 100, 300, 3000]

    def layers(width):
        return torch.nn.Sequential(
            torch.nn.Linear(d, width, bias=False),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 1, bias=False),
        )

    network, teacher, loss = layers(p), layers(k), torch.nn.MSELoss()
    with torch.no_grad():
        teacher[0].weight.normal_(0.0, d**-0.5)
        teacher[2].weight.fill_(1.0)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.02)
    training = sgd.from_training(
        network, loss, optimiser, teacher=teacher, noise=noise, batch=batch
    )
    runs = sgd.simulate(*training, alpha=training.alpha(saves), dimension=d, runs=100, seed=1)
    theory = sgd.solve_ode(*training, alpha=training.alpha(saves), dimension=d)
    spread = training.loss(runs.risk.values).std(axis=0, ddof=1)
    test_inputs = torch.randn(50_000, d)
    with torch.no_grad():
        labels = teacher(test_inputs) + noise**0.5 * torch.randn(len(test_inputs), 1)
    for step in range(saves[-1] + 1):
        if step in saves:
            with torch.no_grad():
                squares = ((network(test_inputs) - labels) ** 2).numpy()
            measured, error = squares.mean(), squares.std() / len(squares) ** 0.5
            index = saves.index(step)
            chain = training.loss(float(runs.risk[:, index].mean()))
            assert abs(measured - chain) < Z * np.hypot(spread[index], error), step
            # Runs leave the plateau at random times, so that their mean differs from the ODE. Wrong
            # factors would double it.
            assert abs(training.loss(float(theory.risk[0, index])) / chain - 1) < 0.25, step
        x = torch.randn(batch, d)
        with torch.no_grad():
            y = teacher(x) + noise**0.5 * torch.randn(batch, 1)
        optimiser.zero_grad()
        loss(network(x), y).backward()
        optimiser.step()
