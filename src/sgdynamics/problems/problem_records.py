"""Arguments of problems as plain values, for the records of results and for problem files.

A record is JSON: numbers, text, lists and dictionaries. `Problem.describe` of each class combines
these pieces with the arguments of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sgdynamics.base.controls import describe_schedule
from sgdynamics.problems.problem_values import plain_values
from sgdynamics.samples.draws import describe_draws
from sgdynamics.samples.spectra import Spectrum

if TYPE_CHECKING:
    from sgdynamics.problems.problem import Problem

# Arguments that define the law of a sample, in addition to covariance and clusters.
SAMPLE_ARGUMENTS = ("tokens", "token_correlation", "means", "draws")


def describe_sample(problem: Problem) -> dict[str, Any]:
    """Return the arguments that define the law of a sample, without those that are None."""
    arguments, parameters = problem._arguments, problem._parameters
    draws = describe_draws(arguments["draws"] or {}, parameters.get("draws", {}))
    # JAX may have replaced parameters: these, not the arguments, have the current values.
    current = {**arguments, **parameters, "draws": draws}
    return {
        name: plain_values(current[name])
        for name in SAMPLE_ARGUMENTS
        if arguments[name] is not None
    }


def describe_network(problem: Problem, gram_name: str) -> dict[str, Any]:
    """Return the arguments that all problems share: signals, head, constraint, decay, covariance.

    `gram_name` is the name of the argument with the Gram matrix of the signals. Defaults are
    recorded as None. "rerunnable" is False if a parameter is a user's function.
    """
    gram = np.asarray(problem.gram)
    single_block = problem.structure.blocks == 1
    omits_gram = single_block and np.array_equal(gram[0], np.eye(problem.signals))
    if problem.spectrum is not None:
        covariance, has_target = _describe_spectrum(problem.spectrum, gram)
        omits_gram = has_target
    else:
        pairs = [list(pair) for pair in problem.covariance_blocks]
        covariance = None if pairs == [[1.0, 1.0]] else pairs
    record: dict[str, Any] = {
        gram_name: None if omits_gram else (gram[0] if single_block else gram).tolist(),
        "head": problem.head,
        "constraint": problem.constraint,
        "weight_decay": _describe_decay(problem),
        "covariance": covariance,
    }
    if problem.clusters:
        record["clusters"] = [
            [weight, list(coefficients), label] for weight, coefficients, label in problem.clusters
        ]
    schedules = (getattr(problem, name, None) for name in ("noise", "weight_decay"))
    if not all(describe_schedule(value)[1] for value in schedules):
        record["rerunnable"] = False
    return record


def _describe_decay(problem: Problem) -> Any:
    """Return the record of the weight decay, by leaf if it differs between them."""
    stated = problem._arguments.get("weight_decay")
    if isinstance(stated, Mapping):
        return plain_values(dict(stated))
    return describe_schedule(problem.weight_decay)[0]


def _describe_spectrum(spectrum: Spectrum, gram: np.ndarray) -> tuple[dict[str, Any], bool]:
    """Return the record of a spectrum, and whether it contains the Gram matrix as its target."""
    if spectrum.target is None:
        return spectrum.describe(), False
    if np.array_equal(spectrum.target, gram):
        return spectrum.describe(), True
    # JAX replaced the Gram matrix: the record has the current one. `dataclasses.replace` resets the
    # flag `infinite`, which is not an argument of the constructor, so it is added by hand.
    record = replace(spectrum, target=gram).describe()
    return {**record, **({"infinite": True} if spectrum.infinite else {})}, True
