"""The data arguments of a problem, checked, as a `Sample` and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import map_schedule, values_at
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import accepts_two_arguments, output_shape
from sgdynamics.samples.draws import quantile_edges, validate_draws
from sgdynamics.samples.sample import GaussianSample, Sample, apply_means, example_draws
from sgdynamics.samples.spectra import Spectrum, spectrum_from
from sgdynamics.samples.tokens import Tokens


class Covariance(NamedTuple):
    """The blocks of the inputs' covariance, checked: fractions of any dimension, or the multiplicities of a spectrum."""

    eigenvalues: np.ndarray
    fractions: np.ndarray
    spectrum: Spectrum | None = None


def build_sample(
    signals: int,
    covariance: Covariance,
    clusters: tuple[tuple[float, tuple[float, ...], float], ...] = (),
    tokens: int | None = None,
    token_correlation: ArrayArgument | None = None,
    means: ArrayArgument | Function | None = None,
    draws: Any = None,
    user: Any = None,
) -> tuple[Sample, dict[str, Any]]:
    """What a sample is, and the numbers it is made with; `user` are the problem's own, which its means may read."""
    numbers: dict[str, Any] = {
        "eigenvalues": covariance.eigenvalues,
        "fractions": covariance.fractions,
    }
    if covariance.spectrum is not None:
        numbers["multiplicities"] = covariance.spectrum.multiplicities.astype(np.float64)
    for name, value in (("clusters", clusters or None), ("means", means)):
        if signals == 0 and value is not None:
            raise checks.reject(
                name,
                value,
                "the means of the inputs lie along the signals, and signals = 0. Set signals to 1 or more",
            )
    if clusters:
        weights, coefficients, labels = (np.array(part) for part in zip(*clusters, strict=True))
        numbers |= {
            "cluster_weights": weights,
            "cluster_coefficients": coefficients,
            "cluster_labels": labels,
        }
    if tokens is not None:
        tokens = checks.integer("tokens", tokens, 1)
        check_memory("tokens", tokens, 64.0 * tokens**2, "their correlation", "take fewer")
        if token_correlation is not None:
            numbers["token_correlation"] = checks.array(
                "token_correlation", token_correlation, (tokens, tokens), "tokens x tokens"
            )
            checks.gram_matrix("token_correlation", numbers["token_correlation"])
    elif token_correlation is not None:
        raise checks.reject(
            "token_correlation",
            token_correlation,
            "it is for samples of several inputs: give tokens= as well",
        )
    kinds, chances = validate_draws(draws, bool(clusters))
    if chances:
        numbers["draws"] = chances
    shape, meaning = (
        ((signals,), "one number a signal")
        if tokens is None
        else ((tokens, signals), "tokens x signals")
    )
    if means is not None and not callable(means):
        numbers["means"] = checks.array("means", means, shape, meaning)
    stated: Callable[..., Any] | bool = means if callable(means) else means is not None
    take_numbers = callable(means) and user is not None and accepts_two_arguments(means)
    sample = GaussianSample(
        signals,
        Tokens(tokens, token_correlation is not None),
        kinds,
        len(clusters),
        stated,
        take_numbers,
    )
    if callable(means):
        _check_means(
            sample, {**numbers, **derived_parameters(numbers), "user": user}, means, shape, meaning
        )
    return sample, numbers


def derived_parameters(numbers: dict[str, Any]) -> dict[str, Any]:
    """What follows from the numbers that are given: edges of probabilities, and the symmetric root of the tokens' correlation."""
    found: dict[str, Any] = {}
    if "cluster_weights" in numbers:
        found["cluster_edges"] = quantile_edges(numbers["cluster_weights"])
    if "draws" in numbers:
        found["draws"] = {}
        for name, parameters in numbers["draws"].items():
            discrete = "probabilities" in parameters
            edges = (
                {"edges": map_schedule(parameters["probabilities"], quantile_edges)}
                if discrete
                else {}
            )
            found["draws"][name] = {**parameters, **edges}
    if "token_correlation" in numbers:
        at = jnp if checks.is_traced(numbers["token_correlation"]) else np
        values, vectors = at.linalg.eigh(numbers["token_correlation"])
        found["token_root"] = (
            vectors * at.sqrt(at.maximum(values, 0.0))[..., None, :]
        ) @ at.swapaxes(vectors, -1, -2)
    return found


def _check_means(
    sample: Sample, numbers: dict[str, Any], means: Any, shape: tuple[int, ...], meaning: str
) -> None:
    """Refuse what is no JAX function from the draws of one sample to the coefficients of its means."""
    if sample.draws is None and not sample.clusters and not sample.means_take_parameters:
        raise checks.reject(
            "means",
            means,
            f"a function of the draws needs draws=; or give numbers of shape {shape} ({meaning})",
        )
    draws = example_draws(sample, numbers)
    try:
        numbers = values_at(numbers, 0.0)
        found = output_shape(
            partial(apply_means, sample, numbers),
            draws,
        )
    except Exception as error:
        raise checks.reject(
            "means",
            means,
            f"calling it on the draws of one sample failed with: {checks.reason(error)}",
        ) from error
    if found != shape:
        raise checks.reject(
            "means",
            means,
            f"the draws of one sample must give shape {shape} ({meaning}), but gave {found}",
        )


def validate_covariance(value: Any) -> Covariance:
    """The inputs' covariance as an argument: None, a list of (eigenvalue, fraction of d), a spectrum, or the record of one."""
    if value is None:
        return Covariance(np.ones(1), np.ones(1))
    spectrum = spectrum_from(value) if isinstance(value, dict) else value
    if isinstance(spectrum, Spectrum):
        return Covariance(spectrum.eigenvalues, spectrum.fractions, spectrum)
    fix = "give a list of (eigenvalue, fraction of d), such as [(1, .5), (4, .5)], or sgd.Spectrum(...), sgd.power_law(...)"
    try:
        pairs = [(eigenvalue, fraction) for eigenvalue, fraction in value]
    except (TypeError, ValueError):
        raise checks.reject("covariance", value, fix) from None
    if not pairs:
        raise checks.reject("covariance", value, "give at least one (eigenvalue, fraction of d)")
    pairs = [
        (
            checks.number("covariance eigenvalue", eigenvalue, 0.0),
            checks.number("covariance fraction", fraction, above=0.0),
        )
        for eigenvalue, fraction in pairs
    ]
    if not any(eigenvalue for eigenvalue, _ in pairs):
        raise checks.reject("covariance", value, "all eigenvalues are 0: give one above 0")
    total = sum(fraction for _, fraction in pairs)
    if abs(total - 1.0) > 1e-9:
        raise checks.reject(
            "covariance", value, f"the fractions of d must add up to 1, these add up to {total:.6g}"
        )
    return Covariance(*(np.array(part) for part in zip(*pairs, strict=True)))


def validate_clusters(
    value: Any, signals: int
) -> tuple[tuple[float, tuple[float, ...], float], ...]:
    if value is None:
        return ()
    fix = f"give a list of (weight, {signals} coefficients on the signals, label), such as [(.5, [1.0], 1.0), (.5, [-1.0], 0.0)]"
    try:
        given = [(weight, tuple(coefficients), label) for weight, coefficients, label in value]
    except (TypeError, ValueError):
        raise checks.reject("clusters", value, fix) from None
    if not given or any(len(coefficients) != signals for _, coefficients, _ in given):
        raise checks.reject("clusters", value, fix)
    found = [
        (
            checks.number("clusters weight", weight, above=0.0),
            tuple(checks.number("clusters coefficient", one) for one in coefficients),
            checks.number("clusters label", label),
        )
        for weight, coefficients, label in given
    ]
    total = sum(weight for weight, _, _ in found)
    if abs(total - 1.0) > 1e-9:
        raise checks.reject(
            "clusters", value, f"the weights must add up to 1, these add up to {total:.6g}"
        )
    return tuple(found)
