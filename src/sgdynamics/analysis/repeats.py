"""What another epoch is worth: how many fresh samples would have brought the risk as far down as samples that are seen again."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.interpolate import PchipInterpolator

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule
from sgdynamics.base.progress import warn
from sgdynamics.base.support import require
from sgdynamics.fixed_data.options import DMFT
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.results.datasets import record
from sgdynamics.solvers.dmft import solve_dmft
from sgdynamics.solvers.ode import solve_ode

FARTHER = 1.25  # the one-pass curve is followed so many times as far as if repeats were fresh
POINTS = 60  # of that curve, an epoch
MOST_EPOCHS = 10_000


def worth_of_repeats(
    problem: Problem,
    algorithm: EpochSGD,
    start: Start,
    *,
    epochs: int = 6,
    paths: int = 20000,
    seed: int = 0,
    replicates: int = 4,
    cells: int | None = None,
    dtype: str = "float64",
    memory: float | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Fresh samples that a sample of each epoch is worth, at d -> infinity.

    ::

        worth(e) = (alpha(risk after e epochs) - alpha(risk after e - 1 epochs))/samples_per_dimension,

    where alpha(risk) is how many fresh samples/d the one-pass ODE takes from the same start, at the same lr/batch, to that risk for the
    first time.

    Parameters
    ----------
    problem : Problem
        What is learned, with Gaussian inputs; its numbers do not depend on time.
    algorithm : EpochSGD
        How; with numbers as ``lr`` and ``head_rate``.
    start : Start
        Where, of one run or several.
    epochs : int, default 6
        How many.
    paths : int, default 20000
        Of ``solve_dmft``, which gives the risk after each epoch.
    seed : int, default 0
        Of the random numbers.
    replicates : int, default 4
        As in ``solve_dmft``.
    cells : int, optional
        As in ``solve_dmft``.
    dtype : str, default "float64"
        As in ``sgd.DMFT``.
    memory : float, optional
        As in ``sgd.DMFT``.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    xarray.Dataset
        With the axes run and epoch (1, 2, ...): ``worth``, ``fresh`` (alpha of one pass at the risk
        after the epoch), ``risk``, ``train_risk``, and their ``_standard_error``. Values are NaN, with
        a warning, where one-pass SGD does not reach that risk, and where ``solve_dmft`` diverges
        (coordinate ``diverged_at``).

    Raises
    ------
    ValueError
        If an argument is refused, or memory or work is beyond reach.

    Notes
    -----
    In the first epoch of "reshuffle" and "fixed" every sample is fresh, and the worth is 1 up to its error. With label noise later epochs
    fit the noise: a negative worth says that the risk has risen. The standard error of ``worth`` takes the risks at both ends of an epoch
    as independent.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> begin = sgd.start(problem, M=[[0.0]], Q=[[0.1]])
    >>> algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    >>> found = sgd.worth_of_repeats(problem, algorithm, begin, epochs=2, cells=16, paths=1024, progress=False)
    >>> found["worth"].shape, bool(found["worth"][0, 1] < 0.8)
    ((1, 2), True)
    """
    require("worth_of_repeats", problem, algorithm)
    if not isinstance(algorithm, EpochSGD):
        raise checks.reject("algorithm", algorithm, "give sgd.EpochSGD(...)")
    if isinstance(algorithm.lr, Schedule):
        raise checks.reject(
            "lr",
            algorithm.lr,
            "what is learned later would be learned at another rate: give a number",
        )
    if isinstance(algorithm.head_rate, Schedule):
        raise checks.reject(
            "head_rate",
            algorithm.head_rate,
            "one pass and epochs count it in other times: give a number",
        )
    if problem.scheduled:
        raise checks.reject(
            "problem",
            problem,
            "one pass and epochs count its numbers in other times: give numbers that stay",
        )
    count = checks.integer("epochs", epochs, 1, MOST_EPOCHS)
    each = algorithm.samples_per_dimension
    more: dict[str, Any] = {
        "paths": paths,
        "seed": seed,
        "replicates": replicates,
        "cells": cells,
        "method": DMFT(dtype=dtype, memory=memory),
    }
    repeated = solve_dmft(
        problem, algorithm, start, alpha=each * np.arange(count + 1), **more, progress=progress
    )
    one_pass = OnePassSGD(algorithm.lr, algorithm.batch, algorithm.head_rate)
    alpha = np.linspace(0.0, FARTHER * each * count, POINTS * count + 1)
    curve = solve_ode(problem, one_pass, start, alpha=alpha)
    risk, error = repeated["risk"].values, repeated["risk_standard_error"].values
    found = [
        _fresh(alpha, one, values) for one, values in zip(curve["risk"].values, risk, strict=True)
    ]
    fresh = np.stack([values for values, _ in found])
    spread = np.abs(np.stack([slope for _, slope in found])) * error
    if not np.all(np.isfinite(fresh[np.isfinite(risk)])):
        warn(
            f"One-pass SGD does not reach the risk after some epochs within {FARTHER:g} times as many samples, so that their worth is NaN."
        )
    axes = ("run", "epoch")
    variables = {
        "worth": (
            axes,
            np.diff(fresh) / each,
            {"long_name": "fresh samples that a sample is worth"},
        ),
        "worth_standard_error": (axes, np.hypot(spread[:, 1:], spread[:, :-1]) / each),
        "fresh": (axes, fresh[:, 1:], {"long_name": "samples/d of one pass at the same risk"}),
        "fresh_standard_error": (axes, spread[:, 1:]),
        **{
            name: (axes, repeated[name].values[:, 1:], repeated[name].attrs)
            for name in ("risk", "train_risk")
        },
        **{
            f"{name}_standard_error": (axes, repeated[f"{name}_standard_error"].values[:, 1:])
            for name in ("risk", "train_risk")
        },
    }
    kept = (
        "seed",
        "paths",
        "replicates",
        "cells",
        "error_cells",
        "error_sampling",
        "error_paths",
        "error_quadrature",
        "dtype",
    )
    attributes = record(
        problem, algorithm, "worth_of_repeats", {name: repeated.attrs.get(name) for name in kept}
    )
    coordinates = {
        "epoch": ("epoch", np.arange(1, count + 1), {"long_name": "epoch"}),
        "diverged_at": repeated["diverged_at"],
    }
    return xr.Dataset(variables, coordinates, attributes)


def _fresh(alpha: np.ndarray, curve: np.ndarray, risk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """alpha at which the curve first has each risk, and its slope in the risk; NaN where it never does."""
    lowest = np.concatenate([[np.inf], np.minimum.accumulate(curve)[:-1]])
    new = curve < lowest
    if new.sum() < 2:
        return np.where(risk == curve[0], 0.0, np.nan), np.full(risk.shape, np.nan)
    inverse = PchipInterpolator(-curve[new], alpha[new], extrapolate=False)
    # the first state is the curve's own, up to the rounding of two ways to compute its risk
    places = -np.where(np.isclose(risk, curve[0], rtol=1e-9, atol=0.0), curve[0], risk)
    return inverse(places), inverse(places, 1)
