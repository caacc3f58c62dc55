"""SAGA and SVRG: gradients of batches whose noise vanishes at the minimum of the training loss."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sgdynamics.algorithms.updates.additions import plain_step
from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.sample_memory import Sample
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Scalar, State

MOST_STEPS = 2**31 - 1
CORRECTED = r"g_\mu = \frac{s_\mu}{b} \left(h_\mu - \tau_\mu\right) + \tau_\mu"


def correct_by_table(sample: Sample, h: Numeric, table: Numeric) -> Numeric:
    """Return s (h - table)/b + table; an unselected sample may have an infinite h."""
    return jnp.where(sample.selected, sample.weight * (h - table), 0.0) + table


def _saga_rule(sample: Sample) -> tuple[Any, ...]:
    h, table = sample.slope(sample.fields), sample.memory["table"]
    return correct_by_table(sample, h, table), {"table": jnp.where(sample.selected, h, table)}


def _svrg_step(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    period: Scalar,
) -> Increments:
    return plain_step(state, gradient, lr, D, number)


def _svrg_rule(sample: Sample, *, period: Scalar) -> tuple[Any, ...]:
    h = sample.slope(sample.fields)
    is_snapshot = jnp.asarray(sample.number) % jnp.asarray(period).astype(jnp.int64) == 0
    table = jnp.where(is_snapshot, h, sample.memory["table"])
    return correct_by_table(sample, h, table), {"table": table}


@maker
def saga() -> Update:
    """SAGA: the gradient of a batch, corrected by the last gradients of all samples.

    ::

        G = (1/n) sum_mu g_mu x_mu,    g = s (h - table)/b + table,    table <- h where s = 1,
        W <- W - lr G

    Returns
    -------
    Update
        Update for ``sgd.MultiPassSGD(update=...)`` and ``sgd.PersistentSGD(update=...)``.

    Notes
    -----
    h = dloss/dfields of a sample, s the selection of the batch and b its fraction. The table starts
    at 0. The gradient is unbiased, and its noise vanishes as the weights converge: SAGA ends at the
    minimum of the training loss at a constant learning rate, where plain steps keep fluctuating.
    With full batches it is gradient descent. It acts on single samples of a data set, so that one
    pass and ``EpochSGD`` do not support it. A head is not trained. Source: Defazio, Bach and
    Lacoste-Julien 2014.

    Examples
    --------
    >>> sgd.MultiPassSGD(0.1, 3.0, batch_fraction=0.2, update=sgd.updates.saga()).update
    saga()
    """
    law = Law(
        "saga",
        plain_step,
        trains_head=False,
        on_sample=_saga_rule,
        samples=("table",),
        equations=(
            CORRECTED,
            r"\tau_\mu \leftarrow h_\mu \text{ where } s_\mu = 1",
            step_equation("G"),
        ),
    )
    return Update(law)


@maker
def svrg(period: int) -> Update:
    """SVRG: the gradient of a batch, corrected by the gradients of all samples at a snapshot.

    ::

        G = (1/n) sum_mu g_mu x_mu,    g = s (h - table)/b + table,    W <- W - lr G,
        table <- h of all samples at steps 0, period, 2 period, ...

    Parameters
    ----------
    period : int
        Number of steps between two snapshots, 1 or more.

    Returns
    -------
    Update
        Update for ``sgd.MultiPassSGD(update=...)`` and ``sgd.PersistentSGD(update=...)``.

    Raises
    ------
    ValueError
        If period is not a positive integer.

    Notes
    -----
    A step at a snapshot is one of gradient descent. Otherwise as for ``saga``. Source: Johnson and
    Zhang 2013, with the last iterate as the snapshot.

    Examples
    --------
    >>> sgd.updates.svrg(10)
    svrg(period=10)
    """
    law = Law(
        "svrg",
        _svrg_step,
        trains_head=False,
        on_sample=_svrg_rule,
        samples=("table",),
        equations=(
            r"\tau_\mu \leftarrow h_\mu \text{ at steps } 0, m, 2 m, \ldots",
            CORRECTED,
            step_equation("G"),
        ),
    )
    return Update(law, {"period": checks.integer("period", period, 1, MOST_STEPS)})
