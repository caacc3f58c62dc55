"""Sweeps of wide networks: quasi-random neurons, memory for directions, and save points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy import special
from scipy.stats import qmc

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric
from sgdynamics.fixed_data.host_draws import PATHS_PER_VECTOR, decorrelate
from sgdynamics.fixed_data.wide_network import (
    Weights,
    WideParameters,
    WideSetup,
    WideState,
    advance_sweep,
    first_free_draw,
    observe_sweep,
    start_sweep,
)

MAX_DIMENSIONS = 256  # of the quasi-random points of one set; a layer uses several sets
SMALLEST_CAPACITY = 32
STEPS_OF_DIRECTIONS = 10  # steps whose directions have memory at the start; measured: enough
NEURONS_PER_DIRECTION = 10  # with fewer neurons, a network of as many is as good


class LayerDraws:
    """Quasi-random normal variables (draw, neuron) of one layer, in sets of points.

    The first `at_start` are those of the start and of the test inputs.
    """

    def __init__(self, neurons: int, at_start: int, *key: int) -> None:
        self.neurons, self.at_start, self.key = neurons, at_start, key
        self._sets: list[np.ndarray] = []

    def first(self, count: int) -> np.ndarray:
        """The first `count` draws, which do not depend on how many are needed later."""
        while len(self._sets) * MAX_DIMENSIONS < count:
            spawn_key = (*self.key[1:], len(self._sets))
            sequence = np.random.SeedSequence(self.key[0], spawn_key=spawn_key)
            sobol = qmc.Sobol(MAX_DIMENSIONS, rng=np.random.default_rng(sequence))
            # The points are multiples of 2^-30: the centre of each cell is never 0 or 1.
            normals = special.ndtri(sobol.random(self.neurons).T + 2.0**-31)
            if not self._sets and PATHS_PER_VECTOR * self.at_start <= self.neurons:
                # In the limit the draws of the start are uncorrelated and have variance 1.
                normals[: self.at_start] = decorrelate(normals[: self.at_start])
            self._sets.append(normals)
        return np.concatenate(self._sets)[:count]


@dataclass(frozen=True)
class BasisLimit:
    """The largest number of directions of a matrix.

    Attributes
    ----------
    paths : int
        Total number of paths.
    replicates : int
        Number of replicates that share the paths.
    rank : int or None
        Limit of the user. Defaults to a tenth of the neurons of a replicate.
    """

    paths: int
    replicates: int
    rank: int | None = None

    @property
    def neurons(self) -> int:
        """Neurons per layer and replicate, a power of two."""
        return 1 << round(math.log2(max(self.paths / self.replicates, 1)))

    @property
    def directions(self) -> int:
        """The limit."""
        return self.neurons // NEURONS_PER_DIRECTION if self.rank is None else self.rank

    def error(self, directions: int, position: str) -> ValueError:
        """The error for a basis above the limit, at this step."""
        reason = f"the basis had {directions} directions at {position}, above its limit"
        remedy = "a larger tolerance, method=sgd.DMFT(tolerance=0.01), or fewer steps"
        if self.rank is not None:
            return checks.reject("rank", self.rank, f"{reason}. Use a larger rank, {remedy}.")
        needed = 1 << math.ceil(math.log2(NEURONS_PER_DIRECTION * directions))
        fix = (
            f"{reason} {self.directions}, a tenth of the {self.neurons} neurons of each of the "
            f"{self.replicates} replicates: a finite network is as good. Use paths = "
            f"{self.replicates * needed} or more, {remedy}; or train a network."
        )
        return checks.reject("paths", self.paths, fix)


class WideSweep:
    """One replicate of a sweep: its neurons, and their way through the save points.

    Parameters
    ----------
    setup : WideSetup
        The static description.
    parameters : WideParameters
        Traced values.
    root : array
        Square root (point, draw) of the kernel of the inputs, of training and then of test inputs.
    neurons : int
        Number of sampled neurons per layer.
    limit : BasisLimit
        Largest number of directions of a matrix.
    key : tuple of int
        Seed, replicate and purpose.
    """

    def __init__(
        self,
        setup: WideSetup,
        parameters: WideParameters,
        root: np.ndarray,
        neurons: int,
        limit: BasisLimit,
        key: tuple[int, ...],
    ) -> None:
        self.setup, self.parameters, self.root = setup, parameters, root
        self.neurons, self.limit = neurons, limit
        self.draws = [
            LayerDraws(neurons, first_free_draw(setup, layer), *key, layer)
            for layer in range(setup.layers)
        ]
        self.directions = 0

    def solve(
        self, save_steps: np.ndarray, count_steps: Callable[[int], None]
    ) -> dict[str, np.ndarray]:
        """Observables (time, ...) at the save points."""
        setup, parameters = self.setup, self.parameters
        largest = self.limit.directions + setup.samples
        capacity = min(SMALLEST_CAPACITY + STEPS_OF_DIRECTIONS * setup.samples, largest)
        draws = self._table(capacity)
        at_start = np.concatenate([draws[0][1 : 1 + setup.samples], draws[0][:1]])
        fields = self.root @ at_start
        state = start_sweep(setup, capacity, parameters, draws, fields)
        step, observed = 0, []
        for save_step in save_steps:
            while True:
                first = step
                state, reached, count = advance_sweep(
                    setup, parameters, state, draws, np.int64(first), np.int64(save_step)
                )
                step, self.directions = int(reached), int(count)
                count_steps(step - first)
                has_room = setup.layers == 1 or self.directions + setup.samples <= capacity
                if step == save_step and has_room:
                    break
                self._require_room(step, int(save_steps[-1]))
                capacity = min(2 * capacity, largest)
                state, draws = _with_capacity(state, capacity), self._table(capacity)
            values = observe_sweep(setup, parameters, state, draws)
            observed.append({name: np.asarray(value) for name, value in values.items()})
        return {name: np.stack([values[name] for values in observed]) for name in observed[0]}

    def _table(self, capacity: int) -> tuple[np.ndarray, ...]:
        """Draws of each layer for this many directions of the matrices on either side of it."""
        extra = 2 * capacity + self.setup.samples
        return tuple(
            draws.first(first_free_draw(self.setup, layer) + extra)
            for layer, draws in enumerate(self.draws)
        )

    def _require_room(self, step: int, steps: int) -> None:
        """Raise ValueError if the basis has its largest size."""
        if self.directions > self.limit.directions:
            raise self.limit.error(self.directions, f"step {step} of {steps}")


def _with_capacity(state: WideState, capacity: int) -> WideState:
    """The state with memory for this many directions."""

    def pad(arrays: tuple[Numeric, ...]) -> tuple[Numeric, ...]:
        return tuple(jnp.pad(array, ((0, capacity - len(array)), (0, 0))) for array in arrays)

    def grow(weights: Weights) -> Weights:
        return weights._replace(
            products=pad(weights.products), left_products=pad(weights.left_products)
        )

    return state._replace(
        weights=grow(state.weights),
        velocity=None if state.velocity is None else grow(state.velocity),
        right=pad(state.right),
        left=pad(state.left),
    )


def kernel_root(inputs: np.ndarray, test_inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel x.x_mu/D (point, sample) of all inputs, and the square root of that of h_1.

    The columns of the root are the draws of the training inputs, and one for test inputs: given the
    training inputs, each of these needs one variable.
    """
    dimension = inputs.shape[1]
    kernel = inputs @ inputs.T / dimension
    values, vectors = np.linalg.eigh(kernel)
    values, vectors = values[::-1], vectors[:, ::-1]
    is_used = values > 1e-12 * values[0]
    inverse = np.where(is_used, 1 / np.sqrt(np.where(is_used, values, 1.0)), 0.0)
    root = vectors * np.sqrt(np.where(is_used, values, 0.0))
    test_kernel = test_inputs @ inputs.T / dimension
    test_root = test_kernel @ (vectors * inverse)
    squares = np.sum(test_inputs**2, axis=1) / dimension - np.sum(test_root**2, axis=1)
    own = np.sqrt(np.maximum(squares, 0.0))
    count = len(inputs)
    all_roots = np.zeros((count + len(test_inputs), count + 1))
    all_roots[:count, :count], all_roots[count:, :count] = root, test_root
    all_roots[count:, count] = own
    return np.concatenate([kernel, test_kernel]), all_roots
