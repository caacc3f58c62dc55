"""One-pass SGD on spiked tensors at finite n: the exact chain in (m, r2), the vector x itself, and true tensors.

The gradient of |Y - x^(k)|^2 + (al/2)|x|^2 at a fresh Y is Gaussian: mean 2k R^(2k-2) x - 2k snr m^(k-1) v + al x, covariance
4 [k R^(2k-2) I + k(k-1) R^(2k-4) x x^T], R = |x|. With delta = lr/n, batch B (the mean of B such gradients has a B-th of the
covariance) and xi, Z standard normal, one step is therefore, exactly,

    x' = A x + 2k snr delta m^(k-1) v + b Z
    A  = 1 - delta (2k R^(2k-2) + al) + 2 delta sqrt(k(k-1)/B) R^(k-2) xi,      b = 2 delta sqrt(k/B) R^(k-1)

and, with z1, z2 the coordinates of Z along v and along x - m v, and n - 2 more outside,

    m'  = A m + 2k snr delta m^(k-1) + b z1
    r2' = (A r + b z2)^2 + b^2 chi2_{n-2},      r = sqrt(r2).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

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
    Scalar,
)
from sgdynamics.base.random import draw_chi, normals_and_uniforms, step_key
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.simulation.running import (
    NO_OBSERVATION,
    AdvanceResult,
    Observation,
    Observe,
    Simulator,
)

SPAN = 64  # steps whose random numbers are drawn together
LARGEST_DIGITS = {
    "float64": 200,
    "float32": 60,
}  # of |x|^(2k) at which a run has diverged: its risk, and one more step, are still finite
MAX_ENTRIES = 10**7  # of the tensors of one step
GROUP_BYTES = 1 << 28


class SpikedState(NamedTuple):
    """The state of the chain: m and r2, (run,) each."""

    m: Any
    r2: Any


def chain_parameters(
    problem: SpikedTensor, algorithm: OnePassSGD, dimension: int
) -> dict[str, Any]:
    """What a step depends on, traced: no number of these is compiled in, the order neither."""
    return {
        **problem.parameters,
        "order": np.int64(problem.order),
        "delta": np.float64(algorithm.lr / dimension),
        "batch": np.float64(algorithm.batch),
        "free": np.float64(dimension - 2),
        "limit": divergence_limit(problem.order),
    }


def divergence_limit(order: int, dtype: str = "float64") -> np.float64:
    """|x|^2 beyond this has diverged."""
    return np.float64(10.0 ** (LARGEST_DIGITS[dtype] / order))


def power_bits(order: int) -> int:
    """Binary digits of the powers that a program can take: three, so that all orders up to 8 share one, or more."""
    return max(3, (order - 1).bit_length())


def power(bits: int, x: Float[Numeric, "*s"], n: IntScalar) -> Float[Numeric, "*s"]:
    """x^n for a traced n below 2^bits, by squaring: exact signs, and ten times as fast as a call of pow."""
    result = jnp.ones_like(x)
    for bit in range(bits):
        result = jnp.where((n >> bit) & 1 == 1, result * x, result)
        x = x * x
    return result


def _coefficients(
    bits: int,
    numbers: dict[str, Any],
    m: Float[Numeric, "*s"],
    total: Float[Numeric, "*s"],
    xi: Float[Numeric, "*s"],
) -> tuple[Float[Numeric, "*s"], Float[Numeric, "*s"], Float[Numeric, "*s"]]:
    """A, the push along v and b of one step, at m and total = |x|^2."""
    order, delta = numbers["order"], numbers["delta"]
    k = order.astype(total.dtype)
    root = jnp.sqrt(total)
    along = power(bits, root, order - 2)
    across = along * root
    share = 1 / jnp.sqrt(numbers["batch"])
    A = (
        1
        - delta * (2 * k * across * across + numbers["ridge"])
        + 2 * delta * jnp.sqrt(k * (k - 1)) * share * along * xi
    )
    push = 2 * k * delta * numbers["snr"] * power(bits, m, order - 1)
    return A, push, 2 * delta * jnp.sqrt(k) * share * across


def chain_step(
    bits: int,
    numbers: dict[str, Any],
    state: SpikedState,
    xi: Float[Numeric, " runs"],
    z1: Float[Numeric, " runs"],
    z2: Float[Numeric, " runs"],
    chi: Float[Numeric, " runs"],
) -> SpikedState:
    """One step of the chain from three normals and a chi variable with n - 2 degrees of freedom; any shape."""
    m, r2 = state
    A, push, b = _coefficients(bits, numbers, m, m * m + r2, xi)
    return SpikedState(A * m + push + b * z1, (A * jnp.sqrt(r2) + b * z2) ** 2 + (b * chi) ** 2)


class SpikedChain(Simulator):
    """Runs of the chain in (m, r2), at any n."""

    def __init__(
        self, problem: SpikedTensor, algorithm: OnePassSGD, begin: SpikedStart, dimension: int
    ) -> None:
        self.bits = power_bits(problem.order)
        self.numbers = chain_parameters(problem, algorithm, dimension)
        self.begin = begin

    def initial(self, chosen: np.ndarray) -> SpikedState:
        return SpikedState(jnp.asarray(self.begin.m[chosen]), jnp.asarray(self.begin.r2[chosen]))

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
            self.numbers,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: SpikedState) -> dict[str, Any]:
        return state._asdict()

    @property
    def grain(self) -> int:
        return SPAN


@partial(jax.jit, static_argnums=(0, 1))
def _advance_chain(
    bits: int,
    see: Observe | None,
    numbers: Parameters,
    state: SpikedState,
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
    def draw(key: RandomKey, index: IntScalar) -> tuple[Float[Numeric, " n"], ...]:
        key = step_key(key, index)
        normals, uniforms = normals_and_uniforms(key, 4 * SPAN, SPAN)
        xi, z1, z2, proposal = normals.reshape(4, SPAN)
        return xi, z1, z2, draw_chi(key, numbers["free"], proposal, uniforms)

    def span(
        index: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[SpikedState, Int[Numeric, " runs"], Any]:
        draws = jax.vmap(draw, (0, None), 1)(keys, index)

        def step(
            carry: tuple[Any, Any, Any], sample: tuple[Any, Any]
        ) -> tuple[tuple[Any, Any, Any], None]:
            state, good, seen = carry
            number, random = sample
            active = (number >= since) & (number < end)
            moved = chain_step(bits, numbers, state, *random)
            state = SpikedState(
                *(jnp.where(active, new, old) for new, old in zip(moved, state, strict=True))
            )
            # a comparison, not a maximum: NaN < x is false
            fine = active & (state.m**2 + state.r2 < numbers["limit"])
            if see is not None:
                now = jax.vmap(partial(see, given), (0, None, 0))(seen, number + 1, state._asdict())
                seen = jax.tree.map(lambda new, old: jnp.where(active, new, old), now, seen)
            return (state, jnp.where(fine, number + 1, good), seen), None

        return jax.lax.scan(step, carry, (index * SPAN + jnp.arange(SPAN), draws))[0]

    good = jnp.broadcast_to(since, keys.shape)
    return jax.lax.fori_loop(since // SPAN, (end + SPAN - 1) // SPAN, span, (state, good, seen))


class SpikedVectors(Simulator):
    """Runs of x in n dimensions, v along the first axis: from the gradient's law ("direct"), or from true tensors by autodiff."""

    def __init__(
        self,
        problem: SpikedTensor,
        algorithm: OnePassSGD,
        begin: SpikedStart,
        dimension: int,
        dtype: str = "float64",
        tensor: bool = False,
    ) -> None:
        self.dimension, self.dtype = dimension, np.dtype(dtype)
        self.tensor = (problem.order, algorithm.batch) if tensor else None
        self.bits = power_bits(problem.order)
        numbers = {
            **chain_parameters(problem, algorithm, dimension),
            "limit": divergence_limit(problem.order, dtype),
        }
        self.numbers = {
            name: value if name == "order" else value.astype(self.dtype)
            for name, value in numbers.items()
        }
        self.begin = begin

    def initial(self, chosen: np.ndarray) -> Float[Numeric, "runs d"]:
        x = np.zeros((len(chosen), self.dimension), self.dtype)
        x[:, 0] = self.begin.m[chosen]
        x[:, 1] = np.sqrt(self.begin.r2[chosen])
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
            self.numbers,
            state,
            keys,
            np.int64(since),
            np.int64(end),
            observation.records,
            observation.shared,
        )

    def overlaps(self, state: Float[Numeric, "runs d"]) -> dict[str, Any]:
        return _vector_overlaps(np.asarray(state, dtype=np.float64))

    @property
    def grain(self) -> int:
        return 1

    @property
    def size(self) -> tuple[int, ...]:
        return (1 if self.tensor is None else self.tensor[1]), 1, self.dimension

    def bytes_per_run(self, steps: float = 0.0) -> float:
        return (
            4.0 * self.dimension * self.dtype.itemsize
        )  # tensors are refused beyond ten million entries

    def largest_group(self) -> int:
        numbers = 4 * self.dimension
        if self.tensor is not None:
            order, batch = self.tensor
            numbers = 4 * batch * self.dimension**order
        return max(1, min(1 << 14, GROUP_BYTES // (numbers * self.dtype.itemsize)))


def _vector_overlaps(x: Float[Numeric, "runs d"]) -> dict[str, Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # of runs that have diverged
        return {"m": x[..., 0], "r2": (x[..., 1:] ** 2).sum(-1)}


def tensor_loss(
    order: int, ridge: Scalar, x: Float[Numeric, " d"], Y: Float[Numeric, "batch ..."]
) -> Float[Numeric, ""]:
    """The mean over the batch of |Y - x^(k)|^2, and (ridge/2)|x|^2; Y has axes (batch, n, ..., n)."""
    power = x
    for _ in range(order - 1):
        power = power[..., None] * x
    return jnp.sum((Y - power) ** 2) / Y.shape[0] + ridge / 2 * jnp.sum(x * x)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance_vectors(
    bits: int,
    tensor: tuple[int, int] | None,
    see: Observe | None,
    numbers: Parameters,
    x: Float[Numeric, "runs d"],
    keys: RandomKeys,
    since: IntScalar,
    end: IntScalar,
    seen: PyTree,
    given: PyTree,
) -> tuple[Float[Numeric, "runs d"], Int[Numeric, " runs"], Any]:
    """All runs from step `since` to `end`; `tensor` is (order, batch) where true tensors are drawn."""
    n, dtype = x.shape[1], x.dtype

    def move(x: Float[Array, " d"], key: RandomKey) -> Float[Numeric, " d"]:
        if tensor is None:
            normals = jax.random.normal(key, (n + 1,), dtype)
            A, push, b = _coefficients(bits, numbers, x[0], jnp.sum(x * x), normals[n])
            return jnp.asarray(A * x + b * normals[:n]).at[0].add(push)
        order, batch = tensor
        Y = jax.random.normal(key, (batch, *[n] * order), dtype)
        Y = Y.at[(slice(None), *[0] * order)].add(numbers["snr"])
        return x - numbers["delta"] * jax.grad(partial(tensor_loss, order, numbers["ridge"]))(x, Y)

    def step(
        number: IntScalar, carry: tuple[Any, Any, Any]
    ) -> tuple[Float[Numeric, "runs d"], Int[Numeric, " runs"], Any]:
        x, good, seen = carry
        x = jax.vmap(lambda x, key: move(x, step_key(key, number)))(x, keys)
        fine = jnp.sum(x * x, axis=1) < numbers["limit"]
        if see is not None:
            seen = jax.vmap(partial(see, given), (0, None, 0))(
                seen, number + 1, _vector_overlaps(x)
            )
        return x, jnp.where(fine, number + 1, good), seen

    return jax.lax.fori_loop(since, end, step, (x, jnp.broadcast_to(since, keys.shape), seen))
