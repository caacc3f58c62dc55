"""Plots of results: each function returns (fig, ax) and accepts an axis, to combine results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sgdynamics.analysis.protocols.picture import protocol as protocol
from sgdynamics.base import checks
from sgdynamics.plotting import curves
from sgdynamics.plotting.time_axis import choose_clock, set_time_axis
from sgdynamics.results.variables import VARIABLES

if TYPE_CHECKING:  # Matplotlib is imported by the functions that draw.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sgdynamics.analysis.regimes import Regime
    from sgdynamics.problems.problem import Problem


def risk(
    result: xr.Dataset,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    excess: bool | None = None,
    train: bool = False,
    log: bool = True,
    label: str | None = None,
    floor: bool | Problem = False,
) -> tuple[Figure, Axes]:
    """Draw the risk against time.

    Theory is a line, with a band of its standard error where it has one. A simulation is the mean
    over runs with standard errors.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver.
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    excess : bool, optional
        Whether to draw the excess risk (True) or the risk (False). Defaults to the excess risk
        where it is defined.
    train : bool, default False
        Whether to draw the mean loss over the fixed data set instead.
    log : bool, default True
        Whether the vertical axis is logarithmic.
    label : str, optional
        Label in the legend. Defaults to the method, the dimension and the number of runs.
    floor : bool or Problem, default False
        Whether to draw the Bayes-optimal risk of ``sgd.bayes_optimal`` on as many samples. Give the
        problem if it contains functions of yours, which results do not store.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result lacks the requested variable or unit of time, or the floor is not defined.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.risk(result, x="alpha")
    >>> ax.get_ylabel()
    'excess risk'
    """
    curves.require_trajectory(result)
    clock = choose_clock(result, x, ax)
    train, log = checks.flag("train", train), checks.flag("log", log)
    excess, label = (
        checks.flag("excess", excess, optional=True),
        curves.require_text("label", label),
    )
    name = _risk_name(result, excess, train)
    checks.result("result", result, name)
    fig, ax = curves.figure_and_axis(ax)
    set_time_axis(ax, result, clock)
    if floor is not False:
        # imports JAX, which pictures do not need otherwise
        from sgdynamics.plotting.floor import draw_floor

        draw_floor(ax, result, floor, clock, name)
    curves.draw_curves(
        ax,
        np.asarray(result[clock]),
        np.asarray(result[name]),
        curves.marker_style(result),
        label or curves.result_label(result),
        error=curves.theory_error(result, name),
    )
    ax.set_ylabel(VARIABLES[name].label)
    if log:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return fig, ax


def _risk_name(result: xr.Dataset, excess: bool | None, train: bool) -> str:
    """The variable that `risk` draws."""
    if train:
        if "train_risk" not in result:
            raise checks.reject(
                "train", train, "this result has no fixed data set. Omit this argument."
            )
        return "train_risk"
    if excess and "excess_risk" not in result:
        raise checks.reject(
            "excess",
            excess,
            "this result has no excess risk, because its loss is not squared. Omit this argument.",
        )
    use_excess = "excess_risk" in result if excess is None else excess
    return "excess_risk" if use_excess else "risk"


def overlaps(
    result: xr.Dataset,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    name: str = "M",
    label: str | None = None,
) -> tuple[Figure, Axes]:
    """Draw the entries of M, Q or a against time, with one colour per entry.

    ``sgd.plot.variable`` draws any other variable.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver.
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    name : str, default "M"
        The variable: "M", "Q" or "a".
    label : str, optional
        Label in the legend. A theory adds it to the names of the entries; a simulation shows it
        instead of the method, the dimension and the number of runs.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result lacks the requested variable or unit of time.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.overlaps(result, name="Q")
    >>> len(ax.lines)
    3
    """
    checks.choice("name", name, ("M", "Q", "a"))
    checks.result(
        "result",
        result,
        name,
        fix="use a result with overlaps. Those of a spiked tensor are m and r2: use plot.variable.",
    )
    return variable(result, name, ax, x=x, label=label)


def variable(
    result: xr.Dataset,
    name: str,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    label: str | None = None,
) -> tuple[Figure, Axes]:
    """Draw any variable of a result against time, with one colour per entry.

    This includes the variables that ``record`` and ``evaluate`` add to a result.

    Parameters
    ----------
    result : xarray.Dataset
        Result of a solver.
    name : str
        The variable, with axes (run, time, ...).
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.
    x : str, optional
        The unit of time: "t", "alpha", "step" or "epoch". Defaults to the unit that ``ax`` already
        shows, else to the unit in which the result's save points were requested.
    label : str, optional
        Label in the legend. A theory adds it to the names of the entries; a simulation shows it
        instead of the method, the dimension and the number of runs.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result has no such variable, or if its first axes are not (run, time).

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> cosine = lambda state: state["M"][0, 0] / state["Q"][0, 0] ** 0.5
    >>> algorithm, record = sgd.OnePassSGD(lr=0.1), {"cosine": cosine}
    >>> path = sgd.solve_ode(problem, algorithm, start, times=[0.5, 1.0], record=record)
    >>> fig, ax = sgd.plot.variable(path, "cosine")
    >>> ax.get_ylabel()
    'cosine'
    """
    curves.require_trajectory(result)
    checks.result("result", result, name)
    if result[name].dims[:2] != ("run", "time"):
        raise checks.reject(
            "name",
            name,
            f"it has the axes {result[name].dims}. Use a variable whose first axes are run and "
            "time.",
        )
    clock = choose_clock(result, x, ax)
    label = curves.require_text("label", label)
    fig, ax = curves.figure_and_axis(ax)
    set_time_axis(ax, result, clock)
    values, error = np.asarray(result[name]), curves.theory_error(result, name)
    entries = list(np.ndindex(*values.shape[2:]))
    if name == "Q":  # symmetric
        entries = [entry for entry in entries if list(entry) == sorted(entry)]
    has_theory = curves.is_theory(result)
    for position, entry in enumerate(entries):
        # Theory labels its entries, a simulation only its runs.
        shown = None
        if has_theory and len(entries) <= MAX_LABELS:
            shown = curves.entry_label(result, name, entry)
            shown = f"{shown}, {label}" if label else shown
        elif not has_theory and position == 0:
            shown = label or curves.result_label(result)
        index = (slice(None), slice(None), *entry)
        curves.draw_curves(
            ax,
            np.asarray(result[clock]),
            values[index],
            curves.marker_style(result),
            shown,
            f"C{position % 10}",
            None if error is None else error[index],
        )
    ax.set_ylabel(VARIABLES[name].label if name in VARIABLES else name)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, ncols=2)
    return fig, ax


MAX_LABELS = 8  # entries of a variable that a legend names
REGION_COLOURS = {
    "classical": "#cfe3f5",
    "mean-field": "#d3ecd2",
    "high-dimensional": "#fde6c4",
    "fluctuating": "#f6cfc9",
    "finite-dimensional": "#e3a29b",
}


def regime_map(
    regimes: Regime | Sequence[Regime] | Mapping[str, Regime], ax: Axes | None = None
) -> tuple[Figure, Axes]:
    """Draw the map of regimes, with one or several settings on it.

    Parameters
    ----------
    regimes : Regime, list of Regime or dict of str to Regime
        Results of ``sgd.regime``; the keys of a dictionary are labels in the legend.
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If ``regimes`` has other values.

    Notes
    -----
    The horizontal axis is the width of the network: one over its finite-width term, proportional
    to p. The vertical axis is the noise of SGD relative to gradient flow, proportional to lr/(p B).
    So lr -> 0 moves a setting down, p -> infinity at fixed lr moves it down and to the right, and
    d -> infinity moves the upper borders up. The borders belong to the first setting; other
    dimensions have dotted lines of their own colour, where runs begin to scatter. Each marker is
    filled with the colour of its regime. A setting with lr = 0 lies on the lower edge.

    Examples
    --------
    >>> setting = sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000)
    >>> fig, ax = sgd.plot.regime_map({"mine": setting})
    >>> ax.get_title()
    'borders for $d$ = 1000'
    """
    # Imported here, because plots of results should not load the analysis and its solvers.
    from sgdynamics.analysis.regimes import LARGE, SMALL, Regime

    settings: dict[Any, Regime] = {}
    if isinstance(regimes, Regime):
        settings = {None: regimes}
    elif isinstance(regimes, dict):
        settings = regimes
    elif isinstance(regimes, (list, tuple)):
        settings = dict(enumerate(regimes))
    if not settings or not all(isinstance(value, Regime) for value in settings.values()):
        raise checks.reject(
            "regimes",
            regimes,
            "use the result of sgd.regime, a list of results, or a dictionary of results by label.",
        )
    fig, ax = curves.figure_and_axis(ax, (8.5, 4.5))
    first = next(iter(settings.values()))
    borders = [_scatter_borders(regime, (SMALL, LARGE)) for regime in settings.values()]
    x = np.array([1 / regime.finite_width.size for regime in settings.values()])
    y = np.array([regime.noise.size for regime in settings.values()])
    sde, chain = borders[0]  # above these, the SDE and then only the exact chain is valid
    flow = min(SMALL, sde)  # below this, the noise of SGD is negligible
    left, right = min(0.3, x.min() / 2), max(30 / SMALL, 4 * x.max())
    top = max(4 * chain, 2 * max(y), 4 * SMALL)
    bottom = min(SMALL / 30, *(value / 3 for value in y if value > 0), sde / 10)
    _region(ax, "classical", (left, 1 / SMALL), (bottom, flow), "gradient flow")
    _region(ax, "mean-field", (1 / SMALL, right), (bottom, flow), "density of units")
    _region(ax, "high-dimensional", (left, right), (flow, sde), "ODE with the noise of SGD")
    _region(ax, "fluctuating", (left, right), (sde, chain), "SDE")
    _region(ax, "finite-dimensional", (left, right), (chain, top), "exact chain")
    for index, (label, regime) in enumerate(settings.items()):
        border = borders[index][0]
        if abs(np.log(border / sde)) > 0.1 and bottom < border < top:
            ax.axhline(border, color=f"C{index}", ls=":", lw=1.4)
        if not isinstance(label, str):
            label = f"$p$ = {regime.width}, $d$ = {regime.dimension}, lr = {regime.lr:g}"
        height, marker = (bottom, "v") if y[index] < bottom else (y[index], "o")
        ax.plot(
            x[index],
            height,
            marker,
            ls="none",
            label=f"{label}\n{regime.name}",
            mfc=REGION_COLOURS[regime.name],
            mec=f"C{index}",
            mew=2,
            ms=9,
            clip_on=False,
            zorder=4,
        )
    _draw_limits(ax, (x[0], max(y[0], 3 * bottom)), (right, sde), top)
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    ax.set_title(f"borders for $d$ = {first.dimension}", fontsize=10)
    ax.set_xlabel(r"width: 1/(finite-width term) $\propto p$")
    ax.set_ylabel(r"noise of SGD over gradient flow $\propto$ lr$/(pB)$")
    ax.legend(
        frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, labelspacing=1.0
    )
    return fig, ax


def _draw_limits(
    ax: Axes, point: tuple[float, float], border: tuple[float, float], top: float
) -> None:
    """Draw arrows of three limits: lr and p from a setting, d on the border that it moves."""
    arrow = {"arrowstyle": "-|>", "color": "0.3", "lw": 1.2, "shrinkA": 6}
    for name, factors in (("lr → 0", (1.0, 0.35)), ("p → ∞", (5.0, 0.2))):
        end = (point[0] * factors[0], point[1] * factors[1])
        ax.annotate("", end, point, arrowprops=arrow)
        ax.text(end[0] * 1.1, end[1], name, fontsize=8, color="0.3", va="center")
    if border[1] < top / 2:
        x = 0.8 * border[0]
        ax.annotate("", (x, 2 * border[1]), (x, border[1]), arrowprops={**arrow, "shrinkA": 0})
        ax.text(0.9 * x, 1.4 * border[1], "d → ∞", fontsize=8, color="0.3", va="center", ha="right")


def _scatter_borders(regime: Regime, sizes: tuple[float, float]) -> tuple[float, float]:
    """The noise of SGD at which runs of this problem and dimension scatter by these sizes.

    The scatter grows with the square root of the noise, because both grow with lr/(p B).
    """
    ratio = regime.noise.coefficient * regime.dimension / regime.fluctuation.coefficient**2
    return (ratio * sizes[0] ** 2, ratio * sizes[1] ** 2)


def _region(
    ax: Axes, name: str, x: tuple[float, float], y: tuple[float, float], method: str
) -> None:
    """Draw a coloured rectangle, with its name if it is tall enough."""
    if y[1] <= y[0]:
        return
    color = REGION_COLOURS[name]
    ax.fill_between(x, y[0], y[1], color=color, lw=0)
    if np.log(y[1] / y[0]) > 1.0:
        ax.text(
            np.sqrt(x[0] * x[1]),
            np.sqrt(y[0] * y[1]),
            f"{name}\n{method}",
            ha="center",
            va="center",
            fontsize=9,
            color="0.25",
            zorder=3.5,  # above the arrows, which may cross it
            bbox={"facecolor": color, "edgecolor": "none", "pad": 1.0},
        )


def phase_diagram(
    dataset: xr.Dataset,
    x: str,
    y: str,
    value: str | None = None,
    ax: Axes | None = None,
    *,
    log: bool | None = None,
    label: str | None = None,
) -> tuple[Figure, Axes]:
    """Draw a heat map of a variable over two swept parameters.

    The cells are centred on the points of the grid. An axis is logarithmic where its points are
    spaced logarithmically. Failed points are hatched, points without a value grey.

    Parameters
    ----------
    dataset : xarray.Dataset
        Result of ``sgd.sweep``.
    x : str
        Swept parameter of the horizontal axis.
    y : str
        Swept parameter of the vertical axis.
    value : str, optional
        Variable to draw, averaged over ``run``. Optional if only one variable depends on x and y.
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.
    log : bool, optional
        Whether the colours are logarithmic. By default they are if the values are positive and
        span more than a factor of 100.
    label : str, optional
        Label of the colour bar. Defaults to the long name of the variable.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If x or y is not a swept number with two values or more, or if the variable varies along
        other axes too.

    Examples
    --------
    >>> def product(lr, noise):
    ...     return {"product": lr * noise}
    >>> over = {"lr": [0.1, 0.2, 0.4], "noise": [1.0, 2.0]}
    >>> grid = sgd.sweep(product, over=over, workers=1, progress=False)
    >>> fig, ax = sgd.plot.phase_diagram(grid, x="lr", y="noise")
    >>> ax.get_xscale(), ax.get_yscale()
    ('log', 'linear')
    """
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch, Rectangle

    checks.result("dataset", dataset, fix="use the result of sgd.sweep.")
    log, label = checks.flag("log", log, optional=True), curves.require_text("label", label)
    _require_swept_number(dataset, "x", x)
    _require_swept_number(dataset, "y", y)
    fig, ax = curves.figure_and_axis(ax, (6.4, 4.6))
    name, table = _table(dataset, x, y, value)
    x_edges, x_scale = _cell_edges(np.asarray(dataset[x], dtype=float))
    y_edges, y_scale = _cell_edges(np.asarray(dataset[y], dtype=float))
    ax.set_xscale(x_scale)
    ax.set_yscale(y_scale)
    values = np.ma.masked_invalid(table)
    if log is None:
        log = bool(values.count() and values.max() > 100 * values.min() > 0)
    ax.set_facecolor("0.85")
    mesh = ax.pcolormesh(
        x_edges,
        y_edges,
        values,
        norm=LogNorm() if log else None,
        cmap="viridis",
        shading="flat",
        rasterized=table.size > 2500,
    )
    long_name = str(dataset[name].attrs.get("long_name", name))
    fig.colorbar(mesh, ax=ax, label=label or long_name, pad=0.02)
    failed = np.zeros(table.shape, dtype=bool)
    if "failed" in dataset and {x, y} <= set(dataset["failed"].dims):
        others = [dim for dim in dataset["failed"].dims if dim not in (x, y)]
        failed = np.asarray((dataset["failed"] != "").any(others).transpose(y, x))
    hatched: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.4", "hatch": "////"}
    for row, column in np.argwhere(failed).tolist():
        corner = float(x_edges[column]), float(y_edges[row])
        width, height = float(x_edges[column + 1]) - corner[0], float(y_edges[row + 1]) - corner[1]
        ax.add_patch(Rectangle(corner, width, height, lw=0, **hatched))
    handles = [Patch(label="failed", **hatched)] if failed.any() else []
    if np.any(np.isnan(table) & ~failed):
        handles.append(Patch(facecolor="0.85", label="no value"))
    if handles:
        ax.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False
        )
    ax.set(xlim=(x_edges[0], x_edges[-1]), ylim=(y_edges[0], y_edges[-1]))
    ax.set_xlabel(PARAMETER_LABELS.get(x, x))
    ax.set_ylabel(PARAMETER_LABELS.get(y, y))
    return fig, ax


def _require_swept_number(dataset: xr.Dataset, argument: str, name: object) -> None:
    swept = [str(dim) for dim in dataset.dims if dim in dataset.coords]
    if (
        isinstance(name, str)
        and name in swept
        and np.asarray(dataset[name]).dtype.kind in "iuf"
        and dataset.sizes[name] > 1
    ):
        return
    choices = f"Choose from {', '.join(swept)}." if swept else "This dataset is not a sweep."
    raise checks.reject(
        argument,
        name,
        f"{checks.did_you_mean(name, swept)}this must be a swept number with two values or more. "
        f"{choices}",
    )


PARAMETER_LABELS = {
    "lr": "learning rate",
    "noise": "label noise",
    "weight_decay": "weight decay",
    "head_rate": "rate of the head",
    "dimension": "dimension $d$",
}


def _table(dataset: xr.Dataset, x: str, y: str, value: str | None) -> tuple[str, np.ndarray]:
    """The name of the variable to draw, and its values with rows along y."""
    names = [
        str(name)
        for name, variable in dataset.data_vars.items()
        if variable.dtype.kind in "iuf" and {x, y} <= set(variable.dims)
    ]
    if value is None:
        names = [name for name in names if not name.startswith("error_")]
        if len(names) != 1:
            raise checks.reject(
                "value", value, f"several variables can be drawn. Choose from {', '.join(names)}."
            )
        value = names[0]
    if not isinstance(value, str) or value not in names:
        raise checks.reject(
            "value",
            value,
            f"{checks.did_you_mean(value, names)}variables over {x} and {y} are "
            f"{', '.join(names)}.",
        )
    shown = dataset[value]
    if "run" in shown.dims:
        shown = shown.mean("run")
    others = [str(dim) for dim in shown.dims if dim not in (x, y)]
    varying = [dim for dim in others if shown.sizes[dim] > 1]
    if varying:
        raise checks.reject(
            "value",
            value,
            f"it also varies along {', '.join(varying)}. Select a point with "
            f"dataset.isel({varying[0]}=...).",
        )
    return value, np.asarray(shown.squeeze(others).transpose(y, x), dtype=float)


def _cell_edges(points: np.ndarray) -> tuple[np.ndarray, str]:
    """Edges half way between the points of a grid, and the scale of the axis.

    The scale is logarithmic if the points are spaced logarithmically, or if they are not evenly
    spaced and span more than a factor of 100.
    """
    steps = np.diff(points)
    if np.any(steps <= 0):
        raise checks.reject(
            "x, y",
            points.tolist(),
            "the grid of a phase diagram must increase. Sort it with dataset.sortby(...).",
        )
    is_even = np.ptp(steps) <= 1e-6 * np.abs(steps).max()
    is_log = False
    if points[0] > 0 and not is_even:
        log_steps = np.diff(np.log(points))
        is_log = np.ptp(log_steps) <= 1e-6 * np.log(points[-1] / points[0]) or (
            points[-1] > 100 * points[0]
        )
    positions = np.log(points) if is_log else points
    middle = (positions[1:] + positions[:-1]) / 2
    first, last = 2 * positions[0] - middle[0], 2 * positions[-1] - middle[-1]
    edges = np.concatenate([[first], middle, [last]])
    return (np.exp(edges), "log") if is_log else (edges, "linear")


def density(
    result: xr.Dataset,
    time: int = -1,
    ax: Axes | None = None,
    *,
    run: int | None = None,
    bins: int = 60,
) -> tuple[Figure, Axes]:
    """Draw the density of the particles of a wide network at a save point.

    The axes are (m, q) for one signal, and (m_1, m_2) for several signals.

    Parameters
    ----------
    result : xarray.Dataset
        Result of ``sgd.solve_mean_field``.
    time : int, default -1
        Index of the save point; -1 is the last one.
    ax : matplotlib.axes.Axes, optional
        Axis to draw on. Defaults to a new figure.
    run : int, optional
        Index of the run. By default all runs are combined.
    bins : int, default 60
        Number of bins of the histogram in each direction.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The figure.
    ax : matplotlib.axes.Axes
        Its axis.

    Raises
    ------
    ValueError
        If the result is not one of ``sgd.solve_mean_field``, has no such save point or run, or has
        diverged before.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=64, activation="erf")
    >>> start = sgd.random_start(problem, dimension=200, wide=True)
    >>> result = sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.5, 1.0])
    >>> fig, ax = sgd.plot.density(result, bins=20)
    >>> ax.get_title()
    '$t/p$ = 1'
    """
    variables = ("q", "M", "time", "signal", "run", "t")
    checks.result("result", result, *variables, fix="use the result of sgd.solve_mean_field.")
    point = result.isel(time=_index("time", time, result.sizes["time"], "save points"))
    bins = checks.integer("bins", bins, 1, 10_000)
    if run is not None:
        point = point.isel(run=[_index("run", run, result.sizes["run"], "runs", " or None")])
    M = np.asarray(point["M"]).reshape(-1, result.sizes["signal"])
    single = M.shape[1] == 1
    x, y = M[:, 0], np.asarray(point["q"]).reshape(-1) if single else M[:, 1]
    is_finite = np.isfinite(x) & np.isfinite(y)
    if not is_finite.any():
        raise checks.reject(
            "time", time, "all runs have diverged before. Use an earlier save point."
        )
    fig, ax = curves.figure_and_axis(ax, (5, 4))
    # cmin leaves empty bins white
    *_, image = ax.hist2d(x[is_finite], y[is_finite], bins=bins, density=True, cmin=1e-300)
    fig.colorbar(image, ax=ax, label="density")
    ax.set_xlabel("$m$" if single else "$m_1$")
    ax.set_ylabel("$q$" if single else "$m_2$")
    ax.set_title(f"$t/p$ = {float(point['t']):g}")
    return fig, ax


def _index(argument: str, value: object, count: int, items: str, alternative: str = "") -> int:
    """An index of a sequence with `count` items, from -count to count - 1."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not -count <= value < count:  # type: ignore[operator]
        raise checks.reject(
            argument,
            value,
            f"the result has {count} {items}. Use an index from -{count} to {count - 1}"
            f"{alternative}.",
        )
    return int(value)  # type: ignore[call-overload]
