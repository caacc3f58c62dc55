"""Bayes-optimal learning of two or three signals: iteration of the state equations.

    qh = alpha E[g g^T],    q = sum_b l_b (P_b - E_b),
    E_b = P_b^(1/2) (1 + (l_b/phi_b) P_b^(1/2) qh P_b^(1/2))^-1 P_b^(1/2)

from q = 0+ (approximate message passing) and from q = rho (informed). Both maps increase q in the
order of matrices, so that the start at another number of samples may be continued: upwards from
q = 0+, downwards from q = rho.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.progress import warn
from sgdynamics.statics.channel_states import GridTooLargeError, StateChannel, state_channel
from sgdynamics.statics.setup import Setup

MOST_SIGNALS = 3
# Overlap of the uninformed start, as a share of rho.
SMALL_SHARE = 1e-3
MOST_ITERATIONS = 1000
# The map is extrapolated after this many iterations.
PERIOD = 5


class StatePoints(NamedTuple):
    """Overlaps (samples, k, k), free entropies and errors along the samples."""

    q: np.ndarray
    free_entropy: np.ndarray
    errors: list[dict[str, float]]


class BayesStates:
    """The state equations of several signals.

    Attributes
    ----------
    channel : StateChannel
        The channel of the label law.
    error : float
        Relative difference of E[g g^T] on two sets of nodes at the solutions.
    """

    channel: StateChannel
    error: float

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.rho = setup.rho
        self.channel = state_channel(setup.likelihood, self.rho)
        self.roots = np.array([_symmetric_root(gram) for gram in setup.gram])
        self.rates = setup.eigenvalues / setup.fractions
        self.error = 0.0

    def overlaps(self, qh: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
        """Return q of the posterior with precision qh of the fields."""
        identity, q = np.eye(len(qh)), np.zeros_like(qh)
        for eigenvalue, rate, root in zip(
            self.setup.eigenvalues, self.rates, self.roots, strict=True
        ):
            inner = identity + rate * root @ qh @ root
            q += eigenvalue * root @ (identity - np.linalg.inv(inner)) @ root
        return (q + q.T) / 2

    def free_entropy(self, q: np.ndarray, alpha: float) -> float:
        """Return Phi at a fixed point."""
        J, psi = self.channel.information(q)
        qh = alpha * J
        value = alpha * psi - 0.5 * np.sum(q * qh)
        for fraction, eigenvalue, rate, root in zip(
            self.setup.fractions, self.setup.eigenvalues, self.rates, self.roots, strict=True
        ):
            precision = root @ qh @ root
            _, log_det = np.linalg.slogdet(np.eye(len(qh)) + rate * precision)
            value += 0.5 * eigenvalue * np.trace(precision) - 0.5 * fraction * log_det
        return float(value)

    def iterate(
        self, q: np.ndarray, alpha: float, projector: np.ndarray | None = None
    ) -> np.ndarray:
        """Iterate to a fixed point, with extrapolation of the slowest direction.

        A `projector` restricts q to a subspace of the signals.
        """
        before = None
        for count in range(MOST_ITERATIONS):
            after = self.overlaps(alpha * self.channel.information(q).J)
            if projector is not None:
                after = projector @ after @ projector
            step = after - q
            size = np.max(np.abs(step))
            scale = np.max(np.abs(self.rho - after)) + 1e-12
            if size < self.channel.tolerance * scale:
                return after
            if before is not None and count % PERIOD == PERIOD - 1:
                # the steps shrink geometrically: add the rest of the series, less a margin
                ratio = np.sum(step * before) / np.sum(before * before)
                if 0.0 < ratio < 0.999 and np.allclose(
                    step, ratio * before, atol=0.1 * size, rtol=0.0
                ):
                    longer = after + 0.9 * step * ratio / (1 - ratio)
                    inside = np.linalg.eigvalsh(self.rho - longer)[0] > 0
                    if inside and np.linalg.eigvalsh(longer)[0] > -1e-12:
                        after = longer
            before, q = step, after
        warn(
            f"samples_per_dimension = {alpha:g}: the state equations changed q by {size:.1e} in "
            f"step {MOST_ITERATIONS}. This point lies close to a threshold."
        )
        return q

    def _errors(self, states: Float[np.ndarray, "n k k"]) -> list[dict[str, float]]:
        """Return the errors at several states."""
        return [self.channel.errors(states[index]) for index in range(len(states))]

    def solve(self, alphas: np.ndarray) -> tuple[StatePoints, StatePoints]:
        """Return the fixed points of AMP and those of largest free entropy.

        Raises ValueError if the signals are known too well for the grids.
        """
        try:
            return self._solve(alphas)
        except GridTooLargeError:
            fix = (
                "the signals are known so well that the quadrature of the labels becomes too "
                "large. Use fewer samples per dimension"
            )
            raise checks.reject("samples_per_dimension", float(alphas.max()), fix) from None

    def _solve(self, alphas: np.ndarray) -> tuple[StatePoints, StatePoints]:
        """Return the two fixed points at each number of samples."""
        order = np.argsort(alphas)
        amp = np.zeros((len(alphas), *self.rho.shape))
        informed = np.zeros_like(amp)
        q = SMALL_SHARE * self.rho
        for index in order:
            q = self.iterate(q + SMALL_SHARE * (self.rho - q) * 1e-2, float(alphas[index]))
            amp[index] = q
        q = (1 - self.channel.unknown) * self.rho
        for index in order[::-1]:
            q = self.iterate(q, float(alphas[index]))
            informed[index] = q
        best, amp_entropies, entropies = informed.copy(), [], []
        for index, alpha in enumerate(alphas):
            own, other = (self.free_entropy(state[index], alpha) for state in (amp, informed))
            if own >= other or np.allclose(amp[index], informed[index], atol=1e-6):
                best[index], other = amp[index], own
            amp_entropies.append(own)
            entropies.append(other)
            fine, check = (
                self.channel.information(best[index], check=flag).J for flag in (False, True)
            )
            difference = float(np.max(np.abs(fine - check)) / np.max(np.abs(fine)))
            self.error = max(self.error, difference)
        return (
            StatePoints(amp, np.array(amp_entropies), self._errors(amp)),
            StatePoints(best, np.array(entropies), self._errors(best)),
        )


def _symmetric_root(gram: np.ndarray) -> np.ndarray:
    """The symmetric square root of a Gram matrix."""
    values, vectors = np.linalg.eigh(gram)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
