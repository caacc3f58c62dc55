"""Expectations of networks with trained biases whose label jumps or bends at values of one signal.

No grid across a jump converges. The axis of the signal is therefore divided into panels at the
values where the label is not smooth, with Gauss-Legendre nodes in each panel. Given the signal, the
fields of the students are Gaussian and the loss is smooth in them: they have the trapezoidal grid
of `FewFields`, and the label noise, which enters as a polynomial, has Gauss-Hermite nodes.

The edges of the panels follow the variance P of the signal, which is traced. The first coordinate
of a stored point is therefore the number of its panel plus the position inside the panel, and
becomes a value of the normalised signal in each evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.field_grids import FURTHER, FewFields, trapezoids
from sgdynamics.expectations.interface import Moments, Quadrature
from sgdynamics.expectations.nodes import gauss_legendre, hermite_product, product_rule
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.bias_losses import BiasLoss
from sgdynamics.problems.problem import Structure

REACH = 8.3  # a standard normal lies beyond with probability 1e-16
PANEL_NODES, FEWER_PANEL_NODES = 20, 16  # per panel; the second grid of an error estimate has fewer
START_PER_DEVIATION, FINEST = 2, 8  # points per standard deviation of the students' fields
# Variance of a field up to which two points per standard deviation resolve an erf unit: the error
# of a trapezoidal rule of spacing 1/2 for exp(-variance x^2/2) is below 1e-8.
SMALL_VARIANCE = 2.0


def has_signal_panels(structure: Structure) -> bool:
    """Whether the label of a network with biases is smooth apart from given values of a signal."""
    loss = structure.loss
    if structure.dependence is None or not isinstance(loss, BiasLoss):
        return False
    return loss.cut_dependence(structure) == structure.dependence


@dataclass(frozen=True)
class SignalPanels(FewFields):
    """Moments on a grid whose signal is integrated between the values where the label jumps."""

    def quadrature(self, largest: float) -> Quadrature:
        return Quadrature(per_deviation=START_PER_DEVIATION)

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        doubled = 2 * quadrature.per_deviation
        if largest < SMALL_VARIANCE or doubled > FINEST:
            return None
        return replace(quadrature, per_deviation=doubled)

    def fine_enough(
        self, quadrature: Quadrature, error: Callable[[Quadrature], float]
    ) -> Quadrature:
        return quadrature

    def _build_grid(
        self, per_deviation: int, reach_factor: float = 1.0, shift: float = 0.0
    ) -> dict[str, np.ndarray]:
        node, weight = gauss_legendre(PANEL_NODES if shift == 0.0 else FEWER_PANEL_NODES)
        panels = len(self.structure.loss.cuts) + 2  # a further edge lies at 0
        positions = (np.arange(panels)[:, None] + node).reshape(-1, 1)
        signal = positions, np.tile(weight, panels)
        fields = trapezoids(self.structure.width, per_deviation, reach_factor, shift)
        points, weights = product_rule(np, signal, fields)
        assert self.structure.dependence is not None
        noise, noise_weights = hermite_product(self.structure.dependence.node_counts)
        hermite = {"few": noise, "few_weights": noise_weights}
        hermite |= {"more": noise, "more_weights": noise_weights}
        return {"points": points, "weights": weights, **hermite}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        nodes = self._build_grid(quadrature.per_deviation)
        second = self._build_grid(quadrature.per_deviation, FURTHER, 0.5)
        between = {f"between_{name}": second[name] for name in ("points", "weights")}
        return {name: value[None] for name, value in (nodes | between).items()}

    def _place_panels(self, at: Evaluation) -> Evaluation:
        """Turn positions in panels into values of the signal, divided by its deviation."""
        levels = jnp.array([level / normal[0] for normal, level in self.structure.loss.cuts])
        deviation = jnp.sqrt(at.overlaps.covariance[-1, -1])
        cuts = jnp.clip(levels / deviation, -REACH, REACH)
        edges = jnp.sort(jnp.concatenate([jnp.array([-REACH, 0.0, REACH]), cuts]))
        positions = at.nodes["points"][:, 0]
        panel = jnp.floor(positions).astype(int)
        length = jnp.diff(edges)[panel]
        signal = edges[panel] + (positions - panel) * length
        density = jnp.exp(-(signal**2) / 2) / np.sqrt(2 * np.pi)
        points = jnp.concatenate([signal[:, None], at.nodes["points"][:, 1:]], axis=1)
        weights = at.nodes["weights"] * length * density
        return at._replace(nodes={**at.nodes, "points": points, "weights": weights})

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        return super().evaluate_moments(self._place_panels(at), finite=finite, flow=flow)

    def mean_head_squares(self, at: Evaluation) -> Float[Numeric, " entries"]:
        return super().mean_head_squares(self._place_panels(at))

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, "..."]:
        return super().evaluate_risk(self._place_panels(at))
