"""What a public docstring must say: the build of the pages and tests/docs/test_docs.py ask the same questions here.

numpydoc reads the docstrings. Arguments have a section Parameters (fields of an answer, which nobody makes by hand: Attributes), each
argument with its type and its default as the signature has it, `name : type, default VALUE`, or `optional` where that is None; what is
returned has a section Returns; functions and classes have Examples, which tests/docs/test_docs.py runs.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from numpydoc.docscrape import NumpyDocString

DIRECTIVE = re.compile(
    r"^\.\. auto(?P<kind>function|class|module):: (?P<name>[\w.]+)\n(?P<options>(?:   :.*\n)*)",
    flags=re.MULTILINE,
)
MEMBERS = re.compile(r":members:(?P<names>.*)")
SINGLE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
DEFAULT = re.compile(r", default (?P<value>.+)$")


def shown(page: Path) -> Iterator[tuple[str, str, Any]]:
    """(kind, name, object) of all that a page of docs/api shows: functions, classes, and their methods and properties."""
    for found in DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
        package, *path = found["name"].split(".")
        one: Any = importlib.import_module(package)
        for part in path:
            one = getattr(one, part)
        listed = MEMBERS.search(found["options"])
        names = (
            [name.strip() for name in listed["names"].split(",") if name.strip()] if listed else []
        )
        if found["kind"] == "module":
            for name in names or getattr(one, "__all__", None) or _own_names(one):
                yield from _with_members(f"{found['name']}.{name}", getattr(one, name), None)
        else:
            yield from _with_members(found["name"], one, (names or None) if listed else [])


def _own_names(module: Any) -> list[str]:
    return [
        name
        for name, one in vars(module).items()
        if not name.startswith("_") and getattr(one, "__module__", "") == module.__name__
    ]


def _with_members(name: str, one: Any, members: list[str] | None) -> Iterator[tuple[str, str, Any]]:
    """A function or class, and of a class these members (all that it has itself and documents, where none are named)."""
    if not inspect.isclass(one):
        if callable(one):
            yield "function", name, one
        return
    yield "class", name, one
    for member in members or [
        each for each in vars(one) if not each.startswith("_") and members is None
    ]:
        value = inspect.getattr_static(one, member)
        if isinstance(value, (property, cached_property)):
            yield "property", f"{name}.{member}", value
        elif inspect.isfunction(value) and inspect.getdoc(getattr(one, member)):
            yield "method", f"{name}.{member}", value


def faults(kind: str, one: Any) -> list[str]:
    """What the docstring of a function, class, method or property lacks, or says wrongly."""
    text = inspect.getdoc(one)
    if not text:
        return ["no docstring"]
    found = ["code in single backticks: give it two"] if SINGLE.search(text) else []
    if kind == "property":
        return found
    doc = NumpyDocString(text)
    if kind != "method" and not doc["Examples"]:
        found.append("no section Examples")
    arguments = _arguments(kind, one)
    told = {name.strip(): part for part in doc["Parameters"] for name in part.name.split(",")}
    fields = {part.name for part in doc["Attributes"]} if kind == "class" else set()
    if arguments and not told and not fields:
        found.append("no section Parameters")
    else:
        found += [
            f"argument {name} is not documented"
            for name in arguments
            if name not in told and name not in fields
        ]
    found += [f"there is no argument {name}" for name in told if name not in arguments]
    for name, part in told.items():
        if name in arguments:
            found += _default_faults(name, part.type, arguments[name].default)
        if not "".join(part.desc).strip():
            found.append(f"argument {name} has no description")
    if kind != "class" and not doc["Returns"] and not doc["Yields"] and _returns(one):
        found.append("no section Returns")
    return found


def _arguments(kind: str, one: Any) -> dict[str, inspect.Parameter]:
    """Arguments by name, as a docstring writes them: with stars where they have any."""
    if (
        kind == "class"
        and "__init__" not in vars(one)
        and not dataclasses.is_dataclass(one)
        and not issubclass(one, tuple)
    ):
        return {}
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(one).parameters.values()
    return {stars.get(part.kind, "") + part.name: part for part in given if part.name != "self"}


def _default_faults(name: str, said: str, default: Any) -> list[str]:
    """Whether what is said of a default is what the signature has."""
    if default is inspect.Parameter.empty:
        return (
            [f"argument {name} has no default, the docstring says it has"]
            if "default" in said or "optional" in said
            else []
        )
    stated = DEFAULT.search(said)
    if default is None and stated is None:
        return (
            []
            if said.endswith("optional")
            else [f"argument {name} is optional, the docstring does not say so"]
        )
    if stated is None:
        return [f"argument {name} has the default {default!r}, the docstring does not say so"]
    try:
        value = ast.literal_eval(stated["value"])
    except (ValueError, SyntaxError):
        value = stated["value"]
    same = value == default or stated["value"] == str(default)
    return (
        []
        if same
        else [f"argument {name} has the default {default!r}, the docstring says {stated['value']}"]
    )


def _returns(function: Any) -> bool:
    """Whether the signature promises a value."""
    return inspect.signature(function).return_annotation not in (
        None,
        "None",
        inspect.Signature.empty,
    )
