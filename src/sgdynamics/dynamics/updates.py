"""Problems of fields under an optimiser (momentum, clipping, Adam, ...), as the solvers see them.

The ODE is the mean of one step of the update itself. Its state has all sets of rows that the
update moves on the time scale of the weights, and the update's scalars and mean squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.update import Update, count_row_sets
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import SCHEDULE_CHECK_POINTS, is_scheduled
from sgdynamics.dynamics.adapter import Criterion
from sgdynamics.dynamics.fields import OVERLAPS, FieldDynamics, FieldWatch
from sgdynamics.dynamics.requests import Arrays, SolveRequest
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.head_squares import head_square_nodes
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.case import Case, Watch, in_units
from sgdynamics.ode.update_points import field_points
from sgdynamics.ode.update_step import (
    COMPARISON_DIMENSION,
    LIMIT_DIMENSION,
    UpdateStep,
    count_reads,
    has_head_squares,
    slow_rows,
)
from sgdynamics.problems.losses import label_noise
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.structure import Structure
from sgdynamics.results.build import Labels
from sgdynamics.results.clock import Clock, integration_points
from sgdynamics.results.variables import VARIABLES
from sgdynamics.simulation.running import RunSetting, Simulator

# Two mean steps at different large D agree if they differ by less than SAME times the largest
# rate, which counts as at least SMALLEST.
SAME, SMALLEST = 1e-3, 1e-3
TRIED_TAU = 0.1  # steps/d at which they are compared: at the start a memory is still empty
# Accuracy of the overlaps where a step is averaged over points; more is not worth its cost.
AVERAGED_TOLERANCE = 1e-4
# Largest refinement of the points where fields are wide: eight times as many in three dimensions.
FINEST = 2.0
JUMP_TOLERANCE = 3e-5  # local tolerance where single points jump: their share of a mean
ROW_VARIABLES = ("rows_M", "rows_Q", "rows_a")  # overlaps of all sets of rows
UPDATE_VARIABLES = ("update_scalars", "update_squares", "update_vectors")


class UpdateDynamics(FieldDynamics):
    """A `Problem` under one-pass SGD with an update."""

    def state_arrays(self, initial_state: Start) -> Arrays:
        return super().state_arrays(initial_state) | self._slow_state(initial_state)

    def _slow_state(self, initial_state: Start) -> Arrays:
        """All sets of rows that move as slowly as the weights, with a leading axis of runs."""
        structure, law = self.structure, self.algorithm.law
        states = all_rows(
            self.algorithm.stepping, initial_state, structure.width, structure.trained
        )
        is_slow = [name not in law.fast_vectors for name in law.vector_names(structure.trained)]
        states["update_vectors"] = states["update_vectors"][:, np.array(is_slow, bool)]
        sets = 1 + len(slow_rows(law))
        rows = self.structure.width * sets
        slow = {
            "rows_M": states["rows_M"][:, :, :rows],
            "rows_Q": states["rows_Q"][:, :, :rows, :rows],
            "rows_a": states["rows_a"][:, : self.structure.head_size * sets],
        }
        return states | slow

    def check_memory(self, dimension: int | None, end: float) -> None:
        if dimension is None:
            return
        algorithm = self.algorithm
        per = algorithm.per if algorithm.stated is None else algorithm.stated.per
        unit = {
            "dimension": "the dimension",
            "trace": "the trace of the inputs",
            "step": 'per="step"',
        }[per]
        D = dimension * float(algorithm.unit)
        algorithm.stepping.check_memory(D, np.linspace(0.0, end, SCHEDULE_CHECK_POINTS), unit)

    def public_states(self, states: Arrays, leading_axes: int = 1) -> Arrays:
        return super().public_states({name: states[name] for name in OVERLAPS}, leading_axes)

    def simulator(self, setting: RunSetting[Start]) -> Simulator:
        if setting.method == "exact" and self.algorithm.law.coordinatewise:
            fix = (
                f"{self.algorithm.update} acts on each coordinate separately. It does not commute "
                "with rotations of the inputs and does not close on overlaps at finite d. "
                "Use method='direct', or solve_ode"
            )
            raise checks.reject("method", setting.method, fix)
        return super().simulator(setting)

    # the ODE

    def ode_request(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: float | None = None,
        atol: float | None = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        algorithm, law, structure = self.algorithm, self.algorithm.law, self.structure
        self._require_ode(dimension)
        if quadrature is None:
            quadrature = choose_quadrature(
                self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN
            )
        shared: dict[str, Any] = {
            "problem": self.parameters,
            "algorithm": algorithm.parameters,
            "large": np.float64(LIMIT_DIMENSION),
            **self._units(ROW_VARIABLES[:2], (*ROW_VARIABLES[2:], *UPDATE_VARIABLES)),
        }
        states = in_units(shared, self._slow_state(initial_state))
        sums_noise = self._sums_label_noise()
        noise_law = structure.sample.noise_law if sums_noise else None
        if sums_noise:
            # The step sees values of the noise, not the normals that they are made of.
            structure = replace(structure, sample=replace(structure.sample, noise_law=None))
        field = UpdateStep(structure, quadrature, algorithm.batch, law, sums_noise, noise_law)
        replicates: dict[str, Any] = {"nodes": expectation_of(structure).nodes(quadrature, False)}
        if has_head_squares(law, structure):
            replicates = _with_head_nodes(structure, quadrature, replicates["nodes"])
        if not law.linear:
            first_run = {name: value[0] for name, value in states.items()}
            reads = count_reads(field, shared, first_run)
            # Gradients that are narrow compared with the fields need narrower points.
            largest_variance = float(np.abs(initial_state.Q_blocks).sum(axis=1).max())
            fine = min(max(1.0, np.sqrt(largest_variance)), FINEST)
            quiet = sums_noise or self._is_noiseless()
            # The signs of the gradient of a head jump where its derivative by the head vanishes.
            jumps = law.jumps and structure.trained
            replicates = field_points(
                structure, algorithm.batch, reads, quiet=quiet, fine=fine, jumps=jumps
            )
        points = integration_points(algorithm, clock)
        case = Case(field, replicates, shared, states, points, {})
        if not law.scales:
            self._require_limit(case)
        accuracy = AVERAGED_TOLERANCE if rtol is None and not law.linear else rtol
        case = replace(case, tolerance=self._tolerance(case, accuracy, atol))
        return SolveRequest(self, initial_state, clock, dimension, rtol, atol, case, quadrature)

    def _require_ode(self, dimension: int | None) -> None:
        """Raise ValueError, with the reason, for an update that has no ODE."""
        algorithm = self.algorithm
        if "snr = inf" in self.definition.kinds:
            fix = "at snr = infinity the drift jumps, and only plain SGD slides: give a finite snr"
            raise checks.reject("update", algorithm.update, fix)
        if algorithm.flow:
            fix = "gradient flow has no updates: give a learning rate above 0"
            raise checks.reject("lr", algorithm.lr, fix)
        if dimension is not None and self.definition.spectrum is None:
            fix = (
                "the mean step of an update is known for d -> infinity only: leave dimension out, "
                "or take sgd.simulate at this d"
            )
            raise checks.reject("dimension", dimension, fix)
        if not algorithm.law.linear and "other inputs" in self.definition.kinds:
            fix = (
                "its step is averaged over points, which do not support noise on inputs nor "
                "covariances of contexts: take sgd.simulate"
            )
            raise checks.reject("update", algorithm.update, fix)
        if self.no_ode_reason is not None:
            raise checks.reject("update", algorithm.update, self.no_ode_reason)

    @property
    def no_ode_reason(self) -> str | None:
        law = self.algorithm.law
        if law.no_limit or law.memory != "fast" or law.linear:
            return law.no_limit or None
        return (
            "it remembers O(1) steps and is not linear in the gradient. The mean of one step is "
            "then not its ODE, because its memory is correlated with the next gradients. Use "
            'sgd.simulate, or a memory of O(D) steps ("memory=c")'
        )

    def _has_only_label_noise(self) -> bool:
        """Whether the only draw of a sample is its label noise."""
        gaussian = replace(self.structure.sample, noise_law=None)
        is_plain = gaussian == type(gaussian)(gaussian.signals)
        return is_plain and "noise" in {**self.parameters, **self.parameters.get("user", {})}

    def _is_noiseless(self) -> bool:
        """Whether there is no label noise to average over."""
        if not self._has_only_label_noise() or not self.structure.has_excess:
            return False
        noise = label_noise(self.parameters)
        return not is_scheduled(noise) and float(noise) == 0.0

    def _sums_label_noise(self) -> bool:
        """Whether the average over label noise is an explicit sum.

        It is where the update jumps and the gradient of a batch is linear in one noise value.
        """
        is_single = self.algorithm.batch == 1 and self.structure.has_excess
        has_noise = self._has_only_label_noise() and not self._is_noiseless()
        return self.algorithm.law.jumps and is_single and has_noise

    def _require_limit(self, case: Case) -> None:
        """Raise ValueError if the mean step in units of lr/D still depends on a large D."""
        algorithm = self.algorithm
        lr = algorithm.batch if algorithm.scheduled else float(algorithm.lr)
        replicate, state = jax.tree.map(lambda leaf: leaf[0], (case.replicates, case.states))
        rates = []
        for D in (LIMIT_DIMENSION, COMPARISON_DIMENSION):
            shared = case.shared | {"large": np.float64(D)}
            step = _rates(case.field, replicate, shared, TRIED_TAU * lr, state)
            rates.append(np.concatenate([np.asarray(value).reshape(-1) for value in step.values()]))
        size = np.abs(rates[0]).max(initial=SMALLEST)
        difference = np.abs(rates[0] - rates[1]).max(initial=0.0)
        if not np.all(np.isfinite(rates)) or difference > SAME * size:
            fix = (
                f"the mean step still depends on D (it differs between D = {LIMIT_DIMENSION:g} and "
                f"D = {COMPARISON_DIMENSION:g}), so that this update has no high-dimensional "
                "limit. Scale gradient norms with sqrt(D) and memories with 1/D (fixed ones are "
                "memory='fast'), sam's ascent as reach="
            )
            raise checks.reject("update", algorithm.update, fix)

    @property
    def _is_sampled(self) -> bool:
        return not self.algorithm.law.linear or super()._is_sampled

    @property
    def _roughness(self) -> float:
        law = self.algorithm.law
        has_jumps = law.jumps and not law.linear and not self._sums_label_noise()
        return JUMP_TOLERANCE if has_jumps else 0.0

    def unpack(self, states: Arrays) -> Arrays:
        return with_weights(states, self.structure.width)

    def merge_bins(self, initial_state: Start) -> tuple[FieldDynamics, Start] | None:
        return None if initial_state.beside is not None else super().merge_bins(initial_state)

    def exit_watch(
        self, criterion: Criterion, initial_state: Start, dimension: int | None
    ) -> tuple[Watch, Parameters]:
        watch, parameters = super().exit_watch(criterion, initial_state, dimension)
        assert isinstance(watch, FieldWatch)
        return WeightsWatch(watch.structure, watch.quadrature, watch.criterion), parameters

    # results

    def observables(self, states: Arrays, risk: np.ndarray, clock: Clock) -> dict[str, Any]:
        values = super().observables(states, risk, clock)
        for name in ("rows_M", "rows_Q"):
            if name in states:
                values[name] = states[name].sum(axis=2)
                if self.structure.blocks > 1:
                    values[f"{name}_block"] = states[name]
        for name in ("rows_a", *UPDATE_VARIABLES):
            if name in states and states[name].size:
                values[name] = states[name]
        return values

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        law, width = self.algorithm.law, self.structure.width
        variables, coordinates = super().labels(values)
        if "rows_a" in values and self.structure.top is not None:
            # The numbers of a top belong to no row.
            entries = VARIABLES["rows_a"]._replace(axes=("set_entry",))
            variables = {**variables, "rows_a": entries}
        if "rows_a" in values:
            sets = ["weights", *law.rows][: values["rows_Q"].shape[-1] // width]
            meaning = {"long_name": "which set of rows"}
            coordinates["row_set"] = ("set_row", np.repeat(sets, width), meaning)
        names_of_axes = {
            "update_scalar": law.scalars,
            "update_square": law.squares,
            "update_vector": law.vector_names(self.structure.trained),
        }
        for name, names in names_of_axes.items():
            if f"{name}s" in values:
                if name == "update_vector" and values[f"{name}s"].shape[-2] < len(names):
                    names = law.slow_vector_names(self.structure.trained)
                meaning = {"long_name": "what the update keeps"}
                coordinates[name] = (name, np.array(names), meaning)
        return Labels(variables, coordinates)


def _with_head_nodes(
    structure: Structure, quadrature: Quadrature, nodes: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Nodes of the moments and of the squares of the head, with as many replicates of both."""
    count = len(next(iter(nodes.values())))
    head_nodes = head_square_nodes(structure, quadrature, count)
    needed = len(next(iter(head_nodes.values())))
    if needed > count:
        nodes = {name: np.repeat(value[:1], needed, axis=0) for name, value in nodes.items()}
    return {"nodes": nodes, "head_nodes": head_nodes}


def with_weights(states: Mapping[str, Any], width: int) -> dict[str, Any]:
    """States of all sets of rows, with M, Q and a of the weights among them.

    Empty variables are left out, and so are the sets of rows if the weights are the only one.
    """
    sets = states["rows_Q"].shape[-1] // width
    only_weights = sets == 1
    stored = {
        name: value
        for name, value in states.items()
        if value.size and not (only_weights and name.startswith("rows_"))
    }
    return stored | {
        "M": states["rows_M"][..., :width, :],
        "Q": states["rows_Q"][..., :width, :width],
        "a": states["rows_a"][..., : states["rows_a"].shape[-1] // sets],
    }


def all_rows(update: Update, start: Start, width: int, trained: bool = False) -> Arrays:
    """All sets of rows of a start, with a leading axis of runs; missing sets are 0."""
    rows = update_start(update, start, trained)
    sets = count_row_sets(update.law)
    missing = width * sets - rows.M.shape[2]
    missing_heads = sets * start.a.shape[1] - rows.a.shape[1]
    return {
        "rows_M": np.pad(rows.M, ((0, 0), (0, 0), (0, missing), (0, 0))),
        "rows_Q": np.pad(rows.Q, ((0, 0), (0, 0), (0, missing), (0, missing))),
        "rows_a": np.pad(rows.a, ((0, 0), (0, missing_heads))),
        "update_scalars": rows.scalars,
        "update_squares": rows.squares,
        "update_vectors": rows.vectors,
    }


@partial(jax.jit, static_argnums=0)
def _rates(
    field: UpdateStep, replicate: PyTree, shared: Parameters, position: Scalar, state: State
) -> State:
    return field(replicate, shared, position, state)


@dataclass(frozen=True)
class WeightsWatch(FieldWatch):
    """The same function of the weights among all sets of rows."""

    def value(self, shared: Parameters, state: State) -> Float[Numeric, ""]:
        if "rows_M" not in state:  # the state of a simulation
            return super().value(shared, state)
        units = shared.get("units", {})
        rows = {name: state[name] * units.get(name, 1.0) for name in ROW_VARIABLES}
        weights = with_weights(rows, self.structure.width)
        without_units = {name: value for name, value in shared.items() if name != "units"}
        return super().value(without_units, {name: weights[name] for name in OVERLAPS})
