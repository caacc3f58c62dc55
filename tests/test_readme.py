"""Every Python block of the README runs as printed, and the demo does its job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sgdynamics as sgd

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    if "print" in block:
        assert "risk_theory" in capsys.readouterr().out


def test_the_first_example_is_short():
    lines = [line for line in BLOCKS[0].splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10


def test_demo(tmp_path):
    out = subprocess.run([sys.executable, ROOT / "examples/demo.py", tmp_path], check=True, capture_output=True, text=True)
    assert "exact simulation (200 runs) against the ODE" in out.stdout
    assert "exact simulation, d = 3000" in out.stderr  # the progress bar
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    stored = sgd.load(tmp_path / "demo.nc", group="exact")
    assert stored.sizes["run"] == 200
    worst = [float(cell) for cell in re.findall(r"([+-]\d+\.\d) s\.e\.", out.stdout)]
    assert len(worst) == 24
    assert max(abs(value) for value in worst) < 6
