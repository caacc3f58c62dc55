"""Two-layer networks that classify a Gaussian mixture: binary, or the XOR of two directions."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Function
from sgdynamics.problems.activations import NAMED, ActivationLike, student_activation
from sgdynamics.problems.likelihoods import ClusterLaw, Likelihood
from sgdynamics.problems.losses import ClusterLoss
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import ParameterAttribute, records_arguments
from sgdynamics.samples.arguments import Covariance

# Clusters (weight, coefficients of the mean on the signals, label). The means are +mu and -mu, or
# +mu, -mu, +nu and -nu.
CLUSTERS: dict[str, tuple[tuple[float, tuple[float, ...], float], ...]] = {
    "binary": ((0.5, (1.0,), 1.0), (0.5, (-1.0,), 0.0)),
    "xor": (
        (0.25, (1.0, 0.0), 1.0),
        (0.25, (-1.0, 0.0), 1.0),
        (0.25, (0.0, 1.0), 0.0),
        (0.25, (0.0, -1.0), 0.0),
    ),
}
LEAST_WIDTH = {"binary": 1, "xor": 2}


class GaussianMixture(Problem):
    """A network that classifies a Gaussian mixture.

    ::

        f = sum_i a_i s(w_i.x)  (no 1/p, head trained),     x ~ N(mean, I/snr)
        loss log(1 + e^f) - y f

    Parameters
    ----------
    kind : str, default "binary"
        "binary": the means are +mu (y = 1) and -mu (y = 0). "xor": the means are +mu and -mu
        (y = 1), +nu and -nu (y = 0), with mu and nu orthonormal.
    width : int, optional
        Number of units, 1 or more (xor: 2 or more). Defaults to 2 for binary and 4 for xor.
    snr : float, default 100.0
        One over the variance of the inputs about their mean. If it is infinite, the inputs are the
        means themselves.
    weight_decay : float, default 0.1
        Coefficient of the penalty ``(weight_decay/2)(|W|^2 + |a|^2)``, which the dynamics minimises
        with the loss, and which is not part of the risk.
    activation : str, Activation or callable, default "relu"
        Activation of the units.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    ``M`` contains the overlaps with mu, or with mu and nu. In the notation of the paper,
    R_perp = Q - M M^T and v = a.
    Source: "High-dimensional limit theorems for SGD", sections 4 and 5.

    Examples
    --------
    >>> problem = sgd.GaussianMixture("xor", snr=50.0)
    >>> problem.width, problem.signals, problem.head
    (4, 2, 'trained')
    """

    kind: ClassVar[str] = "GaussianMixture"
    classifies: ClassVar[bool] = True
    snr = ParameterAttribute()
    gram_argument: ClassVar[str | None] = None
    mean_output: ClassVar[bool] = False

    @records_arguments
    def __init__(
        self,
        kind: str = "binary",
        width: int | None = None,
        snr: float = 100.0,
        weight_decay: float | Function = 0.1,
        *,
        activation: ActivationLike = "relu",
    ) -> None:
        self.mixture = checks.choice("kind", kind, tuple(CLUSTERS))
        snr = checks.number("snr", snr, above=0.0, infinite=True)
        self.activation = student_activation(activation)
        clusters = CLUSTERS[kind]
        _, coefficients, _ = clusters[0]
        signals = len(coefficients)
        width = 2 * signals if width is None else checks.integer("width", width, 1)
        if width < LEAST_WIDTH[kind]:
            raise checks.reject(
                "width",
                width,
                f"kind = {kind!r} needs a positive and a negative unit: give {LEAST_WIDTH[kind]} "
                "or more",
            )
        self._set_common(
            ClusterLoss(self.activation),
            width,
            signals=signals,
            head="trained",
            weight_decay=weight_decay,
            covariance=Covariance(np.array([1.0 / snr]), np.ones(1)),
            clusters=clusters,
        )
        # The means and their weights are fixed. Only weight decay and snr are parameters, and the
        # eigenvalue 1/snr follows from the snr.
        self._fixed_parameters = self._parameters
        weight_decay = self._fixed_parameters.pop("weight_decay")
        self._parameters = {"weight_decay": weight_decay, "snr": np.float64(snr)}
        self._try_functions()

    @property
    def kinds(self) -> tuple[str, ...]:
        # At infinite snr the drift of ReLU networks is discontinuous, which has its own solver.
        if math.isinf(self.snr) and self.activation == NAMED["relu"]:
            return ("fields", "mixture", "snr = inf")
        return ("fields", "mixture")

    @property
    def likelihood(self) -> Likelihood | None:
        if self.mixture != "binary" or math.isinf(self.snr):
            return None  # the clusters of an XOR are hidden: labels do not fix the mean
        weights, coefficients, labels = zip(*CLUSTERS[self.mixture], strict=True)
        return Likelihood(ClusterLaw(weights, coefficients, labels), self.parameters, self.signals)

    @cached_property
    def _derived_parameters(self) -> dict[str, Any]:
        return super()._derived_parameters | {
            "eigenvalues": 1.0 / pytrees.to_float64(self._parameters["snr"])[..., None]
        }

    def replace(self, **changes: object) -> GaussianMixture:
        """Return a problem with some of the arguments changed.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name. ``mixture`` is the name of ``kind`` in records.

        Returns
        -------
        GaussianMixture
            A new problem; this one does not change.
        """
        return super().replace(
            **{"kind" if name == "mixture" else name: value for name, value in changes.items()}
        )

    @classmethod
    def from_record(
        cls,
        mixture: str = "binary",
        width: int | None = None,
        snr: float = 100.0,
        weight_decay: float | Function = 0.1,
        activation: ActivationLike = "relu",
    ) -> GaussianMixture:
        """Make a problem from a record of `describe`, in which JSON may write infinity as text."""
        snr = math.inf if isinstance(snr, str) and snr == str(math.inf) else snr
        return cls(
            checks.choice("mixture", mixture, tuple(CLUSTERS)),
            width,
            snr,
            weight_decay,
            activation=activation,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "mixture": self.mixture,
            "width": self.width,
            "snr": self.snr,
            "weight_decay": self.weight_decay,
            "activation": self.activation.describe(),
        }

    def __repr__(self) -> str:
        return (
            f"GaussianMixture({self.mixture!r}, width={self.width}, snr={self.snr:g}, "
            f"weight_decay={self.weight_decay:g})"
        )
