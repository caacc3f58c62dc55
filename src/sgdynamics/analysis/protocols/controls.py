"""Controls by name: the parameter that a name stands for, its bounds, and inserting a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.analysis.protocols.box import Box
from sgdynamics.base import checks
from sgdynamics.base.controls import Schedule, is_scheduled, piecewise
from sgdynamics.results.records import contents, replace_inside

SECTIONS = ("algorithm", "problem")
# Learning rates are searched in logarithms: a lower bound of 0 stands for this share of the upper
# one.
LOWEST_RATE = 1e-3
FINITE_BOUNDS = (
    "give finite bounds (lowest, highest). A control that enters the equations linearly (noise, "
    "decay, rate of a head, probability of a context) is best at its bounds, and without bounds it "
    "would be an impulse."
)
# Names of nested fields, from the section to the parameter.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Controls:
    """The controls of a protocol: names, paths to the parameters, bounds and budgets."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    box: Box

    def insert(
        self, problem: object, algorithm: object, values: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The problem and the algorithm with schedules or numbers in place of the controls."""
        replaced: dict[str, Any] = {"problem": problem, "algorithm": algorithm}
        for section, value in replaced.items():
            inner = {
                path[1:]: values[name]
                for name, path in zip(self.names, self.paths, strict=True)
                if path[0] == section
            }
            replaced[section] = replace_inside(value, inner)
        return replaced["problem"], replaced["algorithm"]


def piecewise_control(edges: np.ndarray, values: np.ndarray) -> Schedule:
    """The values of a control between edges (from 0 to the end) as a schedule."""
    return piecewise(edges[1:-1], values)


def validate_controls(
    problem: object, algorithm: object, controls: object, budget: object
) -> Controls:
    """Validate the arguments `controls` and `budget` of `optimal_protocol`."""
    if not isinstance(controls, Mapping) or not controls:
        raise checks.reject("controls", controls, 'give bounds by name, such as {"lr": (0, 5)}')
    names: tuple[str, ...] = tuple(controls)
    sections = {"problem": problem, "algorithm": algorithm}
    paths = tuple(resolve_control(sections, name) for name in names)
    for index, path in enumerate(paths):
        if path in paths[:index]:
            duplicates = [names[paths.index(path)], names[index]]
            raise checks.reject(
                "controls", duplicates, "both name the same parameter. Remove one of them."
            )
    means = _validate_budget(budget, names)
    low, high, log = [], [], []
    for name, path in zip(names, paths, strict=True):
        lowest, highest = validate_bounds(f"controls[{name!r}]", controls[name])
        if path == ("algorithm", "lr") and lowest == 0 and name not in means:
            lowest = LOWEST_RATE * highest
        for bound in (lowest, highest):
            _check_bound(sections, name, path, bound)
        if name in means and not lowest <= means[name] <= highest:
            raise checks.reject(
                f"budget[{name!r}]",
                means[name],
                f"give a mean between its bounds, {lowest:g} and {highest:g}",
            )
        low.append(lowest)
        high.append(highest)
        # A budget is linear in the control itself, not in its logarithm.
        log.append(lowest > 0 and name not in means)
    budgets = np.array([means.get(name, math.nan) for name in names])
    return Controls(names, paths, Box(np.array(low), np.array(high), np.array(log), budgets))


def resolve_control(sections: Mapping[str, Any], name: object) -> Path:
    """The path of the parameter that a name stands for.

    Names are those of sweeps: dotted, or bare if only one section has such a parameter. The bare
    name of a context stands for its probability.
    """
    if not isinstance(name, str) or not name:
        raise checks.reject(
            "controls", name, 'name parameters by text, such as "algorithm.lr" or "lr"'
        )
    path = _full_path(sections, name)
    value = sections[path[0]]
    for step in path[1:]:
        inner = contents(value)
        if step not in inner:
            suggestion = checks.did_you_mean(step, inner)
            fix = f"{suggestion}replace {step!r} by one of {', '.join(inner)}"
            raise checks.reject("controls", name, fix)
        value = inner[step]
    is_probability = path[1:-1] == ("probabilities",)
    if len(path) == 1 or not (_is_number(value) or is_probability):
        inner_names = ", ".join(f"{name}.{step}" for step in contents(value))
        fix = f"Give one of {inner_names}." if inner_names else "Choose another parameter."
        raise checks.reject("controls", name, f"not a single number. {fix}")
    return path


def _full_path(sections: Mapping[str, Any], name: str) -> Path:
    """The path of a name with its section, which a bare name leaves out."""
    path = tuple(name.split("."))
    if path[0] in SECTIONS:
        return path
    problem = sections["problem"]
    if name in getattr(problem, "names", ()) and "contexts" in problem.kinds:
        return ("problem", "probabilities", name)
    parameters = {section: list(contents(sections[section])) for section in SECTIONS}
    owners = [section for section in SECTIONS if path[0] in parameters[section]]
    if len(owners) > 1:
        options = " or ".join(f"{section}.{name}" for section in owners)
        raise checks.reject("controls", name, f"the name is ambiguous. Write {options}.")
    if not owners:
        known_names = [parameter for section in SECTIONS for parameter in parameters[section]]
        suggestion = checks.did_you_mean(path[0], known_names)
        listing = " or ".join(
            f"{', '.join(parameters[section])} (of the {section})" for section in SECTIONS
        )
        raise checks.reject("controls", name, f"{suggestion}choose one of {listing}")
    return (owners[0], *path)


def _is_number(value: object) -> bool:
    """Whether a control may replace a value: a single number, or a function of alpha."""
    if is_scheduled(value) or callable(value):
        return True
    is_numeric = isinstance(value, (int, float, np.number, np.ndarray))
    return is_numeric and not isinstance(value, bool) and np.ndim(value) == 0


def validate_bounds(argument: str, bounds: Sequence[float] | None) -> tuple[float, float]:
    """Validate the lowest and the highest value of a control."""
    if bounds is None:
        raise checks.reject(argument, bounds, FINITE_BOUNDS)
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise checks.reject(argument, bounds, "give (lowest, highest)") from None
    if low is None or high is None:
        raise checks.reject(argument, bounds, FINITE_BOUNDS)
    lowest, highest = (checks.number(argument, bound, infinite=True) for bound in (low, high))
    if math.isinf(lowest) or math.isinf(highest):
        raise checks.reject(argument, bounds, FINITE_BOUNDS)
    if not lowest < highest:
        raise checks.reject(argument, bounds, "give (lowest, highest) with lowest < highest")
    return lowest, highest


def _validate_budget(budget: object, names: tuple[str, ...]) -> dict[str, float]:
    """Validate the means over alpha, by name of a control."""
    if budget is None:
        return {}
    if not isinstance(budget, Mapping):
        raise checks.reject(
            "budget", budget, 'give means over alpha by name of a control, such as {"lr": 0.5}'
        )
    for name in budget:
        if name not in names:
            suggestion = checks.did_you_mean(name, names)
            fix = f"{suggestion}choose one of the controls, {', '.join(names)}"
            raise checks.reject("budget", name, fix)
    return {name: checks.number(f"budget[{name!r}]", mean) for name, mean in budget.items()}


def _check_bound(sections: Mapping[str, Any], name: str, path: Path, bound: float) -> None:
    """Raise ValueError if the parameter cannot have the value of a bound."""
    try:
        replace_inside(sections[path[0]], {path[1:]: bound})
    except (ValueError, TypeError) as error:
        raise checks.reject(
            f"controls[{name!r}]", bound, f"not a valid value. {checks.reason(error)}"
        ) from None
