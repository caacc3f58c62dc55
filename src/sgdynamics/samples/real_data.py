"""`spectrum_of`: spectrum and linear target of real samples, and limits of the Gaussian theory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.progress import warn
from sgdynamics.base.resources import check_memory
from sgdynamics.samples.spectra import Spectrum

LEAST = 1e-10  # directions below this fraction of the largest eigenvalue are dropped
FAR = 1.25  # factor by which the largest step may differ without a warning
# Fourth moments use at least this many samples, and as many as this number of products allows.
LEAST_SAMPLES, MOST_PRODUCTS = 2000, 4e8
ROUNDS = 200  # iterations of the power method


@dataclass(frozen=True, eq=False)
class DataSpectrum(Spectrum):
    """The spectrum of real samples, from ``sgd.spectrum_of``: one eigenvalue per coordinate.

    Attributes
    ----------
    eigenvalues : ndarray (d,)
        Eigenvalues of the input covariance, the largest first.
    multiplicities : ndarray (d,)
        Ones.
    target : ndarray (d, 1, 1) or None
        Squared coordinates of the best linear predictor; None without labels.
    noise : float
        Variance of the residuals of the best linear predictor; 0 without labels.
    kappa : float
        ``E|x|^4/(E|x|^2)^2`` divided by its value for a Gaussian of the same covariance, for
        ``sgd.solve_linear(..., kappa=)``.
    residual_ratio : float
        ``E[|x|^2 r^2]/(E|x|^2 E[r^2])`` with the residuals r: 1 if they do not depend on the norm
        of the inputs.
    largest_step : float
        Step g above which the mean risk of SGD with batch 1 on these samples does not converge.
    gaussian_step : float
        The same step for Gaussian inputs of this covariance.
    axes : ndarray (inputs, d)
        Eigenvectors, with signs such that the signal is positive; inputs have the coordinates
        ``x @ axes``.
    residuals : ndarray or None
        Residual r of each sample.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((500, 3)) * [2.0, 1.0, 0.5]
    >>> spectrum = sgd.spectrum_of(x, x @ [1.0, 0.0, 2.0])
    >>> spectrum.eigenvalues.round(1).tolist(), round(float(spectrum.noise), 6)
    ([4.0, 0.9, 0.3], 0.0)
    """

    noise: float = field(default=0.0, kw_only=True)
    kappa: float = field(default=1.0, kw_only=True)
    residual_ratio: float = field(default=1.0, kw_only=True)
    largest_step: float = field(default=np.inf, kw_only=True)
    gaussian_step: float = field(default=np.inf, kw_only=True)
    axes: np.ndarray | None = field(default=None, kw_only=True, repr=False)
    residuals: np.ndarray | None = field(default=None, kw_only=True, repr=False)


def spectrum_of(X: ArrayArgument, y: ArrayArgument | None = None) -> DataSpectrum:
    """The spectrum of real samples and, with labels, their linear target and its residuals.

    Parameters
    ----------
    X : array_like (samples, inputs)
        Samples, one per row, as the student sees them: centred if that has a bias.
    y : array_like (samples,), optional
        Labels.

    Returns
    -------
    DataSpectrum
        A spectrum for ``covariance=``, whose ``noise`` is the value of ``noise=``; also ``kappa``,
        ``largest_step`` and more.

    Raises
    ------
    ValueError
        If shapes do not match or numbers are not finite.

    Warns
    -----
    UserWarning
        If the Gaussian theory cannot apply: the largest stable step of these samples differs from
        that of Gaussian ones, or the residuals depend on the norm of the inputs.

    Notes
    -----
    Sigma = X^T X/n = V l V^T, theta* = V^T X^T y/(n l), noise = mean (y - X V theta*)^2.
    Eigenvalues below 1e-10 l_1 are dropped. For SGD that draws from these samples, the covariance C
    of the errors follows C' = C - g (H C + C H) + g^2 E[x x^T C x x^T], whatever the law of the
    samples. Hence the largest g is one over the largest eigenvalue of
    C -> (H C + C H)^-1 E[x x^T C x x^T].

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((4000, 2)) * [2.0, 1.0]
    >>> noise = 0.1 * np.random.default_rng(1).standard_normal(4000)
    >>> data = sgd.spectrum_of(x, x @ [1.0, 1.0] + noise)
    >>> problem = sgd.TeacherStudent(
    ...     width=1, activation="linear", covariance=data, noise=data.noise
    ... )
    >>> start = sgd.start(problem, M=np.zeros((2, 1, 1)), Q=np.zeros((2, 1, 1)))
    >>> sgd_rate = sgd.OnePassSGD(lr=0.2, per="trace")
    >>> result = sgd.solve_linear(problem, sgd_rate, start, steps=[0, 100], kappa=data.kappa)
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
    relevant = values > LEAST * max(values[-1], 0.0)
    if not relevant.any():
        raise checks.reject("X", np.shape(X), "all inputs are 0: give samples that vary")
    eigenvalues, axes = values[relevant][::-1], vectors[:, relevant][:, ::-1]
    target, noise, ratio, residuals = None, 0.0, 1.0, None
    z = x @ axes
    squares = np.sum(z**2, axis=1)
    if y is not None:
        labels = checks.real_array("y", y, "give finite numbers, one per sample")
        if labels.shape != (n,) or not np.all(np.isfinite(labels)):
            raise checks.reject("y", np.shape(y), f"give {n} finite numbers, one per sample")
        target = z.T @ labels / (n * eigenvalues)
        turn = np.where(target < 0, -1.0, 1.0)
        axes, z, target = axes * turn, z * turn, target * turn
        residuals = labels - z @ target
        noise = float(np.mean(residuals**2))
        if noise > LEAST * np.mean(labels**2):
            ratio = float(np.mean(squares * residuals**2) / (squares.mean() * noise))
    d_eff = eigenvalues.sum() ** 2 / np.sum(eigenvalues**2)
    kappa = float(np.mean(squares**2) / squares.mean() ** 2 / (1 + 2 / d_eff))
    spectrum = DataSpectrum(
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
    _warn(spectrum)
    return spectrum


def _largest_step(z: np.ndarray | None, eigenvalues: np.ndarray) -> float:
    """One over the largest eigenvalue of C -> (H C + C H)^-1 E[x x^T C x x^T], by the power method.

    The expectation is over these samples or, without samples, over Gaussian ones.
    """
    most = max(LEAST_SAMPLES, int(MOST_PRODUCTS / len(eigenvalues) ** 2))
    if z is not None and len(z) > most:
        # Evenly spaced, so that sorted samples are represented.
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


def _warn(spectrum: DataSpectrum) -> None:
    """Warn where the Gaussian theory cannot describe these samples."""
    ratio = spectrum.largest_step / spectrum.gaussian_step
    if not 1 / FAR < ratio < FAR:
        warn(
            f"SGD on these samples converges up to a step g = {spectrum.largest_step:.3g}, on "
            f"Gaussian samples of the same covariance up to {spectrum.gaussian_step:.3g}. The "
            "Gaussian theory does not apply near these steps "
            f"(kappa = {spectrum.kappa:.3g}); far below it may"
        )
    if not 1 / FAR**2 < spectrum.residual_ratio < FAR**2:
        warn(
            f"Residuals are {spectrum.residual_ratio:.3g} times as large for inputs of large norm "
            "(E[|x|^2 r^2] divided by the product of means): the label noise of the Gaussian "
            "theory is wrong by this factor"
        )
