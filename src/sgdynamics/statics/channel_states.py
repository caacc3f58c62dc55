"""The channel of two or three signals: E[g g^T] and Psi at a matrix q of overlaps.

As in `channel`, z | data ~ N(om, V) with om ~ N(0, q), V = rho - q, and

    Z(y, om) = E p(y | z),   g = V^-1 (E[z | y, om] - om),   Psi = E_om sum_y Z log Z.

`QuadrantChannel` serves outcomes that are constant on the quadrants of two lines: its integrals are
bivariate normal probabilities. `SampledChannel` serves any other law, by averages.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.expectations.nodes import gauss_hermite_grid, gauss_legendre, sobol_normals
from sgdynamics.problems.likelihoods import Likelihood, OutcomeLaw

# A trapezoidal rule of this spacing, in units of the smallest scale, is exact to rounding for
# Gaussian-smoothed integrands; the coarse spacing estimates the error.
SPACINGS = {"fine": 0.55, "coarse": 0.75}
REACH = 6.5
MOST_POINTS = 400  # per axis, on either side of 0
ANGLES = 16  # nodes of the integral over the correlation of two normals
NEGLIGIBLE = 1e-13
# Points of averages: log2 of the number of (om, label), Gauss-Hermite nodes per axis of z, and log2
# of the points of z where the law jumps.
OUTER, INNER, INNER_SHARP = 11, {2: 26, 3: 12}, 11
REPLICATES = 2
# Weight of the true residual of z among its nodes, relative to the largest other weight: it knows
# more than the posterior, so that the risk is biased by as much. The 2^11 weights of sharp laws are
# equal.
OWN_SHARE, OWN_SHARE_SHARP = 1e-5, 0.05
# Standard deviation of f over that of the noise from which Gauss-Hermite nodes of z are too sparse.
SHARP = {2: 2.0, 3: 1.0}


class StateInformation(NamedTuple):
    """E[g g^T] (k, k) and Psi."""

    J: Float[np.ndarray, "k k"]
    psi: float


def root_of(matrix: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """A factor R with R R^T = matrix, also for singular matrices."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


class GridTooLargeError(Exception):
    """The signals are known so well that the grid of their means has too many points."""


class StateChannel(ABC):
    """The channel of k signals of covariance rho."""

    rho: Float[np.ndarray, "k k"]
    # Share of rho that the informed start does not know.
    unknown: float = 1e-6
    # Relative change at which the iteration stops, well below the error of the nodes.
    tolerance: float = 1e-6

    @abstractmethod
    def information(self, q: Float[np.ndarray, "k k"], *, check: bool = False) -> StateInformation:
        """Return E[g g^T] and Psi; with `check` on other nodes, which shows the error."""

    @abstractmethod
    def errors(self, q: Float[np.ndarray, "k k"]) -> dict[str, float]:
        """Return the risks of a new sample by name."""


def binormal_probability(h: np.ndarray, k: np.ndarray, r: float) -> np.ndarray:
    """P(x < h, y < k) of standard normals with correlation r.

    The derivative with respect to the correlation is the density; with r = sin(angle) it is smooth.
    """
    nodes, weights = gauss_legendre(ANGLES)
    angle = np.arcsin(r) * nodes
    sine, cosine2 = np.sin(angle), np.cos(angle) ** 2
    exponent = (h**2 + k**2)[..., None] - 2 * (h * k)[..., None] * sine
    integral = np.exp(-0.5 * exponent / cosine2) @ weights * np.arcsin(r)
    return special.ndtr(h) * special.ndtr(k) + integral / (2 * np.pi)


@dataclass
class QuadrantChannel(StateChannel):
    """Outcomes that are constant on the four quadrants of two lines normal . z = level.

    Attributes
    ----------
    normals : ndarray
        The normals of the lines as rows.
    levels : ndarray
        Their levels.
    table : ndarray
        Probabilities (2, 2, outcomes) below and above each line.
    values : ndarray
        The outcomes.
    """

    rho: Float[np.ndarray, "k k"]
    normals: Float[np.ndarray, "2 2"]
    levels: Float[np.ndarray, " 2"]
    table: Float[np.ndarray, "2 2 outcomes"]
    values: Float[np.ndarray, " outcomes"]
    # jumps pull q away from rho, and grids grow as it is approached
    unknown: float = 1e-2
    tolerance: float = 1e-9

    def _om_nodes(
        self, q: np.ndarray, V: np.ndarray, spacing: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """A trapezoidal grid of om ~ N(0, q) in the axes of q."""
        variances, axes = np.linalg.eigh(q)
        deviations = np.sqrt(np.maximum(variances, 1e-30))
        smallest = np.sqrt(np.min(np.linalg.eigvalsh(V)))
        grids = []
        for deviation in deviations:
            step = spacing * min(1.0, smallest / deviation)
            half = int(np.ceil(REACH / step))
            if half > MOST_POINTS:
                raise GridTooLargeError
            x = step * np.arange(-half, half + 1)
            grids.append((deviation * x, step * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)))
        (x, wx), (y, wy) = grids
        weights = np.outer(wx, wy).ravel()
        keep = weights > 1e-14 * weights.max()
        points = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
        return points[keep] @ axes.T, weights[keep]

    def distributions(
        self, om: np.ndarray, V: np.ndarray
    ) -> tuple[Float[np.ndarray, "n outcomes"], Float[np.ndarray, "n outcomes 2"]]:
        """Z and its gradient at each om."""
        S = self.normals @ V @ self.normals.T
        scale = np.sqrt(np.diag(S))
        r = S[0, 1] / (scale[0] * scale[1])
        a = (om @ self.normals.T - self.levels) / scale
        first_mass, second_mass = special.ndtr(a[:, 0]), special.ndtr(a[:, 1])
        both = binormal_probability(a[:, 0], a[:, 1], r)
        # below and above the first line (rows), the second line (columns)
        masses = (
            (1 - first_mass - second_mass + both, second_mass - both),
            (first_mass - both, both),
        )
        Z, slopes = 0.0, [0.0, 0.0]
        other = np.sqrt(1 - r**2)
        for first, s1 in enumerate((-1.0, 1.0)):
            for second, s2 in enumerate((-1.0, 1.0)):
                h, k, rho = s1 * a[:, 0], s2 * a[:, 1], s1 * s2 * r
                chances = self.table[first, second]
                Z = Z + masses[first][second][:, None] * chances
                for axis, (own, cross, sign) in enumerate(((h, k, s1), (k, h, s2))):
                    density = np.exp(-0.5 * own**2) / np.sqrt(2 * np.pi)
                    slope = sign * density * special.ndtr((cross - rho * own) / other)
                    slopes[axis] = slopes[axis] + slope[:, None] * chances / scale[axis]
        gradient = np.einsum("any,ak->nyk", np.array(slopes), self.normals)
        return np.asarray(Z), gradient

    def information(self, q: Float[np.ndarray, "k k"], *, check: bool = False) -> StateInformation:
        V = self.rho - q
        om, weights = self._om_nodes(q, V, SPACINGS["coarse" if check else "fine"])
        Z, gradient = self.distributions(om, V)
        inverse = np.where(Z > NEGLIGIBLE, 1 / np.maximum(Z, NEGLIGIBLE), 0.0)
        J = np.einsum("n,ny,nyk,nyl->kl", weights, inverse, gradient, gradient)
        log = np.where(Z > NEGLIGIBLE, Z * np.log(np.maximum(Z, NEGLIGIBLE)), 0.0)
        return StateInformation(J, float(weights @ log.sum(axis=1)))

    def errors(self, q: Float[np.ndarray, "k k"]) -> dict[str, float]:
        V = self.rho - q
        # the largest of several Z has kinks in om: a finer grid
        om, weights = self._om_nodes(q, V, SPACINGS["fine"] / 3)
        Z, _ = self.distributions(om, V)
        # below every om the law is one of the table: E of the square of its mean
        mean = weights @ (Z @ self.values) ** 2
        square = weights @ (Z @ np.ones(len(self.values)))  # 1 up to the reach of the grid
        prior, _ = self.distributions(np.zeros((1, 2)), self.rho)
        label_square = float((prior @ self.values**2)[0])
        conditional = self.table @ self.values
        masses = [self._with_table(np.eye(4)[index].reshape(2, 2, 1))._mass() for index in range(4)]
        own_square = float(np.array(masses) @ (conditional.ravel() ** 2))
        return {
            "error": float(1.0 - weights @ Z.max(axis=1) / square),
            "risk": 0.5 * (label_square - float(mean)),
            "excess_risk": 0.5 * (own_square - float(mean)),
        }

    def _with_table(self, table: np.ndarray) -> QuadrantChannel:
        return QuadrantChannel(self.rho, self.normals, self.levels, table, np.ones(1))

    def _mass(self) -> float:
        """Probability of the first outcome."""
        return float(self.distributions(np.zeros((1, 2)), self.rho)[0][0, 0])


class SampledChannel(StateChannel):
    """Any law: averages over points of (om, label), with a fixed grid of z given om."""

    def __init__(self, likelihood: Likelihood, rho: np.ndarray) -> None:
        self.likelihood, self.rho = likelihood, rho
        k = likelihood.directions
        self.own_share = OWN_SHARE_SHARP if self._is_sharp(k) else OWN_SHARE
        # nodes of z given om and their weights; the second set shows the error
        self.inner = [self._inner_nodes(k, index) for index in range(2)]
        # om, the true residual of z, and the noise
        self.outer = sobol_normals(2 * k + 1, OUTER, REPLICATES, whiten=True, seed=37)

    def _is_sharp(self, k: int) -> bool:
        """Whether the law has jumps, or varies too fast for Gauss-Hermite nodes of z."""
        is_sharp = bool(self.likelihood.law.kinks)
        if self.likelihood.kind == "additive":
            z = sobol_normals(k, 10, 1, whiten=False, seed=29)[0] @ root_of(self.rho).T
            spread = np.std(self.likelihood.means(z)) / np.sqrt(self.likelihood.noise)
            is_sharp |= bool(spread > SHARP[k])
        return is_sharp

    def _inner_nodes(self, k: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Gauss-Hermite nodes for smooth laws, otherwise Sobol points with all signs.

        All signs of each point make the symmetries of the law exact.
        """
        if self._is_sharp(k):
            points = sobol_normals(k, INNER_SHARP - k, 2, whiten=True, seed=31)[index]
            signs = np.array(list(itertools.product((1.0, -1.0), repeat=k)))
            eta = (signs[:, None] * points).reshape(-1, k)
            return eta, np.full(len(eta), 1.0 / len(eta))
        eta, weights = gauss_hermite_grid(INNER[k] - 4 * index, k)
        keep = weights > 1e-12 * weights.max()
        return eta[keep], weights[keep]

    def information(self, q: Float[np.ndarray, "k k"], *, check: bool = False) -> StateInformation:
        k = len(q)
        eta, inner = self.inner[int(check)]
        R = root_of(self.rho - q)
        points = self.outer[int(check)]
        om = points[:, :k] @ root_of(q).T
        J, psi = np.zeros((k, k)), 0.0
        inverse = np.linalg.inv(R)
        for chunk in np.array_split(np.arange(len(om)), max(1, len(om) * len(eta) // 400_000)):
            z = om[chunk, None, :] + eta @ R.T
            total, first = self._label_moments(om[chunk], z, points[chunk], R, eta, inner)
            mean = first @ inverse
            with np.errstate(all="ignore"):
                g = np.where(total[..., None] > 1e-290, mean / total[..., None], 0.0)
                log = np.where(total > 1e-290, np.log(np.maximum(total, 1e-290)), 0.0)
            chances = total if self.likelihood.kind == "outcomes" else np.ones_like(total)
            J += np.einsum("ny,nyk,nyl->kl", chances, g, g) / len(om)
            psi += float(np.sum(chances * log)) / len(om)
        return StateInformation(J, psi)

    def _label_moments(
        self,
        om: np.ndarray,
        z: np.ndarray,
        points: np.ndarray,
        R: np.ndarray,
        eta: np.ndarray,
        inner: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Z (n, labels) and E[eta p(y | z)] (n, labels, k) for the nodes eta with weights `inner`.

        Labels are all outcomes, or one drawn label with additive noise.
        """
        k = om.shape[1]
        flat = z.reshape(-1, k)
        if self.likelihood.kind == "outcomes":
            chances = self.likelihood.probabilities(flat).reshape(*z.shape[:2], -1)
            weighted = inner[:, None] * chances
            return weighted.sum(axis=1), np.einsum("njy,jk->nyk", weighted, eta)
        # The true residual with all signs is a node of small weight: an extreme label, which no
        # other node explains, would otherwise have an arbitrary posterior.
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=k)))
        own = points[:, None, k : 2 * k] * signs
        own_weight = self.own_share * inner.max()
        sigma = np.sqrt(self.likelihood.noise)
        own_means = self.likelihood.means((om[:, None] + own @ R.T).reshape(-1, k))
        own_means = own_means.reshape(len(om), -1)
        y = (own_means[:, 0] + sigma * points[:, 2 * k])[:, None]
        means = self.likelihood.means(flat).reshape(z.shape[:2])
        law, own_law = (
            np.exp(-0.5 * ((y - f) / sigma) ** 2) / (np.sqrt(2 * np.pi) * sigma)
            for f in (means, own_means)
        )
        weighted, own_weighted = inner * law, own_weight * own_law
        total = weighted.sum(axis=1) + own_weighted.sum(axis=1)
        first = weighted @ eta + np.einsum("ns,nsk->nk", own_weighted, own)
        return total[:, None], first[:, None]

    def errors(self, q: Float[np.ndarray, "k k"]) -> dict[str, float]:
        k = len(q)
        R = root_of(self.rho - q)
        om = self.outer[0][:, :k] @ root_of(q).T
        eta, inner = self.inner[0]
        z = (om[:, None, :] + eta @ R.T).reshape(-1, k)
        if self.likelihood.kind == "outcomes":
            law = self.likelihood.law
            assert isinstance(law, OutcomeLaw)
            values = np.array(law.values)
            chances = self.likelihood.probabilities(z).reshape(len(om), len(eta), -1)
            Z = np.einsum("j,njy->ny", inner, chances)
            means = chances @ values
            mean = means @ inner
            return {
                "error": float(1.0 - np.mean(Z.max(axis=1))),
                "risk": 0.5 * float(np.mean(Z @ values**2 - mean**2)),
                "excess_risk": 0.5 * float(np.mean(means**2 @ inner - mean**2)),
            }
        means = self.likelihood.means(z).reshape(len(om), -1)
        excess = 0.5 * float(np.mean(means**2 @ inner - (means @ inner) ** 2))
        return {"excess_risk": excess, "risk": excess + 0.5 * self.likelihood.noise}


def state_channel(likelihood: Likelihood, rho: np.ndarray) -> StateChannel:
    """The channel of a law with two or three signals."""
    quadrants = _quadrants(likelihood, rho)
    return SampledChannel(likelihood, rho) if quadrants is None else quadrants


def _quadrants(likelihood: Likelihood, rho: np.ndarray) -> QuadrantChannel | None:
    """The channel of outcomes that are constant on quadrants; None for any other law."""
    law = likelihood.law
    if not isinstance(law, OutcomeLaw) or likelihood.directions != 2 or len(law.kinks) != 2:
        return None
    normals = np.array([normal for normal, _ in law.kinks])
    levels = np.array([level for _, level in law.kinks])
    if abs(np.linalg.det(normals)) < 1e-9:
        return None
    sides = np.random.default_rng(5).exponential(size=(4, 64, 2))
    signs = np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])[:, None]
    points = np.linalg.solve(normals, (levels + signs * sides).reshape(-1, 2).T).T
    chances = likelihood.probabilities(points).reshape(4, 64, -1)
    if np.max(np.ptp(chances, axis=1)) > 1e-12:
        return None
    table = chances[:, 0].reshape(2, 2, -1)
    return QuadrantChannel(rho, normals, levels, table, np.array(law.values))
