"""Where an update's own sets of rows, scalars and squares start.

At rest, or where a result ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdynamics.algorithms.updates.update import Law, Update


class UpdateStart(NamedTuple):
    """A start of all sets: overlaps M (runs, blocks, rows, K), Q and heads a of their rows, scalars (runs, n), squares (runs, n, p)."""

    M: np.ndarray
    Q: np.ndarray
    a: np.ndarray
    scalars: np.ndarray
    squares: np.ndarray


def update_start(update: Update | None, begin: Any) -> UpdateStart:
    """What a run of this update starts from; rows beyond those of the result are 0, and are left out where all others are.

    What a result recorded of the same sets goes on; with other sets the update starts at rest.
    """
    M, Q, a, runs = begin.M_blocks, begin.Q_blocks, begin.a, begin.runs
    law = None if update is None else update.law
    if update is None or law is None:
        return UpdateStart(M, Q, a, np.zeros((runs, 0)), np.zeros((runs, 0, a.shape[1])))
    numbers, beside = update.parameters, begin.beside
    if beside is not None and _goes_on(law, beside.names):
        return _again(law, beside, a.shape[1])
    first = {name: np.asarray(numbers[number]) for name, number in law.first}
    scalars, squares = (
        np.zeros((runs, len(law.scalars))),
        np.zeros((runs, len(law.squares), a.shape[1])),
    )
    for names, values in ((law.scalars, scalars), (law.squares, squares)):
        for place, name in enumerate(names):
            values[:, place] = first.get(name, 0.0)
    if law.begins_as_weights:
        same = np.array([1.0, *(float(name in law.begins_as_weights) for name in law.rows)])
        M = np.concatenate([one * M for one in same], axis=2)
        Q = np.concatenate(
            [np.concatenate([one * other * Q for other in same], axis=3) for one in same], axis=2
        )
        a = np.concatenate([one * a for one in same], axis=1)
    return UpdateStart(M, Q, a, scalars, squares)


def _goes_on(law: Law, names: tuple[tuple[str, ...], ...]) -> bool:
    """Whether what was kept is what this law keeps.

    A set of rows that is forgotten in O(1) steps may be missing.
    """
    rows, scalars, squares = names
    needed = law.begins_as_weights if law.memory == "fast" else law.rows
    return (
        scalars == law.scalars
        and squares == law.squares
        and set(needed) <= set(rows) <= set(law.rows)
    )


def _again(law: Law, beside: Any, p: int) -> UpdateStart:
    """What was kept, in the order of the law, sets that are missing at 0."""
    order = ["weights", *beside.names[0]]
    places = [order.index(name) if name in order else None for name in ("weights", *law.rows)]
    index = np.concatenate([np.arange(p) + (0 if place is None else place) * p for place in places])
    there = np.repeat([place is not None for place in places], p).astype(float)
    Q = beside.Q[:, :, index][..., index] * there[:, None] * there
    return UpdateStart(
        beside.M[:, :, index] * there[:, None],
        Q,
        beside.a[:, index] * there,
        beside.scalars,
        beside.squares,
    )
