"""The registry of solvers and questions: one entry for each function that takes a problem.

The support table, sweeps, problem files, the command line, plots, the documentation index and the
contract tests read these entries, so a new question is its own file and one entry. Entries are
plain data and name their function by its import path: reading the registry does not import JAX.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# The modules that hold the entries of the library, each as the list ENTRIES.
ENTRY_MODULES = (
    "sgdynamics.solvers.registry",
    "sgdynamics.analysis.registry",
    "sgdynamics.statics.registry",
)

CLOCKS = ("times", "alpha", "steps")
RUN_KEYS = ("dimension", "runs", "seed")

# What a question needs of the label noise: the squared loss turns its moments into those of steps.
LabelNoise = Literal["any", "finite variance", "finite variance or bounded steps", "fourth moment"]


@dataclass(frozen=True)
class Method:
    """One way to call a solver that returns a trajectory, as problem files and legends name it.

    Attributes
    ----------
    name : str
        The name in a problem file: ``methods = ["ode", "exact"]``. The attribute ``method`` of the
        result is this name, after ``solve_`` or ``simulate-`` where it has such a prefix.
    label : str
        The name in legends.
    arguments : Mapping
        Arguments that select this method of its function.
    run_keys : tuple of str
        Names among ``dimension``, ``runs`` and ``seed`` that it takes from the table [run].
    clocks : tuple of str
        The arguments that it accepts for the save points.
    is_random : bool
        Whether runs scatter, as opposed to a deterministic theory.
    counts_steps : bool
        Whether save points are whole steps.
    times_per_width : bool
        Whether ``times`` counts t/width.
    records_start : bool
        Whether the first save point of a result determines its initial condition.
    """

    name: str
    label: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    run_keys: tuple[str, ...] = ()
    clocks: tuple[str, ...] = CLOCKS
    is_random: bool = False
    counts_steps: bool = False
    times_per_width: bool = False
    records_start: bool = True


@dataclass(frozen=True)
class Question:
    """A solver or a question: its function, the kinds that it supports, and how it is called.

    Attributes
    ----------
    name : str
        The row of the support table, and the name that the function passes to ``support.require``.
    function : str
        The import path of the function, ``"package.module:function"``, or of a module.
    unsupported : Mapping
        The reason and the remedy for each unsupported kind; the kinds are the keys of
        ``support.KINDS``. None overrides what a kind inherits from a more general one.
    example : Mapping
        Keyword arguments of a small call, without problem, algorithm and start: the contract tests
        call every question with them.
    takes_algorithm : bool
        Whether the function has an argument ``algorithm``.
    label_noise : str
        Condition on the label noise under the squared loss.
    can_be_swept : bool
        Whether ``sgd.sweep`` and [sweep] accept the name of the function.
    methods : tuple of Method
        Ways to call it from the table [run] of a problem file.
    """

    name: str
    function: str
    unsupported: Mapping[str, str | None] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    takes_algorithm: bool = True
    label_noise: LabelNoise = "finite variance"
    can_be_swept: bool = False
    methods: tuple[Method, ...] = ()

    @property
    def public_name(self) -> str:
        """The name of the function, or of the module."""
        return self.function.replace(":", ".").rpartition(".")[2]

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        return pkgutil.resolve_name(self.function)


_registered: dict[str, Question] = {}


@functools.cache
def _library() -> dict[str, Question]:
    entries = [entry for name in ENTRY_MODULES for entry in importlib.import_module(name).ENTRIES]
    return {entry.name: entry for entry in entries}


def register(entry: Question) -> Question:
    """Add a question from outside the library; registering the same entry again changes nothing."""
    present = questions().get(entry.name, entry)
    if present != entry:
        raise ValueError(
            f"name = {entry.name!r}: this name belongs to {present.function}. Choose another name."
        )
    taken = set(methods()) & {method.name for method in entry.methods}
    if taken and entry.name not in questions():
        raise ValueError(
            f"methods = {sorted(taken)}: problem files already use these names. Choose other names."
        )
    _registered[entry.name] = entry
    return entry


def questions() -> dict[str, Question]:
    """All entries by name, in the order of the support table."""
    return {**_library(), **_registered}


def find(name: str) -> Question:
    """The entry of a name."""
    return _registered[name] if name in _registered else _library()[name]


def swept_functions() -> dict[str, Question]:
    """The entries that ``sgd.sweep`` accepts, by the name of their function."""
    return {entry.public_name: entry for entry in questions().values() if entry.can_be_swept}


def methods() -> dict[str, tuple[Question, Method]]:
    """The methods of problem files by name, each with the entry that it belongs to."""
    return {
        method.name: (entry, method) for entry in questions().values() for method in entry.methods
    }


def method_name(result_attribute: str) -> str:
    """The name of the method in problem files, from the attribute ``method`` of a result.

    That of a result of stages is "stages of" and the attribute of a single stage.
    """
    result_attribute = result_attribute.rpartition(" of ")[2]
    return result_attribute.removeprefix("solve_").removeprefix("simulate-")


def method_of_result(result_attribute: str) -> Method | None:
    """The method that made a result, from the result's attribute ``method``; None if unknown."""
    entry = methods().get(method_name(result_attribute))
    return None if entry is None else entry[1]
