"""The loop that drives a simulation: groups of runs, pieces of steps, save points, divergence.

Runs are independent, and each has its own random key. They may therefore be divided into groups,
dropped from a batch or copied without an effect on the others. Steps are made in pieces between
which the host looks at the runs; random numbers do not depend on where a piece ends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int

from sgdynamics.base.arrays import Numeric, PyTree, RandomKeys
from sgdynamics.base.padding import power_of_two
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import PIECE_SECONDS, Cost, Meter, meter, next_piece
from sgdynamics.base.random import run_keys
from sgdynamics.base.resources import check_memory, check_work
from sgdynamics.simulation.checkpoints import Checkpoint

# A run has diverged if a coordinate of its rows is larger; the square is still finite in float64.
LARGEST = 1e100
# Number of runs below which a search for first passages does not reduce the batch further.
SMALLEST_BATCH = 64
# A run may stop early at multiples of this number of steps, whatever the save points.
CHECK_STEPS = 100
# Time to compile a batch of another size: the batch is reduced if that saves more.
COMPILE_SECONDS = 3.0
# Least part of the expected gain of a smaller batch that is assumed, whatever the last reduction
# gained: times per step are known to a few percent only.
LEAST_GAIN = 0.1


# (shared values, records of one run, steps made, overlaps of that run) -> records of that run.
# Hashable, because compiled code depends on it.
Observe = Callable[[Any, Any, Any, dict[str, Any]], Any]
# (overlaps at the save points, steps of divergence, steps of stops) of a group of runs -> None.
Consume = Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], None]
# States, the last step at which each run was seen to be finite, and records of the observation.
AdvanceResult = tuple[PyTree, Int[Numeric, " runs"], PyTree]

S = TypeVar("S")


@dataclass(frozen=True)
class RunSetting(Generic[S]):
    """The start of the runs, their size, and how they are simulated.

    Attributes
    ----------
    start : initial condition
        Initial condition of the runs.
    dimension : int
        Dimension of the inputs.
    block_sizes : ndarray
        Dimensions of the covariance blocks.
    method : str, default "exact"
        Method of the simulation: a name in `methods` of the dynamics.
    dtype : str, default "float64"
        Precision of the arrays of direct runs.
    seed : int, default 0
        Seed of all draws that do not belong to a step: data sets and random frames.
    shared_data : bool, default False
        Whether all runs read one data set.
    """

    start: S
    dimension: int
    block_sizes: np.ndarray
    method: str = "exact"
    dtype: str = "float64"
    seed: int = 0
    shared_data: bool = False


class Observation(NamedTuple):
    """A function that updates records of each run after each step.

    Attributes
    ----------
    records : pytree
        Records of the runs, with a leading axis of runs.
    observe : callable or None
        Function (shared, records of one run, steps made, overlaps) -> records.
    shared : pytree
        Values that the function needs and that all runs share.
    """

    records: PyTree = None
    observe: Observe | None = None
    shared: PyTree = None


NO_OBSERVATION = Observation()


@dataclass(frozen=True)
class Resources:
    """Memory and sizes of the runs of a simulator.

    Attributes
    ----------
    bytes_per_run : float
        Approximate memory of one run; 0 if negligible or checked before.
    largest_group : int
        Largest number of runs that fit into memory together.
    size : tuple of int
        Batch, width and dimension, for the message if they are too large.
    group_multiple : int
        Groups of more runs than this are filled up to a multiple of it: the number of devices.
    """

    bytes_per_run: float = 0.0
    largest_group: int = 1 << 14
    size: tuple[int, ...] = ()
    group_multiple: int = 1

    def group_size(self, runs: int) -> int:
        """The size of a group of at least `runs` runs that wastes no device."""
        multiple = self.group_multiple
        return runs if runs <= multiple else -(-runs // multiple) * multiple


class Simulator(ABC):
    """A method of simulation: states of many runs at once, advanced by whole steps.

    Attributes
    ----------
    engine : str
        Name of the engine that makes the steps.
    drops_finished_runs : bool
        Whether a smaller batch saves time; not so if runs that have left cost nothing.
    moves_per_step : float
        Number of moves of the weights per step.
    divides_over_devices : bool
        Whether the runs of a group may be divided among devices (`simulation.devices`).
    on_train : mapping
        Losses whose means over the data set `overlaps` also contains, by name.
    """

    engine: str = "xla"
    drops_finished_runs: bool = True
    divides_over_devices: bool = False
    moves_per_step: float = 1.0
    on_train: Mapping[str, Any] = {}

    @abstractmethod
    def initial(self, chosen: np.ndarray) -> PyTree:
        """States at step 0 of the runs with these indices."""

    @abstractmethod
    def advance(
        self,
        state: PyTree,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        """Advance the runs from step `since` to step `end`.

        Returns
        -------
        state : pytree
            The states at step `end`.
        last_finite : array of int
            The last step at which each run was seen to be finite.
        records : pytree
            The updated records of the observation.
        """

    @abstractmethod
    def overlaps(self, state: PyTree) -> dict[str, Any]:
        """M, Q, a of the states, with a leading axis of runs."""

    @property
    @abstractmethod
    def grain(self) -> int:
        """Number of steps that share their random numbers; pieces end at multiples of it."""

    def with_observation(self, observation: Observation) -> Simulator:
        """The simulator to use with an observation; it may differ from this one."""
        return self

    def resources(self, steps: float = 0.0) -> Resources:
        """Memory and sizes of runs of this many steps."""
        return Resources()

    def leaves(self, state: PyTree) -> list[Any]:
        """The arrays of a state, with a leading axis of runs, for a checkpoint."""
        return jax.tree.leaves(state)

    def train_risk(self, state: PyTree) -> np.ndarray:
        """Mean loss over the data set of each run, if there is a data set."""
        return np.asarray(self.overlaps(state)["train_risk"])

    def restore(self, chosen: np.ndarray, leaves: list[np.ndarray], now: int) -> PyTree:
        """States of these runs at step `now`, from the leaves of a checkpoint."""
        # The initial state defines the structure of the pytree.
        structure = jax.tree.structure(self.initial(chosen))
        return jax.tree.unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves])

    def select_runs(self, state: PyTree, index: np.ndarray) -> PyTree:
        """States of a smaller batch, from the positions of its runs in the present batch."""
        return jax.tree.map(lambda leaf: leaf[index], state)


# ---- save points


def run(
    simulator: Simulator, runs: int, steps: np.ndarray, seed: int, label: str, show: bool | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Simulate runs up to the last save point; see `run_until`."""
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
    checkpoint: Checkpoint | None = None,
    consume: Consume | None = None,
    largest: int | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Simulate runs up to the last save point, or until their train risk is small.

    A run that has stopped keeps its values and leaves the batch, so that it costs nothing.

    Parameters
    ----------
    simulator : Simulator
        The method of simulation.
    runs : int
        Number of runs.
    steps : ndarray
        Save points in steps.
    seed : int
        Seed of the random number generator.
    label : str
        Name of the work in the progress bar.
    show : bool or None
        Whether to show a progress bar.
    stop_at : float or None
        Train risk below which a run stops; it is checked every `CHECK_STEPS` steps.
    checkpoint : Checkpoint, optional
        Folder in which the runs are stored, and from which they continue.
    consume : callable, optional
        Function of the overlaps, the divergences and the stops of each group of runs. With it the
        overlaps of a group are forgotten before the next group starts, and `saved` is empty.
    largest : int, optional
        Largest number of runs of a group, if it is smaller than that of the simulator.

    Returns
    -------
    saved : dict
        Overlaps at the save points, (run, time, ...).
    diverged : ndarray
        Last finite step of each run that diverged, -1 for the others.
    stopped : ndarray
        Step at which each run stopped, -1 for the others.
    """
    check_resources(simulator, runs, float(steps[-1]))
    stored_size = None if checkpoint is None else checkpoint.size
    resources = simulator.resources()
    largest = min(resources.largest_group, largest or runs)
    groups = _groups(runs, stored_size or largest, resources)
    if checkpoint is not None:
        checkpoint.fix_group_size(len(groups[0]))
    # Runs that stop leave the batch, so that the estimate is an upper bound.
    bound = "about" if stop_at is None else "at most"
    cost = Cost("step", f" of {len(groups)} groups of runs" if len(groups) > 1 else "", bound)
    job = _Job(simulator, runs, steps, seed, stop_at, checkpoint)
    with meter(label, float(steps[-1]) * len(groups), show, cost) as progress:
        # One group after the other: two XLA programs at once on the thread pool of a CPU can wait
        # for each other forever.
        results = []
        for group in groups:
            saved, *ends = _run_group(job, group, progress)
            if consume is not None:
                # Runs that only filled up the last group are not counted.
                members = group < runs
                selected = {name: value[members] for name, value in saved.items()}
                consume(selected, *(end[members] for end in ends))
                saved = {}
            results.append((saved, *ends))
    # Runs that only filled up the last group are removed.
    saved = {
        name: np.concatenate([group_saved[name] for group_saved, _, _ in results])[:runs]
        for name in results[0][0]
    }
    diverged = np.concatenate([group_diverged for _, group_diverged, _ in results])[:runs]
    stopped = np.concatenate([group_stopped for _, _, group_stopped in results])[:runs]
    return saved, diverged, stopped


def check_resources(simulator: Simulator, runs: int, steps: float) -> None:
    """Raise ValueError, before anything compiles, if the work or the memory is impossible."""
    resources = simulator.resources(steps)
    check_work("steps", runs, steps, simulator.moves_per_step)
    check_memory(
        "batch (or samples), width and dimension",
        resources.size,
        resources.bytes_per_run,
        "the numbers of one run",
        "use smaller values",
    )


def _groups(runs: int, largest: int, resources: Resources) -> list[np.ndarray]:
    """Indices of the runs in groups of equal size, which share one compiled program.

    The last group is filled up with runs whose results are discarded.
    """
    count = -(-runs // largest)
    size = resources.group_size(-(-runs // count))
    return [np.arange(start, start + size) for start in range(0, runs, size)]


@dataclass(frozen=True)
class _Job:
    """Arguments of `run_until` that all groups of runs share."""

    simulator: Simulator
    runs: int
    steps: np.ndarray
    seed: int
    stop_at: float | None
    checkpoint: Checkpoint | None


class _Group:
    """Runs that advance together.

    A run has two positions: one in the group, which never changes, and one in the batch, from which
    stopped runs are removed.

    Attributes
    ----------
    batch : ndarray
        Position in the group of each run of the batch.
    diverged, stopped : ndarray
        Steps at which the runs of the group diverged or stopped, -1 for the others.
    values : dict
        Latest overlaps of the runs of the group.
    now : int
        Number of steps made.
    piece : int
        Number of steps of the next piece.
    paces : list of float
        Seconds per step of each piece with this batch.
    larger : tuple of int and float, or None
        Size and pace of the batch before the last reduction.
    """

    def __init__(
        self,
        simulator: Simulator,
        runs: int,
        chosen: np.ndarray,
        seed: int,
        stored: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.simulator, self.count, self.first = simulator, len(chosen), int(chosen[0])
        self.batch = np.arange(self.count) if stored is None else stored["batch"]
        self.keys = run_keys(seed, chosen[self.batch])
        # Runs that fill up the last group start as the last run, with keys of their own.
        start_index = np.minimum(chosen, runs - 1)[self.batch]
        self.diverged, self.stopped = np.full((2, self.count), -1, dtype=np.int64)
        self.values: dict[str, np.ndarray] = {}
        self.now, self.piece = 0, simulator.grain
        self.paces: list[float] = []
        self.larger: tuple[int, float] | None = None
        if stored is None:
            self.state = simulator.initial(start_index)
            return
        self.now, self.diverged = int(stored["now"]), stored["diverged"]
        self.stopped, self.values = stored["stopped"], _with_prefix(stored, "value")
        leaves = list(_with_prefix(stored, "state").values())
        self.state = simulator.restore(start_index, leaves, self.now)

    def to_arrays(self, saved: dict[str, list[np.ndarray]], steps: np.ndarray) -> dict[str, Any]:
        """All arrays that a later call needs to continue from here."""
        count = max((len(values) for values in saved.values()), default=0)
        # Names with a prefix: the latest values, the leaves of the state, the save points.
        arrays: dict[str, Any] = {
            "now": self.now,
            "batch": self.batch,
            "diverged": self.diverged,
            "stopped": self.stopped,
            "steps": steps[:count],
        }
        arrays |= {f"value/{name}": value for name, value in self.values.items()}
        # Four digits, so that alphabetical order is the order of the leaves.
        leaves = enumerate(self.simulator.leaves(self.state))
        arrays |= {f"state/{index:04d}": leaf for index, leaf in leaves}
        return arrays | {f"saved/{name}": np.stack(values) for name, values in saved.items()}

    @property
    def going(self) -> np.ndarray:
        """True for the runs that have neither stopped nor diverged."""
        return (self.stopped < 0) & (self.diverged < 0)

    def advance(self, end: int) -> int:
        """Advance the batch to step `end`, and return the number of steps that were made."""
        start_time, steps = time.perf_counter(), end - self.now
        self.state, last_finite, _ = self.simulator.advance(self.state, self.keys, self.now, end)
        # The conversion waits for the device, so that the time is that of the computation.
        last_finite = np.asarray(last_finite)
        elapsed = time.perf_counter() - start_time
        self.piece = next_piece(self.piece, elapsed, self.simulator.grain, PIECE_SECONDS)
        self.paces.append(elapsed / steps)
        newly_diverged = (last_finite < end) & self.going[self.batch]
        self.diverged[self.batch[newly_diverged]] = last_finite[newly_diverged]
        self.now = end
        return steps

    def piece_end(self, target: int) -> int:
        """The step at which the next piece ends, at most `target`."""
        return _piece_end(self.simulator, self.now, target, self.piece)

    def update_values(self) -> None:
        """Read the overlaps of the runs that have not stopped; stopped runs keep theirs."""
        lively = self.stopped[self.batch] < 0
        is_whole = len(self.batch) == self.count and lively.all()
        for name, batch_values in self.simulator.overlaps(self.state).items():
            batch_values = np.asarray(batch_values)
            if is_whole:  # without a copy
                self.values[name] = batch_values
                continue
            shape = (self.count, *batch_values.shape[1:])
            # a new array: the last one may be that of a save point
            values = np.array(self.values.get(name, np.full(shape, np.nan)))
            values[self.batch[lively]] = batch_values[lively]
            self.values[name] = values

    def save(self, saved: dict[str, list[np.ndarray]]) -> None:
        """Append a save point to `saved`, NaN for the runs that have diverged."""
        if not self.values or np.any(self.going):
            self.update_values()
        has_diverged = self.diverged >= 0
        for name, value in self.values.items():
            if has_diverged.any():
                where = has_diverged.reshape(-1, *[1] * (value.ndim - 1))
                value = np.where(where, np.nan, value)
            saved.setdefault(name, []).append(value)

    def stop_below(self, level: float) -> None:
        """Stop the runs with a smaller train risk, with their present values."""
        is_below = self.simulator.train_risk(self.state) < level
        finished = self.batch[is_below & self.going[self.batch]]
        if len(finished):
            self.update_values()
            self.stopped[finished] = self.now

    def shrink(self, last: float) -> None:
        """Reduce the batch to the runs that continue, if that pays over the steps up to `last`."""
        # The first piece contains the compilation. Without a measurement nothing is reduced.
        pace, gain = min(self.paces[1:], default=0.0), 1.0
        if self.larger is not None and self.larger[1] > 0:
            # On a GPU few small runs may take as long as many. The gain is the part of the expected
            # saving that the last reduction achieved: the fraction of time that it saved, relative
            # to the fraction of runs that it dropped.
            size, larger_pace = self.larger
            gain = max(LEAST_GAIN, (1 - pace / larger_pace) / (1 - len(self.batch) / size))
        index = _smaller_batch(self.batch, self.going, min(gain, 1.0) * pace * (last - self.now))
        if index is not None:
            self.state, self.keys = self.simulator.select_runs(self.state, index), self.keys[index]
            self.larger = (len(self.batch), pace)
            self.batch, self.paces = self.batch[index], []


def _with_prefix(stored: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint whose names start with this prefix, in alphabetical order."""
    return {
        name.partition("/")[2]: value
        for name, value in sorted(stored.items())
        if name.startswith(f"{prefix}/")
    }


GroupResult = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


@float64
def _run_group(job: _Job, chosen: np.ndarray, progress: Meter) -> GroupResult:
    """Overlaps at the save points of one group, and the steps at which runs diverged or stopped."""
    steps, stop_at, checkpoint = job.steps, job.stop_at, job.checkpoint
    stored = None if checkpoint is None else checkpoint.read(int(chosen[0]), steps)
    saved: dict[str, list[np.ndarray]] = {}
    n_stored = 0
    if stored is not None:
        n_stored = len(stored["steps"])
        saved = {name: list(value) for name, value in _with_prefix(stored, "saved").items()}
    if stored is not None and n_stored == len(steps):
        # All save points are stored: no state is restored and no data set is drawn.
        progress.advance(0.0, skipped=float(steps[-1]))
        return _stack_times(saved), stored["diverged"], stored["stopped"]
    group = _Group(job.simulator, job.runs, chosen, job.seed, stored)
    progress.advance(0.0, skipped=float(group.now))
    if stop_at is not None and stored is None:
        # Runs that only fill up the group are not waited for.
        group.stopped[chosen >= job.runs] = 0
        group.stop_below(stop_at)

    def write(always: bool = False) -> None:
        """Write the checkpoint if it is due, and end the call if its time is over."""
        if checkpoint is not None and (always or checkpoint.due):
            checkpoint.write(group.first, group.to_arrays(saved, steps))
            if not always:
                checkpoint.stop(group.now, int(steps[-1]))

    for target in steps.tolist()[n_stored:]:
        if stop_at is not None:
            _advance_or_stop(group, target, stop_at, float(steps[-1]), progress, write)
        while group.now < target:
            progress.advance(group.advance(group.piece_end(target)))
            write()
        group.save(saved)
    write(always=True)
    return _stack_times(saved), group.diverged, group.stopped


def _stack_times(saved: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays (run, time, ...) from lists of arrays (run, ...)."""
    return {name: np.stack(values, axis=1) for name, values in saved.items()}


def _advance_or_stop(
    group: _Group,
    target: int,
    stop_at: float,
    last: float,
    progress: Meter,
    write: Callable[[], None],
) -> None:
    """Advance to step `target`, or until no run is left, and check the train risks on the way."""
    while group.now < target and np.any(group.going):
        # Checks are at multiples of CHECK_STEPS, so that save points do not change where runs stop.
        next_check = (group.now // CHECK_STEPS + 1) * CHECK_STEPS
        progress.advance(group.advance(min(group.piece_end(target), next_check)))
        if group.now % CHECK_STEPS == 0:
            group.stop_below(stop_at)
            group.shrink(last)
        write()
    if group.now < target:
        progress.advance(0.0, skipped=target - group.now)
        group.now = target


def _smaller_batch(batch: np.ndarray, lively: np.ndarray, seconds: float) -> np.ndarray | None:
    """Positions in the batch of a smaller batch with all lively runs.

    None if a reduction does not pay, given the `seconds` that the present batch still needs. Sizes
    are 1, 2, 3, 4, 6, 8, 12, ...: few programs to compile, and at most a third too large. Copies of
    one run fill up the batch.
    """
    positions = np.flatnonzero(lively[batch])
    # A run may be in the batch twice, as a copy that filled up an earlier one.
    positions = positions[np.unique(batch[positions], return_index=True)[1]]
    if not len(positions):
        return None
    power = power_of_two(len(positions))
    size = 3 * power // 4 if power >= 4 and len(positions) <= 3 * power // 4 else power
    if size >= len(batch) or seconds * (1 - size / len(batch)) <= COMPILE_SECONDS:
        return None
    return np.concatenate([positions, np.full(size - len(positions), positions[0])])


def _piece_end(simulator: Simulator, now: int, target: int, piece: int) -> int:
    """End of the next piece: a multiple of the grain, or `target`.

    A span that is cut in two draws its random numbers twice.
    """
    return min(target, (now // simulator.grain) * simulator.grain + piece)


# ---- first passages


class _Passages(NamedTuple):
    """Results of `first_passage`, which the groups fill in.

    Attributes
    ----------
    left : ndarray
        Step at which each run left, NaN for the others.
    diverged : ndarray of bool
        Whether each run diverged.
    """

    left: np.ndarray
    diverged: np.ndarray


def first_passage(
    simulator: Simulator,
    observation: Observation,
    last: int,
    seed: int,
    label: str,
    show: bool | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the step at which each run leaves, up to step `last`.

    Runs that have left or diverged are dropped from the batch.

    Parameters
    ----------
    simulator : Simulator
        The method of simulation.
    observation : Observation
        Function that writes this step into records["left"], which is -1 before.
    last : int
        Largest number of steps.
    seed : int
        Seed of the random number generator.
    label : str
        Name of the work in the progress bar.
    show : bool or None
        Whether to show a progress bar.

    Returns
    -------
    left : ndarray
        Step at which each run left, NaN if it had not left by step `last`.
    diverged : ndarray of bool
        Whether each run diverged.
    """
    assert observation.observe is not None
    runs = len(observation.records["left"])
    simulator = simulator.with_observation(observation)
    check_resources(simulator, runs, float(last))
    resources = simulator.resources()
    groups = _groups(runs, resources.largest_group, resources)
    passages = _Passages(np.full(runs, np.nan), np.zeros(runs, dtype=bool))
    # Runs end where they leave, so that the estimate is an upper bound.
    cost = Cost("step", f" of {runs} runs" if runs > 1 else "", "at most")
    with meter(label, float(last) * runs, show, cost) as progress:
        for group in groups:
            # Copies of the last run fill up its group: with its index they have its key, and write
            # the same result again.
            chosen = np.minimum(group, runs - 1)
            _find_passages(simulator, observation, chosen, last, seed, progress, passages)
    return passages


@float64
def _find_passages(
    simulator: Simulator,
    observation: Observation,
    chosen: np.ndarray,
    last: int,
    seed: int,
    progress: Meter,
    passages: _Passages,
) -> None:
    """Fill in the first passages of one group of runs."""
    state, keys = simulator.initial(chosen), run_keys(seed, chosen)
    records: Any = jax.tree.map(lambda leaf: leaf[chosen], observation.records)
    now, piece = 0, simulator.grain
    alive = np.ones(len(chosen), dtype=bool)
    while now < last and alive.any():
        end = _piece_end(simulator, now, last, piece)
        start_time = time.perf_counter()
        state, last_finite, records = simulator.advance(
            state, keys, now, end, observation._replace(records=records)
        )
        left, last_finite = np.asarray(records["left"]), np.asarray(last_finite)
        elapsed = time.perf_counter() - start_time
        piece = next_piece(piece, elapsed, simulator.grain, PIECE_SECONDS)
        has_left = alive & (left >= 0)
        passages.left[chosen[has_left]] = left[has_left]
        # A run that left before it diverged counts as left.
        has_diverged = alive & (left < 0) & (last_finite < end)
        passages.diverged[chosen[has_diverged]] = True
        progress.advance(
            float((end - now) * alive.sum()),
            skipped=float((last - end) * (has_left.sum() + has_diverged.sum())),
        )
        alive &= ~(has_left | has_diverged)
        now = end
        size = len(chosen)
        if simulator.drops_finished_runs:
            size = _reduced_size(int(alive.sum()), size)
        if 0 < size < len(chosen):
            # Copies of a run that is still alive fill up the batch. They are not alive themselves.
            index = np.resize(np.flatnonzero(alive), size)
            index[alive.sum() :] = index[0]
            chosen, keys = chosen[index], keys[index]
            state = simulator.select_runs(state, index)
            records = jax.tree.map(lambda leaf, index=index: leaf[index], records)
            alive = np.arange(size) < alive.sum()


def _reduced_size(alive: int, size: int) -> int:
    """Size of the batch for the runs that are left.

    Each size is compiled anew. A large batch is halved when half of its runs are left; a small one,
    whose compilation weighs more, is reduced when a quarter is left.
    """
    while size > SMALLEST_BATCH:
        share = 2 if size >= 512 else 4
        if alive > size // share:
            break
        size = max(size // share, SMALLEST_BATCH)
    return size if alive else 0
