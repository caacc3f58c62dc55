"""Single-index targets: drift and noise of the overlap against d-dimensional steps, first-passage
times, exponents of the samples in d.
"""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest
from scipy import integrate
from tests.conftest import Z

import sgdynamics as sgd

# the package has a function of the same name as the module
paper = import_module("sgdynamics_reproductions.dimension_free.single_index")


@pytest.mark.parametrize("kappa", paper.KAPPAS)
def test_links_have_their_exponent_and_variance_one(kappa):
    coefficients = sgd.hermite_coefficients(paper.link(kappa), 6)
    assert np.all(np.abs(coefficients[1:kappa]) < 1e-12)
    assert abs(coefficients[kappa]) > 0.5
    if kappa > 1:
        diffusion = paper.overlap_diffusion(kappa, 0.0)
        # gradient flow at small m: kappa c^2 m^(kappa - 1)
        assert diffusion.drift(0.01) == pytest.approx(
            kappa * coefficients[kappa] ** 2 * 0.01 ** (kappa - 1), rel=2e-3
        )


@pytest.mark.parametrize(("kappa", "noise"), [(1, 0.5), (3, 0.0), (4, 0.2)])
def test_drift_and_variance_are_those_of_one_step(kappa, noise):
    """Steps w <- (w + h x)/|w + h x| with x in d dimensions, of which only <w, x>, <w*, x> and |x|
    matter: NumPy alone.
    """
    lr, m, d, samples = 0.4, 0.35, 100_000, 500_000
    s = paper.link(kappa)
    generator = np.random.default_rng(kappa)
    u, xi, z = generator.normal(size=(3, samples))
    v = m * u + math.sqrt(1 - m**2) * xi
    norm = u**2 + xi**2 + generator.chisquare(d - 2, size=samples)
    value, slope, label = (
        np.asarray(s.derivative(order)(x)) for order, x in ((0, u), (1, u), (0, v))
    )
    h = (lr / d) * slope * (label + math.sqrt(noise) * z - value)
    change = ((m + h * v) / np.sqrt(1 + 2 * h * u + h**2 * norm) - m) * d / lr
    diffusion = paper.overlap_diffusion(kappa, lr, noise=noise)
    # float32 links in plain JAX are good to 1e-6; what is beyond d -> infinity is of order 1/d
    slack = 5 / d * change.std()
    assert abs(change.mean() - diffusion.drift(m)) < Z * change.std() / math.sqrt(samples) + slack
    square = (change - change.mean()) ** 2
    assert (
        abs(square.mean() - diffusion.variance(m))
        < Z * square.std() / math.sqrt(samples) + slack * change.std()
    )


def test_passage_times_against_closed_forms_and_quadrature():
    constant = np.polynomial.Polynomial([1.0])
    b, V, lr, d, top = 0.7, 1.3, 0.5, 200.0, 0.5
    flat = paper.OverlapDiffusion(b * constant, V * constant, lr, top, even=True)
    m = np.array([0.0, 0.02, 0.1, 0.45])
    k = 2 * b * d / (lr * V)
    expected = (top - m) / b - (np.exp(-k * m) - np.exp(-k * top)) / (b * k)
    np.testing.assert_allclose(flat.mean_samples(m, d), expected * d / lr, rtol=1e-6)
    np.testing.assert_allclose(flat.ode_samples(m, d), (top - m) / b * d / lr, rtol=1e-6)
    # no noise to speak of: the diffusion is the ODE; and the ODE is a quadrature
    diffusion = paper.overlap_diffusion(2, 1 / 6)
    time = integrate.quad(lambda x: 1 / diffusion.drift(x), 0.2, 0.5, epsrel=1e-10)[0]
    assert diffusion.ode_samples(0.2, 1e9) == pytest.approx(time * 6e9, rel=1e-6)
    assert diffusion.ode_samples(-0.2, 1e9) == diffusion.ode_samples(0.2, 1e9)
    assert diffusion.mean_samples(0.2, 1e9) == pytest.approx(time * 6e9, rel=1e-5)
    # below the barrier m* = lr F/signal the ODE of exponent 3 does not leave, and the diffusion
    # does
    lr = 0.1
    stuck = paper.overlap_diffusion(3, lr)
    barrier = lr * paper.scaling(3).friction / paper.scaling(3).signal
    assert np.isinf(stuck.ode_samples(0.8 * barrier, 100))
    assert np.isfinite(stuck.ode_samples(1.3 * barrier, 100))
    assert np.isfinite(stuck.mean_samples(0.8 * barrier, 100))


def test_learning_rates_scale_and_at_a_fixed_one_the_start_is_stable():
    for kappa, power in ((1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0)):
        ratio = paper.learning_rate(kappa, 100) / paper.learning_rate(kappa, 400)
        assert ratio == pytest.approx(4**power, rel=1e-12)
    for d in (100, 10_000):
        fixed = paper.overlap_diffusion(3, 0.05).drift.deriv()(0.0)
        assert fixed == pytest.approx(-0.05 * paper.scaling(3).friction, rel=1e-6)
        # with the scaled rate a start at 1/sqrt(d) grows, at half the speed of gradient flow
        m, flow = 1 / math.sqrt(d), paper.overlap_diffusion(3, 0.0)
        assert paper.overlap_diffusion(3, paper.learning_rate(3, d)).drift(m) == pytest.approx(
            flow.drift(m) / 2, rel=0.05
        )


@pytest.mark.slow
def test_sgd_follows_the_diffusion_and_a_wrong_exponent_shows():
    """Exponent 3 from the exact chain: d^2."""
    runs, d, rows = 256, np.array([12, 48]), []
    for size in d.tolist():
        lr = paper.learning_rate(3, size)
        n, m = paper.escape_samples(3, size, lr=lr, runs=runs, seed=3)
        assert np.all(m > 0)
        assert not np.isnan(n).any()
        rows.append(
            (
                n.mean(),
                n.std(ddof=1) / math.sqrt(runs),
                paper.overlap_diffusion(3, lr).mean_samples(m, size).mean(),
            )
        )
    mean, error, theory = np.array(rows).T
    # the diffusion is a limit: some percent away at these d
    assert np.all(np.abs(mean - theory) < Z * error + 0.1 * theory), (mean, error, theory)
    exponent, doubt = paper.fitted_slope(np.log(d), np.log(mean), error / mean)
    assert Z * doubt < 0.4
    assert abs(exponent - 2) < Z * doubt + 0.1


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="kappa"):
        paper.link(5)
    with pytest.raises(ValueError, match="threshold"):
        paper.overlap_diffusion(2, 0.1, threshold=1.0)
    with pytest.raises(ValueError, match="lr"):
        paper.escape_samples(2, 100, lr=0.0)


@pytest.mark.slow
def test_exit_times_of_the_library_agree():
    """The ODE's exit from its event, and the chain's from `exit_time` with the same starts."""
    problem, d, lr = paper.single_index_problem(2), 100, paper.learning_rate(2, 100)
    n, m = paper.escape_samples(2, d, lr=lr, runs=64, seed=3)
    several = sgd.random_start(problem, dimension=d, runs=64, seed=3)
    initial_state = sgd.Start(np.abs(several.M_blocks), several.Q_blocks, several.a)
    common = {"threshold": paper.THRESHOLD, "criterion": "overlap", "max_time": 100.0}
    chain = sgd.exit_time(
        problem, sgd.OnePassSGD(lr=lr), initial_state, method="exact", dimension=d, seed=4, **common
    )
    np.testing.assert_allclose(chain.alpha * d, n, rtol=1e-9)
    ode = sgd.exit_time(problem, sgd.OnePassSGD(lr=lr), initial_state, **common)
    np.testing.assert_allclose(
        ode.alpha * d, paper.overlap_diffusion(2, lr).ode_samples(m, d), rtol=1e-5
    )


@pytest.mark.slow
def test_figure_has_the_exponents(tmp_path):
    """The quick figure: each exponent within its interval of the diffusion's, and the fixed rate
    that does not leave.
    """
    fig, data = paper.single_index(quick=True)
    fig.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    sgd.save(data, tmp_path / "data.nc")
    at = data.attrs
    for kappa in paper.KAPPAS:
        doubt = (at[f"exponent_{kappa}_high"] - at[f"exponent_{kappa}"]) / 1.96
        assert abs(at[f"exponent_{kappa}"] - at[f"exponent_{kappa}_diffusion"]) < Z * doubt + 0.1
    shares = np.asarray(data.share_fixed_lr)
    assert at["growth_rate_fixed_lr"] < 0
    assert shares[0] > 0.9
    # in twice its mean, 0.85 of the diffusion's paths have left at d = 96 (4000 of them, by Euler
    # steps); 64 runs of the chain were made
    expected, error = 0.85, math.sqrt(0.85 * 0.15 / 64)
    assert abs(float(data.share_scaled_lr[-1]) - expected) < Z * error
    assert shares[-1] < expected - Z * error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kappa", "counts"),
    [
        (1, {100: 512, 1000: 256, 10_000: 64}),
        (2, {100: 512, 1000: 256, 10_000: 64}),
        (3, {20: 256, 63: 256, 200: 128}),
        (4, {8: 512, 20: 256, 50: 64, 80: 32}),
    ],
)
def test_exponents_over_a_decade(kappa, counts):
    """n ~ d, d log d, d^2, d^3; what is left of finite d is of the size that the diffusion has."""
    data = paper._measure(kappa, counts, 5)
    d, n, error, theory = (
        np.asarray(data[f"{name}_{kappa}"])
        for name in ("d", "samples", "error", "samples_diffusion")
    )
    doubt = (data.attrs[f"exponent_{kappa}_high"] - data.attrs[f"exponent_{kappa}"]) / 1.96
    expected = data.attrs[f"exponent_{kappa}_diffusion"]
    assert abs(data.attrs[f"exponent_{kappa}"] - expected) < Z * doubt + 0.1
    assert Z * doubt < 0.4
    # the same in the limit: far out, the diffusion has the exponent itself
    far = [1e6, 1e8]
    times = [
        paper.overlap_diffusion(kappa, paper.learning_rate(kappa, size)).mean_samples(
            1 / math.sqrt(size), size
        )
        for size in far
    ]
    slope = math.log(times[1] / times[0]) / math.log(100)
    logarithm = math.log(math.log(1e8) / math.log(1e6)) / math.log(100) if kappa == 2 else 0.0
    assert slope == pytest.approx(max(1, kappa - 1) + logarithm, abs=0.01)
    if kappa == 1:
        assert n[-1] / d[-1] == pytest.approx(
            paper.scaling(1).prefactor, rel=0.02 + Z * error[-1] / n[-1]
        )
    if kappa == 2:
        slope, doubt = paper.fitted_slope(np.log(d), n / d, error / d)
        assert abs(slope - paper.scaling(2).prefactor) < Z * doubt
    assert theory[-1] == pytest.approx(n[-1], rel=0.1 + Z * error[-1] / n[-1])
