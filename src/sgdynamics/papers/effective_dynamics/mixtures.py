"""Gaussian mixtures at snr = infinity (Ben Arous, Gheissari, Jagannath, sections 4 and 5).

Symbols of "High-dimensional limit theorems for SGD": v is the head, m_i = W_i.mu (XOR: m_i^mu and
m_i^nu), alpha the weight decay, delta = 1/N the step size, lambda the snr. The time t = steps/N is
that of the library at lr = c_delta = 1 (v = a, R_perp = Q - M M^T). Docstrings name the misprints.

A unit is of a type if it serves one cluster: h_i > 0 there, v_i of the label's sign, |m_i| = |v_i|
along the cluster's direction, 0 along the other one. Binary "+": m = v > 0, "-": m = v < 0. XOR
"mu+": m^mu = v > 0, "mu-": -m^mu = v > 0, "nu+": m^nu = v < 0, "nu-": -m^nu = v < 0 (the paper's
labels: "nu+" has m^nu < 0 and serves the cluster -nu). With w the weight of a cluster (1/2, 1/4),
the units of an active type have sum v_i^2 = C_alpha, where w sigmoid(-C_alpha) = alpha.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.ode.sliding_solver import solve_infinite_snr

# for each type: direction, sign of the cluster mean along it, sign of v
TYPES: dict[str, dict[str, tuple[int, int, int]]] = {
    "binary": {"+": (0, 1, 1), "-": (0, -1, -1)},
    "xor": {"mu+": (0, 1, 1), "mu-": (0, -1, 1), "nu+": (1, -1, -1), "nu-": (1, 1, -1)},
}
IDLE = "0"  # a unit with v = m = 0
MOST_WIDTH = 8  # largest width of a list of components, which has (types + 1)^width strata
ON_RING = 1e-6  # relative tolerance of sum a_i^2 = C_alpha
# runs last until a unit of |v| = 1e-6 has grown to order 1; a smaller |v| has probability 1e-6
GROWTH = 1e6
RTOL = 1e-8  # per step; only the types of the final state matter


def _kind(kind: str) -> dict[str, tuple[int, int, int]]:
    return TYPES[checks.choice("kind", kind, TYPES)]


def _width(kind: str, width: int | None) -> int:
    return len(_kind(kind)) if width is None else checks.integer("width", width, 1)


def _weight(kind: str) -> float:
    """Weight w of one cluster."""
    return 1.0 / len(TYPES[kind])


def _below_threshold(kind: str, alpha: float) -> float:
    """Check that alpha is below the threshold above which 0 is the only fixed point."""
    _kind(kind)
    alpha, most = checks.number("alpha", alpha, above=0.0), _weight(kind) / 2
    if alpha >= most:
        raise checks.reject(
            "alpha",
            alpha,
            f"at {most:g} and above 0 is the only fixed point. Use alpha below {most:g}.",
        )
    return alpha


def ring_radius(kind: str, alpha: float) -> float:
    """Squared radius C_alpha of the rings on which the fixed points lie.

    ::

        w sigmoid(-C_alpha) = alpha
        binary: C_alpha = log((1 - 2 alpha)/(2 alpha)),   XOR: C_alpha = - logit(4 alpha)

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    alpha : float
        The weight decay.

    Returns
    -------
    float
        C_alpha.

    Notes
    -----
    At and above the threshold alpha = 1/4 (binary), 1/8 (XOR) the only fixed point is 0. The result
    is then 0.0, with a warning. Source: Prop. 4.2 and section 5.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.ring_radius("binary", 0.1), 4)
    1.3863
    """
    _kind(kind)
    alpha, w = checks.number("alpha", alpha, above=0.0), _weight(kind)
    if alpha >= w / 2:
        warnings.warn(
            f"alpha = {alpha:g}: at {w / 2:g} and above the only fixed point is 0, without a ring.",
            stacklevel=2,
        )
        return 0.0
    return math.log((w - alpha) / alpha)


@dataclass(frozen=True)
class MixtureComponent:
    """A connected component of the fixed points of a mixture at snr = infinity, 0 < alpha < w/2.

    Attributes
    ----------
    kind : str
        "binary" or "xor".
    width : int
        Number of hidden units. Defaults to 2 for binary and 4 for xor.
    strata : tuple of tuple of str
        Types of the units ("0" for an idle unit), one entry per stratum.
    active : tuple of str
        The active types.
    dimension : int
        Largest dimension of its strata.
    stable : bool
        Whether it attracts its neighbourhood.

    Notes
    -----
    ``strata``: for every choice of a type ("0": v = m = 0) for each unit, a manifold of fixed
    points, the product over active types of the open part of a sphere sum v_i^2 = C_alpha. Two
    strata are in one component if their closures meet.

    Examples
    --------
    >>> component = sgd.papers.effective_dynamics.mixture_components("binary")[0]
    >>> component.active, component.stable
    ((), False)
    """

    kind: str
    width: int
    strata: tuple[tuple[str, ...], ...]
    active: tuple[str, ...]  # the active types, the same in all strata
    dimension: int  # the largest of its strata
    stable: bool  # whether every point of the closed component is (Lyapunov) stable

    def representative(self, alpha: float) -> dict[str, np.ndarray]:
        """A fixed point where the units of each type share C_alpha equally.

        The point lies in a stratum of the largest dimension.

        Parameters
        ----------
        alpha : float
            The weight decay.

        Returns
        -------
        dict of ndarray
            "M" (K, q), "Q" (K, K) and "a" (K).
        """
        C = ring_radius(self.kind, _below_threshold(self.kind, alpha))
        stratum = max(self.strata, key=_dimension)
        types = TYPES[self.kind]
        M, a = (
            np.zeros((self.width, 1 + max(q for q, _, _ in types.values()))),
            np.zeros(self.width),
        )
        for unit, name in enumerate(stratum):
            if name != IDLE:
                direction, side, sign = types[name]
                size = math.sqrt(C / stratum.count(name))
                M[unit, direction], a[unit] = side * size, sign * size
        return {"M": M, "Q": M @ M.T, "a": a}


def _active(stratum: tuple[str, ...]) -> frozenset[str]:
    return frozenset(stratum) - {IDLE}


def _dimension(stratum: tuple[str, ...]) -> int:
    return sum(name != IDLE for name in stratum) - len(_active(stratum))


def mixture_components(kind: str = "xor", width: int | None = None) -> list[MixtureComponent]:
    """Connected components of the set of fixed points, ordered by the number of active types.

    There are 39 for XOR at width 4 (24 of them stable) and 5 for binary at width 2.

    Parameters
    ----------
    kind : str, default "xor"
        "binary" or "xor".
    width : int, optional
        Number of hidden units. Defaults to 2 for binary and 4 for xor.

    Returns
    -------
    list of MixtureComponent
        The components, ordered by the number of active types.

    Notes
    -----
    Every unit is of a type or idle: (types + 1)^K strata. A unit may leave its type for v = m = 0
    as long as another one of that type is left, which is how closures meet; the components are what
    this connects. At width 4 the 625 strata of XOR merge to 39 = 1 + 4 + 6 + 4 + 24 components, by
    number of active types. (Section 5 calls each partition a component; 39 is right.) A point is
    unstable if and only if a unit is idle while a type is missing: towards that type it grows at
    the rate w/2 - alpha > 0. Else idle units are neutral (w sigmoid(-C_alpha) = alpha), all else
    relaxes, and the component attracts its neighbourhood. The open quarter circles of Prop. 4.2(2)
    are not unstable, as printed: only their end points are, so that their component is not
    ``stable``.

    Examples
    --------
    >>> len(sgd.papers.effective_dynamics.mixture_components("binary"))
    5
    """
    types, width = _kind(kind), _width(kind, width)
    if width > MOST_WIDTH:
        raise checks.reject(
            "width",
            width,
            f"the list has {len(types) + 1}^width strata. Use a width of at most {MOST_WIDTH}.",
        )
    strata = list(itertools.product((IDLE, *types), repeat=width))
    parent = {stratum: stratum for stratum in strata}

    def root(stratum: tuple[str, ...]) -> tuple[str, ...]:
        while parent[stratum] != stratum:
            parent[stratum] = parent[parent[stratum]]
            stratum = parent[stratum]
        return stratum

    for stratum in strata:
        for unit, name in enumerate(stratum):
            if name != IDLE and stratum.count(name) > 1:
                parent[root(stratum)] = root((*stratum[:unit], IDLE, *stratum[unit + 1 :]))
    members: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for stratum in strata:
        members.setdefault(root(stratum), []).append(stratum)
    components = []
    for group in members.values():
        present = _active(group[0])
        active = tuple(name for name in types if name in present)
        # an idle unit is unstable towards a type that is missing
        stable = len(active) == len(types) or not any(IDLE in stratum for stratum in group)
        dimension = max(map(_dimension, group))
        components.append(MixtureComponent(kind, width, tuple(group), active, dimension, stable))
    return sorted(components, key=lambda component: len(component.active))


def _type_law(kind: str) -> dict[str, Fraction]:
    """Distribution of the final type of a unit when all signs of v and m are equally likely.

    For |m_i| < |v_i| the sign of v_i never changes. Binary: m_i takes the sign of v_i. XOR: where
    v_i > 0, m_i^mu keeps its sign and m_i^nu goes to 0; where v_i < 0, the other way round.
    """
    types = _kind(kind)
    directions = 1 + max(q for q, _, _ in types.values())
    law = dict.fromkeys(types, Fraction(0))
    for v, *m in itertools.product((1, -1), repeat=1 + directions):
        for name, (direction, side, sign) in types.items():
            if sign == v and (kind == "binary" or side == m[direction]):
                law[name] += Fraction(1, 2 ** (1 + directions))
    return law


def _active_law(kind: str, width: int) -> list[Fraction]:
    """Probabilities of 0, 1, ... active types for independent units."""
    law: dict[frozenset[str], Fraction] = {frozenset(): Fraction(1)}
    unit = _type_law(kind)
    for _ in range(width):
        after: dict[frozenset[str], Fraction] = {}
        for active, p in law.items():
            for name, share in unit.items():
                union = active | {name}
                after[union] = after.get(union, Fraction(0)) + p * share
        law = after
    return [
        sum((p for active, p in law.items() if len(active) == n), Fraction(0))
        for n in range(len(unit) + 1)
    ]


def success_probability(kind: str, width: int | None = None) -> float:
    """The probability that the flow at snr = infinity ends in an optimal classifier: 1/2 for binary
    at width 2, 3/32 for XOR at width 4.

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    width : int, optional
        Number of hidden units. Defaults to 2 for binary and 4 for xor.

    Returns
    -------
    float
        The exact probability.

    Notes
    -----
    Every cluster needs a unit of its type. Start: v_i ~ N(0, 1) and m_i symmetric and small, W_i ~
    N(0, I/N) with N -> infinity; any 0 < alpha < w/2. Exact, over the signs of v and m. Prop. 4.2,
    section 5 (Fig. 3 exchanges 3/32, optimal, and 29/32). It is the order snr -> infinity before N
    -> infinity: at fixed snr XOR succeeds more often as N grows.

    Examples
    --------
    >>> paper = sgd.papers.effective_dynamics
    >>> paper.success_probability("binary"), paper.success_probability("xor")
    (0.5, 0.09375)
    """
    return float(_active_law(kind, _width(kind, width))[-1])


def active_types_probability(kind: str = "xor", width: int | None = None) -> tuple[float, ...]:
    """Probabilities of 1, 2, ... active types in the final state.

    For XOR at width 4 they are 1/64, 21/64, 9/16 and 3/32. The setting is that of
    ``success_probability``.

    Parameters
    ----------
    kind : str, default "xor"
        "binary" or "xor".
    width : int, optional
        Number of hidden units. Defaults to 2 for binary and 4 for xor.

    Returns
    -------
    tuple of float
        One probability for each number of active types.

    Examples
    --------
    >>> sgd.papers.effective_dynamics.active_types_probability("xor")
    (0.015625, 0.328125, 0.5625, 0.09375)
    """
    return tuple(float(p) for p in _active_law(kind, _width(kind, width))[1:])


@dataclass(frozen=True)
class MeasuredSuccess:
    """Share of the runs that ended in an optimal classifier, and counts of active types.

    Attributes
    ----------
    fraction : float
        Fraction of the runs that ended in an optimal classifier.
    standard_error : float
        Its standard error.
    counts : tuple of int
        Numbers of runs that ended with 0, 1, ... active types.
    runs : int
        Number of runs.

    Examples
    --------
    >>> success = sgd.papers.effective_dynamics.measured_success("binary", runs=200)
    >>> success.runs, abs(success.fraction - 0.5) < 0.2
    (200, True)
    """

    fraction: float
    standard_error: float
    counts: tuple[int, ...]
    runs: int


def measured_success(
    kind: str,
    alpha: float = 0.1,
    runs: int = 10000,
    seed: int = 0,
    *,
    width: int | None = None,
    scale: float = 1e-6,
) -> MeasuredSuccess:
    """``success_probability`` by integrating the flow at snr = infinity from random starts v ~ N(0,
    1), m ~ N(0, scale^2).

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    alpha : float, default 0.1
        The weight decay.
    runs : int, default 10000
        Number of runs.
    seed : int, default 0
        Seed of the random number generator.
    width : int, optional
        Number of hidden units. Defaults to 2 for binary and 4 for xor.
    scale : float, default 1e-06
        Standard deviation of the initial overlaps.

    Returns
    -------
    MeasuredSuccess
        The fraction with its standard error.

    Notes
    -----
    A type counts as active if ``|f_c|`` > C_alpha/2 on its cluster, with the label's sign, at the
    time log(1e6)/(w/2 - alpha), by which a unit grows from ``|v|`` = 1e-6. The law is that of scale
    -> 0 up to terms of order scale: the paper's W ~ N(0, I/N) is scale = N^(-1/2), and signs change
    only where ``|v_i| < |m_i|``. At and above the threshold every run ends at 0: then a fraction of
    0, with a warning.

    Examples
    --------
    >>> sgd.papers.effective_dynamics.measured_success("binary", runs=200).runs
    200
    """
    width = _width(kind, width)
    C = ring_radius(kind, alpha)
    runs, seed = checks.integer("runs", runs, 1), checks.integer("seed", seed, 0)
    scale = checks.number("scale", scale, above=0.0)
    types = TYPES[kind]
    if C == 0.0:
        return MeasuredSuccess(0.0, 0.0, (runs, *[0] * len(types)), runs)
    directions = 1 + max(q for q, _, _ in types.values())
    draws = np.random.default_rng(seed).standard_normal((runs, width, 1 + directions))
    a, M = draws[..., 0], scale * draws[..., 1:]
    time = math.log(GROWTH) / (_weight(kind) / 2 - alpha)
    end = solve_infinite_snr(
        kind,
        M,
        M @ np.swapaxes(M, 1, 2),
        a,
        times=[time],
        weight_decay=alpha,
        rtol=RTOL,
        atol=RTOL / 100,
    )
    a, M = end["a"][:, 0], end["M"][:, 0]
    reached = [
        sign * np.sum(a * np.maximum(side * M[:, :, q], 0.0), axis=1) > C / 2
        for q, side, sign in types.values()
    ]
    counts = np.bincount(np.sum(reached, axis=0), minlength=len(types) + 1)
    fraction = float(counts[-1] / runs)
    return MeasuredSuccess(
        fraction, math.sqrt(fraction * (1 - fraction) / runs), tuple(counts.tolist()), runs
    )


def _on_ring(
    kind: str, a: RealArray, alpha: float, types: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """v, m and types of a fixed point without idle units; by default those with m = v = a."""
    signs_of_type, C = _kind(kind), ring_radius(kind, alpha)
    if np.ndim(a) != 1 or np.size(a) == 0:
        raise ValueError(
            f"a has shape {np.shape(a)}: give the head of the fixed point, one number per unit."
        )
    a = checks.array("a", a, np.shape(a), "one number per unit")
    if np.any(a == 0.0):
        raise checks.reject(
            "a",
            a.tolist(),
            "a unit at 0 is the end of an arc, where the drift has a kink. Use nonzero numbers.",
        )
    if types is None:
        straight = {sign: name for name, (_, side, sign) in signs_of_type.items() if side == sign}
        types = [straight[int(sign)] for sign in np.sign(a)]
    if len(types) != len(a):
        raise checks.reject("types", types, f"give one type for each of the {len(a)} units.")
    for value, name in zip(a, types, strict=True):
        if signs_of_type[checks.choice("types", name, signs_of_type)][2] != np.sign(value):
            raise checks.reject("a", a.tolist(), f"a unit of type {name!r} has the other sign.")
    names = tuple(types)
    for name in dict.fromkeys(names):
        members = [value for value, member in zip(a, names, strict=True) if member == name]
        total = sum(value**2 for value in members)
        if abs(total - C) > ON_RING * C:
            raise checks.reject(
                "a",
                a.tolist(),
                f"sum of a_i^2 over the units of type {name!r} is {total:.6g}. "
                f"It must be C_alpha = {C:.6g}.",
            )
    m = np.array(
        [signs_of_type[name][1] * abs(value) for value, name in zip(a, names, strict=True)]
    )
    return a, m, names


def rescaled_diffusion(
    kind: str, a: RealArray, alpha: float, *, types: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Drift matrix A and covariance Sigma of the linear SDE around a fixed point.

    ::

        du = A u dt + Sigma^(1/2) dB
        u = sqrt(N) (v_1 - a_1, ..., v_K - a_K, m_1 - m_1*, ..., m_K - m_K*)

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    a : array_like
        Head weights at the fixed point, one per unit.
    alpha : float
        The weight decay.
    types : sequence of str, optional
        Type of each unit. Defaults to the types in the propositions of the paper.

    Returns
    -------
    tuple of ndarray
        The matrices A and Sigma, each of shape (2K, 2K).

    Notes
    -----
    v = a is the head at a fixed point and m_i the overlap of unit i with its type's direction, m_i*
    = a_i by default: binary, the arcs a_i > 0 (or < 0) of Prop. 4.3; XOR a_i > 0 along mu and a_i <
    0 along nu, as in Prop. 5.1. Other fixed points, the optimal ones among them, by their
    ``types``, with m_i* = +-a_i. With r_i = m_i*/a_i and sums over the units of i's own type:

    ::

        dv_i/dt = - alpha (v_i - r_i m_i) - m_i* (alpha - alpha^2/w) sum_k (m_k* v_k + a_k m_k)
        dm_i/dt = - alpha (m_i - r_i v_i) - a_i  (alpha - alpha^2/w) sum_k (m_k* v_k + a_k m_k)
        Sigma   = alpha^2 x_i x_j (1{same type}/w - 1),   x = (a, m*),   delta = 1/N

    w = 1/2 gives alpha^2 a_i a_j on one arc (rank 1), w = 1/4 gives 3 alpha^2 and -alpha^2 (rank
    2). A is symmetric. R_perp decouples: it decays at the rate 2 alpha, without noise; the overlaps
    that slide stay 0 (at the scale N^(-1/2)). Printed with the wrong sign: the sum in Props. 4.3
    and 5.1; also R_ii' = -alpha R_ii for -2 alpha R_ii in 4.3.

    Examples
    --------
    >>> a = np.sqrt(sgd.papers.effective_dynamics.ring_radius("binary", 0.1) / 2) * np.ones(2)
    >>> A, Sigma = sgd.papers.effective_dynamics.rescaled_diffusion("binary", a, 0.1)
    >>> A.shape, Sigma.shape
    ((4, 4), (4, 4))
    """
    _kind(kind)
    a, m, names = _on_ring(kind, a, _below_threshold(kind, alpha), types)
    w, K = _weight(kind), len(a)
    same = np.array([[first == second for second in names] for first in names])
    slope = np.concatenate([m, a])  # gradient of f on the unit's cluster, up to its sign
    both = np.tile(same, (2, 2))
    turn = np.diag(m / a)
    rotation = np.block([[-np.eye(K), turn], [turn, -np.eye(K)]])
    A = alpha * rotation - (alpha - alpha**2 / w) * both * np.outer(slope, slope)
    x = np.concatenate([a, m])
    return A, alpha**2 * np.outer(x, x) * (both / w - 1.0)


def arc_paths(
    kind: str,
    a: RealArray,
    alpha: float,
    times: RealArray,
    runs: int,
    seed: int = 0,
    *,
    types: Sequence[str] | None = None,
    start: ArrayLike | None = None,
) -> np.ndarray:
    """Paths u (run, time, 2K) of the linear SDE of ``rescaled_diffusion``, exact in law at any
    times.

    ::

        u(t + s) = e^(As) u(t) + N(0, integral_0^s e^(Ar) Sigma e^(Ar) dr)

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    a : array_like
        Head weights at the fixed point, one per unit.
    alpha : float
        The weight decay.
    times : array_like
        Times at which the paths are returned.
    runs : int
        Number of paths.
    seed : int, default 0
        Seed of the random number generator.
    types : sequence of str, optional
        Type of each unit. Defaults to the types in the propositions of the paper.
    start : array_like, optional
        Initial value u(0), of shape (2K,). Defaults to 0.

    Returns
    -------
    ndarray
        Array of shape (run, time, 2K).

    Notes
    -----
    In the eigenbasis of the symmetric A, with eigenvalues l, the integral is
    S_ij (e^((l_i + l_j) s) - 1)/(l_i + l_j), so that there is no discretisation error. Source:
    Props. 4.3 and 5.1.

    Examples
    --------
    >>> a = np.sqrt(sgd.papers.effective_dynamics.ring_radius("binary", 0.1) / 2) * np.ones(2)
    >>> sgd.papers.effective_dynamics.arc_paths("binary", a, 0.1, [1.0, 2.0], runs=3).shape
    (3, 2, 4)
    """
    A, Sigma = rescaled_diffusion(kind, a, alpha, types=types)
    runs, seed = checks.integer("runs", runs, 1), checks.integer("seed", seed, 0)
    times = checks.array("times", times, np.shape(times), "increasing, 0 or more")
    if times.ndim != 1 or len(times) == 0 or times[0] < 0 or np.any(np.diff(times) <= 0):
        raise checks.reject("times", times, "give increasing times, 0 or more")
    initial_state = (
        np.zeros(len(A))
        if start is None
        else checks.array("start", start, (len(A),), "v, then m, rescaled by sqrt(N)")
    )
    values, basis = np.linalg.eigh(A)
    S, pairs = basis.T @ Sigma @ basis, values[:, None] + values[None, :]
    draws = np.random.default_rng(seed).standard_normal((runs, len(times), len(A)))
    u, now = np.tile(initial_state @ basis, (runs, 1)), 0.0
    paths = np.empty(draws.shape)
    for n, time in enumerate(times):
        step = time - now
        if step > 0:
            neutral = pairs == 0.0
            growth = np.where(neutral, step, np.expm1(pairs * step) / np.where(neutral, 1.0, pairs))
            size, root = np.linalg.eigh(S * growth)
            u = np.exp(values * step) * u + draws[:, n] @ (root * np.sqrt(np.maximum(size, 0.0))).T
        paths[:, n], now = u @ basis.T, time
    return paths


def arc_variance(alpha: float, kind: str = "binary") -> float | np.ndarray:
    """The stationary variance of rho = sum_k a_k (v_k + m_k) in the SDE of Prop. 4.3: alpha
    C_alpha/(1 - 2 alpha).

    Parameters
    ----------
    alpha : float
        The weight decay.
    kind : str, default "binary"
        "binary" or "xor".

    Returns
    -------
    float or ndarray
        A number for binary, a (2, 2) matrix for XOR.

    Notes
    -----
    Along an arc rho relaxes at the rate 2 C_alpha (alpha - alpha^2/w) and takes up all the noise.
    XOR: the covariance matrix (2, 2) of the rho of the two arcs of Prop. 5.1, alpha C_alpha/(1 - 4
    alpha) times 3 on the diagonal and -1 off it.

    Examples
    --------
    >>> round(float(sgd.papers.effective_dynamics.arc_variance(0.1)), 4)
    0.1733
    """
    alpha = _below_threshold(kind, alpha)
    w = _weight(kind)
    unit = alpha * ring_radius(kind, alpha) / (1 - alpha / w)
    return unit * (1 / w - 1) if kind == "binary" else unit * (np.eye(2) / w - 1.0)


def optimum(kind: str, alpha: float, snr: float) -> float:
    """``|v_i|`` at the optimal fixed point for large snr (binary at width 2, XOR at width 4), from
    sqrt(C_alpha) at snr = infinity.

    ::

        binary: |v| = sqrt(C) + sqrt(C) [C (1 - 4 alpha)/2 - 1]/(2 snr) + O(snr^-2)
        XOR:    |v| = sqrt(C) + sqrt(C/(2 pi snr)) [1 - 1/(C (1 - 4 alpha))] + O(1/snr)

    Parameters
    ----------
    kind : str
        "binary" or "xor".
    alpha : float
        The weight decay.
    snr : float
        lambda, the strength of the signal; for mixtures one over the variance.

    Returns
    -------
    float
        Absolute value of v_i.

    Notes
    -----
    ``|m_i| = |v_i|`` to this order, whatever c_delta is. Footnote 5 promises a shift of order
    1/snr; XOR's is of order snr^(-1/2), because on the clusters that a unit does not serve its
    field is 0 on average, and half of the noise passes the ReLU.

    Examples
    --------
    >>> round(sgd.papers.effective_dynamics.optimum("binary", 0.1, 100.0), 4)
    1.174
    """
    snr = checks.number("snr", snr, above=0.0, infinite=True)
    C = ring_radius(kind, alpha)
    if C == 0.0:
        return 0.0
    if kind == "binary":
        return math.sqrt(C) * (1 + (C * (1 - 4 * alpha) / 2 - 1) / (2 * snr))
    return math.sqrt(C) + math.sqrt(C / (2 * math.pi * snr)) * (1 - 1 / (C * (1 - 4 * alpha)))
