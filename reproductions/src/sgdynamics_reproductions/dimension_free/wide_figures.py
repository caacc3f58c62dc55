"""The wide networks of the slides, each as `name(quick=False, seed=0) -> (fig, data)`: the
mean-field regime, at fixed d and as d grows.

All in the slides' time t = steps gamma/(d p), the clock of `solve_mean_field`. SGD is the exact
chain, which needs d >= p + k. The slides show these regimes without parameters: all are chosen
here, and `data.attrs` has them with `claim` and `verdict`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    Start,
    plot,
    random_start,
    simulate,
    solve_mean_field,
)
from sgdynamics.base import checks
from sgdynamics.papers.dimension_free import mean_field_scale, setting
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics_reproductions.dimension_free.figures import TIME, finish, panels, slope, spread
from sgdynamics_reproductions.drawing import ticks


def repeat_particles(initial_state: Start, width: int) -> MeanFieldStart:
    """Repeat each particle (m, q, a) of a start width/p times. The density stays the same."""
    q = np.einsum("rii->ri", initial_state.Q) - np.sum(initial_state.M**2, axis=2)
    repeats = width // q.shape[1]
    return MeanFieldStart(
        *(np.repeat(array, repeats, axis=1) for array in (initial_state.M, q, initial_state.a))
    )


def _join_starts(starts: list[Start], law: MeanFieldStart) -> MeanFieldStart:
    """Join all starts and `law` as the runs of one start, so that one program solves all.

    The particles of the starts are repeated until there are as many as in `law`, the last run.
    """
    several = [*(repeat_particles(start, law.q.shape[1]) for start in starts), law]
    return MeanFieldStart(
        *(
            np.concatenate(entry)
            for entry in zip(*((item.M, item.q, item.a) for item in several), strict=True)
        )
    )


def mean_field(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The mean-field regime, p -> infinity at fixed d and gamma: SGD follows particles (m, q) in
    their own density's field. erf, k = 1.

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
    (a) The mean risk of SGD runs of width p, and lines of the same colour for infinitely many units
    with the same (m, q) at that d. (b) The gap between the two against p at three times. It falls
    like 1/p, because the rows do not span all directions and because of the noise, which is of
    order gamma/p. (c), (d) The density mu_t(m, q) of many particles. Chosen here: d = 80 (quick:
    40), gamma = 1, Delta = 1e-3, random starts.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.mean_field(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    k, gamma, Delta = 1, 1.0, 1e-3
    d, widths, runs, many = (40, (8, 16, 32), 48, 128) if quick else (80, (8, 16, 32, 64), 48, 1024)
    t = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
    begins, risk = [], np.zeros((len(widths), runs, len(t)))
    for row, p in enumerate(widths):
        configuration = setting(gamma, p, k, Delta)
        begins.append(
            random_start(configuration.problem, dimension=d, seed=seed + 10 + row, runs=runs)
        )
        chain = simulate(
            configuration.problem,
            configuration.algorithm,
            begins[-1],
            times=configuration.times(t),
            dimension=d,
            seed=seed + 1 + row,
        )
        risk[row] = chain.excess_risk
    wide = setting(gamma, many, k, Delta)
    law = random_start(wide.problem, dimension=d, seed=seed, sampling="sobol", wide=True)
    limit = solve_mean_field(
        wide.problem, wide.algorithm, _join_starts(begins, law), times=t, dimension=d
    )
    expected, density = np.asarray(limit.excess_risk)[:-1].reshape(risk.shape), limit.isel(run=[-1])
    difference = risk - expected
    gap, error = difference.mean(axis=1), spread(np.moveaxis(difference, 1, 0))
    chosen = [2, 4, len(t) - 1]
    exponents, dims = [slope(widths, gap[:, i]) for i in chosen], ("p", "run", "time")
    data = xr.Dataset(
        {
            "excess_risk": (dims, risk, {"long_name": "excess risk of SGD"}),
            "excess_risk_mean_field": (
                dims,
                expected,
                {"long_name": "excess risk of infinitely many units of the same m, q"},
            ),
            "gap": (("p", "time"), gap, {"long_name": "mean over runs of SGD less mean field"}),
            "gap_error": (("p", "time"), error, {"long_name": "its standard error"}),
            "excess_risk_law": (
                "time",
                density.excess_risk.values[0],
                {"long_name": "excess risk, particles of the law of random rows"},
            ),
            "m": (
                ("time", "particle"),
                np.asarray(density.M)[0, :, :, 0],
                {"long_name": "overlaps of the particles with the teacher"},
            ),
            "q": (
                ("time", "particle"),
                np.asarray(density.q)[0],
                {"long_name": "their squared length orthogonal to it"},
            ),
        },
        {"p": list(widths), "t": ("time", t)},
        {
            "d": d,
            "k": k,
            "gamma": gamma,
            "Delta": Delta,
            "activation": "erf",
            "particles": many,
            "runs": runs,
            "seed": seed,
        },
    )
    data.attrs |= {
        "error_particles": limit.attrs["error_particles"],
        "claim": (
            "as p -> infinity at fixed d and gamma, SGD follows the density of (m, q) of its units"
        ),
        "verdict": (
            "the gap of the risk to p = infinity falls like "
            + ", ".join(f"p^{e:.2f} (t = {t[i]:g})" for e, i in zip(exponents, chosen, strict=True))
            + f" over p = {widths[0]}..{widths[-1]}; at p = {widths[-1]} it is "
            f"{100 * gap[-1, chosen[1]] / expected[-1, :, chosen[1]].mean():.1f}"
            f"({100 * error[-1, chosen[1]] / expected[-1, :, chosen[1]].mean():.1f})% of the risk"
            f" at t = {t[chosen[1]]:g}"
        ),
    }
    fig, axes = panels(4, width=4.2)
    for row, p in enumerate(widths):
        axes[0].plot(t, expected[row].mean(axis=0), "-", color=f"C{row}", lw=1.2)
        axes[0].errorbar(
            t,
            risk[row].mean(axis=0),
            spread(risk[row]),
            fmt="o",
            ms=4,
            color=f"C{row}",
            label=f"SGD, $p$ = {p}",
        )
    axes[0].plot([], [], "k-", lw=1.2, label="$p = \\infty$, same $(m, q)$")
    axes[0].set(
        yscale="log",
        xlabel=TIME,
        ylabel="excess risk",
        title=f"$d$ = {d}, $k$ = {k}, $\\gamma$ = {gamma:g}",
    )
    for color, (i, exponent) in enumerate(zip(chosen, exponents, strict=True)):
        label = f"$t$ = {t[i]:g}, $p^{{{exponent:.2f}}}$"
        axes[1].errorbar(
            widths,
            gap[:, i],
            error[:, i],
            fmt="o-",
            ms=4,
            lw=0.8,
            capsize=2,
            color=f"C{color + 4}",
            label=label,
        )
    axes[1].plot(
        widths,
        1.4 * gap[0, chosen].max() * widths[0] / np.array(widths),
        "k--",
        lw=1,
        label="$1/p$",
    )
    axes[1].set(
        xscale="log",
        yscale="log",
        xlabel="$p$",
        ylabel="excess risk, SGD $-$ mean field",
        title=f"{runs} runs",
    )
    ticks(axes[1], widths)
    for ax, i in ((axes[2], chosen[0]), (axes[3], len(t) - 1)):
        plot.density(density, i, ax, bins=14 if quick else 36)
        ax.set_title(f"$\\mu_t$ at $t$ = {t[i]:g}")
    finish(axes, axes[:2])
    return fig, data


def mean_field_high_dimension(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Mean field and high dimension together: Q approaches M P^-1 M^T + diag(q), and particles (m,
    q) are all there is. erf, k = 2.

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
    (a) SGD runs at p = d/2, and particles with the same (m, q) at d = p = infinity. (b) Mean over
    runs of the largest entry of ``|Q - M M^T - diag(Q_perp)|`` against p, with the scale
    p^(-1/2) + d^(-1/2) of the theorem. (c) The effect of a finite d alone, at p = infinity: the
    relative change of the risk of the same particles, which falls like 1/d. (d) The density of
    (m_1, m_2): by t = 20 the units have learned the mean of the teachers and start to specialise.
    Chosen here: d = 2p, gamma = 1, Delta = 1e-3, random starts.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.mean_field_high_dimension(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    k, gamma, Delta = 2, 1.0, 1e-3
    widths, runs, many, end = (
        ((8, 16, 32), 48, 128, 4.0) if quick else ((8, 16, 32, 64), 48, 1024, 20.0)
    )
    dimensions = (20, 40, 80) if quick else (10, 20, 40, 80, 160)
    t = np.array([0.0, 1.0, 2.0, 4.0] if quick else [0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0])
    begins, shape = [], (len(widths), runs, len(t))
    risk, apart, typical = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for row, p in enumerate(widths):
        configuration = setting(gamma, p, k, Delta)
        begins.append(
            random_start(configuration.problem, dimension=2 * p, seed=seed + 10 + row, runs=runs)
        )
        chain = simulate(
            configuration.problem,
            configuration.algorithm,
            begins[-1],
            times=configuration.times(t),
            dimension=2 * p,
            seed=seed + 1 + row,
        )
        risk[row] = chain.excess_risk
        M, Q = np.asarray(chain.M), np.asarray(chain.Q)
        remainder = (Q - M @ np.swapaxes(M, 2, 3)) * (1 - np.eye(p))
        apart[row], typical[row] = (
            np.abs(remainder).max(axis=(2, 3)),
            np.sqrt((remainder**2).sum(axis=(2, 3)) / (p * (p - 1))),
        )
    wide = setting(gamma, many, k, Delta)
    law = random_start(
        wide.problem, dimension=2 * widths[-1], seed=seed, sampling="sobol", wide=True
    )
    limit = solve_mean_field(wide.problem, wide.algorithm, _join_starts(begins, law), times=t)
    expected, density = np.asarray(limit.excess_risk)[:-1].reshape(shape), limit.isel(run=[-1])
    # at p = infinity: the particles of one network in other dimensions
    narrow, item = setting(gamma, widths[-1], k, Delta), begins[-1]
    few = repeat_particles(Start(item.M_blocks[-1:], item.Q_blocks[-1:], item.a[-1:]), widths[-1])
    finite = [
        np.asarray(
            solve_mean_field(
                narrow.problem, narrow.algorithm, few, times=t, dimension=d
            ).excess_risk
        )[0]
        for d in dimensions
    ]
    change = np.array(finite) / expected[-1, -1] - 1
    late = np.abs(change[:, -1])
    mean = apart.mean(axis=1)
    scale = np.array([mean_field_scale(p, 2 * p) for p in widths])
    ratio = mean[:, 1:] / scale[:, None]
    gap = risk / expected - 1
    exponents = [
        slope(widths, mean[:, -1]),
        slope(dimensions, late),
        slope(widths, np.abs(gap.mean(axis=1)[:, 2])),
    ]
    exponents.append(slope(widths, typical.mean(axis=1)[:, -1]))
    data = xr.Dataset(
        {
            "excess_risk": (
                ("p", "run", "time"),
                risk,
                {"long_name": "excess risk of SGD at d = 2p"},
            ),
            "excess_risk_mean_field": (
                ("p", "run", "time"),
                expected,
                {"long_name": "excess risk at p = d = infinity, same m, q"},
            ),
            "off_diagonal": (
                ("p", "run", "time"),
                apart,
                {"long_name": "largest entry of |Q - M M^T - diag(Q_perp)|"},
            ),
            "off_diagonal_rms": (
                ("p", "run", "time"),
                typical,
                {"long_name": "root mean square of the same entries"},
            ),
            "scale": ("p", scale, {"long_name": "p^(-1/2) + d^(-1/2)"}),
            "change": (
                ("dimension", "time"),
                change,
                {"long_name": "risk at p = infinity and this d over that at d = infinity, less 1"},
            ),
            "m": (
                ("time", "particle", "signal"),
                np.asarray(density.M)[0],
                {"long_name": "overlaps of the particles with the teachers"},
            ),
            "q": (
                ("time", "particle"),
                np.asarray(density.q)[0],
                {"long_name": "their squared length orthogonal to them"},
            ),
        },
        {"p": list(widths), "dimension": list(dimensions), "t": ("time", t)},
        {
            "d_over_p": 2,
            "k": k,
            "gamma": gamma,
            "Delta": Delta,
            "activation": "erf",
            "particles": many,
            "runs": runs,
            "seed": seed,
        },
    )
    data.attrs |= {
        "error_particles": limit.attrs["error_particles"],
        "claim": (
            "E |Q - M P^-1 M^T - diag(Q_perp)|_inf <= exp(C t) (p^(-1/2) + d^(-1/2)), so that (m,"
            " q) follow a mean-field PDE"
        ),
        "verdict": (
            f"at d = 2p the largest entry is {ratio.min():.2f} to {ratio.max():.2f} times p^(-1/2)"
            f" + d^(-1/2) for t <= {end:g} and "
            f"falls like p^{exponents[0]:.2f}, a typical one like p^{exponents[3]:.2f} (the largest"
            " of p^2 entries has a root of log p "
            "more, at the start already); the risk's gap to p = d = infinity falls like"
            f" p^{exponents[2]:.2f} (t = {t[2]:g}), what a "
            f"finite d alone does at p = infinity like d^{exponents[1]:.2f}"
        ),
    }
    fig, axes = panels(4, width=4.2)
    for row, p in enumerate(widths):
        color = f"C{row}"
        axes[0].plot(t, expected[row].mean(axis=0), "-", color=color, lw=1.2)
        axes[0].errorbar(
            t,
            risk[row].mean(axis=0),
            spread(risk[row]),
            fmt="o",
            ms=4,
            color=color,
            label=f"SGD, $p$ = {p}, $d$ = {2 * p}",
        )
    axes[0].plot([], [], "k-", lw=1.2, label="$p = d = \\infty$, same $(m, q)$")
    axes[0].set(
        yscale="log",
        xlabel=TIME,
        ylabel="excess risk",
        title=f"$k$ = {k}, $\\gamma$ = {gamma:g}, $\\Delta$ = {Delta:g}",
    )
    for color, i in (("C4", 0), ("C5", 2), ("C6", len(t) - 1)):
        error = spread(np.moveaxis(apart[..., i], 1, 0))
        axes[1].errorbar(
            widths, mean[:, i], error, fmt="o-", ms=4, lw=0.8, color=color, label=f"$t$ = {t[i]:g}"
        )
    ends = typical[..., -1]
    text = f"root mean square, $t$ = {t[-1]:g}"
    axes[1].errorbar(
        widths, ends.mean(axis=1), spread(ends.T), fmt="^-", ms=4, lw=0.8, color="0.5", label=text
    )
    axes[1].plot(widths, scale, "k--", lw=1, label="$p^{-1/2} + d^{-1/2}$")
    axes[1].set(
        xscale="log",
        yscale="log",
        xlabel="$p = d/2$",
        ylabel="$|Q - M M^T - \\mathrm{diag}(Q_\\perp)|_\\infty$",
    )
    axes[2].plot(
        dimensions,
        late,
        "o-",
        color="C7",
        lw=0.8,
        label=f"$t$ = {t[-1]:g}, $d^{{{exponents[1]:.2f}}}$",
    )
    axes[2].plot(
        dimensions, np.abs(change[:, 1]), "s-", color="C8", lw=0.8, label=f"$t$ = {t[1]:g}"
    )
    axes[2].plot(
        dimensions, 0.7 * late[0] * dimensions[0] / np.array(dimensions), "k--", lw=1, label="$1/d$"
    )
    axes[2].set(
        xscale="log", yscale="log", xlabel="$d$", ylabel="$|R_d/R_\\infty - 1|$ at $p = \\infty$"
    )
    ticks(axes[1], widths)
    ticks(axes[2], dimensions)
    plot.density(density, -1, axes[3], bins=14 if quick else 36)
    axes[3].set_title(f"$\\mu_t(m_1, m_2)$ at $t$ = {t[-1]:g}")
    finish(axes, axes[:3])
    return fig, data
