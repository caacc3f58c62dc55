"""Quadrature over the output of a linear predictor and the label of a new sample.

The output is om = w.x and the signals are z, jointly Gaussian with Var om = q, Cov(om, z) = m and
Var z = rho. Labels follow p(y | z). Nodes are chosen such that kinks of the label law and of the
prox lie on the borders of panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.base.precision import float64
from sgdynamics.problems.likelihoods import AdditiveLaw, Likelihood, OutcomeLaw, Plane
from sgdynamics.statics.prox import ConvexLoss

# Standard deviations up to which Gaussians are integrated.
FURTHEST = 9.5
# Panels over that range without any kinks, and Gauss-Legendre nodes of each panel.
BASE_PANELS = 8
INNER_PANELS = 5
ORDERS = (14, 20)
# Nodes per direction for two and three signals.
GRID_PANELS = {2: 8, 3: 6}
GRID_ORDERS = {2: (8, 12), 3: (5, 7)}


class FieldNodes(NamedTuple):
    """Nodes over (output, label), with conditional means of the other variables.

    Attributes
    ----------
    om, label : array
        Output of the predictor and label. For losses of the residual only om - label is integrated,
        and the label is 0.
    weights : array
        Weights, which add up to 1.
    signals : array
        Conditional mean of the signals.
    om_mean : array
        Conditional mean of the output itself.
    """

    om: Float[np.ndarray, " n"]
    label: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    signals: Float[np.ndarray, "n K"]
    om_mean: Float[np.ndarray, " n"]

    def mean(self, values: Numeric) -> np.ndarray:
        """Return the expectation of values at the nodes (first axis)."""
        return np.tensordot(self.weights, np.asarray(values), axes=1)


class Overlaps(NamedTuple):
    """Covariances of the output and the signals: m with the signals, q of the output, rho."""

    m: Float[np.ndarray, " K"]
    q: float
    rho: Float[np.ndarray, "K K"]

    @property
    def remaining(self) -> Float[np.ndarray, "K K"]:
        """Covariance of the signals given the output."""
        return self.rho - np.outer(self.m, self.m) / self.q

    @property
    def slope(self) -> Float[np.ndarray, " K"]:
        """Coefficients of the mean of the output given the signals, rho^-1 m."""
        return np.linalg.lstsq(self.rho, self.m, rcond=1e-12)[0]

    @property
    def orthogonal(self) -> float:
        """Variance of the output given the signals."""
        return max(self.q - float(self.m @ self.slope), 0.0)


def panel_nodes(
    mean: Float[np.ndarray, " n"],
    deviation: Float[np.ndarray, " n"] | float,
    breaks: list[np.ndarray],
    order: int,
    panels: int = BASE_PANELS,
) -> tuple[Float[np.ndarray, "n nodes"], Float[np.ndarray, "n nodes"]]:
    """Return nodes and Gaussian weights for several Gaussians, on panels broken at given points."""
    mean = np.atleast_1d(mean)[:, None]
    deviation = np.broadcast_to(np.atleast_1d(deviation)[:, None], mean.shape)
    edges = np.linspace(-FURTHEST, FURTHEST, panels + 1)[None] + 0.0 * mean
    if breaks:
        columns = [np.broadcast_to(np.reshape(points, (-1, 1)), mean.shape) for points in breaks]
        safe = np.where(deviation > 0, deviation, 1.0)
        inside = np.clip((np.concatenate(columns, axis=1) - mean) / safe, -FURTHEST, FURTHEST)
        edges = np.sort(np.concatenate([edges, inside], axis=1), axis=1)
    x, w = np.polynomial.legendre.leggauss(order)
    half = 0.5 * np.diff(edges, axis=1)
    centre = 0.5 * (edges[:, 1:] + edges[:, :-1])
    standard = (centre[..., None] + half[..., None] * x).reshape(len(mean), -1)
    weights = (half[..., None] * w).reshape(len(mean), -1)
    weights = weights * np.exp(-0.5 * standard**2) / np.sqrt(2 * np.pi)
    return mean + deviation * standard, weights


def graded_points(centre: float, width: float, reach: float) -> list[np.ndarray]:
    """Return break points around a bend: its centre, and distances that double up to `reach`."""
    points, distance = [np.array([centre])], width
    while 0 < distance < reach:
        points += [np.array([centre - distance]), np.array([centre + distance])]
        distance *= 2.0
    return points


def loss_breaks(loss: ConvexLoss, label: np.ndarray, V: float, reach: float) -> list[np.ndarray]:
    """Return break points in om for each label, from the bends of the prox."""
    breaks = []
    for positions, width in loss.features(label, V):
        offsets = graded_points(0.0, width, reach)
        breaks += [positions + offset for offset in offsets]
    return breaks


@dataclass(frozen=True, eq=False)
class LabelledFields:
    """The law of labels and signals from which nodes are made.

    Attributes
    ----------
    likelihood : Likelihood
        Law of the labels given the signals.
    order : int
        Index of the resolution, 0 or 1 (finer).
    """

    likelihood: Likelihood
    order: int = 0

    def nodes(self, overlaps: Overlaps, loss: ConvexLoss, V: float) -> FieldNodes:
        """Return nodes for expectations of functions of the prox."""
        law = self.likelihood.law
        if isinstance(law, OutcomeLaw):
            if self.likelihood.directions == 1:
                return self._outcomes_of_one_signal(overlaps, loss, V)
            return self._outcomes_of_signals(overlaps, loss, V)
        assert isinstance(law, AdditiveLaw)
        if loss.of_residual and law.noise_law is None:
            return self._residuals(overlaps, loss, V)
        return self._labels_with_noise(overlaps, loss, V)

    def _outcomes_of_one_signal(self, overlaps: Overlaps, loss: ConvexLoss, V: float) -> FieldNodes:
        law, order = self.likelihood.law, ORDERS[self.order]
        assert isinstance(law, OutcomeLaw)
        values, m, q = np.array(law.values), float(overlaps.m[0]), overlaps.q
        deviation, reach = np.sqrt(q), FURTHEST * np.sqrt(q)
        spread = np.sqrt(max(float(overlaps.remaining[0, 0]), 0.0))
        levels = [level for _, level in law.kinks]
        breaks = []
        if m != 0.0:
            for level in {0.0, *levels}:
                breaks += graded_points(level * q / m, 0.5 * spread * q / abs(m), reach)
        for value in values:
            breaks += loss_breaks(loss, np.array([value]), V, reach)
        om, weights = panel_nodes(np.zeros(1), deviation, breaks, order)
        om, weights = om[0], weights[0]
        points = [np.array([level]) for level in levels]
        z, inner = panel_nodes(m * om / q, spread, points, order, INNER_PANELS)
        chances = self.likelihood.probabilities(z.reshape(-1, 1)).reshape(*z.shape, -1)
        joint = inner[..., None] * chances
        total = joint.sum(axis=1)
        first = np.einsum("onv,on->ov", joint, z)
        signals = first / np.where(total > 0, total, 1.0)
        return FieldNodes(
            np.repeat(om, len(values)),
            np.tile(values, len(om)),
            (weights[:, None] * total).ravel(),
            signals.reshape(-1, 1),
            np.repeat(om, len(values)),
        )

    def _outcomes_of_signals(self, overlaps: Overlaps, loss: ConvexLoss, V: float) -> FieldNodes:
        law = self.likelihood.law
        assert isinstance(law, OutcomeLaw)
        values, deviation = np.array(law.values), np.sqrt(overlaps.q)
        z, z_weights = self.signal_grid(overlaps.rho)
        chances = self.likelihood.probabilities(z)
        breaks = []
        for value in values:
            breaks += loss_breaks(loss, np.array([value]), V, FURTHEST * deviation)
        om, weights = panel_nodes(np.zeros(1), deviation, breaks, ORDERS[self.order])
        om, weights = om[0], weights[0]
        # density of om given z relative to that of om
        spread = np.sqrt(overlaps.orthogonal)
        distance = (om[:, None] - z @ overlaps.slope) / spread
        ratio = np.exp(-0.5 * distance**2 + 0.5 * (om[:, None] / deviation) ** 2)
        kernel = ratio * (deviation / spread) * z_weights
        total = kernel @ chances
        first = np.einsum("on,nv,nk->ovk", kernel, chances, z, optimize=True)
        signals = first / np.where(total > 0, total, 1.0)[..., None]
        return FieldNodes(
            np.repeat(om, len(values)),
            np.tile(values, len(om)),
            (weights[:, None] * total).ravel(),
            signals.reshape(-1, z.shape[1]),
            np.repeat(om, len(values)),
        )

    def _residuals(self, overlaps: Overlaps, loss: ConvexLoss, V: float) -> FieldNodes:
        """Residuals om - y of Gaussian noise: given the signals they are Gaussian."""
        z, z_weights = self.signal_grid(overlaps.rho)
        mean, orthogonal = z @ overlaps.slope, overlaps.orthogonal
        outputs = self.likelihood.means(z)
        variance = orthogonal + self.likelihood.noise
        deviation = np.sqrt(variance)
        breaks = loss_breaks(loss, np.zeros(1), V, FURTHEST * deviation)
        r, weights = panel_nodes(mean - outputs, deviation, breaks, ORDERS[self.order])
        share = orthogonal / variance if variance > 0 else 0.0
        om_mean = mean[:, None] + share * (r - (mean - outputs)[:, None])
        return _flatten(r, np.zeros_like(r), z_weights[:, None] * weights, z, om_mean)

    def _labels_with_noise(self, overlaps: Overlaps, loss: ConvexLoss, V: float) -> FieldNodes:
        z, z_weights = self.signal_grid(overlaps.rho)
        if self.likelihood.noise == 0.0:
            labels, weights = self.likelihood.means(z), z_weights
        else:
            normal, w = panel_nodes(np.zeros(1), 1.0, [np.zeros(1)], ORDERS[self.order] // 2)
            z = np.repeat(z, normal.shape[1], axis=0)
            labels = _draw_labels(self.likelihood, z, np.tile(normal[0], len(z_weights)))
            weights = np.repeat(z_weights, normal.shape[1]) * np.tile(w[0], len(z_weights))
        relevant = weights > 1e-17
        z, labels, weights = z[relevant], labels[relevant], weights[relevant]
        spread = np.sqrt(overlaps.orthogonal)
        breaks = loss_breaks(loss, labels, V, FURTHEST * spread)
        om, inner = panel_nodes(z @ overlaps.slope, spread, breaks, ORDERS[self.order] // 2)
        label = np.broadcast_to(labels[:, None], om.shape)
        return _flatten(om, label, weights[:, None] * inner, z, om)

    def signal_grid(
        self, rho: Float[np.ndarray, "K K"]
    ) -> tuple[Float[np.ndarray, "n K"], Float[np.ndarray, " n"]]:
        """Return nodes and weights of the signals, with kinks between panels.

        The axes of the grid are the normals of the planes of kinks, as far as these are independent
        directions of the signals.
        """
        k, planes = len(rho), self.likelihood.law.kinks
        if k == 1:
            breaks = [np.array([level]) for _, level in planes]
            z, weights = panel_nodes(np.zeros(1), np.sqrt(rho[0, 0]), breaks, ORDERS[self.order])
            return z[0][:, None], weights[0]
        values, vectors = np.linalg.eigh(rho)
        is_diagonal = np.allclose(rho, np.diag(np.diag(rho)))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        if is_diagonal:
            root = np.diag(np.sqrt(np.diag(rho)))
        axes, levels = kink_axes(root, planes)
        order = GRID_ORDERS[k][self.order]
        columns = []
        for axis_levels in levels:
            breaks = [np.array([level]) for level in axis_levels]
            nodes, weights = panel_nodes(np.zeros(1), 1.0, breaks, order)
            keep = weights[0] > 1e-12
            columns.append((nodes[0][keep], weights[0][keep]))
        z = np.array(list(product(*(nodes for nodes, _ in columns))))
        weights = np.array(list(product(*(weights for _, weights in columns)))).prod(axis=1)
        return z @ (root @ axes).T, weights


def kink_axes(
    root: Float[np.ndarray, "k k"], planes: tuple[Plane, ...]
) -> tuple[Float[np.ndarray, "k k"], list[list[float]]]:
    """Return orthonormal axes as columns, and the kinks on each in standard deviations.

    For signals z = root x with standard normal x, the plane normal . z = level has the normal
    root^T normal in x. A plane whose normal is neither parallel nor orthogonal to those before is
    left out.
    """
    k = len(root)
    axes: list[np.ndarray] = []
    levels: list[list[float]] = []
    for normal, level in planes:
        direction = root.T @ np.array(normal)
        length = float(np.linalg.norm(direction))
        if length == 0.0:
            continue
        direction /= length
        cosines = np.array([float(axis @ direction) for axis in axes])
        if np.all(np.abs(cosines) < 1e-9):
            axes.append(direction)
            levels.append([level / length])
        elif np.max(np.abs(cosines)) > 1 - 1e-12:
            index = int(np.argmax(np.abs(cosines)))
            levels[index].append(np.sign(cosines[index]) * level / length)
    # complete the basis by the coordinate axes
    complete, _ = np.linalg.qr(np.column_stack([*axes, np.eye(k)]))
    complete[:, : len(axes)] = np.array(axes).T if axes else complete[:, :0]
    return complete, levels + [[] for _ in range(k - len(axes))]


def _flatten(
    om: np.ndarray, label: np.ndarray, weights: np.ndarray, z: np.ndarray, om_mean: np.ndarray
) -> FieldNodes:
    """Return flat nodes from arrays (signals, nodes)."""
    signals = np.repeat(z, om.shape[1], axis=0)
    return FieldNodes(om.ravel(), label.ravel(), weights.ravel(), signals, om_mean.ravel())


@float64
def _draw_labels(
    likelihood: Likelihood, z: Float[np.ndarray, "n K"], normal: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the labels that standard normals stand for."""
    draw = jax.vmap(likelihood.law.draw, in_axes=(0, 0, None))
    return np.asarray(draw(z, normal, likelihood.parameters))


@dataclass(frozen=True, eq=False)
class ClusterFields:
    """The clusters of a Gaussian mixture: weights, coefficients of the means, labels.

    Attributes
    ----------
    weights, coefficients, labels : array
        The clusters; labels are those of the loss.
    order : int
        Index of the resolution, 0 or 1 (finer).
    """

    weights: Float[np.ndarray, " clusters"]
    coefficients: Float[np.ndarray, "clusters K"]
    labels: Float[np.ndarray, " clusters"]
    order: int = 0

    def nodes(
        self, m: Float[np.ndarray, " K"], variance: float, loss: ConvexLoss, V: float
    ) -> FieldNodes:
        """Return nodes; `signals` are the coefficients, and `om_mean` is centred in the cluster."""
        mean, deviation = self.coefficients @ m, np.sqrt(variance)
        breaks = loss_breaks(loss, self.labels, V, FURTHEST * deviation)
        om, weights = panel_nodes(mean, deviation, breaks, ORDERS[self.order])
        label = np.broadcast_to(self.labels[:, None], om.shape)
        weights = self.weights[:, None] * weights
        return _flatten(om, label, weights, self.coefficients, om - mean[:, None])
