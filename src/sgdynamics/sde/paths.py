"""Paths of the SDE: the simulator that takes the steps of `sde.scheme`, and their length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import (
    IntScalar,
    Nodes,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
)
from sgdynamics.base.controls import Schedule, piece_edges, values_at
from sgdynamics.base.padding import power_of_two
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import MARGIN, choose_quadrature, population_risk
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.results.clock import plan_steps
from sgdynamics.sde.drift import SdeState, state_overlaps
from sgdynamics.sde.scheme import sde_step
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    RunSetting,
    Simulator,
    run,
)

# Relative error of the risk due to the step length, on the noiseless path.
STEP_TOLERANCE = 2e-3
# Numbers of steps with which the search for a step length starts and ends.
FIRST_STEPS, MOST_STEPS = 64, 1 << 14


class VariableStepSimulator(Simulator):
    """A simulator whose steps have different lengths.

    Steps edges[i] to edges[i + 1] have length lengths[i], in t, or in alpha if lr is a schedule.
    """

    divides_over_devices = True

    def set_steps(self, edges: np.ndarray, lengths: np.ndarray) -> None:
        """Set the number and length of the steps in each interval between save points."""
        # The numbers of save points are shapes: padded to a power of two, similar ones share a
        # compilation. Padded intervals start at the largest integer and are never reached.
        padding = power_of_two(len(lengths)) - len(lengths)
        last_length = lengths[-1] if len(lengths) else 0.0
        starts = np.cumsum(np.diff(edges) * lengths)[:-1]
        self.edges = np.concatenate([edges, np.full(padding, np.iinfo(np.int64).max)])
        self.lengths = np.concatenate([lengths, np.full(padding, last_length)])
        self.interval_starts = np.concatenate([[0.0], starts, np.zeros(padding)])

    @property
    def grain(self) -> int:
        # Random numbers are drawn step by step, so that a call may end at any step.
        return 1


def raw_blocks(problem: Problem, sizes: np.ndarray) -> np.ndarray:
    """Return which covariance blocks are integrated in their coordinates.

    These are the blocks of a spectrum with no more coordinates than signals and rows.
    """
    return (sizes <= problem.structure.fields) & (len(sizes) > 1)


class PathInputs(NamedTuple):
    """Traced inputs of the steps of all paths.

    Attributes
    ----------
    nodes : dict
        Nodes of the expectations.
    parameters : dict
        Parameters of the problem, with the frames of raw blocks.
    algorithm : dict
        Parameters of the algorithm, which may be schedules.
    rates : dict
        Rates of `sde.scheme.sde_step` that do not depend on the time, and the batch size.
    edges : array of int, (intervals + 1,)
        Steps at which the step length changes.
    lengths : array, (intervals,)
        Step length in each interval.
    interval_starts : array, (intervals + 1,)
        Time at which each interval starts.
    """

    nodes: Nodes
    parameters: Parameters
    algorithm: Parameters
    rates: Parameters
    edges: Int[Numeric, " edges"]
    lengths: Float[Numeric, " intervals"]
    interval_starts: Float[Numeric, " edges"]


class SdePaths(VariableStepSimulator):
    """Paths of the SDE. One step of the simulator is one step of the scheme.

    `higher_order` includes the terms of relative order 1/d of the drift, and `amount` is a factor
    of the variance of the noise.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        setting: RunSetting[Start],
        higher_order: bool,
        amount: float = 1.0,
    ) -> None:
        start, block_sizes, dimension = setting.start, setting.block_sizes, setting.dimension
        self.structure = problem.structure
        self.quadrature = choose_quadrature(problem, start.Q_blocks, MARGIN)
        nodes = expectation_of(self.structure).nodes(self.quadrature, flow=False)
        # All paths use the first replicate of the nodes.
        self.nodes = {name: replicates[0] for name, replicates in nodes.items()}
        self.parameters = problem.parameters
        self.algorithm = algorithm.parameters
        raw = raw_blocks(problem, block_sizes)
        # Raw blocks have so few coordinates that the terms of relative order 1/d matter there.
        higher_order = higher_order or bool(raw.any())
        self.higher_order = higher_order
        # At finite d the frame takes K + p coordinates from every block.
        inside = self.structure.fields if higher_order else 0
        # A scheduled batch size is among the parameters of the algorithm.
        batch = algorithm.batch if algorithm.counts else np.nan
        # A raw block has no coordinates outside of its columns.
        self.rates = {
            "batch": np.float64(batch),
            "inverse_dimension": np.float64(1.0 / dimension),
            "outside": np.where(raw, 0, block_sizes - inside) / dimension,
            "shares": np.where(raw, 0, block_sizes) / dimension,
            "amount": np.float64(amount),
        }
        if raw.any():
            self.rates["raw"] = raw
            # The signals in the coordinates of a raw block, and which columns are coordinates.
            is_coordinate = np.arange(self.structure.fields) < block_sizes[:, None]
            frame = signal_frames(problem, block_sizes)
            raw_parameters = {"frame": frame, "inside": is_coordinate.astype(np.float64)}
            self.parameters = {**self.parameters, **raw_parameters}
        # initial factor form W = [T | L]
        T, L = compressed_rows(problem, start, block_sizes)
        self.rows = np.concatenate([T, L], axis=-1)
        self.head = start.a

    def initial(self, chosen: np.ndarray) -> SdeState:
        return SdeState(jnp.asarray(self.rows[chosen]), jnp.asarray(self.head[chosen]))

    def advance(
        self,
        state: SdeState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        inputs = PathInputs(
            self.nodes,
            self.parameters,
            self.algorithm,
            self.rates,
            self.edges,
            self.lengths,
            self.interval_starts,
        )
        static = (self.structure, self.quadrature, self.higher_order)
        return _advance_paths(
            static,
            observation.observe,
            inputs,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: SdeState) -> dict[str, Numeric]:
        return _path_overlaps(self.structure, self.parameters, state)


@partial(jax.jit, static_argnums=0)
def _path_overlaps(
    structure: Structure, parameters: Parameters, state: SdeState
) -> dict[str, Numeric]:
    """Return M, Q and a of all runs."""
    M, Q = jax.vmap(lambda rows: state_overlaps(structure, parameters, rows))(state.rows)
    return {"M": M, "Q": Q, "a": state.head}


@partial(jax.jit, static_argnums=(0, 1))
def _advance_paths(
    static: tuple[Structure, Quadrature, bool],
    observe: Observe | None,
    inputs: PathInputs,
    state: SdeState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> tuple[SdeState, Int[Numeric, " runs"], PyTree]:
    """Advance all runs from step `since` to step `end`.

    After each step `observe`, if there is one, updates the records of each run, such as the first
    step at which a stopping criterion was met. Returns the states, the last step at which each run
    was finite, and the records.
    """
    structure, quadrature, higher_order = static
    parameters, algorithm, rates = inputs.parameters, inputs.algorithm, inputs.rates

    def step(
        index: IntScalar, carry: tuple[SdeState, Array, PyTree]
    ) -> tuple[SdeState, Array, PyTree]:
        state, last_finite, records = carry
        # Schedules are evaluated at the middle of the step.
        interval = jnp.searchsorted(inputs.edges, index, side="right") - 1
        length = inputs.lengths[interval]
        steps_in_interval = index - inputs.edges[interval]
        middle = inputs.interval_starts[interval] + (steps_in_interval + 0.5) * length
        # With a schedule the steps are in alpha, otherwise in t; alpha = steps B/d = t B/lr.
        in_alpha = isinstance(algorithm["lr"], Schedule)
        batch = algorithm.get("batch", rates["batch"])
        alpha = middle if in_alpha else middle * batch / algorithm["lr"]
        current_parameters, hyperparameters = values_at((parameters, algorithm), alpha)
        batch = hyperparameters.get("batch", rates["batch"])
        current_rates = {**rates, "noise_rate": hyperparameters["lr"] / batch}
        if "update" in hyperparameters:
            # The only update with paths is a temperature, which counts lengths in units of D.
            unit = hyperparameters.get("unit", 1.0)
            current_rates["temperature"] = hyperparameters["update"]["temperature"] / unit
        # dt = (lr/B) dalpha
        length = length * current_rates["noise_rate"] if in_alpha else length

        def step_run(
            path: SdeState, key: RandomKey, run_records: PyTree
        ) -> tuple[SdeState, PyTree]:
            path = sde_step(
                structure,
                quadrature,
                higher_order,
                inputs.nodes,
                current_parameters,
                hyperparameters,
                current_rates,
                path,
                length,
                # A key per step: the numbers do not depend on how the steps are divided into calls.
                jax.random.fold_in(key, index),
            )
            if observe is not None:
                M, Q = state_overlaps(structure, parameters, path.rows)
                overlaps = {"M": M, "Q": Q, "a": path.head}
                run_records = observe(shared, run_records, index + 1, overlaps)
            return path, run_records

        state, records = jax.vmap(step_run)(state, keys, records)
        # NaN fails both comparisons, so that it counts as divergence.
        is_finite = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2, 3))
        is_finite &= jnp.all(jnp.abs(state.head) < LARGEST, axis=1)
        return state, jnp.where(is_finite, index + 1, last_finite), records

    carry = (state, jnp.broadcast_to(since, keys.shape), records)
    return jax.lax.fori_loop(since, end, step, carry)


def with_edges(
    parameters: Parameters, algorithm: OnePassSGD, save_points: np.ndarray
) -> np.ndarray:
    """Return the save points together with the edges of piecewise schedules before the last one.

    No step crosses an edge.
    """
    edges = piece_edges((parameters, algorithm.parameters))
    if not algorithm.scheduled:
        edges = edges * (float(algorithm.lr) / float(algorithm.batch))
    return np.union1d(save_points, edges[edges < save_points[-1]])


def sde_step_length(
    problem: Problem, algorithm: OnePassSGD, setting: RunSetting[Start], end: float
) -> tuple[float, float]:
    """Return a step length with an error below STEP_TOLERANCE, and that error.

    The error is measured on the noiseless path from the first run of the start by halving steps.
    """
    start = setting.start
    first = Start(start.M_blocks[:1], start.Q_blocks[:1], start.a[:1])
    noiseless = replace(setting, start=first)
    simulator = SdePaths(problem, algorithm, noiseless, higher_order=True, amount=0.0)
    times = with_edges(problem.parameters, algorithm, np.linspace(0, end, 17))
    previous_risk = None
    count, error = FIRST_STEPS, np.inf
    while True:
        edges, lengths = plan_steps(times, end / count)
        simulator.set_steps(edges, lengths)
        overlaps, _ = run(simulator, 1, edges, 0, "step length", False)
        # The parameters of the start are enough here: the risk only sets the scale of the error.
        risk, _ = population_risk(problem.at(0.0), overlaps)
        if previous_risk is not None:
            error = float(np.max(np.abs(risk - previous_risk)) / np.max(np.abs(previous_risk)))
            # Heun's method has order 2, so the finer path is off by a third of the change.
            if error / 3 <= STEP_TOLERANCE or count >= MOST_STEPS:
                return end / count, error / 3
        previous_risk, count = risk, 2 * count
