"""Updates of the whole matrix of gradients: Muon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.momentum import SLOW_VELOCITY
from sgdynamics.algorithms.updates.step_length import inverse, root
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

# Newton-Schulz iteration of Jordan et al. 2024
ITERATIONS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
# Squared singular values below this fraction of the largest are rounding errors of 0.
RANK_TOLERANCE = 1e-12


def polar(G: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
    """Return the polar factor (G G^T)^(-1/2) G, whose singular values are 1.

    Singular values 0 of G stay 0.
    """
    if len(G) <= 2:
        return _polar_of_two(G)
    values, vectors = jnp.linalg.eigh(G @ G.T)
    good = values > RANK_TOLERANCE * values[-1]
    scale = jnp.where(good, 1 / jnp.sqrt(jnp.where(good, values, 1.0)), 0.0)
    return (vectors * scale) @ (vectors.T @ G)


def _polar_of_two(G: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
    """Return the polar factor of one row or two in closed form.

    Many small eigenvalue problems would cost more than everything else. For two rows, with
    A = G G^T and r = sqrt(det A), the theorem of Cayley and Hamilton gives ::

        A^(-1/2) = (adj A + r I)/(r sqrt(tr A + 2 r)).
    """
    trace = jnp.sum(G**2)
    normalised = G * inverse(jnp.sqrt(trace))
    if len(G) == 1:
        return normalised
    A = G @ G.T
    # r is the product of both singular values. Rounding may make the determinant negative.
    r = jnp.sqrt(jnp.maximum(A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0], 0.0))
    has_full_rank = r > jnp.sqrt(RANK_TOLERANCE) * trace
    safe = jnp.where(has_full_rank, r, 1.0)
    adjugate = (
        jnp.array([[0.0, 1.0], [-1.0, 0.0]], G.dtype)
        @ A.T
        @ jnp.array([[0.0, -1.0], [1.0, 0.0]], G.dtype)
    )
    both = (adjugate + safe * jnp.eye(2, dtype=G.dtype)) @ G / (safe * jnp.sqrt(trace + 2 * safe))
    # Parallel rows: G has rank 1, and its polar factor is G/|G|.
    return jnp.where(has_full_rank, both, normalised)


def newton_schulz_of(G: Float[Numeric, "p columns"]) -> Float[Numeric, "p columns"]:
    """Return an approximation of the polar factor by five Newton-Schulz steps from G/|G|.

    A step X <- a X + (b A + c A^2) X with A = X X^T maps each singular value by the same quintic
    polynomial, which moves it towards 1.
    """
    a, b, c = COEFFICIENTS
    X = G * inverse(jnp.sqrt(jnp.sum(G**2)))
    for _ in range(ITERATIONS):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


@dataclass(frozen=True)
class _MuonStep:
    """The step of Muon. Equal choices give equal steps, so that each compiles once."""

    memory: str
    newton_schulz: bool

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        memory: Scalar | None = None,
        beta: Scalar | None = None,
    ) -> Increments:
        G = gradient(state["weights"])
        if self.memory == "none":
            return {"weights": self._move(gradient, G, lr / root(D, G), lr / D)}
        if self.memory == "slow":
            change = jnp.asarray(memory) / D * (G - state["velocity"])
            V = state["velocity"] + change
            return {"weights": self._move(gradient, V, lr / D, lr / D), "velocity": change}
        V = jnp.asarray(beta) * state["velocity"] + G
        step = self._move(gradient, V, lr / root(D, G), lr / D)
        return {"weights": step, "velocity": V - state["velocity"]}

    def _move(
        self, gradient: Gradient, V: Float[Numeric, "p columns"], size: Scalar, head_size: Scalar
    ) -> Numeric:
        """Return the steps against the polar factors of the rows and of each leaf of the top."""
        factor = newton_schulz_of if self.newton_schulz else polar
        rows, head = gradient.split_head(V)
        if not gradient.trained:
            return -size * factor(rows)
        top = gradient.setting.structure.top
        if top is None:
            directions = factor(head[None])[0]
        else:
            leaves = jax.tree.map(lambda leaf: polar_of_leaf(factor, leaf), top.unravel(head))
            directions = top.ravel(leaves)
        return gradient.join_head(-size * factor(rows), -head_size * directions)


def polar_of_leaf(
    factor: Callable[[Numeric], Numeric], leaf: Float[Numeric, "..."]
) -> Float[Numeric, "..."]:
    """Return the polar factors of the matrices in the last two axes of a leaf.

    A vector is a matrix of one row, and the polar factor of a number is its sign.
    """
    if leaf.ndim < 2:
        return factor(leaf.reshape(1, -1)).reshape(leaf.shape)
    matrices = leaf.reshape(-1, *leaf.shape[-2:])
    if leaf.shape[-2] <= leaf.shape[-1]:
        return jax.vmap(factor)(matrices).reshape(leaf.shape)
    # The polar factor of the transpose is the transpose: the smaller side has the Gram matrix.
    factors = jax.vmap(factor)(jnp.swapaxes(matrices, -1, -2))
    return jnp.swapaxes(factors, -1, -2).reshape(leaf.shape)


@maker
def muon(
    memory: float | None = None, newton_schulz: bool = False, beta: float | None = None
) -> Update:
    """Muon: steps along the polar factor of the gradient or of a velocity.

    All singular values of a polar factor are 1.

    ::

        W <- W - (lr/sqrt(D)) polar(G)                                         (no memory)
        V <- (1 - c/D) V + (c/D) G,     W <- W - (lr/D) polar(V)               (memory=c)
        V <- beta V + G,                W <- W - (lr/sqrt(D)) polar(V)         (beta)

    Parameters
    ----------
    memory : float, optional
        Constant c, above 0 and at most D. The velocity is an average over D/c steps.
    newton_schulz : bool, default False
        Whether five Newton-Schulz steps replace the exact polar factor, as in practice. The
        singular values are then between about 0.7 and 1.2.
    beta : float, optional
        Factor by which a step multiplies the velocity, 0 <= beta < 1, instead of memory.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If both memory and beta are given, or one is out of its range.

    Notes
    -----
    With a fixed beta the update remembers O(1) steps and is not linear, so it has no ODE. It can be
    simulated, and in batches proportional to d it is the map of ``sgd.solve_large_batch``. Every
    matrix leaf of a top moves by head_rate lr/D against its own polar factor, in all three cases; a
    vector, such as a trained head, counts as a matrix of one row, and a number as its sign.
    Source: Jordan et al. 2024 (Muon).

    Examples
    --------
    >>> sgd.updates.muon(), sgd.updates.muon(memory=3.0, newton_schulz=True)
    (muon(), muon(memory=3, newton_schulz=True))
    """
    options = (("newton_schulz", True),) if checks.flag("newton_schulz", newton_schulz) else ()
    if memory is not None and beta is not None:
        raise checks.reject("beta and memory", (beta, memory), "Set at most one of them.")
    factor = r"\operatorname{NS}_5" if newton_schulz else r"\operatorname{polar}"
    direction = rf"{factor}\left({'V' if memory is not None or beta is not None else 'G'}\right)"
    long_step = rf"W \leftarrow W - \frac{{\mathrm{{lr}}}}{{\sqrt{{D}}}} {direction}"
    if memory is not None:
        law = Law(
            "muon",
            _MuonStep("slow", newton_schulz),
            rows=("velocity",),
            memory="slow",
            linear=True,
            averaging=("memory",),
            equations=(SLOW_VELOCITY, step_equation(direction)),
        )
        return Update(law, {"memory": scalar_or_schedule("memory", memory, above=0.0)}, options)
    if beta is None:
        law = Law(
            "muon",
            _MuonStep("none", newton_schulz),
            jumps=True,
            equations=(long_step,),
            image=rf"\frac{{1}}{{\sqrt{{l_1}}}} {factor}\left(h\right)",
        )
        return Update(law, {}, options)
    law = Law(
        "muon",
        _MuonStep("fast", newton_schulz),
        rows=("velocity",),
        memory="fast",
        equations=(r"V \leftarrow \beta V + G", long_step),
    )
    return Update(law, {"beta": scalar_or_schedule("beta", beta, below=1.0)}, options)
