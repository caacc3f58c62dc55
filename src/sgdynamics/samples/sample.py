"""`Sample`: how the inputs and draws of one sample are made, in the compressed frame, in d dimensions, and for expectations.

A sample has L inputs (tokens; one where `tokens` is None), x_l = mu_l + sum_m (C^1/2)_lm z_m with z_m ~ N(0, diag of the eigenvalues), C
the correlation of the tokens, mu_l = sum_r c_lr(draws) w*_r, and named draws. Algorithms see all inputs as the rows of one matrix,
sample by sample and in it token by token; only the loss and C know which belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.base.arrays import DType, Numeric, Parameters, PyTree
from sgdynamics.samples.draws import Draw, edges_of, weights_of
from sgdynamics.samples.input_covariance import clean_share, spread

MOST_CASES = 64  # combinations of discrete draws that expectations sum over; beyond, they are sampled like the others


class Place(NamedTuple):
    """Where samples lie in d dimensions: the spread of each coordinate (in each context), and the axes along which signals lie."""

    spread: Float[Numeric, "*contexts d"]
    axes: Int[Numeric, " axes"]
    signals: Float[Numeric, "K axes"]


def as_dtype(given: PyTree, dtype: DType) -> PyTree:
    """What a loss takes beside fields and signals, its real numbers in this precision."""
    return jax.tree.map(
        lambda one: one.astype(dtype) if jnp.issubdtype(one.dtype, jnp.floating) else one, given
    )


def chosen_row(index: Int[Numeric, "*s"], table: Float[Numeric, "rows ..."], dtype: DType) -> Any:
    """Rows of a table of few: a sum over them, not a gather, which goes one by one on a CPU."""
    chosen = (index[..., None] == jnp.arange(len(table))).astype(dtype)
    return jnp.sum(
        chosen.reshape(*chosen.shape, *[1] * (table.ndim - 1)) * table, axis=chosen.ndim - 1
    )


def _root(matrix: Float[Numeric, "... n n"]) -> Float[Numeric, "... n n"]:
    """Some R with R R^T = matrix, which may be singular."""
    if matrix.shape[-1] == 1:
        return jnp.sqrt(matrix)
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]


@dataclass(frozen=True)
class Sample:
    """What a sample is, without its numbers, which stand in a problem's parameters."""

    signals: int
    tokens: int | None = None
    correlated: bool = False
    draws: tuple[Draw, ...] | None = (
        None  # None: the loss takes one standard normal, or with clusters the cluster's label
    )
    clusters: int = 0
    means: Callable[..., Any] | bool = False  # a function of the draws; True: numbers["means"]
    means_take_numbers: bool = False  # whether that function takes the problem's own parameters too
    contexts: int = 0  # of which a sample draws one
    own_spectra: bool = False  # whether these have eigenvalues of their own
    noise_law: str | None = None  # of the label noise, where it is not Gaussian (`samples.laws`)
    noisy_inputs: bool = False  # the students see inputs with noise, the signals do not

    @property
    def plain(self) -> bool:
        """Whether a sample is one centred input and one standard normal."""
        return self == Sample(self.signals)

    @property
    def centred(self) -> bool:
        """Whether the inputs have no means."""
        return not self.clusters and self.means is False

    @property
    def inputs_a_sample(self) -> int:
        return self.tokens or 1

    @property
    def token_shape(self) -> tuple[int, ...]:
        """The axis of tokens, where there is one."""
        return () if self.tokens is None else (self.tokens,)

    @cached_property
    def _every(self) -> tuple[Draw, ...]:
        """All draws in the order of their normals: the context and the cluster first, then what the signals are seen with."""
        first = (Draw("context", (), self.contexts),) if self.contexts else ()
        first += (Draw("cluster", (), self.clusters),) if self.clusters else ()
        last = (Draw("signal_noise", (self.signals,)),) if self.noisy_inputs else ()
        return (
            first
            + (
                self.draws
                if self.draws is not None
                else ()
                if self.clusters
                else (Draw("noise", law=self.noise_law),)
            )
            + last
        )

    @property
    def draw_normals(self) -> int:
        """How many standard normals the draws of one sample take."""
        return sum(draw.size for draw in self._every)

    @property
    def all_normal(self) -> bool:
        """Whether all draws are normal."""
        return not any(draw.outcomes or draw.law for draw in self._every)

    @cached_property
    def _summed(self) -> tuple[Draw, ...]:
        """The draws that expectations sum over."""
        discrete = tuple(draw for draw in self._every if draw.outcomes)
        return (
            discrete
            if np.prod([float(draw.combinations) for draw in discrete]) <= MOST_CASES
            else ()
        )

    @property
    def free_draws(self) -> tuple[Draw, ...]:
        """The other draws, those that expectations sample."""
        return tuple(draw for draw in self._every if draw not in self._summed)

    @property
    def free(self) -> int:
        """How many standard normals they take."""
        return sum(draw.size for draw in self.free_draws)

    def drawn(
        self,
        numbers: Parameters,
        normals: Float[Numeric, "*s normals"],
        case: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The draws from standard normals (..., draw_normals); with a `case` of the summed ones, from (..., free)."""
        found, first = dict(case or {}), 0
        for draw in self._every:
            if draw.name not in found:
                own = normals[..., first : first + draw.size]
                if draw.law:
                    parameters = (
                        numbers["noise_law"] if self.draws is None else numbers["draws"][draw.name]
                    )
                    found[draw.name] = draw.heavy_tailed(parameters, own)
                else:
                    edges = None if not draw.outcomes else self._chances(numbers, draw)[1]
                    found[draw.name] = draw.value(edges, own)
                first += draw.size
        if self.clusters and "label" not in found:
            found["label"] = self._of_cluster(found, numbers["cluster_labels"], normals.dtype)
        return found

    def _chances(
        self, numbers: Parameters, draw: Draw
    ) -> tuple[Float[Numeric, " n"], Float[Numeric, " m"]]:
        """Probabilities of a discrete draw's values, and the edges between them."""
        if self.clusters and draw.name == "cluster":
            return numbers["cluster_weights"], numbers["cluster_edges"]
        if self.contexts and draw.name == "context":
            weights = weights_of(numbers["probabilities"])
            return weights, edges_of(weights)
        return numbers["draws"][draw.name]["probabilities"], numbers["draws"][draw.name]["edges"]

    def _of_cluster(
        self, draws: dict[str, Any], table: Float[Numeric, "clusters ..."], dtype: DType
    ) -> Float[Numeric, "*s"]:
        return chosen_row(draws["cluster"], table, dtype)

    def given(self, draws: dict[str, Any]) -> PyTree:
        """The loss's fourth argument: the dictionary of draws, or the one normal, or the cluster's label; with contexts beside it."""
        if self.draws is None:
            found = draws["label" if self.clusters else "noise"]
        else:
            found = {
                name: one for name, one in draws.items() if name not in ("context", "signal_noise")
            }
        return {"context": draws["context"], "given": found} if self.contexts else found

    def spread(self, numbers: Parameters, draws: dict[str, Any]) -> Float[Numeric, "... blocks"]:
        """The standard deviation of a coordinate of each block: (blocks,), or (..., [1,] blocks) where it depends on the context."""
        found = spread(numbers)
        if not self.own_spectra:
            return found
        chosen = chosen_row(draws["context"], found, found.dtype)
        return chosen if self.tokens is None else chosen[..., None, :]

    def seen_signals(self, numbers: Parameters, draws: dict[str, Any]) -> tuple[Any, Any]:
        """With noisy inputs, of what is seen: the share (..., blocks) of each block that is the input itself, and what the signals of the
        input have beside it (..., K)."""
        share, gram = clean_share(numbers), jnp.asarray(numbers["gram"])
        rest = jnp.einsum(
            "...b,bij->...ij",
            numbers["input_noise"] * share,
            jnp.broadcast_to(gram, (share.shape[-1], *gram.shape[-2:])),
        )
        root = _root(rest)
        if self.own_spectra:
            share, root = (
                chosen_row(draws["context"], table, table.dtype) for table in (share, root)
            )
        return share, jnp.einsum("...ij,...j->...i", root, draws["signal_noise"])

    def example(self, numbers: Parameters) -> PyTree:
        """Zeros of the shapes and types of the loss's fourth argument for one sample."""
        shapes = jax.eval_shape(
            lambda normals: self.given(self.drawn(numbers, normals)), np.zeros(self.draw_normals)
        )
        return jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), shapes)

    def example_draws(self, numbers: Parameters) -> dict[str, Any]:
        """The same of the draws by name, which a function of the means takes."""
        shapes = jax.eval_shape(
            lambda normals: self.drawn(numbers, normals), np.zeros(self.draw_normals)
        )
        return {name: np.zeros(one.shape, one.dtype) for name, one in shapes.items()}

    @property
    def random_draws(self) -> bool | tuple[str, ...]:
        """Which parts of the loss's fourth argument expectations do not sum over: all, none, or by name."""
        if self.draws is None:
            return not self.clusters
        free = tuple(draw.name for draw in self.free_draws)
        return (*free, "label") if "cluster" in free else free

    def cases(self, numbers: Parameters) -> tuple[Float[Numeric, " cases"], dict[str, Any]]:
        """For expectations: weights (cases,), and the draws that are summed over, (cases, ...) each; the rest is `free`."""
        weights, found = np.ones(1), {}
        for draw in self._summed:
            values, count = draw.values(), len(weights)
            chances = (
                jnp.asarray(self._chances(numbers, draw)[0])[values.astype(int)]
                .reshape(len(values), -1)
                .prod(axis=1)
            )
            found = {name: np.repeat(value, len(values), axis=0) for name, value in found.items()}
            found[draw.name] = np.tile(values, (count, *[1] * (values.ndim - 1)))
            weights = (weights[:, None] * chances).reshape(-1)
        if "cluster" in found and self.clusters:
            found["label"] = numbers["cluster_labels"][found["cluster"]]
        return weights, found

    def mean_coefficients(
        self, numbers: Parameters, draws: dict[str, Any]
    ) -> Float[Numeric, "... K"] | None:
        """Means of the inputs on the signals, (..., [tokens,] K); None for centred data."""
        parts = []
        if self.clusters:
            coefficients = numbers["cluster_coefficients"]
            found = self._of_cluster(draws, coefficients, coefficients.dtype)
            parts.append(found if self.tokens is None else found[..., None, :])
        if callable(self.means):
            function, one = partial(self.means_of, numbers), self._every[0]
            for _ in range(draws[one.name].ndim - len(one.shape)):
                function = jax.vmap(function)
            parts.append(function(draws))
        elif self.means:
            parts.append(numbers["means"])
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def means_of(self, numbers: Parameters, draws: dict[str, Any]) -> Float[Numeric, "... K"]:
        """What a user's function gives for the draws of one sample."""
        assert callable(self.means)
        return self.means(draws, numbers["user"]) if self.means_take_numbers else self.means(draws)

    def inputs(
        self, numbers: Parameters, normals: Float[Numeric, "..."], draws: dict[str, Any]
    ) -> PyTree:
        """Inputs in the compressed frame from normals (..., [tokens,] blocks, columns), of which the first K lie along the signals."""
        x = self.mixed(numbers, normals, -3) * self.spread(numbers, draws)[..., None]
        means = self.mean_coefficients(numbers, draws)
        if means is None:
            return x
        along = jnp.sum(means[..., None, :, None] * numbers["frame"], axis=-2)
        empty = jnp.zeros((*along.shape[:-1], x.shape[-1] - self.signals), x.dtype)
        return x + jnp.concatenate([along, empty], axis=-1)

    def inputs_in_space(
        self,
        numbers: Parameters,
        normals: Float[Numeric, "..."],
        draws: dict[str, Any],
        place: Place,
    ) -> PyTree:
        """Inputs in d dimensions, one a row, from normals (samples, [tokens,] d)."""
        spreads = place.spread
        if self.own_spectra:
            spreads = chosen_row(draws["context"], jnp.asarray(spreads), normals.dtype)
            spreads = spreads if self.tokens is None else spreads[..., None, :]
        x = self.mixed(numbers, normals, -2) * spreads
        means = self.mean_coefficients(numbers, draws)
        if means is not None:
            x = jnp.asarray(x).at[..., place.axes].add((means @ place.signals).astype(x.dtype))
        return x.reshape(-1, x.shape[-1])

    def mixed(
        self, numbers: Parameters, values: Float[Numeric, "*s"], axis: int
    ) -> Float[Numeric, "*s"]:
        """C^1/2 (which is symmetric) along the axis of the tokens."""
        if not self.correlated:
            return values
        root = numbers["token_root"].astype(values.dtype)
        return jnp.moveaxis(
            jnp.tensordot(root, values, axes=(1, axis), precision="highest"), 0, axis
        )

    def mixed_inputs(
        self, numbers: Parameters, values: Float[Numeric, "*s inputs"]
    ) -> Float[Numeric, "*s inputs"]:
        """The same along the last axis, which holds all inputs of all samples."""
        if not self.correlated:
            return values
        samples = (
            values.shape[-1] // self.inputs_a_sample
        )  # of no values too, where a size that is left to be found would not be
        return self.mixed(
            numbers, values.reshape(*values.shape[:-1], samples, self.inputs_a_sample), -1
        ).reshape(values.shape)

    def by_sample(self, rows: Float[Numeric, "inputs p"]) -> Float[Numeric, "samples p ..."]:
        """What the loss sees of (inputs, p): (samples, p), or (samples, p, tokens)."""
        return (
            rows
            if self.tokens is None
            else rows.reshape(rows.shape[0] // self.tokens, self.tokens, rows.shape[-1]).swapaxes(
                1, 2
            )
        )

    def by_input(self, values: Float[Numeric, "samples p ..."]) -> Float[Numeric, "inputs p"]:
        """(samples, p[, tokens]) as (inputs, p)."""
        return values if self.tokens is None else values.swapaxes(1, 2).reshape(-1, values.shape[1])

    def each_input(self, weights: Float[Numeric, " samples"]) -> Float[Numeric, " inputs"]:
        """Numbers of samples (n,) for each of their inputs."""
        return weights if self.tokens is None else jnp.repeat(weights, self.tokens)
