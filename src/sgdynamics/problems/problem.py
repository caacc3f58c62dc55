"""`Problem`: a learning problem, stated once as a per-sample loss of the fields.

The ODE, the exact chain and direct simulation all follow from that loss. A problem consists of

- its `structure`: shapes, functions and flags, on which compiled code depends. It is hashable and
  contains no parameter that may change;
- its `parameters`: a dictionary of arrays that JAX traces, so that changing one never compiles
  again.

Neighbouring modules contain the rest of the class by subject: `problem_pytree` how problems store
their arguments and become pytrees, `sample_functions` the analysis of the user's functions, `trial`
their trial evaluation, and `problem_records` the records of results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack

import jax
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function, Parameters, PyTree
from sgdynamics.base.controls import (
    Schedule,
    check_schedules,
    is_scheduled,
    values_at,
)
from sgdynamics.base.equations import HasEquations
from sgdynamics.base.precision import float64
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import function_identity, validate_function
from sgdynamics.problems import sample_functions
from sgdynamics.problems.activations import validate_kinks
from sgdynamics.problems.constraints import CONSTRAINTS
from sgdynamics.problems.gram import gram_per_block, gram_root
from sgdynamics.problems.likelihoods import Likelihood, StatedLikelihood
from sgdynamics.problems.loss_dependence import find_dependence
from sgdynamics.problems.losses import Loss, label_noise
from sgdynamics.problems.problem_pytree import (
    CACHE,
    LEAVES,
    ParameterAttribute,
    rebuild,
    records_arguments,
    register_problem_class,
)
from sgdynamics.problems.problem_records import (
    SAMPLE_ARGUMENTS,
    describe_network,
    describe_sample,
)
from sgdynamics.problems.problem_values import (
    plain_values,
    transpose_parameters,
    validate_parameters,
)
from sgdynamics.problems.sample_functions import SampleFunction
from sgdynamics.problems.structure import Structure as Structure
from sgdynamics.problems.tops import Top, validate_decay, validate_top
from sgdynamics.problems.trial import BlockOverlapPair, try_problem
from sgdynamics.problems.user_losses import UserLoss, extra_arguments
from sgdynamics.samples.arguments import (
    Covariance,
    build_sample,
    derived_parameters,
    validate_clusters,
    validate_covariance,
)
from sgdynamics.samples.input_covariance import block_sizes
from sgdynamics.samples.spectra import Spectrum

ProblemType = TypeVar("ProblemType", bound="Problem")


class SampleArguments(TypedDict, total=False):
    """The arguments of `Problem` that define the law of a sample."""

    tokens: int | None
    token_correlation: ArrayArgument | None
    means: ArrayArgument | Function | None
    draws: dict[str, Any] | None


class Problem(HasEquations):
    """A learning problem: a per-sample loss of the fields, and the law of the data.

    Inputs are x ~ N(0, I_d), unless ``covariance``, ``clusters``, ``tokens`` or ``means`` define
    another law.

    Parameters
    ----------
    loss : callable
        Loss of one sample, ``loss(fields, signals, head, noise_draw)``: any JAX function that
        returns a number. ``fields`` are the preactivations lambda_i = w_i . x of the trained rows,
        ``signals`` the projections w*_r . x on the fixed directions, and ``head`` is the second
        layer a, or the pytree ``top``. ``noise_draw`` is one standard normal per sample; with
        ``clusters`` it is the label, with ``draws`` a dictionary. A further argument ``overlaps``
        has the overlaps ``Q``, ``M`` and ``P`` of the full rows, and in ``overlaps.blocks`` those
        of each covariance block
        with its ``eigenvalues`` and ``fractions``.
    width : int
        Number of trained rows, p.
    signals : int
        Number of fixed directions that the loss sees, K; 0 for a problem without a teacher.
    gram : array_like, optional
        Gram matrix of the signals, K x K (one per covariance block, or one that is spread over
        them). Defaults to the identity.
    head : str, optional
        "fixed" or "trained". The head is ones unless the start specifies it. Defaults to "fixed",
        with ``top`` to "trained".
    top : pytree of shapes, optional
        Any finite network on top of the rows, in place of the head: shapes in dictionaries, lists
        and tuples, such as ``{"B": (3, 4), "b": (3,)}``. The loss receives arrays of these shapes
        as its third argument, and all of them are trained; a leaf stays fixed with the rate 0.
    constraint : str, optional
        "sphere" keeps every row at norm 1. By default the rows are free.
    weight_decay : float, callable or dict, default 0.0
        Coefficient al of the penalty ``(al/2)(|W|^2 + |a|^2)``, which the dynamics minimises with
        the loss (the head only if it is trained), and which is not part of the risk. It may be a
        function of alpha = samples/d (on fixed data of t). With ``top`` also by leaf:
        ``{"rows": 0.05, "B": 0.1}``, 0 for those that are left out.
    covariance : sequence of (float, float) or Spectrum, optional
        Covariance of the inputs: blocks (eigenvalue, fraction of d), or a spectrum of
        ``sgd.Spectrum`` or ``sgd.power_law``, which fixes d. Defaults to the identity.
    clusters : sequence of (float, sequence of float, float), optional
        Triples (weight, coefficients, label) of a Gaussian mixture. With probability ``weight`` the
        inputs have the mean sum_r coefficients_r w*_r, and the loss receives the cluster's label in
        place of the noise draw.
    parameters : dict, optional
        Coefficients of the loss, which receives them as an argument ``parameters``. They may be
        functions of alpha (or of t). Changing them does not compile again.
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
    likelihood : optional
        Law of the label given the signals, ``sgd.labels.outcomes(...)`` or
        ``sgd.labels.additive(...)``. It does not enter the dynamics: ``sgd.bayes_optimal`` and the
        other questions about the best possible learning read it.

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

    # What a class of problems is, for the solvers.
    kind: ClassVar[str] = "Problem"
    # Name of the argument with the Gram matrix of the signals; None if they are orthonormal.
    gram_argument: ClassVar[str | None] = "gram"
    # Whether the output of the network is a mean over its units, and not their sum.
    mean_output: ClassVar[bool] = True
    # Whether a result has an accuracy.
    classifies: ClassVar[bool] = False

    # Attributes that are read from the parameters.
    weight_decay = ParameterAttribute()
    gram = ParameterAttribute()

    # Arguments of the constructor, or of the model function that made the problem.
    _arguments: dict[str, Any]
    # The function of `sgd.models` that made the problem, if any: `replace` calls it.
    _model: Callable[..., Any] | None = None
    # The function that describes the problem of a model in records.
    _describe_model: Callable[[Any], dict[str, Any]] | None = None
    # Parameters that may change: the leaves of the problem as a pytree.
    _parameters: Parameters
    # Parameters that all problems of the structure have in common.
    _fixed_parameters: Parameters
    # Whether JAX replaced the parameters, so that they may differ from the arguments.
    _is_rebuilt = False
    # Whether the problem is complete. Setting an attribute then raises AttributeError.
    _is_frozen = False
    # The law of the labels as the user stated it.
    _stated_likelihood: StatedLikelihood | None = None
    # The spectrum as the user stated it; JAX may have replaced its eigenvalues since.
    _stated_spectrum: Spectrum | None = None

    @records_arguments
    def __init__(
        self,
        loss: Callable[..., Any],
        width: int,
        signals: int,
        *,
        gram: ArrayArgument | None = None,
        head: str | None = None,
        top: PyTree | None = None,
        constraint: str | None = None,
        weight_decay: float | Function | Mapping[str, Any] = 0.0,
        covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        parameters: dict[str, Any] | None = None,
        kinks: Sequence[float] = (),
        tokens: int | None = None,
        token_correlation: ArrayArgument | None = None,
        means: ArrayArgument | Function | None = None,
        draws: dict[str, Any] | None = None,
        expectation: Any = None,
        likelihood: StatedLikelihood | None = None,
    ) -> None:
        if not callable(loss):
            raise checks.reject(
                "loss", loss, "give a JAX function loss(fields, signals, head, noise_draw)"
            )
        self.user_loss = loss
        self.kinks = validate_kinks(kinks)
        if likelihood is not None and not isinstance(likelihood, StatedLikelihood):
            fix = "give sgd.labels.outcomes(...) or sgd.labels.additive(...)"
            raise checks.reject("likelihood", likelihood, fix)
        self._stated_likelihood = likelihood
        available = ("overlaps",) if parameters is None else ("user", "overlaps")
        extra = extra_arguments(loss, "user", available)
        if expectation is not None and not all(
            callable(getattr(expectation, name, None)) for name in ("moments", "risk", "__hash__")
        ):
            raise checks.reject(
                "expectation", expectation, "give a hashable sgd.Expectation, with moments and risk"
            )
        shapes = None if top is None else validate_top(top)
        self._set_common(
            UserLoss(loss, extra, self.kinks, top=shapes),
            width,
            signals,
            gram=gram,
            head=("fixed" if top is None else "trained") if head is None else head,
            top=shapes,
            constraint=constraint,
            weight_decay=weight_decay,
            covariance=validate_covariance(covariance),
            clusters=clusters,
            expectation=expectation,
            user=None if parameters is None else validate_parameters(parameters),
            **{name: self._arguments[name] for name in SAMPLE_ARGUMENTS},
        )
        if likelihood is not None:
            likelihood.validate(self.signals, self.parameters)
        validate_function(
            "loss",
            loss,
            self.example_arguments(extra),
            takes=self.argument_names(extra),
            call="one sample",
        )
        self._analyse_functions((loss, extra))

    def __init_subclass__(cls) -> None:
        register_problem_class(cls)

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_frozen:
            raise AttributeError(f"problems are immutable. Use problem.replace({name}=...).")
        object.__setattr__(self, name, value)

    __eq__, __hash__ = pytrees.are_equal, pytrees.hash_structure

    def __repr__(self) -> str:
        record = self.describe()
        if self.spectrum is not None:
            record["covariance"] = self.spectrum
        arguments = ", ".join(
            f"{name}={_argument_text(value)}"
            for name, value in record.items()
            if name not in ("kind", "rerunnable")
        )
        return f"{self.kind}({arguments})"

    # Changed problems

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
        return self._construct(**{**self.arguments, **changes})

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

    def with_parameters(self, **parameters: PyTree) -> Self:
        """Return the problem with other parameters of the same shapes, without checks."""
        attributes = {
            name: value for name, value in vars(self).items() if name not in (LEAVES, CACHE)
        }
        return rebuild(type(self), attributes, {**self._parameters, **parameters})

    def _construct(self, **arguments: Any) -> Self:
        """Call the constructor, or the model function that made the problem."""
        return (self._model or type(self))(**arguments)

    # Arguments and parameters

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments from which the problem is made, and which ``replace`` changes."""
        if not self._is_rebuilt:
            return dict(self._arguments)
        # JAX may have replaced parameters. Arguments whose records differ get their current value.
        original, current = self._construct(**self._arguments).describe(), self.describe()
        changed = [name for name in self._arguments if current.get(name) != original.get(name)]
        # A record only names a user's function of alpha; the function is among the parameters.
        values = {
            **current,
            **self._parameters,
            "parameters": self._parameters.get("user"),
            "draws": current.get("draws"),
        }
        return self._arguments | {name: values[name] for name in changed}

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        return {**self._fixed_parameters, **self._parameters, **self._derived_parameters}

    @cached_property
    def _derived_parameters(self) -> Parameters:
        """Parameters that follow from the others.

        They are not leaves of the pytree, so that they always agree with the others.
        """
        parameters = {**self._fixed_parameters, **self._parameters}
        return {"frame": gram_root(parameters["gram"]), **derived_parameters(parameters)}

    @property
    def scheduled(self) -> bool:
        """Whether any parameter depends on alpha."""
        leaves = jax.tree.leaves(self._parameters, is_leaf=is_scheduled)
        return any(isinstance(leaf, Schedule) for leaf in leaves)

    def check_schedule_values(self, end: float, variable: str = "alpha") -> None:
        """Raise ValueError if a parameter leaves its range before the end of a run."""
        check_schedules(self._parameters, end, variable)

    # Law of the inputs

    @property
    def covariance(self) -> tuple[tuple[Any, ...], ...] | Spectrum:
        """The covariance of the inputs: a spectrum, or blocks (eigenvalue, fraction of d)."""
        return self.covariance_blocks if self.spectrum is None else self.spectrum

    @property
    def covariance_blocks(self) -> tuple[tuple[Any, ...], ...]:
        """The blocks (eigenvalue, fraction of d) of the covariance, also of a spectrum."""
        return transpose_parameters(self.parameters, "eigenvalues", "fractions")

    @property
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the inputs, if the covariance is one: it fixes the dimension."""
        stated = self._stated_spectrum
        if stated is None or not self._is_rebuilt:
            return stated
        names = ("eigenvalues", "multiplicities")
        current = {name: self._parameters[name] for name in names}
        if all(np.array_equal(value, getattr(stated, name)) for name, value in current.items()):
            return stated
        # JAX replaced the eigenvalues. Those of a power law then no longer follow that law. The
        # copy skips the constructor, whose checks need concrete arrays.
        spectrum = copy(stated)
        for name, value in {**current, "law": None}.items():
            object.__setattr__(spectrum, name, value)
        return spectrum

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The clusters (weight, coefficients on the signals, label) of a mixture; else empty."""
        if not self.structure.clusters:
            return ()
        names = ("cluster_weights", "cluster_coefficients", "cluster_labels")
        return transpose_parameters(self.parameters, *names)

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
        return block_sizes(self.parameters["fractions"], dimension)

    # Label noise and the table of what is supported

    @property
    def noise_floor(self) -> float:
        """The label noise's share of the risk; 0 if the problem does not define it."""
        return float(label_noise(self._parameters)) / 2 if self.structure.has_excess else 0.0

    @property
    def finite_noise_moments(self) -> float:
        """The order below which all moments of the label noise are finite."""
        return math.inf

    @property
    def infinite_risk(self) -> bool:
        """Whether label noise of infinite variance makes the risk of the squared loss infinite."""
        return self.structure.has_excess and self.finite_noise_moments <= 2

    @property
    def likelihood(self) -> Likelihood | None:
        """The law of the labels given the signals, if the problem states it."""
        if self._stated_likelihood is None:
            return None
        return self._stated_likelihood.bind(self.signals, self.parameters)

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
        if self.structure.top is not None:
            kinds.append("top")
        return tuple(kinds)

    # Records

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
            **({} if self.structure.top is None else {"top": self.structure.top.describe()}),
            **describe_network(self, "gram"),
            **describe_sample(self),
            **(
                {}
                if self._stated_likelihood is None
                else {"likelihood": self._stated_likelihood.describe()}
            ),
            "rerunnable": False,
        }

    # The user's functions of one sample

    def argument_names(self, extra: Sequence[str] = ()) -> str:
        """Return the names of the arguments of a function of one sample, as text for messages.

        `extra` are the names of its arguments after the draws.
        """
        return sample_functions.argument_names(self.structure, extra)

    def example_arguments(self, extra: Sequence[str] = ()) -> tuple[PyTree, ...]:
        """Return zeros with the shapes of the arguments of a function of one sample."""
        return sample_functions.example_arguments(self.structure, self.at(0.0).parameters, extra)

    # Steps of the constructors of all problems

    def _set_common(
        self,
        loss: Loss,
        width: int,
        signals: int,
        *,
        covariance: Covariance,
        gram: ArrayArgument | None = None,
        head: str = "fixed",
        top: Top | None = None,
        constraint: str | None = None,
        weight_decay: float | Function | Mapping[str, Any] = 0.0,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        expectation: Any = None,
        user: Parameters | None = None,
        **sample_arguments: Unpack[SampleArguments],
    ) -> None:
        """Validate the arguments that all problems share; set the structure and the parameters."""
        self.width = checks.integer("width", width, 1)
        self.signals = checks.integer("signals", signals, 0)
        # Only the rows: wide networks have no p x p matrix. The signals' Gram matrix is made below.
        check_memory("width", self.width, 64.0 * self.width, "its rows", "take a smaller width")
        check_memory(
            "signals", self.signals, 64.0 * self.signals**2, "their overlaps", "take fewer"
        )
        self.head = checks.choice("head", head, ("fixed", "trained"))
        self.constraint = checks.choice("constraint", constraint, tuple(CONSTRAINTS))
        weight_decay, decay_by_leaf = validate_decay(weight_decay, top)
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
            top=top,
        )
        self._stated_spectrum = covariance.spectrum
        gram_name = self.gram_argument or "gram"
        self._fixed_parameters = {}
        self._parameters = {
            "weight_decay": pytrees.to_float64(weight_decay),
            **decay_by_leaf,
            "gram": gram_per_block(gram, gram_name, self.signals, covariance),
            **sample_parameters,
            **({} if user is None else {"user": user}),
        }

    def _analyse_functions(self, *functions: SampleFunction) -> None:
        """Try the user's functions, and set the properties by which expectations are chosen.

        The properties are smoothness, use of the draws and of the overlaps of each block, and the
        combinations of fields and draws on which the loss depends.
        """
        parameters = self.at(0.0).parameters
        reads_blocks = [
            sample_functions.reads_block_overlaps(self.structure, parameters, function)
            for function in functions
        ]
        smooth, reads_draws = sample_functions.analyse_smoothness(
            self.structure, parameters, functions
        )
        loss = replace(
            self.structure.loss,
            smooth=smooth,
            reads_draws=reads_draws,
            reads_blocks=any(reads_blocks),
        )
        self.structure = replace(self.structure, loss=loss)
        overlaps = self._try_functions()
        dependence = find_dependence(self.structure, self.at(0.0).parameters, overlaps)
        self.structure = replace(self.structure, dependence=dependence)

    def _try_functions(self) -> BlockOverlapPair | None:
        """Evaluate the user's functions on a few samples; raise ValueError if not finite.

        Return overlaps at which a function of overlaps is finite (see `try_problem`).
        """
        return try_problem(self.structure, self.at(0.0).parameters)


def _argument_text(value: object) -> str:
    """A recorded argument as text: the name for a function of the user."""
    if isinstance(value, dict) and "function" in value:
        return str(value["function"])
    return repr(value)


@float64
def _values_at(problem: ProblemType, alpha: float) -> ProblemType:
    """Return the problem with its schedules evaluated, also while JAX traces a user's function."""
    with jax.ensure_compile_time_eval():
        return values_at(problem, np.float64(alpha))


register_problem_class(Problem)
