"""Networks with binary labels and a loss that is not linear in them: sums over both labels.

A label y has the probability P(y | z) given the signals z, so that

    E[g(fields, z, y)] = E[sum_y P(y | z) g(fields, z, y)],

an average over Sobol points of the fields alone. No point is spent on the draw of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree
from sgdynamics.expectations.interface import Overlaps
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.weighted_points import Points

LABELS = (-1.0, 1.0)


@dataclass(frozen=True)
class LabelSums(SobolAverages):
    """Averages over Sobol points, with both labels at each point.

    The loss of the structure is a `KnownLabelLoss`.
    """

    @property
    def by_slopes(self) -> bool:
        return False  # the probabilities depend on the signals: Stein's lemma has another term

    def _sum_cases(
        self, parameters: Parameters, average: Callable[[dict[str, Any]], PyTree]
    ) -> PyTree:
        """The sum of `average(case)` over both labels, whose points have the weights P(y | z)."""
        values = jax.vmap(lambda label: average({"noise": label}))(jnp.array(LABELS))
        return jax.tree.map(lambda value: jnp.sum(value, axis=0), values)

    def sample_points(
        self,
        points: Float[Numeric, "n coordinates"],
        parameters: Parameters,
        overlaps: Overlaps,
        case: dict[str, Any],
        *,
        plain: bool = False,
        weights: Float[Numeric, " n"] | None = None,
    ) -> Points:
        sampled = super().sample_points(
            points, parameters, overlaps, case, plain=plain, weights=weights
        )
        chances = jax.vmap(self.structure.loss.probability, (0, 0, None))(
            sampled.draws, sampled.signals, parameters
        )
        return sampled._replace(weights=sampled.weights * chances)
