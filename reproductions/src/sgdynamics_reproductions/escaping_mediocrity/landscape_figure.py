"""Figure 6 of Escaping mediocrity: the golf course. The risk on the sphere, its Hessian at a start,
and the samples that this costs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics import OnePassSGD, TeacherStudent, exit_time, random_start
from sgdynamics.papers.escaping_mediocrity import exit_time_quenched, growth_rates, risk

GAMMA, THRESHOLD = 0.1, 0.1
STEP = 1e-3  # of the second differences: their error is STEP^2, rounding 1e-16/STEP^2


def risk_on_the_sphere(w: np.ndarray) -> np.ndarray:
    """R of one unit w (..., d), brought to the sphere |w| = 1, with the teacher along the first
    axis: constant along w, no label noise.
    """
    m = w[..., :1] / np.linalg.norm(w, axis=-1, keepdims=True)
    return np.asarray(risk(m, np.ones((*m.shape, 1))))


def hessian_on_the_sphere(w: np.ndarray) -> np.ndarray:
    """The Hessian on the sphere at |w| = 1 as a d x d matrix, by second differences; along w, which
    leaves the sphere, it is 0.
    """
    moves = STEP * np.eye(len(w))
    both = w + moves[:, None] + moves
    apart = w + moves[:, None] - moves
    values = [risk_on_the_sphere(x) for x in (both, apart, 2 * w - apart, 2 * w - both)]
    result = (values[0] - values[1] - values[2] + values[3]) / (4 * STEP**2)
    tangent = np.eye(len(w)) - np.outer(w, w)
    return tangent @ result @ tangent


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Mediocrity in low dimension: the risk on the sphere, the spectrum of its Hessian at a start,
    and the samples to leave against d.

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
    The paper's figure 6 is a drawing of a landscape that is flat but for one hole. Here: left, the
    population risk of one unit on the sphere in d = 3 (no noise), the holes +-w*, and the circle of
    starts without overlap. Middle, the eigenvalues of the Hessian, by second differences in d
    dimensions, at a point orthogonal to w* (one is -4, along w*; d - 1 are 0 as the caption says,
    of which one belongs to the direction off the sphere) and at random starts, where flat is 4 m^2,
    about 4/d. Right, samples per dimension until a tenth of the risk is gone, from random starts by
    the exact chain, against log d: a line of slope 1/(2 gamma omega_M), which is n ~ d log d.
    Chosen: gamma = .1, no label noise, T = .1. Quick: d up to 1000 and fewer runs.

    Examples
    --------
    >>> from sgdynamics_reproductions import escaping_mediocrity
    >>> fig, data = escaping_mediocrity.figure_6(quick=True)  # doctest: +SKIP
    """
    sizes = (3, 10, 30) if quick else (3, 10, 30, 100)
    rng = np.random.default_rng(seed)
    shape = (len(sizes), sizes[-1])
    spectra = {name: np.full(shape, np.nan) for name in ("saddle", "start", "minimum")}
    toward, overlap = np.zeros(len(sizes)), np.zeros(len(sizes))
    for row, d in enumerate(sizes):
        teacher = np.eye(d)[0]
        start = rng.normal(size=d)
        start /= np.linalg.norm(start)
        saddle = start - start[0] * teacher
        overlap[row] = start[0]
        for name, w in (
            ("saddle", saddle / np.linalg.norm(saddle)),
            ("start", start),
            ("minimum", teacher),
        ):
            values, axes = np.linalg.eigh(hessian_on_the_sphere(w))
            spectra[name][row, :d] = values
            if name == "saddle":
                toward[row] = abs(axes[0, 0])
    counts = (
        {100: 256, 300: 256, 1000: 256}
        if quick
        else {100: 1000, 1000: 1000, 10_000: 500, 100_000: 100}
    )
    mean, error = np.zeros(len(counts)), np.zeros(len(counts))
    problem = TeacherStudent(width=1, activation="square", constraint="sphere")
    for column, (d, runs) in enumerate(counts.items()):
        initial_state = random_start(problem, dimension=d, seed=seed, runs=runs)
        result = exit_time(
            problem,
            OnePassSGD(lr=GAMMA),
            initial_state,
            threshold=THRESHOLD,
            max_time=40.0,
            method="exact",
            seed=seed + 1,
            dimension=d,
        )
        mean[column], error[column] = result.mean / GAMMA, result.standard_error / GAMMA
    dimensions = np.array(list(counts))
    data = xr.Dataset(
        {
            **{
                f"eigenvalues_{name}": (("size", "index"), value) for name, value in spectra.items()
            },
            "toward_teacher": (
                "size",
                toward,
                {"long_name": "overlap of the lowest eigenvector at the saddle with w*"},
            ),
            "overlap_start": ("size", overlap, {"long_name": "m of the random start"}),
            "samples": (
                "d",
                mean,
                {"long_name": "samples/d to lose the share T of the risk, mean over random starts"},
            ),
            "samples_error": ("d", error, {"long_name": "its standard error"}),
            "samples_quenched": (
                "d",
                np.asarray(exit_time_quenched(1, dimensions, GAMMA, 0.0, THRESHOLD)) / GAMMA,
            ),
        },
        {"hessian_d": ("size", list(sizes)), "d": dimensions, "runs": ("d", list(counts.values()))},
        {
            "gamma": GAMMA,
            "threshold": THRESHOLD,
            "slope": 1 / (2 * GAMMA * float(growth_rates(1, GAMMA, 0.0)[0])),
            "seed": seed,
        },
    )
    return _draw(data), data


def _draw(data: xr.Dataset) -> Any:
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    _draw_sphere(left)
    for row, d in enumerate(data.hessian_d.values):
        for name, style in (("saddle", "o"), ("start", "x")):
            values = data[f"eigenvalues_{name}"].values[row, :d]
            middle.plot(
                np.full(d, row) + (0.12 if name == "start" else -0.12),
                values,
                style,
                color=f"C{row}",
                ms=5,
                mfc="none",
            )
        middle.annotate(
            f"{d - 1} times",
            (row - 0.12, 0),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    middle.plot([], [], "ko", mfc="none", label="$w \\perp w_*$")
    middle.plot([], [], "kx", label="random start")
    middle.axhline(-4, color="0.6", lw=0.8, ls=":")
    middle.set_xticks(range(data.sizes["size"]), [str(d) for d in data.hessian_d.values])
    middle.set(
        xlabel="$d$",
        ylabel="eigenvalues of the Hessian",
        title="one direction down, the others flat",
        ylim=(-4.6, 0.8),
    )
    middle.legend(frameon=False, loc="center left")
    d = data.d.values
    right.errorbar(
        d,
        data.samples,
        data.samples_error,
        fmt="o",
        ms=4,
        capsize=2,
        label="exact chain, random starts",
    )
    line = data.samples.values[-1] + data.attrs["slope"] * np.log(d / d[-1])
    right.plot(d, line, "k-.", lw=1, label=r"slope $1/(2 \gamma \omega_M)$ in $\log d$")
    right.plot(
        d, data.samples_quenched, ":", color="0.5", label="quenched formula, no noise of SGD"
    )
    right.set(
        xscale="log",
        xlabel="$d$",
        ylabel="samples / $d$ to leave",
        ylim=(0, None),
        title="$n \\sim d \\log d$",
    )
    right.legend(frameon=False, loc="lower right")
    return fig


def _draw_sphere(ax: Axes) -> None:
    """Draw the risk on the unit sphere in d = 3 as a disc, viewed at 65 degrees from w*."""
    from matplotlib.patches import Circle

    angle = math.radians(65)
    x, y = np.meshgrid(np.linspace(-1, 1, 401), np.linspace(-1, 1, 401))
    z = np.sqrt(np.maximum(1 - x**2 - y**2, 0.0))
    m = np.cos(angle) * z + np.sin(angle) * y
    height = np.where(
        x**2 + y**2 <= 1,
        risk_on_the_sphere(np.stack([m, x, np.cos(angle) * y - np.sin(angle) * z], axis=-1)),
        np.nan,
    )
    drawn = ax.contourf(x, y, height, levels=np.linspace(0, 2, 21), cmap="viridis")
    start = np.array([0.0, -np.cos(angle)])  # m = 0, in front
    turn = np.linspace(0, np.pi, 100)
    ax.plot(np.cos(turn), -np.cos(angle) * np.sin(turn), "k--", lw=1.2, label="$m$ = 0: flat")
    ax.plot(*start, "ko", ms=6, label="a start")
    ax.annotate("", (0, 0.35), tuple(start), arrowprops={"arrowstyle": "->", "lw": 1.5})
    ax.plot(0, np.sin(angle), "w*", ms=11)
    ax.text(0.07, np.sin(angle) - 0.03, "$w_*$", color="w")
    ax.add_patch(Circle((0, 0), 1, fill=False, color="k", lw=0.8))
    ax.set(
        aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), title="risk on the sphere, $d$ = 3"
    )
    ax.set_axis_off()
    ax.legend(loc="lower left", frameon=False, fontsize="small", bbox_to_anchor=(-0.12, -0.05))
    ax.figure.colorbar(
        drawn, ax=ax, shrink=0.8, label="$\\mathcal{R}(w)$", ticks=[0, 0.5, 1, 1.5, 2]
    )
