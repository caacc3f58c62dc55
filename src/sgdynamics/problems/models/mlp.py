"""Deep networks that are narrow: any finite network on the fields of the first layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, Scalar
from sgdynamics.problems.activations import Activation, ActivationLike, student_activation
from sgdynamics.problems.losses import squared
from sgdynamics.problems.models.model import model, validate_noise
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class MlpLoss:
    """The squared loss of u . h_L with h_l = s(V_l h_(l-1) + c_l) and h_0 = s(W x + c_0).

    Attributes
    ----------
    activation : Activation
        Activation s of all layers.
    teacher : callable
        Function of the signals that returns the label.
    layers : int
        Number of hidden layers.
    """

    activation: Activation
    teacher: Callable[[Any], Any]
    layers: int

    outer = staticmethod(squared)

    def output(self, fields: Float[Numeric, " p"], top: dict[str, Any]) -> Float[Numeric, ""]:
        """Return the output of the network."""
        hidden = self.activation(fields + top["c0"] if "c0" in top else fields)
        for layer in range(1, self.layers):
            hidden = self.activation(top[f"V{layer}"] @ hidden + top[f"c{layer}"])
        return top["u"] @ hidden

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        top: dict[str, Any],
        noise_draw: Numeric,
        parameters: Parameters,
    ) -> Scalar:
        label = self.teacher(signals) + jnp.sqrt(parameters["noise"]) * noise_draw
        return squared(self.output(fields, top), label)


def product_of_signals(signals: Float[Numeric, " K"]) -> Float[Numeric, ""]:
    """Return the product of all signals, which has leap complexity K."""
    return jnp.prod(signals)


@model
def mlp(
    widths: Sequence[int] = (3, 2),
    activation: ActivationLike = "tanh",
    teacher: Callable[[Any], Any] | None = None,
    *,
    signals: int = 2,
    noise: float | Function = 0.0,
    biases: bool = False,
    weight_decay: float | Function | dict[str, Any] = 0.0,
) -> Problem:
    """A deep network on high-dimensional inputs, narrow in all its layers.

    ::

        f(x) = u . s(V_1 s(W x + c_0) + c_1),      loss = (f - y)^2 / 2,
        y = g(w*_1 . x, ..., w*_K . x) + sqrt(noise) z

    Parameters
    ----------
    widths : sequence of int, default (3, 2)
        Widths of the hidden layers, the first of which reads the inputs.
    activation : str, Activation or callable, default 'tanh'
        Activation s of all hidden units, as of ``TeacherStudent``.
    teacher : callable, optional
        JAX function g of the signals. Defaults to their product.
    signals : int, default 2
        Number of orthonormal directions, K.
    noise : float or callable, default 0.0
        Variance of the label noise, or a function of alpha.
    biases : bool, default False
        Whether the first layer has trained biases c_0; the later layers always have biases.
    weight_decay : float, callable or dict, default 0.0
        Weight decay, as of ``Problem``, also by leaf.

    Returns
    -------
    Problem
        Problem whose top has the leaves V1, c1, ... of the later layers, u of the output, and with
        ``biases`` c0.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    All widths stay finite as the dimension grows: the theory is exact for any depth. A first layer
    of more than four units is integrated by sampling.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.mlp(widths=(1, 2), signals=1)
    >>> start = sgd.random_start(problem, dimension=1000, top_scale=0.5)
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.3), start, times=[1.0])
    >>> path["top.V1"].shape
    (1, 1, 2, 1)
    """
    fix = "give the widths of the hidden layers, such as (3, 2)"
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not len(widths):
        raise checks.reject("widths", widths, fix)
    sizes = [checks.integer(f"widths[{index}]", size, 1) for index, size in enumerate(widths)]
    target = product_of_signals if teacher is None else teacher
    if not callable(target):
        raise checks.reject("teacher", teacher, "give a JAX function of the signals")
    top: dict[str, Any] = {"u": (sizes[-1],)}
    for layer, (before, after) in enumerate(itertools.pairwise(sizes), start=1):
        top |= {f"V{layer}": (after, before), f"c{layer}": (after,)}
    if checks.flag("biases", biases):
        top["c0"] = (sizes[0],)
    loss = MlpLoss(student_activation(activation), target, len(sizes))
    return Problem(
        loss,
        sizes[0],
        checks.integer("signals", signals, 1),
        top=top,
        weight_decay=weight_decay,
        parameters={"noise": validate_noise(noise)},
        kinks=loss.activation.kinks,
    )
