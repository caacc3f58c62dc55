"""The interface of the integrator: a vector field, a stopping criterion, a case and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.padding import pad_with_last
from sgdynamics.ode.explicit import first_loop

RTOL = 1e-8
ATOL = 1e-10
# Ratio of the local to the requested tolerance: errors accumulate, and the risk is a small
# difference of overlaps.
MARGIN = 1e-3
# Bound of a state at t = 0, see `divergence_bound`.
LARGEST = 1e6


# The type of a state or rate, which a conversion of units preserves.
StateType = TypeVar("StateType", bound=State)
# A result that may have been replaced by its error.
Outcome = TypeVar("Outcome")


class Field(ABC):
    """A vector field d state/dt = field(replicate, shared, t, state), static and hashable.

    The state is a dictionary of arrays. `replicate` has the inputs that differ between replicates
    (the nodes of a sampled expectation); `shared` contains all other parameters.
    """

    # Names of symmetric matrices, of which LSODA integrates the upper triangle.
    symmetric: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, replicate: PyTree, shared: PyTree, t: Scalar, state: State) -> State:
        """Return d state/dt of one run."""

    def on_symmetric(
        self, replicate: PyTree, shared: PyTree, t: Scalar, state: State
    ) -> dict[str, Numeric]:
        """Return the symmetric part of the rate at the symmetric part of the state.

        The formulas of the drift extend to matrices that are not symmetric, and their antisymmetric
        modes can be unstable: rounding errors of 1e-16 would grow exponentially and destroy a
        stable solution. On the symmetric part they have no dynamics.
        """
        rate = self(replicate, shared, t, self._symmetric_part(state))
        return self._symmetric_part(rate)

    def _symmetric_part(self, state: State) -> dict[str, Numeric]:
        # (A + A^T)/2 is symmetric to the last bit, because floating-point addition commutes.
        halves = {name: state[name] / 2 for name in self.symmetric}
        symmetric = {name: half + jnp.swapaxes(half, -1, -2) for name, half in halves.items()}
        return {**state, **symmetric}


class Watch(ABC):
    """A stopping criterion: a run stops where its value falls below a level. Static, hashable."""

    @abstractmethod
    def value(self, shared: PyTree, state: State) -> Float[Numeric, ""]:
        """Return the value at one state; `shared` is that of the field."""


@dataclass(frozen=True, eq=False)
class Case:
    """One integration, with all choices made before anything runs.

    Attributes
    ----------
    field : Field
        The vector field.
    replicates : pytree
        Inputs of the field that differ between replicates, with a leading axis of replicates.
    shared : dict
        All other parameters of the field. If it contains "units" by variable, states are
        integrated in these units, so that one absolute tolerance suits all variables; the states of
        the result are in the units of the library.
    states : dict
        Initial states, with a leading axis of runs.
    times : ndarray
        Save points in the variable of integration, increasing.
    tolerance : dict
        Local tolerances "rtol" and "atol".
    watch : Watch or None
        Stopping criterion. With a criterion only the end of each run is stored.
    levels : ndarray or None
        Levels below which the criterion stops each run.
    alone : bool
        Whether the replicates belong to this case only, so that it cannot share a program.
    approximation : tuple of Field and pytree, or None
        A field close to `field` that costs much less, and its replicates (`ode.deferred`).
    """

    field: Field
    replicates: PyTree
    shared: Parameters
    states: dict[str, np.ndarray]
    times: np.ndarray
    tolerance: dict[str, Any]
    watch: Watch | None = None
    levels: np.ndarray | None = None
    alone: bool = False
    approximation: tuple[Field, PyTree] | None = None

    @property
    def runs(self) -> int:
        """Number of initial states."""
        return len(next(iter(self.states.values())))

    @property
    def exit_inputs(self) -> tuple[Any, ...]:
        """Traced inputs of an integration up to a criterion, in addition to the replicates.

        Save points are padded to a power of two, because their number is a shape.
        """
        levels = np.zeros(self.runs) if self.levels is None else self.levels
        return self.shared, self.states, levels, pad_with_last(self.times), self.tolerance

    @property
    def explicit_inputs(self) -> tuple[Any, ...]:
        """Traced inputs of the explicit loop in addition to the replicates; its state is last."""
        times, replicates = pad_with_last(self.times), len(jax.tree.leaves(self.replicates)[0])
        return self.shared, times, self.tolerance, first_loop(self.states, times, replicates)

    @property
    def key(self) -> Hashable:
        """Identity of the program: cases with the same key can be lanes of one call."""
        leaves, tree = jax.tree.flatten(self.exit_inputs)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        approximation = None if self.approximation is None else self.approximation[0]
        alone = id(self) if self.alone else 0
        return alone, self.field, approximation, self.watch, tree, shapes


class IntegrationResult(NamedTuple):
    """Result of an integration.

    Attributes
    ----------
    states : dict
        States (replicate, run, time, ...), NaN after divergence or after the steps ran out.
    used_lsoda : bool
        Whether LSODA was used.
    ran_out : array of bool, (run,)
        Whether the steps ran out.
    exits : array, (replicate, run)
        Times at which the stopping criterion was met, NaN elsewhere.
    diverged : array of bool, (replicate, run)
        Whether the solution diverged.
    displaced : dict or None
        States displaced by the estimated error of the integrator. None where it is not estimated.
    """

    states: dict[str, np.ndarray]
    used_lsoda: bool
    ran_out: np.ndarray
    exits: np.ndarray
    diverged: np.ndarray
    displaced: dict[str, np.ndarray] | None = None


def from_units(shared: Parameters, state: StateType) -> StateType:
    """Convert a state from the units of the integration to those of the library."""
    units = shared.get("units")
    if units is None:
        return state
    scaled: Any = {name: value * units[name] for name, value in state.items()}
    return scaled


def in_units(shared: Parameters, state: StateType) -> StateType:
    """Convert a state or rate from the units of the library to those of the integration."""
    units = shared.get("units")
    if units is None:
        return state
    scaled: Any = {name: value / units[name] for name, value in state.items()}
    return scaled


def divergence_bound(t: Scalar | Numeric) -> Scalar | Numeric:
    """Return the sum of absolute values beyond which a state counts as diverged.

    Some overlaps grow legitimately as a power of t (Hebb's Q as t^2); a divergence soon exceeds any
    power.
    """
    return LARGEST * (1 + t) ** 2


def is_bounded(t: Scalar, state: State) -> Bool[Numeric, ""]:
    """Whether a state is within its bound; False if an entry is not a number."""
    return jnp.less(total_size(state), divergence_bound(t))


def total_size(state: State) -> Scalar:
    """Return the sum of the absolute values of all entries."""
    return sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(state))


def symmetrise(field: Field, state: State) -> dict[str, Numeric]:
    """Return the state with its symmetric matrices symmetric to the last bit.

    The drift may amplify antisymmetric rounding errors (`Field.on_symmetric`).
    """
    return {
        name: (value + value.swapaxes(-1, -2)) / 2 if name in field.symmetric else value
        for name, value in state.items()
    }


def raise_if_error(outcome: Outcome | ValueError) -> Outcome:
    """Return the outcome of a case, or raise it if it is an error."""
    if isinstance(outcome, ValueError):
        raise outcome
    return outcome
