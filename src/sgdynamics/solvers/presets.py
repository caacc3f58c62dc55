"""Common sequences of stages: distillation, weak to strong, model collapse, fine-tuning."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.roots import find_minimum
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.students import TRUTH
from sgdynamics.solvers.ode import solve_ode
from sgdynamics.solvers.stage_plan import PREVIOUS, SavePoints, Stage
from sgdynamics.solvers.stages import stages

# Problem, algorithm and save points of a stage
StageArguments = tuple[Problem, OnePassSGD, SavePoints]

MOST_STAGES = 10_000


def self_distillation(
    problem: Problem,
    algorithm: OnePassSGD,
    alpha: SavePoints,
    rounds: int = 1,
    teacher: float = 0.0,
) -> list[Stage]:
    """Make the stages of self-distillation: a fresh student learns from its predecessor's outputs.

    Parameters
    ----------
    problem : Problem
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm of all stages.
    alpha : float, array_like or dict
        Length or save points of each stage.
    rounds : int, default 1
        Number of distillations after the first stage.
    teacher : float, default 0.0
        Share of the labels of the problem in the weighted labels.

    Returns
    -------
    list of Stage
        The stages, for ``sgd.stages``. Outputs of students have no label noise.

    Raises
    ------
    ValueError
        If the number of rounds or the share is invalid.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=1.0)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.5]])
    >>> stages = sgd.self_distillation(problem, sgd.OnePassSGD(lr=1.0), [8.0])
    >>> sgd.stages(sgd.solve_ode, stages, start).excess_risk.values.round(3).tolist()
    [[0.108, 0.087]]
    """
    rounds = checks.integer("rounds", rounds, 1, MOST_STAGES)
    labels = _shares("teacher", teacher, PREVIOUS)
    distilled = [
        Stage(problem, algorithm, alpha, labels, label_noise=0.0, start="fresh", name=name)
        for name in (f"distilled {number}" for number in range(1, rounds + 1))
    ]
    return [Stage(problem, algorithm, alpha, name="first"), *distilled]


def weak_to_strong(
    weak: StageArguments, strong: StageArguments, start: Start, label_noise: float = 0.0
) -> list[Stage]:
    """Make the stages of weak-to-strong learning: a strong student learns from a weak one.

    Parameters
    ----------
    weak, strong : (problem, algorithm, alpha)
        The networks with the problem that they are judged on, their algorithms, and the lengths or
        save points of their training.
    start : Start
        Initial condition of the strong student.
    label_noise : float, default 0.0
        Variance of the noise on the outputs of the weak student.

    Returns
    -------
    list of Stage
        Three stages for ``sgd.stages``: "weak"; "strong", which learns from it; and "ceiling", the
        strong student on the labels of its problem. ``sgd.gap_recovered`` compares them.

    Raises
    ------
    ValueError
        If an argument is invalid.

    Examples
    --------
    >>> linear = sgd.TeacherStudent(
    ...     width=1, activation="linear", teacher_activation="erf", noise=0.2
    ... )
    >>> network = sgd.TeacherStudent(width=1, activation="erf", noise=0.2)
    >>> weak = (linear, sgd.OnePassSGD(lr=0.3), {"times": [4.0]})
    >>> strong = (network, sgd.OnePassSGD(lr=0.5), {"times": [8.0]})
    >>> stages = sgd.weak_to_strong(weak, strong, sgd.start(network, M=[[0.0]], Q=[[0.3]]))
    >>> result = sgd.stages(sgd.solve_ode, stages, sgd.start(linear, M=[[0.0]], Q=[[0.0]]))
    >>> result.excess_risk.values.round(4).tolist(), round(sgd.gap_recovered(result), 2)
    ([[0.0266, 0.0209, 0.0126]], 0.41)
    """
    for name, value in (("weak", weak), ("strong", strong)):
        if not isinstance(value, (tuple, list)) or len(value) != 3:
            raise checks.reject(name, value, "give (problem, algorithm, alpha)")
    return [
        Stage(*weak, name="weak"),
        Stage(*strong, "weak", label_noise=label_noise, start=start, name="strong"),
        Stage(*strong, start=start, name="ceiling"),
    ]


def gap_recovered(result: xr.Dataset) -> float:
    """Return the share of the gap between weak and ceiling that the strong student closes.

    ::

        (risk of weak - risk of strong)/(risk of weak - risk of ceiling)

    Parameters
    ----------
    result : xarray.Dataset
        Result of ``sgd.stages`` with stages "weak", "strong" and "ceiling".

    Returns
    -------
    float
        The gap recovered at the ends of the stages, of the mean risk over the runs.

    Raises
    ------
    ValueError
        If the result has no such stages.

    Examples
    --------
    >>> import xarray as xr
    >>> risk = xr.DataArray([[0.3, 0.2, 0.1]], dims=("run", "time"))
    >>> stage = ("time", ["weak", "strong", "ceiling"])
    >>> round(sgd.gap_recovered(xr.Dataset({"risk": risk}, {"stage": stage})), 3)
    0.5
    """
    checks.result("result", result, "risk", "time")
    names = [str(name) for name in result["stage"].values] if "stage" in result.coords else []
    risk = np.asarray(result["risk"].mean("run"))
    ends: dict[str, float] = dict(zip(names, risk.tolist(), strict=bool(names)))
    missing = {"weak", "strong", "ceiling"} - set(ends)
    if missing:
        fix = f"its stages lack {', '.join(sorted(missing))}. Use sgd.weak_to_strong."
        raise checks.reject("result", names, fix)
    return (ends["weak"] - ends["strong"]) / (ends["weak"] - ends["ceiling"])


def model_collapse(
    problem: Problem,
    algorithm: OnePassSGD,
    alpha: SavePoints,
    generations: int = 4,
    real: float = 0.0,
    mixing: str = "weighted",
    start: str = "fresh",
) -> list[Stage]:
    """Make the stages of model collapse: each generation learns from labels of the one before.

    Parameters
    ----------
    problem : Problem
        The learning problem. Generated labels have its label noise.
    algorithm : OnePassSGD
        The training algorithm of all generations.
    alpha : float, array_like or dict
        Length or save points of each generation.
    generations : int, default 4
        Number of generations; the first one learns from real labels.
    real : float, default 0.0
        Share of real labels.
    mixing : str, default "weighted"
        "weighted": each label is the weighted mean of a real and a generated one; "drawn": each
        label is real with probability ``real``.
    start : str, default "fresh"
        "fresh": every generation starts anew; "continue": from the one before.

    Returns
    -------
    list of Stage
        The stages, for ``sgd.stages``.

    Raises
    ------
    ValueError
        If the number of generations or the share is invalid.

    Notes
    -----
    With weighted labels the best share tends to the golden ratio, 0.618: exactly for linear
    students that learn to the end of each generation (``sgd.best_share``).

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.5]])
    >>> for real in (0.0, 0.618):
    ...     stages = sgd.model_collapse(problem, sgd.OnePassSGD(lr=1.0), [6.0], real=real)
    ...     sgd.stages(sgd.solve_ode, stages, start).excess_risk.values.round(4).tolist()
    [[0.0211, 0.0409, 0.0593, 0.0765]]
    [[0.0211, 0.0182, 0.0181, 0.0181]]
    """
    generations = checks.integer("generations", generations, 2, MOST_STAGES)
    checks.choice("start", start, ("fresh", "continue"))
    labels = _shares("real", real, PREVIOUS)
    later = [
        Stage(problem, algorithm, alpha, labels, mixing, start=start, name=f"generation {number}")
        for number in range(2, generations + 1)
    ]
    return [Stage(problem, algorithm, alpha, name="generation 1"), *later]


def best_share(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    *,
    alpha: SavePoints,
    generations: int = 4,
    mixing: str = "weighted",
    fresh: bool = True,
) -> float:
    """Find the share of real labels with the smallest risk of the last generation, by the ODE.

    Parameters
    ----------
    problem : Problem
        The learning problem.
    algorithm : OnePassSGD
        The training algorithm of all generations.
    start : Start
        Initial condition.
    alpha : float, array_like or dict
        Length of each generation.
    generations : int, default 4
        Number of generations.
    mixing : str, default "weighted"
        Mixture of real and generated labels, as in ``sgd.model_collapse``.
    fresh : bool, default True
        Whether every generation starts anew, and not from the one before.

    Returns
    -------
    float
        The best share, between 0.01 and 0.99, to 1e-4.

    Raises
    ------
    ValueError
        If an argument is invalid.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.2)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> algorithm = sgd.OnePassSGD(lr=0.5)
    >>> end = {"times": [20.0]}
    >>> round(sgd.best_share(problem, algorithm, start, alpha=end, generations=2), 3)
    0.667
    """
    fresh = checks.flag("fresh", fresh)

    def last_risk(real: float) -> float:
        sequence = model_collapse(
            problem, algorithm, alpha, generations, real, mixing, "fresh" if fresh else "continue"
        )
        return float(stages(solve_ode, sequence, start)["risk"].values[0, -1])

    return find_minimum(last_risk, 0.01, 0.99, xtol=1e-5).x


def fine_tuning(
    pretraining: StageArguments, tuning: StageArguments, replay: float = 0.0
) -> list[Stage]:
    """Make the stages of pre-training and fine-tuning on another problem.

    Parameters
    ----------
    pretraining, tuning : (problem, algorithm, alpha)
        The problem, the algorithm and the length or save points of both stages. The networks have
        the same width and signals.
    replay : float, default 0.0
        Share of labels of the pre-trained student in the labels of the second stage: distillation
        that keeps what was learnt. Its outputs have no label noise.

    Returns
    -------
    list of Stage
        Two stages, "pretraining" and "tuning", for ``sgd.stages``.

    Raises
    ------
    ValueError
        If an argument is invalid.

    Examples
    --------
    The student forgets the first task, unless it replays it:

    >>> first = sgd.TeacherStudent(
    ...     width=2, teacher_width=2, activation="erf", teacher_head=[2.0, 0.0]
    ... )
    >>> second = first.replace(teacher_head=[0.0, 2.0])
    >>> start = sgd.start(first, M=[[0.2, 0.1], [0.1, 0.2]], Q=np.eye(2))
    >>> algorithm = sgd.OnePassSGD(lr=1.0)
    >>> for replay in (0.0, 0.5):
    ...     stages = sgd.fine_tuning(
    ...         (first, algorithm, [10.0]), (second, algorithm, [10.0]), replay
    ...     )
    ...     evaluate = {"first": first, "second": second}
    ...     result = sgd.stages(sgd.solve_ode, stages, start, evaluate=evaluate)
    ...     result.evaluated_risk.values[0, -1].round(3).tolist()
    [0.225, 0.021]
    [0.079, 0.107]
    """
    for name, value in (("pretraining", pretraining), ("tuning", tuning)):
        if not isinstance(value, (tuple, list)) or len(value) != 3:
            raise checks.reject(name, value, "give (problem, algorithm, alpha)")
    labels = _shares("replay", replay, TRUTH, "pretraining")
    label_noise = 0.0
    return [
        Stage(*pretraining, name="pretraining"),
        Stage(*tuning, labels, label_noise=label_noise, name="tuning"),
    ]


def _shares(argument: str, share: float, other: str, own: str = TRUTH) -> dict[str, float]:
    """Return the shares of two sources of labels, of which one has this share."""
    share = checks.number(argument, share, 0.0)
    if share > 1:
        raise checks.reject(argument, share, "give a share between 0 and 1")
    return {name: value for name, value in ((own, share), (other, 1 - share)) if value > 0}
