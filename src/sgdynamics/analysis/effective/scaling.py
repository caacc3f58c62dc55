"""How the effective dynamics of summary statistics scale with the dimension: localizability, and the critical step size.

At delta = lr/d the drift f does not depend on the step size, while g and Sigma are proportional to it. So if they grow like d^x at
delta = lr/d, they stay finite at delta ~ d^-s exactly if s >= 1 + x: the largest such step size is the critical scaling. Exponents are
fitted over a list of dimensions, with errors that count the draws and how well a power law fits.

Definition 2.1 asks, at delta, for

    |hess u_i|_op delta^(1/2),  |d^3 u_i|_op,  |grad Phi|,  delta^2 E <grad H, grad u_i>^4   bounded,
    delta^3 E <hess u_i, grad H grad H^T - V>^2 -> 0

The last is printed with delta in place of delta^3. One step adds (delta^2/2) <hess u_i, grad H grad H^T - V>, of mean zero, to u_i; over
1/delta steps that makes a martingale of variance (delta^3/4) E <...>^2, so delta^3 is what is needed for it to vanish. As printed the
condition fails in the paper's own examples at delta = lr/d: for the spiked matrix and r2, E <...>^2 is 512 |x|^4 d to leading order.
The quantity as printed is reported too.

Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition 2.1, Theorem 2.2 and section 2.1.
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
from scipy.optimize import curve_fit

from sgdynamics.analysis.effective.dynamics import (
    GROUPS,
    MOST_SAMPLES,
    EffectiveDynamics,
    Functions,
    checked_sizes,
    checked_task,
    measure,
    table,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter

SQUARINGS, SWEEPS, RESTARTS = (
    60,
    30,
    4,
)  # power iterations for the norms of second and third derivatives
SMALL_EXPONENT = (
    0.1  # growth slower than d^0.1 is not told from none over the dimensions one can run
)
UNDECIDED = 0.2  # standard error of an exponent from which on no verdict is given
SEEN = 4.0  # standard errors from which on a value counts as not zero
FIT = 1e-6  # relative error that the fit assumes of values known exactly


@dataclass(frozen=True)
class Trend:
    """A quantity over the dimensions, the exponent x of its fit A d^x with a standard error, and what that says in words."""

    values: np.ndarray
    errors: np.ndarray
    exponent: float
    exponent_error: float
    verdict: str


@dataclass(frozen=True)
class Condition:
    """One condition of Definition 2.1: the quantity, the trend of its largest value, what is needed, and whether that is seen.

    `each` has the values, dimensions x statistics (one column where the condition is not about a statistic). `holds` is None
    where the exponent is too uncertain, and where nothing is `needed`.
    """

    quantity: str
    needed: str
    each: np.ndarray
    trend: Trend
    holds: bool | None


@dataclass(frozen=True)
class EffectiveScaling:
    """Effective dynamics over a list of dimensions: exponents of f, g and Sigma_ii, conditions of Definition 2.1, the critical step size.

    Attributes
    ----------
    names : tuple of str
        Of the statistics.
    dimensions : tuple of int
        Where they were taken.
    lr : float
        The step size is lr/d.
    at : tuple of EffectiveDynamics
        One a dimension.
    drift : tuple of Trend
        How f of each statistic grows with d.
    corrector : tuple of Trend
        How g grows.
    diffusion : tuple of Trend
        How Sigma_ii grows.
    conditions : tuple of Condition
        Of Definition 2.1, each with its trend and whether it is seen to hold.
    critical : ndarray
        For each statistic the s such that g and Sigma_ii stay finite for delta ~ d^-s and no larger.
    critical_error : ndarray
        Standard errors of these.

    Notes
    -----
    The theorem asks for the conditions uniformly over compact sets of the statistics.

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
        """Whether every condition is seen to hold at these points; None: undecided."""
        held = [condition.holds for condition in self.conditions if condition.needed]
        return False if False in held else None if None in held else True

    @property
    def critical_exponent(self) -> float:
        """The largest of ``critical``; -inf: neither g nor Sigma bounds the step size."""
        return float(self.critical.max())

    @property
    def critical_exponent_error(self) -> float:
        """Its standard error."""
        return float(self.critical_error[int(np.argmax(self.critical))])

    @property
    def words(self) -> str:
        """The critical scaling of the step size, in a sentence."""
        s, error, worst = (
            self.critical_exponent,
            self.critical_exponent_error,
            int(np.argmax(self.critical)),
        )
        if s == -math.inf:
            return "g and Sigma are zero here: they do not bound the step size"
        part = "corrector" if self.corrector[worst].exponent + 1 == s else "diffusion"
        told = f"g and Sigma stay finite for delta ~ d^-s with s >= {s:.2f} ± {error:.2g} (set by the {part} of {self.names[worst]})"
        if s > 1 + max(SMALL_EXPONENT, 3 * error):
            return f"{told}: delta = lr/d is too large, they diverge"
        if s < 1 - max(SMALL_EXPONENT, 3 * error):
            return f"{told}: delta = lr/d is sub-critical, in the limit u follows the population gradient flow"
        return f"{told}: delta = lr/d is the critical scaling"

    def __str__(self) -> str:
        low, high = self.at[0], self.at[-1]
        columns = (f"d = {low.dimension}", f"d = {high.dimension}", "exponent", "verdict")
        rows: list[tuple[str, ...]] = [("quantity", *columns, "needed", "holds")]
        for symbol, trends in (("f", self.drift), ("g", self.corrector), ("Sigma", self.diffusion)):
            rows += [
                (f"{symbol}({name})", *_row(trend), "", "")
                for name, trend in zip(self.names, trends, strict=True)
            ]
        held = {True: "yes", False: "no", None: "?"}
        rows += [
            (c.quantity, *_row(c.trend), c.needed, held[c.holds] if c.needed else "")
            for c in self.conditions
        ]
        title = f"effective dynamics at delta = lr/d, lr = {self.lr:g}, d = {', '.join(map(str, self.dimensions))}"
        return f"{title}\n{table(rows)}\nlocalizable at these points: {held[self.localizable]}\n{self.words}"


def _row(trend: Trend) -> tuple[str, ...]:
    exponent = (
        f"{trend.exponent:.2f} ± {trend.exponent_error:.2g}"
        if math.isfinite(trend.exponent)
        else ""
    )
    return f"{trend.values[0]:.4g}", f"{trend.values[-1]:.4g}", exponent, trend.verdict


@partial(jax.jit, static_argnums=0)
def _norms(functions: Functions, point: PyTree, starts: PyTree) -> tuple[Any, Any]:
    """Operator norms of hess u_i (power iteration) and of the third derivative (alternating power iteration, the best of a few starts).

    Both iterations increase, so both are lower bounds; for a symmetric tensor of order 3 the iteration may stop at a local maximum.
    """
    (statistics,) = functions
    flat, back = ravel_pytree(point)
    count = statistics(point).shape[0]

    def unit(vector: Float[Numeric, " parameters"]) -> Any:
        norm = jnp.linalg.norm(vector)
        return jnp.where(norm > 0, vector / jnp.where(norm > 0, norm, 1.0), vector), norm

    def one(index: np.ndarray) -> Any:
        def u(z: Float[Array, " parameters"]) -> Any:
            return jnp.asarray(statistics(back(z)), dtype=float)[index]

        def second(a: Float[Numeric, " parameters"]) -> Any:
            return jax.jvp(jax.grad(u), (flat,), (a,))[1]

        def third(a: Float[Numeric, " parameters"], b: Float[Numeric, " parameters"]) -> Any:
            return jax.jvp(lambda z: jax.jvp(jax.grad(u), (z,), (a,))[1], (flat,), (b,))[1]

        def sweep(_: object, state: PyTree) -> Any:
            a, b, _ = state
            c, norm = unit(third(a, b))
            return b, c, norm

        begin = unit(starts[0, 0])
        matrix = jax.lax.fori_loop(0, SQUARINGS, lambda _, state: unit(second(state[0])), begin)[1]
        tensor = jax.lax.map(
            lambda s: jax.lax.fori_loop(0, 3 * SWEEPS, sweep, (unit(s[0])[0], unit(s[1])[0], 0.0))[
                2
            ],
            starts,
        )
        return matrix, tensor.max()

    return jax.lax.map(one, jnp.arange(count))


def _fit(dimensions: np.ndarray, values: np.ndarray, errors: np.ndarray) -> Trend:
    """A d^x by weighted least squares; its error counts the values' errors and, where it is larger, the misfit of a power law."""
    if np.all(np.abs(values) <= SEEN * errors):
        verdict = "zero" if np.all(values == 0) else "zero within its error"
        return Trend(values, errors, -math.inf, 0.0, verdict)
    seen = np.abs(values) > SEEN * errors
    log = np.log(dimensions / dimensions[seen][0])
    scale = values[seen][0]
    scaled, spread = values / scale, np.hypot(errors, FIT * np.abs(values) + 1e-300) / abs(scale)
    usable = seen & (scaled > 0)
    # where only one value is seen, start from a slope that hides the others
    guess = np.polyfit(log[usable], np.log(scaled[usable]), 1)[0] if usable.sum() > 1 else 0.0
    try:
        (size, exponent), covariance = curve_fit(
            lambda t, a, x: a * np.exp(x * t),
            log,
            scaled,
            (1.0, guess),
            spread,
            absolute_sigma=True,
        )
        misfit = np.sum(((scaled - size * np.exp(exponent * log)) / spread) ** 2) / (
            len(values) - 2
        )
        error = math.sqrt(covariance[1, 1] * max(1.0, misfit))
    except RuntimeError:  # no fit found
        exponent, error = guess, math.inf
    if not error < UNDECIDED:
        verdict = "undecided"
    elif abs(exponent) <= max(SMALL_EXPONENT, 3 * error):
        verdict = "bounded"
    else:
        verdict = (
            f"grows like d^{exponent:.2f}" if exponent > 0 else f"vanishes like d^{exponent:.2f}"
        )
    return Trend(values, errors, float(exponent), float(error), verdict)


def _point_at(point: PyTree, dimension: int) -> Any:
    try:
        return point(dimension)
    except Exception as error:
        raise checks.reject(
            "point",
            point,
            f"calling it on dimension = {dimension} failed with: {checks.reason(error)}",
        ) from error


def _condition(
    quantity: str, needed: str, dimensions: np.ndarray, each: np.ndarray, errors: np.ndarray
) -> Condition:
    worst = np.argmax(each, axis=1)
    rows = np.arange(len(each))
    trend = _fit(dimensions, each[rows, worst], errors[rows, worst])
    zero, small = trend.verdict.startswith("zero"), trend.verdict.startswith("vanishes")
    holds = (
        None
        if trend.verdict == "undecided" or not needed
        else zero or small or (needed == "bounded" and trend.verdict == "bounded")
    )
    return Condition(quantity, needed, each, trend, holds)


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
    """How f, g, Sigma and the quantities of Definition 2.1 grow with the dimension at delta = lr/d, and the critical step size.

    ::

        g ~ d^x and Sigma_ii ~ d^y at delta = lr/d:     finite for delta ~ d^-s exactly if s >= 1 + max(x, y)

    Parameters
    ----------
    loss : callable
        ``loss(x, y)``, the loss of one draw, a JAX function.
    sample : callable
        ``sample(key, dimension)`` makes a draw.
    statistics : callable
        ``statistics(x)``, a vector of shape (k,).
    point : callable
        ``point(dimension)``, the parameters x at each dimension.
    lr : float
        The step size is delta = lr/d.
    dimensions : sequence of int
        Three at least.
    samples : int, default 1024
        Draws at each dimension.
    seed : int, default 0
        Of the random numbers.
    antithetic : callable, optional
        As in ``effective_dynamics``.
    controls : callable, optional
        As in ``effective_dynamics``.
    names : sequence of str, optional
        What the statistics are called.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    EffectiveScaling
        Print it for a table.

    Raises
    ------
    ValueError
        If there are fewer than three dimensions, or a function does not fit.

    Notes
    -----
    Off the diagonal, Sigma is bounded by its diagonal. The norms of second and third derivatives are found by power iteration, so they are
    lower bounds (the third may be a local maximum, the best of a few starts).

    Assumes power laws over the dimensions given, and points that stand for all those with such statistics: the theorem asks for bounds that
    hold uniformly over compact sets of the statistics, and a point shows only itself. Verdicts are evidence, not proofs.

    Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition 2.1 (its last condition as the proof
    needs it, see the module) and section 2.1.

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
    task = checked_task(loss, sample, statistics, antithetic, controls)
    if not callable(point):
        raise checks.reject("point", point, "give a function dimension -> parameters")
    lr = checks.number("lr", lr, above=0.0)
    samples, seed = (
        checks.integer("samples", samples, GROUPS, MOST_SAMPLES),
        checks.integer("seed", seed, 0),
    )
    progress = checks.flag("progress", progress, optional=True)
    listed = np.atleast_1d(
        checks.real_array("dimensions", dimensions, "give at least three increasing whole numbers")
    ).tolist()
    every = tuple(checks.integer("dimensions", d, 1) for d in listed)
    if len(every) < 3 or any(a >= b for a, b in itertools.pairwise(every)):
        raise checks.reject(
            "dimensions", dimensions, "give at least three increasing whole numbers"
        )
    all_sizes = [checked_sizes(task, _point_at(point, d), d, samples, names) for d in every]
    counts = [sizes.statistics for sizes in all_sizes]
    if len(set(counts)) > 1:
        raise ValueError(
            f"statistics has {counts} entries at dimensions {list(every)}: give the same number at each"
        )
    found, second, third = [], [], []
    for d, sizes in zip(every, all_sizes, strict=True):
        with meter(f"effective dynamics, d = {d}", 2.0 * samples, progress) as shown:
            # each dimension has draws of its own, so that the errors of the fit are independent
            found.append(measure(task, sizes, lr, d, samples, (seed, d), shown))
        norms = _norms(
            task.statistics,
            sizes.point,
            np.random.default_rng(seed).normal(size=(RESTARTS, 2, sizes.parameters)),
        )
        second.append(np.asarray(norms[0]))
        third.append(np.asarray(norms[1]))
    at = tuple(part.dynamics for part in found)
    scale = np.array(every, dtype=float)
    delta = (lr / scale)[:, None]

    def trends(values: list[np.ndarray], errors: list[np.ndarray]) -> tuple[Trend, ...]:
        return tuple(
            _fit(scale, one, error)
            for one, error in zip(np.array(values).T, np.array(errors).T, strict=True)
        )

    drift = trends([one.drift for one in at], [one.drift_error for one in at])
    corrector = trends([one.corrector for one in at], [one.corrector_error for one in at])
    diffusion = trends(
        [np.diag(one.diffusion) for one in at], [np.diag(one.diffusion_error) for one in at]
    )
    fourth, square = (
        np.array([getattr(part, name) for part in found]) for name in ("fourth", "square")
    )
    norm = np.array([[one.gradient_norm_squared, one.gradient_norm_squared_error] for one in at])
    bends, twists = np.array(second) * np.sqrt(delta), np.array(third)
    conditions = (
        _condition("|hess u| delta^(1/2)", "bounded", scale, bends, 0 * bends),
        _condition("|d^3 u| (at least)", "bounded", scale, twists, 0 * twists),
        _condition("|grad Phi|^2", "bounded", scale, norm[:, :1], norm[:, 1:]),
        _condition(
            "E<grad H, grad u>^4 delta^2",
            "bounded",
            scale,
            fourth[:, 0] * delta**2,
            fourth[:, 1] * delta**2,
        ),
        _condition(
            "E<hess u, HH - V>^2 delta^3",
            "vanishes",
            scale,
            square[:, 0] * delta**3,
            square[:, 1] * delta**3,
        ),
        _condition(
            "the same, times delta (as printed)",
            "",
            scale,
            square[:, 0] * delta,
            square[:, 1] * delta,
        ),
    )
    leading = [
        max(pair, key=lambda trend: trend.exponent)
        for pair in zip(corrector, diffusion, strict=True)
    ]
    critical = np.array([1 + trend.exponent for trend in leading])
    errors = np.array([trend.exponent_error for trend in leading])
    return EffectiveScaling(
        at[0].names, every, lr, at, drift, corrector, diffusion, conditions, critical, errors
    )
