"""Delayed gradients: a step applies a gradient that was taken at earlier weights."""

from __future__ import annotations

from dataclasses import dataclass

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State

MOST_STEPS = 1_000_000
# Steps up to which the exact chain carries the earlier weights, p rows for each step.
MOST_STEPS_OF_CHAIN = 64


def _plain_step(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar, **delay: Scalar
) -> Increments:
    """The step in the limit of a delay of o(D) steps, in which weights do not move."""
    return {"weights": -lr / D * gradient(state["weights"])}


@maker
def delayed(steps: int | None = None, per_dimension: float | None = None) -> Update:
    """Delayed gradients, as of workers that send them late: each step reads earlier weights.

    ::

        W_(n+1) = W_n - (lr/D) dloss/dW(W_(n-m)),     W_n = W_0 for n < 0

    Parameters
    ----------
    steps : int, optional
        Delay m in steps, 0 or more.
    per_dimension : float, optional
        Delay per dimension, m = per_dimension d steps, above 0; simulations round it.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If not exactly one of the two is set, or it is out of range.

    Notes
    -----
    A delay of a fixed number of steps has the limit of plain SGD. With m = tau d the preactivations
    at t - T, T = lr tau, and t are jointly Gaussian, and ``solve_ode`` follows the overlaps
    Q(t, s) of the weights at two times; the limit is stable for a linear student if
    lr (1 + sin(lr tau)) < 2 cos(lr tau) (``sgd.largest_stable_lr``). A trained head and the weight
    decay of the problem are delayed too. ``simulate(method="exact")`` carries the weights of the
    last m steps and needs m <= 64; direct runs have no such limit. Runs that continue another
    result start without gradients under way.

    Examples
    --------
    >>> algorithm = sgd.OnePassSGD(lr=0.5, update=sgd.updates.delayed(per_dimension=2.0))
    >>> algorithm.update, round(sgd.largest_stable_lr(algorithm), 4)
    (delayed(per_dimension=2), 0.5275)
    """
    if (steps is None) == (per_dimension is None):
        fix = "Set exactly one of them: steps=3, or per_dimension=0.5 for a delay of 0.5 d steps."
        raise checks.reject("steps and per_dimension", (steps, per_dimension), fix)
    law = Law(
        "delayed",
        _plain_step,
        linear=True,
        linear_in_rows=True,
        decay_inside=True,
        allows_sphere=False,
        delays=True,
        equations=(
            r"W_{n+1} = W_n - \frac{\mathrm{lr}}{D} "
            r"\frac{\partial \ell}{\partial W}\left(W_{n-m}\right)",
            r"m = \tau D" if steps is None else rf"m = {steps}",
        ),
        equivalent_rate="" if steps is None else r"\mathrm{lr}",
    )
    if steps is None:
        return Update(
            law, {"per_dimension": checks.number("per_dimension", per_dimension, above=0.0)}
        )
    return Update(law, {}, (("steps", checks.integer("steps", steps, 0, MOST_STEPS)),))


def delay_in_steps(update: Update, dimension: int) -> int:
    """Return the delay of an update at a dimension, in steps."""
    options = dict(update.options)
    if "steps" in options:
        return int(options["steps"])
    delay = float(update.numbers["per_dimension"])
    steps = round(delay * dimension)
    if steps < 1:
        fix = f"it is less than half a step at d = {dimension}. Use {1 / dimension:g} or more."
        raise checks.reject("per_dimension", delay, fix)
    return steps


@dataclass(frozen=True)
class _HistoryStep:
    """The step of a delay with the last changes of the weights in its state."""

    steps: int

    def __call__(
        self, state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar
    ) -> Increments:
        names = change_names(self.steps)
        earlier = state["weights"] - sum(state[name] for name in names)
        latest = gradient.plain_step(gradient(earlier))
        changes = [latest, *(state[name] for name in names)]
        return {"weights": latest} | {
            name: change - state[name] for name, change in zip(names, changes[:-1], strict=True)
        }


def change_names(steps: int) -> tuple[str, ...]:
    """Return the names of the sets of rows that contain the last changes, the latest first."""
    return tuple(f"change {count}" for count in range(1, steps + 1))


def with_history(update: Update, steps: int) -> Update:
    """Return a delay as an update whose state has the last changes of the weights.

    The frame of the exact chain then contains the earlier weights.
    """
    law = Law(
        update.law.name,
        _HistoryStep(steps),
        rows=change_names(steps),
        memory="fast",
        linear=True,
        decay_inside=True,
        allows_sphere=False,
        explicit_head_rate=True,
    )
    return Update(law)
