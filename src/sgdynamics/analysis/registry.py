"""Registry entries of the questions: plain data, read without importing JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgdynamics.base.registry import Question
from sgdynamics.base.support import (
    COORDINATES_ON_DATA,
    FRESH_SAMPLES,
    INTEGER_BATCH,
    NO_MESSAGE_PASSING,
    NO_OVERLAPS_ON_DATA,
    NO_OWN_DYNAMICS,
    NO_SPIKED_TENSOR,
    PLAIN_ONE_PASS,
    REGULARISERS,
    discontinuous_drift,
)
from sgdynamics.solvers.registry import ON_DATA

if TYPE_CHECKING:
    from jax import Array

_EPOCHS = (
    "repeated passes over a data set are compared with fresh samples here. Use sgd.EpochSGD(...)."
)
_NO_GRADIENT = discontinuous_drift("so it has no gradient. Use a finite snr.")
_NO_PROTOCOL = {
    "fixed data": FRESH_SAMPLES,
    "snr = inf": _NO_GRADIENT,
    "spiked tensor": (
        "the parameters of a spiked tensor cannot depend on alpha, and its learning rate "
        "is constant. Sweep over a constant learning rate with sgd.sweep."
    ),
}
_REGIMES = (
    "regimes are known for networks that learn from centred Gaussian inputs, with limits in lr/p, "
    "d and p"
)


def _first_field(fields: Array, signals: Array, head: Array, draws: Array) -> Array:
    """The function that the example of `expect` averages."""
    return fields[0]


ENTRIES = [
    Question(
        "worth_of_repeats",
        "sgdynamics.analysis.repeats:worth_of_repeats",
        unsupported={
            **REGULARISERS,
            "temperature": _EPOCHS,
            "other batch": _EPOCHS,
            "other update": _EPOCHS,
            "coordinatewise update": _EPOCHS,
            "fixed data": _EPOCHS,
            "epochs": None,
            "update on data": None,
            "coordinatewise update on data": COORDINATES_ON_DATA,
            "rule": NO_OVERLAPS_ON_DATA,
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
        },
    ),
    Question(
        "exit_time by the ODE",
        "sgdynamics.analysis.exit_times:exit_time",
        unsupported={
            "static head": None,
            "workers": None,
            "other batch": INTEGER_BATCH,
            "fixed data": (
                'the ODE describes fresh samples. Use method="dmft" or method="direct" on a fixed '
                "data set."
            ),
            "snr = inf": discontinuous_drift(
                'and solutions slide there. Use method="exact", or solve a trajectory and call '
                "sgd.exit_time_of(...)."
            ),
        },
        example={"method": "ode"},
        label_noise="finite variance or bounded steps",
        can_be_swept=True,
    ),
    Question(
        "exit_time by runs",
        "sgdynamics.analysis.exit_times:exit_time",
        unsupported={
            "other batch": INTEGER_BATCH,
            "message passing": NO_MESSAGE_PASSING,
            "delayed update": None,
            "workers": None,
        },
        example={"method": "exact", "dimension": 50},
        label_noise="any",
        can_be_swept=True,
    ),
    Question(
        "exit_time by DMFT",
        "sgdynamics.analysis.exit_times:exit_time",
        unsupported={
            **ON_DATA,
            "message passing": NO_MESSAGE_PASSING,
            "update on data": None,
            "coordinatewise update on data": COORDINATES_ON_DATA,
        },
        example={"method": "dmft"},
        can_be_swept=True,
    ),
    Question(
        "fixed_points",
        "sgdynamics.analysis.fixed_points:fixed_points",
        unsupported={
            **PLAIN_ONE_PASS,
            **REGULARISERS,
            "snr = inf": discontinuous_drift("so it has no roots there. Use a finite snr."),
            "own dynamics": NO_OWN_DYNAMICS,
        },
        example={"tries": 4},
    ),
    Question(
        "hessian_spectrum",
        "sgdynamics.analysis.landscape:hessian_spectrum",
        unsupported={
            **REGULARISERS,
            "mixture": (
                "the Hessian is only computed for centred inputs. Use sgd.fixed_points for "
                "stability."
            ),
            "several inputs": (
                "the Hessian is only computed for samples of one input. Use sgd.fixed_points for "
                "stability."
            ),
            "rule": (
                "the Hessian is only computed for losses of the fields. Use sgd.fixed_points for "
                "stability."
            ),
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
        },
        example={"dimension": 50},
        takes_algorithm=False,
    ),
    Question(
        "regime",
        "sgdynamics.analysis.regimes:regime",
        unsupported={
            **PLAIN_ONE_PASS,
            **REGULARISERS,
            "mixture": (
                f"{_REGIMES}. A mixture has no factor 1/p, and its noise scales with the snr. "
                "Use sgd.effective_scaling."
            ),
            "several inputs": f"{_REGIMES}. These samples have several inputs. Use sgd.certify.",
            "rule": f"{_REGIMES}. A Rule couples the rows directly. Use sgd.certify.",
            "top": f"{_REGIMES}. The scales of a top are its own. Use sgd.certify.",
            "spiked tensor": (
                f"{_REGIMES}. A spiked tensor has no width. Use sgd.effective_scaling."
            ),
            "own dynamics": f"{_REGIMES}. Compare sgd.solve_ode with sgd.simulate.",
        },
        example={"dimension": 50},
    ),
    Question(
        "optimal_schedule",
        "sgdynamics.analysis.protocols.schedules:optimal_schedule",
        unsupported=_NO_PROTOCOL,
        example={"alpha": 1.0},
    ),
    Question(
        "optimal_protocol",
        "sgdynamics.analysis.protocols.optimise:optimal_protocol",
        unsupported=_NO_PROTOCOL,
        example={"alpha": 1.0},
    ),
    Question(
        "expect",
        "sgdynamics.analysis.expect:expect",
        unsupported={
            **REGULARISERS,
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
        },
        example={"function": _first_field},
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "certify",
        "sgdynamics.analysis.certify:certify",
        unsupported={
            "message passing": NO_MESSAGE_PASSING,
            "other batch": INTEGER_BATCH,
            "epochs": (
                "epochs have only one kind of simulation, so there is nothing to check direct runs "
                "against. Compare sgd.simulate with sgd.solve_dmft by sgd.compare."
            ),
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
        },
        example={"progress": False},
        label_noise="finite variance or bounded steps",
    ),
]
