"""Adam with one second moment for each unit, which commutes with rotations."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

MOST_UNITS = 1 << 10


@dataclass(frozen=True)
class _RowAdamStep:
    """The step for a number of units. Equal numbers give equal steps, which compile once."""

    width: int

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        memory: Scalar,
        eps: Scalar,
        beta: Scalar,
    ) -> Increments:
        W, rate, steps = state["weights"], memory / D, D * state["age"] + 1
        if len(W) != self.width:
            fix = f"the problem has {len(W)} units. Use sgd.updates.row_adam({len(W)}, ...)."
            raise checks.reject("width", self.width, fix)
        G = gradient(W)
        # The velocity is corrected for its start at 0, as in `adaptive`.
        change = (1 - beta) / (1 - beta**steps) * (G - state["velocity"])
        S = jnp.stack([state[f"square_{unit}"] for unit in range(self.width)])
        S_change = rate * (jnp.sum(G**2, axis=1) / D - S)
        bias = -jnp.expm1(steps * jnp.log1p(-jnp.minimum(rate, 1.0)))
        root = jnp.sqrt((S + S_change) / bias)
        step = (state["velocity"] + change) / (root + eps)[:, None]
        squares = {f"square_{unit}": S_change[unit] for unit in range(self.width)}
        return {"weights": -lr / D * step, "velocity": change, "age": 1 / D} | squares


@maker
def row_adam(width: int, memory: float, eps: float = 1e-8, beta: float = 0.9) -> Update:
    """Adam with one second moment for each unit, in place of one for each coordinate.

    ::

        V <- beta V + (1 - beta) G,     S_i <- (1 - c/D) S_i + (c/D) |G_i|^2/D,
        W_i <- W_i - (lr/D) V^_i/(sqrt(S^_i) + eps)

    Parameters
    ----------
    width : int
        Number p of units of the problem.
    memory : float
        Constant c, above 0 and at most D, with 1 - beta2 = c/D.
    eps : float, default 1e-08
        Constant added to the square root, at least 0.
    beta : float, default 0.9
        Factor beta1 by which a step multiplies the velocity.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)`` and for algorithms on a fixed data set.

    Raises
    ------
    ValueError
        If a value is out of range, or the problem has another number of units.

    Notes
    -----
    V^ and S^ are corrected for their start at 0. The update commutes with rotations of the input
    space, unlike Adam, and therefore has an exact law. The coordinates of a gradient of norm
    sqrt(D) are of order 1, so that the steps of Adam and of this update have the same size. The
    head is not trained. Sources: Kingma and Ba 2015; one second moment for a group of parameters:
    Zhang et al. 2024 (Adam-mini).

    Examples
    --------
    >>> sgd.updates.row_adam(2, memory=0.1, beta=0.8)
    row_adam(memory=0.1, eps=1e-08, beta=0.8, width=2)
    """
    count = checks.integer("width", width, 1, MOST_UNITS)
    law = Law(
        "row_adam",
        _RowAdamStep(count),
        rows=("velocity",),
        scalars=("age", *(f"square_{unit}" for unit in range(count))),
        memory="fast",
        linear=True,
        averaging=("memory",),
        trains_head=False,
        equations=(
            r"V \leftarrow \beta V + \left(1 - \beta\right) G",
            r"S_i \leftarrow \left(1 - \frac{c}{D}\right) S_i "
            r"+ \frac{c}{D} \frac{\left|G_i\right|^2}{D}",
            r"\hat V = \frac{V}{1 - \beta^n}",
            r"\hat S = \frac{S}{1 - \left(1 - \frac{c}{D}\right)^n}",
            r"W_i \leftarrow W_i - \frac{\mathrm{lr}}{D} "
            r"\frac{\hat V_i}{\sqrt{\hat S_i} + \varepsilon}",
        ),
    )
    hyperparameters = {
        "memory": scalar_or_schedule("memory", memory, above=0.0),
        "eps": scalar_or_schedule("eps", eps),
        "beta": scalar_or_schedule("beta", beta, below=1.0),
    }
    return Update(law, hyperparameters, (("width", count),))
