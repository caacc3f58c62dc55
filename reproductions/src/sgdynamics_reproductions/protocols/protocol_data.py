"""Data of the figures of protocols, and the panels that show control, risk and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdynamics import OptimalProtocol
from sgdynamics.analysis.protocols.confirm import Confirmation

MEASURED = ("gain", "gain_error", "value", "value_error", "constant", "constant_error")
SWITCHES = 4  # number of switches that are stored per problem


def protocol_dataset(
    protocols: Mapping[str, OptimalProtocol], measured: Mapping[str, Confirmation], seed: int
) -> xr.Dataset:
    """Dataset of protocols with one control and equally many pieces each, and of their runs."""
    controls = [next(iter(protocol.protocol)) for protocol in protocols.values()]
    both = list(zip(protocols.values(), controls, strict=True))
    columns: dict[str, tuple[tuple[str, ...], Any]] = {
        "edges": (
            ("problem", "edge"),
            np.array([protocol.edges for protocol in protocols.values()]),
        ),
        "control": (
            ("problem", "piece"),
            np.array([protocol.protocol[name] for protocol, name in both]),
        ),
        "risks": (
            ("problem", "edge"),
            np.array([protocol.risks for protocol in protocols.values()]),
        ),
        "constant_risks": (
            ("problem", "edge"),
            np.array([protocol.constant_risks for protocol in protocols.values()]),
        ),
        "value": (("problem",), np.array([protocol.value for protocol in protocols.values()])),
        "extrapolated": (
            ("problem",),
            np.array([protocol.extrapolated for protocol in protocols.values()]),
        ),
        "constant": (("problem",), np.array([protocol.constant[name] for protocol, name in both])),
        "constant_value": (
            ("problem",),
            np.array([protocol.constant["risk"] for protocol in protocols.values()]),
        ),
        "bounds": (
            ("problem", "end"),
            np.array([protocol.bounds[name] for protocol, name in both]),
        ),
        "residual": (
            ("problem",),
            np.array([protocol.residual for protocol in protocols.values()]),
        ),
        "switches": (
            ("problem", "switch"),
            np.array([_pad(protocol.switches[name]) for protocol, name in both]),
        ),
    }
    columns |= {
        f"runs_{name}": (
            ("problem",),
            np.array([getattr(confirmation, name) for confirmation in measured.values()]),
        )
        for name in MEASURED
    }
    first = next(iter(measured.values()))
    attributes = {
        "d": first.dimension,
        "runs": first.runs,
        "pieces": len(both[0][0].edges) - 1,
        "seed": seed,
    }
    return xr.Dataset(columns, {"problem": list(protocols)}, attributes)


def _pad(positions: np.ndarray) -> np.ndarray:
    return np.append(positions, np.full(SWITCHES, np.nan))[:SWITCHES]


def draw_control(ax: Axes, data: xr.Dataset, label: str, *, bounds: bool = True) -> None:
    """The control of one problem in steps, its bounds, its switches and the best constant."""
    low, high = data.bounds.values
    if bounds:
        ax.axhspan(high, high + 1e3, color="0.9", lw=0, zorder=0)
        ax.axhspan(low - 1e3, low, color="0.9", lw=0, zorder=0, label="beyond the bounds")
    ax.axhline(
        float(data.constant),
        color="C3",
        lw=1.2,
        ls="--",
        label=f"best constant, {float(data.constant):.3g}",
    )
    ax.stairs(
        data.control.values, data.edges.values, color="C0", lw=1.6, baseline=None, label="optimum"
    )
    for index, value in enumerate(data.switches.values[np.isfinite(data.switches.values)]):
        ax.axvline(value, color="0.5", lw=0.8, ls=":", label="switches" if index == 0 else None)
    ax.set(ylabel=label, xlim=(0, data.edges.values[-1]))


def draw_risk(ax: Axes, data: xr.Dataset, runs: str, label: str = "excess risk") -> None:
    """The risk of one problem under the optimum and the best constant, and at the end what runs
    measured.
    """
    end = float(data.edges.values[-1])
    for name, risks, colour, dashes, words in (
        ("value", data.risks, "C0", "-", "optimum"),
        ("constant", data.constant_risks, "C3", "--", "best constant"),
    ):
        ax.plot(data.edges, risks, color=colour, ls=dashes, lw=1.5, label=words)
        ax.errorbar(
            [end],
            [float(data[f"runs_{name}"])],
            [2 * float(data[f"runs_{name}_error"])],
            fmt="o",
            ms=5,
            mfc="white",
            color=colour,
            capsize=3,
            lw=1,
            zorder=4,
            clip_on=False,
            label=runs if name == "value" else None,
        )
    ax.set(xlabel="$\\alpha$ = samples/$d$", ylabel=label, yscale="log", xlim=(0, end))
    text = (
        f"gain {float(data.constant_value / data.value):.4f}; runs {float(data.runs_gain):.3f} ±"
        f" {2 * float(data.runs_gain_error):.3f}"
    )
    ax.set_title(text, fontsize="medium")
