"""The plateau of the excess risk at which label noise stops one-pass SGD near its teacher."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Nodes, Numeric, Parameters, State
from sgdynamics.base.precision import float64
from sgdynamics.expectations import pairs
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature, risk_at
from sgdynamics.ode.drift import drift
from sgdynamics.problems.activations import NAMED
from sgdynamics.problems.overlap_starts import overlap_matrix
from sgdynamics.problems.problem import Structure
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.samples import input_covariance

# Shares of lr at which the root is followed, from small rates, where its leading term is close.
LR_SHARES = (0.125, 0.25, 0.5, 1.0)
NEWTON_STEPS = 20
# Step of central differences, relative to the distance to the teacher, and its absolute minimum.
DIFFERENCE, MIN_DIFFERENCE = 1e-3, 1e-9
# Largest drift at which Newton's method stops, relative to the largest slope.
CONVERGED = 1e-10
# Drift and eigenvalues below this share of the largest slope count as zero.
NULL = 1e-6
# Rounding error of drifts and overlaps.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Plateau:
    """The final excess risk of SGD on a matched teacher, as d -> infinity.

    Attributes
    ----------
    excess_risk : float
        Excess risk on the plateau.
    leading : float
        Excess risk to first order in lr.
    closed : float or None
        Excess risk in closed form; None if there is no closed form.
    M : ndarray
        Overlaps of the fixed point.
    Q : ndarray
        Gram matrix of the fixed point.
    rate : float
        Slowest rate (in t) at which the ODE relaxes to the fixed point.
    error : float
        Standard error of the excess risk from sampled expectations; 0 if nothing is sampled.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> end = sgd.plateau(problem, sgd.OnePassSGD(lr=0.2))
    >>> round(end.closed, 5), round(end.correction, 3)
    (0.00556, 0.111)
    """

    excess_risk: float
    leading: float
    closed: float | None
    M: np.ndarray
    Q: np.ndarray
    rate: float
    error: float

    @property
    def correction(self) -> float:
        """Relative correction of the leading term, excess_risk/leading - 1."""
        return self.excess_risk / self.leading - 1 if self.leading else 0.0

    def __float__(self) -> float:
        return self.excess_risk


@float64
def plateau(problem: TeacherStudent, algorithm: OnePassSGD) -> Plateau:
    """The final excess risk of one-pass SGD as d -> infinity, for a realisable, noisy target.

    The student can represent its teacher, but label noise keeps SGD at a distance. ::

        leading = (lr noise/(4 B)) l sum_i (a_i/p)^2 E[s'(w*_i.x)^2]
                = lr noise E[s'^2]/(4 p B)  for unit heads, orthonormal teachers, isotropic inputs

    with l the mean eigenvalue of the input covariance.

    Parameters
    ----------
    problem : TeacherStudent
        A problem with squared loss, p = k, the activation and the fixed head of the student equal
        to those of the teacher, and no weight decay. On the sphere, the teacher's rows have norm 1.
    algorithm : OnePassSGD
        Plain one-pass SGD with a constant rate.

    Returns
    -------
    Plateau
        The excess risk with its leading term, and the fixed point; 0 at noise = 0 or lr = 0.

    Raises
    ------
    ValueError
        If the problem is not of this kind, or if the learning rate is so large that there is no
        stable fixed point near the teacher.

    Notes
    -----
    Near the teacher w_i = w*_i + u_i, with u orthogonal to all signals and Gram matrix V_b in
    covariance block b. The excess risk is sum_b l_b tr(H V_b)/2, and ::

        dV_b/dt = -l_b (H V_b + V_b H) + (lr/B) l_b f_b noise H,   H_ij = (a_i a_j/p^2) E[s'_i s'_j]

    The same H is the curvature and the noise, so that V_b = lr noise f_b/(2 B) times the identity
    for any teacher. Rows shift along the signals by O(lr), which adds O(lr^2) to the risk, on the
    sphere too. Relative corrections are O(lr/p), and O(sqrt(lr/p)) for activations with kinks.

    ``excess_risk`` holds to all orders in lr: it belongs to the root of the drift that emerges from
    the teacher as lr grows. Closed forms are ::

        linear:  (noise/2) c/(1 - c),  c = (lr/(2 B)) l sum_i (a_i/p)^2
        square:  (noise c/p)/(1 - 2 c (p + 2)/p^2),  c = (lr/B) a^2 |w*|^2,
                 for P = |w*|^2 1 and equal heads; there Q = P
        erf, p = |w*| = 1:  m^2 = 1 + q - y, y^2 = (1 + q)/2 on the free root,
                            and lr from dq/dt = 0: a curve in q

    The plateau is the high-dimensional one of the slides "Dimension-free limits of SGD"; these
    formulas are derived here.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> round(sgd.plateau(problem, sgd.OnePassSGD(lr=0.2)).excess_risk, 5)
    0.00556
    """
    _check_matched_teacher(problem)
    algorithm = validate_algorithm(algorithm, problem=problem)
    lr = constant_rate(algorithm, "plateaus")
    quadrature = choose_quadrature(problem, problem.gram, MARGIN)
    # V = lr noise/(2 B), the squared distance of a row to its teacher, to first order in lr.
    distance = lr * problem.noise / (2 * algorithm.batch)
    leading = _leading_term(problem, quadrature, distance)
    if distance == 0:
        gram = problem.gram.sum(axis=0)
        return Plateau(0.0, 0.0, 0.0, gram, gram, np.nan, 0.0)
    roots = [
        _TeacherRoot(problem, algorithm, quadrature, nodes, distance).find()
        for nodes in _replicate_nodes(problem.structure, quadrature)
    ]
    M, Q, rates, risks = (np.stack(values) for values in zip(*roots, strict=True))
    error = float(risks.std(ddof=1) / np.sqrt(len(risks))) if len(risks) > 1 else 0.0
    return Plateau(
        excess_risk=float(risks.mean()),
        leading=leading,
        closed=_closed_form(problem, lr / algorithm.batch),
        M=M.mean(axis=0).sum(axis=0),
        Q=Q.mean(axis=0).sum(axis=0),
        rate=float(rates.mean()),
        error=error,
    )


def _check_matched_teacher(problem: object) -> None:
    """Raise ValueError for problems whose student cannot be equal to its teacher."""
    if not isinstance(problem, TeacherStudent):
        fix = (
            "plateaus are computed for students that can represent their teacher. Use "
            "sgd.TeacherStudent(...)."
        )
        raise checks.reject("problem", problem, fix)
    if problem.width != problem.teacher_width:
        fix = (
            "plateaus are computed for students as wide as their teacher. Use width = "
            f"{problem.teacher_width}, or sgd.solve_ode at late times."
        )
        raise checks.reject("width", problem.width, fix)
    if problem.teacher_activation != problem.activation:
        fix = f"it differs from that of the student. Use {problem.activation.label!r}."
        raise checks.reject("teacher_activation", problem.teacher_activation.label, fix)
    if not problem.structure.has_excess:
        fix = 'plateaus are computed for the squared loss. Use loss="squared".'
        raise checks.reject("loss", problem.loss, fix)
    if problem.head != "fixed":
        fix = (
            "rows and trained heads can exchange their norms, so that there is no single fixed "
            'point. Use head="fixed", or sgd.solve_ode.'
        )
        raise checks.reject("head", problem.head, fix)
    if problem.weight_decay:
        fix = (
            "the minimum of the penalised risk is not the teacher. Use weight_decay=0, or "
            "sgd.fixed_points."
        )
        raise checks.reject("weight_decay", problem.weight_decay, fix)
    norms = np.einsum("bii->i", problem.gram)
    if problem.structure.constraint.norm_error(norms) > 1e-9:
        fix = "rows on the sphere have norm 1. Use a teacher whose rows have norm 1 too."
        raise checks.reject("teacher_gram", problem.gram.sum(axis=0), fix)


def _leading_term(problem: TeacherStudent, quadrature: Quadrature, distance: float) -> float:
    """sum_b l_b tr(H V_b)/2 with V_b = f_b distance 1."""
    variances = np.diag(input_covariance.field_covariance(problem.parameters, problem.gram))
    slopes = np.asarray(_squared_slopes(problem.structure, quadrature, variances))
    curvature = (problem.teacher_head / problem.width) ** 2 * slopes
    return float(input_covariance.trace(problem.parameters) * distance * curvature.sum() / 2)


@partial(jax.jit, static_argnums=(0, 1))
def _squared_slopes(
    structure: Structure, quadrature: Quadrature, variances: Float[Numeric, " n"]
) -> Float[Array, " n"]:
    """E[s'(lambda)^2] for fields of these variances."""
    student, covariance = structure.loss.student, jnp.diag(variances)
    _, _, slopes, *_ = pairs.moments(
        student, student, variances, variances, covariance, quadrature.terms
    )
    return jnp.diagonal(slopes)


def _replicate_nodes(structure: Structure, quadrature: Quadrature) -> list[dict[str, np.ndarray]]:
    """The nodes of each replicate; a single one if nothing is sampled."""
    nodes = expectation_of(structure).nodes(quadrature, False)
    count = len(next(iter(nodes.values())))
    return [{name: value[index] for name, value in nodes.items()} for index in range(count)]


class _Root(NamedTuple):
    """A stable root of the drift: overlaps by blocks, slowest relaxation rate, excess risk."""

    M: np.ndarray
    Q: np.ndarray
    rate: float
    excess_risk: float


class _Linearisation(NamedTuple):
    """The drift in units of the distance, its Jacobian, and the excess risk."""

    drift: np.ndarray
    jacobian: np.ndarray
    excess_risk: float


@dataclass(frozen=True)
class _TeacherRoot:
    """The root of the drift that emerges from the teacher as lr grows from 0.

    The unknowns y are the shifts of M and Q from the teacher along independent directions, in units
    of the distance V = lr noise/(2 B). They change little with lr, so that the root at a smaller lr
    is a good initial guess at the next one.
    """

    problem: TeacherStudent
    algorithm: OnePassSGD
    quadrature: Quadrature
    nodes: Nodes
    distance: float

    def find(self) -> _Root:
        """Follow the root to the learning rate of the algorithm; ValueError if it is lost."""
        y = self._leading_shift()
        for share in LR_SHARES:
            for _ in range(NEWTON_STEPS):
                linear = self._linearise(y, share)
                if not np.all(np.isfinite(linear.jacobian)):
                    raise self._no_fixed_point()
                # Roots may form a family (units can exchange their rows). Least squares moves to
                # the nearest one.
                y = y - np.linalg.lstsq(linear.jacobian, linear.drift, rcond=NULL)[0]
                if np.abs(linear.drift).max() < CONVERGED * np.abs(linear.jacobian).max():
                    break
        linear = self._linearise(y, 1.0)
        M, Q = self._overlaps(y, self.distance)
        eigenvalues = np.linalg.eigvals(self._to_unknowns @ linear.jacobian).real
        scale = np.abs(linear.jacobian).max()
        # Expectations at almost parallel rows are accurate to rounding only.
        largest_drift = max(NULL * scale, ROUNDING / self.distance)
        is_root = np.abs(linear.drift).max() <= largest_drift
        is_stable = eigenvalues.max() < NULL * scale
        lowest = np.linalg.eigvalsh(overlap_matrix(M, Q, self.problem.gram)).min()
        is_gram = lowest >= -max(NULL * self.distance, ROUNDING)
        if not (is_root and is_stable and is_gram and linear.excess_risk > 0):
            raise self._no_fixed_point()
        rate = float(-eigenvalues[eigenvalues < -NULL * scale].max())
        return _Root(M, Q, rate, linear.excess_risk)

    def _no_fixed_point(self) -> ValueError:
        fix = (
            "SGD does not stay near the teacher at this learning rate, because there is no stable "
            "fixed point. Use a smaller one."
        )
        return checks.reject("lr", self.algorithm.lr, fix)

    @cached_property
    def _directions(self) -> np.ndarray:
        return _independent_directions(self.problem.structure)

    @cached_property
    def _to_unknowns(self) -> np.ndarray:
        """The map from (M, Q) to the unknowns."""
        return np.linalg.pinv(self._directions)

    def _leading_shift(self) -> np.ndarray:
        """The unknowns to first order in lr: V_b = f_b 1, and normalised rows on the sphere."""
        problem = self.problem
        shift_M = np.zeros(problem.gram.shape)
        shift_Q = problem.parameters["fractions"][:, None, None] * np.eye(problem.width)
        if problem.structure.constraint.fixes_norms:
            shift_M, shift_Q = -problem.gram / 2, shift_Q - problem.gram
        return self._to_unknowns @ np.concatenate([shift_M.reshape(-1), shift_Q.reshape(-1)])

    def _overlaps(self, y: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
        """M and Q by blocks, for unknowns with any leading axes."""
        gram, batch_shape = self.problem.gram, y.shape[:-1]
        teacher = np.concatenate([gram.reshape(-1), gram.reshape(-1)])
        M, Q = np.split(teacher + distance * (y @ self._directions.T), [gram.size], axis=-1)
        return M.reshape(*batch_shape, *gram.shape), Q.reshape(*batch_shape, *gram.shape)

    def _linearise(self, y: np.ndarray, share: float) -> _Linearisation:
        """Drift, Jacobian by central differences, and excess risk at `share` of the learning rate.

        All states are evaluated by one compiled call.
        """
        problem, distance = self.problem, share * self.distance
        hyperparameters = {
            **self.algorithm.parameters,
            "lr": np.float64(share * self.algorithm.lr),
        }
        step = max(DIFFERENCE, MIN_DIFFERENCE / distance)
        offsets = np.concatenate([np.zeros((1, len(y))), np.eye(len(y)), -np.eye(len(y))])
        M, Q = self._overlaps(y + step * offsets, distance)
        head = np.broadcast_to(problem.teacher_head, (len(offsets), problem.width))
        rates, risk = _rates_and_risk(
            problem.structure,
            self.quadrature,
            self.algorithm.batch,
            self.nodes,
            problem.parameters,
            hyperparameters,
            {"M": M, "Q": Q, "a": head},
        )
        flat = [np.asarray(rates[name]).reshape(len(offsets), -1) for name in ("M", "Q")]
        values = np.concatenate(flat, axis=1) / distance
        plus, minus = np.split(values[1:], 2)
        jacobian = (plus - minus).T / (2 * step)
        return _Linearisation(values[0], jacobian, float(risk) - problem.noise_floor)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _rates_and_risk(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    nodes: Nodes,
    parameters: Parameters,
    hyperparameters: Parameters,
    states: State,
) -> tuple[dict[str, Any], Any]:
    """The drift of many states, and the risk of the first."""

    def rate(state: State) -> dict[str, Any]:
        return drift(structure, quadrature, nodes, parameters, hyperparameters, state, batch=batch)

    first = jax.tree.map(lambda value: value[0], states)
    return jax.vmap(rate)(states), risk_at(structure, quadrature, nodes, parameters, first)


def _independent_directions(structure: Structure) -> np.ndarray:
    """Independent directions in (M_blocks, Q_blocks), as columns.

    Q is symmetric. On the sphere the sum of its diagonals over blocks is fixed, so that the entry
    of the last block compensates that of each other block.
    """
    blocks, p = structure.blocks, structure.width
    fixes_norms = structure.constraint.fixes_norms
    size_M = blocks * p * structure.signals
    columns = list(np.eye(size_M + blocks * p * p)[:size_M])
    for b, i, j in np.ndindex(blocks, p, p):
        if i > j or (fixes_norms and i == j and b == blocks - 1):
            continue
        direction = np.zeros((blocks, p, p))
        direction[b, i, j] = direction[b, j, i] = 1.0
        if fixes_norms and i == j:
            direction[-1, i, i] = -1.0
        columns.append(np.concatenate([np.zeros(size_M), direction.reshape(-1)]))
    return np.stack(columns, axis=1)


def _closed_form(problem: TeacherStudent, rate: float) -> float | None:
    """The plateau in closed form, or None if there is none; `rate` = lr/B."""
    parameters, p = problem.parameters, problem.width
    gram, head = problem.gram[0], problem.teacher_head
    if problem.activation == NAMED["linear"] and problem.constraint is None:
        trace = float(input_covariance.trace(parameters))
        c = rate * trace * float(np.sum((head / p) ** 2)) / 2
        return problem.noise / 2 * c / (1 - c)
    eigenvalues = input_covariance.eigenvalues(parameters)
    is_symmetric = np.ptp(head) == 0 and np.array_equal(gram, gram[0, 0] * np.eye(p))
    if problem.activation == NAMED["square"] and len(eigenvalues) == 1 and is_symmetric:
        c = rate * float(head[0] ** 2 * eigenvalues[0] ** 2 * gram[0, 0])
        return problem.noise * (c / p) / (1 - 2 * c * (p + 2) / p**2)
    return None
