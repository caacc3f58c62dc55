"""Fine-tuning by an update of low rank (LoRA) of a frozen two-layer network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, Parameters, Scalar
from sgdynamics.problems.activations import Activation, ActivationLike, student_activation
from sgdynamics.problems.losses import squared
from sgdynamics.problems.models.model import model, validate_noise
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class LoraLoss:
    """The squared loss of sum_i c_i s(W0_i.x + B_i.(A x)), whose teacher has W0_i + u_i v*.

    Attributes
    ----------
    activation : Activation
        Activation s.
    """

    activation: Activation

    outer = staticmethod(squared)

    @property
    def low_rank_activation(self) -> Activation:
        """The activation, which expectations read."""
        return self.activation

    def __call__(
        self,
        fields: Float[Numeric, " rank"],
        signals: Float[Numeric, " K"],
        top: dict[str, Any],
        noise_draw: Numeric,
        parameters: Parameters,
    ) -> Scalar:
        frozen, shift = signals[:-1], signals[-1]
        weights = parameters["head"]
        output = weights @ self.activation(frozen + top["B"] @ fields)
        label = weights @ self.activation(frozen + parameters["shift"] * shift)
        return squared(output, label + jnp.sqrt(parameters["noise"]) * noise_draw)


@model
def lora(
    rank: int = 1,
    activation: ActivationLike = "erf",
    *,
    head: Sequence[float] = (1.0, 0.7),
    shift: Sequence[float] = (1.0, -0.5),
    gram: ArrayArgument | None = None,
    noise: float | Function = 0.0,
    weight_decay: float | Function | dict[str, Any] = 0.0,
) -> Problem:
    """LoRA: a frozen network whose first layer receives a trained update of low rank.

    The task has moved by one direction v*, by which the units shift differently.

    ::

        f(x) = sum_i c_i s((W0 + B A)_i . x),     y = sum_i c_i s((W0_i + u_i v*) . x) + noise

    Parameters
    ----------
    rank : int, default 1
        Rank r of the update B A; the rows of the problem are those of A.
    activation : str, Activation or callable, default 'erf'
        Activation s of the units, as of ``TeacherStudent``.
    head : sequence of float, default (1.0, 0.7)
        Frozen second layer c, one number per unit.
    shift : sequence of float, default (1.0, -0.5)
        Shifts u of the units along v*.
    gram : array_like, optional
        Gram matrix of the frozen rows W0 and v*, in this order. Defaults to the identity.
    noise : float or callable, default 0.0
        Variance of the label noise, or a function of alpha.
    weight_decay : float, callable or dict, default 0.0
        Weight decay, as of ``Problem``, also by leaf.

    Returns
    -------
    Problem
        Problem of width ``rank`` with the signals (W0, v*) and the top ``{"B": (units, rank)}``.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    In gradient flow B^T B - rate A A^T is constant, with the rate of B. From the usual start B = 0,
    A random, the overlap of A with v* is of order d^(-1/2), which makes a plateau.
    See Hu et al., "LoRA: low-rank adaptation of large language models" (2021).

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.lora(head=(1.0,), shift=(1.0,))
    >>> start = sgd.start(problem, M=[[0.0, 0.3]], Q=[[1.0]], top={"B": [[0.1]]})
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 2.0])
    >>> bool(path.risk[0, 1] < path.risk[0, 0])
    True
    """
    r = checks.integer("rank", rank, 1)
    values = {}
    for name, value in (("head", head), ("shift", shift)):
        values[name] = checks.real_array(name, value, "give one number per unit")
    units = len(np.atleast_1d(values["head"]))
    for name, value in values.items():
        values[name] = checks.array(name, value, (units,), "one number per unit")
    loss = LoraLoss(student_activation(activation))
    return Problem(
        loss,
        r,
        units + 1,
        gram=gram,
        top={"B": (units, r)},
        weight_decay=weight_decay,
        parameters={**values, "noise": validate_noise(noise)},
    )
