"""How it is learned: an update as a function of gradient rows.

Any update that commutes with rotations of the input space closes in the compressed space, so an algorithm sees only rows
(of W, in whatever orthonormal frame) and the rows of the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.updates.additions import thermal
from sgdynamics.algorithms.updates.gradient_source import Ground, Rows, Setting, increments
from sgdynamics.algorithms.updates.state_rate import check_state_rate, reads_state
from sgdynamics.algorithms.updates.update import Law, Update, checked_update
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
from sgdynamics.samples.input_covariance import trace
from sgdynamics.samples.spectra import UNITS

_ADAM = "Write update=sgd.updates.adam(memory=c, eps=..., beta=...), with 1 - beta2 = c/D."
HINTS = {
    "momentum": "Write update=sgd.updates.momentum(0.9).",
    "nesterov": "Write update=sgd.updates.nesterov(0.9).",
    "beta": "Write update=sgd.updates.momentum(beta).",
    "betas": _ADAM,
    "eps": _ADAM,
    "weight_decay": "It is an argument of the problem, or write update=sgd.updates.weight_decay(rate, of=...).",
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

        W <- W - (lr/D) dloss/dW,     a <- a - (head_rate lr/D) dloss/da,     t = lr steps/D,     alpha = samples/d

    Parameters
    ----------
    lr : float or callable, default 0.1
        The learning rate, of order 1 in these units. 0 stands for gradient flow, in theory only (t survives the limit, steps do not).
        A JAX function of alpha, or ``sgd.piecewise_rate``, is a schedule: then t is the integral of lr/batch over alpha.
    batch : int, float or callable, default 1
        Samples in a step, 1 or more. In ``solve_ode``, ``solve_sde`` and ``optimal_protocol`` it may be any number, and a function of
        alpha; a simulated step takes a whole number of samples, and another one in another phase of ``sgd.phases``.
    head_rate : float or callable, default 1.0
        The rate of a trained head relative to ``lr``; it may be a function of alpha.
    update : sgd.updates.Update, optional
        How a gradient becomes a step: plain steps unless given, or one of ``sgd.updates`` (momentum, adam, muon, own, ...).
    per : str, default "dimension"
        What D is: "dimension", D = d; "trace", the trace of the inputs' covariance (d for the identity), so that lr = O(1) is right for
        any spectrum; "step", D = 1: lr is the step itself, for problems whose covariance is a ``sgd.Spectrum``.
    temperature : float or callable, default 0.0
        T: after every step each coordinate of the rows receives sqrt(2 T lr)/D times a standard normal; it may be a function of alpha.

    Raises
    ------
    ValueError
        If a number is out of its range; the message names the argument, the value and what would be right.

    Examples
    --------
    >>> algorithm = sgd.OnePassSGD(lr=0.5, batch=2)
    >>> algorithm.replace(lr=0.2).lr
    0.2
    >>> algorithm.flow, sgd.OnePassSGD(lr=0.0).flow
    (False, True)
    """

    lr: Any = 0.1
    batch: Any = 1
    head_rate: Any = 1.0
    update: Update | None = None
    per: str = "dimension"
    temperature: Any = 0.0
    hot: bool = field(
        default=False, init=False, repr=False
    )  # whether there is a temperature: its number may be traced
    stated: Any = field(default=None, init=False, repr=False)  # what `on` has put into units of d
    unit: Any = field(default=1.0, init=False, repr=False)  # D/d there

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", checks.choice("per", self.per, UNITS))
        object.__setattr__(self, "batch", _checked_batch(self.batch))
        object.__setattr__(self, "head_rate", scalar_or_schedule("head_rate", self.head_rate))
        checked_update(self.update)
        if reads_state(self.lr):
            fix = "A rate that reads the state is update=sgd.updates.state_rate(f) with f(overlaps), times lr."
            raise checks.reject("lr", self.lr, fix)
        object.__setattr__(self, "lr", scalar_or_schedule("lr", self.lr))
        object.__setattr__(self, "temperature", scalar_or_schedule("temperature", self.temperature))
        object.__setattr__(
            self, "hot", isinstance(self.temperature, Schedule) or self.temperature > 0
        )
        _ = self.stepping  # refuse an update that has no kicks

    def replace(self, **changes: object) -> OnePassSGD:
        """The same algorithm with some of its arguments changed, checked as when it was made.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name: ``algorithm.replace(lr=0.2)``.

        Returns
        -------
        OnePassSGD
            A new one; this one stays as it is.

        Raises
        ------
        ValueError
            If there is no such argument, or its value is refused.
        """
        return checks.replace_fields(self, changes)

    def on(self, problem: Any) -> OnePassSGD:
        """The same algorithm with its learning rate in units of the problem's d: t = lr steps/D is the same in all units."""
        self._fits(problem)
        if isinstance(self.batch, Schedule) and not self.scheduled and not self.flow:
            # t is an integral over alpha then, as with a schedule of rates
            found = replace(self, lr=constant(self.lr)).on(problem)
            object.__setattr__(found, "stated", self)
            return found
        spectrum = getattr(problem, "spectrum", None)
        infinite = spectrum is not None and spectrum.infinite
        if self.per == "dimension":
            if infinite and self.stated is None:
                raise checks.reject(
                    "per", self.per, 'the dimension is infinite: take per="trace" or per="step"'
                )
            return self
        if "fields" not in problem.kinds:
            raise checks.reject(
                "per",
                self.per,
                'the inputs of this problem have no spectrum: leave it at "dimension"',
            )
        numbers = problem.parameters
        if self.per == "trace":
            factor = 1 / trace(numbers)
        elif spectrum is None:
            raise checks.reject(
                "per",
                self.per,
                "the problem does not fix the dimension: state its covariance as sgd.Spectrum(...)",
            )
        else:
            factor = numbers["multiplicities"].sum()
        # where d is infinite a schedule is one of steps
        if infinite and isinstance(self.batch, Schedule):
            raise checks.reject(
                "batch",
                self.batch,
                "where d is infinite numbers change with steps: give a constant batch",
            )
        stretch = numbers["multiplicities"].sum() / self.batch if infinite else 1.0
        lr = rescale_schedule(self.lr, factor, stretch) if self.scheduled else self.lr * factor
        others = (
            {
                name: rescale_schedules(getattr(self, name), stretch)
                for name in ("head_rate", "update", "temperature")
            }
            if infinite
            else {}
        )
        found = replace(
            self,
            lr=lr if self.scheduled else pytrees.to_python_scalar(lr),
            per="dimension",
            **others,
        )
        object.__setattr__(found, "stated", self)
        object.__setattr__(found, "unit", 1 / factor)
        return found

    def _fits(self, problem: Any) -> None:
        """Refuse an update that cannot train what the problem trains, and a batch that the theory of it does not know."""
        structure = getattr(problem, "structure", None)
        if not self.counts and (
            self.stepping is not None
            or "fields" not in problem.kinds
            or "snr = inf" in problem.kinds
        ):
            fix = "any number, or a function of alpha, is for plain steps on problems of fields: give a whole number, by sgd.phases several"
            raise checks.reject("batch", self.batch, fix)
        if self.law is not None and self.law.state_rate is not None:
            check_state_rate(self.law.state_rate, problem)
        if self.law is None or structure is None:
            return
        if structure.trained and not self.law.trains_head:
            raise checks.reject(
                "update",
                self.update,
                'it is for the rows, not for a head: take head="fixed", or another update',
            )
        if structure.heads > 1:
            raise checks.reject(
                "update",
                self.update,
                "contexts with heads of their own are trained by plain steps: leave update out",
            )
        if (
            structure.sample.context_spectra or structure.sample.noisy_inputs
        ) and self.law.coordinatewise:
            fix = "contexts with covariances of their own, and noise on inputs, are for updates that commute with rotations: take another"
            raise checks.reject("update", self.update, fix)
        if structure.constraint.fixes_norms and not self.law.holds_sphere:
            raise checks.reject(
                "update",
                self.update,
                "an average of rows does not stay on the sphere: take constraint=None",
            )

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate is a function of alpha."""
        return isinstance(self.lr, Schedule)

    @property
    def counts(self) -> bool:
        """Whether a step has a whole number of samples, always the same: what a simulation needs."""
        return isinstance(self.batch, int)

    @property
    def law(self) -> Law | None:
        """The law of its update; None for plain SGD."""
        return None if self.stepping is None else self.stepping.law

    @property
    def stepping(self) -> Update | None:
        """How its gradients become steps: the update, with the kicks of a temperature where there is one; None for plain SGD."""
        return thermal(self.temperature, self.update) if self.hot else self.update

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it is, in the table of what is supported."""
        if not self.counts:
            return ("other batch",)
        if self.law is None:
            return ()
        if self.update is None:
            return ("temperature",)
        return ("coordinatewise update",) if self.law.coordinatewise else ("other update",)

    @property
    def flow(self) -> bool:
        """Whether this is gradient flow."""
        return not self.scheduled and self.lr == 0.0

    def rates(self, alpha: np.ndarray) -> np.ndarray:
        """The learning rate at each alpha.

        Parameters
        ----------
        alpha : ndarray
            Samples over d.

        Returns
        -------
        ndarray
            One rate for each.

        Raises
        ------
        ValueError
            If a schedule is negative or not finite there.
        """
        if not isinstance(self.lr, Schedule):
            return np.full(np.shape(alpha), self.lr)
        return validate_values("lr", self.lr, alpha, "alpha")

    def batches(self, alpha: np.ndarray) -> np.ndarray:
        """The batch at each alpha.

        Parameters
        ----------
        alpha : ndarray
            Samples over d.

        Returns
        -------
        ndarray
            One number for each.

        Raises
        ------
        ValueError
            If a schedule is below 1 or not finite there.
        """
        if not isinstance(self.batch, Schedule):
            return np.full(np.shape(alpha), float(self.batch))
        return validate_values("batch", self.batch, alpha, "alpha")

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the algorithm, as a dictionary that JAX can trace."""
        numbers = {
            "lr": pytrees.to_float64(self.lr),
            "head_rate": pytrees.to_float64(self.head_rate),
        }
        if not self.counts:
            numbers["batch"] = pytrees.to_float64(self.batch)
        if self.stepping is None:
            return numbers
        # updates know lengths in units of D
        return (
            numbers
            | {"update": self.stepping.parameters}
            | ({} if self.stated is None else {"unit": pytrees.to_float64(self.unit)})
        )

    def describe(self) -> dict[str, Any]:
        """The algorithm as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments; "rerunnable" is False where a user's function is among them.
        """
        if self.stated is not None:
            return self.stated.describe()
        every = {
            name: describe_schedule(getattr(self, name)) for name in ("lr", "batch", "head_rate")
        }
        rerunnable = all(whole for _, whole in every.values())
        record = {
            "kind": type(self).__name__,
            **{name: value for name, (value, _) in every.items()},
        }
        if self.per != "dimension":
            record["per"] = self.per
        if self.hot:
            record["temperature"], also = describe_schedule(self.temperature)
            rerunnable = rerunnable and also
        if self.update is not None:
            record["update"] = self.update.describe()
            rerunnable = rerunnable and record["update"].pop("rerunnable", True)
        if not rerunnable:
            record["rerunnable"] = False
        return record


def _checked_batch(value: object) -> Any:
    """A whole number where it is one, else a number or a schedule for the theory."""
    fraction = (
        isinstance(value, (float, np.floating)) and math.isfinite(value) and value != int(value)
    )
    return (
        scalar_or_schedule("batch", value, 1.0)
        if callable(value) or fraction
        else checks.integer("batch", value, 1)
    )


def constant_rate(algorithm: OnePassSGD, what: str) -> float:
    """The learning rate where a question needs a constant one."""
    if algorithm.scheduled:
        raise checks.reject(
            "lr", algorithm.lr, f"{what} need a constant learning rate: give a number"
        )
    constant_head_rate(algorithm, what)
    return float(algorithm.lr)


def constant_head_rate(algorithm: OnePassSGD, what: str) -> float:
    """The head's rate where a question needs a constant one."""
    if isinstance(algorithm.head_rate, Schedule):
        raise checks.reject(
            "head_rate",
            algorithm.head_rate,
            f"{what} need a constant rate of the head: give a number",
        )
    return algorithm.head_rate


def checked_algorithm(
    value: object, question: str | None = None, problem: Any = None
) -> OnePassSGD:
    """An algorithm as an argument, in units of the problem's d: refuse what is none, and what a question is not answered for."""
    if question is not None:
        require(question, problem, value)
    if not isinstance(value, OnePassSGD):
        raise checks.reject("algorithm", value, "give sgd.OnePassSGD(...)")
    return value if problem is None else value.on(problem)


class Stride(NamedTuple):
    """How far a step goes: its size, the head's rate beside it, weight decay, and what moves or is held (a problem's structure)."""

    size: Any
    head_rate: Any
    weight_decay: Any
    structure: Any

    def move(
        self,
        rows: Float[Numeric, "p columns"],
        head: Float[Numeric, " p"],
        pulls: tuple[Any, Any],
        kick: Float[Numeric, "p columns"] | None = None,
        head_kick: Float[Numeric, " p"] | None = None,
    ) -> tuple[Float[Numeric, "p columns"], Float[Numeric, " p"]]:
        """Rows (p x columns of any orthonormal frame) and head after a step against their gradients; the kicks are added to them."""
        rows = rows * (1.0 - self.size * self.weight_decay) - self.size * pulls[0]
        if kick is not None:
            rows = rows + kick
        rows = self.structure.constraint.project_rows(rows)
        if self.structure.trained:
            head = head - self.head_rate * self.size * (pulls[1] + self.weight_decay * head)
            head = head if head_kick is None else head + head_kick
        return rows, head


def take_step(
    law: Law | None,
    algorithm: Parameters,
    state: Rows,
    ground: Ground,
    stride: Stride,
    dimension: Scalar | None,
    number: IntScalar,
) -> Rows:
    """One step of the algorithm on one batch; plain SGD unless an update has its `law`."""
    if law is None:
        return Rows(
            *stride.move(state.rows, state.head, ground.mean(state.rows, state.head, None, None)),
            signals=state.signals,
        )
    lr, D = algorithm["lr"], dimension
    if "unit" in algorithm:
        lr, D = lr * algorithm["unit"], dimension * algorithm["unit"]
    setting = Setting(lr, D, number, algorithm["head_rate"], stride.weight_decay, stride.structure)
    more = increments(law, algorithm["update"], state, ground, setting)
    rows, p = state.rows + more.rows, stride.structure.width
    if stride.structure.constraint.fixes_norms:
        rows = rows.at[:p].divide(jnp.sqrt(jnp.sum(rows[:p] ** 2, axis=-1, keepdims=True)))
    scalars, squares = (
        tuple(one + other for one, other in zip(*pair, strict=True))
        for pair in zip(state[2:4], more[2:4], strict=True)
    )
    head = state.head + more.head if stride.structure.trained else state.head
    return Rows(rows, head, scalars, squares, state.signals)
