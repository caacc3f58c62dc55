"""An optimiser from outside of the package: steps along a slow velocity, all of one length, shorter the longer the velocity is."""

from __future__ import annotations

import jax.numpy as jnp

import sgdynamics as sgd


def step(state, gradient, lr, D, number, memory, scale):
    """V <- (1 - c/D) V + (c/D) G,  W <- W - (lr/D) V/sqrt(scale + |V|^2): linear in G, of a slow memory."""
    more = memory / D * (gradient(state["weights"]) - state["velocity"])
    V = state["velocity"] + more
    return {
        "weights": -lr / D * V / jnp.sqrt(scale + jnp.sum(V**2)),
        "velocity": more,
        "seen": 1 / D,
    }


@sgd.updates.maker
def bounded_momentum(memory, scale=0.1):
    """Momentum whose steps have a length of lr/D at most."""
    return sgd.updates.own(
        step,
        ("velocity",),
        ("seen",),
        "slow",
        rereads=False,
        numbers={"memory": memory, "scale": scale},
    )
