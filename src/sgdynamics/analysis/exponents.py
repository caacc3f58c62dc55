"""How hard a target is for SGD before anything is learned: Hermite coefficients, information and generative exponents, leap, samples.

With x standard normal and h_k = He_k/sqrt(k!) the orthonormal Hermite polynomials, a link f has the coefficients c_k = E[f(x) h_k(x)].
One unit on the sphere with the link as its activation and squared loss follows, in m = w.w* and the library's t,

    dm/dt = (1 - m^2) sum_n n c_n^2 m^(n-1) - (lr/2) m E[s'(u)^2 ((s(v) - s(u))^2 + noise)],     E[u v] = m,

so near m = 0 it is signal m^(kappa - 1) - lr friction m, kappa the first k >= 1 with c_k != 0, signal = kappa c_kappa^2.
Everything here is one-dimensional quadrature in float64: Gauss-Legendre on panels that break at the kinks, at two resolutions whose
difference is the error estimate, out to 36 standard deviations (a link may grow nearly like exp(x^2/4)).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import linalg

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.precision import float64
from sgdynamics.expectations.mehler import hermite_functions
from sgdynamics.expectations.nodes import gauss_hermite, gauss_legendre
from sgdynamics.problems.activations import Activation, validate_kinks
from sgdynamics.problems.activations import activation as find_activation

RADII = np.concatenate(
    [np.arange(0, 8, 0.5), np.arange(8, 14, 1.0), np.linspace(14, 36, 7)]
)  # phi(36) = 1e-282: no denormal numbers
SURE = 8.0  # a link must be finite up to here; an overflow further out cuts the range
COUNTS = (16, 24)  # nodes a panel, coarse and fine
HALVINGS = 4  # of the panels, at most, until the two agree to
AGREE = 1e-12
SLOW_TAIL = 1e-8  # a larger share of E[f^2] beyond the range counts as not square-integrable
TOLERANCE = 1e-7  # of |f - E f|: a coefficient below counts as zero
MARGIN = 20.0  # and so does one below this many times its error
VAGUE = 1e-5  # a zero that is only known to be below this is not known
LARGE = 0.1  # of the deviation: no quadrature is that wrong
MOST_ORDER = 300  # Hermite functions of higher order reach beyond the range
SEARCH = 40  # orders searched for a first non-zero coefficient
HARMONICS = 12
MOST_POINTS = 2**21  # of a tensor grid
MOST_NODES = 64  # an axis
MOST_DEGREE = 12  # of new variables
BLOCK = 4096  # points a call, so that a JAX function sees one shape


class Link(NamedTuple):
    function: Callable[[Any], Any]
    kinks: tuple[float, ...]
    label: str
    elementwise: bool  # known to take arrays


class LinkSample(NamedTuple):
    """A link on the nodes of one resolution, (panels, nodes): x, the lengths dx, the root of the density and the values."""

    x: np.ndarray
    dx: np.ndarray
    root: np.ndarray
    values: np.ndarray
    widths: np.ndarray
    beyond: float  # estimated share of E[f^2] outside of the range
    rounding: float  # relative, of the values


@dataclass(frozen=True)
class HermiteSeries:
    """Coefficients in the orthonormal Hermite basis, with their estimated errors.

    Attributes
    ----------
    coefficients : ndarray
        c_0 ... c_n.
    errors : ndarray
        Estimated errors of these.
    norm : float
        sqrt(E[f^2]).
    deviation : float
        sqrt(E[(f - E f)^2]).
    """

    coefficients: np.ndarray
    errors: np.ndarray
    norm: float
    deviation: float


def _kinks(kinks: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted(set(validate_kinks(kinks))))


@lru_cache(maxsize=64)
def _compiled(activation: Activation) -> Callable[[Any], Any]:
    return jax.jit(activation.derivative(0))


def as_link(f: Function, kinks: Sequence[float]) -> Link:
    extra = _kinks(kinks)
    if isinstance(f, (str, Activation)) or not callable(f):
        known = find_activation(f, "f")
        return Link(_compiled(known), tuple(sorted({*known.kinks, *extra})), known.label, True)
    return Link(f, extra, getattr(f, "__name__", "f"), False)


def _in_blocks(function: Callable[[Any], Any], points: np.ndarray) -> np.ndarray:
    count = points.shape[-1]
    block = BLOCK if count <= 16 * BLOCK else count
    padded = np.pad(points, [(0, 0)] * (points.ndim - 1) + [(0, -count % block)], mode="edge")
    parts = [
        np.asarray(function(padded[..., i : i + block]), dtype=np.float64).reshape(block)
        for i in range(0, count, block)
    ]
    return np.concatenate(parts)[:count]


def _evaluate(
    argument: str, function: Callable[[Any], Any], points: np.ndarray
) -> tuple[np.ndarray, float]:
    """function on the points along the last axis, and the relative rounding of its numbers.

    A function that takes arrays is called on blocks, a JAX function of one point is mapped, any other is called point by point; which
    of them it is, is found on nine generic points.
    """
    probe = np.random.default_rng(0).standard_normal((*points.shape[:-1], 9))
    try:
        single = [np.asarray(function(probe[..., i])) for i in range(9)]
    except Exception as error:
        raise checks.reject(
            argument, function, f"calling it on one point failed with: {checks.reason(error)}"
        ) from error
    if any(
        value.shape != () or value.dtype.kind not in "biufV" for value in single
    ):  # V: JAX's short floats
        raise checks.reject(
            argument, function, f"a point must go to one real number, but it gave {single[0]!r}"
        )
    rounding = float(
        np.finfo(single[0].dtype if np.issubdtype(single[0].dtype, np.floating) else float).eps
    )
    for whole in (function, jax.vmap(function, in_axes=-1)):
        try:
            trial = np.asarray(whole(probe), dtype=np.float64)
            if trial.shape == (9,) and np.allclose(
                trial, np.array(single, dtype=np.float64), rtol=1e-6, atol=1e-12, equal_nan=True
            ):
                return _in_blocks(whole, points), rounding
        except Exception:  # not a function of arrays: the next way
            continue

    def one(point: np.ndarray) -> float:
        try:
            return float(function(point))
        except OverflowError:  # math.exp and its like, far out
            return math.inf

    return np.array([one(points[..., i]) for i in range(points.shape[-1])]), rounding


@lru_cache(maxsize=32)
def _panels(
    kinks: tuple[float, ...], count: int, halvings: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes (panels, count), lengths, and the panels' widths."""
    edges = np.union1d(
        np.concatenate([-RADII, RADII]), [kink for kink in kinks if abs(kink) < RADII[-1]]
    )
    for _ in range(halvings):
        edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    node, weight = gauss_legendre(count)
    widths = np.diff(edges)
    return edges[:-1, None] + widths[:, None] * node, widths[:, None] * weight, widths


def tail_share(x: np.ndarray, mass: np.ndarray) -> float:
    """Share of a mass that lies beyond the nodes: the last shells, continued as a geometric series (infinite if they grow)."""
    radii = RADII[: np.searchsorted(RADII, np.abs(x).max()) + 1]
    shells = np.histogram(np.abs(x), radii, weights=mass)[0]
    if not shells[-1] > 1e-30 * shells.sum():
        return 0.0
    ratio = shells[-1] / np.diff(radii)[-1] / (shells[-2] / np.diff(radii)[-2])
    return float(shells[-1] * ratio / (1 - ratio) / shells.sum()) if ratio < 1 else math.inf


def sample_link(link: Link, count: int, halvings: int) -> LinkSample:
    x, dx, widths = _panels(link.kinks, count, halvings)
    with np.errstate(all="ignore"):
        if link.elementwise:
            values, rounding = _in_blocks(link.function, x.ravel()), float(np.finfo(float).eps)
        else:
            values, rounding = _evaluate("f", link.function, x.ravel())
    values = values.reshape(x.shape)
    bad = np.abs(x[~np.isfinite(values)])
    if bad.size:
        if bad.min() < SURE:
            at = x[~np.isfinite(values)][np.argmin(bad)]
            raise checks.reject(
                "f",
                link.label,
                f"it is not finite at x = {at:.6g}: give a link that is finite (declare a pole in kinks)",
            )
        keep = np.abs(x).max(axis=1) < RADII[np.searchsorted(RADII, bad.min()) - 1]
        x, dx, widths, values = x[keep], dx[keep], widths[keep], values[keep]
    root = np.exp(-(x**2) / 4) / (2 * np.pi) ** 0.25
    amplitude = values * root
    beyond = tail_share(x, (amplitude / (np.abs(amplitude).max() or 1.0)) ** 2 * dx)
    if beyond > SLOW_TAIL:
        why = f"E[f^2] still grows at |x| = {np.abs(x).max():.3g} (estimated share beyond: {beyond:.2g}); transform or truncate it"
        raise checks.reject(
            "f",
            link.label,
            f"it is not square-integrable under the standard normal, or too nearly so: {why}",
        )
    return LinkSample(x, dx, root, values, widths, beyond, rounding)


def projected(
    sample: LinkSample, rows: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients (rows, order + 1) of functions given on the nodes, |f|, and |f - E f|; the mean is taken off first (rounding)."""
    x, dx, root = sample.x.ravel(), sample.dx.ravel(), sample.root.ravel()
    amplitude = rows.reshape(len(rows), -1) * root
    mean = amplitude @ (root * dx)
    centred = amplitude - mean[:, None] * root
    found = (centred * dx) @ hermite_functions(x, root, order).T
    found[:, 0] = mean
    deviation = np.sqrt(centred**2 @ dx)
    return found, np.hypot(mean, deviation), deviation


def _resolve(
    link: Link,
    order: int,
    tolerance: float | None = None,
    transform: Callable[[np.ndarray], np.ndarray] = lambda values: values[None],
) -> tuple[list[HermiteSeries], int]:
    """The series of each row of transform(values), and how often the panels were halved for it.

    Until two resolutions agree; with a tolerance, until the first non-zero coefficient is clear.
    """
    before = None
    for halvings in range(HALVINGS + 1):
        samples = [sample_link(link, count, halvings) for count in COUNTS]
        (coarse, _, rough), (fine, norms, deviations) = (
            projected(sample, transform(sample.values), order) for sample in samples
        )
        gap, rounding = np.abs(fine - coarse), samples[1].rounding
        if (
            before is not None and halvings == HALVINGS
        ):  # not resolved: that two grids agree may be luck, so ask a third
            gap = np.maximum(gap, np.abs(fine - before))
        before = fine
        errors = gap + (math.sqrt(samples[1].beyond) + rounding) * norms[:, None]
        rows = [
            HermiteSeries(*row)
            for row in zip(fine, errors, norms.tolist(), deviations.tolist(), strict=True)
        ]
        if np.all(gap <= np.maximum(AGREE * deviations, 8 * rounding * norms)[:, None]) or (
            tolerance and _clear(rows, tolerance)
        ):
            break
    if abs(rough[0] - deviations[0]) > 0.02 * deviations[0] + 8 * rounding * norms[0]:
        shown = f"deviation {rough[0]:.4g}, then {deviations[0]:.4g} on a finer grid"
        raise checks.reject(
            "f", link.label, f"E[f^2] does not converge ({shown}): give a square-integrable link"
        )
    return rows, halvings


@float64
def hermite_series(f: Function, n: int, *, kinks: Sequence[float] = ()) -> HermiteSeries:
    """The coefficients of ``hermite_coefficients`` with their estimated errors, and the norms of f and f - E f.

    Parameters
    ----------
    f : str, Activation or callable
        A function of one number, as in ``hermite_coefficients``.
    n : int
        The highest order.
    kinks : sequence of float, default ()
        Where f or a derivative of it jumps.

    Returns
    -------
    HermiteSeries
        ``.coefficients``, ``.errors``, ``.norm``, ``.deviation``.

    Raises
    ------
    ValueError
        If f is no such function, or not square-integrable.

    Examples
    --------
    >>> series = sgd.hermite_series("square", 2)
    >>> round(series.norm, 4), round(series.deviation, 4)
    (1.7321, 1.4142)
    """
    order = checks.integer("n", n, 0)
    if order > MOST_ORDER:
        raise checks.reject(
            "n",
            n,
            f"Hermite functions beyond order {MOST_ORDER} leave the range of the quadrature: give at most that",
        )
    return _resolve(as_link(f, kinks), order)[0][0]


def hermite_coefficients(f: Function, n: int, *, kinks: Sequence[float] = ()) -> np.ndarray:
    """Coefficients of a function in the orthonormal (probabilists') Hermite basis.

    ::

        c_k = E[f(x) He_k(x)] / sqrt(k!),   x ~ N(0, 1),   k = 0..n;     f = sum_k c_k h_k,   E[f^2] = sum_k c_k^2

    Parameters
    ----------
    f : str, Activation or callable
        An activation's name, an ``Activation``, or a function of a number or an array (Python, NumPy or JAX), square-integrable under the
        normal.
    n : int
        The highest order.
    kinks : sequence of float, default ()
        Where f or a derivative of it jumps, besides those that an ``Activation`` declares.

    Returns
    -------
    ndarray
        c_0 ... c_n; ``hermite_series`` has their errors.

    Raises
    ------
    ValueError
        If f is no such function, or not square-integrable.

    Examples
    --------
    >>> (sgd.hermite_coefficients("square", 2).round(4) + 0.0).tolist()
    [1.0, 0.0, 1.4142]
    """
    series = hermite_series(f, n, kinks=kinks)
    worst = float(series.errors.max())
    if worst > VAGUE * series.norm:
        message = f"c_k is off by up to about {worst:.2g} (|f| = {series.norm:.4g}): declare in kinks= where f or f' jumps"
        warnings.warn(message, UserWarning, stacklevel=2)
    return series.coefficients


def _sizes(rows: list[HermiteSeries]) -> tuple[np.ndarray, np.ndarray]:
    """|c_k| and 20 times its error, in deviations, (rows, orders)."""
    # a transformed label is bounded by 1: relative to itself a T that is constant on the values of f would be nothing but rounding
    scales = np.array([[row.deviation if row is rows[0] else 1.0] for row in rows])
    return np.abs([row.coefficients for row in rows]) / scales, MARGIN * np.array(
        [row.errors for row in rows]
    ) / scales


def _clear(rows: list[HermiteSeries], tolerance: float) -> bool:
    """Whether every order before the first non-zero one is zero to the tolerance, and that one known as well, or too large for an error."""
    sizes, limits = _sizes(rows)
    found = np.any(
        (sizes > np.maximum(tolerance, limits)) & ((limits <= tolerance) | (sizes > LARGE)), axis=0
    )[1:]
    first = int(np.argmax(found)) if found.any() else len(found)
    return bool(np.all(limits[:, 1 : 1 + first] <= tolerance))


def first_order(link: Link, rows: list[HermiteSeries], name: str, tolerance: float) -> int:
    """The smallest k >= 1 at which some row has a non-zero coefficient; a ValueError where that cannot be told."""
    sizes, limits = _sizes(rows)
    k = 0
    for k in range(1, sizes.shape[1]):
        if np.any(sizes[:, k] > np.maximum(tolerance, limits[:, k])):
            return k
        worst = int(np.argmax(limits[:, k]))
        if limits[worst, k] > VAGUE:
            why = f"|c_{k}| = {sizes[worst, k]:.2g} with an error of {limits[worst, k] / MARGIN:.2g} (in deviations)"
            raise checks.reject(
                "f",
                link.label,
                f"its {name} cannot be told: {why}; declare in kinks= where f or f' jumps",
            )
    why = f"|c_1|, ..., |c_{k}| are all below {tolerance:g} of the deviation (the largest is {sizes[:, 1:].max():.2g})"
    raise checks.reject(
        "f",
        link.label,
        f"its {name} cannot be told: {why}, zero at this precision: it is above {k}, or f too fast",
    )


def resolved_series(
    link: Link, order: int, tolerance: float | None = None
) -> tuple[HermiteSeries, int]:
    """The series of a link that is not constant."""
    (series,), halvings = _resolve(link, order, tolerance)
    if not series.deviation > MARGIN * float(series.errors[0]):
        shown = f"E f = {series.coefficients[0]:.6g}, deviation {series.deviation:.2g}"
        raise checks.reject("f", link.label, f"it is constant ({shown}): there is nothing to learn")
    return series, halvings


@float64
def information_exponent(
    f: Function, *, kinks: Sequence[float] = (), tolerance: float = TOLERANCE
) -> int:
    """The information exponent of a link, the order of its first non-zero Hermite coefficient after the constant.

    ::

        kappa = min {k >= 1 : c_k != 0},     c_k = E[f(x) h_k(x)]

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``.
    kinks : sequence of float, default ()
        Where f or a derivative of it jumps.
    tolerance : float, default 1e-07
        A coefficient counts as zero below this share of the norm of f - E f, or 20 times its error.

    Returns
    -------
    int
        Orders up to 40 are searched.

    Raises
    ------
    ValueError
        If the error is too large to tell, or f is constant or not square-integrable.

    Notes
    -----
    Ben Arous, Gheissari and Jagannath, JMLR 22 (2021), Definition 1.2 (for Gaussian inputs and squared or correlation loss).

    Examples
    --------
    >>> sgd.information_exponent("square"), sgd.information_exponent("he3")
    (2, 3)
    """
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    link = as_link(f, kinks)
    return first_order(
        link, [resolved_series(link, SEARCH, tolerance)[0]], "information exponent", tolerance
    )


@float64
def generative_exponent(
    f: Function, *, kinks: Sequence[float] = (), tolerance: float = TOLERANCE
) -> int:
    """The generative exponent of a link: the smallest information exponent of T(f) over all transformations T of the label.

    ::

        k* = min {k >= 1 : E[h_k(x) | f(x)] != 0} = min over T of kappa(T o f)

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``; labels are without noise.
    kinks : sequence of float, default ()
        Where f or a derivative of it jumps.
    tolerance : float, default 1e-07
        Below which a coefficient counts as zero.

    Returns
    -------
    int
        An upper bound, too large only if ``E[h_k | f]`` is invisible (below ``tolerance``) to every transformation that is tried.

    Raises
    ------
    ValueError
        If f is constant or not square-integrable, or the error is too large to tell.

    Notes
    -----
    T runs over f itself and cos(j theta), sin(j theta), theta = 2 atan((f - E f)/norm), j = 1..12. The circle is covered once, so that
    these are dense in all T as j grows, and complete for f of up to 25 values.
    Damian, Pillaud-Vivien, Lee and Bruna, "Computational-statistical gaps in Gaussian single-index models" (2024), section 2.

    Examples
    --------
    >>> sgd.generative_exponent("he3")
    1
    """
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    link = as_link(f, kinks)
    own, _ = resolved_series(link, 1, tolerance)

    def transformed(values: np.ndarray) -> np.ndarray:
        y = (values - own.coefficients[0]) / own.deviation
        theta = 2 * np.arctan(y) * np.arange(1, HARMONICS + 1)[:, None, None]
        return np.concatenate([y[None], np.cos(theta), np.sin(theta)])

    return first_order(
        link, _resolve(link, SEARCH, tolerance, transformed)[0], "generative exponent", tolerance
    )


# ---- several variables


def _piecewise_gauss(kinks: tuple[float, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal, exact for polynomials of degree 2 count - 1 between any two kinks."""
    if not kinks:
        return gauss_hermite(count)
    x, dx, _ = (part.ravel() for part in _panels(kinks, 24, 0))
    mass = dx * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    nodes, weights = [], []
    for low, high in itertools.pairwise((-math.inf, *kinks, math.inf)):
        inside = (x > low) & (x < high) & (mass > 0)
        basis = np.zeros((count, int(inside.sum())))
        basis[0] = np.sqrt(mass[inside] / mass[inside].sum())
        for k in range(1, count):
            image = x[inside] * basis[k - 1]
            for _ in range(2):  # twice is enough against rounding
                image = image - (basis[:k] @ image) @ basis[:k]
            basis[k] = image / np.linalg.norm(image)
        value, vector = linalg.eigh((basis * x[inside]) @ basis.T)
        nodes.append(value)
        weights.append(vector[0] ** 2 * mass[inside].sum())
    return np.concatenate(nodes), np.concatenate(weights)


class _Tensor:
    """A function on a tensor grid, centred and scaled to unit deviation."""

    def __init__(
        self, g: Callable[[Any], Any], variables: int, kinks: tuple[float, ...], count: int
    ) -> None:
        self.x, self.weights = _piecewise_gauss(kinks, count)
        grid = np.stack(np.meshgrid(*[self.x] * variables, indexing="ij")).reshape(variables, -1)
        values, self.rounding = _evaluate("g", g, grid)
        if not np.all(np.isfinite(values)):
            at = grid[:, int(np.argmin(np.isfinite(values)))]
            raise checks.reject(
                "g",
                g,
                f"it is not finite at z = {np.round(at, 4).tolist()}: give a function that is finite everywhere",
            )
        values = values.reshape((len(self.x),) * variables)
        mean = self._contract(values, [self.weights[None]] * variables).item()
        self.values = values - mean
        self.roots = np.diag(np.sqrt(self.weights))
        self.deviation = float(
            np.linalg.norm(self._contract(self.values, [self.roots] * variables))
        )
        self.norm = math.hypot(mean, self.deviation)

    @staticmethod
    def _contract(values: np.ndarray, matrices: Sequence[np.ndarray]) -> np.ndarray:
        for matrix in (
            matrices
        ):  # each takes the first axis and puts its result last, so that the order comes round
            values = np.tensordot(values, matrix, axes=(0, 1))
        return values

    def stage(self, seen: set[int], degree: int) -> tuple[np.ndarray, float]:
        """|E[g h_beta(z_unseen) | z_seen]| for the degrees beta of the unseen variables (0 along seen ones), and |g - E[g | z_seen]|."""
        basis = hermite_functions(self.x, 1.0, degree) * self.weights
        axes = range(self.values.ndim)
        found = self._contract(
            self.values, [self.roots if axis in seen else basis for axis in axes]
        )
        norms = np.sqrt(np.sum(found**2, axis=tuple(seen), keepdims=True))
        known = self._contract(
            self.values,
            [np.eye(len(self.x)) if axis in seen else self.weights[None] for axis in axes],
        )
        rest = np.linalg.norm(self._contract(self.values - known, [self.roots for _ in axes]))
        return norms / self.deviation, float(rest) / self.deviation


@float64
def leap_complexity(
    g: Callable[[Any], Any],
    variables: int,
    *,
    kinks: Sequence[float] = (),
    tolerance: float = TOLERANCE,
) -> int:
    """The leap of a target of several directions: the largest number of new degrees that must be learned at once.

    ::

        g(z) = sum_alpha c_alpha prod_i h_{alpha_i}(z_i);   leap = min over orders of the alpha with c_alpha != 0 of
        the largest sum of alpha_i over those i that no alpha before has

    Parameters
    ----------
    g : callable
        A function of the vector z ~ N(0, I) of ``variables`` coordinates, square-integrable.
    variables : int
        How many coordinates.
    kinks : sequence of float, default ()
        Where it breaks along any axis.
    tolerance : float, default 1e-07
        Below which a coefficient counts as zero.

    Returns
    -------
    int
        For one variable the information exponent.

    Raises
    ------
    ValueError
        If g is no such function, constant, or not square-integrable.

    Notes
    -----
    The greedy order is optimal. With the variables V known, a step of new degrees beta exists iff ``E[g h_beta | z_V] != 0``, which is what
    is computed: no degree in known variables is cut off.
    The leap belongs to the basis: z1 + z2 + z1 z2 has leap 1, and 2 in the basis (z1 +- z2)/sqrt(2). SGD with isotropic inputs does not
    know the basis, and the largest leap over all rotations is what bounds it.
    Abbe, Boix-Adsera and Misiakiewicz, "SGD learning on neural networks: leap complexity and saddle-to-saddle dynamics" (2023),
    Definition 1.

    Examples
    --------
    >>> sgd.leap_complexity(lambda z: z[0] + z[0] * z[1], 2), sgd.leap_complexity(lambda z: z[0] * z[1], 2)
    (1, 2)
    """
    count = checks.integer("variables", variables, 1)
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    breaks = tuple(
        kink for kink in _kinks(kinks) if abs(kink) < SURE
    )  # 1e-15 of the mass lies further out
    if not callable(g):
        raise checks.reject("g", g, "give a function from a vector of coordinates to a number")
    pieces = len(breaks) + 1
    nodes = min(MOST_NODES, int(MOST_POINTS ** (1 / count) + 1e-9)) // pieces
    if nodes * pieces < 8 or nodes < 4:
        why = f"k = {count} is beyond the quadrature's reach, {MOST_POINTS} points leave {nodes} nodes an axis{' and piece' * (pieces > 1)}"
        most = int(math.log(MOST_POINTS) / math.log(max(8, 4 * pieces)) + 1e-9)
        raise checks.reject(
            "variables", variables, f"{why}: give at most {most}{' or fewer kinks' * (pieces > 1)}"
        )
    with np.errstate(all="ignore"):
        coarse, fine = (_Tensor(g, count, breaks, size) for size in (nodes - 1, nodes))
    rounding = 4 * fine.rounding * fine.norm
    if not fine.deviation > MARGIN * rounding:
        raise checks.reject(
            "g", g, f"it is constant (deviation {fine.deviation:.2g}): there is nothing to learn"
        )
    degree = min(len(coarse.x) - 1, MOST_DEGREE)
    seen: set[int] = set()
    leap = 0
    while len(seen) < count:
        (rough, _), (norms, rest) = coarse.stage(seen, degree), fine.stage(seen, degree)
        if rest <= tolerance:
            break
        limits = MARGIN * (np.abs(norms - rough) + rounding / fine.deviation)
        new = np.sum(np.indices(norms.shape), axis=0)
        found = (norms > np.maximum(tolerance, limits)) & (new > 0)
        least = int(
            new[found].min(initial=degree + 2)
        )  # of the degrees above `degree` + 1 not all were looked at
        vague = ~found & (limits > VAGUE) & (new > 0) & (new < least)
        if least > leap and vague.any():
            at = np.unravel_index(int(np.argmax(np.where(vague, limits, 0.0))), norms.shape)
            why = f"the part of degrees {tuple(map(int, at))} is {norms[at]:.2g} with an error of {limits[at] / MARGIN:.2g} (in deviations)"
            raise checks.reject(
                "g",
                g,
                f"its leap cannot be told: {why}; declare in kinks= where g breaks along an axis",
            )
        if least > degree + 1:
            unseen = ", ".join(f"z{axis + 1}" for axis in range(count) if axis not in seen)
            raise checks.reject(
                "g",
                g,
                f"its leap cannot be told: it depends on {unseen} (by {rest:.2g}) in new degrees above {degree + 1} only",
            )
        leap = max(leap, least)
        seen |= {
            axis
            for beta in np.argwhere(found & (new == least))
            for axis in range(count)
            if beta[axis]
        }
    return leap
