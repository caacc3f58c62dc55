"""Updates with steps of bounded length, and updates that evaluate a batch several times."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

MOST_MOVES = 2**31 - 1  # the loop over moves has a counter of 32 bits
OVER = ("all", "row", "sample")


def inverse(length: Float[Numeric, "*batch"]) -> Float[Numeric, "*batch"]:
    """Return 1/length, and 0 for the length 0 of a gradient that vanishes."""
    return jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)


def root(D: Scalar, like: Numeric) -> Float[Numeric, ""]:
    """Return sqrt(D) in the precision of an array."""
    return jnp.sqrt(jnp.asarray(D, like.dtype))


def _normalised_step(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar
) -> Increments:
    G = gradient(state["weights"])
    return {"weights": -lr / D * root(D, G) * inverse(jnp.sqrt(jnp.sum(G**2))) * G}


@maker
def normalised() -> Update:
    """Normalised SGD: all steps have the same length.

    ::

        (G, g) -> sqrt(D) (G, g)/|(G, g)|,     a vanishing gradient stays 0

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Notes
    -----
    The gradient of one sample has a norm of order sqrt(D), so lr keeps its meaning: a step has
    length lr/sqrt(D). Source: Nesterov 1984; Cutkosky and Mehta 2020.

    Examples
    --------
    >>> sgd.updates.normalised().kind
    'normalised'
    """
    law = Law(
        "normalised",
        _normalised_step,
        jumps=True,
        equations=(step_equation(r"\frac{\sqrt{D}}{\left|G\right|} G"),),
        image=r"\frac{h}{\sqrt{l_1} \left|h\right|}",
    )
    return Update(law)


def _clipped_step(axes: tuple[int, ...]) -> Callable[..., Increments]:
    """Return the step that bounds norms over these axes of the gradients (batch, p, columns)."""

    def step(
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        threshold: Scalar,
    ) -> Increments:
        by_sample = axes == SAMPLE_AXES
        G = gradient.per_sample(state["weights"]) if by_sample else gradient(state["weights"])
        length = jnp.sqrt(jnp.sum(G**2, axis=axes, keepdims=True)) / root(D, G)
        # min(1, threshold/length) without dividing by a length that may be 0
        G = G * (threshold / jnp.maximum(length, threshold))
        return {"weights": -lr / D * (jnp.mean(G, axis=0) if by_sample else G)}

    return step


ALL_AXES, ROW_AXES, SAMPLE_AXES = (-2, -1), (-1,), (1, 2)
BOUNDED = r"\min\left(1, \frac{{\theta \sqrt{{D}}}}{{\left|{norm}\right|}}\right) {gradient}"
CLIPPED = {
    "all": Law(
        "clipped",
        _clipped_step(ALL_AXES),
        jumps=True,
        bends="threshold",
        equations=(step_equation(BOUNDED.format(norm="G", gradient="G")),),
        image=r"\frac{h}{B} \min\left(1, \frac{\theta B}{\sqrt{l_1} \left|h\right|}\right)",
    ),
    "row": Law(
        "clipped",
        _clipped_step(ROW_AXES),
        jumps=True,
        bends="threshold",
        bends_by_row=True,
        equations=(step_equation(BOUNDED.format(norm="G_i", gradient="G_i"), "W_i"),),
        image=r"\frac{h_i}{B} \min\left(1, \frac{\theta B}{\sqrt{l_1} \left|h_i\right|}\right)",
    ),
    "sample": Law(
        "clipped",
        _clipped_step(SAMPLE_AXES),
        rereads=True,
        jumps=True,
        bends="threshold",
        equations=(
            step_equation(
                r"\frac{1}{B} \sum_{\mu=1}^{B} "
                + BOUNDED.format(norm=r"G^{(\mu)}", gradient=r"G^{(\mu)}")
            ),
        ),
        image=r"\frac{h_\mu}{B} \min\left(1, \frac{\theta}{\sqrt{l_1} \left|h_\mu\right|}\right)",
    ),
}


@maker
def clipped(threshold: float, over: str = "all") -> Update:
    """Gradient clipping: the length of a step is bounded.

    ::

        (G, g) -> (G, g) min(1, threshold sqrt(D)/|(G, g)|)

    Parameters
    ----------
    threshold : float
        Largest norm of a gradient in units of sqrt(D), above 0.
    over : str, default "all"
        Norm that is bounded: "all", of the whole gradient; "row", of the gradient of each unit;
        "sample", of the gradient of each sample, before the mean over the batch is taken.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If threshold is not above 0, or ``over`` is not one of these names.

    Notes
    -----
    Source: Pascanu, Mikolov and Bengio 2013, Algorithm 1, with the threshold in units of sqrt(D);
    sample by sample: Abadi et al. 2016.

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
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    times: Scalar,
) -> Increments:
    W = state["weights"]

    def move(
        index: Int[Numeric, ""], shift: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        return gradient.project_shift(W, shift + gradient.plain_step(gradient(W, shift)))

    moves = jnp.asarray(times).astype(jnp.int32)
    return {"weights": jax.lax.fori_loop(0, moves, move, jnp.zeros_like(W))}


@maker
def reuse(times: int) -> Update:
    """Use each batch for several moves; the fields are recomputed after each of them.

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
    alpha counts samples, and t = lr steps/D counts batches: gradient-flow time is ``times`` t.
    Source: Dandi et al. 2024 (The benefits of reusing batches for gradient descent in two-layer
    networks).

    Examples
    --------
    >>> sgd.updates.reuse(2)
    reuse(times=2)
    """
    law = Law(
        "reuse",
        _reuse,
        rereads=True,
        decay_inside=True,
        explicit_head_rate=True,
        equations=(step_equation(r"G\left(W\right)\quad k \text{ times for each batch}"),),
    )
    return Update(law, {"times": checks.integer("times", times, 1, MOST_MOVES)})


def _sam_step(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, radius: Scalar
) -> Increments:
    """Return the step of SAM: the gradient at W + radius G/|G|, applied at W."""
    W = state["weights"]
    G = gradient(W)
    return {"weights": -lr / D * gradient(W, radius * inverse(jnp.sqrt(jnp.sum(G**2))) * G)}


def _sam(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    radius: Scalar,
) -> Increments:
    return _sam_step(state, gradient, lr, D, radius)


def _sam_of_reach(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    reach: Scalar,
) -> Increments:
    return _sam_step(state, gradient, lr, D, reach / root(D, state["weights"]))


def _sam_equations(radius: str) -> tuple[str, ...]:
    """Return the step of SAM as LaTeX."""
    return (step_equation(rf"G\left(W + {radius} \frac{{G}}{{\left|G\right|}}\right)"),)


@maker
def sam(radius: float | None = None, reach: float | None = None) -> Update:
    """Sharpness-aware minimisation: the gradient at a point uphill is applied at (W, a).

    ::

        (W, a) <- (W, a) - (lr/D) gradient of the same batch at (W, a) + radius (G, g)/|(G, g)|

    Parameters
    ----------
    radius : float, optional
        Length of the ascent, 0 or more. It changes the field of a sample by about radius sqrt(D).
    reach : float, optional
        Change of the field of a sample, instead of radius = reach/sqrt(D). With a fixed reach the
        update has a limit for D -> infinity.

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
    On the sphere the point of ascent is not normalised. Source: Foret et al. 2021, (2)-(3) and
    Algorithm 1, there with p = 2.

    Examples
    --------
    >>> sgd.updates.sam(0.05), sgd.updates.sam(reach=0.5)
    (sam(radius=0.05), sam(reach=0.5))
    """
    if (radius is None) == (reach is None):
        raise checks.reject(
            "radius and reach",
            (radius, reach),
            "Set exactly one of them: sam(0.05), or sam(reach=0.5) for radius = reach/sqrt(D).",
        )
    if reach is not None:
        law = Law(
            "sam",
            _sam_of_reach,
            rereads=True,
            jumps=True,
            equations=_sam_equations(r"\frac{\varrho}{\sqrt{D}}"),
            image=(
                r"\frac{1}{B} h\left(\lambda + \varrho \sqrt{l_1} "
                r"\frac{h}{\left|h\right|}\right)"
            ),
        )
        return Update(law, {"reach": scalar_or_schedule("reach", reach)})
    reason = (
        "its ascent changes the field of a sample by radius sqrt(D), which has no limit. Use "
        "sam(reach=...), with radius = reach/sqrt(D)"
    )
    return Update(
        Law(
            "sam",
            _sam,
            rereads=True,
            jumps=True,
            no_limit=reason,
            equations=_sam_equations("r"),
        ),
        {"radius": scalar_or_schedule("radius", radius)},
    )
