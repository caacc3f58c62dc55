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
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


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
