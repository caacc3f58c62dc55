"""Whether the data of the figures of optimisers show what theory says of them."""

from __future__ import annotations

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

PER_DIMENSION = 8.0  # runs at d are on the limit to this over d, relative to what is drawn: two orders of a step, a few units
SAME = 1e-5  # two ODEs that are one, relative: what their integration leaves
EXPONENT = 0.15  # of the late risk in the batch, between 16 and 64: what is left of batches that are not large and rates that are not small
LEADING = 0.01  # of a leading order in lr, at lr = .01
FIRST = 0.01  # of a first speed, from a finite time


def _on_line(
    claim: str, runs: np.ndarray, line: np.ndarray, tolerance: float, scale: float
) -> Finding:
    """The mean of runs (run, points) is the theory's line, to errors and the tolerance, both
    relative.
    """
    return mean_over_runs(np.asarray(runs) / line - 1).agrees(
        f"{claim}, to {tolerance:.2g} of it",
        0.0,
        tolerance=tolerance,
        scale=scale,
        scale_words=f"{scale:.2g} of it",
    )


def _farthest(runs: np.ndarray, line: np.ndarray) -> float:
    return float(np.abs(np.asarray(runs).mean(axis=0) / line - 1).max())


@judge_of(
    "figure_1",
    "eight optimisers on one problem, ODE and direct runs",
    "the ODE of each optimiser is the limit of its runs in d dimensions",
)
def eight_optimisers(data: xr.Dataset) -> Judgement:
    """The mean of direct runs against the ODE, optimiser by optimiser."""
    stride, d = data.attrs["every"], data.attrs["d"]
    pairs = [
        (name, runs, line[stride::stride])
        for name, runs, line in zip(
            data.optimiser.values,
            data.excess_risk_runs.values,
            data.excess_risk.values,
            strict=True,
        )
    ]
    text = ", ".join(f"{name} {_farthest(runs, line):.1%}" for name, runs, line in pairs)
    return judge_claims(
        f"mean excess risk of {data.sizes['run']} direct runs at d = {d} is off the ODE by at most: {text}",
        *(
            _on_line(f"{name}: the mean of runs is the ODE", runs, line, PER_DIMENSION / d, 0.15)
            for name, runs, line in pairs
        ),
    )


@judge_of(
    "figure_2",
    "reusing samples breaks the information exponent",
    "used twice, samples teach a He3 direction within O(d) of them, from M = 0; used once they do not",
)
def reused_samples(data: xr.Dataset) -> Judgement:
    """Overlaps of runs on the ODE at every d, those of plain runs of the order 1/sqrt(d), the first
    drift against its closed form.
    """
    stride, sizes = data.attrs["every"], data.d.values
    once, twice = data.M_runs.values
    line = data.M.values[1, stride::stride]
    squares = np.mean(
        once[:, :, -1] ** 2, axis=-1
    )  # (d, run): the units of a run share their noise
    last = np.sqrt(squares.mean(axis=1))
    x = (np.log(sizes) - np.log(sizes).mean()) / np.sum((np.log(sizes) - np.log(sizes).mean()) ** 2)
    each_error = 0.5 * squares.std(axis=1, ddof=1) / np.sqrt(once.shape[1]) / squares.mean(axis=1)
    slope, error = float(np.log(last) @ x), float(np.sqrt(each_error**2 @ x**2))
    ratio = data.slope.values / data.slope_closed.values
    return judge_claims(
        f"M at alpha = {data.point.values[-1]:g}, used twice, d = {format_list(sizes)}: "
        f"{format_list(twice[:, :, -1].mean(axis=(1, 2)).round(4))} (ODE {line[-1].mean():.4f}); used once its root mean square is "
        f"{format_list(last.round(4))}, ~ d^{slope:.3f}({error:.1g}); the first drift at lr = {data.rate.values[0]:g} is "
        f"{format_list(ratio[0].round(4))} of its leading order in lr",
        *(
            mean_over_runs(runs - line).agrees(
                f"used twice, d = {d}: the mean overlap is the ODE's, to {PER_DIMENSION / d:.1g}",
                0.0,
                tolerance=PER_DIMENSION / d,
                scale=0.5 * np.abs(line),
                scale_words="half of it",
            )
            for d, runs in zip(sizes, twice, strict=True)
        ),
        count_wrong(
            "used once, the ODE stays at M = 0",
            int(np.sum(np.abs(data.M.values[0]) > 1e-9)),
            data.M.values[0].size,
        ),
        agreement(
            "used once, overlaps fall as 1/sqrt(d)",
            slope,
            error,
            -0.5,
            scale=0.25,
            runs=once.shape[1],
        ),
        agreement(
            "the first drift is its leading order in lr, to 1% at lr = .01",
            ratio[0],
            0.0,
            1.0,
            tolerance=LEADING,
            scale=0.05,
        ),
    )


@judge_of(
    "figure_3",
    "when momentum is a larger learning rate",
    "with fixed beta momentum is plain SGD at lr/(1 - beta); with 1 - beta = c/d it is another dynamics",
)
def momentum(data: xr.Dataset) -> Judgement:
    """ODEs at fixed beta against that of plain SGD, runs against both, and how far a slow velocity
    is from it.
    """
    stride, plain, sizes = data.attrs["every"], data.plain.values, data.d.values
    some, far = plain[stride::stride], sizes[-1]
    same = np.abs(data.fixed.values / plain - 1).max()
    # the velocity is late by beta/(1 - beta) steps, each of 1/d in alpha
    steepest = float(np.abs(np.gradient(np.log(plain), data.alpha.values)).max())
    findings = [
        _on_line(
            f"beta = {beta:g}, d = {d}: the mean of runs is the ODE of plain SGD",
            runs,
            some,
            (PER_DIMENSION + steepest * beta / (1 - beta)) / d,
            0.25,
        )
        for beta, rows in zip(data.beta.values, data.fixed_runs.values, strict=True)
        for d, runs in zip(sizes, rows, strict=True)
    ]
    slow = [
        _on_line(
            f"c = {c:g}: the mean of runs is its own ODE",
            runs,
            line[stride::stride],
            PER_DIMENSION / far,
            0.1,
        )
        for c, runs, line in zip(
            data.memory.values, data.slow_runs.values, data.slow.values, strict=True
        )
    ]
    off = [
        _farthest(value, line[stride::stride])
        for value, line in zip(data.slow_runs.values, data.slow.values, strict=True)
    ]
    apart = np.array(
        [mean_over_runs(runs / some).value.max() - 1 for runs in data.slow_runs.values]
    )
    longest = mean_over_runs(data.slow_runs.values[0] / some - 1)
    middle = int(np.argmax(longest.value))
    return judge_claims(
        f"ODEs at fixed beta are that of plain SGD to {same:.1g}; runs at d = {format_list(sizes)} are from it by at most "
        f"{', '.join(f'{_farthest(one, some):.1%}' for rows in data.fixed_runs.values for one in rows)}; with c = "
        f"{format_list(data.memory.values)} runs are above it by up to {', '.join(f'{one:.0%}' for one in apart)}, and off their own ODE by "
        f"{', '.join(f'{one:.1%}' for one in off)}",
        agreement(
            "at fixed beta the ODE is that of plain SGD at lr/(1 - beta)",
            same,
            0.0,
            0.0,
            tolerance=SAME,
            scale=0.01,
        ),
        *findings,
        *slow,
        larger(
            f"with c = {data.memory.values[0]:g} runs are above plain SGD",
            longest.value[middle],
            longest.error[middle],
            scale=0.2,
            scale_words="20% of its excess risk",
            runs=longest.runs,
            # the largest of several points is taken
            rate=1e-4 / len(longest.value),
        ),
    )


@judge_of(
    "figure_4",
    "Muon and SGD as the batch grows",
    "what is left late falls as 1/B for SGD and as 1/sqrt(B) for Muon, and Muon of one sample is normalised SGD",
)
def muon_and_batches(data: xr.Dataset) -> Judgement:
    """Late risks fitted in the batch, the ODE of Muon with memory against runs, Muon against
    normalised steps run by run.
    """
    from sgdynamics_reproductions.optimisers.muon_figure import late_risks

    d, names, runs = (
        data.attrs["d"],
        [str(item) for item in data.optimiser.values],
        data.excess_risk_runs.values,
    )
    late, B = late_risks(data), data.batch.values
    wide = B >= 16
    x = np.log(B[wide]) - np.log(B[wide]).mean()
    means, errors = late.mean(axis=-1), late.std(axis=-1, ddof=1) / np.sqrt(late.shape[-1])
    fitted = np.log(means[:, wide]) @ x / np.sum(x**2)
    error = np.sqrt((errors / means)[:, wide] ** 2 @ x**2) / np.sum(x**2)
    expected = np.array([-1.0, -0.5, -0.5])
    memory = runs[names.index("Muon, memory 3")]
    lines = [
        np.interp(data.point.values, data.tau.values, data.excess_risk.sel(solved=value).values)
        for value in data.solved.values
    ]
    pairs = [
        (entry, memory[list(B).index(entry)], line)
        for entry, line in zip(data.solved.values, lines, strict=True)
    ]
    early = data.sizes["early"]
    gap = np.abs(runs[names.index("Muon"), 0, :, :early] / data.normalised_runs.values - 1)
    return judge_claims(
        f"late excess risk ~ B^e from B = 16 to {B[-1]}: "
        + "; ".join(
            f"{name} e = {e:.3f}({s:.1g}) (expected {w:g})"
            for name, e, s, w in zip(names, fitted, error, expected, strict=True)
        )
        + f"; runs of Muon with memory are off the ODE by at most {', '.join(f'{_farthest(one, line):.1%}' for _, one, line in pairs)} at "
        f"B = {format_list(data.solved.values)}, d = {d}; Muon of one sample is normalised SGD to {gap.max():.1g} in each run",
        *(
            agreement(
                f"{name}: what is left late falls as B^{w:g}, to .15 in the exponent",
                e,
                s,
                w,
                tolerance=EXPONENT,
                scale=0.4,
                runs=late.shape[-1],
            )
            for name, e, s, w in zip(names, fitted, error, expected, strict=True)
        ),
        *(
            _on_line(
                f"Muon with memory, B = {pair}: the mean of runs is the ODE",
                part,
                line,
                2 * PER_DIMENSION / d,
                0.25,
            )
            for pair, part, line in pairs
        ),
        count_wrong(
            "Muon of one sample is normalised SGD run by run, to 1e-6",
            int(np.sum(gap > 1e-6)),
            gap.size,
        ),
    )


@judge_of(
    "figure_5",
    "clipping under label noise",
    "at one learning rate clipping keeps learning whatever the noise; with a rate for each noise it is not needed",
)
def clipping(data: xr.Dataset) -> Judgement:
    """Runs against the ODE; both updates at the largest noise against the start; the best rates."""
    stride, d, noises = data.attrs["every"], data.attrs["d"], data.noise.values
    lines, runs = data.excess_risk.values, data.excess_risk_runs.values
    findings = [
        _on_line(
            f"{name}, noise {noise:g}: the mean of runs is the ODE",
            value,
            line[stride::stride],
            2 * PER_DIMENSION / d,
            0.15,
        )
        for name, rows, paths in zip(data["update"].values, runs, lines, strict=True)
        for noise, value, line in zip(noises, rows, paths, strict=True)
    ]
    first = lines[0, 0, 0]
    worse, better = (
        mean_over_runs(sign * (runs[row, -1, :, -1:] / first - 1))
        for row, sign in ((0, 1), (1, -1))
    )
    off = [
        _farthest(entry, line[stride::stride])
        for rows, paths in zip(runs, lines, strict=True)
        for entry, line in zip(rows, paths, strict=True)
    ]
    best = data.last.values.min(axis=-1)
    rates = np.take_along_axis(
        data.lr.values[:, None], data.last.values.argmin(axis=-1)[..., None], axis=-1
    )[..., 0]
    moves = rates.max(axis=1) / rates.min(axis=1)
    inside = [
        int(0 < np.argmin(item) < len(item) - 1) for rows in data.last.values for item in rows
    ]
    return judge_claims(
        f"at noise {noises[-1]:g} and lr = {data.attrs['rate']:g} the excess risk goes from {first:.3f} to {runs[0, -1, :, -1].mean():.3f} "
        f"(plain) and {runs[1, -1, :, -1].mean():.3f} (clipped); with the best of {data.sizes['rate']} rates at noise {format_list(noises)}: "
        f"{format_list(best[0].round(4))} (plain), {format_list(best[1].round(4))} (clipped), at rates that differ by factors of "
        f"{moves[0]:.2g} and {moves[1]:.2g}; runs at d = {d} are off the ODE by at most "
        f"{max(off):.1%}",
        *findings,
        worse.is_above(
            "at the largest noise plain SGD ends above its start",
            scale=0.1,
            scale_words="10% of the first excess risk",
        ),
        better.is_above(
            "clipped SGD ends below it", scale=0.1, scale_words="10% of the first excess risk"
        ),
        larger(
            "with its best rate plain SGD is no worse than clipped by 25%",
            1.25 - best[0] / best[1],
            0.0,
            scale=1e-9,
        ),
        larger(
            "the best rate of plain SGD moves with the noise by more than that of clipped SGD",
            float(np.log2(moves[0] / moves[1])),
            0.0,
            scale=1.0,
            scale_words="a factor of 2",
        ),
        count_wrong(
            "the best rates are inside of the range", len(inside) - sum(inside), len(inside)
        ),
    )


@judge_of(
    "figure_6",
    "Adam and SGD on two eigenvalues",
    "directions are learned at speeds l for SGD and sqrt(l) for Adam, and the ODE is the limit of direct runs",
)
def adam_equalises(data: xr.Dataset) -> Judgement:
    """First speeds of the two halves, overlaps and risks of direct runs against the ODE."""
    stride, d = data.attrs["every"], data.attrs["d"]
    speed = data.speed.values / data.fraction.values
    ratio, values = speed[:, 0] / speed[:, 1], data.eigenvalue.values
    powers = np.log(ratio) / np.log(values[0] / values[1])
    lines, runs, total = (
        data.M.values[:, stride::stride],
        data.M_runs.values,
        data.M.values[:, stride::stride].sum(axis=-1),
    )
    names = [str(value) for value in data.optimiser.values]
    gaps = [
        mean_over_runs((run - line) / whole[:, None])
        for run, line, whole in zip(runs, lines, total, strict=True)
    ]
    risks = list(
        zip(
            names,
            data.excess_risk_runs.values,
            data.excess_risk.values[:, stride::stride],
            strict=True,
        )
    )
    return judge_claims(
        f"first speeds along eigenvalues {format_list(values)} are in the ratio {format_list(ratio.round(3))} ({', '.join(names)}), powers "
        f"{format_list(powers.round(4))} of the eigenvalues; {data.sizes['run']} direct runs at d = {d} are off the ODE by at most "
        f"{', '.join(f'{np.abs(one.value).max():.1%}' for one in gaps)} of the overlap and "
        f"{', '.join(f'{_farthest(one, line):.1%}' for _, one, line in risks)} of the excess risk",
        agreement(
            "first speeds are in proportion to l (SGD) and sqrt(l) (Adam), to 1% in the power",
            powers,
            0.0,
            [1.0, 0.5],
            tolerance=FIRST,
            scale=0.1,
        ),
        *(
            gap.agrees(
                f"{name}: overlaps of both halves in the runs are the ODE's, to {PER_DIMENSION / d:.1g}",
                0.0,
                tolerance=PER_DIMENSION / d,
                scale=0.1,
                scale_words="10% of the overlap",
            )
            for name, gap in zip(names, gaps, strict=True)
        ),
        *(
            _on_line(
                f"{name}: the mean excess risk of runs is the ODE's",
                risk,
                line,
                PER_DIMENSION / d,
                0.2,
            )
            for name, risk, line in risks
        ),
    )


@judge_of(
    "figure_7",
    "what noise for privacy costs",
    "noise sigma on the gradient adds lr^2 sigma^2 to dQ/dtau, and its cost in excess risk begins as sigma^2",
)
def private(data: xr.Dataset) -> Judgement:
    """Runs against the ODE at every noise, the first growth of Q, and the power of sigma."""
    stride, d, sigma = data.attrs["every"], data.attrs["d"], data.sigma.values
    lines, runs = data.excess_risk.values, data.excess_risk_runs.values
    grown = (data.growth.values[1:] - data.growth.values[0]) / (data.attrs["lr"] * sigma[1:]) ** 2
    cost = lines[1:] - lines[0]
    power = float(np.log(cost[1, -1] / cost[0, -1]) / np.log(sigma[2] / sigma[1]))
    paid = mean_over_runs(runs[-1][:, -1:] / lines[0, -1] - 1)
    return judge_claims(
        f"excess risk at alpha = {data.point.values[-1]:g} for sigma = {format_list(sigma)}: {format_list(lines[:, -1].round(4))}; the cost begins "
        f"as sigma^{power:.3f}; the growth of Q less that at sigma = 0 is {format_list(grown.round(4))} of lr^2 sigma^2; runs at d = {d} are "
        f"off the ODE by at most {max(_farthest(one, line[stride::stride]) for one, line in zip(runs, lines, strict=True)):.1%}",
        *(
            _on_line(
                f"sigma = {value:g}: the mean of runs is the ODE",
                run,
                line[stride::stride],
                2 * PER_DIMENSION / d,
                0.15,
            )
            for value, run, line in zip(sigma, runs, lines, strict=True)
        ),
        agreement(
            "noise adds lr^2 sigma^2 to dQ/dtau, to 1%", grown, 0.0, 1.0, tolerance=FIRST, scale=0.1
        ),
        # the next power is sigma^4, of the cost's own size next to the excess risk
        agreement(
            f"the cost begins as sigma^2, to .2 in the power between {sigma[1]:g} and {sigma[2]:g}",
            power,
            0.0,
            2.0,
            tolerance=0.2,
            scale=0.5,
        ),
        paid.is_above(
            f"at sigma = {sigma[-1]:g} it is paid",
            scale=1.0,
            scale_words="the excess risk without noise",
        ),
    )
