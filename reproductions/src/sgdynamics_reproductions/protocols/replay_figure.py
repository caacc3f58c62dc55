"""Figure 2: how much of a second task, so that the first one is not forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import finish, subplots
from sgdynamics_reproductions.protocols.protocol_data import (
    draw_control,
    draw_risk,
    protocol_dataset,
)
from sgdynamics_reproductions.protocols.reference import best, two_tasks, with_share

DIMENSION, ALPHA = 1000, 10.0


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The best share of a new task while an old one is replayed, and the risks of both under it,
    the best constant and no replay.

    Parameters
    ----------
    quick : bool, default False
        Fewer pieces and runs, in about a minute.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Two erf units with a head for each of two tasks; the teachers overlap by .3. Task one was
    learned to alpha = 30. Then alpha = 10 more, of which a share is task two; the mean risk of both
    counts at the end. The share enters linearly: it is best at its bounds but for a singular arc
    between them. Circles: the exact chain at d = 1000.

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    pieces, runs = (40, 100) if quick else (80, 1000)
    tasks, algorithm, initial_state = two_tasks(pieces)
    both = tasks.replace(probabilities=[0.5, 0.5])
    result = best(tasks, algorithm, initial_state, ALPHA, {"two": (0, 1)}, pieces, evaluate=both)
    measured = result.confirm(dimension=DIMENSION, runs=runs, seed=seed, progress=False)
    data = protocol_dataset({"replay": result}, {"replay": measured}, seed)
    shares = {
        "optimum": result.protocol["two"],
        "best constant": np.full(pieces, result.constant["two"]),
        "no replay": np.ones(pieces),
    }
    risks = []
    for share in shares.values():
        line = with_share(tasks, algorithm, initial_state, result.edges, share)
        risks.append(line.context_risk.transpose("run", "time", "context").values[0])
    data = data.assign(
        task_risks=(
            ("share", "edge", "task"),
            np.array(risks),
            {"long_name": "risk of each task, ODE"},
        )
    )
    data = data.assign_coords(share=list(shares), task=["one", "two"])
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = subplots(1, 3, (14.0, 4.2))
    item = data.isel(problem=0)
    draw_control(axes[0], item, "share of task two")
    axes[0].set(ylim=(-0.08, 1.08), xlabel="$\\alpha$ = samples/$d$", title="share of task two")
    draw_risk(axes[1], item, f"chain, $d$ = {data.attrs['d']}", "mean risk of both tasks")
    axes[1].plot(
        item.edges,
        data.task_risks.sel(share="no replay").mean("task"),
        color="C2",
        ls="-.",
        lw=1.2,
        label="no replay",
    )
    for row, (name, colour) in enumerate(zip(data.share.values, ("C0", "C3", "C2"), strict=True)):
        for task, dashes in (("one", "-"), ("two", ":")):
            text = f"{name}, task {task}" if row == 0 else name if task == "one" else None
            axes[2].plot(
                item.edges,
                data.task_risks.sel(share=name, task=task),
                color=colour,
                ls=dashes,
                label=text,
            )
    axes[2].set(
        yscale="log",
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="risk",
        xlim=(0, float(item.edges[-1])),
        ylim=(1e-4, 1.0),
        title="each task",
    )
    words = (
        f"replay after task one: {data.attrs['pieces']} pieces; {data.attrs['runs']} runs at the"
        " end (bars: 2 errors)"
    )
    finish(fig, list(axes), words, legends=[axes[0], axes[1]])
    axes[0].legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.02, 0.08))
    axes[2].legend(frameon=False, fontsize="small", ncols=2, loc="upper right")
    return fig
