"""Laws of labels and of label noise: ``sgd.labels``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.problems.label_laws import LabelLaw
from sgdynamics.problems.likelihoods import StatedLikelihood, kink_sequence
from sgdynamics.samples.laws import NoiseLaw

__all__ = [
    "LabelLaw",
    "NoiseLaw",
    "StatedLikelihood",
    "additive",
    "cauchy",
    "laplace",
    "logistic",
    "outcomes",
    "probit",
    "sign",
    "student_t",
]


def sign(flip: float = 0.0) -> LabelLaw:
    """Labels y = sign(g) that are flipped with some probability, as the argument ``labels``.

    Parameters
    ----------
    flip : float, default 0.0
        Probability of a wrong label, below 1/2.

    Returns
    -------
    LabelLaw
        The law, for ``labels=`` of ``MultiIndex`` and ``TeacherStudent``. A teacher's output of
        exactly 0 counts as -1.

    Raises
    ------
    ValueError
        If the probability is not in [0, 1/2).

    Examples
    --------
    >>> sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign(flip=0.1)).labels
    LabelLaw(law='sign', value=0.1)
    """
    return LabelLaw("sign", flip)


def probit(noise: float) -> LabelLaw:
    """Labels y = sign(g + sqrt(noise) z) with a standard normal z, as the argument ``labels``.

    Parameters
    ----------
    noise : float
        Variance of the noise inside the sign.

    Returns
    -------
    LabelLaw
        The law, for ``labels=`` of ``MultiIndex`` and ``TeacherStudent``.

    Raises
    ------
    ValueError
        If the variance is not positive and finite.

    Examples
    --------
    >>> sgd.labels.probit(0.25).describe()
    {'law': 'probit', 'noise': 0.25}
    """
    return LabelLaw("probit", noise)


def logistic(slope: float = 1.0) -> LabelLaw:
    """Labels +1 with probability 1/(1 + exp(-slope g)), otherwise -1, as the argument ``labels``.

    Parameters
    ----------
    slope : float, default 1.0
        Slope of the log odds in the teacher's output g.

    Returns
    -------
    LabelLaw
        The law, for ``labels=`` of ``MultiIndex`` and ``TeacherStudent``.

    Raises
    ------
    ValueError
        If the slope is not positive and finite.

    Examples
    --------
    >>> sgd.labels.logistic(2.0).describe()
    {'law': 'logistic', 'slope': 2.0}
    """
    return LabelLaw("logistic", slope)


def outcomes(
    values: Sequence[float], probabilities: Callable[..., Any], *, kinks: Sequence[Any] = ()
) -> StatedLikelihood:
    """Labels with finitely many values, as the argument ``likelihood`` of ``Problem``.

    Parameters
    ----------
    values : sequence of float
        The labels.
    probabilities : callable
        JAX function of the signals, or of the signals and ``parameters``, that returns one
        probability per label.
    kinks : sequence, default ()
        Planes (normal, level) along which a probability has a kink or jumps; a number is a plane on
        each axis.

    Returns
    -------
    StatedLikelihood
        The law of the label given the signals.

    Raises
    ------
    ValueError
        If the values are not at least two different numbers. ``Problem`` tries the function.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> law = sgd.labels.outcomes([0.0, 1.0, 2.0], lambda z: jax.nn.softmax(jnp.arange(3.0) * z[0]))
    >>> law.values
    (0.0, 1.0, 2.0)
    """
    labels = checks.real_array("values", values, "give a list of numbers, such as [-1.0, 1.0]")
    if labels.ndim != 1 or len(set(labels.tolist())) != labels.size or labels.size < 2:
        raise checks.reject("values", values, "give at least two different numbers")
    if not np.all(np.isfinite(labels)):
        raise checks.reject("values", values, "give finite numbers")
    if not callable(probabilities):
        fix = "give a JAX function from the signals to one probability per label"
        raise checks.reject("probabilities", probabilities, fix)
    planes = kink_sequence(kinks)
    return StatedLikelihood(probabilities, tuple(labels.tolist()), kinks=planes)


def additive(
    function: Callable[..., Any], noise: float, *, kinks: Sequence[Any] = ()
) -> StatedLikelihood:
    """Labels y = f(z) + sqrt(noise) xi with Gaussian noise, as ``likelihood`` of ``Problem``.

    Parameters
    ----------
    function : callable
        JAX function f of the signals, or of the signals and ``parameters``.
    noise : float
        Variance of the noise.
    kinks : sequence, default ()
        Planes (normal, level) along which f has a kink or jumps; a number is a plane on each axis.

    Returns
    -------
    StatedLikelihood
        The law of the label given the signals.

    Raises
    ------
    ValueError
        If the noise is negative or not finite. ``Problem`` tries the function.

    Examples
    --------
    >>> sgd.labels.additive(lambda z: z[0] ** 3, noise=0.1).noise
    0.1
    """
    if not callable(function):
        raise checks.reject(
            "function", function, "give a JAX function from the signals to a number"
        )
    variance = checks.number("noise", noise, 0.0)
    return StatedLikelihood(function, noise=variance, kinks=kink_sequence(kinks))


def student_t(df: float, scale: float = 1.0) -> NoiseLaw:
    """Label noise with a Student t law, as the argument ``noise`` of networks with a teacher.

    Parameters
    ----------
    df : float
        Degrees of freedom; the variance is infinite for 2 and below.
    scale : float, default 1.0
        Factor of the standard law.

    Returns
    -------
    NoiseLaw
        The law, with its ``variance``.

    Raises
    ------
    ValueError
        If a number is not positive and finite.

    Examples
    --------
    >>> sgd.TeacherStudent(width=1, activation="linear", noise=sgd.labels.student_t(3.0)).noise
    3.0
    """
    return NoiseLaw("student_t", scale, df)


def laplace(scale: float = 1.0) -> NoiseLaw:
    """Label noise with a Laplace law, whose density is exp(-abs(x)/scale)/(2 scale).

    Parameters
    ----------
    scale : float, default 1.0
        Scale of the law; the variance is 2 scale^2.

    Returns
    -------
    NoiseLaw
        The law, with its ``variance``.

    Raises
    ------
    ValueError
        If the scale is not positive and finite.

    Examples
    --------
    >>> sgd.labels.laplace(0.5).variance
    0.5
    """
    return NoiseLaw("laplace", scale)


def cauchy(scale: float = 1.0) -> NoiseLaw:
    """Label noise with a Cauchy law, of infinite variance.

    Parameters
    ----------
    scale : float, default 1.0
        Half width at half maximum.

    Returns
    -------
    NoiseLaw
        The law, with its ``variance``.

    Raises
    ------
    ValueError
        If the scale is not positive and finite.

    Notes
    -----
    With the squared loss the risk is infinite and plain SGD has no limit: use ``sgd.updates.sign``,
    ``sgd.updates.clipped`` or a loss with bounded slope.

    Examples
    --------
    >>> sgd.labels.cauchy().variance
    inf
    """
    return NoiseLaw("cauchy", scale)
