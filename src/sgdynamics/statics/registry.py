"""Registry entries of the statics: plain data, read without importing JAX."""

from __future__ import annotations

from sgdynamics.base.registry import Question
from sgdynamics.base.support import NO_OWN_DYNAMICS, NO_SPIKED_TENSOR

_ONE_INPUT = (
    "a linear predictor reads one input per sample, and labels given its signals. Use "
    "sgd.TeacherStudent, sgd.MultiIndex or sgd.GaussianMixture."
)
_ONE_PROBLEM = (
    "dropout, input noise and contexts concern training, not the data set. Use a problem without "
    "them."
)
NO_LINEAR_PREDICTOR = {
    "several inputs": _ONE_INPUT,
    "rule": _ONE_INPUT,
    "snr = inf": "the inputs have no variance about the cluster means. Use a finite snr.",
    **dict.fromkeys(("dropout", "contexts", "other inputs"), _ONE_PROBLEM),
    "spiked tensor": NO_SPIKED_TENSOR,
    "own dynamics": NO_OWN_DYNAMICS,
}

_ONE_LABEL = (
    "the law of the labels given the signals of one input is needed. Use sgd.TeacherStudent, "
    'sgd.MultiIndex, sgd.GaussianMixture("binary") or sgd.Problem(..., likelihood=...).'
)
# Dropout concerns the student alone, which does not enter.
NO_LABEL_LAW = {
    **{kind: reason for kind, reason in NO_LINEAR_PREDICTOR.items() if kind != "dropout"},
    **dict.fromkeys(("several inputs", "rule"), _ONE_LABEL),
}

ENTRIES = [
    Question(
        "bayes_optimal",
        "sgdynamics.statics.bayes:bayes_optimal",
        unsupported=NO_LABEL_LAW,
        example={"samples_per_dimension": 2.0},
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "weak_recovery",
        "sgdynamics.statics.weak_recovery:weak_recovery",
        unsupported=NO_LABEL_LAW,
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "erm",
        "sgdynamics.statics.erm:erm",
        unsupported=NO_LINEAR_PREDICTOR,
        example={"samples_per_dimension": 2.0, "weight_decay": 0.1, "loss": "squared"},
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "max_margin",
        "sgdynamics.statics.erm:max_margin",
        unsupported=NO_LINEAR_PREDICTOR,
        example={"samples_per_dimension": 2.0},
        takes_algorithm=False,
        label_noise="any",
    ),
    Question(
        "samples_needed",
        "sgdynamics.statics.samples_needed:samples_needed",
        unsupported=NO_LINEAR_PREDICTOR,
        example={"risk": 0.1, "by": ["erm"]},
        takes_algorithm=False,
        label_noise="any",
    ),
]
