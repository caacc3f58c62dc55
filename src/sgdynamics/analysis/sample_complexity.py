"""How many samples one-pass SGD needs to learn a link from a random start, from its exponents: scaling, learning rate, prefactor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize

from sgdynamics.analysis.exponents import (
    COUNTS,
    SLOW_TAIL,
    SURE,
    TOLERANCE,
    LinkSample,
    as_link,
    first_order,
    generative_exponent,
    projected,
    resolved_series,
    sample_link,
    tail_share,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.precision import float64
from sgdynamics.expectations.nodes import gauss_legendre

TERMS = 100  # of the drift's power series in m
MOST_OVERLAP = 0.75  # where that many terms leave 3e-13


@dataclass(frozen=True)
class SampleComplexity:
    """How many samples n one-pass SGD from a random start on the sphere needs for a link, and at which learning rate.

    n ~ d, d log d, d^(kappa - 1) for kappa = 1, 2, >= 3, with learning rates lr d^-lr_power. Near m = 0,
    dm/dt = signal m^(kappa - 1) - lr friction m.

    Attributes
    ----------
    link : str
        What it is called.
    information_exponent : int
        kappa.
    generative_exponent : int
        k*, of which d^(k*/2) is a floor.
    coefficient : float
        c_kappa.
    signal : float
        kappa c_kappa^2.
    friction : float
        What the noise of SGD costs.
    lr : float
        The learning rate, times d^-lr_power.
    lr_power : float
        How it must fall with d.
    largest_lr : float
        At this one and above a run does not leave the start.
    prefactor : float or None
        n/d (kappa = 1: to the given overlap) or n/(d log d) (kappa = 2) as d -> infinity; infinite if that lr does not get there, None
        where there is none (see ``remark``).
    overlap : float
        Where a run has arrived.
    noise : float
        The variance of the label noise.
    remark : str
        What else there is to say.

    Examples
    --------
    >>> found = sgd.sample_complexity("square")
    >>> found.information_exponent, found.samples
    (2, 'd log d')
    """

    link: str
    information_exponent: int
    generative_exponent: int
    coefficient: float  # c_kappa
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
        """How n grows with d."""
        return _growth(self.information_exponent)

    def __str__(self) -> str:
        kappa, best = self.information_exponent, self.generative_exponent
        rate = (
            "a constant learning rate"
            if kappa <= 2
            else f"a learning rate ~ d^-{self.lr_power:g} (at a fixed one m = 0 is stable)"
        )
        lines = [
            f"{self.link}: information exponent {kappa} (c_{kappa} = {self.coefficient:.6g}), generative exponent {best}.",
            f"One-pass SGD from a random start on the sphere needs n ~ {self.samples} samples, with {rate}.",
        ]
        if self.prefactor is not None:
            goal = f"reach overlap {self.overlap:g}" if kappa == 1 else "leave the start"
            says = (
                f"n = {self.prefactor:.4g} {self.samples} to {goal}"
                if self.prefactor < math.inf
                else f"it does not {goal}"
            )
            given = f"student activation = link, squared loss, noise = {self.noise:g}; lr must stay below {self.largest_lr:.4g}"
            lines.append(f"At lr = {self.lr:.4g} {says} ({given}).")
        lines += [self.remark] if self.remark else []
        gain = f"n ~ {_growth(best)}" + (
            f", and no efficient method below d^{best / 2:g}" if best > 2 else ""
        )
        lines.append(
            f"With samples used again, or a loss that transforms the labels, the generative exponent decides: {gain}."
        )
        return "\n".join(lines)


def _growth(exponent: int) -> str:
    return {1: "d", 2: "d log d"}.get(exponent, f"d^{exponent - 1}")


@lru_cache(maxsize=4)
def _interpolation(count: int) -> tuple[np.ndarray, np.ndarray]:
    """On the Gauss-Legendre nodes of [0, 1]: the matrix of the derivative, and the values at both ends, (count, 2)."""
    node, _ = gauss_legendre(count)
    gaps = node[:, None] - node + np.eye(count)
    weight = 1 / np.prod(4 * gaps, axis=1)  # 4: near 1 in size
    matrix = weight / weight[:, None] / gaps
    matrix -= np.diag(matrix.sum(axis=1))
    ends = weight[:, None] / (np.array([0.0, 1.0]) - node[:, None])
    return matrix, ends / ends.sum(axis=0)


def _friction(sample: LinkSample, noise: float) -> tuple[np.ndarray, float, float]:
    """E[s'(u)^2 ((s(v) - s(u))^2 + noise)]/2 as a power series in m, the largest jump of s, and the share of it beyond the range.

    By Mehler, sum_n (a_n b_n - 2 d_n c_n) m^n + E[s'^2 (s^2 + noise)], with a, b, d, c the coefficients of s'^2, s^2, s'^2 s, s.
    """
    matrix, ends = _interpolation(sample.x.shape[1])
    value, slope = sample.values, sample.values @ matrix.T / sample.widths[:, None]
    sides = value @ ends
    jump = np.abs(sides[1:, 0] - sides[:-1, 1])[np.abs(sample.x[1:, 0]) < SURE].max()
    top = (slope * value * sample.root) ** 2 * sample.dx
    (c, b, a, d), *_ = projected(
        sample, np.stack([value, value**2, slope**2, slope**2 * value]), TERMS
    )
    series = a * b - 2 * d * c
    series[0] += top.sum() + noise * a[0]
    return series / 2, float(jump), tail_share(sample.x, top)


@float64
def sample_complexity(
    f: Function,
    *,
    lr: float | None = None,
    noise: float = 0.0,
    overlap: float = 0.5,
    kinks: Sequence[float] = (),
) -> SampleComplexity:
    """How many samples one-pass SGD needs to find the direction of a single-index target, from a random start on the sphere.

    ::

        kappa = 1: n = (d/lr) int_0^overlap dm / (dm/dt);   kappa = 2: n = d log d / (2 lr (signal - lr friction));   else n ~ d^(kappa-1)
        signal = kappa c_kappa^2,   friction = E[s'(u)^2 ((s(v) - s(u))^2 + noise)]/2 with u, v independent

    Parameters
    ----------
    f : str, Activation or callable
        The link, as in ``hermite_coefficients``; the student has it as its activation, and the loss is squared.
    lr : float, optional
        The learning rate; unless given the one that needs the fewest samples (kappa = 2: signal/(2 friction)). For kappa >= 3 the rate must
        fall like d^-(kappa/2 - 1), and this is what multiplies that.
    noise : float, default 0.0
        The variance of the label noise.
    overlap : float, default 0.5
        The overlap at which a run has arrived; it starts at +1/sqrt(d).
    kinks : sequence of float, default ()
        Where f or a derivative of it jumps.

    Returns
    -------
    SampleComplexity
        Print it for a sentence.

    Raises
    ------
    ValueError
        If an argument is refused, or the link has no exponent.

    Notes
    -----
    d -> infinity. ``largest_lr`` = signal/friction (for kappa >= 3 that of a start at 1/sqrt(d)).
    From dm/dt (top of this module); the scalings are Theorem 1.3 of Ben Arous, Gheissari and Jagannath, JMLR 22 (2021), and the floor
    d^(k*/2) of the generative exponent k* that of Damian, Pillaud-Vivien, Lee and Bruna (2024).

    Examples
    --------
    >>> round(sgd.sample_complexity("square").prefactor, 3)
    3.0
    """
    given = None if lr is None else checks.number("lr", lr, above=0.0)
    noise = checks.number("noise", noise, 0.0)
    goal = checks.number("overlap", overlap, above=0.0)
    if goal > MOST_OVERLAP:
        raise checks.reject("overlap", overlap, f"give a number above 0, at most {MOST_OVERLAP}")
    link = as_link(f, kinks)
    series, halvings = resolved_series(link, TERMS)
    kappa = first_order(link, [series], "information exponent", TOLERANCE)
    best = generative_exponent(f, kinks=kinks)
    c = series.coefficients
    signal = kappa * float(c[kappa]) ** 2
    with np.errstate(all="ignore"):
        (rough, *_), (cost, jump, beyond) = (
            _friction(sample_link(link, count, halvings), noise) for count in COUNTS
        )
    remark, friction, largest, rate, prefactor = "", float(cost[0]), math.nan, math.nan, None
    if jump > 1e-6 * series.deviation:
        remark = "The link jumps (or is as steep), so that as a student's activation it has no gradient: no prefactor, only the scaling."
    elif not (beyond < SLOW_TAIL and np.all(np.abs(cost - rough) <= 1e-3 * cost[0])):
        remark = "E[s'^2 ((s - s*)^2 + noise)] does not converge: no prefactor."
    elif kappa > 1:
        largest = signal / friction
        rate = largest / 2 if given is None else given
        prefactor = 1 / (2 * rate * (signal - rate * friction)) if rate < largest else math.inf
    else:
        node, weight = gauss_legendre(400)
        m = goal * np.append(
            node, 1.0
        )  # the end has no weight, but may be where the drift is least
        pull = (1 - m**2) * np.polynomial.polynomial.polyval(
            m, np.arange(1, TERMS + 1) * c[1:] ** 2
        )
        drag = m * np.polynomial.polynomial.polyval(m, cost)
        largest = float((pull / drag).min())

        def used(rate: float) -> float:
            return (
                float(goal * np.sum(weight / (pull - rate * drag)[:-1])) / rate
                if rate < largest
                else math.inf
            )

        # 1/(rate drift) is convex in the rate: one minimum
        fewest: Any = optimize.minimize_scalar(
            used, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9 * largest}
        )
        rate = float(fewest.x) if given is None else given
        prefactor = used(rate)
    if remark:
        friction, rate = math.nan, math.nan if given is None else given
    elif kappa > 2:
        remark, prefactor = (
            "No prefactor for exponents above 2: the noise of the steps moves m as much as the drift does.",
            None,
        )
    return SampleComplexity(
        link.label,
        kappa,
        best,
        float(c[kappa]),
        signal,
        friction,
        rate,
        max(0.0, kappa / 2 - 1),
        largest,
        prefactor,
        goal,
        noise,
        remark,
    )
