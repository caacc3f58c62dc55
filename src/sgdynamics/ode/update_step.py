"""The ODE of any update: the mean of one step, taken by the code that simulates it.

A step returns increments of its rows Z and its scalars s. It is taken in columns [T | L | new]
(`ode.update_frames`). Inside, an input is its projection on the rows and signals that the gradient
reads; outside, it has the length sqrt(n_b) along a new column of each block, n_b = f_b D. With
D = 1e14 and tau = steps/d the overlaps follow

    d(Z Z^T)/dtau = D E[Z dZ^T + dZ Z^T + dZ dZ^T],     d(Z W*^T)/dtau = D E[dZ W*^T],
    ds/dtau = D E[ds].

This is exact to rounding, because increments are small and are never added to the rows that they
change. The mean is taken in one of three ways:

- An update that is linear in the gradient needs a single step along the mean gradient, with the
  noise E[h h^T]/B as rows of new columns.
- A linear update with a memory of O(1) steps is evaluated at the stationary point of its memory.
- Any other update is averaged over points of the fields (`ode.update_average`).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    append_head,
    detach_head,
    increments,
)
from sgdynamics.algorithms.updates.update import Law
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.head_squares import head_squares
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.ode.case import Field, from_units, in_units
from sgdynamics.ode.update_average import (
    PointAverage,
    StepInputs,
    evaluation_points,
)
from sgdynamics.ode.update_frames import Frame, ObliqueFrame
from sgdynamics.problems.moves import LossOverlaps
from sgdynamics.problems.problem import Structure

# D of the limit. Increments of relative order 1/D are still resolved by float64.
LIMIT_DIMENSION = 1e14
# Another large D, at which the mean step of a user's own update has to be the same.
COMPARISON_DIMENSION = 1e10


@dataclass(frozen=True)
class UpdateStep(Field):
    """The mean step of an update as a vector field of the integrator.

    Its variable is t, or alpha if the learning rate is a schedule. `replicate` contains the nodes
    of closed expectations for a linear update, otherwise points of the fields.

    Attributes
    ----------
    structure : Structure
        Structure of the problem.
    quadrature : Quadrature
        Fineness of the expectations of a linear update.
    batch : int
        Number of samples per step.
    law : Law
        Static part of the update.
    sums_noise : bool
        Whether label noise is integrated piece by piece instead of being among the points.
    noise_law : str or None
        Law of that label noise; None if it is Gaussian. The sample of `structure` is Gaussian then.
    """

    structure: Structure
    quadrature: Quadrature
    batch: int
    law: Law
    sums_noise: bool = False
    noise_law: str | None = None
    symmetric = ("rows_Q",)

    def __call__(self, replicate: PyTree, shared: Parameters, t: Scalar, state: State) -> State:
        lr, state = shared["algorithm"]["lr"], from_units(shared, state)
        # alpha = steps B/d and t = lr steps/d
        alpha = t if is_scheduled(lr) else t * self.batch / lr
        values = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, alpha)
        rates = update_rates(
            self,
            replicate,
            values["problem"],
            values["algorithm"],
            shared["large"],
            alpha / self.batch,
            state,
        )
        # d/dalpha = (1/B) d/dtau and d/dt = (1/lr) d/dtau
        scale = 1 / self.batch if is_scheduled(lr) else 1 / lr
        return in_units(shared, jax.tree.map(lambda rate: rate * scale, rates))


def slow_rows(law: Law) -> tuple[str, ...]:
    """Return the names of the sets of rows that are part of the ODE in addition to the weights.

    A memory of O(1) steps is not: it follows from the weights.
    """
    return () if law.memory == "fast" else law.rows


def update_rates(
    field: UpdateStep,
    replicate: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    D: Scalar,
    tau: Scalar,
    state: State,
) -> dict[str, Numeric]:
    """Return d/dtau of the overlaps of all slow rows, of the head, the scalars and the squares."""
    law = field.law
    # Oblique columns know the inner products of the rows, not their lengths. Lengths are needed for
    # the update's own noise, for rows on the sphere, and for a step at a point of the samples.
    is_oblique = (
        law.linear
        and law.linear_in_rows
        and not (law.noise or field.structure.constraint.fixes_norms)
    )
    frame_class = ObliqueFrame if is_oblique else Frame
    frame = frame_class(field.structure, field.batch, law, parameters, D, state)
    # "unit" converts lr/D of the user's units to those of the dimension.
    lr, unit = algorithm["lr"], algorithm.get("unit", 1.0)
    settings = StepSettings(
        lr * unit,
        D * unit,
        tau * D,
        algorithm["head_rate"],
        parameters["weight_decay"],
        field.structure,
        parameters.get("head_decay"),
    )
    points = evaluation_points(law, algorithm["update"], frame, settings)
    inputs = StepInputs(field, replicate, parameters, algorithm, frame, settings, points)
    return _linear_rates(inputs) if law.linear else PointAverage(inputs).rates()


@dataclass(frozen=True, eq=False)
class _MeanBatch(GradientSource):
    """A batch in the limit: its mean gradient, with the gradient noise as rows of new columns.

    Attributes
    ----------
    frame : Frame
        The columns.
    G : array, (p, columns)
        Gradient of the rows.
    g : array, (p,)
        Gradient of the head.
    g_squares : array, (p,), optional
        Mean squares of the gradient of the head over a batch.
    """

    frame: Frame
    G: Float[Numeric, "p columns"]
    g: Float[Numeric, " p"]
    g_squares: Float[Numeric, " p"] | None = None

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        # A linear update evaluates one gradient only, at the rows for which it was computed.
        return self.G, self.g

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        return self.frame.overlaps_for_loss(rows)

    def noise(self) -> Numeric:
        # Independent standard normals in n_b coordinates: orthogonal rows of length sqrt(n_b), in
        # the columns behind those of the gradient noise.
        frame = self.frame
        rows = jnp.sqrt(frame.sizes)[:, None, None] * jnp.eye(frame.p)
        return frame.flatten_blocks(jnp.pad(rows, ((0, 0), (0, 0), (frame.inside + frame.p, 0))))

    def select(self, rows: Numeric, share: Scalar | None, count: Scalar | None) -> Numeric:
        return self.frame.select(rows, share, count)

    def squares(self, G: Numeric) -> Numeric:
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Numeric:
        return self.frame.sign(G)

    def head_squares(self, g: Numeric) -> Numeric:
        # Weight decay inside of the gradient shifts its mean and not its variance.
        assert self.g_squares is not None
        return self.g_squares + g**2 - self.g**2


def _mean_batch(inputs: StepInputs, samples: Scalar | int) -> _MeanBatch:
    """Return a batch of this many samples at the only evaluation point of a linear update.

    Its mean gradient is E[h x^T] = coefficients [R | S] on the rows R and signals S, by Stein's
    lemma.
    """
    field, parameters, frame = inputs.field, inputs.parameters, inputs.frame
    structure, p = field.structure, frame.p
    R, head = inputs.points[0]
    overlaps = overlaps_at(structure, parameters, frame.overlaps(R))
    moments = expectation_of(structure).moments(
        field.quadrature, inputs.replicate["nodes"], parameters, overlaps, head
    )
    coefficients = moments.coefficients(parameters)
    G = coefficients[..., :p] @ R + coefficients[..., p:] @ frame.S
    # The first p new columns are the noise of the gradient.
    noise = frame.noise_columns(moments.noise, samples)
    G = jnp.asarray(G).at[..., frame.inside : frame.inside + p].set(noise)
    g, g_squares = moments.head_gradient, None
    if has_head_squares(field.law, structure):
        # E[(mean over a batch)^2] = E[l^2]/B + (1 - 1/B) E[l]^2 for each entry of the head.
        of_sample = head_squares(
            structure,
            field.quadrature,
            inputs.replicate["head_nodes"],
            parameters,
            overlaps,
            head,
        )
        g_squares = of_sample / samples + (1 - 1 / samples) * g**2
    return _MeanBatch(frame, frame.flatten_blocks(G), g, g_squares)


def has_head_squares(law: Law, structure: Structure) -> bool:
    """Whether the mean step needs mean squares of the gradient of a trained head."""
    return law.linear and bool(law.vector_names(structure.trained))


def map_step(
    field: UpdateStep,
    replicate: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    samples_ratio: Scalar,
    number: Scalar | IntScalar,
    state: State,
) -> State:
    """Return the state after one step on a batch of `samples_ratio` d samples.

    A batch of order d makes a step of order one, which is deterministic as d -> infinity. In the
    units of the update D is 1, and the noise of the mean gradient is that of `samples_ratio`
    samples.
    """
    frame = Frame(field.structure, field.batch, field.law, parameters, jnp.asarray(1.0), state)
    settings = StepSettings(
        algorithm["lr"],
        1.0,
        number,
        algorithm["head_rate"],
        parameters["weight_decay"],
        field.structure,
        parameters.get("head_decay"),
    )
    points = evaluation_points(field.law, algorithm["update"], frame, settings)
    inputs = StepInputs(field, replicate, parameters, algorithm, frame, settings, points)
    batch = _mean_batch(inputs, samples_ratio)
    step = increments(field.law, algorithm["update"], frame.step_state(), batch, settings)
    return jax.tree.map(jnp.add, state, frame.rates(step))


def _linear_rates(inputs: StepInputs) -> dict[str, Numeric]:
    """Return the rates of an update that is linear in the gradient, from one step."""
    law, hyperparameters = inputs.field.law, inputs.algorithm["update"]
    batch = _mean_batch(inputs, inputs.field.batch)
    state = inputs.frame.step_state()
    if law.memory == "fast" and law.rows:
        state = _with_stationary_memory(
            law, hyperparameters, state, batch, inputs.settings, inputs.frame.p
        )
    if law.fast_vectors:
        state = _with_stationary_vectors(law, hyperparameters, state, batch, inputs.settings)
    return inputs.frame.rates(increments(law, hyperparameters, state, batch, inputs.settings))


def _with_stationary_vectors(
    law: Law,
    hyperparameters: Parameters,
    state: Rows,
    batch: GradientSource,
    settings: StepSettings,
) -> Rows:
    """Return the state with the fast vectors over the head at their stationary point.

    Each entry of such a vector follows dv = slope v + constant by itself.
    """
    names = law.vector_names(settings.structure.trained)
    is_fast = [name in law.fast_vectors for name in names]

    def changes(value: float) -> tuple[Numeric, ...]:
        """Return the increments of the vectors with this value of the fast ones."""
        vectors = tuple(
            jnp.full_like(vector, value) if fast else vector
            for vector, fast in zip(state.vectors, is_fast, strict=True)
        )
        moved = state._replace(vectors=vectors)
        return increments(law, hyperparameters, moved, batch, settings).vectors

    at_zero, at_unity = changes(0.0), changes(1.0)
    stationary = tuple(
        -constant / (change - constant) if fast else vector
        for vector, fast, constant, change in zip(
            state.vectors, is_fast, at_zero, at_unity, strict=True
        )
    )
    return state._replace(vectors=stationary)


def _with_stationary_memory(
    law: Law,
    hyperparameters: Parameters,
    state: Rows,
    batch: GradientSource,
    settings: StepSettings,
    p: int,
) -> Rows:
    """Return the state with the fast sets of rows at their stationary point.

    The memory V of an update that forgets in O(1) steps follows dV = A V + b G with constant A, and
    the weights move little meanwhile: V = -A^-1 b G. Since this is linear in G, the noise of the
    gradient passes through it with the right covariance, which includes the correlations between
    successive steps.
    """

    n = settings.structure.head_size

    def join(rows: Numeric, heads: Numeric) -> Array:
        """Append to each set of rows its head."""
        sets = len(law.rows)
        pairs = zip(jnp.split(rows, sets), jnp.split(heads, sets), strict=True)
        return jnp.concatenate([append_head(*pair) for pair in pairs])

    def with_fast_rows(joint_rows: Numeric) -> Rows:
        """Return the state with these fast rows and heads."""
        sets = [detach_head(rows, n) for rows in jnp.split(joint_rows, len(law.rows))]
        rows, heads = zip(*sets, strict=True)
        return state._replace(
            rows=jnp.concatenate([state.rows[:p], *rows]),
            head=jnp.concatenate([state.head[:n], *heads]),
        )

    def fast_increments(fast: Float[Numeric, "fast columns"]) -> Float[Array, "fast columns"]:
        """Return the increments of the fast rows, with their heads as last columns."""
        step = increments(law, hyperparameters, with_fast_rows(fast), batch, settings)
        return join(step.rows[p:], step.head[n:])

    zero = join(state.rows[p:], state.head[n:]) * 0
    # A mixes rows and is the same for all columns, so that it is read off the first column.
    count = len(zero)
    index = jnp.arange(count)
    unit_vectors = jnp.zeros((count, *zero.shape)).at[index, index, 0].set(1.0)
    matrix = jax.vmap(lambda unit: jax.jvp(fast_increments, (zero,), (unit,))[1][:, 0])(
        unit_vectors
    ).T
    return with_fast_rows(jnp.linalg.solve(matrix, -fast_increments(zero)))


def count_reads(field: UpdateStep, shared: Parameters, state: State) -> int:
    """Return the number of different sets of rows at which a step of the update takes gradients."""
    counts: list[int] = []

    def trace_step(shared: Parameters, state: State) -> float:
        """Take one step without gradients, and note how many points it reads."""
        values = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, 0.0)
        parameters, algorithm = values["problem"], values["algorithm"]
        D, state = shared["large"], from_units(shared, state)
        frame = Frame(field.structure, field.batch, field.law, parameters, D, state)
        settings = StepSettings(
            algorithm["lr"],
            D,
            0.0,
            algorithm["head_rate"],
            parameters["weight_decay"],
            field.structure,
            parameters.get("head_decay"),
        )
        points = evaluation_points(field.law, algorithm["update"], frame, settings)
        counts.append(len(points))
        return 0.0

    # The number is known when the step is traced: nothing is computed.
    jax.eval_shape(trace_step, shared, state)
    return counts[0]
