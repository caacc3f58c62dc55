"""Units and closed scales of "Dimension-free limits of SGD for two-layer networks" (slides).

The slides are by Loureiro (2023). One-pass SGD, loss (y - f)^2/2, f = (1/p) sum_i a_i s(w_i.x), y =
(1/k) sum_r a*_r s*(w*_r.x) + sqrt(Delta) z, x ~ N(0, I_d), |w*_r| = 1:

    w_i <- w_i + delta_t (a_i s'(w_i.x) E x - wd w_i)
    a_i <- a_i + eps delta_t (s(w_i.x) E - wd a_i)
    E = y - f,   delta_t = gamma/(d p)

The slides' time is t = steps gamma/(d p), the library's divided by p; their wd is p times the
library's weight_decay, eps its head_rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.expectations.nodes import REACH, gauss_legendre
from sgdynamics.problems import TeacherStudent
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.activations import activation as find_activation

# quadrature nodes between two kinks: s'^2 exp(-x^2/2) on [-13, 13] is exact to rounding for the
# activations that have a name
NODES = 200


@dataclass(frozen=True)
class Setting:
    """Problem and algorithm of the library for parameters of the slides.

    Attributes
    ----------
    problem : TeacherStudent
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm.
    time_factor : float
        Ratio p of the library's time to the slides' time.

    Examples
    --------
    >>> setting = sgd.papers.dimension_free.setting(0.1, 4, Delta=0.01)
    >>> setting.times([1.0]).tolist()
    [4.0]
    """

    problem: TeacherStudent
    algorithm: OnePassSGD
    time_factor: float

    def times(self, t: ArrayLike) -> np.ndarray:
        """Library's time p t at the slides' time t.

        Parameters
        ----------
        t : float or ndarray
            The slides' time.

        Returns
        -------
        ndarray
            Times in the library's units.
        """
        return self.time_factor * np.asarray(t, dtype=np.float64)

    def steps(self, t: ArrayLike, d: int) -> np.ndarray:
        """Number of steps t d p/gamma up to the slides' time t at dimension d, not rounded.

        Parameters
        ----------
        t : float or ndarray
            The slides' time.
        d : int
            The dimension.

        Returns
        -------
        ndarray
            Numbers of steps, infinite for gamma = 0.
        """
        d, rate = checks.integer("d", d, 1), float(self.algorithm.lr)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.times(t) * d / rate


def setting(
    gamma: float,
    p: int,
    k: int = 1,
    Delta: float = 0.0,
    *,
    activation: str | Activation = "erf",
    teacher_activation: str | Activation | None = None,
    wd: float = 0.0,
    eps: float = 1.0,
    head: str = "fixed",
    constraint: str | None = None,
) -> Setting:
    """Problem and algorithm of the library for parameters of the slides.

    ::

        lr = gamma,   noise = Delta,   weight_decay = wd/p,   head_rate = eps
        t = p times the slides' t

    Parameters
    ----------
    gamma : float
        The learning rate.
    p : int
        Width of the student.
    k : int, default 1
        Width of the teacher.
    Delta : float, default 0.0
        Variance of the label noise.
    activation : str, Activation or callable, default "erf"
        Activation of the student.
    teacher_activation : str, Activation or callable, optional
        Activation of the teacher. Defaults to that of the student.
    wd : float, default 0.0
        The slides' weight decay, p times the library's.
    eps : float, default 1.0
        Learning rate of the head relative to gamma.
    head : str, default "fixed"
        "fixed" or "trained".
    constraint : str, optional
        "sphere" fixes the norms of the rows at 1.

    Returns
    -------
    Setting
        The problem, the algorithm and the ratio of the times.

    Notes
    -----
    gamma = 0 is gradient flow. Source: "Setting" and "Main theoretical result" of the slides, with
    the factor 1/2 of the loss and the step gamma/d that delta_t = gamma/(d p) requires;
    gamma_a = eps gamma/d ("Single-index models").

    Examples
    --------
    >>> setting = sgd.papers.dimension_free.setting(0.1, 4, k=2, Delta=0.01)
    >>> setting.problem.width, setting.algorithm.lr, setting.time_factor
    (4, 0.1, 4.0)
    """
    gamma, wd = checks.number("gamma", gamma, 0.0), checks.number("wd", wd, 0.0)
    p, k = checks.integer("p", p, 1), checks.integer("k", k, 1)
    Delta = checks.number("Delta", Delta, 0.0)
    problem = TeacherStudent(
        width=p,
        teacher_width=k,
        activation=activation,
        teacher_activation=teacher_activation,
        noise=Delta,
        head=head,
        constraint=constraint,
        weight_decay=wd / p,
    )
    return Setting(
        problem, OnePassSGD(lr=gamma, head_rate=checks.number("eps", eps, 0.0)), float(p)
    )


def theorem_scale(gamma: float, p: int, d: int) -> float:
    """Scale sqrt(gamma/(d p)) of the deviation of SGD from its ODE.

    ::

        E |Omega(steps) - Omega(t)|_inf <= exp(C t) sqrt(gamma/(d p))

    Parameters
    ----------
    gamma : float
        The learning rate.
    p : int
        Width of the student.
    d : int
        The dimension.

    Returns
    -------
    float
        The scale of the deviation.

    Notes
    -----
    The main result of the slides. For erf the deviation is 0.45 to 0.64 times this scale at
    t <= 5. Source: Veiga, Stephan, Loureiro, Krzakala, Zdeborova (2022).

    Examples
    --------
    >>> round(sgd.papers.dimension_free.theorem_scale(0.1, 4, 1000), 5)
    0.005
    """
    gamma = checks.number("gamma", gamma, 0.0)
    p, d = checks.integer("p", p, 1), checks.integer("d", d, 1)
    return math.sqrt(gamma / (d * p))


def mean_field_scale(p: int, d: int) -> float:
    """Scale p^(-1/2) + d^(-1/2) of the off-diagonal overlaps in wide networks.

    ::

        E |Q - M P^-1 M^T - diag(Q_perp)|_inf <= exp(C t) (p^(-1/2) + d^(-1/2))

    Parameters
    ----------
    p : int
        Width of the student.
    d : int
        The dimension.

    Returns
    -------
    float
        The scale of the deviation.

    Notes
    -----
    Source: Arnaboldi, Stephan, Krzakala, Loureiro (2023), "Mean-field + high-d" of the slides,
    where the sign of diag is misprinted.

    Examples
    --------
    >>> round(sgd.papers.dimension_free.mean_field_scale(100, 400), 4)
    0.15
    """
    p, d = checks.integer("p", p, 1), checks.integer("d", d, 1)
    return p**-0.5 + d**-0.5


@float64
def plateau(gamma: float, p: int, Delta: float, activation: str | Activation = "erf") -> float:
    """Asymptotic excess risk by label noise near the teacher, to first order in gamma/p.

    ::

        R = gamma Delta E[s'(x)^2]/(4 p),   x ~ N(0, 1)

    Parameters
    ----------
    gamma : float
        The learning rate.
    p : int
        Width of the student.
    Delta : float
        Variance of the label noise.
    activation : str, Activation or callable, default "erf"
        Activation of the student.

    Returns
    -------
    float
        The excess risk.

    Notes
    -----
    Linearised at rows of norm 1, the gradients are phi = s'(w_i.x) x/p. With H = E[phi phi^T] the
    covariance of the rows solves H C + C H = (gamma/d) Delta H, and
    R = tr(H C)/2 = (gamma/d) Delta tr(H)/4 with tr(H) = d E[s'^2]/p as d -> infinity. Directions
    without curvature (equal rows) do not contribute at this order. Holds for teachers with heads of
    one and orthogonal or distinct rows.

    Examples
    --------
    >>> round(sgd.papers.dimension_free.plateau(0.1, 4, 0.01), 7)
    2.3e-05
    """
    gamma, Delta = checks.number("gamma", gamma, 0.0), checks.number("Delta", Delta, 0.0)
    p = checks.integer("p", p, 1)
    s = find_activation(activation, "activation")
    edges = np.array([-REACH, *(kink for kink in s.kinks if abs(kink) < REACH), REACH])
    node, weight = gauss_legendre(NODES)
    lengths = np.diff(edges)[:, None]
    x = edges[:-1, None] + lengths * node
    slope = np.asarray(s.derivative(1)(x))
    mean = float(np.sum(weight * lengths * slope**2 * np.exp(-(x**2) / 2))) / math.sqrt(2 * math.pi)
    return gamma * Delta * mean / (4 * p)
