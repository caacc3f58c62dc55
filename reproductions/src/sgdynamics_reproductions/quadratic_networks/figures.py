"""Figures 1 and 3 to 6 of arXiv:2604.03068; figure 2 and the escape times are in `escape_figures`.

Each gives (fig, data) in the paper's units: t = eta alpha, loss without 1/2 (the library's lr is 2
eta, its risk half of the one here). All integrations are of p = 6 students, p* = 3 and RUNS starts
with POINTS save points: one compiled program serves three figures.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, Start, TeacherStudent, random_start, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics.papers.quadratic_networks import (
    closest_solution,
    conserved_S,
    degrees_of_freedom,
    manifold_dimension,
    noise_share,
    plateau,
    solution_overlaps,
    tail,
)
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics_reproductions.drawing import subplots

P, P_STAR, ETA, EPSILON = 6, 3, 0.01, 0.01
RUNS, POINTS = 10, 61
RUN_STRIDE = 6  # figure 1 stores single runs at every sixth save point
DRAWS = 400  # draws of the noise for each start
ALGORITHM = OnePassSGD(lr=2 * ETA)
UNITS = "those of the paper: t = eta alpha, loss without 1/2"


def _problem() -> TeacherStudent:
    return TeacherStudent(width=P, teacher_width=P_STAR, activation="square")


def _solve(initial_state: Start, t: np.ndarray) -> xr.Dataset:
    """Solve the ODE from RUNS starts (a single one is repeated) at POINTS times t = eta alpha."""
    assert len(t) == POINTS
    return solve_ode(_problem(), ALGORITHM, broadcast_runs(initial_state, RUNS), alpha=t / ETA)


def _near_plateau(count: int, seed: int) -> Start:
    """Draw starts near the plateau as in (8): Q = I and overlaps N(0, epsilon^2)."""
    rho0 = EPSILON * np.random.default_rng(seed).normal(size=(count, P, P_STAR))
    return start(_problem(), M=rho0, Q=np.eye(P))


def figure_1(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """All overlaps and the error: the ODE next to 10 runs of SGD from the same overlaps.

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
    The paper's figure 1 (p = 6, p* = 3, eta = 0.01, N = 10^4): teacher-student overlaps,
    student-student overlaps, student norms and generalization error, simulations as means with
    their standard error. Ours: the runs are the exact chain (equal in law to SGD in N dimensions),
    rows orthonormal at random as in section 4. ``data`` has each gap between mean and ODE in
    standard errors (z), and ``shift_t``, by how much the mean error curve is ahead of the ODE's at
    half of the fall. It is not zero at any N: SGD's noise adds ``noise_share``/N to the variance
    1/N of the overlaps at the start, so that runs from one start leave at different times. The
    caption gives no end: t = 20 here. Quick: N = 100, to t = 12, 64 runs: ten do not tell a wrong
    of .3 from their own scatter.

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_1(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, end, count = (100, 12.0, 64) if quick else (10_000, 20.0, RUNS)
    data = _theory_and_runs(N, end, seed, count)
    fig, axes = subplots(2, 2, (10, 7))
    upper = np.triu_indices(P, 1)
    entries = {
        "rho": [data.isel(unit=k, signal=r) for k in range(P) for r in range(P_STAR)],
        "Q": [data.isel(unit=k, unit_other=other) for k, other in zip(*upper, strict=True)],
        "norm": [data.isel(unit=k, unit_other=k) for k in range(P)],
        "risk": [data],
    }
    titles = {
        "rho": r"teacher-student overlaps $\rho_{kl}$",
        "Q": r"student-student overlaps $Q_{kk'}$",
        "norm": r"student norms $Q_{kk}$",
    }
    for ax, (name, curves) in zip(axes.flat, entries.items(), strict=True):
        variable = "Q" if name == "norm" else name
        for number, curve in enumerate(curves):
            color = f"C{number % 10}"
            mean, error = curve[f"{variable}_mean"], curve[f"{variable}_error"]
            ax.plot(
                data.alpha,
                curve[f"{variable}_ode"],
                color=color,
                lw=1.2,
                label="ODE" if number == 0 else None,
            )
            ax.plot(
                data.alpha,
                mean,
                "--",
                color=color,
                lw=1.2,
                label=f"mean of {count} runs, $N$ = {N}" if number == 0 else None,
            )
            ax.fill_between(data.alpha, mean - error, mean + error, color=color, alpha=0.25, lw=0)
        ax.set(
            xlabel=r"$\alpha$ = steps/$N$",
            ylabel=titles.get(name, r"generalization error $\mathcal{R}$"),
        )
    axes[1, 0].axhline(plateau(P, P_STAR).Q[0, 0], color="0.5", ls=":", label="plateau $p/(p + 2)$")
    axes[1, 1].axhline(plateau(P, P_STAR).risk, color="0.5", ls=":", label="plateau")
    axes[1, 0].legend(frameon=False, loc="upper left")
    axes[1, 1].legend(frameon=False, loc="lower left")
    fig.suptitle(
        rf"$p$ = {P}, $p^*$ = {P_STAR}, $\eta$ = {ETA}: line ODE, dashed with band simulation and"
        r" its standard error"
    )
    return fig, data


def _theory_and_runs(N: int, end: float, seed: int, count: int = RUNS) -> xr.Dataset:
    t = np.linspace(0, end, POINTS)
    initial_state = random_start(_problem(), dimension=N, seed=seed, orthogonal=True)
    theory = _solve(initial_state, t).isel(run=0)
    runs = simulate(
        _problem(), ALGORITHM, initial_state, alpha=t / ETA, dimension=N, runs=count, seed=seed
    )
    variables: dict[str, Any] = {}
    scores = {}
    for name, source, factor in (("rho", "M", 1.0), ("Q", "Q", 1.0), ("risk", "risk", 2.0)):
        ode, values = factor * theory[source].values, factor * runs[source].values
        mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(count)
        variables[f"{name}_runs"] = (
            ("run", "kept", *theory[source].dims[1:]),
            values[:, RUN_STRIDE::RUN_STRIDE],
        )
        variables |= {
            f"{name}_{kind}": (theory[source].dims, value)
            for kind, value in (("ode", ode), ("mean", mean), ("error", error))
        }
        scores[name] = (mean[1:] - ode[1:]) / error[1:]
    data = xr.Dataset(
        variables,
        {
            "alpha": ("time", t / ETA),
            "t": ("time", t),
            "kept_t": ("kept", t[RUN_STRIDE::RUN_STRIDE]),
        },
    )
    middle = plateau(P, P_STAR).risk / 2
    times = [
        float(np.interp(-middle, -np.minimum.accumulate(data[name].values), t))
        for name in ("risk_ode", "risk_mean")
    ]
    data.attrs = {
        "p": P,
        "p_star": P_STAR,
        "eta": ETA,
        "N": N,
        "runs": count,
        "seed": seed,
        "units": UNITS,
    }
    data.attrs |= {
        "z_rms": math.sqrt(np.mean([np.mean(score**2) for score in scores.values()])),
        "z_risk_largest": float(np.abs(scores["risk"]).max()),
        "gap_risk_largest": float(np.abs(data.risk_mean - data.risk_ode).max()),
        "shift_t": times[0] - times[1],
        "noise_share": noise_share(P, P_STAR, ETA),
    }
    return data


def figure_3(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The distance of rho(t) to the zero-error solution predicted from one start, for that start
    and for others.

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
    The paper's figure 3 (ODE, p = 6, p* = 3, eta = epsilon = 0.01): the start used for the
    prediction (19) ends there, uncorrelated starts stay at a finite distance, all reach zero error.
    Ours adds where each of the others must end, ``|rho_i - rho|`` between the predicted solutions,
    and how the approach ends: with p > p* not exponentially but as

    ::

        |rho(t) - rho|  ->  p* (p - p*) p^(3/2) / (32 (p + 2) t),      R as in tail

    since the surplus students shrink as 1/t and push the others aside by -(p - p*) c/(2 (p* + 2))
    sqrt(p*/p) each. Nine other starts; the caption gives no end: t = 100 here. Quick is the full
    size.

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_3(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    t = np.concatenate([np.linspace(0, 20, 41), np.geomspace(20, 100, POINTS - 40)[1:]])
    initial_state = _near_plateau(RUNS, seed)
    result = _solve(initial_state, t)
    ends = solution_overlaps(closest_solution(initial_state.M))[0]
    distance, own = (
        np.sqrt(((result.M.values - end) ** 2).sum(axis=(2, 3))) for end in (ends[0], ends[:, None])
    )
    law = P_STAR * (P - P_STAR) * P**1.5 / (32 * (P + 2) * t[1:])
    data = xr.Dataset(
        {
            "distance": (
                ("run", "time"),
                distance,
                {"long_name": "|rho(t) - rho| to the solution predicted from run 0"},
            ),
            "own_distance": (
                ("run", "time"),
                own,
                {"long_name": "the same to the solution predicted from each run's own start"},
            ),
            "predicted_end": (
                "run",
                np.sqrt(((ends - ends[0]) ** 2).sum(axis=(1, 2))),
                {"long_name": "where `distance` must end"},
            ),
            "risk": (("run", "time"), 2 * result.risk.values, {"long_name": "risk"}),
            "distance_law": ("time", np.concatenate([[np.nan], law])),
            "risk_law": ("time", np.concatenate([[np.nan], tail(P, P_STAR, t[1:], eta=ETA)])),
        },
        {"t": ("time", t)},
        {"p": P, "p_star": P_STAR, "eta": ETA, "epsilon": EPSILON, "seed": seed, "units": UNITS},
    )
    fig, (left, right) = subplots(1, 2, (10, 4))
    late = t > 10
    for run in range(1, RUNS):
        left.plot(
            t, data.distance[run], color="0.6", lw=1, label="other starts" if run == 1 else None
        )
        left.plot(
            t[-1] * 1.08,
            data.predicted_end[run],
            "<",
            color="C3",
            ms=4,
            label="their predicted ends" if run == 1 else None,
        )
        right.plot(t, data.risk[run], color="0.6", lw=1)
    left.plot(t, data.distance[0], "k", lw=1.6, label=r"start $\rho_0$ of the prediction")
    right.plot(t, data.risk[0], "k", lw=1.6)
    left.plot(t[late], data.distance_law[late], "C0--", lw=1, label="law $1/t$")
    right.plot(t[late], data.risk_law[late], "C0--", lw=1, label="law $1/t^2$")
    for ax, value in (
        (left, r"distance $|\rho(t) - \bar\rho|$"),
        (right, r"generalization error $\mathcal{R}$"),
    ):
        ax.set(yscale="log", xlabel=r"$t = \eta \alpha$", ylabel=value)
        ax.legend(frameon=False)
    left.set_title(rf"$p$ = {P}, $p^*$ = {P_STAR}, $\eta$ = {ETA}, $\epsilon$ = {EPSILON}")
    return fig, data


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The elements of S(t) = rho (rho^T rho)^(-1/2) through learning.

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
    The paper's figure 4: along the ODE from orthonormal rows at random they are constant (the
    caption gives no sizes: those of figure 3 here). Ours adds, on the right, the largest ``|S(t) -
    S(0)|`` in three cases: that ODE (rounding only), the ODE from rows that are Gaussian, whose
    Q(0) does not commute with rho0 rho0^T (of order N^(-1/2)), and SGD itself from orthonormal
    rows, by the exact chain. SGD does move S, by about the same at any N: its noise adds
    ``noise_share``/N to the variance 1/N of each overlap (what that does to S is
    ``moved_expected``), so that the solution reached is the closest one to the start only as eta ->
    0. Means over 10 starts of the ODE and 40 runs. N = 1000 and 10000; quick: 50 and 200.

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_4(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes, count = (50, 200) if quick else (1000, 10_000), 40
    t = np.linspace(0, 8, POINTS)
    S = conserved_S(_solve(_near_plateau(1, seed), t)).values[:1]
    share = noise_share(P, P_STAR, ETA)
    moved: dict[str, list[np.ndarray]] = {"gaussian": [], "gaussian_error": [], "sgd": []}
    expected, errors, ends = [], [], []
    for N in sizes:
        gaussian = conserved_S(
            _solve(random_start(_problem(), dimension=N, seed=seed, runs=RUNS), t)
        ).values
        moved["gaussian"].append(_largest_change(gaussian).mean(axis=0))
        moved["gaussian_error"].append(
            _largest_change(gaussian).std(axis=0, ddof=1) / math.sqrt(RUNS)
        )
        rows = random_start(_problem(), dimension=N, seed=seed, runs=count, orthogonal=True)
        runs = _largest_change(
            conserved_S(
                simulate(_problem(), ALGORITHM, rows, alpha=t / ETA, dimension=N, seed=seed)
            ).values
        )
        moved["sgd"].append(runs.mean(axis=0))
        errors.append(runs.std(axis=0, ddof=1) / math.sqrt(count))
        noise = math.sqrt(share / N) * np.random.default_rng(seed).normal(
            size=(DRAWS, count, P, P_STAR)
        )
        # start by start: how far S moves depends on the start, and that part of the scatter drops
        # out
        values = (
            np.abs(closest_solution(rows.M + noise) - closest_solution(rows.M))
            .max(axis=(2, 3))
            .mean(axis=0)
        )
        expected.append(float(values.mean()))
        ends.append(runs[:, -1] - values)
    data = xr.Dataset(
        {
            "S": (
                ("time", "unit", "signal"),
                S[0],
                {"long_name": "S(t) along the ODE, orthonormal rows"},
            ),
            "moved_ode": (
                "time",
                _largest_change(S)[0],
                {"long_name": "largest |S(t) - S(0)|, ODE, orthonormal rows"},
            ),
            "moved_gaussian": (
                ("size", "time"),
                np.array(moved["gaussian"]),
                {"long_name": "the same, Gaussian rows, mean"},
            ),
            "moved_gaussian_error": (
                ("size", "time"),
                np.array(moved["gaussian_error"]),
                {"long_name": f"its standard error, {RUNS} starts"},
            ),
            "moved_sgd": (
                ("size", "time"),
                np.array(moved["sgd"]),
                {"long_name": "the same, SGD from orthonormal rows, mean"},
            ),
            "moved_sgd_error": (
                ("size", "time"),
                np.array(errors),
                {"long_name": "its standard error"},
            ),
            "moved_gap": (
                ("size", "run"),
                np.array(ends),
                {"long_name": "where SGD ends less that, run by run from the same rows"},
            ),
            "moved_expected": (
                "size",
                expected,
                {"long_name": "the same if noise of variance noise_share/N is added to rho(0)"},
            ),
        },
        {"t": ("time", t), "N": ("size", list(sizes))},
        {"p": P, "p_star": P_STAR, "eta": ETA, "seed": seed, "noise_share": share, "units": UNITS},
    )
    fig, (left, right) = subplots(1, 2, (10, 4))
    for number, (k, r) in enumerate(np.ndindex(P, P_STAR)):
        left.plot(t, data.S[:, k, r], color=f"C{number % 10}", lw=1.2)
    left.set(
        xlabel=r"$t = \eta \alpha$",
        ylabel="$S_{kl}(t)$",
        title=f"ODE, orthonormal rows: $p$ = {P}, $p^*$ = {P_STAR}",
    )
    for index, N in enumerate(sizes):
        style = {"fmt": "os"[index], "ms": 3, "color": f"C{index}"}
        right.errorbar(
            t[1::4],
            data.moved_sgd[index, 1::4],
            errors[index][1::4],
            label=f"SGD, $N$ = {N}",
            **style,
        )
        mean, error = (
            data[name].values[index, 1:] for name in ("moved_gaussian", "moved_gaussian_error")
        )
        right.plot(t[1:], mean, "--", color=f"C{index}", label=f"ODE, Gaussian rows, $N$ = {N}")
        right.fill_between(t[1:], mean - error, mean + error, color=f"C{index}", alpha=0.2, lw=0)
    right.axhline(expected[-1], color="0.5", ls=":", label="expected of SGD's noise")
    right.plot(t[1:], data.moved_ode[1:], "k", label="ODE, orthonormal rows")
    right.set(
        xlabel=r"$t = \eta \alpha$",
        ylabel=r"largest $|S(t) - S(0)|$",
        yscale="log",
        title=rf"$\eta$ = {ETA}",
    )
    right.legend(frameon=False, loc="center right", fontsize="small")
    return fig, data


def _largest_change(S: np.ndarray) -> np.ndarray:
    """Largest entry of |S(t) - S(0)| for S of shape (run, time, unit, signal)."""
    return np.abs(S - S[:, :1]).max(axis=(2, 3))


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The degrees of freedom of a student against its width: growing up to p = N, constant beyond.

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
    The paper's figure 5: N p - p (p - 1)/2 for p <= N, N (N + 1)/2 for p > N. Ours adds points: the
    rank of the linear map dW -> W^T dW + dW^T W at a random W, counted numerically. The caption
    gives no N: 4, 8 and 12 here (quick: 4 and 8).

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_5(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    sizes = (4, 8) if quick else (4, 8, 12)
    p = np.arange(1, sizes[-1] + 5)
    rng = np.random.default_rng(seed)
    formula = np.array([[degrees_of_freedom(int(width), N) for width in p] for N in sizes])
    counted = np.array(
        [
            [
                np.linalg.matrix_rank(_change_of_gram(rng.normal(size=(int(width), N))))
                for width in p
            ]
            for N in sizes
        ]
    )
    data = xr.Dataset(
        {
            "formula": (
                ("size", "width"),
                formula,
                {"long_name": "degrees of freedom, closed formula"},
            ),
            "counted": (
                ("size", "width"),
                counted,
                {"long_name": "rank of dW -> d(W^T W) at a random W"},
            ),
        },
        {"N": ("size", list(sizes)), "p": ("width", p)},
        {"seed": seed},
    )
    fig, ax = subplots(1, 1, (5.5, 4))
    for index, N in enumerate(sizes):
        ax.plot(p, formula[index], "-", color=f"C{index}", label=f"$N$ = {N}")
        ax.plot(
            p,
            counted[index],
            "o",
            ms=4,
            color=f"C{index}",
            label="counted" if index == len(sizes) - 1 else None,
        )
        ax.axvline(N, color=f"C{index}", ls=":", lw=1)
    ax.set(
        xlabel="student width $p$",
        ylabel="degrees of freedom of the student",
        title="constant beyond $p = N$ (dotted)",
    )
    ax.legend(frameon=False)
    return fig, data


def _change_of_gram(W: np.ndarray) -> np.ndarray:
    """The matrix of dW -> W^T dW + dW^T W, one row for each entry of dW."""
    moves = np.eye(W.size).reshape(-1, *W.shape)
    return (W.T @ moves + np.swapaxes(moves, -1, -2) @ W).reshape(W.size, -1)


def figure_6(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The dimension of the manifold of zero-error solutions against the student's width.

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
    The paper's figure 6: p (p - 1)/2 - (p - m)(p - m - 1)/2, m = min(p*, N), from p = m on: a
    straight line of slope m. Ours adds points, counted at a solution W: the rank of the moves A W
    with A antisymmetric (those along the manifold), and in ``data`` the flat directions, the kernel
    of dW -> d(W^T W), of which (N - m)(p - m) more are no rotations. The caption gives neither N
    nor p*: N = 8 and p* = 1, 2, 3, 5, 10 here (the last fills the space), p up to 12 (quick: p* =
    1, 3, 10).

    Examples
    --------
    >>> from sgdynamics_reproductions import quadratic_networks
    >>> fig, data = quadratic_networks.figure_6(quick=True)  # doctest: +SKIP
    """
    seed = checks.integer("seed", seed, 0)
    N, stars, p = 8, (1, 3, 10) if quick else (1, 2, 3, 5, 10), np.arange(1, 13)
    rng = np.random.default_rng(seed)
    formula, counted, flat = (np.full((len(stars), len(p)), np.nan) for _ in range(3))
    for row, p_star in enumerate(stars):
        rank = min(p_star, N)
        teacher = (
            rng.normal(size=(p_star, N))
            if p_star > N
            else np.linalg.qr(rng.normal(size=(N, p_star)))[0].T
        )
        values, vectors = np.linalg.eigh(teacher.T @ teacher)
        root = (vectors * np.sqrt(np.maximum(values, 0)))[
            :, -rank:
        ].T  # rank x N, root^T root = W*^T W*
        for column, width in enumerate(p.tolist()):
            if width < rank:
                continue
            S = np.linalg.qr(rng.normal(size=(width, rank)))[0]
            W = math.sqrt(width / p_star) * S @ root  # W^T W/p = W*^T W*/p*
            turns = np.eye(width**2).reshape(-1, width, width)
            moves = ((turns - np.swapaxes(turns, -1, -2)) @ W).reshape(width**2, -1)
            formula[row, column] = manifold_dimension(width, p_star, N)
            counted[row, column] = np.linalg.matrix_rank(moves)
            flat[row, column] = W.size - np.linalg.matrix_rank(_change_of_gram(W))
    data = xr.Dataset(
        {
            "formula": (
                ("teacher", "width"),
                formula,
                {"long_name": "dimension of the manifold, closed formula"},
            ),
            "counted": (
                ("teacher", "width"),
                counted,
                {"long_name": "rank of the rotations' moves at a solution"},
            ),
            "flat": (
                ("teacher", "width"),
                flat,
                {"long_name": "moves that keep W^T W to first order"},
            ),
        },
        {"p_star": ("teacher", list(stars)), "p": ("width", p)},
        {"N": N, "seed": seed},
    )
    fig, ax = subplots(1, 1, (5.5, 4))
    for row, p_star in enumerate(stars):
        ax.plot(
            p,
            formula[row],
            "-",
            color=f"C{row}",
            label=f"$p^*$ = {p_star}" + (" > $N$" if p_star > N else ""),
        )
        ax.plot(
            p,
            counted[row],
            "o",
            ms=4,
            color=f"C{row}",
            label="counted" if row == len(stars) - 1 else None,
        )
    ax.set(
        xlabel="student width $p$",
        ylabel="dimension of the solution manifold",
        title=rf"$N$ = {N}, from $p = \min(p^*, N)$ on",
    )
    ax.legend(frameon=False)
    return fig, data
