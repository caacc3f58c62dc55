"""Pictures of figures whose data are kept at full size too: drawn from the data alone, be they of a
quick run or of the paper's size.

`draw_2(data)` draws what `figure_2` computed, or its stored full-size data. Sizes in the titles are
those of the data.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from numpy.typing import ArrayLike
from scipy import optimize

from sgdynamics.papers.rough_landscapes import unstable_share
from sgdynamics_reproductions.rough_landscapes.style import (
    ALGORITHMS,
    COLORS,
    HIGH_OVERLAP,
    LINES,
    MARKS,
    NAMES,
    average,
    draw_comparison,
    figure,
    threshold_line,
)


def draw_1(data: xr.Dataset) -> Any:
    """Above, averages against DMFT; below, single runs on one data set."""
    starts, t_seed = data["m0"].values, data["t_seed"].values
    fig = figure(3, 2)
    axes = fig.subplots(2, 3, sharex="row", sharey=True)
    for column, m0 in enumerate(starts):
        draw_comparison(axes[0, column], data.isel(start=column), "m", 3)
        axes[0, column].set_title(rf"$m_0$ = {m0}")
        for values in data["m_seed"].isel(start=column).values:
            axes[1, column].plot(t_seed, values, lw=0.8, alpha=0.8)
        axes[1, column].axhline(1, color="0.7", lw=0.8, zorder=0)
        axes[1, column].set_xlabel("$t$")
    axes[0, 0].set_ylabel(f"average $m$, {data.attrs['runs']} data sets")
    axes[1, 0].set_ylabel(f"$|m|$ of {data.attrs['seeds']} runs, one data set")
    axes[0, 2].legend(frameon=False, loc="lower right")
    fig.suptitle(
        rf"Gradient descent, $\alpha$ = 2, $\eta$ = {data.attrs['eta']}, $N$ = {data.attrs['N']}"
    )
    return fig


def _numbers_of_three(data: xr.Dataset) -> str:
    size = rf"$N$ = {data.attrs['N']}, {data.attrs['runs']} runs, $t \leq$ {float(data['t'][-1]):g}"
    return (
        rf"$\alpha$ = 3, $m_0$ = 0.2, $\eta$ = {data.attrs['eta']}, $\ell$ = 0.5, $\tau$ = 1,"
        rf" {size}"
    )


def draw_2(data: xr.Dataset) -> Any:
    """Averages of |m| and of the loss with bands of their standard errors, and the shares that
    recovered.
    """
    fig, eta = figure(2, 1.2), data.attrs["eta"]
    left, right = fig.subplots(1, 2)
    t = data["t"].values + eta
    for name in ALGORITHMS:
        item = data.sel(algorithm=name)
        share = f"{NAMES[name]}: {float(item['recovered']):.1%} recovered"
        style = {"color": COLORS[name], "ls": LINES[name], "lw": 1.6}
        for ax, values in ((left, abs(item["m"])), (right, item["loss"])):
            mean, error = average(values)
            ax.plot(t, mean, label=share, **style)
            ax.fill_between(t, mean - error, mean + error, color=COLORS[name], alpha=0.2, lw=0)
    left.set(xscale="log", xlabel=r"$t + \eta$", ylabel="average $|m|$", ylim=(0, 1.03))
    right.set(xscale="log", xlabel=r"$t + \eta$", ylabel="average training loss", ylim=(0, None))
    right.legend(frameon=False, loc="upper right", fontsize="small")
    fig.suptitle(_numbers_of_three(data), fontsize="medium")
    return fig


def draw_3(data: xr.Dataset) -> Any:
    """|m| of each run."""
    fig, t = figure(3, 1.2), data["t"].values + data.attrs["eta"]
    for ax, name in zip(fig.subplots(1, 3, sharey=True), ALGORITHMS, strict=True):
        _single_runs(ax, t, data["m"].sel(algorithm=name).values)
        ax.set(
            xlabel=r"$t + \eta$",
            title=f"{NAMES[name]}: {float(data['recovered'].sel(algorithm=name)):.0%} recovered",
        )
    fig.axes[0].set_ylabel("$|m|$")
    fig.suptitle(_numbers_of_three(data))
    return fig


def _single_runs(ax: Axes, t: np.ndarray, m: np.ndarray) -> None:
    for values in np.abs(m):
        ax.plot(t, values, lw=0.7, alpha=0.8)
    ax.set(xscale="log", ylim=(0, 1.03))


SYMBOLS = {
    "l": r"$\ell$",
    "tau": r"$\tau$",
    "T": "$T$",
}  # of the curves of figure 4, which the data name in plain letters


def draw_4(data: xr.Dataset) -> Any:
    """Medians of |m| and of the loss, a column a kind of noise; at the right which runs explode."""
    from matplotlib import colormaps

    fig = figure(4, 2)
    axes = fig.subplots(2, 4)
    t = data["t"].values + float(data["t"][1])  # the first save point is after one step, t = eta
    titles = {
        "batch": r"p-SGD, $\tau$ = 1",
        "persistence": r"p-SGD and SGD, $\ell$ = 0.5",
        "temperature": "Langevin",
    }
    for column, (panel, title) in enumerate(titles.items()):
        curves = [str(name) for name in data[f"curve_{panel}"].values]
        upper, lower = axes[:, column]
        for number, name in enumerate(curves):
            letter, equals, value = name.partition(" = ")
            label = f"{SYMBOLS[letter]} = {value}" if equals else name
            color = "k" if name == "SGD" else colormaps["viridis"](0.9 * number / (len(curves) - 1))
            style = {"color": color, "lw": 1.4, "ls": ":" if name == "SGD" else "-"}
            for ax, key, named in ((upper, "m", None), (lower, "loss", label)):
                ax.plot(t, data[f"{key}_{panel}"].values[number], label=named, **style)
                ax.fill_between(
                    t,
                    *data[f"{key}_quartiles_{panel}"].values[number],
                    color=color,
                    alpha=0.09,
                    lw=0,
                )
        upper.set(xscale="log", title=title, ylim=(0, 1.03))
        lower.set(xscale="log", yscale="log", xlabel=r"$t + \eta$", ylim=(1e-8, 3))
        threshold_line(lower)
        lower.legend(
            frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 0.12)
        )  # where no curve goes
        if panel == "temperature":
            for ax in (upper, lower):
                ax.axvline(data.attrs["switched_off_at"], color="0.7", lw=0.8, zorder=0)
    axes[0, 0].set_ylabel("median $|m|$")
    axes[1, 0].set_ylabel("median training loss")
    _draw_stability(axes[0, 3], axes[1, 3], data)
    counts = [data.sizes[f"run_{panel}"] for panel in titles]
    runs = f"{counts[-1]} runs" + (f" ({counts[0]} at the left)" if counts[0] != counts[-1] else "")
    fig.suptitle(
        rf"$\alpha$ = 3, $m_0$ = 0.2, $N$ = {data.attrs['N']}, {runs}; bands: from quartile to"
        r" quartile"
    )
    return fig


def _draw_stability(upper: Axes, lower: Axes, data: xr.Dataset) -> None:
    """Above, the stability line in the plane of l and eta; below, what explodes."""
    names, size = (
        [
            f"{b:g}, {eta:g}"
            for b, eta in zip(data["pair_l"].values, data["pair_eta"].values, strict=True)
        ],
        data.attrs,
    )
    grid = np.geomspace(0.005, 1, 40)
    for number, style in ((1.0, "-"), (0.01, "--")):
        upper.plot(
            grid,
            _line(size["m0"], number / (size["alpha"] * size["N"])) * grid,
            color="C3",
            ls=style,
            label=f"{number:g} unstable expected",
        )
    pairs = (data[name].values for name in ("pair_l", "pair_eta", "exploded"))
    for l, eta, share in zip(*pairs, strict=True):  # noqa: E741
        upper.plot(l, eta, "o", color="C3" if share > 0.05 else "C0", ms=6)
        upper.annotate(
            f"{share:.0%}",
            (l, eta),
            textcoords="offset points",
            xytext=(0, 6),
            ha="center",
            fontsize="small",
        )
    upper.set(
        xscale="log",
        yscale="log",
        xlabel=r"$\ell$",
        ylabel=r"$\eta$",
        title="share of runs that explode",
        ylim=(5e-4, 0.3),
    )
    upper.legend(frameon=False, fontsize="small", loc="upper left")
    index = np.arange(len(names))
    lower.barh(index, data["exploded"].values, color="C3", height=0.6)
    for at, value in zip(index, data["unstable_samples"].values, strict=True):
        lower.text(
            0.98,
            float(at),
            f"{value:.2g}",
            va="center",
            ha="right",
            fontsize="small",
            transform=lower.get_yaxis_transform(),
        )
    lower.set(
        yticks=index,
        yticklabels=names,
        xlim=(0, 1.25),
        xticks=[0, 0.5, 1],
        xlabel="share of runs that explode",
    )
    lower.set_title(r"$\ell, \eta$; right: unstable samples at $t = 0$", fontsize="small")
    lower.invert_yaxis()


def _line(m0: float, share: float) -> float:
    """The eta/l at which this share of the samples is unstable at the start: it depends on l and
    eta by their ratio alone.
    """
    ratio = optimize.brentq(
        lambda x: math.log(unstable_share(math.exp(-x), 1.0, m0) / share),
        math.log(1e-3),
        math.log(60.0),
    )
    return math.exp(-float(ratio))  # pyright: ignore[reportArgumentType]


def _draw_theory(data: xr.Dataset, title: str) -> Any:
    """Average m and loss of runs against DMFT at the same eta."""
    fig = figure(2, 1.2)
    for ax, name, label in zip(
        fig.subplots(1, 2), ("m", "loss"), ("average $m$", "average training loss"), strict=True
    ):
        draw_comparison(ax, data, name, 2)
        ax.set(xlabel="$t$", ylabel=label)
    fig.axes[0].legend(frameon=False, loc="lower right")
    fig.suptitle(
        rf"{title}, $\eta$ = {data.attrs['eta']}, $N$ = {data.attrs['N']}, {data.attrs['runs']}"
        r" runs",
        fontsize="medium",
    )
    return fig


def draw_5(data: xr.Dataset) -> Any:
    """Persistent SGD against its DMFT."""
    return _draw_theory(
        data, r"Persistent SGD, $\alpha$ = 3, $m_0$ = 0.2, $\ell$ = 0.5, $\tau$ = 1"
    )


def draw_6(data: xr.Dataset) -> Any:
    """Langevin against its DMFT."""
    return _draw_theory(data, r"Langevin, $\alpha$ = 3, $m_0$ = 0.2, $T$ = 1")


def draw_7(data: xr.Dataset) -> Any:
    """Medians of |m| at every size, with the loss in insets; where the data have them, shares of
    runs that recovered, times against N and m in the limit. Bands are quartiles of the runs, or
    standard errors.
    """
    sizes, eta = data["N"].values, data.attrs["eta"]
    counts = data["runs_size"].values if "runs_size" in data else [data.attrs["runs"]] * len(sizes)
    options = [
        draw
        for name, draw in (
            ("share", _draw_shares),
            ("growth", _draw_times),
            ("growth", _draw_limit),
        )
        if name in data
    ]
    panels = len(sizes) + len(options)
    rows, columns = (1, panels) if panels < 4 else (2, -(-panels // 2))
    fig, t, banded = figure(columns, 1.2 * rows), data["t"].values + eta, "m_quartiles" in data
    axes = list(np.ravel(fig.subplots(rows, columns)))
    for number, (N, count) in enumerate(zip(sizes, counts, strict=True)):
        ax = axes[number]
        inset = ax.inset_axes((0.2, 0.58, 0.36, 0.34))
        for name in data["algorithm"].values:
            item = data.isel(size=number).sel(algorithm=name)
            style = {"color": COLORS[name], "ls": LINES[name], "lw": 1.5}
            for value, key, label in ((ax, "m", NAMES[name]), (inset, "loss", None)):
                value.plot(t, item[key], label=label, **style)
                if banded:
                    value.fill_between(
                        t, *item[f"{key}_quartiles"].values, color=COLORS[name], alpha=0.15, lw=0
                    )
        for other in range(1, data.sizes.get("rate", 1)):
            label = rf"{NAMES['p-SGD']}, $\eta$ = {float(data['eta_rate'][other]):g}"
            ax.plot(
                t, data["m_rate"][other, number], color=COLORS["p-SGD"], lw=1, ls=":", label=label
            )
        inset.set(xscale="log", ylim=(0, None))
        inset.set_title("loss", fontsize="small", pad=2)
        inset.tick_params(labelsize="x-small")
        ax.set(xscale="log", title=f"$N$ = {N}, {count} runs", xlabel=r"$t + \eta$", ylim=(0, 1.03))
    for ax in axes[: len(sizes) : columns]:
        ax.set_ylabel("median $|m|$")
    for ax, draw in zip(axes[len(sizes) :], options, strict=False):
        draw(ax, data)
    for ax in axes[panels:]:
        ax.set_axis_off()
    fig.legend(
        *axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3
    )
    text = " (bands: quartiles)" if banded else ""
    fig.suptitle(rf"Random start, $\alpha$ = 2.5, $\ell$ = 0.5, $\tau$ = 2, $\eta$ = {eta}{text}")
    return fig


def _plain_ticks(axis: Axis, values: ArrayLike) -> None:
    """Set plain ticks on a logarithmic axis that is too short for powers of ten."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axis.set_ticks(np.asarray(values))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_shares(ax: Axes, data: xr.Dataset) -> None:
    from matplotlib import colormaps

    sizes, t = data["N"].values, data["t"].values + data.attrs["eta"]
    for size, N in enumerate(sizes):
        color = colormaps["viridis"](0.9 * size / (len(sizes) - 1))
        for number, eta in enumerate(data["eta_rate"].values):
            share, error = (data[name].values[number, size] for name in ("share", "share_error"))
            label = (
                f"$N$ = {N}"
                if number == 0
                else rf"dotted: $\eta$ = {eta:g}"
                if size == len(sizes) - 1
                else None
            )
            ax.plot(t, share, color=color, ls=":" if number else "-", lw=1.4, label=label)
            ax.fill_between(t, share - error, share + error, color=color, alpha=0.2, lw=0)
    ax.set(
        xscale="log",
        title="p-SGD",
        xlabel=r"$t + \eta$",
        ylabel=f"share of runs with $|m|$ above {HIGH_OVERLAP:g}",
        ylim=(-0.03, 1.03),
    )
    ax.legend(frameon=False, fontsize="small", loc="upper left")


def _draw_times(ax: Axes, data: xr.Dataset) -> None:
    """Draw median times of p-SGD with lines proportional to log N and to N through the first one.

    Bars are one standard error of the rank of the median. A run that does not recover has the last
    time.
    """
    sizes, counts, last = (
        data["N"].values.astype(float),
        data["runs_size"].values,
        float(data["t"][-1]),
    )
    for number, eta in enumerate(data["eta_rate"].values):
        values = [
            np.sort(np.nan_to_num(value[:k], nan=last))
            for value, k in zip(data["time_rate"].values[number], counts, strict=True)
        ]
        bounds = [[k / 2, (k - math.sqrt(k)) / 2, (k + math.sqrt(k)) / 2] for k in counts]
        middle, low, high = np.stack(
            [
                entry[np.array(ranks, dtype=int)]
                for entry, ranks in zip(values, bounds, strict=True)
            ],
            axis=1,
        )
        at = sizes * 1.05 ** (number - (len(data["eta_rate"]) - 1) / 2)
        ax.errorbar(
            at,
            middle,
            [middle - low, high - middle],
            color=f"C{number}",
            fmt="os"[number % 2],
            ms=4,
            label=rf"$\eta$ = {eta:g}",
        )
        if number == 0:
            ax.plot(
                sizes,
                middle[0] * np.log(sizes) / np.log(sizes[0]),
                color="0.4",
                lw=1,
                ls="--",
                label=r"$\propto \log N$",
            )
            ax.plot(
                sizes, middle[0] * sizes / sizes[0], color="0.4", lw=1, ls=":", label=r"$\propto N$"
            )
    ax.set(
        xscale="log",
        yscale="log",
        title="p-SGD",
        xlabel="$N$",
        ylabel=f"median time of $|m|$ = {HIGH_OVERLAP:g}",
    )
    _plain_ticks(ax.xaxis, sizes)
    _plain_ticks(ax.yaxis, [300, 1000, 3000])
    ax.legend(frameon=False, fontsize="small", loc="upper left")


def _draw_limit(ax: Axes, data: xr.Dataset) -> None:
    t = data["t_limit"].values
    for number, m0 in enumerate(data["m0_limit"].values):
        m, error = (data[name].values[number] / m0 for name in ("m_limit", "m_limit_error"))
        ax.plot(t[1:], m[1:], color=f"C{number}", lw=1.4, label=f"$m_0$ = {m0:g}")
        ax.fill_between(
            t[1:], (m - error)[1:], (m + error)[1:], color=f"C{number}", alpha=0.25, lw=0
        )
    ax.set(xscale="log", yscale="log", title="DMFT of p-SGD", xlabel="$t$", ylabel="$m/m_0$")
    _plain_ticks(ax.yaxis, [1.5, 2, 2.5])
    ax.legend(frameon=False, fontsize="small", loc="upper left")


def draw_b1(data: xr.Dataset) -> Any:
    """Errors with every ridge."""
    fig, top = figure(3, 1.3), HEAD * float(data["mse"].max())
    for number, ax in enumerate(fig.subplots(1, 3, sharey=True)):
        _draw_ridge(
            ax,
            data.isel(ridge=number),
            rf"$\lambda$ = {float(data['ridge'][number]):g}",
            number == 2,
            top,
        )
    _finish_ridge(fig, data, "Ridge")
    return fig


def draw_b2(data: xr.Dataset) -> Any:
    """Errors with the gradient divided by the batch fraction, and not."""
    fig, top = figure(2, 1.3), HEAD * float(data["mse"].max())
    for number, ax in enumerate(fig.subplots(1, 2, sharey=True)):
        title = r"gradient divided by $\ell$" if number == 0 else r"gradient not divided by $\ell$"
        _draw_ridge(ax, data.isel(gradient=number), title, number == 0, top)
    _finish_ridge(fig, data, r"Ridge $\lambda$ = 0.5")
    return fig


# insets of B.1 and B.2 (left, bottom, width, height in a panel): curves that fall late leave the
# first free, others the second
CORNERS = ((0.13, 0.11, 0.34, 0.3), (0.65, 0.66, 0.33, 0.26))
AROUND = (0.12, 0.09, 0.02, 0.08)  # their labels: left, below, right, above
HEAD = 1.22  # of the largest mean squared error: room for an inset above curves that fall


def _free_corner(ax: Axes, t: np.ndarray, data: xr.Dataset) -> tuple[float, float, float, float]:
    """Choose the corner for an inset that hides the fewest points of curves and error bars."""
    curves = [data[name] for name in ("mse_formula", "mse_formula_runs", "mse")]
    curves += [data["mse"] + sign * data["mse_error"] for sign in (-1, 1)]
    points = np.concatenate(
        [
            np.stack([np.broadcast_to(t, curve.shape), curve.values], axis=-1).reshape(-1, 2)
            for curve in curves
        ]
    )
    x, y = (ax.transScale + ax.transLimits).transform(points).T
    left, below, right, above = AROUND

    def count_hidden(box: tuple[float, float, float, float]) -> int:
        x0, y0, width, height = box
        return int(
            np.sum(
                (x > x0 - left)
                & (x < x0 + width + right)
                & (y > y0 - below)
                & (y < y0 + height + above)
            )
        )

    return min(CORNERS, key=count_hidden)


def _draw_ridge(ax: Axes, data: xr.Dataset, title: str, labels: bool, top: float) -> None:
    t = data["t"].values + data.attrs["eta"]
    ax.set(
        xscale="log",
        xlabel=r"$t + \eta$",
        title=title,
        xlim=(t[0] / 1.6, t[-1] * 1.6),
        ylim=(0, top),
    )
    inset = ax.inset_axes(_free_corner(ax, t, data))
    for name in ALGORITHMS:
        item = data.sel(algorithm=name)
        style = {"fmt": MARKS[name], "ms": 3.5, "lw": 0.8, "color": COLORS[name]}
        ax.errorbar(
            t[::2],
            item["mse"][::2],
            item["mse_error"][::2],
            label=NAMES[name] if labels else None,
            **style,
        )
        last = labels and name == ALGORITHMS[-1]
        ax.plot(
            t,
            item["mse_formula_runs"],
            color="k",
            lw=0.9,
            label="(B.8), average over runs" if last else None,
        )
        ax.plot(
            t,
            item["mse_formula"],
            color="0.5",
            lw=0.9,
            ls=":",
            label="(B.8) at average overlaps" if last else None,
        )
        inset.plot(t, item["loss"], color=COLORS[name], ls=LINES[name], lw=1.2)
        low, high = ((item["loss"] + sign * item["loss_error"]).values for sign in (-1, 1))
        inset.fill_between(t, low, high, color=COLORS[name], alpha=0.2, lw=0)
    inset.set(xscale="log", yscale="log")
    inset.set_title("training loss", fontsize="small", pad=2)
    inset.tick_params(labelsize="x-small")


def _finish_ridge(fig: Any, data: xr.Dataset, title: str) -> None:
    runs, persistent = data.attrs["runs"], data.attrs.get("runs_persistent", data.attrs["runs"])
    counted = f"{runs} runs" + (f" ({persistent} of persistent SGD)" if persistent != runs else "")
    size = (
        rf"$\eta$ = {data.attrs['eta']}, $\ell$ = 0.5, $\tau$ = 1, $N$ = {data.attrs['N']},"
        rf" {counted}"
    )
    fig.axes[0].set_ylabel("mean squared error")
    # below all panels: curves and insets leave no room
    handles, labels = next(
        result for ax in fig.axes if (result := ax.get_legend_handles_labels())[0]
    )
    fig.legend(
        handles,
        labels,
        frameon=False,
        fontsize="small",
        loc="outside lower center",
        ncols=len(labels),
    )
    fig.suptitle(rf"{title}, $\alpha$ = 3, $m_0$ = 0.2, {size}")


def draw_b3(data: xr.Dataset) -> Any:
    """Averages at every learning rate, the smaller the stronger."""
    fig, rates, size = figure(2, 1.2), data["eta"].values, data.attrs
    t = data["t"].values + rates[0]
    for ax, key, ylabel in zip(
        fig.subplots(1, 2), ("m", "loss"), ("average $|m|$", "average training loss"), strict=True
    ):
        for name in ALGORITHMS:
            for number, eta in enumerate(rates):
                label = rf"{NAMES[name]}, $\eta$ = {eta:g}" if number == len(rates) - 1 else None
                style = {
                    "color": COLORS[name],
                    "ls": LINES[name],
                    "lw": 1.4,
                    "alpha": 0.3 + 0.7 * number / (len(rates) - 1),
                }
                mean, error = (
                    data[which].sel(algorithm=name)[number].values
                    for which in (key, f"{key}_error")
                )
                ax.plot(t, mean, label=label, **style)
                if number == len(rates) - 1:
                    ax.fill_between(
                        t, mean - error, mean + error, color=COLORS[name], alpha=0.15, lw=0
                    )
        ax.set(xscale="log", xlabel=rf"$t$ + {rates[0]:g}", ylabel=ylabel, ylim=(0, None))
    fig.axes[0].legend(frameon=False, fontsize="small")
    fig.suptitle(
        rf"$\alpha$ = 3, $m_0$ = 0.2, $\ell$ = 0.5, $\tau$ = 1, $N$ = {size['N']}, {size['runs']}"
        r" runs"
        + "\n"
        + (
            rf"faint to strong: $\eta$ = {', '.join(f'{eta:g}' for eta in rates)} (bands: standard"
            r" errors of the last)"
        ),
        fontsize="medium",
    )
    return fig


def draw_b4(data: xr.Dataset) -> Any:
    """|m| of each run at every persistence time."""
    fig, size, t = figure(2, 2), data.attrs, data["t"].values + data.attrs["eta"]
    for number, ax in enumerate(fig.subplots(2, 2, sharex=True, sharey=True).flat):
        tau, share = (float(data[name][number]) for name in ("tau", "recovered"))
        _single_runs(ax, t, data["m"].isel(tau=number).values)
        ax.axvline(tau, color="0.5", lw=0.9, ls=":")
        ax.set_title(rf"$\tau$ = {tau:g}: {share:.0%} recovered")
    for ax in fig.axes[2:]:
        ax.set_xlabel(r"$t + \eta$")
    for ax in fig.axes[::2]:
        ax.set_ylabel("$|m|$")
    first = (
        rf"Persistent SGD, $\alpha$ = 3, $\ell$ = 0.5, $m_0$ = 0.2, $\eta$ = {size['eta']}, $N$ ="
        rf" {size['N']}, {size['runs']} runs"
    )
    fig.suptitle(first + "\n" + r"dotted: $t = \tau$", fontsize="medium")
    return fig
