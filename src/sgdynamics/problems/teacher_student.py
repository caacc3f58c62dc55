"""`TeacherStudent` and `MultiIndex`: two-layer networks with a teacher or a multi-index target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import (
    describe_schedule,
    is_scheduled,
    map_schedule,
    scalar_or_schedule,
)
from sgdynamics.base.precision import float64
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import function_identity, validate_function
from sgdynamics.problems.activations import ActivationLike, student_activation
from sgdynamics.problems.activations import activation as find_activation
from sgdynamics.problems.bias_losses import BiasLoss, bias_top
from sgdynamics.problems.label_laws import BinaryProbabilities, LabelLaw, label_law, sign_changes
from sgdynamics.problems.likelihoods import (
    AdditiveLaw,
    Likelihood,
    OutcomeLaw,
    TargetOutput,
    kinks_fix,
    planes_from,
)
from sgdynamics.problems.loss_dependence import find_dependence
from sgdynamics.problems.losses import (
    LOSSES,
    MOST_CUTS,
    CommitteeLoss,
    GatedLoss,
    NetworkLoss,
    TargetLoss,
    cuts_possible,
    outer_loss,
)
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import ParameterAttribute, records_arguments
from sgdynamics.problems.problem_records import describe_network
from sgdynamics.problems.sample_functions import analyse_smoothness
from sgdynamics.problems.tops import Top
from sgdynamics.samples.arguments import validate_covariance
from sgdynamics.samples.draws import Draw, binary_probabilities, quantile_edges
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.laws import NoiseLaw, noise_law
from sgdynamics.samples.sample import GaussianSample
from sgdynamics.samples.spectra import Spectrum

Plane = tuple[tuple[float, ...], float]  # (normal, level) of the plane normal . z = level


class _Network(Problem):
    """Base of `TeacherStudent` and `MultiIndex`: a student network and a noisy label."""

    noise = ParameterAttribute()

    def _set_labels(self, noise: object) -> None:
        """Set the law of binary labels, which has no additive noise in addition."""
        law = self._arguments["labels"] = label_law(self._arguments["labels"])
        if law is None:
            return
        if noise_law(noise) is not None or is_scheduled(noise) or callable(noise) or noise != 0.0:
            fix = "a law of labels contains its noise. Omit noise, or use sgd.labels.probit(noise)."
            raise checks.reject("noise", noise, fix)
        self._parameters["label_value"] = np.float64(law.value)

    def _bias_top(self, width: object, head: object, biases: object) -> Top | None:
        """Return the leaves of a network with trained biases; None for one without."""
        if not checks.flag("biases", biases):
            return None
        is_trained = checks.choice("head", head, ("fixed", "trained")) == "trained"
        return bias_top(checks.integer("width", width, 1), is_trained)

    def _set_network(self, loss: NetworkLoss, noise: float | Function | NoiseLaw) -> None:
        self.loss = loss.outer
        self._set_labels(noise)
        law = noise_law(noise)
        if law is None:
            self._parameters["noise"] = pytrees.to_float64(scalar_or_schedule("noise", noise))
        else:
            self._set_noise_law(law)
        if self._arguments["biases"]:
            self._add_biases(loss)
        else:
            self._try_functions()

    def _add_biases(self, loss: NetworkLoss) -> None:
        """Give the units trained biases, and find out how the loss depends on its fields."""
        bias_loss = BiasLoss(loss, self.head == "trained")
        # Like any top, biases are trained: special cases of a fixed head do not apply.
        self.head = "trained"
        self.structure = replace(self.structure, loss=bias_loss, trained=True)
        parameters, top = self.at(0.0).parameters, self.structure.top
        assert top is not None

        def sample(fields: Any, signals: Any, leaves: Any, noise_draw: Any) -> Any:
            return bias_loss(fields, signals, top.ravel(leaves), noise_draw, parameters)

        smooth, _ = analyse_smoothness(self.structure, parameters, [(sample, ())])
        self.structure = replace(self.structure, loss=replace(bias_loss, smooth=smooth))
        overlaps = self._try_functions()
        dependence = bias_loss.cut_dependence(self.structure)
        if dependence is None:
            dependence = find_dependence(self.structure, parameters, overlaps)
        self.structure = replace(self.structure, dependence=dependence)

    def _set_noise_law(self, law: NoiseLaw) -> None:
        """Set label noise of another law.

        The draws have variance 1 and are multiplied by sqrt(noise); a law of infinite variance has
        scale 1.
        """
        if self.structure.sample != GaussianSample(self.signals):
            fix = (
                "laws of label noise need one input, without dropout and without noise on inputs. "
                "Give the variance of Gaussian noise."
            )
            raise checks.reject("noise", law, fix)
        self._parameters["noise"] = pytrees.to_float64(
            law.variance if math.isfinite(law.variance) else law.scale**2
        )
        self._parameters["noise_law"] = law.parameters
        self.structure = replace(
            self.structure, sample=replace(self.structure.sample, noise_law=law.law)
        )

    @property
    def likelihood(self) -> Likelihood | None:
        if "input_noise" in self._parameters:
            return None
        law = noise_law(self._arguments["noise"])
        name = None if law is None else law.law
        output, kinks = TargetOutput(self.structure.loss), self._label_kinks
        if self.labels is not None:
            probabilities = BinaryProbabilities(output, self.labels.law)
            binary = OutcomeLaw((-1.0, 1.0), probabilities, kinks)
            return Likelihood(binary, self.parameters, self.signals)
        additive = AdditiveLaw(output, kinks, name)
        return Likelihood(additive, self.parameters, self.signals)

    @property
    def labels(self) -> LabelLaw | None:
        """The law of binary labels given the output of the teacher or target."""
        law = label_law(self._arguments["labels"])
        return None if law is None else LabelLaw(law.law, self._parameters["label_value"])

    @property
    def _label_kinks(self) -> tuple[Plane, ...]:
        """Planes along which the label without noise has a kink or jumps."""
        raise NotImplementedError

    @property
    def finite_noise_moments(self) -> float:
        law = noise_law(self._arguments["noise"])
        return math.inf if law is None else law.finite_moments

    def _describe_noise(self) -> Any:
        """Return the variance of the label noise, or its law, as plain values."""
        law = noise_law(self._arguments["noise"])
        return describe_schedule(self.noise)[0] if law is None else law.describe()

    def _describe_biases(self) -> dict[str, Any]:
        """Return the arguments of a network with biases for a record."""
        if not self._arguments["biases"]:
            return {}
        return {"biases": True, "head": self._arguments["head"]}

    def _describe_labels(self) -> dict[str, Any]:
        """Return the law of labels for a record, if there is one."""
        return {} if self.labels is None else {"labels": self.labels.describe()}

    def _describe_loss(self) -> str | dict[str, Any]:
        for name, function in LOSSES.items():
            if function is self.loss:
                return name
        return {**function_identity(self.loss), "rerunnable": False}


class TeacherStudent(_Network):
    """A two-layer student that learns a two-layer teacher.

    ::

        f = (1/p) sum_i a_i s(w_i.x),      x ~ N(0, I_d)
        y = (1/k) sum_r a*_r s*(w*_r.x) + sqrt(noise) z

    Parameters
    ----------
    width : int, default 4
        Number of units of the student, p.
    teacher_width : int, default 1
        Number of units of the teacher, k.
    activation : str, Activation or callable, default "square"
        Activation of the student: a name (linear, square, erf, relu, tanh, gelu, softplus, sigmoid,
        silu, abs, he2 to he6; see ``sgd.Activation``), a polynomial, an
        ``Activation``, or a JAX function.
    teacher_activation : str, Activation or callable, optional
        Activation of the teacher, which may also be "sign". Defaults to that of the student.
    teacher_gram : array_like, optional
        P = W* W*^T, k x k. With several covariance blocks one matrix per block, or one that is
        spread over them by their fractions. Defaults to the identity.
    teacher_head : array_like, optional
        The teacher's head a*, k numbers. Defaults to ones.
    noise : float, callable or NoiseLaw, default 0.0
        Variance of Gaussian label noise, which may be a function of alpha = samples/d (on fixed
        data of t), or a law of ``sgd.labels`` (Student t, Laplace, Cauchy).
    head : str, default "fixed"
        "fixed" or "trained". The head a is ones unless the start specifies it.
    constraint : str, optional
        "sphere" keeps every row at norm 1. By default the rows are free.
    weight_decay : float, callable or dict, default 0.0
        Coefficient al of the penalty ``(al/2)(|W|^2 + |a|^2)``, which the dynamics minimises with
        the loss (the head only if it is trained), and which is not part of the risk. With
        ``biases`` also by leaf, ``{"rows": 0.05, "a": 0.1}``, 0 for those that are left out.
    loss : str or callable, default "squared"
        "squared" is (f - y)^2/2; "correlation", "logistic", or a JAX function of (f, y).
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, or ``sgd.Spectrum``,
        ``sgd.power_law``, which fix d. Defaults to the identity.
    keep : float or callable, default 1.0
        Probability of keeping a unit (dropout in training, drawn anew for each sample); it may be a
        function of alpha.
    gain : float or callable, default 1.0
        Factor of the units' outputs in the test: the risk is that of
        (gain/p) sum_i a_i s(w_i.x). ``gain=keep`` is the usual weight scaling.
    input_noise : float, callable or NoiseLaw, default 0.0
        Variance of noise on the inputs: in training the student sees x + sqrt(input_noise) xi,
        xi ~ N(0, I_d), with the label of x. The risk is that without noise.
    labels : LabelLaw, optional
        Law of binary labels +1 and -1 given the teacher's output: ``sgd.labels.sign(flip)``,
        ``.probit(noise)`` or ``.logistic(slope)``. By default the label is the output itself, with
        additive noise.
    biases : bool, default False
        Whether the units have trained biases, s(w_i.x + b_i). The start then has the top
        ``{"b": ...}`` in place of a head, or ``{"a": ..., "b": ...}`` with a trained head.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    erf is erf(x/sqrt 2); he2 to he6 are the probabilists' Hermite polynomials, not normalised:
    he3 = x^3 - 3x, E[he_n^2] = n!.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    >>> problem.replace(teacher_width=2).gram.tolist()
    [[[1.0, 0.0], [0.0, 1.0]]]
    """

    kind: ClassVar[str] = "TeacherStudent"
    teacher_head = ParameterAttribute()
    gram_argument: ClassVar[str | None] = "teacher_gram"

    @records_arguments
    def __init__(
        self,
        width: int = 4,
        teacher_width: int = 1,
        activation: ActivationLike = "square",
        teacher_activation: ActivationLike | None = None,
        teacher_gram: ArrayArgument | None = None,
        teacher_head: ArrayArgument | None = None,
        noise: float | Function | NoiseLaw = 0.0,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: float | Function | Mapping[str, Any] = 0.0,
        loss: str | Function = "squared",
        covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
        keep: float | Function = 1.0,
        gain: float | Function = 1.0,
        input_noise: float | Function | NoiseLaw = 0.0,
        labels: LabelLaw | None = None,
        biases: bool = False,
    ) -> None:
        self.activation = student_activation(activation)
        self.teacher_activation = (
            self.activation
            if teacher_activation is None
            else find_activation(teacher_activation, "teacher_activation")
        )
        self.teacher_width = checks.integer("teacher_width", teacher_width, 1)
        law = label_law(labels)
        sample_loss = CommitteeLoss(
            self.activation,
            outer_loss(loss),
            self.teacher_activation,
            labels=None if law is None else law.law,
        )
        self._set_common(
            sample_loss,
            width,
            signals=self.teacher_width,
            gram=teacher_gram,
            head=head,
            top=self._bias_top(width, head, biases),
            constraint=constraint,
            weight_decay=weight_decay,
            covariance=validate_covariance(covariance),
        )
        if teacher_head is None:
            teacher_head = np.ones(self.teacher_width)
        teacher_head = checks.array(
            "teacher_head", teacher_head, (self.teacher_width,), "one number per teacher unit"
        )
        self._parameters["teacher_head"] = teacher_head
        if law is not None:
            cuts = self._label_kinks
            spanned = _spanned_dimensions(cuts)
            if cuts_possible(self.signals, len(cuts), spanned):
                sample_loss = replace(sample_loss, cuts=cuts, cut_dimensions=spanned)
                self.structure = replace(self.structure, loss=sample_loss)
        self._set_regularisation(sample_loss, keep, gain, input_noise)
        self._set_network(sample_loss, noise)

    @property
    def _label_kinks(self) -> tuple[Plane, ...]:
        k, head = self.teacher_width, np.asarray(self.teacher_head)
        kinks = planes_from(self.teacher_activation.kinks, k)
        law = label_law(self._arguments["labels"])
        if law is None or law.law != "sign":
            return kinks
        if k == 1:
            zeros = sign_changes(self.teacher_activation.derivative(0))
        elif self.teacher_activation.degree == 1:
            # s*(x) = b + c x
            coefficients = self.teacher_activation.coefficients or (0.0, 1.0)
            offset, slope = coefficients
            zeros = ((slope * head, -offset * float(np.sum(head))),) if np.any(head) else ()
        else:
            return kinks
        return tuple(dict.fromkeys(kinks + planes_from(zeros, k)))

    def _set_regularisation(
        self, loss: CommitteeLoss, keep: object, gain: object, input_noise: object
    ) -> None:
        """Set dropout and noise on the inputs, if the arguments differ from the defaults."""
        if self._arguments["biases"] and (keep, gain, input_noise) != (1.0, 1.0, 0.0):
            fix = "dropout and noise on the inputs are not supported with biases. Omit them."
            raise checks.reject("biases", True, fix)
        keep = scalar_or_schedule("keep", keep, maximum=1.0)
        gain = scalar_or_schedule("gain", gain)
        variance = scalar_or_schedule("input_noise", input_noise)
        if is_scheduled(keep) or is_scheduled(gain) or (keep, gain) != (1.0, 1.0):
            self._parameters |= {
                "keep": pytrees.to_float64(keep),
                "gain": pytrees.to_float64(gain),
            }
            draws = (Draw("gates", (self.width,), 2, True), Draw("noise"))
            sample = replace(self.structure.sample, draws=draws)
            self.structure = replace(self.structure, loss=GatedLoss(loss), sample=sample)
        if is_scheduled(variance) or variance != 0.0:
            if np.any(np.asarray(eigenvalues(self._parameters)) == 0):
                raise checks.reject(
                    "input_noise",
                    input_noise,
                    "a block of the covariance has eigenvalue 0. Omit noise on the inputs.",
                )
            self._parameters["input_noise"] = pytrees.to_float64(variance)
            self.structure = replace(
                self.structure, sample=replace(self.structure.sample, noisy_inputs=True)
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = ["fields"]
        if "keep" in self._parameters:
            kinds.append("dropout")
        if "input_noise" in self._parameters:
            kinds.append("other inputs")
        if self.structure.top is not None:
            kinds.append("top")
        return tuple(kinds)

    @cached_property
    def _derived_parameters(self) -> dict[str, Any]:
        derived = super()._derived_parameters
        if "keep" not in self._parameters:
            return derived
        probabilities = map_schedule(self._parameters["keep"], binary_probabilities)
        edges = map_schedule(probabilities, quantile_edges)
        return {**derived, "draws": {"gates": {"probabilities": probabilities, "edges": edges}}}

    def describe(self) -> dict[str, Any]:
        names = [name for name in ("keep", "gain", "input_noise") if name in self._parameters]
        records = {name: describe_schedule(self._parameters[name]) for name in names}
        rerunnable = all(is_rerunnable for _, is_rerunnable in records.values())
        return {
            **({} if rerunnable else {"rerunnable": False}),
            **{name: record for name, (record, _) in records.items()},
            "kind": self.kind,
            "width": self.width,
            "teacher_width": self.teacher_width,
            "activation": self.activation.describe(),
            "teacher_activation": self.teacher_activation.describe(),
            "teacher_head": np.asarray(self.teacher_head).tolist(),
            "noise": self._describe_noise(),
            "loss": self._describe_loss(),
            **self._describe_labels(),
            **describe_network(self, "teacher_gram"),
            **self._describe_biases(),
        }


class MultiIndex(_Network):
    """A student network that learns any function of a few directions.

    ::

        f = (1/p) sum_i a_i s(w_i.x),     y = target(z) + sqrt(noise) z',     z_r = w*_r.x

    Parameters
    ----------
    target : callable
        A JAX function from the vector of ``directions`` signals to a number.
    directions : int, default 2
        Number of directions that the target depends on.
    width : int, default 8
        Number of units of the student, p.
    activation : str, Activation or callable, default "relu"
        Activation of the student: a name, a polynomial, an ``Activation``, or a JAX function.
    gram : array_like, optional
        Gram matrix of the directions. Defaults to the identity.
    noise : float, callable or NoiseLaw, default 0.0
        Variance of Gaussian label noise, which may be a function of alpha, or a law of
        ``sgd.labels`` (Student t, Laplace, Cauchy).
    head : str, default "fixed"
        "fixed" or "trained".
    constraint : str, optional
        "sphere" keeps every row at norm 1. By default the rows are free.
    weight_decay : float, callable or dict, default 0.0
        Coefficient al of the penalty ``(al/2)(|W|^2 + |a|^2)``, which the dynamics minimises with
        the loss (the head only if it is trained), and which is not part of the risk. With
        ``biases`` also by leaf, ``{"rows": 0.05, "a": 0.1}``, 0 for those that are left out.
    loss : str or callable, default "squared"
        "squared", "correlation", "logistic" (labels as the target gives them, so a target of +1 and
        -1), or a JAX function of (output, label).
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, or ``sgd.Spectrum``,
        ``sgd.power_law``, which fix d. Defaults to the identity.
    kinks : sequence, default ()
        Planes along which the target has a kink or jumps, so that the theory integrates around
        them: (normal, level) for the plane normal . z = level, or a number for the planes
        z_r = number of all directions: ``[0.0]`` for sign(z[0]), ``[((1.0, -1.0), 0.0)]`` for
        max(z[0], z[1]).
    labels : LabelLaw, optional
        Law of binary labels +1 and -1 given the target: ``sgd.labels.sign(flip)``,
        ``.probit(noise)`` or ``.logistic(slope)``. By default the label is the target itself, with
        additive noise. With ``sgd.labels.sign`` and several directions, ``kinks`` should contain
        the planes along which the target changes its sign.
    biases : bool, default False
        Whether the units have trained biases, s(w_i.x + b_i). The start then has the top
        ``{"b": ...}`` in place of a head, or ``{"a": ..., "b": ...}`` with a trained head.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    Allowed are 32 planes in one direction, 6 in two, and 4 in three whose normals span two
    dimensions. Beyond three directions expectations are sampled, and nothing is cut.

    Examples
    --------
    >>> problem = sgd.MultiIndex(lambda z: z[0] * z[1], directions=2, width=2, activation="square")
    >>> problem.signals, problem.head
    (2, 'fixed')
    """

    kind: ClassVar[str] = "MultiIndex"

    @records_arguments
    def __init__(
        self,
        target: Callable[[Any], Any],
        directions: int = 2,
        width: int = 8,
        activation: ActivationLike = "relu",
        *,
        gram: ArrayArgument | None = None,
        noise: float | Function | NoiseLaw = 0.0,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: float | Function | Mapping[str, Any] = 0.0,
        loss: str | Function = "squared",
        covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
        kinks: Sequence[Any] = (),
        labels: LabelLaw | None = None,
        biases: bool = False,
    ) -> None:
        if not callable(target):
            raise checks.reject(
                "target", target, "give a JAX function from a vector of signals to a number"
            )
        self.directions = checks.integer("directions", directions, 1)
        check_memory(
            "directions", self.directions, 64.0 * self.directions**2, "their overlaps", "take fewer"
        )
        call = f"a vector of {self.directions} signals"
        # labels may be integers, such as classes: nothing is differentiated through them
        validate_function(
            "target",
            target,
            (np.zeros(self.directions),),
            takes="signals",
            call=call,
            differentiated=False,
        )
        self.target = target
        self.activation = student_activation(activation)
        self.kinks = _planes(kinks, self.directions)
        law, cuts = label_law(labels), self.kinks
        if law is not None and law.law == "sign" and self.directions == 1:
            zeros = _target_zeros(target)
            cuts = tuple(dict.fromkeys(cuts + planes_from(zeros, 1)))
        sample_loss = TargetLoss(
            self.activation,
            outer_loss(loss),
            target,
            labels=None if law is None else law.law,
            cuts=cuts,
            cut_dimensions=_spanned_dimensions(cuts),
        )
        self._set_common(
            sample_loss,
            width,
            signals=self.directions,
            gram=gram,
            head=head,
            top=self._bias_top(width, head, biases),
            constraint=constraint,
            weight_decay=weight_decay,
            covariance=validate_covariance(covariance),
        )
        self._set_network(sample_loss, noise)

    @property
    def _label_kinks(self) -> tuple[Plane, ...]:
        return self.structure.loss.cuts

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "target": function_identity(self.target),
            "directions": self.directions,
            "width": self.width,
            "activation": self.activation.describe(),
            "noise": self._describe_noise(),
            "loss": self._describe_loss(),
            **self._describe_labels(),
            "kinks": [[list(normal), level] for normal, level in self.kinks],
            **describe_network(self, "gram"),
            **self._describe_biases(),
            "rerunnable": False,
        }


@float64
def _target_zeros(target: Function) -> tuple[float, ...]:
    """Return the points at which a target of one signal changes its sign."""
    function = jax.jit(jax.vmap(lambda z: target(z[None])))
    return sign_changes(lambda z: np.asarray(function(np.resize(z, 2001)))[: len(z)])


def _planes(value: object, directions: int) -> tuple[Plane, ...]:
    """Return the kinks of a target as distinct planes (normal, level), with unit normals."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise checks.reject("kinks", value, kinks_fix(directions))
    planes = planes_from(tuple(value), directions)
    spanned = _spanned_dimensions(planes)
    if planes and directions in MOST_CUTS and not cuts_possible(directions, len(planes), spanned):
        raise checks.reject(
            "kinks",
            value,
            f"these are {len(planes)} planes whose normals span {spanned} of {directions} "
            f"dimensions. Give at most {MOST_CUTS[directions]} planes that span at most two "
            "dimensions, and omit those that matter least (the error estimate shows the effect).",
        )
    return planes


def _spanned_dimensions(planes: tuple[Plane, ...]) -> int:
    """Return the dimension of the span of the normals."""
    if not planes:
        return 0
    normals = np.array([normal for normal, _ in planes])
    return int(np.linalg.matrix_rank(normals, tol=1e-9))
