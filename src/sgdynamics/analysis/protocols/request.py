"""The question that `optimal_protocol` answers, and its translation to a differentiable program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols.controls import Controls
from sgdynamics.analysis.protocols.program import Program, control_indices, placeholder
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Parameters, PyTree
from sgdynamics.base.controls import constant
from sgdynamics.base.user_functions import validate_function
from sgdynamics.dynamics.adapter import S, SolverDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.call import SolverCall, validate_call

# An initial condition as the user passes it; that of a user's own dynamics is a dictionary.
InitialCondition = Start | Mapping[str, ArrayArgument]


@dataclass(frozen=True, eq=False)
class ProtocolRequest:
    """The arguments of ``optimal_protocol`` that define the objective, as the user passed them.

    Attributes
    ----------
    problem : Problem or Dynamics
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm.
    start : Start or dict
        Initial condition of one or several runs.
    controls : Controls
        The validated controls.
    objective : str or callable
        "final", "integral", or a function of the final state.
    evaluate : Problem or None
        The problem whose risk is minimised, if it differs.
    cost : callable or None
        The running cost.
    """

    problem: Problem | Dynamics
    algorithm: OnePassSGD
    start: InitialCondition
    controls: Controls
    objective: str | Callable[..., Any]
    evaluate: Problem | None
    cost: Callable[..., Any] | None

    @property
    def has_integral(self) -> bool:
        """Whether the objective contains an integral over alpha."""
        return self.objective == "integral" or self.cost is not None


@dataclass(frozen=True, eq=False)
class PreparedObjective:
    """The objective of a request as a program, and its parameters.

    Attributes
    ----------
    call : SolverCall
        The validated call, with placeholders for the controls.
    program : Program
        The static part, with one Runge-Kutta step per piece.
    parameters : dict
        The traced parameters, with the first replicate of sampled expectations.
    replicates : list
        All replicates of the nodes of sampled expectations; one entry if nothing is sampled.
    """

    call: SolverCall
    program: Program
    parameters: Parameters
    replicates: list[Any]


def prepare_objective(
    request: ProtocolRequest, alpha: float, dimension: int | None
) -> PreparedObjective:
    """Validate a request and translate it to a program.

    Raises
    ------
    ValueError
        If an argument is invalid, a user's function fails, or the equations do not depend on one
        of the controls.
    """
    call = _validate_with_placeholders(request, alpha, dimension)
    dynamics: Any = call.dynamics
    _validate_functions(request, dynamics, call.initial_state)
    evaluator = dynamics
    if request.evaluate is not None:
        evaluator = dynamics.evaluator(request.evaluate)
        if "fields" in request.evaluate.kinds:
            # The same kind of dynamics finds the weights among its states, also with an update
            # that has a memory.
            evaluator = type(dynamics)(request.evaluate, dynamics.algorithm)
    final_objective = request.objective if callable(request.objective) else None
    criterion = "risk" if evaluator.has_risk or final_objective is None else final_objective
    case = dynamics.ode_request(call.initial_state, call.clock, call.dimension).case
    watch, watch_parameters = evaluator.exit_watch(criterion, call.initial_state, call.dimension)
    used = control_indices(case.shared)
    unused = [name for index, name in enumerate(request.controls.names) if index not in used]
    if unused:
        raise checks.reject(
            "controls",
            unused,
            "the equations do not depend on these controls as functions of alpha. Omit them.",
        )
    count = min(len(leaf) for leaf in jax.tree.leaves(case.replicates))
    replicates = [
        {name: _replicate(name, nodes, index) for name, nodes in case.replicates.items()}
        for index in range(count)
    ]
    # The watch reads the parameters of the dynamics, except for those of another problem.
    own_parameters = {
        name: value
        for name, value in watch_parameters.items()
        if name not in case.shared or (request.evaluate is not None and name == "problem")
    }
    assert call.clock.alpha is not None
    parameters = {
        "replicate": replicates[0],
        "shared": case.shared,
        "states": case.states,
        "alpha": np.float64(call.clock.alpha[-1]),
        "watch": own_parameters,
    }
    program = Program(
        field=case.field,
        watch=watch,
        names=request.controls.names,
        steps=1,
        integrates_risk=request.objective == "integral",
        final_objective=final_objective,
        cost=request.cost,
        has_risk=evaluator.has_risk,
    )
    return PreparedObjective(call, program, parameters, replicates)


def _validate_with_placeholders(
    request: ProtocolRequest, alpha: float, dimension: int | None
) -> SolverCall:
    """Validate the call of the solver, with placeholders for the controls."""
    controls = request.controls
    low, high = controls.box.coordinate_bounds
    middle = controls.box.values((low + high) / 2)
    schedules = {
        name: placeholder(index, middle[index]) for index, name in enumerate(controls.names)
    }
    try:
        problem, algorithm = controls.insert(request.problem, request.algorithm, schedules)
    except (ValueError, TypeError) as error:
        raise checks.reject(
            "controls",
            list(controls.names),
            f"not all of them can be functions of alpha. {checks.reason(error)}",
        ) from None
    if not algorithm.scheduled:
        # A schedule, even if it is constant, makes alpha the variable of the ODE.
        algorithm = algorithm.replace(lr=constant(algorithm.lr))
    return validate_call(
        "optimal_protocol",
        problem,
        algorithm,
        request.start,
        alpha=[alpha],
        dimension=dimension,
        # The mean step is exact at any size of the covariance blocks, except on the sphere, where
        # it is that of the exact chain.
        allow_small_blocks=getattr(problem, "constraint", None) is None,
    )


def _validate_functions(
    request: ProtocolRequest, dynamics: SolverDynamics[S], initial_state: S
) -> None:
    """Raise ValueError unless the user's objective and cost accept their arguments."""
    states = dynamics.public_states(dynamics.state_arrays(initial_state))
    state = {name: np.asarray(value[0]) for name, value in states.items()}
    example = "one state {" + ", ".join(f'"{name}"' for name in state) + "}"
    if callable(request.objective):
        validate_function("objective", request.objective, (state,), takes="state", call=example)
    if request.cost is not None:
        controls = dict.fromkeys(request.controls.names, np.zeros(()))
        validate_function(
            "cost",
            request.cost,
            (np.zeros(()), controls, state),
            takes="alpha, controls, state",
            call=f"alpha, controls and {example}",
        )


def _replicate(name: str, nodes: PyTree, index: int) -> PyTree:
    """One replicate of the nodes of an expectation.

    The points of a step on the sphere are few, and all of them are used.
    """
    if name == "points" and isinstance(nodes, dict) and "inside" in nodes:
        return {key: value.reshape(-1, *value.shape[2:]) for key, value in nodes.items()}
    return jax.tree.map(lambda value: value[index], nodes)
