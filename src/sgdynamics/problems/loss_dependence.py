"""How a smooth loss or rule depends on each field and draw: not at all, as a polynomial, or otherwise. Expectations are made by it.

A coordinate that is not read may be NaN. A polynomial is recognised by the operations of the loss and of its gradient (`degrees`), so that
it is one at any distance from 0; values on generic lines then give its degree exactly. All of this holds in every case of the draws that
are summed over, for the parameters of the problem as they are (a loss may branch by them) and moved a little, so that the result does not
depend on one of them being 0. A loss that knows better has a method `reading`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev

from sgdynamics.base.precision import float64
from sgdynamics.problems.degrees import degree_bounds
from sgdynamics.problems.trial import generic_overlaps, moves, moves_of, with_overlaps

if TYPE_CHECKING:
    from sgdynamics.problems.problem import Problem, Structure

Rows = tuple[tuple[float, ...], ...]
MOST_DEGREE = 8
SAME = 1e-10  # of the largest value on a line: what a fit may leave
REACHES = (4.0, 100.0)  # of the lines: a high power with a small coefficient shows far from 0 only
MOST_COORDINATES = 40  # beyond, neither a grid nor so many lines are of use
MOST_KEPT = 512
_KNOWN: dict[tuple[Structure, bytes], LossDependence | None] = {}


@dataclass(frozen=True)
class LossDependence:
    """What a loss is a function of, as combinations of all fields (token by token: students, then signals) and of the draws' normals.

    Of the `polynomial` ones it is a polynomial, so that as many Gauss-Hermite nodes as `counts` says are exact for its moments, at finite d
    as many as `finite_counts`. Where means are `affine` in the draws, fields and draws are jointly Gaussian, and fields are meant with
    these means; else without them.
    """

    general: Rows
    polynomial: Rows
    node_counts: tuple[int, ...]
    finite_node_counts: tuple[int, ...]
    means_are_affine: bool = True

    @property
    def size(self) -> int:
        return len(self.general) + len(self.polynomial)

    @property
    def rows(self) -> np.ndarray:
        """All combinations, the general ones first."""
        return np.array([*self.general, *self.polynomial])


def find_dependence(
    problem: Problem, overlaps: tuple[np.ndarray, np.ndarray] | None = None
) -> LossDependence | None:
    """How the loss of a problem depends on fields and draws, tried at the overlaps Q and M (by block).

    None where nothing is known: a loss with kinks, draws that jump, very many fields.
    """
    structure = problem.structure
    sample = structure.sample
    if not structure.loss.smooth or any(draw.outcomes for draw in sample.sampled_draws):
        return None
    known = getattr(
        structure.loss.user_functions().get("loss", (None,))[0], "loss_dependence", None
    )
    if known is not None and (told := known(structure)) is not None:
        return told
    if (
        structure.fields * sample.tokens.inputs_per_sample + sample.sampled_normals
        > MOST_COORDINATES
    ):
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

    def __init__(
        self,
        problem: Problem,
        settings: list[dict[str, Any]],
        cases: dict[str, np.ndarray],
        affine: bool,
        overlaps: Any,
    ) -> None:
        sample = problem.structure.sample
        self.shape = sample.tokens.inputs_per_sample, problem.structure.fields
        size = self.shape[0] * self.shape[1] + sample.sampled_normals
        draw = np.random.default_rng(7)
        self.base = draw.standard_normal(size)
        self.along = draw.uniform(0.5, 1.5, size) * draw.choice([-1.0, 1.0], size)
        self.samples = _Samples(problem, settings, cases, affine, overlaps)

    def field(self, row: int, token: int | None = None) -> np.ndarray:
        """A field in one token, or in all."""
        chosen = np.zeros(self.shape, bool)
        chosen[slice(None) if token is None else token, row] = True
        return np.concatenate([chosen.reshape(-1), np.zeros(len(self.base) - chosen.size, bool)])

    def draw(self, one: int) -> np.ndarray:
        return np.arange(len(self.base)) == self.shape[0] * self.shape[1] + one

    def __call__(
        self, chosen: list[np.ndarray], t: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The loss (places, cases) and all that it moves (places, entries), at base + t along, on each line, in every case of the draws."""
        where = np.stack(
            [np.where(mask, self.base + self.along * s, self.base) for mask in chosen for s in t]
        )
        size = self.shape[0] * self.shape[1]
        value, moved = self.samples(where[:, :size].reshape(-1, *self.shape), where[:, size:])
        return list(
            zip(*(part.reshape(len(chosen), len(t), -1) for part in (value, moved)), strict=True)
        )

    def degrees(self, chosen: list[np.ndarray]) -> list[int | None]:
        """In the chosen coordinates together: of the moves, and at least half of that of the loss; None where it is no polynomial.

        A polynomial of a degree below the number of places is known from its values there.
        """
        unit = np.cos(np.pi * (np.arange(2 * MOST_DEGREE + 1) + 0.5) / (2 * MOST_DEGREE + 1))
        values = self(chosen, np.concatenate([reach * unit for reach in REACHES]))
        degrees: list[int | None] = []
        for mask, on_line in zip(chosen, values, strict=True):
            if self.samples.degree_bound(mask) >= len(unit):
                degrees.append(None)
                continue
            of_loss, of_moves = (
                _degree(part.reshape(len(REACHES), len(unit), -1), unit) for part in on_line
            )
            degrees.append(
                None if of_loss is None or of_moves is None else max((of_loss + 1) // 2, of_moves)
            )
        return degrees


def _found(
    problem: Problem, overlaps: tuple[np.ndarray, np.ndarray] | None
) -> LossDependence | None:
    structure, sample = problem.structure, problem.structure.sample
    fields, tokens, free = structure.fields, sample.tokens.inputs_per_sample, sample.sampled_normals
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
        by_token = [
            np.any([nothing, *(lines.field(row, token) for row in plain)], axis=0)
            for token in range(tokens)
        ]
        of_draws = np.any([nothing, *(lines.draw(one) for one in plain_draws)], axis=0)
        together = np.any([nothing, of_draws, *by_token], axis=0)
        degrees = lines.degrees([*by_token, of_draws, together])
    if any(degree is None for degree in degrees):  # too high together
        plain, plain_draws, degrees = set(), set(), [0] * len(degrees)
    most = [int(degree or 0) for degree in degrees]
    if not rows and not draws:
        return None
    # coordinates of independent tokens and draws are independent: each has only the degree in its own
    mixed = sample.tokens.correlated or (affine and not sample.centred and free > 0)
    degree = [most[-1] if mixed else max(most[:tokens])] * (tokens * len(plain)) + [
        most[-1] if mixed else most[-2]
    ] * len(plain_draws)
    # squares of a move; at finite d times that of a field or, where these are no fields, a mean
    longer = [1] * (tokens * len(plain)) + [int(mixed) if affine else most[-2]] * len(plain_draws)
    order = [
        *(row for row in rows if row >= structure.width),
        *(row for row in rows if row < structure.width),
    ]  # the signals first
    unit = np.eye(len(every[0]))

    def chosen(masks: list[np.ndarray]) -> Rows:
        return tuple(
            tuple(unit[place].tolist()) for mask in masks for place in np.flatnonzero(mask)
        )

    return LossDependence(
        chosen(
            [
                *(lines.field(row) for row in order if row not in plain),
                *(lines.draw(one) for one in sorted(draws - plain_draws)),
            ]
        ),
        chosen(
            [
                *(lines.field(row) for row in order if row in plain),
                *(lines.draw(one) for one in sorted(plain_draws)),
            ]
        ),
        tuple(one + 1 for one in degree),
        tuple(one + 1 + more for one, more in zip(degree, longer, strict=True)),
        affine,
    )


def _degree(values: np.ndarray, unit: np.ndarray) -> int | None:
    """The least degree of a polynomial that goes through all values (reaches, places, entries), at the reach that needs most."""
    if not np.all(np.isfinite(values)):
        return None
    # the polynomial through all of them: at these places, a Chebyshev rule's, the matrix is as good as orthogonal
    through = np.linalg.inv(chebyshev.chebvander(unit, len(unit) - 1))
    largest = 0
    for line in values:
        size = np.maximum(np.abs(line).max(axis=0), 1e-8 * np.abs(line).max())
        fit = np.abs(through @ (line / np.where(size > 0, size, 1.0)))
        tails = np.cumsum(fit[::-1], axis=0)[::-1].max(
            axis=1
        )  # what all powers from this one on contribute
        largest = max(largest, int(np.sum(tails[1:] > SAME)))
    return largest if largest <= MOST_DEGREE else None


@float64
def _settings(problem: Problem) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The numbers of a problem as they are and with its own moved a little; all cases (cases, ...) of the draws that are summed over."""
    draw = np.random.default_rng(11)
    numbers, sample = problem.at(0.0).parameters, problem.structure.sample
    every = [numbers]
    if "user" in numbers:
        every.append(
            {**numbers, "user": jax.tree.map(lambda one: _moved(one, draw), numbers["user"])}
        )
    if sample.sampled_normals == sample.normals_per_sample:
        return every, {}
    with (
        jax.ensure_compile_time_eval()
    ):  # compiled, which leaves out what is not asked for: the weights
        return every, jax.tree.map(
            np.asarray, jax.jit(lambda given: sample.cases(given)[1])(numbers)
        )


def _in_every_case(
    cases: dict[str, np.ndarray], *parts: np.ndarray
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The cases, each as often as there are places (n, ...), and all places again for each of them."""
    count = max((len(value) for value in cases.values()), default=1)
    many = [np.tile(part, (count, *[1] * (part.ndim - 1))) for part in parts]
    return {
        name: jnp.asarray(np.repeat(value, len(parts[0]), axis=0)) for name, value in cases.items()
    }, many


def _moved(value: Any, draw: np.random.Generator) -> Any:
    """A number a little further from 0."""
    value = np.asarray(value, dtype=np.float64)
    return value + np.where(value < 0, -1.0, 1.0) * (0.3 * np.abs(value) + 0.7) * draw.uniform(
        0.5, 1.0, value.shape
    )


@float64
def _affine_means(
    problem: Problem, settings: list[dict[str, Any]], cases: dict[str, np.ndarray]
) -> bool:
    """Whether the means of the inputs are affine in the draws that are not summed over, so that all fields are Gaussian."""
    sample = problem.structure.sample
    if sample.centred:
        return True
    with jax.ensure_compile_time_eval():
        case, (xi,) = _in_every_case(cases, np.zeros((1, sample.sampled_normals)))
    for numbers in settings:

        def means(xi: Any, numbers: dict[str, Any] = numbers) -> Any:
            return sample.mean_coefficients(numbers, sample.draw(numbers, xi, case))

        traced: Any = jax.make_jaxpr(means)(xi)
        bounds = degree_bounds(traced, [np.ones(xi.shape)])
        if any(np.any(bound > 1) for bound in bounds):
            return False
    return True


class _Samples:
    """The loss of samples and all that they move, as a function of fields (n, tokens, fields) and the draws' normals (n, free).

    Where means are not affine, fields are without them, and the means are among what is moved.
    """

    def __init__(
        self,
        problem: Problem,
        settings: list[dict[str, Any]],
        cases: dict[str, np.ndarray],
        affine: bool,
        overlaps: Any,
    ) -> None:
        self.overlaps = generic_overlaps(problem)[1] if overlaps is None else overlaps
        self.M, self.P = self.overlaps[1].sum(axis=0), np.asarray(problem.gram).sum(axis=0)
        self.head = np.random.default_rng(13).uniform(0.5, 1.5, problem.width)
        self.structure, self.settings, self.cases, self.affine = (
            problem.structure,
            settings,
            cases,
            affine,
        )

    def __call__(self, places: np.ndarray, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss (n, cases) and the moves (n, entries), in every case and setting."""
        case, many = _in_every_case(self.cases, places, xi)
        found = [part for numbers in self.settings for part in self._evaluate(numbers, case, *many)]

        def by_place(part: np.ndarray) -> np.ndarray:
            return np.swapaxes(part.reshape(-1, len(places), part.shape[1]), 0, 1).reshape(
                len(places), -1
            )

        return tuple(
            np.concatenate([by_place(part) for part in found[which::2]], axis=1) for which in (0, 1)
        )  # type: ignore[return-value]

    def degree_bound(self, mask: np.ndarray) -> float:
        """A bound on the degree of loss and moves in the chosen coordinates, in every case and setting; infinity where there is none."""
        size = len(mask) - self.structure.sample.sampled_normals
        chosen = (
            mask[:size].reshape(self.structure.sample.tokens.inputs_per_sample, -1),
            mask[size:],
        )
        bounds = []
        for count, traced in self._traced:
            degrees = [np.broadcast_to(part, (count, *part.shape)) for part in chosen]
            bounds += [float(bound.max(initial=0.0)) for bound in degree_bounds(traced, degrees)]
        return max(bounds, default=0.0)

    @cached_property
    @float64
    def _traced(self) -> list[tuple[int, Any]]:
        """The jaxpr in each setting, of one sample in every case, and how many cases there are."""
        sample, structure = self.structure.sample, replace(self.structure, dependence=None)
        with jax.ensure_compile_time_eval():
            place = np.zeros((1, sample.tokens.inputs_per_sample, structure.fields))
            case, many = _in_every_case(self.cases, place, np.zeros((1, sample.sampled_normals)))
            all_numbers = [
                (numbers, with_overlaps(structure, numbers, self.overlaps))
                for numbers in self.settings
            ]
        found = []
        for numbers, with_all in all_numbers:

            def sampled(
                y: Any, xi: Any, numbers: dict[str, Any] = numbers, with_all: Any = with_all
            ) -> Any:
                fields, signals, given, means = self._sample(numbers, case, y, xi)
                value, *moved = moves(structure, with_all, fields, signals, self.head, given)
                return (*([value] if structure.loss.has_risk else []), *moved, means)

            found.append((len(many[0]), jax.make_jaxpr(sampled)(*many)))
        return found

    def _sample(
        self, numbers: dict[str, Any], case: dict[str, Any], y: Any, xi: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Fields, signals, the fourth argument of the loss, and the coefficients of the means that are not part of the fields."""
        sample, p, k = self.structure.sample, self.structure.width, self.structure.signals
        count, tokens = y.shape[:2]
        draws = sample.draw(numbers, jnp.asarray(xi), case)
        means, c = (
            (None if self.affine else sample.mean_coefficients(numbers, draws)),
            jnp.zeros((count, 0)),
        )
        if means is not None:
            c = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k))
            y = y + jnp.concatenate([c @ self.M.T, c @ self.P], axis=-1)
        rows = jnp.reshape(y, (-1, y.shape[-1]))
        return (
            sample.tokens.by_sample(rows[:, :p]),
            sample.tokens.by_sample(rows[:, p:]),
            sample.loss_argument(draws),
            c,
        )

    @float64
    def _evaluate(
        self, numbers: dict[str, Any], case: dict[str, Any], y: np.ndarray, xi: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        with jax.ensure_compile_time_eval():
            fields, signals, given, means = self._sample(numbers, case, y, xi)
            parts = moves_of(
                self.structure, numbers, self.overlaps, fields, signals, self.head, given
            )
        value = np.asarray(parts[0]) if self.structure.loss.has_risk else np.zeros(len(y))
        return value[:, None], np.concatenate(
            [np.asarray(part).reshape(len(y), -1) for part in (*parts[1:], means)], axis=1
        )
