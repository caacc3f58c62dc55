"""Risks of many states: what runs share is computed once, and the results are those of each."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.repetition import is_repeated
from sgdynamics.expectations import risk
from sgdynamics.expectations.accuracy import population_accuracy
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.frames import compressed_rows


def _states(problem, runs: int, times: int) -> dict[str, np.ndarray]:
    """Random states of (run, time): all runs share the first time, and two of them the last."""
    start = sgd.random_start(problem, dimension=50, seed=3, runs=runs * times)
    arrays = {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
    states = {
        name: np.array(value).reshape(runs, times, *value.shape[1:])
        for name, value in arrays.items()
    }
    for value in states.values():
        value[:, 0] = value[0, 0]
        value[1, -1] = value[0, -1]
    return states


def test_a_state_that_all_runs_share_is_evaluated_once() -> None:
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    states = _states(problem, runs=5, times=3)
    distinct, positions = risk.distinct_states(states)
    assert len(distinct["a"]) == 1 + 2 * 5
    for name, value in states.items():
        np.testing.assert_array_equal(distinct[name][positions].reshape(value.shape), value)
    # Two runs that agree, and runs that diverged together, are not merged.
    states["Q"][:, 0] = np.nan
    assert len(risk.distinct_states(states)[0]["a"]) == 3 * 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["risk", "accuracy"])
def test_values_of_shared_states_are_those_of_single_states(kind: str) -> None:
    problem = sgd.GaussianMixture("binary", width=2, snr=5.0)
    states = _states(problem, runs=4, times=2)

    def evaluate(states: dict[str, np.ndarray]) -> np.ndarray:
        if kind == "risk":
            return risk.population_risk(problem, states)[0]
        return population_accuracy(problem, *(states[name] for name in ("M", "Q", "a")))[0]

    together = evaluate(states)
    single = np.array(
        [
            evaluate({name: value[run : run + 1, time] for name, value in states.items()})[0]
            for run in range(4)
            for time in range(2)
        ]
    )
    np.testing.assert_allclose(together.ravel(), single, rtol=1e-10)
    assert len(np.unique(together[:, 1])) == 3


def test_rows_of_one_start_are_factorised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = sgd.TeacherStudent(width=3, activation="erf")
    start = sgd.random_start(problem, dimension=50, seed=0)
    sizes = problem.block_dimensions(50)
    single = compressed_rows(problem, start, sizes)
    counts = []
    eigh = np.linalg.eigh

    def count_matrices(matrices: np.ndarray):
        counts.append(len(matrices))
        return eigh(matrices)

    monkeypatch.setattr(np.linalg, "eigh", count_matrices)
    runs = sgd.start(problem, M=np.repeat(start.M, 7, axis=0), Q=np.repeat(start.Q, 7, axis=0))
    assert is_repeated(runs.M_blocks, runs.Q_blocks)
    for rows, row in zip(compressed_rows(problem, runs, sizes), single, strict=True):
        np.testing.assert_array_equal(rows, np.repeat(row, 7, axis=0))
    assert counts[-1] == 1


@pytest.mark.parametrize(("kind", "width"), [("xor", 4), ("binary", 6)])
def test_clusters_share_their_fields(kind: str, width: int) -> None:
    """The sampled risk of a mixture is that of its loss, cluster by cluster."""
    problem = sgd.GaussianMixture(kind, width=width, snr=10.0)
    structure, parameters = problem.structure, problem.parameters
    start = sgd.random_start(problem, dimension=50, seed=1)
    expectation = expectation_of(structure)
    nodes = SobolAverages.risk_nodes(expectation, expectation.quadrature(1.0))
    first = {name: value[0] for name, value in nodes.items()}
    state = {"M": start.M_blocks[0], "Q": start.Q_blocks[0], "a": start.a[0]}
    with jax.enable_x64(True):
        overlaps = risk.overlaps_at(structure, parameters, state)
        at = Evaluation(expectation.quadrature(1.0), first, parameters, overlaps, state["a"])
        together = jax.jit(lambda: expectation.evaluate_risk(at))()
        of_loss = jax.jit(lambda: SobolAverages.evaluate_risk(expectation, at))()
    assert float(together) == pytest.approx(float(of_loss), rel=1e-12)


@pytest.mark.parametrize("cores", [1, 3])
def test_states_divided_among_cores_have_the_same_risks(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = sgd.GaussianMixture("binary", width=6, snr=5.0)
    states = _states(problem, runs=3, times=4)
    whole, _ = risk.population_risk(problem, states)
    monkeypatch.setattr(risk, "count_cores", lambda: cores)
    divided, _ = risk.population_risk(problem, states)
    np.testing.assert_array_equal(divided, whole)
