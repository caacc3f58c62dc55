"""What the theory needs of one sample's gradient, for any problem: its Stein matrix, its second moment, the risk.

Write h_i = dloss/dlambda_i and Omega for the covariance of the fields (students, then signals). Then, by Stein's lemma,

    E[h_i x] = sum_c H_ic w_c   (in covariance block b: eigenvalue_b times the block's part of the rows),   H_ic = E[dh_i/dlambda_c],

so H serves every block; C = E[h h^T] is the noise of SGD; E[dloss/da] moves the head; E[loss] is the risk. At finite d the
noise needs the norm of the input too: E[h h^T |x_b|^2] = eigenvalue_b (d_b C + 2 D_b C), D_b the derivative of C with respect
to Omega along eigenvalue_b Omega_b.

Three ways, by the kind of loss: pair expectations for committees, pairs and a grid over the signals for a target, sampling for
a user's own loss.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.gaussian import cut_grids, four_point, mehler, mixtures, pairs, polar
from sgdynamics.gaussian.nodes import gauss_hermite, gauss_hermite_grid, lower_root, safe_root, sobol_normals, solve_forward, solve_lower
from sgdynamics.gaussian.rules import Moments, Rule
from sgdynamics.gaussian.sampled import norm_weights, plain_accuracy, plain_risk, sample_fields, sampled_moments
from sgdynamics.problems.activations import NAMED, Activation
from sgdynamics.problems.losses import ClusterLoss, CommitteeLoss, NetworkLoss, TargetLoss, correlation, squared
from sgdynamics.problems.problem import Structure

GRID = {1: 96, 2: 40, 3: 18}  # Gauss-Hermite nodes an axis over the signals; beyond three signals, Sobol points


# two thirds of the nodes differ from all of them by this share of the error, where that falls like the root of their number: at a jump that
# was not declared, the slowest case. A smooth target's difference is rounding, and five times that is nothing
UNDECLARED = 1 / (1.5**0.5 - 1)


def exact_pairs(structure: Structure) -> bool:
    """Whether the drift comes from pair expectations (a network under squared or correlation loss)."""
    loss = structure.loss
    return isinstance(loss, (CommitteeLoss, TargetLoss)) and loss.outer in (squared, correlation)


def by_clusters(structure: Structure) -> bool:
    """Whether the drift comes from the expectations of a ReLU network on each cluster of a mixture."""
    return isinstance(structure.loss, ClusterLoss) and structure.loss.student == NAMED["relu"]


def by_planes(structure: Structure) -> bool:
    """Whether the grid over the signals is cut along planes, which move with the signals' Gram matrix, and so is made where it is used."""
    return isinstance(structure.loss, TargetLoss) and bool(structure.loss.cuts) and structure.signals in GRID


def drift_sampled(structure: Structure) -> bool:
    """Whether the drift itself, not only the noise term, is an average over points."""
    if by_clusters(structure):
        return mixtures.sampled(structure.width)
    return not exact_pairs(structure)


def _closed_noise(structure: Structure) -> Any:
    loss = structure.loss
    if not isinstance(loss, CommitteeLoss):
        return None
    return four_point.noise_term(loss.student, loss.teacher)


def sampled(structure: Structure, flow: bool) -> bool:
    """Whether anything is sampled: all of a user's loss; of a network the noise term without closed form (unless lr = 0)."""
    if not exact_pairs(structure):
        return drift_sampled(structure)
    if isinstance(structure.loss, TargetLoss) and structure.signals not in GRID:
        return True
    return not flow and _closed_noise(structure) is None and structure.loss.student != NAMED["linear"]


def series_rule(structure: Structure, largest: float) -> Rule:
    """The rule whose Mehler series, where one is cut, is long enough up to fields of variance `largest`."""
    if by_clusters(structure):
        return Rule(mixture=mixtures.rule_for(structure.width))
    if not exact_pairs(structure):
        return Rule()
    loss = structure.loss
    partners = [loss.student] + ([loss.teacher] if isinstance(loss, CommitteeLoss) else [])
    cut = [other for other in partners if pairs.method(loss.student, other) == "mehler"]
    needed = (mehler.terms_for(loss.student, other, largest) for other in cut)
    return replace(Rule(), terms=max(needed, default=Rule().terms))


def nodes_for(structure: Structure, rule: Rule, flow: bool) -> dict[str, np.ndarray]:
    """The points an expectation needs, as arrays with a leading axis of replicates (of one, where nothing is sampled)."""
    if by_clusters(structure):
        return mixtures.nodes_for(_mixture_rule(structure, rule), structure.width)
    nodes: dict[str, np.ndarray] = {}
    loss = structure.loss
    replicates = rule.replicates if sampled(structure, flow) else 1
    if sampled(structure, flow):
        # where the drift is sampled too, not only the noise term, it needs more points
        drift_too = drift_sampled(structure)
        more = 2 if drift_too else 0
        if structure.kinks:
            nodes["points"] = sobol_normals(2 * structure.fields + 1, rule.log2_circles + more, replicates, whiten=False)
        else:
            nodes["points"] = sobol_normals(structure.fields + 1, rule.log2_points + more, replicates, whiten=drift_too)
    if isinstance(loss, TargetLoss) and exact_pairs(structure) and not by_planes(structure):
        if structure.signals in GRID:
            grid, weights = gauss_hermite_grid(GRID[structure.signals], structure.signals)
            nodes["grid"] = np.broadcast_to(grid, (replicates, *grid.shape))
            nodes["grid_weights"] = np.broadcast_to(weights, (replicates, *weights.shape))
        else:
            grid = sobol_normals(structure.signals, rule.log2_points, replicates, whiten=True, seed=711)
            nodes["grid"] = grid
            nodes["grid_weights"] = np.full(grid.shape[:2], 1.0 / grid.shape[1])
    return nodes


def _mixture_rule(structure: Structure, rule: Rule) -> mixtures.Rule:
    return rule.mixture or mixtures.rule_for(structure.width)


def finer(structure: Structure, rule: Rule) -> Rule | None:
    """A rule for states at which this one is not accurate, where there is one (Mehler series are lengthened elsewhere)."""
    if not by_clusters(structure) or drift_sampled(structure):
        return None
    best = mixtures.rule_for(structure.width, fine=True)
    return None if best == _mixture_rule(structure, rule) else replace(rule, mixture=best)


def risk_nodes(structure: Structure, rule: Rule, *, quick: bool = True) -> dict[str, np.ndarray]:
    """The points that `risk` needs, with a leading axis of replicates; `quick` for many states, where 1e-4 is plenty."""
    if by_clusters(structure) and (structure.width <= 2 or not (quick or drift_sampled(structure))):
        return nodes_for(structure, rule, flow=True)
    if exact_pairs(structure):
        return nodes_for(structure, rule, flow=True) or {"none": np.zeros((1, 1))}
    return {
        "plain": sobol_normals(structure.fields + 1, rule.log2_points + (-2 if structure.clusters else 2), rule.replicates, whiten=True)
    }


def moments(
    structure: Structure,
    rule: Rule,
    nodes: dict[str, Any],
    parameters: Any,
    omega: Any,
    head: Any,
    directions: Any = None,
    *,
    flow: bool = False,
    means: Any = None,
) -> Moments:
    """All of it at one state; `nodes` is one replicate of `nodes_for`, `directions` the (blocks) eigenvalue_b Omega_b of finite d,
    `means` (clusters, fields) those of a mixture."""
    if by_clusters(structure):
        return _cluster_moments(structure, _mixture_rule(structure, rule), nodes, parameters, omega, head, directions, means)
    if not exact_pairs(structure):
        return sampled_moments(structure, nodes["points"], parameters, omega, head, directions, means)
    loss = structure.loss
    p = structure.width
    residual = _residual_coefficients(loss, parameters, head, p)
    own = _own_pairs(loss, rule, omega, p)
    if isinstance(loss, CommitteeLoss):
        slope, values, risk = _committee(loss, rule, parameters, omega, head, residual, own)
    else:
        slope, values, risk = _target(loss, nodes, parameters, omega, head, residual, own)
    lead = head / p
    stein = -lead[:, None] * slope
    if flow:
        nothing = jnp.zeros((p, p), omega.dtype)
        slopes = None if directions is None else jnp.zeros((directions.shape[0], p, p), omega.dtype)
        return Moments(stein, nothing, slopes, -values / p, risk)
    noise, slopes = _network_noise(structure, rule, nodes, parameters, omega, head, residual, own, directions)
    outer = lead[:, None] * lead[None, :]
    norms = None if slopes is None else parameters["eigenvalues"][:, None, None] * outer * slopes
    return Moments(stein, outer * noise, norms, -values / p, risk)


def _cluster_moments(
    structure: Structure, rule: mixtures.Rule, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, directions: Any, means: Any
) -> Moments:
    """A ReLU network f = sum_i a_i relu(lambda_i) under logistic loss, by Stein's lemma from P, D, S, B of `gaussian.mixtures`:

    H_ij = a_i (D_i delta_ij + a_j S_ij),   shift_ir = a_i sum_c w_c P_i^c coefficient_cr,   C_ij = a_i a_j B_ij,
    E[relu(lambda_i) e] = sum_c w_c mean_i^c P_i^c + Omega_ii D_i + sum_j Omega_ij a_j S_ij.
    """
    p = structure.width
    weights, coefficients = parameters["cluster_weights"], parameters["cluster_coefficients"]
    middle, spread = means[:, :p], omega[:p, :p]
    find = partial(mixtures.cluster_moments, rule, nodes, head=head, labels=parameters["cluster_labels"])
    found = find(means=middle, covariance=spread)
    D, S, B, risk = (jnp.tensordot(weights, part, axes=1) for part in found[1:])
    students = head[:, None] * (jnp.diag(D) + S * head)
    stein = jnp.concatenate([students, jnp.zeros((p, structure.signals), omega.dtype)], axis=1)
    shift = head[:, None] * jnp.einsum("c,ci,cr->ir", weights, found.P, coefficients)
    pull = weights @ (middle * found.P) + jnp.diagonal(spread) * D + (spread * S) @ head
    outer = head[:, None] * head
    norms = None
    if directions is not None:
        # |x_b|^2 by its mean, by Stein's lemma along that mean, and by the scale of the noise
        slopes = []
        for eigenvalue, gram, direction in zip(parameters["eigenvalues"], parameters["gram"], directions, strict=True):
            tangents = (2 * coefficients @ direction[p:, :p], 2 * eigenvalue * direction[:p, :p])
            _, slope = jax.jvp(lambda middle, spread: find(means=middle, covariance=spread).B, (middle, spread), tangents)
            own = jnp.einsum("cr,rs,cs->c", coefficients, gram, coefficients)
            slopes.append(jnp.tensordot(weights, slope + own[:, None, None] * found.B, axes=1))
        norms = outer * jnp.stack(slopes)
    return Moments(stein, outer * B, norms, pull, risk, shift)


def risk(structure: Structure, rule: Rule, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, means: Any = None) -> Any:
    """E[loss] at one state.

    For squared activations and loss by Wick: E[(sum_b c_b lambda_b^2)^2] = (sum_b c_b Omega_bb)^2 + 2 sum_bc c_b c_c Omega_bc^2.
    """
    if "plain" in nodes:
        return plain_risk(structure, nodes["plain"], parameters, omega, head, means)
    loss = structure.loss
    if isinstance(loss, CommitteeLoss) and loss.outer is squared and loss.student == loss.teacher == NAMED["square"]:
        c = _residual_coefficients(loss, parameters, head, structure.width)
        mean = jnp.sum(c * jnp.diagonal(omega))
        return 0.5 * (mean**2 + 2 * jnp.sum(c[:, None] * c * omega**2) + parameters["noise"])
    return moments(structure, rule, nodes, parameters, omega, head, flow=True, means=means).risk


def accuracy(structure: Structure, rule: Rule, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, means: Any) -> Any:
    """P(the output has the label's sign) of a network that classifies a mixture, f = 0 counted as 1/2; `nodes` of `risk_nodes`."""
    p = structure.width
    if "plain" in nodes:
        return plain_accuracy(structure, nodes["plain"], parameters, omega, head, means)
    labels = parameters["cluster_labels"]
    found = mixtures.accuracy(_mixture_rule(structure, rule), nodes, means[:, :p], omega[:p, :p], head, labels)
    return parameters["cluster_weights"] @ found


def _residual_coefficients(loss: NetworkLoss, parameters: Any, head: Any, p: int) -> Any:
    """c with y - f (squared loss) or y (correlation loss) = sum_b c_b g_b + noise: students, then teachers of a committee."""
    students = -head / p if loss.outer is squared else jnp.zeros_like(head)
    if isinstance(loss, CommitteeLoss):
        teachers = parameters["teacher_head"] / parameters["teacher_head"].shape[0]
        return jnp.concatenate([students, teachers])
    return students


def _own_pairs(loss: NetworkLoss, rule: Rule, omega: Any, p: int) -> tuple[Any, Any, Any]:
    """K, A, B among the students."""
    q = jnp.diagonal(omega)[:p]
    return pairs.moments(loss.student, loss.student, q, q, omega[:p, :p], rule.terms)


def _committee(
    loss: CommitteeLoss, rule: Rule, parameters: Any, omega: Any, head: Any, c: Any, own: tuple[Any, Any, Any]
) -> tuple[Any, Any, Any]:
    """Stein matrix of s'_i E0, E[s_i E0], risk. G_ib = E[s'_i lambda_b E0] = A_i Omega_ib + sum_c c_c B_ic Omega_cb (formulas of 004)."""
    p = head.shape[0]
    q = jnp.diagonal(omega)
    cross = pairs.moments(loss.student, loss.teacher, q[:p], q[p:], omega[:p, p:], rule.terms)
    teachers = pairs.value(loss.teacher, loss.teacher, q[p:], q[p:], omega[p:, p:], rule.terms)
    K, A, B = (jnp.concatenate([left, right], axis=1) for left, right in zip(own, cross, strict=True))
    slope = B * c + jnp.eye(p, omega.shape[0], dtype=omega.dtype) * (A @ c)[:, None]
    values = K @ c
    if loss.outer is squared:
        excess = 0.5 * (c[:p] @ K[:, :p] @ c[:p] + 2 * c[:p] @ K[:, p:] @ c[p:] + c[p:] @ teachers @ c[p:])
        return slope, values, excess + 0.5 * parameters["noise"]
    return slope, values, -(head / p) @ K[:, p:] @ c[p:]


def _target(
    loss: TargetLoss, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, c: Any, own: tuple[Any, Any, Any]
) -> tuple[Any, Any, Any]:
    """The same for a target g of the signals: pairs among the students, and a grid over the signals for what meets g.

    Given the signals, lambda_i = t_i . zeta + sqrt(v_i) xi is Gaussian; the expectation over xi is one-dimensional, cut at kinks.
    """
    p = head.shape[0]
    K, A, B = own
    q = jnp.diagonal(omega)[:p]
    frame = lower_root(omega[p:, p:])
    t = solve_forward(frame, omega[p:, :p]).T
    spread = safe_root(q - jnp.sum(t**2, axis=1))
    if loss.cuts and "grid" not in nodes:
        normals, levels = (jnp.asarray(part) for part in zip(*loss.cuts, strict=True))
        grid, weights = cut_grids.turned_grid(normals @ frame, levels, loss.cut_dimensions, coarse="coarse" in nodes)
    else:
        grid, weights = nodes["grid"], nodes["grid_weights"]
    labels = jax.vmap(lambda zeta: loss.label(frame @ zeta, parameters))(grid)
    mean = t @ grid.T
    s0, s1, s2 = _conditional_means(loss.student, mean, jnp.broadcast_to(spread[:, None], mean.shape))
    weighted = weights * labels
    values = s0 @ weighted
    along = jnp.einsum("in,n,nr->ir", s1, weighted, grid)
    bend = s2 @ weighted
    on_signals = solve_lower(frame, along - bend[:, None] * t)
    on_students = B * c + jnp.diag(A @ c + bend)
    slope = jnp.concatenate([on_students, on_signals], axis=1)
    total = K @ c + values
    if loss.outer is squared:
        excess = 0.5 * (c @ K @ c + 2 * c @ values + jnp.sum(weighted * labels))
        return slope, total, excess + 0.5 * parameters["noise"]
    return slope, total, -(head / p) @ values


def _conditional_means(student: Activation, mean: Any, spread: Any) -> tuple[Any, Any, Any]:
    """E[s], E[s'], E[s''] of mean + spread xi, point masses of s'' included."""
    if student == NAMED["relu"]:
        return relu_conditional_means(mean, spread)
    return generic_conditional_means(student, mean, spread)


def relu_conditional_means(mean: Any, spread: Any) -> tuple[Any, Any, Any]:
    """The same for ReLU in closed form."""
    positive = jnp.where(spread > 0, spread, 1.0)
    ratio = mean / positive
    chance = jnp.where(spread > 0, jax.scipy.stats.norm.cdf(ratio), jnp.where(mean > 0, 1.0, 0.0))
    density = jnp.where(spread > 0, jnp.exp(-(ratio**2) / 2) / (np.sqrt(2 * np.pi) * positive), 0.0)
    return mean * chance + spread**2 * density, chance, density


def generic_conditional_means(student: Activation, mean: Any, spread: Any) -> tuple[Any, Any, Any]:
    """The same for any activation, by quadrature."""
    if not student.kinks:
        xi, weights = gauss_hermite(48)
        points = mean[..., None] + spread[..., None] * xi
        s0, s1, s2 = (student.derivative(order)(points) @ weights for order in range(3))
        return s0, s1, s2
    s0, s1, s2 = (polar.line_expectation(student.derivative(order), student.kinks, mean, spread, pairs.POLAR_NODES) for order in range(3))
    for kink, jump in zip(student.kinks, student.jumps(1), strict=True):
        positive = jnp.where(spread > 0, spread, 1.0)
        density = jnp.exp(-(((kink - mean) / positive) ** 2) / 2) / (np.sqrt(2 * np.pi) * positive)
        s2 = s2 + jump * jnp.where(spread > 0, density, 0.0)
    return s0, s1, s2


def _network_noise(
    structure: Structure, rule: Rule, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, c: Any, own: Any, directions: Any
) -> tuple[Any, Any]:
    """E[s'_i s'_j (E0^2 + noise)] and its derivatives along `directions`."""
    loss = structure.loss
    p = structure.width
    student = loss.student
    closed = _closed_noise(structure)
    if closed is not None or student == NAMED["linear"]:

        def full(matrix: Any, mine: Any) -> Any:
            label_noise = parameters["noise"] * mine[2]
            if closed is not None:
                return closed(matrix, c, p) + label_noise
            # a linear student has s' = 1: the noise is the mean squared residual, whatever the label
            return _mean_squared_residual(structure, rule, nodes, parameters, matrix, head, c, mine) + label_noise

        if directions is None:
            return full(omega, own), None
        slopes = [
            jax.jvp(lambda matrix: full(matrix, _own_pairs(loss, rule, matrix, p)), (omega,), (direction,)) for direction in directions
        ]
        return slopes[0][0], jnp.stack([2 * slope for _, slope in slopes])
    sample = sample_fields(structure, nodes["points"], omega)
    d = student.derivative(1)(sample.students)
    labels = jax.vmap(lambda signals: loss.label(signals, parameters))(sample.signals)
    residual2 = (labels + student.derivative(0)(sample.students) @ c[:p]) ** 2
    N = jnp.einsum("n,ni,nj->ij", sample.weights * residual2, d, d) + parameters["noise"] * own[2]
    if directions is None:
        return N, None
    full_weights = sample.weights * (residual2 + parameters["noise"])
    return N, jnp.einsum("n,nb,ni,nj->bij", full_weights, norm_weights(sample, directions), d, d)


def _mean_squared_residual(structure: Structure, rule: Rule, nodes: Any, parameters: Any, omega: Any, head: Any, c: Any, own: Any) -> Any:
    """E[E0^2] for a linear student, from the same pairs as the risk."""
    loss = replace(structure.loss, outer=squared)
    quiet = {**parameters, "noise": jnp.zeros_like(parameters["noise"])}
    if isinstance(loss, CommitteeLoss):
        return 2 * _committee(loss, rule, quiet, omega, head, c, own)[2]
    return 2 * _target(loss, nodes, quiet, omega, head, c, own)[2]


def pair_error(structure: Structure, rule: Rule, nodes: dict[str, Any], parameters: Any, omega: Any, head: Any, means: Any = None) -> Any:
    """Estimated relative error of what is integrated by pairs and grids at one state (sampling has its replicates instead)."""
    if by_clusters(structure) and not drift_sampled(structure):
        every = jax.tree.map(lambda value: value[None], nodes)
        p = structure.width
        return mixtures.error(_mixture_rule(structure, rule), every, means[:, :p], omega[:p, :p], head, parameters["cluster_labels"])
    if not exact_pairs(structure):
        return jnp.asarray(0.0)
    loss = structure.loss
    p = structure.width
    q = jnp.diagonal(omega)
    worst = pairs.error(loss.student, loss.student, q[:p], q[:p], omega[:p, :p], rule.terms)
    if isinstance(loss, CommitteeLoss):
        return jnp.maximum(worst, pairs.error(loss.student, loss.teacher, q[:p], q[p:], omega[:p, p:], rule.terms))
    if structure.signals not in GRID:
        return worst
    residual = _residual_coefficients(loss, parameters, head, p)
    own = _own_pairs(loss, rule, omega, p)
    fine = _target(loss, nodes, parameters, omega, head, residual, own)
    if by_planes(structure):
        coarse_nodes, doubt = {"coarse": jnp.zeros(0)}, 1.0
    else:
        coarse_grid, coarse_weights = gauss_hermite_grid(GRID[structure.signals] * 2 // 3, structure.signals)
        coarse_nodes = {"grid": jnp.asarray(coarse_grid), "grid_weights": jnp.asarray(coarse_weights)}
        doubt = UNDECLARED
    coarse = _target(loss, coarse_nodes, parameters, omega, head, residual, own)
    for left, right in zip(fine, coarse, strict=True):
        scale = jnp.max(jnp.abs(left)) + 1e-300
        worst = jnp.maximum(worst, doubt * jnp.max(jnp.abs(left - right)) / scale)
    return worst
