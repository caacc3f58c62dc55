"""`worth_of_repeats`: the number of fresh samples that a repeated sample is worth."""

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

# Length of the one-pass curve, relative to the samples of all epochs, and its points per epoch.
CURVE_LENGTH = 1.25
POINTS_PER_EPOCH = 60
MAX_EPOCHS = 10_000
# Attributes of the DMFT solution that the result repeats.
DMFT_ATTRIBUTES = (
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

        worth(e) = (alpha(r_e) - alpha(r_{e-1}))/samples_per_dimension,  r_e: risk after e epochs

    where alpha(r) is the number of fresh samples/d after which the one-pass ODE first reaches the
    risk r, from the same start and at the same lr/batch.

    Parameters
    ----------
    problem : Problem
        The learning problem, with Gaussian inputs and parameters that do not depend on time.
    algorithm : EpochSGD
        The training algorithm, with constant ``lr`` and ``head_rate``.
    start : Start
        Initial condition of one or several runs.
    epochs : int, default 6
        Number of epochs.
    paths : int, default 20000
        Total number of Monte Carlo paths of ``solve_dmft``, which gives the risk after each epoch.
    seed : int, default 0
        Seed of the random number generator.
    replicates : int, default 4
        Number of independent sets of paths (see ``solve_dmft``).
    cells : int, optional
        Number of cells per epoch (see ``solve_dmft``).
    dtype : str, default "float64"
        Storage precision of the path arrays (see ``sgd.DMFT``).
    memory : float, optional
        Memory limit (see ``sgd.DMFT``).
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        ``worth``, ``fresh`` (alpha of one pass at the risk after the epoch), ``risk``,
        ``train_risk``, and their ``_standard_error``, over the axes run and epoch (1, 2, ...).
        Values are NaN, with a warning, if one-pass SGD does not reach that risk, and if
        ``solve_dmft`` diverges (coordinate ``diverged_at``).

    Raises
    ------
    ValueError
        If an argument is invalid, or if the solution needs too much memory or work.

    Notes
    -----
    In the first epoch of "reshuffle" and "fixed" all samples are fresh, and the worth is 1 up to
    its error. With label noise later epochs fit the noise: the worth is negative if the risk rises.
    The standard error of ``worth`` treats the risks at both ends of an epoch as independent.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.1]])
    >>> algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    >>> arguments = {"epochs": 2, "cells": 16, "paths": 1024, "progress": False}
    >>> result = sgd.worth_of_repeats(problem, algorithm, start, **arguments)
    >>> result["worth"].shape, bool(result["worth"][0, 1] < 0.8)
    ((1, 2), True)
    """
    require("worth_of_repeats", problem, algorithm)
    if not isinstance(algorithm, EpochSGD):
        raise checks.reject("algorithm", algorithm, "must be an sgd.EpochSGD.")
    _check_constant(problem, algorithm)
    count = checks.integer("epochs", epochs, 1, MAX_EPOCHS)
    epoch_length = algorithm.samples_per_dimension
    options: dict[str, Any] = {
        "paths": paths,
        "seed": seed,
        "replicates": replicates,
        "cells": cells,
        "method": DMFT(dtype=dtype, memory=memory),
    }
    repeated = solve_dmft(
        problem,
        algorithm,
        start,
        alpha=epoch_length * np.arange(count + 1),
        **options,
        progress=progress,
    )
    one_pass = OnePassSGD(algorithm.lr, algorithm.batch, algorithm.head_rate, algorithm.update)
    alpha = np.linspace(0.0, CURVE_LENGTH * epoch_length * count, POINTS_PER_EPOCH * count + 1)
    curve = solve_ode(problem, one_pass, start, alpha=alpha)
    risk, error = repeated["risk"].values, repeated["risk_standard_error"].values
    crossings = [
        alpha_at_risk(alpha, *rows) for rows in zip(curve["risk"].values, risk, strict=True)
    ]
    fresh = np.stack([values for values, _ in crossings])
    fresh_error = np.abs(np.stack([slope for _, slope in crossings])) * error
    if not np.all(np.isfinite(fresh[np.isfinite(risk)])):
        warn(
            "One-pass SGD does not reach the risk after some epochs within "
            f"{CURVE_LENGTH:g} times as many samples, so that their worth is NaN."
        )
    axes = ("run", "epoch")
    worth = {"long_name": "fresh samples that a sample is worth"}
    samples = {"long_name": "samples/d of one pass at the same risk"}
    worth_error = np.hypot(fresh_error[:, 1:], fresh_error[:, :-1]) / epoch_length
    variables = {
        "worth": (axes, np.diff(fresh) / epoch_length, worth),
        "worth_standard_error": (axes, worth_error),
        "fresh": (axes, fresh[:, 1:], samples),
        "fresh_standard_error": (axes, fresh_error[:, 1:]),
    }
    for name in ("risk", "train_risk"):
        variables[name] = (axes, repeated[name].values[:, 1:], repeated[name].attrs)
    for name in ("risk_standard_error", "train_risk_standard_error"):
        variables[name] = (axes, repeated[name].values[:, 1:])
    attributes = record(
        problem,
        algorithm,
        "worth_of_repeats",
        {name: repeated.attrs.get(name) for name in DMFT_ATTRIBUTES},
    )
    coordinates = {
        "epoch": ("epoch", np.arange(1, count + 1), {"long_name": "epoch"}),
        "diverged_at": repeated["diverged_at"],
    }
    return xr.Dataset(variables, coordinates, attributes)


def _check_constant(problem: Problem, algorithm: EpochSGD) -> None:
    """Raise ValueError if a parameter depends on time.

    One pass reaches the risk of some epochs at another time, at which a schedule has another value.
    """
    if isinstance(algorithm.lr, Schedule):
        fix = "one pass and epochs would reach the same risk at different rates. Use a number"
        raise checks.reject("lr", algorithm.lr, fix)
    if isinstance(algorithm.head_rate, Schedule):
        fix = "one pass and epochs count the time of a schedule differently. Use a number"
        raise checks.reject("head_rate", algorithm.head_rate, fix)
    if problem.scheduled:
        fix = (
            "one pass and epochs count the time of its schedules differently. Use constant "
            "parameters"
        )
        raise checks.reject("problem", problem, fix)


def alpha_at_risk(
    alpha: np.ndarray, curve: np.ndarray, risk: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """alpha at which a curve first has each risk, and its derivative with respect to the risk.

    Both are NaN for risks that the curve does not reach.
    """
    lowest_before = np.concatenate([[np.inf], np.minimum.accumulate(curve)[:-1]])
    is_record = curve < lowest_before
    if is_record.sum() < 2:
        return np.where(risk == curve[0], 0.0, np.nan), np.full(risk.shape, np.nan)
    # The records decrease, so that they can be inverted; -risk increases, as scipy requires.
    inverse = PchipInterpolator(-curve[is_record], alpha[is_record], extrapolate=False)
    # The first risk is that of the curve, up to rounding.
    points = -np.where(np.isclose(risk, curve[0], rtol=1e-9, atol=0.0), curve[0], risk)
    return inverse(points), inverse(points, 1)
