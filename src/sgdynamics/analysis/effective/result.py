"""`EffectiveDynamics`, the answer of `effective_dynamics`, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EffectiveDynamics:
    """Drift f, corrector g and diffusion Sigma of summary statistics, with standard errors.

    The values are those at one point and step size. The number of statistics is k.

    Attributes
    ----------
    names : tuple of str
        Names of the k statistics.
    statistics : ndarray
        Values of the statistics at the point, (k,).
    drift : ndarray
        Drift f, (k,).
    drift_error : ndarray
        Standard error of the drift.
    corrector : ndarray
        Corrector g, (k,).
    corrector_error : ndarray
        Standard error of the corrector.
    diffusion : ndarray
        Diffusion matrix Sigma, (k, k).
    diffusion_error : ndarray
        Standard error of the diffusion matrix.
    mean_increment : ndarray
        -f + g, the drift of the limit, (k,).
    mean_increment_error : ndarray
        Standard error of the mean increment.
    gradient_norm_squared : float
        ``|grad Phi|^2``, unbiased; it may be negative where the norm is zero.
    gradient_norm_squared_error : float
        Standard error of the squared norm.
    lr : float
        Learning rate; the step size is lr/dimension.
    dimension : int
        Dimension d.
    draws : int
        Number of gradients, twice the number of samples if they are antithetic pairs.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> def sample(key, d):
    ...     return jax.random.normal(key, (d,))
    >>> def loss(x, noise):
    ...     return jnp.sum((noise - x) ** 2) / 2
    >>> def statistics(x):
    ...     return jnp.stack([x[0]])
    >>> arguments = {"point": jnp.ones(8), "lr": 0.5, "dimension": 8, "antithetic": jnp.negative}
    >>> effective = sgd.effective_dynamics(loss, sample, statistics, **arguments)
    >>> effective.draws, effective.drift.round(6).tolist()
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
        columns = (
            (self.drift, self.drift_error),
            (self.corrector, self.corrector_error),
            (self.mean_increment, self.mean_increment_error),
            (np.diag(self.diffusion), np.diag(self.diffusion_error)),
        )
        rows: list[tuple[str, ...]] = [
            ("statistic", "value", "drift f", "corrector g", "-f + g", "diffusion Sigma_ii")
        ]
        for i, name in enumerate(self.names):
            cells = [f"{value[i]:.4g} ± {error[i]:.1g}" for value, error in columns]
            rows.append((name, f"{self.statistics[i]:.4g}", *cells))
        title = f"effective dynamics at lr = {self.lr:g}, d = {self.dimension}, {self.draws} draws"
        return f"{title}\n{format_table(rows)}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
