"""Classification of roots of the drift: distinct points, linear stability, families of roots."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from sgdynamics.analysis.fixed_point_result import FixedPoint
from sgdynamics.analysis.fixed_point_search import finite_or_zero, polish, search
from sgdynamics.analysis.fixed_point_system import Candidates, DriftSystem
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.risk import compute_risks
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.problems.overlap_starts import Start, overlap_matrix
from sgdynamics.problems.problem import Problem
from sgdynamics.samples import input_covariance

# Largest violation of the positive semi-definiteness of Omega at a physical point.
PHYSICAL = 1e-9
# Eigenvalues and singular values below this, relative to the largest, are 0.
NULL = 1e-6
# Distance, relative to the size of the rows, below which rows at a degenerate root may coincide.
NEAR = 3e-2
# Length of steps along null directions, in the search for further roots of a family.
FAMILY_STEP = 3e-3
# Relative difference of the risks of one point; eigenvalues may differ by ten times as much.
SAME = 1e-6


def classify_roots(
    system: DriftSystem, roots: Candidates, limit: float, keep_unphysical: bool
) -> list[FixedPoint]:
    """Distinct fixed points among the roots, by increasing risk, with stability and family.

    Roots with the same risk and the same eigenvalues are one point up to a symmetry of the problem,
    which changes neither. Roots with the same risk and the same dimension of their family belong to
    one family.
    """
    problem = system.problem
    roots = _refine_degenerate_roots(system, roots, limit)
    states = system.overlaps(roots)
    is_physical = _is_physical(problem, states)
    (risks,) = compute_risks(problem.structure, system.quadrature, [problem.parameters], [states])
    jacobians, drifts = _jacobians(system, roots), _independent_drifts(system, roots)
    points: list[FixedPoint] = []
    for n in np.argsort(np.round(risks.risk, 9), kind="stable"):
        # A row of norm 0 lies on a kink at 0, where the drift has no derivative.
        smallest_norm = np.einsum("bii->i", states["Q"][n]).min()
        is_on_kink = 0.0 in problem.structure.kinks and smallest_norm <= PHYSICAL
        is_excluded = is_on_kink or not (is_physical[n] or keep_unphysical)
        if is_excluded or not np.isfinite(jacobians[n]).all():
            continue
        risk, eigenvalues = float(risks.risk[n]), _sorted_eigenvalues(jacobians[n])
        error = _root_error(drifts[n], jacobians[n])
        tolerance = SAME + 10 * error
        same_risk = [
            index
            for index, point in enumerate(points)
            if abs(point.risk - risk) <= tolerance * max(1.0, abs(risk))
        ]
        largest = float(np.abs(eigenvalues).max())
        copies = [
            index
            for index in same_risk
            if np.abs(points[index].eigenvalues - eigenvalues).max() <= 10 * tolerance * largest
        ]
        dimension = 0
        if not copies:
            null_space = _null_space(jacobians[n])
            dimension = _family_dimension(system, roots.take([n]), null_space, limit)
            if dimension:
                copies = [i for i in same_risk if points[i].manifold_dimension == dimension]
        if copies:
            point = points[copies[0]]
            points[copies[0]] = replace(point, found=point.found + 1)
            continue
        if expectation_of(problem.structure).uses_series:
            state = {name: values[n : n + 1] for name, values in states.items()}
            (accuracy,) = compute_risks(
                problem.structure, system.quadrature, [problem.parameters], [state]
            )
            error += accuracy.worst * float(np.abs(roots.coordinates[n]).max())
        M, Q, a = (states[name][n] for name in ("M", "Q", "a"))
        top = problem.structure.top
        has_excess = problem.structure.has_excess
        points.append(
            FixedPoint(
                M=M.sum(axis=0),
                Q=Q.sum(axis=0),
                a=a,
                risk=risk,
                excess_risk=risk - problem.noise_floor if has_excess else float("nan"),
                residual=float(roots.residual[n]),
                eigenvalues=eigenvalues,
                verdict=_verdict(system, eigenvalues, dimension, Q.sum(axis=0)),
                manifold_dimension=dimension,
                physical=bool(is_physical[n]),
                error=error,
                found=1,
                M_blocks=M,
                Q_blocks=Q,
                top=None if top is None else top.leaves_by_name(a),
            )
        )
    return points


def _refine_degenerate_roots(system: DriftSystem, roots: Candidates, limit: float) -> Candidates:
    """Make nearly symmetric roots with a singular Jacobian exactly symmetric, if those are roots.

    Rounding determines a degenerate root badly (a triple root to 1e-4). Two symmetric versions of
    it are tried: small columns of L set to 0, and in addition close rows set to their mean and
    small rows to 0. A version replaces the root if it polishes to a root nearby.
    """
    degenerate = [
        index for index, jacobian in enumerate(roots.jacobian) if _null_space(jacobian).shape[1]
    ]
    if not degenerate:
        return roots
    states = system.overlaps(roots.take(degenerate))
    T, L = compressed_rows(system.problem, Start(states["M"], states["Q"], states["a"]))
    size = np.sqrt(np.abs(np.einsum("nbii->n", states["Q"])) + 1e-300)[:, None, None]
    column_norms = np.sqrt(np.sum(L**2, axis=-2))
    L = np.where((column_norms > NEAR * size)[:, :, None, :], L, 0.0)
    rows, heads = np.concatenate([T, L], axis=-1), states["a"].copy()
    merged_rows, merged_heads = rows.copy(), heads.copy()
    for n, i in itertools.product(range(len(rows)), range(rows.shape[2])):
        radius = NEAR * size[n, 0, 0]
        differences = rows[n] - rows[n, :, i : i + 1]
        distances = np.sqrt(np.sum(differences**2, axis=(0, 2)))
        has_head = system.structure.top is None  # the numbers on top belong to no unit
        if has_head:
            distances = distances + np.abs(heads[n] - heads[n, i])
        is_close = distances <= radius
        merged_rows[n, :, i] = rows[n][:, is_close].mean(axis=1)
        if has_head:
            merged_heads[n, i] = heads[n, is_close].mean()
        if np.sum(rows[n, :, i] ** 2) <= radius**2:
            merged_rows[n, :, i] = 0.0
    for symmetric_rows, symmetric_heads in ((rows, heads), (merged_rows, merged_heads)):
        symmetric = system.candidates_from_rows(symmetric_rows, symmetric_heads)
        refined = polish(system, symmetric, limit)
        current = roots.take(degenerate)
        distance = np.abs(refined.coordinates - current.coordinates).max(axis=1)
        scale = np.maximum(1.0, np.abs(current.coordinates).max(axis=1))
        is_root = refined.residual <= np.maximum(limit / 100, current.residual)
        is_replaced = (distance <= 3 * NEAR * scale) & is_root
        roots.assign(np.array(degenerate)[is_replaced], refined.take(is_replaced))
    return roots


def _is_physical(problem: Problem, states: dict[str, np.ndarray]) -> np.ndarray:
    """Whether rows with these overlaps exist: Omega is positive semi-definite, (state,)."""
    omega = overlap_matrix(states["M"], states["Q"], problem.gram)
    lowest = np.linalg.eigvalsh(omega).min(axis=(1, 2))
    return lowest >= -PHYSICAL * np.maximum(1.0, np.abs(omega).max(axis=(1, 2, 3)))


def _sorted_eigenvalues(jacobian: np.ndarray) -> np.ndarray:
    """The eigenvalues by decreasing real part, conjugate pairs by increasing imaginary part."""
    eigenvalues = np.linalg.eigvals(jacobian).tolist()
    order = sorted(eigenvalues, key=lambda eigenvalue: (-eigenvalue.real, eigenvalue.imag))
    return np.array(order, dtype=complex)


def _jacobians(system: DriftSystem, roots: Candidates) -> np.ndarray:
    """Jacobians at the roots, (root, coordinate, coordinate).

    On the edge of the physical region, where the covariance of the fields is singular, they are
    evaluated inside of it. Without kinks J is smooth in the shift s of Q, and the linear
    extrapolation J(0) = 2 J(s) - J(2 s) removes the error of first order.
    """
    jacobians = system.evaluate(roots.coordinates, roots.base, 0.0)[1].copy()
    states = system.overlaps(roots)
    omega = overlap_matrix(states["M"], states["Q"], system.problem.gram)
    covariance = input_covariance.field_covariance(system.problem.parameters, omega)
    is_on_edge = np.linalg.eigvalsh(covariance)[:, 0] < NULL
    if system.edge_shift and is_on_edge.any():
        edge_roots = roots.take(is_on_edge)
        near, far = (
            system.evaluate(edge_roots.coordinates, edge_roots.base, shift)[1]
            for shift in (system.edge_shift, 2 * system.edge_shift)
        )
        jacobians[is_on_edge] = near if system.structure.kinks else 2 * near - far
    return jacobians


def _null_space(jacobian: np.ndarray) -> np.ndarray:
    """Right null vectors, as columns."""
    _, values, right = np.linalg.svd(finite_or_zero(jacobian))
    return right[values <= NULL * max(values[0], 1e-300)].T


def _family_dimension(
    system: DriftSystem, root: Candidates, null_space: np.ndarray, limit: float
) -> int:
    """The dimension of the family of roots through a root.

    Roots are searched from random states close to the root. Their displacements along the null
    directions of the Jacobian span the tangent space of the family; a null direction along which
    all searches return to the root does not belong to it.
    """
    if null_space.shape[1] == 0:
        return 0
    states = system.overlaps(root)
    T, L = compressed_rows(system.problem, Start(states["M"], states["Q"], states["a"]))
    # Q contains L squared: where L = 0, a change of Q by the step is a change of L by its root.
    column_norms = np.sqrt(np.sum(L**2, axis=-2, keepdims=True))
    L_steps = np.where(column_norms > np.sqrt(FAMILY_STEP), FAMILY_STEP, np.sqrt(FAMILY_STEP))
    steps = np.concatenate(
        [np.full_like(T, FAMILY_STEP), np.broadcast_to(L_steps, L.shape)], axis=-1
    )
    generator, count = np.random.default_rng(7), 2 * null_space.shape[1] + 6
    moves = steps * generator.standard_normal((count, *steps.shape[1:]))
    rows = np.concatenate([T, L], axis=-1) + moves
    head_moves = generator.standard_normal((count, states["a"].shape[1]))
    heads = states["a"] + FAMILY_STEP * system.structure.trained * head_moves
    # Searches approach degenerate roots slowly along nearly null directions. A second polish with a
    # smaller cutoff removes these remainders, which are not displacements along a family.
    roots = polish(system, search(system, rows, heads, limit), limit, 1e-12)
    displacements = (roots.coordinates - root.coordinates)[roots.residual <= limit] @ null_space
    # Every search ends on the family. The longest displacements may lead to other roots nearby,
    # so that only the shortest are used.
    order = np.argsort(np.linalg.norm(displacements, axis=1))
    displacements = displacements[order][: null_space.shape[1] + 3]
    threshold = 0.03 * FAMILY_STEP * np.sqrt(max(len(displacements), 1))
    return int(np.sum(np.linalg.svd(displacements, compute_uv=False) > threshold))


def _independent_drifts(system: DriftSystem, roots: Candidates) -> np.ndarray:
    """Independent estimates of the drift, whose differences show its error.

    They are those of all replicates. A deterministic quadrature with coarser nodes has two,
    r + (r_coarse - r) and r - (r_coarse - r), around its drift r: (root, estimate, coordinate).
    """
    rates = system.evaluate(roots.coordinates, roots.base, 0.0)[0]
    if system.coarse_nodes is None:
        return rates
    coarse = system.evaluate(roots.coordinates, roots.base, 0.0, system.coarse_nodes)[0]
    return np.concatenate([rates, 2 * coarse - rates], axis=1)


def _root_error(rates: np.ndarray, jacobian: np.ndarray) -> float:
    """Error of a root that follows from the differences between estimates of the drift.

    To first order, an error of the drift moves the root by J^+ times that error. The result is the
    standard error of the mean of these moves.
    """
    moves = (rates - rates.mean(axis=0)) @ np.linalg.pinv(jacobian, rcond=NULL).T
    return float(np.sqrt(np.mean(moves**2, axis=0).max() / max(len(moves) - 1, 1)))


def _verdict(system: DriftSystem, eigenvalues: np.ndarray, dimension: int, Q: np.ndarray) -> str:
    """Whether a point is stable, a saddle or marginal, from the eigenvalues.

    With kinks and lr > 0, the gradient noise has a cusp where two rows are parallel. It has no
    derivative there, so that the point is marginal.
    """
    threshold = NULL * float(np.abs(eigenvalues).max())
    growth_rates = np.real(eigenvalues)
    growing = int(np.sum(growth_rates > threshold))
    null = int(np.sum(np.abs(growth_rates) <= threshold))
    norms = np.sqrt(np.abs(np.diag(Q)))
    has_parallel_rows = np.any(np.triu(Q - (1 - 1e-9) * np.outer(norms, norms), 1) > 0)
    if not system.flow and system.problem.structure.kinks and has_parallel_rows:
        return "marginal"
    if growing:
        return "saddle"
    return "stable" if null <= dimension else "marginal"
