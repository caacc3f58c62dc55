"""Figures B.1 to B.4 of "Stochasticity helps to navigate rough landscapes": ridge in place of the
sphere, small eta, persistence times.

Units, methods and sizes as in `main_figures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes import fraction_recovered, generalization_error, setting
from sgdynamics_reproductions.rough_landscapes.pictures import draw_b1, draw_b2, draw_b3, draw_b4
from sgdynamics_reproductions.rough_landscapes.style import (
    ALGORITHMS,
    UNITS,
    average,
    batch_seeds,
    log_times,
    plateau_share,
    runs_of,
)

ETA, ALPHA, WARM = 0.01, 3.0, 0.2
PARAMETERS: dict[str, dict[str, Any]] = {
    "GD": {},
    "SGD": {"l": 0.5},
    "p-SGD": {"l": 0.5, "tau": 1.0},
}
TEST_SAMPLES = 2000  # fresh samples for each run and time
RIDGES = (0.0, 0.1, 1.0)
RIDGE_RUNS = 250  # runs per batch of figures B.1 and B.2 at full size
SINGLE_BATCH = {"GD": 1, "SGD": 1, "p-SGD": 1}
BATCHES = {"GD": 2, "SGD": 2, "p-SGD": 4}  # batches of figure B.1 at full size
PERSISTENCE = (0.05, 0.5, 2.0, 5.0)


def measured_error(m: np.ndarray, q: np.ndarray, seed: int, samples: int) -> np.ndarray:
    """Measure the test error (B.7), the mean of (|h| - |h0|)^2, on fresh samples.

    There is one measurement for each entry of m and q. The preactivations of a Gaussian input have
    exactly the law h0 ~ N(0, 1), h = m h0 + sqrt(q - m^2) N(0, 1), so that inputs are not needed.
    """
    random, flat = np.random.default_rng(seed), []
    for value, norm in zip(m.ravel(), q.ravel(), strict=True):
        h0, remainder = random.standard_normal((2, samples))
        flat.append(
            np.mean(
                (np.abs(value * h0 + math.sqrt(max(norm - value**2, 0.0)) * remainder) - np.abs(h0))
                ** 2
            )
        )
    return np.array(flat).reshape(m.shape)


def _ridge(
    N: int,
    count: int,
    t: np.ndarray,
    ridge: float,
    rescale: bool,
    seed: int,
    batches: Mapping[str, int],
) -> xr.Dataset:
    """Compute test error and loss of the three algorithms with a ridge.

    The result contains averages of runs, and (B.8) at the average overlaps. `batches` is the number
    of batches of `count` runs for each algorithm. Batches with the same index have the same data
    sets and starts for all algorithms and ridges. Arrays of single runs are NaN beyond the number
    of runs of an algorithm.
    """
    values, curves = [], len(ALGORITHMS) * [*RIDGES, 0.5].index(ridge) + (100 if rescale else 200)
    most = count * max(batches.values())

    def pad_runs(result: xr.DataArray) -> np.ndarray:
        return np.pad(
            result.values, ((0, most - result.sizes["run"]), (0, 0)), constant_values=np.nan
        )

    for number, name in enumerate(ALGORITHMS):
        texts = []
        for first in batch_seeds(seed, batches[name]):
            item = setting(
                ALPHA,
                ETA,
                WARM,
                name,
                ridge=ridge,
                dimension=N,
                seed=first,
                runs=count,
                rescale=rescale,
                **PARAMETERS[name],
            )
            texts.append(runs_of(item, t, N, first + 1))
        result = xr.concat(texts, "run").astype(np.float64)  # pieces may be kept in float32
        result["mse_run"] = (
            ("run", "time"),
            measured_error(
                result["m"].values, result["q"].values, seed + curves + number, TEST_SAMPLES
            ),
        )
        result["mse_own"] = (
            ("run", "time"),
            generalization_error(result["q"].values, 1.0, result["m"].values),
        )
        means = {
            key: average(abs(result[key]) if key == "m" else result[key])
            for key in ("m", "q", "loss", "mse_run", "mse_own")
        }
        at_means = generalization_error(means["q"][0], 1.0, means["m"][0])
        values.append(
            xr.Dataset(
                {
                    "mse": (
                        "time",
                        means["mse_run"][0],
                        {"long_name": "mean squared error on fresh samples, average over runs"},
                    ),
                    "mse_error": ("time", means["mse_run"][1], {"long_name": "its standard error"}),
                    "mse_formula": (
                        "time",
                        at_means,
                        {"long_name": "(B.8) at the average overlaps"},
                    ),
                    "mse_formula_runs": (
                        "time",
                        means["mse_own"][0],
                        {"long_name": "(B.8) of each run, averaged"},
                    ),
                    "mse_run": (
                        ("run", "time"),
                        pad_runs(result["mse_run"]),
                        {"long_name": "mean squared error of each run, fresh samples"},
                    ),
                    "mse_own": (
                        ("run", "time"),
                        pad_runs(result["mse_own"]),
                        {"long_name": "(B.8) of each run"},
                    ),
                    "loss": ("time", means["loss"][0], {"long_name": "average training loss"}),
                    "loss_error": ("time", means["loss"][1], {"long_name": "its standard error"}),
                    "m": ("time", means["m"][0], {"long_name": "average |m|"}),
                    "q": ("time", means["q"][0], {"long_name": "average q"}),
                },
                {"t": ("time", t)},
            )
        )
    return xr.concat(values, "algorithm").assign_coords(algorithm=list(ALGORITHMS))


def _jensen(data: xr.Dataset) -> str:
    values, mean = (
        float(np.abs((data["mse"] - data[name]).values).max())
        for name in ("mse_formula_runs", "mse_formula")
    )
    return (
        f"measured error less (B.8): at most {values:.4f} run by run, {mean:.3f} at the average"
        " overlaps"
    )


def figure_b1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Mean squared error of the three algorithms with ridge lambda = 0, .1, 1, against (B.8);
    insets: training loss.

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
    The paper's figure B.1: alpha = 3, m0 = .2, N = 1000, eta = .01, l = .5, 250 runs (t <= 1000 and
    tau = 1 here, as in figure 2; the caption has neither). The error is measured on fresh samples.
    (B.8) is drawn as the average over runs and, as in the paper, at the average overlaps ``|m|``
    and q, which is another number where runs differ (some recovered, some not).

    Here p-SGD has 1000 runs, GD and SGD have 500: the paper's 250 decide neither whether p-SGD has
    a lower error at lambda = 0 than at 1 (it is by .046 with a standard error of .015: at lambda =
    0 a tenth of the runs has not recovered, with a large error), nor whether there is double
    descent at lambda = .1. Runs of one number have the same data set and start in all curves;
    ``mse_run`` and ``mse_own`` are NaN past the runs of an algorithm. Quick: N = 100, 16 runs, t <=
    30.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_b1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end = (100, 16, 30.0) if quick else (1000, RIDGE_RUNS, 1000.0)
    t = log_times(end, 40)
    batches = SINGLE_BATCH if quick else BATCHES
    data = xr.concat(
        [_ridge(N, count, t, ridge, True, seed, batches) for ridge in RIDGES], "ridge"
    ).assign_coords(ridge=list(RIDGES))
    last = data["mse"].isel(time=-1)
    shown = "; ".join(
        f"{name}: " + ", ".join(f"{float(v):.3f}" for v in last.sel(algorithm=name))
        for name in ALGORITHMS
    )
    data.attrs = {
        "alpha": ALPHA,
        "eta": ETA,
        "m0": WARM,
        "l": 0.5,
        "tau": 1.0,
        "N": N,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "runs": count * batches["GD"],
        "runs_persistent": count * batches["p-SGD"],
    }  # GD and SGD have the same number
    data.attrs |= {
        "claim": (
            "(B.8) gives the error; SGD gains from lambda = 1, p-SGD is better at small lambda;"
            " double descent in time at lambda = 0 and .1"
        ),
        "verdict": (
            f"{_jensen(data)}; error at the end for lambda = 0, .1, 1: {shown}; double descent of"
            " GD (rise above a former value): "
        )
        + ", ".join(
            f"{_rise(data['mse'].sel(algorithm='GD', ridge=ridge).values):.3f}" for ridge in RIDGES
        ),
    }
    return draw_b1(data), data


def _rise(values: np.ndarray) -> float:
    """Largest rise of a curve above an earlier minimum, 0 for a curve that only falls."""
    return float(np.max(values - np.minimum.accumulate(values)))


def figure_b2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Mean squared error with ridge lambda = .5, with the gradient divided by the batch fraction
    (left) and not (right).

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
    The paper's figure B.2: the parameters of B.1. Quick: N = 100, 64 runs, t <= 30.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_b2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end = (100, 64, 30.0) if quick else (1000, RIDGE_RUNS, 1000.0)
    t = log_times(end, 40)
    data = xr.concat(
        [_ridge(N, count, t, 0.5, rescale, seed, SINGLE_BATCH) for rescale in (True, False)],
        "gradient",
    )
    data = data.assign_coords(gradient=["rescaled", "not rescaled"])
    last = data["mse"].isel(time=-1)
    shown = "; ".join(
        f"{name} {float(last.sel(algorithm=name)[0]):.3f}, {float(last.sel(algorithm=name)[1]):.3f}"
        for name in ALGORITHMS
    )
    data.attrs = {
        "alpha": ALPHA,
        "eta": ETA,
        "m0": WARM,
        "l": 0.5,
        "tau": 1.0,
        "ridge_strength": 0.5,
        "N": N,
        "runs": count,
        "seed": seed,
    }
    data.attrs |= {
        "units": UNITS,
        "claim": "dividing by l is better for p-SGD, not dividing for SGD",
        "verdict": f"error at the end, divided by l and not: {shown}; {_jensen(data)}",
    }
    return draw_b2(data), data


def figure_b3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Smaller and smaller learning rates: SGD becomes GD, persistent SGD does not.

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
    The paper's figure B.3: alpha = 3, m0 = .2, l = .5, N = 1000, 250 runs, eta = .01, .001, .0005,
    .0001 (tau = 1 and t <= 30 here; the caption has neither). That is late enough for the largest
    differences to GD: at eta = .01 the runs of figure 2, which continue to t = 1000, have that of
    p-SGD at t = .46 (.20; above half of it from t = .07 to 5.6; .02 at t = 30) and that of SGD at t
    = .02 (.012); in the quick figure they are at t = .3 to .4 and .02 to .04 at every eta. All runs
    of a number have the same data set and start, so that differences between algorithms are paired.
    Quick: N = 100, 24 runs, eta = .02, .005, .00125, t <= 10.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_b3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    rates = (0.02, 0.005, 0.00125) if quick else (0.01, 0.001, 0.0005, 0.0001)
    N, count, end = (100, 24, 10.0) if quick else (1000, 250, 30.0)
    t = log_times(end, 30, grid=rates[0])
    variables: dict[str, Any] = {}
    table: dict[str, list[xr.Dataset]] = {}
    for name in ALGORITHMS:
        settings = [
            setting(ALPHA, eta, WARM, name, dimension=N, seed=seed, runs=count, **PARAMETERS[name])
            for eta in rates
        ]
        table[name] = [runs_of(value, t, N, seed + 1) for value in settings]
    dims = ("algorithm", "rate", "time")
    for key in ("m", "loss"):
        values = [[average(abs(entry[key])) for entry in table[name]] for name in ALGORITHMS]
        variables[key] = (
            dims,
            np.array([[mean for mean, _ in row] for row in values]),
            {"long_name": f"average {key}"},
        )
        variables[f"{key}_error"] = (
            dims,
            np.array([[error for _, error in row] for row in values]),
            {"long_name": "its standard error"},
        )
    gaps = {
        name: [_distance(table[name][i], table["GD"][i]) for i in range(len(rates))]
        for name in ALGORITHMS[1:]
    }
    data = xr.Dataset(
        variables, {"t": ("time", t), "eta": ("rate", list(rates)), "algorithm": list(ALGORITHMS)}
    )
    data["gap"] = (
        dims[:2],
        [[0.0] * len(rates), *gaps.values()],
        {"long_name": "largest difference of the average loss to GD"},
    )
    data["difference"] = (
        ("other", "rate", "run", "time"),
        np.array(
            [
                [
                    (item["loss"] - gd["loss"]).values
                    for item, gd in zip(table[name], table["GD"], strict=True)
                ]
                for name in ALGORITHMS[1:]
            ]
        ),
        {"long_name": "loss of each run less that of GD on the same data set from the same start"},
    )
    data = data.assign_coords(other=list(ALGORITHMS[1:]))
    shown = ", ".join(f"{eta:g}" for eta in rates)
    text = "; ".join(f"{name}: " + ", ".join(f"{gap:.4f}" for gap in gaps[name]) for name in gaps)
    data.attrs = {
        "alpha": ALPHA,
        "m0": WARM,
        "l": 0.5,
        "tau": 1.0,
        "N": N,
        "runs": count,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "claim": (
            "as eta falls the curves of SGD collapse on those of GD; those of p-SGD have another"
            " limit"
        ),
        "verdict": f"largest difference of the average loss to GD for eta = {shown}: {text}",
    }
    return draw_b3(data), data


def _distance(first: xr.Dataset, second: xr.Dataset) -> float:
    """Largest difference of the average losses over time."""
    return float(np.abs(np.nanmean((first["loss"] - second["loss"]).values, axis=0)).max())


def figure_b4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Single runs of persistent SGD at tau = .05, .5, 2, 5: long persistence ends the plateaus, and
    delays the start.

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
    The paper's figure B.4: alpha = 3, l = .5, m0 = .2, N = 1000, eta = .01, 50 runs (t <= 1000
    here). Quick: N = 100, 32 runs, t <= 50.

    Examples
    --------
    >>> from sgdynamics_reproductions import rough_landscapes
    >>> fig, data = rough_landscapes.figure_b4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, count, end = (100, 32, 50.0) if quick else (1000, 50, 1000.0)
    t = log_times(end, 60)
    results = []
    for tau in PERSISTENCE:
        configuration = setting(
            ALPHA, ETA, WARM, "p-SGD", l=0.5, tau=tau, dimension=N, seed=seed, runs=count
        )
        results.append(runs_of(configuration, t, N, seed + 1)[["m", "loss"]])
    data = xr.concat(results, "tau").assign_coords(tau=list(PERSISTENCE))
    shares = [fraction_recovered(entry["loss"].isel(time=-1).values)[0] for entry in results]
    data["recovered"] = (
        "tau",
        shares,
        {"long_name": "share of runs with a loss below 1e-7 at the end"},
    )
    quiet = [plateau_share(t, np.abs(item["m"].values)) for item in results]
    data["plateau"] = ("tau", quiet, {"long_name": "share of unrecovered time on plateaus"})
    early = [
        float(np.interp(1.0, t, np.median(np.abs(result["m"].values), axis=0)))
        for result in results
    ]
    data["early"] = ("tau", early, {"long_name": "median |m| at t = 1"})
    data.attrs = {
        "alpha": ALPHA,
        "eta": ETA,
        "m0": WARM,
        "l": 0.5,
        "N": N,
        "runs": count,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "claim": "longer persistence leaves fewer runs at plateaus, but m stays low until t = tau",
        "verdict": f"for tau = {', '.join(map(str, PERSISTENCE))}: recovered at t = {end:g}:"
        f" {', '.join(f'{x:.0%}' for x in shares)}; "
        f"unrecovered time on plateaus: {', '.join(f'{x:.1%}' for x in data['plateau'].values)}; "
        f"median |m| at t = 1: {', '.join(f'{value:.2f}' for value in early)}",
    }
    return draw_b4(data), data
