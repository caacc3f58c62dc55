"""A question from outside the library: the risk of the ODE in units of the user's choice."""

from __future__ import annotations

from typing import Any

import xarray as xr

import sgdynamics as sgd
from sgdynamics.base import checks, registry
from sgdynamics.base.support import FRESH_SAMPLES, NO_SPIKED_TENSOR, require


def scaled_risk(
    problem: Any, algorithm: Any, start: Any, *, times: Any = None, scale: float = 1.0
) -> xr.Dataset:
    """The solution of the ODE with its risk divided by `scale`."""
    require("scaled_risk", problem, algorithm)
    scale = checks.number("scale", scale, above=0.0)
    result = sgd.solve_ode(problem, algorithm, start, times=times)
    result["risk"] = result["risk"] / scale
    return result.assign_attrs(method="scaled_risk")


ENTRY = registry.Question(
    "scaled_risk",
    "tests.base.scaled_risk:scaled_risk",
    unsupported={"fixed data": FRESH_SAMPLES, "spiked tensor": NO_SPIKED_TENSOR},
    example={"times": [1.0]},
    can_be_swept=True,
    methods=(registry.Method("scaled_risk", "scaled risk", clocks=("times",)),),
)
