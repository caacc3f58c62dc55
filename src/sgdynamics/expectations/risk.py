"""The population risk of many states at once, with its error, and the choice of the resolution.

States are evaluated in chunks of fixed size, so that any number of them needs one compilation. A
*lane* is one problem with its states: problems of one structure are stacked along a first axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import IntScalar, Nodes, Numeric, Parameters, State
from sgdynamics.base.code_generator import QuicklyCompiled
from sgdynamics.base.controls import values_at
from sgdynamics.base.cores import count_cores, map_on_cores
from sgdynamics.base.padding import power_of_two
from sgdynamics.base.precision import float64
from sgdynamics.base.repetition import is_repeated
from sgdynamics.base.resources import available_bytes
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Overlaps, Quadrature
from sgdynamics.expectations.pairs import UNKNOWN
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.problems.losses import Loss
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance

CHUNK = 256
LARGE_CHUNK = 1 << 14  # for many states: the host sends few chunks
LARGE_GPU_CHUNK = 1 << 17  # the same on a GPU, which waits for each of them
BATCH = 16  # states of a chunk that are evaluated together
# Coordinates of nodes above which states are evaluated one by one on a CPU.
MANY_POINTS = 1 << 12
# Memory of a batch on a GPU, which waits for the launch of each of them, unless less is free.
MOST_BATCH_BYTES = 1 << 33
ERROR_STATES = 32  # states at which errors are estimated
FEW_ERROR_STATES = 8  # the same on a grid of more than LARGE_GRID evaluations of the loss
LARGE_GRID = 20_000
SHORT = 8  # lanes of the smaller of two programs
MARGIN = 2.0  # a quadrature chosen from a start serves rows of up to twice its squared length
# Relative standard error of a positive risk, at all states, above which it counts as unknown.
VAGUE = 0.3
REFINE_ABOVE = 1e-9  # relative error of series and grids above which the quadrature is refined
REFINE_GRID_ABOVE = 1e-4  # relative error of risks on a quick grid above which it is refined
# Largest number of evaluations of a loss on a finer grid at all states: about ten seconds.
MOST_EVALUATIONS = 5e7

# A function of a chunk of states and their number, the first state and the one after the last.
Task = tuple[Callable[[State, np.int64], Numeric], int, int]
States = dict[str, np.ndarray]  # M, Q, a (and alpha), with any leading axes


def overlaps_at(structure: Structure, parameters: Parameters, state: State) -> Overlaps:
    """The overlaps of students and signals at a state with M and Q.

    Omega_b = [[Q_b, M_b], [M_b^T, P_b]] of each block, and Omega = sum_b eigenvalue_b Omega_b.
    """
    M, Q = state["M"], state["Q"]
    gram = jnp.broadcast_to(
        parameters["gram"], (structure.blocks, structure.signals, structure.signals)
    )
    # [[Q, M], [M^T, P]] of each block
    upper = jnp.concatenate([Q, M], axis=-1)
    lower = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
    blocks = jnp.concatenate([upper, lower], axis=-2)
    return Overlaps(blocks, input_covariance.field_covariance(parameters, blocks))


def risk_at(
    structure: Structure, quadrature: Quadrature, nodes: Nodes, parameters: Parameters, state: State
) -> Float[Numeric, ""]:
    """E[loss] at one state {"M", "Q", "a"}, with one replicate of the `risk_nodes`."""
    return expectation_of(structure).risk(
        quadrature, nodes, parameters, overlaps_at(structure, parameters, state), state["a"]
    )


def _parameters_at(parameters: Parameters, state: State) -> Parameters:
    """The parameters at the alpha of a state, if they depend on it."""
    return values_at(parameters, state["alpha"]) if "alpha" in state else parameters


def _lane_risks(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    states: State,
    count: IntScalar,
) -> Float[Numeric, "lanes states replicates"]:
    """The risk of the first `count` states of each lane, for each replicate of the nodes."""

    def state_risks(parameters: Parameters, state: State) -> Float[Numeric, " replicates"]:
        parameters = _parameters_at(parameters, state)
        return jax.vmap(lambda node: risk_at(structure, quadrature, node, parameters, state))(nodes)

    batch_size = states_per_batch(states, _count_coordinates(nodes))
    return jax.lax.map(
        lambda lane: map_first_states(partial(state_risks, lane[0]), lane[1], count, batch_size),
        (parameters, states),
    )


_risks = QuicklyCompiled(_lane_risks, static_argnums=(0, 1))
# Of many points: fast code matters more than a fast compilation.
_sampled_risks = jax.jit(_lane_risks, static_argnums=(0, 1))


def states_per_batch(states: State, points: int) -> int:
    """Number of states evaluated together: few on a CPU, as many as fit into memory on a GPU.

    `points` is the number of node coordinates that each state is evaluated at.
    """
    if jax.default_backend() != "gpu":
        return 1 if _is_alone(points) else BATCH
    overlaps = sum(leaf[0, 0].size for leaf in jax.tree.leaves(states))
    free = min(MOST_BATCH_BYTES, available_bytes() / 8)
    largest = int(free) // (64 * (points + overlaps))
    return max(BATCH, 1 << (largest.bit_length() - 1))


def _is_alone(points: int) -> bool:
    """Whether states are evaluated one by one, because each of them reads many points.

    A vectorised evaluation would write the values at all points to memory, and both branches of a
    choice would be evaluated.
    """
    return points > MANY_POINTS and jax.default_backend() != "gpu"


def _count_coordinates(nodes: Nodes) -> int:
    """Number of coordinates of the nodes that each state is evaluated at."""
    return max((leaf.size for leaf in jax.tree.leaves(nodes)), default=1)


def map_first_states(
    function: Callable[[State], Numeric], states: State, count: IntScalar, batch_size: int = BATCH
) -> Numeric:
    """The values of a function at the first `count` states, and 0 for the others.

    `count` is traced, so that few and many states share one program.
    """

    def batch(index: IntScalar) -> State:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, size * index, size), states
        )

    def write_batch(index: IntScalar, values: Numeric) -> Numeric:
        return jax.lax.dynamic_update_slice_in_dim(
            values, vectorised(batch(index)), size * index, 0
        )

    length = len(states["a"])
    size = min(batch_size, length)  # both are powers of two

    def evaluate_one(state: State) -> Numeric:
        return function(jax.tree.map(lambda leaf: leaf[0], state))[None]

    # used twice, traced once
    vectorised = jax.jit(evaluate_one if size == 1 else jax.vmap(function))
    shape = jax.eval_shape(vectorised, jax.eval_shape(batch, 0))
    zeros = jnp.zeros((length, *shape.shape[1:]), shape.dtype)
    return jax.lax.fori_loop(0, (count + size - 1) // size, write_batch, zeros)


@partial(QuicklyCompiled, static_argnums=(0, 1))
def _errors(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    states: State,
) -> Float[Numeric, "lanes states 2"]:
    """The errors of the moments and of the risk at all states, one after the other."""

    def state_errors(parameters: Parameters, state: State) -> Float[Numeric, "2"]:
        parameters = _parameters_at(parameters, state)
        overlaps = overlaps_at(structure, parameters, state)
        at = Evaluation(quadrature, nodes, parameters, overlaps, state["a"])
        return jnp.stack(expectation_of(structure).estimate_errors(at))

    return jax.lax.map(
        lambda lane: jax.lax.map(partial(state_errors, lane[0]), lane[1]), (parameters, states)
    )


@float64
def population_risk(problem: Problem, states: States) -> tuple[np.ndarray, float]:
    """E[loss] at states with any leading axes, and an estimate of its largest relative error.

    The states have M (..., block, unit, signal), Q and a, and `alpha` if parameters of the problem
    depend on it. Grids are coarse at first, and finer if their error matters and the work is
    moderate.
    """
    quadrature = choose_quadrature(problem, states["Q"], MARGIN)
    (risks,) = compute_risks(
        problem.structure, quadrature, [problem.parameters], [states], quick=True
    )
    if risks.risk_error > REFINE_GRID_ABOVE:
        risks = _refine(problem, quadrature, states, risks)
    return risks.risk, max(risks.sampling, risks.worst)


def _refine(problem: Problem, quadrature: Quadrature, states: States, risks: Risks) -> Risks:
    """The risks on finer grids, until their error is small or the work becomes too large."""
    expectation = expectation_of(problem.structure)
    count = math.prod(states["a"].shape[:-1])
    size = _count_evaluations(expectation.risk_nodes(quadrature))
    finer: Quadrature | None = quadrature
    while size and finer is not None and risks.risk_error > REFINE_GRID_ABOVE:
        evaluations = _count_evaluations(expectation.risk_nodes(finer, quick=False))
        # the error estimate uses two grids at ERROR_STATES states
        if (count + 2 * ERROR_STATES) * evaluations > MOST_EVALUATIONS:
            break
        if evaluations > size:
            (risks,) = compute_risks(problem.structure, finer, [problem.parameters], [states])
            size = evaluations
        finer = refine_quadrature(problem, finer, states["Q"])
    return risks


def _count_evaluations(nodes: Nodes) -> int:
    """Number of evaluations of the loss per state on a grid; 0 if the nodes form no grid."""
    if "between_points" not in nodes:
        return 0
    return nodes["points"].shape[1] * (nodes["few"].shape[1] if "few" in nodes else 1)


@float64
def choose_quadrature(problem: Problem, Q: np.ndarray, margin: float) -> Quadrature:
    """A quadrature that is fine enough for rows of `margin` times the squared length of these."""
    return expectation_of(problem.structure).quadrature(_largest_field(problem, Q, margin))


@float64
def refine_quadrature(problem: Problem, quadrature: Quadrature, Q: np.ndarray) -> Quadrature | None:
    """A finer quadrature for a run whose rows grew or became more parallel, if there is one."""
    return expectation_of(problem.structure).finer(quadrature, _largest_field(problem, Q, 1.0))


def _largest_field(problem: Problem, Q: np.ndarray, margin: float) -> float:
    """The largest variance of a field, with a margin for the students."""
    students, signals = (
        np.asarray(input_covariance.field_variances(problem.parameters, gram))
        for gram in (Q, problem.gram)
    )
    return max(margin * _largest_finite(students), float(signals.max(initial=0.0)))


class Risks(NamedTuple):
    """Risks with the leading axes of their states, and their errors.

    A risk that the quadrature does not determine, such as an infinite one, is NaN.
    """

    risk: np.ndarray
    sampling: float  # largest relative standard error over replicates
    worst: float  # largest relative error of series and grids
    undetermined: bool = False
    risk_error: float = 0.0  # largest relative error of the risk itself, from series and grids
    # the risk by the nodes of `compute_risks` without errors, for comparison; None if it is `risk`
    first: np.ndarray | None = None

    @property
    def comparable(self) -> np.ndarray:
        """The risk by the same nodes as one that is computed without errors."""
        return self.risk if self.first is None else self.first


@float64
def compute_risks(
    structure: Structure,
    quadrature: Quadrature,
    parameters: list[Parameters],
    states: list[States],
    *,
    quick: bool = False,
    size: int = 1,
    with_errors: bool = True,
) -> list[Risks]:
    """The risks of one or several problems of one structure, each at its own states.

    `size` is the number of lanes of a program. Without errors, those of series and grids are 0, and
    the risks may be those of the first replicate of the nodes (`Risks.comparable`).
    """
    nodes = expectation_of(structure).risk_nodes(quadrature, quick=quick)
    risks_of = _sampled_risks if "plain" in nodes else _risks
    node_sets, is_alone = [nodes], _is_alone(_count_coordinates(nodes))
    if is_alone:  # one replicate after the other
        replicates = len(jax.tree.leaves(nodes)[0]) if with_errors else 1
        node_sets = [
            jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], nodes)
            for row in range(replicates)
        ]
    lanes = stack_lanes(parameters, size)
    leads = [lane_states["a"].shape[:-1] for lane_states in states]
    flat = [_flatten(lane_states) for lane_states in states]
    distinct, positions = zip(*map(distinct_states, states), strict=True)
    replicate_risks = map_in_chunks(
        [partial(risks_of, structure, quadrature, node_set, lanes) for node_set in node_sets],
        list(distinct),
        size,
        on_cores=is_alone,
    )
    values = [np.concatenate(lane, axis=-1) for lane in zip(*replicate_risks, strict=True)]
    values = [lane[position] for lane, position in zip(values, positions, strict=False)]
    errors = np.zeros((len(states), 1, 2))
    if with_errors and "plain" not in nodes:
        # An error estimate costs more than the risk itself: it is made at a few states.
        most = max(len(lane_states["a"]) for lane_states in flat)
        is_large = _count_evaluations(nodes) > LARGE_GRID
        count = FEW_ERROR_STATES if is_large else min(ERROR_STATES, power_of_two(most))
        some = stack_lanes([_error_states(lane_states, count) for lane_states in flat], size)
        first = {name: value[0] for name, value in nodes.items()}
        errors = np.asarray(_errors(structure, quadrature, first, lanes, some))
    return [
        _summarise(replicates, error, lead, is_alone)
        for replicates, error, lead in zip(values, errors, leads, strict=False)
    ]


@float64
def grid_error(
    structure: Structure, quadrature: Quadrature, parameters: Parameters, states: States
) -> float:
    """The largest relative error of moments on a large grid, at a few of the states (run,)."""
    nodes = expectation_of(structure).risk_nodes(quadrature, quick=False)
    first = {name: value[0] for name, value in nodes.items()}
    some = stack_lanes([_error_states(states, FEW_ERROR_STATES)], 1)
    errors = _errors(structure, quadrature, first, stack_lanes([parameters], 1), some)
    return _largest_finite(np.asarray(errors)[..., 0])


def _summarise(
    replicates: np.ndarray, error: np.ndarray, lead: tuple[int, ...], is_alone: bool
) -> Risks:
    """Means over replicates (states, replicates), their errors, and whether they are determined."""
    columns = np.ascontiguousarray(replicates.T)  # sums over a short last axis are slow
    risk = columns.mean(axis=0)
    relative = np.zeros(1)  # standard errors
    if len(columns) > 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            standard_error = columns.std(axis=0, ddof=1) / np.sqrt(len(columns))
            relative = standard_error / np.abs(risk)
    is_finite = np.isfinite(relative)
    least = float(np.min(relative[is_finite])) if np.any(is_finite) else 0.0
    # A risk is not determined if a second grid changes it by as much as itself at all states (it
    # grows with the reach of the grid, or lies between its points), or if a few of the points carry
    # most of it.
    risk_error = error[np.isfinite(error[:, 1]), 1]
    undetermined = bool(len(risk_error) and risk_error.min() >= UNKNOWN / 2) or (
        least > VAGUE and bool(np.all(replicates[np.isfinite(replicates)] > 0))
    )
    risk = np.full_like(risk, np.nan) if undetermined else risk
    worst = _largest_finite(error[:, 0]) if np.any(np.isfinite(error[:, 0])) else np.nan
    first = np.where(undetermined, np.nan, replicates[:, 0]) if is_alone else risk
    return Risks(
        risk.reshape(lead),
        _largest_finite(relative),
        worst,
        undetermined,
        _largest_finite(risk_error),
        first.reshape(lead),
    )


def _flatten(states: States) -> States:
    """States with a single leading axis."""
    lead = states["a"].shape[:-1]
    return {
        name: value.reshape(math.prod(lead), *value.shape[len(lead) :])
        for name, value in states.items()
    }


def distinct_states(states: States) -> tuple[States, np.ndarray]:
    """The flattened states without the repetitions of a state that all runs share.

    Runs of one start share their first state, which is a large part of the work where few save
    points are stored of many runs. Of states (run, time, ...) a state that all runs share at a time
    is returned once. The second result contains the position of each of the flattened states.
    """
    flat, lead = _flatten(states), states["a"].shape[:-1]
    positions = np.arange(math.prod(lead)).reshape(lead)
    if len(lead) == 2 and lead[0] > 1:
        for time in range(lead[1]):
            if is_repeated(*(value[:, time] for value in states.values())):
                positions[:, time] = positions[0, time]
    is_first = positions.reshape(-1) == np.arange(positions.size)
    if is_first.all():
        return flat, positions.reshape(-1)
    new_positions = np.cumsum(is_first) - 1
    distinct = {name: value[is_first] for name, value in flat.items()}
    return distinct, new_positions[positions.reshape(-1)]


def _error_states(states: States, count: int) -> States:
    """The states at which errors are estimated: with the longest rows, and evenly spaced.

    All states, if there are at most `count`.
    """
    length = len(states["a"])
    if length <= count:
        indices = np.minimum(np.arange(count), length - 1)
        return {name: value[indices] for name, value in states.items()}
    lengths = np.nan_to_num(np.einsum("sbii->s", states["Q"]))
    longest = np.argsort(-lengths)[: count // 4]
    even = np.linspace(0, length - 1, count - len(longest)).astype(int)
    return {name: value[[*longest, *even]] for name, value in states.items()}


# Quadratures for `estimate_expectation`: 2^12 points per replicate, 2^10 per case of discrete
# draws. `risk_nodes` adds 2 to `log2_points`, or subtracts 2 with discrete draws.
EXPECTED = Quadrature(log2_points=10, replicates=16)
EXPECTED_BY_CASE = Quadrature(log2_points=12, replicates=16)


@float64
def estimate_expectation(
    problem: Problem, function: Loss, states: States
) -> tuple[np.ndarray, np.ndarray]:
    """E[function] over samples at each state, and its standard errors.

    The states are those of `population_risk`. The function is averaged over scrambled Sobol points
    and summed over discrete draws, so that it may jump and return arrays of any shape.
    """
    structure = problem.structure.with_loss(function)
    has_cases = structure.sample.sampled_normals < structure.sample.normals_per_sample
    quadrature = EXPECTED_BY_CASE if has_cases else EXPECTED
    nodes = expectation_of(structure).risk_nodes(quadrature)
    lead = states["a"].shape[:-1]
    lanes = stack_lanes([problem.parameters], 1)
    ((values,),) = map_in_chunks(
        [partial(_sampled_risks, structure, quadrature, nodes, lanes)],
        [_flatten(states)],
        1,
        on_cores=_is_alone(_count_coordinates(nodes)),
    )
    mean = values.mean(axis=1)
    error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    shape = (*lead, *values.shape[2:])
    return mean.reshape(shape), error.reshape(shape)


def stack_lanes(items: list[Any], size: int) -> Any:
    """Pytrees stacked along a first axis, padded with copies of the last one.

    The length is `size`, or min(size, SHORT) for at most SHORT items, so that few programs are
    compiled.
    """
    length = min(size, SHORT) if len(items) <= SHORT else size
    if length == 1:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], items[0])  # without a copy
    padded = items + [items[-1]] * (length - len(items))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)


def map_in_chunks(
    functions: list[Callable[[State, np.int64], Numeric]],
    states: list[States],
    size: int,
    *,
    on_cores: bool = False,
) -> list[list[np.ndarray]]:
    """Functions of the states of all lanes, evaluated in chunks of one size.

    The last chunk is padded, so that any number of states compiles once. With `on_cores` the states
    are divided among threads. Each function has one result per lane.
    """
    counts = [len(lane_states["a"]) for lane_states in states]
    most = max(counts)
    chunk = LARGE_CHUNK if size == 1 and most > LARGE_CHUNK else CHUNK
    if chunk == LARGE_CHUNK and most > LARGE_GPU_CHUNK and jax.default_backend() == "gpu":
        chunk = LARGE_GPU_CHUNK
    chunk = min(chunk, power_of_two(most)) if size > 1 else chunk

    def launch(task: Task) -> Numeric:
        function, start, stop = task
        lanes = [_chunk_of(lane_states, start, chunk) for lane_states in states]
        return function(stack_lanes(lanes, size), np.int64(stop - start))

    def collect(task: Task, values: Numeric) -> np.ndarray:
        return np.asarray(values)[:, : task[2] - task[1]]

    def evaluate(task: Task) -> np.ndarray:
        return collect(task, launch(task))

    step = chunk
    if on_cores:
        step = min(chunk, -(-most // count_cores()))
    # the first task compiles, so that it is small if others follow it
    starts = [*range(0, most, step)]
    if on_cores and most > 1:
        starts = [0, *range(1, most, step)]
    stops = [*starts[1:], most]
    tasks = [
        (function, start, stop)
        for function in functions
        for start, stop in zip(starts, stops, strict=True)
    ]
    if on_cores:
        pieces = [evaluate(tasks[0]), *map_on_cores(evaluate, tasks[1:])]
    else:
        # the next chunk is sent while the device computes
        pieces, ahead = [], None
        for task in tasks:
            launched = task, launch(task)
            if ahead is not None:
                pieces.append(collect(*ahead))
            ahead = launched
        assert ahead is not None
        pieces.append(collect(*ahead))
    results = []
    for first in range(0, len(tasks), len(starts)):
        joined = np.concatenate(pieces[first : first + len(starts)], axis=1)
        results.append([joined[lane, :count] for lane, count in enumerate(counts)])
    return results


def _chunk_of(states: States, start: int, chunk: int) -> States:
    """The states of a chunk: a view, or a copy that is filled up with the last state."""
    count = len(states["a"])
    if start + chunk <= count:
        return {name: value[start : start + chunk] for name, value in states.items()}
    indices = np.minimum(np.arange(start, start + chunk), count - 1)
    return {name: value[indices] for name, value in states.items()}


def _largest_finite(values: np.ndarray) -> float:
    """The largest finite value (runs that diverged are NaN)."""
    return float(np.max(values, where=np.isfinite(values), initial=0.0))
