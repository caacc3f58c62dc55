"""Interfaces stay small: few methods to implement, few files to read, few public names.

The limits are today's counts. A change that removes a method, a file or a name lowers its limit.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import sgdynamics as sgd

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/sgdynamics"

# ---- methods of an interface


@dataclass(frozen=True)
class Interface:
    """A class that users or solvers implement, and an implementation outside of the package.

    `provided` are public methods that the class implements for all its subclasses. `makers` are
    the functions that construct an implementation where no subclass is written.
    """

    path: str  # of the class: module:name
    drill: str  # file with the implementation, in tests/
    provided: frozenset[str] = frozenset()
    makers: frozenset[str] = frozenset()
    most_required: int = 6  # largest number of abstract methods
    most: int = 7  # largest number of methods to implement, optional ones included

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]

    def load(self) -> type:
        module, _, name = self.path.partition(":")
        return getattr(import_module(f"sgdynamics.{module}"), name)


INTERFACES = [
    Interface(
        "samples.sample:Sample",
        "samples/test_own_sample.py",
        # numbers that follow from the draws and the means
        provided=frozenset({"normals_per_sample", "sampled_normals", "centred"}),
    ),
    Interface("expectations.interface:Expectation", "expectations/test_own_expectation.py"),
    Interface("expectations.closed_forms.family:ClosedForms", "expectations/test_closed_forms.py"),
    Interface(
        "dynamics.protocol:Dynamics",
        "dynamics/test_own_dynamics.py",
        provided=frozenset({"describe", "replace"}),  # from `parameters` and the fields
    ),
    Interface(
        "algorithms.updates.update:Update",
        "algorithms/bounded_momentum.py",
        makers=frozenset({"own"}),
    ),
    Interface("problems.constraints:Constraint", "problems/test_constraints.py"),
    Interface(
        "base.registry:Question", "base/scaled_risk.py", makers=frozenset({"Question"}), most=2
    ),
    # Four methods are required. Most optional ones change the batch (`select_runs`, `restore`).
    Interface("simulation.running:Simulator", "simulation/test_own_simulator.py", most=10),
]
BY_NAME = {interface.name: interface for interface in INTERFACES}


def public_methods(cls: type) -> set[str]:
    """Public methods and properties of a class, inherited ones of the library included."""
    own = (base for base in cls.__mro__ if base.__module__.startswith(("sgdynamics", __name__)))
    return {
        name
        for base in own
        for name, member in vars(base).items()
        if not name.startswith("_") and isinstance(member, (property, FunctionType))
    }


@pytest.mark.parametrize("name", BY_NAME)
def test_an_interface_has_few_methods(name):
    interface = BY_NAME[name]
    cls = interface.load()
    methods = public_methods(cls)
    required = set(getattr(cls, "__abstractmethods__", ()))
    assert interface.provided <= methods
    assert not interface.provided & required
    assert methods, "the methods are counted"
    assert len(required) <= interface.most_required, sorted(required)
    to_implement = methods - interface.provided
    assert len(to_implement) <= interface.most, sorted(to_implement)


def test_the_count_sees_methods_and_properties():
    class Example:
        attribute = 1

        def method(self): ...

        @property
        def size(self): ...

        def _private(self): ...

    class Extension(Example):
        def further(self): ...

    assert public_methods(Example) == {"method", "size"}
    assert public_methods(Extension) == {"method", "size", "further"}


def base_names(node: ast.ClassDef) -> set[str]:
    """The names of the bases of a class, without their modules."""
    return {ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases}


def classes(folder: Path) -> list[tuple[Path, ast.ClassDef]]:
    """All classes of the Python files of a folder."""
    return [
        (path, node)
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def subclasses(name: str) -> list[tuple[Path, ast.ClassDef]]:
    """The classes of the package that inherit from a class, directly or not."""
    family, all_classes = {name}, classes(PACKAGE)
    while True:
        inheriting = [(path, node) for path, node in all_classes if base_names(node) & family]
        names = family | {node.name for _, node in inheriting}
        if names == family:
            return inheriting
        family = names


@pytest.mark.parametrize("name", [i.name for i in INTERFACES if i.provided])
def test_provided_methods_are_not_overridden(name):
    """A method that some subclass overrides is one more method to implement."""
    provided = BY_NAME[name].provided
    inheriting = subclasses(name)
    overridden = [
        f"{path.relative_to(ROOT)}: {node.name}.{member.name}"
        for path, node in inheriting
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name in provided
    ]
    assert overridden == []


@pytest.mark.parametrize("name", BY_NAME)
def test_every_interface_is_implemented_outside_of_the_package(name):
    """The drill subclasses the interface, or constructs it by its maker, and is used in a test."""
    interface = BY_NAME[name]
    drill = ROOT / "tests" / interface.drill
    tree = ast.parse(drill.read_text(encoding="utf-8"))
    if not interface.makers:
        implementing = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and interface.name in base_names(node)
        ]
        required = set(getattr(interface.load(), "__abstractmethods__", ()))
        defined = [
            {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            | {
                target.id
                for member in node.body
                if isinstance(member, ast.Assign)
                for target in member.targets
                if isinstance(target, ast.Name)
            }
            for node in implementing
        ]
        assert any(required <= names and names for names in defined), (required, defined)
    else:
        called = {
            ast.unparse(node.func).rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        assert interface.makers <= called
    if not drill.name.startswith("test_"):
        # A module without tests is imported by one.
        importing = [
            path
            for path in drill.parents[1].rglob("test_*.py")
            if drill.stem in path.read_text(encoding="utf-8")
        ]
        assert importing, interface.drill


# ---- files to read behind a public function

# Files that a reader opens to follow a public solver to its first level: its own file, and those
# of the functions and classes of the library that it calls. Messages, checks and arrays (`base`)
# do not count.
FILES_BEHIND = {
    "solve_ode": 6,
    "solve_sde": 6,
    "solve_mean_field": 7,
    "exit_time": 9,
    "simulate": 10,
    "solve_linear": 10,
    "solve_dmft": 12,
    "solve_large_batch": 14,
}


@cache
def module_tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def file_of_module(module: str) -> str | None:
    """The file of a module of the library, relative to the package; None for any other name."""
    folders = module.split(".")[1:]
    for path in (Path("/".join(folders) + ".py"), Path(*folders, "__init__.py")):
        if (PACKAGE / path).is_file():
            return path.as_posix()
    return None


@cache
def imported_names(file: str) -> dict[str, tuple[str, str | None]]:
    """Names that a file imports from the library: their files, and the objects in them."""
    names: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(module_tree(file)):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if module.partition(".")[0] != "sgdynamics":
            continue
        for alias in node.names:
            submodule = file_of_module(f"{module}.{alias.name}")
            source = submodule or file_of_module(module)
            assert source is not None, f"{file}: {module}.{alias.name}"
            names[alias.asname or alias.name] = (source, None if submodule else alias.name)
    return names


def executed_nodes(definition: ast.FunctionDef | ast.ClassDef) -> list[ast.AST]:
    """The nodes of a body that run: annotations are left out."""
    nodes: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.arg):
            return
        nodes.append(node)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child)

    for statement in definition.body:
        visit(statement)
    return nodes


def files_called(file: str, function: str) -> set[str]:
    """The file of a function, and those of the library that it and its own file's helpers use."""
    definitions = {
        node.name: node
        for node in module_tree(file).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    imported, files = imported_names(file), {file}
    pending, visited = [function], set()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        for node in executed_nodes(definitions[name]):
            if isinstance(node, ast.Name) and node.id in definitions:
                pending.append(node.id)
            elif isinstance(node, ast.Name) and node.id in imported:
                files.add(imported[node.id][0])
    return {name for name in files if not name.startswith("base/")}


def file_of_function(name: str) -> str:
    file = file_of_module(getattr(sgd, name).__module__)
    assert file is not None
    return file


@pytest.mark.parametrize("name", FILES_BEHIND)
def test_few_files_are_behind_a_public_solver(name):
    file = file_of_function(name)
    files = files_called(file, name)
    assert file in files
    assert len(files) > 2, "the calls are followed"
    assert len(files) <= FILES_BEHIND[name], sorted(files)


# Steps and files of a table "A walk through ..." of CONTRIBUTING.md; a folder counts as one file.
MAX_WALK_STEPS = 7
MAX_WALK_FILES = 12
WALK_ROW = re.compile(r"^\| (.+?) \| (`.+?) \|$", re.MULTILINE)


def walks() -> dict[str, list[tuple[str, list[str]]]]:
    """The walks of CONTRIBUTING.md by solver: steps, each with its files."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tables = re.findall(r"### A walk through `(\w+)`\n\n(.*?)\n\n", text, flags=re.DOTALL)
    return {
        name: [
            (step, re.findall(r"`([\w/]+(?:\.py|/))`", files))
            for step, files in WALK_ROW.findall(table)
        ]
        for name, table in tables
    }


def test_the_walks_are_found():
    assert {"solve_ode", "exit_time"} <= set(walks())
    for name, steps in walks().items():
        assert len(steps) >= 4, name
        assert all(files for _, files in steps), name


@pytest.mark.parametrize("name", walks())
def test_a_walk_is_short_and_true(name):
    """Few steps, whose files exist; a function named in a step is in one of its files."""
    steps = walks()[name]
    assert len(steps) <= MAX_WALK_STEPS
    assert len({file for _, files in steps for file in files}) <= MAX_WALK_FILES
    assert file_of_function(name) in steps[0][1], "the first file defines the public function"
    for step, files in steps:
        assert [file for file in files if not (PACKAGE / file).exists()] == []
        words = {
            word
            for file in files
            if file.endswith(".py")
            for word in re.findall(r"\w+", (PACKAGE / file).read_text(encoding="utf-8"))
        }
        named = set(re.findall(r"`(\w+)`", step))
        assert named <= words, (step, named - words)


def test_the_files_of_a_call_are_found():
    """Each part of the count of files on one known function."""
    files = files_called(file_of_function("solve_ode"), "solve_ode")
    assert {"solvers/ode.py", "solvers/call.py", "solvers/batch.py", "results/build.py"} <= files
    assert not any(name.startswith("base/") for name in files)


# ---- public names

# Names of `sgdynamics` and of its public modules. A new question or model needs one; a name that
# is added raises this number in the same commit, with the reason in its message.
MAX_PUBLIC_NAMES = 304


def names_of_module(module: ModuleType) -> set[str]:
    """Public names of a module, with its path; those of its public submodules included."""
    own = {name for name, value in vars(module).items() if is_defined_in(value, module)}
    listed = set(getattr(module, "__all__", own))
    names = {f"{module.__name__}.{name}" for name in listed}
    for name in sorted(listed):
        member = getattr(module, name)
        if isinstance(member, ModuleType):
            names |= names_of_module(member)
    return names


def is_defined_in(value: object, module: ModuleType) -> bool:
    """Whether a module defines this public function or class."""
    name = getattr(value, "__name__", "_")
    is_own = getattr(value, "__module__", "") == module.__name__
    return is_own and isinstance(value, (type, FunctionType)) and not name.startswith("_")


def test_public_names_do_not_grow():
    names = names_of_module(sgd)
    assert {"sgdynamics.solve_ode", "sgdynamics.algorithms.updates.adam"} <= names
    assert "sgdynamics.plotting.plot.overlaps" in names
    assert len(names) <= MAX_PUBLIC_NAMES, f"{len(names)} names"
