"""One-pass SGD on spiked tensors at finite n: the exact chain, the vector x itself, true tensors.

At a fresh tensor Y the gradient of |Y - x^(k)|^2 + (al/2)|x|^2 is Gaussian. With R = |x| it has

    mean        2k R^(2k-2) x - 2k snr m^(k-1) v + al x,
    covariance  4 [k R^(2k-2) I + k(k-1) R^(2k-4) x x^T],

and the mean of a batch of B gradients has a B-th of this covariance. With delta = lr/n and standard
normal xi (a scalar) and Z (a vector), one step is therefore exactly

    x' = A x + 2k snr delta m^(k-1) v + b Z,
    A  = 1 - delta (2k R^(2k-2) + al) + 2 delta sqrt(k(k-1)/B) R^(k-2) xi,
    b  = 2 delta sqrt(k/B) R^(k-1).

Let z1 and z2 be the coordinates of Z along v and along x - m v. The other n - 2 coordinates of Z
are orthogonal to x and contribute b^2 chi2_(n-2) to the squared length. The step closes on
m = <x, v> and r2 = |x|^2 - m^2, with r = sqrt(r2):

    m'  = A m + 2k snr delta m^(k-1) + b z1,
    r2' = (A r + b z2)^2 + b^2 chi2_(n-2).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.arrays import (
    IntScalar,
    Numeric,
    Parameters,
    PyTree,
    RandomKey,
    RandomKeys,
    RealArray,
    Scalar,
)
from sgdynamics.base.random import draw_chi, normals_and_uniforms, step_key
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Resources,
    Simulator,
)

# Number of steps whose random numbers are drawn together.
SPAN = 64
# Decimal digits of |x|^(2k) at which a run has diverged: its risk and one more step are still
# finite.
LARGEST_DIGITS = {"float64": 200, "float32": 60}
# Largest number of entries of the tensors of one step.
MAX_ENTRIES = 10**7
# Memory of the runs of a group, in bytes.
GROUP_BYTES = 1 << 28


class SpikedState(NamedTuple):
    """State of the chain.

    Attributes
    ----------
    m : array, (runs,)
        Overlap <x, v> with the signal.
    r2 : array, (runs,)
        Squared length of the rest, |x|^2 - m^2.
    """

    m: RealArray
    r2: RealArray


# States, the last finite step of each run, and records.
Carry = tuple[SpikedState, Int[Numeric, " runs"], PyTree]
VectorCarry = tuple[Float[Numeric, "runs d"], Int[Numeric, " runs"], PyTree]


# ---- coefficients of a step


def chain_parameters(
    problem: SpikedTensor, algorithm: OnePassSGD, dimension: int
) -> dict[str, Numeric | np.generic]:
    """Traced values of a step. The order is among them, so that one program serves all orders."""
    return {
        **problem.parameters,
        "order": np.int64(problem.order),
        "delta": np.float64(algorithm.lr / dimension),
        "batch": np.float64(algorithm.batch),
        # Coordinates orthogonal to v and x.
        "free": np.float64(dimension - 2),
        "limit": divergence_limit(problem.order),
    }


def divergence_limit(order: int, dtype: str = "float64") -> np.float64:
    """Value of |x|^2 beyond which a run has diverged."""
    return np.float64(10.0 ** (LARGEST_DIGITS[dtype] / order))


def power_bits(order: int) -> int:
    """Number of binary digits of the powers in a compiled program.

    At least three, so that all orders up to 8 share one program.
    """
    return max(3, (order - 1).bit_length())


def power(bits: int, x: Float[Numeric, "*s"], n: IntScalar) -> Float[Numeric, "*s"]:
    """x^n for a traced n below 2^bits, by repeated squaring.

    Signs of negative x are exact, and it is ten times as fast as a call of pow.
    """
    result = jnp.ones_like(x)
    for bit in range(bits):
        # Now x is the power 2^bit of the argument.
        result = jnp.where((n >> bit) & 1 == 1, result * x, result)
        x = x * x
    return result


def _coefficients(
    bits: int,
    values: Parameters,
    m: Float[Numeric, "*s"],
    squared_length: Float[Numeric, "*s"],
    xi: Float[Numeric, "*s"],
) -> tuple[Float[Numeric, "*s"], Float[Numeric, "*s"], Float[Numeric, "*s"]]:
    """A, the drift along v, and b of one step, at m and |x|^2, from the scalar normal xi."""
    order, delta = values["order"], values["delta"]
    k = order.astype(squared_length.dtype)
    R = jnp.sqrt(squared_length)
    # R^(k-2) and R^(k-1), by which the noise along x and across it is scaled.
    R_along = power(bits, R, order - 2)
    R_across = R_along * R
    per_root_batch = 1 / jnp.sqrt(values["batch"])
    A = (
        1
        - delta * (2 * k * R_across * R_across + values["ridge"])
        + 2 * delta * jnp.sqrt(k * (k - 1)) * per_root_batch * R_along * xi
    )
    signal_drift = 2 * k * delta * values["snr"] * power(bits, m, order - 1)
    return A, signal_drift, 2 * delta * jnp.sqrt(k) * per_root_batch * R_across


# ---- the chain in (m, r2)


def chain_step(
    bits: int,
    values: Parameters,
    state: SpikedState,
    xi: Float[Numeric, " runs"],
    z1: Float[Numeric, " runs"],
    z2: Float[Numeric, " runs"],
    chi: Float[Numeric, " runs"],
) -> SpikedState:
    """One step of the chain, from three normals and a chi variable (n - 2 degrees of freedom)."""
    m, r2 = jnp.asarray(state.m), jnp.asarray(state.r2)
    A, signal_drift, b = _coefficients(bits, values, m, m * m + r2, xi)
    return SpikedState(
        A * m + signal_drift + b * z1,
        # A sum of squares, so that r2 cannot become negative.
        (A * jnp.sqrt(r2) + b * z2) ** 2 + (b * chi) ** 2,
    )


class SpikedChain(Simulator):
    """Runs of the chain in (m, r2), at any n.

    Parameters
    ----------
    problem : SpikedTensor
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    start : SpikedStart
        Initial condition of the runs.
    dimension : int
        Dimension n of the vector.
    """

    def __init__(
        self, problem: SpikedTensor, algorithm: OnePassSGD, start: SpikedStart, dimension: int
    ) -> None:
        self.bits = power_bits(problem.order)
        self.values = chain_parameters(problem, algorithm, dimension)
        self.start = start

    def initial(self, chosen: np.ndarray) -> SpikedState:
        return SpikedState(jnp.asarray(self.start.m[chosen]), jnp.asarray(self.start.r2[chosen]))

    def advance(
        self,
        state: SpikedState,
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        return _advance_chain(
            self.bits,
            observation.observe,
            self.values,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: SpikedState) -> dict[str, Numeric]:
        return state._asdict()

    @property
    def grain(self) -> int:
        return SPAN


@partial(jax.jit, static_argnums=(0, 1))
def _advance_chain(
    bits: int,
    observe: Observe | None,
    values: Parameters,
    state: SpikedState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `since` to step `end`."""

    def draw(key: RandomKey, index: IntScalar) -> tuple[Float[Numeric, " n"], ...]:
        """Random numbers of one span of one run."""
        # A span that a later call continues draws the same numbers again, from the same key.
        key = step_key(key, index)
        normals, uniforms = normals_and_uniforms(key, 4 * SPAN, SPAN)
        xi, z1, z2, proposal = normals.reshape(4, SPAN)
        return xi, z1, z2, draw_chi(key, values["free"], proposal, uniforms)

    def make_span(index: IntScalar, carry: Carry) -> Carry:
        """The steps of one span of all runs."""
        # Steps first, then runs, so that a scan takes one step of all runs.
        draws = jax.vmap(draw, (0, None), 1)(keys, index)

        def make_step(
            carry: Carry, sample: tuple[Int[Numeric, ""], tuple[Numeric, ...]]
        ) -> tuple[Carry, None]:
            state, last_finite, records = carry
            step, normals = sample
            is_active = (step >= since) & (step < end)
            stepped = chain_step(bits, values, state, *normals)
            state = SpikedState(
                *(jnp.where(is_active, new, old) for new, old in zip(stepped, state, strict=True))
            )
            # A comparison, not a maximum: NaN < x is false.
            is_finite = is_active & (state.m**2 + state.r2 < values["limit"])
            if observe is not None:
                observe_run = partial(observe, shared)
                updated = jax.vmap(observe_run, (0, None, 0))(records, step + 1, state._asdict())
                records = jax.tree.map(partial(jnp.where, is_active), updated, records)
            return (state, jnp.where(is_finite, step + 1, last_finite), records), None

        return jax.lax.scan(make_step, carry, (index * SPAN + jnp.arange(SPAN), draws))[0]

    last_finite = jnp.broadcast_to(since, keys.shape)
    # All spans that overlap [since, end).
    return jax.lax.fori_loop(
        since // SPAN, (end + SPAN - 1) // SPAN, make_span, (state, last_finite, records)
    )


# ---- the vector x


class SpikedVectors(Simulator):
    """Runs of the vector x in n dimensions, with v along the first axis.

    Parameters
    ----------
    problem : SpikedTensor
        The problem.
    algorithm : OnePassSGD
        The training algorithm.
    start : SpikedStart
        Initial condition of the runs.
    dimension : int
        Dimension n of the vector.
    dtype : str, default "float64"
        Precision of all arrays.
    tensor : bool, default False
        Whether to draw tensors and differentiate the loss, instead of drawing the gradient from its
        law.
    """

    def __init__(
        self,
        problem: SpikedTensor,
        algorithm: OnePassSGD,
        start: SpikedStart,
        dimension: int,
        dtype: str = "float64",
        tensor: bool = False,
    ) -> None:
        self.dimension, self.dtype = dimension, np.dtype(dtype)
        # Order and batch, which are the shape of the tensors of a step.
        self.tensor = (problem.order, int(algorithm.batch)) if tensor else None
        self.bits = power_bits(problem.order)
        values = {
            **chain_parameters(problem, algorithm, dimension),
            "limit": divergence_limit(problem.order, dtype),
        }
        # The order stays an integer.
        self.values = {
            name: value if name == "order" else value.astype(self.dtype)
            for name, value in values.items()
        }
        self.start = start

    def initial(self, chosen: np.ndarray) -> Float[Numeric, "runs d"]:
        x = np.zeros((len(chosen), self.dimension), self.dtype)
        # The part of x that is orthogonal to v lies along the second axis: by symmetry its
        # direction does not matter.
        x[:, 0] = self.start.m[chosen]
        x[:, 1] = np.sqrt(self.start.r2[chosen])
        return jnp.asarray(x)

    def advance(
        self,
        state: Float[Numeric, "runs d"],
        keys: RandomKeys,
        since: int,
        end: int,
        observation: Observation = NO_OBSERVATION,
    ) -> AdvanceResult:
        return _advance_vectors(
            self.bits,
            self.tensor,
            observation.observe,
            self.values,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Float[Numeric, "runs d"]) -> dict[str, Numeric]:
        return _vector_overlaps(np.asarray(state, dtype=np.float64))

    @property
    def grain(self) -> int:
        return 1

    def resources(self, steps: float = 0.0) -> Resources:
        entries = 4 * self.dimension
        if self.tensor is not None:
            order, batch = self.tensor
            entries = 4 * batch * self.dimension**order
        # The size of the tensors is limited before (`MAX_ENTRIES`).
        return Resources(
            bytes_per_run=4.0 * self.dimension * self.dtype.itemsize,
            largest_group=max(1, min(1 << 14, GROUP_BYTES // (entries * self.dtype.itemsize))),
            size=(1 if self.tensor is None else self.tensor[1], 1, self.dimension),
        )


def _vector_overlaps(x: Float[Numeric, "runs d"]) -> dict[str, Numeric]:
    """m and r2 of vectors."""
    # Runs that have diverged overflow here.
    with np.errstate(over="ignore", invalid="ignore"):
        return {"m": x[..., 0], "r2": (x[..., 1:] ** 2).sum(-1)}


def tensor_loss(
    order: int, ridge: Scalar, x: Float[Numeric, " d"], Y: Float[Numeric, "batch ..."]
) -> Float[Numeric, ""]:
    """Mean over the batch of |Y - x^(k)|^2, plus (ridge/2)|x|^2; Y has axes (batch, n, ..., n)."""
    # The outer product x^(k), one factor at a time.
    outer_product = x
    for _ in range(order - 1):
        outer_product = outer_product[..., None] * x
    return jnp.sum((Y - outer_product) ** 2) / Y.shape[0] + ridge / 2 * jnp.sum(x * x)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance_vectors(
    bits: int,
    tensor: tuple[int, int] | None,
    observe: Observe | None,
    values: Parameters,
    x: Float[Numeric, "runs d"],
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    records: PyTree,
    shared: PyTree,
) -> AdvanceResult:
    """Advance all runs from step `since` to step `end`.

    `tensor` is (order, batch) to draw true tensors, and None to draw gradients from their law.
    """
    n, dtype = x.shape[1], x.dtype

    def step_run(x: Float[Array, " d"], key: RandomKey) -> Float[Numeric, " d"]:
        """One step of one run."""
        if tensor is None:
            # The last normal is the scalar xi, the others are the vector Z.
            normals = jax.random.normal(key, (n + 1,), dtype)
            A, signal_drift, b = _coefficients(bits, values, x[0], jnp.sum(x * x), normals[n])
            return jnp.asarray(A * x + b * normals[:n]).at[0].add(signal_drift)
        order, batch = tensor
        Y = jax.random.normal(key, (batch, *[n] * order), dtype)
        # The spike snr v^(k) with v along the first axis is a single entry.
        Y = Y.at[(slice(None), *[0] * order)].add(values["snr"])
        return x - values["delta"] * jax.grad(partial(tensor_loss, order, values["ridge"]))(x, Y)

    def make_step(index: IntScalar, carry: VectorCarry) -> VectorCarry:
        """One step of all runs."""
        x, last_finite, records = carry
        x = jax.vmap(lambda x, key: step_run(x, step_key(key, index)))(x, keys)
        is_finite = jnp.sum(x * x, axis=1) < values["limit"]
        if observe is not None:
            records = jax.vmap(partial(observe, shared), (0, None, 0))(
                records, index + 1, _vector_overlaps(x)
            )
        return x, jnp.where(is_finite, index + 1, last_finite), records

    carry = (x, jnp.broadcast_to(since, keys.shape), records)
    return jax.lax.fori_loop(since, end, make_step, carry)
