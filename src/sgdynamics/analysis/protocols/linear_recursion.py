"""The exact mean risk of a linear student as a pure, differentiable function of piecewise learning rates and batches.

A step g on a batch B takes c_b = sum over block b of E[(w_j - w*_j)^2], for n_b inputs of variance l_b each, to

    c_b' = q_b c_b + (g^2/B) n_b l_b (kappa sum l c + s2),   q_b = 1 - 2 g l_b + g^2 (1 - 1/B + 2 kappa/B) l_b^2

(`sgdynamics.scaling.modes`, where weight decay stands too), and the excess risk is sum l c/2. Few steps are taken one by one. Many steps of
one rate are a power of one matrix, diagonal and of rank one, and come from squaring it: which of the two is cheaper is known beforehand.
Reverse mode goes through both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RealArray, Scalar
from sgdynamics.base.controls import piecewise_rate
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.linear import modes_of, output_gain, output_weights

MOST_STEPS = 10**12
MOST_ONE_BY_ONE = 10**8
KEPT = (
    1 << 24
)  # numbers of a path that the gradient keeps; beyond, it keeps some and computes the rest again
# seconds of a step with its gradient, for itself and for a block; of a squaring, for a block cubed (measured, one core)
STEP, STEP_BLOCK, SQUARING = 2.3e-6, 8e-9, 2.5e-10


@pytrees.register_parameters("numbers")
@dataclass(frozen=True)
class LinearRecursion:
    """The exact mean recursion of a linear student over so many steps; `linear_recursion` makes it.

    A pytree: its numbers (spectrum, start, noise, steps, ...) are traced, and another one of the same shapes compiles nothing again.
    """

    numbers: Parameters
    room: int  # steps that there is room for: numbers["steps"] rounded up
    decays: bool  # whether there is weight decay
    method: str | None = None  # "steps" or "powers"; the cheaper one unless said

    @property
    def steps(self) -> int:
        """How many."""
        return int(self.numbers["steps"])

    @property
    def blocks(self) -> int:
        """How many different eigenvalues there are."""
        return len(self.numbers["eigenvalues"])

    @property
    def batch(self) -> float:
        """That of the algorithm, which holds unless others are given."""
        return float(self.numbers["batch"])

    def edges(self, pieces: int) -> Int[Numeric, " edges"]:
        """The steps at which pieces begin and end: shares as equal as whole numbers allow."""
        here = jnp if checks.is_traced(self.numbers["steps"]) else np
        return here.asarray(self.numbers["steps"]) * here.arange(pieces + 1) // pieces

    @float64
    def risks(
        self,
        rates: Float[Numeric, " pieces"],
        batches: RealArray | None = None,
        edges: Int[Numeric, " edges"] | None = None,
    ) -> Float[Numeric, " edges"]:
        """The mean excess risk at the edges of the pieces, (pieces + 1,): a pure function that JAX can transform.

        Parameters
        ----------
        rates : (pieces,)
            In the units of the algorithm, ``per``.
        batches : (pieces,) or float, optional
            Real numbers above 0; the algorithm's batch unless given.
        edges : (pieces + 1,), optional
            Steps at which the pieces begin and end, from 0 on, increasing; equal shares of all steps unless given.

        Returns
        -------
        array
            Not finite where the mean has left every bound.
        """
        numbers, pieces = self.numbers, len(rates)
        batches = jnp.broadcast_to(
            jnp.asarray(numbers["batch"] if batches is None else batches, dtype=float), (pieces,)
        )
        longest = self.room if edges is not None else -(-self.room // pieces)
        ends = jnp.asarray(self.edges(pieces) if edges is None else edges)
        method = self.method or cheaper(self.room, pieces, longest, self.blocks)
        inside = (
            partial(_by_steps, self.room)
            if method == "steps"
            else partial(_by_powers, longest.bit_length())
        )
        rates = jnp.asarray(rates, dtype=float) * numbers["unit"]

        def group(scale: Scalar, errors: Numeric, along: Numeric) -> Any:
            here = {**numbers, "decay": numbers["decay"] / scale if self.decays else None}
            return inside(here, (errors, along), rates * scale, batches, ends)

        found = jax.vmap(group)(numbers["scale"], numbers["errors"], numbers["along"])
        risks = numbers["weights"] @ found / 2
        # outside of float64, where a caller may be, JAX would cut its own array to float32 at the next touch
        return risks if checks.is_traced(risks) else np.asarray(risks)

    def schedule(
        self, rates: Float[Numeric, " pieces"], edges: Int[Numeric, " edges"] | None = None
    ) -> Any:
        """Rates as ``lr`` for ``solve_linear`` and ``simulate``: a function of alpha = samples/d (of steps, where d is infinite)."""
        inner = np.asarray(self.edges(len(rates)) if edges is None else edges)[1:-1]
        if not len(inner):
            return float(np.asarray(rates)[0])
        return piecewise_rate(inner * float(self.numbers["clock"]), np.asarray(rates))


@float64
def linear_recursion(
    problem: Problem,
    algorithm: OnePassSGD,
    start: Start,
    *,
    steps: int,
    dimension: float | None = None,
    kappa: float = 1.0,
    method: str | None = None,
) -> LinearRecursion:
    """The exact mean recursion of what ``solve_linear`` takes, over so many steps.

    Parameters
    ----------
    problem : TeacherStudent
        A linear student on any spectrum, as for ``solve_linear``.
    algorithm : OnePassSGD
        Its batch, and the units of rates (``per``); its own learning rate is not read.
    start : Start
        Where; the mean over several runs.
    steps : int
        The end.
    dimension : int, optional
        d; a problem whose covariance is a ``sgd.Spectrum`` knows it.
    kappa : float, default 1.0
        As for ``solve_linear``.
    method : str, optional
        "steps" or "powers"; the cheaper one unless given.

    Returns
    -------
    LinearRecursion
        With ``.risks(rates, batches)``.

    Raises
    ------
    ValueError
        If the student is not linear, or an argument is refused.
    """
    algorithm = validate_algorithm(algorithm, "solve_linear", problem)
    weights = output_weights(problem)
    d, sizes = check_dimension(problem, dimension, small=True)
    begin = validate_start(problem, start)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    kappa = checks.number("kappa", kappa, above=0.0)
    method = None if method is None else checks.choice("method", method, ("steps", "powers"))
    dynamics = FieldDynamics(problem, algorithm)
    students = [modes_of(dynamics, begin, run, weights, sizes, kappa) for run in range(begin.runs)]
    # runs with the same head move by one linear map: their mean stands for them
    gains = np.array([output_gain(begin, run) for run in range(begin.runs)])
    scale, group = np.unique(gains, return_inverse=True)
    share = (group[None] == np.arange(len(scale))[:, None]) / np.bincount(group)[:, None]
    first, decay = students[0], float(dynamics.parameters["weight_decay"])
    infinite = problem.spectrum is not None and problem.spectrum.infinite
    numbers = {
        "eigenvalues": first.eigenvalues,
        "counts": first.counts,
        "targets": np.asarray(first.targets),
        "errors": share @ np.stack([one.errors for one in students]),
        "along": share @ np.stack([np.asarray(one.along) for one in students]),
        "scale": scale,
        "weights": np.bincount(group) / begin.runs,
        "noise": np.float64(first.noise),
        "kappa": np.float64(kappa),
        "decay": np.float64(decay),
        "batch": np.float64(algorithm.batch),
        "unit": np.float64(1 / (float(algorithm.unit) * d)),
        "clock": np.float64(1.0 if infinite else algorithm.batch / d),
        "steps": np.int64(steps),
    }
    return LinearRecursion(numbers, room_for(steps), decay != 0, method)


def room_for(steps: int) -> int:
    """A number of steps rounded up by a quarter at most, so that nearly equal ones share a program."""
    unit = 1 << max(steps.bit_length() - 3, 4)
    return -(-steps // unit) * unit


def cheaper(steps: int, pieces: int, longest: int, blocks: int) -> str:
    """Which way takes less time."""
    one_by_one = steps * (STEP + STEP_BLOCK * blocks)
    squared = pieces * longest.bit_length() * (STEP + SQUARING * blocks**3)
    return "steps" if one_by_one <= squared and steps <= MOST_ONE_BY_ONE else "powers"


def _survival(numbers: Parameters, g: Scalar, batch: Scalar) -> tuple[Any, Any, Any]:
    """1 - q of a step, its feedback g^2/B, and (with weight decay) what is lost of the mean error, 1 - rho = g (l + al)."""
    along = g * numbers["eigenvalues"]
    square = 1 + (2 * numbers["kappa"] - 1) / batch
    if numbers["decay"] is None:
        return along * (2 - square * along), g**2 / batch, None
    pull = g * numbers["decay"]
    return pull * (2 - pull) + along * (2 * (1 - pull) - square * along), g**2 / batch, along + pull


def _by_steps(
    room: int, numbers: Parameters, begin: PyTree, rates: Numeric, batches: Numeric, edges: Numeric
) -> Any:
    """sum l c at the edges of pieces, step by step; steps after the last have rate 0, and change nothing."""
    number = jnp.arange(room)
    piece = jnp.clip(jnp.searchsorted(edges, number, side="right") - 1, 0, len(rates) - 1)
    each = jnp.where(number < edges[-1], rates[piece], 0.0), batches[piece]
    each_l, decay = numbers["eigenvalues"], numbers["decay"]
    weight = numbers["counts"] * each_l

    def step(state: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        c, m = state
        lost, feedback, behind = _survival(numbers, *now)
        total = each_l @ c
        moved = c - lost * c + feedback * (numbers["kappa"] * total + numbers["noise"]) * weight
        if decay is not None:
            pull = now[0] * decay
            moved = moved + pull * (pull * numbers["targets"] - 2 * (1 - behind) * m)
            m = m - behind * m - pull * numbers["targets"]
        return (moved, m), total

    if room * len(each_l) <= KEPT:
        end, totals = jax.lax.scan(jax.checkpoint(step), begin, each)
    else:
        chunks = 1 << (room.bit_length() - 3) // 2  # a divisor of the room, near its root
        each = jax.tree.map(lambda values: values.reshape(chunks, -1), each)
        end, totals = jax.lax.scan(
            jax.checkpoint(lambda state, here: jax.lax.scan(step, state, here)), begin, each
        )
    return jnp.append(totals.reshape(-1), each_l @ end[0])[edges]


def _by_powers(
    bits: int, numbers: Parameters, begin: PyTree, rates: Numeric, batches: Numeric, edges: Numeric
) -> Any:
    """sum l c at the edges of pieces, by squaring the map of a step, in r = c/sqrt(n), where it is symmetric.

    r' = r - E r + X m + b, m' = m - z m + t (z and t of weight decay, X a matrix from its second power on): E, not 1 - E, is kept, so that
    what is small in it is not lost beside 1.
    """
    decay, root = numbers["decay"], jnp.sqrt(numbers["counts"])
    w = numbers["eigenvalues"] * root

    def piece(state: tuple[Any, Any], now: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any], Any]:
        g, batch, length = now
        lost, feedback, behind = _survival(numbers, g, batch)
        E, b = (
            jnp.diag(lost) - numbers["kappa"] * feedback * jnp.outer(w, w),
            feedback * numbers["noise"] * w,
        )
        rest = None
        if decay is not None:
            pull, target = g * decay, numbers["targets"] / root
            b = b + pull**2 * target
            rest = jnp.diag(-2 * pull * (1 - behind)), behind, -pull * target

        def bit(carry: PyTree, _: None) -> tuple[Any, None]:
            (r, m), (E, b, rest), left = carry
            odd = left % 2 == 1
            moved = r - E @ r + b
            if rest is not None:
                X, z, t = rest
                moved, m = moved + X @ m, jnp.where(odd, m - z * m + t, m)
            # squares that nobody asks for stay finite: the gradient would take 0 times infinity from them
            E, b, rest = jax.tree.map(lambda value: jnp.where(left > 1, value, 0.0), (E, b, rest))
            twice = 2 * b - E @ b
            if rest is not None:
                X, z, t = rest
                twice, rest = twice + X @ t, (2 * X - E @ X - X * z, 2 * z - z**2, 2 * t - z * t)
            return ((jnp.where(odd, moved, r), m), (2 * E - E @ E, twice, rest), left // 2), None

        carry, _ = jax.lax.scan(bit, (state, (E, b, rest), length), length=bits)
        return carry[0], w @ carry[0][0]

    begin = begin[0] / root, begin[1] / root
    _, totals = jax.lax.scan(jax.checkpoint(piece), begin, (rates, batches, jnp.diff(edges)))
    return jnp.append(w @ begin[0], totals)
