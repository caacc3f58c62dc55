"""The notebooks: what is stored comes from their sources, runs, and prints what it did."""

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


def stored(name: str):
    return nbformat.read(STORED / f"{name}.ipynb", as_version=4)


def test_there_are_eight_and_the_page_lists_them():
    assert len(run_notebooks.NAMES) == 8
    assert sorted(path.stem for path in STORED.glob("*.ipynb")) == run_notebooks.NAMES
    page = (STORED / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((\w+)\.ipynb\)", page)) == run_notebooks.NAMES
    assert sorted(page.partition("{toctree}")[2].split()[1:-1]) == run_notebooks.NAMES


@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_stored_cells_are_those_of_the_source(name):
    """And there is what a reader looks for: pictures, something printed, no warning, and no folder of the machine that ran it."""
    source, found = run_notebooks.notebook(name), stored(name)
    cells = [
        [(cell.cell_type, cell.source, cell.id) for cell in one.cells] for one in (source, found)
    ]
    assert cells[0] == cells[1], f"python docs/run_notebooks.py {name} stores it anew"
    outputs = [one for cell in found.cells for one in cell.get("outputs", ())]
    assert [
        one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"
    ] == []
    assert sum("image/png" in one.get("data", {}) for one in outputs) >= 1
    assert run_notebooks.printed(found)
    assert not re.search(r"/(tmp|work|home|root)/", run_notebooks.printed(found))


def shown(found) -> list[str]:
    """The results that cells end with, as the library shows them: a Dataset as xarray shows it is none."""
    return [
        "".join(one["data"]["text/html"])
        for cell in found.cells
        for one in cell.get("outputs", ())
        if one["output_type"] == "execute_result"
        and "class='sgdynamics-result'" in one["data"].get("text/html", "")
    ]


@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_each_shows_a_result_with_its_picture_and_its_table(name):
    results = shown(stored(name))
    assert results, f"no cell of {name} ends with a result: let one show what the text talks about"
    for one in results:
        (picture,) = re.findall(r"<img [^>]*src='data:image/png;base64,([^']+)'", one)
        assert base64.b64decode(picture).startswith(b"\x89PNG")
        rows = re.findall(r"<tr>(.*?)</tr>", one.partition("<table")[2].partition("</table>")[0])
        assert len(rows) >= 3, "a table of one save point or none"
        assert "nan" not in "".join(rows)


def test_a_notebook_without_a_result_is_noticed():
    """Neither printed text, nor a picture, nor a Dataset as xarray shows it is one."""
    found = stored("first_steps")
    assert shown(found)
    for cell in found.cells:
        for one in cell.get("outputs", ()):
            if "text/html" in one.get("data", {}):
                one["data"]["text/html"] = "<div><pre>&lt;xarray.Dataset&gt;</pre></div>"
    assert not shown(found)


@pytest.mark.slow  # run by `make docs`, which makes the pages of them
@pytest.mark.parametrize("name", run_notebooks.NAMES)
def test_notebooks_run_and_print_what_is_stored(name):
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    now, before = (
        run_notebooks.printed(run_notebooks.run(name, run_notebooks.RUN)),
        run_notebooks.printed(stored(name)),
    )
    assert same_text(now, before), f"{name} has stored\n{before}\nand prints\n{now}"


@pytest.mark.slow
def test_notebooks_with_a_cell_that_fails_are_not_written(monkeypatch, tmp_path):
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("nbclient")
    (tmp_path / "wrong.py").write_text("# %%\n1 / 0\n", encoding="utf-8")
    monkeypatch.setattr(run_notebooks, "SOURCES", tmp_path)
    with pytest.raises(client.exceptions.CellExecutionError):
        run_notebooks.run("wrong", tmp_path / "out")
    assert not (tmp_path / "out").exists()
