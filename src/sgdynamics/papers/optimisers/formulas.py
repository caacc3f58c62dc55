"""Closed formula for the drift by reused samples, where fresh samples have none."""

from __future__ import annotations

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument

HE3 = 324.0  # E[He3(z)^3 z]


def reuse_drift(lr: float, times: int, weight: float, q: ArrayArgument) -> np.ndarray:
    """Drift of an erf unit towards a He3 teacher at zero overlap, when samples are reused.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more. The formula is of leading order in lr.
    times : int
        Number n of consecutive steps on each sample, 1 or more.
    weight : float
        Output weight a_i/p of the unit.
    q : array_like
        Squared norm of the unit's row, above 0.

    Returns
    -------
    float or ndarray
        The derivative dM_i/dt at M = 0 in t = lr steps/d, without label noise; 0 for ``times=1``.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    A step changes the preactivation of its own sample by -lr h, so that later steps on the sample
    have s'(lam - lr h). The expansion to second order contains the cube of the label. With
    E[He3(z)^3 z] = 324 and s(x) = erf(x/sqrt 2),

    ::

        dM_i/dt = 324 lr^2 weight^3 (E[s'^2 s'''] (n-1) n (2n-1)/12
                                     + E[s' s''^2] n (n-1) (n-2)/6)
        E[s'^2 s'''] = -(2/pi)^(3/2) (1 + 2q)/(1 + 3q)^(3/2)
        E[s' s''^2]  =  (2/pi)^(3/2) q/(1 + 3q)^(3/2)

    Dandi et al. (2024), "The benefits of reusing batches", show that reusing samples lowers the
    information exponent.

    Examples
    --------
    >>> round(float(sgd.papers.optimisers.reuse_drift(0.1, 2, 0.5, 1.0)), 5)
    -0.03857
    """
    lr, n = checks.number("lr", lr, 0.0), checks.integer("times", times, 1)
    weight = checks.number("weight", weight)
    size = checks.real_array("q", q, "give squared norms above 0.")
    if np.any(size <= 0):
        raise checks.reject("q", q, "give squared norms above 0.")
    bend = -(1 + 2 * size) * (n - 1) * n * (2 * n - 1) / 12 + size * n * (n - 1) * (n - 2) / 6
    return HE3 * lr**2 * weight**3 * (2 / np.pi) ** 1.5 * bend / (1 + 3 * size) ** 1.5
