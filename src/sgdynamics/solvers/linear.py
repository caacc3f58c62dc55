"""`solve_linear`: the exact mean risk of linear students after any number of steps.

With weights in the eigenbasis of the inputs, the second moments of the errors close on themselves
at any dimension, and one symmetric eigenproblem gives all steps (`scaling.modes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import Schedule, alpha_of_steps, is_scheduled
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import Cost, Meter, meter, warn_if_long
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.results.build import Labels, ResultCall, ResultSource, build_result
from sgdynamics.results.clock import Clock, time_divisor
from sgdynamics.results.datasets import largest_share
from sgdynamics.results.observables import Observables
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.scaling.modes import MOST_MODES, LinearModes, validate_values
from sgdynamics.solvers.call import validate_call

# g l_1 at batch 1, above which fourth moments of the error along the largest eigenvalue diverge
FOURTH_MOMENT_LIMIT = 0.38345
MOST_STEPS = 1e15
TRIED_MODES = 256  # modes of the eigenproblem whose time predicts that of larger ones
MOST_ITERATED = 1e6  # steps of a learning rate that changes at every step


@float64
def solve_linear(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    *,
    steps: Sequence[float] | ArrayArgument,
    dimension: float | None = None,
    kappa: float = 1.0,
    progress: bool | None = None,
) -> xr.Dataset:
    """Mean risk of one-pass SGD on a linear student: exact at any dimension, step and batch.

    Parameters
    ----------
    problem : TeacherStudent
        The learning problem, with linear activations, the squared loss, a fixed head and free
        rows. A committee of linear units of any width is a linear student.
    algorithm : OnePassSGD
        Plain SGD. With a learning rate that is neither constant nor ``sgd.piecewise_rate``, the
        mean is iterated step by step, up to 1e6 steps.
    start : Start
        Initial condition of one or several runs.
    steps : sequence of int
        Save points in steps, in any order, up to 1e15.
    dimension : int, optional
        Dimension d; defaults to that of the covariance if it is a ``sgd.Spectrum``.
    kappa : float, default 1.0
        Ratio of E|x|^4 to that of a Gaussian of the same covariance: 1 for Gaussian inputs,
        kappa = E[tau^2] for elliptical ones, x = sqrt(tau) z. ``sgd.spectrum_of`` measures it.
    progress : bool, optional
        Whether to show a progress bar. By default only on a terminal.

    Returns
    -------
    xarray.Dataset
        ``risk`` and ``excess_risk`` over (run, time) and ``error_block``, the mean of
        abs(w - w*)^2 in each block, with the coordinates ``step``, ``t`` and ``alpha``.
        Attributes: ``largest_step``, the step g above which the mean risk does not settle;
        ``noise_gain``, the share of its own risk that a step feeds back (1 at that step);
        ``g_l1``, ``effective_dimension``, ``trace``; with bins ``error_binning``, their relative
        error on the risk.

    Raises
    ------
    ValueError
        If the student is not linear, or an argument is invalid.

    Warns
    -----
    UserWarning
        If the mean does not settle, or if rare runs carry it.

    Notes
    -----
    With weights in the eigenbasis, c_j = E[(w_j - w*_j)^2] obeys a closed recursion:
    c_j' = q_j c_j + (g^2/B) l_j 2 risk, q_j = 1 - 2 g l_j + g^2 (1 + 1/B) l_j^2. One symmetric
    eigenproblem gives all steps. At g l_1 near 1/2 the mean is not a typical run: after 5 steps at
    batch 1 the median is a tenth of it.

    Examples
    --------
    >>> spectrum = sgd.power_law(1.2, 1e9, target=0.3)
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=1e-4, covariance=spectrum)
    >>> start = sgd.start(problem, M=np.zeros((110, 1, 1)), Q=np.zeros((110, 1, 1)))
    >>> algorithm = sgd.OnePassSGD(lr=0.5, per="trace")
    >>> result = sgd.solve_linear(problem, algorithm, start, steps=[100, 10_000, 1_000_000])
    >>> [f"{value:.4g}" for value in result["risk"].values[0]]
    ['0.09869', '0.004952', '0.0002979']
    """
    # Save points may come in any order, so that only the other arguments are validated here.
    call = validate_call(
        "solve_linear",
        problem,
        algorithm,
        start,
        times=[0.0],
        dimension=dimension,
        needs_dimension=True,
        allow_small_blocks=True,
        progress=progress,
    )
    weights = output_weights(problem)
    points = validate_values("steps", steps, 0.0)
    if np.any(points != np.round(points)) or np.any(points > MOST_STEPS):
        raise checks.reject("steps", steps, "give whole numbers up to 1e15")
    kappa = checks.number("kappa", kappa, above=0.0)
    dynamics, (d, block_sizes) = call.dynamics, call.finite_dimension
    assert isinstance(dynamics, FieldDynamics)
    student = _Student(dynamics, call.initial_state, weights, block_sizes, d, kappa)
    if _is_smooth(algorithm) and points.max(initial=0.0) > MOST_ITERATED:
        fix = (
            f"a learning rate that changes at every step is iterated, up to {MOST_ITERATED:.0e} "
            "steps. Use fewer steps, or sgd.piecewise_rate(...)."
        )
        raise checks.reject("steps", float(points.max()), fix)
    with _meter(student, call.progress) as bar:
        errors, t = student.errors_after(points, bar)
    attributes: dict[str, Any] = {
        "dimension": d,
        "kappa": kappa,
        "assumptions": "linear student, one pass, exact mean",
        **student.stability(points.max(initial=0.0)),
    }
    if problem.spectrum is not None:
        attributes["dimension"] = problem.spectrum.dimension
        attributes["effective_dimension"] = problem.spectrum.effective_dimension
    merged = dynamics.merge_bins(call.initial_state)
    if merged is not None:
        coarse = student._replace(dynamics=merged[0], start=merged[1])
        twice_excess = errors @ eigenvalues(problem.parameters)
        coarse_excess = coarse.errors_after(points)[0] @ eigenvalues(merged[0].parameters)
        # Bins twice as wide have four times the error.
        noise = float(problem.parameters["noise"])
        attributes["error_binning"] = largest_share(
            (twice_excess - coarse_excess) / 3, twice_excess + noise
        )
    clock = Clock(
        t,
        points * (dynamics.algorithm.batch / d),
        points,
        samples=problem.spectrum is None or not problem.spectrum.infinite,
        requested="step",
        divisor=time_divisor(dynamics.algorithm),
    )
    source = LinearMeans(problem, dynamics.algorithm)
    states = {"error_block": errors}
    return build_result(
        ResultCall(source, clock, d, Observables()),
        "solve_linear",
        states,
        attributes,
        {"diverged_at": np.full(len(errors), np.nan)},
        risk=source.risk_along(states, clock, d)[0],
        warnings=_stability_warnings(attributes, dynamics.algorithm.batch),
    )


class LinearMeans(ResultSource):
    """Results of a linear student: second moments of its errors by block, and the mean risk."""

    def __init__(self, problem: Problem, algorithm: OnePassSGD) -> None:
        self.problem, self.algorithm = problem, algorithm

    def _excess_risk(self, errors: np.ndarray) -> np.ndarray:
        """(1/2) sum_b l_b E|w_b - w*_b|^2, infinite where the errors overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            excess = 0.5 * errors @ eigenvalues(self.problem.parameters)
        return np.where(np.isfinite(excess), excess, np.inf)

    def risk_along(
        self, states: dict[str, np.ndarray], clock: Clock, dimension: int | None
    ) -> tuple[np.ndarray, float]:
        return self._excess_risk(states["error_block"]) + self.problem.noise_floor, 0.0

    def observables(
        self, states: dict[str, np.ndarray], risk: np.ndarray, clock: Clock
    ) -> dict[str, Any]:
        errors = states["error_block"]
        return {
            "risk": risk,
            "excess_risk": self._excess_risk(errors),
            "error_block": errors,
        }

    def labels(self, values: Mapping[str, np.ndarray]) -> Labels:
        variables = {
            "risk": ("mean population risk", ()),
            "excess_risk": ("mean excess risk", ()),
            "error_block": ("mean of |w - w*|^2 in a block", ("block",)),
        }
        meaning = {"long_name": "covariance eigenvalue"}
        coordinates = {"eigenvalue": ("block", eigenvalues(self.problem.parameters), meaning)}
        return Labels(variables, coordinates)


def output_weights(problem: Problem) -> np.ndarray:
    """The teacher as one vector in the signals; ValueError for students that are not linear."""
    if not linear_student(problem) or problem.head != "fixed" or problem.constraint is not None:
        fix = (
            "this is for linear students: give sgd.TeacherStudent(width=..., "
            'activation="linear", ...) with loss="squared", a fixed head and free rows'
        )
        raise checks.reject("problem", problem, fix)
    if is_scheduled(problem.noise) or is_scheduled(problem.weight_decay):
        raise checks.reject("problem", problem, "noise and weight decay are numbers here")
    return np.asarray(problem.teacher_head) / problem.teacher_width


def has_linear_output(problem: object) -> TypeGuard[TeacherStudent]:
    """Whether the student is linear with the squared loss, whatever the teacher."""
    return (
        isinstance(problem, TeacherStudent)
        and problem.structure.has_excess
        and problem.activation.name == "linear"
    )


def linear_student(problem: object) -> TypeGuard[TeacherStudent]:
    """Whether student and teacher are linear, and the loss is squared."""
    return has_linear_output(problem) and problem.teacher_activation.name == "linear"


def output_gain(start: Start, run: int) -> float:
    """Step of the output vector (1/p) sum_i a_i w_i over that of a row: sum_i (a_i/p)^2."""
    a = start.a[run]
    return float(np.sum((a / len(a)) ** 2))


def modes_of(
    dynamics: FieldDynamics,
    start: Start,
    run: int,
    weights: np.ndarray,
    block_sizes: np.ndarray,
    kappa: float,
) -> LinearModes:
    """The student of one run in the eigenbasis of its inputs."""
    parameters = dynamics.parameters
    a = start.a[run] / start.a.shape[1]
    # |w|^2, w.w* and |w*|^2 of the output vectors in each block
    student = np.einsum("i,bij,j->b", a, start.Q_blocks[run], a)
    cross = np.einsum("i,bir,r->b", a, start.M_blocks[run], weights)
    teacher = np.einsum("r,brs,s->b", weights, parameters["gram"], weights)
    return LinearModes(
        np.asarray(eigenvalues(parameters)),
        np.asarray(block_sizes, dtype=float),
        np.maximum(student - 2 * cross + teacher, 0.0),
        float(parameters["noise"]),
        kappa,
        teacher,
        cross - teacher,
    )


def _pieces(algorithm: OnePassSGD, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which the learning rate changes, and its values before, between and after them."""
    lr = algorithm.lr
    if not isinstance(lr, Schedule):
        return np.zeros(0), np.array([float(lr)])
    # The rate of a step is that at its alpha.
    edges = np.ceil(np.asarray(lr.parameters["edges"]) * d / algorithm.batch - 1e-9)
    return edges, np.asarray(lr.parameters["rates"])


def _is_smooth(algorithm: OnePassSGD) -> bool:
    """Whether the learning rate may change at every step."""
    return isinstance(algorithm.lr, Schedule) and algorithm.lr.name != "piecewise"


def _step_rates(algorithm: OnePassSGD, steps: int, d: float) -> np.ndarray:
    """The learning rate of each of the first steps, that at its alpha."""
    return algorithm.rates(alpha_of_steps(np.arange(steps), algorithm.batch, d))


class _Student(NamedTuple):
    """A linear student, its start and its teacher in the signals."""

    dynamics: FieldDynamics
    start: Start
    weights: np.ndarray
    block_sizes: np.ndarray
    dimension: int
    kappa: float

    def modes(self, run: int) -> LinearModes:
        return modes_of(self.dynamics, self.start, run, self.weights, self.block_sizes, self.kappa)

    def errors_after(
        self, steps: np.ndarray, bar: Meter | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Errors (run, time, block) after these steps, and t = sum of lr/d over the steps."""
        bar = Meter() if bar is None else bar
        if _is_smooth(self.dynamics.algorithm):
            return _iterated_means(self, steps, bar)
        return _means(self, steps, bar)

    def stability(self, last: float) -> dict[str, Any]:
        """Attributes about the largest step up to the last one, for the first run."""
        algorithm, modes = self.dynamics.algorithm, self.modes(0)
        if _is_smooth(algorithm):
            rates = _step_rates(algorithm, max(int(last), 1), self.dimension)
        else:
            rates = _pieces(algorithm, self.dimension)[1]
        g = float(np.max(rates)) / self.dimension
        gain = output_gain(self.start, 0)
        return {
            "trace": modes.trace,
            "g_l1": g * gain * float(modes.eigenvalues.max()),
            "largest_step": modes.largest_step(algorithm.batch) / gain if gain else math.inf,
            "noise_gain": modes.noise_gain(g * gain, algorithm.batch) if g * gain else 0.0,
        }


@contextmanager
def _meter(student: _Student, progress: bool | None) -> Iterator[Meter]:
    """A meter of the runs, with a warning if their eigenproblems will take long."""
    algorithm, runs = student.dynamics.algorithm, student.start.runs
    modes = len(student.block_sizes)
    if _is_smooth(algorithm):
        with meter("solve_linear", runs, progress, Cost("run")) as bar:
            yield bar
        return
    work = runs * len(_pieces(algorithm, student.dimension)[1])
    label = f"solve_linear, {modes} eigenvalues"
    with meter(label, work, progress, Cost("eigenproblem")) as bar:
        if TRIED_MODES < modes <= MOST_MODES:
            seconds = _time_eigenproblem() * (modes / TRIED_MODES) ** 3
            how = f"{seconds:.2g} s per eigenproblem, at most {work:g} eigenproblems"
            warn_if_long(bar, seconds * work, how, "at most")
        yield bar


def _time_eigenproblem() -> float:
    """Seconds of a symmetric eigenproblem with `TRIED_MODES` modes."""
    matrix = np.cos(np.arange(TRIED_MODES)[:, None] * np.arange(TRIED_MODES))
    start_time = perf_counter()
    np.linalg.eigh(matrix + matrix.T)
    return perf_counter() - start_time


def _means(student: _Student, steps: np.ndarray, bar: Meter) -> tuple[np.ndarray, np.ndarray]:
    """See `_Student.errors_after`: pieces of the learning rate one after the other."""
    algorithm, d, start = student.dynamics.algorithm, student.dimension, student.start
    edges, rates = _pieces(algorithm, d)
    errors = np.zeros((start.runs, len(steps), len(student.block_sizes)))
    t = np.zeros(len(steps))
    decay = float(student.dynamics.parameters["weight_decay"])
    modes = [student.modes(run) for run in range(start.runs)]
    first = elapsed = 0.0
    for rate, last in zip(rates, [*edges, np.inf], strict=True):
        is_inside = (steps >= first) & (steps < last)
        inside = steps[is_inside] - first
        length = last - first if np.isfinite(last) else 0.0
        t[is_inside] = elapsed + inside * rate / d
        # Runs with the same head share the eigenproblem of a piece.
        for run, current in enumerate(modes):
            gain = output_gain(start, run)
            after, teacher_part = _errors_after_piece(
                current, np.append(inside, length), rate / d * gain, algorithm.batch, decay, gain
            )
            bar.advance(1.0)
            errors[run][is_inside] = after[:-1]
            if np.isfinite(last):
                modes[run] = replace(
                    current, errors=np.maximum(after[-1], 0.0), along=teacher_part[-1]
                )
        elapsed, first = elapsed + length * rate / d, last
    return errors, t


def _iterated_means(
    student: _Student, steps: np.ndarray, bar: Meter
) -> tuple[np.ndarray, np.ndarray]:
    """See `_Student.errors_after`: step by step, for a learning rate that changes all the time."""
    algorithm, d, start = student.dynamics.algorithm, student.dimension, student.start
    rates = _step_rates(algorithm, int(steps.max(initial=0.0)), d) / d
    decay = float(student.dynamics.parameters["weight_decay"])
    errors = []
    for run in range(start.runs):
        gain = output_gain(start, run)
        scaled_decay = decay / gain if gain else 0.0
        modes = student.modes(run)
        errors.append(modes.errors_with_rates(steps, rates * gain, algorithm.batch, scaled_decay))
        bar.advance(1.0)
    t = np.concatenate([[0.0], np.cumsum(rates)])[steps.astype(int)]
    return np.array(errors), t


def _errors_after_piece(
    modes: LinearModes, steps: np.ndarray, g: float, batch: int, decay: float, gain: float
) -> tuple[np.ndarray, np.ndarray]:
    """Errors, and their part along the teacher, after these steps of a constant step size g."""
    if g > 0:
        return modes.errors_after(steps, g, batch, decay / gain)
    assert modes.along is not None
    return np.tile(modes.errors, (len(steps), 1)), np.tile(modes.along, (len(steps), 1))


def _stability_warnings(attributes: dict[str, Any], batch: int) -> tuple[str, ...]:
    if attributes["noise_gain"] >= 1:
        return (
            f"a step feeds back {attributes['noise_gain']:.3g} of its own risk, and the mean does "
            f"not settle. Steps g above {attributes['largest_step']:.3g} (lr in units of D) "
            "diverge in the mean. Use a smaller lr.",
        )
    if batch == 1 and attributes["g_l1"] > FOURTH_MOMENT_LIMIT:
        return (
            f"g l_1 = {attributes['g_l1']:.2g}: above {FOURTH_MOMENT_LIMIT} fourth moments "
            "diverge, and rare runs carry the mean. Use a smaller lr, or "
            'sgd.simulate(..., method="exact") for typical runs.',
        )
    return ()
