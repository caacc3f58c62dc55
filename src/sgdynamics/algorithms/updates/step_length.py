"""Steps whose length is bounded, or whose gradient is taken more than once on a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sgdynamics.algorithms.updates.update import GradientFunction, Law, Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

MOST_MOVES = 2**31 - 1  # a loop counts them in 32 bits
OVER = ("all", "row", "sample")


def inverse(length: Any) -> Any:
    """1/length, and 0 where there is no gradient."""
    return jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)


def root(D: Scalar, like: Any) -> Any:
    """sqrt(D), in the precision of an array."""
    return jnp.sqrt(jnp.asarray(D, like.dtype))


def _normalised_step(
    state: State, gradient: GradientFunction, lr: Scalar, D: Scalar, number: Scalar
) -> dict[str, Any]:
    G = gradient(state["weights"])
    return {"weights": -lr / D * root(D, G) * inverse(jnp.sqrt(jnp.sum(G**2))) * G}


@maker
def normalised() -> Update:
    """Steps of one length.

    ::

        (G, g) -> sqrt(D) (G, g)/|(G, g)|,     where G = 0 stays 0

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Notes
    -----
    The gradient of one sample has a norm of order sqrt(D), so that lr keeps its meaning: a step has length lr/sqrt(D).
    Source: Nesterov 1984; Cutkosky and Mehta 2020.

    Examples
    --------
    >>> sgd.updates.normalised().kind
    'normalised'
    """
    return Update(Law("normalised", _normalised_step, jumps=True))


def _clipped_step(axes: tuple[int, ...]) -> Any:
    def step(
        state: State,
        gradient: GradientFunction,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        threshold: Scalar,
    ) -> dict[str, Any]:
        G = gradient.per_sample(state["weights"]) if len(axes) == 3 else gradient(state["weights"])
        over = axes if len(axes) < 3 else (1, 2)
        length = jnp.sqrt(jnp.sum(G**2, axis=over, keepdims=True)) / root(D, G)
        # as a maximum: a gradient of norm 0 needs no case of its own
        G = G * (threshold / jnp.maximum(length, threshold))
        return {"weights": -lr / D * (jnp.mean(G, axis=0) if len(axes) == 3 else G)}

    return step


CLIPPED = {
    "all": Law("clipped", _clipped_step((0, 1)), jumps=True, bends="threshold"),
    "row": Law("clipped", _clipped_step((1,)), jumps=True, bends="threshold", bends_by_row=True),
    "sample": Law("clipped", _clipped_step((0, 1, 2)), rereads=True, jumps=True, bends="threshold"),
}


@maker
def clipped(threshold: float, over: str = "all") -> Update:
    """Steps of a bounded length.

    ::

        (G, g) -> (G, g) min(1, threshold sqrt(D)/|(G, g)|)

    Parameters
    ----------
    threshold : float
        The largest norm of a gradient, in units of sqrt(D); above 0.
    over : str, default "all"
        Norm that is bounded: "all", of the whole gradient; "row", of each unit; "sample",
        the gradient of every sample before the mean over the batch is taken.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If threshold is not above 0, or there is no such ``over``.

    Notes
    -----
    Source: Pascanu, Mikolov and Bengio 2013, Algorithm 1, with the threshold in units of sqrt(D); sample by sample: Abadi et al. 2016.

    Examples
    --------
    >>> sgd.updates.clipped(1.5)
    clipped(threshold=1.5)
    >>> sgd.updates.clipped(1.5, over="sample")
    clipped(threshold=1.5, over='sample')
    """
    checks.choice("over", over, OVER)
    hyperparameters = {"threshold": scalar_or_schedule("threshold", threshold, above=0.0)}
    return Update(CLIPPED[over], hyperparameters, () if over == "all" else (("over", over),))


def _reuse(
    state: State,
    gradient: GradientFunction,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    times: Scalar,
) -> dict[str, Any]:
    W = state["weights"]

    def move(_: Any, shift: Any) -> Any:
        return gradient.project_shift(W, shift + gradient.plain_step(gradient(W, shift)))

    return {
        "weights": jax.lax.fori_loop(
            0, jnp.asarray(times).astype(jnp.int32), move, jnp.zeros_like(W)
        )
    }


@maker
def reuse(times: int) -> Update:
    """Use each batch for several moves, and recompute the fields in between.

    Parameters
    ----------
    times : int
        Number of moves ``W <- W - (lr/D) dloss/dW(W; the same batch)`` per batch.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If times is not a positive integer, or too large.

    Notes
    -----
    alpha counts samples, and t = lr steps/D counts batches: gradient-flow time is ``times`` t. Source: Dandi et al. 2024
    (The benefits of reusing batches for gradient descent in two-layer networks).

    Examples
    --------
    >>> sgd.updates.reuse(2)
    reuse(times=2)
    """
    law = Law("reuse", _reuse, rereads=True, decay_inside=True, explicit_head_rate=True)
    return Update(law, {"times": checks.integer("times", times, 1, MOST_MOVES)})


def _uphill(
    state: State, gradient: GradientFunction, lr: Scalar, D: Scalar, radius: Scalar
) -> dict[str, Any]:
    W = state["weights"]
    G = gradient(W)
    return {"weights": -lr / D * gradient(W, radius * inverse(jnp.sqrt(jnp.sum(G**2))) * G)}


def _sam(
    state: State,
    gradient: GradientFunction,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    radius: Scalar,
) -> dict[str, Any]:
    return _uphill(state, gradient, lr, D, radius)


def _sam_in_reach(
    state: State,
    gradient: GradientFunction,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    reach: Scalar,
) -> dict[str, Any]:
    return _uphill(state, gradient, lr, D, reach / root(D, state["weights"]))


@maker
def sam(radius: float | None = None, reach: float | None = None) -> Update:
    """Sharpness-aware minimisation: the gradient of the same batch at a point uphill, applied at (W, a).

    ::

        gradient at (W, a) + radius (G, g)/|(G, g)|

    Parameters
    ----------
    radius : float, optional
        The length of the ascent, 0 or more. It moves the field of a sample by about radius sqrt(D).
    reach : float, optional
        Change of the field of a sample, radius = reach/sqrt(D), instead of radius; it has a limit
        for D -> infinity.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If not exactly one of radius and reach is given, or it is negative.

    Notes
    -----
    On the sphere the point of ascent is not normalised. Source: Foret et al. 2021, (2)-(3) and Algorithm 1, there with p = 2.

    Examples
    --------
    >>> sgd.updates.sam(0.05), sgd.updates.sam(reach=0.5)
    (sam(radius=0.05), sam(reach=0.5))
    """
    if (radius is None) == (reach is None):
        raise checks.reject(
            "radius and reach",
            (radius, reach),
            "set exactly one of them: sam(0.05), or sam(reach=0.5) for radius = reach/sqrt(D)",
        )
    if reach is not None:
        return Update(
            Law("sam", _sam_in_reach, rereads=True, jumps=True),
            {"reach": scalar_or_schedule("reach", reach)},
        )
    why = "its ascent moves the field of a sample by radius sqrt(D), which has no limit: give sam(reach=...), radius = reach/sqrt(D)"
    return Update(
        Law("sam", _sam, rereads=True, jumps=True, no_limit=why),
        {"radius": scalar_or_schedule("radius", radius)},
    )
