"""Judges of the figures about trained networks on top of the first layer."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics_reproductions.gallery.claims import (
    Finding,
    Judgement,
    agreement,
    format_list,
    judge_claims,
    larger,
    mean_over_runs,
)
from sgdynamics_reproductions.gallery.entries import judge_of
from sgdynamics_reproductions.tops.lora_figure import IN_RUNS, OVERLAPS, escape_times

# Means of runs at dimension d differ from the limit by up to this multiple of 1/d: corrections of a
# few units whose numbers on top move too.
PER_DIMENSION = 10.0
FLAT_SUM = 1e-6  # error of a sum that does not change
ACCURACY = 5e-3  # error of a sampled accuracy
EVEN_PART = 0.25  # half the variance of (z^2 - 1)/2, which an odd network cannot learn


def _near_theory(
    claim: str, runs: np.ndarray, line: np.ndarray, times: tuple[np.ndarray, np.ndarray], d: int
) -> Finding:
    """Test that the mean of runs (run, points, ...) is the line of the theory (time, ...)."""
    time, point = times
    flat = np.asarray(line).reshape(len(time), -1)
    expected = np.stack([np.interp(point, time, column) for column in flat.T], axis=-1)
    spread = max(float(np.ptp(expected)), 1e-3)
    deviations = np.asarray(runs).reshape(len(runs), len(point), -1) - expected
    return mean_over_runs(deviations.reshape(len(runs), -1)).agrees(
        f"{claim}: the mean of runs is the ODE, within {PER_DIMENSION / d:.1%} of its range",
        0.0,
        tolerance=PER_DIMENSION / d * spread,
        scale=0.25 * spread,
        scale_words="a quarter of the range of the curves",
    )


@judge_of(
    "figure_1",
    "softmax classification: cross-entropy, accuracy, and errors at a fixed rate",
    "Cross-entropy and accuracy of runs are those of the ODE, and the column sums of the output "
    "layer do not move",
)
def softmax_network(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, the accuracy with that of the angle, and test the column sums."""
    times, d = (data.time.values, data.point.values), data.attrs["d"]
    sums = data.column_sum.values
    share = data.error.values[:, -1]
    return judge_claims(
        f"accuracy at t = {data.point.values[-1]:g}: "
        f"{float(data.accuracy_runs.values[:, -1].mean()):.3f} in runs at d = {d}, "
        f"{float(data.angle_accuracy.values[-1]):.3f} in the ODE; errors at t = "
        f"{data.late.values[-1]:g} and lr = {format_list(data.rate.values)}: "
        f"{format_list(share.round(4))}",
        _near_theory("Cross-entropy", data.risk_runs.values, data.risk.values, times, d),
        _near_theory("Accuracy", data.accuracy_runs.values, data.angle_accuracy.values, times, d),
        agreement(
            "The accuracy is that of the angle between the unit and the difference of the signals",
            data.accuracy.values - data.angle_accuracy.values,
            0.0,
            0.0,
            tolerance=ACCURACY,
            scale=0.02,
        ),
        agreement(
            "The sums of the columns of the output layer do not move",
            sums - sums[0],
            0.0,
            0.0,
            tolerance=FLAT_SUM,
            scale=0.01,
        ),
        larger(
            "A larger learning rate leaves more errors at the same time",
            np.diff(share),
            0.0,
            scale=1e-3,
        ),
    )


@judge_of(
    "figure_2",
    "trained biases find the shift of a target",
    "Biases lower the risk on a shifted target, and runs follow the ODE",
)
def trained_biases(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE with and without biases, and the late risks of both."""
    times, d = (data.time.values, data.point.values), data.attrs["d"]
    late = data.excess_risk_runs.values[:, :, -1]
    ratio = late[0].mean() / late[1].mean()
    gain = late[0] - 2 * late[1]
    return judge_claims(
        f"late excess risk without biases {late[0].mean():.4f}, with biases {late[1].mean():.4f} "
        f"({ratio:.1f} times less); biases of the ODE {format_list(data.b.values[-1].round(3))}",
        *(
            _near_theory(f"{name} biases", runs, line, times, d)
            for name, runs, line in zip(
                data.biases.values,
                data.excess_risk_runs.values,
                data.excess_risk.values,
                strict=True,
            )
        ),
        _near_theory("The biases", data.b_runs.values, data.b.values, times, d),
        larger(
            "Biases at least halve the excess risk",
            gain.mean(),
            np.sqrt((late[0].var(ddof=1) + 4 * late[1].var(ddof=1)) / len(gain)),
            scale=1e-3,
            runs=len(gain),
        ),
    )


@judge_of(
    "figure_3",
    "LoRA from B = 0: a plateau that depends on the start, the rate of B and the rank",
    "The update of low rank leaves the plateau later from a smaller overlap, and earlier at a "
    "larger rate of B or a larger rank; runs follow the ODE",
)
def low_rank_update(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, and the times at which the risk has fallen to half."""
    times, d = (data.time.values, data.point.values), data.attrs["d"]
    escapes = {
        name: escape_times(data[f"by_{name}"].values, data.time.values)
        for name in ("overlap", "rate", "rank")
    }
    spacing = float(data.time.values[1] - data.time.values[0])
    middle = int(np.argmin(np.abs(data.overlap.values - OVERLAPS[IN_RUNS])))
    signs = {"overlap": 1.0, "rate": -1.0, "rank": -1.0}
    words = {
        "overlap": "A smaller overlap at the start lengthens the plateau",
        "rate": "A larger rate of B shortens the plateau",
        "rank": "A larger rank shortens the plateau",
    }
    return judge_claims(
        "times at which the excess risk is half of its initial value: "
        + "; ".join(
            f"{name} {format_list(data[name].values)}: {format_list(value)}"
            for name, value in escapes.items()
        ),
        _near_theory(
            "Excess risk",
            data.excess_risk_runs.values,
            data.by_overlap.values[middle],
            times,
            d,
        ),
        *(
            larger(words[name], signs[name] * np.diff(value), 0.0, scale=2 * spacing)
            for name, value in escapes.items()
        ),
    )


@judge_of(
    "figure_4",
    "a deep network that is narrow in all its layers",
    "Runs follow the ODE of the overlaps and of all layers, and three layers learn the even part "
    "of the target, which one layer of odd units cannot",
)
def narrow_deep_network(data: xr.Dataset) -> Judgement:
    """Compare runs with the ODE, and the late risks of one and of three layers."""
    times, d = (data.time.values, data.point.values), data.attrs["d"]
    late = data.risk_runs.values[:, :, -1]
    gain = EVEN_PART - late[1]
    return judge_claims(
        f"late risk with one layer {late[0].mean():.3f}, with three layers {late[1].mean():.3f}; "
        f"last layer {format_list(data.u.values[0].round(2))} at the start, "
        f"{format_list(data.u.values[-1].round(2))} at t = {data.time.values[-1]:g}",
        *(
            _near_theory(f"Risk of {name}", runs, line, times, d)
            for name, runs, line in zip(
                data.network.values, data.risk_runs.values, data.risk.values, strict=True
            )
        ),
        _near_theory("Overlaps", data.overlaps_runs.values, data.overlaps.values, times, d),
        _near_theory("The second layer", data.c_runs.values, data.c.values, times, d),
        _near_theory("The last layer", data.u_runs.values, data.u.values, times, d),
        larger(
            "One layer keeps at least the risk of the even part",
            (late[0] - EVEN_PART).mean(),
            late[0].std(ddof=1) / np.sqrt(len(late[0])),
            scale=1e-3,
            runs=len(late[0]),
        ),
        larger(
            "Three layers go below the risk of the even part",
            gain.mean(),
            gain.std(ddof=1) / np.sqrt(len(gain)),
            scale=1e-3,
            runs=len(gain),
        ),
    )
