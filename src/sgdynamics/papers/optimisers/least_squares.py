"""Closed means of linear updates on a fixed data set, in the eigenbasis of X^T X/n."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.fixed_data import GradientDescent, step_parameters
from sgdynamics.algorithms.updates.additions import PLAIN
from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    increments,
)
from sgdynamics.algorithms.updates.law import count_row_sets
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Numeric
from sgdynamics.base.precision import float64
from sgdynamics.problems.teacher_student import TeacherStudent

NODES = 4000  # of the average over the Marchenko-Pastur law


class LeastSquares(NamedTuple):
    """Means at d -> infinity, one entry per step.

    Attributes
    ----------
    M : ndarray
        Overlap with the signal.
    Q : ndarray
        Squared norm of the weights.
    risk : ndarray
        Population risk, with half of the noise.
    train_risk : ndarray
        Mean loss over the data set.

    Examples
    --------
    >>> algorithm = sgd.GradientDescent(lr=0.4, samples_per_dimension=2.0)
    >>> means = sgd.papers.optimisers.least_squares(algorithm, [0, 5], M=0.2, Q=0.5)
    >>> round(float(means.M[0]), 9)
    0.2
    """

    M: np.ndarray
    Q: np.ndarray
    risk: np.ndarray
    train_risk: np.ndarray


class _ModeGradients(GradientSource):
    """The gradient s u - b on the components (P, B, T) of one eigenvector."""

    def __init__(self, eigenvalue: Numeric) -> None:
        self.eigenvalue = eigenvalue

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        u = rows if shift is None else rows + shift
        # The weights are w = u + w*: the rows contain w, whose component along w* is T + 1.
        return self.eigenvalue * (u - _SIGNAL) - _NOISE, jnp.zeros_like(head)


_NOISE, _SIGNAL = jnp.array([[0.0, 1.0, 0.0]]), jnp.array([[0.0, 0.0, 1.0]])


def marchenko_pastur(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the spectrum of X^T X/n at alpha = n/d, atom at 0 included."""
    c = 1 / alpha
    angle = np.pi * np.arange(1, NODES + 1) / (NODES + 1)
    nodes = 1 + c + 2 * np.sqrt(c) * np.cos(angle)
    weights = 2 * np.sin(angle) ** 2 / ((NODES + 1) * nodes)
    return np.append(nodes, 0.0), np.append(weights, max(0.0, 1 - alpha))


@float64
def least_squares(
    algorithm: GradientDescent, steps: ArrayArgument, *, M: float, Q: float, noise: float = 0.0
) -> LeastSquares:
    """Means of a linear student under gradient descent with an update that is linear in G.

    Parameters
    ----------
    algorithm : GradientDescent
        The training algorithm, with its update.
    steps : array_like
        Numbers of steps, increasing.
    M, Q : float
        Overlap with the signal of norm 1 and squared norm of the weights at the start.
    noise : float, default 0.0
        Variance of the label noise.

    Returns
    -------
    LeastSquares
        Overlaps and risks at these steps.

    Raises
    ------
    ValueError
        If the update is not linear in rows and gradient, or an argument is out of range.

    Notes
    -----
    With u = w - w*, b = X^T z/n and an eigenvalue s of X^T X/n, an update that is linear keeps
    u = P u_0 + B b + T w* in each eigenvector, with functions P, B, T of s that follow from the
    update itself, from (1, 0, 0) and the gradient s u - b. Averages are over the Marchenko-Pastur
    law:

    ::

        |u|^2 = <P^2> u0^2 + 2 <P T> u0.w* + <T^2> + (noise/alpha) <s B^2>
        2 train = <s P^2> u0^2 + 2 <s P T> u0.w* + <s T^2> + noise (1 - 1/alpha
                  + <(1 - s B)^2>/alpha)

    Examples
    --------
    >>> update = sgd.updates.momentum(0.8)
    >>> algorithm = sgd.GradientDescent(lr=0.4, samples_per_dimension=2.0, update=update)
    >>> means = sgd.papers.optimisers.least_squares(algorithm, [5], M=0.2, Q=0.5)
    >>> round(float(means.risk[0]), 9)
    0.090177275
    """
    if not isinstance(algorithm, GradientDescent):
        raise checks.reject("algorithm", algorithm, "use sgd.GradientDescent(...)")
    update = PLAIN if algorithm.update is None else algorithm.update
    law = update.law
    if not law.linear_in_rows or law.noise:
        fix = "use one that is linear in rows and gradient, such as sgd.updates.momentum(0.9)"
        raise checks.reject("update", update, fix)
    save_steps = checks.real_array("steps", steps, "give numbers of steps.").astype(int)
    M, Q = checks.number("M", M), checks.number("Q", Q, 0.0)
    noise = checks.number("noise", noise, 0.0)
    if np.any(np.diff(save_steps) <= 0) or np.any(save_steps < 0) or save_steps.ndim != 1:
        raise checks.reject("steps", steps, "give increasing numbers of steps, 0 or more")
    last = int(save_steps[-1])
    problem = TeacherStudent(width=1, teacher_width=1, activation="linear")
    rates = algorithm.with_tabulated_rate(last).parameters
    alpha = algorithm.samples_per_dimension
    s, weights = marchenko_pastur(alpha)
    sets = count_row_sets(law)
    # w = u + w* with u = u_0; further sets start at w or at 0.
    start = np.array([[1.0, 0.0, 1.0]])
    copies = [1.0, *(float(name in law.start_at_weights) for name in law.rows)]
    first = Rows(
        jnp.concatenate([copy * start for copy in copies]),
        jnp.ones(sets),
        tuple(jnp.zeros(()) for _ in law.scalars),
    )

    def advance(state: Rows, number: Numeric) -> tuple[Rows, Numeric]:
        values = step_parameters({}, rates, number)[1]
        hyperparameters = values.get("update", {})
        setting = StepSettings(
            values["lr"], jnp.asarray(1.0), number, 1.0, jnp.asarray(0.0), problem.structure
        )

        def step_mode(eigenvalue: Numeric, state: Rows) -> Rows:
            return increments(law, hyperparameters, state, _ModeGradients(eigenvalue), setting)

        change = jax.vmap(step_mode)(jnp.asarray(s), state)
        moved = jax.tree.map(jnp.add, state._replace(signals=None), change)
        return moved, moved.rows[:, 0]

    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(s), *jnp.shape(leaf))), first)
    _, rows = jax.lax.scan(advance, states, jnp.arange(last))
    rows = np.concatenate([np.asarray(states.rows[None, :, 0]), np.asarray(rows)])[save_steps]
    P, B, T = rows[..., 0], rows[..., 1], rows[..., 2] - 1
    u0_square, u0_signal = Q - 2 * M + 1, M - 1
    square = (
        (P**2 @ weights) * u0_square
        + 2 * ((P * T) @ weights) * u0_signal
        + T**2 @ weights
        + noise / alpha * ((s * B**2) @ weights)
    )
    overlap = 1 + (P @ weights) * u0_signal + T @ weights
    fit = (
        ((s * P**2) @ weights) * u0_square
        + 2 * ((s * P * T) @ weights) * u0_signal
        + (s * T**2) @ weights
        + noise * (1 - 1 / alpha + ((1 - s * B) ** 2 @ weights) / alpha)
    )
    return LeastSquares(overlap, square + 2 * overlap - 1, (square + noise) / 2, fit / 2)
