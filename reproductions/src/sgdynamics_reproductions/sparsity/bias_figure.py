"""Figure 1: from the least L2 norm to the least L1 norm by the scale of the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import DiagonalNetwork, GradientDescent, simulate
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

SHARE = 0.1  # of the teacher weights that are 1; the others are 0
SAMPLES = 0.5  # samples per dimension
STARTS = np.geomspace(0.01, 10.0, 31)
SIMULATED = np.array([0.2, 0.4, 0.8, 1.6])
RATIOS = np.linspace(0.1, 0.9, 17)  # samples per dimension of the third panel
SCALES = (0.01, 0.3, 3.0)
STEPS = 4000
NAMES = ("excess_risk", "l1_norm")


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Excess risk and L1 norm of the interpolator that gradient descent finds, by start.

    Parameters
    ----------
    quick : bool, default False
        Fewer and smaller runs, in about two minutes.
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
    Without noise and with n = d/2 samples, many predictors interpolate the data. Gradient flow from
    u = start, v = 0 ends at the one of least potential (Woodworth et al., 2020), whose risk is the
    solution of two scalar equations for d -> infinity (``DiagonalNetwork.interpolator``).

    Examples
    --------
    >>> from sgdynamics_reproductions import sparsity
    >>> fig, data = sparsity.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs = (200, 24) if quick else (1000, 100)
    problem = DiagonalNetwork(teacher=[(1.0, SHARE), (0.0, 1 - SHARE)])

    def limit(start: float, ratio: float = SAMPLES) -> tuple[float, float]:
        solved = problem.replace(start=start).interpolator(ratio)
        return solved.excess_risk, solved.l1_norm

    curves = np.array([limit(start) for start in STARTS])
    expected = np.array([limit(start) for start in SIMULATED])
    by_ratio = np.array([[limit(scale, ratio)[0] for ratio in RATIOS] for scale in SCALES])
    measured: list[list[np.ndarray]] = []
    training = []
    for index, start in enumerate(SIMULATED):
        # The largest stable rate falls as the squares of the weights.
        algorithm = GradientDescent(
            lr=0.12 / max(1.0, start**2 / 1.5), samples_per_dimension=SAMPLES
        )
        ran = simulate(
            problem.replace(start=float(start)),
            algorithm,
            steps=[STEPS],
            dimension=dimension,
            runs=runs,
            seed=len(SIMULATED) * seed + index,
            method="direct",
        )
        measured.append([ran[name].values[:, 0] for name in NAMES])
        training.append(ran.train_risk.values[:, 0])
    values = np.array(measured)
    data = xr.Dataset(
        {
            "excess_risk": ("start", curves[:, 0]),
            "l1_norm": ("start", curves[:, 1]),
            "excess_risk_expected": ("simulated", expected[:, 0]),
            "l1_norm_expected": ("simulated", expected[:, 1]),
            "excess_risk_runs": (("run", "simulated"), values[:, 0].T),
            "l1_norm_runs": (("run", "simulated"), values[:, 1].T),
            "train_risk_runs": (("run", "simulated"), np.array(training).T),
            "excess_risk_by_ratio": (("scale", "ratio"), by_ratio),
        },
        {"start": STARTS, "simulated": SIMULATED, "ratio": RATIOS, "scale": list(SCALES)},
        {"d": dimension, "runs": runs, "seed": seed, "share": SHARE, "samples": SAMPLES},
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.4, 3.8)
    share, samples = data.attrs["share"], data.attrs["samples"]
    for ax, name, colour in zip(axes, NAMES, ("C0", "C1"), strict=False):
        ax.plot(data.start, data[name], color=colour, label="limit")
        draw_runs(ax, data.simulated, data[f"{name}_runs"].values, colour, "gradient descent")
        ax.set(xscale="log", xlabel="start $u$")
    axes[0].axhline((1 - samples) * share / 2, color="grey", ls="--", label="least $L_2$ norm")
    axes[0].set(ylabel="excess risk", title="risk after training")
    axes[1].axhline(share, color="grey", ls="--", label="teacher, recovered by least $L_1$ norm")
    axes[1].set(ylabel="mean $|a_j|$", title="$L_1$ norm after training")
    for index, scale in enumerate(data.scale.values):
        curve = np.maximum(data.excess_risk_by_ratio[index], 1e-7)
        axes[2].semilogy(data.ratio, curve, color=f"C{2 + index}", label=f"$u$ = {scale:g}")
    axes[2].set(
        ylim=(1e-6, 0.1), xlabel="samples/$d$", ylabel="excess risk", title="risk by sample size"
    )
    words = (
        f"{100 * share:.0f}% of the teacher weights are 1, n = {samples:g} d: limit (lines), "
        f"{data.attrs['runs']} runs at $d$ = {data.attrs['d']} (bars: 2 errors)"
    )
    finish(fig, axes, words)
    return fig
