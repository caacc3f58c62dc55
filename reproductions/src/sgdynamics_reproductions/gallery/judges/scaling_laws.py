"""Judges of the figures about scaling laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    Mean,
    agreement,
    count_wrong,
    difference,
    format_list,
    judge_claims,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of

EXPONENTS = 0.03  # relative tolerance of measured exponents of compute-optimal training
SLOW = {"IVb": 0.06}  # tolerance where corrections decay only as d^-.05 and remain at any size
PER_FEATURE = 6.0  # drawn features agree with their equivalent up to this multiple of 1/d, relative
PER_DIMENSION = 4.0  # runs at dimension d agree with the limit up to this multiple of 1/d, relative
# Tolerance of exponents in time: the remaining transient is as large as the risk at the start of
# the fit.
LEARNING = 0.03
EMERGENCE = 0.04  # tolerance of exponents of skills: .02 for their finite number, .02 for noise
# Tolerance of the same exponents compared with the closed sum of as many skills: the noise of SGD
# alone, lr = .02 times a loss of order 1.
NOISY = 0.02
REAL = {0.2: 0.03, 1.0: 0.1}  # relative tolerance of theory for real samples, by learning rate


def _relative(
    claim: str, runs: np.ndarray, theory: np.ndarray, tolerance: float, scale: float
) -> Finding:
    """Test that the mean of runs (run, points) is the curve of the theory, in relative units."""
    return mean_over_runs(np.asarray(runs) / theory - 1).agrees(
        f"{claim}, within {tolerance:.1%}",
        0.0,
        tolerance=tolerance,
        scale=scale,
        scale_words=f"{scale:.0%} of the curve",
    )


def _largest_deviation(runs: np.ndarray, theory: np.ndarray) -> float:
    return float(np.abs(np.asarray(runs).mean(axis=0) / theory - 1).max())


@judge_of(
    "figure_1",
    "the seven phases of compute-optimal random features",
    "The loss is ~ flops^-eta and the best size ~ flops^xi with the predicted exponents, within 3% "
    "(phase IVb: 6%)",
)
def seven_phases(data: xr.Dataset) -> Judgement:
    """Compare measured with predicted eta and xi at a point in each phase."""
    names = data.phase.values
    within = np.array([SLOW.get(name, EXPONENTS) for name in names])
    rows = {value: (data[value] / data[f"{value}_predicted"]).values for value in ("eta", "xi")}
    text = "; ".join(
        f"{name} eta {data.eta.values[row]:.4f} ({data.eta_predicted.values[row]:.4f}) "
        f"xi {data.xi.values[row]:.4f} ({data.xi_predicted.values[row]:.4f})"
        for row, name in enumerate(names)
    )
    words: dict[str, Any] = {"scale": 2 * within, "scale_words": "6% (IVb 12%) of them"}
    return judge_claims(
        f"measured (predicted): {text}",
        count_wrong(
            "Each point lies in its phase",
            int(np.sum(data.phase_predicted.values != names)),
            len(names),
        ),
        agreement(
            "eta is the predicted exponent", rows["eta"], 0.0, 1.0, tolerance=within, **words
        ),
        agreement("xi is the predicted exponent", rows["xi"], 0.0, 1.0, tolerance=within, **words),
    )


@judge_of(
    "figure_2",
    "loss as a function of flops at 1e3 to 1e9 features, and the envelope",
    "The envelope has the predicted slope, each size is best for some budget, and drawn features "
    "agree with their equivalent",
)
def curves_and_envelope(data: xr.Dataset) -> Judgement:
    """Test the exponents of the envelope, curves that touch it from above, and drawn features."""
    below, touch = 0, np.zeros(data.loss.shape[:2])
    points = 0
    for row in range(data.sizes["case"]):
        is_finite = np.isfinite(data.flops.values[row])
        flops, frontier = (
            np.log(data[entry].values[row, is_finite]) for entry in ("flops", "frontier")
        )
        x = np.log(data["size"].values[:, None] * data.steps.values[row])
        inside = (x >= flops[0]) & (x <= flops[-1])
        over = np.log(data.loss.values[row]) - np.interp(x, flops, frontier)
        # Straight lines between budgets lie slightly above a convex frontier.
        below += int(np.sum(over[inside] < -0.01))
        points += int(inside.sum())
        touch[row] = np.where(inside, over, np.inf).min(axis=1)
    middle = touch[:, 1:-1]  # the first and the last size are best at the ends of the frontier
    d, runs = data.attrs["features_drawn"], data.drawn.values
    gaps = [
        _largest_deviation(run, line)
        for run, line in zip(runs, data.equivalent.values, strict=True)
    ]
    shares = [(data[value] / data[f"{value}_predicted"]).values for value in ("eta", "xi")]
    return judge_claims(
        f"eta is {format_list(data.eta.values.round(4))} "
        f"({format_list(data.eta_predicted.values.round(4))} predicted), xi "
        f"{format_list(data.xi.values.round(4))} "
        f"({format_list(data.xi_predicted.values.round(4))}) in phases "
        f"{', '.join(data.case.values)}; sizes come within {middle.max():.2%} of the envelope; the "
        f"mean over {runs.shape[1]} draws of {d} features deviates from the equivalent by at most "
        f"{', '.join(f'{gap:.1%}' for gap in gaps)}",
        agreement(
            "eta and xi are the predicted exponents, within 3%",
            shares,
            0.0,
            1.0,
            tolerance=EXPONENTS,
            scale=0.06,
            scale_words="6% of the exponents",
        ),
        count_wrong("No curve is below the envelope", below, points),
        agreement(
            "Each size is best for some budget: its curve comes within 1% of the envelope",
            middle,
            0.0,
            0.0,
            tolerance=0.01,
            scale=0.03,
        ),
        *(
            _relative(
                f"Phase {name}: the mean over draws is the equivalent",
                item,
                line,
                PER_FEATURE / d,
                0.25,
            )
            for name, item, line in zip(data.case.values, runs, data.equivalent.values, strict=True)
        ),
    )


@judge_of(
    "figure_3",
    "a ReLU network on power-law data: ODE, exact chain, direct runs",
    "Runs of the exact chain have the mean of direct runs, and the ODE agrees with them up to a "
    "fraction g l_1/(2 p) of the excess risk",
)
def relu_on_power_laws(data: xr.Dataset) -> Judgement:
    """Compare the chain with direct runs, and the ODE with the chain.

    The ODE is compared at three spectra and at four learning rates.
    """
    stride, lines = data.attrs["every"], data.excess_risk.values
    # In units of g l_1, the step times the largest curvature of the risk: p units of weight 1/p, of
    # which half are active.
    closure = 1 / (2 * data.attrs["width"])
    row = int(np.argmin(np.abs(data.exponent.values - data.attrs["direct"])))
    few = data.sizes["direct_point"]
    line = lines[row, stride::stride][:few]
    direct = mean_over_runs(data.excess_risk_direct.values / line)
    chain = mean_over_runs(data.excess_risk_runs.values[row, :, :few] / line)
    apart = difference(chain, direct)
    gaps = [
        _largest_deviation(value, path[stride::stride])
        for value, path in zip(data.excess_risk_runs.values, lines, strict=True)
    ]
    fast = [
        _largest_deviation(entry, path)
        for entry, path in zip(data.by_rate_runs.values, data.by_rate.values, strict=True)
    ]
    return judge_claims(
        f"mean of {data.sizes['direct_run']} direct runs at d = {data.attrs['d']} relative to that "
        f"of {data.sizes['run']} chain runs: deviation of at most {np.abs(apart.value).max():.2%} "
        f"({np.abs(apart.value / apart.error).max():.1f} standard errors); the chain deviates from "
        f"the ODE by at most {', '.join(f'{gap:.2%}' for gap in gaps)} at g l_1 = "
        f"{format_list(data.g_l1.values.round(3))}, and by "
        f"{', '.join(f'{gap:.1%}' for gap in fast)} at "
        f"{format_list(data.by_rate_g_l1.values.round(2))}",
        apart.agrees(
            "Direct runs have the mean of the exact chain",
            0.0,
            scale=0.1,
            scale_words="10% of the excess risk",
        ),
        *(
            _relative(
                f"s = {s:g}: the mean of the chain is the ODE",
                item,
                path[stride::stride],
                closure * share + PER_DIMENSION / data.attrs["d"],
                0.2,
            )
            for s, item, path, share in zip(
                data.exponent.values,
                data.excess_risk_runs.values,
                lines,
                data.g_l1.values,
                strict=True,
            )
        ),
        *(
            _relative(
                f"lr = {lr:g}: the mean of the chain is the ODE",
                runs,
                path,
                closure * share,
                0.2 + closure * share,
            )
            for lr, runs, path, share in zip(
                data.lr.values,
                data.by_rate_runs.values,
                data.by_rate.values,
                data.by_rate_g_l1.values,
                strict=True,
            )
        ),
    )


@judge_of(
    "figure_4",
    "SGD on real digits, and the theory from their spectrum",
    "Gaussian theory holds at a small step, kappa corrects it at a large one, and largest_step "
    "predicts where SGD diverges although Gaussian theory predicts stability",
)
def digits(data: xr.Dataset) -> Judgement:
    """Compare risks of SGD with theory, and the largest stable step of each view with its runs."""
    view = {name: index for index, name in enumerate(data.view.values)}
    small, large = 0, 1
    lrs, risk = data.lr.values, data.risk.values
    late = data.point.values >= 10
    at = {"gaussian": data.gaussian_at.values, "repaired": data.repaired_at.values}

    def on(name: str, column: int, theory: str) -> Finding:
        kind = "Gaussian" if theory == "gaussian" else "kappa"
        lr = float(lrs[column])
        claim = (
            f"{name.capitalize()} pixels, lr = {lr:g}: the mean risk of SGD is that of {kind} "
            "theory"
        )
        runs, line = risk[view[name], column][:, late], at[theory][view[name], column, late]
        return _relative(claim, runs, line, REAL[lr], REAL[lr] + 0.1)

    def gap(name: str, column: int, theory: str) -> str:
        share = (
            risk[view[name], column][:, late].mean(axis=0) / at[theory][view[name], column, late]
            - 1
        )
        return f"{share[np.argmax(np.abs(share))]:+.1%}"

    # The logarithm is used because the mean of a growing risk is dominated by its largest run.
    ends = {
        name: mean_over_runs(np.log(risk[view[name], large, :, -1:] / data.attrs["start"]))
        for name in ("raw", "standardised")
    }
    largest, gaussian = data.largest_lr.values, data.gaussian_lr.values
    text = [
        (gaussian[view["raw"]] < lrs[large] < largest[view["raw"]]),
        (largest[view["standardised"]] < lrs[large] < gaussian[view["standardised"]]),
        min(largest[view["centred"]], gaussian[view["centred"]]) > lrs[large],
    ]
    size: dict[str, Any] = {"scale": 0.3, "scale_words": "a factor e^.3"}
    return judge_claims(
        f"largest relative deviation of SGD from theory, from step 10 on: lr = {lrs[small]:g}, "
        f"Gaussian: raw {gap('raw', small, 'gaussian')}, centred "
        f"{gap('centred', small, 'gaussian')}; lr = {lrs[large]:g}: centred Gaussian "
        f"{gap('centred', large, 'gaussian')}, with kappa {gap('centred', large, 'repaired')}, raw "
        f"with kappa {gap('raw', large, 'repaired')}; largest stable lr by the samples "
        f"{format_list(largest.round(3))}, by Gaussian theory {format_list(gaussian.round(3))}; at "
        f"lr = {lrs[large]:g} and step {int(data.point[-1])} the risk of standardised pixels has "
        f"grown by e^{float(ends['standardised'].value[0]):.1f}",
        on("raw", small, "gaussian"),
        on("centred", small, "gaussian"),
        on("centred", large, "repaired"),
        on("raw", large, "repaired"),
        ends["standardised"].is_above(
            f"Standardised pixels, lr = {lrs[large]:g}: SGD diverges", **size
        ),
        Mean(-ends["raw"].value, ends["raw"].error, runs=ends["raw"].runs).is_above(
            f"Raw pixels, lr = {lrs[large]:g}: SGD does not diverge", **size
        ),
        count_wrong(
            "largest_step predicts this where Gaussian theory predicts the opposite",
            sum(not bool(value) for value in text),
            len(text),
        ),
    )


@judge_of(
    "figure_5",
    "skills of weights k^-b emerge one after the other, their loss is a power law",
    "Each skill is learned at its own time ~ k^2b, the loss falls as t^-(2b-1)/2b, and runs agree "
    "with the ODE",
)
def emergence(data: xr.Dataset) -> Judgement:
    """Test fitted exponents and times of half a skill, and compare runs with the ODE."""
    from sgdynamics.papers.scaling_laws import emergence_time

    b, K, d = data.b.values, data.attrs["K"], data.attrs["d"]
    t, losses = data.t.values[0], data.skill_loss.values
    first = 2 * data.skill.values ** (-2.0 * b[0])
    left = np.array(
        [_half_time(t, row, size / 2) for row, size in zip(losses.T, first, strict=True)]
    )
    late = left / emergence_time(data.skill.values, b[0], data.attrs["first"])
    lines, runs = data.loss_at.values, data.loss_runs.values
    sizes = first[None, None]
    single = mean_over_runs((data.skill_loss_runs.values - data.skill_loss_at.values) / sizes)
    # The noise of SGD slows skills by lr times a loss of order 1 to 3, and changes squared overlaps
    # by lr loss/d, compared with first^2.
    slowed, stirred = (
        3 * data.attrs["lr"] * 3,
        3 * data.attrs["lr"] / (d * data.attrs["first"] ** 2) + PER_DIMENSION / d,
    )
    return judge_claims(
        f"exponents fitted to {K} skills: {format_list(data.fitted.values.round(4))} at b = "
        f"{format_list(b)} ({format_list(data.predicted.values.round(4))} predicted, "
        f"{format_list(data.fitted_closed.values.round(4))} for {K} skills under gradient flow); "
        f"half of skills 1 to {len(first)} is learned at {format_list(late.round(3))} of the time "
        f"of gradient flow; {len(runs)} runs at d = {d} deviate from the ODE by at most "
        f"{_largest_deviation(runs, lines):.1%} of the loss and {np.abs(single.value).max():.3f} "
        "of a skill",
        agreement(
            "The loss falls as t^-(2b-1)/2b, within .04",
            data.fitted.values,
            0.0,
            data.predicted.values,
            tolerance=EMERGENCE,
            scale=0.08,
        ),
        agreement(
            f"The exponent is that of the closed sum of {K} skills, within .02",
            data.fitted.values,
            0.0,
            data.fitted_closed.values,
            tolerance=NOISY,
            scale=0.04,
        ),
        agreement(
            f"Each skill is learned at its own time, within {slowed:.0%}",
            late,
            0.0,
            1.0,
            tolerance=slowed,
            scale=0.5,
            scale_words="half of the time (that of skill 2k is 8 times as long)",
        ),
        single.agrees(
            f"Losses of single skills in the runs are those of the ODE, within {stirred:.2g} of "
            "the initial ones",
            0.0,
            tolerance=stirred,
            scale=0.2,
            scale_words="20% of the initial losses",
        ),
        _relative("The mean loss of the runs is that of the ODE", runs, lines, stirred, 0.3),
    )


def _half_time(t: np.ndarray, falling: np.ndarray, level: float) -> float:
    """Time at which a falling path is first below the level; NaN if it stays above.

    The time is interpolated between save points in log t.
    """
    below = np.flatnonzero(falling < level)
    if not len(below) or below[0] == 0:
        return np.nan
    at = int(below[0])
    share = (falling[at - 1] - level) / (falling[at - 1] - falling[at])
    return float(np.exp(np.log(t[at - 1]) + share * np.log(t[at] / t[at - 1])))


@judge_of(
    "figure_6",
    "exponents of erf, ReLU and square students in time",
    "The excess risk is ~ t^-(s + 2e - 1)/s under gradient flow for all activations",
)
def any_activation(data: xr.Dataset) -> Judgement:
    """Compare fitted exponents with the closed one."""
    gap = np.abs(data.fitted - data.predicted).values
    text = "; ".join(
        f"{name} {format_list(row.round(4))}"
        for name, row in zip(data.activation.values, data.fitted.values, strict=True)
    )
    return judge_claims(
        f"fitted from t = {data.attrs['late']:g} on, s = {format_list(data.exponent)}: {text} "
        f"({format_list(data.predicted.values.round(4))} predicted), with deviations of at most "
        f"{gap.max():.4f}",
        agreement(
            "The exponent is the closed one for each activation, within .03",
            data.fitted.values,
            0.0,
            np.broadcast_to(data.predicted.values, gap.shape),
            tolerance=LEARNING,
            scale=0.06,
        ),
    )
