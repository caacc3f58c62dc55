"""Losses and rules that a user writes, as hashable functions of one sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree
from sgdynamics.problems.losses import Loss, OuterLoss, UserFunctions
from sgdynamics.problems.moves import Move
from sgdynamics.problems.tops import Top

# Optional arguments of a user's function: their names, and their keys in the parameters of a loss.
OPTIONAL_ARGUMENTS = {"overlaps": "overlaps", "parameters": "user"}


def extra_arguments(
    function: Function, default: str, available: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the arguments of a user's function after (fields, signals, head, draws), in order.

    Each is "user" (the problem's parameters) or "overlaps". Arguments named overlaps or parameters
    have that meaning, all others the meaning `default`. Only `available` ones are returned.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return available[:1]
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ][4:]
    meanings = [OPTIONAL_ARGUMENTS.get(name, default) for name in names]
    return tuple(dict.fromkeys(meaning for meaning in meanings if meaning in available))


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's per-sample loss.

    Attributes
    ----------
    function : callable
        The loss, function(fields, signals, head, noise_draw, *extra).
    extra : tuple of str
        Its arguments after the draws, see `extra_arguments`.
    kinks : tuple of float
        Values of a field at which it has a kink.
    smooth, reads_draws, reads_blocks : bool
        Properties of the function, see `Loss`.
    top : Top, optional
        Shapes of the pytree that the function receives in place of the head.
    """

    function: Callable[..., Any]
    extra: tuple[str, ...] = ()
    kinks: tuple[float, ...] = ()
    smooth: bool = False
    reads_draws: bool = True
    reads_blocks: bool = False
    top: Top | None = None

    @property
    def moves_by_block(self) -> bool:
        return self.reads_blocks

    @property
    def outer(self) -> OuterLoss | None:
        """The function of output and label, if the user's function declares one.

        It declares that label noise enters only there.
        """
        return getattr(self.function, "outer", None)

    @property
    def reads_overlaps(self) -> bool:
        return "overlaps" in self.extra

    def user_functions(self) -> UserFunctions:
        return {"loss": (self.function, None)}

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        extra = (parameters[name] for name in self.extra)
        top = head if self.top is None else self.top.unravel(head)
        return self.function(fields, signals, top, noise_draw, *extra)

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        """Return the loss and its gradient: W enters through fields, Q = W W^T and M = W W*^T.

        The gradient in W is H X + (dl/dQ + dl/dQ^T) W + dl/dM W*, with H = dl/dfields.
        """
        if not self.reads_overlaps:
            return super().move(fields, signals, head, noise_draw, parameters)
        if self.reads_blocks:
            return self._move_by_block(fields, signals, head, noise_draw, parameters)
        overlaps = parameters["overlaps"]

        def value(
            fields: Float[Numeric, "p ..."],
            head: Float[Numeric, " p"],
            Q: Float[Numeric, "p p"],
            M: Float[Numeric, "p K"],
        ) -> Float[Numeric, ""]:
            changed = {**parameters, "overlaps": overlaps._replace(Q=Q, M=M)}
            return self(fields, signals, head, noise_draw, changed)

        loss, (h, g, dQ, dM) = jax.value_and_grad(value, argnums=(0, 1, 2, 3))(
            fields, head, overlaps.Q, overlaps.M
        )
        return loss, Move(h, dQ + dQ.T, dM, g)

    def _move_by_block(
        self,
        fields: Numeric,
        signals: Numeric,
        head: Numeric,
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        """Return the loss and its gradient for a loss of Q_b and M_b.

        Rows of block b move along dl/dQ_b and dl/dM_b.
        """
        overlaps = parameters["overlaps"]

        def value(fields: Numeric, head: Numeric, Q: Numeric, M: Numeric) -> Float[Numeric, ""]:
            blocks = overlaps.blocks._replace(Q=Q, M=M)
            total = overlaps._replace(Q=jnp.sum(Q, axis=0), M=jnp.sum(M, axis=0), blocks=blocks)
            return self(fields, signals, head, noise_draw, {**parameters, "overlaps": total})

        loss, (h, g, dQ, dM) = jax.value_and_grad(value, argnums=(0, 1, 2, 3))(
            fields, head, overlaps.blocks.Q, overlaps.blocks.M
        )
        return loss, Move(h, dQ + jnp.swapaxes(dQ, -1, -2), dM, g)


@dataclass(frozen=True)
class RuleLoss(Loss):
    """A user's update, which need not be a gradient, and an optional risk.

    The learning rates of the rows are the parameter "rates".

    Attributes
    ----------
    update : callable
        The update, update(fields, signals, head, draws, *extra), which returns a `Move`.
    extra : tuple of str
        Its arguments after the draws, see `extra_arguments`.
    risk : callable, optional
        The risk of one sample.
    risk_extra : tuple of str
        The arguments of the risk after the draws.
    kinks : tuple of float
        Values of a field at which the update jumps.
    reads_lengths, smooth, reads_draws, reads_blocks, moves_by_block : bool
        Properties of the functions, see `Loss`.
    """

    update: Callable[..., Any]
    extra: tuple[str, ...]
    risk: Callable[..., Any] | None = None
    risk_extra: tuple[str, ...] = ()
    kinks: tuple[float, ...] = ()
    reads_lengths: bool = False
    smooth: bool = False
    reads_draws: bool = True
    reads_blocks: bool = False
    moves_by_block: bool = False
    reads_overlaps = True
    is_gradient = False

    @property
    def has_risk(self) -> bool:
        return self.risk is not None

    def user_functions(self) -> UserFunctions:
        return {"update": (self.update, None)}

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        if self.risk is None:
            return jnp.full((), jnp.nan, fields.dtype)
        extra = (parameters[name] for name in self.risk_extra)
        return self.risk(fields, signals, head, noise_draw, *extra)

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        """Return the risk and the user's move, times the rates of the rows."""
        extra = (parameters[name] for name in self.extra)
        move: Move = self.update(fields, signals, head, noise_draw, *extra)
        H, A, B, g = move.coefficients(fields.shape[0], signals.shape[0])
        if self.moves_by_block:
            # One of A and B may be the same for all blocks, or zero.
            blocks = max(array.shape[0] for array in (A, B) if array.ndim == 3)
            A, B = (jnp.broadcast_to(array, (blocks, *array.shape[-2:])) for array in (A, B))
        rate = parameters["rates"][:, None].astype(fields.dtype)
        H = (rate * H.reshape(fields.shape[0], -1)).reshape(fields.shape).astype(fields.dtype)
        move = Move(H, rate * A, rate * B, g)
        return self(fields, signals, head, noise_draw, parameters), move
