"""First optimal learning-rate schedules: what annealing gains over the best constant rate, in the
ODE and confirmed by SGD at d = 1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import (
    OnePassSGD,
    OptimalProtocol,
    Start,
    TeacherStudent,
    optimal_schedule,
    piecewise_rate,
    random_start,
    simulate,
    start,
)

DIMENSION = 1000
SAVES = 25  # save points of the risk


@dataclass(frozen=True)
class Case:
    """A problem with its initial condition and its budget of samples."""

    title: str
    problem: TeacherStudent
    initial_state: Start
    alpha: float  # samples per dimension
    runs: int  # runs of the exact chain, a multiple of the number of starts


def cases(quick: bool = False, seed: int = 0) -> dict[str, Case]:
    """Return the cases by name: two of phase retrieval and two erf committees.

    Phase retrieval starts from sixteen random initial conditions, which share one schedule, or from
    a warm one. The committees start from one random initial condition. All cases have label noise,
    because without it the optimal rate does not have to decrease. `quick` returns only the smaller
    committee, with fewer samples.
    """
    sphere = TeacherStudent(width=1, activation="square", constraint="sphere", noise=0.5)
    free = TeacherStudent(width=1, activation="square", noise=0.5)
    two = TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
    four = TeacherStudent(width=4, teacher_width=2, activation="erf", noise=0.1)
    several = random_start(sphere, dimension=DIMENSION, runs=16, seed=seed)
    table = {
        "phase_random": Case(
            "phase retrieval, sphere,\n16 random starts", sphere, several, 100.0, 512
        ),
        "phase_warm": Case(
            "phase retrieval, free,\nfrom $m$ = 0.3",
            free,
            start(free, M=[[0.3]], Q=[[1.0]]),
            60.0,
            256,
        ),
        "erf_2_2": Case(
            "erf, $p = k = 2$,\na random start",
            two,
            random_start(two, dimension=DIMENSION, seed=seed),
            50.0 if quick else 200.0,
            64,
        ),
        "erf_4_2": Case(
            "erf, $p$ = 4, $k$ = 2,\na random start",
            four,
            random_start(four, dimension=DIMENSION, seed=seed),
            200.0,
            64,
        ),
    }
    return {name: case for name, case in table.items() if not quick or name == "erf_2_2"}


def optimal_schedules(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """The optimal schedule of each of ``cases`` next to the best constant rate: rates (above) and
    excess risk against alpha (below).

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
    Lines: the ODE (mean over the starts); points: the exact chain at d = 1000 with the same
    schedules, from the same starts, with standard errors. ``gain`` is the ratio of the final risks
    in the ODE, ``gain_chain`` that of the chain's means, ``gain_chain_median`` of its medians. From
    random starts the times at which runs leave m = 0 are spread, of which the ODE knows only what
    comes from the starts: the rate falls too early for the last runs, they make the mean, and it
    gains less than in the ODE (not so the median). Fifty pieces (quick: 25). Problems, noise and
    alpha are chosen here.

    Examples
    --------
    >>> from sgdynamics_reproductions import dimension_free
    >>> fig, data = dimension_free.optimal_schedules(quick=True)  # doctest: +SKIP
    """
    pieces = 25 if quick else 50
    data = xr.Dataset(attrs={"dimension": DIMENSION, "pieces": pieces, "seed": seed})
    chosen = cases(quick, seed)
    for name, case in chosen.items():
        data = data.merge(_solve(name, case, pieces, seed), combine_attrs="no_conflicts")
    return _draw(chosen, data), data


def _solve(name: str, case: Case, pieces: int, seed: int) -> xr.Dataset:
    best = optimal_schedule(
        case.problem, OnePassSGD(), case.initial_state, alpha=case.alpha, pieces=pieces
    )
    # where pieces end: the schedule's own edges, every other one of fifty
    stride = max(1, pieces // SAVES)
    alpha = best.edges[::stride]
    repeats = case.runs // case.initial_state.runs
    M, Q, a = (
        np.repeat(value, repeats, axis=0)
        for value in (
            case.initial_state.M_blocks,
            case.initial_state.Q_blocks,
            case.initial_state.a,
        )
    )
    many = Start(M, Q, a)
    groups, medians = [], []
    for index, algorithm in enumerate(_both(best)):
        chain = simulate(
            case.problem, algorithm, many, alpha=alpha, dimension=DIMENSION, seed=seed + 1 + index
        )
        risks = np.asarray(chain.excess_risk)
        medians.append(float(np.median(risks[:, -1])))
        # runs from one start are alike: the starts are what is independent, unless there is only
        # one
        groups.append(
            risks.reshape(case.initial_state.runs, repeats, -1).mean(axis=1)
            if case.initial_state.runs > 1
            else risks
        )
    mean = [group.mean(axis=0) for group in groups]
    error = [group.std(axis=0, ddof=1) / np.sqrt(len(group)) for group in groups]
    chain_gain = mean[1][-1] / mean[0][-1]
    # of a ratio of means, start by start: an unlucky one is so with both rates
    doubt = (
        np.std(groups[1][:, -1] - chain_gain * groups[0][:, -1], ddof=1)
        / np.sqrt(len(groups[0]))
        / mean[0][-1]
    )
    dims = ("rate", f"save_{name}")
    return xr.Dataset(
        {
            f"rates_{name}": ("piece", best.protocol["lr"]),
            f"edges_{name}": ("edge", best.edges),
            f"risk_{name}": (dims, np.stack([best.risks, best.constant_risks])[:, ::stride]),
            f"chain_{name}": (dims, np.stack(mean)),
            f"chain_error_{name}": (dims, np.stack(error)),
            f"history_{name}": (f"iteration_{name}", best.history),
        },
        {"rate": ["schedule", "constant"], f"alpha_{name}": (f"save_{name}", alpha)},
        {
            f"gain_{name}": best.gain,
            f"gain_chain_{name}": float(chain_gain),
            f"gain_chain_error_{name}": float(doubt),
            f"gain_chain_median_{name}": medians[1] / medians[0],
            f"best_constant_lr_{name}": best.constant["lr"],
            f"runs_{name}": case.runs,
            f"groups_{name}": len(groups[0]),
        },
    )


def _both(best: OptimalProtocol) -> tuple[OnePassSGD, OnePassSGD]:
    """The schedule, and the best constant rate as a schedule of equal rates: one program serves
    both.
    """
    flat = np.full(len(best.protocol["lr"]), best.constant["lr"])
    return best.algorithm, OnePassSGD(lr=piecewise_rate(best.edges[1:-1], flat))


def _draw(chosen: dict[str, Case], data: xr.Dataset) -> Any:
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(
        2,
        len(chosen),
        figsize=(3.7 * len(chosen), 6.6),
        layout="constrained",
        squeeze=False,
        sharex="col",
    )
    for column, (name, case) in enumerate(chosen.items()):
        at, (above, below) = data.attrs, axes[:, column]
        edges, constant = np.asarray(data[f"edges_{name}"]), at[f"best_constant_lr_{name}"]
        above.stairs(
            np.asarray(data[f"rates_{name}"]), edges, color="C0", lw=1.6, label="optimal schedule"
        )
        above.axhline(constant, color="C3", lw=1.2, ls="--", label=f"best constant, {constant:.3g}")
        above.set(title=case.title, ylim=(0, None))
        above.legend(frameon=False)
        alpha = np.asarray(data[f"alpha_{name}"])
        for index, (colour, label) in enumerate(
            (("C0", "optimal schedule"), ("C3", "best constant"))
        ):
            below.plot(alpha, data[f"risk_{name}"][index], color=colour, lw=1.4, label=label)
            points = {"fmt": "o", "ms": 3, "capsize": 2, "lw": 1, "color": colour}
            below.errorbar(
                alpha, data[f"chain_{name}"][index], data[f"chain_error_{name}"][index], **points
            )
        below.plot([], [], "o", color="0.4", ms=3, label=f"exact chain, $d$ = {DIMENSION}")
        below.plot([], [], color="0.4", label="ODE")
        gain = (
            f"ODE {at[f'gain_{name}']:.3f}, chain {at[f'gain_chain_{name}']:.3f} $\\pm$"
            f" {at[f'gain_chain_error_{name}']:.3f}"
        )
        below.set(yscale="log", xlabel="$\\alpha$ = samples / $d$", title=f"gain: {gain}")
        if column == 0:
            below.legend(frameon=False)
    axes[0, 0].set_ylabel("learning rate")
    axes[1, 0].set_ylabel("excess risk")
    return fig
