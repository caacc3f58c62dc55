"""Which limit describes a run at (lr, d, p), with the size of each term that a limit neglects; and the plateau that label noise leaves.

One step moves the overlaps by (slides "Dimension-free limits of SGD"; Veiga, Stephan, Loureiro, Krzakala and Zdeborova 2022)

    M += (lr/(p d)) flow_M,   Q += (lr/(p d)) flow_Q + (lr^2/(p^2 d B)) noise,   plus fluctuations of mean zero,

so that in the slides' clock t/p = lr steps/(p d) an ODE with a noise term lr/(p B) is followed to within sqrt(lr/(p d B)). Hence

    classical          lr/p -> 0 at fixed p and d    gradient flow
    high-dimensional   d -> infinity at fixed lr/p   the ODE with the noise of SGD (Saad and Solla 1995)
    mean-field         p -> infinity                 particles in the field of their own density; lr/p -> 0 on the way

and, where d is too small for any of them, runs that scatter: a diffusion around the ODE, then single steps that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate, validate_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import Nodes, Numeric, Parameters, State
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64
from sgdynamics.expectations import pairs
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature, risk_at
from sgdynamics.ode.drift import drift
from sgdynamics.problems.activations import NAMED
from sgdynamics.problems.gram import gram_root
from sgdynamics.problems.overlap_starts import Start, overlap_matrix, validate_start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.problems.wide_starts import check_wide_problem
from sgdynamics.samples import input_covariance

SMALL = 0.05  # a term of this size (relative for noise and width, of an overlap for fluctuations) may be neglected
LARGE = 0.2  # overlaps that scatter by more than this are moved by a few steps each: no diffusion describes them
HORIZON = 5.0  # in t/p: how long fluctuations add up (that of the theorem's check: their mean largest size is then about the scale)
ALONG = 0.5  # squared overlap of a row with its signal at the state where sizes are estimated: half learnt
DRAWS, LEAST_DRAWS, MOST_NUMBERS = (
    1 << 13,
    1 << 10,
    1 << 23,
)  # samples of that estimate, fewer for wide networks
UNITS = 32  # whose overlaps that estimate looks at
ALPHAS = np.concatenate(
    [[0.0], np.geomspace(1e-3, 1e4, 1024)]
)  # where a user's schedule is asked for its largest rate
SHARES = (
    0.125,
    0.25,
    0.5,
    1.0,
)  # of lr: the root of a plateau is followed from the small rates at which its leading term is near
NEWTON_STEPS = 20
DIFFERENCE, LEAST_DIFFERENCE = (
    1e-3,
    1e-9,
)  # step of a derivative by differences, over the distance to the teacher; the least of all
RESIDUAL, NULL = (
    1e-10,
    1e-6,
)  # of the drift, over the largest slope: where Newton may stop; what counts as 0, for eigenvalues too
ROUNDING = 1e-14  # of drifts and overlaps


@dataclass(frozen=True)
class Term:
    """A term that some limit neglects: its scale in (lr, d, p), and its size = coefficient * scale for the problem at hand."""

    scale: float
    coefficient: float

    @property
    def size(self) -> float:
        return self.coefficient * self.scale


@dataclass(frozen=True)
class Regime:
    """Where (lr, d, p) lies on the map, the size of what each limit neglects there, and which solver to use.

    Attributes
    ----------
    name : str
        Of the regime.
    solver : str
        Which solver fits it.
    why : str
        In words.
    width : int
        p.
    signals : int
        k.
    dimension : int
        d.
    lr : float
        The learning rate; with a schedule its largest.
    batch : int
        B, samples in a step.
    noise : Term
        Scale lr/(p B): the largest entry of the SGD noise in dQ/dt over that of gradient flow.
    fluctuation : Term
        Scale sqrt(lr/(p d B)): the standard deviation over runs that t/p = HORIZON = 5 gives to an overlap.
    finite_dimension : Term
        Scale lr/(p d B): what a finite d changes in the mean increment, over gradient flow.
    finite_width : Term
        Scale 1/p: the excess risk that units have of their own (absent at p = infinity) over all of it, or 1/p where that is less.

    Examples
    --------
    >>> here = sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000)
    >>> here.width, here.dimension, bool(here.noise.size > 0)
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
            f"{self.name}: width {self.width}, dimension {self.dimension}, lr {self.lr:g}, batch {self.batch}"
        ]
        lines += [f"  {'term':<17} {'neglected by':<26} {'scale':<17} {'':>9} {'size here':>10}"]
        lines += [
            f"  {name:<17} {by:<26} {scale:<17} {term.scale:>9.2g} {term.size:>10.2g}"
            for name, by, scale, term in rows
        ]
        return "\n".join([*lines, f"use {self.solver}", self.why])


@float64
def regime(
    problem: Problem, algorithm: OnePassSGD, dimension: int, *, start: Start | None = None
) -> Regime:
    """The regime of one-pass SGD at this learning rate, dimension and width, and the solver that fits it.

    ::

        scales lr/(p B), sqrt(lr/(p d B)), 1/p;   a term counts as negligible below SMALL = 0.05 (scatter of runs: as too large for a
        diffusion above LARGE = 0.2)

    Parameters
    ----------
    problem : Problem
        A network that learns from centred Gaussian inputs.
    algorithm : OnePassSGD
        Plain one-pass SGD; a schedule counts by its largest rate (a user's function: over alpha up to 1e4).
    dimension : int
        The dimension d.
    start : Start, optional
        The state at which sizes are estimated (its first run); unless given one that is half learnt: row i has squared overlap 1/2 with
        signal i mod k and a part of its own, norm 1, head ones.

    Returns
    -------
    Regime
        ``.name``, ``.solver``, ``.why``, and the sizes of the terms.

    Raises
    ------
    ValueError
        If an argument is refused, or the problem is not on this map.

    Notes
    -----
    Sizes are estimated for this problem, by sampling. They are orders of magnitude, no error bars: late in a run, and near saddles, small
    terms weigh more. Rates are those of f = (1/p) sum_i; for an own loss without the 1/p only the sizes have a meaning, not the limits in
    p. Source: slides "Dimension-free limits of SGD" (the different regimes), where t is this library's t/p.

    Examples
    --------
    >>> sgd.regime(sgd.TeacherStudent(width=2), sgd.OnePassSGD(lr=0.1), 1000).name
    'finite-dimensional'
    """
    algorithm = validate_algorithm(algorithm, "regime", problem)
    d = checks.integer("dimension", dimension, problem.signals + 1)
    begin = _half_learnt(problem) if start is None else validate_start(problem, start)
    lr, p, batch = _largest_rate(algorithm), problem.width, algorithm.batch
    noise, fluctuation, finite, width = _coefficients(problem, begin, lr / batch)
    if not np.isfinite(noise):
        raise ValueError(
            "gradient flow does not move the state at which sizes are estimated: give start=, with rows that have learnt more"
        )
    each = lr / (p * batch)
    terms = {
        "noise": Term(each, noise),
        "fluctuation": Term(float(np.sqrt(each / d)), fluctuation),
        "finite_dimension": Term(each / d, finite),
        "finite_width": Term(1 / p, width),
    }
    name, solver, why = _verdict(problem, d, **terms)
    return Regime(name, solver, why, p, problem.signals, d, lr, batch, **terms)


def _largest_rate(algorithm: OnePassSGD) -> float:
    """The learning rate, of a schedule the largest."""
    if not isinstance(algorithm.lr, Schedule):
        return float(algorithm.lr)
    if algorithm.lr.name == "piecewise":
        return float(np.max(algorithm.lr.parameters["rates"]))
    return float(algorithm.rates(ALPHAS).max())


def _half_learnt(problem: Problem) -> Start:
    """Rows sqrt(c) w*_r/|w*_r| + sqrt(1 - c) (own direction), r = i mod k: norm 1, in every covariance block a Gram matrix."""
    signal = np.arange(problem.width) % problem.signals
    share = np.sqrt(ALONG / np.einsum("brr->r", problem.gram))[signal]
    own = (1 - ALONG) * np.eye(problem.width) * problem.parameters["fractions"][:, None, None]
    M = share[:, None] * problem.gram[:, signal]
    Q = share[:, None] * share * problem.gram[:, signal][:, :, signal] + own
    return Start(M[None], Q[None], np.ones((1, problem.width)))


@partial(jax.jit, static_argnums=0)
def _gradients(
    structure: Structure,
    parameters: Parameters,
    students: Float[Numeric, "n p"],
    signals: Float[Numeric, "n K"],
    head: Float[Numeric, " p"],
    draws: Float[Numeric, " n"],
) -> tuple[Any, Any]:
    """Loss and dloss/dlambda of each sample."""
    return jax.vmap(
        jax.value_and_grad(lambda *fields: structure.loss(*fields, parameters)), (0, 0, None, 0)
    )(students, signals, head, draws)


def _coefficients(problem: Problem, begin: Start, rate: float) -> tuple[float, float, float, float]:
    """Coefficients of the four scales at one state, from samples of the fields; `rate` = lr/B.

    With h = dloss/dlambda and whole rows (blocks summed), a step of lr/d moves M by -h lambda*^T and Q by -(h lambda^T + transpose)
    + (lr/B) (|x|^2/d) h h^T: means give flow and noise, variances the scatter, the weight |z|^2 - D on h h^T what finite d adds.
    """
    structure, parameters, p, k = (
        problem.structure,
        problem.parameters,
        problem.width,
        problem.signals,
    )
    omega = input_covariance.field_covariance(
        parameters, overlap_matrix(begin.M_blocks[0], begin.Q_blocks[0], problem.gram)
    )
    fields, head = len(omega), begin.a[0]
    count = max(LEAST_DRAWS, min(DRAWS, MOST_NUMBERS // (fields + p)))
    z = np.random.default_rng(20260).standard_normal((count, fields + p + 1))
    # signals first: then the last columns of the root are what a unit has of its own
    order = np.r_[p:fields, :p]
    first = omega[np.ix_(order, order)]
    try:
        root = np.linalg.cholesky(first)
    except np.linalg.LinAlgError:  # a start, or signals, that are dependent
        root = gram_root(first)
    signals, students = np.split(z[:, :fields] @ root.T, [k], axis=1)
    loss, gradient = (
        np.asarray(part)
        for part in _gradients(structure, parameters, students, signals, head, z[:, -1])
    )
    some = min(p, UNITS)
    M, Q, h, fields_of = (
        begin.M[0, :some],
        begin.Q[0, :some, :some],
        gradient[:, :some],
        students[:, :some],
    )

    def moved(dM: np.ndarray, dQ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Increments of M and Q with the rows kept on the sphere, where they are."""
        by_block = [values[..., None, :, :] for values in (M, Q, dM, dQ)]
        rate_M, rate_Q = map(np.asarray, structure.constraint.project_overlap_rates(*by_block))
        return rate_M[..., 0, :, :], rate_Q[..., 0, :, :]

    def largest(dM: np.ndarray, dQ: np.ndarray) -> float:
        return max(float(np.abs(part).max()) for part in moved(dM, dQ))

    kick = float(input_covariance.trace(parameters)) * h[:, :, None] * h[:, None]
    pull = h[:, :, None] * fields_of[:, None]
    along, across = -h[:, :, None] * signals[:, None], -(pull + np.swapaxes(pull, 1, 2))
    decay, still = problem.weight_decay, np.zeros_like(M)
    flow = largest(along.mean(axis=0) - decay * M, across.mean(axis=0) - 2 * decay * Q)
    noise = largest(still, kick.mean(axis=0))
    finite = largest(
        still, np.tensordot(np.sum(z[:, :fields] ** 2, axis=1) - fields, kick, axes=1) / count
    )
    scatter = max(float(part.std(axis=0).max()) for part in moved(along, across + rate * kick))
    if flow <= 5 * scatter / np.sqrt(count):  # what sampling alone would show
        return np.inf, np.inf, np.inf, np.inf
    width = 1.0
    if structure.has_excess:
        # the same signals, own parts drawn again: s(lambda) s(lambda') is what two units of infinitely many have in common
        again = np.concatenate([z[:, :k], z[:, fields:-1]], axis=1) @ root[k:].T
        one, other = (
            np.asarray(structure.loss.student(jnp.asarray(part))) for part in (students, again)
        )
        excess = float(loss.mean()) - problem.noise_floor
        own = float(np.mean(head**2 * np.mean(one * (one - other), axis=0))) / 2
        width = (
            own / excess if excess > 0 else width
        )  # below 0 by sampling only: nothing is left to learn
    return (
        p * noise / flow,
        p * scatter * float(np.sqrt(HORIZON)),
        p * finite / flow,
        max(1.0, width),
    )


def _verdict(
    problem: Problem,
    d: int,
    *,
    noise: Term,
    fluctuation: Term,
    finite_dimension: Term,
    finite_width: Term,
) -> tuple[str, str, str]:
    """Name, solver and one sentence why."""
    p, room = problem.width, problem.width + problem.signals
    ode, scatter = "solve_ode(problem, algorithm, start, times=...)", f"{fluctuation.size:.2g}"
    name = place(noise.size, fluctuation.size, finite_width.size)
    if name in ("finite-dimensional", "fluctuating") and d < room:
        return (
            name,
            ode,
            f"runs scatter, but simulate and solve_sde need d >= width + signals = {room}: the ODE has their mean, roughly.",
        )
    if name == "finite-dimensional":
        chain = f'simulate(problem, algorithm, start, times=..., dimension={d}, runs=100, method="exact")'
        return (
            name,
            chain,
            f"runs scatter by {scatter}, as overlaps do: no ODE or diffusion describes them, and the chain is short.",
        )
    if name == "fluctuating":
        sde = f"solve_sde(problem, algorithm, start, times=..., dimension={d}, runs=100)"
        return (
            name,
            sde,
            f"runs scatter by {scatter} around the ODE; solve_ode(dimension={d}) has their mean, simulate their law.",
        )
    if name == "high-dimensional":
        beyond = (
            "; it is larger than the drift, so that lr may be too large to learn"
            if noise.size > 1
            else ""
        )
        return (
            name,
            ode,
            f"runs follow the ODE to {fluctuation.size:.2g}, and the noise of SGD in it ({noise.size:.2g}) counts{beyond}.",
        )
    if name == "mean-field" and _is_wide(problem):
        density = f"solve_mean_field(problem, algorithm, start, times=...{f', dimension={d}' if d * SMALL < 1 else ''})"
        return (
            name,
            density,
            f"width ({finite_width.size:.2g}) and noise ({noise.size:.2g}) are negligible: a density of units, in the clock t/p.",
        )
    flow = "solve_ode(problem, OnePassSGD(lr=0), start, times=...)"
    return (
        name,
        flow,
        f"noise ({noise.size:.2g}) and scatter ({fluctuation.size:.2g}) are negligible: gradient flow of {p} units.",
    )


def _is_wide(problem: Problem) -> bool:
    try:
        check_wide_problem(problem)
    except ValueError:
        return False
    return True


def place(noise: float, fluctuation: float, width: float) -> str:
    """The region of the map in which these sizes lie."""
    if fluctuation > SMALL:
        return "finite-dimensional" if fluctuation > LARGE else "fluctuating"
    if noise > SMALL:
        return "high-dimensional"
    return "mean-field" if width <= SMALL else "classical"


@dataclass(frozen=True)
class Plateau:
    """Where the excess risk of SGD on a matched teacher ends.

    Attributes
    ----------
    excess_risk : float
        As d -> infinity.
    leading : float
        The same to first order in lr.
    closed : float or None
        The same in closed form, where there is one.
    M : ndarray
        Overlaps of the fixed point.
    Q : ndarray
        Gram matrix of the fixed point.
    rate : float
        The slowest (in t) at which the ODE comes back to it.
    error : float
        The standard error that sampled expectations leave in the excess risk (0 where nothing is sampled).

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
        """excess_risk / leading - 1."""
        return self.excess_risk / self.leading - 1 if self.leading else 0.0

    def __float__(self) -> float:
        return self.excess_risk


@float64
def plateau(problem: TeacherStudent, algorithm: OnePassSGD) -> Plateau:
    """The excess risk at which one-pass SGD ends as d -> infinity, where a student can be its teacher but labels are noisy.

    ::

        leading = (lr noise/(4 B)) l sum_i (a_i/p)^2 E[s'(w*_i.x)^2],   l the mean eigenvalue of the inputs
                = lr noise E[s'^2]/(4 p B)   for unit heads, orthonormal teachers, isotropic inputs

    Parameters
    ----------
    problem : TeacherStudent
        With squared loss, p = k, the student's activation and fixed head those of the teacher, no weight decay; on the sphere teachers of
        norm 1.
    algorithm : OnePassSGD
        Plain one-pass SGD with a constant rate.

    Returns
    -------
    Plateau
        0 at noise = 0 or lr = 0.

    Raises
    ------
    ValueError
        If the problem is none of these, or the rate is so large that there is no such end.

    Notes
    -----
    Near the teacher w_i = w*_i + u_i, with u orthogonal to all signals and Gram matrix V_b in covariance block b. The excess risk is
    sum_b l_b tr(H V_b)/2 and dV_b/dt = -l_b (H V_b + V_b H) + (lr/B) l_b f_b noise H, with the same H_ij = (a_i a_j/p^2) E[s'_i s'_j] as
    curvature and as noise: so V_b = lr noise f_b/(2 B) times the identity, whatever the teacher. Rows shift along the signals by O(lr),
    which adds O(lr^2) to the risk, on the sphere too. Relative corrections are O(lr/p), with kinks O(sqrt(lr/p)).

    ``excess_risk`` holds to all orders in lr: the root of the drift that comes out of the teacher as lr grows, in closed form for ::

        linear:           (noise/2) c/(1 - c),  c = (lr/(2 B)) l sum_i (a_i/p)^2
        square:           (noise c/p)/(1 - 2 c (p + 2)/p^2),  c = (lr/B) a^2 |w*|^2, where P = |w*|^2 1 and heads are equal; there Q = P
        erf, p = |w*| = 1:  m^2 = 1 + q - y, y^2 = (1 + q)/2 on the free root, and lr from dq/dt = 0: a curve in q

    It is the high-dimensional plateau of the slides, derived here.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> round(sgd.plateau(problem, sgd.OnePassSGD(lr=0.2)).excess_risk, 5)
    0.00556
    """
    _matched(problem)
    algorithm = validate_algorithm(algorithm, problem=problem)
    lr = constant_rate(algorithm, "plateaus")
    p, head = problem.width, problem.teacher_head
    quadrature = choose_quadrature(problem, problem.gram, MARGIN)
    variances = np.diag(input_covariance.field_covariance(problem.parameters, problem.gram))
    curvature = (head / p) ** 2 * np.asarray(
        _squared_slopes(problem.structure, quadrature, variances)
    )
    size = lr * problem.noise / (2 * algorithm.batch)
    leading = float(input_covariance.trace(problem.parameters) * size * curvature.sum() / 2)
    if size == 0:
        return Plateau(
            0.0, 0.0, 0.0, problem.gram.sum(axis=0), problem.gram.sum(axis=0), np.nan, 0.0
        )
    roots = [
        _root(problem, algorithm, quadrature, replicate, size)
        for replicate in _replicates(problem.structure, quadrature)
    ]
    M, Q, rates, every = (np.stack(part) for part in zip(*roots, strict=True))
    error = float(every.std(ddof=1) / np.sqrt(len(every))) if len(every) > 1 else 0.0
    closed = _closed(problem, lr / algorithm.batch)
    M, Q = (part.mean(axis=0).sum(axis=0) for part in (M, Q))
    return Plateau(float(every.mean()), leading, closed, M, Q, float(rates.mean()), error)


def _matched(problem: object) -> None:
    """Refuse problems whose student cannot sit on its teacher."""
    if not isinstance(problem, TeacherStudent):
        raise checks.reject(
            "problem",
            problem,
            "a plateau is known for a student that can be its teacher: give sgd.TeacherStudent(...)",
        )
    if problem.width != problem.teacher_width:
        fix = f"the plateau is that of a student as wide as its teacher: take {problem.teacher_width}, or follow solve_ode"
        raise checks.reject("width", problem.width, fix)
    if problem.teacher_activation != problem.activation:
        raise checks.reject(
            "teacher_activation",
            problem.teacher_activation.label,
            f"take the student's, {problem.activation.label}",
        )
    if not problem.structure.has_excess:
        raise checks.reject("loss", problem.loss, "the plateau is that of the squared loss")
    if problem.head != "fixed":
        raise checks.reject(
            "head",
            problem.head,
            'with trained heads rows and heads trade their norms: take head="fixed", or solve_ode',
        )
    if problem.weight_decay:
        raise checks.reject(
            "weight_decay",
            problem.weight_decay,
            "it moves the minimum off the teacher: take 0, or sgd.fixed_points",
        )
    norms = np.einsum("bii->i", problem.gram)
    if problem.structure.constraint.norm_error(norms) > 1e-9:
        raise checks.reject(
            "teacher_gram",
            problem.gram.sum(axis=0),
            "rows on the sphere have norm 1: so must the teacher's have",
        )


@partial(jax.jit, static_argnums=(0, 1))
def _squared_slopes(
    structure: Structure, quadrature: Quadrature, variances: Float[Numeric, " n"]
) -> Any:
    """E[s'(lambda)^2] for fields of these variances."""
    student = structure.loss.student
    return jnp.diagonal(
        pairs.moments(
            student, student, variances, variances, jnp.diag(variances), quadrature.terms
        )[2]
    )


def _replicates(structure: Structure, quadrature: Quadrature) -> list[dict[str, np.ndarray]]:
    """The points of each replicate, one empty set where nothing is sampled."""
    nodes = expectation_of(structure).nodes(quadrature, False)
    return [
        {name: value[index] for name, value in nodes.items()}
        for index in range(len(next(iter(nodes.values()))))
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _rates(
    structure: Structure,
    quadrature: Quadrature,
    batch: int,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    states: State,
) -> tuple[dict[str, Any], Any]:
    """The drift of many states, and the risk of the first."""
    rates = jax.vmap(
        lambda state: drift(structure, quadrature, nodes, parameters, algorithm, state, batch=batch)
    )(states)
    return rates, risk_at(
        structure, quadrature, nodes, parameters, jax.tree.map(lambda value: value[0], states)
    )


def _root(
    problem: TeacherStudent,
    algorithm: OnePassSGD,
    quadrature: Quadrature,
    nodes: Nodes,
    size: float,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """M_blocks, Q_blocks, slowest rate and excess risk of the root that comes out of the teacher as lr grows from 0.

    Unknowns are the shifts of M and Q in units of V = lr noise/(2 B), so that those of a smaller lr are where to begin at the next.
    """
    structure, p = problem.structure, problem.width
    out = _directions(structure)
    back = np.linalg.pinv(out)
    shape_M, shape_Q = problem.gram.shape, (structure.blocks, p, p)
    count = int(np.prod(shape_M))
    base = np.concatenate([problem.gram.reshape(-1), problem.gram.reshape(-1)])
    fractions = problem.parameters["fractions"][:, None, None] * np.eye(p)
    shift = (
        (-problem.gram / 2, fractions - problem.gram)
        if structure.constraint.fixes_norms
        else (np.zeros(shape_M), fractions)
    )
    y = back @ np.concatenate([part.reshape(-1) for part in shift])
    points = np.concatenate([np.zeros((1, len(y))), np.eye(len(y)), -np.eye(len(y))])
    fix = "SGD does not stay near the teacher at this learning rate (no stable fixed point there): give a smaller one"
    refusal = checks.reject("lr", algorithm.lr, fix)

    def overlaps(y: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
        full = base + unit * (y @ out.T)
        return full[..., :count].reshape(*y.shape[:-1], *shape_M), full[..., count:].reshape(
            *y.shape[:-1], *shape_Q
        )

    def residual(
        y: np.ndarray, unit: float, numbers: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """The drift in units of V, its derivatives by central differences, and the excess risk, all in one compiled call."""
        step = max(DIFFERENCE, LEAST_DIFFERENCE / unit)
        M, Q = overlaps(y + step * points, unit)
        states = {"M": M, "Q": Q, "a": np.broadcast_to(problem.teacher_head, (len(points), p))}
        rates, risk = _rates(
            structure, quadrature, algorithm.batch, nodes, problem.parameters, numbers, states
        )
        value = (
            np.concatenate(
                [np.asarray(rates[name]).reshape(len(points), -1) for name in ("M", "Q")], axis=1
            )
            / unit
        )
        plus, minus = np.split(value[1:], 2)
        return value[0], (plus - minus).T / (2 * step), float(risk) - problem.noise_floor

    for share in SHARES:
        numbers = {**algorithm.parameters, "lr": np.float64(share * algorithm.lr)}
        for _ in range(NEWTON_STEPS):
            left, slope, _ = residual(y, share * size, numbers)
            if not np.all(np.isfinite(slope)):
                raise refusal
            # least squares: where roots form a family (units that can trade their rows) it takes the nearest
            y = y - np.linalg.lstsq(slope, left, rcond=NULL)[0]
            if np.abs(left).max() < RESIDUAL * np.abs(slope).max():
                break
    left, slope, excess = residual(y, size, numbers)
    M, Q = overlaps(y, size)
    values = np.linalg.eigvals(back @ slope).real
    scale = np.abs(slope).max()
    lowest = np.linalg.eigvalsh(overlap_matrix(M, Q, problem.gram)).min()
    still = np.abs(left).max() <= max(
        NULL * scale, ROUNDING / size
    )  # expectations at almost parallel rows are no better
    if not (
        still
        and values.max() < NULL * scale
        and excess > 0
        and lowest >= -max(NULL * size, ROUNDING)
    ):
        raise refusal
    return M, Q, float(-values[values < -NULL * scale].max()), excess


def _directions(structure: Structure) -> np.ndarray:
    """Independent directions in (M_blocks, Q_blocks), as columns: Q symmetric, on the sphere with a fixed diagonal in all."""
    blocks, p = structure.blocks, structure.width
    fixes_norms = structure.constraint.fixes_norms
    count = blocks * p * structure.signals
    columns = [column for column in np.eye(count + blocks * p * p)[:count]]
    for b, i, j in np.ndindex(blocks, p, p):
        if i > j or (fixes_norms and i == j and b == blocks - 1):
            continue
        part = np.zeros((blocks, p, p))
        part[b, i, j] = part[b, j, i] = 1.0
        if fixes_norms and i == j:
            part[-1, i, i] = -1.0
        columns.append(np.concatenate([np.zeros(count), part.reshape(-1)]))
    return np.stack(columns, axis=1)


def _closed(problem: TeacherStudent, rate: float) -> float | None:
    """The plateau in closed form, where there is one; `rate` = lr/B."""
    eigenvalues = input_covariance.eigenvalues(problem.parameters)
    if problem.activation == NAMED["linear"] and problem.constraint is None:
        c = (
            rate
            * float(input_covariance.trace(problem.parameters))
            * float(np.sum((problem.teacher_head / problem.width) ** 2))
            / 2
        )
        return problem.noise / 2 * c / (1 - c)
    gram, head, p = problem.gram[0], problem.teacher_head, problem.width
    if (
        problem.activation == NAMED["square"]
        and len(eigenvalues) == 1
        and np.ptp(head) == 0
        and np.array_equal(gram, gram[0, 0] * np.eye(p))
    ):
        c = rate * float(head[0] ** 2 * eigenvalues[0] ** 2 * gram[0, 0])
        return problem.noise * (c / p) / (1 - 2 * c * (p + 2) / p**2)
    return None
