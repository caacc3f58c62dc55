"""How a smooth loss or rule depends on each field and draw: not at all, as a polynomial, or otherwise. Expectations are made by it.

It is found by trying: a number that is not read may be NaN, and along a line a polynomial of degree n is fixed by n + 1 of its values.
Functions made of smooth operations that pass on a few generic lines pass everywhere. It is tried in every case of the draws that are summed
over, with the problem's own parameters as they are (a loss may branch by them), and moved a little, so that what holds does not hang on
one of them being 0. A loss that knows better has a method `reading`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev

from sgdynamics.precision import float64
from sgdynamics.problems.trial import generic_overlaps, moves_of

if TYPE_CHECKING:
    from sgdynamics.problems.problem import Problem, Structure

Rows = tuple[tuple[float, ...], ...]
MOST_DEGREE = 8
SAME = 1e-10  # of the largest value on a line: what a fit may leave
REACH = 4.0
MOST_COORDINATES = 40  # beyond, neither a grid nor so many lines are of use
MOST_KEPT = 512
_KNOWN: dict[tuple[Structure, bytes], Reading | None] = {}


@dataclass(frozen=True)
class Reading:
    """What a loss is a function of, as combinations of all fields (token by token: students, then signals) and of the draws' normals.

    Of the `polynomial` ones it is a polynomial, so that as many Gauss-Hermite nodes as `counts` says are exact for its moments, at finite d
    as many as `finite_counts`. Where means are `affine` in the draws, fields and draws are jointly Gaussian, and fields are meant with
    these means; else without them.
    """

    general: Rows
    polynomial: Rows
    counts: tuple[int, ...]
    finite_counts: tuple[int, ...]
    affine: bool = True

    @property
    def size(self) -> int:
        return len(self.general) + len(self.polynomial)

    @property
    def rows(self) -> np.ndarray:
        """All combinations, the general ones first."""
        return np.array([*self.general, *self.polynomial])


def reading_of(problem: Problem, overlaps: tuple[np.ndarray, np.ndarray] | None = None) -> Reading | None:
    """How the loss of a problem depends on fields and draws, tried at the overlaps Q and M (by block).

    None where nothing is known: a loss with kinks, draws that jump, very many fields.
    """
    structure = problem.structure
    sample = structure.sample
    if not structure.loss.smooth or any(draw.outcomes for draw in sample.free_draws):
        return None
    known = getattr(structure.loss.own_parts().get("loss", (None,))[0], "reading", None)
    if known is not None and (told := known(structure)) is not None:
        return told
    if structure.fields * sample.inputs_a_sample + sample.free > MOST_COORDINATES:
        return None
    own = problem.at(0.0).parameters.get("user", {})
    key = structure, b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(own))
    if key not in _KNOWN:
        if len(_KNOWN) >= MOST_KEPT:
            _KNOWN.clear()
        _KNOWN[key] = _found(problem, overlaps)
    return _KNOWN[key]


class _Lines:
    """Values on lines through one generic point, along chosen coordinates: of fields (tokens x fields) and draws, in one row."""

    def __init__(self, problem: Problem, settings: list[dict[str, Any]], cases: dict[str, np.ndarray], affine: bool, overlaps: Any) -> None:
        sample = problem.structure.sample
        self.shape = sample.inputs_a_sample, problem.structure.fields
        size = self.shape[0] * self.shape[1] + sample.free
        draw = np.random.default_rng(7)
        self.base = draw.standard_normal(size)
        self.along = draw.uniform(0.5, 1.5, size) * draw.choice([-1.0, 1.0], size)
        self.evaluate = _composite(problem, settings, cases, affine, overlaps)

    def field(self, row: int, token: int | None = None) -> np.ndarray:
        """A field in one token, or in all."""
        chosen = np.zeros(self.shape, bool)
        chosen[slice(None) if token is None else token, row] = True
        return np.concatenate([chosen.reshape(-1), np.zeros(len(self.base) - chosen.size, bool)])

    def draw(self, one: int) -> np.ndarray:
        return np.arange(len(self.base)) == self.shape[0] * self.shape[1] + one

    def __call__(self, chosen: list[np.ndarray], t: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The loss (places, cases) and all that it moves (places, entries), at base + t along, on each line, in every case of the draws."""
        where = np.stack([np.where(mask, self.base + self.along * s, self.base) for mask in chosen for s in t])
        size = self.shape[0] * self.shape[1]
        value, moves = self.evaluate(where[:, :size].reshape(-1, *self.shape), where[:, size:])
        return list(zip(*(part.reshape(len(chosen), len(t), -1) for part in (value, moves)), strict=True))

    def degrees(self, chosen: list[np.ndarray]) -> list[int | None]:
        """In the chosen coordinates together: of the moves, and at least half of that of the loss; None where it is no polynomial."""
        t = REACH * np.cos(np.pi * (np.arange(2 * MOST_DEGREE + 1) + 0.5) / (2 * MOST_DEGREE + 1))
        found = []
        for value, moves in self(chosen, t):
            one, other = _degree(value, t), _degree(moves, t)
            found.append(None if one is None or other is None else max((one + 1) // 2, other))
        return found


def _found(problem: Problem, overlaps: tuple[np.ndarray, np.ndarray] | None) -> Reading | None:
    structure, sample = problem.structure, problem.structure.sample
    fields, tokens, free = structure.fields, sample.inputs_a_sample, sample.free
    settings, cases = _settings(problem)
    affine = _affine_means(problem, settings, cases)
    lines = _Lines(problem, settings, cases, affine, overlaps)
    every = [lines.field(row) for row in range(fields)] + [lines.draw(one) for one in range(free)]
    with np.errstate(invalid="ignore"):
        probes = lines(every, np.array([0.0, np.nan]))
        if not all(np.all(np.isfinite(part[0])) for one in probes for part in one):
            return None  # where numbers are moved, it may leave its domain
        read = [not all(np.array_equal(part[0], part[1]) for part in one) for one in probes]
        simple = [degree is not None for degree in lines.degrees(every)]
        rows = [row for row in range(fields) if read[row]]
        plain = {row for row in rows if simple[row]}
        draws = {one for one in range(free) if read[fields + one]}
        plain_draws = {one for one in draws if simple[fields + one]}
        nothing = np.zeros(len(every[0]), bool)
        by_token = [np.any([nothing, *(lines.field(row, token) for row in plain)], axis=0) for token in range(tokens)]
        of_draws = np.any([nothing, *(lines.draw(one) for one in plain_draws)], axis=0)
        together = np.any([nothing, of_draws, *by_token], axis=0)
        degrees = lines.degrees([*by_token, of_draws, together])
    if any(degree is None for degree in degrees):  # too high together
        plain, plain_draws, degrees = set(), set(), [0] * len(degrees)
    most = [int(degree or 0) for degree in degrees]
    if not rows and not draws:
        return None
    # coordinates of independent tokens and draws are independent: each has only the degree in its own
    mixed = sample.correlated or (affine and not sample.centred and free > 0)
    degree = [most[-1] if mixed else max(most[:tokens])] * (tokens * len(plain)) + [most[-1] if mixed else most[-2]] * len(plain_draws)
    # squares of a move; at finite d times that of a field or, where these are no fields, a mean
    longer = [1] * (tokens * len(plain)) + [int(mixed) if affine else most[-2]] * len(plain_draws)
    order = [*(row for row in rows if row >= structure.width), *(row for row in rows if row < structure.width)]  # the signals first
    unit = np.eye(len(every[0]))

    def chosen(masks: list[np.ndarray]) -> Rows:
        return tuple(tuple(unit[place].tolist()) for mask in masks for place in np.flatnonzero(mask))

    return Reading(
        chosen([*(lines.field(row) for row in order if row not in plain), *(lines.draw(one) for one in sorted(draws - plain_draws))]),
        chosen([*(lines.field(row) for row in order if row in plain), *(lines.draw(one) for one in sorted(plain_draws))]),
        tuple(one + 1 for one in degree),
        tuple(one + 1 + more for one, more in zip(degree, longer, strict=True)),
        affine,
    )


def _degree(values: np.ndarray, t: np.ndarray) -> int | None:
    """The least degree of a polynomial that goes through all values (places, entries)."""
    if not np.all(np.isfinite(values)):
        return None
    size = np.maximum(np.abs(values).max(axis=0), 1e-8 * np.abs(values).max())
    # the polynomial through all of them: at these places, a Chebyshev rule's, the matrix is as good as orthogonal
    through = np.linalg.inv(chebyshev.chebvander(t / REACH, len(t) - 1))
    fit = np.abs(through @ (values / np.where(size > 0, size, 1.0)))
    for degree in range(MOST_DEGREE + 1):
        if np.all(fit[degree + 1 :].sum(axis=0) <= SAME):
            return degree
    return None


@float64
def _settings(problem: Problem) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The numbers of a problem as they are and with its own moved a little; all cases (cases, ...) of the draws that are summed over."""
    draw = np.random.default_rng(11)
    numbers, sample = problem.at(0.0).parameters, problem.structure.sample
    every = [numbers]
    if "user" in numbers:
        every.append({**numbers, "user": jax.tree.map(lambda one: _moved(one, draw), numbers["user"])})
    if sample.free == sample.draw_normals:
        return every, {}
    with jax.ensure_compile_time_eval():  # compiled, which leaves out what is not asked for: the weights
        return every, jax.tree.map(np.asarray, jax.jit(lambda given: sample.cases(given)[1])(numbers))


def _in_every_case(cases: dict[str, np.ndarray], *parts: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The cases, each as often as there are places (n, ...), and all places again for each of them."""
    count = max((len(value) for value in cases.values()), default=1)
    many = [np.tile(part, (count, *[1] * (part.ndim - 1))) for part in parts]
    return {name: jnp.asarray(np.repeat(value, len(parts[0]), axis=0)) for name, value in cases.items()}, many


def _moved(value: Any, draw: np.random.Generator) -> Any:
    """A number a little further from 0."""
    value = np.asarray(value, dtype=np.float64)
    return value + np.where(value < 0, -1.0, 1.0) * (0.3 * np.abs(value) + 0.7) * draw.uniform(0.5, 1.0, value.shape)


@float64
def _affine_means(problem: Problem, settings: list[dict[str, Any]], cases: dict[str, np.ndarray]) -> bool:
    """Whether the means of the inputs are affine in the draws that are not summed over, so that all fields are Gaussian."""
    sample = problem.structure.sample
    if sample.centred:
        return True
    draw = np.random.default_rng(5)
    line = draw.standard_normal(sample.free) + np.linspace(-2, 2, 5)[:, None] * draw.standard_normal(sample.free)
    with jax.ensure_compile_time_eval():
        case, (lines,) = _in_every_case(cases, line)
        for numbers in settings:
            found = sample.mean_coefficients(numbers, sample.drawn(numbers, jnp.asarray(lines), case))
            if found is None or np.ndim(found) < (2 if sample.tokens is None else 3):
                continue  # numbers
            means = np.asarray(found).reshape(-1, len(line), *np.shape(found)[1:])
            size = np.abs(means).max(axis=tuple(range(1, means.ndim)), keepdims=True)
            if not np.all(np.abs(np.diff(means, 2, axis=1)) <= SAME * np.maximum(1.0, size)):
                return False
    return True


def _composite(
    problem: Problem, settings: list[dict[str, Any]], cases: dict[str, np.ndarray], affine: bool, overlaps: Any
) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The loss of samples and all that they move, as a function of fields (n, tokens, fields) and the draws' normals (n, free).

    Where means are not affine, fields are without them, and the means are among what is moved.
    """
    structure, sample = problem.structure, problem.structure.sample
    p, k = structure.width, structure.signals
    draw = np.random.default_rng(13)
    P = np.asarray(problem.gram).sum(axis=0)
    overlaps = generic_overlaps(problem)[1] if overlaps is None else overlaps
    M = overlaps[1].sum(axis=0)
    head = draw.uniform(0.5, 1.5, p)

    def evaluate(places: np.ndarray, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        case, many = _in_every_case(cases, places, xi)
        found = [part for numbers in settings for part in with_numbers(numbers, case, *many)]

        def by_place(part: np.ndarray) -> np.ndarray:
            return np.swapaxes(part.reshape(-1, len(places), part.shape[1]), 0, 1).reshape(len(places), -1)

        return tuple(np.concatenate([by_place(part) for part in found[which::2]], axis=1) for which in (0, 1))  # type: ignore[return-value]

    @float64
    def with_numbers(numbers: dict[str, Any], case: dict[str, Any], y: np.ndarray, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, tokens = y.shape[:2]
        with jax.ensure_compile_time_eval():
            draws = sample.drawn(numbers, jnp.asarray(xi), case)
            means, c = (None if affine else sample.mean_coefficients(numbers, draws)), np.zeros((count, 0))
            if means is not None:
                c = np.broadcast_to(np.asarray(means).reshape(-1, tokens, k), (count, tokens, k))
                y = y + np.concatenate([c @ M.T, c @ P], axis=-1)
            rows = y.reshape(-1, y.shape[-1])
            parts = moves_of(
                structure, numbers, overlaps, sample.by_sample(rows[:, :p]), sample.by_sample(rows[:, p:]), head, sample.given(draws)
            )
        value = np.asarray(parts[0]) if structure.loss.has_risk else np.zeros(count)
        return value[:, None], np.concatenate([np.asarray(part).reshape(count, -1) for part in (*parts[1:], c)], axis=1)

    return evaluate
