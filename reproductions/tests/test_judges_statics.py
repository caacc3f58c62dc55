"""Judges of statics: each claim, broken by a stated amount, turns "reproduced" into "differs"."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from breaking import Break, check_break, check_few_runs
from sgdynamics_reproductions.gallery.judges import statics as judges
from sgdynamics_reproductions.statics.comparison import comparison
from test_judges_several_inputs import about

RUNS, SPREAD = 40, 0.02
X = np.linspace(0.5, 1.5, 11)


def comparison_about(cases, limit, **attributes):
    """Data whose runs lie about the limits."""
    limit = np.asarray(limit, np.float64)
    runs = [about(line, SPREAD * line.max(), RUNS, seed) for seed, line in enumerate(limit)]
    curve = np.tile(np.linspace(0.1, 0.9, len(X)), (len(cases), 1))
    points = np.tile(np.arange(1.0, limit.shape[1] + 1), (len(cases), 1))
    return comparison(cases, X, curve, points, limit, runs, "overlap", d=250, seed=0, **attributes)


@cache
def perceptron():
    cases = ("Bayes-optimal, AMP", "best ridge", "max margin", "one-pass SGD")
    data = comparison_about(cases, [[0.25, 0.13], [0.26, 0.15], [0.26, 0.14], [0.28, 0.17]])
    return data.assign(needed=("case", np.array(judges.NEEDED)))


@cache
def phase():
    data = comparison_about(
        ["message passing"], [[0.22, 0.48, 1.0]], spinodal=1.12847141, threshold=0.5
    )
    return data.assign(bayes=("x", np.where(X > 1.0001, 1.0, 0.5)))


@cache
def units():
    cases = ("sum of the units", "difference of the units")
    return comparison_about(cases, [[0.6, 0.81, 0.88], [0.01, 0.49, 0.77]], threshold=2.05239)


@cache
def classifier():
    floor = {"best": 0.256174, "best_decay": 0.06, "bayes": 0.256156}
    return comparison_about(("logistic", "squared"), [[0.266, 0.256], [0.27, 0.26]], **floor)


@cache
def ridge():
    return comparison_about(("best", "little"), [[0.07, 0.027], [0.074, 0.058]])


@cache
def huber():
    return comparison_about(("huber", "squared"), [[1.3, 0.3, 0.1], [1.8, 0.53, 0.2]])


@cache
def links():
    cases = ("abs(z)", "z^2 with noise 1", "sign(z^2 - 1)")
    data = comparison_about(cases, [[0.23, 0.64], [0.2, 0.5], [0.4, 0.74]])
    return data.assign(threshold=("case", [0.5, 0.6466, 0.925]))


def change_runs(case, by=1.0, offset=0.0):
    """Return a change that multiplies the runs of one case and adds an offset."""

    def alter(data):
        data.runs.values[case] = data.runs.values[case] * by + offset
        return data

    return alter


def change_attribute(name, offset):
    """Return a change that adds to an attribute."""
    return lambda data: data.assign_attrs({name: data.attrs[name] + offset})


def change_variable(name, by):
    """Return a change that multiplies a variable."""
    return lambda data: data.assign({name: data[name] * by})


BROKEN = [
    Break(judges.sign_perceptron, perceptron, "Bayes-optimal, AMP", "20%", change_runs(0, 1.2)),
    Break(judges.sign_perceptron, perceptron, "max margin", "20%", change_runs(2, 0.8)),
    Break(
        judges.sign_perceptron, perceptron, "another program", "2%", change_variable("needed", 1.02)
    ),
    Break(judges.phase_retrieval, phase, "message passing", "0.3", change_runs(0, 1.0, -0.3)),
    Break(judges.phase_retrieval, phase, "hard phase", "0.01", change_attribute("spinodal", 0.01)),
    Break(
        judges.phase_retrieval, phase, "Weak recovery", "0.1", change_attribute("threshold", 0.1)
    ),
    Break(judges.phase_retrieval, phase, "is 1 beyond", "5%", change_variable("bayes", 0.95)),
    Break(judges.committee, units, "difference", "0.3", change_runs(1, 1.0, 0.3)),
    Break(judges.committee, units, "specialise", "0.05", change_attribute("threshold", 0.05)),
    Break(judges.best_weight_decay, classifier, "logistic", "15%", change_runs(0, 1.15)),
    Break(
        judges.best_weight_decay, classifier, "best error", "0.01", change_attribute("best", 0.01)
    ),
    Break(judges.power_law_ridge, ridge, "little", "30%", change_runs(1, 1.3)),
    Break(judges.outliers, huber, "squared: the mean", "30%", change_runs(1, 1.3)),
    Break(judges.outliers, huber, "closer", "the other way", change_runs(0, 2.5)),
    Break(judges.weak_recovery, links, "abs(z)", "0.3", change_runs(0, 1.0, 0.3)),
    Break(judges.weak_recovery, links, "thresholds", "5%", change_variable("threshold", 1.05)),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_broken_claim_differs(case):
    check_break(case)


def test_few_runs_do_not_decide():
    data = ridge().copy(deep=True)
    data["runs"] = (data.limit + 10 * (data.runs - data.limit)).transpose(*data.runs.dims)
    check_few_runs(judges.power_law_ridge, ridge(), data.isel(run=slice(0, 3)))
