"""`effective_dynamics`: the terms of the limit of summary statistics, measured at a point.

For online SGD x <- x - delta grad L(x, Y) with delta = lr/dimension, let Phi = E L, H = L - Phi,
V = E[grad H grad H^T] and J = du/dx. The statistics u(x) follow du = (-f + g) dt + Sigma^(1/2) dB
in the time t = delta steps, where

    f_i = <grad Phi, grad u_i>,     g_i = (delta/2) <V, hess u_i>,     Sigma = delta J V J^T.

`sampling` describes how the terms are computed, `estimates` their errors.

Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition 2.1,
Theorem 2.2, (2.1)-(2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sgdynamics.analysis.effective.estimates import measure
from sgdynamics.analysis.effective.result import EffectiveDynamics as EffectiveDynamics
from sgdynamics.analysis.effective.task import GROUPS, MOST_SAMPLES, prepare, validate_task
from sgdynamics.base import checks
from sgdynamics.base.arrays import PyTree
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter


@float64
def effective_dynamics(
    loss: Callable[[Any, Any], Any],
    sample: Callable[[Any, int], Any],
    statistics: Callable[[Any], Any],
    *,
    point: PyTree,
    lr: float,
    dimension: int,
    samples: int = 4096,
    seed: int = 0,
    antithetic: Callable[[Any], Any] | None = None,
    controls: Callable[[Any], Any] | None = None,
    names: Sequence[str] | None = None,
    progress: bool | None = None,
) -> EffectiveDynamics:
    """Drift, corrector and diffusion of summary statistics u of any problem, at one point.

    ::

        f_i = <grad Phi, grad u_i>,     g_i = (delta/2) <V, hess u_i>,     Sigma = delta J V J^T

    with delta = lr/dimension, Phi = E L, V the covariance of grad L and J = du/dx. They are the
    terms of du = (-f + g) dt + Sigma^(1/2) dB in the time t = delta steps, estimated by sampling.

    Parameters
    ----------
    loss : callable
        ``loss(x, y)``, the loss of one draw. It is a JAX function, as are
        ``sample`` and ``statistics``, and is called with 64-bit numbers.
    sample : callable
        ``sample(key, dimension)``, a random draw: any tree of arrays.
    statistics : callable
        ``statistics(x)``, the vector of statistics, of shape (k,).
    point : array or tree of arrays
        The parameters x.
    lr : float
        Learning rate; the step size is delta = lr/dimension.
    dimension : int
        Dimension d.
    samples : int, default 4096
        Number of draws. Each has its own random stream, so that the result does not depend on the
        chunks in which they are evaluated.
    seed : int, default 0
        Seed of the random number generator.
    antithetic : callable, optional
        ``antithetic(y)``, another draw with the same law, for instance with negated noise. Each
        sample is then averaged with its partner.
    controls : callable, optional
        ``controls(y)``, a vector of mean zero (control variates) that is regressed out, with a
        bias of order 1/samples.
    names : sequence of str, optional
        Names of the statistics. Defaults to u1, u2, ...
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    EffectiveDynamics
        Estimates and their standard errors.

    Raises
    ------
    ValueError
        If a function has the wrong arguments or shapes, or if the draws contradict the claims of
        ``antithetic`` or ``controls``.

    See Also
    --------
    effective_scaling : whether the terms have a limit as the dimension grows.

    Notes
    -----
    Assumes statistics that are twice differentiable at the point, and a loss that is differentiable
    there for almost every draw (ReLU is allowed). The standard errors assume finite fourth moments
    of grad L. f, g and Sigma are those of this point and this dimension.

    Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Theorem 2.2
    with (2.1)-(2.4); their c_delta is lr.

    Examples
    --------
    A spiked matrix with spike e_1. With R the norm of x, f of m = x_1 is 4 (R^2 - 1.2) m, and g of
    r2 is 8 delta [(d - 1) R^2 + r2]. Negated noise makes f exact:

    >>> import jax, jax.numpy as jnp
    >>> def sample(key, d):
    ...     return jax.random.normal(key, (d * d,)).reshape(d, d)
    >>> def loss(x, noise):
    ...     return jnp.sum((noise - jnp.outer(x, x)) ** 2) - 2.4 * x[0] ** 2
    >>> def statistics(x):
    ...     return jnp.stack([x[0], jnp.sum(x[1:] ** 2)])
    >>> x = jnp.array([0.6] + 16 * [0.2])
    >>> arguments = {"point": x, "lr": 0.5, "dimension": 17, "antithetic": jnp.negative}
    >>> effective = sgd.effective_dynamics(loss, sample, statistics, **arguments)
    >>> effective.drift.round(6).tolist()
    [-0.48, 5.12]
    >>> exact = 8 * 0.5 / 17 * (16 + 0.64)
    >>> bool(abs(effective.corrector[1] - exact) < 5 * effective.corrector_error[1])
    True
    """
    task = validate_task(loss, sample, statistics, antithetic, controls)
    lr = checks.number("lr", lr, above=0.0)
    dimension = checks.integer("dimension", dimension, 1)
    samples = checks.integer("samples", samples, GROUPS, MOST_SAMPLES)
    seed = checks.integer("seed", seed, 0)
    progress = checks.flag("progress", progress, optional=True)
    setup = prepare(task, point, dimension, samples, (seed,), names)
    with meter(f"effective dynamics, d = {dimension}", 2.0 * samples, progress) as bar:
        return measure(setup, lr, bar).dynamics
