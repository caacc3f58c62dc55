"""Memory estimates compared with measured peaks.

A wrong estimate raises for calls that fit into memory, or lets the machine run out of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sgdynamics.base import resources

ROOT = Path(__file__).parents[2]
SCRIPT = """
import re, sys
from pathlib import Path
import numpy as np
import sgdynamics as sgd
from sgdynamics.fixed_data import dmft
from sgdynamics.simulation import running

case, size = sys.argv[1], int(sys.argv[2])
estimates, check_resources, reserve_memory = [], running.check_resources, dmft.Sweep.reserve_memory

def note_simulator(simulator, runs, steps):
    group = min(runs, simulator.resources().largest_group)
    if hasattr(simulator, "bytes_of"):
        estimates.append(simulator.bytes_of(group))
    else:
        estimates.append(group * simulator.resources(steps).bytes_per_run)
    check_resources(simulator, runs, steps)

def note_dmft(self, *arguments):
    reserve_memory(self, *arguments)
    estimates.append(self.required_bytes)

running.check_resources, dmft.Sweep.reserve_memory = note_simulator, note_dmft
width, batch = (4, 1) if case == "one sample" else (2, 32)
problem = sgd.TeacherStudent(width=width, activation="square")
start = sgd.start(problem, M=0.1 * np.ones((width, 1)), Q=np.eye(width))
if case == "paths":
    algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=2.0)
    sgd.solve_dmft(problem, algorithm, start, steps=[0, 40], paths=size)
elif case == "conditioning":
    algorithm = sgd.GradientDescent(lr=0.01, samples_per_dimension=2.0)
    sgd.simulate(problem, algorithm, start, steps=[0, 30], dimension=size, method="exact")
else:
    algorithm = sgd.OnePassSGD(lr=0.01, batch=batch)
    if case == "data set":
        algorithm = sgd.GradientDescent(lr=0.01, samples_per_dimension=2.0)
    sgd.simulate(problem, algorithm, start, steps=[0, 2], dimension=size, method="direct")
# ru_maxrss would contain the peak of the process that started this one
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(max(estimates), 1024 * int(peak))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "small", "large"),
    [
        ("one sample", 3000, 3_000_000),
        ("batch", 400, 400_000),
        ("data set", 50, 5000),
        ("conditioning", 100, 30_000),
        ("paths", 1 << 8, 1 << 16),
    ],
)
def test_memory_estimates_are_right_within_a_factor_of_two(case, small, large):
    """The run of small size measures the memory of Python, JAX and the compiler."""

    def measure(size):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, case, str(size)]
        printed = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=500
        ).stdout
        return map(float, printed.split())

    (small_estimate, small_peak), (large_estimate, large_peak) = measure(small), measure(large)
    ratio = (large_peak - small_peak) / (large_estimate - small_estimate)
    assert 0.5 < ratio < 2.0


def test_a_system_that_does_not_report_its_memory_sets_no_limit(monkeypatch):
    """Windows has neither sysconf nor /proc, and macOS no /proc."""

    def missing(path, **options):
        raise FileNotFoundError(path)

    with_sysconf = resources.host_bytes()
    monkeypatch.setattr(Path, "read_text", missing)
    assert 0 < resources.host_bytes() < np.inf
    assert 0 < with_sysconf < np.inf
    monkeypatch.delattr(os, "sysconf_names")
    assert resources.host_bytes() == np.inf
