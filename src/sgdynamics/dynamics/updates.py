"""Problems of fields under another update than plain steps: its ODE from its own lines, and what it keeps beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from sgdynamics.algorithms.updates.initial_state import beginning
from sgdynamics.algorithms.updates.update import copies
from sgdynamics.base import checks
from sgdynamics.base.controls import SCHEDULE_CHECK_POINTS, is_scheduled
from sgdynamics.dynamics.fields import FieldDynamics, FieldWatch
from sgdynamics.dynamics.interface import Dynamics, SolveRequest
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN as QUADRATURE_MARGIN
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.integrate import Case, Watch, in_units
from sgdynamics.ode.update_points import field_points
from sgdynamics.ode.update_step import LARGE, LESS_LARGE, UpdateStep, count_reads, slow_rows
from sgdynamics.problems.losses import label_noise
from sgdynamics.problems.starts import Start
from sgdynamics.results.clock import Clock
from sgdynamics.simulation.running import Simulator

SAME = (
    1e-3  # how close the mean steps at the two large D have to be, relative to the largest of them
)
SMALLEST = 1e-3  # what counts as no motion at all there
AVERAGED_TOLERANCE = 1e-4  # wanted of overlaps where a step is averaged over points: more would cost more than it is worth
FINEST = 2.0  # how much finer points are made where fields are wide: in three dimensions eight times as many
JUMP_TOLERANCE = 3e-5  # of an integrator where single points jump: their share of a mean
TRIED_TAU = 0.1  # steps/d at which they are compared: away from the start, where a memory is empty
KEPT = ("rows_M", "rows_Q", "rows_a", "update_scalars", "update_squares")  # states of the ODE


class UpdateDynamics(FieldDynamics):
    """A `Problem` under one-pass SGD with an update."""

    def states(self, initial_state: Start) -> dict[str, np.ndarray]:
        return super().states(initial_state) | self._kept(initial_state)

    def _kept(self, initial_state: Start) -> dict[str, np.ndarray]:
        """All slow sets of a start, with a leading axis of runs."""
        every = all_rows(self.algorithm.stepping, initial_state, self.structure.width)
        rows = self.structure.width * (1 + len(slow_rows(self.algorithm.law)))
        cut = {
            "rows_M": every["rows_M"][:, :, :rows],
            "rows_Q": every["rows_Q"][:, :, :rows, :rows],
            "rows_a": every["rows_a"][:, :rows],
        }
        return every | cut

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

    def public_states(self, states: dict[str, np.ndarray], lead: int = 1) -> dict[str, np.ndarray]:
        return super().public_states({name: states[name] for name in ("M", "Q", "a")}, lead)

    def simulator(
        self, method: str, initial_state: Start, dimension: int, sizes: np.ndarray, **more: Any
    ) -> Simulator:
        if method == "exact" and self.algorithm.law.coordinatewise:
            fix = "it acts on each coordinate by itself, does not commute with rotations of the inputs, and does not close on overlaps"
            raise checks.reject(
                "method",
                method,
                f"{self.algorithm.update}: {fix} at finite d: take method='direct', or solve_ode",
            )
        return super().simulator(method, initial_state, dimension, sizes, **more)

    # ------------------------------------------------------------------------------------------------------------- the ODE

    def prepare(
        self,
        initial_state: Start,
        clock: Clock,
        dimension: int | None,
        rtol: Any = None,
        atol: Any = None,
        quadrature: Quadrature | None = None,
    ) -> SolveRequest:
        algorithm, law, structure = self.algorithm, self.algorithm.law, self.structure
        self._has_limit(dimension)
        quadrature = (
            choose_quadrature(self.definition, initial_state.Q_blocks, QUADRATURE_MARGIN)
            if quadrature is None
            else quadrature
        )
        shared: dict[str, Any] = {
            "problem": self.parameters,
            "algorithm": algorithm.parameters,
            "large": np.float64(LARGE),
        }
        shared |= self._units(KEPT[:2], KEPT[2:])
        states = in_units(shared, self._kept(initial_state))
        by_noise, noise_law = self._by_noise(), structure.sample.noise_law
        if (
            by_noise
        ):  # the step sees values of the noise, and not the normals that these are made of
            structure = replace(structure, sample=replace(structure.sample, noise_law=None))
        field = UpdateStep(
            structure, quadrature, algorithm.batch, law, by_noise, noise_law if by_noise else None
        )
        each = {"nodes": expectation_of(structure).nodes(quadrature, False)}
        if not law.linear:
            reads = count_reads(field, shared, {name: value[0] for name, value in states.items()})
            # gradients that are narrow beside the fields need narrower points
            widest = float(np.abs(initial_state.Q_blocks).sum(axis=1).max())
            fine = min(max(1.0, np.sqrt(widest)), FINEST)
            each = field_points(
                structure, algorithm.batch, reads, quiet=field.by_noise or self._quiet(), fine=fine
            )
        case = Case(field, each, shared, states, self.variable(clock), {})
        if not law.scales:
            self._try_limit(case)
        wanted = AVERAGED_TOLERANCE if rtol is None and not law.linear else rtol
        return SolveRequest(
            self,
            initial_state,
            clock,
            dimension,
            rtol,
            atol,
            replace(case, tolerance=self._tolerance(case, wanted, atol)),
        )

    def _has_limit(self, dimension: int | None) -> None:
        """Refuse what has no ODE, with the reason."""
        algorithm = self.algorithm
        if "snr = inf" in self.definition.kinds:
            raise checks.reject(
                "update",
                algorithm.update,
                "at snr = infinity the drift jumps, and only plain SGD slides: give a finite snr",
            )
        if algorithm.flow:
            raise checks.reject(
                "lr", algorithm.lr, "gradient flow knows no updates: give a learning rate above 0"
            )
        if dimension is not None and self.definition.spectrum is None:
            fix = "the mean step of an update is known as d -> infinity: leave dimension out, or take sgd.simulate at this d"
            raise checks.reject("dimension", dimension, fix)
        if not algorithm.law.linear and "other inputs" in self.definition.kinds:
            fix = "its step is averaged over points, which know no noise on inputs nor covariances of contexts: take sgd.simulate"
            raise checks.reject("update", algorithm.update, fix)
        if self.without_ode is not None:
            raise checks.reject("update", algorithm.update, self.without_ode)

    @property
    def without_ode(self) -> str | None:
        law = self.algorithm.law
        if law.no_limit or law.memory != "fast" or law.linear:
            return law.no_limit or None
        return (
            "it remembers O(1) steps and is not linear in the gradient: the mean of one step is not its ODE, as what it remembers is "
            'correlated with what comes; take sgd.simulate, or a memory of O(D) steps ("memory=c")'
        )

    def _plain_noise(self) -> bool:
        """Whether the only draw of a sample is its label noise."""
        gaussian = replace(self.structure.sample, noise_law=None)
        return gaussian.plain and "noise" in {**self.parameters, **self.parameters.get("user", {})}

    def _quiet(self) -> bool:
        """Whether there is no label noise to average over."""
        if not self._plain_noise() or not self.structure.has_excess:
            return False
        noise = label_noise(self.parameters)
        return not is_scheduled(noise) and float(noise) == 0.0

    def _by_noise(self) -> bool:
        """Whether label noise is summed by hand: of one sample, whose gradient is linear in it."""
        one = self.algorithm.batch == 1 and self.structure.has_excess and self._plain_noise()
        return self.algorithm.law.jumps and one and not self._quiet()

    def _try_limit(self, case: Case) -> None:
        """Refuse an update whose mean step is another at another large D."""
        place = TRIED_TAU * (
            self.algorithm.batch if self.algorithm.scheduled else float(self.algorithm.lr)
        )
        one = [jax.tree.map(lambda leaf: leaf[0], part) for part in (case.each, case.states)]
        both = [
            _rates(case.field, one[0], case.shared | {"large": np.float64(D)}, place, one[1])
            for D in (LARGE, LESS_LARGE)
        ]
        flat = [
            np.concatenate([np.asarray(value).reshape(-1) for value in rates.values()])
            for rates in both
        ]
        size = np.abs(flat[0]).max(initial=SMALLEST)
        if (
            not np.all(np.isfinite(flat))
            or np.abs(flat[0] - flat[1]).max(initial=0.0) > SAME * size
        ):
            fix = (
                f"its mean step is another at D = {LARGE:g} than at D = {LESS_LARGE:g}: these numbers have no limit in units of lr/D. "
                "Count lengths of gradients in sqrt(D), memories in c/D (fixed ones are memory='fast'), sam's ascent as reach="
            )
            raise checks.reject("update", self.algorithm.update, fix)

    @property
    def _sampled(self) -> bool:
        return not self.algorithm.law.linear or super()._sampled

    @property
    def _roughness(self) -> float:
        law = self.algorithm.law
        return JUMP_TOLERANCE if law.jumps and not law.linear and not self._by_noise() else 0.0

    def unpacked(self, states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return with_weights(states, self.structure.width)

    def coarser(self, initial_state: Start) -> tuple[Dynamics, Start] | None:
        return None if initial_state.beside is not None else super().coarser(initial_state)

    def watched(
        self, criterion: Any, initial_state: Start, dimension: int | None
    ) -> tuple[Watch, Any]:
        watch, numbers = super().watched(criterion, initial_state, dimension)
        return WeightsWatch(watch.structure, watch.quadrature, watch.criterion), numbers  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------------------------------- results

    def observed(
        self, states: dict[str, np.ndarray], risk: np.ndarray, clock: Clock
    ) -> dict[str, np.ndarray]:
        found = super().observed(states, risk, clock)
        for name in ("rows_M", "rows_Q"):
            if name in states:
                found[name] = states[name].sum(axis=2)
                if self.structure.blocks > 1:
                    found[f"{name}_block"] = states[name]
        return found | {
            name: states[name] for name in KEPT[2:] if name in states and states[name].size
        }

    def named(self, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        law, p, found = self.algorithm.law, self.structure.width, {}
        if "rows_a" in values:
            sets = ["weights", *law.rows][: values["rows_a"].shape[-1] // p]
            found["row_set"] = ("set_row", np.repeat(sets, p), {"long_name": "which set of rows"})
        for name, names in (("update_scalar", law.scalars), ("update_square", law.squares)):
            if f"{name}s" in values:
                found[name] = (name, np.array(names), {"long_name": "what the update keeps"})
        return found


def with_weights(states: dict[str, np.ndarray], p: int) -> dict[str, np.ndarray]:
    """States of all sets of rows, with M, Q and a of the weights among them; what is empty, or the weights alone, is left out."""
    alone = states["rows_a"].shape[-1] == p
    kept = {
        name: value
        for name, value in states.items()
        if value.size and not (alone and name.startswith("rows_"))
    }
    return kept | {
        "M": states["rows_M"][..., :p, :],
        "Q": states["rows_Q"][..., :p, :p],
        "a": states["rows_a"][..., :p],
    }


def all_rows(update: Any, initial_state: Start, p: int) -> dict[str, np.ndarray]:
    """All sets of a start, with a leading axis of runs: those that it does not have are 0."""
    every = beginning(update, initial_state)
    more = p * copies(update.law) - every.M.shape[2]
    M, a = (
        np.pad(every.M, ((0, 0), (0, 0), (0, more), (0, 0))),
        np.pad(every.a, ((0, 0), (0, more))),
    )
    Q = np.pad(every.Q, ((0, 0), (0, 0), (0, more), (0, more)))
    return dict(zip(KEPT, (M, Q, a, every.scalars, every.squares), strict=True))


@partial(jax.jit, static_argnums=0)
def _rates(field: UpdateStep, each: Any, shared: Any, place: Any, state: Any) -> Any:
    return field(each, shared, place, state)


@dataclass(frozen=True)
class WeightsWatch(FieldWatch):
    """The same of the weights among all sets of rows."""

    def value(self, shared: Any, state: dict[str, Any]) -> Any:
        if "rows_M" not in state:  # of a simulation
            return super().value(shared, state)
        units = {name: value for name, value in shared.items() if name != "units"}
        scale = shared.get("units", {})
        rows = {name: state[name] * scale.get(name, 1.0) for name in KEPT[:3]}
        found = with_weights(rows, self.structure.width)
        return super().value(units, {name: found[name] for name in ("M", "Q", "a")})
