"""One step of approximate message passing (AMP), for direct runs and for their exact law.

With one row w, inputs x ~ N(0, l_b) in block b, and signals of Gram P_b,

    om = X w - g_old V,  g = g(y, om, V),  L = sum_i g_i^2/d (Bayes) or -sum_i g_i'/d (prox),
    w_b <- s_b (X_b^T g/d + l_b L w_b),    V = sum_b l_b phi_b s_b,

with s_b = P_b/(phi_b + P_b l_b L) for the posterior mean and 1/(lam + l_b L) for the prox. Data
enter through X w and X^T g alone, so that conditioning (`fixed_data.conditioning`) gives the exact
law at any d. Sources: Rangan (2011), Javanmard and Montanari (2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, Scalar
from sgdynamics.base.precision import float64
from sgdynamics.expectations.nodes import gauss_legendre
from sgdynamics.problems.likelihoods import (
    AdditiveLaw,
    LabelDistribution,
    OutcomeLaw,
    evaluate_on_points,
    likelihood_of,
)
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.teacher_student import MultiIndex, TeacherStudent
from sgdynamics.samples import input_covariance
from sgdynamics.statics.prox import ConvexLoss, convex_loss

# Standard deviations up to which the posterior of a signal is integrated, panels and nodes.
REACH, LEAST_PANELS, MOST_PANELS, NODES = 8.0, 8, 200, 8
# Cells of a grid of the signal on which a label without noise is inverted.
CELLS = 2000


class Messages(NamedTuple):
    """Memory of message passing: g of the last step, and V."""

    g: Float[Numeric, "*runs n"]
    V: Float[Numeric, "*runs"]


@dataclass(frozen=True)
class MessagePassing:
    """The static part of the algorithm.

    Attributes
    ----------
    law : LabelDistribution or None
        Law of the labels, for the posterior mean.
    loss : ConvexLoss or None
        Loss of the prox.
    panels : int
        Panels of the integral over a signal; 0 if labels without noise are inverted.
    """

    law: LabelDistribution | None
    loss: ConvexLoss | None
    panels: int = LEAST_PANELS

    @classmethod
    @float64
    def from_problem(cls, problem: Problem, estimator: str) -> MessagePassing:
        """Return the algorithm of a problem; ValueError if there is none."""
        if not isinstance(problem, (TeacherStudent, MultiIndex)) or problem.signals != 1:
            fix = (
                "message passing is supported for labels of one signal. Use "
                "sgd.MultiIndex(target, directions=1, width=1, activation='linear') or "
                "sgd.TeacherStudent(teacher_width=1)"
            )
            raise checks.reject("problem", problem.kind, fix)
        if problem.width != 1:
            fix = "message passing estimates one row. Set width=1"
            raise checks.reject("width", problem.width, fix)
        if problem.constraint is not None:
            fix = "the rows of message passing are free. Omit the constraint"
            raise checks.reject("constraint", problem.constraint, fix)
        if estimator == "erm":
            return cls(None, convex_loss(problem.loss))
        likelihood = likelihood_of(problem)
        law = likelihood.law
        if not isinstance(law, AdditiveLaw):
            return cls(law, None, 2 * LEAST_PANELS)
        if likelihood.noise == 0.0:
            return cls(law, None, 0)
        # panels resolve the width of the noise, divided by the steepest slope of the function
        z = np.linspace(-4.0, 4.0, 801)[:, None]
        f = evaluate_on_points(law.function, z, likelihood.parameters)
        slope = float(np.max(np.abs(np.diff(f)))) / 0.01
        rho = _variance(problem.parameters)
        count = 3.0 * LEAST_PANELS * slope * np.sqrt(rho / likelihood.noise) / 8.0
        return cls(law, None, int(np.clip(np.ceil(count), LEAST_PANELS, MOST_PANELS)))

    def first_variance(
        self,
        problem: Problem,
        m: Float[np.ndarray, " runs"],
        q: Float[np.ndarray, " runs"],
        alpha: float,
    ) -> Float[np.ndarray, " runs"]:
        """Return V before the first step, for fields of covariance m with the signal and q."""
        if self.loss is not None:
            lam = alpha * float(problem.weight_decay)
            trace = float(input_covariance.trace(problem.parameters))
            return np.full(len(m), trace / lam if lam > 0 else 1.0)
        explained = np.divide(m**2, q, out=np.zeros_like(q), where=q > 0)
        return _variance(problem.parameters) - explained

    def outputs(
        self,
        structure: Structure,
        parameters: Parameters,
        fields: Float[Numeric, " n"],
        signals: Float[Numeric, "n K"],
        head: Float[Numeric, " p"],
        draws: PyTree,
        messages: Messages,
    ) -> tuple[Float[Numeric, " n"], Float[Numeric, " n"]]:
        """Return g and the contribution of each sample to d L."""
        om, V = fields - messages.g * messages.V, messages.V

        def label(signal: Numeric, draw: PyTree) -> Numeric:
            field = jnp.zeros(structure.width, fields.dtype)
            return structure.loss.output_and_label(field, signal, head, draw, parameters)[1]

        y = jax.vmap(label)(signals, draws).astype(fields.dtype)
        if self.loss is not None:
            g = (self.loss.prox(om, y, V) - om) / V
            return g, (1.0 - self.loss.slope(om, y, V)) / V
        if self.panels == 0:
            mean = self._mean_without_noise(parameters, y, om, V)
        else:
            mean = self._posterior_mean(parameters, y, om, V)
        g = (mean - om) / V
        return g, g**2

    def _posterior_mean(
        self, parameters: Parameters, y: Numeric, om: Numeric, V: Scalar
    ) -> Float[Numeric, " n"]:
        """E[z | y, om] for z ~ N(om, V), on panels broken at the kinks of the law."""
        law = self.law
        assert law is not None
        width = jnp.sqrt(V)
        edges = np.linspace(-REACH, REACH, self.panels + 1)
        edges = jnp.broadcast_to(edges, (om.shape[0], len(edges)))
        levels = [level * normal[0] for normal, level in law.kinks]
        if levels:
            own = jnp.clip((jnp.array(levels) - om[:, None]) / width, -REACH, REACH)
            edges = jnp.sort(jnp.concatenate([edges, own], axis=1), axis=1)
        nodes, weights = gauss_legendre(NODES)
        lengths = jnp.diff(edges, axis=1)[..., None]
        eta = (edges[:, :-1, None] + lengths * nodes).reshape(om.shape[0], -1)
        mass = (lengths * weights).reshape(om.shape[0], -1)

        def log_chance(y: Numeric, z: Numeric) -> Numeric:
            if isinstance(law, OutcomeLaw):
                chances = law.probabilities(z[None], parameters)
                chance = jnp.sum(jnp.where(jnp.asarray(law.values) == y, chances, 0.0))
                return jnp.log(chance)
            return law.log_p(y, z[None], parameters)

        z = om[:, None] + width * eta
        logs = jax.vmap(jax.vmap(log_chance, in_axes=(None, 0)))(y, z) - 0.5 * eta**2
        density = mass * jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True))
        return om + width * jnp.sum(density * eta, axis=1) / jnp.sum(density, axis=1)

    def _mean_without_noise(
        self, parameters: Parameters, y: Numeric, om: Numeric, V: Scalar
    ) -> Float[Numeric, " n"]:
        """E[z | f(z) = y, om]: the roots of f = y on a grid, weighted by N(z; om, V)/|f'|."""
        law = self.law
        assert isinstance(law, AdditiveLaw)
        reach = 9.0 * jnp.sqrt(_variance(parameters))
        grid = jnp.linspace(-reach, reach, CELLS + 1)
        f = jax.vmap(lambda z: law.function(z[None], parameters))(grid)
        size = grid[1] - grid[0]
        low, high = f[:-1] - y[:, None], f[1:] - y[:, None]
        is_flat = (low == 0) & (high == 0)
        crosses = ~is_flat & ((low * high < 0) | (low == 0))
        rise = jnp.where(crosses, high - low, 1.0)
        root = grid[:-1] - low * size / rise
        log_weight = -0.5 * (root - om[:, None]) ** 2 / V - jnp.log(jnp.abs(rise))
        log_weight = jnp.where(crosses, log_weight, -jnp.inf)
        # a label that a piece of positive length shares: its probability beats any density
        log_mass = jnp.where(is_flat, -0.5 * (grid[:-1] - om[:, None]) ** 2 / V, -jnp.inf)
        has_mass = jnp.any(is_flat, axis=1)[:, None]
        logs = jnp.where(has_mass, log_mass, log_weight)
        position = jnp.where(has_mass, grid[:-1] + 0.5 * size, root)
        peak = jnp.max(logs, axis=1, keepdims=True)
        density = jnp.exp(logs - jnp.where(jnp.isfinite(peak), peak, 0.0))
        total = jnp.sum(density, axis=1)
        nearest = grid[jnp.argmin(jnp.abs(f - y[:, None]), axis=1)]
        mean = jnp.sum(density * position, axis=1) / jnp.where(total > 0, total, 1.0)
        return jnp.where(total > 0, mean, nearest)

    def shrinkage(
        self, parameters: Parameters, fractions: Numeric, alpha: Scalar, L: Scalar
    ) -> tuple[Float[Numeric, " blocks"], Scalar]:
        """Return s_b of each block, and the next V."""
        eigenvalues = jnp.asarray(input_covariance.eigenvalues(parameters))
        if self.loss is not None:
            factors = 1.0 / (alpha * parameters["weight_decay"] + eigenvalues * L)
        else:
            power = jnp.asarray(parameters["gram"])[:, 0, 0]
            factors = power / (fractions + power * eigenvalues * L)
        return factors, jnp.sum(eigenvalues * fractions * factors)


def first_messages(
    problem: Problem, passing: MessagePassing, start: Start, samples: int, alpha: float
) -> Messages:
    """Return the messages of all runs before the first step."""
    eigenvalues = input_covariance.eigenvalues(problem.parameters)
    m = np.einsum("b,rb->r", eigenvalues, start.M_blocks[:, :, 0, 0])
    q = np.einsum("b,rb->r", eigenvalues, start.Q_blocks[:, :, 0, 0])
    V = passing.first_variance(problem, m, q, alpha)
    return Messages(np.zeros((len(m), samples)), V)


def _variance(parameters: Parameters) -> Any:
    """Variance of the signal."""
    gram = parameters["gram"][:, 0, 0]
    return (input_covariance.eigenvalues(parameters) * gram).sum()
