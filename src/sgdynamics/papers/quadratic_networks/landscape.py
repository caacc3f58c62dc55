"""Critical points of the population risk and their Hessian spectra (arXiv:2604.03068, sections 4.2, 7.2, 7.5), all in closed form.

Rows have norm O(1) here, as in section 7.2 of the paper: R(W) = (Tr D)^2 + 2 Tr D^2 with D = W^T W/p - W*^T W*/p*, its gradient is
(4/p) W (Tr D + 2 D), and the spectra are those of its second derivative in the p N weights. The library's Hessian is half of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sgdynamics.base import checks
from sgdynamics.papers.quadratic_networks.formulas import widths

SAME = 1e-12  # eigenvalues this close, relative to the largest, are one


@dataclass(frozen=True)
class Spectrum:
    """Distinct eigenvalues in increasing order, with their multiplicities; exact zeros are exactly 0.

    Attributes
    ----------
    eigenvalues : ndarray
        Distinct, increasing.
    multiplicities : ndarray
        How often each occurs.

    Examples
    --------
    >>> spectrum = sgd.papers.quadratic_networks.critical_point(3, 2, 3, 0).spectrum(20)
    >>> spectrum.negative, spectrum.null, spectrum.positive
    (6, 48, 6)
    """

    eigenvalues: np.ndarray
    multiplicities: np.ndarray

    @property
    def negative(self) -> int:
        """How many eigenvalues are below 0."""
        return int(self.multiplicities[self.eigenvalues < 0].sum())

    @property
    def null(self) -> int:
        """How many eigenvalues are 0."""
        return int(self.multiplicities[self.eigenvalues == 0].sum())

    @property
    def positive(self) -> int:
        """How many eigenvalues are above 0."""
        return int(self.multiplicities[self.eigenvalues > 0].sum())


@dataclass(frozen=True)
class CriticalPoint:
    """A critical point with s students along the teacher (squared norm beta), r off it (alpha), the other p - r - s at zero.

    Attributes
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.
    r : int
        Students off the teacher.
    s : int
        Students within the teacher's span.

    Notes
    -----
    That is one point of a manifold: W -> R W with R orthogonal (p x p), and any rotation of R^N that keeps the teacher's span, give
    the others, with overlaps R rho V, R Q R^T and the same risk and spectrum.

    Examples
    --------
    >>> point = sgd.papers.quadratic_networks.critical_point(3, 2, 0, 2)
    >>> point.risk, point.rho.shape
    (0.0, (3, 2))
    """

    p: int
    p_star: int
    r: int
    s: int

    @property
    def alpha(self) -> float:
        """Squared norm along each occupied direction off the teacher: p (p* - s)/(p* (r + s + 2))."""
        return self.p * (self.p_star - self.s) / (self.p_star * (self.r + self.s + 2))

    @property
    def beta(self) -> float:
        """Squared norm along each occupied teacher direction: alpha + p/p*."""
        return self.alpha + self.p / self.p_star

    @property
    def rho(self) -> np.ndarray:
        """Overlaps with the teacher, p x p*."""
        result = np.zeros((self.p, self.p_star))
        result[range(self.s), range(self.s)] = math.sqrt(self.beta)
        return result

    @property
    def Q(self) -> np.ndarray:
        """Gram matrix of the rows, p x p."""
        norms = np.zeros(self.p)
        norms[: self.s] = self.beta
        norms[self.s : self.s + self.r] = self.alpha
        return np.diag(norms)

    @property
    def risk(self) -> float:
        """R = 2 kap^2/(r + s + 2) + 2 kap/p*, kap = 1 - s/p*."""
        rest = 1 - self.s / self.p_star
        return 2 * rest**2 / (self.r + self.s + 2) + 2 * rest / self.p_star

    def spectrum(self, N: int) -> Spectrum:
        """Eigenvalues of the Hessian of the risk in the p N weights, at no cost in N.

        Parameters
        ----------
        N : int
            The dimension, p* + r or more.

        Returns
        -------
        Spectrum
            Eigenvalues and their multiplicities, p N in all.

        Notes
        -----
        With n = r + s and the p x N weights split by the left into the n occupied units and the p - n others, by the right into occupied
        directions, the p* - s free teacher directions and the N - p* - r free others, where Tr D + 2 D is 0, -2 alpha/p - 2/p*,
        -2 alpha/p:

        ::

            others   x occupied       0                            (p - n) n
            others   x free teacher   -(8/p) (alpha/p + 1/p*)      (p - n) (p* - s)
            others   x free           -(8/p) alpha/p               (p - n) (N - p* - r)
            alpha    x free teacher   -8/(p p*)                    r (p* - s)
            beta     x free teacher   0                            s (p* - s)
            alpha    x free           0                            r (N - p* - r)
            beta     x free           8/(p p*)                     s (N - p* - r)
            occupied x occupied       0                            n (n - 1)/2                  rotations
                                      16 alpha/p^2                 r (r - 1)/2 + r - 1
                                      16 beta/p^2                  s (s - 1)/2 + s - 1
                                      8 (alpha + beta)/p^2         r s
                                      (8/p^2) eig [[(2 + r) alpha, sqrt(r s alpha beta)], [sqrt(r s alpha beta), (2 + s) beta]]

        (the last two lines with the rows that exist). N >= p* + r. Contains the four spectra of section 7.2.2, (r, s) = (0, 0),
        (p, 0), (0, p*), (0, 1), with their multiplicities; the rest is not in the paper.
        """
        N = checks.integer("N", N, 1)
        p, p_star, r, s = self.p, self.p_star, self.r, self.s
        if p_star + r > N:
            raise checks.reject(
                "N",
                N,
                f"the teacher and {r} directions off it need p_star + r = {p_star + r} dimensions: give that or more",
            )
        alpha, beta = self.alpha, self.beta
        spare, free_teacher, free = p - r - s, p_star - s, N - p_star - r
        found: list[tuple[float, int]] = [
            (0.0, spare * (r + s) + s * free_teacher + r * free + (r + s) * (r + s - 1) // 2),
            (-(8 / p) * (alpha / p + 1 / p_star), spare * free_teacher),
            (-8 * alpha / p**2, spare * free),
            (-8 / (p * p_star), r * free_teacher),
            (8 / (p * p_star), s * free),
            (16 * alpha / p**2, r * (r - 1) // 2 + max(r - 1, 0)),
            (16 * beta / p**2, s * (s - 1) // 2 + max(s - 1, 0)),
            (8 * (alpha + beta) / p**2, r * s),
        ]
        first, second = (2 + r) * alpha, (2 + s) * beta
        if r and s:
            middle, half = (
                (first + second) / 2,
                math.hypot((first - second) / 2, math.sqrt(r * s * alpha * beta)),
            )
            # the smaller root from the product of both: no difference of nearly equal numbers
            found += [
                (8 / p**2 * (middle + half), 1),
                (8 / p**2 * 2 * (2 + r + s) * alpha * beta / (middle + half), 1),
            ]
        elif r or s:
            found.append((8 / p**2 * (first if r else second), 1))
        return _gathered(found)


def _gathered(found: list[tuple[float, int]]) -> Spectrum:
    """Equal eigenvalues as one, those that do not occur left out."""
    present = sorted((value, count) for value, count in found if count)
    scale = max(abs(value) for value, _ in present)
    values: list[float] = []
    counts: list[int] = []
    for value, count in present:
        if values and value - values[-1] <= SAME * scale:
            counts[-1] += count
        else:
            values.append(value + 0.0)  # not -0.0
            counts.append(count)
    return Spectrum(np.array(values), np.array(counts, dtype=np.int64))


def critical_point(p: int, p_star: int, r: int, s: int) -> CriticalPoint:
    """The critical points of the risk in which the students span r directions off the teacher and s within its span.

    ::

        alpha = p (p* - s)/(p* (r + s + 2)) on the former,  beta = alpha + p/p* on the latter
        R = 2 kap^2/(r + s + 2) + 2 kap/p*,  kap = 1 - s/p*

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.
    r : int
        Students off the teacher.
    s : int
        Students within the teacher's span.

    Returns
    -------
    CriticalPoint
        With its overlaps, risk and spectrum.

    Notes
    -----
    These are all of them: W (Tr D + 2 D) = 0 makes W^T W commute with the teacher's projector, and on each common eigenvector
    W^T W is 0 or fixed by Tr D. So 0 <= s <= p*, r + s <= p, and r = 0 where s = p* (alpha would be 0). Eqs. (26)-(30) have r = 0
    or s = 0 only: tabula rasa (0, 0), plateau (p, 0), zero error (0, p*), one teacher (0, 1); (28) and (30) need M^T M = I.

    Examples
    --------
    >>> round(sgd.papers.quadratic_networks.critical_point(3, 2, 0, 1).risk, 4)
    0.6667
    """
    p, p_star = widths(p, p_star)
    r, s = checks.integer("r", r, 0), checks.integer("s", s, 0)
    if s > p_star:
        raise checks.reject(
            "s", s, f"the teacher has p_star = {p_star} directions: give s <= {p_star}"
        )
    if r + s > p:
        raise ValueError(
            f"r + s = {r + s}: {p} students span at most p = {p} directions, give r + s <= {p}"
        )
    if s == p_star and r > 0:
        raise checks.reject(
            "r",
            r,
            "at s = p_star the error is zero and nothing is left off the teacher: give r = 0",
        )
    return CriticalPoint(p, p_star, r, s)


def critical_points(p: int, p_star: int) -> list[CriticalPoint]:
    """All critical points, lowest risk first; only the first has no negative eigenvalue.

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.

    Returns
    -------
    list of CriticalPoint
        Lowest risk first.

    Examples
    --------
    >>> len(sgd.papers.quadratic_networks.critical_points(2, 1))
    4
    """
    p, p_star = widths(p, p_star)
    pairs = [
        (r, s) for s in range(min(p, p_star) + 1) for r in range(p - s + 1) if s < p_star or r == 0
    ]
    return sorted((CriticalPoint(p, p_star, r, s) for r, s in pairs), key=lambda point: point.risk)


def manifold_dimension(p: int, p_star: int, N: int) -> int:
    """The dimension of the manifold of zero-error solutions.

    ::

        p (p - 1)/2 - (p - m)(p - m - 1)/2,   m = min(p*, N);   = p p* - p* (p* + 1)/2 for p* <= N

    Parameters
    ----------
    p : int
        Units of the student.
    p_star : int
        p*, units of the teacher.
    N : int
        The dimension.

    Returns
    -------
    int
        A dimension.

    Notes
    -----
    Rotations of the students, less those that do nothing to a W of rank m. p >= m. Section 7.5.2.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.manifold_dimension(4, 2, 10)
    5
    """
    p, p_star = widths(p, p_star)
    rank = min(p_star, checks.integer("N", N, 1))
    if p < rank:
        raise checks.reject(
            "p",
            p,
            f"p < min(p_star, N) = {rank} leaves no solution of zero error: give p >= {rank}",
        )
    return p * (p - 1) // 2 - (p - rank) * (p - rank - 1) // 2


def degrees_of_freedom(p: int, N: int) -> int:
    """The dimension of the set of functions a student can be, that of W^T W.

    ::

        N p - p (p - 1)/2 for p <= N,   N (N + 1)/2 for p > N

    Parameters
    ----------
    p : int
        Units of the student.
    N : int
        The dimension.

    Returns
    -------
    int
        A dimension.

    Notes
    -----
    Section 7.5.1.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.degrees_of_freedom(3, 10)
    27
    """
    p, N = checks.integer("p", p, 1), checks.integer("N", N, 1)
    rank = min(p, N)
    return N * rank - rank * (rank - 1) // 2
