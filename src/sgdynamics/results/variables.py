"""The table of the variables of results: their meaning, axes and labels."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, NamedTuple


class Variable(NamedTuple):
    """A variable of results.

    Attributes
    ----------
    meaning : str
        Long name of the variable.
    axes : tuple of str
        Axes after run and time.
    label : str
        Label of an axis of a plot.
    is_compared : bool
        Whether theory and simulation are compared in this variable.
    error : str
        Variable whose standard error is that of this one; empty for its own.
    """

    meaning: str
    axes: tuple[str, ...] = ()
    label: str = ""
    is_compared: bool = True
    error: str = ""


VARIABLES: dict[str, Variable] = {
    "risk": Variable("population risk", (), "risk"),
    "excess_risk": Variable("excess risk", (), "excess risk", error="risk"),
    "train_risk": Variable("mean loss over the data set", (), "training risk"),
    "accuracy": Variable("share classified right", (), "share classified right"),
    "evaluated_risk": Variable("population risk of other problems", ("evaluation",), "risk"),
    "context_risk": Variable("population risk of each context", ("context",), "risk"),
    "M": Variable(
        "overlaps with the signals, W W*^T", ("unit", "signal"), "overlaps with the signals $M$"
    ),
    "Q": Variable(
        "Gram matrix of the rows, W W^T", ("unit", "unit_other"), "overlaps of the rows $Q$"
    ),
    "q": Variable(
        "squared length orthogonal to the signals",
        ("unit",),
        "squared length orthogonal to the signals $q$",
    ),
    "a": Variable("head", ("unit",), "head $a$"),
    "m": Variable("overlap with the signal, <x, v>", (), "overlap with the signal $m$"),
    "r2": Variable(
        "squared length orthogonal to the signal, |x|^2 - m^2",
        (),
        "squared length orthogonal to the signal $r^2$",
    ),
    "overlap": Variable("overlap v.w* with the teacher", (), "overlap with the teacher"),
    "squared_norm": Variable("squared norm |v|^2 of the predictor", (), "squared norm"),
    "layer_change": Variable(
        "Frobenius norm of what a layer has learned", ("layer",), "change of the layers"
    ),
    "outputs": Variable("outputs f of the training inputs", ("sample",), "outputs $f$"),
    "test_outputs": Variable("outputs f of the test inputs", ("test_sample",), "test outputs $f$"),
    "test_risk": Variable("mean loss over the test inputs", (), "test risk"),
    "feature_kernel": Variable(
        "mean product of the features of two training inputs",
        ("layer", "sample", "sample_other"),
        "feature kernel",
    ),
    "gradient_kernel": Variable(
        "mean product of the gradients g of two training inputs",
        ("layer", "sample", "sample_other"),
        "gradient kernel",
    ),
    "tangent_kernel": Variable(
        "tangent kernel of two training inputs", ("sample", "sample_other"), "tangent kernel"
    ),
    "test_kernel": Variable(
        "mean product of the features of a test and a training input",
        ("layer", "test_sample", "sample"),
        "test feature kernel",
    ),
    "l1_norm": Variable("mean absolute weight E|a|", (), "mean absolute weight"),
    "imbalance": Variable("mean imbalance |u^2 - v^2| of the layers", (), "imbalance $c$"),
    "weight_mean": Variable(
        "mean predictor weight by teacher weight", ("teacher_weight",), "mean weight"
    ),
    "weight_square": Variable(
        "mean squared predictor weight by teacher weight",
        ("teacher_weight",),
        "mean squared weight",
    ),
    "M_block": Variable("overlaps, block by block", ("block", "unit", "signal"), is_compared=False),
    "Q_block": Variable(
        "Gram matrix, block by block", ("block", "unit", "unit_other"), is_compared=False
    ),
    "M_fields": Variable(
        "covariance of fields and signals, sum_b l_b M_b",
        ("unit", "signal"),
        "covariance with the signals",
    ),
    "Q_fields": Variable(
        "covariance of the fields, sum_b l_b Q_b",
        ("unit", "unit_other"),
        "covariance of the fields",
    ),
    "rows_M": Variable(
        "overlaps of all sets of rows with the signals", ("set_row", "signal"), is_compared=False
    ),
    "rows_Q": Variable(
        "Gram matrix of all sets of rows", ("set_row", "set_row_other"), is_compared=False
    ),
    "rows_a": Variable("heads of all sets of rows", ("set_row",), is_compared=False),
    "rows_M_block": Variable(
        "overlaps of all sets, block by block", ("block", "set_row", "signal"), is_compared=False
    ),
    "rows_Q_block": Variable(
        "Gram matrix of all sets, block by block",
        ("block", "set_row", "set_row_other"),
        is_compared=False,
    ),
    "update_scalars": Variable(
        "numbers that the update keeps", ("update_scalar",), "numbers of the update"
    ),
    "update_squares": Variable(
        "mean squares that the update keeps",
        ("update_square", "unit"),
        "mean squares of the update",
    ),
    "update_vectors": Variable(
        "vectors that the update keeps, with one entry per number of the head or top",
        ("update_vector", "head_entry"),
        "vectors of the update",
        is_compared=False,
    ),
    "C": Variable(
        "two-time correlation W(t) W(t')^T", ("time_other", "unit", "unit_other"), is_compared=False
    ),
    "R": Variable(
        "response of W(t) to a kick of W(t')",
        ("time_other", "unit", "unit_other"),
        is_compared=False,
    ),
}
TIMES = ("t", "alpha", "step")
AXES = (
    "run",
    "time",
    *dict.fromkeys(axis for variable in VARIABLES.values() for axis in variable.axes),
)
# Names of a result that recorded functions must not have.
TAKEN = frozenset(
    (
        *AXES,
        *VARIABLES,
        *TIMES,
        "t_sgd",
        "epoch",
        "eigenvalue",
        "row_set",
        "diverged_at",
        "ran_out_at",
        "stopped_at",
    )
)
TOP_PREFIX = "top."  # the name of a leaf of a top starts with this
STANDARD_ERROR = "_standard_error"  # what the name of a variable's standard error ends with


def leaf_variable(name: str, axes: tuple[str, ...]) -> Variable:
    """The entry of one leaf of a top, with these axes."""
    return Variable(f"{name}, on top of the rows", axes, f"${name}$")


def shared_variables(first: Iterable[Any], second: Container[Any]) -> list[str]:
    """The names of the variables in which two results are compared.

    Those of the table come first, then functions that were recorded.
    """
    shared = [str(name) for name in first if name in second]
    standard = [
        name for name, variable in VARIABLES.items() if name in shared and variable.is_compared
    ]
    recorded = [
        name for name in shared if name not in VARIABLES and not name.endswith(STANDARD_ERROR)
    ]
    return standard + recorded
