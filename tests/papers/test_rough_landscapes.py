"""Phase retrieval on a fixed data set: settings, closed formulas and kernel equations of the paper.

Each is compared with an independent computation.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

import sgdynamics as sgd
from sgdynamics.algorithms.fixed_data import thermal_noise_scale
from sgdynamics.base.controls import values_at
from sgdynamics.base.precision import float64
from sgdynamics.fixed_data import sample_stability
from sgdynamics.papers.rough_landscapes import formulas
from sgdynamics.papers.rough_landscapes.paper_dmft import kernel_dmft
from tests.conftest import FALSE_ALARM, same_law, slow

FOUR = {
    "GD": {},
    "SGD": {"l": 0.5},
    "p-SGD": {"l": 0.5, "tau": 0.3},
    "Langevin": {"T": 1.5},
}


def gaussian_mean(f, m, q=1.0, q0=1.0, nodes=24):
    """Mean of f(h, h0) for Gaussian fields with <h^2> = q, <h0^2> = q0 and <h h0> = m.

    The Gauss-Hermite rule is exact for the polynomials of these tests.
    """
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    h0 = math.sqrt(q0) * x[:, None]
    h = m / q0 * h0 + math.sqrt(q - m**2 / q0) * x[None, :]
    return float(weight @ f(h, h0) @ weight)


def slope(h, h0):
    """Derivative of the paper's loss v = (h^2 - h0^2)^2/4 with respect to h."""
    return h**3 - h * h0**2


def curvature(h, h0):
    """Second derivative of the paper's loss with respect to h."""
    return 3 * h**2 - h0**2


@float64
def kick(algorithm, step, N):
    """Standard deviation of the thermal noise per weight in one step."""
    return float(thermal_noise_scale(values_at(algorithm.parameters, step * algorithm.lr), N))


def critical_deviation(replicates):
    """Deviation in standard errors that is exceeded with probability FALSE_ALARM.

    The standard error is estimated from this number of replicates, so that the deviation follows
    Student's law and not the normal one.
    """
    return float(stats.t.isf(FALSE_ALARM / 2, replicates - 1))


# settings


@pytest.mark.parametrize("name", list(FOUR))
@pytest.mark.parametrize("ridge", [None, 0.7])
def test_setting_makes_the_papers_step(name, ridge):
    """One step in the paper's units agrees with the step of the library, on random data.

    The paper has weights of norm sqrt(N) and the loss (h^2 - h0^2)^2/4. The library has rows of
    norm O(1) and the loss (h^2 - h0^2)^2/2.
    """
    alpha, eta, N = 2.5, 0.02, 12
    setting = formulas.setting(alpha, eta, 0.3, name, ridge=ridge, **FOUR[name])
    random = np.random.default_rng(1)
    M = round(alpha * N)
    xi, w0, w = random.standard_normal((M, N)), random.standard_normal(N), random.standard_normal(N)
    w0 *= math.sqrt(N) / np.linalg.norm(w0)
    s = random.uniform(size=M) < 0.5 if "l" in FOUR[name] else np.ones(M)
    noise = random.standard_normal(N)
    h, h0 = xi @ w / math.sqrt(N), xi @ w0 / math.sqrt(N)
    l, T = FOUR[name].get("l", 1.0), FOUR[name].get("T", 0.0)  # noqa: E741
    paper = (
        w
        - eta * ((s * slope(h, h0)) @ xi / (l * math.sqrt(N)) + (ridge or 0.0) * w)
        + math.sqrt(2 * T * eta) * noise
    )
    algorithm, W = setting.algorithm, w / math.sqrt(N)
    gradient = (s * 2 * slope(h, h0)) @ xi / (algorithm.divisor * M)
    gradient += setting.problem.weight_decay * W
    library = W - algorithm.lr * gradient + kick(algorithm, 0, N) * noise
    np.testing.assert_allclose(library * math.sqrt(N), paper, rtol=1e-12)
    assert algorithm.samples(N) == M
    assert (setting.problem.constraint == "sphere") == (ridge is None)
    if name != "GD" and T == 0:
        np.testing.assert_allclose(algorithm.switching(), setting.numbers.switching)
    assert setting.loss_factor * (h[0] ** 2 - h0[0] ** 2) ** 2 / 2 == pytest.approx(
        (h[0] ** 2 - h0[0] ** 2) ** 2 / 4
    )
    assert setting.steps(1.3) == round(1.3 / eta)
    assert setting.library_time(1.3) == pytest.approx(setting.steps(1.3) * algorithm.lr)
    assert setting.paper_time(setting.library_time(1.3)) == pytest.approx(1.3)


def test_switched_temperature_ends_at_its_time():
    setting = formulas.setting(3.0, 0.01, 0.2, "Langevin", T=(1.5, 7.0))
    before, after = (kick(setting.algorithm, step, 100) for step in (699, 700))
    assert before == pytest.approx(math.sqrt(2 * 1.5 * 0.01 / 100))
    assert after == 0.0
    assert [setting.numbers.temperature(step) for step in (699, 700)] == [1.5, 0.0]


@pytest.mark.parametrize("ridge", [None, 0.5])
def test_start_has_the_law_of_drawn_vectors(ridge):
    N, runs, m0 = 8, 4000, 0.4
    start = formulas.setting(3.0, 0.01, m0, ridge=ridge, dimension=N, runs=runs, seed=3).start
    random = np.random.default_rng(4)
    w0, z = random.standard_normal((runs, N)), random.standard_normal((runs, N))
    w0 *= math.sqrt(N) / np.linalg.norm(w0, axis=1, keepdims=True)
    if ridge is None:
        # w = m0 w0 + c z, where c is the positive root of |w|^2 = N.
        a, b = (z**2).sum(axis=1), m0 * (z * w0).sum(axis=1)
        c = (-b + np.sqrt(b**2 + a * N * (1 - m0**2))) / a
        w = m0 * w0 + c[:, None] * z
    else:
        w = m0 * w0 + z
    same_law(start.M[:, 0, 0], (w * w0).sum(axis=1) / N, "m")
    same_law(start.Q[:, 0, 0], (w**2).sum(axis=1) / N, "q")
    limit = formulas.setting(3.0, 0.01, m0, ridge=ridge).start
    assert limit.M.item() == m0
    assert limit.Q.item() == pytest.approx(1.0 if ridge is None else 1 + m0**2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "sgd"}, "choose one of 'GD', 'SGD'"),
        ({"l": 0.5}, "'SGD' or 'p-SGD'"),
        ({"algorithm": "SGD", "l": 0.0}, "l = 0"),
        ({"algorithm": "SGD", "l": 1.5}, "at most 1"),
        ({"algorithm": "p-SGD", "l": 0.5}, "tau = None"),
        ({"algorithm": "p-SGD", "l": 0.1, "tau": 0.05}, "Use 0.09 or more"),
        ({"tau": 1.0}, "tau = 1.0"),
        ({"T": 1.0}, "Langevin"),
        ({"algorithm": "Langevin", "T": -1.0}, "T = -1"),
        ({"m0": 1.2}, "between -1 and 1"),
        ({"eta": 0.0}, "eta"),
        ({"alpha": -2}, "alpha"),
        ({"ridge": -0.1}, "ridge"),
        ({"runs": 3}, "runs = 3"),
        ({"dimension": 1.5}, "dimension"),
    ],
)
def test_setting_rejects_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        formulas.setting(**{"alpha": 3.0, "eta": 0.01, "m0": 0.2, **change})


# closed formulas


@pytest.mark.parametrize(
    ("alpha", "m0", "l", "T"), [(2.0, 0.5, 1.0, 0.0), (3.0, 0.2, 0.5, 0.7), (1.7, -0.9, 0.1, 3.0)]
)
def test_closed_values_by_quadrature(alpha, m0, l, T):  # noqa: E741
    values = formulas.closed_values(alpha, m0, l, T)
    # The selection s is independent of the fields at t = 0, and <s> = <s^2> = l.
    expected = {
        "loss": gaussian_mean(lambda h, h0: (h**2 - h0**2) ** 2 / 4, m0),
        "mu": alpha * gaussian_mean(lambda h, h0: h0 * slope(h, h0), m0),
        "nu_hat": -alpha * gaussian_mean(lambda h, h0: h * slope(h, h0), m0) + T,
        "delta_nu": alpha * gaussian_mean(curvature, m0),
        "M_C": alpha / l * gaussian_mean(lambda h, h0: slope(h, h0) ** 2, m0),
        "M_R": alpha / l * gaussian_mean(lambda h, h0: curvature(h, h0) ** 2, m0),
    }
    for name, mean in expected.items():
        assert getattr(values, name) == pytest.approx(mean, abs=1e-10), name


@pytest.mark.parametrize(
    ("alpha", "eta", "m0", "l", "T"),
    [(2.0, 0.01, 0.5, 1.0, 0.0), (3.0, 0.01, 0.2, 0.5, 0.0), (3.0, 0.05, 0.4, 0.3, 2.0)],
)
def test_first_step_by_quadrature(alpha, eta, m0, l, T):  # noqa: E741
    """The overlap after one normalised step, from the mean and the square of the gradient.

    By Stein's lemma the mean gradient is `student` w + `signal` w0, a vector in the plane of w and
    w0. Independent samples add alpha/l <v'^2> to its square.
    """
    student = alpha * gaussian_mean(curvature, m0)
    signal = alpha * gaussian_mean(lambda h, h0: -2 * h * h0, m0)
    square = (
        student**2
        + signal**2
        + 2 * student * signal * m0
        + alpha / l * gaussian_mean(lambda h, h0: slope(h, h0) ** 2, m0)
    )
    m = m0 - eta * (student * m0 + signal)
    norm = 1 - 2 * eta * (student + signal * m0) + eta**2 * square + 2 * T * eta
    assert formulas.first_step(alpha, eta, m0, l, T) == pytest.approx(
        m / math.sqrt(norm), abs=1e-12
    )


def test_first_step_of_the_reference():
    assert formulas.first_step(2.0, 0.01, 0.5) == pytest.approx(0.514890, abs=1e-6)
    assert formulas.first_step(3.0, 0.01, 0.2, 0.5) == pytest.approx(0.211387, abs=1e-6)


@pytest.mark.parametrize(
    ("q", "q0", "m"),
    [(1.0, 1.0, 0.3), (1.7, 0.8, -0.9), (0.6, 1.0, 0.0), (1.21, 1.0, 1.1), (0.0, 1.0, 0.0)],
)
def test_generalization_error_by_quadrature(q, q0, m):
    """Integrate E(|h| - |h0|)^2 in polar coordinates.

    The radial integral is <r^2> = 2. The angular integral is split at the kinks of |h| and |h0|.
    """
    angle = math.acos(np.clip(m / math.sqrt(q * q0), -1, 1)) if q > 0 else 0.0

    def integrand(theta):
        h, h0 = math.sqrt(q) * math.cos(theta - angle), math.sqrt(q0) * math.cos(theta)
        return (abs(h) - abs(h0)) ** 2

    kinks = {(x + math.pi / 2 + k * math.pi) % (2 * math.pi) for x in (0.0, angle) for k in (0, 1)}
    intervals = pairwise(sorted({0.0, 2 * math.pi} | kinks))
    expected = sum(integrate.quad(integrand, *ends, epsabs=1e-13)[0] for ends in intervals)
    assert formulas.generalization_error(q, q0, m) == pytest.approx(expected / math.pi, abs=1e-10)


def test_generalization_error_on_the_sphere_decreases_with_the_overlap():
    m = np.linspace(0, 1, 50)
    error = formulas.generalization_error(1.0, 1.0, m)
    assert np.all(np.diff(error) < 0)
    assert error[-1] == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="m"):
        formulas.generalization_error(1.0, 1.0, 1.1)


@pytest.mark.parametrize(("eta", "l"), [(0.01, 1.0), (0.0025, 0.01)])
def test_stability_limit_of_one_sample(eta, l):  # noqa: E741
    limit, h0 = formulas.stability_limit(eta, l), 0.3
    for factor, grows in ((0.99, False), (1.01, True)):
        h = math.sqrt(h0**2 + factor * limit)
        assert (abs(h - eta / l * slope(h, h0)) > h) == grows


def test_unstable_share_by_counting():
    eta, l, m = 0.0025, 0.01, 0.2  # noqa: E741
    random, count = np.random.default_rng(0), 400_000
    h0 = random.standard_normal(count)
    h = m * h0 + math.sqrt(1 - m**2) * random.standard_normal(count)
    above = int(np.sum(h**2 - h0**2 > formulas.stability_limit(eta, l)))
    assert stats.binomtest(above, count, formulas.unstable_share(eta, l, m)).pvalue > FALSE_ALARM
    # Of 3000 samples, several are unstable at this eta, and none at eta = 0.001.
    assert 3000 * formulas.unstable_share(eta, l, m) > 5
    assert 3000 * formulas.unstable_share(0.001, l, m) < 0.1
    # `simulate` uses a general formula, which agrees with the closed one for this problem.
    setting = formulas.setting(3.0, eta, m, "SGD", l=l)
    assert sample_stability.stability_limit(setting.problem, setting.algorithm) == pytest.approx(
        formulas.stability_limit(eta, l), rel=1e-12
    )
    share = sample_stability.unstable_share(setting.problem, setting.algorithm, setting.start)[0]
    assert share == pytest.approx(formulas.unstable_share(eta, l, m), rel=1e-6)


def test_fraction_recovered_counts_diverged_runs_as_lost():
    share, error = formulas.fraction_recovered([1e-9, 2e-7, math.nan, 5e-8])
    assert share == 0.5
    assert 0.2 < error < 0.3
    assert formulas.fraction_recovered([1.0] * 10)[1] > 0
    with pytest.raises(ValueError, match="loss"):
        formulas.fraction_recovered([])


# the kernel equations


@pytest.mark.parametrize("name", list(FOUR))
def test_kernels_start_at_the_closed_values(name):
    alpha, eta, m0 = 3.0, 1e-4, 0.4
    l, T = FOUR[name].get("l", 1.0), FOUR[name].get("T", 0.0)  # noqa: E741
    kernels = kernel_dmft(
        alpha, eta, m0, steps=2, paths=1 << 16, replicates=16, seed=1, **FOUR[name]
    )
    exact = formulas.closed_values(alpha, m0, l, T)
    error = kernels.standard_error
    # For vanilla SGD, s(t) and s(0) are independent, and <s s'> is l^2 in place of l.
    memory = l if name == "SGD" else 1.0
    # M_R is one step after t = 0+, which changes it by a relative O(eta).
    for estimate, standard_error, expected, change in (
        (kernels.loss[0], error["loss"][0], exact.loss, 0.0),
        (kernels.delta_nu[0], error["delta_nu"][0], exact.delta_nu, 0.0),
        (kernels.M_C[0, 0], error["M_C"][0, 0], exact.M_C, 0.0),
        (kernels.M_R[1, 0], error["M_R"][1, 0], memory * exact.M_R, 50 * eta),
        (kernels.m[1], error["m"][1], formulas.first_step(alpha, eta, m0, l, T), 0.0),
    ):
        tolerance = critical_deviation(16) * standard_error + change * expected
        assert abs(estimate - expected) < tolerance
    assert error["M_R"][1, 0] < 0.03 * kernels.M_R[1, 0]
    np.testing.assert_allclose(np.diag(kernels.C), 1.0, rtol=1e-12)


def test_kernels_infer_the_algorithm_and_reject_bad_arguments():
    short = {"alpha": 3.0, "eta": 0.01, "m0": 0.2, "steps": 1, "paths": 800}
    assert kernel_dmft(**short, l=0.5).m[1] == kernel_dmft(**short, l=0.5, algorithm="SGD").m[1]
    with pytest.raises(ValueError, match="paths"):
        kernel_dmft(**{**short, "paths": 100})
    with pytest.raises(ValueError, match="Langevin"):
        kernel_dmft(**short, T=1.0, algorithm="GD")


def dense(name, N, alpha, eta, m0, steps, random, kick_step, ridge=None):
    """One run of the paper's algorithm in N dimensions: m, loss, C(t, 0) and the response.

    The response R(t, kick_step) is the difference of two copies of the run. Before step
    `kick_step`, a kick of random sign and small size is added to every weight of the second copy.
    """
    l, T = FOUR[name].get("l", 1.0), FOUR[name].get("T", 0.0)  # noqa: E741
    # Probability that a sample enters the batch. The probability to leave keeps <s> = l.
    on = eta / FOUR[name]["tau"] if "tau" in FOUR[name] else l
    xi = random.standard_normal((round(alpha * N), N)) / math.sqrt(N)
    w0 = random.standard_normal(N)
    w0 *= math.sqrt(N) / np.linalg.norm(w0)
    z = random.standard_normal(N)
    z -= z @ w0 / N * w0
    z *= math.sqrt(N) / np.linalg.norm(z)
    first = m0 * w0 + (math.sqrt(1 - m0**2) if ridge is None else 1.0) * z
    h0, signs, size = xi @ w0, random.choice([-1.0, 1.0], N), 1e-5
    w = np.stack([first, first])
    s = random.uniform(size=len(h0)) < l
    series = {"m": [], "loss": [], "C": [], "R": []}
    for t in range(steps + 1):
        if t == kick_step:
            w[1] += size * signs
        h = w @ xi.T
        series["m"].append(w[0] @ w0 / N)
        series["loss"].append(np.mean((h[0] ** 2 - h0**2) ** 2) / 4)
        series["C"].append(w[0] @ first / N)
        series["R"].append((w[1] - w[0]) @ signs / (N * size))
        w = (
            (1 - eta * (ridge or 0.0)) * w
            - eta / l * (s * slope(h, h0)) @ xi
            + math.sqrt(2 * T * eta) * random.standard_normal(N)
        )
        if ridge is None:
            w *= math.sqrt(N) / np.linalg.norm(w, axis=1, keepdims=True)
        u = random.uniform(size=len(h0))
        s = np.where(s, u >= on * (1 - l) / l, u < on)
    return {key: np.array(values) for key, values in series.items()}


@pytest.mark.parametrize(
    ("name", "ridge"),
    [("GD", None), ("SGD", None), ("p-SGD", None), ("Langevin", None), ("p-SGD", 2.0)],
)
def test_kernels_follow_the_algorithm_in_many_dimensions(name, ridge):
    """m, loss, correlation with the start and response to a kick at step 4, against runs.

    The runs have N = 250 dimensions and 12 steps.
    """
    N, runs, steps, kick_step = 250, 16, 12, 4
    random = np.random.default_rng(7)
    series = [dense(name, N, 3.0, 0.02, 0.4, steps, random, kick_step, ridge) for _ in range(runs)]
    theory = kernel_dmft(
        3.0, 0.02, 0.4, steps=steps, paths=1 << 13, replicates=16, seed=2, ridge=ridge, **FOUR[name]
    )
    columns = {"m": theory.m, "loss": theory.loss, "C": theory.C[:, 0], "R": theory.R[:, kick_step]}
    standard_error = theory.standard_error
    errors = {
        "m": standard_error["m"],
        "loss": standard_error["loss"],
        "C": standard_error["C"][:, 0],
        "R": standard_error["R"][:, kick_step],
    }
    later = slice(kick_step + 1, None)
    for key, expected in columns.items():
        values = np.stack([run[key] for run in series])[:, later]
        error = np.hypot(values.std(axis=0, ddof=1) / math.sqrt(runs), errors[key][later])
        gap = np.abs(values.mean(axis=0) - expected[later])
        # 3/N bounds the finite-size effect.
        assert np.all(gap < critical_deviation(16) * error + 3 / N), (
            f"{key}: {np.max(gap / error):.1f} standard errors"
        )
        assert np.all(error < 0.03), key


# DMFT


def solve_dmft_in_paper_units(
    setting, steps, paths, replicates=16, dtype="float64", two_time=False
):
    """Solve a setting by `sgd.solve_dmft`.

    Returns m and loss at each time in the paper's units, each with its standard error, and the
    result itself.
    """
    result = sgd.solve_dmft(
        setting.problem,
        setting.algorithm,
        setting.start,
        steps=steps,
        paths=paths,
        replicates=replicates,
        seed=3,
        method=sgd.DMFT(dtype=dtype),
        two_time=two_time,
    ).isel(run=0)
    values = {
        "m": (result["M"].values[:, 0, 0], result["M_standard_error"].values[:, 0, 0]),
        "loss": tuple(
            setting.loss_factor * result[name].values
            for name in ("train_risk", "train_risk_standard_error")
        ),
    }
    return values, result


@pytest.mark.parametrize("name", slow(FOUR, FOUR))
def test_two_forms_of_dmft_agree(name):
    """The paper's kernel equations, in NumPy, agree with `sgd.solve_dmft` over 30 steps.

    The comparison is of m, loss, C(t, t') and R(t, t'). Both solutions have 16 replicates.
    """
    steps, last = np.array([0, 15, 30]), 30
    setting = formulas.setting(3.0, 0.02, 0.4, name, **FOUR[name])
    values, result = solve_dmft_in_paper_units(setting, steps, 1 << 15, two_time=True)
    for key in ("C", "R"):
        values[key] = (
            result[key].values[:, :, 0, 0],
            result[f"{key}_standard_error"].values[:, :, 0, 0],
        )
    kernels = kernel_dmft(
        3.0, 0.02, 0.4, steps=last, paths=1 << 15, replicates=16, seed=4, **FOUR[name]
    )
    largest = {"m": 0.02, "loss": 0.02, "C": 0.01, "R": 0.05}
    for key, (value, error) in values.items():
        expected, expected_error = getattr(kernels, key), kernels.standard_error[key]
        times = steps if expected.ndim == 1 else np.ix_(steps, steps)
        combined_error = np.hypot(error, expected_error[times])
        tolerance = critical_deviation(16) * combined_error + 1e-9
        assert np.all(np.abs(value - expected[times]) <= tolerance), key
        assert np.all(combined_error < largest[key]), key


# An independent solution with up to 131,072 paths, at eta = 0.01: (alpha, m0, algorithm, its
# arguments), then t: (m, its error, loss, its error).
REFERENCE = {
    "GD .5": (
        (2.0, 0.5, "GD", {}),
        {
            0.1: (0.6056, 1e-4, 0.32056, 4e-5),
            0.5: (0.7482, 2e-4, 0.0993, 2e-4),
            1.0: (0.8051, 4e-4, 0.0543, 1e-4),
            2.0: (0.8490, 5e-4, 0.0301, 2e-4),
            5.0: (0.8832, 6e-4, 0.0165, 1e-4),
            10.0: (0.8930, 9e-4, 0.0129, 2e-4),
        },
    ),
    "GD .8": (
        (2.0, 0.8, "GD", {}),
        {
            0.1: (0.8675, 1e-4, 0.11364, 2e-5),
            0.5: (0.9342, 1e-4, 0.02287, 1e-5),
            1.0: (0.9590, 1e-4, 0.00934, 1e-5),
            2.0: (0.9785, 1e-4, 0.00327, 1e-5),
            5.0: (0.9940, 1e-4, 0.00056, 1e-5),
            10.0: (0.9987, 1e-4, 0.00009, 1e-5),
        },
    ),
    "p-SGD": (
        (3.0, 0.2, "p-SGD", {"l": 0.5, "tau": 1.0}),
        {
            0.1: (0.2736, 1e-4, 0.6329, 3e-4),
            0.5: (0.3406, 7e-4, 0.4261, 5e-4),
            1.0: (0.372, 1e-3, 0.3375, 6e-4),
            2.0: (0.407, 1e-3, 0.2669, 6e-4),
            5.0: (0.453, 2e-3, 0.2111, 7e-4),
            10.0: (0.502, 3e-3, 0.183, 1e-3),
        },
    ),
}


def compare_with_reference(case, end, paths, dtype, largest_error):
    """Compare `sgd.solve_dmft` with REFERENCE up to t = end.

    The standard error of m must be below `largest_error`.
    """
    (alpha, m0, name, options), rows = REFERENCE[case]
    setting = formulas.setting(alpha, 0.01, m0, name, **options)
    t = [time for time in rows if time <= end]
    values, _ = solve_dmft_in_paper_units(setting, setting.steps(t), paths, dtype=dtype)
    for column, key in ((0, "m"), (2, "loss")):
        expected = np.array([rows[time][column : column + 2] for time in t]).T
        value, error = values[key]
        z = np.abs(value - expected[0]) / np.hypot(error, expected[1])
        assert np.all(z < critical_deviation(16)), f"{key}: {z.round(1)}"
    assert np.all(values["m"][1] < largest_error)


@pytest.mark.parametrize("case", slow(REFERENCE, ["GD .5", "GD .8", "p-SGD"]))
def test_dmft_follows_the_reference_at_early_times(case):
    compare_with_reference(case, 0.5 if case == "p-SGD" else 1.0, 1 << 15, "float64", 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(REFERENCE))
def test_dmft_follows_the_reference(case):
    # For p-SGD the standard error of m is 0.025 at t = 10.
    compare_with_reference(case, 10.0, 1 << 15, "float32", 0.03 if case == "p-SGD" else 0.02)


def check_limit_of_small_steps(solve):
    """Check that SGD becomes gradient descent as eta -> 0, and that p-SGD does not.

    The effect of the noise of vanilla SGD on the loss is proportional to eta, and that of p-SGD has
    a nonzero limit. It is measured at t = 0.1 and l = 0.2, where the noise is large.
    """
    options = {"GD": {}, "SGD": {"l": 0.2}, "p-SGD": {"l": 0.2, "tau": 0.3}}
    loss = {
        name: np.array([solve(eta, round(0.1 / eta), name, kwargs) for eta in (0.01, 0.0025)])
        for name, kwargs in options.items()
    }
    # about 0.030 and 0.006 for vanilla SGD, and 0.20 twice for p-SGD, with errors of 0.003
    vanilla, persistent = loss["SGD"] - loss["GD"], loss["p-SGD"] - loss["GD"]
    assert vanilla[0] > 0.015
    assert vanilla[1] < 0.5 * vanilla[0]
    assert vanilla[1] < 0.25 * persistent[1]
    assert abs(persistent[1] - persistent[0]) < 0.15 * persistent[0]


@pytest.mark.slow
def test_sgd_becomes_gradient_descent_at_small_steps():
    def solve(eta, steps, name, kwargs):
        return kernel_dmft(
            3.0, eta, 0.4, steps=steps, paths=1 << 15, replicates=8, seed=6, **kwargs
        ).loss[-1]

    check_limit_of_small_steps(solve)


@pytest.mark.slow
def test_sgd_becomes_gradient_descent_at_small_steps_in_solve_dmft():
    def solve(eta, steps, name, kwargs):
        setting = formulas.setting(3.0, eta, 0.4, name, **kwargs)
        values, _ = solve_dmft_in_paper_units(setting, [steps], 1 << 16)
        loss, _ = values["loss"]
        return loss[-1]

    check_limit_of_small_steps(solve)
