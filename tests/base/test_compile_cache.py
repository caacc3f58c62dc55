"""`compile_cache`: programs are stored, read by the next session, and compiled again if damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sgdynamics as sgd
from sgdynamics.base import compile_cache as module

SESSION = """
import sys
import jax
import sgdynamics as sgd

jax.numpy.ones(3).block_until_ready()  # JAX has decided by now that there is no cache
folder = sgd.compile_cache(sys.argv[1])
read = []
jax.monitoring.register_event_listener(
    lambda event, **_: read.append(event) if event.endswith("/cache_hits") else None
)
problem = sgd.TeacherStudent(width=1)
start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
runs = sgd.simulate(problem, sgd.OnePassSGD(lr=0.1), start, steps=[5], dimension=50, runs=2)
print(len(read), repr(float(runs.risk[1, 0])))
"""


def session(folder: Path) -> tuple[int, str]:
    """Programs read in a new session, and a number that it computes."""
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=True,
    )
    programs, number = done.stdout.split()
    return int(programs), number


@pytest.mark.slow
def test_the_next_session_reads_the_programs(tmp_path):
    folder = tmp_path / "programs"
    hits, number = session(folder)
    assert hits == 0
    stored = [path for path in folder.iterdir() if path.name.endswith("-cache")]
    assert stored
    hits, repeated = session(folder)
    assert hits >= len(stored)
    assert repeated == number
    for path in stored:
        path.write_bytes(path.read_bytes()[:100])
    hits, repeated = session(folder)
    assert hits == 0
    assert repeated == number


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    with pytest.raises(ValueError, match=r"folder = .*file.* cannot be created"):
        sgd.compile_cache(tmp_path / "file" / "programs")


def test_the_default_folder_is_of_this_kind_of_processor(monkeypatch, tmp_path):
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = module.default_folder()
    assert folder.parent == tmp_path / "sgdynamics"
    assert folder.name == f"programs-{module.processor_identity()}"
    monkeypatch.setattr(module.platform, "machine", lambda: "another processor")
    assert module.default_folder() != folder
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "mine"))
    assert module.default_folder() == tmp_path / "mine"
