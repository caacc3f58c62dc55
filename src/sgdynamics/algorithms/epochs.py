"""SGD that goes through a fixed data set epoch after epoch, a batch of a few samples a step, on the clock of one-pass SGD.

At d -> infinity the steps are gone, and an epoch is cut into cells: all visits of a cell use the weights at its start. A step of a cell is
then that of multi-pass SGD with the batch fraction 1/cells (`fixed_data`); which samples it visits, and how often, is said here.
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
from sgdynamics.algorithms.fixed_data import ALGORITHMS, HINTS, NUMBERS, FixedData
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import IntScalar, Numeric
from sgdynamics.base.controls import Schedule
from sgdynamics.base.precision import float64

ORDERS = ("reshuffle", "replacement", "fixed")
FEWEST_CELLS = 16
EPOCHS_SEEN, RATES_SEEN = (
    20,
    401,
)  # of a learning rate that is a function: its largest value here sets the number of cells
FINEST = (
    0.04  # default t of a cell: for isotropic inputs at lr < 1 the extrapolation leaves about 1e-3
)
SIMULATE = "sgd.simulate, whose cost does not depend on cells"


@pytrees.register_parameters(*NUMBERS)
@checks.argument_hints(HINTS | {"batch_size": "Write batch=..."})
@dataclass(frozen=True)
class EpochSGD(FixedData):
    """SGD with small batches on a fixed data set of n samples, which is used again and again: epochs of n/batch steps.

    ::

        W <- W - (lr/(batch d)) sum_batch dloss/dW,     a <- a - (head_rate lr/(batch d)) sum_batch dloss/da,
        t = lr steps/d,     alpha = batch steps/d,     epochs = alpha/samples_per_dimension

    Parameters
    ----------
    lr : float or callable, default 0.1
        The learning rate, of order 1, as of ``OnePassSGD``: a number, or a function of alpha.
    samples_per_dimension : float, default 3.0
        The size n of the data set over the dimension d: alpha of one epoch.
    batch : int, default 1
        Samples in a step. As d grows only lr/batch matters, for any batch that stays small beside n.
    order : str, default "reshuffle"
        "reshuffle": every epoch in an order of its own; "fixed": every epoch in the same one; "replacement": each sample of a step is any
        of the n.
    head_rate : float or callable, default 1.0
        The rate of a trained head relative to ``lr``; it may be a function of t.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Notes
    -----
    Batches follow each other without a gap: one that is begun at the end of an epoch takes its last samples from the next. In the first
    epoch of "reshuffle" and "fixed" no sample is seen twice, and all is as in one pass.

    Examples
    --------
    >>> algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
    >>> algorithm.samples(500), algorithm.cells()
    (1000, 40)
    """

    lr: Any = 0.1
    batch: int = 1
    order: str = "reshuffle"
    head_rate: Any = field(default=1.0, kw_only=True)

    kinds: ClassVar[tuple[str, ...]] = ("epochs",)
    rate_of: ClassVar[str] = "alpha"
    share: ClassVar[float] = (
        math.nan
    )  # of an epoch that a step takes: known once d or the number of cells is

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "batch", checks.integer("batch", self.batch, 1))
        object.__setattr__(self, "order", checks.choice("order", self.order, ORDERS))

    def in_steps(self, share: float) -> Self:
        """The same as an algorithm on a fixed data set whose step takes this share of an epoch: batch/n, or 1/cells at d -> infinity."""
        found = copy(self)
        if not isinstance(self.lr, Schedule):
            object.__setattr__(
                found, "lr", self.lr * self.samples_per_dimension * share / self.batch
            )
        object.__setattr__(found, "share", share)
        object.__setattr__(found, "_stated", self)
        return found

    def tabled(self, count: int) -> np.ndarray:
        alpha = np.arange(count) * (self.samples_per_dimension * self.share)
        rates = rates_at(self.lr, alpha) * (self.samples_per_dimension * self.share / self.batch)
        return np.concatenate([[0.0], np.cumsum(rates)[:-1]])

    def samples(self, dimension: int) -> int:
        count = super().samples(dimension)
        if self.batch > count:
            raise checks.reject(
                "batch",
                self.batch,
                f"at dimension {dimension} there are {count} samples: take at most as many",
            )
        return count

    @property
    def largest_rate(self) -> float:
        """The largest lr/batch; of a schedule, that of the first 20 epochs."""
        if not isinstance(self.lr, Schedule):
            return self.lr / self.batch
        alpha = self.samples_per_dimension * np.linspace(0, EPOCHS_SEEN, RATES_SEEN)
        return float(np.max(rates_at(self.lr, alpha))) / self.batch

    def cells(self, given: Any = None, stability: CellStability | None = None) -> int:
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
            if stability is not None and not stability.is_stable(count // LEVELS):
                needed = smallest_cells(lambda cells: stability.is_stable(cells // LEVELS))
                raise checks.reject(
                    "cells",
                    given,
                    f"the dynamics with a quarter of the cells ({count // LEVELS} per epoch) is unstable at this "
                    f"learning rate and covariance. Use cells = {needed} or more, a smaller lr, or {SIMULATE}.",
                )
            return count
        least = self.largest_rate * self.samples_per_dimension / FINEST
        if not least < checks.MAX_INT64:
            raise checks.reject(
                "lr",
                self.lr,
                f"t of one epoch is {FINEST * least:.3g}. Use a smaller lr or smaller samples_per_dimension.",
            )
        count = max(FEWEST_CELLS, LEVELS * math.ceil(least / LEVELS - 1e-9))
        if stability is None:
            return count
        return smallest_cells(lambda cells: stability.has_margin(cells // LEVELS), count)

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
        # a visit moves a sample's own fields by lr/batch, which is this many times the lr of a step
        return super().parameters | {
            "own": pytrees.to_float64(1 / (self.share * self.samples_per_dimension))
        }


ALGORITHMS[EpochSGD.__name__] = EpochSGD


@float64
def rates_at(schedule: Schedule, alpha: np.ndarray) -> np.ndarray:
    """A learning rate at many values of alpha."""
    return np.broadcast_to(
        np.asarray(jax.vmap(schedule)(jnp.asarray(alpha)), dtype=np.float64), alpha.shape
    )


class Visits(NamedTuple):
    """Which samples the cells of a few epochs visit, of several sets of samples.

    Orders that visit each sample once an epoch have its place there, drawing with replacement has the samples one after the other.
    """

    sequences: Int[Numeric, "sets epochs n"]
    first: IntScalar  # the first of these epochs
    cells: IntScalar  # of an epoch

    def at(self, number: IntScalar, again: bool) -> Float[Numeric, "sets n"]:
        """How often a cell visits each sample; `again`: drawn with replacement."""
        count = self.sequences.shape[-1]
        found = jax.lax.dynamic_index_in_dim(
            self.sequences, number // self.cells - self.first, 1, keepdims=False
        )
        cell = number % self.cells
        place = jnp.arange(count) if again else found
        now = (
            (place >= cell * count // self.cells) & (place < (cell + 1) * count // self.cells)
        ).astype(jnp.float64)
        if not again:
            return now
        return jax.vmap(lambda one: jnp.zeros(count).at[one].add(now))(found)


def sequences(order: str, count: int, generator: Any) -> np.ndarray:
    """What `Visits` has of one epoch of one set."""
    return (
        generator.integers(count, size=count)
        if order == "replacement"
        else generator.permutation(count)
    )
