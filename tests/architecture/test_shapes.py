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
# Largest share of bare `Any` among the annotations of each kind; to be lowered to 0.03.
MAX_ANY = {"arguments": 0.039, "returns": 0.108, "fields": 0.14}


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


def is_any(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def annotations() -> dict[str, tuple[int, list[str]]]:
    """The number of annotations of each kind in the package, and those that are a bare `Any`."""
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
    """Types end the guessing at interfaces: the share of bare `Any` must not grow."""
    total, bare = annotations()[kind]
    assert total > {"arguments": 4000, "returns": 1500, "fields": 500}[kind]  # they are counted
    assert len(bare) <= MAX_ANY[kind] * total, f"{len(bare)} of {total}:\n" + "\n".join(bare)
