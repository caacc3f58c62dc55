"""The command line `sgdynamics`: parses arguments and calls the library.

Bad input prints one line on stderr and exits with code 2. A computation that fails prints one line
and exits with code 1; `--debug` shows its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# Each command imports what it needs, so that --help and bad arguments do not wait for JAX.

INTERRUPTED = 130  # exit code of a command that Ctrl-C ends


class _OneLineErrors(TyperGroup):
    """A group of commands that prints errors as one line on stderr, in a shell and in a test."""

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        passed = args[0] if args else options.pop("args", None)
        arguments = list(sys.argv[1:] if passed is None else passed)
        # --debug is accepted before and after the command.
        debug = "--debug" in arguments
        arguments = [argument for argument in arguments if argument != "--debug"]
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            try:
                result = super().main(arguments, *args[1:], standalone_mode=False, **options)
            except Exception as error:
                if debug:
                    raise
                _stop(*_explain(error, self.commands))
            except KeyboardInterrupt:
                _stop("interrupted", INTERRUPTED)
        if not standalone_mode:
            return result
        sys.exit(result if isinstance(result, int) else 0)


def _explain(error: BaseException, commands: Iterable[str]) -> tuple[str, int]:
    """The message of an error and the exit code."""
    if type(error).__name__ == "Abort":
        return "interrupted", INTERRUPTED
    if hasattr(error, "format_message"):  # raised by the parser of the command line
        return _explain_usage(error, list(commands)), 2
    if isinstance(error, (ValueError, OSError)):
        return str(error) or type(error).__name__, 2
    return f"{type(error).__name__}: {error} (add --debug for the traceback)", 1


def _explain_usage(error: Any, commands: list[str]) -> str:
    """The message of an error in the command line itself, with the closest valid name."""
    message = str(error.format_message())
    if message.startswith("No such command"):
        name = message.split("'")[1]
        close = difflib.get_close_matches(name, commands, n=1, cutoff=0.5)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        return f"no command {name!r}: {suggestion}choose one of {', '.join(commands)}"
    if hasattr(error, "possibilities"):
        options = error.possibilities or ()
        close = difflib.get_close_matches(error.option_name, options, n=1, cutoff=0.65)
        return f"no option {error.option_name!r}" + (
            f": did you mean {close[0]!r}?" if close else ""
        )
    if message.startswith("Missing command"):
        return f"no command: choose one of {', '.join(commands)} (see sgdynamics --help)"
    return message


def _stop(message: str, code: int) -> None:
    print(f"sgdynamics: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


@contextmanager
def _announce(method: str, quiet: bool) -> Iterator[None]:
    """Report on a terminal that a method has started, and how long it took."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    print(
        f"{method}: started; the first call of a kind compiles for up to a minute", file=sys.stderr
    )
    began = time.perf_counter()
    yield
    print(f"{method}: done after {time.perf_counter() - began:.1f} s", file=sys.stderr)


app = typer.Typer(
    cls=_OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    help="Exact high-dimensional dynamics of SGD: theory, matching simulations, and their "
    "comparison.",
    epilog="FILE is a problem file in TOML with the tables [problem], [algorithm] and [start], "
    "and a table for each command, such as [run]. See examples/*.toml.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Problem file (.toml), or a result (.nc) to reproduce.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Output folder, created if it does not exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress bars.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the full traceback of an error."),
]


def _print_version(requested: bool) -> None:
    if requested:
        from sgdynamics.version import __version__

        print(f"sgdynamics {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
]


@app.callback()
def _common(debug: Debug = False, version: Version = False) -> None:
    """Exact high-dimensional dynamics of SGD: theory, simulations, and their comparison."""


@app.command(short_help="Solve and simulate a problem file.")
def run(
    file: File,
    out: Out = Path("output"),
    name: Annotated[
        str,
        typer.Option(
            help="Name of the output files. Defaults to the name of FILE.", show_default=False
        ),
    ] = "",
    format: Annotated[
        str, typer.Option(help="Format of the figure: png, pdf, both or none.")
    ] = "png",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve and simulate a problem file.

    Runs the methods of the table [run]. Writes their results to a NetCDF file, draws risk and
    overlaps, and prints a table that compares theory with simulation.
    """
    _check_file(file)
    from sgdynamics.base import checks
    from sgdynamics.cli import problem_files
    from sgdynamics.results.storage import save

    extensions = {"png": ("png",), "pdf": ("pdf",), "both": ("png", "pdf"), "none": ()}
    extensions = extensions[checks.choice("format", format, tuple(extensions))]
    plans = problem_files.plans(file)
    _make_folder(out)
    name = name or file.stem
    if Path(name).name != name:
        raise checks.reject(
            "name", name, "this must be a name without a folder. Use --out for the folder."
        )
    if (out / f"{name}.nc").resolve() == file.resolve():
        raise checks.reject(
            "name", name, f"{file} would be overwritten. Use another --name or --out."
        )
    results = {}
    for plan in plans:
        for method in plan.calls:
            with _announce(method, quiet):
                results[method] = problem_files.solve(plan, method, False if quiet else None)
    files = [save(results, out / f"{name}.nc")]
    if extensions:
        from sgdynamics.cli.drawings import draw_results

        fig = draw_results(results, str(plans[0].record.get("title", name)))
        for extension in extensions:
            files.append(out / f"{name}.{extension}")
            fig.savefig(files[-1], dpi=150)
    from sgdynamics.cli.summaries import summarise
    from sgdynamics.cli.tables import print_summary

    summary = summarise(results) | {"files": [str(path) for path in files]}
    _show(summary, json_, print_summary)


@app.command(short_help="Compare theory with simulation in standard errors.")
def compare(
    first: Annotated[
        Path,
        typer.Argument(metavar="A.nc", help="File with the theory.", show_default=False),
    ],
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="B.nc", help="File with the simulation. Defaults to A.nc.", show_default=False
        ),
    ] = None,
    theory: Annotated[
        str,
        typer.Option(help="Name of the theory, if A.nc has several results.", show_default=False),
    ] = "",
    simulation: Annotated[
        str,
        typer.Option(
            help="Name of the simulation, if B.nc has several results.", show_default=False
        ),
    ] = "",
    json_: Json = False,
) -> None:
    """Compare theory with simulation.

    Prints the largest difference of each variable, in absolute terms and in standard errors.
    """
    for path in (first, second):
        if path is not None:
            _check_file(path, problem=False)
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.summaries import compare_variables, select_result
    from sgdynamics.cli.tables import print_comparison

    theories = problem_files.results_in(first)
    simulations = theories if second is None else problem_files.results_in(second)
    left = select_result(theories, theory, "theory", is_simulation=False, file=first)
    right = select_result(
        simulations, simulation, "simulation", is_simulation=True, file=second or first
    )
    _show(compare_variables(left, right), json_, print_comparison)


@app.command(name="exit-time", short_help="Compute when training leaves its plateau.")
def exit_time(file: File, json_: Json = False, quiet: Quiet = False) -> None:
    """Compute when training leaves its plateau.

    Prints the exit times of each method of the table [exit_time].
    """
    _check_file(file)
    from sgdynamics.analysis import exit_times
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.summaries import exit_row
    from sgdynamics.cli.tables import print_exits

    problem, algorithm, start, calls = problem_files.exit_calls(problem_files.read(file))
    progress = False if quiet else None
    answers = []
    for method, arguments in calls.items():
        with _announce(f"exit time, {method}", quiet):
            answer = exit_times.exit_time(problem, algorithm, start, progress=progress, **arguments)
        answers.append(answer)
    _show({"exit_times": [exit_row(answer) for answer in answers]}, json_, print_exits)


@app.command(short_help="Compute the Hessian spectrum of the risk.")
def hessian(file: File, json_: Json = False) -> None:
    """Compute the Hessian spectrum of the risk.

    Prints all eigenvalues at the start, with their multiplicities.
    """
    _check_file(file)
    from sgdynamics.analysis.landscape import hessian_spectrum
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.summaries import hessian_summary
    from sgdynamics.cli.tables import print_hessian

    problem, start, arguments = problem_files.hessian_call(problem_files.read(file))
    with _announce("Hessian", quiet=False):
        spectrum = hessian_spectrum(problem, start, **arguments)
    _show(hessian_summary(spectrum), json_, print_hessian)


@app.command(short_help="Solve a problem over a grid of parameters.")
def sweep(
    file: File,
    out: Out = Path("output"),
    workers: Annotated[
        int,
        typer.Option(
            help="Number of processes. Defaults to one for little work, else all cores.",
            show_default=False,
        ),
    ] = 0,
    shard: Annotated[
        str,
        typer.Option(
            help="Compute only a share of the points: I/N, with I from 0 to N - 1.",
            show_default=False,
        ),
    ] = "",
    scheduler: Annotated[
        str, typer.Option(help="Address of a Dask scheduler.", show_default=False)
    ] = "",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve a problem over a grid of parameters.

    Runs the solver of the table [sweep] at each point of [sweep.over]. Writes a NetCDF file and a
    figure, and prints a table. A sweep that was interrupted continues where it stopped.
    """
    _check_file(file)
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.drawings import draw_sweep
    from sgdynamics.cli.summaries import point_values, sweep_summary
    from sgdynamics.cli.tables import print_sweep
    from sgdynamics.results.storage import save
    from sgdynamics.sweeps import sweep as run_sweep

    solver, arguments = problem_files.sweep_call(problem_files.read(file))
    _make_folder(out)
    arguments.setdefault("store", str(out / f"{file.stem}.sweep"))
    arguments |= {"workers": workers} if workers else {}
    arguments |= {"scheduler": scheduler} if scheduler else {}
    arguments |= {"shard": _parse_shard(shard)} if shard else {}
    result = run_sweep(solver, progress=False if quiet else None, **arguments)
    summary = sweep_summary(result, list(arguments["over"]))
    summary["store"] = arguments["store"]
    if not summary["missing"]:  # of several shards, the last one to finish writes the files
        summary["files"] = [str(save(result, out / f"{file.stem}-sweep.nc"))]
        values = point_values(result)
        if values is not None and (fig := draw_sweep(values)) is not None:
            summary["files"].append(str(out / f"{file.stem}-sweep.png"))
            fig.savefig(summary["files"][-1], dpi=150)
    _show(summary, json_, print_sweep)
    if summary["failed"] and summary["failed"] == summary["points"] - summary["missing"]:
        raise typer.Exit(1)


def _check_file(path: Path, *, problem: bool = True) -> None:
    """Reject a missing or unreadable file before JAX is imported, which takes seconds."""
    from sgdynamics.base import files

    files.require_file(path)
    if problem and path.suffix != ".nc":
        files.read_toml(path)


def _make_folder(out: Path) -> None:
    """Create the output folder before anything is computed, so that no result is lost."""
    from sgdynamics.base import checks

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise checks.reject(
            "out",
            str(out),
            f"the folder cannot be created ({error.strerror}). Use another folder.",
        ) from None


def _parse_shard(text: str) -> tuple[int, int]:
    from sgdynamics.base import checks

    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise checks.reject("shard", text, "this must be I/N with I from 0 to N - 1, as in 0/4.")
    return int(index), int(count)


def _gallery() -> ModuleType:
    """The gallery of the distribution sgdynamics-reproductions, which is installed separately."""
    try:
        return importlib.import_module("sgdynamics_reproductions.gallery")
    except ModuleNotFoundError as error:
        if error.name != "sgdynamics_reproductions":
            raise
        raise ValueError(
            "the figures are a distribution of their own, which is not installed: "
            "pip install sgdynamics-reproductions, "
            "or from a checkout of the repository pip install ./reproductions"
        ) from None


@app.command(short_help="Reproduce a figure and check its claim.")
def figure(
    document: Annotated[
        str,
        typer.Argument(help="Name of a document (see sgdynamics figures).", show_default=False),
    ],
    number: Annotated[
        str,
        typer.Argument(
            help="Number (2, b1) or name (escape_times) of the figure.", show_default=False
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Use smaller sizes: less than half a minute.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random number generator.")] = 0,
    out: Out = Path("output"),
    json_: Json = False,
) -> None:
    """Reproduce a figure of a document and check its claim.

    Writes the figure and its data, and prints the claim and the verdict.
    """
    from sgdynamics.base import checks
    from sgdynamics.cli.tables import print_figure

    gallery = _gallery()
    checks.integer("seed", seed, 0)
    _make_folder(out)
    entry = gallery.find(document, number)
    record = gallery.make(entry, out, quick=quick, seed=seed, again=True)
    if record["error"]:
        raise RuntimeError(record["error"])
    _show(record, json_, print_figure)


@app.command(short_help="List the figures that can be reproduced.")
def figures(json_: Json = False) -> None:
    """List the figures that can be reproduced, with one line each."""
    from sgdynamics.cli.tables import print_figures

    rows = [
        {"document": entry.document, "number": entry.number, "line": entry.line}
        for entry in _gallery().ENTRIES
    ]
    _show({"figures": rows}, json_, print_figures)


Warm = Annotated[
    bool,
    typer.Option("--warm", help="Fill a compilation cache with the programs of a first session."),
]


@app.command(short_help="Show versions, devices and the compilation cache.")
def info(warm: Warm = False, json_: Json = False) -> None:
    """Show versions, devices, precision and the compilation cache."""
    from sgdynamics.cli.summaries import machine
    from sgdynamics.cli.tables import print_machine

    cache = {}
    if warm:  # before the description of the machine, which names the cache in use
        from sgdynamics.cli import compile_cache

        cache = {"warmed": compile_cache.warm()}
    _show({**machine(), **cache}, json_, print_machine)


@app.command(short_help="Explore a problem with sliders in the browser.")
def explore(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 selects a free port.")] = 8765,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening a browser.")
    ] = False,
) -> None:
    """Explore a problem with sliders in the browser.

    Serves a page on this machine that shows the ODE and exact runs side by side, and exports them
    as Python, TOML and PDF. A panel forecasts training runs from CSV files of loss curves.
    """
    from sgdynamics.base import checks
    from sgdynamics.cli.explorer.server import Explorer, serve

    checks.integer("port", port, 0, 65535)
    serve(Explorer(port), lambda text: print(text, flush=True), browse=not no_browser)


@app.command(short_help="Forecast the loss of a training run from measured loss curves.")
def forecast(
    curves: Annotated[
        list[Path],
        typer.Argument(
            metavar="CURVE.csv...",
            help="Loss curves with the columns step, lr and loss.",
            show_default=False,
        ),
    ],
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            help="Schedule to predict, as wsd:steps=50000,peak=1e-3,decay=0.2 (also constant, "
            "cosine, multistep), or a CSV file with the columns step and lr. May be repeated.",
            show_default=False,
        ),
    ] = None,
    optimal: Annotated[
        float,
        typer.Option(help="Length of a run whose best schedule is wanted.", show_default=False),
    ] = 0.0,
    peak: Annotated[
        float,
        typer.Option(
            help="Peak of the best schedule. Defaults to the largest measured one.",
            show_default=False,
        ),
    ] = 0.0,
    warmup: Annotated[float, typer.Option(help="Warm-up of the best schedule, in steps.")] = 0.0,
    model: Annotated[
        str, typer.Option(help="Model: theory, theory6, multi_power or annealing.")
    ] = "theory",
    skip: Annotated[
        float, typer.Option(help="Share of each run to leave out at its start.")
    ] = 0.06,
    level: Annotated[float, typer.Option(help="Probability of the bands.")] = 0.9,
    out: Out = Path("output"),
    json_: Json = False,
) -> None:
    """Forecast the loss of a training run from measured loss curves.

    Fits a model to the curves, predicts the final loss of other schedules with bands, and finds the
    best schedule. Writes a figure, and the predictions as CSV.
    """
    from sgdynamics.cli.forecasts import (
        parse_schedule,
        print_forecast,
        summarise_forecast,
        write_predictions,
    )
    from sgdynamics.scaling.forecast import forecast as fit_curves

    parsed = {text: parse_schedule(text) for text in schedule or ()}
    _make_folder(out)
    fit = fit_curves([str(path) for path in curves], model=model, skip=skip, level=level)
    predictions = {text: fit.predict(rates) for text, rates in parsed.items()}
    best = None
    if optimal:
        best = fit.optimal_schedule(optimal, peak or None, warmup=warmup)
        predictions["best schedule"] = fit.predict(best.schedule)
    figure_file = out / "forecast.png"
    fit.plot(*predictions.values())[0].savefig(figure_file, dpi=150)
    written = [str(figure_file)]
    if predictions:
        written.append(write_predictions(predictions, out / "forecast.csv"))
    _show(summarise_forecast(fit, predictions, best, written), json_, print_forecast)


@app.command(short_help="Print BibTeX of the papers behind a file.")
def cite(file: File) -> None:
    """Print BibTeX of the papers behind a file.

    FILE is a result (.nc), also with several results, or a problem file (.toml). The entries are
    those of the library, the solver, the problem, the algorithm and the optimiser.
    """
    _check_file(file)
    from sgdynamics.results.citing import cite as bibtex
    from sgdynamics.results.storage import groups_in, load

    if file.suffix == ".nc":
        groups = groups_in(file, "file")
        results = [load(file, group=name) for name in groups] or [load(file)]
        print(bibtex(*results))
        return
    from sgdynamics.cli import problem_files

    print(bibtex(*problem_files.cited_subjects(problem_files.read(file))))


@app.command(short_help="Print the JSON schema of problem files, for editors.")
def schema(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write instead of printing.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON schema of problem files.

    Editors complete keys and mark misspelled ones by it. It describes all problems, algorithms,
    optimisers and solvers of the installed version.
    """
    from sgdynamics.cli.schema import problem_file_schema

    text = json.dumps(problem_file_schema(), indent=2, allow_nan=False)
    if out is None:
        print(text)
        return
    from sgdynamics.base import checks

    if not out.parent.is_dir():
        raise checks.reject("--out", str(out), "the folder does not exist. Use another path.")
    out.write_text(f"{text}\n", encoding="utf-8")


def _show(answer: object, as_json: bool, print_answer: Callable[..., Any]) -> None:
    """Print an answer as JSON, or for a reader."""
    if as_json:
        from sgdynamics.cli.summaries import plain

        print(json.dumps(plain(answer), allow_nan=False))
    else:
        print_answer(answer)


def main() -> None:
    """Run the command `sgdynamics`."""
    for stream in (sys.stdout, sys.stderr):
        # a pipe on Windows has the code page of the system, which lacks some mathematical signs
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="sgdynamics")


if __name__ == "__main__":
    main()
