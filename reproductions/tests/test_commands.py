"""The commands `sgdynamics figures` and `sgdynamics figure` with this distribution installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sgdynamics.cli.main import app
from sgdynamics_reproductions import gallery


def run(*arguments: object) -> str:
    """Standard output of a command that succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


MESSAGES = {
    ("rough_landscape", "1"): "document = 'rough_landscape': did you mean 'rough_landscapes'?",
    ("quadratic_networks", "escape_time"): "figure = 'escape_time': did you mean 'escape_times'?",
    ("quadratic_networks", "5", "--seed", "-1"): "seed = -1: give a whole number, 0 or more",
}


@pytest.mark.parametrize("arguments", MESSAGES)
def test_bad_input_is_one_line(arguments):
    result = CliRunner().invoke(app, ["figure", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"sgdynamics: {MESSAGES[arguments]}")
    assert result.stderr.count("\n") == 1


def test_figures_lists_the_gallery():
    rows = json.loads(run("figures", "--json"))["figures"]
    assert [(row["document"], row["number"]) for row in rows] == [
        (entry.document, entry.number) for entry in gallery.ENTRIES
    ]
    assert run("figures").count("\n") == len(rows)


def test_figure_makes_a_figure(tmp_path):
    command = ("figure", "quadratic-networks", "5", "--quick", "--out", tmp_path, "--json")
    record = json.loads(run(*command))
    assert record["verdict"].startswith("reproduced: 24 of 24 numbers agree")
    assert all(Path(name).is_file() for name in record["files"])
