"""Search for roots of the drift from many initial conditions.

Roots are searched in the compressed rows [T | L], so that the states stay physical
(M = T C^T, Q = T T^T + L L^T), and are then polished by Newton's method in the overlaps, also where
Omega is singular, which it is as soon as something has been learnt.

Jacobians are singular at roots that belong to a continuous family. Both iterations are therefore
least-squares steps: Levenberg-Marquardt, and Newton with a pseudo-inverse. They are written out
here, because a library's root finder would not run many tiny systems in one compiled function and
stop them one by one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.fixed_point_system import Candidates, DriftSystem
from sgdynamics.expectations.mehler import MOST_TERMS
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem

SEARCH_STEPS, DESCENT_STEPS, POLISH_STEPS = 100, 300, 60
# Ratio of mean squared rows to squared signals beyond which a state runs off to infinity.
RUNAWAY = 16.0
# Overlaps beyond this do not belong to a root.
FARTHEST = 1e6


def draw_rows(
    problem: Problem, start: Start | None, tries: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows [T | L] and heads to search from: those of the start, then random ones.

    The random rows cover the kinds of fixed points: generic rows, rows in the span of the signals
    or orthogonal to it, groups of equal rows, and rows close to zero.
    """
    B, p, K = problem.structure.blocks, problem.width, problem.signals
    size = problem.structure.head_size
    rows, heads = np.zeros((tries, B, p, K + p)), np.ones((tries, size))
    signal_size = np.sqrt(np.einsum("bii->", problem.gram) / K)
    if start is not None and not problem.structure.trained:
        heads[:] = start.a[0]
    for run in range(tries):
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        normals = generator.standard_normal((B, p, K + p)) / np.sqrt(B * (K + p))
        units = normals * signal_size * np.exp(generator.uniform(-1.5, 0.7))
        has_equal_rows = generator.random() < 0.4
        groups = generator.integers(0, p, size=p) if has_equal_rows else np.arange(p)
        units = units[:, groups]
        kind, small = generator.random(), generator.random()
        if kind < 0.3:
            units[..., K:] = 0.0  # in the span of the signals
        elif kind < 0.5:
            units[..., :K] = 0.0  # orthogonal to it
        if small < 0.3:
            units[:, groups == groups[generator.integers(p)]] *= 1e-3
        rows[run] = units
        if problem.structure.top is not None:
            heads[run] = generator.standard_normal(size)
        elif problem.structure.trained:
            heads[run] = generator.standard_normal(p)[groups] + generator.integers(0, 2)
    if start is not None:
        T, L = compressed_rows(problem, start)
        rows = np.concatenate([np.concatenate([T, L], axis=-1), rows])
        heads = np.concatenate([start.a, heads])
    return rows, heads


def find_roots(
    problem: Problem,
    algorithm: OnePassSGD,
    rows: np.ndarray,
    heads: np.ndarray,
    descents: int,
    limit: float,
) -> tuple[DriftSystem, Candidates]:
    """Roots reached from these rows and heads, with drifts of norm `limit` at most.

    For the first `descents` of them the dynamics is followed in addition. The search is repeated
    with a finer quadrature until the quadrature is fine enough for all roots.
    """
    p = problem.width
    signal_squares = np.einsum("bii->bi", problem.gram)
    # Noise lengthens the rows, so that the quadrature must allow for longer ones.
    longest = signal_squares.max(axis=1)[:, None, None] * np.eye(p)
    quadrature = choose_quadrature(problem, longest, 1.5 if algorithm.lr > 0 else 0.0)
    largest_square = RUNAWAY * p * signal_squares.sum(axis=0).max()
    while True:
        system = DriftSystem(problem, algorithm, quadrature)
        roots = search(system, rows, heads, limit)
        if descents:
            # Free rows were moved in place, so that the dynamics starts where the search ended.
            ends = _follow_dynamics(system, rows[:descents], heads[:descents], limit)
            arrays = zip(roots, ends, strict=True)
            roots = Candidates(*(np.concatenate(pair) for pair in arrays))
        roots = roots.take(roots.residual <= limit)
        Q = system.overlaps(roots)["Q"]
        terms = np.array([choose_quadrature(problem, q[None], 1.0).terms for q in Q], dtype=int)
        # With a saturating activation, rows run off to infinity where the drift vanishes. Those are
        # not roots, and must not be the reason for a longer series.
        square = np.einsum("nbii->n", Q)
        is_near = square <= largest_square
        is_resolved = terms <= quadrature.terms
        is_bounded = (is_near | (terms < MOST_TERMS)) & (square < FARTHEST)
        if not np.any(is_near & ~is_resolved):
            return system, roots.take(is_resolved & is_bounded)
        quadrature = replace(quadrature, terms=int(terms[is_near].max()))


def search(system: DriftSystem, rows: np.ndarray, heads: np.ndarray, limit: float) -> Candidates:
    """Minimise |drift|^2 over rows and heads by Levenberg-Marquardt, then polish.

    With J = d(drift)/d(rows, head), one step is::

        step = -(J^T J + damping I)^-1 J^T drift.

    Each state has its own damping, which decreases after a step that helps and increases otherwise.
    Free rows are updated in place.
    """

    def project(rows: np.ndarray) -> np.ndarray:
        return np.asarray(system.structure.constraint.project_rows(rows, axes=(1, 3)))

    rows, heads = project(rows), heads.copy()
    size, shape = rows[0].size, rows.shape[1:]
    states = system.candidates_from_rows(rows, heads)
    damping, active = np.full(len(rows), 1e-2), np.arange(len(rows))
    for _ in range(SEARCH_STEPS):
        current = states.take(active)
        J = finite_or_zero(current.jacobian @ system.row_slopes(rows[active], heads[active]))
        normal_matrix = np.einsum("nmx,nmy->nxy", J, J)
        normal_matrix = normal_matrix + damping[active, None, None] * np.eye(J.shape[2])
        gradient = np.einsum("nmx,nm->nx", J, finite_or_zero(current.drift))
        step = -np.linalg.solve(normal_matrix, gradient[..., None])[..., 0]
        new_rows = project(rows[active] + step[:, :size].reshape(-1, *shape))
        new_heads = heads[active] + step[:, size:]
        new = system.candidates_from_rows(new_rows, new_heads)
        is_better = new.residual < current.residual
        improved = active[is_better]
        rows[improved], heads[improved] = new_rows[is_better], new_heads[is_better]
        states.assign(improved, new.take(is_better))
        factor = np.where(is_better, damping[active] / 4, damping[active] * 4)
        damping[active] = np.maximum(factor, 1e-14)
        active = active[(states.residual[active] > 100 * limit) & (damping[active] < 1e8)]
        if len(active) == 0:
            break
    return polish(system, states, limit)


def _follow_dynamics(
    system: DriftSystem, rows: np.ndarray, heads: np.ndarray, limit: float
) -> Candidates:
    """The states to which the ODE leads, by linearised implicit Euler steps, then polished.

    One step of length h = 1/rate solves (rate I - jacobian) step = drift. Steps lengthen as long as
    they succeed, but h growth <= 0.7, where growth is the largest growth rate: beyond h growth = 1
    an implicit step would converge to a saddle instead of leaving it.
    """
    generator = np.random.default_rng(11)
    # A small perturbation leaves subspaces that the dynamics would preserve.
    rows = rows + 1e-2 * generator.standard_normal(rows.shape)
    rows = np.asarray(system.structure.constraint.project_rows(rows, axes=(1, 3)))
    states = system.candidates_from_rows(rows, heads)
    active = np.flatnonzero(np.isfinite(states.jacobian).all(axis=(1, 2)))
    step_length = np.full(len(rows), 0.1)
    for _ in range(DESCENT_STEPS):
        if len(active) == 0:
            break
        current = states.take(active)
        y = current.coordinates
        growth = np.linalg.eigvals(current.jacobian).real.max(axis=1)
        rate = np.maximum(1 / step_length[active], growth / 0.7)
        matrix = rate[:, None, None] * np.eye(y.shape[1]) - current.jacobian
        step = np.linalg.solve(matrix, current.drift[..., None])[..., 0]
        new = system.candidates(y + step, current.base)
        is_short = np.abs(step).max(axis=1) < 0.2 * np.maximum(1, np.abs(y).max(axis=1))
        is_accepted = np.isfinite(new.jacobian).all(axis=(1, 2)) & is_short
        states.assign(active[is_accepted], new.take(is_accepted))
        step_length[active] = np.where(is_accepted, 2.0, 0.25) / rate
        is_moving = states.residual[active] > 100 * limit
        is_bounded = np.abs(states.coordinates[active]).max(axis=1) < FARTHEST
        active = active[is_moving & (step_length[active] > 1e-9) & is_bounded]
    return polish(system, states, limit)


def polish(
    system: DriftSystem, states: Candidates, limit: float, cutoff: float = 1e-9
) -> Candidates:
    """Refine roots by Newton steps in the overlaps, as far as rounding allows.

    The pseudo-inverse of the Jacobian leaves out singular values below `cutoff` times the largest.
    A step that does not reduce the drift is halved.
    """
    fraction, active = np.ones(len(states.coordinates)), np.arange(len(states.coordinates))
    for _ in range(POLISH_STEPS):
        current = states.take(active)
        inverse = np.linalg.pinv(finite_or_zero(current.jacobian), rcond=cutoff)
        newton = np.einsum("nym,nm->ny", inverse, finite_or_zero(current.drift))
        step = fraction[active, None] * newton
        new = system.candidates(current.coordinates - step, current.base)
        is_better = new.residual < current.residual
        states.assign(active[is_better], new.take(is_better))
        lengthened = np.minimum(1.0, 2 * fraction[active])
        fraction[active] = np.where(is_better, lengthened, fraction[active] / 2)
        active = active[(states.residual[active] > 1e-5 * limit) & (fraction[active] > 0.01)]
        if len(active) == 0:
            break
    return states


def finite_or_zero(values: np.ndarray) -> np.ndarray:
    """The values, with 0 in place of infinite and undefined ones."""
    return np.where(np.isfinite(values), values, 0.0)
