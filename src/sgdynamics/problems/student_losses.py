"""Losses of several students in one problem: rows that learn, rows that label, rows that rest.

The rows of a problem are divided among students. A *lesson* is one student that learns. Its labels
come from *tasks*: the labels of the problem itself, or the outputs of other students, whose rows
are signals for it. Rows that no lesson trains stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.losses import Loss, NetworkLoss
from sgdynamics.problems.moves import Move
from sgdynamics.problems.structure import Structure


@dataclass(frozen=True)
class MixedLoss(NetworkLoss):
    """The loss for labels that are a sum of outputs of other students and of a target.

    ::

        y = sum_j source_head_j s_j(signals_j) + truth_weight target(remaining signals) + noise

    Attributes
    ----------
    sources : tuple of (Activation, int)
        Activations of the rows that label, each with their number.
    truth : NetworkLoss or None
        Loss with the target of the problem itself; None if it does not contribute.
    """

    sources: tuple[tuple[Activation, int], ...]
    truth: NetworkLoss | None

    def target_output(
        self, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        total, first = jnp.zeros(()), 0
        for activation, count in self.sources:
            own = slice(first, first + count)
            total = total + jnp.sum(parameters["source_head"][own] * activation(signals[own]))
            first += count
        if self.truth is None:
            return total
        target = self.truth.target_output(signals[first:], parameters)
        return total + parameters["truth_weight"] * target


@dataclass(frozen=True)
class Task:
    """One source of labels for a student.

    Attributes
    ----------
    structure : Structure
        The student alone, as a problem whose signals are the rows that label, then the signals.
    sources : tuple of int
        Rows that label.
    reads_signals : bool
        Whether the labels also depend on the signals of the problem.
    """

    structure: Structure
    sources: tuple[int, ...] = ()
    reads_signals: bool = True

    def parameters(self, own: Parameters, head: Float[Numeric, " rows"]) -> Parameters:
        """Return the parameters of the task, in which labels have the heads of their rows."""
        if not self.sources:
            return own
        heads = own["source_weights"] * jnp.asarray(head)[np.array(self.sources)]
        if "truth_head" not in own:
            return {**own, "source_head": heads}
        # A committee of labelling rows and teachers: its output is a mean.
        count = self.structure.signals
        return {**own, "teacher_head": jnp.concatenate([count * heads, own["truth_head"]])}


@dataclass(frozen=True)
class Lesson:
    """One student that learns.

    Attributes
    ----------
    rows : tuple of tuple of int
        Rows whose mean each unit is: a single one, except where the mean of several students is
        evaluated.
    tasks : tuple of Task
        Sources of labels, of which each sample draws one.
    input : int
        Index of the input that the student sees.
    trains_head : bool
        Whether the student trains its head.
    """

    rows: tuple[tuple[int, ...], ...]
    tasks: tuple[Task, ...]
    input: int = 0
    trains_head: bool = False

    def selection(self, rows: int) -> np.ndarray:
        """Return the matrix (units, rows) that maps all rows to the units of the student."""
        matrix = np.zeros((len(self.rows), rows))
        for unit, sources in enumerate(self.rows):
            matrix[unit, list(sources)] = 1 / len(sources)
        return matrix


def choose_task(draws: PyTree, lesson: Lesson, inputs: int) -> tuple[Scalar, Scalar | None]:
    """Return the label noise that a lesson sees, and the index of its task (None for one task)."""
    if not isinstance(draws, dict):
        return draws, None
    noise, task = draws["noise"], draws.get("task")
    if inputs == 1:
        return noise, task
    return noise[lesson.input], None if task is None else task[lesson.input]


@dataclass(frozen=True)
class StudentsLoss(Loss):
    """The mean loss of several students, each of which moves along its own gradient.

    Attributes
    ----------
    lessons : tuple of Lesson
        The students that learn.
    inputs : int
        Number of inputs of a sample: 1, or one for each student with data of its own.
    """

    lessons: tuple[Lesson, ...]
    inputs: int = 1
    smooth: bool = False  # type: ignore[override]

    @property
    def independent(self) -> bool:
        """Whether the gradients of different students are independent."""
        return len({lesson.input for lesson in self.lessons}) == len(self.lessons)

    @property
    def kinks(self) -> tuple[float, ...]:
        tasks = [task for lesson in self.lessons for task in lesson.tasks]
        return tuple(sorted({kink for task in tasks for kink in task.structure.kinks}))

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        return self.move(fields, signals, head, noise_draw, parameters)[0]

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        fields, head = jnp.asarray(fields), jnp.asarray(head)
        total = jnp.zeros((), fields.dtype)
        H, head_gradient = jnp.zeros_like(fields), jnp.zeros_like(head)
        for index, lesson in enumerate(self.lessons):
            own_fields = fields if self.inputs == 1 else fields[:, lesson.input]
            own_signals = signals if self.inputs == 1 else signals[:, lesson.input]
            noise, chosen = choose_task(noise_draw, lesson, self.inputs)
            selection = jnp.asarray(lesson.selection(len(fields)), fields.dtype)
            for number, task in enumerate(lesson.tasks):
                own = task.parameters(parameters["lessons"][index][number], head)
                values = sample_gradient(task, own, selection, own_fields, own_signals, head, noise)
                if chosen is not None:
                    values = jax.tree.map(
                        lambda value, number=number, chosen=chosen: jnp.where(
                            chosen == number, value, jnp.zeros_like(value)
                        ),
                        values,
                    )
                loss, h, g = values
                total = total + loss / len(self.lessons)
                H = H + h if self.inputs == 1 else H.at[:, lesson.input].add(h)
                if lesson.trains_head:
                    head_gradient = head_gradient + g
        return total, Move(H, head=head_gradient)


def sample_gradient(
    task: Task,
    parameters: Parameters,
    selection: Float[Numeric, "units p"],
    fields: Float[Numeric, " p"],
    signals: Float[Numeric, " K"],
    head: Float[Numeric, " p"],
    noise: Scalar,
) -> tuple[Numeric, Numeric, Numeric]:
    """Return the loss of one task and its gradients with respect to all fields and heads."""
    read = [fields[np.array(task.sources, dtype=int)]] if task.sources else []
    read += [signals] if task.reads_signals else []
    task_signals = jnp.concatenate(read) if read else signals

    def loss(own_fields: Numeric, own_head: Numeric) -> Numeric:
        return task.structure.loss(own_fields, task_signals, own_head, noise, parameters)

    value, (h, g) = jax.value_and_grad(loss, argnums=(0, 1))(selection @ fields, selection @ head)
    return value, selection.T @ h, selection.T @ g
