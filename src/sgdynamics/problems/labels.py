"""Laws of label noise: ``sgd.labels``."""

from __future__ import annotations

from sgdynamics.samples.laws import NoiseLaw

__all__ = ["NoiseLaw", "cauchy", "laplace", "student_t"]


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
