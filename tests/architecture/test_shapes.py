"""Types say the truth: shapes in signatures are checked on traces of the engine, and nearly every argument has a type of its own."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

from sgdynamics.base.arrays import Numeric

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/sgdynamics"
FEW = (
    "erf",
    "own",
    "grid",
)  # of the problems that are traced: chain, direct runs, paths and conditioning are in the first
MOST_ANY = 0.05  # of all annotated arguments


def traced(change: str = "") -> subprocess.CompletedProcess[str]:
    """`shapes_checked.main` in a process of its own, whose checks are put in while the package is imported; `change` is run first."""
    program = f"import sys, tests.architecture.shapes_checked as shapes\n{change}\nsys.exit(shapes.main())"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    ("problems", "least"),
    [(FEW, 8), pytest.param(None, 40, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_shapes_are_those_of_the_signatures(problems, least):
    found = traced(f"shapes.PROBLEMS = {problems}")
    assert found.returncode == 0, found.stdout + found.stderr
    assert int(found.stdout.split()[0]) > least  # it has traced them


# shapes that are wrong: file, what stands there, in its place, and who finds it
WRONG = [
    (
        "simulation/compressed.py",
        'T: Float[Numeric, "blocks rows K"]',
        'T: Float[Numeric, "blocks rows rows"]',
        "initial_rows",
    ),
    (
        "fixed_data/conditioning.py",
        '-> Float[Numeric, "inputs p"]:',
        '-> Float[Numeric, "p inputs"]:',
        "fields_of",
    ),
    (
        "expectations/closed_forms/erf.py",
        'q1: Float[Numeric, " m"]',
        'q1: Float[Numeric, " n"]',
        "pair_moments",
    ),
]


@pytest.mark.slow
def test_a_wrong_shape_is_caught(tmp_path):
    """A copy of the package with wrong shapes: the traces that meet them fail."""
    shutil.copytree(PACKAGE, tmp_path / "sgdynamics", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new, _ in WRONG:
        file = tmp_path / "sgdynamics" / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    rooms = tuple(
        name.removesuffix(".py").replace("/", ".") for name, *_ in WRONG
    )  # no others need checks
    found = traced(
        f'sys.path.insert(0, {str(tmp_path)!r})\nshapes.PROBLEMS, shapes.ENGINE = ("erf",), {rooms}'
    )
    assert found.returncode == 1, found.stdout + found.stderr
    for *_, who in WRONG:
        assert re.search(
            rf"TypeCheckError: Type-check error whilst checking the .*{who}", found.stdout
        ), found.stdout


def test_the_checker_tells_shapes_apart():
    from tests.architecture.shapes_checked import checker

    @jaxtyped(typechecker=checker)
    def overlaps(
        rows: Float[Numeric, "p d"], signals: Float[Numeric, "K d"]
    ) -> Float[Numeric, "p K"]:
        return rows @ signals.T

    assert overlaps(jnp.zeros((3, 7)), jnp.zeros((2, 7))).shape == (3, 2)
    with pytest.raises(TypeCheckError):
        overlaps(jnp.zeros((3, 7)), jnp.zeros((2, 6)))


def annotated() -> tuple[int, list[str]]:
    """How many arguments of the package have a type, and which of them have `Any`."""
    count, bare = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            given = node.args
            every = [
                *given.posonlyargs,
                *given.args,
                *given.kwonlyargs,
                *filter(None, [given.vararg, given.kwarg]),
            ]
            for argument in every:
                count += argument.annotation is not None
                if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any":
                    bare.append(f"{path.relative_to(PACKAGE)}: {node.name}({argument.arg})")
    return count, bare


def test_few_arguments_are_any():
    count, bare = annotated()
    assert count > 4000  # it sees them
    assert len(bare) < MOST_ANY * count, "\n".join(bare)
