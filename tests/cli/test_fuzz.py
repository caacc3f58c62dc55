"""Damaged problem files and results end in a result or in one line and exit code 2.

A fixed seed makes the same few hundred mutations every time. All reading and checking is real;
solvers stop where their work would begin.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import sgdynamics as sgd
from sgdynamics.cli import main
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.results.build import label_values
from sgdynamics.results.clock import make_clock
from tests.contracts.before_work import Work, stop_before_work

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
COMMANDS = ("run", "exit-time", "hessian", "sweep")
HOSTILE_NUMBERS = [
    "1e300",
    "-1",
    "0",
    "nan",
    "inf",
    "true",
    '"x"',
    "[]",
    "{}",
    "1e30",
    "99999999999999999999999",
    "0.1",
    "3",
    "[[[1]]]",
    '""',
    "1e-300",
]
WORDS = [
    "",
    "x",
    "ode",
    "erf",
    "random",
    "overlaps",
    "TeacherStudent",
    "SpikedTensor",
    "GaussianMixture",
    "Langevin",
    "../x",
    "\\u0000",
    "trained",
]
NUMBER = re.compile(r"(?<![\w.\"-])\d+(?:\.\d+)?(?![\w.\"])")
WORD = re.compile(r'"[^"\n]*"')


def changed_text(text: str, draw: random.Random) -> bytes:
    """One mutation of a problem file."""
    lines = text.splitlines()
    position = draw.randrange(len(text))
    kind = draw.randrange(8)
    if kind == 0:
        return text[:position].encode()
    if kind == 1:
        damaged = bytearray(text.encode())
        damaged[position] ^= 1 << draw.randrange(8)
        return bytes(damaged)
    if kind == 2:
        del lines[draw.randrange(len(lines))]
    elif kind == 3:
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    elif kind == 4:
        value, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        lines[value], lines[other] = lines[other], lines[value]
    elif kind == 5:
        return text.replace(draw.choice(WORD.findall(text)), f'"{draw.choice(WORDS)}"', 1).encode()
    else:
        outcome = draw.choice([*NUMBER.finditer(text)])
        return (
            text[: outcome.start()] + draw.choice(HOSTILE_NUMBERS) + text[outcome.end() :]
        ).encode()
    return "\n".join(lines).encode()


def ends_well(folder: Path, *arguments: object) -> str:
    """Run a command; what became of it: the work began, a result, or one line of refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", RuntimeWarning
            )  # an overflow on the way is not an answer
            outcome = CliRunner().invoke(main.app, [*map(str, arguments)])
    except Work:
        return "work"
    message = [line for line in outcome.stderr.splitlines() if not line.startswith("warning: ")]
    assert outcome.exit_code in (0, 2), (arguments, outcome.output, outcome.stderr)
    if outcome.exit_code == 2:
        assert len(message) == 1, (arguments, outcome.stderr)
        assert message[0].startswith("sgdynamics: "), (arguments, message)
        assert "Traceback" not in outcome.output
        return "refused"
    return "result"


# These read their problems and algorithms as the others do, and take the longest.
SLOW_EXAMPLES = (
    "attention",
    "committee",
    "controls",
    "deep_linear",
    "diagonal",
    "lora",
    "many_epochs",
    "message_passing",
    "momentum_on_data",
    "optimisers",
    "persistent_sgd",
    "power_law",
    "stages",
    "wide_network",
    "workers",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW_EXAMPLES))
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_damaged_problem_files(example, tmp_path, monkeypatch):
    stop_before_work(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw = random.Random(example.stem)
    text = example.read_text()
    ends = []
    assert [ends_well(tmp_path, command, example, "--json") for command in COMMANDS].count(
        "work"
    ) >= 1  # undamaged, it reaches the work
    for number in range(150):
        file = tmp_path / f"{number}.toml"
        file.write_bytes(changed_text(text, draw))
        command = COMMANDS[0] if number % 2 else draw.choice(COMMANDS)
        extra = ("--out", tmp_path / str(number)) if command in ("run", "sweep") else ()
        ends.append(ends_well(tmp_path, command, file, *extra))
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    # both happen: mutations that leave a problem file, and mutations that do not
    assert min(ends.count("work"), ends.count("refused")) > 15


def store_result(folder: Path) -> Path:
    """A file of two results as `run` writes it, with real records and artificial values."""
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.2)
    start = sgd.random_start(problem, dimension=100, seed=0)
    results = {}
    for method, runs, whole in (("solve_ode", 1, False), ("simulate-exact", 3, True)):
        when = make_clock(algorithm, times=[0.0, 1.0, 2.0], dimension=100, whole_steps=whole)
        repeated = {"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a}
        overlaps = {
            name: np.repeat(np.repeat(value[:, None], 3, axis=1), runs, axis=0)
            for name, value in repeated.items()
        }
        risk = np.linspace(1.0, 0.5, 3) + 0.01 * np.arange(runs)[:, None]
        attributes = {"seed": 0, "dimension": 100, "dtype": "float64", "error_quadrature": 1e-9}
        flags = {"diverged_at": np.full(runs, np.nan), "method": method, "attributes": attributes}
        dynamics = dynamics_of("simulate", problem, algorithm)
        result = label_values(dynamics, when, dynamics.observables(overlaps, risk, when), **flags)
        results[method.removeprefix("solve_").removeprefix("simulate-")] = result
    return sgd.save(results, folder / "whole.nc")


TEXTS = [
    "",
    "{",
    "[]",
    "null",
    "3",
    '{"kind": 3}',
    '{"kind": "Problem"}',
    "[" * 20_000,
    '{"kind": "TeacherStudent", "width": "x"}',
    "\u2603",
]


def change_attributes(file: Path, draw: random.Random) -> None:
    """Edit, remove or retype something inside a file that stays an HDF5 file."""
    with h5py.File(file, "r+") as content:
        group = content[draw.choice(list(content))]
        position = draw.randrange(6)
        if position == 0:
            group.attrs[draw.choice(["problem", "algorithm", "method"])] = draw.choice(TEXTS)
        elif position == 1:
            name = draw.choice(list(group.attrs))
            del group.attrs[name]
        elif position == 2:
            group.attrs[draw.choice(["dimension", "seed", "dtype", "method", "problem"])] = (
                draw.choice([-1, 1e300, np.nan, np.zeros(3), "x"])
            )
        elif position == 3:
            record = json.loads(group.attrs["problem"])
            record[draw.choice(list(record))] = draw.choice(
                [None, -1, 1e300, True, "x", [], {}, [[1]], 10**30]
            )
            group.attrs["problem"] = json.dumps(record)
        elif position == 4:
            del group[
                draw.choice(
                    [name for name, value in group.items() if isinstance(value, h5py.Dataset)]
                )
            ]
        else:
            values = group[
                draw.choice([name for name, value in group.items() if value.dtype.kind == "f"])
            ]
            values[...] = draw.choice([np.nan, np.inf, -1.0, 1e30])


def change_bytes(file: Path, draw: random.Random) -> None:
    """Cut the file short, or flip bits in it."""
    damaged = bytearray(file.read_bytes())
    if draw.randrange(3) == 0:
        del damaged[draw.randrange(len(damaged)) :]
    else:
        for _ in range(draw.choice([1, 3, 20])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    file.write_bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "count"),
    [
        (change_attributes, 15),
        pytest.param(change_attributes, 150, marks=pytest.mark.slow),
        (change_bytes, 75),
    ],
)
def test_damaged_results(change, count, tmp_path, monkeypatch):
    stop_before_work(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw = random.Random(change.__name__)
    whole = store_result(tmp_path)
    assert ends_well(tmp_path, "compare", whole) == "result"
    assert ends_well(tmp_path, "run", whole, "--out", "again") == "work"
    ends = []
    for number in range(count):
        file = shutil.copy(whole, tmp_path / f"{number}.nc")
        change(Path(file), draw)
        ends.append(
            ends_well(tmp_path, "compare", file)
            if number % 2
            else ends_well(tmp_path, "run", file, "--out", f"out{number}")
        )
    # A checksum covers every byte; attributes changed by a writer of netCDF files may be valid.
    assert ends.count("refused") > min(10, count // 4)
    assert (ends.count("refused") == len(ends)) == (change is change_bytes)
