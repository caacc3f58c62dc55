"""Judges of the figures about optimal protocols.

The data are compared with closed forms, with results of other programs, and with runs.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    agreement,
    count_wrong,
    format_list,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of
from sgdynamics_reproductions.protocols.reference import (
    EASY,
    ERF_RATES,
    HARD,
    KEEP,
    RAMPS,
    REFERENCE,
    REPLAY_ARC,
    SWITCHES,
)

# Relative error of an optimum extrapolated to infinitely many pieces from two numbers of pieces,
# with an error of 1/pieces^2.
EXTRAPOLATED = 1e-4
CONSTANT = 1e-5  # relative error of the risk of a best constant
BEST = 1e-5  # error of a best constant: references have five digits
PER_DIMENSION = 8.0  # runs at dimension d agree with the limit up to this multiple of 1/d, relative
RESIDUAL = 1e-4  # residual of Pontryagin's condition
SWITCH_ERROR = 0.02  # error of a switch in alpha
PRINTED = 6e-6  # rounding error of numbers that are given to five digits


def _optimum(data: xr.Dataset, name: str) -> list[Finding]:
    """Compare the optimum and the best constant with other programs, and test the optimality.

    The optimality condition is that of Pontryagin.
    """
    item, reference = data.sel(problem=name), REFERENCE[name]
    return [
        agreement(
            f"{name}: the smallest risk is that of other methods, within 1e-4",
            float(item.extrapolated) / reference.risk,
            0.0,
            1.0,
            tolerance=EXTRAPOLATED,
            scale=0.1 * (reference.gain - 1),
            scale_words="a tenth of the gain",
        ),
        agreement(
            f"{name}: the risk of the best constant is that of other methods, within 1e-5",
            float(item.constant_value) / reference.constant_risk,
            0.0,
            1.0,
            tolerance=CONSTANT,
            scale=0.01,
        ),
        agreement(
            f"{name}: the best constant is that of other methods, within 1e-5",
            float(item.constant),
            0.0,
            reference.constant,
            tolerance=BEST,
            scale=0.01 * reference.constant,
        ),
        agreement(
            f"{name}: Pontryagin's condition holds within 1e-4",
            float(item.residual),
            0.0,
            0.0,
            tolerance=RESIDUAL,
            scale=0.01,
        ),
    ]


def _judge_runs(data: xr.Dataset, name: str) -> list[Finding]:
    """Compare both risks and the gain of runs with the theory, and test that runs gain."""
    item, runs, loose = data.sel(problem=name), data.attrs["runs"], PER_DIMENSION / data.attrs["d"]
    gain = float(item.constant_value / item.value)
    risks = [float(item.runs_value / item.value), float(item.runs_constant / item.constant_value)]
    errors = [
        float(item.runs_value_error / item.value),
        float(item.runs_constant_error / item.constant_value),
    ]
    return [
        agreement(
            f"{name}: risks of runs are those of the ODE, within {loose:.1%}",
            risks,
            errors,
            1.0,
            tolerance=loose,
            scale=0.1,
            runs=runs,
        ),
        agreement(
            f"{name}: the gain of runs is that of the ODE, within {loose:.1g}",
            float(item.runs_gain),
            float(item.runs_gain_error),
            gain,
            tolerance=loose,
            scale=max(0.5 * (gain - 1), 2 * loose + 0.03),
            runs=runs,
        ),
        larger(
            f"{name}: runs gain over the best constant",
            float(item.runs_gain) - 1,
            float(item.runs_gain_error),
            scale=0.5 * (REFERENCE[name].gain - 1),
            scale_words="half of the gain",
            runs=runs,
        ),
    ]


def _judge_switches(data: xr.Dataset, name: str) -> Finding:
    """Compare the number and the positions of the switches with those of other methods."""
    indices = data.switches.sel(problem=name).values
    indices = indices[np.isfinite(indices)]
    expected = SWITCHES[name]
    if len(indices) != len(expected):
        return count_wrong(
            f"{name}: there are {len(expected)} switches",
            abs(len(indices) - len(expected)),
            len(expected),
        )
    return agreement(
        f"{name}: the switches are those of other methods, within {SWITCH_ERROR:g} in alpha",
        indices,
        0.0,
        expected,
        tolerance=SWITCH_ERROR,
        scale=0.1,
    )


def _describe(data: xr.Dataset, name: str) -> str:
    """Risks and gains of a problem, in words."""
    item = data.sel(problem=name)
    return (
        f"{name}: {float(item.extrapolated):.7f} (other methods {REFERENCE[name].risk:.7f}), best "
        f"constant {float(item.constant_value):.7f} at {float(item.constant):.4f}, gain "
        f"{float(item.constant_value / item.value):.4f} "
        f"({float(item.constant_value / item.extrapolated):.4f} with infinitely many pieces), of "
        f"runs at d = {data.attrs['d']} "
        f"{float(item.runs_gain):.4f}({float(item.runs_gain_error):.1g})"
    )


@judge_of(
    "figure_1",
    "the best learning rate, in closed form and by optimisation",
    "lr = eps/(eps + noise) is best for a linear student, and the best rates of both students gain "
    "factors of 1.697 and 1.554 in runs too",
)
def best_learning_rates(data: xr.Dataset) -> Judgement:
    """Compare rates and risks with closed forms and Pontryagin's equations, and gains with runs."""
    pieces, linear = data.attrs["pieces"], data.sel(problem="linear")
    # A piece has the best rate of an interval of alpha, not the mean over it: the difference is of
    # second order in the length of the pieces.
    loose = 2e-2 * (40 / pieces) ** 2
    rates = linear.control.values / data.closed.values
    indices = (
        np.searchsorted(data.edges.sel(problem="erf").values, list(ERF_RATES), side="right") - 1
    )
    result = data.control.sel(problem="erf").values[indices]
    constant, least = data.closed_constant.values
    return judge_claims(
        f"{_describe(data, 'linear')}; {_describe(data, 'erf')}; the rates of the linear student "
        f"are within {np.abs(rates - 1).max():.1%} of the mean of the closed form over a piece; "
        f"those of the erf student at alpha = {format_list(data.place.values)}: "
        f"{format_list(result.round(3))}",
        agreement(
            f"linear: the rates are eps/(eps + noise), within {loose:.1%} with {pieces} pieces",
            rates,
            0.0,
            1.0,
            tolerance=loose,
            scale=0.1,
        ),
        agreement(
            "linear: the smallest risk is given by Lambert's function, within 1e-4",
            float(linear.extrapolated) / data.closed_risks.values[-1],
            0.0,
            1.0,
            tolerance=EXTRAPOLATED,
            scale=0.01,
        ),
        agreement(
            "linear: the best constant is that of the closed form, within 1e-5",
            [float(linear.constant) / constant, float(linear.constant_value) / least],
            0.0,
            1.0,
            tolerance=CONSTANT,
            scale=0.01,
        ),
        agreement(
            "erf: the rates are those of Pontryagin's equations, within 5%",
            result / data.reference.values,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
        ),
        *(
            finding
            for name in ("linear", "erf")
            for finding in (*_optimum(data, name), *_judge_runs(data, name))
        ),
    )


@judge_of(
    "figure_2",
    "replay: the best share of a new task",
    "The best share is task two alone, then a singular arc with samples of both tasks, then task "
    "one alone; the risk is 1.14 times smaller than with the best constant share",
)
def replay(data: xr.Dataset) -> Judgement:
    """Compare optimum, switches and arc with other programs, and the gain with runs."""
    item = data.sel(problem="replay")
    middles, share = (item.edges.values[1:] + item.edges.values[:-1]) / 2, item.control.values
    width, (first, last) = item.edges.values[1], SWITCHES["replay"]
    ends = np.concatenate([share[middles < first - width] - 1, share[middles > last + width]])
    arc = (middles > first + 2 * width) & (middles < last - 4 * width)
    expected = np.interp(middles[arc], SWITCHES["replay"], REPLAY_ARC)
    risks = data.task_risks.values[:, -1]  # (share, task)
    mean = risks.mean(axis=1)
    return judge_claims(
        f"{_describe(data, 'replay')}; switches at alpha = "
        f"{format_list(item.switches.values[np.isfinite(item.switches.values)].round(3))}, between "
        f"which the share of task two goes from {share[arc][0]:.3f} to {share[arc][-1]:.3f}; "
        f"without replay the mean risk ends at {mean[2]:.5f}, the risk of task one at "
        f"{risks[2, 0]:.5f} (optimum {risks[0, 0]:.5f})",
        *_optimum(data, "replay"),
        _judge_switches(data, "replay"),
        count_wrong(
            "The share is task two alone before the arc and task one alone after it",
            int(np.sum(np.abs(ends) > 1e-6)),
            len(ends),
        ),
        agreement(
            "On the arc the share of task two falls from .62 to .58, within .015",
            share[arc],
            0.0,
            expected,
            tolerance=0.015,
            scale=0.05,
        ),
        agreement(
            "Without replay the mean risk ends at .0258949, within 1e-4 of it",
            mean[2] / 0.0258949173,
            0.0,
            1.0,
            tolerance=1e-4,
            scale=0.1,
        ),
        *_judge_runs(data, "replay"),
    )


@judge_of(
    "figure_3",
    "dropout that increases, and weight decay that switches",
    "The fraction of units that are kept falls from .635 to .136; weight decay is 1, then 0, then "
    "1, with two switches",
)
def dropout_and_decay(data: xr.Dataset) -> Judgement:
    """Compare optima with other programs, and test the shape of both controls and gains of runs."""
    keep, decay = (
        data.control.sel(problem="dropout").values,
        data.control.sel(problem="weight decay").values,
    )
    between = int(np.sum((decay > 1e-6) & (decay < 1 - 1e-6)))
    indices = data.switches.sel(problem="weight decay").values
    return judge_claims(
        f"{_describe(data, 'dropout')}; {_describe(data, 'weight decay')}; the fraction kept goes "
        f"from {keep[0]:.3f} to {keep[-1]:.3f}; the decay switches at alpha = "
        f"{format_list(indices[np.isfinite(indices)].round(4))}, and {between} of {len(decay)} "
        "pieces are between its bounds",
        *(
            finding
            for name in ("dropout", "weight decay")
            for finding in (*_optimum(data, name), *_judge_runs(data, name))
        ),
        agreement(
            "dropout: the fraction kept goes from .635 to .136, within .02",
            keep[[0, -1]],
            0.0,
            KEEP,
            tolerance=0.02,
            scale=0.1,
        ),
        count_wrong(
            "dropout: the fraction kept falls from piece to piece",
            int(np.sum(np.diff(keep) >= 0)),
            len(keep) - 1,
        ),
        _judge_switches(data, "weight decay"),
        count_wrong(
            "weight decay: the decay is at a bound except for one piece at each switch",
            max(between - 2, 0),
            len(decay),
        ),
    )


@judge_of(
    "figure_4",
    "the order of easy and hard samples",
    "The order easy, hard, easy is better than easy first, which is better than mixed, which is "
    "better than easy last",
)
def curriculum(data: xr.Dataset) -> Judgement:
    """Compare four risks with other programs, runs with the ODE, and the orders in runs.

    The orders are compared in runs with the same random numbers.
    """
    names, lines, runs = (
        [str(value) for value in data.order.values],
        data.excess_risk.values,
        data.excess_risk_runs.values,
    )
    last = dict(zip(names, lines[:, -1], strict=True))
    table = {
        "mixed": 0.0478011553,
        "easy first": 0.0472214328,
        "easy last": 0.0525590721,
        "optimum": REFERENCE["curriculum"].risk,
    }
    ranked = ("optimum", "easy first", "mixed", "easy last")
    ends = {name: runs[names.index(name), :, -1] for name in names}
    loose = PER_DIMENSION / data.attrs["d"]
    used = data.shares.values.mean(axis=1)
    some = np.searchsorted(data.edges.values[0], data.point.values - 1e-9)
    risks = [f"{name} {last[name]:.6f}, runs {ends[name].mean():.5f}" for name in ranked]
    pairs = [
        (better, worse, ends[worse] - ends[better], table[worse] - table[better])
        for better, worse in pairwise(ranked)
    ]
    return judge_claims(
        f"excess risk of hard samples: {', '.join(risks)}; {_describe(data, 'curriculum')}",
        *_optimum(data, "curriculum"),
        _judge_switches(data, "curriculum"),
        agreement(
            "The four risks are those of other methods, within 5e-5",
            [last[name] / table[name] for name in names],
            0.0,
            1.0,
            tolerance=5e-5,
            scale=0.01,
        ),
        agreement(
            "Half of the samples are hard, in all orders",
            used,
            0.0,
            0.5,
            tolerance=1e-6,
            scale=0.01,
        ),
        *(
            mean_over_runs(run / line[some] - 1).agrees(
                f"{name}: the mean of runs is the ODE, within {loose:.1%}",
                0.0,
                tolerance=loose,
                scale=0.1,
                scale_words="10% of the ODE",
            )
            for name, run, line in zip(names, runs, lines, strict=True)
        ),
        *(
            mean_over_runs(gap[:, None] / expected).is_above(
                f"In runs, {better} is better than {worse}",
                scale=0.3,
                scale_words="0.3 of the difference in the ODE",
            )
            for better, worse, gap, expected in pairs
        ),
    )


@judge_of(
    "figure_5",
    "the best schedules on power laws as a function of the horizon",
    "The risk is R ~ T^-((a-1)/a) on easy laws, T^-((a-1)/(a-1+b)) with constant rates, "
    "T^-((a-1)/b) on hard laws, and eta K^(1/2) is constant",
)
def horizons(data: xr.Dataset) -> Judgement:
    """Compare risks with other programs and exponents with theory, and test the schedules.

    The schedules are tested for the length of annealing on hard laws and for the invariant.
    """
    from sgdynamics_reproductions.protocols.horizon_figure import annealed_share, local_exponents

    steps, local, annealed = data.steps.values, local_exponents(data), annealed_share(data)
    laws = [str(value) for value in data.law.values]
    easy, hard, few = laws.index("easy"), laws.index("hard"), laws.index("hard, 400 inputs")
    reference = [index for index, T in enumerate(steps) if int(T) in EASY]
    until = int(np.searchsorted(steps, 3000)) - 1  # the gap from 1000 to 3000
    late = data.share.values > 0.1
    invariant, loud = data.invariant.values[-1, late], data.loud_invariant.values
    return judge_claims(
        f"from T = {steps[-2]} to {steps[-1]} R ~ T^-e: easy e = {local[easy, 0, -1]:.3f} (theory "
        f"{data.exponents.values[easy, 0]:.3f}), constant rate {local[easy, 1, -1]:.3f} "
        f"({data.exponents.values[easy, 1]:.3f}); hard {format_list(local[hard, 0].round(3))} from "
        f"one T to the next ({float(data.early[hard]):.3f}), constant rate "
        f"{local[hard, 1, -1]:.3f} ({float(data.early[hard]):.3f} while the risk is above the "
        "noise); on the hard law the rate is below half of its initial value for "
        f"{format_list(annealed[hard].round(3))} of the steps, initial rates "
        f"{format_list(data.rates.values[hard, :, 0].round(3))}; eta K^(1/2), divided by that of "
        f"the law, after a tenth of T: {invariant.min():.3f} to {invariant.max():.3f}, with noise "
        f"{data.attrs['loud']:g} {loud.min():.4f} to {loud.max():.4f} from the start",
        agreement(
            "easy: the smallest risks are those of another program, within 1e-6",
            [data.risk.values[easy, index] / EASY[int(steps[index])] for index in reference],
            0.0,
            1.0,
            tolerance=1e-6,
            scale=0.01,
        ),
        agreement(
            "hard, 400 inputs: the smallest risks are those of another program, to five digits",
            [data.risk.values[few, index] for index in reference],
            0.0,
            [HARD[int(steps[index])] for index in reference],
            tolerance=PRINTED,
            scale=1e-3,
        ),
        agreement(
            "easy: from T = 1000 to 3000 the exponents are .589 and .534, within .001",
            local[easy, :, until],
            0.0,
            [0.589, 0.534],
            tolerance=1e-3,
            scale=0.01,
        ),
        agreement(
            "easy: the exponents are those of theory, within .025",
            local[easy, :, -1],
            0.0,
            data.exponents.values[easy],
            tolerance=0.025,
            scale=0.05,
        ),
        count_wrong(
            "hard: the exponent approaches (a - 1)/b from above",
            int(np.sum(np.diff(local[hard, 0]) >= 0)),
            len(steps) - 2,
        ),
        agreement(
            "hard: the exponent is (a - 1)/b, within .05",
            local[hard, 0, -1],
            0.0,
            float(data.early[hard]),
            tolerance=0.05,
            scale=0.1,
        ),
        agreement(
            "hard, constant rate: the exponent is (a - 1)/b while the risk is above the noise, "
            "within .01",
            local[hard, 1, 1:],
            0.0,
            float(data.early[hard]),
            tolerance=0.01,
            scale=0.03,
        ),
        count_wrong(
            "hard: the share of annealing steps falls with T",
            int(np.sum(np.diff(annealed[hard]) >= 0)),
            len(steps) - 1,
        ),
        agreement(
            "hard: rates start near the largest stable one, .47 to .6",
            data.rates.values[hard, :, 0],
            0.0,
            0.535,
            tolerance=0.065,
            scale=0.2,
        ),
        agreement(
            "easy: after a tenth of T eta K^(1/2) is constant, within 5%",
            invariant,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
        ),
        agreement(
            f"With noise {data.attrs['loud']:g} eta K^(1/2) is constant from the start, within 1%",
            loud,
            0.0,
            1.0,
            tolerance=1 / data.attrs["loud"],
            scale=0.05,
        ),
        agreement(
            f"With noise {data.attrs['loud']:g} the smallest risk is that of the law, within .5%",
            data.loud_risk.values[0] / data.loud_risk.values[1],
            0.0,
            1.0,
            tolerance=0.5 / data.attrs["loud"],
            scale=0.05,
        ),
    )


@judge_of(
    "figure_6",
    "growing batches in place of a falling rate",
    "A constant rate with the batch size lr/lr* reaches the risk of the falling rate up to "
    "O(lr/d), in fewer steps",
)
def batch_ramps(data: xr.Dataset) -> Judgement:
    """Compare steps and risks with another program, and runs of whole batches with their mean.

    The distance from the falling rate is tested too.
    """
    lr, d, runs = data.lr.values, data.attrs["d"], data.excess_risk_runs.values
    steps, risks = (np.array([RAMPS[float(value)][index] for value in lr]) for index in (0, 1))
    above = data["last"].values / data.attrs["best"] - 1
    relative = runs / data.whole.values[:, None] - 1
    middle = lr / d <= 0.1 + 1e-9  # beyond, lr/d is not small
    return judge_claims(
        f"lr = {format_list(lr)}: {format_list(data.steps.values)} steps, excess risk "
        f"{format_list(data['last'].values.round(7))}, above that of the falling rate "
        f"({data.attrs['best']:.7f}) by {', '.join(f'{value:.2%}' for value in above)}; "
        f"{runs.shape[1]} runs at d = {d} with whole batches deviate from their mean by "
        f"{', '.join(f'{value:.2%}' for value in relative.mean(axis=1))}",
        count_wrong(
            "Ramps take as many steps as those of another program",
            int(np.sum(data.steps.values != steps)),
            len(lr),
        ),
        agreement(
            "Ramps reach the same risks as those of another program, within 6e-8",
            data["last"].values,
            0.0,
            risks,
            tolerance=6e-8,
            scale=1e-6,
        ),
        agreement(
            "Risks are above that of the falling rate by at most .5 lr/d, up to lr/d = .1",
            above[middle],
            0.0,
            0.0,
            tolerance=0.5 * lr[middle] / d + 1e-4,
            scale=0.1,
        ),
        count_wrong("The excess grows with lr", int(np.sum(np.diff(above) <= 0)), len(lr) - 1),
        *(
            mean_over_runs(item[:, None]).agrees(
                f"lr = {entry:g}: the mean of runs is the exact mean",
                0.0,
                scale=0.05,
                scale_words="5% of the mean",
            )
            for entry, item in zip(lr, relative, strict=True)
        ),
    )
