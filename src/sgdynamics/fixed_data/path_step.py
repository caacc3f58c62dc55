"""The small matrices of one step of a set of paths, from the sums of the last pass over the paths.

Notation of `fixed_data.paths`: gradients g and normals Z are rows of n numbers, P and A the
bases, and

    a = <P, g>,  z = <P, Z>,  U = <A, g>,  S = g g^T - a a^T,  T S T^T = 1,  P_new = T (g - a P).

No operation here depends on the number of paths.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from sgdynamics.algorithms.fixed_data import thermal_noise_scale
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.base.arrays import IntScalar, Numeric, Scalar
from sgdynamics.fixed_data.path_state import Answers, Paths, Slots, Sums
from sgdynamics.fixed_data.sample_space import combine_rows, overlaps_from_rows
from sgdynamics.fixed_data.setup import LARGEST, Setup, StepParameters
from sgdynamics.fixed_data.update_memory import (
    KnownGradients,
    UpdateMemory,
    join,
    move,
    next_point,
    split,
)
from sgdynamics.problems.moves import LossOverlaps, loss_overlaps
from sgdynamics.samples.input_covariance import scale as input_scale

# The basis P has at most the number of paths over this: beyond, its span is not small within R^n,
# and the paths no longer represent the limit.
PATHS_PER_DIRECTION = 2
UNIT_SQUARE = 0.25  # squared norms above this are those of unit vectors, all others are zero


class StepMatrices(NamedTuple):
    """One step as small matrices, which a pass applies to P, A, g and Z."""

    combinations: Float[Numeric, "columns capacity"]  # corrected last P, a P and z P, as rows on P
    T: Float[Numeric, "gradients gradients"]
    on_new: Float[Numeric, "normals gradients blocks"]  # <Z, P_new>, lower triangular
    lengths: Float[Numeric, "gradients blocks"]  # f; 0 if no direction is added
    noise_scale: Float[Numeric, "normals blocks"]  # factor of the orthogonal part of Z; 0 likewise
    last_lengths: Float[Numeric, "gradients blocks"]  # f of the last step
    rows: Float[Numeric, "p blocks capacity"]  # weights after the step
    head: Float[Numeric, " p"]
    perturbation: Float[Numeric, "p blocks capacity"] | None
    # g in P (row 0) and X^T g in the e_k of each block, for bounded memory
    gradients: Float[Numeric, "p 1+blocks capacity"] | None
    count: IntScalar  # number of new directions
    # Rows, head and perturbation at which the pass evaluates the next gradient
    point: Float[Numeric, "p blocks capacity"]
    point_head: Float[Numeric, " p"]
    point_perturbation: Float[Numeric, "p blocks capacity"] | None
    memory: UpdateMemory | None = None
    answers: Answers | None = None
    memory_perturbation: Float[Numeric, "rows blocks capacity"] | None = None


def new_basis(
    S: Float[Numeric, "m m"], squares: Float[Numeric, " m"], tolerance: Scalar
) -> tuple[Float[Numeric, "m m"], Bool[Numeric, " m"]]:
    """T with T S T^T = 1 on the residuals of the gradients, and which of its rows are directions.

    Rows are ordered by decreasing eigenvalue of S_ij/(|g_i| |g_j|); an eigenvalue above
    tolerance^2 is a direction. Eigenvectors rather than Gram-Schmidt: where gradients are nearly
    parallel, the residual of each with respect to the others is mostly rounding.
    """
    norms = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    S = S / (norms[:, None] * norms)
    values, vectors = jnp.linalg.eigh(S) if len(S) > 1 else (S[0], jnp.ones((1, 1)))
    values, vectors = values[::-1], vectors[:, ::-1] * _signs(vectors[:, ::-1])
    is_new = values > tolerance**2
    inverse_root = jnp.where(is_new, jnp.where(is_new, values, 1.0) ** -0.5, 0.0)
    return (vectors / norms[:, None] * inverse_root).T, is_new


def _signs(vectors: Float[Numeric, "n n"]) -> Float[Numeric, " n"]:
    """Signs that make the choice of eigenvectors unique.

    LAPACK chooses the sign of an eigenvector by its code for the processor at hand, and the
    random numbers of a direction are multiplied by it: without a convention the same seed is a
    different realisation on a different processor. The sign of the product with a fixed vector
    decides. The entries of this vector are incommensurate, so that symmetric cases such as (1,
    -1)/sqrt(2) are decided too.
    """
    reference = 1.0 / (np.sqrt(2.0) + np.arange(len(vectors)))
    return jnp.where(reference @ vectors < 0, -1.0, 1.0)


def _inverse_factor(gram: Float[Numeric, "m m"]) -> Float[Numeric, "m m"]:
    """N with N gram N^T = 1, by Cholesky's decomposition."""
    if len(gram) == 1:
        return gram**-0.5
    factor = jnp.linalg.cholesky(gram)
    return jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(gram)), lower=True)


class _Correction(NamedTuple):
    """The second Gram-Schmidt pass over the P that the last step added.

    P_last <- N (P_last - q P) with q = <P, P_last> over the earlier P, and N such that the result
    is orthonormal. It is linear in P: `matrix` has the corrected P_last as rows on the stored P.
    """

    matrix: Float[Numeric, "gradients capacity"]
    slot: IntScalar

    @staticmethod
    def from_sums(sums: Sums, s: int, slots: Slots) -> _Correction:
        slot = jnp.arange(sums.P.shape[-1])
        q = sums.P[s : 2 * s] * (slot < slots.last_sample)
        gram = sums.new - q @ q.T
        # Rows that the last step did not add are zero; an identity in their place keeps N finite.
        exists = jnp.diagonal(gram) > UNIT_SQUARE
        both_exist = exists[:, None] & exists
        padded = jnp.where(both_exist, gram, 0.0) + jnp.diag(jnp.where(exists, 0.0, 1.0))
        N = _inverse_factor(padded) * both_exist
        matrix = jax.lax.dynamic_update_slice(-N @ q, N, (0, slots.last_sample))
        return _Correction(matrix, slots.last_sample)

    def products(self, sums: Float[Numeric, "m capacity"]) -> Float[Numeric, "m capacity"]:
        """<P, .> with the corrected P, from those with the stored P."""
        return jax.lax.dynamic_update_slice(sums, sums @ self.matrix.T, (0, self.slot))

    def on_stored(self, rows: Float[Numeric, "m capacity"]) -> Float[Numeric, "m capacity"]:
        """Combinations of the corrected P as combinations of the stored P."""
        s = len(self.matrix)
        on_last = jax.lax.dynamic_slice(rows, (0, self.slot), (len(rows), s))
        others = jax.lax.dynamic_update_slice(rows, jnp.zeros_like(on_last), (0, self.slot))
        return others + on_last @ self.matrix


def _corrected_A_products(
    setup: Setup,
    scale: Float[Numeric, " blocks"],
    paths: Paths,
    slots: Slots,
    a: Float[Numeric, "gradients capacity"],
) -> Float[Numeric, "gradients blocks capacity"]:
    """U = <A, g>, where A of the last directions follows P: A_last += f (P_corrected - P_last)."""
    s, blocks = setup.gradients_per_step, setup.structure.blocks
    moved = jax.lax.dynamic_slice(a - paths.sums.P[:s], (0, slots.last_sample), (s, s))
    U = jax.lax.dynamic_slice(paths.sums.A, (0, 0, slots.last_weight), (s, blocks, s))
    shift = scale[:, None] * jnp.einsum("gs,sb->gbs", moved, paths.last_lengths)
    return jax.lax.dynamic_update_slice(paths.sums.A, U + shift, (0, 0, slots.last_weight))


def step_matrices(
    setup: Setup, step: StepParameters, paths: Paths, slots: Slots, number: IntScalar, n: int
) -> tuple[StepMatrices, Bool[Numeric, ""]]:
    """The step of one set of n inputs from its sums, and whether the weights are finite."""
    all_steps, step = step, step.at_step(number // setup.passes)
    sizes = step.block_sizes
    s, z = setup.gradients_per_step, setup.normals_per_step
    p, blocks = setup.structure.width, setup.structure.blocks
    capacity = paths.rows.shape[-1]
    scale = input_scale(step.parameters)
    sums = paths.sums

    correction = _Correction.from_sums(sums, s, slots)
    a, zP = correction.products(sums.P[:s]), correction.products(sums.P[2 * s :])
    U = _corrected_A_products(setup, scale, paths, slots, a)

    # New directions: rows of T, as long as the basis is small compared with the number of paths
    # and, with cells, as long as the blocks of d_b = f_b n/alpha dimensions are not exhausted.
    S = sums.g - a @ a.T
    T, is_new = new_basis(S, jnp.diagonal(sums.g), step.tolerance)
    index = jnp.arange(s)
    paths_suffice = paths.sample_rank + index < n // PATHS_PER_DIRECTION
    is_added = (jnp.full(blocks, True) & paths_suffice[:, None]) & is_new[:, None]
    dimensions_left = sizes - (paths.weight_rank + index)[:, None]
    if setup.counts_directions:
        is_added = is_added & (dimensions_left > 0)
    is_new = jnp.any(is_added, axis=1)
    T = jnp.where(is_new[:, None], T, 0.0)

    # Orthogonal part of the normals: direction i takes Z_i without its part along P and along
    # P_new_0, ..., P_new_i. White noise has all new P taken off.
    zP = zP.reshape(z, blocks, capacity)
    gZ = sums.gZ - jnp.einsum("gk,zbk->gzb", a, zP)  # <g - a P, Z>
    B = T @ S  # <P_new, g>
    lower = jnp.concatenate([jnp.tril(jnp.ones((s, s))), jnp.ones((setup.noise_directions, s))])
    on_new = jnp.einsum("sg,gzb->zsb", T, gZ) * lower[:, :, None]
    square = sums.Z - jnp.sum(zP**2, axis=-1) - jnp.sum(on_new**2, axis=1)
    if setup.counts_directions:
        # The bases are a finite share of n and of d_b, as at finite d: the orthogonal part of Z
        # has n - rank - 1 dimensions, and chi^2 its mean d_b - rank.
        dimensions = (n - (paths.sample_rank + index[:z])[:, None]) - 1.0
        lengths = jnp.sqrt(jnp.maximum(dimensions_left, 0.0))
    else:
        dimensions = jnp.full((z, 1), float(n))
        lengths = jnp.sqrt(sizes) * jnp.ones((s, 1))
    # The norm is set to its mean: its fluctuation is of relative order n^-1/2, and only adds noise.
    noise_scale = jnp.sqrt(jnp.maximum(dimensions, 0.0) / jnp.where(square > 0, square, 1.0))
    lengths = jnp.where(is_added, lengths, 0.0)
    noise_scale = jnp.concatenate([jnp.where(is_added, noise_scale[:s], 0.0), noise_scale[s:]])

    # X^T g on the new directions, U_new = <A_new, g> = f <P_new, g> + <orthogonal part of Z, g>.
    noise_on_g = gZ[:, :s] - jnp.einsum("isb,sg->gib", on_new[:s], B)
    U_new = scale[:, None] * (
        jnp.einsum("ib,ig->gbi", lengths, B)
        + jnp.einsum("ib,gib->gbi", noise_scale[:s], noise_on_g)
    )
    first_new = slots.weight + setup.noise_directions
    gradient = jax.lax.dynamic_update_slice(U, U_new, (0, 0, first_new))

    if setup.structure.loss.reads_overlaps:
        assert sums.coefficients is not None
        assert paths.point is not None
        pull = combine_rows(setup, step.parameters, sums.coefficients, paths.point)
        gradient = gradient.at[:p].add(pull)
    state = _State.of(paths)
    if setup.law is None:
        moved = _plain_step(setup, step, state, gradient, sums.head, slots)
        point = Point(moved.rows, moved.head, moved.perturbation)
    else:
        stepper = UpdateStep(setup, all_steps, slots, capacity)
        moved = stepper.move(state, gradient, sums.head, sums.means or {}, number)
        point = stepper.next_point(moved, number + slots.has_sums)
    past = None
    if paths.past_gradients is not None:
        g_on_P = jax.lax.dynamic_update_slice(a, B.T, (0, slots.sample))
        past = jnp.concatenate([g_on_P[:p, None], gradient[:p]], axis=1)
    combinations = jnp.concatenate(
        [
            correction.matrix,
            correction.on_stored(a),
            correction.on_stored(zP.reshape(z * blocks, capacity)),
        ]
    )
    matrices = StepMatrices(
        combinations=combinations,
        T=T,
        on_new=on_new,
        lengths=lengths,
        noise_scale=noise_scale,
        last_lengths=paths.last_lengths,
        gradients=past,
        count=jnp.sum(is_new),
        point=point.rows,
        point_head=point.head,
        point_perturbation=point.perturbation,
        **moved._asdict(),
    )
    is_finite = jnp.all(jnp.abs(moved.rows) < LARGEST) & jnp.all(jnp.abs(moved.head) < LARGEST)
    if moved.memory is not None:
        is_finite &= jnp.all(jnp.abs(moved.memory.rows) < LARGEST)
    return matrices, is_finite


class _State(NamedTuple):
    """The arrays that a step changes, by the names of `Paths` and `StepMatrices`."""

    rows: Float[Numeric, "p blocks capacity"]
    head: Float[Numeric, " p"]
    perturbation: Float[Numeric, "p blocks capacity"] | None
    memory: UpdateMemory | None
    answers: Answers | None
    memory_perturbation: Float[Numeric, "rows blocks capacity"] | None

    @classmethod
    def of(cls, paths: Paths) -> _State:
        """The state of a set of paths."""
        return cls(*(getattr(paths, name) for name in cls._fields))

    @property
    def all_perturbations(self) -> Float[Numeric, "rows blocks capacity"]:
        """The perturbation of the rows of all sets."""
        assert self.perturbation is not None
        assert self.memory_perturbation is not None
        return jnp.concatenate([self.perturbation, self.memory_perturbation])


class Point(NamedTuple):
    """Rows, head and perturbation at which a gradient is evaluated."""

    rows: Numeric
    head: Numeric
    perturbation: Numeric | None


def _plain_step(
    setup: Setup,
    step: StepParameters,
    state: _State,
    gradient: Float[Numeric, "gradients blocks capacity"],
    head_gradient: Float[Numeric, " p"],
    slots: Slots,
) -> _State:
    """A plain step of rows, head and perturbation."""
    p, capacity = setup.structure.width, gradient.shape[-1]
    kick = None
    if setup.thermal:
        scale = thermal_noise_scale(step.hyperparameters, 1.0)
        kick = scale * white_noise(setup, step, slots, capacity)
    stride = _stride(setup, step)
    gradients = (gradient[:p].reshape(p, -1), head_gradient)
    rows, head = stride.move(state.rows.reshape(p, -1), state.head, gradients, kick, None)
    perturbation = None
    if setup.perturbed:
        assert state.perturbation is not None
        perturbation = move_perturbation(state.rows, state.perturbation, stride, gradient, kick)
    return state._replace(rows=rows.reshape(state.rows.shape), head=head, perturbation=perturbation)


def _stride(setup: Setup, step: StepParameters) -> Stride:
    return Stride(
        step.hyperparameters["lr"],
        step.hyperparameters["head_rate"],
        step.parameters["weight_decay"],
        setup.structure,
        step.parameters.get("head_decay"),
    )


def _means_of(answers: Answers) -> list[dict[str, Numeric]]:
    """The means over the samples that belong to each of the first gradients of a step."""
    return [
        {name: values[index] for name, values in answers.means.items()}
        for index in range(len(answers.rows))
    ]


class UpdateStep(NamedTuple):
    """The step of an update whose every gradient takes a pass over the paths.

    Pass k of a step, k = 0, 1, ..., answers its evaluation k. The last pass moves the weights.
    """

    setup: Setup
    step: StepParameters  # of all steps
    slots: Slots
    capacity: int

    def move(
        self,
        state: _State,
        gradient: Float[Numeric, "gradients blocks capacity"],
        head_gradient: Float[Numeric, " p"],
        means: dict[str, Numeric],
        number: IntScalar,
    ) -> _State:
        """The state after the pass `number` over the paths."""
        setup, p = self.setup, self.setup.structure.width
        assert state.answers is not None
        passes, index = setup.passes, number % setup.passes
        answers, is_last = state.answers, index == passes - 1
        if passes > 1:
            # The last pass writes over an entry that the next step does not read.
            slot = jnp.minimum(index, passes - 2)
            answers = Answers(
                jnp.asarray(answers.rows).at[slot].set(gradient),
                jnp.asarray(answers.head).at[slot].set(head_gradient),
                {
                    name: jnp.asarray(answers.means[name]).at[slot].set(value)
                    for name, value in means.items()
                },
            )
        earlier = state.answers
        all_means = [*_means_of(earlier), means]
        rows = jnp.concatenate([earlier.rows, gradient[None]])
        heads = jnp.concatenate([earlier.head, head_gradient[None]])

        def after(rows_and_memory: Numeric, gradients: Numeric) -> tuple[Numeric, Rows]:
            gradients_so_far = [
                (G.reshape(p, -1), g) for G, g in zip(gradients, heads, strict=True)
            ]
            arguments = (state, rows_and_memory, gradients_so_far, all_means)
            moved = self._take_step(*arguments, number // passes)
            return moved.rows.reshape(-1, *state.rows.shape[1:]), moved

        assert state.memory is not None
        everything = jnp.concatenate([state.rows, state.memory.rows])
        tangents = None
        if setup.perturbed:
            (_, moved), (tangents, _) = jax.jvp(
                after, (everything, rows[:, :p]), (state.all_perturbations, rows[:, p:])
            )
        else:
            moved = after(everything, rows[:, :p])[1]
        new_rows, head, memory = split(moved, p, len(state.head), state.rows.shape[1:])
        following = state._replace(rows=new_rows, head=head, memory=memory)
        if tangents is not None:
            following = following._replace(
                perturbation=tangents[:p], memory_perturbation=tangents[p:]
            )
        if passes > 1:
            following = jax.tree.map(
                lambda new, old: jnp.where(is_last, new, old), following, state
            )
        return following._replace(answers=answers)

    def _take_step(
        self,
        state: _State,
        everything: Numeric,
        gradients_so_far: list[tuple[Numeric, Numeric]],
        means: list[dict[str, Numeric]],
        number: IntScalar,
    ) -> Rows:
        """Rows of all sets, heads and scalars after a step with these gradients."""
        setup, step, p = self.setup, self.step.at_step(number), self.setup.structure.width
        assert setup.law is not None
        assert state.memory is not None
        noise = kicks = None
        if setup.thermal:
            noise = white_noise(setup, step, self.slots, self.capacity)
            if not setup.law.noise:
                scale = thermal_noise_scale(step.hyperparameters, 1.0)
                kicks = (scale * noise, jnp.zeros_like(state.head))
        before = join(everything[:p], state.head, state.memory._replace(rows=everything[p:]))
        source = KnownGradients(gradients_so_far, noise, partial(self._overlaps, step), means)
        arguments = (setup.law, step.hyperparameters, _stride(setup, step), before, source)
        return move(*arguments, number, kicks)

    def _overlaps(self, step: StepParameters, rows: Numeric) -> LossOverlaps:
        blocks = self.setup.structure.blocks
        rows = rows.reshape(len(rows), blocks, -1)
        M, Q = overlaps_from_rows(self.setup, step.parameters, rows)
        return loss_overlaps(step.parameters, Q, M)

    def next_point(self, state: _State, number: IntScalar) -> Point:
        """Rows and head at which the pass `number` evaluates its gradient."""
        setup, p = self.setup, self.setup.structure.width
        step = self.step.at_step(number // setup.passes)
        law, answers = setup.law, state.answers
        assert law is not None
        assert answers is not None
        memory = state.memory
        assert memory is not None

        def points(everything: Numeric, gradients: Numeric) -> tuple[Numeric, Numeric]:
            """Rows (p, ...) and head of this pass."""
            before = join(everything[:p], state.head, memory._replace(rows=everything[p:]))
            rows, heads = [], []
            # The means of a gradient that is not known yet do not change its point.
            zeros = {name: jnp.zeros(()) for name in law.means}
            means = _means_of(answers)
            for count in range(setup.passes):
                gradients_so_far = [
                    (gradients[index].reshape(p, -1), answers.head[index]) for index in range(count)
                ]
                noise = jnp.zeros_like(before.rows[:p]) if law.noise else None
                known_means = [*means[:count], zeros]
                overlaps = partial(self._overlaps, step)
                source = KnownGradients(gradients_so_far, noise, overlaps, known_means)
                arguments = (law, step.hyperparameters, _stride(setup, step), before, source)
                point, head = next_point(*arguments, number // setup.passes)
                rows.append(point.reshape(p, *everything.shape[1:]))
                heads.append(head)
            index = number % setup.passes
            return jnp.stack(rows)[index], jnp.stack(heads)[index]

        everything = jnp.concatenate([state.rows, memory.rows])
        if not setup.perturbed:
            return Point(*points(everything, answers.rows[:, :p]), None)
        (rows, head), (tangents, _) = jax.jvp(
            points,
            (everything, answers.rows[:, :p]),
            (state.all_perturbations, answers.rows[:, p:]),
        )
        return Point(rows, head, tangents)


def white_noise(
    setup: Setup, step: StepParameters, slots: Slots, capacity: int
) -> Float[Numeric, "p columns"]:
    """White noise N(0, I/d) on the rows at d -> infinity: one new direction per row.

    Its part along the old basis is of order d^-1/2 and vanishes in the limit; with d replaced by
    the number of paths it would only be sampling noise.
    """
    sizes = step.block_sizes
    p, blocks = setup.structure.width, setup.structure.blocks
    amplitude = jnp.sqrt(sizes / jnp.sum(sizes))
    on_new = jnp.moveaxis(amplitude[:, None, None] * jnp.eye(p), 0, 1)
    kick = jnp.zeros((p, blocks, capacity))
    return jax.lax.dynamic_update_slice(kick, on_new, (0, 0, slots.weight)).reshape(p, -1)


def move_perturbation(
    rows: Numeric, perturbation: Numeric, stride: Stride, gradient: Numeric, kick: Numeric | None
) -> Float[Numeric, "p blocks capacity"]:
    """The perturbation of first order after the step of the rows."""
    p = rows.shape[0]
    shrink = 1 - stride.size * stride.weight_decay
    perturbation = perturbation * shrink - stride.size * gradient[p:]
    constraint = stride.structure.constraint
    if not constraint.fixes_norms:
        return perturbation
    # The perturbation is orthogonal to the rows: the return to the sphere divides both by the
    # same norm.
    free_rows = rows * shrink - stride.size * gradient[:p]
    free_rows = free_rows if kick is None else free_rows + kick.reshape(free_rows.shape)
    return constraint.divide_by_norms(perturbation, free_rows, axes=(1, 2))


def unless_sums_missing(
    setup: Setup,
    step: StepParameters,
    matrices: StepMatrices,
    paths: Paths,
    slots: Slots,
    number: IntScalar,
) -> StepMatrices:
    """The step; if the sums do not belong to the weights yet, a step that changes nothing.

    The pass of such a step only computes the sums.
    """
    has_sums, state = slots.has_sums, _State.of(paths)
    point = Point(paths.rows, paths.head, paths.perturbation)
    if setup.law is not None:
        point = UpdateStep(setup, step, slots, paths.rows.shape[-1]).next_point(state, number)
    no_step = jax.tree.map(jnp.zeros_like, matrices)._replace(
        gradients=matrices.gradients,
        point=point.rows,
        point_head=point.head,
        point_perturbation=point.perturbation,
        **_State.of(paths)._asdict(),
    )
    return jax.tree.map(lambda leaf, other: jnp.where(has_sums, leaf, other), matrices, no_step)
