"""Whether the data of the figures of protocols show what closed forms, other programs and theory
say of them.
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

EXTRAPOLATED = 1e-4  # of an optimum for infinitely many pieces, relative: two numbers of pieces, and an error of 1/pieces^2
CONSTANT = 1e-5  # of a best constant, relative
BEST = 1e-5  # of where it is: references have five digits
PER_DIMENSION = 8.0  # runs at d are on the limit to this over d, relative
RESIDUAL = 1e-4  # of Pontryagin's condition
PLACE = 0.02  # of a switch, in alpha
PRINTED = 6e-6  # of numbers given to five digits


def _optimum(data: xr.Dataset, name: str) -> list[Finding]:
    """Value and best constant of a problem against those of other programs, and Pontryagin's
    condition.
    """
    item, reference = data.sel(problem=name), REFERENCE[name]
    return [
        agreement(
            f"{name}: the least risk is that of other methods, to 1e-4 of it",
            float(item.extrapolated) / reference.risk,
            0.0,
            1.0,
            tolerance=EXTRAPOLATED,
            scale=0.1 * (reference.gain - 1),
            scale_words="a tenth of the gain",
        ),
        agreement(
            f"{name}: so is the best constant's, to 1e-5 of it",
            float(item.constant_value) / reference.constant_risk,
            0.0,
            1.0,
            tolerance=CONSTANT,
            scale=0.01,
        ),
        agreement(
            f"{name}: and where that is, to 1e-5",
            float(item.constant),
            0.0,
            reference.constant,
            tolerance=BEST,
            scale=0.01 * reference.constant,
        ),
        agreement(
            f"{name}: Pontryagin's condition holds to 1e-4",
            float(item.residual),
            0.0,
            0.0,
            tolerance=RESIDUAL,
            scale=0.01,
        ),
    ]


def _confirmed(data: xr.Dataset, name: str) -> list[Finding]:
    """Runs against theory: both risks, the gain, and that there is one."""
    item, runs, loose = data.sel(problem=name), data.attrs["runs"], PER_DIMENSION / data.attrs["d"]
    gain = float(item.constant_value / item.value)
    risks = [float(item.runs_value / item.value), float(item.runs_constant / item.constant_value)]
    errors = [
        float(item.runs_value_error / item.value),
        float(item.runs_constant_error / item.constant_value),
    ]
    return [
        agreement(
            f"{name}: risks of runs are the ODE's, to {loose:.1g} of them",
            risks,
            errors,
            1.0,
            tolerance=loose,
            scale=0.1,
            runs=runs,
        ),
        agreement(
            f"{name}: the gain of runs is the ODE's, to {loose:.1g}",
            float(item.runs_gain),
            float(item.runs_gain_error),
            gain,
            tolerance=loose,
            scale=max(0.5 * (gain - 1), 2 * loose + 0.03),
            runs=runs,
        ),
        larger(
            f"{name}: runs gain",
            float(item.runs_gain) - 1,
            float(item.runs_gain_error),
            scale=0.5 * (REFERENCE[name].gain - 1),
            scale_words="half of the gain",
            runs=runs,
        ),
    ]


def _switched(data: xr.Dataset, name: str) -> Finding:
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
        f"{name}: the switches are those of other methods, to {PLACE:g} in alpha",
        indices,
        0.0,
        expected,
        tolerance=PLACE,
        scale=0.1,
    )


def _told(data: xr.Dataset, name: str) -> str:
    item = data.sel(problem=name)
    return (
        f"{name}: {float(item.extrapolated):.7f} (other methods {REFERENCE[name].risk:.7f}), best constant {float(item.constant_value):.7f} "
        f"at {float(item.constant):.4f}, gain {float(item.constant_value / item.value):.4f} "
        f"({float(item.constant_value / item.extrapolated):.4f} with infinitely many pieces), of runs at d = {data.attrs['d']} "
        f"{float(item.runs_gain):.4f}({float(item.runs_gain_error):.1g})"
    )


@judge_of(
    "figure_1",
    "the best learning rate, in closed form and found",
    "lr = eps/(eps + noise) is best for a linear student, and the best rates of both students gain 1.697 and 1.554 in runs too",
)
def best_learning_rates(data: xr.Dataset) -> Judgement:
    """Rates and risks against closed forms and Pontryagin's equations; gains in runs."""
    pieces, linear = data.attrs["pieces"], data.sel(problem="linear")
    # a piece has the best rate of a whole stretch of alpha, not its mean: second order in the
    # pieces
    loose = 2e-2 * (40 / pieces) ** 2
    rates = linear.control.values / data.closed.values
    indices = (
        np.searchsorted(data.edges.sel(problem="erf").values, list(ERF_RATES), side="right") - 1
    )
    result = data.control.sel(problem="erf").values[indices]
    constant, least = data.closed_constant.values
    return judge_claims(
        f"{_told(data, 'linear')}; {_told(data, 'erf')}; the linear student's rates are within {np.abs(rates - 1).max():.1%} of the closed "
        f"form's mean over a piece; the erf student's at alpha = {format_list(data.place.values)}: {format_list(result.round(3))}",
        agreement(
            f"linear: the rates are eps/(eps + noise), to {loose:.1g} of them with {pieces} pieces",
            rates,
            0.0,
            1.0,
            tolerance=loose,
            scale=0.1,
        ),
        agreement(
            "linear: the least risk is Lambert's function, to 1e-4 of it",
            float(linear.extrapolated) / data.closed_risks.values[-1],
            0.0,
            1.0,
            tolerance=EXTRAPOLATED,
            scale=0.01,
        ),
        agreement(
            "linear: the best constant is that of the closed form, to 1e-5",
            [float(linear.constant) / constant, float(linear.constant_value) / least],
            0.0,
            1.0,
            tolerance=CONSTANT,
            scale=0.01,
        ),
        agreement(
            "erf: the rates are those of Pontryagin's equations, to 5%",
            result / data.reference.values,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
        ),
        *(
            finding
            for name in ("linear", "erf")
            for finding in (*_optimum(data, name), *_confirmed(data, name))
        ),
    )


@judge_of(
    "figure_2",
    "replay: the best share of a new task",
    "task two alone, then a singular arc on which both share the samples, then task one alone: 1.14 times below the best constant share",
)
def replay(data: xr.Dataset) -> Judgement:
    """Optimum, switches and arc against those of other programs; no replay; gain in runs."""
    item = data.sel(problem="replay")
    middles, share = (item.edges.values[1:] + item.edges.values[:-1]) / 2, item.control.values
    width, (first, last) = item.edges.values[1], SWITCHES["replay"]
    ends = np.concatenate([share[middles < first - width] - 1, share[middles > last + width]])
    arc = (middles > first + 2 * width) & (middles < last - 4 * width)
    expected = np.interp(middles[arc], SWITCHES["replay"], REPLAY_ARC)
    risks = data.task_risks.values[:, -1]  # (share, task)
    mean = risks.mean(axis=1)
    return judge_claims(
        f"{_told(data, 'replay')}; switches at alpha = {format_list(item.switches.values[np.isfinite(item.switches.values)].round(3))}, between "
        f"them the share of task two goes from {share[arc][0]:.3f} to {share[arc][-1]:.3f}; without replay the mean risk ends at "
        f"{mean[2]:.5f}, that of task one at {risks[2, 0]:.5f} (optimum {risks[0, 0]:.5f})",
        *_optimum(data, "replay"),
        _switched(data, "replay"),
        count_wrong(
            "task two alone before the arc, task one alone after it",
            int(np.sum(np.abs(ends) > 1e-6)),
            len(ends),
        ),
        agreement(
            "on the arc its share falls from .62 to .58, to .015",
            share[arc],
            0.0,
            expected,
            tolerance=0.015,
            scale=0.05,
        ),
        agreement(
            "without replay the mean risk ends at .0258949, to 1e-4 of it",
            mean[2] / 0.0258949173,
            0.0,
            1.0,
            tolerance=1e-4,
            scale=0.1,
        ),
        *_confirmed(data, "replay"),
    )


@judge_of(
    "figure_3",
    "dropout that grows, weight decay that switches",
    "the share of units kept falls from .635 to .136; weight decay is 1, 0 and 1 again, with two switches",
)
def dropout_and_decay(data: xr.Dataset) -> Judgement:
    """Optima against those of other programs, the shape of both controls, gains in runs."""
    keep, decay = (
        data.control.sel(problem="dropout").values,
        data.control.sel(problem="weight decay").values,
    )
    between = int(np.sum((decay > 1e-6) & (decay < 1 - 1e-6)))
    indices = data.switches.sel(problem="weight decay").values
    return judge_claims(
        f"{_told(data, 'dropout')}; {_told(data, 'weight decay')}; the share kept goes from {keep[0]:.3f} to {keep[-1]:.3f}; the decay "
        f"switches at alpha = {format_list(indices[np.isfinite(indices)].round(4))}, {between} of {len(decay)} pieces are between its bounds",
        *(
            finding
            for name in ("dropout", "weight decay")
            for finding in (*_optimum(data, name), *_confirmed(data, name))
        ),
        agreement(
            "dropout: the share kept goes from .635 to .136, to .02",
            keep[[0, -1]],
            0.0,
            KEEP,
            tolerance=0.02,
            scale=0.1,
        ),
        count_wrong(
            "dropout: it falls at every step", int(np.sum(np.diff(keep) >= 0)), len(keep) - 1
        ),
        _switched(data, "weight decay"),
        count_wrong(
            "weight decay: at a bound but for a piece at each switch",
            max(between - 2, 0),
            len(decay),
        ),
    )


@judge_of(
    "figure_4",
    "the order of easy and hard samples",
    "easy, hard, easy is better than easy first, which is better than mixed, which is better than easy last",
)
def curriculum(data: xr.Dataset) -> Judgement:
    """Four risks against those of other programs, runs against the ODE, and the order in runs with
    the same random numbers.
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
    pairs = [
        (better, worse, ends[worse] - ends[better], table[worse] - table[better])
        for better, worse in pairwise(ranked)
    ]
    return judge_claims(
        f"excess risk of hard samples: {', '.join(f'{name} {last[name]:.6f}, runs {ends[name].mean():.5f}' for name in ranked)}; "
        f"{_told(data, 'curriculum')}",
        *_optimum(data, "curriculum"),
        _switched(data, "curriculum"),
        agreement(
            "the four risks are those of other methods, to 5e-5 of them",
            [last[name] / table[name] for name in names],
            0.0,
            1.0,
            tolerance=5e-5,
            scale=0.01,
        ),
        agreement(
            "half of the samples are hard, in all orders",
            used,
            0.0,
            0.5,
            tolerance=1e-6,
            scale=0.01,
        ),
        *(
            mean_over_runs(run / line[some] - 1).agrees(
                f"{name}: the mean of runs is the ODE, to {loose:.1g} of it",
                0.0,
                tolerance=loose,
                scale=0.1,
                scale_words="10% of it",
            )
            for name, run, line in zip(names, runs, lines, strict=True)
        ),
        *(
            mean_over_runs(gap[:, None] / gone).is_above(
                f"runs: {better} is better than {worse}",
                scale=0.3,
                scale_words="0.3 of what the ODE says",
            )
            for better, worse, gap, gone in pairs
        ),
    )


@judge_of(
    "figure_5",
    "the best schedules on power laws against the horizon",
    "R ~ T^-((a-1)/a) on easy laws, T^-((a-1)/(a-1+b)) with constant rates, T^-((a-1)/b) on hard laws, and eta K^(1/2) is constant",
)
def horizons(data: xr.Dataset) -> Judgement:
    """Risks against those of other programs, exponents against theory, how long hard laws anneal,
    the invariant.
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
        f"from T = {steps[-2]} to {steps[-1]} R ~ T^-e: easy e = {local[easy, 0, -1]:.3f} (theory {data.exponents.values[easy, 0]:.3f}), "
        f"constant rate {local[easy, 1, -1]:.3f} ({data.exponents.values[easy, 1]:.3f}); hard {format_list(local[hard, 0].round(3))} from T to "
        f"T ({float(data.early[hard]):.3f}), constant rate {local[hard, 1, -1]:.3f} ({float(data.early[hard]):.3f} while the risk is above "
        f"the noise); on the hard law the rate is below half of its first for {format_list(annealed[hard].round(3))} of the steps, first rates "
        f"{format_list(data.rates.values[hard, :, 0].round(3))}; eta K^(1/2) over the law's past a tenth of T: {invariant.min():.3f} to "
        f"{invariant.max():.3f}, with noise {data.attrs['loud']:g} {loud.min():.4f} to {loud.max():.4f} from the start",
        agreement(
            "easy: least risks are those of another program, to 1e-6 of them",
            [data.risk.values[easy, index] / EASY[int(steps[index])] for index in reference],
            0.0,
            1.0,
            tolerance=1e-6,
            scale=0.01,
        ),
        agreement(
            "hard, 400 inputs: so they are, to five digits",
            [data.risk.values[few, index] for index in reference],
            0.0,
            [HARD[int(steps[index])] for index in reference],
            tolerance=PRINTED,
            scale=1e-3,
        ),
        agreement(
            "easy: from T = 1000 to 3000 the exponents are .589 and .534, to .001",
            local[easy, :, until],
            0.0,
            [0.589, 0.534],
            tolerance=1e-3,
            scale=0.01,
        ),
        agreement(
            "easy: they are those of theory, to .025",
            local[easy, :, -1],
            0.0,
            data.exponents.values[easy],
            tolerance=0.025,
            scale=0.05,
        ),
        count_wrong(
            "hard: the exponent comes down to (a - 1)/b from above",
            int(np.sum(np.diff(local[hard, 0]) >= 0)),
            len(steps) - 2,
        ),
        agreement(
            "hard: it is that, to .05",
            local[hard, 0, -1],
            0.0,
            float(data.early[hard]),
            tolerance=0.05,
            scale=0.1,
        ),
        agreement(
            "hard, constant rate: it is that while the risk is above the noise, to .01",
            local[hard, 1, 1:],
            0.0,
            float(data.early[hard]),
            tolerance=0.01,
            scale=0.03,
        ),
        count_wrong(
            "hard: the share of steps that anneal falls with T",
            int(np.sum(np.diff(annealed[hard]) >= 0)),
            len(steps) - 1,
        ),
        agreement(
            "hard: rates begin near the largest stable one, .47 to .6",
            data.rates.values[hard, :, 0],
            0.0,
            0.535,
            tolerance=0.065,
            scale=0.2,
        ),
        agreement(
            "easy: past a tenth of T eta K^(1/2) is constant, to 5%",
            invariant,
            0.0,
            1.0,
            tolerance=0.05,
            scale=0.2,
        ),
        agreement(
            f"with noise {data.attrs['loud']:g} it is from the start, to 1%",
            loud,
            0.0,
            1.0,
            tolerance=1 / data.attrs["loud"],
            scale=0.05,
        ),
        agreement(
            "and the least risk is the law's, to half of that",
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
    "a constant rate with the batch lr/lr* reaches the risk of the falling rate up to O(lr/d), in fewer steps",
)
def batch_ramps(data: xr.Dataset) -> Judgement:
    """Steps and risks against those of another program, runs with whole batches against their mean,
    the distance from the falling rate.
    """
    lr, d, runs = data.lr.values, data.attrs["d"], data.excess_risk_runs.values
    steps, risks = (np.array([RAMPS[float(value)][index] for value in lr]) for index in (0, 1))
    above = data["last"].values / data.attrs["best"] - 1
    relative = runs / data.whole.values[:, None] - 1
    middle = lr / d <= 0.1 + 1e-9  # beyond, lr/d is not small
    return judge_claims(
        f"lr = {format_list(lr)}: {format_list(data.steps.values)} steps, excess risk {format_list(data['last'].values.round(7))}, above that of the "
        f"falling rate ({data.attrs['best']:.7f}) by {', '.join(f'{one:.2%}' for one in above)}; {runs.shape[1]} runs at "
        f"d = {d} with whole batches are off their mean by {', '.join(f'{one:.2%}' for one in relative.mean(axis=1))}",
        count_wrong(
            "ramps take as many steps as another program's",
            int(np.sum(data.steps.values != steps)),
            len(lr),
        ),
        agreement(
            "and reach the same risks, to 6e-8",
            data["last"].values,
            0.0,
            risks,
            tolerance=6e-8,
            scale=1e-6,
        ),
        agreement(
            "they are above the falling rate by .5 lr/d at most, to lr/d = .1",
            above[middle],
            0.0,
            0.0,
            tolerance=0.5 * lr[middle] / d + 1e-4,
            scale=0.1,
        ),
        count_wrong("the more the larger lr is", int(np.sum(np.diff(above) <= 0)), len(lr) - 1),
        *(
            mean_over_runs(item[:, None]).agrees(
                f"lr = {entry:g}: the mean of runs is the exact one",
                0.0,
                scale=0.05,
                scale_words="5% of it",
            )
            for entry, item in zip(lr, relative, strict=True)
        ),
    )
