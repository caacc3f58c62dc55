"""Per-sample losses as hashable JAX functions loss(fields, signals, head, noise_draw, parameters).

They contain functions and names, but no parameters: two problems that differ only in their
parameters share compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree, Scalar
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems import label_laws
from sgdynamics.problems.activations import NAMED, Activation
from sgdynamics.problems.moves import Move, loss_overlaps
from sgdynamics.problems.tops import Top
from sgdynamics.samples.draws import complete_probabilities

OuterLoss = Callable[[Any, Any], Any]  # a function of output and label
# Functions of a user by the name of the argument, each with its value as a function of
# (fields, signals), or None if it has other arguments.
UserFunctions = dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]]


def squared(output: Scalar, label: Scalar) -> Scalar:  # style: ok, name of the loss
    """(f - y)^2 / 2."""
    return 0.5 * (output - label) ** 2


def correlation(output: Scalar, label: Scalar) -> Scalar:
    """-f y."""
    return -output * label


def logistic(output: Scalar, label: Scalar) -> Scalar:
    """log(1 + exp(-f y))."""
    return jax.nn.softplus(-output * label)


LOSSES: dict[str, OuterLoss] = {
    "squared": squared,
    "correlation": correlation,
    "logistic": logistic,
}


def outer_loss(value: str | Function) -> OuterLoss:
    """Return the function of (output, label) for a name or a user's function."""
    if isinstance(value, str):
        return LOSSES[checks.choice("loss", value, LOSSES)]
    if callable(value):
        validate_function(
            "loss",
            value,
            (np.zeros(()), np.zeros(())),
            takes="output, label",
            call="an output and a label",
        )
        return value
    raise checks.reject(
        "loss", value, f"give one of {', '.join(LOSSES)} or a JAX function of (output, label)"
    )


def label_noise(parameters: Parameters) -> Scalar:
    """Return the variance of the label noise; with contexts, its mean over the contexts."""
    if "contexts" in parameters:
        weights = complete_probabilities(parameters["probabilities"])
        variances = [label_noise(context) for context in parameters["contexts"]]
        return sum(weights[index] * variance for index, variance in enumerate(variances))
    return parameters["noise"] if "noise" in parameters else parameters["user"]["noise"]


class Loss:
    """Interface of per-sample losses, with defaults for a loss of which nothing is known.

    Attributes
    ----------
    reads_overlaps : bool
        Whether the loss depends on the overlaps. A sample then also moves rows along rows and
        signals.
    reads_blocks : bool
        Whether it reads the overlaps of each covariance block.
    moves_by_block : bool
        Whether its coefficients on rows and signals differ between covariance blocks.
    reads_lengths : bool
        Whether it reads the lengths of the inputs.
    is_gradient : bool
        Whether its moves are gradients; those of a rule are not.
    has_risk : bool
        Whether its mean is a risk.
    smooth : bool
        Whether it is known to have no kinks, so that its gradient has a derivative.
    reads_draws : bool
        Whether it depends on the draws.
    quadratic : bool
        Whether it is a polynomial in squares, so that Wick's theorem gives all its moments.
    gradient_degree : int or None
        Degree of the gradient in the fields, for a polynomial.
    own_leaves : tuple of str
        Leaves of the top of which each context has values of its own.
    """

    own_leaves: tuple[str, ...] = ()
    reads_overlaps = False
    reads_blocks = False
    moves_by_block = False
    reads_lengths = False
    is_gradient = True
    has_risk = True
    smooth = False
    reads_draws = True
    quadratic = False
    gradient_degree: int | None = None

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " heads"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        """Return the loss of one sample."""
        raise NotImplementedError

    def user_functions(self) -> UserFunctions:
        """Return the functions in the loss that a user wrote, by argument."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Any] | None:
        """Return output and label, if the loss is a function of these two only."""
        return None

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        """Return the loss of one sample and the move of rows and head: its gradient."""
        value, (h, g) = jax.value_and_grad(self.__call__, argnums=(0, 2))(
            fields, signals, head, noise_draw, parameters
        )
        return value, Move(h, head=g)

    def parameters_with_overlaps(
        self, parameters: Parameters, Q: Numeric, M: Numeric, lengths: Numeric | None = None
    ) -> Parameters:
        """Return the parameters with the overlaps (block by block), if the loss reads them."""
        if not self.reads_overlaps:
            return parameters
        overlaps = loss_overlaps(parameters, Q, M, lengths, with_blocks=self.reads_blocks)
        return {**parameters, "overlaps": overlaps}


def _user_activation(
    argument: str, activation: Activation, select: Callable[[Any, Any], Any]
) -> UserFunctions:
    """Return a user's activation; `select` chooses its argument from (fields, signals)."""
    if activation.coefficients is not None or any(activation is named for named in NAMED.values()):
        return {}
    return {argument: (activation.f, lambda fields, signals: activation(select(fields, signals)))}


@dataclass(frozen=True)
class NetworkLoss(Loss):
    """The loss of a two-layer network f = (1/p) sum_i a_i s(lambda_i) and a label."""

    student: Activation
    outer: OuterLoss
    # Law of binary labels given the output of the target (`label_laws`), with the number
    # parameters["label_value"]. None: the label is that output with additive noise.
    labels: str | None = field(default=None, kw_only=True)
    # Planes normal . signals = level along which the mean of the label has a kink or jumps.
    cuts: tuple[tuple[tuple[float, ...], float], ...] = field(default=(), kw_only=True)
    # Dimension of the span of their normals.
    cut_dimensions: int = field(default=0, kw_only=True)

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def output(
        self, fields: Float[Numeric, " p"], head: Float[Numeric, " p"]
    ) -> Float[Numeric, ""]:
        """Return the output f of the network."""
        return jnp.mean(head * self.student(fields))

    def target_output(
        self, signals: Float[Numeric, "K ..."], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return the output of the teacher or target, on which the label depends."""
        raise NotImplementedError

    def label(self, signals: Float[Numeric, "K ..."], parameters: Parameters) -> Float[Numeric, ""]:
        """Return the mean of the label given the signals."""
        output = self.target_output(signals, parameters)
        if self.labels is None:
            return output
        return 2.0 * label_laws.probability(self.labels, parameters["label_value"], output) - 1.0

    def mean_square_label(self, label: Float[Numeric, "*s"]) -> Float[Numeric, "*s"]:
        """Return E[y^2] given the signals without additive noise, from the mean of the label."""
        return label**2 if self.labels is None else jnp.ones_like(label)

    def user_functions(self) -> UserFunctions:
        student = _user_activation("activation", self.student, lambda fields, signals: fields)
        outer: UserFunctions = {}
        if self.outer not in LOSSES.values():
            outer = {"loss": (self.outer, None)}
        return student | self.label_functions() | outer

    def label_functions(self) -> UserFunctions:
        """Return the user's functions in the label."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        label = self.target_output(signals, parameters)
        if self.labels is None:
            label = label + jnp.sqrt(parameters["noise"]) * noise_draw
        else:
            value = parameters["label_value"]
            label = label_laws.draw_label(self.labels, value, label, jnp.asarray(noise_draw))
        return self.output(fields, head), label

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        return self.outer(*self.output_and_label(fields, signals, head, noise_draw, parameters))


@dataclass(frozen=True)
class CommitteeLoss(NetworkLoss):
    """The loss for labels of a teacher committee, y = (1/k) sum_r a*_r s*(w*_r . x)."""

    teacher: Activation

    @property
    def quadratic(self) -> bool:
        is_square = self.student == self.teacher == NAMED["square"]
        return is_square and self.outer is squared and self.labels is None

    @property
    def gradient_degree(self) -> int | None:
        student, teacher = self.student.degree, self.teacher.degree
        if student is None or teacher is None or self.outer is not squared or self.labels:
            return None
        return student - 1 + max(student, teacher)

    def label_functions(self) -> UserFunctions:
        return _user_activation("teacher_activation", self.teacher, lambda fields, signals: signals)

    def target_output(
        self, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        return jnp.mean(parameters["teacher_head"] * self.teacher(signals))


# Largest number of planes along which a target may be cut, by its number of directions.
MOST_CUTS = {1: 32, 2: 6, 3: 4}


def cuts_possible(directions: int, planes: int, spanned: int) -> bool:
    """Return whether expectations can be cut along planes whose normals span `spanned` dimensions.

    Beyond these limits grids have a million points.
    """
    return directions in MOST_CUTS and planes <= MOST_CUTS[directions] and spanned <= 2


@dataclass(frozen=True)
class TargetLoss(NetworkLoss):
    """The loss for labels y = g(w*_1 . x, ..., w*_K . x), any function of the signals.

    Attributes
    ----------
    target : callable
        The function g.
    """

    target: Callable[[Any], Any]

    def label_functions(self) -> UserFunctions:
        return {"target": (self.target, lambda fields, signals: self.target(signals))}

    def target_output(
        self, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        return self.target(signals)


@dataclass(frozen=True)
class KnownLabelLoss(Loss):
    """The loss of a network with binary labels as a function of the label.

    The label takes the place of the noise draw: expectations sum over its two values.
    """

    inner: NetworkLoss

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.inner.kinks

    @property
    def outer(self) -> OuterLoss:
        return self.inner.outer

    @property
    def labels(self) -> str | None:
        """The law of binary labels."""
        return self.inner.labels

    def probability(
        self, label: Scalar, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return the probability of a label, +1 or -1, given the signals."""
        return 0.5 * (1.0 + label * self.inner.label(signals, parameters))

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        return self.inner.outer(self.inner.output(fields, head), noise_draw)


@dataclass(frozen=True)
class GatedLoss(Loss):
    """The loss of a network with dropout: units are multiplied by the draws "gates".

    The label noise is the draw "noise".
    """

    inner: NetworkLoss

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.inner.kinks

    @property
    def outer(self) -> OuterLoss:
        return self.inner.outer

    @property
    def labels(self) -> str | None:
        """The law of binary labels, which dropout does not change."""
        return self.inner.labels

    def target_output(
        self, signals: Float[Numeric, "K ..."], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return the output of the teacher, also with dropout."""
        return self.inner.target_output(signals, parameters)

    def user_functions(self) -> UserFunctions:
        return self.inner.user_functions()

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        draws: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        return self.inner(fields, signals, head * draws["gates"], draws["noise"], parameters)


@dataclass(frozen=True)
class ClusterLoss(Loss):
    """Cross-entropy of a cluster's label y in {0, 1}: log(1 + e^f) - y f.

    The output is f = sum_i a_i s(lambda_i), without 1/p.
    """

    student: Activation

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def user_functions(self) -> UserFunctions:
        return _user_activation("activation", self.student, lambda fields, signals: fields)

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        label: Scalar,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        output = jnp.sum(head * self.student(fields))
        return jax.nn.softplus(output) - label * output


@runtime_checkable
class ContextStructure(Protocol):
    """The part of the `Structure` of a context that `ContextLoss` reads."""

    @property
    def width(self) -> int: ...
    @property
    def loss(self) -> Loss: ...
    @property
    def kinks(self) -> tuple[float, ...]: ...
    @property
    def top(self) -> Top | None: ...


@dataclass(frozen=True)
class ContextLoss(Loss):
    """One of several losses, chosen by the context that a sample draws.

    Every context has its own parameters, and its own head if `own_heads`, or its own values of the
    leaves `own_leaves` of the top.
    """

    # Structures of the contexts' problems.
    structures: tuple[ContextStructure, ...]
    own_heads: bool = False
    own_leaves: tuple[str, ...] = ()

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(sorted({kink for structure in self.structures for kink in structure.kinks}))

    @property
    def outer(self) -> OuterLoss | None:
        """The function of output and label, if all contexts have the same."""
        functions = {getattr(structure.loss, "outer", None) for structure in self.structures}
        return functions.pop() if len(functions) == 1 else None

    def user_functions(self) -> UserFunctions:
        return {}  # tried when each problem was made

    @property
    def labels(self) -> str | None:
        """The law of binary labels of some context."""
        laws = [getattr(structure.loss, "labels", None) for structure in self.structures]
        return next((law for law in laws if law is not None), None)

    def context_head(self, head: Float[Numeric, " heads"], context: int) -> Float[Numeric, " p"]:
        """Return the head of one context."""
        if self.own_leaves:
            return head[self._entries_of(context)]
        p = self.structures[0].width
        return head[context * p : (context + 1) * p] if self.own_heads else head

    def _entries_of(self, context: int) -> np.ndarray:
        """Return the positions of one context's numbers in the vector of the joint top."""
        top = self.structures[0].top
        assert top is not None
        positions, first, contexts = [], 0, len(self.structures)
        for name, size in zip(top.names, top.sizes, strict=True):
            is_own = name in self.own_leaves
            positions.append(first + is_own * context * size + np.arange(size))
            first += size * (contexts if is_own else 1)
        return np.concatenate(positions)

    def combine_head_gradients(
        self, gradients: list[Float[Numeric, "*s p"]]
    ) -> Float[Numeric, "*s heads"]:
        """Combine the gradients (..., p) of all contexts.

        They are concatenated if every context has its own head, and summed for a shared head.
        """
        if self.own_leaves:
            entries = [self._entries_of(context) for context in range(len(gradients))]
            size = 1 + max(int(positions.max()) for positions in entries)
            total = jnp.zeros((*gradients[0].shape[:-1], size), gradients[0].dtype)
            for positions, gradient in zip(entries, gradients, strict=True):
                total = total.at[..., positions].add(gradient)
            return total
        if self.own_heads:
            return jnp.concatenate(gradients, axis=-1)
        return sum(gradients[1:], gradients[0])

    def _evaluate_contexts(
        self,
        function: Callable[[ContextStructure, Numeric, Parameters], PyTree],
        head: Numeric,
        draws: PyTree,
        parameters: Parameters,
    ) -> list[Any]:
        """Return function(structure, head, parameters) of each context, 0 if it was not drawn.

        JAX evaluates all contexts, because the context is a traced random draw.
        """
        values = []
        for context, structure in enumerate(self.structures):
            is_drawn = draws["context"] == context
            own_head = self.context_head(head, context)
            value = function(structure, own_head, parameters["contexts"][context])
            values.append(
                jax.tree.map(
                    lambda leaf, is_drawn=is_drawn: jnp.where(is_drawn, leaf, jnp.zeros_like(leaf)),
                    value,
                )
            )
        return values

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " heads"],
        draws: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        def evaluate_loss(
            structure: ContextStructure, head: Numeric, own_parameters: Parameters
        ) -> Float[Numeric, ""]:
            return structure.loss(fields, signals, head, draws["given"], own_parameters)

        losses = self._evaluate_contexts(evaluate_loss, head, draws, parameters)
        return sum(losses, jnp.zeros((), fields.dtype))

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " heads"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        def evaluate_move(
            structure: ContextStructure, head: Numeric, own_parameters: Parameters
        ) -> tuple[Float[Numeric, ""], Numeric, Numeric | None]:
            loss, move = structure.loss.move(
                fields, signals, head, noise_draw["given"], own_parameters
            )
            return loss, move.inputs, move.head

        contexts = self._evaluate_contexts(evaluate_move, head, noise_draw, parameters)
        losses, input_coefficients, head_gradients = zip(*contexts, strict=True)
        H = cast(Numeric, sum(input_coefficients))
        head_gradient = self.combine_head_gradients(list(head_gradients))
        return sum(losses), Move(H, head=head_gradient)
