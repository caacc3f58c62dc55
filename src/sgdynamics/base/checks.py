"""Argument checks shared by the whole library.

Each check returns the validated value or raises a ValueError that names the argument, its value and
the remedy, in the form `argument = value: what is wrong. What to do.`
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast, overload

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def reject(argument: str, value: object, fix: str) -> ValueError:
    """Build the ValueError for a bad argument: its name, its value on one line, and the remedy."""
    text = " ".join(_represent(value).split())
    if len(text) > 120:
        text = text[:117] + "..."
    return ValueError(f"{argument} = {text}: {fix}")


def _represent(value: object) -> str:
    """Represent a value as text; an object whose own `repr` fails is named by its type."""
    # `reject` shows 120 characters, so the representation of a long value may be cut first.
    if isinstance(value, (list, tuple)):
        value = value[:50]
    elif isinstance(value, (str, bytes)):
        value = value[:500]
    try:
        return repr(value)
    except Exception:
        return f"{type(value).__name__} object"


def reason(error: BaseException) -> str:
    """Summarise an error by its type and first line; messages of JAX may be pages long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[0].split()) if lines else "no message"
    return f"{type(error).__name__}: {message[:197] + '...' if len(message) > 200 else message}"


TRACED_VALUE = (
    "this is a traced value (inside jit, vmap or grad), but the solvers need concrete numbers. "
    "Use sgd.functional, whose drift, risk and solve can be transformed by JAX."
)


def is_traced(value: object) -> bool:
    """Whether a value is a JAX tracer, which has no concrete value."""
    # Without JAX there are no tracers, and this module must not trigger its slow import.
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def require_outside_jit(function: str) -> None:
    """Raise ValueError while JAX traces a user's function.

    All arrays are tracers then, whatever the arguments of the solver are.
    """
    import jax

    # The cheapest operation that shows whether JAX is tracing.
    if is_traced(jax.numpy.positive(np.zeros((), np.float32))):
        raise ValueError(
            f"{function} is called inside jit: it chooses shapes, steps and methods from concrete "
            "numbers, which are unknown there. Call it outside of jit, or use sgd.functional, "
            "whose drift, risk and solve can be transformed by JAX."
        )


# Step counters have 64 bits.
MAX_INT64 = 2**63 - 1


def integer(argument: str, value: object, minimum: int, maximum: int = MAX_INT64) -> int:
    """An integer from `minimum` to `maximum`."""
    fix = f"give a whole number, {minimum} or more"
    if is_traced(value):
        raise reject(argument, value, TRACED_VALUE)
    scalar = _scalar(value)
    if not isinstance(scalar, (int, np.integer, float, np.floating)) or isinstance(scalar, bool):
        raise reject(argument, value, fix)
    # NaN is the only number that differs from itself.
    finite = scalar not in (math.inf, -math.inf) and scalar == scalar
    if not finite or int(scalar) != scalar or scalar < minimum:
        raise reject(argument, value, fix)
    if scalar > maximum:
        limit = maximum if maximum < 10**6 else f"{maximum:.3g}"
        raise reject(argument, value, f"give a whole number from {minimum} to {limit}")
    return int(scalar)


def number(
    argument: str,
    value: object,
    minimum: float = -math.inf,
    *,
    above: float | None = None,
    infinite: bool = False,
) -> float:
    """A real number, at least `minimum` (or strictly above `above`), finite unless `infinite`."""
    if above is not None:
        fix = f"give a number above {above:g}"
    elif minimum > -math.inf:
        fix = f"give a number, {minimum:g} or more"
    else:
        fix = "give a finite number"
    if is_traced(value):
        raise reject(argument, value, TRACED_VALUE)
    scalar = _scalar(value)
    # float() would also convert text, and True to 1.
    if isinstance(scalar, (bool, np.bool_, str, bytes)):
        raise reject(argument, value, fix)
    try:
        result = float(scalar)
    except (TypeError, ValueError, OverflowError):
        raise reject(argument, value, fix) from None
    if math.isnan(result) or (math.isinf(result) and not infinite):
        raise reject(argument, value, fix)
    if result < minimum or (above is not None and result <= above):
        raise reject(argument, value, fix)
    return result


def _scalar(value: object) -> Any:
    """The number in a zero-dimensional array; None for arrays of any other shape."""
    item = getattr(value, "item", None)
    if getattr(value, "shape", None) == () and item is not None:
        return item()
    return None if hasattr(value, "shape") else value


@overload
def flag(argument: str, value: object) -> bool: ...


@overload
def flag(argument: str, value: object, *, optional: bool) -> bool | None: ...


def flag(argument: str, value: object, *, optional: bool = False) -> bool | None:
    """True or False, or None if `optional`; text such as "no" is not accepted."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if optional and value is None:
        return None
    raise reject(argument, value, f"give True or False{', or None' if optional else ''}")


Choice = TypeVar("Choice")


def choice(argument: str, value: object, allowed: Iterable[Choice]) -> Choice:
    """One of the allowed values; the message for another value suggests the closest one."""
    options = list(allowed)
    if isinstance(value, np.bool_):
        value = bool(value)
    if any(
        value is option or (type(value) is type(option) and value == option) for option in options
    ):
        return cast(Choice, value)
    listed = ", ".join(repr(option) for option in options)
    raise reject(argument, value, f"{did_you_mean(value, options)}choose one of {listed}")


def did_you_mean(value: object, options: Iterable[Any]) -> str:
    """The text 'did you mean ...? ' if an option is similar to the value, otherwise ''."""
    names = [option for option in options if isinstance(option, str)]
    close = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? " if close else ""


def array(argument: str, value: object, shape: tuple[int, ...], meaning: str) -> np.ndarray:
    """A finite float64 array of the given shape."""
    result = real_array(argument, value, f"give numbers of shape {shape} ({meaning})")
    if result.shape != shape:
        raise ValueError(f"{argument} has shape {result.shape}: give shape {shape} ({meaning})")
    if not np.all(np.isfinite(result)):
        raise ValueError(
            f"{argument} has entries that are not finite: give finite numbers ({meaning})"
        )
    return result


def real_array(argument: str, value: object, fix: str) -> np.ndarray:
    """A copy of the value as float64 array of any shape.

    Text, booleans, complex numbers and ragged lists raise ValueError.
    """
    if any(is_traced(leaf) for leaf in _leaves(value)):
        raise reject(argument, value, TRACED_VALUE)
    try:
        entries = np.asarray(value)
        # float64 would convert text, and drop imaginary parts.
        if entries.dtype.kind in "bcSUmM":
            raise TypeError
        if entries.dtype.kind == "O" and any(
            isinstance(entry, (bool, str, bytes, complex, type(None)))
            for entry in entries.ravel().tolist()
        ):
            raise TypeError
        return np.array(entries, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise reject(argument, value, fix) from None


def _leaves(value: object, depth: int = 0) -> Iterator[object]:
    """The first entries of nested lists, in which a tracer may hide."""
    if isinstance(value, (list, tuple)) and depth < 4:
        for entry in value[:100]:
            yield from _leaves(entry, depth + 1)
    else:
        yield value


def result(
    argument: str,
    value: object,
    *needed: str,
    fix: str = "give what solve_ode, simulate or another solver returned",
) -> xr.Dataset:
    """A result as an argument: a Dataset with these variables, coordinates or dimensions."""
    import xarray as xr

    if not isinstance(value, xr.Dataset):
        raise reject(argument, value, fix)
    missing = [name for name in needed if name not in value.variables and name not in value.dims]
    if missing:
        raise reject(
            argument,
            [str(name) for name in value.variables],
            f"there is no {missing[0]!r} in it: {fix}",
        )
    return value


def path(argument: str, value: object) -> Path:
    """The path of a file or folder."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (str, os.PathLike))
        or (isinstance(value, str) and (not value or "\0" in value))
    ):
        raise reject(argument, value, "give the name of a file or folder")
    name = os.fspath(value)
    if not isinstance(name, str):
        raise reject(argument, value, "give the name of a file or folder as text")
    return Path(name)


def gram_matrix(argument: str, value: np.ndarray, tolerance: float = 1e-9) -> None:
    """Raise ValueError unless matrices are symmetric and positive semi-definite."""
    if not np.all(np.isfinite(value)):
        raise ValueError(f"{argument} has entries that are not finite: give finite numbers")
    scale = max(1.0, float(np.abs(value).max(initial=0.0)))
    asymmetry = float(np.abs(value - np.swapaxes(value, -1, -2)).max(initial=0.0))
    if asymmetry > tolerance * scale:
        raise ValueError(
            f"{argument} is not symmetric (largest difference {asymmetry:.3g}): "
            "give a symmetric matrix of inner products"
        )
    lowest = float(np.linalg.eigvalsh(value).min(initial=0.0))
    if lowest < -tolerance * scale:
        raise ValueError(
            f"{argument} is not a Gram matrix (smallest eigenvalue {lowest:.6g} < 0): no vectors "
            f"have these inner products. Give overlaps with a positive semi-definite {argument}."
        )


def reject_unknown(owner: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ValueError if a name is not among the allowed ones, and suggest the closest."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            suggestion = did_you_mean(name, allowed)
            raise ValueError(f"{owner} has no {name!r}: {suggestion}it takes {', '.join(allowed)}")


Decorated = TypeVar("Decorated")


def argument_hints(hints: Mapping[str, str]) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class: unknown and missing arguments raise a helpful ValueError.

    `hints` maps argument names to sentences. For other unknown names the message contains the
    closest argument and the list of all arguments.
    """

    def decorate(target: Any) -> Any:
        function = target.__init__ if isinstance(target, type) else target
        # The first argument of a method is self.
        first = 1 if isinstance(target, type) else 0
        parameters = list(inspect.signature(function).parameters.values())[first:]
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if any(parameter.kind in variadic for parameter in parameters):
            return target
        allowed = [parameter.name for parameter in parameters]
        required = [
            parameter.name for parameter in parameters if parameter.default is parameter.empty
        ]

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            for name in kwargs:
                if name not in allowed:
                    arguments = ", ".join(allowed) or "no arguments"
                    suggestion = did_you_mean(name, allowed)
                    suggestion = suggestion[:1].upper() + suggestion[1:]
                    hint = hints.get(name, f"{suggestion}It takes {arguments}.")
                    message = f"{target.__name__} has no such argument. {hint}"
                    raise reject(name, kwargs[name], message)
            for name in required:
                if name not in kwargs and allowed.index(name) + first >= len(args):
                    example = ", ".join(f"{other}=..." for other in required)
                    hint = hints.get(name, f"Write {target.__name__}({example}).")
                    raise ValueError(f"{name} is missing: {target.__name__} needs it. {hint}")
            return function(*args, **kwargs)

        if isinstance(target, type):
            target.__init__ = call  # type: ignore[misc]
            return target
        return call

    return decorate


class DataclassInstance(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Instance = TypeVar("Instance", bound=DataclassInstance)


def replace_fields(value: Instance, changes: dict[str, Any]) -> Instance:
    """Return a frozen dataclass with some fields changed; its own checks run again."""
    names = [field.name for field in dataclasses.fields(value) if field.init]
    reject_unknown(type(value).__name__, changes, names)
    return dataclasses.replace(value, **changes)
