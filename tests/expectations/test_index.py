"""The index of expectations, in the package's docstring and on its page, follows the choice."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from sgdynamics import expectations
from sgdynamics.expectations import choice, closed_forms
from sgdynamics.expectations.interface import Expectation
from sgdynamics.expectations.solver_interface import SolverExpectation

PAGE = Path(__file__).parents[2] / "docs/expectations.md"


def returned_classes() -> list[str]:
    """Names of the classes that `expectation_of` returns, in the order of its branches."""
    function = ast.parse(inspect.getsource(choice)).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "expectation_of"
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    names = []
    for node in sorted(returns, key=lambda node: node.lineno):
        assert isinstance(node.value, ast.Call)
        assert isinstance(node.value.func, ast.Name)
        names.append(node.value.func.id)
    return names


def listed_classes(source: str) -> list[str]:
    """Names in the first column of the index."""
    if source == "docstring":
        return re.findall(r"^`(\w+)`  ", expectations.__doc__ or "", re.MULTILINE)
    section = PAGE.read_text(encoding="utf-8").split("## ")[1]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("source", ["docstring", "page"])
def test_the_index_lists_the_classes_of_the_choice_in_order(source):
    names = listed_classes(source)
    assert names == returned_classes()
    for name in names:
        assert issubclass(getattr(choice, name), SolverExpectation)


def test_the_page_lists_the_families_of_closed_forms():
    section = PAGE.read_text(encoding="utf-8").split("## ")[2]
    names = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(names) == sorted(type(forms).__name__ for forms in closed_forms.family._FAMILIES)


def test_a_user_implements_few_methods():
    methods = [name for name in vars(Expectation) if not name.startswith("_")]
    assert len(methods) <= 7, methods
    assert Expectation.__abstractmethods__ == {"moments", "risk"}
