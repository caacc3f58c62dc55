"""Phase retrieval in the slides, each as `name(quick=False, seed=0) -> (fig, data)`: does noise
matter, does width matter?

y = (w*.x)^2 + sqrt(Delta) z, f = (1/p) sum_i (w_i.x)^2, rows on the sphere, random starts, in the
slides' time t = steps gamma/(d p). The formulas t_anl and t_qnc of the last slides are those of
`papers.escaping_mediocrity`. SGD is the exact chain. `data.attrs` has the parameters, what the
slide says (`claim`) and what was measured of it here (`verdict`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import Start, exit_time, random_start, simulate, solve_ode, solve_sde, start
from sgdynamics.base import checks
from sgdynamics.papers.dimension_free import Setting, plateau, setting
from sgdynamics.papers.escaping_mediocrity import (
    exit_time_annealed,
    exit_time_corrected,
    exit_time_p1,
    exit_time_quenched,
    minimal_steps,
    overparametrization_gain,
    stochastic_shift,
)
from sgdynamics_reproductions.dimension_free.figures import TIME, finish, panels, spread
from sgdynamics_reproductions.drawing import letters, ticks

MAX_TIME = 40.0  # in the time of the slides, far later than all exits


def _retrieval(gamma: float, p: int, Delta: float) -> Setting:
    return setting(gamma, p, 1, Delta, activation="square", constraint="sphere")


def _exits(case: Setting, initial_state: Start, threshold: float, d: int, seed: int) -> np.ndarray:
    """Exit times of SGD in the units of the slides, one per run."""
    options: dict[str, Any] = {
        "threshold": threshold,
        "max_time": MAX_TIME * case.time_factor,
        "dimension": d,
        "seed": seed,
    }
    return (
        exit_time(case.problem, case.algorithm, initial_state, method="exact", **options).times
        / case.time_factor
    )


def noise_matters(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Does noise matter? Phase retrieval by one unit from random starts at d = 3000: SGD, SDE and
    ODE; and what noise does at the end.

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
    (a) Paths of SGD and of the SDE from one typical start, and the ODE. (b) Mean exit time (a share
    T = .3 of the risk is gone) of SGD over that of the ODE from the same starts (``exit_time_p1``),
    against gamma, with and without label noise; lines: the constant shift -ln(1 + D_1)/(2 omega_M)
    (``stochastic_shift``), which the slides leave out. (c) A network that has learned, erf with p =
    k = 2: the ODE's risk after a long time over gamma Delta E[s'^2]/(4 p) (``plateau``), against
    gamma/p. From the slides: d, p = 1 and the law of the start. Chosen: gamma = .05 in (a), the
    rates, Delta = 0 and 1 in (b), T, all of (c). Quick: d = 500, fewer runs and rates.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.noise_matters(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    threshold, gamma, d, runs, shown = 0.3, 0.05, *((500, 384, 48) if quick else (3000, 512, 48))
    rates, noises = (
        ((0.04, 0.1), (0.0, 1.0)) if quick else ((0.02, 0.04, 0.06, 0.08, 0.11), (0.0, 1.0))
    )
    configuration = _retrieval(gamma, 1, 0.0)
    starts = random_start(configuration.problem, dimension=d, seed=seed, runs=runs)
    typical = int(np.argmin(np.abs(d * starts.M[:, 0, 0] ** 2 - 1)))
    item = start(configuration.problem, M=starts.M[typical], Q=starts.Q[typical])
    t = np.linspace(0, 3.5, 64)
    options: dict[str, Any] = {"times": configuration.times(t), "dimension": d, "runs": shown}
    step = (
        float(options["times"][1]) / 2 if quick else None
    )  # the search for a step length has a compilation of its own
    paths = {
        "SGD": np.asarray(
            simulate(
                configuration.problem, configuration.algorithm, item, seed=seed + 1, **options
            ).excess_risk
        ),
        "SDE": np.asarray(
            solve_sde(
                configuration.problem,
                configuration.algorithm,
                item,
                seed=seed + 2,
                step=step,
                **options,
            ).excess_risk
        ),
        "ODE": np.asarray(
            solve_ode(
                configuration.problem, configuration.algorithm, item, times=configuration.times(t)
            ).excess_risk
        ),
    }
    shape = (len(noises), len(rates))
    ratio, error, shift = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for row, Delta in enumerate(noises):
        for column, rate in enumerate(rates):
            now = _retrieval(rate, 1, Delta)
            ode = np.asarray(exit_time_p1(starts.M[:, 0, 0], rate, Delta, threshold))
            chain = _exits(now, starts, threshold, d, seed + 3)
            ratio[row, column], error[row, column] = (
                chain.mean() / ode.mean(),
                spread(chain - ode) / ode.mean(),
            )
            shift[row, column] = 1 + stochastic_shift(1, rate, Delta) / ode.mean()
    ends, levels, left = _plateaus(
        (0.05, 0.2) if quick else (0.02, 0.05, 0.1, 0.2, 0.4, 0.8), (1e-3, 1e-1)
    )
    deviation = (ratio - shift) / error
    data = xr.Dataset(
        {
            **{
                f"excess_risk_{name}": ((f"run_{name}", "time"), value)
                for name, value in paths.items()
            },
            "exit_ratio": (
                ("Delta", "gamma"),
                ratio,
                {"long_name": "mean exit time of SGD over that of the ODE, same starts"},
            ),
            "exit_ratio_error": (("Delta", "gamma"), error, {"long_name": "its standard error"}),
            "exit_ratio_shift": (
                ("Delta", "gamma"),
                shift,
                {"long_name": "predicted from the constant shift"},
            ),
            "plateau": (
                ("noise", "gamma_over_p"),
                left,
                {"long_name": "excess risk of the ODE at the end, erf, p = k = 2"},
            ),
            "plateau_first_order": (
                ("noise", "gamma_over_p"),
                levels,
                {"long_name": "gamma Delta E[s'^2]/(4 p)"},
            ),
        },
        {
            "t": ("time", t),
            "Delta": list(noises),
            "gamma": list(rates),
            "noise": [1e-3, 1e-1],
            "gamma_over_p": ends,
        },
        {
            "p": 1,
            "d": d,
            "gamma_of_paths": gamma,
            "threshold": threshold,
            "runs": runs,
            "seed": seed,
        },
    )
    data.attrs |= {
        "claim": (
            "the noise of SGD gives paths a spread that the ODE lacks, and does not change the"
            " order of the time to escape"
        ),
        "verdict": (
            f"mean exit time of SGD over that of the ODE: {ratio.min():.3f} to {ratio.max():.3f} at"
            f" d = {d}, earlier the larger "
            f"gamma; the constant shift explains it to {np.abs(ratio - shift).max():.3f} (at most"
            f" {np.abs(deviation).max():.1f} "
            "standard errors). At the end noise leaves gamma Delta E[s'^2]/(4 p) (1 + c gamma/p):"
            f" {left[0, 0] / levels[0, 0]:.4f} of it "
            f"at gamma/p = {ends[0]:g}, {left[0, -1] / levels[0, -1]:.4f} at {ends[-1]:g}"
        ),
    }
    fig, axes = panels(3)
    for name, color in (("SGD", "C0"), ("SDE", "C1")):
        axes[0].plot(t, paths[name].T, color=color, lw=0.7, alpha=0.45)
        axes[0].plot([], [], color=color, label=f"{name}, {shown} runs")
    axes[0].plot(t, paths["ODE"][0], "k-", lw=1.8, label="ODE")
    axes[0].set(
        xlabel=TIME,
        ylabel="excess risk",
        title=f"$p$ = 1, $d$ = {d}, $\\gamma$ = {gamma:g}, $\\Delta$ = 0",
    )
    for row, Delta in enumerate(noises):
        axes[1].errorbar(
            rates,
            ratio[row],
            error[row],
            fmt="o",
            capsize=2,
            color=f"C{row + 2}",
            label=f"SGD, $\\Delta$ = {Delta:g}",
        )
        axes[1].plot(rates, shift[row], "--", color=f"C{row + 2}", lw=1.2)
        style = {"color": f"C{row + 4}", "mfc": "none", "ms": 5 + 3 * row, "lw": 1}
        axes[2].plot(
            ends,
            left[row] / levels[row],
            "o-",
            label=f"ODE, $\\Delta$ = {data.noise.values[row]:g}",
            **style,
        )
    axes[1].plot([], [], "k--", lw=1.2, label="constant shift")
    axes[1].axhline(1.0, color="0.6", lw=0.8)
    axes[1].set(
        xlabel="$\\gamma$",
        ylabel="mean exit time, SGD / ODE",
        title=f"$T$ = {threshold:g}, {runs} random starts",
    )
    axes[2].axhline(1.0, color="0.6", lw=0.8)
    axes[2].set(
        xlabel="$\\gamma/p$",
        ylabel="$R_{\\mathrm{end}}$ / [$\\gamma\\Delta\\,E s'^2/(4p)$]",
        xscale="log",
    )
    axes[2].set_title("learned: erf, $p = k = 2$")
    ticks(axes[2], ends)
    finish(axes)
    return fig, data


def _plateaus(
    ratios: tuple[float, ...], noises: tuple[float, ...]
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """gamma/p, the first-order plateau and the ODE's risk long after a start at the teacher,
    (noise, gamma/p), for erf with p = k = 2.
    """
    p, end = 2, 400.0
    first, values = np.zeros((len(noises), len(ratios))), np.zeros((len(noises), len(ratios)))
    for row, Delta in enumerate(noises):
        for column, ratio in enumerate(ratios):
            configuration = setting(ratio * p, p, p, Delta)
            initial_state = start(configuration.problem, M=np.eye(p), Q=np.eye(p))
            values[row, column] = solve_ode(
                configuration.problem,
                configuration.algorithm,
                initial_state,
                times=configuration.times([end]),
            ).excess_risk[0, 0]
            first[row, column] = plateau(ratio * p, p, Delta)
    return list(ratios), first, values


def width_matters(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Does width matter? Exit times of phase retrieval against p, with the slides' t_anl and t_qnc,
    and the best that width can do.

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
    (a) Mean exit time (share T of the risk gone) of SGD from random starts at fixed gamma/p, over
    p; lines: the annealed and quenched formulas of the slides, and the latter with what the
    nonlinear ODE and the noise add (``exit_time_corrected``). (b) Samples to leave at the best rate
    for each p that still learns (``minimal_steps``), relative to p = 1: the gain tends to a
    constant, 10/3 without noise (``overparametrization_gain``). From the slides: the formulas and
    the law of the start. Chosen: d = 3000, gamma/p = .1, Delta = 0, T = .1. Quick: d = 500, p = 1,
    4.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.width_matters(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    ratio, Delta, threshold = 0.1, 0.0, 0.1
    d, widths, runs = (500, (1, 4), 256) if quick else (3000, (1, 2, 4, 8, 16), 256)
    measured, error = np.zeros(len(widths)), np.zeros(len(widths))
    for i, p in enumerate(widths):
        configuration = _retrieval(ratio * p, p, Delta)
        starts = random_start(configuration.problem, dimension=d, seed=seed + 10 * i, runs=runs)
        chain = _exits(configuration, starts, threshold, d, seed + 10 * i + 1)
        measured[i], error[i] = chain.mean(), spread(chain)
    named: dict[str, Any] = {
        "annealed": exit_time_annealed,
        "quenched": exit_time_quenched,
        "corrected": exit_time_corrected,
    }
    theory = {
        name: np.array([f(p, d, ratio * p, Delta, threshold) for p in widths])
        for name, f in named.items()
    }
    ratios = {name: measured / value for name, value in theory.items()}
    smooth, sizes = np.arange(1, 4 * widths[-1] + 1), np.array([d, 1000 * d, 10**6 * d])
    steps = np.asarray(minimal_steps(smooth[:, None], sizes, Delta, threshold))
    gain = steps[0] / steps
    most = overparametrization_gain(Delta)
    data = xr.Dataset(
        {
            "exit_time": ("p", measured, {"long_name": "mean exit time of SGD"}),
            "exit_time_error": ("p", error, {"long_name": "its standard error"}),
            "exit_time_annealed": ("p", theory["annealed"], {"long_name": "t_anl"}),
            "exit_time_quenched": ("p", theory["quenched"], {"long_name": "t_qnc"}),
            "exit_time_corrected": (
                "p",
                theory["corrected"],
                {"long_name": "mean over starts of the ODE's, shifted by stochasticity"},
            ),
            "gain": (
                ("width", "size"),
                gain,
                {
                    "long_name": (
                        "samples to leave at p = 1 over those at this width, best rate for each"
                    )
                },
            ),
        },
        {"p": list(widths), "width": smooth, "size": sizes},
        {
            "d": d,
            "gamma_over_p": ratio,
            "Delta": Delta,
            "threshold": threshold,
            "runs": runs,
            "seed": seed,
            "largest_gain": most,
        },
    )
    data.attrs |= {
        "claim": (
            "t_anl and t_qnc describe the exit time at every width; overparametrisation gains a"
            " constant factor, no power of d"
        ),
        "verdict": (
            "SGD over "
            + ", ".join(
                f"t_{name} {value.min():.3f} to {value.max():.3f}" for name, value in ratios.items()
            )
            + f" for p = {widths[0]}..{widths[-1]}, d = {d}; at fixed gamma/p the exit time at p"
            f" = {widths[-1]} is "
            f"{measured[-1] / measured[0]:.3f}({error[-1] / measured[0]:.3f}) of that at p = 1; at"
            f" the best rates width {smooth[-1]} "
            f"needs {gain[-1, 0]:.2f} times fewer samples than one unit at d = {sizes[0]},"
            f" {gain[-1, -1]:.2f} times at d = "
            f"{sizes[-1]:g}, and {most:.2f} times as p and d go to infinity"
        ),
    }
    fig, axes = panels(2)
    axes[0].errorbar(
        widths, measured, error, fmt="o", capsize=2, color="C0", label=f"SGD, {runs} runs"
    )
    for name, style in (("annealed", "C1--"), ("quenched", "C2-"), ("corrected", "k:")):
        axes[0].plot(widths, theory[name], style, lw=1.2, label=f"$t_{{ext}}$, {name}")
    axes[0].set(
        xscale="log", xlabel="$p$", ylabel="exit time $t$ = steps $\\gamma/(d\\,p)$", ylim=(0, None)
    )
    axes[0].set_title(f"$d$ = {d}, $\\gamma/p$ = {ratio:g}, $T$ = {threshold:g}")
    ticks(axes[0], widths)
    for color, (size, line) in enumerate(zip(sizes, gain.T, strict=True)):
        axes[1].plot(smooth, line, f"C{color + 4}-", label=f"$d$ = {size:g}")
    axes[1].axhline(most, color="k", ls="--", lw=1, label=f"$p, d \\to \\infty$: {most:.3g}")
    axes[1].set(
        xscale="log", xlabel="$p$", ylabel="samples at $p$ = 1 / samples at $p$", ylim=(0, None)
    )
    axes[1].set_title("gain from width at the best rates")
    for ax in axes:
        ax.legend(
            frameon=False, fontsize="small", loc="upper right" if ax is axes[0] else "lower right"
        )
    letters(axes)
    return fig, data
