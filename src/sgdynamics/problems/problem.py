"""`Problem`: what is learned, stated once, as a per-sample loss of the fields.

Everything else (ODE, exact chain, direct simulation) follows from it. A problem splits into

- its `structure`: shapes, functions and flags. Compiled code depends on it, so it is hashable and holds no numbers;
- its `parameters`: a dictionary of numbers, traced, so that changing one never compiles again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import numpy as np

from sgdynamics import checks
from sgdynamics.controls import (
    Schedule,
    checked_values,
    describe_schedule,
    made_schedule,
    number_or_schedule,
    numbers_at,
    scheduled,
    traced,
)
from sgdynamics.functions import checked_function, function_identity
from sgdynamics.precision import float64
from sgdynamics.problems.activations import checked_kinks
from sgdynamics.problems.losses import UserLoss, squared
from sgdynamics.problems.trial import try_problem
from sgdynamics.reach import check_memory
from sgdynamics.samples.arguments import checked_clusters, checked_covariance, stated_sample
from sgdynamics.samples.sample import Sample

DATA = ("tokens", "token_correlation", "means", "draws")  # arguments that say what a sample is, beside covariance and clusters


@dataclass(frozen=True)
class Structure:
    """What compiled code depends on: widths, the loss function, flags."""

    width: int
    signals: int
    blocks: int
    loss: Any  # loss(fields, signals, head, noise_draw, parameters), one of the hashable functions of `losses`
    trained: bool
    sphere: bool
    sample: Sample
    expectation: Any = None  # a user's own, in place of the one the library chooses

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


class Problem:
    """A learning problem: a per-sample loss of the fields, and the law of the data.

    loss(fields, signals, head, noise_draw) -> number, any JAX function, with

    - fields: lambda_i = w_i . x for the `width` trained rows,
    - signals: w*_r . x for the `signals` fixed directions, whose Gram matrix is `gram` (identity unless given),
    - head: the second layer a (ones unless a start gives it), trained if head="trained",
    - noise_draw: one standard normal a sample, or with `draws` a dictionary.

    Inputs are x ~ N(0, I_d), or N(0, diag) with `covariance=[(eigenvalue, fraction of d), ...]`. Weight decay al adds
    (al/2)(|W|^2 + |a|^2) to the loss of the dynamics (|a|^2 only where the head is trained), not to the risk.
    With `clusters=[(weight, coefficients, label), ...]` the inputs are a Gaussian mixture: with these probabilities they have the mean
    sum_r coefficients_r w*_r, and the loss receives the cluster's label in place of the noise draw.
    With `tokens=L` a sample has L inputs, the loss sees fields (width, L) and signals (signals, L), and `token_correlation` (L x L) is the
    correlation of the inputs. `means`: coefficients of the inputs' means on the signals, (L, signals) or with one input (signals,), or
    a JAX function of the draws. `draws={"noise": "normal", "group": [.3, .7], "mask": ("bernoulli", .7, L)}`: named draws, normal,
    categorical (0, 1, ...) or Bernoulli (0.0 or 1.0), and a shape; the loss's fourth argument is then the dictionary of
    one sample's, with clusters its "cluster" and "label" too.
    `weight_decay` and the numbers of `parameters` may be functions of alpha = samples/d (on fixed data of t).
    `expectation`: an own `sgd.Expectation`, in place of the one the library chooses for the theory.
    With `parameters={...}` the loss takes that dictionary as a fifth argument; changing its numbers does not recompile.
    `kinks`: values of a field at which the loss has a kink (0 for a ReLU network), so that the theory integrates around them.
    """

    kind: ClassVar[str] = "Problem"
    gram_argument: ClassVar[str | None] = "gram"  # None: the signals are orthonormal
    mean_output: ClassVar[bool] = True  # whether a network's output is a mean over its units, not their sum
    _sealed = False
    _given: dict[str, Any]

    def __init__(
        self,
        loss: Callable[..., Any],
        width: int,
        signals: int,
        *,
        gram: Any = None,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: Any = 0.0,
        covariance: Sequence[tuple[float, float]] | None = None,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        parameters: dict[str, Any] | None = None,
        kinks: Sequence[float] = (),
        tokens: int | None = None,
        token_correlation: Any = None,
        means: Any = None,
        draws: dict[str, Any] | None = None,
        expectation: Any = None,
    ) -> None:
        self._made_of(locals())
        if not callable(loss):
            raise checks.reject("loss", loss, "give a JAX function loss(fields, signals, head, noise_draw)")
        self.user_loss = loss
        self.kinks = checked_kinks(kinks)
        wrapped = UserLoss(loss, parameters is not None, self.kinks)
        data = {name: self._given[name] for name in DATA}
        if expectation is not None and not all(callable(getattr(expectation, name, None)) for name in ("moments", "risk", "__hash__")):
            raise checks.reject("expectation", expectation, "give a hashable sgd.Expectation, with moments and risk")
        pairs = checked_covariance(covariance)
        self._set(wrapped, width, signals, gram, "gram", head, constraint, weight_decay, pairs, clusters, expectation, **data)
        if parameters is not None:
            self._parameters["user"] = _user_parameters(parameters)
        self._check_loss(loss, parameters is not None)
        try_problem(self)
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise AttributeError(f"a problem does not change once made: take problem.replace({name}=...)")
        object.__setattr__(self, name, value)

    def replace(self, **changes: Any) -> Self:
        """The same problem with some of its arguments changed, checked as when it was made: problem.replace(noise=0.1)."""
        checks.known_names(self.kind, changes, self._given)
        return type(self)(**{**self._given, **changes})

    def _made_of(self, arguments: dict[str, Any]) -> None:
        """Keep what it is made of, for `replace`: the constructor's own arguments (its `locals()`), a user's functions among them."""
        self._given = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}

    def __eq__(self, other: object) -> bool:
        """Whether two problems have the same functions, shapes and numbers."""
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Problem)
        if self.structure != other.structure:
            return False
        (mine, form), (theirs, other_form) = (jax.tree.flatten(one._parameters) for one in (self, other))
        return form == other_form and all(np.array_equal(x, y) for x, y in zip(mine, theirs, strict=True))

    def __hash__(self) -> int:
        return hash((type(self), self.structure))

    def _set(
        self,
        loss: Callable[..., Any],
        width: Any,
        signals: Any,
        gram: Any,
        gram_name: str,
        head: Any,
        constraint: Any,
        weight_decay: Any,
        covariance: tuple[tuple[float, float], ...],
        clusters: Any = None,
        expectation: Any = None,
        **data: Any,
    ) -> None:
        """Check and store what every problem has; `data` are the other arguments of its samples."""
        self.width = checks.whole("width", width, 1)
        self.signals = checks.whole("signals", signals, 1)
        # rows alone may be many (a wide network keeps no p x p matrix); the signals' Gram matrix is made here and now
        check_memory("width", self.width, 64.0 * self.width, "its rows", "take a smaller width")
        check_memory("signals", self.signals, 64.0 * self.signals**2, "their overlaps", "take fewer")
        self.head = checks.choice("head", head, ("fixed", "trained"))
        self.constraint = checks.choice("constraint", constraint, (None, "sphere"))
        self.weight_decay = number_or_schedule("weight_decay", weight_decay)
        self.covariance = covariance
        self.clusters = checked_clusters(clusters, self.signals)
        sample, numbers = stated_sample(self.signals, covariance, self.clusters, **data)
        self.gram = _gram(gram, gram_name, self.signals, self.covariance)
        self.structure = Structure(
            self.width,
            self.signals,
            len(self.covariance),
            loss,
            self.head == "trained",
            self.constraint == "sphere",
            sample,
            expectation,
        )
        self._parameters: dict[str, Any] = {
            "weight_decay": traced(self.weight_decay),
            "gram": self.gram,
            "frame": gram_root(self.gram),
            **numbers,
        }

    def _check_loss(self, loss: Callable[..., Any], takes_parameters: bool) -> None:
        sample = self.structure.sample
        draws = "noise_draw" if sample.draws is None else "draws"
        names = f"fields, signals, head, {draws}" + (", parameters" if takes_parameters else "")
        more = (self.at(0.0).parameters["user"],) if takes_parameters else ()
        tokens = () if sample.tokens is None else (sample.tokens,)
        given = sample.example(self._parameters)
        arguments = (np.zeros((self.width, *tokens)), np.zeros((self.signals, *tokens)), np.zeros(self.width), given, *more)
        checked_function("loss", loss, arguments, takes=names, call="one sample")

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the problem, as a dictionary that JAX can trace."""
        return dict(self._parameters)

    @property
    def scheduled(self) -> bool:
        """Whether any of its numbers depends on alpha."""
        return any(isinstance(leaf, Schedule) for leaf in jax.tree.leaves(self._parameters, is_leaf=scheduled))

    def check_numbers(self, end: float, of: str = "alpha") -> None:
        """Refuse noise or decay that is negative or not finite somewhere up to the end of a run."""
        for name in ("noise", "weight_decay"):
            if scheduled(getattr(self, name, None)):
                checked_values(name, getattr(self, name), np.linspace(0, end, 257), of)

    def at(self, alpha: float) -> Self:
        """The problem with the numbers that it has at this alpha (on fixed data at this t)."""
        found = copy.copy(self)
        object.__setattr__(found, "_parameters", _numbers_at(self._parameters, alpha))
        return found

    @property
    def noise_floor(self) -> float:
        """The label noise's share of the risk; 0 where the problem does not tell it apart."""
        return 0.0

    def block_dimensions(self, dimension: int) -> np.ndarray:
        """How many of d coordinates each covariance block has, by largest remainder."""
        exact = self._parameters["fractions"] * dimension
        sizes = np.floor(exact + 1e-9).astype(np.int64)
        short = dimension - int(sizes.sum())
        order = np.argsort(-(exact - sizes), kind="stable")
        sizes[order[:short]] += 1
        return sizes

    def describe(self) -> dict[str, Any]:
        """The problem as plain values for the record of a result."""
        return {
            "kind": self.kind,
            "loss": function_identity(self.user_loss),
            "width": self.width,
            "signals": self.signals,
            "kinks": list(self.kinks),
            "parameters": _plain(self._parameters.get("user")),
            **self._describe_common("gram"),
            **{name: _plain(self._given[name]) for name in DATA if self._given[name] is not None},
            "rerunnable": False,
        }

    def _describe_common(self, gram_name: str) -> dict[str, Any]:
        single = len(self.covariance) == 1
        identity = single and np.array_equal(self.gram[0], np.eye(self.signals))
        return {
            gram_name: None if identity else (self.gram[0] if single else self.gram).tolist(),
            "head": self.head,
            "constraint": self.constraint,
            "weight_decay": describe_schedule(self.weight_decay)[0],
            "covariance": None if self.covariance == ((1.0, 1.0),) else [list(pair) for pair in self.covariance],
            **({"clusters": [[w, list(means), label] for w, means, label in self.clusters]} if self.clusters else {}),
            **({} if all(describe_schedule(getattr(self, name, None))[1] for name in ("noise", "weight_decay")) else {"rerunnable": False}),
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.describe().items() if key not in ("kind", "rerunnable"))
        return f"{self.kind}({shown})"


def _user_parameters(value: Any) -> Any:
    """The numbers of a user's loss, as float64 arrays."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise checks.reject("parameters", value, "give a dictionary of numbers or arrays by name")
    leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=scheduled)
    found = []
    for path, leaf in leaves:
        name = f"parameters{jax.tree_util.keystr(path)}"
        if callable(leaf):
            found.append(made_schedule(name, leaf, "alpha"))
            continue
        array = checks.numbers(name, leaf, "give a number, an array of numbers or a function of alpha")
        if not np.all(np.isfinite(array)):
            raise checks.reject(name, leaf, "give finite numbers")
        found.append(array)
    return jax.tree_util.tree_unflatten(tree, found)


@float64
def _numbers_at(numbers: Any, alpha: float) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, numbers_at(numbers, np.float64(alpha)))


def _plain(value: Any) -> Any:
    """Numbers, text and functions in dictionaries and lists, as plain values."""

    def plain(one: Any) -> Any:
        if callable(one):
            return describe_schedule(one)[0] if scheduled(one) else function_identity(one)
        return np.asarray(one).tolist()

    return jax.tree.map(plain, value, is_leaf=scheduled)


def _gram(value: Any, name: str, signals: int, covariance: tuple[tuple[float, float], ...]) -> np.ndarray:
    """One Gram matrix of the signals a block; a single one is spread over the blocks by their fractions."""
    blocks = len(covariance)
    if value is None:
        value = np.eye(signals)
    value = checks.numbers(name, value, f"give numbers of shape {(signals, signals)} (signals x signals)")
    if value.ndim == 3:
        result = checks.array(name, value, (blocks, signals, signals), "blocks x signals x signals")
    else:
        one = checks.array(name, value, (signals, signals), "signals x signals")
        result = np.array([fraction for _, fraction in covariance])[:, None, None] * one
    checks.gram(name, result)
    if np.any(np.einsum("bii->i", result) <= 0):
        raise checks.reject(name, value, "each signal direction needs a positive norm on the diagonal")
    return result


def gram_root(gram: np.ndarray) -> np.ndarray:
    """A factor C with C C^T = gram (lower triangular up to a rotation, also for singular matrices), block by block."""
    values, vectors = np.linalg.eigh(gram)
    symmetric = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    # QR turns it into the lower-triangular root: the identity for orthonormal signals, so that T = M there
    lower = np.swapaxes(np.linalg.qr(np.swapaxes(symmetric, -1, -2), mode="r"), -1, -2)
    signs = np.where(np.einsum("...ii->...i", lower) < 0, -1.0, 1.0)
    return lower * signs[..., None, :]
