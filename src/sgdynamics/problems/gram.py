"""Gram matrices, block by block: those of the signals as they are given, and their roots."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Numeric
from sgdynamics.samples.arguments import Covariance


def gram_per_block(
    value: ArrayArgument | None, name: str, signals: int, covariance: Covariance
) -> np.ndarray:
    """Return the signals' Gram matrix of each block; a single one is spread by the fractions."""
    blocks, target = (
        len(covariance.fractions),
        None if covariance.spectrum is None else covariance.spectrum.target,
    )
    if target is not None:
        if value is not None:
            raise checks.reject(
                name, value, "the spectrum has a target, which says the same: give one of them"
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
    """A factor C with C C^T = gram, by eigenvectors: for samples, to which its rotation is nothing."""
    values, vectors = at.linalg.eigh(gram)
    return vectors * at.sqrt(at.maximum(values, 0.0))[..., None, :]


def gram_root(gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    """A factor C with C C^T = gram (lower triangular up to a rotation, also for singular matrices), block by block."""
    return _traced_root(gram) if checks.is_traced(gram) else _root(np, gram)


def _root(at: ModuleType, gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    # QR turns it into the lower-triangular root: the identity for orthonormal signals, so that T = M there
    lower = at.swapaxes(at.linalg.qr(at.swapaxes(eigen_root(gram, at), -1, -2), mode="r"), -1, -2)
    signs = at.where(at.einsum("...ii->...i", lower) < 0, -1.0, 1.0)
    return lower * signs[..., None, :]


@jax.custom_jvp
def _traced_root(gram: Float[Numeric, "*blocks K K"]) -> Float[Numeric, "*blocks K K"]:
    return _root(jnp, gram)


@_traced_root.defjvp
def _root_moved(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """As of a Cholesky factor: eigenvectors, by which it is computed, have no derivative where eigenvalues meet."""
    return _traced_root(*primals), jax.jvp(jnp.linalg.cholesky, primals, tangents)[1]
