"""The command line as a user meets it: results, tables, JSON, and what it says of bad input."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sgdynamics as sgd
from sgdynamics.cli import drawings, main, problem_files, summaries, tables
from sgdynamics.problems.models import MODELS

EXAMPLES = Path(__file__).parents[2] / "examples"
PROBLEM = {"kind": "TeacherStudent", "width": 2, "activation": "square", "noise": 0.1}
HEAD = """
[problem]
kind = "TeacherStudent"
width = 2
activation = "square"
noise = 0.1
[algorithm]
kind = "OnePassSGD"
lr = 0.2
"""
RUN = """
[start]
seed = 3
[run]
methods = ["ode", "exact"]
times = { to = 0.5, points = 5 }
dimension = 100
runs = 20
seed = 4
"""
QUESTIONS = """
[exit_time]
methods = ["ode"]
threshold = 0.3
max_time = 40
dimension = 100
[hessian]
dimension = 50
"""


def invoke(*arguments, code=0):
    outcome = CliRunner().invoke(main.app, [str(item) for item in arguments])
    assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
    return outcome


def answer(*arguments):
    return json.loads(invoke(*arguments, "--json").stdout)


def shell(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "sgdynamics.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("cli")
    (where / "small.toml").write_text(HEAD + RUN + QUESTIONS)
    return where


@pytest.fixture(scope="module")
def first(folder):
    """The summary that `run small.toml` prints."""
    return answer("run", folder / "small.toml", "--out", folder / "out", "--format", "both")


HELP = """
Usage: sgdynamics [OPTIONS] COMMAND [ARGS]...

  Exact high-dimensional dynamics of SGD: theory, matching simulations, and
  their comparison.

Options:
  --debug     Show the full traceback of an error.
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  run        Solve and simulate a problem file.
  compare    Compare theory with simulation in standard errors.
  exit-time  Compute when training leaves its plateau.
  hessian    Compute the Hessian spectrum of the risk.
  sweep      Solve a problem over a grid of parameters.
  figure     Reproduce a figure and check its claim.
  figures    List the figures that can be reproduced.
  info       Show versions, devices and the compilation cache.
  explore    Explore a problem with sliders in the browser.
  forecast   Forecast the loss of a training run from measured loss curves.
  cite       Print BibTeX of the papers behind a file.
  schema     Print the JSON schema of problem files, for editors.

  FILE is a problem file in TOML with the tables [problem], [algorithm] and
  [start], and a table for each command, such as [run]. See examples/*.toml.
"""


@pytest.mark.slow
def test_help_and_bad_input_in_a_shell(folder):
    assert (
        CliRunner()
        .invoke(main.app, ["--help"], prog_name="sgdynamics", terminal_width=78)
        .stdout.strip()
        == HELP.strip()
    )
    (folder / "typo.toml").write_text(HEAD.replace("width", "witdh") + RUN)
    message = shell("run", folder / "typo.toml")
    assert (message.returncode, message.stdout) == (2, "")
    assert message.stderr.startswith(
        "sgdynamics: problem: TeacherStudent has no 'witdh': did you mean 'width'? it takes width, "
    )
    assert message.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "compare", "exit-time", "hessian", "sweep"])
def test_files_are_checked_before_jax_is_imported(command, folder):
    (folder / "broken.toml").write_text("[problem\n")
    message = {"nothere.toml": "no such file."}
    if command != "compare":
        message["broken.toml"] = "not a TOML file"
    code = (
        "import sys\nfrom sgdynamics.cli.main import app\nfor name in sys.argv[2:]:\n"
        "    try:\n        app([sys.argv[1], name])\n"
        "    except SystemExit as stop:\n        print(stop.code)\n"
        "print([name for name in ('jax', 'xarray') if name in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, command, *(str(folder / name) for name in message)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:-1] == ["2"] * len(message) + ["[]"]
    assert all(
        words in line
        for words, line in zip(message.values(), done.stderr.splitlines(), strict=True)
    )


def test_run_writes_what_the_library_computes(first, folder):
    problem, algorithm = (
        sgd.TeacherStudent(width=2, activation="square", noise=0.1),
        sgd.OnePassSGD(lr=0.2),
    )
    start = sgd.random_start(problem, dimension=100, seed=3)
    times = np.linspace(0, 0.5, 5)
    theory = sgd.solve_ode(problem, algorithm, start, times=times)
    runs = sgd.simulate(problem, algorithm, start, times=times, dimension=100, runs=20, seed=4)
    assert first["quantity"] == "excess_risk"
    np.testing.assert_array_equal(first["t"], theory.t)
    np.testing.assert_array_equal(first["methods"]["ode"]["mean"], theory.excess_risk[0])
    np.testing.assert_array_equal(first["methods"]["exact"]["mean"], runs.excess_risk.mean("run"))
    assert first["methods"]["exact"]["runs"] == 20
    (pair,) = first["comparisons"]
    np.testing.assert_allclose(pair["z"], sgd.compare(theory, runs).excess_risk_z)
    assert [Path(name).name for name in first["files"]] == ["small.nc", "small.png", "small.pdf"]
    assert all(Path(name).stat().st_size > 5000 for name in first["files"])
    stored = sgd.load(folder / "out" / "small.nc", group="exact")
    np.testing.assert_array_equal(stored.M, runs.M)
    # the same again for a reader
    table = invoke(
        "run", folder / "small.toml", "--out", folder / "again", "--format", "none"
    ).stdout
    assert re.search(r"0\.125 +\S+ +\S+ ± \S+ +[+-]\d\.\d", table)
    assert "exact against ode: at most" in table
    assert sorted(path.name for path in (folder / "again").iterdir()) == ["small.nc"]


def test_tables_and_pictures_show_the_clock_that_the_file_states(first, folder):
    (folder / "alpha.toml").write_text(
        HEAD + RUN.replace("times = { to = 0.5", "alpha = { to = 2.5")
    )
    outcome = answer("run", folder / "alpha.toml", "--out", folder / "out", "--format", "none")
    assert (first["clocks"], outcome["clocks"]) == (["t"], ["alpha"])
    np.testing.assert_allclose(outcome["alpha"], np.linspace(0, 2.5, 5))
    np.testing.assert_allclose(outcome["t"], first["t"])
    np.testing.assert_allclose(outcome["methods"]["ode"]["mean"], first["methods"]["ode"]["mean"])
    results = {name: sgd.load(folder / "out" / "alpha.nc", group=name) for name in ("ode", "exact")}
    assert {ax.get_xlabel() for ax in drawings.draw_results(results, "title").axes} == {
        r"$\alpha$ = samples / $d$"
    }
    message = summaries.summarise(results) | {"files": []}
    message["comparisons"][0]["z"][0] = np.nan  # where there is no standard error
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr(tables, "print_table", lambda *groups: lines.append(groups))
        tables.print_summary(message)
    (columns, rows, _) = lines[0]
    assert columns == ["alpha", "ode", "exact", "z exact"]
    assert [row[0] for row in rows] == ["0", "0.625", "1.25", "1.875", "2.5"]
    assert rows[0][-1] == "-"


def test_a_result_runs_again(first, folder):
    repeated = answer(
        "run",
        folder / "out" / "small.nc",
        "--out",
        folder / "again",
        "--name",
        "twice",
        "--format",
        "none",
    )
    for method in ("ode", "exact"):
        assert repeated["methods"][method] == first["methods"][method]
    # A result that Python saved, without a problem file: from its attributes and first state.
    runs = sgd.load(folder / "out" / "small.nc", group="exact")
    del runs.attrs["statement"]
    sgd.save(runs, folder / "plain.nc")
    repeated = answer("run", folder / "plain.nc", "--out", folder / "again", "--format", "none")
    assert list(repeated["methods"]) == ["exact"]
    np.testing.assert_allclose(
        repeated["methods"]["exact"]["mean"], first["methods"]["exact"]["mean"], rtol=1e-9
    )
    later = runs.isel(time=slice(1, None))
    sgd.save(later, folder / "later.nc")
    assert "first save point is after t = 0" in invoke("run", folder / "later.nc", code=2).stderr


@pytest.mark.slow
def test_compare(first, folder):
    file = folder / "out" / "small.nc"
    theory, runs = (sgd.load(file, group=name) for name in ("ode", "exact"))
    expected = sgd.compare(theory, runs)
    sgd.save(theory, folder / "theory.nc")
    sgd.save(runs, folder / "runs.nc")
    for arguments in (
        (file,),
        (folder / "theory.nc", folder / "runs.nc"),
        (file, file, "--theory", "ode", "--simulation", "exact"),
    ):
        outcome = answer("compare", *arguments)
        row = next(item for item in outcome["variables"] if item["variable"] == "M")
        assert row["largest_z"] == pytest.approx(float(np.abs(expected.M_z).max()))
        assert (outcome["runs"], outcome["same_problem"]) == (20, True)
    assert "largest |z|" in invoke("compare", file).stdout
    assert (
        "did you mean 'exact'?" in invoke("compare", file, "--simulation", "exakt", code=2).stderr
    )
    (folder / "broken.nc").write_bytes(file.read_bytes()[:1000])
    assert "not whole" in invoke("compare", folder / "broken.nc", code=2).stderr


@pytest.mark.slow
def test_exit_time_and_hessian(folder):
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.1)
    start = sgd.random_start(problem, dimension=100, seed=3)
    (row,) = answer("exit-time", folder / "small.toml")["exit_times"]
    expected = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.2), start, threshold=0.3, max_time=40)
    assert row["mean"] == expected.mean
    assert row["alpha"] == pytest.approx(expected.mean / 0.2)
    assert row["standard_error"] is None
    assert "exit time t" in invoke("exit-time", folder / "small.toml").stdout
    outcome = answer("hessian", folder / "small.toml")
    # a random start has the dimension of its question
    spectrum = sgd.hessian_spectrum(
        problem, sgd.random_start(problem, dimension=50, seed=3), dimension=50
    )
    assert [item["eigenvalue"] for item in outcome["eigenvalues"]] == spectrum.eigenvalues.tolist()
    assert sum(item["multiplicity"] for item in outcome["eigenvalues"]) == 2 * 50
    assert "multiplicity" in invoke("hessian", folder / "small.toml").stdout


@pytest.mark.filterwarnings("default")
def test_a_diverging_run_is_one_line_of_warning(folder):
    (folder / "fast.toml").write_text(
        HEAD.replace("lr = 0.2", "lr = 60.0") + RUN.replace('"ode", "exact"', '"ode"')
    )
    outcome = invoke(
        "run", folder / "fast.toml", "--out", folder / "fast", "--format", "none", "--json"
    )
    assert outcome.stderr.startswith("warning: 1 of 1 runs diverged, the first after t = ")
    assert outcome.stderr.count("\n") == 1
    assert json.loads(outcome.stdout)["methods"]["ode"]["diverged"] == 1


@pytest.mark.slow
def test_programs_are_kept_where_the_user_asks(tmp_path):
    folder = tmp_path / "kept programs"
    mine = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    }
    command = [sys.executable, "-m", "sgdynamics.cli.main", "info", "--warm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=mine)
    assert done.returncode == 0, done.stderr
    assert f"export JAX_COMPILATION_CACHE_DIR='{folder}'" in done.stdout
    programs = {path.name for path in folder.iterdir()}
    assert {name.split("-")[0] for name in programs} >= {
        "jit__reach",
        "jit__advance_chain",
        "jit__risks",
    }
    # the README's first block finds them: nothing that takes long is compiled again
    block = re.findall(
        r"```python\n(.*?)```",
        (EXAMPLES.parent / "README.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )[0]
    repeated = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, timeout=300, env=mine
    )
    assert repeated.returncode == 0, repeated.stderr
    assert {path.name for path in folder.iterdir() if path.name.endswith("-cache")} <= programs


@pytest.mark.parametrize("command", [("figures",), ("figure", "quadratic-networks", "5")])
def test_figures_without_their_distribution_say_how_to_install_it(command, monkeypatch):
    """The library works without sgdynamics-reproductions, here hidden from the import system."""
    for name in [name for name in sys.modules if name.startswith("sgdynamics_reproductions")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [HiddenReproductions(), *sys.meta_path])
    result = invoke(*command, code=2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "pip install sgdynamics-reproductions" in result.stderr
    assert "pip install ./reproductions" in result.stderr


class HiddenReproductions:
    """A finder of modules for which the package sgdynamics_reproductions does not exist."""

    def find_spec(self, name, path=None, target=None):
        if name == "sgdynamics_reproductions":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_info():
    about = answer("info")
    assert about["versions"]["sgdynamics"] == sgd.__version__
    assert about["devices"]
    assert "python" in invoke("info").stdout


@pytest.mark.slow
def test_sweep(first, folder):
    sweep = '[sweep]\nsolver = "ode"\nworkers = 1\n[sweep.over]\n'
    sweep += '"algorithm.lr" = { from = 0.1, to = 0.4, points = 3, spacing = "log" }\n'
    (folder / "sweep.toml").write_text(HEAD + RUN + sweep)
    outcome = answer("sweep", folder / "sweep.toml", "--out", folder / "swept")
    assert (outcome["points"], outcome["failed"], outcome["over"]) == (3, 0, ["algorithm.lr"])
    # the middle of the range is the learning rate of the file
    values = sgd.load(outcome["files"][0])["excess_risk"].values.reshape(3, -1)
    np.testing.assert_allclose(values[1], first["methods"]["ode"]["mean"], rtol=1e-6)
    assert values[0, -1] != values[1, -1]
    message = invoke("sweep", folder / "sweep.toml", "--out", folder / "swept").stdout
    assert "3 points over algorithm.lr, 0 failed" in message
    # a number at each point, in a table and a picture
    assert outcome["quantity"] == "excess risk at the last save point"
    assert [row["lr"] for row in outcome["table"]] == pytest.approx([0.1, 0.2, 0.4])
    last = (
        sgd.load(folder / "swept" / "sweep-sweep.nc")["excess_risk"]
        .isel(time=-1)
        .mean("run")
        .values
    )
    assert [row["value"] for row in outcome["table"]] == pytest.approx(last)
    assert [line.split() for line in message.splitlines()[1:4]] == [
        [f"{row['lr']:.5g}", f"{row['value']:.5g}"] for row in outcome["table"]
    ]
    assert (folder / "swept" / "sweep-sweep.png").stat().st_size > 5000
    # These points are one group: the second shard has nothing to do, and the last one to finish
    # writes the files.
    other = "sweep", folder / "sweep.toml", "--out", folder / "shards", "--shard"
    assert (
        "3 points over algorithm.lr, 3 left to other shards, 0 failed"
        in invoke(*other, "1/2").stdout
    )
    outcome = answer(*other, "0/2")
    assert (outcome["missing"], outcome["failed"]) == (0, 0)
    np.testing.assert_array_equal(
        sgd.load(outcome["files"][0])["excess_risk"].values.reshape(3, -1), values
    )


def test_what_a_sweep_is_told(folder):
    (folder / "over.toml").write_text(
        HEAD + RUN + '[sweep]\nsolver = "exact"\nruns = 7\n[sweep.over]\ndimension = [50, 100]\n'
    )
    solver, arguments = problem_files.sweep_call(problem_files.read(folder / "over.toml"))
    assert solver == "simulate"
    assert arguments["over"] == {"dimension": [50, 100]}
    assert (arguments["runs"], arguments["seed"], arguments["method"]) == (7, 4, "exact")
    assert arguments["times"] == np.linspace(0, 0.5, 5).tolist()
    assert "dimension" not in arguments


@pytest.mark.parametrize(
    "name",
    [
        "committee.toml",
        "persistent_sgd.toml",
        "momentum_on_data.toml",
        "epochs.toml",
        "many_epochs.toml",
        "power_law.toml",
        "stages.toml",
        "workers.toml",
    ],
)
def test_examples_state_what_can_be_computed(name):
    record = problem_files.read(EXAMPLES / name)
    plan = problem_files.plan(record)
    assert set(plan.calls) == set(record["run"]["methods"])
    assert plan.start.runs == 1
    if "exit_time" in record:
        assert set(problem_files.exit_calls(record)[3]) == {"ode", "exact"}
        assert problem_files.hessian_call(record)[2] == {"dimension": 1000}
        assert problem_files.sweep_call(record)[0] == "solve_ode"


@pytest.mark.parametrize("name", ["deep_linear.toml", "wide_network.toml", "diagonal.toml"])
def test_networks_with_random_weights_have_no_start(name):
    record = problem_files.read(EXAMPLES / name)
    plan = problem_files.plan(record)
    assert plan.start is None
    assert set(plan.calls) == set(record["run"]["methods"])


def test_message_passing_has_no_start():
    record = problem_files.read(EXAMPLES / "message_passing.toml")
    plan = problem_files.plan(record)
    assert plan.start is None
    assert set(plan.calls) == {"dmft", "direct"}
    with pytest.raises(ValueError, match="starts by itself"):
        problem_files.plan(record | {"start": {"M": [[0.1]], "Q": [[0.1]]}})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "committee.toml",
        "persistent_sgd.toml",
        "epochs.toml",
        "many_epochs.toml",
        "message_passing.toml",
        "momentum_on_data.toml",
        "power_law.toml",
        "deep_linear.toml",
        "stages.toml",
        "workers.toml",
    ],
)
def test_examples_agree_with_theory(name, tmp_path):
    outcome = answer("run", EXAMPLES / name, "--out", tmp_path)
    assert (
        outcome["comparisons"][0]["largest_z"] < 6
    )  # of some thirty times, and a finite dimension


def power_law(folder, **changes):
    """The example on a power law with lines changed, by their key; None leaves one out."""
    lines = (EXAMPLES / "power_law.toml").read_text().splitlines()
    for key, value in changes.items():
        (position, *_) = [
            number for number, line in enumerate(lines) if line.startswith(f"{key} = ")
        ]
        lines[position] = "" if value is None else f"{key} = {value}"
    (folder / "law.toml").write_text("\n".join(lines))
    return folder / "law.toml"


def test_a_spectrum_has_its_dimension_in_a_file(folder):
    file = power_law(folder, methods='["linear"]', runs=None)
    outcome = answer("run", file, "--out", folder / "law", "--format", "none")
    plan = problem_files.plan(problem_files.read(file))
    start = sgd.random_start(plan.problem, seed=0, scale=0.1, per="trace")
    alone = sgd.solve_linear(plan.problem, plan.algorithm, start, steps=[0, 10, 30, 100, 300, 1000])
    np.testing.assert_allclose(
        outcome["methods"]["linear"]["mean"], alone["excess_risk"].values[0], rtol=1e-12
    )
    repeated = answer(
        "run", folder / "law/law.nc", "--out", folder / "law again", "--format", "none"
    )
    assert repeated["methods"] == outcome["methods"]
    assert sgd.problem_of(sgd.load(folder / "law/law.nc", group="linear")) == plan.problem
    # the other tables do not ask for it either
    record = problem_files.read(power_law(folder))
    assert set(problem_files.plan(record).calls) == {"linear", "ode", "exact"}
    record |= {"exit_time": {"methods": ["exact"]}, "hessian": {}}
    assert "dimension" not in problem_files.exit_calls(record)[3]["exact"]
    assert problem_files.hessian_call(record)[2] == {}


def test_sweeps_reach_into_a_spectrum(folder):
    record = problem_files.read(power_law(folder, steps="[0, 100]"))
    solver, arguments = problem_files.sweep_call(record)
    assert solver == "solve_linear"
    assert "dimension" not in arguments["start"]
    over = {"problem.covariance.exponent": [1.5, 2.0], "problem.covariance.target": [0.3]}
    outcome = sgd.sweep(
        solver, **{**arguments, "steps": [0, 100], "over": over}, workers=1, progress=False
    )
    assert dict(outcome.sizes) == {"exponent": 2, "target": 1, "run": 1, "time": 2, "block": 110}
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.01, covariance=sgd.power_law(2.0, 1e6, target=0.3)
    )
    start = sgd.random_start(problem, scale=0.1, per="trace")
    alone = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.3, per="trace"), start, steps=[0, 100])
    np.testing.assert_array_equal(outcome["risk"].sel(exponent=2.0, target=0.3), alone["risk"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"steps": None, "runs": "9\ntimes = [0, 1]"},
            "[run]: the method 'linear' does not accept times. Set steps = ... instead.",
        ),
        (
            {"covariance": '{ kind = "power_law", exponent = 1.5 }'},
            "covariance: power_law needs dimension",
        ),
        ({"covariance": '{ kind = "powerlaw", exponent = 1.5 }'}, "covariance kind = 'powerlaw'"),
        (
            {"covariance": '{ kind = "power_law", exponents = 1.5, dimension = 10 }'},
            "did you mean 'exponent'",
        ),
        (
            {"covariance": '{ kind = "power_law", exponent = 0.5, dimension = inf }'},
            "the trace of the inputs is infinite",
        ),
        ({"per": '"norm"'}, "per = 'norm'"),
        (
            {"runs": "9\ndimension = 1000"},
            "the spectrum of the inputs has 1e+06 dimensions. Omit dimension.",
        ),
    ],
)
def test_bad_spectra_in_a_file_have_messages(folder, changes, message):
    outcome = invoke("run", power_law(folder, **changes), "--out", folder / "none", code=2)
    assert message in " ".join(outcome.stderr.split())


def test_results_of_solve_linear_from_python_do_not_say_their_start(folder):
    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=sgd.Spectrum([2.0, 1.0], [1, 5], target=[1.0, 0.5])
    )
    start = sgd.random_start(problem)
    result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.1), start, steps=[0, 10])
    sgd.save(result, folder / "linear.nc")
    message = invoke("run", folder / "linear.nc", "--out", folder / "none", code=2).stderr
    assert "a result of solve_linear does not record its start" in message


ELSEWHERE = {
    "file": ("run", "{folder}/smal.toml"),
    "command": ("rnu", "{folder}/small.toml"),
    "option": ("run", "{folder}/small.toml", "--formt", "png"),
    "picture": ("run", "{folder}/small.toml", "--format", "svg"),
    "result": ("compare", "{folder}/small.toml"),
    "shard": ("sweep", "{folder}/small.toml"),
    "part": ("sweep", "{folder}/small.toml", "--shard", "5/2"),
    "out": ("run", "{folder}/small.toml", "--out", "{folder}/small.toml"),
    "name": ("run", "{folder}/small.toml", "--name", "a/b"),
    "folder": ("run", "{folder}"),
}
FILES = {
    "toml": HEAD.replace("width = 2", "width = = 2") + RUN,
    "table": HEAD.replace("[algorithm]", "[algoritm]") + RUN,
    "kind": HEAD.replace('"TeacherStudent"', '"TeacherStudents"') + RUN,
    "activation": HEAD.replace('"square"', '"sqare"') + RUN,
    "number": HEAD.replace("lr = 0.2", 'lr = "fast"') + RUN,
    "method": HEAD + RUN.replace('"exact"', '"exakt"'),
    "times": HEAD + RUN.replace("times = {", "time = {"),
    "both": HEAD + RUN + "alpha = [1, 2]\n",
    "range": HEAD + RUN.replace("points = 5", "point = 5"),
    "dimension": HEAD + RUN.replace("dimension = 100", ""),
    "width": HEAD.replace("width = 2", "width = 0") + RUN,
    "no table": HEAD,
    "runs": HEAD + RUN.replace("runs = 20", "runs = 0"),
    "overlaps": HEAD
    + '[start]\nM = [["a"], [0.2]]\nQ = [[1, 0], [0, 1]]\n'
    + RUN.replace("[start]\nseed = 3\n", ""),
    "update": HEAD + 'update = { kind = "momentum" }\n' + RUN,
    "mixture": HEAD.replace("TeacherStudent", "GaussianMixture")
    .replace("noise = 0.1", 'mixture = "xnor"')
    .replace("square", "relu")
    + RUN,
    "random": HEAD + RUN.replace("dimension = 100", "").replace('"ode", "exact"', '"ode"'),
}
SAYS = {
    "file": "file = '{folder}/smal.toml': no such file. Did you mean 'small.toml'?",
    "command": "no command 'rnu': did you mean 'run'? choose one of run, compare, exit-time, "
    "hessian, sweep, figure, figures, info, explore, forecast, cite, schema",
    "option": "no option '--formt': did you mean '--format'?",
    "picture": "format = 'svg': choose one of 'png', 'pdf', 'both', 'none'",
    "result": "file = '{folder}/small.toml': this is no NetCDF file, or it is not whole",
    "shard": "the table [sweep] is missing. It states what to compute.",
    "toml": "{folder}/bad.toml: not a TOML file: Invalid value (at line 4, column 9)",
    "table": "the file has no 'algoritm': did you mean 'algorithm'? "
    "it takes title, problem, algorithm, start, run, exit_time, hessian, sweep, stages",
    "kind": "problem kind = 'TeacherStudents': did you mean 'TeacherStudent'? choose one of "
    "TeacherStudent, GaussianMixture, SpikedTensor, DeepLinear, WideNetwork, DiagonalNetwork, "
    "contexts, {models}",
    "activation": "activation = 'sqare': did you mean 'square'? known are linear, "
    "square, erf, relu, tanh, gelu, softplus, sigmoid, silu, abs, he2, he3, he4, he5, he6; "
    "or sgd.Activation(f, kinks=...)",
    "number": "lr = 'fast': give a number, 0 or more",
    "method": "run.methods = 'exakt': did you mean 'exact'? choose one of 'ode', "
    "'large_batch', 'sde', 'mean_field', 'dmft', 'linear', 'exact', 'direct', 'tensor'",
    "times": "[run] has no 'time': did you mean 'times'? it takes methods, times, "
    "alpha, steps, dimension, runs, seed, ode, large_batch, sde, mean_field, dmft, linear, "
    "exact, direct, tensor",
    "both": "[run]: set exactly one of times, alpha, steps (received times, alpha).",
    "range": "run.times has no 'point': did you mean 'points'? it takes from, to, points, spacing",
    "dimension": "[run]: the method 'exact' needs a dimension. Set dimension = ...",
    "width": "width = 0: give a whole number, 1 or more",
    "no table": "the table [run] is missing. It states what to compute.",
    "part": "the table [sweep] is missing. It states what to compute.",
    "out": "out = '{folder}/small.toml': the folder cannot be created (File exists). "
    "Use another folder.",
    "name": "name = 'a/b': this must be a name without a folder. Use --out for the folder.",
    "folder": "file = '{folder}': this is a folder. Give a problem file (.toml) or a result (.nc).",
    "runs": "run.runs = 0: give a whole number, 1 or more",
    "overlaps": "M = [['a'], [0.2]]: give numbers of shape (2, 1) (units x signals)",
    "update": "beta and memory = (None, None): Set exactly one of them: beta, or memory=c for "
    "1 - beta = c/D.",
    "mixture": "mixture = 'xnor': did you mean 'xor'? choose one of 'binary', 'xor'",
    "random": "start: a random start needs a dimension: give one with the start (in a file, "
    "dimension = ... in [start] or [run])",
}


@pytest.mark.parametrize("case", SAYS)
def test_bad_input_is_one_line(case, folder):
    (folder / "bad.toml").write_text(FILES.get(case, ""))
    arguments = [
        item.format(folder=folder) for item in ELSEWHERE.get(case, ("run", "{folder}/bad.toml"))
    ]
    outcome = invoke(*arguments, code=2)
    assert outcome.stdout == ""
    assert (
        outcome.stderr
        == f"sgdynamics: {SAYS[case].format(folder=folder, models=', '.join(MODELS))}\n"
    )


@pytest.mark.slow
def test_several_results_of_a_file(first, folder):
    """Results saved by Python are solved again; none is compared with itself or overwritten."""
    file = folder / "several.nc"
    results = {name: sgd.load(folder / "out/small.nc", group=name) for name in ("ode", "exact")}
    for result in results.values():
        del result.attrs["statement"]
    sgd.save({"theory": results["ode"], "runs": results["exact"]}, file)
    with pytest.raises(
        ValueError,
        match=r"group = None: .*several.nc has several results: choose one of 'theory', 'runs'",
    ):
        sgd.load(file)
    repeated = answer("run", file, "--out", folder / "again", "--format", "none")
    for name, item in first["methods"].items():
        np.testing.assert_allclose(repeated["methods"][name]["mean"], item["mean"], rtol=1e-9)
    sphere = sgd.TeacherStudent(width=2, activation="square", constraint="sphere")
    tilted = sgd.start(sphere, M=[[0.3], [0.1]], Q=[[1.0, 0.0], [0.0, 1.0]])
    single = sgd.simulate(sphere, sgd.OnePassSGD(lr=0.1), tilted, steps=[0, 1], dimension=100)
    rounded = single.assign(
        M=single.M.astype(np.float32), Q=(single.Q * (1 + 3e-8)).astype(np.float64)
    )
    sgd.save(rounded, folder / "rounded.nc")  # as a result in float32 has it
    np.testing.assert_allclose(
        problem_files.plans(folder / "rounded.nc")[0].start.Q[0].diagonal(), 1.0, rtol=1e-12
    )
    assert (
        "several.nc would be overwritten. Use another --name or --out."
        in invoke("run", file, "--out", folder, code=2).stderr
    )
    assert (
        "the same result (ode)"
        in invoke("compare", folder / "out/small.nc", "--simulation", "ode", code=2).stderr
    )
    assert invoke("--version").stdout.strip() == f"sgdynamics {sgd.__version__}"
    assert isinstance(
        CliRunner().invoke(main.app, ["run", str(folder / "none.toml"), "--debug"]).exception,
        ValueError,
    )


def test_what_a_sweep_of_the_mean_field_is_told(folder):
    text = (
        HEAD + RUN + '[sweep]\nsolver = "mean_field"\n[sweep.over]\n"algorithm.lr" = [0.1, 0.2]\n'
    )
    (folder / "wide.toml").write_text(text)
    _, arguments = problem_files.sweep_call(problem_files.read(folder / "wide.toml"))
    np.testing.assert_allclose(arguments["times"], np.linspace(0, 0.25, 5))  # t/width
    (folder / "wide.toml").write_text(
        text.replace('"algorithm.lr" = [0.1, 0.2]', '"problem.width" = [2, 4]')
    )
    with pytest.raises(
        ValueError, match=r"the clock of mean_field is t/width, and the width varies"
    ):
        problem_files.sweep_call(problem_files.read(folder / "wide.toml"))
    (folder / "wide.toml").write_text(
        text.replace('"mean_field"\n', '"exact"\nsteps = { to = 7, points = 4 }\n')
    )
    assert problem_files.sweep_call(problem_files.read(folder / "wide.toml"))[1]["steps"] == [
        0,
        2,
        5,
        7,
    ]


@pytest.mark.slow
def test_help_does_not_wait_for_jax_and_the_public_names_are_one_list():
    """Type checkers and the lazy table have the same names; the package and help need no JAX."""
    code = """
import sys
import sgdynamics, sgdynamics.cli.main
assert not {"jax", "numpy", "xarray"} & set(sys.modules)
import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
tree = ast.parse(Path(sgdynamics.__file__).read_text())
[typed] = [node for node in tree.body if isinstance(node, ast.If)]
public = [(node.module, node.names[0].name) for node in typed.body]
names = {name for _, name in public} | {"__version__"}
assert names == set(sgdynamics.__all__) == set(dir(sgdynamics))
for module, name in public:
    package = import_module(module)
    submodule = find_spec(f"{module}.{name}") if hasattr(package, "__path__") else None
    value = import_module(submodule.name) if submodule else getattr(package, name)
    assert getattr(sgdynamics, name) is value, name
assert not hasattr(sgdynamics, "solve_everything")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_signs_that_the_terminal_lacks_do_not_stop_the_command(monkeypatch):
    """Output that is redirected on Windows has the code page of the system."""
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="cp1252"))
    monkeypatch.setattr(sys, "argv", ["sgdynamics", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    print("d = ∞, 1 ± 2", flush=True)
    assert content.getvalue().decode("cp1252").endswith(f"d = ?, 1 ± 2{os.linesep}")


def test_methods_are_announced_on_a_terminal(monkeypatch, capsys):
    """A first call compiles for seconds to a minute before its progress bar moves."""
    for is_terminal, quiet, lines in ((True, False, 2), (True, True, 0), (False, False, 0)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer)
        with main._announce("ode", quiet):
            pass
        printed = capsys.readouterr().err.splitlines()
        assert len(printed) == lines
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with main._announce("ode", quiet=False):
        assert capsys.readouterr().err.startswith("ode: started")
    assert re.fullmatch(r"ode: done after \d+\.\d s\n", capsys.readouterr().err)
