"""Phase retrieval on a fixed data set: the paper's settings, closed formulas and error measures.

Symbols and units are those of the paper: fields h = xi.w/sqrt(N), |w|^2 = N on the sphere, loss v =
(h^2 - h0^2)^2/4 summed over the M = alpha N samples in the gradient, batch fraction l, learning
rate eta, persistence time tau, temperature T, time t = eta steps. The library averages (h^2 -
h0^2)^2/2 over the samples: lr = alpha eta/2, time alpha t/2, temperature 2 T/alpha, persistence
time alpha tau/2, weight decay 2 lambda/alpha, and its training risk is twice the paper's mean loss.
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
THRESHOLD = 1e-7  # mean loss (20) below which the paper counts the signal as recovered


@dataclass(frozen=True)
class PaperParameters:
    """Checked parameters of the paper.

    tau is NaN unless the algorithm is p-SGD, T holds until t_off, and ridge is NaN on the sphere.
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
        """Temperature at a step.

        The half step makes the comparison with t_off robust to rounding.
        """
        return self.T if self.eta * (step + 0.5) < self.t_off else 0.0

    @property
    def switching(self) -> tuple[float, float]:
        """Probabilities that a sample enters the batch, and leaves it, in one step.

        Source: (6), or (7) with l for its b.
        """
        on = self.eta / self.tau if self.algorithm == "p-SGD" else self.l
        return on, on * (1 - self.l) / self.l


def check_parameters(
    alpha: float,
    eta: float,
    m0: float,
    algorithm: str,
    l: float,  # noqa: E741
    tau: float | None,
    T: float | Sequence[float],
    ridge: float | None,
) -> PaperParameters:
    """Check the parameters of the paper, and that they fit together."""
    checks.choice("algorithm", algorithm, ALGORITHMS)
    alpha = checks.number("alpha", alpha, above=0.0)
    eta = checks.number("eta", eta, above=0.0)
    m0 = checks.number("m0", m0)
    if ridge is None and abs(m0) > 1:
        raise checks.reject("m0", m0, "on the sphere an overlap is between -1 and 1.")
    fraction = checks.number("l", l, above=0.0)
    if fraction > 1:
        raise checks.reject(
            "l", l, "give the fraction of samples in a batch, above 0 and at most 1."
        )
    if algorithm in ("GD", "Langevin") and fraction != 1:
        raise checks.reject(
            "l", l, f"{algorithm} uses all samples. Use l=1, or algorithm='SGD' or 'p-SGD'."
        )
    if (tau is not None) != (algorithm == "p-SGD"):
        raise checks.reject("tau", tau, "'p-SGD' requires tau, and no other algorithm uses it.")
    if tau is not None:
        least = eta * max(1.0, (1 - fraction) / fraction)
        if checks.number("tau", tau, above=0.0) < least:
            raise checks.reject(
                "tau",
                tau,
                "a sample would switch with a probability above 1 per step. "
                f"Use {least:g} or more.",
            )
    temperature, t_off = T if isinstance(T, (tuple, list)) and len(T) == 2 else (T, math.inf)
    temperature = checks.number("T", temperature, 0.0)
    t_off = checks.number("T", t_off, above=0.0, infinite=True)
    if temperature > 0 and algorithm != "Langevin":
        raise checks.reject("T", T, "only algorithm='Langevin' has a temperature.")
    decay = math.nan if ridge is None else checks.number("ridge", ridge, 0.0)
    return PaperParameters(
        alpha,
        eta,
        m0,
        algorithm,
        fraction,
        math.nan if tau is None else float(tau),
        temperature,
        t_off,
        decay,
    )


@dataclass(frozen=True)
class Setting:
    """A setting of the paper as arguments of ``sgd.simulate`` and ``sgd.solve_dmft``.

    Attributes
    ----------
    problem : TeacherStudent
        The learning problem.
    algorithm : FixedData
        The training algorithm.
    start : Start
        Initial condition of one or several runs.
    numbers : PaperParameters
        Parameters in the paper's units.
    loss_factor : float
        Ratio of the paper's mean loss (20) to the library's ``train_risk``.

    Notes
    -----
    ``steps``, ``library_time`` and ``paper_time`` convert times.

    Examples
    --------
    >>> setting = sgd.papers.rough_landscapes.setting(3.0, 0.01, 0.2)
    >>> setting.algorithm.samples_per_dimension, setting.steps([0.1]).tolist()
    (3.0, [10])
    """

    problem: TeacherStudent
    algorithm: FixedData
    start: Start
    numbers: PaperParameters  # style: ok, public name
    loss_factor: float = 0.5

    def steps(self, t: RealArray) -> np.ndarray:
        """Numbers of steps at the paper's times t = eta steps.

        Parameters
        ----------
        t : float or ndarray
            The paper's times.

        Returns
        -------
        ndarray
            Integers, rounded to the nearest step.
        """
        return np.round(np.asarray(t, dtype=np.float64) / self.numbers.eta).astype(np.int64)

    def library_time(self, t: RealArray) -> np.ndarray:
        """The library's time alpha t/2 at the paper's time t.

        Parameters
        ----------
        t : float or ndarray
            The paper's time.

        Returns
        -------
        float or ndarray
            Times in the library's units.
        """
        return np.asarray(t, dtype=np.float64) * (self.numbers.alpha / 2)

    def paper_time(self, t: RealArray) -> np.ndarray:
        """The paper's time at the library's time.

        Parameters
        ----------
        t : float or ndarray
            The library's time.

        Returns
        -------
        float or ndarray
            Times in the paper's units.
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
    """Phase retrieval of the paper as a problem, an algorithm and a start of the library.

    ::

        w <- w - eta [(1/l) sum_mu s_mu v'(h_mu, h0_mu) xi_mu/sqrt(N) + nu w]
               + sqrt(2 T eta) N(0, I)

    Parameters
    ----------
    alpha : float
        Number of samples divided by N.
    eta : float
        The learning rate.
    m0 : float
        Initial overlap.
    algorithm : str, default "GD"
        "GD", "SGD", "p-SGD" or "Langevin".
    l : float, default 1.0
        The batch fraction.
    tau : float, optional
        Persistence time; required by p-SGD.
    T : float or (float, float), default 0.0
        Temperature, or (T, t) for a temperature that is switched to zero at time t.
    ridge : float, optional
        Ridge penalty lambda. By default the weights are on the sphere.
    dimension : int, optional
        Dimension N. Defaults to the limit N -> infinity.
    seed : int, default 0
        Seed of the random number generator.
    runs : int, optional
        Number of initial conditions. Defaults to 1.
    rescale : bool, default True
        Whether to divide the gradient by the batch fraction.

    Returns
    -------
    Setting
        The problem, the algorithm and the start.

    Notes
    -----
    s_mu in {0, 1} is the selection of sample mu, and nu is lambda with a ridge and 0 without it.
    The algorithms are "GD" (5), "SGD" (6), "p-SGD" (7) and "Langevin" (9). Without a ridge w
    returns to the sphere ``|w|^2`` = N after each step and starts from m0 w0 + c z (11). With a
    ridge the step is (C.1), and w starts from m0 w0 + z (C.2). With ``dimension`` the ``runs``
    initial conditions are draws at that N: z is Gaussian, so that the overlap fluctuates. Without
    it the overlaps are those of N -> infinity. ``rescale=False`` omits the factor 1/l (figure B.2,
    right).

    Examples
    --------
    >>> setting = sgd.papers.rough_landscapes.setting(3.0, 0.01, 0.2, "p-SGD", l=0.5, tau=1.0)
    >>> type(setting.algorithm).__name__, round(setting.algorithm.lr, 4)
    ('PersistentSGD', 0.015)
    """
    parameters = check_parameters(alpha, eta, m0, algorithm, l, tau, T, ridge)
    half = parameters.alpha / 2
    common: dict[str, Any] = {
        "lr": half * parameters.eta,
        "samples_per_dimension": parameters.alpha,
    }
    batches = {**common, "batch_fraction": parameters.l, "rescale": rescale}
    if algorithm == "GD":
        method: FixedData = GradientDescent(**common)
    elif algorithm == "SGD":
        method = MultiPassSGD(**batches)
    elif algorithm == "p-SGD":
        method = PersistentSGD(**batches, persistence_time=half * parameters.tau)
    else:
        temperature: Any = parameters.T / half
        if math.isfinite(parameters.t_off):
            switch_time = half * (parameters.t_off - parameters.eta / 2)
            temperature = piecewise_rate([switch_time], [temperature, 0.0])
        method = Langevin(**common, temperature=temperature)
    if parameters.sphere:
        problem = TeacherStudent(width=1, activation="square", constraint="sphere")
    else:
        problem = TeacherStudent(width=1, activation="square", weight_decay=parameters.ridge / half)
    M, Q = _overlaps(parameters, dimension, seed, runs)
    return Setting(
        problem, method, start(problem, M=M[:, None, None], Q=Q[:, None, None]), parameters
    )


def _overlaps(
    parameters: PaperParameters, dimension: int | None, seed: int, runs: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """M = w.w0/N and Q = |w|^2/N of the starts (11) or (C.2), one per run."""
    m0 = parameters.m0
    if dimension is None:
        if runs is not None:
            raise checks.reject(
                "runs",
                runs,
                "without dimension= all starts are equal. Omit runs, or set dimension.",
            )
        return np.array([m0]), np.array([1.0 if parameters.sphere else m0**2 + 1])
    N = checks.integer("dimension", dimension, 2)
    count = checks.integer("runs", 1 if runs is None else runs, 1)
    random = np.random.default_rng(checks.integer("seed", seed, 0))
    # components of z along w0 and orthogonal to it, the latter squared
    parallel = random.standard_normal(count) / math.sqrt(N)
    orthogonal = random.chisquare(N - 1, count) / N
    if not parameters.sphere:
        return m0 + parallel, (m0 + parallel) ** 2 + orthogonal
    # c is the positive root of |m0 w0 + c z|^2 = N
    square = parallel**2 + orthogonal
    c = (np.sqrt((m0 * parallel) ** 2 + square * (1 - m0**2)) - m0 * parallel) / square
    return m0 + c * parallel, np.ones(count)


def generalization_error(q: RealArray, q0: RealArray, m: RealArray) -> np.ndarray:
    """Mean squared error of ``|h|`` as an estimate of the label ``|h0|`` of a fresh sample.

    ::

        q + q0 - (4/pi) [sqrt(q q0 - m^2) + m arctan(m/sqrt(q q0 - m^2))]
        q = |w|^2/N,   q0 = |w0|^2/N,   m = w.w0/N

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
        The error, one number for each set of overlaps.

    Notes
    -----
    For Gaussian inputs. Arrays broadcast. Source: (B.8).

    Examples
    --------
    >>> round(float(sgd.papers.rough_landscapes.generalization_error(1.0, 1.0, 0.5)), 4)
    0.564
    """
    q, q0, m = (np.asarray(value, dtype=np.float64) for value in (q, q0, m))
    inside = q * q0 - m**2
    if np.any(inside < -1e-9 * (1 + q * q0)) or np.any(q < 0) or np.any(q0 < 0):
        overlaps = (q.tolist(), q0.tolist(), m.tolist())
        raise checks.reject("q, q0, m", overlaps, "require q, q0 >= 0 and m^2 <= q q0.")
    root = np.sqrt(np.maximum(inside, 0.0))  # negative only by rounding
    error = q + q0 - 4 / math.pi * (root + np.abs(m) * np.arctan2(np.abs(m), root))
    return error[()]


def first_step(
    alpha: float,
    eta: float,
    m0: float,
    l: float = 1.0,  # noqa: E741
    T: float = 0.0,
) -> float:
    """Overlap after one step on the sphere as N -> infinity.

    ::

        m_1 = m0/sqrt(1 - 4 eta alpha (1 - m0^2) + 2 T eta
                      + eta^2 (1 - m0^2)(4 alpha^2 + 12 alpha/l))

    Parameters
    ----------
    alpha : float
        Number of samples divided by N.
    eta : float
        The learning rate.
    m0 : float
        Initial overlap.
    l : float, default 1.0
        The batch fraction.
    T : float, default 0.0
        The temperature.

    Returns
    -------
    float
        The overlap m_1.

    Notes
    -----
    Initially the gradient has no component along w0 (mu(0) = 0), <h v'> = 2 (1 - m0^2), and
    ``|gradient|^2`` is the sum of 4 alpha^2 (1 - m0^2) from its mean and of M_C(0, 0). The formula
    is the same for SGD and p-SGD. It follows from (5) and (11), and is not in the paper.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.first_step(3.0, 0.01, 0.2), 4)
    0.2118
    """
    parameters = check_parameters(alpha, eta, m0, "SGD", l, None, 0.0, None)
    T, variance = checks.number("T", T, 0.0), 1 - parameters.m0**2
    alpha, eta = parameters.alpha, parameters.eta
    square = 1 - 4 * eta * alpha * variance + 2 * T * eta
    square += eta**2 * variance * (4 * alpha**2 + 12 * alpha / parameters.l)
    return parameters.m0 / math.sqrt(square)


@dataclass(frozen=True)
class ClosedValues:
    """Functions and kernels of the DMFT on the sphere at t = 0.

    Attributes
    ----------
    loss : float
        The mean loss.
    mu : float
        Mean gradient along the signal, mu = (alpha/l) <s v' h0>.
    nu_hat : float
        Lagrange multiplier of the sphere, nu_hat = -(alpha/l) <s v' h> + T.
    delta_nu : float
        Mean curvature, delta_nu = (alpha/l) <s v''>.
    M_C : float
        The kernel M_C(0, 0).
    M_R : float
        The kernel M_R(0+, 0).

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


def closed_values(
    alpha: float,
    m0: float,
    l: float = 1.0,  # noqa: E741
    T: float = 0.0,
) -> ClosedValues:
    """Functions of (15), (19) and (20) on the sphere at t = 0.

    ::

        loss = 1 - m0^2, mu = 0, nu_hat = -2 alpha (1 - m0^2) + T, delta_nu = 2 alpha,
        M_C(0, 0) = 12 (alpha/l)(1 - m0^2), M_R(0+, 0) = 12 (alpha/l)(2 - m0^2)

    Parameters
    ----------
    alpha : float
        Number of samples divided by N.
    m0 : float
        Initial overlap.
    l : float, default 1.0
        The batch fraction.
    T : float, default 0.0
        The temperature.

    Returns
    -------
    ClosedValues
        The values, by name.

    Notes
    -----
    Gaussian moments of v' = h^3 - h h0^2 and v'' = 3 h^2 - h0^2 with <h h0> = m0. M_R is the
    response to a shift of the argument of v' only: M_R(0+, 0) = (alpha/l^2) <s v''^2>.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.closed_values(3.0, 0.2).loss, 4)
    0.96
    """
    parameters = check_parameters(alpha, 1.0, m0, "SGD", l, None, 0.0, None)
    T, variance = checks.number("T", T, 0.0), 1 - parameters.m0**2
    per_batch = 12 * parameters.alpha / parameters.l
    return ClosedValues(
        loss=variance,
        mu=0.0,
        nu_hat=T - 2 * parameters.alpha * variance,
        delta_nu=2 * parameters.alpha,
        M_C=per_batch * variance,
        M_R=per_batch * (1 + variance),
    )


def stability_limit(eta: float, l: float = 1.0) -> float:  # noqa: E741
    """Value of h^2 - h0^2 above which a sample in the batch overshoots.

    ::

        the sample's contribution to a step multiplies h by 1 - (eta/l)(h^2 - h0^2)
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
        The limit of h^2 - h0^2.

    Notes
    -----
    Above the limit h grows at each step in which the sample is in the batch, and the run diverges.
    This formula is not in the paper.

    Examples
    --------
    >>> sgd.papers.rough_landscapes.stability_limit(0.01, 0.5)
    100.0
    """
    parameters = check_parameters(1.0, eta, 0.0, "SGD", l, None, 0.0, None)
    return 2 * parameters.l / parameters.eta


def unstable_share(eta: float, l: float = 1.0, m: float = 0.0) -> float:  # noqa: E741
    """Probability that a fresh sample exceeds the stability limit at overlap m on the sphere.

    ::

        P(h^2 - h0^2 > 2 l/eta) = (1/pi) int_x^infinity K_0,   x = (l/eta)/sqrt(1 - m^2)

    Parameters
    ----------
    eta : float
        The learning rate.
    l : float, default 1.0
        The batch fraction.
    m : float, default 0.0
        The overlap w.w0/N.

    Returns
    -------
    float
        The probability.

    Notes
    -----
    h^2 - h0^2 = 2 sqrt(1 - m^2) X Y with independent standard normals, and X Y has the density
    K_0/pi. M times this probability is the expected number of unstable samples at the start.

    Examples
    --------
    >>> round(sgd.papers.rough_landscapes.unstable_share(0.5), 3)
    0.031
    """
    m = checks.number("m", m)
    if abs(m) >= 1:
        raise checks.reject("m", m, "give an overlap between -1 and 1, both excluded.")
    x = stability_limit(eta, l) / 2 / math.sqrt(1 - m**2)
    # K_0(y) = exp(-y) k0e(y): the factor exp(-x) is taken out to keep the relative precision
    scaled = integrate.quad(
        lambda u: special.k0e(x + u) * math.exp(-u), 0, math.inf, epsabs=0, epsrel=1e-10
    )[0]
    return math.exp(-x) * scaled / math.pi


def fraction_recovered(loss: ArrayLike, threshold: float = THRESHOLD) -> tuple[float, float]:
    """Share of runs whose mean loss (20) is below the threshold, with its standard error.

    A run that diverged (NaN) counts as not recovered.

    Parameters
    ----------
    loss : array_like
        Mean loss (20) of each run.
    threshold : float, default 1e-07
        Mean loss below which a run has recovered the signal.

    Returns
    -------
    tuple of float
        The share and its standard error.

    Notes
    -----
    The error is the half width of Wilson's interval at one standard error, which is positive at
    shares of 0 and 1 too.

    Examples
    --------
    >>> share, error = sgd.papers.rough_landscapes.fraction_recovered([1e-9, 0.5, 1e-8, 0.2])
    >>> share
    0.5
    """
    losses = np.asarray(loss, dtype=np.float64)
    if losses.ndim != 1 or losses.size == 0:
        raise checks.reject("loss", losses, "give one number per run.")
    threshold = checks.number("threshold", threshold, above=0.0)
    share, n = float(np.mean(losses < threshold)), losses.size
    return share, math.sqrt(share * (1 - share) / n + 0.25 / n**2) / (1 + 1 / n)
