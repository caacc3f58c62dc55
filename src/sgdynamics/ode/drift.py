"""The drift of the overlaps and the head: the mean increment of one step.

With Omega_b the overlaps of covariance block b (eigenvalue l_b, fraction f_b of d), H, C,
E[dloss/da] as in `expectations.interface`, batch B and weight decay al, in the time t = lr steps/d:

    dM_b/dt = - l_b (H Omega_b)_signals - al M_b
    dQ_b/dt = - l_b [(H Omega_b)_students + transpose] - 2 al Q_b + (lr/B) l_b f_b C
    da/dt   = - head_rate (E[dloss/da] + al a)
    sphere: dM -= M dQ_ii/2,  dQ_ij -= Q_ij (dQ_ii + dQ_jj)/2

At finite d the mean increment of one step is exact with

    (lr/d) { (l_b/B) 2 D_b C + (1 - 1/B) l_b^2 H Omega_b H^T + al^2 Q_b
             + al l_b [(H Omega_b)_students + transpose] }

added to dQ_b, and on the sphere with the mean of the higher orders of the normalisation. Here
D_b C is the derivative of C with respect to the field covariance along l_b Omega_b.

Sources: Saad and Solla, Phys. Rev. E 52, 4225 (1995), for the limit with one block; Yoshida and
Okada, NeurIPS 2019, for blocks of a covariance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import special

from sgdynamics.base.arrays import Nodes, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.base.random import bartlett_factor
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import lower_root, sobol_normals, solve_forward
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.ode.case import Field, from_units, in_units
from sgdynamics.ode.static_top import head_slope, static_rate
from sgdynamics.problems.constraints import NONE
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.tops import head_decay
from sgdynamics.samples import input_covariance
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_batch import segment_inputs
from sgdynamics.simulation.chain_steps import chain_step
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.span_draws import SpanDraws

# Points per replicate. The remainder on the sphere is O(1/d), so that 1% accuracy is enough.
SPHERE_LOG2_POINTS = 11


def drift(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    state: State,
    *,
    batch: Scalar | int = 1,
    flow: bool = False,
    finite: dict[str, Any] | None = None,
    static: bool = False,
) -> dict[str, Numeric]:
    """Return d(M, Q, a)/dt at one state.

    `flow` leaves out the noise of the gradient (gradient flow, lr -> 0). With `static` the head
    stays at its optimum for the overlaps. `finite` contains 1/d and
    the block sizes for the exact mean increment at that d (`finite_dimension_inputs`).
    """
    p = structure.width
    M, Q, head = state["M"], state["Q"], state["a"]
    # A number, or a column with one number per row.
    decay, lr = parameters["weight_decay"], algorithm["lr"]
    decay_of_pairs = decay + jnp.swapaxes(decay, -1, -2) if jnp.ndim(decay) else 2 * decay
    overlaps = overlaps_at(structure, parameters, state)
    # H, C and E[dloss/da] at these overlaps
    moments = expectation_of(structure).moments(
        quadrature, nodes, parameters, overlaps, head, finite=finite is not None, flow=flow
    )
    coefficients = moments.coefficients(parameters)
    # l_b H Omega_b, with the columns of students first and of signals after them
    field_gradient = jnp.einsum("bic,bcd->bid", coefficients, overlaps.blocks)
    student_part, signal_part = field_gradient[..., :p], field_gradient[..., p:]
    symmetric_gradient = student_part + jnp.swapaxes(student_part, -1, -2)
    dM = -signal_part - decay * M
    dQ = -symmetric_gradient - decay_of_pairs * Q
    if not flow:
        # E[h h^T] |x_b|^2/d, the norm of a gradient outside of the rows and signals
        block_trace = input_covariance.block_traces(
            parameters, None if finite is None else finite["sizes"] * finite["inverse_dimension"]
        )
        dQ = dQ + (lr / batch) * block_trace[:, None, None] * moments.noise
        if finite is not None:
            # Products of increments inside of the frame: within one sample, and between the samples
            # of a batch, where the mean factorises into l_b^2 H Omega_b H^T.
            mean_gradient_gram = jnp.einsum("bid,bjd->bij", field_gradient, coefficients)
            norms: Any = moments.norms
            second_order = norms / batch + (1 - 1 / batch) * mean_gradient_gram
            if jnp.ndim(decay):
                decayed = decay * (decay.T * Q + jnp.swapaxes(student_part, -1, -2))
                second_order = second_order + decayed + decay.T * student_part
            else:
                second_order = second_order + decay**2 * Q + decay * symmetric_gradient
            dQ = dQ + lr * finite["inverse_dimension"] * second_order
    # First order of the normalisation; the higher ones matter at finite d only.
    dM, dQ = structure.constraint.project_overlap_rates(M, Q, dM, dQ)
    if structure.constraint.fixes_norms and finite is not None and not flow:
        # The remainder is a mean over the samples of one step: their number is static here.
        count = cast(int, batch)
        remainder = _sphere_remainder(structure, parameters, algorithm, state, count, finite)
        dM, dQ = dM + remainder["M"], dQ + remainder["Q"]
    if static:
        slope = partial(head_slope, structure, quadrature, nodes, parameters)
        da = static_rate(slope, state, dM, dQ)
    elif structure.trained:
        da = -algorithm["head_rate"] * (moments.head_gradient + head_decay(parameters) * head)
    else:
        da = jnp.zeros_like(head)
    return {"M": dM, "Q": dQ, "a": da}


@dataclass(frozen=True)
class MeanStep(Field):
    """The drift as a vector field of the integrator.

    `replicate` contains the nodes, and on the sphere at finite d also `points`; `shared` contains
    the parameters.

    The variable of integration is t, or alpha if the learning rate is a schedule; t is then the
    integral of (lr/batch) d alpha. All parameters are evaluated at alpha, also a batch size that is
    not an integer.
    """

    structure: Structure
    quadrature: Quadrature
    batch: int
    flow: bool
    static: bool = False
    symmetric = ("Q",)

    def __call__(self, replicate: PyTree, shared: Parameters, t: Scalar, state: State) -> State:
        lr, state = shared["algorithm"]["lr"], from_units(shared, state)
        # alpha = steps B/d = t B/lr at constant rate and batch
        constant_batch = shared["algorithm"].get("batch", self.batch)
        alpha = t if is_scheduled(lr) or self.flow else t * constant_batch / lr
        now = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, alpha)
        batch = now["algorithm"].get("batch", self.batch)
        finite = shared["finite"]
        if "points" in replicate:
            finite = {**finite, "points": replicate["points"]}
        rates = drift(
            self.structure,
            self.quadrature,
            replicate["nodes"],
            now["problem"],
            now["algorithm"],
            state,
            batch=batch,
            flow=self.flow,
            finite=finite,
            static=self.static,
        )
        rates = in_units(shared, rates)
        if not is_scheduled(lr):
            return rates
        # d/dalpha = (dt/dalpha) d/dt with dt/dalpha = lr/B
        return jax.tree.map(lambda value: value * (now["algorithm"]["lr"] / batch), rates)


def replicate_inputs(
    structure: Structure, quadrature: Quadrature, flow: bool, finite: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the replicated inputs of a `MeanStep` (nodes, points), and `finite` without points."""
    nodes = expectation_of(structure).nodes(quadrature, flow)
    if finite is None or "points" not in finite:
        return {"nodes": nodes}, finite
    # Nodes that are not sampled are repeated for each replicate of the points.
    nodes = {
        name: np.broadcast_to(value, (quadrature.replicates, *value.shape[1:]))
        for name, value in nodes.items()
    }
    return {"nodes": nodes, "points": finite["points"]}, {
        name: value for name, value in finite.items() if name != "points"
    }


def _sphere_remainder(
    structure: Structure,
    parameters: Parameters,
    algorithm: Parameters,
    state: State,
    batch: int,
    finite: dict[str, Any],
) -> dict[str, Numeric]:
    """Return the mean of the normalised overlaps minus their first-order expansion, per unit of t.

    With g_i = |w_i|^2 - 1 after the step and before the normalisation, s_i = sqrt(1 + g_i) and
    k_i = 1/s_i - 1 + g_i/2, the normalised overlaps are M_i/s_i and Q_ij/(s_i s_j). Their first
    order, (1 - g_i/2) M_i and (1 - g_i/2 - g_j/2) Q_ij, is part of `drift`. The mean is over Sobol
    points for the input, and the step is that of the exact chain, so that the result is the
    increment of the chain by construction.
    """
    # The step before the normalisation, which is applied by hand below.
    free = replace(structure, constraint=NONE)
    layout = Layout(free, batch, single_step=True)
    frame = parameters["frame"]
    # Rows W = [T | L] with these overlaps: M = T F^T with the frame F, Q = T T^T + L L^T.
    T = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(state["M"], -1, -2)), -1, -2)
    L = jax.vmap(lower_root)(state["Q"] - T @ jnp.swapaxes(T, -1, -2))
    rows = compressed.initial_rows(layout, T, L, state["a"])
    rate = algorithm["lr"] * finite["inverse_dimension"]

    def remainder(
        inside: Float[Numeric, "..."], noise: Float[Numeric, "..."], outside: Float[Numeric, "..."]
    ) -> dict[str, Numeric]:
        x, loss_arguments = segment_inputs(layout, parameters, SpanDraws(inside, noise, outside))
        sample = (x[0], jax.tree.map(lambda leaf: leaf[0], loss_arguments), outside)
        stepped = chain_step(layout, (parameters, algorithm), rate, rows, sample)
        after = compressed.overlaps(layout, parameters, stepped)
        change = {name: after[name] - state[name] for name in ("M", "Q")}
        g = jnp.einsum("bii->i", change["Q"])
        s = jnp.sqrt(1 + g)
        # k = 1/s - 1 + g/2 without cancellation, as g is of order 1/d; u = 1/s - 1
        k = g**2 * (s + 2) / (2 * s * (1 + s) ** 2)
        u = k - g / 2
        # The first order multiplies the overlaps before the step, hence the terms with `change`.
        first_order = (g[:, None] + g[None, :]) / 2
        higher_orders = k[:, None] + k[None, :] + u[:, None] * u[None, :]
        remainder_M = after["M"] * k[:, None] - change["M"] * g[:, None] / 2
        remainder_Q = after["Q"] * higher_orders - change["Q"] * first_order
        return {"M": remainder_M / rate, "Q": remainder_Q / rate}

    points = finite["points"]
    remainders = jax.vmap(remainder)(points["inside"], points["noise"], points["outside"])
    return jax.tree.map(lambda value: jnp.mean(value, axis=0), remainders)


@lru_cache(maxsize=16)
def _sphere_points(
    structure: Structure, batch: int, sizes: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Return Sobol points for the random numbers of one step, with a leading axis of replicates.

    They are the normals inside the frame, the label noise, and the Bartlett factors of the part
    outside at these block sizes.
    """
    from scipy import stats  # imported here, because it takes as long as a small solution

    layout = Layout(structure, batch, single_step=True)
    blocks, columns, sample = structure.blocks, layout.columns, structure.sample
    lower = columns * (columns - 1) // 2
    counts = [
        layout.inputs * blocks * layout.inside,
        batch * sample.normals_per_sample,
        blocks * lower,
        blocks * columns,
    ]
    replicates = Quadrature().replicates
    points = sobol_normals(sum(counts), SPHERE_LOG2_POINTS, replicates, whiten=False, seed=97)
    points = points.reshape(-1, sum(counts))
    inside, noise, below, diagonal = np.split(points, np.cumsum(counts)[:-1], axis=1)
    n = len(points)
    # Bartlett: the Gram matrix of Gaussian columns has a triangular root with chi variables on its
    # diagonal, here by the inverse distribution function, and normals below it.
    free = np.array(sizes)[:, None] - layout.inside - np.arange(columns)
    chi2 = stats.chi2.ppf(special.ndtr(diagonal).reshape(n, blocks, columns), np.maximum(free, 1))
    chi = np.where(free > 0, np.sqrt(chi2), 0.0)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        outside = np.asarray(bartlett_factor(below.reshape(n, blocks, lower), chi, free, columns))
    points_by_name = {
        "inside": inside.reshape(n, 1, batch, *sample.tokens.shape, blocks, layout.inside),
        "noise": noise.reshape(n, 1, batch, sample.normals_per_sample),
        "outside": outside,
    }
    return {
        name: value.reshape(replicates, n // replicates, *value.shape[1:])
        for name, value in points_by_name.items()
    }


def finite_dimension_inputs(problem: Problem, dimension: int, batch: int) -> dict[str, Any]:
    """Return the argument `finite` of `drift` at this dimension.

    On the sphere it contains `points` with a leading axis of replicates.
    """
    d, sizes = check_dimension(
        problem, dimension, small=not problem.structure.constraint.fixes_norms
    )
    finite: dict[str, Any] = {
        "inverse_dimension": np.float64(1.0 / d),
        "sizes": sizes.astype(np.float64),
    }
    if problem.structure.constraint.fixes_norms:
        finite["points"] = _sphere_points(problem.structure, batch, tuple(sizes.tolist()))
    return finite
