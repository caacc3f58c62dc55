"""Updates of the whole matrix of gradients: Muon."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.updates.step_length import inverse, root
from sgdynamics.algorithms.updates.update import GradientFunction, Law, Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

ITERATIONS, COEFFICIENTS = (
    5,
    (3.4445, -4.7750, 2.0315),
)  # of Newton-Schulz, as in Jordan et al. 2024
RANK = 1e-12  # squared singular values below this share of the largest are rounding


def polar(G: Float[Numeric, "p columns"]) -> Any:
    """(G G^T)^(-1/2) G: all singular values become 1, those that are 0 stay 0."""
    if len(G) <= 2:
        return _polar_of_two(G)
    values, vectors = jnp.linalg.eigh(G @ G.T)
    good = values > RANK * values[-1]
    scale = jnp.where(good, 1 / jnp.sqrt(jnp.where(good, values, 1.0)), 0.0)
    return (vectors * scale) @ (vectors.T @ G)


def _polar_of_two(G: Float[Numeric, "p columns"]) -> Any:
    """The same of one row or two, in closed form.

    Many small eigenproblems would cost more than everything else.
    """
    trace = jnp.sum(G**2)
    normalised = G * inverse(jnp.sqrt(trace))
    if len(G) == 1:
        return normalised
    A = G @ G.T
    root = jnp.sqrt(
        jnp.maximum(A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0], 0.0)
    )  # the product of both singular values
    full = root > jnp.sqrt(RANK) * trace
    safe = jnp.where(full, root, 1.0)
    # A^(-1/2) = (adj A + root I)/(root sqrt(trace + 2 root)) by Cayley and Hamilton
    adjugate = (
        jnp.array([[0.0, 1.0], [-1.0, 0.0]], G.dtype)
        @ A.T
        @ jnp.array([[0.0, -1.0], [1.0, 0.0]], G.dtype)
    )
    both = (adjugate + safe * jnp.eye(2, dtype=G.dtype)) @ G / (safe * jnp.sqrt(trace + 2 * safe))
    return jnp.where(full, both, normalised)


def newton_schulz_of(G: Float[Numeric, "p columns"]) -> Any:
    """Five Newton-Schulz steps from G/|G|: singular values near 1, cheaply."""
    a, b, c = COEFFICIENTS
    X = G * inverse(jnp.sqrt(jnp.sum(G**2)))
    for _ in range(ITERATIONS):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


class _Muon:
    """The steps of Muon; equal where their choices are, so that one compiles once."""

    def __init__(self, memory: str, newton_schulz: bool) -> None:
        self.choices = (memory, newton_schulz)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Muon) and self.choices == other.choices

    def __hash__(self) -> int:
        return hash(self.choices)

    def __call__(
        self,
        state: State,
        gradient: GradientFunction,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        memory: Scalar | None = None,
        beta: Scalar | None = None,
    ) -> dict[str, Any]:
        image = newton_schulz_of if self.choices[1] else polar
        G = gradient(state["weights"])
        if self.choices[0] == "none":
            return {"weights": -lr / root(D, G) * image(G)}
        if self.choices[0] == "slow":
            change = jnp.asarray(memory) / D * (G - state["velocity"])
            return {"weights": -lr / D * image(state["velocity"] + change), "velocity": change}
        V = jnp.asarray(beta) * state["velocity"] + G
        return {"weights": -lr / root(D, G) * image(V), "velocity": V - state["velocity"]}


@maker
def muon(
    memory: float | None = None, newton_schulz: bool = False, beta: float | None = None
) -> Update:
    """Muon: steps along the polar factor of the gradient, or of a velocity, whose singular values are all 1.

    ::

        W <- W - (lr/sqrt(D)) polar(G)                                               (no memory)
        V <- (1 - c/D) V + (c/D) G,     W <- W - (lr/D) polar(V)                     (memory=c)
        V <- beta V + G,                W <- W - (lr/sqrt(D)) polar(V)               (beta)

    Parameters
    ----------
    memory : float, optional
        c, above 0 and at most D: a velocity that is an average over D/c steps.
    newton_schulz : bool, default False
        Five Newton-Schulz steps in place of the exact polar factor, as in practice; they leave
        singular values near .7.
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
    With a fixed beta it remembers O(1) steps and is not linear, so that it has no ODE: it is simulated, and in batches proportional to d it
    is the map of ``sgd.solve_large_batch``. The head is not trained. Source: Jordan et al. 2024 (Muon).

    Examples
    --------
    >>> sgd.updates.muon(), sgd.updates.muon(memory=3.0, newton_schulz=True)
    (muon(), muon(memory=3, newton_schulz=True))
    """
    options = (("newton_schulz", True),) if checks.flag("newton_schulz", newton_schulz) else ()
    if memory is not None and beta is not None:
        raise checks.reject("beta and memory", (beta, memory), "give one of them, or none")
    common: dict[str, Any] = {"trains_head": False}
    if memory is not None:
        law = Law(
            "muon",
            _Muon("slow", newton_schulz),
            rows=("velocity",),
            memory="slow",
            linear=True,
            averaging=("memory",),
            **common,
        )
        return Update(law, {"memory": scalar_or_schedule("memory", memory, above=0.0)}, options)
    if beta is None:
        return Update(Law("muon", _Muon("none", newton_schulz), jumps=True, **common), {}, options)
    beta = scalar_or_schedule("beta", beta, below=1.0)
    return Update(
        Law("muon", _Muon("fast", newton_schulz), rows=("velocity",), memory="fast", **common),
        {"beta": beta},
        options,
    )
