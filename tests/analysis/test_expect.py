"""`sgd.expect`: expectations of the loss, of the correct sign, and of functions of samples."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from tests.conftest import FALSE_ALARM, Z, slow

# Allowed standard errors of the mean of 16 replicates, at the false-alarm rate of each check: a
# quantile of the t distribution.
DEVIATIONS = float(stats.t.isf(FALSE_ALARM / 2, 15))


def erf(x):
    return jax.scipy.special.erf(x / np.sqrt(2))


def erf_loss(fields, signals, head, z):
    return 0.5 * (jnp.mean(head * erf(fields)) - jnp.mean(erf(signals)) - jnp.sqrt(0.1) * z) ** 2


def own_loss(fields, signals, head, z, parameters):
    return parameters["scale"] * jnp.abs(fields[0] - signals[0] - 0.3 * z)


def two_tokens(fields, signals, head, draws):
    return (jnp.sum(jnp.tanh(fields)) - jnp.sum(signals) - draws["noise"]) ** 2 * (
        1 + draws["group"]
    )


def cross_entropy(fields, signals, head, label):
    output = jnp.sum(head * jax.nn.relu(fields))
    return jax.nn.softplus(output) - label * output


KINDS = {
    "teacher": (sgd.TeacherStudent(width=2, activation="erf", noise=0.1), erf_loss),
    "blocks": (
        sgd.TeacherStudent(
            width=2, activation="erf", noise=0.1, covariance=[(0.5, 0.5), (2.0, 0.5)]
        ),
        erf_loss,
    ),
    "target": (
        sgd.MultiIndex(lambda z: z[0] * z[1], directions=2, width=2, activation="erf"),
        lambda f, s, a, z: 0.5 * (jnp.mean(a * erf(f)) - s[0] * s[1]) ** 2,
    ),
    "own loss": (
        sgd.Problem(own_loss, width=1, signals=1, parameters={"scale": 2.0}, kinks=()),
        own_loss,
    ),
    "tokens": (
        sgd.Problem(
            two_tokens, width=2, signals=1, tokens=2, draws={"noise": "normal", "group": [0.3, 0.7]}
        ),
        two_tokens,
    ),
    "mixture": (sgd.GaussianMixture("binary", width=1, snr=10.0), cross_entropy),
    "snr = inf": (sgd.GaussianMixture("binary", width=2, snr=math.inf), cross_entropy),
}


def start_of(problem):
    return sgd.random_start(problem, dimension=50, seed=3, runs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow(KINDS, ("blocks", "target", "own loss", "snr = inf")))
def test_the_expected_loss_is_the_risk(kind):
    problem, loss = KINDS[kind]
    steps = {"steps": [0, 40], "dimension": 50, "seed": 1}
    result = sgd.simulate(problem, sgd.OnePassSGD(lr=0.2), start_of(problem), **steps)
    expectation = sgd.expect(result, loss, problem)
    assert expectation.dims == ("run", "time")
    error = (
        np.asarray(expectation.standard_error)
        + result.attrs["error_quadrature"] * np.asarray(result.risk)
        + 1e-9
    )
    assert np.all(np.abs(expectation.values - result.risk.values) <= DEVIATIONS * error)
    # The error is small enough for the comparison to mean something.
    assert np.all(expectation.standard_error.values <= 5e-3 * np.abs(expectation.values) + 1e-12)
    assert expectation.attrs["error_quadrature"] == pytest.approx(
        float((expectation.standard_error / abs(expectation)).max())
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow(["mixture", "snr = inf"], ("snr = inf",)))
def test_the_expected_correct_sign_is_the_accuracy(kind):
    problem, _ = KINDS[kind]
    result = sgd.simulate(
        problem, sgd.OnePassSGD(lr=0.5), start_of(problem), steps=[0, 100], dimension=50, seed=1
    )

    def is_correct(fields, signals, head, label):
        output = jnp.sum(head * jax.nn.relu(fields))
        return 0.5 + 0.5 * jnp.sign(output) * (2 * label - 1)

    expectation = sgd.expect(result, is_correct)
    assert np.all(
        np.abs(expectation.values - result.accuracy.values)
        <= DEVIATIONS * expectation.standard_error.values + 1e-9
    )


@pytest.mark.slow
def test_a_readout_against_direct_samples():
    """A vector readout with jumps, compared with 1e5 samples in d dimensions."""
    problem = KINDS["blocks"][0]
    d, count = 40, 100_000
    start = sgd.start(problem, M=[[0.5], [-0.2]], Q=[[1.2, 0.3], [0.3, 0.9]])
    path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.3), start, times=[0.0, 1.5])

    def readout(fields, signals, head, z):
        return jnp.stack(
            [
                jnp.where(fields[0] > signals[0], fields[1], 0.0),
                jnp.abs(signals[0]),
                z * fields[0] * z,
            ]
        )

    expectation = sgd.expect(path, readout)
    assert expectation.dims == ("run", "time", "component_0")
    generator = np.random.default_rng(5)
    end = sgd.start_from(path)
    eigenvalues = np.repeat([0.5, 2.0], d // 2)
    rows, teacher = np.zeros((2, d)), np.zeros((1, d))
    for block in range(2):
        low = block * d // 2
        M, Q = end.M_blocks[0, block], end.Q_blocks[0, block]
        gram = problem.gram[block]
        root = np.linalg.cholesky(np.block([[gram, M.T], [M, Q]]) + 1e-15 * np.eye(3))
        teacher[:, low : low + 3], rows[:, low : low + 3] = root[:1], root[1:]
    x = generator.standard_normal((count, d)) * np.sqrt(eigenvalues)
    fields, signals, z = x @ rows.T, x @ teacher.T, generator.standard_normal(count)
    values = np.stack(
        [
            np.where(fields[:, 0] > signals[:, 0], fields[:, 1], 0.0),
            np.abs(signals[:, 0]),
            z**2 * fields[:, 0],
        ],
        axis=1,
    )
    error = np.hypot(
        values.std(axis=0, ddof=1) / np.sqrt(count), expectation.standard_error.values[0, -1]
    )
    assert np.all(np.abs(values.mean(axis=0) - expectation.values[0, -1]) <= Z * error)


@pytest.mark.slow
def test_scheduled_parameters_have_their_current_value():
    """A scale of the loss that decreases with alpha."""
    problem = sgd.Problem(
        own_loss, width=1, signals=1, parameters={"scale": lambda alpha: 2.0 / (1 + alpha)}
    )
    result = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=0.1),
        sgd.start(problem, M=[[0.3]], Q=[[1.0]]),
        alpha=[0, 2.0],
        dimension=30,
    )
    expectation = sgd.expect(result, own_loss, problem)
    error = (
        DEVIATIONS * expectation.standard_error.values
        + result.attrs["error_quadrature"] * result.risk.values
    )
    assert np.all(np.abs(expectation.values - result.risk.values) <= error)
    unscaled = sgd.expect(result, lambda f, s, a, z: jnp.abs(f[0] - s[0] - 0.3 * z), problem)
    assert unscaled.values[0, 1] / expectation.values[0, 1] == pytest.approx(1.5, rel=1e-9)


@pytest.mark.slow
def test_expectations_at_a_start_and_of_particles():
    problem, loss = KINDS["teacher"]
    start = start_of(problem)
    expectation = sgd.expect(start, loss, problem)
    assert expectation.dims == ("run",)
    path = sgd.solve_ode(problem, sgd.OnePassSGD(), start, times=[0.0])
    assert np.all(
        np.abs(expectation.values - path.risk.values[:, 0])
        <= DEVIATIONS * expectation.standard_error.values
    )
    wide = sgd.random_start(problem, dimension=50, seed=1, wide=True)
    particles = sgd.solve_mean_field(problem, sgd.OnePassSGD(), wide, times=[0.0])
    Q = wide.M @ np.swapaxes(wide.M, -1, -2) + wide.q[..., None] * np.eye(2)
    narrow = sgd.solve_ode(
        problem, sgd.OnePassSGD(), sgd.start(problem, M=wide.M, Q=Q, a=wide.a), times=[0.0]
    )
    expectation = sgd.expect(particles, loss)
    assert (
        abs(expectation.values[0, 0] - narrow.risk.values[0, 0])
        <= DEVIATIONS * expectation.standard_error.values[0, 0]
    )


@pytest.mark.slow
def test_bad_input():
    problem, loss = KINDS["teacher"]
    start = start_of(problem)
    path = sgd.solve_ode(problem, sgd.OnePassSGD(), start, times=[0.0])
    with pytest.raises(ValueError, match=r"problem = None.*Use problem="):
        sgd.expect(start, loss)
    with pytest.raises(ValueError, match=r"function = .*fields, signals, head, draws"):
        sgd.expect(path, lambda fields: fields[0])
    with pytest.raises(ValueError, match=r"it has \(blocks, width, signals\) = \(1, 3, 1\)"):
        sgd.expect(path, loss, sgd.TeacherStudent(width=3, activation="erf"))
    own_problem = sgd.Problem(erf_loss, width=2, signals=1)
    result = sgd.simulate(own_problem, sgd.OnePassSGD(), start, steps=[0], dimension=50)
    with pytest.raises(ValueError, match="Use problem="):
        sgd.expect(result, loss)
    spiked = sgd.SpikedTensor()
    tensor = sgd.solve_ode(spiked, sgd.OnePassSGD(), sgd.start(spiked, m=0.2, r2=1.0), times=[0.0])
    with pytest.raises(ValueError, match="a spiked tensor has no Gaussian inputs"):
        sgd.expect(tensor, loss)
