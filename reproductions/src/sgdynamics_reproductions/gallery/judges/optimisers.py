"""Judges of the figures about optimisers."""

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

# Runs at dimension d agree with the limit up to this multiple of 1/d, relative to the curve: two
# orders of a step for a few units.
PER_DIMENSION = 8.0
SAME = 1e-5  # relative difference of two equal ODEs that is due to their integration
# Tolerance of the exponent of the late risk in the batch size between 16 and 64: batches are not
# infinitely large and learning rates not infinitely small.
EXPONENT = 0.15
LEADING = 0.01  # relative error of the leading order in lr, at lr = .01
FIRST = 0.01  # relative error of an initial speed that is measured over a finite time


def _on_line(
    claim: str, runs: np.ndarray, line: np.ndarray, tolerance: float, scale: float
) -> Finding:
    """Test that the mean of runs (run, points) is the curve of the theory, in relative units."""
    return mean_over_runs(np.asarray(runs) / line - 1).agrees(
        f"{claim}, within {tolerance:.1%}",
        0.0,
        tolerance=tolerance,
        scale=scale,
        scale_words=f"{scale:.0%} of the curve",
    )


def _largest_deviation(runs: np.ndarray, line: np.ndarray) -> float:
    return float(np.abs(np.asarray(runs).mean(axis=0) / line - 1).max())


@judge_of(
    "figure_1",
    "eight optimisers on one problem, ODE and direct runs",
    "The ODE of each optimiser is the limit of its runs in d dimensions",
)
def eight_optimisers(data: xr.Dataset) -> Judgement:
    """Compare the mean of direct runs with the ODE for each optimiser."""
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
    text = ", ".join(f"{name} {_largest_deviation(runs, line):.1%}" for name, runs, line in pairs)
    return judge_claims(
        f"the mean excess risk of {data.sizes['run']} direct runs at d = {d} deviates from the ODE "
        f"by at most: {text}",
        *(
            _on_line(f"{name}: the mean of runs is the ODE", runs, line, PER_DIMENSION / d, 0.15)
            for name, runs, line in pairs
        ),
    )


@judge_of(
    "figure_2",
    "reusing samples breaks the information exponent",
    "If each sample is used twice, O(d) samples teach a He3 direction from M = 0; if it is used "
    "once, they do not",
)
def reused_samples(data: xr.Dataset) -> Judgement:
    """Test overlaps with reuse against the ODE, plain overlaps against 1/sqrt(d), and the drift.

    The initial drift is compared with its closed form.
    """
    stride, sizes = data.attrs["every"], data.d.values
    once, twice = data.M_runs.values
    line = data.M.values[1, stride::stride]
    # (d, run): the units of a run share their noise
    squares = np.mean(once[:, :, -1] ** 2, axis=-1)
    last = np.sqrt(squares.mean(axis=1))
    x = (np.log(sizes) - np.log(sizes).mean()) / np.sum((np.log(sizes) - np.log(sizes).mean()) ** 2)
    each_error = 0.5 * squares.std(axis=1, ddof=1) / np.sqrt(once.shape[1]) / squares.mean(axis=1)
    slope, error = float(np.log(last) @ x), float(np.sqrt(each_error**2 @ x**2))
    ratio = data.slope.values / data.slope_closed.values
    return judge_claims(
        f"M at alpha = {data.point.values[-1]:g} with samples used twice, d = "
        f"{format_list(sizes)}: {format_list(twice[:, :, -1].mean(axis=(1, 2)).round(4))} (ODE "
        f"{line[-1].mean():.4f}); with samples used once its root mean square is "
        f"{format_list(last.round(4))}, ~ d^{slope:.3f}({error:.1g}); the initial drift at lr = "
        f"{data.rate.values[0]:g} is {format_list(ratio[0].round(4))} of its leading order in lr",
        *(
            mean_over_runs(runs - line).agrees(
                f"Samples used twice, d = {d}: the mean overlap is that of the ODE, within "
                f"{PER_DIMENSION / d:.1g}",
                0.0,
                tolerance=PER_DIMENSION / d,
                scale=0.5 * np.abs(line),
                scale_words="half of the overlap",
            )
            for d, runs in zip(sizes, twice, strict=True)
        ),
        count_wrong(
            "Samples used once: the ODE stays at M = 0",
            int(np.sum(np.abs(data.M.values[0]) > 1e-9)),
            data.M.values[0].size,
        ),
        agreement(
            "Samples used once: overlaps fall as 1/sqrt(d)",
            slope,
            error,
            -0.5,
            scale=0.25,
            runs=once.shape[1],
        ),
        agreement(
            "The initial drift is its leading order in lr, within 1% at lr = .01",
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
    "With fixed beta momentum is plain SGD at lr/(1 - beta); with 1 - beta = c/d its dynamics "
    "differs",
)
def momentum(data: xr.Dataset) -> Judgement:
    """Compare ODEs at fixed beta and a slow velocity with plain SGD, and runs with their ODEs."""
    stride, plain, sizes = data.attrs["every"], data.plain.values, data.d.values
    some, far = plain[stride::stride], sizes[-1]
    same = np.abs(data.fixed.values / plain - 1).max()
    # The velocity is late by beta/(1 - beta) steps, each of 1/d in alpha.
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
    deviations = [
        _largest_deviation(value, line[stride::stride])
        for value, line in zip(data.slow_runs.values, data.slow.values, strict=True)
    ]
    apart = np.array(
        [mean_over_runs(runs / some).value.max() - 1 for runs in data.slow_runs.values]
    )
    fixed_deviations = [
        _largest_deviation(runs, some) for rows in data.fixed_runs.values for runs in rows
    ]
    longest = mean_over_runs(data.slow_runs.values[0] / some - 1)
    middle = int(np.argmax(longest.value))
    return judge_claims(
        f"ODEs at fixed beta are that of plain SGD within {same:.1g}; runs at d = "
        f"{format_list(sizes)} deviate from it by at most "
        f"{', '.join(f'{deviation:.1%}' for deviation in fixed_deviations)}; with c = "
        f"{format_list(data.memory.values)} runs are above it by up to "
        f"{', '.join(f'{value:.0%}' for value in apart)}, and deviate from their own ODE by "
        f"{', '.join(f'{value:.1%}' for value in deviations)}",
        agreement(
            "At fixed beta the ODE is that of plain SGD at lr/(1 - beta)",
            same,
            0.0,
            0.0,
            tolerance=SAME,
            scale=0.01,
        ),
        *findings,
        *slow,
        larger(
            f"With c = {data.memory.values[0]:g} runs are above plain SGD",
            longest.value[middle],
            longest.error[middle],
            scale=0.2,
            scale_words="20% of its excess risk",
            runs=longest.runs,
            # The point is the largest of several.
            rate=1e-4 / len(longest.value),
        ),
    )


@judge_of(
    "figure_4",
    "Muon and SGD as the batch grows",
    "The late excess risk falls as 1/B for SGD and as 1/sqrt(B) for Muon, and Muon with one sample "
    "is normalised SGD",
)
def muon_and_batches(data: xr.Dataset) -> Judgement:
    """Fit late risks in the batch size, and compare Muon with its ODE and with normalised SGD.

    The comparison with normalised SGD is made run by run.
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
    deviations = [f"{_largest_deviation(values, line):.1%}" for _, values, line in pairs]
    early = data.sizes["early"]
    gap = np.abs(runs[names.index("Muon"), 0, :, :early] / data.normalised_runs.values - 1)
    return judge_claims(
        f"late excess risk ~ B^e from B = 16 to {B[-1]}: "
        + "; ".join(
            f"{name} e = {e:.3f}({s:.1g}) (expected {w:g})"
            for name, e, s, w in zip(names, fitted, error, expected, strict=True)
        )
        + f"; runs of Muon with memory deviate from the ODE by at most {', '.join(deviations)} at "
        f"B = {format_list(data.solved.values)}, d = {d}; Muon with one sample is normalised SGD "
        f"within {gap.max():.1g} in each run",
        *(
            agreement(
                f"{name}: the late excess risk falls as B^{w:g}, within .15 in the exponent",
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
                f"Muon with memory, B = {batch}: the mean of runs is the ODE",
                values,
                line,
                2 * PER_DIMENSION / d,
                0.25,
            )
            for batch, values, line in pairs
        ),
        count_wrong(
            "Muon with one sample is normalised SGD run by run, within 1e-6",
            int(np.sum(gap > 1e-6)),
            gap.size,
        ),
    )


@judge_of(
    "figure_5",
    "clipping under label noise",
    "At one learning rate clipped SGD learns at any noise; with a learning rate for each noise "
    "clipping is not needed",
)
def clipping(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, both updates with their start, and the best rates."""
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
    deviations = [
        _largest_deviation(entry, line[stride::stride])
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
        f"at noise {noises[-1]:g} and lr = {data.attrs['rate']:g} the excess risk goes from "
        f"{first:.3f} to {runs[0, -1, :, -1].mean():.3f} (plain) and "
        f"{runs[1, -1, :, -1].mean():.3f} (clipped); with the best of {data.sizes['rate']} rates "
        f"at noise {format_list(noises)}: {format_list(best[0].round(4))} (plain), "
        f"{format_list(best[1].round(4))} (clipped), at rates that differ by factors of "
        f"{moves[0]:.2g} and {moves[1]:.2g}; runs at d = {d} deviate from the ODE by at most "
        f"{max(deviations):.1%}",
        *findings,
        worse.is_above(
            "At the largest noise plain SGD ends above its start",
            scale=0.1,
            scale_words="10% of the initial excess risk",
        ),
        better.is_above(
            "At the largest noise clipped SGD ends below its start",
            scale=0.1,
            scale_words="10% of the initial excess risk",
        ),
        larger(
            "With its best rate plain SGD is at most 25% worse than clipped SGD",
            1.25 - best[0] / best[1],
            0.0,
            scale=1e-9,
        ),
        larger(
            "The best rate of plain SGD changes more with the noise than that of clipped SGD",
            float(np.log2(moves[0] / moves[1])),
            0.0,
            scale=1.0,
            scale_words="a factor of 2",
        ),
        count_wrong("The best rates lie inside the range", len(inside) - sum(inside), len(inside)),
    )


@judge_of(
    "figure_6",
    "Adam and SGD on two eigenvalues",
    "Directions of eigenvalue l are learned at speeds l by SGD and sqrt(l) by Adam, and the ODE is "
    "the limit of direct runs",
)
def adam_equalises(data: xr.Dataset) -> Judgement:
    """Test the initial speeds of the two halves, and compare direct runs with the ODE."""
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
        f"initial speeds along eigenvalues {format_list(values)} have the ratio "
        f"{format_list(ratio.round(3))} ({', '.join(names)}), powers "
        f"{format_list(powers.round(4))} of the eigenvalues; {data.sizes['run']} direct runs at d "
        f"= {d} deviate from the ODE by at most "
        f"{', '.join(f'{np.abs(gap.value).max():.1%}' for gap in gaps)} of the overlap and "
        f"{', '.join(f'{_largest_deviation(runs, line):.1%}' for _, runs, line in risks)} of the "
        "excess risk",
        agreement(
            "Initial speeds are proportional to l (SGD) and sqrt(l) (Adam), within 1% in the "
            "exponent",
            powers,
            0.0,
            [1.0, 0.5],
            tolerance=FIRST,
            scale=0.1,
        ),
        *(
            gap.agrees(
                f"{name}: overlaps of both halves in the runs are those of the ODE, within "
                f"{PER_DIMENSION / d:.1g}",
                0.0,
                tolerance=PER_DIMENSION / d,
                scale=0.1,
                scale_words="10% of the overlap",
            )
            for name, gap in zip(names, gaps, strict=True)
        ),
        *(
            _on_line(
                f"{name}: the mean excess risk of runs is that of the ODE",
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
    "the cost of noise for privacy",
    "Noise sigma on the gradient adds lr^2 sigma^2 to dQ/dtau, and its cost in excess risk grows "
    "as sigma^2 at small sigma",
)
def private(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE at each noise, and test the growth of Q and the power of sigma."""
    stride, d, sigma = data.attrs["every"], data.attrs["d"], data.sigma.values
    lines, runs = data.excess_risk.values, data.excess_risk_runs.values
    grown = (data.growth.values[1:] - data.growth.values[0]) / (data.attrs["lr"] * sigma[1:]) ** 2
    cost = lines[1:] - lines[0]
    power = float(np.log(cost[1, -1] / cost[0, -1]) / np.log(sigma[2] / sigma[1]))
    deviations = [
        _largest_deviation(values, line[stride::stride])
        for values, line in zip(runs, lines, strict=True)
    ]
    paid = mean_over_runs(runs[-1][:, -1:] / lines[0, -1] - 1)
    return judge_claims(
        f"excess risk at alpha = {data.point.values[-1]:g} for sigma = {format_list(sigma)}: "
        f"{format_list(lines[:, -1].round(4))}; the cost grows as sigma^{power:.3f} at small "
        f"sigma; the growth of Q minus that at sigma = 0 is {format_list(grown.round(4))} of lr^2 "
        f"sigma^2; runs at d = {d} deviate from the ODE by at most "
        f"{max(deviations):.1%}",
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
            "Noise adds lr^2 sigma^2 to dQ/dtau, within 1%",
            grown,
            0.0,
            1.0,
            tolerance=FIRST,
            scale=0.1,
        ),
        # The next power is sigma^4, relative to sigma^2 as the cost relative to the excess risk.
        agreement(
            f"The cost grows as sigma^2, within .2 in the exponent between {sigma[1]:g} and "
            f"{sigma[2]:g}",
            power,
            0.0,
            2.0,
            tolerance=0.2,
            scale=0.5,
        ),
        paid.is_above(
            f"At sigma = {sigma[-1]:g} noise costs excess risk",
            scale=1.0,
            scale_words="the excess risk without noise",
        ),
    )


@judge_of(
    "figure_8",
    "optimisers on a fixed data set, DMFT and direct runs",
    "DMFT of each optimiser is the limit of its runs; heavy ball is stable up to its edge; SAM "
    "ends at flatter points",
)
def fixed_data(data: xr.Dataset) -> Judgement:
    """Compare runs with DMFT, the edge of stability with its formula, and test the sharpness."""
    d, findings = data.attrs["d"], []
    for number, name in enumerate(data.optimiser.values):
        for quantity, problem in (("M", "phase retrieval"), ("risk", "erf unit")):
            line = data[quantity].values[number, 1:]
            # The Monte Carlo error of the theory, at the level of a rare false alarm
            error = 4 * (data[f"{quantity}_error"].values[number, 1:] / line).max()
            runs = data[f"{quantity}_runs"].values[number, :, 1:]
            claim = f"{name}, {problem}: the mean of runs is DMFT"
            findings.append(_on_line(claim, runs, line, PER_DIMENSION / d + error, 0.3))
    epoch_error = 4 * (data.epoch_M_error.values / data.epoch_M.values).max()
    findings.append(
        _on_line(
            "epochs with a slow velocity: the mean of runs is DMFT",
            data.epoch_M_runs.values,
            data.epoch_M.values,
            PER_DIMENSION / d + epoch_error,
            0.3,
        )
    )
    growth = mean_over_runs(np.log(data.growth_runs.values))
    is_above = data.relative.values > 1
    sign = np.where(is_above, 1.0, -1.0)
    findings.append(
        growth._replace(value=sign * growth.value).is_above(
            "Heavy ball on least squares grows above lr s_max = 2 (1 + beta), and decays below",
            scale=1.0,
            scale_words="a factor e in 100 steps",
        )
    )
    sharpness = data.sharpness.values
    flatter = mean_over_runs((sharpness[:-1] - sharpness[1:]).T)
    findings.append(
        flatter.is_above(
            "A larger radius of SAM ends at a flatter point",
            scale=0.5 * sharpness[0].mean(),
            scale_words="half of the sharpness",
        )
    )
    means = format_list(sharpness.mean(axis=1).round(3))
    best = _best_at_equal_training_risk(data)
    return judge_claims(
        f"sharpness {means} at the radii {format_list(data.radius.values)}; at the training risk "
        f"that all reach, the excess risk is lowest for {best}",
        *findings,
    )


def _best_at_equal_training_risk(data: xr.Dataset) -> str:
    """Name of the optimiser with the lowest excess risk where training risks first are equal."""
    level = 1.02 * float(data.train.values.min(axis=1).max())
    risks = {}
    for number, name in enumerate(data.optimiser.values):
        train, risk = data.train.values[number], data.risk.values[number]
        first = int(np.argmax(train < level))
        share = (train[first - 1] - level) / (train[first - 1] - train[first])
        risks[str(name)] = risk[first - 1] + share * (risk[first] - risk[first - 1])
    best = min(risks, key=lambda name: risks[name])
    return f"{best} ({', '.join(f'{name} {value:.4f}' for name, value in risks.items())})"
