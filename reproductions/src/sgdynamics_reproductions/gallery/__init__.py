"""The gallery: makes all figures of the documents, stores their data, and judges their claims.

``python -m sgdynamics_reproductions.gallery --quick --out output/gallery`` writes the picture
(PNG), the data (NetCDF) and a record (JSON) of each figure, and pages that collect them (index.md,
index.html). A figure that fails, or whose optional package is missing, is reported on the pages,
and the other figures are made. Existing figures are made again only with ``--again``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from sgdynamics import load, save
from sgdynamics.base import checks, files
from sgdynamics.version import __version__
from sgdynamics_reproductions import pieces
from sgdynamics_reproductions.gallery.claims import WORDS as WORDS
from sgdynamics_reproductions.gallery.entries import LISTED, Entry
from sgdynamics_reproductions.gallery.stored_data import (
    add_caption,
    drawing_of,
    full_size,
    load_full_size,
    verdict_with_remark,
)
from sgdynamics_reproductions.gallery.stored_data import draw_full_size as draw_full_size

DOCUMENTS = {
    "escaping_mediocrity": "Escaping mediocrity (Arnaboldi, Krzakala, Loureiro, Stephan)",
    "effective_dynamics": "High-dimensional limit theorems for SGD "
    "(Ben Arous, Gheissari, Jagannath)",
    "rough_landscapes": "Stochasticity helps to navigate rough landscapes "
    "(Mignacco, Urbani, Zdeborova)",
    "quadratic_networks": "Escape dynamics and implicit bias of quadratic networks "
    "(arXiv:2604.03068)",
    "dimension_free": "Dimension-free limits of SGD for two-layer networks (Loureiro, slides)",
    "several_inputs": "Samples of several inputs and other learning rules "
    "(attention, sequences, autoencoders, perceptrons, GANs)",
    "scaling_laws": "Scaling laws "
    "(power-law spectra, compute-optimal random features, real samples, emergence)",
    "optimisers": "Optimisers (momentum, reuse, Muon, clipping, Adam, noise for privacy)",
    "tops": "Networks on top of the first layer (softmax, biases, LoRA, narrow deep networks)",
    "protocols": "Protocols "
    "(the best learning rates, replay, dropout, decay, curricula, schedules and batches)",
    "epochs": "Epochs (the worth of repeated samples, three orders of samples, unlearning)",
    "depth": "Depth and width (transfer of learning rates, spread, feature learning)",
    "sparsity": "Diagonal networks (from L2 to L1, label noise finds sparsity)",
    "stages": "Stages and workers (generations, weak to strong, local SGD, delays)",
    "statics": "Statics (the best possible error, hard phases, thresholds, best weight decay)",
}

LARGE = "-full_size.png"  # suffix of the picture that is drawn from stored full-size data
# modules without which a figure is skipped; the absence of any other module is a failure
OPTIONAL = ("sklearn",)


def skipped(record: dict[str, Any]) -> bool:
    """Whether a figure was skipped because an optional package is missing."""
    return record["verdict"] == "skipped"


def _judge(entry: Entry, data: xr.Dataset) -> dict[str, Any]:
    """Claim, verdict and findings of a figure, as a record stores them."""
    judgement = entry.judge(data)
    return {
        "claim": entry.claim_of(data),
        "verdict": judgement.verdict,
        "findings": [finding.plain() for finding in judgement.findings],
    }


def _sort_key(entry: Entry) -> tuple[int, bool, str]:
    """Sort by document, numbered figures first, then the others in the order of their judges."""
    numbered = entry.name.startswith("figure_")
    return list(DOCUMENTS).index(entry.document), not numbered, entry.name if numbered else ""


for document in DOCUMENTS:
    # the judges of a document register its figures
    importlib.import_module(f"sgdynamics_reproductions.gallery.judges.{document}")
ENTRIES = tuple(sorted(LISTED, key=_sort_key))


def find(document: str, number: str) -> Entry:
    """Find a figure by its document and its number (2, b1) or name."""
    document = checks.choice("document", document.replace("-", "_"), tuple(DOCUMENTS))
    entries = {entry.number: entry for entry in ENTRIES if entry.document == document}
    wanted = number.lower().replace("-", "_").removeprefix("figure_").replace(".", "")
    return entries[checks.choice("figure", wanted, tuple(entries))]


UNFINISHED = "unfinished"


def make(
    entry: Entry,
    out: str | Path,
    *,
    quick: bool = True,
    seed: int = 0,
    again: bool = False,  # style: ok, public argument
    seconds: float | None = None,
) -> dict[str, Any]:
    """Make a figure in the folder ``out`` and return its record.

    The files are a PNG, the data as NetCDF, and the record as JSON: parameters, claim, verdict, run
    time, and the error of a figure that failed. A quick figure with stored full-size data has a
    second PNG, which is drawn from these data.

    A complete figure of the same size and seed is read and judged again, unless ``again`` is True.
    A figure whose optional package is missing has the verdict "skipped" and the installation
    command as its error. With ``seconds`` finished pieces are stored in the folder "pieces", and
    the verdict is "unfinished" when the time is over; the same call then continues.
    """
    folder, stem = Path(out), f"{entry.document}-{entry.number}"
    folder.mkdir(parents=True, exist_ok=True)
    picture, data_file, about = (folder / f"{stem}.{ending}" for ending in ("png", "nc", "json"))
    large = folder / f"{stem}{LARGE}"
    has_full_size = quick and stem in full_size()
    whole = large.is_file() or not has_full_size
    if not again and whole and picture.is_file() and data_file.is_file():
        stored_record = _read_record(about)
        same_call = stored_record and (stored_record["quick"], stored_record["seed"]) == (
            quick,
            seed,
        )
        if stored_record and same_call and not stored_record["error"]:
            # the judge may have changed since the figure was made
            data = load(data_file)
            return {**stored_record, **_judge(entry, data), "made": False}
    began, previous = time.perf_counter(), _read_record(about)
    record: dict[str, Any] = {
        "document": entry.document,
        "number": entry.number,
        "line": entry.line,
        "claim": entry.claim,
    }
    record |= {
        "verdict": "",
        "findings": [],
        "parameters": {},
        "quick": quick,
        "seed": seed,
        "version": __version__,
        "error": "",
        "files": [],
    }
    try:
        with (
            nullcontext()
            if seconds is None
            else pieces.time_limit(folder / "pieces" / stem, seconds)
        ):
            fig, data = entry.function(quick=quick, seed=seed)
        if has_full_size:
            _draw_full_size(stem, large)
            add_caption(
                fig,
                f"This is a smaller size. At full size, {verdict_with_remark(full_size()[stem])}",
            )
        _write_picture(fig, picture)
        save(data, data_file)
        record |= {**_judge(entry, data), "parameters": _parameters(data)}
        record["files"] = [str(picture), str(data_file), *([str(large)] if has_full_size else [])]
    except TimeoutError as error:
        record |= {"verdict": UNFINISHED, "error": str(error)}
    except Exception as error:  # reported on the page; the other figures are made
        message = " ".join(str(error).split())
        missing = isinstance(error, ImportError) and error.name in OPTIONAL
        record |= (
            {"verdict": "skipped", "error": message}
            if missing
            else {"error": f"{type(error).__name__}: {message}"}
        )
    continued = (
        previous is not None
        and previous["verdict"] == UNFINISHED
        and (previous["quick"], previous["seed"]) == (quick, seed)
    )
    # the run time includes that of earlier calls that were not finished
    earlier_seconds = previous["seconds"] if previous and continued else 0.0
    record["seconds"] = round(time.perf_counter() - began + earlier_seconds, 1)
    with files.atomic_file(about) as unfinished:
        unfinished.write_text(json.dumps(record, indent=1))
    return {**record, "made": True}


def _write_picture(fig: Figure, picture: Path) -> None:
    with files.atomic_file(picture) as unfinished:
        fig.savefig(unfinished, dpi=110, format="png", bbox_inches="tight")
    _close(fig)


def _draw_full_size(stem: str, picture: Path) -> None:
    """Draw the stored full-size data of a figure."""
    fig, record = drawing_of(stem)(load_full_size(stem)), full_size()[stem]
    add_caption(
        fig,
        f"Full size, made once on {record['device']} in {record['seconds']} s: "
        f"{verdict_with_remark(record)}",
    )
    _write_picture(fig, picture)


def _read_record(about: Path) -> dict[str, Any] | None:
    try:
        return json.loads(about.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _parameters(data: xr.Dataset) -> dict[str, Any]:
    """Numbers and short texts among the attributes: sizes, rates, seeds."""
    skip = ("claim", "verdict", "caption", "units")
    plain = {
        str(name): value.item() if isinstance(value, np.generic) else value
        for name, value in data.attrs.items()
        if name not in skip
    }
    return {
        name: value
        for name, value in plain.items()
        if isinstance(value, (int, float)) or (isinstance(value, str) and len(value) < 60)
    }


def _close(fig: Figure) -> None:
    """Close a figure, because pyplot keeps its figures in memory."""
    import matplotlib.pyplot as plt

    plt.close(fig)


def make_all(
    out: str | Path,
    *,
    quick: bool = True,
    seed: int = 0,
    again: bool = False,  # style: ok, public argument
    only: Iterable[str] = (),
    log: TextIO | None = None,
    seconds: float | None = None,
) -> list[dict[str, Any]]:
    """Make all figures, or those in ``only``, write the pages, and return the records.

    The entries of ``only`` are documents or document/number. After ``seconds`` the call ends with
    the finished pieces of the current figure stored; the same call then continues.
    """
    from sgdynamics_reproductions.gallery.page import write_pages

    chosen = _select(list(only))
    stream, records, run_times = log or sys.stderr, [], []
    deadline = (
        None if seconds is None else time.monotonic() + checks.number("seconds", seconds, above=0.0)
    )
    for index, entry in enumerate(chosen):
        record = make(
            entry,
            out,
            quick=quick,
            seed=seed,
            again=again,
            seconds=None if deadline is None else deadline - time.monotonic(),
        )
        records.append(record)
        if record["made"]:
            run_times.append(record["seconds"])
        remaining = (
            f", about {np.mean(run_times) * (len(chosen) - index - 1) / 60:.0f} min left"
            if run_times and index + 1 < len(chosen)
            else ""
        )
        state = f"{record['seconds']} s" if record["made"] else "already made"
        word = record["verdict"] if skipped(record) or record["verdict"] == UNFINISHED else ""
        outcome = record["error"] or record["verdict"].split(":")[0]
        if word:
            outcome = f"{word}: {record['error']}"
        position = f"[{index + 1}/{len(chosen)}] {entry.document} {entry.number}"
        print(f"{position}: {outcome} ({state}{remaining})", file=stream)
        stream.flush()
        # after each figure, so that the page is complete whenever the call is interrupted
        write_pages(out, _merge_records(Path(out), records))
        if index + 1 < len(chosen) and chosen[index + 1].document != entry.document:
            _clear_programs()
    return records


def _merge_records(folder: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of this call and of earlier calls in the folder, in the order of ENTRIES."""
    shown = {(record["document"], record["number"]): record for record in records}
    for entry in ENTRIES:
        stem = f"{entry.document}-{entry.number}"
        earlier = _read_record(folder / f"{stem}.json")
        if earlier and (earlier["error"] or (folder / f"{stem}.png").is_file()):
            shown.setdefault((entry.document, entry.number), earlier)
    keys = [(entry.document, entry.number) for entry in ENTRIES]
    return [shown[key] for key in keys if key in shown]


def _select(only: list[str]) -> list[Entry]:
    if not only:
        return list(ENTRIES)
    chosen = []
    for name in only:
        document, _, number = name.partition("/")
        if number:
            chosen.append(find(document, number))
        else:
            checks.choice("only", document.replace("-", "_"), tuple(DOCUMENTS))
            chosen += [entry for entry in ENTRIES if entry.document == document.replace("-", "_")]
    return [entry for entry in ENTRIES if entry in chosen]


def _clear_programs() -> None:
    """Free the compiled programs of a document, which the next document does not use."""
    import jax

    jax.clear_caches()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sgdynamics_reproductions.gallery",
        description="Make every figure of the documents.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        action="store_true",
        default=True,
        help="small sizes, about half a minute per figure (the default)",
    )
    size.add_argument(
        "--full",
        action="store_true",
        help="sizes of the documents: hours, and a GPU for rough_landscapes",
    )
    parser.add_argument("--out", default="output/gallery", help="output folder (output/gallery)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="make existing figures again")
    parser.add_argument(
        "--seconds",
        type=float,
        help="time limit; finished pieces are stored, and the same call continues (exit code 3)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="DOCUMENT[/NUMBER]",
        help="make only these figures; may be repeated",
    )
    options = parser.parse_args(arguments)
    try:
        records = make_all(
            options.out,
            quick=not options.full,
            seed=options.seed,
            again=options.again,
            only=options.only,
            seconds=options.seconds,
        )
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    skipped_count = sum(skipped(record) for record in records)
    made_count = sum(not record["error"] for record in records)
    remark = f", {skipped_count} skipped" if skipped_count else ""
    print(f"{made_count} of {len(records)} figures{remark}: {Path(options.out) / 'index.html'}")
    unfinished = sum(record["verdict"] == UNFINISHED for record in records)
    if made_count + skipped_count + unfinished < len(records):
        return 1
    return 3 if unfinished else 0
