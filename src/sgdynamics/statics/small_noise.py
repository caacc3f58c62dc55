"""The channel of y = f(z) + noise where the noise is much smaller than the range of f.

For each posterior N(om, V) of the signal, labels have panels of their own: images of panels of z,
and panels that shrink with the noise towards the values of f at its kinks and extrema. On each
monotone piece of f, z is integrated over the interval on which both factors of

    Z(y, om) = int dz N(z; om, V) N(y; f(z), noise)

are not negligible. The number of nodes depends neither on the noise nor on V.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.expectations.nodes import gauss_legendre

if TYPE_CHECKING:
    from sgdynamics.statics.channel import NoiselessChannel, NoisyChannel

# Standard deviations of the noise and of the posterior up to which labels and z are integrated.
REACH = 7.0
# Ends of panels of z whose images are ends of panels of y, and of panels of y near a singular
# value of the density of f, in units of sigma.
IMAGES = np.linspace(-REACH, REACH, 11)
GRADED = np.concatenate([[0.7, 1.5, 2.5, 4.0], 6.5 * 1.7 ** np.arange(24)])
ENDS = np.array([0.0, 1.5, 3.0, 4.75, REACH])
INWARD = 1.5 * 3.0 ** np.arange(13)
# Panels of z, in units of sqrt V, and Gauss-Legendre nodes of y on a panel and of z on the part of
# a panel where y is near f(z): at most 15 standard deviations of the integrand.
SIGNAL_PANELS = np.linspace(-REACH, REACH, 5)
LABEL_NODES = {"fine": 9, "coarse": 7}
SIGNAL_NODES = {"fine": 24, "coarse": 20}
CHUNK = 1 << 14
# Ends of panels of om near a kink or an extremum, in units of sqrt V.
OM_DISTANCES = np.concatenate([-np.geomspace(0.5, 256.0, 10), [0.0], np.geomspace(0.5, 256.0, 10)])


class Piece(NamedTuple):
    """A monotone piece of f: a table of z with increasing values of f."""

    values: Float[np.ndarray, " n"]
    z: Float[np.ndarray, " n"]
    is_rising: bool


@dataclass(frozen=True, eq=False)
class SmallNoise:
    """The information of a channel with small Gaussian noise.

    Attributes
    ----------
    channel : NoisyChannel
        The channel.
    noiseless : NoiselessChannel
        The same function without noise, which has its monotone and its flat pieces.
    """

    channel: NoisyChannel
    noiseless: NoiselessChannel

    def moments(self, q: float, resolution: str) -> tuple[float, float]:
        """Return J = E g^2 and Psi."""
        width = np.sqrt(self.channel.rho - q)
        # the sign of f' changes at extrema, which are no kinks of the law
        turns = self.noiseless.breaks[:, None] + width * OM_DISTANCES
        om, weights = self.channel.om_nodes(q, resolution, turns.ravel())
        edges = self._label_edges(om, width)
        nodes, node_weights = gauss_legendre(LABEL_NODES[resolution])
        lengths = np.diff(edges, axis=1)
        owner, panel = np.nonzero(lengths > 1e-13 * self.channel.sigma)
        length = lengths[owner, panel]
        y = (edges[owner, panel][:, None] + length[:, None] * nodes).ravel()
        mass = (weights[owner] * length)[:, None] * node_weights
        owner = np.repeat(owner, len(nodes))
        J = psi = 0.0
        for first in range(0, len(y), CHUNK):
            pairs = slice(first, first + CHUNK)
            Z, dZ = self._distributions(om[owner[pairs]], y[pairs], width, resolution)
            own = mass.ravel()[pairs]
            is_positive = Z > 1e-290
            safe = np.where(is_positive, Z, 1.0)
            J += float(np.sum(own * np.where(is_positive, dZ**2 / safe, 0.0)))
            psi += float(np.sum(own * np.where(is_positive, Z * np.log(safe), 0.0)))
        return J, psi

    def _label_edges(self, om: Float[np.ndarray, " n"], width: float) -> np.ndarray:
        """Return sorted ends of panels of y for each om."""
        channel, breaks = self.channel, self.noiseless.breaks
        sigma = channel.sigma
        images = channel.f(om[:, None] + width * IMAGES)
        low, high = images.min(axis=1), images.max(axis=1)
        columns = [images]
        for position in breaks:
            is_near = np.abs(position - om) < REACH * width
            sides = np.array([np.nextafter(position, -np.inf), np.nextafter(position, np.inf)])
            for value in set(channel.f(sides).tolist()):
                low = np.where(is_near, np.minimum(low, value), low)
                high = np.where(is_near, np.maximum(high, value), high)
                graded = value + sigma * np.concatenate([-GRADED[::-1], [0.0], GRADED])
                columns.append(np.where(is_near[:, None], graded, low[:, None]))
        # f may saturate at the ends
        columns += [low[:, None] - sigma * ENDS, low[:, None] + sigma * INWARD]
        columns += [high[:, None] + sigma * ENDS, high[:, None] - sigma * INWARD]
        edges = np.concatenate(columns, axis=1)
        bounds = (low - REACH * sigma)[:, None], (high + REACH * sigma)[:, None]
        return np.sort(np.clip(edges, *bounds), axis=1)

    def _distributions(
        self, om: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: float, resolution: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return Z and dZ/d om for pairs of om and y."""
        sigma = self.channel.sigma
        nodes, weights = gauss_legendre(SIGNAL_NODES[resolution])
        Z, dZ = np.zeros_like(om), np.zeros_like(om)
        shifts = (-REACH * sigma, REACH * sigma)
        for piece in self._pieces():
            ends = [np.interp(y + shift, piece.values, piece.z) for shift in shifts]
            near, far = ends if piece.is_rising else ends[::-1]
            for left, right in itertools.pairwise(SIGNAL_PANELS):
                below = np.maximum(near, om + left * width)
                above = np.minimum(far, om + right * width)
                chosen = np.flatnonzero(above > below)
                if not len(chosen):
                    continue
                length = (above - below)[chosen, None]
                z = below[chosen, None] + length * nodes
                x = (z - om[chosen, None]) / width
                residual = (y[chosen, None] - self.channel.f(z)) / sigma
                density = np.exp(-0.5 * (x * x + residual * residual))
                scale = length[:, 0] / (2 * np.pi * width * sigma)
                Z[chosen] += scale * (density @ weights)
                dZ[chosen] += scale / width * ((density * x) @ weights)
        flat = self.noiseless.flat
        for index in np.flatnonzero(flat):
            left, right = (self.noiseless.pieces[index : index + 2][:, None] - om) / width
            law = np.exp(-0.5 * ((y - self.noiseless.flat_values[index]) / sigma) ** 2)
            law /= np.sqrt(2 * np.pi) * sigma
            # from the smaller tail, so that no digits are lost
            middle = left + right > 0
            mass = np.where(
                middle,
                special.ndtr(-left) - special.ndtr(-right),
                special.ndtr(right) - special.ndtr(left),
            )
            slope = np.exp(-0.5 * left**2) - np.exp(-0.5 * right**2)
            Z += law * mass
            dZ += law * slope / (np.sqrt(2 * np.pi) * width)
        return Z, dZ

    def _pieces(self) -> list[Piece]:
        """Return the monotone pieces of f."""
        pieces = []
        for table in self.noiseless.tables:
            if table is not None:
                z, values = table
                is_rising = bool(values[-1] > values[0])
                ordered = (values, z) if is_rising else (values[::-1], z[::-1])
                pieces.append(Piece(*ordered, is_rising))
        return pieces
