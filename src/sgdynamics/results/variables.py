"""What the variables of results are: one table, read wherever one of them is named."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, NamedTuple


class Variable(NamedTuple):
    """What a variable is, its axes after run and time, what an axis of a plot calls it, and whether theory and runs are compared in it."""

    meaning: str
    axes: tuple[str, ...] = ()
    label: str = ""
    compared: bool = True
    error: str = ""  # the variable whose standard error it has, where that is another's


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
    "M_block": Variable("overlaps, block by block", ("block", "unit", "signal"), compared=False),
    "Q_block": Variable(
        "Gram matrix, block by block", ("block", "unit", "unit_other"), compared=False
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
        "overlaps of all sets of rows with the signals", ("set_row", "signal"), compared=False
    ),
    "rows_Q": Variable(
        "Gram matrix of all sets of rows", ("set_row", "set_row_other"), compared=False
    ),
    "rows_a": Variable("heads of all sets of rows", ("set_row",), compared=False),
    "rows_M_block": Variable(
        "overlaps of all sets, block by block", ("block", "set_row", "signal"), compared=False
    ),
    "rows_Q_block": Variable(
        "Gram matrix of all sets, block by block",
        ("block", "set_row", "set_row_other"),
        compared=False,
    ),
    "update_scalars": Variable(
        "numbers that the update keeps", ("update_scalar",), "numbers of the update"
    ),
    "update_squares": Variable(
        "mean squares that the update keeps",
        ("update_square", "unit"),
        "mean squares of the update",
    ),
    "C": Variable(
        "two-time correlation W(t) W(t')^T", ("time_other", "unit", "unit_other"), compared=False
    ),
    "R": Variable(
        "response of W(t) to a kick of W(t')", ("time_other", "unit", "unit_other"), compared=False
    ),
}
TIMES = ("t", "alpha", "step")
AXES = ("run", "time", *dict.fromkeys(axis for one in VARIABLES.values() for axis in one.axes))
# names of a result that nothing else may have
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
STANDARD_ERROR = "_standard_error"  # what the name of a variable's standard error ends with


def compared(one: Iterable[Any], other: Container[Any]) -> list[str]:
    """The variables of two results that are compared, by name: those of the table first, then what was recorded."""
    both = [str(name) for name in one if name in other]
    known = [name for name, one in VARIABLES.items() if name in both and one.compared]
    own = [name for name in both if name not in VARIABLES and not name.endswith(STANDARD_ERROR)]
    return known + own
