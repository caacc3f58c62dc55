"""Certificates: correct problems pass, and wrong ones fail the check of the wrong part."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis import certificate_runs
from sgdynamics.analysis.certificate_runs import Theory
from sgdynamics.analysis.certificate_statistics import (
    compare_laws,
    compare_with_theory,
    fit_exponent,
    intercept_scores,
)
from sgdynamics.analysis.certify import certify
from sgdynamics.analysis.real_data import DataGap, checked_samples, gap_on_data
from sgdynamics.dynamics import fields, fixed_data
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.solvers.ode import solve_ode

pytestmark = pytest.mark.runs_long

PROBLEM = sgd.TeacherStudent(width=2, activation="erf", noise=0.05)
START = sgd.start(PROBLEM, M=[[0.3], [0.1]], Q=[[1.0, 0.1], [0.1, 0.8]])
SETTINGS = {
    "alpha": [1.0, 3.0],
    "dimension": 30,
    "dimensions": (60, 240, 960),
    "runs": 400,
    "progress": False,
}
ALGORITHM = sgd.OnePassSGD(lr=1.5)


def failed_checks(certificate):
    """Names of the checks that a certificate failed."""
    return {check.name for check in certificate.checks if not check.passed}


@pytest.fixture(scope="module")
def correct():
    """The certificate of a correct problem."""
    return certify(PROBLEM, ALGORITHM, START, **SETTINGS)


def test_a_correct_problem_passes(correct):
    assert correct.passed
    assert correct.comparisons == 2 * (2 + 3)
    assert correct.spread_slope_error < 0.1  # small enough to distinguish -1/2 from 0 and -1
    np.testing.assert_allclose(correct.spread[:-1] / correct.spread[1:], 2.0, rtol=0.15)
    assert correct.error_quadrature < 1e-9
    assert correct.error_integrator < 1e-6
    assert 0 < correct.error_sampling < 0.01
    assert "passed" in str(correct)
    for text in (
        f"{correct.spread_slope:.3f}",
        f"{correct.comparisons} comparisons",
        "d = 60, 240, 960",
        "400 runs",
        "0.001",
    ):
        assert text in correct.paragraph
    assert "NOT" not in correct.paragraph


def test_direct_runs_at_another_rate_fail(monkeypatch, correct):
    """Direct runs with a larger learning rate fail both tests of the law, and no other test."""

    def faster_simulator(problem, algorithm, *arguments):
        return DirectSGD(problem, replace(algorithm, lr=1.25 * algorithm.lr), *arguments)

    monkeypatch.setattr(fields, "DirectSGD", faster_simulator)
    certificate = certify(PROBLEM, ALGORITHM, START, **SETTINGS)
    assert not certificate.passed
    assert failed_checks(certificate) == {"exact = direct: law", "exact = direct: means"}
    assert "DO NOT agree" in certificate.paragraph
    assert "FAIL" in str(certificate)
    assert certificate.spread_slope == correct.spread_slope


def test_an_ode_at_another_rate_fails(monkeypatch):
    """An ODE with a learning rate 10% too large, at the same alpha, fails the test of the means."""

    def solve_faster(problem, algorithm, start, **save_points):
        return solve_ode(problem, replace(algorithm, lr=1.1 * algorithm.lr), start, **save_points)

    monkeypatch.setattr(certificate_runs, "solve_ode", solve_faster)
    certificate = certify(PROBLEM, ALGORITHM, START, **SETTINGS)
    assert failed_checks(certificate) == {"mean gap, d -> infinity"}
    assert "MORE than chance allows" in certificate.paragraph


@pytest.mark.slow
def test_updates_without_an_ode_are_tested_in_law():
    certificate = certify(
        PROBLEM, replace(ALGORITHM, update=sgd.updates.muon(beta=0.5)), START, **SETTINGS
    )
    assert certificate.passed
    assert certificate.dimensions == ()
    assert len(certificate.checks) == 2
    assert "has no ODE" in certificate.paragraph


@pytest.mark.slow
def test_updates_with_an_ode():
    """Runs with momentum (exact chain) and sign SGD (direct runs only) approach their ODEs."""
    certificate = certify(
        PROBLEM, replace(ALGORITHM, update=sgd.updates.momentum(memory=2.0)), START, **SETTINGS
    )
    assert certificate.passed
    assert len(certificate.checks) == 6
    certificate = certify(
        PROBLEM,
        replace(ALGORITHM, update=sgd.updates.sign()),
        START,
        **{**SETTINGS, "dimensions": (50, 100, 200)},
    )
    assert certificate.passed
    assert len(certificate.checks) == 4
    assert "no exact chain" in certificate.paragraph


def synthetic_runs(generator, dimensions, power=-0.5, shift=0.0, runs=300, count=4):
    """Runs with a spread ~ d^power around a theory of 0, and with a mean of shift + 2/d."""
    theory = Theory([{"M": np.zeros((1, count))}], None, 0.0, 0.0, 0.0)
    runs_by_dimension = []
    for d in dimensions:
        noise = generator.standard_t(5, size=(runs, 1, count))  # heavier tails than SGD has
        overlaps = shift + 2.0 / d + (1 + 3.0 / d) * d**power * noise
        runs_by_dimension.append({"M": overlaps})
    return runs_by_dimension, theory


def test_the_fits_find_the_exponent_and_the_limit():
    dimensions = (100, 400, 1600)
    initial_state = sgd.Start(np.zeros((1, 1, 1, 4)), np.ones((1, 1, 1, 1)), np.ones((1, 1)))
    generator = np.random.default_rng(3)
    for options, expected in (
        ({}, set()),
        ({"power": -0.25}, {"spread ~ d^s: s"}),
        ({"power": -0.75}, {"spread ~ d^s: s"}),
        ({"shift": 0.02}, {"mean gap, d -> infinity"}),
    ):
        runs, theory = synthetic_runs(generator, dimensions, **options)
        checks, _ = compare_with_theory(dimensions, runs, theory, initial_state, 1e-4, 0)
        assert {check.name for check in checks if not check.passed} == expected, (options, checks)
    d = np.array(dimensions, dtype=float)
    slope, error = fit_exponent(d, np.log(2 * d**-0.5) + 4 / d, np.full(3, 0.01))
    assert slope == pytest.approx(-0.5, abs=1e-3)  # log(1 + b/d) = b/d up to its square
    assert 0.01 < error < 0.03
    gap = np.stack([3 / d, 0.01 + 3 / d], axis=1)
    z = intercept_scores(d, gap, np.full((3, 2), 1e-3), np.zeros(2))
    assert abs(z[0]) < 1e-8
    assert z[1] > 5


def test_false_alarms_are_as_rare_as_promised():
    """At level 0.1, at most about 10% of 200 pairs of samples of one law fail each test.

    The law has atoms and heavy tails.
    """
    generator = np.random.default_rng(5)

    def sample():
        values = generator.standard_t(3, size=(200, 1, 6))
        values[..., 0] = 1.0 + 1e-15 * values[..., 0]
        values[..., 1] = np.maximum(values[..., 1], 0)
        return {"M": values}

    outcomes = np.array(
        [[check.passed for check in compare_laws(sample(), sample(), 0.1)[0]] for _ in range(200)]
    )
    assert np.all((1 - outcomes.mean(axis=0)) < 0.1 + 4 * np.sqrt(0.1 * 0.9 / 200))
    shifted = {"M": sample()["M"] + np.array([0, 0, 0, 0, 0, 1.0])}
    assert not any(check.passed for check in compare_laws(sample(), shifted, 1e-4)[0])
    # 60 of the 200 runs diverge in one of the two samples
    is_diverged = np.arange(200)[:, None, None] < 60
    diverged = {"M": np.where(is_diverged, np.nan, sample()["M"])}
    assert not compare_laws(sample(), diverged, 1e-4)[0][0].passed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": (100, 400)}, "three increasing"),
        ({"dimensions": (100, 400, 400)}, "three increasing"),
        ({"dimension": 2}, "Use 3 or more"),
        ({"level": 1.0}, "level"),
        ({"runs": 3}, "runs"),
        ({"alpha": [1e-6]}, "later or fewer"),
        ({"times": [1.0]}, "exactly one"),
        ({"steps": [10]}, "exactly one"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        certify(PROBLEM, ALGORITHM, START, **{**SETTINGS, **options})


def test_unsupported_starts_and_algorithms_raise():
    with pytest.raises(ValueError, match="Use a start of one run"):
        certify(PROBLEM, ALGORITHM, sgd.random_start(PROBLEM, dimension=30, runs=2))
    with pytest.raises(ValueError, match="algorithm"):
        certify(PROBLEM, "SGD", START)
    with pytest.raises(ValueError, match="lr"):
        certify(PROBLEM, sgd.OnePassSGD(lr=0.0), START)


FIXED = {
    "steps": [2, 6],
    "dimension": 20,
    "dimensions": (20, 40, 80),
    "runs": 300,
    "progress": False,
    "paths": 4096,
}


@pytest.mark.slow
def test_a_fixed_data_set(monkeypatch):
    algorithm = sgd.GradientDescent(lr=0.8, samples_per_dimension=2.0)
    certificate = certify(PROBLEM, algorithm, START, **FIXED)
    assert certificate.passed, certificate
    assert certificate.theory == "DMFT"

    def faster_simulator(problem, algorithm, *arguments):
        return DirectFixedData(problem, replace(algorithm, lr=1.3 * algorithm.lr), *arguments)

    monkeypatch.setattr(fixed_data, "DirectFixedData", faster_simulator)
    assert "exact = direct: law" in failed_checks(certify(PROBLEM, algorithm, START, **FIXED))
    monkeypatch.undo()
    solve_dmft = certificate_runs.solve_dmft

    def solve_faster(problem, algorithm, start, **settings):
        return solve_dmft(problem, replace(algorithm, lr=1.3 * algorithm.lr), start, **settings)

    monkeypatch.setattr(certificate_runs, "solve_dmft", solve_faster)
    assert failed_checks(certify(PROBLEM, algorithm, START, **FIXED)) == {"mean gap, d -> infinity"}


def own_loss(fields, signals, head, noise_draw):
    return (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.1 * noise_draw) ** 2 / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["schedule", "batch, sphere", "own loss", "target", "mixture", "blocks", "langevin"]
)
def test_every_kind_of_problem(name):
    algorithm, settings = ALGORITHM, SETTINGS
    if name == "schedule":
        problem, algorithm = PROBLEM, sgd.OnePassSGD(lr=lambda alpha: 1.5 / (1 + alpha))
    elif name == "batch, sphere":
        problem, algorithm = (
            sgd.TeacherStudent(width=2, activation="erf", constraint="sphere"),
            sgd.OnePassSGD(lr=1.5, batch=3),
        )
    elif name == "own loss":
        problem = sgd.Problem(own_loss, width=2, signals=1)
    elif name == "target":
        problem = sgd.MultiIndex(
            lambda z: jnp.tanh(z[0]), directions=1, width=2, activation="relu", head="trained"
        )
    elif name == "mixture":
        problem = sgd.GaussianMixture("binary", width=2, snr=4.0)
    elif name == "blocks":
        problem = sgd.TeacherStudent(width=2, activation="erf", covariance=[(0.5, 0.5), (2.0, 0.5)])
    else:
        problem, settings = (
            sgd.TeacherStudent(width=2, activation="erf", covariance=[(0.5, 0.5), (2.0, 0.5)]),
            FIXED,
        )
        algorithm = sgd.Langevin(lr=0.5, samples_per_dimension=2.0, temperature=0.3)
    rows = np.array([[1.0, 0.1], [0.1, 0.8]])
    norm = np.sqrt(np.diag(rows)) if problem.constraint == "sphere" else np.ones(2)
    start = sgd.start(
        problem,
        M=np.array([[0.3], [0.1]]) / norm[:, None],
        Q=rows / np.outer(norm, norm),
        a=[1.0, 0.7],
    )
    certificate = certify(problem, algorithm, start, **settings)
    assert certificate.passed, certificate


def elliptical_samples():
    """Elliptical samples of four inputs, a linear student of their labels, and its start."""
    rng = np.random.default_rng(0)
    x = (
        np.sqrt(rng.choice([0.4, 1.6], size=2000))[:, None]
        * rng.standard_normal((2000, 4))
        * [2.0, 1.0, 0.5, 0.5]
    )
    spectrum = sgd.spectrum_of(x, x @ np.ones(4) + 0.3 * rng.standard_normal(2000))
    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=spectrum, noise=spectrum.noise
    )
    return x, problem, sgd.start(problem, M=np.zeros((4, 1, 1)), Q=np.zeros((4, 1, 1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:SGD on these samples")
def test_certificate_on_the_samples_themselves():
    """The theory, corrected by kappa of the data, is the mean of SGD on elliptical samples.

    The certificate reports this, and tests the law at the dimension of the spectrum.
    """
    x, problem, start = elliptical_samples()
    certificate = sgd.certify(
        problem,
        sgd.OnePassSGD(lr=0.4, per="trace"),
        start,
        steps=[2, 10, 50],
        runs=2000,
        data=x,
        progress=False,
    )
    assert certificate.passed
    assert certificate.dimension == 4
    assert certificate.dimensions == ()
    assert certificate.data.samples[0] > 3 * certificate.data.samples[-1]
    assert np.all(
        np.abs(certificate.data.theory - certificate.data.samples)
        <= 5 * certificate.data.error + 0.04 * certificate.data.samples
    )
    assert (
        "on the data set itself the Gaussian theory's risk is off by"
        in certificate.paragraph.lower().replace("gaussian", "Gaussian")
    )
    assert "theory/data - 1" in str(certificate)


@pytest.mark.filterwarnings("ignore:SGD on these samples", "ignore:a step feeds back")
@pytest.mark.parametrize(
    ("lr", "decay", "sentence"),
    [
        (
            30.0,
            0.0,
            "SGD has diverged by step 300, and the Gaussian theory does not stay finite at this lr "
            "either",
        ),
        (
            0.7,
            0.0,
            "the Gaussian theory does not stay finite at this lr; on the data set itself SGD has "
            "not diverged by step 300",
        ),
        (0.7, 0.5, "off by"),
    ],
    ids=["both", "theory", "neither"],
)
def test_the_report_names_what_diverges(lr, decay, sentence):
    """The mean of the theory grows at lr = 0.7, although it is still finite at these steps.

    Weight decay makes it converge.
    """
    x, problem, start = elliptical_samples()
    dynamics = dynamics_of(
        "certify", problem.replace(weight_decay=decay), sgd.OnePassSGD(lr=lr, per="trace")
    )
    gap = gap_on_data(
        dynamics,
        dynamics.initial_state(start),
        checked_samples(problem, x),
        np.array([2, 300]),
        5,
        0,
    )
    assert sentence in gap.sentence
    assert gap.settles == (decay > 0)
    assert np.all(np.isfinite(gap.theory)) == (lr < 1)


def test_a_divergence_that_the_theory_does_not_predict_is_reported():
    gap = DataGap(np.array([2, 50]), np.ones(2), np.array([1.0, np.inf]), np.ones(2))
    assert gap.sentence == (
        "on the data set itself SGD has diverged by step 50, which the Gaussian theory does not "
        "predict"
    )


@pytest.mark.filterwarnings("ignore:SGD on these samples")
def test_samples_of_another_problem_raise():
    x, problem, start = elliptical_samples()
    algorithm = sgd.OnePassSGD(lr=0.4, per="trace")
    for data, message in (
        (x[:, :3], "taken from 4 inputs"),
        (np.full((3, 4), np.nan), "taken from 4 inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.certify(problem, algorithm, start, steps=[1], data=data)
    with pytest.raises(ValueError, match="a spectrum fixes the dimension"):
        sgd.certify(problem, algorithm, start, steps=[1], dimensions=[10, 20, 40])
    plain = sgd.TeacherStudent(width=1)
    with pytest.raises(ValueError, match=r"covariance=sgd.spectrum_of\(data"):
        sgd.certify(
            plain, sgd.OnePassSGD(), sgd.start(plain, M=[[0.1]], Q=[[1.0]]), steps=[1], data=x
        )
