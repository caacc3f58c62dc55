"""The side of an expectation that solvers use, and the adapter of a user's own.

Users implement `Expectation`, whose methods take five positional arguments. Inside the library
these arguments travel together as one `Evaluation`, so that an expectation that wraps another one
(dropout, noisy inputs, contexts) replaces the field that it changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import curvature
from sgdynamics.expectations.interface import Expectation, Moments, Overlaps, Quadrature
from sgdynamics.problems.problem import Structure


class Evaluation(NamedTuple):
    """The arguments of one evaluation, in the order of `Expectation.moments`."""

    quadrature: Quadrature
    nodes: Nodes
    parameters: Parameters
    overlaps: Overlaps
    head: Float[Numeric, " p"]


class SolverExpectation(Expectation):
    """An expectation of the library: solvers ask for more than a user has to implement.

    Subclasses implement `evaluate_moments` and, where they differ from the defaults,
    `evaluate_risk` and `estimate_error`.
    """

    # whether `error` is the truncation error of a series, which a second set of nodes would not
    # show
    uses_series = False
    # second half of the warning about a large error
    advice = (
        "the quadrature does not resolve the loss at these overlaps. Compare with sgd.simulate, "
        "which uses no quadrature"
    )

    @abstractmethod
    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        """Moments of the gradient; `finite` and `flow` as in `Expectation.moments`."""

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        """Population risk, by default that of the moments without noise."""
        return self.evaluate_moments(at, flow=True).risk

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        """Relative error of quadrature and series, apart from sampling."""
        return jnp.asarray(0.0)

    def estimate_errors(self, at: Evaluation) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        """The error, and the error of the risk alone (0 where it is not known separately)."""
        error = self.estimate_error(at)
        return error, jnp.zeros_like(error)

    def coarser(self, quadrature: Quadrature, flow: bool) -> Quadrature | None:
        """A resolution that costs a small part, for a first approximation of the drift.

        The difference of both is evaluated at a few times of a run (`ode.deferred`). It must be
        smooth in the overlaps; the result does not depend on it otherwise. None if the moments are
        evaluated at all times.
        """
        return None

    def fine_enough(
        self, quadrature: Quadrature, error: Callable[[Quadrature], float]
    ) -> Quadrature:
        """A resolution that suffices at the start of a run, given the error of any resolution.

        It saves a second run where the first resolution, which is chosen without an evaluation, is
        too coarse. By default the first one is used.
        """
        return quadrature

    def quick(self, quadrature: Quadrature) -> Quadrature | None:
        """A cheaper resolution, if there is one, that is as precise unless `error` is large.

        It is used where the error is estimated afterwards and `finer` is solved if it is large.
        """
        return None

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        """Nodes for root finding, and coarser ones whose difference estimates the error.

        With these nodes the moments are smooth up to the edge of the physical region Q >= M P^-1
        M^T.
        """
        return self.nodes(quadrature, flow), None

    # Properties that decide how a solver estimates errors: sampled moments have replicates, and
    # each replicate is solved on its own.

    def sampled(self, flow: bool) -> bool:
        """Whether any moment is an average over replicates of random points."""
        return False

    @property
    def drift_sampled(self) -> bool:
        """Whether the drift is sampled, not only the gradient noise."""
        return False

    @property
    def has_closed_pairs(self) -> bool:
        """Whether all pairs of fields have closed expectations."""
        return False

    @property
    def has_label_series(self) -> bool:
        """Whether `label_series` is available."""
        return False

    # Hermite series of the label, for the wide (mean-field) limit.
    def label_series(
        self,
        parameters: Parameters,
        frame: np.ndarray,
        terms: int,
        powers: np.ndarray,
        roots: np.ndarray,
    ) -> tuple[np.ndarray, float, float]:
        """Hermite coefficients of the noiseless label y, E[y^2], and an error.

        The coefficients are E[y(C zeta) h_alpha(zeta)] with the signals C zeta (C is `frame`), for
        the multi-indices alpha = powers (n, K), |alpha| < terms. `roots` are sqrt(|alpha|!/alpha!),
        and h are orthonormal Hermite polynomials.
        """
        raise NotImplementedError("only the label of a network has a series")

    # The Hessian of the risk, for `analysis.landscape`.
    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        """E[h_ij x x^T] at whitened rows, in several versions.

        The versions are equally good replicates if the second value is True, otherwise one at full
        resolution and a coarser one.
        """
        return curvature.sample_curvatures(structure, parameters, head, rows, signals), True

    # The positional interface of `Expectation`, once for all families.

    def moments(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
        *,
        finite: bool = False,
        flow: bool = False,
    ) -> Moments:
        at = Evaluation(quadrature, nodes, parameters, overlaps, head)
        return self.evaluate_moments(at, finite=finite, flow=flow)

    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.evaluate_risk(Evaluation(quadrature, nodes, parameters, overlaps, head))

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        return self.estimate_error(Evaluation(quadrature, nodes, parameters, overlaps, head))


@dataclass(frozen=True)
class UserExpectation(SolverExpectation):
    """A user's own `Expectation`, with defaults for everything that only solvers ask for."""

    # hashable, because compiled code depends on it
    own: Expectation

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        # positional, so that a user may name the arguments differently
        return self.own.moments(*at, finite=finite, flow=flow)

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.own.risk(*at)

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        return self.own.error(*at)

    def quadrature(self, largest: float) -> Quadrature:
        return self.own.quadrature(largest)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        return self.own.finer(quadrature, largest)

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return self.own.nodes(quadrature, flow)

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        return self.own.risk_nodes(quadrature, quick=quick)
