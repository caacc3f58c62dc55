"""Learning rates that depend on the overlaps, such as line search and Polyak's step size."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from sgdynamics.algorithms.trainable import Trainable
from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.equations import function_formula, function_symbol
from sgdynamics.base.user_functions import output_shape
from sgdynamics.problems.moves import LossOverlaps
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class _StateRateStep:
    """A plain step times a function of the overlaps.

    Steps of equal functions are equal, so that each compiles once.
    """

    rate: Callable[[LossOverlaps], Scalar]

    def __call__(
        self, state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar
    ) -> Increments:
        rows = state["weights"]
        factor = self.rate(gradient.overlaps(rows))
        return {"weights": -lr / D * factor * gradient(rows)}


def state_rate(rate: Callable[[LossOverlaps], Scalar]) -> Update:
    """Plain steps times a function of the overlaps.

    Line search, Polyak's step size and rates that follow the risk have this form. ::

        W <- W - (lr/D) rate(overlaps) dloss/dW,
        a <- a - (head_rate lr/D) rate(overlaps) dloss/da

    Parameters
    ----------
    rate : callable
        JAX function of ``overlaps`` that returns a number. ``overlaps`` has ``Q``, ``M`` and
        ``P`` of the full rows; ``overlaps.blocks`` has those of each covariance block, with its
        ``eigenvalues`` and ``fractions``.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If ``rate`` is not a function of one argument.

    Notes
    -----
    The clock uses ``lr`` and not the product: t = lr steps/D, which is steps/D for lr = 1. Weight
    decay of the problem is part of the gradient. The rate is a function of the overlaps before the
    step.

    Examples
    --------
    Polyak's step size of a linear unit decreases with the error e as e/(e + noise):

    >>> def polyak(overlaps):
    ...     error = overlaps.Q[0, 0] - 2 * overlaps.M[0, 0] + overlaps.P[0, 0]
    ...     return error / (error + 0.1)
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> algorithm = sgd.OnePassSGD(lr=1.0, update=sgd.updates.state_rate(polyak))
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> result = sgd.solve_ode(problem, algorithm, start, alpha=[0, 2.0])
    >>> result.excess_risk.values.round(4).tolist()
    [[0.5, 0.1006]]
    """
    if not callable(rate):
        raise checks.reject("rate", rate, "Give a JAX function of overlaps that returns a number.")
    try:
        inspect.signature(rate).bind(None)
    except TypeError:
        raise checks.reject(
            "rate", rate, "The function must take one argument, overlaps."
        ) from None
    except ValueError:
        pass
    step = _StateRateStep(rate)
    symbol = function_symbol(rate, "rate")
    formula = function_formula(rate) or rf"{symbol}\left(Q, M, P\right)"
    law = Law(
        "state_rate",
        step,
        linear=True,
        decay_inside=True,
        state_rate=rate,
        equations=(step_equation(rf"{formula} G"),),
    )
    return Update(law)


def reads_state(value: object) -> bool:
    """Whether a learning rate is a function of an argument named overlaps or state."""
    if not callable(value):
        return False
    try:
        return not {"overlaps", "state"}.isdisjoint(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return False


def check_state_rate(rate: Callable[[LossOverlaps], Scalar], problem: Trainable) -> None:
    """Raise ValueError unless the rate returns one number for overlaps of this problem."""
    if "fields" not in problem.kinds or not isinstance(problem, Problem):
        raise checks.reject(
            "update",
            "state_rate",
            "Rates that depend on overlaps are only supported for problems of fields. Omit update.",
        )
    overlaps = problem.example_arguments(("overlaps",))[-1]
    try:
        shape = output_shape(rate, overlaps)
    except Exception as error:
        fix = f"Calling it on the overlaps of the problem failed with: {checks.reason(error)}"
        raise checks.reject("rate", rate, fix) from error
    if shape != ():
        raise checks.reject("rate", rate, f"It must return one number, but returned shape {shape}.")
