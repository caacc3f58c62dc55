"""The ODE of any update, from the lines that simulate it: the mean of one step on the limit's ground.

A step returns increments of its rows Z and scalars s. On columns [T | L | new], where an input is its projection on the rows and signals
that its gradient reads, and sqrt(n_b) along a new column of each block (n_b = f_b D; no chi, which is 1 there), at D = 1e14:

    d(Z Z^T)/dtau = D E[Z dZ^T + dZ Z^T + dZ dZ^T],     d(Z W*^T)/dtau = D E[dZ W*^T],     ds/dtau = D E[ds],     tau = steps/d

exact to rounding, as increments are small and are never added to what they move. Three ways to take the mean:

- an update that is linear in the gradient needs one step, along the mean gradient, with the noise E[h h^T]/B as rows of new columns;
- one that is linear and remembers O(1) steps runs at the stationary point of what it remembers;
- any other is averaged over points of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics import compressed
from sgdynamics.algorithms.updates.ground import Ground, Rows, Setting, increments, on_sphere
from sgdynamics.algorithms.updates.law import Law, copies
from sgdynamics.arrays import Numbers, Numeric, Scalar, State, Tree, Whole
from sgdynamics.controls import numbers_at, scheduled
from sgdynamics.gaussian.choice import expectation_of
from sgdynamics.gaussian.expectation import Rule
from sgdynamics.gaussian.nodes import lower_root, safe_ratio, sobol_normals, solve_forward
from sgdynamics.gaussian.risk import overlaps_at
from sgdynamics.limits.integration import Field, from_units, in_units
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import spectrum

LARGE, LESS_LARGE = 1e14, 1e10  # D of the limit, and another at which a user's update has to give the same
CHUNK = 4096  # points that go together
MOST_LATTICE = 4  # dimensions in which a lattice is better than Sobol points
LATTICE = {1: (0.2, 8.0), 2: (0.4, 7.0), 3: (0.6, 6.5), 4: (0.8, 6.0)}  # its step and radius, a replicate
UNROLLED = 4  # rows up to which the roots of every point's own matrices are written out
LOG2_POINTS, REPLICATES = 13, 4  # of Sobol points


@dataclass(frozen=True)
class UpdateStep(Field):
    """The mean step of an update as a field of the solve core; `each` has nodes of the closed expectations, or points of the fields.

    Its variable is t, or with a learning rate that depends on alpha, alpha.
    """

    structure: Structure
    rule: Rule
    batch: int
    law: Law
    by_noise: bool = False  # label noise is summed by hand, piece by piece, and is not among the points
    symmetric = ("rows_Q",)

    def __call__(self, each: Tree, shared: Numbers, t: Scalar, state: State) -> Any:
        lr, state = shared["algorithm"]["lr"], from_units(shared, state)
        alpha = t if scheduled(lr) else t * self.batch / lr
        now = numbers_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, alpha)
        rates = update_rates(self, each, now["problem"], now["algorithm"], shared["large"], alpha / self.batch, state)
        scale = 1 / self.batch if scheduled(lr) else 1 / lr
        return in_units(shared, jax.tree.map(lambda value: value * scale, rates))


def slow_rows(law: Law) -> tuple[str, ...]:
    """The sets of rows that are part of the ODE beside the weights: those that remember O(1) steps follow from the others."""
    return () if law.memory == "fast" else law.rows


def update_rates(
    field: UpdateStep, each: Tree, parameters: Numbers, algorithm: Numbers, D: Scalar, tau: Scalar, state: State
) -> dict[str, Any]:
    """d(state)/dtau of the overlaps of all slow rows, the head, the scalars and squares."""
    law = field.law
    oblique = law.lengthless and not law.noise and not field.structure.sphere
    frame = (_Oblique if oblique else _Frame)(field, parameters, D, state)
    lr, unit = algorithm["lr"], algorithm.get("unit", 1.0)
    setting = Setting(lr * unit, D * unit, tau * D, algorithm["head_rate"], parameters["weight_decay"], field.structure)
    reads = _read_at(law, algorithm["update"], frame, setting)
    if law.linear:
        return _linear_rates(field, each, parameters, algorithm, frame, setting, reads)
    return _averaged_rates(field, each, parameters, algorithm, frame, setting, reads)


class _Frame:
    """The rows of a state in orthonormal columns [T | L | new] of each block, and how to read overlaps from increments there."""

    def __init__(self, field: UpdateStep, parameters: Numbers, D: Scalar, state: State) -> None:
        structure, law = field.structure, field.law
        self.structure, self.law, self.parameters, self.D, self.state = structure, law, parameters, D, state
        self.p, self.k, self.blocks = structure.width, structure.signals, structure.blocks
        M, Q = state["rows_M"], state["rows_Q"]
        self.rows = Q.shape[-1]  # slow ones
        # of the chain; the columns that rows of fast sets have there stay empty
        spare = max(0, self.p - field.batch * structure.sample.inputs_a_sample) if law.coordinatewise else 0
        self.grouping = compressed.Grouping(structure, field.batch, single=True, update=law, spare=spare)
        self.inside = self.grouping.inside
        self.new = (1 + law.noise) * self.p if law.linear else self.grouping.columns
        C = jnp.broadcast_to(parameters["frame"], (self.blocks, self.k, self.k))
        T = _over(M, C)
        L = _root(Q - T @ jnp.swapaxes(T, -1, -2))
        self.Z = self._wide(jnp.concatenate([T, L], axis=-1))  # (blocks, rows, columns)
        self.S = self._wide(C)
        self.sizes = parameters["fractions"] * D
        self.eigenvalues = spectrum.eigenvalues(parameters)

    def _wide(self, part: Float[Numeric, "blocks n m"]) -> Any:
        return jnp.pad(part, ((0, 0), (0, 0), (0, self.inside + self.new - part.shape[-1])))

    def flat(self, part: Float[Numeric, "blocks n columns"]) -> Float[Numeric, "n flat"]:
        return jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1)

    def by_block(self, flat: Float[Numeric, "n flat"]) -> Float[Numeric, "blocks n columns"]:
        return jnp.moveaxis(flat.reshape(flat.shape[0], self.blocks, -1), 1, 0)

    def begin(self) -> Rows:
        """All sets at this state, those that are fast at 0; squares are written out along the columns."""
        state, missing = self.state, copies(self.law) * self.p - self.rows
        rows = jnp.pad(self.flat(self.Z), ((0, missing), (0, 0)))
        squares = tuple(self.spread_out(one) for one in state["update_squares"])
        return Rows(rows, jnp.pad(state["rows_a"], (0, missing)), tuple(state["update_scalars"]), squares)

    def spread_out(self, each: Float[Numeric, " p"]) -> Float[Numeric, "p flat"]:
        """Numbers of the units times the variance of each column's input."""
        return each[:, None] * jnp.repeat(self.eigenvalues, self.inside + self.new)

    def rates(self, step: Rows) -> dict[str, Any]:
        """D times the increments of the overlaps from those of the rows."""
        rows = step.rows[: self.rows]
        if self.structure.sphere:
            held = on_sphere(self.flat(self.Z)[: self.p], rows[: self.p])
            rows = jnp.concatenate([held, rows[self.p :]])
        dZ = self.by_block(rows)
        along = self.Z @ jnp.swapaxes(dZ, -1, -2)
        rest = {
            "rows_a": step.head[: self.rows],
            "update_scalars": jnp.stack(step.scalars) if step.scalars else self.state["update_scalars"] * 0,
        }
        dQ = along + jnp.swapaxes(along, -1, -2) + dZ @ jnp.swapaxes(dZ, -1, -2)
        if not self.structure.trained:
            rest["rows_a"] = jnp.zeros_like(rest["rows_a"])
        found = {"rows_M": dZ @ jnp.swapaxes(self.S, -1, -2), "rows_Q": dQ, **rest, "update_squares": self._gathered(step.squares)}
        return jax.tree.map(lambda value: self.D * value, found)

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        """M and Q of rows in this frame."""
        return {"M": rows @ jnp.swapaxes(self.S, -1, -2), "Q": rows @ jnp.swapaxes(rows, -1, -2)}

    def noisy(self, noise: Float[Numeric, "p p"], samples: Scalar | int) -> Float[Numeric, "blocks p p"]:
        """The noise of a gradient, of covariance E[h h^T] over so many samples, along new columns."""
        return jnp.sqrt(self.eigenvalues * self.sizes / samples)[:, None, None] * _root(noise)

    def _gathered(self, squares: tuple[Any, ...]) -> Any:
        """Increments of squares as numbers of the units: their mean over coordinates in units of the input's variance."""
        if not squares:
            return self.state["update_squares"] * 0
        weights = self.parameters["fractions"] / spectrum.trace(self.parameters)
        return jnp.stack([jnp.einsum("b,bp->p", weights, self.by_block(one)[..., -1]) for one in squares])

    def gram(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "blocks p p"]:
        """The covariance of the coordinates of a gradient in each block."""
        new = self.by_block(G)[..., self.inside :]
        return new @ jnp.swapaxes(new, -1, -2) / self.sizes[:, None, None]

    def squares(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """Mean squares of a gradient's coordinates, which are Gaussian over the coordinates of a block."""
        each = jnp.einsum("bpp->bp", self.gram(G))
        return self.flat(jnp.broadcast_to(each[..., None], (self.blocks, self.p, self.inside + self.new)))

    def sign(self, G: Float[Numeric, "p flat"]) -> Float[Numeric, "p flat"]:
        """The signs of Gaussian coordinates: along a row their mean is sqrt(2/pi) over the deviation, their products are arcsines."""
        gram = self.gram(G)
        size = jnp.sqrt(jnp.einsum("bpp->bp", gram))
        ratio = 1 / jnp.where(size > 0, size, 1.0)
        correlation = jnp.clip(gram * ratio[:, :, None] * ratio[:, None, :], -1.0, 1.0)
        root = (
            jax.vmap(partial(lower_root, unrolled=self.p <= UNROLLED))(2 / jnp.pi * jnp.arcsin(correlation))
            * jnp.sqrt(self.sizes)[:, None, None]
        )
        mean = jnp.sqrt(2 / jnp.pi) * ratio[..., None] * self.by_block(G)[..., : self.inside]
        return self.flat(jnp.concatenate([mean, jnp.pad(root, ((0, 0), (0, 0), (0, self.new - self.p)))], axis=-1))


class _Oblique(_Frame):
    """The same for updates that form no lengths: columns are coefficients on the rows, the signals and the noise, whose products are known.

    No root of a matrix is needed, which is most of the cost of the other frame.
    """

    def __init__(self, field: UpdateStep, parameters: Numbers, D: Scalar, state: State) -> None:
        structure, law = field.structure, field.law
        self.structure, self.law, self.parameters, self.D, self.state = structure, law, parameters, D, state
        self.p, self.k, self.blocks = structure.width, structure.signals, structure.blocks
        M, Q = state["rows_M"], state["rows_Q"]
        self.rows, self.new = Q.shape[-1], self.p
        self.inside = self.rows + self.k
        gram = jnp.broadcast_to(parameters["gram"], (self.blocks, self.k, self.k))
        across = jnp.concatenate([jnp.swapaxes(M, -1, -2), gram], axis=-1)
        self.products = jnp.concatenate([jnp.concatenate([Q, M], axis=-1), across], axis=-2)
        every = jnp.broadcast_to(jnp.eye(self.inside, self.inside + self.new), (self.blocks, self.inside, self.inside + self.new))
        self.Z, self.S = every[:, : self.rows], every[:, self.rows :]
        self.sizes = parameters["fractions"] * D
        self.eigenvalues = spectrum.eigenvalues(parameters)

    def overlaps(self, rows: Float[Numeric, "blocks n columns"]) -> dict[str, Any]:
        inside = rows[..., : self.inside]
        along = inside @ self.products
        return {"M": along[..., self.rows :], "Q": along @ jnp.swapaxes(inside, -1, -2)}

    def noisy(self, noise: Float[Numeric, "p p"], samples: Scalar | int) -> Float[Numeric, "blocks p p"]:
        self.noise = (self.eigenvalues * self.sizes / samples)[:, None, None] * noise
        return jnp.broadcast_to(jnp.eye(self.p), (self.blocks, self.p, self.p))

    def rates(self, step: Rows) -> dict[str, Any]:
        dZ = self.by_block(step.rows[: self.rows])
        inside, new = dZ[..., : self.inside], dZ[..., self.inside :]
        along = inside @ self.products
        both = jnp.swapaxes(along[..., : self.rows], -1, -2)
        square = along @ jnp.swapaxes(inside, -1, -2) + new @ self.noise @ jnp.swapaxes(new, -1, -2)
        head = step.head[: self.rows] if self.structure.trained else jnp.zeros(self.rows)
        found = {
            "rows_M": along[..., self.rows :],
            "rows_Q": both + jnp.swapaxes(both, -1, -2) + square,
            "rows_a": head,
            "update_scalars": jnp.stack(step.scalars) if step.scalars else self.state["update_scalars"] * 0,
            "update_squares": self.state["update_squares"] * 0,
        }
        return jax.tree.map(lambda value: self.D * value, found)


def _root(matrix: Float[Numeric, "... n n"]) -> Any:
    """Some L with L L^T = matrix, which may be singular: one call of LAPACK, where a triangular one would be a loop."""
    if matrix.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrix, 0.0))
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]


def _over(M: Float[Numeric, "blocks n K"], C: Float[Numeric, "blocks K K"]) -> Any:
    """T with M = T C^T, 0 along null pivots of the lower-triangular C."""
    if C.shape[-1] == 1:
        return safe_ratio(M, C)
    return jnp.swapaxes(jax.vmap(solve_forward)(C, jnp.swapaxes(M, -1, -2)), -1, -2)


class _Recorder(Ground):
    """Hears at which rows gradients are asked for."""

    def __init__(self, frame: _Frame) -> None:
        self.frame, self.heard = frame, []

    def note(self, rows: Numeric) -> None:
        if not any(rows is other for other in self.heard):
            self.heard.append(rows)

    def mean(self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None) -> tuple[Any, Any]:
        return jnp.zeros_like(rows), jnp.zeros_like(head)

    def each(self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None) -> tuple[Any, Any]:
        batch = self.frame.grouping.batch
        return jnp.zeros((batch, *rows.shape), rows.dtype), jnp.zeros((batch, *head.shape), head.dtype)

    def noise(self) -> Any:
        return jnp.zeros((self.frame.p, self.frame.blocks * (self.frame.inside + self.frame.new)))


def _read_at(law: Law, numbers: Numbers, frame: _Frame, setting: Setting) -> list[tuple[Any, Any]]:
    """The rows (blocks, p, columns) and heads at which a step takes its gradients, found by taking one whose gradients are 0."""
    state, ground = frame.begin(), _Recorder(frame)
    increments(law, numbers, state, ground, setting)
    trained, found = setting.structure.trained, []
    for rows in ground.heard or [state.rows[: frame.p]]:
        flat, head = (rows[:, :-1], rows[:, -1]) if trained and ground.heard else (rows, state.head[: frame.p])
        found.append((frame.by_block(flat), head))
    return found


@dataclass(frozen=True, eq=False)
class _MeanBatch(Ground):
    """A batch that is its mean gradient, with the noise as rows of new columns."""

    frame: _Frame
    G: Any
    g: Any

    def mean(self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None) -> tuple[Any, Any]:
        return self.G, self.g

    def noise(self) -> Any:
        frame = self.frame
        each = jnp.sqrt(frame.sizes)[:, None, None] * jnp.eye(frame.p)
        return frame.flat(jnp.pad(each, ((0, 0), (0, 0), (frame.inside + frame.p, 0))))

    def squares(self, G: Numeric) -> Any:
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Any:
        return self.frame.sign(G)


def _mean_batch(field: UpdateStep, each: Tree, parameters: Numbers, frame: _Frame, reads: list[Any], samples: Scalar | int) -> _MeanBatch:
    """A batch of so many samples."""
    (R, head), structure, p = reads[0], field.structure, frame.p
    at = frame.overlaps(R)
    found = expectation_of(structure).moments(field.rule, each["nodes"], parameters, overlaps_at(structure, parameters, at), head)
    coefficients = found.coefficients(parameters)
    G = coefficients[..., :p] @ R + coefficients[..., p:] @ frame.S
    G = frame.flat(G.at[..., frame.inside : frame.inside + p].set(frame.noisy(found.noise, samples)))
    return _MeanBatch(frame, G, found.head_gradient)


def map_step(
    field: UpdateStep, each: Tree, parameters: Numbers, algorithm: Numbers, share: Scalar, number: Scalar | Whole, state: State
) -> dict[str, Any]:
    """The state after one step on a batch of `share` d samples, with D = 1 in the update's units: deterministic as d -> infinity."""
    frame = _Frame(field, parameters, jnp.asarray(1.0), state)
    setting = Setting(algorithm["lr"], 1.0, number, algorithm["head_rate"], parameters["weight_decay"], field.structure)
    reads = _read_at(field.law, algorithm["update"], frame, setting)
    ground = _mean_batch(field, each, parameters, frame, reads, share)
    return jax.tree.map(jnp.add, state, frame.rates(increments(field.law, algorithm["update"], frame.begin(), ground, setting)))


def _linear_rates(
    field: UpdateStep, each: Tree, parameters: Numbers, algorithm: Numbers, frame: _Frame, setting: Setting, reads: list[Any]
) -> dict[str, Any]:
    ground = _mean_batch(field, each, parameters, frame, reads, field.batch)
    state = frame.begin()
    if field.law.memory == "fast" and field.law.rows:
        state = _stationary(field.law, algorithm["update"], state, ground, setting, frame.p)
    return frame.rates(increments(field.law, algorithm["update"], state, ground, setting))


def _stationary(law: Law, numbers: Numbers, state: Rows, ground: Ground, setting: Setting, p: int) -> Rows:
    """The state with its fast sets where they do not move: as they are linear, with the right mean and the right noise."""

    def moved(fast: Numeric) -> Any:
        rows, head = fast[:, :-1], fast[:, -1]
        now = state._replace(rows=jnp.concatenate([state.rows[:p], rows]), head=jnp.concatenate([state.head[:p], head]))
        step = increments(law, numbers, now, ground, setting)
        return jnp.concatenate([step.rows[p:], step.head[p:, None]], axis=1)

    rest = jnp.concatenate([state.rows[p:], state.head[p:, None]], axis=1) * 0
    first = jnp.zeros((len(rest), *rest.shape)).at[jnp.arange(len(rest)), jnp.arange(len(rest)), 0].set(1.0)
    matrix = jax.vmap(lambda one: jax.jvp(moved, (rest,), (one,))[1][:, 0])(first).T
    fast = jnp.linalg.solve(matrix, -moved(rest))
    rows, head = jnp.concatenate([state.rows[:p], fast[:, :-1]]), jnp.concatenate([state.head[:p], fast[:, -1]])
    return state._replace(rows=rows, head=head)


@dataclass(frozen=True, eq=False)
class _LimitBatch(compressed.ChainBatch):
    """A batch of points; what is coordinatewise is taken over the coordinates of a block."""

    frame: Any = None

    def squares(self, G: Numeric) -> Any:
        return self.frame.squares(G)

    def sign(self, G: Numeric) -> Any:
        return self.frame.sign(G)


def _averaged_rates(
    field: UpdateStep, each: Tree, parameters: Numbers, algorithm: Numbers, frame: _Frame, setting: Setting, reads: list[Any]
) -> dict[str, Any]:
    grouping, sample = frame.grouping, field.structure.sample
    # inputs by the fields they have: z_b = sqrt(l_b) X_b^T C^-T zeta on the rows X = (signals, rows read), C C^T their fields' covariance
    X = jnp.concatenate([frame.S, *(R for R, _ in reads)], axis=1)[..., : frame.inside]
    C = lower_root(spectrum.variance(parameters, X @ jnp.swapaxes(X, -1, -2)))
    onto = jnp.sqrt(frame.eigenvalues)[:, None, None] * jax.vmap(partial(solve_forward, C))(X)
    outside = jnp.sqrt(frame.sizes)[:, None, None] * jnp.eye(grouping.columns)
    state = frame.begin()

    def step(zeta: Numeric, noise: Numeric) -> Any:
        inside = jnp.einsum("...n,bnc->...bc", zeta.reshape(1, field.batch, *sample.token_shape, -1), onto)
        part = compressed.SpanDraws(inside, noise.reshape(1, field.batch, -1), outside)
        if grouping.kicks:
            part = part._replace(kicks=jnp.zeros((1, grouping.kicks, frame.blocks, frame.inside)))
        x, given = compressed.block_inputs(grouping, parameters, part)
        kicks = compressed.block_kicks(grouping, part)
        given = jax.tree.map(lambda one: one[0], given)
        ground = _LimitBatch(grouping, parameters, frame.D, x[0], given, outside, None if kicks is None else kicks[0], frame)
        return increments(field.law, algorithm["update"], state, ground, setting), ground

    def one(zeta: Numeric, noise: Numeric, weight: Numeric) -> Any:
        if not field.by_noise:
            return jax.tree.map(lambda value: weight * value, frame.rates(step(zeta, noise)[0]))
        # h is linear in the noise, along one direction: between where it vanishes, or is bent, a step is a polynomial of the noise
        (R, head), quiet = reads[0], jnp.zeros_like(noise)
        rows = frame.flat(R)
        h0, h1 = (step(zeta, quiet + shift)[1]._moves(rows, head, None, None)[2] for shift in (0.0, 1.0))
        slope = jnp.sqrt(jnp.sum((h1 - h0) ** 2))
        flat = slope == 0
        slope = jnp.where(flat, 1.0, slope)
        edges = [-jnp.sum(h0 * ((h1 - h0) / slope)) / slope]  # no square of the slope, which may be as small as it can be
        if field.law.bends:
            most = _inner_number(algorithm["update"], field.law.bends) / jnp.sqrt(spectrum.trace(parameters))
            slopes = jnp.sqrt(jnp.sum((h1 - h0) ** 2, axis=0)) if field.law.bends_by_row else slope[None]
            # a row that does not feel the noise does not bend by it
            reach = jnp.where(slopes > 0, most / jnp.where(slopes > 0, slopes, 1.0), jnp.inf)
            edges = list(jnp.sort(jnp.concatenate([edges[0] - reach, jnp.array(edges), edges[0] + reach])))
        total = None
        for low, high in zip([-jnp.inf, *edges], [*edges, jnp.inf], strict=True):
            for z, share in _two_points(low, high):
                found = frame.rates(step(zeta, quiet + jnp.where(flat, 0.0, z))[0])
                found = jax.tree.map(lambda value, share=share: weight * share * value, found)
                total = found if total is None else jax.tree.map(jnp.add, total, found)
        return total

    def chunk(total: Tree, nodes: Tree) -> tuple[Any, None]:
        found = jax.vmap(one)(*nodes)
        return jax.tree.map(lambda sum_, value: sum_ + jnp.sum(value, axis=0), total, found), None

    nodes = (each["fields"], each["noise"], each["weights"])
    shapes = jax.eval_shape(one, *(value[0, 0] for value in nodes))
    total, _ = jax.lax.scan(chunk, jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes), nodes)
    return total


def _inner_number(numbers: Numbers, name: str) -> Any:
    """A number of an update, or of the one inside it."""
    return numbers[name] if name in numbers else _inner_number(numbers["of"], name)


def _two_points(low: Scalar | Numeric, high: Scalar | Numeric) -> list[tuple[Any, Any]]:
    """Nodes and weights for a standard normal between two edges, exact for polynomials of degree 3 and less."""

    def density(z: Numeric, power: int) -> Any:
        finite = jnp.abs(z) < 40.0
        z = jnp.where(finite, z, 0.0)
        return jnp.where(finite, z**power * jnp.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), 0.0)

    low, high = jnp.asarray(low), jnp.asarray(high)
    # from the side where it is small, so that a tail is a small number and not 1 less another
    mass = jnp.where(low > 0, jax.scipy.special.ndtr(-low) - jax.scipy.special.ndtr(-high), 0.0)
    mass = jnp.where(low > 0, mass, jax.scipy.special.ndtr(high) - jax.scipy.special.ndtr(low))
    some = mass > 1e-280
    first, second, third = (density(low, power) - density(high, power) for power in range(3))
    over = 1 / jnp.where(some, mass, 1.0)
    mean = first * over
    spread = jnp.maximum(1 + second * over - mean**2, 0.0)
    cubed = (third + 2 * first) * over - 3 * mean * (1 + second * over) + 2 * mean**3
    some = some & (spread > 0)
    tilt = jnp.where(some, cubed / jnp.where(some, spread, 1.0), 0.0)
    root = jnp.sqrt(tilt**2 + 4 * spread)
    up, down = (tilt + root) / 2, (tilt - root) / 2
    share = jnp.where(root > 0, up / jnp.where(root > 0, root, 1.0), 0.5)
    return [(mean + down, mass * share), (mean + up, mass * (1 - share))]


def field_points(structure: Structure, batch: int, reads: int, *, quiet: bool, fine: float = 1.0) -> dict[str, np.ndarray]:
    """Points of the fields of a batch and of its draws, (replicates, chunks, points, ...), and their weights.

    `reads`: how many sets of rows gradients are taken at. `quiet`: the label noise is 0, or summed by hand. Few dimensions have a lattice,
    whose second replicate is shifted by half a step, more have Sobol points; `fine` > 1 makes both finer.
    """
    sample = structure.sample
    of_fields = batch * sample.inputs_a_sample * (structure.signals + reads * structure.width)
    of_draws = 0 if quiet else batch * sample.draw_normals
    if of_fields + of_draws <= MOST_LATTICE and not structure.kinks and sample.all_normal:
        points, weights = _lattice(of_fields + of_draws, fine)
    else:
        log2 = LOG2_POINTS + round(np.log2(fine))
        points = sobol_normals(of_fields + of_draws, log2, REPLICATES, whiten=True, seed=613)
        weights = np.full(points.shape[:2], 1 / points.shape[1])
    fields, noise = points[..., :of_fields], points[..., of_fields:]
    if quiet:
        noise = np.zeros((*fields.shape[:2], batch * sample.draw_normals))
    size = min(CHUNK, fields.shape[1])
    fill = -fields.shape[1] % size
    padded = [np.pad(one, ((0, 0), (0, fill)) + ((0, 0),) * (one.ndim - 2)) for one in (fields, noise, weights)]
    parts = [one.reshape(len(one), -1, size, *one.shape[2:]) for one in padded]
    return dict(zip(("fields", "noise", "weights"), parts, strict=True))


@lru_cache(maxsize=8)
def _lattice(dimensions: int, fine: float) -> tuple[np.ndarray, np.ndarray]:
    """The trapezoidal rule for standard normals, twice: from 0, and shifted by half a step. Both (2, n, dimensions), (2, n)."""
    step, radius = LATTICE[dimensions]
    step /= fine
    every = []
    for shift in (0.0, 0.5):
        axis = (np.arange(-int(radius / step) - 1, int(radius / step) + 2) + shift) * step
        grid = np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
        every.append(grid[np.sum(grid**2, axis=1) < radius**2])
    n = max(len(one) for one in every)
    weights = [np.exp(-0.5 * np.sum(one**2, axis=1)) for one in every]
    points = np.stack([np.pad(one, ((0, n - len(one)), (0, 0))) for one in every])
    return points, np.stack([np.pad(one / one.sum(), (0, n - len(one))) for one in weights])


def count_reads(field: UpdateStep, shared: Numbers, state: State) -> int:
    """At how many different sets of rows a step of the update takes its gradients."""
    found: list[int] = []

    def heard(shared: Numbers, state: State) -> Any:
        now = numbers_at({"problem": shared["problem"], "algorithm": shared["algorithm"]}, 0.0)
        frame = _Frame(field, now["problem"], shared["large"], from_units(shared, state))
        algorithm = now["algorithm"]
        setting = Setting(algorithm["lr"], shared["large"], 0.0, algorithm["head_rate"], now["problem"]["weight_decay"], field.structure)
        found.append(len(_read_at(field.law, algorithm["update"], frame, setting)))
        return 0.0

    jax.eval_shape(heard, shared, state)
    return found[0]
