"""Label laws p(y | z) of the signals z, which Bayes-optimal learning, ERM and AMP read.

A `Likelihood` has a static part, its `law`, and the `parameters` that JAX traces. The laws are

- `OutcomeLaw`: finitely many labels, with a probability each;
- `AdditiveLaw`: y = f(z) + noise, of variance ``parameters["noise"]``, which may be 0;
- `ClusterLaw`: the clusters of a Gaussian mixture, where the label fixes the mean of the input.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import (
    accepts_two_arguments,
    function_identity,
    output_structure,
)
from sgdynamics.samples import laws

if TYPE_CHECKING:
    from sgdynamics.problems.problem import Problem

Plane = tuple[tuple[float, ...], float]  # (normal, level) of the plane normal . z = level
# A function of the vector of signals and the parameters.
SignalFunction = Callable[[Any, Parameters], Any]

# Labels without noise count as outcomes if at most this many different ones occur on the probes.
MOST_OUTCOMES = 32
PROBES = 4096


class LabelDistribution(ABC):
    """Law of a label given the signals: static and hashable.

    Attributes
    ----------
    kinks : tuple of (tuple of float, float)
        Planes normal . z = level along which the law has a kink or jumps in z.
    """

    # The name of the kind of law.
    kind: ClassVar[str]
    kinks: tuple[Plane, ...]

    @abstractmethod
    def log_p(
        self, y: Float[Numeric, ""], signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return log p(y | z): of a probability for outcomes, of a density otherwise."""

    @abstractmethod
    def draw(
        self, signals: Float[Numeric, " K"], normal: Float[Numeric, ""], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """Return the label that a standard normal stands for, given the signals."""


@dataclass(frozen=True)
class OutcomeLaw(LabelDistribution):
    """A label with finitely many values.

    Attributes
    ----------
    values : tuple of float
        The labels, in increasing order.
    probabilities : callable
        Function of (signals, parameters) that returns the probability of each label.
    kinks : tuple of (tuple of float, float)
        Planes along which a probability has a kink or jumps.
    """

    values: tuple[float, ...]
    probabilities: SignalFunction
    kinks: tuple[Plane, ...] = ()
    kind: ClassVar[str] = "outcomes"

    def log_p(
        self, y: Float[Numeric, ""], signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        chances = jnp.log(self.probabilities(signals, parameters))
        values = jnp.asarray(self.values)
        return jnp.max(jnp.where(values == y, chances, -jnp.inf))

    def draw(
        self, signals: Float[Numeric, " K"], normal: Float[Numeric, ""], parameters: Parameters
    ) -> Float[Numeric, ""]:
        edges = jnp.cumsum(self.probabilities(signals, parameters))[:-1]
        index = jnp.sum(jax.scipy.special.ndtr(normal) > edges)
        return jnp.asarray(self.values, jnp.asarray(signals).dtype)[index]


@dataclass(frozen=True)
class AdditiveLaw(LabelDistribution):
    """A function of the signals plus independent noise, y = f(z) + noise.

    Attributes
    ----------
    function : callable
        Function f of (signals, parameters).
    kinks : tuple of (tuple of float, float)
        Planes along which f has a kink or jumps.
    noise_law : str, optional
        Law of the noise (`samples.laws`), with ``parameters["noise_law"]``. None: Gaussian.
    """

    function: SignalFunction
    kinks: tuple[Plane, ...] = ()
    noise_law: str | None = None
    kind: ClassVar[str] = "additive"

    def log_p(
        self, y: Float[Numeric, ""], signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        scale = self.scale(parameters)
        x = (y - self.function(signals, parameters)) / scale
        if self.noise_law is None:  # without underflow
            return -0.5 * x**2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi)
        return jnp.log(self.standard_density(x, parameters) / scale)

    def standard_density(
        self, x: Float[Numeric, "*s"], parameters: Parameters
    ) -> Float[Numeric, "*s"]:
        """Return the density of the noise at x times its scale, times the scale."""
        if self.noise_law is None:
            return jnp.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return laws.density(self.noise_law, parameters["noise_law"], x)

    def draw(
        self, signals: Float[Numeric, " K"], normal: Float[Numeric, ""], parameters: Parameters
    ) -> Float[Numeric, ""]:
        noise = normal
        if self.noise_law is not None:
            noise = laws.draw_from_normal(self.noise_law, parameters["noise_law"], normal)
        return self.function(signals, parameters) + self.scale(parameters) * noise

    def has_variance(self, parameters: Parameters) -> bool:
        """Return whether the variance of the noise is finite."""
        if self.noise_law is None:
            return True
        return bool(np.isfinite(laws.half_moments(self.noise_law, parameters["noise_law"])[1]))

    def has_mean(self, parameters: Parameters) -> bool:
        """Return whether the mean absolute value of the noise is finite."""
        if self.noise_law is None:
            return True
        return bool(np.isfinite(laws.half_moments(self.noise_law, parameters["noise_law"])[0]))

    def scale(self, parameters: Parameters) -> Float[Numeric, ""]:
        """Return the scale of the standard law of the noise."""
        scale = jnp.sqrt(parameters["noise"])
        return scale if self.noise_law is None else scale * parameters["noise_law"]["unit"]


@dataclass(frozen=True)
class ClusterLaw(LabelDistribution):
    """The clusters of a Gaussian mixture, x ~ N(sum_r coefficients_r mu_r, I/snr).

    It has no p(y | z): the label of a cluster comes first, and the signals mu . x follow from it.

    Attributes
    ----------
    weights : tuple of float
        Probability of each cluster.
    coefficients : tuple of tuple of float
        Coefficients of the mean of each cluster on the signals.
    labels : tuple of float
        Label of each cluster.
    """

    weights: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    labels: tuple[float, ...]
    kinks: tuple[Plane, ...] = ()
    kind: ClassVar[str] = "clusters"

    def log_p(
        self, y: Float[Numeric, ""], signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, ""]:
        """log P(y | mu.x): the posterior probability of the clusters with this label."""
        coefficients, weights = np.array(self.coefficients), np.array(self.weights)
        gram = jnp.sum(parameters["gram"], axis=0)
        # log of the weight times exp(snr (c . z - c P c/2)), the density up to a common factor
        means = 0.5 * jnp.einsum("ck,kl,cl->c", coefficients, gram, coefficients)
        odds = jnp.log(weights) + parameters["snr"] * (coefficients @ signals - means)
        chosen = jnp.where(jnp.asarray(self.labels) == y, odds, -jnp.inf)
        return jax.nn.logsumexp(chosen) - jax.nn.logsumexp(odds)

    def draw(
        self, signals: Float[Numeric, " K"], normal: Float[Numeric, ""], parameters: Parameters
    ) -> Float[Numeric, ""]:
        values = sorted(set(self.labels))
        chances = jnp.stack(
            [jnp.exp(self.log_p(jnp.asarray(y), signals, parameters)) for y in values]
        )
        index = jnp.sum(jax.scipy.special.ndtr(normal) > jnp.cumsum(chances)[:-1])
        return jnp.asarray(values)[index]


@dataclass(frozen=True)
class Likelihood:
    """The law of a problem's labels given its signals, and the parameters of that law.

    Attributes
    ----------
    law : LabelDistribution
        The static part: functions, values of outcomes, and kinks.
    parameters : dict
        The parameters that the functions of the law read, which JAX traces.
    directions : int
        Number k of signals.
    """

    law: LabelDistribution
    parameters: Parameters
    directions: int

    @property
    def kind(self) -> str:
        """Kind of the law: "outcomes", "additive" or "clusters"."""
        return self.law.kind

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable values that two equal laws share."""
        leaves, structure = jax.tree.flatten(self.parameters)
        values = tuple(np.asarray(leaf).tobytes() for leaf in leaves)
        return self.law, self.directions, structure, values

    @property
    def noise(self) -> float:
        """Variance of additive noise."""
        return float(self.parameters["noise"])

    def log_p(self, y: Float[Numeric, ""], signals: Float[Numeric, " K"]) -> Float[Numeric, ""]:
        """Return log p(y | z)."""
        return self.law.log_p(y, signals, self.parameters)

    @float64
    def probabilities(self, signals: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n outcomes"]:
        """Return the probabilities of all outcomes at many signals."""
        assert isinstance(self.law, OutcomeLaw)
        return evaluate_on_points(self.law.probabilities, signals, self.parameters)

    @float64
    def means(self, signals: Float[np.ndarray, "n K"]) -> Float[np.ndarray, " n"]:
        """Return E[y | z] at many signals: f of additive noise, or the mean of the outcomes."""
        if isinstance(self.law, OutcomeLaw):
            return self.probabilities(signals) @ np.array(self.law.values)
        assert isinstance(self.law, AdditiveLaw)
        return evaluate_on_points(self.law.function, signals, self.parameters)


@dataclass(frozen=True)
class UserSignalFunction:
    """A user's function of the signals, and of the problem's own parameters if it takes them."""

    function: Callable[..., Any]
    takes_parameters: bool

    def __call__(self, signals: Float[Numeric, " K"], parameters: Parameters) -> Any:
        if self.takes_parameters:
            return self.function(signals, parameters["user"])
        return self.function(signals)


@dataclass(frozen=True)
class StatedLikelihood:
    """The argument ``likelihood`` of a problem: ``sgd.labels.outcomes`` or ``.additive``.

    Attributes
    ----------
    function : callable
        Probabilities of the outcomes, or the mean of the label, as a function of the signals.
    values : tuple of float
        Labels; empty for additive noise.
    noise : float
        Variance of additive Gaussian noise.
    kinks : tuple
        Planes along which the function has a kink, or numbers for all axes.

    Examples
    --------
    >>> law = sgd.labels.additive(lambda z: z[0] * z[1], noise=0.1)
    >>> law.noise, law.values
    (0.1, ())
    """

    function: Callable[..., Any]
    values: tuple[float, ...] = ()
    noise: float = 0.0
    kinks: tuple[Any, ...] = ()

    def validate(self, directions: int, parameters: Parameters) -> None:
        """Raise ValueError unless the function gives one probability per label, or a number."""
        argument = "probabilities" if self.values else "function"
        if directions < 1:
            fix = "the problem has no signals, so the label depends on nothing. Set signals"
            raise checks.reject("likelihood", argument, fix)
        law = self.bind(directions, parameters).law
        function = law.probabilities if isinstance(law, OutcomeLaw) else law.function  # type: ignore[attr-defined]
        shape = (len(self.values),) if self.values else ()
        try:
            output_structure(function, np.full(directions, 0.5), parameters)
            result = np.asarray(function(jnp.full(directions, 0.5), parameters))
        except Exception as error:
            fix = f"calling it on {directions} signals failed with {checks.reason(error)}"
            raise checks.reject(argument, self.function, fix) from error
        if result.shape != shape or not np.all(np.isfinite(result)):
            wanted = f"{len(self.values)} probabilities" if self.values else "one number"
            fix = f"it must return {wanted} for {directions} signals, but gave {result!r}"
            raise checks.reject(argument, self.function, fix)
        if self.values and (result.min() < 0 or abs(result.sum() - 1) > 1e-5):
            fix = f"probabilities are 0 or more and add up to 1, but it gave {result}"
            raise checks.reject(argument, self.function, fix)

    def bind(self, directions: int, parameters: Parameters) -> Likelihood:
        """Return the law of a problem with this many signals and these parameters."""
        takes_parameters = "user" in parameters and accepts_two_arguments(self.function)
        function = UserSignalFunction(self.function, takes_parameters)
        kinks = planes_from(self.kinks, directions)
        if self.values:
            return Likelihood(OutcomeLaw(self.values, function, kinks), parameters, directions)
        parameters = {**parameters, "noise": np.float64(self.noise)}
        return Likelihood(AdditiveLaw(function, kinks), parameters, directions)

    def describe(self) -> dict[str, Any]:
        """Return plain values for the record of a result.

        Returns
        -------
        dict
            The identity of the function, with the values of outcomes or the noise.
        """
        number: dict[str, Any] = {"noise": self.noise}
        if self.values:
            number = {"values": list(self.values)}
        return {**function_identity(self.function), **number}


def kinks_fix(directions: int) -> str:
    """Return what to give as kinks, for messages."""
    return (
        f"give numbers (planes z_r = number) or pairs (normal of {directions} numbers, level), "
        "such as [0.0] or [((1, -1), 0.0)]"
    )


def kink_sequence(value: object) -> tuple[Any, ...]:
    """Return the argument ``kinks`` of a label law as a tuple; `planes_from` reads its entries."""
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    if not isinstance(value, (list, tuple)) and not is_array:
        fix = "give a list of planes (normal, level) or of numbers, such as [0.0]"
        raise checks.reject("kinks", value, fix)
    return tuple(cast(Sequence[Any], value))


def planes_from(kinks: tuple[Any, ...], directions: int) -> tuple[Plane, ...]:
    """Return kinks as planes with unit normals; a number is a plane on each axis."""
    planes: dict[Plane, None] = {}
    for kink in kinks:
        if isinstance(kink, (int, float, np.number)):
            level = checks.number("kinks", kink)
            planes |= {(tuple(normal), level): None for normal in np.eye(directions).tolist()}
            continue
        fix = kinks_fix(directions)
        try:
            normal, level = kink
            normal = checks.array("kinks normal", normal, (directions,), "one number per direction")
        except (TypeError, ValueError):
            raise checks.reject("kinks", kinks, fix) from None
        length = float(np.linalg.norm(normal))
        if length == 0.0:
            raise checks.reject("kinks", kinks, f"a normal of length 0 defines no plane: {fix}")
        level = checks.number("kinks level", level) / length
        planes[tuple((normal / length).tolist()), level] = None
    return tuple(planes)


def evaluate_on_points(
    function: SignalFunction, signals: Float[np.ndarray, "n K"], parameters: Parameters
) -> np.ndarray:
    """Evaluate a function of (signals, parameters) at many signals, in float64."""
    # one shape per power of two, so that few programs are compiled
    count = len(signals)
    size = max(256, 1 << (max(count, 1) - 1).bit_length())
    padded = np.resize(signals, (size, signals.shape[1])) if count else np.zeros((size, 1))
    values = _evaluate(function, padded, parameters)
    return np.asarray(values, np.float64)[:count]


def _evaluate(
    function: SignalFunction, signals: Float[Numeric, "n K"], parameters: Parameters
) -> Float[Numeric, "n ..."]:
    return _map_over_points(function)(signals, parameters)


def _map_over_points(function: SignalFunction) -> Callable[..., Any]:
    """The function of many signals, compiled once per function."""
    try:
        return _compiled[function]
    except KeyError:
        if len(_compiled) >= 64:
            _compiled.clear()
        _compiled[function] = jax.jit(jax.vmap(function, in_axes=(0, None)))
        return _compiled[function]


_compiled: dict[SignalFunction, Callable[..., Any]] = {}


@dataclass(frozen=True)
class TargetOutput:
    """The output of a teacher or target; equal losses are one function, compiled once."""

    loss: Any  # with the method `target_output`

    def __call__(self, signals: Float[Numeric, " K"], parameters: Parameters) -> Any:
        return self.loss.target_output(signals, parameters)


@dataclass(frozen=True)
class NoiselessProbabilities:
    """Probabilities 0 or 1 of the values of a function without noise."""

    function: SignalFunction
    values: tuple[float, ...]

    def __call__(
        self, signals: Float[Numeric, " K"], parameters: Parameters
    ) -> Float[Numeric, " outcomes"]:
        distance = jnp.abs(self.function(signals, parameters) - jnp.asarray(self.values))
        return (jnp.arange(len(self.values)) == jnp.argmin(distance)).astype(distance.dtype)


@float64
def separate_outcomes(likelihood: Likelihood) -> Likelihood:
    """Return the outcomes of a function of few values without noise; otherwise the same law."""
    law = likelihood.law
    if not isinstance(law, AdditiveLaw) or likelihood.noise != 0.0:
        return likelihood
    probes = np.random.default_rng(0).standard_normal((PROBES, likelihood.directions))
    outputs = evaluate_on_points(law.function, 2.0 * probes, likelihood.parameters)
    scale = np.max(np.abs(outputs)) or 1.0
    values, counts = np.unique(np.round(outputs / scale, 10), return_counts=True)
    # a flat piece of a function that is not constant elsewhere is left to the additive law
    if len(values) > MOST_OUTCOMES or counts.min() < 2:
        return likelihood
    labels = tuple(float(outputs[np.argmin(np.abs(outputs / scale - v))]) for v in values)
    outcomes = OutcomeLaw(labels, NoiselessProbabilities(law.function, labels), law.kinks)
    return replace(likelihood, law=outcomes)


def likelihood_of(problem: Problem) -> Likelihood:
    """Return the law of a problem's labels given its signals.

    Parameters
    ----------
    problem : Problem
        A problem that states it: a network with a teacher or a multi-index target, a binary
        Gaussian mixture, or ``sgd.Problem(..., likelihood=...)``.

    Returns
    -------
    Likelihood
        The law, with labels of few values and no noise as outcomes.

    Raises
    ------
    ValueError
        If the problem has no such law, with the reason.
    """
    if problem.scheduled:
        fix = (
            "a parameter depends on alpha, so the law of the labels changes during training. Use "
            "problem.at(alpha)."
        )
        raise checks.reject("problem", problem.kind, fix)
    likelihood = problem.likelihood
    if likelihood is None:
        fix = (
            "the law of its labels given the signals is not known. Use TeacherStudent, MultiIndex, "
            'GaussianMixture("binary"), or state it with sgd.Problem(..., likelihood=...).'
        )
        raise checks.reject("problem", problem.kind, fix)
    return separate_outcomes(likelihood)
