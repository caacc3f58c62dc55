"""State equations of a linear predictor that minimises a convex loss with weight decay.

The minimised function is mean loss + (weight_decay/2)|W|^2 on n = alpha d samples; with
lam = alpha weight_decay, eigenvalues l_b of the inputs in fractions phi_b of the dimensions, and
Gram matrices P_b of the signals,

    om ~ N(0, q),  z | om ~ N(m om/q, rho - m m^T/q),  y ~ p(y | z),  g = (prox(om, y, V) - om)/V,
    qh = alpha E g^2,  mh = alpha (rho - m m^T/q)^-1 E[g (z - m om/q)],
    Vh = -(alpha E[g om] - m.mh)/q,
    m = sum_b l_b^2 P_b mh/(lam + l_b Vh),  V = sum_b phi_b l_b/(lam + l_b Vh),
    q = sum_b l_b (l_b^2 mh.P_b mh + phi_b l_b qh)/(lam + l_b Vh)^2.

Vh is -alpha E dg/dom by Stein's lemma, without the derivative of a kinked prox. In a Gaussian
mixture of variance l the output is N(C_c.m, l q) in cluster c, and mh = alpha sum_c w_c C_c E_c g.
Sources: Sur and Candes (2019), Thrampoulidis et al. (2018), Mignacco et al. (2020), Loureiro et al.
(2021).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sgdynamics.problems.likelihoods import ClusterLaw, OutcomeLaw
from sgdynamics.statics.field_nodes import ClusterFields, FieldNodes, LabelledFields, Overlaps
from sgdynamics.statics.prox import ConvexLoss
from sgdynamics.statics.setup import Setup

TOLERANCE = 1e-12  # relative change of an iteration
MOST_ITERATIONS = 4000
MEMORY = 4  # iterates of the extrapolation
# Shares of the old state, tried in this order: small weight decays on far clusters oscillate.
DAMPINGS = (0.0, 0.3, 0.7, 0.9, 0.97, 0.99)
LARGEST = 1e12  # a squared norm or V beyond this value has diverged


@dataclass(frozen=True)
class LinearData(Setup):
    """The statics of a problem, as a linear predictor sees them."""

    @property
    def cluster_law(self) -> ClusterFields | None:
        """The clusters of a mixture; labels 0 and 1 count as -1 and +1."""
        law = self.likelihood.law
        if not isinstance(law, ClusterLaw):
            return None
        labels = np.array(law.labels)
        if set(law.labels) == {0.0, 1.0}:
            labels = 2.0 * labels - 1.0
        return ClusterFields(np.array(law.weights), np.array(law.coefficients), labels)

    @property
    def label_values(self) -> tuple[float, ...] | None:
        """The values of the label, if there are finitely many."""
        if (clusters := self.cluster_law) is not None:
            return tuple(sorted(set(clusters.labels.tolist())))
        law = self.likelihood.law
        return law.values if isinstance(law, OutcomeLaw) else None

    @property
    def is_binary(self) -> bool:
        """Whether labels are -1 and +1."""
        return self.label_values == (-1.0, 1.0)

    @property
    def has_one_eigenvalue(self) -> bool:
        """Whether all eigenvalues of the inputs are equal."""
        return bool(np.ptp(self.eigenvalues) <= 1e-12 * self.eigenvalues.max())

    @property
    def rank(self) -> float:
        """Share of the dimensions in which inputs vary."""
        return float(self.fractions[self.eigenvalues > 0].sum())


class ErmState(NamedTuple):
    """Order parameters: Cov(om, z) (or W mu^T in a mixture), Var om (or W W^T), and V."""

    m: Float[np.ndarray, " K"]
    q: float
    V: float


class Conjugates(NamedTuple):
    """The conjugate order parameters mh, qh and Vh."""

    m: Float[np.ndarray, " K"]
    q: float
    V: float


class Rows(NamedTuple):
    """Overlaps of the rows themselves: M with the signals and Q, summed over blocks."""

    M: Float[np.ndarray, " K"]
    Q: float


@dataclass(frozen=True, eq=False)
class ErmEquations:
    """The equations at one number of samples per dimension.

    Attributes
    ----------
    data : LinearData
        Inputs and labels.
    loss : ConvexLoss
        The loss.
    alpha : float
        Samples per dimension.
    lam : float
        alpha times the weight decay.
    order : int
        Index of the resolution of the quadrature, 0 or 1 (finer).
    """

    data: LinearData
    loss: ConvexLoss
    alpha: float
    lam: float
    order: int = 0

    def nodes(self, state: ErmState) -> FieldNodes:
        """Return nodes over outputs and labels."""
        data = self.data
        if (clusters := data.cluster_law) is not None:
            clusters, eig = replace(clusters, order=self.order), float(data.eigenvalues[0])
            return clusters.nodes(state.m, eig * state.q, self.loss, eig * state.V)
        fields = LabelledFields(data.likelihood, self.order)
        return fields.nodes(Overlaps(state.m, state.q, data.rho), self.loss, state.V)

    def field_variance(self, V: float) -> float:
        """Return the V of the prox, in units of the fields."""
        return V if self.data.cluster_law is None else V * float(self.data.eigenvalues[0])

    def conjugates(self, state: ErmState) -> Conjugates:
        """Return mh, qh and Vh."""
        nodes, V = self.nodes(state), self.field_variance(state.V)
        g = (self.loss.prox(nodes.om, nodes.label, V) - nodes.om) / V
        squares = self.alpha * float(nodes.mean(g**2))
        on_om = self.alpha * float(nodes.mean(g * nodes.om_mean))
        if self.data.cluster_law is not None:
            eig = float(self.data.eigenvalues[0])
            mh = self.alpha * nodes.mean(g[:, None] * nodes.signals)
            return Conjugates(mh, eig * squares, -on_om / state.q)
        overlaps = Overlaps(state.m, state.q, self.data.rho)
        centred = nodes.signals - np.outer(nodes.om_mean / state.q, state.m)
        on_signals = self.alpha * nodes.mean(g[:, None] * centred)
        mh = np.linalg.lstsq(overlaps.remaining, on_signals, rcond=1e-13)[0]
        return Conjugates(mh, squares, -(on_om - float(state.m @ mh)) / state.q)

    def state_from(self, conjugates: Conjugates) -> ErmState:
        """Return m, q and V from the conjugates."""
        mh, qh, Vh = conjugates
        data = self.data
        eig, phi, P = data.eigenvalues, data.fractions, data.gram
        if data.cluster_law is not None:
            scale, gram = self.lam + Vh, P.sum(axis=0)
            return ErmState(gram @ mh / scale, float(mh @ gram @ mh + qh) / scale**2, 1.0 / scale)
        scale = self.lam + eig * Vh
        power = np.einsum("k,bkl,l->b", mh, P, mh)
        return ErmState(
            np.einsum("b,bkl,l->k", eig**2 / scale, P, mh),
            float(np.sum(eig * (eig**2 * power + phi * eig * qh) / scale**2)),
            float(np.sum(phi * eig / scale)),
        )

    def step(self, state: ErmState) -> ErmState:
        """Return one iteration of the equations."""
        return self.state_from(self.conjugates(state))

    def rows(self, state: ErmState) -> Rows:
        """Return the overlaps of the rows themselves."""
        if self.data.cluster_law is not None:
            return Rows(state.m, state.q)
        M, Q = self.block_rows(self.conjugates(state))
        return Rows(M.sum(axis=0), float(Q.sum()))

    def block_rows(
        self, conjugates: Conjugates
    ) -> tuple[Float[np.ndarray, "blocks K"], Float[np.ndarray, " blocks"]]:
        """Return M and Q of the rows in each covariance block."""
        mh, qh, Vh = conjugates
        eig, phi, P = self.data.eigenvalues, self.data.fractions, self.data.gram
        scale = self.lam + eig * Vh
        power = np.einsum("k,bkl,l->b", mh, P, mh)
        M = np.einsum("b,bkl,l->bk", eig / scale, P, mh)
        return M, (eig**2 * power + phi * eig * qh) / scale**2

    def replicon(self, state: ErmState) -> float:
        """Return alpha E (dg/dom)^2 sum_b phi_b l_b^2/(lam + l_b Vh)^2, below 1 if stable."""
        nodes, V = self.nodes(state), self.field_variance(state.V)
        derivative = (self.loss.slope(nodes.om, nodes.label, V) - 1.0) / V
        eig, phi = self.data.eigenvalues, self.data.fractions
        Vh = self.conjugates(state).V
        scale = self.lam + (Vh + 0.0 * eig if self.data.cluster_law is not None else eig * Vh)
        squares = self.alpha * float(nodes.mean(derivative**2))
        return squares * float(np.sum(phi * eig**2 / scale**2))

    def train_loss(self, state: ErmState) -> float:
        """Return the mean loss over the data."""
        nodes, V = self.nodes(state), self.field_variance(state.V)
        output = self.loss.prox(nodes.om, nodes.label, V)
        return float(nodes.mean(self.loss.value(output, nodes.label)))

    def test_loss(self, state: ErmState) -> float:
        """Return the mean loss of a new sample."""
        # a prox of V -> 0 is the loss itself: its bends are those of the loss
        nodes = self.nodes_of_loss(state)
        return float(nodes.mean(self.loss.value(nodes.om, nodes.label)))

    def nodes_of_loss(self, state: ErmState) -> FieldNodes:
        """Return nodes broken at the bends of the loss."""
        return self.nodes(state._replace(V=0.0))

    def solve(self, start: ErmState | None = None) -> ErmState:
        """Return the fixed point, or a state of NaN if the iteration diverges with any damping.

        Raises RuntimeError if the iteration does not converge.
        """
        # a prox with kinks makes the iteration itself bend
        dampings = DAMPINGS[1:] if self.loss.has_kinks else DAMPINGS
        first = self.first_state() if start is None else start
        for damping in dampings[:-1]:
            with suppress(RuntimeError):
                state = self._iterate(first, damping)
                if np.isfinite(state.q):
                    return state
        return self._iterate(first, dampings[-1])

    def _iterate(self, state: ErmState, damping: float) -> ErmState:
        """Iterate the equations with one damping."""
        inputs: list[np.ndarray] = []
        outputs: list[np.ndarray] = []
        for _ in range(MOST_ITERATIONS):
            proposed = self.step(state)
            if not np.isfinite(proposed.q) or max(proposed.q, proposed.V) > LARGEST:
                return ErmState(state.m + np.nan, np.nan, np.nan)
            change = _distance(proposed, state)
            if change < TOLERANCE:
                return proposed
            damped = _mixture(proposed, state, damping)
            inputs.append(_coordinates(state))
            outputs.append(_coordinates(damped))
            state = damped
            # extrapolation near the fixed point, where the iteration is linear
            if change < 0.1 and len(inputs) > MEMORY:
                candidate = self._extrapolate(inputs[-MEMORY:], outputs[-MEMORY:])
                state = damped if candidate is None else candidate
        raise RuntimeError(f"not converged: the last relative change is {change:.1e}")

    def _extrapolate(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> ErmState | None:
        """Return the Anderson extrapolation of iterates; None if it leaves the allowed set."""
        x, y = np.array(inputs).T, np.array(outputs).T
        residuals = y - x
        differences = np.diff(residuals, axis=1)
        weights = np.linalg.lstsq(differences, residuals[:, -1], rcond=1e-10)[0]
        step = y[:, -1] - np.diff(y, axis=1) @ weights
        if not np.all(np.isfinite(step)) or np.max(np.abs(step - x[:, -1])) > 0.5:
            return None
        q, V = float(np.exp(step[-2])), float(np.exp(step[-1]))
        state = ErmState(step[:-2] * np.sqrt(q), q, V)
        if self.data.cluster_law is None and Overlaps(state.m, q, self.data.rho).orthogonal <= 0:
            return None
        return state

    def first_state(self) -> ErmState:
        """Return a state with a small overlap with each signal."""
        scale = np.sqrt(np.maximum(np.diag(self.data.rho), 1e-300))
        return ErmState(0.3 * scale / np.sqrt(len(scale)), 0.5, 1.0)


def _coordinates(state: ErmState) -> np.ndarray:
    """Return the state as m/sqrt(q), log q and log V, in which iterations are extrapolated."""
    return np.array([*(state.m / np.sqrt(state.q)), np.log(state.q), np.log(state.V)])


def _distance(first: ErmState, second: ErmState) -> float:
    """Return the largest relative difference of two states."""
    pairs = zip(np.hstack(first), np.hstack(second), strict=True)
    scale = max(np.sqrt(second.q), 1e-300)
    changes = [abs(a - b) / max(abs(b), 1e-3 * scale) for a, b in pairs]
    return float(max(changes))


def _mixture(new: ErmState, old: ErmState, share: float) -> ErmState:
    """Return (1 - share) new + share old."""
    m, q, V = ((1 - share) * a + share * b for a, b in zip(new, old, strict=True))
    return ErmState(np.asarray(m), float(q), float(V))
