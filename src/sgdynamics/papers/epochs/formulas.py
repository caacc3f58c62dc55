"""A linear network over several epochs, by its two-time equations, and one pass in comparison."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgdynamics.algorithms.cell_stability import CellStability
from sgdynamics.algorithms.epochs import ORDERS, EpochSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.progress import warn

MOST_CELLS = 4000  # in all epochs together: about ten square matrices of this size are stored
MOST_REFINED_CELLS = 1200  # up to which the default number of cells is doubled
TOLERANCE = 0.05  # estimated relative error at which it is not doubled further
LARGE_ERROR = 0.1  # estimated relative error that is warned of


def two_time(
    lr: float, alpha: float, noise: float, order: str, epochs: int, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """|w - w*|^2 and mean squared residual of the data set at the epochs' ends, for some cells.

    The arrays have one entry for the start and one after each epoch. The residual is 0 for the
    order "fixed". The error of discretisation into cells per epoch is not removed.
    """
    b, count = 1 / cells, epochs * cells + 1
    R, C, D, Y, apart, V = np.zeros((6, count + 1, count + 1))
    R[0, 0] = C[0, 0] = 1
    group = np.arange(count) // (cells if order == "reshuffle" else 1)
    for c in range(count):
        D[c, c] = 1
        if order == "fixed":
            mine = np.arange(c % cells, c + 1, cells)
            inverse = np.linalg.inv(np.eye(len(mine)) + lr * np.tril(R[np.ix_(mine, mine + 1)], -1))
            D[c, mine] = inverse[-1]
            V[c, mine] = b * (inverse @ (C[np.ix_(mine, mine)] + noise) @ inverse.T)[-1]
        else:
            pull = lr * b * R[c, 1 : c + 1] * (group[:c] < group[c])
            D[c, :c] = -pull @ D[:c, :c]
            X = D[: c + 1, : c + 1] @ (C[c, : c + 1] + noise)
            Y[c, :c] = X[:c] - lr * R[c, 1 : c + 1] * np.diag(Y)[:c] - pull @ apart[:c, :c]
            Y[c, c] = X[c] - pull @ Y[c, :c]
            apart[c, :c] = apart[:c, c] = Y[c, :c] * (group[:c] != group[c])
            V[c, :c], V[c, c] = b * b * apart[c, :c], b * Y[c, c]
        K = b * D[c, : c + 1]
        R[c + 1, : c + 1], R[c + 1, c + 1] = R[c, : c + 1] - lr * alpha * K @ R[: c + 1, : c + 1], 1
        kick = lr**2 * alpha * np.tril(R[: c + 2, 1 : c + 2], -1) @ V[c, : c + 1]
        C[c + 1, : c + 1] = C[c, : c + 1] - lr * alpha * K @ C[: c + 1, : c + 1] + kick[: c + 1]
        C[: c + 1, c + 1] = C[c + 1, : c + 1]
        C[c + 1, c + 1] = C[c + 1, c] - lr * alpha * K @ C[: c + 1, c + 1] + kick[c + 1]
    return np.diag(C)[:count:cells], np.diag(Y)[:count:cells]


class LinearEpochs(NamedTuple):
    """Solution of the two-time equations of a linear unit, at the start and after each epoch.

    Attributes
    ----------
    distance : ndarray
        abs(w - w*)^2, twice the excess risk.
    residual : ndarray
        The mean squared residual of the data set, twice the training risk; NaN for order "fixed",
        whose equations do not contain it.
    distance_error : ndarray
        Estimated absolute error of ``distance``.
    residual_error : ndarray
        Estimated absolute error of ``residual``.
    cells : int
        Number of cells per epoch.
    """

    distance: np.ndarray
    residual: np.ndarray
    distance_error: np.ndarray
    residual_error: np.ndarray
    cells: int


def linear_epochs(
    lr: float,
    samples_per_dimension: float,
    noise: float,
    epochs: int,
    order: str = "reshuffle",
    cells: int | None = None,
) -> LinearEpochs:
    """Solve for a linear unit that starts at 0 and is trained for several epochs, at d -> infinity.

    Parameters
    ----------
    lr : float
        Learning rate over the batch size, above 0 and below 2.
    samples_per_dimension : float
        Number of samples of the data set over d, above 0.
    noise : float
        Variance of the label noise, 0 or more.
    epochs : int
        Number of epochs.
    order : str, default "reshuffle"
        "reshuffle", "replacement" or "fixed", as in ``EpochSGD``.
    cells : int, optional
        Number of cells per epoch, a multiple of 4. By default the number that ``solve_dmft`` uses,
        doubled until the estimated error is below 5% or there are more than 1200 cells in all.

    Returns
    -------
    LinearEpochs
        ``distance`` and ``residual`` with their estimated errors, and ``cells``.

    Raises
    ------
    ValueError
        If an argument is out of range, if a quarter of ``cells`` is unstable, or if more than 4000
        cells are needed in all.

    Warns
    -----
    UserWarning
        If the estimated error of ``distance`` exceeds 10%.

    Notes
    -----
    The two-time equations of docs/theory.md are solved cell by cell, without sampling, at a cost of
    (epochs cells)^3. The cells x(m), x(m/2) and x(m/4) are extrapolated to (8 x(m) - 6 x(m/2) +
    x(m/4))/3, which leaves an error of third order in lr samples_per_dimension/cells. The estimated
    error is the change from the extrapolation of second order, 2 x(m) - x(m/2). The cells are
    stable for lr < 2 if there are enough of them (``CellStability``); from lr = 2 on SGD diverges.

    Examples
    --------
    >>> solution = sgd.papers.epochs.linear_epochs(0.8, 2.0, 0.0, 2)
    >>> solution.distance.round(3), solution.cells
    (array([1.   , 0.147, 0.05 ]), 40)
    >>> bool((solution.distance_error[1:] < 0.01 * solution.distance[1:]).all())
    True
    """
    lr = checks.number("lr", lr, above=0.0)
    alpha = checks.number("samples_per_dimension", samples_per_dimension, above=0.0)
    noise, order = checks.number("noise", noise, 0.0), checks.choice("order", order, ORDERS)
    count = checks.integer("epochs", epochs, 1)
    if lr >= 2:
        raise checks.reject(
            "lr", lr, "SGD of a linear unit diverges from lr = 2 on. Use a smaller lr."
        )
    if cells is not None and checks.integer("cells", cells, 4) % 4:
        raise checks.reject(
            "cells", cells, "a half and a quarter of the cells are used too. Use a multiple of 4."
        )
    stability = CellStability(lr, alpha, np.ones(1), np.ones(1))
    m = EpochSGD(lr, alpha).cells(cells, stability)
    if m * count > MOST_CELLS:
        raise checks.reject(
            "epochs",
            epochs,
            f"with {m} cells per epoch there are {m * count} cells, more than {MOST_CELLS}. "
            "Use fewer epochs, a smaller lr, or sgd.simulate.",
        )
    levels: dict[int, np.ndarray] = {}
    while True:
        for size in (m // 4, m // 2, m):
            if size not in levels:
                levels[size] = np.stack(two_time(lr, alpha, noise, order, count, size))
        second_order = 2 * levels[m] - levels[m // 2]
        values = (8 * levels[m] - 6 * levels[m // 2] + levels[m // 4]) / 3
        errors = np.abs(values - second_order)
        relative = float(np.max(errors[0] / np.abs(values[0])))
        if cells is not None or relative <= TOLERANCE or 2 * m * count > MOST_REFINED_CELLS:
            break
        m *= 2
    if not relative <= LARGE_ERROR:
        warn(f"The estimated error of distance is {100 * relative:.2g}%. Use more cells than {m}.")
    if order == "fixed":
        values[1] = errors[1] = np.nan
    distance, residual = values
    return LinearEpochs(distance, residual, errors[0], errors[1], m)


def fresh_samples(distance: ArrayArgument, lr: float, noise: float) -> np.ndarray:
    """Number of fresh samples per dimension that bring a linear unit from 0 to a distance.

    Parameters
    ----------
    distance : array_like
        Squared distance abs(w - w*)^2.
    lr : float
        Learning rate over the batch size, above 0 and below 2.
    noise : float
        Variance of the label noise, 0 or more.

    Returns
    -------
    ndarray
        Samples/d of one-pass SGD; NaN where it never reaches the distance.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    From dU/dalpha = -lr (2 - lr) U + lr^2 noise, alpha = ln((1 - U*)/(U - U*))/(lr (2 - lr)) with
    the asymptotic value U* = lr noise/(2 - lr).

    Examples
    --------
    >>> float(sgd.papers.epochs.fresh_samples(0.5, 1.0, 0.0).round(4))
    0.6931
    """
    lr, noise = checks.number("lr", lr, above=0.0), checks.number("noise", noise, 0.0)
    if lr >= 2:
        raise checks.reject("lr", lr, "one-pass SGD diverges. Use a rate below 2.")
    U, last = (
        checks.real_array("distance", distance, "give squared distances."),
        lr * noise / (2 - lr),
    )
    ratio = (1 - last) / np.where(last < U, U - last, np.nan)
    return np.log(ratio) / (lr * (2 - lr))
