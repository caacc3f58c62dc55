"""Mean squares of the gradient of a trained head: what updates of single entries average.

An update such as Adam divides the step of each entry theta_j of a head or top by the root of an
average of its squared gradients, whose mean over samples is E[(dloss/dtheta_j)^2]. The moments of
closed expectations do not contain these fourth moments, so that they are taken on the grid or the
Sobol points that serve any loss.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.field_grids import FewFields, few_fields
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.problem import Structure


def _point_averages(structure: Structure) -> SobolAverages:
    """The average over points of fields that serves this problem."""
    expectation = expectation_of(structure)
    if isinstance(expectation, SobolAverages):
        return expectation
    return FewFields(structure) if few_fields(structure) else SobolAverages(structure)


def head_square_nodes(
    structure: Structure, quadrature: Quadrature, replicates: int
) -> dict[str, np.ndarray]:
    """Constant arrays that `head_squares` needs, with this many replicates at least."""
    nodes = _point_averages(structure).nodes(quadrature, False)
    count = len(next(iter(nodes.values())))
    if count >= replicates:
        return nodes
    return {name: np.repeat(value[:1], replicates, axis=0) for name, value in nodes.items()}


def head_squares(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    overlaps: Overlaps,
    head: Float[Numeric, " entries"],
) -> Float[Numeric, " entries"]:
    """E[(dloss/dtheta_j)^2] for every entry of the head or top, from one replicate of nodes."""
    at = Evaluation(quadrature, nodes, parameters, overlaps, head)
    return _point_averages(structure).mean_head_squares(at)
