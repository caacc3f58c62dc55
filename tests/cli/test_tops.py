"""Problem files with a trained top."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sgdynamics.cli import problem_files

EXAMPLE = Path(__file__).parents[2] / "examples/lora.toml"


def test_the_example_states_rates_decay_and_start_by_leaf():
    plan = problem_files.plan(problem_files.read(EXAMPLE))
    assert plan.problem.structure.top.names == ("B",)
    assert plan.algorithm.head_rate == {"B": 2.0}
    np.testing.assert_array_equal(plan.start.a, [[0.1]])
    np.testing.assert_array_equal(plan.problem.parameters["head_decay"], [0.01])
    assert list(plan.calls) == ["ode", "exact"]


# The table [problem] and the leaves of the start.
TABLES = {
    "mlp": (
        {"kind": "mlp", "widths": [1, 2], "signals": 1, "biases": True, "weight_decay": {"u": 0.1}},
        {"V1": [[0.5], [-0.5]], "c0": [0.1], "c1": [0.0, 0.2], "u": [1.0, 0.3]},
    ),
    "softmax": ({"kind": "softmax", "classes": 2, "width": 1}, {"B": [[0.5], [-0.3]]}),
    "biases": (
        {"kind": "TeacherStudent", "activation": "erf", "head": "trained", "biases": True},
        {"a": [1.0], "b": [0.2]},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_models_with_a_top_are_read_from_tables(name):
    table, top = TABLES[name]
    rates = dict.fromkeys(top, 0.5)
    signals = 2 if name == "softmax" else 1
    record = {
        "problem": {**table, **({"width": 1} if name == "biases" else {})},
        "algorithm": {"kind": "OnePassSGD", "lr": 0.5, "head_rate": rates},
        "start": {"M": [[0.3, -0.2][:signals]], "Q": [[1.0]], "top": top},
        "run": {"methods": ["ode"], "times": [1.0]},
    }
    plan = problem_files.plan(record)
    leaves = plan.problem.structure.top.leaves_by_name(plan.start.a[0])
    for leaf, values in top.items():
        np.testing.assert_array_equal(leaves[leaf], values)
    assert plan.algorithm.head_rate == rates
