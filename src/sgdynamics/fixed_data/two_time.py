"""Correlations C(t, t') and responses R(t, t') at pairs of save points, from conditioned paths.

C(t, t') = W(t) W(t')^T follows from the rows in the common orthonormal basis. For the response to
a perturbation at t', W_i(t') <- W_i(t') + epsilon u with a fresh unit vector u, copies of all
paths carry the derivative of their rows in epsilon; R(t, t') = tr dW_i(t)/dW_j(t') / d is the
component of the derivative along u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.epochs import Visits
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.fixed_data.conditioning import ConditionedState, orthogonal_part
from sgdynamics.fixed_data.host_draws import HostDraws
from sgdynamics.fixed_data.path_groups import PathGroup
from sgdynamics.fixed_data.path_state import (
    Paths,
    Slots,
    pad_axes,
    paths_from_state,
    rechunk,
)
from sgdynamics.fixed_data.setup import Setup
from sgdynamics.samples.input_covariance import scale as input_scale

if TYPE_CHECKING:
    from sgdynamics.fixed_data.dmft import Sweep


@runtime_checkable
class TwoTimeStorage(Protocol):
    """C and R at pairs of save points, in any form of DMFT."""

    def advance(self, visits: list[Visits] | None, end: int) -> None:
        """Advance what is needed for R in addition to the paths themselves."""

    def record(self, groups: Sequence[Any], draws: HostDraws, number: int) -> None:
        """Store the groups of replicates at a save point."""

    def results(self, groups: Sequence[Any]) -> dict[str, np.ndarray]:
        """C and R by name."""
        ...


class TwoTimePairs:
    """C and R at pairs of save points, from rows and perturbed copies of the replicates."""

    def __init__(self, sweep: Sweep, count: int) -> None:
        self.sweep, self.count = sweep, count
        self.rows: list[np.ndarray] = []
        self.copies: list[list[PathGroup]] = []
        self.responses: list[np.ndarray] = []

    def advance(self, visits: list[Visits] | None, end: int) -> None:
        """Advance all perturbed copies; their bases have twice as many gradients."""
        setup = self.sweep.setup
        # A perturbation adds as many gradients as the rows.
        capacity = 2 * self.sweep.largest_capacity + setup.directions_per_step
        for groups in self.copies:
            self.sweep.advance(groups, visits, end, capacity)

    def record(self, groups: Sequence[PathGroup], draws: HostDraws, number: int) -> None:
        """Store the rows of a save point, perturb copies there, and read all responses."""
        self.rows.append(_pad_together([np.asarray(group.paths.rows) for group in groups], 0))
        # The scatter of a response is far above its bias, so that a reduced solution has none.
        if self.sweep.sampling.reduction == 1:
            self.copies.append(self._perturbed_copies(groups, draws))
            self.responses.append(self._current_responses())

    def _perturbed_copies(self, groups: Sequence[PathGroup], draws: HostDraws) -> list[PathGroup]:
        """Copies of the replicates, each row perturbed to first order along a fresh direction."""
        setup, parameters = self.sweep.setup, self.sweep.step_parameters.parameters
        # The same normals at all save points
        normals, first, copies = draws.perturbation_normals(), 0, []
        for group in groups:
            chosen = normals[first : first + group.sets]
            paths = _perturb_paths(setup, parameters, group.paths, group.slots, chosen)
            # The perturbed directions take the next p slots of A; P does not change.
            slot = int(group.slots.weight)
            weight = np.int64(slot + setup.structure.width)
            # The copies have no sums yet: their first pass computes fields and gradients only.
            slots = group.slots._replace(
                weight=weight,
                last_sample=group.slots.sample,
                last_weight=weight,
                has_sums=np.bool_(False),
            )
            copies.append(PathGroup(paths, slots, group.sets, slot, group.number))
            first += group.sets
        return copies

    def _current_responses(self) -> np.ndarray:
        """R(t, t') at the present t: (replicate, t', unit, unit'), 0 for later t'."""
        p = self.sweep.setup.structure.width
        fractions = self.sweep.step_parameters.parameters["fractions"]
        # Causality: R(t, t') vanishes for t < t'.
        responses = np.zeros((self.sweep.sampling.replicates, self.count, p, p))
        for index, groups in enumerate(self.copies):
            responses[:, index] = np.concatenate([_response(g, fractions, p) for g in groups])
        return responses

    def results(self, groups: Sequence[PathGroup]) -> dict[str, np.ndarray]:
        """C and, for the full number of paths, R."""
        # Earlier rows have zero coefficients on directions that were added later.
        rows = _pad_together(self.rows, 1)
        results = {"C": np.einsum("rtpbk,rsqbk->rtspq", rows, rows)}
        if self.responses:
            results["R"] = np.stack(self.responses, axis=1)
        return results


def _response(group: PathGroup, fractions: np.ndarray, p: int) -> np.ndarray:
    """(replicate, unit, perturbed unit): derivative of the rows along the perturbed directions."""
    assert group.perturbed_slot is not None
    # Component of dW_i(t)/d epsilon along u_j: sum_b sqrt(f_b) of the coefficients
    columns = slice(group.perturbed_slot, group.perturbed_slot + p)
    derivative = np.asarray(group.paths.perturbation, dtype=np.float64)[..., columns]
    return np.einsum("ribj,b->rij", derivative, np.sqrt(fractions))


@partial(jax.jit, static_argnums=0)
def _perturb_paths(
    setup: Setup,
    parameters: Parameters,
    paths: Paths,
    slots: Slots,
    normals: Float[Numeric, "sets p blocks inputs"],
) -> Paths:
    """Sets of paths with one more direction per unit, along which its row is perturbed.

    The unit vector u of a unit has the norm sqrt(f_b) in block b, with the share f_b of dimensions.
    """
    p, blocks, sample = setup.structure.width, setup.structure.blocks, setup.structure.sample
    perturbed = replace(setup, perturbed=True)
    scale, share = input_scale(parameters), jnp.sqrt(parameters["fractions"])
    added, chunks = p + perturbed.directions_per_step, paths.P.shape[1]

    def perturb_set(paths: Paths, normals: Float[Numeric, "p blocks inputs"]) -> Paths:
        n = normals.shape[-1]
        whole = rechunk(paths, 1, 0)
        # Data along a fresh direction: normal, orthogonal to P, and scaled to its mean norm sqrt(n)
        vectors = normals.reshape(p * blocks, n)
        vectors = orthogonal_part(whole.P[0].astype(normals.dtype), vectors, 2)
        norms = jnp.sqrt(n / jnp.sum(vectors**2, axis=-1, keepdims=True))
        vectors = (vectors * norms).reshape(p, blocks, n)
        data = scale[:, None] * sample.tokens.correlate_inputs(parameters, vectors)
        # Memory for the perturbed directions and for the first step
        A = jnp.pad(whole.A[0], ((0, 0), (0, added), (0, 0)))
        A = jax.lax.dynamic_update_slice(
            A, jnp.swapaxes(data, 0, 1).astype(A.dtype), (0, slots.weight, 0)
        )
        rows = jnp.pad(paths.rows, ((0, 0), (0, 0), (0, added)))
        unit_vectors = jnp.eye(p)[:, None, :] * share[:, None]
        perturbation = jax.lax.dynamic_update_slice(
            jnp.zeros_like(rows), unit_vectors, (0, 0, slots.weight)
        )
        P = jnp.pad(whole.P, ((0, 0), (0, added), (0, 0)))
        state = ConditionedState(
            P=P[0],
            A=A,
            rows=rows,
            head=paths.head,
            sample_rank=paths.sample_rank,
            weight_rank=paths.weight_rank + p,
            selected=whole.selected[0],
            signals=whole.signals[0],
            draws=jax.tree.map(lambda leaf: leaf[0], whole.draws),
        )
        memory_perturbation = None
        if paths.memory is not None:
            # Further sets of rows, such as a velocity, are not perturbed themselves.
            memory_rows = pad_axes(paths.memory.rows, added, -1)
            state = state._replace(memory=paths.memory._replace(rows=memory_rows))
            memory_perturbation = jnp.zeros_like(memory_rows)
        # Bounded memory is not available with two times: no history.
        copies = paths_from_state(
            perturbed, state, whole.quasi_normals[0], paths.counters, A.dtype, 0
        )
        # Counters continue, so that the copies see the same random numbers as the paths.
        copies = copies._replace(
            P=P,
            perturbation=perturbation,
            gradient_directions=paths.gradient_directions,
            memory_perturbation=memory_perturbation,
        )
        return rechunk(copies, chunks, 0)

    return jax.vmap(perturb_set)(paths, normals)


def _pad_together(arrays: list[np.ndarray], axis: int) -> np.ndarray:
    """Rows (replicate, unit, blocks, directions) of different capacities in one array.

    `axis` 0 concatenates replicates, 1 stacks times.
    """
    longest = max(array.shape[-1] for array in arrays)
    padded = [
        np.pad(array, ((0, 0), (0, 0), (0, 0), (0, longest - array.shape[-1]))) for array in arrays
    ]
    return np.concatenate(padded) if axis == 0 else np.stack(padded, axis=1)
