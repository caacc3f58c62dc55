"""Problems of which every sample draws one: tasks, groups of data, a curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import describe_schedule, is_scheduled, scalar_or_schedule, values_at
from sgdynamics.problems.losses import ContextLoss, label_noise
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import records_arguments
from sgdynamics.problems.structure import Structure
from sgdynamics.samples.draws import validate_probabilities
from sgdynamics.samples.input_covariance import eigenvalues
from sgdynamics.samples.sample import GaussianSample

HEADS = ("shared", "own")
SHARED = (
    "weight_decay",
    "gram",
    "fractions",
    "multiplicities",
)  # numbers that all contexts have alike


class Contexts(Problem):
    """Several problems of the same rows and signals, of which every sample draws one. Made by ``sgd.contexts``.

    Parameters
    ----------
    problems : dict of str to Problem
        Problems by name.
    probabilities : array_like or callable, optional
        Of each, adding up to 1, a function of alpha, or the shares of some by name.
    heads : str, default "shared"
        "shared" or "own".

    Raises
    ------
    ValueError
        If the problems do not fit each other.

    Examples
    --------
    >>> one = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> both = sgd.contexts({"quiet": one, "loud": one.replace(noise=1.0)})
    >>> both.names, both.probabilities.tolist(), both.problems["loud"].noise
    (('quiet', 'loud'), [0.5, 0.5], 1.0)
    """

    kind: ClassVar[str] = "contexts"

    @records_arguments
    def __init__(
        self,
        problems: Mapping[str, Problem],
        probabilities: ArrayArgument | Function | Mapping[str, Any] | None = None,
        heads: str = "shared",
    ) -> None:
        self.heads = checks.choice("heads", heads, HEADS)
        fix = 'give two problems or more by name, such as {"easy": sgd.TeacherStudent(...), "hard": sgd.TeacherStudent(...)}'
        if not isinstance(problems, Mapping) or len(problems) < 2:
            raise checks.reject("problems", problems, fix)
        self.names = tuple(problems)
        for name, one in problems.items():
            _accept(name, one, fix)
        first, *rest = every = tuple(problems.values())
        for name, one in zip(self.names[1:], rest, strict=True):
            _alike(self.names[0], first, name, one)
        if probabilities is None:
            probabilities = np.full(len(every), 1 / len(every))
        chances = _chances(probabilities, self.names)
        sizes = np.stack([np.asarray(eigenvalues(one.parameters)) for one in every])
        own = bool(np.any(sizes != sizes[0]))
        if own and np.any(sizes.max(axis=0) == 0):
            raise checks.reject(
                "problems",
                self.names,
                "a block of the covariance has eigenvalue 0 in all of them: leave it out",
            )
        self.width, self.signals, self.head, self.constraint = (
            first.width,
            first.signals,
            first.head,
            first.constraint,
        )
        shape = first.structure
        loss = ContextLoss(tuple(one.structure for one in every), self.heads == "own")
        sample = GaussianSample(self.signals, contexts=len(every), context_spectra=own)
        count = len(every) if self.heads == "own" else 1
        self.structure = Structure(
            self.width,
            self.signals,
            shape.blocks,
            loss,
            shape.trained,
            shape.constraint,
            sample,
            heads=count,
        )
        self._stated_spectrum = first._stated_spectrum
        self._fixed_parameters = {}
        self._parameters = {
            **{name: first._parameters[name] for name in SHARED if name in first._parameters},
            "eigenvalues": sizes.max(axis=0),
            **({"context_eigenvalues": sizes} if own else {}),
            "probabilities": chances,
            "contexts": every,
        }

    @property
    def probabilities(self) -> Any:
        """Those of all contexts in their order, a function of alpha, or the shares of some by name."""
        found = self._parameters["probabilities"]
        if not isinstance(found, tuple):
            return found
        return {
            name: pytrees.to_python_scalar(one)
            for name, one in zip(self.names, found, strict=True)
            if one is not None
        }

    @property
    def arguments(self) -> dict[str, Any]:
        return {"problems": self.problems, "probabilities": self.probabilities, "heads": self.heads}

    @property
    def shares(self) -> dict[str, Any]:
        """The probability of every context by name; a function of alpha where its own share is one, and None where it is what is left."""
        found = self._parameters["probabilities"]
        return dict(
            zip(
                self.names,
                found if isinstance(found, tuple) else [float(one) for one in found],
                strict=True,
            )
        )

    @property
    def problems(self) -> dict[str, Problem]:
        """The contexts' problems by name."""
        return dict(zip(self.names, self._parameters["contexts"], strict=True))

    @property
    def parameters(self) -> dict[str, Any]:
        found = super().parameters
        return {**found, "contexts": tuple(one.parameters for one in found["contexts"])}

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("fields", "contexts", *["other inputs"] * self.structure.sample.context_spectra)

    @property
    def noise_floor(self) -> float:
        return (
            float(label_noise(values_at(self.parameters, 0.0))) / 2
            if self.structure.has_excess
            else 0.0
        )

    def describe(self) -> dict[str, Any]:
        chances, whole = _described(self.probabilities)
        records = {name: one.describe() for name, one in self.problems.items()}
        whole = whole and all(record.get("rerunnable", True) for record in records.values())
        return {
            "kind": self.kind,
            "problems": records,
            "probabilities": chances,
            "heads": self.heads,
            **({} if whole else {"rerunnable": False}),
        }


def contexts(
    problems: Mapping[str, Problem],
    probabilities: ArrayArgument | Function | Mapping[str, Any] | None = None,
    heads: str = "shared",
) -> Contexts:
    """Several problems of which every sample draws one: tasks with replay, groups of data, a curriculum.

    Parameters
    ----------
    problems : dict of str to Problem
        Problems by name, of the same width, signals (their Gram matrix too), constraint and weight decay, each of one centred input a
        sample. They may differ in their labels, activations, losses, label noise and eigenvalues of the covariance.
    probabilities : array_like, callable or dict, optional
        Of each, adding up to 1, or a function of alpha that gives them; or the shares of some by name, numbers or functions of alpha each,
        of which the others have equal parts of the rest: ``{"hard": 0.3}``. Equal ones unless given.
    heads : str, default "shared"
        "own": every context has a head of its own, and a start takes them as ``a`` of shape (contexts, width).

    Returns
    -------
    Contexts
        A problem for ``solve_ode``, ``solve_sde``, ``simulate``, ``exit_time`` and ``optimal_protocol``.

    Raises
    ------
    ValueError
        If the problems do not fit each other, or probabilities are none.

    Notes
    -----
    Drift, noise and risk are weighted sums, each context by its own expectation. The risk is that of the moment's mixture;
    ``context_risk`` of a result has that of every context.

    Examples
    --------
    >>> one = sgd.TeacherStudent(width=1, teacher_width=2, activation="erf", teacher_head=[2.0, 0.0])
    >>> both = sgd.contexts({"one": one, "other": one.replace(teacher_head=[0.0, 2.0])}, probabilities=[0.7, 0.3])
    >>> begin = sgd.start(both, M=[[0.2, 0.1]], Q=[[1.0]])
    >>> sgd.solve_ode(both, sgd.OnePassSGD(lr=1.0), begin, alpha=[1.0]).context_risk.values.round(3).tolist()
    [[[0.202, 0.267]]]
    """
    return Contexts(problems, probabilities, heads)


def _chances(value: Any, names: tuple[str, ...]) -> Any:
    """Probabilities as an argument: of all contexts, a function that gives them, or the shares of some by name."""
    if not isinstance(value, Mapping):
        chances, count = validate_probabilities("probabilities", value)
        if count != len(names):
            raise checks.reject(
                "probabilities",
                value,
                f"there are {len(names)} contexts: give one probability for each",
            )
        return chances
    for name in value:
        if name not in names:
            raise checks.reject(
                "probabilities",
                value,
                f"{checks.did_you_mean(name, names)}the contexts are {', '.join(names)}",
            )
    shares = {
        name: scalar_or_schedule(f"probabilities[{name!r}]", one, maximum=1.0)
        for name, one in value.items()
    }
    known = [one for one in shares.values() if not is_scheduled(one)]
    if not 0 < len(shares) < len(names) or sum(known) > 1 + 1e-9:
        fix = "give the shares of some contexts, at most 1 in all, and the others have equal parts of the rest; or a list of all"
        raise checks.reject("probabilities", value, fix)
    return tuple(pytrees.to_float64(shares[name]) if name in shares else None for name in names)


def _described(value: Any) -> tuple[Any, bool]:
    """Probabilities as plain values for a record, and whether they can be made again from them."""
    if isinstance(value, dict):
        every = {name: describe_schedule(one) for name, one in value.items()}
        return {name: one for name, (one, _) in every.items()}, all(
            whole for _, whole in every.values()
        )
    found, whole = describe_schedule(value)
    return found if isinstance(found, dict) else np.asarray(found).tolist(), whole


def _accept(name: object, one: Any, fix: str) -> None:
    """Refuse what is no problem of one centred Gaussian input."""
    if (
        not isinstance(name, str)
        or not name
        or not isinstance(one, Problem)
        or isinstance(one, Contexts)
    ):
        raise checks.reject("problems", {name: one}, fix)
    if (
        one.structure.sample != GaussianSample(one.signals)
        or one.structure.loss.reads_overlaps
        or one.structure.expectation is not None
    ):
        fix = "contexts are problems of one centred input and label noise: leave draws, clusters, tokens, dropout and noise on inputs out"
        raise checks.reject(f"problems[{name!r}]", one, fix)


def _alike(first_name: str, first: Problem, name: str, one: Problem) -> None:
    """Refuse problems whose states are not those of the first."""
    shapes = {
        "width": (first.width, one.width),
        "signals": (first.signals, one.signals),
        "head": (first.head, one.head),
    }
    shapes |= {
        "constraint": (first.constraint, one.constraint),
        "blocks of the covariance": (first.structure.blocks, one.structure.blocks),
    }
    for what, (mine, other) in shapes.items():
        if mine != other:
            raise checks.reject(
                "problems",
                {first_name: mine, name: other},
                f"all contexts need the same {what}: state them alike",
            )
    parts = ("gram", "fractions", "multiplicities")
    same = all(
        np.array_equal(first.parameters.get(part, 0.0), one.parameters.get(part, 0.0))
        for part in parts
    )
    if not same:
        fix = "all contexts need the same signals: one Gram matrix, and the same fractions of d; let each problem read those it needs"
        raise checks.reject("problems", [first_name, name], fix)
    if first.weight_decay != one.weight_decay:
        raise checks.reject(
            "problems",
            {first_name: first.weight_decay, name: one.weight_decay},
            "all contexts need the same weight decay",
        )
