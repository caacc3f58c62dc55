"""`Equations`: formulas as LaTeX, for papers and notebooks, and the tools to write them.

Every package writes the formulas of its own code: the law of a sample and the loss in
`problems.equations`, the steps of updates next to their code (`Law.equations`), the drift in
`ode.equations`, and so on. `dynamics.equations` puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from sgdynamics.base.controls import Schedule, describe_schedule

Function = TypeVar("Function", bound=Callable[..., Any])

# Arrays with more entries than this are not written out.
MOST_ENTRIES = 16

GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "kappa", "lambda", "mu", "omega", "sigma"}


@dataclass(frozen=True)
class Section:
    """Formulas under one heading.

    Attributes
    ----------
    heading : str
        Heading in plain text.
    lines : tuple of str
        Formulas, one per line.
    """

    heading: str
    lines: tuple[str, ...]

    @property
    def rows(self) -> str:
        """The lines of the section as rows of an ``aligned`` environment."""
        return " \\\\\n".join(_align(line) for line in self.lines)


@dataclass(frozen=True)
class Equations:
    """The equations that a solver solves, as LaTeX; notebooks show them as formulas.

    ``print(equations)`` or ``str(equations)`` is LaTeX for a paper that loads ``amsmath``: one
    ``align*`` per section, with its heading as a comment.

    Attributes
    ----------
    title : str
        The problem, the algorithm and the limit, as plain text.
    sections : tuple of Section
        The law of the data, the variables, the equations, and the values of their parameters. Each
        has a ``heading`` and ``lines`` of LaTeX.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.01)
    >>> equations = problem.equations(sgd.OnePassSGD(lr=0.5))
    >>> for line in equations["ODE"][:2]:
    ...     print(line)
    \\frac{dM}{dt} = -\\mathbb{E}\\left[h \\lambda^{*\\top}\\right]
    \\frac{dQ}{dt} = -\\mathbb{E}\\left[h \\lambda^{\\top} + \\lambda h^\\top\\right] \
+ \\frac{\\mathrm{lr}}{B} \\mathbb{E}\\left[h h^\\top\\right]
    """

    title: str
    sections: tuple[Section, ...]

    def __getitem__(self, heading: str) -> tuple[str, ...]:
        """Return the lines of one section."""
        for section in self.sections:
            if section.heading == heading:
                return section.lines
        headings = ", ".join(section.heading for section in self.sections)
        raise KeyError(f"{heading!r}: the sections are {headings}")

    def __str__(self) -> str:
        texts = [f"% {self.title}"]
        for section in self.sections:
            texts += [f"% {section.heading}", f"\\begin{{align*}}\n{section.rows}\n\\end{{align*}}"]
        return "\n".join(texts)

    def __repr__(self) -> str:
        headings = ", ".join(section.heading for section in self.sections)
        return f"<Equations: {self.title} ({headings}); print them for LaTeX>"

    def _repr_latex_(self) -> str:
        rows = [f"&\\textbf{{{section.heading}}} \\\\\n{section.rows}" for section in self.sections]
        return "$$\\begin{aligned}\n" + " \\\\[6pt]\n".join(rows) + "\n\\end{aligned}$$"

    def _repr_markdown_(self) -> str:
        texts = [f"**{self.title}**"]
        for section in self.sections:
            texts += [
                f"*{section.heading}*",
                f"$$\\begin{{aligned}}\n{section.rows}\n\\end{{aligned}}$$",
            ]
        return "\n\n".join(texts)


def _is_balanced(formula: str) -> bool:
    """Whether all groups of a formula are closed."""
    return formula.count("{") == formula.count("}") and formula.count("\\left") == formula.count(
        "\\right"
    )


def _align(line: str) -> str:
    """Return a line with an alignment mark at its relation."""
    relations = [
        (line.index(relation), relation)
        for relation in (" = ", " \\sim ", " \\leftarrow ", " \\to ")
        if relation in line and _is_balanced(line[: line.index(relation)])
    ]
    if relations:
        position, relation = min(relations)
        return f"{line[:position]} &{relation[1:]}{line[position + len(relation) :]}"
    return f"&{line}"


class HasEquations:
    """Base class of everything that a solver accepts as a problem: the method `equations`."""

    def equations(
        self, algorithm: Any, of: str | None = None, *, dimension: int | None = None
    ) -> Equations:
        """Return the equations that a solver solves for this problem, as LaTeX.

        Parameters
        ----------
        algorithm : OnePassSGD, GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
            The training algorithm.
        of : str, optional
            "ode" (``sgd.solve_ode``), "sde" (``sgd.solve_sde``) or "dmft" (``sgd.solve_dmft``).
            Defaults to "dmft" for an algorithm on a fixed data set, and to "ode" otherwise.
        dimension : int, optional
            Dimension d whose corrections the ODE contains, as in ``solve_ode(dimension=)``.
            Defaults to the limit d -> infinity.

        Returns
        -------
        Equations
            The formulas; notebooks show them, and ``print`` writes LaTeX.

        Raises
        ------
        ValueError
            If the solver does not support the problem with this algorithm.

        Notes
        -----
        A loss, update or target that a user wrote appears as a symbol with its name. A function
        with an attribute ``latex`` is shown as that formula instead.
        """
        # Packages further down write the formulas of their own code.
        package = import_module("sgdynamics.dynamics.equations")
        return package.equations_of(self, algorithm, of, dimension)


def operator(name: str) -> str:
    """Return a name in upright letters."""
    return f"\\operatorname{{{text(name)}}}"


def text(name: str) -> str:
    """Return plain text with the characters escaped that LaTeX reads as commands."""
    replaced = name.replace("\\", "").replace("<lambda>", "lambda")
    for character in "_%&#${}":
        replaced = replaced.replace(character, f"\\{character}")
    return replaced


def function_symbol(function: object, default: str) -> str:
    """Return the name of a user's function as an operator; `default` if it has no name."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return operator(default if name == "<lambda>" else name)


def shown_as(latex: str) -> Callable[[Function], Function]:
    """Return a decorator: `Equations` show the function as this formula."""

    def attach(function: Function) -> Function:
        function.__dict__["latex"] = latex
        return function

    return attach


def function_formula(function: object) -> str | None:
    """Return the formula that a function states in its attribute `latex`; None without one."""
    formula = getattr(function, "latex", None)
    return formula if isinstance(formula, str) else None


def parameter_symbol(name: str) -> str:
    """Return the symbol of a parameter that a user has named."""
    if name in GREEK:
        return f"\\{name}"
    return name if len(name) == 1 else f"\\mathrm{{{text(name)}}}"


def number(value: float) -> str:
    """Return a number with up to six digits, with a power of ten where that is shorter."""
    value = float(value)
    if math.isinf(value):
        return "\\infty" if value > 0 else "-\\infty"
    digits, _, exponent = f"{value:.6g}".partition("e")
    if not exponent:
        return digits
    power = f"10^{{{int(exponent)}}}"
    return power if digits == "1" else f"{digits} \\cdot {power}"


def value_of(value: Any) -> str:
    """Return a parameter as LaTeX: a number, a small array, or the name of its schedule."""
    if isinstance(value, Schedule):
        record, _ = describe_schedule(value)
        if isinstance(record, Mapping) and "edges" in record:
            return f"\\text{{piecewise constant on {len(record['edges']) + 1} pieces}}"
        return f"\\operatorname{{{text(repr(value))}}}(\\alpha)"
    if isinstance(value, str):
        return f"\\text{{{text(value)}}}"
    array = np.asarray(value, dtype=np.float64)
    if array.size == 1:
        return number(array.item())
    if array.size > MOST_ENTRIES or array.ndim > 2:
        shape = " \\times ".join(str(count) for count in array.shape)
        span = f"{number(array.min())}, \\ldots, {number(array.max())}"
        return f"\\left({span}\\right) \\in \\mathbb{{R}}^{{{shape}}}"
    if array.ndim == 1:
        return f"\\left({', '.join(number(entry) for entry in array)}\\right)"
    rows = " \\\\ ".join(" & ".join(number(entry) for entry in row) for row in array)
    return f"\\begin{{pmatrix}} {rows} \\end{{pmatrix}}"


def assignments(values: Mapping[str, Any], per_line: int = 5) -> tuple[str, ...]:
    """Return `symbol = value` for each entry, several to a line."""
    formulas = [f"{symbol} = {value_of(value)}" for symbol, value in values.items()]
    return join_in_lines(formulas, per_line)


def join_in_lines(formulas: Iterable[str], per_line: int = 5) -> tuple[str, ...]:
    """Return formulas side by side in lines of about `per_line`; long ones have their own line."""
    lines: list[list[str]] = []
    for formula in formulas:
        is_long = len(formula) > 60
        if not lines or is_long or len(lines[-1]) >= per_line or len(lines[-1][-1]) > 60:
            lines.append([formula])
        else:
            lines[-1].append(formula)
    return tuple(",\\quad ".join(line) for line in lines)


def join_terms(terms: Iterable[str]) -> str:
    """Return a sum; a term that starts with a minus keeps its sign. 0 without terms."""
    total = ""
    for term in terms:
        if not total:
            total = term
        elif term.startswith("-"):
            total += f" - {term[1:]}"
        else:
            total += f" + {term}"
    return total or "0"
