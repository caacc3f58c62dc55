"""Types: shapes in signatures are checked on traces, and few annotations are a bare `Any`."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

from sgdynamics.base.arrays import Numeric

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/sgdynamics"
# The problems that the fast test traces. The first is one of those that are also simulated.
FEW = ("erf", "own", "grid")
# Largest share of bare `Any` among the annotations of each kind.
MAX_ANY = {"arguments": 0.01, "returns": 0.015, "fields": 0.02}


def trace_engine(setup: str = "") -> subprocess.CompletedProcess[str]:
    """Run `shapes_checked.main` in a process of its own, after the statements `setup`.

    The checks are added while the package is imported, so that this process cannot run them.
    """
    module = "tests.architecture.shapes_checked"
    program = f"import sys, {module} as shapes\n{setup}\nsys.exit(shapes.main())"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    ("problems", "least"),
    [pytest.param(FEW, 8, marks=pytest.mark.slow), pytest.param(None, 40, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_shapes_are_those_of_the_signatures(problems, least):
    process = trace_engine(f"shapes.PROBLEMS = {problems}")
    assert process.returncode == 0, process.stdout + process.stderr
    assert int(process.stdout.split()[0]) > least  # number of traces


# Wrong shapes: file, correct annotation, wrong annotation, and the function that must fail.
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
        "fields_from_rows",
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
    """In a copy of the package with wrong shapes, the traces of these functions fail."""
    shutil.copytree(PACKAGE, tmp_path / "sgdynamics", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new, _ in WRONG:
        file = tmp_path / "sgdynamics" / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    # Only the changed modules are checked.
    modules = tuple(name.removesuffix(".py").replace("/", ".") for name, *_ in WRONG)
    process = trace_engine(
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f'shapes.PROBLEMS, shapes.ENGINE = ("erf",), {modules}'
    )
    assert process.returncode == 1, process.stdout + process.stderr
    for *_, function in WRONG:
        message = rf"TypeCheckError: Type-check error whilst checking the .*{function}"
        assert re.search(message, process.stdout), process.stdout


def test_the_checker_distinguishes_shapes():
    from tests.architecture.shapes_checked import checker

    @jaxtyped(typechecker=checker)
    def overlaps(
        rows: Float[Numeric, "p d"], signals: Float[Numeric, "K d"]
    ) -> Float[Numeric, "p K"]:
        return rows @ signals.T

    assert overlaps(jnp.zeros((3, 7)), jnp.zeros((2, 7))).shape == (3, 2)
    with pytest.raises(TypeCheckError):
        overlaps(jnp.zeros((3, 7)), jnp.zeros((2, 6)))


def is_any(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


@cache
def annotations() -> dict[str, tuple[int, list[str]]]:
    """Count the annotations of each kind in the package, and list those that are a bare `Any`."""
    counts = dict.fromkeys(MAX_ANY, 0)
    bare: dict[str, list[str]] = {kind: [] for kind in MAX_ANY}

    def count(kind: str, annotation: ast.expr | None, name: str) -> None:
        counts[kind] += annotation is not None
        if is_any(annotation):
            bare[kind].append(name)

    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = node.args
                variadic = filter(None, [arguments.vararg, arguments.kwarg])
                named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                for argument in [*named, *variadic]:
                    name = f"{file}: {node.name}({argument.arg})"
                    count("arguments", argument.annotation, name)
                count("returns", node.returns, f"{file}: {node.name} returns")
            elif isinstance(node, ast.ClassDef):
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign):
                        field = ast.unparse(statement.target)
                        count("fields", statement.annotation, f"{file}: {node.name}.{field}")
    return {kind: (counts[kind], bare[kind]) for kind in MAX_ANY}


@pytest.mark.parametrize("kind", MAX_ANY)
def test_few_types_are_any(kind):
    """The share of bare `Any` must not grow."""
    total, bare = annotations()[kind]
    assert total > {"arguments": 4000, "returns": 1500, "fields": 500}[kind]  # all are counted
    assert len(bare) <= MAX_ANY[kind] * total, f"{len(bare)} of {total}:\n" + "\n".join(bare)
