"""The documentation: examples, docstrings, links and the pages of the API.

Examples run and print what the pages show, links lead to files, and all public names are listed.
"""

from __future__ import annotations

import doctest
import inspect
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgdynamics as sgd

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages of single names are written by the build.
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "generated")
EXAMPLES = [
    page.relative_to(DOCS).as_posix()
    for page in PAGES
    if "```python\n" in page.read_text(encoding="utf-8")
]
API = sorted((DOCS / "api").glob("*.md"))
# Names whose docstring examples are slow.
SLOW = (
    "certify",
    "Certificate",
    "optimal_schedule",
    "optimal_protocol",
    "OptimalProtocol",
    "protocol",
    "measured_success",
    "MeasuredSuccess",
    "outcome",
    "solve_mean_field",
    "density",
    "solve_dmft",
    "solve_sde",
)
sys.path.insert(0, str(DOCS))
import examples  # noqa: E402  the code blocks of the pages, and their figures
import sections  # noqa: E402  the requirements on public docstrings

NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
# Relative tolerance of printed numbers: they have few digits, and random numbers may depend on the
# machine.
TOLERANCE = 0.02
EQUATIONS = 43  # number of equations in theory.md


def same_text(text: str, expected: str) -> bool:
    """Whether two texts have equal words, and numbers that agree.

    Numbers may differ by the tolerance, or by one unit of the last digit of the expected text.
    """
    if NUMBER.sub("#", text).split() != NUMBER.sub("#", expected).split():
        return False
    for number, wanted in zip(NUMBER.findall(text), NUMBER.findall(expected), strict=True):
        last_digit = 0.0
        if "." in wanted and "e" not in wanted:
            last_digit = 10.0 ** -len(wanted.partition(".")[2])
        if not math.isclose(
            float(number), float(wanted), rel_tol=TOLERANCE, abs_tol=1.01 * last_digit
        ):
            return False
    return True


def test_same_text_compares_numbers_and_words():
    assert same_text("risk 0.1004 True\n", "risk 0.1003 True")
    assert not same_text("risk 0.11 True", "risk 0.1003 True")
    assert not same_text("risk 0.1003 False", "risk 0.1003 True")
    assert not same_text("3 1", "2 1")


@pytest.mark.slow  # run by `make docs`, in CI too
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_print_what_is_shown(name, tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    # pages run where they find the files of a clone that they read
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "example"}
    text = (DOCS / name).read_text(encoding="utf-8")
    for block in examples.blocks(name.removesuffix(".md"), text):
        namespace.pop("fig", None)
        exec(compile(block.code, name, "exec"), namespace)
        printed = capsys.readouterr().out
        message = f"{name} shows\n{block.output}\nand prints\n{printed}"
        assert same_text(printed, block.output), message
        if block.picture:
            assert "fig" in namespace, (
                f"{name}: this block has a picture, but no fig:\n{block.code}"
            )
            examples.save_figure(namespace["fig"], block.picture)
        plt.close("all")


def test_pictures_depend_on_the_code_that_draws_them():
    codes = [
        "```python\nx = 1\n```\n\n```text\n1\n```\n",
        "```python\ny = 2\n```\n",
        "```python\nz = 3\n```\n",
    ]
    page = "{}\n```{{picture}} One.\n```\n\n{}\n{}\n```{{picture}} Two.\n```\n".format(*codes)
    first, none, second = examples.blocks("howto/page", page)
    assert (first.output, none.output, none.picture) == ("1\n", "", None)
    assert first.picture != second.picture
    drawn = "```{opening} One.\n```\n\n```python\nx = 1\n```\n\n" + examples.DRAWN
    (block,) = examples.blocks("howto/page", drawn)
    assert block.opening
    assert block.picture == first.picture  # named after the code, wherever it is shown
    changed = list(examples.blocks("howto/page", page.replace("y = 2", "y = 4")))
    assert changed[0].picture == first.picture
    assert changed[2].picture != second.picture


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_results_rather_than_comparisons(name):
    """Examples print numbers, not `True` or `False`."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for block in examples.blocks(name.removesuffix(".md"), text):
        for line in block.output.splitlines():
            assert not line.split() or not set(line.split()) <= {"True", "False"}, (
                f"{name} prints {line!r}:\n{block.code}"
            )


# without results to draw
NO_PICTURE = ("theory.md", "glossary.md", "howto/command_line.md")


@pytest.mark.parametrize("name", EXAMPLES)
def test_pages_that_compute_show_pictures(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    pictures = [block for block in examples.blocks(name.removesuffix(".md"), text) if block.picture]
    assert len(pictures) == text.count("```{picture}") + text.count("```{opening}"), (
        "a picture must follow directly after the block that draws it, or after its output"
    )
    assert sum(block.opening for block in pictures) == text.count("```{opening}")
    assert bool(pictures) == (name not in NO_PICTURE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pages_that_compute_start_with_a_picture(name):
    """A reader sees what a page leads to before the code."""
    text = (DOCS / name).read_text(encoding="utf-8")
    picture = re.search(r"^(?:```\{opening\}|!\[)", text, re.MULTILINE)
    assert picture is not None
    assert picture.start() < text.index("```python")


class TolerantChecker(doctest.OutputChecker):
    """Compare the output of docstring examples by the rules for pages."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or same_text(got, want)


def failures(name: str, text: str) -> str:
    """The failures in the examples of a docstring, as text; empty if there are none."""
    namespace = {"np": np, "sgd": sgd, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(text, namespace, name, None, None)
    assert test.examples, f"{name} has no example"
    report = io.StringIO()
    doctest.DocTestRunner(checker=TolerantChecker(), verbose=False).run(test, out=report.write)
    return report.getvalue()


def test_failing_examples_of_docstrings_are_reported():
    assert failures("right", ">>> 1.0 + 1.001\n2.0") == ""
    assert "Got" in failures("wrong", ">>> 1 + 1\n3")
    assert "ZeroDivisionError" in failures("raises", ">>> 1 / 0\n3")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page.stem for page in API if page.stem != "index"])
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_examples_of_docstrings_run(page, slow, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    reports = []
    for kind, name, target in sections.documented_objects(DOCS / f"api/{page}.md"):
        if kind in ("function", "class") and (name.rpartition(".")[2] in SLOW) == slow:
            reports.append(failures(name, inspect.getdoc(target) or ""))
            plt.close("all")
    assert "".join(reports) == ""


def test_docstrings_meet_the_requirements():
    objects = [entry for page in API for entry in sections.documented_objects(page)]
    messages = [
        f"{name}: {fault}"
        for kind, name, target in objects
        for fault in sections.faults(kind, target)
    ]
    assert messages == []
    assert len(objects) > 250  # all public objects are checked


def add(value: float, /, count: int = 2, name: str | None = None, *others: Any) -> float:
    """A sum.

    Parameters
    ----------
    value : float
        First summand.
    count : int, default 2
        Number of repetitions.
    name : str, optional
        Name of the sum.
    *others
        Further summands.

    Returns
    -------
    float
        The sum.

    Examples
    --------
    >>> 1 + 1
    2
    """
    return value


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("", "", None),
        ("Parameters\n----------", "Notes\n-----", "no section Parameters"),
        ("Returns\n-------", "Notes\n-----", "no section Returns"),
        ("Examples\n--------", "Notes\n-----", "no section Examples"),
        ("value : float", "values : float", "argument value is not documented"),
        ("value : float", "values : float", "there is no argument values"),
        ("    First summand.\n", "", "argument value has no description"),
        ("default 2", "default 3", "argument count has the default 2, but the docstring states 3"),
        (
            "int, default 2",
            "int",
            "argument count has the default 2, but the docstring does not state it",
        ),
        ("str, optional", "str", "argument name is optional, but the docstring does not state it"),
        (
            "value : float",
            "value : float, optional",
            "argument value has no default, but the docstring states one",
        ),
        ("A sum.", "A `sum`.", "code in single backticks: use two"),
    ],
)
def test_faults_of_docstrings_are_reported(before, after, fault, monkeypatch):
    text = inspect.getdoc(add) or ""
    assert before in text
    monkeypatch.setattr(add, "__doc__", text.replace(before, after, 1) if before else text)
    messages = sections.faults("function", add)
    assert fault in messages if fault else messages == []


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_version_to_cite_is_the_current_one():
    for path, line in (
        (ROOT / "CITATION.cff", f"version: {sgd.__version__}\n"),
        (DOCS / "citing.md", f"version = {{{sgd.__version__}}},"),
    ):
        assert line in path.read_text(encoding="utf-8"), (
            f"{path.name}: the version differs from {sgd.__version__}"
        )


@pytest.mark.slow
def test_the_last_job_of_an_array_writes_the_result(tmp_path):
    """The lines for Slurm are comments in bash, so the jobs run here with Slurm's variables."""
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for job in (3, 4):
        assert not (tmp_path / "shared/grid-sweep.nc").exists()
        variables = {
            "SLURM_ARRAY_TASK_ID": str(job),
            "SLURM_ARRAY_TASK_MIN": "3",
            "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_CPUS_PER_TASK": "1",
        }
        command = ["bash", str(ROOT / "examples/array.slurm"), str(grid), str(tmp_path / "shared")]
        process = subprocess.run(
            command,
            env={**os.environ, "PATH": path, **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stderr
    assert sgd.load(tmp_path / "shared/grid-sweep.nc").risk.notnull().all()


GRID = """
[problem]
kind = "TeacherStudent"
width = 1
activation = "linear"

[algorithm]
kind = "OnePassSGD"
lr = 0.5

[start]
M = [[0.1]]
Q = [[1.0]]

[sweep]
solver = "linear"
steps = [100]
dimension = 50

[sweep.over]
"problem.noise" = [0.0, 0.1, 0.2, 0.4]
"""


def test_equations_keep_their_numbers():
    labels = re.findall(r"\$\$ \((eq\d+)\)", (DOCS / "theory.md").read_text(encoding="utf-8"))
    assert labels == [f"eq{number}" for number in range(1, EQUATIONS + 1)]


def test_every_public_name_is_in_the_api():
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"auto(?:function|class|module):: ([\w.]+)", text)
    assert len(listed) == len(set(listed))
    modules = {"__version__", "papers", "models", "scaling"}
    shown = {name.rpartition(".")[2] for name in listed} | modules
    assert not set(sgd.__all__) - shown, "add these names to a page of docs/api"


@pytest.mark.slow
def test_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-D",
        "pictures=0",
        "-d",
        tmp_path / "trees",
        DOCS,
        tmp_path / "html",
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stderr
    theory = (tmp_path / "html/theory.html").read_text(encoding="utf-8")
    equation_numbers = [int(number) for number in re.findall(r'class="eqno">\((\d+)\)', theory)]
    assert equation_numbers == list(range(1, EQUATIONS + 1))
    page = tmp_path / "html/api/generated/sgdynamics.solve_ode.html"
    assert "viewcode-link" in page.read_text(encoding="utf-8")
    tables = (tmp_path / "html/api/dynamics.html").read_text(encoding="utf-8")
    assert 'href="generated/sgdynamics.solve_ode.html#sgdynamics.solve_ode"' in tables
    assert (tmp_path / "html/llms.txt").is_file()
    # The search lists the main index entries first: a term leads to the page about it.
    text = (tmp_path / "html/searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    pages = {
        "escape time": "theory",
        "saad": "theory",
        "solla": "theory",
        "adam": "howto/optimisers",
        "exit_time": "howto/solver",
    }
    for word, page in pages.items():
        main = [index["docnames"][entry[0]] for entry in index["indexentries"][word] if entry[2]]
        assert main == [page], word
