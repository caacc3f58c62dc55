"""The house: every import goes up the list of CONTRIBUTING.md, and the list is whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import tenths

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/sgdynamics"


def places() -> list[str]:
    """The places of CONTRIBUTING's table in their order, without endings."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| place | holds |")[1].split("| `tests/` |")[0]
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", table, flags=re.MULTILINE)
    return [name.removesuffix("/").removesuffix(".py") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def place_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports() -> list[tuple[Path, str, str]]:
    """(file, its place, a place that it imports) for every import of the package, those inside functions too."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = place_of(".".join(("sgdynamics", *path.relative_to(PACKAGE).with_suffix("").parts)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "sgdynamics":
                modules = [f"sgdynamics.{name.name}" for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            found += [(path, own, place_of(module)) for module in modules if module.split(".")[0] == "sgdynamics"]
    return found


def test_the_list_is_whole():
    there = {path.stem if path.suffix == ".py" else path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    there -= {"__pycache__"}
    assert sorted(places()) == sorted(there)


def test_imports_go_up_the_list():
    floor = {name: index for index, name in enumerate(places())}
    wrong = [f"{path.relative_to(ROOT)} imports {other}" for path, own, other in imports() if floor[other] > floor[own]]
    assert wrong == []
    assert len(imports()) > 300  # it sees them


def test_ten_tenths_are_all_the_tests():
    names = [f"tests/test_{file}.py::test[{case}]" for file in "abcdefghijklmnopqrst" for case in range(23)]
    dealt = tenths(names)
    assert set(dealt) == set(names)
    assert tenths(names[::-1]) == dealt
    counts = [sum(tenth == one for tenth in dealt.values()) for one in range(10)]
    # each file gives two or three to every tenth
    assert min(counts) >= 2 * 20
    assert max(counts) <= 3 * 20
    # and what has one test each is spread by name
    assert len(set(tenths([name for name in names if "[0]" in name]).values())) > 5
