"""Figure 2: attention that learns by content or by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, models, simulate, start
from sgdynamics.base import checks
from sgdynamics.papers.several_inputs import positional_crossings, positional_growth
from sgdynamics_reproductions.several_inputs.style import TIME, draw_runs, finish, panels
from sgdynamics_reproductions.several_inputs.theory import growth, path

ENCODINGS = (1.0, 2.0)
SHOWN = (0.85, 0.92, 0.98)  # shares whose paths are drawn
FIRST, LR, EARLY = (
    0.1,
    0.1,
    50.0,
)  # both overlaps at the start, the rate of SGD, when it is seen which leads


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Content or position: growth rates of both overlaps over omega with the closed ones, who
    leads, and who is left.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than a minute.
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
    ``sgd.models.positional_semantic``: m = w.w* (content), e = w.pos (position), omega the share of
    the target that goes by position. (a) Growth from zero, lr = 0: the Jacobian of the library's
    drift (points) and ``positional_growth`` (lines), with the shares at which position becomes
    unstable and faster than content. (b) Paths at c0 = 2 and lr = .1 from m = e = .1: above the
    crossing position leads, but content may take over later. (c) m and e at t = 50 and at the end.
    Expectations are on a grid over the four fields of a sample. Quick: 48 runs at d = 100 to t =
    100; full: 128 runs at d = 400 to t = 400. After Cui, Behrens, Krzakala and Zdeborova, "A phase
    transition between positional and semantic learning" (2024).

    Examples
    --------
    >>> from sgdynamics_reproductions import several_inputs
    >>> fig, data = several_inputs.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    d, runs, end = (100, 48, 100.0) if quick else (400, 128, 400.0)
    share = np.array([0.75, 0.8, 0.85, 0.9, 0.95, 1.0])
    rates = np.zeros((len(ENCODINGS), len(share), 2))
    for row, c0 in enumerate(ENCODINGS):
        for column, omega in enumerate(share):
            problem = models.positional_semantic(float(omega), encoding=c0)
            rates[row, column] = np.diag(
                growth(problem, start(problem, M=[[FIRST, FIRST]], Q=[[1.0]]))
            )
    omegas, t, values = (
        np.array([0.85, 0.9, 0.92, 0.95, 0.98, 1.0]),
        np.linspace(0, end, round(end / 2) + 1),
        5,
    )
    overlaps = np.zeros((len(omegas), len(t), 2))
    result = np.zeros((len(SHOWN), runs, (len(t) - 1) // values, 2))
    for row, omega in enumerate(omegas):
        problem = models.positional_semantic(float(omega), encoding=ENCODINGS[1])
        initial_state = start(problem, M=[[FIRST, FIRST]], Q=[[1.0]])
        overlaps[row] = path(problem, initial_state, t, LR, rtol=1e-3, risk=False)["M"][:, 0]
        if omega in SHOWN:
            which = SHOWN.index(omega)
            table: dict[str, Any] = {"dimension": d, "runs": runs}
            chain = simulate(
                problem,
                OnePassSGD(lr=LR),
                initial_state,
                times=t[values::values],
                seed=len(SHOWN) * seed + which,
                **table,
            )
            result[which] = chain.M.values[:, :, 0]
    closed_form = np.array([np.stack(positional_growth(share, c0), axis=-1) for c0 in ENCODINGS])
    data = xr.Dataset(
        {
            "growth": (
                ("c0", "share", "overlap"),
                rates,
                {"long_name": "Jacobian of the drift at zero, lr = 0"},
            ),
            "growth_closed": (("c0", "share", "overlap"), closed_form),
            "crossing": (("c0", "kind"), [positional_crossings(c0) for c0 in ENCODINGS]),
            "M": (
                ("omega", "time", "overlap"),
                overlaps,
                {"long_name": "overlaps of the ODE, c0 = 2"},
            ),
            "M_runs": (
                ("shown", "run", "point", "overlap"),
                result,
                {"long_name": "overlaps of exact chain runs, c0 = 2"},
            ),
        },
        {
            "c0": list(ENCODINGS),
            "share": share,
            "overlap": ["content", "position"],
            "kind": ["unstable", "faster"],
            "omega": omegas,
            "shown": list(SHOWN),
            "t": ("time", t),
            "t_runs": ("point", t[values::values]),
        },
        {
            "d": d,
            "runs": runs,
            "lr": LR,
            "first": FIRST,
            "early": EARLY,
            "every": values,
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    share, omega, t = data.share.values, data.omega.values, data.t.values
    axes[0].axhline(0.0, color="0.7", lw=0.8)
    axes[0].plot(share, data.growth_closed.values[0, :, 0], color="C0", label="content $m$")
    axes[0].plot(share, data.growth.values[0, :, 0], "o", color="C0", mfc="white", ms=5)
    for row, (c0, style) in enumerate(zip(data.c0.values, ("--", "-"), strict=True)):
        axes[0].plot(
            share,
            data.growth_closed.values[row, :, 1],
            color="C3",
            ls=style,
            label=f"position $e$, $c_0$ = {c0:g}",
        )
        axes[0].plot(share, data.growth.values[row, :, 1], "o", color="C3", mfc="white", ms=5)
        faster = float(data.crossing[row, 1])
        axes[0].plot(
            [faster] * 2,
            [-0.08, float(np.interp(faster, share, data.growth_closed.values[0, :, 0]))],
            color="C3",
            ls=":",
            lw=1,
        )
        axes[0].annotate(
            f"{faster:.4f}",
            (faster, -0.078),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize="small",
        )
    unstable = float(data.crossing[0, 0])
    axes[0].plot([unstable] * 2, [-0.08, 0.0], color="k", ls=":", lw=1)
    axes[0].annotate(
        f"{unstable:.4f}",
        (unstable, -0.078),
        rotation=90,
        ha="right",
        va="bottom",
        fontsize="small",
    )
    axes[0].plot([], [], "o", color="0.3", mfc="white", ms=5, label="drift of the library")
    axes[0].set(
        xlabel="share of position in the target, $\\omega$",
        ylabel="growth rate from zero, per unit of $t$",
    )
    axes[0].set(ylim=(-0.08, 0.105), title="growth rates")
    for which, chosen in enumerate(data.shown.values):
        row = int(np.argmin(np.abs(omega - chosen)))
        shade = ("0.0", "C2", "C4")[which]
        axes[1].plot(t, data.M.values[row, :, 0], color=shade, label=f"$\\omega$ = {chosen:g}: $m$")
        axes[1].plot(
            t, data.M.values[row, :, 1], color=shade, ls="--", label=f"$\\omega$ = {chosen:g}: $e$"
        )
        for value in (0, 1):
            draw_runs(axes[1], data.t_runs, data.M_runs.values[which, :, :, value], shade)
    axes[1].set(
        xlabel=TIME,
        ylabel="overlap",
        ylim=(-0.03, 1.35),
        title=f"paths, $c_0$ = 2, lr = {data.attrs['lr']:g}",
    )
    early = int(np.argmin(np.abs(t - data.attrs["early"])))
    for index, (name, colour) in enumerate((("$|m|$", "C0"), ("$|e|$", "C3"))):
        axes[2].plot(
            omega,
            np.abs(data.M.values[:, early, index]),
            color=colour,
            lw=1,
            ls=":",
            marker=".",
            label=f"{name} at $t$ = {t[early]:g}",
        )
        axes[2].plot(
            omega,
            np.abs(data.M.values[:, -1, index]),
            color=colour,
            marker=".",
            label=f"{name} at $t$ = {t[-1]:g}",
        )
        draw_runs(axes[2], data.shown, np.abs(data.M_runs.values[:, :, -1, index].T), colour)
    axes[2].axvline(
        float(data.crossing[1, 1]), 0, 0.74, color="0.6", lw=1, ls="--", label="rates cross"
    )
    axes[2].set_xticks([0.85, 0.9, 0.95, 1.0])
    axes[2].set(
        xlabel="share of position in the target, $\\omega$",
        ylabel="overlap",
        ylim=(-0.03, 1.35),
        title="who leads, who is left ($c_0$ = 2)",
    )
    words = (
        "attention by content or by position: closed and ODE (lines), {runs} exact chain runs at"
        " $d$ = {d} (circles, 2 standard errors)"
    )
    finish(fig, axes, words.format(**data.attrs))
    for ax in axes[1:]:
        ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper center")
    axes[0].legend(frameon=False, fontsize="small", loc="upper left", ncols=2)
    return fig
