"""Gram matrices of the signals, block by block, and their square roots."""

from __future__ import annotations

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Numeric
from sgdynamics.samples.arguments import Covariance


def gram_per_block(
    value: ArrayArgument | None, name: str, signals: int, covariance: Covariance
) -> np.ndarray:
    """Validate the signals' Gram matrix, and return it for each covariance block.

    A single matrix is spread over the blocks by their fractions. The target of a spectrum replaces
    the argument, whose name is `name`.
    """
    blocks = len(covariance.fractions)
    target = None if covariance.spectrum is None else covariance.spectrum.target
    if target is not None:
        if value is not None:
            raise checks.reject(
                name, value, "the spectrum has a target, which replaces it. Give one of the two."
            )
        if target.shape[1] != signals:
            raise checks.reject(
                "target",
                target.shape,
                f"the problem has {signals} signals: give one row of coordinates for each",
            )
        value = target
    if value is None:
        value = np.eye(signals)
    value = checks.real_array(
        name, value, f"give numbers of shape {(signals, signals)} (signals x signals)"
    )
    if value.ndim == 3:
        result = checks.array(name, value, (blocks, signals, signals), "blocks x signals x signals")
    else:
        matrix = checks.array(name, value, (signals, signals), "signals x signals")
        result = covariance.fractions[:, None, None] * matrix
    checks.gram_matrix(name, result)
    if np.any(np.einsum("bii->i", result) <= 0):
        raise checks.reject(
            name, value, "each signal direction needs a positive norm on the diagonal"
        )
    return result


def eigen_root(
    gram: Float[Numeric, "*blocks K K"], at: ModuleType = np
) -> Float[Numeric, "*blocks K K"]:
    """Return a factor C with C C^T = gram, from eigenvectors.

    It is determined up to a rotation, which does not change the law of samples made with it.
    """
    values, vectors = at.linalg.eigh(gram)
    return vectors * at.sqrt(at.maximum(values, 0.0))[..., None, :]


def gram_root(gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    """Return the lower-triangular factor C with C C^T = gram, block by block.

    Unlike a Cholesky factorisation this also works for singular matrices.
    """
    return _traced_root(gram) if checks.is_traced(gram) else _root(np, gram)


def _root(at: ModuleType, gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    # C = V sqrt(D) from eigenvectors, and C^T = Q R gives gram = R^T R with R^T lower triangular.
    # For orthonormal signals it is the identity, so that T = M.
    transposed = at.swapaxes(eigen_root(gram, at), -1, -2)
    lower = at.swapaxes(at.linalg.qr(transposed, mode="r"), -1, -2)
    signs = at.where(at.einsum("...ii->...i", lower) < 0, -1.0, 1.0)
    return lower * signs[..., None, :]


@jax.custom_jvp
def _traced_root(gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    return _root(jnp, gram)


@_traced_root.defjvp
def _root_derivative(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Float[Numeric, "*blocks K K"], Float[Numeric, "*blocks K K"]]:
    """Return the factor and its derivative, which is that of the Cholesky factor.

    The eigenvectors from which the factor is computed have no derivative where eigenvalues meet.
    """
    return _traced_root(*primals), jax.jvp(jnp.linalg.cholesky, primals, tangents)[1]
