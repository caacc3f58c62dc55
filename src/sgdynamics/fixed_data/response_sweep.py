"""DMFT in the response form (`fixed_data.response_form`): which problems and algorithms it is for, and the sweep over its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.algorithms.fixed_data import FixedData, MultiPassSGD
from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.fixed_data import response_form
from sgdynamics.fixed_data.conditioning import SMALLEST, Setup
from sgdynamics.fixed_data.dmft import FIRST_ROOM, Points, Sweep, next_room, origins_of
from sgdynamics.fixed_data.paths import chunks_for
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.input_covariance import eigenvalues

ORDERS = ("reshuffle", "replacement")  # of epochs
A_ROW = 10  # paths for each input, a signal or a row at some time: with half as many the overlaps need not be positive
DIMENSIONS_A_ROW = 2.0  # that count (`paths_per_row`), likewise: 2.2 were enough, 1.1 were not
FEW_BLOCKS = (
    4  # from so many on this form is taken unless another is asked for: below, it saves little
)
# of the samples in a batch: beyond, gradients are too near to those of earlier steps (measured: .9 failed at 13 paths an input, and so did
# one order for all epochs, at 20 in the third)
MOST_FRACTION = 0.5
CHUNK = 256  # paths at a time on a CPU: they stay in its cache


class DependentFields(ValueError):
    """Fields that follow from earlier ones: the response form has no derivatives in them."""


def response_form_obstacle(problem: Problem, algorithm: FixedData) -> str:
    """Why this form is not for a problem and an algorithm; empty where it is."""
    sample = problem.structure.sample
    fresh = type(algorithm) is MultiPassSGD and algorithm.batch_fraction <= MOST_FRACTION
    if not fresh and algorithm.order not in ORDERS:
        return (
            "each step must add noise of its own. Use sgd.MultiPassSGD with batch_fraction at most "
            f"{MOST_FRACTION}, or sgd.EpochSGD with order 'reshuffle' or 'replacement'"
        )
    if sample.tokens is not None or not sample.centred or sample.noisy_inputs or sample.contexts:
        return (
            "this form supports samples of one centred input, without input noise. "
            "Use such a problem"
        )
    return ""


def paths_per_row(problem: Problem, algorithm: FixedData) -> float:
    """Paths of a set for each input: enough, and so many that what sampling adds is less than the noise there is in every block.

    Rows that move by noise have N_b as l_b^2 d_b, with all N_b together the inputs: d_b is above N_b in all blocks where
    sum_b l_b^2 d_b/max l^2, the dimensions that count, is above the inputs.
    """
    values, shares = (np.asarray(problem.parameters[name]) for name in ("eigenvalues", "fractions"))
    counted = (
        np.sum(shares * values**2) / np.max(values) ** 2 / algorithm.samples_per_dimension
    )  # for each path
    return max(A_ROW, DIMENSIONS_A_ROW / counted)


def paths_needed(problem: Problem, algorithm: FixedData, steps: float) -> float:
    """The same for all inputs that are known after so many steps."""
    return paths_per_row(problem, algorithm) * response_form.slots(
        Setup(problem.structure, True, False), steps
    )


def singular(problem: Problem, begin: Start) -> bool:
    """Whether fields of a start follow from each other, in one of its runs."""
    frame, values = (
        np.asarray(problem.parameters["frame"]),
        np.asarray(eigenvalues(problem.parameters)),
    )
    return any(
        response_form.start_of(frame, *rows, values).singular
        for rows in zip(*compressed_rows(problem, begin), strict=True)
    )


class ResponseSweep(Sweep):
    """Replicates of the effective process in the response form."""

    form: ClassVar[str] = "response"
    quasi_random: ClassVar[bool] = False
    less_memory: ClassVar[str] = (
        "Use fewer paths or steps, sgd.simulate, or sgd.DMFT(dtype='float32')."
    )
    sweeps_a_pair: ClassVar[int] = 0

    @property
    def seen_blocks(self) -> int:
        return 1

    def work(self, directions: float) -> float:
        p, blocks = self.setup.structure.width, self.setup.structure.blocks
        return 4.0 * p * self.replicates * (self.inputs + blocks * directions) * directions

    def needed(self, steps: float) -> float:
        return response_form.slots(self.setup, steps)

    def held(self, directions: int) -> int:
        """Bytes of one replicate: z and g, overlaps and responses of all blocks, and the factor."""
        paths, blocks = 2 * self.dtype.itemsize * self.inputs, self.setup.structure.blocks
        return paths * directions + 8 * (2 * blocks + 1) * directions**2

    def initial(self, begin: Start, points: Points) -> list[Any]:
        T, L = compressed_rows(self.problem, begin)
        start = response_form.start_of(
            np.asarray(self.parameters["frame"]),
            T[0],
            L[0],
            np.asarray(eigenvalues(self.parameters)),
        )
        setup = self.setup
        smallest = FIRST_ROOM if setup.visited else SMALLEST
        room = min(
            max(smallest, setup.first + 2 * setup.opened),
            max(self.most, setup.first + setup.opened),
        )
        normals, noise, uniform = points.first()
        drawn = (normals[:, 0], noise, uniform, origins_of(self.seed, self.replicates))
        sets = self.sets
        numbers = (self.numbers[:3], start, begin.a[0])
        fixed = (setup, room, chunks_for(setup, self.inputs, CHUNK), str(self.dtype))
        groups = []
        for first in range(0, self.replicates, sets):
            part = tuple(value[first : first + sets] for value in drawn)
            groups.append(_Group(_initial(*fixed, *numbers, *part), sets))
        return groups

    def advance(
        self, groups: list[Any], visits: list[Visits] | None, now: int, end: int, most: int
    ) -> None:
        super().advance(groups, visits, now, end, most)
        lost = np.concatenate([np.asarray(group.paths.lost) for group in groups])
        if np.any(lost >= 0):
            where = int(lost[lost >= 0].min())
            raise DependentFields(
                f"After step {where} the fields of the {self.each} paths of a replicate are linear "
                "combinations of earlier fields, or their overlaps are not positive definite. Use "
                "more paths, fewer steps or form='projections'."
            )

    def check_paths(self, steps: int, rank: int | None) -> None:
        """Nothing to check: this form needs more paths than that, and is not chosen with fewer."""

    def observer(self, group: Any) -> Any:
        return partial(_observe, number=np.int64(group.number))

    def pairs(self, count: int) -> Any:
        return _Pairs(self)

    def finish(self, groups: list[Any]) -> None:
        self.rank = max(
            self.rank, self.setup.structure.width * max(group.number for group in groups)
        )


@dataclass
class _Group:
    """Replicates that go together (leading axis), where they stand, and the last steps at which they were finite."""

    paths: response_form.ResponsePaths
    sets: int
    number: int = 0
    settled: bool = False
    good: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def room(self) -> int:
        return self.paths.z.shape[2]

    def setup(self, setup: Setup) -> Setup:
        return setup

    def go(
        self,
        setup: Setup,
        numbers: PyTree,
        visits: Visits | None,
        now: int,
        end: int,
        most: int,
        memory: Any,
    ) -> None:
        """To step `end`, with memory made on the way."""
        self.number, self.good = now, np.full(self.sets, now, dtype=np.int64)
        while True:
            moved = (
                np.bool_(self.settled),
                visits,
                np.int64(self.number),
                self.good,
                np.int64(end),
            )
            self.paths, number, good = response_form.advanced(
                setup, numbers[:3], self.paths, *moved
            )
            self.number, self.good, self.settled = int(number), np.asarray(good), True
            if self.number >= end or self.room >= most:
                return
            self.paths = response_form.widened(self.paths, next_room(self.room, most))


class _Pairs:
    """C and R at pairs of save points, which this form has anyway."""

    def __init__(self, sweep: ResponseSweep) -> None:
        self.sweep = sweep
        self.steps: list[int] = []

    def advance(self, visits: list[Visits] | None, now: int, end: int) -> None:
        """Nothing more is to be solved."""

    def note(self, groups: list[_Group], points: Points, now: int) -> None:
        self.steps.append(now)

    def found(self, groups: list[_Group]) -> dict[str, np.ndarray]:
        structure = self.sweep.setup.structure
        slots = (
            structure.signals
            + structure.width * np.array(self.steps)[:, None]
            + np.arange(structure.width)
        )
        parts = {
            "C": ("overlaps", np.ones(structure.blocks)),
            "R": ("responses", self.sweep.parameters["fractions"]),
        }
        result = {}
        for name, (kind, weights) in parts.items():
            whole = np.concatenate(
                [
                    np.einsum(
                        "rjbs,b->rjs", np.asarray(getattr(group.paths.scalars, kind)), weights
                    )
                    for group in groups
                ]
            )
            result[name] = whole[:, slots[:, None, :, None], slots[None, :, None, :]]
        return result


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _initial(
    setup: Setup,
    room: int,
    chunks: int,
    storage: str,
    given: tuple[Any, ...],
    start: response_form.Start,
    head: Float[Numeric, " p"],
    normals: Float[Numeric, "sets first n"],
    noise: Float[Numeric, "sets n draws"],
    uniform: Float[Numeric, "sets n"],
    origins: Numeric,
) -> response_form.ResponsePaths:
    def one(*drawn: Any) -> response_form.ResponsePaths:
        return response_form.cut(
            response_form.initial(setup, room, np.dtype(storage), given, start, head, *drawn),
            chunks,
        )

    return jax.vmap(one)(normals, noise, uniform, origins)


@partial(jax.jit, static_argnums=0)
def _observe(
    setup: Setup, parameters: Parameters, paths: response_form.ResponsePaths, number: Any
) -> dict[str, Any]:
    return jax.vmap(lambda one: response_form.observe(setup, parameters, one, number))(paths)
