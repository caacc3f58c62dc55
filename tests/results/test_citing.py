"""`sgd.cite`: the table of references, and what it finds for results, problems and functions."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sgdynamics as sgd
from sgdynamics.base.references import REFERENCES, SOURCES
from sgdynamics.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import citing_table  # noqa: E402
import sections  # noqa: E402

# A docstring names a source by "Source:", or by authors with a year.
SOURCE = re.compile(
    r"\bSources?: |\b[A-Z][a-z]+ (?:and [A-Z]\w+ )?(?:19|20)\d\d\b|\((?:19|20)\d\d\)"
)


def documented_sources() -> dict[str, str]:
    """Public names whose docstrings name a source, with the docstring."""
    sources = {}
    for page in sorted((DOCS / "api").glob("*.md")):
        if page.stem == "reproductions":
            continue
        for kind, name, target in sections.documented_objects(page):
            if ".".join(name.split(".")[1:3]) in SOURCES and ".papers." in name:
                continue  # a module of one paper names it for all its functions
            doc = inspect.getdoc(target) or ""
            if kind in ("function", "class", "method") and SOURCE.search(doc):
                sources[name.removeprefix("sgdynamics.")] = doc
    return sources


def keys_of(entries: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),$", entries, flags=re.MULTILINE)


def test_every_docstring_with_a_source_is_in_the_table():
    sources = documented_sources()
    assert len(sources) > 30  # the reader of docstrings sees them
    missing = [name for name in sources if name not in SOURCES]
    assert missing == [], "add these names to SOURCES in base/references.py"
    for name, doc in sources.items():
        surnames = {
            citing_table.plain(surname)
            for key in SOURCES[name]
            for surname in REFERENCES[key].surnames
        }
        titles = [REFERENCES[key].title.partition(":")[0] for key in SOURCES[name]]
        words = doc.replace("Boix-Adsera", "Boix-Adserà")
        named = any(surname in words for surname in surnames)
        titled = any(citing_table.plain(title)[:20].lower() in words.lower() for title in titles)
        section = "section 3" in words or "slides" in words
        assert named or titled or section, f"{name}: {surnames}"


def test_the_table_names_existing_things():
    assert {key for keys in SOURCES.values() for key in keys} <= set(REFERENCES)
    for name in SOURCES:
        target = sgd
        if name == "covariance" or name.startswith(("activation ", "expectation ")):
            continue
        for attribute in name.split("."):
            target = getattr(target, attribute)


def test_the_references_of_the_theory_are_in_the_table():
    text = (DOCS / "theory.md").read_text(encoding="utf-8").partition("## References")[2]
    identifiers = {
        value
        for reference in REFERENCES.values()
        for name, value in reference.fields.items()
        if name in ("doi", "eprint")
    }
    cited = re.findall(r"arxiv\.org/abs/([\d.]+)|doi\.org/([^)]+)\)", text)
    assert len(cited) > 15
    assert {arxiv or doi for arxiv, doi in cited} <= identifiers


def test_entries_are_complete():
    for key, reference in REFERENCES.items():
        assert key.startswith(re.sub(r"[^a-z]", "", reference.surnames[0].lower())[:4]), key
        assert key[len(key.rstrip("abcdefghijklmnopqrstuvwxyz")) - 4 :][:4] == str(reference.year)
        entry = reference.bibtex(key)
        assert entry.count("{") == entry.count("}"), entry
        if reference.kind == "article":
            assert "journal" in reference.fields, key
        if reference.kind == "inproceedings":
            assert "booktitle" in reference.fields, key


def test_a_result_names_its_solver_problem_algorithm_and_optimiser(tmp_path):
    problem = sgd.TeacherStudent(width=1, activation="linear", covariance=[(0.5, 0.5), (1.5, 0.5)])
    algorithm = sgd.OnePassSGD(
        lr=0.1, update=sgd.updates.weight_decay(0.1, of=sgd.updates.momentum(0.5))
    )
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    result = sgd.solve_ode(problem, algorithm, start, times=[0.0, 0.5])
    expected = {
        "sgdynamics",
        "saad1995exact",
        "goldt2019dynamics",
        "yoshida2019data",
        "loshchilov2019decoupled",
        "polyak1964some",
    }
    assert expected <= set(keys_of(sgd.cite(result)))
    path = sgd.save({"theory": result}, tmp_path / "result.nc")
    printed = CliRunner().invoke(app, ["cite", str(path)])
    assert printed.exit_code == 0, printed.output
    assert keys_of(printed.output) == keys_of(sgd.cite(result))


def test_problem_files_are_cited():
    file = Path(__file__).parents[2] / "examples/persistent_sgd.toml"
    printed = CliRunner().invoke(app, ["cite", str(file)])
    assert printed.exit_code == 0, printed.output
    assert {"mignacco2020dynamical", "mignacco2021stochasticity"} <= set(keys_of(printed.output))


def test_functions_and_contexts_are_cited_once():
    quiet = sgd.TeacherStudent(width=1, noise=0.1)
    both = sgd.contexts({"quiet": quiet, "loud": quiet.replace(noise=1.0)})
    keys = keys_of(sgd.cite(both, quiet, sgd.leap_complexity, "exit_time"))
    assert len(keys) == len(set(keys))
    assert {"abbe2023leap", "saad1995line", "arnaboldi2023escaping"} <= set(keys)
    papers = sgd.papers
    functions = (papers.escaping_mediocrity.exit_time_quenched, papers.several_inputs.reward_drift)
    assert keys_of(sgd.cite(*functions)) == ["sgdynamics", "arnaboldi2023escaping", "patel2025rl"]
    with pytest.raises(ValueError, match="subject = 3"):
        sgd.cite(3)


def test_the_page_is_up_to_date():
    page = citing_table.PAGE.read_text(encoding="utf-8")
    assert citing_table.citing_table() in page, "run python docs/citing_table.py"
