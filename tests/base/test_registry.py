"""The registry is complete, and all of its readers see a question that is added from outside."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sgdynamics as sgd
from sgdynamics.base import registry
from sgdynamics.base.support import FRESH_SAMPLES, KINDS, why_not
from sgdynamics.cli import main
from sgdynamics.plotting import plot
from sgdynamics.sweeps.job import Job
from tests.base import scaled_risk
from tests.contracts.kinds import LR, PROBLEMS, start_of

ROOT = Path(__file__).parents[2]
FILE = """
[problem]
kind = "TeacherStudent"
width = 1
activation = "square"
noise = 0.1
[algorithm]
kind = "OnePassSGD"
lr = 0.1
[start]
M = [[0.4]]
Q = [[1.0]]
[run]
methods = ["ode", "scaled_risk"]
times = [0.0, 0.15, 0.3]
[run.scaled_risk]
scale = 2.0
[sweep]
solver = "scaled_risk"
workers = 1
[sweep.over]
scale = [1.0, 2.0]
"""


@pytest.fixture
def question(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    return registry.register(scaled_risk.ENTRY)


def test_every_entry_names_a_public_function_that_the_api_pages_document():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    for entry in registry.questions().values():
        assert getattr(sgd, entry.public_name) is entry.load()
        assert re.search(rf":: sgdynamics\.{entry.public_name}\b", pages), entry.public_name
        if not inspect.ismodule(entry.load()):
            parameters = inspect.signature(entry.load()).parameters
            assert entry.takes_algorithm == ("algorithm" in parameters), entry.name
            has_keywords = any(
                parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
            )
            assert has_keywords or set(entry.example) <= set(parameters), entry.name
        for method in entry.methods:
            accepted = set(inspect.signature(entry.load()).parameters)
            assert set(method.clocks) == accepted & set(registry.CLOCKS)
            assert {*method.run_keys, *method.arguments} <= accepted


def test_functions_that_take_a_problem_and_an_algorithm_are_registered():
    registered = {entry.public_name for entry in registry.questions().values()}
    # `plateau` is a formula of one kind of problem. `phases` passes its solver's arguments on;
    # presets of `stages` make its arguments, and `best_share` solves them with `solve_ode`.
    not_questions = {
        "plateau", "best_share", "self_distillation", "model_collapse",
    }  # fmt: skip
    for name in sgd.__all__:
        value = getattr(sgd, name)
        if inspect.isfunction(value):
            parameters = set(inspect.signature(value).parameters)
            if {"problem", "algorithm"} <= parameters:
                assert name in registered | not_questions, name


def test_reading_the_registry_does_not_import_jax():
    code = (
        "import sys, sgdynamics; from sgdynamics.base import registry; sgdynamics.supported();"
        "registry.methods(); assert 'jax' not in sys.modules; assert 'xarray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_question_from_outside_is_in_the_support_table(question):
    (row,) = [line for line in sgd.supported().splitlines() if line.startswith("| `scaled_risk`")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    for kind, cell in zip(KINDS, cells, strict=True):
        assert cell.startswith("no" if why_not("scaled_risk", kind) else "yes")
    assert cells[list(KINDS).index("fixed data")].startswith("no")
    assert cells[list(KINDS).index("fields")] == "yes"


def test_a_question_from_outside_raises_where_its_entry_says_so(question):
    problem = PROBLEMS["fields"]()
    start = start_of("fields", problem)
    with pytest.raises(ValueError, match=re.escape(FRESH_SAMPLES)):
        scaled_risk.scaled_risk(problem, sgd.GradientDescent(lr=LR), start, times=[1.0])
    tensor = PROBLEMS["spiked tensor"]()
    with pytest.raises(ValueError, match="a spiked tensor has no Gaussian inputs"):
        scaled_risk.scaled_risk(tensor, sgd.OnePassSGD(lr=LR), None, times=[1.0])


def test_a_question_from_outside_is_swept_by_name(question, monkeypatch):
    problem, algorithm = PROBLEMS["fields"](), sgd.OnePassSGD(lr=LR)
    arguments = {"problem": problem, "algorithm": algorithm, "start": start_of("fields", problem)}
    times = [0.0, 0.15, 0.3]
    swept = sgd.sweep(
        "scaled_risk", over={"scale": [1.0, 4.0]}, times=times, workers=1, **arguments
    )
    assert list(swept["failed"].values) == ["", ""]
    single = sgd.solve_ode(**arguments, times=times)
    np.testing.assert_allclose(swept["risk"].sel(scale=4.0), single["risk"] / 4, rtol=1e-12)
    # A worker process has not registered the entry: the job brings the path of the function.
    job = pickle.dumps(Job("scaled_risk", *arguments.values(), {"times": times}))
    monkeypatch.setattr(registry, "_registered", {})
    assert pickle.loads(job).function is scaled_risk.scaled_risk
    with pytest.raises(ValueError, match="solver = 'scaled_risk'"):
        sgd.sweep("scaled_risk", over={"scale": [1.0]}, times=times, workers=1, **arguments)


def test_a_question_from_outside_works_in_problem_files(question, tmp_path):
    file = tmp_path / "file.toml"
    file.write_text(FILE)
    arguments = [str(file), "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(main.app, ["run", *arguments, "--format", "none"])
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    # The table shows the excess risk, which the question does not change.
    assert answer["methods"]["scaled_risk"]["mean"] == answer["methods"]["ode"]["mean"]
    stored = {name: sgd.load(tmp_path / "file.nc", group=name) for name in ("ode", "scaled_risk")}
    np.testing.assert_allclose(stored["scaled_risk"].risk, stored["ode"].risk / 2, rtol=1e-12)
    _, ax = plot.risk(stored["scaled_risk"])
    assert ax.get_legend_handles_labels()[1] == ["scaled risk"]
    done = CliRunner().invoke(main.app, ["sweep", *arguments])
    assert done.exit_code == 0, done.stderr
    assert (json.loads(done.stdout)["points"], json.loads(done.stdout)["failed"]) == (2, 0)
    file.write_text(FILE.replace("times = [0.0, 0.15, 0.3]", "alpha = [0.0, 1.0]"))
    done = CliRunner().invoke(main.app, ["run", *arguments])
    assert "the method 'scaled_risk' does not accept alpha. Set times = ..." in done.stderr


def test_names_are_unique(question):
    assert registry.register(scaled_risk.ENTRY) == question
    with pytest.raises(ValueError, match=r"name = 'scaled_risk': this name belongs to tests\.base"):
        registry.register(registry.Question("scaled_risk", "somewhere:other"))
    duplicate = registry.Question(
        "another", "somewhere:other", methods=(registry.Method("ode", "ODE"),)
    )
    with pytest.raises(ValueError, match="problem files already use these names"):
        registry.register(duplicate)
