"""Figures 4 to 6 of "Stochasticity helps to navigate rough landscapes": which noise, how much of
it, and its DMFT.

Units, methods and sizes as in `main_figures`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes import Setting, setting, stability_limit, unstable_share
from sgdynamics_reproductions.rough_landscapes.pictures import draw_4, draw_5, draw_6
from sgdynamics_reproductions.rough_landscapes.style import (
    RECOVERED,
    REPLICATES,
    UNITS,
    batch_seeds,
    compare_with_dmft,
    crossing,
    gap_text,
    log_times,
    quartiles,
    runs_of,
    theory_of,
)

ETA, ALPHA, WARM = 0.01, 3.0, 0.2
SMALL_STEPS = {
    0.01: 0.001,
    0.05: 0.0025,
    0.1: 0.005,
}  # eta at small l; the paper has .0025 at l = .01, where runs explode
EXPLODING = (
    (0.01, 0.0025),
    (0.01, 0.001),
    (0.05, 0.01),
    (0.05, 0.0025),
    (0.1, 0.01),
    (0.1, 0.005),
)  # (l, eta)
BATCHES = {
    "batch": 2,
    "persistence": 1,
    "temperature": 1,
}  # of full-size runs: 250 leave open whether any l is better than .01
Curves = dict[
    str, tuple[float, str, dict[str, Any]]
]  # by its label: eta, the algorithm and its numbers


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Median magnetization and loss of p-SGD at several batch sizes and persistence times, and of
    Langevin at several temperatures.

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
    The paper's figure 4: alpha = 3, m0 = .2, N = 1000, 250 runs (500 at the left), t = 1000 with T
    switched to zero at t = 700; tau = 1 (left), l = .5 (centre, with vanilla SGD), eta = .01 but
    for small l. At l = .01 the printed eta = .0025 is beyond the stability line (a sample with h^2
    - h0^2 > 2 l/eta overshoots) and the runs explode: eta = .001 here; a fourth column, not in the
    paper, shows which pairs (l, eta) do, against the number of unstable samples that is expected at
    the start. Medians are over the runs that have not exploded. Quick: N = 100, 12 runs, t = 30
    with T = 0 from t = 20, four curves a panel.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end, off = (100, 12, 30.0, 20.0) if quick else (1000, 250, 1000.0, 700.0)
    batches = (0.05, 0.3, 0.9, 1.0) if quick else (0.01, 0.05, 0.1, 0.3, 0.9, 0.95, 1.0)
    taus = (0.1, 1.0, 5.0) if quick else (0.05, 0.1, 0.5, 1.0, 2.0, 5.0)
    hot = (0.0, 0.5, 2.0, 10.0) if quick else (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    panels: dict[str, Curves] = {
        "batch": {
            f"l = {b:g}": (SMALL_STEPS.get(b, ETA), "p-SGD", {"l": b, "tau": 1.0}) for b in batches
        },
        "persistence": {
            "SGD": (ETA, "SGD", {"l": 0.5}),
            **{f"tau = {tau:g}": (ETA, "p-SGD", {"l": 0.5, "tau": tau}) for tau in taus},
        },
        "temperature": {f"T = {T:g}": (ETA, "Langevin", {"T": (T, off)}) for T in hot},
    }
    t = log_times(end, 50)
    table = {
        panel: _panel(panel, curves, t, N, count, seed, 1 if quick else BATCHES[panel])
        for panel, curves in panels.items()
    }
    data = xr.merge(table.values())
    tried = 20 if quick else 100
    data = data.merge(_explosions(N, tried, 2.0 if quick else 10.0, seed + 2))
    bad = data["exploded"].values
    data.attrs = {
        "alpha": ALPHA,
        "m0": WARM,
        "N": N,
        "runs": count,
        "runs_batch": data.sizes["run_batch"],
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "runs_exploding": tried,
        "switched_off_at": off,
        "claim": (
            "intermediate batch sizes, persistence times and temperatures are best; l = .01 was run"
            " at eta = .0025"
        ),
        "verdict": "best (first to a median of .99, else highest at the end): "
        + "; ".join(_best(panel, data) for panel in panels)
        + (
            f"; at l = .01 exploded {bad[0]:.0%} of the runs with eta = .0025, {bad[1]:.0%} with"
            " eta = .001"
        ),
    }
    return draw_4(data), data


def _panel(
    panel: str, curves: Curves, t: np.ndarray, N: int, count: int, seed: int, batches: int
) -> xr.Dataset:
    """Compute |m| of each run, medians, quartiles and the share of divergent runs, for each curve.

    Each curve has `batches` batches of `count` runs.
    """

    def runs(eta: float, algorithm: str, parameters: dict[str, Any]) -> xr.Dataset:
        starts = {
            first: setting(
                ALPHA, eta, WARM, algorithm, dimension=N, seed=first, runs=count, **parameters
            )
            for first in batch_seeds(seed, batches)
        }
        return xr.concat(
            [runs_of(start, t, N, first + 1) for first, start in starts.items()], "run"
        )

    results = [runs(*curve) for curve in curves.values()]
    curve, loss = f"curve_{panel}", np.stack([entry["loss"].values for entry in results])
    m = np.stack([np.abs(value["m"].values) for value in results])
    variables: dict[str, Any] = {
        f"m_runs_{panel}": (
            (curve, f"run_{panel}", "time"),
            m,
            {"long_name": "|m| of each run, NaN once it has exploded"},
        ),
        f"exploded_{panel}": (
            curve,
            np.isnan(m[..., -1]).mean(axis=1),
            {"long_name": "share of runs that exploded"},
        ),
    }
    for key, values in (("m", m), ("loss", loss)):
        variables[f"{key}_{panel}"] = ((curve, "time"), np.nanmedian(values, axis=1))
        variables[f"{key}_quartiles_{panel}"] = (
            (curve, "quartile", "time"),
            quartiles(values),
            {"long_name": "of the runs"},
        )
    return xr.Dataset(variables, {"t": ("time", t), curve: list(curves)})


def _best(panel: str, data: xr.Dataset) -> str:
    """The curve whose median gets to recovery first, or else gets furthest, in words."""
    t, medians = data["t"].values, data[f"m_{panel}"].values
    reached = np.array([crossing(t, values, RECOVERED) for values in medians])
    order = np.where(np.isfinite(reached), reached, t[-1] * (3 - medians[:, -1]))
    winner = int(np.argmin(order))
    where = "inside" if 0 < winner < len(order) - 1 else "at an end of"
    return f"{panel}: {data[f'curve_{panel}'].values[winner]} ({where} the list)"


def _explosions(N: int, count: int, end: float, seed: int) -> xr.Dataset:
    """The share of p-SGD runs that explode by t = end, for some (l, eta), and the number of
    unstable samples expected at the start.
    """
    share, expected = [], []
    for l, eta in EXPLODING:  # noqa: E741
        item = setting(ALPHA, eta, WARM, "p-SGD", l=l, tau=1.0, dimension=N, seed=seed, runs=count)
        result = runs_of(item, np.array([0.0, end]), N, seed)
        share.append(float(np.isnan(result["m"].values[:, -1]).mean()))
        expected.append(ALPHA * N * unstable_share(eta, l, WARM))
    pairs = np.array(EXPLODING)
    limits = [stability_limit(eta, b) for b, eta in EXPLODING]
    return xr.Dataset(
        {
            "exploded": (
                "pair",
                share,
                {"long_name": f"share of {count} runs that exploded by t = {end:g}"},
            ),
            "unstable_samples": (
                "pair",
                expected,
                {"long_name": "samples above the stability limit at the start, expected"},
            ),
            "stability_limit": ("pair", limits, {"long_name": "2 l/eta"}),
        },
        {"pair_l": ("pair", pairs[:, 0]), "pair_eta": ("pair", pairs[:, 1])},
    )


def _theory(setting: Setting, sizes: tuple[int, int, float, int], seed: int) -> xr.Dataset:
    """Compare average m and loss of runs with DMFT at the same eta."""
    N, count, end, paths = sizes
    t = np.linspace(0, end, 51)
    data = compare_with_dmft(
        theory_of(setting, t, paths, seed), runs_of(setting, t, N, seed + 1, count)
    )
    data.attrs = {
        "alpha": ALPHA,
        "m0": WARM,
        "eta": ETA,
        "N": N,
        "runs": count,
        "paths": paths,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "replicates": REPLICATES,
        "claim": "very good agreement between DMFT and the average of runs",
        "verdict": f"largest gaps: {gap_text(data)}",
    }
    return data


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Persistent SGD against its DMFT: average magnetization and training loss.

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
    The caption is not in the text: alpha = 3, m0 = .2, l = .5, tau = 1, eta = .01, N = 1000, 1000
    runs, t <= 10 here. DMFT is at the same eta. The loss of the runs has a drift of order 1/N.
    Quick: N = 200, 256 runs, t <= 1.5.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes = (200, 256, 1.5, 32768) if quick else (1000, 1000, 10.0, 524288)
    table: dict[str, Any] = {"l": 0.5, "tau": 1.0}
    item = setting(ALPHA, ETA, WARM, "p-SGD", **table)
    data = _theory(item, sizes, seed)
    data.attrs |= table
    return draw_5(data), data


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Langevin against its DMFT: average magnetization and training loss.

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
    The caption is not in the text: alpha = 3, m0 = .2, T = 1, eta = .01, N = 1000, 1000 runs, t <=
    10 here. DMFT is at the same eta, with two directions per step. Runs near it slowly: at t = 10
    their average m is .109, .047, .013 below it at N = 250, 1000, 4000 (errors of .004 to .005).
    Quick: N = 200, 256 runs, t <= 1.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes = (200, 256, 1.0, 32768) if quick else (1000, 1000, 10.0, 524288)
    item = setting(ALPHA, ETA, WARM, "Langevin", T=1.0)
    data = _theory(item, sizes, seed)
    data.attrs["T"] = 1.0
    return draw_6(data), data
