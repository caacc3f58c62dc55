"""Figures at full size that took a GPU to make: verdicts that come with the package, and data in docs/gallery, drawn anew.

The data are part of the repository and not of an installed package: `stored` is None there, and quick figures go without their pictures.
"""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from sgdynamics.base import checks
from sgdynamics.results.datasets import load

FOLDER = Path(__file__).parents[3] / "docs/gallery"  # of a checkout
IN_GROUPS = {
    "GD": "GD",
    "SGD": "SGD",
    "p-SGD": "PSGD",
}  # of the file of figure 2, which has an algorithm a group


@cache
def full_size() -> dict[str, dict[str, Any]]:
    """Verdicts on full-size figures that took a GPU to make, by document-number: verdict, device, seconds, parameters.

    Their data are in docs/gallery, where a test judges them again.
    """
    return json.loads((Path(__file__).parent / "full_size.json").read_text(encoding="utf-8"))


def remarked(found: dict[str, Any]) -> str:
    """A full-size verdict with the remark that explains it, if there is one."""
    return found["verdict"] + (f" ({found['remark']})" if "remark" in found else "")


def stored(stem: str) -> xr.Dataset | None:
    """The full-size data of document-number, as its figure would give them; None where there are none, as in an installed package."""
    if stem == "rough_landscapes-2":
        return _runs_of_figure_2(FOLDER / "rough_landscapes_figure_2.nc")
    file = FOLDER / f"full_size/{stem}.nc"
    return load(file) if file.is_file() else None


def _runs_of_figure_2(file: Path) -> xr.Dataset | None:
    """Kept as `simulate` returned them: M, and the mean of (h^2 - h0^2)^2/2 where the paper has a quarter."""
    from sgdynamics.papers.rough_landscapes.main_figures import three_of, words_of_2

    if not file.is_file():
        return None
    found = [load(file, group=name) for name in IN_GROUPS.values()]
    each = [
        xr.Dataset(
            {
                "m": (("run", "time"), one["M"].values[:, :, 0, 0]),
                "loss": (("run", "time"), one["train_risk"].values / 2),
            },
            {"t": ("time", one["paper_time"].values)},
        )
        for one in found
    ]
    data = three_of(each, full_size()["rough_landscapes-2"]["parameters"])
    data.attrs |= words_of_2(data)
    return data


def drawing_of(stem: str) -> Callable[[xr.Dataset], Figure]:
    """What draws the data of document-number."""
    document, _, number = stem.partition("-")
    return getattr(
        importlib.import_module(f"sgdynamics.papers.{document}.pictures"), f"draw_{number}"
    )


def draw_full_size(document: str, number: str) -> tuple[Figure, xr.Dataset]:
    """The picture of a figure at full size with its data, from the file that is stored in the repository: nothing is computed."""
    stem = f"{document.replace('-', '_')}-{number}"
    checks.choice("figure", stem, tuple(full_size()))
    data = stored(stem)
    if data is None:
        raise checks.reject(
            "figure",
            stem,
            f"its data are in docs/gallery of the repository, which is not at {FOLDER}: run in a checkout",
        )
    return drawing_of(stem)(data), data


def say_below(fig: Figure, words: str) -> None:
    """Small print under a picture."""
    fig.draw_without_rendering()
    for legend in fig.legends:
        # one "outside" the axes would stand at the edge of what is written, upon the small print
        box = legend.get_window_extent().transformed(fig.transFigure.inverted())
        legend.borderaxespad = 0.0
        legend.set_bbox_to_anchor((box.x0, box.y0), fig.transFigure)
        legend.set_loc("lower left")
    fig.set_layout_engine("none")
    said = "\n".join(textwrap.wrap(words, int(14 * fig.get_figwidth())))
    fig.text(
        0.5, -0.02, said.replace("$", "\\$"), ha="center", va="top", fontsize="small", color="0.25"
    )
