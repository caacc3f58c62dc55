"""The forces on the particles of a wide network, by a Hermite series.

A unit has overlaps t with an orthonormal frame of the signals (m = t C^T with C C^T = P) and
q = |w_perp|^2. For inputs N(0, l I) its field is ::

    lambda = sqrt(l) (t . zeta + sqrt(q) xi),
    v = l (|t|^2 + q),     rho = sqrt(l/v) t,     rho_perp^2 = l q/v,

where v is its variance. At p = infinity the directions of the w_perp are uniform, so the output is
a function F(zeta, |x_perp|). Let h_alpha(zeta) be the orthonormal Hermite polynomials and
phi_j(|x_perp|) the orthonormal Laguerre polynomial of degree j in |x_perp|^2 (the
rotation-invariant part of chaos 2j). With n = |alpha| + 2j and D = d - k, a unit has the
coefficients ::

    u_{alpha j} = c_n(v) sqrt(n!/(alpha! (2j)!)) rho^alpha rho_perp^(2j) kappa_j,
    c_n(v) = E[s(sqrt(v) x) h_n(x)],
    kappa_j^2 = E[theta^(2j)] = prod_{i<j} (2i + 1)/(D + 2i),

where theta is a coordinate of a uniform unit vector of R^D. At d = infinity only j = 0 is left. So
F = mean_i a_i u_i and E = y - F. The forces are the gradient of U = sum E_{alpha j} u_{alpha j},

    dt = a grad_t U,     dq = 4 a q dU/dq,     da = head_rate U,

which by Stein's lemma is ::

    dt_r = a sqrt(l) (sqrt(l) t_r E[s'' E] + E[s' dE/dzeta_r]),
    dq = 2 a (q l E[s'' E] + sqrt(l q) E[s' dE/dxi]).

The series converges like |rho|^n c_n. c_n(v) is tabulated once per solution, as a Chebyshev series
in log v. The compiled program therefore does not depend on the activation, on the dimension, or on
the table's range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, State
from sgdynamics.expectations import pairs
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.mehler import hermite_coefficients
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.losses import CommitteeLoss
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.input_covariance import eigenvalues

# Terms times particles that are evaluated at a time, which fit into the cache of the processor.
CHUNK = 2**18
# kappa_j^2 below which radial terms are left out.
NEGLIGIBLE = 1e-14


@dataclass(frozen=True)
class Basis:
    """The basis functions h_alpha phi_j with |alpha| + 2j < terms and j < radial."""

    signals: int
    terms: int
    radial: int = 1


class Indices(NamedTuple):
    """The basis as arrays over its A functions (alpha, j).

    Attributes
    ----------
    powers : ndarray, (A, k)
        The multi-indices alpha.
    radial : ndarray, (A,)
        The radial indices j.
    degree : ndarray, (A,)
        Degrees n = |alpha| + 2j.
    roots : ndarray, (A,)
        Factors sqrt(n!/(alpha! (2j)!)).
    up : ndarray, (k, A)
        Positions of (alpha + e_r, j) in the basis; A if it is not in the basis.
    up_radial : ndarray, (A,)
        Positions of (alpha, j + 1) in the basis; A if it is not in the basis.
    """

    powers: np.ndarray
    radial: np.ndarray
    degree: np.ndarray
    roots: np.ndarray
    up: np.ndarray
    up_radial: np.ndarray


@lru_cache(maxsize=32)
def indices(basis: Basis) -> Indices:
    """Return the indices of the basis functions in order of degree."""
    functions = [
        (*alpha, j)
        for j in range(basis.radial)
        for alpha in _compositions(basis.signals, basis.terms - 2 * j)
        if basis.terms > 2 * j
    ]
    functions.sort(key=lambda index: sum(index) + index[-1])
    positions: dict[tuple[int, ...], int] = {
        index: position for position, index in enumerate(functions)
    }
    powers = np.array([index[:-1] for index in functions]).reshape(len(functions), basis.signals)
    radial = np.array([index[-1] for index in functions])
    degree = powers.sum(axis=1) + 2 * radial
    logs = np.array([math.lgamma(n + 1) for n in range(basis.terms + 1)])
    roots = np.exp((logs[degree] - logs[powers].sum(axis=1) - logs[2 * radial]) / 2)

    def raise_index(axis: int) -> list[int]:
        """Return the positions of the functions whose index along an axis is larger by 1."""
        raised_positions = []
        for index in functions:
            raised = (*index[:axis], index[axis] + 1, *index[axis + 1 :])
            raised_positions.append(positions.get(raised, len(functions)))
        return raised_positions

    up = np.array([raise_index(axis) for axis in range(basis.signals)])
    return Indices(powers, radial, degree, roots, up, np.array(raise_index(basis.signals)))


def _compositions(length: int, limit: int) -> list[tuple[int, ...]]:
    """Return all tuples of `length` integers, 0 or more, with a sum below `limit`."""
    tuples: list[tuple[int, ...]] = [()]
    for _ in range(length):
        tuples = [(*head, index) for head in tuples for index in range(limit - sum(head))]
    return tuples


def size(signals: int, terms: int) -> int:
    """Return the number of alpha with |alpha| < terms."""
    return math.comb(terms - 1 + signals, signals)


def radial_terms(terms: int, perpendicular: int | None) -> int:
    """Return the number of radial functions that matter at this perpendicular dimension.

    It is a power of two, so that nearby dimensions share a compiled program.
    """
    if perpendicular is None:
        return 1
    count, largest = 4, (terms + 1) // 2
    while count < largest and radial_shares(count + 1, perpendicular)[count] > NEGLIGIBLE:
        count *= 2
    return min(count, largest)


def radial_shares(count: int, perpendicular: float) -> np.ndarray:
    """Return kappa_j^2 = E[theta^(2j)] for j = 0..count-1."""
    j = np.arange(count - 1)
    return np.concatenate([[1.0], np.cumprod((2 * j + 1) / (perpendicular + 2 * j))])


def table(
    activation: Activation, terms: int, lowest: float, highest: float, nodes: int
) -> dict[str, Any]:
    """Return c_n(v), n < terms + 2, as Chebyshev series in log v on [lowest, highest]."""
    middle, half = np.log(highest * lowest) / 2, np.log(highest / lowest) / 2
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    values = hermite_coefficients(activation, np.exp(middle + half * np.cos(angles)), terms + 2)
    transform = np.cos(np.arange(nodes)[:, None] * angles) * (2.0 / nodes)
    transform[0] /= 2
    return {"table": (transform @ values).T, "middle": np.float64(middle), "half": np.float64(half)}


def labels(problem: Problem, basis: Basis) -> tuple[np.ndarray, float, float]:
    """Return the Hermite coefficients of the noiseless label y, E[y^2], and an error estimate.

    The coefficients with j > 0 are 0. The error is that of the coefficients.
    """
    functions = indices(basis)
    flat = functions.radial == 0
    frame = problem.parameters["frame"][0] * math.sqrt(eigenvalues(problem.parameters)[0])
    coefficients = np.zeros(len(flat))
    coefficients[flat], square, error = expectation_of(problem.structure).label_series(
        problem.parameters, frame, basis.terms, functions.powers[flat], functions.roots[flat]
    )
    return coefficients, square, error


def output(basis: Basis, parameters: Parameters, state: State) -> Float[Numeric, " n"]:
    """Return the coefficients sum_i weight_i a_i u_i of the output F, (A,)."""
    return _sum_outputs(basis, parameters, _split_particles(basis, parameters, state))


def _sum_outputs(basis: Basis, parameters: Parameters, groups: Parameters) -> Float[Numeric, " n"]:
    degree = indices(basis).degree

    def group_output(group: Parameters) -> Float[Numeric, " n"]:
        amplitudes = group["weights"] * group["a"]
        return (_monomials(basis, parameters, group) * group["c"][degree]) @ amplitudes

    return jnp.sum(lax.map(group_output, groups), axis=0)


def forces(
    basis: Basis, parameters: Parameters, state: State, *, trained: bool
) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"], Float[Numeric, " p"]]:
    """Return grad_t U (p x k), 4 q dU/dq (p,) and U (p,).

    The first two are the velocities of t and q per unit of a; U is the velocity of the head, and 0
    if the head is not trained.
    """
    functions = indices(basis)
    groups = _split_particles(basis, parameters, state)
    residual = parameters["labels"] - _sum_outputs(basis, parameters, groups)
    padded = jnp.append(residual, 0.0)
    # Coefficients of dE/dzeta_r: h_(n+1)' = sqrt(n + 1) h_n in each variable.
    lowered = padded[functions.up] * np.sqrt(functions.powers.T + 1.0)
    eigenvalue = parameters["eigenvalue"]
    n = np.arange(basis.terms + 1.0)[:, None]

    def group_forces(
        group: Parameters,
    ) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"], Float[Numeric, " p"]]:
        X, c, v = _monomials(basis, parameters, group), group["c"], group["v"]
        # Hermite coefficients of s' and s''
        first = np.sqrt(n + 1) * c[1:] / jnp.sqrt(v)
        second = np.sqrt((n[:-1] + 1) * (n[:-1] + 2)) * c[2:] / v
        bend = residual @ (X * second[functions.degree])  # E[s'' E]
        push = lowered @ (X * first[functions.degree])  # E[s' dE/dzeta]
        dT = eigenvalue * group["T"] * bend[:, None] + jnp.sqrt(eigenvalue) * push.T
        dq = 2 * group["q"] * eigenvalue * bend
        if basis.radial > 1:
            # sqrt(l q) E[s' dE/dxi]: at finite d the error depends on |x_perp| too
            j = functions.radial + 1.0
            raised = padded[functions.up_radial] * jnp.sqrt(
                2 * j * (functions.degree + 1) / (parameters["perpendicular"] + 2 * j - 2)
            )
            dq = dq + 2 * group["q"] * eigenvalue / jnp.sqrt(v) * (
                raised @ (X * first[functions.degree + 1])
            )
        U = residual @ (X * c[functions.degree]) if trained else jnp.zeros_like(dq)
        return dT, dq, U

    p = state["q"].shape[0]
    dT, dq, U = (force.reshape(-1, *force.shape[2:])[:p] for force in lax.map(group_forces, groups))
    return dT, dq, U


def _split_particles(basis: Basis, parameters: Parameters, state: State) -> dict[str, Numeric]:
    """Return the particles with their v and c_n(v), in groups of equal size.

    Additional particles of weight 0 complete the last group.
    """
    p = state["q"].shape[0]
    groups = -(-p * len(indices(basis).degree) // CHUNK)
    group_size = -(-p // groups)
    fill = groups * group_size - p
    particles: dict[str, Numeric] = {
        "T": jnp.pad(state["T"], ((0, fill), (0, 0))),
        "q": jnp.pad(state["q"], (0, fill), constant_values=1.0),
        "a": jnp.pad(state["a"], (0, fill)),
        "weights": jnp.pad(parameters["weights"], (0, fill)),
    }
    particles["v"] = variance(parameters, particles)
    # Outside of the table the coefficients are constant, not extrapolated: the solution stops there
    # and starts again with a wider table.
    x = (jnp.log(particles["v"]) - parameters["middle"]) / parameters["half"]
    polynomials = _chebyshev(jnp.clip(x, -1.0, 1.0), parameters["table"].shape[1])
    c = parameters["table"] @ polynomials
    split = {
        name: array.reshape(groups, group_size, *array.shape[1:])
        for name, array in particles.items()
    }
    return {**split, "c": jnp.moveaxis(c.reshape(-1, groups, group_size), 1, 0)}


def variance(parameters: Parameters, state: State) -> Float[Numeric, " p"]:
    """Return v = l (|t|^2 + q), the variance of the field of each unit."""
    return parameters["eigenvalue"] * (jnp.sum(state["T"] ** 2, axis=-1) + state["q"])


def _monomials(basis: Basis, parameters: Parameters, group: Parameters) -> Float[Numeric, "n p"]:
    """Return u_{alpha j}/c_n, (A, particles)."""
    functions = indices(basis)
    rho = jnp.sqrt(parameters["eigenvalue"] / group["v"]) * group["T"].T
    powers = _powers(rho, basis.terms)
    X = functions.roots[:, None]
    for axis in range(basis.signals):
        X = X * powers[functions.powers[:, axis], axis]
    if basis.radial > 1:
        j = np.arange(1.0, basis.radial)
        steps = jnp.sqrt((2 * j - 1) / (parameters["perpendicular"] + 2 * j - 2))
        kappa = jnp.concatenate([jnp.ones(1), jnp.cumprod(steps)])
        rho_perp_squared = parameters["eigenvalue"] * group["q"] / group["v"]
        radial = kappa[:, None] * _powers(rho_perp_squared, basis.radial)
        X = X * radial[functions.radial]
    return X


def _powers(x: Float[Numeric, "..."], count: int) -> Float[Numeric, "..."]:
    """Return x^0, ..., x^(count-1) along a new first axis.

    XLA neither fuses a scan into the operations that follow nor compiles it for long.
    """
    return lax.scan(lambda power, _: (power * x, power), jnp.ones_like(x), None, length=count)[1]


def _chebyshev(x: Float[Numeric, " p"], count: int) -> Float[Numeric, "n p"]:
    """Return T_0(x), ..., T_(count-1)(x) along a new first axis, by T_(n+1) = 2 x T_n - T_(n-1)."""
    start = (jnp.ones_like(x), x)
    return lax.scan(
        lambda pair, _: ((pair[1], 2 * x * pair[1] - pair[0]), pair[0]), start, None, length=count
    )[1]


def pair_forces(
    loss: CommitteeLoss, problem_parameters: Parameters, parameters: Parameters, state: State
) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"], Float[Numeric, " p"], Float[Numeric, ""]]:
    """Return `forces` and the excess risk at d = infinity, for a committee as teacher.

    Closed expectations of pairs of units give them at a cost of O(p^2) ::

        E[s_i' zeta E] = t_i sum_c w_c A_ic + sum_c w_c B_ic t_c,
        E[s_i'' E] = sum_c w_c A_ic,     E[s_i E] = sum_c w_c K_ic

    where c runs over students (w = -a/p) and teachers (w = a*/k). The pair of a unit with itself is
    that of two units with the same (t, q), whose perpendicular parts are independent.
    """
    s, teacher = loss.student, loss.teacher
    root = jnp.sqrt(parameters["eigenvalue"])
    T, frame = root * state["T"], root * problem_parameters["frame"][0]
    v, target = variance(parameters, state), jnp.sum(frame**2, axis=1)
    students = -parameters["weights"] * state["a"]
    teachers = problem_parameters["teacher_head"] / frame.shape[0]
    student_pairs = pairs.moments(s, s, v, v, T @ T.T, 0)
    teacher_pairs = pairs.moments(s, teacher, v, target, T @ frame.T, 0)
    U, bend = (student_pairs[i] @ students + teacher_pairs[i] @ teachers for i in range(2))
    push = (student_pairs[2] * students) @ T + (teacher_pairs[2] * teachers) @ frame
    labels_squared = pairs.value(teacher, teacher, target, target, frame @ frame.T, 0)
    excess = 0.5 * (
        students @ (student_pairs[0] @ students + 2 * teacher_pairs[0] @ teachers)
        + teachers @ labels_squared @ teachers
    )
    return root * (T * bend[:, None] + push), 2 * state["q"] * root**2 * bend, U, excess
