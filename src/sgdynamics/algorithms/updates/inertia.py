"""Underdamped Langevin dynamics: a velocity with friction and thermal noise."""

from __future__ import annotations

import jax.numpy as jnp

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import scalar_or_schedule


def _inertia(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    friction: Scalar,
    temperature: Scalar,
) -> Increments:
    V, G = state["velocity"], gradient(state["weights"])
    kick = jnp.sqrt(2 * temperature * friction * lr) / D * gradient.noise()
    change = kick - lr / D * (friction * V + G)
    return {"weights": lr / D * (V + change), "velocity": change}


@maker
def inertia(friction: float, temperature: float = 0.0) -> Update:
    """Underdamped Langevin dynamics: a velocity with friction and thermal noise, from V = 0.

    ::

        V <- (1 - (lr/D) friction) V - (lr/D) G + sqrt(2 T friction lr)/D N(0, I),
        W <- W + (lr/D) V

    Parameters
    ----------
    friction : float
        Friction of the velocity, 0 or more.
    temperature : float, default 0.0
        Temperature T, 0 or more.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)`` and for algorithms on a fixed data set.

    Raises
    ------
    ValueError
        If a value is negative.

    Notes
    -----
    lr is the step of time, t = lr steps/D. On a fixed data set D = 1 and the noise has the variance
    1/d in each coordinate: sqrt(2 T friction lr/d) N(0, I). A trained head has no noise. Source:
    Kramers 1940, in semi-implicit Euler steps.

    Examples
    --------
    >>> sgd.updates.inertia(0.5, temperature=0.02)
    inertia(friction=0.5, temperature=0.02)
    """
    law = Law(
        "inertia",
        _inertia,
        rows=("velocity",),
        memory="slow",
        linear=True,
        decay_inside=True,
        noise=True,
        equations=(
            r"V \leftarrow \left(1 - \frac{\mathrm{lr}}{D} \zeta\right) V "
            r"- \frac{\mathrm{lr}}{D} G + \frac{\sqrt{2 T \zeta \mathrm{lr}}}{D} N",
            r"W \leftarrow W + \frac{\mathrm{lr}}{D} V",
        ),
    )
    hyperparameters = {
        "friction": scalar_or_schedule("friction", friction),
        "temperature": scalar_or_schedule("temperature", temperature),
    }
    return Update(law, hyperparameters)
