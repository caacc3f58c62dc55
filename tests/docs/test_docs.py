"""The documentation: examples run and print what the pages show, links lead somewhere, every public name has its place."""

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
PAGES = sorted(page for page in DOCS.rglob("*.md"))
EXAMPLES = [
    page.relative_to(DOCS).as_posix()
    for page in PAGES
    if "```python\n" in page.read_text(encoding="utf-8")
]
API = sorted((DOCS / "api").glob("*.md"))
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
)
SLOW += (
    "solve_mean_field",
    "density",
    "solve_dmft",
    "solve_sde",
)  # of docstrings: the same
sys.path.insert(0, str(DOCS))
import examples  # noqa: E402  the blocks of the pages, and their pictures
import sections  # noqa: E402  what a public docstring must say, as the build asks too

NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
TOLERANCE = (
    0.02  # relative: what is printed has few digits, and random numbers may change with the machine
)
EQUATIONS = 43  # of theory.md


def same_text(one: str, other: str) -> bool:
    """Equal words, and numbers that differ by no more than the tolerance or one unit of the last digit shown."""
    if NUMBER.sub("#", one).split() != NUMBER.sub("#", other).split():
        return False
    for left, right in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True):
        last = (
            10.0 ** -len(right.partition("e")[0].partition(".")[2])
            if "." in right and "e" not in right
            else 0.0
        )
        if not math.isclose(float(left), float(right), rel_tol=TOLERANCE, abs_tol=1.01 * last):
            return False
    return True


def test_same_text_tells_numbers_and_words_apart():
    assert same_text("risk 0.1004 True\n", "risk 0.1003 True")
    assert not same_text("risk 0.11 True", "risk 0.1003 True")
    assert not same_text("risk 0.1003 False", "risk 0.1003 True")
    assert not same_text("3 1", "2 1")


@pytest.mark.slow  # `make docs` runs them, in CI too
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_print_what_is_shown(name, tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "example"}
    for block in examples.blocks(
        name.removesuffix(".md"), (DOCS / name).read_text(encoding="utf-8")
    ):
        names.pop("fig", None)
        exec(compile(block.code, name, "exec"), names)
        printed = capsys.readouterr().out
        assert same_text(printed, block.shown), (
            f"{name} shows\n{block.shown}\nand prints\n{printed}"
        )
        if block.picture:
            assert "fig" in names, (
                f"{name} has a picture behind a block that draws no fig:\n{block.code}"
            )
            examples.keep(names["fig"], block.picture)
        plt.close("all")


def test_pictures_belong_to_the_code_that_drew_them():
    codes = [
        "```python\nx = 1\n```\n\n```text\n1\n```\n",
        "```python\ny = 2\n```\n",
        "```python\nz = 3\n```\n",
    ]
    page = "{}\n```{{picture}} One.\n```\n\n{}\n{}\n```{{picture}} Two.\n```\n".format(*codes)
    first, none, second = examples.blocks("howto/page", page)
    assert (first.shown, none.shown, none.picture) == ("1\n", "", None)
    assert first.picture != second.picture
    changed = list(examples.blocks("howto/page", page.replace("y = 2", "y = 4")))
    assert changed[0].picture == first.picture
    assert changed[2].picture != second.picture


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_results_rather_than_tests(name):
    """A reader learns nothing from `True`: the numbers themselves are printed."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for block in examples.blocks(name.removesuffix(".md"), text):
        for line in block.shown.splitlines():
            assert not line.split() or not set(line.split()) <= {"True", "False"}, (
                f"{name} prints {line!r}:\n{block.code}"
            )


NO_PICTURE = ("units.md", "howto/command_line.md")  # they compute nothing that one would draw


@pytest.mark.parametrize("name", EXAMPLES)
def test_pages_that_compute_show_pictures(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    pictures = [block for block in examples.blocks(name.removesuffix(".md"), text) if block.picture]
    assert len(pictures) == text.count("```{picture}"), (
        "a picture stands right behind the block that draws it, or behind what that prints"
    )
    assert bool(pictures) == (name not in NO_PICTURE)


class SameText(doctest.OutputChecker):
    """What an example shows and what it prints are compared as those of the pages are."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or same_text(got, want)


def failures(name: str, text: str) -> str:
    """What goes wrong in the examples of a docstring; nothing where all is well."""
    names = {"np": np, "sgd": sgd, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert test.examples, f"{name} has no example"
    said = io.StringIO()
    doctest.DocTestRunner(checker=SameText(), verbose=False).run(test, out=said.write)
    return said.getvalue()


def test_failing_examples_of_docstrings_are_told():
    assert failures("right", ">>> 1.0 + 1.001\n2.0") == ""
    assert "Got" in failures("wrong", ">>> 1 + 1\n3")
    assert "ZeroDivisionError" in failures("raises", ">>> 1 / 0\n3")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page.stem for page in API if page.stem != "index"])
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_examples_of_docstrings_run(page, slow, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    found = []
    for kind, name, one in sections.shown(DOCS / f"api/{page}.md"):
        if kind in ("function", "class") and (name.rpartition(".")[2] in SLOW) == slow:
            found.append(failures(name, inspect.getdoc(one) or ""))
            plt.close("all")
    assert "".join(found) == ""


def test_docstrings_say_what_they_must():
    wrong = [
        f"{name}: {fault}"
        for page in API
        for kind, name, one in sections.shown(page)
        for fault in sections.faults(kind, one)
    ]
    assert wrong == []
    assert sum(1 for page in API for _ in sections.shown(page)) > 250  # it sees them


def documented(value: float, /, count: int = 2, name: str | None = None, *others: Any) -> float:
    """A sum.

    Parameters
    ----------
    value : float
        In t.
    count : int, default 2
        How many.
    name : str, optional
        What it is called.
    *others
        More.

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
        ("    In t.\n", "", "argument value has no description"),
        ("default 2", "default 3", "argument count has the default 2, the docstring says 3"),
        (
            "int, default 2",
            "int",
            "argument count has the default 2, the docstring does not say so",
        ),
        ("str, optional", "str", "argument name is optional, the docstring does not say so"),
        (
            "value : float",
            "value : float, optional",
            "argument value has no default, the docstring says it has",
        ),
        ("A sum.", "A `sum`.", "code in single backticks: give it two"),
    ],
)
def test_what_docstrings_lack_is_told(before, after, fault, monkeypatch):
    text = inspect.getdoc(documented) or ""
    assert before in text
    monkeypatch.setattr(documented, "__doc__", text.replace(before, after, 1) if before else text)
    found = sections.faults("function", documented)
    assert fault in found if fault else found == []


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


def test_the_version_to_cite_is_this_one():
    for path, line in (
        (ROOT / "CITATION.cff", f"version: {sgd.__version__}\n"),
        (DOCS / "citing.md", f"version = {{{sgd.__version__}}},"),
    ):
        assert line in path.read_text(encoding="utf-8"), (
            f"{path.name} has another version than {sgd.__version__}"
        )


@pytest.mark.slow
def test_the_array_of_jobs_runs_and_its_last_job_writes_the_whole(tmp_path):
    """Slurm's own lines are comments to bash, so that every job can be run here, with the variables that Slurm would set."""
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for job in (3, 4):
        assert not (tmp_path / "shared/grid-sweep.nc").exists()
        array = {
            "SLURM_ARRAY_TASK_ID": str(job),
            "SLURM_ARRAY_TASK_MIN": "3",
            "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_CPUS_PER_TASK": "1",
        }
        command = ["bash", str(ROOT / "examples/array.slurm"), str(grid), str(tmp_path / "shared")]
        done = subprocess.run(
            command,
            env={**os.environ, "PATH": path, **array},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
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
    shown = {name.rpartition(".")[2] for name in listed} | {
        "__version__",
        "papers",
        "models",
        "scaling",
    }
    assert not set(sgd.__all__) - shown, "add them to a page of docs/api"


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    theory = (tmp_path / "html/theory.html").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r'class="eqno">\((\d+)\)', theory)]
    assert numbers == list(range(1, EQUATIONS + 1))
    assert "viewcode-link" in (tmp_path / "html/api/dynamics.html").read_text(encoding="utf-8")
    # the search lists the main index entries first: a word of the literature leads to the page about it
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
        main = [index["docnames"][place[0]] for place in index["indexentries"][word] if place[2]]
        assert main == [page], word
