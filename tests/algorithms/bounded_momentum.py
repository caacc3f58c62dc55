"""Example: an optimiser that is not part of the library, momentum with steps of bounded length.

The velocity V is an average of gradients G over D/c steps, and a step is at most lr/D long::

    V <- (1 - c/D) V + (c/D) G,     W <- W - (lr/D) V/sqrt(scale + |V|^2)

`sgd.OnePassSGD(lr=0.5, update=bounded_momentum(2.0))` works with every solver: the ODE, the exact
chain, direct runs, sweeps and files.
"""

from __future__ import annotations

import jax.numpy as jnp

import sgdynamics as sgd


def step(state, gradient, lr, D, number, memory, scale):
    """Return the increments of the state in one step; `memory` is the constant c."""
    G = gradient(state["weights"])
    velocity_increment = memory / D * (G - state["velocity"])
    V = state["velocity"] + velocity_increment
    return {
        "weights": -lr / D * V / jnp.sqrt(scale + jnp.sum(V**2)),
        "velocity": velocity_increment,
        "age": 1 / D,  # steps/D since the start, as an example of a scalar in the state
    }


@sgd.updates.maker
def bounded_momentum(memory, scale=0.1):
    """Momentum whose steps have at most the length lr/D."""
    return sgd.updates.own(
        step,
        rows=("velocity",),
        scalars=("age",),
        memory="slow",  # the velocity is an average over O(D) steps
        rereads=False,  # a step evaluates the gradient once
        numbers={"memory": memory, "scale": scale},
    )
