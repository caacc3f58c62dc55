"""The arguments `checkpoint` and `seconds` of `simulate`."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.results.datasets import encode
from sgdynamics.simulation.checkpoints import Checkpoint
from sgdynamics.solvers.call import SolverCall


def checkpoint_of(
    call: SolverCall,
    method: str,
    identity: dict[str, Any],
    checkpoint: str | os.PathLike[str] | None,
    seconds: float | None,
) -> Checkpoint | None:
    """Validate the arguments `checkpoint` and `seconds`."""
    if seconds is not None:
        seconds = checks.number("seconds", seconds, above=0.0)
    if checkpoint is None:
        if seconds is not None:
            fix = (
                "a time limit without a checkpoint would lose the runs. Set checkpoint to a folder"
            )
            raise checks.reject("seconds", seconds, fix)
        return None
    if not isinstance(call.initial_state, Start):
        fix = (
            "checkpoints store runs of networks only, not of spiked tensors or user-defined "
            "dynamics. Omit checkpoint"
        )
        raise checks.reject("checkpoint", checkpoint, fix)
    if call.dynamics.has_data and method == "exact":
        fix = (
            "the exact law of a fixed data set cannot be continued from a file. "
            'Use method="direct", or omit checkpoint'
        )
        raise checks.reject("checkpoint", checkpoint, fix)
    folder = checks.path("checkpoint", checkpoint)
    return Checkpoint(folder, _identify(call, identity), seconds)


def _identify(call: SolverCall, options: dict[str, Any]) -> dict[str, Any]:
    """Describe all of a simulation that determines its runs: everything but its save points."""
    dynamics, start = call.dynamics, call.initial_state
    arrays = [
        np.ascontiguousarray(array, dtype=np.float64).tobytes()
        for array in (start.M_blocks, start.Q_blocks, start.a)
    ]
    return {
        "problem": encode(dynamics.problem.describe()),
        "algorithm": encode(dynamics.algorithm.describe()),
        "start": hashlib.sha256(b"".join(arrays)).hexdigest(),
        "runs": int(start.runs),
        "dimension": call.dimension,
        **options,
    }
