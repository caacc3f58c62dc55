"""Mixtures of problems: tasks, groups of data, a curriculum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import (
    Schedule,
    describe_schedule,
    scalar_or_schedule,
    values_at,
)
from sgdynamics.problems.losses import ContextLoss, label_noise
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import records_arguments
from sgdynamics.problems.structure import Structure
from sgdynamics.problems.tops import Top
from sgdynamics.samples.draws import validate_probabilities
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.sample import GaussianSample

HEADS = ("shared", "own")
# Parameters that all contexts have in common.
SHARED_PARAMETERS = ("weight_decay", "head_decay", "gram", "fractions", "multiplicities")


class Contexts(Problem):
    """Several problems of the same rows and signals; every sample draws one of them.

    Made by ``sgd.contexts``.

    Parameters
    ----------
    problems : dict of str to Problem
        Problems by name.
    probabilities : array_like or callable, optional
        Probabilities of the contexts, adding up to 1, a function of alpha, or the probabilities of
        some contexts by name.
    heads : str or sequence of str, default "shared"
        "shared", "own", or the leaves of a top of which each context has its own.

    Raises
    ------
    ValueError
        If the problems do not fit each other.

    Examples
    --------
    >>> quiet = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> both = sgd.contexts({"quiet": quiet, "loud": quiet.replace(noise=1.0)})
    >>> both.names, both.probabilities.tolist(), both.problems["loud"].noise
    (('quiet', 'loud'), [0.5, 0.5], 1.0)
    """

    kind: ClassVar[str] = "contexts"

    @records_arguments
    def __init__(
        self,
        problems: Mapping[str, Problem],
        probabilities: ArrayArgument | Function | Mapping[str, Any] | None = None,
        heads: str | Sequence[str] = "shared",
    ) -> None:
        fix = (
            'give two or more problems by name, such as {"easy": sgd.TeacherStudent(...), '
            '"hard": sgd.TeacherStudent(...)}'
        )
        if not isinstance(problems, Mapping) or len(problems) < 2:
            raise checks.reject("problems", problems, fix)
        self.names = tuple(problems)
        contexts = tuple(problems.values())
        for name, problem in problems.items():
            _check_problem(name, problem, fix)
        first = contexts[0]
        for name, problem in zip(self.names[1:], contexts[1:], strict=True):
            _check_same_rows(self.names[0], first, name, problem)
        if probabilities is None:
            probabilities = np.full(len(contexts), 1 / len(contexts))
        weights = _validate_weights(probabilities, self.names)
        # Eigenvalues may differ between contexts: the state then has the largest of each block.
        spectra = np.stack([np.asarray(eigenvalues(problem.parameters)) for problem in contexts])
        own_spectra = bool(np.any(spectra != spectra[0]))
        if own_spectra and np.any(spectra.max(axis=0) == 0):
            raise checks.reject(
                "problems",
                self.names,
                "a block of the covariance has eigenvalue 0 in all contexts. Omit it.",
            )
        self.width, self.signals = first.width, first.signals
        self.head, self.constraint = first.head, first.constraint
        self.heads, own_leaves = _validate_own(heads, first)
        own_heads = self.heads == "own" and first.structure.top is None
        top = _joint_top(first.structure.top, own_leaves, len(contexts))
        self.structure = Structure(
            width=self.width,
            signals=self.signals,
            blocks=first.structure.blocks,
            loss=ContextLoss(
                tuple(problem.structure for problem in contexts), own_heads, own_leaves
            ),
            trained=first.structure.trained,
            constraint=first.structure.constraint,
            sample=GaussianSample(
                self.signals, contexts=len(contexts), context_spectra=own_spectra
            ),
            heads=len(contexts) if own_heads else 1,
            top=top,
        )
        self._stated_spectrum = first._stated_spectrum
        self._fixed_parameters = {}
        shared = {
            name: first._parameters[name] for name in SHARED_PARAMETERS if name in first._parameters
        }
        if "head_decay" in shared and own_leaves:
            assert first.structure.top is not None
            shared["head_decay"] = _joint_decay(
                shared["head_decay"], first.structure.top, own_leaves, len(contexts)
            )
        self._parameters = {
            **shared,
            "eigenvalues": spectra.max(axis=0),
            **({"context_eigenvalues": spectra} if own_spectra else {}),
            "probabilities": weights,
            "contexts": contexts,
        }

    @property
    def probabilities(self) -> np.ndarray | Schedule | dict[str, Any]:
        """Probabilities of all contexts in order, a function of alpha, or those of some by name."""
        probabilities = self._parameters["probabilities"]
        if not isinstance(probabilities, tuple):
            return probabilities
        return {
            name: pytrees.to_python_scalar(probability)
            for name, probability in zip(self.names, probabilities, strict=True)
            if probability is not None
        }

    @property
    def arguments(self) -> dict[str, Any]:
        return {"problems": self.problems, "probabilities": self.probabilities, "heads": self.heads}

    @property
    def shares(self) -> dict[str, Any]:
        """The probability of each context by name.

        It is a function of alpha if that of the context is one, and None for contexts that share
        the remaining probability.
        """
        probabilities = self._parameters["probabilities"]
        if not isinstance(probabilities, tuple):
            probabilities = [float(probability) for probability in probabilities]
        return dict(zip(self.names, probabilities, strict=True))

    @property
    def problems(self) -> dict[str, Problem]:
        """The contexts' problems by name."""
        return dict(zip(self.names, self._parameters["contexts"], strict=True))

    @property
    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters
        contexts = tuple(problem.parameters for problem in parameters["contexts"])
        return {**parameters, "contexts": contexts}

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = ("fields", "contexts")
        kinds = kinds if self.structure.top is None else (*kinds, "top")
        return (*kinds, "other inputs") if self.structure.sample.context_spectra else kinds

    @property
    def noise_floor(self) -> float:
        if not self.structure.has_excess:
            return 0.0
        return float(label_noise(values_at(self.parameters, 0.0))) / 2

    def describe(self) -> dict[str, Any]:
        probabilities, rerunnable = _describe_probabilities(self.probabilities)
        records = {name: problem.describe() for name, problem in self.problems.items()}
        rerunnable &= all(record.get("rerunnable", True) for record in records.values())
        return {
            "kind": self.kind,
            "problems": records,
            "probabilities": probabilities,
            "heads": self.heads if isinstance(self.heads, str) else list(self.heads),
            **({} if rerunnable else {"rerunnable": False}),
        }


def contexts(
    problems: Mapping[str, Problem],
    probabilities: ArrayArgument | Function | Mapping[str, Any] | None = None,
    heads: str | Sequence[str] = "shared",
) -> Contexts:
    """Combine several problems; every sample draws one: tasks with replay, groups, a curriculum.

    Parameters
    ----------
    problems : dict of str to Problem
        Problems by name, of the same width, signals (also their Gram matrix), constraint and weight
        decay, each of one centred input per sample. They may differ in their labels, activations,
        losses, label noise and eigenvalues of the covariance.
    probabilities : array_like, callable or dict, optional
        Probabilities of the contexts, adding up to 1, or a function of alpha that returns them; or
        those of some contexts by name, numbers or functions of alpha, while the others share the
        remaining probability equally: ``{"hard": 0.3}``. Defaults to equal probabilities.
    heads : str or sequence of str, default "shared"
        "own": every context has its own head, and a start takes them as ``a`` of shape
        (contexts, width). Of problems with a top also the names of the leaves of which each context
        has its own; these have a first axis of contexts.

    Returns
    -------
    Contexts
        A problem for ``solve_ode``, ``solve_sde``, ``simulate``, ``exit_time`` and
        ``optimal_protocol``.

    Raises
    ------
    ValueError
        If the problems do not fit each other, or the probabilities are invalid.

    Notes
    -----
    Drift, noise and risk are sums over the contexts, weighted by their probabilities, and each
    context has its own expectation. The risk is that of the current mixture; ``context_risk`` of a
    result contains that of each context.

    Examples
    --------
    >>> first = sgd.TeacherStudent(
    ...     width=1, teacher_width=2, activation="erf", teacher_head=[2.0, 0.0]
    ... )
    >>> second = first.replace(teacher_head=[0.0, 2.0])
    >>> both = sgd.contexts({"first": first, "second": second}, probabilities=[0.7, 0.3])
    >>> start = sgd.start(both, M=[[0.2, 0.1]], Q=[[1.0]])
    >>> result = sgd.solve_ode(both, sgd.OnePassSGD(lr=1.0), start, alpha=[1.0])
    >>> result.context_risk.values.round(3).tolist()
    [[[0.202, 0.267]]]
    """
    return Contexts(problems, probabilities, heads)


def _validate_own(
    heads: str | Sequence[str], problem: Problem
) -> tuple[str | tuple[str, ...], tuple[str, ...]]:
    """Return the argument `heads`, and the leaves of a top of which each context has its own."""
    top = problem.structure.top
    if top is None:
        return checks.choice("heads", heads, HEADS), ()
    if isinstance(heads, str):
        heads = checks.choice("heads", heads, HEADS)
        return heads, top.names if heads == "own" else ()
    names = tuple(heads)
    own = {index for name in names for index in top.leaves_of(name)}
    for name in names:
        if not top.leaves_of(name):
            fix = f"{checks.did_you_mean(name, top.names)}the leaves are {', '.join(top.names)}"
            raise checks.reject("heads", heads, fix)
    return names, tuple(top.names[index] for index in sorted(own))


def _joint_top(top: Top | None, own: tuple[str, ...], contexts: int) -> Top | None:
    """Return the top of all contexts: own leaves have a first axis of contexts."""
    if top is None:
        return None
    shapes = [
        (contexts, *shape) if name in own else shape
        for name, shape in zip(top.names, top.shapes, strict=True)
    ]
    return Top(top.tree, top.names, tuple(shapes))


def _joint_decay(decay: object, top: Top, own: tuple[str, ...], contexts: int) -> np.ndarray:
    """Return the weight decay of every entry of the joint top from that of one context."""
    if isinstance(decay, Schedule):
        raise checks.reject(
            "heads", own, "a weight decay by leaf that depends on alpha needs shared leaves"
        )
    pieces = np.split(np.asarray(decay), top.offsets[1:])
    return np.concatenate(
        [
            np.tile(piece, contexts if name in own else 1)
            for name, piece in zip(top.names, pieces, strict=True)
        ]
    )


def _validate_weights(
    value: ArrayArgument | Function | Mapping[str, Any], names: tuple[str, ...]
) -> np.ndarray | Schedule | tuple[Any, ...]:
    """Return the probabilities of the contexts, as the parameter "probabilities".

    This is an array of all probabilities, a function of alpha that returns them, or a tuple with a
    number, a function of alpha or None (an equal share of the remaining probability) per context.
    """
    if not isinstance(value, Mapping):
        probabilities, count = validate_probabilities("probabilities", value)
        if count != len(names):
            raise checks.reject(
                "probabilities",
                value,
                f"there are {len(names)} contexts: give one probability for each",
            )
        return probabilities
    for name in value:
        if name not in names:
            raise checks.reject(
                "probabilities",
                value,
                f"{checks.did_you_mean(name, names)}the contexts are {', '.join(names)}",
            )
    shares = {
        name: scalar_or_schedule(f"probabilities[{name!r}]", share, maximum=1.0)
        for name, share in value.items()
    }
    total = sum(share for share in shares.values() if not isinstance(share, Schedule))
    if not 0 < len(shares) < len(names) or total > 1 + 1e-9:
        raise checks.reject(
            "probabilities",
            value,
            "give the probabilities of some contexts, at most 1 in total, while the others share "
            "the remaining probability equally; or a list of all",
        )
    return tuple(pytrees.to_float64(shares[name]) if name in shares else None for name in names)


def _describe_probabilities(
    value: np.ndarray | Schedule | dict[str, Any],
) -> tuple[list[Any] | dict[str, Any], bool]:
    """Return probabilities as plain values, and whether they can be restored from them."""
    if isinstance(value, dict):
        records = {name: describe_schedule(share) for name, share in value.items()}
        plain = {name: record for name, (record, _) in records.items()}
        return plain, all(rerunnable for _, rerunnable in records.values())
    record, rerunnable = describe_schedule(value)
    return record if isinstance(record, dict) else np.asarray(record).tolist(), rerunnable


def _check_problem(name: object, problem: object, fix: str) -> None:
    """Raise ValueError unless the problem has one centred Gaussian input per sample."""
    is_name = isinstance(name, str) and bool(name)
    if not is_name or not isinstance(problem, Problem) or isinstance(problem, Contexts):
        raise checks.reject("problems", {name: problem}, fix)
    structure = problem.structure
    if (
        structure.sample != GaussianSample(problem.signals)
        or structure.loss.reads_overlaps
        or structure.expectation is not None
    ):
        raise checks.reject(
            f"problems[{name!r}]",
            problem,
            "contexts are problems of one centred input and label noise. Omit draws, clusters, "
            "tokens, dropout and noise on inputs.",
        )


def _check_same_rows(first_name: str, first: Problem, name: str, problem: Problem) -> None:
    """Raise ValueError unless two problems have the same state."""
    properties = {
        "width": (first.width, problem.width),
        "signals": (first.signals, problem.signals),
        "head": (first.head, problem.head),
        "top": (first.structure.top, problem.structure.top),
        "constraint": (first.constraint, problem.constraint),
        "blocks of the covariance": (first.structure.blocks, problem.structure.blocks),
    }
    for label, (expected, actual) in properties.items():
        if expected != actual:
            raise checks.reject(
                "problems",
                {first_name: expected, name: actual},
                f"all contexts need the same {label}: state them alike",
            )
    same_signals = all(
        np.array_equal(first.parameters.get(key, 0.0), problem.parameters.get(key, 0.0))
        for key in ("gram", "fractions", "multiplicities")
    )
    if not same_signals:
        raise checks.reject(
            "problems",
            [first_name, name],
            "all contexts need the same signals: one Gram matrix, and the same fractions of d. "
            "Each problem may read a part of the signals.",
        )
    if first.weight_decay != problem.weight_decay:
        raise checks.reject(
            "problems",
            {first_name: first.weight_decay, name: problem.weight_decay},
            "all contexts need the same weight decay",
        )
