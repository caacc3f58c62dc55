"""Every Python block of the README runs as printed, and the demo does its job."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import sgdynamics as sgd

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    if "print" in block:
        found = r"risk_theory|measured \d+\.\d+ \+- \d\.\d+\n.*: \d+\.\d+\n|effective dynamics at lr = 0.5, d = 200(?s:.*)u2 .*±.*±"
        assert re.search(found, shown)


def test_the_first_example_is_short():
    lines = [line for line in BLOCKS[0].splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10


def test_demo_at_a_small_size(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples/demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    demo.main(tmp_path, dimension=500, runs=100)
    shown = capsys.readouterr()
    assert "exact simulation (100 runs) against the ODE" in shown.out
    assert "exact simulation, d = 500" in shown.err  # the progress bar
    assert sorted(file.name for file in tmp_path.iterdir()) == ["demo.nc", "demo.png"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert sgd.load(tmp_path / "demo.nc", group="exact").sizes["run"] == 100
    apart = re.findall(r"([+-]\d+\.\d) s\.e\.", shown.out)
    assert len(apart) == 24
