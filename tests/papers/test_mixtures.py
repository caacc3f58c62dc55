"""Gaussian mixtures at snr = infinity: closed results against the flow, SGD, and enumerations."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import lru_cache

import jax
import numpy as np
import pytest
from scipy import linalg, optimize, special, stats

from sgdynamics.ode.sliding import infinite_snr_accuracy, infinite_snr_drift
from sgdynamics.ode.sliding_solver import solve_infinite_snr
from sgdynamics.papers.effective_dynamics import mixtures
from sgdynamics.papers.effective_dynamics.mixtures import (
    active_types_probability,
    arc_paths,
    arc_variance,
    measured_success,
    mixture_components,
    optimum,
    rescaled_diffusion,
    ring_radius,
    success_probability,
)
from tests.conftest import Z

AL = 0.1
ARCS = {
    "binary": np.sqrt(ring_radius("binary", AL)) * np.array([0.6, 0.8]),
    "xor": np.sqrt(ring_radius("xor", AL)) * np.array([0.6, 0.8, -np.sqrt(0.5), -np.sqrt(0.5)]),
}
SPLIT = {"binary": ("+", "-"), "xor": ("mu+", "mu-", "nu+", "nu-")}
DIRECTION = {"+": 0, "-": 0, "mu+": 0, "mu-": 0, "nu+": 1, "nu-": 1}


def fixed_point(kind, a, types):
    """The overlaps M of a fixed point of the paper's list, and the direction of each unit."""
    values = {"+": 1, "-": 1, "mu+": 1, "mu-": -1, "nu+": 1, "nu-": -1}
    own = np.array([DIRECTION[name] for name in types])
    M = np.zeros((len(a), 1 if kind == "binary" else 2))
    M[np.arange(len(a)), own] = [values[name] * x for name, x in zip(types, a, strict=True)]
    return M, own


def cases():
    """Test cases (kind, a, types argument, types): an arc and an optimal point of each kind."""
    parameters = []
    for kind, a in ARCS.items():
        arc = ("+", "+") if kind == "binary" else ("mu+", "mu+", "nu+", "nu+")
        best = np.sqrt(ring_radius(kind, AL)) * np.array(
            [1, -1] if kind == "binary" else [1, 1, -1, -1]
        )
        parameters += [
            pytest.param(kind, a, None, arc, id=f"{kind}-arc"),
            pytest.param(kind, best, SPLIT[kind], SPLIT[kind], id=f"{kind}-best"),
        ]
    return parameters


def test_rings():
    np.testing.assert_allclose(
        [ring_radius("binary", 0.1), ring_radius("xor", 0.1)],
        [1.38629436111989, 0.405465108108164],
        rtol=1e-14,
    )
    for kind, threshold in (("binary", 0.25), ("xor", 0.125)):
        assert 0 < ring_radius(kind, 0.999 * threshold) < 0.01
        for alpha in (threshold, 1.0):
            with pytest.warns(UserWarning, match="only fixed point is 0"):
                assert ring_radius(kind, alpha) == 0.0


def test_components():
    components = mixture_components()
    assert len(components) == 39
    counts = Counter(len(component.active) for component in components)
    assert counts == {0: 1, 1: 4, 2: 6, 3: 4, 4: 24}
    assert sum(component.stable for component in components) == 24
    assert sorted(stratum for component in components for stratum in component.strata) == sorted(
        itertools.product(("0", *SPLIT["xor"]), repeat=4)
    )
    for component in components:
        assert component.dimension == (4 - len(component.active) if component.active else 0)
        assert component.stable == (len(component.active) == 4)
        for stratum in component.strata:
            assert {name for name in stratum if name != "0"} == set(component.active)
    binary = mixture_components("binary")
    assert [len(component.active) for component in binary] == [0, 1, 1, 2, 2]
    assert [component.dimension for component in binary] == [0, 1, 1, 0, 0]
    assert [component.stable for component in binary] == [False, False, False, True, True]
    # A spare unit connects all optima. With fewer units than types, no idle unit can grow.
    assert [component.stable for component in mixture_components("xor", 5)] == [False] * 15 + [True]
    assert sum(component.stable for component in mixture_components("xor", 2)) == 12


@pytest.mark.slow
def test_representatives_are_fixed_points():
    for kind in ("binary", "xor"):
        components = mixture_components(kind)
        points = [component.representative(AL) for component in components]
        M, Q, a = (np.stack([point[name] for point in points]) for name in ("M", "Q", "a"))
        moved = solve_infinite_snr(kind, M, Q, a, times=[5.0], weight_decay=AL)
        np.testing.assert_allclose(moved["M"][:, 0], M, atol=1e-9)
        np.testing.assert_allclose(moved["a"][:, 0], a, atol=1e-9)
        # Clusters of active types are classified correctly, the others at chance.
        accuracy = [(1 + len(component.active) / len(SPLIT[kind])) / 2 for component in components]
        np.testing.assert_allclose(infinite_snr_accuracy(kind, M, a), accuracy)


def test_stability_of_every_stratum():
    """Perturb a random point of each of the 625 strata and follow the flow.

    If a unit is idle and a type is missing, a perturbation of the unit towards the missing type
    grows, and the flow leaves the stratum. Otherwise the flow stays near the point.
    """
    rng, alpha, small = np.random.default_rng(0), 0.05, 1e-3
    C = ring_radius("xor", alpha)
    strata = [stratum for component in mixture_components() for stratum in component.strata]
    a, M, leaves = (
        np.zeros((len(strata), 4)),
        np.zeros((len(strata), 4, 2)),
        np.zeros(len(strata), bool),
    )
    for n, stratum in enumerate(strata):
        for name in SPLIT["xor"]:
            has_type = np.array([unit_type == name for unit_type in stratum])
            size = rng.uniform(0.3, 1, size=4) * has_type
            a[n] += (1 if name[:2] == "mu" else -1) * size * np.sqrt(C / max(size @ size, 1e-300))
        for unit, name in enumerate(stratum):
            if name != "0":
                M[n, unit, DIRECTION[name]] = a[n, unit] * (1 if name[2] == "+" else -1)
        has_missing_type = any(name not in stratum for name in SPLIT["xor"])
        leaves[n] = "0" in stratum and has_missing_type
    v = a + small * rng.uniform(-1, 1, size=a.shape)
    m = M + small * rng.uniform(-1, 1, size=M.shape)
    for n in np.nonzero(leaves)[0]:
        unit = strata[n].index("0")
        name = next(name for name in SPLIT["xor"] if name not in strata[n])
        v[n, unit] = small * (1 if name[:2] == "mu" else -1)
        m[n, unit] = 0
        m[n, unit, DIRECTION[name]] = v[n, unit] * (1 if name[2] == "+" else -1)
    end = solve_infinite_snr(
        "xor", m, m @ np.swapaxes(m, 1, 2), v, times=[150.0], weight_decay=alpha
    )
    distance = np.maximum(
        np.abs(end["a"][:, 0] - a).max(axis=1), np.abs(end["M"][:, 0] - M).max(axis=(1, 2))
    )
    assert leaves.sum() == sum("0" in stratum for stratum in strata) == 625 - 256
    assert distance[leaves].min() > 0.3
    assert distance[~leaves].max() < 5 * small


def test_probabilities():
    assert success_probability("binary") == 1 / 2
    assert success_probability("xor") == 3 / 32
    assert active_types_probability() == (1 / 64, 21 / 64, 9 / 16, 3 / 32)
    assert success_probability("xor", 3) == 0
    # Enumerate all signs of five units. The sign of m^mu decides the type of a unit with v > 0,
    # and the sign of m^nu that of a unit with v < 0.
    ends = [
        {(v, mu if v else nu) for v, mu, nu in units}
        for units in itertools.product(itertools.product((0, 1), repeat=3), repeat=5)
    ]
    count = Counter(map(len, ends))
    assert active_types_probability("xor", 5) == tuple(count[n] / 8**5 for n in (1, 2, 3, 4))


def check_measured(kind, runs, width=None, seed=0):
    """Compare the measured numbers of active types with their exact distribution."""
    measured = measured_success(kind, AL, runs=runs, width=width, seed=seed)
    expected = np.array([0.0, *active_types_probability(kind, width)])
    assert sum(measured.counts) == runs == measured.runs
    assert measured.counts[0] == 0
    assert stats.chisquare(measured.counts[1:], runs * expected[1:]).pvalue > 1e-6
    p = success_probability(kind, width)
    assert abs(measured.fraction - p) < Z * np.sqrt(p * (1 - p) / runs)
    np.testing.assert_allclose(
        measured.standard_error, np.sqrt(measured.fraction * (1 - measured.fraction) / runs)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_measured_success(kind):
    check_measured(kind, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_measured_success_of_many_runs(kind):
    check_measured(kind, 10000, seed=1)
    check_measured(kind, 10000, seed=2, width=5)


@lru_cache
def jacobian(kind):
    """A compiled function that returns the rate of (v, m) and its Jacobian.

    The overlap m of each unit is the one with its own direction. The Jacobian is computed by
    automatic differentiation.
    """

    def rate(u, alpha, own, side):
        K = len(own)
        dM, da = infinite_snr_drift(kind, alpha, u[K:, None] * own, u[:K], side)
        return jax.numpy.concatenate([da, jax.numpy.sum(dM * own, axis=1)])

    return jax.jit(lambda *args: (rate(*args), jax.jacfwd(rate)(*args)))


@pytest.mark.parametrize(("kind", "a", "types", "names"), cases())
def test_rescaled_drift_is_the_jacobian(kind, a, types, names):
    A, _ = rescaled_diffusion(kind, a, AL, types=types)
    M, own = fixed_point(kind, a, names)
    with jax.enable_x64(True):
        value, slope = jacobian(kind)(
            np.concatenate([a, M[np.arange(len(a)), own]]), AL, np.eye(M.shape[1])[own], np.sign(M)
        )
    np.testing.assert_allclose(value, 0, atol=1e-12)
    np.testing.assert_allclose(A, slope, atol=1e-8)
    np.testing.assert_allclose(A, A.T, atol=1e-15)


def sgd_step(kind, W, v, cluster):
    """Gradient of one sample's loss in d dimensions, for the rows W (K, d) and the head v.

    At snr = infinity the input x is the mean of its cluster.
    """
    x = np.zeros(W.shape[1])
    direction, sign = divmod(cluster, 2)
    x[direction], sign = 1 - 2 * sign, 1 - 2 * sign
    label = (direction == 0) if kind == "xor" else (sign > 0)
    h = W @ x
    e = special.expit(v @ np.maximum(h, 0)) - label
    return np.outer(v * e * (h > 0), x) + AL * W, e * np.maximum(h, 0) + AL * v


@pytest.mark.parametrize(("kind", "a", "types", "names"), cases())
def test_rescaled_noise_is_the_covariance_of_a_step(kind, a, types, names):
    _, Sigma = rescaled_diffusion(kind, a, AL, types=types)
    M, own = fixed_point(kind, a, names)
    W = np.concatenate([M, np.zeros((len(a), 2))], axis=1)
    steps = []
    for cluster in range(2 * M.shape[1]):
        dW, dv = sgd_step(kind, W, a, cluster)
        steps.append(np.concatenate([dv, dW[np.arange(len(a)), own]]))
    np.testing.assert_allclose(np.mean(steps, axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(Sigma, np.cov(np.array(steps).T, bias=True), atol=1e-14)
    present, clusters = len(set(names)), len(SPLIT[kind])
    assert np.linalg.matrix_rank(Sigma) == min(present, clusters - 1)


def test_arc_spectrum_and_its_ends():
    C = ring_radius("binary", AL)
    A, Sigma = rescaled_diffusion("binary", ARCS["binary"], AL)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(A), sorted([0, -2 * AL, -2 * AL, -2 * C * (AL - 2 * AL**2)]), atol=1e-14
    )
    # The noise acts only along the mode that relaxes.
    rho = np.tile(ARCS["binary"], 2)
    np.testing.assert_allclose(Sigma @ rho, 2 * C * AL**2 * rho, rtol=1e-12)
    for kind in ("binary", "xor"):
        a = ARCS[kind]
        A, Sigma = rescaled_diffusion(kind, a, AL)
        arcs = [slice(0, 2)] if kind == "binary" else [slice(0, 2), slice(2, 4)]
        modes = np.zeros((len(arcs), 2, len(a)))
        for n, arc in enumerate(arcs):
            modes[n, :, arc] = a[arc]
        modes = modes.reshape(len(arcs), -1)
        # The modes are an Ornstein-Uhlenbeck process, d rho = rate rho dt + noise, whose stationary
        # covariance solves a Lyapunov equation.
        rate = modes @ A @ np.linalg.pinv(modes)
        np.testing.assert_allclose(modes @ A, rate @ modes, atol=1e-13)
        covariance = linalg.solve_continuous_lyapunov(rate, -modes @ Sigma @ modes.T)
        np.testing.assert_allclose(np.atleast_2d(arc_variance(AL, kind)), covariance, rtol=1e-10)


def test_arc_paths_have_the_law_of_the_sde():
    kind, a, runs = "xor", ARCS["xor"], 4000
    A, Sigma = rescaled_diffusion(kind, a, AL)
    start, times = np.arange(8) / 4 - 1, np.array([0.0, 1.0, 1.5, 40.0])
    u = arc_paths(kind, a, AL, times, runs, seed=3, start=start)
    assert u.shape == (runs, 4, 8)
    np.testing.assert_allclose(u[:, 0], np.broadcast_to(start, (runs, 8)), atol=1e-14)
    covariance = np.zeros((8, 8))
    for n in (1, 2, 3):
        step = times[n] - times[n - 1]
        # d covariance/dt = A covariance + covariance A + Sigma, written as one linear system.
        flow = np.kron(A, np.eye(8)) + np.kron(np.eye(8), A)
        system = np.block([[flow, Sigma.reshape(-1, 1)], [np.zeros((1, 65))]])
        vector = linalg.expm(system * step) @ np.append(covariance.ravel(), 1.0)
        covariance = vector[:-1].reshape(8, 8)
        mean = linalg.expm(A * times[n]) @ start
        spread = np.sqrt(np.diag(covariance))
        assert np.all(np.abs(u[:, n].mean(axis=0) - mean) < Z * spread / np.sqrt(runs) + 1e-12)
        error = np.sqrt((np.outer(spread**2, spread**2) + covariance**2) / runs)
        assert np.all(np.abs(np.cov(u[:, n].T) - covariance) < (Z + 1) * error + 1e-12)
    np.testing.assert_array_equal(arc_paths(kind, a, AL, times, 10, seed=3, start=start), u[:10])
    # The paths are a Markov chain: the residual of the conditional mean is independent of the past.
    residual = u[:, 2] - u[:, 1] @ linalg.expm(0.5 * A)
    assert np.abs(np.corrcoef(residual[:, 0], u[:, 1, 0])[0, 1]) < Z / np.sqrt(runs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_sgd_has_the_stationary_variance_of_the_arc(kind):
    """Fluctuations of order 1/sqrt(N) around a point of the arcs have the stationary covariance.

    Near the arcs, the sample enters only by the arc whose cluster was drawn. The mode rho of an arc
    relaxes at rate 0.22 (binary) or 0.049 (XOR).
    """
    N, runs, rng, a = 150, 1000, np.random.default_rng(1), ARCS[kind]
    time = 15.0 if kind == "binary" else 50.0
    v, m = np.tile(a, (runs, 1)), np.tile(a, (runs, 1))
    arcs = np.array([a > 0]) if kind == "binary" else np.array([a > 0, a < 0])
    sign = np.sign(a)
    # Each arc is active on one of the 2 (binary) or 4 (XOR) clusters. On the other clusters its
    # units are off.
    for c in rng.integers(2 * len(arcs), size=(round(N * time), runs)):
        on = (c[:, None] == np.arange(len(arcs))) @ arcs
        e = special.expit(-np.sum(on * np.abs(v * m), axis=1))[:, None] * sign * on
        v, m = v + (e * np.abs(m) - AL * v) / N, m + (e * np.abs(v) - AL * m) / N
    rho = np.sqrt(N) * ((v + m - 2 * a) * a) @ arcs.T
    expected = np.atleast_2d(arc_variance(AL, kind))
    measured = np.atleast_2d(np.cov(rho.T))
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / runs)
    # The tolerance is Z standard errors, the transient that has not decayed yet, and O(1/N).
    clusters = 2 if kind == "binary" else 4
    rate = 2 * ring_radius(kind, AL) * (AL - clusters * AL**2)
    transient = np.exp(-2 * time * rate)
    assert np.all(np.abs(measured - expected) < Z * error + (transient + 3 / N) * variances.max())


def exact_optimum(kind, snr):
    """Size b of the units at the optimal fixed point with R = 0, by quadrature.

    There |m| = |v| = b, where b solves al = - sum_c w_c E[x_mu 1{x_mu > 0} e_c]. The sum is over
    the clusters c with weights w_c, and e_c is the error on a sample of cluster c.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    weight /= weight.sum()
    nodes, area = np.polynomial.legendre.leggauss(80)
    half = 5 * (nodes + 1)  # the half line z > 0, up to 10 standard deviations
    area = 5 * area * np.exp(-0.5 * half**2) / np.sqrt(2 * np.pi)
    near, far = 1 + z / np.sqrt(snr), half / np.sqrt(snr)

    def balance(b):
        if kind == "binary":  # f = b^2 x_mu
            return AL - 0.5 * weight @ (near * special.expit(-(b**2) * near))
        # f = b^2 (|x_mu| - |x_nu|). In the cluster mu+, x_mu is near 1 and x_nu has either sign;
        # in nu+ and nu-, x_nu is near 1 and x_mu > 0 is small.
        aligned = 2 * np.einsum(
            "i,j,ij", weight, area, near[:, None] * special.expit(-(b**2) * (near[:, None] - far))
        )
        orthogonal = 2 * np.einsum(
            "i,j,ij", weight, area, far * special.expit(b**2 * (far - near[:, None]))
        )
        return AL - 0.25 * (aligned - orthogonal)

    return optimize.brentq(balance, 0.1, 3.0, xtol=1e-15)


def test_optimum_at_large_snr():
    # The expansion leaves an error O(snr^-2) for the binary mixture, and O(1/snr) for XOR.
    gaps = np.array(
        [exact_optimum("binary", snr) - optimum("binary", AL, snr) for snr in (100, 200, 400)]
    )
    np.testing.assert_allclose(gaps[:-1] / gaps[1:], 4, rtol=0.1)
    gaps = np.array(
        [exact_optimum("xor", snr) - optimum("xor", AL, snr) for snr in (1e4, 2e4, 4e4)]
    )
    np.testing.assert_allclose(gaps[:-1] / gaps[1:], 2, rtol=0.1)
    # Reference values with R included, at c_delta = 1.
    assert abs(optimum("binary", AL, 100) - 1.173936869495) < 1 / 100**2
    assert abs(exact_optimum("xor", 1000) - 0.609402) < 2e-4
    assert optimum("xor", AL, np.inf) == np.sqrt(ring_radius("xor", AL))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring_radius("three", 0.1), "kind = 'three'"),
        (lambda: ring_radius("xor", 0.0), "alpha = 0.0"),
        (lambda: arc_variance(0.125, "xor"), "alpha = 0.125.*below 0.125"),
        (lambda: mixture_components()[0].representative(0.2), "alpha = 0.2"),
        (lambda: mixture_components("xor", 9), "width = 9"),
        (
            lambda: rescaled_diffusion("binary", [1.0, 1.0], AL),
            "type '\\+' is 2. It must be C_alpha = 1.38629",
        ),
        (
            lambda: rescaled_diffusion("binary", [np.sqrt(ring_radius("binary", AL)), 0.0], AL),
            "end of an arc",
        ),
        (
            lambda: rescaled_diffusion("xor", ARCS["xor"], AL, types=("mu+",)),
            "one type for each of the 4",
        ),
        (
            lambda: rescaled_diffusion("xor", ARCS["xor"], AL, types=("mu+", "mu+", "mu-", "nu-")),
            "type 'mu-' has the other sign",
        ),
        (lambda: arc_paths("binary", ARCS["binary"], AL, [2.0, 1.0], 3), "times = .*increasing"),
        (lambda: optimum("xor", AL, 0.0), "snr = 0.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_above_the_threshold_only_zero_is_left():
    with pytest.warns(UserWarning, match="only fixed point is 0"):
        assert optimum("xor", 0.2, 100.0) == 0.0
    with pytest.warns(UserWarning, match="only fixed point is 0"):
        assert measured_success("binary", 0.3, runs=7).counts == (7, 0, 0)


def test_types_cover_the_clusters():
    # Exactly one type belongs to each cluster, and the sign of its head agrees with the label.
    assert sorted(mixtures.TYPES["binary"].values()) == [(0, -1, -1), (0, 1, 1)]
    assert sorted(mixtures.TYPES["xor"].values()) == [
        (0, -1, 1),
        (0, 1, 1),
        (1, -1, -1),
        (1, 1, -1),
    ]
