"""The diffusive limit: overlaps and head follow an SDE, whose noise has the covariance of one sample's increment.

With u(x) the increment of s = (M, Q, a) that one sample makes, per unit of lr/d, in the time t = lr steps/d:

    ds = E[u] dt + sqrt(lr/(d B)) Sigma^(1/2) dB_t,      Sigma = Cov(u)   (lr/B in place of lr inside u)
    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) h h^T,   u_a = - head_rate dloss/da
    (sphere: u_M -= M u_Qii/2,  u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2)

Paths are stepped in the factor form W = [T | L] and folded, so W W^T stays positive by construction:

- the drift by Heun's method: -E[h x^T] on the rows, and 2 p new columns whose Gram matrix is the mean (lr/B) E[h h^T];
- the kicks of a temperature T are noise of variance 2 T/d on the rows and, outside, columns whose Gram matrix grows by 2 T f_b;
- the noise needs no root of Sigma: with fresh samples x_s and normals g_s, (1/sqrt(S)) sum_s g_s (u(x_s) - E[u]) has covariance
  Sigma exactly, at any width and at singular overlaps;
- the part of the noise that h h^T makes acts on the folded factor: L L^T -> L (X + sqrt(1 + X^2)) L^T, X = eta - E[eta^2]/2, which
  has the noise L eta L^T to first order and the mean L L^T to second, is positive for every X, and grows no faster than X.

A covariance block with no more coordinates than columns is stepped in its coordinates: they have nothing outside, their noise is that of
the samples, and products of that noise with itself are kept (in a block of one coordinate they are all there is).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import (
    IntScalar,
    Nodes,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    Scalar,
)
from sgdynamics.base.controls import Schedule, piece_edges, values_at
from sgdynamics.base.padding import power_of_two
from sgdynamics.base.random import normals_and_uniforms
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import lower_root, solve_forward
from sgdynamics.expectations.risk import MARGIN, choose_quadrature, overlaps_at, population_risk
from sgdynamics.expectations.sampled import parameters_with_overlaps
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, factor, frames
from sgdynamics.results.clock import plan_steps
from sgdynamics.samples import input_covariance
from sgdynamics.simulation import compressed
from sgdynamics.simulation.running import UNSEEN, Advanced, See, Simulator, Watched, run

SAMPLES = 32  # fresh samples a step: the covariance is exact for any number, more of them make one step's noise more Gaussian
STEP_TOLERANCE = (
    2e-3  # relative error of the risk that the step length may make, on the noiseless path
)
FIRST_STEPS, MOST_STEPS = 64, 1 << 14
LARGEST = 1e100
SMALLEST = 1e-100  # rate of a step whose kicks are not 0/0


class SdeState(NamedTuple):
    """The state of a path: rows (blocks, p, K + p) and head (p)."""

    rows: Float[Numeric, "... blocks p fields"]
    head: Float[Numeric, "... p"]


class _Field(NamedTuple):
    """The drift at a state: E[h x^T] and what else moves the rows, the matrix that moves new columns, roots of their growth, E[da]."""

    pull: Any  # (blocks, p, K + p): E[h x^T] on the rows
    rows: Any  # d rows/dt
    columns: Any  # (blocks, p, p): d new/dt = - columns new
    root: Any  # (blocks or 1, p, p): a root of E[h h^T], in each block where inputs differ in size from one sample to another
    grown: Any  # (blocks, p, columns): the new columns' Gram matrix grows by that of these
    head: Any


def _signal_rows(structure: Structure, parameters: Parameters) -> Float[Numeric, "blocks K fields"]:
    """The signals in the compressed frame, (blocks, K, K + p)."""
    empty = jnp.zeros(
        (structure.blocks, structure.signals, structure.width), parameters["frame"].dtype
    )
    return jnp.concatenate(
        [jnp.broadcast_to(parameters["frame"], (*empty.shape[:2], structure.signals)), empty],
        axis=-1,
    )


def _overlaps(
    structure: Structure, parameters: Parameters, rows: Float[Numeric, "blocks p fields"]
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    M = jnp.einsum("bps,brs->bpr", rows[..., : structure.signals], parameters["frame"])
    return M, jnp.einsum("bpm,bqm->bpq", rows, rows)


def _field(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    numbers: Parameters,
    path: SdeState,
    extra: Float[Numeric, "blocks p p"],
) -> _Field:
    """The drift where the new columns have the Gram matrix `extra` (blocks, p, p)."""
    p = structure.width
    M, Q = _overlaps(structure, parameters, path.rows)
    Q = Q + extra
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q})
    found = expectation_of(structure).moments(quadrature, nodes, parameters, overlaps, path.head)
    every = jnp.concatenate([path.rows, _signal_rows(structure, parameters)], axis=1)
    pull = jnp.einsum("bic,bcm->bim", found.coefficients(parameters), every)
    decay = parameters["weight_decay"]
    growth = numbers["noise_rate"] * input_covariance.growth(parameters, numbers["outside"])
    columns = input_covariance.scaled(parameters, found.stein[..., :p]) + decay * jnp.eye(p)
    root = jax.vmap(lower_root)(found.noise.reshape(-1, p, p))
    grown = jnp.sqrt(growth)[:, None, None] * root
    if "temperature" in numbers:
        kicked = jnp.sqrt(2 * numbers["temperature"] * numbers["outside"])
        grown = jnp.concatenate([grown, kicked[:, None, None] * jnp.eye(p)], axis=-1)
    if found.pull is not None:
        columns = columns + found.pull[..., :p]
    if structure.constraint.fixes_norms:
        # half the growth of |w_i|^2, taken off again
        norms = (
            -jnp.einsum("bim,bim->i", pull, path.rows)
            - jnp.einsum("bij,bij->i", columns, extra)
            - decay
        )
        norms = (
            norms
            + decay * jnp.einsum("bii->i", extra)
            + 0.5 * jnp.einsum("bij,bij->i", grown, grown)
        )
    else:
        norms = jnp.zeros(p)
    drift = -pull - (decay + norms)[:, None] * path.rows
    head = (
        -algorithm["head_rate"] * (found.head_gradient + decay * path.head)
        if structure.trained
        else jnp.zeros_like(path.head)
    )
    return _Field(pull, drift, columns + jnp.diag(norms), root, grown, head)


class _Noise(NamedTuple):
    """Samples of one step: gradients h C^1/2 (S, blocks or 1, p, tokens), in units of the blocks' eigenvalues; increments less the mean of
    rows (S, blocks, p, K + p) and head (S, p)."""

    h: Any
    rows: Any
    head: Any


def _samples(
    structure: Structure,
    parameters: Parameters,
    algorithm: Parameters,
    path: SdeState,
    field: _Field,
    drawn: tuple[
        Float[Numeric, "samples normals"], Float[Numeric, "samples blocks p fields"] | None
    ],
) -> _Noise:
    """What each of a step's samples does beyond the mean, from its normals and those of its kicks."""
    normals, kicks = drawn
    sample, count = structure.sample, SAMPLES * structure.sample.inputs_a_sample
    z, draws = (
        normals[:, : -sample.draw_normals],
        sample.drawn(parameters, normals[:, -sample.draw_normals :]),
    )
    z = z.reshape(-1, *sample.token_shape, structure.blocks, structure.fields)
    if "inside" in parameters:  # coordinates that a block does not have
        z = z * parameters["inside"]
    x = sample.inputs(parameters, z, draws)
    x = x.reshape(count, structure.blocks, structure.fields)
    fields = jnp.einsum("bpm,sbm->sp", path.rows, x)
    seen, rest = x[..., : structure.signals], 0.0
    if sample.noisy_inputs:  # signals are those of the inputs without noise
        share, rest = sample.seen_signals(parameters, draws)
        seen = seen * share[..., None]
    signals = jnp.einsum("brk,sbk->sr", parameters["frame"], seen) + rest
    M, Q = _overlaps(structure, parameters, path.rows)
    reading = parameters_with_overlaps(
        structure, parameters, overlaps_at(structure, parameters, {"M": M, "Q": Q})
    )
    h, head_gradient, pulls = compressed.sample_moves(
        structure, reading, fields, signals, path.head, sample.given(draws)
    )
    each = h[:, None, :, None] * x[:, :, None, :]
    each = each.reshape(SAMPLES, -1, *each.shape[1:]).sum(axis=1)
    if pulls is not None:
        each = each + jnp.einsum(
            "sbic,bcm->sbim" if structure.loss.moves_by_block else "sic,bcm->sbim",
            pulls,
            jnp.concatenate([path.rows, _signal_rows(structure, parameters)], axis=1),
        )
    rows = -(each - field.pull)
    if kicks is not None:
        rows = (
            rows + kicks
            if "inside" not in parameters
            else rows + kicks * parameters["inside"][:, None]
        )
    head = jnp.zeros_like(head_gradient)
    if structure.trained:
        head = (
            -algorithm["head_rate"] * (head_gradient + parameters["weight_decay"] * path.head)
            - field.head
        )
    mixed = jnp.moveaxis(
        sample.mixed_inputs(parameters, h.T).reshape(structure.width, SAMPLES, -1), 0, 1
    )[:, None]
    if sample.noisy_inputs or sample.own_spectra:
        sizes = sample.spread(parameters, draws) / jnp.sqrt(
            input_covariance.eigenvalues(parameters)
        )
        mixed = jnp.broadcast_to(sizes, (SAMPLES, structure.blocks))[..., None, None] * mixed
    return _Noise(mixed, rows, head)


def _second_order(
    structure: Structure,
    parameters: Parameters,
    path: SdeState,
    e: Float[Numeric, "samples blocks p fields"],
    zeta: Float[Numeric, "#samples blocks p p"],
    scale: Scalar,
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    """What products of increments with themselves add to the mean of M and Q (blocks first): `scale` times the average over samples.

    e_i is the increment of row i (S, blocks, p, K + p), zeta_ij that of the new columns' Gram matrix (S, blocks, p, p),
    s_ij = w_i.e_j + w_j.e_i + zeta_ij, r_i = s_ii/2, mu_i = e_i.w*, n_i = 3 r_i^2/2 - |e_i|^2/2:
    free: Q'' = E[e_i.e_j];  sphere: M'' = E[-r_i mu_i + M_i n_i],  Q'' = E[e_i.e_j - s_ij (r_i + r_j) + Q_ij (n_i + n_j + r_i r_j)].
    """
    share = scale / e.shape[0]
    products = jnp.einsum("sbim,sbjm->sbij", e, e)
    if not structure.constraint.fixes_norms:
        return jnp.zeros_like(path.rows[..., : structure.signals]), share * jnp.sum(
            products, axis=0
        )
    M, Q = _overlaps(structure, parameters, path.rows)
    across = jnp.einsum("bim,sbjm->sbij", path.rows, e)
    s = across + jnp.swapaxes(across, -1, -2) + zeta
    r = jnp.einsum("sbii->si", s) / 2
    n = 1.5 * r**2 - jnp.einsum("sbii->si", products) / 2
    mu = jnp.einsum("sbim,brm->sbir", e, _signal_rows(structure, parameters))
    M2 = -r[:, None, :, None] * mu + M * n[:, None, :, None]
    both = n[:, :, None] + n[:, None, :] + r[:, :, None] * r[:, None, :]
    Q2 = products - s * (r[:, :, None] + r[:, None, :])[:, None] + Q * both[:, None]
    return share * jnp.sum(M2, axis=0), share * jnp.sum(Q2, axis=0)


def sde_step(
    structure: Structure,
    quadrature: Quadrature,
    higher_order: bool,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    numbers: Parameters,
    path: SdeState,
    length: Scalar,
    key: RandomKey,
) -> SdeState:
    """One step of the given length in t.

    `numbers`: noise_rate = lr/B, inverse_dimension, shares (block sizes over d), outside (less the columns inside), amount of noise, and
    the temperature where there is one.
    """
    k, raw = structure.signals, numbers.get("raw")
    here, drifted, new = _drifted(
        partial(_field, structure, quadrature, nodes, parameters, algorithm, numbers), path, length
    )
    g, normals, kicks = _step_normals(structure, key, "temperature" in numbers)
    if (
        kicks is not None
    ):  # a step's kicks beside the increment of one of its samples, both in units of sqrt(lr/(d B))
        kicks = (
            jnp.sqrt(2 * numbers["temperature"] / jnp.maximum(numbers["noise_rate"], SMALLEST))
            * kicks
        )
    noise = _samples(structure, parameters, algorithm, path, here, (normals, kicks))
    scale = numbers["amount"] * numbers["noise_rate"] * numbers["inverse_dimension"] * length
    weights = jnp.sqrt(scale / SAMPLES) * g
    rows = drifted.rows + jnp.einsum("s,sbim->bim", weights, noise.rows)
    head = drifted.head + weights @ noise.head
    L = _folded(jnp.concatenate([rows[..., k:], new], axis=-1))
    if raw is not None:  # with nothing outside; what is not used below must not be singular
        L = jnp.where(raw[:, None, None], jnp.eye(structure.width), L)
    # all of |x|^2, not only what lies outside
    swing = (numbers["noise_rate"] * input_covariance.growth(parameters, numbers["shares"]))[
        :, None, None
    ]
    X = _gram_noise(L, noise.h, here.root, swing, weights, scale)
    mean_gram = here.root @ jnp.swapaxes(here.root, -1, -2)
    if higher_order:
        # products of the mean increment with itself: what a step of length lr/d does beyond the flow
        mean_rows = -(here.pull + parameters["weight_decay"] * path.rows)[None]
        step = length * algorithm["lr"] * numbers["inverse_dimension"]
        M2, Q2 = _second_order(
            structure, parameters, path, mean_rows, (swing * mean_gram)[None], step
        )
    else:
        gram = swing * (jnp.einsum("scil,scjl->scij", noise.h, noise.h) - mean_gram)
        M2, Q2 = _second_order(structure, parameters, path, noise.rows, gram, -scale)
    return SdeState(_moved(structure, parameters, rows, L, X, M2, Q2, raw), head)


def _drifted(
    field: Callable[[SdeState, Any], _Field], path: SdeState, length: Scalar
) -> tuple[_Field, SdeState, Float[Numeric, "blocks p columns"]]:
    """The drift at the state, the state after a step of it by Heun's rule, and the columns (blocks, p, 2p) that |x|^2 adds to the rows."""
    blocks, p, _ = path.rows.shape
    here = field(path, jnp.zeros((blocks, p, p)))
    grown = length * here.grown @ jnp.swapaxes(here.grown, -1, -2)
    ahead = field(SdeState(path.rows + length * here.rows, path.head + length * here.head), grown)
    rows = path.rows + length / 2 * (here.rows + ahead.rows)
    head = path.head + length / 2 * (here.head + ahead.head)
    # the trapezoid rule for the new columns, as a sum of squares
    carried = (jnp.eye(p) - length * ahead.columns) @ here.grown
    return (
        here,
        SdeState(rows, head),
        jnp.sqrt(length / 2) * jnp.concatenate([carried, ahead.grown], axis=-1),
    )


def _step_normals(
    structure: Structure, key: RandomKey, hot: bool
) -> tuple[
    Float[Numeric, " samples"],
    Float[Numeric, "samples normals"],
    Float[Numeric, "samples blocks p fields"] | None,
]:
    """The random numbers of a step: one weight a sample, the normals that each sample is made of, and those of its kicks."""
    each = (
        structure.sample.inputs_a_sample * structure.blocks * structure.fields
        + structure.sample.draw_normals
    )
    kicks = (structure.blocks, structure.width, structure.fields) if hot else (0,)
    normals, _ = normals_and_uniforms(key, SAMPLES * (each + 1 + int(np.prod(kicks))), 0)
    g, made, kicked = jnp.split(normals, [SAMPLES, SAMPLES * (each + 1)])
    return g, made.reshape(SAMPLES, -1), kicked.reshape(SAMPLES, *kicks) if hot else None


def _gram_noise(
    L: Float[Numeric, "blocks p p"],
    h: Float[Numeric, "... #blocks p tokens"],
    root: Float[Numeric, "#blocks p p"],
    swing: Float[Numeric, "blocks 1 1"],
    weights: Float[Numeric, " samples"],
    scale: Scalar,
) -> Float[Numeric, "blocks p p"]:
    """The noise of h h^T, seen from L: the weighted sum of eta = L^-1 (h h^T - C) L^-T over samples, less half of its square's mean."""
    blocks, p, _ = L.shape
    every = jnp.concatenate([jnp.moveaxis(h, 0, 2).reshape(len(root), p, -1), root], axis=-1)
    inward = jax.vmap(solve_forward)(L, jnp.broadcast_to(every, (blocks, *every.shape[1:])))
    seen, mean = inward[..., :-p].reshape(blocks, p, SAMPLES, -1), inward[..., -p:]
    eta = swing * (jnp.einsum("bisl,bjsl->sbij", seen, seen) - mean @ jnp.swapaxes(mean, -1, -2))
    return jnp.einsum("s,sbij->bij", weights, eta) - scale / (2 * SAMPLES) * jnp.einsum(
        "sbij,sbjk->bik", eta, eta
    )


def _moved(
    structure: Structure,
    parameters: Parameters,
    before: Float[Numeric, "blocks p fields"],
    L: Float[Numeric, "blocks p p"],
    X: Float[Numeric, "blocks p p"],
    M2: Float[Numeric, "blocks p K"],
    Q2: Float[Numeric, "blocks p p"],
    raw: Bool[Numeric, " blocks"] | None = None,
) -> Float[Numeric, "blocks p fields"]:
    """Rows [T | L] whose M and Q have moved by M2 and Q2, and whose L L^T by L X L^T; X goes through an exponential: Q stays >= 0.

    `raw` blocks, whose coordinates have moved already, stay as they are `before`.
    """
    T, frame = before[..., : structure.signals], parameters["frame"]
    if raw is not None:
        frame = jnp.where(raw[:, None, None], jnp.eye(structure.signals), frame)
    T2 = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(M2, -1, -2)), -1, -2)
    cross = T @ jnp.swapaxes(T2, -1, -2)
    half = jax.vmap(solve_forward)(L, Q2 - cross - jnp.swapaxes(cross, -1, -2))
    X = X + jax.vmap(solve_forward)(L, jnp.swapaxes(half, -1, -2))
    values, vectors = jnp.linalg.eigh((X + jnp.swapaxes(X, -1, -2)) / 2)
    L = L @ (vectors * jnp.exp(jnp.arcsinh(values) / 2)[:, None, :])
    rows = jnp.concatenate([T + T2, L], axis=-1)
    if raw is not None:
        rows = jnp.where(raw[:, None, None], before, rows)
    return structure.constraint.project_rows(rows, axes=(0, 2))


def _folded(rest: Float[Numeric, "blocks p columns"]) -> Float[Numeric, "blocks p p"]:
    """A lower-triangular L with the Gram matrix of `rest` (blocks, p, columns)."""
    return jnp.swapaxes(jnp.linalg.qr(jnp.swapaxes(rest, -1, -2), mode="r"), -1, -2)


class Stepped(Simulator):
    """A simulator whose steps have lengths: steps edges[i]..edges[i+1] have length lengths[i], in t; in alpha where lr is a schedule."""

    def set_steps(self, edges: np.ndarray, lengths: np.ndarray) -> None:
        # filled up to a power of two, so that nearby numbers of save points share one compilation
        room = power_of_two(len(lengths)) - len(lengths)
        self.edges = np.concatenate([edges, np.full(room, np.iinfo(np.int64).max)])
        self.lengths = np.concatenate(
            [lengths, np.full(room, lengths[-1] if len(lengths) else 0.0)]
        )
        self.begins = np.concatenate(
            [[0.0], np.cumsum(np.diff(edges) * lengths)[:-1], np.zeros(room)]
        )

    @property
    def grain(self) -> int:
        return 1


def raw_blocks(problem: Problem, sizes: np.ndarray) -> np.ndarray:
    """Which covariance blocks are stepped in their coordinates: those of a spectrum with no more of them than signals and rows."""
    return (sizes <= problem.structure.fields) & (len(sizes) > 1)


class SdePaths(Stepped):
    """Paths of the SDE; a step of the simulator is one step of the scheme, whose length depends on the interval between save points."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        higher_order: bool,
        amount: float = 1.0,
    ) -> None:
        self.structure = problem.structure
        self.quadrature = choose_quadrature(problem, begin.Q_blocks, MARGIN)
        nodes = expectation_of(self.structure).nodes(self.quadrature, flow=False)
        self.nodes = {name: value[0] for name, value in nodes.items()}
        self.parameters = problem.parameters
        self.algorithm = algorithm.parameters
        raw = raw_blocks(problem, sizes)
        higher_order = higher_order or bool(raw.any())
        self.higher_order = higher_order
        inside = self.structure.fields if higher_order else 0
        self.numbers = {
            "batch": np.float64(
                algorithm.batch if algorithm.counts else np.nan
            ),  # any other is among the algorithm's
            "inverse_dimension": np.float64(1.0 / dimension),
            "outside": np.where(raw, 0, sizes - inside) / dimension,
            "shares": np.where(raw, 0, sizes) / dimension,
            "amount": np.float64(amount),
        }
        if raw.any():
            self.numbers["raw"] = raw
            there = (np.arange(self.structure.fields) < sizes[:, None]).astype(np.float64)
            self.parameters = {**self.parameters, "frame": frames(problem, sizes), "inside": there}
        T, L = factor(problem, begin, sizes)
        self.rows = np.concatenate([T, L], axis=-1)
        self.head = begin.a

    def initial(self, chosen: np.ndarray) -> SdeState:
        return SdeState(jnp.asarray(self.rows[chosen]), jnp.asarray(self.head[chosen]))

    def advance(
        self, state: SdeState, keys: RandomKeys, since: int, end: int, watch: Watched = UNSEEN
    ) -> Advanced:
        numbers = (
            self.nodes,
            self.parameters,
            self.algorithm,
            self.numbers,
            self.edges,
            self.lengths,
            self.begins,
        )
        plan = (self.structure, self.quadrature, self.higher_order)
        return _advance_paths(
            plan,
            watch.see,
            numbers,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            watch.seen,
            watch.given,
        )

    def overlaps(self, state: SdeState) -> dict[str, Any]:
        return _path_overlaps(self.structure, self.parameters, state)


@partial(jax.jit, static_argnums=0)
def _path_overlaps(structure: Structure, parameters: Parameters, state: SdeState) -> dict[str, Any]:
    M, Q = jax.vmap(lambda rows: _overlaps(structure, parameters, rows))(state.rows)
    return {"M": M, "Q": Q, "a": state.head}


@partial(jax.jit, static_argnums=(0, 1))
def _advance_paths(
    plan: tuple[Any, ...],
    see: See | None,
    given: tuple[Any, ...],
    state: SdeState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    watched: PyTree,
) -> tuple[SdeState, Int[Numeric, " runs"], Any]:
    (
        (structure, quadrature, higher_order),
        (nodes, parameters, algorithm, numbers, edges, lengths, begins),
    ) = plan, given

    def step(
        number: IntScalar, carry: tuple[SdeState, Any, Any]
    ) -> tuple[SdeState, Int[Numeric, " runs"], Any]:
        state, last_good, seen = carry
        place = jnp.searchsorted(edges, number, side="right") - 1
        length, middle = (
            lengths[place],
            begins[place] + (number - edges[place] + 0.5) * lengths[place],
        )
        in_alpha = isinstance(
            algorithm["lr"], Schedule
        )  # steps are in alpha then, and in t elsewhere
        batch = algorithm.get("batch", numbers["batch"])
        now, rates = values_at(
            (parameters, algorithm), middle if in_alpha else middle * batch / algorithm["lr"]
        )
        scales = {**numbers, "noise_rate": rates["lr"] / rates.get("batch", numbers["batch"])}
        if (
            "update" in rates
        ):  # no other one has paths than that of a temperature, which counts lengths in units of D
            scales["temperature"] = rates["update"]["temperature"] / rates.get("unit", 1.0)
        length = length * scales["noise_rate"] if in_alpha else length

        def one(path: SdeState, key: RandomKey, seen: PyTree) -> tuple[SdeState, Any]:
            key = jax.random.fold_in(key, number)
            path = sde_step(
                structure, quadrature, higher_order, nodes, now, rates, scales, path, length, key
            )
            if see is not None:
                M, Q = _overlaps(structure, parameters, path.rows)
                seen = see(watched, seen, number + 1, {"M": M, "Q": Q, "a": path.head})
            return path, seen

        state, seen = jax.vmap(one)(state, keys, seen)
        fine = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2, 3)) & jnp.all(
            jnp.abs(state.head) < LARGEST, axis=1
        )
        return state, jnp.where(fine, number + 1, last_good), seen

    return jax.lax.fori_loop(since, end, step, (state, jnp.broadcast_to(since, keys.shape), seen))


def with_edges(parameters: Parameters, algorithm: OnePassSGD, places: np.ndarray) -> np.ndarray:
    """Increasing places of the integration, with those before the last at which pieces of schedules begin: no step goes across these."""
    edges = piece_edges((parameters, algorithm.parameters))
    if not algorithm.scheduled:
        edges = edges * (float(algorithm.lr) / float(algorithm.batch))
    return np.union1d(places, edges[edges < places[-1]])


def sde_step_length(
    problem: Problem,
    algorithm: OnePassSGD,
    begin: Start,
    dimension: int,
    sizes: np.ndarray,
    end: float,
) -> tuple[float, float]:
    """A step length whose error on the noiseless path from the first start is below STEP_TOLERANCE, and that error."""
    first = Start(begin.M_blocks[:1], begin.Q_blocks[:1], begin.a[:1])
    simulator = SdePaths(problem, algorithm, first, dimension, sizes, True, amount=0.0)
    times = with_edges(problem.parameters, algorithm, np.linspace(0, end, 17))
    before = None
    count, error = FIRST_STEPS, np.inf
    while True:
        edges, lengths = plan_steps(times, end / count)
        simulator.set_steps(edges, lengths)
        overlaps, _ = run(simulator, 1, edges, 0, "step length", False)
        # with the numbers of the start: a scale for the error, no more
        risk, _ = population_risk(problem.at(0.0), overlaps)
        if before is not None:
            error = float(np.max(np.abs(risk - before)) / np.max(np.abs(before)))
            # of second order: this path is off by a third of what the halving changed
            if error / 3 <= STEP_TOLERANCE or count >= MOST_STEPS:
                return end / count, error / 3
        before, count = risk, 2 * count
