"""Dynamical mean-field theory of algorithms on a fixed data set: d -> infinity at n = samples_per_dimension d, in one causal sweep.

The effective process of one sample (its fields, given the history) is sampled along `paths` of it. In place of the kernels of the usual
form (a correlated Gaussian drive and a memory integral over the response, found by iteration) the paths are conditioned on what
the algorithm has seen (`sgdynamics.conditioning`): the overlaps of step t + 1 follow from those up to t, once, at the same finite
learning rate as the simulation's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.stats import qmc

from sgdynamics import checks, conditioning
from sgdynamics.algorithms.epochs import sequence, visits
from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.arrays import Keys, Numbers, Numeric, Whole
from sgdynamics.controls import numbers_at
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import Start, factor
from sgdynamics.progress import Meter
from sgdynamics.random import run_keys
from sgdynamics.reach import available_bytes
from sgdynamics.samples.spectrum import spread as input_spread

MOST_DIMENSIONS = 1024  # of one quasi-random point: what a path needs beyond them comes from further, shuffled point sets
CELLS_AT_A_TIME = 16  # of an epoch
FIRST_ROOM = 128  # directions that memory is made for at first, where an epoch is solved with several numbers of cells: they share programs
POINT_BYTES = 1 << 27  # quasi-random numbers made at a time
FEWEST_PATHS = 64  # of one replicate
FEWER = 4  # every replicate is solved again with so many times fewer paths and a so much larger tolerance: the change is part of the errors
LEAST_A_VECTOR = 4  # paths for each of the first vectors: with fewer they are not made uncorrelated
SHARE_OF_MEMORY = 0.8
MOST_DAYS = 10.0  # of estimated computing time, beyond which nothing is started
SPEED = {"cpu": 1e9}  # multiplications a second, in large products; other machines:
FAST = 1e12


def within_reach(sweep: Sweep, step: np.ndarray, rank: int | None, runs: int, two_time: bool) -> None:
    """Refuse what would take more than MOST_DAYS."""
    steps = float(step[-1])
    directions = min(sweep.needed(steps), np.inf if rank is None else rank)
    # directions are opened one after the other, until none are left; each is read six times a step, as P or in every block
    filling = min(steps, directions / sweep.setup.opened)
    work = 6.0 * sweep.inputs * sweep.replicates * (1 + sweep.setup.structure.blocks) / 2 * directions * (steps - filling / 2)
    days = work * (1 + 1 / FEWER) * runs * (1 + (len(step) if two_time else 0)) / SPEED.get(jax.default_backend(), FAST) / 86400
    if days > MOST_DAYS:
        raise checks.reject(
            "steps",
            int(step[-1]),
            f"so many of {sweep.each * sweep.replicates} paths and up to {directions:.3g} directions are {work:.2g} "
            f"multiplications, about {days:.2g} days: take fewer steps or paths, or give rank= where the algorithm is smooth",
        )


class Sweep:
    """Replicates of the effective process, driven by quasi-random points."""

    def __init__(
        self, problem: Problem, algorithm: FixedData, points: int, fewer: int, seed: int, replicates: int, tolerance: float, dtype: np.dtype
    ) -> None:
        each = points // fewer
        self.problem = problem
        self.setup = conditioning.Setup(
            problem.structure,
            algorithm.selects,
            algorithm.hot,
            limit=True,
            visited=bool(algorithm.order),
            again=algorithm.order == "replacement",
        )
        self.parameters, self.algorithm = problem.parameters, algorithm.parameters
        self.order, self.cells = algorithm.order, round(1 / algorithm.fraction)  # of an epoch, where there are any
        self.each, self.seed, self.replicates, self.dtype = each, seed, replicates, dtype
        self.inputs = each * problem.structure.sample.inputs_a_sample
        self.fewer = fewer  # these paths are the first of so many times more
        # the dimension at which n samples are `each` paths; no whole number is needed
        sizes = problem.parameters["fractions"] * (each / algorithm.samples_per_dimension)
        self.numbers = (self.parameters, self.algorithm, sizes, np.float64(tolerance))
        self.rank = 0
        self.most = 0
        self.on_train: Mapping[str, Any] = {}  # losses whose mean over the data set is given too, by name

    def needed(self, steps: float) -> float:
        """How many directions so many steps may open: those of gradients only as long as the paths span few enough."""
        setup = self.setup
        spanned = min(setup.spanned * (steps + 1), self.inputs // conditioning.LEAST_FREE + setup.spanned)
        return setup.first + spanned + ((setup.opened - setup.spanned) * (steps + 1) if setup.hot else 0)

    def make_room(self, steps: int, rank: int | None, memory: float | None) -> None:
        """How many directions memory is made for at most; refuse what does not fit."""
        setup = self.setup
        self.most = int(self.needed(steps))
        if rank is not None:
            self.most = min(self.most, rank + setup.first + setup.opened)
        # memory for P and A, and once more while it grows
        self.bytes = 2 * self.dtype.itemsize * self.inputs * self.replicates * self.most * (1 + setup.structure.blocks)
        room = available_bytes() * SHARE_OF_MEMORY if memory is None else checks.number("memory", memory, above=0.0) * 1e9
        if self.bytes > room:
            raise ValueError(
                f"{self.each * self.replicates} paths of up to {self.most} directions ({steps} steps) need {self.bytes / 1e9:.3g} GB, "
                f"there are {room / 1e9:.3g} GB: take fewer paths or steps, dtype='float32', or give rank= where the algorithm is smooth "
                "(gradient descent needs far fewer directions than steps)"
            )

    def solve(self, begin: Start, steps: np.ndarray, two_time: bool, bar: Meter) -> dict[str, np.ndarray]:
        """Overlaps (replicate, time, ...) of one start."""
        points = _SobolPaths(self.setup, self.each, self.fewer, self.replicates, self.seed, self.dtype)
        if self.order:
            points.visits = _Visits(self.order, self.cells, self.each, self.replicates, self.seed)
            points.dimensions = points.first_count + 1
        state = self.initial(begin, points)
        # runs of the generator that fills in small random numbers: apart from those of simulations
        keys = run_keys(self.seed, np.arange(self.replicates) + (1 << 20))
        saved: dict[str, list[np.ndarray]] = {}
        rows: list[np.ndarray] = []
        probes: list[tuple[int, _Probe]] = []
        diverged = np.zeros(self.replicates, dtype=bool)
        now = 0
        for index, target in enumerate(steps.tolist()):
            while now < target:
                given, end = points.piece(now, target)
                state, good = self.advance(state, keys, given, now, end)
                diverged |= good < end
                probes = [(born, probe.advanced(self, keys, given, now, end)) for born, probe in probes]
                bar.advance((end - now) / self.fewer)
                now = end
            numbers = numbers_at(self.parameters, elapsed_at(self.algorithm["lr"], now))
            for name, value in conditioning.observed(_observe, self.setup, self.on_train, numbers, state).items():
                shown = np.array(value, dtype=np.float64)
                shown[diverged] = np.nan
                saved.setdefault(name, []).append(shown)
            if two_time:
                rows.append(np.array(state.rows, dtype=np.float64))
            if two_time and self.fewer == 1:  # the spread of a response is far above its bias
                probes.append((index, self.probe(state, points)))
                saved.setdefault("R", []).append(self.responses(probes, len(steps)))
        self.rank = max(self.rank, int(np.max(state.opened)) - self.setup.first)
        if self.fewer == 1 and int(np.max(state.spanned)) >= self.inputs // conditioning.LEAST_FREE:
            warnings.warn(
                f"the gradients span half of the {self.each} paths of a replicate, and open no more directions: take more paths, or fewer "
                "steps or replicates",
                stacklevel=4,
            )
        result = {name: np.stack(values, axis=1) for name, values in saved.items()}
        if two_time:
            result["C"] = _correlations(rows)
        return result

    def initial(self, begin: Start, points: _SobolPaths) -> conditioning.Known:
        T, L = factor(self.problem, begin)
        setup = self.setup
        smallest = FIRST_ROOM if setup.visited else conditioning.SMALLEST
        room = min(max(smallest, setup.first + 2 * setup.opened), max(self.most, setup.first + setup.opened))
        return _initial(setup, room, self.parameters, self.algorithm, T[0], L[0], begin.a[0], *points.first())

    def advance(
        self,
        state: conditioning.Known,
        keys: Keys,
        given: tuple[Float[Numeric, "replicates steps normals blocks inputs"], Float[Numeric, "replicates steps n"] | None, Whole],
        now: int,
        end: int,
    ) -> tuple[conditioning.Known, np.ndarray]:
        state, good = conditioning.advance(self.setup, self.numbers, self.most, state, keys, given, now, end)
        if conditioning.short(self.setup, state) and np.any(good < end):
            raise ValueError(
                f"rank = {self.most - self.setup.first - self.setup.opened} directions are not enough by step {int(good.min())}: give a "
                "larger rank, a larger tolerance, or none"
            )
        return state, good

    def probe(self, state: conditioning.Known, points: _SobolPaths) -> _Probe:
        return _Probe(_kicked(self.setup, self.parameters, state, points.probe()), np.asarray(state.opened))

    def responses(self, probes: list[tuple[int, _Probe]], count: int) -> np.ndarray:
        """R(t, t') at the present t: (replicate, t', unit, unit'), 0 for later t'."""
        p = self.setup.structure.width
        result = np.zeros((self.replicates, count, p, p))
        for born, probe in probes:
            result[:, born] = probe.response(self.parameters["fractions"], p)
        return result


class _Probe:
    """A copy of the replicates whose rows were kicked along a fresh direction each, to first order."""

    def __init__(self, state: conditioning.Known, slots: np.ndarray) -> None:
        self.state, self.slots = state, slots

    def advanced(
        self,
        sweep: Sweep,
        keys: Keys,
        given: tuple[Float[Numeric, "replicates steps normals blocks inputs"], Any, Whole],
        now: int,
        end: int,
    ) -> _Probe:
        setup = replace(sweep.setup, probed=True)
        most = 2 * sweep.most + setup.opened
        state, _ = conditioning.advance(setup, sweep.numbers, most, self.state, keys, given, now, end)
        return _Probe(state, self.slots)

    def response(self, fractions: np.ndarray, p: int) -> np.ndarray:
        """(replicate, unit, kicked unit): how far rows move along the kicks, per unit kick."""
        change = np.asarray(self.state.change, dtype=np.float64)
        along = np.stack([change[np.arange(len(change)), :, :, self.slots + unit] for unit in range(p)], axis=-1)
        return np.einsum("ribj,b->rij", along, np.sqrt(fractions))


@partial(jax.jit, static_argnums=0)
def _kicked(
    setup: conditioning.Setup, parameters: Numbers, state: conditioning.Known, normals: Float[Numeric, "replicates p blocks inputs"]
) -> conditioning.Known:
    """Replicates that know one more direction for each unit, along which its row is kicked to first order."""
    p = setup.structure.width
    sample, spread = setup.structure.sample, input_spread(parameters, state.A.dtype)
    share = jnp.sqrt(parameters["fractions"]).astype(state.A.dtype)

    def one(state: conditioning.Known, normals: Float[Numeric, "p blocks inputs"]) -> conditioning.Known:
        P, A, rows = (
            jnp.pad(state.P, ((0, p), (0, 0))),
            jnp.pad(state.A, ((0, 0), (0, p), (0, 0))),
            jnp.pad(state.rows, ((0, 0), (0, 0), (0, p))),
        )
        fresh = conditioning.outside(P, normals.reshape(p * A.shape[0], -1), 2)
        fresh = conditioning.at_length(fresh, P.shape[-1]).reshape(p, A.shape[0], -1)
        change = jnp.zeros_like(rows)
        for unit in range(p):
            A = A.at[:, state.opened + unit].set(spread[:, None] * sample.mixed_inputs(parameters, fresh[unit]))
            change = change.at[unit, :, state.opened + unit].set(share)
        return state._replace(P=P, A=A, rows=rows, opened=state.opened + p, change=change)

    return jax.vmap(one)(state, normals)


@partial(jax.jit, static_argnums=(0, 1))
def _initial(
    setup: conditioning.Setup,
    room: int,
    parameters: Numbers,
    algorithm: Numbers,
    T: Float[Numeric, "blocks p K"],
    L: Float[Numeric, "blocks p p"],
    head: Float[Numeric, " p"],
    normals: Float[Numeric, "replicates blocks fields inputs"],
    noise: Float[Numeric, "replicates n draws"],
    uniform: Float[Numeric, "replicates n"],
) -> conditioning.Known:
    def one(
        normals: Float[Numeric, "blocks fields inputs"], noise: Float[Numeric, "n draws"], uniform: Float[Numeric, " n"]
    ) -> conditioning.Known:
        return conditioning.initial(setup, parameters, algorithm, T, L, head, normals, noise, uniform, room)

    return jax.vmap(one)(normals, noise, uniform)


@partial(jax.jit, static_argnums=0)
def _observe(setup: conditioning.Setup, parameters: Numbers, state: conditioning.Known) -> dict[str, Any]:
    return jax.lax.map(partial(conditioning.observe, setup, parameters), state)


class _SobolPaths:
    """Normals and uniforms of every path: scrambled Sobol points, one coordinate for each number that a path needs."""

    def __init__(self, setup: conditioning.Setup, each: int, fewer: int, replicates: int, seed: int, dtype: np.dtype) -> None:
        self.setup, self.each, self.replicates, self.seed, self.dtype = setup, each, replicates, seed, dtype
        self.points = each * fewer  # of which the first are taken
        self.generators = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(replicate, 1))) for replicate in range(replicates)]
        blocks, sample = setup.structure.blocks, setup.structure.sample
        self.tokens, self.draws = sample.inputs_a_sample, sample.draw_normals
        self.first_count = blocks * setup.first * self.tokens + self.draws
        self.inner = blocks * setup.normals * self.tokens
        self.step_count = self.inner + int(setup.selects and not setup.visited)
        self.visits: _Visits | None = None
        self.dimensions = MOST_DIMENSIONS
        self.left: np.ndarray | None = None
        self.fresh = True

    def first(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Normals (replicate, blocks, K + p, inputs), those of the draws (replicate, n, ...), uniforms of a selection (replicate, n)."""
        self.take(self.dimensions)
        uniform = self.next(self.first_count + 1)
        normals = special.ndtri(uniform[:, :-1])
        # in the limit the signals' fields, the start's and normal draws are uncorrelated: on these paths they are made so. Discrete
        # draws are read off the last vectors, which stay
        count = normals.shape[1] - (0 if self.setup.structure.sample.all_normal else self.draws)
        if LEAST_A_VECTOR * count <= self.each:
            normals[:, :count] = _uncorrelated(normals[:, :count])
        shape = (self.setup.structure.blocks, self.setup.first)
        noise = np.moveaxis(normals[:, -self.draws :], 1, 2).astype(self.dtype)
        return self.by_path(normals[:, : -self.draws], shape), noise, uniform[:, -1]

    def by_path(self, normals: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """(replicate, ..., shape x tokens, n) as (replicate, ..., *shape, inputs): the tokens of a path stand together."""
        apart = normals.reshape(*normals.shape[:-2], *shape, self.tokens, self.each)
        return np.swapaxes(apart, -1, -2).reshape(*apart.shape[:-2], -1).astype(self.dtype)

    def piece(self, now: int, target: int) -> tuple[tuple[Any, Any, Any], int]:
        """What `conditioning.advance` takes for the steps from `now`, as many as are made at a time."""
        most = max(1, POINT_BYTES // (8 * self.each * self.replicates * self.step_count))
        if self.visits is not None:
            if self.visits.given is None or now == self.visits.end:
                block = min(most, CELLS_AT_A_TIME)
                self.visits.keep(self.normals(block), now, now + block)
            assert self.visits.given is not None
            return self.visits.given, min(target, self.visits.end)
        count = min(target - now, most)
        uniform = self.next(count * self.step_count).reshape(self.replicates, count, self.step_count, self.each)
        normals = self.by_path(special.ndtri(uniform[:, :, : self.inner]), (self.setup.normals, self.setup.structure.blocks))
        return (normals, uniform[:, :, -1] if self.setup.selects else None, np.int64(now)), now + count

    def normals(self, count: int) -> np.ndarray:
        """Those of so many cells (replicate, cell, normals, blocks, inputs). They are drawn at random: quasi-random ones overlap less than
        by chance, and a direction a cell makes many overlaps (measured: a bias of 2% in a risk at 512 paths a set, beside none)."""
        shape = (count, self.setup.normals, self.setup.structure.blocks, self.each * self.tokens)
        return np.stack([generator.standard_normal(shape) for generator in self.generators]).astype(self.dtype)

    def probe(self) -> np.ndarray:
        """Normals (replicate, unit, blocks, inputs) of a kick, the same whenever it is asked for."""
        shape = (self.points, self.setup.structure.width, self.setup.structure.blocks, self.tokens)
        roots = [np.random.SeedSequence(self.seed, spawn_key=(replicate, 2)) for replicate in range(self.replicates)]
        drawn = np.stack([np.random.default_rng(root).standard_normal(shape)[: self.each] for root in roots])
        drawn = np.moveaxis(drawn, 1, -2)
        return drawn.reshape(*drawn.shape[:-2], -1).astype(self.dtype)

    def next(self, count: int) -> np.ndarray:
        """The next coordinates of all paths: (replicate, count, n)."""
        parts = []
        while count:
            if self.left is None or self.left.shape[1] == 0:
                self.take(self.dimensions)
            assert self.left is not None
            part, self.left = self.left[:, :count], self.left[:, count:]
            parts.append(part)
            count -= part.shape[1]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def take(self, dimensions: int) -> None:
        """One more set of points. Sets after the first are shuffled: their coordinates would else go with those of the first."""
        dimensions = max(self.first_count + 1, min(dimensions, POINT_BYTES // (8 * self.points * self.replicates)))
        sets = []
        for generator in self.generators:
            points = qmc.Sobol(dimensions, rng=generator).random(self.each).T
            if not self.fresh:
                # the first quarter among itself: it is the same set of points where only these are taken
                first = self.points // FEWER
                order = np.concatenate([generator.permutation(first), first + generator.permutation(self.points - first)])
                points = points[:, order[: self.each]]
            # the points are multiples of 2^-30: the middle of each cell, never 0 or 1
            sets.append(points + 2.0**-31)
        self.left, self.fresh = np.stack(sets), False


class _Visits:
    """Which paths the cells of an epoch visit, and what `conditioning.advance` takes for the next few cells.

    Every replicate has a generator of its own for each epoch, so that an epoch visits its paths in the same order whatever the number of
    its cells: what that number changes is then seen with little noise. Cells come so many at a time whatever the save points, in one shape.
    """

    def __init__(self, order: str, cells: int, each: int, replicates: int, seed: int) -> None:
        self.order, self.cells, self.each, self.replicates, self.seed = order, cells, each, replicates, seed
        self.epoch, self.end, self.given = -1, 0, None

    def keep(self, normals: np.ndarray, first: int, end: int) -> None:
        """Make what the cells from `first` to `end` take."""
        found = np.stack([self.of_cell(cell) for cell in range(first, end)], axis=1)
        self.given, self.end = (normals, found.astype(np.float64), np.int64(first)), end

    def of_cell(self, number: int) -> np.ndarray:
        """(replicate, n)."""
        epoch = 0 if self.order == "fixed" else number // self.cells
        if epoch != self.epoch:
            roots = [np.random.SeedSequence(self.seed, spawn_key=(replicate, 3, epoch)) for replicate in range(self.replicates)]
            self.sequences = [sequence(self.order, self.each, np.random.default_rng(root)) for root in roots]
            self.epoch = epoch
        return np.stack([visits(one, self.cells, number % self.cells) for one in self.sequences])


def _uncorrelated(vectors: np.ndarray) -> np.ndarray:
    """vectors (..., count, n) with V V^T/n = I: the nearest ones."""
    values, turn = np.linalg.eigh(np.einsum("...kn,...ln->...kl", vectors, vectors) / vectors.shape[-1])
    return np.einsum("...ki,...i,...li,...ln->...kn", turn, values**-0.5, turn, vectors, optimize=True)


def _correlations(rows: list[np.ndarray]) -> np.ndarray:
    """C(t, t') (replicate, t, t', unit, unit') from rows (replicate, unit, blocks, directions) of growing length."""
    longest = max(part.shape[-1] for part in rows)
    full = np.stack([np.pad(part, ((0, 0), (0, 0), (0, 0), (0, longest - part.shape[-1]))) for part in rows], axis=1)
    return np.einsum("rtpbk,rsqbk->rtspq", full, full)
