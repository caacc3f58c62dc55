"""Figure 6: a perceptron that is told only whether a whole episode was right."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics import Move, OnePassSGD, Rule, simulate, start
from sgdynamics.base import checks
from sgdynamics.papers.several_inputs import reward_path
from sgdynamics_reproductions.several_inputs.style import ALPHA, draw_runs, finish, panels

LONG, SMALL = 8, 0.05  # decisions an episode of map (b) has; overlap at the start of map (a)
# decisions, penalty, overlap at the start of the runs
CELLS = (
    (8, 0.2, 0.2),
    (8, 0.2, 0.8),
    (8, 0.4, 0.4),
    (8, 0.4, 0.9),
    (8, 0.05, 0.3),
    (8, 0.4, SMALL),
    (3, 0.2, SMALL),
    (3, 0.8, SMALL),
)


def reward_rule(
    fields: Any, signals: Any, head: Any, draws: Any, overlaps: Any, parameters: Any
) -> Move:
    """Move towards the own decisions after an episode without mistakes, else away from them."""
    right = jnp.all(jnp.sign(fields) == jnp.sign(signals))
    step = jnp.where(right, parameters["reward"], -parameters["penalty"])
    return Move(-step * jnp.sign(fields) / fields.shape[1])


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Phases of the RL perceptron: cosine with the teacher over penalty, length of an episode and
    start; closed ODE and exact chain.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in about half a minute.
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
    An episode is T inputs of one sample; the row moves by (1/T) sum_l sign(w.x_l) x_l times e1 = 1
    if all T decisions are the teacher's and by -e2 otherwise: a rule that is no gradient
    (``sgd.Rule``), lr = 1, from abs(w) = 1. (a) From a cosine of .05: long episodes with a penalty
    are not learned. (b) T = 8: the start decides; what is too far from the teacher is punished into
    noise. (c) Paths to both sides of that line. Circles: runs in the colour of their mean. Quick: d
    = 400, 96 runs to alpha = 60; full: d = 2000, 256. After Patel, Lee, Mannelli, Goldt and Saxe,
    "RL perceptron" (2025).

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, fine = (400, 96, 41) if quick else (2000, 256, 81)
    end, penalty, cosine, tokens = (
        60.0,
        np.linspace(0, 1, fine),
        np.linspace(0, 0.98, fine),
        np.arange(1, 13),
    )
    alpha, values = np.linspace(0, end, 241), 24
    by_length = _cosine(*reward_path([end], SMALL, tokens=tokens[:, None], penalty=penalty[None]))[
        ..., 0
    ]
    by_start = _cosine(*reward_path([end], cosine[:, None], tokens=LONG, penalty=penalty[None]))[
        ..., 0
    ]
    lines, result = (
        np.zeros((len(CELLS), len(alpha))),
        np.zeros((len(CELLS), runs, (len(alpha) - 1) // values)),
    )
    for row, (T, e2, rho) in enumerate(CELLS):
        lines[row] = _cosine(*reward_path(alpha, rho, tokens=T, penalty=e2))
        rule = Rule(
            reward_rule,
            groups={"w": 1},
            tokens=T,
            kinks=(0.0,),
            parameters={"reward": 1.0, "penalty": e2},
        )
        initial_state = start(rule, M=[[rho]], Q=[[1.0]])
        chain = simulate(
            rule,
            OnePassSGD(lr=1.0),
            initial_state,
            alpha=alpha[values::values],
            dimension=d,
            runs=runs,
            seed=len(CELLS) * seed + row,
        )
        result[row] = _cosine(chain.M.values[..., 0, 0], chain.Q.values[..., 0, 0])
    data = xr.Dataset(
        {
            "by_length": (
                ("tokens", "penalty"),
                by_length,
                {"long_name": "cosine at the end from a small one"},
            ),
            "by_start": (
                ("first", "penalty"),
                by_start,
                {"long_name": f"cosine at the end, T = {LONG}"},
            ),
            "path": (("cell", "time"), lines, {"long_name": "cosine with the teacher, closed ODE"}),
            "path_runs": (
                ("cell", "run", "point"),
                result,
                {"long_name": "cosine with the teacher, exact chain runs"},
            ),
            **{
                f"cell_{name}": ("cell", list(value))
                for name, value in zip(
                    ("tokens", "penalty", "first"), zip(*CELLS, strict=True), strict=True
                )
            },
        },
        {
            "tokens": tokens,
            "penalty": penalty,
            "first": cosine,
            "alpha": ("time", alpha),
            "alpha_runs": ("point", alpha[values::values]),
        },
        {
            "d": d,
            "runs": runs,
            "reward": 1.0,
            "small": SMALL,
            "long": LONG,
            "every": values,
            "end": end,
            "seed": seed,
        },
    )
    return _draw(data), data


def _cosine(m: np.ndarray, Q: np.ndarray) -> np.ndarray:
    return m / np.sqrt(Q)


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.4, 3.9)
    colour: dict[str, Any] = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0}
    T, e2, first = (data[f"cell_{name}"].values for name in ("tokens", "penalty", "first"))
    last = data.path_runs.values[:, :, -1].mean(axis=1)
    maps = (
        (axes[0], "by_length", data.tokens, first == data.attrs["small"], T),
        (axes[1], "by_start", data["first"], data.attrs["long"] == T, first),
    )
    for ax, name, y, chosen, height in maps:
        shown = ax.pcolormesh(
            data.penalty, y, data[name], shading="nearest", rasterized=True, **colour
        )
        ax.scatter(
            e2[chosen],
            height[chosen],
            c=last[chosen],
            s=75,
            edgecolor="red",
            linewidth=1.4,
            zorder=4,
            clip_on=False,
            **colour,
        )
        ax.set_xlabel("penalty $e_2$ (reward $e_1$ = 1)")
    axes[0].set(
        ylabel="decisions in an episode, $T$", title=f"from a cosine of {data.attrs['small']:g}"
    )
    axes[1].set(ylabel="cosine at the start", title=f"$T$ = {data.attrs['long']}")
    fig.colorbar(
        shown,
        ax=list(axes[:2]),
        label=f"cosine with the teacher at $\\alpha$ = {data.attrs['end']:g}",
        shrink=0.9,
        pad=0.02,
    )
    for row, colour_of in zip(
        np.flatnonzero((data.attrs["long"] == T) & (first != data.attrs["small"])),
        ("C3", "C0", "C1", "C4", "C2"),
        strict=False,
    ):
        axes[2].plot(
            data.alpha,
            data.path.values[row],
            color=colour_of,
            label=f"$e_2$ = {e2[row]:g}, from {first[row]:g}",
        )
        draw_runs(axes[2], data.alpha_runs, data.path_runs.values[row], colour_of)
    axes[2].set(
        xlabel=ALPHA,
        ylabel="cosine with the teacher",
        ylim=(-0.08, 1.08),
        title=f"$T$ = {data.attrs['long']}: both sides",
    )
    words = (
        "a perceptron told only whether a whole episode was right: closed ODE (maps, lines), {runs}"
        " exact chain runs (circles, $d$ = {d})"
    )
    finish(fig, axes, words.format(**data.attrs), legends=axes[2:], loc="center right")
    for ax in axes[:2]:
        ax.spines[["top", "right"]].set_visible(True)
    return fig
