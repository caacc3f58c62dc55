"""Algorithms on a fixed data set: gradient descent, multi-pass and persistent SGD, Langevin.

A data set of n = samples_per_dimension d samples is drawn once. A step is

    W <- W - lr (1/(b n)) sum_mu s_mu dloss_mu/dW + sqrt(2 T lr/d) N(0, I),     t = lr steps,

with the selection s_mu in {0, 1} of the samples (all of them, or each with probability b, the batch
fraction) and the temperature T. All four algorithms are this step with different hyperparameters,
so that direct simulation, the exact law and DMFT share it.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from sgdynamics.algorithms.head_rates import (
    describe_head_rate,
    stated_head_rate,
    validate_head_rate,
)
from sgdynamics.algorithms.updates.law import Law
from sgdynamics.algorithms.updates.update import Update, validate_update
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, Scalar
from sgdynamics.base.controls import (
    Schedule,
    describe_schedule,
    is_scheduled,
    scalar_or_schedule,
    validate_values,
    values_at,
)
from sgdynamics.base.precision import float64

# Largest number of tabulated steps of a learning rate that depends on t.
MAX_TABULATED_STEPS = 1 << 22
# Fields that JAX traces.
TRACED_FIELDS = ("lr", "samples_per_dimension", "head_rate", "update")


_UPDATE = "Write update=sgd.updates.momentum(0.9), or another of sgd.updates."
HINTS = {
    **dict.fromkeys(("momentum", "nesterov", "beta", "betas", "optimizer", "optimiser"), _UPDATE),
    "weight_decay": "Set it in the problem.",
    "learning_rate": "Write lr=...",
    "batch_size": "Use sgd.MultiPassSGD(batch_fraction=...) or sgd.EpochSGD(batch=...).",
}


@dataclass(frozen=True)
class FixedData:
    """Base class of the algorithms on a fixed data set."""

    # A user writes the rates as numbers or functions, and a solver that has checked the support
    # table reads them as numbers: hence `Any`.
    lr: Any = 0.01
    samples_per_dimension: float = 3.0
    head_rate: Any = 1.0
    update: Update | None = field(default=None, kw_only=True)

    # Kind in the support table.
    kind_on_data: ClassVar[str] = "fixed data"
    # Variable of a learning-rate schedule.
    rate_of: ClassVar[str] = "t"
    # Order of the samples in an epoch (`epochs`). Not a ClassVar: dataclasses keep its position, so
    # the field `order` of `EpochSGD` would precede its other fields.
    order = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "lr", scalar_or_schedule("lr", self.lr, above=0.0, variable=self.rate_of)
        )
        object.__setattr__(
            self,
            "samples_per_dimension",
            checks.number("samples_per_dimension", self.samples_per_dimension, above=0.0),
        )
        object.__setattr__(self, "head_rate", validate_head_rate(self.head_rate, "t"))
        validate_update(self.update)
        if self.law is not None and self.law.delays:
            fix = "delays are only supported for fresh samples. Use sgd.OnePassSGD(update=...)."
            raise checks.reject("update", self.update, fix)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the algorithm in the support table."""
        if self.law is None:
            return (self.kind_on_data,)
        kind = "coordinatewise update on data" if self.law.coordinatewise else "update on data"
        return (self.kind_on_data, kind)

    @property
    def law(self) -> Law | None:
        """Law of the update; None for plain steps."""
        return None if self.update is None else self.update.law

    def replace(self, **changes: object) -> Self:
        """Return a copy with some arguments changed.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name: ``algorithm.replace(lr=0.02)``.

        Returns
        -------
        GradientDescent, MultiPassSGD, PersistentSGD, Langevin or EpochSGD
            A new algorithm of the same class; this one is not changed.

        Raises
        ------
        ValueError
            If an argument does not exist or its value is invalid.
        """
        return checks.replace_fields(self, changes)

    @property
    def selects(self) -> bool:
        """Whether a step uses only a part of the samples."""
        return False

    @property
    def has_thermal_noise(self) -> bool:
        """Whether a step adds white noise."""
        return False

    @property
    def fraction(self) -> float:
        """Mean fraction of the samples used in a step."""
        return 1.0

    def switching(self) -> tuple[float, float]:
        """Return the probabilities that a sample enters and leaves the batch in one step."""
        return 1.0, 0.0

    @property
    def divisor(self) -> float:
        """Divisor of the sum over the selected samples, in addition to n."""
        return 1.0

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters as a dictionary that JAX can trace."""
        on, off = self.switching()
        values = {"fraction": self.fraction, "divisor": self.divisor, "on": on, "off": off}
        if isinstance(self.lr, Schedule) and isinstance(self, PersistentSGD):
            values["per_time"] = 1.0
        values |= {
            "lr": self.lr,
            "head_rate": self.head_rate,
            "temperature": getattr(self, "temperature", 0.0),
        }
        values = {name: pytrees.to_float64(value) for name, value in values.items()}
        return values if self.update is None else values | {"update": self.update.parameters}

    def check_times(self, times: np.ndarray) -> None:
        """Raise ValueError if a scheduled hyperparameter other than lr leaves its range."""
        for name in ("temperature", "head_rate"):
            if isinstance(value := getattr(self, name, 0.0), Schedule):
                validate_values(name, value, times, "t")
        hyperparameters = {} if self.update is None else self.update.parameters
        for leaf in jax.tree.leaves(hyperparameters, is_leaf=is_scheduled):
            if is_scheduled(leaf) and leaf.within is not None:
                validate_values(leaf.within.argument, leaf, times, "t")

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate is a function of t."""
        return isinstance(self.lr, Schedule)

    def step_times(self, steps: float, until: float = math.inf) -> np.ndarray:
        """Return t before each step, for at least `steps` + 1 steps or up to `until`.

        The length of the array is a power of two.
        """
        assert isinstance(self.lr, Schedule)
        count, times = 1 << 8, np.zeros(1)
        while len(times) < steps + 2 and times[-1] < until:
            if count > MAX_TABULATED_STEPS:
                fix = (
                    f"a schedule supports at most {MAX_TABULATED_STEPS} steps. Use fewer steps "
                    "or a constant lr."
                )
                raise checks.reject("lr", self.lr, fix)
            times, count = self.tabulate(count), 2 * count
            is_positive = np.diff(times) > 0
            if not np.all(is_positive):
                t = float(times[np.argmin(is_positive)])
                raise checks.reject(
                    "lr",
                    self.lr,
                    f"the schedule is not positive at t = {t:g}. Use positive learning rates.",
                )
        return times

    def tabulate(self, count: int) -> np.ndarray:
        """Return t before each of `count` steps of a scheduled learning rate."""
        return _step_times(self.lr, count)

    def with_tabulated_rate(self, steps: float) -> Self:
        """Return the algorithm with a scheduled learning rate tabulated for this many steps."""
        if not isinstance(self.lr, Schedule):
            return self
        table = self.step_times(steps)
        tabulated = copy(self)
        object.__setattr__(tabulated, "lr", Schedule(_tabulated_step, {"times": table}, "table"))
        object.__setattr__(tabulated, "_stated", self)
        sizes = np.diff(table[: int(steps) + 2])
        # The probabilities of `switching` are per unit of t if the learning rate is scheduled.
        if isinstance(self, PersistentSGD) and max(self.switching()) * sizes.max(initial=0.0) > 1:
            fix = (
                f"at the largest lr = {sizes.max():g} a sample would switch with a probability "
                "above 1 per step. Use a longer time."
            )
            raise checks.reject("persistence_time", self.persistence_time, fix)
        return tabulated

    def samples(self, dimension: int) -> int:
        """Size of the data set at dimension d.

        Parameters
        ----------
        dimension : int
            The dimension d.

        Returns
        -------
        int
            samples_per_dimension times d, rounded.

        Raises
        ------
        ValueError
            If this is less than one sample, or too large.
        """
        count = self.samples_per_dimension * dimension
        if not count < checks.MAX_INT64:
            raise checks.reject(
                "samples_per_dimension",
                self.samples_per_dimension,
                f"this is {count:.3g} samples at d = {dimension}. Use a smaller value.",
            )
        count = round(count)
        if count < 1:
            raise checks.reject(
                "samples_per_dimension",
                self.samples_per_dimension,
                f"this is less than one sample at d = {dimension}. Use a larger value.",
            )
        return count

    def describe(self) -> dict[str, Any]:
        """Return the algorithm as plain values, for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments; "rerunnable" is False if a user's function is among them.
        """
        stated = getattr(self, "_stated", self)
        record: dict[str, Any] = {"kind": type(self).__name__}
        rerunnable = True
        for argument in fields(self):
            if argument.name == "update":
                if stated.update is None:
                    continue
                value = stated.update.describe()
                is_complete = value.pop("rerunnable", True)
            elif argument.name == "head_rate":
                value, is_complete = describe_head_rate(stated_head_rate(stated))
            else:
                value, is_complete = describe_schedule(getattr(stated, argument.name))
            record[argument.name] = int(value) if isinstance(value, bool) else value
            rerunnable = rerunnable and is_complete
        return record if rerunnable else {**record, "rerunnable": False}


@pytrees.register_parameters(*TRACED_FIELDS)
@checks.argument_hints(HINTS)
@dataclass(frozen=True)
class GradientDescent(FixedData):
    """Full-batch gradient descent on a fixed data set.

    ::

        W <- W - lr d(mean loss)/dW,     a <- a - head_rate lr d(mean loss)/da,     t = lr steps

    Parameters
    ----------
    lr : float or callable, default 0.01
        Learning rate, by which a step increases t, or a function of t.
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d.
    head_rate : float or callable, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of t.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates``, in units of a full batch (D = 1): thresholds and radii
        are norms, and ``memory=c`` is a rate per step. Defaults to plain steps.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> algorithm = sgd.GradientDescent(lr=0.05, samples_per_dimension=2.0)
    >>> algorithm.samples(500)
    1000
    """


@pytrees.register_parameters(*TRACED_FIELDS, "batch_fraction")
@checks.argument_hints(HINTS)
@dataclass(frozen=True)
class MultiPassSGD(FixedData):
    """Multi-pass SGD: at every step each sample of a fixed data set is drawn independently.

    A sample is in the batch with probability ``batch_fraction``.

    Parameters
    ----------
    lr : float or callable, default 0.01
        Learning rate, by which a step increases t, or a function of t.
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d.
    head_rate : float or callable, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of t.
    batch_fraction : float, default 0.5
        Fraction of the samples in a batch, above 0 and at most 1.
    rescale : bool, default True
        Whether to divide the sum over the batch by batch_fraction n (the mean over the batch) or by
        n.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates``, in units of a full batch (D = 1): thresholds and radii
        are norms, and ``memory=c`` is a rate per step. Defaults to plain steps.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    Source: Mignacco, Urbani, Zdeborova (2021), eq. (6). Drawing with replacement would not be
    gradient descent at fraction 1.

    Examples
    --------
    >>> sgd.MultiPassSGD(lr=0.01, batch_fraction=0.2).fraction
    0.2
    """

    batch_fraction: float = 0.5
    rescale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction = checks.number("batch_fraction", self.batch_fraction, above=0.0)
        if fraction > 1:
            raise checks.reject(
                "batch_fraction",
                self.batch_fraction,
                "use a fraction of the samples above 0 and at most 1",
            )
        object.__setattr__(self, "batch_fraction", fraction)
        object.__setattr__(self, "rescale", checks.flag("rescale", self.rescale))

    @property
    def selects(self) -> bool:
        return self.batch_fraction < 1

    @property
    def fraction(self) -> float:
        return self.batch_fraction

    @property
    def divisor(self) -> float:
        return self.batch_fraction if self.rescale else 1.0

    def switching(self) -> tuple[float, float]:
        return self.batch_fraction, 1 - self.batch_fraction


@pytrees.register_parameters(*TRACED_FIELDS, "batch_fraction", "persistence_time")
@checks.argument_hints(HINTS)
@dataclass(frozen=True)
class PersistentSGD(MultiPassSGD):
    """Persistent SGD: a sample stays out of the batch for ``persistence_time`` on average.

    The time it stays in the batch is such that the batch keeps its mean size.

    Parameters
    ----------
    lr : float or callable, default 0.01
        Learning rate, by which a step increases t, or a function of t.
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d.
    head_rate : float or callable, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of t.
    batch_fraction : float, default 0.5
        Fraction b of the samples in a batch, above 0 and at most 1.
    rescale : bool, default True
        Whether to divide the sum over the batch by batch_fraction n (the mean over the batch) or by
        n.
    persistence_time : float, default 1.0
        Mean time that a sample stays out of the batch, in t.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates``, in units of a full batch (D = 1): thresholds and radii
        are norms, and ``memory=c`` is a rate per step. Defaults to plain steps.

    Raises
    ------
    ValueError
        If a value is out of range, or a sample would switch with a probability above 1 per step.

    Notes
    -----
    Per step a sample enters with probability lr/persistence_time and leaves with
    (1 - b) lr/(b persistence_time). The limit lr -> 0 is not gradient flow. Source: Mignacco,
    Urbani, Zdeborova (2021), eq. (7), whose b is the batch fraction.

    Examples
    --------
    >>> sgd.PersistentSGD(lr=0.01, batch_fraction=0.5, persistence_time=2.0).switching()
    (0.005, 0.005)
    """

    persistence_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        tau = checks.number("persistence_time", self.persistence_time, above=0.0)
        b = self.batch_fraction
        object.__setattr__(self, "persistence_time", tau)
        on, off = self.switching()
        if not self.scheduled and (on > 1 or off > 1):
            least = self.lr * max(1.0, (1 - b) / b)
            raise checks.reject(
                "persistence_time",
                tau,
                f"a sample would switch with probability {max(on, off):.4g} > 1 per step. With "
                f"lr = {self.lr:g} and batch_fraction = {b:g} use {least:.6g} or more.",
            )

    def switching(self) -> tuple[float, float]:
        on = (1.0 if self.scheduled else self.lr) / self.persistence_time
        return on, on * (1 - self.batch_fraction) / self.batch_fraction


@pytrees.register_parameters(*TRACED_FIELDS, "temperature")
@checks.argument_hints(HINTS)
@dataclass(frozen=True)
class Langevin(FixedData):
    """Langevin dynamics: gradient descent with noise sqrt(2 T lr/d) N(0, I) added at every step.

    On the sphere the noise is added before the rows are normalised.

    Parameters
    ----------
    lr : float or callable, default 0.01
        Learning rate, by which a step increases t, or a function of t.
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d.
    head_rate : float or callable, default 1.0
        Learning rate of a trained head relative to ``lr``, or a function of t.
    temperature : float or callable, default 1.0
        T, a number or a function of t: ``sgd.piecewise_rate([350.0], [1.0, 0.0])`` switches it off
        at t = 350.
    update : sgd.updates.Update, optional
        Optimiser, one of ``sgd.updates``, in units of a full batch (D = 1): thresholds and radii
        are norms, and ``memory=c`` is a rate per step. Defaults to plain steps.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    A trained head receives noise sqrt(2 T head_rate lr/d). Without a constraint, small steps
    therefore sample the distribution exp(-d loss/T) of both layers.

    Examples
    --------
    >>> sgd.Langevin(temperature=0.5).has_thermal_noise
    True
    """

    temperature: Any = 1.0  # see `FixedData.lr`

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "temperature", scalar_or_schedule("temperature", self.temperature, variable="t")
        )

    @property
    def has_thermal_noise(self) -> bool:
        return isinstance(self.temperature, Schedule) or self.temperature > 0


ALGORITHMS: dict[str, type[FixedData]] = {
    kind.__name__: kind for kind in (GradientDescent, MultiPassSGD, PersistentSGD, Langevin)
}


def validate_fixed_data(algorithm: object) -> FixedData:
    """Validate an algorithm on a fixed data set."""
    if type(algorithm) not in ALGORITHMS.values():
        raise checks.reject(
            "algorithm",
            algorithm,
            "Use sgd.GradientDescent, sgd.MultiPassSGD, sgd.PersistentSGD, sgd.Langevin or "
            "sgd.EpochSGD(...).",
        )
    return cast(FixedData, algorithm)


def _tabulated_step(schedule: Parameters, number: IntScalar | Scalar) -> Float[Numeric, ""]:
    """Return the increase of t in a step, from the tabulated times before each step."""
    times = jnp.asarray(schedule["times"])
    return times[number + 1] - times[number]


@float64
def _step_times(schedule: Schedule, count: int) -> np.ndarray:
    """Return t before each of `count` steps: t_0 = 0, t_(n+1) = t_n + lr(t_n)."""
    return np.asarray(_sum_steps(schedule, count))


@partial(jax.jit, static_argnums=1)
def _sum_steps(schedule: Schedule, count: int) -> Float[Numeric, " steps"]:
    return jax.lax.scan(lambda t, _: (t + schedule(t), t), jnp.zeros(()), length=count)[1]


def elapsed_at(lr: Schedule | Scalar, number: IntScalar) -> Scalar:
    """Return t after this many steps, for a constant or tabulated learning rate."""
    return jnp.asarray(lr.parameters["times"])[number] if isinstance(lr, Schedule) else number * lr


def step_parameters(
    parameters: Parameters, algorithm: Parameters, number: IntScalar
) -> tuple[Any, Any]:
    """Return the values of all parameters of a problem and an algorithm at one step.

    The learning rate is then the increase of t in this step, and the probabilities of `switching`
    are those of this step.
    """
    lr, t = algorithm["lr"], elapsed_at(algorithm["lr"], number)
    if isinstance(lr, Schedule):
        size = _tabulated_step(lr.parameters, number)
        algorithm = {**algorithm, "lr": size}
        if "per_time" in algorithm:
            algorithm |= {name: size * algorithm[name] for name in ("on", "off")}
    return values_at((parameters, algorithm), t)


def largest_rate(algorithm: FixedData) -> float:
    """Return the largest learning rate of a run."""
    if isinstance(algorithm.lr, Schedule):
        return float(np.diff(algorithm.lr.parameters["times"]).max())
    return float(algorithm.lr)


def first_selection(algorithm: Parameters, uniform: Float[Numeric, "*s"]) -> Bool[Numeric, "*s"]:
    """Return whether each sample is selected at step 0, from one uniform random number each."""
    return uniform < algorithm["fraction"]


def next_selection(
    algorithm: Parameters, selected: Bool[Numeric, "*s"], uniform: Float[Numeric, "*s"]
) -> Bool[Numeric, "*s"]:
    """Return whether each sample is selected at the next step.

    The selection of a sample is a Markov chain that preserves the mean selected fraction. For
    multi-pass SGD it has no memory.
    """
    return jnp.where(selected, uniform >= algorithm["off"], uniform < algorithm["on"])


def thermal_noise_scale(algorithm: Parameters, dimension: Scalar) -> Float[Numeric, ""]:
    """Return the standard deviation sqrt(2 T lr/d) of the thermal noise in one step."""
    return jnp.sqrt(2 * algorithm["temperature"] * algorithm["lr"] / dimension)
