"""Figure 2 of arXiv:2604.03068 and escape times against width.

The figures show how long SGD stays on the plateau, and the learning rate that makes this time
shortest. Units are those of the paper: t = eta alpha, and the risk has no factor 1/2. From Q(0) = I
the matrices Q and rho rho^T commute at all times (`conserved_S`). The ODE therefore reduces to the
singular values r_i of rho and the eigenvalues of Q: q_i along them, and c along the p - m
directions without overlap, with m = min(p, p*). With a = r^2, T = Tr Q, x = eta/p and tau = t/p,

    d log r/dtau = 4 (1 + 2/p* - T/p - 2 q/p)
    dq/dtau      = 8 [(1 - T/p) q + 2 a/p* - 2 q^2/p]
                   + 16 x { R q + (4/p* + 8/p*^2 - 4 T/(p p*)) a + (4 T/p^2 - 4/p) q^2
                            + 8 q^3/p^2 - 16 a q/(p p*) }

and dc/dtau is the right-hand side for q with a = 0. The cost does not depend on p if p > p*, and
log r keeps its precision however small the overlaps are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from scipy import special
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from sgdynamics import OnePassSGD, TeacherStudent, exit_time, random_start
from sgdynamics.base import checks
from sgdynamics.base.arrays import RealArray
from sgdynamics.papers.quadratic_networks import (
    growth_rates,
    largest_stable_rate,
    loss_reduction,
    noise_share,
    optimal_rate,
    plateau,
    plateau_growth,
)
from sgdynamics.sweeps.power_law_fit import weighted_line
from sgdynamics_reproductions.drawing import subplots, ticks

RTOL = 1e-9
# A mean squared norm above this has diverged. It is 1 at the start and at all solutions.
LARGEST = 10.0
STUCK = 20.0  # largest time, in units of the time of gradient flow
PARABOLA = 0.06  # half width in log eta of the window in which the best learning rate is fitted
SHARE = 0.02  # eta/p of the escape times
# Decrease of the risk below the plateau at which a run has escaped. It is small because (13) is of
# first order.
FALL = 0.1


def _risk(p: int, p_star: int, a: np.ndarray, q: np.ndarray, c: RealArray) -> np.ndarray:
    """Compute the risk (23) from the spectra, whose last axis are the directions with overlap."""
    remainder = p - q.shape[-1]
    T, square = q.sum(axis=-1) + remainder * c, (q**2).sum(axis=-1) + remainder * c**2
    return (
        1 + 2 / p_star - 2 * T / p - 4 * a.sum(axis=-1) / (p * p_star) + (T**2 + 2 * square) / p**2
    )


def _exits(
    p: int, p_star: int, eta: RealArray, rho0: np.ndarray, level: float | None = None
) -> np.ndarray:
    """Compute the times t at which the risks of the starts (rho0, Q = I) first fall to `level`.

    `level` defaults to half of the initial risk of each start. `eta` is one rate for all starts or
    one for each. All starts are integrated together until the risk of each is below its level. All
    times are NaN if one start diverges or does not escape, because a mean over the other starts
    would be biased.
    """
    r = np.linalg.svd(rho0, compute_uv=False)
    runs, m = r.shape
    x, kappa = np.reshape(eta, (-1, 1)) / p, 1 + 2 / p_star

    def split(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = y.reshape(runs, 2 * m + 1)
        return y[:, :m], y[:, m : 2 * m], y[:, 2 * m :]

    def excess(y: np.ndarray) -> np.ndarray:
        log_r, q, c = split(y)
        return _risk(p, p_star, np.exp(2 * log_r), q, c[:, 0]) - levels

    def field(_: float, y: np.ndarray) -> np.ndarray:
        log_r, q, c = split(y)
        a, values = np.exp(2 * log_r), y.reshape(runs, 2 * m + 1)[:, m:]
        overlaps = np.concatenate([a, np.zeros((runs, 1))], axis=1)
        T = q.sum(axis=1, keepdims=True) + (p - m) * c
        loss = _risk(p, p_star, a, q, c[:, 0])[:, None]
        flow = (1 - T / p) * values + (2 / p_star) * overlaps - (2 / p) * values**2
        spread = (
            loss * values
            + (4 / p_star + 8 / p_star**2 - 4 * T / (p * p_star) - 16 * values / (p * p_star))
            * overlaps
        )
        spread += (4 * T / p**2 - 4 / p) * values**2 + 8 * values**3 / p**2
        return np.concatenate(
            [4 * (kappa - T / p - 2 * q / p), 8 * flow + 16 * x * spread], axis=1
        ).ravel()

    def largest_excess(_: float, y: np.ndarray) -> float:
        return float(excess(y).max())

    def excess_norm(_: float, y: np.ndarray) -> float:
        q, c = split(y)[1:]
        return float((q.sum(axis=1) + (p - m) * c[:, 0]).max()) - LARGEST * p

    largest_excess.terminal = excess_norm.terminal = True  # type: ignore[attr-defined]
    largest_excess.direction, excess_norm.direction = -1, 1  # type: ignore[attr-defined]
    levels = np.zeros(runs)
    first = np.concatenate([np.log(r), np.ones((runs, m + 1))], axis=1).ravel()
    levels = 0.5 * excess(first) if level is None else np.full(runs, level)
    end = STUCK * (5 - math.log(r.min())) * p_star / 8
    solution = solve_ivp(
        field,
        (0, end),
        first,
        "DOP853",
        rtol=RTOL,
        atol=RTOL,
        events=(largest_excess, excess_norm),
        dense_output=True,
    )
    if solution.status != 1 or len(solution.t_events[0]) == 0:
        return np.full(runs, np.nan)
    below = np.array([excess(y) for y in solution.y.T]) <= 0
    below[-1] = True  # the last point is the event itself, up to rounding errors
    at = below.argmax(axis=0)
    times = np.zeros(runs)
    for run in np.flatnonzero(at > 0):
        low, high = solution.t[at[run] - 1], solution.t[at[run]]
        value = lambda tau, run=run: excess(solution.sol(tau))[run]  # noqa: E731
        root: Any = high if value(high) >= 0 else brentq(value, low, high, xtol=1e-12)
        times[run] = root
    return p * times


def _best(p: int, p_star: int, rho0: np.ndarray, points: int) -> tuple[float, float]:
    """Find the learning rate with the smallest mean alpha_c over the starts.

    Its standard error is a jackknife estimate over the starts.
    """
    runs = len(rho0)

    def alpha(etas: np.ndarray) -> np.ndarray:
        """Compute alpha_c for each eta and start.

        All etas are integrated together, which is faster. Only if one is too large, they are
        integrated one by one.
        """
        times = _exits(p, p_star, np.repeat(etas, runs), np.tile(rho0, (len(etas), 1, 1))).reshape(
            len(etas), runs
        )
        if np.isnan(times).any():
            times = np.array([_exits(p, p_star, eta, rho0) for eta in etas])
        return times / etas[:, None]

    grid = optimal_rate(p, p_star) * np.geomspace(0.55, 1.1, points)
    center = math.log(grid[np.nanargmin([alpha(grid[[i]]).mean() for i in range(points)])])
    logs, curves = np.zeros(0), np.zeros((0, runs))
    for width in (2 * PARABOLA, PARABOLA, PARABOLA):
        logs = center + width * np.linspace(-1, 1, 5)
        curves = alpha(np.exp(logs))
        good = np.isfinite(curves).all(axis=1)
        logs, curves = logs[good], curves[good]
        center = _lowest(logs, curves.mean(axis=1))
    without = [
        math.exp(_lowest(logs, np.delete(curves, run, axis=1).mean(axis=1))) for run in range(runs)
    ]
    return math.exp(center), math.sqrt((runs - 1) * np.var(without))


def _lowest(logs: np.ndarray, values: np.ndarray) -> float:
    """Minimum, within the window, of a polynomial fitted to the logarithms."""
    middle = logs.mean()
    fit = np.polynomial.Polynomial.fit(logs - middle, np.log(values), 3 if len(logs) > 4 else 2)
    turns = fit.deriv().roots()
    inside = turns.real[
        (np.abs(turns.imag) < 1e-12)
        & (turns.real >= logs[0] - middle)
        & (turns.real <= logs[-1] - middle)
    ]
    candidates = np.concatenate([inside, logs[[0, -1]] - middle])
    return float(middle + candidates[np.argmin(fit(candidates))])


def figure_2(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The samples needed to leave the plateau against the learning rate, and the best learning rate
    against the width.

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
    The paper's figure 2: left, alpha_c, where the loss has fallen to half of its first value,
    against eta for p = p* = 3, epsilon = 0.01, each point a mean over 20 random starts; right, the
    best eta against p (p* = 3), said to be linear in p. Ours: the same integrations (in spectra,
    see above), means with standard errors, NaN where a start fails; on the right a straight line
    fitted to p >= 3 with its uncertainty, a power of p fitted too, and next to them the closed
    ``optimal_rate`` (epsilon -> 0) and ``largest_stable_rate``, above which SGD does not converge
    in the end. The caption gives no range of p: 3 to 16 here (quick: 3, 4, 6, 9, 16, and 12
    learning rates for 30). The best eta is nearly a straight line, not exactly: with 20 starts
    chi^2 per degree of freedom is far above 1 (``chi2_per_freedom``) because the errors are small,
    not because they are wrong; with 80 starts it is ten times as large. It bends upwards where p is
    near p*, and eta/p grows towards sqrt(p*/(p* + 2))/4.

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_2(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    p_star, epsilon, runs = 3, 1e-2, 20
    shares = np.geomspace(0.08, 1.06, 12 if quick else 30)
    most = largest_stable_rate(3, p_star)
    etas, rng = most * shares, np.random.default_rng(seed)
    starts = epsilon * rng.normal(size=(runs, 3, p_star))
    alpha_c = np.array([_exits(3, p_star, eta, starts) / eta for eta in etas])
    p = np.array([3, 4, 6, 9, 16] if quick else range(3, 17))
    best = np.array(
        [
            _best(
                int(width),
                p_star,
                epsilon * rng.normal(size=(runs, int(width), p_star)),
                6 if quick else 10,
            )
            for width in p
        ]
    )
    line, line_error, line_chi2 = _fit(p, *best.T)
    power, power_error, _ = _fit(np.log(p), np.log(best[:, 0]), best[:, 1] / best[:, 0])
    data = xr.Dataset(
        {
            "alpha_c": (
                ("rate", "start"),
                alpha_c,
                {"long_name": "samples/N at half of the first loss, p = p* = 3"},
            ),
            "eta_best": (
                "width",
                best[:, 0],
                {"long_name": "learning rate of the smallest mean alpha_c"},
            ),
            "eta_best_error": (
                "width",
                best[:, 1],
                {"long_name": "standard error over the starts"},
            ),
            "eta_formula": (
                "width",
                [optimal_rate(int(width), p_star) for width in p],
                {"long_name": "optimal_rate, epsilon -> 0"},
            ),
            "eta_most": (
                "width",
                [largest_stable_rate(int(width), p_star) for width in p],
                {"long_name": "largest_stable_rate"},
            ),
        },
        {"eta": ("rate", etas), "p": ("width", p)},
        {"p_star": p_star, "epsilon": epsilon, "seed": seed, "chi2_per_freedom": line_chi2},
    )
    fits = {
        "intercept": (line, line_error, 0),
        "slope": (line, line_error, 1),
        "power": (power, power_error, 1),
    }
    data.attrs |= {name: float(value[fit]) for name, (value, _, fit) in fits.items()}
    data.attrs |= {f"{name}_error": float(error[entry]) for name, (_, error, entry) in fits.items()}
    data.attrs["units"] = "those of the paper: alpha = steps/N, loss without 1/2"
    fig, (left, right) = subplots(1, 2, (10, 4))
    mean, error = alpha_c.mean(axis=1), alpha_c.std(axis=1, ddof=1) / math.sqrt(runs)
    left.errorbar(etas, mean, error, fmt="o-", ms=4, capsize=2, label=f"ODE, mean of {runs} starts")
    left.axvline(best[0, 0], color="C2", ls=":", label=rf"best, $\eta$ = {best[0, 0]:.3f}")
    left.axvline(most, color="C3", ls="--", label="no convergence beyond")
    left.set(
        xlim=(0, None),
        ylim=(0, None),
        xlabel=r"learning rate $\eta$",
        ylabel=r"$\alpha_c$ (loss at half of its start)",
    )
    left.set_title(r"$p = p^* = 3$, $\epsilon = 0.01$")
    left.legend(loc="upper center", framealpha=1, edgecolor="none")
    right.errorbar(p, *best.T, fmt="o", ms=4, capsize=2, label=r"ODE, $\epsilon = 0.01$", zorder=3)
    ends = np.array([0, p[-1] + 1])
    label = rf"line: slope {line[1]:.4f} $\pm$ {line_error[1]:.4f}, intercept {line[0]:.2f}"
    right.plot(ends, line[0] + line[1] * ends, color="C0", lw=1, label=label)
    right.plot(p, data.eta_formula, "k-.", lw=1, label=r"closed formula, $\epsilon \to 0$")
    right.plot(
        ends, ends * p_star / (4 * (p_star + 2)), "C3--", lw=1, label="no convergence beyond"
    )
    right.set(
        xlabel="student width $p$",
        ylabel=r"best learning rate $\eta_{\mathrm{opt}}$",
        xlim=(0, ends[1]),
        ylim=(0, None),
    )
    right.set_title(r"$p^* = 3$")
    right.legend(frameon=False)
    return fig, data


def _fit(x: RealArray, y: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Weighted straight line: (intercept, slope), their errors (widened where the line does not
    fit), chi^2 per degree of freedom.
    """
    result, covariance, chi2 = weighted_line(x, y, error**-2)
    chi2 /= max(len(y) - 2, 1)
    return result, np.sqrt(np.diag(covariance) * max(chi2, 1.0)), chi2


def _formula(p: int, p_star: int, eta: float, variance: float, fall: float) -> float:
    """Compute the mean time t at which (13) reaches `fall`.

    With the growth rate d log rho/dt of SGD at this eta, n = p p* overlaps, and the risk R of the
    plateau,

        t = { log [1 + fall R (p + 2)/(4 variance p)] + log(n/2) - digamma(n/2) }
            / (2 d log rho/dt).

    (13) averages the loss, and thus |rho0|^2, over starts. The mean time needs the mean of
    log |rho0|^2, where |rho0|^2 has a chi^2 distribution with n degrees of freedom, and is later.
    The noise of SGD is neglected while the norms relax to the plateau.
    """
    norm, growth = plateau_growth(p, p_star, eta)
    scale = loss_reduction(1.0, p, p_star, math.sqrt(variance), since="start") / math.expm1(
        2 * growth_rates(p, p_star)[0]
    )
    scale *= norm * (p + 2) / p
    half = p * p_star / 2
    return (math.log1p(fall / scale) + math.log(half) - float(special.digamma(half))) / (2 * growth)


def _mean_exits(
    p: int, p_star: int, N: int, seed: int, starts: int = 24
) -> tuple[float, float, float]:
    """Compute mean escape times t at dimension N.

    They are those of the ODE, of the ODE with initial overlaps increased by the noise of SGD, and
    of the formula. The escape time depends on the start almost only through log |rho0|^2, whose
    mean is known. With this control variate a few starts are enough.
    """
    eta, n = SHARE * p, p * p_star
    level = (1 - FALL) * plateau(p, p_star).risk
    normal = np.random.default_rng(seed).normal(size=(starts, p, p_star))
    reference = np.log((normal**2).sum(axis=(1, 2))) - special.digamma(n / 2) - math.log(2)
    growth = plateau_growth(p, p_star, eta)[1]
    widths_of_start = [math.sqrt((1 + share) / N) for share in (0.0, noise_share(p, p_star, eta))]
    ode, noisy = (
        float((_exits(p, p_star, eta, size * normal, level) + reference / (2 * growth)).mean())
        for size in widths_of_start
    )
    return ode, noisy, _formula(p, p_star, eta, 1 / N, FALL)


def _chain_exits(
    p: int, p_star: int, eta: float, N: int, runs: int, level: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Exit times in t of the exact chain from orthonormal rows, and the overlaps rho it started
    from.
    """
    problem = TeacherStudent(width=p, teacher_width=p_star, activation="square")
    initial_state = random_start(problem, dimension=N, orthogonal=True, seed=seed, runs=runs)
    threshold = 1 - level / (
        2 / p + 2 / p_star
    )  # the risk at Q = I, to first order in epsilon, is 2/p + 2/p*
    longest = 2 * STUCK * _formula(p, p_star, 0.0, 1 / N, FALL)
    result = exit_time(
        problem,
        OnePassSGD(lr=2 * eta),
        initial_state,
        threshold=threshold,
        method="exact",
        dimension=N,
        seed=seed,
        max_time=longest,
    )
    return result.times / 2, initial_state.M  # the library's t is 2 eta alpha


def escape_times(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Measured escape times against the width p for several p*, next to the ODE and the growth-rate
    formula. Not in the paper.

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
    The paper says of (13) that more students change only the prefactor of the exponential, not its
    rate (16/(p p*) in t, 16/p* in t/p), and shows no run. Here eta = 0.02 p (its scaling),
    orthonormal rows at random, and the escape is where the risk is 10% below the plateau's. Left:
    t/p against p at the largest N, exact chain with standard errors, ODE from overlaps of variance
    1/N and from (1 + share)/N (SGD's own noise in small overlaps, see ``noise_share``), and (13)
    solved for t. Right: the same against N: every width has the same slope in log N (the rate),
    only the height differs (the prefactor). ``data`` has the rates measured from these slopes. At N
    = 500 and p p* > 10 the chain is 4% later than the ODE with noise (``z``), as a finite dimension
    allows; at N = 8000 they agree. Full: nine pairs (p, p*), N = 500, 2000, 8000, 128 runs, ten
    minutes; quick: three pairs, N = 250, 2000, 64 runs.

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.escape_times(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    cases = (
        [(2, 1), (4, 1), (4, 2)]
        if quick
        else [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (3, 3), (6, 3)]
    )
    sizes, runs = ((250, 2000), 64) if quick else ((500, 2000, 8000), 128)
    data = _escape_data(cases, sizes, runs, seed)
    fig, (left, right) = subplots(1, 2, (11, 4.3))
    styles = {
        "t_noisy": ("-", "ODE, with SGD's noise in the overlaps"),
        "t_ode": (":", "ODE"),
        "t_formula": ("--", "formula (13)"),
    }
    stars = np.unique(data.p_star)
    last, marks = data.isel(size=-1), "osD^v"
    for position, p_star in enumerate(stars):
        subset = data.isel(case=np.flatnonzero(data.p_star == p_star))
        line = data.isel(line=np.flatnonzero(data.line_p_star == p_star))
        color = f"C{position}"
        for name, (style, _) in styles.items():
            left.plot(line.line_p, line[f"line_{name}"] / line.line_p, style, color=color, lw=1.2)
        now = last.isel(case=np.flatnonzero(data.p_star == p_star))
        points = {"ms": 4, "capsize": 2, "color": color}
        left.errorbar(
            now.p,
            now.t_chain / now.p,
            now.t_chain_error / now.p,
            fmt="o",
            label=f"$p^*$ = {int(p_star)}",
            **points,
        )
        for number in range(subset.sizes["case"]):
            item = subset.isel(case=number)
            unit = 16 / (float(item.p) * float(p_star))
            right.plot(item.N, item.t_noisy * unit, "-", color=color, lw=1)
            label = f"$p$ = {int(item.p)}, $p^*$ = {int(p_star)}"
            right.errorbar(
                item.N,
                item.t_chain * unit,
                item.t_chain_error * unit,
                fmt=marks[number],
                label=label,
                **points,
            )
    for style, label in styles.values():
        left.plot([], [], style, color="0.3", lw=1.2, label=label)
    left.errorbar([], [], [], fmt="o", ms=4, capsize=2, color="0.3", label="exact chain")
    left.set(
        xlabel="student width $p$",
        ylabel=r"escape time $t/p = \eta \alpha / p$",
        title=f"$N$ = {sizes[-1]}",
        ylim=(0, None),
    )
    left.set_ylim(0, 1.6 * left.get_ylim()[1])
    left.legend(frameon=False, ncols=2, loc="upper left", fontsize="small")
    guide = np.array([sizes[0], sizes[-1]])
    floor = float((data.t_chain * 16 / (data.p * data.p_star)).min())
    right.plot(
        guide,
        floor - 0.7 + np.log(guide / guide[0]),
        "k-.",
        lw=1,
        label=r"slope 1: rate $16/(p p^*)$",
    )
    right.set(
        xscale="log",
        xlabel="dimension $N$",
        ylabel=r"$16\, t/(p p^*)$",
        title="one slope (rate), heights differ (prefactor)",
    )
    ticks(right, sizes)
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlim(guide[0] / 1.3, guide[1] * (4 if quick else 8))
    right.legend(frameon=False, loc="lower right", fontsize="small")
    return fig, data


def _escape_data(
    cases: list[tuple[int, int]], sizes: tuple[int, ...], runs: int, seed: int
) -> xr.Dataset:
    """Exit times of chain, ODE and formula for pairs (p, p*) and dimensions, and the growth rates
    that the chain's times show.
    """
    table: list[list[dict[str, float]]] = []
    rates: list[dict[str, float]] = []
    for p, p_star in cases:
        eta = SHARE * p
        level = (1 - FALL) * plateau(p, p_star).risk
        share = noise_share(p, p_star, eta)
        times = np.zeros((runs, len(sizes)))
        table.append([])
        for column, N in enumerate(sizes):
            times[:, column], rho0 = _chain_exits(p, p_star, eta, N, runs, level, seed)
            noisy = _exits(p, p_star, eta, math.sqrt(1 + share) * rho0, level)
            gap = (
                times[:, column] - noisy
            )  # run by run from the same rows: what the start does to the time cancels
            gap_error = gap.std(ddof=1) / math.sqrt(runs)
            table[-1].append(
                {
                    "t_chain": times[:, column].mean(),
                    "t_chain_error": times[:, column].std(ddof=1) / math.sqrt(runs),
                    "t_ode": _exits(p, p_star, eta, rho0, level).mean(),
                    "t_noisy": noisy.mean(),
                    "t_formula": _formula(p, p_star, eta, 1 / N, FALL),
                    "gap": gap.mean(),
                    "gap_error": gap_error,
                    "z": gap.mean() / gap_error,
                }
            )
        # rows of the same seed point the same way at each N: slopes run by run are the sharper for
        # it
        logs = np.log(sizes) - np.mean(np.log(sizes))
        slopes = times @ logs / (logs @ logs)
        error = slopes.std(ddof=1) / math.sqrt(runs)
        result = {"rate_chain": 1 / slopes.mean(), "rate_chain_error": error / slopes.mean() ** 2}
        result |= {
            "rate_ode": 2 * plateau_growth(p, p_star, eta)[1],
            "rate_flow": 16 / (p * p_star),
            "noise_share": share,
        }
        rates.append(result)
    meanings = {
        "t_chain": "mean escape time of the exact chain, t = eta alpha",
        "t_chain_error": "its standard error",
        "t_ode": "ODE from the same rows",
        "t_noisy": "ODE from the same rows, overlaps widened by SGD's noise",
        "t_formula": "(13) solved for t, mean over starts",
        "gap": "chain less t_noisy, mean over runs from the same rows",
        "gap_error": "its standard error",
        "z": "their ratio",
        "rate_chain": "d log N/dt from the chain's escape times",
        "rate_chain_error": "its standard error",
        "rate_ode": "growth rate of rho^2 on the plateau at this eta",
        "rate_flow": "16/(p p*), as eta -> 0",
        "noise_share": "variance that SGD's noise adds to the overlaps, over 1/N",
    }
    variables: dict[str, Any] = {
        name: (
            ("case", "size"),
            [[value[name] for value in row] for row in table],
            {"long_name": meanings[name]},
        )
        for name in table[0][0]
    }
    variables |= {
        name: ("case", [rate[name] for rate in rates], {"long_name": meanings[name]})
        for name in rates[0]
    }
    coordinates: dict[str, Any] = {
        "p": ("case", [p for p, _ in cases]),
        "p_star": ("case", [star for _, star in cases]),
    }
    line = [
        (p, int(star))
        for star in np.unique([star for _, star in cases])
        for p in range(int(star), max(p for p, _ in cases) + 1)
    ]
    drawn = np.array([_mean_exits(p, star, sizes[-1], seed) for p, star in line])
    variables |= {
        f"line_{name}": ("line", drawn[:, i], {"long_name": meanings[name]})
        for i, name in enumerate(("t_ode", "t_noisy", "t_formula"))
    }
    coordinates |= {
        "line_p": ("line", [p for p, _ in line]),
        "line_p_star": ("line", [star for _, star in line]),
        "N": ("size", list(sizes)),
    }
    attributes = {
        "eta_over_p": SHARE,
        "fall": FALL,
        "runs": runs,
        "seed": seed,
        "units": "those of the paper: t = eta alpha",
    }
    return xr.Dataset(variables, coordinates, attributes)
