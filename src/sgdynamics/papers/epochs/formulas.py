"""A linear network over epochs, by its equations in two times; and what one pass over fresh samples would have done."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics import checks
from sgdynamics.algorithms.epochs import ORDERS
from sgdynamics.arrays import Given

MOST_CELLS = 4000  # in all epochs together: ten matrices of so many squared


def two_time(lr: float, alpha: float, noise: float, order: str, epochs: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """|w - w*|^2 and the mean squared residual of the data set (not of "fixed": 0) at the start of each epoch and after the last, with
    so many cells an epoch and what they leave of an error."""
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


def linear_epochs(
    lr: float, samples_per_dimension: float, noise: float, epochs: int, order: str = "reshuffle", cells: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """A linear unit that begins at 0 and sees its data set again and again, at d -> infinity.

    Parameters
    ----------
    lr : float
        The learning rate over the batch, above 0.
    samples_per_dimension : float
        Samples of the data set over d, above 0.
    noise : float
        Variance of the label noise, 0 or more.
    epochs : int
        How many.
    order : str, default "reshuffle"
        "reshuffle", "replacement" or "fixed", as of ``EpochSGD``.
    cells : int, default 40
        Of an epoch, a multiple of 4.

    Returns
    -------
    distance : ndarray
        abs(w - w*)^2, twice the excess risk, at the start and after each epoch.
    residual : ndarray
        The mean squared residual of the data set, twice the training risk, at the same times; NaN for "fixed", whose equations do not have
        it.

    Raises
    ------
    ValueError
        If an argument is refused.

    Notes
    -----
    The equations in two times, cell by cell, of docs/theory.md: no sampling, the cost is (epochs cells)^3. The error of the cells is of
    order lr samples_per_dimension/cells; what is given is (8 x(m) - 6 x(m/2) + x(m/4))/3, which leaves the third order.

    Examples
    --------
    >>> distance, _ = sgd.papers.epochs.linear_epochs(0.8, 2.0, 0.0, 2)
    >>> distance.round(3)
    array([1.   , 0.147, 0.05 ])
    """
    lr, alpha = checks.number("lr", lr, above=0.0), checks.number("samples_per_dimension", samples_per_dimension, above=0.0)
    noise, order = checks.number("noise", noise, 0.0), checks.choice("order", order, ORDERS)
    count, m = checks.whole("epochs", epochs, 1), checks.whole("cells", cells, 4)
    if m % 4:
        raise checks.reject("cells", cells, "a quarter and a half of them are solved for too: give a multiple of 4")
    if m * count > MOST_CELLS:
        raise checks.reject("epochs", epochs, f"times {m} cells that is more than {MOST_CELLS} in all: take fewer of one of the two")
    few, some, many = (np.stack(two_time(lr, alpha, noise, order, count, part)) for part in (m // 4, m // 2, m))
    distance, residual = (8 * many - 6 * some + few) / 3
    return distance, np.full_like(residual, np.nan) if order == "fixed" else residual


def fresh_samples(distance: Given, lr: float, noise: float) -> Any:
    """How many fresh samples bring a linear unit from 0 to a distance.

    Parameters
    ----------
    distance : array_like
        abs(w - w*)^2.
    lr : float
        The learning rate over the batch, above 0 and below 2.
    noise : float
        Variance of the label noise, 0 or more.

    Returns
    -------
    ndarray
        Samples/d of one-pass SGD; NaN where it never gets there.

    Raises
    ------
    ValueError
        If an argument is refused.

    Notes
    -----
    From dU/dalpha = -lr (2 - lr) U + lr^2 noise: alpha = ln((1 - U*)/(U - U*))/(lr (2 - lr)), U* = lr noise/(2 - lr) what is left in the
    end.

    Examples
    --------
    >>> float(sgd.papers.epochs.fresh_samples(0.5, 1.0, 0.0).round(4))
    0.6931
    """
    lr, noise = checks.number("lr", lr, above=0.0), checks.number("noise", noise, 0.0)
    if lr >= 2:
        raise checks.reject("lr", lr, "one pass runs away: give a rate below 2")
    U, last = checks.numbers("distance", distance, "give squared distances"), lr * noise / (2 - lr)
    ratio = (1 - last) / np.where(last < U, U - last, np.nan)
    return np.log(ratio) / (lr * (2 - lr))
