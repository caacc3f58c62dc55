"""Figure 4: easy samples first, last, or both."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import piecewise_rate, simulate
from sgdynamics.analysis.protocols.confirm import Confirmation
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, subplots
from sgdynamics_reproductions.protocols.protocol_data import draw_control, protocol_dataset
from sgdynamics_reproductions.protocols.reference import UNIT_RATE, best, groups, with_share

DIMENSION, ALPHA = 1000, 8.0
COLOURS = {"mixed": "C3", "easy first": "C1", "easy last": "C2", "optimum": "C0"}


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The order of easy and hard samples, half of each, that is best for hard ones, against mixed,
    easy first and easy last.

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
    One erf unit learns one, noise .3. Half of the coordinates have no signal, and are silent in
    easy samples. Of alpha = 8 half is easy, and the excess risk of hard samples counts: easy, hard,
    easy is best. Circles: the exact chain at d = 1000, the same random numbers for all four orders.

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    pieces, runs = (40, 400) if quick else (80, 4000)
    both, initial_state = groups()
    hard = both.problems["hard"]
    result = best(
        both,
        UNIT_RATE,
        initial_state,
        ALPHA,
        {"hard": (0, 1)},
        pieces,
        budget={"hard": 0.5},
        evaluate=hard,
    )
    late = (np.arange(pieces) >= pieces // 2).astype(float)
    shares = {
        "mixed": np.full(pieces, 0.5),
        "easy first": late,
        "easy last": 1 - late,
        "optimum": result.protocol["hard"],
    }
    some = result.edges[pieces // 4 :: pieces // 4]
    lines, points = [], []
    for share in shares.values():
        moving = both.replace(
            probabilities=piecewise_rate(result.edges[1:-1], np.stack([1 - share, share], axis=-1))
        )
        lines.append(
            _hard_risk(with_share(both, UNIT_RATE, initial_state, result.edges, share), hard)[0]
        )
        points.append(
            _hard_risk(
                simulate(
                    moving,
                    UNIT_RATE,
                    initial_state,
                    alpha=some,
                    dimension=DIMENSION,
                    runs=runs,
                    seed=seed,
                    progress=False,
                ),
                hard,
            )
        )
    data = protocol_dataset(
        {"curriculum": result}, {"curriculum": _measure(points[3][:, -1], points[0][:, -1])}, seed
    )
    data = data.assign(
        shares=(
            ("order", "piece"),
            np.array(list(shares.values())),
            {"long_name": "share of hard samples"},
        ),
        excess_risk=(
            ("order", "edge"),
            np.array(lines),
            {"long_name": "excess risk of hard samples, ODE"},
        ),
        excess_risk_runs=(
            ("order", "run", "point"),
            np.array(points),
            {"long_name": "excess risk of hard samples, exact chain"},
        ),
    )
    data = data.assign_coords(order=list(shares), point=some)
    return _draw(data), data


def _measure(value: np.ndarray, constant: np.ndarray) -> Confirmation:
    """Compare runs with the optimum and runs with mixed samples, as ``confirm`` does.

    Both use the same random numbers, which reduces the error of the gain.
    """
    runs, gain = len(value), constant.mean() / value.mean()
    errors = [
        float(entry.std(ddof=1) / np.sqrt(runs))
        for entry in (constant - gain * value, value, constant)
    ]
    means = float(value.mean()), float(constant.mean())
    return Confirmation(
        float(gain), errors[0] / means[0], means[0], errors[1], means[1], errors[2], DIMENSION, runs
    )


def _hard_risk(result: xr.Dataset, hard: Any) -> np.ndarray:
    """Excess risk of hard samples: (run, time)."""
    return (
        result.context_risk.sel(context="hard").transpose("run", "time").values - hard.noise_floor
    )


def _draw(data: xr.Dataset) -> Any:
    fig, axes = subplots(1, 3, (14.0, 4.2))
    item = data.isel(problem=0)
    draw_control(axes[0], item, "share of hard samples")
    axes[0].set(ylim=(-0.08, 1.08), xlabel="$\\alpha$ = samples/$d$", title="share of hard samples")
    for row, name in enumerate(data.order.values):
        line, colour = data.excess_risk.values[row], COLOURS[str(name)]
        axes[1].plot(item.edges, line, color=colour, label=str(name))
        draw_runs(axes[1], data.point, data.excess_risk_runs.values[row], colour)
        draw_runs(axes[2], [row], data.excess_risk_runs.values[row, :, -1:], colour)
        axes[2].plot([row - 0.25, row + 0.25], [line[-1]] * 2, color=colour, lw=2)
        axes[2].text(
            row + 0.3, line[-1], f"{line[-1]:.5f}", fontsize="small", color=colour, va="center"
        )
    axes[1].set(
        yscale="log",
        xlabel="$\\alpha$ = samples/$d$",
        ylabel="excess risk of hard samples",
        title="with time",
    )
    axes[2].set_xticks(range(len(data.order)), [str(name) for name in data.order.values])
    axes[2].set(xlim=(-0.5, 4.0), ylabel="excess risk of hard samples", title="at the end")
    words = (
        f"half easy, half hard: ODE (lines), {data.attrs['runs']} runs of the exact chain at $d$ ="
        f" {data.attrs['d']} (bars: 2 errors)"
    )
    finish(fig, list(axes), words, legends=axes[:2])
    axes[0].legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.55, 0.08))
    return fig
