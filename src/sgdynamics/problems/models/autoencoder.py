"""Two-layer autoencoders of inputs with spikes, tied or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters
from sgdynamics.problems.activations import Activation, ActivationLike, student_activation
from sgdynamics.problems.models.model import model
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class Reconstruction:
    """|x - V^T s(W x)|^2/2 without |x|^2/2: - s . V x + s^T (V V^T) s/2. Rows are W, then V; of tied weights V = W."""

    activation: Activation
    tied: bool

    def __call__(
        self,
        fields: Float[Numeric, " rows"],
        signals: Float[Numeric, " K"],
        head: Any,
        draws: dict[str, Any],
        overlaps: Any,
    ) -> Float[Numeric, ""]:
        first = 0 if self.tied else fields.shape[0] // 2
        s = self.activation(fields[: fields.shape[0] - first])
        return -s @ fields[first:] + s @ overlaps.Q[first:, first:] @ s / 2


def spiked_means(draws: dict[str, Any], parameters: Parameters) -> Float[Numeric, " K"]:
    """sqrt(beta_r) g_r along each signal: the variance there is 1 + beta_r."""
    return jnp.sqrt(parameters["spikes"]) * draws["g"]


@model
def autoencoder(
    width: int = 1,
    activation: ActivationLike = "erf",
    *,
    spikes: Sequence[float] = (3.0,),
    tied: bool = False,
    weight_decay: float | Function = 0.0,
) -> Problem:
    """A two-layer autoencoder, x -> V^T s(W x), of inputs whose covariance has spikes 1 + beta_r along orthonormal directions.

    Parameters
    ----------
    width : int, default 1
        How many hidden units, p.
    activation : str, Activation or callable, default 'erf'
        s, as of ``TeacherStudent``.
    spikes : sequence of float, default (3.0,)
        beta_r, one a direction.
    tied : bool, default False
        Whether V = W. Otherwise the rows are those of W, then those of V.
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Problem
        Of width p (tied) or 2 p, with one signal a spike. Its loss leaves out abs(x)^2/2, so that the risk starts near 0 and falls.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    The loss is - s.(V x) + s^T (V V^T) s/2 with s = s(W x): it reads Q, so that its gradient also moves V along V. Spikes are a normal
    draw in the mean, sqrt(beta) g along the signal, and Cov F = Q + beta M M^T. The units learn principal components one after the other.
    Spikes of order d (Refinetti and Goldt, "The dynamics of representation learning in shallow, non-linear autoencoders", 2022) are
    beyond this ODE: the exact chain has them at finite d.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.autoencoder(tied=True)
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), sgd.start(problem, M=[[0.3]], Q=[[1.0]]), times=[0.0, 2.0])
    >>> [round(float(value), 6) for value in path.risk[0]]
    [-0.483564, -1.311098]
    """
    p = checks.integer("width", width, 1)
    fix = "give a list of numbers, 0 or more, one a direction, such as (3.0, 1.0)"
    beta = checks.real_array("spikes", spikes, fix)
    if beta.ndim != 1 or not len(beta) or not np.all(np.isfinite(beta)) or np.any(beta < 0):
        raise checks.reject("spikes", spikes, fix)
    loss = Reconstruction(student_activation(activation), checks.flag("tied", tied))
    data = {
        "means": spiked_means,
        "draws": {"g": ("normal", len(beta))},
        "parameters": {"spikes": beta},
        "kinks": loss.activation.kinks,
    }
    return Problem(loss, p if tied else 2 * p, len(beta), weight_decay=weight_decay, **data)  # type: ignore[arg-type]
