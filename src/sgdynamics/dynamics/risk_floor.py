"""Lower bounds of the excess risk near a state where it is known, much cheaper than the risk.

`exit_time` asks after each step whether the excess risk V is below a level. V is an expectation
over the fields, and its quadrature costs more than many steps. Let Omega be the covariance of the
fields (students and signals, n of them) and a the head of the *anchor*, a state where the risk was
evaluated; Omega', a' those of a later state, and s_i the students. With the squared loss
V = |f - y|^2/2, where |.| is the norm of L2 under the law of the fields.

1. *Fields.* Whiten by the anchor, S = L^-1 Omega' L^-T with L L^T = Omega. If |S - 1| <= delta in
   the Frobenius norm, then Omega' >= Omega_1 = (1 - delta) Omega as matrices, and at each point
   the density of N(0, Omega') is at least (det Omega_1/det Omega')^(1/2) times that of
   N(0, Omega_1): the exponent x.(Omega_1^-1 - Omega'^-1) x/2 of their ratio is not negative. By the
   inequality of the means det S <= (tr S/n)^n. The integrand (f - y)^2 is not negative, hence

       V(Omega', a) >= ((1 - delta)/(tr S/n))^(n/2) V(Omega_1, a).

   Neither smoothness nor growth of the activations matters. V(Omega_1, a) is evaluated once.
2. *Head.* f is linear in a. By the triangle inequality

       sqrt(2 V(Omega', a')) >= sqrt(2 V(Omega', a)) - (1/p) sum_i |a'_i - a_i| |s_i|',

   and step 1 with the roles exchanged gives, for the single field i of variance
   q'_i in [1 - delta, 1 + delta] q_i,

       |s_i|'^2 = E[s_i^2 at q'_i] <= ((1 + delta)/(1 - delta))^(1/2) E[s_i^2 at (1 + delta) q_i].
3. *Quadrature.* Evaluations of V have errors, which are added as a guard band: `GUARD` times the
   estimated relative error of the pair expectations, in units of (|f| + |y|)^2/2.

As long as the bound is not below the level, neither is V, wherever V goes between the anchor and
the state: a crossing cannot be missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, Scalar, State
from sgdynamics.expectations import pairs
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.networks import Networks
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.expectations.solver_interface import Evaluation
from sgdynamics.ode.case import Watch
from sgdynamics.problems.losses import squared
from sgdynamics.problems.problem import Structure

LARGEST_DELTA = 0.1
# Share of the relative distance to the level, per field, that delta is.
DELTA_SHARE = 0.7
GUARD = 10.0  # multiple of the estimated error of an evaluation
LEAST_ERROR = 1e-13  # relative error of an evaluation that is assumed at least
ROUNDING = 1e-15  # relative error of a whitened entry, times the condition number


class Anchor(NamedTuple):
    """A state where the excess risk was evaluated, and what the bounds need of it.

    Attributes
    ----------
    whitening : array, (n, n)
        L^-1.
    head : array, (p,)
        The head a.
    delta : float
        Largest distance of whitened covariances from 1.
    floor : float
        V(Omega_1, a) less the guard band.
    norms : array, (p,)
        Upper bounds of |s_i|'.
    guard : float
        Guard band of an evaluation of V.
    """

    whitening: Float[Numeric, "n n"]
    head: Float[Numeric, " p"]
    delta: Scalar
    floor: Scalar
    norms: Float[Numeric, " p"]
    guard: Scalar


def has_floor(structure: Structure) -> bool:
    """Whether the bounds hold: a network, the squared loss, and centred inputs.

    The expectation must not be sampled, because its error would not be known at one state.
    """
    loss, expectation = structure.loss, expectation_of(structure)
    return (
        isinstance(expectation, Networks)
        and loss.outer is squared
        and structure.has_excess
        and structure.sample.centred
        and not structure.sample.contexts
        and not expectation.sampled(True)
    )


@dataclass(frozen=True)
class RiskFloor:
    """Lower bounds of the excess risk of one problem; static and hashable.

    Parameters
    ----------
    structure : Structure
        Structure of the problem.
    quadrature : Quadrature
        Quadrature of the risk.
    watch : Watch
        The excess risk as a function of (shared, state); `shared` contains the parameters of the
        problem as "problem" and one replicate of the nodes of the risk as "watch".
    """

    structure: Structure
    quadrature: Quadrature
    watch: Watch

    def no_anchor(self) -> Anchor:
        """An anchor with which no bound holds."""
        p, n = self.structure.width, self.structure.width + self.structure.signals
        zero = jnp.zeros(())
        heads = jnp.zeros(self.structure.head_size)
        return Anchor(jnp.zeros((n, n)), heads, zero - 1.0, zero, jnp.zeros(p), zero)

    def evaluate(
        self, shared: Parameters, state: State, level: Scalar
    ) -> tuple[Float[Numeric, ""], Anchor]:
        """The excess risk at a state, and the state as an anchor for this level."""
        structure, parameters = self.structure, shared["problem"]
        p, n = structure.width, structure.width + structure.signals

        def scaled_value(scale: Scalar) -> Float[Numeric, ""]:
            """V at the covariance of all fields times `scale`."""
            scaled = {**parameters, "gram": scale * parameters["gram"]}
            fields = {**state, "M": scale * state["M"], "Q": scale * state["Q"]}
            return self.watch.value({**shared, "problem": scaled}, fields)

        def next_delta(value: Scalar) -> Float[Numeric, ""]:
            margin = jnp.maximum(1 - level / value, 0.0)
            return jnp.minimum(DELTA_SHARE * margin / (n + 2), LARGEST_DELTA)

        def evaluate_next(index: IntScalar, values: Numeric) -> Numeric:
            """V at the state itself, then with the scale that its value allows."""
            scale = jnp.where(index == 0, 1.0, 1 - next_delta(values[0]))
            return jnp.asarray(values).at[index].set(scaled_value(scale))

        # A loop rather than two calls, so that the quadrature is compiled once.
        value, scaled = jax.lax.fori_loop(0, 2, evaluate_next, jnp.zeros(2))
        delta = next_delta(value)
        overlaps = overlaps_at(structure, parameters, state)
        norms = self._student_norms(jnp.diagonal(overlaps.covariance)[:p], delta)
        error = expectation_of(structure).estimate_error(
            Evaluation(self.quadrature, shared["watch"], parameters, overlaps, state["a"])
        )
        output = jnp.sum(jnp.abs(state["a"]) * norms) / p
        sizes = 2 * output + jnp.sqrt(2 * jnp.maximum(value, 0.0))
        guard = GUARD * jnp.maximum(error, LEAST_ERROR) * sizes**2 / 2
        root = jnp.linalg.cholesky(overlaps.covariance)
        whitening = jax.scipy.linalg.solve_triangular(root, jnp.eye(n), lower=True)
        # The whitened entries are known up to rounding, which a singular covariance amplifies.
        rounding = ROUNDING * n * jnp.sum(whitening**2) * jnp.trace(overlaps.covariance)
        return value, Anchor(whitening, state["a"], delta - rounding, scaled - guard, norms, guard)

    def _student_norms(self, q: Float[Numeric, " p"], delta: Scalar) -> Float[Numeric, " p"]:
        """Upper bounds of the roots of E[s_i^2] at variances up to (1 + delta) q_i."""
        student = self.structure.loss.student

        def mean_square(variance: Scalar) -> Float[Numeric, ""]:
            field = jnp.reshape(variance, 1)
            terms = self.quadrature.terms
            return pairs.value(student, student, field, field, field[:, None], terms)[0, 0]

        ratio = jnp.sqrt((1 + delta) / (1 - delta))
        return jnp.sqrt(ratio * jax.vmap(mean_square)((1 + delta) * q))

    def is_above(
        self, anchor: Anchor, shared: Parameters, state: State, level: Scalar
    ) -> Bool[Numeric, ""]:
        """Whether the bound shows that an evaluation of V would not be below the level."""
        return self.lower_bound(anchor, shared, state) >= level + anchor.guard

    def lower_bound(self, anchor: Anchor, shared: Parameters, state: State) -> Float[Numeric, ""]:
        """A lower bound of V at a state; -inf where the state is too far from the anchor."""
        n = len(anchor.whitening)
        covariance = overlaps_at(self.structure, shared["problem"], state).covariance
        # Sums of products, which fuse into one loop over the runs on a CPU.
        half = jnp.sum(anchor.whitening[:, None] * covariance[None], axis=-1)
        deviation = jnp.sum(half[:, None] * anchor.whitening[None], axis=-1) - jnp.eye(n)
        distance = jnp.sqrt(jnp.sum(deviation**2))
        growth = 1 + jnp.trace(deviation) / n
        floor = ((1 - anchor.delta) / growth) ** (n / 2) * jnp.maximum(anchor.floor, 0.0)
        moved = jnp.sum(jnp.abs(state["a"] - anchor.head) * anchor.norms)
        root = jnp.sqrt(2 * floor) - moved / len(anchor.norms)
        # Comparisons with NaN are false: an anchor without a Cholesky factor gives no bound.
        return jnp.where(distance <= anchor.delta, jnp.maximum(root, 0.0) ** 2 / 2, -jnp.inf)
