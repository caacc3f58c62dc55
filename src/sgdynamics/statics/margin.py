"""Linear separability of binary labels, and the separating direction of largest margin.

With u = y z/sqrt(rho) and A(a) = E (a + xi)_+^2 = (1 + a^2) Phi(a) + a phi(a), xi ~ N(0, 1), the
data are separable if and only if

    alpha < 1/min_t E A(-t u)        (Candes and Sur 2020),

and the margin kappa(c) of predictors of norm 1 with the cosine c solves

    alpha E A((kappa - c u)/sqrt(1 - c^2)) = 1,

whose maximum over c is the margin (Montanari et al. 2019). In a mixture of variance l the same
equations hold with u = y C.mu/(sqrt(l) |mu|) + xi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from sgdynamics.base.roots import find_minimum, find_root
from sgdynamics.statics.erm_equations import LinearData
from sgdynamics.statics.field_nodes import ORDERS, LabelledFields, panel_nodes

# Distances from a jump of the labels at which panels end, in standard deviations of the signal.
STRIPS = np.geomspace(1e-5, 1.0, 21)
LARGEST_SLOPE = 1e6  # |t| beyond this value counts as infinite


class MarginSolution(NamedTuple):
    """The predictor of norm 1 with the largest margin.

    Attributes
    ----------
    margin : float
        Smallest label times output over the data, in units of the fields.
    cosine : float
        Cosine with the signal.
    error : float
        Share of new samples on the wrong side.
    """

    margin: float
    cosine: float
    error: float


@dataclass(frozen=True, eq=False)
class AlignedLabels:
    """Nodes of u = y z/sqrt(rho), for standardised signals.

    Attributes
    ----------
    u : array
        Label times standardised signals.
    weights : array
        Weights, which add up to 1.
    """

    u: Float[np.ndarray, "n K"]
    weights: Float[np.ndarray, " n"]

    def mean_square(self, a: Float[np.ndarray, " n"]) -> float:
        """Return E A(a)."""
        return float(self.weights @ _mean_square_above(a))


def aligned_labels(data: LinearData, order: int = 0) -> AlignedLabels:
    """Return the nodes of u for labels -1 and +1."""
    if (clusters := data.cluster_law) is not None:
        gram = data.gram.sum(axis=0)
        standard, w = panel_nodes(np.zeros(1), 1.0, [], 14)
        root = np.linalg.cholesky(gram)
        means = clusters.labels[:, None] * (clusters.coefficients @ root)
        means = means / np.sqrt(data.eigenvalues[0])
        if data.directions > 1:
            grids = np.meshgrid(*[standard[0]] * data.directions, indexing="ij")
            xi = np.stack([grid.ravel() for grid in grids], axis=1)
            weights = np.prod(np.meshgrid(*[w[0]] * data.directions, indexing="ij"), axis=0)
        else:
            xi, weights = standard[0][:, None], w[0]
        u = (means[:, None] + xi).reshape(-1, data.directions)
        return AlignedLabels(u, np.outer(clusters.weights, weights.ravel()).ravel())
    likelihood = data.likelihood
    if data.directions == 1:
        # the margin of many samples resolves a narrow strip about each jump of the labels
        width = float(np.sqrt(data.rho[0, 0]))
        breaks = [np.array([level]) for _, level in likelihood.law.kinks]
        breaks += [level + width * sign * STRIPS for level in breaks for sign in (-1, 1)]
        breaks = [np.array([position]) for position in np.concatenate([*breaks, [0.0]])]
        z, weights = panel_nodes(np.zeros(1), width, breaks, ORDERS[order])
        z, weights = z[0][:, None], weights[0]
    else:
        z, weights = LabelledFields(likelihood, order).signal_grid(data.rho)
    chances = likelihood.probabilities(z)
    root = np.linalg.cholesky(data.rho)
    standard = np.linalg.solve(root, z.T).T
    u = np.concatenate([-standard, standard])
    return AlignedLabels(u, np.concatenate([weights * chances[:, 0], weights * chances[:, 1]]))


def separability_threshold(labels: AlignedLabels) -> float:
    """Return the samples per dimension below which the data are separable."""
    k = labels.u.shape[1]
    scale = LARGEST_SLOPE

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        a = -labels.u @ t
        slope = 2.0 * (a * special.ndtr(a) + _density(a))
        return labels.mean_square(a), -(labels.weights * slope) @ labels.u

    start = np.full(k, 0.1)
    least = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-scale, scale)] * k,
        options={"ftol": 1e-16, "gtol": 1e-12, "maxiter": 500},
    )
    # labels without noise separate any number of samples: E A decreases to 0 as t -> infinity
    return 1.0 / float(least.fun) if least.fun > 1e-9 else np.inf


def largest_margin(labels: AlignedLabels, alpha: float, scale: float) -> MarginSolution:
    """Return the predictor of largest margin for one signal; `scale` is sqrt(l)."""
    u = labels.u[:, 0]

    def margin(angle: float) -> float:
        cosine, sine = np.cos(angle), np.sin(angle)

        def excess(kappa: float) -> float:
            return alpha * labels.mean_square((kappa - cosine * u) / sine) - 1.0

        low, high = -1.0, 1.0
        while excess(low) > 0:
            low *= 2.0
        while excess(high) < 0:
            high *= 2.0
        return find_root(excess, low, high, xtol=1e-14)

    angles = np.concatenate(
        [np.geomspace(1e-4, 0.02, 13)[:-1], np.linspace(0.02, np.pi - 0.02, 33)]
    )
    index = int(np.argmax([margin(angle) for angle in angles]))
    low = angles[index - 1] if index else 1e-5
    high = angles[min(index + 1, len(angles) - 1)]
    maximum = find_minimum(lambda angle: -margin(angle), low, high)
    cosine, sine = float(np.cos(maximum.x)), float(np.sin(maximum.x))
    error = float(labels.weights @ special.ndtr(-cosine * u / sine))
    return MarginSolution(scale * -maximum.value, cosine, error)


def _density(a: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * a**2) / np.sqrt(2 * np.pi)


def _mean_square_above(a: np.ndarray) -> np.ndarray:
    """Return E (a + xi)_+^2."""
    value = (1.0 + a**2) * special.ndtr(a) + a * _density(a)
    # cancellation far below 0, where E (a + xi)_+^2 ~ 2 phi(a)/|a|^3
    return np.maximum(value, 0.0)
