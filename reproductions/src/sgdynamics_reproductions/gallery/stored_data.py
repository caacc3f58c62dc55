"""Full-size figures that were made once on a GPU, with data and verdicts stored in the package.

The folder ``full_size`` has one file per figure, ``document-number.nc``, and the verdicts with
device, run time and parameters in ``verdicts.json``. A test judges the stored data again.
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

from sgdynamics import load
from sgdynamics.base import checks

FOLDER = Path(__file__).parent / "full_size"
# figure 2 of rough_landscapes is stored run by run, with one group per algorithm
GROUPS = {"GD": "GD", "SGD": "SGD", "p-SGD": "PSGD"}


@cache
def full_size() -> dict[str, dict[str, Any]]:
    """Verdict, device, seconds and parameters of the stored figures, by their document-number."""
    return json.loads((FOLDER / "verdicts.json").read_text(encoding="utf-8"))


def verdict_with_remark(record: dict[str, Any]) -> str:
    """A full-size verdict, followed by the remark that explains it where one is stored."""
    return record["verdict"] + (f" ({record['remark']})" if "remark" in record else "")


def load_full_size(stem: str) -> xr.Dataset:
    """The full-size data of the figure document-number, in the form that its function returns."""
    path = FOLDER / f"{stem}.nc"
    return _join_groups(path) if stem == "rough_landscapes-2" else load(path)


def _join_groups(path: Path) -> xr.Dataset:
    """Data of figure 2 of rough_landscapes from results of ``simulate`` in one group per algorithm.

    The stored training risk is the mean of (h^2 - h0^2)^2/2, twice the loss of the paper.
    """
    from sgdynamics_reproductions.rough_landscapes.main_figures import three_of, words_of_2

    results = [load(path, group=group) for group in GROUPS.values()]
    datasets = [
        xr.Dataset(
            {
                "m": (("run", "time"), result["M"].values[:, :, 0, 0]),
                "loss": (("run", "time"), result["train_risk"].values / 2),
            },
            {"t": ("time", result["paper_time"].values)},
        )
        for result in results
    ]
    data = three_of(datasets, full_size()["rough_landscapes-2"]["parameters"])
    data.attrs |= words_of_2(data)
    return data


def drawing_of(stem: str) -> Callable[[xr.Dataset], Figure]:
    """The function that draws the data of the figure document-number."""
    document, _, number = stem.partition("-")
    module = importlib.import_module(f"sgdynamics_reproductions.{document}.pictures")
    return getattr(module, f"draw_{number}")


def draw_full_size(document: str, number: str) -> tuple[Figure, xr.Dataset]:
    """Draw a figure at full size from its stored data, without computing anything."""
    stem = f"{document.replace('-', '_')}-{number}"
    checks.choice("figure", stem, tuple(full_size()))
    data = load_full_size(stem)
    return drawing_of(stem)(data), data


def add_caption(fig: Figure, text: str) -> None:
    """Write a caption in small print below a figure."""
    fig.draw_without_rendering()
    for legend in fig.legends:
        # a legend "outside" the axes would move to the edge of the saved picture, over the caption
        box = legend.get_window_extent().transformed(fig.transFigure.inverted())
        legend.borderaxespad = 0.0
        legend.set_bbox_to_anchor((box.x0, box.y0), fig.transFigure)
        legend.set_loc("lower left")
    fig.set_layout_engine("none")
    lines = "\n".join(textwrap.wrap(text, int(14 * fig.get_figwidth())))
    fig.text(
        0.5, -0.02, lines.replace("$", "\\$"), ha="center", va="top", fontsize="small", color="0.25"
    )
