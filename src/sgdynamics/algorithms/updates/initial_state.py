"""The initial state of an update: zeros, the weights, or the state at the end of a result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgdynamics.algorithms.updates.law import Law
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.problems.overlap_starts import AuxiliaryState, Start


class UpdateStart(NamedTuple):
    """The initial state of several runs: overlaps of all sets of rows, scalars and squares.

    Attributes
    ----------
    M : ndarray, (runs, blocks, rows, K)
        Overlaps of the rows of all sets, the weights first, with the signals.
    Q : ndarray, (runs, blocks, rows, rows)
        Gram matrices of these rows.
    a : ndarray, (runs, rows)
        Heads of these rows.
    scalars : ndarray, (runs, scalars)
        Scalars of the update.
    squares : ndarray, (runs, squares, p)
        Averages of squares.
    vectors : ndarray, (runs, vectors, entries)
        Vectors over the entries of a trained head; fast ones at 0.
    """

    M: np.ndarray
    Q: np.ndarray
    a: np.ndarray
    scalars: np.ndarray
    squares: np.ndarray
    vectors: np.ndarray


def update_start(update: Update | None, start: Start, trained: bool = False) -> UpdateStart:
    """Return the initial state of an update for an initial condition of the weights.

    If the start is the end of a result of the same update, the update continues with the sets of
    rows, scalars and squares that the result recorded. Otherwise they take the initial values of
    the law: a set of rows starts at the weights or at 0. Sets at 0 are omitted if all are at 0.
    `trained` is whether the head is trained.
    """
    M, Q, a, runs = start.M_blocks, start.Q_blocks, start.a, start.runs
    law = None if update is None else update.law
    if update is None or law is None:
        empty = np.zeros((runs, 0, a.shape[1]))
        return UpdateStart(M, Q, a, np.zeros((runs, 0)), np.zeros((runs, 0, Q.shape[-1])), empty)
    auxiliary = start.beside
    if auxiliary is not None and _can_continue(law, auxiliary, trained):
        return _continue_from(law, auxiliary, Q.shape[-1], a.shape[1], trained)
    hyperparameters = update.parameters
    initial_values = {
        name: np.asarray(hyperparameters[argument]) for name, argument in law.initial_values
    }
    scalars = np.zeros((runs, len(law.scalars)))
    squares = np.zeros((runs, len(law.squares), Q.shape[-1]))
    vectors = np.zeros((runs, len(law.vector_names(trained)), a.shape[1]))
    named = (
        (law.scalars, scalars),
        (law.squares, squares),
        (law.vector_names(trained), vectors),
    )
    for names, array in named:
        for index, name in enumerate(names):
            array[:, index] = initial_values.get(name, 0.0)
    if law.start_at_weights:
        # Sets equal to the weights (1) or to zero (0): the overlaps of all are products of these.
        copies = [1.0, *(float(name in law.start_at_weights) for name in law.rows)]
        M = np.concatenate([copy * M for copy in copies], axis=2)
        Q = np.concatenate(
            [np.concatenate([copy * other * Q for other in copies], axis=3) for copy in copies],
            axis=2,
        )
        a = np.concatenate([copy * a for copy in copies], axis=1)
    return UpdateStart(M, Q, a, scalars, squares, vectors)


def _can_continue(law: Law, auxiliary: AuxiliaryState, trained: bool) -> bool:
    """Whether the recorded sets of rows, scalars, squares and vectors are those of a law.

    A set of rows or a vector that is forgotten in O(1) steps may be missing.
    """
    rows, scalars, squares = auxiliary.names
    vectors = set(auxiliary.vector_names)
    if not set(law.slow_vector_names(trained)) <= vectors <= set(law.vector_names(trained)):
        return False
    needed = law.start_at_weights if law.memory == "fast" else law.rows
    return (
        scalars == law.scalars
        and squares == law.squares
        and set(needed) <= set(rows) <= set(law.rows)
    )


def _continue_from(
    law: Law, auxiliary: AuxiliaryState, p: int, entries: int, trained: bool
) -> UpdateStart:
    """Return a recorded state in the order of the law; missing sets of rows are 0."""
    order = ["weights", *auxiliary.names[0]]
    names = ("weights", *law.rows)
    # Missing sets are gathered from the weights and multiplied by 0.
    offsets = [order.index(name) * p if name in order else 0 for name in names]
    index = np.concatenate([np.arange(p) + offset for offset in offsets])
    is_recorded = np.repeat([float(name in order) for name in names], p)
    heads = [
        auxiliary.a[:, order.index(name) * entries : (order.index(name) + 1) * entries]
        if name in order
        else np.zeros((len(auxiliary.a), entries))
        for name in names
    ]
    vectors = np.zeros((len(auxiliary.a), len(law.vector_names(trained)), entries))
    for index_of_vector, name in enumerate(law.vector_names(trained)):
        if name in auxiliary.vector_names:
            assert auxiliary.vectors is not None
            recorded = auxiliary.vector_names.index(name)
            vectors[:, index_of_vector] = auxiliary.vectors[:, recorded]
    Q = auxiliary.Q[:, :, index][..., index] * is_recorded[:, None] * is_recorded
    return UpdateStart(
        auxiliary.M[:, :, index] * is_recorded[:, None],
        Q,
        np.concatenate(heads, axis=1),
        auxiliary.scalars,
        auxiliary.squares,
        vectors,
    )
