"""Certificates: right problems pass, wrong ones fail at the check that is about what is wrong."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis import certify as module
from sgdynamics.analysis.certify import _fit, _intercept, _law, _limit, _Theory, certify
from sgdynamics.analysis.real_data import DataGap, checked_samples, gap_on_data
from sgdynamics.dynamics import fields
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


def failed(certificate):
    return {check.name for check in certificate.checks if not check.passed}


@pytest.fixture(scope="module")
def good():
    return certify(PROBLEM, ALGORITHM, START, **SETTINGS)


def test_a_right_problem_passes(good):
    assert good.passed
    assert good.comparisons == 2 * (2 + 3)
    assert good.spread_slope_error < 0.1  # so that -1/2 is told from 0 and -1
    np.testing.assert_allclose(good.spread[:-1] / good.spread[1:], 2.0, rtol=0.15)
    assert good.error_quadrature < 1e-9
    assert good.error_integrator < 1e-6
    assert 0 < good.error_sampling < 0.01
    assert "passed" in str(good)
    for number in (
        f"{good.spread_slope:.3f}",
        f"{good.comparisons} comparisons",
        "d = 60, 240, 960",
        "400 runs",
        "0.001",
    ):
        assert number in good.paragraph
    assert "NOT" not in good.paragraph


def test_direct_runs_at_another_rate_fail(monkeypatch, good):
    """The chain is not what was simulated directly: both tests of the law say so, and nothing else."""

    def wrong(problem, algorithm, *rest):
        return DirectSGD(problem, replace(algorithm, lr=1.25 * algorithm.lr), *rest)

    monkeypatch.setattr(fields, "DirectSGD", wrong)
    found = certify(PROBLEM, ALGORITHM, START, **SETTINGS)
    assert not found.passed
    assert failed(found) == {"exact = direct: law", "exact = direct: means"}
    assert "DO NOT agree" in found.paragraph
    assert "FAIL" in str(found)
    assert found.spread_slope == good.spread_slope


def test_an_ode_at_another_rate_fails(monkeypatch):
    """The noise term of the ODE is 10% too large, alpha being the same: the means do not extrapolate to it."""

    def wrong(problem, algorithm, start, **when):
        return solve_ode(problem, replace(algorithm, lr=1.1 * algorithm.lr), start, **when)

    monkeypatch.setattr(module, "solve_ode", wrong)
    found = certify(PROBLEM, ALGORITHM, START, **SETTINGS)
    assert failed(found) == {"mean gap, d -> infinity"}
    assert "MORE than chance allows" in found.paragraph


@pytest.mark.slow
def test_updates_without_an_ode_are_tested_in_law():
    found = certify(
        PROBLEM, replace(ALGORITHM, update=sgd.updates.muon(beta=0.5)), START, **SETTINGS
    )
    assert found.passed
    assert found.dimensions == ()
    assert len(found.checks) == 2
    assert "has no ODE" in found.paragraph


@pytest.mark.slow
def test_updates_with_an_ode():
    """Momentum by the chain, sign SGD, which has none, by direct runs: both come to their ODEs."""
    found = certify(
        PROBLEM, replace(ALGORITHM, update=sgd.updates.momentum(memory=2.0)), START, **SETTINGS
    )
    assert found.passed
    assert len(found.checks) == 6
    found = certify(
        PROBLEM,
        replace(ALGORITHM, update=sgd.updates.sign()),
        START,
        **{**SETTINGS, "dimensions": (50, 100, 200)},
    )
    assert found.passed
    assert len(found.checks) == 4
    assert "no exact chain" in found.paragraph


def made(generator, dimensions, power=-0.5, shift=0.0, runs=300, count=4):
    """Runs that scatter like d^power around a theory of 0, with a mean gap shift + 2/d."""
    theory = _Theory([{"M": np.zeros((1, count))}], None, 0.0, 0.0, 0.0)
    chains = []
    for d in dimensions:
        noise = generator.standard_t(5, size=(runs, 1, count))  # heavier tails than SGD has
        chains.append(({"M": shift + 2.0 / d + (1 + 3.0 / d) * d**power * noise}, None))
    return chains, theory


def test_the_fits_find_the_exponent_and_the_limit():
    dimensions = (100, 400, 1600)
    begin = sgd.Start(np.zeros((1, 1, 1, 4)), np.ones((1, 1, 1, 1)), np.ones((1, 1)))
    generator = np.random.default_rng(3)
    for options, expected in (
        ({}, set()),
        ({"power": -0.25}, {"spread ~ d^s: s"}),
        ({"power": -0.75}, {"spread ~ d^s: s"}),
        ({"shift": 0.02}, {"mean gap, d -> infinity"}),
    ):
        chains, theory = made(generator, dimensions, **options)
        found, _ = _limit(dimensions, chains, theory, begin, 1e-4, 0)
        assert {check.name for check in found if not check.passed} == expected, (options, found)
    d = np.array(dimensions, dtype=float)
    slope, error = _fit(d, np.log(2 * d**-0.5) + 4 / d, np.full(3, 0.01))
    assert slope == pytest.approx(-0.5, abs=1e-3)  # log(1 + b/d) = b/d up to its square
    assert 0.01 < error < 0.03
    gap = np.stack([3 / d, 0.01 + 3 / d], axis=1)
    z = _intercept(d, gap, np.full((3, 2), 1e-3), np.zeros(2))
    assert abs(z[0]) < 1e-8
    assert z[1] > 5


def test_false_alarms_are_as_rare_as_promised():
    """200 pairs of samples of one law, with atoms and heavy tails, at level 0.1: about 10% at most may fail each test."""
    generator = np.random.default_rng(5)

    def sample():
        values = generator.standard_t(3, size=(200, 1, 6))
        values[..., 0] = 1.0 + 1e-15 * values[..., 0]
        values[..., 1] = np.maximum(values[..., 1], 0)
        return {"M": values}

    outcomes = np.array(
        [[check.passed for check in _law(sample(), sample(), 0.1)[0]] for _ in range(200)]
    )
    assert np.all((1 - outcomes.mean(axis=0)) < 0.1 + 4 * np.sqrt(0.1 * 0.9 / 200))
    shifted = {"M": sample()["M"] + np.array([0, 0, 0, 0, 0, 1.0])}
    assert not any(check.passed for check in _law(sample(), shifted, 1e-4)[0])
    gone = {
        "M": np.where(np.arange(200)[:, None, None] < 60, np.nan, sample()["M"])
    }  # runs that diverge in one of the two
    assert not _law(sample(), gone, 1e-4)[0][0].passed


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
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        certify(PROBLEM, ALGORITHM, START, **{**SETTINGS, **options})


def test_a_start_of_many_runs_or_another_kind_of_problem_is_refused():
    with pytest.raises(ValueError, match="give one run"):
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
    found = certify(PROBLEM, algorithm, START, **FIXED)
    assert found.passed, found
    assert found.theory == "DMFT"

    def wrong(problem, algorithm, *rest):
        return DirectFixedData(problem, replace(algorithm, lr=1.3 * algorithm.lr), *rest)

    monkeypatch.setattr(fields, "DirectFixedData", wrong)
    assert "exact = direct: law" in failed(certify(PROBLEM, algorithm, START, **FIXED))
    monkeypatch.undo()
    solve = module.solve_dmft
    monkeypatch.setattr(
        module, "solve_dmft", lambda p, a, s, **more: solve(p, replace(a, lr=1.3 * a.lr), s, **more)
    )
    assert failed(certify(PROBLEM, algorithm, START, **FIXED)) == {"mean gap, d -> infinity"}


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
    begin = sgd.start(
        problem,
        M=np.array([[0.3], [0.1]]) / norm[:, None],
        Q=rows / np.outer(norm, norm),
        a=[1.0, 0.7],
    )
    found = certify(problem, algorithm, begin, **settings)
    assert found.passed, found


def on_samples():
    """Elliptical samples of four inputs, and a linear student of their labels."""
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
def test_on_the_samples_themselves():
    """The repaired mean is that of SGD on elliptical samples; the certificate says so, and tests the law at the spectrum's dimension."""
    x, problem, begin = on_samples()
    found = sgd.certify(
        problem,
        sgd.OnePassSGD(lr=0.4, per="trace"),
        begin,
        steps=[2, 10, 50],
        runs=2000,
        data=x,
        progress=False,
    )
    assert found.passed
    assert found.dimension == 4
    assert found.dimensions == ()
    assert found.data.samples[0] > 3 * found.data.samples[-1]
    assert np.all(
        np.abs(found.data.theory - found.data.samples)
        <= 5 * found.data.error + 0.04 * found.data.samples
    )
    assert (
        "on the data set itself the Gaussian theory's risk is off by"
        in found.paragraph.lower().replace("gaussian", "Gaussian")
    )
    assert "theory/data - 1" in str(found)


@pytest.mark.filterwarnings("ignore:SGD on these samples", "ignore:a step feeds back")
@pytest.mark.parametrize(
    ("lr", "decay", "says"),
    [
        (
            30.0,
            0.0,
            "SGD has diverged by step 300, and the Gaussian theory does not stay finite at this lr either",
        ),
        (
            0.7,
            0.0,
            "the Gaussian theory does not stay finite at this lr; on the data set itself SGD has not diverged by step 300",
        ),
        (0.7, 0.5, "off by"),
    ],
    ids=["both", "theory", "neither"],
)
def test_what_diverges(lr, decay, says):
    """The mean that does not settle at lr = 0.7 is still finite at these steps; weight decay makes it settle."""
    x, problem, begin = on_samples()
    dynamics = dynamics_of(
        "certify", problem.replace(weight_decay=decay), sgd.OnePassSGD(lr=lr, per="trace")
    )
    found = gap_on_data(
        dynamics,
        dynamics.initial_state(begin),
        checked_samples(problem, x),
        np.array([2, 300]),
        5,
        0,
    )
    assert says in found.sentence
    assert found.settles == (decay > 0)
    assert np.all(np.isfinite(found.theory)) == (lr < 1)


def test_the_theory_is_blamed_where_it_settles():
    found = DataGap(np.array([2, 50]), np.ones(2), np.array([1.0, np.inf]), np.ones(2))
    assert (
        found.sentence
        == "on the data set itself SGD has diverged by step 50, which the Gaussian theory does not predict"
    )


@pytest.mark.filterwarnings("ignore:SGD on these samples")
def test_samples_that_are_refused():
    x, problem, begin = on_samples()
    algorithm = sgd.OnePassSGD(lr=0.4, per="trace")
    for data, said in (
        (x[:, :3], "taken from 4 inputs"),
        (np.full((3, 4), np.nan), "taken from 4 inputs"),
    ):
        with pytest.raises(ValueError, match=said):
            sgd.certify(problem, algorithm, begin, steps=[1], data=data)
    with pytest.raises(ValueError, match="a spectrum fixes the dimension"):
        sgd.certify(problem, algorithm, begin, steps=[1], dimensions=[10, 20, 40])
    plain = sgd.TeacherStudent(width=1)
    with pytest.raises(ValueError, match=r"covariance=sgd.spectrum_of\(data"):
        sgd.certify(
            plain, sgd.OnePassSGD(), sgd.start(plain, M=[[0.1]], Q=[[1.0]]), steps=[1], data=x
        )
