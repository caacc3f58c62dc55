"""The closed results on Gaussian mixtures at snr = infinity, against the flow, SGD itself, and
exact enumerations.
"""

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
    """M and its entry in each unit's own direction, written out from the paper's list."""
    values = {"+": 1, "-": 1, "mu+": 1, "mu-": -1, "nu+": 1, "nu-": -1}
    own = np.array([DIRECTION[name] for name in types])
    M = np.zeros((len(a), 1 if kind == "binary" else 2))
    M[np.arange(len(a)), own] = [values[name] * x for name, x in zip(types, a, strict=True)]
    return M, own


def cases():
    """An arc and an optimal fixed point of each kind."""
    found = []
    for kind, a in ARCS.items():
        arc = ("+", "+") if kind == "binary" else ("mu+", "mu+", "nu+", "nu+")
        best = np.sqrt(ring_radius(kind, AL)) * np.array(
            [1, -1] if kind == "binary" else [1, 1, -1, -1]
        )
        found += [
            pytest.param(kind, a, None, arc, id=f"{kind}-arc"),
            pytest.param(kind, best, SPLIT[kind], SPLIT[kind], id=f"{kind}-best"),
        ]
    return found


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
    found = mixture_components()
    assert len(found) == 39
    assert Counter(len(one.active) for one in found) == {0: 1, 1: 4, 2: 6, 3: 4, 4: 24}
    assert sum(one.stable for one in found) == 24
    assert sorted(stratum for one in found for stratum in one.strata) == sorted(
        itertools.product(("0", *SPLIT["xor"]), repeat=4)
    )
    for one in found:
        assert one.dimension == (4 - len(one.active) if one.active else 0)
        assert one.stable == (len(one.active) == 4)
        assert all(
            {name for name in stratum if name != "0"} == set(one.active) for stratum in one.strata
        )
    assert [(len(one.active), one.dimension, one.stable) for one in mixture_components("binary")] == [
        (0, 0, False), (1, 1, False), (1, 1, False), (2, 0, True), (2, 0, True),
    ]  # fmt: skip
    # with a spare unit all optima are connected; with fewer units than types nothing is left to
    # grow
    assert [one.stable for one in mixture_components("xor", 5)] == [False] * 15 + [True]
    assert sum(one.stable for one in mixture_components("xor", 2)) == 12


@pytest.mark.slow
def test_representatives_are_fixed_points():
    for kind in ("binary", "xor"):
        points = [one.representative(AL) for one in mixture_components(kind)]
        M, Q, a = (np.stack([point[name] for point in points]) for name in ("M", "Q", "a"))
        moved = solve_infinite_snr(kind, M, Q, a, times=[5.0], weight_decay=AL)
        np.testing.assert_allclose(moved["M"][:, 0], M, atol=1e-9)
        np.testing.assert_allclose(moved["a"][:, 0], a, atol=1e-9)
        share = [(1 + len(one.active) / len(SPLIT[kind])) / 2 for one in mixture_components(kind)]
        np.testing.assert_allclose(infinite_snr_accuracy(kind, M, a), share)


def test_stability_of_every_stratum():
    # a random point of each of the 625 strata, perturbed: an idle unit can be sent to a missing
    # type, else all stays near
    rng, alpha, small = np.random.default_rng(0), 0.05, 1e-3
    C = ring_radius("xor", alpha)
    strata = [stratum for one in mixture_components() for stratum in one.strata]
    a, M, leaves = (
        np.zeros((len(strata), 4)),
        np.zeros((len(strata), 4, 2)),
        np.zeros(len(strata), bool),
    )
    for n, stratum in enumerate(strata):
        for name in SPLIT["xor"]:
            mine = np.array([one == name for one in stratum])
            size = rng.uniform(0.3, 1, size=4) * mine
            a[n] += (1 if name[:2] == "mu" else -1) * size * np.sqrt(C / max(size @ size, 1e-300))
        for unit, name in enumerate(stratum):
            if name != "0":
                M[n, unit, DIRECTION[name]] = a[n, unit] * (1 if name[2] == "+" else -1)
        idle, missing = (
            [u for u in range(4) if stratum[u] == "0"],
            [name for name in SPLIT["xor"] if name not in stratum],
        )
        leaves[n] = bool(idle and missing)
    v, m = (
        a + small * rng.uniform(-1, 1, size=a.shape),
        M + small * rng.uniform(-1, 1, size=M.shape),
    )
    for n in np.nonzero(leaves)[0]:
        unit, name = (
            strata[n].index("0"),
            next(name for name in SPLIT["xor"] if name not in strata[n]),
        )
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
    # all signatures of five units, by hand: v > 0 goes by the sign of m^mu, v < 0 by that of m^nu
    ends = [
        {(v, mu if v else nu) for v, mu, nu in units}
        for units in itertools.product(itertools.product((0, 1), repeat=3), repeat=5)
    ]
    count = Counter(map(len, ends))
    assert active_types_probability("xor", 5) == tuple(count[n] / 8**5 for n in (1, 2, 3, 4))


def check_measured(kind, runs, width=None, **more):
    found = measured_success(kind, AL, runs=runs, width=width, **more)
    expected = np.array([0.0, *active_types_probability(kind, width)])
    assert sum(found.counts) == runs == found.runs
    assert found.counts[0] == 0
    assert stats.chisquare(found.counts[1:], runs * expected[1:]).pvalue > 1e-6
    p = success_probability(kind, width)
    assert abs(found.fraction - p) < Z * np.sqrt(p * (1 - p) / runs)
    np.testing.assert_allclose(
        found.standard_error, np.sqrt(found.fraction * (1 - found.fraction) / runs)
    )


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
    """The rate of (v, m in the units' own directions) and its Jacobian by automatic
    differentiation, jitted.
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
    """The gradient of one sample's loss at snr = infinity in full space: rows W (K, d), x = the
    cluster's mean.
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
    # noise only along the mode that relaxes
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
        # rho' = - rate rho + noise: the stationary covariance solves a Lyapunov equation
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
        # covariance' = A c + c A + Sigma, as one linear system
        flow = np.kron(A, np.eye(8)) + np.kron(np.eye(8), A)
        both = np.block([[flow, Sigma.reshape(-1, 1)], [np.zeros((1, 65))]])
        covariance = (linalg.expm(both * step) @ np.append(covariance.ravel(), 1.0))[:-1].reshape(
            8, 8
        )
        mean = linalg.expm(A * times[n]) @ start
        spread = np.sqrt(np.diag(covariance))
        assert np.all(np.abs(u[:, n].mean(axis=0) - mean) < Z * spread / np.sqrt(runs) + 1e-12)
        error = np.sqrt((np.outer(spread**2, spread**2) + covariance**2) / runs)
        assert np.all(np.abs(np.cov(u[:, n].T) - covariance) < (Z + 1) * error + 1e-12)
    np.testing.assert_array_equal(arc_paths(kind, a, AL, times, 10, seed=3, start=start), u[:10])
    # two times at once are a Markov chain: what is left after the mean is independent of the past
    left = u[:, 2] - u[:, 1] @ linalg.expm(0.5 * A)
    assert np.abs(np.corrcoef(left[:, 0], u[:, 1, 0])[0, 1]) < Z / np.sqrt(runs)


@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_sgd_has_the_stationary_variance_of_the_arc(kind):
    # sqrt(N) around a point of the arc(s): what remains of the clusters is f on the arcs; rate of
    # rho .22 (binary), .049 (XOR)
    N, runs, rng, a = 150, 1000, np.random.default_rng(1), ARCS[kind]
    time = 15.0 if kind == "binary" else 50.0
    v, m = np.tile(a, (runs, 1)), np.tile(a, (runs, 1))
    arcs = np.array([a > 0]) if kind == "binary" else np.array([a > 0, a < 0])
    sign = np.sign(a)
    # one of 2 (4) clusters is seen by each arc; on the others its units are off
    for c in rng.integers(2 * len(arcs), size=(round(N * time), runs)):
        on = (c[:, None] == np.arange(len(arcs))) @ arcs
        e = special.expit(-np.sum(on * np.abs(v * m), axis=1))[:, None] * sign * on
        v, m = v + (e * np.abs(m) - AL * v) / N, m + (e * np.abs(v) - AL * m) / N
    rho = np.sqrt(N) * ((v + m - 2 * a) * a) @ arcs.T
    expected = np.atleast_2d(arc_variance(AL, kind))
    found = np.atleast_2d(np.cov(rho.T))
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / runs)
    # Z standard errors, what has not relaxed yet, and O(1/N)
    slow = np.exp(
        -2 * time * 2 * ring_radius(kind, AL) * (AL - AL**2 * (2 if kind == "binary" else 4))
    )
    assert np.all(np.abs(found - expected) < Z * error + (slow + 3 / N) * variances.max())


def exact_optimum(kind, snr):
    """|v| at the optimal fixed point with R = 0, where |m| = |v| = b and al = - sum_c w E[x_mu
    1{x_mu > 0} e_c], by quadrature.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    weight /= weight.sum()
    half, area = np.polynomial.legendre.leggauss(80)
    half, area = (
        5 * (half + 1),
        5 * area * np.exp(-0.5 * (5 * (half + 1)) ** 2) / np.sqrt(2 * np.pi),
    )  # z > 0
    near, far = 1 + z / np.sqrt(snr), half / np.sqrt(snr)

    def balance(b):
        if kind == "binary":  # f = b^2 x_mu
            return AL - 0.5 * weight @ (near * special.expit(-(b**2) * near))
        # f = b^2 (|x_mu| - |x_nu|): on mu+ x_mu is near 1 and x_nu of either sign, on nu+- the
        # other way round, and x_mu > 0
        served = 2 * np.einsum(
            "i,j,ij", weight, area, near[:, None] * special.expit(-(b**2) * (near[:, None] - far))
        )
        others = 2 * np.einsum(
            "i,j,ij", weight, area, far * special.expit(b**2 * (far - near[:, None]))
        )
        return AL - 0.25 * (served - others)

    return optimize.brentq(balance, 0.1, 3.0, xtol=1e-15)


def test_optimum_at_large_snr():
    # binary to O(snr^-2), XOR to O(1/snr)
    gaps = np.array(
        [exact_optimum("binary", snr) - optimum("binary", AL, snr) for snr in (100, 200, 400)]
    )
    np.testing.assert_allclose(gaps[:-1] / gaps[1:], 4, rtol=0.1)
    gaps = np.array(
        [exact_optimum("xor", snr) - optimum("xor", AL, snr) for snr in (1e4, 2e4, 4e4)]
    )
    np.testing.assert_allclose(gaps[:-1] / gaps[1:], 2, rtol=0.1)
    # with R, at c_delta = 1
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
    # every cluster is served by exactly one type, with the head's sign that its label asks for
    assert sorted(mixtures.TYPES["binary"].values()) == [(0, -1, -1), (0, 1, 1)]
    assert sorted(mixtures.TYPES["xor"].values()) == [
        (0, -1, 1),
        (0, 1, 1),
        (1, -1, -1),
        (1, 1, -1),
    ]
