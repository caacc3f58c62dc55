"""Which clusters a network has learned, and how fast a small unit grows, for Gaussian mixtures."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.effective_dynamics.mixtures import TYPES, ring_radius
from sgdynamics.problems.mixture import GaussianMixture
from sgdynamics.results.datasets import problem_of


def _ring(kind: str, alpha: float) -> float:
    """C_alpha where there is a ring."""
    checks.choice("kind", kind, TYPES)
    alpha, most = checks.number("alpha", alpha, above=0.0), 0.5 / len(TYPES[kind])
    if alpha >= most:
        raise checks.reject(
            "alpha",
            alpha,
            f"at {most:g} and above 0 is the only fixed point, no type is ever active: give less",
        )
    return ring_radius(kind, alpha)


def active_types(kind: str, M: RealArray, a: RealArray, alpha: float) -> np.ndarray:
    """Which types are active (..., type), in the order of `mixtures.TYPES`, in the states M (..., K, q), a (..., K).

        type of cluster c active:   (2 y_c - 1) f_c > C_alpha/2,   f_c = sum_i a_i relu(W_i . mean_c)

    f_c is the network's output at the cluster's centre; it is C_alpha where the type is active and 0 or of the wrong sign where it is
    not, in every fixed point at snr = infinity. The rule of `measured_success`, for settled runs at large snr.
    """
    C = _ring(kind, alpha)
    f = [
        sign * np.sum(a * np.maximum(side * np.asarray(M)[..., q], 0.0), axis=-1)
        for q, side, sign in TYPES[kind].values()
    ]
    return np.stack(f, axis=-1) > C / 2


def outcome(result: xr.Dataset) -> xr.Dataset:
    """How the runs of a Gaussian mixture do: ``active`` (run, time, type) and ``optimal`` (run, time), all types active.

    Parameters
    ----------
    result : xarray.Dataset
        What ``simulate``, ``solve_ode`` or ``solve_sde`` returned for a ``GaussianMixture``.

    Returns
    -------
    xarray.Dataset
        ``active`` and ``optimal``.

    Notes
    -----
    The rule is that of ``active_types``, with the weight decay that the result records. From ``simulate``, ``solve_ode`` or ``solve_sde``.

    Examples
    --------
    >>> problem = sgd.GaussianMixture("binary", snr=100.0)
    >>> begin = sgd.random_start(problem, dimension=50, runs=2)
    >>> runs = sgd.simulate(problem, sgd.OnePassSGD(lr=1.0), begin, alpha=[1.0], dimension=50)
    >>> sgd.papers.effective_dynamics.outcome(runs)["optimal"].shape
    (2, 1)
    """
    problem = problem_of(result)
    if not isinstance(problem, GaussianMixture):
        raise checks.reject(
            "result",
            problem,
            "it is not about a Gaussian mixture: give a result of sgd.GaussianMixture(...)",
        )
    active = active_types(problem.mixture, result.M.values, result.a.values, problem.weight_decay)
    return xr.Dataset(
        {
            "active": (("run", "time", "type"), active),
            "optimal": (("run", "time"), active.all(axis=-1)),
        },
        {"type": list(TYPES[problem.mixture]), "t": result.t},
        {
            "rule": "active: label's sign times output at the cluster's centre above C_alpha/2; optimal: all types active"
        },
    )


def escape_rate(alpha: float, snr: float) -> float:
    """The rate at which a small XOR unit v = ``|W|``, W along +-mu or +-nu, grows while all units are small.

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
        In t.

    Notes
    -----
    With f = 0 each cluster pulls with 1/2: its own E relu(+-1 + z/sqrt(snr)), the other class against it E relu(z/sqrt(snr)) twice. At
    snr = infinity 1/8 - alpha, the paper's threshold; at finite snr the threshold on alpha is lower by 1/(4 sqrt(2 pi snr)), .1027 at
    snr = 20. Below a rate of 0 the state 0 attracts. Not in the paper.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.escape_rate(0.05, 100.0), 4)
    0.065
    """
    alpha, snr = (
        checks.number("alpha", alpha, above=0.0),
        checks.number("snr", snr, above=0.0, infinite=True),
    )
    noise = math.exp(-snr / 2) / math.sqrt(2 * math.pi * snr)
    folded = math.erf(math.sqrt(snr / 2)) + 2 * noise  # E|1 + z/sqrt(snr)|
    return folded / 8 - 1 / (4 * math.sqrt(2 * math.pi * snr)) - alpha
