"""The mean exit time of SGD: the ODE's own time, averaged over random starts, less what noise takes away."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np

from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.escaping_mediocrity import formulas
from sgdynamics.papers.escaping_mediocrity.landscape import risk
from sgdynamics.problems import TeacherStudent, random_start

STARTS = 256
STEP = 0.02  # of the integration, in units of 1/omega_M: Runge-Kutta of order four makes 1e-8 of it
LONGEST = 40.0  # after the linearised exit, in the same unit


def exit_time_corrected(
    p: RealArray,
    d: RealArray,
    gamma: RealArray,
    noise: RealArray,
    threshold: RealArray,
    *,
    with_error: bool = False,
    seed: int = 0,
) -> Any:
    """Mean exit time of SGD from random starts: the exit time of the ODE, averaged over them, plus the constant shift by stochasticity.

    ::

        t = E[t_ODE] - ln(1 + D_p)/(2 omega_M),   D_p = (gamma/p) V_p/(2 omega_M)   (stochastic_shift)

    Parameters
    ----------
    p : int or ndarray
        Units of the student.
    d : int or ndarray
        The dimension.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Delta, the variance of the label noise.
    threshold : float or ndarray
        T, the share of the initial excess risk to lose.
    with_error : bool, default False
        Also give an error estimate.
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    float or tuple of float
        In the paper's t, with ``with_error`` (time, error estimate).

    Notes
    -----
    The noise acts while overlaps are of order 1/sqrt(d), so that its effect is this constant. E[t_ODE] is the quenched time (linearised)
    and the mean of what the nonlinear ODE adds: closed for p = 1, where only a quadrature over m(0) is left; for p > 1 the ODE is
    integrated from 256 random starts with the linearised time as control variate. ``with_error=True`` gives (time, error estimate).
    Infinite, with a warning, where the ODE does not leave. Not in the paper, which holds that stochasticity has no effect.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_corrected(1, 1000, 0.05, 0.0, 0.2)), 4)
    1.1497
    """
    formulas.exit_time_quenched(
        p, d, gamma, noise, threshold
    )  # checks the arguments, and warns where nothing is learned
    given = np.broadcast_arrays(
        *(np.asarray(value, dtype=float) for value in (p, d, gamma, noise, threshold))
    )
    shape = given[0].shape
    points = zip(*(value.ravel() for value in given), strict=True)
    found = [
        _corrected(int(point[0]), int(point[1]), *(float(value) for value in point[2:]), seed)
        for point in points
    ]
    values, errors = (np.reshape([row[index] for row in found], shape) for index in (0, 1))
    plain = (float(values), float(errors)) if not shape else (values, errors)
    return plain if with_error else plain[0]


@lru_cache(maxsize=256)
def _corrected(
    p: int, d: int, gamma: float, noise: float, threshold: float, seed: int
) -> tuple[float, float]:
    omega = formulas.growth_rates(p, gamma, noise)[0]
    if omega <= 0:
        return math.inf, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linear, error = formulas.exit_time_quenched(
            p, d, gamma, noise, threshold, law="sphere", with_error=True
        )
        shift = formulas.stochastic_shift(p, gamma, noise)
    added, spread = (
        _beyond_width_one(d, gamma, noise, threshold)
        if p == 1
        else _beyond(p, d, gamma, noise, threshold, omega, seed)
    )
    if not math.isfinite(added):
        warnings.warn(
            f"threshold = {threshold:g}: the ODE at p = {p}, gamma = {gamma:g} does not lose that share of its risk; take a smaller gamma "
            "(`largest_stable_lr`) or threshold",
            stacklevel=3,
        )
        return math.inf, 0.0
    return linear + added + shift, math.hypot(error, spread)


def _beyond_width_one(d: int, gamma: float, noise: float, threshold: float) -> tuple[float, float]:
    """E of the nonlinear less the linearised time: ln[1 + T (1 - u0)/(kappa - u_T)]/(2 mu), a smooth function of u0 = m(0)^2."""
    mu = formulas.growth_rates(1, gamma, noise)[0]
    kappa = mu / (4 * (1 - 6 * gamma))
    nodes, weights = formulas.sphere_nodes(0.0, d)
    start = np.tanh(nodes) ** 2
    target = threshold + (1 - threshold) * start
    heavy = weights > 1e-12 * weights.max()
    if np.any(target[heavy] >= kappa):
        return math.inf, 0.0
    added = np.log1p(threshold * (1 - start[heavy]) / (kappa - target[heavy])) / (2 * mu)
    return float((weights[heavy] * added).sum() / weights[heavy].sum()), 0.0


def _beyond(
    p: int, d: int, gamma: float, noise: float, threshold: float, omega: float, seed: int
) -> tuple[float, float]:
    """Mean and standard error of the nonlinear less the linearised time over random starts."""
    begin = random_start(
        TeacherStudent(width=p, activation="square", constraint="sphere"),
        dimension=d,
        runs=STARTS,
        seed=seed,
    )
    m, Q = begin.M[:, :, 0], begin.Q
    mu0, tau0 = d * np.sum(m**2, axis=1), d * (np.sum(Q**2, axis=(1, 2)) - p)
    linear = np.log(
        (threshold * p * (p + 1) * d + (1 - threshold) * (2 * p * mu0 - tau0)) / (2 * p * mu0)
    ) / (2 * omega)
    before = risk(m, Q)
    level = (1 - threshold) * before
    times = np.full(STARTS, np.nan)
    h = STEP / omega
    for step in range(math.ceil((linear.max() + LONGEST / omega) / h)):
        m, Q = _step(m, Q, gamma / p, noise, h)
        after = risk(m, Q)
        out = np.isnan(times) & (after < level)
        times[out] = h * (step + (before - level)[out] / (before - after)[out])
        if not np.isnan(times).any():
            break
        before = after
    if np.isnan(times).any():
        return math.inf, 0.0
    added = times - linear
    return float(added.mean()), float(added.std(ddof=1) / math.sqrt(STARTS))


def drift(
    m: np.ndarray, Q: np.ndarray, ratio: float, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """(dm/dt, dQ/dt) of the ODE on the sphere for overlaps (..., p) and (..., p, p), head of ones, rho = 1; ratio = gamma/p.

    Parameters
    ----------
    m : ndarray
        Overlaps with the teacher.
    Q : array_like
        Gram matrices of the rows, (..., p, p).
    ratio : float
        gamma/p.
    noise : float or ndarray
        Delta, the variance of the label noise.

    Returns
    -------
    tuple of ndarray
        dm/dt (..., p) and dQ/dt (..., p, p).

    Notes
    -----
    dm = 2 [3 m - (tau m + 2 Q m)/p],   dQ = 4 [Q + 2 m m^T - (tau Q + 2 Q^2)/p] + 4 ratio Gamma,   Gamma = E[E^2 lambda lambda^T] by Wick,
    then dm -= m dQ_jj/2 and dQ_jl -= Q_jl (dQ_jj + dQ_ll)/2. Source: (33), with its misprints corrected.

    Examples
    --------
    >>> dm, dQ = sgd.papers.escaping_mediocrity.drift(np.array([0.1, 0.0]), np.eye(2), 0.05, 0.0)
    >>> dm.round(3).tolist()
    [0.346, 0.0]
    """
    p = m.shape[-1]
    one = np.ones((*m.shape[:-1], 1, 1))
    column = m[..., None]
    omega = np.concatenate(
        [
            np.concatenate([Q, column], axis=-1),
            np.concatenate([np.swapaxes(column, -1, -2), one], axis=-1),
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
