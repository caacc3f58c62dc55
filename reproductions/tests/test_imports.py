"""The figures use public names of the library, and the private ones that README.md lists."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import sgdynamics as sgd

DISTRIBUTION = Path(__file__).parents[1]
PACKAGE = DISTRIBUTION / "src/sgdynamics_reproductions"
# modules of the library whose __all__ is public
PUBLIC_MODULES = {
    "sgdynamics": set(sgd.__all__),
    "sgdynamics.scaling": set(sgd.scaling.__all__),
    "sgdynamics.version": {"__version__"},
} | {
    f"sgdynamics.papers.{name}": set(getattr(sgd.papers, name).__all__)
    for name in sgd.papers.__all__
}


def allowed_names() -> set[str]:
    """The dotted private names in the table of README.md."""
    text = (DISTRIBUTION / "README.md").read_text(encoding="utf-8")
    table = text.split("| private name | use |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", table, flags=re.MULTILINE)
    return {f"sgdynamics.{name}" for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def private_imports() -> dict[str, set[str]]:
    """Private names of the library that are imported, with the files that import them."""
    users: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name != "sgdynamics"]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                public = PUBLIC_MODULES.get(module, set())
                imported = [alias.name for alias in node.names if alias.name not in public]
                names = [f"{module}.{name}" for name in imported]
            else:
                continue
            for name in names:
                if name.split(".")[0] == "sgdynamics":
                    users.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    return users


def test_private_names_are_those_of_the_readme():
    users = private_imports()
    unlisted = {name: sorted(files) for name, files in users.items() if name not in allowed_names()}
    assert unlisted == {}
    assert allowed_names() - set(users) == set()  # nothing is listed without being used


def test_the_reader_of_imports_sees_private_names():
    assert "sgdynamics.base.checks" in private_imports()
    assert len(allowed_names()) < 40


def test_listed_names_exist():
    for name in allowed_names():
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute) or importlib.import_module(name)
