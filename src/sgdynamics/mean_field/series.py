"""The forces on the particles of a wide network, by a Hermite series that no activation, dimension or particle number changes.

A unit with overlaps t with an orthonormal frame of the signals (m = t C^T, C C^T = P) and q = |w_perp|^2 sees, for inputs N(0, l I),

    lambda = sqrt(l) (t . zeta + sqrt(q) xi),   v = l (|t|^2 + q),   rho = sqrt(l/v) t,   rho_perp^2 = l q / v.

At p = infinity the directions of the w_perp are uniform, so the output is a function F(zeta, |x_perp|). With orthonormal Hermite
polynomials h_alpha(zeta), and phi_j(|x_perp|) the orthonormal Laguerre polynomial of degree j in |x_perp|^2 (the rotation-invariant
part of chaos 2j), a unit has the coefficients, n = |alpha| + 2j and D = d - k,

    u_{alpha j} = c_n(v) sqrt(n!/(alpha! (2j)!)) rho^alpha rho_perp^(2j) kappa_j,
    c_n(v) = E[s(sqrt(v) x) h_n(x)],   kappa_j^2 = E[theta^(2j)] = prod_{i<j} (2i + 1)/(D + 2i)

(theta a coordinate of a uniform unit vector of R^D); at d = infinity only j = 0 is left. So F = mean_i a_i u_i, E = y - F, and the
forces are the gradient of U = sum E_{alpha j} u_{alpha j}:  dt = a grad_t U,  dq = 4 a q dU/dq,  da = head_rate U, by Stein's lemma

    dt_r = a sqrt(l) (sqrt(l) t_r E[s'' E] + E[s' dE/dzeta_r]),   dq = 2 a (q l E[s'' E] + sqrt(l q) E[s' dE/dxi]).

c_n(v) is a Chebyshev series in log v, made once: what is compiled does not know the activation. The series converges like |rho|^n c_n.
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

CHUNK = 2**18  # terms times particles at a time: they then stay in the processor's cache
NEGLIGIBLE = 1e-14  # kappa_j^2 below which radial terms are left out


@dataclass(frozen=True)
class Basis:
    """Which (alpha, j) are kept: |alpha| + 2j < terms, j < radial."""

    signals: int
    terms: int
    radial: int = 1


class Indices(NamedTuple):
    """The basis as arrays: powers (A, k), j (A,), degree (A,), multinomial roots (A,), and where alpha + e_r and j + 1 are (A: nowhere)."""

    powers: np.ndarray
    radial: np.ndarray
    degree: np.ndarray
    roots: np.ndarray
    up: np.ndarray
    up_radial: np.ndarray


@lru_cache(maxsize=32)
def indices(basis: Basis) -> Indices:
    """Every index of the basis, in order of degree."""
    found = [
        (*alpha, j)
        for j in range(basis.radial)
        for alpha in _compositions(basis.signals, basis.terms - 2 * j)
        if basis.terms > 2 * j
    ]
    found.sort(key=lambda index: sum(index) + index[-1])
    place: dict[tuple[int, ...], int] = {index: position for position, index in enumerate(found)}
    powers = np.array([index[:-1] for index in found]).reshape(len(found), basis.signals)
    radial = np.array([index[-1] for index in found])
    degree = powers.sum(axis=1) + 2 * radial
    logs = np.array([math.lgamma(n + 1) for n in range(basis.terms + 1)])
    roots = np.exp((logs[degree] - logs[powers].sum(axis=1) - logs[2 * radial]) / 2)

    def moved(axis: int) -> list[int]:
        return [
            place.get(tuple(value + (axis == i) for i, value in enumerate(index)), len(found))
            for index in found
        ]

    up = np.array([moved(axis) for axis in range(basis.signals)])
    return Indices(powers, radial, degree, roots, up, np.array(moved(basis.signals)))


def _compositions(length: int, limit: int) -> list[tuple[int, ...]]:
    """Every tuple of `length` whole numbers from 0 with a sum below `limit`."""
    result: list[tuple[int, ...]] = [()]
    for _ in range(length):
        result = [(*head, value) for head in result for value in range(limit - sum(head))]
    return result


def size(signals: int, terms: int) -> int:
    """How many alpha have |alpha| < terms."""
    return math.comb(terms - 1 + signals, signals)


def radial_terms(terms: int, perpendicular: int | None) -> int:
    """How many radial functions matter in a perpendicular space of this dimension: a power of two, so that nearby d share a program."""
    if perpendicular is None:
        return 1
    count, largest = 4, (terms + 1) // 2
    while count < largest and radial_shares(count + 1, perpendicular)[count] > NEGLIGIBLE:
        count *= 2
    return min(count, largest)


def radial_shares(count: int, perpendicular: float) -> np.ndarray:
    """kappa_j^2 = E[theta^(2j)], j = 0..count-1."""
    j = np.arange(count - 1)
    return np.concatenate([[1.0], np.cumprod((2 * j + 1) / (perpendicular + 2 * j))])


def table(
    activation: Activation, terms: int, lowest: float, highest: float, nodes: int
) -> dict[str, Any]:
    """c_n(v) for n < terms + 2 as Chebyshev series in log v on [lowest, highest]."""
    middle, half = np.log(highest * lowest) / 2, np.log(highest / lowest) / 2
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    values = hermite_coefficients(activation, np.exp(middle + half * np.cos(angles)), terms + 2)
    transform = np.cos(np.arange(nodes)[:, None] * angles) * (2.0 / nodes)
    transform[0] /= 2
    return {"table": (transform @ values).T, "middle": np.float64(middle), "half": np.float64(half)}


def labels(problem: Problem, basis: Basis) -> tuple[np.ndarray, float, float]:
    """Hermite coefficients of the noiseless label on the basis (those with j > 0 are 0), E[y^2], and the coefficients' estimated error."""
    shape = indices(basis)
    flat = shape.radial == 0
    frame = problem.parameters["frame"][0] * math.sqrt(eigenvalues(problem.parameters)[0])
    result = np.zeros(len(flat))
    given = (problem.parameters, frame, basis.terms, shape.powers[flat], shape.roots[flat])
    result[flat], square, error = expectation_of(problem.structure).label_series(*given)
    return result, square, error


def output(basis: Basis, numbers: dict[str, Any], state: State) -> Float[Numeric, " n"]:
    """F's coefficients, sum_i weight_i a_i u_i (A,)."""
    return _output(basis, numbers, _chunks(basis, numbers, state))


def _output(basis: Basis, numbers: dict[str, Any], parts: dict[str, Any]) -> Float[Numeric, " n"]:
    degree = indices(basis).degree

    def one(part: dict[str, Any]) -> Float[Numeric, " n"]:
        return (_monomials(basis, numbers, part) * part["c"][degree]) @ (
            part["weights"] * part["a"]
        )

    return jnp.sum(lax.map(one, parts), axis=0)


def forces(
    basis: Basis, numbers: dict[str, Any], state: State, *, trained: bool
) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"], Float[Numeric, " p"]]:
    """grad_t U (p x k), 4 q dU/dq (p,) and, where the head is trained, U (p,): the velocities per unit of a, and that of the head."""
    shape = indices(basis)
    parts = _chunks(basis, numbers, state)
    residual = numbers["labels"] - _output(basis, numbers, parts)
    padded = jnp.append(residual, 0.0)
    lowered = padded[shape.up] * np.sqrt(shape.powers.T + 1.0)
    eigenvalue = numbers["eigenvalue"]
    n = np.arange(basis.terms + 1.0)[:, None]

    def one(
        part: dict[str, Any],
    ) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"], Float[Numeric, " p"]]:
        X, c, v = _monomials(basis, numbers, part), part["c"], part["v"]
        first = np.sqrt(n + 1) * c[1:] / jnp.sqrt(v)
        second = np.sqrt((n[:-1] + 1) * (n[:-1] + 2)) * c[2:] / v
        bend = residual @ (X * second[shape.degree])
        push = lowered @ (X * first[shape.degree])
        dT = eigenvalue * part["T"] * bend[:, None] + jnp.sqrt(eigenvalue) * push.T
        dq = 2 * part["q"] * eigenvalue * bend
        if basis.radial > 1:
            j = shape.radial + 1.0
            raised = padded[shape.up_radial] * jnp.sqrt(
                2 * j * (shape.degree + 1) / (numbers["perpendicular"] + 2 * j - 2)
            )
            dq = dq + 2 * part["q"] * eigenvalue / jnp.sqrt(v) * (
                raised @ (X * first[shape.degree + 1])
            )
        return dT, dq, residual @ (X * c[shape.degree]) if trained else jnp.zeros_like(dq)

    p = state["q"].shape[0]
    found = lax.map(one, parts)
    dT, dq, value = (part.reshape(-1, *part.shape[2:])[:p] for part in found)
    return dT, dq, value


def _chunks(basis: Basis, numbers: dict[str, Any], state: State) -> dict[str, Any]:
    """The particles with their v and c_n(v), in groups of equal size; what fills up the last one has weight 0."""
    p = state["q"].shape[0]
    groups = -(-p * len(indices(basis).degree) // CHUNK)
    each = -(-p // groups)
    fill = groups * each - p
    full: dict[str, Numeric] = {
        "T": jnp.pad(state["T"], ((0, fill), (0, 0))),
        "q": jnp.pad(state["q"], (0, fill), constant_values=1.0),
        "a": jnp.pad(state["a"], (0, fill)),
        "weights": jnp.pad(numbers["weights"], (0, fill)),
    }
    full["v"] = variance(numbers, full)
    # beyond the table's ends the series is frozen, not extrapolated: the solve stops there and begins again with a longer one
    where = jnp.clip((jnp.log(full["v"]) - numbers["middle"]) / numbers["half"], -1.0, 1.0)
    c = numbers["table"] @ _chebyshev(where, numbers["table"].shape[1])
    parts = {name: value.reshape(groups, each, *value.shape[1:]) for name, value in full.items()}
    return {**parts, "c": jnp.moveaxis(c.reshape(-1, groups, each), 1, 0)}


def variance(numbers: dict[str, Any], state: State) -> Float[Numeric, " p"]:
    """v = l (|t|^2 + q), the variance of each unit's field."""
    return numbers["eigenvalue"] * (jnp.sum(state["T"] ** 2, axis=-1) + state["q"])


def _monomials(
    basis: Basis, numbers: dict[str, Any], part: dict[str, Any]
) -> Float[Numeric, "n p"]:
    """u/c_n (A, particles)."""
    shape = indices(basis)
    rho = jnp.sqrt(numbers["eigenvalue"] / part["v"]) * part["T"].T
    powers = _powers(rho, basis.terms)
    X = shape.roots[:, None]
    for axis in range(basis.signals):
        X = X * powers[shape.powers[:, axis], axis]
    if basis.radial > 1:
        j = np.arange(1.0, basis.radial)
        steps = jnp.sqrt((2 * j - 1) / (numbers["perpendicular"] + 2 * j - 2))
        kappa = jnp.concatenate([jnp.ones(1), jnp.cumprod(steps)])
        X = (
            X
            * (
                kappa[:, None]
                * _powers(numbers["eigenvalue"] * part["q"] / part["v"], basis.radial)
            )[shape.radial]
        )
    return X


def _powers(x: Float[Numeric, "K p"], count: int) -> Float[Numeric, "n K p"]:
    """x^0, ..., x^(count-1) along a new first axis; a scan, which XLA neither fuses into what reads it nor compiles for long."""
    return lax.scan(lambda power, _: (power * x, power), jnp.ones_like(x), None, length=count)[1]


def _chebyshev(x: Float[Numeric, " p"], count: int) -> Float[Numeric, "n p"]:
    """T_0(x), ..., T_(count-1)(x) along a new first axis."""
    start = (jnp.ones_like(x), x)
    return lax.scan(
        lambda pair, _: ((pair[1], 2 * x * pair[1] - pair[0]), pair[0]), start, None, length=count
    )[1]


def pair_forces(
    problem_loss: CommitteeLoss, parameters: Parameters, numbers: dict[str, Any], state: State
) -> tuple[Any, Any, Any, Any]:
    """The same at d = infinity from closed pair expectations, O(p^2), for a committee teacher: forces, U and the excess risk.

        E[s_i' zeta E] = t_i sum_c w_c A_ic + sum_c w_c B_ic t_c,   E[s_i'' E] = sum_c w_c A_ic,   E[s_i E] = sum_c w_c K_ic

    over students (w = -a/p) and teachers (a*/k). A unit meets itself as any other: two units with the same (t, q) share t only.
    """
    s, teacher = problem_loss.student, problem_loss.teacher
    root = jnp.sqrt(numbers["eigenvalue"])
    T, frame = root * state["T"], root * parameters["frame"][0]
    v, target = variance(numbers, state), jnp.sum(frame**2, axis=1)
    students, teachers = (
        -numbers["weights"] * state["a"],
        parameters["teacher_head"] / frame.shape[0],
    )
    own = pairs.moments(s, s, v, v, T @ T.T, 0)
    cross = pairs.moments(s, teacher, v, target, T @ frame.T, 0)
    K, bend = (own[part] @ students + cross[part] @ teachers for part in range(2))
    both = (own[2] * students) @ T + (cross[2] * teachers) @ frame
    excess = 0.5 * (
        students @ (own[0] @ students + 2 * cross[0] @ teachers)
        + teachers @ pairs.value(teacher, teacher, target, target, frame @ frame.T, 0) @ teachers
    )
    return root * (T * bend[:, None] + both), 2 * state["q"] * root**2 * bend, K, excess
