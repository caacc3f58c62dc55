"""The covariance of one sample's increment: the diffusion matrix of the SDE.

Per unit of lr/d, a sample moves (M, Q, a) by

    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) tr h h^T,   u_a = - head_rate dloss/da

with h = dloss/dlambda and tr = |x|^2/d -> 1 (with covariance blocks: the mean eigenvalue); with several inputs a sample summed over them,
and tr h h^T by their correlation, tr h C h^T; on the sphere u_M -= M u_Qii/2 and
u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2. Three ways, of which the first that fits is taken:

- squared activations, any width: by Wick. With e = y - f, every part of u is (A e + B e^2) lambda_i lambda_j, and the moments
  E[e^k lambda_i lambda_j lambda_k lambda_l] are the Taylor coefficients in s of E[exp(s e) ...], a Gaussian with another covariance;
- other polynomials: a Gauss-Hermite grid that is exact for their degree, as long as it has few enough points;
- anything else: scrambled Sobol points, with a standard error from replicates.
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

from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm, constant_rate
from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters
from sgdynamics.base.precision import float64
from sgdynamics.expectations.interface import Overlaps
from sgdynamics.expectations.nodes import hermite_product, sobol_normals
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.expectations.sampled import parameters_with_overlaps
from sgdynamics.problems.gram import eigen_root
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, validate_start
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.compressed import sample_moves

MOST_GRID_POINTS = 400_000
LOG2_POINTS, REPLICATES = 14, 8


@dataclass(frozen=True)
class IncrementCovariance:
    """Mean and covariance of one sample's increment of the coordinates `names` (M row by row, Q's upper triangle, a if trained)."""

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray
    standard_error: np.ndarray
    method: str

    def of(self, *names: str) -> np.ndarray:
        """The covariance of some coordinates, such as of("M11", "Q11")."""
        index = []
        for name in names:
            checks.choice("name", name, self.names)
            index.append(self.names.index(name))
        return self.covariance[np.ix_(index, index)]


@float64
def increment_covariance(
    problem: Problem, algorithm: OnePassSGD, start: Start, run: int = 0
) -> IncrementCovariance:
    """The covariance of one sample's increment of (M, Q, a) per unit of lr/d, as d -> infinity: the SDE's noise is sqrt(lr/(d B)) its root.

    Parameters
    ----------
    problem : Problem
        What is learned, with Gaussian inputs.
    algorithm : OnePassSGD
        Plain one-pass SGD.
    start : Start
        The state at which it is asked for.
    run : int, default 0
        Which run of the start.

    Returns
    -------
    IncrementCovariance
        With ``names`` of the coordinates (M row by row, Q's upper triangle, a if trained), ``mean``, ``covariance``, its
        ``standard_error``, the ``method``, and ``of("M11", "Q11")`` for some coordinates.

    Raises
    ------
    ValueError
        If the start has no such run, or the question is not answered for this problem or algorithm.

    Notes
    -----
    For squared activations it is the one of Escaping mediocrity, (60)-(62), there for width 1, with the misprints of (62) corrected.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> found = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.1), begin)
    >>> found.names
    ('M11', 'M21', 'Q11', 'Q12', 'Q22')
    >>> round(float(found.of("M11")[0, 0]), 2)
    11.87
    """
    algorithm = checked_algorithm(algorithm, "increment_covariance", problem)
    begin = validate_start(problem, start)
    if not 0 <= checks.integer("run", run, 0) < begin.runs:
        raise checks.reject("run", run, f"the start has {begin.runs} runs")
    structure = problem.structure
    parameters = problem.parameters
    overlaps = overlaps_at(
        structure, parameters, {"M": begin.M_blocks[run], "Q": begin.Q_blocks[run]}
    )
    # lr/B times |x|^2/d
    push = (
        constant_rate(algorithm, "increments")
        / algorithm.batch
        * float(input_covariance.trace(parameters))
    )
    names, kinds = _coordinates(structure)
    project = (
        _projection(structure, names, begin.M[run], begin.Q[run])
        if structure.constraint.fixes_norms
        else np.eye(len(names))
    )
    shift = _decay(structure, names, parameters, algorithm, begin, run)
    if structure.loss.quadratic and structure.sample.noise_law is None:
        mean, covariance = _wick(
            structure,
            parameters,
            algorithm,
            np.asarray(overlaps.covariance),
            begin.a[run],
            push,
            kinds,
        )
        error, method = np.zeros_like(covariance), "wick"
    else:
        points, weights, exact = _points(structure)
        given = (structure, parameters, algorithm, overlaps, begin.a[run], push, kinds)
        found = [_averages(*given, z, w) for z, w in zip(points, weights, strict=True)]
        mean, second = (np.mean([part[index] for part in found], axis=0) for index in (0, 1))
        covariance = second - np.outer(mean, mean)
        each = np.array(
            [project @ (part[1] - np.outer(part[0], part[0])) @ project.T for part in found]
        )
        error = (
            np.zeros_like(covariance) if exact else each.std(axis=0, ddof=1) / math.sqrt(len(each))
        )
        method = "exact grid" if exact else "sampled"
    covariance = project @ covariance @ project.T
    return IncrementCovariance(
        names, project @ (mean + shift), (covariance + covariance.T) / 2, error, method
    )


def _coordinates(structure: Structure) -> tuple[tuple[str, ...], list[tuple[str, int, int]]]:
    p, k = structure.width, structure.signals
    separator = "" if max(p, k) < 10 else ","
    kinds = [("M", i, r) for i in range(p) for r in range(k)] + [
        ("Q", i, j) for i in range(p) for j in range(i, p)
    ]
    if structure.trained:
        kinds += [("a", i, i) for i in range(p)]
    names = tuple(
        f"a{i + 1}" if kind == "a" else f"{kind}{i + 1}{separator}{j + 1}" for kind, i, j in kinds
    )
    return names, kinds


def _projection(
    structure: Structure, names: tuple[str, ...], M: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """What normalising the rows does to an increment, to first order."""
    _, kinds = _coordinates(structure)
    place = {kind: index for index, kind in enumerate(kinds)}
    project = np.eye(len(names))
    for index, (kind, i, j) in enumerate(kinds):
        if kind == "M":
            project[index, place["Q", i, i]] -= M[i, j] / 2
        elif kind == "Q":
            project[index, place["Q", i, i]] -= Q[i, j] / 2
            project[index, place["Q", j, j]] -= Q[i, j] / 2
    return project


def _decay(
    structure: Structure,
    names: tuple[str, ...],
    parameters: Parameters,
    algorithm: OnePassSGD,
    begin: Start,
    run: int,
) -> np.ndarray:
    """What weight decay adds to the mean: it has no noise."""
    al = float(parameters["weight_decay"])
    M, Q, a = begin.M[run], begin.Q[run], begin.a[run]
    _, kinds = _coordinates(structure)
    values = {
        "M": lambda i, r: -al * M[i, r],
        "Q": lambda i, j: -2 * al * Q[i, j],
        "a": lambda i, _: -algorithm.head_rate * al * a[i],
    }
    return np.array([values[kind](i, j) for kind, i, j in kinds])


def _wick(
    structure: Structure,
    parameters: Parameters,
    algorithm: OnePassSGD,
    omega: np.ndarray,
    head: np.ndarray,
    push: float,
    kinds: list,
) -> tuple[np.ndarray, np.ndarray]:
    """Squared activations: u = (A e + B e^2) lambda_i lambda_j with e = sum_b c_b lambda_b^2 + sqrt(noise) z."""
    p = structure.width
    teachers = np.asarray(parameters["teacher_head"])
    c = np.concatenate([-head / p, teachers / len(teachers)])
    alpha = 2 * head / p
    first = [i for _, i, _ in kinds]
    second = [p + j if kind == "M" else j for kind, _, j in kinds]
    A = np.array(
        [
            {"M": alpha[i], "Q": alpha[i] + alpha[j % p], "a": algorithm.head_rate / p}[kind]
            for kind, i, j in kinds
        ]
    )
    B = np.array([push * alpha[i] * alpha[j] if kind == "Q" else 0.0 for kind, i, j in kinds])
    order = 5
    # the covariance of the fields under exp(s e), and the normalisation, as power series in s
    tilted = [omega]
    for _ in range(order - 1):
        tilted.append(2 * tilted[-1] @ (c[:, None] * omega))
    log_norm = np.zeros(order)
    power = np.eye(len(c))
    for m in range(1, order):
        power = 2 * power @ (c[:, None] * omega)
        log_norm[m] = np.trace(power) / (2 * m)
    log_norm[2] += float(parameters["noise"]) / 2
    norm = np.zeros(order)
    norm[0] = 1.0
    for m in range(1, order):
        norm[m] = sum(k * log_norm[k] * norm[m - k] for k in range(1, m + 1)) / m

    def moment(k: int, make: Function) -> np.ndarray:
        """E[e^k ...], from k! times the coefficient of s^k."""
        return math.factorial(k) * np.sum([norm[k - m] * make(m) for m in range(k + 1)], axis=0)

    i, j = np.array(first), np.array(second)
    X, Y = (i[:, None], j[:, None]), (i[None], j[None])

    def four(m: int) -> np.ndarray:
        total = np.zeros((len(i), len(i)))
        for s in range(m + 1):
            low, high = tilted[s], tilted[m - s]
            total += (
                low[X] * high[Y]
                + low[X[0], Y[0]] * high[X[1], Y[1]]
                + low[X[0], Y[1]] * high[X[1], Y[0]]
            )
        return total

    e1, e2 = (moment(k, lambda m: tilted[m][i, j]) for k in (1, 2))
    mean = A * e1 + B * e2
    second_moment = (
        np.outer(A, A) * moment(2, four)
        + (np.outer(A, B) + np.outer(B, A)) * moment(3, four)
        + np.outer(B, B) * moment(4, four)
    )
    return mean, second_moment - np.outer(mean, mean)


def _points(structure: Structure) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
    """Points for the fields and the label noise: an exact grid for polynomials where it is small enough, else Sobol replicates."""
    degree = structure.loss.gradient_degree
    if degree is not None and structure.sample.noise_law is None:
        # u has twice the degree of h, and its square four times
        count = 2 * degree + 1
        if count**structure.fields * 3 <= MOST_GRID_POINTS:
            grid, weight = hermite_product((count,) * structure.fields + (3,))
            return [grid], [weight], True
    points = sobol_normals(
        sum(_columns(structure)), LOG2_POINTS, REPLICATES, whiten=False, seed=1701
    )
    return list(points), [np.full(points.shape[1], 1 / points.shape[1])] * REPLICATES, False


def _columns(structure: Structure) -> tuple[int, int]:
    """Normals of all fields of all tokens, read or not, and of the draws."""
    return structure.sample.inputs_a_sample * structure.fields, max(structure.sample.free, 1)


def _averages(
    structure: Structure,
    parameters: Parameters,
    algorithm: OnePassSGD,
    overlaps: Overlaps,
    head: np.ndarray,
    push: float,
    kinds: list,
    z: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """E[u] and E[u u^T] over weighted points, each once with every case of the draws that have few."""
    sample, p = structure.sample, structure.width
    tokens, (size, free) = sample.inputs_a_sample, _columns(structure)
    centred = np.asarray(
        sample.mixed(parameters, z[:, :size].reshape(-1, tokens, structure.fields), -2)
    )
    centred = centred @ eigen_root(np.asarray(overlaps.covariance)).T
    shares, cases = sample.cases(parameters)
    reading = parameters_with_overlaps(structure, parameters, overlaps)
    first: Any = 0.0
    second: Any = 0.0
    for index, share in enumerate(np.asarray(shares)):
        case = {
            name: jnp.broadcast_to(value[index], (len(z), *value.shape[1:]))
            for name, value in cases.items()
        }
        draws = sample.drawn(parameters, jnp.asarray(z[:, -free:]), case)
        means = sample.mean_coefficients(parameters, draws)
        fields = (
            centred
            if means is None
            else centred + np.asarray(overlaps.means(means.reshape(-1, tokens, structure.signals)))
        )
        rows = fields.reshape(-1, structure.fields)
        h, head_gradient, pulls = _moves(
            structure, reading, rows[:, :p], rows[:, p:], head, sample.given(draws)
        )
        by_token = h.reshape(-1, tokens, p)
        along = np.einsum("nti,ntf->nif", by_token, fields)
        if pulls is not None:
            by_block = np.asarray(overlaps.blocks)
            if structure.loss.moves_by_block:
                along = along + np.einsum("nbic,bcd->nid", np.asarray(pulls), by_block)
            else:
                along = along + np.asarray(pulls) @ by_block.sum(axis=0)
        mixed = np.asarray(sample.mixed(parameters, by_token, -2))
        kick = np.einsum("nti,ntj->nij", mixed, mixed)
        every = np.concatenate([along, push * kick, np.asarray(head_gradient)[:, :, None]], axis=2)
        u = np.stack([_increment(structure, algorithm, every, *one) for one in kinds], axis=1)
        first, second = (
            first + share * (weights @ u),
            second + share * ((weights[:, None] * u).T @ u),
        )
    return first, second


def _increment(
    structure: Structure, algorithm: OnePassSGD, every: np.ndarray, kind: str, i: int, j: int
) -> np.ndarray:
    """u of one coordinate, from h lambda^T of all fields, the kicks and dloss/da side by side."""
    p, fields = structure.width, structure.fields
    if kind == "M":
        return -every[:, i, p + j]
    if kind == "Q":
        return -every[:, i, j] - every[:, j, i] + every[:, i, fields + j]
    return -algorithm.head_rate * every[:, i, -1]


@partial(jax.jit, static_argnums=0)
def _moves(
    structure: Structure,
    parameters: Parameters,
    fields: Float[Numeric, "n p"],
    signals: Float[Numeric, "n K"],
    head: Float[Numeric, " p"],
    noise: Float[Numeric, " n"],
) -> Any:
    return sample_moves(structure, parameters, jnp.asarray(fields), signals, head, noise)
