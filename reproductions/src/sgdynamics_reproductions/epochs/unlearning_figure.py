"""Figure 3: features are learned first, and unlearned while the network memorises the data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    DMFT,
    GradientDescent,
    TeacherStudent,
    random_start,
    simulate,
    solve_dmft,
    start,
)
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

WIDTH, ALPHA, NOISE, RATE, SCALE = 4, 2.0, 0.3, 1.0, 0.1
HEAD = (2.0, -2.0, 2.0, -2.0)
POINTS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
LONGER = (640.0, 1280.0)
# Excess risk and share along the signal at these times, from six runs at d = 120 of an independent
# program.
REFERENCE = {
    5.0: (0.089, 0.748),
    20.0: (0.135, 0.713),
    80.0: (0.180, 0.503),
    1280.0: (0.237, 0.426),
}
NAMES = {
    "excess_risk": "excess risk on fresh data",
    "train_risk": "risk on the data set",
    "share": "share of $|W|$ along the signal",
}


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Unlearning of a feature by gradient descent from small weights: risks and overlap.

    Parameters
    ----------
    quick : bool, default False
        Fewer runs and paths and a shorter time, in about half a minute.
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
    Four erf units with fixed heads +2, -2, +2, -2 learn one unit from two samples per dimension
    with label noise 0.3, from rows 0.1 N(0, I/d), by full-batch steps with lr = 1. The signal is
    learned by t = 5, when the risk on fresh data is lowest. Then the network fits the noise by rows
    that grow in all directions. Lines: DMFT, until its number of directions is no longer small
    compared with its number of paths. Circles: runs in d dimensions. The share is ``|W w*|/|W|``
    with mean squares of both.

    Examples
    --------
    >>> from sgdynamics_reproductions import epochs
    >>> fig, data = epochs.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    dimension, runs, paths, last = (120, 32, 4096, 40.0) if quick else (480, 64, 32768, 80.0)
    problem = TeacherStudent(width=WIDTH, activation="erf", noise=NOISE)
    algorithm = GradientDescent(lr=RATE, samples_per_dimension=ALPHA)
    points = np.array(POINTS if quick else POINTS + LONGER)
    times = np.unique(np.concatenate([np.arange(0.0, 10.0), np.arange(10.0, last + 1, 2.0)]))
    initial_state = start(problem, M=np.zeros((WIDTH, 1)), Q=SCALE**2 * np.eye(WIDTH), a=HEAD)
    options: dict[str, Any] = {
        "paths": paths,
        "seed": seed,
        "method": DMFT(tolerance=1e-4),
        "progress": False,
    }
    theory = solve_dmft(problem, algorithm, initial_state, times=times, **options)
    drawn = random_start(problem, dimension=dimension, seed=seed, runs=runs, scale=SCALE)
    initial_state = start(problem, M=drawn.M, Q=drawn.Q, a=np.tile(HEAD, (runs, 1)))
    options = {
        "dimension": dimension,
        "runs": runs,
        "seed": seed + 1,
        "method": "direct",
        "progress": False,
    }
    result = simulate(problem, algorithm, initial_state, times=points, **options)
    errors = {
        "excess_risk": theory.risk_standard_error.values[0],
        "train_risk": theory.train_risk_standard_error.values[0],
    }
    data = xr.Dataset(
        {
            **{name: ("t", theory[name].values[0]) for name in ("excess_risk", "train_risk")},
            "share": ("t", _share(theory)[0]),
            **{f"{name}_error": ("t", error) for name, error in errors.items()},
            **{
                f"{name}_runs": (("run", "point"), result[name].values)
                for name in ("excess_risk", "train_risk")
            },
            "share_runs": (("run", "point"), _share(result)),
        },
        {"t": times, "point": points},
        {
            "d": dimension,
            "runs": runs,
            "paths": paths,
            "rank": theory.attrs["rank"],
            "lr": RATE,
            "noise": NOISE,
            "seed": seed,
        },
    )
    data.attrs["samples_per_dimension"] = ALPHA
    return _draw(data), data


def _share(result: xr.Dataset) -> np.ndarray:
    """|W w*|/|W|, (run, time)."""
    return np.sqrt(
        np.sum(result.M.values[..., 0] ** 2, axis=-1)
        / np.trace(result.Q.values, axis1=-2, axis2=-1)
    )


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.2, 3.8)
    later = data.t.values > 0
    for ax, (name, words) in zip(axes, NAMES.items(), strict=True):
        line = data[name].values
        ax.plot(data.t[later], line[later], color="C0", label="DMFT")
        if f"{name}_error" in data:
            band = 2 * data[f"{name}_error"].values
            ax.fill_between(
                data.t[later],
                (line - band)[later],
                (line + band)[later],
                color="C0",
                alpha=0.2,
                lw=0,
            )
        draw_runs(
            ax,
            data.point,
            data[f"{name}_runs"].values,
            "C3",
            f"{data.attrs['runs']} runs, $d$ = {data.attrs['d']}",
        )
        ax.set(xscale="log", xlabel="$t$ = lr steps", title=words)
    axes[0].set(ylim=(0, None))
    axes[1].set(ylim=(0, None))
    axes[2].set(ylim=(0, 0.85))
    finish(
        fig,
        axes,
        "what is learned first is unlearned: four erf units, noisy labels, small start; bars: 2"
        " errors",
        legends=[axes[0]],
    )
    return fig
