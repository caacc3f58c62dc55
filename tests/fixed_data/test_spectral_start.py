"""The spectral start of message passing: against eigenvectors, direct runs and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.message_passing import MessagePassing
from sgdynamics.fixed_data.spectral_start import spectral_start
from tests.conftest import Z

PHASE = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="abs")


def runs_of(problem, algorithm, **arguments):
    return sgd.simulate(problem, algorithm, None, progress=False, **arguments)


@pytest.mark.slow
def test_threshold_and_overlap_of_phase_retrieval():
    """For y = abs(z), H = z^2 - 1; eigenvectors of this size agree (test below)."""
    start = spectral_start(PHASE, MessagePassing.from_problem(PHASE, "bayes"), 1.2)
    assert start.threshold == pytest.approx(0.5, rel=1e-5)
    assert start.threshold == pytest.approx(float(sgd.weak_recovery(PHASE)), rel=1e-5)
    z, weights = np.polynomial.hermite_e.hermegauss(201)
    H, c = z**2 - 1, start.cosine2
    assert 1.2 * (1 - c) * (weights @ (H**2 / (1 + c * H))) / weights.sum() == pytest.approx(1.0)
    assert 0.2 < c < 0.5
    noisy = PHASE.replace(noise=0.1, teacher_activation="square")
    start = spectral_start(noisy, MessagePassing.from_problem(noisy, "bayes"), 1.2)
    assert start.threshold == pytest.approx(float(sgd.weak_recovery(noisy)), rel=2e-5)


@pytest.mark.slow
def test_direct_runs_start_at_the_eigenvector(monkeypatch):
    drawn = {}
    original = DirectFixedData.initial

    def initial(self, chosen):
        state = original(self, chosen)
        drawn.update(data=self.data, rows=state.rows)
        return state

    monkeypatch.setattr(DirectFixedData, "initial", initial)
    algorithm = sgd.AMP(3.0, start="spectral")
    result = runs_of(PHASE, algorithm, method="direct", steps=[0], dimension=80, runs=1)
    X = np.asarray(drawn["data"].inputs)[0]
    y = np.abs(np.asarray(drawn["data"].signals)[0, :, 0])
    T = 1.0 - 1.0 / np.maximum(y**2, 1e-12)
    matrix = (X.T * T) @ X
    vector = np.linalg.eigh(matrix)[1][:, -1]
    w = np.asarray(drawn["rows"])[0, 0]
    # the linear steps are those of the eigenvector in the limit
    assert abs(w @ vector) / np.linalg.norm(w) > 0.96
    start = spectral_start(PHASE, MessagePassing.from_problem(PHASE, "bayes"), 3.0)
    assert result.Q.item() == pytest.approx(start.cosine2, rel=1e-6)
    assert result.M.item() > 0


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_eigenvectors_have_the_squared_cosine_of_the_limit(alpha):
    d, runs, rng, squares = 600, 16, np.random.default_rng(3), []
    for _ in range(runs):
        X = rng.standard_normal((round(alpha * d), d))
        T = 1.0 - 1.0 / X[:, 0] ** 2
        squares.append(np.linalg.eigh((X.T * T) @ X)[1][0, -1] ** 2)
    start = spectral_start(PHASE, MessagePassing.from_problem(PHASE, "bayes"), alpha)
    error = np.std(squares, ddof=1) / np.sqrt(runs)
    assert abs(np.mean(squares) - start.cosine2) < Z * error + 6 / d


@pytest.mark.slow
def test_exact_law_is_that_of_direct_runs():
    algorithm = sgd.AMP(2.0, start="spectral")
    results = [
        runs_of(PHASE, algorithm, method=method, steps=[0, 2], dimension=50, runs=150)
        for method in ("exact", "direct")
    ]
    for name in ("M", "Q", "train_risk"):
        first, second = (result[name].values.reshape(150, 2) for result in results)
        gap = first.mean(axis=0) - second.mean(axis=0)
        variance = (first.var(axis=0, ddof=1) + second.var(axis=0, ddof=1)) / 150
        # the norm at step 0 is given
        assert np.all(np.abs(gap) < Z * np.sqrt(variance) + 1e-9), name


@pytest.mark.slow
def test_runs_follow_the_state_evolution():
    algorithm, d, runs = sgd.AMP(2.0, start="spectral"), 800, 12
    limit = sgd.solve_dmft(PHASE, algorithm, None, steps=[0, 1, 3])
    result = runs_of(PHASE, algorithm, steps=[0, 1, 3], dimension=d, runs=runs)
    values = result.M.values[..., 0, 0]
    error = values.std(axis=0, ddof=1) / np.sqrt(runs)
    # finite d lowers the overlap by some multiple of 1/d
    assert np.all(np.abs(values.mean(axis=0) - limit.M.values[0, :, 0, 0]) < Z * error + 20 / d)
    assert np.all(error < 0.02)


@pytest.mark.parametrize(
    ("problem", "arguments", "reason"),
    [
        (PHASE, {"samples_per_dimension": 0.4}, r"samples_per_dimension = 0.4.*0.5 samples"),
        (PHASE, {"estimator": "erm"}, "posterior mean"),
        (PHASE.replace(teacher_activation="relu"), {}, "start='zero'"),
        (PHASE.replace(covariance=[(1.0, 0.5), (2.0, 0.5)]), {}, "one eigenvalue"),
    ],
)
def test_starts_that_do_not_exist_are_rejected(problem, arguments, reason):
    algorithm = sgd.AMP(**{"samples_per_dimension": 2.0, "start": "spectral", **arguments})
    with pytest.raises(ValueError, match=reason):
        sgd.solve_dmft(problem, algorithm, None, steps=[1])


def test_a_start_is_not_given_twice():
    start = sgd.start(PHASE, M=[[0.4]], Q=[[0.4]])
    with pytest.raises(ValueError, match="starts at an eigenvector"):
        sgd.solve_dmft(PHASE, sgd.AMP(2.0, start="spectral"), start, steps=[1])
