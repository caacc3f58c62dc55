"""Laws of binary labels: draws, theory against runs, sums over labels against grids, records."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.label_laws import draw_label, probability
from sgdynamics.problems.likelihoods import likelihood_of
from sgdynamics.results.records import problem_from
from tests.conftest import Z, same_law

LAWS = {
    "sign": sgd.labels.sign(0.1),
    "probit": sgd.labels.probit(0.3),
    "logistic": sgd.labels.logistic(2.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_the_probability_of_the_law(name):
    law = LAWS[name]
    normals = np.random.default_rng(1).standard_normal(200_000)
    with jax.enable_x64(True):
        for output in (-1.3, 0.2, 0.9):
            labels = np.asarray(draw_label(law.law, law.value, np.full(200_000, output), normals))
            chance = float(probability(law.law, law.value, output))
            error = np.sqrt(chance * (1 - chance) / len(labels))
            assert abs(np.mean(labels == 1.0) - chance) < Z * error
            assert set(labels.tolist()) == {-1.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("sign", marks=pytest.mark.slow),
        "probit",
        pytest.param("logistic", marks=pytest.mark.slow),
    ],
)
def test_theory_and_both_simulations_agree(name):
    problem = sgd.TeacherStudent(
        width=1, activation="erf", teacher_activation="linear", labels=LAWS[name]
    )
    start = sgd.start(problem, M=[[0.3]], Q=[[1.2]])
    algorithm = sgd.OnePassSGD(lr=1.0)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=[2.0])
    exact, direct = (
        sgd.simulate(
            problem, algorithm, start, alpha=[2.0], dimension=60, runs=1500, method=method, seed=3
        )
        for method in ("exact", "direct")
    )
    for variable in ("M", "Q"):
        values = [result[variable].values[:, -1].ravel() for result in (exact, direct)]
        same_law(*values, variable)
        # the mean of runs differs from the limit by O(1/d), a few percent here
        expected = float(theory[variable].values.ravel()[-1])
        assert abs(values[0].mean() - expected) < 0.02 * abs(expected) + Z * (
            values[0].std() / np.sqrt(1500)
        )
    assert "excess_risk" not in theory


@pytest.mark.slow
def test_sums_over_labels_agree_with_grids():
    """The squared loss by sums over both labels at Sobol points, and by the mean label on a grid.

    The loss as a user's function takes the first way.
    """
    problem = sgd.TeacherStudent(
        width=1, activation="erf", teacher_activation="linear", labels=LAWS["probit"]
    )
    own = problem.replace(loss=lambda output, label: 0.5 * (output - label) ** 2)
    start = sgd.start(problem, M=[[0.3]], Q=[[1.2]])
    paths = [
        sgd.solve_ode(case, sgd.OnePassSGD(lr=1.0), start, alpha=[1.0]) for case in (problem, own)
    ]
    for variable in ("M", "Q", "risk"):
        grid, sums = (float(path[variable].values.ravel()[-1]) for path in paths)
        assert sums == pytest.approx(grid, rel=2e-4)


def test_records_make_the_problem_again():
    problem = sgd.TeacherStudent(width=1, activation="relu", labels=sgd.labels.sign(0.2))
    assert problem.describe()["labels"] == {"law": "sign", "flip": 0.2}
    assert problem_from(problem.describe()) == problem
    assert problem.replace(width=2).labels == problem.labels
    changed = problem.with_parameters(label_value=np.float64(0.3))
    assert changed.replace(width=2).labels.value == pytest.approx(0.3)
    assert likelihood_of(changed).probabilities(np.array([[1.0]])) == pytest.approx(
        np.array([[0.3, 0.7]])
    )


def test_jumps_of_the_sign_law_are_found():
    shifted = sgd.MultiIndex(
        lambda z: z[0] ** 2 - 0.5, directions=1, width=1, labels=sgd.labels.sign()
    )
    levels = sorted(level for _, level in likelihood_of(shifted).law.kinks)
    assert levels == pytest.approx([-np.sqrt(0.5), np.sqrt(0.5)], abs=1e-12)
    committee = sgd.TeacherStudent(
        width=1,
        activation="erf",
        teacher_activation="linear",
        teacher_width=2,
        teacher_head=[1.0, -1.0],
        labels=sgd.labels.sign(),
    )
    ((normal, level),) = likelihood_of(committee).law.kinks
    assert normal == pytest.approx((np.sqrt(0.5), -np.sqrt(0.5)))
    assert level == 0.0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sgd.labels.sign(0.5), "below 1/2"),
        (lambda: sgd.labels.sign(-0.1), "flip"),
        (lambda: sgd.labels.probit(0.0), "noise"),
        (lambda: sgd.labels.logistic(np.inf), "slope"),
        (lambda: sgd.TeacherStudent(width=1, labels="sign"), "sgd.labels.sign"),
        (
            lambda: sgd.TeacherStudent(width=1, noise=0.1, labels=sgd.labels.sign()),
            "contains its noise",
        ),
    ],
)
def test_invalid_laws_are_rejected(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()
