"""Stop solvers where their work begins.

Everything that reads and validates arguments runs; the first computation raises `Work`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from sgdynamics.analysis import (
    certify,
    exit_simulation,
    exit_times,
    expect,
    fixed_point_search,
    landscape,
    leap_complexity,
    links,
    plateau_growth,
    plateaus,
    regimes,
)
from sgdynamics.analysis.effective import dynamics, scaling
from sgdynamics.analysis.protocols import optimise
from sgdynamics.dynamics import axes, delays, diagonal, fields, sliding, spiked_tensor, updates
from sgdynamics.mean_field import particles
from sgdynamics.sde import covariance
from sgdynamics.simulation import running
from sgdynamics.solvers import batch, dmft, large_batch, linear, wide_network
from sgdynamics.statics import bayes, erm, samples_needed, weak_recovery
from sgdynamics.sweeps import sweeping


class Work(BaseException):
    """Raised where the work of a solver would begin.

    It is not an `Exception`, so that no handler on the way catches it.
    """


# The functions that solvers call first once their arguments are accepted: a progress bar, the
# choice of a quadrature, or the first computation.
FIRST_CALLS = [
    *(
        (module, "meter")
        for module in (
            running,
            dmft,
            wide_network,
            dynamics,
            scaling,
            optimise,
            certify,
            sweeping,
        )
    ),
    *(
        (module, "choose_quadrature")
        for module in (
            delays,
            axes,
            fields,
            updates,
            plateau_growth,
            fixed_point_search,
            plateaus,
            large_batch,
        )
    ),
    *((module, "run_cases") for module in (batch, exit_times, exit_simulation)),
    (particles, "_parameters"),
    (linear, "_means"),
    (expect, "estimate_expectation"),
    (diagonal, "solve_law"),
    (sliding, "solve_infinite_snr"),
    (spiked_tensor, "integrate_spiked"),
    (spiked_tensor, "spiked_step_length"),
    (landscape, "_frame_rows"),
    (covariance, "_coordinates"),
    (regimes, "_estimate_coefficients"),
    (links, "evaluate_at"),
    (links, "_evaluate_in_blocks"),
    (leap_complexity, "evaluate_at"),
    (bayes, "bayes_curve"),
    (weak_recovery, "channel_of"),
    (erm, "_Predictor"),
    (erm, "aligned_labels"),
    (samples_needed, "first_below"),
]


def stop_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let solvers raise `Work` where their work would begin."""

    def raise_work(*_: Any, **__: Any) -> NoReturn:
        raise Work

    for module, name in FIRST_CALLS:
        monkeypatch.setattr(module, name, raise_work)
