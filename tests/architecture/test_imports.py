"""Imports go up the table of packages in CONTRIBUTING.md, and the table lists every package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import tenths

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/sgdynamics"


def packages() -> list[str]:
    """The packages of the table in CONTRIBUTING.md, in its order."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| package | contents |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)


def package_of(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imports() -> list[tuple[Path, str, str]]:
    """(file, its package, the package it imports) for every import, also inside functions.

    The table of public names in `__init__` imports everything on first access and is left out.
    """
    rows = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = package_of(".".join(("sgdynamics", *path.relative_to(PACKAGE).with_suffix("").parts)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "sgdynamics":
                modules = [f"sgdynamics.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            own_modules = [name for name in modules if name.split(".")[0] == "sgdynamics"]
            rows += [(path, own, package_of(module)) for module in own_modules]
    return rows


def test_the_table_lists_every_package():
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert sorted(packages()) == sorted(present - {"__pycache__"})


def test_imports_go_up_the_table():
    rank = {name: index for index, name in enumerate(packages())}
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path, own, other in imports()
        if rank[other] > rank[own]
    ]
    assert wrong == []
    assert len(imports()) > 300  # the reader of imports sees them


# Parts of JAX that may change without notice, each with the one module that imports it.
UNSTABLE_JAX = {
    "jax._src": "base/precision.py",
    "jax.experimental.pallas": "simulation/gpu/pallas.py",
    "jax.experimental.compilation_cache": "base/compile_cache.py",
    "jax.extend": "simulation/gpu/program.py",
}


def dotted_names(tree: ast.AST) -> set[str]:
    """Dotted names that a module imports or reads as attributes: `jax.extend.core`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    return names


def importers(prefix: str) -> list[str]:
    """Modules of the library that use a name with this prefix."""
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if prefix.rpartition(".")[2] not in text:  # most modules: nothing to parse
            continue
        names = dotted_names(ast.parse(text))
        if any(name == prefix or name.startswith(f"{prefix}.") for name in names):
            modules.append(path.relative_to(PACKAGE).as_posix())
    return modules


def test_unstable_parts_of_jax_are_imported_by_one_module_each():
    assert {prefix: importers(prefix) for prefix in UNSTABLE_JAX} == {
        prefix: [module] for prefix, module in UNSTABLE_JAX.items()
    }
    # no other experimental API
    assert set(importers("jax.experimental")) == {
        module for prefix, module in UNSTABLE_JAX.items() if prefix.startswith("jax.experimental")
    }
    # All ways to reach such a name count, also without an import of it.
    reaches = ("import jax.extend.core", "from jax import extend", "x = jax.extend.core.Jaxpr")
    for text in reaches:
        assert any(name.startswith("jax.extend") for name in dotted_names(ast.parse(text))), text


def test_ten_tenths_are_all_the_tests():
    names = [
        f"tests/test_{file}.py::test[{case}]"
        for file in "abcdefghijklmnopqrst"
        for case in range(23)
    ]
    dealt = tenths(names)
    assert set(dealt) == set(names)
    assert tenths(names[::-1]) == dealt
    counts = [sum(tenth == number for tenth in dealt.values()) for number in range(10)]
    # each file gives two or three to every tenth
    assert min(counts) >= 2 * 20
    assert max(counts) <= 3 * 20
    # and what has one test each is spread by name
    assert len(set(tenths([name for name in names if "[0]" in name]).values())) > 5
