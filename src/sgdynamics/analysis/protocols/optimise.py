"""The best protocol of any numbers of a problem or an algorithm, as functions of alpha: gradient descent through the ODE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.analysis.protocols.confirm import Asked, Confirmation, measured
from sgdynamics.analysis.protocols.controls import Controls, checked_controls, pieces_of
from sgdynamics.analysis.protocols.linear import LinearProtocol, by_recursion, solve_linear_protocol
from sgdynamics.analysis.protocols.program import Program, controls_in, held
from sgdynamics.analysis.protocols.search import ACCURACY, Outcome, Search, solve
from sgdynamics.base import checks
from sgdynamics.base.arrays import PyTree
from sgdynamics.base.controls import constant
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import meter, warn
from sgdynamics.base.support import require
from sgdynamics.base.user_functions import validate_function
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.ode.case import from_units
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.call import SolverCall, validate_call

MOST_PIECES = 10**5  # the gradient keeps a state for each
STEPS = 160  # Runge-Kutta steps in all (at least four a piece), doubled until the objective is known to 1e-6


@dataclass(frozen=True, eq=False)
class OptimalProtocol:
    """A protocol found by ``sgd.optimal_protocol``: ``protocol[name][i]`` holds for alpha in [edges[i], edges[i + 1]).

    Attributes
    ----------
    value : float
        The objective that it reaches: the (excess) risk at the end, its integral, or a function of the last state; with the cost.
    extrapolated : float
        The value for infinitely many pieces, from this one and that of half as many (``value_of_half``), whose errors go as 1/pieces^2;
        NaN for a single piece.
    value_of_half : float
        What the best protocol with half as many pieces reaches.
    constant : dict
        The best constant of each control by name, and as "risk" the objective that they reach.
    gains : dict
        For each control how many times smaller the objective is with that one alone free, the others at their best constants.
    protocol : dict of ndarray
        The values of each control by name, one a piece.
    edges : ndarray
        Where pieces begin and end, in alpha, from 0 on.
    residual : float
        How far this is from Pontryagin's condition. With H the Hamiltonian, dJ/du_i is the integral of dH/du over piece i; this is the
        largest of ``|pieces dlog J/dz_i|``, z = log u for a control that is searched in logarithms (its lowest value is above 0), else
        (u - lowest)/(highest - lowest), without pieces at a bound that the slope points out of, and for a control with a budget less its
        multiplier, the mean over the pieces between the bounds. It says by what share J would fall, to first order, if such a control
        were moved by a factor e, or by its range, all the time.
    at_bounds : dict of ndarray
        The pieces that are at a bound, by name of the control.
    bounds : dict
        The bounds by name, as used.
    problem : Problem
        The problem with the protocol in it, for ``solve_ode`` and ``simulate``.
    algorithm : OnePassSGD
        The algorithm with the protocol in it.
    risks : ndarray
        The (excess) risk at every edge.
    constant_risks : ndarray
        The same with the best constants.
    history : ndarray
        The objective after each iteration, from the best constants on.
    converged : bool
        Whether the search came to its end.
    error_integrator : float
        Relative error of the objective, by half as many Runge-Kutta steps.
    error_quadrature : float
        Relative error of the expectations: the standard error of the objective where they are sampled, from the spread of their
        replicates, and the estimated error of the risk at the start and at the end.
    asked : Asked
        The problem, the algorithm and the question, as they were given.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> found = sgd.optimal_protocol(problem, sgd.OnePassSGD(), begin, alpha=5.0, controls={"lr": (0, 2)}, pieces=4, progress=False)
    >>> found.protocol["lr"].shape, found.gain > 1
    ((4,), True)
    """

    value: float
    extrapolated: float
    value_of_half: float
    constant: dict[str, float]
    gains: dict[str, float]
    protocol: dict[str, np.ndarray]
    edges: np.ndarray
    residual: float
    at_bounds: dict[str, np.ndarray]
    bounds: dict[str, tuple[float, float]]
    problem: Any
    algorithm: Any
    risks: np.ndarray
    constant_risks: np.ndarray
    history: np.ndarray
    converged: bool
    error_integrator: float
    error_quadrature: float
    asked: Asked

    @property
    def gain(self) -> float:
        """How many times smaller the objective is than with the best constants."""
        return self.constant["risk"] / self.value

    @property
    def alpha(self) -> float:
        """The end, samples over d."""
        return float(self.edges[-1])

    @property
    def switches(self) -> dict[str, np.ndarray]:
        """Where each control leaves or reaches a bound, in alpha; a single piece between opposite bounds is where its mean puts it."""
        return {
            name: _switches(values, self.bounds[name], self.edges)
            for name, values in self.protocol.items()
        }

    def confirm(
        self,
        *,
        dimension: int | None = None,
        runs: int = 100,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Confirmation:
        """The gain of SGD itself at dimension d: the protocol and the best constants by ``sgd.simulate``, with the same random numbers.

        Parameters
        ----------
        dimension : int, optional
            The dimension d, which a ``sgd.Spectrum`` knows.
        runs : int, default 100
            How many runs of each, a multiple of those of the start.
        seed : int, default 0
            Of the random numbers of both.
        progress : bool, optional
            A progress bar; unless given on a terminal only.

        Returns
        -------
        Confirmation
            ``gain`` and ``gain_error``, ``value`` and ``value_error``, ``constant`` and ``constant_error``, of means over runs.
        """
        flat = {
            name: np.full(len(values), self.constant[name])
            for name, values in self.protocol.items()
        }
        return measured(
            self.asked, self.edges, self.protocol, flat, dimension, runs, seed, progress
        )

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name} from {values[0]:.4g} to {values[-1]:.4g}"
            for name, values in self.protocol.items()
        )
        best = ", ".join(
            f"{name} = {value:.4g}" for name, value in self.constant.items() if name != "risk"
        )
        return (
            f"OptimalProtocol({self.value:.5g} at alpha = {self.alpha:g}, {self.gain:.4g} times below the best constants, {best}; "
            f"{len(self.edges) - 1} pieces, {shown})"
        )


@float64
def optimal_protocol(
    problem: Problem | Dynamics,
    algorithm: OnePassSGD,
    start: Start | Any,
    *,
    alpha: float,
    controls: Mapping[str, Any] | None = None,
    objective: str | Callable[..., Any] = "final",
    evaluate: Any = None,
    cost: Callable[..., Any] | None = None,
    budget: Mapping[str, float] | None = None,
    pieces: int = 40,
    restarts: int = 0,
    dimension: int | None = None,
    iterations: int = 300,
    seed: int = 0,
    progress: bool | None = None,
) -> OptimalProtocol:
    """The protocol, piecewise constant in alpha = samples/d, of any numbers of the problem or the algorithm that makes the risk smallest.

    Parameters
    ----------
    problem : Problem or Dynamics
        What is learned.
    algorithm : OnePassSGD
        How. What it says of a control does not count.
    start : Start or dict
        Where; of a start with several runs the mean is minimised, one protocol for all of them.
    alpha : float
        The end, samples over d.
    controls : dict, optional
        Bounds (lowest, highest) by name: ``{"lr": (0, 5), "weight_decay": (0, 1)}``; the learning rate in (0, 5) unless given. Names are
        as in sweeps, "algorithm.lr", "problem.noise", "problem.parameters.gain", "algorithm.update.memory", bare where only one has it.
        Numbers whose lowest value is above 0, and the learning rate, are searched in logarithms; for a learning rate a lowest value of 0
        stands for a thousandth of the highest.
    objective : str or callable, default "final"
        What is minimised: the (excess) risk at the end, "final"; its "integral" over alpha; or a JAX function of the last state, a
        dictionary of M, Q and a.
    evaluate : Problem, optional
        The problem whose (excess) risk counts; this one unless given, with the numbers of the moment.
    cost : callable, optional
        A JAX function ``cost(alpha, controls, state)``: its integral over alpha is added. Controls and state are dictionaries.
    budget : dict, optional
        The mean of a control over alpha, by name, where that is given.
    pieces : int, default 40
        How many values each control has, each for an equal share of alpha.
    restarts : int, default 0
        What is found is a local minimum: this tries as many more, from the best constants and random curves, and keeps the best.
    dimension : int, optional
        The mean increment at that d; d -> infinity unless given.
    iterations : int, default 300
        Of each search, at most.
    seed : int, default 0
        Of the random curves.
    progress : bool, optional
        A progress bar; unless given on a terminal only.

    Returns
    -------
    OptimalProtocol
        ``.value``, ``.protocol``, ``.constant``, ``.gain``, and ``.problem`` and ``.algorithm`` for the solvers; ``.confirm(...)``.

    Raises
    ------
    ValueError
        If an argument is refused, or the question is not answered for this problem or algorithm.

    Warns
    -----
    UserWarning
        If the objective is known to less than 1e-4, or the search was cut off.

    Notes
    -----
    The ODE of ``solve_ode`` in equal pieces of alpha, each of a few Runge-Kutta steps, doubled until the objective is known to 1e-6; its
    gradient in reverse mode. The best constants are found on a grid, and from there by L-BFGS-B; from them on so are the pieces, on the
    logarithm of the objective where it is positive; with a budget by SLSQP. Equal pieces cost O(1/pieces^2), also where a control jumps.

    The learning rate of a linear student on a ``sgd.Spectrum`` follows the exact mean of SGD in place of the ODE, step by step or by powers
    of a step (steps to 1e6 and beyond); where the dimension is infinite alpha counts steps.

    A control that enters the equations linearly (noise, decay, the rate of a head) is best at its bounds, but for singular arcs: without
    bounds it would be an impulse, so every control has some. Label noise and the like without a price sit at their lowest value.

    Where the expectations of ``solve_ode`` are sampled (activations such as gelu), the search has the first of its replicates of points:
    the protocol is hardly another. Values and risks are then means over all of them, as those of ``solve_ode``, with their error.

    Updates whose step jumps with the sample's gradient (sign, clipped, normalised, sam, Muon) are refused: they have no such gradient.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> begin = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> found = sgd.optimal_protocol(problem, sgd.OnePassSGD(), begin, alpha=20.0, controls={"lr": (0, 2)}, pieces=50, progress=False)
    >>> print(f"{found.value:.5f}, constant {found.constant['risk']:.5f} at lr = {found.constant['lr']:.3f}")
    0.00332, constant 0.00562 at lr = 0.173
    """
    alpha = checks.number("alpha", alpha, above=0.0)
    checks.require_outside_jit("optimal_protocol")
    require("optimal_protocol", problem, algorithm)
    algorithm = validate_algorithm(algorithm)
    if algorithm.flow:
        raise checks.reject(
            "lr",
            algorithm.lr,
            "gradient flow makes no steps and uses no samples: give a learning rate above 0",
        )
    if algorithm.law is not None and algorithm.law.jumps:
        fix = "its step jumps with the sample's gradient, and what it reaches has no gradient in the controls: take momentum, or Adam"
        raise checks.reject("update", algorithm.update, fix)
    progress = checks.flag("progress", progress, optional=True)
    pieces = checks.integer("pieces", pieces, 1, MOST_PIECES)
    iterations = checks.integer("iterations", iterations, 1, 10**6)
    restarts, seed = checks.integer("restarts", restarts, 0, 10**6), checks.integer("seed", seed, 0)
    if not callable(objective):
        checks.choice("objective", objective, ("final", "integral"))
    chosen = checked_controls(
        problem, algorithm, {"lr": (0.0, 5.0)} if controls is None else controls, budget
    )
    if by_recursion(problem, algorithm, chosen, objective, evaluate, cost):
        asked = Asked(problem, algorithm, start, chosen, objective, evaluate, cost)
        return _linear(
            asked,
            solve_linear_protocol(
                problem, algorithm, start, chosen, alpha, pieces, iterations, progress
            ),
        )
    call = _opened(problem, algorithm, start, chosen, alpha, dimension)
    prepared = _prepared(call, chosen, objective, evaluate, cost)
    program = replace(prepared[0], steps=max(4, STEPS // pieces))
    searches = 1 + restarts + (pieces > 1) + (len(chosen.names) if len(chosen.names) > 1 else 0)
    with meter("optimal protocol", iterations * searches, progress) as bar:
        search = Search(program, prepared[1], chosen.box, pieces, iterations, bar)
        found = solve(search, restarts, seed)
        half, gains = _half(found), _gains(found, chosen)
        first, (found, unsure) = found.value, _averaged(found, prepared[2])
    unsure = max(unsure, _expectation_error(call, found))
    _warn(found, iterations)
    edges, values = np.linspace(0, alpha, pieces + 1), chosen.box.values(found.z)
    protocol = {name: values[:, index] for index, name in enumerate(chosen.names)}
    ends = chosen.box.at_ends(found.z)
    constant = dict(zip(chosen.names, chosen.box.values(found.flat[0]).tolist(), strict=True))
    moving = chosen.put(
        problem, algorithm, {name: pieces_of(edges, value) for name, value in protocol.items()}
    )
    bounds = zip(chosen.box.low.tolist(), chosen.box.high.tolist(), strict=True)
    return OptimalProtocol(
        value=found.value,
        extrapolated=half[1] + found.value - first,
        value_of_half=half[0] + found.value - first,
        constant={**constant, "risk": found.constant_value},
        gains=gains,
        protocol=protocol,
        edges=edges,
        residual=found.search.residual(found.z),
        at_bounds={name: np.flatnonzero(ends[:, index]) for index, name in enumerate(chosen.names)},
        bounds=dict(zip(chosen.names, bounds, strict=True)),
        problem=moving[0],
        algorithm=moving[1],
        risks=found.risks,
        constant_risks=found.constant_risks,
        history=found.history,
        converged=found.converged,
        error_integrator=found.error,
        error_quadrature=unsure,
        asked=Asked(problem, algorithm, start, chosen, objective, evaluate, cost),
    )


def _linear(asked: Asked, found: LinearProtocol) -> OptimalProtocol:
    """The result where the mean of SGD itself was followed, step by step."""
    best, (name,) = found.best, asked.controls.names
    box, protocol = asked.controls.box, {name: best.rates}
    moving = asked.controls.put(
        asked.problem, asked.algorithm, {name: pieces_of(found.edges, best.rates)}
    )
    return OptimalProtocol(
        value=best.risk,
        extrapolated=found.extrapolated,
        value_of_half=float("nan") if found.half is None else found.half.risk,
        constant={name: best.best_constant_lr, "risk": best.best_constant_risk},
        gains={name: best.gain},
        protocol=protocol,
        edges=found.edges,
        residual=found.residual,
        at_bounds={name: np.flatnonzero(found.ends)},
        bounds={name: (float(box.low[0]), float(box.high[0]))},
        problem=moving[0],
        algorithm=moving[1],
        risks=best.risks,
        constant_risks=found.constant_risks,
        history=best.history,
        converged=best.converged,
        error_integrator=0.0,
        error_quadrature=0.0,
        asked=asked,
    )


def _opened(
    problem: object,
    algorithm: OnePassSGD,
    start: object,
    chosen: Controls,
    alpha: float,
    dimension: int | None,
) -> SolverCall:
    """The question as the solvers see it, with placeholders for the controls."""
    low, high = chosen.box.ends
    middle = chosen.box.values((low + high) / 2)
    names = {name: held(index, middle[index]) for index, name in enumerate(chosen.names)}
    try:
        problem, algorithm = chosen.put(problem, algorithm, names)
    except (ValueError, TypeError) as error:
        fix = f"not all of them can be functions of alpha: {checks.reason(error)}"
        raise checks.reject("controls", list(chosen.names), fix) from None
    if not algorithm.scheduled:
        # a schedule, constant as it is, makes alpha the variable of the ODE
        algorithm = algorithm.replace(lr=constant(algorithm.lr))
    # the mean step is exact at any size of the blocks; on the sphere it is taken from the chain, which is not
    small = getattr(problem, "constraint", None) is None
    return validate_call(
        "optimal_protocol",
        problem,
        algorithm,
        start,
        alpha=[alpha],
        dimension=dimension,
        allow_small_blocks=small,
    )


def _prepared(
    call: SolverCall, chosen: Controls, objective: Any, evaluate: Any, cost: Any
) -> tuple[Program, dict[str, Any], list[Any]]:
    """What is compiled, but for the number of steps, its numbers, and all replicates of what is sampled, of which these have the first."""
    dynamics: Any = call.dynamics
    state = {
        name: np.asarray(value[0])
        for name, value in dynamics.public_states(dynamics.state_arrays(call.initial_state)).items()
    }
    example = "one state {" + ", ".join(f'"{name}"' for name in state) + "}"
    if callable(objective):
        validate_function("objective", objective, (state,), takes="state", call=example)
    if cost is not None:
        numbers = dict.fromkeys(chosen.names, np.zeros(()))
        validate_function(
            "cost",
            cost,
            (np.zeros(()), numbers, state),
            takes="alpha, controls, state",
            call=f"alpha, controls and {example}",
        )
    judge = dynamics
    if evaluate is not None:
        judge = dynamics.evaluator(evaluate)
        if "fields" in evaluate.kinds:
            judge = type(dynamics)(
                evaluate, dynamics.algorithm
            )  # which knows where the weights are among its states
    own = objective if callable(objective) else None
    risky = judge.has_risk
    case = dynamics.ode_request(call.initial_state, call.clock, call.dimension).case
    watch, more = judge.exit_watch(
        "risk" if risky or own is None else own, call.initial_state, call.dimension
    )
    missing = [
        name for index, name in enumerate(chosen.names) if index not in controls_in(case.shared)
    ]
    if missing:
        raise checks.reject(
            "controls", missing, "the equations do not read it as a function of alpha: leave it out"
        )
    count = min(len(leaf) for leaf in jax.tree.leaves(case.replicates))
    every = [
        {name: _one_replicate(name, part, index) for name, part in case.replicates.items()}
        for index in range(count)
    ]
    numbers = {
        "each": every[0],
        "shared": case.shared,
        "states": case.states,
        "alpha": np.float64(call.clock.alpha[-1]),  # type: ignore[index]
        "watch": {
            name: value
            for name, value in more.items()
            if name not in case.shared or (evaluate is not None and name == "problem")
        },
    }
    return (
        Program(case.field, watch, chosen.names, 1, objective == "integral", own, cost, risky),
        numbers,
        every,
    )


def _one_replicate(name: str, part: PyTree, index: int) -> Any:
    """Of what is sampled one replicate; points of a step on the sphere are few, and all of them are taken."""
    if name == "points" and isinstance(part, dict) and "inside" in part:
        return {key: value.reshape(-1, *value.shape[2:]) for key, value in part.items()}
    return jax.tree.map(lambda value: value[index], part)


def _averaged(found: Outcome, every: list[Any]) -> tuple[Outcome, float]:
    """The same protocols with means over all replicates of what is sampled, and the relative standard error of the objective."""
    if len(every) == 1:
        return found, 0.0
    searches = [
        replace(found.search, numbers={**found.search.numbers, "each": each}) for each in every
    ]
    best, flat = (
        list(zip(*(one.exact(z) for one in searches), strict=True)) for z in (found.z, found.flat)
    )
    values = np.array(best[0])
    error = float(values.std(ddof=1) / np.sqrt(len(values)) / max(abs(values.mean()), 1e-300))
    more = {"risks": np.mean(best[1], axis=0), "constant_risks": np.mean(flat[1], axis=0)}
    return replace(
        found, value=float(values.mean()), constant_value=float(np.mean(flat[0])), **more
    ), error


def _expectation_error(call: SolverCall, found: Outcome) -> float:
    """The estimated relative error of the risk, at the start and at the end of the protocol."""
    dynamics, shared = call.dynamics, found.search.numbers["shared"]
    if not isinstance(dynamics, FieldDynamics):
        return 0.0
    errors = []
    for states in (found.search.numbers["states"], found.search.last_states(found.z)):
        in_time = {
            name: np.asarray(value)[:, None] for name, value in from_units(shared, states).items()
        }
        errors.append(dynamics.risk_along(dynamics.unpack(in_time), call.clock, call.dimension)[1])
    return max(errors)


def _half(found: Outcome) -> tuple[float, float]:
    """The value of half as many pieces, and that of infinitely many, as both are off by O(1/pieces^2)."""
    search, fine = found.search, found.search.pieces
    if fine == 1:
        return float("nan"), float("nan")
    if fine % 2 == 0:
        coarse, start = fine // 2, found.z.reshape(fine // 2, 2, -1).mean(axis=1).repeat(2, axis=0)
    else:
        # in pieces of its own: another shape, hence another program
        coarse = fine // 2
        centres = (np.arange(coarse) + 0.5) / coarse * fine - 0.5
        start = np.stack(
            [np.interp(centres, np.arange(fine), column) for column in found.z.T], axis=1
        )
        search = replace(search, pieces=coarse)
    other, _ = search.exact(search.descend(start, np.full(found.z.shape[1], coarse)).z)
    return other, found.value + (found.value - other) / ((fine / coarse) ** 2 - 1)


def _gains(found: Outcome, chosen: Controls) -> dict[str, float]:
    """What each control alone gains, the others at their best constants."""
    if len(chosen.names) == 1:
        return {chosen.names[0]: found.constant_value / found.value}
    gains = {}
    for index, name in enumerate(chosen.names):
        groups = np.where(np.arange(len(chosen.names)) == index, found.search.pieces, 0)
        gains[name] = (
            found.constant_value / found.search.exact(found.search.descend(found.flat, groups).z)[0]
        )
    return gains


def _switches(values: np.ndarray, bounds: tuple[float, float], edges: np.ndarray) -> np.ndarray:
    """Where a control leaves or reaches a bound."""
    low, high = bounds
    near = 1e-5 * (high - low)
    ends = np.where(values <= low + near, -1, np.where(values >= high - near, 1, 0))
    first = np.flatnonzero(
        np.diff(ends, prepend=ends[0] + 9)
    )  # of each stretch of pieces that are alike
    found = []
    for number, here in enumerate(first[1:], 1):
        before, after = ends[here - 1], ends[here]
        follows = first[number + 1] if number + 1 < len(first) else len(ends)
        if after == 0 and follows == here + 1 < len(ends) and ends[follows] == -before:
            share = (values[here] - low) / (high - low)
            found.append(
                edges[here]
                + (share if before == 1 else 1 - share) * (edges[here + 1] - edges[here])
            )
        elif not (before == 0 and found and edges[here - 1] < found[-1] < edges[here]):
            found.append(edges[here])
    return np.array(found)


def _warn(found: Outcome, iterations: int) -> None:
    if found.error > 100 * ACCURACY:
        steps = 2 * found.search.program.steps
        warn(
            f"the objective is known only to {found.error:.1e} with {steps} steps a piece: take more pieces, or narrower bounds"
        )
    if not found.converged:
        warn(
            f"the protocol still improves after {iterations} iterations: give more, iterations=..."
        )
