"""How finely to integrate, and what the theory takes from one sample's gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp


@dataclass(frozen=True)
class Rule:
    """How finely to integrate: terms of the Mehler series, Sobol points or circles (powers of two) and replicates."""

    terms: int = 64
    log2_points: int = 12
    log2_circles: int = 8
    replicates: int = 4
    mixture: Any = None  # a rule of gaussian.mixtures, where that is how


class Moments(NamedTuple):
    """H (p x fields), C (p x p), E[h h^T (|x_b|^2 - eigenvalue_b d_b)] (blocks x p x p; None at infinite d), E[dloss/da], E[loss], and for
    mixtures `shift` (p x signals): E[h_i x] has the part sum_r shift_ir w*_r of the clusters' means."""

    stein: Any
    noise: Any
    norms: Any
    head_gradient: Any
    risk: Any
    shift: Any = None

    def coefficients(self, parameters: Any) -> Any:
        """E[h_i x] in block b on the rows and signals, (blocks, p, fields)."""
        found = parameters["eigenvalues"][:, None, None] * self.stein
        if self.shift is None:
            return found
        rest = jnp.zeros((self.shift.shape[0], self.stein.shape[1] - self.shift.shape[1]), self.shift.dtype)
        return found + jnp.concatenate([rest, self.shift], axis=1)
