"""The Bayes-optimal risk as a line in pictures of risks."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics.base import checks
from sgdynamics.problems.problem import Problem
from sgdynamics.results.datasets import problem_of, read_record
from sgdynamics.statics.bayes import bayes_optimal

POINTS = 60
LABEL = "Bayes-optimal"


def draw_floor(ax: Axes, result: xr.Dataset, floor: bool | Problem, clock: str, name: str) -> None:
    """Draw the least risk that any learner reaches on as many samples, where it is defined.

    With fresh samples it is a curve; on a fixed data set it is a horizontal line.
    """
    is_flag = isinstance(floor, (bool, np.bool_))
    problem = problem_of(result) if is_flag else floor
    if not isinstance(problem, Problem):
        raise checks.reject("floor", floor, "give True, or the problem that was solved")
    if not problem.structure.has_excess:
        fix = "the floor is known under the squared loss. Omit floor, or see sgd.bayes_optimal"
        raise checks.reject("floor", floor, fix)
    if name not in ("risk", "excess_risk"):
        raise checks.reject("floor", floor, "a training risk has no such floor. Omit train")
    offset = problem.noise_floor if name == "excess_risk" else 0.0
    samples = read_record(result, "algorithm").get("samples_per_dimension")
    style = {"color": "black", "linestyle": "--", "linewidth": 1.0, "label": LABEL, "zorder": 1.5}
    if samples is not None:
        least = bayes_optimal(problem, float(samples))["risk"].item() - offset
        ax.axhline(least, **style)
        return
    checks.result("result", result, "alpha", fix="samples are not counted here. Omit floor")
    alpha = np.asarray(result["alpha"], np.float64)
    positive = alpha[alpha > 0]
    if not positive.size:
        raise checks.reject("floor", floor, "no samples are used by the last save point. Omit it")
    # dense where the save points are
    points = np.interp(
        np.linspace(0, len(positive) - 1, POINTS), np.arange(len(positive)), positive
    )
    points = np.unique(np.concatenate([points, positive]))
    least = bayes_optimal(problem, points)["risk"].values - offset
    x = np.interp(points, alpha, np.asarray(result[clock], np.float64))
    ax.plot(x, least, **style)
