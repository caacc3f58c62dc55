"""The exact mean risk of a linear student as a function of piecewise learning rates and batches.

Let c_b be the sum of E[(w_j - w*_j)^2] over block b, which has n_b inputs of variance l_b. A step
of size g on a batch of B samples, with label noise s2, maps it to

    c_b' = q_b c_b + (g^2/B) n_b l_b (kappa sum l c + s2),
    q_b = 1 - 2 g l_b + g^2 (1 - 1/B + 2 kappa/B) l_b^2,

and the excess risk is sum l c/2. `sgdynamics.scaling.modes` derives it, also with weight decay. A
few steps are computed one by one. Many steps with one rate are a power of one matrix, a diagonal
one plus one of rank one, which comes from repeated squaring. The cheaper method is known before
anything is compiled. Both are differentiable in reverse mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RealArray, Scalar
from sgdynamics.base.controls import Schedule, piecewise_rate
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.fields import FieldDynamics
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start, validate_start
from sgdynamics.problems.problem import Problem
from sgdynamics.solvers.linear import modes_of, output_gain, output_weights

MOST_STEPS = 10**12
# Most steps that are computed one by one.
MOST_SINGLE_STEPS = 10**8
# Most entries of a path that reverse mode stores; of longer paths it recomputes chunks.
MOST_STORED = 1 << 24
# Seconds, measured on one core: a step with its gradient, the same per block, and a squaring per
# block cubed.
STEP_COST, STEP_COST_PER_BLOCK, SQUARING_COST = 2.3e-6, 8e-9, 2.5e-10


@pytrees.register_parameters("parameters")
@dataclass(frozen=True)
class LinearRecursion:
    """The exact mean recursion of a linear student over a number of steps.

    It is made by `linear_recursion`. It is a pytree whose parameters (spectrum, initial errors,
    noise, number of steps) are traced: another one of the same shapes is not compiled again.

    Attributes
    ----------
    parameters : dict
        Traced values by name.
    padded_steps : int
        Number of steps, rounded up by `pad_steps`, which fixes shapes.
    has_decay : bool
        Whether there is weight decay.
    method : str or None
        "steps" or "powers"; None chooses the cheaper one.
    """

    parameters: Parameters
    padded_steps: int
    has_decay: bool
    method: str | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.parameters["steps"])

    @property
    def eigenvalues(self) -> np.ndarray:
        """Different eigenvalues l_b of the input covariance."""
        return self.parameters["eigenvalues"]

    @property
    def counts(self) -> np.ndarray:
        """Multiplicities n_b of the eigenvalues."""
        return self.parameters["counts"]

    @property
    def batch(self) -> float:
        """Batch size of the algorithm, the default of all pieces."""
        return float(self.parameters["batch"])

    def edges(self, pieces: int) -> Int[Numeric, " edges"]:
        """Edges of pieces in steps, as equally spaced as integers allow."""
        numpy = jnp if checks.is_traced(self.parameters["steps"]) else np
        return numpy.asarray(self.parameters["steps"]) * numpy.arange(pieces + 1) // pieces

    @float64
    def risks(
        self,
        rates: Float[Numeric, " pieces"],
        batches: RealArray | None = None,
        edges: Int[Numeric, " edges"] | None = None,
    ) -> Float[Numeric, " edges"]:
        """The mean excess risk at the edges, as a pure function that JAX can transform.

        Parameters
        ----------
        rates : (pieces,)
            Learning rates in the units ``per`` of the algorithm.
        batches : (pieces,) or float, optional
            Batch sizes, real numbers above 0. Defaults to the batch of the algorithm.
        edges : (pieces + 1,), optional
            Edges of the pieces in steps, increasing from 0. Defaults to equal shares of all steps.

        Returns
        -------
        (pieces + 1,)
            Mean excess risk; not finite where the mean has overflowed.
        """
        parameters, pieces = self.parameters, len(rates)
        batch = parameters["batch"] if batches is None else batches
        all_batches = jnp.broadcast_to(jnp.asarray(batch, dtype=float), (pieces,))
        longest = self.padded_steps if edges is not None else -(-self.padded_steps // pieces)
        all_edges = jnp.asarray(self.edges(pieces) if edges is None else edges)
        method = self.method
        if method is None:
            method = choose_method(self.padded_steps, pieces, longest, len(self.eigenvalues))
        if method == "steps":
            sums_at_edges = partial(_iterate_steps, self.padded_steps)
        else:
            sums_at_edges = partial(_square_steps, longest.bit_length())
        step_sizes = jnp.asarray(rates, dtype=float) * parameters["unit"]

        def group_sums(
            scale: Scalar, errors: Numeric, mean_errors: Numeric
        ) -> Float[Array, " edges"]:
            """sum l c of the runs with one output gain, which scales their steps."""
            decay = parameters["decay"] / scale if self.has_decay else None
            group = {**parameters, "decay": decay}
            initial = (errors, mean_errors)
            return sums_at_edges(group, initial, step_sizes * scale, all_batches, all_edges)

        groups = (parameters["scale"], parameters["errors"], parameters["mean_errors"])
        risks = parameters["weights"] @ jax.vmap(group_sums)(*groups) / 2
        # A caller may be outside of float64, where JAX would truncate its arrays to float32.
        return risks if checks.is_traced(risks) else np.asarray(risks)

    def schedule(
        self, rates: Float[Numeric, " pieces"], edges: Int[Numeric, " edges"] | None = None
    ) -> float | Schedule:
        """The rates as ``lr`` for ``solve_linear`` and ``simulate``.

        The schedule is a function of alpha = samples/d, or of steps if d is infinite.
        """
        inner = np.asarray(self.edges(len(rates)) if edges is None else edges)[1:-1]
        if not len(inner):
            return float(np.asarray(rates)[0])
        return piecewise_rate(inner * float(self.parameters["clock"]), np.asarray(rates))


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
    """The exact mean recursion of a linear student, as in ``solve_linear``, over some steps.

    Parameters
    ----------
    problem : TeacherStudent
        A linear student on any spectrum, as for ``solve_linear``.
    algorithm : OnePassSGD
        The training algorithm: its batch and the units of rates (``per``). Its own learning rate
        is not used.
    start : Start
        Initial condition. The risk is the mean over several runs.
    steps : int
        Number of steps.
    dimension : int, optional
        Dimension d; defaults to that of the covariance if it is a ``sgd.Spectrum``.
    kappa : float, default 1.0
        Ratio of E|x|^4 to that of a Gaussian of the same covariance, as for ``solve_linear``.
    method : str, optional
        "steps" or "powers". Defaults to the cheaper one.

    Returns
    -------
    LinearRecursion
        The recursion, whose method ``risks(rates, batches)`` evaluates it.

    Raises
    ------
    ValueError
        If the student is not linear, or an argument is invalid.
    """
    algorithm = validate_algorithm(algorithm, "solve_linear", problem)
    weights = output_weights(problem)
    d, block_sizes = check_dimension(problem, dimension, small=True)
    initial = validate_start(problem, start)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    kappa = checks.number("kappa", kappa, above=0.0)
    if method is not None:
        method = checks.choice("method", method, ("steps", "powers"))
    dynamics, runs = FieldDynamics(problem, algorithm), range(initial.runs)
    students = [modes_of(dynamics, initial, run, weights, block_sizes, kappa) for run in runs]
    # Runs with the same head obey one affine recursion, so that their mean obeys it too.
    gains = np.array([output_gain(initial, run) for run in runs])
    scale, group = np.unique(gains, return_inverse=True)
    average = (group[None] == np.arange(len(scale))[:, None]) / np.bincount(group)[:, None]
    modes, decay = students[0], float(dynamics.parameters["weight_decay"])
    is_infinite = problem.spectrum is not None and problem.spectrum.infinite
    parameters = {
        "eigenvalues": modes.eigenvalues,
        "counts": modes.counts,
        # sums over a block: w*_j^2, E[(w_j - w*_j)^2], and w*_j E[w_j - w*_j]
        "targets": np.asarray(modes.targets),
        "errors": average @ np.stack([student.errors for student in students]),
        "mean_errors": average @ np.stack([np.asarray(student.along) for student in students]),
        # groups of runs: output gains, and shares of all runs
        "scale": scale,
        "weights": np.bincount(group) / initial.runs,
        "noise": np.float64(modes.noise),
        "kappa": np.float64(kappa),
        "decay": np.float64(decay),
        "batch": np.float64(algorithm.batch),
        # step size g per learning rate, and alpha per step
        "unit": np.float64(1 / (float(algorithm.unit) * d)),
        "clock": np.float64(1.0 if is_infinite else algorithm.batch / d),
        "steps": np.int64(steps),
    }
    return LinearRecursion(parameters, pad_steps(steps), decay != 0, method)


def pad_steps(steps: int) -> int:
    """A number of steps rounded up by at most a quarter, so that similar ones share a program."""
    unit = 1 << max(steps.bit_length() - 3, 4)
    return -(-steps // unit) * unit


def choose_method(steps: int, pieces: int, longest: int, blocks: int) -> str:
    """The cheaper method, "steps" or "powers"; `longest` is the number of steps of a piece."""
    step_seconds = steps * (STEP_COST + STEP_COST_PER_BLOCK * blocks)
    power_seconds = pieces * longest.bit_length() * (STEP_COST + SQUARING_COST * blocks**3)
    return "steps" if step_seconds <= power_seconds and steps <= MOST_SINGLE_STEPS else "powers"


def _step_coefficients(parameters: Parameters, g: Scalar, batch: Scalar) -> tuple[Any, Any, Any]:
    """Coefficients of a step of size g: 1 - q_b, g^2/B, and 1 - rho_b = g (l_b + decay).

    rho_b is the factor of the mean error; it is None without weight decay.
    """
    gl = g * parameters["eigenvalues"]
    square = 1 + (2 * parameters["kappa"] - 1) / batch
    if parameters["decay"] is None:
        return gl * (2 - square * gl), g**2 / batch, None
    pull = g * parameters["decay"]
    loss = pull * (2 - pull) + gl * (2 * (1 - pull) - square * gl)
    return loss, g**2 / batch, gl + pull


def _iterate_steps(
    padded_steps: int,
    parameters: Parameters,
    initial: PyTree,
    rates: Numeric,
    batches: Numeric,
    edges: Numeric,
) -> Float[Array, " edges"]:
    """sum l c at the edges, step by step.

    Steps after the last edge have the rate 0 and change nothing.
    """
    index = jnp.arange(padded_steps)
    piece = jnp.clip(jnp.searchsorted(edges, index, side="right") - 1, 0, len(rates) - 1)
    schedule = jnp.where(index < edges[-1], rates[piece], 0.0), batches[piece]
    eigenvalues, decay = parameters["eigenvalues"], parameters["decay"]
    weight = parameters["counts"] * eigenvalues

    def step(state: tuple[Any, Any], settings: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        c, m = state
        loss, feedback, mean_loss = _step_coefficients(parameters, *settings)
        total = eigenvalues @ c
        source = parameters["kappa"] * total + parameters["noise"]
        new_c = c - loss * c + feedback * source * weight
        if decay is not None:
            pull = settings[0] * decay
            new_c = new_c + pull * (pull * parameters["targets"] - 2 * (1 - mean_loss) * m)
            m = m - mean_loss * m - pull * parameters["targets"]
        return (new_c, m), total

    if padded_steps * len(eigenvalues) <= MOST_STORED:
        end, totals = jax.lax.scan(jax.checkpoint(step), initial, schedule)
    else:
        # Reverse mode stores the state at the start of each chunk only. The number of chunks is a
        # power of two near the square root of the steps; it divides the padded number of steps.
        chunks = 1 << (padded_steps.bit_length() - 3) // 2
        schedule = jax.tree.map(lambda values: values.reshape(chunks, -1), schedule)
        advance_chunk = jax.checkpoint(lambda state, chunk: jax.lax.scan(step, state, chunk))
        end, totals = jax.lax.scan(advance_chunk, initial, schedule)
    return jnp.append(totals.reshape(-1), eigenvalues @ end[0])[edges]


def _square_steps(
    bits: int,
    parameters: Parameters,
    initial: PyTree,
    rates: Numeric,
    batches: Numeric,
    edges: Numeric,
) -> Float[Array, " edges"]:
    """sum l c at the edges, by repeated squaring of the map of one step.

    In r = c/sqrt(n), where the map is symmetric, and with the mean errors m of weight decay,

        r' = r - E r + X m + b,    m' = m - z m + t.

    X is diagonal for one step and a full matrix from the second power on. The algorithm squares
    1 - E in terms of E, because the small entries of E would be lost to rounding next to 1.
    """
    decay, root = parameters["decay"], jnp.sqrt(parameters["counts"])
    w = parameters["eigenvalues"] * root

    def advance_piece(
        state: tuple[Any, Any], piece: tuple[Any, Any, Any]
    ) -> tuple[tuple[Any, Any], Any]:
        g, batch, length = piece
        loss, feedback, mean_loss = _step_coefficients(parameters, g, batch)
        E = jnp.diag(loss) - parameters["kappa"] * feedback * jnp.outer(w, w)
        b = feedback * parameters["noise"] * w
        decay_map = None
        if decay is not None:
            pull, target = g * decay, parameters["targets"] / root
            b = b + pull**2 * target
            decay_map = jnp.diag(-2 * pull * (1 - mean_loss)), mean_loss, -pull * target

        def advance_bit(carry: PyTree, _: None) -> tuple[Any, None]:
            """Apply the current power if the lowest bit is set, then square it."""
            (r, m), (E, b, decay_map), remaining = carry
            is_odd = remaining % 2 == 1
            new_r = r - E @ r + b
            if decay_map is not None:
                X, z, t = decay_map
                new_r, m = new_r + X @ m, jnp.where(is_odd, m - z * m + t, m)
            # Powers that are not needed could overflow, and 0 times infinity would enter the
            # gradient: they are replaced by zero.
            E, b, decay_map = jax.tree.map(
                lambda value: jnp.where(remaining > 1, value, 0.0), (E, b, decay_map)
            )
            squared_b = 2 * b - E @ b
            if decay_map is not None:
                X, z, t = decay_map
                squared_b = squared_b + X @ t
                decay_map = (2 * X - E @ X - X * z, 2 * z - z**2, 2 * t - z * t)
            squared = (2 * E - E @ E, squared_b, decay_map)
            return ((jnp.where(is_odd, new_r, r), m), squared, remaining // 2), None

        carry, _ = jax.lax.scan(advance_bit, (state, (E, b, decay_map), length), length=bits)
        return carry[0], w @ carry[0][0]

    scaled = initial[0] / root, initial[1] / root
    pieces = (rates, batches, jnp.diff(edges))
    _, totals = jax.lax.scan(jax.checkpoint(advance_piece), scaled, pieces)
    return jnp.append(w @ scaled[0], totals)
