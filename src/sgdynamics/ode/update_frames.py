"""Columns in which a step of an update is taken in the limit, and how overlaps are read from its increments there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import Numeric, Parameters, Scalar, State
from sgdynamics.expectations.nodes import lower_root, safe_ratio, solve_forward
from sgdynamics.problems.moves import loss_overlaps
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.layout import Layout

UNROLLED = 4  # rows up to which the roots of every point's own matrices are written out


class Frame:
    """The rows of a state in orthonormal columns [T | L | new] of each block, and how to read overlaps from increments there."""

    def __init__(
        self,
        structure: Structure,
        batch: int,
        law: Law,
        parameters: Parameters,
        D: Scalar,
        state: State,
    ) -> None:
        self.structure, self.batch, self.law, self.parameters, self.D, self.state = (
            structure,
            batch,
            law,
            parameters,
            D,
            state,
        )
        self.p, self.k, self.blocks = structure.width, structure.signals, structure.blocks
        self.rows = state["rows_Q"].shape[-1]  # slow ones
        self.sizes = parameters["fractions"] * D
        self.eigenvalues = input_covariance.eigenvalues(parameters)
        self._lay_out(state["rows_M"], state["rows_Q"])

    def _lay_out(self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]) -> None:
        """Say which columns there are, and what rows and signals are in them."""
        structure, law = self.structure, self.law
        # of the chain; the columns that rows of fast sets have there stay empty
        spare = (
            max(0, self.p - self.batch * structure.sample.tokens.inputs_per_sample)
            if law.coordinatewise
            else 0
        )
        self.layout = Layout(
            structure, self.batch, single_step=True, update=law, spare=spare
        )
        self.inside = self.layout.inside
        self.new = (1 + law.noise) * self.p if law.linear else self.layout.columns
        C = jnp.broadcast_to(self.parameters["frame"], (self.blocks, self.k, self.k))
        T = _over(M, C)
        L = _root(Q - T @ jnp.swapaxes(T, -1, -2))
        self.Z = self._wide(jnp.concatenate([T, L], axis=-1))  # (blocks, rows, columns)
        self.S = self._wide(C)

    def _wide(self, part: Float[Numeric, "blocks n m"]) -> Any:
        return jnp.pad(part, ((0, 0), (0, 0), (0, self.inside + self.new - part.shape[-1])))

    def input_map(
        self, factors: Float[Numeric, "blocks fields inside"]
    ) -> Float[Numeric, "blocks fields inside"]:
        """What a standard normal of each field adds to the normals of an input.

        `factors` are X_b C^-T of the rows that are read.
        """
        return jnp.sqrt(self.eigenvalues)[:, None, None] * factors

    @property
    def outside(self) -> Float[Numeric, "blocks columns columns"]:
        """The new columns of a batch.

        The length of an input outside of the frame, sqrt(n_b) in each block.
        """
        return jnp.sqrt(self.sizes)[:, None, None] * jnp.eye(self.layout.columns)

    def coordinates(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        """Rows as a step takes them."""
        return self.flat(rows)

    def combine(self, mean: dict[str, Any]) -> dict[str, Any]:
        """The rates of all overlaps from the average over points of what `rates` returns."""
        return mean

    def flat(self, part: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        return jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1)

    def by_block(self, flat: Float[Numeric, "n flat"]) -> Float[Numeric, "blocks n columns"]:
        return jnp.moveaxis(flat.reshape(flat.shape[0], self.blocks, -1), 1, 0)

    def begin(self) -> Rows:
        """All sets at this state, those that are fast at 0.

        Squares are written out along the columns.
        """
        state, missing = self.state, count_row_sets(self.law) * self.p - self.rows
        rows = jnp.pad(self.flat(self.Z), ((0, missing), (0, 0)))
        squares = tuple(self.spread_out(one) for one in state["update_squares"])
        return Rows(
            rows, jnp.pad(state["rows_a"], (0, missing)), tuple(state["update_scalars"]), squares
        )

    def spread_out(self, each: Float[Numeric, " p"]) -> Float[Numeric, "p flat"]:
        """Numbers of the units times the variance of each column's input."""
        return each[:, None] * jnp.repeat(self.eigenvalues, self.inside + self.new)

    def rates(self, step: Rows) -> dict[str, Any]:
        """D times the increments of the overlaps from those of the rows."""
        rows = step.rows[: self.rows]
        if self.structure.constraint.fixes_norms:
            weights = self.flat(self.Z)[: self.p]
            projected = self.structure.constraint.project_increment(weights, rows[: self.p])
            rows = jnp.concatenate([projected, rows[self.p :]])
        dZ = self.by_block(rows)
        along = self.Z @ jnp.swapaxes(dZ, -1, -2)
        rest = {
            "rows_a": step.head[: self.rows],
            "update_scalars": jnp.stack(step.scalars)
            if step.scalars
            else self.state["update_scalars"] * 0,
        }
        dQ = along + jnp.swapaxes(along, -1, -2) + dZ @ jnp.swapaxes(dZ, -1, -2)
        if not self.structure.trained:
            rest["rows_a"] = jnp.zeros_like(rest["rows_a"])
        found = {
            "rows_M": dZ @ jnp.swapaxes(self.S, -1, -2),
            "rows_Q": dQ,
            **rest,
            "update_squares": self._gathered(step.squares),
        }
        return jax.tree.map(lambda value: self.D * value, found)

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        """M and Q of rows in this frame."""
        return {"M": rows @ jnp.swapaxes(self.S, -1, -2), "Q": rows @ jnp.swapaxes(rows, -1, -2)}

    def seen(self, rows: Float[Numeric, "n flat"]) -> Any:
        """The overlaps of rows as a rate that reads them takes them."""
        overlaps = self.overlaps(self.by_block(rows))
        return loss_overlaps(self.parameters, overlaps["Q"], overlaps["M"])

    def noisy(
        self, noise: Float[Numeric, "p p"], samples: Scalar | int
    ) -> Float[Numeric, "blocks p p"]:
        """The noise of a gradient, of covariance E[h h^T] over so many samples, along new columns."""
        return jnp.sqrt(self.eigenvalues * self.sizes / samples)[:, None, None] * _root(noise)

    def _gathered(self, squares: tuple[Any, ...]) -> Any:
        """Increments of squares as numbers of the units.

        Their mean over coordinates in units of the input's variance.
        """
        if not squares:
            return self.state["update_squares"] * 0
        weights = self.parameters["fractions"] / input_covariance.trace(self.parameters)
        return jnp.stack(
            [jnp.einsum("b,bp->p", weights, self.by_block(one)[..., -1]) for one in squares]
        )

    def gram(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "blocks p p"]:
        """The covariance of the coordinates of a gradient in each block."""
        new = self.by_block(G)[..., self.inside :]
        return new @ jnp.swapaxes(new, -1, -2) / self.sizes[:, None, None]

    def squares(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Mean squares of a gradient's coordinates, which are Gaussian over the coordinates of a block."""
        each = jnp.einsum("bpp->bp", self.gram(G))
        return self.flat(
            jnp.broadcast_to(each[..., None], (self.blocks, self.p, self.inside + self.new))
        )

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """The signs of Gaussian coordinates.

        Along a row their mean is sqrt(2/pi) over the deviation, their products are arcsines.
        """
        gram = self.gram(G)
        size = jnp.sqrt(jnp.einsum("bpp->bp", gram))
        ratio = 1 / jnp.where(size > 0, size, 1.0)
        correlation = jnp.clip(gram * ratio[:, :, None] * ratio[:, None, :], -1.0, 1.0)
        root = (
            jax.vmap(partial(lower_root, unrolled=self.p <= UNROLLED))(
                2 / jnp.pi * jnp.arcsin(correlation)
            )
            * jnp.sqrt(self.sizes)[:, None, None]
        )
        mean = jnp.sqrt(2 / jnp.pi) * ratio[..., None] * self.by_block(G)[..., : self.inside]
        return self.flat(
            jnp.concatenate(
                [mean, jnp.pad(root, ((0, 0), (0, 0), (0, self.new - self.p)))], axis=-1
            )
        )


class JointFrame:
    """All blocks in one orthonormal frame, for a step that is averaged over points: its cost does not grow with the number of blocks.

    A step sees a batch through rows and inputs alone, which span few directions of all columns of
    all blocks:

        S_b, Z_b (signals and rows),     l_b S_b, l_b Z_b (inputs),     sqrt(l_b) S_b, sqrt(l_b) Z_b, S_b/sqrt(l_b) (signs of inputs)

    A QR decomposition gives orthonormal columns that contain them, signals first; no rank is
    decided. Outside of them an input has the length sqrt(sum_b n_b l_b), of which block b carries
    the share n_b l_b; that of signs or of an update's own noise is n_b.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame, self.D, self.p, self.rows = frame, frame.D, frame.p, frame.rows
        structure, inside = frame.structure, frame.inside
        self.has_variance = frame.eigenvalues > 0
        safe = jnp.where(self.has_variance, frame.eigenvalues, 1.0)
        rows = jnp.concatenate([frame.S, frame.Z], axis=1)[..., :inside]
        powers = (1.0, 0.5) if frame.law.coordinatewise else (1.0,)
        vectors = [rows, *(safe[:, None, None] ** power * rows for power in powers)]
        if frame.law.coordinatewise and not structure.sample.centred:
            vectors.append(safe[:, None, None] ** -0.5 * rows[:, : frame.k])
        self.basis, _ = jnp.linalg.qr(
            jnp.concatenate([frame.flat(part) for part in vectors]).T
        )  # (flat, columns)
        self.inside, self.new = self.basis.shape[1], frame.new
        single = replace(structure, blocks=1)
        self.layout = _JointLayout(
            single,
            frame.batch,
            single_step=True,
            update=frame.law,
            spare=frame.layout.spare,
            frame_columns=self.inside,
        )
        signals = self.inner(frame.S)
        self.parameters = frame.parameters | {
            "frame": signals[None, :, : frame.k],
            "gram": (signals @ signals.T)[None],
            "eigenvalues": jnp.ones(1),
            "fractions": jnp.ones(1),
        }
        self.Z = jnp.pad(self.inner(frame.Z), ((0, 0), (0, self.new)))
        kicks = self.layout.kicks
        self.variances = jnp.sum(frame.eigenvalues * frame.sizes)  # |x|^2 outside of the frame
        counted = jnp.where(self.has_variance, frame.sizes, 0.0)
        self.counted = jnp.sum(counted)
        own = (
            counted / self.counted
            if frame.law.coordinatewise
            else frame.eigenvalues * frame.sizes / self.variances
        )
        self.shares = jnp.stack(
            [own, frame.sizes / frame.D]
        )  # of the squared lengths of input columns, and of kicks
        self.cut = frame.new - kicks
        self.whitening: Any = self._whitening_matrix() if frame.law.coordinatewise else None

    def inner(self, part: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n inside"]:
        """Rows of the blocks in the columns of the basis."""
        return self.frame.flat(part[..., : self.frame.inside]) @ self.basis

    def coordinates(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        return jnp.pad(self.inner(rows), ((0, 0), (0, self.new)))

    def input_map(
        self, factors: Float[Numeric, "blocks fields inside"]
    ) -> Float[Numeric, "1 fields inside"]:
        return self.inner(self.frame.eigenvalues[:, None, None] * factors)[None]

    @property
    def outside(self) -> Float[Numeric, "1 columns columns"]:
        columns, kicks = self.layout.columns, self.layout.kicks
        lengths = jnp.where(
            jnp.arange(columns) < columns - kicks, jnp.sqrt(self.variances), jnp.sqrt(self.D)
        )
        return jnp.diag(lengths)[None]

    def begin(self) -> Rows:
        """All sets at this state, those that are fast at 0."""
        state, missing = self.frame.state, count_row_sets(self.frame.law) * self.p - self.rows
        rows = jnp.pad(self.Z, ((0, missing), (0, 0)))
        return Rows(rows, jnp.pad(state["rows_a"], (0, missing)), tuple(state["update_scalars"]))

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Signs of the Gaussian coordinates of a gradient; see `Frame.sign`."""
        new = G[:, self.inside :]
        gram = new @ new.T / self.variances
        size = jnp.sqrt(jnp.diagonal(gram))
        ratio = 1 / jnp.where(size > 0, size, 1.0)
        correlation = jnp.clip(gram * ratio[:, None] * ratio, -1.0, 1.0)
        root = lower_root(
            2 / jnp.pi * jnp.arcsin(correlation), unrolled=self.p <= UNROLLED
        ) * jnp.sqrt(self.counted)
        mean = jnp.sqrt(2 / jnp.pi) * ratio[:, None] * (G[:, : self.inside] @ self.whitening)
        return jnp.concatenate([mean, jnp.pad(root, ((0, 0), (0, self.new - self.p)))], axis=1)

    def _whitening_matrix(self) -> Float[Numeric, "inside inside"]:
        """Division of every coordinate by the standard deviation of its input, in the columns of the basis."""
        safe = jnp.where(self.has_variance, self.frame.eigenvalues, 1.0)
        each = jnp.where(self.has_variance, 1 / jnp.sqrt(safe), 0.0)
        return self.basis.T @ (jnp.repeat(each, self.frame.inside)[:, None] * self.basis)

    def rates(self, step: Rows) -> dict[str, Any]:
        """Of one point: D times the increments of the rows inside the frame and of their products outside of it.

        Products of increments inside are of order 1/D and left out.
        """
        rows = step.rows[: self.rows]
        constraint = self.frame.structure.constraint
        if constraint.fixes_norms:
            projected = constraint.project_increment(self.Z[: self.p], rows[: self.p])
            rows = jnp.concatenate([projected, rows[self.p :]])
        new = rows[:, self.inside :]
        parts = (new[:, : self.cut], new[:, self.cut :])
        found = {
            "inside": rows[:, : self.inside],
            "products": jnp.stack([part @ part.T for part in parts]),
            "rows_a": step.head[: self.rows],
            "update_scalars": jnp.stack(step.scalars)
            if step.scalars
            else self.frame.state["update_scalars"] * 0,
        }
        return jax.tree.map(lambda value: self.D * value, found)

    def combine(self, mean: dict[str, Any]) -> dict[str, Any]:
        """The rates of all overlaps, block by block."""
        frame = self.frame
        dZ = frame.by_block(mean["inside"] @ self.basis.T)
        along = frame.Z[..., : frame.inside] @ jnp.swapaxes(dZ, -1, -2)
        dQ = (
            along
            + jnp.swapaxes(along, -1, -2)
            + jnp.einsum("gb,gij->bij", self.shares, mean["products"])
        )
        trained = frame.structure.trained
        return {
            "rows_M": dZ @ jnp.swapaxes(frame.S[..., : frame.inside], -1, -2),
            "rows_Q": dQ,
            "rows_a": mean["rows_a"] if trained else jnp.zeros_like(mean["rows_a"]),
            "update_scalars": mean["update_scalars"],
            "update_squares": frame.state["update_squares"] * 0,
        }


@dataclass(frozen=True)
class _JointLayout(Layout):
    """One step in a frame of any number of columns."""

    frame_columns: int = 0

    @property
    def inside(self) -> int:
        return self.frame_columns


class Oblique(Frame):
    """The same for updates that form no lengths: columns are coefficients on the rows, the signals and the noise, whose products are known.

    No root of a matrix is needed, which is most of the cost of the other frame.
    """

    def _lay_out(self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]) -> None:
        self.new, self.inside = self.p, self.rows + self.k
        gram = jnp.broadcast_to(self.parameters["gram"], (self.blocks, self.k, self.k))
        across = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
        self.products = jnp.concatenate([jnp.concatenate([Q, M], axis=-1), across], axis=-2)
        every = jnp.broadcast_to(
            jnp.eye(self.inside, self.inside + self.new),
            (self.blocks, self.inside, self.inside + self.new),
        )
        self.Z, self.S = every[:, : self.rows], every[:, self.rows :]

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        inside = rows[..., : self.inside]
        along = inside @ self.products
        return {"M": along[..., self.rows :], "Q": along @ jnp.swapaxes(inside, -1, -2)}

    def noisy(
        self, noise: Float[Numeric, "p p"], samples: Scalar | int
    ) -> Float[Numeric, "blocks p p"]:
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
            "update_scalars": jnp.stack(step.scalars)
            if step.scalars
            else self.state["update_scalars"] * 0,
            "update_squares": self.state["update_squares"] * 0,
        }
        return jax.tree.map(lambda value: self.D * value, found)


def _root(matrix: Float[Numeric, "... n n"]) -> Any:
    """Some L with L L^T = matrix, which may be singular.

    One call of LAPACK, where a triangular one would be a loop.
    """
    if matrix.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrix, 0.0))
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]


def _over(M: Float[Numeric, "blocks n K"], C: Float[Numeric, "blocks K K"]) -> Any:
    """T with M = T C^T, 0 along null pivots of the lower-triangular C."""
    if C.shape[-1] == 1:
        return safe_ratio(M, C)
    return jnp.swapaxes(jax.vmap(solve_forward)(C, jnp.swapaxes(M, -1, -2)), -1, -2)
