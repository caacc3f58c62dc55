"""Figure 5: the best schedules on power laws against the horizon."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, Spectrum, TeacherStudent, power_law, start
from sgdynamics.analysis.protocols.linear_rates import (
    LinearOptimum,
    LinearRecursion,
    linear_recursion,
    noise_dominated,
    optimal_rates,
)
from sgdynamics.base import checks
from sgdynamics.papers.protocols import horizon_exponents
from sgdynamics_reproductions.drawing import finish, subplots, ticks

PIECES, LOUD = 100, 100.0  # LOUD: a label noise far above the excess risk
# exponent of the target, of the spectrum, label noise, inputs
LAWS = {
    "easy": (2.5, 1.2, 1.0, 400),
    "hard": (1.5, 2.0, 0.01, np.inf),
    "hard, 400 inputs": (1.5, 2.0, 0.01, 400),
}


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Best and best constant risk against the number of steps T on an easy and a hard power law,
    the schedules, and their invariant.

    Parameters
    ----------
    quick : bool, default False
        Shorter horizons, in less than a minute.
    seed : int, default 0
        Not used: nothing here is random.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Linear students from 0 by the exact mean of SGD, batch 1, 100 pieces; l_k = k^-b, l_k w*_k^2 =
    k^-a, (a, b) = (2.5, 1.2) (easy, a > b, 400 inputs, noise 1) and (1.5, 2) (hard, noise .01,
    infinitely many inputs: with 400 of them the last are soon reached, and the risk falls faster).
    Theory: ``horizon_exponents``; on the hard law (a - 1)/b also for constant rates, while the risk
    is above the noise. (d) Where noise dominates eta K(chi)^(1/2) is constant, chi the sum of steps
    still to come and K(chi) = sum l^2 e^(-2 l chi): with noise 1 it is not at first, where the
    excess risk is .5; with noise 100 it is.

    Examples
    --------
    >>> from sgdynamics_reproductions import protocols
    >>> fig, data = protocols.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    horizons = (100, 300, 1000, 3000) if quick else (100, 300, 1000, 3000, 10_000, 30_000)
    shape = (len(LAWS), len(horizons))
    risk, constant, rates = np.zeros(shape), np.zeros(shape), np.zeros((*shape, PIECES))
    invariant = np.zeros((len(horizons), PIECES))
    for row, (a, b, noise, size) in enumerate(LAWS.values()):
        for column, steps in enumerate(horizons):
            recursion = _recursion(a, b, noise, size, steps)
            result = optimal_rates(recursion, PIECES)
            risk[row, column], constant[row, column], rates[row, column] = (
                result.risk,
                result.best_constant_risk,
                result.rates,
            )
            if row == 0:
                invariant[column] = _invariant(recursion, result)
    a, b, _, size = LAWS["easy"]
    loud = _recursion(a, b, LOUD, size, horizons[-1])
    result = optimal_rates(loud, PIECES)
    data = xr.Dataset(
        {
            "risk": (("law", "steps"), risk, {"long_name": "least excess risk"}),
            "constant_risk": (
                ("law", "steps"),
                constant,
                {"long_name": "least excess risk with a constant rate"},
            ),
            "rates": (("law", "steps", "piece"), rates, {"long_name": "best rates"}),
            "invariant": (
                ("steps", "piece"),
                invariant,
                {"long_name": "eta K^(1/2) over that of the law, easy, noise 1"},
            ),
            "loud_invariant": (
                "piece",
                _invariant(loud, result),
                {"long_name": "the same with noise 100, at the last T"},
            ),
            "loud_risk": (
                "of",
                [result.risk, noise_dominated(loud, PIECES).risk],
                {"long_name": "least excess risk and the law's"},
            ),
            "exponents": (
                ("law", "schedule"),
                [horizon_exponents(*law[:2]) for law in LAWS.values()],
            ),
            "early": (
                "law",
                [(value[0] - 1) / value[1] for value in LAWS.values()],
                {"long_name": "(a - 1)/b"},
            ),
        },
        {
            "law": list(LAWS),
            "steps": list(horizons),
            "schedule": ["best", "constant"],
            "share": ("piece", (np.arange(PIECES) + 0.5) / PIECES),
        },
        {"pieces": PIECES, "loud": LOUD, "seed": seed},
    )
    return _draw(data), data


def local_exponents(data: xr.Dataset) -> np.ndarray:
    """-dlog R/dlog T between neighbouring horizons: (law, best or constant, gap)."""
    both = np.stack([data.risk.values, data.constant_risk.values], axis=1)
    return -np.diff(np.log(both), axis=-1) / np.diff(np.log(data.steps.values))


def annealed_share(data: xr.Dataset) -> np.ndarray:
    """The share of the steps whose rate is below half of the first one: (law, T)."""
    rates = data.rates.values
    return np.mean(rates < rates[..., :1] / 2, axis=-1)


def _recursion(a: float, b: float, noise: float, size: float, steps: int) -> LinearRecursion:
    if np.isinf(size):
        spectrum = power_law(b, np.inf, target=(a - b) / 2)
    else:
        k = np.arange(1.0, size + 1)
        spectrum = Spectrum(k**-b, np.ones(len(k)), target=k ** ((b - a) / 2))
    problem = TeacherStudent(width=1, activation="linear", noise=noise, covariance=spectrum)
    zero = np.zeros((spectrum.blocks, 1, 1))
    return linear_recursion(
        problem, OnePassSGD(lr=0.1, per="step"), start(problem, M=zero, Q=zero), steps=steps
    )


def _invariant(recursion: LinearRecursion, optimum: LinearOptimum) -> np.ndarray:
    """Compute eta K(chi)^(1/2) of each piece, relative to the law where noise dominates."""
    moves = optimum.rates * np.diff(optimum.edges)
    left = np.cumsum(moves[::-1])[::-1] - moves / 2
    values, counts = recursion.eigenvalues, recursion.counts
    root = np.sqrt(np.exp(-2 * np.outer(left, values)) @ (counts * values**2))
    return optimum.rates * root / noise_dominated(recursion, PIECES).invariant


def _draw(data: xr.Dataset) -> Any:
    from matplotlib import colormaps

    fig, axes = subplots(1, 4, (18.0, 4.4))
    T, local, inside = data.steps.values, local_exponents(data), data.share.values
    for row in range(len(data.law)):
        ax, small = axes[min(row, 1)], row == 2
        for kind, (values, colour) in enumerate(((data.risk, "C0"), (data.constant_risk, "C3"))):
            y, e = values.values[row], local[row, kind, -1]
            theory = data.exponents.values[row, kind] if row == 0 else float(data.early[row])
            orthogonal = ", 400 inputs" if small else f" (theory {theory:.3f})"
            text = f"{('best', 'constant')[kind]}: {e:.3f}{orthogonal}"
            ax.plot(
                T, y, "s:" if small else "o-", color=colour, ms=4, mfc="white", lw=1.2, label=text
            )
            if not small:
                ax.plot(T, y[-1] * (T / T[-1]) ** -theory, color=colour, lw=0.8, ls="--")
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(T)))
    for column, steps in enumerate(T):
        for row, dashes in ((0, "-"), (1, "--")):
            rates = data.rates.values[row, column]
            axes[2].plot(
                inside,
                rates / rates.max(),
                color=shades[column],
                ls=dashes,
                lw=1.2,
                label=f"$T$ = {steps}" if row == 0 else None,
            )
        axes[3].plot(
            inside,
            data.invariant.values[column],
            color=shades[column],
            label=f"noise 1, $T$ = {steps}",
        )
    axes[2].plot([], [], "k-", label="easy")
    axes[2].plot([], [], "k--", label="hard")
    axes[3].plot(
        inside,
        data.loud_invariant,
        "k:",
        lw=1.8,
        label=f"noise {data.attrs['loud']:g}, $T$ = {T[-1]}",
    )
    axes[3].axhline(1, color="0.6", lw=0.8, zorder=0)
    for ax, words in (
        (axes[0], "easy, $(a, b)$ = (2.5, 1.2)"),
        (axes[1], "hard, $(a, b)$ = (1.5, 2)"),
    ):
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="steps $T$",
            ylabel="excess risk after $T$ steps",
            title=words,
        )
        ticks(ax, T)
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low / 2.2, high)  # room for the legend
    axes[2].set(xlabel="$s/T$", ylabel="rate/largest rate", ylim=(0, 1.08), title="schedules")
    axes[3].set(
        xlabel="$s/T$",
        ylabel=r"$\eta\,K(\chi)^{1/2}$/that of the law",
        ylim=(0.6, 1.1),
        title="invariant, easy",
    )
    finish(
        fig,
        list(axes),
        "best schedules on power laws; exponents: the last two $T$, dashed: the slopes of theory",
        loc="lower left",
    )
    axes[3].legend(frameon=False, fontsize="small", loc="lower right")
    return fig
