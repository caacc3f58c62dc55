"""Identities of code and modules: bytecode with its constants, and what it reads from outside."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

# Plain values that JSON can represent.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def canonical_json(value: object) -> str:
    """JSON with sorted keys, the same for equal values."""
    return json.dumps(value, sort_keys=True)


def is_library(module: str) -> bool:
    """Whether name and version identify a module: it is Python's, this library's or installed."""
    package = module.partition(".")[0]
    if package in ("sgdynamics", "builtins") or package in sys.stdlib_module_names:
        return True
    top = sys.modules.get(package)
    file = getattr(top, "__file__", None)
    return (
        _is_installed(file)
        if file
        else any(map(_is_installed, map(str, getattr(top, "__path__", ()))))
    )


@functools.lru_cache(4096)
def _is_installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


@functools.cache
def package_version(module: str) -> str:
    """The version of a package; none for this library, whose versions a result lists."""
    package = module.partition(".")[0]
    if package == "sgdynamics":
        return ""
    if package in sys.stdlib_module_names:
        return f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def library_identity(value: object) -> dict[str, str] | None:
    """Name and version of a function or class of an installed package; None for any other."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_library(module):
        return None
    target: Any = sys.modules.get(module)
    for attribute in name.split("."):
        target = getattr(target, attribute, None)
    return (
        {"library": f"{module}.{name}", "version": package_version(module)}
        if target is value
        else None
    )


def module_file_identity(name: str, file: str | None) -> dict[str, str] | None:
    try:
        return {"module": name, "file": hashlib.sha256(Path(file or "").read_bytes()).hexdigest()}
    except OSError:
        return None


def import_identity(name: str) -> dict[str, str]:
    """A module that a function imports when it is called, loaded or not."""
    package = name.partition(".")[0]
    if not is_library(package):
        try:
            specification = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            specification = None
        file = None if specification is None else specification.origin
        if file is not None and not _is_installed(file):
            module_file = getattr(sys.modules.get(name), "__file__", None)
            return module_file_identity(
                name, module_file or (file if name == package else None)
            ) or {"module": name}
    return {"module": name}


@functools.lru_cache(4096)
def code_identity(code: types.CodeType, docstring: str | None = None) -> dict[str, Json]:
    """Bytecode with its constants and names; without file, line numbers and docstring."""
    constants = [_constant(value) for value in code.co_consts]
    if docstring is not None and code.co_consts and code.co_consts[0] == docstring:
        constants[0] = _constant(None)
    return {
        "bytecode": code.co_code.hex(),
        "constants": constants,
        "names": [
            list(code.co_names),
            list(code.co_varnames),
            list(code.co_freevars),
            list(code.co_cellvars),
        ],
        "signature": [
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags,
        ],
        "exceptions": getattr(code, "co_exceptiontable", b"").hex(),
    }


def _constant(value: object) -> Json:
    if isinstance(value, types.CodeType):
        return code_identity(value)
    if isinstance(value, (tuple, frozenset)):
        entries = [_constant(entry) for entry in value]
        if isinstance(value, frozenset):
            entries = sorted(entries, key=canonical_json)
        return {type(value).__name__: entries}
    return [type(value).__name__, repr(value)]


class ExternalReads(NamedTuple):
    """Variables that bytecode reads from outside, with attributes, and modules that it imports."""

    variables: tuple[tuple[str, tuple[str, ...]], ...]
    free_variables: tuple[tuple[str, tuple[str, ...]], ...]
    imports: tuple[str, ...]


@functools.lru_cache(4096)
def external_reads(code: types.CodeType) -> ExternalReads:
    instructions = list(dis.get_instructions(code))
    reads: dict[str, dict[Any, None]] = {"variables": {}, "free_variables": {}, "imports": {}}
    for index, instruction in enumerate(instructions):
        name = instruction.argval
        following = (
            step.argval for step in itertools.takewhile(_takes_attribute, instructions[index + 1 :])
        )
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            reads["variables"][name, tuple(following)] = None
        elif instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            reads["free_variables"][name, tuple(following)] = None
        elif instruction.opname == "IMPORT_NAME" and name:
            reads["imports"][name] = None
    for inner in code.co_consts:  # functions and classes defined inside
        if isinstance(inner, types.CodeType):
            for kind, values in external_reads(inner)._asdict().items():
                reads[kind] |= dict.fromkeys(values)
    return ExternalReads(**{kind: tuple(values) for kind, values in reads.items()})


def _takes_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")


def globals_read(
    function: types.FunctionType, closure: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Global variables that a function reads, by name.

    Of the user's own modules these are only the attributes that it reads.
    """
    reads = external_reads(function.__code__)
    variables = [(name, chain, function.__globals__) for name, chain in reads.variables]
    variables += [
        (name, chain, closure)
        for name, chain in reads.free_variables
        if isinstance(closure.get(name), types.ModuleType)
    ]
    for name, chain, namespace in variables:
        if name not in namespace:  # a builtin, which the code names, or not defined yet
            continue
        value = namespace[name]
        for attribute in chain:
            if (
                not isinstance(value, types.ModuleType)
                or is_library(value.__name__)
                or not hasattr(value, attribute)
            ):
                break
            name, value = f"{name}.{attribute}", getattr(value, attribute)
        yield name, value
