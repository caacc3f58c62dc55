"""Columns in which a step of an update is taken in the limit, and how overlaps are read from its increments there."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics import compressed
from sgdynamics.algorithms.updates.ground import Rows, on_sphere
from sgdynamics.algorithms.updates.law import Law, copies
from sgdynamics.arrays import Numbers, Numeric, Scalar, State
from sgdynamics.gaussian.nodes import lower_root, safe_ratio, solve_forward
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import spectrum

UNROLLED = 4  # rows up to which the roots of every point's own matrices are written out


class Frame:
    """The rows of a state in orthonormal columns [T | L | new] of each block, and how to read overlaps from increments there."""

    def __init__(self, structure: Structure, batch: int, law: Law, parameters: Numbers, D: Scalar, state: State) -> None:
        self.structure, self.batch, self.law, self.parameters, self.D, self.state = structure, batch, law, parameters, D, state
        self.p, self.k, self.blocks = structure.width, structure.signals, structure.blocks
        self.rows = state["rows_Q"].shape[-1]  # slow ones
        self.sizes = parameters["fractions"] * D
        self.eigenvalues = spectrum.eigenvalues(parameters)
        self._lay_out(state["rows_M"], state["rows_Q"])

    def _lay_out(self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]) -> None:
        """Say which columns there are, and what rows and signals are in them."""
        structure, law = self.structure, self.law
        # of the chain; the columns that rows of fast sets have there stay empty
        spare = max(0, self.p - self.batch * structure.sample.inputs_a_sample) if law.coordinatewise else 0
        self.grouping = compressed.Grouping(structure, self.batch, single=True, update=law, spare=spare)
        self.inside = self.grouping.inside
        self.new = (1 + law.noise) * self.p if law.linear else self.grouping.columns
        C = jnp.broadcast_to(self.parameters["frame"], (self.blocks, self.k, self.k))
        T = _over(M, C)
        L = _root(Q - T @ jnp.swapaxes(T, -1, -2))
        self.Z = self._wide(jnp.concatenate([T, L], axis=-1))  # (blocks, rows, columns)
        self.S = self._wide(C)

    def _wide(self, part: Float[Numeric, "blocks n m"]) -> Any:
        return jnp.pad(part, ((0, 0), (0, 0), (0, self.inside + self.new - part.shape[-1])))

    def flat(self, part: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        return jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1)

    def by_block(self, flat: Float[Numeric, "n flat"]) -> Float[Numeric, "blocks n columns"]:
        return jnp.moveaxis(flat.reshape(flat.shape[0], self.blocks, -1), 1, 0)

    def begin(self) -> Rows:
        """All sets at this state, those that are fast at 0; squares are written out along the columns."""
        state, missing = self.state, copies(self.law) * self.p - self.rows
        rows = jnp.pad(self.flat(self.Z), ((0, missing), (0, 0)))
        squares = tuple(self.spread_out(one) for one in state["update_squares"])
        return Rows(rows, jnp.pad(state["rows_a"], (0, missing)), tuple(state["update_scalars"]), squares)

    def spread_out(self, each: Float[Numeric, " p"]) -> Float[Numeric, "p flat"]:
        """Numbers of the units times the variance of each column's input."""
        return each[:, None] * jnp.repeat(self.eigenvalues, self.inside + self.new)

    def rates(self, step: Rows) -> dict[str, Any]:
        """D times the increments of the overlaps from those of the rows."""
        rows = step.rows[: self.rows]
        if self.structure.sphere:
            held = on_sphere(self.flat(self.Z)[: self.p], rows[: self.p])
            rows = jnp.concatenate([held, rows[self.p :]])
        dZ = self.by_block(rows)
        along = self.Z @ jnp.swapaxes(dZ, -1, -2)
        rest = {
            "rows_a": step.head[: self.rows],
            "update_scalars": jnp.stack(step.scalars) if step.scalars else self.state["update_scalars"] * 0,
        }
        dQ = along + jnp.swapaxes(along, -1, -2) + dZ @ jnp.swapaxes(dZ, -1, -2)
        if not self.structure.trained:
            rest["rows_a"] = jnp.zeros_like(rest["rows_a"])
        found = {"rows_M": dZ @ jnp.swapaxes(self.S, -1, -2), "rows_Q": dQ, **rest, "update_squares": self._gathered(step.squares)}
        return jax.tree.map(lambda value: self.D * value, found)

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        """M and Q of rows in this frame."""
        return {"M": rows @ jnp.swapaxes(self.S, -1, -2), "Q": rows @ jnp.swapaxes(rows, -1, -2)}

    def noisy(self, noise: Float[Numeric, "p p"], samples: Scalar | int) -> Float[Numeric, "blocks p p"]:
        """The noise of a gradient, of covariance E[h h^T] over so many samples, along new columns."""
        return jnp.sqrt(self.eigenvalues * self.sizes / samples)[:, None, None] * _root(noise)

    def _gathered(self, squares: tuple[Any, ...]) -> Any:
        """Increments of squares as numbers of the units: their mean over coordinates in units of the input's variance."""
        if not squares:
            return self.state["update_squares"] * 0
        weights = self.parameters["fractions"] / spectrum.trace(self.parameters)
        return jnp.stack([jnp.einsum("b,bp->p", weights, self.by_block(one)[..., -1]) for one in squares])

    def gram(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "blocks p p"]:
        """The covariance of the coordinates of a gradient in each block."""
        new = self.by_block(G)[..., self.inside :]
        return new @ jnp.swapaxes(new, -1, -2) / self.sizes[:, None, None]

    def squares(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Mean squares of a gradient's coordinates, which are Gaussian over the coordinates of a block."""
        each = jnp.einsum("bpp->bp", self.gram(G))
        return self.flat(jnp.broadcast_to(each[..., None], (self.blocks, self.p, self.inside + self.new)))

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """The signs of Gaussian coordinates: along a row their mean is sqrt(2/pi) over the deviation, their products are arcsines."""
        gram = self.gram(G)
        size = jnp.sqrt(jnp.einsum("bpp->bp", gram))
        ratio = 1 / jnp.where(size > 0, size, 1.0)
        correlation = jnp.clip(gram * ratio[:, :, None] * ratio[:, None, :], -1.0, 1.0)
        root = (
            jax.vmap(partial(lower_root, unrolled=self.p <= UNROLLED))(2 / jnp.pi * jnp.arcsin(correlation))
            * jnp.sqrt(self.sizes)[:, None, None]
        )
        mean = jnp.sqrt(2 / jnp.pi) * ratio[..., None] * self.by_block(G)[..., : self.inside]
        return self.flat(jnp.concatenate([mean, jnp.pad(root, ((0, 0), (0, 0), (0, self.new - self.p)))], axis=-1))


class Oblique(Frame):
    """The same for updates that form no lengths: columns are coefficients on the rows, the signals and the noise, whose products are known.

    No root of a matrix is needed, which is most of the cost of the other frame.
    """

    def _lay_out(self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]) -> None:
        self.new, self.inside = self.p, self.rows + self.k
        gram = jnp.broadcast_to(self.parameters["gram"], (self.blocks, self.k, self.k))
        across = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
        self.products = jnp.concatenate([jnp.concatenate([Q, M], axis=-1), across], axis=-2)
        every = jnp.broadcast_to(jnp.eye(self.inside, self.inside + self.new), (self.blocks, self.inside, self.inside + self.new))
        self.Z, self.S = every[:, : self.rows], every[:, self.rows :]

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        inside = rows[..., : self.inside]
        along = inside @ self.products
        return {"M": along[..., self.rows :], "Q": along @ jnp.swapaxes(inside, -1, -2)}

    def noisy(self, noise: Float[Numeric, "p p"], samples: Scalar | int) -> Float[Numeric, "blocks p p"]:
        self.noise = (self.eigenvalues * self.sizes / samples)[:, None, None] * noise
        return jnp.broadcast_to(jnp.eye(self.p), (self.blocks, self.p, self.p))

    def rates(self, step: Rows) -> dict[str, Any]:
        dZ = self.by_block(step.rows[: self.rows])
        inside, new = dZ[..., : self.inside], dZ[..., self.inside :]
        along = inside @ self.products
        both = jnp.swapaxes(along[..., : self.rows], -1, -2)
        square = along @ jnp.swapaxes(inside, -1, -2) + new @ self.noise @ jnp.swapaxes(new, -1, -2)
        head = step.head[: self.rows] if self.structure.trained else jnp.zeros(self.rows)
        found = {
            "rows_M": along[..., self.rows :],
            "rows_Q": both + jnp.swapaxes(both, -1, -2) + square,
            "rows_a": head,
            "update_scalars": jnp.stack(step.scalars) if step.scalars else self.state["update_scalars"] * 0,
            "update_squares": self.state["update_squares"] * 0,
        }
        return jax.tree.map(lambda value: self.D * value, found)


def _root(matrix: Float[Numeric, "... n n"]) -> Any:
    """Some L with L L^T = matrix, which may be singular: one call of LAPACK, where a triangular one would be a loop."""
    if matrix.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrix, 0.0))
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]


def _over(M: Float[Numeric, "blocks n K"], C: Float[Numeric, "blocks K K"]) -> Any:
    """T with M = T C^T, 0 along null pivots of the lower-triangular C."""
    if C.shape[-1] == 1:
        return safe_ratio(M, C)
    return jnp.swapaxes(jax.vmap(solve_forward)(C, jnp.swapaxes(M, -1, -2)), -1, -2)
