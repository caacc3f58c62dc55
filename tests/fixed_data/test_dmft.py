"""DMFT of fixed data sets against linear regression (random matrix theory) and simulations."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import integrate, stats

import sgdynamics as sgd
from tests.conftest import FALSE_ALARM

pytestmark = pytest.mark.runs_long

REPLICATES = 16
T_LIMIT = float(
    stats.t.isf(FALSE_ALARM / 2, REPLICATES - 1)
)  # 7.6 standard errors of 16 replicates

ALPHA, LR, DECAY, NOISE, HEAT, M0, Q0 = 2.5, 0.3, 0.2, 0.3, 0.15, 0.4, 0.8


def marchenko_pastur(function, alpha):
    """The mean of a function over the eigenvalues of X^T X/n at n = alpha d."""
    low, high = (1 - alpha**-0.5) ** 2, (1 + alpha**-0.5) ** 2
    middle, half = (low + high) / 2, (high - low) / 2

    def density(angle):  # lambda = middle + half cos(angle)
        value = middle + half * np.cos(angle)
        return alpha * (half * np.sin(angle)) ** 2 / (2 * np.pi * value) * function(value)

    return integrate.quad(density, 0, np.pi, epsabs=1e-16, epsrel=1e-11, limit=200)[0]


def regression(t, s, heat, noise=NOISE, decay=DECAY, alpha=ALPHA):
    """W(t).W(s), M(t), training risk and R(t, s), t >= s, of ridge regression at d -> infinity.

    Gradient descent with white noise reads, along an eigenvector of X^T X/n,
    W <- r W + lr (lambda w* + u) + sqrt(2 T lr/d) xi, r = 1 - lr (lambda + decay), Var u = noise
    lambda/n.
    """

    def rate(value):
        return 1 - LR * (value + decay)

    def response_to_signal(value, t):
        return (1 - rate(value) ** t) / (value + decay)

    def white(value, t, s):
        r = rate(value)
        return 2 * heat * LR * r ** (t - s) * (1 - r ** (2 * s)) / (1 - r**2)

    def product(value):
        unmixed = rate(value) ** t * rate(value) ** s * Q0 + response_to_signal(
            value, t
        ) * response_to_signal(value, s) * (value**2 + noise * value / alpha)
        mixed = (
            M0
            * value
            * (
                rate(value) ** t * response_to_signal(value, s)
                + rate(value) ** s * response_to_signal(value, t)
            )
        )
        return unmixed + mixed + white(value, t, s)

    def on_signal(value):
        return rate(value) ** t * M0 + response_to_signal(value, t) * value

    def error(
        value,
    ):  # lambda times the squared distance from w*, and its correlation with the label noise
        gain = response_to_signal(value, t)
        distance = (
            rate(value) ** (2 * t) * Q0
            + 2 * rate(value) ** t * (gain * value - 1) * M0
            + (gain * value - 1) ** 2
        )
        return (
            value * (distance + gain**2 * noise * value / alpha + white(value, t, t))
            - 2 * gain * noise * value / alpha
        )

    return (
        marchenko_pastur(product, alpha),
        marchenko_pastur(on_signal, alpha),
        (marchenko_pastur(error, alpha) + noise) / 2,
        marchenko_pastur(lambda value: rate(value) ** (t - s), alpha),
    )


def linear():
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=NOISE, weight_decay=DECAY)
    return problem, sgd.start(problem, M=[[M0]], Q=[[Q0]])


def close(result, name, expected, index=()):
    value, error = np.asarray(result[name])[0], np.asarray(result[f"{name}_standard_error"])[0]
    value, error = (
        value.reshape(*expected.shape, -1)[..., 0],
        error.reshape(*expected.shape, -1)[..., 0],
    )
    assert np.all(error < 0.05 * np.abs(expected) + 0.004), f"{name}: errors {error}"
    assert np.all(np.abs(value - expected) <= T_LIMIT * error + 1e-12), (
        f"{name}: {value} against {expected}, errors {error}"
    )


@pytest.mark.slow
def test_langevin_on_ridge_regression():
    problem, start = linear()
    algorithm = sgd.Langevin(lr=LR, samples_per_dimension=ALPHA, temperature=HEAT)
    steps = np.array([0, 1, 5, 20])
    result = sgd.solve_dmft(
        problem, algorithm, start, steps=steps, paths=REPLICATES * 2048, replicates=REPLICATES
    )
    expected = np.array([regression(t, t, HEAT) for t in steps])
    for name, values in zip(("Q", "M", "train_risk"), expected.T, strict=False):
        close(result, name, values)
    assert result.attrs["rank"] == 40
    np.testing.assert_allclose(
        result.risk - (result.Q[..., 0, 0] - 2 * result.M[..., 0, 0] + 1 + NOISE) / 2, 0, atol=1e-12
    )


@pytest.mark.slow
def test_two_times_of_ridge_regression():
    """C and R of gradient descent at all pairs of save points; R is independent of the weights."""
    problem, start = linear()
    algorithm = sgd.GradientDescent(lr=LR, samples_per_dimension=ALPHA)
    steps = np.array([0, 1, 6])
    settings = {"paths": REPLICATES * 2048, "replicates": REPLICATES, "two_time": True}
    result = sgd.solve_dmft(problem, algorithm, start, steps=steps, **settings)
    pairs = [[regression(max(t, s), min(t, s), 0.0) for s in steps] for t in steps]
    close(result, "C", np.array([[pair[0] for pair in row] for row in pairs]))
    close(
        result,
        "R",
        np.array(
            [
                [pair[3] * (t >= s) for pair, s in zip(row, steps, strict=True)]
                for row, t in zip(pairs, steps, strict=True)
            ]
        ),
    )
    # a smooth algorithm stays of low rank, and says so
    longer = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        steps=[60],
        paths=REPLICATES * 2048,
        replicates=REPLICATES,
        method=sgd.DMFT(rank=30),
    )
    assert longer.attrs["rank"] < 20
    close(longer, "train_risk", np.array([regression(60, 60, 0.0)[2]]))


def plain_regression(noise, steps, **settings):
    """Gradient descent on linear regression without ridge, and its exact risks (risk, time)."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    algorithm = sgd.GradientDescent(lr=LR, samples_per_dimension=2.0)
    result = sgd.solve_dmft(
        problem, algorithm, sgd.start(problem, M=[[M0]], Q=[[Q0]]), steps=steps, **settings
    )
    exact = np.array([regression(t, t, 0.0, noise, 0.0, 2.0) for t in steps])
    exact = np.array([(exact[:, 0] - 2 * exact[:, 1] + 1 + noise) / 2, exact[:, 2]])
    names = ("risk", "train_risk")
    return (
        np.array([result[name][0] for name in names]),
        np.array([result[f"{name}_standard_error"][0] for name in names]),
        exact,
        result,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "steps"),
    [
        pytest.param(0.25, [80], marks=pytest.mark.slow),
        (0.0, [80]),
        pytest.param(0.0, [80, 200], marks=pytest.mark.slow),
    ],
)
def test_no_bias_of_the_number_of_paths(noise, steps):
    """Risks are within 1.2e-3 of the exact ones at 20000 paths, down to risks of 1e-7.

    This is five times their scatter over seeds, 2.4e-4 with label noise. With lengths reduced by
    the rank of the basis they were off by -2.3e-3 (noise 0.25), -0.030 and -0.103 (no noise, 80
    and 200 steps).
    """
    value, error, exact, result = plain_regression(noise, steps)
    assert np.all(np.abs(value / exact - 1) < 1.2e-3), value / exact - 1
    assert np.all(
        error < 4e-3 * exact
    )  # the standard error of four replicates has three degrees of freedom: its size is held apart
    assert 0 < result.attrs["error_paths"] <= result.attrs["error_sampling"] < 4e-3


def check_calibration(noise, steps, seeds, **settings):
    """Over seeds, gaps to the exact values have mean zero and the size of the stated errors."""
    runs = [plain_regression(noise, steps, seed=seed, **settings)[:3] for seed in range(seeds)]
    gaps = np.array([value - exact for value, _, exact in runs])
    stated = np.sqrt(np.mean([error**2 for _, error, _ in runs], axis=0))
    spread = gaps.std(axis=0, ddof=1)
    limit = stats.t.isf(FALSE_ALARM / 2, seeds - 1)
    assert np.all(
        np.abs(gaps.mean(axis=0)) < np.maximum(limit * spread / np.sqrt(seeds), 0.2 * stated)
    ), gaps.mean(axis=0) / stated
    size = np.sqrt(np.mean([((value - exact) / error) ** 2 for value, error, exact in runs]))
    assert 0.1 < size < 2.5, size
    return gaps, stated, runs[0][2]


@pytest.mark.slow  # its sister in the fast set is test_no_bias_of_the_number_of_paths
@pytest.mark.parametrize("noise", [0.25, 0.0])
def test_stated_errors_are_true(noise):
    """4096 paths, where a former bias was 9 and 40 times the stated error."""
    gaps, stated, exact = check_calibration(noise, [80], 8, paths=4096)
    assert np.all(stated < 0.01 * exact), stated / exact
    assert np.all(np.abs(gaps.mean(axis=0)) < 4e-3 * exact), gaps.mean(axis=0) / exact


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "steps"), [(0.25, [80]), (0.0, [80, 200])])
def test_stated_errors_are_true_at_the_usual_number_of_paths(noise, steps):
    check_calibration(noise, steps, 20)


def agree(results, names=("M", "Q", "a", "train_risk", "risk")):
    """Results of a growing number of paths agree with the last one within joint errors."""
    last = results[-1]
    for result in results[:-1]:
        for name in names:
            error = np.hypot(
                result[f"{name}_standard_error"], last[f"{name}_standard_error"]
            ).values
            gap = np.abs((result[name] - last[name]).values)
            assert np.all(gap <= T_LIMIT * error + 1e-12), (
                name,
                result.attrs["paths"],
                gap / np.maximum(error, 1e-300),
            )


def erf_unit(paths_per_replicate):
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
    start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=2.0)
    result = sgd.solve_dmft(
        problem,
        algorithm,
        start,
        steps=[10, 60],
        paths=REPLICATES * paths_per_replicate,
        replicates=REPLICATES,
    )
    assert result.attrs["error_paths"] <= result.attrs["error_sampling"] < 0.01, result.attrs
    return result


@pytest.mark.slow
def test_a_unit_against_a_separate_program():
    """An erf unit, M, Q and training risk after 10 and 60 steps.

    The reference values are those of NumPy code that makes every new vector orthogonal to the
    basis, from 40 sets of 16384 paths. Errors of the last digits are 2 and 7 (M), 7 and 21 (Q), 1
    and below (training risk).
    """
    result = erf_unit(1024)
    expected = {"M": [0.74275, 0.96667], "Q": [0.80732, 1.08303], "train_risk": [0.02851, 0.01302]}
    for name, values in expected.items():
        close(result, name, np.array(values))


@pytest.mark.slow
def test_paths_of_a_unit_agree():
    agree([erf_unit(1024), erf_unit(4096)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["square", "erf", "persistent", "blocks", "mixture"])
def test_numbers_of_paths_agree(name):
    """4096, 16384 and 65536 paths, within the errors that they state."""
    algorithm = sgd.GradientDescent(lr=0.3, samples_per_dimension=2.0)
    if name == "square":
        setting = sgd.papers.rough_landscapes.setting(2.0, 0.01, 0.5, "GD")
        problem, algorithm, start = setting.problem, setting.algorithm, setting.start
    elif name == "erf":
        problem = sgd.TeacherStudent(
            width=2,
            teacher_width=2,
            activation="erf",
            head="trained",
            noise=0.05,
            weight_decay=0.05,
        )
        start = sgd.start(problem, M=[[0.4, 0.1], [0.0, 0.3]], Q=[[1.0, 0.2], [0.2, 0.8]])
    elif name == "persistent":
        problem, start = linear()
        algorithm = sgd.PersistentSGD(
            lr=LR, samples_per_dimension=2.0, batch_fraction=0.5, persistence_time=1.0
        )
    elif name == "blocks":
        problem = sgd.TeacherStudent(
            width=1, activation="erf", noise=0.05, covariance=[(0.5, 0.4), (2.0, 0.6)]
        )
        start = sgd.random_start(problem, dimension=200, seed=1)
    else:
        problem = sgd.GaussianMixture("binary", width=1, snr=3.0, weight_decay=0.1)
        start = sgd.random_start(problem, dimension=200, seed=1)
    results = [
        sgd.solve_dmft(
            problem, algorithm, start, steps=[10, 40], paths=paths, replicates=REPLICATES
        )
        for paths in (4096, 16384, 65536)
    ]
    agree(results)
    sizes = [result.attrs["error_sampling"] for result in results]
    assert sizes[2] < 0.5 * sizes[0], sizes
    assert sizes[2] < 0.03, sizes


@pytest.mark.slow
def test_finite_size_drift_shrinks():
    """The mean of the exact law at dimension d approaches DMFT, within errors at d = 400."""
    problem = sgd.TeacherStudent(
        width=2, teacher_width=2, activation="erf", head="trained", noise=0.05, weight_decay=0.05
    )
    start = sgd.start(problem, M=[[0.4, 0.1], [0.0, 0.3]], Q=[[1.0, 0.2], [0.2, 0.8]])
    algorithm = sgd.PersistentSGD(
        lr=1.0, samples_per_dimension=2.0, batch_fraction=0.5, persistence_time=4.0
    )
    steps = [1, 10, 30]
    theory = sgd.solve_dmft(
        problem, algorithm, start, steps=steps, paths=REPLICATES * 4096, replicates=REPLICATES
    )
    gaps = []
    for d, runs in ((12, 4000), (400, 150)):
        result = sgd.simulate(
            problem, algorithm, start, steps=steps, dimension=d, runs=runs, seed=d
        )
        gaps.append(sgd.compare(theory, result))
    last = gaps[1]
    for name in ("M", "Q", "a", "train_risk"):
        assert np.nanmax(np.abs(last[f"{name}_z"])) < T_LIMIT, name
    # The drift of the head is the largest, about 0.16/d, or seven standard errors of these runs.
    drift = [np.abs(gap.a_simulation - gap.a_theory).values[-1] for gap in gaps]
    error = [gap.a_standard_error.values[-1] for gap in gaps]
    assert np.all(drift[1] < drift[0] / 4 + 4 * error[1])
    assert np.all(drift[0] > 4 * error[0])  # it is there to be seen


@pytest.mark.slow
def test_bad_input():
    problem, start = linear()
    descent = sgd.GradientDescent(lr=LR, samples_per_dimension=ALPHA)
    with pytest.raises(ValueError, match="algorithm = OnePassSGD"):
        sgd.solve_dmft(problem, sgd.OnePassSGD(), start, times=[1.0])
    with pytest.raises(
        ValueError, match=r"need 0\.\d+ GB, and 0.001 GB are available. Use fewer paths"
    ):
        sgd.solve_dmft(problem, descent, start, steps=[100], method=sgd.DMFT(memory=1e-3))
    with pytest.raises(ValueError, match="paths = 10"):
        sgd.solve_dmft(problem, descent, start, steps=[1], paths=10)
    with pytest.raises(ValueError, match="exactly one of"):
        sgd.solve_dmft(problem, descent, start, steps=[1], times=[1.0])
    # beyond any reach, said at once: in steps, in time, in samples, and beyond whole numbers
    began = time.perf_counter()
    for name, value in (
        ("steps", 1e7),
        ("times", 1e300),
        ("alpha", 1e300),
        ("times", 1.7e308),
        ("steps", 1e19),
    ):
        with pytest.raises(
            ValueError,
            match=r"(steps|times|alpha) = .*(about .* days. Use fewer steps or paths|years)",
        ):
            sgd.solve_dmft(problem, descent, start, **{name: [value]})
    assert time.perf_counter() - began < 2
    settings = {"paths": REPLICATES * 2048, "replicates": REPLICATES, "method": sgd.DMFT(rank=2)}
    with pytest.raises(
        ValueError,
        match=r"rank = 2: the basis was full at step \d of 60. Increase rank or tolerance.",
    ):
        sgd.solve_dmft(problem, descent, start, steps=[60], **settings)


@pytest.mark.slow
def test_more_directions_than_paths_can_carry():
    problem, start = linear()
    algorithm = sgd.MultiPassSGD(lr=LR, samples_per_dimension=ALPHA, batch_fraction=0.5)
    with pytest.warns(UserWarning, match="span half of the 64 paths of a replicate"):
        result = sgd.solve_dmft(problem, algorithm, start, steps=[40], paths=256)
    assert result.attrs["rank"] == 32
    assert np.isfinite(result.train_risk).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GD", "p-SGD", "Langevin"])
def test_direct_simulation_at_a_thousand_dimensions(name):
    """Phase retrieval at eta = 0.01: overlap and training risk at N = 1000, within joint errors."""
    parameters = {"GD": {}, "p-SGD": {"l": 0.5, "tau": 1.0}, "Langevin": {"T": 1.0}}[name]
    setting = sgd.papers.rough_landscapes.setting(3.0, 0.01, 0.2, name, **parameters)
    steps = [1, 10, 30, 100]
    theory = sgd.solve_dmft(
        setting.problem,
        setting.algorithm,
        setting.start,
        steps=steps,
        paths=1 << 17,
        replicates=REPLICATES,
        method=sgd.DMFT(dtype="float32"),
    )
    runs = {"dimension": 1000, "runs": 40, "seed": 3, "method": "direct", "dtype": "float32"}
    table = sgd.compare(
        theory, sgd.simulate(setting.problem, setting.algorithm, setting.start, steps=steps, **runs)
    )
    for key in ("M", "train_risk"):
        assert np.all(table[f"{key}_standard_error"] < 0.06 * table[f"{key}_theory"] + 0.004), key
        assert np.abs(table[f"{key}_z"]).max() < T_LIMIT, (key, table[f"{key}_z"].values.ravel())
