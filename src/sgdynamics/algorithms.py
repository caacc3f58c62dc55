"""How it is learned: an update as a function of gradient rows.

Any update that commutes with rotations of the input space closes in the compressed space, so an algorithm sees only rows
(of W, in whatever orthonormal frame) and the rows of the gradient.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from sgdynamics import checks


@dataclass(frozen=True)
class OnePassSGD:
    """One-pass SGD: a fresh batch each step, W <- W - (lr/d) dloss/dW, a <- a - (head_rate lr/d) dloss/da, mean gradient.

    lr = 0 stands for gradient flow, in theory only (time t = lr steps/d survives the limit; steps do not).
    """

    lr: float = 0.1
    batch: int = 1
    head_rate: float = 1.0

    def __post_init__(self) -> None:
        if callable(self.lr):
            raise checks.reject("lr", self.lr, "schedules are not built yet: give a number")
        object.__setattr__(self, "lr", checks.number("lr", self.lr, 0.0))
        object.__setattr__(self, "batch", checks.whole("batch", self.batch, 1))
        object.__setattr__(self, "head_rate", checks.number("head_rate", self.head_rate, 0.0))

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the algorithm, as a dictionary that JAX can trace."""
        return {"lr": np.float64(self.lr), "head_rate": np.float64(self.head_rate)}

    def describe(self) -> dict[str, Any]:
        """The algorithm as plain values for the record of a result."""
        return {"kind": type(self).__name__, **asdict(self)}


def checked_algorithm(value: Any) -> OnePassSGD:
    """An algorithm as an argument: refuse what is none."""
    if not isinstance(value, OnePassSGD):
        raise checks.reject("algorithm", value, "give sgd.OnePassSGD(...)")
    return value


def descend(
    rows: Any, head: Any, gradient: Any, head_gradient: Any, step: Any, head_rate: Any, weight_decay: Any, *, trained: bool, sphere: bool
) -> tuple[Any, Any]:
    """One step of size `step` = lr/d on the rows (p x columns of any orthonormal frame) and the head."""
    rows = rows * (1.0 - step * weight_decay) - step * gradient
    if sphere:
        rows = rows / jnp.sqrt(jnp.sum(rows**2, axis=-1, keepdims=True))
    if trained:
        head = head - head_rate * step * (head_gradient + weight_decay * head)
    return rows, head
