"""Stages and workers in problem files: the calls that a file states, and wrong tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.cli import problem_files

EXAMPLES = Path(__file__).parents[2] / "examples"
FILE: dict = {
    "problem": {"kind": "TeacherStudent", "width": 1, "activation": "linear", "noise": 0.1},
    "algorithm": {"kind": "OnePassSGD", "lr": 0.5},
    "start": {"M": [[0.0]], "Q": [[0.0]]},
    "run": {"methods": ["ode"]},
}
STAGES = [
    {"name": "first", "alpha": [1.0, 2.0]},
    {
        "times": [1.0],
        "labels": "first",
        "label_noise": 0.0,
        "start": {"M": [[0.2]], "Q": [[0.3]]},
        "problem": {"noise": 0.3},
        "algorithm": {"lr": 1.0},
    },
]


@pytest.mark.slow
def test_a_file_states_the_call_of_stages():
    plan = problem_files.plan({**FILE, "stages": STAGES})
    result = problem_files.solve(plan, "ode")
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.5)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    second = problem.replace(noise=0.3)
    stages = [
        sgd.Stage(problem, algorithm, [1.0, 2.0], name="first"),
        sgd.Stage(
            second,
            algorithm.replace(lr=1.0),
            {"times": [1.0]},
            "first",
            label_noise=0.0,
            start=sgd.start(second, M=[[0.2]], Q=[[0.3]]),
        ),
    ]
    expected = sgd.stages(sgd.solve_ode, stages, start)
    np.testing.assert_array_equal(result.excess_risk, expected.excess_risk)
    assert result.stage.values.tolist() == ["first", "first", "stage 1"]
    assert problem_files.method_of(result) == "ode"


@pytest.mark.slow
def test_the_example_of_workers_states_a_sweep():
    solver, arguments = problem_files.sweep_call(problem_files.read(EXAMPLES / "workers.toml"))
    arguments["over"] = {"algorithm.every": [0.5], "workers": [1, 4], "outer_lr": [0.7, 1.0]}
    result = sgd.sweep(solver, **arguments)
    assert not np.any(result.failed != "")
    assert result.excess_risk.dims[:3] == ("every", "workers", "outer_lr")
    np.testing.assert_allclose(result.excess_risk.values[0, 1, 1].item(), 0.00409359, atol=6e-9)


WRONG = {
    "write each stage as a table": {"stages": {}},
    "exactly one of times, alpha, steps": {"stages": [{"name": "a"}]},
    "stages\\[0\\]: name = 'teacher'": {"stages": [{"name": "teacher", "alpha": 1.0}]},
    "labls": {"stages": [{"labls": "previous", "alpha": 1.0}]},
    "run.alpha": {"stages": STAGES, "run": {"methods": ["ode"], "alpha": [1.0]}},
    "run.methods": {"stages": STAGES, "run": {"methods": ["mean_field"]}},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_stages_are_rejected(message):
    with pytest.raises(ValueError, match=message):
        problem_files.plan({**FILE, **WRONG[message]})
