"""`sgd.DMFT`: validation, and how sweeps and problem files set its fields."""

from __future__ import annotations

import pytest

import sgdynamics as sgd
from sgdynamics.cli.problem_files import plan, sweep_call
from sgdynamics.sweeps.job import Job
from sgdynamics.sweeps.points import find_parameter

PROBLEM = sgd.TeacherStudent(width=1, activation="linear")
DESCENT = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
START = sgd.start(PROBLEM, M=[[0.2]], Q=[[1.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "tolerance = 0.0: "),
        ({"rank": 0}, "rank = 0: "),
        ({"rank": 2.5}, "rank = 2.5: "),
        ({"dtype": "float16"}, "dtype = 'float16': "),
        ({"memory": -1.0}, "memory = -1.0: "),
        ({"keep": 8}, "keep = 8: only used together with memory_directions"),
        ({"rank": 4, "memory_directions": 40}, "rank = 4: memory_directions limits"),
        ({"form": "kernels"}, "form = 'kernels': choose one of 'auto', 'projections', 'response'"),
        ({"form": "response", "rank": 4}, "form = 'response': .* Omit rank"),
    ],
)
def test_values_are_validated_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        sgd.DMFT(**options)
    with pytest.raises(ValueError, match=message):
        sgd.DMFT().replace(**options)


def test_former_arguments_are_named_with_their_new_place():
    with pytest.raises(ValueError, match=r"rank = 4: .*Write method=sgd\.DMFT\(rank=\.\.\.\)"):
        sgd.solve_dmft(PROBLEM, DESCENT, START, steps=[1], rank=4)
    with pytest.raises(ValueError, match=r"method = 'response': expected sgd\.DMFT"):
        sgd.solve_dmft(PROBLEM, DESCENT, START, steps=[1], method="response")


@pytest.mark.parametrize("name", ["rank", "method.rank", "arguments.method.rank"])
def test_points_of_a_sweep_vary_an_option(name):
    """The other options of the call stay, and the store distinguishes sweeps by them."""
    arguments = {"steps": [1], "method": sgd.DMFT(tolerance=1e-3)}
    job = Job("solve_dmft", PROBLEM, DESCENT, START, arguments)
    path = find_parameter(job, name)
    assert path == ("arguments", "method", "rank")
    job.vary({path})
    assert job.objects_at({path: 7})[3]["method"] == sgd.DMFT(tolerance=1e-3, rank=7)
    other = Job("solve_dmft", PROBLEM, DESCENT, START, {"steps": [1]})
    other.vary({path})
    assert other.objects_at({path: 7})[3]["method"] == sgd.DMFT(rank=7)
    assert other.identity != job.identity


@pytest.mark.slow
def test_sweep_over_an_option():
    result = sgd.sweep(
        "solve_dmft",
        problem=PROBLEM,
        algorithm=DESCENT,
        start=START,
        over={"tolerance": [1e-5, 1e-4]},
        steps=[0, 4],
        paths=1024,
        workers=1,
        progress=False,
    )
    assert result["train_risk"].sizes["tolerance"] == 2
    assert not result["failed"].values.any()


RECORD = {
    "problem": {"kind": "TeacherStudent", "width": 1, "activation": "linear"},
    "algorithm": {"kind": "GradientDescent", "lr": 0.1, "samples_per_dimension": 2.0},
    "start": {"M": [[0.2]], "Q": [[1.0]]},
    "run": {
        "methods": ["dmft"],
        "steps": [0, 4],
        "dmft": {"paths": 1024, "dtype": "float32", "memory_directions": 64},
    },
}


def test_problem_files_contain_the_options_as_keys():
    call = plan(RECORD).calls["dmft"]
    assert call == {"paths": 1024, "method": sgd.DMFT(dtype="float32", memory_directions=64)}
    wrong = {**RECORD, "run": {**RECORD["run"], "dmft": {"memory_direction": 64}}}
    with pytest.raises(ValueError, match="did you mean 'memory_directions'"):
        plan(wrong)


def test_sweeps_of_problem_files_take_the_options():
    record = {**RECORD, "sweep": {"solver": "dmft", "keep": 8, "over": {"dtype": ["float64"]}}}
    solver, arguments = sweep_call(record)
    assert solver == "solve_dmft"
    assert arguments["method"] == sgd.DMFT(memory_directions=64, keep=8)
    assert arguments["over"] == {"dtype": ["float64"]}
