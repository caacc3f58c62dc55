"""Argument checks shared by the whole library: each raises a ValueError naming argument, value and fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np


def reject(argument: str, value: Any, fix: str) -> ValueError:
    """The one form of the library's complaints."""
    shown = " ".join(repr(value).split())  # in one line
    if len(shown) > 120:
        shown = shown[:117] + "..."
    return ValueError(f"{argument} = {shown}: {fix}")


def whole(argument: str, value: Any, least: int) -> int:
    """An integer not below `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer, float, np.floating)):
        raise reject(argument, value, f"give a whole number, {least} or more")
    if not math.isfinite(value) or int(value) != value or value < least:
        raise reject(argument, value, f"give a whole number, {least} or more")
    return int(value)


def number(argument: str, value: Any, least: float = -math.inf, *, above: float | None = None, infinite: bool = False) -> float:
    """A real number, at least `least` (or strictly above `above`); infinite only where that has a meaning."""
    bound = f"a number above {above:g}" if above is not None else f"a number, {least:g} or more"
    if least == -math.inf and above is None:
        bound = "a finite number"
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise reject(argument, value, f"give {bound}") from None
    if math.isnan(result) or (math.isinf(result) and not infinite):
        raise reject(argument, value, f"give {bound}")
    if result < least or (above is not None and result <= above):
        raise reject(argument, value, f"give {bound}")
    return result


def choice(argument: str, value: Any, allowed: Iterable[Any]) -> Any:
    """One of a few values, with a suggestion for what was probably meant."""
    options = list(allowed)
    if any(value is option or (type(value) is type(option) and value == option) for option in options):
        return value
    listed = ", ".join(repr(option) for option in options)
    raise reject(argument, value, f"{did_you_mean(value, options)}choose one of {listed}")


def did_you_mean(value: Any, options: Iterable[Any]) -> str:
    """'did you mean ...? ' when something close is on the list, else nothing."""
    names = [option for option in options if isinstance(option, str)]
    close = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? " if close else ""


def array(argument: str, value: Any, shape: tuple[int, ...], meaning: str) -> np.ndarray:
    """A finite float64 array of the given shape."""
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise reject(argument, value, f"give numbers of shape {shape} ({meaning})") from None
    if result.shape != shape:
        raise ValueError(f"{argument} has shape {result.shape}: give shape {shape} ({meaning})")
    if not np.all(np.isfinite(result)):
        raise ValueError(f"{argument} has entries that are not finite: give finite numbers ({meaning})")
    return result


def gram(argument: str, value: np.ndarray, tolerance: float = 1e-9) -> None:
    """Refuse a matrix (or a stack of them) that is no Gram matrix: not symmetric, or a negative eigenvalue."""
    scale = max(1.0, float(np.abs(value).max(initial=0.0)))
    asymmetry = float(np.abs(value - np.swapaxes(value, -1, -2)).max(initial=0.0))
    if asymmetry > tolerance * scale:
        raise ValueError(f"{argument} is not symmetric (largest difference {asymmetry:.3g}): give a symmetric matrix of inner products")
    lowest = float(np.linalg.eigvalsh(value).min(initial=0.0))
    if lowest < -tolerance * scale:
        raise ValueError(
            f"{argument} is not a Gram matrix (smallest eigenvalue {lowest:.6g} < 0): no vectors have these inner "
            f"products; give overlaps with a positive semi-definite {argument}"
        )
