"""Classification by a two-layer network with a softmax output, trained on cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric
from sgdynamics.problems.activations import Activation, ActivationLike, student_activation
from sgdynamics.problems.models.model import model
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.structure import LossDependence, Structure

# Classes and units for which expectations have a grid that is cut at the ties of the signals.
MOST_CLASSES_ON_GRID, MOST_UNITS_ON_GRID = 3, 2


@dataclass(frozen=True)
class SoftmaxLoss:
    """Cross-entropy of logits B s(W x + c) + b against the largest of the signals.

    Attributes
    ----------
    classes : int
        Number of classes.
    width : int
        Number of units.
    activation : Activation
        Activation s.
    """

    classes: int
    width: int
    activation: Activation

    @property
    def smooth(self) -> bool:
        """Whether the loss is smooth in the fields, with a grid of its own for the signals."""
        few = self.classes <= MOST_CLASSES_ON_GRID and self.width <= MOST_UNITS_ON_GRID
        return few and not self.activation.kinks

    def loss_dependence(self, structure: Structure) -> LossDependence | None:
        """State the differences of the signals, orthonormal, and the fields."""
        contrasts = {
            2: [[1.0, -1.0]],
            3: [[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]],
        }[self.classes]
        rows = []
        for contrast in contrasts:
            row = np.concatenate([np.zeros(self.width), contrast]) / np.linalg.norm(contrast)
            rows.append(row)
        rows += list(np.eye(self.width, structure.fields))
        free = np.zeros(structure.sample.sampled_normals)
        general = tuple(tuple(np.concatenate([row, free]).tolist()) for row in rows)
        return LossDependence(general, (), (), ())

    def logits(self, fields: Float[Numeric, " p"], top: dict[str, Any]) -> Float[Numeric, " K"]:
        """Return the logits of one sample."""
        hidden = self.activation(fields + top["c"] if "c" in top else fields)
        output = top["B"] @ hidden
        return output + top["b"] if "b" in top else output

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        top: dict[str, Any],
        noise_draw: Numeric,
    ) -> Float[Numeric, ""]:
        logits = self.logits(fields, top)
        return jax.nn.logsumexp(logits) - logits[jnp.argmax(signals)]


@model
def softmax(
    classes: int = 3,
    width: int = 2,
    activation: ActivationLike = "tanh",
    *,
    biases: bool = False,
    weight_decay: float | Function | dict[str, Any] = 0.0,
) -> Problem:
    """Softmax classification: logits B s(W x), trained on cross-entropy.

    The label is the largest of orthonormal signals, y = argmax_k w*_k . x.

    ::

        loss = log sum_k exp f_k - f_y,      f = B s(W x + c) + b

    Parameters
    ----------
    classes : int, default 3
        Number of classes, 2 or more.
    width : int, default 2
        Number of hidden units, p.
    activation : str, Activation or callable, default 'tanh'
        Activation s of the hidden units, as of ``TeacherStudent``.
    biases : bool, default False
        Whether the units have biases c and the logits biases b.
    weight_decay : float, callable or dict, default 0.0
        Weight decay, as of ``Problem``, also by leaf.

    Returns
    -------
    Problem
        Problem with one signal per class and the top ``{"B": (classes, width)}``, with biases also
        ``{"b": classes, "c": width}``.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    Without weight decay the sums of the columns of B never change, as the gradient in the logits
    sums to 0. Two or three classes with at most two units are integrated on a grid that is cut
    where two signals tie; others are sampled, with errors of about 1e-3. The share of samples
    classified right is an expectation, ``sgd.expect``.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.softmax(classes=2, width=1)
    >>> start = sgd.start(problem, M=[[0.4, -0.3]], Q=[[1.0]], top={"B": [[0.5], [-0.3]]})
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0.0, 2.0])
    >>> path["top.B"].dims
    ('run', 'time', 'B_0', 'B_1')
    """
    K = checks.integer("classes", classes, 2)
    p = checks.integer("width", width, 1)
    loss = SoftmaxLoss(K, p, student_activation(activation))
    top: dict[str, Any] = {"B": (K, p)}
    if checks.flag("biases", biases):
        top |= {"b": (K,), "c": (p,)}
    kinks = loss.activation.kinks
    return Problem(loss, p, K, top=top, weight_decay=weight_decay, kinks=kinks)
