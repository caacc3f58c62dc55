"""Parts of the documentation that scripts write: they are current, and complete."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

import sgdynamics as sgd
from tests.docs.test_docs import TOLERANCE
from tests.docs.test_readme import load_module

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import api_pages  # noqa: E402  tables and pages of the API
import sections  # noqa: E402


@pytest.mark.parametrize(
    ("script", "function"),
    [("results_table", "variables_table"), ("citing_table", "citing_table")],
)
def test_generated_tables_are_current(script, function):
    module = load_module(DOCS / f"{script}.py")
    assert getattr(module, function)() in module.PAGE.read_text(encoding="utf-8"), (
        f"run python docs/{script}.py"
    )


def test_the_index_for_language_models_is_current():
    module = load_module(DOCS / "llms.py")
    assert module.FILE.read_text(encoding="utf-8") == module.llms_text(), "run python docs/llms.py"
    pages = set(re.findall(r"\]\(([^)]+)\):?", module.FILE.read_text(encoding="utf-8")))
    assert all((DOCS / page).is_file() for page in pages)
    # Every page of the documentation is in the index.
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    missing = {page for page in written - pages if not page.startswith("api/generated/")}
    assert missing == {"index.md"}


def test_the_table_of_call_times_is_written_from_measurements():
    module = load_module(DOCS / "call_times_table.py")
    timing = {"elapsed": 2.0, "cores": 3.0, "compiling": 1.5, "working": 0.0}
    second = {**timing, "cores": 0.034, "working": 0.012}
    measured = {
        "machine": {"sgdynamics": "1", "jax": "2", "device": "cpu", "cores": 2, "load": 0.25},
        "calls": {"a call": {"first": timing, "second": second}, "broken": {"error": "no"}},
    }
    table = module.call_times_table(measured)
    assert "| a call | 3.0 | 0.034 |\n" in table
    assert "broken" not in table
    page = module.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| [\d.]+ \| [\d.e-]+ \|", page, flags=re.MULTILINE)
    assert len(rows) >= 8


@pytest.fixture(scope="module")
def pages():
    """Names of the generated pages of the API, and the tables of the pages of docs/api."""
    tables, names = {}, []
    for name, text in api_pages.sources():
        tables[name], written = api_pages.with_tables(name, text)
        names += [page.name for page in written]
    return tables, names


def test_every_public_object_has_a_page_or_is_on_that_of_its_module(pages):
    tables, names = pages
    assert len(names) == len(set(names)) > 100
    for name, text in api_pages.sources():
        for kind, target, _ in sections.documented_objects(api_pages.API / f"{name}.md"):
            if kind in ("function", "class"):
                assert f" <{target}>`" in tables[name], target
                assert target in names or target.rpartition(".")[0] in names, target
        assert "```{eval-rst}\n.. autofunction" not in tables[name], name
        assert text.count("\n## ") == tables[name].count("\n## ")


def test_summaries_are_the_first_sentences_of_docstrings(pages):
    tables, _ = pages
    assert "| {py:obj}`updates.adam <sgdynamics.updates.adam>` | " in tables["algorithms"]
    row = next(line for line in tables["dynamics"].splitlines() if "`solve_ode " in line)
    assert row.split(" | ")[1].rstrip(" |") == (sgd.solve_ode.__doc__ or "").split("\n")[0]


def capabilities():
    return load_module(DOCS / "pictures/capabilities.py")


def test_pictures_of_capabilities_are_shown_and_lead_to_pages():
    names = list(capabilities().CAPABILITIES)
    assert len(names) == 6
    for page, folder in ((ROOT / "README.md", "docs/"), (DOCS / "index.md", "")):
        text = page.read_text(encoding="utf-8")
        for name in names:
            picture = re.escape(f"{folder}pictures/capability_{name}.png")
            links = re.findall(rf"\[!\[[^]]+\]\({picture}\)\]\(([^)]+)\)", text)
            assert len(links) == 1, (page.name, name)
            assert (page.parent / links[0]).is_file()


QUICK = ("plateaus",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in (
            "plateaus",
            "optimisers",
            "repeated_data",
            "power_laws",
            "attention",
            "forecasts",
        )
    ],
)
def test_pictures_of_capabilities_are_current(name, tmp_path):
    """The data stored in a picture are those computed now, and the picture shows them."""
    module = capabilities()
    file = module.file_of(name)
    stored, computed = json.loads(Image.open(file).text["data"]), module.CAPABILITIES[name]()
    assert [curve["label"] for curve in stored["curves"]] == [
        curve["label"] for curve in computed["curves"]
    ]
    for before, now in zip(stored["curves"], computed["curves"], strict=True):
        for key in ("x", "theory", "mean", "paths"):
            if now.get(key) is not None:
                np.testing.assert_allclose(
                    before[key], now[key], rtol=TOLERANCE, atol=1e-5, err_msg=key
                )
    module.draw(stored, tmp_path / "redrawn.png")
    pictures = [matplotlib.image.imread(path)[..., :3] for path in (file, tmp_path / "redrawn.png")]
    assert pictures[0].shape == pictures[1].shape
    assert np.mean(np.abs(pictures[0] - pictures[1])) < 0.02


@pytest.mark.parametrize("name", ["optimisers", "repeated_data", "power_laws", "attention"])
def test_theory_and_runs_of_the_pictures_agree(name):
    """The pictures show agreement, within the errors and corrections of order 1/d."""
    stored = json.loads(Image.open(capabilities().file_of(name)).text["data"])
    for curve in stored["curves"]:
        theory, mean = np.array(curve["theory"]), np.array(curve["mean"])
        error = np.array(curve["error"]) / 2
        allowed = 4.9 * error + 0.03 * np.abs(theory)
        assert np.all(np.abs(theory - mean) <= allowed), curve["label"]


def test_thumbnails_belong_to_figures():
    if importlib.util.find_spec("sgdynamics_reproductions") is None:
        pytest.skip("the figures are a distribution of their own")
    from sgdynamics_reproductions import gallery

    figures = {f"{entry.document}-{entry.number}" for entry in gallery.ENTRIES}
    stored = {path.stem for path in (DOCS / "gallery/thumbnails").glob("*.png")}
    assert set(gallery.full_size()) <= stored <= figures
    for name in stored:
        file = DOCS / f"gallery/thumbnails/{name}.png"
        assert file.stat().st_size <= 25_000, name
        with Image.open(file) as picture:
            assert max(picture.size) <= 360, name
