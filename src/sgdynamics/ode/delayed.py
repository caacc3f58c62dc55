"""The ODE of gradients that are late by m = tau d steps: overlaps at two times.

With u = steps/d, a prime for values at u - tau, and E[h' x^T] = C' [W' | W*] by Stein's lemma, the
overlaps in a covariance block of eigenvalue l and fraction f of the coordinates follow

    dM/du = -lr C' [M' | P],         d_u Q(u, s) = -lr C' [Q(u - tau, s) | M(s)^T],   s < u,
    dQ(u, u)/du = -(Y + Y^T) + lr^2 l f E[h' h'^T]/B,     Y = lr C' [Q(u - tau, u) | M(u)^T].

The right-hand sides read earlier values only, so that the trapezoidal rule on a grid that divides
tau needs no iteration. Derivatives jump on the diagonal u - tau = s and at multiples of tau, which
are points of the grid: the error is a series in the square of the spacing, and Richardson's
extrapolation from three grids removes its first two terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Parameters, Scalar
from sgdynamics.base.controls import values_at
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.problems.structure import Structure
from sgdynamics.samples import input_covariance

LEAST_DIVISIONS = 8  # of the delay, on the coarsest grid
LARGEST_SPACING = 0.1  # of the coarsest grid in t = lr u
MOST_POINTS = 400_000  # of the finest grid
REFINEMENTS = 3  # doublings of all grids until the error is as small as requested
NEIGHBOURS = 8  # points of the interpolation at a save point


@dataclass(frozen=True)
class DelayedSystem:
    """The static part of the equations.

    Attributes
    ----------
    structure : Structure
        Structure of the problem.
    quadrature : Quadrature
        Fineness of the expectations.
    batch : int
        Number of samples per step.
    divisions : int
        Grid intervals in a delay.
    """

    structure: Structure
    quadrature: Quadrature
    batch: int
    divisions: int


class DelayedInputs(NamedTuple):
    """The traced part of the equations.

    Attributes
    ----------
    nodes : dict
        Nodes of the expectations, with a leading axis of replicates.
    problem, algorithm : dict
        Parameters, in which schedules are functions of alpha.
    delay : float
        The delay tau in units of u = steps/d.
    """

    nodes: Nodes
    problem: Parameters
    algorithm: Parameters
    delay: Scalar


class _Rates(NamedTuple):
    """Rates at one grid point, except for those of overlaps of two times.

    `coefficients` and `noise` are lr C' and the noise term of Q.
    """

    M: Numeric
    a: Numeric
    coefficients: Numeric
    noise: Numeric


class _Past(NamedTuple):
    """Values at the last grid points, in rings; `Q` has a ring for each of its two times."""

    M: Numeric
    a: Numeric
    Q: Numeric


@partial(jax.jit, static_argnums=(0, 1))
def _march(
    system: DelayedSystem, points: int, inputs: DelayedInputs, M: Numeric, Q: Numeric, a: Numeric
) -> tuple[Numeric, Numeric, Numeric]:
    """Return M, Q and a, (replicate, run, point, ...), at all points of the grid."""

    def march_runs(nodes: Nodes) -> tuple[Numeric, Numeric, Numeric]:
        return jax.vmap(partial(_march_run, system, points, inputs._replace(nodes=nodes)))(M, Q, a)

    return jax.vmap(march_runs)(inputs.nodes)


def _march_run(
    system: DelayedSystem, points: int, inputs: DelayedInputs, M: Numeric, Q: Numeric, a: Numeric
) -> tuple[Numeric, Numeric, Numeric]:
    N, p = system.divisions, system.structure.width
    size, spacing = N + 2, inputs.delay / N
    gram = jnp.broadcast_to(
        inputs.problem["gram"], (M.shape[0], *inputs.problem["gram"].shape[-2:])
    )

    def rates(past: _Past, index: IntScalar) -> _Rates:
        """The rates at a grid point, from the state one delay earlier."""
        alpha = index * spacing * system.batch
        problem, algorithm = values_at((inputs.problem, inputs.algorithm), alpha)
        earlier = (index - N) % size
        old_M, old_a, old_Q = past.M[earlier], past.a[earlier], past.Q[earlier, earlier]
        state = {"M": old_M, "Q": old_Q, "a": old_a}
        moments = expectation_of(system.structure).moments(
            system.quadrature,
            inputs.nodes,
            problem,
            overlaps_at(system.structure, problem, state),
            old_a,
        )
        lr = algorithm["lr"]
        decay = jnp.pad(problem["weight_decay"] * jnp.eye(p), ((0, 0), (0, M.shape[-1])))
        C = lr * (moments.coefficients(problem) + decay)
        variances = input_covariance.eigenvalues(problem) * input_covariance.fractions(problem)
        noise = lr**2 * variances[:, None, None] * moments.noise / system.batch
        head = jnp.zeros_like(a)
        if system.structure.trained:
            head_decay = problem.get("head_decay", problem["weight_decay"])
            head = -lr * algorithm["head_rate"] * (moments.head_gradient + head_decay * old_a)
        return _Rates(-(C[..., :p] @ old_M + C[..., p:] @ gram), head, C, noise)

    def earlier_rates(C: Numeric, earlier_Q: Numeric, M: Numeric) -> Numeric:
        """C' [Q(u - tau, s) | M(s)^T] for several s along the first axis."""
        return C[..., :p] @ earlier_Q + C[..., p:] @ jnp.swapaxes(M, -1, -2)

    def step(
        carry: tuple[_Past, _Rates], index: IntScalar
    ) -> tuple[tuple[_Past, _Rates], tuple[Numeric, Numeric, Numeric]]:
        """From the grid point `index` to the next one."""
        past, before = carry
        now, following = index % size, (index + 1) % size
        after = rates(past, index + 1)
        new_M = past.M[now] + spacing / 2 * (before.M + after.M)
        new_a = past.a[now] + spacing / 2 * (before.a + after.a)
        # Q(new, s) for all s of the ring; the entry of the new point itself follows below.
        old, next_old = (index - N) % size, (index + 1 - N) % size
        row = past.Q[now] - spacing / 2 * (
            earlier_rates(before.coefficients, past.Q[old], past.M)
            + earlier_rates(after.coefficients, past.Q[next_old], past.M)
        )
        Y = earlier_rates(before.coefficients, past.Q[old, now], past.M[now]) + earlier_rates(
            after.coefficients, jnp.swapaxes(row[next_old], -1, -2), new_M
        )
        change = before.noise + after.noise - Y - jnp.swapaxes(Y, -1, -2)
        new_Q = past.Q[now, now] + spacing / 2 * change
        row = jnp.asarray(row).at[following].set(new_Q)
        both = jnp.asarray(past.Q).at[following].set(row)
        both = both.at[:, following].set(jnp.swapaxes(row, -1, -2))
        past = _Past(
            jnp.asarray(past.M).at[following].set(new_M),
            jnp.asarray(past.a).at[following].set(new_a),
            both,
        )
        return (past, after), (new_M, new_Q, new_a)

    past = _Past(
        jnp.broadcast_to(M, (size, *M.shape)),
        jnp.broadcast_to(a, (size, *a.shape)),
        jnp.broadcast_to(Q, (size, size, *Q.shape)),
    )
    carry = (past, rates(past, jnp.asarray(0)))
    _, path = jax.lax.scan(step, carry, jnp.arange(points - 1))
    M_path, Q_path, a_path = (
        jnp.concatenate([first[None], later]) for first, later in zip((M, Q, a), path, strict=True)
    )
    return M_path, Q_path, a_path


def solve_delayed(
    system: DelayedSystem,
    inputs: DelayedInputs,
    states: dict[str, np.ndarray],
    save_points: np.ndarray,
    tolerance: float,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the states at the save points, and less accurate ones for an error estimate.

    Parameters
    ----------
    system : DelayedSystem
        The equations; its divisions are those of the first grid.
    inputs : DelayedInputs
        Parameters of the equations.
    states : dict
        Initial M, Q and a, with a leading axis of runs.
    save_points : ndarray
        Save points in u = steps/d.
    tolerance : float
        Change of the overlaps between two orders of extrapolation, relative to the largest
        overlap, at which the grids are fine enough.

    Returns
    -------
    tuple of dict
        The states (replicate, run, time, ...), extrapolated from three grids, and from two.
    """
    delay = float(inputs.delay)
    names = ("M", "Q", "a")
    for refinement in range(REFINEMENTS):
        divisions = system.divisions * 2**refinement
        points = math.ceil(save_points[-1] / delay * divisions - 1e-9) + 1
        points = max(points, 2)
        # Whole delays, so that every save point has its neighbours.
        points = -(-(points - 1) // divisions) * divisions + 1
        if 4 * points > MOST_POINTS:
            if refinement:
                break
            fix = (
                f"a delay of {delay:.3g} d steps needs {4 * points:,} grid points. Use earlier "
                "save points, or steps= for a short delay."
            )
            raise checks.reject("per_dimension", delay, fix)
        grids = []
        for factor in (1, 2, 4):
            finer = replace(system, divisions=divisions * factor)
            path = _march(
                finer, (points - 1) * factor + 1, inputs, *(states[name] for name in names)
            )
            grids.append([np.asarray(value)[:, :, ::factor] for value in path])
        first = [(4 * fine - coarse) / 3 for coarse, fine in zip(grids[0], grids[1], strict=True)]
        second = [(4 * fine - coarse) / 3 for coarse, fine in zip(grids[1], grids[2], strict=True)]
        best = [(16 * fine - coarse) / 15 for coarse, fine in zip(first, second, strict=True)]
        grid = np.arange(points) * (delay / divisions)
        solutions = [
            {
                name: _interpolate(value, grid, divisions, save_points)
                for name, value in zip(names, values, strict=True)
            }
            for values in (best, second)
        ]
        if _difference(*solutions) <= tolerance:
            break
    return solutions[0], solutions[1]


def _difference(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """The largest difference of overlaps relative to the largest overlap."""
    shares = [0.0]
    for name, value in first.items():
        size = np.abs(value[np.isfinite(value)]).max(initial=1e-300)
        difference = np.abs(value - second[name])
        shares.append(float(difference[np.isfinite(difference)].max(initial=0.0) / max(size, 1.0)))
    return max(shares)


def _interpolate(
    values: np.ndarray, grid: np.ndarray, divisions: int, points: np.ndarray
) -> np.ndarray:
    """Values (replicate, run, point, ...) at other points, by polynomials within one delay."""
    columns = []
    for point in points:
        window = min(int(point / grid[divisions] + 1e-9), (len(grid) - 1) // divisions - 1)
        low, high = window * divisions, (window + 1) * divisions
        nearest = int(np.searchsorted(grid, point)) - NEIGHBOURS // 2
        low = int(np.clip(nearest, low, high - NEIGHBOURS + 1))
        nodes = grid[low : low + NEIGHBOURS]
        differences = nodes[:, None] - nodes
        np.fill_diagonal(differences, 1.0)
        ratios = (point - nodes)[None] / differences
        np.fill_diagonal(ratios, 1.0)
        weights = np.prod(ratios, axis=1)
        columns.append(np.tensordot(values[:, :, low : low + NEIGHBOURS], weights, ((2,), (0,))))
    return np.stack(columns, axis=2)
