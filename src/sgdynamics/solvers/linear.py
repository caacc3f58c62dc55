"""Linear students: the exact mean risk after any number of steps, at any dimension, without stepping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.controls import Schedule, is_scheduled
from sgdynamics.base.precision import float64
from sgdynamics.base.progress import warn
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.results.clock import time_divisor
from sgdynamics.results.datasets import largest_share, record, time_name
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.scaling.modes import LinearModes, validate_values

FOURTH = 0.38345  # of g l_1 at batch 1, above which fourth moments of the error along the largest eigenvalue diverge


@float64
def solve_linear(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    *,
    steps: Sequence[float] | ArrayArgument,
    dimension: float | None = None,
    kappa: float = 1.0,
) -> xr.Dataset:
    """The mean risk of one-pass SGD on a linear student after any number of steps: exact at any dimension, step and batch.

    Parameters
    ----------
    problem : TeacherStudent
        With linear activations, the squared loss, a fixed head and free rows; of any width (a committee of linear units is one).
    algorithm : OnePassSGD
        Plain SGD; its learning rate a number, or ``sgd.piecewise_rate`` (taken piece by piece).
    start : Start
        Where, of one run or several.
    steps : sequence of int
        Save points in steps, in any order, up to 1e15.
    dimension : int, optional
        d; a problem whose covariance is a ``sgd.Spectrum`` knows it.
    kappa : float, default 1.0
        E|x|^4 over that of a Gaussian of the same covariance: 1 for Gaussian inputs, else for elliptical ones, x = sqrt(tau) z with
        kappa = E[tau^2]; ``sgd.spectrum_of`` measures it.

    Returns
    -------
    xarray.Dataset
        ``risk`` and ``excess_risk`` over (run, time) and ``error_block``, the mean of abs(w - w*)^2 in each block, with the coordinates
        ``step``, ``t`` and ``alpha``. Attributes: ``largest_step``, the step g above which the mean risk does not settle;
        ``noise_gain``, how much of its own risk a step feeds back (1 at that step); ``g_l1``, ``effective_dimension``, ``trace``; with bins
        ``error_binning``, their relative error on the risk.

    Raises
    ------
    ValueError
        If the student is not linear, or an argument is refused.

    Warns
    -----
    UserWarning
        Where the mean does not settle, or is carried by rare runs.

    Notes
    -----
    With weights in the eigenbasis, c_j = E[(w_j - w*_j)^2] closes: c_j' = q_j c_j + (g^2/B) l_j 2 risk,
    q_j = 1 - 2 g l_j + g^2 (1 + 1/B) l_j^2. One symmetric eigenproblem gives all steps.
    At g l_1 near 1/2 the mean is not a typical run: after 5 steps at batch 1 the median is a tenth of it.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=1e-4, covariance=sgd.power_law(1.2, 1e9, target=0.3))
    >>> begin = sgd.start(problem, M=np.zeros((110, 1, 1)), Q=np.zeros((110, 1, 1)))
    >>> result = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.5, per="trace"), begin, steps=[100, 10_000, 1_000_000])
    >>> [f"{value:.4g}" for value in result["risk"].values[0]]
    ['0.09869', '0.004952', '0.0002979']
    """
    algorithm = checked_algorithm(algorithm, "solve_linear", problem)
    weights = output_weights(problem)
    d, sizes = check_dimension(problem, dimension, small=True)
    begin = validate_start(problem, start)
    wanted = validate_values("steps", steps, 0.0)
    if np.any(wanted != np.round(wanted)) or np.any(wanted > 1e15):
        raise checks.reject("steps", steps, "give whole numbers up to 1e15")
    kappa = checks.number("kappa", kappa, above=0.0)
    dynamics = FieldDynamics(problem, algorithm)
    found = _means(dynamics, begin, weights, sizes, d, kappa, wanted)
    attributes: dict[str, Any] = {
        "dimension": d,
        "kappa": kappa,
        "assumptions": "linear student, one pass, exact mean",
    }
    if problem.spectrum is not None:
        attributes |= {
            "dimension": problem.spectrum.dimension,
            "effective_dimension": problem.spectrum.effective_dimension,
        }
    g = float(np.max(_pieces(algorithm, d)[1])) / d
    modes = modes_of(dynamics, begin, 0, weights, sizes, kappa)
    scale = output_gain(begin, 0)
    attributes |= {
        "trace": modes.trace,
        "g_l1": g * scale * float(modes.eigenvalues.max()),
        "largest_step": modes.largest_step(algorithm.batch) / scale if scale else math.inf,
        "noise_gain": modes.noise_gain(g * scale, algorithm.batch) if g * scale else 0.0,
    }
    coarser = dynamics.merge_bins(begin)
    if coarser is not None:
        other = _means(coarser[0], coarser[1], weights, sizes, d, kappa, wanted)
        risks = (
            found[0] @ eigenvalues(problem.parameters),
            other[0] @ eigenvalues(coarser[0].parameters),
        )
        attributes["error_binning"] = largest_share(
            (risks[0] - risks[1]) / 3, risks[0] + float(problem.noise)
        )  # type: ignore[attr-defined]
    _warn(attributes, algorithm.batch)
    return _dataset(problem, algorithm, found, wanted, d, attributes)


def output_weights(problem: Problem) -> np.ndarray:
    """The teacher as one vector in the signals; refuse what is not linear."""
    fix = 'give sgd.TeacherStudent(width=..., activation="linear", ...) with loss="squared", a fixed head and free rows'
    if not linear_student(problem) or problem.head != "fixed" or problem.constraint is not None:
        raise checks.reject("problem", problem, f"this is for linear students: {fix}")
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


def output_gain(begin: Start, run: int) -> float:
    """A step of the output's vector (1/p) sum_i a_i w_i over that of a row: sum_i (a_i/p)^2."""
    a = begin.a[run]
    return float(np.sum((a / len(a)) ** 2))


def modes_of(
    dynamics: Any, begin: Start, run: int, weights: np.ndarray, sizes: Any, kappa: float
) -> LinearModes:
    """The student of one run as its modes."""
    numbers = dynamics.parameters
    a = begin.a[run] / begin.a.shape[1]
    own = np.einsum("i,bij,j->b", a, begin.Q_blocks[run], a)
    cross = np.einsum("i,bir,r->b", a, begin.M_blocks[run], weights)
    target = np.einsum("r,brs,s->b", weights, numbers["gram"], weights)
    errors = np.maximum(own - 2 * cross + target, 0.0)
    counts = np.asarray(sizes, dtype=float)
    return LinearModes(
        np.asarray(eigenvalues(numbers)),
        counts,
        errors,
        float(numbers["noise"]),
        kappa,
        target,
        cross - target,
    )


def _pieces(algorithm: OnePassSGD, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which the learning rate changes, and its values before the first of them, between, and after."""
    lr = algorithm.lr
    if not isinstance(lr, Schedule):
        return np.zeros(0), np.array([float(lr)])
    if lr.name != "piecewise":
        raise checks.reject(
            "lr",
            lr,
            "a schedule is taken piece by piece here: give sgd.piecewise_rate(...), or take solve_ode",
        )
    # the rate of a step is that at its alpha
    edges = np.ceil(np.asarray(lr.parameters["edges"]) * d / algorithm.batch - 1e-9)
    return edges, np.asarray(lr.parameters["rates"])


def _means(
    dynamics: Any,
    begin: Start,
    weights: np.ndarray,
    sizes: Any,
    d: int,
    kappa: float,
    wanted: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (run, time, block) and the learning rates' sum over d after so many steps, which is t."""
    edges, rates = _pieces(dynamics.algorithm, d)
    found = np.zeros((begin.runs, len(wanted), len(np.asarray(sizes))))
    t = np.zeros(len(wanted))
    decay, batch = float(dynamics.parameters["weight_decay"]), dynamics.algorithm.batch
    students = [modes_of(dynamics, begin, run, weights, sizes, kappa) for run in range(begin.runs)]
    first = elapsed = 0.0
    # runs inside of pieces: those with the same head share the eigenproblem of a piece
    for rate, last in zip(rates, [*edges, np.inf], strict=True):
        here = (wanted >= first) & (wanted < last)
        ends = np.append(wanted[here] - first, last - first if np.isfinite(last) else 0.0)
        t[here] = elapsed + (wanted[here] - first) * rate / d
        for run, now in enumerate(students):
            scale = output_gain(begin, run)
            g = rate / d * scale
            if g > 0:
                errors, alongs = now.errors_after(ends, g, batch, decay / scale)
            else:
                errors, alongs = (
                    np.tile(now.errors, (len(ends), 1)),
                    np.tile(now.along, (len(ends), 1)),
                )  # type: ignore[arg-type]
            found[run][here] = errors[:-1]
            if np.isfinite(last):
                students[run] = replace(now, errors=np.maximum(errors[-1], 0.0), along=alongs[-1])
        if np.isfinite(last):
            elapsed, first = elapsed + (last - first) * rate / d, last
    return found, t


def _warn(attributes: dict[str, Any], batch: int) -> None:
    if attributes["noise_gain"] >= 1:
        warn(
            f"a step feeds back {attributes['noise_gain']:.3g} of its own risk, and the mean does not settle: steps g above "
            f"{attributes['largest_step']:.3g} (lr in units of D) diverge in the mean"
        )
    elif batch == 1 and attributes["g_l1"] > FOURTH:
        warn(
            f"g l_1 = {attributes['g_l1']:.2g}: above {FOURTH} fourth moments diverge, and rare runs carry the mean; "
            'take a smaller lr, or sgd.simulate(..., method="exact") for typical ones'
        )


def _dataset(
    problem: Any,
    algorithm: OnePassSGD,
    found: tuple[np.ndarray, np.ndarray],
    steps: np.ndarray,
    d: int,
    attributes: dict[str, Any],
) -> xr.Dataset:
    errors, t = found
    with np.errstate(over="ignore", invalid="ignore"):
        excess = 0.5 * errors @ eigenvalues(problem.parameters)
    excess = np.where(np.isfinite(excess), excess, np.inf)
    variables = {
        "risk": (
            ("run", "time"),
            excess + problem.noise_floor,
            {"long_name": "mean population risk"},
        ),
        "excess_risk": (("run", "time"), excess, {"long_name": "mean excess risk"}),
        "error_block": (
            ("run", "time", "block"),
            errors,
            {"long_name": "mean of |w - w*|^2 in a block"},
        ),
    }
    coordinates: dict[str, Any] = {
        "t": ("time", t, {"long_name": time_name(time_divisor(algorithm))}),
        "step": ("time", steps, {"long_name": "steps"}),
        "diverged_at": (
            "run",
            np.full(len(excess), np.nan),
            {"long_name": "last finite time of a run that diverged"},
        ),
        "eigenvalue": (
            "block",
            eigenvalues(problem.parameters),
            {"long_name": "covariance eigenvalue"},
        ),
    }
    if problem.spectrum is None or not problem.spectrum.infinite:
        coordinates["alpha"] = ("time", steps * (algorithm.batch / d), {"long_name": "samples/d"})
    return xr.Dataset(
        variables,
        coordinates,
        record(problem, algorithm, "solve_linear", attributes | {"clock": "step"}),
    )
