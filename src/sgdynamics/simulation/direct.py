"""One-pass SGD itself, in d dimensions, from a start with the given overlaps.

Its cost grows with d. The exact chain has the same law and is tested against it, and coordinatewise
updates, which do not close on overlaps, have no other simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    draw_order,
    select_coordinates,
)
from sgdynamics.algorithms.updates.initial_state import UpdateStart, update_start
from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import (
    DType,
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    Scalar,
)
from sgdynamics.base.controls import alpha_of_steps, values_at
from sgdynamics.base.random import step_key
from sgdynamics.problems.frames import compressed_rows, place_signals, signal_frames
from sgdynamics.problems.moves import BlockOverlaps, LossOverlaps
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance
from sgdynamics.samples.inputs import Embedding, inputs_in_space
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.exact import GROUP_BYTES
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Resources,
    RunSetting,
    Simulator,
    check_resources,
)
from sgdynamics.simulation.sample_moves import sample_moves

# Part of the seed of the random frames, which keeps them apart from other random numbers.
FRAMES = 71
# A run has diverged in float32 if a coordinate is larger; the square is still finite.
LARGEST_FLOAT32 = 1e15


class StepOptions(NamedTuple):
    """Static description of the steps.

    Attributes
    ----------
    structure : Structure
        Static description of the problem.
    batch : int
        Number of samples per step.
    law : Law or None
        Law of the update; None for plain SGD.
    edges : tuple of int
        First coordinates of the covariance blocks, and the dimension.
    delay : int
        Number of steps by which gradients are late.
    """

    structure: Structure
    batch: int
    law: Law | None
    edges: tuple[int, ...]
    delay: int = 0


class StepValues(NamedTuple):
    """Traced values that all runs share.

    Attributes
    ----------
    parameters : dict
        Parameters of the problem.
    hyperparameters : dict
        Hyperparameters of the algorithm.
    embedding : Embedding
        Position of the samples in d dimensions.
    """

    parameters: Parameters
    hyperparameters: Parameters
    embedding: Embedding


class DirectSGD(Simulator):
    """Runs in d dimensions.

    The inputs are isotropic in each covariance block. The signals may therefore lie along its first
    K axes, and the rest of the rows along the next p: any other position is a rotation of this one.
    A coordinatewise update does not commute with rotations. For such an update every run draws a
    random orthonormal frame in each block; with ``axes`` only that of the rest of the rows.

    Parameters
    ----------
    problem : Problem
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    setting : RunSetting
        Start, dimension and covariance blocks of the runs, precision, and seed of random frames.
    delay : int, default 0
        Number of steps by which gradients are late. The state of a run then contains the weights of
        as many earlier steps.
    """

    divides_over_devices = True

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        setting: RunSetting[Start],
        delay: int = 0,
    ) -> None:
        start, block_sizes = setting.start, setting.block_sizes
        # Simulations need a constant integer (`OnePassSGD.counts`).
        assert isinstance(algorithm.batch, int)
        self.structure = problem.structure
        self.batch, self.delay = algorithm.batch, delay
        self.law = algorithm.law
        self.dtype = np.dtype(setting.dtype)
        cast = partial(np.asarray, dtype=self.dtype)
        self.parameters = jax.tree.map(
            cast, problem.parameters | {"frame": signal_frames(problem, block_sizes)}
        )
        self.algorithm = jax.tree.map(cast, algorithm.parameters)
        if algorithm.stepping is not None:
            self.moves_per_step = algorithm.stepping.moves
        self.dimension = setting.dimension
        # Before arrays of this dimension are made.
        check_resources(self, start.runs, 0.0)
        self.start: UpdateStart = update_start(algorithm.stepping, start, self.structure.trained)
        self.rows = np.concatenate(compressed_rows(problem, self.start, block_sizes), axis=-1)
        self.seed = setting.seed
        self.edges = (0, *np.cumsum(block_sizes).tolist())
        embedding = place_signals(problem, block_sizes)
        # The axes of the signals stay integers.
        self.embedding = Embedding(
            *(cast(leaf) if leaf.dtype.kind == "f" else leaf for leaf in embedding)
        )

    @property
    def has_random_frames(self) -> bool:
        """Whether every run has a frame of its own."""
        return self.law is not None and self.law.coordinatewise

    def initial(self, chosen: np.ndarray) -> Rows:
        p, sets = self.structure.width, count_row_sets(self.law)
        rows, runs = self.rows[chosen], len(chosen)
        n_rows = rows.shape[2]
        # The start contains the rows of the weights, or of all sets. Other sets start at 0.
        weights = np.zeros((runs, sets * p, self.dimension), self.dtype)
        head = np.zeros((runs, sets * self.structure.head_size), self.dtype)
        head[:, : self.start.a.shape[1]] = self.start.a[chosen]
        signals = None
        if self.has_random_frames:
            frame = np.asarray(self.parameters["frame"])
            along_axes = self.law is not None and self.law.axes
            arguments = (rows, chosen, frame, self.edges, self.seed, along_axes)
            random_rows, signal_rows = place_in_random_frames(*arguments)
            weights[:, :n_rows] = random_rows
            signals = jnp.asarray(signal_rows.astype(self.dtype))
        else:
            weights[:, :n_rows] = embed_rows(rows, self.edges)
        earlier = None
        if self.delay:
            # Before the first step the weights were those of the start.
            earlier = jnp.asarray(np.tile(weights, (1, self.delay, 1)))
            weights, head = np.tile(weights, (1, 2, 1)), np.tile(head, (1, 2 + self.delay))
        scalars = tuple(jnp.asarray(self.start.scalars[chosen].astype(self.dtype).T))
        # The squares of a gradient are proportional to the variance of a coordinate. A start gives
        # them in units of it.
        variances = np.asarray(self.embedding.scale) ** 2
        squares = tuple(
            jnp.asarray((square[..., None] * variances).astype(self.dtype))
            for square in self.start.squares[chosen].swapaxes(0, 1)
        )
        vectors = self.start.vectors[chosen].astype(self.dtype).swapaxes(0, 1)
        return Rows(
            jnp.asarray(weights),
            jnp.asarray(head),
            scalars,
            squares,
            signals,
            earlier,
            tuple(jnp.asarray(vector) for vector in vectors),
        )

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        return _advance_weights(
            StepOptions(self.structure, self.batch, self.law, self.edges, self.delay),
            observation.observe,
            StepValues(self.parameters, self.algorithm, self.embedding),
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Rows) -> dict[str, np.ndarray]:
        # In float64 on the host: sums over d in float32 would lose digits.
        as_float64 = partial(np.asarray, dtype=np.float64)
        rows, head, frame = map(as_float64, (state.rows, state.head, self.parameters["frame"]))
        signals = None if state.signals is None else as_float64(state.signals)
        sets = count_row_sets(self.law)
        rows = rows[:, : sets * self.structure.width]
        head = head[:, : sets * self.structure.head_size]
        # Rows of all sets; those of the weights are the first p.
        M, Q = direct_overlaps(np, self.structure.signals, self.edges, frame, rows, signals)
        p = self.structure.width
        values = {"M": M[..., :p, :], "Q": Q[..., :p, :p], "a": head[:, : self.structure.head_size]}
        if rows.shape[1] > p:
            values |= {"rows_M": M, "rows_Q": Q, "rows_a": head}
        if state.scalars:
            scalars = [as_float64(scalar) for scalar in state.scalars]
            values["update_scalars"] = np.stack(scalars, axis=-1)
        if state.squares:
            # The mean over coordinates in units of their variances, the inverse of `initial`.
            weights = as_float64(self.embedding.scale) ** -2 / self.dimension
            squares = [as_float64(square) @ weights for square in state.squares]
            values["update_squares"] = np.stack(squares, axis=1)
        if state.vectors:
            values["update_vectors"] = np.stack([as_float64(v) for v in state.vectors], axis=1)
        return values

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        p, law = self.structure.width, self.law
        # Rows before and after a step, and inputs with temporaries, in vectors of d coordinates.
        vectors = 2 * (count_row_sets(law) + self.delay) * p + 3 * self.batch
        if law is not None:
            # Averages of squares, noise of the update, and the signals of a random frame.
            vectors += 2 * p * len(law.squares) + 2 * p * law.noise
            vectors += 2 * self.structure.signals * law.coordinatewise
            # Gradients of each sample.
            vectors += 2 * self.batch * p if law.rereads else 0
        bytes_per_run = self.dimension * vectors * self.dtype.itemsize
        size = (self.batch, p, self.dimension)
        return Resources(bytes_per_run, max(1, GROUP_BYTES // bytes_per_run), size)


def _random_frames(seed: int, run: int, edges: tuple[int, ...], largest: int) -> list[np.ndarray]:
    """Orthonormal rows in random directions, for each block: `largest`, or as many as fit."""
    frames = []
    for block, (low, high) in enumerate(pairwise(edges)):
        generator = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(run, block, FRAMES))
        )
        count = min(largest, high - low)
        # The orthogonal factor of a Gaussian matrix spans a uniformly random subspace.
        gaussian = generator.standard_normal((high - low, count))
        frames.append(np.linalg.qr(gaussian)[0].T if count else np.zeros((0, high - low)))
    return frames


def place_in_random_frames(
    rows: np.ndarray,
    chosen: np.ndarray,
    frame: np.ndarray,
    edges: tuple[int, ...],
    seed: int,
    along_axes: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (runs, rows, d) and signals (runs, K, d), along random directions in each block.

    With `along_axes` the signals are along coordinate axes.
    """
    runs, n_rows, k = len(chosen), rows.shape[2], frame.shape[1]
    weights, signals = np.zeros((runs, n_rows, edges[-1])), np.zeros((runs, k, edges[-1]))
    for position, run in enumerate(chosen):
        frames = _random_frames(seed, int(run), edges, rows.shape[-1])
        if along_axes:
            frames = [_along_axes(axes, k) for axes in frames]
        for block, axes in enumerate(frames):
            coordinates = slice(edges[block], edges[block + 1])
            # A small block has fewer axes than [T | L] has columns.
            block_rows = rows[position, block, :, : len(axes)]
            weights[position, :, coordinates] = block_rows @ axes
            count = min(k, len(axes))
            signals[position, :, coordinates] = frame[block][:, :count] @ axes[:count]
    return weights, signals


def _along_axes(frame: np.ndarray, signals: int) -> np.ndarray:
    """A frame whose first rows are the first coordinate axes; the others are random beyond them."""
    count = min(signals, len(frame))
    rows = np.zeros_like(frame)
    rows[:count, :count] = np.eye(count)
    if len(frame) > count and frame.shape[1] > len(frame):
        # Without its first columns a random frame has random directions in the other coordinates.
        rows[count:, count:] = np.linalg.qr(frame[count:, count:].T)[0].T
    elif len(frame) > count:
        rows[count:, count:] = np.eye(len(frame) - count, frame.shape[1] - count)
    return rows


def embed_rows(rows: np.ndarray, edges: tuple[int, ...]) -> np.ndarray:
    """Rows (..., rows, d) from compressed rows (..., blocks, rows, K + p).

    They lie along the first axes of every block of coordinates; a small block has fewer axes.
    """
    weights = np.zeros((*rows.shape[:-3], rows.shape[-2], edges[-1]))
    for block, (low, high) in enumerate(pairwise(edges)):
        count = min(high - low, rows.shape[-1])
        weights[..., low : low + count] = rows[..., block, :, :count]
    return weights


def direct_overlaps(
    numpy: ModuleType,
    signals: int,
    edges: tuple[int, ...],
    frame: Float[Numeric, "blocks K K"],
    weights: Float[Numeric, "runs p d"],
    place_signals: Float[Numeric, "runs K d"] | None = None,
) -> tuple[Float[Numeric, "runs blocks p K"], Float[Numeric, "runs blocks p p"]]:
    """M and Q, block by block, of weights (..., p, d).

    Parameters
    ----------
    numpy : module
        NumPy or jax.numpy.
    signals : int
        Number of signals.
    edges : tuple of int
        First coordinates of the covariance blocks, and the dimension.
    frame : array, (blocks, K, K)
        Coordinates of the signals along the first axes of each block.
    weights : array, (..., p, d)
        First-layer weights.
    place_signals : array, (..., K, d), optional
        The signals in d dimensions, if they do not lie along the first axes.
    """
    M, Q = [], []
    for block, (low, high) in enumerate(pairwise(edges)):
        block_weights = weights[..., low:high]
        if place_signals is not None:
            M.append(block_weights @ numpy.swapaxes(place_signals[..., low:high], -1, -2))
        else:
            # A small block has fewer coordinates than signals; the other columns are 0.
            M.append(block_weights[..., :signals] @ frame[block][:, : high - low].T)
        Q.append(block_weights @ numpy.swapaxes(block_weights, -1, -2))
    return numpy.stack(M, axis=-3), numpy.stack(Q, axis=-3)


# ---- steps


@partial(jax.jit, static_argnums=(0, 1))
def _advance_weights(
    options: StepOptions,
    observe: Observe | None,
    values: StepValues,
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `since` to step `end`."""
    structure, batch, law, edges, delay = options
    parameters, hyperparameters, embedding = values
    sample, dimension = structure.sample, embedding.scale.shape[-1]
    dtype = embedding.scale.dtype
    p = structure.width

    def advance_run(
        index: IntScalar, state: Rows, key: RandomKey, records: PyTree
    ) -> tuple[Rows, PyTree]:
        """One step of one run."""
        # The key depends on the run and the step only: pieces may end anywhere.
        # Inputs and named draws have separate streams.
        data_key, noise_key = jax.random.split(step_key(key, index))
        normals = jax.random.normal(data_key, (batch, *sample.tokens.shape, dimension), dtype)
        alpha = alpha_of_steps(index, batch, dimension)
        # Schedules are evaluated in float64; the step has the precision of the simulation.
        current, rates = as_dtype(values_at((parameters, hyperparameters), alpha), dtype)
        draws = sample.draw(
            current, jax.random.normal(noise_key, (batch, sample.normals_per_sample), dtype)
        )
        position = run_embedding(embedding, state)
        clean_x = x = inputs_in_space(sample, current, normals, draws, position)
        if sample.noisy_inputs:
            # The student sees the noisy inputs, and the labels are those of the clean ones.
            noise = jax.random.normal(jax.random.fold_in(data_key, 1), x.shape, dtype)
            x = x + jnp.sqrt(current["input_noise"]) * noise
        arguments = (x, sample.loss_argument(draws), position)
        if delay:
            batch_source = DirectBatch(structure, current, *arguments, clean=clean_x, edges=edges)
            stride = _stride(structure, (current, rates), rates["lr"] / dimension)
            state = delayed_step(state, batch_source, stride, delay, index)
        else:
            state = direct_step(
                structure,
                (current, rates),
                rates["lr"] / dimension,
                state,
                *arguments,
                law,
                index,
                kicks=draw_kicks(law, noise_key, (p, dimension), dtype),
                clean=clean_x,
                edges=edges,
            )
        if observe is not None:
            M, Q = direct_overlaps(
                jnp, structure.signals, edges, parameters["frame"], state.rows[:p], state.signals
            )
            overlaps = {"M": M, "Q": Q, "a": state.head[: structure.head_size]}
            records = observe(shared, records, index + 1, overlaps)
        return state, records

    def make_step(
        index: IntScalar, carry: tuple[Rows, Int[Numeric, " runs"], PyTree]
    ) -> tuple[Rows, Int[Numeric, " runs"], PyTree]:
        """One step of all runs."""
        state, last_finite, records = carry
        state, records = jax.vmap(partial(advance_run, index))(state, keys, records)
        limit = jnp.asarray(LARGEST if dtype == jnp.float64 else LARGEST_FLOAT32, dtype)
        # The signals and the start lie along the first few coordinates. They are cheap to check,
        # and a diverging run becomes large there. In a random frame all coordinates are checked.
        has_frame = state.signals is not None
        checked = state.rows if has_frame else state.rows[:, :, embedding.axes]
        # A comparison is false for NaN.
        is_finite = jnp.all(jnp.abs(checked) < limit, axis=(1, 2))
        is_finite &= jnp.all(jnp.abs(state.head) < limit, axis=1)
        return state, jnp.where(is_finite, index + 1, last_finite), records

    carry = (state, jnp.broadcast_to(since, keys.shape), records)
    return jax.lax.fori_loop(since, end, make_step, carry)


def run_embedding(embedding: Embedding, state: Rows) -> Embedding:
    """The position of the samples for one run.

    With a frame of its own, a run has components of its signals along all axes.
    """
    if state.signals is None:
        return embedding
    axes = jnp.arange(embedding.scale.shape[0])
    return Embedding(embedding.scale, axes, jnp.asarray(state.signals))


def draw_kicks(
    law: Law | None, key: RandomKey, shape: tuple[int, int], dtype: DType
) -> Float[Array, "*p d"] | None:
    """Normals of the update's own noise, or the order of its coordinates; None without draws."""
    if law is not None and law.selects:
        return draw_order(jax.random.fold_in(key, 1), shape[1], dtype)
    if law is None or not law.noise:
        return None
    return jax.random.normal(jax.random.fold_in(key, 1), shape, dtype)


@dataclass(frozen=True, eq=False)
class DirectBatch(GradientSource):
    """A batch in d dimensions.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    parameters : dict
        Parameters of the problem at this step.
    x : array, (inputs, d)
        The inputs that the student sees.
    loss_argument : pytree
        Fourth arguments of the loss.
    embedding : Embedding
        Position of the signals.
    kicks : array, (p, d) or (d,), optional
        The update's own noise, or the order in which it selects coordinates.
    clean : array, (inputs, d), optional
        The inputs without noise, whose signals the labels read. Defaults to x.
    edges : tuple of int, default ()
        First coordinates of the covariance blocks, and the dimension; only needed by functions that
        read overlaps by block.
    """

    structure: Structure
    parameters: Parameters
    x: Float[Numeric, "inputs d"]
    loss_argument: PyTree
    embedding: Embedding
    kicks: Numeric | None = None
    clean: Numeric | None = None
    edges: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.x.shape[0] // self.structure.sample.tokens.inputs_per_sample

    def _moves(
        self, weights: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric, Numeric, Numeric | None]:
        """Shifted weights, and the moves h, head and coefficients of the samples there."""
        structure, parameters, x = self.structure, self.parameters, self.x
        axes, axis_signals = self.embedding.axes, self.embedding.signals
        fields = x @ weights.T
        if shift is not None:
            # Added to the fields, so that a small shift is not lost to rounding.
            fields, weights = fields + x @ shift.T, weights + shift
        head = head if head_shift is None else head + head_shift
        current, lengths = parameters, None
        if structure.loss.reads_overlaps:
            # The signals vanish outside of these axes.
            Q, M = weights @ weights.T, weights[:, axes] @ axis_signals.T
            overlaps = LossOverlaps(Q, M, (axis_signals @ axis_signals.T).astype(Q.dtype))
            if structure.loss.reads_blocks:
                overlaps = overlaps._replace(blocks=self._block_overlaps(weights))
            current = {**parameters, "overlaps": overlaps}
        if structure.loss.reads_lengths:
            # Gram matrix X X^T/d of the inputs of each sample.
            tokens = x.reshape(self.samples, -1, x.shape[1])
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / x.shape[1]
        # Labels read the inputs without noise.
        clean_x = x if self.clean is None else self.clean
        signals = clean_x[:, axes] @ axis_signals.T
        moves = sample_moves(structure, current, fields, signals, head, self.loss_argument, lengths)
        return weights, moves.h, moves.head, moves.coefficients

    def _signals_in_space(self, dtype: DType) -> Float[Array, "K d"]:
        """The signals in d dimensions."""
        empty = jnp.zeros((self.embedding.signals.shape[0], self.x.shape[1]), dtype)
        return empty.at[:, self.embedding.axes].set(self.embedding.signals.astype(dtype))

    def _block_overlaps(self, weights: Numeric) -> BlockOverlaps:
        """Q, M and P of the coordinates of each covariance block."""
        signals, overlaps = self._signals_in_space(weights.dtype), []
        for low, high in pairwise(self.edges):
            W, S = weights[:, low:high], signals[:, low:high]
            overlaps.append((W @ W.T, W @ S.T, S @ S.T))
        Q, M, P = (jnp.stack(blocks) for blocks in zip(*overlaps, strict=True))
        eigenvalues = input_covariance.eigenvalues(self.parameters).astype(weights.dtype)
        fractions = input_covariance.fractions(self.parameters).astype(weights.dtype)
        return BlockOverlaps(Q, M, P, eigenvalues, fractions)

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        blocks = self._block_overlaps(rows)
        # Overlaps of full rows are sums over the blocks of coordinates.
        Q, M, P = (jnp.sum(overlaps, axis=0) for overlaps in (blocks.Q, blocks.M, blocks.P))
        return LossOverlaps(Q, M, P, blocks=blocks)

    def _combine_rows(self, coefficients: Numeric, weights: Numeric) -> Array:
        """A W + B W* from the coefficients [A | B], (..., [blocks,] p, p + K)."""
        p = len(weights)
        if self.structure.loss.moves_by_block:
            rows = jnp.concatenate([weights, self._signals_in_space(weights.dtype)])
            # Each block of coordinates has its own coefficients.
            moves = [
                coefficients[..., block, :, :] @ rows[:, low:high]
                for block, (low, high) in enumerate(pairwise(self.edges))
            ]
            return jnp.concatenate(moves, axis=-1)
        # The signals are 0 outside of a few axes, and are not expanded to d coordinates.
        along_signals = coefficients[..., p:] @ self.embedding.signals.astype(weights.dtype)
        along_rows = jnp.asarray(coefficients[..., :p] @ weights)
        return along_rows.at[..., self.embedding.axes].add(along_signals)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        weights, h, head_gradient, coefficients = self._moves(rows, head, shift, head_shift)
        # dloss/dW = h^T X per sample: the chain rule for the fields X W^T.
        gradient = h.T @ self.x / self.samples
        if coefficients is not None:
            gradient = gradient + self._combine_rows(jnp.mean(coefficients, axis=0), weights)
        return gradient, jnp.mean(head_gradient, axis=0)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        weights, h, head_gradient, coefficients = self._moves(rows, head, shift, head_shift)
        h_by_sample = h.reshape(self.samples, -1, h.shape[1])
        x_by_sample = self.x.reshape(self.samples, -1, self.x.shape[1])
        # The sum over t runs over the tokens of a sample.
        # h^T X of each sample by itself.
        gradients = jnp.einsum("btp,btd->bpd", h_by_sample, x_by_sample)
        if coefficients is not None:
            gradients = gradients + self._combine_rows(coefficients, weights)
        return gradients, head_gradient

    def noise(self) -> Numeric:
        # Only the step of an update with noise calls this, and then there are kicks.
        assert self.kicks is not None
        return self.kicks

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        assert self.kicks is not None
        return select_coordinates(self.kicks, rows, share, count)


def direct_step(
    structure: Structure,
    values: tuple[Parameters, Parameters],
    rate: Scalar,
    state: Rows,
    x: Float[Numeric, "inputs d"],
    loss_argument: PyTree,
    embedding: Embedding,
    law: Law | None = None,
    index: IntScalar = 0,
    *,
    kicks: Numeric | None = None,
    clean: Numeric | None = None,
    edges: tuple[int, ...] = (),
) -> Rows:
    """One step in d dimensions.

    Parameters
    ----------
    structure : Structure
        Static description of the problem.
    values : tuple
        Parameters of the problem and hyperparameters of the algorithm at this step.
    rate : float
        The step size lr/D.
    state : Rows
        Rows of all sets, (sets p, d), and the other variables of the run.
    x : array, (inputs, d)
        The inputs that the student sees.
    loss_argument : pytree
        Fourth arguments of the loss.
    embedding : Embedding
        Position of the signals.
    law : Law, optional
        Law of the update. Defaults to plain SGD.
    index : int, default 0
        Index of the step.
    kicks : array, (p, d), optional
        The update's own noise.
    clean : array, (inputs, d), optional
        The inputs without noise. Defaults to x.
    edges : tuple of int, default ()
        First coordinates of the covariance blocks, and the dimension.
    """
    parameters, hyperparameters = values
    stride = _stride(structure, values, rate)
    batch = DirectBatch(structure, parameters, x, loss_argument, embedding, kicks, clean, edges)
    return take_step(law, hyperparameters, state, batch, stride, x.shape[1], index)


def _stride(structure: Structure, values: tuple[Parameters, Parameters], rate: Scalar) -> Stride:
    """The parameters of a plain step of this size."""
    parameters, hyperparameters = values
    return Stride(
        rate,
        hyperparameters["head_rate"],
        parameters["weight_decay"],
        structure,
        parameters.get("head_decay"),
    )


def delayed_step(
    state: Rows, source: DirectBatch, stride: Stride, delay: int, index: IntScalar
) -> Rows:
    """One step along the gradient at the weights of m = `delay` steps ago.

    The rows are those of W_n and of W_(n-m). A ring has the weights between: W_n is written to
    position n modulo m, and W_(n+1-m) is read afterwards. A ring that is read before it is written
    would be copied in every step.
    """
    p, n = stride.structure.width, stride.structure.head_size
    assert state.earlier is not None
    W, old_W = state.rows[:p], state.rows[p:]
    a, old_a, heads = state.head[:n], state.head[n : 2 * n], state.head[2 * n :]
    gradients = source.mean(old_W, old_a, None, None)
    # Weight decay is part of the gradient.
    rows, head = stride.move(old_W, old_a, gradients)
    moved, moved_head = W + (rows - old_W), a + (head - old_a)
    now, following = index % delay, (index + 1) % delay
    ring = jax.lax.dynamic_update_slice_in_dim(state.earlier, W, now * p, 0)
    ring_head = jax.lax.dynamic_update_slice_in_dim(heads, a, now * n, 0)
    next_W = jax.lax.dynamic_slice_in_dim(ring, following * p, p)
    next_a = jax.lax.dynamic_slice_in_dim(ring_head, following * n, n)
    return state._replace(
        rows=jnp.concatenate([moved, next_W]),
        head=jnp.concatenate([moved_head, next_a, ring_head]),
        earlier=ring,
    )
