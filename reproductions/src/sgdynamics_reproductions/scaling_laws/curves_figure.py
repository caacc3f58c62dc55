"""Figure 2: loss against flops at many sizes, and their envelope."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.scaling import RandomFeatures, compute_optimal, phase
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

CASES = ((0.7, 0.3), (0.7, 1.2))  # phases Ia and III
DECADES = np.arange(3, 10)  # logarithms of the sizes
RATE = 0.5  # the step size is RATE over the trace
DRAWN, INPUTS = 100, 800  # size of the drawn feature matrices


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Random features of 1e3 to 1e9 against flops with their envelope and its predicted slope;
    drawn features on their equivalent.

    Parameters
    ----------
    quick : bool, default False
        Fewer budgets and draws, in less than a minute.
    seed : int, default 0
        Seed of the random features.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    (a), (b) The loss of ``sgd.scaling.RandomFeatures(...).equivalent()`` at batch 1 and step .5
    over the trace, d = 1e3, 1e4, ... 1e9, and the frontier of ``compute_optimal``: phase Ia, where
    features run out, and III, where noise of SGD is what is left. (c) The mean over draws of 100
    features of 800 inputs (exact in the mean over samples) over the equivalent of the same size: it
    is one for large d.

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    a_decade, draws = (1, 80) if quick else (4, 1000)
    sizes = 10.0**DECADES
    loss, steps, budgets, frontier, best, slopes = [], [], [], [], [], []
    for a, b in CASES:
        law = phase(a, b)
        last = DECADES[-1] / law.xi
        flops = np.logspace(
            DECADES[0] / law.xi, last, round(a_decade * (last - DECADES[0] / law.xi)) + 1
        )
        result = compute_optimal(a, b, flops=flops, rate=RATE)
        budgets.append(flops)
        frontier.append(result.loss)
        best.append(result.size)
        slopes.append((result.eta, result.xi))
        models = [RandomFeatures(a, b, float(round(d))).equivalent() for d in sizes]
        # four decades of steps on both sides of those for which a size is best
        steps.append(
            [np.maximum(d ** (1 / law.xi - 1) * np.geomspace(1e-4, 1e4, 41), 10.0) for d in sizes]
        )
        loss.append(
            [entry.risk(n, RATE / entry.trace) for entry, n in zip(models, steps[-1], strict=True)]
        )
    at = np.array([10, 30, 100, 300, 1000, 3000, 10_000])
    drawn, smooth = [], []
    for row, (a, b) in enumerate(CASES):
        model = RandomFeatures(a, b, DRAWN, INPUTS)
        equivalent = model.equivalent()
        smooth.append(equivalent.risk(at, RATE / equivalent.trace))
        drawn.append(
            [
                model.sample(seed=2 * (draws * seed + draw) + row).risk(at, RATE / equivalent.trace)
                for draw in range(draws)
            ]
        )
    longest = max(len(budget) for budget in budgets)
    filled = [
        np.array([np.pad(item, (0, longest - len(item)), constant_values=np.nan) for item in value])
        for value in (budgets, frontier, best)
    ]
    case = [f"{phase(a, b).name}" for a, b in CASES]
    data = xr.Dataset(
        {
            "loss": (
                ("case", "size", "point"),
                np.array(loss),
                {"long_name": "loss of the equivalent"},
            ),
            "steps": (("case", "size", "point"), np.array(steps)),
            "flops": (("case", "budget"), filled[0]),
            "frontier": (("case", "budget"), filled[1], {"long_name": "least loss at these flops"}),
            "best_size": (("case", "budget"), filled[2]),
            "eta": ("case", [slope for slope, _ in slopes]),
            "xi": ("case", [xi for _, xi in slopes]),
            "eta_predicted": ("case", [phase(a, b).eta for a, b in CASES]),
            "xi_predicted": ("case", [phase(a, b).xi for a, b in CASES]),
            "drawn": (
                ("case", "run", "drawn_steps"),
                np.array(drawn),
                {"long_name": "loss of drawn features, mean over samples"},
            ),
            "equivalent": (
                ("case", "drawn_steps"),
                np.array(smooth),
                {"long_name": "loss of their equivalent"},
            ),
        },
        {
            "case": case,
            "size": sizes,
            "drawn_steps": at,
            "exponents": (("case", "kind"), [list(case) for case in CASES]),
        },
        {
            "rate": RATE,
            "batch": 1,
            "features_drawn": DRAWN,
            "inputs_drawn": INPUTS,
            "draws": draws,
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    from matplotlib import colormaps

    fig, axes = panels(3, 4.6, 4.0)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, data.sizes["size"]))
    for row, (ax, name) in enumerate(zip(axes[:2], data.case.values, strict=True)):
        is_finite = np.isfinite(data.flops.values[row])
        flops, frontier = data.flops.values[row, is_finite], data.frontier.values[row, is_finite]
        for size, n, curve, shade in zip(
            data["size"].values, data.steps.values[row], data.loss.values[row], shades, strict=True
        ):
            x = size * n
            near = (x > flops[0] / 300) & (x < flops[-1] * 300)
            ax.plot(
                x[near],
                curve[near],
                color=shade,
                lw=1.1,
                label=f"$d = 10^{{{round(np.log10(size))}}}$",
            )
        ax.plot(flops, frontier, color="C3", lw=2.2, label="envelope")
        law = frontier[-1] * (flops / flops[-1]) ** -float(data.eta_predicted[row])
        ax.plot(
            flops,
            0.5 * law,
            color="k",
            lw=1,
            ls="--",
            label=f"flops$^{{-{float(data.eta_predicted[row]):.3f}}}$",
        )
        a, b = data.exponents.values[row]
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="flops $d\\,n$",
            ylabel="loss",
            title=f"phase {name}: $a$ = {a:g}, $b$ = {b:g}",
        )
        ax.set_ylim(frontier[-1] / 6, 1.5 * data.loss.values[row].max())
        draw_runs(
            axes[2],
            data.drawn_steps.values * (1 + 0.06 * row),
            (data.drawn / data.equivalent).values[row],
            f"C{row}",
            f"phase {name}",
        )
    axes[2].axhline(1, color="k", lw=0.9)
    words = "mean over {draws} draws, $d$ = {features_drawn}".format(**data.attrs)
    axes[2].set(
        xscale="log",
        xlabel="steps $n$",
        ylabel="drawn features/equivalent",
        title=words,
        ylim=(0.85, 1.15),
    )
    finish(
        fig,
        axes,
        "random features: loss against flops, and the size that is best for each budget",
        loc="lower left",
    )
    return fig
