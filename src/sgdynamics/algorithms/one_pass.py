"""One-pass SGD: an update as a function of gradient rows.

Any update that commutes with rotations of the input space closes in the compressed space. An
algorithm therefore only sees the rows of W, in any orthonormal frame, and the rows of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.head_rates import (
    describe_head_rate,
    is_static,
    stated_head_rate,
    validate_head_rate,
    with_leaf_rates,
)
from sgdynamics.algorithms.trainable import Trainable
from sgdynamics.algorithms.updates.additions import thermal
from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    increments,
)
from sgdynamics.algorithms.updates.law import Law
from sgdynamics.algorithms.updates.sample_memory import require_no_rule
from sgdynamics.algorithms.updates.state_rate import check_state_rate, reads_state
from sgdynamics.algorithms.updates.update import Update, validate_update
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, Scalar
from sgdynamics.base.controls import (
    Schedule,
    constant,
    describe_schedule,
    rescale_schedule,
    rescale_schedules,
    scalar_or_schedule,
    validate_values,
)
from sgdynamics.base.support import require
from sgdynamics.problems.structure import Structure
from sgdynamics.samples.input_covariance import trace
from sgdynamics.samples.spectra import UNITS

_ADAM = "Write update=sgd.updates.adam(memory=c, eps=..., beta=...), with 1 - beta2 = c/D."
HINTS = {
    "momentum": "Write update=sgd.updates.momentum(0.9).",
    "nesterov": "Write update=sgd.updates.nesterov(0.9).",
    "beta": "Write update=sgd.updates.momentum(beta).",
    "betas": _ADAM,
    "eps": _ADAM,
    "weight_decay": "Set it in the problem, or write "
    "update=sgd.updates.weight_decay(rate, of=...).",
    "learning_rate": "Write lr=...",
    "batch_size": "Write batch=...",
    "optimizer": "Write update=..., one of sgd.updates.",
    "optimiser": "Write update=..., one of sgd.updates.",
}


@pytrees.register_parameters(
    "lr", "batch", "head_rate", "update", "temperature", static_integers=("batch",)
)
@checks.argument_hints(HINTS)
@dataclass(frozen=True)
class OnePassSGD:
    """One-pass SGD: a fresh batch of samples each step, and the mean gradient over it.

    ::

        W <- W - (lr/D) dloss/dW,     a <- a - (head_rate lr/D) dloss/da,
        t = lr steps/D,               alpha = samples/d

    Parameters
    ----------
    lr : float or callable, default 0.1
        Learning rate, of order 1 in these units. 0 means gradient flow, which only the theory
        supports. A JAX function of alpha, or ``sgd.piecewise_rate``, is a schedule; t is then the
        integral of lr/batch over alpha.
    batch : int, float or callable, default 1
        Number of samples per step, at least 1. ``solve_ode``, ``solve_sde`` and
        ``optimal_protocol`` also accept real numbers and functions of alpha; simulations need an
        integer, which can differ between the phases of ``sgd.phases``.
    head_rate : float, callable, dict or str, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of alpha. For a problem
        with a top also by leaf, ``{"B": 1.0, "b": 0.5}``, 1 for those that are left out. "static"
        keeps head or top at its optimum for the current overlaps, in ``solve_ode``.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates`` (momentum, adam, muon, own, ...). Defaults to plain SGD.
    per : str, default "dimension"
        Unit D of the step: "dimension", D = d; "trace", the trace of the input covariance, so that
        lr = O(1) suits any spectrum; "step", D = 1, so that lr is the step size itself, for
        problems whose covariance is a ``sgd.Spectrum``.
    temperature : float or callable, default 0.0
        Temperature T, or a function of alpha: after every step each coordinate of the rows receives
        sqrt(2 T lr)/D times a standard normal.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> algorithm = sgd.OnePassSGD(lr=0.5, batch=2)
    >>> algorithm.replace(lr=0.2).lr
    0.2
    >>> algorithm.flow, sgd.OnePassSGD(lr=0.0).flow
    (False, True)
    """

    # A user writes these as numbers or functions, and a solver that has checked the support table
    # reads them as numbers: hence `Any`.
    lr: Any = 0.1
    batch: Any = 1
    head_rate: Any = 1.0
    update: Update | None = None
    per: str = "dimension"
    temperature: Any = 0.0
    # Whether there is a temperature, whose value may be traced.
    has_thermal_noise: bool = field(default=False, init=False, repr=False)
    # The algorithm as the user wrote it, after `on` has converted it to units of d.
    stated: OnePassSGD | None = field(default=None, init=False, repr=False)
    # D/d of the conversion.
    unit: Scalar = field(default=1.0, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", checks.choice("per", self.per, UNITS))
        object.__setattr__(self, "batch", _validate_batch(self.batch))
        object.__setattr__(self, "head_rate", validate_head_rate(self.head_rate))
        require_no_rule(validate_update(self.update), "one pass")
        if reads_state(self.lr):
            fix = (
                "the rate depends on the state. Use update=sgd.updates.state_rate(f) with a "
                "function f(overlaps), which multiplies lr."
            )
            raise checks.reject("lr", self.lr, fix)
        object.__setattr__(self, "lr", scalar_or_schedule("lr", self.lr))
        object.__setattr__(self, "temperature", scalar_or_schedule("temperature", self.temperature))
        object.__setattr__(
            self,
            "has_thermal_noise",
            isinstance(self.temperature, Schedule) or self.temperature > 0,
        )
        _ = self.stepping  # raises ValueError for an update without thermal noise

    def replace(self, **changes: object) -> OnePassSGD:
        """Return a copy with some arguments changed.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name: ``algorithm.replace(lr=0.2)``.

        Returns
        -------
        OnePassSGD
            A new algorithm; this one is not changed.

        Raises
        ------
        ValueError
            If an argument does not exist or its value is invalid.
        """
        return checks.replace_fields(self, changes)

    def on(self, problem: Trainable) -> OnePassSGD:
        """Return the algorithm with its rates in units of the problem's d, leaf by leaf.

        The time t = lr steps/D does not depend on the unit.
        """
        return with_leaf_rates(self._in_units_of(problem), problem)

    def _in_units_of(self, problem: Trainable) -> OnePassSGD:
        """Return the algorithm with its learning rate in units of the problem's d."""
        self._check_problem(problem)
        if isinstance(self.batch, Schedule) and not self.scheduled and not self.flow:
            # t is then an integral over alpha, as for a schedule of the learning rate
            converted = replace(self, lr=constant(self.lr))._in_units_of(problem)
            object.__setattr__(converted, "stated", self)
            return converted
        spectrum = getattr(problem, "spectrum", None)
        infinite = spectrum is not None and spectrum.infinite
        if self.per == "dimension":
            if infinite and self.stated is None:
                raise checks.reject(
                    "per", self.per, 'the dimension is infinite. Use per="trace" or per="step".'
                )
            return self
        if "fields" not in problem.kinds:
            raise checks.reject(
                "per",
                self.per,
                'the inputs of this problem have no spectrum. Use per="dimension".',
            )
        parameters = problem.parameters
        if self.per == "trace":
            factor = 1 / trace(parameters)
        elif spectrum is None:
            raise checks.reject(
                "per",
                self.per,
                "the problem does not fix the dimension. Set its covariance to sgd.Spectrum(...).",
            )
        else:
            factor = parameters["multiplicities"].sum()
        # At infinite d schedules are functions of the step.
        if infinite and isinstance(self.batch, Schedule):
            raise checks.reject(
                "batch",
                self.batch,
                "schedules are functions of the step if d is infinite. Use a constant batch.",
            )
        stretch = parameters["multiplicities"].sum() / self.batch if infinite else 1.0
        if self.scheduled:
            lr = rescale_schedule(self.lr, factor, stretch)
        else:
            lr = pytrees.to_python_scalar(self.lr * factor)
        rescaled = {}
        if infinite:
            rescaled = {
                name: rescale_schedules(getattr(self, name), stretch)
                for name in ("head_rate", "update", "temperature")
            }
        converted = replace(self, lr=lr, per="dimension", **rescaled)
        object.__setattr__(converted, "stated", self)
        object.__setattr__(converted, "unit", 1 / factor)
        return converted

    def _check_problem(self, problem: Trainable) -> None:
        """Raise ValueError for an update or a batch size that does not suit the problem."""
        structure = getattr(problem, "structure", None)
        if not self.counts and (
            self.stepping is not None
            or "fields" not in problem.kinds
            or "snr = inf" in problem.kinds
        ):
            fix = (
                "non-integer or scheduled batch sizes are only supported for plain SGD. Use an "
                "integer; to change it during training use sgd.phases."
            )
            raise checks.reject("batch", self.batch, fix)
        if self.law is not None and self.law.state_rate is not None:
            check_state_rate(self.law.state_rate, problem)
        if self.has_static_head and structure is not None:
            self._check_static_head(structure)
        if self.law is not None and structure is not None:
            check_update(self.update, self.law, structure)
            if structure.top is not None:
                check_top(self.update)

    def _check_static_head(self, structure: Structure) -> None:
        """Raise ValueError unless there is a head that can follow its optimum."""
        if not structure.trained:
            fix = 'the head is fixed. Omit head_rate, or use head="trained" or a top.'
            raise checks.reject("head_rate", "static", fix)
        if self.stepping is not None:
            fix = "a static head needs plain SGD. Omit update and temperature."
            raise checks.reject("update", self.stepping, fix)

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate is a function of alpha."""
        return isinstance(self.lr, Schedule)

    @property
    def counts(self) -> bool:
        """Whether the batch size is a constant integer, which simulations need."""
        return isinstance(self.batch, int)

    @property
    def law(self) -> Law | None:
        """Law of the update; None for plain SGD."""
        return None if self.stepping is None else self.stepping.law

    @property
    def stepping(self) -> Update | None:
        """Update including the thermal noise of a temperature; None for plain SGD."""
        return thermal(self.temperature, self.update) if self.has_thermal_noise else self.update

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the algorithm in the support table."""
        static = ("static head",) if self.has_static_head else ()
        if not self.counts:
            return (*static, "other batch")
        if self.law is None:
            return static
        if self.update is None:
            return (*static, "temperature")
        if self.law.delays:
            return (*static, "delayed update")
        return (*static, "coordinatewise update" if self.law.coordinatewise else "other update")

    @property
    def has_static_head(self) -> bool:
        """Whether the head is at its optimum for the current overlaps."""
        return is_static(self.head_rate)

    @property
    def flow(self) -> bool:
        """Whether this is gradient flow."""
        return not self.scheduled and self.lr == 0.0

    def rates(self, alpha: np.ndarray) -> np.ndarray:
        """Learning rate at each alpha.

        Parameters
        ----------
        alpha : ndarray
            Samples divided by d.

        Returns
        -------
        ndarray
            Learning rate at each value.

        Raises
        ------
        ValueError
            If the schedule is negative or not finite.
        """
        if not isinstance(self.lr, Schedule):
            return np.full(np.shape(alpha), self.lr)
        return validate_values("lr", self.lr, alpha, "alpha")

    def batches(self, alpha: np.ndarray) -> np.ndarray:
        """Batch size at each alpha.

        Parameters
        ----------
        alpha : ndarray
            Samples divided by d.

        Returns
        -------
        ndarray
            Batch size at each value.

        Raises
        ------
        ValueError
            If the schedule is below 1 or not finite.
        """
        if not isinstance(self.batch, Schedule):
            return np.full(np.shape(alpha), float(self.batch))
        return validate_values("batch", self.batch, alpha, "alpha")

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters as a dictionary that JAX can trace."""
        hyperparameters = {
            "lr": pytrees.to_float64(self.lr),
            # A static head does not read its rate, and must not make a product with 0 NaN.
            "head_rate": pytrees.to_float64(1.0 if self.has_static_head else self.head_rate),
        }
        if not self.counts:
            hyperparameters["batch"] = pytrees.to_float64(self.batch)
        if self.stepping is None:
            return hyperparameters
        hyperparameters["update"] = self.stepping.parameters
        if self.stated is not None:
            # Lengths in an update are in units of D.
            hyperparameters["unit"] = pytrees.to_float64(self.unit)
        return hyperparameters

    def describe(self) -> dict[str, Any]:
        """Return the algorithm as plain values, for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments; "rerunnable" is False if a user's function is among them.
        """
        if self.stated is not None:
            return self.stated.describe()
        described = {name: describe_schedule(getattr(self, name)) for name in ("lr", "batch")}
        described["head_rate"] = describe_head_rate(stated_head_rate(self))
        rerunnable = all(is_complete for _, is_complete in described.values())
        record = {
            "kind": type(self).__name__,
            **{name: value for name, (value, _) in described.items()},
        }
        if self.per != "dimension":
            record["per"] = self.per
        if self.has_thermal_noise:
            record["temperature"], is_complete = describe_schedule(self.temperature)
            rerunnable = rerunnable and is_complete
        if self.update is not None:
            record["update"] = self.update.describe()
            rerunnable = rerunnable and record["update"].pop("rerunnable", True)
        if not rerunnable:
            record["rerunnable"] = False
        return record


def check_top(update: Update | None) -> None:
    """Raise ValueError for an update that has no meaning for a top.

    Updates of the whole gradient act on the top coordinate by coordinate, or by its length. Those
    of single rows do not, because the numbers of a top belong to no row.
    """
    if update is not None and ("over", "row") in update.options:
        fix = 'a top belongs to no row. Use over="matrix", or plain SGD.'
        raise checks.reject("update", update, fix)


def check_update(update: Update | None, law: Law, structure: Structure) -> None:
    """Raise ValueError if an update does not suit the structure of a problem."""
    if structure.trained and not law.trains_head:
        raise checks.reject(
            "update",
            update,
            'this update does not train a head. Use head="fixed" or another update.',
        )
    if law.vectors and not structure.trained:
        fix = 'the head is fixed. Use head="trained", a top, or the update of the rows alone.'
        raise checks.reject("update", update, fix)
    _check_leaves(law, structure)
    if structure.heads > 1:
        raise checks.reject(
            "update",
            update,
            "contexts with separate heads are only supported for plain SGD. Omit update.",
        )
    if (structure.sample.context_spectra or structure.sample.noisy_inputs) and law.coordinatewise:
        fix = (
            "coordinatewise updates do not support input noise or contexts with different "
            "covariances. Use an update that commutes with rotations."
        )
        raise checks.reject("update", update, fix)
    if structure.constraint.fixes_norms and not law.allows_sphere:
        raise checks.reject(
            "update",
            update,
            "an average of rows does not stay on the sphere. Use constraint=None.",
        )


def _check_leaves(law: Law, structure: Structure) -> None:
    """Raise ValueError for updates of leaves that do not exist, or that overlap."""
    claimed: set[int] = set()
    for key in law.leaves:
        if structure.top is None:
            fix = "updates by leaf are for problems with a top, sgd.Problem(..., top=...)."
            raise checks.reject("head", key, fix)
        leaves = structure.top.leaves_of(key)
        if not leaves or claimed & set(leaves):
            names = ", ".join(structure.top.names)
            fix = f"give each leaf one update at most; the leaves of the top are {names}"
            raise checks.reject("head", key, fix)
        claimed |= set(leaves)


def _validate_batch(value: object) -> int | float | Schedule:
    """Return an integer if possible, else a real number or a schedule for the theory."""
    is_real = isinstance(value, (float, np.floating))
    is_fraction = is_real and math.isfinite(value) and value != int(value)
    if callable(value) or is_fraction:
        return scalar_or_schedule("batch", value, 1.0)
    return checks.integer("batch", value, 1)


def constant_rate(algorithm: OnePassSGD, subject: str) -> float:
    """Return the learning rate, or raise ValueError if it is a schedule.

    `subject` is the plural noun for the message, such as "fixed points".
    """
    if algorithm.scheduled:
        raise checks.reject(
            "lr", algorithm.lr, f"{subject} need a constant learning rate. Use a number."
        )
    constant_head_rate(algorithm, subject)
    return float(algorithm.lr)


def constant_head_rate(algorithm: OnePassSGD, subject: str) -> Any:
    """Return the rate of the head, or raise ValueError if it is a schedule."""
    rates = algorithm.head_rate
    by_leaf = rates.values() if isinstance(rates, Mapping) else (rates,)
    if any(isinstance(rate, Schedule) for rate in by_leaf):
        raise checks.reject(
            "head_rate", rates, f"{subject} need a constant rate of the head. Use a number."
        )
    return rates


def validate_algorithm(
    value: object, question: str | None = None, problem: Trainable | None = None
) -> OnePassSGD:
    """Validate `algorithm=`, check the support table, and convert lr to the problem's d."""
    if question is not None:
        require(question, problem, value)
    if not isinstance(value, OnePassSGD):
        raise checks.reject("algorithm", value, "use sgd.OnePassSGD(...)")
    return value if problem is None else value.on(problem)


class Stride(NamedTuple):
    """The parameters of a plain step.

    Attributes
    ----------
    size : float
        Length lr/D of the step.
    head_rate : float
        Learning rate of the head relative to that of the rows.
    weight_decay : float
        Weight decay of the rows.
    structure : Structure
        Structure of the problem.
    head_decay : float or array
        Weight decay of the head, or of each entry of the top; None for that of the rows.
    """

    size: Scalar
    head_rate: Scalar | Numeric
    weight_decay: Scalar
    structure: Structure
    head_decay: Scalar | Numeric | None = None

    def move(
        self,
        rows: Float[Numeric, "p columns"],
        head: Float[Numeric, " p"],
        gradients: tuple[Numeric, Numeric],
        kick: Float[Numeric, "p columns"] | None = None,
        head_kick: Float[Numeric, " p"] | None = None,
    ) -> tuple[Float[Numeric, "p columns"], Float[Numeric, " p"]]:
        """Return rows and head after a step against their gradients, plus random kicks.

        W <- W - size (dloss/dW + weight_decay W) + kick, normalised on the sphere, and the same for
        a trained head with its relative rate. The columns of the rows are coordinates in any
        orthonormal frame.
        """
        rows = rows * (1.0 - self.size * self.weight_decay) - self.size * gradients[0]
        if kick is not None:
            rows = rows + kick
        rows = self.structure.constraint.project_rows(rows)
        if self.structure.trained:
            decay = self.weight_decay if self.head_decay is None else self.head_decay
            head = head - self.head_rate * self.size * (gradients[1] + decay * head)
            head = head if head_kick is None else head + head_kick
        return rows, head


def take_step(
    law: Law | None,
    algorithm: Parameters,
    state: Rows,
    source: GradientSource,
    stride: Stride,
    dimension: Scalar | None,
    number: IntScalar,
    kicks: tuple[Numeric, Numeric] | None = None,
) -> Rows:
    """Take one step on one batch, of plain SGD or of an update with a `law`.

    Plain SGD does not need the dimension. The `kicks` of rows and head are added to an update
    before rows on the sphere are normalised.
    """
    if law is None:
        gradients = source.mean(state.rows, state.head, None, None)
        return Rows(*stride.move(state.rows, state.head, gradients), signals=state.signals)
    assert dimension is not None
    lr, D = algorithm["lr"], dimension
    if "unit" in algorithm:
        lr, D = lr * algorithm["unit"], dimension * algorithm["unit"]
    setting = StepSettings(
        lr,
        D,
        number,
        algorithm["head_rate"],
        stride.weight_decay,
        stride.structure,
        stride.head_decay,
    )
    change = increments(law, algorithm["update"], state, source, setting)
    rows, p = jnp.asarray(state.rows + change.rows), stride.structure.width
    head = state.head + change.head if stride.structure.trained else state.head
    if kicks is not None:
        rows = rows.at[:p].add(kicks[0])
        if stride.structure.trained:
            head = jnp.asarray(head).at[: len(kicks[1])].add(kicks[1])
    if stride.structure.constraint.fixes_norms:
        lengths = jnp.sqrt(jnp.sum(rows[:p] ** 2, axis=-1, keepdims=True))
        rows = jnp.asarray(rows).at[:p].divide(lengths)
    scalars = tuple(x + dx for x, dx in zip(state.scalars, change.scalars, strict=True))
    squares = tuple(x + dx for x, dx in zip(state.squares, change.squares, strict=True))
    vectors = tuple(x + dx for x, dx in zip(state.vectors, change.vectors, strict=True))
    return Rows(rows, head, scalars, squares, state.signals, vectors=vectors)
