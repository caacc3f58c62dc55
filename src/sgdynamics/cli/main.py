"""The command line `sgdynamics`: parses and calls; no science.

Bad input is one line on stderr and exit code 2; a computation that fails is one line and exit code 1 (`--debug` shows where).
"""

from __future__ import annotations

import difflib
import importlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# everything else is imported in the commands that need it, so that --help does not wait for it


class _OneLine(TyperGroup):
    """Errors as one line on stderr, the same in a shell and in a test."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        told = args[0] if args else more.pop("args", None)
        given = list(sys.argv[1:] if told is None else told)
        debug = "--debug" in given
        given = [one for one in given if one != "--debug"]  # before or after the command
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            try:
                result = super().main(given, *args[1:], standalone_mode=False, **more)
            except Exception as error:
                if debug:
                    raise
                _stop(*_explained(error, self.commands))
            except KeyboardInterrupt:
                _stop("stopped", 130)
        if not standalone_mode:
            return result
        sys.exit(result if isinstance(result, int) else 0)


def _explained(error: Exception, commands: Any) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if type(error).__name__ == "Abort":
        return "stopped", 130
    if hasattr(error, "format_message"):  # of the command line itself
        message = str(error.format_message())  # type: ignore[attr-defined]
        if message.startswith("No such command"):
            name = message.split("'")[1]
            close = difflib.get_close_matches(name, commands, n=1, cutoff=0.5)
            message = f"no command {name!r}: {f'did you mean {close[0]!r}? ' if close else ''}choose one of {', '.join(commands)}"
        elif hasattr(error, "possibilities"):
            close = difflib.get_close_matches(
                error.option_name, error.possibilities or (), n=1, cutoff=0.65
            )  # type: ignore[attr-defined]
            message = (
                f"no option {error.option_name!r}{f': did you mean {close[0]!r}?' if close else ''}"  # type: ignore[attr-defined]
            )
        elif message.startswith("Missing command"):
            message = f"give a command, one of {', '.join(commands)} (sgdynamics --help says more)"
        return message, 2
    if isinstance(error, (ValueError, OSError)):
        return str(error) or type(error).__name__, 2
    return f"{type(error).__name__}: {error} (add --debug to see where)", 1


def _stop(message: str, code: int) -> None:
    print(f"sgdynamics: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _warned(message: Any, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


app = typer.Typer(
    cls=_OneLine,
    add_completion=False,
    rich_markup_mode=None,
    help="The exact high-dimensional dynamics of SGD: theory, finite-dimension simulation, and the two side by side.",
    epilog="A problem file is TOML with the tables [problem], [algorithm], [start] and one for each command, see examples/*.toml.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

File = Annotated[
    Path,
    typer.Argument(
        help="Problem file (.toml), or a result (.nc) to compute again.", show_default=False
    ),
]
Out = Annotated[
    Path, typer.Option("--out", help="Folder for what is written; made if it is not there.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on stdout, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the whole traceback of an error (also after a command)."),
]


def _version(asked: bool) -> None:
    if asked:
        from sgdynamics.version import __version__

        print(f"sgdynamics {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
]


@app.callback()
def _common(debug: Debug = False, version: Version = False) -> None:
    """The exact high-dimensional dynamics of SGD: theory, finite-dimension simulation, and the two side by side."""


@app.command(short_help="Solve and simulate: NetCDF, picture, table.")
def run(
    file: File,
    out: Out = Path("output"),
    name: Annotated[
        str,
        typer.Option(
            help="Name of the files written; that of FILE unless given.", show_default=False
        ),
    ] = "",
    format: Annotated[str, typer.Option(help="Pictures to write: png, pdf, both or none.")] = "png",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve and simulate what [run] states: NetCDF, a picture, and a table of theory beside simulation."""
    _check_file(file)
    from sgdynamics.base import checks
    from sgdynamics.cli import problem_files
    from sgdynamics.results.datasets import save

    known = {"png": ("png",), "pdf": ("pdf",), "both": ("png", "pdf"), "none": ()}
    kinds = known[checks.choice("format", format, tuple(known))]
    plans = problem_files.plans(file)
    _folder(out)
    name = name or file.stem
    if Path(name).name != name:
        raise checks.reject("name", name, "give a name without a folder; the folder is --out")
    if (out / f"{name}.nc").resolve() == file.resolve():
        raise checks.reject(
            "name", name, f"{file} would be written over: give another --name or --out"
        )
    results = {
        method: problem_files.solve(plan, method, False if quiet else None)
        for plan in plans
        for method in plan.calls
    }
    files = [save(results, out / f"{name}.nc")]
    if kinds:
        from sgdynamics.cli.tables import picture

        fig = picture(results, str(plans[0].record.get("title", name)))
        for kind in kinds:
            files.append(out / f"{name}.{kind}")
            fig.savefig(files[-1], dpi=150)
    from sgdynamics.cli.tables import beside, print_beside

    found = beside(results)
    found["files"] = [str(one) for one in files]
    _answer(found, json_, print_beside)


@app.command(short_help="Theory beside simulation, in standard errors.")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.nc", help="Theory.", show_default=False)],
    second: Annotated[
        Path | None,
        typer.Argument(metavar="[B.nc]", help="Simulation; A.nc unless given.", show_default=False),
    ] = None,
    theory: Annotated[
        str, typer.Option(help="Which result of A.nc, where it has several.", show_default=False)
    ] = "",
    simulation: Annotated[
        str, typer.Option(help="Which result of B.nc, where it has several.", show_default=False)
    ] = "",
    json_: Json = False,
) -> None:
    """Theory beside simulation: differences in standard errors, variable by variable."""
    for path in (first, second):
        if path is not None:
            _check_file(path, problem=False)
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.tables import compared, picked, print_compared

    held = problem_files.results_in(first)
    one = picked(held, theory, "theory", sampled=False, file=first)
    others = held if second is None else problem_files.results_in(second)
    other = picked(others, simulation, "simulation", sampled=True, file=second or first)
    _answer(compared(one, other), json_, print_compared)


@app.command(name="exit-time", short_help="When runs leave their plateau.")
def exit_time(file: File, json_: Json = False, quiet: Quiet = False) -> None:
    """When runs leave their plateau, by each method that [exit_time] names."""
    _check_file(file)
    from sgdynamics.analysis import exit_times
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.tables import exit_row, print_exits

    problem, algorithm, start, calls = problem_files.exit_calls(problem_files.read(file))
    progress = False if quiet else None
    found = [
        exit_times.exit_time(problem, algorithm, start, progress=progress, **arguments)
        for arguments in calls.values()
    ]
    _answer({"exit_times": [exit_row(one) for one in found]}, json_, print_exits)


@app.command(short_help="Eigenvalues of the risk's Hessian.")
def hessian(file: File, json_: Json = False) -> None:
    """All eigenvalues of the risk's Hessian at the start, with multiplicities."""
    _check_file(file)
    from sgdynamics.analysis.landscape import hessian_spectrum
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.tables import print_hessian, spectrum

    problem, start, arguments = problem_files.hessian_call(problem_files.read(file))
    _answer(spectrum(hessian_spectrum(problem, start, **arguments)), json_, print_hessian)


@app.command(short_help="A grid of solutions, resumable.")
def sweep(
    file: File,
    out: Out = Path("output"),
    workers: Annotated[
        int, typer.Option(help="Processes; all cores unless given.", show_default=False)
    ] = 0,
    shard: Annotated[
        str,
        typer.Option(
            help="I/N: only every N-th group of points, from the I-th (0..N-1).", show_default=False
        ),
    ] = "",
    scheduler: Annotated[
        str, typer.Option(help="Address of a Dask scheduler.", show_default=False)
    ] = "",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """A grid of solutions as [sweep] states it, resumable: one labelled NetCDF file, a table, a picture."""
    _check_file(file)
    from sgdynamics.cli import problem_files
    from sgdynamics.cli.tables import print_sweep, sweep_picture, sweep_summary, swept_numbers
    from sgdynamics.results.datasets import save
    from sgdynamics.sweeps import sweep as swept

    solver, arguments = problem_files.sweep_call(problem_files.read(file))
    _folder(out)
    arguments.setdefault("store", str(out / f"{file.stem}.sweep"))
    arguments |= {"workers": workers} if workers else {}
    arguments |= {"scheduler": scheduler} if scheduler else {}
    arguments |= {"shard": _shard(shard)} if shard else {}
    result = swept(solver, progress=False if quiet else None, **arguments)
    found = sweep_summary(result, list(arguments["over"]))
    found["store"] = arguments["store"]
    if not found["missing"]:  # of several shards the last one writes the whole
        found["files"] = [str(save(result, out / f"{file.stem}-sweep.nc"))]
        numbers = swept_numbers(result)
        if numbers is not None and (fig := sweep_picture(numbers)) is not None:
            found["files"].append(str(out / f"{file.stem}-sweep.png"))
            fig.savefig(found["files"][-1], dpi=150)
    _answer(found, json_, print_sweep)
    if found["failed"] and found["failed"] == found["points"] - found["missing"]:
        raise typer.Exit(1)


def _check_file(path: Path, *, problem: bool = True) -> None:
    """Reject a missing or unreadable file before JAX is imported, which takes seconds."""
    from sgdynamics.base import files

    files.require_file(path)
    if problem and path.suffix != ".nc":
        files.read_toml(path)


def _folder(out: Path) -> None:
    """Made before anything is computed, so that nothing is lost where it cannot be."""
    from sgdynamics.base import checks

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise checks.reject(
            "out", str(out), f"no folder can be made there ({error.strerror}): give another"
        ) from None


def _shard(text: str) -> tuple[int, int]:
    from sgdynamics.base import checks

    parts = text.split("/")
    if (
        len(parts) != 2
        or not all(part.isdigit() for part in parts)
        or not int(parts[0]) < int(parts[1])
    ):
        raise checks.reject("shard", text, "give I/N with I from 0 to N - 1, as in 0/4")
    return int(parts[0]), int(parts[1])


def _gallery() -> ModuleType:
    """The gallery of the distribution sgdynamics-reproductions, which is installed on its own."""
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


@app.command(short_help="Make one figure, with claim and verdict.")
def figure(
    document: Annotated[
        str,
        typer.Argument(help="One of the documents, see `sgdynamics figures`.", show_default=False),
    ],
    number: Annotated[
        str, typer.Argument(help="Its number (2, b1) or name (escape_times).", show_default=False)
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes, under half a minute.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    out: Out = Path("output"),
    json_: Json = False,
) -> None:
    """Make one figure of a document: picture, data, the claim it checks and the verdict."""
    from sgdynamics.base import checks
    from sgdynamics.cli.tables import print_figure

    gallery = _gallery()
    checks.integer("seed", seed, 0)
    _folder(out)
    entry = gallery.find(document, number)
    record = gallery.make(entry, out, quick=quick, seed=seed, again=True)
    if record["error"]:
        raise RuntimeError(record["error"])
    _answer(record, json_, print_figure)


@app.command(short_help="List every figure with one line each.")
def figures(json_: Json = False) -> None:
    """List every figure with one line each."""
    from sgdynamics.cli.tables import print_figures

    rows = [
        {"document": entry.document, "number": entry.number, "line": entry.line}
        for entry in _gallery().ENTRIES
    ]
    _answer({"figures": rows}, json_, print_figures)


Warm = Annotated[
    bool,
    typer.Option("--warm", help="Compile what a first session needs, and keep it in a folder."),
]


@app.command(short_help="Versions, devices, cache.")
def info(warm: Warm = False, json_: Json = False) -> None:
    """Versions, devices, precision and the compilation cache."""
    from sgdynamics.cli.tables import machine, print_machine

    kept = {}
    if warm:
        from sgdynamics.cli import compile_cache

        kept = {"warmed": compile_cache.warm()}
    _answer({**machine(), **kept}, json_, print_machine)


@app.command(short_help="A local page with sliders: theory and exact runs.")
def explore(
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0 for any that is free.")] = 8765,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only say where the page is.")
    ] = False,
) -> None:
    """A page on this machine alone: sliders, the ODE and exact runs side by side, links, exports as Python, TOML and PDF."""
    from sgdynamics.base import checks
    from sgdynamics.cli.explorer.server import Explorer, serve

    checks.integer("port", port, 0, 65535)
    serve(Explorer(port), lambda text: print(text, flush=True), browse=not no_browser)


def _answer(found: object, as_json: bool, show: Callable[..., Any]) -> None:
    if as_json:
        from sgdynamics.cli.tables import plain

        print(json.dumps(plain(found), allow_nan=False))
    else:
        show(found)


def main() -> None:
    """The entry point of the command `sgdynamics`."""
    app(prog_name="sgdynamics")


if __name__ == "__main__":
    main()
