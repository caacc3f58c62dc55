"""The SDE: its covariance by Wick, grid and sampling; one step in mean and covariance; paths against the exact chain."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.sde import scheme
from sgdynamics.solvers import functional
from tests.conftest import Z

M2 = np.array([[0.3], [-0.2]])
Q2 = np.array([[1.0, 0.4], [0.4, 1.0]])


def phase(p=2, noise=0.1, **more):
    return sgd.TeacherStudent(width=p, activation="square", noise=noise, **more)


def test_covariance_of_width_one_is_the_corrected_62():
    problem = phase(1, 0.5)
    found = sgd.increment_covariance(
        problem, sgd.OnePassSGD(lr=0.05), sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    )
    assert found.names == ("M11", "Q11")
    assert found.method == "wick"
    np.testing.assert_allclose(
        found.covariance, [[61.7648, 97.88328], [97.88328, 473.2344512]], rtol=1e-9
    )
    np.testing.assert_allclose(
        found.covariance, sgd.papers.escaping_mediocrity.covariance_p1(0.3, 0.05, 0.5), rtol=1e-12
    )


@pytest.mark.parametrize(
    "more",
    [{"head": "trained"}, {"constraint": "sphere"}, {"teacher_width": 2, "weight_decay": 0.1}],
)
def test_wick_against_the_exact_grid_and_sampling(more):
    a = [0.9, 1.2]
    found = []
    for activation in ("square", sgd.polynomial([0, 0, 1]), sgd.Activation(lambda x: x * x)):
        problem = sgd.TeacherStudent(width=2, activation=activation, noise=0.3, **more)
        M = M2 if problem.signals == 1 else np.hstack([M2, 0.1 + M2])
        found.append(
            sgd.increment_covariance(
                problem,
                sgd.OnePassSGD(lr=0.2, batch=2, head_rate=0.5),
                sgd.start(problem, M=M, Q=Q2, a=a),
            )
        )
    wick, grid, sampled = found
    assert [one.method for one in found] == ["wick", "exact grid", "sampled"]
    np.testing.assert_allclose(grid.covariance, wick.covariance, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(grid.mean, wick.mean, rtol=1e-11, atol=1e-12)
    # eight replicates: a t variable with 7 degrees of freedom is beyond 25 once in 4e7
    assert np.all(
        np.abs(sampled.covariance - wick.covariance) <= 25 * sampled.standard_error + 1e-9
    )
    assert np.abs(sampled.covariance - wick.covariance).max() < 0.03 * np.abs(wick.covariance).max()
    with jax.enable_x64(True):
        drift = jax.jit(partial(functional.drift, problem.structure, flow=True))(
            problem.parameters, functional.state(sgd.start(problem, M=M, Q=Q2, a=a))
        )
    assert np.linalg.eigvalsh(wick.covariance).min() > -1e-9 * np.abs(wick.covariance).max()
    if "weight_decay" not in more and "constraint" not in more:
        np.testing.assert_allclose(wick.mean[:2], np.asarray(drift["M"]).ravel(), rtol=1e-9)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _steps(
    structure, quadrature, higher_order, nodes, parameters, algorithm, numbers, state, length, keys
):
    def one(key):
        path = scheme.sde_step(
            structure,
            quadrature,
            higher_order,
            nodes,
            parameters,
            algorithm,
            numbers,
            state,
            length,
            key,
        )
        M, Q = scheme._overlaps(structure, parameters, path.rows)
        return {"M": M, "Q": Q}

    return jax.lax.map(one, keys, batch_size=1000)


def one_steps(problem, begin, dimension, length, count, higher_order, lr):
    """Increments of (M, Q upper) over one step of the scheme from one start, many times."""
    with jax.enable_x64(True):
        paths = scheme.SdePaths(
            problem,
            sgd.OnePassSGD(lr=lr),
            begin,
            dimension,
            problem.block_dimensions(dimension),
            higher_order,
        )
        state = scheme.SdeState(*(part[0] for part in paths.initial(np.array([0]))))
        numbers = (
            paths.nodes,
            paths.parameters,
            paths.algorithm,
            {**paths.rates, "noise_rate": np.float64(lr)},
        )
        after = _steps(
            paths.structure,
            paths.quadrature,
            higher_order,
            *numbers,
            state,
            length,
            jax.random.split(jax.random.key(5), count),
        )
        return flat(after) - flat({"M": begin.M_blocks, "Q": begin.Q_blocks})


def flat(state):
    """M and Q's upper triangle of one block as a vector."""
    M, Q = np.asarray(state["M"])[..., 0, :, :], np.asarray(state["Q"])[..., 0, :, :]
    return np.concatenate(
        [M.reshape(*M.shape[:-2], -1), Q[(..., *np.triu_indices(Q.shape[-1]))]], axis=-1
    )


@pytest.mark.parametrize(
    "sphere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["free", "sphere"]
)
@pytest.mark.runs_long
def test_one_step_has_the_mean_of_the_drift_and_the_covariance_of_a_sample(sphere):
    """The mean at d = 10, where the drift of relative order 1/d shows, with and without it; erf, whose gradients have light tails."""
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.3, constraint="sphere" if sphere else None
    )
    begin = sgd.start(problem, M=M2, Q=Q2)
    lr, d, count = 2.0, 10, 60_000
    length = (
        0.1 * lr / d
    )  # short: what is of second order in the length stays below 1e-2 of the rates
    with jax.enable_x64(True):
        state = functional.state(begin)
        finite = functional.finite(problem, d)
        drift = jax.jit(partial(functional.drift, problem.structure, problem.parameters, lr=lr))
        rates = {True: flat(drift(state, finite=finite)), False: flat(drift(state))}
    steps = {}
    for higher_order, rate in rates.items():
        moved = steps[higher_order] = one_steps(problem, begin, d, length, count, higher_order, lr)
        error = moved.std(axis=0, ddof=1) / np.sqrt(count)
        gap = np.abs(moved.mean(axis=0) - rate * length)
        assert np.all(gap <= Z * error + 0.01 * np.abs(rate).max() * length), (
            higher_order,
            gap / error,
        )
    # same random numbers: the noise cancels in the difference, which must be that of the two drifts
    apart = steps[True] - steps[False]
    error = apart.std(axis=0, ddof=1) / np.sqrt(count)
    shift = (rates[True] - rates[False]) * length
    gap = np.abs(apart.mean(axis=0) - shift)
    assert np.all(gap <= Z * error + 0.1 * np.abs(shift).max()), (gap, error, shift)
    assert np.any(np.abs(shift) > 3 * (Z * error + 0.1 * np.abs(shift).max()))
    expected = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=lr), begin).covariance
    moved = one_steps(problem, begin, 10_000, length, count, True, lr)
    unit = length * lr / 10_000
    centred = moved - moved.mean(axis=0)
    spread = (centred[:, :, None] * centred[:, None, :]).std(axis=0) / np.sqrt(count) / unit
    assert np.all(
        np.abs(np.cov(moved.T) / unit - expected) <= Z * spread + 0.01 * np.abs(expected).max()
    )


@pytest.mark.slow  # the contracts hold mean and spread of paths of each kind, in the fast set
def test_paths_have_mean_and_spread_of_the_exact_chain():
    """Phase retrieval at d = 1000, width 2: means within errors, standard deviations within 20% (their sampling error is 4%)."""
    problem = phase(2, 0.1)
    begin = sgd.start(problem, M=0.5 * M2, Q=Q2)
    setting = {"times": [0.5, 1.0], "dimension": 1000, "runs": 400}
    algorithm = sgd.OnePassSGD(lr=0.1)
    paths = sgd.solve_sde(problem, algorithm, begin, seed=1, **setting)
    chain = sgd.simulate(problem, algorithm, begin, seed=2, **setting)
    assert paths.attrs["error_integrator"] < 2e-3
    for name in ("M", "Q", "risk"):
        one, other = (np.asarray(result[name]).reshape(400, 2, -1) for result in (paths, chain))
        error = np.sqrt((one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / 400)
        assert np.all(
            np.abs(one.mean(axis=0) - other.mean(axis=0))
            <= Z * error + 2e-3 * np.abs(other.mean(axis=0))
        ), name
        ratio = one.std(axis=0) / other.std(axis=0)
        assert np.all(np.abs(np.log(ratio)) < np.log(1.2)), (name, ratio)
    # the spread is many times what the steps miss: it could not be theirs
    assert np.asarray(paths["risk"]).std(axis=0).min() > 20 * paths.attrs[
        "error_integrator"
    ] * float(chain.risk.mean("run").min())


@pytest.mark.slow
def test_no_step_goes_across_the_edge_of_a_piece():
    """A rate that falls at alpha = .3: with steps of 1/64 across it, overlaps were off by .4%, and the error told knew nothing of it."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    begin, lr = sgd.start(problem, M=[[0.0]], Q=[[1.0]]), sgd.piecewise_rate([0.3], [3.0, 1.0])
    changing = problem.replace(noise=sgd.piecewise_rate([0.3], [20.0, 0.0]))
    for asked in ((problem, sgd.OnePassSGD(lr=lr)), (changing, sgd.OnePassSGD(lr=1.0))):
        path = sgd.solve_sde(*asked, begin, alpha=[0.2, 1.0], dimension=10**12, runs=1)
        theory = sgd.solve_ode(*asked, begin, alpha=[0.2, 1.0])
        for name in ("M", "Q"):
            np.testing.assert_allclose(path[name], theory[name], rtol=1e-3)


def test_positive_at_singular_overlaps_and_any_seed():
    """Rows in the span of the teacher, and equal rows: nothing is clipped, and no path leaves the positive matrices."""
    problem = phase(2, 0.5)
    algorithm = sgd.OnePassSGD(lr=0.2)
    for M, Q in (
        ([[0.5], [0.5]], np.full((2, 2), 0.25)),
        ([[0.3], [0.3]], np.full((2, 2), 1.0)),
        ([[0.0], [0.0]], np.zeros((2, 2))),
    ):
        result = sgd.solve_sde(
            problem,
            algorithm,
            sgd.start(problem, M=M, Q=Q),
            times=[0.2, 0.4],
            dimension=200,
            runs=50,
            step=0.01,
        )
        M, Q = np.asarray(result.M), np.asarray(result.Q)
        omega = np.block([[Q, M], [np.swapaxes(M, -1, -2), np.ones((50, 2, 1, 1))]])
        assert np.linalg.eigvalsh(omega).min() > -1e-9
    # the last has no signal and no weights: every gradient is zero, and so is the noise
    np.testing.assert_array_equal(Q, 0.0)


def test_runs_do_not_depend_on_how_many_there_are_and_bad_input():
    problem = phase(2, 0.5)
    begin = sgd.start(problem, M=M2, Q=Q2)
    setting = {"times": [0.2, 0.4], "dimension": 200, "step": 0.01}
    few, many = (
        sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.2), begin, runs=runs, seed=3, **setting)
        for runs in (3, 50)
    )
    np.testing.assert_allclose(few.Q, many.Q[:3], rtol=1e-12)
    assert few.attrs["method"] == "solve_sde"
    assert list(few.Q.dims) == ["run", "time", "unit", "unit_other"]
    with pytest.raises(ValueError, match=r"lr = 0\.0"):
        sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.0), begin, **setting)
    with pytest.raises(ValueError, match="step"):
        sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.2), begin, times=[1.0], dimension=200, step=-1.0)
    with pytest.raises(ValueError, match="dimension"):
        sgd.solve_sde(problem, sgd.OnePassSGD(lr=0.2), begin, times=[1.0], dimension=2)
