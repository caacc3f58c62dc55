"""Moments of ReLU networks on Gaussian clusters: published values, brute force, derivatives."""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from sgdynamics.expectations import half_lines, mixtures, nested
from tests.conftest import FALSE_ALARM, Z

BINARY = [(0, 1, 1.0, 0.5), (0, -1, 0.0, 0.5)]  # direction, sign, label, weight of each cluster
XOR = [(0, 1, 1.0, 0.25), (0, -1, 1.0, 0.25), (1, 1, 0.0, 0.25), (1, -1, 0.0, 0.25)]


# programs that run for a moment only: to optimise them takes longer than what that would save
QUICK = {"xla_backend_optimization_level": 0}


@lru_cache
def program(function, quadrature, width):
    """A compiled function of the library at one rule, and its nodes."""
    nodes = mixtures.build_nodes(quadrature, width)
    if function is not mixtures.error:
        nodes = {name: value[0] for name, value in nodes.items()}
    return jax.jit(
        lambda nodes, *state: function(quadrature, nodes, *state), compiler_options=QUICK
    ), nodes


def evaluate(means, covariance, head, labels, function=mixtures.cluster_moments, quadrature=None):
    width = len(head)
    run, nodes = program(function, quadrature or mixtures.choose_quadrature(width), width)
    with jax.enable_x64(True):
        return jax.tree.map(
            np.asarray,
            run(nodes, *(np.asarray(x, float) for x in (means, covariance, head, labels))),
        )


def clusters(kinds, M):
    return np.array([sign * M[:, q] for q, sign, _, _ in kinds]), np.array(
        [label for _, _, label, _ in kinds]
    )


def drift(kinds, v, M, R, snr, decay, lr, quadrature=None):
    """The right-hand side at any snr, put together from the moments; also A, A_perp and B."""
    means, labels = clusters(kinds, M)
    moments = evaluate(means, (M @ M.T + R) / snr, v, labels, quadrature=quadrature)
    A, Aperp, B = np.zeros_like(M), np.zeros_like(R), np.zeros_like(R)
    for k, (q, sign, _, weight) in enumerate(kinds):
        A[:, q] += weight * sign * moments.P[k]
        A += weight / snr * (M * moments.D[k][:, None] + (moments.S[k] * v) @ M)
        Aperp += weight / snr * (R * moments.D[k][:, None] + (moments.S[k] * v) @ R)
        B += weight * moments.B[k]
    dR = (
        -v[:, None] * Aperp - (v[:, None] * Aperp).T - 2 * decay * R + lr * np.outer(v, v) * B / snr
    )
    return (
        -np.sum(M * A, axis=1) - np.diag(Aperp) - decay * v,
        -v[:, None] * A - decay * M,
        dR,
        (A, Aperp, B),
    )


STATE7 = (np.array([0.8, -0.5]), np.array([[0.3], [0.2]]), np.array([[0.5, 0.1], [0.1, 0.7]]))
R10 = np.zeros((4, 4))
R10[np.triu_indices(4)] = (0.63, 0.11, -0.14, 0.35, 0.45, 0.12, -0.11, 0.31, 0.09, 0.5)
R10 += np.triu(R10, 1).T
STATE10 = (
    np.array([0.9, 0.7, -0.8, -0.6]),
    np.array([[0.4, 0.1], [-0.3, 0.2], [0.1, -0.5], [-0.2, 0.3]]),
    R10,
)


@pytest.mark.slow
def test_binary_values_and_right_hand_side():
    v, M, R = STATE7
    dv, dM, dR, (A, Aperp, B) = drift(BINARY, v, M, R, 2.0, 0.1, 1.0)
    np.testing.assert_allclose(A[:, 0], [-0.226358145197966, -0.233778449108416], atol=3e-15)
    np.testing.assert_allclose(
        Aperp.ravel(),
        [0.017562025318612, -0.009202202762247, 0.013327359374818, -0.008425346984023],
        atol=3e-15,
    )
    np.testing.assert_allclose(
        B[np.triu_indices(2)], [0.113797688266163, 0.070443819122000, 0.117868368033395], atol=3e-15
    )
    right = [
        -0.02965458175922,
        0.10518103680571,
        0.15108651615837,
        -0.13688922455421,
        -0.09168398026461,
        -0.02006332192719,
        -0.13369180097985,
    ]
    np.testing.assert_allclose(np.r_[dv, dM[:, 0], dR[np.triu_indices(2)]], right, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "state"),
    [(BINARY, STATE7), pytest.param(XOR, STATE10, marks=pytest.mark.slow)],
    ids=["binary", "xor"],
)
def test_balance_of_head_and_rows(kinds, state):
    """(v_i^2 - |W_i|^2)' = -2 al (v_i^2 - |W_i|^2) - lr v_i^2 B_ii/snr."""
    v, M, R = state
    snr, decay, lr = 2.0, 0.1, 0.7
    dv, dM, dR, (_, _, B) = drift(kinds, v, M, R, snr, decay, lr)
    gap = v**2 - np.sum(M**2, axis=1) - np.diag(R)
    moved = 2 * v * dv - 2 * np.sum(M * dM, axis=1) - np.diag(dR)
    np.testing.assert_allclose(moved, -2 * decay * gap - lr * v**2 * np.diag(B) / snr, atol=1e-14)


def test_binary_optimum():
    """Two units at +-mu: |v|, |m|, R11 at snr 100."""

    def residual(u):
        v, m, same, cross = u
        R = np.array([[same, cross], [cross, same]])
        dv, dM, dR, _ = drift(BINARY, np.array([v, -v]), np.array([[m], [-m]]), R, 100.0, 0.1, 1.0)
        return np.array([dv[0], dM[0, 0], 100 * dR[0, 0], 100 * dR[0, 1]])

    root = optimize.root(residual, [1.17, 1.17, 1.4e-3, 0.0], tol=1e-14)
    np.testing.assert_allclose(
        root.x[:3], [1.173936869495, 1.173943526005, 1.410230123587e-3], rtol=2e-12
    )


def optimum_state(u):
    v, m, same, opposite, cross = u
    R = np.full((4, 4), cross)
    R[[0, 1, 2, 3], [1, 0, 3, 2]] = opposite
    np.fill_diagonal(R, same)
    return np.array([v, v, -v, -v]), np.array([[m, 0], [-m, 0], [0, m], [0, -m]]), R


@pytest.mark.slow
def test_xor_optimum():
    """Units at +-mu and +-nu, antiparallel in pairs up to R/Q = 4e-4, with R nearly singular.

    The values are |v|, |m|, R11, R13 at snr 1000.
    """

    def residual(u):
        dv, dM, dR, _ = drift(XOR, *optimum_state(u * scale), 1000.0, 0.1, 1.0)
        return np.array([dv[0], dM[0, 0], 1e3 * dR[0, 0], 1e3 * dR[0, 1], 1e3 * dR[0, 2]])

    scale = np.array([1.0, 1.0, 1e-4, 1e-6, 1e-4])
    root = optimize.root(residual, [0.61, 0.61, 1.5, 1.0, -0.75], tol=1e-10)
    v, m, same, _, cross = root.x * scale
    np.testing.assert_allclose(
        [v, m, same, cross], [0.609402, 0.609405, 1.52417e-4, -7.6192e-5], rtol=4e-6
    )


XOR_A = [
    [-0.02814623828, 0.05265103168, -0.01344229844, 0.05099906036],
    [0.04041490456, 0.06522686779, -0.03419851094, 0.07084578565],
]
XOR_PERP = [0.03109141406, 0.02012432794, -0.02051912717, -0.00627913488]
XOR_B = [0.12809526688, 0.06546284797]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fine", "tolerance"), [(False, 1e-8), pytest.param(True, 1e-9, marks=pytest.mark.slow)]
)
def test_xor_values(fine, tolerance):
    _, _, _, (A, Aperp, B) = drift(
        XOR, *STATE10, 2.0, 0.1, 1.0, quadrature=mixtures.choose_quadrature(4, fine=fine)
    )
    np.testing.assert_allclose(A.T, XOR_A, atol=tolerance)
    np.testing.assert_allclose(np.diag(Aperp), XOR_PERP, atol=tolerance)
    np.testing.assert_allclose(B[0, :2], XOR_B, atol=tolerance)


def nearly_parallel():
    """All four units along +-mu, as on a fixed point that has learned one class: on +-nu all signs
    are open at once.
    """
    v, m, same, twin, cross = 0.344061815, 0.344151596, 6.03148059e-4, 6.02937392e-4, 7.69424e-6
    R = np.full((4, 4), cross)
    R[[0, 1, 2, 3], [1, 0, 3, 2]] = twin
    np.fill_diagonal(R, same)
    return np.full(4, v), np.array([[m, 0], [m, 0], [-m, 0], [-m, 0]]), R


@pytest.mark.slow
def test_nearly_parallel_units_against_their_angles():
    """With a small head B_ij -> P(h_i > 0, h_j > 0)/4, known from the angle, at gaps below 1e-3."""
    _, M, R = nearly_parallel()
    Q = M @ M.T + R
    norm = np.sqrt(np.diag(Q))
    angle = np.arccos(np.clip(Q / np.outer(norm, norm), -1, 1))
    quadrant = (np.pi - angle) / (2 * np.pi)
    moments = evaluate(np.zeros((4, 4)), Q / 100, np.full(4, 1e-9), np.array([0.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(moments.B, np.broadcast_to(quadrant / 4, (4, 4, 4)), atol=1e-5)
    assert quadrant[0, 2] < 0.02  # a thin wedge between antiparallel units: all of it is layer


@pytest.mark.slow
def test_fine_rule():
    v, M, R = nearly_parallel()
    means, labels = clusters(XOR, M)
    state = (means, (M @ M.T + R) / 100, v, labels)
    finest = mixtures.MixtureQuadrature(
        line=12, inner=(8, 8, 24), outer=(10, 8, 16), graded=18, span=7.0
    )
    fast, fine, truth = (
        evaluate(*state, quadrature=quadrature)
        for quadrature in (None, mixtures.choose_quadrature(4, fine=True), finest)
    )
    for quadrature, values, tolerance in (
        (mixtures.choose_quadrature(4), fast, 1e-5),
        (mixtures.choose_quadrature(4, fine=True), fine, 1e-6),
    ):
        gap = max(
            np.abs(value - expected).max() for value, expected in zip(values, truth, strict=True)
        )
        assert gap < tolerance
        assert (
            gap < evaluate(*state, function=mixtures.error, quadrature=quadrature) < 100 * tolerance
        )


# brute force


def brute(mean, covariance, head, label, panels):
    """P, S, B, risk on a tensor grid of Gauss-Legendre panels, cut at all kinks."""
    node, weight = np.polynomial.legendre.leggauss(16)
    root = np.linalg.cholesky(covariance)
    z, weights = np.zeros((1, 0)), np.ones(1)
    for k in range(len(mean)):
        kink = np.clip(-(mean[k] + z @ root[k, :k]) / root[k, k], -8, 8)
        pieces = []
        for low, high in ((-8 * np.ones_like(kink), kink), (kink, 8 * np.ones_like(kink))):
            cuts = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, panels + 1)
            length = np.diff(cuts, axis=1)[..., None]
            x = (cuts[:, :-1, None] + length * (node + 1) / 2).reshape(len(z), -1)
            pieces.append((x, (length * weight / 2).reshape(len(z), -1) * stats.norm.pdf(x)))
        x, w = (np.concatenate(both, axis=1) for both in zip(*pieces, strict=True))
        z = np.concatenate([np.repeat(z, x.shape[1], axis=0), x.reshape(-1, 1)], axis=1)
        weights = np.repeat(weights, x.shape[1]) * w.reshape(-1)
        keep = weights > 1e-20
        z, weights = z[keep], weights[keep]
    h = mean + z @ root.T
    return averages(h, weights, head, label)


def averages(h, weights, head, label):
    active = (h >= 0).astype(float)
    f = np.maximum(h, 0) @ head
    q = special.expit(f)
    e = q - label
    outer = lambda x: active.T @ (active * (weights * x)[:, None])  # noqa: E731
    return (
        active.T @ (weights * e),
        outer(q * (1 - q)),
        outer(e**2),
        weights @ (np.logaddexp(0, f) - label * f),
    )


def condition(i, mean, covariance, head):
    others = [j for j in range(len(mean)) if j != i]
    slope = covariance[others, i] / covariance[i, i]
    residual = covariance[np.ix_(others, others)] - np.outer(slope, slope) * covariance[i, i]
    return (
        stats.norm.pdf(mean[i] / np.sqrt(covariance[i, i])) / np.sqrt(covariance[i, i]),
        mean[others] - slope * mean[i],
        residual,
        head[others],
    )


def one_e(mean, covariance, head, label, panels):
    """E[e] from brute force: on the units' active set or none."""
    if len(mean) == 0:
        return 0.5 - label
    plus_silent_unit = (
        np.r_[mean, 1.0],
        np.pad(covariance, (0, 1)) + np.diag(np.r_[0 * mean, 1e-6]),
        np.r_[head, 0.0],
    )
    return brute(*plus_silent_unit, label, panels)[0][
        -1
    ]  # a unit that is always active and adds nothing


LABELS = np.array([0.0, 1.0, 0.0, 1.0])


def random_state(width, clusters):
    generator = np.random.default_rng(width)
    W = generator.standard_normal((width, width + 1))
    return (
        generator.standard_normal((clusters, width)),
        W @ W.T / 8,
        1.2 * generator.standard_normal(width),
        LABELS[:clusters],
    )


@pytest.mark.parametrize(
    ("width", "clusters", "panels", "tolerance"),
    [(1, 2, 6, 1e-14), (2, 2, 6, 1e-13), (3, 4, 3, 3e-8)],
)
def test_random_states_against_brute_force(width, clusters, panels, tolerance):
    state = means, covariance, head, labels = random_state(width, clusters)
    moments = evaluate(*state)
    for k in (0, 1):
        truth = brute(means[k], covariance, head, labels[k], panels)
        for value, expected in zip(
            (moments.P[k], moments.S[k], moments.B[k], moments.risk[k]), truth, strict=True
        ):
            np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)
        for i in range(width if width < 3 else 0):
            density, *at_kink = condition(i, means[k], covariance, head)
            np.testing.assert_allclose(
                moments.D[k, i],
                density * one_e(*at_kink, labels[k], panels),
                rtol=0,
                atol=tolerance,
            )


@pytest.mark.slow
@pytest.mark.parametrize(("width", "tolerance"), [(3, 1e-7), (4, 2e-4)])
def test_edges_against_stein(width, tolerance):
    """dP_i/dmean_j = delta_ij D_i + v_j S_ij: D from differences of P, which never uses it."""
    means, covariance, head, labels = random_state(width, 4)
    moments = evaluate(means, covariance, head, labels)
    step = 1e-3
    for j in range(width):
        shift = step * np.eye(width)[j]
        at = {s: evaluate(means + s * shift, covariance, head, labels).P for s in (-2, -1, 1, 2)}
        slope = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)
        np.testing.assert_allclose(
            slope,
            moments.D * np.eye(width)[j] + head[j] * moments.S[:, :, j],
            rtol=0,
            atol=tolerance,
        )


# singular covariances

HEAD4 = np.array([0.9, -0.4, 0.6, 0.8])


@pytest.mark.slow
def test_equal_rows_are_one_unit():
    """h_1 = h_2 and h_3 = h_4: moments of two units with heads v_1 + v_2, v_3 + v_4."""
    pair, mean = (
        np.array([[0.3, 0.1], [0.1, 0.4]]),
        np.array([[0.3, -0.4], [-0.2, 0.1], [0.0, 0.0], [1.0, 2.0]]),
    )
    labels = np.array([0.0, 1.0, 0.0, 1.0])
    copy = np.repeat(np.eye(2), 2, axis=0)
    four = evaluate(mean @ copy.T, copy @ pair @ copy.T, HEAD4, labels)
    two = [evaluate(mean[k : k + 2], pair, HEAD4 @ copy, labels[k : k + 2]) for k in (0, 2)]
    P, D, S, B, risk = (np.concatenate(both) for both in zip(*two, strict=True))
    for value, expected in zip(
        four, (P @ copy.T, D @ copy.T, copy @ S @ copy.T, copy @ B @ copy.T, risk), strict=True
    ):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_opposite_rows_against_one_dimension():
    """h_2 = -h_1: one integral, by scipy; and continuous as the correlation tends to -1."""
    mean, deviation, head = 0.3, 0.8, np.array([1.2, -0.7])
    means, labels = np.array([[mean, -mean], [mean, -mean]]), np.array([0.0, 1.0])
    opposite = np.array([[1.0, -1.0], [-1.0, 1.0]]) * deviation**2
    exact = evaluate(means, opposite, head, labels)
    for k, label in enumerate(labels):

        def average(function, low, high, label=label):
            density = lambda h: stats.norm.pdf(h, mean, deviation)  # noqa: E731
            e = (  # noqa: E731
                lambda h: special.expit(head[0] * max(h, 0) + head[1] * max(-h, 0)) - label
            )
            return integrate.quad(lambda h: density(h) * function(e(h)), low, high, epsabs=1e-13)[0]

        np.testing.assert_allclose(
            exact.P[k], [average(lambda e: e, 0, 9), average(lambda e: e, -9, 0)], atol=1e-12
        )
        diagonal = [average(lambda e: e**2, 0, 9), average(lambda e: e**2, -9, 0)]
        np.testing.assert_allclose(exact.B[k], np.diag(diagonal), atol=1e-12)
        np.testing.assert_allclose(
            exact.D[k], (0.5 - label) * stats.norm.pdf(0, mean, deviation), atol=1e-12
        )
    gap = 1e-6
    near = evaluate(means, opposite + gap * np.diag([0.0, deviation**2]), head, labels)
    assert max(
        np.abs(value - expected).max() for value, expected in zip(exact, near, strict=True)
    ) < 10 * np.sqrt(gap)


def test_no_variance_at_all_or_in_one_unit():
    means = np.array(
        [
            [0.3, -0.2, 0.5, 0.0],
            [-1.0, -0.3, -0.2, -0.1],
            [0.2, 0.4, 0.1, 0.6],
            [0.0, 0.0, 0.0, 0.0],
        ]
    )
    labels = np.array([0.0, 1.0, 0.0, 1.0])
    still = evaluate(means, np.zeros((4, 4)), HEAD4, labels)
    for k, label in enumerate(labels):
        P, S, B, risk = averages(means[k : k + 1], np.ones(1), HEAD4, label)
        for value, expected in zip(
            (still.P[k], still.S[k], still.B[k], still.risk[k]), (P, S, B, risk), strict=True
        ):
            np.testing.assert_allclose(value, expected, atol=1e-13)
    np.testing.assert_array_equal(still.D, 0.0)
    # units 3 and 4 without variance shift f where their means are positive
    pair = np.array([[0.3, 0.1], [0.1, 0.4]])
    padded = evaluate(np.c_[means[:, :2], -np.ones((4, 2))], np.pad(pair, (0, 2)), HEAD4, labels)
    two = [evaluate(means[k : k + 2, :2], pair, HEAD4[:2], labels[k : k + 2]) for k in (0, 2)]
    P, D, S, B, risk = (np.concatenate(both) for both in zip(*two, strict=True))
    for value, expected in zip(
        (padded.P[:, :2], padded.D[:, :2], padded.S[:, :2, :2], padded.B[:, :2, :2], padded.risk),
        (P, D, S, B, risk),
        strict=True,
    ):
        np.testing.assert_allclose(value, expected, atol=1e-5)
    np.testing.assert_allclose(padded.B[:, 2:], 0.0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "tolerance"), [(2, 1e-8), pytest.param(4, 1e-3, marks=pytest.mark.slow)]
)
def test_derivatives(width, tolerance):
    """Along a line of states they are those of differences, and finite at singular ones."""
    means, covariance, head, labels = random_state(width, 2)
    quadrature = mixtures.choose_quadrature(width)
    nodes = program(mixtures.cluster_moments, quadrature, width)[1]
    step, (to_means, to_covariance, to_head, _) = 1e-4, random_state(width + 4, 2)
    to_means, to_covariance, to_head = (
        to_means[:, :width],
        to_covariance[:width, :width],
        to_head[:width],
    )

    def slopes(*state):
        return jax.jvp(
            lambda *state: mixtures.cluster_moments(quadrature, nodes, *state, labels)[:4],
            state,
            (to_means, to_covariance, to_head),
        )[1]

    def at(s):
        return evaluate(
            means + s * step * to_means,
            covariance + s * step * to_covariance,
            head + s * step * to_head,
            labels,
        )

    with jax.enable_x64(True):
        compiled = jax.jit(slopes, compiler_options=QUICK)
        jvp = compiled(means, covariance, head)
        for value, *near in zip(jvp, *(at(s)[:4] for s in (-2, -1, 1, 2)), strict=True):
            expected = (8 * (near[2] - near[1]) - (near[3] - near[0])) / (12 * step)
            np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)
        line = np.where(np.arange(width) % 2, -1.0, 1.0)
        for singular in (
            np.ones((width, width)),
            np.outer(line, line),
            np.diag(np.eye(width)[0]),
            np.zeros((width, width)),
        ):
            assert all(np.all(np.isfinite(value)) for value in compiled(means, singular, head))


# sampling


@pytest.mark.slow
@pytest.mark.parametrize("width", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_wide_networks_against_monte_carlo(width):
    generator = np.random.default_rng(width)
    W = generator.standard_normal((width, width)) / 2
    covariance, means, head = (
        W @ W.T,
        generator.standard_normal((2, width)) / 2,
        generator.standard_normal(width),
    )
    labels = np.array([0.0, 1.0])
    quadrature = mixtures.MixtureQuadrature(replicates=8)
    nodes = mixtures.build_nodes(quadrature, width)
    with jax.enable_x64(True):
        run = jax.jit(
            jax.vmap(
                lambda node: mixtures.cluster_moments(
                    quadrature, node, means, covariance, head, labels
                )
            ),
            compiler_options=QUICK,
        )
        replicates = jax.tree.map(np.asarray, run(nodes))
    few = stats.t.isf(FALSE_ALARM / 2, quadrature.replicates - 1)
    count = 2**20
    z = generator.standard_normal((count, width))
    h = means[0] + z @ np.linalg.cholesky(covariance).T
    e = special.expit(np.maximum(h, 0) @ head)
    active = (h >= 0).astype(float)
    loss = np.logaddexp(0, np.maximum(h, 0) @ head)
    pairs = active[:, 0] * active[:, 1]
    truth = {"P": active * e[:, None], "S": pairs * e * (1 - e), "B": pairs * e**2, "risk": loss}
    density, mean, residual, others = condition(0, means[0], covariance, head)
    at_edge = mean + z[:, 1:] @ np.linalg.cholesky(residual).T
    truth["D"] = density * special.expit(np.maximum(at_edge, 0) @ others)
    mine = {
        "P": replicates.P[:, 0],
        "S": replicates.S[:, 0, 0, 1],
        "B": replicates.B[:, 0, 0, 1],
        "risk": replicates.risk[:, 0],
        "D": replicates.D[:, 0, 0],
    }
    for name, samples in truth.items():
        spread = mine[name].std(axis=0, ddof=1) / np.sqrt(quadrature.replicates)
        allowed = Z * samples.std(axis=0) / np.sqrt(count) + few * spread
        assert np.all(np.abs(mine[name].mean(axis=0) - samples.mean(axis=0)) <= allowed), name
        assert np.all(spread < 0.02 * np.abs(samples.mean())), name


# the rules themselves


def test_half_line_rules():
    """Exact up to degree 2n - 1: E[z^k 1{z > edge}] by recurrence; Gauss-Hermite far below 0."""
    count, edges = 6, np.linspace(-10, 8, 37)
    with jax.enable_x64(True):
        nodes, weights = (
            np.asarray(x) for x in jax.jit(half_lines.upper)(half_lines.table(count), edges)
        )
    moments = [stats.norm.sf(edges), stats.norm.pdf(edges)]
    for k in range(2, 2 * count):
        moments.append(edges ** (k - 1) * stats.norm.pdf(edges) + (k - 1) * moments[k - 2])
    for k, moment in enumerate(moments):
        np.testing.assert_allclose(
            np.sum(weights * nodes**k, axis=1), moment, rtol=1e-11, atol=1e-13 * 3.0**k
        )
    np.testing.assert_allclose(nodes[0], special.roots_hermitenorm(count)[0], atol=1e-11)


def test_error_estimate_and_rule():
    for scale, low, high in (
        (1.0, 0.0, 1e-9),
        (40.0, 1e-9, 1.0),
    ):  # a steep head is harder, and the estimate says so
        estimate = evaluate([[0.3], [-0.2]], [[0.5]], [scale], [0.0, 1.0], function=mixtures.error)
        assert low <= estimate < high
    with pytest.raises(ValueError, match=r"width = 0: give a whole number, 1 or more"):
        mixtures.choose_quadrature(0)


@pytest.mark.slow
def test_half_lines_alone_where_they_suffice():
    """Without pairs the moments are the same, and the error tells where pairs are needed."""
    with_pairs = mixtures.choose_quadrature(4)
    alone = mixtures.choose_quadrature(4, pairs=False)
    rows = 0.3 * np.eye(4) + 0.03 * np.random.default_rng(0).standard_normal((4, 4))
    means, labels = rows[:2], np.array([1.0, 0.0])
    head = np.array([1.0, -0.8, 0.5, -0.3])
    state = means, rows @ rows.T, head, labels
    for first, second in zip(
        evaluate(*state, quadrature=alone), evaluate(*state, quadrature=with_pairs), strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-14)
    assert evaluate(*state, function=mixtures.error, quadrature=alone) < 1e-7
    rows[1] = rows[0] + 0.003 * rows[1]  # nearly parallel
    state = means, rows @ rows.T, head, labels
    assert evaluate(*state, function=mixtures.error, quadrature=alone) >= nested.TRUSTED
