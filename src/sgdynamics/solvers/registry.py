"""Registry entries of the solvers: plain data, read without importing JAX."""

from __future__ import annotations

from sgdynamics.base.registry import RUN_KEYS, Method, Question
from sgdynamics.base.support import (
    COORDINATES_ON_DATA,
    FRESH_SAMPLES,
    INTEGER_BATCH,
    NO_OVERLAPS_ON_DATA,
    NO_OWN_DYNAMICS,
    NO_SPIKED_TENSOR,
    OTHER_UPDATES,
    PLAIN_ONE_PASS,
    REGULARISERS,
    discontinuous_drift,
)

_WIDE = (
    "wide networks are supported for TeacherStudent and MultiIndex with loss='squared'. "
    "Use sgd.solve_ode for other problems."
)
_LINEAR = (
    "exact means without stepping exist only for linear students. "
    "Use sgd.TeacherStudent(activation='linear', ...)."
)
_NEEDS_DATA = (
    "a fixed data set and plain steps are needed here. "
    "Use sgd.GradientDescent(...) or another algorithm on a data set."
)
ON_DATA = {
    **REGULARISERS,
    "temperature": _NEEDS_DATA,
    "other batch": _NEEDS_DATA,
    "other update": _NEEDS_DATA,
    "coordinatewise update": _NEEDS_DATA,
    "rule": NO_OVERLAPS_ON_DATA,
    "spiked tensor": (
        "a spiked tensor is drawn anew at each step and has no data set. "
        "Use sgd.solve_ode, sgd.solve_sde or sgd.simulate."
    ),
    "own dynamics": (
        "a Dynamics has no data set. Use sgd.solve_ode or sgd.simulate with sgd.OnePassSGD(...)."
    ),
}

ENTRIES = [
    Question(
        "solve_ode",
        "sgdynamics.solvers.ode:solve_ode",
        unsupported={
            "static head": None,
            "students": None,
            "workers": None,
            "delayed update": None,
            "fixed data": (
                "the ODE describes fresh samples. Use sgd.solve_dmft for a fixed data set."
            ),
            "diagonal": None,
        },
        example={"times": [1.0]},
        label_noise="finite variance or bounded steps",
        can_be_swept=True,
        methods=(Method("ode", "ODE"),),
    ),
    Question(
        "solve_large_batch",
        "sgdynamics.solvers.large_batch:solve_large_batch",
        unsupported={
            "temperature": (
                "large batches need an update that reads each batch once and adds no noise. "
                "Use sgd.simulate."
            ),
            "other batch": (
                "the batch size is samples_per_dimension * d here. Omit batch from the algorithm."
            ),
            "coordinatewise update": (
                "with large batches each coordinate has a mean of its own, so only updates that "
                "commute with rotations close on the overlaps. Use sgd.simulate."
            ),
            "fixed data": FRESH_SAMPLES,
            "snr = inf": discontinuous_drift(
                "so the map of one step is discontinuous too. Use a finite snr."
            ),
            "top": (
                "large batches are only supported with a head, one number per unit. Use "
                "sgd.simulate."
            ),
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
            "deep linear": None,
        },
        example={"steps": [1], "samples_per_dimension": 1.0},
        can_be_swept=True,
        methods=(Method("large_batch", "large batches", clocks=("steps",)),),
    ),
    Question(
        "solve_sde",
        "sgdynamics.solvers.sde:solve_sde",
        unsupported={
            "students": None,
            "workers": None,
            **OTHER_UPDATES,
            "fixed data": FRESH_SAMPLES,
            "snr = inf": discontinuous_drift(
                "so the SDE is not defined. Use sgd.solve_ode (d -> infinity), sgd.simulate "
                "(exact at any d), or a finite snr."
            ),
        },
        example={"times": [1.0], "dimension": 50},
        label_noise="fourth moment",
        can_be_swept=True,
        methods=(Method("sde", "SDE", run_keys=RUN_KEYS, is_random=True),),
    ),
    Question(
        "solve_mean_field",
        "sgdynamics.solvers.mean_field:solve_mean_field",
        unsupported={
            **PLAIN_ONE_PASS,
            **REGULARISERS,
            "mixture": _WIDE,
            "several inputs": _WIDE,
            "rule": _WIDE,
            "top": _WIDE,
            "spiked tensor": _WIDE,
            "own dynamics": _WIDE,
        },
        example={"times": [1.0]},
        can_be_swept=True,
        methods=(Method("mean_field", "mean field", times_per_width=True),),
    ),
    Question(
        "solve_dmft",
        "sgdynamics.solvers.dmft:solve_dmft",
        unsupported={
            **ON_DATA,
            "deep linear": None,
            "wide network": None,
            "diagonal": None,
            "update on data": None,
            "coordinatewise update on data": COORDINATES_ON_DATA,
        },
        example={"alpha": [6.0]},
        can_be_swept=True,
        methods=(Method("dmft", "DMFT", run_keys=("seed",), counts_steps=True),),
    ),
    Question(
        "solve_linear",
        "sgdynamics.solvers.linear:solve_linear",
        unsupported={
            **PLAIN_ONE_PASS,
            **REGULARISERS,
            "mixture": _LINEAR,
            "several inputs": _LINEAR,
            "rule": _LINEAR,
            "top": _LINEAR,
            "spiked tensor": _LINEAR,
            "own dynamics": _LINEAR,
        },
        example={"steps": [1], "dimension": 50},
        can_be_swept=True,
        methods=(
            Method(
                "linear",
                "exact means",
                run_keys=("dimension",),
                clocks=("steps",),
                records_start=False,
            ),
        ),
    ),
    Question(
        "simulate",
        "sgdynamics.solvers.simulate:simulate",
        unsupported={
            "other batch": INTEGER_BATCH,
            "deep linear": None,
            "diagonal": None,
            "students": None,
            "workers": None,
            "delayed update": None,
        },
        example={"steps": [1], "dimension": 50},
        label_noise="any",
        can_be_swept=True,
        methods=tuple(
            Method(
                name,
                f"{name} simulation",
                arguments={"method": name},
                run_keys=RUN_KEYS,
                is_random=True,
                counts_steps=True,
            )
            for name in ("exact", "direct", "tensor")
        ),
    ),
    Question(
        "functional",
        "sgdynamics.solvers.functional",
        unsupported={
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
            "students": None,
        },
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "increment_covariance",
        "sgdynamics.sde.covariance:increment_covariance",
        unsupported={
            **PLAIN_ONE_PASS,
            **REGULARISERS,
            "spiked tensor": NO_SPIKED_TENSOR,
            "own dynamics": NO_OWN_DYNAMICS,
        },
        label_noise="fourth moment",
    ),
    Question(
        "sweep",
        "sgdynamics.sweeps.sweeping:sweep",
        unsupported={
            "deep linear": None,
            "wide network": None,
            "diagonal": None,
            "static head": None,
            "delayed update": None,
            "workers": None,
        },
        example={"solver": "simulate", "steps": [1], "dimension": 50, "over": {"lr": [0.1]}},
        label_noise="any",
    ),
]
