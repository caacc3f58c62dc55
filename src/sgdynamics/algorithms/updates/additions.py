"""Extensions of another update: weight decay, gradient noise, and thermal noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import Gradient, head_columns
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.sample_memory import inner_rule
from sgdynamics.algorithms.updates.update import MAKERS, Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, RealArray, Scalar, State
from sgdynamics.base.controls import Schedule, scalar_or_schedule


def plain_step(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar
) -> Increments:
    """Return the plain step -(lr/D) G."""
    return {"weights": -lr / D * gradient(state["weights"])}


NORMALS = r"N,\quad N_{i j} \sim \mathcal{N}(0, 1)"
PLAIN = Update(
    Law("plain", plain_step, linear=True, linear_in_rows=True, equations=(step_equation("G"),))
)


def validate_inner(of: Update | Mapping[str, Any] | None, argument: str = "of") -> Update:
    """Return the update that `of` stands for: an update, its record, or None for plain steps."""
    if of is None:
        return PLAIN
    if isinstance(of, Mapping) and of.get("kind") in MAKERS:
        # A sweep over a hyperparameter of the inner update passes its record.
        return MAKERS[of["kind"]](**{name: value for name, value in of.items() if name != "kind"})
    if not isinstance(of, Update):
        raise checks.reject(
            argument,
            of,
            "Pass another update, such as sgd.updates.momentum(0.9), or omit it for plain steps.",
        )
    if of.law.delays:
        fix = "delayed gradients have no additions. Set weight_decay in the problem."
        raise checks.reject("of", of, fix)
    return of


@dataclass(frozen=True)
class _DecayStep:
    """The step of another update with weight decay."""

    law: Law
    decoupled: bool

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        rate: Scalar,
        head: Scalar | None = None,
        of: Parameters | None = None,
    ) -> Increments:
        iterate = self.law.iterate
        decay = _decay_rates(state[iterate], gradient, rate, head)
        inner = of or {}
        if not self.decoupled:
            return self.law.step(state, gradient.with_decay(decay), lr, D, number, **inner)
        if iterate != "weights":
            # The weights are an average of the iterate, and see its decay: the decay is part of
            # the plain step of the iterate.
            pulled = gradient.with_pull(decay * state[iterate])
            return self.law.step(state, pulled, lr, D, number, **inner)
        increments = dict(self.law.step(state, gradient, lr, D, number, **inner))
        pull = decay * state[iterate]
        step = gradient.plain_step(pull) if self.law.explicit_head_rate else -lr / D * pull
        increments[iterate] = increments[iterate] + step
        return increments


def _decay_rates(
    rows: Float[Numeric, "p columns"], gradient: Gradient, rate: Scalar, head: Scalar | None
) -> RealArray | Scalar:
    """Return the decay rates of the columns; that of a trained head, the last one, may differ."""
    if head is None or not gradient.trained:
        return rate
    columns = head_columns(rows.shape[0], gradient.head.shape[0])
    return jnp.full(rows.shape[-1], rate, rows.dtype).at[-columns:].set(head)


@maker
def weight_decay(
    rate: float, of: Update | None = None, decoupled: bool = True, head: float | None = None
) -> Update:
    """Weight decay in every step, in addition to that of the problem.

    ::

        W <- W - (lr/D) rate W,     a <- a - (head_rate lr/D) head a

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
    inner = validate_inner(of)
    if inner.law.vectors and not decoupled:
        fix = "its parts treat decay in different ways. Use decoupled=True, or decay in each part."
        raise checks.reject("decoupled", decoupled, fix)
    step = _DecayStep(inner.law, checks.flag("decoupled", decoupled))
    law = replace(
        inner.law,
        name="weight_decay",
        step=step,
        on_sample=inner_rule(inner.law),
        equations=_decay_equations(inner.law, decoupled),
        image="",
        equivalent_rate="",
    )
    if not decoupled and law.bends:
        # The image of the decay under clipping is not a polynomial of the label noise.
        law = replace(law, jumps=False)
    elif not decoupled and law.jumps and not law.rereads:
        reason = (
            "where the gradient of the data vanishes, the decay inside of it determines the "
            "direction of a step whose length does not vanish. The mean step has no limit. Use "
            "decoupled=True"
        )
        law = replace(law, no_limit=reason)
    hyperparameters: dict[str, Any] = {"rate": scalar_or_schedule("rate", rate)}
    if of is not None:
        hyperparameters["of"] = inner
    if head is not None:
        hyperparameters["head"] = scalar_or_schedule("head", head)
    if of is not None and law.initial_values:
        raise checks.reject(
            "of",
            of,
            "an update with an initial value of its state is not supported. Set weight_decay in "
            "the problem.",
        )
    return Update(law, hyperparameters, () if decoupled else (("decoupled", False),))


def _decay_equations(law: Law, decoupled: bool) -> tuple[str, ...]:
    """Return the step of an update with weight decay as LaTeX."""
    if not decoupled:
        return (r"G \leftarrow G + \omega W", *law.equations)
    if law.iterate == "weights":
        return (step_equation(r"\omega W"), *law.equations)
    # The weights are an average of the iterate X, whose plain step contains the decay.
    before, after = step_equation("", "X"), r" + \omega X\right)"
    return tuple(
        f"{before}\\left({line.removeprefix(before)}{after}" if line.startswith(before) else line
        for line in law.equations
    )


@dataclass(frozen=True)
class _NoiseStep:
    """The step of another update with Gaussian noise on the gradient."""

    law: Law

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        sigma: Scalar,
        of: Parameters | None = None,
    ) -> Increments:
        increments = dict(self.law.step(state, gradient, lr, D, number, **(of or {})))
        increments["weights"] = increments["weights"] - lr / D * sigma * gradient.noise()
        return increments


@dataclass(frozen=True)
class _ThermalStep:
    """The step of another update with thermal noise on the rows."""

    law: Law

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        temperature: Scalar,
        of: Parameters | None = None,
    ) -> Increments:
        increments = dict(self.law.step(state, gradient, lr, D, number, **(of or {})))
        iterate = self.law.iterate
        kick = jnp.sqrt(2 * temperature * lr) / D * gradient.noise()
        increments[iterate] = increments[iterate] + kick
        return increments


def thermal(temperature: Schedule | float, of: Update | None) -> Update:
    """Return an update with thermal noise sqrt(2 T lr)/D N(0, I) on the rows after every step.

    This is one-pass Langevin dynamics.
    """
    inner = PLAIN if of is None else of
    has_own_draws = inner.law.coordinatewise or inner.law.noise or inner.law.delays
    if has_own_draws or inner.law.iterate != "weights":
        raise checks.reject(
            "temperature",
            temperature,
            "thermal noise is only supported for plain steps, and for updates of the weights that "
            f"commute with rotations and have no noise, which {inner} is not. Use another update.",
        )
    kick = (
        r"W \leftarrow W + \frac{\sqrt{2 T \mathrm{lr}}}{D} N,\quad N_{i j} \sim \mathcal{N}(0, 1)"
    )
    law = replace(
        inner.law,
        step=_ThermalStep(inner.law),
        noise=True,
        on_sample=inner_rule(inner.law),
        equations=(*inner.law.equations, kick),
        image="" if inner is not PLAIN else r"\frac{h}{B}",
        equivalent_rate="",
    )
    hyperparameters: dict[str, Any] = {"temperature": temperature}
    if of is not None:
        hyperparameters["of"] = inner
    return Update(law, hyperparameters)


@maker
def gradient_noise(sigma: float, of: Update | None = None) -> Update:
    """Gaussian noise on every coordinate of the gradient.

    DP-SGD adds it to the mean of clipped gradients. ::

        W <- W + increment of the update - (lr/D) sigma N(0, I)

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise in each coordinate, 0 or more.
    of : Update, optional
        Update without memory to which the noise is added, such as ``sgd.updates.clipped(1.0,
        over="sample")``. Defaults to plain steps.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If sigma is negative, or ``of`` has a memory or noise.

    Notes
    -----
    A trained head has no noise. DP-SGD with noise multiplier z clips the gradient of each sample to
    threshold sqrt(D) and has sigma = z threshold sqrt(D)/batch. Source: Abadi et al. 2016,
    Algorithm 1.

    Examples
    --------
    >>> sgd.updates.gradient_noise(0.5, of=sgd.updates.clipped(1.0, over="sample"))
    gradient_noise(sigma=0.5, of=clipped(threshold=1, over='sample'))
    """
    inner = validate_inner(of)
    if inner.law.memory != "none" or inner.law.coordinatewise:
        raise checks.reject(
            "of",
            of,
            "noise is only supported for updates without a memory that commute with rotations. Use "
            "clipped, normalised, or another such update.",
        )
    if inner.law.noise:
        raise checks.reject(
            "of",
            of,
            "it already has noise, and its draw would be repeated. Use one sigma for both.",
        )
    law = replace(
        inner.law,
        name="gradient_noise",
        step=_NoiseStep(inner.law),
        noise=True,
        on_sample=inner_rule(inner.law),
        equations=(
            *inner.law.equations,
            step_equation(f"s {NORMALS}"),
        ),
        image="",
        equivalent_rate="",
    )
    hyperparameters: dict[str, Any] = {"sigma": scalar_or_schedule("sigma", sigma)}
    if of is not None:
        hyperparameters["of"] = inner
    return Update(law, hyperparameters)
