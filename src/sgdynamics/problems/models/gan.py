"""A solvable generative adversarial network: generator and discriminator of one direction each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters
from sgdynamics.problems.models.model import model
from sgdynamics.problems.moves import LossOverlaps, Move
from sgdynamics.problems.rule import Rule


def adversarial(
    fields: Float[Numeric, "2 2"],
    signals: Float[Numeric, "1 2"],
    head: Float[Numeric, " 2"],
    draws: dict[str, Any],
    overlaps: LossOverlaps,
    parameters: Parameters,
) -> Move:
    """Return the move of discriminator w and generator v by one real and one generated sample.

    ::

        y = c u + sqrt(noise) a                         (real)
        y' = c' v + sqrt(generator_noise) a'            (generated)
        w <- w + rate [y (y.w) - y' (y'.w) - s w (|w|^2 - 1)]
        v <- v + rate [c' (y'.w) w - s v (|v|^2 - 1)]

    The rows are (w, v), the signal is u, and the tokens are a and a'. The normal draws "seen" and
    "made" are c and c', and s is the normalisation.
    """
    c, c_generated = draws["seen"], draws["made"]
    sigma = jnp.sqrt(parameters["noise"])
    sigma_generated = jnp.sqrt(parameters["generator_noise"])
    Q, M, s = overlaps.Q, overlaps.M, parameters["normalisation"]
    w_y = c * M[0, 0] + sigma * fields[0, 0]
    w_y_generated = c_generated * Q[0, 1] + sigma_generated * fields[0, 1]
    # A move has the opposite sign of the increment; only w moves along inputs and signal.
    w_inputs = jnp.stack([-w_y * sigma, w_y_generated * sigma_generated])
    inputs = jnp.stack([w_inputs, jnp.zeros(2, fields.dtype)])
    rows = jnp.array(
        [
            [s * (Q[0, 0] - 1), c_generated * w_y_generated],
            [-c_generated * w_y_generated, s * (Q[1, 1] - 1)],
        ]
    )
    signals_of_rows = jnp.stack([jnp.stack([-c * w_y]), jnp.zeros(1, fields.dtype)])
    return Move(inputs, rows=rows, signals=signals_of_rows)


@model
def gan(
    rates: Mapping[str, float] | None = None,
    *,
    noise: float = 1.0,
    generator_noise: float = 1.0,
    normalisation: float = 1.0,
    weight_decay: float | Function = 0.0,
) -> Rule:
    """A discriminator w and a generator v that learn one direction u together.

    ::

        real samples       y = c u + sqrt(noise) a
        generated samples  y' = c' v + sqrt(generator_noise) a'

    All of c, c', a and a' are standard normal.

    Parameters
    ----------
    rates : dict of str to float, optional
        Factors of lr for the "discriminator" and the "generator". Defaults to 0.2 and 0.04.
    noise : float, default 1.0
        Variance of the real samples about their direction u.
    generator_noise : float, default 1.0
        Variance of the generated samples about their direction v.
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
    With s the normalisation and rates r_w and r_v, ::

        w <- w + (r_w lr/d) [y (y.w) - y' (y'.w) - s w (abs(w)^2 - 1)]
        v <- v + (r_v lr/d) [c' (y'.w) w - s v (abs(v)^2 - 1)]

    Rates and noise decide between perfect recovery, oscillations and mode collapse.
    Source: Wang, Hu and Lu, "A solvable high-dimensional model of GAN" (2019).

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
    coefficients = {
        "noise": noise,
        "generator_noise": generator_noise,
        "normalisation": normalisation,
    }
    return Rule(
        adversarial,
        groups={"discriminator": 1, "generator": 1},
        rates=rates,
        tokens=2,
        draws={"seen": "normal", "made": "normal"},
        parameters={
            name: checks.number(name, coefficient, minimum=0.0)
            for name, coefficient in coefficients.items()
        },
        weight_decay=weight_decay,
    )
