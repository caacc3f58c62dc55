"""The stored notebooks agree with their sources, and print the same when they are run."""

from __future__ import annotations

import base64
import re
import sys

import nbformat
import pytest

from tests.docs.test_docs import DOCS, same_text

sys.path.insert(0, str(DOCS))
import run_notebooks

STORED = DOCS / "notebooks"


def read_stored(name: str):
    """The stored notebook of this name."""
    return nbformat.read(STORED / f"{name}.ipynb", as_version=4)


def test_the_page_lists_all_ten_notebooks():
    assert len(run_notebooks.NAMES) == 10
    assert sorted(path.stem for path in STORED.glob("*.ipynb")) == run_notebooks.NAMES
    page = (STORED / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((\w+)\.ipynb\)", page)) == run_notebooks.NAMES
    assert sorted(page.partition("{toctree}")[2].split()[1:-1]) == run_notebooks.NAMES


@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_stored_cells_are_those_of_the_source(name):
    """The outputs contain a figure and printed text, no warnings, and no paths of a machine."""
    source, stored = run_notebooks.notebook(name), read_stored(name)
    source_cells, stored_cells = (
        [(cell.cell_type, cell.source, cell.id) for cell in content.cells]
        for content in (source, stored)
    )
    assert source_cells == stored_cells, f"run python docs/run_notebooks.py {name}"
    outputs = outputs_of(stored)
    warnings_and_errors = [
        output
        for output in outputs
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]
    assert warnings_and_errors == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    printed = run_notebooks.printed_text(stored)
    assert printed
    assert not re.search(r"/(tmp|work|home|root)/", printed)


def outputs_of(content) -> list:
    """The outputs of all cells of a notebook."""
    return [output for cell in content.cells for output in cell.get("outputs", ())]


def displayed_results(content) -> list[str]:
    """The HTML of results that cells end with, as the library displays them.

    A Dataset in the display of xarray does not count.
    """
    return [
        "".join(output["data"]["text/html"])
        for output in outputs_of(content)
        if output["output_type"] == "execute_result"
        and "class='sgdynamics-result'" in output["data"].get("text/html", "")
    ]


@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_every_notebook_displays_a_result_with_picture_and_table(name):
    results = displayed_results(read_stored(name))
    assert results, f"{name}: no cell ends with a result. Let one display what the text is about."
    for html in results:
        (picture,) = re.findall(r"<img [^>]*src='data:image/png;base64,([^']+)'", html)
        assert base64.b64decode(picture).startswith(b"\x89PNG")
        table = html.partition("<table")[2].partition("</table>")[0]
        rows = re.findall(r"<tr>(.*?)</tr>", table)
        assert len(rows) >= 3, "the table has fewer than two save points"
        assert "nan" not in "".join(rows)


def test_a_notebook_without_a_result_is_detected():
    """Printed text, a figure, or a Dataset in the display of xarray do not count as a result."""
    content = read_stored("first_steps")
    assert displayed_results(content)
    for output in outputs_of(content):
        if "text/html" in output.get("data", {}):
            output["data"]["text/html"] = "<div><pre>&lt;xarray.Dataset&gt;</pre></div>"
    assert not displayed_results(content)


@pytest.mark.slow  # run by `make docs`, which builds the pages from this run
@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_notebooks_run_and_print_what_is_stored(name):
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    printed = run_notebooks.printed_text(run_notebooks.run(name, run_notebooks.RUN))
    stored = run_notebooks.printed_text(read_stored(name))
    assert same_text(printed, stored), f"{name} has stored\n{stored}\nand prints\n{printed}"


@pytest.mark.slow
def test_notebooks_with_a_failing_cell_are_not_written(monkeypatch, tmp_path):
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("nbclient")
    (tmp_path / "wrong.py").write_text("# %%\n1 / 0\n", encoding="utf-8")
    monkeypatch.setattr(run_notebooks, "SOURCES", tmp_path)
    with pytest.raises(client.exceptions.CellExecutionError):
        run_notebooks.run("wrong", tmp_path / "out")
    assert not (tmp_path / "out").exists()
