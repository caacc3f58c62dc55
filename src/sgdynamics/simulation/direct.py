"""One-pass SGD itself, in d dimensions, from a start with the given overlaps: what the exact chain is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import GradientSource, Rows
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.update import Law, count_row_sets
from sgdynamics.base.arrays import IntScalar, Numeric, PyTree, RandomKey, RandomKeys, Scalar
from sgdynamics.base.controls import alpha_of_steps, values_at
from sgdynamics.base.random import step_key
from sgdynamics.problems.frames import compressed_rows, place_signals, signal_frames
from sgdynamics.problems.moves import BlockOverlaps, LossOverlaps
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance
from sgdynamics.samples.inputs import Embedding, inputs_in_space
from sgdynamics.samples.sample import as_dtype
from sgdynamics.simulation.compressed import sample_moves
from sgdynamics.simulation.exact import GROUP_BYTES
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
    check_resources,
)

FRAMES = 71  # marks the random numbers of frames


class DirectSGD(Simulator):
    """Runs in d dimensions. The data are isotropic in each covariance block, so the signals may lie along its first K axes and
    the rest of the rows along the next p: any other position is a rotation of this one. A coordinatewise update is not the same after a
    rotation: for it every run draws a random orthonormal frame in each block."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        dtype: str = "float64",
        seed: int = 0,
    ) -> None:
        self.structure = problem.structure
        self.batch = algorithm.batch
        self.law = algorithm.law
        self.dtype = np.dtype(dtype)
        cast = partial(np.asarray, dtype=self.dtype)
        self.parameters = jax.tree.map(
            cast, problem.parameters | {"frame": signal_frames(problem, sizes)}
        )
        self.algorithm = jax.tree.map(cast, algorithm.parameters)
        if algorithm.stepping is not None:
            self.moves_per_step = algorithm.stepping.moves
        self.dimension = dimension
        check_resources(self, begin.runs, 0.0)  # before arrays of this dimension are made
        self.begin = update_start(algorithm.stepping, begin)
        self.rows = np.concatenate(compressed_rows(problem, self.begin, sizes), axis=-1)
        self.seed = seed
        self.edges = (0, *np.cumsum(sizes).tolist())  # of the blocks
        self.embedding = Embedding(
            *(
                cast(part) if part.dtype.kind == "f" else part
                for part in place_signals(problem, sizes)
            )
        )

    @property
    def has_random_frames(self) -> bool:
        """Whether every run has a frame of its own."""
        return self.law is not None and self.law.coordinatewise

    def initial(self, chosen: np.ndarray) -> Rows:
        p, sets = self.structure.width, count_row_sets(self.law)
        rows, runs = self.rows[chosen], len(chosen)
        weights = np.zeros(
            (runs, sets * p, self.dimension), self.dtype
        )  # rows that are not given are 0
        head = np.zeros((runs, (sets - 1) * p + self.structure.head_size), self.dtype)
        head[:, : self.begin.a.shape[1]] = self.begin.a[chosen]
        signals = None
        if self.has_random_frames:
            signals = np.zeros((runs, self.structure.signals, self.dimension), self.dtype)
            frame = np.asarray(self.parameters["frame"])
            for run, number in enumerate(chosen):
                for low, axes in _random_frames(self.seed, int(number), self.edges, rows.shape[-1]):
                    block = self.edges.index(low)
                    there = slice(low, low + axes.shape[1])
                    weights[run, : rows.shape[2], there] = rows[run, block, :, : len(axes)] @ axes
                    count = min(self.structure.signals, len(axes))
                    signals[run, :, there] = frame[block][:, :count] @ axes[:count]
        else:
            weights[:, : rows.shape[2]] = embed_rows(rows, self.edges)
        scalars = tuple(jnp.asarray(self.begin.scalars[chosen].astype(self.dtype).T))
        variances = np.asarray(self.embedding.scale) ** 2
        squares = tuple(
            jnp.asarray((one[..., None] * variances).astype(self.dtype))
            for one in self.begin.squares[chosen].swapaxes(0, 1)
        )
        placed_signals = None if signals is None else jnp.asarray(signals)
        return Rows(jnp.asarray(weights), jnp.asarray(head), scalars, squares, placed_signals)

    def advance(
        self,
        state: Rows,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        numbers = (self.parameters, self.algorithm, self.embedding)
        plan = (self.structure, self.batch, self.law, self.edges)
        return _advance_weights(
            plan,
            observation.observe,
            numbers,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Rows) -> dict[str, Any]:
        rows, head = (np.asarray(part, dtype=np.float64) for part in state[:2])
        frame = np.asarray(self.parameters["frame"], dtype=np.float64)
        signals = None if state.signals is None else np.asarray(state.signals, dtype=np.float64)
        M, Q = direct_overlaps(np, self.structure.signals, self.edges, frame, rows, signals)
        p = self.structure.width
        found = {"M": M[..., :p, :], "Q": Q[..., :p, :p], "a": head[:, : self.structure.head_size]}
        if rows.shape[1] > p:
            found |= {"rows_M": M, "rows_Q": Q, "rows_a": head}
        if state.scalars:
            found["update_scalars"] = np.stack(
                [np.asarray(one, dtype=np.float64) for one in state.scalars], axis=-1
            )
        if state.squares:
            weights = np.asarray(self.embedding.scale, dtype=np.float64) ** -2 / self.dimension
            found["update_squares"] = np.stack(
                [np.asarray(one, dtype=np.float64) @ weights for one in state.squares], axis=1
            )
        return found

    @property
    def grain(self) -> int:
        return 1

    def largest_group(self) -> int:
        return max(1, GROUP_BYTES // self.bytes_per_run())

    @property
    def size(self) -> tuple[int, ...]:
        return self.batch, self.structure.width, self.dimension

    def bytes_per_run(self, steps: float = 0.0) -> int:
        p, law = self.structure.width, self.law
        more = (
            0
            if law is None
            else 2 * p * len(law.squares)
            + 2 * p * law.noise
            + 2 * self.structure.signals * law.coordinatewise
        )
        samples = (
            2 * self.batch * p if law is not None and law.rereads else 0
        )  # gradients sample by sample
        return (
            self.dimension
            * (2 * count_row_sets(law) * p + 3 * self.batch + more + samples)
            * self.dtype.itemsize
        )


def _random_frames(
    seed: int, run: int, edges: tuple[int, ...], most: int
) -> list[tuple[int, np.ndarray]]:
    """The first coordinate of each block, and orthonormal rows (as many as are needed, or there is room for) in random directions."""
    found = []
    for block, (low, high) in enumerate(pairwise(edges)):
        generator = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(run, block, FRAMES))
        )
        count = min(most, high - low)
        found.append(
            (
                low,
                np.linalg.qr(generator.standard_normal((high - low, count)))[0].T
                if count
                else np.zeros((0, 0)),
            )
        )
    return found


def embed_rows(rows: np.ndarray, edges: tuple[int, ...]) -> np.ndarray:
    """Rows (..., blocks, p, K + p) along the first axes of every block of d coordinates; a small block has fewer."""
    weights = np.zeros((*rows.shape[:-3], rows.shape[-2], edges[-1]))
    for block, (low, high) in enumerate(pairwise(edges)):
        there = min(high - low, rows.shape[-1])
        weights[..., low : low + there] = rows[..., block, :, :there]
    return weights


def direct_overlaps(
    numpy: ModuleType,
    signals: int,
    edges: tuple[int, ...],
    frame: Float[Numeric, "blocks K K"],
    weights: Float[Numeric, "runs p d"],
    place_signals: Float[Numeric, "runs K d"] | None = None,
) -> tuple[Float[Numeric, "runs blocks p K"], Float[Numeric, "runs blocks p p"]]:
    """M and Q, block by block, of weights (..., p, d), in NumPy or jax.numpy; `placed` are the signals, if not along the first axes."""
    M, Q = [], []
    for block, (low, high) in enumerate(pairwise(edges)):
        part = weights[..., low:high]
        if place_signals is not None:
            M.append(part @ numpy.swapaxes(place_signals[..., low:high], -1, -2))
        else:
            M.append(part[..., :signals] @ frame[block][:, : high - low].T)
        Q.append(part @ numpy.swapaxes(part, -1, -2))
    return numpy.stack(M, axis=-3), numpy.stack(Q, axis=-3)


@partial(jax.jit, static_argnums=(0, 1))
def _advance_weights(
    plan: tuple[Any, ...],
    see: Observe | None,
    numbers: tuple[Any, ...],
    state: Rows,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> tuple[Rows, Int[Numeric, " runs"], Any]:
    (structure, batch, law, edges), (parameters, algorithm, place) = plan, numbers
    sample, dimension, dtype = structure.sample, place.scale.shape[-1], place.scale.dtype

    def one(number: IntScalar, state: Rows, key: RandomKey, watched: PyTree) -> tuple[Rows, Any]:
        data_key, noise_key = jax.random.split(step_key(key, number))
        normals = jax.random.normal(data_key, (batch, *sample.tokens.shape, dimension), dtype)
        now, rates = as_dtype(
            values_at((parameters, algorithm), alpha_of_steps(number, batch, dimension)), dtype
        )
        draws = sample.draw(
            now, jax.random.normal(noise_key, (batch, sample.normals_per_sample), dtype)
        )
        here = run_embedding(place, state)
        x = inputs_in_space(sample, now, normals, draws, here)
        seen = x
        if sample.noisy_inputs:
            seen = x + jnp.sqrt(now["input_noise"]) * jax.random.normal(
                jax.random.fold_in(data_key, 1), x.shape, dtype
            )
        more = {
            "kicks": draw_kicks(law, noise_key, (structure.width, dimension), dtype),
            "clean": x,
            "edges": edges,
        }
        state = direct_step(
            structure,
            (now, rates),
            rates["lr"] / dimension,
            state,
            seen,
            sample.loss_argument(draws),
            here,
            law,
            number,
            **more,
        )
        if see is not None:
            M, Q = direct_overlaps(
                jnp,
                structure.signals,
                edges,
                parameters["frame"],
                state.rows[: structure.width],
                state.signals,
            )
            watched = see(
                given, watched, number + 1, {"M": M, "Q": Q, "a": state.head[: structure.head_size]}
            )
        return state, watched

    def step(
        number: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[Rows, Int[Numeric, " runs"], Any]:
        state, good, seen = carry
        state, seen = jax.vmap(partial(one, number))(state, keys, seen)
        # the first few coordinates carry the signals and the start: cheap to watch, and a diverging run blows up there
        limit = jnp.asarray(LARGEST if dtype == jnp.float64 else 1e15, dtype)
        watched = (
            jnp.abs(state.rows if state.signals is not None else state.rows[:, :, place.axes])
            < limit
        )
        fine = jnp.all(watched, axis=(1, 2)) & jnp.all(jnp.abs(state.head) < limit, axis=1)
        return state, jnp.where(fine, number + 1, good), seen

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), seen))


def run_embedding(place: Embedding, state: Rows) -> Embedding:
    """Where the samples of one run lie: a run that has its signals in a frame of its own has coordinates of them along all axes."""
    return (
        place
        if state.signals is None
        else Embedding(place.scale, jnp.arange(place.scale.shape[0]), state.signals)
    )


def draw_kicks(law: Law | None, key: RandomKey, shape: tuple[int, int], dtype: Any) -> Any:
    """The rows of noise of an update's own; None where it has none."""
    return (
        jax.random.normal(jax.random.fold_in(key, 1), shape, dtype)
        if law is not None and law.noise
        else None
    )


@dataclass(frozen=True, eq=False)
class DirectBatch(GradientSource):
    """A batch of inputs x (inputs, d), what the loss takes beside them, and where the signals are."""

    structure: Structure
    parameters: Any
    x: Any
    given: Any
    embedding: Embedding
    kicks: Any = None
    clean: Any = None  # the inputs that the signals are of, where those in x have noise
    edges: tuple[
        int, ...
    ] = ()  # first coordinates of the covariance blocks, and d; read by functions of overlaps by block

    def _moves(
        self, weights: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any, Any, Any]:
        structure, parameters, x, place = self.structure, self.parameters, self.x, self.embedding
        fields = x @ weights.T
        if shift is not None:
            fields, weights = fields + x @ shift.T, weights + shift
        head = head if head_shift is None else head + head_shift
        reading, lengths = parameters, None
        if structure.loss.reads_overlaps:
            Q, M = weights @ weights.T, weights[:, place.axes] @ place.signals.T
            overlaps = LossOverlaps(Q, M, (place.signals @ place.signals.T).astype(Q.dtype))
            if structure.loss.reads_blocks:
                overlaps = overlaps._replace(blocks=self._block_overlaps(weights))
            reading = {**parameters, "overlaps": overlaps}
        if structure.loss.reads_lengths:
            tokens = x.reshape(self.samples, -1, x.shape[1])
            lengths = tokens @ jnp.swapaxes(tokens, 1, 2) / x.shape[1]
        signals = (x if self.clean is None else self.clean)[:, place.axes] @ place.signals.T
        return weights, *sample_moves(
            structure, reading, fields, signals, head, self.given, lengths
        )

    @property
    def samples(self) -> int:
        return self.x.shape[0] // self.structure.sample.tokens.inputs_per_sample

    def _signals_in_space(self, dtype: Any) -> Any:
        """The signals as rows of d coordinates."""
        empty = jnp.zeros((self.embedding.signals.shape[0], self.x.shape[1]), dtype)
        return empty.at[:, self.embedding.axes].set(self.embedding.signals.astype(dtype))

    def _block_overlaps(self, weights: Numeric) -> BlockOverlaps:
        """Q, M and P of the coordinates of each covariance block, one after the other."""
        signals, parts = self._signals_in_space(weights.dtype), []
        for low, high in pairwise(self.edges):
            W, S = weights[:, low:high], signals[:, low:high]
            parts.append((W @ W.T, W @ S.T, S @ S.T))
        laws = (
            law(self.parameters).astype(weights.dtype)
            for law in (input_covariance.eigenvalues, input_covariance.fractions)
        )
        return BlockOverlaps(*(jnp.stack(part) for part in zip(*parts, strict=True)), *laws)

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        blocks = self._block_overlaps(rows)
        return LossOverlaps(*(jnp.sum(part, axis=0) for part in blocks[:3]), blocks=blocks)

    def _pulled(self, pull: Numeric, weights: Numeric) -> Any:
        """What a loss of overlaps moves rows along, with coefficients (..., [blocks,] p, p + K) on rows and signals."""
        p = len(weights)
        if self.structure.loss.moves_by_block:
            every = jnp.concatenate([weights, self._signals_in_space(weights.dtype)])
            moved = [
                pull[..., block, :, :] @ every[:, low:high]
                for block, (low, high) in enumerate(pairwise(self.edges))
            ]
            return jnp.concatenate(moved, axis=-1)
        along = pull[..., p:] @ self.embedding.signals.astype(weights.dtype)
        return jnp.asarray(pull[..., :p] @ weights).at[..., self.embedding.axes].add(along)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        weights, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        found = h.T @ self.x / self.samples
        if pulls is not None:
            found = found + self._pulled(jnp.mean(pulls, axis=0), weights)
        return found, jnp.mean(head_gradient, axis=0)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        weights, h, head_gradient, pulls = self._moves(rows, head, shift, head_shift)
        found = jnp.einsum(
            "btp,btd->bpd", *(one.reshape(self.samples, -1, one.shape[1]) for one in (h, self.x))
        )
        return found if pulls is None else found + self._pulled(pulls, weights), head_gradient

    def noise(self) -> Any:
        return self.kicks


def direct_step(
    structure: Structure,
    numbers: tuple,
    rate: Scalar,
    state: Rows,
    x: Float[Numeric, "inputs d"],
    noise: PyTree,
    place: Embedding,
    law: Law | None = None,
    number: IntScalar = 0,
    *,
    kicks: Any = None,
    clean: Any = None,
    edges: tuple[int, ...] = (),
) -> Rows:
    """One step on weights (p, d) and head (p) from inputs x (inputs, d): plain SGD, or an update's (momentum: 2p for p)."""
    parameters, algorithm = numbers
    stride = Stride(rate, algorithm["head_rate"], parameters["weight_decay"], structure)
    ground = DirectBatch(structure, parameters, x, noise, place, kicks, clean, edges)
    return take_step(law, algorithm, state, ground, stride, x.shape[1], number)
