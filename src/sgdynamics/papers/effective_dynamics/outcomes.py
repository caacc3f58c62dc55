"""Gaussian mixtures: the clusters that a network has learned, and the growth of a small unit."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.effective_dynamics.mixtures import TYPES, _below_threshold, ring_radius
from sgdynamics.problems.mixture import GaussianMixture
from sgdynamics.results.datasets import problem_of


def active_types(kind: str, M: RealArray, a: RealArray, alpha: float) -> np.ndarray:
    """Active types (..., type) of states M (..., K, q), a (..., K), in the order of ``TYPES``.

    ::

        the type of cluster c is active if (2 y_c - 1) f_c > C_alpha/2
        f_c = sum_i a_i relu(W_i . mean_c)

    The output f_c at the centre of the cluster has absolute value C_alpha in the fixed points at
    snr = infinity where the type is active; elsewhere it is 0 or has the wrong sign. The rule is
    that of ``measured_success``, for settled runs at large snr.
    """
    C = ring_radius(kind, _below_threshold(kind, alpha))
    f = [
        sign * np.sum(a * np.maximum(side * np.asarray(M)[..., q], 0.0), axis=-1)
        for q, side, sign in TYPES[kind].values()
    ]
    return np.stack(f, axis=-1) > C / 2


def outcome(result: xr.Dataset) -> xr.Dataset:
    """Clusters that the runs of a Gaussian mixture have learned.

    Parameters
    ----------
    result : xarray.Dataset
        Result of ``simulate``, ``solve_ode`` or ``solve_sde`` for a ``GaussianMixture``.

    Returns
    -------
    xarray.Dataset
        ``active`` (run, time, type), and ``optimal`` (run, time), which is True where all types are
        active.

    Notes
    -----
    A type is active where the output at the centre of its cluster, times the sign of the label,
    exceeds C_alpha/2 (``ring_radius``), with the weight decay alpha of the result.

    Examples
    --------
    >>> problem = sgd.GaussianMixture("binary", snr=100.0)
    >>> start = sgd.random_start(problem, dimension=50, runs=2)
    >>> runs = sgd.simulate(problem, sgd.OnePassSGD(lr=1.0), start, alpha=[1.0], dimension=50)
    >>> sgd.papers.effective_dynamics.outcome(runs)["optimal"].shape
    (2, 1)
    """
    problem = problem_of(result)
    if not isinstance(problem, GaussianMixture):
        raise checks.reject(
            "result",
            problem,
            "not about a Gaussian mixture. Give a result of sgd.GaussianMixture(...).",
        )
    active = active_types(problem.mixture, result.M.values, result.a.values, problem.weight_decay)
    return xr.Dataset(
        {
            "active": (("run", "time", "type"), active),
            "optimal": (("run", "time"), active.all(axis=-1)),
        },
        {"type": list(TYPES[problem.mixture]), "t": result.t},
        {
            "rule": "active: label's sign times output at the cluster's centre above C_alpha/2; "
            "optimal: all types active"
        },
    )


def escape_rate(alpha: float, snr: float) -> float:
    """Growth rate of a small XOR unit v = ``|W|``, W along +-mu or +-nu, while all units are small.

    ::

        rate = E|1 + z/sqrt(snr)|/8 - 1/(4 sqrt(2 pi snr)) - alpha,   z ~ N(0, 1)

    Parameters
    ----------
    alpha : float
        The weight decay.
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.

    Returns
    -------
    float
        The rate, per unit of t.

    Notes
    -----
    At f = 0 each cluster contributes with weight 1/2: E relu(+-1 + z/sqrt(snr)) for the unit's own
    cluster, and twice -E relu(z/sqrt(snr)) for the other class. At snr = infinity the rate is
    1/8 - alpha, the paper's threshold. At finite snr the threshold on alpha is lower by
    1/(4 sqrt(2 pi snr)); it is 0.1027 at snr = 20. At a negative rate the state 0 is attractive.
    This formula is not in the paper.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.escape_rate(0.05, 100.0), 4)
    0.065
    """
    alpha = checks.number("alpha", alpha, above=0.0)
    snr = checks.number("snr", snr, above=0.0, infinite=True)
    noise = math.exp(-snr / 2) / math.sqrt(2 * math.pi * snr)
    folded = math.erf(math.sqrt(snr / 2)) + 2 * noise  # E|1 + z/sqrt(snr)|
    return folded / 8 - 1 / (4 * math.sqrt(2 * math.pi * snr)) - alpha
