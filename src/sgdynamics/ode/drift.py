"""The drift of the overlaps and the head: the mean increment of one step.

With Omega_b the overlaps of covariance block b (eigenvalue l_b, fraction f_b of d), H, C,
E[dloss/da] as in `expectations.interface`, batch B and weight decay al, in the time t = lr steps/d:

    dM_b/dt = - l_b (H Omega_b)_signals - al M_b
    dQ_b/dt = - l_b [(H Omega_b)_students + transpose] - 2 al Q_b + (lr/B) l_b f_b C
    da/dt   = - head_rate (E[dloss/da] + al a)
    sphere: dM -= M dQ_ii/2,  dQ_ij -= Q_ij (dQ_ii + dQ_jj)/2

At finite d the mean increment of one step is exact with

    (lr/d) { (l_b/B) 2 D_b C + (1 - 1/B) l_b^2 H Omega_b H^T + al^2 Q_b + al l_b [(H
    Omega_b)_students + transpose] }

added to dQ_b, and on the sphere with the mean of what normalising the rows does beyond first order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

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
from sgdynamics.ode.integrate import Field, from_units, in_units
from sgdynamics.problems.constraints import NONE
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.samples import input_covariance
from sgdynamics.simulation import compressed

SPHERE_LOG2_POINTS = (
    11  # a replicate; the remainder on the sphere is O(1/d), a percent of it is plenty
)


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
) -> dict[str, Any]:
    """d(M, Q, a)/dt; `finite` holds 1/d and the block sizes over d for the exact mean increment at that d."""
    p = structure.width
    M, Q, head = state["M"], state["Q"], state["a"]
    decay, lr = parameters["weight_decay"], algorithm["lr"]
    overlaps = overlaps_at(structure, parameters, state)
    found = expectation_of(structure).moments(
        quadrature, nodes, parameters, overlaps, head, finite=finite is not None, flow=flow
    )
    coefficients = found.coefficients(parameters)
    pull = jnp.einsum("bic,bcd->bid", coefficients, overlaps.blocks)
    inward = pull[..., :p] + jnp.swapaxes(pull[..., :p], -1, -2)
    dM = -pull[..., p:] - decay * M
    dQ = -inward - 2 * decay * Q
    if not flow:
        growth = input_covariance.block_traces(
            parameters, None if finite is None else finite["sizes"] * finite["inverse_dimension"]
        )
        dQ = dQ + (lr / batch) * growth[:, None, None] * found.noise
        if finite is not None:
            tilt = jnp.einsum("bid,bjd->bij", pull, coefficients)
            more = found.norms / batch + (1 - 1 / batch) * tilt
            dQ = dQ + lr * finite["inverse_dimension"] * (more + decay**2 * Q + decay * inward)
    dM, dQ = structure.constraint.project_overlap_rates(M, Q, dM, dQ)
    if structure.constraint.fixes_norms and finite is not None and not flow:
        rest = _sphere_remainder(structure, parameters, algorithm, state, batch, finite)
        dM, dQ = dM + rest["M"], dQ + rest["Q"]
    da = (
        -algorithm["head_rate"] * (found.head_gradient + decay * head)
        if structure.trained
        else jnp.zeros_like(head)
    )
    return {"M": dM, "Q": dQ, "a": da}


@dataclass(frozen=True)
class MeanStep(Field):
    """The drift as a field of the solve core: `each` has the nodes, on the sphere at finite d `points` too; `shared` the numbers.

    Its variable is t, or with a learning rate that depends on alpha, alpha: t is the integral of
    lr/batch. All numbers are read at alpha; so is a batch that stands among them, where it is no
    whole number.
    """

    structure: Structure
    quadrature: Quadrature
    batch: int
    flow: bool
    symmetric = ("Q",)

    def __call__(self, each: PyTree, shared: Parameters, t: Scalar, state: State) -> Any:
        lr, state = shared["algorithm"]["lr"], from_units(shared, state)
        constant = shared["algorithm"].get("batch", self.batch)
        alpha = t if is_scheduled(lr) or self.flow else t * constant / lr
        now = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, alpha)
        batch = now["algorithm"].get("batch", self.batch)
        finite = (
            shared["finite"]
            if "points" not in each
            else {**shared["finite"], "points": each["points"]}
        )
        setting = {"batch": batch, "flow": self.flow, "finite": finite}
        moved = in_units(
            shared,
            drift(
                self.structure,
                self.quadrature,
                each["nodes"],
                now["problem"],
                now["algorithm"],
                state,
                **setting,
            ),
        )
        return (
            jax.tree.map(lambda value: value * (now["algorithm"]["lr"] / batch), moved)
            if is_scheduled(lr)
            else moved
        )


def replicated(
    structure: Structure, quadrature: Quadrature, flow: bool, finite: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a `MeanStep` takes with a leading axis of replicates (nodes, points), and `finite` without its points."""
    nodes = expectation_of(structure).nodes(quadrature, flow)
    if finite is None or "points" not in finite:
        return {"nodes": nodes}, finite
    # what is not sampled goes once with each replicate of what is
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
    batch: Any,
    finite: dict[str, Any],
) -> dict[str, Any]:
    """Mean over one step of (normalised overlaps - their expansion to first order in the step), per unit of t.

    It runs the chain's own step on Sobol points for the input, so it is the increment of the chain
    by construction.
    """
    free = replace(structure, constraint=NONE)
    grouping = compressed.Grouping(free, batch, single=True)
    frame = parameters["frame"]
    T = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(state["M"], -1, -2)), -1, -2)
    L = jax.vmap(lower_root)(state["Q"] - T @ jnp.swapaxes(T, -1, -2))
    rows = compressed.initial_rows(grouping, T, L, state["a"])
    rate = algorithm["lr"] * finite["inverse_dimension"]

    def one(
        inside: Float[Numeric, "..."], noise: Float[Numeric, "..."], outside: Float[Numeric, "..."]
    ) -> dict[str, Any]:
        x, given = compressed.block_inputs(
            grouping, parameters, compressed.SpanDraws(inside, noise, outside)
        )
        sample = (x[0], jax.tree.map(lambda one: one[0], given), outside)
        moved = compressed.one_step(grouping, (parameters, algorithm), rate, rows, sample)
        after = compressed.overlaps(grouping, parameters, moved)
        change = {name: after[name] - state[name] for name in ("M", "Q")}
        g = jnp.einsum("bii->i", change["Q"])
        s = jnp.sqrt(1 + g)
        # 1/s - 1 + g/2 without cancellation: g is of order 1/d
        k = g**2 * (s + 2) / (2 * s * (1 + s) ** 2)
        u = k - g / 2
        both = (g[:, None] + g[None, :]) / 2
        rest_M = after["M"] * k[:, None] - change["M"] * g[:, None] / 2
        rest_Q = (
            after["Q"] * (k[:, None] + k[None, :] + u[:, None] * u[None, :]) - change["Q"] * both
        )
        return {"M": rest_M / rate, "Q": rest_Q / rate}

    points = finite["points"]
    every = jax.vmap(one)(points["inside"], points["noise"], points["outside"])
    return jax.tree.map(lambda value: jnp.mean(value, axis=0), every)


@lru_cache(maxsize=16)
def _sphere_points(
    structure: Structure, batch: int, sizes: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Sobol points for one step's random numbers: inside normals, label noise, Bartlett factors at these block sizes.

    A leading axis of replicates, as for every expectation that is sampled.
    """
    from scipy import stats  # here: its import takes as long as a small solution

    grouping = compressed.Grouping(structure, batch, single=True)
    blocks, columns, sample = structure.blocks, grouping.columns, structure.sample
    lower = columns * (columns - 1) // 2
    counts = [
        grouping.inputs * blocks * grouping.inside,
        batch * sample.normals_per_sample,
        blocks * lower,
        blocks * columns,
    ]
    replicates = Quadrature().replicates
    points = sobol_normals(sum(counts), SPHERE_LOG2_POINTS, replicates, whiten=False, seed=97)
    points = points.reshape(-1, sum(counts))
    inside, noise, below, diagonal = np.split(points, np.cumsum(counts)[:-1], axis=1)
    n = len(points)
    free = np.array(sizes)[:, None] - grouping.inside - np.arange(columns)
    chi2 = stats.chi2.ppf(special.ndtr(diagonal).reshape(n, blocks, columns), np.maximum(free, 1))
    chi = np.where(free > 0, np.sqrt(chi2), 0.0)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        outside = np.asarray(bartlett_factor(below.reshape(n, blocks, lower), chi, free, columns))
    found = {
        "inside": inside.reshape(n, 1, batch, *sample.tokens.shape, blocks, grouping.inside),
        "noise": noise.reshape(n, 1, batch, sample.normals_per_sample),
        "outside": outside,
    }
    return {
        name: value.reshape(replicates, n // replicates, *value.shape[1:])
        for name, value in found.items()
    }


def finite_numbers(problem: Problem, dimension: int, batch: int) -> dict[str, Any]:
    """What `drift` needs to know of a finite dimension.

    On the sphere also `points`, with a leading axis of replicates.
    """
    d, sizes = check_dimension(
        problem, dimension, small=not problem.structure.constraint.fixes_norms
    )
    numbers: dict[str, Any] = {
        "inverse_dimension": np.float64(1.0 / d),
        "sizes": sizes.astype(np.float64),
    }
    if problem.structure.constraint.fixes_norms:
        numbers["points"] = _sphere_points(problem.structure, batch, tuple(sizes.tolist()))
    return numbers
