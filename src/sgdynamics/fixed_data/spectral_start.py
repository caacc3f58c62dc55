"""The spectral start of message passing, for labels that do not reveal the sign of the signal.

It is the top eigenvector of X^T T(y) X with T = 1 - rho/E[z^2 | y], the best of all functions of
the label. With H = E[z^2 | y]/rho - 1 its squared cosine c with the signal solves

    alpha (1 - c) E[H^2/(1 + c H)] = 1    for alpha > alpha_c = 1/E H^2,    d -> infinity,

and the eigenvector is the fixed direction of linear message passing

    om = X w - V g_old,  g = H/(1 + c H) om/rho,  w <- (V/l) (X^T g/d + l L w),  V = rho (1 - c),

with L = -sum_i dg_i/dom_i/d, inputs of variance l and |w|^2 = c P: the state of message passing
with M = Q, where it continues. Relative to the rest, the signal grows by 1/sqrt(alpha (1 - c)^2
E[(H/(1 + c H))^2]) a step. The labels do not determine the sign of w; it is that of the signal.
Sources: Mondelli and Montanari (2019), Luo, Alghamdi and Lu (2019), Maillard, Krzakala, Lu and
Zdeborova (2021), Mondelli and Venkataramanan (2021).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, RandomKeys
from sgdynamics.base.precision import float64
from sgdynamics.base.roots import find_root
from sgdynamics.expectations.nodes import gauss_legendre
from sgdynamics.fixed_data.message_passing import MessagePassing, Messages
from sgdynamics.problems.likelihoods import AdditiveLaw, Likelihood, OutcomeLaw, likelihood_of
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem

# E[z | y] below this value, relative to the variance of the signal, counts as 0.
ZERO = 1e-6
# Standard deviations, panels and nodes of averages over the signal and the noise.
REACH, PANELS, NODES = 8.0, 24, 10
# Ratio of the signal to the rest after the power iteration, and the largest number of steps.
PURITY, MOST_STEPS = 1000.0, 400
# Number that distinguishes the random numbers of the power iteration.
POWER_KEY = (1 << 31) - 2


class SpectralStart(NamedTuple):
    """The start of a problem.

    Attributes
    ----------
    threshold : float
        Samples per dimension above which the top eigenvector knows the signal.
    cosine2 : float
        Squared cosine of the eigenvector with the signal, for d -> infinity.
    growth : float
        Factor by which the signal grows in one linear step, relative to the rest.
    """

    threshold: float
    cosine2: float
    growth: float

    def steps(self, dimension: int) -> int:
        """Return the linear steps after which the first random direction is forgotten."""
        needed = np.log(PURITY * np.sqrt(dimension)) / np.log(self.growth)
        return int(min(np.ceil(needed), MOST_STEPS))


@float64
def spectral_start(problem: Problem, passing: MessagePassing, alpha: float) -> SpectralStart:
    """Return the spectral start; ValueError where the top eigenvector knows nothing."""
    if passing.law is None:
        fix = "the spectral start is that of the posterior mean. Use estimator='bayes'"
        raise checks.reject("start", "spectral", fix)
    if np.ptp([float(value) for value, _ in problem.covariance_blocks]) > 0:
        fix = "it is supported for inputs with one eigenvalue. Use start='overlaps'"
        raise checks.reject("start", "spectral", fix)
    law = spectral_law(problem, passing)
    if law.mean_square > ZERO:
        fix = "the mean of a label depends on the signal. Use start='zero'"
        raise checks.reject("start", "spectral", fix)
    if alpha <= law.threshold:
        fix = (
            f"the top eigenvector knows nothing of the signal up to {law.threshold:.6g} samples "
            "per dimension. Use more samples"
        )
        raise checks.reject("samples_per_dimension", alpha, fix)
    cosine2 = law.cosine2(alpha)
    shrunk = law.H / (1.0 + cosine2 * law.H)
    decay = alpha * (1.0 - cosine2) ** 2 * float(law.weights @ shrunk**2)
    return SpectralStart(law.threshold, cosine2, 1.0 / np.sqrt(decay))


class SpectralLaw(NamedTuple):
    """H = E[z^2 | y]/rho - 1 at labels, their weights, and E (E[z | y])^2/rho."""

    H: np.ndarray
    weights: np.ndarray
    mean_square: float

    @property
    def threshold(self) -> float:
        """Samples per dimension above which the top eigenvector knows the signal."""
        second = float(self.weights @ self.H**2)
        return 1.0 / second if second > ZERO else np.inf

    def cosine2(self, alpha: float) -> float:
        """Return the squared cosine with the signal, 0 up to the threshold."""
        if alpha <= self.threshold:
            return 0.0

        def excess(c: float) -> float:
            return alpha * (1.0 - c) * float(self.weights @ (self.H**2 / (1.0 + c * self.H))) - 1.0

        return find_root(excess, 0.0, 1.0 - 1e-12)


@float64
def spectral_law(problem: Problem, passing: MessagePassing) -> SpectralLaw:
    """Return the law of E[z^2 | y] without any knowledge of the signal."""
    likelihood = likelihood_of(problem)
    parameters = problem.parameters
    rho = float(np.sum(parameters["gram"][:, 0, 0] * np.asarray(parameters["eigenvalues"])))
    labels, weights = _labels(likelihood, rho)
    nothing = jnp.zeros(len(labels))
    # steep functions matter in the tails, where labels are sharper than in the bulk
    passing = replace(passing, panels=2 * passing.panels)

    @jax.jit
    def posterior(y: Numeric) -> tuple[Numeric, Numeric]:
        first, second = (passing.posterior_moment(parameters, y, nothing, rho, k) for k in (1, 2))
        return first, second

    first, second = (np.asarray(moment) for moment in posterior(jnp.asarray(labels)))
    return SpectralLaw(second / rho - 1.0, weights, float(weights @ first**2) / rho)


def _labels(likelihood: Likelihood, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels and their probabilities."""
    levels = [level * normal[0] / np.sqrt(rho) for normal, level in likelihood.law.kinks]
    x, weights = _normal_nodes(levels)
    z = np.sqrt(rho) * x[:, None]
    law = likelihood.law
    if isinstance(law, OutcomeLaw):
        return np.array(law.values), weights @ likelihood.probabilities(z)
    assert isinstance(law, AdditiveLaw)
    means = likelihood.means(z)
    if likelihood.noise == 0.0:
        return means, weights
    normal, normal_weights = _normal_nodes([0.0])
    draw = jax.vmap(law.draw, in_axes=(0, 0, None))
    signals = np.repeat(z, len(normal), axis=0)
    labels = draw(signals, np.tile(normal, len(z)), likelihood.parameters)
    return np.asarray(labels), np.outer(weights, normal_weights).ravel()


def _normal_nodes(breaks: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a standard normal, on panels broken at given points."""
    edges = np.concatenate([np.linspace(-REACH, REACH, PANELS + 1), breaks])
    edges = np.unique(edges[np.abs(edges) <= REACH])
    nodes, weights = gauss_legendre(NODES)
    lengths = np.diff(edges)[:, None]
    x = (edges[:-1, None] + lengths * nodes).ravel()
    w = (lengths * weights).ravel() * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    return x, w / w.sum()


def random_direction(problem: Problem, start: Start) -> Start:
    """Return rows without overlap with the signal, from which the power iteration starts."""
    gram = np.asarray(problem.gram)[None] + np.zeros_like(start.Q_blocks)
    return replace(start, M_blocks=np.zeros_like(start.M_blocks), Q_blocks=gram)


def power_keys(keys: RandomKeys) -> RandomKeys:
    """Return the keys of the power iteration, one per run."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, POWER_KEY)


def linear_passing(passing: MessagePassing, start: SpectralStart) -> MessagePassing:
    """Return the linear steps of the power iteration."""
    return replace(passing, linear=start.cosine2)


def rescale(
    problem: Problem,
    start: SpectralStart,
    rows: Numeric,
    messages: Messages,
    M: np.ndarray,
    Q: np.ndarray,
) -> tuple[Numeric, Messages]:
    """Return rows and messages of all runs with the squared norm and the sign of the start.

    M and Q are the overlaps after the power iteration, with a leading axis of runs.
    """
    gram = float(np.sum(problem.parameters["gram"][:, 0, 0]))
    M, Q = M.reshape(len(M), -1).sum(axis=1), Q.reshape(len(Q), -1).sum(axis=1)
    factor = np.sqrt(start.cosine2 * gram / Q) * np.where(M < 0, -1.0, 1.0)
    scale = jnp.asarray(factor, rows.dtype)
    shape = (-1,) + (1,) * (rows.ndim - 1)
    return rows * scale.reshape(shape), messages._replace(g=messages.g * scale[:, None])
