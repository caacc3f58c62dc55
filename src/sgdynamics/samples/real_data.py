"""`spectrum_of`: what the Gaussian theory needs to know of real samples, and how far it can be trusted with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.progress import warn
from sgdynamics.base.resources import check_memory
from sgdynamics.samples.spectra import Spectrum

LEAST = 1e-10  # of the largest eigenvalue: directions below it are none
FAR = 1.25  # by which factor the largest step may be off before a user hears of it
LEAST_SAMPLES, MOST_PRODUCTS = (
    2000,
    4e8,
)  # whose fourth moments are looked at: as many as so many products allow
ROUNDS = 200


@dataclass(frozen=True, eq=False)
class DataSpectrum(Spectrum):
    """The spectrum of real samples, made by ``sgd.spectrum_of``: a ``Spectrum`` with an eigenvalue a coordinate.

    Attributes
    ----------
    eigenvalues : ndarray (d,)
        Of the inputs' covariance, the largest first.
    multiplicities : ndarray (d,)
        Ones.
    target : ndarray (d, 1, 1) or None
        Squares of the coordinates of the best linear prediction; None without labels.
    noise : float
        Variance of the labels about their best linear prediction; 0 without labels.
    kappa : float
        ``E|x|^4/(E|x|^2)^2`` over that of a Gaussian of the same covariance, for ``sgd.solve_linear(..., kappa=)``.
    residual_ratio : float
        ``E[|x|^2 r^2]/(E|x|^2 E[r^2])`` with the residuals r: 1 where they are independent of the inputs' length.
    largest_step : float
        g above which the mean risk of SGD with batch 1 on these samples themselves no longer settles.
    gaussian_step : float
        The same of Gaussian inputs of this covariance.
    axes : ndarray (inputs, d)
        The eigenvectors; inputs have the coordinates ``x @ axes``, each turned so that the first signal is positive.
    residuals : ndarray or None
        r of each sample.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((500, 3)) * [2.0, 1.0, 0.5]
    >>> found = sgd.spectrum_of(x, x @ [1.0, 0.0, 2.0])
    >>> found.eigenvalues.round(1).tolist(), round(float(found.noise), 6)
    ([4.0, 0.9, 0.3], 0.0)
    """

    noise: float = field(default=0.0, kw_only=True)
    kappa: float = field(default=1.0, kw_only=True)
    residual_ratio: float = field(default=1.0, kw_only=True)
    largest_step: float = field(default=np.inf, kw_only=True)
    gaussian_step: float = field(default=np.inf, kw_only=True)
    axes: Any = field(default=None, kw_only=True, repr=False)
    residuals: Any = field(default=None, kw_only=True, repr=False)


def spectrum_of(X: ArrayArgument, y: ArrayArgument | None = None) -> DataSpectrum:
    """The spectrum of real samples, and with labels their linear target and what it leaves over.

    Parameters
    ----------
    X : array_like (samples, inputs)
        One sample a row, as the student sees it: centred where that has a bias.
    y : array_like (samples,), optional
        Labels.

    Returns
    -------
    DataSpectrum
        To be given as ``covariance=``, with ``noise=`` its ``noise``; it has ``kappa``, ``largest_step`` and more.

    Raises
    ------
    ValueError
        If shapes differ or numbers are not finite.

    Warns
    -----
    UserWarning
        Where the Gaussian theory cannot hold: the largest stable step of these samples differs from that of Gaussian ones, or the
        residuals depend on the inputs' length.

    Notes
    -----
    Sigma = X^T X/n = V l V^T, theta* = V^T X^T y/(n l), noise = mean (y - X V theta*)^2; eigenvalues below 1e-10 l_1 are dropped.
    SGD that draws these samples again and again has the mean C' = C - g (H C + C H) + g^2 E[x x^T C x x^T] of its errors, whatever their
    law: g_max is one over the largest eigenvalue of C -> (H C + C H)^-1 E[x x^T C x x^T].

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((4000, 2)) * [2.0, 1.0]
    >>> found = sgd.spectrum_of(x, x @ [1.0, 1.0] + 0.1 * np.random.default_rng(1).standard_normal(4000))
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", covariance=found, noise=found.noise)
    >>> begin = sgd.start(problem, M=np.zeros((2, 1, 1)), Q=np.zeros((2, 1, 1)))
    >>> result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.2, per="trace"), begin, steps=[0, 100], kappa=found.kappa)
    >>> result["risk"].values.round(3).tolist()
    [[2.459, 0.006]]
    """
    fix = "give finite numbers, samples x inputs"
    x = checks.real_array("X", X, fix)
    if x.ndim != 2 or x.shape[0] < 2 or not x.shape[1] or not np.all(np.isfinite(x)):
        raise checks.reject("X", np.shape(X), fix)
    check_memory(
        "X",
        x.shape,
        8.0 * (3 * x.size + 3 * x.shape[1] ** 2),
        "its covariance",
        "take fewer inputs",
    )
    n = len(x)
    values, vectors = np.linalg.eigh(x.T @ x / n)
    kept = values > LEAST * max(values[-1], 0.0)
    if not kept.any():
        raise checks.reject("X", np.shape(X), "all inputs are 0: give samples that vary")
    eigenvalues, axes = values[kept][::-1], vectors[:, kept][:, ::-1]
    target, noise, ratio, residuals = None, 0.0, 1.0, None
    z = x @ axes
    squares = np.sum(z**2, axis=1)
    if y is not None:
        labels = checks.real_array("y", y, "give finite numbers, one a sample")
        if labels.shape != (n,) or not np.all(np.isfinite(labels)):
            raise checks.reject("y", np.shape(y), f"give {n} finite numbers, one a sample")
        target = z.T @ labels / (n * eigenvalues)
        turn = np.where(target < 0, -1.0, 1.0)
        axes, z, target = axes * turn, z * turn, target * turn
        residuals = labels - z @ target
        noise = float(np.mean(residuals**2))
        if noise > LEAST * np.mean(labels**2):
            ratio = float(np.mean(squares * residuals**2) / (squares.mean() * noise))
    d_eff = eigenvalues.sum() ** 2 / np.sum(eigenvalues**2)
    kappa = float(np.mean(squares**2) / squares.mean() ** 2 / (1 + 2 / d_eff))
    found = DataSpectrum(
        eigenvalues,
        np.ones(len(eigenvalues)),
        target,
        noise=noise,
        kappa=kappa,
        residual_ratio=ratio,
        largest_step=_largest_step(z, eigenvalues),
        gaussian_step=_largest_step(None, eigenvalues),
        axes=axes,
        residuals=residuals,
    )
    _warn(found)
    return found


def _largest_step(z: np.ndarray | None, eigenvalues: np.ndarray) -> float:
    """One over the largest eigenvalue of C -> (H C + C H)^-1 E[x x^T C x x^T], of these samples or (None) of Gaussian ones."""
    most = max(LEAST_SAMPLES, int(MOST_PRODUCTS / len(eigenvalues) ** 2))
    if z is not None and len(z) > most:
        # evenly, so that sorted samples are all there
        z = z[np.linspace(0, len(z) - 1, most).astype(int)]
    sums = eigenvalues[:, None] + eigenvalues[None]
    C, size = np.diag(1 / (2 * eigenvalues)), 0.0
    for _ in range(ROUNDS):
        before = size
        if z is None:
            pushed = 2 * eigenvalues[:, None] * C * eigenvalues[None] + np.diag(
                eigenvalues
            ) * float(eigenvalues @ np.diag(C))
        else:
            pushed = (z * np.sum((z @ C) * z, axis=1)[:, None]).T @ z / len(z)
        C = pushed / sums
        size = float(np.linalg.norm(C))
        C = C / size
        if abs(size - before) < 1e-6 * size:
            break
    return 1 / size


def _warn(found: DataSpectrum) -> None:
    share = found.largest_step / found.gaussian_step
    if not 1 / FAR < share < FAR:
        warn(
            f"SGD on these samples settles up to a step g = {found.largest_step:.3g}, on Gaussian ones of this covariance up to "
            f"{found.gaussian_step:.3g}: near these the Gaussian theory cannot hold (kappa = {found.kappa:.3g}); far below it may"
        )
    if not 1 / FAR**2 < found.residual_ratio < FAR**2:
        warn(
            f"residuals are {found.residual_ratio:.3g} times as large where inputs are long (E[|x|^2 r^2] over the product of means): the "
            "label noise of the Gaussian theory is off by that"
        )
