"""SGD in small batches over several epochs of a fixed data set, on the clock of one-pass SGD.

At d -> infinity an epoch is divided into cells, and all visits of a cell use the weights at its
start. A cell is then a step of multi-pass SGD with the batch fraction 1/cells (`fixed_data`). This
module determines which samples it visits, and how often.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.cell_stability import LEVELS, CellStability, smallest_cells
from sgdynamics.algorithms.fixed_data import ALGORITHMS, HINTS, TRACED_FIELDS, FixedData
from sgdynamics.algorithms.updates.momentum import cell_velocity
from sgdynamics.algorithms.updates.sample_memory import require_no_rule
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.base.controls import Schedule, rescale_schedule
from sgdynamics.base.precision import float64

ORDERS = ("reshuffle", "replacement", "fixed")
FEWEST_CELLS = 16
# For a schedule, the largest rate on this many points of the first epochs sets the number of cells.
SAMPLED_EPOCHS, SAMPLED_RATES = 20, 401
# Default t of a cell: for isotropic inputs at lr < 1 the extrapolation leaves an error of about
# 1e-3.
CELL_TIME = 0.04
SIMULATE = "sgd.simulate, whose cost does not depend on cells"


@pytrees.register_parameters(*TRACED_FIELDS)
@checks.argument_hints(HINTS | {"batch_size": "Write batch=..."})
@dataclass(frozen=True)
class EpochSGD(FixedData):
    """SGD in small batches over several epochs of a fixed data set of n samples.

    ::

        W <- W - (lr/(batch d)) sum_batch dloss/dW,
        a <- a - (head_rate lr/(batch d)) sum_batch dloss/da,
        t = lr steps/d,     alpha = batch steps/d,     epochs = alpha/samples_per_dimension

    Parameters
    ----------
    lr : float or callable, default 0.1
        Learning rate of order 1, as in ``OnePassSGD``: a number or a function of alpha.
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d, which is alpha of one epoch.
    batch : int, default 1
        Number of samples per step. In the limit only lr/batch matters, if the batch is small
        compared with n.
    order : str, default "reshuffle"
        Order of the samples: "reshuffle", a new random order in every epoch; "fixed", the same
        order in every epoch; "replacement", independent draws from the n samples.
    head_rate : float or callable, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of t.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates``, in the units of ``OnePassSGD``, D = d. Defaults to plain
        steps.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    A batch that starts at the end of an epoch takes its remaining samples from the next one. In the
    first epoch of "reshuffle" and "fixed" no sample is repeated, and the law is that of one-pass
    SGD.

    Examples
    --------
    >>> algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    >>> algorithm.samples(500), algorithm.cells()
    (1000, 40)
    """

    lr: Any = 0.1  # see `FixedData.lr`
    batch: int = 1
    order: str = "reshuffle"
    head_rate: Any = field(default=1.0, kw_only=True)

    kind_on_data: ClassVar[str] = "epochs"
    rate_of: ClassVar[str] = "alpha"
    # Fraction of an epoch per step: batch/n or 1/cells, set by `in_steps`.
    share: ClassVar[float] = math.nan

    def __post_init__(self) -> None:
        super().__post_init__()
        require_no_rule(self.update, "EpochSGD")
        object.__setattr__(self, "batch", checks.integer("batch", self.batch, 1))
        object.__setattr__(self, "order", checks.choice("order", self.order, ORDERS))

    def in_steps(self, share: float) -> Self:
        """Return the algorithm with steps of this fraction of an epoch: batch/n, or 1/cells."""
        converted = copy(self)
        if not isinstance(self.lr, Schedule):
            lr = self.lr * self.samples_per_dimension * share / self.batch
            object.__setattr__(converted, "lr", lr)
        object.__setattr__(converted, "share", share)
        object.__setattr__(converted, "_stated", self)
        return converted

    def tabulate(self, count: int) -> np.ndarray:
        alpha = np.arange(count) * (self.samples_per_dimension * self.share)
        rates = rates_at(self.lr, alpha) * (self.samples_per_dimension * self.share / self.batch)
        return np.concatenate([[0.0], np.cumsum(rates)[:-1]])

    def samples(self, dimension: int) -> int:
        count = super().samples(dimension)
        if self.batch > count:
            raise checks.reject(
                "batch",
                self.batch,
                f"there are only {count} samples at dimension {dimension}. Use a smaller batch.",
            )
        return count

    @property
    def largest_rate(self) -> float:
        """Largest lr/batch; for a schedule, within the first 20 epochs."""
        if not isinstance(self.lr, Schedule):
            return self.lr / self.batch
        alpha = self.samples_per_dimension * np.linspace(0, SAMPLED_EPOCHS, SAMPLED_RATES)
        return float(np.max(rates_at(self.lr, alpha))) / self.batch

    def cells(self, given: int | None = None, stability: CellStability | None = None) -> int:
        """Number of cells that an epoch is divided into at d -> infinity.

        Half and a quarter of the cells are solved for too, so the number is a multiple of 4.

        Parameters
        ----------
        given : int, optional
            Lower bound on the number of cells. By default the number is the smallest for which t of
            a cell, lr samples_per_dimension/(batch cells), is at most 0.04 and the dynamics with a
            quarter of the cells is stable with a margin. It is at least 16. For a schedule, the
            largest lr of the first 20 epochs is used.
        stability : CellStability, optional
            Spectrum and curvature that determine the stability. By default only t of a cell counts.

        Returns
        -------
        int
            The number of cells.

        Raises
        ------
        ValueError
            If ``given`` is not a positive integer or too small for a stable solution, or if t of an
            epoch is too large.
        """
        if given is not None:
            count = LEVELS * math.ceil(checks.integer("cells", given, 1) / LEVELS)
            if stability is not None and not stability.allows_cells(count // LEVELS):
                needed = smallest_cells(
                    lambda cells: stability.allows_cells(cells // LEVELS), self.lr
                )
                raise checks.reject(
                    "cells",
                    given,
                    f"the error estimate also runs a quarter of the cells ({count // LEVELS} per "
                    "epoch), which is unstable at this lr and covariance. "
                    f"Use cells = {needed} or more, a smaller lr, or {SIMULATE}.",
                )
            return count
        least = self.largest_rate * self.samples_per_dimension / CELL_TIME
        if not least < checks.MAX_INT64:
            raise checks.reject(
                "lr",
                self.lr,
                f"t of one epoch is {CELL_TIME * least:.3g}. Use a smaller lr or smaller "
                "samples_per_dimension.",
            )
        count = max(FEWEST_CELLS, LEVELS * math.ceil(least / LEVELS - 1e-9))
        if stability is None:
            return count
        return smallest_cells(lambda cells: stability.has_margin(cells // LEVELS), self.lr, count)

    def in_limit(self) -> Self:
        """Return the algorithm whose cells have the limit d -> infinity of this one.

        A velocity with a fixed factor beta remembers O(1) steps, in which no sample is repeated: it
        is plain SGD at lr/(1 - beta). A velocity that averages over d/c steps is integrated over a
        cell (`with_cell_velocity`).
        """
        update, law = self.update, self.law
        if update is None or law is None:
            return self
        if law.memory == "fast" and law.equivalent_rate and "beta" in update.numbers:
            beta = update.numbers["beta"]
            if isinstance(beta, Schedule):
                fix = (
                    "epochs at d -> infinity need a constant factor. Use a number, or sgd.simulate"
                )
                raise checks.reject("beta", beta, fix)
            if isinstance(self.head_rate, Schedule):
                fix = "with momentum, epochs at d -> infinity need a constant rate of the head"
                raise checks.reject("head_rate", self.head_rate, fix)
            rate = 1 / (1 - beta)
            lr = rescale_schedule(self.lr, rate, 1.0) if self.scheduled else rate * self.lr
            return self.replace(lr=lr, update=None)
        if update.kind in ("momentum", "nesterov") and "memory" in update.numbers:
            return self
        fix = (
            "the limit of epochs is known for plain steps and for momentum and nesterov. Use one "
            "of them, or sgd.simulate"
        )
        raise checks.reject("update", update, fix)

    def with_cell_velocity(self) -> Self:
        """Return the algorithm with the velocity of its update integrated over a cell."""
        if self.update is None:
            return self
        span = self.share * self.samples_per_dimension / self.batch
        integrated = copy(self)
        velocity = cell_velocity(self.update.numbers["memory"], span)
        object.__setattr__(integrated, "update", velocity)
        return integrated

    @property
    def selects(self) -> bool:
        return True

    @property
    def fraction(self) -> float:
        return self.share

    @property
    def divisor(self) -> float:
        return self.share

    @property
    def parameters(self) -> dict[str, Any]:
        # A visit changes a sample's own fields by lr/batch, this many times the lr of a step.
        own = 1 / (self.share * self.samples_per_dimension)
        # With a velocity of its own, a visit does not move its own field at once.
        own = own if self.update is None else 0.0
        return super().parameters | {"own": pytrees.to_float64(own)}


ALGORITHMS[EpochSGD.__name__] = EpochSGD


@float64
def rates_at(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    """Return the learning rate at many values of alpha."""
    rates = np.asarray(jax.vmap(schedule)(jnp.asarray(alpha)), dtype=np.float64)
    return np.broadcast_to(rates, alpha.shape)


class Visits(NamedTuple):
    """Visits of the samples by the cells of a few epochs, for several data sets.

    Attributes
    ----------
    sequences : array, (sets, epochs, n)
        Position of each sample within an epoch; with replacement, the samples in sequence.
    first : int
        The first of these epochs.
    cells : int
        Number of cells per epoch.
    """

    sequences: Int[Numeric, "sets epochs n"]
    first: IntScalar
    cells: IntScalar

    def at(self, index: IntScalar, with_replacement: bool) -> Float[Numeric, "sets n"]:
        """Return how often a cell visits each sample."""
        count = self.sequences.shape[-1]
        sequence = jax.lax.dynamic_index_in_dim(
            self.sequences, index // self.cells - self.first, 1, keepdims=False
        )
        cell = index % self.cells
        position = jnp.arange(count) if with_replacement else sequence
        first, last = cell * count // self.cells, (cell + 1) * count // self.cells
        in_cell = ((position >= first) & (position < last)).astype(jnp.float64)
        if not with_replacement:
            return in_cell
        return jax.vmap(lambda samples: jnp.zeros(count).at[samples].add(in_cell))(sequence)


def sequences(order: str, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draw the sequence of one epoch of one data set, for `Visits`."""
    if order == "replacement":
        return generator.integers(count, size=count)
    return generator.permutation(count)
