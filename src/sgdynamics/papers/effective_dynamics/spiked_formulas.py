"""Matrix and tensor PCA: closed formulas of section 3 and appendix D, in the paper's symbols.

Y = snr v^(k) + W, loss |Y - x^(k)|^2 + (ridge/2)|x|^2, step delta = c/n, time t = steps delta.
These are the library's units with lr = c and ``SpikedTensor(order=k, snr, ridge)``. The state is
u = (m, r2); near the saddle m = 0 it is rescaled to u = (sqrt(n) m, r2).

Three misprints are corrected. With snr = Lam n^((k-2)/2) and k >= 3 the rescaled drift is
2 u1 (k Lam u1^(k-2) - k u2^(k-1)), not 2 u1 (k Lam - k u2^(k-1)); so there is no sharp transition
at Lam = 1 but a barrier (`barrier`); and for odd k there is no fixed point at -m, only at +m.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import xarray as xr
from scipy import integrate

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.spiked_fixed_points import spiked_fixed_points
from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.dynamics.spiked_equations import equation_parameters, jacobian
from sgdynamics.problems.spiked_tensor import SpikedTensor

# |u1| beyond this has escaped: the drift grows faster than linearly, so infinity is reached at once
FAR = 1e8
STEP_SHARE = 0.02  # step size times the fastest rate of u2


def critical_snr(k: int, c: float = 1.0) -> float:
    """The snr above which the ODE has fixed points that are correlated with the signal.

    ::

        lam_c = c^(k/2) (2(k-1)/k)^(k-1) (k/(k-2))^((k-2)/2),      k = 2: c

    Parameters
    ----------
    k : int
        The order of the tensor.
    c : float, default 1.0
        c_delta: the step size is c/n.

    Returns
    -------
    float
        The critical snr.

    Notes
    -----
    Without a ridge. Source: (D.4), with its dependence on c.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.critical_snr(3), 4)
    3.0792
    """
    k = checks.integer("k", k, 2)
    c = checks.number("c", c, above=0.0)
    if k == 2:
        return c
    return c ** (k / 2) * (2 * (k - 1) / k) ** (k - 1) * (k / (k - 2)) ** ((k - 2) / 2)


def correlated_fixed_points(
    k: int, snr: float, c: float = 1.0, ridge: float = 0.0
) -> tuple[float, float]:
    """Overlaps (m_dagger, m_star) of the saddle and of the stable fixed point beyond it.

    ::

        m_dagger < sqrt((k-2)c/k) < m_star
        snr m^(k-2) = (m^2 + c)^(k-1)                      (D.5)
        k = 2: m_dagger = m_star, m^2 = (snr - ridge/4)(1 - c/snr)

    Parameters
    ----------
    k : int
        The order of the tensor.
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.
    c : float, default 1.0
        c_delta: the step size is c/n.
    ridge : float, default 0.0
        Strength of the ridge penalty.

    Returns
    -------
    tuple of float
        (m_dagger, m_star).

    Notes
    -----
    Below the critical snr the result is (nan, nan), with a warning that states the threshold. With
    a ridge and k >= 3 there may be more fixed points near x = 0; m_star is the largest stable one
    and m_dagger the next smaller one. c = 0 is gradient flow, with m_dagger = 0 if ridge = 0. For
    even k, -m_dagger and -m_star are fixed points too. Without a ridge r2 = c; in general
    ``sgd.fixed_points`` gives it.

    Examples
    --------
    >>> [round(float(m), 4) for m in sgd.papers.effective_dynamics.correlated_fixed_points(3, 5.0)]
    [0.2198, 1.2068]
    """
    star, dagger = _star_and_dagger(k, snr, c, ridge)
    if star is None:
        advice = (
            f"The critical snr is {critical_snr(k, c):.6g}."
            if ridge == 0.0 and c > 0
            else "Lower the ridge or raise the snr."
        )
        warnings.warn(
            f"k = {k}, snr = {snr:g}, c = {c:g}, ridge = {ridge:g}: "
            f"no stable fixed point is correlated with the signal. {advice}",
            stacklevel=2,
        )
        return math.nan, math.nan
    return dagger[0], star[0]


def _star_and_dagger(
    k: RealArray, snr: RealArray, c: RealArray, ridge: RealArray
) -> tuple[tuple[float, float] | None, tuple[float, float]]:
    """(m, r2) of m_star and m_dagger; m_star is None below the critical snr."""
    k = checks.integer("k", k, 2)
    problem = SpikedTensor(
        order=k, snr=checks.number("snr", snr, above=0.0), ridge=checks.number("ridge", ridge, 0.0)
    )
    fixed_points = spiked_fixed_points(problem, OnePassSGD(lr=checks.number("c", c, 0.0)))
    # at the critical snr the pair is marginal to rounding; it counts as a pair
    points = sorted((point for point in fixed_points if point.m > 0), key=lambda point: point.m)
    last = max((i for i, point in enumerate(points) if point.verdict != "saddle"), default=None)
    if last is None:
        return None, (math.nan, math.nan)
    star = points[last]
    before = points[last - 1] if last > 0 else star
    # c = 0 without a ridge: the barrier has shrunk to x = 0
    dagger = (0.0, 0.0) if k > 2 and c == 0 and ridge == 0 else (before.m, before.r2)
    return (star.m, star.r2), dagger


def eigenvalues(k: int, snr: float, c: float = 1.0, ridge: float = 0.0) -> np.ndarray:
    """Eigenvalues of the Jacobian of the ODE at m_dagger and m_star; NaN below the critical snr.

    ::

        no ridge:  2k R^(2k-4) [(k-2) c - k m^2]  and  - 4k R^(2k-2),   R^2 = m^2 + c
                   (along u1 and u2)
        k = 2:     - 8 (snr - c)  and  - 2 (4 snr - ridge)

    Parameters
    ----------
    k : int
        The order of the tensor.
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.
    c : float, default 1.0
        c_delta: the step size is c/n.
    ridge : float, default 0.0
        Strength of the ridge penalty.

    Returns
    -------
    ndarray
        Array of shape (2, 2): the first row at m_dagger, the second at m_star.

    Notes
    -----
    With a ridge and k >= 3 the eigenvalues are numerical, the largest first. Derived from (3.1);
    appendix D of the paper classifies the fixed points.

    Examples
    --------
    >>> sgd.papers.effective_dynamics.eigenvalues(2, 2.0).round(4).tolist()
    [[-8.0, -16.0], [-8.0, -16.0]]
    """
    star, dagger = _star_and_dagger(k, snr, c, ridge)
    if star is None:
        return np.full((2, 2), math.nan)
    rows = []
    for m, r2 in (dagger, star):
        if k == 2:
            rows.append([-8 * (snr - c), -2 * (4 * snr - ridge)])
        elif ridge == 0.0:
            total = m**2 + c
            rows.append(
                [2 * k * total ** (k - 2) * ((k - 2) * c - k * m**2), -4 * k * total ** (k - 1)]
            )
        else:
            problem = SpikedTensor(order=k, snr=snr, ridge=ridge)
            coefficients = equation_parameters(problem, OnePassSGD(lr=c), None)
            rows.append(np.sort(np.real(np.linalg.eigvals(jacobian(coefficients, m, r2))))[::-1])
    return np.array(rows)


def rescaled_drift(
    k: int, u1: RealArray, u2: RealArray, Lam: float, c: float = 1.0, ridge: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Drift of u = (sqrt(n) m, r2) at the saddle as n -> infinity, with snr = Lam n^((k-2)/2).

    ::

        du1/dt = 2 u1 (k Lam u1^(k-2) - k u2^(k-1)) - ridge u1
        du2/dt = - 4k u2^(k-1) (u2 - c) - 2 ridge u2

    Parameters
    ----------
    k : int
        The order of the tensor.
    u1 : float or ndarray
        The rescaled overlap sqrt(n) m.
    u2 : float or ndarray
        The squared length r2 of the component orthogonal to the spike.
    Lam : float
        The rescaled snr, snr/n^((k-2)/2).
    c : float, default 1.0
        c_delta: the step size is c/n.
    ridge : float, default 0.0
        Strength of the ridge penalty.

    Returns
    -------
    tuple
        (du1/dt, du2/dt).

    Notes
    -----
    For k = 2, Lam is the snr itself, and this is (3.2). For k >= 3 and an snr that does not grow
    with n, Lam = 0, which is (3.2) too. The paper misses the factor u1^(k-2) of k Lam for k >= 3.

    Examples
    --------
    >>> [float(rate) for rate in sgd.papers.effective_dynamics.rescaled_drift(2, 1.0, 2.0, 1.5)]
    [-2.0, -16.0]
    """
    k = checks.integer("k", k, 2)
    u1, u2 = np.asarray(u1, dtype=np.float64), np.asarray(u2, dtype=np.float64)
    restoring = 2 * k * u2 ** (k - 1)
    return 2 * k * Lam * u1 ** (k - 1) - (restoring + ridge) * u1, -2 * restoring * (
        u2 - c
    ) - 2 * ridge * u2


def rescaled_noise(k: int, u2: RealArray, c: float = 1.0) -> np.ndarray:
    """Noise coefficient of u1 at the saddle: 2 sqrt(c k u2^(k-1)).

    As n -> infinity u2 has no noise. Source: (3.2), for any c.

    Parameters
    ----------
    k : int
        The order of the tensor.
    u2 : float or ndarray
        The squared length r2 of the component orthogonal to the spike.
    c : float, default 1.0
        c_delta: the step size is c/n.

    Returns
    -------
    float or ndarray
        The coefficient of dB.

    Examples
    --------
    >>> round(float(sgd.papers.effective_dynamics.rescaled_noise(2, 1.0)), 4)
    2.8284
    """
    k = checks.integer("k", k, 2)
    return 2 * np.sqrt(c * k * np.asarray(u2, dtype=np.float64) ** (k - 1))


def stationary_variance(snr: float, c: float = 1.0, ridge: float = 0.0) -> float:
    """Stationary n Var(m) of matrix PCA (k = 2) at the saddle; infinite for snr >= c.

    ::

        du1 = - 4 (c - snr) u1 dt + 2 sqrt(2 c u2) dB,   u2 = c - ridge/4
        n Var(m) = c (c - ridge/4)/(c - snr)

    Parameters
    ----------
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.
    c : float, default 1.0
        c_delta: the step size is c/n.
    ridge : float, default 0.0
        Strength of the ridge penalty.

    Returns
    -------
    float
        The stationary variance, times n.

    Notes
    -----
    From (3.2) at late times, an Ornstein-Uhlenbeck process. A ridge of 4c or more leaves no saddle
    at r2 > 0.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.stationary_variance(0.8), 4)
    5.0
    """
    snr = checks.number("snr", snr, above=0.0)
    c = checks.number("c", c, above=0.0)
    ridge = checks.number("ridge", ridge, 0.0)
    if ridge >= 4 * c:
        raise checks.reject(
            "ridge",
            ridge,
            f"from 4c = {4 * c:g} on, r2 decays to 0 and no noise is left. Use a smaller ridge.",
        )
    return math.inf if snr >= c else c * (c - ridge / 4) / (c - snr)


def saddle_variance(
    t: RealArray, snr: float, c: float = 1.0, start: float = 1.0
) -> float | np.ndarray:
    """n Var(m) of matrix PCA (k = 2) at time t, from n Var(m) = ``start`` and r2 = c.

    ::

        V(t) = V* + (start - V*) e^(8 (snr - c) t),   V* = c^2/(c - snr)
        snr = c: V(t) = start + 8 c^2 t

    Parameters
    ----------
    t : float or ndarray
        Time, steps c/n.
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.
    c : float, default 1.0
        c_delta: the step size is c/n.
    start : float, default 1.0
        n Var(m) at t = 0.

    Returns
    -------
    float or ndarray
        The variance, times n.

    Notes
    -----
    The solution of (3.2). The variance grows where snr > c, until n m^2 is of order n. A random
    start N(0, I/n) has start = 1 and r2 = 1, so that the formula is exact for c = 1 as
    n -> infinity.

    Examples
    --------
    >>> round(float(sgd.papers.effective_dynamics.saddle_variance(0.5, 0.8)), 4)
    3.2027
    """
    snr = checks.number("snr", snr, above=0.0)
    c = checks.number("c", c, above=0.0)
    start = checks.number("start", start, 0.0)
    t = np.asarray(t, dtype=np.float64)
    rate = 8 * (snr - c)
    # start e^(rate t) + 8 c^2 (e^(rate t) - 1)/rate, without a division by zero
    mean = t if rate == 0 else np.expm1(rate * t) / rate
    value = start * np.exp(rate * t) + 8 * c**2 * mean
    return float(value) if np.ndim(value) == 0 else value


def barrier(k: int, Lam: float, c: float = 1.0) -> tuple[float, float]:
    """Position of the barrier of the rescaled u1 (k >= 3, u2 = c), and its height over the noise.

    ::

        u = (c^(k-1)/Lam)^(1/(k-2)),      height (1/2 - 1/k) u^2/c

    Parameters
    ----------
    k : int
        The order of the tensor.
    Lam : float
        The rescaled snr, snr/n^((k-2)/2).
    c : float, default 1.0
        The constant c_delta of the step size c/n, and the value of u2.

    Returns
    -------
    tuple of float
        (u, height).

    Notes
    -----
    The scaling is snr = Lam n^((k-2)/2). The drift is -U' with U = k c^(k-1) u^2 - 2 Lam u^k, the
    noise 2 D = 4k c^k, and the height U(u)/D, so that escape takes a time of order e^height. The
    height falls smoothly with Lam; the transition at Lam = 1 in the paper follows from the misprint
    of the drift. Beyond the barrier a run at step c/n comes to rest near m = snr^(1/k) only for
    k = 3: there delta R^(2k-2) is of order n^((k^2 - 4k + 2)/k), and for k >= 4 it overflows.

    Examples
    --------
    >>> [round(float(value), 4) for value in sgd.papers.effective_dynamics.barrier(3, 1.0)]
    [1.0, 0.1667]
    """
    k = checks.integer("k", k, 3)
    Lam = checks.number("Lam", Lam, above=0.0)
    c = checks.number("c", c, above=0.0)
    u = (c ** (k - 1) / Lam) ** (1 / (k - 2))
    return u, (0.5 - 1 / k) * u**2 / c


def rescaled_paths(
    k: int,
    Lam: float,
    *,
    times: RealArray,
    c: float = 1.0,
    ridge: float = 0.0,
    u1: RealArray | None = None,
    u2: float = 1.0,
    runs: int = 1000,
    seed: int = 0,
    step: float | None = None,
) -> xr.Dataset:
    """Paths of the rescaled SDE at the saddle (``rescaled_drift`` and ``rescaled_noise``).

    Parameters
    ----------
    k : int
        The order of the tensor.
    Lam : float
        The rescaled snr, snr/n^((k-2)/2).
    times : array_like
        Times at which the paths are returned.
    c : float, default 1.0
        c_delta: the step size is c/n.
    ridge : float, default 0.0
        Strength of the ridge penalty.
    u1 : float or array_like, optional
        Initial value of u1, one number or one per run. Defaults to draws from N(0, 1).
    u2 : float, default 1.0
        Initial value of u2.
    runs : int, default 1000
        Number of paths.
    seed : int, default 0
        Seed of the random number generator.
    step : float, optional
        Step size of the integrator. Defaults to 0.02 over the fastest rate of u2.

    Returns
    -------
    xarray.Dataset
        ``u1``, ``u2`` and ``escaped_at``.

    Notes
    -----
    u2 is deterministic and u1 has additive noise, for which Heun's method is of weak order 2. The
    attribute ``error_integrator`` is the largest root mean square difference of arctan(u1) between
    this path and one with twice the step on the same Brownian path; the arctan keeps escaped paths
    from dominating. For k >= 3 a path that crosses the barrier reaches infinity in finite time,
    because it leaves the scale m ~ 1/sqrt(n): u1 is then +-inf, and ``escaped_at`` is that time.
    Run i does not depend on the number of runs.

    Examples
    --------
    >>> paths = sgd.papers.effective_dynamics.rescaled_paths(2, 0.5, times=[0.5, 1.0], runs=4)
    >>> paths["u1"].shape
    (4, 2)
    """
    k = checks.integer("k", k, 2)
    Lam, ridge = checks.number("Lam", Lam, 0.0), checks.number("ridge", ridge, 0.0)
    c, u2 = checks.number("c", c, above=0.0), checks.number("u2", u2, 0.0)
    runs, seed = checks.integer("runs", runs, 1), checks.integer("seed", seed, 0)
    t = np.atleast_1d(np.asarray(times, dtype=np.float64))
    if (
        t.ndim != 1
        or t.size == 0
        or not np.all(np.isfinite(t))
        or t[0] < 0
        or np.any(np.diff(t) <= 0)
    ):
        raise checks.reject("times", times, "give increasing numbers, 0 or more.")
    fastest = 4 * k * max(u2, c) ** (k - 1) + 2 * ridge
    longest = STEP_SHARE / fastest if step is None else checks.number("step", step, above=0.0)
    generators = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,))) for run in range(runs)
    ]
    first = np.array([generator.standard_normal() for generator in generators])
    if u1 is not None:
        first = np.broadcast_to(
            checks.array("u1", u1, np.shape(u1), "one number, or one per run"), (runs,)
        ).copy()

    # an even number of steps between save points: two steps at a time give the coarser path
    edges = np.concatenate([[0.0], t])
    pairs = np.maximum(1, np.ceil(np.diff(edges) / (2 * longest) - 1e-9)).astype(int) * (
        np.diff(edges) > 0
    )
    grid = np.concatenate(
        [
            np.linspace(a, b, 2 * n, endpoint=False)
            for a, b, n in zip(edges, edges[1:], pairs, strict=False)
        ]
        + [t[-1:]]
    )
    solution: Any = integrate.solve_ivp(
        lambda _, y: rescaled_drift(k, 0.0, y, Lam, c, ridge)[1],
        (0.0, max(t[-1], 1e-300)),
        [u2],
        rtol=1e-11,
        atol=1e-12,
        dense_output=True,
    )
    middle = np.maximum(
        solution.sol(grid)[0], 0.0
    )  # where a ridge drives u2 to 0, rounding makes it negative

    def heun(u: np.ndarray, i: int, j: int, move: np.ndarray) -> np.ndarray:
        length = grid[j] - grid[i]
        slope = rescaled_drift(k, u, middle[i], Lam, c, ridge)[0]
        end_slope = rescaled_drift(k, u + length * slope + move, middle[j], Lam, c, ridge)[0]
        end = u + length / 2 * (slope + end_slope) + move
        gone = ~(np.abs(end) < FAR) | np.isinf(u)
        return np.where(gone, np.copysign(np.inf, np.where(np.isinf(u), u, slope)), end)

    fine, coarse = first.copy(), first.copy()
    escaped = np.full(runs, np.nan)
    saved = np.empty((runs, len(t)))
    error, position = 0.0, 0
    with np.errstate(over="ignore", invalid="ignore"):
        for index, count in enumerate(pairs):
            normals = np.stack(
                [generator.standard_normal(2 * count) for generator in generators], axis=1
            )
            for first_normal, second_normal in zip(normals[::2], normals[1::2], strict=True):
                i, j, e = position, position + 1, position + 2
                noise = rescaled_noise(
                    k, (middle[i : e + 1][:-1] + middle[i : e + 1][1:]) / 2, c
                ) * np.sqrt(np.diff(grid[i : e + 1]))
                moves = noise[0] * first_normal, noise[1] * second_normal
                fine = heun(heun(fine, i, j, moves[0]), j, e, moves[1])
                coarse = heun(coarse, i, e, moves[0] + moves[1])
                escaped = np.where(np.isinf(fine) & np.isnan(escaped), grid[e], escaped)
                position = e
            saved[:, index] = fine
            shown, doubled = np.arctan(fine), np.arctan(coarse)
            error = max(error, float(np.sqrt(np.mean((shown - doubled) ** 2))))
    return xr.Dataset(
        {
            "u1": (("run", "time"), saved, {"long_name": "sqrt(n) m"}),
            "u2": ("time", np.maximum(solution.sol(t)[0], 0.0), {"long_name": "r2"}),
        },
        {
            "t": ("time", t),
            "escaped_at": ("run", escaped, {"long_name": "time at which u1 reached infinity"}),
        },
        {
            "k": k,
            "Lam": Lam,
            "c": c,
            "ridge": ridge,
            "seed": seed,
            "step": longest,
            "error_integrator": error,
        },
    )
