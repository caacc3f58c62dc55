"""Dynamical mean-field theory of algorithms on a fixed data set: d -> infinity at n = samples_per_dimension d, in one causal sweep.

The effective process of one sample (its fields, given the history) is sampled along `paths` of it. In place of the kernels of the usual
form (a correlated Gaussian drive and a memory integral over the response, found by iteration) the paths are conditioned on what
the algorithm has seen (`sgdynamics.fixed_data.conditioning`): the overlaps of step t + 1 follow from those up to t, once,
at the same finite learning rate as the simulation's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special
from scipy.stats import qmc

from sgdynamics.algorithms.epochs import Visits, sequences
from sgdynamics.algorithms.fixed_data import FixedData, elapsed_at
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.base.controls import values_at
from sgdynamics.base.progress import Meter
from sgdynamics.base.random import run_keys
from sgdynamics.base.resources import available_bytes
from sgdynamics.fixed_data import conditioning
from sgdynamics.fixed_data.forgetting import Memory, forgotten
from sgdynamics.fixed_data.path_plan import LEAST_FREE
from sgdynamics.fixed_data.path_state import (
    Paths,
    Places,
    blank,
    cut,
    first_places,
    observe,
    widened,
)
from sgdynamics.fixed_data.paths import DIRECTIONS, advanced, chunks_for, largest_chunk
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.input_covariance import spread as input_spread

MOST_DIMENSIONS = 1024  # of one quasi-random point
EPOCHS_AT_A_TIME = 4  # whose visits are made on the host
FIRST_ROOM = 128  # directions that memory is made for at first, where an epoch is solved with several numbers of cells: they share programs
SMALL_ROOM = 256
FEWEST_PATHS = 64  # of one replicate
FEWER = 4  # every replicate is solved again with so many times fewer paths and a so much larger tolerance: the change is part of the errors
LEAST_A_VECTOR = 4  # paths for each of the first vectors: with fewer they are not made uncorrelated
SHARE_OF_MEMORY = 0.8
MOST_DAYS = 10.0  # of estimated computing time, beyond which nothing is started
SPEED = {"cpu": 2e9}  # multiplications a second, in large products; other machines:
FAST = 1e12
SECONDS = 5.0  # of estimated computing time, after which a loop comes back to say how far it is and to be interrupted
# residuals below this share of a gradient are rounding, not new directions: a square is the difference of two sums
ROUNDING = {"float64": 1e-6, "float32": 1e-3}


def within_reach(
    sweep: Sweep, step: np.ndarray, rank: int | None, runs: int, two_time: bool
) -> None:
    """Refuse what would take more than MOST_DAYS."""
    steps = float(step[-1])
    directions = min(sweep.needed(steps), np.inf if rank is None else rank)
    # directions are opened one after the other, until none are left
    filling = min(steps, directions / sweep.setup.opened)
    work = sweep.work(directions) * (steps - filling / 2)
    sweeps = (1 + 1 / FEWER) * runs * (1 + (sweep.sweeps_a_pair * len(step) if two_time else 0))
    days = work * sweeps / SPEED.get(jax.default_backend(), FAST) / 86400
    if days > MOST_DAYS:
        raise checks.reject(
            "steps",
            int(step[-1]),
            f"with {sweep.each * sweep.replicates} paths and up to {directions:.3g} directions they need {work:.2g} "
            f"multiplications, about {days:.2g} days. Use fewer steps or paths, sgd.DMFT(rank=...) if the algorithm is smooth, or sgd.simulate.",
        )


class Sweep:
    """Replicates of the effective process, driven by quasi-random points at first."""

    form: ClassVar[str] = "projections"
    quasi_random: ClassVar[bool] = True  # also of the first directions
    less_memory: ClassVar[str] = (
        "Use fewer paths or steps, sgd.simulate, or an option of sgd.DMFT: dtype='float32', "
        "memory_directions, or rank (gradient descent needs far fewer directions than steps)."
    )
    sweeps_a_pair: ClassVar[int] = 1  # more, at each save point, for two times

    def __init__(
        self,
        problem: Problem,
        algorithm: FixedData,
        points: int,
        fewer: int,
        seed: int,
        replicates: int,
        tolerance: float,
        dtype: np.dtype,
    ) -> None:
        each = points // fewer
        self.problem = problem
        self.setup = conditioning.Setup(
            problem.structure,
            algorithm.selects,
            algorithm.hot,
            visited=bool(algorithm.order),
            again=algorithm.order == "replacement",
        )
        self.parameters, self.algorithm = problem.parameters, algorithm.parameters
        self.order, self.cells = (
            algorithm.order,
            round(1 / algorithm.fraction),
        )  # of an epoch, where there are any
        self.each, self.seed, self.replicates, self.dtype = each, seed, replicates, dtype
        self.inputs = each * problem.structure.sample.inputs_a_sample
        self.fewer = fewer  # these paths are the first of so many times more
        # the dimension at which n samples are `each` paths; no whole number is needed
        sizes = problem.parameters["fractions"] * (each / algorithm.samples_per_dimension)
        self.numbers = (self.parameters, self.algorithm, sizes, np.float64(tolerance))
        self.rank = 0
        self.crowded = False  # whether gradients span too much of the paths, or with visits of the dimensions, to open directions
        self.most = 0
        self.memory: Memory | None = None  # bounded, where it is
        self.on_train: Mapping[
            str, Any
        ] = {}  # losses whose mean over the data set is given too, by name
        self.initial_risk: list[float] = []  # training risk at the start of each run, with epochs

    @property
    def sets(self) -> int:
        """Replicates that advance together: all of them, but one at a time on a CPU."""
        return 1 if jax.default_backend() == "cpu" else self.replicates

    @property
    def seen_blocks(self) -> int:
        """How many times a path sees the signals and the start."""
        return self.setup.structure.blocks

    def work(self, directions: float) -> float:
        """Multiplications of a step."""
        setup, blocks = self.setup, self.setup.structure.blocks
        of_P, of_A = 2 * setup.spanned + setup.normals * blocks, setup.spanned * blocks
        return 2.0 * self.inputs * self.replicates * (of_P + of_A) * directions

    def needed(self, steps: float) -> float:
        """Upper bound on the number of directions after some steps.

        The gradients of a replicate span at most half of its paths. Replicates that advance together share slots of
        memory: a step uses as many slots as the replicate that adds the most directions.
        """
        setup = self.setup
        spanned = min(
            setup.spanned * (steps + 1), self.sets * (self.inputs // LEAST_FREE) + setup.spanned
        )
        found = setup.first + spanned + setup.white * (steps + 1)
        return found if self.memory is None else min(found, self.memory.directions)

    def held(self, directions: int) -> int:
        """Bytes of one replicate: P and A."""
        return self.dtype.itemsize * self.inputs * directions * (1 + self.setup.structure.blocks)

    def make_room(self, steps: int, rank: int | None, memory: float | None) -> None:
        """How many directions memory is made for at most; refuse what does not fit."""
        setup = self.setup
        self.most = max(int(self.needed(steps)), setup.first + setup.opened)
        if rank is not None:
            self.most = min(self.most, rank + setup.first + setup.opened)
        # once more while it grows; a GPU's compiler tries products on a copy of what they read, beside what the last size has left
        self.bytes = (
            (2 if jax.default_backend() == "cpu" else 3) * self.replicates * self.held(self.most)
        )
        room = (
            available_bytes() * SHARE_OF_MEMORY
            if memory is None
            else checks.number("memory", memory, above=0.0) * 1e9
        )
        if self.bytes > room:
            unit = "cells" if setup.visited else "steps"
            raise ValueError(
                f"paths = {self.each * self.replicates}: up to {self.most} directions ({steps} {unit}) need "
                f"{self.bytes / 1e9:.3g} GB, and {room / 1e9:.3g} GB are available. {self.less_memory}"
            )

    @property
    def most_directions(self) -> float:
        """How many directions the paths of a replicate can carry: half of them, and with epochs their dimensions."""
        half = self.inputs // LEAST_FREE
        return min(half, float(np.max(self.numbers[2]))) if self.setup.visited else half

    def check_paths(self, steps: int, rank: int | None) -> None:
        """Raise ValueError if the cells of all epochs, each of which adds directions, are more than the paths can carry."""
        setup = self.setup
        if not setup.visited:
            return
        needed = setup.first + setup.spanned * steps
        if rank is not None:
            needed = min(needed, rank + setup.first + setup.opened)
        if self.memory is not None:
            needed = min(needed, self.memory.directions)
        if needed > self.most_directions:
            enough = self.each * self.replicates << math.ceil(
                math.log2(needed / self.most_directions)
            )
            raise checks.reject(
                "paths",
                self.each * self.replicates,
                f"each of the {self.replicates} replicates carries at most {int(self.most_directions)} directions, and "
                f"{steps} cells need {needed}. Use paths = {enough} or more, fewer epochs, or sgd.simulate.",
            )

    def solve(
        self, begin: Start, steps: np.ndarray, two_time: bool, bar: Meter
    ) -> dict[str, np.ndarray]:
        """Overlaps (replicate, time, ...) of one start."""
        points = Points(self)
        groups = self.initial(begin, points)
        saved: dict[str, list[np.ndarray]] = {}
        pairs = self.pairs(len(steps)) if two_time else None
        diverged = np.zeros(self.replicates, dtype=bool)
        now = 0
        if self.setup.visited:
            self.advance(groups, points.visits(0, 0)[0], 0, 0, self.most)
            self.initial_risk.append(float(np.mean(self.observe_groups(groups, 0)["train_risk"])))
        for target in steps.tolist():
            while True:
                end = min(target, now + self.at_a_time(groups[0]))
                visits, end = points.visits(now, end)
                self.advance(groups, visits, now, end, self.most)
                diverged |= np.concatenate([group.good for group in groups]) < end
                if pairs is not None:
                    pairs.advance(visits, now, end)
                bar.advance((end - now) / self.fewer)
                now = end
                if now >= target:
                    break
            for name, values in self.observe_groups(groups, now).items():
                values[diverged] = np.nan
                saved.setdefault(name, []).append(values)
            if pairs is not None:
                pairs.note(groups, points, now)
        self.finish(groups)
        result = {name: np.stack(values, axis=1) for name, values in saved.items()}
        return result if pairs is None else result | pairs.found(groups)

    def observe_groups(self, groups: list[Any], now: int) -> dict[str, np.ndarray]:
        """Overlaps and mean losses of all replicates at a step."""
        parameters = values_at(self.parameters, elapsed_at(self.algorithm["lr"], now))
        observed = [
            conditioning.observed(
                self.observer(group), self.setup, self.on_train, parameters, group.paths
            )
            for group in groups
        ]
        return {
            name: np.concatenate([np.asarray(part[name], dtype=np.float64) for part in observed])
            for name in observed[0]
        }

    def observer(self, group: Any) -> Any:
        """What reads off a group of replicates."""
        return _observe

    def pairs(self, count: int) -> Any:
        """What keeps C and R of so many save points."""
        return _Pairs(self, count)

    def finish(self, groups: list[Any]) -> None:
        """What is said of a solution at its end."""
        opened = max(int(np.max(group.paths.opened)) for group in groups)
        self.rank = max(self.rank, opened - self.setup.first)
        spanned = max(int(np.max(group.paths.spanned)) for group in groups)
        half, dimensions = self.inputs // LEAST_FREE, float(np.max(self.numbers[2]))
        self.crowded |= spanned >= half or (self.setup.visited and opened >= dimensions)

    def at_a_time(self, group: Any) -> int:
        """Steps of one call."""
        speed = SPEED.get(jax.default_backend(), FAST)
        return max(1, int(SECONDS * speed / self.work(group.room)))

    def initial(self, begin: Start, points: Points) -> list[Any]:
        T, L = compressed_rows(self.problem, begin)
        setup = self.setup
        smallest = FIRST_ROOM if setup.visited else conditioning.SMALLEST
        room = min(
            max(smallest, setup.first + 2 * setup.opened),
            max(self.most, setup.first + setup.opened),
        )
        slots = 0 if self.memory is None else self.memory.slots(setup)
        origins = origins_of(self.seed, self.replicates)
        drawn = (*points.first(), points.directions(), origins)
        sets = self.sets
        numbers = (self.parameters, self.algorithm, T[0], L[0], begin.a[0])
        chunks = chunks_for(setup, self.inputs, largest_chunk(setup))
        groups = []
        for first in range(0, self.replicates, sets):
            part = tuple(value[first : first + sets] for value in drawn)
            groups.append(
                _Group(
                    _initial(setup, room, slots, chunks, str(self.dtype), *numbers, *part),
                    first_places(setup),
                    sets,
                )
            )
        return groups

    def advance(
        self, groups: list[Any], visits: list[Visits] | None, now: int, end: int, most: int
    ) -> None:
        """All replicates to a step."""
        setup = groups[0].setup(self.setup)
        given = [None] * len(groups) if visits is None else visits

        # one after the other: two XLA programs at once on the CPU's one thread pool can wait for each other for ever
        for group, visited in zip(groups, given, strict=True):
            group.go(setup, self.numbers, visited, now, end, most, self.memory)
        short = [group.number for group in groups if group.number < end]
        if short:
            rank = self.most - self.setup.first - self.setup.opened
            raise ValueError(
                f"rank = {rank}: the basis was full at step {min(short)} of {end}. Increase rank or tolerance."
            )


class _Pairs:
    """C and R at pairs of save points: of rows that are kept, and of copies of the replicates that were kicked at each."""

    def __init__(self, sweep: Sweep, count: int) -> None:
        self.sweep, self.count = sweep, count
        self.rows: list[np.ndarray] = []
        self.probes: list[list[_Group]] = []
        self.responses: list[np.ndarray] = []

    def advance(self, visits: list[Visits] | None, now: int, end: int) -> None:
        for probe in self.probes:
            self.sweep.advance(
                probe, visits, now, end, 2 * self.sweep.most + self.sweep.setup.opened
            )

    def note(self, groups: list[_Group], points: Points, now: int) -> None:
        """Keep what a save point needs."""
        self.rows.append(_of_all([np.asarray(group.paths.rows) for group in groups]))
        if self.sweep.fewer == 1:  # the spread of a response is far above its bias
            self.probes.append(self.kicked(groups, points))
            self.responses.append(self.present())

    def kicked(self, groups: list[_Group], points: Points) -> list[_Group]:
        """Copies of the replicates whose rows were kicked along a fresh direction each, to first order."""
        setup, parameters = self.sweep.setup, self.sweep.parameters
        normals, first, kicked = points.probe(), 0, []
        for group in groups:
            part = normals[first : first + group.sets]
            paths = _kicked(setup, parameters, group.paths, group.places, part)
            p, place = setup.structure.width, int(group.places.opened)
            places = group.places._replace(opened=np.int64(place + p), settled=np.bool_(False))
            places = places._replace(last_spanned=places.spanned, last_opened=places.opened)
            kicked.append(_Group(paths, places, group.sets, slot=place, number=group.number))
            first += group.sets
        return kicked

    def present(self) -> np.ndarray:
        """R(t, t') at the present t: (replicate, t', unit, unit'), 0 for later t'."""
        p, fractions = self.sweep.setup.structure.width, self.sweep.parameters["fractions"]
        result = np.zeros((self.sweep.replicates, self.count, p, p))
        for born, groups in enumerate(self.probes):
            result[:, born] = np.concatenate([group.response(fractions, p) for group in groups])
        return result

    def found(self, groups: list[_Group]) -> dict[str, np.ndarray]:
        result = {"C": _correlations(self.rows)}
        return result | ({"R": np.stack(self.responses, axis=1)} if self.responses else {})


@dataclass
class _Group:
    """Replicates that go together (leading axis), where they stand, and the last steps at which they were finite."""

    paths: Paths
    places: Places
    sets: int
    slot: int | None = None  # where the kicked directions begin, of a copy that was kicked
    number: int = 0
    good: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    widths: list[int] = field(
        default_factory=list
    )  # steps in each slot of the past, where memory is bounded

    @property
    def room(self) -> int:
        return self.paths.P.shape[2]

    def setup(self, setup: conditioning.Setup) -> conditioning.Setup:
        return setup if self.slot is None else replace(setup, probed=True)

    def go(
        self,
        setup: conditioning.Setup,
        numbers: PyTree,
        visits: Visits | None,
        now: int,
        end: int,
        most: int,
        memory: Memory | None,
    ) -> None:
        """To step `end`, with memory made on the way, or given back; or as far as it lasts."""
        self.number, self.good = now, np.full(self.sets, now, dtype=np.int64)
        while True:
            self.call(setup, numbers, visits, end)
            if self.number >= end:
                return
            room = self.room
            if room < most and int(self.places.opened) + setup.opened > room:
                self.paths = widened(self.paths, next_room(room, most), 1)
            elif memory is not None:
                self.paths, self.places, self.widths = forgotten(
                    setup, memory, self.paths, self.places, self.widths
                )
            else:
                return

    def call(
        self, setup: conditioning.Setup, numbers: PyTree, visits: Visits | None, end: int
    ) -> None:
        moved = (np.int64(self.number), self.good, np.int64(end))
        self.paths, self.places, number, good = advanced(
            setup, numbers, self.paths, self.places, visits, *moved
        )
        self.number, self.good = int(number), np.asarray(good)

    def response(self, fractions: np.ndarray, p: int) -> np.ndarray:
        """(replicate, unit, kicked unit): how far rows move along the kicks, per unit kick."""
        assert self.slot is not None
        along = np.asarray(self.paths.change, dtype=np.float64)[..., self.slot : self.slot + p]
        return np.einsum("ribj,b->rij", along, np.sqrt(fractions))


def next_room(room: int, most: int) -> int:
    """The next size of memory: each size compiles, and all of it is read in every step. Doubled while small, then by a half or a third."""
    power = 1 << (room.bit_length() - 1)
    return min(
        2 * power if room < SMALL_ROOM or room > power + power // 4 else power + power // 2, most
    )


@partial(jax.jit, static_argnums=0)
def _kicked(
    setup: conditioning.Setup,
    parameters: Parameters,
    state: Paths,
    places: Places,
    normals: Float[Numeric, "sets p blocks inputs"],
) -> Paths:
    """Replicates that know one more direction for each unit, along which its row is kicked to first order."""
    p, blocks, sample = setup.structure.width, setup.structure.blocks, setup.structure.sample
    probed = replace(setup, probed=True)
    spread, share = input_spread(parameters), jnp.sqrt(parameters["fractions"])
    more, chunks = p + probed.opened, state.P.shape[1]

    def one(paths: Paths, normals: Float[Numeric, "p blocks inputs"]) -> Paths:
        n = normals.shape[-1]
        whole = cut(paths, 1, 0)
        fresh = conditioning.outside(
            whole.P[0].astype(normals.dtype), normals.reshape(p * blocks, n), 2
        )
        fresh = (fresh * jnp.sqrt(n / jnp.sum(fresh**2, axis=-1, keepdims=True))).reshape(
            p, blocks, n
        )
        fresh = spread[:, None] * sample.mixed_inputs(parameters, fresh)
        A = jnp.pad(whole.A[0], ((0, 0), (0, more), (0, 0)))
        A = jax.lax.dynamic_update_slice(
            A, jnp.swapaxes(fresh, 0, 1).astype(A.dtype), (0, places.opened, 0)
        )
        rows = jnp.pad(paths.rows, ((0, 0), (0, 0), (0, more)))
        kick = jnp.eye(p)[:, None, :] * share[:, None]
        change = jax.lax.dynamic_update_slice(jnp.zeros_like(rows), kick, (0, 0, places.opened))
        P = jnp.pad(whole.P, ((0, 0), (0, more), (0, 0)))
        known = conditioning.Known(
            P[0], A, rows, paths.head, paths.spanned, paths.opened + p, whole.selected[0], whole.signals[0],
            jax.tree.map(lambda leaf: leaf[0], whole.given),
        )  # fmt: skip
        kicked = blank(probed, known, whole.quasi[0], paths.origins, A.dtype, 0)
        return cut(kicked._replace(P=P, change=change, drawn=paths.drawn), chunks, 0)

    return jax.vmap(one)(state, normals)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _initial(
    setup: conditioning.Setup,
    room: int,
    slots: int,
    chunks: int,
    storage: str,
    parameters: Parameters,
    algorithm: Parameters,
    T: Float[Numeric, "blocks p K"],
    L: Float[Numeric, "blocks p p"],
    head: Float[Numeric, " p"],
    normals: Float[Numeric, "sets blocks fields inputs"],
    noise: Float[Numeric, "sets n draws"],
    uniform: Float[Numeric, "sets n"],
    directions: Float[Numeric, "sets directions blocks inputs"],
    origins: Numeric,
) -> Paths:
    def one(
        normals: Float[Numeric, "blocks fields inputs"],
        noise: Float[Numeric, "n draws"],
        uniform: Float[Numeric, " n"],
        directions: Float[Numeric, "directions blocks inputs"],
        origins: Numeric,
    ) -> Paths:
        known = conditioning.initial(
            setup, parameters, algorithm, T, L, head, normals, noise, uniform, room
        )
        return cut(
            blank(
                setup, known, jax.scipy.special.ndtri(directions), origins, np.dtype(storage), slots
            ),
            chunks,
            0,
        )

    return jax.vmap(one)(normals, noise, uniform, directions, origins)


@partial(jax.jit, static_argnums=0)
def _observe(setup: conditioning.Setup, parameters: Parameters, paths: Paths) -> dict[str, Any]:
    return jax.vmap(partial(observe, setup, parameters))(paths)


def origins_of(seed: int, replicates: int) -> np.ndarray:
    """Where the counters of each replicate's numbers begin: apart from those of simulations."""
    keys = run_keys(seed, np.arange(replicates) + (1 << 20))
    return np.asarray(jax.vmap(lambda key: jax.random.bits(key, (3,), dtype=jnp.uint64))(keys))


class Points:
    """What is drawn on the host: scrambled Sobol points for the start and the first directions, visits of epochs, normals of kicks."""

    def __init__(self, sweep: Sweep) -> None:
        setup = sweep.setup
        self.setup, self.each, self.replicates, self.seed = (
            setup,
            sweep.each,
            sweep.replicates,
            sweep.seed,
        )
        self.points = sweep.each * sweep.fewer  # of which the first are taken
        self.order, self.cells, self.sets = sweep.order, sweep.cells, sweep.sets
        blocks, sample = sweep.seen_blocks, setup.structure.sample
        self.blocks = blocks
        self.tokens, self.draws = sample.inputs_a_sample, sample.draw_normals
        self.first_count = blocks * setup.first * self.tokens + self.draws
        # quasi-random normals overlap less than by chance, and the many directions of cells make many overlaps (measured: a bias of 2% in a
        # risk at 512 paths a set, beside none)
        each = blocks * self.tokens * (2 if setup.hot else 1)
        table = (
            0
            if setup.visited or not sweep.quasi_random
            else min(DIRECTIONS, max(0, MOST_DIMENSIONS - self.first_count - 1) // each)
        )
        self.shape = (table * (2 if setup.hot else 1), blocks)
        dimensions = self.first_count + 1 + self.shape[0] * blocks * self.tokens
        roots = [
            np.random.SeedSequence(self.seed, spawn_key=(replicate, 1))
            for replicate in range(self.replicates)
        ]
        sets = [
            qmc.Sobol(dimensions, rng=np.random.default_rng(root)).random(self.each).T
            for root in roots
        ]
        # the points are multiples of 2^-30: the middle of each cell, never 0 or 1
        self.uniform = np.stack(sets) + 2.0**-31
        self.kept: tuple[int, Any] = (-1, None)

    def first(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Normals (replicate, blocks, K + p, inputs), those of the draws (replicate, n, ...), uniforms of a selection (replicate, n)."""
        uniform = self.uniform[:, : self.first_count + 1]
        normals = special.ndtri(uniform[:, :-1])
        # in the limit the signals' fields, the start's and normal draws are uncorrelated: on these paths they are made so. Discrete
        # draws are read off the last vectors, which stay
        count = normals.shape[1] - (0 if self.setup.structure.sample.all_normal else self.draws)
        if LEAST_A_VECTOR * count <= self.each:
            normals[:, :count] = _uncorrelated(normals[:, :count])
        shape = (self.blocks, self.setup.first)
        noise = np.moveaxis(normals[:, -self.draws :], 1, 2)
        return self.by_path(normals[:, : -self.draws], shape), noise, uniform[:, -1]

    def directions(self) -> np.ndarray:
        """Uniforms (replicate, direction, blocks, inputs) of the first directions."""
        return self.by_path(self.uniform[:, self.first_count + 1 :], self.shape)

    def by_path(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """(replicate, shape x tokens, n) as (replicate, *shape, inputs): the tokens of a path stand together."""
        apart = values.reshape(self.replicates, *shape, self.tokens, self.each)
        return np.swapaxes(apart, -1, -2).reshape(*apart.shape[:-2], self.each * self.tokens)

    def visits(self, now: int, end: int) -> tuple[list[Visits] | None, int]:
        """Which paths are visited from a cell on, for each group of replicates, and up to which cell that is known.

        Every replicate has a generator of its own for each epoch, so that an epoch visits its paths in the same order whatever the number
        of its cells: what that number changes is then seen with little noise.
        """
        if not self.order:
            return None, end
        first = now // self.cells // EPOCHS_AT_A_TIME * EPOCHS_AT_A_TIME
        if self.kept[0] != first:
            # one more epoch: the last cell of the others looks ahead
            epochs = [
                0 if self.order == "fixed" else first + epoch
                for epoch in range(EPOCHS_AT_A_TIME + 1)
            ]
            roots = [
                [
                    np.random.SeedSequence(self.seed, spawn_key=(replicate, 3, epoch))
                    for epoch in epochs
                ]
                for replicate in range(self.replicates)
            ]
            drawn = [
                [sequences(self.order, self.each, np.random.default_rng(root)) for root in row]
                for row in roots
            ]
            found = np.array(drawn, dtype=np.int32)
            parts = [
                found[start : start + self.sets] for start in range(0, self.replicates, self.sets)
            ]
            self.kept = (
                first,
                [Visits(part, np.int64(first), np.int64(self.cells)) for part in parts],
            )
        return self.kept[1], min(end, (first + EPOCHS_AT_A_TIME) * self.cells)

    def probe(self) -> np.ndarray:
        """Normals (replicate, unit, blocks, inputs) of a kick, the same whenever it is asked for."""
        shape = (self.points, self.setup.structure.width, self.setup.structure.blocks, self.tokens)
        roots = [
            np.random.SeedSequence(self.seed, spawn_key=(replicate, 2))
            for replicate in range(self.replicates)
        ]
        drawn = np.stack(
            [np.random.default_rng(root).standard_normal(shape)[: self.each] for root in roots]
        )
        drawn = np.moveaxis(drawn, 1, -2)
        return drawn.reshape(*drawn.shape[:-2], -1)


def _uncorrelated(vectors: np.ndarray) -> np.ndarray:
    """vectors (..., count, n) with V V^T/n = I: the nearest ones."""
    values, turn = np.linalg.eigh(
        np.einsum("...kn,...ln->...kl", vectors, vectors) / vectors.shape[-1]
    )
    return np.einsum(
        "...ki,...i,...li,...ln->...kn", turn, values**-0.5, turn, vectors, optimize=True
    )


def _of_all(parts: list[np.ndarray]) -> np.ndarray:
    """Rows of all replicates, (replicate, unit, blocks, directions), whose memory may have grown at different times."""
    longest = max(part.shape[-1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, longest - part.shape[-1]))) for part in parts]
    )


def _correlations(rows: list[np.ndarray]) -> np.ndarray:
    """C(t, t') (replicate, t, t', unit, unit') from rows (replicate, unit, blocks, directions) of growing length."""
    longest = max(part.shape[-1] for part in rows)
    full = np.stack(
        [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, longest - part.shape[-1]))) for part in rows],
        axis=1,
    )
    return np.einsum("rtpbk,rsqbk->rtspq", full, full)
