"""Closed formulas of "Escaping mediocrity" (Arnaboldi, Krzakala, Loureiro, Stephan).

The teacher is y = (w*.x)^2 + sqrt(noise) z, the student f = (1/p) sum_j (w_j.x)^2 with rows on the
sphere, trained by one-pass SGD with rate gamma. The paper has x ~ N(0, I/d), |w_j|^2 = |w*|^2 = d,
and the time t = steps gamma/(p d), which is the library's time divided by p; gamma = lr, and the
overlaps are those of the library. T (``threshold``) is the share of the initial excess risk that is
lost at the exit, (21).

Arguments broadcast against each other; plain numbers give plain numbers. Where no learning happens
(omega_M <= 0) the exit times are infinite, with a warning that names the largest useful gamma.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.expectations.nodes import gauss_legendre, sobol_normals

# step of the trapezoidal rules on the log scale: the error is below exp(-2 pi (pi/2)/STEP) = 1e-28
STEP = 0.15
FAR = 45.0  # weights below exp(-FAR) are neglected
LARGE = 7.0  # from here on Dawson's asymptotic series reaches rounding error in 24 terms
REPLICATES = 8
NODES = 2**19  # random numbers per replicate, at most
SOBOL_MOST = 21201  # number of dimensions of SciPy's Sobol sequence

# A formula returns a float for numbers and an array for arrays.
Values = float | np.ndarray


def _values(
    argument: str,
    value: ArrayLike,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> np.ndarray:
    """Check that all values are finite, inside the bounds and, with ``whole``, integers."""
    bounds = (
        [f"{least:g} or more"] * (least > -math.inf)
        + [f"above {above:g}"] * (above > -math.inf)
        + [f"below {below:g}"] * (below < math.inf)
    )
    kind = "whole" if whole else "finite"
    fix = f"give {kind} numbers" + (", " + " and ".join(bounds) if bounds else "")
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise checks.reject(argument, value, fix) from None
    good = np.isfinite(result) & (result >= least) & (result > above) & (result < below)
    if whole:
        good &= result == np.floor(result)
    if np.asarray(value).dtype == bool or not np.all(good):
        raise checks.reject(argument, value if result.ndim == 0 else float(result[~good][0]), fix)
    return result


def _plain(result: RealArray) -> Values:
    """A float instead of an array without axes."""
    return float(result) if np.ndim(result) == 0 else np.asarray(result)


def _width_and_rate(
    p: RealArray, gamma: RealArray, noise: RealArray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        _values("p", p, least=1, whole=True),
        _values("gamma", gamma, above=0),
        _values("noise", noise, least=0),
    )


def _dimension(d: RealArray, p: np.ndarray) -> np.ndarray:
    result = _values("d", d, least=2, whole=True)
    short = result < p + 1
    if np.any(short):
        worst = float(np.broadcast_to(result, short.shape)[short][0])
        raise checks.reject(
            "d",
            worst,
            f"p = {np.max(p):g} rows and the teacher need p + 1 directions. Use d >= p + 1.",
        )
    return result


def _threshold(threshold: RealArray) -> np.ndarray:
    return _values("threshold", threshold, above=0, below=1)


def _omega_M(p: RealArray, gamma: RealArray, noise: RealArray) -> RealArray:
    return 4 * (1 - gamma / p * (1 + 1 / p + 4 / p**2 + noise / 2))


def _learns(p: RealArray, gamma: RealArray, noise: RealArray) -> np.ndarray:
    """Mask of omega_M > 0, with a warning that states the bound on gamma where it is False.

    The stack level of the warning is that of a public function that calls this one.
    """
    omega, p, gamma, noise = np.broadcast_arrays(_omega_M(p, gamma, noise), p, gamma, noise)
    stuck = omega <= 0
    if np.any(stuck):
        width, rate, variance = (float(x[stuck][0]) for x in (p, gamma, noise))
        bound = width / (1 + 1 / width + 4 / width**2 + variance / 2)
        warnings.warn(
            f"gamma = {rate:g}: nothing is learned at p = {width:g}, noise = {variance:g}, where "
            f"omega_M = {float(omega[stuck][0]):.4g} <= 0 and a small overlap with the teacher "
            f"shrinks. Use gamma below {bound:.6g}.",
            stacklevel=3,
        )
    return ~stuck


def growth_rates(p: RealArray, gamma: RealArray, noise: RealArray) -> tuple[Values, Values]:
    """Growth and decay rates of the overlaps on the plateau.

    ::

        m ~ exp(omega_M t),   Q_jl ~ exp(-omega_Q t)
        omega_M = 4 [1 - (gamma/p)(1 + 1/p + 4/p^2 + Delta/2)],   omega_Q = (8/p)(1 - 8 gamma/p^2)

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    tuple
        The rates (omega_M, omega_Q), per unit of the paper's t.

    Notes
    -----
    Linear order in m and in Q_jl (j != l), on the sphere; no learning where omega_M <= 0. For p = 1
    there is no Q_jl and omega_Q is only the formula. Source: (45), (46).

    Examples
    --------
    >>> [round(float(rate), 4) for rate in sgd.papers.escaping_mediocrity.growth_rates(2, 0.1, 0.0)]
    [3.5, 3.2]
    """
    p, gamma, noise = _width_and_rate(p, gamma, noise)
    return _plain(_omega_M(p, gamma, noise)), _plain(8 / p * (1 - 8 * gamma / p**2 + 0 * noise))


def exit_time_annealed(
    p: RealArray, d: RealArray, gamma: RealArray, noise: RealArray, threshold: RealArray
) -> Values:
    """Time to lose the share T of the initial excess risk, with the start replaced by its mean.

    ::

        t = ln[(p + 1)(T d + 1 - T)/(2 p)]/(2 omega_M)

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

    Returns
    -------
    float or ndarray
        Exit time in the paper's units of t.

    Notes
    -----
    Linearised ODE with the decaying overlaps between rows left out, hence for small T and T d >> 1;
    E[mu0] = p, E[tau0] = p (p - 1) hold at any d. Whether the network then learns is another
    question: see ``largest_stable_lr``. Source: (22), (28), (54).

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_annealed(2, 1000, 0.1, 0.0, 0.2)), 4)
    0.7164
    """
    p, gamma, noise = _width_and_rate(p, gamma, noise)
    logarithm = _annealed_logarithm(p, d, threshold)
    return _plain(_over_rate(logarithm, _learns(p, gamma, noise), p, gamma, noise))


def _annealed_logarithm(p: np.ndarray, d: RealArray, threshold: RealArray) -> np.ndarray:
    d, threshold = _dimension(d, p), _threshold(threshold)
    _reachable(p, d, threshold)
    return np.log((p + 1) * (threshold * d + 1 - threshold) / (2 * p))


def _over_rate(
    logarithm: RealArray, learns: np.ndarray, p: RealArray, gamma: RealArray, noise: RealArray
) -> np.ndarray:
    rate = np.where(learns, 2 * _omega_M(p, gamma, noise), 1.0)
    return np.where(learns, logarithm / rate, np.inf)


def _reachable(p: np.ndarray, d: np.ndarray, threshold: np.ndarray) -> None:
    """Raise ValueError if (52) has no solution t > 0.

    The threshold must exceed the contribution of random overlaps between rows to the initial risk.
    """
    least = (p - 1) / ((p + 1) * (d - 1))
    low = threshold <= least
    if np.any(low):
        values = np.broadcast_to(threshold, low.shape)[low], np.broadcast_to(least, low.shape)[low]
        raise checks.reject(
            "threshold",
            float(values[0][0]),
            f"give more than (p - 1)/((p + 1)(d - 1)) = {values[1][0]:.4g}, or a larger d.",
        )


def exit_time_quenched(
    p: RealArray,
    d: RealArray,
    gamma: RealArray,
    noise: RealArray,
    threshold: RealArray,
    *,
    law: str = "paper",
    with_error: bool = False,
    seed: int = 0,
) -> Values | tuple[Values, Values]:
    """Time to lose the share T of the initial excess risk, averaged over random starts.

    ::

        t = E ln[(T p (p + 1) d + (1 - T)(2 p mu0 - tau0))/(2 p mu0)]/(2 omega_M)
        mu0 = d |m(0)|^2,   tau0 = d sum_{j != l} Q_jl(0)^2

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
    law : str, default "paper"
        Distribution of the start, "paper" or "sphere".
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
    Assumptions as for the annealed time. ``law="sphere"`` is the exact law of independent rows,
    uniform on the sphere, at that d. ``law="paper"`` is the same for p > 1, and for p = 1 takes mu0
    ~ chi^2(1) as (23) prints it: 1/(2 omega_M d) longer to leading order. E ln mu0 is a
    deterministic quadrature for any p, and so is the total for p = 1. For p > 1 the small
    remainder, E[ln(1 + x) - x] with x = O(1/(T d)), is an average over scrambled Sobol points.
    Source: (23), (28), (53), (55).

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_quenched(1, 1000, 0.05, 0.0, 0.2)), 4)
    1.1737
    """
    p, gamma, noise = _width_and_rate(p, gamma, noise)
    logarithm, error = _quenched_logarithm(p, d, threshold, law, seed)
    learns = _learns(p, gamma, noise)
    time = _plain(_over_rate(logarithm, learns, p, gamma, noise))
    return (time, _plain(_over_rate(error, learns, p, gamma, noise))) if with_error else time


def _quenched_logarithm(
    p: np.ndarray, d: RealArray, threshold: RealArray, law: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    d, threshold = _dimension(d, p), _threshold(threshold)
    checks.choice("law", law, ("paper", "sphere"))
    seed = checks.integer("seed", seed, 0)
    _reachable(p, d, threshold)
    shape = np.broadcast_shapes(p.shape, d.shape, threshold.shape)
    points = zip(*(np.broadcast_to(x, shape).ravel() for x in (p, d, threshold)), strict=True)
    means = [
        _mean_logarithm(int(width), int(size), float(T), law, seed) for width, size, T in points
    ]
    result = np.reshape(np.array(means), (*shape, 2))
    return result[..., 0], result[..., 1]


@lru_cache(maxsize=1024)
def _mean_logarithm(p: int, d: int, threshold: float, law: str, seed: int) -> tuple[float, float]:
    """E ln[...] of the quenched formula and its error estimate."""
    T, level = threshold, 1 - threshold
    if p == 1 and law == "paper":
        return _laplace_difference(T * d, level)
    centre = T * p * (p + 1) * d + level * p * (p + 1)
    value = math.log(centre / (2 * p)) - _mean_log_mu(p, d)
    # the quadratures converge beyond rounding, so that rounding is their error
    error = 1e-12 * (1 + abs(value))
    if p == 1:
        nodes, weights = sphere_nodes(0.0, d)
        x = 2 * level * (d * np.tanh(nodes) ** 2 - 1) / centre
        return value + float((weights * np.log1p(x)).sum() / weights.sum()), error
    mu0, tau0 = _starts(p, d, seed)
    x = level * (2 * p * mu0 - tau0 - p * (p + 1)) / centre
    if np.any(x <= -1):
        raise checks.reject(
            "threshold",
            threshold,
            "the excess risk of some starts is that far above the plateau. "
            f"Use a larger threshold or a larger d (now {d}).",
        )
    # ln(1 + x) - x in place of ln(1 + x), since E[x] = 0 exactly
    replicates = (np.log1p(x) - x).mean(axis=1)
    return value + float(replicates.mean()), error + float(
        replicates.std(ddof=1) / math.sqrt(REPLICATES)
    )


def _laplace_difference(A: float, B: float) -> tuple[float, float]:
    """E ln(A/mu + B) for mu ~ chi^2(1), with its error estimate.

    It is the integral of [L(s) - e^(-A s) L(B s)] ds/s with L(s) = E e^(-s mu) = (1 + 2 s)^(-1/2).
    """
    y = np.arange(-FAR - math.log1p(A), 2 * FAR, STEP)
    s = np.exp(y)
    values = 1 / np.sqrt(1 + 2 * s) - np.exp(-A * s) / np.sqrt(1 + 2 * B * s)
    value = STEP * float(values.sum())
    return value, 1e-12 * (1 + abs(value))


def sphere_nodes(s: RealArray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Trapezoidal nodes z >= 0 and weights of m = tanh z, a coordinate of a random unit vector.

    The weights include the factor exp(-s d m^2).

    The density of z is proportional to cosh(z)^-(d - 1): smooth with exponential tails at any d, so
    that the rule converges exponentially.
    """
    s = np.asarray(s, dtype=np.float64)[..., None]

    def exponent(z: np.ndarray) -> np.ndarray:
        log_cosh = np.log1p(2 * np.sinh(z / 2) ** 2)  # exact for small z too, where d multiplies it
        return s * d * np.tanh(z) ** 2 + (d - 1) * log_cosh

    low, high = np.full(s.shape, -60.0), np.full(s.shape, 5.0)
    for _ in range(40):
        middle = (low + high) / 2
        inside = exponent(np.exp(middle)) < FAR
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    edge = np.exp(high)
    z = edge * np.linspace(0, 1, 513)
    weights = np.exp(-exponent(z)) * edge
    weights[..., 0] /= 2
    return z, weights


@lru_cache(maxsize=1024)
def _mean_log_mu(p: int, d: int) -> float:
    """E ln mu0 for mu0 = d sum_j m_j^2, m_j coordinates of p independent random unit vectors.

    It is the integral of [e^-s - L(s)^p] ds/s.
    """
    y = np.arange(-FAR, 2 * FAR / p + 6, STEP)
    s = np.exp(y)
    laplace = sphere_nodes(s, d)[1].sum(axis=-1) / sphere_nodes(0.0, d)[1].sum()
    return STEP * float((np.exp(-s) - laplace**p).sum())


@lru_cache(maxsize=16)
def _starts(p: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """mu0 and tau0 of random starts, (replicates, points).

    Rows are drawn by Bartlett's decomposition, [m | lower triangle | chi], and then normalised.
    """
    lower = p * (p - 1) // 2
    dimensions = 2 * p + lower
    log2_count = min(12, max(5, int(math.log2(NODES / dimensions))))
    if dimensions <= SOBOL_MOST:
        normals = sobol_normals(dimensions, log2_count, REPLICATES, whiten=False, seed=seed)
    else:  # beyond the Sobol tables; averages of such wide networks hardly fluctuate
        normals = np.random.default_rng(seed).standard_normal(
            (REPLICATES, 2**log2_count, dimensions)
        )
    mu0, tau0 = np.empty(normals.shape[:2]), np.empty(normals.shape[:2])
    row, column = np.tril_indices(p, -1)
    for replicate, draw in enumerate(normals):
        rows = np.zeros((len(draw), p, p + 1))
        rows[:, :, 0] = draw[:, :p]
        rows[:, row, column + 1] = draw[:, p : p + lower]
        free = d - 1 - np.arange(p)
        rows[:, np.arange(p), np.arange(1, p + 1)] = np.sqrt(
            2 * special.gammaincinv(free / 2, special.ndtr(draw[:, p + lower :]))
        )
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        mu0[replicate] = d * (rows[:, :, 0] ** 2).sum(axis=-1)
        tau0[replicate] = d * (((rows @ rows.transpose(0, 2, 1)) ** 2).sum(axis=(1, 2)) - p)
    return mu0, tau0


def exit_time_p1(m0: RealArray, gamma: RealArray, noise: RealArray, threshold: RealArray) -> Values:
    """Exit time of the p = 1 ODE, without linearisation.

    ::

        t = ln[u_T (kappa - u0)/(u0 (kappa - u_T))]/(2 mu),   u0 = m0^2,   u_T = T + (1 - T) u0,
        mu = omega_M(p = 1) = 4 (1 - 6 gamma) - 2 gamma Delta
        kappa = mu/(4 (1 - 6 gamma)), the fixed point of the ODE

    Parameters
    ----------
    m0 : float or ndarray
        Initial overlap w.w*.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.
    threshold : float or ndarray
        T, the share of the initial excess risk that is lost at the exit.

    Returns
    -------
    float or ndarray
        Exit time in the paper's units of t.

    Notes
    -----
    The time at which the share T of the initial excess risk is lost. It is infinite at m0 = 0, a
    fixed point of the ODE, and, with a warning, where u_T >= kappa or mu <= 0. It solves du/dt = 2
    u [mu - 4 (1 - 6 gamma) u], which is (19) for u = m^2, up to (21).

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_p1(0.1, 0.05, 0.0, 0.2)), 4)
    0.5818
    """
    _, gamma, noise = _width_and_rate(1, gamma, noise)
    m0, threshold = _values("m0", m0, above=-1, below=1), _threshold(threshold)
    learns = _learns(1.0, gamma, noise)
    mu = _omega_M(1.0, gamma, noise)
    start = m0**2
    target = threshold + (1 - threshold) * start
    kappa = 1 - gamma * noise / (2 * np.where(learns, 1 - 6 * gamma, 1.0))
    out_of_reach = learns & (target >= kappa) & (start > 0)
    if np.any(out_of_reach):
        level, T = (
            float(np.broadcast_to(x, out_of_reach.shape)[out_of_reach][0])
            for x in (kappa, threshold)
        )
        warnings.warn(
            f"threshold = {T:g}: never reached, because label noise stops the ODE at "
            f"m^2 = {level:.4g}. Use a smaller threshold or a smaller gamma.",
            stacklevel=2,
        )
    moves = learns & (target < kappa) & (start > 0)
    safe_start, distance = np.where(moves, start, 1.0), np.where(moves, kappa - target, 1.0)
    ratio = np.where(moves, target / safe_start, 1.0)
    logarithm = np.log(ratio) + np.log1p(np.where(moves, threshold * (1 - start) / distance, 0.0))
    return _plain(np.where(moves, logarithm / np.where(moves, 2 * mu, 1.0), np.inf))


def exit_time_diffusive(
    d: RealArray, gamma: RealArray, noise: RealArray, threshold: RealArray, m0: RealArray = 0.0
) -> Values:
    """Mean exit time of the linearised p = 1 SDE from the interval (-sqrt(T), sqrt(T)).

    ::

        dm = mu m dt + sigma db,   m(0) = m0
        t = (T/sigma^2) 2F2(1, 1; 3/2, 2; -mu T/sigma^2)
            - (m0^2/sigma^2) 2F2(1, 1; 3/2, 2; -mu m0^2/sigma^2)
          = (2/mu) integral of Dawson's function from |m0| sqrt(mu)/sigma to sqrt(T mu)/sigma

    Parameters
    ----------
    d : int or ndarray
        The dimension.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.
    threshold : float or ndarray
        T, the share of the initial excess risk that is lost at the exit.
    m0 : float or ndarray, default 0.0
        Initial overlap w.w*.

    Returns
    -------
    float or ndarray
        Exit time in the paper's units of t.

    Notes
    -----
    mu = 4 (1 - 6 gamma) - 2 gamma Delta, sigma^2 = (gamma/d)(48 + 4 Delta). The last line
    is evaluated by Gauss-Legendre quadrature and the asymptotic series, to 1e-13 for any arguments.
    For mu <= 0 only the noise drives m out: the value is still (59), which may overflow to
    infinity, and comes with a warning. Source: (57)-(59); for any start Zeng (2020).

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.exit_time_diffusive(1000, 0.05, 0.0, 0.2)), 4)
    1.3239
    """
    _, gamma, noise = _width_and_rate(1, gamma, noise)
    d, threshold, m0 = (
        _values("d", d, least=2, whole=True),
        _threshold(threshold),
        _values("m0", m0),
    )
    start = m0**2
    if np.any(start >= threshold):
        raise checks.reject(
            "m0", m0.tolist(), "give a start inside the interval, |m0| < sqrt(threshold)."
        )
    _learns(1.0, gamma, noise)
    return _plain(
        np.vectorize(_diffusive, otypes=[float])(
            _omega_M(1.0, gamma, noise), gamma / d * (48 + 4 * noise), start, threshold
        )
    )


def _diffusive(mu: float, variance: float, start: float, end: float) -> float:
    """The integral of 1F1(1; 3/2; -mu u/sigma^2) du/sigma^2 between two values of u = m^2."""
    y0, y1 = abs(mu) * start / variance, abs(mu) * end / variance
    if y1 < 1e-30:
        return (end - start) / variance
    nodes, weights = gauss_legendre(64)
    a0, a1 = math.sqrt(y0), math.sqrt(y1)
    if mu < 0:
        if y1 > 700:  # exp overflows
            return math.inf
        panels = math.ceil(a1 - a0)
        width = (y1 - y0) / (a1 + a0) / panels
        x = a0 + width * (np.arange(panels)[:, None] + nodes)
        return (
            width
            * math.sqrt(math.pi)
            * float((weights * np.exp(x**2) * special.erf(x)).sum())
            / -mu
        )
    total = 0.0
    if a0 < LARGE:
        width = (y1 - y0) / (a1 + a0) if a1 <= LARGE else LARGE - a0
        total += 2 * width * float((weights * special.dawsn(a0 + width * nodes)).sum())
    if a1 > LARGE:
        # 2 D(x) = (1/x) sum_n (2n - 1)!!/(2 x^2)^n, integrated term by term
        low = max(y0, LARGE**2)
        n = np.arange(1, 25)
        terms = np.cumprod(n - 0.5) / (2 * n)
        total += 0.5 * math.log1p((y1 - low) / low) + float(
            (terms * (low ** -n.astype(float) - y1 ** -n.astype(float))).sum()
        )
    return total / mu


def stochastic_shift(p: RealArray, gamma: RealArray, noise: RealArray) -> Values:
    """Shift of the mean exit time by the noise of SGD on the plateau, a negative constant.

    ::

        -ln(1 + D_p)/(2 omega_M),   D_p = (gamma/p) V_p/(2 omega_M)
        V_p = 4 [15 - 6 (p + 2)/p + (p + 2)(p + 4)/p^2 + Delta]

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    gamma : float or ndarray
        The learning rate.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    float or ndarray
        The shift in the paper's units of t, which is negative.

    Notes
    -----
    On the plateau dm_j = omega_M m_j dt + sqrt(gamma V_p/(p d)) db_j with independent b_j (V_p is
    the variance of 2 E lambda_j lambda* at m = 0, Q = 1), so that m_j exp(-omega_M t) tends to a
    normal of variance (1 + D_p)/d where the ODE keeps 1/d: mu0 becomes (1 + D_p) mu0 in law. The
    shift does not depend on d or the threshold, up to terms of order 1/(T d). It is NaN, with a
    warning, where omega_M <= 0. This formula is not in the paper, whose section 3.3 neglects the
    effect.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.stochastic_shift(1, 0.05, 0.0)), 4)
    -0.0637
    """
    p, gamma, noise = _width_and_rate(p, gamma, noise)
    return _plain(_shift(p, gamma, noise, _learns(p, gamma, noise)))


def _shift(p: RealArray, gamma: RealArray, noise: RealArray, learns: np.ndarray) -> np.ndarray:
    rate = np.where(learns, 2 * _omega_M(p, gamma, noise), np.nan)
    variance = 4 * (15 - 6 * (p + 2) / p + (p + 2) * (p + 4) / p**2 + noise)
    return -np.log1p(gamma / p * variance / rate) / rate


def largest_stable_lr(p: RealArray, noise: RealArray) -> Values:
    """Largest learning rate at which a network with parallel rows stays at the teacher.

    ::

        gamma < 2 p/(12 + Delta)

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    float or ndarray
        The largest rate gamma.

    Notes
    -----
    Parallel rows are one unit with rate gamma/p, whose overlap survives only where omega_M(p = 1) >
    0. For p = 1, and for any p without noise, this is sharp: beyond it the ODE does not stay at the
    teacher. With noise and p > 1 the rows never become parallel (a small distance between them
    grows, its square at the rate 8 (1 - m^2)(1 - 4 gamma/p)), and what the ODE reaches gets worse
    smoothly as gamma passes the bound. Section 3.2 prints 1/6 for p = 1.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.largest_stable_lr(2, 0.0)), 4)
    0.3333
    """
    p, noise = _values("p", p, least=1, whole=True), _values("noise", noise, least=0)
    return _plain(2 * p / (12 + noise))


def _optimal(p: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return p**3 / (8 + 2 * p + (2 + noise) * p**2)


def optimal_lr(p: RealArray, noise: RealArray) -> Values:
    """Learning rate that minimises the steps to leave the plateau, by the annealed formula.

    ::

        gamma_opt = p^3/(8 + 2 p + (2 + Delta) p^2), at which omega_M = 2

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    noise : float or ndarray
        Variance Delta of the label noise.

    Returns
    -------
    float or ndarray
        The optimal rate gamma.

    Notes
    -----
    It minimises p d t/gamma and takes only the plateau into account. For p >= 2 the network that
    has left it does not learn unless gamma_opt <= ``largest_stable_lr``, that is Delta >= 8 - 4/p -
    16/p^2: without noise the ODE stalls at a large risk or goes to the risk's maximum, and a
    warning is issued. Source: C.4; section 3.2 for p = 1.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.optimal_lr(1, 0.0)), 4)
    0.0833
    """
    p, noise = _values("p", p, least=1, whole=True), _values("noise", noise, least=0)
    best, bound = np.broadcast_arrays(_optimal(p, noise), 2 * p / (12 + noise))
    high = best > bound * (1 + 1e-12)
    if np.any(high):
        width = float(np.broadcast_to(p, high.shape)[high][0])
        warnings.warn(
            f"gamma_opt = {best[high][0]:.6g} at p = {width:g} leaves the plateau fastest but does "
            "not learn: parallel rows are stable only below "
            f"2 p/(12 + noise) = {bound[high][0]:.6g}.",
            stacklevel=2,
        )
    return _plain(best)


def minimal_steps(
    p: RealArray, d: RealArray, noise: RealArray, threshold: RealArray, *, admissible: bool = True
) -> Values:
    """Smallest number of steps to leave the plateau over all learning rates (annealed formula).

    ::

        min over gamma of p d t_annealed/gamma

    Parameters
    ----------
    p : int or ndarray
        Width of the student.
    d : int or ndarray
        The dimension.
    noise : float or ndarray
        Variance Delta of the label noise.
    threshold : float or ndarray
        T, the share of the initial excess risk that is lost at the exit.
    admissible : bool, default True
        Whether to admit only rates at which the network learns; False gives the paper's formula.

    Returns
    -------
    float or ndarray
        The number of steps.

    Notes
    -----
    By default the minimum is over rates up to ``largest_stable_lr``. The number of steps is convex
    in gamma, so that the minimum is at the smaller of the two rates (an infimum if that is the
    bound). ``admissible=False`` is the paper's formula at ``optimal_lr``,
    s = (d/4)[8/p^2 + 2/p + 2 + Delta] ln[(p + 1)(T d + 1 - T)/(2 p)]; nothing is learned where that
    rate is too large. Source: C.4.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.minimal_steps(2, 1000, 0.0, 0.2)))
    6447
    """
    p, noise = _values("p", p, least=1, whole=True), _values("noise", noise, least=0)
    logarithm = _annealed_logarithm(p, d, threshold)
    gamma = (
        np.minimum(_optimal(p, noise), 2 * p / (12 + noise)) if admissible else _optimal(p, noise)
    )
    return _plain(
        p * np.asarray(d, dtype=np.float64) / gamma * logarithm / (2 * _omega_M(p, gamma, noise))
    )


def overparametrization_gain(noise: RealArray, *, admissible: bool = True) -> Values:
    """Ratio of the steps of a single unit to those of an infinitely wide network, at best rates.

    ::

        40/(12 + Delta) for Delta <= 8, (12 + Delta)/(2 + Delta) for Delta > 8

    It is the ratio of ``minimal_steps`` as d -> infinity and then p -> infinity.

    Parameters
    ----------
    noise : float or ndarray
        Variance Delta of the label noise.
    admissible : bool, default True
        Whether to admit only rates at which the network learns; False gives the paper's formula.

    Returns
    -------
    float or ndarray
        The ratio of the numbers of steps.

    Notes
    -----
    ``admissible=False`` is the paper's (12 + Delta)/(2 + Delta) for any noise, whose rate for the
    wide network does not learn if Delta < 8. Source: C.4, section 4.

    Examples
    --------
    >>> round(float(sgd.papers.escaping_mediocrity.overparametrization_gain(0.0)), 4)
    3.3333
    """
    noise = _values("noise", noise, least=0)
    free = (12 + noise) / (2 + noise)
    return _plain(np.where(noise < 8, 40 / (12 + noise), free) if admissible else free)
