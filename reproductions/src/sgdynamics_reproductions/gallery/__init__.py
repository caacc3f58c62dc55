"""The gallery: every figure of the documents, made, kept with its data, and judged by them.

`python -m sgdynamics_reproductions.gallery --quick --out output/gallery` makes them all: picture
(PNG), data (NetCDF), parameters, claim, verdict and time of each, and pages that collect them
(index.md, index.html). A figure that fails is reported there and the rest goes on, as is one that
is skipped for want of an optional package; what is there already is not made again unless --again.
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
from typing import Any

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
    stored,
    verdict_with_remark,
)
from sgdynamics_reproductions.gallery.stored_data import draw_full_size as draw_full_size

DOCUMENTS = {
    "escaping_mediocrity": "Escaping mediocrity (Arnaboldi, Krzakala, Loureiro, Stephan)",
    "effective_dynamics": "High-dimensional limit theorems for SGD (Ben Arous, Gheissari, Jagannath)",
    "rough_landscapes": "Stochasticity helps to navigate rough landscapes (Mignacco, Urbani, Zdeborova)",
    "quadratic_networks": "Escape dynamics and implicit bias of quadratic networks (arXiv:2604.03068)",
    "dimension_free": "Dimension-free limits of SGD for two-layer networks (Loureiro, slides)",
    "several_inputs": "Samples of several inputs and own rules (attention, sequences, autoencoders, perceptrons, GANs)",
    "scaling_laws": "Scaling laws (power-law spectra, compute-optimal random features, real samples, emergence)",
    "optimisers": "Optimisers (momentum, reuse, Muon, clipping, Adam, noise for privacy: their ODEs on runs)",
    "protocols": "Protocols (the best learning rates, replay, dropout, decay, curricula, schedules and batches)",
    "epochs": "Epochs (what a sample is worth when it is seen again, three orders, features that are unlearned)",
}

LARGE = "-full_size.png"  # behind document-number: the picture of data stored at full size
OPTIONAL = (
    "sklearn",
)  # modules without which a figure is skipped; that any other cannot be imported is a failure


def skipped(one: dict[str, Any]) -> bool:
    """Whether a figure was not made for want of an optional package, which is no failure."""
    return one["verdict"] == "skipped"


def _judged(entry: Entry, data: xr.Dataset) -> dict[str, Any]:
    """What is kept of a judgement."""
    found = entry.judge(data)
    return {
        "claim": entry.claimed(data),
        "verdict": found.verdict,
        "findings": [one.plain() for one in found.findings],
    }


def _place(entry: Entry) -> tuple[int, bool, str]:
    """By document; numbered figures first, then the others as their judges stand."""
    numbered = entry.name.startswith("figure_")
    return list(DOCUMENTS).index(entry.document), not numbered, entry.name if numbered else ""


for document in DOCUMENTS:
    importlib.import_module(
        f"sgdynamics_reproductions.gallery.judges.{document}"
    )  # its judges list their figures
ENTRIES = tuple(sorted(LISTED, key=_place))


def find(document: str, number: str) -> Entry:
    """The figure of a document by its number (2, b1) or name."""
    document = checks.choice("document", document.replace("-", "_"), tuple(DOCUMENTS))
    here = {one.number: one for one in ENTRIES if one.document == document}
    wanted = number.lower().replace("-", "_").removeprefix("figure_").replace(".", "")
    return here[checks.choice("figure", wanted, tuple(here))]


UNFINISHED = "unfinished"


def make(
    entry: Entry,
    out: str | Path,
    *,
    quick: bool = True,
    seed: int = 0,
    again: bool = False,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Make a figure in the folder `out`: PNG, NetCDF, and a JSON with parameters, claim, verdict,
    time, and the error if it failed.

    A quick figure whose full-size data are stored has a second PNG, drawn from these data.

    What is there whole, of the same size and seed, is read and not made again, unless it had failed
    or `again`. A figure whose optional package is not installed has the verdict "skipped", and what
    to install as its error. With `seconds` what is finished of a figure is kept in the folder
    "pieces", and it is "unfinished" when they are over: the same call goes on from there.
    """
    folder, stem = Path(out), f"{entry.document}-{entry.number}"
    folder.mkdir(parents=True, exist_ok=True)
    picture, data_file, about = (folder / f"{stem}.{ending}" for ending in ("png", "nc", "json"))
    large = folder / f"{stem}{LARGE}"
    has_full_size = quick and stem in full_size()
    whole = large.is_file() or not has_full_size
    if not again and whole and picture.is_file() and data_file.is_file():
        kept = _kept(about)
        if kept and not kept["error"] and (kept["quick"], kept["seed"]) == (quick, seed):
            # judged again: the words may have changed since
            data = load(data_file)
            return {**kept, **_judged(entry, data), "made": False}
    begin, before = time.perf_counter(), _kept(about)
    found: dict[str, Any] = {
        "document": entry.document,
        "number": entry.number,
        "line": entry.line,
        "claim": entry.claim,
    }
    found |= {
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
        with nullcontext() if seconds is None else pieces.kept(folder / "pieces" / stem, seconds):
            fig, data = entry.function(quick=quick, seed=seed)
        if has_full_size:
            _draw_full_size(stem, large)
            add_caption(
                fig,
                f"This is a smaller size. At full size, {verdict_with_remark(full_size()[stem])}",
            )
        _write_picture(fig, picture)
        save(data, data_file)
        found |= {**_judged(entry, data), "parameters": _parameters(data)}
        found["files"] = [str(picture), str(data_file), *([str(large)] if has_full_size else [])]
    except TimeoutError as error:
        found |= {"verdict": UNFINISHED, "error": str(error)}
    except Exception as error:  # the other figures go on, and the page says what happened
        said = " ".join(str(error).split())
        missing = isinstance(error, ImportError) and error.name in OPTIONAL
        found |= (
            {"verdict": "skipped", "error": said}
            if missing
            else {"error": f"{type(error).__name__}: {said}"}
        )
    same = (
        before is not None
        and before["verdict"] == UNFINISHED
        and (before["quick"], before["seed"]) == (quick, seed)
    )
    found["seconds"] = round(
        time.perf_counter() - begin + (before["seconds"] if before and same else 0.0), 1
    )  # of all sittings
    with files.atomic_file(about) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1))
    return {**found, "made": True}


def _write_picture(fig: Figure, picture: Path) -> None:
    with files.atomic_file(picture) as unfinished:
        fig.savefig(unfinished, dpi=110, format="png", bbox_inches="tight")
    _close(fig)


def _draw_full_size(stem: str, picture: Path) -> None:
    """Draw the stored full-size data of a figure."""
    fig, record = drawing_of(stem)(stored(stem)), full_size()[stem]
    add_caption(
        fig,
        f"Full size, made once on {record['device']} in {record['seconds']} s: "
        f"{verdict_with_remark(record)}",
    )
    _write_picture(fig, picture)


def _kept(about: Path) -> dict[str, Any] | None:
    try:
        return json.loads(about.read_text())
    except (OSError, ValueError):
        return None


def _parameters(data: xr.Dataset) -> dict[str, Any]:
    """The numbers and short words among the attributes: sizes, rates, seeds."""
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
    """Figures made by pyplot stay in memory until closed."""
    import matplotlib.pyplot as plt

    plt.close(fig)


def make_all(
    out: str | Path,
    *,
    quick: bool = True,
    seed: int = 0,
    again: bool = False,
    only: Iterable[str] = (),
    say_to: Any = None,
    seconds: float | None = None,
) -> list[dict[str, Any]]:
    """Make every figure (or those whose document or document/number is in `only`) and write the
    pages; returns what `make` does.

    After so many `seconds` it ends, figures that are not finished are kept in pieces, and the same
    call goes on from there.
    """
    from sgdynamics_reproductions.gallery.page import write_pages

    chosen = _chosen(list(only))
    stream, found, spent = say_to or sys.stderr, [], []
    until = (
        None if seconds is None else time.monotonic() + checks.number("seconds", seconds, above=0.0)
    )
    for index, entry in enumerate(chosen):
        one = make(
            entry,
            out,
            quick=quick,
            seed=seed,
            again=again,
            seconds=None if until is None else until - time.monotonic(),
        )
        found.append(one)
        if one["made"]:
            spent.append(one["seconds"])
        left = (
            f", about {np.mean(spent) * (len(chosen) - index - 1) / 60:.0f} min left"
            if spent and index + 1 < len(chosen)
            else ""
        )
        state = f"{one['seconds']} s" if one["made"] else "there already"
        word = one["verdict"] if skipped(one) or one["verdict"] == UNFINISHED else ""
        said = f"{word}: {one['error']}" if word else one["error"] or one["verdict"].split(":")[0]
        print(
            f"[{index + 1}/{len(chosen)}] {entry.document} {entry.number}: {said} ({state}{left})",
            file=stream,
        )
        stream.flush()
        write_pages(
            out, _all_there(Path(out), found)
        )  # after each, so that the page is there whenever this is stopped
        if index + 1 < len(chosen) and chosen[index + 1].document != entry.document:
            _forget()
    return found


def _all_there(folder: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was just made, and what an earlier call left in the folder, in the order of the list."""
    shown = {(one["document"], one["number"]): one for one in found}
    for entry in ENTRIES:
        stem = f"{entry.document}-{entry.number}"
        kept = _kept(folder / f"{stem}.json")
        if kept and (kept["error"] or (folder / f"{stem}.png").is_file()):
            shown.setdefault((entry.document, entry.number), kept)
    return [
        shown[key] for key in ((entry.document, entry.number) for entry in ENTRIES) if key in shown
    ]


def _chosen(only: list[str]) -> list[Entry]:
    if not only:
        return list(ENTRIES)
    chosen = []
    for name in only:
        document, _, number = name.partition("/")
        if number:
            chosen.append(find(document, number))
        else:
            checks.choice("only", document.replace("-", "_"), tuple(DOCUMENTS))
            chosen += [one for one in ENTRIES if one.document == document.replace("-", "_")]
    return [one for one in ENTRIES if one in chosen]


def _forget() -> None:
    """Programs of one document are of no use to the next, and there are many of them."""
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
        help="small sizes, half a minute a figure (this is the default)",
    )
    size.add_argument(
        "--full",
        action="store_true",
        help="the documents' sizes: hours, and a GPU for the rough landscapes",
    )
    parser.add_argument("--out", default="output/gallery", help="folder (output/gallery)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="make again what is there")
    parser.add_argument(
        "--seconds",
        type=float,
        help="end after so long, and keep what is finished for the same call to go on (exit code 3)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="DOCUMENT[/NUMBER]",
        help="only this; may be repeated",
    )
    given = parser.parse_args(arguments)
    try:
        found = make_all(
            given.out,
            quick=not given.full,
            seed=given.seed,
            again=given.again,
            only=given.only,
            seconds=given.seconds,
        )
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    left_out = sum(skipped(one) for one in found)
    made = sum(not one["error"] for one in found)
    print(
        f"{made} of {len(found)} figures{f', {left_out} skipped' if left_out else ''}: {Path(given.out) / 'index.html'}"
    )
    unfinished = sum(one["verdict"] == UNFINISHED for one in found)
    if made + left_out + unfinished < len(found):
        return 1
    return 3 if unfinished else 0
