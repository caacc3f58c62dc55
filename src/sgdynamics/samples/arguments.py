"""Validation of the data arguments of a problem, which build its `Sample` and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Parameters, PyTree
from sgdynamics.base.controls import map_schedule, values_at
from sgdynamics.base.resources import check_memory
from sgdynamics.base.user_functions import accepts_two_arguments, output_shape
from sgdynamics.samples.draws import quantile_edges, validate_draws
from sgdynamics.samples.sample import GaussianSample, Sample, apply_means, example_draws
from sgdynamics.samples.spectra import Spectrum, spectrum_from
from sgdynamics.samples.tokens import Tokens


class Covariance(NamedTuple):
    """The blocks of the inputs' covariance, checked.

    Fractions of any dimension, or the multiplicities of a spectrum.
    """

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
    draws: Mapping[str, object] | None = None,
    user: PyTree = None,
) -> tuple[Sample, Parameters]:
    """Validate the data arguments of a problem, and build its samples and their parameters.

    `user` are the problem's own parameters, which its means may read.
    """
    parameters: Parameters = {
        "eigenvalues": covariance.eigenvalues,
        "fractions": covariance.fractions,
    }
    if covariance.spectrum is not None:
        parameters["multiplicities"] = covariance.spectrum.multiplicities.astype(np.float64)
    for name, value in (("clusters", clusters or None), ("means", means)):
        if signals == 0 and value is not None:
            raise checks.reject(
                name,
                value,
                "the means of the inputs lie along the signals, and signals = 0. "
                "Set signals to 1 or more",
            )
    if clusters:
        weights, coefficients, labels = (np.array(column) for column in zip(*clusters, strict=True))
        parameters |= {
            "cluster_weights": weights,
            "cluster_coefficients": coefficients,
            "cluster_labels": labels,
        }
    if tokens is not None:
        tokens = checks.integer("tokens", tokens, 1)
        check_memory("tokens", tokens, 64.0 * tokens**2, "their correlation", "take fewer")
        if token_correlation is not None:
            parameters["token_correlation"] = checks.array(
                "token_correlation", token_correlation, (tokens, tokens), "tokens x tokens"
            )
            checks.gram_matrix("token_correlation", parameters["token_correlation"])
    elif token_correlation is not None:
        raise checks.reject(
            "token_correlation",
            token_correlation,
            "it applies to samples of several inputs: give tokens= as well",
        )
    draw_kinds, draw_parameters = validate_draws(draws, bool(clusters))
    if draw_parameters:
        parameters["draws"] = draw_parameters
    shape, meaning = (
        ((signals,), "one number per signal")
        if tokens is None
        else ((tokens, signals), "tokens x signals")
    )
    if means is not None and not callable(means):
        parameters["means"] = checks.array("means", means, shape, meaning)
    stated: Callable[..., Any] | bool = means if callable(means) else means is not None
    take_parameters = callable(means) and user is not None and accepts_two_arguments(means)
    sample = GaussianSample(
        signals,
        Tokens(tokens, token_correlation is not None),
        draw_kinds,
        len(clusters),
        stated,
        take_parameters,
    )
    if callable(means):
        _check_means(
            sample,
            {**parameters, **derived_parameters(parameters), "user": user},
            means,
            shape,
            meaning,
        )
    return sample, parameters


def derived_parameters(parameters: Parameters) -> Parameters:
    """Parameters that follow from the stated ones.

    These are quantile edges of probabilities and the root C^(1/2) of the token correlation.
    """
    derived: Parameters = {}
    if "cluster_weights" in parameters:
        derived["cluster_edges"] = quantile_edges(parameters["cluster_weights"])
    if "draws" in parameters:
        derived["draws"] = {}
        for name, law in parameters["draws"].items():
            derived["draws"][name] = dict(law)
            if "probabilities" in law:
                edges = map_schedule(law["probabilities"], quantile_edges)
                derived["draws"][name]["edges"] = edges
    if "token_correlation" in parameters:
        module = jnp if checks.is_traced(parameters["token_correlation"]) else np
        values, vectors = module.linalg.eigh(parameters["token_correlation"])
        # Rounding may make a zero eigenvalue negative.
        scaled = vectors * module.sqrt(module.maximum(values, 0.0))[..., None, :]
        derived["token_root"] = scaled @ module.swapaxes(vectors, -1, -2)
    return derived


def _check_means(
    sample: Sample,
    parameters: Parameters,
    means: Function,
    shape: tuple[int, ...],
    meaning: str,
) -> None:
    """Raise ValueError unless ``means`` maps the draws of one sample to coefficients."""
    if sample.draws is None and not sample.clusters and not sample.means_take_parameters:
        raise checks.reject(
            "means",
            means,
            f"a function of the draws needs draws=; or give numbers of shape {shape} ({meaning})",
        )
    draws = example_draws(sample, parameters)
    try:
        current = values_at(parameters, 0.0)
        output = output_shape(partial(apply_means, sample, current), draws)
    except Exception as error:
        raise checks.reject(
            "means",
            means,
            f"calling it on the draws of one sample failed with: {checks.reason(error)}",
        ) from error
    if output != shape:
        raise checks.reject(
            "means",
            means,
            f"the draws of one sample must give shape {shape} ({meaning}), but gave {output}",
        )


def validate_covariance(
    value: Sequence[tuple[float, float]] | Spectrum | dict[str, Any] | None,
) -> Covariance:
    """The argument ``covariance=``.

    It may be None, a list of (eigenvalue, fraction of d), a spectrum, or the record of one.
    """
    if value is None:
        return Covariance(np.ones(1), np.ones(1))
    stated = spectrum_from(value) if isinstance(value, dict) else value
    if isinstance(stated, Spectrum):
        return Covariance(stated.eigenvalues, stated.fractions, stated)
    fix = (
        "give a list of (eigenvalue, fraction of d), such as [(1, .5), (4, .5)], or "
        "sgd.Spectrum(...), sgd.power_law(...)"
    )
    try:
        pairs = [(eigenvalue, fraction) for eigenvalue, fraction in stated]
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
    return Covariance(*(np.array(column) for column in zip(*pairs, strict=True)))


def validate_clusters(
    value: Sequence[tuple[float, Sequence[float], float]] | None, signals: int
) -> tuple[tuple[float, tuple[float, ...], float], ...]:
    """The argument ``clusters=``: (weight, coefficients on the signals, label) of each cluster."""
    if value is None:
        return ()
    fix = (
        f"give a list of (weight, {signals} coefficients on the signals, label), such as "
        "[(.5, [1.0], 1.0), (.5, [-1.0], 0.0)]"
    )
    try:
        stated = [(weight, tuple(coefficients), label) for weight, coefficients, label in value]
    except (TypeError, ValueError):
        raise checks.reject("clusters", value, fix) from None
    if not stated or any(len(coefficients) != signals for _, coefficients, _ in stated):
        raise checks.reject("clusters", value, fix)
    clusters = [
        (
            checks.number("clusters weight", weight, above=0.0),
            tuple(checks.number("clusters coefficient", value) for value in coefficients),
            checks.number("clusters label", label),
        )
        for weight, coefficients, label in stated
    ]
    total = sum(weight for weight, _, _ in clusters)
    if abs(total - 1.0) > 1e-9:
        raise checks.reject(
            "clusters", value, f"the weights must add up to 1, these add up to {total:.6g}"
        )
    return tuple(clusters)
