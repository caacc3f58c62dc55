"""Phase retrieval on a fixed data set: the paper's settings in the library's terms, its closed
formulas and its error measures.

In the paper's symbols and units: fields h = xi.w/sqrt(N), |w|^2 = N on the sphere, loss v = (h^2 -
h0^2)^2/4 summed over the M = alpha N samples in the gradient, batch fraction l, learning rate eta,
persistence time tau, temperature T, time t = eta steps. The library averages (h^2 - h0^2)^2/2 over
the samples: lr = alpha eta/2, time alpha t/2, temperature 2 T/alpha, persistence time alpha tau/2,
weight decay 2 lambda/alpha, and its training risk is twice the paper's mean loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, special

from sgdynamics.algorithms.fixed_data import (
    FixedData,
    GradientDescent,
    Langevin,
    MultiPassSGD,
    PersistentSGD,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.base.controls import piecewise_rate
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.starts import start
from sgdynamics.problems.teacher_student import TeacherStudent

ALGORITHMS = ("GD", "SGD", "p-SGD", "Langevin")
THRESHOLD = 1e-7  # of the mean loss (20), below which the paper counts the signal as recovered


@dataclass(frozen=True)
class Numbers:
    """The paper's numbers, checked: alpha, eta, m0, algorithm, l, tau (nan unless p-SGD), T until
    t_off, ridge (nan on the sphere).
    """

    alpha: float
    eta: float
    m0: float
    algorithm: str
    l: float  # noqa: E741  (the paper's symbol)
    tau: float
    T: float
    t_off: float
    ridge: float

    @property
    def sphere(self) -> bool:
        return math.isnan(self.ridge)

    def temperature(self, step: int) -> float:
        """T at a step; the half step keeps rounding from moving the switch."""
        return self.T if self.eta * (step + 0.5) < self.t_off else 0.0

    @property
    def switching(self) -> tuple[float, float]:
        """The probabilities that a sample comes into the batch, and leaves it, in one step: (6), or
        (7) with l for its b.
        """
        on = self.eta / self.tau if self.algorithm == "p-SGD" else self.l
        return on, on * (1 - self.l) / self.l


def numbers(
    alpha: float,
    eta: float,
    m0: float,
    algorithm: str,
    l: float,  # noqa: E741
    tau: float | None,
    T: float | Sequence[float],
    ridge: float | None,
) -> Numbers:
    """The paper's numbers as arguments; refuse what has no meaning."""
    checks.choice("algorithm", algorithm, ALGORITHMS)
    alpha, eta, m0 = (
        checks.number("alpha", alpha, above=0.0),
        checks.number("eta", eta, above=0.0),
        checks.number("m0", m0),
    )
    if ridge is None and abs(m0) > 1:
        raise checks.reject("m0", m0, "on the sphere an overlap is between -1 and 1")
    fraction = checks.number("l", l, above=0.0)
    if fraction > 1:
        raise checks.reject(
            "l", l, "give the share of the samples in a batch, above 0 and at most 1"
        )
    if algorithm in ("GD", "Langevin") and fraction != 1:
        raise checks.reject(
            "l", l, f"{algorithm} uses all samples: give l=1, or algorithm='SGD' or 'p-SGD'"
        )
    if (tau is not None) != (algorithm == "p-SGD"):
        raise checks.reject("tau", tau, "give tau for 'p-SGD', and for nothing else")
    if tau is not None:
        least = eta * max(1.0, (1 - fraction) / fraction)
        if checks.number("tau", tau, above=0.0) < least:
            raise checks.reject(
                "tau",
                tau,
                f"a sample would switch with a probability above 1 in a step: give {least:g} or more",
            )
    hot, off = T if isinstance(T, (tuple, list)) and len(T) == 2 else (T, math.inf)
    hot, off = checks.number("T", hot, 0.0), checks.number("T", off, above=0.0, infinite=True)
    if hot > 0 and algorithm != "Langevin":
        raise checks.reject("T", T, "only algorithm='Langevin' has a temperature")
    decay = math.nan if ridge is None else checks.number("ridge", ridge, 0.0)
    return Numbers(
        alpha,
        eta,
        m0,
        algorithm,
        fraction,
        math.nan if tau is None else float(tau),
        hot,
        off,
        decay,
    )


@dataclass(frozen=True)
class Setting:
    """One setting of the paper in the library's terms: problem, algorithm and start go into
    sgd.simulate and sgd.solve_dmft as they are.

    Attributes
    ----------
    problem : TeacherStudent
        What is learned.
    algorithm : FixedData
        How.
    start : Start
        Where.
    numbers : Numbers
        The paper's own.
    loss_factor : float
        The paper's mean loss over the library's train risk.

    Notes
    -----
    ``steps``, ``library_time`` and ``paper_time`` convert times; the paper's mean loss (20) is
    ``loss_factor`` times the library's train_risk.

    Examples
    --------
    >>> here = sgd.papers.rough_landscapes.setting(3.0, 0.01, 0.2)
    >>> here.algorithm.samples_per_dimension, here.steps([0.1]).tolist()
    (3.0, [10])
    """

    problem: TeacherStudent
    algorithm: FixedData
    start: Start
    numbers: Numbers
    loss_factor: float = 0.5

    def steps(self, t: RealArray) -> np.ndarray:
        """Whole steps at the paper's times t = eta steps.

        Parameters
        ----------
        t : float or ndarray
            The paper's times.

        Returns
        -------
        ndarray
            Whole numbers.
        """
        return np.round(np.asarray(t, dtype=np.float64) / self.numbers.eta).astype(np.int64)

    def library_time(self, t: RealArray) -> Any:
        """The library's time alpha t/2 at the paper's time t.

        Parameters
        ----------
        t : float or ndarray
            The paper's time.

        Returns
        -------
        float or ndarray
            The library's.
        """
        return np.asarray(t, dtype=np.float64) * (self.numbers.alpha / 2)

    def paper_time(self, t: RealArray) -> Any:
        """The paper's time at the library's time.

        Parameters
        ----------
        t : float or ndarray
            The library's time.

        Returns
        -------
        float or ndarray
            The paper's.
        """
        return np.asarray(t, dtype=np.float64) * (2 / self.numbers.alpha)


def setting(
    alpha: float,
    eta: float,
    m0: float,
    algorithm: str = "GD",
    l: float = 1.0,  # noqa: E741
    tau: float | None = None,
    T: float | Sequence[float] = 0.0,
    ridge: float | None = None,
    dimension: int | None = None,
    seed: int = 0,
    runs: int | None = None,
    rescale: bool = True,
) -> Setting:
    """The paper's phase retrieval in the library's terms.

    ::

        w <- w - eta [(1/l) sum_mu s_mu v'(h_mu, h0_mu) xi_mu/sqrt(N) + nu w] + sqrt(2 T eta) N(0, I)

    Parameters
    ----------
    alpha : float
        Samples over N.
    eta : float
        The learning rate.
    m0 : float
        The overlap at the start.
    algorithm : str, default "GD"
        "GD", "SGD", "p-SGD" or "Langevin".
    l : float, default 1.0
        The batch fraction.
    tau : float, optional
        The persistence time; p-SGD where it is given.
    T : float or (float, float), default 0.0
        The temperature, or (T, t) for one that is switched to zero at t.
    ridge : float, optional
        lambda; the sphere unless given.
    dimension : int, optional
        N; the limit N -> infinity unless given.
    seed : int, default 0
        Seed of the random number generator.
    runs : int, optional
        How many starts; one unless given.
    rescale : bool, default True
        Divide the gradient by the batch fraction.

    Returns
    -------
    Setting
        Problem, algorithm and start.

    Notes
    -----
    algorithm: "GD" (5), "SGD" (6), "p-SGD" (7), "Langevin" (9); T is a number, or (T, t) for a
    temperature that is switched to zero at t. ridge=None: w returns to the sphere ``|w|^2`` = N
    after every step, and starts from m0 w0 + c z (11); ridge=lambda: nu = lambda (C.1), from m0 w0
    + z (C.2). With ``dimension`` the start has the law of these at that N (z is Gaussian, so that
    the overlap fluctuates) for ``runs`` runs; without, its overlaps are those of N -> infinity.
    rescale=False leaves out the factor 1/l (figure B.2, right).

    Examples
    --------
    >>> here = sgd.papers.rough_landscapes.setting(3.0, 0.01, 0.2, "p-SGD", l=0.5, tau=1.0)
    >>> type(here.algorithm).__name__, round(here.algorithm.lr, 4)
    ('PersistentSGD', 0.015)
    """
    given = numbers(alpha, eta, m0, algorithm, l, tau, T, ridge)
    half = given.alpha / 2
    common = {"lr": half * given.eta, "samples_per_dimension": given.alpha}
    batches = {**common, "batch_fraction": given.l, "rescale": rescale}
    if algorithm == "GD":
        method: FixedData = GradientDescent(**common)
    elif algorithm == "SGD":
        method = MultiPassSGD(**batches)
    elif algorithm == "p-SGD":
        method = PersistentSGD(**batches, persistence_time=half * given.tau)
    else:
        hot: Any = given.T / half
        if math.isfinite(given.t_off):
            hot = piecewise_rate([half * (given.t_off - given.eta / 2)], [hot, 0.0])
        method = Langevin(**common, temperature=hot)
    if given.sphere:
        problem = TeacherStudent(width=1, activation="square", constraint="sphere")
    else:
        problem = TeacherStudent(width=1, activation="square", weight_decay=given.ridge / half)
    M, Q = _overlaps(given, dimension, seed, runs)
    return Setting(problem, method, start(problem, M=M[:, None, None], Q=Q[:, None, None]), given)


def _overlaps(
    given: Numbers, dimension: int | None, seed: int, runs: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """M = w.w0/N and Q = |w|^2/N of the starts (11), (C.2), one a run."""
    m0 = given.m0
    if dimension is None:
        if runs is not None:
            raise checks.reject(
                "runs", runs, "without dimension= all starts are the same one: leave it out"
            )
        return np.array([m0]), np.array([1.0 if given.sphere else m0**2 + 1])
    N = checks.integer("dimension", dimension, 2)
    count = checks.integer("runs", 1 if runs is None else runs, 1)
    random = np.random.default_rng(checks.integer("seed", seed, 0))
    along, across = random.standard_normal(count) / math.sqrt(N), random.chisquare(N - 1, count) / N
    if not given.sphere:
        return m0 + along, (m0 + along) ** 2 + across
    # c is the positive root of |m0 w0 + c z|^2 = N
    square = along**2 + across
    c = (np.sqrt((m0 * along) ** 2 + square * (1 - m0**2)) - m0 * along) / square
    return m0 + c * along, np.ones(count)


def generalization_error(q: RealArray, q0: RealArray, m: RealArray) -> Any:
    """Mean squared error of the label ``|h0| by |h|`` on a fresh sample, from the overlaps.

    ::

        q + q0 - (4/pi) [sqrt(q q0 - m^2) + m arctan(m/sqrt(q q0 - m^2))],   q = |w|^2/N, q0 = |w0|^2/N, m = w.w0/N

    Parameters
    ----------
    q : float or ndarray
        The squared norm of w over N.
    q0 : float or ndarray
        The squared norm of w0 over N.
    m : float or ndarray
        The overlap w.w0/N.

    Returns
    -------
    float or ndarray
        One for each.

    Notes
    -----
    Gaussian inputs; arrays broadcast. Source: eq. (B.8).

    Examples
    --------
    >>> round(float(sgd.papers.rough_landscapes.generalization_error(1.0, 1.0, 0.5)), 4)
    0.564
    """
    q, q0, m = (np.asarray(value, dtype=np.float64) for value in (q, q0, m))
    inside = q * q0 - m**2
    if np.any(inside < -1e-9 * (1 + q * q0)) or np.any(q < 0) or np.any(q0 < 0):
        raise checks.reject("m", m, "overlaps have q, q0 >= 0 and m^2 <= q q0")
    root = np.sqrt(np.maximum(inside, 0.0))  # of rounding below 0
    error = q + q0 - 4 / math.pi * (root + np.abs(m) * np.arctan2(np.abs(m), root))
    return error[()]


def first_step(alpha: float, eta: float, m0: float, l: float = 1.0, T: float = 0.0) -> float:  # noqa: E741
    """The overlap after one step on the sphere, N -> infinity.

    ::

        m_1 = m0/sqrt(1 - 4 eta alpha (1 - m0^2) + 2 T eta + eta^2 (1 - m0^2)(4 alpha^2 + 12 alpha/l))

    Parameters
    ----------
    alpha : float
        Samples over N.
    eta : float
        The learning rate.
    m0 : float
        The overlap at the start.
    l : float, default 1.0
        The batch fraction.
    T : float, default 0.0
        The temperature.

    Returns
    -------
    float
        m_1.

    Notes
    -----
    The gradient has no component along w0 at first (mu(0) = 0), <h v'> = 2 (1 - m0^2), and
    ``|gradient|^2`` is its mean's 4 alpha^2 (1 - m0^2) and M_C(0, 0). The same for SGD and p-SGD.
    From (5), (11); not in the paper.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.first_step(3.0, 0.01, 0.2), 4)
    0.2118
    """
    given = numbers(alpha, eta, m0, "SGD", l, None, 0.0, None)
    T, rest = checks.number("T", T, 0.0), 1 - given.m0**2
    square = 1 - 4 * given.eta * given.alpha * rest + 2 * T * given.eta
    square += given.eta**2 * rest * (4 * given.alpha**2 + 12 * given.alpha / given.l)
    return given.m0 / math.sqrt(square)


@dataclass(frozen=True)
class ClosedValues:
    """Functions and kernels of the DMFT at t = 0, on the sphere.

    Attributes
    ----------
    loss : float
        The mean loss.
    mu : float
        mu(0).
    nu_hat : float
        nu_hat(0).
    delta_nu : float or ndarray
        delta_nu.
    M_C : float or ndarray
        The kernel M_C.
    M_R : float or ndarray
        The kernel M_R.

    Examples
    --------
    >>> sgd.papers.rough_landscapes.closed_values(3.0, 0.2).delta_nu
    6.0
    """

    loss: float
    mu: float
    nu_hat: float
    delta_nu: float
    M_C: float
    M_R: float


def closed_values(alpha: float, m0: float, l: float = 1.0, T: float = 0.0) -> ClosedValues:  # noqa: E741
    """The functions of (15), (19), (20) at t = 0, on the sphere.

    ::

        loss = 1 - m0^2, mu = 0, nu_hat = -2 alpha (1 - m0^2) + T, delta_nu = 2 alpha,
        M_C(0, 0) = 12 (alpha/l)(1 - m0^2), M_R(0+, 0) = 12 (alpha/l)(2 - m0^2)

    Parameters
    ----------
    alpha : float
        Samples over N.
    m0 : float
        The overlap at the start.
    l : float, default 1.0
        The batch fraction.
    T : float, default 0.0
        The temperature.

    Returns
    -------
    ClosedValues
        By name.

    Notes
    -----
    Gaussian moments of v' = h^3 - h h0^2 and v'' = 3 h^2 - h0^2 with <h h0> = m0. M_R is the
    response to a shift of the argument of v' only: M_R(0+, 0) = (alpha/l^2) <s v''^2>.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.closed_values(3.0, 0.2).loss, 4)
    0.96
    """
    given = numbers(alpha, 1.0, m0, "SGD", l, None, 0.0, None)
    T, rest = checks.number("T", T, 0.0), 1 - given.m0**2
    per_batch = 12 * given.alpha / given.l
    return ClosedValues(
        rest,
        0.0,
        T - 2 * given.alpha * rest,
        2 * given.alpha,
        per_batch * rest,
        per_batch * (1 + rest),
    )


def stability_limit(eta: float, l: float = 1.0) -> float:  # noqa: E741
    """The h^2 - h0^2 above which a sample in the batch overshoots: its own share of a step
    multiplies h by 1 - (eta/l)(h^2 - h0^2).

    ::

        |1 - (eta/l)(h^2 - h0^2)| > 1   where   h^2 - h0^2 > 2 l/eta

    Parameters
    ----------
    eta : float
        The learning rate.
    l : float, default 1.0
        The batch fraction.

    Returns
    -------
    float
        h^2 - h0^2.

    Notes
    -----
    Above it h grows at every step in which the sample is in use: a run with such a sample explodes.
    Not in the paper.

    Examples
    --------
    >>> sgd.papers.rough_landscapes.stability_limit(0.01, 0.5)
    100.0
    """
    return (
        2
        * numbers(1.0, eta, 0.0, "SGD", l, None, 0.0, None).l
        / checks.number("eta", eta, above=0.0)
    )


def unstable_share(eta: float, l: float = 1.0, m: float = 0.0) -> float:  # noqa: E741
    """The probability that a fresh sample is above the stability limit at overlap m on the sphere.

    ::

        P(h^2 - h0^2 > 2 l/eta) = (1/pi) int_x^infinity K_0,   x = (l/eta)/sqrt(1 - m^2)

    Parameters
    ----------
    eta : float
        The learning rate.
    l : float, default 1.0
        The batch fraction.
    m : float or ndarray, default 0.0
        The overlap w.w0/N.

    Returns
    -------
    float
        A probability.

    Notes
    -----
    h^2 - h0^2 = 2 sqrt(1 - m^2) X Y with independent standard normals, and X Y has the density
    K_0/pi. Times M it is the expected number of unstable samples at the start.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.unstable_share(0.5), 3)
    0.031
    """
    m = checks.number("m", m)
    if abs(m) >= 1:
        raise checks.reject("m", m, "give an overlap between -1 and 1, both excluded")
    x = stability_limit(eta, l) / 2 / math.sqrt(1 - m**2)
    # K_0(y) = exp(-y) k0e(y): the factor exp(-x) is taken out, so that small shares keep their
    # digits
    scaled = integrate.quad(
        lambda u: special.k0e(x + u) * math.exp(-u), 0, math.inf, epsabs=0, epsrel=1e-10
    )[0]
    return math.exp(-x) * scaled / math.pi


def fraction_recovered(loss: ArrayLike, threshold: float = THRESHOLD) -> tuple[float, float]:
    """The share of runs whose mean loss (20) is below the threshold, with its standard error; a run
    that diverged (NaN) is not.

    Parameters
    ----------
    loss : array_like
        The mean loss (20) of each run.
    threshold : float, default 1e-07
        Below which a run has recovered the signal.

    Returns
    -------
    tuple of float
        (share, standard error).

    Notes
    -----
    The error is the half width of Wilson's interval at one standard error, which is not zero at 0
    and 1.

    Examples
    --------
    >>> share, error = sgd.papers.rough_landscapes.fraction_recovered([1e-9, 0.5, 1e-8, 0.2])
    >>> share
    0.5
    """
    each = np.asarray(loss, dtype=np.float64)
    if each.ndim != 1 or each.size == 0:
        raise checks.reject("loss", each, "give one number a run")
    share, n = float(np.mean(each < checks.number("threshold", threshold, above=0.0))), each.size
    return share, math.sqrt(share * (1 - share) / n + 0.25 / n**2) / (1 + 1 / n)
