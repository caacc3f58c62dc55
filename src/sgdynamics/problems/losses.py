"""Per-sample losses as hashable JAX functions loss(fields, signals, head, noise_draw, parameters).

They hold functions and names, never numbers: two problems that differ only in numbers share one compilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric, Parameters, PyTree, Scalar
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems.activations import NAMED, Activation
from sgdynamics.samples import input_covariance
from sgdynamics.samples.draws import complete_probabilities


def squared(output: Scalar, label: Scalar) -> Scalar:
    """(f - y)^2 / 2."""
    return 0.5 * (output - label) ** 2


def correlation(output: Scalar, label: Scalar) -> Any:
    """- f y."""
    return -output * label


def logistic(output: Scalar, label: Scalar) -> Any:
    """log(1 + exp(-f y))."""
    return jax.nn.softplus(-output * label)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "squared": squared,
    "correlation": correlation,
    "logistic": logistic,
}


def outer_loss(value: str | Function) -> Callable[[Any, Any], Any]:
    """The function of (output, label) that a name or a user's function stands for."""
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


def label_noise(numbers: Parameters) -> Any:
    """The variance of the label noise: a number of the problem, or one of its own loss; with contexts its mean."""
    if "contexts" in numbers:
        weights = complete_probabilities(numbers["probabilities"])
        return sum(
            weights[context] * label_noise(one) for context, one in enumerate(numbers["contexts"])
        )
    return numbers["noise"] if "noise" in numbers else numbers["user"]["noise"]


Parts = dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]]


class Move(NamedTuple):
    """How one sample moves the rows R and the head: R <- R - (lr/D)(H X + A R + B S), a <- a - (head_rate lr/D) g.

    X are the sample's inputs, S the signals. What a ``Rule`` returns, and what the gradient of a loss is.

    Parameters
    ----------
    inputs : array (p,) or (p, tokens)
        H: how far each row moves against each input.
    rows : array (p, p) or (blocks, p, p), optional
        A: coefficients of the rows, zero by default; with a leading axis they differ between covariance blocks.
    signals : array (p, K) or (blocks, p, K), optional
        B: coefficients of the signals, zero by default; with a leading axis they differ between covariance blocks.
    head : array (p,), optional
        g: and the head, where it is trained; 0 unless given.

    Examples
    --------
    Hebb's rule, which moves a row along the input by its label:

    >>> import jax.numpy as jnp
    >>> import sgdynamics as sgd
    >>> rule = sgd.Rule(lambda fields, signals, head, noise_draw, overlaps: sgd.Move(-jnp.sign(signals)), groups={"w": 1})
    >>> rule.width, rule.signals
    (1, 1)
    """

    inputs: Any
    rows: Any = None
    signals: Any = None
    head: Any = None

    def filled(self, rows: int, signals: int) -> Move:
        """The same with zeros for what is not there."""
        zeros = [
            jnp.zeros(shape, self.inputs.dtype)
            for shape in ((rows, rows), (rows, signals), (rows,))
        ]
        return Move(
            self.inputs,
            *(empty if part is None else part for part, empty in zip(self[1:], zeros, strict=True)),
        )


class BlockOverlaps(NamedTuple):
    """Overlaps of the rows inside each covariance block: all arrays have a leading axis of blocks."""

    Q: Any  # (blocks, p, p)
    M: Any  # (blocks, p, K)
    P: Any  # (blocks, K, K)
    eigenvalues: Any  # of the inputs' covariance, (blocks,)
    fractions: Any  # of the dimension, (blocks,)


class LossOverlaps(NamedTuple):
    """What a loss or rule with an argument `overlaps` reads: Q = W W^T, M = W W*^T and P = W* W*^T of the full rows.

    `lengths` is X X^T/d of the sample's inputs, where a rule says that it reads it. `blocks` has the overlaps of
    each covariance block, where the function reads them.
    """

    Q: Any
    M: Any
    P: Any
    lengths: Any = None
    blocks: Any = None


def loss_overlaps(
    parameters: Parameters, Q: Any, M: Any, lengths: Any = None, *, with_blocks: bool = True
) -> LossOverlaps:
    """The overlaps that a user's function reads, from Q (blocks, p, p) and M (blocks, p, K)."""
    P = jnp.broadcast_to(parameters["gram"], (*M.shape[:1], *parameters["gram"].shape[-2:]))
    overlaps = LossOverlaps(jnp.sum(Q, axis=0), jnp.sum(M, axis=0), jnp.sum(P, axis=0), lengths)
    if not with_blocks:
        return overlaps
    blocks = BlockOverlaps(
        Q, M, P, input_covariance.eigenvalues(parameters), input_covariance.fractions(parameters)
    )
    return overlaps._replace(blocks=jax.tree.map(lambda part: jnp.asarray(part, Q.dtype), blocks))


class RecordedOverlaps:
    """Overlaps for one trial call of a user's function, which record whether `blocks` is read."""

    def __init__(self, overlaps: LossOverlaps) -> None:
        self.Q, self.M, self.P, self.lengths, self._blocks = overlaps
        self.blocks_read = False

    @property
    def blocks(self) -> Any:
        self.blocks_read = True
        return self._blocks


class Loss:
    """What is asked of any loss, answered for one of which nothing is known."""

    reads_overlaps = (
        False  # whether a sample also moves rows along rows and signals, depending on the overlaps
    )
    reads_blocks = False  # whether it reads the overlaps of each covariance block
    moves_by_block = (
        False  # whether these coefficients on rows and signals differ between covariance blocks
    )
    reads_lengths = False  # whether it depends on the inputs' lengths too
    has_risk = True
    smooth = False  # whether it is known to have no kinks, so that its gradient has a derivative
    reads_draws = True  # whether it reads the draws
    quadratic = False  # whether all of it is squares, so that Wick's theorem gives every moment
    gradient_degree: int | None = None  # in the fields, where it is a polynomial

    def user_functions(self) -> Parts:
        """The functions in it that this library has not made, by the argument that gave them, each with what it is of (fields, signals)."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Any] | None:
        """What the loss compares, where that is all it sees."""
        return None

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        """The value at one sample, and how that sample moves the rows: against its gradient."""
        value, (h, g) = jax.value_and_grad(self, argnums=(0, 2))(
            fields, signals, head, noise_draw, parameters
        )  # type: ignore[arg-type]
        return value, Move(h, head=g)

    def parameters_with_overlaps(
        self, parameters: Parameters, Q: Any, M: Any, lengths: Any = None
    ) -> Any:
        """The numbers with the overlaps (block by block) among them, where they are read."""
        if not self.reads_overlaps:
            return parameters
        return {
            **parameters,
            "overlaps": loss_overlaps(parameters, Q, M, lengths, with_blocks=self.reads_blocks),
        }


def _own_activation(name: str, activation: Activation, of: Callable[..., Any]) -> Parts:
    known = activation.coefficients is not None or any(activation is one for one in NAMED.values())
    return (
        {}
        if known
        else {name: (activation.f, lambda fields, signals: activation(of(fields, signals)))}
    )


@dataclass(frozen=True)
class NetworkLoss(Loss):
    """A two-layer network f = (1/p) sum_i a_i s(lambda_i) against a label: what teachers and targets share."""

    student: Activation
    outer: Callable[[Any, Any], Any]

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def output(
        self, fields: Float[Numeric, " p"], head: Float[Numeric, " p"]
    ) -> Float[Numeric, ""]:
        return jnp.mean(head * self.student(fields))

    def label(self, signals: Float[Numeric, "K ..."], parameters: Parameters) -> Any:
        raise NotImplementedError

    def user_functions(self) -> Parts:
        outer: Parts = {} if self.outer in LOSSES.values() else {"loss": (self.outer, None)}
        return (
            _own_activation("activation", self.student, lambda fields, signals: fields)
            | self.own_label()
            | outer
        )

    def own_label(self) -> Parts:
        """Those of the label."""
        return {}

    def output_and_label(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " p"],
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> tuple[Float[Numeric, ""], Float[Numeric, ""]]:
        label = self.label(signals, parameters) + jnp.sqrt(parameters["noise"]) * noise_draw
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
    """Labels of a teacher committee, y = (1/k) sum_r a*_r s*(w*_r . x)."""

    teacher: Activation

    @property
    def quadratic(self) -> bool:
        return self.outer is squared and self.student == self.teacher == NAMED["square"]

    @property
    def gradient_degree(self) -> int | None:
        student, teacher = self.student.degree, self.teacher.degree
        if student is None or teacher is None or self.outer is not squared:
            return None
        return student - 1 + max(student, teacher)

    def own_label(self) -> Parts:
        return _own_activation("teacher_activation", self.teacher, lambda fields, signals: signals)

    def label(self, signals: Float[Numeric, " K"], parameters: Parameters) -> Float[Numeric, ""]:
        return jnp.mean(parameters["teacher_head"] * self.teacher(signals))


MOST_CUTS = {1: 32, 2: 6, 3: 4}  # planes along which a target may be cut, by its directions


def cuts_possible(directions: int, planes: int, cut: int) -> bool:
    """Whether expectations can be cut along so many planes, whose normals span `cut` dimensions: beyond, grids have a million points."""
    return directions in MOST_CUTS and planes <= MOST_CUTS[directions] and cut <= 2


@dataclass(frozen=True)
class GatedLoss(Loss):
    """Dropout: every unit of a network is there or not, by the draw "gates"; its label noise is the draw "noise"."""

    inner: NetworkLoss

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.inner.kinks

    @property
    def outer(self) -> Callable[[Any, Any], Any]:
        return self.inner.outer

    def user_functions(self) -> Parts:
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
class ContextLoss(Loss):
    """One of several losses, by the context that a sample has drawn; each has its numbers, and where heads are its own, its head."""

    structures: tuple[Any, ...]  # of the contexts' problems
    own_heads: bool = False

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(sorted({kink for one in self.structures for kink in one.kinks}))

    @property
    def outer(self) -> Any:
        """What compares output and label, where all contexts have the same."""
        found = {getattr(one.loss, "outer", None) for one in self.structures}
        return found.pop() if len(found) == 1 else None

    def user_functions(self) -> Parts:
        return {}  # tried when each problem was made

    def context_head(self, head: Float[Numeric, " heads"], context: int) -> Float[Numeric, " p"]:
        """The head of one context."""
        p = self.structures[0].width
        return head[context * p : (context + 1) * p] if self.own_heads else head

    def combine_head_gradients(self, gradients: list[Any]) -> Any:
        """Gradients (..., p) of all contexts' heads as one: side by side, or added up."""
        return (
            jnp.concatenate(gradients, axis=-1)
            if self.own_heads
            else sum(gradients[1:], gradients[0])
        )

    def _each(
        self,
        function: Callable[[Any, Any, Any], Any],
        head: Numeric,
        draws: PyTree,
        parameters: Parameters,
    ) -> list[Any]:
        """function(structure, head, numbers) of every context, times whether it was drawn."""
        found = []
        for context, structure in enumerate(self.structures):
            there = draws["context"] == context
            value = function(
                structure, self.context_head(head, context), parameters["contexts"][context]
            )
            found.append(
                jax.tree.map(
                    lambda one, there=there: jnp.where(there, one, jnp.zeros_like(one)), value
                )
            )
        return found

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        head: Float[Numeric, " heads"],
        draws: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        def value(structure: Any, head: Numeric, numbers: Parameters) -> Any:
            return structure.loss(fields, signals, head, draws["given"], numbers)

        return sum(self._each(value, head, draws, parameters), jnp.zeros((), fields.dtype))

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " heads"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        def value(structure: Any, head: Numeric, numbers: Parameters) -> Any:
            found, move = structure.loss.move(fields, signals, head, noise_draw["given"], numbers)
            return found, move.inputs, move.head

        every = self._each(value, head, noise_draw, parameters)
        total, h = (sum(one[place] for one in every) for place in (0, 1))
        return total, Move(h, head=self.combine_head_gradients([one[2] for one in every]))


@dataclass(frozen=True)
class TargetLoss(NetworkLoss):
    """Labels of any function of the signals, y = g(w*_1 . x, ..., w*_K . x), with a kink or a jump along the planes `cuts`."""

    target: Callable[[Any], Any]
    cuts: tuple[
        tuple[tuple[float, ...], float], ...
    ] = ()  # (normal, level): normal . signals = level
    cut_dimensions: int = 0  # how many dimensions the normals span

    def own_label(self) -> Parts:
        return {"target": (self.target, lambda fields, signals: self.target(signals))}

    def label(self, signals: Float[Numeric, " K"], parameters: Parameters) -> Float[Numeric, ""]:
        return self.target(signals)


@dataclass(frozen=True)
class ClusterLoss(Loss):
    """Cross-entropy of a cluster's label y in {0, 1}: log(1 + e^f) - y f, f = sum_i a_i s(lambda_i) (no 1/p)."""

    student: Activation

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.student.kinks

    def user_functions(self) -> Parts:
        return _own_activation("activation", self.student, lambda fields, signals: fields)

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


def extra_arguments(function: Function, fifth: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """What a user's function takes after (fields, signals, head, draws), in its order: "user" (the problem's parameters), "overlaps".

    An argument of the name overlaps or parameters is that, any other what `fifth` says. Of what it could take, `known` is there.
    """
    try:
        names = [
            name
            for name, one in inspect.signature(function).parameters.items()
            if one.kind is not one.VAR_KEYWORD
        ][4:]
    except (TypeError, ValueError):
        return known[:1]
    meant = {"overlaps": "overlaps", "parameters": "user"}
    return tuple(
        dict.fromkeys(meant.get(name, fifth) for name in names if meant.get(name, fifth) in known)
    )


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's own per-sample loss; of the problem's `parameters` and the overlaps it sees what it asks for."""

    function: Callable[..., Any]
    more: tuple[str, ...] = ()  # what it takes after the draws
    kinks: tuple[float, ...] = ()
    smooth: bool = False
    reads_draws: bool = True
    reads_blocks: bool = False

    @property
    def moves_by_block(self) -> bool:
        return self.reads_blocks

    @property
    def outer(self) -> Any:
        """What compares output and label, where the function says that it is all it does with label noise."""
        return getattr(self.function, "outer", None)

    @property
    def reads_overlaps(self) -> bool:
        return "overlaps" in self.more

    def user_functions(self) -> Parts:
        return {"loss": (self.function, None)}

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        return self.function(
            fields, signals, head, noise_draw, *(parameters[name] for name in self.more)
        )

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        if not self.reads_overlaps:
            return super().move(fields, signals, head, noise_draw, parameters)
        seen = parameters["overlaps"]

        def value(
            fields: Float[Numeric, "p ..."],
            head: Float[Numeric, " p"],
            Q: Float[Numeric, "p p"],
            M: Float[Numeric, "p K"],
        ) -> Any:
            return self(
                fields,
                signals,
                head,
                noise_draw,
                {**parameters, "overlaps": seen._replace(Q=Q, M=M)},
            )

        if self.reads_blocks:
            return self._move_by_block(fields, signals, head, noise_draw, parameters)
        # W enters through the fields, Q = W W^T and M = W W*^T
        found, (h, g, of_Q, of_M) = jax.value_and_grad(value, argnums=(0, 1, 2, 3))(
            fields, head, seen.Q, seen.M
        )
        return found, Move(h, of_Q + of_Q.T, of_M, g)

    def _move_by_block(
        self, fields: Any, signals: Any, head: Any, noise_draw: PyTree, parameters: Parameters
    ) -> tuple[Any, Move]:
        """The gradient where the loss reads Q_b and M_b: the rows of block b move along dl/dQ_b and dl/dM_b."""
        overlaps = parameters["overlaps"]

        def value(fields: Any, head: Any, Q: Any, M: Any) -> Any:
            blocks = overlaps.blocks._replace(Q=Q, M=M)
            whole = overlaps._replace(Q=jnp.sum(Q, axis=0), M=jnp.sum(M, axis=0), blocks=blocks)
            return self(fields, signals, head, noise_draw, {**parameters, "overlaps": whole})

        at = fields, head, overlaps.blocks.Q, overlaps.blocks.M
        loss, (h, g, of_Q, of_M) = jax.value_and_grad(value, argnums=(0, 1, 2, 3))(*at)
        return loss, Move(h, of_Q + jnp.swapaxes(of_Q, -1, -2), of_M, g)


@dataclass(frozen=True)
class RuleLoss(Loss):
    """A user's own update, which need not be a gradient, and a risk, if any. The rows' rates stand in the numbers."""

    update: Callable[..., Any]
    more: tuple[str, ...]
    risk: Callable[..., Any] | None = None
    risk_more: tuple[str, ...] = ()
    kinks: tuple[float, ...] = ()
    reads_lengths: bool = False
    smooth: bool = False
    reads_draws: bool = True
    reads_blocks: bool = False
    moves_by_block: bool = False
    reads_overlaps = True

    @property
    def has_risk(self) -> bool:
        return self.risk is not None

    def user_functions(self) -> Parts:
        return {"update": (self.update, None)}

    def __call__(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> Any:
        if self.risk is None:
            return jnp.full((), jnp.nan, fields.dtype)
        return self.risk(
            fields, signals, head, noise_draw, *(parameters[name] for name in self.risk_more)
        )

    def move(
        self,
        fields: Float[Numeric, "p ..."],
        signals: Float[Numeric, "K ..."],
        head: Float[Numeric, " p"],
        noise_draw: PyTree,
        parameters: Parameters,
    ) -> tuple[Any, Move]:
        found = self.update(
            fields, signals, head, noise_draw, *(parameters[name] for name in self.more)
        )
        found = found.filled(fields.shape[0], signals.shape[0])
        if self.moves_by_block:
            blocks = max(part.shape[0] for part in (found.rows, found.signals) if part.ndim == 3)
            found = found._replace(
                rows=jnp.broadcast_to(found.rows, (blocks, *found.rows.shape[-2:])),
                signals=jnp.broadcast_to(found.signals, (blocks, *found.signals.shape[-2:])),
            )
        rate = parameters["rates"][:, None].astype(fields.dtype)
        H = rate * found.inputs.reshape(fields.shape[0], -1)
        scaled = Move(
            H.reshape(fields.shape).astype(fields.dtype),
            rate * found.rows,
            rate * found.signals,
            found.head,
        )
        return self(fields, signals, head, noise_draw, parameters), scaled
