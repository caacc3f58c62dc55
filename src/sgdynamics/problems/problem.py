"""`Problem`: what is learned, stated once, as a per-sample loss of the fields.

Everything else (ODE, exact chain, direct simulation) follows from it. A problem splits into

- its `structure`: shapes, functions and flags. Compiled code depends on it, so it is hashable and holds no numbers;
- its `parameters`: a dictionary of numbers, traced, so that changing one never compiles again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import (
    Schedule,
    check_schedules,
    describe_schedule,
    is_scheduled,
    scalar_or_schedule,
    schedule_from_function,
    values_at,
)
from sgdynamics.base.precision import float64
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import analyse_function, function_identity, validate_function
from sgdynamics.problems.activations import validate_kinks
from sgdynamics.problems.constraints import CONSTRAINTS, Constraint
from sgdynamics.problems.gram import gram_root, spread_gram
from sgdynamics.problems.loss_dependence import LossDependence, find_dependence
from sgdynamics.problems.losses import (
    BlockOverlaps,
    LossOverlaps,
    RecordedOverlaps,
    UserLoss,
    extra_arguments,
    label_noise,
    squared,
)
from sgdynamics.problems.trial import try_problem
from sgdynamics.samples.arguments import (
    Covariance,
    build_sample,
    derived_parameters,
    validate_clusters,
    validate_covariance,
)
from sgdynamics.samples.draws import describe_draws
from sgdynamics.samples.sample import (
    Sample,
    apply_means,
    example_argument,
    example_draws,
    sampled_arguments,
)
from sgdynamics.samples.spectra import Spectrum

DATA = (
    "tokens",
    "token_correlation",
    "means",
    "draws",
)  # arguments that say what a sample is, beside covariance and clusters


@dataclass(frozen=True)
class Structure:
    """What compiled code depends on: widths, the loss function, flags."""

    width: int
    signals: int
    blocks: int
    loss: Any  # loss(fields, signals, head, noise_draw, parameters), one of the hashable functions of `losses`
    trained: bool
    constraint: Constraint
    sample: Sample
    expectation: Any = None  # a user's own, in place of the one the library chooses
    dependence: LossDependence | None = (
        None  # how a smooth loss depends on fields and draws, where that is known
    )
    heads: int = 1  # of how many units each; contexts may have one each

    def with_loss(self, loss: Any) -> Structure:
        """The same samples with another function of them, of which nothing is known."""
        return replace(self, loss=loss, expectation=None, dependence=None)

    @property
    def head_size(self) -> int:
        """How many numbers all heads have."""
        return self.heads * self.width

    @property
    def clusters(self) -> int:
        """Of a Gaussian mixture; 0 for centred data."""
        return self.sample.clusters

    @property
    def fields(self) -> int:
        """How many fields a sample has: width + signals."""
        return self.width + self.signals

    @property
    def kinks(self) -> tuple[float, ...]:
        """Values of a student field at which the gradient of the loss jumps."""
        return getattr(self.loss, "kinks", ())

    @property
    def has_excess(self) -> bool:
        """Whether the label noise adds the constant noise/2 to the risk, so that the excess risk is defined."""
        return getattr(self.loss, "outer", None) is squared


@dataclass(frozen=True)
class _Form:
    """What is static in a problem as a pytree: two of one structure have the same form, and are put together like the first."""

    structure: Structure
    names: tuple[str, ...]  # of its numbers
    attributes: dict[str, Any] = field(compare=False)


class ParameterAttribute:
    """An attribute of a problem that is read from its numbers, so that it is right whoever put them there."""

    def __set_name__(self, owner: type | None, name: str) -> None:
        self.name = name

    def __get__(self, problem: Any, owner: type | None = None) -> Any:
        return self if problem is None else pytrees.to_python_scalar(problem.parameters[self.name])


class Problem:
    """A learning problem: a per-sample loss of the fields, and the law of the data.

    Inputs are x ~ N(0, I_d), or as ``covariance``, ``clusters``, ``tokens`` and ``means`` say.

    Parameters
    ----------
    loss : callable
        ``loss(fields, signals, head, noise_draw)`` of one sample, any JAX function that returns a number. fields: lambda_i = w_i . x for
        the trained rows; signals: w*_r . x for the fixed directions; head: the second layer a; noise_draw: one standard normal a
        sample, with ``clusters`` the label, with ``draws`` a dictionary. An argument ``overlaps`` has ``Q``, ``M`` and ``P`` of the
        full rows, and in ``overlaps.blocks`` those of each covariance block with ``eigenvalues`` and ``fractions``.
    width : int
        How many rows are trained, p.
    signals : int
        Number of fixed directions that the loss sees, K; 0 for a problem without a teacher.
    gram : array_like, optional
        Gram matrix of the signals, K x K (one a covariance block, or one that is spread over them); the identity unless given.
    head : str, default "fixed"
        "fixed" or "trained"; the head is ones unless a start gives it.
    constraint : str, optional
        "sphere" keeps rows of norm 1; none unless given.
    weight_decay : float or callable, default 0.0
        ``al`` adds ``(al/2)(|W|^2 + |a|^2)`` to the loss of the dynamics (the head only where it is trained), not to the risk. It may be a
        function of alpha = samples/d (on fixed data of t).
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, or ``sgd.Spectrum``, ``sgd.power_law``, which fix d; the identity
        unless given.
    clusters : sequence of (float, sequence of float, float), optional
        (weight, coefficients, label) each: the inputs are a Gaussian mixture. With these probabilities they have the mean
        sum_r coefficients_r w*_r, and the loss receives the cluster's label in place of the noise draw.
    parameters : dict, optional
        Numbers that the loss takes as an argument ``parameters``; changing them does not compile again. They may be
        functions of alpha (or of t).
    kinks : sequence of float, default ()
        Values of a field at which the loss has a kink (0 for a ReLU network), so that the theory integrates around them.
    tokens : int, optional
        How many inputs L a sample has: the loss then sees fields (width, L) and signals (signals, L).
    token_correlation : array_like, optional
        The correlation of the inputs of one sample, L x L; the identity unless given.
    means : array_like or callable, optional
        Coefficients of the inputs' means on the signals, (L, signals) or with one input (signals,), or a JAX function of the draws, or of
        the draws and ``parameters``.
    draws : dict, optional
        Named draws, normal, categorical (0, 1, ...) or Bernoulli (0.0 or 1.0), and a shape:
        ``{"noise": "normal", "group": [.3, .7], "mask": ("bernoulli", .7, L)}``. Heavy-tailed draws are "laplace", "cauchy",
        ``("laplace", scale)``, ``("cauchy", scale)`` and ``("student_t", df)``. The loss's fourth argument is then the dictionary of one
        sample's, with clusters its "cluster" and "label" too.
    expectation : sgd.Expectation, optional
        An own one, in place of the one that the library chooses for the theory.

    Raises
    ------
    ValueError
        If an argument is refused, or the loss fails on one sample; the message names the argument, the value and what would be right.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def loss(fields, signals, head, noise_draw):
    ...     return (jnp.mean(head * fields) - signals[0] - 0.1 * noise_draw) ** 2 / 2
    >>> problem = sgd.Problem(loss, width=2, signals=1)
    >>> problem.replace(weight_decay=0.01).weight_decay
    0.01
    """

    kind: ClassVar[str] = "Problem"
    weight_decay, gram = ParameterAttribute(), ParameterAttribute()
    gram_argument: ClassVar[str | None] = "gram"  # None: the signals are orthonormal
    mean_output: ClassVar[bool] = (
        True  # whether a network's output is a mean over its units, not their sum
    )
    _sealed = False
    _mapped = (
        False  # whether JAX has put its numbers there, which may not be those that it was made of
    )
    _stated_spectrum: Spectrum | None = None
    _maker: Callable[..., Any] | None = (
        None  # the function of `sgd.models` whose arguments are `_given`, where one made it
    )
    _record: Callable[[Any], dict[str, Any]] | None = None  # how what it made is described
    _given: dict[str, Any]
    _parameters: dict[str, Any]  # numbers that are given: the leaves of the problem as a pytree
    _constants: dict[str, Any]  # numbers that every problem of its structure has

    def __init__(
        self,
        loss: Callable[..., Any],
        width: int,
        signals: int,
        *,
        gram: ArrayArgument | None = None,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: float | Function = 0.0,
        covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        parameters: dict[str, Any] | None = None,
        kinks: Sequence[float] = (),
        tokens: int | None = None,
        token_correlation: ArrayArgument | None = None,
        means: ArrayArgument | Function | None = None,
        draws: dict[str, Any] | None = None,
        expectation: Any = None,
    ) -> None:
        self._made_of(locals())
        if not callable(loss):
            raise checks.reject(
                "loss", loss, "give a JAX function loss(fields, signals, head, noise_draw)"
            )
        self.user_loss = loss
        self.kinks = validate_kinks(kinks)
        wrapped = UserLoss(
            loss,
            extra_arguments(
                loss, "user", ("user", "overlaps") if parameters is not None else ("overlaps",)
            ),
            self.kinks,
        )
        user = None if parameters is None else user_parameters(parameters)
        data = {**{name: self._given[name] for name in DATA}, "user": user}
        if expectation is not None and not all(
            callable(getattr(expectation, name, None)) for name in ("moments", "risk", "__hash__")
        ):
            raise checks.reject(
                "expectation", expectation, "give a hashable sgd.Expectation, with moments and risk"
            )
        pairs = validate_covariance(covariance)
        self._set(
            wrapped,
            width,
            signals,
            gram,
            "gram",
            head,
            constraint,
            weight_decay,
            pairs,
            clusters,
            expectation,
            **data,
        )
        validate_function(
            "loss",
            loss,
            self.example_arguments(wrapped.more),
            takes=self.argument_names(wrapped.more),
            call="one sample",
        )
        self.structure = replace(
            self.structure,
            loss=replace(wrapped, reads_blocks=self._reads_blocks(loss, wrapped.more)),
        )
        self._look_into((loss, wrapped.more))
        self._try()

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise AttributeError(
                f"a problem does not change once made: take problem.replace({name}=...)"
            )
        object.__setattr__(self, name, value)

    def replace(self, **changes: object) -> Self:
        """The same problem with some of its arguments changed, checked as when it was made.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name: ``problem.replace(noise=0.1)``.

        Returns
        -------
        Problem
            A new one of the same class; this one stays as it is.

        Raises
        ------
        ValueError
            If there is no such argument, or its value is refused.
        """
        checks.reject_unknown(self.kind, changes, self._given)
        return (self._maker or type(self))(**{**self.arguments, **changes})

    @property
    def arguments(self) -> dict[str, Any]:
        """What it is made of: the arguments that ``replace`` changes, a user's functions among them."""
        if not self._mapped:
            return dict(self._given)
        before, now = (self._maker or type(self))(**self._given).describe(), self.describe()
        changed = [name for name in self._given if now.get(name) != before.get(name)]
        # records only name a user's functions of alpha: these stand among the numbers
        numbers = {
            **now,
            **self._parameters,
            "parameters": self._parameters.get("user"),
            "draws": now.get("draws"),
        }
        return self._given | {name: numbers[name] for name in changed}

    def _made_of(self, arguments: dict[str, Any]) -> None:
        """Keep what it is made of, for `replace`: the constructor's own arguments (its `locals()`), a user's functions among them."""
        self._given = {
            name: value for name, value in arguments.items() if name not in ("self", "__class__")
        }
        self._constants = {}

    def __init_subclass__(cls) -> None:
        _register(cls)

    __eq__, __hash__ = pytrees.are_equal, pytrees.hash_structure

    def _set(
        self,
        loss: Callable[..., Any],
        width: int,
        signals: int,
        gram: ArrayArgument | None,
        gram_name: str,
        head: str,
        constraint: str | None,
        weight_decay: float | Function,
        covariance: Covariance,
        clusters: Any = None,
        expectation: Any = None,
        **data: Any,
    ) -> None:
        """Check and store what every problem has; `data` are the other arguments of its samples."""
        self.width = checks.integer("width", width, 1)
        self.signals = checks.integer("signals", signals, 0)
        # rows alone may be many (a wide network keeps no p x p matrix); the signals' Gram matrix is made here and now
        check_memory("width", self.width, 64.0 * self.width, "its rows", "take a smaller width")
        check_memory(
            "signals", self.signals, 64.0 * self.signals**2, "their overlaps", "take fewer"
        )
        self.head = checks.choice("head", head, ("fixed", "trained"))
        self.constraint = checks.choice("constraint", constraint, tuple(CONSTRAINTS))
        weight_decay = scalar_or_schedule("weight_decay", weight_decay)
        sample, numbers = build_sample(
            self.signals, covariance, validate_clusters(clusters, self.signals), **data
        )
        trained = self.head == "trained"
        self.structure = Structure(
            self.width,
            self.signals,
            len(covariance.fractions),
            loss,
            trained,
            CONSTRAINTS[self.constraint],
            sample,
            expectation,
        )
        self._stated_spectrum = covariance.spectrum
        self._parameters = {
            "weight_decay": pytrees.to_float64(weight_decay),
            "gram": spread_gram(gram, gram_name, self.signals, covariance),
            **numbers,
            **({} if data.get("user") is None else {"user": data["user"]}),
        }

    @cached_property
    def _derived(self) -> dict[str, Any]:
        """The numbers that follow from the others: no leaves, so that they always agree with them."""
        numbers = {**self._constants, **self._parameters}
        return {"frame": gram_root(numbers["gram"]), **derived_parameters(numbers)}

    def _look_into(self, *functions: tuple[Callable[..., Any], tuple[str, ...]]) -> None:
        """Note whether a user's functions (with what they take after the draws) are smooth, and whether they read the draws."""
        sample = self.structure.sample
        drawn = sampled_arguments(sample)
        found = [
            analyse_function(
                function, *self.example_arguments(more), random=(True, True, False, drawn)
            )
            for function, more in functions
        ]
        if callable(sample.means):  # of a normal draw that is read there
            numbers, names = (
                self.at(0.0).parameters,
                drawn if isinstance(drawn, tuple) else ("noise",),
            )
            found.append(
                (
                    analyse_function(
                        partial(apply_means, sample, numbers),
                        example_draws(sample, numbers),
                        random=(names,),
                    )[0],
                    [False] * 4,
                )
            )
        smooth = all(one for one, _ in found) and not getattr(self.structure.loss, "kinks", ())
        smooth = smooth or all(
            getattr(function, "smooth", False) for function, _ in functions
        )  # a function may say so itself
        loss = replace(
            self.structure.loss, smooth=smooth, reads_draws=any(touched[3] for _, touched in found)
        )
        self.structure = replace(self.structure, loss=loss)

    def _reads_blocks(self, function: Callable[..., Any], more: tuple[str, ...]) -> bool:
        """Whether a function that takes these arguments after the draws reads `overlaps.blocks`, by one trial call."""
        if "overlaps" not in more:
            return False
        position, recorded = 4 + more.index("overlaps"), []

        def call(*arguments: Any) -> Any:
            recorded.append(RecordedOverlaps(arguments[position]))
            return function(*arguments[:position], recorded[-1], *arguments[position + 1 :])

        jax.eval_shape(call, *self.example_arguments(more))
        return recorded[-1].blocks_read

    def _try(self) -> None:
        """The last of its making: try it on a few samples, and see what of them it reads."""
        overlaps = try_problem(self)
        self.structure = replace(self.structure, dependence=find_dependence(self, overlaps))
        self._sealed = True

    def argument_names(self, more: Sequence[str] = ()) -> str:
        """The names of the arguments of a function of one sample, with what it takes after the draws."""
        names = [
            "fields",
            "signals",
            "head",
            "noise_draw" if self.structure.sample.draws is None else "draws",
        ]
        return ", ".join([*names, *("parameters" if name == "user" else name for name in more)])

    def example_arguments(self, more: Sequence[str] = ()) -> tuple[Any, ...]:
        """Zeros of the shapes of such arguments."""
        p, k, sample = self.width, self.signals, self.structure.sample
        tokens, numbers = sample.tokens.shape, self.at(0.0).parameters
        lengths = (
            np.zeros((sample.tokens.inputs_per_sample,) * 2)
            if self.structure.loss.reads_lengths
            else None
        )
        b = self.structure.blocks
        blocks = BlockOverlaps(
            np.zeros((b, p, p)), np.zeros((b, p, k)), np.zeros((b, k, k)), np.zeros(b), np.zeros(b)
        )
        numbers["overlaps"] = LossOverlaps(
            np.zeros((p, p)), np.zeros((p, k)), np.zeros((k, k)), lengths, blocks
        )
        given = example_argument(sample, numbers)
        return (
            np.zeros((p, *tokens)),
            np.zeros((k, *tokens)),
            np.zeros(p),
            given,
            *(numbers[name] for name in more),
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the problem, as a dictionary that JAX can trace."""
        return {**self._constants, **self._parameters, **self._derived}

    @property
    def covariance(self) -> tuple[tuple[Any, ...], ...] | Spectrum:
        """The covariance of the inputs: the spectrum that was given, or blocks (eigenvalue, fraction of d)."""
        return self._blocks if self.spectrum is None else self.spectrum

    @property
    def _blocks(self) -> tuple[tuple[Any, ...], ...]:
        return _side_by_side(self.parameters, "eigenvalues", "fractions")

    @property
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the inputs, where that is what was given: it fixes the dimension."""
        stated = self._stated_spectrum
        if stated is None or not self._mapped:
            return stated
        now = {name: self._parameters[name] for name in ("eigenvalues", "multiplicities")}
        if all(np.array_equal(value, getattr(stated, name)) for name, value in now.items()):
            return stated
        found = copy(stated)
        for name, value in {**now, "law": None}.items():
            object.__setattr__(found, name, value)
        return found

    def with_parameters(self, **numbers: Any) -> Self:
        """The same problem with other numbers of the same shapes in place of some of its own, unchecked."""
        made = object.__new__(type(self))
        static = {name: value for name, value in vars(self).items() if name != "_derived"}
        made.__dict__.update(static, _mapped=True, _parameters={**self._parameters, **numbers})
        return made

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The clusters of a Gaussian mixture, (weight, coefficients on the signals, label) each; none for centred data."""
        names = ("cluster_weights", "cluster_coefficients", "cluster_labels")
        return _side_by_side(self.parameters, *names) if self.structure.clusters else ()

    classifies: ClassVar[bool] = False  # whether a result has an accuracy

    @property
    def finite_noise_moments(self) -> float:
        """Moments of the label noise below this order are finite."""
        return math.inf

    @property
    def infinite_risk(self) -> bool:
        """Whether label noise of infinite variance makes the risk of the squared loss infinite."""
        return self.structure.has_excess and self.finite_noise_moments <= 2

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it is, in the table of what is supported."""
        sample = self.structure.sample
        several = sample.tokens.count is not None or sample.draws is not None
        return (
            "fields",
            *["mixture"] * bool(self.clusters or sample.means),
            *["several inputs"] * several,
            *["rule"] * self.structure.loss.reads_overlaps,
        )

    @property
    def scheduled(self) -> bool:
        """Whether any of its numbers depends on alpha."""
        return any(
            isinstance(leaf, Schedule)
            for leaf in jax.tree.leaves(self._parameters, is_leaf=is_scheduled)
        )

    def check_schedule_values(self, end: float, of: str = "alpha") -> None:
        """Refuse numbers that leave their range somewhere up to the end of a run."""
        check_schedules(self._parameters, end, of)

    def at(self, alpha: float) -> Self:
        """The problem with the numbers that it has at one moment of a run.

        Parameters
        ----------
        alpha : float
            Samples over d (on fixed data: t).

        Returns
        -------
        Problem
            Functions of alpha replaced by their values there; itself where there are none.
        """
        return _numbers_at(self, alpha) if self.scheduled else self

    @property
    def noise_floor(self) -> float:
        """The label noise's share of the risk; 0 where the problem does not tell it apart."""
        return float(label_noise(self._parameters)) / 2 if self.structure.has_excess else 0.0

    def block_dimensions(self, dimension: int) -> np.ndarray:
        """How many of d coordinates each covariance block has, by largest remainder.

        Parameters
        ----------
        dimension : int
            The dimension d.

        Returns
        -------
        ndarray
            One whole number a block; they add up to d.
        """
        if self.spectrum is not None:
            return np.round(self.parameters["multiplicities"]).astype(np.int64)
        exact = self.parameters["fractions"] * dimension
        sizes = np.floor(exact + 1e-9).astype(np.int64)
        short = dimension - int(sizes.sum())
        order = np.argsort(-(exact - sizes), kind="stable")
        sizes[order[:short]] += 1
        return sizes

    def describe(self) -> dict[str, Any]:
        """The problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments, a user's function by its name and the hash of its source.
        """
        if self._record is not None:
            return self._record(self)
        return {
            "kind": self.kind,
            "loss": function_identity(self.user_loss),
            "width": self.width,
            "signals": self.signals,
            "kinks": list(self.kinks),
            "parameters": plain_values(self._parameters.get("user")),
            **self._describe_common("gram"),
            **{name: plain_values(value) for name, value in self._described_data().items()},
            "rerunnable": False,
        }

    def _described_data(self) -> dict[str, Any]:
        """The arguments that say what a sample is, where they are given."""
        data = {
            **self._parameters,
            "draws": describe_draws(self._given["draws"] or {}, self._parameters.get("draws", {})),
        }
        return {
            name: data.get(name, self._given[name])
            for name in DATA
            if self._given[name] is not None
        }

    def _describe_common(self, gram_name: str) -> dict[str, Any]:
        single, gram, spectrum = self.structure.blocks == 1, np.asarray(self.gram), self.spectrum
        shown = None if self._blocks == ((1.0, 1.0),) else [list(pair) for pair in self._blocks]
        whole = single and np.array_equal(gram[0], np.eye(self.signals))
        if spectrum is not None:
            shown, whole = (
                spectrum.describe(),
                spectrum.target is not None and np.array_equal(spectrum.target, gram),
            )
            if spectrum.target is not None and not whole:  # other numbers have been put there
                shown, whole = (
                    {
                        **replace(spectrum, target=gram).describe(),
                        **({"infinite": True} if spectrum.infinite else {}),
                    },
                    True,
                )
        return {
            gram_name: None if whole else (gram[0] if single else gram).tolist(),
            "head": self.head,
            "constraint": self.constraint,
            "weight_decay": describe_schedule(self.weight_decay)[0],
            "covariance": shown,
            **(
                {"clusters": [[w, list(means), label] for w, means, label in self.clusters]}
                if self.clusters
                else {}
            ),
            **(
                {}
                if all(
                    describe_schedule(getattr(self, name, None))[1]
                    for name in ("noise", "weight_decay")
                )
                else {"rerunnable": False}
            ),
        }

    def __repr__(self) -> str:
        values = self.describe() | ({} if self.spectrum is None else {"covariance": self.spectrum})
        shown = ", ".join(
            f"{key}={value!r}" for key, value in values.items() if key not in ("kind", "rerunnable")
        )
        return f"{self.kind}({shown})"


def user_parameters(value: Any) -> Any:
    """The numbers of a user's loss, as float64 arrays."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise checks.reject("parameters", value, "give a dictionary of numbers or arrays by name")
    leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_scheduled)
    found = []
    for path, leaf in leaves:
        name = f"parameters{jax.tree_util.keystr(path)}"
        if callable(leaf):
            found.append(schedule_from_function(name, leaf, "alpha"))
            continue
        array = checks.real_array(
            name, leaf, "give a number, an array of numbers or a function of alpha"
        )
        if not np.all(np.isfinite(array)):
            raise checks.reject(name, leaf, "give finite numbers")
        found.append(array)
    return jax.tree_util.tree_unflatten(tree, found)


@float64
def _numbers_at(problem: Any, alpha: float) -> Any:
    with jax.ensure_compile_time_eval():
        return values_at(problem, np.float64(alpha))


def plain_values(value: Any) -> Any:
    """Numbers, text and functions in dictionaries and lists, as plain values."""

    def plain(one: Any) -> Any:
        if callable(one):
            return describe_schedule(one)[0] if is_scheduled(one) else function_identity(one)
        return np.asarray(one).tolist()

    return jax.tree.map(plain, value, is_leaf=is_scheduled)


def _side_by_side(numbers: dict[str, Any], *names: str) -> tuple[tuple[Any, ...], ...]:
    """Numbers of several names, row by row, as tuples."""

    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if np.ndim(value) else pytrees.to_python_scalar(value)

    return tuple(zip(*(plain(numbers[name]) for name in names), strict=True))


def _register(kind: type[Problem]) -> None:
    """Make a kind of problems a pytree in its given numbers."""

    def flatten(problem: Problem) -> tuple[list[Any], _Form]:
        static = {
            name: value
            for name, value in vars(problem).items()
            if name not in ("_parameters", "_derived")
        }
        numbers = problem._parameters
        return [(GetAttrKey(name), value) for name, value in numbers.items()], _Form(
            problem.structure, tuple(numbers), static
        )

    def unflatten(form: _Form, numbers: Any) -> Problem:
        made = object.__new__(kind)
        made.__dict__.update(
            form.attributes,
            _mapped=True,
            _parameters=dict(zip(form.names, pytrees.to_numpy(numbers), strict=True)),
        )
        return made

    register_pytree_with_keys(kind, flatten, unflatten)


_register(Problem)
