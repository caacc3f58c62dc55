"""Figures 1 to 5 of Escaping mediocrity, each as `figure_n(quick=False, seed=0) -> (fig, data)`, in
the paper's time t = steps gamma/(p d).

Captions give d, the widths and that gamma/p is constant; learning rates, noise and thresholds they
leave open, and each docstring says what was chosen. SGD is the exact chain throughout, so that d is
no concern.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.lines import Line2D

from sgdynamics import (
    ExitTimes,
    OnePassSGD,
    Start,
    TeacherStudent,
    exit_time,
    exit_time_of,
    random_start,
    simulate,
    solve_ode,
    solve_sde,
    start,
)
from sgdynamics.papers.escaping_mediocrity import (
    exit_time_annealed,
    exit_time_corrected,
    exit_time_quenched,
)
from sgdynamics_reproductions import pieces
from sgdynamics_reproductions.drawing import legend_below
from sgdynamics_reproductions.escaping_mediocrity.pictures import draw_2

TIME = "$t$ = steps $\\gamma/(p\\,d)$"
COLOURS = {"SGD": "C0", "SDE": "C1", "ODE": "k"}
SHOWN = 40  # runs that are drawn


def _problem(p: int, noise: float, head: str = "fixed") -> TeacherStudent:
    return TeacherStudent(width=p, activation="square", noise=noise, head=head, constraint="sphere")


def _axes(columns: int, height: float = 3.6, rows: int = 1, **options: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(
        rows,
        columns,
        figsize=(4.6 * columns, height * rows),
        layout="constrained",
        squeeze=False,
        **options,
    )


def _from_one_start(
    p: int,
    gamma: float,
    noise: float,
    threshold: float,
    d: int,
    runs: int,
    end: float,
    quick: bool,
    seed: int,
) -> tuple[Any, xr.Dataset]:
    """Figures 1 and 5: SGD and SDE paths from one start with the ODE, and the exit times of each;
    SHOWN of the runs are drawn.
    """
    problem, algorithm = _problem(p, noise), OnePassSGD(lr=gamma)
    # the start whose mu0 = d sum m^2 is nearest to its mean p among a few: neither a lucky nor an
    # unlucky one
    several = random_start(problem, dimension=d, seed=seed, runs=32)
    typical = int(np.argmin(np.abs(d * np.sum(several.M**2, axis=(1, 2)) - p)))
    initial_state = start(problem, M=several.M[typical], Q=several.Q[typical])
    times = np.linspace(0, end, 121) * p
    shown = {
        "SGD": simulate(
            problem, algorithm, initial_state, times=times, dimension=d, runs=runs, seed=seed + 1
        ),
        "SDE": solve_sde(
            problem, algorithm, initial_state, times=times, dimension=d, runs=runs, seed=seed + 2
        ),
        "ODE": solve_ode(problem, algorithm, initial_state, times=times),
    }
    if quick:
        # from the paths shown, as fine as their save points; not every program need be compiled
        exits = {name: exit_time_of(path, threshold) for name, path in shown.items()}
    else:
        common: dict[str, Any] = {"threshold": threshold, "max_time": 40.0 * p}
        many: dict[str, Any] = {"dimension": d, "runs": 2 * runs}
        exits = {
            "SGD": exit_time(
                problem, algorithm, initial_state, method="exact", seed=seed + 1, **many, **common
            ),
            "SDE": exit_time(
                problem, algorithm, initial_state, method="sde", seed=seed + 2, **many, **common
            ),
            "ODE": exit_time(problem, algorithm, initial_state, **common),
        }
    fig, axes = _axes(2, sharey=True)
    first = float(shown["ODE"].excess_risk[0, 0])
    for ax, name in zip(axes[0], ("SGD", "SDE"), strict=True):
        t = np.asarray(shown[name].t) / p
        ax.plot(
            t, np.asarray(shown[name].excess_risk)[:SHOWN].T, color=COLOURS[name], lw=0.7, alpha=0.5
        )
        ax.plot([], [], color=COLOURS[name], label=f"{name}, {SHOWN} of {runs} runs")
        ax.plot(
            np.asarray(shown["ODE"].t) / p,
            shown["ODE"].excess_risk[0],
            color="k",
            lw=1.8,
            label="ODE",
        )
        ax.axhline((1 - threshold) * first, color="0.6", lw=0.8, ls=":")
        for which in (name, "ODE"):
            ax.axvline(exits[which].mean / p, color=COLOURS[which], ls="--", lw=1.2)
        time_text = _format_exit_time(exits[name], p)
        ax.set(
            xlabel=TIME,
            title=f"$t_{{ext}}$: {name} {time_text}, ODE {exits['ODE'].mean / p:.3f}",
        )
        legend_below(ax)
    axes[0, 0].set_ylabel("excess risk")
    fig.suptitle(
        f"$p$ = {p}, $d$ = {d}, $\\gamma$ = {gamma:g}, $\\Delta$ = {noise:g}, $T$ = {threshold:g}"
    )
    data = xr.Dataset(
        {
            f"excess_risk_{name}": (
                ("run", "time") if name != "ODE" else ("one", "time"),
                np.asarray(r.excess_risk),
            )
            for name, r in shown.items()
        }
        | {f"exit_time_{name}": (f"exit_{name}", exit.times / p) for name, exit in exits.items()},
        {"t": ("time", times / p)},
        {"p": p, "d": d, "gamma": gamma, "noise": noise, "threshold": threshold, "seed": seed},
    )
    return fig, data


def _format_exit_time(times: ExitTimes, p: int) -> str:
    """Format the mean exit time in the units of the paper, with its error in the last digits."""
    return f"{times.mean / p:.3f}({times.standard_error / p * 1000:.0f})"


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """SGD (left) and SDE (right) from one start next to the ODE, p = 1, d = 3000, with exit times.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
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
    The paper's point: the SDE has the spread that the ODE lacks, and the exit times hardly differ.
    Chosen: gamma = .05, no label noise, T = .3, a start with a typical overlap. Exit times are
    means over 1024 runs (quick: d = 500, 512 runs, from the save points): they scatter by a third,
    and what a few runs show of their mean is nothing.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_1(quick=True)  # doctest: +SKIP
    """
    return _from_one_start(1, 0.05, 0.0, 0.3, 500 if quick else 3000, 512, 3.5, quick, seed)


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Figure 1 for p = 2 (Appendix E). Chosen: gamma = .1 (the same gamma/p), no label noise, T =
    .3. Quick: d = 500.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_5(quick=True)  # doctest: +SKIP
    """
    return _from_one_start(2, 0.1, 0.0, 0.3, 500 if quick else 3000, 512, 2.0, quick, seed)


def measured_exit(
    p: int, d: int, ratio: float, threshold: float, runs: int, seed: int
) -> xr.Dataset:
    """The mean exit time of runs from random starts, in the paper's time, with its standard error:
    one point of figure 2.
    """
    problem, algorithm = _problem(p, 0.0), OnePassSGD(lr=ratio * p)
    setting: dict[str, Any] = {
        "threshold": threshold,
        "max_time": 40.0 * p,
        "seed": seed + 1,
        "dimension": d,
    }

    def compute() -> xr.Dataset:
        initial_state = random_start(problem, dimension=d, seed=seed, runs=runs)
        result = exit_time(problem, algorithm, initial_state, method="exact", **setting)
        return xr.Dataset({"mean": result.mean / p, "standard_error": result.standard_error / p})

    return pieces.compute_piece(
        f"exit-{p}-{d}",
        {"problem": problem, "algorithm": algorithm, "runs": runs, **setting},
        compute,
    )


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Measured over predicted exit time against d, for several p at constant gamma/p: annealed,
    quenched and corrected formula.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
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
    The paper's point: both ratios stay near one and flat in d, and meet for large p. The chain
    takes it to d = 1e6, far past the paper (on one NVIDIA H200 the points add up to 13 minutes;
    hours without a GPU). Chosen: gamma/p = .1, no label noise, T = .1. Corrected: the ODE's own
    time, averaged over starts, with the shift by stochasticity (``exit_time_corrected``), which the
    paper lacks.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_2(quick=True)  # doctest: +SKIP
    """
    ratio, threshold = 0.1, 0.1
    widths = (1, 4) if quick else (1, 2, 5, 10)
    # one number of runs is one program a width
    counts = dict.fromkeys(
        (100, 300, 1000) if quick else (100, 1000, 10_000, 100_000, 1_000_000), 256
    )
    shape = (len(widths), len(counts))
    mean, error = np.full(shape, np.nan), np.full(shape, np.nan)
    theory = {name: np.full(shape, np.nan) for name in ("annealed", "quenched", "corrected")}
    for row, p in enumerate(widths):
        for column, (d, runs) in enumerate(counts.items()):
            result = measured_exit(p, d, ratio, threshold, runs, seed)
            mean[row, column], error[row, column] = result["mean"], result["standard_error"]
            arguments = (p, d, ratio * p, 0.0, threshold)
            theory["annealed"][row, column] = exit_time_annealed(*arguments)
            theory["quenched"][row, column] = exit_time_quenched(*arguments)
            theory["corrected"][row, column] = exit_time_corrected(*arguments)
    data = xr.Dataset(
        {
            "measured": (("p", "d"), mean),
            "standard_error": (("p", "d"), error),
            **{name: (("p", "d"), value) for name, value in theory.items()},
        },
        {"p": list(widths), "d": list(counts), "runs": ("d", list(counts.values()))},
        {
            "gamma_over_p": ratio,
            "noise": 0.0,
            "threshold": threshold,
            "runs": next(iter(counts.values())),
            "seed": seed,
        },
    )
    return draw_2(data), data


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The largest overlap with a fixed (blue) and a trained (green) head, p = 20 (left) and 50
    (right), d = 1000.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
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
    The paper's point: far from the start the two differ, near the exit they agree, exit time
    included. Below, the excess risk, in which the difference shows most. Thick lines: the ODE from
    the same start; thin lines: runs. Chosen: gamma/p = .05, no label noise, rows on the sphere,
    head rate one, exit where the largest overlap reaches .5. Six of 32 runs are drawn; quick: p =
    20, d = 200.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_3(quick=True)  # doctest: +SKIP
    """
    ratio, threshold, d = 0.05, 0.5, 200 if quick else 1000
    widths, runs = ((20,), 32) if quick else ((20, 50), 32)
    # the paper's time runs with gamma/(p d), in which the plateau's rate hardly depends on p
    end = 3.0 if quick else 4.0
    times = np.linspace(0, end, 161)
    fig, axes = _axes(len(widths), 3.0, rows=2, sharey="row", sharex=True)
    shown: dict[str, np.ndarray] = {
        "run": np.zeros((len(widths), 2, runs, len(times))),
        "ode": np.zeros((len(widths), 2, len(times))),
    }
    risks = {"run": np.zeros_like(shown["run"]), "ode": np.zeros_like(shown["ode"])}
    exits = np.zeros((len(widths), 2))
    for column, p in enumerate(widths):
        ax = axes[0, column]
        several = random_start(_problem(p, 0.0), dimension=d, seed=seed, runs=1)
        for index, (head, colour) in enumerate((("fixed", "C0"), ("trained", "C2"))):
            problem, algorithm = _problem(p, 0.0, head), OnePassSGD(lr=ratio * p)
            initial_state = Start(several.M_blocks, several.Q_blocks, several.a)
            chain = simulate(
                problem,
                algorithm,
                initial_state,
                times=times * p,
                dimension=d,
                runs=runs,
                seed=seed + 1,
            )
            ode = solve_ode(problem, algorithm, initial_state, times=times * p)
            left = exit_time_of(ode, threshold, criterion="overlap")
            largest = np.abs(np.asarray(chain.M)).max(axis=(2, 3))
            smooth = np.abs(np.asarray(ode.M)).max(axis=(2, 3))[0]
            shown["run"][column, index], shown["ode"][column, index] = largest, smooth
            exits[column, index] = left.mean / p
            risks["run"][column, index], risks["ode"][column, index] = (
                np.asarray(chain.excess_risk),
                np.asarray(ode.excess_risk)[0],
            )
            axes[1, column].plot(
                times, risks["run"][column, index, :6].T, color=colour, lw=0.7, alpha=0.5
            )
            axes[1, column].plot(times, risks["ode"][column, index], color=colour, lw=1.8)
            axes[1, column].axvline(left.mean / p, color=colour, ls="--", lw=1)
            ax.plot(times, largest[:6].T, color=colour, lw=0.7, alpha=0.5)
            ax.plot(
                times,
                smooth,
                color=colour,
                lw=1.8,
                label=f"{head} head, $t_{{ext}}$ = {left.mean / p:.3f}",
            )
            ax.axvline(left.mean / p, color=colour, ls="--", lw=1)
        ax.set(title=f"$p$ = {p}, $d$ = {d}, $\\gamma/p$ = {ratio:g}")
        axes[1, column].set(xlabel=TIME, yscale="log")
        handles, labels = ax.get_legend_handles_labels()
        handles += [Line2D([], [], color="k", lw=1.8), Line2D([], [], color="k", lw=0.7, alpha=0.5)]
        handles.append(Line2D([], [], color="k", ls="--", lw=1))
        legend_below(
            axes[1, column],
            handles=handles,
            labels=[*labels, "ODE", f"6 of {runs} runs", "exit"],
            bbox_to_anchor=(0.5, -0.22),
        )
    axes[0, 0].set_ylabel("$\\max_i |m_i|$")
    axes[1, 0].set_ylabel("excess risk")
    fig.suptitle("largest overlap and excess risk, fixed and trained head")
    data = xr.Dataset(
        {
            "largest_overlap": (("p", "head", "run", "time"), shown["run"]),
            "largest_overlap_ode": (("p", "head", "time"), shown["ode"]),
            "excess_risk": (("p", "head", "run", "time"), risks["run"]),
            "excess_risk_ode": (("p", "head", "time"), risks["ode"]),
            "exit_time_ode": (("p", "head"), exits),
        },
        {"p": list(widths), "head": ["fixed", "trained"], "t": ("time", times)},
        {"d": d, "gamma_over_p": ratio, "threshold": threshold, "seed": seed},
    )
    return fig, data


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The ODE against many SGD runs from one start, p = 5 (left) and p = 20 (right), d = 5000: the
    ODE describes the mean.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
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
    Chosen: gamma/p = .1, Delta = .1. 30 of 96 runs are drawn; quick: d = 500.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_4(quick=True)  # doctest: +SKIP
    """
    ratio, noise = 0.1, 0.1
    widths, d, runs = (5, 20), 500 if quick else 5000, 96
    times = np.linspace(0, 1.6, 81)
    fig, axes = _axes(2, sharey=True)
    risks = np.zeros((2, runs, len(times)))
    lines = np.zeros((2, len(times)))
    for column, p in enumerate(widths):
        problem, algorithm = _problem(p, noise), OnePassSGD(lr=ratio * p)
        initial_state = random_start(problem, dimension=d, seed=seed)
        chain = simulate(
            problem,
            algorithm,
            initial_state,
            times=times * p,
            dimension=d,
            runs=runs,
            seed=seed + 1,
        )
        risks[column] = np.asarray(chain.excess_risk)
        lines[column] = np.asarray(
            solve_ode(problem, algorithm, initial_state, times=times * p).excess_risk
        )[0]
        ax = axes[0, column]
        ax.plot(times, risks[column, :30].T, color="C0", lw=0.6, alpha=0.45)
        mean, error = risks[column].mean(axis=0), risks[column].std(axis=0, ddof=1) / np.sqrt(runs)
        ax.fill_between(times, mean - error, mean + error, color="C3", alpha=0.3, lw=0, zorder=3)
        ax.plot(times, mean, color="C3", lw=1.4, label=f"mean of {runs} runs")
        ax.plot([], [], color="C0", label="SGD")
        ax.plot(times, lines[column], color="k", lw=1.8, ls="--", label="ODE")
        ax.set(
            xlabel=TIME,
            title=f"$p$ = {p}, $d$ = {d}, $\\gamma/p$ = {ratio:g}, $\\Delta$ = {noise:g}",
        )
        ax.legend(frameon=False)
    axes[0, 0].set_ylabel("excess risk")
    data = xr.Dataset(
        {"excess_risk": (("p", "run", "time"), risks), "excess_risk_ode": (("p", "time"), lines)},
        {"p": list(widths), "t": ("time", times)},
        {"d": d, "gamma_over_p": ratio, "noise": noise, "seed": seed},
    )
    return fig, data
