"""`Tokens`: the number of inputs of one sample, and their correlation.

Algorithms see the inputs of a batch as the rows of one matrix, ordered by sample and within a
sample by token. Only the loss and the correlation of the tokens know which rows belong to the same
sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric, Parameters


@dataclass(frozen=True)
class Tokens:
    """The axis of the tokens of a sample.

    Parameters
    ----------
    count : int or None
        Number L of inputs per sample. None stands for one input and arrays without a token axis.
    correlated : bool
        Whether the tokens have the correlation matrix C = ``parameters["token_correlation"]``.
        Otherwise they are independent.
    """

    count: int | None = None
    correlated: bool = False

    @property
    def inputs_per_sample(self) -> int:
        """Number of inputs per sample."""
        return self.count or 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the token axis: (tokens,), or () for samples of a single input."""
        return () if self.count is None else (self.count,)

    def correlate(
        self, parameters: Parameters, values: Float[Numeric, "*s"], axis: int
    ) -> Float[Numeric, "*s"]:
        """Multiply by the symmetric root C^(1/2) along the token axis."""
        if not self.correlated:
            return values
        root = parameters["token_root"].astype(values.dtype)
        return jnp.moveaxis(
            jnp.tensordot(root, values, axes=(1, axis), precision="highest"), 0, axis
        )

    def correlate_inputs(
        self, parameters: Parameters, values: Float[Numeric, "*s inputs"]
    ) -> Float[Numeric, "*s inputs"]:
        """Multiply by C^(1/2) along the last axis, which holds the inputs of all samples."""
        if not self.correlated:
            return values
        # The number of samples is explicit because reshape cannot infer an axis of empty arrays.
        samples = values.shape[-1] // self.inputs_per_sample
        by_token = values.reshape(*values.shape[:-1], samples, self.inputs_per_sample)
        return self.correlate(parameters, by_token, -1).reshape(values.shape)

    def group_by_sample(self, rows: Float[Numeric, "inputs p"]) -> Float[Numeric, "samples p ..."]:
        """Regroup rows per input as the loss sees them: (samples, p) or (samples, p, tokens)."""
        if self.count is None:
            return rows
        samples = rows.shape[0] // self.count
        return rows.reshape(samples, self.count, rows.shape[-1]).swapaxes(1, 2)

    def flatten_inputs(self, values: Float[Numeric, "samples p ..."]) -> Float[Numeric, "inputs p"]:
        """Invert `group_by_sample`: (samples, p) or (samples, p, tokens) as rows per input."""
        if self.count is None:
            return values
        return values.swapaxes(1, 2).reshape(-1, values.shape[1])

    def repeat(self, weights: Float[Numeric, " samples"]) -> Float[Numeric, " inputs"]:
        """Repeat one weight per sample for each of its inputs."""
        return weights if self.count is None else jnp.repeat(weights, self.count)


SINGLE_INPUT = Tokens()
