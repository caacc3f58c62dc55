"""Effective dynamics of summary statistics, for any loss, data and statistics: the three terms of the limit theorem, measured at a point.

For online SGD x <- x - delta grad L(x, Y) with delta = lr/dimension, Phi = E L, H = L - Phi, V = E[grad H grad H^T] and J = du/dx, the
statistics u(x) follow du = (-f + g) dt + Sigma^(1/2) dB in the time t = delta steps, where

    f_i = <grad Phi, grad u_i>,     g_i = (delta/2) <V, hess u_i>,     Sigma = delta J V J^T

V (a matrix of all the parameters) is never formed. With h = grad L - (mean of grad L over all draws), one nested directional derivative of
u along h gives J h and h^T (hess u_i) h for all statistics, so a draw costs a few evaluations of the loss and of the statistics. The draws
are gone through twice: once for the mean gradient, once for what is centred at it. Centring costs 1/draws of every second
moment; what is given back for it makes g and Sigma unbiased at any number of draws (U-statistics). Standard errors are those of the means
of the influence functions, by draw or by antithetic pair, so that what a pair or a control variate gains is seen in them.

Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Definition 2.1, Theorem 2.2, (2.1)-(2.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, PyTree, RandomKey, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Meter, meter

GENERATOR = "threefry2x32"
GROUPS = 16  # independent groups of draws, for the squared norm of the mean gradient; also the fewest draws
MOST_SAMPLES = 10**12  # each is a gradient: more take years
MEMORY = 1 << 27  # bytes that one chunk of draws may take, as far as their gradients and data go
KEEP = 1 << 28  # bytes of gradients that are kept rather than computed again
LARGEST_CHUNK = 4096
SMALL = 64  # numbers in a draw
SLICE = 1 << 10  # units reduced at a time, so that they stay in the cache
ROUNDING = 1e-12  # of the root mean square of what is averaged: no error is stated below it
IMPOSSIBLE = (
    10.0  # standard errors: a mean that is known to be zero and is this far from it is not zero
)


@dataclass(frozen=True)
class EffectiveDynamics:
    """Drift f, corrector g and diffusion Sigma of summary statistics at one point and step size, each with its standard error.

    Attributes
    ----------
    names : tuple of str
        Of the k statistics.
    statistics : ndarray
        Their values at the point, (k,).
    drift : ndarray
        f, (k,).
    drift_error : ndarray
        Its standard error.
    corrector : ndarray
        g, (k,).
    corrector_error : ndarray
        Its standard error.
    diffusion : ndarray
        Sigma, (k, k).
    diffusion_error : ndarray
        Its standard error.
    mean_increment : ndarray
        h = -f + g, the drift of the limit, (k,).
    mean_increment_error : ndarray
        Its standard error.
    gradient_norm_squared : float
        ``|grad Phi|^2``, unbiased (so it may come out below zero where it is zero).
    gradient_norm_squared_error : float
        Its standard error.
    lr : float
        The step size is lr/dimension.
    dimension : int
        The dimension.
    draws : int
        How many gradients were taken, twice the samples where they are antithetic.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> def sample(key, d):
    ...     return jax.random.normal(key, (d,))
    >>> def loss(x, noise):
    ...     return jnp.sum((noise - x) ** 2) / 2
    >>> def statistics(x):
    ...     return jnp.stack([x[0]])
    >>> found = sgd.effective_dynamics(loss, sample, statistics, point=jnp.ones(8), lr=0.5, dimension=8, antithetic=jnp.negative)
    >>> found.draws, found.drift.round(6).tolist()
    (8192, [1.0])
    """

    names: tuple[str, ...]
    statistics: np.ndarray
    drift: np.ndarray
    drift_error: np.ndarray
    corrector: np.ndarray
    corrector_error: np.ndarray
    diffusion: np.ndarray
    diffusion_error: np.ndarray
    mean_increment: np.ndarray
    mean_increment_error: np.ndarray
    gradient_norm_squared: float
    gradient_norm_squared_error: float
    lr: float
    dimension: int
    draws: int

    def __str__(self) -> str:
        diagonal, error = np.diag(self.diffusion), np.diag(self.diffusion_error)
        rows: list[tuple[str, ...]] = [
            ("statistic", "value", "drift f", "corrector g", "-f + g", "diffusion Sigma_ii")
        ]
        for i, name in enumerate(self.names):
            pairs = (
                (self.drift, self.drift_error),
                (self.corrector, self.corrector_error),
                (self.mean_increment, self.mean_increment_error),
            )
            shown = [
                f"{value[i]:.4g} ± {spread[i]:.1g}" for value, spread in (*pairs, (diagonal, error))
            ]
            rows.append((name, f"{self.statistics[i]:.4g}", *shown))
        return (
            f"effective dynamics at lr = {self.lr:g}, d = {self.dimension}, {self.draws} draws\n"
            + table(rows)
        )


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


class Functions(tuple[Any, ...]):
    """A user's functions, compared by identity: the same functions at another point, lr or seed are the same program."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Functions)
            and len(self) == len(other)
            and all(a is b for a, b in zip(self, other, strict=True))
        )


class Task(NamedTuple):
    sample: Functions  # one
    data: Functions  # loss, antithetic (or None), controls (or None)
    statistics: Functions  # one


class Sizes(NamedTuple):
    point: Any  # the user's tree, with float64 NumPy leaves
    parameters: int
    statistics: int
    chunk: int
    keep: bool  # whether all gradients fit in memory, so that they are computed once
    names: tuple[str, ...]


def _keys(entropy: Sequence[int], first: int, chunk: int) -> np.ndarray:
    """Keys of the units first, first + 1, ...: distinct keys of a counter-based generator are independent streams.

    Not by fold_in: that would be compiled again with every sampler, for half of its time.
    """
    start = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        return (
            (start + np.arange(first, first + chunk, dtype=np.uint64))
            .view(np.uint32)
            .reshape(chunk, 2)
        )


@partial(jax.jit, static_argnums=(0, 1))
def _draws(functions: Functions, dimension: int, keys: RandomKeys) -> Any:
    """A chunk of draws. A program of its own: random numbers take longest to compile, and other losses of the same data share it."""
    (sample,) = functions

    def draw(key: RandomKey) -> Any:
        return sample(jax.random.wrap_key_data(key, impl=GENERATOR), dimension)

    # random arrays under vmap take twice as long to compile and are no faster, unless they are so small that the loop itself counts
    small = _numbers(jax.eval_shape(draw, keys[0])) < SMALL
    return jax.vmap(draw)(keys) if small else jax.lax.map(draw, keys)


@partial(jax.jit, static_argnums=0)
def _gradients(functions: Functions, point: PyTree, data: PyTree) -> tuple[Any, Any]:
    """The gradients of a chunk of units (draws or pairs), (units, draws, parameters), the mean of a pair last; their controls."""
    loss, antithetic, controls = functions

    def gradient(y: PyTree) -> Any:
        return ravel_pytree(jax.grad(lambda x: jnp.asarray(loss(x, y), dtype=float))(point))[0]

    def unit(y: PyTree) -> Any:
        draws = jax.tree.map(lambda leaf: leaf[None], y)
        if antithetic is not None:
            draws = jax.tree.map(lambda *leaves: jnp.stack(leaves), y, antithetic(y))
        gradients = jax.vmap(gradient)(draws)
        if antithetic is not None:
            gradients = jnp.concatenate([gradients, gradients.mean(axis=0, keepdims=True)])
        return gradients, jnp.zeros(0) if controls is None else jax.vmap(controls)(draws).astype(
            float
        ).mean(axis=0)

    return jax.vmap(unit)(data)


@partial(jax.jit, static_argnums=0)
def _along(
    functions: Functions,
    point: PyTree,
    centre: Float[Numeric, " parameters"],
    gradients: Float[Numeric, "..."],
) -> tuple[Any, ...]:
    """J h and h^T (hess u) h for all gradients of a chunk; u, and J applied to the mean gradient."""
    (statistics,) = functions
    flat, back = ravel_pytree(point)

    def u(z: Float[Array, " parameters"]) -> Any:
        return jnp.asarray(statistics(back(z)), dtype=float)

    def slope(z: Float[Array, " parameters"], direction: Float[Numeric, " parameters"]) -> Any:
        return jax.jvp(u, (z,), (direction,))[1]

    def both(direction: Float[Numeric, " parameters"]) -> Any:
        return jax.jvp(lambda z: slope(z, direction), (flat,), (direction,))

    slopes, bends = jax.vmap(both)((gradients - centre).reshape(-1, flat.size))
    shape = (*gradients.shape[:2], -1)
    return slopes.reshape(shape), bends.reshape(shape), u(flat), slope(flat, centre)


def _numbers(tree: PyTree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _shapes(argument: str, call: str, function: Callable[..., Any], *args: PyTree) -> Any:
    """Shapes of what a user's function returns, by tracing it: nothing is compiled or run."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        told = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(
            f"{argument}, called as {call}, failed with {type(error).__name__}: {told}; give a JAX function that can be called so"
        ) from error


def checked_task(
    loss: Function,
    sample: Function,
    statistics: Function | Mapping[str, Function],
    antithetic: Function | None,
    controls: Function | None,
) -> Task:
    named = {
        "loss": (loss, "loss(x, y)"),
        "sample": (sample, "sample(key, dimension)"),
        "statistics": (statistics, "statistics(x)"),
    }
    optional = {"antithetic": (antithetic, "antithetic(y)"), "controls": (controls, "controls(y)")}
    for argument, (value, call) in {**named, **optional}.items():
        if not callable(value) and not (argument in optional and value is None):
            raise checks.reject(argument, value, f"give a function, {call}")
    return Task(
        Functions((sample,)), Functions((loss, antithetic, controls)), Functions((statistics,))
    )


def checked_sizes(
    task: Task, point: PyTree, dimension: int, samples: int, names: Sequence[str] | None
) -> Sizes:
    """Everything that can be wrong with the user's functions and point, found by tracing."""
    if callable(point):
        raise checks.reject(
            "point",
            point,
            "give the parameters themselves: an array, or a tree (dict, list, ...) of arrays",
        )
    if not jax.tree.leaves(point):
        raise checks.reject(
            "point", point, "give the parameters: an array, or a tree (dict, list, ...) of arrays"
        )
    for leaf in jax.tree.leaves(point):
        try:
            array = np.asarray(leaf)
        except (TypeError, ValueError):
            raise checks.reject(
                "point",
                leaf,
                "give the parameters: an array, or a tree (dict, list, ...) of arrays",
            ) from None
        if array.dtype.kind not in "fiu" and array.dtype != jnp.bfloat16:
            raise checks.reject(
                "point", leaf, f"its arrays must hold real numbers (this one holds {array.dtype})"
            )
        if not np.all(np.isfinite(array.astype(np.float64))):
            raise checks.reject("point", leaf, "its arrays must be finite")
    point = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), point)
    (sample,), (loss, antithetic, controls), (statistics,) = task
    y = _shapes(
        "sample",
        "sample(key, dimension)",
        lambda key: sample(key, dimension),
        jax.random.key(0, impl=GENERATOR),
    )
    value = _shapes("loss", "loss(point, sample(key, dimension))", loss, point, y)
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"loss returns {value}: give one real number per draw, loss(x, y) of shape ()"
        )
    u = _shapes("statistics", "statistics(point)", statistics, point)
    if (
        len(getattr(u, "shape", ())) != 1
        or u.shape[0] < 1
        or not jnp.issubdtype(u.dtype, jnp.floating)
    ):
        raise ValueError(
            f"statistics returns {u}: give a vector of real numbers, such as jnp.stack([...]), of shape (k,)"
        )
    if antithetic is not None:
        other = _shapes("antithetic", "antithetic(sample(key, dimension))", antithetic, y)
        if jax.tree.structure(other) != jax.tree.structure(y) or [
            a.shape for a in jax.tree.leaves(other)
        ] != [a.shape for a in jax.tree.leaves(y)]:
            raise ValueError(
                f"antithetic returns {other} for a draw {y}: give a draw of the same kind and shapes"
            )
    if controls is not None:
        control = _shapes("controls", "controls(sample(key, dimension))", controls, y)
        if len(getattr(control, "shape", ())) != 1:
            raise ValueError(
                f"controls returns {control}: give a vector of mean zero, of shape (q,)"
            )
        if samples < 10 * control.shape[0]:
            raise checks.reject(
                "samples",
                samples,
                f"give ten for each of the {control.shape[0]} controls, {10 * control.shape[0]} or more",
            )
    if names is None:
        names = [f"u{i + 1}" for i in range(u.shape[0])]
    elif (
        not isinstance(names, (list, tuple))
        or len(names) != u.shape[0]
        or not all(isinstance(name, str) for name in names)
    ):
        raise checks.reject("names", names, f"give {u.shape[0]} names, one for each statistic")
    parameters, draws = _numbers(point), 1 if antithetic is None else 2
    fits = max(
        1, min(LARGEST_CHUNK, MEMORY // (8 * draws * (4 * parameters + 2 * _numbers(y))), samples)
    )
    chunk = math.ceil(samples / math.ceil(samples / fits))
    return Sizes(
        point,
        parameters,
        u.shape[0],
        chunk,
        8 * draws * parameters * samples <= KEEP,
        tuple(map(str, names)),
    )


def _average(
    part: Callable[[slice], np.ndarray], controls: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over units of part(slice), less its regression on the controls, and the jackknife's standard error of that.

    The estimate is linear in the values: weights w, and leaving unit i out moves it by w_i residual_i/(1 - leverage_i).
    """
    total, count = controls.shape
    slices = [slice(a, min(a + SLICE, total)) for a in range(0, total, SLICE)]
    mean_control = controls.mean(axis=0)
    centred = controls - mean_control
    inverse = np.linalg.pinv(centred.T @ centred, hermitian=True) if count else np.zeros((0, 0))
    weights = 1 / total - centred @ inverse @ mean_control
    leverage = 1 / total + np.einsum("nq,nq->n", centred @ inverse, centred)
    with_one = np.concatenate([np.ones((total, 1)), centred], axis=1)
    sums = np.sum([with_one[s].T @ part(s) for s in slices], axis=0)
    mean, slope = sums[0] / total, inverse @ sums[1:]
    moves, fit = (weights / (1 - leverage)) ** 2, np.concatenate([mean[None], slope])
    spread = np.sum([moves[s] @ (part(s) - with_one[s] @ fit) ** 2 for s in slices], axis=0)
    return mean - mean_control @ slope, np.sqrt(spread)


def _squared_norm(groups: np.ndarray) -> tuple[float, float]:
    """|mu|^2 from independent estimates of mu, without bias: the mean product of two different ones; and its standard error.

    The products split as theta + a_g + a_h + e_gh, and the error is sqrt(4 Var(a)/K + 2 Var(e)/(K (K - 1))): the second part is what is
    left where mu is small against its noise.
    """
    K = len(groups)
    products = groups @ groups.T
    np.fill_diagonal(products, 0.0)
    theta = products.sum() / (K * (K - 1))
    rows = (products.sum(axis=1) - (K - 1) * theta) / (K - 2)
    rest = products - theta - rows[:, None] - rows
    np.fill_diagonal(rest, 0.0)
    pairs = (rest**2).sum() / (K * (K - 3))
    singles = max(rows.var(ddof=1) - pairs / (K - 2), 0.0)
    return float(theta), math.sqrt(4 * singles / K + 2 * pairs / (K * (K - 1)))


class Found(NamedTuple):
    dynamics: EffectiveDynamics
    fourth: tuple[np.ndarray, np.ndarray]  # E <grad H, grad u_i>^4, and its error
    square: tuple[np.ndarray, np.ndarray]  # E <hess u_i, grad H grad H^T - V>^2, and its error


def measure(
    task: Task,
    sizes: Sizes,
    lr: float,
    dimension: int,
    samples: int,
    entropy: Sequence[int],
    shown: Meter,
) -> Found:
    """Both passes over the draws, and what comes of them."""
    groups, control, kept = _gradient_sums(task, sizes, dimension, samples, entropy, shown)
    centre = groups.sum(axis=0) / samples
    slope, bend, value, mean = _increments(
        task, sizes, centre, kept, dimension, samples, entropy, shown
    )
    draws = 1 if task.data[1] is None else 2
    pair, pair_bend = slope[:, -1], bend[:, -1]
    slope, bend = slope[:, :draws], bend[:, :draws]
    _check_means(slope, bend, control)
    delta, both = lr / dimension, bend.mean(axis=1)
    # centring at the mean of the draws takes Var(mean of a unit)/samples off both second moments
    given_back = pair_bend.sum(axis=0) / (samples * (samples - 1))
    drift, drift_error = _average(lambda s: pair[s], control)
    corrector, corrector_error = _average(lambda s: both[s], control)
    increment, increment_error = _average(lambda s: delta / 2 * both[s] - pair[s], control)
    diffusion, diffusion_error = _diffusion(slope, pair, control, delta)
    # errors are never stated below what rounding does
    size = np.sqrt(mean**2 + (slope**2).mean(axis=(0, 1)))
    bent = delta / 2 * np.abs(bend).mean(axis=(0, 1))
    norm, norm_error = _squared_norm(
        groups / np.bincount(np.arange(samples) * GROUPS // samples)[:, None]
    )
    dynamics = EffectiveDynamics(
        names=sizes.names,
        statistics=value,
        drift=mean + drift,
        drift_error=drift_error + ROUNDING * size,
        corrector=delta / 2 * (corrector + given_back),
        corrector_error=delta / 2 * corrector_error + ROUNDING * bent,
        diffusion=diffusion,
        diffusion_error=diffusion_error + ROUNDING * delta * np.outer(size, size),
        mean_increment=increment - mean + delta / 2 * given_back,
        mean_increment_error=increment_error + ROUNDING * (size + bent),
        gradient_norm_squared=norm,
        gradient_norm_squared_error=norm_error + ROUNDING * float(np.sum(centre**2)),
        lr=lr,
        dimension=dimension,
        draws=draws * samples,
    )
    none = np.zeros((samples, 0))
    square = _average(lambda s: ((bend[s] - both.mean(axis=0)) ** 2).mean(axis=1), none)
    return Found(dynamics, _average(lambda s: (slope[s] ** 4).mean(axis=1), none), square)


def _gradient_sums(
    task: Task, sizes: Sizes, dimension: int, samples: int, entropy: Sequence[int], shown: Meter
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """The first pass: sums of gradients in groups (GROUPS, parameters), the controls (samples, ...), the gradients where there is room."""
    groups, control, kept = np.zeros((GROUPS, sizes.parameters)), [], []
    for first in range(0, samples, sizes.chunk):
        gradients, found = _gradients(
            task.data,
            sizes.point,
            _draws(task.sample, dimension, _keys(entropy, first, sizes.chunk)),
        )
        units = np.asarray(gradients)[: samples - first, -1]
        broken = np.sum(~np.isfinite(units).all(axis=1))
        if broken:
            raise ValueError(
                f"point: the gradient of loss is not finite for {broken} of the draws {first} to {first + len(units) - 1}; "
                "give a point and a loss with finite gradients (sqrt and log have none at 0)"
            )
        group = (first + np.arange(len(units))) * GROUPS // samples
        groups += (group == np.arange(GROUPS)[:, None]).astype(float) @ units
        control.append(np.asarray(found)[: len(units)])
        kept.append(gradients if sizes.keep else None)
        shown.advance(sizes.chunk)
    return groups, np.concatenate(control), kept


def _increments(
    task: Task,
    sizes: Sizes,
    centre: np.ndarray,
    kept: list[Any],
    dimension: int,
    samples: int,
    entropy: Sequence[int],
    shown: Meter,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The second pass: first and second derivatives of the statistics along each centred gradient (samples, draws, statistics), the
    statistics and their derivative along the centre."""
    slopes, bends = [], []
    value = mean = np.zeros(0)
    for first, gradients in zip(range(0, samples, sizes.chunk), kept, strict=True):
        if gradients is None:
            gradients, _ = _gradients(
                task.data,
                sizes.point,
                _draws(task.sample, dimension, _keys(entropy, first, sizes.chunk)),
            )
        slope, bend, value, mean = (
            np.asarray(part) for part in _along(task.statistics, sizes.point, centre, gradients)
        )
        slopes.append(slope[: samples - first])
        bends.append(bend[: samples - first])
        shown.advance(sizes.chunk)
    slope, bend = np.concatenate(slopes), np.concatenate(bends)
    if not (
        np.all(np.isfinite(value)) and np.all(np.isfinite(slope)) and np.all(np.isfinite(bend))
    ):
        wrong = ~(
            np.isfinite(value)
            & np.isfinite(slope).all(axis=(0, 1))
            & np.isfinite(bend).all(axis=(0, 1))
        )
        told = ", ".join(np.array(sizes.names)[wrong])
        raise ValueError(
            f"statistics: {told} or its first two derivatives are not finite at point; give a smooth statistic there"
        )
    return slope, bend, value, mean


def _diffusion(
    slope: np.ndarray, pair: np.ndarray, control: np.ndarray, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """delta E[(J h)(J h)^T] of the centred gradients h (statistics, statistics), and its error."""
    samples, draws, statistics = slope.shape
    upper = np.triu_indices(statistics)

    def outer(s: slice) -> np.ndarray:
        """The upper triangle of (J h)(J h)^T, row by row, averaged over a unit's draws."""
        a = slope[s]
        return (
            np.concatenate(
                [np.einsum("nd,ndj->nj", a[..., i], a[..., i:]) for i in range(statistics)], axis=1
            )
            / draws
        )

    products, products_error = _average(outer, control)
    products += (pair.T @ pair)[upper] / (samples * (samples - 1))
    diffusion, error = np.zeros((2, statistics, statistics))
    diffusion[upper], error[upper] = delta * products, delta * products_error
    diffusion.T[upper], error.T[upper] = diffusion[upper], error[upper]
    return diffusion, error


def _check_means(slope: np.ndarray, bend: np.ndarray, control: np.ndarray) -> None:
    """Refuse antithetic draws that have another law, and controls whose mean is not zero, where the draws show it."""

    def far(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) + ROUNDING * scale
        return np.abs(values.mean(axis=0)) > IMPOSSIBLE * error

    if slope.shape[1] == 2:
        for values in (slope, slope**2, bend):
            if np.any(far(values[:, 0] - values[:, 1], np.abs(values).max(axis=(0, 1)))):
                raise ValueError(
                    "antithetic: the draws it returns do not have the law of sample; give y -> y' that keeps it (noise negated)"
                )
    wrong = np.flatnonzero(far(control, np.abs(control).max(axis=0, initial=0.0)))
    if len(wrong):
        raise ValueError(
            f"controls: entry {wrong[0]} has mean {control[:, wrong[0]].mean():.3g} over the draws; give functions of mean zero"
        )


@float64
def effective_dynamics(
    loss: Callable[[Any, Any], Any],
    sample: Callable[[Any, int], Any],
    statistics: Callable[[Any], Any],
    *,
    point: PyTree,
    lr: float,
    dimension: int,
    samples: int = 4096,
    seed: int = 0,
    antithetic: Callable[[Any], Any] | None = None,
    controls: Callable[[Any], Any] | None = None,
    names: Sequence[str] | None = None,
    progress: bool | None = None,
) -> EffectiveDynamics:
    """Drift, corrector and diffusion matrix of summary statistics u of one's own problem, at one point, by sampling.

    ::

        f_i = <grad Phi, grad u_i>,     g_i = (delta/2) <V, hess u_i>,     Sigma = delta J V J^T,     delta = lr/dimension

    with Phi = E L and V the covariance of grad L: the terms of du = (-f + g) dt + Sigma^(1/2) dB, t = delta steps.

    Parameters
    ----------
    loss : callable
        ``loss(x, y)``, the loss of one draw; a JAX function, as are the next two, called with 64-bit numbers.
    sample : callable
        ``sample(key, dimension)`` makes a draw, any tree of arrays.
    statistics : callable
        ``statistics(x)``, a vector of shape (k,).
    point : array or tree of arrays
        x, where all this is asked for.
    lr : float
        The step size is delta = lr/dimension.
    dimension : int
        The dimension.
    samples : int, default 4096
        How many draws, one random stream each: the chunks in which they are taken do not matter.
    seed : int, default 0
        Of the random numbers.
    antithetic : callable, optional
        ``antithetic(y)`` is another draw of the same law (the noise negated, say); each sample then counts with its partner. Refused if the
        draws contradict it.
    controls : callable, optional
        ``controls(y)``, a vector of known mean zero that is regressed out (a bias of order 1/samples). Refused if the draws contradict it.
    names : sequence of str, optional
        What the statistics are called.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    EffectiveDynamics
        Values and standard errors.

    Raises
    ------
    ValueError
        If a function does not fit, or draws contradict what ``antithetic`` or ``controls`` claim.

    See Also
    --------
    effective_scaling : whether all this has a limit as the dimension grows.

    Notes
    -----
    Assumes finite fourth moments of grad L for the errors, statistics that are twice differentiable at the point, and a loss that is
    differentiable there for almost every draw (ReLU will do). f, g and Sigma are those of this point and this dimension.

    Source: Ben Arous, Gheissari and Jagannath, High-dimensional limit theorems for SGD, Theorem 2.2 with (2.1)-(2.4); their c_delta is lr.

    Examples
    --------
    A spiked matrix with spike e_1, where f of m = x_1 is 4 (R^2 - 1.2) m, R the norm of x, g of r2 is 8 delta [(d - 1) R^2 + r2], and
    negated noise makes f exact:

    >>> import jax, jax.numpy as jnp
    >>> def sample(key, d):
    ...     return jax.random.normal(key, (d * d,)).reshape(d, d)
    >>> def loss(x, noise):
    ...     return jnp.sum((noise - jnp.outer(x, x)) ** 2) - 2.4 * x[0] ** 2
    >>> def statistics(x):
    ...     return jnp.stack([x[0], jnp.sum(x[1:] ** 2)])
    >>> x = jnp.array([0.6] + 16 * [0.2])
    >>> found = sgd.effective_dynamics(loss, sample, statistics, point=x, lr=0.5, dimension=17, antithetic=jnp.negative)
    >>> found.drift.round(6).tolist()
    [-0.48, 5.12]
    >>> bool(abs(found.corrector[1] - 8 * 0.5 / 17 * (16 + 0.64)) < 5 * found.corrector_error[1])
    True
    """
    task = checked_task(loss, sample, statistics, antithetic, controls)
    lr, dimension = checks.number("lr", lr, above=0.0), checks.integer("dimension", dimension, 1)
    samples, seed = (
        checks.integer("samples", samples, GROUPS, MOST_SAMPLES),
        checks.integer("seed", seed, 0),
    )
    progress = checks.flag("progress", progress, optional=True)
    sizes = checked_sizes(task, point, dimension, samples, names)
    with meter(f"effective dynamics, d = {dimension}", 2.0 * samples, progress) as shown:
        return measure(task, sizes, lr, dimension, samples, (seed,), shown).dynamics
