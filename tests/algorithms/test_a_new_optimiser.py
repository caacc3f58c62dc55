"""A drill: an optimiser in a file of its own, outside of the package, has ODE, chain, direct runs, records, files and sweeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.results.records import algorithm_from
from tests.algorithms import bounded_momentum as file_of_it
from tests.algorithms.bounded_momentum import bounded_momentum

PROBLEM = sgd.TeacherStudent(width=2, activation="erf", noise=0.25)
START = sgd.start(PROBLEM, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
ALGORITHM = sgd.OnePassSGD(lr=0.5, update=bounded_momentum(2.0))


def test_it_is_a_short_file():
    assert len(Path(file_of_it.__file__).read_text(encoding="utf-8").splitlines()) < 60


def test_theory_and_runs():
    """Direct runs and the exact chain have the ODE's means: 4.9 standard errors (1e-6), and a bias of order 1/d."""
    theory = sgd.solve_ode(PROBLEM, ALGORITHM, START, alpha=[1.0])
    assert ALGORITHM.update.law.linear  # found out when it was made
    assert theory.update_scalars.sel(update_scalar="seen").item() == pytest.approx(1.0, rel=1e-9)
    for method, d, runs in (("exact", 400, 200), ("direct", 100, 200)):
        found = sgd.simulate(
            PROBLEM, ALGORITHM, START, alpha=[1.0], dimension=d, runs=runs, method=method
        )
        for name in ("M", "Q", "rows_M", "rows_Q"):
            gap = np.abs(found[name].mean("run") - theory[name].isel(run=0)).values
            error = found[name].std("run", ddof=1).values / np.sqrt(runs)
            assert np.all(gap < 4.9 * error + 6 / d), (method, name)


def test_records_and_sweeps(tmp_path):
    assert algorithm_from(ALGORITHM.describe()) == ALGORITHM
    assert repr(ALGORITHM.update) == "bounded_momentum(memory=2, scale=0.1)"
    assert ALGORITHM.update.replace(memory=3.0).numbers["memory"] == 3.0
    found = sgd.sweep(
        "solve_ode",
        problem=PROBLEM,
        algorithm=ALGORITHM,
        start=START,
        alpha=[1.0],
        over={"algorithm.update.memory": [2.0, 4.0]},
    )
    risk = found["risk"].values.reshape(2)
    assert risk[1] < risk[0]  # a shorter memory is sooner at work
