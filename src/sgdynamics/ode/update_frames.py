"""Orthonormal columns in which one step of an update is taken in the limit d -> infinity.

In every covariance block b the rows Z of a state are split as in the compressed chain, into
coordinates T along the signals and a root L of the rest (C C^T = P is the frame of the signals):

    Z = [T | L | 0],     M_b = T C^T,     Q_b = T T^T + L L^T.

The step of an update adds dZ = [dT | dL | new], where the last columns are directions that no row
has had before. With S = [C | 0 | 0] for the signals, the overlaps change by

    dM_b = dZ S^T,     dQ_b = Z dZ^T + dZ Z^T + dZ dZ^T.

Three frames serve different updates: `Frame` for all, `JointFrame` for averages over points, which
needs one set of columns for all blocks, and `ObliqueFrame` for updates that form no lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import Numeric, Parameters, Scalar, State
from sgdynamics.expectations.nodes import lower_root, safe_ratio, solve_forward
from sgdynamics.problems.moves import LossOverlaps, loss_overlaps
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.layout import Layout

# Rows up to which the triangular roots of many small matrices (one per point) are written out
# entry by entry; a batched factorisation is slower below this size.
UNROLLED = 4


class Frame:
    """The rows of a state in orthonormal columns [T | L | new] of each block.

    Attributes
    ----------
    Z : array, (blocks, rows, columns)
        Rows of all slow sets.
    S : array, (blocks, K, columns)
        Signals.
    inside, new : int
        Numbers of the columns [T | L] and of the new columns.
    sizes : array, (blocks,)
        Numbers of input coordinates n_b = f_b D.
    eigenvalues : array, (blocks,)
        Eigenvalues l_b of the input covariance.
    """

    def __init__(
        self,
        structure: Structure,
        batch: int,
        law: Law,
        parameters: Parameters,
        D: Scalar,
        state: State,
    ) -> None:
        self.structure, self.batch, self.law = structure, batch, law
        self.parameters, self.D, self.state = parameters, D, state
        self.p, self.k, self.blocks = structure.width, structure.signals, structure.blocks
        # The rows of fast sets are no part of the state: they follow from the slow ones.
        self.rows = state["rows_Q"].shape[-1]
        # Entries of the heads of these rows
        self.head_entries = self.rows // self.p * structure.head_size
        self.sizes = parameters["fractions"] * D
        self.eigenvalues = input_covariance.eigenvalues(parameters)
        self._set_columns(state["rows_M"], state["rows_Q"])

    def _set_columns(
        self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]
    ) -> None:
        """Choose the columns, and express rows and signals in them."""
        structure, law = self.structure, self.law
        # The signs of p rows span p new columns in each block. Where the samples of a batch provide
        # fewer, spare columns make up for the difference.
        spare = (
            max(0, self.p - self.batch * structure.sample.tokens.inputs_per_sample)
            if law.coordinatewise
            else 0
        )
        # The layout is that of the compressed chain. It also has columns for the rows of fast sets,
        # which stay empty here.
        self.layout = Layout(structure, self.batch, single_step=True, update=law, spare=spare)
        self.inside = self.layout.inside
        # A linear update sees the gradient noise of p rows, and the p rows of its own noise or of
        # its random selection of coordinates.
        own = law.noise or law.selects
        self.new = (1 + own) * self.p if law.linear else self.layout.columns
        C = jnp.broadcast_to(self.parameters["frame"], (self.blocks, self.k, self.k))
        T = _divide_by_frame(M, C)
        L = _root(Q - T @ jnp.swapaxes(T, -1, -2))
        self.Z = self._pad_columns(jnp.concatenate([T, L], axis=-1))
        self.S = self._pad_columns(C)

    def _pad_columns(self, rows: Float[Numeric, "blocks n m"]) -> Float[Array, "blocks n columns"]:
        """Return rows with zeros in their missing columns."""
        return jnp.pad(rows, ((0, 0), (0, 0), (0, self.inside + self.new - rows.shape[-1])))

    def input_map(
        self, factors: Float[Numeric, "blocks fields inside"]
    ) -> Float[Numeric, "blocks fields inside"]:
        """Return the contribution of one standard normal of each field to the normals of an input.

        Let the rows X that are read have fields of covariance C C^T. An input with the fields
        C zeta, zeta standard normal, is l_b X_b^T C^-T zeta in block b, along these rows. The chain
        multiplies the normals of an input by sqrt(l_b); the other factor sqrt(l_b) is applied here.
        `factors` are C^-1 X_b.
        """
        return jnp.sqrt(self.eigenvalues)[:, None, None] * factors

    @property
    def outside(self) -> Float[Numeric, "blocks columns columns"]:
        """The part of the inputs of a batch outside of the frame, in the new columns.

        Input j lies along new column j, with the length sqrt(n_b) in block b. The chi distribution
        that a finite dimension has there is 1 in the limit.
        """
        return jnp.sqrt(self.sizes)[:, None, None] * jnp.eye(self.layout.columns)

    def coordinates(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        """Return rows in the flat columns of a step."""
        return self.flatten_blocks(rows)

    def combine(self, mean: dict[str, Numeric]) -> dict[str, Numeric]:
        """Return the rates of all overlaps from the mean over points of the result of `rates`."""
        return mean

    def flatten_blocks(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        """Return rows of each block as rows over the columns of all blocks."""
        return jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1)

    def split_blocks(self, flat: Float[Numeric, "n flat"]) -> Float[Numeric, "blocks n columns"]:
        """Return the rows of each block; the inverse of `flatten_blocks`."""
        return jnp.moveaxis(flat.reshape(flat.shape[0], self.blocks, -1), 1, 0)

    def step_state(self) -> Rows:
        """Return the state in the form that a step takes, with the rows of fast sets at 0.

        The mean squares of a coordinatewise update become squares of every column.
        """
        state, sets = self.state, count_row_sets(self.law)
        missing = sets * self.p - self.rows
        missing_heads = sets * self.structure.head_size - self.head_entries
        rows = jnp.pad(self.flatten_blocks(self.Z), ((0, missing), (0, 0)))
        squares = tuple(self._squares_by_column(square) for square in state["update_squares"])
        heads = jnp.pad(state["rows_a"], (0, missing_heads))
        vectors = self.vectors_of_head()
        return Rows(rows, heads, tuple(state["update_scalars"]), squares, vectors=vectors)

    def vectors_of_head(self) -> tuple[Numeric, ...]:
        """Return the vectors of the update over the entries of the head, with fast ones at 0."""
        law, trained = self.law, self.structure.trained
        slow = dict(zip(law.slow_vector_names(trained), self.state["update_vectors"], strict=True))
        zero = jnp.zeros(self.structure.head_size)
        return tuple(slow.get(name, zero) for name in law.vector_names(trained))

    def _squares_by_column(self, squares: Float[Numeric, " p"]) -> Float[Numeric, "p flat"]:
        """Return mean squares in units of the input variance, times the variance of each column."""
        return squares[:, None] * jnp.repeat(self.eigenvalues, self.inside + self.new)

    def rates(self, step: Rows) -> dict[str, Numeric]:
        """Return D times the increments of the overlaps from the increments of one step."""
        rows = step.rows[: self.rows]
        if self.structure.constraint.fixes_norms:
            # Only the weights are on the sphere, the memory of the update is not.
            weights = self.flatten_blocks(self.Z)[: self.p]
            projected = self.structure.constraint.project_increment(weights, rows[: self.p])
            rows = jnp.concatenate([projected, rows[self.p :]])
        dZ = self.split_blocks(rows)
        # dQ = Z dZ^T + dZ Z^T + dZ dZ^T. The last term is of the same order as the others, because
        # the new columns are sqrt(D) long.
        cross = self.Z @ jnp.swapaxes(dZ, -1, -2)
        head = step.head[: self.head_entries]
        increments = {
            "rows_M": dZ @ jnp.swapaxes(self.S, -1, -2),
            "rows_Q": cross + jnp.swapaxes(cross, -1, -2) + dZ @ jnp.swapaxes(dZ, -1, -2),
            "rows_a": head if self.structure.trained else jnp.zeros_like(head),
            "update_scalars": self._scalar_increments(step),
            "update_squares": self._square_increments(step),
            "update_vectors": self.vector_increments(step),
        }
        return jax.tree.map(lambda increment: self.D * increment, increments)

    def _scalar_increments(self, step: Rows) -> Numeric:
        """Return the increments of the scalars of the update, (scalars,)."""
        return jnp.stack(step.scalars) if step.scalars else self.state["update_scalars"] * 0

    def vector_increments(self, step: Rows) -> Numeric:
        """Return the increments of the slow vectors over the entries of the head."""
        law, trained = self.law, self.structure.trained
        slow = law.slow_vector_names(trained)
        if not slow:
            return self.state["update_vectors"] * 0
        named = dict(zip(law.vector_names(trained), step.vectors, strict=True))
        return jnp.stack([named[name] for name in slow])

    def _square_increments(self, step: Rows) -> Numeric:
        """Return the increments of mean squares, (squares, p).

        They are means over all input coordinates in units of the mean input variance.
        """
        if not step.squares:
            return self.state["update_squares"] * 0
        weights = self.parameters["fractions"] / input_covariance.trace(self.parameters)
        # All coordinates of a block have the same mean square; the last column stands for them.
        return jnp.stack(
            [
                jnp.einsum("b,bp->p", weights, self.split_blocks(square)[..., -1])
                for square in step.squares
            ]
        )

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Numeric]:
        """Return M and Q of rows in this frame."""
        return {"M": rows @ jnp.swapaxes(self.S, -1, -2), "Q": rows @ jnp.swapaxes(rows, -1, -2)}

    def overlaps_for_loss(self, rows: Float[Numeric, "n flat"]) -> LossOverlaps:
        """Return the overlaps of rows in the form in which an update that reads them takes them."""
        overlaps = self.overlaps(self.split_blocks(rows))
        return loss_overlaps(self.parameters, overlaps["Q"], overlaps["M"])

    def noise_columns(
        self, noise: Float[Numeric, "p p"], samples: Scalar | int
    ) -> Float[Numeric, "blocks p p"]:
        """Return the noise of a mean gradient over this many samples, as rows of new columns.

        Outside of the frame the gradient of a batch is Gaussian over the n_b input coordinates,
        with the covariance l_b E[h h^T]/B of its rows: any root of n_b l_b E[h h^T]/B has the same
        overlaps.
        """
        return jnp.sqrt(self.eigenvalues * self.sizes / samples)[:, None, None] * _root(noise)

    def select(
        self, rows: Float[Numeric, "p flat"], share: Scalar | None, count: Scalar | None
    ) -> Float[Numeric, "p flat"]:
        """Return rows with a random share q of their coordinates.

        For rows X that are spread over all coordinates, and a random set S of them,

            E[X_S] = q X,     E[X_S X_S^T] = q X X^T.

        The last new columns are a root of q (1 - q) X X^T. A memory that is forgotten in O(1) steps
        needs the mean only: what S leaves out is sent soon afterwards.
        """
        q = share if share is not None else jnp.asarray(count) / self.D
        if self.law.memory == "fast":
            return q * rows
        X = self.split_blocks(rows)
        spread = jnp.sqrt(q * (1 - q)) * _root(X @ jnp.swapaxes(X, -1, -2))
        columns = slice(self.inside + self.p, self.inside + 2 * self.p)
        return self.flatten_blocks(jnp.asarray(q * X).at[..., columns].set(spread))

    def coordinate_covariance(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "blocks p p"]:
        """Return the covariance of the rows of a gradient over the coordinates of each block."""
        # The columns inside the frame are O(1) of n_b coordinates and do not contribute.
        new = self.split_blocks(G)[..., self.inside :]
        return new @ jnp.swapaxes(new, -1, -2) / self.sizes[:, None, None]

    def squares(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Return the mean squares of a gradient's coordinates, for each column of their block."""
        variances = jnp.einsum("bpp->bp", self.coordinate_covariance(G))
        shape = (self.blocks, self.p, self.inside + self.new)
        return self.flatten_blocks(jnp.broadcast_to(variances[..., None], shape))

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Return the signs of a gradient's coordinates, as rows with the same overlaps.

        The coordinates of a block are jointly Gaussian over the rows i, with standard deviations
        s_i and correlations c_ij. To first order in the small part along the frame

            E[sign g_i | inside] = sqrt(2/pi) g_i/s_i,     E[sign g_i sign g_j] = (2/pi) asin(c_ij).

        The new columns are a root of n_b times the second matrix.
        """
        covariance = self.coordinate_covariance(G)
        deviations = jnp.sqrt(jnp.einsum("bpp->bp", covariance))
        # A row without gradient has no direction: its sign is 0, not 0/0.
        inverse = 1 / jnp.where(deviations > 0, deviations, 1.0)
        correlation = covariance * inverse[:, :, None] * inverse[:, None, :]
        correlation = jnp.clip(correlation, -1.0, 1.0)  # rounding may exceed 1
        products = 2 / jnp.pi * jnp.arcsin(correlation)
        root = jax.vmap(partial(lower_root, unrolled=self.p <= UNROLLED))(products)
        root = root * jnp.sqrt(self.sizes)[:, None, None]
        mean = jnp.sqrt(2 / jnp.pi) * inverse[..., None] * self.split_blocks(G)[..., : self.inside]
        root = jnp.pad(root, ((0, 0), (0, 0), (0, self.new - self.p)))
        return self.flatten_blocks(jnp.concatenate([mean, root], axis=-1))


class JointFrame:
    """One orthonormal frame for all blocks, for a step that is averaged over points.

    The cost of a point then does not grow with the number of blocks. A step sees a batch through
    its rows and inputs alone, which span few directions of all columns of all blocks:

        S_b, Z_b                      signals and rows,
        l_b S_b, l_b Z_b              inputs along them,
        sqrt(l_b) S_b, sqrt(l_b) Z_b  and  S_b/sqrt(l_b)     signs of inputs.

    A QR decomposition gives orthonormal columns that contain them, signals first. It decides on no
    rank, so that nearly dependent directions do no harm. Outside of these columns an input has the
    length sqrt(sum_b n_b l_b), to which block b contributes n_b l_b; for the signs of an input and
    for an update's own noise that contribution is n_b.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame, self.D, self.p, self.rows = frame, frame.D, frame.p, frame.rows
        structure, inside = frame.structure, frame.inside
        self.has_variance = frame.eigenvalues > 0
        eigenvalues = jnp.where(self.has_variance, frame.eigenvalues, 1.0)[:, None, None]
        rows = jnp.concatenate([frame.S, frame.Z], axis=1)[..., :inside]
        # The directions of the docstring.
        powers = (1.0, 0.5) if frame.law.coordinatewise else (1.0,)
        directions = [rows, *(eigenvalues**power * rows for power in powers)]
        if frame.law.coordinatewise and not structure.sample.centred:
            directions.append(eigenvalues**-0.5 * rows[:, : frame.k])
        spanning = jnp.concatenate([frame.flatten_blocks(vectors) for vectors in directions])
        self.basis, _ = jnp.linalg.qr(spanning.T)  # (flat, columns)
        self.inside, self.new = self.basis.shape[1], frame.new
        # To the compressed chain this is a problem with one block of eigenvalue 1, whose signals
        # and rows have the coordinates below.
        self.layout = _JointLayout(
            replace(structure, blocks=1),
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
        # Squared length |x|^2 of an input outside of the frame.
        self.squared_length = jnp.sum(frame.eigenvalues * frame.sizes)
        # Coordinates that vary: the sign of a coordinate without variance is 0.
        varying_sizes = jnp.where(self.has_variance, frame.sizes, 0.0)
        self.varying = jnp.sum(varying_sizes)
        input_shares = (
            varying_sizes / self.varying
            if frame.law.coordinatewise
            else frame.eigenvalues * frame.sizes / self.squared_length
        )
        # Shares of the blocks in the squared lengths of the new columns of inputs, and of kicks
        # (the update's own noise), which are the last ones.
        self.shares = jnp.stack([input_shares, frame.sizes / frame.D])
        self.input_columns = frame.new - kicks
        self.whitening = self._whitening_matrix() if frame.law.coordinatewise else None

    def inner(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n inside"]:
        """Return the coordinates of rows of all blocks on the basis."""
        return self.frame.flatten_blocks(rows[..., : self.frame.inside]) @ self.basis

    def coordinates(self, rows: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        """Return rows in the columns of a step."""
        return jnp.pad(self.inner(rows), ((0, 0), (0, self.new)))

    def input_map(
        self, factors: Float[Numeric, "blocks fields inside"]
    ) -> Float[Numeric, "1 fields inside"]:
        """Return the contribution of one standard normal of each field to the normals of an input.

        See `Frame.input_map`. The joint frame has eigenvalue 1, so that the whole factor l_b is
        applied here.
        """
        return self.inner(self.frame.eigenvalues[:, None, None] * factors)[None]

    @property
    def outside(self) -> Float[Numeric, "1 columns columns"]:
        """The part of the inputs, and of the update's own noise, outside of the frame."""
        columns, kicks = self.layout.columns, self.layout.kicks
        lengths = jnp.where(
            jnp.arange(columns) < columns - kicks,
            jnp.sqrt(self.squared_length),
            jnp.sqrt(self.D),
        )
        return jnp.diag(lengths)[None]

    def step_state(self) -> Rows:
        """Return the state in the form that a step takes, with the rows of fast sets at 0."""
        frame, sets = self.frame, count_row_sets(self.frame.law)
        rows = jnp.pad(self.Z, ((0, sets * self.p - self.rows), (0, 0)))
        missing_heads = sets * frame.structure.head_size - frame.head_entries
        heads = jnp.pad(frame.state["rows_a"], (0, missing_heads))
        vectors = frame.vectors_of_head()
        return Rows(rows, heads, tuple(frame.state["update_scalars"]), vectors=vectors)

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Return the signs of a gradient's coordinates, as rows with the same overlaps.

        The equations are those of `Frame.sign`. All blocks have the same correlations, because h is
        common to them, but the standard deviation of a coordinate is that of its block: the mean
        along the frame is divided by it with the whitening matrix.
        """
        new = G[:, self.inside :]
        covariance = new @ new.T / self.squared_length
        deviations = jnp.sqrt(jnp.diagonal(covariance))
        # A row without gradient has no direction: its sign is 0, not 0/0.
        inverse = 1 / jnp.where(deviations > 0, deviations, 1.0)
        correlation = jnp.clip(covariance * inverse[:, None] * inverse, -1.0, 1.0)
        products = 2 / jnp.pi * jnp.arcsin(correlation)
        root = lower_root(products, unrolled=self.p <= UNROLLED) * jnp.sqrt(self.varying)
        assert self.whitening is not None
        whitened = G[:, : self.inside] @ self.whitening
        mean = jnp.sqrt(2 / jnp.pi) * inverse[:, None] * whitened
        return jnp.concatenate([mean, jnp.pad(root, ((0, 0), (0, self.new - self.p)))], axis=1)

    def _whitening_matrix(self) -> Float[Numeric, "inside inside"]:
        """Return the division by the standard deviation of each input coordinate, on the basis."""
        eigenvalues = jnp.where(self.has_variance, self.frame.eigenvalues, 1.0)
        inverse = jnp.where(self.has_variance, 1 / jnp.sqrt(eigenvalues), 0.0)
        return self.basis.T @ (jnp.repeat(inverse, self.frame.inside)[:, None] * self.basis)

    def rates(self, step: Rows) -> dict[str, Numeric]:
        """Return D times the increments of one point, in the form that `combine` takes.

        These are the increments of the rows inside the frame, and their products outside of it, of
        inputs and of kicks. Products of increments inside are of order 1/D and are left out.
        """
        rows = step.rows[: self.rows]
        constraint = self.frame.structure.constraint
        if constraint.fixes_norms:
            # Only the weights are on the sphere, the memory of the update is not.
            projected = constraint.project_increment(self.Z[: self.p], rows[: self.p])
            rows = jnp.concatenate([projected, rows[self.p :]])
        new = rows[:, self.inside :]
        columns = (new[:, : self.input_columns], new[:, self.input_columns :])
        increments = {
            "inside": rows[:, : self.inside],
            "products": jnp.stack([lengths @ lengths.T for lengths in columns]),
            "rows_a": step.head[: self.frame.head_entries],
            "update_scalars": jnp.stack(step.scalars)
            if step.scalars
            else self.frame.state["update_scalars"] * 0,
            "update_vectors": self.frame.vector_increments(step),
        }
        return jax.tree.map(lambda increment: self.D * increment, increments)

    def combine(self, mean: dict[str, Numeric]) -> dict[str, Numeric]:
        """Return the rates of all overlaps, block by block, from the mean over points."""
        frame = self.frame
        # dQ_b = Z_b dZ_b^T + dZ_b Z_b^T + the share of block b in the products outside.
        dZ = frame.split_blocks(mean["inside"] @ self.basis.T)
        cross = frame.Z[..., : frame.inside] @ jnp.swapaxes(dZ, -1, -2)
        dQ = (
            cross
            + jnp.swapaxes(cross, -1, -2)
            + jnp.einsum("gb,gij->bij", self.shares, mean["products"])
        )
        trained = frame.structure.trained
        return {
            "rows_M": dZ @ jnp.swapaxes(frame.S[..., : frame.inside], -1, -2),
            "rows_Q": dQ,
            "rows_a": mean["rows_a"] if trained else jnp.zeros_like(mean["rows_a"]),
            "update_scalars": mean["update_scalars"],
            "update_squares": frame.state["update_squares"] * 0,
            "update_vectors": mean["update_vectors"],
        }


@dataclass(frozen=True)
class _JointLayout(Layout):
    """The layout of one step in a frame with a given number of columns."""

    frame_columns: int = 0

    @property
    def inside(self) -> int:
        return self.frame_columns


class ObliqueFrame(Frame):
    """Columns that are the rows, the signals and the noise themselves, for a linear update.

    Rows are coefficients on these vectors, whose inner products are known:

        products = [[Q, M], [M^T, P]],     dM = dZ products[:, K],     dQ from Z products dZ^T.

    No root of a matrix is needed, which is most of the cost of orthonormal columns. It applies to
    updates that form no length and no inner product of rows, as those would be wrong here.
    """

    def _set_columns(
        self, M: Float[Numeric, "blocks n K"], Q: Float[Numeric, "blocks n n"]
    ) -> None:
        self.new, self.inside = self.p, self.rows + self.k
        gram = jnp.broadcast_to(self.parameters["gram"], (self.blocks, self.k, self.k))
        of_rows = jnp.concatenate([Q, M], axis=-1)
        of_signals = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
        self.products = jnp.concatenate([of_rows, of_signals], axis=-2)
        # Every row and every signal is a unit vector of coefficients.
        identity = jnp.eye(self.inside, self.inside + self.new)
        unit_vectors = jnp.broadcast_to(identity, (self.blocks, *identity.shape))
        self.Z, self.S = unit_vectors[:, : self.rows], unit_vectors[:, self.rows :]

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Numeric]:
        inside = rows[..., : self.inside]
        products = inside @ self.products
        return {"M": products[..., self.rows :], "Q": products @ jnp.swapaxes(inside, -1, -2)}

    def noise_columns(
        self, noise: Float[Numeric, "p p"], samples: Scalar | int
    ) -> Float[Numeric, "blocks p p"]:
        # The new columns are the noise of each row itself; `rates` uses their inner products.
        self.noise = (self.eigenvalues * self.sizes / samples)[:, None, None] * noise
        return jnp.broadcast_to(jnp.eye(self.p), (self.blocks, self.p, self.p))

    def rates(self, step: Rows) -> dict[str, Numeric]:
        dZ = self.split_blocks(step.rows[: self.rows])
        inside, new = dZ[..., : self.inside], dZ[..., self.inside :]
        head = step.head[: self.head_entries]
        # Inner products of the increments with all rows and signals.
        products = inside @ self.products
        cross = jnp.swapaxes(products[..., : self.rows], -1, -2)
        # dZ dZ^T, inside and along the noise.
        square = products @ jnp.swapaxes(inside, -1, -2)
        square = square + new @ self.noise @ jnp.swapaxes(new, -1, -2)
        increments = {
            "rows_M": products[..., self.rows :],
            "rows_Q": cross + jnp.swapaxes(cross, -1, -2) + square,
            "rows_a": head if self.structure.trained else jnp.zeros_like(head),
            "update_scalars": self._scalar_increments(step),
            "update_squares": self.state["update_squares"] * 0,
            "update_vectors": self.vector_increments(step),
        }
        return jax.tree.map(lambda increment: self.D * increment, increments)


def _root(matrix: Float[Numeric, "... n n"]) -> Float[Array, "... n n"]:
    """Return a matrix L with L L^T = matrix, which may be singular.

    By eigenvalues, which takes one call of LAPACK; a triangular root that allows singular matrices
    would be a loop. Eigenvalues that rounding made negative count as 0.
    """
    if matrix.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrix, 0.0))
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))[..., None, :]


def _divide_by_frame(
    M: Float[Numeric, "blocks n K"], C: Float[Numeric, "blocks K K"]
) -> Float[Numeric, "blocks n K"]:
    """Return T with M = T C^T for a lower-triangular C, and T = 0 along its null pivots."""
    if C.shape[-1] == 1:
        return safe_ratio(M, C)
    return jnp.swapaxes(jax.vmap(solve_forward)(C, jnp.swapaxes(M, -1, -2)), -1, -2)
