"""Releases: the built files install and work outside of the checkout, and metadata agree.

The environment variable DIST, set by `make wheel`, is the folder of the files to upload, and
RELEASE_TAG is the tag of a release. By default the files are built here, and the tags are those of
the commit.
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


# Run with the library alone installed: compute a solution, a figure and a file. The probe prints
# the folder of the package, which must be outside of the checkout.
PROBE = """
import importlib.util, json, pathlib
import matplotlib; matplotlib.use("Agg")
import sgdynamics as sgd
problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
algorithm = sgd.OnePassSGD(lr=0.5)
result = sgd.solve_linear(problem, algorithm, start, steps=[0, 50, 100], dimension=50)
sgd.save(result, "result.nc")
sgd.plot.risk(sgd.load("result.nc"))[0].savefig("result.png")
folder = pathlib.Path(sgd.__file__).parent
paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
files = sorted(path.relative_to(folder).as_posix() for path in paths)
has_figures = importlib.util.find_spec("sgdynamics_reproductions") is not None
formula = sgd.papers.escaping_mediocrity.exit_time_annealed(4, 1000, 0.4, 0.0, 0.1)
risk = result.risk.values.tolist()
answer = {"folder": str(folder), "files": files, "has_figures": has_figures}
print(json.dumps({**answer, "formula": float(formula), "risk": risk}))
"""

# Run with both distributions installed: draw a figure from the stored data of the package.
FIGURES = """
import json, pathlib
import matplotlib; matplotlib.use("Agg")
import sgdynamics_reproductions
from sgdynamics_reproductions import gallery
fig, data = gallery.draw_full_size("rough_landscapes", "2")
fig.savefig("full_size.png")
folder = pathlib.Path(sgdynamics_reproductions.__file__).parent
figures = [[entry.document, entry.number] for entry in gallery.ENTRIES]
full_size = sorted(gallery.full_size())
print(json.dumps({"folder": str(folder), "full_size": full_size, "figures": figures}))
"""


def run_outside(folder: Path, *command: object, code: int = 0) -> str:
    """Run a command in another folder, without the checkout in its environment.

    Returns the standard output, or the standard error of a command that is expected to fail.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    process = subprocess.run(
        [str(argument) for argument in command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == code, f"{command}: {process.stderr}"
    return process.stderr if code else process.stdout


def package_files() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


@pytest.mark.slow
def test_wheel_and_sdist_work_in_a_fresh_environment(tmp_path):
    run_outside(tmp_path, sys.executable, "-m", "venv", tmp_path / "fresh")
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
        run_outside(tmp_path, *install, "build")
        for source in (ROOT, ROOT / "reproductions"):
            build = (programs / "python", "-m", "build", "--outdir", tmp_path / "dist", source)
            run_outside(tmp_path, *build)
    folder = (ROOT / dist if dist else tmp_path / "dist").resolve()
    (wheel,), (sdist,) = folder.glob("sgdynamics-*.whl"), folder.glob("sgdynamics-*.tar.gz")
    assert sdist.name == f"sgdynamics-{sgd.__version__}.tar.gz"
    (figures_wheel,) = folder.glob("sgdynamics_reproductions-*.whl")
    assert (folder / f"sgdynamics_reproductions-{sgd.__version__}.tar.gz").is_file()

    # The wheel contains all files of the package, and nothing else.
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(name.removeprefix("sgdynamics/") for name in names) == package_files()
    with tarfile.open(sdist) as archive:
        top_level = {name.split("/")[1] for name in archive.getnames()}
    assert top_level <= {
        *PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"],
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "PKG-INFO",
        ".gitignore",
    }

    run_outside(tmp_path, *install, wheel)
    for source_archive in (None, sdist):
        if source_archive:
            run_outside(tmp_path, *install, "--force-reinstall", "--no-deps", source_archive)
        probe = json.loads(run_outside(tmp_path, programs / "python", "-c", PROBE))
        assert Path(probe["folder"]).is_relative_to((tmp_path / "fresh").resolve())
        assert probe["files"] == package_files()
        assert "py.typed" in probe["files"]
        assert not probe["has_figures"]
        assert probe["formula"] > 0
        assert probe["risk"][0][0] > probe["risk"][0][-1] > 0.05
        assert (tmp_path / "result.png").stat().st_size > 5000

    assert "exit-time" in run_outside(tmp_path, programs / "sgdynamics", "--help")
    info = json.loads(run_outside(tmp_path, programs / "sgdynamics", "info", "--json"))
    assert info["versions"]["sgdynamics"] == sgd.__version__
    # Without the second distribution the command names the package to install.
    message = run_outside(tmp_path, programs / "sgdynamics", "figures", code=2)
    assert "pip install sgdynamics-reproductions" in message
    assert message.count("\n") == 1
    run_outside(tmp_path, *install, figures_wheel)
    listing = json.loads(run_outside(tmp_path, programs / "sgdynamics", "figures", "--json"))
    rows = listing["figures"]
    answer = json.loads(run_outside(tmp_path, programs / "python", "-c", FIGURES))
    assert Path(answer["folder"]).is_relative_to((tmp_path / "fresh").resolve())
    assert [[row["document"], row["number"]] for row in rows] == answer["figures"]
    assert len(rows) > 60
    stored = (REPRODUCTIONS / "src/sgdynamics_reproductions/gallery/full_size").glob("*.nc")
    assert answer["full_size"] == sorted(path.stem for path in stored)
    assert (tmp_path / "full_size.png").stat().st_size > 5000

    # `pip install "sgdynamics[data]"`, as in error messages, adds the extra to the installed
    # library and does not install another one.
    plan = run_outside(
        tmp_path,
        programs / "python",
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--disable-pip-version-check",
        "sgdynamics[data]",
    )
    new_packages = plan.split("Would install")[1]
    assert "scikit-learn" in new_packages
    assert "sgdynamics" not in new_packages


def faults(tag: str, version: str, changelog: str) -> list[str]:
    """The faults of a release with this tag."""
    messages = []
    if tag != f"v{version}":
        messages.append(
            f"the tag {tag} is not v{version}: change src/sgdynamics/version.py, or the tag"
        )
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, changelog, flags=re.MULTILINE):
        messages.append(
            f"CHANGELOG.md has no heading '## {version} - ' with the day of the release"
        )
    return messages


@pytest.mark.parametrize(
    ("tag", "heading", "expected"),
    [
        ("v0.1.0", "## 0.1.0 - 2026-11-20", []),
        ("v0.1.1", "## 0.1.0 - 2026-11-20", ["the tag v0.1.1 is not v0.1.0"]),
        ("0.1.0", "## 0.1.0 - 2026-11-20", ["the tag 0.1.0 is not v0.1.0"]),
        ("v0.1.0", "## 0.1.0 - unreleased", ["CHANGELOG.md has no heading"]),
        ("v0.1.0", "## 0.1.00 - 2026-11-20", ["CHANGELOG.md has no heading"]),
    ],
)
def test_wrong_tags_are_reported(tag, heading, expected):
    messages = faults(tag, "0.1.0", f"# Changelog\n\n{heading}\n\nThe first version.\n")
    assert len(messages) == len(expected)
    assert all(text.startswith(start) for text, start in zip(messages, expected, strict=True))


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


def test_both_distributions_have_the_same_version_and_licence():
    project = tomllib.loads((REPRODUCTIONS / "pyproject.toml").read_text(encoding="utf-8"))
    path = project["tool"]["hatch"]["version"]["path"]
    assert (REPRODUCTIONS / path).resolve() == (PACKAGE / "version.py").resolve()
    # The reproductions use private names of the library, which other versions may lack.
    assert project["project"]["dependencies"] == [f"sgdynamics=={sgd.__version__}"]
    assert project["project"]["requires-python"] == PROJECT["project"]["requires-python"]
    licences = [folder / "LICENSE" for folder in (ROOT, REPRODUCTIONS)]
    assert licences[0].read_bytes() == licences[1].read_bytes()
    assert not any(
        name.startswith("reproductions")
        for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    )


def test_workflows_call_existing_targets():
    assert {path.name for path in WORKFLOWS} == {
        "test.yml",
        "docs.yml",
        "release.yml",
        "benchmarks.yml",
        "newest.yml",
    }
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    called = set()
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        # YAML reads the word `on` as true.
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
    assert called == {
        "lint",
        "test",
        "test-reproductions",
        "docs",
        "wheel",
        "bench",
        "calls",
        "newest",
        "smoke",
    }
    assert called <= targets


def test_newest_dependencies_and_other_systems_are_tried():
    """Every night and every week the newest dependencies; with each change three systems."""
    newest = yaml.safe_load((ROOT / ".github/workflows/newest.yml").read_text(encoding="utf-8"))
    crons = [entry["cron"] for entry in newest[True]["schedule"]]
    assert len(crons) == 2
    weekly = [cron for cron in crons if cron.split()[-1] != "*"]
    assert len(weekly) == 1
    for name, job in newest["jobs"].items():
        # A condition with the wrong time would never run.
        sign = "==" if name == "weekly" else "!="
        assert job["if"] == f"github.event.schedule {sign} '{weekly[0]}'", name
        assert any("make smoke" in step.get("run", "") for step in job["steps"]), name
    smoke = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    systems = smoke["jobs"]["smoke"]["strategy"]["matrix"]["os"]
    assert {system.partition("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}
    assert (ROOT / "tests/smoke/test_smoke.py").is_file()


def bounds(requirement: str) -> tuple[str, str]:
    """Name and versions of a requirement, in the form of pyproject.toml or of conda."""
    match = re.fullmatch(r"([\w-]+) ?([<>=,.\d]+)", requirement)
    assert match, requirement
    return match[1].removesuffix("-base"), match[2]


def test_conda_recipe_agrees_with_the_project():
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == sgd.__version__
    run = dict(bounds(requirement) for requirement in recipe["requirements"]["run"])
    python = run.pop("python")
    assert python == PROJECT["project"]["requires-python"]
    assert run == dict(bounds(text) for text in PROJECT["project"]["dependencies"])
    (entry_point,) = recipe["build"]["python"]["entry_points"]
    assert entry_point == f"sgdynamics = {PROJECT['project']['scripts']['sgdynamics']}"


def test_dependencies_with_experimental_interfaces_have_upper_bounds():
    """The library imports jax.experimental, and diffrax and optimistix have versions below 1."""
    versions = dict(bounds(text) for text in PROJECT["project"]["dependencies"])
    for name in ("jax", "diffrax", "optimistix"):
        assert "<" in versions[name], name


def test_constraints_fit_the_project():
    """The constraints name a version of each dependency, within the bounds of the project."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["docs"]]
    for text in texts:
        name, lower = re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", text.lower())[0]
        assert name in pinned, f"{name}: run `make constraints`"
        assert version_tuple(pinned[name]) >= version_tuple(lower), name
        for upper in re.findall(r"<([\d.]+)", text):
            assert version_tuple(pinned[name]) < version_tuple(upper), name


def version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))


def test_a_release_is_checked_by_everything_but_the_upload():
    (line,) = re.findall(r"^release-check: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert set(line.split()) == {
        "lint",
        "test",
        "smoke",
        "slow",
        "test-reproductions",
        "docs",
        "wheel",
    }
    recipe = MAKEFILE.split("\nrelease-check:")[1].split("\n\n")[0]
    assert "twine check --strict" in recipe
    assert "upload " not in recipe


def test_devcontainer_uses_the_environment_of_make():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    settings = container["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"] == ".venv/bin/python"
    assert "make smoke" in container["postCreateCommand"]


def test_the_history_of_benchmarks_is_scheduled_and_stored():
    path = ROOT / ".github/workflows/benchmarks.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow[True]["schedule"][0]["cron"]  # YAML reads the word `on` as true
    steps = workflow["jobs"]["calls"]["steps"]
    stored = [step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")]
    assert len(stored) == 1
    assert f"benchmarks/calls.py --json {stored[0]}" in MAKEFILE


def test_python_versions_agree():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    assert [f"Programming Language :: Python :: {text}" for text in versions] == [
        text for text in PROJECT["project"]["classifiers"] if ":: Python :: " in text
    ]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_pre_commit_hooks_are_those_of_make_lint():
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


def test_extras_in_install_commands_exist():
    extras = set(PROJECT["project"]["optional-dependencies"])
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    paths += [
        path
        for folder in ("docs", "examples", "src")
        for suffix in ("md", "py")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    named = set()
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "pip install" in line or "$(INSTALL)" in line:
                names = {
                    extra
                    for group in re.findall(r"(?:sgdynamics|\.)\[([\w,]+)\]", line)
                    for extra in group.split(",")
                }
                assert names <= extras, f"{path.relative_to(ROOT)}: {line.strip()}"
                named |= names
    assert named == extras


def test_issue_forms_are_valid():
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            assert form == {"blank_issues_enabled": True}
            continue
        assert set(form) == {"name", "description", "labels", "body"}, path.name
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 1, path.name
        assert all(field["attributes"]["label"] for field in fields), path.name


def test_zenodo_and_citation_agree():
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    creators = [creator["name"] for creator in zenodo["creators"]]
    assert creators == [author["name"] for author in citation["authors"]]
    citation_keys = {
        "title": "title",
        "description": "abstract",
        "license": "license",
        "keywords": "keywords",
        "upload_type": "type",
    }
    for zenodo_key, citation_key in citation_keys.items():
        assert zenodo[zenodo_key] == citation[citation_key]


def test_the_paper_cites_all_entries_of_its_bibliography():
    _, front_matter, text = (ROOT / "paper/paper.md").read_text(encoding="utf-8").split("---\n", 2)
    metadata = yaml.safe_load(front_matter)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(metadata)
    entries = re.findall(
        r"^@\w+\{([\w-]+),",
        (ROOT / "paper" / metadata["bibliography"]).read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert sorted(entries) == sorted(set(re.findall(r"@([a-z]+\d{4}[a-z]+)", text)))
