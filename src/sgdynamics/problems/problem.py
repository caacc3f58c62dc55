"""`Problem`: a learning problem, stated once as a per-sample loss of the fields.

Everything else (ODE, exact chain, direct simulation) follows from it. A problem consists of

- its `structure`: shapes, functions and flags. Compiled code depends on it, so it is hashable and
  contains no numbers that may change;
- its `parameters`: a dictionary of numbers, traced by JAX, so that changing one never compiles
  again.

`problem_pytree` describes how problems store their arguments and become pytrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import jax
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function, Parameters
from sgdynamics.base.controls import (
    Schedule,
    check_schedules,
    describe_schedule,
    is_scheduled,
    scalar_or_schedule,
    values_at,
)
from sgdynamics.base.precision import float64
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import analyse_function, function_identity, validate_function
from sgdynamics.problems.activations import validate_kinks
from sgdynamics.problems.constraints import CONSTRAINTS
from sgdynamics.problems.gram import gram_per_block, gram_root
from sgdynamics.problems.loss_dependence import find_dependence
from sgdynamics.problems.losses import Loss, label_noise
from sgdynamics.problems.moves import BlockOverlaps, LossOverlaps, RecordedOverlaps
from sgdynamics.problems.problem_pytree import (
    CACHE,
    LEAVES,
    ParameterAttribute,
    rebuild,
    records_arguments,
    register_problem_class,
)
from sgdynamics.problems.problem_values import (
    plain_values,
    transpose_parameters,
    validate_parameters,
)
from sgdynamics.problems.structure import Structure as Structure
from sgdynamics.problems.trial import try_problem
from sgdynamics.problems.user_losses import UserLoss, extra_arguments
from sgdynamics.samples.arguments import (
    Covariance,
    build_sample,
    derived_parameters,
    validate_clusters,
    validate_covariance,
)
from sgdynamics.samples.draws import describe_draws
from sgdynamics.samples.sample import (
    apply_means,
    example_argument,
    example_draws,
    sampled_arguments,
)
from sgdynamics.samples.spectra import Spectrum

# Arguments that define the law of a sample, in addition to covariance and clusters.
SAMPLE_ARGUMENTS = ("tokens", "token_correlation", "means", "draws")


class Problem:
    """A learning problem: a per-sample loss of the fields, and the law of the data.

    Inputs are x ~ N(0, I_d), unless ``covariance``, ``clusters``, ``tokens`` or ``means`` define
    another law.

    Parameters
    ----------
    loss : callable
        ``loss(fields, signals, head, noise_draw)`` of one sample, any JAX function that returns a
        number. ``fields`` are lambda_i = w_i . x of the trained rows; ``signals`` are w*_r . x of the
        fixed directions; ``head`` is the second layer a; ``noise_draw`` is one standard normal per
        sample, with ``clusters`` the label, with ``draws`` a dictionary. An argument ``overlaps``
        has ``Q``, ``M`` and ``P`` of the full rows, and in ``overlaps.blocks`` those of each
        covariance block with ``eigenvalues`` and ``fractions``.
    width : int
        Number of trained rows, p.
    signals : int
        Number of fixed directions that the loss sees, K; 0 for a problem without a teacher.
    gram : array_like, optional
        Gram matrix of the signals, K x K (one per covariance block, or one that is spread over
        them). Defaults to the identity.
    head : str, default "fixed"
        "fixed" or "trained". The head is ones unless the start specifies it.
    constraint : str, optional
        "sphere" keeps rows at norm 1. By default the rows are free.
    weight_decay : float or callable, default 0.0
        ``al`` adds ``(al/2)(|W|^2 + |a|^2)`` to the loss of the dynamics (the head only if it is
        trained), not to the risk. It may be a function of alpha = samples/d (on fixed data of t).
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, or ``sgd.Spectrum``,
        ``sgd.power_law``, which fix d. Defaults to the identity.
    clusters : sequence of (float, sequence of float, float), optional
        Triples (weight, coefficients, label) of a Gaussian mixture. With probability ``weight`` the
        inputs have the mean sum_r coefficients_r w*_r, and the loss receives the cluster's label in
        place of the noise draw.
    parameters : dict, optional
        Numbers that the loss takes as an argument ``parameters``. Changing them does not compile
        again. They may be functions of alpha (or of t).
    kinks : sequence of float, default ()
        Values of a field at which the loss has a kink (0 for a ReLU network), so that the theory
        integrates around them.
    tokens : int, optional
        Number of inputs L of a sample. The loss then sees fields (width, L) and signals
        (signals, L).
    token_correlation : array_like, optional
        Correlation of the inputs of one sample, L x L. Defaults to the identity.
    means : array_like or callable, optional
        Coefficients of the inputs' means on the signals, (L, signals) or with one input (signals,),
        or a JAX function of the draws, or of the draws and ``parameters``.
    draws : dict, optional
        Named draws, normal, categorical (0, 1, ...) or Bernoulli (0.0 or 1.0), and a shape:
        ``{"noise": "normal", "group": [.3, .7], "mask": ("bernoulli", .7, L)}``. Heavy-tailed draws
        are "laplace", "cauchy", ``("laplace", scale)``, ``("cauchy", scale)`` and
        ``("student_t", df)``. The loss's fourth argument is then the dictionary of the draws of one
        sample, with clusters also its "cluster" and "label".
    expectation : sgd.Expectation, optional
        A user-defined expectation, in place of the one that the library chooses for the theory.

    Raises
    ------
    ValueError
        If an argument is invalid, or the loss fails on one sample. The message names the argument,
        the value and the fix.

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
    # Name of the argument with the Gram matrix of the signals; None if they are orthonormal.
    gram_argument: ClassVar[str | None] = "gram"
    # Whether the output of the network is a mean over its units, and not their sum.
    mean_output: ClassVar[bool] = True
    # Whether a result has an accuracy.
    classifies: ClassVar[bool] = False

    # Arguments of the constructor, or of the model function that made the problem.
    _arguments: dict[str, Any]
    # The function of `sgd.models` that made the problem, if any: `replace` calls it.
    _model: Callable[..., Any] | None = None
    # How the problem of a model is described in records.
    _describe_model: Callable[[Any], dict[str, Any]] | None = None
    # Parameters that may change: the leaves of the problem as a pytree.
    _parameters: Parameters
    # Parameters that all problems of the structure have in common.
    _fixed_parameters: Parameters
    # Whether JAX replaced the parameters, so that they may differ from the arguments.
    _is_rebuilt = False
    _is_frozen = False
    _stated_spectrum: Spectrum | None = None

    @records_arguments
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
        if not callable(loss):
            raise checks.reject(
                "loss", loss, "give a JAX function loss(fields, signals, head, noise_draw)"
            )
        self.user_loss = loss
        self.kinks = validate_kinks(kinks)
        available = ("overlaps",) if parameters is None else ("user", "overlaps")
        extra = extra_arguments(loss, "user", available)
        user_loss = UserLoss(loss, extra, self.kinks)
        if expectation is not None and not all(
            callable(getattr(expectation, name, None)) for name in ("moments", "risk", "__hash__")
        ):
            raise checks.reject(
                "expectation", expectation, "give a hashable sgd.Expectation, with moments and risk"
            )
        self._set_common(
            user_loss,
            width,
            signals,
            gram=gram,
            head=head,
            constraint=constraint,
            weight_decay=weight_decay,
            covariance=validate_covariance(covariance),
            clusters=clusters,
            expectation=expectation,
            user=None if parameters is None else validate_parameters(parameters),
            **{name: self._arguments[name] for name in SAMPLE_ARGUMENTS},
        )
        validate_function(
            "loss",
            loss,
            self.example_arguments(extra),
            takes=self.argument_names(extra),
            call="one sample",
        )
        reads_blocks = self._reads_blocks(loss, extra)
        self.structure = replace(self.structure, loss=replace(user_loss, reads_blocks=reads_blocks))
        self._set_smoothness((loss, extra))
        self._try_and_analyse()

    def __init_subclass__(cls) -> None:
        register_problem_class(cls)

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_frozen:
            raise AttributeError(f"problems are immutable. Use problem.replace({name}=...).")
        object.__setattr__(self, name, value)

    __eq__, __hash__ = pytrees.are_equal, pytrees.hash_structure

    def replace(self, **changes: object) -> Self:
        """Return a problem with some of the arguments changed, checked as in the constructor.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name: ``problem.replace(noise=0.1)``.

        Returns
        -------
        Problem
            A new problem of the same class; this one does not change.

        Raises
        ------
        ValueError
            If there is no such argument, or its value is invalid.
        """
        checks.reject_unknown(self.kind, changes, self._arguments)
        return self._make(**{**self.arguments, **changes})

    def _make(self, **arguments: Any) -> Self:
        return (self._model or type(self))(**arguments)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments from which the problem is made, and which ``replace`` changes."""
        if not self._is_rebuilt:
            return dict(self._arguments)
        # JAX may have changed parameters: find the arguments whose records differ.
        original, current = self._make(**self._arguments).describe(), self.describe()
        changed = [name for name in self._arguments if current.get(name) != original.get(name)]
        # Records only name a user's functions of alpha: these are among the parameters.
        values = {
            **current,
            **self._parameters,
            "parameters": self._parameters.get("user"),
            "draws": current.get("draws"),
        }
        return self._arguments | {name: values[name] for name in changed}

    def _set_common(
        self,
        loss: Loss,
        width: int,
        signals: int,
        *,
        covariance: Covariance,
        gram: ArrayArgument | None = None,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: float | Function = 0.0,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        expectation: Any = None,
        user: Any = None,
        **sample_arguments: Any,
    ) -> None:
        """Validate and store the arguments that all problems share."""
        self.width = checks.integer("width", width, 1)
        self.signals = checks.integer("signals", signals, 0)
        # Only the rows: wide networks have no p x p matrix. The signals' Gram matrix is made below.
        check_memory("width", self.width, 64.0 * self.width, "its rows", "take a smaller width")
        check_memory(
            "signals", self.signals, 64.0 * self.signals**2, "their overlaps", "take fewer"
        )
        self.head = checks.choice("head", head, ("fixed", "trained"))
        self.constraint = checks.choice("constraint", constraint, tuple(CONSTRAINTS))
        weight_decay = scalar_or_schedule("weight_decay", weight_decay)
        sample, sample_parameters = build_sample(
            self.signals,
            covariance,
            validate_clusters(clusters, self.signals),
            user=user,
            **sample_arguments,
        )
        self.structure = Structure(
            width=self.width,
            signals=self.signals,
            blocks=len(covariance.fractions),
            loss=loss,
            trained=self.head == "trained",
            constraint=CONSTRAINTS[self.constraint],
            sample=sample,
            expectation=expectation,
        )
        self._stated_spectrum = covariance.spectrum
        gram_name = self.gram_argument or "gram"
        self._fixed_parameters = {}
        self._parameters = {
            "weight_decay": pytrees.to_float64(weight_decay),
            "gram": gram_per_block(gram, gram_name, self.signals, covariance),
            **sample_parameters,
            **({} if user is None else {"user": user}),
        }

    @cached_property
    def _derived_parameters(self) -> Parameters:
        """Parameters that follow from the others; not leaves, so that they always agree with them."""
        parameters = {**self._fixed_parameters, **self._parameters}
        return {"frame": gram_root(parameters["gram"]), **derived_parameters(parameters)}

    def _set_smoothness(self, *functions: tuple[Callable[..., Any], tuple[str, ...]]) -> None:
        """Set whether the loss is smooth and reads the draws, from the user's functions.

        Each function comes with the names of its arguments after the draws. A function may declare
        itself `smooth`.
        """
        sample = self.structure.sample
        random_draws = sampled_arguments(sample)
        smooth, reads_draws = not getattr(self.structure.loss, "kinks", ()), False
        for function, extra in functions:
            is_smooth, used = analyse_function(
                function,
                *self.example_arguments(extra),
                random=(True, True, False, random_draws),
            )
            smooth, reads_draws = smooth and is_smooth, reads_draws or used[3]
        if callable(sample.means):  # the means may be a function of a normal draw
            parameters = self.at(0.0).parameters
            names = random_draws if isinstance(random_draws, tuple) else ("noise",)
            means = partial(apply_means, sample, parameters)
            draws = example_draws(sample, parameters)
            smooth = smooth and analyse_function(means, draws, random=(names,))[0]
        smooth = smooth or all(getattr(function, "smooth", False) for function, _ in functions)
        loss = replace(self.structure.loss, smooth=smooth, reads_draws=reads_draws)  # type: ignore[type-var]
        self.structure = replace(self.structure, loss=loss)

    def _reads_blocks(self, function: Callable[..., Any], extra: tuple[str, ...]) -> bool:
        """Return whether a function reads `overlaps.blocks`, by one trial call.

        `extra` are the names of its arguments after the draws.
        """
        if "overlaps" not in extra:
            return False
        position, recorded = 4 + extra.index("overlaps"), []

        def call(*arguments: Any) -> Any:
            recorded.append(RecordedOverlaps(arguments[position]))
            return function(*arguments[:position], recorded[-1], *arguments[position + 1 :])

        jax.eval_shape(call, *self.example_arguments(extra))
        return recorded[-1].blocks_read

    def _try(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Raise ValueError if the user's functions are not finite on a few samples."""
        return try_problem(self.structure, self.at(0.0).parameters)

    def _try_and_analyse(self) -> None:
        """Try the user's functions, and detect on which fields and draws they depend."""
        overlaps = self._try()
        dependence = find_dependence(self.structure, self.at(0.0).parameters, overlaps)
        self.structure = replace(self.structure, dependence=dependence)

    def argument_names(self, extra: Sequence[str] = ()) -> str:
        """Return the names of the arguments of a function of one sample, as text.

        `extra` are the names of its arguments after the draws.
        """
        draws = "noise_draw" if self.structure.sample.draws is None else "draws"
        names = ("parameters" if name == "user" else name for name in extra)
        return ", ".join(["fields", "signals", "head", draws, *names])

    def example_arguments(self, extra: Sequence[str] = ()) -> tuple[Any, ...]:
        """Return zeros with the shapes of the arguments of a function of one sample."""
        p, k, blocks = self.width, self.signals, self.structure.blocks
        sample, parameters = self.structure.sample, self.at(0.0).parameters
        lengths = None
        if self.structure.loss.reads_lengths:
            lengths = np.zeros((sample.tokens.inputs_per_sample, sample.tokens.inputs_per_sample))
        shapes = ((blocks, p, p), (blocks, p, k), (blocks, k, k), (blocks,), (blocks,))
        by_block = BlockOverlaps(*map(np.zeros, shapes))
        parameters["overlaps"] = LossOverlaps(
            np.zeros((p, p)), np.zeros((p, k)), np.zeros((k, k)), lengths, by_block
        )
        return (
            np.zeros((p, *sample.tokens.shape)),
            np.zeros((k, *sample.tokens.shape)),
            np.zeros(p),
            example_argument(sample, parameters),
            *(parameters[name] for name in extra),
        )

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        return {**self._fixed_parameters, **self._parameters, **self._derived_parameters}

    @property
    def covariance(self) -> tuple[tuple[Any, ...], ...] | Spectrum:
        """The covariance of the inputs: the given spectrum, or blocks (eigenvalue, fraction of d)."""
        return self._blocks if self.spectrum is None else self.spectrum

    @property
    def _blocks(self) -> tuple[tuple[Any, ...], ...]:
        return transpose_parameters(self.parameters, "eigenvalues", "fractions")

    @property
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the inputs, if one was given: it fixes the dimension."""
        stated = self._stated_spectrum
        if stated is None or not self._is_rebuilt:
            return stated
        names = ("eigenvalues", "multiplicities")
        current = {name: self._parameters[name] for name in names}
        if all(np.array_equal(value, getattr(stated, name)) for name, value in current.items()):
            return stated
        # a spectrum with other values no longer follows the law that it was made by
        spectrum = copy(stated)
        for name, value in {**current, "law": None}.items():
            object.__setattr__(spectrum, name, value)
        return spectrum

    def with_parameters(self, **parameters: Any) -> Self:
        """Return the problem with other parameters of the same shapes, without checks."""
        attributes = {
            name: value for name, value in vars(self).items() if name not in (LEAVES, CACHE)
        }
        return rebuild(type(self), attributes, {**self._parameters, **parameters})

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The clusters (weight, coefficients on the signals, label) of a mixture; else empty."""
        if not self.structure.clusters:
            return ()
        names = ("cluster_weights", "cluster_coefficients", "cluster_labels")
        return transpose_parameters(self.parameters, *names)

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
        """The kinds of this problem in the table of supported combinations."""
        sample = self.structure.sample
        kinds = ["fields"]
        if self.clusters or sample.means:
            kinds.append("mixture")
        if sample.tokens.count is not None or sample.draws is not None:
            kinds.append("several inputs")
        if self.structure.loss.reads_overlaps:
            kinds.append("rule")
        return tuple(kinds)

    @property
    def scheduled(self) -> bool:
        """Whether any parameter depends on alpha."""
        leaves = jax.tree.leaves(self._parameters, is_leaf=is_scheduled)
        return any(isinstance(leaf, Schedule) for leaf in leaves)

    def check_schedule_values(self, end: float, variable: str = "alpha") -> None:
        """Raise ValueError if a parameter leaves its range before the end of a run."""
        check_schedules(self._parameters, end, variable)

    def at(self, alpha: float) -> Self:
        """Return the problem with the parameters that it has at one time of a run.

        Parameters
        ----------
        alpha : float
            Samples over d (on fixed data: t).

        Returns
        -------
        Problem
            The problem with functions of alpha replaced by their values; itself if there are none.
        """
        return _values_at(self, alpha) if self.scheduled else self

    @property
    def noise_floor(self) -> float:
        """The label noise's share of the risk; 0 if the problem does not define it."""
        return float(label_noise(self._parameters)) / 2 if self.structure.has_excess else 0.0

    def block_dimensions(self, dimension: int) -> np.ndarray:
        """Return the sizes of the covariance blocks at dimension d, by largest remainder.

        Parameters
        ----------
        dimension : int
            The dimension d.

        Returns
        -------
        ndarray
            One integer per block; they add up to d.
        """
        if self.spectrum is not None:
            return np.round(self.parameters["multiplicities"]).astype(np.int64)
        exact = self.parameters["fractions"] * dimension
        sizes = np.floor(exact + 1e-9).astype(np.int64)
        missing = dimension - int(sizes.sum())
        order = np.argsort(-(exact - sizes), kind="stable")
        sizes[order[:missing]] += 1
        return sizes

    def describe(self) -> dict[str, Any]:
        """Return the problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments, a user's function by its name and the hash of its source.
        """
        if self._describe_model is not None:
            return self._describe_model(self)
        return {
            "kind": self.kind,
            "loss": function_identity(self.user_loss),
            "width": self.width,
            "signals": self.signals,
            "kinks": list(self.kinks),
            "parameters": plain_values(self._parameters.get("user")),
            **self._describe_common("gram"),
            **self._describe_sample(),
            "rerunnable": False,
        }

    def _describe_sample(self) -> dict[str, Any]:
        """Return the arguments that define the law of a sample, as plain values."""
        draws = describe_draws(self._arguments["draws"] or {}, self._parameters.get("draws", {}))
        values = {**self._arguments, **self._parameters, "draws": draws}
        return {
            name: plain_values(values[name])
            for name in SAMPLE_ARGUMENTS
            if self._arguments[name] is not None
        }

    def _describe_common(self, gram_name: str) -> dict[str, Any]:
        """Return the arguments that all problems share, as plain values."""
        blocks = [list(pair) for pair in self._blocks]
        covariance: Any = None if blocks == [[1.0, 1.0]] else blocks
        gram = np.asarray(self.gram)
        is_single = self.structure.blocks == 1
        is_default_gram = is_single and np.array_equal(gram[0], np.eye(self.signals))
        if self.spectrum is not None:
            covariance, is_default_gram = self._describe_spectrum(self.spectrum, gram)
        record: dict[str, Any] = {
            gram_name: None if is_default_gram else (gram[0] if is_single else gram).tolist(),
            "head": self.head,
            "constraint": self.constraint,
            "weight_decay": describe_schedule(self.weight_decay)[0],
            "covariance": covariance,
        }
        if self.clusters:
            record["clusters"] = [[w, list(means), label] for w, means, label in self.clusters]
        schedules = (getattr(self, name, None) for name in ("noise", "weight_decay"))
        if not all(describe_schedule(value)[1] for value in schedules):
            record["rerunnable"] = False
        return record

    def _describe_spectrum(
        self, spectrum: Spectrum, gram: np.ndarray
    ) -> tuple[dict[str, Any], bool]:
        """Return the record of a spectrum, and whether it contains the Gram matrix as target."""
        if spectrum.target is None:
            return spectrum.describe(), False
        if np.array_equal(spectrum.target, gram):
            return spectrum.describe(), True
        # JAX replaced the Gram matrix: the record has the current one
        record = replace(spectrum, target=gram).describe()
        return {**record, **({"infinite": True} if spectrum.infinite else {})}, True

    def __repr__(self) -> str:
        values = self.describe() | ({} if self.spectrum is None else {"covariance": self.spectrum})
        shown = ", ".join(
            f"{key}={value!r}" for key, value in values.items() if key not in ("kind", "rerunnable")
        )
        return f"{self.kind}({shown})"


@float64
def _values_at(problem: Any, alpha: float) -> Any:
    with jax.ensure_compile_time_eval():
        return values_at(problem, np.float64(alpha))


register_problem_class(Problem)
