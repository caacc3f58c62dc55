"""Requirements on public docstrings, for the build of the pages and for tests/docs/test_docs.py.

numpydoc parses the docstrings. Arguments have a section Parameters (or Attributes, for the fields
of results, which users do not construct). The type of an argument contains its default as in the
signature, `name : type, default VALUE`, or `optional` for None. Functions that return a value have
a section Returns. Functions and classes have Examples, which tests/docs/test_docs.py runs.
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
SINGLE_BACKTICKS = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
DEFAULT = re.compile(r", default (?P<value>.+)$")

Documented = tuple[str, str, Any]  # kind ("function", "class", "method", "property"), name, object


def documented_objects(page: Path) -> Iterator[Documented]:
    """The functions and classes on a page of docs/api, with the methods and properties shown."""
    for directive in DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
        yield from objects_of(directive)


def objects_of(directive: re.Match[str]) -> Iterator[Documented]:
    """The functions and classes of one directive, with the methods and properties shown."""
    package, *path = directive["name"].split(".")
    target: Any = importlib.import_module(package)
    for attribute in path:
        target = getattr(target, attribute)
    members = MEMBERS.search(directive["options"])
    names = []
    if members:
        names = [name.strip() for name in members["names"].split(",") if name.strip()]
    if directive["kind"] == "module":
        for name in names or getattr(target, "__all__", None) or _own_names(target):
            yield from _with_members(f"{directive['name']}.{name}", getattr(target, name), None)
    else:
        yield from _with_members(directive["name"], target, (names or None) if members else [])


def _own_names(module: Any) -> list[str]:
    """The public names that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _with_members(name: str, target: Any, members: list[str] | None) -> Iterator[Documented]:
    """A function, or a class with the listed members.

    None stands for all public members that the class itself defines and documents.
    """
    if not inspect.isclass(target):
        if callable(target):
            yield "function", name, target
        return
    yield "class", name, target
    if members is None:
        members = [member for member in vars(target) if not member.startswith("_")]
    for member in members:
        value = inspect.getattr_static(target, member)
        if isinstance(value, (property, cached_property)):
            yield "property", f"{name}.{member}", value
        elif inspect.isfunction(value) and inspect.getdoc(getattr(target, member)):
            yield "method", f"{name}.{member}", value


def faults(kind: str, target: Any) -> list[str]:
    """Errors and omissions in the docstring of a function, class, method or property."""
    text = inspect.getdoc(target)
    if not text:
        return ["no docstring"]
    messages = []
    if SINGLE_BACKTICKS.search(text):
        messages.append("code in single backticks: use two")
    if kind == "property":
        return messages
    doc = NumpyDocString(text)
    if kind != "method" and not doc["Examples"]:
        messages.append("no section Examples")
    arguments = _arguments(kind, target)
    entries = {name.strip(): entry for entry in doc["Parameters"] for name in entry.name.split(",")}
    fields = {entry.name for entry in doc["Attributes"]} if kind == "class" else set()
    if arguments and not entries and not fields:
        messages.append("no section Parameters")
    else:
        undocumented = [name for name in arguments if name not in entries and name not in fields]
        messages += [f"argument {name} is not documented" for name in undocumented]
    messages += [f"there is no argument {name}" for name in entries if name not in arguments]
    for name, entry in entries.items():
        if name in arguments:
            messages += _default_faults(name, entry.type, arguments[name].default)
        if not "".join(entry.desc).strip():
            messages.append(f"argument {name} has no description")
    if kind != "class" and not doc["Returns"] and not doc["Yields"] and _returns_value(target):
        messages.append("no section Returns")
    return messages


def _arguments(kind: str, target: Any) -> dict[str, inspect.Parameter]:
    """The arguments by name, with the stars of variable arguments as in docstrings."""
    has_signature = kind != "class" or (
        "__init__" in vars(target) or dataclasses.is_dataclass(target) or issubclass(target, tuple)
    )
    if not has_signature:
        return {}
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return {
        stars.get(parameter.kind, "") + parameter.name: parameter
        for parameter in inspect.signature(target).parameters.values()
        if parameter.name != "self"
    }


def _default_faults(name: str, type_text: str, default: Any) -> list[str]:
    """Differences between the default in the type text of a docstring and in the signature."""
    if default is inspect.Parameter.empty:
        if "default" in type_text or "optional" in type_text:
            return [f"argument {name} has no default, but the docstring states one"]
        return []
    match = DEFAULT.search(type_text)
    if default is None and match is None:
        if type_text.endswith("optional"):
            return []
        return [f"argument {name} is optional, but the docstring does not state it"]
    if match is None:
        return [f"argument {name} has the default {default!r}, but the docstring does not state it"]
    stated = match["value"]
    try:
        value = ast.literal_eval(stated)
    except (ValueError, SyntaxError):
        value = stated
    if value == default or stated == str(default):
        return []
    return [f"argument {name} has the default {default!r}, but the docstring states {stated}"]


def _returns_value(function: Any) -> bool:
    """Whether the signature has a return annotation other than None."""
    annotation = inspect.signature(function).return_annotation
    return annotation not in (None, "None", inspect.Signature.empty)
