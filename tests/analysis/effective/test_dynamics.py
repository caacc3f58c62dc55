"""Effective dynamics against closed forms of spiked tensors and mixtures, and dense references."""

from __future__ import annotations

import doctest
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.analysis.effective import sampling, task
from sgdynamics.analysis.effective.dynamics import effective_dynamics
from sgdynamics.analysis.effective.estimates import check_means
from tests.conftest import FALSE_ALARM, Z

# Relative deviation that a comparison with a closed form would detect.
DETECTED = 0.05


def check_estimate(value, error, exact, scale, name):
    """Check an estimate within its error, which must be small enough to detect 5% of `scale`."""
    value, error, exact = np.asarray(value), np.asarray(error), np.asarray(exact)
    assert np.all(np.abs(value - exact) <= Z * error + 1e-12), (
        f"{name}: {value} for {exact} ± {error}"
    )
    assert np.all(Z * error <= DETECTED * scale + 1e-9), (
        f"{name}: the error {error} would hide 5% of {scale}"
    )


# Spiked matrix and tensor: L = |Y - x^(k)|^2 + (al/2)|x|^2, Y = lam v^(k) + W, v = e_1.

LAM, AL = 1.2, 0.2


def power(x, k):
    result = x
    for _ in range(k - 1):
        result = result[..., None] * x
    return result


def sample_2(key, d):
    return jax.random.normal(key, (d**2,))


def sample_3(key, d):
    return jax.random.normal(key, (d**3,))


def spiked_loss(k):
    def loss(x, noise):
        spike = LAM * power(jnp.zeros_like(x).at[0].set(1.0), k)
        residual = spike + noise.reshape(spike.shape) - power(x, k)
        return jnp.sum(residual**2) + AL / 2 * jnp.sum(x**2)

    return loss


LOSS = {2: spiked_loss(2), 3: spiked_loss(3)}
SAMPLE = {2: sample_2, 3: sample_3}


def overlap_and_norm(x):
    return jnp.stack([x[0], jnp.sum(x[1:] ** 2)])


def rescaled_overlap_and_norm(x):
    return jnp.stack([jnp.sqrt(x.size) * x[0], jnp.sum(x[1:] ** 2)])


def spiked_point(n, m, r2):
    direction = np.linspace(1.0, 2.0, n - 1)
    return np.concatenate([[m], direction * np.sqrt(r2 / np.sum(direction**2))])


def spiked_closed_form(k, n, m, r2, delta):
    """f, g and Sigma of (m, r2) at finite n, from V = 4 [k R^(2k-2) I + k (k-1) R^(2k-4) x x^T]."""
    R2 = m**2 + r2
    # V = isotropic I + radial x x^T
    isotropic, radial = 4 * k * R2 ** (k - 1), 4 * k * (k - 1) * R2 ** (k - 2)
    shrink = 2 * k * R2 ** (k - 1) + AL
    f = np.array([shrink * m - 2 * k * LAM * m ** (k - 1), 2 * shrink * r2])
    g = np.array([0.0, delta * (isotropic * (n - 1) + radial * r2)])
    cross = 2 * radial * m * r2
    sigma = [[isotropic + radial * m**2, cross], [cross, 4 * (isotropic * r2 + radial * r2**2)]]
    return f, g, delta * np.array(sigma)


def dense_reference(k, x, delta):
    """f, g, Sigma and |grad Phi|^2 from the full covariance V = A A^T of the gradient.

    A is the linear map from the noise to the gradient.
    """
    n = len(x)
    A = np.zeros((n, n**k))
    for column, index in enumerate(itertools.product(range(n), repeat=k)):
        for axis in range(k):
            factors = [x[i] for other, i in enumerate(index) if other != axis]
            A[index[axis], column] -= 2 * np.prod(factors)
    V = A @ A.T
    J = np.stack([np.eye(n)[0], np.concatenate([[0.0], 2 * x[1:]])])
    hessian = np.diag([0.0] + (n - 1) * [2.0])
    mean = A @ (LAM * np.eye(n**k)[0] - power(x, k).reshape(-1)) + AL * x
    return (
        J @ mean,
        np.array([0.0, delta / 2 * np.sum(V * hessian)]),
        delta * J @ V @ J.T,
        float(mean @ mean),
    )


@pytest.mark.parametrize(("k", "n"), [(2, 10), (3, 5)])
def test_spiked_matrix_and_tensor(k, n):
    m, r2, lr = 0.3, 0.8, 0.1
    x, delta = spiked_point(n, m, r2), lr / n
    settings = {"lr": lr, "dimension": n, "samples": 22_000}
    result = effective_dynamics(
        LOSS[k], SAMPLE[k], overlap_and_norm, point=x, antithetic=jnp.negative, **settings
    )
    f, g, sigma = spiked_closed_form(k, n, m, r2, delta)
    for closed_form, reference in zip((f, g, sigma), dense_reference(k, x, delta), strict=False):
        np.testing.assert_allclose(closed_form, reference, atol=1e-12)
    np.testing.assert_allclose(result.statistics, [m, r2], rtol=1e-12)
    # The gradient is linear in the noise, so that negated noise cancels in the drift.
    np.testing.assert_allclose(result.drift, f, rtol=1e-10)
    assert np.all(result.drift_error < 1e-10)
    check_estimate(result.corrector, result.corrector_error, g, g, "corrector")
    check_estimate(
        result.mean_increment,
        result.mean_increment_error,
        g - f,
        np.abs(g) + np.abs(f),
        "mean increment",
    )
    root = np.sqrt(np.diag(sigma))
    check_estimate(
        result.diffusion, result.diffusion_error, sigma, np.outer(root, root), "diffusion"
    )
    norm = dense_reference(k, x, delta)[3]
    check_estimate(
        result.gradient_norm_squared,
        result.gradient_norm_squared_error,
        norm,
        norm,
        "gradient norm",
    )
    if k == 3:
        return
    # At the saddle sqrt(n) m diffuses with 4 c k u2^(k-1), at any n.
    saddle = effective_dynamics(
        LOSS[k],
        SAMPLE[k],
        rescaled_overlap_and_norm,
        point=spiked_point(n, 0.0, r2),
        antithetic=jnp.negative,
        **settings,
    )
    exact = 4 * lr * k * r2 ** (k - 1)
    check_estimate(
        saddle.diffusion[0, 0],
        saddle.diffusion_error[0, 0],
        exact,
        exact,
        "diffusion at the saddle",
    )
    # One step of the exact chain: E m, Var m, and
    # E r2 = r2 + delta (-f + g) + delta^2 |grad Phi outside v|^2.
    assert m - delta * f[0] == pytest.approx(0.30312)
    assert delta * sigma[0, 0] == pytest.approx(7.84e-4)
    assert r2 + delta * (g - f)[1] + delta**2 * (f[1] / 2) ** 2 / r2 == pytest.approx(0.748019008)


# Gaussian mixtures: X = s q + z/sqrt(snr) and the logistic loss of v.relu(W X). The statistics are
# v, m = W mu (and W nu), and R, the Gram matrix of the rows of W outside of the means.

SNR = 2.0
V2, M2, R2 = np.array([0.8, -0.5]), np.array([0.3, 0.2]), np.array([[0.5, 0.1], [0.1, 0.7]])
V4 = np.array([0.9, 0.7, -0.8, -0.6])
M4 = np.array([[0.4, -0.3, 0.1, -0.2], [0.1, 0.2, -0.5, 0.3]])
R4 = np.array(
    [
        [0.63, 0.11, -0.14, 0.35],
        [0.11, 0.45, 0.12, -0.11],
        [-0.14, 0.12, 0.31, 0.09],
        [0.35, -0.11, 0.09, 0.5],
    ]
)


def normals(key, d):
    return jax.random.normal(key, (d + 2,))


def mixture(signals, decay):
    """A draw is d + 2 normals: the signs of the first two choose the cluster, the rest is noise."""

    def cluster(y):
        # Binary: +-mu with labels 1, 0. XOR: +-mu with label 1, +-nu with label 0.
        if signals == 1:
            return jnp.sign(y[0]), 0, y[0] > 0
        return jnp.sign(y[0]), jnp.where(y[1] > 0, 0, 1), y[1] > 0

    def loss(x, y):
        sign, signal, label = cluster(y)
        data = y[2:] / jnp.sqrt(SNR) + sign * (jnp.arange(y.size - 2) == signal)
        output = x["v"] @ jax.nn.relu(x["W"] @ data)
        norms = jnp.sum(x["v"] ** 2) + jnp.sum(x["W"] ** 2)
        return jax.nn.softplus(output) - jnp.where(label, output, 0.0) + decay / 2 * norms

    def antithetic(y):
        return jnp.concatenate([y[:2], -y[2:]])

    def controls(y):
        """Even functions of the relevant noise, alone and times the signs of the cluster.

        Antithetic pairs cancel odd functions already.
        """
        count = signals + (2 if signals == 1 else 4)
        z = y[2 : 2 + count]
        even = jnp.outer(z, z)[jnp.triu_indices(count)] - jnp.eye(count)[jnp.triu_indices(count)]
        signs = jnp.sign(y[:signals])
        signs = jnp.concatenate([signs, jnp.prod(signs)[None]]) if signals == 2 else signs
        return jnp.concatenate([signs, even, *(sign * even for sign in signs)])

    def statistics(x):
        outside = x["W"][:, signals:]
        upper = np.triu_indices(len(outside))
        return jnp.concatenate(
            [x["v"], *(x["W"][:, q] for q in range(signals)), (outside @ outside.T)[upper]]
        )

    return {
        "loss": loss,
        "sample": normals,
        "statistics": statistics,
        "antithetic": antithetic,
        "controls": controls,
    }


def mixture_point(v, m, R, d):
    m = np.atleast_2d(m)
    W = np.zeros((len(v), d))
    W[:, : len(m)] = m.T
    W[:, len(m) : len(m) + len(v)] = np.linalg.cholesky(R)
    return {"v": v, "W": W}


def binary_exact(d, decay, delta):
    """f, g, Sigma of the seven statistics at finite d, by quadrature.

    The quadrature is over both fields, split at the kinks, and over X.mu given the fields.
    """
    nodes, weights = np.polynomial.legendre.leggauss(48)
    Q = np.outer(M2, M2) + R2
    half = 4 * (nodes + 1)
    line, width = np.concatenate([-half, half]), np.concatenate([weights, weights]) * 4
    h = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    gauss, share = np.polynomial.hermite_e.hermegauss(6)
    columns, mass = [], []
    for sign in (1.0, -1.0):
        density = (
            stats.multivariate_normal(sign * M2, Q / SNR).pdf(h[:, 0])
            * np.outer(width, width).ravel()
            / 2
        )
        gain = np.linalg.solve(Q, M2)
        x = sign + (h - sign * M2) @ gain + np.sqrt((1 - M2 @ gain) / SNR) * gauss
        e = 1 / (1 + np.exp(-np.maximum(h, 0) @ V2)) - (sign > 0)
        columns.append(
            np.concatenate(
                [
                    np.broadcast_to(h, (*x.shape, 2)),
                    x[..., None],
                    np.broadcast_to(e[..., None], (*x.shape, 1)),
                ],
                axis=-1,
            )
        )
        mass.append(np.outer(density, share / share.sum()))
    h1, h2, x, e = np.concatenate(columns).reshape(-1, 4).T
    mass = np.concatenate(mass).ravel()
    h, active = np.stack([h1, h2]), np.stack([h1 > 0, h2 > 0])
    zeta = h - M2[:, None] * x
    push = V2[:, None] * e * active
    D = np.stack(
        [
            *(e * np.maximum(h, 0)),
            *(push * x),
            *(push[i] * zeta[j] + push[j] * zeta[i] for i, j in ((0, 0), (0, 1), (1, 1))),
        ]
    )
    mean = D @ mass
    norm = (SNR * np.einsum("in,ij,jn->n", zeta, np.linalg.inv(R2), zeta) + d - 3) / SNR
    outside = np.einsum("in,jn,n->ij", push, zeta, mass)
    growth = (
        np.einsum("in,jn,n->ij", push, push, mass * norm) - outside @ np.linalg.inv(R2) @ outside.T
    )
    f = mean + decay * np.concatenate([V2, M2, 2 * R2[np.triu_indices(2)]])
    g = np.concatenate([np.zeros(4), delta * growth[np.triu_indices(2)]])
    return f, g, delta * ((D * mass) @ D.T - np.outer(mean, mean)), {
        "A": np.einsum("in,n->i", e * active, mass * x),
        "Aperp": np.einsum("in,jn,n->ij", e * active, zeta, mass),
        "B": np.einsum("in,jn,n->ij", e * active, e * active, mass),
    }  # fmt: skip


def test_binary_mixture():
    d, decay, lr = 32, 0.1, 1.0
    f, g, sigma, moments = binary_exact(d, decay, lr / d)
    np.testing.assert_allclose(moments["A"], [-0.226358145197966, -0.233778449108416], atol=1e-9)
    np.testing.assert_allclose(
        moments["Aperp"].ravel(),
        [0.017562025318612, -0.009202202762247, 0.013327359374818, -0.008425346984023],
        atol=1e-9,
    )
    np.testing.assert_allclose(
        moments["B"][np.triu_indices(2)],
        [0.113797688266163, 0.070443819122, 0.117868368033395],
        atol=1e-9,
    )
    limit = -f + np.concatenate(
        [np.zeros(4), lr * (np.outer(V2, V2) * moments["B"])[np.triu_indices(2)] / SNR]
    )
    printed = [
        -0.02965458175922,
        0.10518103680571,
        0.15108651615837,
        -0.13688922455421,
        -0.09168398026461,
        -0.02006332192719,
        -0.13369180097985,
    ]
    np.testing.assert_allclose(limit, printed, atol=1e-9)
    functions = mixture(1, decay)
    result = effective_dynamics(
        **functions, point=mixture_point(V2, M2, R2, d), lr=lr, dimension=d, samples=20_000
    )
    families = [slice(0, 2), slice(2, 4), slice(4, 7)]
    for family in families:
        value, error, exact = result.drift[family], result.drift_error[family], f[family]
        check_estimate(value, error, exact, np.abs(exact).max(), "drift")
        value, error, exact = result.corrector[family], result.corrector_error[family], g[family]
        check_estimate(value, error, exact, np.abs(exact).max(), "corrector")
    root = np.sqrt(np.diag(sigma))
    check_estimate(
        result.diffusion, result.diffusion_error, sigma, np.outer(root, root), "diffusion"
    )


@pytest.mark.slow  # the test of two clusters is fast
def test_xor_mixture():
    d, lr = 32, 1.0
    functions = mixture(2, 0.0)
    result = effective_dynamics(
        **functions, point=mixture_point(V4, M4, R4, d), lr=lr, dimension=d, samples=32_000
    )
    A = np.array(
        [
            [-0.02814623828, 0.05265103168, -0.01344229844, 0.05099906036],
            [0.04041490456, 0.06522686779, -0.03419851094, 0.07084578565],
        ]
    )
    outside = np.array([0.03109141406, 0.02012432794, -0.02051912717, -0.00627913488])
    f_v, f_m, f_R = np.sum(M4 * A, axis=0) + outside, (V4 * A).ravel(), 2 * V4 * outside
    diagonal, first = [12, 16, 19, 21], [12, 13]
    for family, exact in ((slice(0, 4), f_v), (slice(4, 12), f_m), (diagonal, f_R)):
        value, error = result.drift[family], result.drift_error[family]
        check_estimate(value, error, exact, np.abs(exact).max(), "drift")
    # The limit is c v_i v_j B_ij/snr. At finite d there are d - 2 directions outside of the means,
    # and a correction of order 1/d from the correlation of |X|^2 there with the error.
    B = np.array([V4[0] ** 2 * 0.12809526688, V4[0] * V4[1] * 0.06546284797])
    limit = lr * B / SNR * (d - 2) / d
    assert np.all(
        np.abs(result.corrector[first] - limit) <= Z * result.corrector_error[first] + 0.02 * limit
    )
    assert np.all(Z * result.corrector_error[first] <= 0.03 * limit)
    assert np.all(result.corrector[:12] == 0)
    # W_i.dL/dW_i = v_i dL/dv_i for each draw: without decay v_i^2 - |W_i|^2 does not change to
    # first order, in mean or noise.
    J = np.zeros((4, 22))
    for i in range(4):
        J[i, [i, 4 + i, 8 + i, diagonal[i]]] = 2 * V4[i], -2 * M4[0, i], -2 * M4[1, i], -1.0
    np.testing.assert_allclose(J @ result.drift, 0, atol=1e-12)
    np.testing.assert_allclose(J @ result.diffusion, 0, atol=1e-12)
    assert np.linalg.eigvalsh(result.diffusion)[4] > 0


# A small problem with known moments: the gradient is q(y) = (y0 + y1^2, y1 y2 + 1/2, y2 + y0), with
# y uniform of variance one.

MU, COV = np.array([1.0, 0.5, 0.0]), np.array([[1.8, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 2.0]])
HESSIANS = np.array([np.diag([0.0, 2.0, 0.0]), 2 * np.eye(3), [[0, 1, 0], [1, 0, 0], [0, 0, 0]]])
UPPER = np.triu_indices(3)
POINT = np.array([0.5, -0.3, 0.8])


def small_sample(key, d):
    return jax.random.uniform(key, (d,), minval=-(3**0.5), maxval=3**0.5)


def small_loss(x, y):
    assert y.dtype == jnp.float64
    return x[0] * (y[0] + y[1] ** 2) + x[1] * (y[1] * y[2] + 0.5) + x[2] * (y[2] + y[0])


def small_statistics(x):
    return jnp.stack([x[0] + x[1] ** 2, x @ x, x[0] * x[1]])


def small_controls(y):
    return y**2 - 1


def small_exact(mean, second, delta):
    """f, g and Sigma in one vector, from the mean and the covariance of the gradient."""
    x = POINT
    J = np.array([[1, 2 * x[1], 0], 2 * x, [x[1], x[0], 0]])
    return np.concatenate(
        [
            J @ mean,
            delta / 2 * np.einsum("iab,ab->i", HESSIANS, second),
            (delta * J @ second @ J.T)[UPPER],
        ]
    )


def small(**options):
    settings = {"point": POINT, "lr": 1.0, "dimension": 3, "samples": 256, **options}
    return effective_dynamics(small_loss, small_sample, small_statistics, **settings)


def concatenate_terms(result, suffix=""):
    """f, g and Sigma (or their errors) in one vector."""
    terms = (getattr(result, name + suffix) for name in ("drift", "corrector", "diffusion"))
    drift, corrector, diffusion = terms
    return np.concatenate([drift, corrector, diffusion[UPPER]])


@pytest.mark.parametrize(
    "options",
    [{}, {"antithetic": jnp.negative, "controls": small_controls}],
    ids=["plain", "pairs and controls"],
)
def test_errors_are_honest(options):
    seeds = 120
    exact = small_exact(MU, COV, 1 / 3)
    h = exact[3:6] - exact[:3]
    rows = []
    for seed in range(seeds):
        result = small(seed=seed, **options)
        norm_deviation = result.gradient_norm_squared - MU @ MU
        rows.append(
            np.concatenate(
                [
                    (concatenate_terms(result) - exact) / concatenate_terms(result, "_error"),
                    (result.mean_increment - h) / result.mean_increment_error,
                    [norm_deviation / result.gradient_norm_squared_error],
                ]
            )
        )
    z = np.array(rows)
    assert np.all(np.abs(z.mean(axis=0)) <= Z / np.sqrt(seeds)), z.mean(axis=0)
    # A sum of squares of standard normals; slightly more for the norm, whose error comes from 16
    # groups.
    low, high = stats.chi2.ppf(FALSE_ALARM / 2, seeds), stats.chi2.isf(FALSE_ALARM / 2, seeds)
    assert np.all((low < (z**2).sum(axis=0)) & ((z**2).sum(axis=0) < high)), (z**2).mean(axis=0)


@pytest.mark.parametrize("pairs", [False, True], ids=["draws", "pairs"])
def test_estimates_are_the_unbiased_ones_of_the_same_draws(pairs, monkeypatch):
    """E[G G^T] is the mean over draws, E[G] E[G]^T the mean over pairs of different units."""
    samples = 512
    # Two chunks, whose draws are computed twice.
    monkeypatch.setattr(task, "LARGEST_CHUNK", 256)
    monkeypatch.setattr(task, "STORED_BYTES", 0)
    result = small(antithetic=jnp.negative if pairs else None, samples=samples, seed=7)
    with jax.enable_x64(True):
        keys = sampling.random_keys((7,), 0, samples)
        functions = task.Functions((small_sample,))
        chunks = [sampling.draw_samples(functions, 3, chunk) for chunk in (keys[:256], keys[256:])]
        y = np.concatenate(chunks)
    draws = np.stack([y, -y] if pairs else [y], axis=1)
    G = np.stack(
        [
            draws[..., 0] + draws[..., 1] ** 2,
            draws[..., 1] * draws[..., 2] + 0.5,
            draws[..., 2] + draws[..., 0],
        ],
        axis=-1,
    )
    unit = G.mean(axis=1)
    product = (np.outer(unit.sum(axis=0), unit.sum(axis=0)) - unit.T @ unit) / (
        samples * (samples - 1)
    )
    second = np.einsum("nda,ndb->ab", G, G) / (samples * G.shape[1]) - product
    np.testing.assert_allclose(
        concatenate_terms(result),
        small_exact(unit.mean(axis=0), second, 1 / 3),
        rtol=1e-10,
        atol=1e-12,
    )
    np.testing.assert_allclose(result.mean_increment, result.corrector - result.drift, rtol=1e-10)
    assert result.draws == samples * (1 + pairs)


def test_seeds_and_compiled_programs():
    def count_programs():
        functions = (sampling.unit_gradients, sampling.directional_derivatives)
        return [function._cache_size() for function in functions]

    first = small(seed=3)
    programs = count_programs()
    faster = small(seed=3, lr=2.0)
    np.testing.assert_array_equal(faster.drift, first.drift)
    np.testing.assert_allclose(faster.diffusion, 2 * first.diffusion, rtol=1e-12)
    assert not np.allclose(small(seed=4, point=POINT + 0.1).drift, first.drift)
    assert count_programs() == programs
    assert jnp.ones(1).dtype == jnp.float32
    assert "corrector g" in str(first)
    assert "u3" in str(first)


def test_example_of_the_docstring():
    runner = doctest.DocTestRunner()
    test = doctest.DocTestFinder(recurse=False).find(
        effective_dynamics, "effective_dynamics", globs={"np": np, "sgd": sgd}
    )[0]
    assert len(test.examples) > 5
    assert runner.run(test).failed == 0


def test_controls_and_pairs_of_the_wrong_law():
    rng = np.random.default_rng(0)
    control, zero = rng.normal(size=(200, 3)), np.zeros((200, 1, 1))
    check_means(zero, zero, control)
    with pytest.raises(ValueError, match=r"controls: entry 1 has mean 1\.\d+ over the draws"):
        check_means(zero, zero, control + np.array([0.0, 1.0, 0.0]))
    draw = rng.normal(size=(200, 1, 1))
    pairs = np.concatenate([draw, -draw], axis=1)
    check_means(pairs, 0 * pairs, control)
    with pytest.raises(
        ValueError, match="antithetic: the draws it returns do not have the law of sample"
    ):
        check_means(pairs + np.array([[0.0], [2.0]]), 0 * pairs, control)


def cheap_sample(key, d):
    """Deterministic numbers that look random and compile fast, for messages."""
    return jnp.sin(jax.random.key_data(key)[0].astype(float) * jnp.arange(1.0, d + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": 3}, r"loss = 3: give a function, loss\(x, y\)"),
        ({"loss": lambda x, y: x}, r"loss returns .*shape"),
        (
            {"loss": lambda x: x[0]},
            r"loss, called as loss\(point, sample\(key, dimension\)\), failed with TypeError",
        ),
        ({"loss": lambda x, y: jnp.sum(x @ jnp.ones((5, 5)))}, "loss, called as"),
        (
            {"sample": lambda key: jax.random.normal(key)},
            r"sample, called as sample\(key, dimension\), failed with TypeError",
        ),
        (
            {"sample": lambda key, d: np.asarray(jax.random.normal(key, (d,)))},
            "sample, called as .* Give a JAX function",
        ),
        ({"statistics": lambda x: x @ x}, r"statistics returns .*of shape \(k,\)"),
        ({"statistics": lambda x: [x[0], x[1]]}, r"statistics returns .*of shape \(k,\)"),
        ({"point": lambda d: POINT}, "point = .*give the parameters themselves"),
        ({"point": {}}, "point = .*give the parameters"),
        ({"point": ["a", "b"]}, "point = 'a': the dtype is .*Give arrays of real numbers"),
        ({"point": np.array([1.0, np.nan, 0.0])}, "point = .*give finite arrays"),
        ({"lr": 0.0}, "lr = 0.0: give a number above 0"),
        ({"dimension": 2.5}, "dimension = 2.5"),
        ({"samples": 15}, "samples = 15: give a whole number, 16 or more"),
        ({"seed": -1}, "seed = -1"),
        ({"antithetic": 1}, "antithetic = 1: give a function"),
        ({"antithetic": lambda y: y[:2]}, "antithetic returns .*same structure and shapes"),
        ({"controls": lambda y: y[0]}, "controls returns .*mean zero"),
        (
            {"controls": small_controls, "samples": 20},
            "samples = 20: give ten for each of the 3 controls",
        ),
        ({"names": ["a", "b"]}, "names = .*give 3 names"),
        (
            {"sample": cheap_sample, "loss": lambda x, y: jnp.sqrt(x[0] - 0.5) + y[0] * x[1]},
            "point: the gradient of loss is not finite for 64",
        ),
        (
            {
                "sample": cheap_sample,
                "statistics": lambda x: jnp.stack([x[1], jnp.sqrt(x[0] - 0.5)]),
            },
            "statistics: u2 or its first two derivatives are not finite",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    settings = {
        "loss": small_loss,
        "sample": small_sample,
        "statistics": small_statistics,
        "point": POINT,
        "lr": 1.0,
        "dimension": 3,
    }
    with pytest.raises(ValueError, match=message):
        effective_dynamics(**{**settings, "samples": 64, **change})
