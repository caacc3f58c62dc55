"""Additions to another update: weight decay, and noise on the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from sgdynamics.algorithms.updates.update import MAKERS, GradientFunction, Law, Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Parameters, Scalar, State
from sgdynamics.base.controls import Schedule, scalar_or_schedule


def _plain(
    state: State, gradient: GradientFunction, lr: Scalar, D: Scalar, number: Scalar
) -> dict[str, Any]:
    return {"weights": -lr / D * gradient(state["weights"])}


PLAIN = Update(Law("plain", _plain, linear=True, lengthless=True))


def _inner(of: Any) -> Update:
    if of is None:
        return PLAIN
    if (
        isinstance(of, Mapping) and of.get("kind") in MAKERS
    ):  # a record, of which a sweep varies a part
        return MAKERS[of["kind"]](**{name: value for name, value in of.items() if name != "kind"})
    if not isinstance(of, Update):
        raise checks.reject(
            "of",
            of,
            "give another update, such as sgd.updates.momentum(0.9), or leave it out for plain steps",
        )
    return of


@dataclass(frozen=True)
class _DecayStep:
    law: Law
    decoupled: bool

    def __call__(
        self,
        state: State,
        gradient: GradientFunction,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        rate: Scalar,
        head: Scalar | None = None,
        of: Parameters | None = None,
    ) -> dict[str, Any]:
        moved = self.law.moved
        decay = _decay_rates(state[moved], gradient, rate, head)
        if not self.decoupled:
            return self.law.step(state, gradient.with_decay(decay), lr, D, number, **(of or {}))
        if moved != "weights":  # the weights are an average of it, after its decay
            pulled = gradient.with_pull(decay * state[moved])
            return self.law.step(state, pulled, lr, D, number, **(of or {}))
        increments = dict(self.law.step(state, gradient, lr, D, number, **(of or {})))
        pull = decay * state[moved]
        step = gradient.plain_step(pull) if self.law.explicit_head_rate else -lr / D * pull
        increments[moved] = increments[moved] + step
        return increments


def _decay_rates(rows: Any, gradient: Any, rate: Scalar, head: Scalar | None) -> Any:
    """Decay rates of the columns; that of a trained head, the last column, may differ."""
    if head is None or not gradient.trained:
        return rate
    return jnp.full(rows.shape[-1], rate, rows.dtype).at[-1].set(head)


@maker
def weight_decay(
    rate: float, of: Update | None = None, decoupled: bool = True, head: float | None = None
) -> Update:
    """Weight decay of the algorithm, in addition to that of the problem.

    ::

        W <- W - (lr/D) rate W,     a <- a - (head_rate lr/D) head a     in every step

    Parameters
    ----------
    rate : float
        Decay rate of the rows, 0 or more.
    of : Update, optional
        Update to which the decay is added. Defaults to plain steps.
    decoupled : bool, default True
        Whether the decay is separate from the update's step, as in AdamW. With False, ``rate W`` is
        part of every gradient, as in PyTorch's SGD.
    head : float, optional
        Decay rate of a trained head, 0 or more. Defaults to ``rate``.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If a rate is negative, or ``of`` is not an update.

    Notes
    -----
    With plain steps and ``head=None`` both forms equal the weight decay of a problem.
    Source: Loshchilov and Hutter 2019.

    Examples
    --------
    >>> sgd.updates.weight_decay(0.1, of=sgd.updates.momentum(0.9))
    weight_decay(rate=0.1, of=momentum(beta=0.9))
    """
    inner = _inner(of)
    law = replace(
        inner.law,
        name="weight_decay",
        step=_DecayStep(inner.law, checks.flag("decoupled", decoupled)),
    )
    if not decoupled and law.bends:
        law = replace(
            law, jumps=False
        )  # what a clipped step does to the decay is no polynomial of the label noise
    elif not decoupled and law.jumps and not law.rereads:
        why = "where the data's gradient vanishes, decay inside of it is all that is left of a step whose length does not vanish"
        law = replace(law, no_limit=f"{why}: its mean has no limit; take decoupled=True")
    hyperparameters = {"rate": scalar_or_schedule("rate", rate)} | (
        {} if of is None else {"of": inner}
    )
    if head is not None:
        hyperparameters["head"] = scalar_or_schedule("head", head)
    if of is not None and law.first:
        raise checks.reject(
            "of", of, "its start is a number of its own: give weight decay to the problem instead"
        )
    return Update(law, hyperparameters, () if decoupled else (("decoupled", False),))


@dataclass(frozen=True)
class _NoiseStep:
    law: Law

    def __call__(
        self,
        state: State,
        gradient: GradientFunction,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        sigma: Scalar,
        of: Parameters | None = None,
    ) -> dict[str, Any]:
        increments = dict(self.law.step(state, gradient, lr, D, number, **(of or {})))
        increments["weights"] = increments["weights"] - lr / D * sigma * gradient.noise()
        return increments


@dataclass(frozen=True)
class _ThermalStep:
    law: Law

    def __call__(
        self,
        state: State,
        gradient: GradientFunction,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        temperature: Scalar,
        of: Parameters | None = None,
    ) -> dict[str, Any]:
        increments = dict(self.law.step(state, gradient, lr, D, number, **(of or {})))
        increments[self.law.moved] = (
            increments[self.law.moved] + jnp.sqrt(2 * temperature * lr) / D * gradient.noise()
        )
        return increments


def thermal(temperature: Schedule | float, of: Update | None) -> Update:
    """An update whose every step ends with the kicks of a temperature on the rows, sqrt(2 T lr)/D N(0, I): one-pass Langevin."""
    inner = PLAIN if of is None else of
    if inner.law.coordinatewise or inner.law.noise or inner.law.moved != "weights":
        fix = "its kicks are added to plain steps, and to updates of the weights that commute with rotations and have no noise of their own"
        raise checks.reject("temperature", temperature, f"{fix}: not to {inner}")
    law = replace(inner.law, step=_ThermalStep(inner.law), noise=True)
    return Update(law, {"temperature": temperature} | ({} if of is None else {"of": inner}))


@maker
def gradient_noise(sigma: float, of: Update | None = None) -> Update:
    """Gaussian noise on every coordinate of the gradient: after clipping each sample's, this is DP-SGD.

    ::

        W <- W - (lr/D) (image of G + sigma N(0, I))

    Parameters
    ----------
    sigma : float
        The noise's standard deviation in a coordinate, 0 or more.
    of : Update, optional
        An update without memory whose steps it is added to, such as ``sgd.updates.clipped(1.0,
        over="sample")``; defaults to plain steps.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If sigma is negative, or ``of`` keeps a memory or has noise already.

    Notes
    -----
    A trained head has no noise. DP-SGD with noise multiplier z clips each sample to threshold sqrt(D) and has
    sigma = z threshold sqrt(D)/batch. Source: Abadi et al. 2016, Algorithm 1.

    Examples
    --------
    >>> sgd.updates.gradient_noise(0.5, of=sgd.updates.clipped(1.0, over="sample"))
    gradient_noise(sigma=0.5, of=clipped(threshold=1, over='sample'))
    """
    inner = _inner(of)
    if inner.law.memory != "none" or inner.law.coordinatewise:
        raise checks.reject(
            "of",
            of,
            "noise is added to updates without a memory that commute with rotations: clipped, normalised, ...",
        )
    if inner.law.noise:
        raise checks.reject(
            "of",
            of,
            "it has noise already, and a second would be the same draw: give one sigma for both",
        )
    law = replace(inner.law, name="gradient_noise", step=_NoiseStep(inner.law), noise=True)
    return Update(
        law, {"sigma": scalar_or_schedule("sigma", sigma)} | ({} if of is None else {"of": inner})
    )
