"""Matrix and tensor PCA: closed formulas, fixed points, limits, and the exact chain.

The law of the chain is compared with SGD on vectors and on true tensors.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.analysis.spiked_fixed_points import spiked_fixed_points
from sgdynamics.dynamics import spiked_equations as limits
from sgdynamics.dynamics.spiked_equations import spiked_increment
from sgdynamics.papers.effective_dynamics import spiked_formulas as paper
from sgdynamics.problems.spiked_tensor import SpikedTensor, spiked_random_start, spiked_start
from sgdynamics.simulation import running
from tests.conftest import Z, same_law, slow

# Simulations run in groups of this size, so that one compiled program serves several tests.
GROUP = 256
RUNS = 12 * GROUP


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    resources = running.Resources(largest_group=GROUP)
    monkeypatch.setattr(running.Simulator, "resources", lambda *_: resources)


# the closed formulas


def test_critical_snr_and_fixed_points_have_the_reference_values():
    np.testing.assert_allclose(
        [paper.critical_snr(k) for k in (3, 4, 5, 6)],
        [3.079201435678004, 6.75, 14.10110203205829, 28.93518518518519],
        rtol=1e-14,
    )
    np.testing.assert_allclose(
        paper.correlated_fixed_points(3, 4.0, 1.0), (0.295597742522085, 1.0), rtol=1e-13
    )
    np.testing.assert_allclose(
        paper.correlated_fixed_points(4, 8.0, 1.0), (0.485868271756646, 1.0), rtol=1e-13
    )
    np.testing.assert_allclose(
        paper.eigenvalues(3, 4.0), [[4.81403514763, -14.1886916411], [-24, -48]], rtol=1e-11
    )
    np.testing.assert_allclose(
        paper.correlated_fixed_points(2, 1.2, ridge=0.5), [0.42328083664] * 2, rtol=1e-10
    )
    np.testing.assert_allclose(paper.eigenvalues(2, 1.2, ridge=0.5), [[-1.6, -8.6]] * 2, rtol=1e-13)
    assert paper.critical_snr(2, 0.3) == 0.3


def test_the_pair_is_born_at_the_critical_snr():
    for k, c in ((3, 1.0), (4, 0.6), (7, 1.3)):
        critical = paper.critical_snr(k, c)
        dagger, star = paper.correlated_fixed_points(k, critical * (1 + 1e-9), c)
        middle = math.sqrt((k - 2) * c / k)
        assert dagger < middle < star < middle * (1 + 1e-3)
        with pytest.warns(UserWarning, match="The critical snr is"):
            assert np.isnan(paper.correlated_fixed_points(k, critical * (1 - 1e-9), c)).all()
    assert paper.correlated_fixed_points(3, 8.0, 0.0) == (0.0, pytest.approx(2.0, rel=1e-14))
    # The barrier to warm starts vanishes with c: for k = 3 it is at snr m = c^2 as c -> 0.
    np.testing.assert_allclose(paper.correlated_fixed_points(3, 4.0, 1e-3)[0], 1e-6 / 4, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize(("lr", "batch"), [(1.0, 1), (0.0, 1), (0.9, 3)])
@pytest.mark.parametrize("ridge", [0.0, 0.4, 60.0])
def test_fixed_points_are_roots_with_the_numerical_jacobian(order, lr, batch, ridge):
    problem = SpikedTensor(order=order, snr=12.0, ridge=ridge)
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch)
    points = spiked_fixed_points(problem, algorithm)
    parameters = limits.equation_parameters(problem, algorithm, None)
    assert [point.risk for point in points] == sorted(point.risk for point in points)
    assert any(point.m == 0 and point.r2 == 0 for point in points)
    for point in points:
        scale = abs(point.eigenvalues).max() + 1e-3
        assert point.residual < 1e-12 * scale
        step = 1e-6 * max(1e-3, abs(point.m), point.r2)
        # The Jacobian by central differences; rows are the directions of m and r2.
        differences = []
        for dm, dr in ((step, 0.0), (0.0, step)):
            ahead = np.array(limits.drift(parameters, point.m + dm, point.r2 + dr))
            behind = np.array(limits.drift(parameters, point.m - dm, point.r2 - dr))
            differences.append((ahead - behind) / (2 * step))
        slopes = np.sort(np.linalg.eigvals(np.array(differences).T).real)[::-1]
        np.testing.assert_allclose(point.eigenvalues.real, slopes, atol=1e-6 * scale)
        if abs(point.eigenvalues).max() > 0:
            assert point.stable == (slopes[0] < 0)
        if order % 2:
            assert point.m >= 0
    if lr < 1.0 or ridge != 0.4:
        return
    # The ODE ends at one of the stable fixed points.
    start = spiked_start(problem, m=[1.5, 0.02, -1.0], r2=[0.2, 1.0, 0.5])
    ends = sgd.solve_ode(problem, algorithm, start, times=[40.0], rtol=1e-6).isel(time=0)
    stable = np.array([(point.m, point.r2) for point in points if point.stable])
    for end in zip(np.asarray(ends.m), np.asarray(ends.r2), strict=True):
        assert np.abs(stable - end).max(axis=1).min() < 1e-6, end


@pytest.mark.parametrize(
    ("order", "snr", "ridge", "count"),
    [(2, 1.2, 0.5, 4), (3, 4.0, 0.5, 7), (4, 8.0, 0.1, 11), (5, 12.0, 0.0, 2)],
)
def test_no_fixed_point_is_missed(order, snr, ridge, count):
    """Newton's method in the plane of m and r2, from 4000 random points, finds the same points.

    The library solves equations in one unknown instead, which this search does not use.
    """
    problem, algorithm = SpikedTensor(order=order, snr=snr, ridge=ridge), sgd.OnePassSGD(lr=1.0)
    parameters = limits.equation_parameters(problem, algorithm, None)
    y = np.random.default_rng(order).uniform([-1.8, 0.0], [1.8, 1.2], (4000, 2))
    with np.errstate(all="ignore"):
        for _ in range(60):
            rate = np.stack(limits.drift(parameters, *y.T), axis=-1)
            slopes = limits.jacobian(parameters, *y.T)
            slopes = np.where(
                np.abs(np.linalg.det(slopes))[:, None, None] > 1e-200, slopes, np.eye(2)
            )
            y = y - np.linalg.solve(slopes, rate[..., None])[..., 0]
        converged = (
            (np.linalg.norm(limits.drift(parameters, *y.T), axis=0) < 1e-11)
            & (y[:, 1] > -1e-9)
            & (np.abs(y).sum(axis=1) < 9)
        )
    # x = 0 is always a fixed point and is left out. Without a ridge it is degenerate, so that
    # Newton's method converges to it slowly.
    nonzero = y[:, 0] ** 2 + np.abs(y[:, 1]) > (1e-5 if ridge else 1e-2)
    roots = np.unique(np.round(y[converged & nonzero], 6) + 0.0, axis=0)
    points = np.array([(point.m, point.r2) for point in spiked_fixed_points(problem, algorithm)])
    assert len(points) == count
    for root in roots:
        assert np.abs(points - root).max(axis=1).min() < 2e-6, root
    assert len(roots) == count - 1


def test_verdicts_follow_proposition_3_2():
    def verdicts(order, snr, lr=1.0, ridge=0.0):
        problem = SpikedTensor(order=order, snr=snr, ridge=ridge)
        points = spiked_fixed_points(problem, sgd.OnePassSGD(lr=lr))
        return {(round(point.m, 6), round(point.r2, 6)): point.verdict for point in points}

    assert verdicts(2, 0.8) == {(0, 0): "saddle", (0, 1): "stable"}
    assert verdicts(2, 1.0)[(0, 1)] == "marginal"
    m = round(math.sqrt(0.2), 6)
    assert verdicts(2, 1.2) == {
        (0, 0): "saddle",
        (0, 1): "saddle",
        (m, 1): "stable",
        (-m, 1): "stable",
    }
    assert verdicts(3, 3.0) == {(0, 0): "saddle", (0, 1): "stable"}
    assert verdicts(3, 4.0) == {
        (0, 0): "saddle",
        (0, 1): "stable",
        (0.295598, 1): "saddle",
        (1, 1): "stable",
    }
    assert sorted(verdicts(4, 8.0).values()) == ["saddle"] * 3 + ["stable"] * 3
    assert verdicts(4, 16.0, lr=0.0) == {(2, 0): "stable", (-2, 0): "stable", (0, 0): "saddle"}
    # With a large ridge, x = 0 is the only fixed point.
    assert verdicts(2, 1.2, ridge=5.0) == {(0, 0): "stable"}
    assert verdicts(3, 4.0, ridge=50.0) == {(0, 0): "stable"}
    assert verdicts(3, 4.0, ridge=0.5)[(0, 0)] == "stable"


# the limits


def test_ode_has_the_reference_values():
    problem = SpikedTensor(order=2, snr=1.2)
    result = sgd.solve_ode(
        problem,
        sgd.OnePassSGD(lr=1.0),
        spiked_start(problem, m=[0.5, 0.1], r2=[1.5, 0.7]),
        times=[0.0, 0.4, 1.0],
    )
    np.testing.assert_allclose(result.m[0, -1], 0.438454771190, rtol=1e-11)
    np.testing.assert_allclose(result.r2[0, -1], 1.000026040695, rtol=1e-11)
    assert result.m.dims == ("run", "time")
    assert result.attrs["error_integrator"] < 1e-8
    np.testing.assert_allclose(
        result.risk, 1.44 - 2.4 * result.m**2 + (result.m**2 + result.r2) ** 2, rtol=1e-12
    )
    cubic = SpikedTensor(order=3, snr=4.0)
    single = sgd.solve_ode(
        cubic, sgd.OnePassSGD(lr=1.0), spiked_start(cubic, m=0.1, r2=1.0), alpha=[1.0]
    )
    np.testing.assert_allclose(single.m[0, 0], 0.000404610468, rtol=1e-9)
    # The ODE depends on lr and batch only by lr/batch.
    batch = sgd.solve_ode(
        cubic, sgd.OnePassSGD(lr=3.0, batch=3), spiked_start(cubic, m=0.1, r2=1.0), times=[1.0]
    )
    np.testing.assert_allclose(batch.m, single.m, rtol=1e-12)
    # Gradient flow decreases the risk at all times, and ends at m^k = snr, where the risk is 0.
    flow = sgd.solve_ode(
        cubic,
        sgd.OnePassSGD(lr=0.0),
        spiked_start(cubic, m=0.3, r2=0.5),
        times=np.linspace(0, 3, 30),
    )
    assert np.all(np.diff(flow.risk[0]) <= 1e-9)
    np.testing.assert_allclose(flow.m[0, -1], 4 ** (1 / 3), rtol=1e-9)
    # At a large snr the ODE is stiff. The implicit method continues up to the fixed point.
    strong = SpikedTensor(order=4, snr=2000.0)
    stiff = sgd.solve_ode(
        strong, sgd.OnePassSGD(lr=0.5), spiked_start(strong, m=4.0, r2=0.1), times=[50.0], rtol=1e-6
    )
    assert stiff.attrs["integrator"] == "DOP853, then LSODA"
    np.testing.assert_allclose(
        [stiff.m[0, 0], stiff.r2[0, 0]],
        [paper.correlated_fixed_points(4, 2000.0, 0.5)[1], 0.5],
        rtol=1e-6,
    )


def test_one_run_of_the_ode_at_small_n_can_diverge():
    problem = SpikedTensor(order=3, snr=1.0)
    start = spiked_start(problem, m=[0.1, 3.0], r2=[0.5, 20.0])
    with pytest.warns(UserWarning, match="runs diverged"):
        result = sgd.solve_ode(
            problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 0.5, 1.0], dimension=40
        )
    assert np.isfinite(result.m[0]).all()
    assert np.isnan(result.m[1, -1])
    assert float(result.diverged_at[1]) == 0.0
    assert np.isnan(result.diverged_at[0])


def test_one_step_in_closed_form_and_by_quadrature():
    problem, algorithm = SpikedTensor(order=2, snr=1.2, ridge=0.2), sgd.OnePassSGD(lr=0.1)
    mean, covariance = spiked_increment(
        problem, algorithm, spiked_start(problem, m=0.3, r2=0.8), dimension=10
    )
    np.testing.assert_allclose(mean[0] + [0.3, 0.8], [0.30312, 0.748019008], rtol=1e-13)
    np.testing.assert_allclose(
        covariance[0], [[7.84e-4, 3.695616e-4], [3.695616e-4, 0.004018938123264]], rtol=1e-11
    )
    # For any order and batch, the step of the chain is written out here and integrated over its
    # normal variables (xi, z1, z2) by Gauss-Hermite quadrature::
    #
    #     m  -> A m + 2k snr delta m^(k-1) + b z1
    #     r2 -> (A sqrt(r2) + b z2)^2 + b^2 chi2,    chi2 with n - 2 degrees of freedom
    #
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    xi, z1, z2 = np.meshgrid(nodes, nodes, nodes, indexing="ij")
    w = np.multiply.outer(np.multiply.outer(weights, weights), weights) / weights.sum() ** 3
    for k, n, batch in ((2, 2, 1), (3, 5, 2), (5, 9, 3)):
        problem = SpikedTensor(order=k, snr=1.3, ridge=0.4)
        algorithm = sgd.OnePassSGD(lr=0.2, batch=batch)
        m, r2, delta = -0.4, 0.7, 0.2 / n
        R = math.sqrt(m**2 + r2)
        A = (
            1
            - 2 * k * delta * R ** (2 * k - 2)
            - 0.4 * delta
            + 2 * delta * math.sqrt(k * (k - 1) / batch) * R ** (k - 2) * xi
        )
        b = 2 * delta * math.sqrt(k / batch) * R ** (k - 1)
        dm = A * m + 2 * k * 1.3 * delta * m ** (k - 1) + b * z1 - m
        dr = (A * math.sqrt(r2) + b * z2) ** 2 + b**2 * (n - 2) - r2
        first = np.array([(w * dm).sum(), (w * dr).sum()])
        second = [
            [(w * x * y).sum() - p * q for y, q in zip((dm, dr), first, strict=True)]
            for x, p in zip((dm, dr), first, strict=True)
        ]
        second[1][1] += 2 * (n - 2) * b**4  # the variance of b^2 chi2
        mean, covariance = spiked_increment(
            problem, algorithm, spiked_start(problem, m=m, r2=r2), dimension=n
        )
        np.testing.assert_allclose(mean[0], first, rtol=1e-10)
        np.testing.assert_allclose(covariance[0], second, rtol=1e-9)
        # The drift at dimension n is the mean increment per unit of time.
        parameters = limits.equation_parameters(problem, algorithm, n)
        np.testing.assert_allclose(
            np.array(limits.drift(parameters, m, r2)) * delta, first, rtol=1e-10
        )


# the chain


def test_one_step_of_the_chain_by_sampling():
    problem, algorithm = SpikedTensor(order=2, snr=1.2, ridge=0.2), sgd.OnePassSGD(lr=0.1)
    start = spiked_start(problem, m=0.3, r2=0.8)
    mean, covariance = spiked_increment(problem, algorithm, start, dimension=10)
    step = sgd.simulate(problem, algorithm, start, steps=[1], dimension=10, runs=RUNS, seed=1)
    increments = np.stack([step.m[:, 0] - 0.3, step.r2[:, 0] - 0.8], axis=1)
    centred = increments - mean[0]
    products = centred[:, :, None] * centred[:, None, :]
    for sample, expected in ((increments, mean[0]), (products, covariance[0])):
        error = sample.std(axis=0) / math.sqrt(RUNS)
        assert np.all(np.abs(sample.mean(axis=0) - expected) <= Z * error)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "batch"), [pytest.param(2, 1, marks=pytest.mark.slow), (3, 2)])
def test_chain_vector_and_true_tensors_have_one_law(order, batch):
    problem = SpikedTensor(order=order, snr=1.5, ridge=0.3)
    algorithm = sgd.OnePassSGD(lr=0.12, batch=batch)
    start = spiked_start(problem, m=0.4, r2=0.6)
    results = {
        method: sgd.simulate(
            problem,
            algorithm,
            start,
            steps=[1, 3, 9],
            dimension=4,
            runs=RUNS,
            seed=seed,
            method=method,
        )
        for seed, method in enumerate(("exact", "direct", "tensor"))
    }
    for method in ("direct", "tensor"):
        for name in ("m", "r2", "risk"):
            for time in range(3):
                same_law(
                    np.asarray(results["exact"][name][:, time]),
                    np.asarray(results[method][name][:, time]),
                    f"order {order}, {method}, {name}, time {time}",
                )


@pytest.mark.parametrize(("order", "n"), [(2, 4), (2, 2), (3, 2), (3, 3)])
def test_chain_against_tensors_contracted_by_hand(order, n):
    """The law of the chain is that of SGD on true tensors, also in the smallest dimensions.

    For n = 2 and n = 3, no direction or one direction is orthogonal to x and the signal. From
    r2 = 0, each orthogonal direction contributes at leading order.
    """
    problem, algorithm = SpikedTensor(order=order, snr=1.5, ridge=0.3), sgd.OnePassSGD(lr=0.04)
    steps = (1, 6)
    start = spiked_start(problem, m=0.9, r2=0.0)
    chain = sgd.simulate(problem, algorithm, start, steps=steps, dimension=n, runs=RUNS, seed=4)
    generator = np.random.default_rng(n)
    x = np.zeros((RUNS, n))
    x[:, 0] = 0.9
    for step in range(1, steps[-1] + 1):
        Y = generator.standard_normal((RUNS, *[n] * order))
        Y[(slice(None), *[0] * order)] += 1.5
        if order == 2:
            slope = np.einsum("rij,rj->ri", Y, x) + np.einsum("rij,ri->rj", Y, x)
        else:
            slope = sum(
                np.einsum(f"rijk,r{a},r{b}->r{c}", Y, x, x) for a, b, c in ("jki", "ikj", "ijk")
            )
        total = np.sum(x**2, axis=1, keepdims=True)
        x = x - 0.04 / n * (2 * order * total ** (order - 1) * x - 2 * slope + 0.3 * x)
        if step in steps:
            time = steps.index(step)
            same_law(np.asarray(chain.m[:, time]), x[:, 0], f"m after {step}")
            same_law(
                np.asarray(chain.r2[:, time]), np.sum(x[:, 1:] ** 2, axis=1), f"r2 after {step}"
            )


def test_a_seed_determines_each_run(monkeypatch):
    """Runs do not depend on their number, on other save points, or on how the work is divided."""
    problem, algorithm = SpikedTensor(order=2, snr=1.2), sgd.OnePassSGD(lr=0.5)
    start = spiked_start(problem, m=0.1, r2=1.0)
    result = sgd.simulate(
        problem, algorithm, start, steps=[0, 37, 64, 200], dimension=50, runs=RUNS, seed=9
    )
    few = sgd.simulate(problem, algorithm, start, steps=[200], dimension=50, runs=GROUP, seed=9)
    np.testing.assert_allclose(result.m[:GROUP, -1], few.m[:, 0], rtol=1e-12)
    monkeypatch.setattr(running, "PIECE_SECONDS", 1e-9)  # the smallest pieces
    pieces = sgd.simulate(problem, algorithm, start, steps=[200], dimension=50, runs=GROUP, seed=9)
    np.testing.assert_allclose(few.r2, pieces.r2, rtol=1e-12)
    reseeded = sgd.simulate(
        problem, algorithm, start, steps=[200], dimension=50, runs=GROUP, seed=10
    )
    assert np.abs(np.asarray(reseeded.m - few.m)).max() > 1e-3
    assert result.attrs["seed"] == 9
    assert result.attrs["error_sampling"] > 0
    np.testing.assert_allclose(result.t, result.step * 0.01)
    np.testing.assert_allclose(result.alpha, result.step / 50)
    assert (result.m[:, 0] == 0.1).all()


def test_overflow_of_a_run_is_reported_and_the_others_continue():
    problem = SpikedTensor(order=2, snr=1.2)
    start = spiked_random_start(problem, dimension=6, seed=0, runs=RUNS)
    with pytest.warns(UserWarning, match="runs diverged, the first after t = "):
        result = sgd.simulate(
            problem, sgd.OnePassSGD(lr=0.5), start, times=[1.0, 5.0, 10.0], dimension=6, seed=5
        )
    diverged = np.isfinite(np.asarray(result.diverged_at))
    assert 0.01 < diverged.mean() < 0.1
    assert np.isfinite(np.asarray(result.m)[~diverged]).all()
    assert np.isnan(np.asarray(result.m)[diverged, -1]).all()
    early = np.asarray(result.diverged_at) >= 1.0
    assert np.isfinite(np.asarray(result.risk)[early, 0]).all()
    assert "error_sampling" not in result.attrs


def test_mean_of_the_chain_approaches_the_ode_like_1_over_n():
    problem, algorithm = SpikedTensor(order=3, snr=4.0), sgd.OnePassSGD(lr=0.5)
    start = spiked_start(problem, m=0.6, r2=0.8)
    ode = sgd.solve_ode(problem, algorithm, start, times=[0.12])
    gaps, errors = [], []
    for n in (100, 200):
        chain = sgd.simulate(
            problem, algorithm, start, times=[0.12], dimension=n, runs=6 * RUNS, seed=3
        )
        values = np.stack([chain.m[:, 0], chain.r2[:, 0]])
        gaps.append(n * (values.mean(axis=1) - [ode.m[0, 0], ode.r2[0, 0]]))
        errors.append(n * values.std(axis=1) / math.sqrt(values.shape[1]))
    # n times the gap is the same at both n, up to a relative O(1/n), and is not 0.
    error = np.hypot(*errors)
    assert np.all(np.abs(gaps[0] - gaps[1]) <= Z * error + 0.2 * np.abs(gaps[1]))
    assert np.all(np.abs(gaps[1]) > 2 * Z * errors[1])


@pytest.mark.slow
def test_stationary_variance_below_the_critical_snr():
    c, snr, n = 0.5, 0.25, 500
    expected = paper.stationary_variance(snr, c)
    assert expected == pytest.approx(c**2 / (c - snr), rel=1e-14)
    problem = SpikedTensor(order=2, snr=snr)
    # The runs start from three times the stationary variance. After three relaxation times the
    # deviation has decayed to exp(-3) of its initial value.
    m = np.sqrt(3 * expected / n) * np.random.default_rng(2).standard_normal(RUNS)
    chain = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=c),
        spiked_start(problem, m=m, r2=c),
        times=[1.5],
        dimension=n,
        seed=3,
    )
    squares = n * np.asarray(chain.m[:, 0]) ** 2
    error = Z * squares.std() / math.sqrt(RUNS)
    assert abs(squares.mean() - paper.saddle_variance(1.5, snr, c, 3 * expected)) <= error
    assert abs(squares.mean() - expected) <= error + 2 * expected * math.exp(-3)
    np.testing.assert_allclose(paper.saddle_variance(1.0, 0.8), 4.192413928, rtol=1e-9)
    np.testing.assert_allclose(paper.saddle_variance(1.0, 1.0), 9.0)
    assert paper.stationary_variance(1.2) == math.inf
    with pytest.raises(ValueError, match=r"ridge = 4\.0: from 4c"):
        paper.stationary_variance(0.8, ridge=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("order", slow([2, 3], [2]))
def test_sde_and_chain_have_one_law_at_large_n(order):
    problem = SpikedTensor(order=order, snr=1.2 if order == 2 else 3.5, ridge=0.2)
    algorithm = sgd.OnePassSGD(lr=0.6)
    start = spiked_start(problem, m=0.25, r2=0.9)
    # The means differ by O(1/n), the length of a step. At this n that is less than their errors.
    setting = {"times": [0.015, 0.06, 0.15], "dimension": 4000, "runs": RUNS}
    chain = sgd.simulate(problem, algorithm, start, seed=1, **setting)
    sde = sgd.solve_sde(problem, algorithm, start, seed=2, **setting)
    assert sde.attrs["error_integrator"] < 2e-3
    for name in ("m", "r2"):
        for time in range(3):
            same_law(
                np.asarray(chain[name][:, time]),
                np.asarray(sde[name][:, time]),
                f"order {order}, {name}, time {time}",
            )


def test_sde_stays_positive_from_the_edge_at_tiny_n():
    problem, algorithm = SpikedTensor(order=2, snr=1.2), sgd.OnePassSGD(lr=0.1)
    setting = {"times": [0.1, 0.2, 0.4], "dimension": 4, "runs": RUNS, "step": 0.1}
    for higher_order in (True, False):
        sde = sgd.solve_sde(
            problem,
            algorithm,
            spiked_start(problem, m=0.5, r2=0.0),
            seed=2,
            higher_order=higher_order,
            **setting,
        )
        assert float(sde.r2.min()) > 0
        assert sde.attrs["higher_order"] == int(higher_order)


# the saddle, rescaled


def test_rescaled_drift_and_noise_are_the_limit_of_one_step():
    n = 10**10
    for k, Lam, ridge in ((2, 0.8, 0.3), (3, 0.6, 0.0), (4, 1.1, 0.2)):
        problem = SpikedTensor(order=k, snr=Lam * n ** ((k - 2) / 2), ridge=ridge)
        algorithm = sgd.OnePassSGD(lr=0.7)
        u1, u2, delta = 1.3, 0.9, 0.7 / n
        mean, covariance = spiked_increment(
            problem, algorithm, spiked_start(problem, m=u1 / math.sqrt(n), r2=u2), dimension=n
        )
        drift = paper.rescaled_drift(k, u1, u2, Lam, c=0.7, ridge=ridge)
        np.testing.assert_allclose(
            [mean[0, 0] * math.sqrt(n) / delta, mean[0, 1] / delta], drift, rtol=1e-6
        )
        np.testing.assert_allclose(
            covariance[0, 0, 0] * n / delta, paper.rescaled_noise(k, u2, c=0.7) ** 2, rtol=1e-6
        )


def test_barrier_is_where_the_drift_vanishes():
    for k, Lam, c in ((3, 0.6, 1.0), (4, 1.7, 0.8), (5, 0.3, 1.0)):
        u, height = paper.barrier(k, Lam, c)
        assert abs(paper.rescaled_drift(k, u, c, Lam, c)[0]) < 1e-12
        grid = np.linspace(0, u, 2001)
        work = -np.trapezoid(paper.rescaled_drift(k, grid, c, Lam, c)[0], grid)
        np.testing.assert_allclose(
            height, work / (paper.rescaled_noise(k, c, c) ** 2 / 2), rtol=1e-5
        )
        if c == 1:
            np.testing.assert_allclose(
                [u, height],
                [Lam ** (-1 / (k - 2)), (0.5 - 1 / k) * Lam ** (-2 / (k - 2))],
                rtol=1e-13,
            )


def test_rescaled_paths_of_the_matrix_are_ornstein_uhlenbeck():
    paths = paper.rescaled_paths(2, 0.8, times=[0.0, 0.3, 1.0], runs=RUNS, seed=5)
    np.testing.assert_allclose(paths.u2, 1.0, rtol=1e-12)
    assert paths.attrs["error_integrator"] < 1e-2
    for time, t in enumerate((0.0, 0.3, 1.0)):
        law = stats.norm(0, math.sqrt(paper.saddle_variance(t, 0.8)))
        assert stats.kstest(np.asarray(paths.u1[:, time]), law.cdf).pvalue > 1e-6
    # Fewer runs are the first of the many.
    few = paper.rescaled_paths(2, 0.8, times=[0.0, 0.3, 1.0], runs=3, seed=5)
    np.testing.assert_allclose(few.u1, paths.u1[:3], rtol=1e-12)
    # u2 is not at its fixed point and follows the ODE of r2.
    relaxing = paper.rescaled_paths(
        3, 0.0, times=[0.1, 0.5], c=0.7, ridge=0.1, u2=1.5, u1=2.0, runs=5
    )
    problem = SpikedTensor(order=3, snr=1.0, ridge=0.1)
    ode = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=0.7), spiked_start(problem, m=0.0, r2=1.5), times=[0.1, 0.5]
    )
    np.testing.assert_allclose(relaxing.u2, ode.r2[0], rtol=1e-7)
    # Beyond the barrier a path reaches infinity in finite time. Without noise, the time follows
    # from du1/dt = 2k (Lam u1^2 - u1).
    escaping = paper.rescaled_paths(3, 1.0, times=[0.1, 2.0], u1=30.0, runs=20)
    assert np.isposinf(escaping.u1[:, -1]).all()
    assert np.all(np.abs(np.asarray(escaping.escaped_at) - math.log(30 / 29) / 6) < 5e-3)
    with pytest.raises(ValueError, match="times = "):
        paper.rescaled_paths(3, 1.0, times=[1.0, 0.5])


@pytest.mark.slow
def test_lambda_scaling_has_the_corrected_drift():
    """At snr = Lam n^((k-2)/2) the chain agrees with the corrected drift of u1 = sqrt(n) m.

    The corrected drift is 2 u1 (k Lam u1^(k-2) - k). The printed drift is 2 u1 (k Lam - k), and the
    chain disagrees with it.
    """
    n, Lam, runs = 10_000, 0.6, 4 * RUNS
    for k, t in ((3, 0.15), (3, 0.4), (4, 0.3)):
        problem = SpikedTensor(order=k, snr=Lam * n ** ((k - 2) / 2))
        start = spiked_random_start(problem, dimension=n, seed=1, runs=runs)
        # For k = 4, steps of length c/n are too long beyond the barrier: a run that crosses it
        # overflows.
        expect_warning = pytest.warns(UserWarning, match="runs diverged")
        with contextlib.nullcontext() if k == 3 else expect_warning:
            result = sgd.simulate(
                problem, sgd.OnePassSGD(lr=1.0), start, times=[t], dimension=n, seed=2
            )
        chain = math.sqrt(n) * np.asarray(result.m[:, 0])
        paths = np.asarray(paper.rescaled_paths(k, Lam, times=[t], runs=runs, seed=4).u1[:, 0])
        # Beyond the barrier the chain ends at m of order 1, and the rescaled path at infinity.
        # Clipping at 5 makes both equal.
        if k == 4:
            chain, paths = np.where(np.isnan(chain), np.inf, np.abs(chain)), np.abs(paths)
        same_law(np.clip(chain, -5, 5), np.clip(paths, -5, 5), f"k = {k}, t = {t}")
        growth = 4 * k * (Lam - 1)
        printed = math.exp(growth * t) + 4 * k * math.expm1(growth * t) / growth
        law = stats.norm(0, math.sqrt(printed)) if k == 3 else stats.halfnorm(0, math.sqrt(printed))
        assert stats.kstest(chain, law.cdf).pvalue < 1e-20
