"""Link functions of a standard normal variable, evaluated on quadrature panels.

Expectations are one-dimensional integrals in float64: Gauss-Legendre nodes on panels that end at
the kinks, at two resolutions whose difference is the error estimate. They extend to 36 standard
deviations, because a link may grow nearly like exp(x^2/4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.expectations.nodes import gauss_legendre
from sgdynamics.problems.activations import Activation, validate_kinks
from sgdynamics.problems.activations import activation as find_activation

LinkFunction = str | Activation | Function

# Edges of the panels. The density at the last one is 1e-282, above the denormal numbers.
RADII = np.concatenate([np.arange(0, 8, 0.5), np.arange(8, 14, 1.0), np.linspace(14, 36, 7)])
# A link must be finite up to here. An overflow further out shortens the range.
CORE_RADIUS = 8.0
# Nodes per panel of the coarse and of the fine resolution.
NODE_COUNTS = (16, 24)
# Largest share of E[f^2] beyond the range of a link that counts as square-integrable.
MAX_TAIL_SHARE = 1e-8
# Points per call of a user's function, so that JAX compiles a single shape.
BLOCK_SIZE = 4096
# Generic points on which it is determined how a user's function can be called.
PROBE_POINTS = 9


class Link(NamedTuple):
    """A link function, its kinks in order, and its name in messages.

    `elementwise` is True if the function is known to accept arrays.
    """

    function: Callable[[Any], Any]
    kinks: tuple[float, ...]
    label: str
    elementwise: bool


class LinkSample(NamedTuple):
    """Values of a link on the nodes of one resolution; arrays have shape (panels, nodes).

    `x` are the nodes and `dx` the weights of the Lebesgue measure, so that E[f] is the sum of
    `values root^2 dx`, with `root` the square root of the normal density. `widths` are the lengths
    of the panels, `tail` is the estimated share of E[f^2] beyond them, and `rounding` the relative
    rounding error of the values.
    """

    x: np.ndarray
    dx: np.ndarray
    root: np.ndarray
    values: np.ndarray
    widths: np.ndarray
    tail: float
    rounding: float


def make_link(f: LinkFunction, kinks: Sequence[float]) -> Link:
    """Validate a link: the name of an activation, an `Activation`, or a function of one number."""
    declared = validate_breaks(kinks)
    if not isinstance(f, (str, Activation)) and not callable(f):
        fix = (
            "this is not a function of one variable. Pass the function that makes the labels, such"
            " as 'relu' or lambda z: z**2; for several directions use sgd.leap_complexity"
        )
        raise checks.reject("f", f, fix)
    if isinstance(f, (str, Activation)):
        activation = find_activation(f, "f")
        all_kinks = tuple(sorted({*activation.kinks, *declared}))
        return Link(_compile(activation), all_kinks, activation.label, True)
    return Link(f, declared, getattr(f, "__name__", "f"), False)


def validate_breaks(kinks: Sequence[float]) -> tuple[float, ...]:
    """The kinks in increasing order, each once."""
    return tuple(sorted(set(validate_kinks(kinks))))


@lru_cache(maxsize=64)
def _compile(activation: Activation) -> Callable[[Any], Any]:
    return jax.jit(activation.derivative(0))


def evaluate_at(
    argument: str, function: Callable[[Any], Any], points: np.ndarray
) -> tuple[np.ndarray, float]:
    """Evaluate a user's function at points along the last axis.

    Returns the values and their relative rounding error. A function that accepts arrays is called
    on blocks, a JAX function of one point is vectorised, and any other function is called point by
    point. Generic points determine which of them it is.
    """
    probe = np.random.default_rng(0).standard_normal((*points.shape[:-1], PROBE_POINTS))
    single = _probe_values(argument, function, probe)
    dtype = single[0].dtype
    rounding = float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else float).eps)
    expected = np.array(single, dtype=np.float64)
    for vectorised in (function, jax.vmap(function, in_axes=-1)):
        try:
            trial = np.asarray(vectorised(probe), dtype=np.float64)
            if trial.shape == expected.shape and np.allclose(
                trial, expected, rtol=1e-6, atol=1e-12, equal_nan=True
            ):
                return _evaluate_in_blocks(vectorised, points), rounding
        except Exception:  # not a function of arrays: try the next way
            continue

    def evaluate(point: np.ndarray) -> float:
        try:
            return float(function(point))
        except OverflowError:  # math.exp and similar functions, far out
            return math.inf

    count = points.shape[-1]
    return np.array([evaluate(points[..., index]) for index in range(count)]), rounding


def _probe_values(
    argument: str, function: Callable[[Any], Any], probe: np.ndarray
) -> list[np.ndarray]:
    """The values of a function at single points; ValueError unless they are real numbers."""
    try:
        values = [np.asarray(function(probe[..., index])) for index in range(PROBE_POINTS)]
    except Exception as error:
        fix = f"calling it on one point failed with {checks.reason(error)}"
        raise checks.reject(argument, function, fix) from error
    # "V" is the kind of JAX's short floating-point numbers.
    if any(value.shape != () or value.dtype.kind not in "biufV" for value in values):
        fix = f"it must return one real number for one point, but it returned {values[0]!r}"
        raise checks.reject(argument, function, fix)
    return values


def _evaluate_in_blocks(function: Callable[[Any], Any], points: np.ndarray) -> np.ndarray:
    """Call a function of arrays on blocks of one shape, the last one padded."""
    count = points.shape[-1]
    size = BLOCK_SIZE if count <= 16 * BLOCK_SIZE else count
    padding = [(0, 0)] * (points.ndim - 1) + [(0, -count % size)]
    padded = np.pad(points, padding, mode="edge")
    blocks = [
        np.asarray(function(padded[..., start : start + size]), dtype=np.float64).reshape(size)
        for start in range(0, count, size)
    ]
    return np.concatenate(blocks)[:count]


@lru_cache(maxsize=32)
def panel_nodes(
    kinks: tuple[float, ...], count: int, halvings: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes (panels, count), their weights, and the widths of the panels, which end at kinks."""
    inside = [kink for kink in kinks if abs(kink) < RADII[-1]]
    edges = np.union1d(np.concatenate([-RADII, RADII]), inside)
    for _ in range(halvings):
        edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    nodes, weights = gauss_legendre(count)
    widths = np.diff(edges)
    return edges[:-1, None] + widths[:, None] * nodes, widths[:, None] * weights, widths


def tail_share(x: np.ndarray, mass: np.ndarray) -> float:
    """Estimated share of a mass beyond the nodes x.

    The mass of the last two shells |x| in (r_i, r_(i+1)) is continued as a geometric series; the
    share is infinite if it grows.
    """
    radii = RADII[: np.searchsorted(RADII, np.abs(x).max()) + 1]
    shells = np.histogram(np.abs(x), radii, weights=mass)[0]
    if not shells[-1] > 1e-30 * shells.sum():
        return 0.0
    ratio = shells[-1] / np.diff(radii)[-1] / (shells[-2] / np.diff(radii)[-2])
    return float(shells[-1] * ratio / (1 - ratio) / shells.sum()) if ratio < 1 else math.inf


def sample_link(link: Link, count: int, halvings: int) -> LinkSample:
    """Evaluate a link on panels; ValueError if it is not finite or not square-integrable."""
    x, dx, widths = panel_nodes(link.kinks, count, halvings)
    with np.errstate(all="ignore"):
        if link.elementwise:
            values = _evaluate_in_blocks(link.function, x.ravel())
            rounding = float(np.finfo(float).eps)
        else:
            values, rounding = evaluate_at("f", link.function, x.ravel())
    values = values.reshape(x.shape)
    singular = x[~np.isfinite(values)]
    if singular.size:
        nearest = np.abs(singular).min()
        if nearest < CORE_RADIUS:
            point = singular[np.argmin(np.abs(singular))]
            fix = f"it is not finite at x = {point:.6g}. Use a finite link; declare poles in kinks="
            raise checks.reject("f", link.label, fix)
        # Whole panels are dropped, so that the range stays symmetric.
        is_inside = np.abs(x).max(axis=1) < RADII[np.searchsorted(RADII, nearest) - 1]
        x, dx, widths, values = (array[is_inside] for array in (x, dx, widths, values))
    root = np.exp(-(x**2) / 4) / (2 * np.pi) ** 0.25
    amplitude = values * root
    scale = np.abs(amplitude).max() or 1.0
    tail = tail_share(x, (amplitude / scale) ** 2 * dx)
    if tail > MAX_TAIL_SHARE:
        fix = (
            "it is not square-integrable under the standard normal distribution, or only nearly: "
            f"E[f^2] still grows at |x| = {np.abs(x).max():.3g} (estimated share beyond it: "
            f"{tail:.2g}). Transform or truncate it."
        )
        raise checks.reject("f", link.label, fix)
    return LinkSample(x, dx, root, values, widths, tail, rounding)
