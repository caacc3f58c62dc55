"""Figure 5: skills that emerge one after the other, and a loss that falls as a power law."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import OnePassSGD, TeacherStudent, fit_exponent, simulate, solve_ode, start
from sgdynamics.base import checks
from sgdynamics.papers.scaling_laws import emergence_exponent, emergence_loss, emergence_time
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

DECAYS = (1.5, 1.75, 2.0)
FIRST = 0.2  # overlap of each student with its own teacher
SHOWN = 5  # skills that are drawn one by one
MANY = 20_000  # skills of the closed sum: as good as infinitely many


def figure_5(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Teachers of weights k^-b are learned one after the other: losses of single skills, their sum,
    and its exponent against b.

    Parameters
    ----------
    quick : bool, default False
        24 skills and 16 runs in place of 32 and 64, in about a minute.
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
    y = sum_k k^-b (w*_k x)^2 with orthonormal teachers, and a student of the same weights on the
    sphere for each, at the overlap .2 with its own teacher and 0 with the others; lr = .02. Under
    flow skill k has the loss of ``emergence_loss``, a jump at ``emergence_time`` ~ k^2b, and the
    sum of all falls as t^-(2b-1)/2b (``emergence_exponent``). Exponents are fitted from the time of
    the second skill to that of skill K/4. There K skills in place of infinitely many take
    (1/4)^(2b-1) off the loss, which makes the fitted exponent larger by up to .02 at b = 1.5; that
    skills are whole numbers and that noise slows the first adds as much. Runs are at d = 100 (in
    full 500) and b = 1.5. Random starts differ: there students compete for the heaviest teachers.
    After Ren, Nichani, Wu and Lee, "Emergence and scaling laws in SGD learning of shallow neural
    networks" (2025).

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_5(quick=True)  # doctest: +SKIP
    """
    seed, lr = checks.integer("seed", seed, 0), 0.02
    # The runs end at the emergence time of skill `last_skill`.
    K, d, runs, last_skill = (24, 100, 16, 3.0) if quick else (32, 500, 64, 4.4)
    curves, times, fitted, closed_exponents = [], [], [], []
    skills, at, of_runs = np.zeros((81, K)), np.zeros(0), slice(0)
    for b in DECAYS:
        t = np.geomspace(0.1, emergence_time(K / 4, b, FIRST) * 1.5, 81)
        problem, initial_state = _problem(K, b)
        solution = solve_ode(problem, OnePassSGD(lr=lr), initial_state, times=t)
        low, high = emergence_time([2, K / 4], b, FIRST)
        window = (t >= low) & (t <= high)
        closed_form = solution.assign(closed=("time", emergence_loss(t, b, FIRST, K).sum(axis=1)))
        fitted.append(-fit_exponent(closed_form.isel(time=window), "excess_risk", "t").exponent)
        closed_exponents.append(
            -fit_exponent(closed_form.isel(time=window), "closed", "t").exponent
        )
        curves.append(solution.excess_risk.values[0])
        times.append(t)
        if b == DECAYS[0]:
            of_runs = slice(5, int(np.sum(t <= emergence_time(last_skill, b, FIRST))), 6)
            at, skills = t[of_runs], _skill_losses(solution, b)[0]
    problem, initial_state = _problem(K, DECAYS[0])
    chain = simulate(
        problem, OnePassSGD(lr=lr), initial_state, times=at, dimension=d, runs=runs, seed=seed
    )
    share = _skill_losses(chain, DECAYS[0])
    sums = [
        [
            emergence_loss(time, b, FIRST, count).sum(axis=1)
            for time, b in zip(times, DECAYS, strict=True)
        ]
        for count in (K, MANY)
    ]
    data = xr.Dataset(
        {
            "loss": (("b", "time"), np.array(curves), {"long_name": "excess risk of the ODE"}),
            "closed": (
                ("b", "time"),
                np.array(sums[0]),
                {"long_name": "closed sum, gradient flow"},
            ),
            "closed_many": (
                ("b", "time"),
                np.array(sums[1]),
                {"long_name": "closed sum of infinitely many skills"},
            ),
            "t": (("b", "time"), np.array(times)),
            "fitted": ("b", fitted, {"long_name": "minus the exponent in t"}),
            "fitted_closed": (
                "b",
                closed_exponents,
                {"long_name": "the same of the closed sum of as many skills"},
            ),
            "predicted": ("b", [emergence_exponent(b) for b in DECAYS]),
            "skill_loss": (
                ("time", "skill"),
                skills[:, :SHOWN],
                {"long_name": "losses of single skills, ODE"},
            ),
            "loss_at": ("point", curves[0][of_runs]),
            "loss_runs": (
                ("run", "point"),
                chain.excess_risk.values,
                {"long_name": "excess risk of exact chain runs"},
            ),
            "skill_loss_at": (("point", "skill"), skills[of_runs, :SHOWN]),
            "skill_loss_runs": (("run", "point", "skill"), share[:, :, :SHOWN]),
        },
        {"b": list(DECAYS), "skill": np.arange(1, SHOWN + 1), "t_runs": ("point", at)},
        {"K": K, "d": d, "lr": lr, "first": FIRST, "runs": runs, "seed": seed},
    )
    return _draw(data), data


def _problem(K: int, b: float) -> tuple[TeacherStudent, Any]:
    head = K * np.arange(1, K + 1.0) ** -b  # outputs are means over units
    problem = TeacherStudent(
        width=K, teacher_width=K, activation="square", teacher_head=head, constraint="sphere"
    )
    return problem, start(problem, M=FIRST * np.eye(K), Q=np.eye(K), a=head)


def _skill_losses(result: xr.Dataset, b: float) -> np.ndarray:
    """Losses (run, time, skill): 2 k^-2b (1 - m_k^2)."""
    m = np.diagonal(result.M.values, axis1=2, axis2=3)
    return 2 * np.arange(1, m.shape[-1] + 1.0) ** (-2 * b) * (1 - m**2)


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 3.9)
    t, at = data.t.values, data.t_runs.values
    for index, skill in enumerate(data.skill.values):
        axes[0].plot(
            t[0], data.skill_loss.values[:, index], color=f"C{index}", label=f"skill {skill}"
        )
        draw_runs(axes[0], at, data.skill_loss_runs.values[:, :, index], f"C{index}")
        axes[0].axvline(
            emergence_time(skill, data.b.values[0], data.attrs["first"]),
            color=f"C{index}",
            lw=0.7,
            ls=":",
        )
    axes[0].plot(t[0], data.loss.values[0], color="k", label="all")
    draw_runs(axes[0], at, data.loss_runs.values, "k")
    axes[0].set(
        xscale="log",
        yscale="log",
        xlabel="$t$ = lr steps/$d$",
        ylabel="loss",
        ylim=(2e-4, 6),
        title=f"single skills, $b$ = {data.b.values[0]:g}",
    )
    axes[0].set_xlim(0.1, float(t[0][-1]))
    for row, b in enumerate(data.b.values):
        line, law = data.loss.values[row], data.closed_many.values[row]
        axes[1].plot(t[row], line, color=f"C{row}", label=f"$b$ = {b:g}, {data.attrs['K']} skills")
        axes[1].plot(
            t[row],
            law,
            color=f"C{row}",
            lw=0.9,
            ls="--",
            label="closed, infinitely many" if row == 2 else None,
        )
        late = t[row] > emergence_time(2, b, data.attrs["first"])
        straight = law[-1] * (t[row] / t[row][-1]) ** -float(data.predicted[row])
        axes[1].plot(
            t[row][late],
            0.5 * straight[late],
            color="k",
            lw=0.8,
            label="$t^{-(2b-1)/2b}$" if row == 2 else None,
        )
    axes[1].set(
        xscale="log", yscale="log", xlabel="$t$ = lr steps/$d$", ylabel="loss", title="their sum"
    )
    b = np.linspace(1.4, 2.1, 50)
    axes[2].plot(
        b,
        [emergence_exponent(value) for value in b],
        color="k",
        lw=0.9,
        label="$(2b-1)/2b$, infinitely many",
    )
    axes[2].plot(
        data.b,
        data.fitted_closed,
        "s",
        color="0.5",
        mfc="none",
        ms=9,
        label=f"fitted to the closed sum of {data.attrs['K']}",
    )
    axes[2].plot(data.b, data.fitted, "o", color="C3", label="fitted to the ODE")
    axes[2].set(
        xlabel="$b$", ylabel="exponent of the loss in $t$", title="exponents", ylim=(0.6, 0.8)
    )
    words = (
        "skills of weights $k^{{-b}}$, one student each: ODE (lines), {runs} exact chain runs at"
        " $d$ = {d} (2 standard errors)"
    )
    finish(fig, axes, words.format(**data.attrs))
    axes[0].legend(frameon=False, fontsize="small", ncols=2, loc="lower left")
    return fig
