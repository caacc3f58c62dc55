"""A release: what is uploaded installs and works outside the checkout, and what is said about it, by workflows and in words, is true.

`make wheel` gives the files that will be uploaded by DIST, and a release its tag by RELEASE_TAG; without them the files are built here, and
the tags are those of the commit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import sgdynamics as sgd

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/sgdynamics"
REPRODUCTIONS = ROOT / "reproductions"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


# Run by the installed library, alone: a solution, a picture and a file. It prints its folder, which must not be that of the checkout.
PROBE = """
import importlib.util, json, pathlib
import matplotlib; matplotlib.use("Agg")
import sgdynamics as sgd
problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.5), sgd.start(problem, M=[[0.1]], Q=[[1.0]]), steps=[0, 50, 100], dimension=50)
sgd.save(result, "result.nc")
sgd.plot.risk(sgd.load("result.nc"))[0].savefig("result.png")
folder = pathlib.Path(sgd.__file__).parent
files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
has_figures = importlib.util.find_spec("sgdynamics_reproductions") is not None
formula = sgd.papers.escaping_mediocrity.exit_time_annealed(4, 1000, 0.4, 0.0, 0.1)
print(json.dumps({"folder": str(folder), "files": files, "has_figures": has_figures, "formula": float(formula), "risk": result.risk.values.tolist()}))
"""

# Run with both distributions installed: stored data are found in the package, and drawn.
FIGURES = """
import json, pathlib
import matplotlib; matplotlib.use("Agg")
import sgdynamics_reproductions
from sgdynamics_reproductions import gallery
fig, data = gallery.draw_full_size("rough_landscapes", "2")
fig.savefig("full_size.png")
folder = pathlib.Path(sgdynamics_reproductions.__file__).parent
figures = [[entry.document, entry.number] for entry in gallery.ENTRIES]
print(json.dumps({"folder": str(folder), "full_size": sorted(gallery.full_size()), "figures": figures}))
"""


def outside(folder: Path, *command: object, code: int = 0) -> str:
    """Standard output (of a failing command: standard error) in another folder, without the checkout."""
    mine = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=mine,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, f"{command}: {done.stderr}"
    return done.stderr if code else done.stdout


def package_files() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


@pytest.mark.slow
def test_wheel_and_sdist_work_in_a_fresh_environment(tmp_path):
    outside(tmp_path, sys.executable, "-m", "venv", tmp_path / "fresh")
    programs = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    install = (
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
    )
    if not (dist := os.environ.get("DIST")):
        outside(tmp_path, *install, "build")
        for source in (ROOT, ROOT / "reproductions"):
            build = (programs / "python", "-m", "build", "--outdir", tmp_path / "dist", source)
            outside(tmp_path, *build)
    folder = (ROOT / dist if dist else tmp_path / "dist").resolve()
    (wheel,), (sdist,) = folder.glob("sgdynamics-*.whl"), folder.glob("sgdynamics-*.tar.gz")
    assert sdist.name == f"sgdynamics-{sgd.__version__}.tar.gz"
    (figures_wheel,) = folder.glob("sgdynamics_reproductions-*.whl")
    assert (folder / f"sgdynamics_reproductions-{sgd.__version__}.tar.gz").is_file()

    # all of the package, and nothing else
    names = zipfile.ZipFile(wheel).namelist()
    assert (
        sorted(name.removeprefix("sgdynamics/") for name in names if ".dist-info/" not in name)
        == package_files()
    )
    with tarfile.open(sdist) as archive:
        inside = {name.split("/")[1] for name in archive.getnames()}
    assert inside <= {
        *PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"],
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "PKG-INFO",
        ".gitignore",
    }

    outside(tmp_path, *install, wheel)
    for again in (None, sdist):
        if again:
            outside(tmp_path, *install, "--force-reinstall", "--no-deps", again)
        found = json.loads(outside(tmp_path, programs / "python", "-c", PROBE))
        assert Path(found["folder"]).is_relative_to((tmp_path / "fresh").resolve())
        assert found["files"] == package_files()
        assert "py.typed" in found["files"]
        assert not found["has_figures"]
        assert found["formula"] > 0
        assert found["risk"][0][0] > found["risk"][0][-1] > 0.05
        assert (tmp_path / "result.png").stat().st_size > 5000

    assert "exit-time" in outside(tmp_path, programs / "sgdynamics", "--help")
    assert (
        json.loads(outside(tmp_path, programs / "sgdynamics", "info", "--json"))["versions"][
            "sgdynamics"
        ]
        == sgd.__version__
    )
    # without the second distribution the figures say how to install it; with it they work
    refusal = outside(tmp_path, programs / "sgdynamics", "figures", code=2)
    assert "pip install sgdynamics-reproductions" in refusal
    assert refusal.count("\n") == 1
    outside(tmp_path, *install, figures_wheel)
    rows = json.loads(outside(tmp_path, programs / "sgdynamics", "figures", "--json"))["figures"]
    answer = json.loads(outside(tmp_path, programs / "python", "-c", FIGURES))
    assert Path(answer["folder"]).is_relative_to((tmp_path / "fresh").resolve())
    assert [[row["document"], row["number"]] for row in rows] == answer["figures"]
    assert len(rows) > 60
    stored = (REPRODUCTIONS / "src/sgdynamics_reproductions/gallery/full_size").glob("*.nc")
    assert answer["full_size"] == sorted(path.stem for path in stored)
    assert (tmp_path / "full_size.png").stat().st_size > 5000

    # `pip install "sgdynamics[data]"`, as messages have it, adds the extra to whichever installation there is, and installs no other
    said = outside(
        tmp_path,
        programs / "python",
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--disable-pip-version-check",
        "sgdynamics[data]",
    )
    would = said.split("Would install")[1]
    assert "scikit-learn" in would
    assert "sgdynamics" not in would


def faults(tag: str, version: str, changelog: str) -> list[str]:
    """What is wrong with a release of this tag."""
    found = (
        []
        if tag == f"v{version}"
        else [f"the tag {tag} is not v{version}: change src/sgdynamics/version.py, or the tag"]
    )
    if not re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, flags=re.MULTILINE
    ):
        found.append(f"CHANGELOG.md has no heading '## {version} - ' with the day of the release")
    return found


@pytest.mark.parametrize(
    ("tag", "heading", "said"),
    [
        ("v0.1.0", "## 0.1.0 - 2026-11-20", []),
        ("v0.1.1", "## 0.1.0 - 2026-11-20", ["the tag v0.1.1 is not v0.1.0"]),
        ("0.1.0", "## 0.1.0 - 2026-11-20", ["the tag 0.1.0 is not v0.1.0"]),
        ("v0.1.0", "## 0.1.0 - unreleased", ["CHANGELOG.md has no heading"]),
        ("v0.1.0", "## 0.1.00 - 2026-11-20", ["CHANGELOG.md has no heading"]),
    ],
)
def test_wrong_tags_are_told(tag, heading, said):
    found = faults(tag, "0.1.0", f"# Changelog\n\n{heading}\n\nThe first version.\n")
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


def test_the_tag_is_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+) - ", changelog, flags=re.MULTILINE)[0] == sgd.__version__
    if not (tags := os.environ.get("RELEASE_TAG", "").split()) and (ROOT / ".git").exists():
        tags = subprocess.run(
            ["git", "tag", "--points-at", "HEAD", "--list", "v*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        ).stdout.split()
    assert [fault for tag in tags for fault in faults(tag, sgd.__version__, changelog)] == []


def test_both_distributions_have_one_version_and_one_licence():
    project = tomllib.loads((REPRODUCTIONS / "pyproject.toml").read_text(encoding="utf-8"))
    path = project["tool"]["hatch"]["version"]["path"]
    assert (REPRODUCTIONS / path).resolve() == (PACKAGE / "version.py").resolve()
    # private names of the library are used, so that any other version may lack them
    assert project["project"]["dependencies"] == [f"sgdynamics=={sgd.__version__}"]
    assert project["project"]["requires-python"] == PROJECT["project"]["requires-python"]
    licences = [folder / "LICENSE" for folder in (ROOT, REPRODUCTIONS)]
    assert licences[0].read_bytes() == licences[1].read_bytes()
    assert not any(
        name.startswith("reproductions")
        for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    )


def test_workflows_call_what_is_there():
    assert {path.name for path in WORKFLOWS} == {"test.yml", "docs.yml", "release.yml"}
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    called = set()
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        # YAML takes the word `on` for true
        assert {"name", True, "permissions", "jobs"} <= set(workflow), path.name
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            assert set(job.get("permissions", {})) <= {"pages", "id-token"}, f"{path.name}: {name}"
            assert "timeout-minutes" in job, f"{path.name}: {name}"
            for step in job["steps"]:
                assert len({"uses", "run"} & set(step)) == 1, f"{path.name}: {name}: {step}"
                if "uses" in step:
                    assert re.fullmatch(r"[\w/-]+@(release/)?v\d+", step["uses"]), (
                        f"{path.name}: {step['uses']} is not pinned to a major version"
                    )
                called |= set(re.findall(r"\bmake ([\w-]+)", step.get("run", "")))
    assert called == {"lint", "test", "test-reproductions", "docs", "wheel"}
    assert called <= targets


def test_pythons_are_the_same_everywhere():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    assert [f"Programming Language :: Python :: {one}" for one in tested] == [
        one for one in PROJECT["project"]["classifiers"] if ":: Python :: " in one
    ]
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"


def test_hooks_before_a_commit_are_the_ruff_of_lint():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [
        hook["entry"].removesuffix(" --force-exclude")
        for repo in config["repos"]
        for hook in repo["hooks"]
    ]
    lint = re.findall(
        r"^\t\$\(BIN\)/(ruff \w+)",
        MAKEFILE.split("\nlint:")[1].split("\n\n")[0],
        flags=re.MULTILINE,
    )
    assert hooks == [f".venv/bin/{command}" for command in lint]
    assert len(lint) == 2


def test_extras_that_are_named_exist():
    extras = set(PROJECT["project"]["optional-dependencies"])
    read = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    read += [
        path
        for folder in ("docs", "examples", "src")
        for ending in ("md", "py")
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    named = set()
    for path in read:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "pip install" in line:
                found = {
                    extra
                    for group in re.findall(r"(?:sgdynamics|\.)\[([\w,]+)\]", line)
                    for extra in group.split(",")
                }
                assert found <= extras, f"{path.relative_to(ROOT)}: {line.strip()}"
                named |= found
    assert named == extras


def test_forms_are_forms_that_github_reads():
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            assert form == {"blank_issues_enabled": True}
            continue
        assert set(form) == {"name", "description", "labels", "body"}, path.name
        asked = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in asked}) == len(asked) > 1, path.name
        assert all(part["attributes"]["label"] for part in asked), path.name


def test_zenodo_says_what_the_citation_says():
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [one["name"] for one in zenodo["creators"]] == [
        one["name"] for one in citation["authors"]
    ]
    pairs = {
        "title": "title",
        "description": "abstract",
        "license": "license",
        "keywords": "keywords",
        "upload_type": "type",
    }
    assert {one: zenodo[one] for one in pairs} == {
        one: citation[other] for one, other in pairs.items()
    }


def test_the_paper_cites_what_its_bibliography_has():
    _, front, text = (ROOT / "paper/paper.md").read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(front)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(about)
    entries = re.findall(
        r"^@\w+\{([\w-]+),",
        (ROOT / "paper" / about["bibliography"]).read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert sorted(entries) == sorted(set(re.findall(r"@([a-z]+\d{4}[a-z]+)", text)))
