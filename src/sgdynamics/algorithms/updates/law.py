"""The law of an update: its step, its state and its properties, on which compiled code depends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgdynamics.base.arrays import Function
from sgdynamics.base.equations import parameter_symbol

# Increments of one step by name: those of the weights and of the other variables of the state.
Increments = dict[str, Any]


@dataclass(frozen=True)
class Law:
    """The static part of an update, on which compiled code depends.

    The state of an update consists of the weights, further sets of rows (p x columns each, such as
    a velocity), scalars, and squares. The step is a function
    ``step(state, gradient, lr, D, number, **hyperparameters)`` that returns their increments.

    Attributes
    ----------
    name : str
        Name of the update.
    step : callable
        The step.
    rows : tuple of str
        Names of the sets of rows next to the weights.
    scalars : tuple of str
        Names of the scalars.
    squares : tuple of str
        Names of the averages of squared gradients, which have one value per unit and coordinate of
        the input space, and per entry of a trained head. Only coordinatewise updates have them.
    vectors : tuple of str
        Names of vectors with one value per entry of a trained head, for an update of the head that
        differs from that of the rows.
    fast_vectors : tuple of str
        Names of the vectors that are forgotten within O(1) steps and are affine in the gradient.
    leaves : tuple of str
        Names of the leaves or branches of the top that the update treats separately.
    memory : str
        Memory of past gradients: "none", "slow" for O(D) steps, "fast" for O(1) steps.
    linear : bool
        Whether the increments of the rows are affine in the gradient. The ODE then needs only the
        mean and the noise of the gradient.
    linear_in_rows : bool
        Whether the increments are also linear in the rows, without lengths or products of rows. The
        ODE may then be computed in any frame, orthonormal or not.
    rereads : bool
        Whether the gradients of a batch are needed after a move along them, or sample by sample.
        The Gram matrix of all samples is then needed.
    start_at_weights : tuple of str
        Names of the sets of rows that start at the weights; the others start at 0.
    initial_values : tuple of (str, str)
        Names of scalars or squares, each with the hyperparameter that is its initial value; the
        others start at 0.
    decay_inside : bool
        Whether weight decay is part of every gradient. Otherwise it is added to the increment.
    iterate : str
        Name of the rows that move along gradients. The weights, which define the network, may be an
        average of them.
    explicit_head_rate : bool
        Whether the step applies the learning rate of the head itself, with
        ``gradient.plain_step``.
    trains_head : bool
        Whether the update supports a trained head.
    allows_sphere : bool
        Whether the weights may be constrained to the sphere.
    noise : bool
        Whether the step draws ``gradient.noise()``.
    selects : bool
        Whether the step calls ``gradient.select``, once, for a random set of coordinates.
    delays : bool
        Whether the gradient is that of earlier weights, of which the step knows nothing.
    coordinatewise : bool
        Whether the step acts on each coordinate of the input space separately.
    axes : bool
        Whether the signals are axes of a coordinatewise step, instead of directions that spread
        over all coordinates.
    jumps : bool
        Whether the step is discontinuous where the gradient vanishes.
    bends : str
        Name of the hyperparameter at which the step has a kink, as a norm of the gradient over
        sqrt(D); empty if it has none.
    bends_by_row : bool
        Whether this norm is that of each row instead of the whole gradient.
    no_limit : str
        Reason why the update has no ODE, if one is known.
    scales : bool
        Whether the update is known to have a limit in its units. If not, the ODE compares two
        large values of D.
    state_rate : callable, optional
        Function of the overlaps that multiplies the step.
    on_sample : callable, optional
        Function of single samples of a data set that replaces dloss/dfields in every gradient
        (`sample_memory`).
    samples : tuple of str
        Names of the values that it stores for every sample.
    means : tuple of str
        Names of its means over the samples, which the step reads as ``gradient.means``.
    averaging : tuple of str
        Name of the hyperparameter c of an average over D/c steps, or of two whose ratio is c.
    equations : tuple of str
        The step as LaTeX, one assignment per line, with the gradient G = dloss/dW of a batch.
    image : str
        LaTeX of the image of h/B under an update without memory: the mean step is that of SGD with
        this image in place of h/B, for p x B gradients h in the fields of a batch.
    equivalent_rate : str
        LaTeX of the learning rate at which plain SGD has the same limit, for a memory of O(1)
        steps.
    """

    name: str
    step: Callable[..., Increments]
    rows: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    squares: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    fast_vectors: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    memory: str = "none"
    linear: bool = False
    linear_in_rows: bool = False
    rereads: bool = False
    start_at_weights: tuple[str, ...] = ()
    initial_values: tuple[tuple[str, str], ...] = ()
    decay_inside: bool = False
    iterate: str = "weights"
    explicit_head_rate: bool = False
    trains_head: bool = True
    allows_sphere: bool = True
    noise: bool = False
    selects: bool = False
    delays: bool = False
    coordinatewise: bool = False
    axes: bool = False
    jumps: bool = False
    bends: str = ""
    bends_by_row: bool = False
    no_limit: str = ""
    scales: bool = True
    state_rate: Function | None = None
    on_sample: Callable[..., Any] | None = None
    samples: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    averaging: tuple[str, ...] = ()
    equations: tuple[str, ...] = ()
    image: str = ""
    equivalent_rate: str = ""

    def vector_names(self, trained: bool) -> tuple[str, ...]:
        """Return the names of all vectors over the entries of a trained head.

        They are the parts of the squares that belong to the head, and the vectors of the law.
        """
        return (*self.squares, *self.vectors) if trained else ()

    def slow_vector_names(self, trained: bool) -> tuple[str, ...]:
        """Return the names of the vectors that are part of the ODE."""
        return tuple(name for name in self.vector_names(trained) if name not in self.fast_vectors)


def count_row_sets(law: Law | None) -> int:
    """Return the number of sets of p rows in the state: the weights and those of the update."""
    return 1 if law is None else 1 + len(law.rows)


# Hyperparameters in the formulas of `Law.equations`; others appear by their names.
SYMBOLS = {
    "beta": r"\beta",
    "memory": "c",
    "period": "m",
    "dual_lr": r"\sigma",
    "eps": r"\varepsilon",
    "threshold": r"\theta",
    "start": "s_0",
    "weight_decay": r"\omega",
    "rate": r"\omega",
    "head": r"\omega_a",
    "sigma": "s",
    "temperature": "T",
    "friction": r"\zeta",
    "velocity_rate": r"\mathrm{lr}_V",
    "delta": r"\delta",
    "offset": "o",
    "times": "k",
    "radius": "r",
    "reach": r"\varrho",
    "share": "q",
    "per_step": r"\kappa",
    "per_dimension": r"\tau",
}


def hyperparameter_symbol(name: str) -> str:
    """Return the symbol of a hyperparameter in formulas."""
    return SYMBOLS.get(name) or parameter_symbol(name)


# The plain step of a set of rows along a direction.
STEP = r"{rows} \leftarrow {rows} - \frac{{\mathrm{{lr}}}}{{D}} {direction}"


def step_equation(direction: str, rows: str = "W") -> str:
    """Return the LaTeX of a plain step of some rows against a direction."""
    return STEP.format(rows=rows, direction=direction)
