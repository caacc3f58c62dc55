"""Bayes-optimal learning: reference values, identities, closed forms, brute force, bad input."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.results.datasets import problem_of
from sgdynamics.statics.bayes_states import BayesStates
from sgdynamics.statics.channel import channel_of
from sgdynamics.statics.channel_states import SampledChannel, binormal_probability
from sgdynamics.statics.setup import setup_of

BLOCKS = [(0.5, 0.5), (1.0, 0.3), (2.0, 0.2)]


def teacher(activation, **arguments):
    return sgd.TeacherStudent(width=1, activation="erf", teacher_activation=activation, **arguments)


COMMITTEE = teacher("sign", teacher_width=2)

# Overlaps q at samples/d, computed by state evolution with other programs; the one of 20% random
# labels agrees with that of a public repository (SPOC-group/RAF).
OVERLAPS = {
    "sign": (
        teacher("sign"),
        {1: 0.486263637, 2: 0.728298174, 5: 0.932064246, 10: 0.981378085, 20: 0.995226920},
    ),
    "flip": (teacher("linear", labels=sgd.labels.sign(0.1)), {2: 0.521982537}),
    "probit": (
        teacher("linear", labels=sgd.labels.probit(0.25)),
        {1: 0.390306287, 2: 0.600830670, 4: 0.783293352},
    ),
    "linear": (teacher("linear", noise=0.1), {0.5: 0.425834261, 1: 0.729843788, 2: 0.915571123}),
    "noiseless ReLU": (teacher("relu"), {0.5: 0.381628008, 1: 0.692793896}),
    "ReLU": (teacher("relu", noise=0.1), {0.5: 0.265509996, 1: 0.471652241, 2: 0.733300755}),
    "abs": (
        teacher("abs"),
        {0.6: 0.051820272, 0.8: 0.216227490, 1: 0.476263585, 1.1: 0.690788777, 1.125: 0.797009688},
    ),
    "blocks": (teacher("sign", covariance=BLOCKS), {1: 0.512660200, 2: 0.716511880}),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_have_their_reference_values(name):
    problem, references = OVERLAPS[name]
    result = sgd.bayes_optimal(problem, list(references))
    assert result.q_amp.values[:, 0, 0] == pytest.approx(list(references.values()), abs=2e-9)
    assert result.attrs["error_quadrature"] < 3e-8


def test_errors_of_the_sign_perceptron_are_angles():
    result = sgd.bayes_optimal(teacher("sign"), [1, 2, 5, 10, 20])
    references = [0.254372970, 0.174534186, 0.083935170, 0.043573204, 0.022008761]
    assert result.error.values == pytest.approx(references, abs=1e-8)
    angles = np.arccos(np.sqrt(result.q.values[:, 0, 0])) / np.pi
    assert result.error.values == pytest.approx(angles, abs=1e-8)
    assert float(result.free_entropy[1]) == pytest.approx(-1.03103816, abs=1e-8)
    assert not result.hard.any()


def test_excess_risks_have_their_reference_values():
    noiseless = sgd.bayes_optimal(teacher("relu"), [0.5, 1.0])
    assert noiseless.excess_risk.values == pytest.approx([0.116850579, 0.063819924], abs=1e-8)
    noisy = sgd.bayes_optimal(teacher("relu", noise=0.1), [0.5, 1.0, 2.0])
    references = [0.134412012, 0.102438487, 0.056197235]
    assert noisy.excess_risk.values == pytest.approx(references, abs=1e-8)
    assert noisy.risk.values == pytest.approx(noisy.excess_risk.values + 0.05)
    erf = sgd.bayes_optimal(teacher("erf", noise=0.1), [3.367, 15.89])
    assert erf.excess_risk.values == pytest.approx([0.01985, 0.00337], rel=2e-3)


@pytest.mark.slow
def test_noiseless_phase_retrieval_is_hard_between_its_thresholds():
    result = sgd.bayes_optimal(teacher("abs"), [0.4, 0.9, 1.05, 1.125, 1.13])
    assert result.hard.values.tolist() == [False, False, True, True, False]
    assert result.q.values[2:, 0, 0] == pytest.approx([1.0, 1.0, 1.0])
    assert result.q_amp.values[[0, 4], 0, 0] == pytest.approx([0.0, 1.0])
    assert result.attrs["spinodals"] == pytest.approx([1.12847141], abs=1e-8)
    # a square and an absolute value without noise tell the same
    square = sgd.bayes_optimal(teacher("square"), [1.0])
    assert float(square.q_amp[0, 0, 0]) == pytest.approx(0.476263585, abs=2e-9)


def test_linear_labels_agree_with_the_closed_form():
    """For y = z + noise and isotropic inputs q solves a quadratic equation (ridge regression)."""
    alphas, noise = np.array([0.3, 1.0, 3.0]), 0.1
    # q = alpha (1 - q)/(noise + 1 - q)
    b = 1 + noise + alphas
    expected = (b - np.sqrt(b**2 - 4 * alphas)) / 2
    result = sgd.bayes_optimal(teacher("linear", noise=noise), alphas)
    assert result.q.values[:, 0, 0] == pytest.approx(expected * 1.0, abs=1e-8)
    noiseless = sgd.bayes_optimal(teacher("linear"), [0.4, 1.5])
    assert noiseless.q.values[:, 0, 0] == pytest.approx([0.4, 1.0], abs=1e-8)


def test_binary_mixture_has_its_closed_form():
    result = sgd.bayes_optimal(sgd.GaussianMixture("binary", snr=2.0), [2.0])
    assert float(result.error[0]) == pytest.approx(0.102952, abs=1e-6)
    assert float(result.q[0, 0, 0]) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "problem",
    [
        teacher("relu", noise=0.1),
        teacher("abs"),
        teacher("linear", labels=sgd.labels.logistic(2.0)),
        teacher("sign"),
    ],
    ids=["noisy", "noiseless", "smooth outcomes", "jumps"],
)
def test_identities_of_the_channel(problem):
    """dPsi/dq = J/2 (Nishimori), and J by Stein's lemma from the posterior mean at random samples.

    E[g z] = E[g g] for the true z: the posterior mean of z has the same overlap with z as with
    itself.
    """
    with jax.enable_x64(True):
        channel = channel_of(setup_of(problem).likelihood, 1.0)
        q, step = 0.55, 1e-4
        J = channel.information(q).J
        above, below = (channel.information(q + shift).psi for shift in (step, -step))
        assert (above - below) / (2 * step) == pytest.approx(J / 2, rel=1e-6)
        coarse = channel.information(q, "coarse").J
        assert coarse == pytest.approx(J, rel=1e-7)


def test_information_agrees_with_brute_force():
    """J of a ReLU with noise from a plain Riemann sum over om, z and y."""
    noise, q = 0.3, 0.4
    channel = channel_of(setup_of(teacher("relu", noise=noise)).likelihood, 1.0)
    om = np.linspace(-4.5, 4.5, 181)
    eta = np.linspace(-6, 6, 601)
    y = np.linspace(-3.5, 8, 461)
    weights = np.exp(-0.5 * om**2 / q)
    z = om[:, None] + np.sqrt(1 - q) * eta
    inner = np.exp(-0.5 * eta**2)
    inner /= inner.sum()
    law = np.exp(-0.5 * (y - np.maximum(z, 0.0)[..., None]) ** 2 / noise) / np.sqrt(
        2 * np.pi * noise
    )
    Z = np.einsum("m,nmy->ny", inner, law)
    dZ = np.einsum("m,nmy->ny", inner * eta, law) / np.sqrt(1 - q)
    J = weights @ (dZ**2 / np.maximum(Z, 1e-300)).sum(1) * (y[1] - y[0]) / weights.sum()
    with jax.enable_x64(True):
        assert pytest.approx(J, rel=1e-3) == channel.information(q).J


@pytest.mark.parametrize(
    ("noise", "fisher", "density"),
    [
        (sgd.labels.student_t(3.0, 0.4), 4 / 6 / 0.4**2, lambda x: stats.t.pdf(x, 3.0, scale=0.4)),
        (sgd.labels.cauchy(0.3), 0.5 / 0.3**2, lambda x: stats.cauchy.pdf(x, scale=0.3)),
        (sgd.labels.laplace(0.3), 1 / 0.3**2, lambda x: stats.laplace.pdf(x, scale=0.3)),
    ],
    ids=["student_t", "cauchy", "laplace"],
)
def test_heavy_tailed_noise(noise, fisher, density):
    """J of y = z + noise is the Fisher information of the noise plus a normal of variance V."""
    channel = channel_of(setup_of(teacher("linear", noise=noise)).likelihood, 1.0)
    q, step = 0.55, 1e-4
    x, eta = np.linspace(-40, 40, 3201), np.linspace(-5, 5, 801)
    weights = np.exp(-(eta**2) / 2)
    weights /= weights.sum()
    table = density(x[:, None] - np.sqrt(1 - q) * eta)
    Z, dZ = table @ weights, table @ (weights * eta) / np.sqrt(1 - q)
    J = np.sum(dZ**2 / Z) * (x[1] - x[0])
    with jax.enable_x64(True):
        moments = channel.information(q)
        assert pytest.approx(J, rel=3e-4) == moments.J
        slope = (channel.information(q + step).psi - channel.information(q - step).psi) / (2 * step)
        assert slope == pytest.approx(moments.J / 2, rel=1e-3)
        # nothing but the noise is left of a signal that is known
        assert pytest.approx(fisher, rel=5e-3) == channel.information(1 - 1e-6).J


@pytest.mark.slow
def test_heavy_tailed_noise_has_a_floor_below_huber():
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=sgd.labels.student_t(3.0, 0.4))
    floor = sgd.bayes_optimal(problem, [2.0])
    fit = sgd.erm(problem, 2.0, weight_decay=0.2, loss="huber")
    excess = 0.5 * (1 - 2 * fit.M.item() + fit.Q.item())
    assert floor.excess_risk.item() < excess < 1.2 * floor.excess_risk.item()
    assert floor.risk.item() == pytest.approx(floor.excess_risk.item() + 0.24)
    assert floor.attrs["error_quadrature"] < 1e-8


@pytest.mark.slow
def test_committee_specialises():
    """Overlaps q+ = q11 + q12 and q- = q11 - q12 of two sign units."""
    result = sgd.bayes_optimal(COMMITTEE, [2.0, 2.5, 3.0, 4.0])
    q = result.q_amp.values
    plus, minus = q[:, 0, 0] + q[:, 0, 1], q[:, 0, 0] - q[:, 0, 1]
    assert plus == pytest.approx([0.7035, 0.7657173, 0.8143774, 0.8820710], abs=2e-5)
    assert minus == pytest.approx([0.0, 0.2353153, 0.4914539, 0.7668264], abs=5e-5)
    assert not result.hard.any()


def test_averages_agree_with_quadrants():
    """The sampled channel of several signals against bivariate normal probabilities."""
    setup = setup_of(COMMITTEE)
    q = np.array([[0.4, 0.1], [0.1, 0.4]])
    exact = BayesStates(setup).channel.information(q)
    sampled = SampledChannel(setup.likelihood, setup.rho)
    averages = sampled.information(q)
    assert pytest.approx(exact.J, rel=0.05, abs=0.01) == averages.J
    assert averages.psi == pytest.approx(exact.psi, rel=0.01)
    step = 1e-4 * np.eye(2)
    channel = BayesStates(setup).channel
    slope = (channel.information(q + step).psi - channel.information(q - step).psi) / 2e-4
    assert slope == pytest.approx(np.trace(exact.J) / 2, rel=1e-5)


@pytest.mark.slow
def test_two_signals_that_add_up_are_one():
    """A smooth function of z1 + z2 with k = 2 has the overlap of the same problem with k = 1."""
    single_index = sgd.MultiIndex(lambda z: jnp.tanh(z[0]), directions=1, noise=0.3)
    two = sgd.MultiIndex(lambda z: jnp.tanh((z[0] + z[1]) / jnp.sqrt(2.0)), directions=2, noise=0.3)
    single = float(sgd.bayes_optimal(single_index, 2.0).q[0, 0, 0])
    result = sgd.bayes_optimal(two, 2.0)
    direction = np.ones(2) / np.sqrt(2)
    assert float(direction @ result.q.values[0] @ direction) == pytest.approx(single, rel=0.01)
    assert result.attrs["error_quadrature"] < 0.05


def test_probabilities_of_two_correlated_normals():
    from scipy.stats import multivariate_normal

    for h, k, r in [(0.3, -0.8, 0.6), (-1.2, 0.4, -0.9), (2.0, 2.0, 0.0)]:
        covariance: Any = [[1, r], [r, 1]]
        expected = multivariate_normal([0, 0], covariance).cdf([h, k])
        value = binormal_probability(np.array([h]), np.array([k]), r)[0]
        assert value == pytest.approx(expected, abs=1e-6)


def test_results_record_their_problem(tmp_path):
    problem = teacher("linear", labels=sgd.labels.sign(0.1))
    result = sgd.bayes_optimal(problem, [1.0])
    sgd.save(result, tmp_path / "bayes.nc")
    assert problem_of(sgd.load(tmp_path / "bayes.nc")) == problem


@pytest.mark.parametrize(
    ("problem", "samples", "reason"),
    [
        (teacher("sign"), -1.0, "samples_per_dimension"),
        (sgd.MultiIndex(lambda z: z[0] * z[1]), 1.0, "without noise"),
        (sgd.MultiIndex(lambda z: z[0] * z[3], directions=4, noise=0.1), 1.0, "At most 3"),
        (
            teacher("linear", teacher_width=2, noise=sgd.labels.laplace(0.3)),
            1.0,
            "heavy-tailed noise is supported for labels of one signal",
        ),
        (teacher("linear", noise=sgd.labels.laplace(1e-3)), 1.0, "noise = .*scale is too small"),
        (sgd.GaussianMixture("xor"), 1.0, "is not known"),
        (sgd.models.sequence_single_index(), 1.0, "several|signals|law"),
    ],
)
def test_invalid_arguments_are_rejected(problem, samples, reason):
    with pytest.raises(ValueError, match=reason):
        sgd.bayes_optimal(problem, samples)


@pytest.mark.slow
def test_linear_labels_of_two_signals_are_ridge_regression():
    """At alpha = 1 the excess risk of y = (z1 + z2)/2 + noise is v/2, 2 v + v/(noise + v) = 1."""
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="linear", noise=0.2)
    result = sgd.bayes_optimal(problem, [1.0])
    v = (-0.4 + np.sqrt(0.16 + 8 * 0.2)) / 4
    assert result["excess_risk"].values.ravel() == pytest.approx(v / 2, rel=1e-4)


@pytest.mark.parametrize("noise", [1e-3, 1e-6])
def test_small_noise_of_linear_labels(noise):
    """The closed form of ridge regression; one grid of z and y would have 1e5 nodes per axis."""
    alphas = np.array([0.5, 0.9, 1.1, 3.0])
    b = 1 + noise + alphas
    expected = (b - np.sqrt(b**2 - 4 * alphas)) / 2
    result = sgd.bayes_optimal(teacher("linear", noise=noise), alphas)
    assert result.q.values[:, 0, 0] == pytest.approx(expected, abs=1e-8)
    assert result.attrs["error_quadrature"] < 1e-5


@pytest.mark.parametrize("activation", ["abs", "relu", "square"])
def test_nodes_of_small_noise_agree_with_one_grid(activation, monkeypatch):
    with jax.enable_x64(True):
        channel = channel_of(setup_of(teacher(activation, noise=0.05)).likelihood, 1.0)
        for q in (0.2, 0.9):
            monkeypatch.setattr("sgdynamics.statics.channel.LARGEST_GRID", 1e9)
            grid = channel.information(q)
            monkeypatch.setattr("sgdynamics.statics.channel.LARGEST_GRID", 0.0)
            own = channel.information(q)
            assert pytest.approx(grid.J, rel=1e-7) == own.J
            assert own.psi == pytest.approx(grid.psi, abs=1e-8)


def test_error_of_labels_that_switch_away_from_zero():
    """Logistic labels of z + 0.7: the error is E min(Z, 1 - Z), with a bend where Z = 1/2."""
    law = sgd.labels.logistic(3.0)
    problem = sgd.MultiIndex(lambda z: z[0] + 0.7, directions=1, width=1, labels=law)
    result = sgd.bayes_optimal(problem, [2.0])
    q = result.q.item()
    om = np.linspace(-8, 8, 8001) * np.sqrt(q)
    eta = np.linspace(-8, 8, 801)
    inner = np.exp(-(eta**2) / 2)
    inner /= inner.sum()
    Z = 1 / (1 + np.exp(-3 * (om[:, None] + np.sqrt(1 - q) * eta + 0.7))) @ inner
    weights = np.exp(-(om**2) / (2 * q))
    expected = weights @ np.minimum(Z, 1 - Z) / weights.sum()
    assert result.error.item() == pytest.approx(expected, abs=2e-6)
    switch = channel_of(setup_of(problem).likelihood, 1.0)._switches(q)
    assert switch == pytest.approx([-0.7], abs=1e-8)


def test_a_committee_that_is_known_too_well_is_rejected():
    with pytest.raises(ValueError, match=r"samples_per_dimension = 1000.*Use fewer"):
        sgd.bayes_optimal(COMMITTEE, [2.0, 1000.0])


@pytest.mark.slow
def test_committee_in_covariance_blocks():
    """A function of z1 + z2 has the overlap of one signal; its sign committee specialises."""
    blocks = sgd.MultiIndex(lambda z: z[0] + z[1], directions=2, noise=0.4, covariance=BLOCKS)
    single = sgd.MultiIndex(
        lambda z: jnp.sqrt(2.0) * z[0], directions=1, noise=0.4, covariance=BLOCKS
    )
    expected = sgd.bayes_optimal(single, [2.0])
    result = sgd.bayes_optimal(blocks, [2.0])
    direction = np.ones(2) / np.sqrt(2)
    overlap = direction @ result.q.values[0] @ direction
    assert overlap == pytest.approx(expected.q.item(), rel=1e-3)
    assert result.excess_risk.item() == pytest.approx(expected.excess_risk.item(), rel=2e-3)
    # linear labels: the floor is the best ridge regression
    ridge = sgd.erm(single, [2.0], weight_decay="best", loss="squared")
    assert expected.excess_risk.item() == pytest.approx(ridge.excess_risk.item(), rel=1e-8)


@pytest.mark.slow
def test_sign_committee_in_covariance_blocks_specialises_earlier():
    """Blocks lower the threshold of weak recovery, here from 2.0524 to 1.5627 samples/d."""
    problem = COMMITTEE.replace(covariance=BLOCKS)
    threshold = sgd.weak_recovery(problem).samples_per_dimension[1]
    result = sgd.bayes_optimal(problem, [0.95 * threshold, 1.05 * threshold])
    minus = result.q.values[:, 0, 0] - result.q.values[:, 0, 1]
    assert minus[0] == pytest.approx(0.0, abs=1e-5)
    assert minus[1] > 0.01
    assert result.attrs["error_quadrature"] < 1e-4


@pytest.mark.slow
def test_linear_labels_of_three_signals_are_ridge_regression():
    problem = sgd.MultiIndex(lambda z: z[0] + 2 * z[1] - z[2], directions=3, noise=0.5)
    result = sgd.bayes_optimal(problem, [1.5])
    alpha, noise = 1.5, 0.5 / 6
    b = 1 + noise + alpha
    q = (b - np.sqrt(b**2 - 4 * alpha)) / 2
    direction = np.array([1.0, 2.0, -1.0]) / np.sqrt(6)
    assert direction @ result.q.values[0] @ direction == pytest.approx(q, rel=2e-3)
    assert np.trace(result.q.values[0]) == pytest.approx(q, rel=2e-3)
    assert result.excess_risk.item() == pytest.approx(3 * (1 - q), rel=1e-2)


@pytest.mark.slow
def test_three_signals_that_add_up_are_one():
    single = sgd.MultiIndex(lambda z: jnp.tanh(z[0]), directions=1, noise=0.3)
    three = sgd.MultiIndex(
        lambda z: jnp.tanh((z[0] + z[1] + z[2]) / jnp.sqrt(3.0)), directions=3, noise=0.3
    )
    expected, result = sgd.bayes_optimal(single, [1.0]), sgd.bayes_optimal(three, [1.0])
    direction = np.ones(3) / np.sqrt(3)
    overlap = direction @ result.q.values[0] @ direction
    assert overlap == pytest.approx(expected.q.item(), rel=0.01)
    assert result.excess_risk.item() == pytest.approx(expected.excess_risk.item(), rel=0.01)
