"""Problem files with a trained top."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sgdynamics.cli import problem_files

EXAMPLE = Path(__file__).parents[2] / "examples/lora.toml"


def test_the_example_states_rates_decay_and_start_by_leaf():
    plan = problem_files.plan(problem_files.read(EXAMPLE))
    assert plan.problem.structure.top.names == ("B",)
    assert plan.algorithm.head_rate == {"B": 2.0}
    np.testing.assert_array_equal(plan.start.a, [[0.1]])
    np.testing.assert_array_equal(plan.problem.parameters["head_decay"], [0.01])
    assert list(plan.calls) == ["ode", "exact"]
