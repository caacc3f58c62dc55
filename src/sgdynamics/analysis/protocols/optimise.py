"""`optimal_protocol`: parameters of a problem or an algorithm as optimal functions of alpha."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.analysis.protocols.controls import piecewise_control, validate_controls
from sgdynamics.analysis.protocols.linear import (
    LinearProtocol,
    has_exact_recursion,
    solve_linear_protocol,
)
from sgdynamics.analysis.protocols.request import ProtocolRequest, prepare_objective
from sgdynamics.analysis.protocols.result import OptimalProtocol as OptimalProtocol
from sgdynamics.analysis.protocols.search import ACCURACY, Search, SearchResult, find_optimum
from sgdynamics.base import checks
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter, warn
from sgdynamics.base.support import require
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.ode.case import from_units
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.call import SolverCall

# Reverse-mode differentiation stores a state for each piece.
MOST_PIECES = 10**5
# Initial number of Runge-Kutta steps over all pieces; each piece has four at least.
FIRST_STEPS = 160
DEFAULT_CONTROLS = {"lr": (0.0, 5.0)}


@float64
def optimal_protocol(
    problem: Problem | Dynamics,
    algorithm: OnePassSGD,
    start: Start | Any,
    *,
    alpha: float,
    controls: Mapping[str, Any] | None = None,
    objective: str | Callable[..., Any] = "final",
    evaluate: Problem | None = None,
    cost: Callable[..., Any] | None = None,
    budget: Mapping[str, float] | None = None,
    pieces: int = 40,
    restarts: int = 0,
    dimension: int | None = None,
    iterations: int = 300,
    seed: int = 0,
    progress: bool | None = None,
) -> OptimalProtocol:
    """The protocol of any parameters of a problem or an algorithm that minimises the risk.

    A protocol is piecewise constant in alpha = samples/d. It is optimised by gradients through the
    ODE of ``solve_ode``.

    Parameters
    ----------
    problem : Problem or Dynamics
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm; its values of the controls are replaced by the protocol.
    start : Start or dict
        Initial condition. With several runs one protocol minimises their mean objective.
    alpha : float
        End of the protocol in samples/d.
    controls : dict, optional
        Bounds (lowest, highest) by name: ``{"lr": (0, 5), "weight_decay": (0, 1)}``. Defaults to
        the learning rate in (0, 5). Names are those of sweeps: "algorithm.lr", "problem.noise",
        "problem.parameters.gain", "algorithm.update.memory", without the first word if the name is
        unique. The learning rate, and parameters whose lowest value is above 0, are searched in
        logarithms; for a learning rate a lowest value of 0 stands for a thousandth of the highest.
    objective : str or callable, default "final"
        The quantity to minimise: "final" is the (excess) risk at the end, "integral" its integral
        over alpha. A JAX function receives the final state, a dictionary of M, Q and a.
    evaluate : Problem, optional
        The problem whose (excess) risk is minimised. Defaults to ``problem`` with the current
        values of the controls.
    cost : callable, optional
        JAX function ``cost(alpha, controls, state)`` whose integral over alpha is added to the
        objective. Controls and state are dictionaries.
    budget : dict, optional
        Prescribed means over alpha, by name of a control.
    pieces : int, default 40
        Number of values of each control, each for an equal share of alpha.
    restarts : int, default 0
        Number of additional searches, which start from the best constants plus random curves. Each
        search ends in a local minimum; the best one is returned.
    dimension : int, optional
        Dimension d whose exact mean increment is used. Defaults to d -> infinity.
    iterations : int, default 300
        Largest number of iterations of each search.
    seed : int, default 0
        Seed of the random curves.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    OptimalProtocol
        ``.protocol`` has the values and ``.edges`` their intervals; ``.value`` is the objective,
        ``.constant`` the best constants, ``.gain`` the ratio of both objectives. ``.problem`` and
        ``.algorithm`` contain the protocol, for the solvers, and ``.confirm(...)`` measures the
        gain in simulations.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the problem or the algorithm is not supported.

    Warns
    -----
    UserWarning
        If the relative error of the objective exceeds 1e-4, or if the search reached its limit of
        iterations.

    Notes
    -----
    The ODE is integrated over equal pieces of alpha by Runge-Kutta steps, whose number is doubled
    until the relative error of the objective is 1e-6. The gradient is computed in reverse mode. The
    best constants are found on a grid and then by L-BFGS-B. The search for the pieces starts from
    them, by L-BFGS-B, or by SLSQP with a budget. It minimises the logarithm of the objective where
    the objective is positive. Equal pieces cost O(1/pieces^2), also where a control jumps.

    The learning rate of a linear student on a ``sgd.Spectrum`` follows the exact mean of SGD
    instead of the ODE, step by step or by powers of a step (1e6 steps and more). If the dimension
    is infinite, alpha counts steps.

    A control that enters the equations linearly (noise, decay, the rate of a head) is best at its
    bounds, except for singular arcs. Without bounds it would be an impulse, so that each control
    needs bounds. Label noise and other controls without a benefit stay at their lowest value.

    Where the expectations of ``solve_ode`` are sampled (activations such as gelu), the search uses
    the first replicate of the nodes, which hardly changes the protocol. Values and risks are means
    over all replicates, as in ``solve_ode``, with their error.

    Updates that are discontinuous in the gradient of a sample (sign, clipped, normalised, sam,
    Muon) are not supported, because their objective has no such gradient.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> arguments = {"alpha": 20.0, "controls": {"lr": (0, 2)}, "pieces": 50, "progress": False}
    >>> best = sgd.optimal_protocol(problem, sgd.OnePassSGD(), start, **arguments)
    >>> constant = best.constant
    >>> print(f"{best.value:.5f}, constant {constant['risk']:.5f} at lr = {constant['lr']:.3f}")
    0.00332, constant 0.00562 at lr = 0.173
    """
    alpha = checks.number("alpha", alpha, above=0.0)
    checks.require_outside_jit("optimal_protocol")
    require("optimal_protocol", problem, algorithm)
    algorithm = _require_differentiable(algorithm)
    progress = checks.flag("progress", progress, optional=True)
    pieces = checks.integer("pieces", pieces, 1, MOST_PIECES)
    iterations = checks.integer("iterations", iterations, 1, 10**6)
    restarts = checks.integer("restarts", restarts, 0, 10**6)
    seed = checks.integer("seed", seed, 0)
    if not callable(objective):
        checks.choice("objective", objective, ("final", "integral"))
    bounds = DEFAULT_CONTROLS if controls is None else controls
    chosen = validate_controls(problem, algorithm, bounds, budget)
    request = ProtocolRequest(problem, algorithm, start, chosen, objective, evaluate, cost)
    if has_exact_recursion(request):
        solution = solve_linear_protocol(request, alpha, pieces, iterations, progress)
        return _linear_result(request, solution)
    prepared = prepare_objective(request, alpha, dimension)
    program = replace(prepared.program, steps=max(4, FIRST_STEPS // pieces))
    single_searches = len(chosen.names) if len(chosen.names) > 1 else 0
    searches = 1 + restarts + (pieces > 1) + single_searches
    with meter("optimal protocol", iterations * searches, progress) as bar:
        search = Search(program, prepared.parameters, chosen.box, pieces, iterations, bar)
        optimum = find_optimum(search, restarts, seed)
        value_of_half, extrapolated = _extrapolate(optimum)
        gains = _single_gains(optimum, chosen.names)
        averaged, sampling_error = _average_replicates(optimum, prepared.replicates)
    error_quadrature = max(sampling_error, _risk_error(prepared.call, averaged))
    _warn_if_inaccurate(averaged, iterations)
    edges = np.linspace(0, alpha, pieces + 1)
    values = chosen.box.values(averaged.z)
    # The values of fewer pieces come from the first replicate and are shifted to the mean of all.
    shift = averaged.value - optimum.value
    return _build_result(
        request,
        edges,
        protocol={name: values[:, index] for index, name in enumerate(chosen.names)},
        sides=chosen.box.at_bounds(averaged.z),
        constants=chosen.box.values(averaged.constant_z[0]),
        constant_value=averaged.constant_value,
        value=averaged.value,
        extrapolated=extrapolated + shift,
        value_of_half=value_of_half + shift,
        gains=gains,
        residual=averaged.search.residual(averaged.z),
        risks=averaged.risks,
        constant_risks=averaged.constant_risks,
        history=averaged.history,
        converged=averaged.converged,
        error_integrator=averaged.error,
        error_quadrature=error_quadrature,
    )


def _require_differentiable(algorithm: OnePassSGD) -> OnePassSGD:
    """Raise ValueError for gradient flow and for updates without a differentiable mean step."""
    algorithm = validate_algorithm(algorithm)
    if algorithm.flow:
        raise checks.reject(
            "lr",
            algorithm.lr,
            "gradient flow takes no steps and uses no samples. Give a learning rate above 0.",
        )
    if algorithm.law is not None and algorithm.law.jumps:
        raise checks.reject(
            "update",
            algorithm.update,
            "its step jumps with the gradient of a sample, so that the objective has no gradient "
            "with respect to the controls. Use momentum or Adam.",
        )
    return algorithm


def _linear_result(request: ProtocolRequest, solution: LinearProtocol) -> OptimalProtocol:
    """The result of the exact recursion of linear students."""
    best, (name,) = solution.best, request.controls.names
    return _build_result(
        request,
        solution.edges,
        protocol={name: best.rates},
        sides=solution.sides[:, None],
        constants=np.array([best.best_constant_lr]),
        constant_value=best.best_constant_risk,
        value=best.risk,
        extrapolated=solution.extrapolated,
        value_of_half=float("nan") if solution.half is None else solution.half.risk,
        gains={name: best.gain},
        residual=solution.residual,
        risks=best.risks,
        constant_risks=solution.constant_risks,
        history=best.history,
        converged=best.converged,
        error_integrator=0.0,
        error_quadrature=0.0,
    )


def _build_result(
    request: ProtocolRequest,
    edges: np.ndarray,
    *,
    protocol: dict[str, np.ndarray],
    sides: np.ndarray,
    constants: np.ndarray,
    constant_value: float,
    **fields: Any,
) -> OptimalProtocol:
    """Build the result.

    Parameters
    ----------
    request : ProtocolRequest
        The question.
    edges : ndarray
        Edges of the pieces in alpha.
    protocol : dict of ndarray
        Values of each control by name.
    sides : ndarray
        -1 at the lower bound, 1 at the upper bound, 0 in between, (pieces, controls).
    constants : ndarray
        Best constants, (controls,).
    constant_value : float
        Objective with the best constants.
    **fields
        All other fields of the result.

    Returns
    -------
    OptimalProtocol
        The result.
    """
    names, box = request.controls.names, request.controls.box
    schedules = {name: piecewise_control(edges, values) for name, values in protocol.items()}
    problem, algorithm = request.controls.insert(request.problem, request.algorithm, schedules)
    bounds = zip(box.low.tolist(), box.high.tolist(), strict=True)
    return OptimalProtocol(
        protocol=protocol,
        edges=edges,
        constant={**dict(zip(names, constants.tolist(), strict=True)), "risk": constant_value},
        at_bounds={name: np.flatnonzero(sides[:, index]) for index, name in enumerate(names)},
        bounds=dict(zip(names, bounds, strict=True)),
        problem=problem,
        algorithm=algorithm,
        request=request,
        **fields,
    )


def _average_replicates(optimum: SearchResult, replicates: list[Any]) -> tuple[SearchResult, float]:
    """Means of the objective and the risks over all replicates of sampled expectations.

    Also returns the relative standard error of the objective.
    """
    if len(replicates) == 1:
        return optimum, 0.0
    search = optimum.search
    values, risks, constant_values, constant_risks = [], [], [], []
    for nodes in replicates:
        replicate = replace(search, parameters={**search.parameters, "replicate": nodes})
        value, risk = replicate.evaluate_finely(optimum.z)
        values.append(value)
        risks.append(risk)
        value, risk = replicate.evaluate_finely(optimum.constant_z)
        constant_values.append(value)
        constant_risks.append(risk)
    mean, spread = np.mean(values), np.std(values, ddof=1)
    error = float(spread / np.sqrt(len(values)) / max(abs(mean), 1e-300))
    averaged = replace(
        optimum,
        value=float(mean),
        constant_value=float(np.mean(constant_values)),
        risks=np.mean(risks, axis=0),
        constant_risks=np.mean(constant_risks, axis=0),
    )
    return averaged, error


def _risk_error(call: SolverCall, optimum: SearchResult) -> float:
    """The estimated relative error of the risk at the start and at the end of the protocol."""
    dynamics, search = call.dynamics, optimum.search
    if not isinstance(dynamics, FieldDynamics):
        return 0.0
    errors = []
    for states in (search.parameters["states"], search.final_states(optimum.z)):
        # An axis of one time, as `risk_along` expects.
        states = from_units(search.parameters["shared"], states)
        states = {name: np.asarray(value)[:, None] for name, value in states.items()}
        errors.append(dynamics.risk_along(dynamics.unpack(states), call.clock, call.dimension)[1])
    return max(errors)


def _extrapolate(optimum: SearchResult) -> tuple[float, float]:
    """The objectives with half as many pieces, and with infinitely many.

    Errors are proportional to 1/pieces^2 (Richardson extrapolation).
    """
    search, pieces = optimum.search, optimum.search.pieces
    if pieces == 1:
        return float("nan"), float("nan")
    coarse = pieces // 2
    if pieces % 2 == 0:
        # Pairs of pieces with one value: the shapes, hence the compiled program, stay the same.
        start = optimum.z.reshape(coarse, 2, -1).mean(axis=1).repeat(2, axis=0)
    else:
        centres = (np.arange(coarse) + 0.5) / coarse * pieces - 0.5
        columns = [np.interp(centres, np.arange(pieces), column) for column in optimum.z.T]
        start = np.stack(columns, axis=1)
        search = replace(search, pieces=coarse)
    minimum = search.descend(start, np.full(optimum.z.shape[1], coarse))
    value_of_half, _ = search.evaluate_finely(minimum.z)
    ratio = pieces / coarse
    return value_of_half, optimum.value + (optimum.value - value_of_half) / (ratio**2 - 1)


def _single_gains(optimum: SearchResult, names: tuple[str, ...]) -> dict[str, float]:
    """The gain of each control alone, with the others at their best constants."""
    if len(names) == 1:
        return {names[0]: optimum.constant_value / optimum.value}
    search, gains = optimum.search, {}
    for index, name in enumerate(names):
        groups = np.where(np.arange(len(names)) == index, search.pieces, 0)
        minimum = search.descend(optimum.constant_z, groups)
        gains[name] = optimum.constant_value / search.evaluate_finely(minimum.z)[0]
    return gains


def _warn_if_inaccurate(optimum: SearchResult, iterations: int) -> None:
    if optimum.error > 100 * ACCURACY:
        steps = 2 * optimum.search.program.steps
        warn(
            f"the relative error of the objective is {optimum.error:.1e} with {steps} steps per "
            "piece. Increase pieces, or give narrower bounds."
        )
    if not optimum.converged:
        warn(f"the protocol still improves after {iterations} iterations. Increase iterations.")
