"""Compare the training of a small Equinox, Flax or PyTorch network with its theory.

``sgd.from_network`` turns the network into a problem: the weight of its first linear layer becomes
the rows, and all other parameters the trained top. The network itself is then trained by one-pass
SGD, many times and with the automatic differentiation of its own library, and compared with the
ODE.

Run it with

    python examples/any_network.py [equinox | flax | torch]

It takes about a minute and prints means over the trained networks next to the theory. Install the
library that you choose, for example by ``pip install equinox``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sgdynamics as sgd

INPUTS, UNITS = 100, 2
RATE = 0.5  # the learning rate of a network is RATE / INPUTS
STEPS, RUNS, SEED = 600, 100, 0


def draw_label(signals: Any) -> Any:
    """Return the label, a function of one direction of the inputs."""
    return jnp.tanh(signals[0] - 0.5)


def equinox_network() -> tuple[Any, Callable[[Any, Any], Any], Any]:
    """Return a network, its function of parameters and input, and its parameters."""
    import equinox as eqx

    network = eqx.nn.MLP(INPUTS, "scalar", UNITS, 1, activation=jnp.tanh, key=jax.random.key(SEED))
    parameters, static = eqx.partition(network, eqx.is_inexact_array)
    return network, lambda values, x: eqx.combine(values, static)(x), parameters


def flax_network() -> tuple[Any, Callable[[Any, Any], Any], Any]:
    """Return a network of Flax NNX, its function and its parameters."""
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(INPUTS, UNITS, rngs=rngs)
            self.last = nnx.Linear(UNITS, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(jnp.tanh(self.first(x)))[0]

    network = Network(nnx.Rngs(SEED))
    graph, parameters = nnx.split(network)
    return network, lambda values, x: nnx.merge(graph, values)(x), parameters


def train_in_jax(function: Callable[[Any, Any], Any], parameters: Any) -> np.ndarray:
    """Train the network RUNS times; return the test loss of each."""

    def loss(values: Any, x: Any) -> Any:
        return (function(values, x) - draw_label(x[:1])) ** 2 / 2

    def step(values: Any, x: Any) -> tuple[Any, None]:
        gradient = jax.grad(loss)(values, x)
        return jax.tree.map(lambda w, g: w - RATE / INPUTS * g, values, gradient), None

    def train(key: Any) -> Any:
        first, second = jax.random.split(key)
        inputs = jax.random.normal(first, (STEPS, INPUTS))
        trained, _ = jax.lax.scan(step, parameters, inputs)
        test = jax.random.normal(second, (2000, INPUTS))
        return jnp.mean(jax.vmap(lambda x: loss(trained, x))(test))

    return np.asarray(jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(SEED), RUNS)))


def train_in_torch() -> tuple[Any, np.ndarray]:
    """Return a PyTorch network at its start, and the test losses of copies that were trained."""
    import copy

    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, UNITS), torch.nn.Tanh(), torch.nn.Linear(UNITS, 1)
    )
    losses = []
    for _ in range(RUNS // 5):
        trained = copy.deepcopy(network)
        optimiser = torch.optim.SGD(trained.parameters(), lr=RATE / INPUTS)
        for x in torch.randn(STEPS, 1, INPUTS):
            optimiser.zero_grad()
            error = trained(x)[:, 0] - torch.tanh(x[:, 0] - 0.5)
            (error**2 / 2).mean().backward()
            optimiser.step()
        test = torch.randn(20_000, INPUTS)
        with torch.no_grad():
            error = trained(test)[:, 0] - torch.tanh(test[:, 0] - 0.5)
        losses.append(float((error**2 / 2).mean()))
    return network, np.array(losses)


def compare(library: str = "equinox") -> tuple[np.ndarray, float]:
    """Return the test losses of the trained networks, and the risk of the theory."""
    if library == "torch":
        network, losses = train_in_torch()
    else:
        make = {"equinox": equinox_network, "flax": flax_network}[library]
        network, function, parameters = make()
        losses = train_in_jax(function, parameters)
    problem, start = sgd.from_network(network, teacher=np.eye(1, INPUTS), target=draw_label)
    theory = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=RATE), start, steps=[0, STEPS], dimension=INPUTS
    )
    print(f"top of the {library} network: {', '.join(problem.structure.top.names)}")
    print(f"risk at the start {float(theory.risk[0, 0]):.4f}")
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    print(f"after {STEPS} steps: networks {losses.mean():.4f} ± {error:.4f}", end=", ")
    print(f"theory {float(theory.risk[0, 1]):.4f}")
    return losses, float(theory.risk[0, 1])


if __name__ == "__main__":
    compare(sys.argv[1] if len(sys.argv) > 1 else "equinox")
