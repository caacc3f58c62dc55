"""A step of a set of paths as small matrices, from the sums of the last pass over them (the equations are in `fixed_data.paths`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from sgdynamics.algorithms.fixed_data import kick_size, numbers_of_step
from sgdynamics.algorithms.one_pass import Stride
from sgdynamics.base.arrays import IntScalar, Numeric, Scalar
from sgdynamics.fixed_data.conditioning import LARGEST, Setup
from sgdynamics.fixed_data.path_state import Paths, Places
from sgdynamics.samples.input_covariance import spread as input_spread

LEAST_FREE = (
    2  # paths span at most their number over this: beyond, what they span is not few beside them
)


class Plan(NamedTuple):
    """A step as small matrices: what a pass makes of P, A, g and Z."""

    along: Float[
        Numeric, "columns room"
    ]  # rows of the corrected last P, a, and z, as combinations of P
    turn: Float[Numeric, "spanned spanned"]  # T
    over: Float[Numeric, "normals spanned blocks"]  # parts of Z along new P that are taken off
    far: Float[Numeric, "spanned blocks"]  # f, 0 where nothing opens
    rest: Float[
        Numeric, "normals blocks"
    ]  # what brings the rest of Z to its length, 0 where nothing opens
    reach: Float[Numeric, "spanned blocks"]  # f of the last ones, which the second projection moves
    rows: Float[Numeric, "p blocks room"]
    head: Float[Numeric, " p"]
    change: Any
    past: Any  # (p, 1 + blocks, room)
    found: IntScalar  # new directions in P


def new_basis(
    S: Float[Numeric, "spanned spanned"], squares: Float[Numeric, " spanned"], tolerance: Scalar
) -> tuple[Any, Any]:
    """T with T S T^T = 1 on what is left of gradients, the largest parts first, and which of its rows are above the tolerance.

    Eigenvectors, not one gradient after the other: where gradients are nearly parallel, what is left of each is mostly rounding.
    """
    size = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    S = S / (size[:, None] * size)
    values, vectors = jnp.linalg.eigh(S) if len(S) > 1 else (S[0], jnp.ones((1, 1)))
    values, vectors = values[::-1], vectors[:, ::-1] * _signs(vectors[:, ::-1])
    there = values > tolerance**2
    return (
        vectors / size[:, None] * jnp.where(there, jnp.where(there, values, 1.0) ** -0.5, 0.0)
    ).T, there


def _signs(vectors: Float[Numeric, "n n"]) -> Float[Numeric, " n"]:
    """Signs that make the choice of eigenvectors unique.

    LAPACK chooses the sign of an eigenvector by its code for the processor at hand, and the random numbers of a
    direction are multiplied by it: without a convention the same seed is another realisation on another processor.
    The product with a fixed vector decides; its entries are incommensurate, so that symmetric cases such as
    (1, -1)/sqrt(2) are decided too.
    """
    fixed = 1.0 / (np.sqrt(2.0) + np.arange(len(vectors)))
    return jnp.where(fixed @ vectors < 0, -1.0, 1.0)


def _inverse_factor(gram: Float[Numeric, "m m"]) -> Float[Numeric, "m m"]:
    """N with N gram N^T = 1."""
    if len(gram) == 1:
        return gram**-0.5
    return jax.scipy.linalg.solve_triangular(
        jnp.linalg.cholesky(gram), jnp.eye(len(gram)), lower=True
    )


def planned(
    setup: Setup, given: tuple[Any, ...], paths: Paths, places: Places, number: IntScalar, n: int
) -> tuple[Plan, Any]:
    """The step of one set of paths, from the sums of the last pass; and whether its numbers are finite."""
    parameters, algorithm, sizes, tolerance = given
    parameters, algorithm = numbers_of_step(parameters, algorithm, number)
    s, z, blocks, p = setup.spanned, setup.normals, setup.structure.blocks, setup.structure.width
    room = paths.rows.shape[-1]
    slot = jnp.arange(room)
    spread = input_spread(parameters)

    # the second projection of the last new P: rows of `second` are what they become, in P
    columns, q = paths.sums.P, paths.sums.P[s : 2 * s] * (slot < places.last_spanned)
    gram = paths.sums.new - q @ q.T
    there = jnp.diagonal(gram) > 0.25  # of unit length, or zero
    both = there[:, None] & there
    back = _inverse_factor(jnp.where(both, gram, 0.0) + jnp.diag(jnp.where(there, 0.0, 1.0))) * both
    second = jax.lax.dynamic_update_slice(-back @ q, back, (0, places.last_spanned))

    def projected(sums: Float[Numeric, "m room"]) -> Float[Numeric, "m room"]:
        """<P, .> with the last new P corrected."""
        return jax.lax.dynamic_update_slice(sums, sums @ second.T, (0, places.last_spanned))

    def combined(sums: Float[Numeric, "m room"]) -> Float[Numeric, "m room"]:
        """What combines the corrected P, as a combination of those in memory."""
        part = jax.lax.dynamic_slice(sums, (0, places.last_spanned), (len(sums), s))
        rest = jax.lax.dynamic_update_slice(sums, jnp.zeros_like(part), (0, places.last_spanned))
        return rest + part @ second

    a, zP = projected(columns[:s]), projected(columns[2 * s :])
    moved = jax.lax.dynamic_slice(
        a - columns[:s], (0, places.last_spanned), (s, s)
    )  # (gradient, last new P)
    U = jax.lax.dynamic_slice(paths.sums.A, (0, 0, places.last_opened), (s, blocks, s))
    U = jax.lax.dynamic_update_slice(
        paths.sums.A,
        U + spread[:, None] * jnp.einsum("gs,sb->gbs", moved, paths.reach),
        (0, 0, places.last_opened),
    )

    # new directions
    S = paths.sums.g - a @ a.T
    turn, opens = new_basis(S, jnp.diagonal(paths.sums.g), tolerance)
    index = jnp.arange(s)
    left = (jnp.full(blocks, True) & (paths.spanned + index < n // LEAST_FREE)[:, None]) & opens[
        :, None
    ]
    if setup.visited:
        left = left & (sizes - (paths.opened + index)[:, None] > 0)
    opens = jnp.any(left, axis=1)
    found = jnp.sum(opens)
    turn = jnp.where(opens[:, None], turn, 0.0)
    zP = zP.reshape(z, blocks, room)
    gZ = paths.sums.gZ - jnp.einsum("gk,zbk->gzb", a, zP)
    on_new, B = jnp.einsum("sg,gzb->zsb", turn, gZ), turn @ S
    lower = jnp.concatenate([jnp.tril(jnp.ones((s, s))), jnp.ones((setup.white, s))])
    over = on_new * lower[:, :, None]
    square = paths.sums.Z - jnp.sum(zP**2, axis=-1) - jnp.sum(over**2, axis=1)
    wide = (
        (n - (paths.spanned + index[:z])[:, None] - 1.0)
        if setup.visited
        else jnp.full((z, 1), float(n))
    )
    rest = jnp.sqrt(jnp.maximum(wide, 0.0) / jnp.where(square > 0, square, 1.0))
    far = (
        jnp.sqrt(jnp.maximum(sizes - (paths.opened + index)[:, None], 0.0))
        if setup.visited
        else jnp.sqrt(sizes) * jnp.ones((s, 1))
    )
    far = jnp.where(left, far, 0.0)
    rest = jnp.concatenate([jnp.where(left, rest[:s], 0.0), rest[s:]])
    beyond = gZ[:, :s] - jnp.einsum("isb,sg->gib", over[:s], B)
    U_new = spread[:, None] * (
        jnp.einsum("ib,ig->gbi", far, B) + jnp.einsum("ib,gib->gbi", rest[:s], beyond)
    )
    gradient = jax.lax.dynamic_update_slice(U, U_new, (0, 0, places.opened + setup.white))

    kick = None
    if setup.hot:  # along a known direction it is of order d^-1/2: kept here, it would be noise of the number of paths
        amount = kick_size(algorithm, jnp.sum(sizes)) * jnp.sqrt(sizes)
        each = jnp.moveaxis(amount[:, None, None] * jnp.eye(p), 0, 1)
        kick = jax.lax.dynamic_update_slice(
            jnp.zeros((p, blocks, room)), each, (0, 0, places.opened)
        ).reshape(p, -1)
    stride = Stride(
        algorithm["lr"], algorithm["head_rate"], parameters["weight_decay"], setup.structure
    )
    flat, pulls = paths.rows.reshape(p, -1), (gradient[:p].reshape(p, -1), paths.sums.head)
    rows, head = stride.move(flat, paths.head, pulls, kick, None)
    change = response(paths.rows, paths.change, stride, gradient, kick) if setup.probed else None
    past = None
    if paths.past is not None:
        past = jnp.concatenate(
            [jax.lax.dynamic_update_slice(a, B.T, (0, places.spanned))[:p, None], gradient[:p]],
            axis=1,
        )
    along = jnp.concatenate([second, combined(a), combined(zP.reshape(z * blocks, room))])
    fine = jnp.all(jnp.abs(rows) < LARGEST) & jnp.all(jnp.abs(head) < LARGEST)
    return Plan(
        along,
        turn,
        over,
        far,
        rest,
        paths.reach,
        rows.reshape(paths.rows.shape),
        head,
        change,
        past,
        found,
    ), fine


def response(
    rows: Numeric, change: Numeric, stride: Stride, gradient: Numeric, kick: Numeric | None
) -> Float[Numeric, "p blocks room"]:
    """The change of first order beside the rows after the step."""
    p = rows.shape[0]
    kept = 1 - stride.size * stride.weight_decay
    change = change * kept - stride.size * gradient[p:]
    constraint = stride.structure.constraint
    if not constraint.fixes_norms:
        return change
    # the kick is across the rows: returning to the sphere shortens it as it shortens them
    free = rows * kept - stride.size * gradient[:p]
    free = free if kick is None else free + kick.reshape(free.shape)
    return constraint.divide_by_norms(change, free, axes=(1, 2))


def still(plan: Plan, paths: Paths, settled: Bool[Numeric, ""]) -> Plan:
    """The plan, or where the sums are not those of the weights yet, the one that changes nothing and only sums."""
    rows, head, change, past = paths.rows, paths.head, paths.change, plan.past
    nothing = jax.tree.map(jnp.zeros_like, plan)._replace(
        rows=rows, head=head, change=change, past=past
    )
    return jax.tree.map(lambda one, other: jnp.where(settled, one, other), plan, nothing)
