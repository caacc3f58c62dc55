"""Linear students on any spectrum, power-law random features, and compute-optimal training.

They are compared with reference values and with the recursion, step by step.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.scaling.modes import power_sum
from tests.conftest import Z, same_law

scaling = sgd.scaling
j12 = np.arange(1.0, 13.0)


def risks_by_recursion(modes, step, batch, steps):
    """The risks of the recursion of mean squared errors, computed step by step."""
    eigenvalues, kappa = modes.eigenvalues, modes.kappa
    errors = modes.errors.copy()
    risks = []
    contraction = 1 - 2 * step * eigenvalues
    contraction += step**2 * (1 - 1 / batch + 2 * kappa / batch) * eigenvalues**2
    for _ in range(steps + 1):
        risks.append((eigenvalues @ errors + modes.noise) / 2)
        noise = kappa * (eigenvalues @ errors) + modes.noise
        errors = contraction * errors + step**2 / batch * modes.counts * eigenvalues * noise
    return np.array(risks)


@pytest.mark.parametrize(
    ("batch", "step", "kappa"),
    [(1, 0.3, 1.0), (3, 0.8, 1.0), (100, 1.9, 1.0), (2, 0.4, 1.4), (1, 0.9, 1.0)],
)
def test_all_steps_at_once(batch, step, kappa):
    """The eigenproblem agrees with the recursion, also for unstable directions."""
    modes = scaling.LinearModes(2 / j12, np.tile([1.0, 5.0], 6), j12**-0.5, 0.1, kappa)
    np.testing.assert_allclose(
        modes.risk(np.arange(60), step, batch),
        risks_by_recursion(modes, step, batch, 59),
        rtol=1e-10,
    )


def test_risks_are_the_mean_of_direct_sgd():
    """Direct SGD in 12 dimensions, with batches of two and label noise."""
    rng, runs, g, B = np.random.default_rng(0), 40_000, 0.15, 2
    modes = scaling.LinearModes(1 / j12, np.ones(12), np.ones(12), 0.2)
    error = np.ones((runs, 12))
    for number in range(1, 16):
        x = rng.standard_normal((runs, B, 12)) / np.sqrt(j12)
        residual = np.einsum("rbj,rj->rb", x, error) - np.sqrt(0.2) * rng.standard_normal((runs, B))
        error -= g * np.einsum("rb,rbj->rj", residual, x) / B
        if number in (1, 5, 15):
            risk = (error**2 / j12).sum(axis=1) / 2 + 0.1
            gap = abs(risk.mean() - modes.risk([number], g, B)[0])
            assert gap <= Z * risk.std() / np.sqrt(runs), number


def test_stability():
    modes = scaling.LinearModes(1 / j12, np.ones(12), np.ones(12))
    np.testing.assert_allclose(
        [modes.largest_step(B) for B in (1, 3, 100)],
        [0.46592366, 1.03076495, 1.96020129],
        atol=5e-9,
    )
    below, above = (modes.risk([3000], share * modes.largest_step())[0] for share in (0.99, 1.01))
    assert below < 1e-3
    assert above > 1
    noisy = scaling.LinearModes(1 / j12, np.ones(12), np.ones(12), 0.3)
    np.testing.assert_allclose(
        noisy.risk([10**7], 0.2)[0], 0.15 / (1 - noisy.noise_gain(0.2)), rtol=1e-9
    )
    assert scaling.LinearModes([2.0], [1.0], [1.0]).noise_gain(0.9) == np.inf
    np.testing.assert_allclose(modes.effective_dimension, np.sum(1 / j12) ** 2 / np.sum(1 / j12**2))


def test_explicit_features():
    """Reference values of an explicit matrix of features."""
    j, i = np.arange(1, 201.0)[:, None], np.arange(1, 51.0)[None]
    modes = scaling.RandomFeatures(1.0, 0.7, 50, 200).given(
        np.sqrt(2 / 50) * np.cos(j * i + i**2 / 2)
    )
    np.testing.assert_allclose(modes.noise, 0.00138191274892, rtol=1e-11)
    expected = [
        0.5693312660213,
        0.4600383260402,
        0.1233980272686,
        0.007927289038897,
        0.002381137613982,
        0.001939911118492,
    ]
    np.testing.assert_allclose(modes.risk([0, 1, 10, 100, 1000, 10_000], 0.5), expected, rtol=3e-12)
    np.testing.assert_allclose(
        modes.risk([10, 1000], 1.0, 4), [0.03051185487714, 0.001242983114281], rtol=3e-12
    )


@pytest.mark.slow
def test_a_million_modes():
    j = np.arange(1.0, 1e6 + 1)
    modes = scaling.LinearModes(1 / j, np.ones_like(j), j**-0.5, 1e-3)
    np.testing.assert_allclose(
        modes.risk([10, 100], 0.5 / modes.trace), [0.9687935626113, 0.3616748544384], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [
        ((0.7, 1.2), [0.0020525681752, 2.86122e-4, 2.58639e-4]),
        ((1.0, 0.7), [0.00304969030, 3.57565e-5, 5.9311e-6]),
    ],
)
def test_equivalent(exponents, expected):
    loss = scaling.RandomFeatures(*exponents, features=1000, inputs=1e8).equivalent()
    np.testing.assert_allclose(loss.risk([100, 1e4, 1e6], 0.5 / loss.trace), expected, rtol=1e-5)


@pytest.mark.slow
def test_the_equivalent_is_the_mean_over_features():
    """Twenty draws of the features at d = 60; very many features act as the inputs themselves."""
    model = scaling.RandomFeatures(0.8, 0.6, features=60, inputs=200)
    loss = model.equivalent()
    g = 0.4 / loss.trace
    draws = np.array([model.sample(seed).risk([20, 2000], g, 2) for seed in range(20)])
    expected = loss.risk([20, 2000], g, 2)
    gap = np.abs(draws.mean(axis=0) - expected)
    assert np.all(gap <= Z * draws.std(axis=0) / np.sqrt(20) + 0.02 * expected)
    j = np.arange(1.0, 401)
    wide = scaling.RandomFeatures(0.8, 0.6, features=400, inputs=400)
    object.__setattr__(wide, "features", 1e12)  # the features span all inputs
    modes = scaling.LinearModes(j**-1.6, np.ones(400), j**-1.2, 0.05)
    np.testing.assert_allclose(
        wide.equivalent().risk([20, 2000], g, 2, 0.05), modes.risk([20, 2000], g, 2), rtol=1e-8
    )


def test_power_sums():
    for count in (50.0, 1e3, 1e6):
        j = np.arange(1, count + 1)
        quadrature = power_sum(count, 0.5)
        for f in (lambda x: x**-0.5, lambda x: x**-1.7, lambda x: 1 / (x**-1.4 + 1e-4j)):
            np.testing.assert_allclose(
                quadrature.weights @ f(quadrature.nodes), np.sum(f(j)), rtol=1e-10
            )
    quadrature = power_sum(np.inf, 1.4)
    zeta = 3.10554727797758  # zeta(1.4)
    np.testing.assert_allclose(quadrature.weights @ quadrature.nodes**-1.4, zeta, rtol=1e-10)


PHASES = {
    "Ia": (0.7, 0.3, 12),
    "Ib": (0.4, 0.3, 13),
    "Ic": (0.15, 0.8, 24),
    "II": (1.0, 0.7, 14),
    "III": (0.7, 1.2, 14),
    "IVa": (0.4, 0.8, 19),
    "IVb": (0.27, 0.9, 26),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "Ia" else pytest.mark.slow) for name in PHASES]
)
def test_phases(name):
    """Measured exponents agree with the predicted ones within 3%.

    In phase IVb the corrections decrease like d^-0.05 only, which leaves 6% at any size.
    """
    a, b, log_flops = PHASES[name]
    optimum = scaling.compute_optimal(
        a, b, flops=np.geomspace(10.0 ** (log_flops - 4), 10.0**log_flops, 5)
    )
    assert optimum.predicted is not None
    assert optimum.predicted.name == name
    tolerance = 0.06 if name == "IVb" else 0.03
    assert abs(optimum.eta / optimum.predicted.eta - 1) < tolerance
    assert abs(optimum.xi / optimum.predicted.xi - 1) < tolerance


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scaling.LinearModes([1.0, -1.0], [1, 1], [1, 1]), "eigenvalues"),
        (lambda: scaling.LinearModes([1.0], [1, 1], [1]), "one value per block"),
        (lambda: scaling.LinearModes([1.0], [0.5], [1]), "counts"),
        (lambda: scaling.RandomFeatures(0.4, 0.3, 100), "inputs = inf: the trace"),
        (lambda: scaling.RandomFeatures(0.2, 0.1, 100, 1000), "infinite variance"),
        (lambda: scaling.RandomFeatures(0.7, 0.3, 100, 50), "only 50 inputs"),
        (lambda: scaling.RandomFeatures(0.7, 0.3, 100.5, 500), "use integers"),
        (lambda: scaling.RandomFeatures(0.7, 0.3, 100).sample(), "cannot be drawn"),
        (
            lambda: scaling.RandomFeatures(0.7, 0.3, 100).equivalent().risk([3], 0.1),
            r"steps = \[3\]: use finite numbers of at least 10",
        ),
        (lambda: scaling.phase(0.5, 0.7), "boundary"),
        (lambda: scaling.compute_optimal(0.7, 0.3, flops=[1e6, 1e7]), "three decades"),
        (
            lambda: scaling.LinearModes(np.ones(4000), np.ones(4000), np.ones(4000)).risk(
                [10**6], 0.1
            ),
            "at most 20000 steps",
        ),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


FEATURES = sgd.scaling.RandomFeatures(1.0, 0.7, features=6, inputs=30)


def features_in_numpy(schedule, order, noise, generator):
    """Risks of SGD on theta in y = theta . A^T x with x_j = j^-a z_j.

    `order` has shape (runs, steps) and contains the index of the sample of each step.
    """
    d, v = 6, 30
    A = np.random.default_rng(0).standard_normal((v, d)) / np.sqrt(d)
    j = np.arange(1.0, v + 1)
    scale, target = j**-1.0, j**-0.7
    runs = order.shape[0]
    data = scale * generator.standard_normal((runs, order.max() + 1, v))
    labels = data @ target + np.sqrt(noise) * generator.standard_normal(data.shape[:2])
    theta = np.zeros((runs, d))
    for step in range(order.shape[1]):
        x, y = (array[np.arange(runs), order[:, step]] for array in (data, labels))
        features = x @ A
        theta = theta - schedule(step) * (np.sum(theta * features, axis=1) - y)[:, None] * features
    gap = (theta @ A.T - target) * scale
    return 0.5 * np.sum(gap**2, axis=1) + noise / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("schedule", marks=pytest.mark.slow), "epochs"])
def test_random_features_as_a_problem_agree_with_numpy(kind):
    """The risk has the law of SGD on the features.

    Two cases: a schedule on fresh samples, and three epochs over 12 samples.
    """
    runs, steps, d, noise = 1000, 36, 6, 0.05
    problem = FEATURES.problem(seed=0, noise=noise)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    generator = np.random.default_rng(5)
    if kind == "schedule":
        algorithm = sgd.OnePassSGD(lr=lambda alpha: 0.4 / (1 + alpha), per="step")
        order = np.broadcast_to(np.arange(steps), (runs, steps))
        expected = features_in_numpy(lambda step: 0.4 / (1 + step / d), order, noise, generator)
    else:
        algorithm = sgd.EpochSGD(lr=0.2 * d, samples_per_dimension=2.0)
        order = np.concatenate(
            [generator.permuted(np.tile(np.arange(12), (runs, 1)), axis=1) for _ in range(3)],
            axis=1,
        )
        expected = features_in_numpy(lambda step: 0.2, order, noise, generator)
    result = sgd.simulate(problem, algorithm, start, steps=[0, steps], runs=runs, seed=3)
    same_law(result.risk.values[:, -1], expected, "risk")


def test_modes_as_a_problem_keep_their_parameters():
    modes = FEATURES.sample(3)
    problem = modes.problem(noise=0.1)
    np.testing.assert_allclose(problem.noise, modes.noise + 0.1)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    exact = sgd.solve_linear(problem, sgd.OnePassSGD(lr=0.1, per="step"), start, steps=[0, 40])
    noisier = sgd.scaling.LinearModes(
        modes.eigenvalues, modes.counts, modes.errors, modes.noise + 0.1
    )
    np.testing.assert_allclose(exact.risk.values[0], noisier.risk([0, 40], step=0.1), rtol=1e-10)
    with pytest.raises(ValueError, match=r"kappa = 2.0: .*solve_linear"):
        sgd.scaling.LinearModes([1.0], [1], [1.0], kappa=2.0).problem()
