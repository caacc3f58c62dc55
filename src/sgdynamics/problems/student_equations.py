"""The formulas of several students in one problem as LaTeX: the labels and loss of each of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.base.equations import Section, assignments, join_terms, number, text
from sgdynamics.problems.equations import (
    loss_lines,
    loss_values,
    problem_values,
    sample_lines,
    symbols_of,
)
from sgdynamics.problems.student_losses import StudentsLoss
from sgdynamics.problems.students import TRUTH, Labels, Student, Students

MOST_NAMES = 4  # students of one kind that are named
LABEL, LABEL_NOISE = "y = ", r" + \sqrt{\Delta} z"


def student_sections(problem: Students) -> tuple[Section, ...]:
    """Return the sections on the samples and on the losses of all students."""
    return (
        Section("Samples", tuple(sample_lines(problem))),
        Section("Losses of the students", tuple(_student_lines(problem))),
    )


def student_values(problem: Students) -> dict[str, Any]:
    """Return the parameters of the samples; those of the students are next to their losses."""
    values = problem_values(problem)
    del values["p"]
    return {r"\text{rows of } W": problem.width, **values}


def _student_lines(problem: Students) -> list[str]:
    """Return network, labels and loss of each kind of student, and what the state sees of them."""
    loss = problem.structure.loss
    assert isinstance(loss, StudentsLoss)
    learning = [name for name, student in problem.students.items() if student.tasks]
    lines = []
    for names in _equal_students(problem.students, learning):
        lines.append(_heading(problem, loss, names, learning))
        lesson = learning.index(names[0])
        lines += _lesson_lines(problem, problem.students[names[0]], lesson)
    resting = [name for name in problem.students if name not in learning]
    if resting:
        lines.append(rf"\text{{{_join_names(resting)}: no training, so that }} h_i = 0")
    gradient = symbols_of(problem).gradient
    if loss.inputs > 1:
        lines.append(
            r"H_{i l} = h_i \text{ if } l \text{ is the input of the student of row } i"
            r",\quad H_{i l} = 0 \text{ otherwise}"
        )
    else:
        lines.append(rf"{gradient} = \left(h_1, h_2, \ldots\right) \text{{ of all students}}")
    if problem.structure.trained:
        lines.append(r"g_i = \frac{\partial \ell}{\partial a_i} \text{ of the student of row } i")
    lines.append(r"\mathrm{risk} = \text{mean of } \mathbb{E}\left[\ell\right] \text{ over them}")
    return lines


def _equal_students(students: dict[str, Student], learning: list[str]) -> list[list[str]]:
    """Return the names of students that learn, in groups of the same network and labels."""
    groups: dict[Any, list[str]] = {}
    for name in learning:
        student = students[name]
        labels = tuple((tuple(task.weights.items()), task.noise) for task in student.tasks)
        groups.setdefault((id(student.problem), labels, student.mean_of), []).append(name)
    return list(groups.values())


def _heading(problem: Students, loss: StudentsLoss, names: list[str], learning: list[str]) -> str:
    """Return a line with the names, rows and inputs of equal students."""
    described = []
    for name in names:
        rows = problem.rows[name]
        position = f"row {rows[0] + 1}" if len(rows) == 1 else ""
        if len(rows) > 1:
            position = f"rows {rows[0] + 1} to {rows[-1] + 1}"
        if problem.students[name].mean_of:
            position = f"mean of the rows of {_join_names(list(problem.students[name].mean_of))}"
        if loss.inputs > 1:
            position += f", input {learning.index(name) + 1}"
        described.append(f"{name} ({position})")
    return rf"\text{{{_join_names(described)}:}}"


def _join_names(names: list[str]) -> str:
    """Return names in a row, of which those in the middle are left out if they are many."""
    shown = names if len(names) <= MOST_NAMES else [*names[:2], "...", names[-1]]
    return text(", ".join(shown))


def _lesson_lines(problem: Students, student: Student, lesson: int) -> list[str]:
    """Return network, labels and loss of one student."""
    lines = []
    tasks = problem._parameters["lessons"][lesson]
    shares = problem._parameters.get("draws", {}).get("task", {}).get("probabilities")
    for index, labels in enumerate(student.tasks):
        if len(student.tasks) > 1 and shares is not None:
            share = number(np.asarray(shares)[index])
            lines.append(rf"\text{{with probability }} {share}:")
        lines += _task_lines(student, labels)
        values = {"p": student.problem.width, **loss_values(student.problem)}
        if r"\Delta" in values:
            values[r"\Delta"] = tasks[index]["noise"]
        lines += assignments(values)
    return lines


def _task_lines(student: Student, labels: Labels) -> list[str]:
    """Return the loss of a student on one kind of labels."""
    lines = loss_lines(student.problem, student.problem.structure.loss)
    sources = [name for name in labels.weights if name != TRUTH]
    if not sources:
        return lines
    truth = labels.weights.get(TRUTH, 0.0)
    index = next(index for index, line in enumerate(lines) if line.startswith(LABEL))
    truth_label, noise, law = lines[index].removeprefix(LABEL).partition(LABEL_NOISE)
    terms = [rf"{number(truth)} \left({truth_label}\right)"] if truth else []
    for name in sources:
        weight = number(labels.weights[name])
        output = rf"f_{{\text{{{text(name)}}}}}"
        terms.append(output if weight == "1" else f"{weight} {output}")
    lines[index] = LABEL + join_terms(terms) + noise + law
    return lines
