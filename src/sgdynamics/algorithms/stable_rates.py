"""`largest_stable_lr`: the learning rate above which a linear student diverges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks
from sgdynamics.base.controls import is_scheduled

SUPPORTED = (
    "give sgd.OnePassSGD with update=None, sgd.updates.delayed or sgd.updates.sparse and a "
    "constant batch, or sgd.Workers with outer_lr=1 and outer_momentum=0"
)


def largest_stable_lr(algorithm: OnePassSGD | Workers) -> float:
    """Return the learning rate above which a linear student diverges, in the limit d -> infinity.

    ::

        one pass, batch B:         lr < 2 B
        K workers, rounds h:       (1 - 1/K) E1^2 + E2/K < 1,   E1 = e^(-lr h/B),
                                   E2 = e^(-lr h (2 - lr/B)/B)
        delay of tau d steps:      lr (1 + sin(lr tau)) < 2 B cos(lr tau),   lr tau < pi/2
        share q, no feedback:      lr < 2 B q
        k coordinates a step:      lr < 2 B k/(k + 2 B)

    Parameters
    ----------
    algorithm : OnePassSGD or Workers
        One-pass SGD, plain or with ``updates.delayed`` or ``updates.sparse``, or workers whose rows
        are averaged (``outer_lr`` 1, no momentum). Its learning rate is not read.

    Returns
    -------
    float
        The largest stable learning rate.

    Raises
    ------
    ValueError
        If the algorithm is not one of these.

    Notes
    -----
    The student has isotropic inputs, the squared loss and no weight decay. With workers the limit
    falls from 2 K B for short rounds to 2 B for long ones. Delays of a fixed number of steps and
    error feedback with a fixed share do not change the limit of plain SGD. With a delay the squared
    error obeys a renewal equation, whose kernel lr X^2/B has the integral
    lr (1 + sin(lr tau))/(2 B cos(lr tau)).

    Examples
    --------
    >>> algorithm = sgd.Workers(sgd.OnePassSGD(lr=1.0), workers=4, every=0.1)
    >>> round(sgd.largest_stable_lr(algorithm), 6)
    4.32717
    >>> delayed = sgd.OnePassSGD(update=sgd.updates.delayed(per_dimension=0.5))
    >>> round(sgd.largest_stable_lr(delayed), 6)
    1.111937
    """
    if isinstance(algorithm, OnePassSGD) and algorithm.counts and not algorithm.has_thermal_noise:
        return _rate_of_update(algorithm.update, float(algorithm.batch))
    if isinstance(algorithm, Workers) and algorithm.averages:
        return _rate_of_workers(algorithm)
    raise checks.reject("algorithm", algorithm, SUPPORTED)


def _rate_of_update(update: Update | None, batch: float) -> float:
    """Return the largest rate of one-pass SGD with an update."""
    if update is None:
        return 2.0 * batch
    options = dict(update.options)
    if any(is_scheduled(value) for value in update.numbers.values()):
        raise checks.reject("update", update, "its parameters must be constant")
    if update.kind == "delayed":
        if "steps" in options:
            return 2.0 * batch
        delay = float(update.numbers["per_dimension"])

        def excess(lr: float) -> float:
            return lr * (1 + math.sin(lr * delay)) - 2 * batch * math.cos(lr * delay)

        # The excess grows on this interval, from -2 B to a positive value.
        return _root(excess, 0.0, math.pi / (2 * delay))
    if update.kind == "sparse":
        if "per_step" in update.numbers:
            count = float(update.numbers["per_step"])
            return 2 * batch * count / (count + 2 * batch)
        has_feedback = options.get("feedback", True)
        return 2.0 * batch * (1.0 if has_feedback else float(update.numbers["share"]))
    raise checks.reject("update", update, SUPPORTED)


def _rate_of_workers(algorithm: Workers) -> float:
    """Return the largest rate of workers whose rows are averaged."""
    K, batch = algorithm.workers, algorithm.algorithm.batch
    if K == 1:
        return 2.0 * batch

    def growth(lr: float) -> float:
        """The exponent of a round's factor, relative to 1; positive if it grows."""
        # With the rate per sample r = lr/B and tau = lr h/B.
        tau = lr * algorithm.every / batch
        first, second = -2 * tau, -(2 - lr / batch) * tau
        largest = max(first, second)
        mean = (1 - 1 / K) * math.exp(first - largest) + math.exp(second - largest) / K
        return largest + math.log(mean)

    # At the lower end the factor is below 1; at the upper one batch K B would diverge.
    return _root(growth, 2.0 * batch, 2.0 * K * batch * (1 + 1e-9))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of a function that changes its sign between two points."""
    from scipy import optimize  # here: it is slow to import, and few calls need it

    root: Any = optimize.brentq(function, low, high, xtol=1e-13)
    return float(root)
