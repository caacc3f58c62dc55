"""Figures 1 to 3 of "Stochasticity helps to navigate rough landscapes": traps of gradient descent,
and what noise does to them.

Each gives (fig, data) in the paper's units. The runs are SGD itself in N dimensions
(`method="direct"`, float32), theory is DMFT at the same finite eta. Full size (quick=False) is the
paper's N = 1000 and meant for a GPU; data.attrs has the claim and a measured verdict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes import fraction_recovered, setting
from sgdynamics_reproductions.rough_landscapes.pictures import draw_1, draw_2, draw_3
from sgdynamics_reproductions.rough_landscapes.style import (
    ALGORITHMS,
    RECOVERED,
    REPLICATES,
    UNITS,
    compare_with_dmft,
    gap_text,
    log_times,
    plateau_share,
    runs_of,
    share_text,
    theory_of,
)

ETA = 0.01
WARM = (0.5, 0.65, 0.8)
TROUBLE: dict[str, dict[str, Any]] = {
    "GD": {},
    "SGD": {"l": 0.5},
    "p-SGD": {"l": 0.5, "tau": 1.0},
}  # of figures 2 and 3


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Gradient descent from warm starts m0 = .5, .65, .8 at alpha = 2: averages against DMFT, and
    single runs on one data set.

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
    Above, a new data set for each run, and a start with overlap m0 (that of (11) fluctuates, which
    at finite N only adds noise to the comparison); below, all runs of the three panels on one and
    the same data set from starts (11) of their own. The caption is not in the text: N = 1000, eta =
    .01, 100 runs above and 40 below, t <= 10 here. Quick: N = 200, 64 and 32 runs, above t <= 4.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, seeds, end, paths = (
        (200, 64, 32, 4.0, 16384) if quick else (1000, 100, 40, 10.0, 131072)
    )
    t, t_seed = np.linspace(0, end, 41), np.linspace(0, 10.0, 51)
    texts, single = [], []
    for number, m0 in enumerate(WARM):
        item = setting(2.0, ETA, m0)
        texts.append(
            compare_with_dmft(
                theory_of(item, t, paths, seed + number),
                runs_of(item, t, N, seed + 20 + number, count),
            )
        )
        several = setting(2.0, ETA, m0, dimension=N, seed=seed + 30 + number, runs=seeds)
        single.append(np.abs(runs_of(several, t_seed, N, seed + 40, shared_data=True)["m"].values))
    data = xr.concat(texts, "start").assign_coords(
        m0=("start", list(WARM)), t_seed=("time_seed", t_seed)
    )
    data["m_seed"] = (
        ("start", "run", "time_seed"),
        np.stack(single),
        {"long_name": "|m| of runs on one data set"},
    )
    ends = data["m_seed"].values[:, :, -1]
    shares = ", ".join(
        f"{np.mean(value > RECOVERED):.0%} from m0 = {m0}"
        for m0, value in zip(WARM, ends, strict=True)
    )
    beaten = bool(ends[0].max() > RECOVERED > ends[1].min())
    data.attrs = {
        "alpha": 2.0,
        "eta": ETA,
        "N": N,
        "runs": count,
        "seeds": seeds,
        "paths": paths,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "replicates": REPLICATES,
        "claim": (
            "averages follow DMFT; runs on one landscape get stuck near the signal, some from m0 ="
            " .65 while some from .5 recover; all recover from m0 = .8"
        ),
        "verdict": f"runs less DMFT at most: {gap_text(data)};"
        f" on one data set above m = {RECOVERED} at t = 10: {shares}; "
        "a run from m0 = .5 recovered while one from m0 = .65 did not:"
        f" {'yes' if beaten else 'no'}",
    }
    return draw_1(data), data


def _three(N: int, count: int, end: float, seed: int) -> xr.Dataset:
    """Simulate GD, SGD and p-SGD at alpha = 3 from m0 = .2, on equal data sets and starts."""
    t = log_times(end, 60)
    values = []
    for name in ALGORITHMS:
        item = setting(3.0, ETA, 0.2, name, dimension=N, seed=seed, runs=count, **TROUBLE[name])
        values.append(runs_of(item, t, N, seed + 1)[["m", "loss"]])
    size = {
        "alpha": 3.0,
        "eta": ETA,
        "m0": 0.2,
        "l": 0.5,
        "tau": 1.0,
        "N": N,
        "runs": count,
        "seed": seed,
        "units": UNITS,
    }
    return three_of(values, size)


def three_of(results: list[xr.Dataset], size: dict[str, Any]) -> xr.Dataset:
    """Join m and loss (run, time) of GD, SGD and p-SGD, with the shares of recovered runs."""
    data = xr.concat(results, "algorithm").assign_coords(algorithm=list(ALGORITHMS))
    recovered = [fraction_recovered(result["loss"].isel(time=-1).values) for result in results]
    data["recovered"] = (
        "algorithm",
        [share for share, _ in recovered],
        {"long_name": "share of runs with a loss below 1e-7 at the end"},
    )
    data["recovered_error"] = (
        "algorithm",
        [error for _, error in recovered],
        {"long_name": "its standard error"},
    )
    data.attrs = dict(size)
    return data


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Average magnetization and training loss of GD, SGD and p-SGD at alpha = 3, m0 = .2, l = .5,
    tau = 1.

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
    The paper's figure 2: N = 1000, eta = .01, 500 runs, t = 1000; its fractions with a loss below
    1e-7 are 9%, 30%, 99%. The 1e-7 is read as the mean loss (20), not the sum (2). ``|m|`` is
    averaged, because a few runs recover -w0. Quick: N = 60, 64 runs, t = 150.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end = (60, 64, 150.0) if quick else (1000, 500, 1000.0)
    data = _three(N, count, end, seed)
    data.attrs |= words_of_2(data)
    return draw_2(data), data


def words_of_2(data: xr.Dataset) -> dict[str, str]:
    """Its claim, and what was measured."""
    text = ", ".join(
        f"{name} {share_text(data['loss'].sel(algorithm=name))}" for name in ALGORITHMS
    )
    return {
        "claim": (
            "at t = 1000 and N = 1000 the loss is below 1e-7 in 9% (GD), 30% (SGD), 99% (p-SGD) of"
            " the runs"
        ),
        "verdict": f"at t = {float(data['t'][-1]):g} and N = {data.attrs['N']}: {text}",
    }


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Single runs of GD, SGD and p-SGD, with the parameters of figure 2: plateaus and jumps, which
    p-SGD does not have.

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
    The paper's figure 3: 50 runs each, a data set for each. ``plateau`` is the share of the time
    points past t = 1 at which a run that has not recovered moves by less than .002 in ``|m|`` while
    t grows by a fifth. Quick: N = 100, 48 runs, t = 60.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end = (100, 48, 60.0) if quick else (1000, 50, 1000.0)
    data = _three(N, count, end, seed)
    shares = [
        plateau_share(data["t"].values, np.abs(data["m"].sel(algorithm=name).values))
        for name in ALGORITHMS
    ]
    data["plateau"] = (
        "algorithm",
        shares,
        {"long_name": "share of the unrecovered time past t = 1 that is spent on plateaus"},
    )
    data.attrs |= {
        "claim": (
            "GD has long plateaus and sudden jumps, p-SGD is not stuck in one region for long, SGD"
            " is in between"
        ),
        "verdict": "share of unrecovered time (in log t, past t = 1) on plateaus: "
        + ", ".join(f"{name} {share:.0%}" for name, share in zip(ALGORITHMS, shares, strict=True)),
    }
    return draw_3(data), data
