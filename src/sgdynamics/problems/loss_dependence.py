"""Detection of how a smooth loss or rule depends on each field and draw.

A coordinate (a field of a token, or a normal variable of a draw) is not read, enters as a
polynomial, or enters in a general smooth way; expectations choose their nodes accordingly.

- A coordinate that is not read may be NaN without changing any value or gradient.
- A polynomial is recognised by the operations of the loss and of its gradient (`degrees`), so that
  it is one at any distance from 0. Values on generic lines then give its degree exactly.

Both tests are made in every case of the draws that are summed over. They are made for the
parameters of the problem as they are (a loss may branch on them) and slightly changed, so that the
result does not depend on a parameter that happens to be 0. A loss may state its dependence in a
method `loss_dependence`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RealArray
from sgdynamics.base.precision import float64
from sgdynamics.base.user_functions import ClosedJaxpr
from sgdynamics.problems.degrees import degree_bounds
from sgdynamics.problems.structure import Combinations, LossDependence, Structure
from sgdynamics.problems.trial import (
    BlockOverlapPair,
    evaluate_moves,
    generic_overlaps,
    sample_moves,
    with_overlaps,
)

MOST_DEGREE = 8
# A fit may leave this share of the largest value on a line.
FIT_TOLERANCE = 1e-10
# Half lengths of the lines: a high power with a small coefficient shows only far from 0.
REACHES = (4.0, 100.0)
MOST_COORDINATES = 40  # beyond, neither a grid nor this many lines are useful
CACHE_SIZE = 512
_CACHE: dict[tuple[Structure, bytes], LossDependence | None] = {}

Cases = dict[str, np.ndarray]  # values of the draws that are summed over, by name


def find_dependence(
    structure: Structure, parameters: Parameters, overlaps: BlockOverlapPair | None = None
) -> LossDependence | None:
    """Return how the loss depends on fields and draws, tried at overlaps Q and M (by block).

    None if it is unknown: for a loss with kinks, draws that jump, or very many fields. The
    parameters are those at alpha = 0.
    """
    sample = structure.sample
    if not structure.loss.smooth or any(draw.outcomes for draw in sample.sampled_draws):
        return None
    function, _ = structure.loss.user_functions().get("loss", (None, None))
    stated = getattr(function, "loss_dependence", None)
    if stated is not None and (dependence := stated(structure)) is not None:
        return dependence
    if (
        structure.fields * sample.tokens.inputs_per_sample + sample.sampled_normals
        > MOST_COORDINATES
    ):
        return None
    user_values = jax.tree.leaves(parameters.get("user", {}))
    key = structure, b"".join(np.asarray(leaf).tobytes() for leaf in user_values)
    if key not in _CACHE:
        if len(_CACHE) >= CACHE_SIZE:
            _CACHE.clear()
        _CACHE[key] = _detect(_Setting(structure, parameters, overlaps))
    return _CACHE[key]


class _Setting:
    """A problem to examine: overlaps, variants of its parameters, and cases of its draws."""

    def __init__(
        self, structure: Structure, parameters: Parameters, overlaps: BlockOverlapPair | None
    ) -> None:
        self.structure = structure
        self.overlaps = generic_overlaps(structure, parameters)[1] if overlaps is None else overlaps
        self.M, self.P = self.overlaps[1].sum(axis=0), np.asarray(parameters["gram"]).sum(axis=0)
        self.head = np.random.default_rng(13).uniform(0.5, 1.5, structure.head_size)
        self.variants, self.cases = _variants_and_cases(structure, parameters)
        self.means_are_affine = _has_affine_means(structure, self.variants, self.cases)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of tokens and of fields per token."""
        return self.structure.sample.tokens.inputs_per_sample, self.structure.fields

    @property
    def field_count(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def coordinate_count(self) -> int:
        return self.field_count + self.structure.sample.sampled_normals


@float64
def _variants_and_cases(
    structure: Structure, parameters: Parameters
) -> tuple[list[Parameters], Cases]:
    """Return the parameters, also with the user's own changed, and all cases of discrete draws."""
    generator = np.random.default_rng(11)
    sample = structure.sample
    variants = [parameters]
    if "user" in parameters:
        changed = jax.tree.map(lambda leaf: _away_from_zero(leaf, generator), parameters["user"])
        variants.append({**parameters, "user": changed})
    if sample.sampled_normals == sample.normals_per_sample:
        return variants, {}
    with jax.ensure_compile_time_eval():
        # compiled, so that the weights of the cases, which are not used, are not computed
        cases = jax.jit(lambda parameters: sample.cases(parameters)[1])(parameters)
        return variants, jax.tree.map(np.asarray, cases)


def _away_from_zero(value: RealArray, generator: np.random.Generator) -> np.ndarray:
    """Return an array of the same signs with entries a little further from 0."""
    array = np.asarray(value, dtype=np.float64)
    sign = np.where(array < 0, -1.0, 1.0)
    return array + sign * (0.3 * np.abs(array) + 0.7) * generator.uniform(0.5, 1.0, array.shape)


def _repeat_for_cases(
    cases: Cases, *arrays: np.ndarray
) -> tuple[dict[str, Numeric], list[np.ndarray]]:
    """Return cases and points (n, ...) such that every point meets every case, cases slowest."""
    count = max((len(value) for value in cases.values()), default=1)
    points = [np.tile(array, (count, *[1] * (array.ndim - 1))) for array in arrays]
    repeated: dict[str, Numeric] = {
        name: jnp.asarray(np.repeat(value, len(arrays[0]), axis=0)) for name, value in cases.items()
    }
    return repeated, points


@float64
def _has_affine_means(structure: Structure, variants: list[Parameters], cases: Cases) -> bool:
    """Return whether the inputs' means are affine in the normal draws: all fields are Gaussian."""
    sample = structure.sample
    if sample.centred:
        return True
    with jax.ensure_compile_time_eval():
        case, (xi,) = _repeat_for_cases(cases, np.zeros((1, sample.sampled_normals)))
    for parameters in variants:

        def means(xi: Numeric, parameters: Parameters = parameters) -> Numeric | None:
            return sample.mean_coefficients(parameters, sample.draw(parameters, xi, case))

        jaxpr: Any = jax.make_jaxpr(means)(xi)
        bounds = degree_bounds(jaxpr, [np.ones(xi.shape)])
        if any(np.any(bound > 1) for bound in bounds):
            return False
    return True


class _Evaluator:
    """Loss and moves of samples as functions of fields (n, tokens, fields) and draws (n, free).

    If the means are not affine, the fields are without them, and the means are among the outputs.
    """

    def __init__(self, setting: _Setting) -> None:
        self.setting = setting

    def __call__(self, fields: np.ndarray, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss (n, entries) and the moves (n, entries), in every case and variant."""
        case, arguments = _repeat_for_cases(self.setting.cases, fields, xi)
        outputs = [
            self._evaluate(parameters, case, *arguments) for parameters in self.setting.variants
        ]

        def regroup(values: np.ndarray) -> np.ndarray:
            cases = values.reshape(-1, len(fields), values.shape[1])
            return np.swapaxes(cases, 0, 1).reshape(len(fields), -1)

        losses, moves = zip(*outputs, strict=True)
        return (
            np.concatenate([regroup(values) for values in losses], axis=1),
            np.concatenate([regroup(values) for values in moves], axis=1),
        )

    def degree_bound(self, mask: np.ndarray) -> float:
        """Return a bound on the degree of loss and moves in the chosen coordinates.

        It holds in every case and variant, and is infinite if they are not known to be polynomials.
        """
        split = self.setting.field_count
        chosen = mask[:split].reshape(self.setting.shape), mask[split:]
        bounds = []
        for count, jaxpr in self._jaxprs:
            degrees = [np.broadcast_to(flags, (count, *flags.shape)) for flags in chosen]
            bounds += [float(bound.max(initial=0.0)) for bound in degree_bounds(jaxpr, degrees)]
        return max(bounds, default=0.0)

    @cached_property
    @float64
    def _jaxprs(self) -> list[tuple[int, ClosedJaxpr]]:
        """The number of cases and the jaxpr of one sample in every case, for each variant."""
        setting = self.setting
        structure = replace(setting.structure, dependence=None)
        with jax.ensure_compile_time_eval():
            point = np.zeros((1, *setting.shape))
            xi = np.zeros((1, structure.sample.sampled_normals))
            case, arguments = _repeat_for_cases(setting.cases, point, xi)
            complete = [
                with_overlaps(structure, parameters, setting.overlaps)
                for parameters in setting.variants
            ]
        jaxprs = []
        for parameters, loss_parameters in zip(setting.variants, complete, strict=True):

            def outputs(
                y: Numeric,
                xi: Numeric,
                parameters: Parameters = parameters,
                loss_parameters: Parameters = loss_parameters,
            ) -> tuple[Any, ...]:
                fields, signals, draws, means = self._arguments(parameters, case, y, xi)
                value, *moves = sample_moves(
                    structure, loss_parameters, fields, signals, setting.head, draws
                )
                return (*([value] if structure.loss.has_risk else []), *moves, means)

            jaxprs.append((len(arguments[0]), jax.make_jaxpr(outputs)(*arguments)))
        return jaxprs  # type: ignore[return-value]

    def _arguments(
        self, parameters: Parameters, case: PyTree, y: Numeric, xi: Numeric
    ) -> tuple[Numeric, Numeric, PyTree, Numeric]:
        """Return fields, signals, the fourth argument of the loss, and means outside the fields."""
        structure = self.setting.structure
        sample, p, k = structure.sample, structure.width, structure.signals
        count, tokens = y.shape[:2]
        draws = sample.draw(parameters, jnp.asarray(xi), case)
        coefficients = jnp.zeros((count, 0))
        if not self.setting.means_are_affine:
            means: Any = sample.mean_coefficients(parameters, draws)
            coefficients = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k))
            shifts = [coefficients @ self.setting.M.T, coefficients @ self.setting.P]
            y = y + jnp.concatenate(shifts, axis=-1)
        rows = jnp.reshape(y, (-1, y.shape[-1]))
        fields, signals = (
            sample.tokens.group_by_sample(rows[:, :p]),
            sample.tokens.group_by_sample(rows[:, p:]),
        )
        return fields, signals, sample.loss_argument(draws), coefficients

    @float64
    def _evaluate(
        self, parameters: Parameters, case: PyTree, y: np.ndarray, xi: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        setting = self.setting
        with jax.ensure_compile_time_eval():
            fields, signals, draws, means = self._arguments(parameters, case, y, xi)
            value, *moves = evaluate_moves(
                setting.structure,
                parameters,
                setting.overlaps,
                fields,
                signals,
                setting.head,
                draws,
            )
        loss = np.asarray(value) if setting.structure.loss.has_risk else np.zeros(len(y))
        entries = [np.asarray(array).reshape(len(y), -1) for array in (*moves, means)]
        return loss[:, None], np.concatenate(entries, axis=1)


class _Lines:
    """Values on lines through one generic point, along chosen coordinates (fields, then draws)."""

    def __init__(self, setting: _Setting) -> None:
        self.setting, size = setting, setting.coordinate_count
        generator = np.random.default_rng(7)
        self.base = generator.standard_normal(size)
        self.direction = generator.uniform(0.5, 1.5, size) * generator.choice([-1.0, 1.0], size)
        self.evaluate = _Evaluator(setting)

    def field(self, row: int, token: int | None = None) -> np.ndarray:
        """Return the mask of a field in one token, or in all."""
        chosen = np.zeros(self.setting.shape, bool)
        chosen[slice(None) if token is None else token, row] = True
        return np.concatenate([chosen.reshape(-1), np.zeros(len(self.base) - chosen.size, bool)])

    def draw(self, index: int) -> np.ndarray:
        """Return the mask of a normal variable of the draws."""
        return np.arange(len(self.base)) == self.setting.field_count + index

    def union(self, masks: list[np.ndarray]) -> np.ndarray:
        """Return the mask of the coordinates in any of the masks."""
        return np.any([np.zeros(len(self.base), bool), *masks], axis=0)

    def values(self, masks: list[np.ndarray], t: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return loss and moves (points, entries) at base + t direction for each mask.

        Only the coordinates in the mask move along the direction.
        """
        points = np.stack(
            [
                np.where(mask, self.base + self.direction * step, self.base)
                for mask in masks
                for step in t
            ]
        )
        split = self.setting.field_count
        fields, draws = points[:, :split].reshape(-1, *self.setting.shape), points[:, split:]
        outputs = [
            values.reshape(len(masks), len(t), -1) for values in self.evaluate(fields, draws)
        ]
        return list(zip(*outputs, strict=True))

    def degrees(self, masks: list[np.ndarray]) -> list[int | None]:
        """Return the degree in the coordinates of each mask together, None for no polynomial.

        It is the degree of the moves, and at least half that of the loss, whose square is never
        needed. A polynomial of a degree below the number of points is determined by its values.
        """
        count = 2 * MOST_DEGREE + 1
        unit = np.cos(np.pi * (np.arange(count) + 0.5) / count)  # Chebyshev points
        on_lines = self.values(masks, np.concatenate([reach * unit for reach in REACHES]))
        degrees: list[int | None] = []
        for mask, (losses, moves) in zip(masks, on_lines, strict=True):
            if self.evaluate.degree_bound(mask) >= count:
                degrees.append(None)
                continue
            loss_degree, move_degree = (
                _fitted_degree(values.reshape(len(REACHES), count, -1), unit)
                for values in (losses, moves)
            )
            if loss_degree is None or move_degree is None:
                degrees.append(None)
            else:
                degrees.append(max((loss_degree + 1) // 2, move_degree))
        return degrees


def _fitted_degree(values: np.ndarray, unit: np.ndarray) -> int | None:
    """Return the least degree of polynomials through values (reaches, points, entries)."""
    if not np.all(np.isfinite(values)):
        return None
    # Interpolation at Chebyshev points: the matrix is orthogonal up to scaling.
    interpolate = np.linalg.inv(chebyshev.chebvander(unit, len(unit) - 1))
    largest = 0
    for line in values:
        size = np.maximum(np.abs(line).max(axis=0), 1e-8 * np.abs(line).max())
        coefficients = np.abs(interpolate @ (line / np.where(size > 0, size, 1.0)))
        # sum of the coefficients from each power upwards, for the worst entry
        tails = np.cumsum(coefficients[::-1], axis=0)[::-1].max(axis=1)
        largest = max(largest, int(np.sum(tails[1:] > FIT_TOLERANCE)))
    return largest if largest <= MOST_DEGREE else None


@dataclass(frozen=True)
class _Classes:
    """Indices of the rows and draws that the loss reads, and of those that enter polynomially."""

    rows: list[int]
    polynomial_rows: set[int]
    draws: set[int]
    polynomial_draws: set[int]


def _detect(setting: _Setting) -> LossDependence | None:
    lines = _Lines(setting)
    with np.errstate(invalid="ignore"):
        classes = _classify(lines)
        if classes is None or not (classes.rows or classes.draws):
            return None
        tokens = setting.shape[0]
        by_token = [
            lines.union([lines.field(row, token) for row in classes.polynomial_rows])
            for token in range(tokens)
        ]
        all_draws = lines.union([lines.draw(index) for index in classes.polynomial_draws])
        joint = lines.degrees([*by_token, all_draws, lines.union([all_draws, *by_token])])
    if any(degree is None for degree in joint):
        # polynomial in each coordinate, but of too high a degree in all together
        classes = replace(classes, polynomial_rows=set(), polynomial_draws=set())
        joint = [0] * len(joint)
    *token_degrees, draw_degree, total_degree = [int(degree or 0) for degree in joint]
    sample = setting.structure.sample
    affine = setting.means_are_affine
    # Coordinates of independent tokens and draws are independent: then each of them only needs the
    # degree in its own group.
    correlated = sample.tokens.correlated or (
        affine and not sample.centred and sample.sampled_normals > 0
    )
    field_degree = total_degree if correlated else max(token_degrees)
    draw_degree_used = total_degree if correlated else draw_degree
    field_count, draw_count = tokens * len(classes.polynomial_rows), len(classes.polynomial_draws)
    degrees = [field_degree] * field_count + [draw_degree_used] * draw_count
    # n + 1 nodes integrate the square of a move of degree n. At finite d a square is multiplied by
    # that of a field or, if the coordinate is not part of the fields, by that of a mean.
    extra_draw = int(correlated) if affine else draw_degree
    extra = [1] * field_count + [extra_draw] * draw_count
    return LossDependence(
        _combinations(lines, classes, polynomial=False),
        _combinations(lines, classes, polynomial=True),
        tuple(degree + 1 for degree in degrees),
        tuple(degree + 1 + raised for degree, raised in zip(degrees, extra, strict=True)),
        affine,
    )


def _classify(lines: _Lines) -> _Classes | None:
    """Return which coordinates are read and which enter polynomially; None outside the domain."""
    fields, free = lines.setting.shape[1], lines.setting.structure.sample.sampled_normals
    masks = [lines.field(row) for row in range(fields)]
    masks += [lines.draw(index) for index in range(free)]
    probes = lines.values(masks, np.array([0.0, np.nan]))
    if not all(np.all(np.isfinite(values[0])) for probe in probes for values in probe):
        return None  # with changed parameters the loss may leave its domain
    is_read = [
        not all(np.array_equal(values[0], values[1]) for values in probe) for probe in probes
    ]
    is_polynomial = [degree is not None for degree in lines.degrees(masks)]
    rows = [row for row in range(fields) if is_read[row]]
    draws = {index for index in range(free) if is_read[fields + index]}
    return _Classes(
        rows,
        {row for row in rows if is_polynomial[row]},
        draws,
        {index for index in draws if is_polynomial[fields + index]},
    )


def _combinations(lines: _Lines, classes: _Classes, polynomial: bool) -> Combinations:
    """Return unit combinations of the coordinates of one class, the signals before the students."""
    width = lines.setting.structure.width
    signals_first = [row for row in classes.rows if row >= width]
    signals_first += [row for row in classes.rows if row < width]
    masks = [
        lines.field(row) for row in signals_first if (row in classes.polynomial_rows) == polynomial
    ]
    masks += [
        lines.draw(index)
        for index in sorted(classes.draws)
        if (index in classes.polynomial_draws) == polynomial
    ]
    unit = np.eye(lines.setting.coordinate_count)
    return tuple(tuple(unit[index].tolist()) for mask in masks for index in np.flatnonzero(mask))
