"""`Students`: several students in one problem, among them students that label and do not learn.

A student that learns from another one sees the rows of that one as signals. All rows are stacked,
so that the overlaps between students are part of the state, in every run their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.controls import is_scheduled, map_schedule
from sgdynamics.problems.loss_dependence import find_dependence
from sgdynamics.problems.losses import CommitteeLoss, NetworkLoss
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import records_arguments
from sgdynamics.problems.structure import Structure
from sgdynamics.problems.student_losses import Lesson, MixedLoss, StudentsLoss, Task
from sgdynamics.samples.draws import Draw, quantile_edges
from sgdynamics.samples.sample import GaussianSample
from sgdynamics.samples.tokens import Tokens

TRUTH = "teacher"  # name of the labels of the problem itself
DATA = ("own", "shared")
# Parameters of the inputs, which all students have in common.
INPUT_PARAMETERS = ("gram", "eigenvalues", "fractions", "multiplicities")


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of one task: weights of their sources, and the variance of the noise of students.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each source; `TRUTH` is the problem itself.
    noise : float or None
        Variance of the noise on the outputs of students; None for the noise of the problem.
    """

    weights: Mapping[str, float]
    noise: float | None = None


@dataclass(frozen=True, eq=False)
class Student:
    """One student of a `Students` problem.

    Attributes
    ----------
    problem : Problem
        Network, loss and labels of the problem itself.
    tasks : tuple of Labels
        Labels from which it learns, of which each sample draws one; empty for one that rests.
    mean_of : tuple of str
        Names of students whose mean row by row this student is; it has no rows of its own.
    """

    problem: Problem
    tasks: tuple[Labels, ...] = ()
    mean_of: tuple[str, ...] = ()


class Students(Problem):
    """Several students, of which some learn, from labels of the problem and of each other.

    Parameters
    ----------
    students : dict of str to Student
        Students by name, in the order of their rows.
    shares : sequence of float, optional
        Probabilities of the tasks of students with several of them. Defaults to one task.
    data : str, default "shared"
        "own": each student that learns sees inputs of its own; "shared": all see the same.
    """

    kind: ClassVar[str] = "students"

    @records_arguments
    def __init__(
        self,
        students: Mapping[str, Student],
        shares: Sequence[float] | None = None,
        data: str = "shared",
    ) -> None:
        self.students = dict(students)
        problems = {name: student.problem for name, student in self.students.items()}
        for name, problem in problems.items():
            check_student(name, problem)
        first = next(iter(problems.values()))
        for name, problem in problems.items():
            _check_same_inputs(next(iter(problems)), first, name, problem)
        self.rows = _place_rows(self.students)
        width = sum(len(rows) for rows in self.rows.values())
        learning = [name for name, student in self.students.items() if student.tasks]
        checks.choice("data", data, DATA)
        inputs = len(learning) if data == "own" and len(learning) > 1 else 1
        lessons, parameters = [], []
        for number, name in enumerate(learning):
            lesson, own = self._lesson(name, number if inputs > 1 else 0)
            lessons.append(lesson)
            parameters.append(own)
        self.width, self.signals = width, first.signals
        self.head = "trained" if any(lesson.trains_head for lesson in lessons) else "fixed"
        self.constraint = first.constraint
        loss = StudentsLoss(tuple(lessons), inputs)
        draws, draw_parameters = _draws(inputs, shares)
        count = inputs if inputs > 1 else None
        self.structure = Structure(
            width=width,
            signals=first.signals,
            blocks=first.structure.blocks,
            loss=loss,
            trained=self.head == "trained",
            constraint=first.structure.constraint,
            sample=GaussianSample(first.signals, Tokens(count), draws),
        )
        self._stated_spectrum = first._stated_spectrum
        self._fixed_parameters = {}
        decay = self._weight_decay(learning, width)
        self._parameters = {
            "weight_decay": decay,
            **({"head_decay": decay[:, 0]} if np.ndim(decay) else {}),
            **{
                name: first._parameters[name]
                for name in INPUT_PARAMETERS
                if name in first._parameters
            },
            **draw_parameters,
            "lessons": tuple(parameters),
        }
        if not loss.independent and not loss.kinks and not shares:
            self.structure = replace(self.structure, loss=replace(loss, smooth=True))
            dependence = find_dependence(self.structure, self.at(0.0).parameters)
            self.structure = replace(self.structure, dependence=dependence)

    def _lesson(self, name: str, number: int) -> tuple[Lesson, tuple[Parameters, ...]]:
        """Return the lesson of one student and the parameters of its tasks."""
        student = self.students[name]
        tasks, parameters = zip(
            *(self._task(student.problem, labels) for labels in student.tasks), strict=True
        )
        rows = tuple((row,) for row in self.rows[name])
        if student.mean_of:
            rows = tuple(zip(*(self.rows[other] for other in student.mean_of), strict=True))
        return Lesson(rows, tasks, number, student.problem.structure.trained), parameters

    def _task(self, problem: Problem, labels: Labels) -> tuple[Task, Parameters]:
        """Return a student with its labels as a problem of its own, and its parameters."""
        truth = float(labels.weights.get(TRUTH, 0.0))
        names = [name for name in labels.weights if name != TRUTH]
        if not names:
            return Task(problem.structure), _plain_parameters(problem)
        loss, outputs = _network_loss(problem), [self._output(name) for name in names]
        activations = {activation for activation, _ in outputs}
        sources = tuple(row for name in names for row in self.rows[name])
        weights = np.concatenate(
            [
                np.full(count, labels.weights[name] / count)
                for name, (_, count) in zip(names, outputs, strict=True)
            ]
        )
        signals = len(sources) + (problem.signals if truth else 0)
        parameters = _plain_parameters(problem) | {"source_weights": weights}
        parameters["noise"] = _label_variance(problem, labels, truth)
        is_committee = len(activations) == 1 and (
            not truth or (isinstance(loss, CommitteeLoss) and {loss.teacher} == activations)
        )
        own_loss: NetworkLoss
        if is_committee:
            own_loss = CommitteeLoss(loss.student, loss.outer, activations.pop())
            heads = np.asarray(parameters.pop("teacher_head", np.zeros(0)))
            scaled = truth * heads * signals / max(1, len(heads)) if truth else np.zeros(0)
            parameters["truth_head"] = scaled
        else:
            own_loss = MixedLoss(
                loss.student, loss.outer, sources=tuple(outputs), truth=loss if truth else None
            )
            parameters["truth_weight"] = np.float64(truth)
        structure = replace(
            problem.structure,
            signals=signals,
            loss=own_loss,
            sample=GaussianSample(signals),
            dependence=None,
            expectation=None,
        )
        return Task(structure, sources, bool(truth)), parameters

    def _output(self, name: str) -> tuple[Any, int]:
        """Return the activation and the number of units of a student that labels."""
        problem = self.students[name].problem
        return _network_loss(problem).student, problem.width

    def _weight_decay(self, learning: list[str], width: int) -> Any:
        """Return the weight decay of all rows: one number, or a column of one per row."""
        decays = {
            name: self.students[name].problem._parameters["weight_decay"] for name in learning
        }
        if all(not is_scheduled(decay) and decay == 0.0 for decay in decays.values()):
            return np.float64(0.0)
        column = np.zeros((width, 1))
        for name, decay in decays.items():
            if is_scheduled(decay):
                fix = "students that learn together need a weight decay that is a number"
                raise checks.reject("weight_decay", decay, fix)
            column[list(self.rows[name])] = decay
        return column

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("fields", "students", "several inputs")

    @property
    def mean_output(self) -> Students:
        """The problem whose risk is that of the mean output of all students, for ``evaluate``."""
        return mean_of_outputs(self, self.names)

    @property
    def mean_rows(self) -> Students:
        """The problem whose risk is that of the mean of the rows of all students."""
        return mean_of_rows(self, self.names)

    def start(self, start: Start) -> Start:
        """Return the start of all students, each with the overlaps of the start of one.

        Parameters
        ----------
        start : Start
            Initial condition of one student. Outside of the signals the rows of different students
            are orthogonal, as independent random rows are in the limit d -> infinity.

        Returns
        -------
        Start
            Initial condition of this problem.
        """
        first = next(iter(self.students.values())).problem
        start, count = validate_start(first, start), len(self.students)
        frames = first.parameters["frame"]
        T = start.M_blocks @ np.swapaxes(np.linalg.pinv(frames, rcond=1e-12), -1, -2)
        inside = T @ np.swapaxes(T, -1, -2)
        Q = np.tile(inside, (1, 1, count, count))
        for number in range(count):
            own = slice(number * first.width, (number + 1) * first.width)
            Q[..., own, own] = start.Q_blocks
        return Start(np.tile(start.M_blocks, (1, 1, count, 1)), Q, np.tile(start.a, (1, count)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the students."""
        return tuple(self.students)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "students": {
                name: {
                    "problem": student.problem.describe(),
                    "labels": [dict(labels.weights) for labels in student.tasks],
                }
                for name, student in self.students.items()
            },
            "data": self.arguments["data"],
            "rerunnable": False,
        }

    def with_truth(self, names: Sequence[str], problem: Problem | None = None) -> Students:
        """Return the problem whose risk is that of students on the labels of a problem.

        Parameters
        ----------
        names : sequence of str
            The students whose risks are averaged.
        problem : Problem, optional
            The problem with the labels. Defaults to that of each student.
        """
        students = {
            name: Student(
                student.problem if problem is None or name not in names else problem,
                (Labels({TRUTH: 1.0}),) if name in names else (),
            )
            for name, student in self.students.items()
        }
        return Students(students)


def ensemble(problem: Problem, students: int = 4, data: str = "own") -> Students:
    """Train several students of one problem together: an ensemble.

    Parameters
    ----------
    problem : Problem
        The problem of each student, of one centred input per sample, with a head.
    students : int, default 4
        Number of students.
    data : str, default "own"
        "own": each student sees samples of its own; "shared": all see the same samples, also the
        same label noise.

    Returns
    -------
    Students
        A problem for ``solve_ode``, ``solve_sde`` and ``simulate``, whose rows are those of all
        students and whose risk is the mean over them. ``start(...)`` makes its start from that of
        one student. ``mean_output`` and ``mean_rows`` are problems for the argument ``evaluate``:
        the mean of the outputs, and the student whose rows are the mean rows.

    Raises
    ------
    ValueError
        If the problem is not supported, or another argument is invalid.

    Notes
    -----
    With own samples the overlaps C_kl between students follow from the gradients alone,
    dC_kl = -(E[h_k lambda_l^T] + E[lambda_k h_l^T]); shared samples add lr E[h_k h_l^T].

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.2)
    >>> four = sgd.ensemble(problem, students=4)
    >>> start = four.start(sgd.start(problem, M=[[0.0]], Q=[[0.5]]))
    >>> evaluate = {"outputs": four.mean_output, "rows": four.mean_rows}
    >>> algorithm = sgd.OnePassSGD(lr=1.0)
    >>> result = sgd.solve_ode(four, algorithm, start, times=[6.0], evaluate=evaluate)
    >>> round(float(result.risk[0, 0]) - 0.1, 5)
    0.03374
    >>> (result.evaluated_risk[0, 0] - 0.1).values.round(5).tolist()
    [0.01028, 0.0096]
    """
    count = checks.integer("students", students, 1)
    check_student("ensemble", problem)
    labels = (Labels({TRUTH: 1.0}),)
    names = [f"student {number}" for number in range(count)]
    return Students({name: Student(problem, labels) for name in names}, data=data)


def _place_rows(students: Mapping[str, Student]) -> dict[str, tuple[int, ...]]:
    """Return the rows of each student; a mean of others has none."""
    rows, first = {}, 0
    for name, student in students.items():
        count = 0 if student.mean_of else student.problem.width
        rows[name] = tuple(range(first, first + count))
        first += count
    return rows


def _draws(
    inputs: int, shares: Sequence[float] | None
) -> tuple[tuple[Draw, ...] | None, Parameters]:
    """Return the draws of a sample, and the parameters of those that choose a task."""
    if inputs == 1 and shares is None:
        return None, {}
    shape = () if inputs == 1 else (inputs,)
    draws: tuple[Draw, ...] = (Draw("noise", shape),)
    if shares is None:
        return draws, {}
    probabilities = np.asarray(shares, dtype=np.float64)
    edges = np.asarray(quantile_edges(probabilities))
    parameters = {"task": {"probabilities": probabilities, "edges": edges}}
    return (*draws, Draw("task", shape, len(probabilities))), {"draws": parameters}


def _plain_parameters(problem: Problem) -> Parameters:
    return {**problem.parameters}


def _network_loss(problem: Problem) -> NetworkLoss:
    """Return the loss of a network with an output and a label, or raise ValueError."""
    loss = problem.structure.loss
    if not isinstance(loss, NetworkLoss) or loss.labels is not None:
        fix = (
            "labels of students need networks with real labels. Use sgd.TeacherStudent or "
            "sgd.MultiIndex, without labels= and without dropout."
        )
        raise checks.reject("problem", problem, fix)
    return loss


def _label_variance(problem: Problem, labels: Labels, truth: float) -> Any:
    """Return the variance of the noise of weighted labels: sum_s weight_s^2 noise_s."""
    own = problem._parameters["noise"]
    others = sum(weight**2 for name, weight in labels.weights.items() if name != TRUTH)
    noise = own if labels.noise is None else labels.noise
    if not is_scheduled(own):
        return pytrees.to_float64(truth**2 * own + others * noise)
    if labels.noise is None:
        return map_schedule(own, lambda value: (truth**2 + others) * value)
    return map_schedule(own, lambda value: truth**2 * value + others * jnp.asarray(noise))


def check_student(name: str, problem: object) -> None:
    """Raise ValueError unless the problem has one centred input per sample and a head."""
    fix = (
        "stages that read students, and ensembles, need problems of one centred input and label "
        "noise, with a head. Omit draws, clusters, tokens, contexts, dropout, top and noise on "
        "inputs."
    )
    if not isinstance(problem, Problem) or isinstance(problem, Students):
        raise checks.reject(f"problem of {name!r}", problem, fix)
    structure = problem.structure
    is_plain = structure.sample == GaussianSample(problem.signals)
    if not is_plain or structure.loss.reads_overlaps or structure.top is not None:
        raise checks.reject(f"problem of {name!r}", problem, fix)


def _check_same_inputs(first_name: str, first: Problem, name: str, problem: Problem) -> None:
    """Raise ValueError unless two students see the same inputs and signals."""
    values = {
        "signals": (first.signals, problem.signals),
        "constraint": (first.constraint, problem.constraint),
        "blocks of the covariance": (first.structure.blocks, problem.structure.blocks),
    }
    for label, (expected, actual) in values.items():
        if expected != actual:
            raise checks.reject(
                "problem",
                {first_name: expected, name: actual},
                f"all students need the same {label}: state them alike",
            )
    for key in INPUT_PARAMETERS:
        if not np.array_equal(first._parameters.get(key, 0.0), problem._parameters.get(key, 0.0)):
            raise checks.reject(
                "problem",
                [first_name, name],
                f"all students need the same inputs and signals, and their {key} differ",
            )


def mean_of_outputs(problem: Students, names: Sequence[str]) -> Students:
    """Return the problem whose risk is that of the mean output of students of one network."""
    network = problem.students[names[0]].problem
    joint = network.replace(width=len(names) * network.width)
    others = {name: student for name, student in problem.students.items() if name not in names}
    return Students({"mean": Student(joint, (Labels({TRUTH: 1.0}),)), **_resting(others)})


def mean_of_rows(problem: Students, names: Sequence[str]) -> Students:
    """Return the problem whose risk is that of the student whose rows are means over students."""
    network = problem.students[names[0]].problem
    mean = Student(network, (Labels({TRUTH: 1.0}),), tuple(names))
    return Students({**_resting(problem.students), "mean of rows": mean})


def _resting(students: Mapping[str, Student]) -> dict[str, Student]:
    return {name: Student(student.problem) for name, student in students.items()}
