"""Plots: each takes a result and returns (fig, ax); several results go on the same ax."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import checks

TIME_LABELS = {"t": "$t$ = lr steps / $d$", "alpha": r"$\alpha$ = samples / $d$", "step": "steps"}
MOST_POINTS = 25  # error bars on a curve before they run into one another


def risk(
    result: xr.Dataset, ax: Any = None, *, x: str = "t", excess: bool | None = None, log: bool = True, label: str | None = None
) -> tuple[Any, Any]:
    """The risk against time: a line for theory, the mean over runs with standard errors for a simulation.

    excess=None shows the excess risk where it is defined. On a log scale runs that share one curve stay apart from zero.
    """
    fig, ax = _axes(ax)
    chosen = "excess_risk" if ("excess_risk" in result if excess is None else excess) else "risk"
    if chosen not in result:
        raise checks.reject("excess", excess, "this result has no excess risk (its loss is not squared): leave it out")
    _draw(ax, _time(result, x), np.asarray(result[chosen]), _style(result), label or _label(result), None)
    ax.set_xlabel(TIME_LABELS[x])
    ax.set_ylabel("excess risk" if chosen == "excess_risk" else "risk")
    if log:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return fig, ax


def overlaps(result: xr.Dataset, ax: Any = None, *, x: str = "t", name: str = "M", label: str | None = None) -> tuple[Any, Any]:
    """Every entry of M (or of Q with name="Q", a with name="a") against time, one colour an entry."""
    checks.choice("name", name, ("M", "Q", "a"))
    fig, ax = _axes(ax)
    values = np.asarray(result[name])
    entries = list(np.ndindex(*values.shape[2:]))
    if name == "Q":
        entries = [entry for entry in entries if list(entry) == sorted(entry)]
    theory = _is_theory(result)
    for position, entry in enumerate(entries):
        shown = f"${name}_{{{''.join(str(index + 1) for index in entry)}}}$" if theory and len(entries) <= 8 else None
        if position == 0 and not theory:
            shown = label or _label(result)
        _draw(ax, _time(result, x), values[(slice(None), slice(None), *entry)], _style(result), shown, f"C{position % 10}")
    ax.set_xlabel(TIME_LABELS[x])
    ax.set_ylabel({"M": "overlaps with the signals $M$", "Q": "overlaps of the rows $Q$", "a": "head $a$"}[name])
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, ncols=2)
    return fig, ax


def _axes(ax: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    if ax is None:
        return plt.subplots(figsize=(6, 4), layout="constrained")
    return ax.figure, ax


def _time(result: xr.Dataset, x: str) -> np.ndarray:
    checks.choice("x", x, tuple(TIME_LABELS))
    if x not in result.coords:
        have = [name for name in TIME_LABELS if name in result.coords]
        raise checks.reject("x", x, f"this result has only {', '.join(have)}")
    return np.asarray(result[x])


def _is_theory(result: xr.Dataset) -> bool:
    """Whether a result is one curve, and not many random paths."""
    return not str(result.attrs.get("method", "")).startswith(("simulate", "solve_sde"))


def _style(result: xr.Dataset) -> dict[str, Any]:
    """Lines for theory, filled points for the exact chain, open squares (behind them) for direct runs, triangles for the SDE."""
    if _is_theory(result):
        return {}
    if str(result.attrs.get("method", "")).endswith("direct"):
        return {"fmt": "s", "ms": 7, "mfc": "none", "zorder": 1}
    if result.attrs.get("method") == "solve_sde":
        return {"fmt": "^", "ms": 5, "mfc": "none", "zorder": 2}
    return {"fmt": "o", "ms": 3.5, "zorder": 3}


def _label(result: xr.Dataset) -> str:
    names = {
        "solve_ode": "ODE",
        "solve_sde": "SDE",
        "solve_mean_field": "mean field",
        "simulate-exact": "exact simulation",
        "simulate-direct": "direct simulation",
    }
    method = str(result.attrs.get("method", "result"))
    label = names.get(method, method)
    if "dimension" in result.attrs:
        label += f", d = {result.attrs['dimension']}"
    return label + (f", {result.sizes['run']} runs" if result.sizes["run"] > 1 and not _is_theory(result) else "")


def _draw(ax: Any, x: np.ndarray, values: np.ndarray, style: dict[str, Any], label: str | None, color: str | None) -> None:
    """Lines for theory (one a run), points with standard errors for a simulation (points alone where it is a single run)."""
    if not style:
        for index, row in enumerate(values):
            ax.plot(x, row, label=label if index == 0 else None, color=color, lw=1.6)
        return
    good = np.isfinite(values).all(axis=1)
    if good.sum() < 2:
        for index, row in enumerate(values):
            ax.plot(x, row, ".", ms=4, label=label if index == 0 else None, color=color)
        return
    every = max(1, len(x) // MOST_POINTS)
    mean = values[good].mean(axis=0)
    error = values[good].std(axis=0, ddof=1) / np.sqrt(good.sum())
    ax.errorbar(x[::every], mean[::every], error[::every], lw=1, capsize=2, label=label, color=color, **style)
