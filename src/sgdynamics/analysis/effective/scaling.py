"""`effective_scaling`: localizability and the critical step size as the dimension grows.

At delta = lr/d the drift f does not depend on the step size, while g and Sigma are proportional to
it. If they grow like d^x at delta = lr/d, they stay finite at delta ~ d^-s exactly if s >= 1 + x.
The largest such step size is the critical scaling. Exponents are fitted over a list of dimensions,
with standard errors that include those of the draws and the misfit of a power law.

Definition 2.1 requires, at delta,

    |hess u_i|_op delta^(1/2),  |d^3 u_i|_op,  |grad Phi|,  delta^2 E <grad H, grad u_i>^4  bounded,
    delta^3 E <hess u_i, grad H grad H^T - V>^2 -> 0.

The paper prints the last one with delta instead of delta^3. One step adds
(delta^2/2) <hess u_i, grad H grad H^T - V>, of mean zero, to u_i. Over 1/delta steps that is a
martingale of variance (delta^3/4) E <...>^2, which vanishes under the condition with delta^3. As
printed, the condition fails in the examples of the paper at delta = lr/d: for the spiked matrix and
r2, E <...>^2 is 512 |x|^4 d to leading order. The quantity as printed is reported too.

Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition 2.1,
Theorem 2.2 and section 2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from sgdynamics.analysis.effective.estimates import Measurement, measure
from sgdynamics.analysis.effective.result import EffectiveDynamics, format_table
from sgdynamics.analysis.effective.task import (
    GROUPS,
    MOST_SAMPLES,
    Functions,
    Setup,
    prepare,
    validate_task,
)
from sgdynamics.analysis.effective.trends import SMALL_EXPONENT, Trend, fit_trend
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter

# Power iterations for the norms of second derivatives; sweeps and restarts for third ones.
ITERATIONS, SWEEPS, RESTARTS = 60, 30, 4
# A verdict of a condition, as the table shows it.
ANSWERS = {True: "yes", False: "no", None: "?"}


@dataclass(frozen=True)
class Condition:
    """One condition of Definition 2.1.

    Attributes
    ----------
    quantity : str
        Formula of the quantity.
    needed : str
        The required trend, "bounded" or "vanishes"; "" if nothing is required.
    values : ndarray
        Values, (dimensions, statistics), with one column if the quantity does not depend on a
        statistic.
    trend : Trend
        Trend of the largest value over the statistics.
    holds : bool or None
        Whether the trend is the required one. None if the exponent is too uncertain or nothing is
        required.
    """

    quantity: str
    needed: str
    values: np.ndarray
    trend: Trend
    holds: bool | None


@dataclass(frozen=True)
class EffectiveScaling:
    """Effective dynamics over a list of dimensions, with exponents and the critical step size.

    Attributes
    ----------
    names : tuple of str
        Names of the statistics.
    dimensions : tuple of int
        Dimensions d.
    lr : float
        Learning rate; the step size is lr/d.
    at : tuple of EffectiveDynamics
        Effective dynamics at each dimension.
    drift : tuple of Trend
        Trend of the drift f of each statistic.
    corrector : tuple of Trend
        Trend of the corrector g of each statistic.
    diffusion : tuple of Trend
        Trend of the diffusion Sigma_ii of each statistic.
    conditions : tuple of Condition
        Conditions of Definition 2.1, with their trends and whether they hold.
    critical : ndarray
        Exponent s for each statistic such that g and Sigma_ii stay finite for delta ~ d^-s and no
        larger step size.
    critical_error : ndarray
        Standard errors of the critical exponents.

    Notes
    -----
    The theorem requires the conditions uniformly over compact sets of the statistics.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> scaling = sgd.effective_scaling(
    ...     lambda x, noise: jnp.sum((noise - x) ** 2) / 2,
    ...     lambda key, d: jax.random.normal(key, (d,)),
    ...     lambda x: jnp.stack([x[0]]),
    ...     point=lambda d: jnp.ones(d) / d**0.5, lr=0.5, dimensions=[8, 16, 32], samples=256)
    >>> len(scaling.at), scaling.critical.shape
    (3, (1,))
    """

    names: tuple[str, ...]
    dimensions: tuple[int, ...]
    lr: float
    at: tuple[EffectiveDynamics, ...]
    drift: tuple[Trend, ...]
    corrector: tuple[Trend, ...]
    diffusion: tuple[Trend, ...]
    conditions: tuple[Condition, ...]
    critical: np.ndarray
    critical_error: np.ndarray

    @property
    def localizable(self) -> bool | None:
        """Whether all conditions hold at these points; None if that is undecided."""
        verdicts = [condition.holds for condition in self.conditions if condition.needed]
        if False in verdicts:
            return False
        return None if None in verdicts else True

    @property
    def critical_exponent(self) -> float:
        """Largest critical exponent; -inf if neither g nor Sigma limits the step size."""
        return float(self.critical.max())

    @property
    def critical_exponent_error(self) -> float:
        """Standard error of the critical exponent."""
        return float(self.critical_error[int(np.argmax(self.critical))])

    @property
    def words(self) -> str:
        """The critical scaling of the step size in a sentence."""
        s, error = self.critical_exponent, self.critical_exponent_error
        if s == -math.inf:
            return "g and Sigma are zero at these points: they do not limit the step size"
        worst = int(np.argmax(self.critical))
        term = "corrector" if self.corrector[worst].exponent + 1 == s else "diffusion"
        bound = (
            f"g and Sigma stay finite for delta ~ d^-s with s >= {s:.2f} ± {error:.2g} "
            f"(set by the {term} of {self.names[worst]})"
        )
        margin = max(SMALL_EXPONENT, 3 * error)
        if s > 1 + margin:
            return f"{bound}: delta = lr/d is too large, they diverge"
        if s < 1 - margin:
            return (
                f"{bound}: delta = lr/d is sub-critical, in the limit u follows the population "
                "gradient flow"
            )
        return f"{bound}: delta = lr/d is the critical scaling"

    def __str__(self) -> str:
        first, last = self.dimensions[0], self.dimensions[-1]
        columns = (f"d = {first}", f"d = {last}", "exponent", "verdict", "needed", "holds")
        rows: list[tuple[str, ...]] = [("quantity", *columns)]
        for symbol, trends in (("f", self.drift), ("g", self.corrector), ("Sigma", self.diffusion)):
            for name, trend in zip(self.names, trends, strict=True):
                rows.append((f"{symbol}({name})", *_trend_cells(trend), "", ""))
        for condition in self.conditions:
            answer = ANSWERS[condition.holds] if condition.needed else ""
            cells = (*_trend_cells(condition.trend), condition.needed, answer)
            rows.append((condition.quantity, *cells))
        listing = ", ".join(map(str, self.dimensions))
        return (
            f"effective dynamics at delta = lr/d, lr = {self.lr:g}, d = {listing}\n"
            f"{format_table(rows)}\n"
            f"localizable at these points: {ANSWERS[self.localizable]}\n"
            f"{self.words}"
        )


def _trend_cells(trend: Trend) -> tuple[str, ...]:
    exponent = ""
    if math.isfinite(trend.exponent):
        exponent = f"{trend.exponent:.2f} ± {trend.exponent_error:.2g}"
    return f"{trend.values[0]:.4g}", f"{trend.values[-1]:.4g}", exponent, trend.verdict


@float64
def effective_scaling(
    loss: Callable[[Any, Any], Any],
    sample: Callable[[Any, int], Any],
    statistics: Callable[[Any], Any],
    *,
    point: Callable[[int], Any],
    lr: float,
    dimensions: Sequence[int],
    samples: int = 1024,
    seed: int = 0,
    antithetic: Callable[[Any], Any] | None = None,
    controls: Callable[[Any], Any] | None = None,
    names: Sequence[str] | None = None,
    progress: bool | None = None,
) -> EffectiveScaling:
    """Exponents of f, g, Sigma and the conditions of Definition 2.1 in the dimension.

    They are measured at the step size delta = lr/d and give the critical step size::

        g ~ d^x and Sigma_ii ~ d^y at delta = lr/d
        finite for delta ~ d^-s exactly if s >= 1 + max(x, y)

    Parameters
    ----------
    loss : callable
        ``loss(x, y)``, the loss of one draw, a JAX function.
    sample : callable
        ``sample(key, dimension)``, a random draw.
    statistics : callable
        ``statistics(x)``, the vector of statistics, of shape (k,).
    point : callable
        ``point(dimension)``, the parameters x at each dimension.
    lr : float
        Learning rate; the step size is delta = lr/d.
    dimensions : sequence of int
        Dimensions, at least three, increasing.
    samples : int, default 1024
        Number of draws at each dimension.
    seed : int, default 0
        Seed of the random number generator.
    antithetic : callable, optional
        Antithetic partner of a draw, see ``effective_dynamics``.
    controls : callable, optional
        Control variates of a draw, see ``effective_dynamics``.
    names : sequence of str, optional
        Names of the statistics. Defaults to u1, u2, ...
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    EffectiveScaling
        Exponents and verdicts; ``print`` shows them as a table.

    Raises
    ------
    ValueError
        If there are fewer than three dimensions, or if a function has the wrong arguments or
        shapes.

    Notes
    -----
    Off-diagonal entries of Sigma are bounded by its diagonal. The norms of second and third
    derivatives come from power iteration, so that they are lower bounds (for the third the best of
    several restarts, possibly a local maximum).

    Assumes power laws over these dimensions, and points that represent all points with such
    statistics: the theorem requires bounds that are uniform over compact sets of the statistics.
    The verdicts are evidence, not proofs.

    Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition
    2.1 (the last condition as the proof needs it, see the module) and section 2.1.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> scaling = sgd.effective_scaling(
    ...     lambda x, noise: jnp.sum((noise - x) ** 2) / 2,
    ...     lambda key, d: jax.random.normal(key, (d,)),
    ...     lambda x: jnp.stack([x[0]]),
    ...     point=lambda d: jnp.ones(d) / d**0.5, lr=0.5, dimensions=[8, 16, 32], samples=256)
    >>> scaling.dimensions
    (8, 16, 32)
    """
    task = validate_task(loss, sample, statistics, antithetic, controls)
    if not callable(point):
        raise checks.reject("point", point, "give a function dimension -> parameters")
    lr = checks.number("lr", lr, above=0.0)
    samples = checks.integer("samples", samples, GROUPS, MOST_SAMPLES)
    seed = checks.integer("seed", seed, 0)
    progress = checks.flag("progress", progress, optional=True)
    all_dimensions = _validate_dimensions(dimensions)
    # Each dimension has its own draws, so that the errors of the fits are independent.
    setups = [
        prepare(task, _point_at(point, d), d, samples, (seed, d), names) for d in all_dimensions
    ]
    counts = [len(setup.names) for setup in setups]
    if len(set(counts)) > 1:
        raise ValueError(
            f"statistics has {counts} entries at dimensions {list(all_dimensions)}: give the same "
            "number at each"
        )
    measurements, norms = [], []
    for d, setup in zip(all_dimensions, setups, strict=True):
        with meter(f"effective dynamics, d = {d}", 2.0 * samples, progress) as bar:
            measurements.append(measure(setup, lr, bar))
        norms.append(_statistics_norms(setup, seed))
    at = tuple(measurement.dynamics for measurement in measurements)
    scale = np.array(all_dimensions, dtype=float)

    def trends(values: list[np.ndarray], errors: list[np.ndarray]) -> tuple[Trend, ...]:
        """Trends of the statistics from values at the dimensions."""
        columns = zip(np.array(values).T, np.array(errors).T, strict=True)
        return tuple(fit_trend(scale, column, error) for column, error in columns)

    drift = trends([result.drift for result in at], [result.drift_error for result in at])
    corrector = trends(
        [result.corrector for result in at], [result.corrector_error for result in at]
    )
    diffusion = trends(
        [np.diag(result.diffusion) for result in at],
        [np.diag(result.diffusion_error) for result in at],
    )
    # The term that grows faster limits the step size.
    leading = [
        max(pair, key=lambda trend: trend.exponent)
        for pair in zip(corrector, diffusion, strict=True)
    ]
    return EffectiveScaling(
        names=at[0].names,
        dimensions=all_dimensions,
        lr=lr,
        at=at,
        drift=drift,
        corrector=corrector,
        diffusion=diffusion,
        conditions=_conditions(measurements, norms, scale, lr),
        critical=np.array([1 + trend.exponent for trend in leading]),
        critical_error=np.array([trend.exponent_error for trend in leading]),
    )


def _validate_dimensions(dimensions: Sequence[int]) -> tuple[int, ...]:
    """At least three increasing dimensions."""
    fix = "give at least three increasing whole numbers"
    values = np.atleast_1d(checks.real_array("dimensions", dimensions, fix)).tolist()
    integers = tuple(checks.integer("dimensions", value, 1) for value in values)
    if len(integers) < 3 or any(a >= b for a, b in itertools.pairwise(integers)):
        raise checks.reject("dimensions", dimensions, fix)
    return integers


def _point_at(point: Callable[[int], PyTree], dimension: int) -> PyTree:
    """The parameters at a dimension."""
    try:
        return point(dimension)
    except Exception as error:
        raise checks.reject(
            "point",
            point,
            f"calling it with dimension = {dimension} failed. {checks.reason(error)}",
        ) from error


def _conditions(
    measurements: list[Measurement],
    norms: list[tuple[np.ndarray, np.ndarray]],
    scale: np.ndarray,
    lr: float,
) -> tuple[Condition, ...]:
    """The conditions of Definition 2.1 at delta = lr/d, and the last one as printed."""
    delta = (lr / scale)[:, None]
    # (dimensions, statistics); moments have an axis of (value, error) between
    hessians, thirds = (np.array(column) for column in zip(*norms, strict=True))
    hessians = hessians * np.sqrt(delta)
    fourth = np.array([measurement.fourth for measurement in measurements])
    square = np.array([measurement.square for measurement in measurements])
    at = [measurement.dynamics for measurement in measurements]
    gradient = np.array([[result.gradient_norm_squared] for result in at])
    gradient_error = np.array([[result.gradient_norm_squared_error] for result in at])
    rows = (
        ("|hess u| delta^(1/2)", "bounded", hessians, 0 * hessians),
        ("|d^3 u| (at least)", "bounded", thirds, 0 * thirds),
        ("|grad Phi|^2", "bounded", gradient, gradient_error),
        (
            "E<grad H, grad u>^4 delta^2",
            "bounded",
            fourth[:, 0] * delta**2,
            fourth[:, 1] * delta**2,
        ),
        (
            "E<hess u, HH - V>^2 delta^3",
            "vanishes",
            square[:, 0] * delta**3,
            square[:, 1] * delta**3,
        ),
        ("the same, times delta (as printed)", "", square[:, 0] * delta, square[:, 1] * delta),
    )
    return tuple(
        _condition(quantity, needed, scale, values, errors)
        for quantity, needed, values, errors in rows
    )


def _condition(
    quantity: str, needed: str, dimensions: np.ndarray, values: np.ndarray, errors: np.ndarray
) -> Condition:
    """A condition on the largest value over the statistics."""
    worst = np.argmax(values, axis=1)
    rows = np.arange(len(values))
    trend = fit_trend(dimensions, values[rows, worst], errors[rows, worst])
    if trend.verdict == "undecided" or not needed:
        return Condition(quantity, needed, values, trend, None)
    is_zero, vanishes = trend.verdict.startswith("zero"), trend.verdict.startswith("vanishes")
    is_bounded = needed == "bounded" and trend.verdict == "bounded"
    return Condition(quantity, needed, values, trend, is_zero or vanishes or is_bounded)


def _statistics_norms(setup: Setup, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Operator norms of the second and third derivatives of the statistics at a point."""
    starts = np.random.default_rng(seed).normal(size=(RESTARTS, 2, setup.parameters))
    hessian, third = _operator_norms(setup.task.statistics, setup.point, starts)
    return np.asarray(hessian), np.asarray(third)


@partial(jax.jit, static_argnums=0)
def _operator_norms(functions: Functions, point: PyTree, starts: PyTree) -> tuple[Array, Array]:
    """Operator norms of hess u_i and of the third derivative, by power iteration.

    The third derivative uses the alternating power iteration, and the best of several starts. Both
    iterations increase, so that both results are lower bounds. For a symmetric tensor of order 3
    the iteration may stop at a local maximum.
    """
    (statistics,) = functions
    flat, unravel = ravel_pytree(point)
    count = statistics(point).shape[0]

    def normalise(vector: Float[Numeric, " parameters"]) -> tuple[Array, Array]:
        norm = jnp.linalg.norm(vector)
        return jnp.where(norm > 0, vector / jnp.where(norm > 0, norm, 1.0), vector), norm

    def norms(index: np.ndarray) -> tuple[Array, Array]:
        def u(z: Float[Array, " parameters"]) -> Float[Array, ""]:
            return jnp.asarray(statistics(unravel(z)), dtype=float)[index]

        def second(a: Float[Numeric, " parameters"]) -> Float[Array, " parameters"]:
            """hess u a."""
            return jax.jvp(jax.grad(u), (flat,), (a,))[1]

        def third(
            a: Float[Numeric, " parameters"], b: Float[Numeric, " parameters"]
        ) -> Float[Array, " parameters"]:
            """d^3 u(a, b, .)."""
            return jax.jvp(lambda z: jax.jvp(jax.grad(u), (z,), (a,))[1], (flat,), (b,))[1]

        def sweep(_: object, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            a, b, _ = state
            c, norm = normalise(third(a, b))
            return b, c, norm

        def third_norm(start: Float[Array, "2 parameters"]) -> Float[Array, ""]:
            initial = (normalise(start[0])[0], normalise(start[1])[0], 0.0)
            return jax.lax.fori_loop(0, 3 * SWEEPS, sweep, initial)[2]

        hessian_norm = jax.lax.fori_loop(
            0, ITERATIONS, lambda _, state: normalise(second(state[0])), normalise(starts[0, 0])
        )[1]
        return hessian_norm, jax.lax.map(third_norm, starts).max()

    return jax.lax.map(norms, jnp.arange(count))
