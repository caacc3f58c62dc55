"""Controls by name: which number of a problem or an algorithm a name stands for, its bounds, and how a schedule is put in its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.analysis.protocols.search import Box
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule, is_scheduled, piecewise
from sgdynamics.results.records import contents, replace_inside

SECTIONS = ("algorithm", "problem")
LOWEST_RATE = 1e-3  # of the highest: what a lower bound of 0 of a learning rate means, as rates are searched in logarithms
IMPULSES = (
    "give finite bounds (lowest, highest): a control that enters linearly (noise, decay, rates of a head, shares) is best at its bounds, "
    "and without them it would be an impulse"
)
Path = tuple[str, ...]


@dataclass(frozen=True)
class Controls:
    """Controls as asked for: names, which numbers they are, bounds and budgets."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    box: Box

    def put(
        self, problem: object, algorithm: object, schedules: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The problem and the algorithm with these schedules, or numbers, in place of the controls."""
        made: list[Any] = []
        for section, value in (("problem", problem), ("algorithm", algorithm)):
            own = {
                path[1:]: schedules[name]
                for name, path in zip(self.names, self.paths, strict=True)
                if path[0] == section
            }
            made.append(replace_inside(value, own))
        return made[0], made[1]


def checked_controls(
    problem: object, algorithm: object, controls: object, budget: object
) -> Controls:
    """The arguments `controls` and `budget`."""
    if not isinstance(controls, Mapping) or not controls:
        raise checks.reject("controls", controls, 'give bounds by name, such as {"lr": (0, 5)}')
    names: tuple[str, ...] = tuple(controls)
    objects = {"problem": problem, "algorithm": algorithm}
    paths = tuple(find(objects, name) for name in names)
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise checks.reject(
                "controls",
                [names[paths.index(path)], names[index]],
                "both name the same number: keep one",
            )
    means = _means(budget, names)
    low, high, log = [], [], []
    for name, path in zip(names, paths, strict=True):
        lowest, highest = validate_bounds(f"controls[{name!r}]", controls[name])
        if path == ("algorithm", "lr") and lowest == 0 and name not in means:
            lowest = LOWEST_RATE * highest
        for end in (lowest, highest):
            _allowed(objects, name, path, end)
        if name in means and not lowest <= means[name] <= highest:
            raise checks.reject(
                f"budget[{name!r}]",
                means[name],
                f"give a mean between its bounds, {lowest:g} and {highest:g}",
            )
        low.append(lowest)
        high.append(highest)
        # a budget is a mean of the numbers themselves, and linear in them alone
        log.append(lowest > 0 and name not in means)
    given = np.array([means.get(name, math.nan) for name in names])
    return Controls(names, paths, Box(np.array(low), np.array(high), np.array(log), given))


def find(objects: Mapping[str, Any], name: object) -> Path:
    """The number that a name stands for, as in sweeps: dotted, or bare where only one has it."""
    if not isinstance(name, str) or not name:
        raise checks.reject(
            "controls", name, 'name numbers by text, such as "algorithm.lr" or "lr"'
        )
    path = tuple(name.split("."))
    known = {section: list(contents(objects[section])) for section in SECTIONS}
    names = getattr(objects["problem"], "names", ())
    if path[0] not in SECTIONS and name in names and "contexts" in objects["problem"].kinds:
        path = ("problem", "probabilities", name)  # the share of a context
    if path[0] not in SECTIONS:
        homes = [section for section in SECTIONS if path[0] in known[section]]
        if len(homes) > 1:
            shown = " or ".join(f"{home}.{name}" for home in homes)
            raise checks.reject("controls", name, f"it is a number of more than one: write {shown}")
        if not homes:
            everything = [one for section in SECTIONS for one in known[section]]
            listed = "; ".join(f"{section}: {', '.join(known[section])}" for section in SECTIONS)
            raise checks.reject(
                "controls",
                name,
                f"no such number: {checks.did_you_mean(path[0], everything)}there are {listed}",
            )
        path = (homes[0], *path)
    place = objects[path[0]]
    for step in path[1:]:
        inside = contents(place)
        if step not in inside:
            raise checks.reject(
                "controls",
                name,
                f"there is no {step!r}: {checks.did_you_mean(step, inside)}{', '.join(inside)}",
            )
        place = inside[step]
    if len(path) == 1 or not (_is_number(place) or path[1:-1] == ("probabilities",)):
        inside = ", ".join(f"{name}.{step}" for step in contents(place))
        raise checks.reject(
            "controls",
            name,
            f"it is no single number that may change: {f'write {inside}' if inside else 'give another'}",
        )
    return path


def _is_number(value: object) -> bool:
    """Whether a control may stand in its place: one number, or a function of alpha."""
    if is_scheduled(value) or callable(value):
        return True
    return (
        isinstance(value, (int, float, np.number, np.ndarray))
        and not isinstance(value, bool)
        and np.ndim(value) == 0
    )


def validate_bounds(argument: str, bounds: Any) -> tuple[float, float]:
    """Validate the lowest and the highest value of a control."""
    if bounds is None:
        raise checks.reject(argument, bounds, IMPULSES)
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise checks.reject(argument, bounds, "give (lowest, highest)") from None
    if low is None or high is None:
        raise checks.reject(argument, bounds, IMPULSES)
    lowest, highest = (checks.number(argument, end, infinite=True) for end in (low, high))
    if math.isinf(lowest) or math.isinf(highest):
        raise checks.reject(argument, bounds, IMPULSES)
    if not lowest < highest:
        raise checks.reject(argument, bounds, "give (lowest, highest) with lowest < highest")
    return lowest, highest


def _means(budget: object, names: tuple[str, ...]) -> dict[str, float]:
    if budget is None:
        return {}
    if not isinstance(budget, Mapping):
        raise checks.reject(
            "budget", budget, 'give means over alpha by name of a control, such as {"lr": 0.5}'
        )
    for name in budget:
        if name not in names:
            raise checks.reject(
                "budget",
                name,
                f"it is not among the controls: {checks.did_you_mean(name, names)}{', '.join(names)}",
            )
    return {name: checks.number(f"budget[{name!r}]", mean) for name, mean in budget.items()}


def _allowed(objects: Mapping[str, Any], name: str, path: Path, end: float) -> None:
    """Refuse a bound that the number cannot have."""
    try:
        replace_inside(objects[path[0]], {path[1:]: end})
    except (ValueError, TypeError) as error:
        raise checks.reject(
            f"controls[{name!r}]", end, f"it cannot be that: {checks.reason(error)}"
        ) from None


def pieces_of(edges: np.ndarray, values: np.ndarray) -> Schedule:
    """A control as a schedule of pieces."""
    return piecewise(edges[1:-1], values)
