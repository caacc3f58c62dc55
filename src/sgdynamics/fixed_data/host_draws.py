"""Random numbers that DMFT draws on the host: quasi-random points, visits, perturbations."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special
from scipy.stats import qmc

from sgdynamics.algorithms.epochs import Visits, sequences
from sgdynamics.base.random import run_keys
from sgdynamics.fixed_data.paths import QUASI_DIRECTIONS
from sgdynamics.fixed_data.setup import InitialDraws, Setup
from sgdynamics.samples.sample import all_normal

MAX_DIMENSIONS = 1024  # of a quasi-random point
EPOCHS_PER_DRAW = 4  # epochs whose visits are drawn together
# Smallest number of paths per vector of the start for which the vectors are made uncorrelated.
PATHS_PER_VECTOR = 4


@dataclass(frozen=True)
class Sampling:
    """Monte Carlo sampling of the effective process.

    Every replicate has `paths` paths, of which a solution with a `reduction` uses the first
    paths/reduction. `seed` determines all random numbers.
    """

    paths: int
    replicates: int
    seed: int = 0
    reduction: int = 1

    @property
    def used_paths(self) -> int:
        """Paths per replicate."""
        return self.paths // self.reduction


@dataclass(frozen=True)
class DrawLayout:
    """The random numbers that a form of DMFT needs (`HostDraws`)."""

    blocks: int  # covariance blocks in which a path has data along the signals and the initial rows
    quasi_random: bool  # whether the first directions of gradients have quasi-random normals
    order: str  # order of the samples in an epoch; empty without epochs
    cells: int  # cells per epoch
    sets: int  # replicates that advance together


class HostDraws:
    """Scrambled Sobol points for the start and the first directions, visits, and perturbations."""

    def __init__(self, setup: Setup, sampling: Sampling, layout: DrawLayout) -> None:
        self.setup, self.sampling, self.layout = setup, sampling, layout
        self.paths = sampling.used_paths
        sample = setup.structure.sample
        self.tokens, self.draws = sample.tokens.inputs_per_sample, sample.normals_per_sample
        self.initial_count = layout.blocks * setup.initial_directions * self.tokens + self.draws
        kinds = 2 if setup.thermal else 1  # normals of gradients, and of white noise
        # Quasi-random normals overlap less than by chance, and the many directions of cells have
        # many overlaps (measured: a bias of 2% in a risk at 512 paths per set; none with random
        # normals).
        directions = 0
        if layout.quasi_random and not setup.in_cells:
            per_direction = layout.blocks * self.tokens * kinds
            free = max(0, MAX_DIMENSIONS - self.initial_count - 1)
            directions = min(QUASI_DIRECTIONS, free // per_direction)
        self.direction_shape = (directions * kinds, layout.blocks)
        dimensions = self.initial_count + 1 + directions * kinds * layout.blocks * self.tokens
        points = [
            qmc.Sobol(dimensions, rng=self._generator(replicate, 1)).random(self.paths).T
            for replicate in range(sampling.replicates)
        ]
        # The points are multiples of 2^-30: the centre of each cell is never 0 or 1.
        self.uniform = np.stack(points) + 2.0**-31
        self._visits: tuple[int, list[Visits]] = (-1, [])

    def _generator(self, replicate: int, *key: int) -> np.random.Generator:
        """An independent generator for each replicate and purpose."""
        sequence = np.random.SeedSequence(self.sampling.seed, spawn_key=(replicate, *key))
        return np.random.default_rng(sequence)

    def initial(self) -> InitialDraws:
        """The draws before the first step, with a leading axis of replicates."""
        uniform = self.uniform[:, : self.initial_count + 1]
        normals = special.ndtri(uniform[:, :-1])
        # In the limit the fields of signals, of the start and normal draws are uncorrelated; the
        # paths are transformed so that they are exactly so. Discrete draws are functions of the
        # last vectors, which stay unchanged.
        is_normal = all_normal(self.setup.structure.sample)
        count = normals.shape[1] - (0 if is_normal else self.draws)
        if PATHS_PER_VECTOR * count <= self.paths:
            normals[:, :count] = decorrelate(normals[:, :count])
        shape = (self.layout.blocks, self.setup.initial_directions)
        noise = np.moveaxis(normals[:, -self.draws :], 1, 2)
        return InitialDraws(
            self._arrange_by_path(normals[:, : -self.draws], shape), noise, uniform[:, -1]
        )

    def direction_uniforms(self) -> np.ndarray:
        """Uniforms (replicate, direction, blocks, inputs) of the first directions."""
        return self._arrange_by_path(
            self.uniform[:, self.initial_count + 1 :], self.direction_shape
        )

    def _arrange_by_path(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """(replicate, shape x tokens, n) as (replicate, *shape, inputs), token by token."""
        split = values.reshape(self.sampling.replicates, *shape, self.tokens, self.paths)
        inputs = self.paths * self.tokens
        return np.swapaxes(split, -1, -2).reshape(*split.shape[:-2], inputs)

    def visits(self, first: int, end: int) -> tuple[list[Visits] | None, int]:
        """Visits of the paths from cell `first` on, per group of replicates, and their last cell.

        Every replicate has a generator for each epoch, so that an epoch visits its paths in the
        same order for any number of cells: the effect of that number is then measured with little
        noise.
        """
        order, cells = self.layout.order, self.layout.cells
        if not order:
            return None, end
        first_epoch = first // cells // EPOCHS_PER_DRAW * EPOCHS_PER_DRAW
        if self._visits[0] != first_epoch:
            # One epoch more, because the last cell of an epoch prepares the next one.
            offsets = range(EPOCHS_PER_DRAW + 1)
            epochs = [0 if order == "fixed" else first_epoch + offset for offset in offsets]
            orders = np.array(
                [
                    [
                        sequences(order, self.paths, self._generator(replicate, 3, epoch))
                        for epoch in epochs
                    ]
                    for replicate in range(self.sampling.replicates)
                ],
                dtype=np.int32,
            )
            sets = self.layout.sets
            groups = [
                Visits(orders[row : row + sets], np.int64(first_epoch), np.int64(cells))
                for row in range(0, self.sampling.replicates, sets)
            ]
            self._visits = (first_epoch, groups)
        return self._visits[1], min(end, (first_epoch + EPOCHS_PER_DRAW) * cells)

    def perturbation_normals(self) -> np.ndarray:
        """Normals (replicate, unit, blocks, inputs) of a perturbed direction, always the same."""
        structure = self.setup.structure
        shape = (self.sampling.paths, structure.width, structure.blocks, self.tokens)
        normals = np.stack(
            [
                self._generator(replicate, 2).standard_normal(shape)[: self.paths]
                for replicate in range(self.sampling.replicates)
            ]
        )
        normals = np.moveaxis(normals, 1, -2)
        return normals.reshape(*normals.shape[:-2], -1)


def counters_of(sampling: Sampling) -> np.ndarray:
    """First counters of the random numbers of each replicate, apart from those of simulations."""
    keys = run_keys(sampling.seed, np.arange(sampling.replicates) + (1 << 20))
    bits = jax.vmap(lambda key: jax.random.bits(key, (3,), dtype=jnp.uint64))
    return np.asarray(bits(keys))


def decorrelate(vectors: np.ndarray) -> np.ndarray:
    """The nearest vectors (..., count, n) with V V^T/n = I: (V V^T/n)^-1/2 V."""
    covariance = np.einsum("...kn,...ln->...kl", vectors, vectors) / vectors.shape[-1]
    values, basis = np.linalg.eigh(covariance)
    return np.einsum(
        "...ki,...i,...li,...ln->...kn", basis, values**-0.5, basis, vectors, optimize=True
    )
