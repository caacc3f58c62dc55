"""Updates with a memory of past gradients: velocities and averages, all linear in the gradient."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import Schedule, scalar_or_schedule


def _validate_memory(beta: float | None, memory: float | None) -> tuple[str, float | Schedule]:
    """Return the name and value of the one of `beta` and `memory` that is set."""
    if (beta is None) == (memory is None):
        raise checks.reject(
            "beta and memory",
            (beta, memory),
            "Set exactly one of them: beta, or memory=c for 1 - beta = c/D.",
        )
    if memory is not None:
        return "memory", scalar_or_schedule("memory", memory, above=0.0)
    return "beta", scalar_or_schedule("beta", beta, below=1.0)


def _momentum(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar, *, beta: Scalar
) -> Increments:
    V = beta * state["velocity"] + gradient(state["weights"])
    return {"weights": -lr / D * V, "velocity": V - state["velocity"]}


def _slow_momentum(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
) -> Increments:
    change = memory / D * (gradient(state["weights"]) - state["velocity"])
    return {"weights": -lr / D * (state["velocity"] + change), "velocity": change}


def _nesterov(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar, *, beta: Scalar
) -> Increments:
    G = gradient(state["weights"])
    V = beta * state["velocity"] + G
    return {"weights": -lr / D * (G + beta * V), "velocity": V - state["velocity"]}


def _slow_nesterov(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
) -> Increments:
    G = gradient(state["weights"])
    rate = memory / D
    change = rate * (G - state["velocity"])
    return {
        "weights": -lr / D * (rate * G + (1 - rate) * (state["velocity"] + change)),
        "velocity": change,
    }


# A velocity that averages over D/c steps, and the rate of plain SGD with the same limit as beta.
SLOW_VELOCITY = r"V \leftarrow \left(1 - \frac{c}{D}\right) V + \frac{c}{D} G"
FAST_RATE = r"\frac{\mathrm{lr}}{1 - \beta}"

# Properties that the updates with a velocity have in common.
VELOCITY: dict[str, Any] = {
    "rows": ("velocity",),
    "linear": True,
    "linear_in_rows": True,
    "decay_inside": True,
}


@maker
def momentum(beta: float | None = None, memory: float | None = None) -> Update:
    """Heavy-ball momentum: steps along a velocity, a weighted sum of past gradients, from V = 0.

    ::

        beta:    V <- beta V + dloss/dW,                    W <- W - (lr/D) V
        memory:  V <- (1 - c/D) V + (c/D) dloss/dW,         W <- W - (lr/D) V

    Parameters
    ----------
    beta : float, optional
        Factor by which a step multiplies the velocity, 0 <= beta < 1.
    memory : float, optional
        Constant c, above 0 and at most D, with 1 - beta = c/D, instead of beta. The velocity is an
        average over D/c steps, and lr is the effective rate.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If not exactly one of beta and memory is set, beta is outside of [0, 1), or memory is not
        above 0.

    Notes
    -----
    At fixed beta the limit is plain SGD at lr/(1 - beta), including its noise. Weight decay is part
    of every gradient. A trained head has its own velocity. In the compressed space the rows of V
    are stacked under those of W, so that the exact chain needs d >= signals + 2 width. On the
    sphere V is not projected. Source: Polyak 1964, (9); as a stochastic method, Sutskever et al.
    2013, (1)-(2).

    Examples
    --------
    >>> sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.9)).update
    momentum(beta=0.9)
    >>> sgd.updates.momentum(memory=3.0)
    momentum(memory=3)
    """
    name, value = _validate_memory(beta, memory)
    if name == "beta":
        law = Law(
            "momentum",
            _momentum,
            **VELOCITY,
            memory="fast",
            equations=(r"V \leftarrow \beta V + G", step_equation("V")),
            equivalent_rate=FAST_RATE,
        )
        return Update(law, {"beta": value})
    law = Law(
        "momentum",
        _slow_momentum,
        **VELOCITY,
        memory="slow",
        averaging=("memory",),
        equations=(SLOW_VELOCITY, step_equation("V")),
    )
    return Update(law, {"memory": value})


@maker
def nesterov(beta: float | None = None, memory: float | None = None) -> Update:
    """Nesterov's momentum: steps along the gradient and the velocity after its change.

    ::

        beta:    V <- beta V + G,                    W <- W - (lr/D) (G + beta V)
        memory:  V <- (1 - c/D) V + (c/D) G,         W <- W - (lr/D) ((c/D) G + (1 - c/D) V)

    Parameters
    ----------
    beta : float, optional
        Factor by which a step multiplies the velocity, 0 <= beta < 1.
    memory : float, optional
        Constant c, above 0 and at most D, with 1 - beta = c/D, instead of beta; lr is the effective
        rate.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If not exactly one of beta and memory is set, or it is out of its range.

    Notes
    -----
    The limit is that of ``momentum``. Source: Nesterov 1983, in the variables of Sutskever et al.
    2013 and of PyTorch.

    Examples
    --------
    >>> sgd.updates.nesterov(0.9)
    nesterov(beta=0.9)
    """
    name, value = _validate_memory(beta, memory)
    if name == "beta":
        law = Law(
            "nesterov",
            _nesterov,
            **VELOCITY,
            memory="fast",
            equations=(
                r"V \leftarrow \beta V + G",
                step_equation(r"\left(G + \beta V\right)"),
            ),
            equivalent_rate=FAST_RATE,
        )
        return Update(law, {"beta": value})
    direction = r"\left(\frac{c}{D} G + \left(1 - \frac{c}{D}\right) V\right)"
    law = Law(
        "nesterov",
        _slow_nesterov,
        **VELOCITY,
        memory="slow",
        averaging=("memory",),
        equations=(SLOW_VELOCITY, step_equation(direction)),
    )
    return Update(law, {"memory": value})


def _cell_velocity(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
    span: Scalar,
) -> Increments:
    G, exponent = gradient(state["weights"]), memory * span
    forgotten = -jnp.expm1(-exponent)
    share = forgotten / exponent
    return {
        "weights": -lr / D * (share * state["velocity"] + (1 - share) * G),
        "velocity": forgotten * (G - state["velocity"]),
    }


def cell_velocity(memory: float | Schedule, span: float) -> Update:
    """Return the slow velocity of a cell of an epoch: many steps at a constant gradient G.

    ::

        dV/ds = c (G - V),     dW/ds = -lr V,     for s from 0 to span

    Parameters
    ----------
    memory : float
        Constant c, the rate at which the velocity forgets per unit of s = steps/d.
    span : float
        Steps of the cell divided by d.
    """
    law = Law("cell_velocity", _cell_velocity, **VELOCITY, memory="slow")
    return Update(law, {"memory": memory, "span": span})


# The mean of the iterates X up to step n.
MEAN_OF_ITERATES = r"W \leftarrow W + \frac{1}{n} \left(X - W\right)"

# Properties that averages have in common: the weights, which define the network, are an average of
# the iterate, which moves along gradients.
AVERAGED: dict[str, Any] = {
    "rows": ("iterate",),
    "start_at_weights": ("iterate",),
    "iterate": "iterate",
    "memory": "slow",
    "linear": True,
    "linear_in_rows": True,
    "decay_inside": True,
    "explicit_head_rate": True,
    "allows_sphere": False,
}


def _average_step(state: State, gradient: Gradient, share: Scalar) -> Increments:
    """Return a plain step of the iterate, whose new value has this share in the average."""
    step = gradient.plain_step(gradient(state["iterate"]))
    return {"weights": share * (state["iterate"] + step - state["weights"]), "iterate": step}


def _average(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    memory: Scalar,
) -> Increments:
    return _average_step(state, gradient, memory / D)


@maker
def average(memory: float) -> Update:
    """Plain SGD whose network is a moving average of its iterates.

    ::

        iterate <- iterate - (lr/D) dloss/dW(iterate),     W <- W + (c/D) (iterate - W)

    Parameters
    ----------
    memory : float
        Constant c, above 0 and at most D; the average extends over D/c steps.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If memory is not above 0.

    Notes
    -----
    M, Q and the risk of a result are those of the average. Gradients are evaluated at the iterate,
    whose overlaps are ``result.rows_M.sel(set_row=result.row_set == "iterate")``. The sphere is not
    supported, because an average of points on it lies inside.

    Examples
    --------
    >>> sgd.updates.average(2.0)
    average(memory=2)
    """
    return Update(
        Law(
            "average",
            _average,
            **AVERAGED,
            averaging=("memory",),
            equations=(
                step_equation(r"G\left(X\right)", "X"),
                r"W \leftarrow W + \frac{c}{D} \left(X - W\right)",
            ),
        ),
        {"memory": scalar_or_schedule("memory", memory, above=0.0)},
    )


def _polyak(state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar) -> Increments:
    return _average_step(state, gradient, 1 / (D * state["age"] + 1)) | {"age": 1 / D}


@maker
def polyak() -> Update:
    """Plain SGD whose network is the mean of all iterates so far.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Notes
    -----
    M, Q and the risk of a result are those of the average. The overlaps of the iterate are
    ``result.rows_M.sel(set_row=result.row_set == "iterate")``;
    ``result.update_scalars.sel(update_scalar="age")`` is steps/D.
    Source: Polyak and Juditsky 1992; Ruppert 1988.

    Examples
    --------
    >>> sgd.updates.polyak()
    polyak()
    """
    law = Law(
        "polyak",
        _polyak,
        **AVERAGED,
        scalars=("age",),
        equations=(step_equation(r"G\left(X\right)", "X"), MEAN_OF_ITERATES),
    )
    return Update(law)


def _schedule_free(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar, *, beta: Scalar
) -> Increments:
    step = gradient.plain_step(gradient((1 - beta) * state["iterate"] + beta * state["weights"]))
    return {
        "weights": (state["iterate"] + step - state["weights"]) / (D * state["age"] + 1),
        "iterate": step,
        "age": 1 / D,
    }


@maker
def schedule_free(beta: float = 0.9) -> Update:
    """Schedule-free SGD: the network is the mean of all iterates.

    Gradients are evaluated at a point y between the iterate and the mean. ::

        y = (1 - beta) iterate + beta W,     iterate <- iterate - (lr/D) dloss/dW(y),
        W <- W + (iterate - W)/steps

    Parameters
    ----------
    beta : float, default 0.9
        Position between iterate (0) and average (1) at which gradients are evaluated.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If beta is outside of [0, 1].

    Notes
    -----
    Source: Defazio et al. 2024, (3)-(5), with equal weights of all steps in the mean.

    Examples
    --------
    >>> sgd.updates.schedule_free(0.9)
    schedule_free(beta=0.9)
    """
    return Update(
        Law(
            "schedule_free",
            _schedule_free,
            **AVERAGED,
            scalars=("age",),
            equations=(
                r"Y \leftarrow \left(1 - \beta\right) X + \beta W",
                step_equation(r"G\left(Y\right)", "X"),
                MEAN_OF_ITERATES,
            ),
        ),
        {"beta": scalar_or_schedule("beta", beta, maximum=1.0)},
    )


def _dana(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    velocity_rate: Scalar,
    delta: Scalar,
    offset: Scalar,
) -> Increments:
    G = gradient(state["weights"])
    change = (G - delta / (offset + state["age"]) * state["velocity"]) / D
    return {
        "weights": -(lr * G + velocity_rate * (state["velocity"] + change)) / D,
        "velocity": change,
        "age": 1 / D,
    }


@maker
def dana(velocity_rate: float, delta: float, offset: float = 1.0) -> Update:
    """Momentum with a memory that grows with time, combined with a plain step.

    ::

        V <- (1 - Delta) V + G/D,     W <- W - (lr/D) G - (velocity_rate/D) V,
        Delta = delta/(D offset + steps)

    Parameters
    ----------
    velocity_rate : float
        Learning rate of the velocity, at least 0.
    delta : float
        Rate at which the velocity decays, above 0 and at most D offset.
    offset : float, default 1.0
        Time in steps/D after which the memory grows, above 0.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    Source: Ferbach et al. 2025 (dimension-adapted Nesterov acceleration), here with the velocity in
    units of 1/D.

    Examples
    --------
    >>> sgd.updates.dana(1.0, delta=4.0, offset=0.5)
    dana(velocity_rate=1, delta=4, offset=0.5)
    """
    hyperparameters = {
        "velocity_rate": scalar_or_schedule("velocity_rate", velocity_rate),
        "delta": scalar_or_schedule("delta", delta, above=0.0),
        "offset": scalar_or_schedule("offset", offset, above=0.0),
    }
    return Update(
        Law(
            "dana",
            _dana,
            **VELOCITY,
            memory="slow",
            scalars=("age",),
            averaging=("delta", "offset"),
            equations=(
                r"V \leftarrow V + \frac{1}{D} "
                r"\left(G - \frac{\delta}{o + \frac{n - 1}{D}} V\right)",
                r"W \leftarrow W - \frac{1}{D} \left(\mathrm{lr} G + \mathrm{lr}_V V\right)",
            ),
        ),
        hyperparameters,
    )
