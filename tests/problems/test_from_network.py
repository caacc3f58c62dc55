"""Networks of other libraries as problems: values, gradients, and training of the module itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z

D, P = 30, 2
KEY = jax.random.PRNGKey(0)
TEACHER = np.eye(1, D)


def target(signals):
    return jnp.tanh(signals[0] - 0.5)


def equinox_network():
    eqx = pytest.importorskip("equinox")
    return eqx.nn.MLP(D, 1, P, 2, activation=jnp.tanh, key=KEY), None


def linen_network():
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            hidden = nn.LayerNorm()(nn.tanh(nn.Dense(P)(x)))
            return nn.Dense(1)(hidden)

    return Network(), Network().init(KEY, jnp.zeros(D))


def nnx_network():
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(D, P, rngs=rngs)
            self.second = nnx.Linear(P, 1, rngs=rngs)

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    return Network(nnx.Rngs(0)), None


def jax_network():
    generator = np.random.default_rng(0)
    parameters = {"W": generator.standard_normal((P, D)), "u": np.ones(P), "b": np.zeros(P)}
    return lambda q, x: q["u"] @ jnp.tanh(q["W"] @ x + q["b"]), parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        jax_network,
        pytest.param(equinox_network, marks=pytest.mark.slow),
        pytest.param(linen_network, marks=pytest.mark.slow),
        pytest.param(nnx_network, marks=pytest.mark.slow),
    ],
)
def test_output_and_gradient_are_those_of_the_module(make):
    """The gradient in all parameters by autodiff of the module, with dloss/dW = h x^T."""
    network, parameters = make()
    problem, start = sgd.from_network(network, parameters, teacher=TEACHER, target=target)
    assert start.M.shape == (1, P, 1)
    read = problem.user_loss.network
    names = sorted(problem.structure.top.names)
    x = np.random.default_rng(1).standard_normal(D)

    def loss(values):
        output = jnp.reshape(read.apply(values, x), ())
        return (output - target(x[:1])) ** 2 / 2

    def loss_of_fields(fields, top):
        return problem.user_loss(fields, jnp.asarray(x[:1]), top, 0.0, {"noise": 0.0})

    with jax.enable_x64(True):
        values = {name: jnp.asarray(value) for name, value in read.parameters.items()}
        gradient = jax.grad(loss)(values)
        weight = values[problem.user_loss.first]
        rows = weight if weight.shape == (P, D) else weight.T
        top = {name: values[name] for name in names}
        h, top_gradient = jax.grad(loss_of_fields, argnums=(0, 1))(rows @ x, top)
    expected = np.outer(h, x)
    actual = np.asarray(gradient[problem.user_loss.first])
    np.testing.assert_allclose(actual if actual.shape == (P, D) else actual.T, expected, rtol=1e-5)
    for name in names:
        np.testing.assert_allclose(gradient[name], top_gradient[name], rtol=1e-5, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_a_pytorch_module_and_its_gradient(frozen):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class GateNetwork(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(D, 4)
            self.norm = torch.nn.LayerNorm(2)
            self.last = torch.nn.Linear(2, 1)

        def forward(self, x):
            gate, value = self.first(x).chunk(2, dim=-1)
            hidden = self.norm(torch.nn.functional.silu(gate) * value + 0.1 * value)
            return self.last(hidden).squeeze(-1)

    network = GateNetwork()
    network.norm.weight.requires_grad_(not frozen)
    problem, start = sgd.from_network(network, teacher=TEACHER, target=target)
    assert ("norm.weight" in problem.structure.top.names) is not frozen
    x = torch.randn(1, D)
    label = float(target(x.numpy()[0, :1]))
    ((network(x) - label) ** 2 / 2).sum().backward()
    with jax.enable_x64(True):
        rows = network.first.weight.detach().double().numpy()
        fields = jnp.asarray(rows @ x.double().numpy()[0])
        top = problem.structure.top.unravel(jnp.asarray(start.a[0]))
        h, g = jax.grad(problem.user_loss, argnums=(0, 2))(
            fields, jnp.asarray(x.double().numpy()[0, :1]), top, 0.0, {"noise": 0.0}
        )
    expected = np.outer(h, x.numpy()[0])
    np.testing.assert_allclose(network.first.weight.grad.numpy(), expected, atol=1e-5)
    for name, parameter in network.named_parameters():
        if name in g:
            np.testing.assert_allclose(parameter.grad.numpy(), g[name], atol=1e-5)


@pytest.mark.slow
def test_training_the_module_follows_the_theory():
    """SGD on the Equinox module in d dimensions, by autodiff of the module itself."""
    eqx = pytest.importorskip("equinox")
    network = eqx.nn.MLP(D, "scalar", P, 1, activation=jnp.tanh, key=KEY)
    problem, start = sgd.from_network(network, teacher=TEACHER, target=target)
    runs, steps, rate = 400, 120, 0.5 / D
    arrays, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(arrays, x):
        return (eqx.combine(arrays, static)(x) - target(x[:1])) ** 2 / 2

    def step(arrays, x):
        gradient = jax.grad(loss)(arrays, x)
        return jax.tree.map(lambda value, slope: value - rate * slope, arrays, gradient), None

    def train(key):
        trained, _ = jax.lax.scan(step, arrays, jax.random.normal(key, (steps, D)))
        W, u = trained.layers[0].weight, trained.layers[1].weight[0]
        return jnp.concatenate([W[:, 0], jnp.diag(W @ W.T), u])

    trained = np.asarray(jax.jit(jax.vmap(train))(jax.random.split(KEY, runs)))
    chain = sgd.simulate(
        problem, sgd.OnePassSGD(lr=0.5), start, steps=[steps], dimension=D, runs=runs, seed=3
    )
    expected = np.concatenate(
        [
            chain.M.values[:, -1, :, 0],
            np.diagonal(chain.Q.values[:, -1], axis1=-2, axis2=-1),
            chain["top.layers.1.weight"].values[:, -1, 0],
        ],
        axis=1,
    )
    error = np.sqrt((trained.var(axis=0) + expected.var(axis=0)) / runs)
    assert np.all(np.abs(trained.mean(axis=0) - expected.mean(axis=0)) < Z * error)
    # moved by many standard errors, so that the test can fail
    at_start = np.concatenate([start.M[0, :, 0], np.diagonal(start.Q[0])])
    assert np.max(np.abs(trained.mean(axis=0)[: 2 * P] - at_start) / error[: 2 * P]) > 5 * Z


def test_bad_networks_are_named():
    function, parameters = jax_network()
    for network, values, options, message in [
        (function, None, {}, "parameters = None"),
        ("mlp", None, {}, "network = 'mlp'"),
        (lambda q, x: q["u"] @ jnp.tanh(q["W"] @ x) + x[0], parameters, {}, "no layer with d = 30"),
        (function, parameters, {"teacher": np.eye(1, 20)}, "no layer with d = 20"),
        (function, parameters, {"teacher": np.ones(30)}, "teacher = "),
        (function, parameters, {"target": 1.0}, "target = 1.0"),
        (function, parameters, {"loss": "cross"}, "loss = 'cross'"),
        (function, parameters, {"loss": lambda f, y: f * y, "noise": 0.1}, "noise = 0.1"),
        (function, parameters, {"input_scale": -1.0}, "input_scale = -1"),
    ]:
        arguments = {"teacher": TEACHER, "target": target, **options}
        with pytest.raises(ValueError, match=message):
            sgd.from_network(network, values, **arguments)
