"""Laws of heavy-tailed draws: Student t, Laplace and Cauchy, as functions of a standard normal.

A draw x = g(z) with g(z) = F^-1(Phi(z)) has the distribution function F. All draws of a sample are
made of standard normals, so that quadrature over normals is quadrature by quantiles of the law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial import chebyshev
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters

LAWS = ("student_t", "laplace", "cauchy")
FURTHEST = (
    9.0  # standard deviations of the normal up to which the quantiles of Student t are tabulated
)
TERMS = 64  # of their Chebyshev series


@dataclass(frozen=True)
class NoiseLaw:
    """A symmetric law of label noise: ``sgd.labels.student_t``, ``.laplace`` or ``.cauchy``.

    Parameters
    ----------
    law : str
        "student_t", "laplace" or "cauchy".
    scale : float, default 1.0
        Factor of the standard law.
    df : float, optional
        Degrees of freedom of Student t.

    Raises
    ------
    ValueError
        If the law is unknown, or a number is not positive and finite.

    Examples
    --------
    >>> sgd.labels.student_t(3.0).variance
    3.0
    >>> sgd.labels.cauchy(0.5).variance
    inf
    """

    law: str
    scale: float = 1.0
    df: float | None = None

    def __post_init__(self) -> None:
        checks.choice("law", self.law, LAWS)
        object.__setattr__(self, "scale", checks.number("scale", self.scale, above=0.0))
        if self.law == "student_t":
            object.__setattr__(self, "df", checks.number("df", self.df, above=0.0))
        elif self.df is not None:
            raise checks.reject("df", self.df, f"{self.law} has no degrees of freedom. Omit df.")

    @property
    def variance(self) -> float:
        """Variance of the noise, which may be infinite."""
        return self.scale**2 * standard_variance(self.law, self.df)

    @property
    def finite_moments(self) -> float:
        """Moments below this order are finite."""
        return finite_moments(self.law, self.df)

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers that the draw and its distribution function need.

        ``unit`` scales the standard law to variance 1 where it has a variance.
        """
        variance = standard_variance(self.law, self.df)
        unit = 1.0 / math.sqrt(variance) if math.isfinite(variance) else 1.0
        return {"unit": np.float64(unit), **shape_parameters(self.law, self.df)}

    def describe(self) -> dict[str, Any]:
        """Return plain values, from which ``TeacherStudent(noise=...)`` makes the law again.

        Returns
        -------
        dict
            "law", "scale" and, for Student t, "df".
        """
        described = {"law": self.law, "scale": self.scale}
        return described if self.df is None else {**described, "df": self.df}


def finite_moments(law: str, df: float | None = None) -> float:
    """Order below which the moments of a law are finite; ``df`` may be traced."""
    return {"laplace": math.inf, "cauchy": 1.0}[law] if df is None else df


def noise_law(value: object) -> NoiseLaw | None:
    """Return the law that an argument states, also as a record; None for numbers and functions."""
    if isinstance(value, NoiseLaw):
        return value
    if isinstance(value, Mapping) and "law" in value:
        checks.reject_unknown("noise", value, ("law", "scale", "df"))
        return NoiseLaw(**value)
    return None


def standard_variance(law: str, df: float | None) -> float:
    """The variance of the law with scale 1."""
    if law == "laplace":
        return 2.0
    if law == "student_t" and df is not None and df > 2:
        return df / (df - 2)
    return math.inf


def shape_parameters(law: str, df: float | None) -> dict[str, Any]:
    """Degrees of freedom and quantiles of Student t; nothing for the other laws."""
    if law != "student_t":
        return {}
    assert df is not None
    return {"df": np.float64(df), "quantiles": _quantile_series(float(df))}


@lru_cache(maxsize=64)
def _quantile_series(df: float) -> np.ndarray:
    """Chebyshev coefficients of asinh(g(z))/z on 0 <= z <= FURTHEST, a slowly growing function."""
    u = np.cos(np.pi * (np.arange(2 * TERMS) + 0.5) / (2 * TERMS))
    z = FURTHEST * (u + 1) / 2
    values = np.arcsinh(-special.stdtrit(df, special.ndtr(-z))) / z
    series = chebyshev.chebfit(u, values, TERMS - 1)
    series.setflags(write=False)
    return series


def draw_from_normal(
    law: str, parameters: Parameters, z: Float[Numeric, "*s"]
) -> Float[Numeric, "*s"]:
    """The draw of the standard law that a standard normal stands for, g(z), odd and increasing."""
    size = jnp.abs(z)
    if law == "laplace":
        return jnp.sign(z) * (-np.log(2.0) - jax.scipy.special.log_ndtr(-size))
    if law == "cauchy":
        near = jnp.tan(0.5 * np.pi * jax.scipy.special.erf(jnp.minimum(size, 1.0) / np.sqrt(2.0)))
        far = 1.0 / jnp.tan(np.pi * jax.scipy.special.ndtr(-jnp.maximum(size, 1.0)))
        return jnp.sign(z) * jnp.where(size < 1.0, near, far)
    u = jnp.minimum(size, FURTHEST) * (2 / FURTHEST) - 1
    series = parameters["quantiles"]
    last, value = jnp.zeros_like(z), jnp.zeros_like(z)
    for index in range(series.shape[-1] - 1, 0, -1):  # Clenshaw
        last, value = value, series[index].astype(z.dtype) + 2 * u * value - last
    return jnp.sinh(z * (series[0].astype(z.dtype) + u * value - last))


def density(law: str, parameters: Parameters, x: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
    """The density of the standard law."""
    if law == "laplace":
        return 0.5 * jnp.exp(-jnp.abs(x))
    if law == "cauchy":
        return 1 / (np.pi * (1 + x**2))
    df = parameters["df"]
    log_beta = jax.scipy.special.betaln(df / 2, 0.5)
    return jnp.exp(-0.5 * (df + 1) * jnp.log1p(x**2 / df) - log_beta) / jnp.sqrt(df)


def half_moments(law: str, parameters: Parameters) -> tuple[Any, Any]:
    """E[x; x > 0] and E[x^2; x > 0] of the standard law, infinite where they are."""
    if law == "laplace":
        return 0.5, 1.0
    if law == "cauchy":
        return jnp.inf, jnp.inf
    df = parameters["df"]
    first = jnp.sqrt(df) / (df - 1) * jnp.exp(-jax.scipy.special.betaln(df / 2, 0.5))
    return jnp.where(df > 1, first, jnp.inf), jnp.where(df > 2, 0.5 * df / (df - 2), jnp.inf)
