"""Classical rules of one unit with a teacher: Hebb, perceptron, Adatron."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Scalar
from sgdynamics.problems.models.model import model
from sgdynamics.problems.moves import Move
from sgdynamics.problems.rule import Rule

Single = Float[Numeric, " 1"]


def hebb_rule(
    fields: Single, signals: Single, head: Any, noise_draw: Scalar, overlaps: Any
) -> Move:
    """Along the input, by its label, always."""
    return Move(-jnp.sign(signals))


def perceptron_rule(
    fields: Single, signals: Single, head: Any, noise_draw: Scalar, overlaps: Any
) -> Move:
    """The same, where it is wrong."""
    label = jnp.sign(signals)
    return Move(-label * (fields * label < 0))


def adatron_rule(
    fields: Single, signals: Single, head: Any, noise_draw: Scalar, overlaps: Any
) -> Move:
    """By how far it is wrong."""
    return Move(fields * (fields * jnp.sign(signals) < 0))


def wrong(fields: Single, signals: Single, head: Any, noise_draw: Scalar) -> Float[Numeric, ""]:
    """1 where the label is not the teacher's."""
    return jnp.where(fields[0] * signals[0] < 0, 1.0, 0.0).astype(fields.dtype)


RULES = {"hebb": hebb_rule, "perceptron": perceptron_rule, "adatron": adatron_rule}


@model
def perceptron(rule: str = "perceptron", *, weight_decay: float | Function = 0.0) -> Rule:
    """One unit that learns the labels sign(w*.x) by Hebb's rule, the perceptron's or the Adatron's.

    Parameters
    ----------
    rule : str, default 'perceptron'
        "hebb": w moves along y x; "perceptron": only where sign(w.x) is wrong; "adatron": there, by abs(w.x).
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Rule
        Rule of one row and one signal. Its risk is the probability of a wrong label, acos(rho)/pi with rho the cosine of w and w*.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    With th = acos(rho), in t = lr steps/d: Hebb dM = sqrt(2/pi), dQ = 2 sqrt(2/pi) M + lr; perceptron dM = (1 - rho)/sqrt(2 pi),
    dQ = -2 sqrt(Q/(2 pi)) (1 - rho) + lr th/pi; Adatron dM = sqrt(Q) (sin th - rho th)/pi, dQ = (lr - 2) Q (th - rho sin th)/pi. Late
    errors are .39894 alpha^(-1/2), (2/3)^(1/3)/pi alpha^(-1/3) and 3/((3 - lr) lr alpha). See Kinouchi and Caticha (1992), Biehl and
    Schwarze (1992), Anlauf and Biehl (1989).

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.perceptron("adatron")
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), sgd.start(problem, M=[[0.2]], Q=[[1.0]]), alpha=[5.0, 100.0])
    >>> [round(float(value), 8) for value in path.risk[0]]
    [0.19841674, 0.01471771]
    """
    update = RULES[checks.choice("rule", rule, RULES)]
    return Rule(update, groups={"w": 1}, risk=wrong, kinks=(0.0,), weight_decay=weight_decay)
