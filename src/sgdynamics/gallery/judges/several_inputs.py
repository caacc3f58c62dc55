"""Whether the data of the figures of samples of several inputs and own rules show what theory says of them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdynamics.gallery.claims import Finding, Judgement, agreement, judged, listed, mean_over_runs, spanned
from sgdynamics.gallery.entries import judge_of

PER_DIMENSION = 4.0  # theory is for d -> infinity: runs at d may differ from it by this over d, of the size of what is drawn
WRONG = 0.05  # of that size: what must be seen


def _on_theory(claim: str, runs: np.ndarray, theory: np.ndarray, d: float, *, size: float | np.ndarray = 1.0) -> Finding:
    """The mean of runs (run, points...) is the theory's line (points...), to errors and 4/d of the size."""
    return (
        mean_over_runs(np.asarray(runs) - theory)
        .over(size)
        .agrees(
            f"{claim}, to {PER_DIMENSION:g}/d", 0.0, tolerance=PER_DIMENSION / d, scale=WRONG, scale_words=f"{WRONG:.0%} of its size"
        )
    )


def _farthest(runs: np.ndarray, theory: np.ndarray, size: float | np.ndarray = 1.0) -> float:
    return float(np.abs((np.asarray(runs).mean(axis=0) - theory) / size).max())


@judge_of(
    "figure_5",
    "Hebb, perceptron and Adatron: errors and their late laws",
    "errors fall as alpha^-1/2, alpha^-1/3 and 1/alpha with the closed prefactors, and runs are on the ODE",
)
def late_laws(data: xr.Dataset) -> Judgement:
    """Exponents and prefactors of the ODE where it ends, runs against the ODE in its own units."""
    from sgdynamics.papers.several_inputs.formulas import LATE_EXPONENTS

    end, d = float(data.alpha[-1]), data.attrs["d"]
    law = np.array([LATE_EXPONENTS[rule] for rule in data.rule.values])
    exponent, front = data.exponent.values[:, -1], (data.error / data.late_error).values[:, -1]
    findings, parts = [], []
    for row, rule in enumerate(data.rule.values):
        runs, line = data.error_runs.values[row], data.error_at_runs.values[row]
        parts.append(f"{rule} {100 * _farthest(runs, line, line):.2f}%")
        findings.append(_on_theory(f"{rule}: the mean error of the runs is the ODE's", runs, line, d, size=line))
    return judged(
        f"at alpha = {end:g} the exponents are {listed(exponent.round(4))} and the errors {listed(front.round(4))} of the closed laws; "
        f"runs at d = {d} are from the ODE by at most {', '.join(parts)}",
        agreement("local exponents are -1/2, -1/3 and -1, to .005", exponent, 0.0, law, tolerance=0.005, scale=0.02),
        agreement("prefactors are the closed ones, to .5%", front, 0.0, 1.0, tolerance=0.005, scale=0.02, scale_words="2% of them"),
        *findings,
    )
