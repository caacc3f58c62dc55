"""The scheme of the SDE: mean and covariance of one step, and paths against the exact chain."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.sde.drift import SdeState, state_overlaps
from sgdynamics.sde.paths import SdePaths
from sgdynamics.sde.scheme import sde_step
from sgdynamics.simulation.running import RunSetting
from sgdynamics.solvers import functional
from tests.conftest import Z

M0 = np.array([[0.3], [-0.2]])
Q0 = np.array([[1.0, 0.4], [0.4, 1.0]])


def phase_retrieval(noise=0.1):
    return sgd.TeacherStudent(width=2, activation="square", noise=noise)


@partial(jax.jit, static_argnums=(0, 1, 2))
def overlaps_after_one_step(
    structure, quadrature, higher_order, nodes, parameters, algorithm, rates, state, length, keys
):
    """M and Q after one step from the same state, once for each key."""
    step = partial(
        sde_step, structure, quadrature, higher_order, nodes, parameters, algorithm, rates
    )

    def overlaps(key):
        path = step(state, length, key)
        M, Q = state_overlaps(structure, parameters, path.rows)
        return {"M": M, "Q": Q}

    return jax.lax.map(overlaps, keys, batch_size=1000)


def increments_of_one_step(problem, start, dimension, length, count, higher_order, lr):
    """Increments of M and Q (upper triangle) in independent steps from one start."""
    sizes = problem.block_dimensions(dimension)
    with jax.enable_x64(True):
        paths = SdePaths(
            problem, sgd.OnePassSGD(lr=lr), RunSetting(start, dimension, sizes), higher_order
        )
        state = SdeState(*(leaf[0] for leaf in paths.initial(np.array([0]))))
        after = overlaps_after_one_step(
            paths.structure,
            paths.quadrature,
            higher_order,
            paths.nodes,
            paths.parameters,
            paths.algorithm,
            {**paths.rates, "noise_rate": np.float64(lr)},
            state,
            length,
            jax.random.split(jax.random.key(5), count),
        )
        return flatten(after) - flatten({"M": start.M_blocks, "Q": start.Q_blocks})


def flatten(state):
    """M and the upper triangle of Q of a single block as a vector."""
    M, Q = np.asarray(state["M"])[..., 0, :, :], np.asarray(state["Q"])[..., 0, :, :]
    upper = Q[(..., *np.triu_indices(Q.shape[-1]))]
    return np.concatenate([M.reshape(*M.shape[:-2], -1), upper], axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sphere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["free", "sphere"]
)
@pytest.mark.runs_long
def test_one_step_has_the_mean_of_the_drift_and_the_covariance_of_a_sample(sphere):
    """The means with and without the drift of relative order 1/d, at d = 10 where it matters.

    The activation is erf, whose gradients have light tails.
    """
    constraint = "sphere" if sphere else None
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.3, constraint=constraint)
    start = sgd.start(problem, M=M0, Q=Q0)
    lr, d, count = 2.0, 10, 60_000
    # So short that terms of second order in the length are below 1e-2 of the rates.
    length = 0.1 * lr / d
    with jax.enable_x64(True):
        state = functional.state(start)
        finite = functional.finite(problem, d)
        drift = jax.jit(partial(functional.drift, problem.structure, problem.parameters, lr=lr))
        rates = {True: flatten(drift(state, finite=finite)), False: flatten(drift(state))}
    increments = {}
    for higher_order, rate in rates.items():
        increments[higher_order] = increments_of_one_step(
            problem, start, d, length, count, higher_order, lr
        )
        error = increments[higher_order].std(axis=0, ddof=1) / np.sqrt(count)
        gap = np.abs(increments[higher_order].mean(axis=0) - rate * length)
        allowed = Z * error + 0.01 * np.abs(rate).max() * length
        assert np.all(gap <= allowed), (higher_order, gap / error)
    # Both use the same random numbers: the noise cancels in the difference, which must be that of
    # the two drifts.
    differences = increments[True] - increments[False]
    error = differences.std(axis=0, ddof=1) / np.sqrt(count)
    shift = (rates[True] - rates[False]) * length
    gap = np.abs(differences.mean(axis=0) - shift)
    allowed = Z * error + 0.1 * np.abs(shift).max()
    assert np.all(gap <= allowed), (gap, error, shift)
    assert np.any(np.abs(shift) > 3 * allowed)
    # The covariance of the noise, in units of length lr/d.
    expected = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=lr), start).covariance
    samples = increments_of_one_step(problem, start, 10_000, length, count, True, lr)
    unit = length * lr / 10_000
    centred = samples - samples.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(count) / unit
    gap = np.abs(np.cov(samples.T) / unit - expected)
    assert np.all(gap <= Z * error + 0.01 * np.abs(expected).max())


@pytest.mark.slow  # fast tests of mean and spread for each kind: tests/contracts
def test_paths_have_mean_and_spread_of_the_exact_chain():
    """Phase retrieval at d = 1000: means within errors, standard deviations within 20%.

    The sampling error of the standard deviations is 4%.
    """
    problem = phase_retrieval()
    start = sgd.start(problem, M=0.5 * M0, Q=Q0)
    options = {"times": [0.5, 1.0], "dimension": 1000, "runs": 400}
    algorithm = sgd.OnePassSGD(lr=0.1)
    paths = sgd.solve_sde(problem, algorithm, start, seed=1, **options)
    chain = sgd.simulate(problem, algorithm, start, seed=2, **options)
    assert paths.attrs["error_integrator"] < 2e-3
    for name in ("M", "Q", "risk"):
        sde, exact = (np.asarray(result[name]).reshape(400, 2, -1) for result in (paths, chain))
        error = np.sqrt((sde.var(axis=0, ddof=1) + exact.var(axis=0, ddof=1)) / 400)
        gap = np.abs(sde.mean(axis=0) - exact.mean(axis=0))
        assert np.all(gap <= Z * error + 2e-3 * np.abs(exact.mean(axis=0))), name
        ratio = sde.std(axis=0) / exact.std(axis=0)
        assert np.all(np.abs(np.log(ratio)) < np.log(1.2)), (name, ratio)
    # The spread is much larger than the error of the steps, which therefore cannot cause it.
    step_error = paths.attrs["error_integrator"] * float(chain.risk.mean("run").min())
    assert np.asarray(paths["risk"]).std(axis=0).min() > 20 * step_error


@pytest.mark.slow
def test_no_step_crosses_the_edge_of_a_piecewise_schedule():
    """A learning rate, and a label noise, that fall at alpha = 0.3.

    Steps of 1/64 across the edge would make errors of 0.4% in the overlaps, which the error
    estimate would not contain.
    """
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    start, lr = sgd.start(problem, M=[[0.0]], Q=[[1.0]]), sgd.piecewise_rate([0.3], [3.0, 1.0])
    changing = problem.replace(noise=sgd.piecewise_rate([0.3], [20.0, 0.0]))
    cases = ((problem, sgd.OnePassSGD(lr=lr)), (changing, sgd.OnePassSGD(lr=1.0)))
    for case in cases:
        path = sgd.solve_sde(*case, start, alpha=[0.2, 1.0], dimension=10**12, runs=1)
        theory = sgd.solve_ode(*case, start, alpha=[0.2, 1.0])
        for name in ("M", "Q"):
            np.testing.assert_allclose(path[name], theory[name], rtol=1e-3)


@pytest.mark.slow
def test_overlaps_stay_positive_from_singular_starts():
    """Rows in the span of the teacher, equal rows, and rows of length 0: no path needs clipping."""
    problem = phase_retrieval(noise=0.5)
    starts = (
        ([[0.5], [0.5]], np.full((2, 2), 0.25)),
        ([[0.3], [0.3]], np.full((2, 2), 1.0)),
        ([[0.0], [0.0]], np.zeros((2, 2))),
    )
    for M, Q in starts:
        result = sgd.solve_sde(
            problem,
            sgd.OnePassSGD(lr=0.2),
            sgd.start(problem, M=M, Q=Q),
            times=[0.2, 0.4],
            dimension=200,
            runs=50,
            step=0.01,
        )
        M, Q = np.asarray(result.M), np.asarray(result.Q)
        covariance = np.block([[Q, M], [np.swapaxes(M, -1, -2), np.ones((50, 2, 1, 1))]])
        assert np.linalg.eigvalsh(covariance).min() > -1e-9
    # The last start has no weights: every gradient is zero, and so is the noise.
    np.testing.assert_array_equal(Q, 0.0)


@pytest.mark.slow
def test_runs_do_not_depend_on_their_number_and_bad_input_is_named():
    problem = phase_retrieval(noise=0.5)
    start, algorithm = sgd.start(problem, M=M0, Q=Q0), sgd.OnePassSGD(lr=0.2)
    options = {"times": [0.2, 0.4], "dimension": 200, "step": 0.01}
    few, many = (
        sgd.solve_sde(problem, algorithm, start, runs=runs, seed=3, **options) for runs in (3, 50)
    )
    np.testing.assert_allclose(few.Q, many.Q[:3], rtol=1e-12)
    assert few.attrs["method"] == "solve_sde"
    assert list(few.Q.dims) == ["run", "time", "unit", "unit_other"]
    with pytest.raises(ValueError, match=r"lr = 0\.0"):
        sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.0), start, **options)
    with pytest.raises(ValueError, match="step"):
        sgd.solve_sde(problem, algorithm, start, times=[1.0], dimension=200, step=-1.0)
    with pytest.raises(ValueError, match="dimension"):
        sgd.solve_sde(problem, algorithm, start, times=[1.0], dimension=2)
