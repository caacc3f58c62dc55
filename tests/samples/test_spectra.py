"""Spectra as covariance: power laws, units of the step, reference values, records, bad input."""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.risk import choose_quadrature
from sgdynamics.ode.drift import drift, finite_dimension_inputs
from sgdynamics.solvers import ode
from tests.conftest import Z

SIZES = [1, 1, 3, 40]
EDGES = np.cumsum([0, *SIZES])
J = np.arange(1, 46)
SIGNAL = 1.3 * np.sqrt(2 / 45) * np.cos(1.7 * J)[None]
ROWS = np.sqrt(2 / 45) * np.cos(np.arange(1, 3)[:, None] * J + 2 * np.arange(1, 3)[:, None] ** 2)


def products_by_block(rows, other_rows, edges=EDGES):
    return np.array(
        [rows[:, low:high] @ other_rows[:, low:high].T for low, high in pairwise(edges)]
    )


def reference(**changes):
    """Return a problem of four blocks, of 1, 1, 3 and 40 coordinates, and its start."""
    spectrum = sgd.Spectrum([4.0, 2.0, 1.0, 0.3], SIZES, target=products_by_block(SIGNAL, SIGNAL))
    problem = sgd.TeacherStudent(
        **{"width": 2, "activation": "erf", "noise": 0.1, "covariance": spectrum, **changes}
    )
    return problem, sgd.start(
        problem, M=products_by_block(ROWS, SIGNAL), Q=products_by_block(ROWS, ROWS)
    )


@pytest.mark.parametrize(
    ("exponent", "dimension"), [(0.0, 300), (0.7, 10**6), (1.0, 10**6), (1.5, 5000)]
)
def test_sums_of_power_laws(exponent, dimension):
    """The trace and the squared signal in each block are sums over the coordinates j."""
    j = np.arange(1.0, dimension + 1)
    spectrum = sgd.power_law(exponent, dimension, target=0.4, raw=7, bins=20)
    assert spectrum.dimension == dimension
    np.testing.assert_allclose(spectrum.trace, np.sum(j**-exponent), rtol=1e-10)
    edges = np.concatenate([[0], np.cumsum(spectrum.multiplicities)])
    np.testing.assert_array_equal(spectrum.multiplicities[:7], 1)
    expected = [np.sum(j[low:high] ** -0.8) for low, high in pairwise(edges)]
    np.testing.assert_allclose(spectrum.target[:, 0, 0], expected, rtol=1e-10)


def test_large_and_infinite():
    np.testing.assert_allclose(sgd.power_law(1.2, 1e9).trace, 5.51233778, atol=5e-9)
    endless = sgd.power_law(1.5, math.inf, target=0.3)
    np.testing.assert_allclose(endless.trace, special.zeta(1.5), rtol=1e-12)
    np.testing.assert_allclose(
        endless.eigenvalues @ endless.target[:, 0, 0], special.zeta(2.1), rtol=3e-4
    )  # the error of the bins
    finer = sgd.power_law(1.5, math.inf, target=0.3, bins=4000)
    np.testing.assert_allclose(
        finer.eigenvalues @ finer.target[:, 0, 0], special.zeta(2.1), rtol=1e-7
    )
    assert endless.dimension == math.inf
    two_signals = sgd.power_law(1.5, 1e8, target=lambda j: np.stack([j**-0.3, 2 * j**-0.5]))
    np.testing.assert_allclose(
        two_signals.target[:, 0, 0], sgd.power_law(1.5, 1e8, target=0.3).target[:, 0, 0], rtol=1e-10
    )
    elementwise = sgd.power_law(1.5, 2000, target=lambda j: [j**-0.3, -1.0 if j % 2 else 1.0])
    assert abs(elementwise.target[-1, 0, 1]) < 0.06 * elementwise.target[-1, 0, 0]


def test_reference_values():
    """The risk and the mean of one step in each block agree with reference values."""
    problem, start = reference()
    algorithm = sgd.OnePassSGD(lr=1.5, per="trace").on(problem)
    quadrature = choose_quadrature(problem, start.Q_blocks, 1.0)
    with jax.enable_x64(True):
        nodes = {
            name: value[0]
            for name, value in expectation_of(problem.structure).nodes(quadrature, False).items()
        }
        state = {"M": start.M_blocks[0], "Q": start.Q_blocks[0], "a": start.a[0]}
        finite = finite_dimension_inputs(problem, None, 1)
        rates = jax.jit(partial(drift, problem.structure, quadrature, finite=finite))
        increments = rates(nodes, problem.parameters, algorithm.parameters, state)
    np.testing.assert_allclose(
        increments["M"][:, 0, 0], [-0.003923013, 0.031806902, 0.023572236, 0.088277997], atol=6e-10
    )
    np.testing.assert_allclose(
        increments["Q"][:, 0, 0], [-0.032342776, 0.042192546, 0.015817055, -0.007133268], atol=6e-10
    )
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.5, per="trace"), start, steps=[0])
    np.testing.assert_allclose(result.excess_risk[0, 0], 0.202476130969, atol=1e-12)


@pytest.mark.slow
def test_attributes_and_times_of_a_result():
    problem, start = reference()
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.5, per="trace"), start, steps=[0, 20])
    assert result.attrs["g_l1"] == pytest.approx(6 / 21)
    assert result.attrs["trace"] == pytest.approx(21.0)
    np.testing.assert_allclose(result.t[-1], 20 * 1.5 / 21)
    np.testing.assert_allclose(result.alpha[-1], 20 / 45)
    with pytest.raises(ValueError, match="start has overlaps of rank 2 or more in block 0"):
        sgd.simulate(problem, sgd.OnePassSGD(), sgd.start_from(result), steps=[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (0.0, [0.13143556307, 0.05615989833, 0.04636440462, 0.03396816035, 0.02432893939]),
        (0.5, [0.09679810444, 0.02131537548, 0.01553560550, 0.01053730731, 0.00816247415]),
    ],
)
def test_reference_values_of_a_network(power, expected):
    """The risk of erf units on 30 blocks of eigenvalues 1/j agrees with reference values."""
    d, j, i = 2000, np.arange(1, 2001), np.arange(1, 5)[:, None]
    eigenvalues = d / j / np.sum(1 / j)
    y = j**-power / np.sqrt(d if power == 0 else np.sum(eigenvalues * j ** (-2 * power)))
    S, W = np.stack([y, (-1.0) ** j * y]), np.sqrt(2 / d) * np.cos(i * j + 2 * i**2)
    edges = np.concatenate([np.arange(10), np.unique(np.round(np.geomspace(10, d, 21)))]).astype(
        int
    )
    means = np.add.reduceat(eigenvalues, edges[:-1]) / np.diff(edges)
    spectrum = sgd.Spectrum(means, np.diff(edges), target=products_by_block(S, S, edges))
    problem = sgd.TeacherStudent(
        width=4, teacher_width=2, activation="erf", noise=1e-3, covariance=spectrum
    )
    start = sgd.start(problem, M=products_by_block(W, S, edges), Q=products_by_block(W, W, edges))
    result = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=1.0, per="trace"), start, times=[0, 1, 2, 5, 10]
    )
    np.testing.assert_allclose(result.excess_risk[0], expected, atol=6e-11)


def test_units_of_the_step():
    """A learning rate in three units is the same step."""
    problem, _ = reference()
    algorithms = [
        sgd.OnePassSGD(lr=4.5),
        sgd.OnePassSGD(lr=2.1, per="trace"),
        sgd.OnePassSGD(lr=0.1, per="step"),
    ]
    np.testing.assert_allclose([algorithm.on(problem).lr for algorithm in algorithms], 4.5)
    assert [algorithm.on(problem).describe() for algorithm in algorithms] == [
        algorithm.describe() for algorithm in algorithms
    ]
    # any covariance has a trace
    mixed = sgd.TeacherStudent(width=1, covariance=[(3.0, 0.5), (1.0, 0.5)])
    assert sgd.OnePassSGD(lr=0.2, per="trace").on(mixed).lr == pytest.approx(0.1)


@pytest.mark.slow
def test_units_of_schedules_and_updates():
    """Schedules and thresholds of updates do not depend on the unit of the learning rate.

    At infinite dimension a schedule is a function of the steps.
    """
    problem, start = reference()
    schedules = [
        sgd.OnePassSGD(lr=lambda alpha: 2.1 - alpha, per="trace"),
        sgd.OnePassSGD(lr=lambda alpha: 4.5 - alpha * 45 / 21),
    ]
    by_trace, by_dimension = (
        sgd.simulate(problem, algorithm, start, steps=[0, 9, 18]) for algorithm in schedules
    )
    np.testing.assert_allclose(by_trace.risk, by_dimension.risk, rtol=1e-9)
    np.testing.assert_allclose(by_trace.t, by_dimension.t)
    # thresholds of updates are in units of sqrt(D) too
    clips = [
        sgd.OnePassSGD(2.1, update=sgd.updates.clipped(0.1), per="trace"),
        sgd.OnePassSGD(4.5, update=sgd.updates.clipped(0.1 * (21 / 45) ** 0.5)),
    ]
    np.testing.assert_allclose(
        *(sgd.simulate(problem, by_trace, start, steps=[9]).risk for by_trace in clips), rtol=1e-9
    )
    endless = sgd.TeacherStudent(
        width=1,
        activation="linear",
        covariance=sgd.power_law(1.5, math.inf, target=0.3, raw=4, bins=4),
    )
    start = sgd.random_start(endless, per="trace")
    result = sgd.simulate(
        endless,
        sgd.OnePassSGD(lr=sgd.piecewise_rate([8.0], [0.3, 0.1]), per="step"),
        start,
        steps=[8, 16],
    )
    np.testing.assert_allclose(result.t, [2.4, 3.2])
    assert "alpha" not in result.coords


def test_infinite_is_the_limit_of_large():
    """The risk at d = 1e14 agrees with that at infinite d, for the same random rows.

    The two differ by directions that no step reaches.
    """
    risks = []
    for dimension in (1e14, math.inf):
        spectrum = sgd.power_law(1.5, dimension, target=0.3, raw=10, bins=30)
        problem = sgd.TeacherStudent(width=1, activation="linear", covariance=spectrum)
        start = sgd.random_start(problem, per="trace", seed=2)
        risks.append(
            sgd.solve_linear(
                problem, sgd.OnePassSGD(lr=0.5, per="trace"), start, steps=[0, 10, 1000]
            ).risk.values
        )
    np.testing.assert_allclose(*risks, rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "narrow"),
    [("solve_linear", 160), pytest.param("solve_ode", 80, marks=pytest.mark.slow)],
)
def test_error_of_binning_is_true(solver, narrow):
    """The estimated error of the bins agrees with the difference to narrower bins."""

    def solve(bins, **options):
        problem = sgd.TeacherStudent(
            width=1,
            activation="linear",
            covariance=sgd.power_law(1.0, 10**5, target=0.25, raw=10, bins=bins),
        )
        zero = np.zeros((problem.spectrum.blocks, 1, 1))
        algorithm = sgd.OnePassSGD(lr=0.5, per="trace")
        return getattr(sgd, solver)(
            problem,
            algorithm,
            sgd.start(problem, M=zero, Q=zero),
            steps=[10, 1000, 10**5],
            **options,
        )

    coarse = solve(20)
    if solver == "solve_ode":
        assert solve(20, dimension=10**5).attrs["error_binning"] == pytest.approx(
            coarse.attrs["error_binning"], rel=0.1
        )
    off = float(np.abs(coarse.risk / solve(narrow).risk - 1).max())
    assert off == pytest.approx(coarse.attrs["error_binning"], rel=0.25)
    assert off > 1e-4


def test_a_few_directions_carry_the_noise():
    problem, start = reference()
    with pytest.warns(
        UserWarning, match=r"g l_1 = 0\.38 .*few directions carry the noise.*method=\"exact\""
    ):
        sgd.solve_ode(problem, sgd.OnePassSGD(lr=2.0, per="trace"), start, steps=[0])


@pytest.mark.parametrize(
    "spectrum",
    [
        sgd.Spectrum([2.0, 1.0], [1, 9], target=[0.5, 0.2]),
        sgd.power_law(1.2, 1000, target=0.3, raw=3, bins=5),
        sgd.power_law(1.2, math.inf, target=0.3, raw=3, bins=5),
        sgd.power_law(1.2, math.inf, target=lambda j: j**-0.4, raw=3, bins=5),
    ],
    ids=["spectrum", "power law", "infinite", "function"],
)
def test_records(spectrum):
    problem = sgd.TeacherStudent(width=1, activation="linear", covariance=spectrum)
    start = sgd.random_start(problem, per="trace")
    result = sgd.simulate(problem, sgd.OnePassSGD(lr=0.1, per="trace"), start, steps=[0, 2])
    restored = sgd.problem_of(result)
    assert restored == problem
    assert restored.spectrum.dimension == spectrum.dimension
    assert result.attrs["dimension"] == spectrum.dimension
    changed = problem.replace(noise=0.5)
    assert changed.spectrum.dimension == spectrum.dimension
    doubled = jax.tree.map(lambda leaf: leaf, problem)
    assert doubled == problem


BAD_INPUT = {
    "a negative eigenvalue": (
        lambda: sgd.Spectrum([1.0, -1.0], [1, 2]),
        r"eigenvalues = .*above 0",
    ),
    "multiplicities that are not whole": (
        lambda: sgd.Spectrum([1.0, 2.0], [1.5, 2]),
        r"multiplicities = .*whole numbers",
    ),
    "too few multiplicities": (
        lambda: sgd.Spectrum([1.0, 2.0], [1]),
        "there are 2 eigenvalues: give as many",
    ),
    "a target of other shape": (
        lambda: sgd.Spectrum([1.0, 2.0], [1, 2], target=[1.0, 2.0, 3.0]),
        "there are 2 blocks",
    ),
    "a target of large rank": (
        lambda: sgd.Spectrum([1.0, 2.0], [1, 2], target=np.stack([np.eye(2)] * 2)),
        "block 0 has 1 coordinates",
    ),
    "an infinite trace": (
        lambda: sgd.power_law(1.0, math.inf),
        "the trace of the inputs is infinite at exponent = 1",
    ),
    "an infinite target": (
        lambda: sgd.power_law(1.2, math.inf, target=-0.2),
        "the target has infinite variance",
    ),
    "a rough target": (
        lambda: sgd.power_law(1.0, 1e7, target=lambda j: np.sin(j)),
        "its sums become integrals",
    ),
    "a fraction of a dimension": (
        lambda: sgd.power_law(1.0, 10.5),
        "dimension = 10.5: give a whole number",
    ),
    "target and gram": (
        lambda: sgd.TeacherStudent(
            covariance=sgd.Spectrum([1.0], [9], target=[1.0]), teacher_gram=[[1.0]]
        ),
        "the spectrum has a target, which replaces it",
    ),
    "another number of signals": (
        lambda: sgd.TeacherStudent(
            teacher_width=2, covariance=sgd.Spectrum([1.0], [9], target=[1.0])
        ),
        "the problem has 2 signals",
    ),
    "another dimension": (
        lambda: sgd.random_start(
            sgd.TeacherStudent(covariance=sgd.Spectrum([1.0, 2.0], [9, 9])), dimension=20
        ),
        "dimension = 20: the spectrum of the inputs has 18 dimensions. Omit dimension",
    ),
    "no dimension": (
        lambda: sgd.random_start(sgd.TeacherStudent()),
        "dimension = None: give the dimension d",
    ),
    "steps without a dimension": (
        lambda: sgd.OnePassSGD(per="step").on(sgd.TeacherStudent()),
        "per = 'step': the problem does not fix the dimension. Set its covariance to sgd.Spectrum",
    ),
    "a unit that is none": (lambda: sgd.OnePassSGD(per="eigenvalue"), "per = 'eigenvalue'"),
    "rows over infinity": (
        lambda: sgd.random_start(
            sgd.TeacherStudent(covariance=sgd.power_law(2.0, math.inf, target=0.0))
        ),
        'the dimension is infinite. Use per="trace"',
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    call, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_infinite_dimension_raises_for_units_of_the_dimension():
    problem = sgd.TeacherStudent(
        width=1,
        activation="linear",
        covariance=sgd.power_law(2.0, math.inf, target=0.0, raw=3, bins=3),
    )
    start = sgd.random_start(problem, per="trace")
    with pytest.raises(
        ValueError,
        match=r'per = \'dimension\': the dimension is infinite. Use per="trace" or per="step"',
    ):
        sgd.solve_ode(problem, sgd.OnePassSGD(), start, times=[1.0])
    with pytest.raises(ValueError, match="samples/d is undefined"):
        sgd.solve_ode(problem, sgd.OnePassSGD(per="trace"), start, alpha=[1.0])


@pytest.mark.slow
def test_schedules_at_infinite_dimension_are_functions_of_steps():
    """Noise and decay that change after 30 steps equal two solutions one after the other.

    The record restores the problem.
    """
    pieces = {
        "noise": sgd.piecewise_rate([30.0], [4.0, 0.0]),
        "weight_decay": sgd.piecewise_rate([30.0], [0.0, 0.1]),
    }
    problem = sgd.TeacherStudent(
        width=1,
        activation="linear",
        covariance=sgd.power_law(2.0, math.inf, target=0.0, raw=3, bins=3),
        **pieces,
    )
    algorithm, start = sgd.OnePassSGD(lr=0.2, per="trace"), sgd.random_start(problem, per="trace")
    result = sgd.solve_ode(problem, algorithm, start, steps=[30, 60])
    assert sgd.problem_of(result) == problem
    plain = problem.replace(noise=4.0, weight_decay=0.0)
    first = sgd.solve_ode(plain, algorithm, start, steps=[30])
    np.testing.assert_allclose(result.Q_fields[:, 0], first.Q_fields[:, 0], rtol=1e-6)
    second = sgd.solve_ode(
        problem.replace(noise=0.0, weight_decay=0.1), algorithm, sgd.start_from(first), steps=[30]
    )
    np.testing.assert_allclose(result.Q_fields[:, 1], second.Q_fields[:, 0], rtol=1e-6)
    # At step 30 the noise is zero.
    np.testing.assert_allclose(result.excess_risk[:, 0], result.risk[:, 0])


def merge_bins(problem, start):
    """Return a problem and start whose neighbouring bins are merged in pairs."""
    spectrum = problem.spectrum
    first, blocks = spectrum.law["raw"], spectrum.blocks
    pairs = [[block] for block in range(first)] + [
        list(range(low, min(low + 2, blocks))) for low in range(first, blocks, 2)
    ]
    counts = np.array([spectrum.multiplicities[pair].sum() for pair in pairs])
    traces = np.array(
        [spectrum.multiplicities[pair] @ spectrum.eigenvalues[pair] for pair in pairs]
    )
    target = np.array([spectrum.target[pair].sum(axis=0) for pair in pairs])
    merged = problem.replace(covariance=sgd.Spectrum(traces / counts, counts, target=target))
    M, Q = (
        np.array([overlaps[0, pair].sum(axis=0) for pair in pairs])
        for overlaps in (start.M_blocks, start.Q_blocks)
    )
    return merged, sgd.start(merged, M=M, Q=Q)


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [
        "adam",
        pytest.param("sign", marks=pytest.mark.slow),
        pytest.param("plain", marks=pytest.mark.slow),
    ],
)
def test_error_of_binning_is_that_of_merged_bins(update):
    """The estimated error of the bins is a third of the difference to a spectrum of merged bins.

    This holds for every update. Coordinatewise updates need care, because their step in a block
    without coordinates is 0/0.
    """
    law = sgd.power_law(1.2, 40, target=0.5, raw=1, bins=3)
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1, covariance=law)
    updates = {
        "adam": sgd.updates.adam(memory=1.0, eps=0.02),
        "sign": sgd.updates.sign(),
        "plain": None,
    }
    algorithm = sgd.OnePassSGD(lr=0.3, update=updates[update], per="trace")
    start = sgd.random_start(problem, seed=3)
    result = sgd.solve_ode(problem, algorithm, start, steps=[0, 20])
    merged, merged_start = merge_bins(problem, start)
    merged_result = sgd.solve_ode(merged, algorithm, merged_start, steps=[0, 20])
    expected = float(np.abs((merged_result.risk / result.risk - 1) / 3).max())
    assert expected > 1e-4
    tolerance = 0.02 if update == "sign" else 1e-4  # points of a lattice have their own error
    assert result.attrs["error_binning"] == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("failure", ["raises", "is not finite"])
def test_a_failed_error_estimate_keeps_the_result(failure, monkeypatch):
    def fails(request):
        if failure == "raises":
            raise ValueError("no solution")
        return np.full((1, 2), np.nan)

    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=sgd.power_law(1.2, 40, target=0.5, raw=1, bins=3)
    )
    monkeypatch.setattr(ode, "risk_of_request", fails)
    with pytest.warns(UserWarning, match=r"error_binning = nan: this error could not be estimated"):
        result = sgd.solve_ode(
            problem,
            sgd.OnePassSGD(lr=0.3, per="trace"),
            sgd.random_start(problem, seed=3),
            steps=[0, 20],
        )
    assert np.isnan(result.attrs["error_binning"])
    assert np.all(np.isfinite(result.risk))
    assert result.attrs["error_integrator"] < 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a step removes g l_1", "ignore:expectations are known only")
def test_signs_on_a_power_law_of_many_blocks():
    """The ODE of sign SGD on 110 blocks is fast, and its risk agrees with direct runs.

    A joint frame of all blocks takes seconds; a frame for each block would take minutes. The
    tolerance of 5% is for the limit, whose error is of order 1/effective dimension.
    """
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, covariance=sgd.power_law(0.6, 1000, target=0.5)
    )
    assert problem.structure.blocks == 110
    start, algorithm = (
        sgd.random_start(problem, seed=1),
        sgd.OnePassSGD(lr=0.3, update=sgd.updates.sign(), per="trace"),
    )
    start_time = time.process_time()
    theory = sgd.solve_ode(problem, algorithm, start, steps=[0, 300])
    assert time.process_time() - start_time < 300
    runs = sgd.simulate(problem, algorithm, start, steps=[0, 300], runs=40, seed=2, method="direct")
    mean, error = runs.risk.mean("run").values, runs.risk.std("run", ddof=1).values / np.sqrt(40)
    assert np.all(np.abs(mean - theory.risk.values[0]) < Z * error + 0.05 * mean)
    assert theory.risk.values[0, 1] < 0.9 * theory.risk.values[0, 0]


def test_a_spectrum_is_printed_and_returned_as_stated():
    """Its representation is short, and the covariance of the problem is the same object."""
    law = sgd.power_law(1.2, 1000, target=0.5)
    assert repr(law) == "power_law(1.2, 1000, target=0.5)"
    assert repr(sgd.power_law(1.5, math.inf, raw=4, bins=6)) == "power_law(1.5, inf, raw=4, bins=6)"
    assert repr(sgd.Spectrum([2.0, 1.0], [1, 3])) == "Spectrum([2.0, 1.0], [1, 3])"
    assert repr(sgd.Spectrum(law.eigenvalues, law.multiplicities)).startswith(
        "Spectrum(110 blocks, dimension=1000, eigenvalues from 1 to "
    )
    problem = sgd.TeacherStudent(width=1, covariance=law)
    assert problem.covariance is law
    assert "covariance=power_law(1.2, 1000, target=0.5)" in repr(problem)
    assert sgd.TeacherStudent(width=1, covariance=[(2.0, 0.5), (1.0, 0.5)]).covariance == (
        (2.0, 0.5),
        (1.0, 0.5),
    )
    assert problem.replace(noise=0.2).covariance is law
