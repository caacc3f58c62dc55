"""The covariance of the increment due to one sample: the diffusion matrix of the SDE.

Per unit of lr/d, a sample changes (M, Q, a) by

    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) tr h h^T,
    u_a = - head_rate dloss/da

with h = dloss/dlambda and tr = |x|^2/d -> 1 (with covariance blocks: the mean eigenvalue). With
several inputs per sample, the terms are summed over the inputs and h h^T becomes h C h^T, with C
their correlation. On the sphere, u_M -= M u_Qii/2 and u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2.

The first of three methods that applies is used:

- Squared activations, any width: Wick's theorem. With e = y - f, every entry of u has the form
  (A e + B e^2) lambda_i lambda_j, and the moments E[e^k lambda_i lambda_j lambda_k lambda_l] are
  the Taylor coefficients in s of E[exp(s e) ...], a Gaussian expectation with another covariance.
- Other polynomials: a Gauss-Hermite grid that is exact for their degree, if it is small enough.
- All other losses: scrambled Sobol points, with a standard error from replicates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.expectations.interface import Overlaps
from sgdynamics.expectations.nodes import hermite_product, sobol_normals
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.expectations.sampled import parameters_with_overlaps
from sgdynamics.problems.gram import eigen_root
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.tops import head_decay
from sgdynamics.results.variables import TOP_PREFIX
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.sample_moves import SampleMoves, sample_moves

# Above this size, sampling is cheaper than an exact grid.
MOST_GRID_POINTS = 400_000
# Sobol points: log2 of their number per replicate, and the number of replicates.
LOG2_POINTS, REPLICATES = 14, 8

# (variable, row, column) of one entry of M, Q or a.
Coordinate = tuple[str, int, int]


@dataclass(frozen=True)
class IncrementCovariance:
    """Mean and covariance of the increment due to one sample.

    Attributes
    ----------
    names : tuple of str
        Names of the coordinates: M row by row, the upper triangle of Q, and a trained head a.
    mean, covariance : array
        Mean and covariance of the increment per unit of lr/d.
    standard_error : array
        Standard error of the covariance; 0 for exact methods.
    method : str
        "wick", "exact grid" or "sampled".
    """

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray
    standard_error: np.ndarray
    method: str

    def of(self, *names: str) -> np.ndarray:
        """Return the covariance of selected coordinates, such as of("M11", "Q11")."""
        index = []
        for name in names:
            checks.choice("name", name, self.names)
            index.append(self.names.index(name))
        return self.covariance[np.ix_(index, index)]


@float64
def increment_covariance(
    problem: Problem, algorithm: OnePassSGD, start: Start, run: int = 0
) -> IncrementCovariance:
    """Covariance of the increment of (M, Q, a) due to one sample, in the limit d -> infinity.

    Increments are counted in units of lr/d. The noise of the SDE is sqrt(lr/(d B)) times a square
    root of this matrix.

    Parameters
    ----------
    problem : Problem
        The learning problem, with Gaussian inputs.
    algorithm : OnePassSGD
        Plain one-pass SGD.
    start : Start
        The state at which the covariance is evaluated.
    run : int, default 0
        Index of the run of the start.

    Returns
    -------
    IncrementCovariance
        Object with the ``names`` of the coordinates (M row by row, the upper triangle of Q, a
        trained head), ``mean``, ``covariance``, its ``standard_error`` and the ``method``;
        ``of("M11", "Q11")`` selects coordinates.

    Raises
    ------
    ValueError
        If the start has no such run, or if the problem or algorithm is not supported.

    Notes
    -----
    For squared activations and width 1 this is the covariance of Escaping mediocrity, (60)-(62),
    with the misprints of (62) corrected.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> increment = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.1), start)
    >>> increment.names
    ('M11', 'M21', 'Q11', 'Q12', 'Q22')
    >>> round(float(increment.of("M11")[0, 0]), 2)
    11.87
    """
    # All arguments are checked before anything is computed.
    algorithm = validate_algorithm(algorithm, "increment_covariance", problem)
    start = validate_start(problem, start)
    if not 0 <= checks.integer("run", run, 0) < start.runs:
        raise checks.reject("run", run, f"the start has {start.runs} runs")
    structure = problem.structure
    parameters = problem.parameters
    state = {"M": start.M_blocks[run], "Q": start.Q_blocks[run]}
    overlaps = overlaps_at(structure, parameters, state)
    # coefficient of h h^T in u_Q: lr/B times |x|^2/d
    noise_rate = constant_rate(algorithm, "increments") / algorithm.batch
    noise_rate *= float(input_covariance.trace(parameters))
    names, coordinates = _coordinates(structure)
    # On the sphere the normalisation maps the increment u of a free step to projection u.
    projection = (
        _projection(structure, names, start.M[run], start.Q[run])
        if structure.constraint.fixes_norms
        else np.eye(len(names))
    )
    decay = _decay(structure, names, parameters, algorithm, start, run)
    # Wick's theorem needs Gaussian label noise, as well as squared activations.
    if structure.loss.quadratic and structure.sample.noise_law is None:
        omega = np.asarray(overlaps.covariance)
        mean, covariance = _wick(
            structure, parameters, algorithm, omega, start.a[run], noise_rate, coordinates
        )
        error, method = np.zeros_like(covariance), "wick"
    else:
        points, weights, is_exact = _points(structure)
        averages = [
            _averages(
                structure,
                parameters,
                algorithm,
                overlaps,
                start.a[run],
                noise_rate,
                coordinates,
                replicate,
                weight,
            )
            for replicate, weight in zip(points, weights, strict=True)
        ]
        # moments are averaged over the replicates before the covariance is formed
        mean, second_moment = (
            np.mean([moments[index] for moments in averages], axis=0) for index in (0, 1)
        )
        covariance = second_moment - np.outer(mean, mean)
        # one covariance per replicate, for the standard error
        covariances = np.array(
            [
                projection @ (second - np.outer(first, first)) @ projection.T
                for first, second in averages
            ]
        )
        error = (
            np.zeros_like(covariance)
            if is_exact
            else covariances.std(axis=0, ddof=1) / math.sqrt(len(covariances))
        )
        method = "exact grid" if is_exact else "sampled"
    covariance = projection @ covariance @ projection.T
    # Symmetric to the last bit, for eigenvalue solvers.
    return IncrementCovariance(
        names, projection @ (mean + decay), (covariance + covariance.T) / 2, error, method
    )


def _coordinates(structure: Structure) -> tuple[tuple[str, ...], list[Coordinate]]:
    """Return the names of the coordinates and their (variable, row, column)."""
    p, k = structure.width, structure.signals
    # "M11" is unambiguous only below ten rows and signals; beyond that it is "M1,1"
    separator = "" if max(p, k) < 10 else ","
    # Q is symmetric: its upper triangle contains all of it.
    coordinates = [("M", i, r) for i in range(p) for r in range(k)] + [
        ("Q", i, j) for i in range(p) for j in range(i, p)
    ]
    if structure.trained:
        coordinates += [("a", i, i) for i in range(structure.head_size)]
    top = structure.top
    head_names = (
        [f"a{i + 1}" for i in range(structure.head_size)]
        if top is None
        else top.entry_names(TOP_PREFIX)
    )
    names = tuple(
        head_names[i] if kind == "a" else f"{kind}{i + 1}{separator}{j + 1}"
        for kind, i, j in coordinates
    )
    return names, coordinates


def _projection(
    structure: Structure, names: tuple[str, ...], M: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """Return the linear map that the normalisation of the rows applies to an increment."""
    _, coordinates = _coordinates(structure)
    index_of = {coordinate: index for index, coordinate in enumerate(coordinates)}
    projection = np.eye(len(names))
    for index, (kind, i, j) in enumerate(coordinates):
        # M_ir/|w_i| changes by -M_ir dQ_ii/2, and Q_ij likewise for both of its rows
        if kind == "M":
            projection[index, index_of["Q", i, i]] -= M[i, j] / 2
        elif kind == "Q":
            projection[index, index_of["Q", i, i]] -= Q[i, j] / 2
            projection[index, index_of["Q", j, j]] -= Q[i, j] / 2
    return projection


def _decay(
    structure: Structure,
    names: tuple[str, ...],
    parameters: Parameters,
    algorithm: OnePassSGD,
    start: Start,
    run: int,
) -> np.ndarray:
    """Return the mean increment due to weight decay, which has no noise."""
    # In the time t the weights decay as dW/dt = -al W, and the head with its relative rate.
    al = float(parameters["weight_decay"])
    M, Q, a = start.M[run], start.Q[run], start.a[run]
    _, coordinates = _coordinates(structure)
    head_decays = -algorithm.head_rate * np.asarray(head_decay(parameters)) * a
    values = {
        "M": lambda i, r: -al * M[i, r],
        "Q": lambda i, j: -2 * al * Q[i, j],
        "a": lambda i, _: head_decays[i],
    }
    return np.array([values[kind](i, j) for kind, i, j in coordinates])


def _wick(
    structure: Structure,
    parameters: Parameters,
    algorithm: OnePassSGD,
    omega: np.ndarray,
    head: np.ndarray,
    noise_rate: float,
    coordinates: list[Coordinate],
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance for squared activations, by Wick's theorem.

    With e = y - f = sum_b c_b lambda_b^2 + sqrt(noise) z, u = (A e + B e^2) lambda_i lambda_j.
    Under the weight exp(s e) the fields are Gaussian with covariance (Omega^-1 - 2 s diag(c))^-1.
    """
    p = structure.width
    # The fields are ordered as in Omega: students first, then teachers.
    teachers = np.asarray(parameters["teacher_head"])
    # e = sum_b c_b lambda_b^2: students with -a_i/p, teachers with a*_r/k
    c = np.concatenate([-head / p, teachers / len(teachers)])
    # h_i = -alpha_i e lambda_i
    alpha = 2 * head / p
    # u of a coordinate is (A e + B e^2) times the product of these two fields
    first = [i for _, i, _ in coordinates]
    second = [p + j if kind == "M" else j for kind, _, j in coordinates]
    # Entries of the docstring: e lambda_i lambda_j comes from the first order in h, and
    # e^2 lambda_i lambda_j, for Q alone, from (lr/B) h h^T.
    A = np.array(
        [
            {"M": alpha[i], "Q": alpha[i] + alpha[j % p], "a": algorithm.head_rate / p}[kind]
            for kind, i, j in coordinates
        ]
    )
    B = np.array(
        [noise_rate * alpha[i] * alpha[j] if kind == "Q" else 0.0 for kind, i, j in coordinates]
    )
    # u u^T contains e^4 at most, so the series is needed up to s^4
    order = 5
    # Covariance of the fields under exp(s e), and the normalisation E[exp(s e)], as power series in
    # s. The logarithm of the normalisation is -log det(1 - 2 s diag(c) Omega)/2 + s^2 noise/2.
    # (Omega^-1 - 2 s D)^-1 = Omega + 2 s Omega D Omega + ... with D = diag(c)
    tilted = [omega]
    for _ in range(order - 1):
        tilted.append(2 * tilted[-1] @ (c[:, None] * omega))
    log_norm = np.zeros(order)
    power = np.eye(len(c))
    for m in range(1, order):
        power = 2 * power @ (c[:, None] * omega)
        log_norm[m] = np.trace(power) / (2 * m)
    log_norm[2] += float(parameters["noise"]) / 2
    # exponential of a power series: m N_m = sum_k k l_k N_(m - k)
    norm = np.zeros(order)
    norm[0] = 1.0
    for m in range(1, order):
        norm[m] = sum(k * log_norm[k] * norm[m - k] for k in range(1, m + 1)) / m

    def moment(k: int, make: Function) -> np.ndarray:
        """Return E[e^k ...], which is k! times the coefficient of s^k."""
        return math.factorial(k) * np.sum([norm[k - m] * make(m) for m in range(k + 1)], axis=0)

    # Index arrays of all pairs of coordinates: (i, j) of the one along rows, of the other along
    # columns.
    i, j = np.array(first), np.array(second)
    X, Y = (i[:, None], j[:, None]), (i[None], j[None])

    def four_point(m: int) -> np.ndarray:
        """Return the coefficient of s^m of E[lambda_i lambda_j lambda_k lambda_l] (Isserlis)."""
        total = np.zeros((len(i), len(i)))
        # product of two power series, in each of the three pairings
        for s in range(m + 1):
            low, high = tilted[s], tilted[m - s]
            total += (
                low[X] * high[Y]
                + low[X[0], Y[0]] * high[X[1], Y[1]]
                + low[X[0], Y[1]] * high[X[1], Y[0]]
            )
        return total

    # mean A E[e l_i l_j] + B E[e^2 l_i l_j], and likewise for the second moments
    e1, e2 = (moment(k, lambda m: tilted[m][i, j]) for k in (1, 2))
    mean = A * e1 + B * e2
    second_moment = (
        np.outer(A, A) * moment(2, four_point)
        + (np.outer(A, B) + np.outer(B, A)) * moment(3, four_point)
        + np.outer(B, B) * moment(4, four_point)
    )
    return mean, second_moment - np.outer(mean, mean)


def _points(structure: Structure) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
    """Return points and weights for the fields and the label noise, and whether they are exact.

    The points are an exact grid for polynomials if it is small enough, else Sobol replicates.
    """
    degree = structure.loss.gradient_degree
    if degree is not None and structure.sample.noise_law is None:
        # u has twice the degree of h, and u u^T four times
        count = 2 * degree + 1
        if count**structure.fields * 3 <= MOST_GRID_POINTS:
            # three nodes are exact for the label noise, of which u u^T has degree 4
            grid, weight = hermite_product((count,) * structure.fields + (3,))
            return [grid], [weight], True
    # Not whitened: that would bias the fourth moments of the points, which matter here.
    points = sobol_normals(
        sum(_columns(structure)), LOG2_POINTS, REPLICATES, whiten=False, seed=1701
    )
    return list(points), [np.full(points.shape[1], 1 / points.shape[1])] * REPLICATES, False


def _columns(structure: Structure) -> tuple[int, int]:
    """Return the number of normals of the fields of all tokens, and of the draws."""
    return structure.sample.tokens.inputs_per_sample * structure.fields, max(
        structure.sample.sampled_normals, 1
    )


def _averages(
    structure: Structure,
    parameters: Parameters,
    algorithm: OnePassSGD,
    overlaps: Overlaps,
    head: np.ndarray,
    noise_rate: float,
    coordinates: list[Coordinate],
    z: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[u] and E[u u^T] over weighted points and all cases of the discrete draws."""
    sample, p = structure.sample, structure.width
    tokens, (size, free) = sample.tokens.inputs_per_sample, _columns(structure)
    centred = np.asarray(
        sample.tokens.correlate(parameters, z[:, :size].reshape(-1, tokens, structure.fields), -2)
    )
    # fields with the covariance Omega, from standard normals
    centred = centred @ eigen_root(np.asarray(overlaps.covariance)).T
    shares, cases = sample.cases(parameters)
    loss_parameters = parameters_with_overlaps(structure, parameters, overlaps)
    # E[u] and E[u u^T], summed over the cases of the discrete draws.
    first: Any = 0.0
    second: Any = 0.0
    for index, share in enumerate(np.asarray(shares)):
        case: dict[str, Any] = {
            name: jnp.broadcast_to(value[index], (len(z), *value.shape[1:]))
            for name, value in cases.items()
        }
        draws = sample.draw(parameters, jnp.asarray(z[:, -free:]), case)
        means = sample.mean_coefficients(parameters, draws)
        fields = (
            centred
            if means is None
            else centred + np.asarray(overlaps.means(means.reshape(-1, tokens, structure.signals)))
        )
        rows = fields.reshape(-1, structure.fields)
        h, head_gradient, pulls = _moves(
            structure, loss_parameters, rows[:, :p], rows[:, p:], head, sample.loss_argument(draws)
        )
        by_token = h.reshape(-1, tokens, p)
        # h lambda^T, summed over the tokens, and the part due to losses that read overlaps
        products = np.einsum("nti,ntf->nif", by_token, fields)
        if pulls is not None:
            by_block = np.asarray(overlaps.blocks)
            if structure.loss.moves_by_block:
                products = products + np.einsum("nbic,bcd->nid", np.asarray(pulls), by_block)
            else:
                products = products + np.asarray(pulls) @ by_block.sum(axis=0)
        # h C h^T, with C the correlation of the tokens
        mixed = np.asarray(sample.tokens.correlate(parameters, by_token, -2))
        gram = np.einsum("nti,ntj->nij", mixed, mixed)
        terms = np.concatenate([products, noise_rate * gram], axis=2)
        head_steps = -algorithm.head_rate * np.asarray(head_gradient)
        u = np.stack(
            [_increment(structure, terms, head_steps, *coordinate) for coordinate in coordinates],
            axis=1,
        )
        first = first + share * (weights @ u)
        second = second + share * ((weights[:, None] * u).T @ u)
    return first, second


def _increment(
    structure: Structure, terms: np.ndarray, head_steps: np.ndarray, kind: str, i: int, j: int
) -> np.ndarray:
    """Return u of one coordinate, from h lambda^T and (lr/B) h h^T side by side, and u of a."""
    p, fields = structure.width, structure.fields
    if kind == "M":
        return -terms[:, i, p + j]
    if kind == "Q":
        return -terms[:, i, j] - terms[:, j, i] + terms[:, i, fields + j]
    return head_steps[:, i]


@partial(jax.jit, static_argnums=0)
def _moves(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "n p"],
    signals: Float[Numeric, "n K"],
    head: Float[Numeric, " p"],
    noise: PyTree,
) -> SampleMoves:
    """Return the gradients of the loss at each point, compiled."""
    return sample_moves(structure, parameters, jnp.asarray(fields), signals, head, noise)
