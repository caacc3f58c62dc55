"""The primal-dual hybrid gradient method, with one dual variable for each sample and unit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.sample_memory import Sample
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base.arrays import Numeric, Scalar, State
from sgdynamics.base.controls import scalar_or_schedule

# Newton steps of the proximal operator, each with the best of these lengths.
NEWTON_STEPS = 12
LENGTHS = 2.0 ** -np.arange(8)


def _primal_step(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    dual_lr: Scalar,
) -> Increments:
    W, former = state["weights"], state["former"]
    return {"weights": -lr / D * gradient(2 * W - former), "former": W - former}


def dual_step(sample: Sample, u: Numeric, sigma: Scalar) -> Float[Numeric, "..."]:
    """Return prox*(u + sigma fields), the root of u' = loss'((u + sigma fields - u')/sigma).

    In z = (u + sigma fields - u')/sigma the root is that of loss'(z) + sigma z = v, the minimum
    of a convex function, by Newton's method with the best of several lengths.
    """
    shape, v = sample.fields.shape, (u + sigma * sample.fields).reshape(-1)

    def residual(z: Numeric) -> Numeric:
        return sample.slope(z.reshape(shape)).reshape(-1) + sigma * z - v

    def newton(_: Numeric, z: Numeric) -> Numeric:
        r = residual(z)
        step = jnp.linalg.solve(jax.jacfwd(residual)(z), r)
        trials = z - jnp.asarray(LENGTHS, z.dtype)[:, None] * step
        norms = jnp.sum(jax.vmap(residual)(trials) ** 2, axis=1)
        best = jnp.argmin(norms)
        return jnp.where(norms[best] < jnp.sum(r**2), trials[best], z)

    z = jax.lax.fori_loop(0, NEWTON_STEPS, newton, sample.fields.reshape(-1))
    return (v - sigma * z).reshape(shape)


def _dual_rule(sample: Sample, *, dual_lr: Scalar) -> tuple[Any, ...]:
    u = sample.memory["dual"]
    moved = jnp.where(sample.selected, dual_step(sample, u, dual_lr), u)
    g = jnp.where(sample.selected, sample.weight * (moved - u), 0.0) + u
    return g, {"dual": moved}


@maker
def pdhg(dual_lr: float) -> Update:
    """Primal-dual hybrid gradient method: a proximal step of one dual variable for each sample.

    ::

        u <- prox*(u + sigma X (2 W - W_old)),    W <- W - lr X^T u/n

    Parameters
    ----------
    dual_lr : float
        Learning rate sigma of the dual variables, above 0.

    Returns
    -------
    Update
        Update for ``sgd.GradientDescent(update=...)`` and other algorithms on a fixed data set.

    Raises
    ------
    ValueError
        If dual_lr is not above 0.

    Notes
    -----
    prox*(v) minimises loss*(u) + (u - v)^2/(2 sigma) with the conjugate of the loss as a function
    of the fields, which must be convex. It is stable for lr sigma s_max < 1 with the largest
    eigenvalue s_max of X^T X/n, whatever the curvature of the loss. Both u and W - W_old start at
    0. In random batches the dual variables of the other samples stay, and a change counts 1/b. A
    head is not trained. Source: Chambolle and Pock 2011, Algorithm 1; Condat 2013 with weight
    decay.

    Examples
    --------
    >>> sgd.GradientDescent(0.5, 3.0, update=sgd.updates.pdhg(0.5)).update
    pdhg(dual_lr=0.5)
    """
    law = Law(
        "pdhg",
        _primal_step,
        rows=("former",),
        start_at_weights=("former",),
        memory="fast",
        trains_head=False,
        on_sample=_dual_rule,
        samples=("dual",),
        equations=(
            r"\bar W \leftarrow 2 W - W_{\mathrm{old}},\quad W_{\mathrm{old}} \leftarrow W",
            r"u_\mu \leftarrow \operatorname{prox}_{\sigma \ell_\mu^*}"
            r"\left(u_\mu + \sigma \bar W x_\mu\right),\quad g_\mu = u_\mu",
            step_equation("G"),
        ),
    )
    return Update(law, {"dual_lr": scalar_or_schedule("dual_lr", dual_lr, above=0.0)})
