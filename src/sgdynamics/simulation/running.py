"""The loop that drives a simulation: runs in groups, steps in pieces, save points, progress, divergence."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sgdynamics.base.arrays import PyTree, RandomKeys
from sgdynamics.base.padding import power_of_two
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import PIECE_SECONDS, Cost, Meter, meter, next_piece
from sgdynamics.base.random import run_keys
from sgdynamics.base.resources import check_memory, check_work
from sgdynamics.simulation.checkpoints import Checkpoint

LARGEST = 1e100  # rows beyond this have diverged; their squares still fit in float64
SMALLEST_BATCH = 64  # runs below which dropping more saves nothing
CHECK_STEPS = 100  # a run may stop early at multiples of this, whatever its save points
COMPILE_SECONDS = (
    3.0  # what a batch of another size costs: it is made smaller where that saves more
)
LEAST_GAIN = 0.1  # of what a smaller batch saves, however little the last one did: a pace is known to a few percent


# (given, seen by one run, steps made, overlaps of that run) -> seen; hashable, for compiled code
Observe = Callable[[Any, Any, Any, dict[str, Any]], Any]
AdvanceResult = tuple[
    Any, Any, Any
]  # states, for each run the last step at which it was finite, and what was seen


class Observation(NamedTuple):
    """What is noted after each step: seen (of every run) -> see(given, seen, steps made, state)."""

    records: Any = None
    observe: Observe | None = None
    shared: Any = None


NO_OBSERVATION = Observation()


class Simulator(ABC):
    """A way to simulate: states of many runs at once, advanced by whole steps."""

    engine: str = "xla"  # what makes the steps
    drops_finished_runs: bool = True  # whether a smaller batch of runs pays; where runs that have left cost nothing it does not
    moves_per_step: float = 1.0  # moves of the weights that one step makes
    on_train: Mapping[
        str, Any
    ] = {}  # losses whose mean over the data set `overlaps` gives too, by name

    @abstractmethod
    def initial(self, chosen: np.ndarray) -> Any:
        """The states of these runs at step 0."""

    @abstractmethod
    def advance(
        self,
        state: PyTree,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        """The states at step `end`, for each run the last step at which it was finite, and what `see` noted after each step."""

    @abstractmethod
    def overlaps(self, state: PyTree) -> dict[str, Any]:
        """M, Q, a of the states, with a leading run axis."""

    @property
    @abstractmethod
    def grain(self) -> int:
        """Steps that are best taken together."""

    def with_observation(self, observation: Observation) -> Simulator:
        """The simulator that can note this after each step."""
        return self

    def largest_group(self) -> int:
        """How many runs fit into memory at once."""
        return 1 << 14

    @property
    def size(self) -> tuple[Any, ...]:
        """Batch, width and dimension, for what is said where they are too large."""
        return ()

    def bytes_per_run(self, steps: float = 0.0) -> float:
        """What one run of so many steps takes in memory, about; 0 where that is nothing to speak of, or has been checked before."""
        return 0.0

    def train_risk(self, state: PyTree) -> np.ndarray:
        """The mean loss over the data set of each run, where there is one."""
        return np.asarray(self.overlaps(state)["train_risk"])

    def restore(self, chosen: np.ndarray, leaves: list[np.ndarray], now: int) -> Any:
        """The states of these runs at step `now`, from the leaves that an earlier simulator had."""
        return jax.tree.unflatten(
            jax.tree.structure(self.initial(chosen)), [jax.numpy.asarray(one) for one in leaves]
        )

    def select_runs(self, state: PyTree, index: np.ndarray) -> Any:
        """The states of some of the runs, which then are the batch."""
        return jax.tree.map(lambda leaf: leaf[index], state)


def run(
    simulator: Simulator, runs: int, steps: np.ndarray, seed: int, label: str, show: bool | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Overlaps (run, time, ...) at the save points, and the last finite step of each run that diverged (-1 elsewhere)."""
    saved, diverged, _ = run_until(simulator, runs, steps, seed, label, show, None)
    return saved, diverged


def run_until(
    simulator: Simulator,
    runs: int,
    steps: np.ndarray,
    seed: int,
    label: str,
    show: bool | None,
    stop_at: float | None,
    kept: Checkpoint | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The same, and the step at which the train risk of each run was first seen below `stop_at` (-1 elsewhere), every 100 steps.

    From there on a run keeps its values, and it leaves the batch, so that it costs nothing. With a checkpoint it goes on from there.
    """
    check_resources(simulator, runs, float(steps[-1]))
    groups = _groups(runs, (kept and kept.size) or simulator.largest_group())
    if kept is not None:
        kept.begin(len(groups[0]))
    # one group after the other: two XLA programs at once on the CPU's one thread pool can wait for each other for ever
    of = f" of {len(groups)} groups of runs" if len(groups) > 1 else ""
    cost = Cost(
        "step", of, "about" if stop_at is None else "at most"
    )  # runs that stop leave the batch
    with meter(label, float(steps[-1]) * len(groups), show, cost) as progress:
        results = [
            _run_group(simulator, runs, group, steps, seed, progress, stop_at, kept)
            for group in groups
        ]
    saved = {
        name: np.concatenate([part[0][name] for part in results])[:runs] for name in results[0][0]
    }
    diverged, stopped = (
        np.concatenate(parts)[:runs] for parts in zip(*(part[1:] for part in results), strict=True)
    )
    return saved, diverged, stopped


def check_resources(simulator: Simulator, runs: int, steps: float) -> None:
    """Refuse, before anything compiles, what nobody can wait for and what one run alone has no room for."""
    check_work("steps", runs, steps, simulator.moves_per_step)
    needed = simulator.bytes_per_run(steps)
    check_memory(
        "batch (or samples), width and dimension",
        simulator.size,
        needed,
        "the numbers of one run",
        "take smaller ones",
    )


def _groups(runs: int, largest: int) -> list[np.ndarray]:
    """Equal groups of runs (so that they share one compilation); the last is filled up with runs that are thrown away."""
    count = -(-runs // largest)
    size = -(-runs // count)
    return [np.arange(start, start + size) for start in range(0, runs, size)]


class _Group:
    """Runs that go together: their states, how far they are, which have diverged or stopped, and their latest values."""

    def __init__(
        self,
        simulator: Simulator,
        runs: int,
        chosen: np.ndarray,
        seed: int,
        kept: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.simulator, self.count, self.first = simulator, len(chosen), int(chosen[0])
        self.batch = (
            np.arange(self.count) if kept is None else kept["batch"]
        )  # which of the group's runs the states belong to
        self.keys, there = (
            run_keys(seed, chosen[self.batch]),
            np.minimum(chosen, runs - 1)[self.batch],
        )
        self.diverged, self.stopped = np.full((2, self.count), -1, dtype=np.int64)
        self.values: dict[str, np.ndarray] = {}
        self.now, self.piece = 0, simulator.grain
        self.paces: list[float] = []  # seconds a step of each piece with this batch
        self.larger: tuple[int, float] | None = None  # the size of the last batch, and its pace
        if kept is None:
            self.state = simulator.initial(there)
            return
        self.now, self.diverged, self.stopped = int(kept["now"]), kept["diverged"], kept["stopped"]
        self.values = _named(kept, "value")
        self.state = simulator.restore(there, list(_named(kept, "state").values()), self.now)

    def kept(self, saved: dict[str, list[np.ndarray]], steps: np.ndarray) -> dict[str, Any]:
        """All that a later call needs to go on from here."""
        done = max((len(values) for values in saved.values()), default=0)
        found: dict[str, Any] = {
            "now": self.now,
            "batch": self.batch,
            "diverged": self.diverged,
            "stopped": self.stopped,
        }
        found |= {"steps": steps[:done]} | {
            f"value/{name}": value for name, value in self.values.items()
        }
        found |= {
            f"state/{number:04d}": leaf for number, leaf in enumerate(jax.tree.leaves(self.state))
        }
        return found | {f"saved/{name}": np.stack(values) for name, values in saved.items()}

    @property
    def going(self) -> np.ndarray:
        return (self.stopped < 0) & (self.diverged < 0)

    def advance(self, end: int) -> int:
        """On to step `end`; how many steps that were."""
        began, made = time.perf_counter(), end - self.now
        self.state, good, _ = self.simulator.advance(self.state, self.keys, self.now, end)
        good = np.asarray(good)
        elapsed = time.perf_counter() - began
        self.piece = next_piece(self.piece, elapsed, self.simulator.grain, PIECE_SECONDS)
        self.paces.append(elapsed / made)
        newly = (good < end) & self.going[self.batch]
        self.diverged[self.batch[newly]] = good[newly]
        self.now = end
        return made

    def piece_end(self, target: int) -> int:
        return _piece_end(self.simulator, self.now, target, self.piece)

    def note(self) -> None:
        """Values of the runs that have not stopped; the others keep theirs."""
        lively = self.stopped[self.batch] < 0
        for name, value in self.simulator.overlaps(self.state).items():
            value = np.asarray(value)
            into = self.values.setdefault(name, np.full((self.count, *value.shape[1:]), np.nan))
            into[self.batch[lively]] = value[lively]

    def save(self, saved: dict[str, list[np.ndarray]]) -> None:
        """One more save point, NaN where a run has diverged."""
        if not self.values or np.any(self.going):
            self.note()
        for name, value in self.values.items():
            gone = (self.diverged >= 0).reshape(-1, *[1] * (value.ndim - 1))
            saved.setdefault(name, []).append(np.where(gone, np.nan, value))

    def stop_below(self, level: float) -> None:
        """Runs with a smaller train risk stop here, with the values that they have now."""
        done = self.batch[(self.simulator.train_risk(self.state) < level) & self.going[self.batch]]
        if len(done):
            self.note()
            self.stopped[done] = self.now

    def shrink(self, last: float) -> None:
        """A smaller batch for the runs that go on, where that pays over the steps up to `last`."""
        pace, gain = (
            min(self.paces[1:], default=0.0),
            1.0,
        )  # the first piece has compiled its program
        if self.larger is not None and self.larger[1] > 0:
            # small runs take as long on a GPU however many they are: what the last smaller batch saved, of the share that it left out
            size, before = self.larger
            gain = max(LEAST_GAIN, (1 - pace / before) / (1 - len(self.batch) / size))
        index = _smaller(self.batch, self.going, min(gain, 1.0) * pace * (last - self.now))
        if index is not None:
            self.state, self.keys = self.simulator.select_runs(self.state, index), self.keys[index]
            self.larger = (len(self.batch), pace)
            self.batch, self.paces = self.batch[index], []


def _named(kept: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """What a checkpoint has of one kind."""
    return {
        name.partition("/")[2]: value
        for name, value in sorted(kept.items())
        if name.startswith(f"{kind}/")
    }


@float64
def _run_group(
    simulator: Simulator,
    runs: int,
    chosen: np.ndarray,
    steps: np.ndarray,
    seed: int,
    progress: Meter,
    stop_at: float | None,
    kept: Checkpoint | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    found = None if kept is None else kept.read(int(chosen[0]), steps)
    saved: dict[str, list[np.ndarray]] = (
        {}
        if found is None
        else {name: list(value) for name, value in _named(found, "saved").items()}
    )
    if found is not None and len(found["steps"]) == len(
        steps
    ):  # no data set is made again for what is there
        progress.advance(0.0, skipped=float(steps[-1]))
        return (
            {name: np.stack(values, axis=1) for name, values in saved.items()},
            found["diverged"],
            found["stopped"],
        )
    group = _Group(simulator, runs, chosen, seed, found)
    progress.advance(0.0, skipped=float(group.now))
    if stop_at is not None and found is None:
        group.stopped[chosen >= runs] = 0  # nobody waits for what only fills up the group
        group.stop_below(stop_at)

    def write(enough: bool = False) -> None:
        """Into the checkpoint, now and then or where it is `enough`; past its time the call ends here."""
        if kept is not None and (enough or kept.due):
            kept.write(group.first, group.kept(saved, steps))
            if not enough:
                kept.stop(group.now, int(steps[-1]))

    for target in steps.tolist()[0 if found is None else len(found["steps"]) :]:
        if stop_at is not None:
            _go_and_stop(group, target, stop_at, float(steps[-1]), progress, write)
        while group.now < target:
            progress.advance(group.advance(group.piece_end(target)))
            write()
        group.save(saved)
    write(enough=True)
    return (
        {name: np.stack(values, axis=1) for name, values in saved.items()},
        group.diverged,
        group.stopped,
    )


def _go_and_stop(
    group: _Group,
    target: int,
    stop_at: float,
    last: float,
    progress: Meter,
    write: Callable[[], None],
) -> None:
    """On to step `target` or until no run is left, looking at train risks on the way."""
    while group.now < target and np.any(group.going):
        check = (group.now // CHECK_STEPS + 1) * CHECK_STEPS
        progress.advance(group.advance(min(group.piece_end(target), check)))
        if group.now % CHECK_STEPS == 0:
            group.stop_below(stop_at)
            group.shrink(last)
        write()
    if group.now < target:
        progress.advance(0.0, skipped=target - group.now)
        group.now = target


def _smaller(batch: np.ndarray, lively: np.ndarray, seconds: float) -> np.ndarray | None:
    """What to keep of a batch so that it holds the lively runs; None where that would not pay over the `seconds` that are left.

    Sizes are 1, 2, 3, 4, 6, 8, 12, ...: few to compile, at most a third too large; filled up with copies of a run that is there.
    """
    places = np.flatnonzero(lively[batch])
    # copies that filled up an earlier batch are not wanted twice
    places = places[np.unique(batch[places], return_index=True)[1]]
    if not len(places):
        return None
    power = power_of_two(len(places))
    size = 3 * power // 4 if power >= 4 and len(places) <= 3 * power // 4 else power
    if size >= len(batch) or seconds * (1 - size / len(batch)) <= COMPILE_SECONDS:
        return None
    return np.concatenate([places, np.full(size - len(places), places[0])])


def _piece_end(simulator: Simulator, now: int, target: int, piece: int) -> int:
    """Pieces end on multiples of the grain: a span cut in two draws its random numbers twice."""
    return min(target, (now // simulator.grain) * simulator.grain + piece)


def first_passage(
    simulator: Simulator,
    observation: Observation,
    last: int,
    seed: int,
    label: str,
    show: bool | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The step at which each run was first seen to have left (NaN where it had not by step `last`), and which runs diverged.

    `see` writes that step into seen["left"], -1 before. Runs that have left or diverged are dropped from the batch as it goes.
    """
    seen, see, given = observation
    assert see is not None
    runs = len(seen["left"])
    simulator = simulator.with_observation(observation)
    check_resources(simulator, runs, float(last))
    groups = _groups(runs, simulator.largest_group())
    left, diverged = np.full(runs, np.nan), np.zeros(runs, dtype=bool)
    cost = Cost(
        "step", f" of {runs} runs" if runs > 1 else "", "at most"
    )  # runs stop where they leave
    with meter(label, float(last) * runs, show, cost) as progress:
        for group in groups:
            _first_passage_group(
                simulator,
                np.minimum(group, runs - 1),
                seen,
                see,
                given,
                last,
                seed,
                progress,
                left,
                diverged,
            )
    return left, diverged


@float64
def _first_passage_group(
    simulator: Simulator,
    chosen: np.ndarray,
    seen: dict[str, np.ndarray],
    see: Observe,
    given: PyTree,
    last: int,
    seed: int,
    progress: Meter,
    left: np.ndarray,
    diverged: np.ndarray,
) -> None:
    state, keys = simulator.initial(chosen), run_keys(seed, chosen)
    noted: Any = {name: value[chosen] for name, value in seen.items()}
    now, piece = 0, simulator.grain
    alive = np.ones(len(chosen), dtype=bool)
    while now < last and alive.any():
        end = _piece_end(simulator, now, last, piece)
        began = time.perf_counter()
        state, good, noted = simulator.advance(
            state, keys, now, end, Observation(noted, see, given)
        )
        when, good = np.asarray(noted["left"]), np.asarray(good)
        piece = next_piece(piece, time.perf_counter() - began, simulator.grain, PIECE_SECONDS)
        gone = alive & (when >= 0)
        left[chosen[gone]] = when[gone]
        blown = alive & (when < 0) & (good < end)
        diverged[chosen[blown]] = True
        progress.advance(
            float((end - now) * alive.sum()),
            skipped=float((last - end) * (gone.sum() + blown.sum())),
        )
        alive &= ~(gone | blown)
        now = end
        room = (
            _room(int(alive.sum()), len(chosen)) if simulator.drops_finished_runs else len(chosen)
        )
        if 0 < room < len(chosen):
            # filled up with copies of one run that is still there: they cost little and change nothing
            keep = np.resize(np.flatnonzero(alive), room)
            keep[alive.sum() :] = keep[0]
            chosen, keys = chosen[keep], keys[keep]
            state, noted = (
                simulator.select_runs(state, keep),
                jax.tree.map(lambda leaf, keep=keep: leaf[keep], noted),
            )
            alive = np.arange(room) < alive.sum()


def _room(alive: int, size: int) -> int:
    """The batch for runs that are left. Each size is compiled anew: a large batch is halved, a small one waits for a quarter."""
    while size > SMALLEST_BATCH:
        share = 2 if size >= 512 else 4
        if alive > size // share:
            break
        size = max(size // share, SMALLEST_BATCH)
    return size if alive else 0
