"""Static structure and traced parameters of a step on a fixed data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float

from sgdynamics.algorithms.fixed_data import FixedData, step_parameters
from sgdynamics.algorithms.updates.law import Law, count_row_sets
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, Scalar
from sgdynamics.fixed_data.gradient_calls import count_calls, gradient_calls
from sgdynamics.problems.problem import Structure

# A coefficient beyond this value has diverged; the fourth power of a field still fits into float64.
LARGEST = 1e50
SMALLEST_CAPACITY = 64  # directions for which memory is allocated at the start


@dataclass(frozen=True)
class Setup:
    """Static structure of a step: the structure of the problem and the kind of algorithm.

    `selects`: a step uses a random selection of the samples. `thermal`: white noise acts on the
    weights. The remaining fields are used at d -> infinity only. `perturbed`: rows carry a
    perturbation of first order, whose growth is the response function. `in_cells`: a step is a
    cell of an epoch (`algorithms.epochs`), and numbers of visits replace the selection.
    `repeats`: a cell may visit a sample more than once. `passing`: message passing in place of
    gradient steps. `law`: the law of an update; None for plain steps. `calls`: gradients that a
    step evaluates one after the other, in one advance of the simulator. `passes`: the same at d ->
    infinity, where each of them takes a pass over the paths. `elsewhere`: the first gradient is not
    evaluated at the weights.
    """

    structure: Structure
    selects: bool
    thermal: bool
    perturbed: bool = False
    in_cells: bool = False
    repeats: bool = False
    passing: Any = None  # a `MessagePassing`, whose module imports this one's types
    law: Law | None = None
    calls: int = 1
    passes: int = 1
    elsewhere: bool = False

    @classmethod
    def from_algorithm(cls, structure: Structure, algorithm: FixedData) -> Setup:
        """The setup of a problem and an algorithm at d -> infinity."""
        law, passes, elsewhere = algorithm.law, 1, False
        if algorithm.update is not None:
            passes = count_calls(algorithm.update, structure)
            elsewhere = not gradient_calls(algorithm.update, structure).first_at_weights
        return cls(
            structure,
            algorithm.selects,
            algorithm.has_thermal_noise or (law is not None and law.noise),
            in_cells=bool(algorithm.order),
            repeats=algorithm.order == "replacement",
            law=law,
            passes=passes,
            elsewhere=elsewhere,
        )

    @property
    def row_sets(self) -> int:
        """Number of sets of p rows: the weights, and those of the update."""
        return count_row_sets(self.law)

    @property
    def stored_rows(self) -> int:
        """Rows of coefficients of a set of paths: those of all sets, and first gradients of a step.

        The first gradients are stored until the step has all of them.
        """
        return (self.row_sets + self.passes - 1) * self.structure.width

    @property
    def initial_directions(self) -> int:
        """Directions of the basis before the first step: those of the signals and of the rows."""
        return self.structure.signals + self.structure.width

    @property
    def gradients_per_step(self) -> int:
        """Vectors in sample space per step: the gradients of the rows and of their perturbation."""
        return self.structure.width * (2 if self.perturbed else 1) * self.calls

    @property
    def noise_directions(self) -> int:
        """Directions that white noise adds per step."""
        return self.structure.width if self.thermal else 0

    @property
    def normals_per_step(self) -> int:
        """Vectors of normals per step and block: for gradients, and for white noise."""
        return self.gradients_per_step + self.noise_directions

    @property
    def directions_per_step(self) -> int:
        """Largest number of directions that a step adds to the basis of weight space."""
        return self.gradients_per_step + self.noise_directions


class StepParameters(NamedTuple):
    """Values of the problem and the algorithm that JAX traces."""

    parameters: Parameters
    hyperparameters: Parameters
    block_sizes: Float[Numeric, " blocks"]
    tolerance: Scalar  # relative norm of a residual below which no direction is added

    def at_step(self, number: IntScalar) -> StepParameters:
        """The values at one step, where they depend on time."""
        parameters, hyperparameters = step_parameters(self.parameters, self.hyperparameters, number)
        return self._replace(parameters=parameters, hyperparameters=hyperparameters)


class InitialWeights(NamedTuple):
    """Initial rows [T | L] in the basis of the signals and of the rows, and the head."""

    T: Float[Numeric, "*runs blocks p K"]
    L: Float[Numeric, "*runs blocks p p"]
    head: Float[Numeric, "*runs p"]


class InitialDraws(NamedTuple):
    """Random numbers of a data set before the first step."""

    normals: Float[Numeric, "*sets blocks fields inputs"]  # data along the initial directions
    noise: Float[Numeric, "*sets n draws"]  # normals of label noise and other draws
    uniform: Float[Numeric, "*sets n"]  # which samples the first step uses
