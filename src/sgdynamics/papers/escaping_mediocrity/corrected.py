"""Mean exit time of SGD: that of the ODE averaged over random starts, plus a shift by noise."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import cast

import numpy as np

from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.escaping_mediocrity import formulas
from sgdynamics.papers.escaping_mediocrity.landscape import risk
from sgdynamics.problems import TeacherStudent, random_start

STARTS = 256
STEP = 0.02  # step in units of 1/omega_M: Runge-Kutta of order four has an error of 1e-8
LONGEST = 40.0  # longest integration after the linearised exit, in the same unit


def exit_time_corrected(
    p: RealArray,
    d: RealArray,
    gamma: RealArray,
    noise: RealArray,
    threshold: RealArray,
    *,
    with_error: bool = False,
    seed: int = 0,
) -> formulas.Values | tuple[formulas.Values, formulas.Values]:
    """Mean exit time of SGD from random starts, with the shift by the noise of SGD.

    ::

        t = E[t_ODE] - ln(1 + D_p)/(2 omega_M),   D_p = (gamma/p) V_p/(2 omega_M)

    E[t_ODE] is the exit time of the ODE averaged over the starts; the second term is
    ``stochastic_shift``.

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    d : int or ndarray
        The dimension.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.
    threshold : float or ndarray
        T, the share of the initial excess risk that is lost at the exit.
    with_error : bool, default False
        Whether to return an error estimate too.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    float or tuple of float
        Exit time in the paper's units of t; with ``with_error`` the pair (time, error estimate).

    Notes
    -----
    The noise acts while the overlaps are of order 1/sqrt(d), so that its effect is a constant.
    E[t_ODE] is the sum of the quenched (linearised) time and the mean correction by the nonlinear
    ODE. For p = 1 the correction is closed up to a quadrature over m(0). For p > 1 the ODE is
    integrated from 256 random starts with the linearised time as control variate. The time is
    infinite, with a warning, where the ODE does not leave the plateau. This formula is not in the
    paper, which holds that stochasticity has no effect.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_corrected(1, 1000, 0.05, 0.0, 0.2)), 4)
    1.1497
    """
    # checks the arguments, and warns where nothing is learned
    formulas.exit_time_quenched(p, d, gamma, noise, threshold)
    arguments = np.broadcast_arrays(
        *(np.asarray(value, dtype=float) for value in (p, d, gamma, noise, threshold))
    )
    shape = arguments[0].shape
    points = zip(*(value.ravel() for value in arguments), strict=True)
    rows = [
        _time_and_error(int(point[0]), int(point[1]), *(float(value) for value in point[2:]), seed)
        for point in points
    ]
    values, errors = (np.reshape([row[index] for row in rows], shape) for index in (0, 1))
    plain = (float(values), float(errors)) if not shape else (values, errors)
    return plain if with_error else plain[0]


@lru_cache(maxsize=256)
def _time_and_error(
    p: int, d: int, gamma: float, noise: float, threshold: float, seed: int
) -> tuple[float, float]:
    omega = cast(float, formulas.growth_rates(p, gamma, noise)[0])
    if omega <= 0:
        return math.inf, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quenched = formulas.exit_time_quenched(
            p, d, gamma, noise, threshold, law="sphere", with_error=True
        )
        linear, error = cast(tuple[float, float], quenched)
        shift = cast(float, formulas.stochastic_shift(p, gamma, noise))
    correction, correction_error = (
        _nonlinear_correction_width_one(d, gamma, noise, threshold)
        if p == 1
        else _nonlinear_correction(p, d, gamma, noise, threshold, omega, seed)
    )
    if not math.isfinite(correction):
        warnings.warn(
            f"threshold = {threshold:g}: the ODE at p = {p}, gamma = {gamma:g} does not lose that "
            "share of its risk. Use a smaller gamma (largest_stable_lr) or threshold.",
            stacklevel=3,
        )
        return math.inf, 0.0
    return linear + correction + shift, math.hypot(error, correction_error)


def _nonlinear_correction_width_one(
    d: int, gamma: float, noise: float, threshold: float
) -> tuple[float, float]:
    """Mean of the nonlinear minus the linearised time, with its error, for p = 1.

    The difference ln[1 + T (1 - u0)/(kappa - u_T)]/(2 mu) is a smooth function of u0 = m(0)^2.
    """
    mu = formulas.growth_rates(1, gamma, noise)[0]
    kappa = mu / (4 * (1 - 6 * gamma))
    nodes, weights = formulas.sphere_nodes(0.0, d)
    start = np.tanh(nodes) ** 2
    target = threshold + (1 - threshold) * start
    heavy = weights > 1e-12 * weights.max()
    if np.any(target[heavy] >= kappa):
        return math.inf, 0.0
    correction = np.log1p(threshold * (1 - start[heavy]) / (kappa - target[heavy])) / (2 * mu)
    return float((weights[heavy] * correction).sum() / weights[heavy].sum()), 0.0


def _nonlinear_correction(
    p: int, d: int, gamma: float, noise: float, threshold: float, omega: float, seed: int
) -> tuple[float, float]:
    """Mean and standard error of the nonlinear minus the linearised time over random starts."""
    start = random_start(
        TeacherStudent(width=p, activation="square", constraint="sphere"),
        dimension=d,
        runs=STARTS,
        seed=seed,
    )
    m, Q = start.M[:, :, 0], start.Q
    mu0, tau0 = d * np.sum(m**2, axis=1), d * (np.sum(Q**2, axis=(1, 2)) - p)
    linear = np.log(
        (threshold * p * (p + 1) * d + (1 - threshold) * (2 * p * mu0 - tau0)) / (2 * p * mu0)
    ) / (2 * omega)
    before = np.asarray(risk(m, Q))
    level = (1 - threshold) * before
    times = np.full(STARTS, np.nan)
    h = STEP / omega
    for step in range(math.ceil((linear.max() + LONGEST / omega) / h)):
        m, Q = _step(m, Q, gamma / p, noise, h)
        after = np.asarray(risk(m, Q))
        out = np.isnan(times) & (after < level)
        times[out] = h * (step + (before - level)[out] / (before - after)[out])
        if not np.isnan(times).any():
            break
        before = after
    if np.isnan(times).any():
        return math.inf, 0.0
    correction = times - linear
    return float(correction.mean()), float(correction.std(ddof=1) / math.sqrt(STARTS))


def drift(
    m: np.ndarray, Q: np.ndarray, ratio: float, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Right-hand side (dm/dt, dQ/dt) of the ODE on the sphere, for a head of ones and rho = 1.

    ::

        dm = 2 [3 m - (tau m + 2 Q m)/p]
        dQ = 4 [Q + 2 m m^T - (tau Q + 2 Q^2)/p] + 4 ratio Gamma,   Gamma = E[E^2 lambda lambda^T]
        then dm -= m dQ_jj/2 and dQ_jl -= Q_jl (dQ_jj + dQ_ll)/2

    Parameters
    ----------
    m : ndarray
        Overlaps with the teacher, (..., p).
    Q : array_like
        Gram matrices of the rows, (..., p, p).
    ratio : float
        The ratio gamma/p.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    tuple of ndarray
        dm/dt (..., p) and dQ/dt (..., p, p).

    Notes
    -----
    Gamma follows from Wick's theorem. Source: (33), with its misprints corrected.

    Examples
    --------
    >>> dm, dQ = sgd.papers.escaping_mediocrity.drift(np.array([0.1, 0.0]), np.eye(2), 0.05, 0.0)
    >>> dm.round(3).tolist()
    [0.346, 0.0]
    """
    p = m.shape[-1]
    teacher_norm = np.ones((*m.shape[:-1], 1, 1))
    column = m[..., None]
    omega = np.concatenate(
        [
            np.concatenate([Q, column], axis=-1),
            np.concatenate([np.swapaxes(column, -1, -2), teacher_norm], axis=-1),
        ],
        axis=-2,
    )
    c = np.append(np.full(p, -1.0 / p), 1.0)
    weighted = c[:, None] * omega
    t = np.einsum("...ii->...", weighted)[..., None, None]
    square = np.sum(weighted * np.swapaxes(weighted, -1, -2), axis=(-2, -1))[..., None, None]
    once = omega @ weighted
    gamma = ((t**2 + 2 * square) * omega + 4 * t * once + 8 * once @ weighted)[
        ..., :p, :p
    ] + noise * Q
    tau = np.einsum("...ii->...", Q)[..., None]
    dm = 2 * (3 * m - (tau * m + 2 * np.einsum("...ij,...j->...i", Q, m)) / p)
    dQ = (
        4 * (Q + 2 * column * m[..., None, :] - (tau[..., None] * Q + 2 * Q @ Q) / p)
        + 4 * ratio * gamma
    )
    norms = np.einsum("...ii->...i", dQ)
    return dm - m * norms / 2, dQ - Q * (norms[..., :, None] + norms[..., None, :]) / 2


def _step(
    m: np.ndarray, Q: np.ndarray, ratio: float, noise: float, h: float
) -> tuple[np.ndarray, np.ndarray]:
    """One step of the classical Runge-Kutta method."""
    k1 = drift(m, Q, ratio, noise)
    k2 = drift(m + h / 2 * k1[0], Q + h / 2 * k1[1], ratio, noise)
    k3 = drift(m + h / 2 * k2[0], Q + h / 2 * k2[1], ratio, noise)
    k4 = drift(m + h * k3[0], Q + h * k3[1], ratio, noise)
    return m + h / 6 * (k1[0] + 2 * k2[0] + 2 * k3[0] + k4[0]), Q + h / 6 * (
        k1[1] + 2 * k2[1] + 2 * k3[1] + k4[1]
    )
