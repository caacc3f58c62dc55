"""Constraints on the trained rows: `NONE`, and `SPHERE`, which keeps every row at norm 1.

A constraint answers four questions about a step: where rows land after it, which increment keeps
them on the allowed set, and what it does to the rates of overlaps or of mean-field particles.
Every formula for the sphere follows from w -> w/|w|, that is, to first order in the increment dw,

    dw_i -> dw_i - w_i (w_i.dw_i + |dw_i|^2/2)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric

Axes = int | tuple[int, ...]


class Constraint(ABC):
    """The set of rows that training may reach, and how a step returns to it."""

    fixes_norms: ClassVar[bool]
    """Whether all rows have norm 1, so that their norms are no degrees of freedom."""

    @abstractmethod
    def divide_by_norms(self, values: Numeric, rows: Numeric, axes: Axes = -1) -> Numeric:
        """Scale quantities linear in the rows (over `axes`) as the projection scales the rows."""

    def project_rows(self, rows: Numeric, axes: Axes = -1) -> Numeric:
        """Return the allowed rows closest to `rows`, whose coordinates run over `axes`."""
        return self.divide_by_norms(rows, rows, axes)

    @abstractmethod
    def project_increment(
        self, rows: Float[Numeric, "p columns"], increment: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        """Return the increment from allowed rows to the projection of `rows + increment`."""

    @abstractmethod
    def project_overlap_rates(
        self, M: Numeric, Q: Numeric, dM: Numeric, dQ: Numeric
    ) -> tuple[Numeric, Numeric]:
        """Return the rates of M (..., blocks, p, K) and Q (..., blocks, p, p) of projected rows.

        `dM` and `dQ` are the rates of the free rows and may have more leading axes than M and Q.
        """

    @abstractmethod
    def project_particle_rates(
        self,
        T: Float[Numeric, "p K"],
        q: Float[Numeric, " p"],
        dT: Float[Numeric, "p K"],
        dq: Float[Numeric, " p"],
    ) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"]]:
        """Return the rates of mean-field particles T = M P^(-1/2) and q = |w|^2 - |T|^2."""

    @abstractmethod
    def norm_error(self, squared_norms: np.ndarray) -> float:
        """Return the largest distance of the squared norms of rows from an allowed value."""


@dataclass(frozen=True)
class FreeRows(Constraint):
    """Rows of any norm."""

    fixes_norms: ClassVar[bool] = False

    def divide_by_norms(self, values: Numeric, rows: Numeric, axes: Axes = -1) -> Numeric:
        return values

    def project_increment(
        self, rows: Float[Numeric, "p columns"], increment: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        return increment

    def project_overlap_rates(
        self, M: Numeric, Q: Numeric, dM: Numeric, dQ: Numeric
    ) -> tuple[Numeric, Numeric]:
        return dM, dQ

    def project_particle_rates(
        self,
        T: Float[Numeric, "p K"],
        q: Float[Numeric, " p"],
        dT: Float[Numeric, "p K"],
        dq: Float[Numeric, " p"],
    ) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"]]:
        return dT, dq

    def norm_error(self, squared_norms: np.ndarray) -> float:
        return 0.0


@dataclass(frozen=True)
class UnitSphere(Constraint):
    """Rows of norm 1: every row is divided by its norm after each step."""

    fixes_norms: ClassVar[bool] = True

    def divide_by_norms(self, values: Numeric, rows: Numeric, axes: Axes = -1) -> Numeric:
        array_module = _array_module(rows)
        return values / array_module.sqrt(array_module.sum(rows**2, axis=axes, keepdims=True))

    def project_increment(
        self, rows: Float[Numeric, "p columns"], increment: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        # (w + dw)/|w + dw| - w with |w + dw|^2 = 1 + growth, written without a difference of
        # nearly equal vectors: 1/norm - 1 = -growth / (norm (1 + norm))
        growth = jnp.sum(increment * (2 * rows + increment), axis=-1, keepdims=True)
        norm = jnp.sqrt(1 + growth)
        return (increment - rows * growth / (1 + norm)) / norm

    def project_overlap_rates(
        self, M: Numeric, Q: Numeric, dM: Numeric, dQ: Numeric
    ) -> tuple[Numeric, Numeric]:
        # dM_i -= M_i dQ_ii/2 and dQ_ij -= Q_ij (dQ_ii + dQ_jj)/2, with Q_ii summed over blocks
        array_module = _array_module(dQ)
        growth = array_module.einsum("...bii->...i", dQ)[..., None, :]
        dM = dM - M * growth[..., :, None] / 2
        return dM, dQ - Q * (growth[..., :, None] + growth[..., None, :]) / 2

    def project_particle_rates(
        self,
        T: Float[Numeric, "p K"],
        q: Float[Numeric, " p"],
        dT: Float[Numeric, "p K"],
        dq: Float[Numeric, " p"],
    ) -> tuple[Float[Numeric, "p K"], Float[Numeric, " p"]]:
        growth = jnp.sum(T * dT, axis=-1) + dq / 2  # half the rate of |T|^2 + q
        return dT - T * growth[:, None], dq - 2 * q * growth

    def norm_error(self, squared_norms: np.ndarray) -> float:
        return float(np.abs(squared_norms - 1.0).max())


NONE = FreeRows()
SPHERE = UnitSphere()
CONSTRAINTS: dict[str | None, Constraint] = {None: NONE, "sphere": SPHERE}
"""Constraints by the value of the argument `constraint` of a problem."""


def _array_module(array: Numeric) -> ModuleType:
    return np if isinstance(array, np.ndarray) else jnp
