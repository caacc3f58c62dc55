"""`Sample`: the interface that tells the solvers what one sample is and how it is drawn.

A sample has L inputs, named random draws and no other randomness:

    x_l = mu_l + sum_m (C^(1/2))_lm z_m,    z_m ~ N(0, diag(eigenvalues)),
    mu_l = sum_r c_lr(draws) w*_r

with the correlation C of its tokens (`samples.tokens`) and means along the signals w*_r whose
coefficients c depend on the draws. All draws are functions of standard normals. Given its draws a
sample is Gaussian, which is what the compressed space, the runs in d dimensions and the
expectations have in common; `samples.inputs` builds the inputs of all three from this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.base.arrays import DType, Numeric, Parameters, PyTree
from sgdynamics.samples.draws import Draw, complete_probabilities, quantile_edges
from sgdynamics.samples.tokens import SINGLE_INPUT, Tokens

# Expectations sum over all values of the discrete draws up to this many combinations. Beyond it,
# discrete draws are sampled like continuous ones.
MAX_CASES = 64

DrawValues = dict[str, Numeric]


@dataclass(frozen=True)
class Sample(ABC):
    """The static description of one sample; its parameters are among those of the problem.

    A subclass says which random draws a sample has, how they follow from standard normals, what the
    loss sees of them, and how the means of the inputs depend on them. It must be hashable.

    Parameters
    ----------
    signals : int
        Number K of signal directions.
    tokens : Tokens
        Number and correlation of the inputs of a sample.
    draws : tuple of Draw or None
        Named draws that the loss receives as a dictionary. None: the loss receives one standard
        normal, or the label of the cluster.
    clusters : int
        Number of clusters of a Gaussian mixture; 0 without clusters.
    means : callable or bool
        Function of the draws that returns the coefficients of the means. True:
        ``parameters["means"]``.
    means_take_parameters : bool
        Whether that function also takes the problem's own parameters.
    contexts : int
        Number of contexts, of which each sample draws one; 0 without contexts.
    context_spectra : bool
        Whether the contexts have eigenvalues of their own.
    noise_law : str or None
        Law of the label noise (`samples.laws`). None: Gaussian.
    noisy_inputs : bool
        Whether the student sees inputs with additional noise while the signals do not.
    """

    signals: int
    tokens: Tokens = SINGLE_INPUT
    draws: tuple[Draw, ...] | None = None
    clusters: int = 0
    means: Callable[..., Numeric] | bool = False
    means_take_parameters: bool = False
    contexts: int = 0
    context_spectra: bool = False
    noise_law: str | None = None
    noisy_inputs: bool = False

    @property
    @abstractmethod
    def all_draws(self) -> tuple[Draw, ...]:
        """All draws of a sample, in the order of the normals that they are made of."""

    @property
    @abstractmethod
    def sampled_draws(self) -> tuple[Draw, ...]:
        """The draws that expectations sample or integrate.

        The others are summed over by `cases`.
        """

    @abstractmethod
    def draw(
        self,
        parameters: Parameters,
        normals: Float[Numeric, "*s normals"],
        case: DrawValues | None = None,
    ) -> DrawValues:
        """Compute the draws by name from standard normals (..., normals_per_sample).

        With the values of the summed draws given as `case`, the normals are (..., sampled_normals).
        """

    @abstractmethod
    def cases(self, parameters: Parameters) -> tuple[Float[Numeric, " cases"], DrawValues]:
        """Probabilities of the combinations of the summed draws, and their values (cases, ...)."""

    @abstractmethod
    def loss_argument(self, draws: DrawValues) -> PyTree:
        """The fourth argument of the loss: what it sees of the draws."""

    @abstractmethod
    def mean_coefficients(
        self, parameters: Parameters, draws: DrawValues
    ) -> Float[Numeric, "... K"] | None:
        """Coefficients c of the means on the signals, (..., [tokens,] K).

        None for centred inputs.
        """

    @property
    def normals_per_sample(self) -> int:
        """Number of standard normals that the draws of one sample are made of."""
        return sum(draw.size for draw in self.all_draws)

    @property
    def sampled_normals(self) -> int:
        """Number of standard normals that the sampled draws are made of."""
        return sum(draw.size for draw in self.sampled_draws)

    @property
    def centred(self) -> bool:
        """Whether the inputs have mean zero."""
        return not self.clusters and self.means is False


@dataclass(frozen=True)
class GaussianSample(Sample):
    """The samples of the library: named draws, a cluster, a context and label noise."""

    @cached_property
    def all_draws(self) -> tuple[Draw, ...]:
        """Context, cluster, the named draws or the label noise, and the noise of the signals."""
        draws: tuple[Draw, ...] = ()
        if self.contexts:
            draws += (Draw("context", (), self.contexts),)
        if self.clusters:
            draws += (Draw("cluster", (), self.clusters),)
        if self.draws is not None:
            draws += self.draws
        elif not self.clusters:
            draws += (Draw("noise", law=self.noise_law),)
        if self.noisy_inputs:
            draws += (Draw("signal_noise", (self.signals,)),)
        return draws

    @cached_property
    def _summed_draws(self) -> tuple[Draw, ...]:
        """The draws that expectations sum over.

        All discrete ones, unless there are too many cases.
        """
        discrete = tuple(draw for draw in self.all_draws if draw.outcomes)
        combinations = np.prod([float(draw.combinations) for draw in discrete])
        return discrete if combinations <= MAX_CASES else ()

    @property
    def sampled_draws(self) -> tuple[Draw, ...]:
        """The draws that expectations sample or integrate."""
        return tuple(draw for draw in self.all_draws if draw not in self._summed_draws)

    def draw(
        self,
        parameters: Parameters,
        normals: Float[Numeric, "*s normals"],
        case: DrawValues | None = None,
    ) -> DrawValues:
        """Compute the draws by name from standard normals; see `Sample.draw`."""
        draws, first = dict(case or {}), 0
        for draw in self.all_draws:
            if draw.name in draws:
                continue
            own_normals = normals[..., first : first + draw.size]
            first += draw.size
            if draw.law:
                of_noise = self.draws is None
                law = parameters["noise_law"] if of_noise else parameters["draws"][draw.name]
                draws[draw.name] = draw.heavy_tailed(law, own_normals)
            else:
                edges = self._probabilities(parameters, draw)[1] if draw.outcomes else None
                draws[draw.name] = draw.value(edges, own_normals)
        if self.clusters and "label" not in draws:
            draws["label"] = select_row(
                draws["cluster"], parameters["cluster_labels"], normals.dtype
            )
        return draws

    def _probabilities(
        self, parameters: Parameters, draw: Draw
    ) -> tuple[Float[Numeric, " n"], Float[Numeric, " m"]]:
        """Probabilities of the values of a discrete draw, and the quantile edges between them."""
        if self.clusters and draw.name == "cluster":
            return parameters["cluster_weights"], parameters["cluster_edges"]
        if self.contexts and draw.name == "context":
            weights = complete_probabilities(parameters["probabilities"])
            return weights, quantile_edges(weights)
        law = parameters["draws"][draw.name]
        return law["probabilities"], law["edges"]

    def loss_argument(self, draws: DrawValues) -> PyTree:
        """The fourth argument of the loss: the named draws, the label noise or the cluster's label.

        With contexts it is a dictionary of the context and that argument.
        """
        if self.draws is None:
            argument: PyTree = draws["label" if self.clusters else "noise"]
        else:
            hidden = ("context", "signal_noise")
            argument = {name: value for name, value in draws.items() if name not in hidden}
        return {"context": draws["context"], "given": argument} if self.contexts else argument

    def cases(self, parameters: Parameters) -> tuple[Float[Numeric, " cases"], DrawValues]:
        """Probabilities and values of all combinations of the summed draws."""
        weights: Numeric = np.ones(1)
        values: DrawValues = {}
        for draw in self._summed_draws:
            outcomes, count = draw.values(), len(weights)
            # Entries of an array of draws are independent: their probabilities multiply.
            chances = jnp.asarray(self._probabilities(parameters, draw)[0])[outcomes.astype(int)]
            chances = chances.reshape(len(outcomes), -1).prod(axis=1)
            values = {name: np.repeat(old, len(outcomes), axis=0) for name, old in values.items()}
            values[draw.name] = np.tile(outcomes, (count, *[1] * (outcomes.ndim - 1)))
            weights = (weights[:, None] * chances).reshape(-1)
        if "cluster" in values and self.clusters:
            values["label"] = parameters["cluster_labels"][values["cluster"]]
        return weights, values

    def mean_coefficients(
        self, parameters: Parameters, draws: DrawValues
    ) -> Float[Numeric, "... K"] | None:
        """Coefficients of the means: those of the cluster plus those of ``means``."""
        coefficients = None
        if self.clusters:
            table = parameters["cluster_coefficients"]
            coefficients = select_row(draws["cluster"], table, table.dtype)
            if self.tokens.count is not None:
                coefficients = coefficients[..., None, :]
        if callable(self.means):
            # A user's function takes the draws of one sample: map it over all leading axes.
            function, first = partial(apply_means, self, parameters), self.all_draws[0]
            for _ in range(draws[first.name].ndim - len(first.shape)):
                function = jax.vmap(function)
            stated = function(draws)
        elif self.means:
            stated = parameters["means"]
        else:
            return coefficients
        return stated if coefficients is None else coefficients + stated


def apply_means(
    sample: Sample, parameters: Parameters, draws: DrawValues
) -> Float[Numeric, "... K"]:
    """Call the user's function ``means`` on the draws of one sample."""
    assert callable(sample.means)
    if sample.means_take_parameters:
        return sample.means(draws, parameters["user"])
    return sample.means(draws)


def as_dtype(argument: PyTree, dtype: DType) -> PyTree:
    """Convert the real numbers of a pytree to this precision."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        argument,
    )


def select_row(
    index: Int[Numeric, "*s"], table: Float[Numeric, "rows ..."], dtype: DType
) -> Float[Numeric, "..."]:
    """Select rows of a short table.

    A one-hot sum is used because XLA executes a gather element by element on a CPU.
    """
    one_hot = (index[..., None] == jnp.arange(len(table))).astype(dtype)
    return jnp.sum(
        one_hot.reshape(*one_hot.shape, *[1] * (table.ndim - 1)) * table, axis=one_hot.ndim - 1
    )


def sampled_arguments(sample: Sample) -> bool | tuple[str, ...]:
    """The parts of the loss's fourth argument that expectations sample: all, none, or by name."""
    if sample.draws is None:
        return not sample.clusters
    names = tuple(draw.name for draw in sample.sampled_draws)
    return (*names, "label") if "cluster" in names else names


def all_normal(sample: Sample) -> bool:
    """Whether all draws are standard normals."""
    return not any(draw.outcomes or draw.law for draw in sample.all_draws)


def example_draws(sample: Sample, parameters: Parameters) -> DrawValues:
    """Zeros of the shapes and types of the draws of one sample, by name."""
    shapes = jax.eval_shape(
        lambda normals: sample.draw(parameters, normals), np.zeros(sample.normals_per_sample)
    )
    return {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}


def example_argument(sample: Sample, parameters: Parameters) -> PyTree:
    """Zeros of the shapes and types of the loss's fourth argument for one sample."""
    shapes = jax.eval_shape(
        lambda normals: sample.loss_argument(sample.draw(parameters, normals)),
        np.zeros(sample.normals_per_sample),
    )
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
