"""`bayes_optimal`: the least error that any estimator reaches, and the least of known fast ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.base.support import require
from sgdynamics.problems.likelihoods import AdditiveLaw
from sgdynamics.problems.problem import Problem
from sgdynamics.results.datasets import encode
from sgdynamics.statics.bayes_curve import bayes_curve
from sgdynamics.statics.bayes_states import MOST_SIGNALS, BayesStates
from sgdynamics.statics.erm import samples_argument
from sgdynamics.statics.setup import Setup, setup_of
from sgdynamics.version import __version__

# The two fixed points differ if their overlaps do, relative to the covariance of the signals.
DIFFERENT = 1e-4
MEANINGS = {
    "q": "overlap of posterior mean fields and signals",
    "risk": "risk of the posterior mean",
    "excess_risk": "excess risk of the posterior mean",
    "error": "share of wrong labels",
    "free_entropy": "log evidence per dimension",
}
FASTEST = "best known in polynomial time: "


class BayesPoints(NamedTuple):
    """Overlaps, free entropies and errors of one fixed point at each number of samples.

    Attributes
    ----------
    q : ndarray
        Overlaps (samples, k, k).
    free_entropy : ndarray
        Free entropies.
    errors : list of dict
        Risks by name.
    """

    q: np.ndarray
    free_entropy: np.ndarray
    errors: list[dict[str, float]]


@float64
def bayes_optimal(problem: Problem, samples_per_dimension: ArrayArgument) -> xr.Dataset:
    """The Bayes-optimal error on n samples, and the best error known in polynomial time.

    The learner knows the law of the labels and the covariances of inputs and signals, and draws
    W* from its posterior given n = samples_per_dimension d samples::

        V = rho - q,   om ~ N(0, q),   y ~ Z(., om),   Z(y, om) = E_{z ~ N(om, V)} p(y | z)
        g = d log Z/d om,   qh = alpha E[g g^T]
        q = sum_b l_b (P_b - P_b^(1/2) (1 + (l_b/phi_b) P_b^(1/2) qh P_b^(1/2))^-1 P_b^(1/2))

    Parameters
    ----------
    problem : Problem
        A problem whose labels have a law given at most three signals: ``TeacherStudent``,
        ``MultiIndex``, ``GaussianMixture("binary")``, or ``Problem(..., likelihood=)``. The student
        does not enter.
    samples_per_dimension : float or sequence of float
        Samples per dimension, n/d.

    Returns
    -------
    xarray.Dataset
        Along ``alpha``: the overlap ``q`` of posterior mean fields with the signals,
        ``free_entropy`` (log evidence per dimension), ``risk`` and ``excess_risk`` of the posterior
        mean under the squared loss, and for labels of finitely many values ``error``, the share of
        wrong labels. ``q_amp``, ``risk_amp``, ... are those of the fixed point that approximate
        message passing reaches, and ``hard`` is where the two differ. The attribute
        ``error_quadrature`` is the relative error of E[g g^T]; for one signal ``spinodals`` are the
        samples per dimension at which fixed points appear or vanish.

    Raises
    ------
    ValueError
        If an argument is invalid, the labels have no law given the signals, or the state equations
        cannot be trusted: several signals without noise, or more than three.

    Warns
    -----
    UserWarning
        If the quadrature does not resolve the law of the labels.

    Notes
    -----
    The limit n, d -> infinity. Coordinates of W* are Gaussian, or the target is rotated at random
    inside the blocks of the covariance. The Bayes-optimal state is the fixed point of largest free
    entropy, the one of AMP is reached from q = 0+. For one signal all fixed points follow without
    iteration. Without noise, roots of f(z) = y are summed over, and the free entropy contains a
    constant for each sample.
    Sources: Barbier, Krzakala, Macris, Miolane and Zdeborova, PNAS 116 (2019) 5451; Aubin et al.,
    NeurIPS 2018 (committees); Maillard, Loureiro, Krzakala and Zdeborova, NeurIPS 2020.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign())
    >>> result = sgd.bayes_optimal(problem, [1.0, 2.0])
    >>> print(result.error.values.round(6))
    [0.254373 0.174534]
    """
    checks.require_outside_jit("bayes_optimal")
    require("bayes_optimal", problem)
    alphas = samples_argument(samples_per_dimension)
    setup = setup_of(problem)
    attributes: dict[str, Any] = {}
    if setup.likelihood.kind == "clusters":
        amp = best = _clusters(setup, alphas)
        attributes["error_quadrature"] = 0.0
    elif setup.directions == 1:
        curve = bayes_curve(setup)
        fixed_points = [curve.fixed_points(alpha) for alpha in alphas]
        # both fixed points are one, except between the spinodals
        overlaps = {point.q for pair in fixed_points for point in pair}
        errors = {q: curve.channel.errors(q) for q in overlaps}
        amp, best = (
            BayesPoints(
                np.array([point.q for point in points])[:, None, None],
                np.array([point.free_entropy for point in points]),
                [errors[point.q] for point in points],
            )
            for points in zip(*fixed_points, strict=True)
        )
        attributes["error_quadrature"] = curve.error
        attributes["spinodals"] = curve.spinodals()
    else:
        require_states(problem, setup)
        states = BayesStates(setup)
        amp, best = (BayesPoints(*points) for points in states.solve(alphas))
        attributes["error_quadrature"] = states.error
    return _dataset(problem, setup, alphas, amp, best, attributes)


def require_states(problem: Problem, setup: Setup) -> None:
    """Raise ValueError if several signals are too many, or have no noise."""
    if setup.directions > MOST_SIGNALS:
        fix = (
            f"the labels depend on {setup.directions} signals. At most {MOST_SIGNALS} are supported"
        )
        raise checks.reject("problem", problem.kind, fix)
    law = setup.likelihood.law
    if isinstance(law, AdditiveLaw) and law.noise_law is not None:
        fix = "heavy-tailed noise is supported for labels of one signal. Give a variance"
        raise checks.reject("noise", law.noise_law, fix)
    if setup.likelihood.kind == "additive" and setup.likelihood.noise == 0.0:
        fix = (
            "without noise the labels of several signals fix a surface in the signals, which no "
            "quadrature resolves. Use a noise above 0."
        )
        raise checks.reject("noise", 0.0, fix)


def _clusters(setup: Setup, alphas: np.ndarray) -> BayesPoints:
    """Two clusters +-mu of known labels: the posterior of mu is Gaussian."""
    gram = float(setup.gram.sum())
    snr = 1.0 / float(setup.eigenvalues[0])
    overlap = alphas * snr * gram**2 / (1 + alphas * snr * gram)
    errors = special.ndtr(-np.sqrt(snr * overlap))
    # log evidence of labelled samples relative to that of pure noise
    entropy = 0.5 * (alphas * snr * gram - np.log1p(alphas * snr * gram))
    return BayesPoints(
        overlap[:, None, None], entropy, [{"error": float(value)} for value in errors]
    )


def _dataset(
    problem: Problem,
    setup: Setup,
    alphas: np.ndarray,
    amp: BayesPoints,
    best: BayesPoints,
    attributes: dict[str, Any],
) -> xr.Dataset:
    """The result: both fixed points, and where they differ."""
    variables: dict[str, Any] = {}
    for points, suffix, prefix in ((best, "", ""), (amp, "_amp", FASTEST)):
        columns: dict[str, np.ndarray] = {"q": points.q, "free_entropy": points.free_entropy}
        for name in points.errors[0]:
            columns[name] = np.array([errors[name] for errors in points.errors])
        for name, values in columns.items():
            axes = ("alpha", "signal", "signal_other")[: values.ndim]
            variables[name + suffix] = (axes, values, {"long_name": prefix + MEANINGS[name]})
    scale = np.max(np.abs(setup.rho)) if setup.likelihood.kind != "clusters" else 1.0
    distance = np.max(np.abs(best.q - amp.q), axis=(1, 2)) / scale
    variables["hard"] = (
        "alpha",
        distance > DIFFERENT,
        {"long_name": "whether no algorithm in polynomial time is known to reach the optimum"},
    )
    attributes = attributes | {
        "problem": encode(problem.describe()),
        "method": "bayes_optimal",
        "version": __version__,
    }
    coordinates = {"alpha": ("alpha", alphas, {"long_name": "samples/d"})}
    return xr.Dataset(variables, coordinates, attributes)
