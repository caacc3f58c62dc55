"""The channel of Bayes-optimal learning with k = 1: the information of a label on one signal.

The posterior of the signal of a new sample is z ~ N(om, V), and over samples om ~ N(0, q), with
V = rho - q. With Z(y, om) = E p(y | z) the label tells

    J(q) = E g^2,   g = d log Z/d om = (E[z | y, om] - om)/V,     Psi(q) = E_om sum_y Z log Z,

where dPsi/dq = J/2 (Nishimori). Source: Barbier, Krzakala, Macris, Miolane and Zdeborova, PNAS 116
(2019) 5451. Integrals are Gauss-Legendre on panels that end at kinks and shrink with sqrt V there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters
from sgdynamics.base.precision import float64
from sgdynamics.expectations.nodes import gauss_legendre
from sgdynamics.problems.activations import Activation, undeclared_kinks
from sgdynamics.problems.likelihoods import (
    AdditiveLaw,
    Likelihood,
    OutcomeLaw,
    SignalFunction,
    evaluate_on_points,
)
from sgdynamics.statics.small_noise import SmallNoise

# Standard deviations up to which Gaussians are integrated; the mass beyond is 2e-21. On grids of z
# and y it is 8e-11.
FURTHEST, GRID_REACH = 9.5, 6.5
BASE_PANELS = 12
# Distances from a kink at which panels end, in units of sqrt V.
DISTANCES = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 50.0, 200.0])
# Nodes per panel of om, and of the residual (z - om)/sqrt V, at the fine and the coarse resolution.
ORDERS = {"fine": (14, 9), "coarse": (11, 7)}
RESIDUAL_PANELS, LOCAL_PANELS = 14, 6
# Below this ratio of sqrt V to the smallest scale of z the label is resolved locally.
LOCAL = 0.3
# Panels of z from which labels have nodes of their own at each om.
LARGEST_GRID = 500.0
# Pairs (z, y) in a table of the law of heavy-tailed noise, which is dense.
LARGEST_TABLE = 1e8
TINY = 1e-290
# Ends of panels in the tails of heavy-tailed noise, relative to the reach of the bulk.
TAIL = np.geomspace(1.0, 1e10, 41)
# Bisections of a point at which another label becomes the most likely one.
SWITCH_STEPS = 30
# Newton steps from a root that is interpolated in a table.
ROOT_STEPS = 2


class Information(NamedTuple):
    """The moments of a channel at one q: J = E g^2, and Psi."""

    J: float
    psi: float


def panels(edges: Float[np.ndarray, "*s e"], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights between sorted edges along the last axis."""
    nodes, weights = gauss_legendre(count)
    lengths = np.diff(edges, axis=-1)[..., None]
    shape = (*edges.shape[:-1], -1)
    points = edges[..., :-1, None] + lengths * nodes
    return points.reshape(shape), (lengths * weights).reshape(shape)


def normal_density(x: np.ndarray) -> np.ndarray:
    """Density of a standard normal."""
    return np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


class Channel(ABC):
    """The channel of a label law with one signal of variance rho.

    Attributes
    ----------
    rho : float
        Variance of the signal.
    kinks : ndarray
        Points at which the law has a kink or jumps.
    jumps : bool
        Whether J grows as V^(-1/2) for V -> 0, as for outcomes that jump.
    end : float
        Limit r of V J for V -> 0, which is positive without noise.
    offset : float
        Variance V/rho below which additive noise bounds J ~ 1/(V + offset rho).
    """

    rho: float
    kinks: np.ndarray
    jumps: bool
    end: float
    offset: float = 0.0

    @abstractmethod
    def information(self, q: float, resolution: str = "fine") -> Information:
        """Return J and Psi."""

    @abstractmethod
    def errors(self, q: float) -> dict[str, float]:
        """Return the risks of a new sample by name."""

    def om_nodes(
        self, q: float, resolution: str, breaks: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Nodes of om ~ N(0, q) and their weights, on panels with additional ends `breaks`."""
        reach, width = FURTHEST * np.sqrt(q), np.sqrt(max(self.rho - q, 0.0))
        if reach == 0.0:
            return np.zeros(1), np.ones(1)
        steps = width * np.concatenate([-DISTANCES, [0.0], DISTANCES])
        edges = np.concatenate(
            [np.linspace(-reach, reach, BASE_PANELS + 1), (self.kinks[:, None] + steps).ravel()]
        )
        if breaks is not None:
            edges = np.concatenate([edges, breaks])
        edges = np.unique(edges[np.abs(edges) <= reach])
        om, weights = panels(edges, ORDERS[resolution][0])
        return om, weights * normal_density(om / np.sqrt(q)) / np.sqrt(q)

    def residual_nodes(
        self,
        om: np.ndarray,
        width: float,
        resolution: str,
        breaks: np.ndarray | None = None,
        count: int = RESIDUAL_PANELS,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Nodes eta of z = om + width eta for each om, and weights with the normal density."""
        base = np.linspace(-FURTHEST, FURTHEST, count + 1)
        edges = np.broadcast_to(base, (len(om), len(base)))
        breaks = self.kinks if breaks is None else breaks
        if len(breaks):
            own = np.clip((breaks - om[:, None]) / width, -FURTHEST, FURTHEST)
            edges = np.sort(np.concatenate([edges, own], axis=1), axis=1)
        eta, weights = panels(edges, ORDERS[resolution][1])
        return eta, weights * normal_density(eta)


def entropy_term(Z: np.ndarray) -> np.ndarray:
    """Z log Z, which is 0 at Z = 0."""
    return np.where(Z > TINY, Z * np.log(np.maximum(Z, TINY)), 0.0)


def square_over(dZ: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """dZ^2/Z, which is 0 where Z underflows."""
    return np.where(Z > TINY, dZ**2 / np.maximum(Z, TINY), 0.0)


@dataclass
class OutcomeChannel(Channel):
    """Finitely many labels: Z_y is a one-dimensional integral, in closed form between jumps."""

    likelihood: Likelihood
    rho: float

    def __post_init__(self) -> None:
        law = self.likelihood.law
        assert isinstance(law, OutcomeLaw)
        self.values = np.array(law.values)
        levels = {level * normal[0] for normal, level in law.kinks}
        self.kinks = np.array(sorted(levels))
        self.end = 0.0
        reach = max(FURTHEST * np.sqrt(self.rho), *np.abs(self.kinks), 1.0) + 1.0
        edges = np.concatenate([[-reach], self.kinks, [reach]])
        inside = edges[:-1, None] + np.diff(edges)[:, None] * np.linspace(0.01, 0.99, 9)
        table = self.likelihood.probabilities(inside.reshape(-1, 1))
        table = table.reshape(*inside.shape, -1)
        self.is_constant = bool(np.max(np.ptp(table, axis=1)) < 1e-14)
        # probabilities (pieces, outcomes)
        self.pieces = table[:, 4]
        self.jumps = bool(len(self.kinks) and np.max(np.abs(np.diff(self.pieces, axis=0))) > 1e-9)

    def distributions(
        self, om: np.ndarray, V: float, resolution: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Z and dZ/d om for each om and outcome."""
        width = np.sqrt(V)
        if self.is_constant:
            # sum over jumps of P_y from below: Z = P_first + sum_c jump_c Phi((om - c)/width)
            x = (om[:, None] - self.kinks) / width
            jumps = np.diff(self.pieces, axis=0)
            below, above = special.ndtr(-x), special.ndtr(x)
            ones = np.ones((len(om), 1))
            masses = np.concatenate([ones, above], axis=1) - np.concatenate(
                [above, 0 * ones], axis=1
            )
            # masses of the pieces from the smaller tail, so that none loses its digits
            other = np.concatenate([below, ones], axis=1) - np.concatenate(
                [0 * ones, below], axis=1
            )
            middle = np.concatenate([-np.inf * ones, x], axis=1) + np.concatenate(
                [x, np.inf * ones], axis=1
            )
            middle = np.nan_to_num(middle, nan=0.0)
            masses = np.where(middle > 0, other, masses)
            return masses @ self.pieces, normal_density(x) @ jumps / width
        eta, weights = self.residual_nodes(om, width, resolution)
        points = (om[:, None] + width * eta).reshape(-1, 1)
        chances = self.likelihood.probabilities(points).reshape(*eta.shape, -1)
        Z = np.einsum("nm,nmy->ny", weights, chances)
        return Z, np.einsum("nm,nmy->ny", weights * eta, chances) / width

    def information(self, q: float, resolution: str = "fine") -> Information:
        om, weights = self.om_nodes(q, resolution)
        Z, dZ = self.distributions(om, self.rho - q, resolution)
        return Information(
            float(weights @ square_over(dZ, Z).sum(1)), float(weights @ entropy_term(Z).sum(1))
        )

    def errors(self, q: float) -> dict[str, float]:
        """The error 1 - E max_y Z, and the mean squared error of E[y | data] over 2."""
        om, weights = self.om_nodes(q, "fine", self._switches(q))
        Z = self._chances(om, q)
        square = self._mean_square
        mean = weights @ (Z @ self.values) ** 2
        return {
            "error": float(1.0 - weights @ Z.max(axis=1)),
            "risk": 0.5 * float(weights @ (Z @ self.values**2) - mean),
            "excess_risk": 0.5 * float(square - mean),
        }

    def _chances(self, om: np.ndarray, q: float) -> np.ndarray:
        """Z for each om and outcome, also at q = rho."""
        if q >= self.rho:
            return self.likelihood.probabilities(om[:, None])
        return self.distributions(om, self.rho - q, "fine")[0]

    def _switches(self, q: float) -> np.ndarray:
        """Points om at which another label becomes the most likely one, by bisection."""
        om, _ = self.om_nodes(q, "fine")
        best = self._chances(om, q).argmax(axis=1)
        index = np.flatnonzero(best[1:] != best[:-1])
        low, high = om[index], om[index + 1]
        for _ in range(SWITCH_STEPS if len(index) else 0):
            middle = (low + high) / 2
            is_low = self._chances(middle, q).argmax(axis=1) == best[index]
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return (low + high) / 2

    @cached_property
    def _mean_square(self) -> float:
        """E[E[y | z]^2]."""
        om, weights = self.om_nodes(self.rho * (1 - 1e-14), "fine")
        mean = self.likelihood.probabilities(om[:, None]) @ self.values
        return float(weights @ mean**2)


@dataclass(frozen=True)
class _Slope:
    """The derivative of a function of (signals, parameters); equal functions are compiled once."""

    function: SignalFunction

    def __call__(self, z: Numeric, parameters: Parameters) -> Numeric:
        return jax.grad(self.function)(z, parameters)


class _Function:
    """The function f of additive noise with one signal: values, slopes, kinks."""

    def __init__(self, likelihood: Likelihood, rho: float) -> None:
        law = likelihood.law
        assert isinstance(law, AdditiveLaw)
        self.parameters = likelihood.parameters
        self.function = law.function
        declared = {level * normal[0] for normal, level in law.kinks}
        activation = Activation(
            lambda x: law.function(x[None], likelihood.parameters), tuple(sorted(declared))
        )
        with np.errstate(all="ignore"):
            found = undeclared_kinks(activation)  # style: ok, kinks that a search finds
        self.kinks = np.array(sorted({*declared, *found}))
        self.reach = FURTHEST * np.sqrt(rho)
        self._slope = _Slope(law.function)

    def __call__(self, z: np.ndarray) -> np.ndarray:
        z = np.asarray(z)
        values = evaluate_on_points(self.function, z.reshape(-1, 1), self.parameters)
        return values.reshape(z.shape)

    def slope(self, z: np.ndarray) -> np.ndarray:
        z = np.asarray(z)
        slopes = evaluate_on_points(self._slope, z.reshape(-1, 1), self.parameters)
        return slopes.reshape(z.shape)


class AdditiveChannel(Channel):
    """Common part of y = f(z) + noise with and without noise."""

    jumps = False

    def __init__(self, likelihood: Likelihood, rho: float) -> None:
        self.likelihood, self.rho = likelihood, rho
        with jax.enable_x64(True):
            self.f = _Function(likelihood, rho)
        self.kinks = self.f.kinks
        self.noise = likelihood.noise
        self.end = 0.0
        law = likelihood.law
        assert isinstance(law, AdditiveLaw)
        self.variance = self.noise if law.has_variance(likelihood.parameters) else np.inf

    def errors(self, q: float) -> dict[str, float]:
        """The risk E(y - E[y | data])^2/2 of a new sample and its excess over noise/2."""
        om, weights = self.om_nodes(q, "fine")
        if q >= self.rho:
            mean = self.f(om)
        else:
            width = np.sqrt(self.rho - q)
            eta, inner = self.residual_nodes(om, width, "fine")
            mean = np.sum(inner * self.f(om[:, None] + width * eta), axis=1)
        excess = 0.5 * float(self._square - weights @ mean**2)
        return {"excess_risk": excess, "risk": excess + 0.5 * self.variance}

    @cached_property
    def _square(self) -> float:
        """E f^2."""
        om, weights = self.om_nodes(self.rho * (1 - 1e-14), "fine")
        return float(weights @ self.f(om) ** 2)


class NoisyChannel(AdditiveChannel):
    """Noise: Z = N L, with N the posterior of z at each om and L the law of y at each z.

    For small V the labels of one om lie close to f(om), and have nodes of their own.
    """

    def __init__(self, likelihood: Likelihood, rho: float) -> None:
        super().__init__(likelihood, rho)
        law = likelihood.law
        assert isinstance(law, AdditiveLaw)
        self.law = law
        self.sigma = float(law.scale(likelihood.parameters))
        # panels of the noise beyond the bulk, in units of sigma: none for Gaussian noise
        self.tail = np.zeros(0) if law.noise_law is None else GRID_REACH * TAIL
        # the distance in z over which the law of y changes, at each z
        z = np.linspace(-self.f.reach, self.f.reach, 2001)
        self.grid, self.slopes = z, np.abs(np.nan_to_num(self.f.slope(z)))
        density = normal_density(z / np.sqrt(rho))
        mean_square = float(np.sum(density * self.slopes**2) / np.sum(density))
        self.offset = self.sigma**2 / max(mean_square * rho, 1e-12)
        self.scale = self.sigma / max(1e-12, float(np.max(self.slopes[np.abs(z) < 6])))

    def information(self, q: float, resolution: str = "fine") -> Information:
        width = np.sqrt(self.rho - q)
        if width < LOCAL * self.scale:
            return self._local(q, resolution)
        if self.law.noise_law is None and self._grid_size(width) > LARGEST_GRID:
            return Information(*self._small_noise.moments(q, resolution))
        return self._global(q, resolution)

    def _grid_size(self, width: float) -> float:
        """Estimate the number of panels of z in the grid for all om."""
        is_bulk = np.abs(self.grid) < GRID_REACH * np.sqrt(self.rho)
        lengths = 2.0 * np.minimum(width, self.sigma / np.maximum(self.slopes[is_bulk], 1e-12))
        return float(np.sum(1.0 / lengths) * (self.grid[1] - self.grid[0]))

    @cached_property
    def _small_noise(self) -> SmallNoise:
        """The integrals for noise that is much smaller than the range of f."""
        return SmallNoise(self, NoiselessChannel(self.likelihood, self.rho))

    def density(self, x: np.ndarray) -> np.ndarray:
        """Density of the noise at sigma x, times sigma."""
        if self.law.noise_law is None:
            return normal_density(x)
        with jax.enable_x64(True):
            return np.asarray(self.law.standard_density(x, self.likelihood.parameters))

    def _local(self, q: float, resolution: str) -> Information:
        """Labels y = f(om) + spread u with nodes u of their own at each om."""
        om, weights = self.om_nodes(q, resolution)
        width, sigma = np.sqrt(self.rho - q), self.sigma
        eta, inner = self.residual_nodes(om, width, resolution, count=LOCAL_PANELS)
        means = self.f(om[:, None] + width * eta)
        reach = np.max(np.abs(means - self.f(om)[:, None]) * (np.abs(eta) < 9), axis=1)
        edges = np.linspace(-1.0, 1.0, 9)
        if len(self.tail):
            # a density with a kink at 0 is smooth over the width of the posterior only
            inner_edges = np.geomspace(1e-4, 0.5, 9)
            outside = self.tail / GRID_REACH
            edges = np.concatenate([edges, inner_edges, -inner_edges, outside, -outside])
        u, du = panels(np.unique(edges), ORDERS[resolution][1])
        spread = FURTHEST * sigma + reach
        J = psi = 0.0
        for first in range(0, len(om), 64):
            chunk = slice(first, first + 64)
            y = self.f(om[chunk])[:, None] + spread[chunk, None] * u
            law = self.density((y[:, None, :] - means[chunk, :, None]) / sigma) / sigma
            Z = np.einsum("nm,nmy->ny", inner[chunk], law)
            dZ = np.einsum("nm,nmy->ny", inner[chunk] * eta[chunk], law) / width
            own = weights[chunk, None] * spread[chunk, None] * du
            J += float(np.sum(own * square_over(dZ, Z)))
            psi += float(np.sum(own * entropy_term(Z)))
        return Information(J, psi)

    def _global(self, q: float, resolution: str) -> Information:
        """One grid of z and one of y for all om."""
        om, weights = self.om_nodes(q, resolution)
        width, sigma = np.sqrt(self.rho - q), self.sigma
        order = ORDERS[resolution][1]
        z, dz = panels(self._z_edges(width), order)
        means = self.f(z)
        y, dy = panels(self._y_edges(means), order)
        if self.law.noise_law is not None and z.size * y.size > LARGEST_TABLE:
            fix = (
                "its scale is too small for the quadrature of labels with heavy-tailed noise. Use "
                "a larger scale, or a small variance of Gaussian noise"
            )
            raise checks.reject("noise", f"{self.law.noise_law} of scale {self.sigma:g}", fix)
        x = (z - om[:, None]) / width
        posterior = normal_density(x) * dz / width
        slopes = posterior * x / width
        # Gaussian noise has no tails: only signals whose labels are near
        is_gaussian = self.law.noise_law is None
        count = max(1, int(np.ptp(y) / (8 * sigma))) if is_gaussian else 1
        reach = 8.5 * sigma if is_gaussian else np.inf
        J = psi = 0.0
        for group in np.array_split(np.arange(len(y)), count):
            is_near = (means > y[group[0]] - reach) & (means < y[group[-1]] + reach)
            law = self.density((y[group] - means[is_near, None]) / sigma) / sigma
            Z, dZ = posterior[:, is_near] @ law, slopes[:, is_near] @ law
            J += float(weights @ square_over(dZ, Z) @ dy[group])
            psi += float(weights @ entropy_term(Z) @ dy[group])
        return Information(J, psi)

    def _z_edges(self, width: float) -> np.ndarray:
        """Panels of z, not longer than the scales of the posterior and of the law of y."""
        longest = 2.0 * np.minimum(width, self.sigma / np.maximum(self.slopes, 1e-12))
        # the number of panels up to each point of the grid
        density = np.interp(self.grid, self.grid, 1.0 / np.maximum(longest, 1e-3))
        counts = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        counts *= self.grid[1] - self.grid[0]
        edges = np.interp(np.arange(0.0, counts[-1], 1.0), counts, self.grid)
        reach = GRID_REACH * np.sqrt(self.rho)
        edges = np.concatenate([edges, self.kinks])
        edges = edges[np.abs(edges) < reach]
        return np.unique(np.concatenate([edges, [-reach, reach]]))

    def _y_edges(self, means: np.ndarray) -> np.ndarray:
        """Panels of y of length 2 sqrt(noise)."""
        sigma = self.sigma
        low, high = means.min() - GRID_REACH * sigma, means.max() + GRID_REACH * sigma
        edges = np.linspace(low, high, 2 + int((high - low) / (2.5 * sigma)))
        tail = self.tail[1:] * sigma - GRID_REACH * sigma
        return np.concatenate([(low - tail)[::-1], edges, high + tail])


class NoiselessChannel(AdditiveChannel):
    """No noise: the label leaves the roots z_j of f(z) = y, with weights N(z_j)/|f'(z_j)|.

    The nodes are om and the true z. Pieces on which f is constant are outcomes. Psi is that of the
    density of y times abs(f'(z)), so that it differs by a constant.
    """

    def __init__(self, likelihood: Likelihood, rho: float) -> None:
        super().__init__(likelihood, rho)
        reach = 1.1 * self.f.reach
        extrema = self._extrema(reach)
        self.breaks = np.array(sorted({*self.kinks[np.abs(self.kinks) < reach], *extrema}))
        self.pieces = np.concatenate([[-reach], self.breaks, [reach]])
        middle = (self.pieces[1:] + self.pieces[:-1]) / 2
        quarter = middle + 0.2 * np.diff(self.pieces)
        scale = np.sqrt(self._square)
        flat = np.abs(self.f(middle) - self.f(quarter)) < 1e-12 * scale
        self.flat = flat
        self.flat_values = self.f(middle)
        self.kinks = self.breaks
        mass = np.diff(special.ndtr(self.pieces / np.sqrt(rho)))
        self.end = float(1.0 - mass[flat].sum())

    def _extrema(self, reach: float) -> list[float]:
        """Points between kinks at which f' changes its sign, by bisection."""
        z = np.linspace(-reach, reach, 4001) + 1e-5 * np.sqrt(2.0)
        signs = np.sign(np.nan_to_num(self.f.slope(z)))
        crossings = np.flatnonzero((signs[1:] * signs[:-1]) < 0)
        zeros = []
        for index in crossings:
            low, high = z[index], z[index + 1]
            if np.any((self.kinks >= low) & (self.kinks <= high)):
                continue
            for _ in range(60):
                middle = (low + high) / 2
                if np.sign(self.f.slope(np.array([middle]))[0]) == signs[index]:
                    low = middle
                else:
                    high = middle
            zero = (low + high) / 2
            zeros.append(0.0 if abs(zero) < 1e-12 else float(zero))
        return zeros

    @cached_property
    def tables(self) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Points and increasing values of f on each monotone piece; None for a flat piece."""
        tables: list[tuple[np.ndarray, np.ndarray] | None] = []
        u = 0.5 * (1 - np.cos(np.pi * np.linspace(0, 1, 2001)))
        for left, right, flat in zip(self.pieces[:-1], self.pieces[1:], self.flat, strict=True):
            z = left + (right - left) * u
            z[0], z[-1] = np.nextafter(left, right), np.nextafter(right, left)
            tables.append(None if flat else (z, self.f(z)))
        return tables

    def _roots(self, piece: int, y: np.ndarray) -> np.ndarray:
        """The root of f(z) = y in a monotone piece; NaN where there is none."""
        table = self.tables[piece]
        assert table is not None
        z, values = table
        rising = values[-1] > values[0]
        ordered = (z, values) if rising else (z[::-1], values[::-1])
        root = np.interp(y, ordered[1], ordered[0])
        outside = (y < ordered[1][0]) | (y > ordered[1][-1])
        low, high = min(z[0], z[-1]), max(z[0], z[-1])
        for _ in range(ROOT_STEPS):
            slope = self.f.slope(root)
            step = np.where(slope != 0, (self.f(root) - y) / np.where(slope == 0, 1, slope), 0.0)
            root = np.clip(root - step, low, high)
        return np.where(outside, np.nan, root)

    def information(self, q: float, resolution: str = "fine") -> Information:
        om, weights = self.om_nodes(q, resolution)
        V = self.rho - q
        width = np.sqrt(V)
        eta, inner = self.residual_nodes(om, width, resolution, self.breaks)
        z = om[:, None] + width * eta
        owner = np.clip(np.searchsorted(self.breaks, z), 0, len(self.flat) - 1)
        J = psi = 0.0
        # flat pieces: outcomes
        for value in set(np.round(self.flat_values[self.flat], 12).tolist()):
            chosen = self.flat & (np.abs(self.flat_values - value) < 1e-9 * (1 + abs(value)))
            ends = (self.pieces - om[:, None]) / width
            Z = (np.diff(special.ndtr(ends), axis=1) * chosen).sum(1)
            tail = (np.diff(-special.ndtr(-ends), axis=1) * chosen).sum(1)
            Z = np.where(Z > 0.5, tail, Z)
            dZ = -(np.diff(normal_density(ends), axis=1) * chosen).sum(1) / width
            J += float(weights @ square_over(dZ, Z))
            psi += float(weights @ entropy_term(Z))
        # elsewhere the label leaves the roots of f(z) = y
        total, first = np.zeros_like(z), np.zeros_like(z)
        # relative to |f'| at the true z: Psi is then without the constant E log 1/|f'|, whose
        # integrand is singular at extrema of f
        y, slope = self.f(z), self.f.slope(z)
        for piece in np.flatnonzero(~self.flat):
            roots = np.where(owner == piece, z, 0.0)
            others = owner != piece
            roots[others] = self._roots(int(piece), y[others])
            x = (roots - om[:, None]) / width
            with np.errstate(all="ignore"):
                mass = normal_density(x) / width * np.abs(slope / self.f.slope(roots))
            mass = np.where(owner == piece, normal_density(x) / width, mass)
            mass = np.where(np.isfinite(mass) & np.isfinite(roots), mass, 0.0)
            total += mass
            first += mass * np.where(np.isfinite(x), x, 0.0)
        is_flat = self.flat[owner]
        inner = np.where(is_flat | (total <= 0), 0.0, inner)
        total = np.where(total > 0, total, 1.0)
        J += float(weights @ np.sum(inner * (first / total / width) ** 2, axis=1))
        psi += float(weights @ np.sum(inner * np.log(total), axis=1))
        return Information(J, psi)


@float64
def channel_of(likelihood: Likelihood, rho: float) -> Channel:
    """The channel of a label law with one signal of variance rho."""
    if likelihood.kind == "outcomes":
        return OutcomeChannel(likelihood, rho)
    if likelihood.noise == 0.0:
        return NoiselessChannel(likelihood, rho)
    return NoisyChannel(likelihood, rho)
