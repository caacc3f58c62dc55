"""Closed formulas: the drift that a second look at a sample makes where the first one has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument

HE3 = 324.0  # E[He3(z)^3 z]


def reuse_drift(lr: float, times: int, weight: float, q: ArrayArgument) -> Any:
    """How fast an erf unit that knows nothing of a He3 teacher learns its direction when each
    sample serves several times.

    Parameters
    ----------
    lr : float
        The learning rate, 0 or more; the formula is its leading order.
    times : int
        How many moves a sample serves for, 1 or more.
    weight : float
        What the network multiplies the unit by, a_i/p.
    q : array_like
        The squared length of the unit's row, above 0.

    Returns
    -------
    float or ndarray
        dM_i/dt at M = 0, t = lr steps/d, without label noise; 0 where ``times`` is 1.

    Raises
    ------
    ValueError
        If an argument is refused.

    Notes
    -----
    A move changes the sample's own field by -lr h, so that later moves see s'(lam - lr h), whose
    expansion to second order has the cube of the label: with E[He3(z)^3 z] = 324,

    dM_i/dt = 324 lr^2 weight^3 (E[s'^2 s'''] (n-1) n (2n-1)/12 + E[s' s''^2] n (n-1) (n-2)/6),

    E[s'^2 s'''] = -(2/pi)^(3/2) (1 + 2q)/(1 + 3q)^(3/2) and E[s' s''^2] = (2/pi)^(3/2) q/(1 +
    3q)^(3/2) for s(x) = erf(x/sqrt 2). That reusing samples lowers the information exponent: Dandi
    et al. 2024, "The benefits of reusing batches".

    Examples
    --------
    >>> round(float(sgd.papers.optimisers.reuse_drift(0.1, 2, 0.5, 1.0)), 5)
    -0.03857
    """
    lr, n = checks.number("lr", lr, 0.0), checks.integer("times", times, 1)
    weight = checks.number("weight", weight)
    size = checks.real_array("q", q, "give squared lengths above 0")
    if np.any(size <= 0):
        raise checks.reject("q", q, "give squared lengths above 0")
    bend = -(1 + 2 * size) * (n - 1) * n * (2 * n - 1) / 12 + size * n * (n - 1) * (n - 2) / 6
    return HE3 * lr**2 * weight**3 * (2 / np.pi) ** 1.5 * bend / (1 + 3 * size) ** 1.5
