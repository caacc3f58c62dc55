"""Message passing: the exact law against direct runs, and both against their state evolution."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.fixed_data.message_passing import MessagePassing, Messages
from tests.conftest import Z

BLOCKS = [(0.5, 0.5), (1.0, 0.3), (2.0, 0.2)]
STEPS = [1, 2, 6]


def first_signal(z):
    return z[0]


def linear_row(labels, **arguments):
    return sgd.MultiIndex(first_signal, 1, 1, "linear", labels=labels, **arguments)


SIGN = sgd.labels.sign()


def runs_of(problem, algorithm, start=None, **arguments):
    return sgd.simulate(problem, algorithm, start, progress=False, **arguments)


def largest_gap(first, second, names=("M", "Q")):
    """The largest difference of the means of two sets of runs, in standard errors."""
    gaps = []
    for name in names:
        a, b = first[name].values, second[name].values
        variance = a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b)
        gaps.append(np.max(np.abs(a.mean(axis=0) - b.mean(axis=0)) / np.sqrt(variance)))
    return max(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["bayes", "erm"])
def test_exact_law_is_that_of_direct_runs(estimator):
    problem = linear_row(SIGN, covariance=BLOCKS, loss="logistic", weight_decay=0.2)
    algorithm = sgd.AMP(2.0, estimator)
    arguments = {"steps": STEPS, "dimension": 40, "runs": 200}
    exact, direct = (
        runs_of(problem, algorithm, method=method, **arguments) for method in ("exact", "direct")
    )
    assert largest_gap(exact, direct, ("M", "Q", "train_risk")) < Z


def plain_message_passing(X, y, alpha, lam, steps):
    """Logistic AMP in NumPy, with a prox by bisection."""
    n, d = X.shape
    w, V, old = np.zeros(d), 1.0 / lam, np.zeros(n)
    for _ in range(steps):
        om = X @ w - old * V
        low, high = om * y, om * y + V
        for _ in range(80):
            middle = 0.5 * (low + high)
            is_low = middle - om * y - V * special.expit(-middle) < 0
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        f = y * low
        old = (f - om) / V
        curvature = special.expit(low) * special.expit(-low)
        L = np.sum(curvature / (1 + V * curvature)) / d
        w = (X.T @ old / d + L * w) / (lam + L)
        V = 1.0 / (lam + L)
    return w


@pytest.mark.slow
def test_direct_runs_are_plain_message_passing():
    from sgdynamics.fixed_data.direct import DirectFixedData

    problem = linear_row(SIGN, loss="logistic", weight_decay=0.1)
    algorithm = sgd.AMP(2.0, "erm")
    drawn = {}
    original = DirectFixedData.initial

    def initial(self, chosen):
        state = original(self, chosen)
        drawn["data"] = self.data
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectFixedData, "initial", initial)
        result = runs_of(problem, algorithm, method="direct", steps=[6], dimension=60, runs=1)
    X = np.asarray(drawn["data"].inputs)[0]
    y = np.sign(np.asarray(drawn["data"].signals)[0, :, 0])
    w = plain_message_passing(X, y, 2.0, 0.2, 6)
    assert result.M.item() == pytest.approx(w[0], rel=1e-9)
    assert result.Q.item() == pytest.approx(w @ w, rel=1e-9)


@pytest.mark.slow
def test_phase_retrieval_is_plain_message_passing(monkeypatch):
    """Posterior means of y = abs(z) by their closed form, in NumPy on the same data and start.

    At 1 sample per dimension and d = 250, such runs end at an overlap of .36(3) after 20 steps, at
    3000 dimensions at .43(2), where the state evolution has .459 after 20 steps and .476 at last.
    """
    from sgdynamics.fixed_data.direct import DirectFixedData

    problem = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="abs")
    drawn = {}
    original = DirectFixedData.initial

    def initial(self, chosen):
        state = original(self, chosen)
        drawn.update(data=self.data, rows=state.rows)
        return state

    monkeypatch.setattr(DirectFixedData, "initial", initial)
    start = sgd.start(problem, M=[[0.2]], Q=[[0.2]])
    algorithm = sgd.AMP(1.0, start="overlaps")
    result = runs_of(problem, algorithm, start, method="direct", steps=[8], dimension=100, runs=1)
    X = np.asarray(drawn["data"].inputs)[0]
    y = np.abs(np.asarray(drawn["data"].signals)[0, :, 0])
    w = np.asarray(drawn["rows"])[0, 0]
    V, g = 0.8, np.zeros(len(y))
    for _ in range(8):
        om = X @ w - g * V
        g = (y * np.tanh(om * y / V) - om) / V
        L = g @ g / 100
        w = (X.T @ g / 100 + L * w) / (1 + L)
        V = 1 / (1 + L)
    assert result.Q.item() == pytest.approx(w @ w, rel=1e-6)


def outputs(problem, y_noise, om, signals, V):
    """E[z | y, om] of the outputs of message passing."""
    passing = MessagePassing.from_problem(problem, "bayes")

    @float64
    def evaluate():
        g, _ = passing.outputs(
            problem.structure,
            problem.parameters,
            jnp.asarray(om),
            jnp.asarray(signals)[:, None],
            jnp.ones(1),
            jnp.asarray(y_noise),
            Messages(jnp.zeros(len(om)), jnp.asarray(V)),
        )
        return np.asarray(g)

    return om + V * evaluate()


@pytest.mark.slow
def test_outputs_have_the_known_posterior_means():
    rng = np.random.default_rng(0)
    om, z, noise = rng.standard_normal((3, 50))
    for V in (0.9, 0.01):
        # linear labels with noise: a Gaussian posterior
        problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
        y = z + np.sqrt(0.1) * noise
        expected = (om / V + y / 0.1) / (1 / V + 1 / 0.1)
        np.testing.assert_allclose(outputs(problem, noise, om, z, V), expected, atol=1e-5)
        # signs: the mean of a truncated Gaussian
        y = np.sign(z)
        u = y * om / np.sqrt(V)
        ratio = np.exp(-0.5 * u**2 - special.log_ndtr(u)) / np.sqrt(2 * np.pi)
        posterior = outputs(linear_row(SIGN), noise, om, z, V)
        keep = u > -6  # the panels reach 8 standard deviations
        np.testing.assert_allclose(posterior[keep], (om + y * np.sqrt(V) * ratio)[keep], rtol=3e-6)
        # absolute values without noise: two roots
        problem = sgd.TeacherStudent(
            width=1, activation="linear", teacher_activation="abs", noise=0.0
        )
        expected = np.abs(z) * np.tanh(om * np.abs(z) / V)
        np.testing.assert_allclose(outputs(problem, noise, om, z, V), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "alpha", "expected"),
    [
        (SIGN, 2.0, 0.728298174),
        (SIGN, 5.0, 0.932064246),
        (sgd.labels.probit(0.25), 2.0, 0.600830670),
    ],
)
def test_state_evolution_ends_at_the_bayes_overlap(labels, alpha, expected):
    path = sgd.solve_dmft(linear_row(labels), sgd.AMP(alpha), None, steps=[0, 1, 60])
    assert path.M.values[0, -1].item() == pytest.approx(expected, abs=1e-9)
    assert path.Q.values[0, -1].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_state_evolution_of_the_prox_ends_at_the_minimiser():
    problem = linear_row(SIGN, loss="logistic", weight_decay=0.05, covariance=BLOCKS)
    path = sgd.solve_dmft(problem, sgd.AMP(1.5, "erm"), None, steps=[0, 60])
    result = sgd.erm(problem, 1.5)
    assert path.M.values[0, -1].item() == pytest.approx(result.M.item(), rel=1e-8)
    assert path.Q.values[0, -1].item() == pytest.approx(result.Q.item(), rel=1e-8)


@pytest.mark.slow
def test_phase_retrieval_is_hard_below_its_threshold():
    """Between 1 and 1.1285 samples per dimension AMP stops although the floor is zero error."""
    problem = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="abs")
    start = sgd.start(problem, M=[[0.4]], Q=[[0.4]])
    ends = []
    for alpha in (1.0, 1.1, 1.2):
        algorithm = sgd.AMP(alpha, start="overlaps")
        path = sgd.solve_dmft(problem, algorithm, start, steps=[200])
        ends.append(path.M.item())
    np.testing.assert_allclose(ends[:2], [0.476263585, 0.690788777], atol=1e-6)
    assert ends[2] > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "alpha", "runs"),
    [
        (linear_row(SIGN), 2.0, 24),
        (linear_row(SIGN), 5.0, 12),
        (linear_row(sgd.labels.probit(0.25)), 2.0, 24),
        (
            sgd.TeacherStudent(width=1, activation="linear", teacher_activation="relu", noise=0.1),
            1.0,
            16,
        ),
    ],
)
def test_runs_follow_the_state_evolution(problem, alpha, runs):
    algorithm, d = sgd.AMP(alpha), 1000
    limit = sgd.solve_dmft(problem, algorithm, None, steps=[1, 3, 12])
    result = runs_of(problem, algorithm, steps=[1, 3, 12], dimension=d, runs=runs)
    for name in ("M", "Q"):
        values = result[name].values[..., 0, 0]
        error = values.std(axis=0, ddof=1) / np.sqrt(runs)
        # the bias of order 1/d is a few units
        assert np.all(
            np.abs(values.mean(axis=0) - limit[name].values[0, :, 0, 0]) < Z * error + 5 / d
        )
        assert np.all(error < 0.01)


def test_bad_input():
    problem = linear_row(SIGN)
    start = sgd.start(problem, M=[[0.1]], Q=[[0.1]])
    with pytest.raises(ValueError, match=r"start = .*starts at zero weights"):
        runs_of(problem, sgd.AMP(2.0), start, steps=[1], dimension=50)
    with pytest.raises(ValueError, match=r"labels of one signal"):
        runs_of(
            sgd.TeacherStudent(width=1, teacher_width=2),
            sgd.AMP(2.0),
            None,
            steps=[1],
            dimension=50,
        )
    with pytest.raises(ValueError, match=r"width = 2: message passing estimates one row"):
        runs_of(problem.replace(width=2), sgd.AMP(2.0), None, steps=[1], dimension=50)
    with pytest.raises(ValueError, match=r"estimator = 'map'"):
        sgd.AMP(2.0, "map")
    with pytest.raises(ValueError, match=r"lr = 0.1: AMP has no such argument"):
        sgd.AMP(lr=0.1)
    other = sgd.start(problem, M=[[0.1]], Q=[[0.4]])
    with pytest.raises(ValueError, match=r"M = Q"):
        sgd.solve_dmft(problem, sgd.AMP(2.0, start="overlaps"), other, steps=[2])


def test_records_name_the_algorithm():
    algorithm = sgd.AMP(2.5, "erm", start="overlaps")
    problem = linear_row(SIGN, loss="logistic", weight_decay=0.1)
    start = sgd.start(problem, M=[[0.1]], Q=[[0.1]])
    result = sgd.solve_dmft(problem, algorithm, start, steps=[0, 2])
    assert sgd.algorithm_of(result) == algorithm
