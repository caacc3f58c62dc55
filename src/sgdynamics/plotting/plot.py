"""Plots: each takes a result and returns (fig, ax); several results go on the same ax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.protocols.picture import protocol as protocol
from sgdynamics.base import checks, registry
from sgdynamics.plotting.time_axis import choose_clock, curve_style, set_time_axis
from sgdynamics.results.variables import STANDARD_ERROR, VARIABLES

if TYPE_CHECKING:  # drawing is imported where it is done
    from matplotlib.axes import Axes

MOST_POINTS = 25  # error bars on a curve before they run into one another


def risk(
    result: xr.Dataset,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    excess: bool | None = None,
    train: bool = False,
    log: bool = True,
    label: str | None = None,
) -> tuple[Any, Any]:
    """The risk against time: a line for theory (with a band of its own error, where it has one), the mean over runs with standard errors.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver returned.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    excess : bool, optional
        The excess risk (True) or the risk (False); unless given the excess risk where it is defined.
    train : bool, default False
        The mean loss over the data set instead, where there is one.
    log : bool, default True
        A logarithmic axis; runs that share one curve stay apart from zero on it.
    label : str, optional
        In the legend; unless given what the result says of itself.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result does not have what is asked for.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.risk(result, x="alpha")
    >>> ax.get_ylabel()
    'excess risk'
    """
    _checked(result)
    clock = choose_clock(result, x, ax)
    train, log = checks.flag("train", train), checks.flag("log", log)
    excess, label = checks.flag("excess", excess, optional=True), _text("label", label)
    chosen = "excess_risk" if ("excess_risk" in result if excess is None else excess) else "risk"
    if train:
        chosen = "train_risk"
        if chosen not in result:
            raise checks.reject(
                "train", train, "this result has no data set that is used again: leave it out"
            )
    if chosen == "excess_risk" and chosen not in result:
        raise checks.reject(
            "excess",
            excess,
            "this result has no excess risk (its loss is not squared): leave it out",
        )
    checks.result("result", result, chosen)
    fig, ax = _axes(ax)
    set_time_axis(ax, result, clock)
    own = _own_error(result, chosen)
    _draw(
        ax,
        np.asarray(result[clock]),
        np.asarray(result[chosen]),
        _style(result),
        label or _label(result),
        None,
        own,
    )
    ax.set_ylabel(VARIABLES[chosen].label)
    if log:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return fig, ax


def overlaps(
    result: xr.Dataset,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    name: str = "M",
    label: str | None = None,
) -> tuple[Any, Any]:
    """Every entry of M (or Q, or a) against time, one colour an entry; ``variable`` draws any other.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver returned.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    name : str, default "M"
        "M", "Q" or "a".
    label : str, optional
        In the legend; unless given what the result says of itself.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result does not have what is asked for.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.overlaps(result, name="Q")
    >>> len(ax.lines)
    3
    """
    checks.choice("name", name, ("M", "Q", "a"))
    checks.result(
        "result",
        result,
        name,
        fix="give a result with overlaps; those of a spiked tensor are m and r2",
    )
    return variable(result, name, ax, x=x, label=label)


def variable(
    result: xr.Dataset,
    name: str,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    label: str | None = None,
) -> tuple[Any, Any]:
    """Any variable of a result against time, one colour an entry: overlaps, risks, and what ``record`` and ``evaluate`` have added.

    Parameters
    ----------
    result : xarray.Dataset
        What a solver returned.
    name : str
        The variable, with axes (run, time, ...).
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    label : str, optional
        Of the runs in the legend; the method's name unless given.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result has no such variable along its runs and times.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> cosine = lambda state: state["M"][0, 0] / state["Q"][0, 0] ** 0.5
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0], record={"cosine": cosine})
    >>> fig, ax = sgd.plot.variable(path, "cosine")
    >>> ax.get_ylabel()
    'cosine'
    """
    _checked(result)
    checks.result("result", result, name)
    if result[name].dims[:2] != ("run", "time"):
        raise checks.reject(
            "name",
            name,
            f"it has the axes {result[name].dims}: give a variable along runs and times",
        )
    clock = choose_clock(result, x, ax)
    label = _text("label", label)
    fig, ax = _axes(ax)
    set_time_axis(ax, result, clock)
    values = np.asarray(result[name])
    entries = list(np.ndindex(*values.shape[2:]))
    if name == "Q":
        entries = [entry for entry in entries if list(entry) == sorted(entry)]
    theory, own = _is_theory(result), _own_error(result, name)
    for position, entry in enumerate(entries):
        shown = _entry(result, name, entry) if theory and len(entries) <= 8 else None
        if position == 0 and not theory:
            shown = label or _label(result)
        every = (slice(None), slice(None), *entry)
        band = None if own is None else own[every]
        _draw(
            ax,
            np.asarray(result[clock]),
            values[every],
            _style(result),
            shown,
            f"C{position % 10}",
            band,
        )
    ax.set_ylabel(VARIABLES[name].label if name in VARIABLES else name)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, ncols=2)
    return fig, ax


def _entry(result: xr.Dataset, name: str, entry: tuple[int, ...]) -> str:
    """What a legend calls one entry of a variable."""
    if name == "evaluated_risk":
        return str(result["evaluation"].values[entry[0]])
    if not entry:
        return name
    number = "".join(str(index + 1) for index in entry)
    return f"${name}_{{{number}}}$" if len(name) == 1 else f"{name} {number}"


REGION_COLOURS = {
    "classical": "#cfe3f5",
    "mean-field": "#d3ecd2",
    "high-dimensional": "#fde6c4",
    "fluctuating": "#f6cfc9",
    "finite-dimensional": "#e3a29b",
}


def regime_map(regimes: Any, ax: Axes | None = None) -> tuple[Any, Any]:
    """The map of the regimes with one setting on it, or several.

    Parameters
    ----------
    regimes : Regime, list of Regime or dict of str to Regime
        What ``sgd.regime`` returns; a dictionary says what the legend calls each.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If these are no regimes.

    Notes
    -----
    Across: how wide the network is (one over the size of its finite-width term, which grows as p); up: the size of the noise of SGD, which
    grows as lr/(p B). So lr -> 0 goes down, p -> infinity at fixed lr down to the right, and d -> infinity moves the upper borders up:
    they are those of the first setting. Settings of another dimension have theirs as dotted lines of their own colour (where runs begin to
    scatter), and every marker is filled with the colour of the regime that it is in. lr = 0 lies on the lower edge.

    Examples
    --------
    >>> here = sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000)
    >>> fig, ax = sgd.plot.regime_map({"mine": here})
    >>> ax.get_title()
    'borders for $d$ = 1000'
    """
    # here, because the analysis draws on the solvers, and plots should not load them
    from sgdynamics.analysis.regimes import LARGE, SMALL, Regime

    listed = dict(enumerate(regimes)) if isinstance(regimes, (list, tuple)) else {}
    given = (
        regimes
        if isinstance(regimes, dict)
        else {None: regimes}
        if isinstance(regimes, Regime)
        else listed
    )
    if not given or not all(isinstance(value, Regime) for value in given.values()):
        raise checks.reject(
            "regimes",
            regimes,
            "give what sgd.regime returns, a list of them, or a dictionary of them by label",
        )
    fig, ax = _axes(ax, (8.5, 4.5))
    every = list(given.values())
    borders = [_scatter_borders(one, (SMALL, LARGE)) for one in every]
    x = np.array([1 / one.finite_width.size for one in every])
    y = np.array([one.noise.size for one in every])
    first = borders[0]
    right = max(30 / SMALL, 4 * x.max())
    left = min(0.3, x.min() / 2)
    top = max(4 * first[1], 2 * max(y), 4 * SMALL)
    bottom = min(SMALL / 30, *(value / 3 for value in y if value > 0), first[0] / 10)
    quiet = min(SMALL, first[0])
    _region(ax, "classical", (left, 1 / SMALL), (bottom, quiet), "gradient flow")
    _region(ax, "mean-field", (1 / SMALL, right), (bottom, quiet), "density of units")
    _region(ax, "high-dimensional", (left, right), (quiet, first[0]), "ODE with the noise of SGD")
    _region(ax, "fluctuating", (left, right), (first[0], first[1]), "SDE")
    _region(ax, "finite-dimensional", (left, right), (first[1], top), "exact chain")
    for index, (label, one) in enumerate(given.items()):
        if abs(np.log(borders[index][0] / first[0])) > 0.1 and bottom < borders[index][0] < top:
            ax.axhline(borders[index][0], color=f"C{index}", ls=":", lw=1.4)
        named = (
            label
            if isinstance(label, str)
            else f"$p$ = {one.width}, $d$ = {one.dimension}, lr = {one.lr:g}"
        )
        height, shape = (bottom, "v") if y[index] < bottom else (y[index], "o")
        style = {
            "mfc": REGION_COLOURS[one.name],
            "mec": f"C{index}",
            "mew": 2,
            "ms": 9,
            "clip_on": False,
            "zorder": 4,
        }
        ax.plot(x[index], height, shape, ls="none", label=f"{named}\n{one.name}", **style)
    _limits(ax, (x[0], max(y[0], 3 * bottom)), (right, first[0]), top)
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    ax.set_title(f"borders for $d$ = {every[0].dimension}", fontsize=10)
    ax.set_xlabel(r"width: 1/(finite-width term) $\propto p$")
    ax.set_ylabel(r"noise of SGD over gradient flow $\propto$ lr$/(pB)$")
    ax.legend(
        frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, labelspacing=1.0
    )
    return fig, ax


def _limits(ax: Axes, point: tuple[float, float], border: tuple[float, float], top: float) -> None:
    """Arrows of the three limits: two from a setting, and d -> infinity on the border that it moves."""
    arrow = {"arrowstyle": "-|>", "color": "0.3", "lw": 1.2, "shrinkA": 6}
    for name, factors in (("lr → 0", (1.0, 0.35)), ("p → ∞", (5.0, 0.2))):
        end = (point[0] * factors[0], point[1] * factors[1])
        ax.annotate("", end, point, arrowprops=arrow)
        ax.text(end[0] * 1.1, end[1], name, fontsize=8, color="0.3", va="center")
    if border[1] < top / 2:
        x = 0.8 * border[0]
        ax.annotate("", (x, 2 * border[1]), (x, border[1]), arrowprops={**arrow, "shrinkA": 0})
        ax.text(0.9 * x, 1.4 * border[1], "d → ∞", fontsize=8, color="0.3", va="center", ha="right")


def _scatter_borders(one: Any, sizes: tuple[float, float]) -> tuple[float, float]:
    """The sizes of the noise at which runs of this problem and dimension scatter by so much: both grow with lr/(p B)."""
    ratio = one.noise.coefficient * one.dimension / one.fluctuation.coefficient**2
    return (ratio * sizes[0] ** 2, ratio * sizes[1] ** 2)


def _region(
    ax: Axes, name: str, x: tuple[float, float], y: tuple[float, float], method: str
) -> None:
    """A coloured rectangle with its name, where there is room for it."""
    if y[1] <= y[0]:
        return
    ax.fill_between(x, y[0], y[1], color=REGION_COLOURS[name], lw=0)
    if np.log(y[1] / y[0]) > 1.0:
        box = {
            "facecolor": REGION_COLOURS[name],
            "edgecolor": "none",
            "pad": 1.0,
        }  # over the arrows, which may cross it
        style = {
            "ha": "center",
            "va": "center",
            "fontsize": 9,
            "color": "0.25",
            "zorder": 3.5,
            "bbox": box,
        }
        ax.text(np.sqrt(x[0] * x[1]), np.sqrt(y[0] * y[1]), f"{name}\n{method}", **style)


def phase_diagram(
    dataset: xr.Dataset,
    x: str,
    y: str,
    value: str | None = None,
    ax: Axes | None = None,
    *,
    log: bool | None = None,
    label: str | None = None,
) -> tuple[Any, Any]:
    """A heat map of one number over two swept parameters: cells centred on the points, logarithmic axes where the grid is.

    Failed points are hatched, points without a value grey.

    Parameters
    ----------
    dataset : xarray.Dataset
        What ``sgd.sweep`` returned.
    x : str
        The swept number across.
    y : str
        The swept number up.
    value : str, optional
        A variable over x and y (a mean is taken over ``run``); it may be left out where there is only one.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    log : bool, optional
        Logarithmic colours; unless given where the values are positive and span more than a factor of 100.
    label : str, optional
        Of the colour bar; unless given the long name of the variable.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If x or y is no swept number of two values or more, or the variable is not over both alone.

    Examples
    --------
    >>> def product(lr, noise):
    ...     return {"product": lr * noise}
    >>> grid = sgd.sweep(product, over={"lr": [0.1, 0.2, 0.4], "noise": [1.0, 2.0]}, workers=1, progress=False)
    >>> fig, ax = sgd.plot.phase_diagram(grid, x="lr", y="noise")
    >>> ax.get_xscale(), ax.get_yscale()
    ('log', 'linear')
    """
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch, Rectangle

    checks.result("dataset", dataset, fix="give what sgd.sweep returned")
    log, label = checks.flag("log", log, optional=True), _text("label", label)
    for argument, name in (("x", x), ("y", y)):
        known = [str(dim) for dim in dataset.dims if dim in dataset.coords]
        if (
            not isinstance(name, str)
            or name not in known
            or np.asarray(dataset[name]).dtype.kind not in "iuf"
            or dataset.sizes[name] < 2
        ):
            listed = f": {', '.join(known)}" if known else "; this dataset has none, it is no sweep"
            raise checks.reject(
                argument,
                name,
                f"{checks.did_you_mean(name, known)}give a swept number of two values or more{listed}",
            )
    fig, ax = _axes(ax, (6.4, 4.6))
    name, table = _table(dataset, x, y, value)
    edges = []
    for axis, set_scale in ((x, ax.set_xscale), (y, ax.set_yscale)):
        borders, scale = _cell_edges(np.asarray(dataset[axis], dtype=float))
        set_scale(scale)
        edges.append(borders)
    values = np.ma.masked_invalid(table)
    span = values.max() > 100 * values.min() > 0 if values.count() else False
    norm = LogNorm() if (span if log is None else log) else None
    ax.set_facecolor("0.85")
    mesh = ax.pcolormesh(
        *edges, values, norm=norm, cmap="viridis", shading="flat", rasterized=table.size > 2500
    )
    fig.colorbar(
        mesh, ax=ax, label=label or str(dataset[name].attrs.get("long_name", name)), pad=0.02
    )
    failed = np.zeros(table.shape, dtype=bool)
    if "failed" in dataset and {x, y} <= set(dataset["failed"].dims):
        rest = [dim for dim in dataset["failed"].dims if dim not in (x, y)]
        failed = np.asarray((dataset["failed"] != "").any(rest).transpose(y, x))
    for row, column in np.argwhere(failed):
        corner = edges[0][column], edges[1][row]
        size = edges[0][column + 1] - corner[0], edges[1][row + 1] - corner[1]
        ax.add_patch(
            Rectangle(corner, *size, facecolor="white", edgecolor="0.4", hatch="////", lw=0)
        )
    keys = (
        [Patch(facecolor="white", edgecolor="0.4", hatch="////", label="failed")]
        if failed.any()
        else []
    )
    keys += [Patch(facecolor="0.85", label="no value")] if np.any(np.isnan(table) & ~failed) else []
    if keys:
        ax.legend(
            handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False
        )
    ax.set(xlim=(edges[0][0], edges[0][-1]), ylim=(edges[1][0], edges[1][-1]))
    ax.set_xlabel(PARAMETER_LABELS.get(x, x))
    ax.set_ylabel(PARAMETER_LABELS.get(y, y))
    return fig, ax


PARAMETER_LABELS = {
    "lr": "learning rate",
    "noise": "label noise",
    "weight_decay": "weight decay",
    "head_rate": "rate of the head",
    "dimension": "dimension $d$",
}


def _table(dataset: xr.Dataset, x: str, y: str, value: str | None) -> tuple[str, np.ndarray]:
    """One number at every point (rows along y), and the name of the variable that it is."""
    over = [
        str(name)
        for name, one in dataset.data_vars.items()
        if one.dtype.kind in "iuf" and {x, y} <= set(one.dims)
    ]
    if value is None:
        over = [name for name in over if not name.startswith("error_")]
        if len(over) != 1:
            raise checks.reject("value", value, f"say which variable to show: {', '.join(over)}")
        value = over[0]
    if not isinstance(value, str) or value not in over:
        raise checks.reject(
            "value",
            value,
            f"{checks.did_you_mean(value, over)}variables over {x} and {y} are {', '.join(over)}",
        )
    shown = dataset[value]
    if "run" in shown.dims:
        shown = shown.mean("run")
    left = [str(dim) for dim in shown.dims if dim not in (x, y) and shown.sizes[dim] > 1]
    if left:
        raise checks.reject(
            "value",
            value,
            f"it also varies along {', '.join(left)}: choose one place with dataset.isel({left[0]}=...)",
        )
    return value, np.asarray(
        shown.squeeze([dim for dim in shown.dims if dim not in (x, y)]).transpose(y, x), dtype=float
    )


def _cell_edges(points: np.ndarray) -> tuple[np.ndarray, str]:
    """Borders half way between points: in the logarithm where the points are spaced so, or span more than a factor of 100."""
    steps = np.diff(points)
    if np.any(steps <= 0):
        raise checks.reject(
            "x, y",
            points.tolist(),
            "the grid of a phase diagram must increase: sort it with dataset.sortby(...)",
        )
    even = np.ptp(steps) <= 1e-6 * np.abs(steps).max()
    log = (
        points[0] > 0
        and not even
        and (
            np.ptp(np.diff(np.log(points))) <= 1e-6 * np.log(points[-1] / points[0])
            or points[-1] > 100 * points[0]
        )
    )
    places = np.log(points) if log else points
    middle = (places[1:] + places[:-1]) / 2
    edges = np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])
    return (np.exp(edges), "log") if log else (edges, "linear")


def _axes(ax: Axes | None, size: tuple[float, float] = (6, 4)) -> tuple[Any, Axes]:
    import matplotlib.pyplot as plt

    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")
    if not (hasattr(ax, "figure") and hasattr(ax, "errorbar")):
        raise checks.reject("ax", ax, "give an axis of matplotlib, or none for a new one")
    return ax.figure, ax


def _text(argument: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise checks.reject(argument, value, "give a text, or None")
    return value


def _checked(result: Any) -> None:
    checks.result("result", result, "run", "time", "t")
    if not result.sizes["run"] or not result.sizes["time"]:
        raise checks.reject(
            "result",
            dict(result.sizes),
            "it has no runs or no save points: there is nothing to draw",
        )


def _method(result: xr.Dataset) -> registry.Method | None:
    """The registry entry of the method that made a result."""
    return registry.method_of_result(str(result.attrs.get("method", "")))


def _is_theory(result: xr.Dataset) -> bool:
    """Whether a result is a deterministic curve, as opposed to random runs."""
    method = _method(result)
    return method is None or not method.is_random


def _style(result: xr.Dataset) -> dict[str, Any]:
    """Markers of a result; empty for theory, which is drawn as lines.

    The exact chain has filled points, direct runs open squares behind them, the SDE triangles.
    """
    method = _method(result)
    if method is None or not method.is_random:
        return {}
    if method.name == "direct":
        return {"fmt": "s", "ms": 7, "mfc": "none", "zorder": 1}
    if method.name == "sde":
        return {"fmt": "^", "ms": 5, "mfc": "none", "zorder": 2}
    return {"fmt": "o", "ms": 3.5, "zorder": 3}


def _label(result: xr.Dataset) -> str:
    """The label of a result in a legend: its method, its dimension, and how many runs it has."""
    method = _method(result)
    label = str(result.attrs.get("method", "result")) if method is None else method.label
    if "dimension" in result.attrs:
        label += f", d = {result.attrs['dimension']}"
    if result.sizes["run"] > 1 and not _is_theory(result):
        label += f", {result.sizes['run']} runs"
    return label


def _own_error(result: xr.Dataset, name: str) -> np.ndarray | None:
    """The standard error that a theory has of its own, as DMFT from its sampled paths."""
    of = (VARIABLES[name].error if name in VARIABLES else "") or name
    own = result.get(f"{of}{STANDARD_ERROR}")
    return np.asarray(own) if own is not None and own.shape == result[name].shape else None


def _draw(
    ax: Axes,
    x: np.ndarray,
    values: np.ndarray,
    style: dict[str, Any],
    label: str | None,
    color: str | None,
    band: np.ndarray | None = None,
) -> None:
    """Draw theory as lines, one per run, with its own standard error, a simulation as mean and error bars.

    A theory of few save points is drawn as markers, a single run as points.
    """
    if not style:
        kind = curve_style(len(x))
        for index, row in enumerate(values):
            (line,) = ax.plot(x, row, label=label if index == 0 else None, color=color, **kind)
            if band is not None:
                ax.fill_between(
                    x,
                    row - band[index],
                    row + band[index],
                    color=line.get_color(),
                    alpha=0.25,
                    lw=0,
                )
        return
    good = np.isfinite(values).all(axis=1)
    if good.sum() < 2:
        for index, row in enumerate(values):
            ax.plot(x, row, ".", ms=4, label=label if index == 0 else None, color=color)
        return
    every = max(1, len(x) // MOST_POINTS)
    mean = values[good].mean(axis=0)
    error = values[good].std(axis=0, ddof=1) / np.sqrt(good.sum())
    ax.errorbar(
        x[::every],
        mean[::every],
        error[::every],
        lw=1,
        capsize=2,
        label=label,
        color=color,
        **style,
    )


def density(
    result: xr.Dataset,
    time: int = -1,
    ax: Axes | None = None,
    *,
    run: int | None = None,
    bins: int = 60,
) -> tuple[Any, Any]:
    """The density mu_t of the particles at a save point: of (m, q) for one signal, of (m_1, m_2) for more.

    Parameters
    ----------
    result : xarray.Dataset
        What ``sgd.solve_mean_field`` returned.
    time : int, default -1
        Which save point, counted from 0; -1 is the last.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    run : int, optional
        Which run; all of them unless given.
    bins : int, default 60
        Of the histogram, in each direction.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result is of another kind, has no such save point or run, or has diverged by then.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=64, activation="erf")
    >>> begin = sgd.mean_field_random_start(problem, dimension=200)
    >>> result = sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), begin, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.density(result, bins=20)
    >>> ax.get_title()
    '$t/p$ = 1'
    """
    checks.result(
        "result",
        result,
        "q",
        "M",
        "time",
        "signal",
        "run",
        "t",
        fix="give what solve_mean_field returns",
    )
    point = result.isel(time=_place("time", time, result.sizes["time"], "save points", ""))
    bins = checks.integer("bins", bins, 1, 10_000)
    if run is not None:
        point = point.isel(
            run=[_place("run", run, result.sizes["run"], "runs", ", or None for all")]
        )
    M = np.asarray(point["M"]).reshape(-1, result.sizes["signal"])
    one = M.shape[1] == 1
    x, y = M[:, 0], np.asarray(point["q"]).reshape(-1) if one else M[:, 1]
    good = np.isfinite(x) & np.isfinite(y)
    if not good.any():
        raise checks.reject(
            "time", time, "every run has diverged by then: take an earlier save point"
        )
    fig, ax = _axes(ax, (5, 4))
    *_, image = ax.hist2d(x[good], y[good], bins=bins, density=True, cmin=1e-300)
    fig.colorbar(image, ax=ax, label="density")
    ax.set_xlabel("$m$" if one else "$m_1$")
    ax.set_ylabel("$q$" if one else "$m_2$")
    ax.set_title(f"$t/p$ = {float(point['t']):g}")
    return fig, ax


def _place(argument: str, value: Any, count: int, what: str, more: str) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not -count <= value < count
    ):
        raise checks.reject(
            argument, value, f"the result has {count} {what}: give -{count}..{count - 1}{more}"
        )
    return int(value)
