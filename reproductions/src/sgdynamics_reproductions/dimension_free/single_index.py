"""Sample complexity of one-pass SGD for single-index targets with information exponent 1 to 4.

The student has one unit with the link s as activation, squared loss, and a row w on the sphere,
which starts at random. The overlap with the target is m = <w, w*>. With u = <w, x>, v = <w*, x>,
X = s'(u) (s(v) - s(u) + sqrt(noise) z) and t = gamma n/d, one step changes m by gamma/d times
X (v - m u) - (gamma/2) m X^2. The second term is due to the normalisation of the row, where
|x|^2 = d. The mean and the variance of this increment define the diffusion

    dm = b dt + sqrt((gamma/d) V) dB,
    b  = E[X (v - m u)] - (gamma/2) m E[X^2],
    V  = Var[X (v - m u) - (gamma/2) m X^2].

Without its noise this is the ODE. Near m = 0 the drift is b = kappa c^2 m^(kappa-1) - gamma F m, so
that the number of samples n grows like d for kappa = 1, like d log d for kappa = 2, and like
d^(kappa-1) for kappa > 2 with gamma ~ d^-(kappa/2 - 1). In this range the noise and the drift of
m sqrt(d) are of the same order: the diffusion, and not the ODE, predicts the prefactor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.polynomial import chebyshev, hermite_e

from sgdynamics import (
    Activation,
    OnePassSGD,
    SampleComplexity,
    Start,
    TeacherStudent,
    polynomial,
    random_start,
    sample_complexity,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import IntScalar, PyTree, RealArray
from sgdynamics.base.precision import float64
from sgdynamics.problems.activations import NAMED
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import Observation, RunSetting, first_passage
from sgdynamics.sweeps.power_law_fit import weighted_line

KAPPAS = (1, 2, 3, 4)
THRESHOLD = 0.5  # |m| at which the target counts as found
NODES = 80  # Gauss-Hermite nodes per field: exact for polynomials, error 1e-12 otherwise
DEGREE = 30  # degree of the Chebyshev series of b and V in m
CELLS = 20_000  # grid cells in m for the mean first-passage time
# gamma for kappa = 1. A third of the rate that needs the fewest samples, so that steps are small.
ERF_RATE = 2.0
FAR = (1e6, 1e8)  # dimensions between which the diffusion has its exponent, to 1%
RUNS_FIXED = 64
TRIED = (
    2  # samples in which a fixed gamma is compared to the scaled one, over the mean of the latter
)

# Waves of which two cancel each other's lower coefficients: exp(-w^2/2) w^n is what a wave of
# frequency w has in order n
SLOW, FAST_SINE, FAST_COSINE = 0.6, 1.6, 2.0
_SINE = SLOW / FAST_SINE * math.exp((FAST_SINE**2 - SLOW**2) / 2)
_COSINE = (SLOW / FAST_COSINE) ** 2 * math.exp((FAST_COSINE**2 - SLOW**2) / 2)


def _overlap_of_waves(share: float, fast: float, sign: int) -> tuple[float, float]:
    """Mean and standard deviation of cos(slow x) - share cos(fast x) (sign 1), or with sines (sign
    -1), x standard normal.
    """
    mean = (math.exp(-(SLOW**2) / 2) - share * math.exp(-(fast**2) / 2)) if sign > 0 else 0.0
    square = sum(
        value * two * (math.exp(-((f - g) ** 2) / 2) + sign * math.exp(-((f + g) ** 2) / 2)) / 2
        for value, f in ((1.0, SLOW), (-share, fast))
        for two, g in ((1.0, SLOW), (-share, fast))
    )
    return mean, math.sqrt(square - mean**2)


_SINE_SPREAD = _overlap_of_waves(_SINE, FAST_SINE, -1)[1]
_COSINE_MEAN, _COSINE_SPREAD = _overlap_of_waves(_COSINE, FAST_COSINE, 1)


def _sines(x: RealArray) -> Any:
    return (jnp.sin(SLOW * x) - _SINE * jnp.sin(FAST_SINE * x)) / _SINE_SPREAD


def _cosines(x: RealArray) -> Any:
    return (jnp.cos(SLOW * x) - _COSINE * jnp.cos(FAST_COSINE * x) - _COSINE_MEAN) / _COSINE_SPREAD


def link(kappa: int) -> Activation:
    """The link of information exponent kappa: erf(x/sqrt 2), He2/sqrt 2, and for 3 and 4 two sines
    and two cosines, of variance 1.

    He3 and He4 would serve, but their friction F is 48 and 428 (that of the waves is 4.0 and 5.9):
    six and thirty times as many samples, and rare samples with gradients so large that small d is
    far from its limit.
    """
    kappa = checks.choice("kappa", kappa, KAPPAS)
    if kappa == 1:
        return NAMED["erf"]
    if kappa == 2:
        return polynomial([-(0.5**0.5), 0.0, 0.5**0.5])
    return Activation(_sines if kappa == 3 else _cosines)


@lru_cache(maxsize=8)
def scaling(kappa: int) -> SampleComplexity:
    """Return `sgd.sample_complexity` of the link.

    It contains the signal kappa c^2, the friction F, the scaling of n and gamma with d, and the
    prefactors.
    """
    return sample_complexity(link(kappa), lr=ERF_RATE if kappa == 1 else None, overlap=THRESHOLD)


def learning_rate(kappa: int, dimension: float) -> float:
    """Return gamma at dimension d.

    It is ERF_RATE for kappa = 1. Otherwise it is half of the rate above which m = 1/sqrt(d)
    shrinks, which decreases like d^-(kappa/2 - 1).
    """
    reference = scaling(kappa)
    return reference.lr * float(dimension) ** -reference.lr_power


def single_index_problem(kappa: int, noise: float = 0.0) -> TeacherStudent:
    """Width one on the sphere, student and teacher with the same link."""
    return TeacherStudent(width=1, activation=link(kappa), constraint="sphere", noise=noise)


@dataclass(frozen=True)
class OverlapDiffusion:
    """Diffusion of the overlap at the learning rate gamma, on |m| <= threshold.

    The drift b(m) and the variance V(m) are Chebyshev series.
    """

    drift: Any
    variance: Any
    lr: float
    threshold: float
    even: bool  # an even link: m and -m are alike

    def ode_samples(self, m: RealArray, dimension: float) -> np.ndarray:
        """n until |m| passes the threshold in the ODE, (d/gamma) int dm/b; infinite where b gets to
        zero before.
        """
        m = self._starts(m)
        edges = self._grid(dimension)
        middle, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        b = self.drift(middle)
        # between two edges by Simpson's rule, whose middle is what decides whether the ODE gets
        # past
        with np.errstate(divide="ignore"):
            slow = widths / 6 * (1 / self.drift(edges[:-1]) + 4 / b + 1 / self.drift(edges[1:]))
        slow[b <= 0] = np.inf
        slow[~(slow > 0)] = np.inf
        left = np.concatenate([np.cumsum(slow[::-1])[::-1], [0.0]])
        with np.errstate(invalid="ignore"):
            result = np.interp(m, edges, left)
        return np.where(np.isfinite(result), result, np.inf) * dimension / self.lr

    def mean_samples(self, m: RealArray, dimension: float) -> np.ndarray:
        """Mean n until |m| passes the threshold in the diffusion: b T' + (gamma/2d) V T'' = -1, T =
        0 at the threshold.

            T(m) = int_m^threshold dx int^x dz 2/(e V(z)) exp(-int_z^x 2b/(e V)),   e = gamma/d

        The lower end is 0 for even links; for odd ones -threshold, a wall there (it is not
        reached). Each cell takes b and V at its middle and is exact for these, however stiff it is.
        For kappa >= 3 this is where n/d^(kappa-1) has its limit.
        """
        m = self._starts(m)
        edges = self._grid(dimension)
        middle, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        spread = self.lr / dimension * self.variance(middle) / 2
        push = self.drift(middle) * widths / spread
        decay = np.exp(-push)
        small = np.abs(push) < 1e-6
        share = np.where(small, 1 - push / 2, -np.expm1(-push) / np.where(small, 1.0, push))
        inner = np.zeros(len(edges))
        for cell in range(len(middle)):
            inner[cell + 1] = inner[cell] * decay[cell] + widths[cell] / spread[cell] * share[cell]
        # The inner integral decays across a cell and grows by the contribution of the cell.
        growth = np.where(small, 0.5 - push / 6, (1 - share) / np.where(small, 1.0, push))
        within = widths * (inner[:-1] * share + widths / spread * growth)
        total = np.concatenate([np.cumsum(within[::-1])[::-1], [0.0]])
        return np.interp(m, edges, total) * dimension / self.lr

    def _starts(self, m: RealArray) -> np.ndarray:
        m = np.asarray(m, dtype=np.float64)
        return np.abs(m) if self.even else m

    def _grid(self, dimension: float) -> np.ndarray:
        """Edges from the lowest m to the threshold, close where m is of order 1/sqrt(d)."""
        scale = 1 / math.sqrt(dimension)
        top = math.asinh(self.threshold / scale)
        edges = scale * np.sinh(np.linspace(0.0 if self.even else -top, top, CELLS + 1))
        edges[-1] = self.threshold
        return edges


@float64
def overlap_diffusion(
    kappa: int, lr: float, *, noise: float = 0.0, threshold: float = THRESHOLD
) -> OverlapDiffusion:
    """Compute drift and variance of m for the link of exponent kappa (see the top of this module).

    The expectations over (u, v) are Gauss-Hermite quadratures. The limit is d -> infinity at a
    fixed learning rate, in which the jumps of m are small. Rare samples with a large gradient are
    the first correction.
    """
    s = link(kappa)
    lr = checks.number("lr", lr, 0.0)
    noise = checks.number("noise", noise, 0.0)
    threshold = checks.number("threshold", threshold, above=0.0)
    if threshold >= 1:
        raise checks.reject(
            "threshold", threshold, "give a number between 0 and 1: |m| is at most 1"
        )
    node, weight = hermite_e.hermegauss(NODES)
    weights = np.outer(weight, weight) / weight.sum() ** 2
    m = threshold * chebyshev.chebpts1(DEGREE + 1)[:, None, None]
    u = node[:, None]
    v = m * u + np.sqrt(1 - m**2) * node
    value, slope = (np.asarray(s.derivative(order)(u)) for order in (0, 1))
    label = np.asarray(s.derivative(0)(v))
    # moments of X over the label noise, up to the fourth
    e, across, drag = label - value, v - m * u, lr / 2 * m
    first, second = slope * e, slope**2 * (e**2 + noise)
    third, fourth = (
        slope**3 * (e**3 + 3 * e * noise),
        slope**4 * (e**4 + 6 * e**2 * noise + 3 * noise**2),
    )
    b = np.sum(weights * (first * across - drag * second), axis=(1, 2))
    V = (
        np.sum(
            weights * (second * across**2 - 2 * drag * third * across + drag**2 * fourth),
            axis=(1, 2),
        )
        - b**2
    )
    fits = [
        chebyshev.Chebyshev.fit(m[:, 0, 0], values, DEGREE, domain=[-threshold, threshold])
        for values in (b, V)
    ]
    return OverlapDiffusion(fits[0], fits[1], lr, threshold, kappa % 2 == 0)


def _record_passage(
    threshold: PyTree, records: dict[str, Any], step: IntScalar, overlaps: dict[str, Any]
) -> dict[str, Any]:
    """Record the first step after which |m| has passed the threshold."""
    passes_now = (records["left"] < 0) & (jnp.abs(overlaps["M"][0, 0, 0]) >= threshold)
    return {"left": jnp.where(passes_now, jnp.asarray(step, jnp.float64), records["left"])}


def escape_samples(
    kappa: int,
    dimension: int,
    *,
    lr: float,
    runs: int = 64,
    threshold: float = THRESHOLD,
    most: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate the exact chain until |m| passes the threshold.

    Returns the number of samples of each run, which is NaN if a run needs more than `most`, and the
    initial overlaps m. `most` defaults to 100 times the mean of the diffusion.

    Starts are uniform on the sphere. For odd links the sign of m matters, and all starts have the
    favourable sign m > 0: at kappa = 3 the drift drives m < 0 towards 0, where only the noise can
    change the sign.
    """
    problem = single_index_problem(kappa)
    d, sizes = dimension, problem.block_dimensions(dimension)
    lr = checks.number("lr", lr, above=0.0)
    several = random_start(problem, dimension=d, seed=seed, runs=runs)
    initial_state = Start(np.abs(several.M_blocks), several.Q_blocks, several.a)
    m = initial_state.M[:, 0, 0]
    if most is None:
        most = 100 * float(
            overlap_diffusion(kappa, lr, threshold=threshold).mean_samples(m, d).mean()
        )
    chain = ExactChain(problem, OnePassSGD(lr=lr), RunSetting(initial_state, d, sizes))
    passages = {"left": np.where(m >= threshold, 0.0, -1.0)}
    observation = Observation(passages, _record_passage, np.float64(threshold))
    label = f"single index, exponent {kappa}, d = {d}"
    samples, _ = first_passage(chain, observation, math.ceil(most), seed + 1, label, progress)
    return np.where(m >= threshold, 0.0, samples), m


def fitted_slope(x: RealArray, y: RealArray, error: RealArray) -> tuple[float, float]:
    """Slope of the weighted least-squares line through points with known standard errors, and its
    standard error.
    """
    result, covariance, _ = weighted_line(x, np.asarray(y), 1 / np.asarray(error) ** 2)
    return float(result[1]), math.sqrt(covariance[1, 1])


# kappa: {d: runs}. The cost is in steps: n is about d, 3 d log d, 5 d^2, 2.5 d^3, and several times
# that for the last run
FULL: dict[int, dict[int, int]] = {
    1: {100: 512, 1000: 512, 10_000: 256, 100_000: 64, 1_000_000: 16},
    2: {100: 1024, 1000: 512, 10_000: 128, 100_000: 48, 300_000: 8},
    3: {32: 512, 64: 512, 128: 256, 256: 128, 384: 48},
    4: {10: 512, 20: 512, 40: 128, 80: 32},
}
QUICK: dict[int, dict[int, int]] = {
    1: {100: 64, 1000: 64, 10_000: 64},
    2: {100: 128, 300: 128, 1000: 128},
    3: {14: 256, 28: 256, 56: 256},
    4: {8: 256, 12: 256, 18: 256},
}
FIXED = {
    False: (32, 64, 96, 128, 192),
    True: (32, 96),
}  # by `quick`: dimensions at which kappa = 3 is run with one learning rate


def single_index(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Samples n until ``|m|`` = 1/2 against d, for exponents 1 to 4: the exact chain, the ODE from
    the same starts, and the diffusion of m.

    Parameters
    ----------
    quick : bool, default False
        A smaller size, in less than half a minute.
    seed : int, default 0
        Seed of the random number generator.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Notes
    -----
    Claims: n ~ d (n/d tends to the constant of ``sample_complexity``), d log d (n/d is a line in
    log d, with its slope), d^2 and d^3 (with gamma ~ d^-1/2, d^-1); and at a fixed gamma exponent 3
    does not leave m = 0, which is stable (``growth_rate_fixed_lr``, ``share_fixed_lr``). Links:
    ``link``; gamma: ``learning_rate``. Odd links start from m > 0. For exponents 3 and 4 the ODE
    leaves only from the better starts (``share_ode``), and its mean is over these. Fits are
    weighted by standard errors, with 95 per cent intervals of sampling alone; next to them stands
    the slope that the diffusion has over the same d, which nears the exponent as d grows.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.single_index(quick=True)  # doctest: +SKIP
    """
    plan = QUICK if quick else FULL
    components = [_measure(kappa, counts, seed) for kappa, counts in plan.items()] + [
        _at_fixed_rate(FIXED[quick], seed)
    ]
    data = xr.merge(components, combine_attrs="no_conflicts")
    d, n, error = (np.asarray(data[name]) for name in ("d_2", "samples_2", "error_2"))
    slope, doubt = fitted_slope(np.log(d), n / d, error / d)
    data.attrs |= {
        "slope_2": slope,
        "slope_2_low": slope - 1.96 * doubt,
        "slope_2_high": slope + 1.96 * doubt,
    }
    data.attrs |= {
        f"prefactor_{kappa}": float(scaling(kappa).prefactor or math.nan) for kappa in (1, 2)
    }
    data.attrs |= {"threshold": THRESHOLD, "seed": seed}
    return _draw(data), data


def _measure(kappa: int, counts: dict[int, int], seed: int) -> xr.Dataset:
    """Measure one link over several dimensions, and fit the exponents.

    The mean number of samples of the chain is compared with those of the ODE and of the diffusion
    from the same starts.
    """
    rows = []
    for d, runs in counts.items():
        lr = learning_rate(kappa, d)
        n, m = escape_samples(kappa, d, lr=lr, runs=runs, seed=seed)
        if np.isnan(n).any():
            raise RuntimeError(
                f"exponent {kappa}, d = {d}: {int(np.isnan(n).sum())} of {runs} runs had not left:"
                " a mean would be wrong"
            )
        theory = overlap_diffusion(kappa, lr)
        ode = theory.ode_samples(m, d)
        leaves = np.isfinite(ode)
        ode_mean = float(ode[leaves].mean()) if leaves.any() else np.nan
        rows.append(
            [
                lr,
                n.mean(),
                n.std(ddof=1) / math.sqrt(runs),
                ode_mean,
                leaves.mean(),
                theory.mean_samples(m, d).mean(),
            ]
        )
    lr, mean, error, ode, share, diffusion = np.array(rows).T
    dim, d = f"d_{kappa}", np.array(list(counts))
    exponent, doubt = fitted_slope(np.log(d), np.log(mean), error / mean)
    expected, _ = fitted_slope(np.log(d), np.log(diffusion), error / mean)
    variables = {
        "lr": lr,
        "samples": mean,
        "error": error,
        "samples_ode": ode,
        "share_ode": share,
        "samples_diffusion": diffusion,
    }
    return xr.Dataset(
        {f"{key}_{kappa}": (dim, value) for key, value in variables.items()}
        | {f"runs_{kappa}": (dim, list(counts.values()))},
        {dim: d},
        {
            f"exponent_{kappa}": exponent,
            f"exponent_{kappa}_low": exponent - 1.96 * doubt,
            f"exponent_{kappa}_high": exponent + 1.96 * doubt,
            f"exponent_{kappa}_diffusion": expected,
            f"exponent_{kappa}_limit": _limit(kappa),
        },
    )


def _limit(kappa: int) -> float:
    """The exponent that the diffusion has far out, from a start at 1/sqrt(d)."""
    n = [
        float(overlap_diffusion(kappa, learning_rate(kappa, d)).mean_samples(d**-0.5, d))
        for d in FAR
    ]
    return math.log(n[1] / n[0]) / math.log(FAR[1] / FAR[0])


def _at_fixed_rate(dimensions: tuple[int, ...], seed: int) -> xr.Dataset:
    """Exponent 3 at one learning rate for all d, next to the scaled one: shares that leave in TRIED
    times the scaled rate's mean samples.
    """
    fixed = 2 * scaling(3).largest_lr
    # the growth rate of m at 0: the derivative of b
    growth = float(overlap_diffusion(3, fixed).drift.deriv()(0.0))
    shares, budgets = [], []
    for d in dimensions:
        scaled = learning_rate(3, d)
        m = np.abs(
            random_start(single_index_problem(3), dimension=d, seed=seed, runs=RUNS_FIXED).M[
                :, 0, 0
            ]
        )
        budgets.append(TRIED * float(overlap_diffusion(3, scaled).mean_samples(m, d).mean()))
        times = [
            escape_samples(3, d, lr=lr, runs=RUNS_FIXED, most=budgets[-1], seed=seed + 7)[0]
            for lr in (fixed, scaled)
        ]
        shares.append([float(np.isfinite(n).mean()) for n in times])
    at_fixed, at_scaled = np.array(shares).T
    return xr.Dataset(
        {
            "share_fixed_lr": ("d_fixed", at_fixed),
            "share_scaled_lr": ("d_fixed", at_scaled),
            "budget_fixed_lr": ("d_fixed", budgets),
        },
        {"d_fixed": list(dimensions)},
        {"growth_rate_fixed_lr": growth, "fixed_lr": fixed, "runs_fixed": RUNS_FIXED},
    )


def _draw(data: xr.Dataset) -> Any:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    at = data.attrs
    fig, axes = plt.subplots(2, 3, figsize=(13.2, 7.6), layout="constrained")
    shown = {
        1: ("$n / d$", "erf"),
        2: ("$n / d$", "He$_2$"),
        3: ("$n / d^2$", "sines"),
        4: ("$n / d^3$", "cosines"),
    }
    for kappa, (ax, (ylabel, name)) in zip(
        KAPPAS, zip(axes.flat, shown.values(), strict=False), strict=False
    ):
        d, power, colour = np.asarray(data[f"d_{kappa}"]), max(1, kappa - 1), f"C{kappa - 1}"
        value = {
            key: np.asarray(data[f"{key}_{kappa}"]) / d**power
            for key in ("samples", "error", "samples_ode", "samples_diffusion")
        }
        ax.errorbar(
            d,
            value["samples"],
            value["error"],
            fmt="o",
            ms=4,
            capsize=2,
            color=colour,
            label="exact chain",
        )
        ax.plot(d, value["samples_diffusion"], color=colour, lw=1.2, label="diffusion of $m$")
        share = float(np.mean(data[f"share_ode_{kappa}"]))
        label = "ODE" if share == 1 else f"ODE, from the {100 * share:.0f}% of starts that leave"
        ax.plot(d, value["samples_ode"], color=colour, lw=1.2, ls=":", label=label)
        low, high = at[f"exponent_{kappa}_low"], at[f"exponent_{kappa}_high"]
        title = (
            f"$\\kappa = {kappa}$ ({name}): exponent {at[f'exponent_{kappa}']:.3f} [{low:.3f},"
            f" {high:.3f}]"
        )
        if kappa == 1:
            ax.axhline(
                at["prefactor_1"],
                color="0.5",
                lw=0.9,
                ls="--",
                label=f"predicted limit, {at['prefactor_1']:.3f}",
            )
        if kappa == 2:
            line = (
                at["prefactor_2"] * (np.log(d) - np.log(d).mean())
                + value["samples_diffusion"].mean()
            )
            ax.plot(
                d,
                line,
                color="0.5",
                lw=0.9,
                ls="--",
                label=f"predicted slope, {at['prefactor_2']:.3f}",
            )
            title = (
                f"$\\kappa = 2$ ({name}): slope in $\\log d$ {at['slope_2']:.2f}"
                f" [{at['slope_2_low']:.2f}, {at['slope_2_high']:.2f}]"
            )
        ax.set(xscale="log", xlabel="$d$", ylabel=ylabel, ylim=(0, None), title=title)
        if d[-1] < 1000:
            ax.set_xticks(d)
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.legend(frameon=False, loc="lower right")
    ax = axes[1, 1]
    d = np.asarray(data.d_fixed)
    ax.plot(d, data.share_scaled_lr, "o-", color="C2", ms=4, label="$\\gamma \\sim d^{-1/2}$")
    ax.plot(
        d,
        data.share_fixed_lr,
        "s-",
        color="k",
        mfc="none",
        ms=5,
        label=f"$\\gamma$ = {at['fixed_lr']:.3f} at every $d$",
    )
    ax.set(xscale="log", xlabel="$d$", ylim=(0, 1.08), ylabel="share of runs that leave")
    ax.set(title=f"$\\kappa = 3$, equal samples ({TRIED} mean $n$ of the scaled $\\gamma$)")
    ax.set_xticks(d, [str(value) for value in d])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(frameon=False, loc="lower left")
    ax = axes[1, 2]
    for kappa in KAPPAS:
        colour = f"C{kappa - 1}"
        ax.plot(
            [kappa] * 2,
            [at[f"exponent_{kappa}_low"], at[f"exponent_{kappa}_high"]],
            color=colour,
            lw=2.5,
            solid_capstyle="butt",
        )
        ax.plot(kappa, at[f"exponent_{kappa}"], "o", color=colour, ms=5)
        ax.plot(kappa, at[f"exponent_{kappa}_diffusion"], "x", color="k", ms=7)
        ax.plot([kappa - 0.3, kappa + 0.3], [max(1, kappa - 1)] * 2, color="0.5", lw=1, ls="--")
    ax.plot([], [], "o-", color="C0", label="fitted, 95%")
    ax.plot([], [], "kx", label="diffusion over the same $d$")
    ax.plot([], [], "--", color="0.5", label="$\\max(1, \\kappa - 1)$")
    ax.set(
        xticks=KAPPAS,
        xlabel="information exponent $\\kappa$",
        ylabel="exponent of $n$ in $d$",
        xlim=(0.4, 4.6),
    )
    ax.legend(frameon=False, loc="upper left")
    fig.suptitle("Samples until $|m|$ = 1/2, one-pass SGD from random starts on the sphere")
    return fig
