"""Windows, whose jaxlib is built without Triton: all but the GPU kernels works."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.modules["jaxlib.mlir._mlir_libs._triton_ext"] = None  # its import raises ImportError
import numpy as np
import sgdynamics as sgd
from sgdynamics.simulation.gpu import pallas

problem = sgd.TeacherStudent(width=1, activation="linear")
start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
for algorithm in (
    sgd.OnePassSGD(lr=0.2), sgd.GradientDescent(lr=0.2, samples_per_dimension=2.0)
):
    runs = sgd.simulate(problem, algorithm, start, steps=[0, 2], dimension=10, method="direct")
    assert np.isfinite(runs.risk).all()
runs = sgd.simulate(problem, sgd.OnePassSGD(lr=0.2), start, steps=[0, 2], dimension=10)
print(pallas.triton)
"""


@pytest.mark.slow
def test_simulations_do_not_need_triton() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("None")
