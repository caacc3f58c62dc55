"""Two-layer autoencoders of inputs with a spiked covariance, with or without tied weights."""

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
from sgdynamics.problems.moves import LossOverlaps
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class Reconstruction:
    """The squared reconstruction error of x by V^T s(W x), without the constant |x|^2/2.

    ::

        |x - V^T s|^2/2 - |x|^2/2 = -s.V x + s^T (V V^T) s/2,      s = s(W x)

    Attributes
    ----------
    activation : Activation
        Activation s of the hidden units.
    tied : bool
        Whether V = W. Otherwise the rows are those of W, then those of V.
    """

    activation: Activation
    tied: bool

    def __call__(
        self,
        fields: Float[Numeric, " rows"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " rows"],
        draws: dict[str, Any],
        overlaps: LossOverlaps,
    ) -> Float[Numeric, ""]:
        # Index of the first row of V, the decoder.
        decoder = 0 if self.tied else fields.shape[0] // 2
        s = self.activation(fields[: fields.shape[0] - decoder])
        return -s @ fields[decoder:] + s @ overlaps.Q[decoder:, decoder:] @ s / 2


def spiked_means(draws: dict[str, Any], parameters: Parameters) -> Float[Numeric, " K"]:
    """Means sqrt(beta_r) g_r along the signals, with g normal: the variance there is 1 + beta_r."""
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
    """A two-layer autoencoder x -> V^T s(W x) of inputs with a spiked covariance.

    The covariance of the inputs has eigenvalues 1 + beta_r along orthonormal directions, and 1
    orthogonal to them.

    Parameters
    ----------
    width : int, default 1
        Number of hidden units, p.
    activation : str, Activation or callable, default 'erf'
        Activation s of the hidden units, as of ``TeacherStudent``.
    spikes : sequence of float, default (3.0,)
        Strengths beta_r of the spikes, one per direction.
    tied : bool, default False
        Whether V = W. Otherwise the rows are those of W, then those of V.
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Problem
        Problem of width p (tied) or 2 p, with one signal per spike. Its loss omits the constant
        abs(x)^2/2, so that the risk starts near 0 and becomes negative.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    The loss is -s.(V x) + s^T (V V^T) s/2 with s = s(W x). It reads the overlaps Q, so that its
    gradient also moves V along V. A spike is a normal draw in the mean, sqrt(beta) g along the
    signal, and the fields have the covariance Q + beta M M^T. The units learn the principal
    components one after the other.
    Spikes of order d have no limit in this ODE; the exact chain simulates them at finite d. See
    Refinetti and Goldt, "The dynamics of representation learning in shallow, non-linear
    autoencoders" (2022).

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.autoencoder(tied=True)
    >>> start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 2.0])
    >>> [round(float(value), 6) for value in path.risk[0]]
    [-0.483564, -1.311098]
    """
    p = checks.integer("width", width, 1)
    fix = "give a list of numbers, 0 or more, one per direction, such as (3.0, 1.0)"
    beta = checks.real_array("spikes", spikes, fix)
    if beta.ndim != 1 or not len(beta) or not np.all(np.isfinite(beta)) or np.any(beta < 0):
        raise checks.reject("spikes", spikes, fix)
    loss = Reconstruction(student_activation(activation), checks.flag("tied", tied))
    data: dict[str, Any] = {
        "means": spiked_means,
        "draws": {"g": ("normal", len(beta))},
        "parameters": {"spikes": beta},
        "kinks": loss.activation.kinks,
    }
    rows = p if tied else 2 * p
    return Problem(loss, rows, len(beta), weight_decay=weight_decay, **data)
