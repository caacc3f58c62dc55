"""One update for the rows of the first layer and others for the head, or for leaves of a top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.updates.additions import PLAIN, validate_inner
from sgdynamics.algorithms.updates.gradient_source import Gradient, GradientSource
from sgdynamics.algorithms.updates.law import Increments, Law
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, Scalar, State
from sgdynamics.problems.moves import LossOverlaps

# Key of the update of all leaves that have no update of their own.
ALL = ""
NONLINEAR_FAST = (
    "the head has a memory of O(1) steps and the step is not linear in the gradient. The mean of "
    "one step is then not its ODE. Use sgd.simulate, or a memory of O(D) steps (velocity_memory=c)"
)


@dataclass(frozen=True, eq=False)
class _RowsSource(GradientSource):
    """A batch whose gradient of the head is 0."""

    source: GradientSource

    def note(self, rows: Numeric) -> None:
        self.source.note(rows)

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        G, g = self.source.mean(rows, head, shift, head_shift)
        return G, jnp.zeros_like(g)

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        G, g = self.source.per_sample(rows, head, shift, head_shift)
        return G, jnp.zeros_like(g)

    def noise(self) -> Numeric:
        return self.source.noise()

    def overlaps(self, rows: Numeric) -> LossOverlaps:
        return self.source.overlaps(rows)

    def squares(self, G: Float[Numeric, "p columns"]) -> Numeric:
        return self.source.squares(G)

    def sign(self, G: Float[Numeric, "p columns"]) -> Numeric:
        return self.source.sign(G)

    def head_squares(self, g: Float[Numeric, " entries"]) -> Numeric:
        return jnp.zeros_like(g)


@dataclass(frozen=True, eq=False)
class _HeadSource(GradientSource):
    """A batch as the update of some entries of the head sees it: its rows have no columns."""

    source: GradientSource
    rows: Numeric
    mask: Numeric

    def mean(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        row_shift = None if head_shift is None else jnp.zeros_like(self.rows)
        _, g = self.source.mean(self.rows, head, row_shift, head_shift)
        return jnp.zeros_like(rows), self.mask * g

    def per_sample(
        self, rows: Numeric, head: Numeric, shift: Numeric | None, head_shift: Numeric | None
    ) -> tuple[Numeric, Numeric]:
        row_shift = None if head_shift is None else jnp.zeros_like(self.rows)
        _, g = self.source.per_sample(self.rows, head, row_shift, head_shift)
        return jnp.zeros((len(g), *rows.shape), rows.dtype), self.mask * g

    def head_squares(self, g: Float[Numeric, " entries"]) -> Numeric:
        return self.mask * self.source.head_squares(g)


def _vector_name(key: str, name: str) -> str:
    """Return the name of a vector, or scalar, of the update of a leaf."""
    return f"head_{name}" if key == ALL else f"{key}_{name}"


@dataclass(frozen=True)
class _SeparateStep:
    """The step of the rows, and those of parts of the head."""

    rows: Law
    heads: tuple[tuple[str, Law], ...]

    def __call__(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        *,
        rows: Parameters | None = None,
        head: Parameters | None = None,
    ) -> Increments:
        W, decay = state["weights"], gradient.decay
        plain = replace(gradient, decay=0.0)
        changes = self._move_rows(state, gradient, lr, D, number, rows or {})
        row_step, _ = gradient.split_head(changes["weights"])
        joint_rows, entries = gradient.split_head(W)
        decays = decay * gradient.join_head(jnp.ones_like(joint_rows), jnp.ones_like(entries))
        _, head_decay = gradient.split_head(decays)
        empty = jnp.zeros((joint_rows.shape[0], 0), W.dtype)

        def widen(vector: Numeric) -> Numeric:
            return gradient.join_head(empty, vector)

        head_step, by_leaf = jnp.zeros_like(entries), len(self.heads) > 1
        for (key, law), mask in zip(self.heads, self._masks(gradient), strict=True):
            hyperparameters = (head or {}).get(key, {}) if by_leaf else head or {}
            names = (*law.rows, *law.squares)
            of_head = {name: widen(state[_vector_name(key, name)]) for name in names}
            of_head |= {name: state[_vector_name(key, name)] for name in law.scalars}
            of_head["weights"] = widen(entries)
            view = replace(plain, source=_HeadSource(gradient.source, joint_rows, mask))
            if law.decay_inside:
                view = view.with_decay(widen(mask * head_decay))
            step = law.step(of_head, view, lr, D, number, **hyperparameters)
            _, moved = gradient.split_head(step["weights"])
            if not law.decay_inside:
                moved = moved - lr / D * head_decay * entries
            head_step = jnp.where(mask > 0, moved, head_step)
            for name in names:
                changes[_vector_name(key, name)] = gradient.split_head(step[name])[1]
            for name in law.scalars:
                changes[_vector_name(key, name)] = step[name]
        return changes | {"weights": gradient.join_head(row_step, head_step)}

    def _move_rows(
        self,
        state: State,
        gradient: Gradient,
        lr: Scalar,
        D: Scalar,
        number: Scalar,
        hyperparameters: Parameters,
    ) -> dict[str, Numeric]:
        """Return the increments of the update of the rows, with weight decay."""
        law = self.rows
        names = ("weights", *law.rows, *law.scalars, *law.squares)
        view = replace(gradient, source=_RowsSource(gradient.source))
        if not law.decay_inside:
            view = replace(view, decay=0.0)
        of_rows = {name: state[name] for name in names}
        changes = dict(law.step(of_rows, view, lr, D, number, **hyperparameters))
        if not law.decay_inside:
            changes["weights"] = changes["weights"] - lr / D * gradient.decay * state["weights"]
        return changes

    def _masks(self, gradient: Gradient) -> list[np.ndarray]:
        """Return which entries of the head each update moves, as 0 and 1."""
        top, size = gradient.setting.structure.top, gradient.head.shape[0]
        unclaimed, masks = np.ones(size), {}
        for key, _ in self.heads:
            if key != ALL:
                assert top is not None
                masks[key] = np.asarray(top.expand("head", {key: 1.0}, 0.0))
                unclaimed = unclaimed * (1 - masks[key])
        return [unclaimed if key == ALL else masks[key] for key, _ in self.heads]


@maker
def separate(
    rows: Update | None = None, head: Update | Mapping[str, Update] | None = None
) -> Update:
    """One update for the rows and another one for the head or for leaves of the top.

    ::

        W <- W + step of rows,      a <- a + head_rate (step of head)

    Parameters
    ----------
    rows : Update, optional
        Update of the rows of the first layer. Defaults to plain steps.
    head : Update or dict, optional
        Update of the trained head or top, or updates by leaf or branch of the top, as in ``{"V":
        sgd.updates.muon(memory=3.0), "b": sgd.updates.adam(4.0)}``. Defaults to plain steps, also
        for leaves that are left out.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If an update is an average of iterates, has an initial value of its state, or depends on the
        state; or if updates of two leaves overlap.

    Notes
    -----
    Each update sees its own part of the gradient only: a norm is that of the rows, or of the
    entries of its leaf. The head is finite, so that a coordinatewise update of the head is exact:
    if that of the rows commutes with rotations, the exact chain supports both.
    ``result.update_vectors`` contains the averages of the head.

    Examples
    --------
    >>> sgd.updates.separate(rows=sgd.updates.momentum(0.9), head=sgd.updates.adam(4.0, eps=0.1))
    separate(rows=momentum(beta=0.9), head=adam(memory=4, eps=0.1, weight_decay=0, beta=0.9))
    """
    of_rows = _validate_member("rows", rows)
    if isinstance(head, Mapping) and "kind" not in head:
        of_head: Any = {str(key): _validate_member("head", update) for key, update in head.items()}
        heads = (*((key, update.law) for key, update in of_head.items()), (ALL, PLAIN.law))
    else:
        of_head = _validate_member("head", head)
        heads = ((ALL, of_head.law),)
    laws, row_law = [law for _, law in heads], of_rows.law
    names = [(key, name) for key, law in heads for name in (*law.rows, *law.squares)]
    fast = [
        _vector_name(key, name) for key, law in heads if law.memory == "fast" for name in law.rows
    ]
    linear = all(member.linear for member in (row_law, *laws))
    memory = row_law.memory
    if memory == "none" and any(law.memory != "none" for law in laws):
        memory = "slow"
    reasons = [member.no_limit for member in (row_law, *laws) if member.no_limit]
    if fast and not linear:
        reasons.append(NONLINEAR_FAST)
    law = replace(
        row_law,
        name="separate",
        step=_SeparateStep(row_law, heads),
        scalars=(
            *row_law.scalars,
            *(_vector_name(key, name) for key, law in heads for name in law.scalars),
        ),
        vectors=tuple(_vector_name(key, name) for key, name in names),
        fast_vectors=tuple(fast),
        leaves=tuple(key for key, _ in heads if key != ALL),
        memory=memory,
        linear=linear,
        rereads=any(member.rereads for member in (row_law, *laws)),
        decay_inside=True,
        trains_head=True,
        jumps=any(member.jumps for member in (row_law, *laws)) and not row_law.bends,
        bends="",
        no_limit=reasons[0] if reasons else "",
        scales=all(member.scales for member in (row_law, *laws)),
        averaging=(),
        equations=(
            *row_law.equations,
            *(
                rf"\text{{{key or 'head'}: }} {line}"
                for key, law in heads
                for line in law.equations
            ),
        ),
        image="",
        equivalent_rate="",
    )
    updates: dict[str, Any] = {} if rows is None else {"rows": of_rows}
    if head is not None:
        updates["head"] = of_head
    return Update(law, updates)


def _validate_member(argument: str, update: Any) -> Update:
    """Return an update that can be that of a part of the network."""
    valid_update = validate_inner(update, argument)
    law, reason = valid_update.law, ""
    if law.iterate != "weights":
        reason = "averages of iterates apply to the whole network. Use an update of the weights."
    elif law.initial_values:
        reason = "an update with an initial value of its state is not supported. Use adam."
    elif law.state_rate is not None or law.vectors:
        reason = "it is an update of the whole network. Use momentum, adam, muon or another one."
    elif argument == "head" and law.noise:
        reason = "a trained head has no noise. Set the noise in rows."
    elif argument == "head" and not law.trains_head:
        reason = "this update does not train a head. Use adam, for example."
    if reason:
        raise checks.reject(argument, update, reason)
    return valid_update
