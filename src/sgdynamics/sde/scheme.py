"""The diffusive limit: an SDE whose noise has the covariance of one increment.

Let u(x) be the increment of s = (M, Q, a) due to one sample, per unit of lr/d. In the time
t = lr steps/d,

    ds = E[u] dt + sqrt(lr/(d B)) Sigma^(1/2) dB_t,      Sigma = Cov(u)   (lr/B replaces lr in u)
    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) h h^T,
    u_a = - head_rate dloss/da
    (sphere: u_M -= M u_Qii/2,  u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2).

Paths are integrated in the factor form W = [T | L], so that W W^T stays positive by construction:

- The drift is integrated by Heun's method: -E[h x^T] acts on the rows, and 2 p additional columns
  carry the mean (lr/B) E[h h^T] as their Gram matrix.
- A temperature T adds noise of variance 2 T/d to the rows and, outside of them, columns whose Gram
  matrix grows by 2 T f_b, with f_b the fraction of block b.
- The noise needs no square root of Sigma: with fresh samples x_s and normals g_s, the sum
  (1/sqrt(S)) sum_s g_s (u(x_s) - E[u]) has covariance Sigma exactly, at any width and overlaps.
- The part of the noise due to h h^T acts on the folded factor, L L^T -> L (X + sqrt(1 + X^2)) L^T
  with X = eta - E[eta^2]/2. This has the noise L eta L^T to first order and the mean L L^T to
  second order, is positive for every X, and grows no faster than X.

A covariance block with no more coordinates than columns ("raw") is integrated in its coordinates.
It has nothing outside of them, its noise is that of the samples, and products of the noise with
itself are kept (in a block of one coordinate there is nothing else).
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
from sgdynamics.problems.frames import compressed_rows, signal_frames
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.results.clock import plan_steps
from sgdynamics.samples import input_covariance
from sgdynamics.samples.inputs import clean_signals, compressed_inputs, sample_scale
from sgdynamics.simulation.running import (
    LARGEST,
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
    run,
)
from sgdynamics.simulation.sample_moves import sample_moves

# Fresh samples per step. The covariance is exact for any number; more samples make the noise of one
# step more Gaussian.
SAMPLES = 32
# Relative error of the risk due to the step length, on the noiseless path.
STEP_TOLERANCE = 2e-3
FIRST_STEPS, MOST_STEPS = 64, 1 << 14
# Lower bound of lr/B, so that thermal noise in units of sqrt(lr/(d B)) is not 0/0.
SMALLEST = 1e-100


class SdeState(NamedTuple):
    """The state of a path: rows (blocks, p, K + p) and head (p)."""

    rows: Float[Numeric, "... blocks p fields"]
    head: Float[Numeric, "... p"]


class _Drift(NamedTuple):
    """The drift at a state, in factor form.

    Attributes
    ----------
    pull : array, (blocks, p, K + p)
        E[h x^T] in the compressed frame.
    rows : array, (blocks, p, K + p)
        Time derivative of the rows.
    columns : array, (blocks, p, p)
        Matrix A of the additional columns N, dN/dt = - A N.
    root : array, (blocks or 1, p, p)
        Square root of E[h h^T]; per block if the input norms vary between samples.
    sources : array, (blocks, p, columns)
        Columns whose Gram matrix is the growth rate of the Gram matrix of N.
    head : array, (p,)
        Time derivative of the head.
    """

    pull: Float[Numeric, "blocks p fields"]
    rows: Float[Numeric, "blocks p fields"]
    columns: Float[Numeric, "blocks p p"]
    root: Float[Numeric, "#blocks p p"]
    sources: Float[Numeric, "blocks p columns"]
    head: Float[Numeric, " p"]


def _signal_rows(structure: Structure, parameters: Parameters) -> Float[Numeric, "blocks K fields"]:
    """Return the signals in the compressed frame, (blocks, K, K + p)."""
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
    """Return M = T F^T, with F the frame of the signals, and Q = W W^T, per block."""
    M = jnp.einsum("bps,brs->bpr", rows[..., : structure.signals], parameters["frame"])
    return M, jnp.einsum("bpm,bqm->bpq", rows, rows)


def _drift(
    structure: Structure,
    quadrature: Quadrature,
    nodes: Nodes,
    parameters: Parameters,
    algorithm: Parameters,
    rates: Parameters,
    path: SdeState,
    extra: Float[Numeric, "blocks p p"],
) -> _Drift:
    """Return the drift of a path whose additional columns have the Gram matrix `extra`.

    With the Stein matrix H, E[h x^T] = l_b H [W; W*] in a block of eigenvalue l_b. The additional
    columns N are orthogonal to the signals and to all other columns, so that only the student part
    of l_b H acts on them.
    """
    p = structure.width
    # The additional columns contribute to Q but not to M: they are orthogonal to the signals.
    M, Q = _overlaps(structure, parameters, path.rows)
    Q = Q + extra
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q})
    moments = expectation_of(structure).moments(quadrature, nodes, parameters, overlaps, path.head)
    rows_and_signals = jnp.concatenate([path.rows, _signal_rows(structure, parameters)], axis=1)
    pull = jnp.einsum("bic,bcm->bim", moments.coefficients(parameters), rows_and_signals)
    decay = parameters["weight_decay"]
    columns = input_covariance.times_eigenvalues(
        parameters, moments.stein[..., :p]
    ) + decay * jnp.eye(p)
    # losses and rules that read overlaps move rows along rows
    if moments.pull is not None:
        columns = columns + moments.pull[..., :p]
    # Gram matrix of the step outside of the frame: (lr/B) E[h h^T] |x_b|^2/d, and 2 T f_b.
    growth = rates["noise_rate"] * input_covariance.block_traces(parameters, rates["outside"])
    root = jax.vmap(lower_root)(moments.noise.reshape(-1, p, p))
    sources = jnp.sqrt(growth)[:, None, None] * root
    if "temperature" in rates:
        thermal = jnp.sqrt(2 * rates["temperature"] * rates["outside"])
        sources = jnp.concatenate([sources, thermal[:, None, None] * jnp.eye(p)], axis=-1)
    if structure.constraint.fixes_norms:
        # Half of d|w_i|^2/dt, which the normalisation removes from every row.
        norms = (
            -jnp.einsum("bim,bim->i", pull, path.rows)
            - jnp.einsum("bij,bij->i", columns, extra)
            - decay
        )
        norms = (
            norms
            + decay * jnp.einsum("bii->i", extra)
            + 0.5 * jnp.einsum("bij,bij->i", sources, sources)
        )
    else:
        norms = jnp.zeros(p)
    # dW/dt = -E[h x^T] - weight decay - the change of norm on the sphere
    row_drift = -pull - (decay + norms)[:, None] * path.rows
    head = (
        -algorithm["head_rate"] * (moments.head_gradient + decay * path.head)
        if structure.trained
        else jnp.zeros_like(path.head)
    )
    return _Drift(pull, row_drift, columns + jnp.diag(norms), root, sources, head)


class _Noise(NamedTuple):
    """Fluctuations of the samples of one step.

    Attributes
    ----------
    h : array, (samples, blocks or 1, p, tokens)
        Gradients h C^(1/2), with C the correlation of the tokens, in units of the scale of a block.
    rows : array, (samples, blocks, p, K + p)
        Increments of the rows minus their mean.
    head : array, (samples, p)
        Increments of the head minus their mean.
    """

    h: Float[Numeric, "... #blocks p tokens"]
    rows: Float[Numeric, "... blocks p fields"]
    head: Float[Numeric, "... p"]


def _draw_fluctuations(
    structure: Structure,
    parameters: Parameters,
    algorithm: Parameters,
    path: SdeState,
    drift: _Drift,
    normals: Float[Numeric, "samples normals"],
    thermal: Float[Numeric, "samples blocks p fields"] | None,
) -> _Noise:
    """Return the increments of fresh samples minus their mean.

    `normals` are the standard normals of the samples and `thermal` their thermal noise, both from
    `_draw_step_normals`.
    """
    sample = structure.sample
    # the last normals belong to the named draws, the others to the inputs
    z = normals[:, : -sample.normals_per_sample]
    draws = sample.draw(parameters, normals[:, -sample.normals_per_sample :])
    z = z.reshape(-1, *sample.tokens.shape, structure.blocks, structure.fields)
    if "inside" in parameters:  # a raw block has fewer coordinates than columns
        z = z * parameters["inside"]
    x = compressed_inputs(sample, parameters, z, draws)
    x = x.reshape(SAMPLES * sample.tokens.inputs_per_sample, structure.blocks, structure.fields)
    # fields lambda = W x and signals lambda* = W* x in the compressed frame
    fields = jnp.einsum("bpm,sbm->sp", path.rows, x)
    along_signals, signal_noise = x[..., : structure.signals], 0.0
    if sample.noisy_inputs:  # the signals are those of the inputs without noise
        share, signal_noise = clean_signals(sample, parameters, draws)
        along_signals = along_signals * share[..., None]
    signals = jnp.einsum("brk,sbk->sr", parameters["frame"], along_signals) + signal_noise
    M, Q = _overlaps(structure, parameters, path.rows)
    overlaps = overlaps_at(structure, parameters, {"M": M, "Q": Q})
    h, head_gradient, pulls = sample_moves(
        structure,
        parameters_with_overlaps(structure, parameters, overlaps),
        fields,
        signals,
        path.head,
        sample.loss_argument(draws),
    )
    # h x^T of each sample, summed over its tokens
    gradients = h[:, None, :, None] * x[:, :, None, :]
    gradients = gradients.reshape(SAMPLES, -1, *gradients.shape[1:]).sum(axis=1)
    if pulls is not None:
        gradients = gradients + jnp.einsum(
            "sbic,bcm->sbim" if structure.loss.moves_by_block else "sic,bcm->sbim",
            pulls,
            jnp.concatenate([path.rows, _signal_rows(structure, parameters)], axis=1),
        )
    # subtracting the exact mean keeps the noise centred for any number of samples
    rows = -(gradients - drift.pull)
    if thermal is not None:
        inside = parameters["inside"][:, None] if "inside" in parameters else 1.0
        rows = rows + thermal * inside
    head = jnp.zeros_like(head_gradient)
    if structure.trained:
        decayed = head_gradient + parameters["weight_decay"] * path.head
        head = -algorithm["head_rate"] * decayed - drift.head
    # h C^(1/2): the Gram matrix of the step is h C h^T for correlated tokens
    mixed = sample.tokens.correlate_inputs(parameters, h.T).reshape(structure.width, SAMPLES, -1)
    mixed = jnp.moveaxis(mixed, 0, 1)[:, None]
    if sample.noisy_inputs or sample.context_spectra:
        # the scale of the inputs varies between samples, relative to the mean eigenvalue
        scale = sample_scale(sample, parameters, draws)
        scale = scale / jnp.sqrt(input_covariance.eigenvalues(parameters))
        mixed = jnp.broadcast_to(scale, (SAMPLES, structure.blocks))[..., None, None] * mixed
    return _Noise(mixed, rows, head)


def _second_order(
    structure: Structure,
    parameters: Parameters,
    path: SdeState,
    e: Float[Numeric, "samples blocks p fields"],
    zeta: Float[Numeric, "#samples blocks p p"],
    scale: Scalar,
) -> tuple[Float[Numeric, "blocks p K"], Float[Numeric, "blocks p p"]]:
    """Return the change of the mean of M and Q due to products of increments, per block.

    It is `scale` times the average over samples. With e_i the increment of row i, zeta_ij that of
    the Gram matrix of the additional columns, s_ij = w_i.e_j + w_j.e_i + zeta_ij, r_i = s_ii/2,
    mu_i = e_i.w* and n_i = 3 r_i^2/2 - |e_i|^2/2,

        free:    Q'' = E[e_i.e_j],
        sphere:  M'' = E[-r_i mu_i + M_i n_i],
                 Q'' = E[e_i.e_j - s_ij (r_i + r_j) + Q_ij (n_i + n_j + r_i r_j)].
    """
    share = scale / e.shape[0]
    # E[e_i.e_j] in each block
    products = jnp.einsum("sbim,sbjm->sbij", e, e)
    if not structure.constraint.fixes_norms:
        return jnp.zeros_like(path.rows[..., : structure.signals]), share * jnp.sum(
            products, axis=0
        )
    M, Q = _overlaps(structure, parameters, path.rows)
    # s_ij, r_i, n_i and mu_i of the docstring
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
    rates: Parameters,
    path: SdeState,
    length: Scalar,
    key: RandomKey,
) -> SdeState:
    """Advance a path by one step of the given length in t.

    `rates` contains noise_rate = lr/B, inverse_dimension = 1/d, shares (block sizes over d),
    outside (the same without the columns of the frame), the amplitude of the noise, and optionally
    the temperature and the raw blocks.
    """
    k, raw = structure.signals, rates.get("raw")
    drift, drifted, columns = _heun_step(
        partial(_drift, structure, quadrature, nodes, parameters, algorithm, rates), path, length
    )
    g, normals, thermal = _draw_step_normals(structure, key, "temperature" in rates)
    if thermal is not None:
        # in units of the increment of one sample, sqrt(lr/(d B))
        noise_rate = jnp.maximum(rates["noise_rate"], SMALLEST)
        thermal = jnp.sqrt(2 * rates["temperature"] / noise_rate) * thermal
    noise = _draw_fluctuations(structure, parameters, algorithm, path, drift, normals, thermal)
    scale = rates["amount"] * rates["noise_rate"] * rates["inverse_dimension"] * length
    # sum_s w_s (u(x_s) - E[u]) has the covariance scale Sigma, because the g_s are independent
    weights = jnp.sqrt(scale / SAMPLES) * g
    rows = drifted.rows + jnp.einsum("s,sbim->bim", weights, noise.rows)
    head = drifted.head + weights @ noise.head
    # fold the additional columns back into p columns with the same Gram matrix
    L = _fold(jnp.concatenate([rows[..., k:], columns], axis=-1))
    if raw is not None:  # a raw block has nothing outside; its L is not used but must be regular
        L = jnp.where(raw[:, None, None], jnp.eye(structure.width), L)
    # The noise of h h^T has all of |x|^2, not only the part outside of the frame.
    growth = rates["noise_rate"] * input_covariance.block_traces(parameters, rates["shares"])
    growth = growth[:, None, None]
    X = _gram_noise(L, noise.h, drift.root, growth, weights, scale)
    mean_gram = drift.root @ jnp.swapaxes(drift.root, -1, -2)
    if higher_order:
        # products of the mean increment with itself: the difference between a step of length lr/d
        # and the flow
        mean_rows = -(drift.pull + parameters["weight_decay"] * path.rows)[None]
        step = length * algorithm["lr"] * rates["inverse_dimension"]
        M2, Q2 = _second_order(
            structure, parameters, path, mean_rows, (growth * mean_gram)[None], step
        )
    else:
        # Ito correction: the products of the noise, which the factor form adds, are taken off
        gram = growth * (jnp.einsum("scil,scjl->scij", noise.h, noise.h) - mean_gram)
        M2, Q2 = _second_order(structure, parameters, path, noise.rows, gram, -scale)
    return SdeState(_apply_increments(structure, parameters, rows, L, X, M2, Q2, raw), head)


def _heun_step(
    drift_at: Callable[[SdeState, Float[Numeric, "blocks p p"]], _Drift],
    path: SdeState,
    length: Scalar,
) -> tuple[_Drift, SdeState, Float[Numeric, "blocks p columns"]]:
    """Return the drift at a state, the state after one Heun step, and the additional columns.

    The Gram matrix of the (blocks, p, 2 p) columns is the integral of the sources over the step.
    """
    blocks, p, _ = path.rows.shape
    drift = drift_at(path, jnp.zeros((blocks, p, p)))
    gram = length * drift.sources @ jnp.swapaxes(drift.sources, -1, -2)
    # Euler predictor, then the average of the drifts at both ends (Heun)
    euler = SdeState(path.rows + length * drift.rows, path.head + length * drift.head)
    end_drift = drift_at(euler, gram)
    rows = path.rows + length / 2 * (drift.rows + end_drift.rows)
    head = path.head + length / 2 * (drift.head + end_drift.head)
    # The trapezoidal rule for the Gram matrix, as a sum of squares: the sources at the start of the
    # step are propagated to its end, where the others are added.
    propagated = (jnp.eye(p) - length * end_drift.columns) @ drift.sources
    columns = jnp.concatenate([propagated, end_drift.sources], axis=-1)
    return drift, SdeState(rows, head), jnp.sqrt(length / 2) * columns


def _draw_step_normals(
    structure: Structure, key: RandomKey, has_temperature: bool
) -> tuple[
    Float[Numeric, " samples"],
    Float[Numeric, "samples normals"],
    Float[Numeric, "samples blocks p fields"] | None,
]:
    """Draw the normals of one step.

    They are one weight per sample, the normals of its inputs and draws, and its thermal noise.
    """
    inputs = structure.sample.tokens.inputs_per_sample * structure.blocks * structure.fields
    per_sample = inputs + structure.sample.normals_per_sample
    thermal_shape = (structure.blocks, structure.width, structure.fields)
    thermal_shape = thermal_shape if has_temperature else (0,)
    count = SAMPLES * (per_sample + 1 + int(np.prod(thermal_shape)))
    normals, _ = normals_and_uniforms(key, count, 0)
    g, sample_normals, thermal = jnp.split(normals, [SAMPLES, SAMPLES * (per_sample + 1)])
    thermal = thermal.reshape(SAMPLES, *thermal_shape) if has_temperature else None
    return g, sample_normals.reshape(SAMPLES, -1), thermal


def _gram_noise(
    L: Float[Numeric, "blocks p p"],
    h: Float[Numeric, "... #blocks p tokens"],
    root: Float[Numeric, "#blocks p p"],
    growth: Float[Numeric, "blocks 1 1"],
    weights: Float[Numeric, " samples"],
    scale: Scalar,
) -> Float[Numeric, "blocks p p"]:
    """Return the noise of h h^T in the frame of L, X = sum_s w_s eta_s - E[eta^2]/2.

    Here eta = growth L^-1 (h h^T - E[h h^T]) L^-T; the second term compensates the mean of the
    square in X + sqrt(1 + X^2).
    """
    blocks, p, _ = L.shape
    vectors = jnp.concatenate([jnp.moveaxis(h, 0, 2).reshape(len(root), p, -1), root], axis=-1)
    vectors = jnp.broadcast_to(vectors, (blocks, *vectors.shape[1:]))
    in_frame = jax.vmap(solve_forward)(L, vectors)
    gradients, mean = in_frame[..., :-p].reshape(blocks, p, SAMPLES, -1), in_frame[..., -p:]
    grams = jnp.einsum("bisl,bjsl->sbij", gradients, gradients)
    eta = growth * (grams - mean @ jnp.swapaxes(mean, -1, -2))
    squares = jnp.einsum("sbij,sbjk->bik", eta, eta)
    return jnp.einsum("s,sbij->bij", weights, eta) - scale / (2 * SAMPLES) * squares


def _apply_increments(
    structure: Structure,
    parameters: Parameters,
    before: Float[Numeric, "blocks p fields"],
    L: Float[Numeric, "blocks p p"],
    X: Float[Numeric, "blocks p p"],
    M2: Float[Numeric, "blocks p K"],
    Q2: Float[Numeric, "blocks p p"],
    raw: Bool[Numeric, " blocks"] | None = None,
) -> Float[Numeric, "blocks p fields"]:
    """Return rows [T | L] with M increased by M2, Q by Q2, and L L^T by L X L^T to first order.

    L L^T is multiplied by X + sqrt(1 + X^2) = exp(arcsinh X), so that Q stays positive. Raw blocks,
    whose coordinates have been integrated already, are returned unchanged.
    """
    T, frame = before[..., : structure.signals], parameters["frame"]
    if raw is not None:
        frame = jnp.where(raw[:, None, None], jnp.eye(structure.signals), frame)
    # T2 F^T = M2 with the frame F of the signals
    T2 = jnp.swapaxes(jax.vmap(solve_forward)(frame, jnp.swapaxes(M2, -1, -2)), -1, -2)
    cross = T @ jnp.swapaxes(T2, -1, -2)
    # L^-1 (Q2 - T T2^T - T2 T^T) L^-T: the part of Q2 that is not due to T
    half = jax.vmap(solve_forward)(L, Q2 - cross - jnp.swapaxes(cross, -1, -2))
    X = X + jax.vmap(solve_forward)(L, jnp.swapaxes(half, -1, -2))
    # exp(arcsinh X) by the eigenvalues of the symmetric X; half of the exponent for the factor
    values, vectors = jnp.linalg.eigh((X + jnp.swapaxes(X, -1, -2)) / 2)
    L = L @ (vectors * jnp.exp(jnp.arcsinh(values) / 2)[:, None, :])
    rows = jnp.concatenate([T + T2, L], axis=-1)
    if raw is not None:
        rows = jnp.where(raw[:, None, None], before, rows)
    return structure.constraint.project_rows(rows, axes=(0, 2))


def _fold(columns: Float[Numeric, "blocks p columns"]) -> Float[Numeric, "blocks p p"]:
    """Return a lower-triangular L with the Gram matrix of the columns, by a QR decomposition."""
    return jnp.swapaxes(jnp.linalg.qr(jnp.swapaxes(columns, -1, -2), mode="r"), -1, -2)


class VariableStepSimulator(Simulator):
    """A simulator whose steps have different lengths.

    Steps edges[i] to edges[i + 1] have length lengths[i], in t, or in alpha if lr is a schedule.
    """

    def set_steps(self, edges: np.ndarray, lengths: np.ndarray) -> None:
        """Set the number and length of the steps in each interval between save points."""
        # padded to a power of two, so that similar numbers of save points share one compilation
        padding = power_of_two(len(lengths)) - len(lengths)
        last_length = lengths[-1] if len(lengths) else 0.0
        starts = np.cumsum(np.diff(edges) * lengths)[:-1]
        self.edges = np.concatenate([edges, np.full(padding, np.iinfo(np.int64).max)])
        self.lengths = np.concatenate([lengths, np.full(padding, last_length)])
        self.interval_starts = np.concatenate([[0.0], starts, np.zeros(padding)])

    @property
    def grain(self) -> int:
        return 1


def raw_blocks(problem: Problem, sizes: np.ndarray) -> np.ndarray:
    """Return which covariance blocks are integrated in their coordinates.

    These are the blocks of a spectrum with no more coordinates than signals and rows.
    """
    return (sizes <= problem.structure.fields) & (len(sizes) > 1)


class SdePaths(VariableStepSimulator):
    """Paths of the SDE. One step of the simulator is one step of the scheme."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        start: Start,
        dimension: int,
        block_sizes: np.ndarray,
        higher_order: bool,
        amount: float = 1.0,
    ) -> None:
        self.structure = problem.structure
        self.quadrature = choose_quadrature(problem, start.Q_blocks, MARGIN)
        nodes = expectation_of(self.structure).nodes(self.quadrature, flow=False)
        self.nodes = {name: value[0] for name, value in nodes.items()}
        self.parameters = problem.parameters
        self.algorithm = algorithm.parameters
        raw = raw_blocks(problem, block_sizes)
        higher_order = higher_order or bool(raw.any())
        self.higher_order = higher_order
        # at finite d the frame takes K + p coordinates from every block
        inside = self.structure.fields if higher_order else 0
        # A scheduled batch size is among the parameters of the algorithm.
        batch = algorithm.batch if algorithm.counts else np.nan
        self.rates = {
            "batch": np.float64(batch),
            "inverse_dimension": np.float64(1.0 / dimension),
            "outside": np.where(raw, 0, block_sizes - inside) / dimension,
            "shares": np.where(raw, 0, block_sizes) / dimension,
            "amount": np.float64(amount),
        }
        if raw.any():
            self.rates["raw"] = raw
            is_coordinate = np.arange(self.structure.fields) < block_sizes[:, None]
            frame = signal_frames(problem, block_sizes)
            raw_parameters = {"frame": frame, "inside": is_coordinate.astype(np.float64)}
            self.parameters = {**self.parameters, **raw_parameters}
        # initial factor form W = [T | L]
        T, L = compressed_rows(problem, start, block_sizes)
        self.rows = np.concatenate([T, L], axis=-1)
        self.head = start.a

    def initial(self, chosen: np.ndarray) -> SdeState:
        return SdeState(jnp.asarray(self.rows[chosen]), jnp.asarray(self.head[chosen]))

    def advance(
        self,
        state: SdeState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        traced = (
            self.nodes,
            self.parameters,
            self.algorithm,
            self.rates,
            self.edges,
            self.lengths,
            self.interval_starts,
        )
        static = (self.structure, self.quadrature, self.higher_order)
        return _advance_paths(
            static,
            observation.observe,
            traced,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: SdeState) -> dict[str, Any]:
        return _path_overlaps(self.structure, self.parameters, state)


@partial(jax.jit, static_argnums=0)
def _path_overlaps(structure: Structure, parameters: Parameters, state: SdeState) -> dict[str, Any]:
    M, Q = jax.vmap(lambda rows: _overlaps(structure, parameters, rows))(state.rows)
    return {"M": M, "Q": Q, "a": state.head}


@partial(jax.jit, static_argnums=(0, 1))
def _advance_paths(
    static: tuple[Structure, Quadrature, bool],
    see: Observe | None,
    traced: tuple[Any, ...],
    state: SdeState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    criterion_state: PyTree,
    criterion_parameters: PyTree,
) -> tuple[SdeState, Int[Numeric, " runs"], Any]:
    """Advance all runs from step `since` to step `end`, and evaluate the stopping criterion `see`.

    Also returns the last step at which each run was finite.
    """
    structure, quadrature, higher_order = static
    nodes, parameters, algorithm, rates, edges, lengths, interval_starts = traced

    def step(
        index: IntScalar, carry: tuple[SdeState, Any, Any]
    ) -> tuple[SdeState, Int[Numeric, " runs"], Any]:
        state, last_good, criterion_state = carry
        # schedules are evaluated at the middle of the step
        interval = jnp.searchsorted(edges, index, side="right") - 1
        length = lengths[interval]
        middle = interval_starts[interval] + (index - edges[interval] + 0.5) * length
        # With a schedule the steps are in alpha, otherwise in t.
        in_alpha = isinstance(algorithm["lr"], Schedule)
        batch = algorithm.get("batch", rates["batch"])
        alpha = middle if in_alpha else middle * batch / algorithm["lr"]
        current_parameters, hyperparameters = values_at((parameters, algorithm), alpha)
        batch = hyperparameters.get("batch", rates["batch"])
        current_rates = {**rates, "noise_rate": hyperparameters["lr"] / batch}
        if "update" in hyperparameters:
            # The only update with paths is a temperature, which counts lengths in units of D.
            unit = hyperparameters.get("unit", 1.0)
            current_rates["temperature"] = hyperparameters["update"]["temperature"] / unit
        length = length * current_rates["noise_rate"] if in_alpha else length

        def step_run(path: SdeState, key: RandomKey, run_state: PyTree) -> tuple[SdeState, PyTree]:
            path = sde_step(
                structure,
                quadrature,
                higher_order,
                nodes,
                current_parameters,
                hyperparameters,
                current_rates,
                path,
                length,
                jax.random.fold_in(key, index),
            )
            if see is not None:
                M, Q = _overlaps(structure, parameters, path.rows)
                overlaps = {"M": M, "Q": Q, "a": path.head}
                run_state = see(criterion_parameters, run_state, index + 1, overlaps)
            return path, run_state

        state, criterion_state = jax.vmap(step_run)(state, keys, criterion_state)
        is_finite = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2, 3))
        is_finite &= jnp.all(jnp.abs(state.head) < LARGEST, axis=1)
        return state, jnp.where(is_finite, index + 1, last_good), criterion_state

    carry = (state, jnp.broadcast_to(since, keys.shape), criterion_state)
    return jax.lax.fori_loop(since, end, step, carry)


def with_edges(
    parameters: Parameters, algorithm: OnePassSGD, save_points: np.ndarray
) -> np.ndarray:
    """Return the save points together with the edges of piecewise schedules before the last one.

    No step crosses an edge.
    """
    edges = piece_edges((parameters, algorithm.parameters))
    if not algorithm.scheduled:
        edges = edges * (float(algorithm.lr) / float(algorithm.batch))
    return np.union1d(save_points, edges[edges < save_points[-1]])


def sde_step_length(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    dimension: int,
    block_sizes: np.ndarray,
    end: float,
) -> tuple[float, float]:
    """Return a step length with an error below STEP_TOLERANCE, and that error.

    The error is measured on the noiseless path from the first run of the start by halving steps.
    """
    first = Start(start.M_blocks[:1], start.Q_blocks[:1], start.a[:1])
    simulator = SdePaths(problem, algorithm, first, dimension, block_sizes, True, amount=0.0)
    times = with_edges(problem.parameters, algorithm, np.linspace(0, end, 17))
    previous_risk = None
    count, error = FIRST_STEPS, np.inf
    while True:
        edges, lengths = plan_steps(times, end / count)
        simulator.set_steps(edges, lengths)
        overlaps, _ = run(simulator, 1, edges, 0, "step length", False)
        # The parameters of the start are enough here: the risk only sets the scale of the error.
        risk, _ = population_risk(problem.at(0.0), overlaps)
        if previous_risk is not None:
            error = float(np.max(np.abs(risk - previous_risk)) / np.max(np.abs(previous_risk)))
            # Heun's method has order 2, so the finer path is off by a third of the change.
            if error / 3 <= STEP_TOLERANCE or count >= MOST_STEPS:
                return end / count, error / 3
        previous_risk, count = risk, 2 * count
