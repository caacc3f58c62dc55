"""`prepare_exits`: the validated arguments of `exit_time`, and the ODE that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.one_pass import OnePassSGD, constant_rate
from sgdynamics.analysis.exit_dmft import FIRST_SHARE
from sgdynamics.analysis.exit_results import validate_threshold
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, State
from sgdynamics.base.resources import check_steps
from sgdynamics.base.user_functions import validate_function
from sgdynamics.dynamics.adapter import Criterion, SolverDynamics
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.ode.case import Case, Watch
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.solvers.call import SolverCall, validate_call
from sgdynamics.solvers.dmft_cells import cell_levels

METHODS = ("ode", "sde", "exact", "direct", "dmft")
# Rows of the support table by method; the others are "exit_time by runs".
QUESTIONS = {"ode": "exit_time by the ODE", "sde": "solve_sde", "dmft": "exit_time by DMFT"}
# The defaults of `exit_time`, which sweeps need too.
THRESHOLD, METHOD, CRITERION = 0.2, "ode", "risk"
# Default of max_time over the width: rates are of order 1/width in t.
MAX_TIME_PER_UNIT = 50.0
# Remedy for a max_time with too many steps.
SHORTER_TIME = "give less; runs stop once they have left"


@dataclass(frozen=True, eq=False)
class ExitRequest:
    """The validated arguments of `exit_time`.

    Attributes
    ----------
    call : SolverCall
        The arguments shared by all solvers; the last save point is ``max_time`` (by DMFT the end
        of the first trajectory).
    watch, watch_parameters
        The function of the state that falls below a level where a run leaves, and its parameters.
    passage : dict
        Arrays over runs: "left", the step at which a run left (-1 before); "value" of the watch;
        "level".
    threshold, criterion, method, max_time
        Arguments of `exit_time`.
    lr, batch
        Learning rate (None for a schedule) and samples per step of the result.
    """

    call: SolverCall
    watch: Watch
    watch_parameters: Parameters
    passage: dict[str, np.ndarray]
    threshold: float
    criterion: Criterion
    method: str
    max_time: float
    lr: float | None
    batch: float

    @property
    def dynamics(self) -> SolverDynamics[Any]:
        return self.call.dynamics

    @property
    def has_left(self) -> np.ndarray:
        """Whether each run has left at its start."""
        return self.passage["left"] >= 0

    @property
    def all_left(self) -> bool:
        return bool(self.has_left.all())

    def ode_case(self, runs: np.ndarray | None = None, in_limit: bool = False) -> Case:
        """The ODE of those runs that have not left, or of the selected ones, until they leave.

        With `in_limit` it is that of d -> infinity. Sampled expectations use one replicate.
        """
        call = self.call
        dimension = None if in_limit else call.dimension
        request = call.dynamics.ode_request(call.initial_state, call.clock, dimension)
        case = request.shared_case
        runs = ~self.has_left if runs is None else runs
        return replace(
            case,
            replicates=jax.tree.map(lambda leaf: leaf[:1], case.replicates),
            shared={**case.shared, **self.watch_parameters},
            states={name: value[runs] for name, value in case.states.items()},
            watch=self.watch,
            levels=self.passage["level"][runs],
        )


def prepare_exits(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD | FixedData,
    start: Start | SpikedStart | Any,
    *,
    threshold: float = THRESHOLD,
    method: str = METHOD,
    dimension: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    max_time: float | None = None,
    criterion: Criterion = CRITERION,
    progress: bool | None = None,
) -> ExitRequest:
    """Validate the arguments of `exit_time` before anything is compiled."""
    checks.require_outside_jit("exit_time")
    threshold = validate_threshold(threshold)
    checks.choice("method", method, METHODS)
    question = QUESTIONS.get(method, "exit_time by runs")
    has_data = dynamics_of(question, problem, algorithm).has_data
    if not callable(criterion):
        checks.choice("criterion", criterion, ("risk", "overlap"))
    if max_time is None:
        max_time = MAX_TIME_PER_UNIT * getattr(problem, "width", 1)
    max_time = checks.number("max_time", max_time, above=0.0)
    _check_method(problem, algorithm, method, dimension, has_data)
    # DMFT divides epochs into cells; the coarsest level has the fewest.
    levels: list[int] = []
    if method == "dmft":
        setting: tuple[Any, Any, Any] = (problem, algorithm, start)
        levels = cell_levels(*setting, cells=None, steps=None)
    end = FIRST_SHARE * max_time if method == "dmft" else max_time
    with _errors_of_max_time(max_time, end):
        call = validate_call(
            question,
            problem,
            algorithm,
            start,
            times=[end],
            dimension=dimension,
            needs_dimension=method not in ("ode", "dmft"),
            allow_small_blocks=True,
            runs=runs,
            seed=seed,
            progress=progress,
            cells=levels[0] if levels else None,
        )
    dynamics = call.dynamics
    if method in ("exact", "direct"):
        checks.choice("method", method, dynamics.methods)
        steps = call.clock.step
        assert steps is not None
        check_steps("max_time", max_time, float(steps[-1]), SHORTER_TIME)
    _check_criterion(call, criterion)
    watch, watch_parameters = dynamics.exit_watch(criterion, call.initial_state, call.dimension)
    states = dynamics.state_arrays(call.initial_state)
    values = np.asarray(evaluate_watch(watch, watch_parameters, states))
    exit_levels = _exit_levels(criterion, threshold, values)
    has_left = values < exit_levels
    passage = {"left": np.where(has_left, 0.0, -1.0), "value": values, "level": exit_levels}
    # A DMFT solution in cells has the rate and the batch of the algorithm itself.
    units = algorithm if method == "dmft" else dynamics.algorithm
    lr, batch = _step_units(units, has_data, in_cells=bool(levels))
    return ExitRequest(
        call,
        watch,
        watch_parameters,
        passage,
        threshold,
        criterion,
        method,
        max_time,
        lr,
        batch,
    )


@contextmanager
def _errors_of_max_time(max_time: float, end: float) -> Iterator[None]:
    """Report errors about the save point `end` as errors of `max_time`.

    `exit_time` has no argument `times`, which `validate_call` would name.
    """
    try:
        yield
    except ValueError as error:
        argument, reason = f"times = {end!r}: ", str(error)
        if not reason.startswith(argument):
            raise
        raise checks.reject("max_time", max_time, reason.removeprefix(argument)) from None


@partial(jax.jit, static_argnums=0)
def evaluate_watch(watch: Watch, parameters: Parameters, states: State) -> Float[Numeric, " runs"]:
    """The watched function at each state."""
    return jax.vmap(partial(watch.value, parameters))(states)


def _check_method(
    problem: Problem | SpikedTensor | Dynamics,
    algorithm: OnePassSGD | FixedData,
    method: str,
    dimension: int | None,
    has_data: bool,
) -> None:
    """Raise ValueError for a method that the algorithm or the dimension does not allow."""
    if method == "dmft":
        validate_fixed_data(algorithm)
        if dimension is not None:
            fix = "DMFT is the limit d -> infinity. Omit dimension"
            raise checks.reject("dimension", dimension, fix)
    if has_data and method == "exact":
        fix = 'on a fixed data set exit times need direct runs. Use "direct" or "dmft"'
        raise checks.reject("method", method, fix)
    if not has_data:
        one_pass = cast(OnePassSGD, algorithm)
        constant_rate(one_pass, "exit times")
        if method != "ode" and one_pass.flow:
            fix = 'gradient flow makes no steps. Use method="ode", or a learning rate above 0'
            raise checks.reject("lr", one_pass.lr, fix)
    has_dimension = dimension is not None or getattr(problem, "spectrum", None) is not None
    if method not in ("ode", "dmft") and not has_dimension:
        fix = f'method="{method}" needs a finite dimension. Set dimension=d'
        raise checks.reject("dimension", dimension, fix)


def _check_criterion(call: SolverCall, criterion: Criterion) -> None:
    """Raise ValueError for a criterion that the problem does not have."""
    if callable(criterion):
        state = call.dynamics.first_public_state(call.initial_state)
        described = "one state {" + ", ".join(f'"{name}"' for name in state) + "}"
        validate_function(
            "criterion", criterion, (state,), takes="state", call=described, differentiated=False
        )
    if criterion != "risk":
        return
    structure = getattr(call.dynamics.problem, "structure", None)
    if not getattr(getattr(structure, "loss", None), "has_risk", True):
        fix = "this rule has no risk. Use Rule(..., risk=...), or a function of the state"
        raise checks.reject("criterion", criterion, fix)
    # The label noise of a squared loss is subtracted. Any other parameter that depends on alpha
    # changes the risk by itself.
    if call.dynamics.is_scheduled and not getattr(structure, "has_excess", False):
        fix = "the risk itself changes with alpha here. Use a function of the state"
        raise checks.reject("criterion", criterion, fix)


def _exit_levels(criterion: Criterion, threshold: float, values: np.ndarray) -> np.ndarray:
    """The values of the watch below which each run has left."""
    if criterion == "overlap":  # the watch is minus the largest overlap
        return np.full(len(values), -threshold)
    if not np.all(values > 0):
        name = "criterion" if callable(criterion) else "excess risk"
        raise ValueError(
            f"start: the {name} is {values.min():.3g}, so that its relative decrease is undefined. "
            "Start from a state where it is positive."
        )
    return (1 - threshold) * values


def _step_units(
    algorithm: OnePassSGD | FixedData, has_data: bool, in_cells: bool
) -> tuple[float | None, float]:
    """Learning rate and samples per step (over d on a fixed data set), so that alpha follows."""
    if not has_data:
        return algorithm.lr, getattr(algorithm, "batch", 1)
    lr = None if algorithm.scheduled else float(algorithm.lr)
    if in_cells:
        return lr, getattr(algorithm, "batch", 1)
    fixed_data = cast(FixedData, algorithm)
    return lr, fixed_data.fraction * fixed_data.samples_per_dimension
