"""Laws of binary labels, +1 or -1, given the noiseless output g of a teacher or target.

A label is a function of g and of one standard normal, so that simulations draw it like label noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters

# The name of the number that each law takes.
LABEL_LAWS = {"sign": "flip", "probit": "noise", "logistic": "slope"}


@dataclass(frozen=True)
class LabelLaw:
    """A law of binary labels: ``sgd.labels.sign``, ``.probit`` or ``.logistic``.

    Parameters
    ----------
    law : str
        "sign", "probit" or "logistic".
    value : float
        The number of the law: the flip probability, the variance of the noise, or the slope.

    Raises
    ------
    ValueError
        If the law is unknown or its number is out of range.

    Examples
    --------
    >>> sgd.labels.sign(flip=0.1).describe()
    {'law': 'sign', 'flip': 0.1}
    """

    law: str
    value: float

    def __post_init__(self) -> None:
        checks.choice("law", self.law, tuple(LABEL_LAWS))
        name = LABEL_LAWS[self.law]
        if self.law == "sign":
            value = checks.number(name, self.value, 0.0)
            if value >= 0.5:
                fix = "labels are flipped with a probability below 1/2. Give 0 <= flip < 0.5."
                raise checks.reject(name, value, fix)
        else:
            value = checks.number(name, self.value, above=0.0)
        object.__setattr__(self, "value", value)

    def describe(self) -> dict[str, Any]:
        """Return plain values, from which ``MultiIndex(labels=...)`` makes the law again.

        Returns
        -------
        dict
            "law" and its number by name.
        """
        return {"law": self.law, LABEL_LAWS[self.law]: self.value}


def label_law(value: object) -> LabelLaw | None:
    """Return the law that the argument ``labels`` states, also as a record; None if it is None."""
    if value is None or isinstance(value, LabelLaw):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("law"), str):
        name = LABEL_LAWS[checks.choice("labels law", value["law"], tuple(LABEL_LAWS))]
        checks.reject_unknown("labels", value, ("law", name))
        if name not in value:
            raise checks.reject("labels", value, f"the law {value['law']!r} needs {name}=")
        return LabelLaw(value["law"], value[name])
    fix = "give sgd.labels.sign(flip=0.1), .probit(noise), .logistic(slope), or None"
    raise checks.reject("labels", value, fix)


def probability(
    law: str, value: Float[Numeric, ""], output: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """Probability of the label +1, given the output g; for the sign law g = 0 counts as -1."""
    if law == "sign":
        return jnp.where(output > 0, 1.0 - value, value)
    if law == "probit":
        return jax.scipy.special.ndtr(output / jnp.sqrt(value))
    return jax.nn.sigmoid(value * output)


def draw_label(
    law: str,
    value: Float[Numeric, ""],
    output: Float[Numeric, "*s"],
    normal: Float[Numeric, "*s"],
) -> Float[Numeric, "*s"]:
    """The label that a standard normal stands for, given the output g."""
    if law == "sign":
        is_positive = (output > 0) != (jax.scipy.special.ndtr(normal) < value)
    elif law == "probit":
        is_positive = output + jnp.sqrt(value) * normal > 0
    else:
        # Phi(normal) < sigmoid(slope g), compared as logits
        log_odds = jax.scipy.special.log_ndtr(normal) - jax.scipy.special.log_ndtr(-normal)
        is_positive = log_odds < value * output
    unit = jnp.ones_like(output)
    return jnp.where(is_positive, unit, -unit)


def sign_changes(function: Callable[[np.ndarray], np.ndarray]) -> tuple[float, ...]:
    """Return the points x, abs(x) < 10, at which a function of one number crosses 0.

    A law of labels with jumps has them there.
    """
    # the irrational shift keeps zeros, which are rarely irrational, off the grid
    x = np.linspace(-10.0, 10.0, 2001) + 1e-3 * np.sqrt(2.0)
    is_positive = function(x) > 0
    changes = np.flatnonzero(is_positive[1:] != is_positive[:-1])
    low, high = x[changes], x[changes + 1]
    for _ in range(60):
        middle = (low + high) / 2
        same = (function(middle) > 0) == is_positive[changes]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    zeros = (low + high) / 2
    return tuple(float(zero) if abs(zero) > 1e-12 else 0.0 for zero in zeros)


@dataclass(frozen=True)
class BinaryProbabilities:
    """Probabilities of the labels -1 and +1 as a function of (signals, parameters).

    Attributes
    ----------
    output : callable
        The output g as a function of (signals, parameters).
    law : str
        The law of the labels; its number is ``parameters["label_value"]``.
    """

    output: Function
    law: str

    def __call__(
        self, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, " outcomes"]:
        output = self.output(signals, parameters)
        positive = probability(self.law, parameters["label_value"], output)
        # 1 - p loses its digits for p near 1; the laws are symmetric
        negative = probability(self.law, parameters["label_value"], -output)
        if self.law == "sign":
            negative = 1.0 - positive
        return jnp.stack([negative, positive])
