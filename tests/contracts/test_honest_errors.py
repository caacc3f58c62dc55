"""Stated errors compared with true ones, on problems that are hard for each kind of expectation.

The truth shares no code with the library: NumPy quadrature with its own breaks and a Runge-Kutta
integrator, closed formulas, or brute-force simulation. A case fails if the true error is more than
FACTOR times the stated one. For random estimates the ratio is in standard errors, and the bound
follows from the false-alarm rate. `python -m tests.contracts.test_honest_errors` prints the table
of all cases.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import sgdynamics as sgd
from tests.conftest import Z

FACTOR = 5.0
ROUNDING = 1e-9  # accuracy of the references: smaller errors are not compared
REACH = 8.5  # end of the Gaussian integrals, in standard deviations


class Comparison(NamedTuple):
    """True and stated error of a result, relative to its scale, and the bound on their ratio."""

    true: float
    stated: float
    bound: float = FACTOR

    @property
    def ratio(self) -> float:
        return self.true / max(self.stated, ROUNDING)


# ------------------------------------------------------------ reference: one row, one signal


def pieces(breaks: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and Gaussian weights between sorted breaks (rows, breaks)."""
    x, w = special.roots_legendre(count)
    low, high = breaks[:, :-1, None], breaks[:, 1:, None]
    z = (low + high) / 2 + (high - low) / 2 * x
    weights = (high - low) / 2 * w * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z.reshape(len(breaks), -1), weights.reshape(len(breaks), -1)


def plane(
    M: float,
    Q: float,
    breaks_f: tuple[float, ...],
    breaks_s: tuple[float, ...],
    count: int = 24,
    coarse: int = 12,
):
    """Fields f, signals s and weights of a quadrature with pieces that end at the breaks."""
    s_breaks = np.sort([*np.linspace(-REACH, REACH, coarse), *breaks_s])[None]
    s, ws = pieces(s_breaks, count)
    s, ws = s[0], ws[0]
    orthogonal_scale = np.sqrt(Q - M**2)
    cuts = np.clip((np.array(breaks_f)[None] - M * s[:, None]) / orthogonal_scale, -REACH, REACH)
    u_breaks = np.sort(
        np.concatenate(
            [np.broadcast_to(np.linspace(-REACH, REACH, coarse), (len(s), coarse)), cuts], axis=1
        ),
        axis=1,
    )
    u, wu = pieces(u_breaks, count)
    return (
        M * s[:, None] + orthogonal_scale * u,
        np.broadcast_to(s[:, None], u.shape),
        ws[:, None] * wu,
    )


class Reference(NamedTuple):
    """A loss of one field and one signal, and its derivative with respect to the field.

    The breaks are values of the field and of the signal at which pieces of the quadrature end.
    """

    loss: Callable
    slope: Callable
    breaks_f: tuple[float, ...] = ()
    breaks_s: tuple[float, ...] = ()

    def rates(self, M: float, Q: float, lr: float) -> np.ndarray:
        f, s, w = plane(M, Q, self.breaks_f, self.breaks_s)
        h = self.slope(f, s)
        return np.array([-np.sum(w * h * s), -2 * np.sum(w * h * f) + lr * np.sum(w * h * h)])

    def risk(self, M: float, Q: float) -> float:
        f, s, w = plane(M, Q, self.breaks_f, self.breaks_s)
        return float(np.sum(w * self.loss(f, s)))

    def path(
        self, M: float, Q: float, lrs: float | np.ndarray, times: np.ndarray, steps: int = 12
    ) -> np.ndarray:
        """M, Q and the risk, shape (times, 3), by the classical Runge-Kutta method.

        `lrs` is a learning rate, or the learning rates before each of the times.
        """
        state, rows = np.array([M, Q]), []
        for length, lr in zip(
            np.diff(times, prepend=0.0), np.broadcast_to(lrs, len(times)), strict=True
        ):
            dt = length / steps
            for _ in range(steps if length > 0 else 0):
                k1 = self.rates(*state, lr)
                k2 = self.rates(*(state + dt / 2 * k1), lr)
                k3 = self.rates(*(state + dt / 2 * k2), lr)
                k4 = self.rates(*(state + dt * k3), lr)
                state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            rows.append([*state, self.risk(*state)])
        return np.array(rows)


def network(
    f: Callable,
    df: Callable,
    breaks: tuple[float, ...] = (),
    teacher: Callable | None = None,
    breaks_s=None,
) -> Reference:
    """The squared loss (f(lambda) - t(lambda*))^2/2 of a student f and a teacher t."""
    label = f if teacher is None else teacher
    signal_breaks = breaks if breaks_s is None else breaks_s
    return Reference(
        lambda a, b: (f(a) - label(b)) ** 2 / 2,
        lambda a, b: (f(a) - label(b)) * df(a),
        breaks,
        signal_breaks,
    )


def fine(centre: float, width: float) -> tuple[float, ...]:
    """Breaks around a steep step of this centre and width."""
    return tuple(centre + width * np.array([-8.0, -3.0, -1.0, 0.0, 1.0, 3.0, 8.0]))


def compare_path(
    problem, reference: Reference, M=0.5, Q=1.0, lr=0.1, times=(0.0, 0.1, 0.3), **options
) -> Comparison:
    """Compare the overlaps and the risk of `solve_ode` with a reference."""
    start = sgd.start(problem, M=[[M]], Q=[[Q]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), start, times=list(times), **options)
    exact = reference.path(M, Q, lr, np.array(times))
    values = np.stack(
        [result[name].values.reshape(len(times)) for name in ("M", "Q", "risk")], axis=1
    )
    scale = np.array([np.sqrt(exact[:, 1].max()), exact[:, 1].max(), exact[:, 2].max()])
    error = np.abs(values - exact) / np.maximum(scale, np.abs(exact).max(axis=0))
    stated = max(
        float(result.attrs.get(name) or 0.0) for name in ("error_quadrature", "error_integrator")
    )
    return Comparison(float(error.max()), stated)


def expit_slope(x):
    return special.expit(x) * special.expit(-x)


def steep_tanh():
    """Two steps of width 1/20, on a grid of 8 points per standard deviation."""
    problem = sgd.Problem(
        lambda f, s, a, z: (jnp.tanh(20 * f[0]) - jnp.tanh(20 * s[0])) ** 2 / 2, 1, 1
    )
    reference = network(
        lambda x: np.tanh(20 * x),
        lambda x: 20 / np.cosh(np.clip(20 * x, -300, 300)) ** 2,
        fine(0.0, 0.05),
    )
    return compare_path(problem, reference, times=(0.0, 0.02, 0.05))


def narrow_bump():
    problem = sgd.Problem(
        lambda f, s, a, z: (jnp.exp(-50 * f[0] ** 2) - jnp.exp(-50 * s[0] ** 2)) ** 2 / 2, 1, 1
    )
    reference = network(
        lambda x: np.exp(-50 * x**2), lambda x: -100 * x * np.exp(-50 * x**2), fine(0.0, 0.1)
    )
    return compare_path(problem, reference, Q=100.0, times=(0.0, 0.1))


def far_softplus():
    problem = sgd.Problem(
        lambda f, s, a, z: (f[0] - s[0]) ** 2 / 2 + jnp.log1p(jnp.exp(20 * (f[0] - 5))), 1, 1
    )
    reference = Reference(
        lambda f, s: (f - s) ** 2 / 2 + np.logaddexp(0, 20 * (f - 5)),
        lambda f, s: f - s + 20 * special.expit(20 * (f - 5)),
        fine(5.0, 0.05),
    )
    return compare_path(problem, reference, Q=4.0, times=(0.0, 0.1, 0.3))


def far_step():
    problem = sgd.Problem(
        lambda f, s, a, z: (f[0] - s[0]) ** 2 / 2 + 1000 * jax.nn.sigmoid(50 * (f[0] - 6)), 1, 1
    )
    reference = Reference(
        lambda f, s: (f - s) ** 2 / 2 + 1000 * special.expit(50 * (f - 6)),
        lambda f, s: f - s + 50_000 * expit_slope(50 * (f - 6)),
        fine(6.0, 0.02),
    )
    return compare_path(problem, reference, Q=4.0, lr=1e-6, times=(0.0, 1e-5))


def logistic_regression():
    problem = sgd.Problem(lambda f, s, a, z: jnp.logaddexp(0.0, -f[0] * jnp.tanh(3 * s[0])), 1, 1)
    reference = Reference(
        lambda f, s: np.logaddexp(0, -f * np.tanh(3 * s)),
        lambda f, s: -np.tanh(3 * s) * special.expit(-f * np.tanh(3 * s)),
        (),
        fine(0.0, 0.3),
    )
    return compare_path(problem, reference, lr=1.0, times=(0.0, 0.5, 2.0))


def log_activation():
    """A nearly infinite slope at 0: no Hermite series of 512 terms resolves it."""
    problem = sgd.TeacherStudent(width=1, activation=lambda x: jnp.log(0.001 + x**2))
    reference = network(
        lambda x: np.log(0.001 + x**2), lambda x: 2 * x / (0.001 + x**2), fine(0.0, 0.03)
    )
    return compare_path(problem, reference, lr=0.01, times=(0.0, 0.02))


def fast_sine():
    problem = sgd.TeacherStudent(width=1, activation=lambda x: jnp.sin(10 * x))
    reference = network(
        lambda x: np.sin(10 * x), lambda x: 10 * np.cos(10 * x), tuple(np.linspace(-6, 6, 49))
    )
    return compare_path(problem, reference, lr=0.1, times=(0.0, 0.02))


def steep_activation():
    problem = sgd.TeacherStudent(width=1, activation=lambda x: jnp.tanh(5 * x))
    reference = network(
        lambda x: np.tanh(5 * x),
        lambda x: 5 / np.cosh(np.clip(5 * x, -300, 300)) ** 2,
        fine(0.0, 0.2),
    )
    return compare_path(problem, reference, lr=0.5)


def relu_of_sign():
    problem = sgd.TeacherStudent(width=1, activation="relu", teacher_activation="sign")
    reference = network(lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), (0.0,), np.sign)
    return compare_path(problem, reference, lr=0.5)


def shifted_kink():
    kinked = sgd.Activation(lambda x: jnp.where(x > 0.3, x, 0.1 * x + 0.27), kinks=(0.3,))
    problem = sgd.TeacherStudent(width=1, activation=kinked)
    reference = network(
        lambda x: np.where(x > 0.3, x, 0.1 * x + 0.27),
        lambda x: np.where(x > 0.3, 1.0, 0.1),
        (0.3,),
    )
    return compare_path(problem, reference, lr=0.5)


def undeclared_kink():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = sgd.TeacherStudent(width=1, activation=lambda x: jnp.maximum(x, 0.3))
    reference = network(lambda x: np.maximum(x, 0.3), lambda x: 1.0 * (x > 0.3), (0.3,))
    return compare_path(problem, reference, lr=0.5)


def continuous_slope():
    problem = sgd.TeacherStudent(width=1, activation=jax.nn.elu)
    reference = network(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))),
        (0.0,),
    )
    return compare_path(problem, reference, lr=0.5)


def steep_teacher():
    """A linear student needs two terms of the series, the teacher alone hundreds."""
    problem = sgd.TeacherStudent(
        width=1, activation="linear", teacher_activation=lambda x: jnp.tanh(8 * x)
    )
    reference = network(lambda x: x, np.ones_like, (), lambda x: np.tanh(8 * x), fine(0.0, 0.12))
    return compare_path(problem, reference, lr=0.5)


def target_with_a_jump():
    """A target whose jump is not declared, on a Gauss-Hermite grid."""
    problem = sgd.MultiIndex(
        lambda s: jnp.where(s[0] > 0.2, 1.0, -0.5), directions=1, width=1, activation="tanh"
    )
    reference = network(
        np.tanh, lambda x: 1 - np.tanh(x) ** 2, (), lambda s: np.where(s > 0.2, 1.0, -0.5), (0.2,)
    )
    return compare_path(problem, reference, lr=0.5)


def huber_loss():
    """A loss with kinks: sampled circles and lines."""
    problem = sgd.Problem(
        lambda f, s, a, z: jnp.where(
            jnp.abs(f[0] - s[0]) < 1, (f[0] - s[0]) ** 2 / 2, jnp.abs(f[0] - s[0]) - 0.5
        ),
        1,
        1,
    )

    def rates_loss(f, s):
        return np.where(np.abs(f - s) < 1, (f - s) ** 2 / 2, np.abs(f - s) - 0.5)

    reference = Reference(
        rates_loss,
        lambda f, s: np.clip(f - s, -1, 1),
        tuple(np.linspace(-6, 6, 61)),
        tuple(np.linspace(-6, 6, 61)),
    )
    return compare_path(problem, reference, lr=0.5)


def two_tokens():
    """Two independent tokens.

    The residuals e_l = tanh(4 f_l) - s_l are independent and odd, so all moments are integrals in
    the plane.
    """
    problem = sgd.Problem(
        lambda f, s, a, z: (jnp.sum(jnp.tanh(4 * f[0])) - jnp.sum(s[0])) ** 2 / 2, 1, 1, tokens=2
    )

    class Tokens(Reference):
        def moments(self, M, Q):
            f, s, w = plane(M, Q, fine(0.0, 0.25), ())
            return f, s, w, np.tanh(4 * f) - s, 4 / np.cosh(np.clip(4 * f, -300, 300)) ** 2

        def rates(self, M, Q, lr):
            f, s, w, e, d = self.moments(M, Q)
            noise = np.sum(w * e**2 * d**2) + np.sum(w * e**2) * np.sum(w * d**2)
            return np.array(
                [-2 * np.sum(w * e * d * s), -4 * np.sum(w * e * d * f) + 2 * lr * noise]
            )

        def risk(self, M, Q):
            _, _, w, e, _ = self.moments(M, Q)
            return np.sum(w * e**2)

    return compare_path(problem, Tokens(np.tanh, np.tanh), lr=0.2, times=(0.0, 0.1, 0.2))


def two_contexts():
    """Labels erf and tanh(5 x) of the same signal, the second for one sample in three."""
    first = sgd.TeacherStudent(width=1, activation="erf")
    second = sgd.TeacherStudent(
        width=1, activation="erf", teacher_activation=lambda x: jnp.tanh(5 * x)
    )
    problem = sgd.contexts({"first": first, "second": second}, probabilities=[2 / 3, 1 / 3])

    def erf(x):
        return special.erf(x / np.sqrt(2))

    def slope(x):
        return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)

    shares_and_references = [
        (2 / 3, network(erf, slope)),
        (1 / 3, network(erf, slope, (), lambda x: np.tanh(5 * x), fine(0.0, 0.2))),
    ]

    class ContextMean(Reference):
        def rates(self, M, Q, lr):
            return sum(
                share * reference.rates(M, Q, lr) for share, reference in shares_and_references
            )

        def risk(self, M, Q):
            return sum(share * reference.risk(M, Q) for share, reference in shares_and_references)

    return compare_path(problem, ContextMean(erf, erf), lr=0.5)


def perceptron_rule():
    """A rule with jumps. The reference is an integral in the plane, cut along both zeros."""

    def update(fields, signals, head, z, overlaps):
        label = jnp.sign(signals[0])
        return sgd.Move(-label * (fields * label < 0))

    problem = sgd.Rule(update, groups={"w": 1}, kinks=(0.0,))
    reference = Reference(
        lambda f, s: 0 * f, lambda f, s: -np.sign(s) * (f * s < 0), (0.0,), (0.0,)
    )
    start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    times = (0.0, 0.5, 2.0)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=list(times))
    exact = reference.path(0.2, 1.0, 1.0, np.array(times), steps=30)
    values = np.stack([result[name].values.reshape(3) for name in ("M", "Q")], axis=1)
    return Comparison(
        float((np.abs(values - exact[:, :2]) / np.abs(exact[:, :2]).max(axis=0)).max()),
        max(result.attrs["error_quadrature"], 1e-8),
    )


# ------------------------------------------------------------ mixtures, spectra, optimisers


def binary_mixture():
    """Risk and accuracy of one ReLU unit on two clusters, as one-dimensional integrals."""
    problem = sgd.GaussianMixture("binary", width=1, snr=4.0)
    M, Q, a = 0.8, 1.3, 1.5
    start = sgd.start(problem, M=[[M]], Q=[[Q]], a=[a])
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.0, 1e-9])
    risk = accuracy = 0.0
    for mean, label in ((M, 1.0), (-M, 0.0)):
        x = mean + np.sqrt(Q / 4) * np.linspace(-9, 9, 400_001)
        w = np.exp(-((x - mean) ** 2) / (2 * Q / 4))
        w /= w.sum()
        f = a * np.maximum(x, 0)
        risk += 0.5 * np.sum(w * (np.logaddexp(0, f) - label * f))
        accuracy += 0.5 * np.sum(w * np.where(f > 0, label, 0.5))
    true = max(
        abs(float(result.risk[0, 0]) / risk - 1), abs(float(result.accuracy[0, 0]) / accuracy - 1)
    )
    # The reference itself has an error of up to 1e-6, because its integrand jumps at 0.
    return Comparison(true, max(result.attrs["error_quadrature"], 1e-6))


def binning(update=None):
    """error_binning of a power law. The reference has a bin for each eigenvalue."""

    def risk(raw, bins):
        problem = sgd.TeacherStudent(
            width=1,
            activation="linear",
            noise=0.01,
            covariance=sgd.power_law(1.2, 96, target=0.4, raw=raw, bins=bins),
        )
        start = sgd.start(
            problem,
            M=np.zeros((problem.structure.blocks, 1, 1)),
            Q=np.zeros((problem.structure.blocks, 1, 1)),
        )
        algorithm = (
            sgd.OnePassSGD(lr=0.3) if update is None else sgd.OnePassSGD(lr=0.3, update=update)
        )
        result = sgd.solve_ode(problem, algorithm, start, alpha=[0.5, 2.0, 8.0])
        return result.risk.values, result.attrs

    (coarse, attributes), (exact, _) = risk(4, 8), risk(96, 1)
    return Comparison(float(np.max(np.abs(coarse / exact - 1))), float(attributes["error_binning"]))


# ------------------------------------------------------------ random estimates: standard errors


def expectation_of_a_jump():
    problem = sgd.TeacherStudent(width=1)
    start = sgd.start(problem, M=[[0.6]], Q=[[1.0]])
    value = sgd.expect(
        start,
        lambda fields, signals, head, draws: 1.0 * (fields[0] * signals[0] < 0),
        problem=problem,
    )
    exact = np.arccos(0.6) / np.pi
    return Comparison(
        abs(float(value[0]) - exact), float(value.standard_error[0]), float(stats.t.isf(5e-7, 15))
    )


def linear_risk(d: int, lr: float, noise: float, steps: int) -> float:
    """E|w - w*|^2/2 of SGD on least squares from w = 0, with |w*| = 1.

    The squared distance D follows D <- D (1 - 2 lr/d + lr^2 (d + 2)/d^2) + lr^2 noise/d.
    """
    distance = 1.0
    for _ in range(steps):
        distance = distance * (1 - 2 * lr / d + lr**2 * (d + 2) / d**2) + lr**2 * noise / d
    return distance / 2


def simulated_risk():
    d, lr, noise = 50, 0.5, 0.1
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    result = sgd.simulate(
        problem, sgd.OnePassSGD(lr=lr), start, steps=[0, 200], dimension=d, runs=2000, seed=3
    )
    exact = linear_risk(d, lr, noise, 200)
    last = result.excess_risk.values[:, 1]
    stated = float(last.std(ddof=1) / np.sqrt(len(last)))
    # The stated error is relative to the whole risk, label noise included.
    assert result.attrs["error_sampling"] >= 0.5 * stated / (exact + noise / 2)
    return Comparison(abs(float(last.mean()) - exact), stated, Z)


def exit_times():
    """Mean exit time of the chain, compared with SGD in d dimensions in NumPy."""
    d, lr, noise, runs = 40, 0.5, 0.1, 800
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    exits = sgd.exit_time(
        problem,
        sgd.OnePassSGD(lr=lr),
        start,
        threshold=0.5,
        method="exact",
        dimension=d,
        runs=runs,
        seed=1,
        progress=False,
    )
    rng = np.random.default_rng(5)
    difference = np.zeros((runs, d))
    difference[:, 0] = -1.0
    reference_times = np.full(runs, np.nan)
    for step in range(1, 4000):
        x = rng.standard_normal((runs, d))
        residual = np.sum(difference * x, axis=1) - np.sqrt(noise) * rng.standard_normal(runs)
        difference -= lr / d * residual[:, None] * x
        reference_times[np.isnan(reference_times) & (np.sum(difference**2, axis=1) < 0.5)] = (
            lr * step / d
        )
        if not np.isnan(reference_times).any():
            break
    reference_error = reference_times.std(ddof=1) / np.sqrt(runs)
    return Comparison(
        abs(exits.mean - reference_times.mean()),
        float(np.hypot(exits.standard_error, reference_error)),
        Z,
    )


def dmft_training():
    """Gradient descent on least squares with n = 2d samples.

    The training risk is an integral over the Marchenko-Pastur law.
    """
    ratio, lr, noise, steps = 2.0, 0.3, 0.1, 10
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=noise)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    algorithm = sgd.GradientDescent(lr=lr, samples_per_dimension=ratio)
    result = sgd.solve_dmft(
        problem, algorithm, start, steps=[0, 5, steps], paths=4096, seed=2, progress=False
    )
    low, high = (1 - ratio**-0.5) ** 2, (1 + ratio**-0.5) ** 2
    angle = (np.arange(20_000) + 0.5) / 20_000 * np.pi
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    density = ratio / (2 * np.pi * x) * ((high - low) / 2 * np.sin(angle)) ** 2 * np.pi / 20_000
    exact = []
    for step in (0, 5, steps):
        shrink = (1 - lr * x) ** (2 * step)
        # The residuals contain the signal, x w*^2, and the label noise. Of the n dimensions of the
        # noise, d are in the span of the data and shrink; the others stay.
        signal = np.sum(density * x * shrink)
        label_noise = noise * (np.sum(density * shrink) / ratio + 1 - 1 / ratio)
        exact.append(0.5 * (signal + label_noise))
    values = result.train_risk.values[0]
    shares = np.abs(values / np.array(exact) - 1)
    stated = float(np.hypot(result.attrs["error_sampling"], result.attrs.get("error_paths") or 0.0))
    return Comparison(float(shares.max()), stated, float(stats.t.isf(5e-7, 7)))


# ------------------------------------------------------------ protocols


def compare_protocol(problem, reference: Reference, alpha: float, M=0.5, Q=1.0) -> Comparison:
    """Compare the risks of the optimal and of the best constant schedule with a reference."""
    start = sgd.start(problem, M=[[M]], Q=[[Q]])
    optimum = sgd.optimal_protocol(
        problem,
        sgd.OnePassSGD(),
        start,
        alpha=alpha,
        controls={"lr": (0.01, 1.0)},
        pieces=2,
        iterations=40,
        progress=False,
    )
    errors = []
    for rates, value in (
        (optimum.protocol["lr"], optimum.value),
        (np.full(2, optimum.constant["lr"]), optimum.constant["risk"]),
    ):
        exact = reference.path(M, Q, rates, np.cumsum(rates * alpha / 2))
        errors.append(abs(value / exact[-1, 2] - 1))
    return Comparison(max(errors), max(optimum.error_integrator, optimum.error_quadrature))


def protocol_on_a_grid():
    problem = sgd.Problem(
        lambda f, s, a, z: (jnp.tanh(20 * f[0]) - jnp.tanh(20 * s[0])) ** 2 / 2, 1, 1
    )
    reference = network(
        lambda x: np.tanh(20 * x),
        lambda x: 20 / np.cosh(np.clip(20 * x, -300, 300)) ** 2,
        fine(0.0, 0.05),
    )
    return compare_protocol(problem, reference, alpha=0.2)


CASES: dict[str, Callable[[], Comparison]] = {
    function.__name__: function
    for function in (
        steep_tanh,
        narrow_bump,
        far_softplus,
        far_step,
        logistic_regression,
        log_activation,
        fast_sine,
        steep_activation,
        relu_of_sign,
        shifted_kink,
        undeclared_kink,
        continuous_slope,
        steep_teacher,
        target_with_a_jump,
        huber_loss,
        two_tokens,
        two_contexts,
        perceptron_rule,
        binary_mixture,
        binning,
        expectation_of_a_jump,
        simulated_risk,
        exit_times,
        dmft_training,
        protocol_on_a_grid,
    )
}
CASES["binning_with_momentum"] = partial(binning, sgd.updates.momentum(0.5))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_stated_errors_are_honest(name):
    case = CASES[name]()
    assert case.ratio <= case.bound, case


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        case = CASES[chosen]()
        print(
            f"{chosen:24s} true {case.true:8.1e}  stated {case.stated:8.1e}"
            f"  ratio {case.ratio:8.2g}  (bound {case.bound:.2g})",
            flush=True,
        )
