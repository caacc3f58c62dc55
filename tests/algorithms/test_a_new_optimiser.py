"""An optimiser that is defined outside of the package works with every solver.

The solvers are the ODE, the exact chain, direct runs and sweeps. Its record restores it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.results.records import algorithm_from
from tests.algorithms import bounded_momentum as example
from tests.algorithms.bounded_momentum import bounded_momentum

PROBLEM = sgd.TeacherStudent(width=2, activation="erf", noise=0.25)
START = sgd.start(PROBLEM, M=[[0.4], [0.1]], Q=[[1.0, 0.2], [0.2, 0.8]])
ALGORITHM = sgd.OnePassSGD(lr=0.5, update=bounded_momentum(2.0))


def test_the_example_is_short():
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slow
def test_theory_and_runs():
    """Means of direct runs and of the exact chain agree with the ODE.

    They differ by at most 4.9 standard errors (probability 1e-6) and a bias of order 1/d.
    """
    theory = sgd.solve_ode(PROBLEM, ALGORITHM, START, alpha=[1.0])
    assert ALGORITHM.update.law.linear  # `own` finds out by trial
    assert theory.update_scalars.sel(update_scalar="age").item() == pytest.approx(1.0, rel=1e-9)
    for method, d, runs in (("exact", 400, 200), ("direct", 100, 200)):
        result = sgd.simulate(
            PROBLEM, ALGORITHM, START, alpha=[1.0], dimension=d, runs=runs, method=method
        )
        for name in ("M", "Q", "rows_M", "rows_Q"):
            gap = np.abs(result[name].mean("run") - theory[name].isel(run=0)).values
            error = result[name].std("run", ddof=1).values / np.sqrt(runs)
            assert np.all(gap < 4.9 * error + 6 / d), (method, name)


@pytest.mark.slow
def test_records_and_sweeps():
    assert algorithm_from(ALGORITHM.describe()) == ALGORITHM
    assert repr(ALGORITHM.update) == "bounded_momentum(memory=2, scale=0.1)"
    assert ALGORITHM.update.replace(memory=3.0).numbers["memory"] == 3.0
    sweep = sgd.sweep(
        "solve_ode",
        problem=PROBLEM,
        algorithm=ALGORITHM,
        start=START,
        alpha=[1.0],
        over={"algorithm.update.memory": [2.0, 4.0]},
    )
    risk_of_long_memory, risk_of_short_memory = sweep["risk"].values.reshape(2)
    # A velocity that starts at 0 reaches the mean gradient sooner with a shorter memory.
    assert risk_of_short_memory < risk_of_long_memory


@pytest.mark.slow
def test_theory_and_runs_on_a_fixed_data_set():
    """The same update on a data set, in its units: DMFT, the exact law and direct runs agree."""
    algorithm = sgd.GradientDescent(0.5, 3.0, update=bounded_momentum(0.2))
    theory = sgd.solve_dmft(
        PROBLEM, algorithm, START, steps=[10], paths=8192, seed=3, progress=False
    )
    runs = 400
    for method in ("exact", "direct"):
        result = sgd.simulate(
            PROBLEM, algorithm, START, steps=[10], dimension=100, runs=runs, method=method
        )
        for name in ("M", "Q"):
            gap = np.abs(result[name].mean("run") - theory[name].isel(run=0)).values
            error = result[name].std("run", ddof=1).values / np.sqrt(runs)
            own = theory[f"{name}_standard_error"].values[0]
            assert np.all(gap < 4.9 * np.hypot(error, own) + 4 / 100), (method, name)
