"""How hard a function of a whole sequence is to find along one direction: the information exponent of sequences.

With orthonormal Hermite polynomials h_alpha of L variables, c_alpha(f) = E[f h_alpha], one row on the sphere and independent tokens follow

    dm/dt = (1 - m^2) sum_n n b_n m^(n-1) - (lr/2) m E|h|^2,     b_n = sum over abs(alpha) = n of c_alpha(f) c_alpha(y).
"""

from __future__ import annotations

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

MOST_POINTS = 1 << 19
MOST_NODES = 48
MARGIN = 20.0  # a coefficient below this many times its error counts as zero
SEARCH = 12


@float64
def sequence_information_exponent(
    link: str | Function | Problem,
    tokens: int | None = None,
    *,
    target: str | Function | None = None,
    tolerance: float = 1e-7,
) -> int:
    """The smallest n >= 1 at which a function of a sequence and its target have a Hermite coefficient in common.

    Parameters
    ----------
    link : str, callable or Problem
        "product", "sum", a JAX function of L numbers, or what ``sequence_single_index`` made, which knows the rest.
    tokens : int, optional
        L; needed where the link is a name or a function.
    target : str or callable, optional
        The label's function; the same as the link unless given.
    tolerance : float, default 1e-07
        b_n counts as zero below this share of the functions' norms, or 20 times its error.

    Returns
    -------
    int
        n, searched up to 12: from a random start, w* is found after about d samples for 1, d log d for 2, d^(n-1) for more.

    Raises
    ------
    ValueError
        If an argument is refused, there is no such n up to 12, or the error is too large to tell.

    Notes
    -----
    For independent tokens without means. Gauss-Hermite grids of two sizes, whose difference is the error: exact for polynomials, good for
    smooth functions; a function with kinks or of many tokens may be refused for its error.

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
    if isinstance(link, Problem):
        loss = getattr(link, "user_loss", None)
        if (
            not isinstance(loss, SequenceLoss)
            or not link.structure.sample.centred
            or link.structure.sample.tokens.correlated
        ):
            raise checks.reject(
                "link",
                link,
                "give a problem of sgd.models.sequence_single_index with independent tokens without means",
            )
        f, y, tokens = loss.link, loss.target, link.structure.sample.tokens.inputs_per_sample
    else:
        if tokens is None:
            raise checks.reject("tokens", tokens, "say how many numbers the function takes")
        tokens = checks.integer("tokens", tokens, 1)
        f = resolve_link("link", link, tokens)
        y = f if target is None else resolve_link("target", target, tokens)
    most = int(MOST_POINTS ** (1 / tokens))
    if most < 8:
        raise checks.reject(
            "tokens", tokens, "a grid over so many numbers is too large: take 6 or fewer"
        )
    nodes = min(MOST_NODES, most)
    coarse, fine = (_common(f, y, tokens, count) for count in (nodes * 3 // 4, nodes))
    scale = max(fine[0], 1e-300)
    for n in range(1, min(SEARCH, nodes // 2) + 1):
        error = abs(fine[1][n] - coarse[1][n])
        if abs(fine[1][n]) > max(MARGIN * error, tolerance * scale):
            return n
        if error > 1e-3 * scale:
            raise checks.reject(
                "link",
                link,
                f"coefficients of order {n} are known to {error:.1e} only: is it smooth?",
            )
    raise checks.reject(
        "link",
        link,
        f"it has nothing in common with the target up to order {min(SEARCH, nodes // 2)}",
    )


def _common(f: Any, y: Any, tokens: int, count: int) -> tuple[float, np.ndarray]:
    """The product of the norms of f and y, and b_0, ..., b_n of both on a grid of `count` nodes an axis."""
    axis, weights = gauss_hermite(count)
    order = min(SEARCH, count // 2)
    basis = hermite_functions(axis, np.sqrt(weights), order)  # (order + 1, count)
    points, shares = hermite_product((count,) * tokens)
    values = [
        np.asarray(jax.vmap(one)(points), dtype=np.float64) * np.sqrt(shares)
        for one in ((f, y) if f is not y else (f,))
    ]

    def coefficients(one: np.ndarray) -> np.ndarray:
        found = one.reshape((count,) * tokens)
        for _ in range(tokens):  # each axis in turn, which comes back last
            found = np.tensordot(found, basis, axes=(0, 1))
        return found

    c = [coefficients(one) for one in values]
    degree = np.sum(np.indices(c[0].shape), axis=0)
    together = np.bincount(np.ravel(degree), np.ravel(c[0] * c[-1]), minlength=order + 1)[
        : order + 1
    ]
    return float(np.prod([np.linalg.norm(one) for one in (values[0], values[-1])])), together
