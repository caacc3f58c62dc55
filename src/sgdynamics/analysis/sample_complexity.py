"""Samples that one-pass SGD needs to learn a link from a random start: scaling and prefactor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import polynomial
from scipy import optimize

from sgdynamics.analysis.exponents import TOLERANCE, first_order, generative_exponent
from sgdynamics.analysis.hermite_series import HermiteSeries, project, resolve_nonconstant
from sgdynamics.analysis.links import (
    CORE_RADIUS,
    MAX_TAIL_SHARE,
    NODE_COUNTS,
    Link,
    LinkFunction,
    LinkSample,
    make_link,
    sample_link,
    tail_share,
)
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.expectations.nodes import gauss_legendre

# Terms of the power series of the drift in m, and the largest m, where they leave 3e-13.
TERMS = 100
MAX_OVERLAP = 0.75
# Nodes of the integral over m from 0 to the overlap.
OVERLAP_NODES = 400
# Largest jump of a link that counts as continuous, relative to its standard deviation.
MAX_JUMP = 1e-6
# Largest relative difference of the friction at two resolutions.
MAX_FRICTION_ERROR = 1e-3

JUMPING_LINK = (
    "The link jumps (or is as steep as a jump), so that it has no gradient as the activation of a "
    "student: there is a scaling but no prefactor."
)
INFINITE_FRICTION = "E[s'^2 ((s - s*)^2 + noise)] does not converge: there is no prefactor."
DIFFUSIVE_ESCAPE = (
    "There is no prefactor for exponents above 2: the noise of the steps moves m as much as the "
    "drift does."
)


@dataclass(frozen=True)
class SampleComplexity:
    """Number of samples n, and learning rate, that one-pass SGD needs to learn a link.

    From a random start on the sphere, n ~ d, d log d, d^(kappa - 1) for kappa = 1, 2, >= 3, with
    learning rates lr d^-lr_power. Near m = 0, dm/dt = signal m^(kappa - 1) - lr friction m.

    Attributes
    ----------
    link : str
        Name of the link.
    information_exponent : int
        Information exponent kappa.
    generative_exponent : int
        Generative exponent k*; no efficient method needs fewer than about d^(k*/2) samples.
    coefficient : float
        Hermite coefficient c_kappa.
    signal : float
        Growth coefficient kappa c_kappa^2.
    friction : float
        Coefficient of the decay of m by the noise of SGD.
    lr : float
        Learning rate, divided by d^-lr_power.
    lr_power : float
        Exponent with which the learning rate must decrease with d.
    largest_lr : float
        Least learning rate, divided by d^-lr_power, at which a run does not leave the start.
    prefactor : float or None
        n/d (kappa = 1: until the given overlap) or n/(d log d) (kappa = 2) as d -> infinity. It is
        infinite if a run at this lr does not arrive, and None if there is no prefactor (see
        ``remark``).
    overlap : float
        The overlap at which a run has arrived.
    noise : float
        Variance of the label noise.
    remark : str
        Reason for a missing prefactor; empty otherwise.

    Examples
    --------
    >>> complexity = sgd.sample_complexity("square")
    >>> complexity.information_exponent, complexity.samples
    (2, 'd log d')
    """

    link: str
    information_exponent: int
    generative_exponent: int
    coefficient: float
    signal: float
    friction: float
    lr: float
    lr_power: float
    largest_lr: float
    prefactor: float | None
    overlap: float
    noise: float
    remark: str

    @property
    def samples(self) -> str:
        """Growth of n with d, as a formula."""
        return _sample_growth(self.information_exponent)

    def __str__(self) -> str:
        kappa, best = self.information_exponent, self.generative_exponent
        rate = "a constant learning rate"
        if kappa > 2:
            rate = f"a learning rate ~ d^-{self.lr_power:g} (at a constant one m = 0 is stable)"
        lines = [
            f"{self.link}: information exponent {kappa} (c_{kappa} = {self.coefficient:.6g}), "
            f"generative exponent {best}.",
            f"One-pass SGD from a random start on the sphere needs n ~ {self.samples} samples, "
            f"with {rate}.",
        ]
        if self.prefactor is not None:
            lines.append(self._prefactor_sentence(self.prefactor))
        if self.remark:
            lines.append(self.remark)
        bound = f", and no efficient method needs fewer than d^{best / 2:g}" if best > 2 else ""
        lines.append(
            "With repeated samples, or a loss that transforms the labels, the generative exponent "
            f"decides: n ~ {_sample_growth(best)}{bound}."
        )
        return "\n".join(lines)

    def _prefactor_sentence(self, prefactor: float) -> str:
        is_linear = self.information_exponent == 1
        goal = f"reach overlap {self.overlap:g}" if is_linear else "leave the start"
        outcome = f"SGD does not {goal}"
        if prefactor < math.inf:
            outcome = f"SGD needs n = {prefactor:.4g} {self.samples} to {goal}"
        return (
            f"At lr = {self.lr:.4g} {outcome} (student activation = link, squared loss, noise = "
            f"{self.noise:g}; lr must stay below {self.largest_lr:.4g})."
        )


def _sample_growth(exponent: int) -> str:
    return {1: "d", 2: "d log d"}.get(exponent, f"d^{exponent - 1}")


class _Friction(NamedTuple):
    """The friction as power series in m, the largest jump of s, and the mass beyond the range."""

    series: np.ndarray
    jump: float
    tail: float


class _Prefactor(NamedTuple):
    """Learning rate, its upper bound, and n in units of d or d log d at this rate."""

    lr: float
    largest_lr: float
    prefactor: float | None


@lru_cache(maxsize=4)
def _interpolation(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Barycentric interpolation on the Gauss-Legendre nodes of [0, 1].

    Returns the matrix of the derivative at the nodes, and the weights (count, 2) of the values at
    both ends.
    """
    nodes, _ = gauss_legendre(count)
    gaps = nodes[:, None] - nodes + np.eye(count)
    weights = 1 / np.prod(4 * gaps, axis=1)  # the factor 4 keeps the products of order 1
    derivative = weights / weights[:, None] / gaps
    derivative -= np.diag(derivative.sum(axis=1))
    ends = weights[:, None] / (np.array([0.0, 1.0]) - nodes[:, None])
    return derivative, ends / ends.sum(axis=0)


def _friction(sample: LinkSample, noise: float) -> _Friction:
    """E[s'(u)^2 ((s(v) - s(u))^2 + noise)]/2 as a power series in m = E[u v].

    By Mehler's formula this is

        (sum_n (a_n b_n - 2 d_n c_n) m^n + E[s'^2 (s^2 + noise)])/2

    with a, b, c, d the Hermite coefficients of s'^2, s^2, s, s'^2 s.
    """
    derivative, ends = _interpolation(sample.x.shape[1])
    value, slope = sample.values, sample.values @ derivative.T / sample.widths[:, None]
    sides = value @ ends
    jumps = np.abs(sides[1:, 0] - sides[:-1, 1])
    largest_jump = jumps[np.abs(sample.x[1:, 0]) < CORE_RADIUS].max()
    mass = (slope * value * sample.root) ** 2 * sample.dx
    functions = np.stack([value, value**2, slope**2, slope**2 * value])
    (c, b, a, d), *_ = project(sample, functions, TERMS)
    series = a * b - 2 * d * c
    series[0] += mass.sum() + noise * a[0]
    return _Friction(series / 2, float(largest_jump), tail_share(sample.x, mass))


@float64
def sample_complexity(
    f: LinkFunction,
    *,
    lr: float | None = None,
    noise: float = 0.0,
    overlap: float = 0.5,
    kinks: Sequence[float] = (),
) -> SampleComplexity:
    """Number of samples that one-pass SGD needs to find the direction of a single-index target.

    Training starts from a random point on the sphere. ::

        kappa = 1:   n = (d/lr) int_0^overlap dm / (dm/dt)
        kappa = 2:   n = d log d / (2 lr (signal - lr friction))
        kappa >= 3:  n ~ d^(kappa-1)
        signal = kappa c_kappa^2
        friction = E[s'(u)^2 ((s(v) - s(u))^2 + noise)]/2 with u, v independent

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``. It is also the activation of the student, and the
        loss is squared.
    lr : float, optional
        The learning rate. Defaults to the one that needs the fewest samples (kappa = 2:
        signal/(2 friction)). For kappa >= 3 the rate must decrease like d^-(kappa/2 - 1), and this
        is the factor in front of it.
    noise : float, default 0.0
        Variance of the label noise.
    overlap : float, default 0.5
        The overlap at which a run has arrived; it starts at +1/sqrt(d).
    kinks : sequence of float, default ()
        Points at which f or a derivative of it jumps.

    Returns
    -------
    SampleComplexity
        Exponents, scaling and prefactor; printed as sentences.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the exponents of the link cannot be determined.

    Notes
    -----
    The limit is d -> infinity. ``largest_lr`` = signal/friction (for kappa >= 3 that of a start at
    1/sqrt(d)). With u, v standard normal and E[u v] = m, the overlap follows ::

        dm/dt = (1 - m^2) sum_n n c_n^2 m^(n-1) - (lr/2) m E[s'(u)^2 ((s(v) - s(u))^2 + noise)]

    The scalings are Theorem 1.3 of Ben Arous, Gheissari and Jagannath, JMLR 22 (2021). The lower
    bound d^(k*/2) with the generative exponent k* is due to Damian, Pillaud-Vivien, Lee and Bruna
    (2024).

    Examples
    --------
    >>> round(sgd.sample_complexity("square").prefactor, 3)
    3.0
    """
    rate = None if lr is None else checks.number("lr", lr, above=0.0)
    noise = checks.number("noise", noise, 0.0)
    goal = checks.number("overlap", overlap, above=0.0)
    if goal > MAX_OVERLAP:
        fix = f"give a number above 0, at most {MAX_OVERLAP}"
        raise checks.reject("overlap", overlap, fix)
    link = make_link(f, kinks)
    series, halvings = resolve_nonconstant(link, TERMS)
    kappa = first_order(link, [series], "information exponent", TOLERANCE)
    coefficient = float(series.coefficients[kappa])
    signal = kappa * coefficient**2
    friction, remark = _resolve_friction(link, series, halvings, noise)
    if remark:
        estimate = _Prefactor(math.nan if rate is None else rate, math.nan, None)
    elif kappa == 1:
        estimate = _linear_prefactor(series, friction, goal, rate)
    else:
        estimate = _quadratic_prefactor(signal, float(friction[0]), rate)
    friction_at_start = math.nan if remark else float(friction[0])
    if not remark and kappa > 2:
        estimate, remark = estimate._replace(prefactor=None), DIFFUSIVE_ESCAPE
    return SampleComplexity(
        link=link.label,
        information_exponent=kappa,
        generative_exponent=generative_exponent(f, kinks=kinks),
        coefficient=coefficient,
        signal=signal,
        friction=friction_at_start,
        lr=estimate.lr,
        lr_power=max(0.0, kappa / 2 - 1),
        largest_lr=estimate.largest_lr,
        prefactor=estimate.prefactor,
        overlap=goal,
        noise=noise,
        remark=remark,
    )


def _resolve_friction(
    link: Link, series: HermiteSeries, halvings: int, noise: float
) -> tuple[np.ndarray, str]:
    """The friction as a power series in m, and why it is undefined ("" if it is not)."""
    with np.errstate(all="ignore"):
        coarse, fine = (
            _friction(sample_link(link, count, halvings), noise) for count in NODE_COUNTS
        )
    if fine.jump > MAX_JUMP * series.deviation:
        return fine.series, JUMPING_LINK
    # An infinite friction has a heavy tail, which is checked first.
    if not fine.tail < MAX_TAIL_SHARE:
        return fine.series, INFINITE_FRICTION
    differences = np.abs(fine.series - coarse.series)
    if not np.all(differences <= MAX_FRICTION_ERROR * fine.series[0]):
        return fine.series, INFINITE_FRICTION
    return fine.series, ""


def _quadratic_prefactor(signal: float, friction: float, rate: float | None) -> _Prefactor:
    """Escape from m = 1/sqrt(d) at the rate signal - lr friction, in units of d log d."""
    largest = signal / friction
    lr = largest / 2 if rate is None else rate
    prefactor = 1 / (2 * lr * (signal - lr * friction)) if lr < largest else math.inf
    return _Prefactor(lr, largest, prefactor)


def _linear_prefactor(
    series: HermiteSeries, friction: np.ndarray, goal: float, rate: float | None
) -> _Prefactor:
    """The time (1/lr) int dm / (dm/dt) from m = 0 to the goal, in units of d."""
    nodes, weights = gauss_legendre(OVERLAP_NODES)
    # The end has no weight, but the drift may be least there.
    m = goal * np.append(nodes, 1.0)
    slopes = np.arange(1, TERMS + 1) * series.coefficients[1:] ** 2
    gain = (1 - m**2) * polynomial.polyval(m, slopes)
    loss = m * polynomial.polyval(m, friction)
    largest = float((gain / loss).min())

    def samples(lr: float) -> float:
        if lr >= largest:
            return math.inf
        return float(goal * np.sum(weights / (gain - lr * loss)[:-1])) / lr

    lr = _fewest_samples(samples, largest) if rate is None else rate
    return _Prefactor(lr, largest, samples(lr))


def _fewest_samples(samples: Callable[[float], float], largest: float) -> float:
    """The learning rate that needs the fewest samples.

    It is unique, because 1/(lr drift) is convex in lr.
    """
    options = {"xatol": 1e-9 * largest}
    minimum: Any = optimize.minimize_scalar(
        samples, bounds=(0.0, largest), method="bounded", options=options
    )
    return float(minimum.x)
