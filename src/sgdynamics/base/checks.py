"""Argument checks shared by the whole library: each raises a ValueError naming argument, value and fix."""

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
from typing import Any, TypeVar

import numpy as np


def reject(argument: str, value: object, fix: str) -> ValueError:
    """The one form of the library's complaints."""
    shown = " ".join(_shown(value).split())  # in one line
    if len(shown) > 120:
        shown = shown[:117] + "..."
    return ValueError(f"{argument} = {shown}: {fix}")


def _shown(value: object) -> str:
    """A value as text; objects whose own text fails are named by their type."""
    try:
        # the rest of a long one is not shown anyway
        return repr(
            value[:50]
            if isinstance(value, (list, tuple))
            else value[:500]
            if isinstance(value, (str, bytes))
            else value
        )
    except Exception:
        return f"{type(value).__name__} object"


def reason(error: BaseException) -> str:
    """The first line of an error, in one short line: JAX's own go on for pages."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[0].split()) if lines else "no message"
    return f"{type(error).__name__}: {said[:197] + '...' if len(said) > 200 else said}"


TRACED_VALUE = (
    "this is a traced value (inside jit, vmap or grad), and the solvers take numbers: use sgd.functional, whose drift, risk and solve JAX "
    "goes through"
)


def is_traced(value: object) -> bool:
    """Whether a value is one of JAX's tracers, which have no number."""
    jax = sys.modules.get(
        "jax"
    )  # without JAX there are none, and this module must not wait for its import
    return jax is not None and isinstance(value, jax.core.Tracer)


def require_outside_jit(function: str) -> None:
    """Refuse to solve or simulate while JAX traces a user's function: all arrays are tracers then, whatever the arguments are."""
    import jax

    # of what costs an operation on no data, the cheapest
    if is_traced(jax.numpy.positive(np.zeros((), np.float32))):
        raise ValueError(
            f"{function} is called inside jit: it chooses shapes, steps and methods from numbers, which are not known there; call it "
            "outside, or use sgd.functional, whose drift, risk and solve JAX goes through"
        )


MAX_INT64 = 2**63 - 1  # counters have 64 bits


def integer(argument: str, value: object, minimum: int, maximum: int = MAX_INT64) -> int:
    """An integer not below `minimum` and not above `maximum`."""
    wanted = f"give a whole number, {minimum} or more"
    if is_traced(value):
        raise reject(argument, value, TRACED_VALUE)
    given = _scalar(value)
    if not isinstance(given, (int, np.integer, float, np.floating)) or isinstance(given, bool):
        raise reject(argument, value, wanted)
    if given in (math.inf, -math.inf) or given != given or int(given) != given or given < minimum:
        raise reject(argument, value, wanted)
    if given > maximum:
        raise reject(
            argument,
            value,
            f"give a whole number from {minimum} to {maximum if maximum < 10**6 else f'{maximum:.3g}'}",
        )
    return int(given)


def number(
    argument: str,
    value: object,
    minimum: float = -math.inf,
    *,
    above: float | None = None,
    infinite: bool = False,
) -> float:
    """A real number, at least `minimum` (or strictly above `above`); infinite only where that has a meaning."""
    bound = f"a number above {above:g}" if above is not None else f"a number, {minimum:g} or more"
    if minimum == -math.inf and above is None:
        bound = "a finite number"
    if is_traced(value):
        raise reject(argument, value, TRACED_VALUE)
    given = _scalar(value)
    # float() would also read text and count True as 1
    if isinstance(given, (bool, np.bool_, str, bytes)):
        raise reject(argument, value, f"give {bound}")
    try:
        result = float(given)
    except (TypeError, ValueError, OverflowError):
        raise reject(argument, value, f"give {bound}") from None
    if math.isnan(result) or (math.isinf(result) and not infinite):
        raise reject(argument, value, f"give {bound}")
    if result < minimum or (above is not None and result <= above):
        raise reject(argument, value, f"give {bound}")
    return result


def _scalar(value: object) -> Any:
    """A number out of an array without dimensions (NumPy's or JAX's); an array of another shape is no number, whatever its size."""
    item = getattr(value, "item", None)
    if getattr(value, "shape", None) == () and item is not None:
        return item()
    return None if hasattr(value, "shape") else value


def flag(argument: str, value: object, *, optional: bool = False) -> Any:
    """True or False, and None too where that may be left `optional`; text such as "no" is neither."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if optional and value is None:
        return None
    raise reject(argument, value, f"give True or False{', or None' if optional else ''}")


def choice(argument: str, value: object, allowed: Iterable[Any]) -> Any:
    """One of a few values, with a suggestion for what was probably meant."""
    options = list(allowed)
    if isinstance(value, np.bool_):
        value = bool(value)
    if any(
        value is option or (type(value) is type(option) and value == option) for option in options
    ):
        return value
    listed = ", ".join(repr(option) for option in options)
    raise reject(argument, value, f"{did_you_mean(value, options)}choose one of {listed}")


def did_you_mean(value: object, options: Iterable[Any]) -> str:
    """'did you mean ...? ' when something close is on the list, else nothing."""
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
    """A float64 array of any shape, a copy; text, True and False, complex numbers and ragged lists are none."""
    if any(is_traced(leaf) for leaf in _leaves(value)):
        raise reject(argument, value, TRACED_VALUE)
    try:
        given = np.asarray(value)
        if given.dtype.kind in "bcSUmM":  # float64 would read text and drop imaginary parts
            raise TypeError
        if given.dtype.kind == "O" and any(
            isinstance(one, (bool, str, bytes, complex, type(None)))
            for one in given.ravel().tolist()
        ):
            raise TypeError
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise reject(argument, value, fix) from None


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The first things in nested lists, as far as a tracer may hide there."""
    if isinstance(value, (list, tuple)) and depth < 4:
        for one in value[:100]:
            yield from _leaves(one, depth + 1)
    else:
        yield value


def result(
    argument: str,
    value: Any,
    *needed: str,
    fix: str = "give what solve_ode, simulate or another solver returned",
) -> Any:
    """A result as an argument: a Dataset that has these variables, coordinates or dimensions."""
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
    """A path as an argument."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (str, os.PathLike))
        or (isinstance(value, str) and (not value or "\0" in value))
    ):
        raise reject(argument, value, "give the name of a file or folder")
    found = os.fspath(value)
    if not isinstance(found, str):
        raise reject(argument, value, "give the name of a file or folder as text")
    return Path(found)


def gram_matrix(argument: str, value: np.ndarray, tolerance: float = 1e-9) -> None:
    """Refuse a matrix (or a stack of them) that is no Gram matrix: not symmetric, or a negative eigenvalue."""
    if not np.all(np.isfinite(value)):
        raise ValueError(f"{argument} has entries that are not finite: give finite numbers")
    scale = max(1.0, float(np.abs(value).max(initial=0.0)))
    asymmetry = float(np.abs(value - np.swapaxes(value, -1, -2)).max(initial=0.0))
    if asymmetry > tolerance * scale:
        raise ValueError(
            f"{argument} is not symmetric (largest difference {asymmetry:.3g}): give a symmetric matrix of inner products"
        )
    lowest = float(np.linalg.eigvalsh(value).min(initial=0.0))
    if lowest < -tolerance * scale:
        raise ValueError(
            f"{argument} is not a Gram matrix (smallest eigenvalue {lowest:.6g} < 0): no vectors have these inner "
            f"products; give overlaps with a positive semi-definite {argument}"
        )


def reject_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that something does not have, with what was probably meant."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} has no {name!r}: {did_you_mean(name, known)}it takes {', '.join(known)}"
            )


Decorated = TypeVar("Decorated")


def argument_hints(hints: Mapping[str, str]) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class: an argument that it lacks, or that is missing, raises ValueError with what to write instead.

    `hints` maps argument names to sentences; other unknown names get the closest name and the list of arguments.
    """

    def decorate(target: Any) -> Any:
        function = target.__init__ if isinstance(target, type) else target
        first = 1 if isinstance(target, type) else 0  # after self
        parameters = list(inspect.signature(function).parameters.values())[first:]
        if any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in parameters
        ):
            return target  # it takes any
        known = [parameter.name for parameter in parameters]
        needed = [
            parameter.name for parameter in parameters if parameter.default is parameter.empty
        ]

        @functools.wraps(function)
        def checked(*args: object, **kwargs: object) -> Any:
            for name in kwargs:
                if name not in known:
                    listed = (
                        f"{did_you_mean(name, known)}It takes {', '.join(known) or 'no arguments'}."
                    )
                    raise reject(
                        name,
                        kwargs[name],
                        f"{target.__name__} has no such argument. {hints.get(name, listed)}",
                    )
            for name in needed:
                if name not in kwargs and known.index(name) + first >= len(args):
                    hint = hints.get(
                        name,
                        f"Write {target.__name__}({', '.join(f'{other}=...' for other in needed)}).",
                    )
                    raise ValueError(f"{name} is missing: {target.__name__} needs it. {hint}")
            return function(*args, **kwargs)

        if isinstance(target, type):
            target.__init__ = checked  # type: ignore[misc]
            return target
        return checked

    return decorate


def replace_fields(value: Any, changes: dict[str, Any]) -> Any:
    """A frozen dataclass with some fields changed, checked as when it was made."""
    reject_unknown(
        type(value).__name__,
        changes,
        [field.name for field in dataclasses.fields(value) if field.init],
    )
    return dataclasses.replace(value, **changes)
