"""Figures 2 and 3 of "High-dimensional limit theorems for SGD": Gaussian mixtures; and how XOR
depends on the order of its limits.

In the paper's units: delta = 1/N (c_delta = 1), t = steps/N, penalty alpha, snr lambda, v = a. All
runs are the exact chain, equal in law to SGD in N dimensions. `data.attrs["caption"]` says what is
drawn and where the paper's print was corrected.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics import GaussianMixture, OnePassSGD, Start, random_start, start
from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.ode.sliding_solver import solve_infinite_snr
from sgdynamics.papers.effective_dynamics import (
    active_types_probability,
    arc_paths,
    arc_variance,
    escape_rate,
    mixture_components,
    optimum,
    ring_radius,
    success_probability,
)
from sgdynamics.papers.effective_dynamics.mixtures import TYPES
from sgdynamics.papers.effective_dynamics.outcomes import active_types
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run
from sgdynamics_reproductions.drawing import letters, subplots, ticks

ALPHA = 0.1
# Weight decay of `order_of_limits`. At 0.1 and snr = 20 the growth rate of a unit is only 0.003
# (`escape_rate`), which is too slow for a simulation.
ORDER_ALPHA = 0.05
SDE_PATHS = 4000
ARC_RUNS = 1024  # short runs from a point of the arcs, for precise variances
TOLERANCE = 1e-8  # error of a step of the flow, of which only the type of the end point is used
RIGHT_SIGNS = math.comb(4, 2) / 2**4  # two units of four with v > 0


def _chain(
    problem: GaussianMixture, initial_state: Start, N: int, times: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate M (run, time, K, q) and a (run, time, K) by the exact chain.

    The risk is not computed, because it would take longer than the runs.
    """
    chain = ExactChain(
        problem, OnePassSGD(lr=1.0), RunSetting(initial_state, N, problem.block_dimensions(N))
    )
    result, last = run(
        chain,
        initial_state.runs,
        np.rint(times * N).astype(np.int64),
        seed,
        f"{problem.mixture} mixture, N = {N}",
        None,
    )
    if np.any(last >= 0):
        raise RuntimeError(
            f"{int((last >= 0).sum())} of {initial_state.runs} runs diverged at N = {N},"
            f" snr = {problem.snr:g}. Use a larger N."
        )
    return result["M"].sum(axis=2), result["a"]


def _interval(count: RealArray, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Wilson interval of one standard error around count/runs, which is not empty at 0 and 1."""
    share = np.asarray(count) / runs
    centre, half = (
        (share + 0.5 / runs) / (1 + 1 / runs),
        np.sqrt(share * (1 - share) / runs + 0.25 / runs**2) / (1 + 1 / runs),
    )
    return np.minimum(centre - half, share), np.maximum(centre + half, share)


def _from_random(
    kind: str, N: int, snr: float, scale: float, runs: int, times: np.ndarray, seed: int
) -> xr.Dataset:
    """Random starts, rows N(0, scale^2 I/N) and heads N(0, 1): the chain at this snr, and the flow
    at snr = infinity from the same ones.
    """
    problem = GaussianMixture(kind, snr=snr, weight_decay=ALPHA)
    initial_state = random_start(problem, dimension=N, runs=runs, seed=seed, scale=scale)
    M, a = _chain(problem, initial_state, N, times, seed + 1)
    accuracy: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE / 100}
    flow = solve_infinite_snr(
        kind,
        initial_state.M,
        initial_state.Q,
        initial_state.a,
        times=times,
        weight_decay=ALPHA,
        **accuracy,
    )
    active, active_flow = (
        active_types(kind, M, a, ALPHA),
        active_types(kind, flow["M"], flow["a"], ALPHA),
    )
    optimal = np.asarray(active.all(axis=-1))
    low, high = _interval(optimal.sum(axis=0), runs)
    counts = [
        np.bincount(x[:, -1].sum(axis=-1), minlength=len(TYPES[kind]) + 1)[1:] / runs
        for x in (active, active_flow)
    ]
    data = xr.Dataset(
        {
            "optimal": (("run", "time"), optimal, {"long_name": "all types active"}),
            "fraction": (
                "time",
                optimal.mean(axis=0),
                {"long_name": "fraction of runs with an optimal classifier"},
            ),
            "fraction_low": ("time", low, {"long_name": "fraction less its standard error"}),
            "fraction_high": ("time", high, {"long_name": "fraction and its standard error"}),
            "fraction_flow": (
                "time",
                active_flow.all(axis=-1).mean(axis=0),
                {"long_name": "the same, flow at snr = infinity"},
            ),
            "m_end": (("run", "unit", "signal"), M[:, -1], {"long_name": "overlaps at the end"}),
            "v_end": (("run", "unit"), a[:, -1], {"long_name": "head at the end"}),
            "active_types": (
                "types",
                counts[0],
                {"long_name": "share of runs with 1, 2, ... active types at the end"},
            ),
            "active_types_flow": (
                "types",
                counts[1],
                {"long_name": "the same, flow at snr = infinity"},
            ),
            "active_types_predicted": (
                "types",
                list(active_types_probability(kind)),
                {"long_name": "the same, over signs of the start"},
            ),
            "stable_points": (
                ("point", "unit", "signal"),
                _stable_points(kind),
                {"long_name": "overlaps of the optima at snr = infinity"},
            ),
        },
        {"t": ("time", times), "types": np.arange(1, len(TYPES[kind]) + 1)},
        {"N": N, "snr": snr, "alpha": ALPHA, "scale": scale, "runs": runs, "seed": seed},
    )
    data.attrs |= {
        "predicted": success_probability(kind),
        "ring_radius_squared": ring_radius(kind, ALPHA),
        "optimum": optimum(kind, ALPHA, snr),
    }
    data.attrs["changed_late"] = float((optimal[:, -1] != optimal[:, 3 * len(times) // 4]).mean())
    return data


def _stable_points(kind: str) -> np.ndarray:
    """M of the optimal fixed points at snr = infinity, (point, K, q)."""
    return np.stack(
        [value.representative(ALPHA)["M"] for value in mixture_components(kind) if value.stable]
    )


def _around(
    kind: str, v: np.ndarray, N: int, snr: float, times: np.ndarray, runs: int, seed: int
) -> xr.Dataset:
    """u = sqrt(N) (v - v*, m - v*) from the fixed point v* = m* on the arc(s): the chain at this
    snr and at snr = infinity, and the SDE.
    """
    own = np.where(v > 0, 0, 1) if kind == "xor" else np.zeros(len(v), dtype=int)
    M = np.zeros((len(v), 1 + own.max()))
    M[np.arange(len(v)), own] = v
    arcs = np.array([v > 0, v < 0])[: 1 + own.max()]
    modes = np.concatenate(
        [arcs * v, arcs * v], axis=1
    )  # of rho = sum_k a_k (v_k + m_k), one an arc
    limit = arc_paths(kind, v, ALPHA, times, SDE_PATHS, seed)
    table = {"sde": limit}
    for name, noise in (("chain", snr), ("chain_noiseless", math.inf)):
        problem = GaussianMixture(kind, snr=noise, weight_decay=ALPHA)
        initial_state = broadcast_runs(start(problem, M=M, Q=M @ M.T, a=v), runs)
        m, head = _chain(problem, initial_state, N, times, seed + 2)
        table[name] = math.sqrt(N) * np.concatenate(
            [head - v, m[:, :, np.arange(len(v)), own] - v], axis=-1
        )
    variables: dict[str, Any] = {
        "arc_point": ("unit", v, {"long_name": "the fixed point v* = m* on the arc(s)"})
    }
    for name, u in table.items():
        rho = u @ modes.T
        variables[f"rho_mean_{name}"] = (("arc_time", "arc"), rho.mean(axis=0))
        variables[f"rho_deviation_{name}"] = (("arc_time", "arc"), rho.std(axis=0))
        variables[f"covariance_{name}"] = (("unit", "unit_other"), np.cov(u[:, -1, len(v) :].T))
        if name != "sde":
            variables[f"rho_{name}"] = (("arc_run", "arc_time", "arc"), rho)
            variables[f"m_{name}"] = (
                ("arc_run", "unit"),
                u[:, -1, len(v) :],
                {"long_name": "sqrt(N) (m - m*) at the last time"},
            )
    stationary = np.sqrt(np.diag(np.atleast_2d(arc_variance(ALPHA, kind))))
    variables["rho_deviation_stationary"] = (
        "arc",
        stationary,
        {"long_name": "of the SDE, closed formula"},
    )
    return xr.Dataset(variables, {"arc_t": ("arc_time", times)})


def _label(snr: float) -> str:
    return r"$\lambda = \infty$" if math.isinf(snr) else rf"$\lambda$ = {snr:g}"


def _draw_fraction(ax: Axes, data: xr.Dataset, both: bool) -> None:
    t, p = np.asarray(data.t), data.attrs["predicted"]
    for flip in (False, True) if both else (False,):
        value, low, high, flow = (
            np.asarray(data[f"fraction{end}"]) for end in ("", "_low", "_high", "_flow")
        )
        color, name = ("C3", "sub-optimal") if flip else ("C0", "optimal")
        if flip:
            value, low, high, flow, p = 1 - value, 1 - high, 1 - low, 1 - flow, 1 - p
        shown = (
            f"{name}: chain, {data.attrs['runs']} runs"
            if both
            else f"chain, {data.attrs['runs']} runs"
        )
        ax.errorbar(
            t, value, [value - low, high - value], fmt="o", ms=3.5, lw=1, color=color, label=shown
        )
        ax.plot(
            t,
            flow,
            "-",
            lw=1.2,
            color=color,
            label=None if flip else r"flow at $\lambda = \infty$, same starts",
        )
        share = f"{p:g}" if not both else f"{round(32 * p)}/32"
        ax.axhline(p, color=color, ls="--", lw=1, label=f"predicted {share}")
    ax.set(xlabel="$t$ = steps/$N$", ylabel="fraction of runs", ylim=(-0.03, 1.03))
    ax.legend(frameon=False, fontsize="small", loc="center right" if both else "upper right")


def _draw_ends(ax: Axes, data: xr.Dataset) -> None:
    C, m = data.attrs["ring_radius_squared"], np.asarray(data.m_end)[:200, :2, 0]
    good, kind = np.asarray(data.optimal)[:200, -1], "xor" if data.sizes["signal"] > 1 else "binary"
    angle = np.linspace(0, np.pi / 2, 60)
    for side in (1, -1):
        ring = side * math.sqrt(C) * np.array([np.cos(angle), np.sin(angle)])
        ax.plot(
            *ring, "k-", lw=1, alpha=0.7, label="arcs: attracting inside" if side == 1 else None
        )
        if (
            kind == "binary"
        ):  # in XOR the ends are unstable only where a type is missing, and optima otherwise
            ax.plot(
                *ring[:, [0, -1]],
                "o",
                mfc="w",
                mec="k",
                ms=7,
                label="their ends: unstable" if side == 1 else None,
            )
    points = np.unique(np.asarray(data.stable_points)[:, :2, 0].round(12), axis=0)
    ax.plot(*points.T, "kx", ms=10, mew=1.2, label=r"optima, $\lambda = \infty$")
    ax.plot(
        *(points * data.attrs["optimum"] / math.sqrt(C)).T,
        "k+",
        ms=11,
        label=f"optima, {_label(data.attrs['snr'])}",
    )
    ax.plot(*m[~good].T, ".", color="C3", ms=5, alpha=0.6, label="runs, sub-optimal")
    ax.plot(*m[good].T, ".", color="C0", ms=5, alpha=0.8, label="runs, optimal")
    upper = "^\\mu" if kind == "xor" else ""
    ax.set(xlabel=f"$m_1{upper}$", ylabel=f"$m_2{upper}$", aspect="equal")
    reach = 1.3 * math.sqrt(C)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    ax.legend(
        frameon=False,
        fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=1.2,
    )


def _draw_cloud(ax: Axes, data: xr.Dataset, units: tuple[int, int], names: tuple[str, str]) -> None:
    """sqrt(N) (m - m*) of two units at the last time, and the SDE's ellipse of two standard
    deviations (a line where it is of rank 1).
    """
    values, axes = np.linalg.eigh(np.asarray(data.covariance_sde)[np.ix_(units, units)])
    angle = np.linspace(0, 2 * np.pi, 100)
    ellipse = axes @ (
        2 * np.sqrt(np.maximum(values, 0.0))[:, None] * np.array([np.cos(angle), np.sin(angle)])
    )
    # a line lies on its points: thick, beneath them
    style = (
        {"color": "0.7", "lw": 5, "zorder": 1}
        if values[0] < 1e-9
        else {"color": "k", "lw": 1.5, "zorder": 4}
    )
    ax.plot(*ellipse, **style, solid_capstyle="butt", label="SDE, 2 standard deviations")
    for name, snr, color in (
        ("chain", data.attrs["snr"], "C1"),
        ("chain_noiseless", math.inf, "C0"),
    ):
        m = np.asarray(data[f"m_{name}"])[:200, list(units)]
        ax.plot(*m.T, ".", ms=3, alpha=0.6, color=color, label=f"chain, {_label(snr)}")
    ax.plot(0, 0, "kx", ms=7)
    ax.set(xlabel=names[0], ylabel=names[1], aspect="equal")
    ax.set_adjustable("datalim")
    ax.legend(frameon=False, fontsize="small", loc="upper left")


def _draw_radial(ax: Axes, data: xr.Dataset) -> None:
    t, width = np.asarray(data.arc_t), 2 * np.asarray(data.rho_deviation_sde)[:, 0]
    ax.plot(t, np.asarray(data.rho_chain_noiseless)[:12, :, 0].T, lw=0.5, color="C0", alpha=0.5)
    ax.fill_between(
        t, -width, width, color="0.6", alpha=0.35, lw=0, label="SDE, $\\pm 2$ standard deviations"
    )
    for name, snr, color in (
        ("chain", data.attrs["snr"], "C1"),
        ("chain_noiseless", math.inf, "C0"),
    ):
        mean, spread = (
            np.asarray(data[f"rho_{value}_{name}"])[:, 0] for value in ("mean", "deviation")
        )
        ax.plot(
            t,
            mean + 2 * spread,
            color=color,
            lw=1.5,
            label=f"chain, {_label(snr)}: mean $\\pm$ 2 standard deviations",
        )
        ax.plot(t, mean - 2 * spread, color=color, lw=1.5)
    top = 1.9 * width.max()
    ax.set(
        xlabel="$t$ = steps/$N$",
        ylabel=r"$\rho = \sum_k a_k (\tilde v_k + \tilde m_k)$",
        ylim=(-top, top),
    )
    ax.legend(frameon=False, fontsize="small", loc="upper left")


def _four_panels(data: xr.Dataset, name: str) -> tuple[Any, Any]:
    fig, axes = subplots(2, 2, (11, 8))
    fig.suptitle(
        f"{name} mixture, $N$ = {data.attrs['N']}, {_label(data.attrs['snr'])}, $\\alpha$ ="
        f" {ALPHA}, $c_\\delta$ = 1"
    )
    return fig, axes


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The binary mixture at N = 250, snr = 100, alpha = .1: which optimum or arc runs reach, and
    how they fluctuate about an arc.

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
    (a) The fraction of runs with an optimal classifier (``active_types``), against 1/2 and the flow
    at snr = infinity from the same starts (v ~ N(0, 1), W ~ N(0, I/(snr N)), Prop. 4.2). (b) End
    points (m_1, m_2) of 200 runs. (c) sqrt(N) times the radial coordinate rho = sum a_k (v_k + m_k)
    from a start on an arc, chain at snr = 100 and infinity, against the SDE of Prop. 4.3. (d) The
    same in (m_1, m_2): rank 1, at every snr, since rows W_i = v_i w with one w remain so (a step
    multiplies all v_i by one number). Corrected: the arcs attract (only their ends are unstable);
    the sign of the sum in Prop. 4.3. Quick: N = 100, fewer runs.

    Examples
    --------
    >>> from sgdynamics_reproductions import effective_dynamics
    >>> fig, data = effective_dynamics.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, snr, runs, end = (100, 100.0, 256, 60.0) if quick else (250, 100.0, 1000, 120.0)
    times = np.linspace(0, end, 25)
    C = ring_radius("binary", ALPHA)
    around = _around(
        "binary",
        math.sqrt(C) * np.array([0.6, 0.8]),
        N,
        snr,
        np.linspace(0, 20, 41),
        ARC_RUNS,
        seed,
    )
    data = _from_random("binary", N, snr, snr**-0.5, runs, times, seed).merge(around)
    data.attrs["caption"] = (
        "(a) fraction of runs with both types active; (b) end points of 200 runs over the predicted"
        " optima and arcs; (c) radial "
        "fluctuations from a point of the arc and (d) in (m_1, m_2), with the line of rank 1."
        " Corrected: the open arcs attract (printed: "
        "unstable), only their ends are unstable; the sum in Prop. 4.3 enters with a minus sign (as"
        " printed rho would grow at the rate "
        f"{2 * C * (ALPHA - 2 * ALPHA**2):.3f}). At finite snr the arc lies O(1/snr) aside. The"
        " fluctuations stay of rank 1 there: rows "
        "W_i = v_i w with one w remain so under SGD, v_1/v_2 does not move."
    )
    fig, axes = _four_panels(data, "binary")
    _draw_fraction(axes[0, 0], data, both=False)
    axes[0, 0].set_ylabel("fraction of runs with an optimal classifier")
    _draw_ends(axes[0, 1], data)
    _draw_radial(axes[1, 0], data)
    _draw_cloud(axes[1, 1], data, (0, 1), (r"$\tilde m_1$", r"$\tilde m_2$"))
    letters(axes.flat)
    return fig, data


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The XOR mixture at N = 250, snr = 1000, alpha = .1: optimal in 3/32 of the runs, and the
    fluctuations of rank 2 about two arcs.

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
    (a) The fractions of optimal and sub-optimal runs against 3/32 and 29/32 and the flow at snr =
    infinity from the same starts (v ~ N(0, 1), W ~ N(0, I/N)). (b) End points (m_1^mu, m_2^mu) of
    200 runs. (c), (d) sqrt(N) (m - m*) from the fixed point of Prop. 5.1 (two units on the arc of
    mu+, two on that of nu+) in (m_1^mu, m_2^mu) and (m_1^mu, m_3^nu), chain at snr = 1000 and
    infinity against the SDE. Corrected: 3/32 is the optimal share (the caption exchanges them); the
    sign of the sum in Prop. 5.1. The shift of order snr^(-1/2) of XOR's fixed points is, on the
    scale N^(-1/2) of (c) and (d), sqrt(N/snr): small only where snr >> N. Quick: N = 100, snr =
    400, fewer runs.

    Examples
    --------
    >>> from sgdynamics_reproductions import effective_dynamics
    >>> fig, data = effective_dynamics.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, snr, runs = (100, 400.0, 320) if quick else (250, 1000.0, 1000)
    times = np.linspace(0, 300, 25)
    point = math.sqrt(ring_radius("xor", ALPHA)) * np.array(
        [0.6, 0.8, -math.sqrt(0.5), -math.sqrt(0.5)]
    )
    around = _around("xor", point, N, snr, np.linspace(0, 60, 25), ARC_RUNS, seed)
    data = _from_random("xor", N, snr, 1.0, runs, times, seed).merge(around)
    signs = (np.asarray(data.v_end) > 0).sum(axis=1) == 2
    data.attrs |= {
        "right_signature_end": float(signs.mean()),
        "fraction_given_signature": float(np.asarray(data.optimal)[signs, -1].mean()),
        "predicted_given_signature": success_probability("xor") / RIGHT_SIGNS,
        "caption": (
            "(a) fraction of runs with all four types active and the rest; (b) end points of 200"
            " runs over the predicted optima and arcs; "
            "(c), (d) fluctuations about the fixed point of Prop. 5.1, rank 2 in all, a line in"
            " (m_1, m_2), an ellipse in (m_1, m_3). "
            "Corrected: 3/32 optimal, 29/32 sub-optimal (printed the other way round); the sum in"
            " Prop. 5.1 enters with the other sign; "
            "arcs attract, only their ends are unstable. The cloud at finite snr is off by the"
            " O(snr^-1/2) shift of XOR's fixed points."
        ),
    }
    fig, axes = _four_panels(data, "XOR")
    _draw_fraction(axes[0, 0], data, both=True)
    _draw_ends(axes[0, 1], data)
    _draw_cloud(axes[1, 0], data, (0, 1), (r"$\tilde m_1^\mu$", r"$\tilde m_2^\mu$"))
    _draw_cloud(axes[1, 1], data, (0, 2), (r"$\tilde m_1^\mu$", r"$\tilde m_3^\nu$"))
    letters(axes.flat)
    return fig, data


def order_of_limits(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """P(optimal) of XOR against N at fixed snr: 3/32 holds for snr >> N, and more runs succeed as N
    grows. Not in the paper.

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
    The exact chain from v ~ N(0, 1), W ~ N(0, I/N) (the same starts for every snr), at alpha = .05,
    until t = 16/``escape_rate`` (300 at snr = 20, 220 at 1000), where runs have settled:
    ``changed_late`` is the share whose outcome changed in the last quarter. Left against N, right
    against snr/N. Section 5 sends snr to infinity first: then every unit keeps the cluster that was
    chosen by the sign of its first overlap, of order N^(-1/2). At N >> snr that is below the noise
    snr^(-1/2) of the fields: units feel no cluster until an overlap has grown, which takes log N;
    the first to escape lowers the pull of its cluster on the others, so that they go elsewhere, and
    v may change its sign (``sign_changes``, per unit) because R_perp is no longer decoupled. At
    alpha = .1, figure 3's, little would settle at snr = 20: see ``escape_rate``. Full size: a
    quarter of an hour on one core; quick has fewer N and runs and stops at 9/``escape_rate``.

    Examples
    --------
    >>> from sgdynamics_reproductions import effective_dynamics
    >>> fig, data = effective_dynamics.order_of_limits(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    grid = (
        ((20.0, 1000.0), (20, 60, 200), 320, 9.0)
        if quick
        else ((20.0, 100.0, 1000.0), (20, 60, 200, 500, 1200), 512, 16.0)
    )
    data = _order_data(*grid, seed)
    fig, axes = subplots(1, 2, (10, 4.2), sharey=True)
    for row, snr in enumerate(data.snr.values):
        value, low, high = (
            np.asarray(data[name])[row] for name in ("fraction", "fraction_low", "fraction_high")
        )
        for ax, x in ((axes[0], data.N.values), (axes[1], snr / data.N.values)):
            ax.errorbar(
                x,
                value,
                [value - low, high - value],
                fmt="o-",
                ms=4,
                lw=1,
                capsize=2,
                color=f"C{row}",
                label=f"{_label(snr)}",
            )
    for ax in axes:
        ax.axhline(
            data.attrs["predicted"],
            color="k",
            ls="--",
            lw=1,
            label=r"3/32, $\lambda \to \infty$ first",
        )
        ax.set(xscale="log", ylim=(0, None))
    axes[0].set(xlabel="$N$", ylabel="fraction of runs with an optimal classifier")
    ticks(axes[0], data.N.values)
    axes[1].set(xlabel=r"$\lambda/N$")
    axes[0].legend(frameon=False, loc="lower left")  # below all fractions
    fig.suptitle(
        f"XOR mixture, $\\alpha$ = {ORDER_ALPHA}, {data.attrs['runs']} runs of the exact chain"
    )
    return fig, data


def _order_data(
    snrs: tuple[float, ...], sizes: tuple[int, ...], runs: int, growth: float, seed: int
) -> xr.Dataset:
    count, arguments, late, turned = (np.zeros((len(snrs), len(sizes))) for _ in range(4))
    for row, snr in enumerate(snrs):
        problem = GaussianMixture("xor", snr=snr, weight_decay=ORDER_ALPHA)
        end = growth / escape_rate(ORDER_ALPHA, snr)
        for column, N in enumerate(sizes):
            initial_state = random_start(problem, dimension=N, runs=runs, seed=seed + column)
            M, a = _chain(
                problem, initial_state, N, np.array([0.75 * end, end]), seed + 100 + column
            )
            optimal = np.asarray(active_types("xor", M, a, ORDER_ALPHA).all(axis=-1))
            right = (initial_state.a > 0).sum(axis=1) == 2
            count[row, column] = optimal[:, -1].sum()
            arguments[row, column] = optimal[right, -1].mean() if right.any() else np.nan
            late[row, column] = (optimal[:, 0] != optimal[:, 1]).mean()
            turned[row, column] = (np.sign(a[:, -1]) != np.sign(initial_state.a)).mean()
    low, high = _interval(count, runs)
    dims = ("snr", "size")
    return xr.Dataset(
        {
            "fraction": (
                dims,
                count / runs,
                {"long_name": "fraction of runs with an optimal classifier"},
            ),
            "fraction_low": (dims, low, {"long_name": "less its standard error"}),
            "fraction_high": (dims, high, {"long_name": "and its standard error"}),
            "given_signature": (
                dims,
                arguments,
                {"long_name": "the same among runs that start with two v > 0 and two v < 0"},
            ),
            "changed_late": (
                dims,
                late,
                {"long_name": "share of runs whose outcome changed in the last quarter"},
            ),
            "sign_changes": (
                dims,
                turned,
                {"long_name": "share of units whose v changed its sign"},
            ),
            "escape_rate": (
                "snr",
                [escape_rate(ORDER_ALPHA, snr) for snr in snrs],
                {"long_name": "growth rate of a small unit"},
            ),
        },
        {
            "snr": list(snrs),
            "N": ("size", list(sizes)),
            "t_end": ("snr", [growth / escape_rate(ORDER_ALPHA, snr) for snr in snrs]),
        },
        {"alpha": ORDER_ALPHA, "runs": runs, "seed": seed, "predicted": success_probability("xor")},
    )
