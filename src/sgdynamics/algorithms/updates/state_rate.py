"""A learning rate that reads the state: line search, Polyak's step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgdynamics.algorithms.updates.update import GradientFunction, Law, Update
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.user_functions import output_shape


@dataclass(frozen=True)
class _StateRate:
    """A plain step times a function of the overlaps.

    Equal for equal functions, so that it compiles once.
    """

    rate: Callable[[Any], Any]

    def __call__(
        self, state: State, gradient: GradientFunction, lr: Scalar, D: Scalar, number: Scalar
    ) -> dict[str, Any]:
        rows = state["weights"]
        factor = self.rate(gradient.overlaps(rows))  # type: ignore[attr-defined]
        return {"weights": -lr / D * factor * gradient(rows)}


def state_rate(rate: Callable[[Any], Any]) -> Update:
    """Plain steps times a function of the overlaps: line search, Polyak's step, rates that follow the risk.

    ::

        W <- W - (lr/D) rate(overlaps) dloss/dW,     a <- a - (head_rate lr/D) rate(overlaps) dloss/da

    Parameters
    ----------
    rate : callable
        A JAX function of ``overlaps`` that returns a number. ``overlaps`` has ``Q``, ``M`` and
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
    The clock counts ``lr``, not the product: t = lr steps/D. With lr = 1 it is steps/D. Weight decay of the problem is
    part of the gradient. The rate reads the overlaps before the step.

    Examples
    --------
    Polyak's step of a linear unit, which decreases with the error e as e/(e + noise):

    >>> def polyak(overlaps):
    ...     error = overlaps.Q[0, 0] - 2 * overlaps.M[0, 0] + overlaps.P[0, 0]
    ...     return error / (error + 0.1)
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> algorithm = sgd.OnePassSGD(lr=1.0, update=sgd.updates.state_rate(polyak))
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> sgd.solve_ode(problem, algorithm, start, alpha=[0, 2.0]).excess_risk.values.round(4).tolist()
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
    return Update(
        Law("state_rate", _StateRate(rate), linear=True, decay_inside=True, state_rate=rate)
    )


def reads_state(value: object) -> bool:
    """Whether a learning rate is a function with an argument named overlaps or state."""
    if not callable(value):
        return False
    try:
        return not {"overlaps", "state"}.isdisjoint(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return False


def check_state_rate(rate: Callable[[Any], Any], problem: Any) -> None:
    """Raise ValueError unless the rate returns one number for the overlaps of this problem."""
    if "fields" not in problem.kinds:
        raise checks.reject(
            "update",
            "state_rate",
            "Rates that read overlaps are for problems of fields. Leave update out.",
        )
    overlaps = problem.example_arguments(("overlaps",))[-1]
    try:
        shape = output_shape(rate, overlaps)
    except Exception as error:
        fix = f"Calling it on the overlaps of the problem failed with: {checks.reason(error)}"
        raise checks.reject("rate", rate, fix) from error
    if shape != ():
        raise checks.reject("rate", rate, f"It must return one number, but returned shape {shape}.")
