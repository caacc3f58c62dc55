"""Critical points of the population risk and their Hessian spectra in closed form.

Source: arXiv:2604.03068, sections 4.2, 7.2 and 7.5. Rows have norm O(1), as in section 7.2:
R(W) = (Tr D)^2 + 2 Tr D^2 with D = W^T W/p - W*^T W*/p*. The gradient is (4/p) W (Tr D + 2 D), and
the spectra are those of the second derivative in the p N weights. The library's Hessian is half of
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sgdynamics.base import checks
from sgdynamics.papers.quadratic_networks.formulas import widths

SAME = 1e-12  # relative distance below which eigenvalues count as equal


@dataclass(frozen=True)
class Spectrum:
    """Distinct eigenvalues in increasing order with their multiplicities; zeros are exactly 0.

    Attributes
    ----------
    eigenvalues : ndarray
        Distinct eigenvalues, increasing.
    multiplicities : ndarray
        Multiplicity of each eigenvalue.

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
        """Number of negative eigenvalues."""
        return int(self.multiplicities[self.eigenvalues < 0].sum())

    @property
    def null(self) -> int:
        """Number of zero eigenvalues."""
        return int(self.multiplicities[self.eigenvalues == 0].sum())

    @property
    def positive(self) -> int:
        """Number of positive eigenvalues."""
        return int(self.multiplicities[self.eigenvalues > 0].sum())


@dataclass(frozen=True)
class CriticalPoint:
    """A critical point of the population risk.

    It has s students along the teacher (squared norm beta), r orthogonal to it (squared norm
    alpha), and p - r - s students at zero.

    Attributes
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    r : int
        Number of students orthogonal to the teacher.
    s : int
        Number of students in the span of the teacher.

    Notes
    -----
    This is one point of a manifold. The others follow by W -> R W with an orthogonal R (p x p) and
    by rotations of R^N that preserve the teacher's span; they have overlaps R rho V and R Q R^T and
    the same risk and spectrum.

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
        """Squared norm of a student orthogonal to the teacher: p (p* - s)/(p* (r + s + 2))."""
        return self.p * (self.p_star - self.s) / (self.p_star * (self.r + self.s + 2))

    @property
    def beta(self) -> float:
        """Squared norm of a student along the teacher: alpha + p/p*."""
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
        """Population risk R = 2 kap^2/(r + s + 2) + 2 kap/p*, kap = 1 - s/p*."""
        kappa = 1 - self.s / self.p_star
        return 2 * kappa**2 / (self.r + self.s + 2) + 2 * kappa / self.p_star

    def spectrum(self, N: int) -> Spectrum:
        """Eigenvalues of the Hessian of the risk in the p N weights, at a cost independent of N.

        Parameters
        ----------
        N : int
            Input dimension, at least p* + r.

        Returns
        -------
        Spectrum
            Eigenvalues and their multiplicities, which sum to p N.

        Notes
        -----
        Let n = r + s. The p x N weights split on the left into the n occupied units and the p - n
        others, on the right into occupied directions, p* - s free teacher directions and
        N - p* - r other free directions, where Tr D + 2 D is 0, -2 alpha/p - 2/p* and -2 alpha/p:

        ::

            others   x occupied       0                            (p - n) n
            others   x free teacher   -(8/p) (alpha/p + 1/p*)      (p - n) (p* - s)
            others   x free           -(8/p) alpha/p               (p - n) (N - p* - r)
            alpha    x free teacher   -8/(p p*)                    r (p* - s)
            beta     x free teacher   0                            s (p* - s)
            alpha    x free           0                            r (N - p* - r)
            beta     x free           8/(p p*)                     s (N - p* - r)
            occupied x occupied       0                            n (n - 1)/2 (rotations)
                                      16 alpha/p^2                 r (r - 1)/2 + r - 1
                                      16 beta/p^2                  s (s - 1)/2 + s - 1
                                      8 (alpha + beta)/p^2         r s
                                      (8/p^2) eig [[(2 + r) alpha, c], [c, (2 + s) beta]]
                                      with c = sqrt(r s alpha beta)

        If r = 0 or s = 0, the corresponding row of the last matrix is absent. The list contains
        the four spectra of section 7.2.2, (r, s) = (0, 0), (p, 0), (0, p*), (0, 1), with their
        multiplicities; the others are not in the paper.
        """
        N = checks.integer("N", N, 1)
        p, p_star, r, s = self.p, self.p_star, self.r, self.s
        if p_star + r > N:
            raise checks.reject(
                "N",
                N,
                f"the teacher and {r} orthogonal directions need p_star + r = {p_star + r} "
                "dimensions. Use a larger N.",
            )
        alpha, beta = self.alpha, self.beta
        spare, free_teacher, free = p - r - s, p_star - s, N - p_star - r
        pairs: list[tuple[float, int]] = [
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
            middle = (first + second) / 2
            half = math.hypot((first - second) / 2, math.sqrt(r * s * alpha * beta))
            # the smaller root from the product of both, to avoid cancellation
            pairs += [
                (8 / p**2 * (middle + half), 1),
                (8 / p**2 * 2 * (2 + r + s) * alpha * beta / (middle + half), 1),
            ]
        elif r or s:
            pairs.append((8 / p**2 * (first if r else second), 1))
        return _merge_eigenvalues(pairs)


def _merge_eigenvalues(pairs: list[tuple[float, int]]) -> Spectrum:
    """Merge equal eigenvalues of (value, multiplicity) pairs and drop multiplicities of zero."""
    present = sorted((value, count) for value, count in pairs if count)
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
    """Critical point with r students orthogonal to the teacher and s students in its span.

    ::

        alpha = p (p* - s)/(p* (r + s + 2)),   beta = alpha + p/p*
        R = 2 kap^2/(r + s + 2) + 2 kap/p*,  kap = 1 - s/p*

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    r : int
        Number of students orthogonal to the teacher.
    s : int
        Number of students in the span of the teacher.

    Returns
    -------
    CriticalPoint
        The critical point, with its overlaps, risk and spectrum.

    Notes
    -----
    The family is complete: W (Tr D + 2 D) = 0 makes W^T W commute with the teacher's projector, and
    on each common eigenvector W^T W is 0 or fixed by Tr D. So 0 <= s <= p*, r + s <= p, and r = 0
    if s = p* (alpha would be 0). Source: (26)-(30), which have r = 0 or s = 0 only: tabula rasa
    (0, 0), plateau (p, 0), zero error (0, p*), one teacher (0, 1); (28) and (30) need M^T M = I.

    Examples
    --------
    >>> round(sgd.papers.quadratic_networks.critical_point(3, 2, 0, 1).risk, 4)
    0.6667
    """
    p, p_star = widths(p, p_star)
    r, s = checks.integer("r", r, 0), checks.integer("s", s, 0)
    if s > p_star:
        raise checks.reject(
            "s", s, f"the teacher has p_star = {p_star} directions. Use s <= {p_star}."
        )
    if r + s > p:
        raise ValueError(
            f"r + s = {r + s}: {p} students span at most p = {p} directions. Use r + s <= {p}."
        )
    if s == p_star and r > 0:
        raise checks.reject(
            "r",
            r,
            "at s = p_star the error is zero, without orthogonal students. Use r = 0.",
        )
    return CriticalPoint(p, p_star, r, s)


def critical_points(p: int, p_star: int) -> list[CriticalPoint]:
    """All critical points by increasing risk; only the first has no negative eigenvalue.

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.

    Returns
    -------
    list of CriticalPoint
        The critical points, by increasing risk.

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
    """Dimension of the manifold of zero-error solutions.

    ::

        p (p - 1)/2 - (p - m)(p - m - 1)/2,   m = min(p*, N);   = p p* - p* (p* + 1)/2 for p* <= N

    Parameters
    ----------
    p : int
        Width p of the student.
    p_star : int
        Width p* of the teacher.
    N : int
        Input dimension.

    Returns
    -------
    int
        The dimension.

    Notes
    -----
    Rotations of the students modulo those that do not change a W of rank m; requires p >= m.
    Source: section 7.5.2.

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
            f"no solution of zero error exists for p < min(p_star, N). Use p >= {rank}.",
        )
    return p * (p - 1) // 2 - (p - rank) * (p - rank - 1) // 2


def degrees_of_freedom(p: int, N: int) -> int:
    """Dimension of the set of functions that a student can express, that of W^T W.

    ::

        N p - p (p - 1)/2 for p <= N,   N (N + 1)/2 for p > N

    Parameters
    ----------
    p : int
        Width p of the student.
    N : int
        Input dimension.

    Returns
    -------
    int
        The dimension.

    Notes
    -----
    Source: section 7.5.1.

    Examples
    --------
    >>> sgd.papers.quadratic_networks.degrees_of_freedom(3, 10)
    27
    """
    p, N = checks.integer("p", p, 1), checks.integer("N", N, 1)
    rank = min(p, N)
    return N * rank - rank * (rank - 1) // 2
