"""Gaussian mixtures: drift, chain, direct simulation, infinite snr, clusters of a user's loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run
from sgdynamics.solvers import functional
from tests.conftest import Z, same_law

V, MEAN, R = np.array([0.8, -0.5]), np.array([[0.3], [0.2]]), np.array([[0.5, 0.1], [0.1, 0.7]])
ALGORITHM = sgd.OnePassSGD(lr=1.0)


def binary(snr=2.0, **options):
    return sgd.GaussianMixture("binary", snr=snr, weight_decay=0.1, **options)


def reference_start(problem):
    return sgd.start(problem, M=MEAN, Q=R + MEAN @ MEAN.T, a=V)


def after_one_step(problem, d, seed, runs=40_000):
    """Return M, Q and a of many runs of the chain after one step.

    The risk is not recorded, because it would take longer than all other computations.
    """
    start = broadcast_runs(reference_start(problem), runs)
    states, _ = run(
        ExactChain(problem, ALGORITHM, RunSetting(start, d, problem.block_dimensions(d))),
        runs,
        np.array([1]),
        seed,
        "one step",
        False,
    )
    return {"M": states["M"][:, 0, 0], "Q": states["Q"][:, 0, 0], "a": states["a"][:, 0]}


def test_the_drift_of_the_binary_mixture_to_rounding():
    """The drift of (v, m, R) at snr 2 and weight decay 0.1 agrees with independent quadrature.

    The paper's variables are v = a and R = Q - M M^T, so that dR = dQ - dM M^T - M dM^T.
    """
    problem = binary()
    with jax.enable_x64(True):
        rate = jax.jit(
            lambda state: functional.drift(problem.structure, problem.parameters, state, lr=1.0)
        )(functional.state(reference_start(problem)))
    dm = np.asarray(rate["M"])[0]
    dR = np.asarray(rate["Q"])[0] - dm @ MEAN.T - MEAN @ dm.T
    drift = np.concatenate([rate["a"], dm[:, 0], dR[0], dR[1, 1:]])
    expected = [
        -0.02965458175922,
        0.10518103680571,
        0.15108651615837,
        -0.13688922455421,
        -0.09168398026461,
        -0.02006332192719,
        -0.13369180097985,
    ]
    assert np.allclose(drift, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_the_optimum_of_the_binary_mixture_is_a_stable_fixed_point():
    problem = binary(100.0)
    r = np.sqrt(sgd.papers.effective_dynamics.ring_radius("binary", 0.1))
    start = sgd.start(
        problem, M=[[r], [-r]], Q=r**2 * np.array([[1, -1], [-1, 1]]) + 1e-3 * np.eye(2), a=[r, -r]
    )
    (point,) = sgd.fixed_points(problem, ALGORITHM, starts=start, tries=0)
    assert np.allclose(np.abs(point.a), 1.173936869495, atol=1e-11)
    assert np.allclose(np.abs(point.M), 1.173943526005, atol=1e-11)
    assert np.allclose((point.Q - point.M @ point.M.T)[0, 0], 1.410230123587e-3, rtol=1e-9)
    assert point.stable
    assert point.manifold_dimension == 0


def cross_entropy(fields, signals, head, label):
    output = jnp.sum(head * jnp.where(fields > 0, fields, 0.0))
    return jax.nn.softplus(output) - label * output


@pytest.mark.slow
def test_own_clusters_agree_with_the_built_in_mixture():
    """Sampled expectations of a user's loss agree with the quadrature of `GaussianMixture`.

    The moments include the correction at finite d.
    """
    problem = binary()
    clusters = [(0.5, [1.0], 1.0), (0.5, [-1.0], 0.0)]
    own = sgd.Problem(
        cross_entropy,
        2,
        1,
        head="trained",
        weight_decay=0.1,
        covariance=[(0.5, 1.0)],
        clusters=clusters,
        kinks=[0.0],
    )
    start = reference_start(problem)
    results = []
    for mixture in (problem, own):
        quadrature = Quadrature(log2_circles=12)
        nodes = expectation_of(mixture.structure).nodes(quadrature, False)
        with jax.enable_x64(True):

            @jax.jit
            def replicate_moments(nodes, mixture=mixture, quadrature=quadrature):
                state = functional.state(start)
                overlaps = overlaps_at(mixture.structure, mixture.parameters, state)

                def moments_at(node):
                    return expectation_of(mixture.structure).moments(
                        quadrature, node, mixture.parameters, overlaps, state["a"], finite=True
                    )

                return jax.vmap(moments_at)(nodes)

            results.append(jax.tree.map(np.asarray, replicate_moments(nodes)))
    exact, sampled = results
    for name in ("stein", "noise", "norms", "head_gradient", "risk", "shift"):
        values = getattr(sampled, name)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        gap = np.abs(values.mean(axis=0) - getattr(exact, name)[0])
        # Four replicates determine their standard error only to a factor, hence 12 of them.
        assert np.all(gap <= 12 * error + 1e-7), name
        assert np.all(error <= 0.01 * np.abs(getattr(exact, name)).max() + 1e-9), name


@pytest.mark.slow
def test_one_step_of_the_chain_has_the_mean_increment_of_finite_d():
    problem, d = binary(), 4
    start = reference_start(problem)
    chain = after_one_step(problem, d, seed=1)
    with jax.enable_x64(True):
        finite = functional.finite(problem, d)
        rate = jax.jit(
            lambda state: functional.drift(
                problem.structure, problem.parameters, state, lr=1.0, finite=finite
            )
        )(functional.state(start))
    for name in ("M", "Q", "a"):
        values = (chain[name] - getattr(start, name)[0]) * d
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert np.all(
            np.abs(values.mean(axis=0) - np.asarray(rate[name]).reshape(values.shape[1:]))
            <= Z * error
        ), name


@pytest.mark.slow
@pytest.mark.runs_long
def test_covariance_of_the_increments():
    """The covariance of one step at large d is (lr/d)^2 times that of `increment_covariance`."""
    problem, d = binary(), 100_000
    start = reference_start(problem)
    chain = after_one_step(problem, d, seed=4)
    increment = sgd.increment_covariance(problem, ALGORITHM, start)
    state = {"M": start.M[0], "Q": start.Q[0], "a": start.a[0]}
    upper = np.triu_indices(2)
    steps = [d * (chain[name] - state[name]) for name in ("M", "Q", "a")]
    u = np.concatenate([steps[0][..., 0], steps[1][:, *upper], steps[2]], axis=1)
    error = u.std(axis=0, ddof=1) / np.sqrt(len(u))
    assert np.all(np.abs(u.mean(axis=0) - increment.mean) <= Z * error + 1e-3)
    products = np.einsum("ni,nj->nij", u - u.mean(axis=0), u - u.mean(axis=0))
    covariance_error = products.std(axis=0, ddof=1) / np.sqrt(len(u))
    assert np.all(
        np.abs(products.mean(axis=0) - increment.covariance)
        <= Z * (covariance_error + increment.standard_error)
        + 1e-3 * np.abs(increment.covariance).max()
    )


@pytest.mark.parametrize(("kind", "d", "width"), [("binary", 4, 2), ("xor", 8, 4)])
@pytest.mark.slow  # tests/contracts has a faster version of this test
def test_exact_chain_and_direct_simulation_have_one_law(kind, d, width):
    problem = sgd.GaussianMixture(kind, width=width, snr=3.0, weight_decay=0.1)
    start = sgd.random_start(problem, dimension=d, seed=3)
    exact, direct = (
        sgd.simulate(
            problem,
            ALGORITHM,
            start,
            steps=[5 * d],
            dimension=d,
            runs=2000,
            seed=seed,
            method=method,
        )
        for seed, method in ((1, "exact"), (2, "direct"))
    )
    for name, entry in (
        ("a", (0,)),
        ("a", (1,)),
        ("M", (0, 0)),
        ("M", (1, problem.signals - 1)),
        ("Q", (0, 0)),
        ("Q", (0, 1)),
        ("risk", ()),
    ):
        same_law(
            *(result[name].values[(slice(None), 0, *entry)] for result in (exact, direct)),
            f"{kind} {name}{entry}",
        )
    assert np.all((exact.accuracy >= 0) & (exact.accuracy <= 1))


@pytest.mark.slow
def test_infinite_snr_chain_follows_the_sliding_flow():
    problem = sgd.GaussianMixture("xor", snr=np.inf, weight_decay=0.1)
    start = sgd.random_start(problem, dimension=50, seed=5)
    times = [0.0, 2.0, 10.0]
    flow = sgd.solve_ode(problem, ALGORITHM, start, times=times)
    assert flow.attrs["error_integrator"] < 1e-8
    gaps = []
    for d in (200, 3200):
        chain = sgd.simulate(problem, ALGORITHM, start, times=times, dimension=d, runs=50, seed=1)
        gaps.append(np.sqrt(np.mean((chain.M.values - flow.M.values) ** 2)))
        assert np.allclose(
            chain.risk.values.mean(axis=0), flow.risk.values[0], atol=10 / np.sqrt(d)
        )
    # Fluctuations scale as d^(-1/2): 16 times the dimension has a quarter of them.
    assert 3.0 < gaps[0] / gaps[1] < 5.0
    with pytest.raises(ValueError, match="snr = inf"):
        sgd.solve_ode(problem, ALGORITHM, start, times=times, dimension=100)


def test_random_starts_and_records():
    problem = sgd.GaussianMixture("xor", snr=np.inf)
    start = sgd.random_start(problem, dimension=200, seed=1, runs=400)
    assert np.allclose(sgd.random_start(problem, dimension=200, seed=1, runs=3).a, start.a[:3])
    assert abs(start.a.mean()) < Z / np.sqrt(start.a.size)
    assert abs(start.a.var() - 1) < Z * np.sqrt(2 / start.a.size)
    result = sgd.simulate(
        problem,
        ALGORITHM,
        sgd.random_start(problem, dimension=50, seed=1),
        steps=[0, 3],
        dimension=50,
        runs=2,
    )
    restored = sgd.problem_of(result)
    assert restored.describe() == problem.describe()
    assert np.isinf(restored.snr)
    assert result.accuracy.dims == ("run", "time")
    assert sgd.start_from(result).a.shape == (2, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sgd.GaussianMixture("xorr"), "did you mean 'xor'"),
        (lambda: sgd.GaussianMixture("binary", snr=0.0), "snr"),
        (lambda: sgd.GaussianMixture("binary", snr=-1.0), "snr"),
        (lambda: sgd.GaussianMixture("xor", width=1), "width"),
        (lambda: sgd.GaussianMixture("xor", weight_decay=-0.1), "weight_decay"),
        (lambda: sgd.Problem(cross_entropy, 2, 1, clusters=[(0.5, [1.0], 1.0)]), "add up to 1"),
        (lambda: sgd.Problem(cross_entropy, 2, 1, clusters=[(1.0, [1.0, 2.0], 1.0)]), "clusters"),
        (lambda: sgd.start(binary(), M=MEAN, Q=R + MEAN @ MEAN.T, m=0.1), "received m"),
        (lambda: sgd.start(sgd.SpikedTensor(), M=MEAN, Q=R), "missing m, r2"),
        (
            lambda: sgd.hessian_spectrum(
                sgd.SpikedTensor(), sgd.start(sgd.SpikedTensor(), m=0.1, r2=1.0), dimension=10
            ),
            "spiked tensor has no Gaussian inputs",
        ),
        (
            lambda: sgd.hessian_spectrum(binary(), reference_start(binary()), dimension=10),
            "centred inputs",
        ),
        (lambda: sgd.solve_ode("binary", ALGORITHM, None, times=[1.0]), "problem"),
    ],
)
def test_bad_input_names_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_wide_networks_follow_their_sampled_ode():
    """With five units the expectations are sampled, and the ODE agrees with the chain.

    The result contains an estimate of their error.
    """
    problem = sgd.GaussianMixture("xor", width=5, snr=5.0, weight_decay=0.05)
    start = sgd.random_start(problem, dimension=50, seed=1)
    theory = sgd.solve_ode(problem, ALGORITHM, start, times=[0.0, 1.0])
    assert 0 < theory.attrs["error_quadrature"] < 1e-3
    chain = sgd.simulate(
        problem, ALGORITHM, start, times=[0.0, 1.0], dimension=2000, runs=100, seed=0
    )
    for name in ("M", "Q", "a", "risk"):
        values = chain[name].values[:, 1]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert np.all(
            np.abs(values.mean(axis=0) - theory[name].values[0, 1]) <= Z * error + 2e-3
        ), name
