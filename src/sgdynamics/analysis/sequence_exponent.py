"""Information exponent of functions of a sequence: how hard one direction is to find.

With orthonormal Hermite polynomials h_alpha of L variables and c_alpha(f) = E[f h_alpha], one row
on the sphere and independent tokens follow

    dm/dt = (1 - m^2) sum_n n b_n m^(n-1) - (lr/2) m E|h|^2,
    b_n = sum over |alpha| = n of c_alpha(f) c_alpha(y),

with f the function of the student and y that of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.precision import float64
from sgdynamics.expectations.mehler import hermite_functions
from sgdynamics.expectations.nodes import gauss_hermite, hermite_product
from sgdynamics.problems.models.sequences import SequenceLoss, resolve_link
from sgdynamics.problems.problem import Problem

MAX_GRID_POINTS = 1 << 19
MIN_NODES, MAX_NODES = 8, 48  # per axis
ERROR_MARGIN = 20.0  # a coefficient below this many times its error counts as zero
MAX_ERROR = 1e-3  # largest error of a coefficient that may count as zero, relative to the norms
MAX_EXPONENT = 12


@float64
def sequence_information_exponent(
    link: str | Function | Problem,
    tokens: int | None = None,
    *,
    target: str | Function | None = None,
    tolerance: float = 1e-7,
) -> int:
    """The smallest n >= 1 at which a function of a sequence and its target share Hermite terms.

    ::

        n = min {n >= 1 : b_n != 0},   b_n = sum over |alpha| = n of c_alpha(link) c_alpha(target)

    Parameters
    ----------
    link : str, callable or Problem
        "product", "sum", a JAX function of L numbers, or a problem of ``sequence_single_index``,
        which contains the other arguments.
    tokens : int, optional
        Number of tokens L; required if the link is a name or a function.
    target : str or callable, optional
        The function of the label. Defaults to the link.
    tolerance : float, default 1e-07
        Relative threshold: b_n counts as zero if it is below this share of the norms of the
        functions, or below 20 times its error.

    Returns
    -------
    int
        The exponent n, searched up to 12 (6 for 5 tokens, 4 for 6 tokens). From a random start, w*
        is found after about d samples for n = 1, d log d for n = 2, and d^(n-1) for larger n.

    Raises
    ------
    ValueError
        If an argument is invalid, if no searched order is shared, or if the error is too large for
        a decision.

    Notes
    -----
    Tokens are independent and have no means. Expectations are computed on Gauss-Hermite grids of
    two sizes, whose difference is the error. They are exact for polynomials and accurate for smooth
    functions; functions with kinks or of many tokens may have too large an error.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import sgdynamics as sgd
    >>> sgd.models.sequence_information_exponent("product", tokens=3)
    3
    >>> sgd.models.sequence_information_exponent(lambda x: jnp.tanh(x[0]) + x[1] ** 2, tokens=2)
    1
    """
    tolerance = checks.number("tolerance", tolerance, above=0.0)
    student, label, tokens = _functions(link, tokens, target)
    nodes = min(MAX_NODES, int(MAX_GRID_POINTS ** (1 / tokens)))
    if nodes < MIN_NODES:
        fix = "a grid over this many numbers is too large. Use 6 or fewer"
        raise checks.reject("tokens", tokens, fix)
    last_order = min(MAX_EXPONENT, nodes // 2)
    (_, coarse), (norms, fine) = (
        shared_coefficients(student, label, tokens, count, last_order)
        for count in (nodes * 3 // 4, nodes)
    )
    scale = max(norms, 1e-300)
    for n in range(1, last_order + 1):
        error = abs(fine[n] - coarse[n])
        if abs(fine[n]) > max(ERROR_MARGIN * error, tolerance * scale):
            return n
        if error > MAX_ERROR * scale:
            fix = (
                f"coefficients of order {n} have an error of {error:.1e}, so that the exponent "
                "cannot be determined. Use a smooth function."
            )
            raise checks.reject("link", link, fix)
    fix = f"it shares no Hermite coefficient with the target up to order {last_order}"
    raise checks.reject("link", link, fix)


def _functions(
    link: str | Function | Problem, tokens: int | None, target: str | Function | None
) -> tuple[Function, Function, int]:
    """The functions of the student and of the label, and the number of tokens."""
    if isinstance(link, Problem):
        loss, sample = getattr(link, "user_loss", None), link.structure.sample
        is_independent = sample.centred and not sample.tokens.correlated
        if not isinstance(loss, SequenceLoss) or not is_independent:
            fix = (
                "give a problem of sgd.models.sequence_single_index with independent tokens "
                "without means"
            )
            raise checks.reject("link", link, fix)
        return loss.link, loss.target, sample.tokens.inputs_per_sample
    if tokens is None:
        fix = (
            "required if link is a name or a function. Set tokens to the number of arguments of "
            "the link."
        )
        raise checks.reject("tokens", tokens, fix)
    count = checks.integer("tokens", tokens, 1)
    student = resolve_link("link", link, count)
    label = student if target is None else resolve_link("target", target, count)
    return student, label, count


def shared_coefficients(
    student: Callable[[Any], Any],
    label: Callable[[Any], Any],
    tokens: int,
    count: int,
    order: int,
) -> tuple[float, np.ndarray]:
    """The product of the norms of two functions, and b_0, ..., b_order, on `count` nodes per axis.

    The order is below `count`, so that the polynomials are orthonormal on the nodes.
    """
    axis, weights = gauss_hermite(count)
    basis = hermite_functions(axis, np.sqrt(weights), order)  # (order + 1, count)
    points, point_weights = hermite_product((count,) * tokens)
    functions = (student,) if student is label else (student, label)
    values = [
        np.asarray(jax.vmap(function)(points), dtype=np.float64) * np.sqrt(point_weights)
        for function in functions
    ]

    def project(grid_values: np.ndarray) -> np.ndarray:
        """Coefficients c_alpha of one function, an axis per token."""
        coefficients = grid_values.reshape((count,) * tokens)
        for _ in range(tokens):
            # The first axis is replaced by a new last one, so that the order is kept at the end.
            coefficients = np.tensordot(coefficients, basis, axes=(0, 1))
        return coefficients

    coefficients = [project(grid_values) for grid_values in values]
    products = coefficients[0] * coefficients[-1]
    degree = np.sum(np.indices(products.shape), axis=0)
    sums = np.bincount(np.ravel(degree), np.ravel(products), minlength=order + 1)[: order + 1]
    norms = np.linalg.norm(values[0]) * np.linalg.norm(values[-1])
    return float(norms), sums
