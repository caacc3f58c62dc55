"""The drift of the ODE in independent coordinates, evaluated at many states at once.

The entries of a state are (M, Q, a) in one vector. They are not independent: a row of M lies in
the span of the signals, Q is symmetric with a given diagonal on the sphere, and a fixed head does
not move. With coordinates y of the independent directions,

    entries = base + E y,        dy/dt = E^+ drift(base + E y),

where the columns of E span the possible changes and E^+ is its pseudo-inverse.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.drift import drift
from sgdynamics.problems.problem import Problem, Structure

# Number of states that are evaluated at once. The last chunk is filled up, so that one program
# serves any number of states.
CHUNK, SAMPLED_CHUNK = 16, 4
# Shift of Q by which a state on the edge of the physical region moves inside, to be differentiated.
EDGE_SHIFT = 1e-5


class Candidates(NamedTuple):
    """Many states, each a candidate for a root of the drift.

    Attributes
    ----------
    coordinates : ndarray
        Independent coordinates y, (state, coordinate).
    base : ndarray
        Entries at y = 0, (state, entry).
    drift : ndarray
        The drift dy/dt, (state, coordinate).
    jacobian : ndarray
        Jacobian of the drift, (state, coordinate, coordinate).
    """

    coordinates: np.ndarray
    base: np.ndarray
    drift: np.ndarray
    jacobian: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        """Norm of the drift of each state; infinite if the drift is not finite."""
        norm = np.linalg.norm(self.drift, axis=1)
        return np.where(np.isfinite(norm), norm, np.inf)

    def take(self, index: np.ndarray | Sequence[int]) -> Candidates:
        """The states at these indices."""
        return Candidates(*(array[index] for array in self))

    def assign(self, index: np.ndarray | Sequence[int], states: Candidates) -> None:
        """Overwrite the states at these indices."""
        for array, new in zip(self, states, strict=True):
            array[index] = new


class SystemArrays(NamedTuple):
    """The arrays on which the drift depends, traced by JAX.

    Attributes
    ----------
    nodes : dict of array
        Nodes of the quadrature, with a leading axis of replicates.
    parameters : dict
        Parameters of the problem.
    hyperparameters : dict
        Hyperparameters of the algorithm.
    embedding : array
        The matrix E, (entry, coordinate).
    projection : array
        Its pseudo-inverse, (coordinate, entry).
    """

    nodes: Nodes
    parameters: Parameters
    hyperparameters: Parameters
    embedding: Float[Numeric, "entries coordinates"]
    projection: Float[Numeric, "coordinates entries"]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _drift_and_jacobian(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    flow: bool,
    arrays: SystemArrays,
    coordinates: Float[Numeric, "states coordinates"],
    bases: Float[Numeric, "states entries"],
    shift: Float[Numeric, " entries"],
) -> tuple[
    Float[Numeric, "states replicates coordinates"],
    Float[Numeric, "states coordinates coordinates"],
]:
    """Evaluate the drift by every replicate, and the Jacobian of its mean at `base + shift`."""
    B, p, K = structure.blocks, structure.width, structure.signals

    def replicate_drift(
        nodes: Nodes, y: Float[Numeric, " coordinates"], base: Float[Numeric, " entries"]
    ) -> Float[Numeric, " coordinates"]:
        M, Q, a = jnp.split(base + arrays.embedding @ y, (B * p * K, B * p * (K + p)))
        state = {"M": M.reshape(B, p, K), "Q": Q.reshape(B, p, p), "a": a}
        rate = drift(
            structure,
            quadrature,
            nodes,
            arrays.parameters,
            arrays.hyperparameters,
            state,
            batch=batch,
            flow=flow,
        )
        entries = jnp.concatenate([rate["M"].reshape(-1), rate["Q"].reshape(-1), rate["a"]])
        return arrays.projection @ entries

    def drifts(
        y: Float[Numeric, " coordinates"], base: Float[Numeric, " entries"]
    ) -> Float[Numeric, "replicates coordinates"]:
        return jax.vmap(replicate_drift, (0, None, None))(arrays.nodes, y, base)

    def evaluate_state(
        state: tuple[Float[Numeric, " coordinates"], Float[Numeric, " entries"]],
    ) -> tuple[Float[Numeric, "replicates coordinates"], Float[Numeric, "coordinates coordinates"]]:
        y, base = state
        mean_jacobian = jax.jacfwd(lambda y: jnp.mean(drifts(y, base + shift), axis=0))
        return drifts(y, base), mean_jacobian(y)

    batch_size = 1 if "points" in arrays.nodes else CHUNK
    return jax.lax.map(evaluate_state, (coordinates, bases), batch_size=batch_size)


class DriftSystem:
    """The drift of one problem and algorithm in independent coordinates."""

    def __init__(self, problem: Problem, algorithm: OnePassSGD, quadrature: Quadrature) -> None:
        self.problem, self.algorithm, self.quadrature = problem, algorithm, quadrature
        self.structure = structure = problem.structure
        self.flow = bool(algorithm.lr == 0.0)
        expectation = expectation_of(structure)
        self.nodes, self.coarse_nodes = expectation.search_nodes(quadrature, self.flow)
        B, p, K = structure.blocks, structure.width, structure.signals
        self.shapes = {"M": (B, p, K), "Q": (B, p, p), "a": (structure.head_size,)}
        size = B * p * (K + p) + structure.head_size
        # The identity matrix added to Q, in equal parts to every covariance block.
        self.diagonal = np.zeros(size)
        self.diagonal[np.einsum("bii->bi", _positions_of_Q(structure))] = 1.0 / B
        self.embedding = _independent_directions(problem)
        self.projection = np.linalg.pinv(self.embedding)
        # Expectations with kinks are differentiable on the edge unless they are sampled.
        self.edge_shift = EDGE_SHIFT
        if structure.kinks:
            self.edge_shift = 10 * EDGE_SHIFT if expectation.sampled(self.flow) else 0.0

    def evaluate(
        self, coordinates: np.ndarray, bases: np.ndarray, shift: float, nodes: Nodes | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the drift (state, replicate, coordinate) and the Jacobian, in chunks.

        The Jacobian is evaluated at Q + shift, as a multiple of the identity matrix.
        """
        arrays = SystemArrays(
            nodes or self.nodes,
            self.problem.parameters,
            self.algorithm.parameters,
            self.embedding,
            self.projection,
        )
        static = (self.structure, self.quadrature, self.algorithm.batch, self.flow)
        chunk = SAMPLED_CHUNK if "points" in self.nodes else CHUNK
        count = len(coordinates)
        drifts, jacobians = [], []
        for first in range(0, count, chunk):
            index = np.minimum(np.arange(first, first + chunk), count - 1)
            rates, slopes = _drift_and_jacobian(
                *static, arrays, coordinates[index], bases[index], shift * self.diagonal
            )
            drifts.append(np.asarray(rates))
            jacobians.append(np.asarray(slopes))
        return np.concatenate(drifts)[:count], np.concatenate(jacobians)[:count]

    def candidates(self, coordinates: np.ndarray, bases: np.ndarray) -> Candidates:
        """States with their drift and a Jacobian for Newton steps.

        That Jacobian need not be exact, but it must be finite, so that it is evaluated slightly
        inside of the physical region.
        """
        drifts, jacobians = self.evaluate(coordinates, bases, 1e-4 * self.edge_shift)
        return Candidates(coordinates.copy(), bases.copy(), drifts.mean(axis=1), jacobians)

    def overlaps(self, states: Candidates) -> dict[str, np.ndarray]:
        """M and Q of each covariance block and a, with a leading axis of states."""
        entries = states.base + states.coordinates @ self.embedding.T
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        columns = np.split(entries, np.cumsum(sizes)[:-1], axis=1)
        return {
            name: values.reshape(-1, *shape)
            for (name, shape), values in zip(self.shapes.items(), columns, strict=True)
        }

    def coordinates_from_rows(
        self, rows: np.ndarray, head: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates and base of compressed rows and heads.

        Rows [T | L] are (state, block, unit, column), heads (state, unit).
        """
        frame = self.problem.parameters["frame"]
        M = np.einsum("nbic,bkc->nbik", rows[..., : self.structure.signals], frame)
        Q = np.einsum("nbic,nbjc->nbij", rows, rows)
        entries = np.concatenate([values.reshape(len(rows), -1) for values in (M, Q, head)], axis=1)
        y = entries @ self.projection.T
        return y, entries - y @ self.embedding.T

    def candidates_from_rows(self, rows: np.ndarray, head: np.ndarray) -> Candidates:
        """The states of compressed rows [T | L] and heads."""
        return self.candidates(*self.coordinates_from_rows(rows, head))

    def row_slopes(self, rows: np.ndarray, head: np.ndarray) -> np.ndarray:
        """d(coordinates)/d(rows, head): (state, coordinate, unknown).

        Overlaps are quadratic in the rows, so that a central difference of any step is exact.
        """
        count, size, shape = len(rows), rows[0].size, rows.shape[1:]
        unit_moves = np.eye(size).reshape(size, *shape)
        repeated_heads = np.repeat(head, size, axis=0)

        def coordinates_after(moves: np.ndarray) -> np.ndarray:
            moved = (rows[:, None] + moves).reshape(-1, *shape)
            return self.coordinates_from_rows(moved, repeated_heads)[0]

        differences = coordinates_after(unit_moves) - coordinates_after(-unit_moves)
        slopes = np.swapaxes(differences.reshape(count, size, -1) / 2, 1, 2)
        slopes = slopes.reshape(count, -1, *shape)
        if self.structure.constraint.fixes_norms:
            # The normalisation of the rows undoes their radial moves.
            radial = np.einsum("nmbic,nbic->nmi", slopes, rows)
            slopes = slopes - radial[:, :, None, :, None] * rows[:, None]
        head_slopes = np.broadcast_to(
            self.projection[:, -head.shape[1] :], (count, slopes.shape[1], head.shape[1])
        )
        return np.concatenate([slopes.reshape(count, -1, size), head_slopes], axis=2)


def _positions_of_Q(structure: Structure) -> np.ndarray:
    """Positions of Q in the vector of entries, (block, unit, unit)."""
    B, p, K = structure.blocks, structure.width, structure.signals
    return B * p * K + np.arange(B * p * p).reshape(B, p, p)


def _independent_directions(problem: Problem) -> np.ndarray:
    """The matrix E: possible changes of the entries (M, Q, a) as columns."""
    structure = problem.structure
    B, p, K = structure.blocks, structure.width, structure.signals
    size = B * p * (K + p) + structure.head_size
    in_M = np.arange(B * p * K).reshape(B, p, K)
    in_Q = _positions_of_Q(structure)
    columns = []
    for b, i in itertools.product(range(B), range(p)):
        # A row of M lies in the span of the signals, which may be linearly dependent.
        values, vectors = np.linalg.eigh(problem.gram[b])
        is_spanned = values > 1e-12 * values[-1]
        span = np.eye(K) if is_spanned.all() else vectors[:, is_spanned]
        columns += [np.bincount(in_M[b, i], direction, size) for direction in span.T]
    for b, (i, j) in itertools.product(range(B), zip(*np.triu_indices(p), strict=True)):
        column = np.zeros(size)
        column[[in_Q[b, i, j], in_Q[b, j, i]]] = 1.0
        if structure.constraint.fixes_norms and i == j:
            # On the sphere the last block takes from the norm what another block gains.
            column[in_Q[-1, i, i]] -= 1.0
        if column.any():
            columns.append(column)
    if structure.trained:
        columns += list(np.eye(size)[-structure.head_size :])
    return np.array(columns).T
