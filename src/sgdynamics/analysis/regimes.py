"""The limit that describes one-pass SGD at (lr, d, p), from the terms that each limit neglects.

One step moves the overlaps by (slides "Dimension-free limits of SGD"; Veiga, Stephan, Loureiro,
Krzakala and Zdeborova 2022)

    M += (lr/(p d)) flow_M,
    Q += (lr/(p d)) flow_Q + (lr^2/(p^2 d B)) noise,   plus fluctuations of mean zero,

so that in the slides' clock t/p = lr steps/(p d) runs follow an ODE with a noise term lr/(p B) to
within sqrt(lr/(p d B)). Hence the limits

    classical          lr/p -> 0 at fixed p and d    gradient flow
    high-dimensional   d -> infinity at fixed lr/p   the ODE with the noise of SGD
                                                     (Saad and Solla 1995)
    mean-field         p -> infinity, so lr/p -> 0   particles in the field of their own density

If d is too small for any of them, runs scatter: they follow a diffusion around the ODE, and at yet
smaller d single steps matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64
from sgdynamics.problems.gram import gram_root
from sgdynamics.problems.overlap_starts import Start, overlap_matrix, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.wide_starts import check_wide_problem
from sgdynamics.samples import input_covariance

# A term below this size may be neglected (relative for noise and width; absolute for fluctuations
# of an overlap).
SMALL = 0.05
# No diffusion describes overlaps that scatter by more than this, because a few steps move them.
LARGE = 0.2
# Time t/p over which fluctuations accumulate, that of the check of the theorem. Their mean largest
# size is then about the scale.
HORIZON = 5.0
# Squared overlap of a row with its signal at the default state, which is half learned.
SIGNAL_SHARE = 0.5
# Samples of the estimates, fewer for wide networks, whose fields are limited in number.
SAMPLES, MIN_SAMPLES, MAX_SAMPLED_FIELDS = 1 << 13, 1 << 10, 1 << 23
# Units whose overlaps the estimates use.
MAX_UNITS = 32
# Standard errors by which gradient flow must exceed its own sampling noise.
SIGNIFICANCE = 5
# Values of alpha at which the largest rate of a user's schedule is searched.
ALPHAS = np.concatenate([[0.0], np.geomspace(1e-3, 1e4, 1024)])


@dataclass(frozen=True)
class Term:
    """A term that some limit neglects.

    Its size for the problem is the coefficient times the scale in (lr, d, p).
    """

    scale: float
    coefficient: float

    @property
    def size(self) -> float:
        return self.coefficient * self.scale


@dataclass(frozen=True)
class Regime:
    """The regime of (lr, d, p), the size of each neglected term, and the solver to use.

    Attributes
    ----------
    name : str
        Name of the regime.
    solver : str
        Call of the solver that describes the regime.
    why : str
        Reason for the choice, as a sentence.
    width : int
        Number of hidden units p.
    signals : int
        Number of signals k.
    dimension : int
        The dimension d.
    lr : float
        The learning rate; the largest one of a schedule.
    batch : int
        Number of samples per step B.
    noise : Term
        Noise of SGD, of scale lr/(p B): the largest entry of its contribution to dQ/dt, relative to
        the largest rate of gradient flow.
    fluctuation : Term
        Fluctuations, of scale sqrt(lr/(p d B)): the standard deviation over runs of an overlap at
        t/p = HORIZON = 5.
    finite_dimension : Term
        Correction of the mean increment at finite d, of scale lr/(p d B), relative to gradient
        flow.
    finite_width : Term
        Finite width, of scale 1/p: the share of the excess risk that is due to single units (it
        vanishes at p = infinity), or 1/p if that is larger.

    Examples
    --------
    >>> diagnosis = sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000)
    >>> diagnosis.width, diagnosis.dimension, bool(diagnosis.noise.size > 0)
    (2, 1000, True)
    """

    name: str
    solver: str
    why: str
    width: int
    signals: int
    dimension: int
    lr: float
    batch: int
    noise: Term
    fluctuation: Term
    finite_dimension: Term
    finite_width: Term

    def __str__(self) -> str:
        rows = [
            ("noise of SGD", "gradient flow, mean field", "lr/(p B)", self.noise),
            ("fluctuations", "every ODE", "sqrt(lr/(p d B))", self.fluctuation),
            ("finite dimension", "d -> infinity", "lr/(p d B)", self.finite_dimension),
            ("finite width", "mean field", "1/p", self.finite_width),
        ]
        lines = [
            f"{self.name}: width {self.width}, dimension {self.dimension}, lr {self.lr:g}, "
            f"batch {self.batch}",
            f"  {'term':<17} {'neglected by':<26} {'scale':<17} {'':>9} {'size here':>10}",
        ]
        for name, limits, scale, term in rows:
            lines.append(
                f"  {name:<17} {limits:<26} {scale:<17} {term.scale:>9.2g} {term.size:>10.2g}"
            )
        return "\n".join([*lines, f"use {self.solver}", self.why])


@float64
def regime(
    problem: Problem, algorithm: OnePassSGD, dimension: int, *, start: Start | None = None
) -> Regime:
    """The regime of one-pass SGD at this learning rate, dimension and width, and its solver.

    Terms of the scales lr/(p B), sqrt(lr/(p d B)) and 1/p are negligible below SMALL = 0.05. Runs
    that scatter by more than LARGE = 0.2 are not described by a diffusion.

    Parameters
    ----------
    problem : Problem
        A network that learns from centred Gaussian inputs.
    algorithm : OnePassSGD
        Plain one-pass SGD. The largest rate of a schedule counts (of a user's function: for alpha
        up to 1e4).
    dimension : int
        The dimension d.
    start : Start, optional
        The state at which sizes are estimated (its first run). Defaults to a state that is half
        learned: row i has squared overlap 1/2 with signal i mod k and a component of its own,
        norm 1, and all entries of the head are 1.

    Returns
    -------
    Regime
        ``.name``, ``.solver``, ``.why``, and the sizes of the terms.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the regimes of the problem are not known.

    Notes
    -----
    Sizes are estimated for this problem, by sampling. They are orders of magnitude, not error bars:
    late in a run, and near saddles, small terms matter more. Rates are those of f = (1/p) sum_i;
    for a user's loss without the factor 1/p only the sizes have a meaning, not the limits in p.

    Source: slides "Dimension-free limits of SGD" (the different regimes), where t is this library's
    t/p.

    Examples
    --------
    >>> sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000).name
    'finite-dimensional'
    """
    algorithm = validate_algorithm(algorithm, "regime", problem)
    d = checks.integer("dimension", dimension, problem.signals + 1)
    state = _half_learned(problem) if start is None else validate_start(problem, start)
    lr, p, batch = _largest_rate(algorithm), problem.width, algorithm.batch
    coefficients = _estimate_coefficients(problem, state, lr / batch)
    if coefficients is None:
        raise ValueError(
            "gradient flow does not move the state at which sizes are estimated. Use start= with "
            "rows that have larger overlaps with the signals."
        )
    scale = lr / (p * batch)
    terms = {
        "noise": Term(scale, coefficients.noise),
        "fluctuation": Term(float(np.sqrt(scale / d)), coefficients.fluctuation),
        "finite_dimension": Term(scale / d, coefficients.finite_dimension),
        "finite_width": Term(1 / p, coefficients.finite_width),
    }
    name = region(terms["noise"].size, terms["fluctuation"].size, terms["finite_width"].size)
    solver, why = _recommend_solver(name, problem, d, terms)
    return Regime(name, solver, why, p, problem.signals, d, lr, batch, **terms)


def region(noise: float, fluctuation: float, width: float) -> str:
    """The name of the regime with these sizes of the terms."""
    if fluctuation > SMALL:
        return "finite-dimensional" if fluctuation > LARGE else "fluctuating"
    if noise > SMALL:
        return "high-dimensional"
    return "mean-field" if width <= SMALL else "classical"


def _largest_rate(algorithm: OnePassSGD) -> float:
    """The learning rate; the largest one of a schedule."""
    if not isinstance(algorithm.lr, Schedule):
        return float(algorithm.lr)
    if algorithm.lr.name == "piecewise":
        return float(np.max(algorithm.lr.parameters["rates"]))
    return float(algorithm.rates(ALPHAS).max())


def _half_learned(problem: Problem) -> Start:
    """Rows sqrt(c) w*_r/|w*_r| + sqrt(1 - c) (own direction), with r = i mod k and c = 1/2.

    They have norm 1, and their overlaps are a Gram matrix in each covariance block.
    """
    signal = np.arange(problem.width) % problem.signals
    share = np.sqrt(SIGNAL_SHARE / np.einsum("brr->r", problem.gram))[signal]
    fractions = problem.parameters["fractions"][:, None, None]
    own_directions = (1 - SIGNAL_SHARE) * np.eye(problem.width) * fractions
    M = share[:, None] * problem.gram[:, signal]
    Q = share[:, None] * share * problem.gram[:, signal][:, :, signal] + own_directions
    return Start(M[None], Q[None], np.ones((1, problem.width)))


class _Coefficients(NamedTuple):
    """Coefficients of the four scales; the fields are those of `Regime`."""

    noise: float
    fluctuation: float
    finite_dimension: float
    finite_width: float


class _FieldSample(NamedTuple):
    """Samples of the fields at one state.

    `normals` are the standard normals of which the fields are made, signals first, by the factor
    `root` of their covariance. `spare_normals` have one column per unit. `loss` and its gradient
    `h` with respect to the fields belong to each sample.
    """

    signals: np.ndarray
    students: np.ndarray
    normals: np.ndarray
    spare_normals: np.ndarray
    root: np.ndarray
    loss: np.ndarray
    h: np.ndarray


def _estimate_coefficients(problem: Problem, state: Start, rate: float) -> _Coefficients | None:
    """Coefficients of the four scales at one state, from samples of the fields; `rate` = lr/B.

    With h = dloss/dlambda and whole rows (blocks summed), a step of lr/d moves M by -h lambda*^T
    and Q by -(h lambda^T + transpose) + (lr/B) (|x|^2/d) h h^T. Means give the flow and the noise,
    variances the fluctuations, and the weight |z|^2 - D on h h^T the correction at finite d.
    Returns None if the flow cannot be distinguished from its sampling error.
    """
    sample = _draw_fields(problem, state)
    p, count, fields = problem.width, len(sample.loss), sample.normals.shape[1]
    units = min(p, MAX_UNITS)
    M, Q = state.M[0, :units], state.Q[0, :units, :units]
    h, students = sample.h[:, :units], sample.students[:, :units]

    def constrain(dM: np.ndarray, dQ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Increments of M and Q under the constraint on the rows."""
        # All covariance blocks are summed, which the constraint takes as a single block.
        arguments = [values[..., None, :, :] for values in (M, Q, dM, dQ)]
        rate_M, rate_Q = problem.structure.constraint.project_overlap_rates(*arguments)
        return np.asarray(rate_M)[..., 0, :, :], np.asarray(rate_Q)[..., 0, :, :]

    def largest_entry(dM: np.ndarray, dQ: np.ndarray) -> float:
        return max(float(np.abs(increment).max()) for increment in constrain(dM, dQ))

    trace = float(input_covariance.trace(problem.parameters))
    noise_Q = trace * h[:, :, None] * h[:, None]
    pull = h[:, :, None] * students[:, None]
    flow_M = -h[:, :, None] * sample.signals[:, None]
    flow_Q = -(pull + np.swapaxes(pull, 1, 2))
    decay, zero_M = problem.weight_decay, np.zeros_like(M)
    flow = largest_entry(flow_M.mean(axis=0) - decay * M, flow_Q.mean(axis=0) - 2 * decay * Q)
    noise = largest_entry(zero_M, noise_Q.mean(axis=0))
    excess_norms = np.sum(sample.normals**2, axis=1) - fields
    finite = largest_entry(zero_M, np.tensordot(excess_norms, noise_Q, axes=1) / count)
    increments = constrain(flow_M, flow_Q + rate * noise_Q)
    scatter = max(float(increment.std(axis=0).max()) for increment in increments)
    if not flow > SIGNIFICANCE * scatter / np.sqrt(count):  # also if any of them is NaN
        return None
    return _Coefficients(
        noise=p * noise / flow,
        fluctuation=p * scatter * float(np.sqrt(HORIZON)),
        finite_dimension=p * finite / flow,
        finite_width=max(1.0, _width_coefficient(problem, state.a[0], sample)),
    )


def _draw_fields(problem: Problem, state: Start) -> _FieldSample:
    """Draw the fields at the first run of a state, with the loss and its gradient."""
    p, k, parameters = problem.width, problem.signals, problem.parameters
    overlaps = overlap_matrix(state.M_blocks[0], state.Q_blocks[0], problem.gram)
    omega = input_covariance.field_covariance(parameters, overlaps)
    fields = len(omega)
    count = max(MIN_SAMPLES, min(SAMPLES, MAX_SAMPLED_FIELDS // (fields + p)))
    z = np.random.default_rng(20260).standard_normal((count, fields + p + 1))
    # Signals come first: then the last columns of the root are the units' own directions.
    order = np.r_[p:fields, :p]
    covariance = omega[np.ix_(order, order)]
    try:
        root = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:  # rows or signals are linearly dependent
        root = np.asarray(gram_root(covariance))
    signals, students = np.split(z[:, :fields] @ root.T, [k], axis=1)
    loss, h = _losses_and_gradients(
        problem.structure, parameters, students, signals, state.a[0], z[:, -1]
    )
    return _FieldSample(
        signals, students, z[:, :fields], z[:, fields:-1], root, np.asarray(loss), np.asarray(h)
    )


@partial(jax.jit, static_argnums=0)
def _losses_and_gradients(
    structure: Structure,
    parameters: Parameters,
    students: Float[Numeric, "n p"],
    signals: Float[Numeric, "n K"],
    head: Float[Numeric, " p"],
    draws: Float[Numeric, " n"],
) -> tuple[Any, Any]:
    """Loss and dloss/dlambda of each sample."""

    def loss(*fields: Array) -> Array:
        return structure.loss(*fields, parameters)

    return jax.vmap(jax.value_and_grad(loss), (0, 0, None, 0))(students, signals, head, draws)


def _width_coefficient(problem: Problem, head: np.ndarray, sample: _FieldSample) -> float:
    """The share of the excess risk that is due to single units, times p; 1 if there is none.

    Of infinitely many units, any two with the same signals have independent own directions, and
    contribute E[s(lambda) s(lambda')] to the risk. A unit with itself contributes
    E[s(lambda)^2] instead. The difference is the term of order 1/p.
    """
    structure, k = problem.structure, problem.signals
    if not structure.has_excess:
        return 1.0
    normals = np.concatenate([sample.normals[:, :k], sample.spare_normals], axis=1)
    independent_students = normals @ sample.root[k:].T
    output, independent_output = (
        np.asarray(structure.loss.student(jnp.asarray(students)))
        for students in (sample.students, independent_students)
    )
    excess = float(sample.loss.mean()) - problem.noise_floor
    covariances = np.mean(output * (output - independent_output), axis=0)
    single_units = float(np.mean(head**2 * covariances)) / 2
    # A negative excess is a sampling error: everything is learned.
    return single_units / excess if excess > 0 else 1.0


def _recommend_solver(
    name: str, problem: Problem, d: int, terms: dict[str, Term]
) -> tuple[str, str]:
    """The call of the solver that describes a regime, and the reason."""
    p, least_dimension = problem.width, problem.width + problem.signals
    noise, scatter, width = (
        f"{terms[term].size:.2g}" for term in ("noise", "fluctuation", "finite_width")
    )
    ode = "solve_ode(problem, algorithm, start, times=...)"
    setting = f"start, times=..., dimension={d}, runs=100"
    if name in ("finite-dimensional", "fluctuating") and d < least_dimension:
        return ode, (
            "runs scatter, but simulate and solve_sde need d >= width + signals = "
            f"{least_dimension}: the ODE is roughly their mean."
        )
    if name == "finite-dimensional":
        return f'simulate(problem, algorithm, {setting}, method="exact")', (
            f"runs scatter by {scatter}, as much as overlaps themselves: no ODE or diffusion "
            "describes them, and the chain is short."
        )
    if name == "fluctuating":
        return f"solve_sde(problem, algorithm, {setting})", (
            f"runs scatter by {scatter} around the ODE; solve_ode(dimension={d}) computes their "
            "mean, simulate their distribution."
        )
    if name == "high-dimensional":
        warning = ""
        if terms["noise"].size > 1:
            warning = "; it is larger than the drift, so that lr may be too large to learn"
        return ode, (
            f"runs follow the ODE to within {scatter}, and the noise of SGD ({noise}) matters"
            f"{warning}."
        )
    if name == "mean-field" and _has_mean_field(problem):
        dimension = f", dimension={d}" if d * SMALL < 1 else ""
        return f"solve_mean_field(problem, algorithm, start, times=...{dimension})", (
            f"finite width ({width}) and noise ({noise}) are negligible: a density of units, in "
            "the clock t/p."
        )
    return "solve_ode(problem, OnePassSGD(lr=0), start, times=...)", (
        f"noise ({noise}) and fluctuations ({scatter}) are negligible: gradient flow of {p} units."
    )


def _has_mean_field(problem: Problem) -> bool:
    """Whether `solve_mean_field` supports the problem."""
    try:
        check_wide_problem(problem)
    except ValueError:
        return False
    return True
