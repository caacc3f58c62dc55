"""Problems as frozen pytrees: how they store constructor arguments and expose parameters to JAX.

A problem has two representations that have to agree:

- the arguments of its constructor, from which `replace` makes a changed problem and `describe` a
  record;
- its parameters, the leaves of the problem as a pytree, which JAX maps, traces and differentiates.

JAX may put other parameters into a problem (`unflatten`). Nothing is checked or computed then,
because the leaves may be tracers or placeholders; the problem is only marked as rebuilt, and its
arguments are read back from the parameters when they are needed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from jax.tree_util import GetAttrKey, register_pytree_with_keys

from sgdynamics.base import pytrees
from sgdynamics.base.arrays import Parameters
from sgdynamics.problems.structure import Structure

Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner")

# Attributes that differ between problems with the same static part.
LEAVES, CACHE = "_parameters", "_derived_parameters"


class HasParameters(Protocol):
    """An object with a dictionary of parameters: a problem."""

    @property
    def parameters(self) -> Parameters: ...


class ParameterAttribute:
    """An attribute of a problem that is read from its parameters, also after JAX replaced them."""

    def __set_name__(self, owner: type | None, name: str) -> None:
        self.name = name

    def __get__(self, problem: HasParameters | None, owner: type | None = None) -> Any:
        if problem is None:
            return self
        return pytrees.to_python_scalar(problem.parameters[self.name])


def records_arguments(
    constructor: Callable[Concatenate[Owner, Arguments], None],
) -> Callable[Concatenate[Owner, Arguments], None]:
    """Decorate the constructor of a problem: store its arguments, and freeze the finished problem.

    The arguments, with defaults, are in `_arguments` before the constructor runs. After it has run,
    setting an attribute raises AttributeError.
    """
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def __init__(self: Owner, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            constructor(self, *args, **kwargs)  # raises the TypeError with the usual message
            raise
        bound.apply_defaults()
        _, *names = bound.arguments
        object.__setattr__(self, "_arguments", {name: bound.arguments[name] for name in names})
        constructor(self, *args, **kwargs)
        object.__setattr__(self, "_is_frozen", True)

    return __init__


@dataclass(frozen=True)
class StaticPart:
    """The static part of a problem as a pytree.

    Two problems of one structure have equal static parts, so that they share compiled code; a
    problem is rebuilt with the attributes of the problem that was flattened.
    """

    structure: Structure
    parameter_names: tuple[str, ...]
    attributes: dict[str, Any] = field(compare=False)


def register_problem_class(problem_class: type[Any]) -> None:
    """Register a class of problems as a pytree whose leaves are its parameters."""

    def flatten(problem: Any) -> tuple[list[tuple[Any, Any]], StaticPart]:
        attributes = {
            name: value for name, value in vars(problem).items() if name not in (LEAVES, CACHE)
        }
        parameters = problem._parameters
        children = [(GetAttrKey(name), value) for name, value in parameters.items()]
        return children, StaticPart(problem.structure, tuple(parameters), attributes)

    def unflatten(static: StaticPart, children: Sequence[Any]) -> Any:
        values = pytrees.to_numpy(children)
        parameters = dict(zip(static.parameter_names, values, strict=True))
        return rebuild(problem_class, static.attributes, parameters)

    register_pytree_with_keys(problem_class, flatten, unflatten)  # type: ignore[arg-type]


def rebuild(
    problem_class: type[Owner], attributes: dict[str, Any], parameters: dict[str, Any]
) -> Owner:
    """Return a problem with these static attributes and parameters, without any checks."""
    problem = object.__new__(problem_class)
    problem.__dict__.update(attributes, _is_rebuilt=True, _parameters=parameters)
    return problem
