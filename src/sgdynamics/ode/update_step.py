"""The ODE of any update, from the lines that simulate it: the mean of one step on the limit's ground.

A step returns increments of its rows Z and scalars s. On columns [T | L | new], where an input is
its projection on the rows and signals that its gradient reads, and sqrt(n_b) along a new column of
each block (n_b = f_b D; no chi, which is 1 there), at D = 1e14:

    d(Z Z^T)/dtau = D E[Z dZ^T + dZ Z^T + dZ dZ^T],     d(Z W*^T)/dtau = D E[dZ W*^T],     ds/dtau = D E[ds],     tau = steps/d

exact to rounding, as increments are small and are never added to what they move. Three ways to take
the mean:

- an update that is linear in the gradient needs one step, along the mean gradient, with the noise
  E[h h^T]/B as rows of new columns;
- one that is linear and remembers O(1) steps runs at the stationary point of what it remembers;
- any other is averaged over points of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from sgdynamics.algorithms.updates.gradient_source import (
    GradientSource,
    Rows,
    StepSettings,
    increments,
)
from sgdynamics.algorithms.updates.update import Law
from sgdynamics.base.arrays import IntScalar, Numeric, Parameters, PyTree, Scalar, State
from sgdynamics.base.controls import is_scheduled, values_at
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.nodes import lower_root, solve_forward
from sgdynamics.expectations.risk import overlaps_at
from sgdynamics.ode.case import Field, from_units, in_units
from sgdynamics.ode.update_frames import Frame, JointFrame, Oblique
from sgdynamics.ode.update_points import two_points, two_points_of_law
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance
from sgdynamics.simulation.chain_batch import ChainBatch, segment_inputs, segment_kicks
from sgdynamics.simulation.span_draws import SpanDraws

LIMIT_DIMENSION, COMPARISON_DIMENSION = (
    1e14,
    1e10,
)  # D of the limit, and another at which a user's update has to give the same


@dataclass(frozen=True)
class UpdateStep(Field):
    """The mean step of an update as a field of the solve core; `each` has nodes of the closed expectations, or points of the fields.

    Its variable is t, or with a learning rate that depends on alpha, alpha.
    """

    structure: Structure
    quadrature: Quadrature
    batch: int
    law: Law
    by_noise: bool = (
        False  # label noise is summed by hand, piece by piece, and is not among the points
    )
    noise_law: str | None = (
        None  # of that label noise, where it is not Gaussian; the structure's sample is Gaussian then
    )
    symmetric = ("rows_Q",)

    def __call__(self, each: PyTree, shared: Parameters, t: Scalar, state: State) -> Any:
        lr, state = shared["algorithm"]["lr"], from_units(shared, state)
        alpha = t if is_scheduled(lr) else t * self.batch / lr
        now = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, alpha)
        rates = update_rates(
            self, each, now["problem"], now["algorithm"], shared["large"], alpha / self.batch, state
        )
        scale = 1 / self.batch if is_scheduled(lr) else 1 / lr
        return in_units(shared, jax.tree.map(lambda value: value * scale, rates))


def slow_rows(law: Law) -> tuple[str, ...]:
    """The sets of rows that are part of the ODE beside the weights.

    Those that remember O(1) steps follow from the others.
    """
    return () if law.memory == "fast" else law.rows


def update_rates(
    field: UpdateStep,
    each: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    D: Scalar,
    tau: Scalar,
    state: State,
) -> dict[str, Any]:
    """d(state)/dtau of the overlaps of all slow rows, the head, the scalars and squares."""
    law = field.law
    oblique = law.linear_in_rows and not law.noise and not field.structure.constraint.fixes_norms
    frame = (Oblique if oblique else Frame)(field.structure, field.batch, law, parameters, D, state)
    lr, unit = algorithm["lr"], algorithm.get("unit", 1.0)
    setting = StepSettings(
        lr * unit,
        D * unit,
        tau * D,
        algorithm["head_rate"],
        parameters["weight_decay"],
        field.structure,
    )
    reads = _read_at(law, algorithm["update"], frame, setting)
    if law.linear:
        return _linear_rates(field, each, parameters, algorithm, frame, setting, reads)
    return _averaged_rates(field, each, parameters, algorithm, frame, setting, reads)


class _Recorder(GradientSource):
    """Hears at which rows gradients are asked for."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.heard = frame, []

    def note(self, rows: Numeric) -> None:
        if not any(rows is other for other in self.heard):
            self.heard.append(rows)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        return jnp.zeros_like(rows), jnp.zeros_like(head)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        batch = self.frame.batch
        return jnp.zeros((batch, *rows.shape), rows.dtype), jnp.zeros(
            (batch, *head.shape), head.dtype
        )

    def overlaps(self, rows: Numeric) -> Any:
        return self.frame.seen(rows)

    def noise(self) -> Any:
        return jnp.zeros((self.frame.p, self.frame.blocks * (self.frame.inside + self.frame.new)))


def _read_at(
    law: Law, numbers: Parameters, frame: Frame, setting: StepSettings
) -> list[tuple[Any, Any]]:
    """The rows (blocks, p, columns) and heads at which a step takes its gradients, found by taking one whose gradients are 0."""
    state, ground = frame.begin(), _Recorder(frame)
    increments(law, numbers, state, ground, setting)
    trained, found = setting.structure.trained, []
    for rows in ground.heard or [state.rows[: frame.p]]:
        flat, head = (
            (rows[:, :-1], rows[:, -1])
            if trained and ground.heard
            else (rows, state.head[: frame.p])
        )
        found.append((frame.by_block(flat), head))
    return found


@dataclass(frozen=True, eq=False)
class _MeanBatch(GradientSource):
    """A batch that is its mean gradient, with the noise as rows of new columns."""

    frame: Frame
    G: Any
    g: Any

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Any, Any]:
        return self.G, self.g

    def overlaps(self, rows: Numeric) -> Any:
        return self.frame.seen(rows)

    def noise(self) -> Any:
        frame = self.frame
        each = jnp.sqrt(frame.sizes)[:, None, None] * jnp.eye(frame.p)
        return frame.flat(jnp.pad(each, ((0, 0), (0, 0), (frame.inside + frame.p, 0))))

    def squares(self, G: Numeric) -> Any:
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Any:
        return self.frame.sign(G)


def _mean_batch(
    field: UpdateStep,
    each: PyTree,
    parameters: Parameters,
    frame: Frame,
    reads: list[Any],
    samples: Scalar | int,
) -> _MeanBatch:
    """A batch of so many samples."""
    (R, head), structure, p = reads[0], field.structure, frame.p
    at = frame.overlaps(R)
    found = expectation_of(structure).moments(
        field.quadrature, each["nodes"], parameters, overlaps_at(structure, parameters, at), head
    )
    coefficients = found.coefficients(parameters)
    G = coefficients[..., :p] @ R + coefficients[..., p:] @ frame.S
    G = frame.flat(
        G.at[..., frame.inside : frame.inside + p].set(frame.noisy(found.noise, samples))
    )
    return _MeanBatch(frame, G, found.head_gradient)


def map_step(
    field: UpdateStep,
    each: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    share: Scalar,
    number: Scalar | IntScalar,
    state: State,
) -> dict[str, Any]:
    """The state after one step on a batch of `share` d samples, with D = 1 in the update's units.

    Deterministic as d -> infinity.
    """
    frame = Frame(field.structure, field.batch, field.law, parameters, jnp.asarray(1.0), state)
    setting = StepSettings(
        algorithm["lr"],
        1.0,
        number,
        algorithm["head_rate"],
        parameters["weight_decay"],
        field.structure,
    )
    reads = _read_at(field.law, algorithm["update"], frame, setting)
    ground = _mean_batch(field, each, parameters, frame, reads, share)
    return jax.tree.map(
        jnp.add,
        state,
        frame.rates(increments(field.law, algorithm["update"], frame.begin(), ground, setting)),
    )


def _linear_rates(
    field: UpdateStep,
    each: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    frame: Frame,
    setting: StepSettings,
    reads: list[Any],
) -> dict[str, Any]:
    ground = _mean_batch(field, each, parameters, frame, reads, field.batch)
    state = frame.begin()
    if field.law.memory == "fast" and field.law.rows:
        state = _stationary(field.law, algorithm["update"], state, ground, setting, frame.p)
    return frame.rates(increments(field.law, algorithm["update"], state, ground, setting))


def _stationary(
    law: Law,
    numbers: Parameters,
    state: Rows,
    ground: GradientSource,
    setting: StepSettings,
    p: int,
) -> Rows:
    """The state with its fast sets where they do not move.

    As they are linear, with the right mean and the right noise.
    """

    def moved(fast: Numeric) -> Any:
        rows, head = fast[:, :-1], fast[:, -1]
        now = state._replace(
            rows=jnp.concatenate([state.rows[:p], rows]),
            head=jnp.concatenate([state.head[:p], head]),
        )
        step = increments(law, numbers, now, ground, setting)
        return jnp.concatenate([step.rows[p:], step.head[p:, None]], axis=1)

    rest = jnp.concatenate([state.rows[p:], state.head[p:, None]], axis=1) * 0
    first = (
        jnp.zeros((len(rest), *rest.shape))
        .at[jnp.arange(len(rest)), jnp.arange(len(rest)), 0]
        .set(1.0)
    )
    matrix = jax.vmap(lambda one: jax.jvp(moved, (rest,), (one,))[1][:, 0])(first).T
    fast = jnp.linalg.solve(matrix, -moved(rest))
    rows, head = (
        jnp.concatenate([state.rows[:p], fast[:, :-1]]),
        jnp.concatenate([state.head[:p], fast[:, -1]]),
    )
    return state._replace(rows=rows, head=head)


@dataclass(frozen=True, eq=False)
class _LimitBatch(ChainBatch):
    """A batch of points; what is coordinatewise is taken over the coordinates of a block."""

    frame: Any = None

    def squares(self, G: Numeric) -> Any:
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Any:
        return self.frame.sign(G)


def _averaged_rates(
    field: UpdateStep,
    each: PyTree,
    parameters: Parameters,
    algorithm: Parameters,
    frame: Frame,
    setting: StepSettings,
    reads: list[Any],
) -> dict[str, Any]:
    # a loss that reads overlaps may read those of each block
    view = frame if frame.blocks == 1 or field.structure.loss.reads_overlaps else JointFrame(frame)
    layout, sample = view.layout, field.structure.sample
    # inputs by the fields they have: z_b = sqrt(l_b) X_b^T C^-T zeta on the rows X = (signals, rows
    # read), C C^T their fields' covariance
    X = jnp.concatenate([frame.S, *(R for R, _ in reads)], axis=1)[..., : frame.inside]
    C = lower_root(input_covariance.field_covariance(parameters, X @ jnp.swapaxes(X, -1, -2)))
    onto = view.input_map(jax.vmap(partial(solve_forward, C))(X))
    outside, state = view.outside, view.begin()

    def step(zeta: Numeric, noise: Numeric) -> Any:
        inside = jnp.einsum(
            "...n,bnc->...bc", zeta.reshape(1, field.batch, *sample.tokens.shape, -1), onto
        )
        part = SpanDraws(inside, noise.reshape(1, field.batch, -1), outside)
        if layout.kicks:
            part = part._replace(
                kicks=jnp.zeros((1, layout.kicks, layout.structure.blocks, view.inside))
            )
        x, given = segment_inputs(layout, view.parameters, part)
        kicks = segment_kicks(layout, part)
        given = jax.tree.map(lambda one: one[0], given)
        kicks = None if kicks is None else kicks[0]
        ground = _LimitBatch(layout, view.parameters, frame.D, x[0], given, outside, kicks, view)
        return increments(field.law, algorithm["update"], state, ground, setting), ground

    def one(zeta: Numeric, noise: Numeric, weight: Numeric) -> Any:
        if not field.by_noise:
            return jax.tree.map(lambda value: weight * value, view.rates(step(zeta, noise)[0]))
        # h is linear in the noise, along one direction: between where it vanishes, or is bent, a
        # step is a polynomial of the noise
        (R, head), quiet = reads[0], jnp.zeros_like(noise)
        rows = view.coordinates(R)
        h0, h1 = (
            step(zeta, quiet + shift)[1]._moves(rows, head, None, None)[2] for shift in (0.0, 1.0)
        )
        slope = jnp.sqrt(jnp.sum((h1 - h0) ** 2))
        flat = slope == 0
        slope = jnp.where(flat, 1.0, slope)
        edges = [
            -jnp.sum(h0 * ((h1 - h0) / slope)) / slope
        ]  # no square of the slope, which may be as small as it can be
        if field.law.bends:
            most = _inner_number(algorithm["update"], field.law.bends) / jnp.sqrt(
                input_covariance.trace(parameters)
            )
            slopes = (
                jnp.sqrt(jnp.sum((h1 - h0) ** 2, axis=0)) if field.law.bends_by_row else slope[None]
            )
            # a row that does not feel the noise does not bend by it
            reach = jnp.where(slopes > 0, most / jnp.where(slopes > 0, slopes, 1.0), jnp.inf)
            edges = list(
                jnp.sort(jnp.concatenate([edges[0] - reach, jnp.array(edges), edges[0] + reach]))
            )
        total = None
        for low, high in zip([-jnp.inf, *edges], [*edges, jnp.inf], strict=True):
            if field.noise_law is None:
                pieces = two_points(low, high)
            else:
                pieces = two_points_of_law(field.noise_law, parameters["noise_law"], low, high)
            for z, share in pieces:
                found = view.rates(step(zeta, quiet + jnp.where(flat, 0.0, z))[0])
                found = jax.tree.map(lambda value, share=share: weight * share * value, found)
                total = found if total is None else jax.tree.map(jnp.add, total, found)
        return total

    def chunk(total: PyTree, nodes: PyTree) -> tuple[Any, None]:
        found = jax.vmap(one)(*nodes)
        return jax.tree.map(lambda sum_, value: sum_ + jnp.sum(value, axis=0), total, found), None

    nodes = (each["fields"], each["noise"], each["weights"])
    shapes = jax.eval_shape(one, *(value[0, 0] for value in nodes))
    total, _ = jax.lax.scan(
        chunk, jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes), nodes
    )
    return view.combine(total)


def _inner_number(numbers: Parameters, name: str) -> Any:
    """A number of an update, or of the one inside it."""
    return numbers[name] if name in numbers else _inner_number(numbers["of"], name)


def count_reads(field: UpdateStep, shared: Parameters, state: State) -> int:
    """At how many different sets of rows a step of the update takes its gradients."""
    found: list[int] = []

    def heard(shared: Parameters, state: State) -> Any:
        now = values_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, 0.0)
        frame = Frame(
            field.structure,
            field.batch,
            field.law,
            now["problem"],
            shared["large"],
            from_units(shared, state),
        )
        algorithm = now["algorithm"]
        setting = StepSettings(
            algorithm["lr"],
            shared["large"],
            0.0,
            algorithm["head_rate"],
            now["problem"]["weight_decay"],
            field.structure,
        )
        found.append(len(_read_at(field.law, algorithm["update"], frame, setting)))
        return 0.0

    jax.eval_shape(heard, shared, state)
    return found[0]
