"""Functions of single samples of a data set, and the values that an update stores for each sample.

A gradient on a data set is X^T g/n. Plain steps have g = s h/b, with h = dloss/dfields, the
selection s of the samples and the fraction b of the batch. An update may replace g by any function
of the fields of a sample and of values stored for it: the table of SAGA, the dual variables of
PDHG, the last message of message passing. Data enter through X W and X^T g alone, so that
conditioning (`fixed_data.conditioning`) gives the exact law and the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sgdynamics.algorithms.updates.law import Law
from sgdynamics.base import checks
from sgdynamics.base.arrays import BoolScalar, IntScalar, Numeric, Parameters, Scalar


class Sample(NamedTuple):
    """One sample, the argument of ``on_sample``.

    Attributes
    ----------
    fields : array, (p,) or (p, tokens)
        Fields of the sample at the point of the gradient, as the loss receives them.
    slope : callable
        Function of the fields that returns dloss/dfields of this sample.
    selected : bool
        Whether the sample is in the batch.
    weight : float
        Weight of the sample in the gradient of plain steps: 1/b in the batch, otherwise 0.
    memory : dict
        Stored values of the sample by name, with the shape of the fields.
    scalars : dict
        Scalars of the update by name.
    number : int
        Number of the step.
    """

    fields: Numeric
    slope: Callable[[Numeric], Numeric]
    selected: BoolScalar
    weight: Scalar
    memory: dict[str, Numeric]
    scalars: Mapping[str, Numeric]
    number: IntScalar


class Outcome(NamedTuple):
    """Result of ``on_sample`` for one sample.

    Attributes
    ----------
    g : array
        Contribution g of the sample to the gradient X^T g/n, with the shape of the fields.
    memory : dict
        New stored values of the sample.
    means : dict
        Numbers whose means over all samples the step reads.
    """

    g: Numeric
    memory: dict[str, Numeric]
    means: dict[str, Numeric]


def apply_rule(law: Law, sample: Sample, hyperparameters: Parameters) -> Outcome:
    """Return the outcome of the rule of an update for one sample."""
    assert law.on_sample is not None
    outcome = law.on_sample(sample, **hyperparameters)
    g, memory, *means = outcome
    shape, dtype = sample.fields.shape, sample.fields.dtype
    return Outcome(
        jnp.broadcast_to(jnp.asarray(g, dtype), shape),
        {name: jnp.broadcast_to(jnp.asarray(memory[name], dtype), shape) for name in law.samples},
        {name: jnp.asarray(means[0][name], dtype) for name in law.means},
    )


@dataclass(frozen=True)
class _InnerRule:
    """The rule of an update inside of another one, whose hyperparameters are those of `of`."""

    rule: Callable[..., Any]

    def __call__(
        self, sample: Sample, *, of: Parameters | None = None, **hyperparameters: object
    ) -> Any:
        return self.rule(sample, **(of or {}))


def inner_rule(law: Law) -> Callable[..., Any] | None:
    """Return the rule of a law for an update that wraps it; None if there is none."""
    return None if law.on_sample is None else _InnerRule(law.on_sample)


def require_no_rule(update: Any, algorithm: str) -> None:
    """Raise ValueError for an update of single samples under an algorithm that has none."""
    if update is None or update.law.on_sample is None:
        return
    fix = (
        f"it acts on single samples of a data set, which {algorithm} does not store. Use "
        "sgd.GradientDescent, sgd.MultiPassSGD or sgd.PersistentSGD"
    )
    raise checks.reject("update", update, fix)


def try_rule(law: Law, hyperparameters: Mapping[str, Any]) -> None:
    """Raise ValueError if a rule fails for a trial sample, or returns other names or shapes."""
    width = 2
    zeros = {name: jnp.zeros(width) for name in law.samples}
    scalars = {name: jnp.asarray(1.3) for name in law.scalars}

    def trial(fields: Numeric, memory: dict[str, Numeric], weight: Numeric) -> Any:
        sample = Sample(fields, jnp.tanh, weight > 0, weight, memory, scalars, jnp.asarray(3))
        assert law.on_sample is not None
        return law.on_sample(sample, **hyperparameters)

    fix = (
        "Define on_sample(sample, ...) that returns g and a dictionary of the stored values, both "
        "with the shape of sample.fields, and a dictionary of means if there are any."
    )
    samples = 3
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * samples), zeros)
    try:
        outcome = jax.eval_shape(
            jax.vmap(trial), jnp.ones((samples, width)), stacked, jnp.ones(samples)
        )
    except Exception as error:
        reason = f"calling it failed with: {checks.reason(error)}. {fix}"
        raise checks.reject("on_sample", law.on_sample, reason) from error
    is_tuple = isinstance(outcome, tuple) and len(outcome) == (3 if law.means else 2)
    if not is_tuple or getattr(outcome[0], "shape", None) != (samples, width):
        raise checks.reject("on_sample", law.on_sample, fix)
    expected = [dict.fromkeys(law.samples, (samples, width)), dict.fromkeys(law.means, (samples,))]
    for values, shapes in zip(outcome[1:], expected, strict=False):
        names = isinstance(values, dict) and set(values) == set(shapes)
        if not names or any(values[name].shape != shape for name, shape in shapes.items()):
            raise checks.reject("on_sample", law.on_sample, fix)
