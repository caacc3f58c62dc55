"""Updates that divide the step by the size of the gradient, as a whole or per coordinate.

Coordinatewise updates do not commute with rotations, and so have no exact chain. They have a limit
if weights and signals spread over all coordinates: each coordinate of the gradient is then
Gaussian, and ``gradient.squares`` and ``gradient.sign`` are the means for a Gaussian coordinate.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import is_scheduled, scalar_or_schedule

# The average of squares of the coordinates, and the step divided by its root.
MEAN_SQUARES = r"S \leftarrow \left(1 - \frac{c}{D}\right) S + \frac{c}{D} G^{\circ 2}"
ROOT_STEP = r"\frac{G}{\sqrt{S} + \varepsilon}"

# Properties that the coordinatewise updates have in common.
COORDINATEWISE: dict[str, Any] = {"coordinatewise": True}


def _adagrad_norm(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    start: Scalar,
) -> Increments:
    G = gradient(state["weights"])
    change = jnp.sum(G**2) / D**2
    return {"weights": -lr / D * G / jnp.sqrt(state["sum"] + change), "sum": change}


@maker
def adagrad_norm(start: float) -> Update:
    """AdaGrad with one step size for the whole gradient.

    ::

        b^2 <- b^2 + |(G, g)|^2,     W <- W - lr G/b,     from b^2 = D^2 start

    Parameters
    ----------
    start : float
        Initial value of b^2/D^2, above 0. With an initial b smaller than order D, the first steps
        are too long for a limit.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If start is not above 0.

    Notes
    -----
    ``result.update_scalars.sel(update_scalar="sum")`` is b^2/D^2. Source: Ward, Wu and Bottou 2019.

    Examples
    --------
    >>> sgd.updates.adagrad_norm(0.1)
    adagrad_norm(start=0.1)
    """
    law = Law(
        "adagrad_norm",
        _adagrad_norm,
        scalars=("sum",),
        initial_values=(("sum", "start"),),
        memory="slow",
        linear=True,
        equations=(
            r"b^2 \leftarrow b^2 + \frac{\left|G\right|^2}{D^2}",
            step_equation(r"\frac{G}{\sqrt{b^2}}"),
            r"b^2 = s_0 \text{ at the start}",
        ),
    )
    return Update(law, {"start": checks.number("start", start, above=0.0)})


def _sign(state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar) -> Increments:
    return {"weights": -lr / D * gradient.sign(gradient(state["weights"]))}


@maker
def sign(axes: bool = False) -> Update:
    """Sign SGD: every coordinate of every row moves by lr/D against the sign of its gradient.

    Parameters
    ----------
    axes : bool, default False
        Whether the signals are coordinate axes, so that the teacher has few coordinates, instead of
        directions that spread over all coordinates. The ODE is then known for linear students.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Notes
    -----
    The update acts coordinatewise, so it has an ODE and direct simulations but no exact chain. Each
    entry of a trained head or top moves by head_rate lr/D against its sign. Source: Bernstein et
    al. 2018.

    Examples
    --------
    >>> sgd.updates.sign()
    sign()
    """
    equations = (step_equation(r"\operatorname{sgn}\left(G\right)"),)
    axes = checks.flag("axes", axes)
    law = Law("sign", _sign, jumps=True, equations=equations, axes=axes, **COORDINATEWISE)
    return Update(law, options=_axes_option(axes))


def _axes_option(axes: bool) -> tuple[tuple[str, bool], ...]:
    """The option of an update whose signals are axes; its default is not stated."""
    return (("axes", True),) if axes else ()


def _slow_adam(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
    eps: Scalar,
    weight_decay: Scalar,
    velocity_memory: Scalar,
) -> Increments:
    W, steps = state["weights"], D * state["age"] + 1
    G = gradient(W)
    changes, corrected = {}, {}
    averages = (("velocity", velocity_memory, G), ("squares", memory, gradient.squares(G)))
    for name, c, value in averages:
        rate = c / D
        changes[name] = rate * (value - state[name])
        # 1 - (1 - c/D)^n without cancellation
        bias = -jnp.expm1(steps * jnp.log1p(-jnp.minimum(rate, 1.0)))
        corrected[name] = (state[name] + changes[name]) / bias
    step = corrected["velocity"] / (jnp.sqrt(corrected["squares"]) + eps)
    return {"weights": -lr / D * (step + weight_decay * W), "age": 1 / D} | changes


def _adam(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
    eps: Scalar,
    weight_decay: Scalar,
    beta: Scalar,
) -> Increments:
    W, rate, steps = state["weights"], memory / D, D * state["age"] + 1
    G = gradient(W)
    # The state contains V^ = V/(1 - beta^n), corrected for the start at V = 0, after n steps:
    # V^_n = V^_(n-1) + (1 - beta)/(1 - beta^n) (G - V^_(n-1)).
    change = (1 - beta) / (1 - beta**steps) * (G - state["velocity"])
    squares_change = rate * (gradient.squares(G) - state["squares"])
    # 1 - (1 - c/D)^n without cancellation
    bias = -jnp.expm1(steps * jnp.log1p(-jnp.minimum(rate, 1.0)))
    root = jnp.sqrt((state["squares"] + squares_change) / bias)
    step = (state["velocity"] + change) / (root + eps)
    return {
        "weights": -lr / D * (step + weight_decay * W),
        "velocity": change,
        "squares": squares_change,
        "age": 1 / D,
    }


@maker
def adam(
    memory: float,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    beta: float = 0.9,
    axes: bool = False,
    velocity_memory: float | None = None,
) -> Update:
    """Adam, and with weight decay AdamW.

    ::

        V <- beta V + (1 - beta) G,     S <- (1 - c/D) S + (c/D) G^2 in each coordinate,
        W <- W - (lr/D) (V^/(sqrt(S^) + eps) + wd W)

    Parameters
    ----------
    memory : float
        Constant c, above 0 and at most D, with 1 - beta2 = c/D.
    eps : float, default 1e-08
        Constant added to the square root, at least 0.
    weight_decay : float, default 0.0
        Decoupled weight decay, as in AdamW.
    beta : float, default 0.9
        Factor beta1 by which a step multiplies the velocity. A fixed factor has no effect in the
        limit.
    axes : bool, default False
        Whether the signals are coordinate axes, as in ``sgd.updates.sign``.
    velocity_memory : float, optional
        Constant c1, above 0 and at most D, with 1 - beta1 = c1/D, instead of beta: the velocity is
        an average over D/c1 steps and part of the ODE.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If a value is out of range, or velocity_memory is combined with axes.

    Notes
    -----
    V^ and S^ are corrected for their start at 0. The update acts coordinatewise, so it has an ODE
    and direct simulations but no exact chain. A trained head or top moves entry by entry in the
    same way, with the rate head_rate lr/D; its own averages of squares are exact, because its
    entries are finitely many (``result.update_vectors``).
    ``result.update_squares.sel(update_square="squares")`` is the mean of S over the coordinates of
    each unit, where each coordinate is in units of the variance of its input.
    Source: Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2.

    Examples
    --------
    >>> sgd.updates.adam(4.0, eps=0.02)
    adam(memory=4, eps=0.02, weight_decay=0, beta=0.9)
    """
    hyperparameters = {
        "memory": scalar_or_schedule("memory", memory, above=0.0),
        "eps": scalar_or_schedule("eps", eps),
        "weight_decay": scalar_or_schedule("weight_decay", weight_decay),
        "beta": scalar_or_schedule("beta", beta, below=1.0),
    }
    axes = checks.flag("axes", axes)
    shorter = "memory"  # the average over the fewest steps, which must be more than one
    velocity = (
        r"V \leftarrow \beta V + \left(1 - \beta\right) G",
        r"\hat V = \frac{V}{1 - \beta^n}",
    )
    if velocity_memory is not None:
        if axes:
            fix = "with axes=True the first average is fast. Use beta."
            raise checks.reject("velocity_memory", velocity_memory, fix)
        del hyperparameters["beta"]
        hyperparameters["velocity_memory"] = scalar_or_schedule(
            "velocity_memory", velocity_memory, above=0.0
        )
        constants = [hyperparameters[name] for name in ("velocity_memory", "memory")]
        if is_scheduled(constants[0]) or is_scheduled(constants[1]) or constants[0] > constants[1]:
            shorter = "velocity_memory"
        velocity = (
            r"V \leftarrow \left(1 - \frac{c_1}{D}\right) V + \frac{c_1}{D} G",
            r"\hat V = \frac{V}{1 - \left(1 - \frac{c_1}{D}\right)^n}",
        )
    law = Law(
        "adam",
        _adam if velocity_memory is None else _slow_adam,
        axes=axes,
        rows=("velocity",),
        squares=("squares",),
        scalars=("age",),
        memory="fast" if velocity_memory is None else "slow",
        linear=True,
        averaging=(shorter,),
        equations=(
            velocity[0],
            MEAN_SQUARES,
            velocity[1],
            r"\hat S = \frac{S}{1 - \left(1 - \frac{c}{D}\right)^n}",
            step_equation(r"\left(\frac{\hat V}{\sqrt{\hat S} + \varepsilon} + \omega W\right)"),
        ),
        **COORDINATEWISE,
    )
    return Update(law, hyperparameters, _axes_option(axes))


def _rmsprop(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
    eps: Scalar,
) -> Increments:
    G = gradient(state["weights"])
    change = memory / D * (gradient.squares(G) - state["squares"])
    return {"weights": -lr / D * G / (jnp.sqrt(state["squares"] + change) + eps), "squares": change}


@maker
def rmsprop(memory: float, eps: float) -> Update:
    """RMSprop: Adam without a velocity and without corrections for the start at 0.

    ::

        S <- (1 - c/D) S + (c/D) G^2,     W <- W - (lr/D) G/(sqrt(S) + eps)

    Parameters
    ----------
    memory : float
        Constant c, above 0 and at most D; the average of squares extends over D/c steps.
    eps : float
        Positive constant added to the square root. Without it the first steps, from S = 0, have no
        limit.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If an argument is not above 0.

    Notes
    -----
    The update acts coordinatewise, so it has an ODE and direct simulations but no exact chain. A
    trained head or top moves entry by entry in the same way. Source: Tieleman and Hinton 2012,
    lecture 6.5.

    Examples
    --------
    >>> sgd.updates.rmsprop(4.0, eps=0.1)
    rmsprop(memory=4, eps=0.1)
    """
    hyperparameters = {
        "memory": scalar_or_schedule("memory", memory, above=0.0),
        "eps": scalar_or_schedule("eps", eps, above=0.0),
    }
    return Update(
        Law(
            "rmsprop",
            _rmsprop,
            squares=("squares",),
            memory="slow",
            linear=True,
            averaging=("memory",),
            equations=(MEAN_SQUARES, step_equation(ROOT_STEP)),
            **COORDINATEWISE,
        ),
        hyperparameters,
    )


def _adagrad(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    start: Scalar,
    eps: Scalar,
) -> Increments:
    G = gradient(state["weights"])
    change = gradient.squares(G) / D
    return {"weights": -lr / D * G / (jnp.sqrt(state["squares"] + change) + eps), "squares": change}


@maker
def adagrad(start: float, eps: float = 0.0) -> Update:
    """AdaGrad: each coordinate is divided by the root of the sum of its squared gradients.

    ::

        S <- S + G^2/D,     W <- W - (lr/D) G/(sqrt(S) + eps),
        from S = start times the variance of the coordinate's input

    Parameters
    ----------
    start : float
        Initial sum of squares divided by D, above 0; from 0 the first steps have no limit.
    eps : float, default 0.0
        Constant added to the square root: PyTorch's value divided by sqrt(D).

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If start is not above 0, or eps is negative.

    Notes
    -----
    The update acts coordinatewise, so it has an ODE and direct simulations but no exact chain. A
    trained head or top moves entry by entry in the same way, from S = start. Source: Duchi, Hazan
    and Singer 2011.

    Examples
    --------
    >>> sgd.updates.adagrad(0.5)
    adagrad(start=0.5, eps=0)
    """
    hyperparameters = {
        "start": checks.number("start", start, above=0.0),
        "eps": scalar_or_schedule("eps", eps),
    }
    law = Law(
        "adagrad",
        _adagrad,
        squares=("squares",),
        initial_values=(("squares", "start"),),
        memory="slow",
        linear=True,
        equations=(
            r"S \leftarrow S + \frac{1}{D} G^{\circ 2}",
            step_equation(ROOT_STEP),
            r"S = s_0 \operatorname{Var}\left(x_j\right) \text{ at the start}",
        ),
        **COORDINATEWISE,
    )
    return Update(law, hyperparameters)
