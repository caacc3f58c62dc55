"""The gallery: every figure of the five documents, made, kept with its data, and judged by them.

`python -m sgdynamics.gallery --quick --out output/gallery` makes them all: picture (PNG), data (NetCDF), parameters, claim, verdict and
time of each, and pages that collect them (index.md, index.html). A figure that fails is reported there and the rest goes on; what is
there already is not made again unless --again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import checks, files
from sgdynamics.gallery.claims import WORDS, Judgement
from sgdynamics.gallery.judges import dimension_free, effective_dynamics, escaping_mediocrity, quadratic_networks, rough_landscapes
from sgdynamics.results import load, save
from sgdynamics.version import __version__

DOCUMENTS = {
    "escaping_mediocrity": "Escaping mediocrity (Arnaboldi, Krzakala, Loureiro, Stephan)",
    "effective_dynamics": "High-dimensional limit theorems for SGD (Ben Arous, Gheissari, Jagannath)",
    "rough_landscapes": "Stochasticity helps to navigate rough landscapes (Mignacco, Urbani, Zdeborova)",
    "quadratic_networks": "Escape dynamics and implicit bias of quadratic networks (arXiv:2604.03068)",
    "dimension_free": "Dimension-free limits of SGD for two-layer networks (Loureiro, slides)",
}


@dataclass(frozen=True)
class Entry:
    """A figure: where its function is, one line of what it shows, what the document claims, and the judge of that."""

    document: str
    name: str
    line: str
    claim: str
    judge: Callable[[xr.Dataset], Judgement]

    @property
    def number(self) -> str:
        return self.name.removeprefix("figure_")

    @property
    def function(self) -> Callable[..., tuple[Any, xr.Dataset]]:
        return getattr(importlib.import_module(f"sgdynamics.papers.{self.document}"), self.name)

    def claimed(self, data: xr.Dataset) -> str:
        return str(data.attrs.get("claim", self.claim))

    def judged(self, data: xr.Dataset) -> Judgement:
        """What the judge says of the data: the verdict, the numbers measured, and the findings that it rests on."""
        return self.judge(data)

    def verdict(self, data: xr.Dataset) -> str:
        """ "reproduced: ...", "differs: ..." or "not decided at this size: ...", with the numbers measured."""
        return _verdict(self.judged(data))


def _verdict(found: Judgement) -> str:
    return f"{WORDS[found.holds]}: {found.words}"


def _judged(entry: Entry, data: xr.Dataset) -> dict[str, Any]:
    """What is kept of a judgement."""
    found = entry.judged(data)
    return {"claim": entry.claimed(data), "verdict": _verdict(found), "findings": [one.plain() for one in found.findings]}


def _entries() -> Iterable[Entry]:
    def of(document: str, *rows: tuple[str, str, str, Any]) -> Iterable[Entry]:
        return (Entry(document, *row) for row in rows)

    spread = "the SDE has the spread that the ODE lacks, and stochasticity hardly changes the exit time"
    dmft = "very good agreement between DMFT and the average of runs"
    yield from of(
        "escaping_mediocrity",
        ("figure_1", "SGD and SDE paths beside the ODE, p = 1", spread, escaping_mediocrity.exits_from_one_start),
        (
            "figure_2",
            "measured over predicted exit times against d",
            "annealed and quenched formulas describe the exit time at any d, and stochasticity can be neglected",
            escaping_mediocrity.exit_ratios,
        ),
        ("figure_3", "fixed and trained heads, p = 20 and 50", "exit times agree, what comes after differs", escaping_mediocrity.heads),
        ("figure_4", "the ODE against many runs, p = 5 and 20", "the ODE describes the mean of the runs", escaping_mediocrity.mean_of_runs),
        ("figure_5", "SGD and SDE paths beside the ODE, p = 2", spread, escaping_mediocrity.exits_from_one_start),
        (
            "figure_6",
            "the risk on the sphere, its Hessian at a start, and the samples to leave",
            "one direction down, to w*, and d - 1 flat ones: n ~ d log d samples to develop correlation with the signal",
            escaping_mediocrity.golf_course,
        ),
    )
    yield from of(
        "effective_dynamics",
        (
            "figure_1",
            "matrix PCA below and above its critical snr",
            "a stable, then an unstable diffusion of m, ending at +-sqrt(lambda - 1)",
            effective_dynamics.spiked_matrix,
        ),
        (
            "figure_2",
            "binary mixture: success, end points, fluctuations about an arc",
            "optimal with probability 1/2; fluctuations of rank 1 about the arcs of Prop. 4.2(2), which are unstable",
            effective_dynamics.binary_mixture,
        ),
        (
            "figure_3",
            "XOR mixture: success, end points, fluctuations about two arcs",
            "optimal with probability 3/32 (29/32 and 3/32 in the caption); fluctuations of rank 2 about the arcs, which are unstable",
            effective_dynamics.xor_mixture,
        ),
        (
            "order_of_limits",
            "success on XOR against N at fixed snr (not in the paper)",
            "3/32 holds where snr >> N; for N >> snr more runs succeed (ours)",
            effective_dynamics.order_of_limits,
        ),
    )
    yield from of(
        "rough_landscapes",
        (
            "figure_1",
            "gradient descent from warm starts, against DMFT",
            "averages follow DMFT; single runs get stuck",
            rough_landscapes.warm_starts,
        ),
        (
            "figure_2",
            "GD, SGD and p-SGD: share of runs that recover the signal",
            "9%, 30% and 99% of the runs recover",
            rough_landscapes.recovered_shares,
        ),
        (
            "figure_3",
            "single runs: plateaus and jumps",
            "GD has long plateaus, p-SGD has none, SGD is in between",
            rough_landscapes.plateaus,
        ),
        ("figure_4", "batch sizes, persistence times, temperatures", "intermediate noise is best", rough_landscapes.intermediate_noise),
        ("figure_5", "persistent SGD against its DMFT", dmft, rough_landscapes.follows_dmft),
        ("figure_6", "Langevin against its DMFT", dmft, rough_landscapes.follows_dmft),
        (
            "figure_7",
            "GD and p-SGD from random starts, growing N",
            "GD stays at a plateau, p-SGD recovers in a time like log N",
            rough_landscapes.random_starts,
        ),
        (
            "figure_b1",
            "ridge in place of the sphere",
            "(B.8) gives the error; double descent in time at small ridge",
            rough_landscapes.ridges,
        ),
        (
            "figure_b2",
            "gradients divided by the batch fraction, and not",
            "dividing is better for p-SGD, not dividing for SGD",
            rough_landscapes.rescaled_gradient,
        ),
        ("figure_b3", "smaller and smaller learning rates", "SGD becomes GD, p-SGD does not", rough_landscapes.small_rates),
        (
            "figure_b4",
            "single runs at several persistence times",
            "longer persistence leaves fewer plateaus, and delays the start",
            rough_landscapes.persistence,
        ),
    )
    yield from of(
        "quadratic_networks",
        (
            "figure_1",
            "all overlaps and the error: ODE and SGD, p = 6, p* = 3",
            "runs of SGD lie on the ODE",
            quadratic_networks.runs_on_the_ode,
        ),
        (
            "figure_2",
            "samples to leave against eta; the best eta against p",
            "there is a best eta, and it is linear in p",
            quadratic_networks.best_rates,
        ),
        (
            "figure_3",
            "distance to the predicted solution",
            "the start predicts which zero-error solution is reached",
            quadratic_networks.predicted_solution,
        ),
        (
            "figure_4",
            "the conserved matrix S",
            "S is constant through learning (ODE); SGD moves it by its noise alone (ours)",
            quadratic_networks.conserved,
        ),
        (
            "figure_5",
            "degrees of freedom against width",
            "N p - p (p - 1)/2 up to p = N, N (N + 1)/2 beyond",
            quadratic_networks.numbers_agree,
        ),
        (
            "figure_6",
            "dimension of the solution manifold",
            "p (p - 1)/2 - (p - m)(p - m - 1)/2, m = min(p*, N)",
            quadratic_networks.numbers_agree,
        ),
        (
            "escape_times",
            "escape times against width (not in the paper)",
            "more students change only the prefactor of (13), not the rate 16/(p p*)",
            quadratic_networks.escape_rates,
        ),
    )
    yield from of(
        "dimension_free",
        (
            "regimes",
            "the map of the regimes, with SGD against every limit in its corners",
            "gamma -> 0 is gradient flow, d -> infinity an ODE with the noise of SGD, p -> infinity a density of the units",
            dimension_free.regimes,
        ),
        ("classical", "gamma -> 0: gradient flow", "as gamma -> 0 one-pass SGD follows gradient flow", dimension_free.classical),
        (
            "high_dimensional",
            "d -> infinity: the ODE",
            "the deviation from the ODE is at most exp(C t) sqrt(gamma/(d p))",
            dimension_free.high_dimensional,
        ),
        (
            "mean_field",
            "p -> infinity: the density of the units",
            "as p -> infinity SGD follows the density of (m, q)",
            dimension_free.mean_field,
        ),
        (
            "mean_field_high_dimension",
            "p, d -> infinity together",
            "rows become orthogonal off the signal, like p^-1/2 + d^-1/2",
            dimension_free.mean_field_high_dimension,
        ),
        (
            "noise_matters",
            "what the noise of SGD does",
            "a spread that the ODE lacks, and no change in the order of the exit time",
            dimension_free.noise_matters,
        ),
        (
            "width_matters",
            "what width does to the exit time",
            "overparametrisation gains a constant factor, no power of d",
            dimension_free.width_matters,
        ),
        ("single_index", "samples against d for information exponents 1 to 4", "n ~ d, d log d, d^2, d^3", dimension_free.single_index),
        (
            "optimal_schedules",
            "optimal learning-rate schedules",
            "annealing gains over the best constant rate, in the ODE and in SGD (ours)",
            dimension_free.optimal_schedules,
        ),
    )


ENTRIES = tuple(_entries())


def find(document: str, number: str) -> Entry:
    """The figure of a document by its number (2, b1) or name."""
    document = checks.choice("document", document.replace("-", "_"), tuple(DOCUMENTS))
    here = {one.number: one for one in ENTRIES if one.document == document}
    wanted = number.lower().replace("-", "_").removeprefix("figure_").replace(".", "")
    return here[checks.choice("figure", wanted, tuple(here))]


@cache
def full_size() -> dict[str, dict[str, Any]]:
    """Verdicts on full-size figures that took a GPU to make, by document-number: verdict, device, seconds, parameters.

    Their data are in docs/gallery, where a test judges them again.
    """
    return json.loads((Path(__file__).parent / "full_size.json").read_text(encoding="utf-8"))


def remarked(found: dict[str, Any]) -> str:
    """A full-size verdict with the remark that explains it, if there is one."""
    return found["verdict"] + (f" ({found['remark']})" if "remark" in found else "")


def make(entry: Entry, out: str | Path, *, quick: bool = True, seed: int = 0, again: bool = False) -> dict[str, Any]:
    """Make a figure in the folder `out`: PNG, NetCDF, and a JSON with parameters, claim, verdict, time, and the error if it failed.

    What is there whole, of the same size and seed, is read and not made again, unless it had failed or `again`.
    """
    folder, stem = Path(out), f"{entry.document}-{entry.number}"
    folder.mkdir(parents=True, exist_ok=True)
    picture, data_file, about = (folder / f"{stem}.{ending}" for ending in ("png", "nc", "json"))
    if not again and picture.is_file() and data_file.is_file():
        kept = _kept(about)
        if kept and not kept["error"] and (kept["quick"], kept["seed"]) == (quick, seed):
            # judged again: the words may have changed since
            data = load(data_file)
            return {**kept, **_judged(entry, data), "made": False}
    begin = time.perf_counter()
    found: dict[str, Any] = {"document": entry.document, "number": entry.number, "line": entry.line, "claim": entry.claim}
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
        fig, data = entry.function(quick=quick, seed=seed)
        with files.whole(picture) as unfinished:
            fig.savefig(unfinished, dpi=110, format="png")
        save(data, data_file)
        _close(fig)
        found |= {**_judged(entry, data), "parameters": _parameters(data)}
        found["files"] = [str(picture), str(data_file)]
    except Exception as error:  # the other figures go on, and the page says what happened
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    found["seconds"] = round(time.perf_counter() - begin, 1)
    with files.whole(about) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1))
    return {**found, "made": True}


def _kept(about: Path) -> dict[str, Any] | None:
    try:
        return json.loads(about.read_text())
    except (OSError, ValueError):
        return None


def _parameters(data: xr.Dataset) -> dict[str, Any]:
    """The numbers and short words among the attributes: sizes, rates, seeds."""
    skip = ("claim", "verdict", "caption", "units")
    plain = {str(name): value.item() if isinstance(value, np.generic) else value for name, value in data.attrs.items() if name not in skip}
    return {name: value for name, value in plain.items() if isinstance(value, (int, float)) or (isinstance(value, str) and len(value) < 60)}


def _close(fig: Any) -> None:
    """Figures made by pyplot stay in memory until closed."""
    import matplotlib.pyplot as plt

    plt.close(fig)


def make_all(
    out: str | Path, *, quick: bool = True, seed: int = 0, again: bool = False, only: Iterable[str] = (), say_to: Any = None
) -> list[dict[str, Any]]:
    """Make every figure (or those whose document or document/number is in `only`) and write the pages; returns what `make` does."""
    from sgdynamics.gallery.page import write_pages

    chosen = _chosen(list(only))
    stream, found, spent = say_to or sys.stderr, [], []
    for index, entry in enumerate(chosen):
        one = make(entry, out, quick=quick, seed=seed, again=again)
        found.append(one)
        if one["made"]:
            spent.append(one["seconds"])
        left = f", about {np.mean(spent) * (len(chosen) - index - 1) / 60:.0f} min left" if spent and index + 1 < len(chosen) else ""
        state = f"{one['seconds']} s" if one["made"] else "there already"
        print(
            f"[{index + 1}/{len(chosen)}] {entry.document} {entry.number}: {one['error'] or one['verdict'].split(':')[0]} ({state}{left})",
            file=stream,
        )
        stream.flush()
        write_pages(out, _all_there(Path(out), found))  # after each, so that the page is there whenever this is stopped
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
    return [shown[key] for key in ((entry.document, entry.number) for entry in ENTRIES) if key in shown]


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
    parser = argparse.ArgumentParser(prog="python -m sgdynamics.gallery", description="Make every figure of the five documents.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", default=True, help="small sizes, half a minute a figure (this is the default)")
    size.add_argument("--full", action="store_true", help="the documents' sizes: hours, and a GPU for the rough landscapes")
    parser.add_argument("--out", default="output/gallery", help="folder (output/gallery)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="make again what is there")
    parser.add_argument("--only", action="append", default=[], metavar="DOCUMENT[/NUMBER]", help="only this; may be repeated")
    given = parser.parse_args(arguments)
    try:
        found = make_all(given.out, quick=not given.full, seed=given.seed, again=given.again, only=given.only)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    failed = [one for one in found if one["error"]]
    print(f"{len(found) - len(failed)} of {len(found)} figures: {Path(given.out) / 'index.html'}")
    return 1 if failed else 0
