"""Classical rules of one unit with a teacher: Hebb, perceptron, Adatron."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Scalar
from sgdynamics.problems.models.model import model
from sgdynamics.problems.moves import LossOverlaps, Move
from sgdynamics.problems.rule import Rule

Single = Float[Numeric, " 1"]


def hebb_rule(
    fields: Single, signals: Single, head: Single, noise_draw: Scalar, overlaps: LossOverlaps
) -> Move:
    """Hebb's rule: w moves along y x, with the label y = sign(w*.x)."""
    return Move(-jnp.sign(signals))


def perceptron_rule(
    fields: Single, signals: Single, head: Single, noise_draw: Scalar, overlaps: LossOverlaps
) -> Move:
    """The perceptron's rule: w moves along y x if sign(w.x) differs from y."""
    label = jnp.sign(signals)
    return Move(-label * (fields * label < 0))


def adatron_rule(
    fields: Single, signals: Single, head: Single, noise_draw: Scalar, overlaps: LossOverlaps
) -> Move:
    """The Adatron's rule: w moves along -(w.x) x if sign(w.x) differs from y."""
    return Move(fields * (fields * jnp.sign(signals) < 0))


def label_error(
    fields: Single, signals: Single, head: Single, noise_draw: Scalar
) -> Float[Numeric, ""]:
    """1 if the label sign(w.x) differs from the teacher's, and 0 otherwise."""
    return jnp.where(fields[0] * signals[0] < 0, 1.0, 0.0).astype(fields.dtype)


RULES = {"hebb": hebb_rule, "perceptron": perceptron_rule, "adatron": adatron_rule}


@model
def perceptron(rule: str = "perceptron", *, weight_decay: float | Function = 0.0) -> Rule:
    """One unit that learns labels sign(w*.x) by the rule of Hebb, the perceptron or the Adatron.

    Parameters
    ----------
    rule : str, default 'perceptron'
        "hebb": w moves along y x for every sample. "perceptron": it does so only if sign(w.x) is
        wrong. "adatron": the same, in proportion to abs(w.x).
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Rule
        Rule of one row and one signal. Its risk is the probability of a wrong label, acos(rho)/pi,
        where rho is the cosine of the angle between w and w*.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    With th = acos(rho), in the time t = lr steps/d, ::

        Hebb:        dM/dt = sqrt(2/pi)
                     dQ/dt = 2 sqrt(2/pi) M + lr
        perceptron:  dM/dt = (1 - rho)/sqrt(2 pi)
                     dQ/dt = -2 sqrt(Q/(2 pi)) (1 - rho) + lr th/pi
        Adatron:     dM/dt = sqrt(Q) (sin th - rho th)/pi
                     dQ/dt = (lr - 2) Q (th - rho sin th)/pi

    The errors at late times are .39894 alpha^(-1/2), (2/3)^(1/3)/pi alpha^(-1/3) and
    3/((3 - lr) lr alpha). Sources: Kinouchi and Caticha (1992), Biehl and Schwarze (1992), Anlauf
    and Biehl (1989).

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.perceptron("adatron")
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, alpha=[5.0, 100.0])
    >>> [round(float(value), 8) for value in path.risk[0]]
    [0.19841674, 0.01471771]
    """
    update = RULES[checks.choice("rule", rule, RULES)]
    return Rule(update, groups={"w": 1}, risk=label_error, kinks=(0.0,), weight_decay=weight_decay)
