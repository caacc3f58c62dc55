"""A generative adversarial network of one direction: generator and discriminator learn together, each at its own rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters
from sgdynamics.problems.models.model import model
from sgdynamics.problems.moves import Move
from sgdynamics.problems.rule import Rule


def adversarial(
    fields: Float[Numeric, "2 2"],
    signals: Float[Numeric, "1 2"],
    head: Any,
    draws: dict[str, Any],
    overlaps: Any,
    parameters: Parameters,
) -> Move:
    """Rows w, v; tokens a, a'; y = c u + sqrt(noise) a is seen, y' = c' v + sqrt(noise') a' is made, and w tells them apart."""
    c, made_of = draws["seen"], draws["made"]
    spread, own = jnp.sqrt(parameters["noise"]), jnp.sqrt(parameters["generator_noise"])
    Q, M, force = overlaps.Q, overlaps.M, parameters["normalisation"]
    seen = c * M[0, 0] + spread * fields[0, 0]  # w . y
    made = made_of * Q[0, 1] + own * fields[0, 1]  # w . y'
    inputs = jnp.stack([jnp.stack([-seen * spread, made * own]), jnp.zeros(2, fields.dtype)])
    rows = jnp.array(
        [[force * (Q[0, 0] - 1), made_of * made], [-made_of * made, force * (Q[1, 1] - 1)]]
    )
    return Move(
        inputs, rows=rows, signals=jnp.stack([jnp.stack([-c * seen]), jnp.zeros(1, fields.dtype)])
    )


@model
def gan(
    rates: Mapping[str, float] | None = None,
    *,
    noise: float = 1.0,
    generator_noise: float = 1.0,
    normalisation: float = 1.0,
    weight_decay: float | Function = 0.0,
) -> Rule:
    """A discriminator w and a generator v of one direction: y = c u + sqrt(noise) a is data, y' = c' v + sqrt(noise') a' is made.

    Parameters
    ----------
    rates : dict of str to float, optional
        Factors of lr for the "discriminator" and the "generator". Defaults to 0.2 and 0.04.
    noise : float, default 1.0
        Variance of the data about their direction u.
    generator_noise : float, default 1.0
        Variance of what is made about the generator's direction v.
    normalisation : float, default 1.0
        Strength of the force that keeps both rows near norm 1.
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Rule
        Rule of two rows (w, v) and one signal (u). It has no risk: follow M and Q.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    With s the normalisation, w <- w + (r_w lr/d) [y (y.w) - y' (y'.w) - s w (abs(w)^2 - 1)] and
    v <- v + (r_v lr/d) [c' (y'.w) w - s v (abs(v)^2 - 1)].
    After Wang, Hu and Lu, "A solvable high-dimensional model of GAN" (2019): perfect recovery, oscillations or mode collapse, by the
    rates and the noise.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.gan()
    >>> start = sgd.start(problem, M=[[0.3], [0.2]], Q=[[1.0, 0.3], [0.3, 1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, alpha=[20.0])
    >>> [round(float(value), 6) for value in path.M[0, 0, :, 0]]
    [1.150415, 0.319625]
    """
    if rates is not None and not isinstance(rates, Mapping):
        raise checks.reject(
            "rates", rates, 'give numbers by group: {"discriminator": 0.2, "generator": 0.04}'
        )
    rates = {"discriminator": 0.2, "generator": 0.04, **(rates or {})}
    stated = {"noise": noise, "generator_noise": generator_noise, "normalisation": normalisation}
    parameters = {name: checks.number(name, value, minimum=0.0) for name, value in stated.items()}
    groups, draws = {"discriminator": 1, "generator": 1}, {"seen": "normal", "made": "normal"}
    return Rule(
        adversarial,
        groups=groups,
        rates=rates,
        tokens=2,
        draws=draws,
        parameters=parameters,
        weight_decay=weight_decay,
    )
