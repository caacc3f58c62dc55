"""The JSON schema of problem files accepts what the reader accepts, and no misspelled key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

import sgdynamics as sgd
from sgdynamics.base import registry
from sgdynamics.cli.main import app
from sgdynamics.cli.schema import descriptions, problem_file_schema
from sgdynamics.results.records import CLASSES, KINDS
from tests.contracts import kinds

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SCHEMA = problem_file_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def faults(record: dict) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(record)]


@pytest.mark.slow
def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_valid_and_misspelled_keys_are_not(file):
    record = tomllib.loads(file.read_text(encoding="utf-8"))
    assert faults(record) == []
    for table in ("problem", "algorithm", "run", "start", "exit_time"):
        if table in record:
            assert faults({**record, table: {**record[table], "dimensoin": 3}}), table
    assert faults({**record, "runs": {}})
    assert faults({name: value for name, value in record.items() if name != "problem"})


def test_records_of_problems_and_algorithms_are_valid():
    """A file may contain what `describe` writes."""
    checked = 0
    for kind in ("fields", "mixture", "dropout", "other inputs", "spiked tensor"):
        problem = kinds.PROBLEMS[kind]()
        for update in (None, sgd.updates.momentum(0.9), sgd.updates.weight_decay(0.1)):
            algorithm = sgd.OnePassSGD(lr=0.1, update=update)
            record = {"problem": problem.describe(), "algorithm": algorithm.describe()}
            record["problem"].pop("rerunnable", None)
            record = {
                table: {name: value for name, value in values.items() if value is not None}
                for table, values in record.items()
            }
            assert faults(record) == [], kind
            checked += 1
    assert checked == 15


def test_the_schema_lists_all_kinds_and_methods():
    properties = SCHEMA["properties"]
    problem_kinds = properties["problem"]["properties"]["kind"]["enum"]
    assert set(CLASSES) <= set(problem_kinds)
    assert set(properties["algorithm"]["properties"]["kind"]["enum"]) == set(KINDS)
    assert set(registry.methods()) <= set(properties["run"]["properties"])


def test_an_update_of_a_user_may_have_no_docstring():
    assert descriptions(lambda memory: None) == {}


def test_invalid_values_are_marked():
    record = {
        "problem": {"kind": "TeacherStudent", "activation": "erv"},
        "algorithm": {"kind": "OnePassSGD", "lr": "fast"},
        "run": {"methods": ["ode"], "times": [1.0], "alpha": [1.0]},
    }
    assert len(faults(record)) == 3


def test_descriptions_are_those_of_the_docstrings():
    texts = descriptions(sgd.TeacherStudent)
    assert texts["width"] == "Number of units of the student, p."
    assert descriptions(sgd.updates.adam)["memory"].startswith("Constant c, above 0")


def test_the_command_prints_and_writes_the_schema(tmp_path):
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0, printed.output
    schema = problem_file_schema()  # other tests define updates of their own
    assert json.loads(printed.output) == schema
    written = CliRunner().invoke(app, ["schema", "--out", str(tmp_path / "schema.json")])
    assert written.exit_code == 0, written.output
    assert json.loads((tmp_path / "schema.json").read_text(encoding="utf-8")) == schema
    refused = CliRunner().invoke(app, ["schema", "--out", str(tmp_path / "none/schema.json")])
    assert refused.exit_code == 2
